"""Every method over every problem that it claims, and the laws that all of them obey.

Two laws are kept apart: *accurate* (error against the truth) and *honest* (error against the
method's own error bar). Two lists hold the exceptions: `CANNOT`, where a method is inaccurate and
says so, and `LIES`, where it is inaccurate and does not, which stays empty.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import PROBLEMS
from scipy import stats

import truncgauss as tg

INF = np.inf


class Row(NamedTuple):
    """A method, the dimensions it is tried in, the error allowed, and tags it does not claim."""

    name: str
    method: object
    dimensions: tuple[int, ...]
    allowed: float
    except_tags: frozenset = frozenset()


ROWS = [
    Row("exact", tg.Exact(), (1, 2, 3), 1e-9, frozenset({"singular"})),
    Row("separation", tg.Separation(512), (5,), 2e-3, frozenset({"singular"})),
    Row("propagation", tg.ExpectationPropagation(), (5,), 5e-2, frozenset({"correlated"})),
    Row("soft", tg.SoftMonteCarlo(1024, 16, tg.Hard()), (2,), 0.3),
    Row("untilted", tg.Separation(2048, tilted=False), (2,), 2e-2, frozenset({"singular"})),
    Row("separation", tg.Separation(512), (2,), 2e-3, frozenset({"singular"})),
    Row("propagation", tg.ExpectationPropagation(), (2,), 5e-2, frozenset({"correlated"})),
    Row("sequential", tg.SequentialMonteCarlo(256), (5,), 5e-2, frozenset({"correlated"})),
    Row("separation", tg.Separation(), (20, 100), 2e-2),
    Row("sequential", tg.SequentialMonteCarlo(512), (20,), 5e-2),
    Row("propagation", tg.ExpectationPropagation(), (20,), 0.1),
]
CASES = [pytest.param(row, d, id=f"{row.name}-{d}") for row in ROWS for d in row.dimensions]
# Hard counting sees nothing at all beyond a few standard deviations: its error bar is infinite.
CANNOT = {("soft", f"{family}-2-tail4") for family in ("equi", "ar1", "factor", "id")}
LIES = set()
# Of Student's law with 15 degrees of freedom: one false alarm in 10^6 for each problem.
QUANTILE = stats.t.ppf(1 - 0.5e-6, 15)
# What rounding of an ill-conditioned covariance, or of the truth, allows.
ROUNDING = {"correlated": 3e-6}


@pytest.mark.quick("exact-1")
@pytest.mark.parametrize(("row", "d"), CASES)
def test_accurate_and_honest(row, d):
    problems = [p for p in PROBLEMS if p.dimension == d and not p.tags & row.except_tags]
    stack = lambda values: jnp.asarray(np.stack(list(values)))
    estimates = tg.log_probability(
        stack(p.loc for p in problems),
        stack(p.covariance() for p in problems),
        tg.Box(stack(p.low for p in problems), stack(p.high for p in problems)),
        row.method,
    )
    for p, log_prob, stderr in zip(problems, *map(np.asarray, estimates)):
        error = abs(log_prob - p.log_prob)
        rounding = max([ROUNDING.get(tag, 0.0) for tag in p.tags], default=0.0)
        scale = max(1.0, abs(p.log_prob))
        accurate = error <= (row.allowed + rounding) * scale
        bar = 1e-11 * scale + rounding + (QUANTILE * stderr if stderr > 0 else 0.0)
        honest = np.isnan(stderr) or row.name == "exact" and accurate or error <= bar
        told = (row.name, p.name)
        assert accurate != (told in CANNOT), (told, error, stderr)
        assert honest != (told in LIES), (told, error, stderr)
    assert not LIES


# --- Laws of the probability, on the exact method and on a held plan ------------------------------

LOC = np.array([0.3, -0.2, 0.1, 0.4])
FACTOR = np.array([[1.0, 0, 0, 0], [0.5, 0.9, 0, 0], [-0.3, 0.2, 1.1, 0], [0.1, 0.4, -0.6, 0.8]])
COVARIANCE = FACTOR @ FACTOR.T
LOW, HIGH = np.array([-1.0, -INF, 0.2, -0.5]), np.array([1.5, 0.7, INF, 2.0])


# A dimension, a method for it, and the error its laws allow.
SETTINGS = {
    "exact-2": (2, tg.Exact(), 1e-11),
    "separation-4": (4, tg.Separation(4096), 1e-4),
    "propagation-4": (4, tg.ExpectationPropagation(), 2e-3),
}


def log_prob(loc, covariance, low, high, method):
    return tg.log_probability(loc, covariance, tg.Box(low, high), method).log_prob


def inputs(d):
    return LOC[:d], COVARIANCE[:d, :d], LOW[:d], HIGH[:d]


def held(name):
    d, method, _ = SETTINGS[name]
    loc, covariance, low, high = inputs(d)
    return method.hold(loc, covariance, tg.Box(low, high))


def float32(tree):
    is_float = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
    return jax.tree.map(lambda x: x.astype(jnp.float32) if is_float(x) else x, tree)


@pytest.mark.quick("separation-4")
@pytest.mark.parametrize("name", SETTINGS)
def test_laws_of_the_probability(name):
    """Of a held plan, solved again where the units or the order of the coordinates change."""
    d, fresh, tolerance = SETTINGS[name]
    loc, covariance, low, high = inputs(d)
    method, of = held(name), jax.jit(log_prob)
    whole = of(loc, covariance, low, high, method)
    first = np.arange(d) == 0
    parts = [
        of(loc, covariance, low, np.where(first, 0.4, high), method),
        of(loc, covariance, np.where(first, 0.4, low), high, method),
    ]
    assert max(parts) < whole < of(loc, covariance, low, high + 0.1, method)
    second = np.arange(d) == 1
    free = np.where(second, -INF, low), np.where(second, INF, high)
    x, matrix, below, above = (part[~second] for part in inputs(d))
    backwards = [part[::-1] for part in (loc, covariance[:, ::-1], low, high)]
    units = 1e3 * loc, 1e6 * covariance, 1e3 * low, 1e3 * high
    locs = np.stack([loc, loc + 0.1, loc - 3.0])
    rows = np.stack([of(row, covariance, low, high, method) for row in locs])
    single = of(*float32((loc, covariance, low, high)), float32(method))
    assert single.dtype == np.float32
    marginal = log_prob(x, matrix[:, ~second], below, above, tg.Exact())
    for law, found, expected, rtol, atol in (
        ("reflection", of(-loc, covariance, -high, -low, method), whole, 1e-7, 10 * tolerance),
        ("permutation", of(*backwards, fresh), whole, 1e-7, 10 * tolerance),
        ("units", of(*units, fresh), of(loc, covariance, low, high, fresh), 1e-7, 1e-9),
        ("a split box adds up", np.logaddexp(*parts), whole, 1e-7, 10 * tolerance),
        ("no limit", of(loc, covariance, *free, method), marginal, 1e-7, 10 * tolerance),
        ("float32", single, whole, 1e-7, 1e-4),
        ("a batch is a loop", log_prob(locs, covariance, low, high, method), rows, 1e-12, 0.0),
    ):
        np.testing.assert_allclose(found, expected, rtol, atol, err_msg=law)


@pytest.mark.full
@pytest.mark.parametrize(
    ("d", "method"), [(3, tg.Exact()), (4, tg.Separation(128, 4)), (4, tg.ExpectationPropagation())]
)
def test_a_process_without_float64_has_gradients_and_no_warnings(d, method):
    """JAX's own default: what float64 tests never see. P of this orthant is 1 / (d + 1)!."""
    with jax.enable_x64(False):
        covariance = 2 * jnp.eye(d) - jnp.eye(d, k=1) - jnp.eye(d, k=-1)
        region = tg.Box(jnp.zeros(d), jnp.full(d, INF))
        log_prob = lambda loc: tg.log_probability(loc, covariance, region, method).log_prob
        value, gradient = jax.value_and_grad(log_prob)(jnp.zeros(d))
        assert value.dtype == gradient.dtype == jnp.float32
    np.testing.assert_allclose(value, -np.log({3: 24.0, 4: 120.0}[d]), atol=5e-3)
    np.testing.assert_allclose(gradient, gradient[::-1], atol=2e-2)


