"""Errors that users meet, recorded as texts in numbers.json beside the results of calls."""

import functools
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pandas import DataFrame, Series

import truncgauss as tg
from tests.recording import call, refusal
from truncgauss import tables

INF = np.inf
EYE, NINE, ONES = np.eye(2), np.arange(9.0), np.ones((9, 1))


def soft(width: Any) -> tg.Estimate:
    """By an edge whose rule of derivatives closes over its width."""
    rule = jax.custom_jvp(lambda x: jax.nn.sigmoid(x / width))
    rule.defjvps(lambda t, y, x: t * y * (1.0 - y) / width)  # type: ignore[no-untyped-call]
    return probability(1, method=tg.SoftMonteCarlo(64, edge=rule))


def box(d: int = 1) -> tg.Box:
    return tg.Box(np.zeros(d), np.ones(d))


def probability(d: int = 2, **changes: Any) -> tg.Estimate:
    """log_probability with some of its arguments replaced."""
    settings = {"loc": np.zeros(d), "covariance": np.eye(d), "region": box(d)} | changes
    return tg.log_probability(**settings)


def two() -> np.ndarray:
    return np.array([[0.0, 1.0], [1.0, 2.0]])


def rows(*ends: Any, **settings: Any) -> tg.Observations:
    return tg.Observations(*(ends or (two(), two())), **settings)


def exact(values: Any = NINE, **settings: Any) -> tg.Observations:
    return tg.Observations.exact(values, **settings)


def regression(**changes: Any) -> tg.fitting.RegressionFit:
    return tg.fit_regression(**({"outcome": NINE, "design": ONES} | changes))


@functools.cache
def line() -> tg.fitting.RegressionFit:
    return regression(design={"one": ONES[:, 0], "wage": NINE % 4})


@functools.cache
def pair() -> Any:
    """Of as many rows as other tests fit, so that it has their programs."""
    u = np.arange(60.0)
    return tg.fit_observations(exact(np.stack([u, u % 7], 1), names=("u", "v")), num_profiles=0)


def mixed(weights: Any, locs: Any) -> tg.Estimate:
    return tg.mixtures.mixture_log_likelihood(rows(), weights, locs, np.stack([EYE, EYE]))


def truncated_mixture(**changes: Any) -> tg.TruncatedMixture:
    return tg.TruncatedMixture(
        **({"weights": [1.0], "locs": [[0.0]], "covariances": [[[1.0]]]} | changes)
    )


