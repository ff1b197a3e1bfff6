"""Calls of the public interface whose results are recorded in numbers.json.

`python -m tests.recorded_calls --record [NAME ...]` records them anew and says what changed;
`--missing` in its place records those that have no result yet.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import truncgauss as tg

# Imported for their effects: conftest sets flags and precision, recorded_messages enters its calls.
from tests import conftest, problems, recorded_messages, recording  # noqa: F401
from tests.recording import CALLS, ITERATED, SINGLE, call

INF = np.inf
__all__ = ["CALLS"]

# --------------------------------------------------------------------- probabilities of regions


def named(name: str) -> tuple[Any, Any, tg.Region]:
    """A problem of tests/problems.py."""
    found = problems.problem(name)
    return found.loc, found.covariance(), tg.Box(found.low, found.high)


def mixed(d: int) -> tuple[Any, Any, tg.Region]:
    """Limits of every kind, and another correlation for each pair of coordinates."""
    low = np.array([-1.0, -INF, 0.0, -0.5, 1.0])[:d]
    high = np.array([1.0, 0.5, INF, 2.0, 3.0])[:d]
    return np.array([0.1, -0.2, 0.3, 0.0, 0.4])[:d], dense(d), tg.Box(low, high)


def dense(d: int) -> np.ndarray:
    """A covariance matrix without structure."""
    root = np.random.default_rng(d).normal(size=(d, d + 3))
    return root @ root.T / d + 0.2 * np.eye(d)


def factors(d: int, rank: int) -> tg.LowRank:
    rng = np.random.default_rng(d + rank)
    return tg.LowRank(0.6 * rng.normal(size=(d, rank)), rng.uniform(0.5, 1.5, size=d))


def many_faces(m: int, d: int) -> tg.Polyhedron:
    rng = np.random.default_rng(m)
    return tg.Polyhedron(rng.normal(size=(m, d)), np.full(m, -INF), rng.uniform(0.8, 2.0, size=m))


def smooth_edge(x: Any) -> Any:
    return jax.nn.sigmoid(4.0 * (x[..., 0] + 0.5 * x[..., 1]))


PROBLEMS: dict[str, Callable[[], tuple[Any, Any, Any]]] = {
    "narrow tail in 1": lambda: ([0.0], [[1.0]], tg.Box([30.0], [30.0 + 1e-9])),
    "mixed in 2": lambda: mixed(2),
    "mixed in 3": lambda: mixed(3),
    "tail in 3": lambda: named("factor-3-tail4"),
    "singular in 3": lambda: named("ones-3"),
    "mixed in 5": lambda: mixed(5),
    "chain in 5": lambda: named("ar1-5-tail4"),
    "Cholesky factor in 5": lambda: (*mixed(5)[:1], tg.ScaleTril(np.linalg.cholesky(dense(5))),
                                     mixed(5)[2]),
    "rows in 5": lambda: (np.linspace(-1.0, 1.0, 4)[:, None] + mixed(5)[0], dense(5), mixed(5)[2]),
    "dense in 10": lambda: (np.zeros(10), dense(10), tg.Box(np.full(10, -1.0), np.full(10, 2.0))),
    "order in 30": lambda: (np.zeros(30), problems.tridiagonal(30),
                            tg.Box(np.zeros(30), np.full(30, INF))),
    "Markov chain in 30": lambda: (np.zeros(30), tg.Markov(np.full(29, 0.8), 0.6, 1.0),
                                   tg.Box(np.full(30, -0.5), np.full(30, INF))),
    "two factors in 12": lambda: (np.zeros(12), factors(12, 2),
                                  tg.Box(np.full(12, -1.0), np.full(12, 1.5))),
    "four factors in 12": lambda: (np.zeros(12), factors(12, 4),
                                   tg.Box(np.full(12, -1.0), np.full(12, 1.5))),
    "polygon": lambda: (np.array([0.2, -0.1]), dense(2), many_faces(7, 2)),
    "half-spaces in 5": lambda: (np.zeros(5), dense(5), many_faces(3, 5)),
    "ball in 3": lambda: (np.array([0.5, 0.0, -0.5]), dense(3), tg.Ball(np.zeros(3), 1.5)),
    "ellipsoid in 2": lambda: (np.array([3.0, 1.0]), dense(2),
                               tg.Ellipsoid(np.zeros(2), np.array([[1.0, 0.3], [0.3, 0.5]]))),
    "soft selection in 2": lambda: (np.array([0.2, -0.1]), dense(2), tg.Selection(smooth_edge, 2)),
}  # fmt: skip
FEW = tg.Separation(num_points=64, num_replicates=4)
SOFT = {
    "Tanh": tg.Tanh(20.0),
    "Probit": tg.Probit(0.1),
    "Bump": tg.Bump(0.2),
    "Hard": tg.Hard(),
    "Surrogate": tg.Surrogate(tg.Tanh(10.0)),
}
METHODS: dict[str, tuple[tg.Method, tuple[str, ...]]] = {
    "Automatic": (tg.Automatic(rtol=1e-3), ("narrow tail in 1", "mixed in 3", "singular in 3",
                                            "Cholesky factor in 5", "rows in 5", "dense in 10",
                                            "polygon", "half-spaces in 5", "soft selection in 2")),
    "Exact": (tg.Exact(), ("Markov chain in 30", "two factors in 12", "ellipsoid in 2")),
    "Separation": (FEW, ("mixed in 5", "order in 30")),
    "Separation without tilt": (tg.Separation(64, 4, tilted=False), ("mixed in 5",)),
    "SequentialMonteCarlo": (tg.SequentialMonteCarlo(64, 4), ("mixed in 5",)),
    "ImportanceSampling": (tg.ImportanceSampling(128, 4), ("ball in 3",)),
    "ExpectationPropagation": (tg.ExpectationPropagation(), ("mixed in 5",)),
    "FactorLattice": (tg.probability.FactorLattice(64, 4), ("four factors in 12",)),
    **{f"SoftMonteCarlo, {name}": (tg.SoftMonteCarlo(64, 4, edge), ("mixed in 2",))
       for name, edge in SOFT.items()},
}  # fmt: skip


def value_and_slopes(loc: Any, covariance: Any, region: Any, method: tg.Method) -> dict[str, Any]:
    """The estimate, and the derivatives of its sum by the mean, the covariance and the region."""

    def total(*problem: Any) -> tuple[jax.Array, tg.Estimate]:
        estimate = tg.log_probability(*problem, method)
        return estimate.log_prob.sum(), estimate

    numbers = jax.tree.map(jnp.asarray, (loc, covariance, region), is_leaf=is_list)
    (_, estimate), slopes = jax.value_and_grad(total, (0, 1, 2), has_aux=True)(*numbers)
    names = ("by loc", "by covariance", "by region")
    parts = {name: jax.tree.leaves(slope) for name, slope in zip(names, slopes)}
    return {"log_prob": estimate.log_prob, "stderr": estimate.stderr} | parts


def is_list(value: Any) -> bool:
    return isinstance(value, list)


def enter_probabilities() -> None:
    for label, (method, served) in METHODS.items():
        for name in served:
            ask = lambda name=name, method=method: value_and_slopes(*PROBLEMS[name](), method)
            call(f"{label}: {name}")(ask)


enter_probabilities()


for _name in ("mixed in 2", "rows in 5"):
    call(f"value alone: {_name}")(lambda name=_name: tg.log_probability(*PROBLEMS[name]()))


@call("held plan, under jit: mixed in 5")
def held_plan() -> Any:
    problem = PROBLEMS["mixed in 5"]()
    held = FEW.hold(*problem)
    of = lambda loc: tg.log_probability(loc, *problem[1:], held).log_prob
    value, slope = jax.jit(jax.value_and_grad(of))(problem[0] + 0.1)
    return {"log_prob": value, "by loc": slope, "curvature": jax.jit(jax.hessian(of))(problem[0])}


@call("Automatic under jit: mixed in 3")
def automatic_under_jit() -> Any:
    return jax.jit(lambda *p: value_and_slopes(*p, tg.Automatic()))(*PROBLEMS["mixed in 3"]())


@call("Automatic held, under vmap: rows in 5")
def automatic_under_vmap() -> Any:
    loc, covariance, box = PROBLEMS["rows in 5"]()
    held = tg.Automatic(rtol=1e-3).hold(loc[0], covariance, box)
    return jax.vmap(lambda each: tg.log_probability(each, covariance, box, held))(loc)


@call("float32: mixed in 3", SINGLE)
def single_precision() -> Any:
    problem = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), PROBLEMS["mixed in 3"]())
    return value_and_slopes(*problem, tg.Automatic())


@call("float32: dense in 10", SINGLE)
def single_precision_by_points() -> Any:
    problem = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), PROBLEMS["dense in 10"]())
    return value_and_slopes(*problem, FEW)


@call("another key: mixed in 5")
def another_key() -> Any:
    return tg.log_probability(*PROBLEMS["mixed in 5"](), FEW, jax.random.key(7))


@call("fraction_not_truncated: rows in 5")
def fractions() -> Any:
    return tg.fraction_not_truncated(*PROBLEMS["rows in 5"](), FEW)


@call("log_probability_and_gradient: mixed in 5")
def gradient_with_errors() -> Any:
    found = tg.log_probability_and_gradient(*PROBLEMS["mixed in 5"](), FEW)
    parts = {"gradient": found.gradient, "gradient_stderr": found.stderr}
    return found.estimate._asdict() | {key: jax.tree.leaves(part) for key, part in parts.items()}


for _name in ("mixed in 5", "chain in 5", "ball in 3"):
    call(f"explain: {_name}")(
        lambda name=_name: tg.explain(*PROBLEMS[name](), tg.Automatic(rtol=1e-3))
    )
call("explain: Separation, dense in 10")(lambda: tg.explain(*PROBLEMS["dense in 10"](), FEW))


# ------------------------------------------------------------------------- moments and draws


for _name in ("mixed in 2", "mixed in 5", "singular in 3"):
    call(f"truncated_moments: {_name}")(
        lambda name=_name: tg.truncated_moments(*PROBLEMS[name](), tg.Automatic(rtol=1e-2))
    )


@call("truncated_moments: gradient, mixed in 2")
def slope_of_a_moment() -> Any:
    loc, *rest = PROBLEMS["mixed in 2"]()
    return jax.jacfwd(lambda loc: tg.truncated_moments(loc, *rest).mean)(loc)


for _name in ("tail in 3", "polygon"):
    call(f"truncated_samples: {_name}")(
        lambda name=_name: tg.truncated_samples(jax.random.key(3), *PROBLEMS[name](), 8)
    )
call("truncated_draws: mixed in 5")(
    lambda: tg.truncated_draws(jax.random.key(4), *PROBLEMS["mixed in 5"](), 8)
)
call("weighted_samples: mixed in 5")(
    lambda: tg.weighted_samples(jax.random.key(5), *PROBLEMS["mixed in 5"](), 8)
)
call("weighted_samples: a lattice, mixed in 3")(
    lambda: tg.weighted_samples(jax.random.key(5), *PROBLEMS["mixed in 3"](), 8, points="lattice")
)


@call("TruncatedNormal")
def one_normal() -> Any:
    normal = tg.TruncatedNormal(0.5, 2.0, low=9.0, high=INF)
    x = jnp.array([9.1, 10.0, 12.0])
    return {
        "log_prob": normal.log_prob(x), "cdf": normal.cdf(x), "icdf": normal.icdf(x / 20.0),
        "mean": normal.mean, "variance": normal.variance, "entropy": normal.entropy(),
        "sample": normal.sample(jax.random.key(0), (4,)),
    }  # fmt: skip


@call("TruncatedMultivariateNormal")
def several_normals() -> Any:
    loc, covariance, box = PROBLEMS["mixed in 3"]()
    normal = tg.TruncatedMultivariateNormal(loc, covariance, low=box.low, high=box.high)
    inside = jnp.array([[0.5, 0.0, 1.0], [-0.9, -2.0, 0.1]])
    return {
        "log_prob": normal.log_prob(inside), "mean": normal.mean, "variance": normal.variance,
        "sample": normal.sample(jax.random.key(0), (3,)),
    }  # fmt: skip


PARTS = np.array([0.3, 0.7]), np.array([[-1.0], [1.5]]), np.array([[[0.5]], [[1.0]]])


@call("TruncatedMixture")
def mixture_distribution() -> Any:
    mixture = tg.TruncatedMixture(*PARTS, low=[-0.5])
    x = jnp.array([[-0.2], [0.5], [3.0]])
    return {
        "log_prob": mixture.log_prob(x), "mean": mixture.mean, "variance": mixture.variance,
        "observed_weights": mixture.observed_weights,
        "sample": mixture.sample(jax.random.key(0), (4,)),
    }  # fmt: skip


@call("safe functions")
def safe_functions() -> Any:
    x = jnp.array([3e200, 4e200, 0.0])
    return {
        "safe_norm": jax.value_and_grad(tg.safe.safe_norm)(x),
        "bump": jax.value_and_grad(tg.safe.bump, (0, 1))(0.3, 0.5),
        "bell": jax.value_and_grad(tg.safe.bell, (0, 1))(0.3, 0.5),
        "clipped_logits": tg.safe.clipped_logits(jnp.array([0.0, 50.0, 90.0]), 30.0),
        "clipped_gradient": jax.grad(lambda x: tg.safe.clipped_gradient(x, 1.0) ** 2)(3.0),
    }


@call("first_nonfinite")
def first_nonfinite() -> Any:
    report = tg.first_nonfinite(lambda x: jnp.sum(jnp.sqrt(x) * 0.0), jnp.array([0.0, 1.0]))
    return str(report).split("\n")[0]


# ------------------------------------------------------------------------- fits of fractions


def of_fractions(fit: tg.fitting.FractionsFit | tg.fitting.FitResult) -> dict[str, Any]:
    words = {"converged": bool(fit.converged), "reason": fit.reason, "notes": list(fit.notes)}
    if not fit.converged:  # its parameters mean nothing
        return words
    parts = {"params": fit.params, "standard_errors": fit.standard_errors}
    found = {name: jax.tree.leaves(part) for name, part in parts.items()}
    others = [jax.tree.leaves(other) for other in fit.alternatives]
    loss = fit.loss_trace[-1] if fit.loss_trace[-1] > 1e-12 else 0.0  # else that is rounding
    found |= {"loss": loss}
    if isinstance(fit, tg.fitting.FractionsFit):
        found |= {"log_likelihood": fit.log_likelihood}
    return words | found | {"alternatives": others}


@call("fit_shift: counts", ITERATED)
def shift_of_counts() -> Any:
    boxes = tg.Box([[0.0, 0.0], [-1.0, -INF], [-INF, 0.5]], [[INF, 1.0], [1.0, INF], [INF, INF]])
    inside = tg.fraction_not_truncated(np.array([0.2, -0.1]), dense(2), boxes)
    counts = np.round(1e4 * np.asarray(inside)) + [20, -30, 10]
    return of_fractions(tg.fit_shift(counts, np.zeros(2), dense(2), boxes, 10_000, num_starts=3))


@call("fit_shift: all inside", ITERATED)
def shift_without_an_end() -> Any:
    return of_fractions(tg.fit_shift([1000], [0.0], [[1.0]], tg.Box([0.0], [INF]), 1000))


@call("fit_shift: one fraction, no residuals", ITERATED)
def shift_of_one_fraction() -> Any:
    return of_fractions(tg.fit_shift([0.3], [0.0], [[1.0]], tg.Box([0.0], INF)))


@call("fit_limits: one below", ITERATED)
def one_limit() -> Any:
    return of_fractions(tg.fit_limits([300], [0.0], [[1.0]], {"low": [0.0], "high": [INF]}, 1000))


@call("fit_limits: three of two coordinates", ITERATED)
def several_limits() -> Any:
    locs = np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 0.5], [-0.5, 0.4]])
    start = {"low": [-0.5, -1.0], "high": [INF, 1.0]}
    inside = tg.fraction_not_truncated(locs, dense(2), tg.Box([-0.8, -0.7], [INF, 1.2]))
    counts = np.round(6e3 * np.asarray(inside)) + [10, -10, 15, -5]
    return of_fractions(tg.fit_limits(counts, locs, dense(2), start, 6000, num_starts=2))


@call("fit: a scale and a mean by Adam", ITERATED)
def minimised() -> Any:
    y = jnp.array([0.3, 1.1, 2.0, 0.7])
    loss = lambda p: jnp.sum(((y - p["loc"]) / p["scale"]) ** 2 / 2 + jnp.log(p["scale"]))
    start, positive = {"loc": 0.0, "scale": 2.0}, {"scale": tg.fitting.Positive()}
    settings = {"constraints": positive, "progress": False, "num_steps": 1500}
    fit = tg.minimize(loss, start, optax.adam(0.05), **settings)
    return of_fractions(fit)


@call("fit: by default", ITERATED)
def minimised_by_default() -> Any:
    loss = lambda x: jnp.sum((x - jnp.array([1.0, -2.0])) ** 2) + jnp.sum(x) ** 4 / 10
    return of_fractions(tg.minimize(loss, jnp.zeros(2), progress=False))


# ------------------------------------------------------------------------- fits of rows


def of_rows(fit: Any) -> dict[str, Any]:
    """Everything that a fit of rows returns, its table included."""
    found = {
        "names": list(fit.names),
        "errors": fit.errors,
        "num_rows": fit.num_rows,
        "num_parameters": fit.num_parameters,
        "converged": bool(fit.converged),
        "reason": fit.reason,
        "notes": list(fit.notes),
    }
    if not fit.converged:  # its estimates mean nothing
        return found
    return found | {
        "estimates": fit.estimates,
        "parameter_covariance": fit.parameter_covariance,
        "log_likelihood": fit.log_likelihood,
        "log_likelihood_stderr": fit.log_likelihood_stderr,
        "fraction_not_truncated": fit.fraction_not_truncated,
        "aic, bic": [fit.aic, fit.bic],
        "text": str(fit).split("\n"),
    }


def rows_of(n: int, d: int, low: Any = -INF, seed: int = 0) -> np.ndarray:
    """Rows of a correlated Gaussian, those above a limit."""
    rng = np.random.default_rng(seed)
    rows = 0.5 + rng.normal(size=(n, d)) @ (np.eye(d) + 0.5 * np.eye(d, k=1))
    return rows[np.all(rows > low, axis=1)]


@call("fit_truncated_normal: a box in 2", ITERATED)
def normal_in_a_box() -> Any:
    rows = rows_of(300, 2, [-0.5, -INF])
    rows = rows[rows[:, 1] < 2.0]
    return of_rows(tg.fit_truncated_normal(rows, [-0.5, -INF], [INF, 2.0], num_profiles=0))


@call("fit_truncated_normal: names, weights and noise", ITERATED)
def normal_with_noise() -> Any:
    rows = rows_of(60, 1, 0.0)
    table, weights = {"mass": rows[:, 0]}, 1.0 + np.arange(len(rows)) % 3
    return of_rows(tg.fit_truncated_normal(table, {"mass": 0.0}, noise=[[0.1]], weights=weights))


def summary_of_rows() -> tg.Statistics:
    parts = np.array_split(rows_of(120, 1, 0.0), 3)
    return sum(tg.Statistics.from_rows(part) for part in parts)


@call("Statistics: sums of parts")
def sums_of_parts() -> Any:
    found = summary_of_rows()
    return {"num_rows": found.num_rows, "mean": found.mean, "scatter": found.scatter,
            "ends": [found.lowest, found.highest]}  # fmt: skip


@call("fit_truncated_normal: statistics", ITERATED)
def normal_from_statistics() -> Any:
    return of_rows(tg.fit_truncated_normal(statistics=summary_of_rows(), low=0.0))


@call("fit_truncated_normal: no maximum", ITERATED)
def normal_without_a_maximum() -> Any:
    rows = (-np.log1p(-(np.arange(60) + 0.5) / 60)) ** 1.2
    return of_rows(tg.fit_truncated_normal(rows, low=0.0))


@call("fit_truncated_normal: few are seen", ITERATED)
def normal_hardly_seen() -> Any:
    rows = rows_of(2000, 1, 1.5)
    return of_rows(tg.fit_truncated_normal(rows, low=1.5))


def design_of(n: int) -> dict[str, np.ndarray]:
    return {"constant": np.ones(n), "dose": np.linspace(0.0, 2.0, n)}


def line(n: int = 60, seed: int = 2) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Rows about a line, and their design."""
    design, rng = design_of(n), np.random.default_rng(seed)
    return -0.5 + 1.2 * design["dose"] + rng.normal(size=n), design


