"""Numbers of Python, NumPy and JAX stand for the same problem, and none is changed afterwards."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from truncgauss.arrays import keys
from truncgauss.arrays.pytrees import MOST_ON_HOST

KINDS = {"lists": lambda x: x.tolist(), "NumPy": np.asarray, "JAX": jnp.asarray}
LOC = np.array([0.1, -0.2, 0.3, 0.0, 0.4])
MATRIX = np.eye(5) + 0.4 * np.exp(-((np.arange(5)[:, None] - np.arange(5)) ** 2) / 3)
LOW, HIGH = np.array([-1.0, -np.inf, 0.0, -0.5, 1.0]), np.array([1.0, 0.5, np.inf, 2.0, 3.0])
FAST = tg.Automatic(rtol=0.01)


def inputs(d):
    return LOC[:d], MATRIX[:d, :d], LOW[:d], HIGH[:d]


def log_prob(loc, matrix, low, high, method=FAST):
    return tg.log_probability(loc, matrix, tg.Box(low, high), method).log_prob


@pytest.mark.quick("1")
@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_values_and_gradients_are_the_same_to_the_bit(d, compilations):
    arrays = [jnp.asarray(x) for x in inputs(d)]
    expected = log_prob(*arrays)
    slopes = jax.grad(log_prob, argnums=(0, 1, 2, 3))(*arrays)
    before = len(compilations)
    for kinds in itertools.islice(itertools.product(KINDS.values(), repeat=4), 0, None, 7):
        given = [kind(x) for kind, x in zip(kinds, inputs(d))]
        assert float(log_prob(*given)) == float(expected)
    assert len(compilations) == before
    found = jax.grad(log_prob, argnums=(0, 1, 2, 3))(*inputs(d))
    jax.tree.map(np.testing.assert_array_equal, found, slopes)


def test_rows_of_numpy_are_those_of_jax():
    rows = np.linspace(-1.0, 1.0, 6)[:, None] + LOC[:2]
    _, matrix, low, high = inputs(2)
    expected = log_prob(jnp.asarray(rows), matrix, low, high)
    np.testing.assert_array_equal(log_prob(rows, matrix, low, high), expected)
    wide = np.broadcast_to(low, (6, 2))
    of_each = log_prob(jnp.asarray(rows), matrix, jnp.asarray(wide), high)
    np.testing.assert_array_equal(log_prob(rows.tolist(), matrix.tolist(), wide, high), of_each)
    np.testing.assert_allclose(of_each, expected, rtol=1e-15)
    one_by_one = jax.vmap(lambda loc: log_prob(loc, matrix, low, high))(rows)
    np.testing.assert_allclose(one_by_one, expected, rtol=1e-13)


@pytest.mark.parametrize("method", [tg.Exact(), tg.SoftMonteCarlo(num_samples=64)])
def test_methods_by_name_take_them_too(method):
    given = inputs(2)
    expected = log_prob(*map(jnp.asarray, given), method)
    assert log_prob(*given, method) == log_prob(*(x.tolist() for x in given), method) == expected


def test_a_box_keeps_its_numbers():
    low, high = LOW[:2].copy(), HIGH[:2].copy()
    box = tg.Box(low, high)
    low[0], high[1] = -9.0, 9.0
    np.testing.assert_array_equal(box.low, LOW[:2])
    np.testing.assert_array_equal(box.high, HIGH[:2])
    with pytest.raises((ValueError, TypeError)):
        box.low[0] = -9.0


def test_integers_and_single_precision_get_their_dtypes():
    whole = log_prob([0, 0], [[2, 1], [1, 2]], [-1, 0], [1, 3])
    assert whole == log_prob([0.0, 0.0], [[2.0, 1.0], [1.0, 2.0]], [-1.0, 0.0], [1.0, 3.0])
    single = [x.astype(np.float32) for x in inputs(2)]
    assert log_prob(*single).dtype == jnp.float32
    assert log_prob(single[0], *inputs(2)[1:]).dtype == jnp.float64


SHARES = np.full((5, 1), 0.5)
COVARIANCES = {
    "matrix": MATRIX,
    "ScaleTril": tg.ScaleTril(np.linalg.cholesky(MATRIX)),
    "identity": np.eye(5),
    "one factor": tg.LowRank(SHARES, np.ones(5)),
    "two factors": tg.LowRank(np.hstack([SHARES, MATRIX[:, :1]]), np.ones(5)),
    "three factors": tg.LowRank(MATRIX[:, :3], np.ones(5)),
    "Markov": tg.Markov(np.full(4, 0.5), np.full(4, 0.8), 1.0),
}


@pytest.mark.parametrize("name", COVARIANCES)
def test_every_covariance_keeps_single_precision(name):
    given = LOC, COVARIANCES[name], tg.Box(LOW, HIGH)
    single = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), given)
    shape = jax.eval_shape(jax.value_and_grad(lambda *p: tg.log_probability(*p)[0]), *single)
    assert {x.dtype for x in jax.tree.leaves(shape)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("d", [1, 2])
def test_numbers_of_another_byte_order_are_read(d):
    expected = log_prob(*inputs(d))
    assert log_prob(*(x.astype(">f8") for x in inputs(d))) == expected
    assert log_prob(*(x.astype("<f8") for x in inputs(d))) == expected


@pytest.mark.full
def test_the_default_key_does_not_come_from_a_trace(monkeypatch):
    monkeypatch.setattr(keys, "_DEFAULT_KEYS", {})
    mesh, split = tg.parallel.device_mesh(2), jax.sharding.PartitionSpec(tg.parallel.AXIS)
    means = jnp.zeros((2, 4))
    covariance, low, high = np.eye(4) + 0.3, np.full(4, -1.0), np.ones(4)
    method = tg.Separation(num_points=16, num_replicates=2)
    each = lambda means: log_prob(means, covariance, low, high, method)
    shared = jax.shard_map(each, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    np.testing.assert_allclose(shared(means), each(means), rtol=1e-12)


def test_many_numbers_are_kept_by_jax():
    box = tg.Box(np.zeros(MOST_ON_HOST + 1), 1.0)
    assert isinstance(box.low, jax.Array)


def in_covariance(x):
    return tg.log_probability(
        np.zeros(2), x * np.eye(2, dtype=np.asarray(x).dtype), tg.Box([0, 0], 1)
    )


TAKERS = {
    "loc": lambda x: tg.log_probability([x], [[1.0]], tg.Box([0.0], [1.0])),
    "covariance": in_covariance,
    "Box: high": lambda x: tg.log_probability([0.0], [[1.0]], tg.Box([0.0], x)),
    "Polyhedron: matrix": lambda x: tg.Polyhedron([[x]], [0.0], [1.0]),
    "df": lambda x: tg.log_probability([0.0], [[1.0]], tg.Box([0.0], [1.0]), df=x),
    "low": lambda x: tg.TruncatedMultivariateNormal([0.0], [[1.0]], low=-x),
    "scale": lambda x: tg.TruncatedNormal(0.0, x),
    "width": lambda x: tg.Probit(x),
}


@pytest.mark.parametrize("name", TAKERS)
def test_numbers_that_jax_does_not_have_are_refused_by_a_sentence(name):
    if np.longdouble != np.float64 and name != "df":
        with pytest.raises(TypeError, match="must be numbers in float64 or float32, got float128"):
            TAKERS[name](np.longdouble(1))
    if name not in ("covariance", "Polyhedron: matrix"):
        with pytest.raises(ValueError, match="must be numbers below 1.8e308.*number of 1329 bits"):
            TAKERS[name](10**400)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_any_argument_of_few_digits_is_refused_with_a_covariance(dtype):
    arrays = np.zeros(2), np.eye(2), np.zeros(2), np.ones(2)
    rows = tg.Observations.exact(np.zeros((1, 2)))
    of_rows = lambda loc, covariance, *limits: tg.log_likelihood(rows, loc, covariance)
    moments = lambda loc, covariance, *limits: tg.truncated_moments(
        loc, covariance, tg.Box(*limits)
    )
    takers = {log_prob: 3, jax.jit(log_prob): 3, moments: 3, of_rows: 2}
    for taker, k in ((taker, k) for taker, count in takers.items() for k in range(count)):
        some = [x.astype(dtype) if min(i, 2) == k else x for i, x in enumerate(arrays)]
        with pytest.raises(ValueError, match="has too few digits for a covariance"):
            taker(*some)


@pytest.mark.parametrize("size", [2**40, 2**70, -(2**70)])
def test_large_whole_numbers_are_read_as_floats(size):
    for value in (size, [size], [size, 0.5]):
        np.testing.assert_array_equal(tg.Box(-jnp.inf, value).high, np.asarray(value, float))
    with jax.enable_x64(False):
        edge = tg.Ball([size], 1.0).center
    np.testing.assert_array_equal(edge, np.float32([size]))


def test_a_level_below_one_half_is_taken_with_a_warning():
    """It may be the probability that an interval leaves the truth out, as other packages ask."""
    x = np.arange(9.0)
    fit = tg.fit_regression(x**2, {"one": np.ones(9), "x": x % 4}, num_profiles=0)
    name = fit.names[0]
    calls = {
        "wald": lambda level: fit.wald(level=level),
        "profile": lambda level: fit.profile(name, level=level),
        "margins": lambda level: fit.margins(level=level),
        "predict": lambda level: fit.predict(level=level),
        "simultaneous": lambda level: tg.simultaneous(np.zeros(2), np.eye(2), level=level),
    }
    for what, call in calls.items():
        with pytest.warns(UserWarning, match=f"^{what}: level=0.05 asks .* 5 %. For 95 % .* 0.95."):
            call(0.05)
        call(0.5)  # without a warning, which would be an error
    low, high = fit.wald(level=0.5)[0]
    assert low < fit.estimates[0] < high