def clusters(**changes: Any) -> Any:
    settings = {"outcome": NINE, "design": ONES, "cluster": np.arange(9) // 3} | changes
    return tg.fit_clusters(**settings)


def two_levels() -> tg.Ordinal:
    return tg.Ordinal([0, 1, 1] * 3)


def pair_of_levels(**settings: Any) -> Any:
    rows = tg.Observations.of([tg.Ordinal([0, 1, 0, 1]), tg.Ordinal([0, 1, 1, 0])])
    return tg.fit_observations(rows, **settings)


SEEN = NINE % 3 > 0


def selection(**changes: Any) -> Any:
    """Outcomes of which two thirds are seen."""
    covariates = np.stack([np.ones(9), np.sin(NINE)], axis=1)
    settings = {
        "outcome": np.where(SEEN, np.cos(NINE), np.nan), "design": covariates, "selected": SEEN,
        "selection_design": np.column_stack([covariates, np.cos(2.0 * NINE)]),
    }  # fmt: skip
    return tg.fit_selection(**(settings | changes))


def vector(covariance: Any, loc: Any = (0.0,), **settings: Any) -> Any:
    return tg.TruncatedMultivariateNormal(np.asarray(loc), covariance, **settings)


def held_for_a_ball() -> tg.Method:
    return tg.ImportanceSampling(64).hold(np.zeros(2), EYE, tg.Ball(np.zeros(2), 1.0))


def held_in_two() -> tg.Method:
    return tg.Separation(16, 2).hold(np.zeros(2), EYE + 0.3, box(2))


REGIONS: dict[str, Callable[[], Any]] = {
    "equal limits": lambda: tg.Box([0.0, 2.0], [1.0, 2.0]),
    "limits that cross": lambda: tg.Box([[0.0], [3.0]], [1.0]),
    "limits of two shapes": lambda: tg.Box([0.0, 1.0], [1.0, 2.0, 3.0]),
    "names of SciPy": lambda: tg.Box(lower=0.0, upper=1.0),
    "None for a limit": lambda: tg.Box(0.0, [1.0, None]),
    "None for all limits": lambda: tg.Box(None, 1.0),
    "text for a limit": lambda: tg.Box(["0", "1"], 2.0),
    "a complex limit": lambda: tg.Box([1j, 0.0], [INF, INF]),
    "text for limits of faces": lambda: tg.Polyhedron(EYE, 0.0, "1"),
    "text for a radius": lambda: tg.Ball([0.0, 1.0], "1.0"),
    "text for a shape": lambda: tg.Ellipsoid([0.0, 1.0], EYE.astype(str)),
    "a polyhedron of one axis": lambda: tg.Polyhedron([1.0, 2.0], [0.0], [1.0]),
    "a limit too few": lambda: tg.Polyhedron(EYE, [0.0], [1.0, 1.0]),
    "a negative radius": lambda: tg.Ball([0.0], -1.0),
    "a centre without axes": lambda: tg.Ball(0.0, 1.0),
    "centres of other rows than radii": lambda: tg.Ball(np.zeros((2, 2)), np.ones(3)),
    "a shape that is indefinite": lambda: tg.Ellipsoid([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]]),
    "a shape that is singular": lambda: tg.Ellipsoid([0.0, 0.0], np.diag([1.0, 0.0])),
    "a shape that is not symmetric": lambda: tg.Ellipsoid([0.0, 0.0], [[1.0, 0.5], [0.1, 1.0]]),
    "a shape of three": lambda: tg.Ellipsoid([0.0, 0.0], np.eye(3)),
    "a number for a centre": lambda: tg.Ellipsoid(0.0, [[1.0]]),
    "a selection above 1": lambda: probability(region=tg.Selection(lambda x: 2.0, 2)),
    "a selection by a number": lambda: tg.Selection(3, 2),  # type: ignore[arg-type]
    "a selection of a vector": lambda: tg.Selection(lambda x: x, 2),
    "a selection of NumPy": lambda: tg.Selection(lambda x: np.exp(np.asarray(x))[0], 1),
    "a list of boxes": lambda: probability(region=[box(2)] * 3),
    "limits of each row": lambda: probability(
        loc=np.zeros((9, 2)), region=tg.Box(NINE, NINE + 1.0)
    ),
    "limits that are no region": lambda: probability(region=(0.0, 1.0)),
    "a region before the mean": lambda: tg.explain(box(2), two()[0], EYE),  # type: ignore[arg-type]
}
COVARIANCES: dict[str, Callable[[], Any]] = {
    "in the place of the mean": lambda: probability(loc=EYE, covariance=np.zeros(2)),
    "beside a complex mean": lambda: probability(loc=[1j, 0.0]),
    "not symmetric": lambda: probability(covariance=[[1.0, 0.5], [0.2, 1.0]]),
    "one triangle": lambda: probability(covariance=[[1.0, 0.5], [0.0, 1.0]]),
    "a correlation above 1": lambda: probability(covariance=[[1.0, 1.2], [1.2, 1.0]]),
    "a negative variance": lambda: probability(covariance=[[1.0, 0.2], [0.2, -1.0]]),
    "after the bounds": lambda: probability(loc=np.zeros(2), covariance=np.ones(2), region=EYE),
    "indefinite": lambda: probability(covariance=[[1.0, 2.0], [2.0, 1.0]]),
    "beside a text for the mean": lambda: probability(loc=["a", 0]),
    "beside a number for all limits": lambda: probability(3, region=tg.Box(0.0, INF)),
    "a factor of text": lambda: tg.LowRank([["1"]], [1.0]),
    "not square": lambda: probability(covariance=np.ones((2, 3))),
    "a number": lambda: probability(1, covariance=1.0),
    "a vector": lambda: probability(covariance=[1.0, 2.0]),
    "of another dimension": lambda: probability(1, covariance=EYE),
    "axes that do not broadcast": lambda: probability(
        1, loc=np.zeros((2, 1)), covariance=np.ones((3, 1, 1))
    ),
    "an upper factor": lambda: tg.ScaleTril([[1.0, 0.5], [0.0, 1.0]]),
    "a negative diagonal": lambda: tg.ScaleTril([[-1.0]]),
    "a factor of one axis": lambda: tg.ScaleTril([1.0]),
    "factors of two shapes": lambda: tg.LowRank(np.ones((3, 1)), np.ones(2)),
    "no noise": lambda: tg.LowRank(np.ones((2, 1)), [1.0, -1.0]),
    "a transition that is a number": lambda: tg.Markov(0.5, 1.0, 1.0),
    "steps that disagree": lambda: tg.Markov([0.5, 0.5], [1.0, 1.0, 1.0], 1.0),
    "of text": lambda: probability(covariance=[["1", "0"], ["0", "1"]]),
    "float16": lambda: probability(
        loc=np.zeros(2, np.float16), covariance=EYE.astype(np.float16),
        region=tg.Box(np.zeros(2, np.float16), np.ones(2, np.float16)),
    ),
    "no dimension": lambda: probability(0),
}  # fmt: skip
METHODS: dict[str, Callable[[], Any]] = {
    "Exact in 4": lambda: probability(4, covariance=0.5 * np.eye(4) + 0.5, method=tg.Exact()),
    "Exact of a selection": lambda: probability(
        region=tg.Selection(lambda x: x[..., 0] > 0, 2), method=tg.Exact()
    ),
    "Separation of a ball": lambda: probability(
        1, region=tg.Ball([0.0], 1.0), method=tg.Separation()
    ),
    "Separation of no points": lambda: tg.Separation(num_points=0),
    "Separation of 1.5 replicates": lambda: tg.Separation(num_replicates=1.5),
    "SequentialMonteCarlo of a ball": lambda: probability(
        region=tg.Ball([0.0, 0.0], 1.0), method=tg.SequentialMonteCarlo()
    ),
    "SequentialMonteCarlo of no particle": lambda: tg.SequentialMonteCarlo(0),
    "SequentialMonteCarlo of 2.0 replicates": lambda: tg.SequentialMonteCarlo(8, 2.0),
    "ExpectationPropagation of a ball": lambda: probability(
        region=tg.Ball([0.0, 0.0], 1.0), method=tg.ExpectationPropagation()
    ),
    "FactorLattice of a matrix": lambda: probability(method=tg.probability.FactorLattice()),
    "ImportanceSampling of 1000 points": lambda: tg.ImportanceSampling(1000),
    "ImportanceSampling of no replicate": lambda: tg.ImportanceSampling(num_replicates=0),
    "ImportanceSampling held for a ball": lambda: probability(
        region=tg.Selection(lambda x: x[0] > 0, 2), method=held_for_a_ball()
    ),
    "ImportanceSampling held in 2": lambda: probability(
        3, region=tg.Ball(np.zeros(3), 1.0), method=held_for_a_ball()
    ),
    "SoftMonteCarlo of no sample": lambda: tg.SoftMonteCarlo(0),
    "SoftMonteCarlo of a grid": lambda: tg.SoftMonteCarlo(points="grid"),
    "SoftMonteCarlo of 11 antithetic points": lambda: tg.SoftMonteCarlo(11, points="antithetic"),
    "an edge with a rule": lambda: jax.grad(lambda w: soft(w).log_prob)(0.3),
    "a loss with a rule": lambda: tg.minimize(lambda w: soft(w).log_prob, 0.3, num_steps=1),
    "SoftMonteCarlo with a number for an edge": lambda: tg.SoftMonteCarlo(edge=0.1),
    "SoftMonteCarlo of samples in 2": lambda: probability(
        1, method=tg.SoftMonteCarlo(samples=jnp.ones((5, 2)))
    ),
    "an edge of no width": lambda: tg.Probit(0.0),
    "Automatic to no tolerance": lambda: tg.Automatic(rtol=0.0),
    "Automatic of no draws": lambda: tg.Automatic(max_draws=0),
    "a class of methods": lambda: probability(method=tg.Separation),
    "a method by name": lambda: probability(method="exact"),
    "a plan of another dimension": lambda: probability(
        3, covariance=np.eye(3) + 0.3, method=held_in_two()
    ),
    "plans of other rows": lambda: probability(
        2,
        covariance=EYE + 0.3,
        loc=np.zeros((3, 2)),
        method=tg.Separation(16, 2).hold(np.zeros((2, 2)), EYE + 0.3, box(2)),
    ),
    "a seed for a key": lambda: probability(key=0),
    "text for a key": lambda: probability(key="key"),
    "moments by a seed": lambda: tg.truncated_moments(np.zeros(2), EYE, box(2), key=0),
    "draws by a seed": lambda: tg.truncated_samples(0, np.zeros(2), EYE, box(2), 2),
    "weighted draws by a seed": lambda: tg.weighted_samples(0, np.zeros(2), EYE, box(2), 2),
    "draws of a mixture by a seed": lambda: truncated_mixture(low=0.0).sample(0),
    "a likelihood by a seed": lambda: tg.log_likelihood(exact(), [0.0], [[1.0]], key=0),
    "draws of a selection above 1": lambda: tg.truncated_samples(
        jax.random.key(0), np.zeros(2), EYE, tg.Selection(lambda x: 2.0, 2), 3
    ),
    "weighted draws by another sequence": lambda: tg.weighted_samples(
        jax.random.key(0), np.zeros(2), EYE, box(2), 3, points="sobol"
    ),
    "several keys": lambda: tg.truncated_samples(
        jax.random.split(jax.random.key(0)), np.zeros(2), EYE, box(2), 3
    ),
    "draws without a key": lambda: tg.truncated_samples(  # type: ignore[call-arg]
        np.zeros(2), EYE, box(2)
    ),
    "bounds without a region": lambda: tg.truncated_moments(  # type: ignore[call-arg]
        np.zeros(2), EYE, low=0.0, high=1.0
    ),
    "no samples": lambda: tg.truncated_samples(jax.random.key(0), np.zeros(2), EYE, box(2), 0),
    "weighted draws in a ball": lambda: tg.weighted_samples(
        jax.random.key(0), np.zeros(2), EYE, tg.Ball([0.0, 0.0], 1.0), 3
    ),
    "a gradient of draws": lambda: jax.grad(
        lambda loc: tg.truncated_samples(jax.random.key(0), loc, EYE, box(2), 3).mean()
    )(jnp.zeros(2)),
    "moments by Exact in 5": lambda: tg.truncated_moments(
        np.zeros(5), 0.5 * np.eye(5) + 0.5, tg.Box(np.zeros(5), INF), tg.Exact()
    ),
    "moments of two dimensions": lambda: tg.truncated_moments(np.zeros(4), EYE, box(2)),
    "moments by a name": lambda: tg.truncated_moments(np.zeros(2), EYE, box(2), "exact"),
    "no degrees of freedom": lambda: probability(df=0.0),
    "a t by another name": lambda: probability(df=3.0, noncentral="central"),
    "a t of a selection": lambda: probability(region=tg.Selection(lambda x: 1.0, 2), df=3.0),
    "a tail of no degrees of freedom": lambda: tg.log_quadratic_form_tail(1.0, [1.0], df=0.0),
    "a tail of negative noncentrality": lambda: tg.log_quadratic_form_tail(
        1.0, [1.0], noncentrality=-1.0
    ),
    "a tail of other degrees of freedom": lambda: tg.log_quadratic_form_tail(
        1.0, [1.0, 2.0], df=[1.0, 1.0, 1.0]
    ),
    "a tail of one weight": lambda: tg.log_quadratic_form_tail(1.0, 1.0),
    "a quantile of 1": lambda: tg.quantile(1.0, [0.0], [[1.0]]),
    "a quantile of text for df": lambda: tg.quantile(0.5, [0.0], [[1.0]], df="four"),
    "a quantile of negative df": lambda: tg.quantile(0.5, [0.0], [[1.0]], df=-1.0),
    "a quantile of another t": lambda: tg.quantile(0.5, [0.0], [[1.0]], noncentral="central"),
    "a quantile of another tail": lambda: tg.quantile(0.5, [0.0], [[1.0]], tail="two-sided"),
    "a complex number for ndtr": lambda: tg.special.ndtr(1j),
    "no function for first_nonfinite": lambda: tg.first_nonfinite(ONES, 0.0),
    "no array for first_nonfinite": lambda: tg.first_nonfinite(lambda x: 3, 1.0),
    "a normal of a negative scale": lambda: tg.TruncatedNormal(
        0.0, [1.0, -1.0], validate_args=True
    ),
    "a normal of NaN": lambda: tg.TruncatedNormal(np.nan, validate_args=True),
    "a normal of two shapes": lambda: tg.TruncatedNormal(np.zeros(2), np.ones(3)),
    "a normal of complex numbers": lambda: tg.TruncatedNormal(1j, 1.0, low=0.0),
    "a normal of text": lambda: tg.TruncatedNormal(0.0, 1.0, low="0"),
    "a normal without a key": lambda: tg.TruncatedNormal().sample(None),
    "a vector without a covariance": lambda: vector(None),
    "a vector of two covariances": lambda: vector([[1.0]], scale_tril=[[1.0]]),
    "a vector of limits and a region": lambda: vector([[1.0]], low=0.0, region=box()),
    "a vector in a ball": lambda: vector([[1.0]], region=tg.Ball([0.0], 1.0)),
    "a vector of another dimension": lambda: vector(EYE),
    "a vector of complex numbers": lambda: vector([[1.0]], [1j]),
    "a vector that is not symmetric": lambda: vector([[1.0, 0.5], [0.0, 1.0]], np.zeros(2)),
    "a vector of an indefinite precision": lambda: vector(
        None, np.zeros(2), precision_matrix=[[1.0, 2.0], [2.0, 1.0]]
    ),
    "a vector of a singular factor": lambda: vector(
        None, np.zeros(2), scale_tril=[[1.0, 0.0], [1.0, 0.0]], validate_args=True
    ),
    "a vector at infinity": lambda: vector(EYE, [0.0, INF], validate_args=True),
    "a value of another dimension": lambda: tg.TruncatedMultivariateNormal(
        np.zeros(2), EYE, low=0.0
    ).log_prob(jnp.zeros(3)),
    "degrees of freedom last": lambda: tg.TruncatedMultivariateStudentT(np.zeros(2), EYE, 4.0),
    "two covariances": lambda: tg.TruncatedMultivariateNormal(np.zeros(2), EYE, EYE, low=0.0),
}
OBSERVATIONS: dict[str, Callable[[], Any]] = {
    "three axes": lambda: rows(np.zeros((2, 2, 2)), np.zeros((2, 2, 2))),
    "text": lambda: rows([["a", "b"]], two()),
    "NaN": lambda: exact([[0.5, np.nan], [1.0, 2.0]]),
    "ends that cross": lambda: rows(two(), [[0.0, 0.0], [0.5, 2.0]]),
    "ends of two shapes": lambda: rows(two(), [[1.0], [1.0]]),
    "NaN in an end": lambda: rows([[0.0, np.nan], [0.0, 0.0]], two()),
    "at infinity": lambda: rows([[0.0, INF]], [[0.0, INF]]),
    "a region of another dimension": lambda: rows(region=box(1)),
    "regions of other rows": lambda: rows(region=tg.Box(np.zeros((3, 2)), 1.0)),
    "a region with NaN": lambda: rows(region=tg.Box([0.0, np.nan], [1.0, 1.0])),
    "a region by name": lambda: rows(region="all"),
    "a selection of two": lambda: exact(region=tg.Selection(lambda x: 0.5, 2)),
    "a selection above 1": lambda: exact(region=tg.Selection(lambda x: 2.0 * x[0], 1)),
    "limits that are equal where the others lie": lambda: tg.fit_observations(
        rows(np.append(1e9 + NINE, 1e-9), np.append(1e9 + NINE, 2e-9))
    ),
    "text for noise": lambda: exact(noise="0.1"),
    "text for the means of a mixture": lambda: truncated_mixture(locs=[["0"]], low=0.0),
    "noise of another shape": lambda: rows(noise=[1.0, 2.0, 3.0]),
    "noise that is indefinite": lambda: rows(noise=[[1.0, 2.0], [2.0, 1.0]]),
    "noise that is not symmetric": lambda: rows(noise=[[1.0, 0.5], [0.0, 1.0]]),
    "noise with NaN": lambda: rows(noise=[[1.0, 0.0], [0.0, np.nan]]),
    "weights of another shape": lambda: rows(weights=[1.0]),
    "a negative weight": lambda: rows(weights=[1.0, -1.0]),
    "no weight": lambda: rows(weights=[0.0, 0.0]),
    "limits on both": lambda: rows(limits_on="both"),
    "latent limits without noise": lambda: rows(
        limits_on="latent", region=box(2), noise=np.diag([1.0, 0.0])
    ),
    "names that repeat": lambda: exact(np.ones((3, 2)), names=("mass", "mass")),
    "under a trace": lambda: jax.jit(lambda x: rows(x, x).lower)(jnp.zeros((2, 1))),
    "a likelihood of another dimension": lambda: tg.log_likelihood(rows(), np.zeros(3), np.eye(3)),
    "a likelihood of arrays": lambda: tg.log_likelihood(np.ones((9, 2)), np.zeros(2), EYE),
    "a likelihood of other rows": lambda: tg.log_likelihood(rows(), np.zeros((5, 2)), EYE),
    "a likelihood of batches": lambda: tg.log_likelihood(rows(), np.zeros((2, 2, 2)), EYE),
    "a mixture of other means": lambda: mixed([0.2, 0.8], np.zeros((1, 2))),
    "a mixture of negative weights": lambda: mixed([1.5, -0.5], two()),
    "a mixture of no weight": lambda: mixed([0.0, 0.0], two()),
    "weights of a mixture that sum to 1.5": lambda: truncated_mixture(weights=[1.5]),
    "weights of other components": lambda: truncated_mixture(weights=[0.5, 0.5]),
    "limits and a region": lambda: truncated_mixture(low=0.0, region=box()),
    "a mixture in a region of two": lambda: truncated_mixture(region=box(2)),
    "a method held for another pattern": lambda: tg.log_likelihood(
        rows(np.zeros((1, 2)), np.ones((1, 2))),
        np.zeros(2),
        EYE,
        tg.likelihood.hold(tg.Exact(), rows([0.0], [1.0]), [0.0], [[1.0]]),
    ),
}
FITS: dict[str, Callable[[], Any]] = {
    "an infinite outcome": lambda: regression(outcome=np.where(SEEN, NINE, -INF)),
    "truth values for bounds": lambda: regression(censored_low=SEEN),
    "margins, as of Stata": lambda: line().margins(dydx="*"),
    "simultaneous, a control": lambda: tg.simultaneous(y=NINE, group=NINE // 3, control=0),
    "draws of a shape": lambda: tg.truncated_samples(
        jax.random.key(0), np.zeros(1), np.eye(1), box(), (5, 2)
    ),
    "fits under a trace": lambda: jax.jit(tg.fit_truncated_normal)(NINE),
    "draws of a traced number": lambda: jax.jit(tg.truncated_samples)(
        jax.random.key(0), np.zeros(1), np.eye(1), box(), 5
    ),
    "fit_mixture, numbers of components": lambda: tg.fit_mixture(exact(), range(1, 4)),
    "fit_clusters, kin from 1": lambda: clusters(terms=tg.Kinship(np.eye(3), 1 + NINE // 3)),
    "fit_selection, the others": lambda: selection(outcome=np.where(SEEN, np.nan, NINE)),
    "polychoric_matrix, correlations": lambda: tg.polychoric_matrix(0.5 * EYE + 0.5),
    "simultaneous, draws alone": lambda: tg.simultaneous(np.ones((100, 3))),
    "limits by position": lambda: tg.TruncatedMultivariateNormal(np.zeros(2), EYE, *two()),
    "an objective of estimates": lambda: tg.minimize(
        lambda x: tg.log_probability(x, EYE, box(2)), np.zeros(2)
    ),
    "a picture of a dictionary": lambda: tg.plotting.corner({"loc": NINE, "scale": NINE}),
    "a formula without an outcome": lambda: tg.fit_regression("~ x", data={"x": NINE}),
    "a formula without a table": lambda: tg.fit_observations(exact(), "~ x"),
    "rows in the place of columns": lambda: tg.fit_observations(exact(np.ones((2, 9)))),
    "a series without a name": lambda: regression(design={"x": ONES[:, 0]}).predict(Series([1.0])),
    "a number of items": lambda: tg.progress(3),  # type: ignore[arg-type]
    "fit_shift, counts without trials": lambda: tg.fit_shift([30], [0.0], [[1.0]], box()),
    "fit_shift, more counts than trials": lambda: tg.fit_shift([30], [0.0], [[1.0]], box(), 20),
    "fit_shift, fractions of trials": lambda: tg.fit_shift([0.3], [0.0], [[1.0]], box(), 20),
    "fit_shift, no trials": lambda: tg.fit_shift([0], [0.0], [[1.0]], box(), 0),
    "fit_shift, text": lambda: tg.fit_shift(["0.3"], [0.0], [[1.0]], box()),
    "fit_shift, a seed": lambda: tg.fit_shift([0.3], [0.0], [[1.0]], box(), key=0),
    "fit_shift, NaN": lambda: tg.fit_shift([np.nan], [0.0], [[1.0]], box(), 20),
    "fit_shift, other regions": lambda: tg.fit_shift(
        [0.1, 0.2], [0.0], [[1.0]], tg.Box([[0.0], [1.0], [2.0]], INF)
    ),
    "fit_limits, no end": lambda: tg.fit_limits(
        [0.1], [0.0], [[1.0]], {"low": [-INF], "high": [INF]}
    ),
    "fit_limits, no names": lambda: tg.fit_limits([0.1], [0.0], [[1.0]], 1.0),
    "fit, an objective of vectors": lambda: tg.minimize(lambda x: x, jnp.zeros(2)),
    "fit, no function": lambda: tg.minimize(1.0, jnp.zeros(2)),
    "fit, a seed": lambda: tg.minimize(lambda x, key: x**2, 1.0, key=0),
    "fit, no parameter": lambda: tg.minimize(jnp.sum, {}),
    "fit, complex numbers": lambda: tg.minimize(jnp.sum, jnp.zeros(2, complex)),
    "fit, negative steps": lambda: tg.minimize(jnp.sum, 1.0, num_steps=-1),
    "fit, an optimiser by name": lambda: tg.minimize(jnp.sum, 1.0, "adam"),
    "fit, all frozen": lambda: tg.minimize(jnp.sum, 1.0, constraints=tg.fitting.Frozen()),
    "fit, an unknown constraint": lambda: tg.minimize(
        lambda p: p["width"], {"width": 1.0}, constraints={"widht": tg.fitting.Positive()}
    ),
    "fit, a start outside": lambda: tg.minimize(
        lambda p: p["width"], {"width": -1.0}, constraints={"width": tg.fitting.Positive()}
    ),
    "fit_truncated_normal, NaN": lambda: tg.fit_truncated_normal([[0.5], [-1.0], [np.nan]]),
    "fit_truncated_normal, rows outside": lambda: tg.fit_truncated_normal([0.5, -1.0, -2.0], 0.0),
    "fit_truncated_normal, a seed": lambda: tg.fit_truncated_normal(1.0 + NINE, 0.0, key=0),
    "fit_truncated_normal, constant": lambda: tg.fit_truncated_normal(
        [[1.0, 2.0], [1.0, 3.0], [1.0, 5.0]]
    ),
    "fit_truncated_normal, few rows": lambda: tg.fit_truncated_normal(two()),
    "fit_truncated_normal, dependent columns": lambda: tg.fit_truncated_normal(
        [[1.0, 2.0], [2.0, 4.0], [5.0, 10.0]]
    ),
    "fit_truncated_normal, three axes": lambda: tg.fit_truncated_normal(np.zeros((2, 2, 2))),
    "fit_truncated_normal, limits of two": lambda: tg.fit_truncated_normal(NINE, [0.0, 0.0]),
    "fit_truncated_normal, limits that cross": lambda: tg.fit_truncated_normal(NINE, 5.0, 4.0),
    "Observations, one array": lambda: tg.Observations(NINE),
    "from_table, a limit of detection": lambda: tg.Observations.from_table(
        {"x": NINE}, "x", lod=0.5
    ),
    "from_table, a limit with its unit": lambda: tg.Observations.from_table(
        {"x": NINE}, "x", censored_low="0.8 mg"
    ),
    "from_table, a decimal comma": lambda: tg.Observations.from_table(
        {"x": ["1,5", "<0.5"]}, "x", censoring="text"
    ),
    "fit_mixture, exchanged": lambda: tg.fit_mixture(2, exact()),
    "fit_mixture, another word": lambda: tg.fit_mixture(exact(), 2, covariance="diag"),
    "a region after the covariance": lambda: tg.TruncatedMultivariateNormal(
        np.zeros(2), EYE, box(2)
    ),
    "names of mvtnorm": lambda: tg.log_probability(mean=np.zeros(2), sigma=EYE, lower=0.0),
    "draws in the order of R": lambda: tg.truncated_samples(9, np.zeros(2), EYE, NINE, NINE),
    "rows of a transposed table": lambda: tg.fit_truncated_normal(
        np.stack([NINE, np.cos(NINE)]), [-9.0, -9.0], [9.0, 9.0]
    ),
    "an interval with NaN": lambda: regression(outcome=np.stack([NINE, NINE * np.nan], axis=1)),
    "predict, without a covariate": lambda: regression(
        design={"constant": np.ones(9), "dose": np.cos(NINE)}
    ).predict({"constant": [1.0]}),
    "draws of a number": lambda: tg.TruncatedNormal(0.0, 1.0, low=0.0).sample(
        jax.random.key(0), 10
    ),
    "bounds after the covariance": lambda: tg.log_probability(np.zeros(2), EYE, 0.0, 1.0),
    "a picture of no region": lambda: tg.plotting.region([0.0, 1.0]),
    "a band of two lengths": lambda: tg.plotting.band([0.0, 1.0], [0.0], [1.0, 2.0]),
    "Observations.of, one array": lambda: tg.Observations.of(np.zeros((20, 2))),
    "fit_truncated_normal, a box for low": lambda: tg.fit_truncated_normal(
        NINE, tg.Box([0.0], [9.0])
    ),
    "fit_truncated_normal, nothing": lambda: tg.fit_truncated_normal(),
    "fit_truncated_normal, an unknown label": lambda: tg.fit_truncated_normal(
        {"x": NINE}, {"z": -0.5}
    ),
    "Statistics, a negative weight": lambda: tg.Statistics.from_rows([1.0, 2.0], [1.0, -1.0]),
    "Statistics, no weight": lambda: tg.Statistics.from_rows([1.0, 2.0], [0.0, 0.0]),
    "Statistics, weights of other rows": lambda: tg.Statistics.from_rows([1.0, 2.0], [1.0]),
    "Statistics, NaN": lambda: tg.Statistics.from_rows([[1.0, np.nan], [1.0, 2.0]]),
    "Statistics, no rows": lambda: tg.Statistics.from_rows(np.zeros((0, 2))),
    "Statistics, too large": lambda: tg.Statistics.from_rows([1e200, 2e200]),
    "Statistics, other columns": lambda: (
        tg.Statistics.from_rows([1.0, 2.0]) + tg.Statistics.from_rows([[1.0, 2.0]])
    ),
    "Statistics, a scatter of one": lambda: tg.Statistics(3, [1.0], [1.0]),
    "Statistics, under jit": lambda: jax.jit(tg.Statistics.from_rows)(np.ones(3)),
    "Statistics, and a number": lambda: tg.Statistics.from_rows(np.ones((3, 2))) + 3,
    "Statistics, not symmetric": lambda: tg.Statistics(3, [1.0, 2.0], [[1.0, 0.5], [0.4, 1.0]]),
    "fit_observations, impossible rows": lambda: tg.fit_observations(
        exact([0.5, -1.0, 2.0], region=tg.Box([0.0], [INF]))
    ),
    "fit_observations, arrays": lambda: tg.fit_observations(np.zeros((10, 2))),
    "fit_observations, few rows": lambda: tg.fit_observations(exact([0.5, 1.0])),
    "fit_observations, collinear": lambda: tg.fit_observations(exact(), np.ones((9, 2))),
    "fit_observations, a design with NaN": lambda: tg.fit_observations(
        exact(), np.full((9, 1), np.nan)
    ),
    "fit_observations, a design of 4 rows": lambda: tg.fit_observations(exact(), np.ones((4, 1))),
    "fit_observations, a design of text": lambda: tg.fit_observations(exact(), ONES.astype(str)),
    "fit_observations, a round covariance": lambda: tg.fit_observations(
        exact(), covariance="round"
    ),
    "fit_observations, a negative variance": lambda: tg.fit_observations(
        exact(), covariance=[[-1.0]]
    ),
    "fit_observations, a covariance of two": lambda: tg.fit_observations(exact(), covariance=EYE),
    "fit_observations, a start below 0": lambda: tg.fit_observations(
        exact(), start={"loc": [0.0], "covariance": [[-1.0]]}
    ),
    "fit_observations, a start of two": lambda: tg.fit_observations(
        exact(), start={"loc": [0.0, 1.0], "covariance": [[1.0]]}
    ),
    "fit_observations, an unknown estimate": lambda: tg.fit_observations(exact()).profile("scale"),
    "an estimate that is nearly one": lambda: regression().profile("sigm"),
    "fit_observations, a level of 1": lambda: tg.fit_observations(exact()).profile("loc[0]", 1.0),
    "a level in percent": lambda: regression().wald(95),
    "fit_observations, a profile without a maximum": lambda: tg.fit_observations(
        exact(np.full(10, 2.5))
    ).profile("loc[0]"),
    "fit_observations, loc of a design": lambda: tg.fit_observations(
        exact(), np.column_stack([np.ones(9), NINE**2])
    ).loc,
    "likelihood_ratio, other rows": lambda: tg.likelihood_ratio(
        tg.fit_observations(exact()), tg.fit_observations(exact(NINE[1:]))
    ),
    "likelihood_ratio, the same model": lambda: tg.likelihood_ratio(regression(), regression()),
    "quantile_residuals, a normal": lambda: tg.quantile_residuals(tg.fit_truncated_normal(NINE)),
    "a dictionary for a limit": lambda: tg.Box({"y": 0.0}, 1.0),
    "fit_regression, a start by name": lambda: regression(start={"x": 1.0}),
    "fit_observations, a start of one": lambda: tg.fit_observations(exact(), start=[1.0]),
    "margins of a text": lambda: line().margins(variables="wages"),
    "use_compilation_cache, a number": lambda: tg.use_compilation_cache(3),  # type: ignore[arg-type]
    "an argument that is none": lambda: regression(censor_low=0.0),
    "an argument too few": lambda: tg.log_probability(np.zeros(2), EYE),  # type: ignore[call-arg]
    "a name that is none": lambda: tg.fit_regresion,  # type: ignore[attr-defined]
    "derived, not finite": lambda: regression().derived(lambda p: p.sigma / 0.0, "ratio"),
    "derived, a number": lambda: regression().derived(3),
    "derived, a comparison": lambda: regression().derived(lambda p: p.sigma > 0),
    "derived, an unknown name": lambda: regression().derived("slope"),
    "derived, an unknown estimate": lambda: regression().derived(lambda p: p["loc[7]"]),
    "derived of nothing": lambda: regression().derived(lambda p: None),
    "Ordinal, levels in one text": lambda: tg.Ordinal(["lo", "hi"], "lohi"),
    "simultaneous, an alternative": lambda: tg.simultaneous(
        [1.0], [[1.0]], alternative="two sided"
    ),
    "simultaneous, contrasts": lambda: tg.simultaneous([1.0], [[1.0]], contrasts="scheffe"),
    "simultaneous, NaN": lambda: tg.simultaneous([1.0, np.nan], EYE, contrasts="tukey"),
    "simultaneous, not symmetric": lambda: tg.simultaneous([1.0, 2.0], [[1.0, 0.5], [0.0, 1.0]]),
    "simultaneous, negative variances": lambda: tg.simultaneous([1.0, 2.0], -EYE),
    "simultaneous, no variance": lambda: tg.simultaneous([1.0, 2.0], EYE, contrasts=[[0.0, 0.0]]),
    "simultaneous, of three": lambda: tg.simultaneous([1.0, 2.0], np.eye(3)),
    "simultaneous, a level in percent": lambda: tg.simultaneous([1.0], [[1.0]], level=95),
    "simultaneous, no degrees of freedom": lambda: tg.simultaneous([1.0], [[1.0]], df=0),
    "simultaneous, variances": lambda: tg.simultaneous([1.0, 2.0], [1.0, 2.0]),
    "fit_observations, variances": lambda: tg.fit_observations(
        rows(), covariance=np.ones(2)  # type: ignore[arg-type]
    ),
    "simultaneous, of a fit": lambda: tg.simultaneous(regression(), "tukey"),
    "predict, a list of numbers": lambda: regression().predict([1.0, 2.0]),
    "save, no figure": lambda: tg.plotting.save(3, "x"),  # type: ignore[arg-type]
    "resumable, a number": lambda: tg.fitting.resumable(3).__enter__(),  # type: ignore[arg-type]
    "a plot of text": lambda: tg.plotting.worm("a"),
    "a plot of a fit": lambda: tg.plotting.qq(regression()),
    "fit_regression, True and False": lambda: regression(outcome=NINE > 4),
    "fit_regression, a column of True": lambda: regression(
        outcome="seen", data={"seen": NINE > 4}
    ),
    "fit_clusters, True and False": lambda: clusters(outcome=NINE > 4),
    "fit_regression, NaN": lambda: regression(outcome=np.where(NINE == 4, np.nan, NINE)),
    "fit_regression, exchanged": lambda: tg.fit_regression({"constant": NINE, "x": 1 + NINE}, NINE),
    "fit_regression, exchanged for one column": lambda: tg.fit_regression(
        {"dose": NINE, "age": 1 + NINE}, NINE
    ),
    "fit_regression, arrays exchanged": lambda: tg.fit_regression(
        np.column_stack([np.ones(9), 2.0 + NINE]), NINE
    ),
    "fit_regression, another name": lambda: tg.fit_regression(NINE, NINE[:, None], left=0.0),
    "fit_observations, bounds of an array": lambda: tg.fit_observations(NINE, censored_low=0.0),
    "log_probability, a mean": lambda: tg.log_probability(
        mean=[0.0], cov=[[1.0]], region=tg.Box([0.0], [1.0])
    ),
    "log_probability, exchanged": lambda: tg.log_probability(
        np.zeros(2), tg.Box([0.0, 0.0], [1.0, 1.0]), np.eye(2)
    ),
    "simultaneous, another spelling": lambda: tg.simultaneous(
        np.ones(3), np.eye(3), contrasts="Dunnet"
    ),
    "derived by numpy": lambda: tg.fit_regression(NINE, np.ones((9, 1))).derived(
        lambda p: np.exp(p["sigma"])
    ),
    "a name of scikit-learn": lambda: regression().coef_,
    "a name of statsmodels": lambda: regression().nobs,
    "the residuals as an attribute": lambda: regression().residuals,
    "to_frame, a package first": lambda: regression().to_frame("polars"),
    "quantile, the probability last": lambda: tg.quantile(np.zeros(2), np.eye(2), 0.9),
    "predict, a column that is not there": lambda: line().predict({"one": 1.0, "wages": [1.0]}),
    "predict, without the constant": lambda: line().predict({"wage": [1.0, 2.0]}),
    "predict, other columns": lambda: line().predict(np.ones((2, 3))),
    "predict, a gap": lambda: line().predict({"one": 1.0, "wage": [1.0, np.nan]}),
    "predict, another kind": lambda: line().predict(kind="median"),
    "predict, two quantiles": lambda: line().predict(kind="quantile", probability=[0.1, 0.9]),
    "predict, a probability without limits": lambda: line().predict(kind="probability"),
    "predict, a quantile of 95": lambda: line().predict(kind="quantile", probability=95),
    "predict, other rows": lambda: line().predict(known=exact([1.0])),
    "predict, a quantile of an entry": lambda: pair().predict(
        exact([[2.0, 1.0]]), "quantile", entry="v"
    ),
    "predict, a quantile of no entry": lambda: pair().predict(kind="quantile"),
    "margins, no covariates": lambda: pair().margins(),
    "margins, an unknown covariate": lambda: line().margins(variables=["height"]),
    "margins, at an unknown covariate": lambda: line().margins({"height": 1.0}),
    "predict, an entry of no quantile": lambda: regression().predict(entry="y"),
    "predict, a probability of no quantile": lambda: regression().predict(probability=0.9),
    "fit_regression, three columns": lambda: regression(outcome=np.zeros((9, 3))),
    "fit_regression, limits that cross": lambda: regression(censored_low=2.0, censored_high=1.0),
    "fit_regression, limits of two rows": lambda: regression(censored_low=[0.0, 1.0]),
    "fit_regression, rows outside": lambda: regression(truncated_low=4.5),
    "fit_regression, bounds of a logarithm": lambda: tg.fit_regression(
        "np.log(x) ~ 1", data={"x": 1.0 + NINE, "limit": NINE}, censored_low="limit"
    ),
    "a formula with an offset": lambda: tg.fit_regression("x ~ offset(z)", data={"x": NINE}),
    "fit_regression, collinear": lambda: regression(design=np.ones((9, 2))),
    "fit_regression, a collinear scale": lambda: regression(scale_design=np.zeros((9, 1))),
    "fit_regression, as many covariates as rows": lambda: regression(design=np.eye(9)),
    "fit_regression, a start of two scales": lambda: regression(
        start={"coefficients": [0.0], "log_scale": [0.0, 1.0]}
    ),
    "fit_regression, a start with NaN": lambda: regression(
        start={"coefficients": [np.nan], "log_scale": [0.0]}
    ),
    "fit_regression, negative weights": lambda: regression(weights=-np.ones(9)),
    "fit_regression, observations": lambda: regression(outcome=exact()),
    "fit_regression, a ball": lambda: regression(region=tg.Ball([0.0], 2.0)),
    "fit_truncated_normal, limits twice": lambda: tg.fit_truncated_normal(
        NINE, 0.0, region=tg.Box([0.0], [INF])
    ),
    "fit_shift, a method that sees no region": lambda: tg.fit_shift(
        [500], [0.0], [[1.0]], tg.Box([30.0], [31.0]), 1000,
        method=tg.SoftMonteCarlo(num_samples=64, num_replicates=1, edge=tg.Hard()),
    ),
    "fit_regression, clusters without a sandwich": lambda: regression(cluster=NINE),
    "fit_regression, three labels": lambda: regression(cluster=[1, 2, 3], information="sandwich"),
    "fit_regression, no labels": lambda: regression(cluster=[None] * 9, information="sandwich"),
    "fit_regression, one cluster": lambda: regression(cluster=ONES[:, 0], information="sandwich"),
    "fit_regression, text for a limit": lambda: regression(truncated_low="1.0"),
    "fit_regression, text for noise": lambda: regression(noise="1.0"),
    "fit_regression, negative noise": lambda: regression(noise=-1.0),
    "fit_regression, guessed information": lambda: regression(information="guessed"),
    "fit_regression, scale of a design": lambda: regression(
        scale_design=np.column_stack([np.ones(9), NINE])
    ).scale,
    "fit_clusters, a design with NaN": lambda: clusters(design=ONES * np.nan),
    "fit_clusters, negative noise": lambda: clusters(noise=-np.ones(9)),
    "fit_clusters, negative weights": lambda: clusters(weights=-np.ones(9)),
    "fit_clusters, weights that differ in a cluster": lambda: clusters(weights=NINE),
    "fit_clusters, five labels": lambda: clusters(cluster=[1.0] * 5),
    "fit_clusters, no labels": lambda: clusters(cluster=None),
    "fit_clusters, a term by name": lambda: clusters(terms="residual"),
    "fit_clusters, numbers that are not binary": lambda: clusters(binary=True),
    "fit_clusters, one name twice": lambda: clusters(
        terms=(tg.RandomEffects(), tg.RandomEffects(), tg.Residual())
    ),
    "fit_clusters, times between": lambda: clusters(terms=tg.AutoRegressive(np.full(9, 0.5))),
    "fit_clusters, kin of two": lambda: clusters(terms=(tg.Kinship(np.eye(2)), tg.Residual())),
    "fit_clusters, limits that cross": lambda: clusters(censored_low=9.0, censored_high=1.0),
    "fit_clusters, all censored": lambda: clusters(censored_low=9.0),
    "fit_clusters, all missing": lambda: clusters(outcome=NINE * np.nan),
    "fit_clusters, no exact outcome": lambda: clusters(
        outcome=np.array([[-INF, 0.0], [0.0, INF], [0.0, INF]] * 3)
    ),
    "fit_clusters, one cluster": lambda: clusters(cluster=[0] * 9),
    "fit_clusters, a sandwich of one": lambda: clusters(
        cluster=[0] * 9, terms=tg.Residual(), information="sandwich"
    ),
    "fit_clusters, kin that cannot be": lambda: clusters(
        terms=[tg.Kinship(np.eye(9) + 2.0 * np.eye(9)[::-1]), tg.Residual()],
        cluster=[1, 2, 0, 0, 3, 0, 0, 2, 1], weights=[1, 1, 0, 0, 1, 0, 0, 1, 1],
    ),
    "fit_clusters, kin of many rows that cannot be": lambda: clusters(
        terms=[tg.Kinship(np.eye(9) + 2.0 * np.eye(9)[::-1]), tg.Residual()], cluster=[0] * 9
    ),
    "fit_clusters, kin of other labels": lambda: clusters(
        terms=[tg.Kinship(DataFrame(np.eye(9), list("abcdefghi"))), tg.Residual()],
        outcome=Series(NINE),
    ),
    "fit_clusters, observations": lambda: clusters(outcome=exact()),
    "fit_clusters, categories without a scale": lambda: clusters(
        outcome=two_levels(), terms=tg.RandomEffects()
    ),
    "fit_clusters, censored categories": lambda: clusters(outcome=two_levels(), censored_low=0.0),
    "fit_clusters, categories of other rows": lambda: clusters(outcome=tg.Ordinal([0, 1])),
    "fit_clusters, a start of one": lambda: clusters(outcome=two_levels(), start=[1.0]),
    "ordered, banded": lambda: pair_of_levels(covariance="banded"),
    "ordered, variances of 2": lambda: pair_of_levels(covariance=2.0 * EYE),
    "ordered, a start": lambda: pair_of_levels(start={"rho": 0.5}),
    "ordered, expected information": lambda: pair_of_levels(information="expected"),
    "ordered, censored": lambda: tg.fit_regression(two_levels(), ONES, censored_low=0.0),
    "ordered, constant": lambda: tg.Observations.of([tg.Ordinal([1, 1])]),
    "ordered, in a ball": lambda: tg.fit_observations(
        tg.Observations.of([two_levels()], region=tg.Ball([0.0], 9.0))
    ),
    "Ordinal, an unknown level": lambda: tg.Ordinal(["lo"], ["low", "high"]),
    "Ordinal, a level twice": lambda: tg.Ordinal([1, 2], [1, 1, 2]),
    "Ordinal, no category": lambda: tg.Ordinal([np.nan], [1, 2]),
    "Ordinal, no whole numbers": lambda: tg.Ordinal([0.5, 1.0]),
    "polychoric, constant": lambda: tg.polychoric([1, 1, 1], [1, 2, 3]),
    "polychoric, other rows": lambda: tg.polychoric([1, 2], [1, 2, 3]),
    "polychoric, exact": lambda: tg.polychoric([1, 2], [0.5, 1.5]),
    "polychoric, texts": lambda: tg.polychoric(["a", "b"], [1, 2]),
    "polychoric, negative counts": lambda: tg.polychoric([[1, -2], [3, 4]]),
    "polychoric, weights of a table": lambda: tg.polychoric([[1, 2], [3, 4]], weights=[1, 2]),
    "polychoric, a negative correction": lambda: tg.polychoric([[1, 2], [3, 4]], correction=-1.0),
    "polychoric, columns of answers": lambda: tg.polychoric(np.arange(600).reshape(300, 2) % 5),
    "polychoric_matrix, one name twice": lambda: tg.polychoric_matrix(
        [Series(NINE % 3, name="a")] * 2
    ),
    "polychoric_matrix, one column": lambda: tg.polychoric_matrix(np.ones(3)),
    "fit_selection, all selected": lambda: selection(selected=np.ones(9)),
    "fit_selection, all that count": lambda: selection(weights=SEEN * 1.0),
    "fit_selection, selected twice": lambda: selection(selected=2.0 * SEEN),
    "fit_selection, texts": lambda: selection(selected=np.where(SEEN, "yes", "no")),
    "fit_selection, a gap": lambda: selection(outcome=np.where(NINE == 4, np.nan, NINE)),
    "fit_selection, eight outcomes": lambda: selection(outcome=NINE[1:]),
    "fit_selection, other rows": lambda: selection(selection_design=np.ones((5, 2))),
    "fit_selection, collinear where seen": lambda: selection(
        design=np.column_stack([np.ones(9), SEEN])
    ),
    "fit_selection, numbers that are not binary": lambda: selection(binary=True),
    "fit_selection, nine parameters": lambda: selection(design=np.vander(NINE / 9.0, 4)),
    "fit_selection, clusters without a sandwich": lambda: selection(cluster=NINE),
    "fit_mixture, arrays": lambda: tg.fit_mixture(np.zeros((10, 2)), 2),
    "fit_mixture, few rows": lambda: tg.fit_mixture(exact([0.0, 1.0, 3.0]), 2),
    "fit_mixture, no component": lambda: tg.fit_mixture(exact(), 0),
    "fit_mixture, a negative prior": lambda: tg.fit_mixture(exact(), 1, prior_rows=-1.0),
    "fit_mixture, 1.5 components": lambda: tg.fit_mixture(exact(), 1.5),
    "fit_mixture, a start below 0": lambda: tg.fit_mixture(
        exact(), 1, start={"weights": [1.0], "locs": [[0.0]], "covariances": [[[-1.0]]]}
    ),
    "fit_mixture, equal rows": lambda: tg.fit_mixture(exact(np.full(9, 2.0)), 1),
    "fit_mixture, a round covariance": lambda: tg.fit_mixture(exact(), 1, covariance="round"),
    "fit_mixture, Fisher's information": lambda: tg.fit_mixture(exact(), 1, information="Fisher"),
    "fit_mixture, a start of other shapes": lambda: tg.fit_mixture(
        exact(), 1, start={"weights": [1.0], "locs": [[0.0]], "covariances": [[1.0]]}
    ),
    "fit_mixture, a start with negative weights": lambda: tg.fit_mixture(
        exact(), 1, start={"weights": [-1.0], "locs": [[0.0]], "covariances": [[[1.0]]]}
    ),
    "fit_mixture, impossible rows": lambda: tg.fit_mixture(
        exact(np.linspace(-3.0, 1.0, 20), region=tg.Box([-0.1], [INF])), 1
    ),
    "fit_mixture, censored rows alone": lambda: tg.fit_mixture(
        rows(np.full((20, 1), -INF), np.zeros((20, 1)), names=["lead"]), 1
    ),
    "fit_mixture, shrinks onto a row": lambda: tg.fit_mixture(
        exact(np.append(np.linspace(-1.0, 1.0, 30), 50.0)), 2,
        start={"weights": [0.9, 0.1], "locs": [[0.0], [50.0]], "covariances": [[[0.3]], [[1e-3]]]},
    ),
}  # fmt: skip
COLUMNS = {
    "flux": [1.0, 0.2, 3.5, 0.1, np.nan],
    "colour": [0.4, 0.5, 0.6, 0.7, 0.8],
    "detected": ["yes", "no", "yes", "no", "yes"],
    "dates": np.array(["2020-01-01"] * 5, "datetime64[D]"),
}


def from_table(columns: Any = "colour", **settings: Any) -> tg.Observations:
    return tg.Observations.from_table(COLUMNS, columns, **settings)


def from_file(text: str, *args: Any, **settings: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "t.csv").write_text(text, "utf-8")
        try:
            return tables.from_file(pathlib.Path(folder) / "t.csv", *args, **settings)
        except (TypeError, ValueError) as error:
            raise type(error)(str(error).replace(f"{folder}/", "")) from None


TABLES: dict[str, Callable[[], Any]] = {
    "an unknown column": lambda: from_table("fluks"),
    "a gap": lambda: from_table("flux"),
    "True and False": lambda: tg.Observations.from_table({"seen": NINE > 4}, "seen"),
    "text": lambda: from_table("detected"),
    "dates": lambda: from_table("dates"),
    "a limit of another column": lambda: from_table(truncated_low={"flux": 0.0}),
    "limits of two entries": lambda: from_table(
        ["colour", "flux"], truncated_low=[0.0, 1.0], missing=True
    ),
    "a mark that is no pair": lambda: from_table(left_censored="detected"),
    "a mark that no cell has": lambda: from_table(left_censored=("detected", "nope")),
    "marked and censored": lambda: from_table(
        right_censored=("detected", "no"), censored_low=0.6
    ),
    "marked left and censored above": lambda: from_table(
        left_censored=("detected", "no"), censored_high=0.7
    ),
    "marked left and right": lambda: from_table(
        left_censored=("detected", "no"), right_censored=("detected", "no")
    ),
    "negative noise": lambda: from_table(noise_scale=-1.0),
    "marked by one word": lambda: from_table(censored="detected"),
    "unknown weights": lambda: from_table(weights="weight"),
    "a limit of a log": lambda: from_table(log=True, censored_low=np.log(0.5)),
    "a covariate with units": lambda: tables.formula("~ m", {"m": [f"{x} kg" for x in range(20)]}),
    "a column of complex numbers": lambda: tables.read({"x": [1j, 2]}),
    "columns of two lengths": lambda: tables.read({"x": [1.0, 2.0], "y": [1.0]}),
    "a column of objects": lambda: tables.read({"x": [1.0, None, 2.0]}),
    "a column of text": lambda: tables.read({"x": ["a", "b"]}),
    "a frame with one name twice": lambda: tables.read(DataFrame(EYE, columns=["x", "x"])),
    "a column of two axes": lambda: tables.read({"x": [[1.0], [2.0]]}),

    "a file, an unknown column": lambda: from_file("x,y\n1,2\n", ["z"]),
    "a file, a cell of text": lambda: from_file("x,y\n1,2\na,3\n", ["x"]),
    "a file, an empty cell": lambda: from_file("x,y\n1,2\n,3\n", ["x"], missing=["NA"]),
    "a file, no row": lambda: from_file("x,kind\n1,a\n2,b\n", ["x"], {"kind": "zzz"}),
    "a file, a row too long": lambda: from_file("x,y\n1,2\n1,2,3\n", ["x"]),
}  # fmt: skip
# Arguments of a kind that was not meant, of which Python, NumPy or JAX would speak in their words.
ARGUMENTS: dict[str, Callable[[], Any]] = {
    "explain, a method by name": lambda: tg.explain(np.zeros(2), EYE, box(2), "exact"),  # type: ignore[arg-type]
    "fit_shift, a method by name": lambda: tg.fit_shift(
        [0.3], [0.0], [[1.0]], box(), method="exact"
    ),
    "fit_limits, a method by name": lambda: tg.fit_limits(
        [0.3], [0.0], [[1.0]], {"low": [0.0], "high": [1.0]}, method="exact"
    ),
    "fit_observations, a method by name": lambda: tg.fit_observations(exact(), method="exact"),
    "fit_truncated_normal, a number for a method": lambda: tg.fit_truncated_normal(NINE, method=1),
    "fit_mixture, a method by name": lambda: tg.fit_mixture(exact(), 2, method="exact"),
    "log_likelihood, a method by name": lambda: tg.log_likelihood(
        exact(), [0.0], [[1.0]], method="exact"
    ),
    "rows over a number": lambda: tg.parallel.rows(4),  # type: ignore[arg-type]
    "replicates over a number": lambda: tg.parallel.replicates(4),  # type: ignore[arg-type]
    "samples spread over a number": lambda: tg.parallel.spread(two(), 4),  # type: ignore[arg-type]
    "quantile, a number for a region": lambda: tg.quantile(0.9, np.zeros(2), EYE, region=3),
    "quantile, one region": lambda: tg.quantile(0.9, np.zeros(2), EYE, region=box(2)),
    "minimize, a loss by float": lambda: tg.minimize(lambda x: float(x) ** 2, 1.0),
    "minimize, a loss by NumPy": lambda: tg.minimize(lambda x: np.sum(np.asarray(x) ** 2), ONES),
    "minimize, a loss by cases": lambda: tg.minimize(lambda x: x if x > 0 else -x, 1.0),
    "from_table, columns of two lengths": lambda: tg.Observations.from_table(
        {"zinc": [1.0, 2.0], "lead": [1.0]}, ["zinc", "lead"]
    ),
    "polychoric, fractions": lambda: tg.polychoric([[0.1, 0.2], [0.3, 0.4]]),
    "log_ndtr, text": lambda: tg.special.log_ndtr("2.0"),
    "log_ndtr, an array of texts": lambda: tg.special.log_ndtr(np.array(["2.0"])),
    "a value and a gradient of 3 and 4 points": lambda: tg.plotting.value_and_gradient(
        np.arange(3.0), np.zeros(3), np.zeros(4)
    ),
    "Markov without a scale": lambda: tg.Markov([0.5], [1.0]),  # type: ignore[call-arg]
    "ScaleTril without a matrix": lambda: tg.ScaleTril(),  # type: ignore[call-arg]
    "LowRank, an unknown name": lambda: tg.LowRank(ONES, cov_dig=1.0),  # type: ignore[call-arg]
    "samples that are whole": lambda: tg.SoftMonteCarlo(samples=np.arange(6).reshape(3, 2)),
    "samples with NaN": lambda: tg.SoftMonteCarlo(samples=[[0.0, np.nan], [1.0, INF]]),
    "samples on their side": lambda: probability(
        1, method=tg.SoftMonteCarlo(samples=np.zeros((1, 50)))
    ),
    "samples of another number": lambda: tg.SoftMonteCarlo(100, samples=np.zeros((50, 2))),
    "Automatic, a number of points": lambda: tg.Automatic(1000),
    "Separation, points that are a float": lambda: tg.Separation(1000.0),  # type: ignore[arg-type]
    "Separation, an unknown name": lambda: tg.Separation(num_point=64),  # type: ignore[call-arg]
    "Tanh, an unknown name": lambda: tg.Tanh(stepness=2.0),  # type: ignore[call-arg]
    "progress by a word": lambda: regression(progress="no"),
    "fit_shift, progress by a word": lambda: tg.fit_shift(
        [0.3], [0.0], [[1.0]], box(), progress="no"
    ),
    "fit_shift, an unknown name": lambda: tg.fit_shift(
        [0.3], [0.0], [[1.0]], box(), num_trial=100
    ),
    "fit_limits, an unknown name": lambda: tg.fit_limits(
        [0.3], [0.0], [[1.0]], {"low": [0.0], "high": [1.0]}, trials=100
    ),
    "fit_observations, a method second": lambda: tg.fit_observations(exact(), tg.Exact()),
    "fit_observations, one variance and covariance": lambda: tg.fit_observations(
        exact(), covariance="exchangeable"
    ),
    "fit_observations, that misspelt": lambda: tg.fit_observations(
        exact(), covariance="exchangable"
    ),
    "fit_observations, that of a curve": lambda: tg.fit_observations(
        exact(two(), observed=tg.Selection.probit(EYE, 0.0, 1.0)), covariance="exchangable"
    ),
    "negative noise of a row": lambda: exact(two(), noise=[EYE, -EYE]),
    "noise with NaN in a row": lambda: exact(two(), noise=[EYE, EYE * np.nan]),
    "a crooked noise of a row": lambda: exact(two(), noise=[EYE, [[1.0, 0.5], [0.0, 1.0]]]),
    "fit_clusters, one negative noise": lambda: clusters(noise=np.where(NINE == 4, -2.0, 1.0)),
    "fit_clusters, weights of infinity": lambda: clusters(weights=np.where(NINE > 5, INF, 1.0)),
    "fit_truncated_normal, one negative weight": lambda: tg.fit_truncated_normal(
        NINE, weights=1.0 - NINE
    ),
    "from_table, a column of negative noise": lambda: from_table(
        noise_scale={"colour": [1.0, -2.0, 1.0, 1.0, 1.0]}
    ),
    "truncated_samples, the key last": lambda: tg.truncated_samples(
        np.zeros(2), EYE, box(2), 5, jax.random.key(0)  # type: ignore[arg-type]
    ),
    "truncated_draws, the key last": lambda: tg.truncated_draws(
        np.zeros(2), EYE, box(2), 5, jax.random.key(0)  # type: ignore[arg-type]
    ),
    "weighted_samples, the key last": lambda: tg.weighted_samples(
        np.zeros(2), EYE, box(2), 5, jax.random.PRNGKey(0)  # type: ignore[arg-type]
    ),
    "fit_truncated_normal, a column for each row": lambda: tg.fit_truncated_normal(np.ones((2, 9))),
    "no covariance": lambda: probability(covariance=None),
    "log_likelihood, more columns than coordinates": lambda: tg.log_likelihood(
        exact(two()), [0.0], [[1.0]]
    ),
    "log_likelihood, a covariance of more": lambda: tg.log_likelihood(exact(), [0.0], EYE),
    "an edge that is called": lambda: tg.Tanh(1.0)(0.5),
    "an edge of an edge": lambda: tg.EdgeFunction(tg.Tanh(1.0)),
    "Ball, the radius first": lambda: tg.Ball(1.0, [0.0, 0.0]),
    "MaternProcess, a text": lambda: tg.MaternProcess("1", 1.0),
    "Statistics, a negative scatter": lambda: tg.Statistics(10, [0.0], [[-1.0]]),
    "fit_truncated_normal, of nothing": lambda: tg.fit_truncated_normal([], low=0.0),
    "fit_clusters, a design of one axis": lambda: clusters(design=NINE),
    "fit_clusters, the design last": lambda: clusters(design=NINE // 3, cluster=ONES),
    "fit_clusters, all at one time": lambda: clusters(terms=[tg.AutoRegressive(0.0 * NINE)]),
    "fit_clusters, all at one position": lambda: clusters(terms=[tg.Matern(0.0 * NINE)]),
    "fit_clusters, a sigma by text": lambda: clusters(terms=[tg.Residual(sigma="1")]),
    "fit_selection, a design of one axis": lambda: selection(selection_design=NINE),
    "fit_observations, a design of one axis": lambda: tg.fit_observations(exact(), NINE),
    "fit_regression, a number": lambda: regression(outcome=3.0),
    "fit_regression, truncations that cross": lambda: regression(
        truncated_low=5.0, truncated_high=0.0
    ),
    "fit_regression, the table first": lambda: regression(outcome={"y": NINE}, design="y ~ 1"),
    "fit_regression, a formula of an equation": lambda: regression(
        outcome="y = x", design=None, data={"y": NINE, "x": NINE % 4}
    ),
    "fit_regression, data without names": lambda: regression(
        outcome="y ~ x", design=None, data=ONES
    ),
    "fit_regression, a table after the formula": lambda: regression(
        outcome="y ~ x", design=DataFrame({"y": NINE, "x": NINE % 4})
    ),
    "RandomEffects, a bar": lambda: clusters(
        data={"x": NINE}, terms=(tg.RandomEffects("1 | g"), tg.Residual())
    ),
    "SoftMonteCarlo, the samples first": lambda: tg.SoftMonteCarlo(NINE[:, None]),  # type: ignore[arg-type]
    "SoftMonteCarlo, samples of texts": lambda: tg.SoftMonteCarlo(samples=np.array([["a"]])),
    "SoftMonteCarlo, no samples": lambda: tg.SoftMonteCarlo(samples=np.zeros((0, 1))),
    "an edge of three arguments": lambda: tg.SoftMonteCarlo(edge=lambda x, low, high: x),
    "an edge as the method": lambda: tg.fraction_not_truncated(
        [0.0], [[1.0]], box(), tg.Tanh(10.0)  # type: ignore[arg-type]
    ),
    "excursion, the covariance first": lambda: tg.excursion(EYE, np.zeros(2), 0.5),
    "quantile_residuals, the key first": lambda: tg.quantile_residuals(
        jax.random.key(0), (exact(), [0.0], [[1.0]])  # type: ignore[arg-type]
    ),
    "minimize, the optimiser first": lambda: tg.minimize(
        lambda x: x**2, optax.lbfgs(), 1.0  # type: ignore[arg-type]
    ),
    "Residual, a name by position": lambda: tg.Residual("y"),  # type: ignore[call-arg]
    "fit_shift, under jit": lambda: jax.jit(
        lambda s: tg.fit_shift(s, [0.0], [[1.0]], box(), num_trials=1000).params
    )(np.array([300.0])),
    "exact, a word misspelt": lambda: exact(nan_is_mising=True),
    "from_table, lower alone": lambda: tg.Observations.from_table(
        {"y": NINE, "lim": NINE}, "y", lower="lim"
    ),
    "fit_truncated_normal, rows as statistics": lambda: tg.fit_truncated_normal(
        statistics=ONES, low=0.0
    ),
    "minimize, steps by text": lambda: tg.minimize(
        lambda x: x**2, 1.0, num_steps="10"  # type: ignore[arg-type]
    ),
    "host_devices, a text": lambda: tg.parallel.host_devices("4"),  # type: ignore[arg-type]
    "device_mesh, a text": lambda: tg.parallel.device_mesh("4"),  # type: ignore[arg-type]
    "from_points, noise by text": lambda: tg.Directed.from_points(
        NINE, lambda x, y: jnp.exp(-jnp.sum((x - y) ** 2)), noise="s"
    ),
    "clipped_logits, a list and a negative span": lambda: tg.safe.clipped_logits([1.0, 2.0], -1.0),
    "hold, a class": lambda: tg.likelihood.hold(
        tg.Separation, rows(), [0.0] * 2, EYE  # type: ignore[arg-type]
    ),
    "hold, the observations first": lambda: tg.likelihood.hold(
        rows(), tg.Separation(), [0.0] * 2, EYE  # type: ignore[arg-type]
    ),
    "TruncatedNormal, the key last": lambda: tg.TruncatedNormal().sample(
        (5,), jax.random.key(0)  # type: ignore[arg-type]
    ),
    "formula, a bar": lambda: tables.formula("y ~ x | g", {"y": NINE, "x": NINE, "g": NINE}),
    "formula, a category in quotes": lambda: tables.formula("C(g, 'b')", {"g": [*"abc"] * 3}),
    "formula, a dot": lambda: tables.formula("y ~ .", {"y": NINE, "x": NINE, "a b": NINE}),
    "formula, a function of R": lambda: tables.formula("y ~ sqrt(x)", {"y": NINE, "x": NINE}),
    "formula, a power of R": lambda: tables.formula("y ~ x^2", {"y": NINE, "x": NINE}),
    "formula, a survival time of R": lambda: tables.formula("Surv(y, x) ~ 1", {"y": NINE}),
    "from_precision, a matrix": lambda: tg.Directed.from_precision(EYE),  # type: ignore[call-arg]
    "log_probability, one mean for all": lambda: tg.log_probability(0.0, EYE, box(2)),
    "plotting.save, a PDF": lambda: tg.plotting.save(tg.plotting.figure()[0], "a.pdf"),
    "log_probability, means in one dimension": lambda: tg.log_probability(NINE, [[1.0]], box(1)),
    "value_and_gradient, a column": lambda: tg.plotting.value_and_gradient(
        np.arange(3.0), np.arange(3.0), np.ones((3, 1))
    ),
    "formula, the table first": lambda: tables.formula({"y": NINE}, "y ~ 1"),
    "from_file, one name that is not there": lambda: from_file("x,y\n1,2\n", "age"),
    "TruncatedNormal, a value by text": lambda: tg.TruncatedNormal().log_prob("0.5"),
    "Censored, a limit by text": lambda: tg.Censored(tg.TruncatedNormal(), "0"),
    "TruncatedMultivariateNormal, no mean": lambda: tg.TruncatedMultivariateNormal(None, EYE),
    "TruncatedMultivariateNormal, the covariance first": lambda: vector([0.0, 0.0], EYE),
    "TruncatedMixture, a negative variance": lambda: truncated_mixture(covariances=[[[-1.0]]]),
    "Automatic, a word": lambda: tg.Automatic("fast"),  # type: ignore[arg-type]
    "polychoric, a correction by text": lambda: tg.polychoric(NINE % 2, NINE % 3, correction="0.5"),
    "fit_clusters, binary by a word": lambda: clusters(outcome=NINE % 2, binary="probit"),
    "from_file, a kept text alone": lambda: from_file("x,y\n1,2\n", ["x"], "y"),
    "design, one name that is not there": lambda: tables.design({"x": NINE}, "age"),
    "design, a category alone": lambda: tables.design({"x": NINE}, ["x"], "x"),
    "margins, a name as the points": lambda: line().margins("wage"),
    "wald, a probability of error": lambda: line().wald(alpha=0.05),  # type: ignore[call-arg]
    "safe, a logarithm": lambda: tg.safe.log(0.0),
    "safe, a norm": lambda: tg.safe.norm(NINE),
    "safe_norm, an axis that is not there": lambda: tg.safe.safe_norm(NINE, 1),
    "bump, a wrong name": lambda: tg.safe.bump(NINE, size=1.0),  # type: ignore[call-arg]
    "truncated_mean, a negative scale": lambda: tg.special.truncated_mean(0.0, -1.0, 0.0, 1.0),
    "log_probability, True as degrees of freedom": lambda: probability(df=True),
    "MaternProcess, True": lambda: tg.MaternProcess(True, 1.0),
    "fit_limits, no start": lambda: tg.fit_limits([0.5], [0.0], EYE[:1, :1]),  # type: ignore[call-arg]
    "fit_regression, a start of texts": lambda: regression(
        start={"coefficients": ["a"], "log_scale": [0.0]}
    ),
    "fit_regression, columns of one name": lambda: tg.fit_regression(
        "y ~ x", data=DataFrame(np.ones((3, 3)), columns=["y", "x", "x"])
    ),
    "an estimate, in a function of JAX": lambda: jnp.exp(probability()),  # type: ignore[arg-type]
    "an estimate, an item by name": lambda: probability()["log_prob"],  # type: ignore[call-overload]
    "log_probability, a number of draws": lambda: probability(num_samples=1000),
    "log_probability, a function as the region": lambda: probability(region=abs),
    "fit_mixture, a seed": lambda: tg.fit_mixture(rows(), 2, seed=1),  # type: ignore[call-arg]
    "minimize, a parameter that is not there": lambda: tg.minimize(lambda x: x["a"], {"b": 1.0}),
    "fit_observations, weights": lambda: tg.fit_observations(rows(), weights=1.0),  # type: ignore[call-arg]
    "fit_regression, names for the design": lambda: tg.fit_regression(NINE, ["x"]),
    "fit_regression, names of both ends": lambda: regression(outcome=("y", "z")),
    "from_points, points as columns": lambda: tg.Directed.from_points(np.ones((2, 50)), jnp.dot),
    "minimize, epochs": lambda: tg.minimize(lambda x: x * x, 1.0, epochs=9, lr=0.1),  # type: ignore[call-arg]
    "Limits, a tuple": lambda: tg.minimize(
        lambda x: x[0] ** 2, (0.0, 1.0), constraints=tg.fitting.Limits()
    ),
    "SoftMonteCarlo, samples without an axis": lambda: probability(
        1, method=tg.SoftMonteCarlo(samples=np.ones(64))
    ),
    "predict, a covariate that lacks": lambda: tg.fit_regression(
        "y ~ x", data={"y": NINE % 4, "x": NINE}, num_profiles=0
    ).predict({"z": NINE}),
    "from_points, noise of other points": lambda: tg.Directed.from_points(
        NINE, lambda x, y: jnp.exp(-jnp.sum((x - y) ** 2)), noise=[0.1, 0.2]
    ),
    "SoftMonteCarlo, the edge second": lambda: tg.SoftMonteCarlo(9, tg.Tanh(9.0)),  # type: ignore[arg-type]
    "exact, rows of different lengths": lambda: exact([[1.0, 2.0], [3.0]]),
    "formula, a function that is not there": lambda: tables.formula("y ~ f(x)", {"y": NINE}),
    "formula, several outcomes of R": lambda: tables.formula("cbind(y, x) ~ 1", {"y": NINE}),
    "three widths of four faces": lambda: probability(
        method=tg.SoftMonteCarlo(64, edge=tg.Bump([0.1, 0.2, 0.3]))
    ),
}  # fmt: skip
for _group, _calls in {
    "region": REGIONS, "covariance": COVARIANCES, "method": METHODS, "observations": OBSERVATIONS,
    "refused": FITS, "table": TABLES, "argument": ARGUMENTS,
}.items():  # fmt: skip
    for _name, _function in _calls.items():
        call(f"{_group}: {_name}")(lambda function=_function: refusal(function))