def censored_rows(n: int = 60) -> tg.Observations:
    """Two outcomes, of which the second may be censored or missing."""
    y, kind = rows_of(n, 2, seed=5), np.arange(n) % 4
    lower, upper = y.copy(), y.copy()
    lower[(kind == 1) & (y[:, 1] < 0.5), 1] = -INF
    upper[(kind == 1) & (y[:, 1] < 0.5), 1] = 0.5
    lower[kind == 3, 1], upper[kind == 3, 1] = -INF, INF
    return tg.Observations(lower, upper)


def limited_rows(d: int, n: int = 60, limits: int | None = None, **more: Any) -> tg.Observations:
    """Rows of which each has its limits, on all entries or on some."""
    y = rows_of(n, d, seed=6)
    low = y - np.random.default_rng(7).exponential(size=(n, d)) - 0.2
    low[:, d if limits is None else limits :] = -INF
    return tg.Observations.exact(y, region=tg.Box(low, INF), **more)


QUICK: dict[str, Any] = {"num_starts": 1, "num_profiles": 0}
FEW_POINTS = tg.Separation(num_points=16, num_replicates=4)
OBSERVED: dict[str, Callable[[], Any]] = {
    "exact, in a box": lambda: tg.fit_observations(tg.Observations.exact(
        rows_of(120, 1, 0.0), region=tg.Box([0.0], [INF]))),
    "censored, a design": lambda: tg.fit_observations(tg.Observations(
        np.where(line()[0] > 0, line()[0], -INF), np.maximum(line()[0], 0.0)), line()[1]),
    "noise of each row": lambda: tg.fit_observations(tg.Observations.exact(
        rows_of(60, 1), noise=np.linspace(0.05, 0.5, 60)[:, None]), num_starts=3),
    "missing and censored": lambda: tg.fit_observations(censored_rows(), **QUICK),
    "limits of each row on one of 2 outcomes": lambda: tg.fit_observations(
        limited_rows(2, limits=1), **QUICK),
    "weights": lambda: tg.fit_observations(tg.Observations.exact(
        rows_of(60, 1), weights=1.0 + np.arange(60) % 3), num_profiles=0),
    "a polyhedron": lambda: tg.fit_observations(tg.Observations.exact(
        two_above_a_line(), region=tg.Polyhedron([[1.0, 1.0]], [0.0], [INF])), **QUICK),
    "sandwich": lambda: tg.fit_observations(censored_rows(), information="sandwich", **QUICK),
    "float32": lambda: tg.fit_observations(tg.Observations.exact(
        jnp.asarray(rows_of(60, 1), jnp.float32)), **QUICK),
    # Ends without a maximum
    "equal rows": lambda: tg.fit_observations(tg.Observations.exact(np.full(10, 2.5))),
    "spread like an exponential": lambda: tg.fit_observations(tg.Observations.exact(
        (-np.log1p(-(np.arange(60) + 0.5) / 60)) ** 1.2, region=tg.Box([0.0], [INF]))),
    "noise explains all": lambda: tg.fit_observations(tg.Observations.exact(
        0.5 * rows_of(50, 1), noise=np.full((50, 1), 4.0))),
    "outcomes that determine each other": lambda: tg.fit_observations(tg.Observations.exact(
        rows_of(50, 1) * [1.0, 2.0])),
    "limits that all rows share": lambda: tg.fit_observations(tg.Observations(
        -1.0 - np.arange(6.0), 1.0 + np.arange(6.0))),
    "a separated probit": lambda: tg.fit_observations(tg.Observations(
        np.where(np.arange(9) > 4, 0.0, -INF), np.where(np.arange(9) > 4, INF, 0.0)),
        {"constant": np.ones(9), "x": np.arange(9.0)}, covariance=[[1.0]]),
    "a stray row": lambda: tg.fit_observations(tg.Observations.exact(
        np.append(rows_of(60, 1), 40.0), region=tg.Box([-3.0], [INF])), num_profiles=0),
}  # fmt: skip


