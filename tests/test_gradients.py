"""Gradients of log P against values from one-dimensional quadrature over the common factor.

The slope in the covariance is the symmetric one: each of the two entries of a pair has half.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import problem

import truncgauss as tg

FACTOR_5_COVARIANCE = np.array([
    [-0.227100677439, 0.094510543015, 0.098611946220, 0.102336349171, 0.106395850543],
    [0.094510543015, -0.125285486076, 0.135702159860, 0.123433119226, 0.113574555950],
    [0.098611946220, 0.135702159860, -0.194798263146, 0.112222512149, 0.107618589859],
    [0.102336349171, 0.123433119226, 0.112222512149, -0.212065711534, 0.106686822072],
    [0.106395850543, 0.113574555950, 0.107618589859, 0.106686822072, -0.222314083461],
])  # fmt: skip
FACTOR_5_HIGH = np.array([
    0.252340821840, 0.572294255827, 0.416755620271, 0.366241717488,
    0.326593609733,
])  # fmt: skip
FACTOR_20_LOC = np.array([
    -0.060989278895, -0.025760077648, 0.001555780891, -0.117835985312,
    0.026665913901, -0.023474148364, -0.098247615124, -0.087825959590,
    -0.119154809344, -0.059980782637, -0.110758252430, -0.005015480260,
    -0.016987943111, -0.087939935134, -0.096501367595, -0.068176423754,
    -0.031215855084, -0.037795835645, -0.124678561978, -0.007808929986,
])  # fmt: skip
FACTOR_20_LOW = np.array([
    -0.176984305495, -0.163898093604, -0.145388953720, -0.175865587266,
    -0.115334257965, -0.162662136546, -0.179144836893, -0.179707303638,
    -0.175549179959, -0.176761074358, -0.177365623503, -0.150680979559,
    -0.158875268829, -0.179705891047, -0.179299239382, -0.178319424517,
    -0.166649265892, -0.169606030422, -0.174104078961, -0.152746785713,
])  # fmt: skip
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


@pytest.mark.slow
def test_one_factor_and_its_orthant():
    loc, covariance, low, high = slopes("factor-5-orth", tg.Separation())
    np.testing.assert_allclose(covariance, FACTOR_5_COVARIANCE, atol=2e-4)
    np.testing.assert_allclose(high, FACTOR_5_HIGH, atol=2e-4)
    np.testing.assert_allclose(loc, -FACTOR_5_HIGH, atol=2e-4)
    np.testing.assert_array_equal(low, 0.0)  # no limit, no slope


@pytest.mark.slow
def test_one_factor_in_twenty_dimensions():
    loc, _, low, _ = slopes("factor-20-box", tg.Separation())
    np.testing.assert_allclose(loc, FACTOR_20_LOC, atol=2e-4)
    np.testing.assert_allclose(low, FACTOR_20_LOW, atol=2e-4)