# --- Edges of what has a probability --------------------------------------------------------------


def edges(covariance, d):
    """Mean, covariance, limits and log P: NaN stays NaN, an empty box has -inf, an inverted NaN."""
    zero, one, nan = np.zeros(d), np.ones(d), np.full(d, np.nan)
    last = np.eye(d)[-1]
    scaled = lambda factor: jax.tree.map(lambda x: factor * x, covariance)
    yield zero, covariance, -INF * one, INF * one, 0.0
    yield zero, covariance, -one, one - 2 * last, -INF
    yield zero, covariance, zero, zero, -INF
    yield zero, covariance, one, zero, np.nan
    yield zero, covariance, -one, one - 3 * last, np.nan
    yield np.where(last > 0, np.nan, 0.0), covariance, -one, one, np.nan
    yield zero, scaled(np.nan), -one, one, np.nan
    yield zero, covariance, np.where(last > 0, np.nan, -1.0), one, np.nan
    yield zero, covariance, -one, np.where(last > 0, np.nan, 1.0), np.nan
    if isinstance(covariance, np.ndarray):
        yield zero, -covariance, -one, one, np.nan
        asymmetric = covariance + np.tril(np.ones((d, d)), -1)
        yield zero, asymmetric, -one, one, np.nan if d > 1 else -0.3817151
    else:
        yield nan, covariance, -INF * one, INF * one, np.nan