def two_above_a_line() -> np.ndarray:
    rows = rows_of(90, 2, seed=8)
    return rows[rows.sum(axis=1) > 0.0]


for _name, _fit in OBSERVED.items():
    call(f"fit_observations: {_name}", ITERATED)(lambda fit=_fit: of_rows(fit()))

SMALL_SCALE = {"constant": np.ones(60), "late": (np.arange(60) > 29).astype(float)}
REGRESSIONS: dict[str, dict[str, Any]] = {
    "censored below": {"outcome": np.maximum(line()[0], 0.0), "censored_low": 0.0},
    "truncated where each row is": {"truncated_low": line()[0] - 0.5 - np.arange(60) % 3, **QUICK},
    "censored, a design of the scale": {"outcome": np.maximum(line()[0], 0.0),
                                        "censored_low": 0.0, "scale_design": SMALL_SCALE, **QUICK},
    "sandwich": {"outcome": np.maximum(line()[0], 0.0), "censored_low": 0.0,
                 "information": "sandwich", **QUICK},
    "a line meets all rows": {"outcome": np.maximum(design_of(60)["dose"] - 0.7, 0.0),
                              "censored_low": 0.0},
    "all censored": {"outcome": np.zeros(60), "censored_low": 0.0},
}  # fmt: skip


