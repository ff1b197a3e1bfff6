"""Calls with one argument of another kind, or with two exchanged: each is refused in words.

From a valid call of each public function every argument is replaced in turn by values of the kinds
of `WRONG`. The package itself must raise the error, its message must name the argument, and a
result is allowed only where `ALLOWED` says why.
"""

import fnmatch
import itertools
import pickle
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest

import truncgauss as tg
from truncgauss.words.misfits import is_own

INF, N = np.inf, np.arange(24.0)
KEY = jax.random.key(0)
LOC, COVARIANCE = np.array([0.1, -0.2]), np.array([[1.0, 0.3], [0.3, 2.0]])
BOX = tg.Box([-1.0, -0.5], [1.0, 2.0])
PROBLEM = {"loc": LOC, "covariance": COVARIANCE, "region": BOX}
EXACT = {"method": tg.Exact(), "key": KEY}
TWO, Y, X = 1.0 + N % 2, np.sin(N) + 0.1 * N, np.stack([np.ones(24), np.cos(2.0 * N)], 1)
PAIRS = np.stack([Y, np.cos(3.0 * N)], 1)
ROWS = tg.Observations.exact(PAIRS)
TABLE = {"y": Y, "x": X[:, 1], "g": list("abc") * 8}
POINTS = np.array([[0.1, 0.2], [3.0, 0.0]])
MIXTURE = {"weights": np.array([0.3, 0.7]), "locs": np.array([[-1.0], [1.5]]),
           "covariances": np.array([[[0.5]], [[1.0]]])}  # fmt: skip
SILENT = {"num_profiles": 0, "progress": False}


def smooth(x):
    return jax.nn.sigmoid(x[0])


