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
FULL = pytest.mark.full
PRECISIONS = pytest.mark.parametrize(
    "dtype",
    [pytest.param(np.float32, marks=FULL, id="float32"), pytest.param(np.float64, id="float64")],
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


def fixed_but_one(d, dtype):
    """Rows of zero variances but at one position, or nowhere, the fixed ones inside their limits.

    And where each row varies. A last row is fixed with its first coordinate outside its limits.
    """
    position = np.array([*sorted({0, d // 2, d - 1}), d, d])
    one = np.arange(d) == position[:, None]
    loc = np.where(one, LOC, 0.1 * np.arange(d))
    covariance = np.where(one, VARIANCE, 0.0)[..., None] * np.eye(d)
    low = np.where(one, LOW, np.where(np.arange(d) % 2, -INF, loc - 1.0))
    high = np.where(one, HIGH, loc + 2.0)
    low[-1, 0], high[-1, 0] = 1.0, 2.0
    return [x.astype(dtype) for x in (loc, covariance, low, high)], one


def log_prob(loc, covariance, low, high, method=tg.Automatic()):
    return tg.log_probability(loc, covariance, tg.Box(low, high), method).log_prob


def with_slopes(function):
    """A function of rows with its slopes in the first argument."""

    def both(*arrays):
        value, pull = jax.vjp(lambda first: function(first, *arrays[1:]), arrays[0])
        return value, pull(jnp.ones_like(value))[0]

    return both


def transformed(function):
    """A function of rows plain, under jit, and row by row under vmap."""
    return {"plain": function, "jit": jax.jit(function), "vmap": jax.vmap(function)}


TRANSFORMS = pytest.mark.parametrize(
    "transform", [pytest.param("plain", marks=FULL), "jit", pytest.param("vmap", marks=FULL)]
)


def dimensions(*every):
    """All of them, but two alone in the quick tests."""
    return pytest.mark.parametrize(
        "d", [pytest.param(d, marks=() if d == 2 else FULL) for d in every]
    )


@PRECISIONS
@TRANSFORMS
@dimensions(1, 2, 4, 6)
def test_variances_of_zero(d, transform, dtype):
    """The probability is that of the coordinate that varies; a fixed one may move inside."""
    arguments, one = fixed_but_one(d, dtype)
    value, slope = transformed(with_slopes(log_prob))[transform](*arguments)
    assert value.dtype == dtype
    wanted = np.where(one.any(1), log_mass(LOC), 0.0)
    np.testing.assert_allclose(value[:-1], wanted[:-1], atol=TOLERANCE[dtype])
    assert value[-1] == -INF
    wanted = np.where(one, SLOPE, 0.0)
    np.testing.assert_allclose(slope[:-1], wanted[:-1], atol=100 * TOLERANCE[dtype])


@FULL
@PRECISIONS
@dimensions(2, 6)
def test_a_factor_with_rows_of_zeros(d, dtype):
    (loc, covariance, low, high), one = fixed_but_one(d, dtype)

    def of_factor(loc, factor):
        return tg.log_probability(loc, tg.ScaleTril(factor), tg.Box(low, high)).log_prob

    value, slope = with_slopes(of_factor)(loc, np.sqrt(covariance))
    wanted = np.where(one.any(1), log_mass(LOC), 0.0)
    np.testing.assert_allclose(value[:-1], wanted[:-1], atol=TOLERANCE[dtype])
    wanted = np.where(one, SLOPE, 0.0)
    np.testing.assert_allclose(slope[:-1], wanted[:-1], atol=100 * TOLERANCE[dtype])


@PRECISIONS
@dimensions(2, 3, 6)
def test_moments_beside_variances_of_zero(d, dtype):
    arguments, one = fixed_but_one(d, dtype)
    (loc, covariance, low, high), one = [x[:-2] for x in arguments], one[:-2]
    moments = tg.truncated_moments(loc, covariance, tg.Box(low, high))
    allowed = 1e-2 if d > 3 else 100 * TOLERANCE[dtype]  # drawn in many dimensions
    np.testing.assert_allclose(moments.mean, np.where(one, TRUNCATED.mean(), loc), atol=allowed)
    wanted = np.where(one, TRUNCATED.var(), 0.0)[..., None] * np.eye(d)
    np.testing.assert_allclose(moments.covariance, wanted, atol=allowed)


@FULL
@PRECISIONS
@pytest.mark.parametrize("d", [1, 2, 6])
def test_draws_beside_variances_of_zero(d, dtype):
    arguments, _ = fixed_but_one(d, dtype)
    position = d // 2
    loc, covariance, low, high = (x[min(1, d - 1)] for x in arguments)
    region = tg.Box(low, high)
    draws = tg.truncated_samples(jax.random.key(1), loc, covariance, region, 400)
    assert region.contains(draws).all()
    fixed = np.arange(d) != position
    np.testing.assert_allclose(draws[:, fixed], np.tile(loc[fixed], (400, 1)), atol=1e-6)
    # One key, hence one number, decided once: within five standard errors.
    assert abs(draws[:, position].mean() - TRUNCATED.mean()) < 5 * TRUNCATED.std() / 20


COPIES = {
    2: (np.array([[1.0, 1.0], [1.0, 1.0]]), [0, 0]),
    3: (np.array([[1.0, 1.0, 0.5], [1.0, 1.0, 0.5], [0.5, 0.5, 1.0]]), [0, 0, 1]),
    4: (np.kron(np.array([[1.0, 0.5], [0.5, 1.0]]), np.ones((2, 2))), [0, 0, 1, 1]),
}


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
@TRANSFORMS
@dimensions(2, 3, 4)
def test_copies_share_the_intersection_of_their_limits(d, transform, dtype):
    """Traced numbers hide that a matrix is singular: then stderr is wide, inf or nan."""
    arguments, below, above = intersected(d, dtype)
    whole = lambda *a: jnp.stack(tg.log_probability(a[0], a[1], tg.Box(a[2], a[3])), -1)
    found = transformed(whole)[transform](*(np.stack([x, x]) for x in arguments))
    for value, stderr in np.asarray(found, float):
        error = abs(value - rectangle(below, above))
        seen = transform == "plain"
        allowed = max(TOLERANCE[dtype], 1e-7) if seen else 1e-3
        unknown = not np.isfinite(stderr) and not seen
        assert unknown or error <= 5 * stderr + allowed, (value, stderr, error)


@FULL
@PRECISIONS
@TRANSFORMS
@pytest.mark.parametrize("d", [1, 5])
def test_constraints_without_effect(d, transform, dtype):
    """No limits at all, and limits forty standard deviations away."""
    covariance = np.tile(0.5 * np.eye(d, dtype=dtype) + 0.5, (2, 1, 1))
    limits = np.stack([np.full(d, INF, dtype), np.full(d, 40, dtype)])
    slopes = lambda *a: jax.vjp(log_prob, *a)[1](jnp.zeros(a[0].shape[:-1], dtype) + 1)
    both = lambda *a: (log_prob(*a), slopes(*a))
    arguments = np.zeros((2, d), dtype), covariance, -limits, limits
    for found in jax.tree.leaves(transformed(both)[transform](*arguments)):
        np.testing.assert_allclose(found, 0, atol=1e-6)


@PRECISIONS
@TRANSFORMS
def test_a_polyhedron_without_rows_or_with_rows_of_zeros(transform, dtype):
    """Nothing is asked; or 0 is asked to lie within limits, which it does, or does not."""
    loc, covariance = np.zeros(2, dtype), np.eye(2, dtype=dtype)

    def of_rows(matrix, low, high):
        return tg.log_probability(loc, covariance, tg.Polyhedron(matrix, low, high)).log_prob

    ask = transformed(of_rows)[transform]
    if transform == "vmap":
        of_batch, ask = ask, lambda *arrays: of_batch(*(np.stack([x, x]) for x in arrays))[1]
    empty = np.zeros(0, dtype)
    assert ask(np.zeros((0, 2), dtype), empty, empty) == 0.0
    rows = np.array([[0.0, 0.0], [1.0, 1.0]], dtype)
    half = np.array([-1.0, 0.0], dtype), np.array([1.0, INF], dtype)
    np.testing.assert_allclose(ask(rows, *half), -np.log(2), atol=TOLERANCE[dtype])
    half[0][0] = 0.5
    assert ask(rows, *half) == -INF