def regression(name: str) -> Any:
    y, design = line()
    settings = {"outcome": y, "design": design} | REGRESSIONS[name]
    return tg.fit_regression(**settings)


for _name in REGRESSIONS:
    call(f"fit_regression: {_name}", ITERATED)(lambda name=_name: of_rows(regression(name)))


# ------------------------------------------------------------------------- inference


@call("inference: profile and wald of a regression", SINGLE)
def intervals() -> Any:
    fit = regression("censored below")
    values, fall = fit.profile_curve("dose", 5)
    slope = fit.delta(lambda estimates: estimates[1] / estimates[0])
    return {
        "profile": fit.profile("dose"),
        "profile at 80 %": fit.profile("constant", 0.8),
        "wald": fit.wald(0.9),
        "fall": fit.profile_fall("dose", 1.5),
        "curve": [values, fall],
        "delta": [slope.value, slope.standard_errors],
    }


@call("inference: likelihood ratios", ITERATED)
def ratios() -> Any:
    large, y = regression("censored below"), np.maximum(line()[0], 0.0)
    small = tg.fit_regression(y, {"constant": np.ones(60)}, censored_low=0.0, **QUICK)
    scale = tg.fit_regression(y, line()[1], censored_low=0.0, scale_design=SMALL_SCALE, **QUICK)
    return [tg.likelihood_ratio(small, large), tg.likelihood_ratio(large, scale)]