def loadings(rank):
    return tg.LowRank(np.random.default_rng(1).normal(size=(8, rank)), np.ones(8))


AT_EDGES = {
    "exact-1": (tg.Exact(), np.eye(1), float),
    "exact-2": (tg.Exact(), COVARIANCE[:2, :2], float),
    "exact-3": (tg.Exact(), COVARIANCE[:3, :3], float),
    "two factors": (tg.Exact(), loadings(2), float),
    "lattice": (tg.probability.FactorLattice(64, 2), loadings(3), float),
    "separation": (tg.Separation(64, 2), COVARIANCE, float),
    "propagation": (tg.ExpectationPropagation(), COVARIANCE[:2, :2], float),
    "sequential": (tg.SequentialMonteCarlo(32, 2), COVARIANCE[:3, :3], np.float32),
}
EDGES_FULL = ("exact-3", "two factors", "lattice", "propagation", "sequential")


@pytest.mark.parametrize(
    "case", [pytest.param(x, marks=[pytest.mark.full] if x in EDGES_FULL else []) for x in AT_EDGES]
)
def test_edges_of_the_domain(case):
    """While tracing; where limits are inverted the gradient is NaN too."""
    method, covariance, dtype = AT_EDGES[case]
    d = covariance.dimension if isinstance(covariance, tg.LowRank) else len(covariance)
    *problems, truth = zip(*edges(covariance, d))

    @jax.jit
    @jax.vmap
    def ask(loc, covariance, low, high):
        of = lambda loc, low: (
            tg.log_probability(loc, covariance, tg.Box(low, high), method).log_prob
        )
        return jax.value_and_grad(of, (0, 1))(loc, low)

    stack = lambda *leaves: np.stack([np.asarray(x, dtype) for x in leaves])
    value, slopes = ask(*(jax.tree.map(stack, *part) for part in problems))
    assert value.dtype == dtype
    # Points of the lattice do not see that there are no limits.
    np.testing.assert_allclose(value, truth, atol=1e-2 if case == "lattice" else 1e-7)
    assert np.isnan(slopes[0][3:5]).all() and np.isnan(slopes[1][3:5]).all()
