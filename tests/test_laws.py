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


class Setting(NamedTuple):
    """A problem of dimension d, a method for it, fresh and held, and the error its laws allow."""

    d: int
    fresh: object
    tolerance: float
    method: object


SETTINGS = {
    "exact-2": (2, tg.Exact(), 1e-11),
    "separation-4": (4, tg.Separation(4096), 1e-4),
    "propagation-4": (4, tg.ExpectationPropagation(), 2e-3),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[] if name == "separation-4" else [pytest.mark.full])
        for name in SETTINGS
    ],
)
def setting(request):
    d, method, tolerance = SETTINGS[request.param]
    box = tg.Box(LOW[:d], HIGH[:d])
    return Setting(d, method, tolerance, method.hold(LOC[:d], COVARIANCE[:d, :d], box))


def log_prob(setting, loc=LOC, covariance=COVARIANCE, low=LOW, high=HIGH, method=None):
    d = setting.d
    box = tg.Box(low[..., :d], high[..., :d])
    method = setting.method if method is None else method
    return tg.log_probability(loc[..., :d], covariance[..., :d, :d], box, method).log_prob


def test_reflection(setting):
    mirrored = log_prob(setting, loc=-LOC, low=-HIGH, high=-LOW)
    np.testing.assert_allclose(mirrored, log_prob(setting), atol=10 * setting.tolerance)


def test_permutation(setting):
    order = np.arange(setting.d)[::-1]
    swapped = [x[: setting.d][order] for x in (LOC, LOW, HIGH)]
    covariance = COVARIANCE[: setting.d, : setting.d][order][:, order]
    # The held plan names coordinates, so it is solved again for the new order.
    got = log_prob(setting, swapped[0], covariance, *swapped[1:], method=setting.fresh)
    np.testing.assert_allclose(got, log_prob(setting), atol=10 * setting.tolerance)


def test_scale(setting):
    """Units are the user's: a thousandfold change moves nothing."""
    # A held plan has sites in the units of the limits, so it is solved again.
    units = 1e3 * LOC, 1e6 * COVARIANCE, 1e3 * LOW, 1e3 * HIGH
    got = log_prob(setting, *units, method=setting.fresh)
    np.testing.assert_allclose(got, log_prob(setting, method=setting.fresh), atol=1e-9)


def test_a_split_box_adds_up_and_a_larger_one_holds_more(setting):
    middle = [np.where(np.arange(LOW.size) == 0, 0.4, x) for x in (LOW, HIGH)]
    parts = [log_prob(setting, high=middle[1]), log_prob(setting, low=middle[0])]
    whole = log_prob(setting)
    np.testing.assert_allclose(np.logaddexp(*parts), whole, atol=10 * setting.tolerance)
    assert max(parts) < whole < log_prob(setting, high=HIGH + 0.1)


def test_an_infinite_limit_marginalises(setting):
    free = lambda x, limit: np.where(np.arange(x.size) == 1, limit, x)
    got = log_prob(setting, low=free(LOW, -INF), high=free(HIGH, INF))
    keep = [i for i in range(setting.d) if i != 1]
    rest = tg.Box(LOW[keep], HIGH[keep])
    truth = tg.log_probability(LOC[keep], COVARIANCE[keep][:, keep], rest, tg.Exact()).log_prob
    np.testing.assert_allclose(got, truth, atol=10 * setting.tolerance)


@pytest.mark.full
def test_the_slope_in_the_covariance_is_half_the_curvature_in_the_mean(setting):
    """The heat equation of the normal law: dP/dSigma = 1/2 d2P / dmu dmu^T, symmetric."""
    p = lambda loc, covariance: jnp.exp(log_prob(setting, loc, covariance))
    slope = jax.grad(p, argnums=1)(LOC, COVARIANCE)[: setting.d, : setting.d]
    curvature = jax.hessian(p)(LOC, COVARIANCE)[: setting.d, : setting.d]
    np.testing.assert_allclose(slope, slope.T, atol=1e-12)
    np.testing.assert_allclose(slope, 0.5 * curvature, atol=20 * setting.tolerance)


@pytest.mark.full
def test_slopes_are_those_of_the_value(setting):
    arguments = (LOC, COVARIANCE, LOW, HIGH)
    value = jax.jit(lambda *a: log_prob(setting, *a))
    gradients = jax.jit(jax.grad(value, argnums=(0, 1, 2, 3)))(*arguments)
    step = 1e-5
    key = jax.random.key(4)
    for position, (argument, gradient) in enumerate(zip(arguments, gradients)):
        direction = jax.random.normal(jax.random.fold_in(key, position), argument.shape)
        if argument.ndim == 2:
            direction = direction + direction.T
        infinite = jnp.isinf(argument)
        np.testing.assert_array_equal(gradient[infinite], 0.0)
        moved = lambda h: [
            jnp.where(infinite, x, x + h * direction) if i == position else x  # noqa: B023
            for i, x in enumerate(arguments)
        ]
        difference = (value(*moved(step)) - value(*moved(-step))) / (2 * step)
        slope = jnp.sum(jnp.where(infinite, 0.0, gradient * direction))
        np.testing.assert_allclose(slope, difference, rtol=1e-6, atol=1e-8)


def test_float32_agrees(setting):
    cast = lambda tree: jax.tree.map(
        lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree
    )
    got = log_prob(setting, *map(cast, (LOC, COVARIANCE, LOW, HIGH)), method=cast(setting.method))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, log_prob(setting), atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize(
    ("d", "method"),
    [
        (3, tg.Exact()),
        (4, tg.Separation(128, 4)),
        (4, tg.ExpectationPropagation()),
    ],
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


def test_a_batch_is_a_loop(setting):
    locs = np.stack([LOC, LOC + 0.1, LOC - 3.0])
    got = log_prob(setting, loc=locs)
    for i, loc in enumerate(locs):
        np.testing.assert_allclose(got[i], log_prob(setting, loc=loc), rtol=1e-12)


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
EDGES_FULL = ("exact-3", "two factors", "lattice")


@pytest.mark.parametrize(
    "case",
    [pytest.param(x, marks=[pytest.mark.full] if x in EDGES_FULL else []) for x in AT_EDGES],
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