@call("inference: residuals", ITERATED)
def residuals() -> Any:
    key = jax.random.key(6)
    return {
        "censored": tg.quantile_residuals(regression("censored below"), key),
        "draws": tg.quantile_residuals(regression("censored below"), key, num_draws=2),
        "in a box": tg.quantile_residuals(OBSERVED["exact, in a box"]()),
        "by default": tg.quantile_residuals(OBSERVED["censored, a design"]()),
    }


@call("log_likelihood: rows known in part")
def likelihood_of_rows() -> Any:
    rows = censored_rows(24)
    of = lambda loc: tg.log_likelihood(rows, loc, dense(2)).log_prob.sum()
    found = tg.log_likelihood(rows, np.array([0.4, 0.2]), dense(2))
    return {"log_prob": found.log_prob, "stderr": found.stderr,
            "by loc": jax.grad(of)(jnp.array([0.4, 0.2]))}  # fmt: skip


@call("log_likelihood: limits of each row, held")
def likelihood_held() -> Any:
    rows = limited_rows(3, 12, noise=np.full((12, 3), 0.2))
    covariance = dense(3)
    held = tg.likelihood.hold(FEW_POINTS, rows, np.zeros(3), covariance)
    of = lambda loc: tg.log_likelihood(rows, loc, covariance, held).log_prob
    slope = jax.grad(lambda loc: of(loc).sum())
    loc = np.array([0.1, 0.0, -0.1])
    return jax.jit(lambda loc: {"log_prob": of(loc), "by loc": slope(loc)})(loc)


