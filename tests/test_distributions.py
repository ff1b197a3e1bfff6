"""The truncated distributions for NumPyro: values, supports, shapes, and models that use them."""

import math
import pickle
import warnings

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.batch_util import promote_batch_shape
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO, autoguide
from numpyro.infer.util import log_density, potential_energy

import truncgauss as tg
from tests.normal_truth import DIGITS, Truth, derivatives
from truncgauss.distributions.supports import Between
from truncgauss.probability.method import Method
from truncgauss.problem import Estimate
from truncgauss.pytrees import frozen_pytree

INF = math.inf
DTYPES = [np.float64, np.float32]
# Bars on |error| / max(1, |truth|) for values and gradients.
BARS = {np.float64: (1e-13, 1e-11), np.float32: (2e-6, 1e-5)}
FALSE_ALARM = 1e-6  # of each test on draws

SIGMAS = (5.0, 10.0, 38.0, 100.0, 1000.0)
TAILS = [  # loc, scale, low, high, x
    (0.0, 1.0, *ends)
    for s in SIGMAS
    for ends in [
        (s, s + 1, s + 0.5 / s),
        (s, INF, s + 0.5 / s),
        (-s - 1, -s, -s - 0.5 / s),
        (-INF, -s, -s - 0.5 / s),
        (-s, s, 0.25),
    ]
]


WEDGE = tg.Polyhedron([[1.0, 1.0], [1.0, -1.0]], [0.0, 0.0], [INF, INF])
PAIR = jnp.array([[1.0, 0.3], [0.3, 2.0]])


@frozen_pytree
class Given(Method):
    """A made-up answer that moves with loc and compiles at once, where only its use is tested."""

    stderr: float = 0.0

    def replicate(self, loc, covariance, region, key):
        return Estimate(-1.0 - 0.1 * jnp.sum(loc * loc), jnp.asarray(self.stderr, loc.dtype))


def vector_law(loc, covariance=PAIR, **options):
    return tg.TruncatedMultivariateNormal(loc, covariance, **{"method": Given(), **options})


def test_the_distributions_behave_as_numpyros_own():
    assert tg.TruncatedNormal().has_rsample
    assert not vector_law(0.0).has_rsample and not vector_law(0.0).is_discrete
    assert tg.TruncatedNormal.support.event_dim == 0
    assert tg.TruncatedMultivariateNormal.support.event_dim == 1


# --- One dimension --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_density_and_distribution_function_in_any_tail(dtype):
    def ours(p):
        truncated = tg.TruncatedNormal(*p[:4], validate_args=False)
        return jnp.stack([truncated.log_prob(p[4]), truncated.cdf(p[4])])

    def truth(loc, scale, low, high, x):
        whole = Truth(loc, scale, low, high)
        part = Truth(loc, scale, low, x)
        return whole.log_density(x), part.mass / whole.mass

    problems = np.array(TAILS, dtype)
    values, slopes = (np.asarray(x) for x in jax.jit(jax.vmap(_with_slopes(ours)))(problems))
    assert values.dtype == slopes.dtype == dtype
    for problem, value, slope in zip(problems, values, slopes):
        true_value, true_slope = derivatives(truth, problem, 1)
        for got, true, bar in zip((value, slope), (true_value, true_slope), BARS[dtype]):
            error = np.abs(got - true) / np.maximum(1.0, np.abs(true))
            assert np.all(error < bar), (problem, got, true)


def _with_slopes(function):
    return lambda p: (function(p), jax.jacfwd(function)(p))


