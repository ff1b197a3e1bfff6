"""Inputs at the edge of what a Gaussian is: each has a plain answer, and derivatives that exist.

A coordinate of variance 0 is its mean: inside its limits it changes nothing, outside the
probability is 0. Two copies of a coordinate share the intersection of their limits. Constraints
without effect, an empty batch and a Gaussian without coordinates have answers too. The truth of
each comes from the smaller problem that is left, in closed form or by SciPy; nothing is random
within these tests, so none has a false alarm by chance.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import truncgauss as tg

INF = np.inf
SLOW = pytest.mark.slow
PRECISIONS = pytest.mark.parametrize(
    "dtype",
    [pytest.param(np.float32, marks=SLOW, id="float32"), pytest.param(np.float64, id="float64")],
)
TOLERANCE = {np.float32: 2e-5, np.float64: 1e-9}
LOC, VARIANCE = 0.25, 2.0
LOW, HIGH = -0.5, 1.0  # of the coordinate that varies
TRUNCATED = stats.truncnorm(
    (LOW - LOC) / VARIANCE**0.5, (HIGH - LOC) / VARIANCE**0.5, LOC, VARIANCE**0.5
)


def log_mass(loc):
    """log P(LOW <= X <= HIGH) of the coordinate that varies."""
    a, b = ((x - loc) / VARIANCE**0.5 for x in (LOW, HIGH))
    return np.log(stats.norm.cdf(b) - stats.norm.cdf(a))


SLOPE = (log_mass(LOC + 1e-6) - log_mass(LOC - 1e-6)) / 2e-6


def fixed_but_one(d, position, dtype):
    """Zero variances everywhere but at one position, the fixed ones inside their limits."""
    one = np.arange(d) == position
    loc = np.where(one, LOC, 0.1 * np.arange(d))
    covariance = np.diag(np.where(one, VARIANCE, 0.0))
    low = np.where(one, LOW, np.where(np.arange(d) % 2, -INF, loc - 1.0))
    return [x.astype(dtype) for x in (loc, covariance, low, np.where(one, HIGH, loc + 2.0))]


def log_prob(loc, covariance, low, high, method=tg.Automatic()):
    return tg.log_probability(loc, covariance, tg.Box(low, high), method).log_prob


def transformed(function):
    """A function of arrays plain, under jit, and in a batch of two under vmap."""
    twice = lambda *arrays: jax.vmap(function)(
        *(jnp.stack([x, x]) for x in map(jnp.asarray, arrays))
    )
    return {"plain": function, "jit": jax.jit(function), "vmap": lambda *a: twice(*a)[1]}


TRANSFORMS = pytest.mark.parametrize(
    "transform", [pytest.param("plain", marks=SLOW), "jit", pytest.param("vmap", marks=SLOW)]
)


def dimensions(*every):
    """All of them, but two alone in the quick tests."""
    return pytest.mark.parametrize(
        "d", [pytest.param(d, marks=() if d == 2 else SLOW) for d in every]
    )


POSITIONS = [
    pytest.param(
        d, position, marks=() if (d, position) == (2, 1) else SLOW, id=f"{position}-of-{d}"
    )
    for d in (1, 2, 3, 4, 6)
    for position in sorted({0, d // 2, d - 1})
]


@PRECISIONS
@TRANSFORMS
@pytest.mark.parametrize(("d", "position"), POSITIONS)
def test_variances_of_zero(d, position, transform, dtype):
    """The probability is that of the coordinate that varies."""
    arguments = fixed_but_one(d, position, dtype)
    got = transformed(log_prob)[transform](*arguments)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, log_mass(LOC), atol=TOLERANCE[dtype])


@PRECISIONS
@TRANSFORMS
@pytest.mark.parametrize(("d", "position"), POSITIONS)
def test_slopes_beside_variances_of_zero(d, position, transform, dtype):
    """A fixed coordinate inside its limits may move without effect."""
    arguments = fixed_but_one(d, position, dtype)
    slope = transformed(jax.grad(log_prob))[transform](*arguments)
    wanted = np.where(np.arange(d) == position, SLOPE, 0.0)
    np.testing.assert_allclose(slope, wanted, atol=100 * TOLERANCE[dtype])


@SLOW
@PRECISIONS
@pytest.mark.parametrize(("d", "position"), POSITIONS)
def test_a_factor_with_rows_of_zeros(d, position, dtype):
    loc, covariance, low, high = fixed_but_one(d, position, dtype)
    factor = np.sqrt(covariance)

    def of_factor(loc, factor):
        return tg.log_probability(loc, tg.ScaleTril(factor), tg.Box(low, high)).log_prob

    value, slope = jax.value_and_grad(of_factor)(loc, factor)
    np.testing.assert_allclose(value, log_mass(LOC), atol=TOLERANCE[dtype])
    wanted = np.where(np.arange(d) == position, SLOPE, 0.0)
    np.testing.assert_allclose(slope, wanted, atol=100 * TOLERANCE[dtype])


@PRECISIONS
@pytest.mark.parametrize(("d", "position"), POSITIONS)
def test_moments_beside_variances_of_zero(d, position, dtype):
    loc, covariance, low, high = fixed_but_one(d, position, dtype)
    moments = tg.truncated_moments(loc, covariance, tg.Box(low, high))
    one = np.arange(d) == position
    allowed = 1e-2 if d > 3 else 100 * TOLERANCE[dtype]  # drawn in many dimensions
    np.testing.assert_allclose(moments.mean, np.where(one, TRUNCATED.mean(), loc), atol=allowed)
    wanted = np.diag(np.where(one, TRUNCATED.var(), 0.0))
    np.testing.assert_allclose(moments.covariance, wanted, atol=allowed)


@SLOW
@PRECISIONS
@pytest.mark.parametrize(("d", "position"), POSITIONS)
def test_draws_beside_variances_of_zero(d, position, dtype):
    loc, covariance, low, high = fixed_but_one(d, position, dtype)
    region = tg.Box(low, high)
    draws = tg.truncated_samples(jax.random.key(1), loc, covariance, region, 400)
    assert region.contains(draws).all()
    fixed = np.arange(d) != position
    np.testing.assert_allclose(draws[:, fixed], np.tile(loc[fixed], (400, 1)), atol=1e-6)
    # One key, hence one number, decided once: within five standard errors.
    assert abs(draws[:, position].mean() - TRUNCATED.mean()) < 5 * TRUNCATED.std() / 20


@PRECISIONS
@TRANSFORMS
@dimensions(1, 2, 4)
def test_a_fixed_coordinate_outside_its_limits(d, transform, dtype):
    loc, covariance, low, high = fixed_but_one(d, d, dtype)
    low[0], high[0] = 1.0, 2.0
    assert transformed(log_prob)[transform](loc, covariance, low, high) == -INF


COPIES = {
    2: (np.array([[1.0, 1.0], [1.0, 1.0]]), [0, 0]),
    3: (np.array([[1.0, 1.0, 0.5], [1.0, 1.0, 0.5], [0.5, 0.5, 1.0]]), [0, 0, 1]),
    4: (np.kron(np.array([[1.0, 0.5], [0.5, 1.0]]), np.ones((2, 2))), [0, 0, 1, 1]),
}
COPIED = dimensions(2, 3, 4)


def intersected(d, dtype):
    """Limits of copies, their covariance, and the limits of the variables that they copy."""
    covariance, of = COPIES[d]
    low, high = np.array([-1.0, -0.5, -2.0, 0.0])[:d], np.array([1.0, 2.0, 0.75, INF])[:d]
    kept = range(max(of) + 1)
    below = [max(low[k] for k in range(d) if of[k] == j) for j in kept]
    above = [min(high[k] for k in range(d) if of[k] == j) for j in kept]
    return [np.zeros(d, dtype), *(x.astype(dtype) for x in (covariance, low, high))], below, above


def rectangle(low, high):
    """log P of the variables that are copied: of one, or of two with correlation 1/2."""
    if len(low) == 1:
        return np.log(stats.norm.cdf(high[0]) - stats.norm.cdf(low[0]))
    given = lambda limit, x: stats.norm.cdf((limit - 0.5 * x) / 0.75**0.5)
    density = lambda x: stats.norm.pdf(x) * (given(high[1], x) - given(low[1], x))
    return np.log(integrate.quad(density, low[0], high[0], epsabs=1e-13)[0])


@PRECISIONS
@COPIED
def test_copies_share_the_intersection_of_their_limits(d, dtype):
    arguments, below, above = intersected(d, dtype)
    value, stderr = tg.log_probability(*arguments[:2], tg.Box(*arguments[2:]))
    assert np.isfinite(stderr)
    error = abs(float(value) - rectangle(below, above))
    assert error <= 5 * stderr + max(TOLERANCE[dtype], 1e-7)


@PRECISIONS
@TRANSFORMS
@COPIED
def test_copies_under_transformations_are_right_or_say_so(d, transform, dtype):
    """Traced numbers hide that a matrix is singular: then stderr is wide, inf or nan."""
    arguments, below, above = intersected(d, dtype)
    whole = lambda *a: jnp.stack(tg.log_probability(a[0], a[1], tg.Box(a[2], a[3])))
    value, stderr = map(float, transformed(whole)[transform](*arguments))
    error = abs(value - rectangle(below, above))
    honest = not np.isfinite(stderr) or error <= 5 * stderr + 1e-3
    assert honest, (value, stderr, error)


@SLOW
@PRECISIONS
@TRANSFORMS
@dimensions(1, 2, 3, 5)
def test_constraints_without_effect(d, transform, dtype):
    """No limits at all, and limits forty standard deviations away."""
    covariance = 0.5 * np.eye(d, dtype=dtype) + 0.5
    free = np.full(d, INF, dtype)
    for limits in (free, np.full(d, 40, dtype)):
        arguments = np.zeros(d, dtype), covariance, -limits, limits
        assert transformed(log_prob)[transform](*arguments) == pytest.approx(0, abs=1e-6)
        slopes = jax.grad(log_prob, (0, 1, 2, 3))(*arguments)
        for slope in slopes:
            np.testing.assert_allclose(slope, 0, atol=1e-6)


@PRECISIONS
@TRANSFORMS
def test_a_polyhedron_without_rows_or_with_rows_of_zeros(transform, dtype):
    """Nothing is asked; or 0 is asked to lie within limits, which it does, or does not."""
    loc, covariance = np.zeros(2, dtype), np.eye(2, dtype=dtype)

    def of_rows(matrix, low, high):
        return tg.log_probability(loc, covariance, tg.Polyhedron(matrix, low, high)).log_prob

    ask = transformed(of_rows)[transform]
    empty = np.zeros(0, dtype)
    assert ask(np.zeros((0, 2), dtype), empty, empty) == 0.0
    rows = np.array([[0.0, 0.0], [1.0, 1.0]], dtype)
    half = np.array([-1.0, 0.0], dtype), np.array([1.0, INF], dtype)
    np.testing.assert_allclose(ask(rows, *half), -np.log(2), atol=TOLERANCE[dtype])
    half[0][0] = 0.5
    assert ask(rows, *half) == -INF


@PRECISIONS
@pytest.mark.parametrize(
    "jitted", [pytest.param(False, marks=SLOW, id="plain"), pytest.param(True, id="jit")]
)
@dimensions(1, 2, 3, 5)
def test_empty_batches(d, jitted, dtype):
    """No rows give no numbers, whatever leads."""
    covariance = np.eye(d, dtype=dtype) + 0.5
    function = jax.jit(log_prob) if jitted else log_prob
    loc, limit = np.zeros((0, d), dtype), np.ones(d, dtype)
    got = function(loc, covariance, -limit, limit)
    assert got.shape == (0,) and got.dtype == dtype
    many = np.zeros((3, 0, d), dtype)
    assert function(np.zeros(d, dtype), covariance, many - 1, many + 1).shape == (3, 0)
    slope = jax.grad(lambda loc: function(loc, covariance, -limit, limit).sum())(loc)
    assert slope.shape == (0, d)
    mapped = jax.vmap(lambda loc: function(loc, covariance, -limit, limit))
    assert mapped(np.zeros((0, d), dtype)).shape == (0,)
    moments = tg.truncated_moments(loc, covariance, tg.Box(-limit, limit))
    assert moments.mean.shape == (0, d) and moments.covariance.shape == (0, d, d)
    draws = tg.truncated_samples(jax.random.key(0), loc, covariance, tg.Box(-limit, limit), 4)
    assert draws.shape == (4, 0, d)


@PRECISIONS
@TRANSFORMS
def test_no_dimensions(transform, dtype):
    """The empty product is 1, or the error says what was expected; nothing in between."""
    none = np.zeros(0, dtype)
    arguments = none, np.zeros((0, 0), dtype), none, none
    try:
        value = transformed(log_prob)[transform](*arguments)
    except ValueError as error:
        assert "dimension" in str(error)
    else:
        assert value == 0.0