@call("log_likelihood: limits of each row on what is latent")
def likelihood_of_latent_limits() -> Any:
    rows = limited_rows(1, 12, noise=np.full((12, 1), 0.1), limits_on="latent")
    return tg.log_likelihood(rows, [0.3], [[0.8]])


@call("resumable: a fit that is read again", ITERATED)
def resumed() -> Any:
    y, design = line()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            with tg.fitting.resumable(pathlib.Path(folder) / "fit.npz"):
                found.append(tg.fit_regression(np.maximum(y, 0.0), design, censored_low=0.0))
    return {"same": bool(np.array_equal(found[0].estimates, found[1].estimates)),
            "estimates": found[1].estimates, "text": str(found[1]).split("\n")}  # fmt: skip


@call("rows of a mesh: value and fit", ITERATED)
def on_a_mesh() -> Any:
    with tg.parallel.rows(tg.parallel.device_mesh(2)):
        value = tg.log_probability(*PROBLEMS["rows in 5"](), FEW)
        fit = regression("truncated where each row is")
    return value._asdict() | {"estimates": fit.estimates, "errors": fit.errors}


# ------------------------------------------------------------------------- mixtures


def of_mixture(fit: tg.mixtures.MixtureFit) -> dict[str, Any]:
    errors = fit.standard_errors
    found = {
        "names": list(fit.names),
        "errors": fit.errors,
        "converged": bool(fit.converged),
        "reason": fit.reason,
        "notes": list(fit.notes),
    }
    if not fit.converged:
        return found
    return found | {
        "estimates": fit.estimates,
        "weights": fit.weights,
        "observed_weights": fit.observed_weights,
        "locs": fit.locs,
        "covariances": fit.covariances,
        "standard_errors": [errors.weights, errors.locs, errors.covariances],
        "log_likelihood": fit.log_likelihood,
        "criteria": [fit.aic, fit.bic, fit.icl],
        "fraction_not_truncated": fit.fraction_not_truncated,
        "responsibilities": fit.responsibilities,
        "text": str(fit).split("\n"),
    }


