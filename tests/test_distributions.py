"""The truncated distributions for NumPyro: values, supports, shapes, and models that use them."""

import math
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.batch_util import promote_batch_shape

import truncgauss as tg
from tests.truncated_vectors import Given, vector_law
from truncgauss.distributions.supports import Between

INF = math.inf
DTYPES = [np.float64, np.float32]


WEDGE = tg.Polyhedron([[1.0, 1.0], [1.0, -1.0]], [0.0, 0.0], [INF, INF])


def test_the_distributions_behave_as_numpyros_own():
    assert tg.TruncatedNormal().has_rsample
    assert not vector_law(0.0).has_rsample and not vector_law(0.0).is_discrete
    assert tg.TruncatedNormal.support.event_dim == 0
    assert tg.TruncatedMultivariateNormal.support.event_dim == 1


# --- One dimension --------------------------------------------------------------------------------


def outside_law(parameters, d, validate):
    loc, scale, low, high = parameters
    if d == 0:
        return tg.TruncatedNormal(loc, scale, low, high, validate_args=validate)
    limits = {"low": low, "high": high, "validate_args": validate}
    method = tg.Automatic() if d == 1 else Given()
    return vector_law(jnp.full(d, loc), scale**2 * jnp.eye(d), method=method, **limits)


@pytest.mark.quick("0")
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


NO_LIMITS_AT = {"low": -INF, "high": [1.0, INF]}
MATRIX = np.array([[1.0, 0.4], [0.4, 1.0]])
AT_INFINITY = {
    "normal": lambda c: tg.TruncatedMultivariateNormal(c[0], MATRIX, **NO_LIMITS_AT),
    "polyhedron": lambda c: tg.TruncatedMultivariateNormal(c[0], MATRIX, region=WEDGE),
    "t": lambda c: tg.TruncatedMultivariateStudentT(3.0, c[0], MATRIX, **NO_LIMITS_AT),
    "mixture": lambda c: tg.TruncatedMixture([0.3, 0.7], c, [MATRIX] * 2, **NO_LIMITS_AT),
    "hole": lambda c: tg.TruncatedMixture([0.3, 0.7], c, [MATRIX] * 2, region=tg.Outside(SQUARE)),
    "curve": lambda c: tg.TruncatedMixture([0.3, 0.7], c, [MATRIX] * 2, region=CURVE),
}
SQUARE = tg.Box([-1.0, -1.0], [1.0, 1.0])
CURVE = tg.Selection(lambda x: jax.nn.sigmoid(3.0 * x[0]), 2)


@pytest.mark.quick("curve")
@pytest.mark.parametrize("name", AT_INFINITY)
def test_no_density_is_at_infinity_and_nan_stays(name):
    def density(centres, x):
        law = AT_INFINITY[name](centres)
        law._validate_args = False  # which would warn
        return law.log_prob(x)

    centres, nan = np.array([[0.0, 0.2], [0.5, 0.0]]), np.nan
    points = np.array([[-INF, -INF], [-INF, 0.5], [0.5, INF], [INF, -INF], [nan, INF], [nan, 0.5]])
    points = np.concatenate([points, [[0.9, -0.2], [0.2, 1.5]]])
    each = jax.vmap(jax.value_and_grad(density, (0, 1)), (None, 0))
    value, slopes = jax.jit(each)(centres, points)
    assert np.all(value[:4] == -INF) and np.all(np.isnan(value[4:6]))
    assert np.isfinite(value[6:]).any() and not any(np.any(slope[:6]) for slope in slopes)
    assert all(np.isfinite(slope).all() for slope in slopes)
    np.testing.assert_allclose(density(centres, points), value, rtol=1e-14)
    small = density(centres.astype(np.float32), points.astype(np.float32))
    np.testing.assert_array_equal(small[:6], value[:6].astype(np.float32))


def test_a_negative_scale_that_is_not_validated_has_no_density():
    assert np.isnan(tg.TruncatedNormal(0.0, -1.0, validate_args=False).log_prob(0.0))


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


@pytest.mark.quick("one")
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


# --- Models ---------------------------------------------------------------------------------------


@pytest.mark.full
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


@pytest.mark.full
def test_distributions_without_rows():
    truncated = tg.TruncatedMultivariateNormal(jnp.zeros((0, 2)), jnp.eye(2), low=0.0)
    assert truncated.log_prob(jnp.ones(2)).shape == (0,)
    assert truncated.sample(jax.random.key(0), (3,)).shape == (3, 0, 2)
    assert tg.TruncatedNormal(jnp.zeros(0), 1.0, low=0.0).log_prob(jnp.ones(1)).shape == (0,)
