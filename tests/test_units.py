"""Units: what a user measures in metres or in light years has the same log probability.

Coordinates are multiplied by powers of two, which rounds nothing, so that answers may differ by
the rounding of the way alone, however large the factor: from 1e-15 to 1e15 in float32 and from
1e-100 to 1e100 in float64, the same for all coordinates or another for each. With one key the
random methods draw the same points, hence no test here has a false alarm by chance.
"""

from typing import NamedTuple

import jax
import numpy as np
import pytest

import truncgauss as tg
from tests.exact_rows import log_prob_by

INF = np.inf
LARGEST = {np.float32: 50, np.float64: 332}  # exponents of two: 1e15 and 1e100
TOLERANCE = {np.float32: 2e-4, np.float64: 1e-9}
FULL = pytest.mark.full
TYPES = [np.float32, pytest.param(np.float64, marks=FULL)]
PRECISIONS = pytest.mark.parametrize("dtype", TYPES, ids=["float32", "float64"])
METHODS = {
    "default": tg.Automatic(),
    "exact": tg.Exact(),
    "separation": tg.Separation(256, 4),
    "minimax": tg.Separation(256, 4, twisted=False),
    "untilted": tg.Separation(256, 4, tilted=False),
    "sequential": tg.SequentialMonteCarlo(256, 4),
    "propagation": tg.ExpectationPropagation(),
    "counting": tg.SoftMonteCarlo(512, 4, tg.Hard()),
}
UP_TO_THREE = {"exact", "counting"}  # no sample of many falls into the slab, which comes fourth
EACH = [(name, 3 if name in UP_TO_THREE else 5) for name in METHODS]  # and the largest dimension
MOMENTS = [case for case in EACH if case[0] not in ("default", "untilted", "minimax")]
MOMENTS += [("default", 2)]
# The gradient of `sequential` is checked by its moments: resampling jumps with the rounding.
SLOPES = [case for case in EACH if case[0] != "sequential"] + [("default", 1), ("default", 3)]
SLOPES = [pytest.param(*case, marks=FULL) for case in SLOPES] + [("default", 2)]


class Case(NamedTuple):
    """Arrays of a Gaussian and a box."""

    loc: np.ndarray
    covariance: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def scaled(self, c) -> "Case":
        """The same problem, each coordinate in units of 1 / c."""
        c = c.astype(self.loc.dtype)
        return Case(self.loc * c, self.covariance * c[:, None] * c, self.low * c, self.high * c)


def case(d, dtype) -> Case:
    """Moderate correlations; limits below, above, two-sided, and a slab."""
    factor = np.tril(np.random.RandomState(d).normal(0, 0.5, (d, d)), -1) + np.eye(d)
    low = np.array([0.5, -INF, -1.0, 0.25, -2.0])[:d]
    high = np.array([INF, 0.5, 1.0, 0.2505, INF])[:d]
    loc = np.array([0.25, -0.5, 0.0, 1.0, 0.75])[:d]
    return Case(*(x.astype(dtype) for x in (loc, factor @ factor.T, low, high)))


def scalings(d, dtype):
    """Powers of two: all small, all large, and each another."""
    most = LARGEST[dtype]
    exponents = np.random.RandomState(1).randint(-most, most + 1, (3, d)).astype(float)
    exponents[0, 0] = -most
    exponents[1, -1] = most
    both = np.array([np.full(d, -most), np.full(d, most)], float)
    return [2.0**row for row in np.concatenate([both, exponents])]


def assert_close(got, wanted, tolerance, told):
    size = np.max(np.abs(wanted), initial=1e-3)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * size, err_msg=str(told))


@PRECISIONS
@pytest.mark.parametrize(("name", "d"), SLOPES)
def test_values_and_gradients(name, d, dtype):
    base, function = case(d, dtype), log_prob_by(METHODS[name])
    function = jax.jit(jax.value_and_grad(function, argnums=(0, 1, 2, 3)))
    value, slopes = function(*base)
    assert np.isfinite(value)
    for c in scalings(d, dtype):
        new, scaled = function(*base.scaled(c))
        told = (c, float(value), float(new))
        assert new.dtype == dtype
        np.testing.assert_allclose(new, value, rtol=0.1 * TOLERANCE[dtype], err_msg=str(told))
        for slope, other in zip(slopes, scaled):
            # In float64, where no power of two overflows.
            other = np.asarray(other, float)
            back = other * c if other.ndim == 1 else other * c[:, None] * c
            assert_close(back, slope, TOLERANCE[dtype], told)