def two_groups(d: int, low: float = -INF, n: int = 120) -> np.ndarray:
    rng = np.random.default_rng(9)
    rows = np.where(rng.random((n, 1)) < 0.4, 4.0, 0.0) + rng.normal(size=(n, d))
    return rows[rows[:, 0] > low]


def two_starts(d: int) -> dict[str, Any]:
    locs, covariances = [[0.2] * d, [3.8] * d], np.stack([np.eye(d)] * 2)
    return {"weights": [0.6, 0.4], "locs": locs, "covariances": covariances}


def missing_in_groups() -> tg.Observations:
    rows = two_groups(2)
    rows[::5, 1] = np.nan
    return tg.Observations.exact(rows, nan_is_missing=True)


MIXTURES: dict[str, Callable[[], tg.mixtures.MixtureFit]] = {
    "behind a cut, with noise": lambda: tg.fit_mixture(tg.Observations.exact(
        two_groups(1, -0.5), region=tg.Box([-0.5], [INF]), noise=[[0.1]]), 2, start=two_starts(1)),
    "in 2, missing": lambda: tg.fit_mixture(missing_in_groups(), 2, start=two_starts(2)),
    "a prior, sandwich": lambda: tg.fit_mixture(tg.Observations.exact(two_groups(1)), 2,
        prior_rows=1.0, information="sandwich", start=two_starts(1)),
    "more than the rows show": lambda: tg.fit_mixture(tg.Observations.exact(
        np.linspace(-2.0, 2.0, 60)), 2,
        start={"weights": [0.5, 0.5], "locs": np.zeros((2, 1)), "covariances": np.ones((2, 1, 1))}),
    "noise explains all": lambda: tg.fit_mixture(tg.Observations.exact(
        0.3 * rows_of(60, 1), noise=[[4.0]]), 1),
}  # fmt: skip
for _name, _fit in MIXTURES.items():
    call(f"fit_mixture: {_name}", ITERATED)(lambda fit=_fit: of_mixture(fit()))