def test_traps_that_libraries_fall_into():
    with mp.workdps(DIGITS):
        truncated, truth = tg.TruncatedNormal(0.0, 1.0, 9.0, 10.0), Truth(0.0, 1.0, 9.0, 10.0)
        assert truncated.log_prob(9.1) == pytest.approx(float(truth.log_density(9.1)), abs=1e-13)
        assert truncated.log_prob(9.1) == pytest.approx(1.30427809908, abs=1e-11)
        truncated, truth = tg.TruncatedNormal(0.0, 1.0, 8.0, 9.0), Truth(0.0, 1.0, 8.0, 9.0)
        assert truncated.log_prob(8.1) == pytest.approx(float(truth.log_density(8.1)), abs=1e-13)
        assert truncated.log_prob(8.1) == pytest.approx(1.28968006023, abs=1e-11)
        truncated, truth = tg.TruncatedNormal(0.0, 1.0, 100.0, 115.0), Truth(0.0, 1.0, 100.0, 115.0)
        assert truncated.mean == pytest.approx(float(truth.mean), rel=1e-15)
        assert truncated.mean == pytest.approx(100.00999800099926, rel=1e-15)
        truncated, truth = tg.TruncatedNormal(1e6, 1.0, 0.0, 1000.0), Truth(1e6, 1.0, 0.0, 1000.0)
        assert truncated.variance == pytest.approx(float(truth.variance), rel=1e-12)
        assert truncated.variance == pytest.approx(1.002003003998e-12, rel=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_quantiles_stay_within_the_limits_and_reach_them(dtype):
    problems = np.array(TAILS, dtype)
    distributions = tg.TruncatedNormal(*problems.T[:4])
    quantiles = jax.jit(lambda distributions, q: distributions.icdf(q))
    assert np.array_equal(quantiles(distributions, dtype(0.0)), distributions.low)
    assert np.array_equal(quantiles(distributions, dtype(1.0)), distributions.high)
    for q in (dtype(-0.1), dtype(1.1), dtype(np.nan)):
        assert np.all(np.isnan(quantiles(distributions, q)))
    q = np.array([1e-30, 1e-6, 0.3, 0.5, 0.9, 1 - 1e-6], dtype)[:, None]
    x = quantiles(distributions, q)
    assert x.dtype == dtype
    assert np.all((x >= distributions.low) & (x <= distributions.high))
    # Back again: a share is known as well as the place lets it be, one rounding of x.
    rounding = np.spacing(np.abs(x)) * np.exp(distributions.log_prob(x))
    assert np.all(np.abs(distributions.cdf(x) - q) < 4 * rounding + 100 * np.finfo(dtype).eps)


def test_quantiles_have_the_slope_of_the_inverse_function():
    truncated = lambda p: tg.TruncatedNormal(*p[:4], validate_args=False)

    def slopes(p):
        x, by = jax.value_and_grad(lambda p, q: truncated(p).icdf(q), (0, 1))(p, 0.3)
        return by, jax.grad(lambda p: truncated(p).cdf(x))(p), jnp.exp(truncated(p).log_prob(x))

    problems = np.array([p for p in TAILS if np.isfinite(p).all()])
    (by_p, by_q), by_cdf, density = jax.jit(jax.vmap(slopes))(problems)
    assert np.allclose(by_q * density, 1.0, rtol=1e-10)
    # dx = -dF / f for every parameter, and moving everything by 1 moves x by 1.
    assert np.allclose(by_p, -by_cdf / density[:, None], rtol=1e-6, atol=1e-9)
    assert np.allclose(by_p.sum(1) - by_p[:, 1], 1.0, rtol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_draws_follow_the_distribution_and_stay_inside(dtype):
    problems = np.array([*TAILS, (0.0, 1.0, 30.0, 31.0, 30.1), (3.0, 2.0, -INF, INF, 0.0)], dtype)
    distributions = tg.TruncatedNormal(*problems.T[:4])
    num = 2**14
    draws = jax.jit(lambda distributions, key: distributions.sample(key, (num,)))(
        distributions, jax.random.key(1)
    )
    assert draws.dtype == dtype and draws.shape == (num, len(problems))
    assert np.all((draws >= distributions.low) & (draws <= distributions.high))
    # Dvoretzky, Kiefer and Wolfowitz; one false alarm in 1e6 for all distributions together. An
    # error of a distribution function of twice the bar is missed once in 1e6.
    bar = math.sqrt(math.log(2 * len(problems) / FALSE_ALARM) / (2 * num))
    exact = tg.TruncatedNormal(*problems.T[:4].astype(np.float64))
    shares = np.sort(exact.cdf(np.asarray(draws, np.float64)), axis=0)
    steps = np.arange(num + 1)[:, None] / num
    gap = np.maximum(np.abs(shares - steps[1:]), np.abs(shares - steps[:-1])).max(0)
    # In float32 a draw beyond 1000 sigma is one of few numbers: steps of the size of rounding.
    step = np.spacing(np.abs(np.asarray(draws))) * np.exp(exact.log_prob(draws))
    assert np.all(gap < bar + np.max(step, axis=0))


def test_draws_can_be_differentiated():
    @jax.jit
    def moved(shift, stretch):
        move = lambda x: x * (1 + stretch) + shift
        truncated = tg.TruncatedNormal(
            move(0.5), 1 + stretch, move(9.0), move(jnp.array([10.0, INF]))
        )
        return truncated.sample(jax.random.key(3), (5,))

    # Where everything moves, or is measured in another unit, so is each draw.
    draws, speed = jax.jvp(moved, (0.0, 0.0), (1.0, 0.0))
    assert np.allclose(speed, 1.0, rtol=1e-13)
    assert np.allclose(jax.jvp(moved, (0.0, 0.0), (0.0, 1.0))[1], draws, rtol=1e-13)


def outside_law(parameters, d, validate):
    loc, scale, low, high = parameters
    if d == 0:
        return tg.TruncatedNormal(loc, scale, low, high, validate_args=validate)
    limits = {"low": low, "high": high, "validate_args": validate}
    method = tg.Automatic() if d == 1 else Given()
    return vector_law(jnp.full(d, loc), scale**2 * jnp.eye(d), method=method, **limits)


@pytest.mark.parametrize("d", [0, 1, 2])
def test_nothing_lies_outside(d):
    shape = (d,) if d else ()
    parameters = np.array([0.0, 1.0, 9.0, 10.0])
    outside = np.array([-1e300, 8.0, np.nextafter(9.0, 0.0), 10.5, INF, -INF])
    for validate in (False, True):
        truncated = outside_law(parameters, d, validate)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            values = [truncated.log_prob(np.full(shape, x)) for x in (8.0, np.nan, 9.0, 10.0)]
        assert [("Out-of-support" in str(w.message)) for w in said] == [True] * (2 * validate)
        assert values[0] == -INF and np.isnan(values[1]) and np.isfinite(values[2:]).all()

        def density(parameters, x):
            return outside_law(parameters, d, validate).log_prob(x * np.ones(shape))  # noqa: B023

    value, slopes = jax.jit(jax.vmap(jax.value_and_grad(density, (0, 1)), (None, 0)))(
        parameters, outside
    )
    assert np.all(value == -INF) and not np.any(slopes[0]) and not np.any(slopes[1])


def test_without_limits_it_is_the_normal_distribution():
    x = np.linspace(-50.0, 50.0, 1001)
    ours, theirs = tg.TruncatedNormal(0.5, 2.0), dist.Normal(0.5, 2.0)
    assert np.allclose(ours.log_prob(x), theirs.log_prob(x), rtol=4e-16, atol=4e-16)
    assert ours.mean == 0.5 and ours.variance == 4.0
    assert np.allclose(ours.cdf(x), theirs.cdf(x), rtol=1e-12, atol=1e-300)
    assert ours.entropy() == pytest.approx(float(theirs.entropy()), rel=1e-15)


def test_equal_and_inverted_limits():
    for low, high in [(1.0, 1.0), (2.0, 1.0), (INF, INF)]:
        with pytest.raises(ValueError, match="low must be below high"):
            tg.TruncatedNormal(0.0, 1.0, low, high, validate_args=False)
        with pytest.raises(ValueError, match="low must be below high"):
            vector_law([0.0, 0.0], low=low, high=high)
    # Traced, they cannot be looked at: there is no such distribution, and NaN says so.
    one = lambda low, high: tg.TruncatedNormal(0.0, 1.0, low, high).log_prob(1.0)
    many = lambda low, high: vector_law([0.0, 0.0], low=low, high=high).log_prob(jnp.ones(2))
    for truncated in (one, many):
        values = jax.jit(jax.vmap(truncated))(np.array([1.0, 2.0, 0.0]), np.array([1.0, 1.0, 2.0]))
        assert np.array_equal(np.isnan(values), [True, True, False])


def test_refusals_speak():
    with pytest.raises(
        ValueError, match=r"scale must be positive and finite, got -1.0 at index \(1"
    ):
        tg.TruncatedNormal(0.0, [1.0, -1.0], validate_args=True)
    with pytest.raises(ValueError, match="loc must be finite, got nan"):
        tg.TruncatedNormal(np.nan, validate_args=True)
    with pytest.raises(ValueError, match=r"do not broadcast: loc \(2,\), scale \(3,\)"):
        tg.TruncatedNormal(np.zeros(2), np.ones(3))
    with pytest.raises(ValueError, match="needs one JAX random key, got None"):
        tg.TruncatedNormal().sample(None)
    assert np.isnan(tg.TruncatedNormal(0.0, -1.0, validate_args=False).log_prob(0.0))
    truncated = tg.TruncatedMultivariateNormal
    with pytest.raises(ValueError, match="exactly one of covariance_matrix, .* got none"):
        truncated([0.0])
    with pytest.raises(ValueError, match="got covariance_matrix and scale_tril"):
        truncated([0.0], [[1.0]], scale_tril=[[1.0]])
    with pytest.raises(ValueError, match="limits or a region, not both"):
        truncated([0.0], [[1.0]], low=0.0, region=tg.Box([0.0], [1.0]))
    with pytest.raises(TypeError, match="another region with linear constraints, got Ball"):
        truncated([0.0], [[1.0]], region=tg.Ball([0.0], 1.0))
    with pytest.raises(ValueError, match="dimensions disagree"):
        truncated([0.0, 0.0], jnp.eye(3))
    with pytest.raises(ValueError, match="must be symmetric"):
        truncated([0.0, 0.0], [[1.0, 0.5], [0.0, 1.0]])
    with pytest.raises(ValueError, match="precision_matrix must be symmetric and positive"):
        truncated([0.0, 0.0], precision_matrix=[[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(
        ValueError, match="diagonal of scale_tril must be positive and finite, got 0"
    ):
        truncated([0.0, 0.0], scale_tril=[[1.0, 0.0], [1.0, 0.0]], validate_args=True)
    with pytest.raises(ValueError, match="loc must be finite"):
        truncated([0.0, INF], jnp.eye(2), validate_args=True)
    with pytest.raises(ValueError, match=r"needs shape \(..., 2\), got \(3,\)"):
        truncated([0.0, 0.0], jnp.eye(2)).log_prob(jnp.zeros(3))


# --- Supports -------------------------------------------------------------------------------------

ENDS = [
    (-INF, INF),
    (0.0, INF),
    (-INF, 2.0),
    (-1.0, 1.0),
    (1e6, INF),
    (-INF, -1e6),
    (30.0, 31.0),
    (1.0, 1.0 + 2.0**-12),
    (-1e30, 1e30),
    (0.0, 1000.0),
    (-3.4e38, 3.4e38),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_way_to_the_support(dtype):
    low, high = np.array(ENDS, dtype).T
    far = np.array([-1e30, -1e4, -700.0, -90.0, -20.0], dtype)
    x = np.concatenate([far, np.linspace(-9, 9, 37, dtype=dtype), -far[::-1]])[:, None]

    def way(x, low, high):
        transform = biject_to(Between(low, high))
        y = transform(x)
        return y, transform.log_abs_det_jacobian(x, y), transform.inv(y)

    @jax.jit
    def all_of_it(*grids):
        totals = lambda *grids: tuple(part.sum() for part in way(*grids)[:2])
        return way(*grids), jax.jacobian(totals, (0, 1, 2))(*grids)

    (y, volume, back), slopes = all_of_it(*np.broadcast_arrays(x, low, high))
    assert y.dtype == volume.dtype == dtype and volume.shape == y.shape
    assert np.all((y >= low) & (y <= high) & np.isfinite(y)) and np.all(np.isfinite(volume))
    assert np.all(np.diff(y, axis=0) >= 0)
    assert all(np.isfinite(slope).all() for slope in jax.tree.leaves(slopes))
    slope = slopes[0][0]
    middle = slice(len(far), -len(far))
    assert np.allclose(volume[middle], np.log(slope[middle]), rtol=2e-6, atol=2e-6)
    # Back: exact but for what the rounding of y took, which is everything near an end.
    back = back[middle]
    assert np.all(np.isfinite(back))
    loss = np.spacing(np.abs(y[middle])) * np.exp(-volume[middle])
    clear = loss < 1e-3
    assert np.all(np.abs(back - x[middle])[clear] < (4 * loss + 1e-5)[clear])


def test_a_support_of_vectors():
    truncated = tg.TruncatedMultivariateNormal(
        jnp.zeros(4), jnp.eye(4), low=[0.0, 0.0, -INF, -INF], high=[1.0, INF, 0.0, INF]
    )
    transform, x = biject_to(truncated.support), jnp.array([-0.3, 0.7, 2.0, 0.1])
    y = transform(x)
    assert transform.domain.event_dim == transform.codomain.event_dim == 1
    assert bool(truncated.support(y)) and not bool(truncated.support(-y))
    _, volume = jnp.linalg.slogdet(jax.jacobian(transform)(x))
    assert transform.log_abs_det_jacobian(x, y) == pytest.approx(float(volume), rel=1e-13)
    assert np.allclose(transform.inv(y), x, rtol=1e-13)
    assert truncated.support(jnp.stack([y, -y])).tolist() == [True, False]
    assert bool(truncated.support(truncated.support.feasible_like(jnp.zeros(4))))
    again = pickle.loads(pickle.dumps(truncated.support))
    assert again.eq(truncated.support) and again.event_dim == 1 and "event_dim=1" in repr(again)
    assert not again.eq(tg.TruncatedNormal(0.0, 1.0, truncated.low, truncated.high).support)
    moved = jax.tree.map(lambda end: end + 1.0, truncated.support)
    assert moved.event_dim == 1 and moved.lower_bound[0] == 1.0
    assert isinstance(truncated.support, constraints.interval)  # so that NUTS replays moving limits


def test_no_way_onto_a_polyhedron():
    truncated = vector_law([0.0, 0.0], region=WEDGE, validate_args=False)
    with pytest.raises(NotImplementedError, match="no bijection .* onto a Polyhedron, so NUTS"):
        biject_to(truncated.support)
    points = jnp.array([[1.0, 0.5], [1.0, 2.0]])
    assert truncated.support(points).tolist() == [True, False]
    assert np.isfinite(truncated.log_prob(points)).tolist() == [True, False]
    masked = truncated.expand((2,)).mask(jnp.array([True, False])).log_prob(points)
    assert np.isfinite(masked).all() and masked[1] == 0.0

    def latent():
        numpyro.sample("x", truncated)

    with pytest.raises(NotImplementedError, match="no bijection"):
        numpyro.infer.util.initialize_model(jax.random.key(0), latent)


# --- Shapes ---------------------------------------------------------------------------------------


def shape_of(function, *arguments):
    """The shape of what a function would return."""
    return jax.eval_shape(function, *arguments).shape


def test_shapes_of_the_normal_distribution():
    truncated = tg.TruncatedNormal(np.zeros((3, 1)), 1.0, [-1.0, 0.0], None)
    key, x = jax.random.key(0), np.ones((5, 1, 1))
    assert truncated.batch_shape == (3, 2) and truncated.event_shape == ()
    assert truncated.infer_shapes(loc=(3, 1), scale=(), low=(2,)) == ((3, 2), ())
    assert shape_of(lambda: truncated.sample(key, (5,))) == (5, 3, 2)
    assert (
        shape_of(truncated.log_prob, x)
        == shape_of(truncated.cdf, x)
        == shape_of(truncated.icdf, x)
        == (5, 3, 2)
    )
    for part in (lambda: truncated.mean, lambda: truncated.variance, truncated.entropy):
        assert shape_of(part) == (3, 2)
    wide = truncated.expand((4, 3, 2))
    assert shape_of(wide.sample, key) == shape_of(lambda: wide.mean) == (4, 3, 2)
    event = truncated.to_event(1)
    assert event.batch_shape == (3,) and shape_of(event.log_prob, np.ones((3, 2))) == (3,)
    transform, x = biject_to(event.support), jnp.zeros((3, 2))
    assert event.support(transform(x)).tolist() == [True] * 3
    assert transform.log_abs_det_jacobian(x, transform(x)).shape == (3,)
    wider = event.expand((4, 3))
    assert wider.batch_shape == (4, 3) and shape_of(wider.sample, key) == (4, 3, 2)
    for law_of_events in (event, wider):  # so that NUTS replays moving limits
        assert isinstance(law_of_events.support, constraints.interval)
        assert law_of_events.support.event_dim == 1
    assert truncated.to_event(0) is truncated and truncated.to_event().event_shape == (3, 2)
    masked = truncated.mask(np.array([True, False]))
    slope = jax.grad(lambda x: masked.log_prob(x).sum())(jnp.array([0.5, -7.0]))
    assert np.isfinite(slope).all() and slope[1] == 0.0


def test_shapes_of_the_vector_distribution():
    truncated = vector_law(np.zeros((3, 1, 2)), low=[[-1.0, 0.0]] * 4)
    assert truncated.batch_shape == (3, 4) and truncated.event_shape == (2,)
    assert truncated.infer_shapes((3, 1, 2), (2, 2), low=(4, 2)) == ((3, 4), (2,))
    x = np.ones((5, 1, 1, 2))
    values = truncated.log_prob(x)
    assert values.shape == (5, 3, 4) and truncated.log_normalizer.log_prob.shape == (3, 4)
    alone = vector_law([0.0, 0.0], low=[-1.0, 0.0])
    assert np.allclose(values, alone.log_prob(x[0, 0, 0]), rtol=1e-13)
    many = vector_law(np.zeros(2), jnp.stack([PAIR, 2 * PAIR]), low=[-1.0, 0.0])
    assert many.log_prob(x[:, 0]).shape == (5, 2)
    assert np.allclose(many.log_prob(x[:, 0])[:, 0], alone.log_prob(x[0, 0, 0]))
    assert shape_of(many.to_event(1).log_prob, np.ones((2, 2))) == ()
    assert shape_of(many.expand((6, 2)).log_prob, np.ones(2)) == (6, 2)


@pytest.mark.parametrize("form", ["one", "many"])
def test_distributions_are_trees(form):
    if form == "one":
        make = lambda loc: tg.TruncatedNormal(loc, 2.0, -1.0, None)
        locs, x = jnp.array([0.0, 0.5, 1.0]), jnp.asarray(0.3)
    else:
        make = lambda loc: vector_law(loc, low=-1.0, max_stderr=0.5)
        locs, x = jnp.array([[0.0, 0.0], [0.5, 1.0], [1.0, -1.0]]), jnp.array([0.3, 0.1])
    alone = jnp.stack([make(loc).log_prob(x) for loc in locs])
    truncated = make(locs[0])
    density = jax.jit(lambda truncated, x: truncated.log_prob(x))
    assert density(truncated, x) == pytest.approx(float(alone[0]), rel=1e-13)
    leaves, tree = jax.tree.flatten(truncated)
    again = tree.unflatten(leaves)
    assert again.log_prob(x) == alone[0] and again.batch_shape == truncated.batch_shape
    assert pickle.loads(pickle.dumps(truncated)).log_prob(x) == alone[0]
    # A closed-over distribution keeps no tracer of the first trace.
    jax.jit(lambda x: truncated.log_prob(x))(x)
    assert truncated.log_prob(x) == pytest.approx(float(alone[0]), rel=1e-13)
    distributions = jax.vmap(make)(locs)
    assert np.allclose(
        jax.vmap(lambda truncated: truncated.log_prob(x))(distributions), alone, rtol=1e-13
    )
    promoted = promote_batch_shape(distributions)
    assert promoted.batch_shape == (3,)
    assert np.allclose(promoted.log_prob(x), alone, rtol=1e-13)


def test_numbers_and_lists_follow_the_arrays():
    zero, one = np.float32(0.0), np.float32(1.0)
    truncated = tg.TruncatedNormal(zero, one, 30.0, [31.0, 32.0])
    vector = vector_law(np.zeros(2, np.float32), [[1, 0.5], [0.5, 1]], low=0.0, high=[1, INF])
    for function in (
        lambda: truncated.sample(jax.random.key(0)),
        lambda: truncated.mean,
        lambda: truncated.log_prob(one),
        lambda: truncated.log_prob([30.1, 30.2]),
        lambda: truncated.cdf(30.1),
        lambda: truncated.icdf(0.5),
        lambda: vector.log_prob([0.5, 0.5]),
        lambda: vector.high,
    ):
        assert jax.eval_shape(function).dtype == np.float32
    assert tg.TruncatedNormal(0, 1, 0, 3).loc.dtype == np.float64
    assert tg.TruncatedNormal(zero, np.ones(2)).loc.dtype == np.float64


def test_without_float64():
    with jax.enable_x64(False):
        truncated = tg.TruncatedNormal(0.0, 1.0, 30, 31)
        x = truncated.sample(jax.random.key(0), (100,))
        assert x.dtype == np.float32 and np.all((np.asarray(x) >= 30) & (np.asarray(x) <= 31))
        vector = jax.value_and_grad(vector_law([0.0, 0.0], jnp.eye(2), low=5.0).log_prob)
        value, slope = jax.jit(vector)(jnp.array([5.1, 5.2]))
        assert value.dtype == slope.dtype == np.float32 and np.isfinite(slope).all()


# --- Many dimensions ------------------------------------------------------------------------------


def test_the_vector_distribution_is_the_normal_distribution_over_its_probability():
    loc, x = jnp.array([0.2, -0.1]), jnp.array([[0.5, 0.7], [1.5, 3.0], [2.5, 0.0]])
    region = tg.Box([0.0, -INF], [2.0, 5.0])
    truncated = tg.TruncatedMultivariateNormal(loc, PAIR, region=region, validate_args=False)
    share = tg.log_probability(loc, PAIR, region)
    base = dist.MultivariateNormal(loc, PAIR).log_prob(x) - share.log_prob
    assert np.allclose(truncated.log_prob(x), jnp.where(region.contains(x), base, -INF), rtol=1e-13)
    assert truncated.log_normalizer == share
    limits = {"low": [0.0, -INF], "high": [2.0, 5.0]}
    again = tg.TruncatedMultivariateNormal(loc, PAIR, **limits, validate_args=False)
    assert np.array_equal(again.log_prob(x), truncated.log_prob(x))


def test_every_form_of_a_covariance():
    loc, x, factor = jnp.array([0.2, -0.1]), jnp.array([0.5, 0.7]), jnp.linalg.cholesky(PAIR)
    whole = vector_law(loc, low=0.0).log_prob(x)
    for form in [
        {"covariance_matrix": PAIR.tolist()},
        {"covariance_matrix": tg.ScaleTril(factor)},
        {"precision_matrix": jnp.linalg.inv(PAIR)},
        {"scale_tril": factor},
    ]:
        truncated = tg.TruncatedMultivariateNormal(loc, **form, low=0.0, method=Given())
        assert np.allclose(truncated.covariance_matrix, PAIR) and np.allclose(
            truncated.scale_tril, factor
        )
        assert np.allclose(truncated.precision_matrix, jnp.linalg.inv(PAIR))
        assert truncated.log_prob(x) == pytest.approx(float(whole), rel=1e-12)
    for form in (tg.LowRank([[1.0], [0.5]], [0.5, 0.5]), tg.Markov([0.5], 1.0, 1.0)):
        dense = vector_law(loc, form.covariance_matrix, low=0.0).log_prob(x)
        assert vector_law(loc, form, low=0.0).log_prob(x) == pytest.approx(float(dense), rel=1e-12)


def test_a_vector_without_limits_is_the_normal_distribution():
    d = 4
    covariance = jnp.eye(d) + 0.5
    x = jax.random.normal(jax.random.key(0), (10, d))
    theirs = dist.MultivariateNormal(jnp.ones(d), covariance).log_prob(x)
    ours = vector_law(1.0, covariance)
    assert ours.loc.shape == (d,) and ours.log_normalizer == (0.0, 0.0)
    assert np.allclose(ours.log_prob(x), theirs, rtol=4e-16, atol=4e-16)
    traced = jax.jit(lambda low: vector_law(1.0, covariance, low=low).log_prob(x))
    assert np.allclose(traced(jnp.full(d, -INF)), theirs, rtol=1e-15, atol=1e-15)


def test_one_coordinate_is_right_in_any_tail():
    truncated = tg.TruncatedMultivariateNormal([0.0], [[4.0]], low=18.0, high=20.0)
    one = tg.TruncatedNormal(0.0, 2.0, 18.0, 20.0)
    assert truncated.log_prob(jnp.array([18.1])) == one.log_prob(18.1)
    assert truncated.entropy() == one.entropy()
    share, truth = one.log_normalizer, Truth(0.0, 2.0, 18.0, 20.0).log_mass
    assert share.log_prob == pytest.approx(float(truth), rel=1e-14) and share.stderr == 0.0
    assert truncated.log_normalizer.log_prob == pytest.approx(float(truth), rel=1e-14)


def test_mean_variance_and_entropy_after_truncation():
    truncated = tg.TruncatedMultivariateNormal([0.0, 0.0], PAIR, low=[0.0, -INF])
    first, slope = tg.TruncatedNormal(0.0, 1.0, 0.0, None), 0.3
    spread = float(first.variance)
    rest = 2.0 - slope**2  # the variance of the second given the first, which no limit touches
    covariance = [[spread, slope * spread], [slope * spread, rest + slope**2 * spread]]
    assert np.allclose(truncated.mean, [first.mean, slope * first.mean], rtol=1e-12)
    assert np.allclose(truncated.moments.covariance, covariance, rtol=1e-12)
    assert np.allclose(truncated.variance, np.diag(covariance), rtol=1e-12)
    entropy = float(first.entropy()) + 0.5 * math.log(2 * math.pi * math.e * rest)
    assert truncated.entropy() == pytest.approx(entropy, rel=1e-12)
    assert np.array_equal(truncated.covariance_matrix, PAIR)  # the parameter


@pytest.mark.slow
def test_draws_of_a_vector_lie_inside():
    truncated = tg.TruncatedMultivariateNormal([0.0, 0.0], PAIR, low=[0.0, -INF], high=[1.0, 0.0])
    draws = truncated.sample(jax.random.key(0), (10, 50))
    assert draws.shape == (10, 50, 2) and bool(truncated.support(draws).all())
    assert shape_of(lambda: truncated.expand((6, 2)).sample(jax.random.key(0), (5,))) == (
        5,
        6,
        2,
        2,
    )
    error = (draws.mean((0, 1)) - truncated.mean) / jnp.sqrt(truncated.variance / 500)
    assert np.all(np.abs(error) < 5.2)  # one false alarm in 1e6 for each coordinate, nearly


def test_the_leaves_of_a_method_go_with_the_distribution():
    truncated = vector_law(np.zeros(2), method=Given(stderr=jnp.asarray(0.25)), low=0.0)
    plan = {id(leaf) for leaf in jax.tree.leaves(truncated.method)}
    assert plan and plan <= {id(leaf) for leaf in jax.tree.leaves(truncated)}
    assert jax.jit(lambda truncated: truncated.log_normalizer.stderr)(truncated) == 0.25


@pytest.mark.slow
def test_a_held_plan_makes_one_smooth_density():
    covariance, region = np.eye(4) + 0.5, tg.Box(np.zeros(4), INF)
    method = tg.Separation(num_points=64, num_replicates=4).hold(np.zeros(4), covariance, region)

    @jax.jit
    @jax.value_and_grad
    def density(loc):
        truncated = tg.TruncatedMultivariateNormal(loc, covariance, region=region, method=method)
        return truncated.log_prob(np.ones(4))

    loc = np.full(4, 0.1)
    _, slope = density(loc)
    h = 1e-5
    for direction in np.eye(4):
        ends = [float(density(loc + way * h * direction)[0]) for way in (1, -1)]
        assert slope @ direction == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-6)


def test_constants_are_normalised_once_even_in_a_model():
    seen = []

    @jax.jit
    def density(x):
        truncated = vector_law(np.zeros(2), low=0.0)
        seen.append(truncated.log_normalizer)
        assert truncated.log_normalizer is seen[-1]
        return truncated.log_prob(x)

    value = density(np.ones(2))
    assert not isinstance(seen[0].log_prob, jax.core.Tracer)
    assert value == pytest.approx(float(vector_law(np.zeros(2), low=0.0).log_prob(np.ones(2))))


def test_the_error_of_the_normaliser_is_known_and_can_be_bounded():
    method, x = Given(stderr=0.01), np.ones(2)
    assert vector_law(x, low=0.0, method=method).log_normalizer.stderr == 0.01

    def density(loc, max_stderr, stderr=0.01):
        truncated = vector_law(loc, low=0.0, method=Given(stderr=stderr), max_stderr=max_stderr)
        return truncated.log_prob(x)

    assert density(x, 0.02) == density(x, None)
    refusal = "standard error of the log normaliser is {} more than max_stderr=0.005"
    for stderr, said in [(0.01, "0.01,"), (np.nan, "nan,"), (np.inf, "inf,")]:
        with pytest.raises(ValueError, match=refusal.format(said)):
            density(x, 0.005, stderr)
    traced = jax.jit(density, static_argnums=1)
    assert np.isfinite(traced(x, 0.02)) and np.isnan(traced(x, 0.005))


def test_a_normaliser_that_rests_on_nothing_is_refused_unless_it_is_asked_for():
    x = np.ones(2)

    def density(loc, stderr, max_stderr=None):
        truncated = vector_law(loc, low=0.0, method=Given(stderr=stderr), max_stderr=max_stderr)
        return truncated.log_prob(x)

    with pytest.raises(
        ValueError, match="too few samples were effective to estimate it. Give the method"
    ):
        density(x, np.inf)
    known = density(x, 0.01)
    assert density(x, np.nan) == known  # unknown is not the same as baseless
    assert density(x, np.inf, np.inf) == density(x, np.nan, np.inf) == known
    traced = jax.jit(density, static_argnums=2)
    assert np.isnan(traced(x, np.inf)) and traced(x, np.inf, np.inf) == known
    # In a batch the row that rests on nothing is NaN, and the other one stays.
    rows = jax.jit(jax.vmap(density))(jnp.stack([x, x]), jnp.array([np.inf, 0.01]))
    np.testing.assert_array_equal(rows, [np.nan, known])


def test_a_mean_that_rests_on_nothing_is_refused_unless_it_is_asked_for():
    """Eight samples, none of which lies that far out."""
    few = tg.SoftMonteCarlo(num_samples=8, edge=tg.Tanh(1.0))

    def truncated(loc, max_stderr=None):
        return vector_law(loc, low=9.0, method=few, max_stderr=max_stderr)

    assert np.all(np.isinf(truncated(0.0).moments.mean_stderr))
    for name in ("mean", "variance"):
        with pytest.raises(ValueError, match=f"{name} is inf: too few samples were effective"):
            getattr(truncated(0.0), name)
        traced = jax.jit(lambda loc, most: getattr(truncated(loc, most), name), static_argnums=1)  # noqa: B023
        assert np.all(np.isnan(traced(jnp.zeros(2), None)))
        assert np.all(np.isfinite(traced(jnp.zeros(2), np.inf)))


# --- Models ---------------------------------------------------------------------------------------


def model(observed=None):
    loc = numpyro.sample("loc", tg.TruncatedNormal(0.0, 1.0, -2.0, None))
    place = numpyro.sample(
        "place",
        tg.TruncatedMultivariateNormal([0.0, 0.0], PAIR, low=[0.0, -INF], high=[1.0, 0.0]),
    )
    with numpyro.plate("rows", 3):
        truncated = tg.TruncatedNormal(loc + place.sum(), 1.0, 0.0, [1.0, 2.0, INF])
        numpyro.sample("observed", truncated, obs=observed)


OBSERVED = jnp.array([0.5, 1.5, 4.0])


def test_a_model_has_their_density():
    params = {"loc": jnp.asarray(0.3), "place": jnp.array([0.5, -0.2])}
    total, _ = log_density(model, (OBSERVED,), {}, params)
    vector = tg.TruncatedMultivariateNormal([0.0, 0.0], PAIR, low=[0.0, -INF], high=[1.0, 0.0])
    parts = [
        tg.TruncatedNormal(0.0, 1.0, -2.0, None).log_prob(0.3),
        vector.log_prob(params["place"]),
        tg.TruncatedNormal(0.6, 1.0, 0.0, [1.0, 2.0, INF]).log_prob(OBSERVED).sum(),
    ]
    assert total == pytest.approx(float(sum(parts)), rel=1e-13)


def test_a_potential_has_the_slope_of_its_differences():
    potential = jax.jit(
        jax.value_and_grad(lambda free: potential_energy(model, (OBSERVED,), {}, free))
    )
    free = {"loc": jnp.asarray(-0.4), "place": jnp.array([0.3, 1.2])}
    _, slope = potential(free)
    h = 1e-5
    for name, index in [("loc", ()), ("place", 0), ("place", 1)]:
        ends = [potential({**free, name: free[name].at[index].add(way * h)})[0] for way in (1, -1)]
        assert slope[name][index] == pytest.approx(float(ends[0] - ends[1]) / (2 * h), rel=1e-7)
    for far in (-700.0, 700.0):
        value, slope = potential({"loc": jnp.asarray(far), "place": jnp.array([far, far])})
        assert np.isfinite(value) and all(np.isfinite(s).all() for s in slope.values())


def test_a_seeded_model_draws_within_the_limits():
    with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.trace() as sites:
        loc = numpyro.sample("loc", tg.TruncatedNormal(0.0, 1.0, -2.0, None))
        with numpyro.plate("rows", 3):
            numpyro.sample("x", tg.TruncatedNormal(loc, 1.0, 0.0, [1.0, 2.0, INF]))
    assert sites["loc"]["value"] >= -2.0
    assert np.all(sites["x"]["fn"].support(sites["x"]["value"]))
    with pytest.raises(ValueError, match="seed the model"):
        numpyro.sample("x", tg.TruncatedNormal())


@pytest.mark.slow
def test_a_guide_takes_a_step():
    def model(observed):
        place = numpyro.sample("place", vector_law([0.0, 0.0], low=[0.0, -INF], high=[1.0, 0.0]))
        truncated = tg.TruncatedNormal(place.sum(), 1.0, 0.0, [1.0, 2.0, INF])
        numpyro.sample("observed", truncated.to_event(1), obs=observed)

    guide = autoguide.AutoNormal(model, init_loc_fn=numpyro.infer.init_to_feasible)
    svi = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO())
    state = svi.init(jax.random.key(0), OBSERVED)
    state, loss = jax.jit(svi.update)(state, OBSERVED)
    assert np.isfinite(loss)
    median = guide.median(svi.get_params(state))["place"]
    assert 0 < median[0] < 1 and median[1] < 0


@pytest.mark.slow
def test_nuts_draws_a_latent_truncated_distribution():
    def moving(observed):
        loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
        numpyro.sample("above", tg.TruncatedNormal(0.0, 1.0, loc, None))
        rows = tg.TruncatedNormal(0.0, 1.0, loc * jnp.ones(2))
        numpyro.sample("rows", rows.to_event(1))
        pair = tg.TruncatedMultivariateNormal([0.0, 0.0], PAIR, low=jnp.stack([loc, -INF]))
        numpyro.sample("pair", pair)

    chain = MCMC(NUTS(moving), num_warmup=300, num_samples=1000, progress_bar=False)
    chain.run(jax.random.key(0), None, extra_fields=("diverging",))
    draws = chain.get_samples()
    assert not chain.get_extra_fields()["diverging"].any()
    # The limits move with another site: each draw must be brought back through its own.
    for place in (draws["above"], draws["pair"][:, 0], *draws["rows"].T):
        assert np.all(place >= draws["loc"])
    assert abs(draws["loc"].mean()) < 0.2 and abs(draws["loc"].std() - 1.0) < 0.2


def test_traced_nonsense_is_nan():
    """Traced values cannot be refused; a plausible number would be believed."""
    key = jax.random.key(0)

    @jax.jit
    def of_scale(scale):
        truncated = tg.TruncatedNormal(0.0, scale, low=0.0)
        parts = (
            truncated.log_prob(0.5),
            truncated.cdf(0.5),
            truncated.icdf(0.5),
            truncated.mean,
            truncated.variance,
        )
        return jnp.stack(
            [*parts, truncated.entropy(), truncated.sample(key), truncated.log_normalizer.log_prob]
        )

    @jax.jit
    def of_high(high):
        truncated = tg.TruncatedNormal(0.0, 1.0, low=0.0, high=high)
        parts = (
            truncated.log_prob(0.5),
            truncated.cdf(-2.0),
            truncated.cdf(3.0),
            truncated.icdf(0.0),
            truncated.mean,
        )
        return jnp.stack([*parts, truncated.sample(key)])

    assert np.isfinite(of_scale(1.0)).all() and np.isfinite(of_high(1.0)[1:]).all()
    assert np.isnan(of_scale(-1.0)).all() and np.isnan(of_high(-1.0)).all()


def test_icdf_of_the_ends_is_the_limits():
    truncated = tg.TruncatedNormal(0.0, 1.0, low=0.0)
    assert truncated.icdf(0.0) == 0.0 and truncated.icdf(1.0) == jnp.inf
    assert tg.TruncatedNormal(0.0, 1.0, high=1 / 3).icdf(jnp.array([0.0, 1.0])).tolist() == [
        -jnp.inf,
        1 / 3,
    ]


def test_complex_parameters_are_refused():
    with pytest.raises(ValueError, match="real numbers are expected, got dtype complex"):
        tg.TruncatedNormal(1j, 1.0, low=0.0)
    with pytest.raises(ValueError, match="real numbers are expected, got"):
        vector_law(np.array([1j, 0.0]), low=0.0)


def test_draws_of_many_dimensions_are_constants_in_a_variational_bound():
    """A distribution without `rsample` gives detached draws, as NumPyro expects of it."""

    def model():
        numpyro.sample("x", tg.TruncatedMultivariateNormal(np.zeros(2), np.eye(2), low=0.0))

    def guide():
        loc = numpyro.param("loc", jnp.array([0.5, 1.0]))
        numpyro.sample("x", tg.TruncatedMultivariateNormal(loc, np.eye(2), low=0.0))

    def loss(params):
        return Trace_ELBO().loss(jax.random.key(0), params, model, guide)

    slope = jax.grad(loss)({"loc": jnp.array([0.5, 1.0])})["loc"]
    assert np.isfinite(slope).all() and np.all(slope != 0)
    drawn = lambda loc: vector_law(loc, low=0.0).sample(jax.random.key(0)).sum()
    np.testing.assert_array_equal(jax.grad(drawn)(jnp.zeros(2)), 0.0)


def test_distributions_without_rows():
    truncated = tg.TruncatedMultivariateNormal(jnp.zeros((0, 2)), jnp.eye(2), low=0.0)
    assert truncated.log_prob(jnp.ones(2)).shape == (0,)
    assert truncated.sample(jax.random.key(0), (3,)).shape == (3, 0, 2)
    assert tg.TruncatedNormal(jnp.zeros(0), 1.0, low=0.0).log_prob(jnp.ones(1)).shape == (0,)