@FULL
@PRECISIONS
@pytest.mark.parametrize(("name", "d"), [*EACH, ("default", 2), ("default", 3)])
def test_values_and_errors_where_numbers_are_known(name, d, dtype):
    """Outside of a trace more is decided by the numbers, and a plan can be held."""
    base, method = case(d, dtype), METHODS[name]

    def answer(numbers):
        loc, covariance, low, high = numbers
        box = tg.Box(low, high)
        held = method.hold(loc, covariance, box)
        plain = tg.log_probability(loc, covariance, box, method)
        return [*plain, *tg.log_probability(loc, covariance, box, held)]

    wanted = answer(base)
    size = 0.1 * TOLERANCE[dtype]
    for c in scalings(d, dtype):
        got = answer(base.scaled(c))
        for one, other in zip(got, wanted):
            np.testing.assert_allclose(one, other, rtol=size, atol=size, err_msg=str(c))


@FULL
@PRECISIONS
@pytest.mark.parametrize(("name", "d"), MOMENTS)
def test_moments(name, d, dtype):
    base = case(d, dtype)
    function = jax.jit(
        lambda loc, covariance, low, high: tg.truncated_moments(
            loc, covariance, tg.Box(low, high), METHODS[name]
        )
    )
    wanted = function(*base)
    spread = np.sqrt(np.diag(np.asarray(wanted.covariance, float)))
    assert np.all(spread > 0)
    for c in scalings(d, dtype):
        got = function(*base.scaled(c))
        mean = np.asarray(got.mean, float) / c
        matrix = np.asarray(got.covariance, float) / c[:, None] / c
        allowed = TOLERANCE[dtype]
        size = np.abs(np.asarray(wanted.mean, float)) + spread
        np.testing.assert_array_less(np.abs(mean - wanted.mean), allowed * size, str(c))
        relative = (matrix - wanted.covariance) / spread[:, None] / spread
        np.testing.assert_array_less(np.abs(relative), 10 * allowed, str(c))


@FULL
@PRECISIONS
def test_draws(dtype, d=5):
    """The same key gives the same draws, in the new units."""
    base, key = case(d, dtype), jax.random.key(3)
    draw = lambda new: tg.truncated_samples(
        key, new.loc, new.covariance, tg.Box(new.low, new.high), 200
    )
    wanted = np.asarray(draw(base), float)
    assert np.isfinite(wanted).all()
    size = np.abs(wanted).max(0) + wanted.std(0)
    for c in scalings(d, dtype):
        new = base.scaled(c)
        got = draw(new)
        assert tg.Box(new.low, new.high).contains(got).all()
        back = np.asarray(got, float) / c
        np.testing.assert_array_less(np.abs(back - wanted) / size, TOLERANCE[dtype], str(c))


@FULL
@PRECISIONS
@pytest.mark.parametrize("form", ["scale_tril", "low_rank", "polyhedron"])
def test_other_forms(form, dtype):
    """Rows of a factor scale with their coordinate, columns of a polyhedron against it."""
    d = 3
    base = case(d, dtype)
    rows = np.random.RandomState(5).normal(0, 1, (4, d)).astype(dtype)
    factor = np.linalg.cholesky(base.covariance.astype(float)).astype(dtype)
    low, high = np.array([-1, -INF, 0, -2], dtype), np.array([1, 0.5, INF, 1], dtype)

    @jax.jit
    def log_prob(base, factor, rows, diagonal):
        box = tg.Box(base.low, base.high)
        if form == "scale_tril":
            return tg.log_probability(base.loc, tg.ScaleTril(factor), box).log_prob
        if form == "low_rank":
            covariance = tg.LowRank(factor[:, :1], diagonal)
            return tg.log_probability(base.loc, covariance, box).log_prob
        region = tg.Polyhedron(rows, low, high)
        return tg.log_probability(base.loc, base.covariance, region).log_prob

    wanted = log_prob(base, factor, rows, np.full(d, 0.5, dtype))
    assert np.isfinite(wanted)
    for c in scalings(d, dtype):
        c = c.astype(dtype)
        got = log_prob(base.scaled(c), factor * c[:, None], rows / c, dtype(0.5) * c * c)
        np.testing.assert_allclose(got, wanted, rtol=0.1 * TOLERANCE[dtype], err_msg=str(c))


@FULL
@PRECISIONS
@pytest.mark.parametrize("d", [1, 2])
def test_densities(d, dtype):
    """A density in new units is smaller by their product."""
    base = case(d, dtype)
    x = np.array([0.75, 0.25], dtype)[:d]

    @jax.jit
    def log_density(base, x):
        law = tg.TruncatedMultivariateNormal(
            base.loc, base.covariance, low=base.low, high=base.high
        )
        return law.log_prob(x)

    wanted = log_density(base, x)
    for c in scalings(d, dtype):
        got = log_density(base.scaled(c), x * c.astype(dtype))
        shift = np.sum(np.log(c))
        size = TOLERANCE[dtype] * (1 + np.abs(np.log(c)).sum())
        np.testing.assert_allclose(got, wanted - shift, atol=size, rtol=0, err_msg=str(c))