@call("mixtures: predictions and draws", ITERATED)
def used_mixture() -> Any:
    fit = MIXTURES["behind a cut, with noise"]()
    rows = tg.Observations.exact([0.1, 3.0], noise=[[0.1]])
    derived = fit.delta(lambda estimates: jnp.diff(fit.parts(estimates)[1], axis=0)[0, 0])
    return {
        "predict": [jnp.asarray(part) for part in fit.predict(rows)],
        "sample": fit.sample(jax.random.key(0), 4),
        "completed": fit.completed(jax.random.key(1), rows, 2),
        "function_of": {"value": derived[0], "error": derived[1]},
        "row_log_likelihood": fit.row_log_likelihood(rows),
    }


@call("mixture_log_likelihood: known in part")
def likelihood_of_a_mixture() -> Any:
    parts = np.array([0.3, 0.7]), np.array([[0.0, 0.0], [1.0, 2.0]]), np.stack([dense(2)] * 2)
    return tg.mixtures.mixture_log_likelihood(censored_rows(24), *parts)


# ------------------------------------------------------------------------- two processes


TWO = """
import json, sys
import jax, jax.numpy as jnp, numpy as np, truncgauss as tg
jax.config.update("jax_enable_x64", True)
index, meeting, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.distributed.initialize(meeting, 2, index)
y, x, two = next(tg.tables.chunks(path)).T
with tg.parallel.rows(tg.parallel.device_mesh()):
    design = {"constant": np.ones_like(x), "x": x}
    line = tg.fit_regression(y, design, censored_low=0.0, num_profiles=0)
    mixture = tg.fit_mixture(tg.Observations.exact(two), 2, num_starts=2)
found = {"estimates": line.estimates, "errors": line.errors, "mixture": mixture.estimates,
         "mixture_errors": mixture.errors}
found = {name: value.tolist() for name, value in found.items()}
found |= {"log_likelihood": line.log_likelihood, "reason": line.reason, "notes": line.notes}
if index == 0:
    print("found", json.dumps(found))
"""


@call("two processes: a regression and a mixture whose work they share", ITERATED)
def two_processes() -> Any:
    rng = np.random.default_rng(4)
    x = rng.normal(size=37)
    y = np.maximum(0.5 + x + rng.normal(size=37), 0.0)
    two = rng.normal(size=37) + np.where(np.arange(37) % 3 == 0, 5.0, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.csv"
        table = np.column_stack([y, x, two])
        np.savetxt(path, table, "%.17g", ",", header="y,x,two", comments="")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            meeting = f"127.0.0.1:{free.getsockname()[1]}"
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", TWO, str(index), meeting, str(path)], text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"},
            )
            for index in range(2)
        ]  # fmt: skip
        try:
            printed = [process.communicate(timeout=900) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.communicate()
    assert all(process.returncode == 0 for process in processes), printed
    [found] = [text for text in printed[0][0].split("\n") if text.startswith("found ")]
    return json.loads(found.removeprefix("found "))


if __name__ == "__main__":
    recording.main(sys.argv[1:])