CALLS = {
    "log_probability": (tg.log_probability, PROBLEM | EXACT),
    "log_probability, t": (tg.log_probability, PROBLEM | {"df": 3.0, "noncentral": "shifted"}),
    "log_probability_and_gradient": (tg.log_probability_and_gradient, PROBLEM | EXACT),
    "explain": (tg.explain, PROBLEM | EXACT),
    "truncated_moments": (tg.truncated_moments, PROBLEM | EXACT),
    "truncated_samples": (tg.truncated_samples, {"key": KEY} | PROBLEM | {"num_samples": 3}),
    "quantile": (tg.quantile, {"probability": 0.9, "loc": LOC, "covariance": COVARIANCE} | EXACT),
    "log_mean_weights": (
        tg.log_mean_weights, {"log_weights": np.log([0.2, 0.5]), "num_total": 10, "num_rows": 3}
    ),
    "Box": (tg.Box, {"low": np.array([-1.0, 0.0]), "high": np.array([1.0, 2.0])}),
    "Ball": (tg.Ball, {"center": LOC, "radius": 1.5}),
    "Ellipsoid": (tg.Ellipsoid, {"center": LOC, "shape_matrix": COVARIANCE}),
    "Selection": (tg.Selection, {"function": smooth, "dimension": 2, "log_concave": False}),
    "Injections": (
        tg.Injections, {"points": PAIRS, "log_draw_density": -0.1 * N, "num_total": 100}
    ),
    "Box.contains": (BOX.contains, {"x": POINTS}),
    "Ball.margins": (tg.Ball(LOC, 1.0).margins, {"x": POINTS}),
    "LowRank": (tg.LowRank, {"cov_factor": np.ones((2, 1)), "cov_diag": np.ones(2)}),
    "Markov": (tg.Markov, {"transition": TWO, "noise_scale": TWO, "initial_scale": 1.0}),
    "ScaleTril": (tg.ScaleTril, {"matrix": np.eye(2)}),
    "MaternProcess": (tg.MaternProcess, {"sigma": 1.0, "scale": 2.0}),
    "Automatic": (tg.Automatic, {"rtol": 1e-3, "max_draws": 1024}),
    "Separation": (
        tg.Separation, {"num_points": 64, "num_replicates": 4, "tilted": True, "twisted": True}
    ),
    "SequentialMonteCarlo": (tg.SequentialMonteCarlo, {"num_particles": 8, "twisted": True}),
    "Tanh": (tg.Tanh, {"steepness": 2.0}),
    "EdgeFunction": (tg.EdgeFunction, {"function": jax.nn.sigmoid, "log": False}),
    "TruncatedNormal": (tg.TruncatedNormal, {"loc": 0.5, "scale": 2.0, "low": -1.0, "high": 3.0}),
    "TruncatedNormal.log_prob": (
        tg.TruncatedNormal(0.0, 1.0, low=-1.0).log_prob, {"value": np.array([0.1, 0.5])}
    ),
    "TruncatedMultivariateNormal": (
        tg.TruncatedMultivariateNormal,
        {"loc": LOC, "covariance_matrix": COVARIANCE, "low": -np.ones(2), "high": np.ones(2)},
    ),
    "TruncatedMixture": (tg.TruncatedMixture, MIXTURE | {"low": np.array([-0.5])}),
    "Observations": (
        tg.Observations,
        {"lower": PAIRS, "upper": PAIRS, "noise": np.diag([0.1, 0.2]), "weights": TWO,
         "limits_on": "observed", "names": ("u", "v")},
    ),
    "from_table": (
        tg.Observations.from_table,
        {"table": TABLE, "columns": ["y", "x"], "censored_high": 3.0, "noise_scale": 0.1},
    ),
    "log_likelihood": (
        tg.log_likelihood, {"observations": ROWS, "loc": LOC, "covariance": COVARIANCE} | EXACT
    ),
    "Statistics": (tg.Statistics, {"num_rows": 24, "mean": LOC, "scatter": 24 * COVARIANCE}),
    "simultaneous": (
        tg.simultaneous,
        {"estimates": np.array([1.0, 2.0]), "covariance": np.eye(2), "contrasts": np.ones((1, 2)),
         "null": 0.0, "level": 0.9, "alternative": "two-sided"},
    ),
    "ndtr": (tg.special.ndtr, {"x": LOC}),
    "band": (tg.plotting.band, {"x": N, "low": Y, "high": Y + 1.0}),
    "contours": (tg.plotting.contours, {"loc": LOC, "covariance": COVARIANCE, "levels": (0.5,)}),
}  # fmt: skip
FITS = {
    "fit_truncated_normal": (
        tg.fit_truncated_normal, {"data": PAIRS, "low": np.full(2, -2.0), "weights": TWO} | SILENT
    ),
    "fit_observations": (
        tg.fit_observations, {"observations": ROWS, "design": X, "covariance": "full"} | SILENT
    ),
    "fit_regression": (
        tg.fit_regression,
        {"outcome": Y, "design": X, "censored_low": -0.5, "noise": 0.1, "weights": TWO} | SILENT,
    ),
    "fit_clusters": (
        tg.fit_clusters, {"outcome": Y, "design": X, "cluster": N // 4, "binary": False} | SILENT
    ),
    "fit_shift": (
        tg.fit_shift,
        {"observed": np.array([30.0, 40.0]), "loc": LOC, "covariance": COVARIANCE,
         "region": tg.Box([[0.0, -INF], [-INF, 0.0]], INF), "num_trials": 100, "progress": False},
    ),
}  # fmt: skip


def is_array(value):
    return isinstance(value, np.ndarray)


# Kinds of values, and of what each of them takes the place.
ANY = lambda value: True
WRONG = {
    "a class": (ANY, lambda value: tg.Separation),
    "a module": (ANY, lambda value: np),
    "a set": (ANY, lambda value: {1.0, 2.0}),
    "a dictionary": (ANY, lambda value: {"a": 1.0}),
    "an object": (ANY, lambda value: object()),
    "a function": (lambda value: not callable(value), lambda value: smooth),
    "a region": (lambda value: not isinstance(value, tg.Region), lambda value: BOX),
    "a key": (lambda value: value is not KEY, lambda value: KEY),
    "a complex number": (ANY, lambda value: 1j),
    "a text": (ANY, lambda value: "txet"),
    "a text of a number": (
        lambda value: is_array(value) or type(value) in (int, float), lambda value: "0.5"
    ),
    "a method by name": (lambda value: isinstance(value, tg.Method), lambda value: "exact"),
    "a seed": (lambda value: value is KEY, lambda value: 0),
    "no flag": (lambda value: isinstance(value, bool), lambda value: "no"),
    "a negative count": (lambda value: type(value) is int, lambda value: -1),
    "a broken count": (lambda value: type(value) is int, lambda value: 2.5),
    "complex numbers": (is_array, lambda value: value + 1j),
    "texts": (is_array, lambda value: value.astype(str)),
    "dates": (is_array, lambda value: np.full(value.shape, "2020-01-01", "datetime64[D]")),
    "None in a list": (is_array, lambda value: [None, *value.tolist()][: len(value)]),
    "lists of different lengths": (is_array, lambda value: [[1.0], [1.0, 2.0]]),
    "masked numbers": (is_array, lambda value: np.ma.masked_array(value, value == value.flat[0])),
    "a wider array": (is_array, lambda value: np.concatenate([value, value[..., :1]], -1)),
    "a region of three": (
        lambda value: isinstance(value, tg.Region), lambda value: tg.Box(np.zeros(3), 1.0)
    ),
    "limits": (lambda value: isinstance(value, tg.Region), lambda value: (0.0, 1.0)),
}  # fmt: skip
# Results of such calls that are as they should be, and why.
ALLOWED = {
    "log_mean_weights.*: a broken count": "draws may be weighted",
    "log_mean_weights.log_weights: a wider array": "any number of weights",
    "Ball.center: a wider array": "the dimension is that of the centre",
    "Injections.points: a wider array": "the dimension is that of the points",
    "LowRank.cov_factor: a wider array": "any number of factors",
    "Markov.*: exchanged": "scales of several chains",
    "TruncatedNormal.log_prob.value: a wider array": "each value by itself",
    "ndtr.x: a wider array": "each number by itself",
    "band.*: masked numbers": "what is masked is not drawn",
    "band.x: *": "Matplotlib draws dates and categories, and NumPy warns of an imaginary part",
    "fit_clusters.outcome: masked numbers": "an outcome may be missing",
    "fit_clusters.cluster: complex numbers": "labels are of any kind",
    "fit_clusters.cluster: texts": "labels are of any kind",
    "fit_regression.*: exchanged": "noise and weights are numbers of each row",
}
# Errors of other packages that say enough.
FOREIGN = {
    "*.contains.*: a name": "a method without a wrapper, of one argument",
    "*.margins.*: a name": "likewise",
    "*.log_prob.*: a name": "NumPyro wraps it",
    "*.log_prob.*: a key": "a random key is an array of JAX",
    "ndtr.x: a name": "a function of one argument",
}
# What a message says in the place of the argument's name.
WORDS = {
    "Selection.function: a class": "num_points",
    "ScaleTril.matrix: *": "ScaleTril",
    "TruncatedMultivariateNormal.covariance_matrix: a region": "region",
    "TruncatedMultivariateNormal.covariance_matrix: *": "covariance",
    "TruncatedMixture.low: *": "region",
    "from_table.*": "column",
    "Statistics.num_rows: *": r"row\(s\)",
    "ndtr.x: *": "real numbers",
    "fit_truncated_normal.low: a region": "region=",
    "fit_regression.outcome: a wider array": "weights",
    "fit_shift.num_trials: *": "trials",
    "fit_*": "formula",
}


def variants(arguments):
    """The arguments of wrong calls, with the names of what is wrong and the kind."""
    for name, value in arguments.items():
        for kind, (applies, wrong) in WRONG.items():
            if applies(value):
                yield (name,), kind, arguments | {name: wrong(value)}
        misspelt = {x if x != name else f"{x}q": other for x, other in arguments.items()}
        yield (name,), "a name", misspelt
    for one, other in itertools.combinations(arguments, 2):
        if type(arguments[one]) is not type(arguments[other]):
            both = {one: arguments[other], other: arguments[one]}
            yield (one, other), "exchanged", arguments | both


def reason(table, call, names, kind):
    """Why an outcome is allowed, if it is."""
    keys = (f"{call}.{name}: {kind}" for name in names)
    return next((table[x] for key in keys for x in table if fnmatch.fnmatchcase(key, x)), None)


def complaint(call, function, names, kind, arguments):
    """A sentence on what is wrong with the answer to a wrong call; None if nothing is."""
    place = f"{call}({', '.join(names)}: {kind})"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = function(**arguments)
    except Exception as error:
        if not is_own(error):
            if reason(FOREIGN, call, names, kind):
                return None
            return f"{place} fails in other packages: {type(error).__name__}: {error!s:.200}"
        words = [*names, reason(WORDS, call, names, kind) or names[0]]
        if not any(re.search(rf"\b{word}", str(error)) for word in words):
            return f"{place} names no argument: {error!s:.200}"
        return None
    allowed = reason(ALLOWED, call, names, kind)
    return None if allowed else f"{place} returns {found!r:.100}"


@pytest.mark.parametrize("call", [*CALLS, *(pytest.param(x, marks=pytest.mark.full) for x in FITS)])
def test_an_argument_of_another_kind_is_refused_in_words(call):
    function, arguments = (CALLS | FITS)[call]
    function(**arguments)
    every = (complaint(call, function, *variant) for variant in variants(arguments))
    assert not (wrong := [text for text in every if text]), "\n".join(wrong)


ESTIMATE = tg.log_probability(**PROBLEM)
NORMAL = tg.TruncatedNormal(0.0, 1.0, low=-1.0)
MULTIVARIATE = tg.TruncatedMultivariateNormal(LOC, COVARIANCE, low=[-1.0, -1.0])
FRAME = pandas.DataFrame(PAIRS, columns=["u", "v"], index=[f"r{i}" for i in range(24)])
FIT_OF_X = tg.fit_regression("y ~ x", data=TABLE, num_profiles=0)
FIT = tg.fit_observations(ROWS, num_profiles=0)
HABITS = {
    "ppf": (lambda: NORMAL.ppf(0.5), r"icdf\(q\)"),
    "pdf": (lambda: NORMAL.pdf(0.5), r"exp\(d\.log_prob"),
    "rvs": (lambda: NORMAL.rvs(3), r"d\.sample\(jax\.random\.key"),
    "std": (lambda: NORMAL.std(), r"sqrt\(d\.variance"),
    "another package's name": (lambda: NORMAL.lower, "Did you mean 'low'"),
    "no name at all": (lambda: NORMAL.nothing, "It has loc, scale"),
    "a quantile of several": (lambda: MULTIVARIATE.ppf(0.5), "quantile.*sample"),
    "a cdf of several": (lambda: MULTIVARIATE.cdf(LOC), r"no cdf: .*all\(-1\)"),
    "a mode": (lambda: MULTIVARIATE.mode, "no mode"),
    "a probability": (lambda: ESTIMATE.prob, r"exp\(e\.log_prob\)"),
    "a sum": (lambda: ESTIMATE + 1, "An Estimate is not one number"),
    "a multiple": (lambda: 2 * ESTIMATE, "not one number"),
    "a float": (lambda: float(ESTIMATE), r"jnp\.exp\(x\.log_prob\)"),
    "NumPy's exp": (lambda: np.exp(ESTIMATE), "not one number"),
    "a format": (lambda: f"{ESTIMATE:.3f}", "not one number"),
    "rows": (lambda: ROWS.n, "num_rows"),
    "p-values": (lambda: tg.simultaneous([1.0, 2.0], np.eye(2)).pvalues, "p_values"),
    "a tolerance of Exact": (lambda: tg.Exact(rtol=1e-3), "takes no arguments"),
    "a place by name alone": (lambda: tg.Observations.exact(PAIRS, BOX), "and by name"),
    "a list to start from": (
        lambda: tg.minimize(lambda p: (p**2).sum(), [1, 2]), r"array\(\[1, 2\], float\)"
    ),
    "data of an objective": (lambda: tg.minimize(lambda p, y: p - y, 1.0), "parameters alone"),
    "a function of NumPy": (
        lambda: tg.first_nonfinite(lambda x: np.log(x), -1.0), "fun cannot be traced"
    ),
    "robust errors": (lambda: tg.fit_regression(Y, X, cov_type="HC1"), 'information="sandwich"'),
    "two steps": (lambda: tg.polychoric(np.eye(2), method="2step"), r"fit\.two_step"),
    "draws with derivatives": (lambda: MULTIVARIATE.rsample(KEY), "has no rsample"),
    "draws of a fit": (lambda: FIT.sample, r"tg\.truncated_samples\(key, fit\.loc"),
    "a test of a fit": (lambda: FIT.t_test, r"likelihood_ratio\(smaller, fit\)\.p_value"),
    "a mean of a fit": (lambda: FIT.means_, "It is `loc`"),
    "a far name of a fit": (lambda: FIT.beat, r"no 'beat'\. Its estimates"),
    "an error of a prediction": (lambda: FIT.predict().stderr, "Write standard_errors"),
    "a p-value of an estimate": (lambda: FIT.derived("loc[0]").pvalue, r"norm\.sf"),
    "an end of minimize": (lambda: tg.minimize(jnp.cos, 3.0).x, "Write params"),
    "draws of draws": (lambda: tg.truncated_draws(KEY, **PROBLEM, num_samples=2).x, "samples"),
    "True for a number": (lambda: tg.TruncatedNormal(0.0, True), "scale must be a number"),
    "an argument left out": (lambda: tg.log_probability(LOC, COVARIANCE), r"such as tg\.Box"),
}  # fmt: skip


@pytest.mark.parametrize("name", HABITS)
def test_habits_of_other_packages_are_answered(name):
    call, words = HABITS[name]
    with pytest.raises((AttributeError, TypeError, NotImplementedError), match=words) as caught:
        call()
    assert is_own(caught.value)


def test_what_tuples_and_attributes_have_stays():
    assert ESTIMATE + (1,) == (*ESTIMATE, 1) and f"{ESTIMATE}" == repr(ESTIMATE)
    assert max(ESTIMATE, ESTIMATE) is ESTIMATE and np.asarray(ESTIMATE).shape == (2,)
    assert jax.tree.map(jnp.exp, ESTIMATE).stderr == 1.0
    assert not hasattr(NORMAL, "ppf") and getattr(ROWS, "n", None) is None
    assert pickle.loads(pickle.dumps(BOX)).low.shape == (2,)

    class Broken(tg.TruncatedNormal):
        @property
        def tail(self):
            return self.missing_part

    with pytest.raises(AttributeError, match="missing_part"):
        Broken(0.0, 1.0).tail  # noqa: B018


SILENT_ERRORS = {
    "a singular covariance": (
        lambda: tg.log_likelihood(ROWS, LOC, np.ones((2, 2))), "their covariance is singular"
    ),
    "no variance": (
        lambda: tg.likelihood.total_log_likelihood(ROWS, LOC, np.diag([1.0, 0.0])), "no variance"
    ),
    "rows outside": (
        lambda: tg.conditional_moments(
            tg.Observations.exact(PAIRS, region=tg.Box([9.0, 9.0], INF)), LOC, COVARIANCE
        ),
        "no row can be observed",
    ),
    "exchanged ends": (
        lambda: tg.Observations.from_table(TABLE, ["y"], censored_low=5.0, censored_high=1.0),
        "censored_low must lie below censored_high, got 5 and 1 in row 0",
    ),
    "two numbers for all rows": (
        lambda: tg.Observations.from_table(TABLE, ["y"], lower=0.0, upper=1.0), "are numbers"
    ),
    "exchanged names": (
        lambda: tg.Observations.exact(FRAME, names=["v", "u"]), "in the place of the column 'u'"
    ),
    "the index as a name": (lambda: tg.Observations.exact(PAIRS, index="g"), "got 'g'"),
    "the index as a list": (lambda: tg.Observations.exact(PAIRS, index=["a"]), "pandas.Index"),
    "a short index": (
        lambda: tg.Observations.exact(PAIRS, index=FRAME.index[:3]), "3 labels for 24 rows"
    ),
    "two orders of rows": (
        lambda: tg.Observations.exact(FRAME, index=FRAME.index[::-1]), "another order"
    ),
    "a kind of t without df": (
        lambda: tg.log_probability(**PROBLEM, noncentral="Kshirsagar"), "give its degrees"
    ),
    "likewise of moments": (
        lambda: tg.truncated_moments(**PROBLEM, noncentral="Kshirsagar"), "give its degrees"
    ),
    "likewise of quantiles": (
        lambda: tg.quantile(0.9, LOC, COVARIANCE, noncentral="Kshirsagar"), "give its degrees"
    ),
    "an exchanged probability": (
        lambda: tg.quantile(LOC, 0.95, COVARIANCE), r"order is \(probability, loc, covariance\)"
    ),
    "an exchanged covariance": (
        lambda: tg.quantile(0.95, COVARIANCE, LOC), r"order is \(probability, loc, covariance\)"
    ),
    "an exchanged level": (
        lambda: tg.excursion(0.5, LOC, COVARIANCE), r"order is \(loc, covariance, level\)"
    ),
    "an outcome as the cluster": (
        lambda: tg.fit_clusters(N // 4, X, Y, progress=False), r"\(outcome, design, cluster\)"
    ),
    "a dictionary of bounds": (
        lambda: tg.fit_regression(Y, X, censored_low={"y": 0.0}), "one outcome: give its number"
    ),
    "text for a norm": (lambda: tg.safe.safe_norm("ab"), "got the text 'ab'"),
    "text for censored values": (
        lambda: tg.Censored(NORMAL, low=0.0).log_prob("a"), "got the text 'a'"
    ),
    "half a draw": (lambda: NORMAL.sample(KEY, (2.5,)), "whole numbers"),
    "a table of answers": (lambda: tg.polychoric(TABLE), "table of counts"),
    "no rows": (lambda: FIT_OF_X.predict({"x": []}), "one row at least"),
    "another dimension": (
        lambda: tg.TruncatedMultivariateNormal(LOC, np.eye(3), low=LOC), r"got \(2,\) and \(3, 3\)"
    ),
    "draws beyond memory": (
        lambda: tg.truncated_samples(KEY, **PROBLEM, num_samples=10**15), "more than this machine"
    ),
    "True for a bound": (
        lambda: tg.fit_regression(Y, X, censored_low=True), "got True. It is the bound itself"
    ),
    "True for a variance": (lambda: tg.fit_regression(Y, X, noise=True), "no numbers here"),
    "True for bounds": (lambda: tg.fit_truncated_normal(PAIRS, low=True), "low.*got True"),
    "True for draws": (
        lambda: tg.truncated_samples(KEY, **PROBLEM, num_samples=True), "num_samples.*got True"
    ),
    "True for steps": (lambda: tg.minimize(jnp.sin, 1.0, num_steps=True), "num_steps.*got True"),
    "True for components": (lambda: tg.fit_mixture(ROWS, True), "num_components.*got True"),
    "named columns of answers": (
        lambda: tg.polychoric(FRAME.abs().round().reset_index(drop=True)), "24 rows of answers"
    ),
    "an exact value beyond a bound": (
        lambda: tg.Censored(NORMAL, 0.0, intervals=True).log_prob([[-0.5, -0.5]]), "beyond low"
    ),
    "no randomisations": (
        lambda: tg.quantile_residuals((ROWS, LOC, COVARIANCE), KEY, num_draws=-1), "num_draws"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SILENT_ERRORS)
def test_what_was_silent_or_of_other_packages_is_said(name):
    call, words = SILENT_ERRORS[name]
    with pytest.raises(ValueError, match=words) as caught:
        call()
    assert is_own(caught.value)


def test_valid_calls_beside_these_stay():
    named = tg.Observations.exact(FRAME, names=["a", "b"], index=FRAME.index)
    assert named.labels == ("a", "b")
    missing = tg.Observations([[0.5, -INF]], [[0.5, INF]])
    assert np.isfinite(tg.log_likelihood(missing, LOC, np.ones((2, 2))).log_prob).all()
    traced = jax.jit(lambda matrix: tg.log_likelihood(ROWS, LOC, matrix).log_prob)
    assert np.isnan(traced(np.ones((2, 2)))).all()
    assert np.size(tg.polychoric(pandas.crosstab(TWO, TWO[::-1])).rho) == 1
    single = tg.fit_regression(Y, X, weights=np.full(24, 1 / 24), num_profiles=0)
    assert "count as one observation" in " ".join(single.notes)
    limit = tg.log_probability(**PROBLEM, df=np.inf, noncentral="Kshirsagar")
    assert limit.log_prob == ESTIMATE.log_prob
