"""Gradients of log P against values from one-dimensional quadrature over the common factor.

The slope in the covariance is the symmetric one: each of the two entries of a pair has half.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import problem

import truncgauss as tg

# name: slope in low, high, loc (equal in all coordinates), in a variance and in a covariance
EQUAL = {
    "equi-5-box": (
        -0.150725622739, 0.215631138535, -0.064905515797,
        -0.322309115903, 0.050724664791,
    ),
    "equi-20-orth": (
        0.0, 0.133584344344, -0.133584344344,
        -0.142036192722, 0.014951178181,
    ),
}  # fmt: skip


def slopes(name, method):
    """Gradients of log P in loc, covariance, low and high, by a method that sees a dense matrix."""
    p = problem(name)
    arrays = (jnp.asarray(x) for x in (p.loc, p.covariance(), p.low, p.high))

    def log_prob(loc, covariance, low, high):
        return tg.log_probability(loc, covariance, tg.Box(low, high), method).log_prob

    return jax.jit(jax.grad(log_prob, argnums=(0, 1, 2, 3)))(*arrays)


@pytest.mark.parametrize(
    ("name", "num_points", "tolerance"),
    [("equi-5-box", 1024, 1e-5), pytest.param("equi-20-orth", 4096, 5e-4, marks=pytest.mark.slow)],
)
def test_equal_correlations(name, num_points, tolerance):
    low, high, loc, variance, covariance = EQUAL[name]
    got_loc, got_covariance, got_low, got_high = slopes(name, tg.Separation(num_points))
    d = len(got_loc)
    np.testing.assert_allclose(got_low, low, atol=tolerance)
    np.testing.assert_allclose(got_high, high, atol=tolerance)
    np.testing.assert_allclose(got_loc, loc, atol=tolerance)
    truth = np.where(np.eye(d, dtype=bool), variance, covariance)
    np.testing.assert_allclose(got_covariance, truth, atol=tolerance)
