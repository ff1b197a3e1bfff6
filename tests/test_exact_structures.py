"""Exact for one factor and for Markov chains: closed forms, and each beside the other."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import truncgauss as tg
from tests.exact_rows import (
    EXACT,
    log_prob,
    rows_of_slopes,
)

INF = math.inf


def one_factor(d, correlation, sign=1.0):
    loading = sign * jnp.full((d, 1), math.sqrt(correlation))
    return tg.LowRank(loading, jnp.full(d, 1.0 - correlation))


@pytest.mark.quick("covariance1--1.0-inf--0.7141099217502043")
@pytest.mark.parametrize(
    "covariance, low, high, truth",
    [
        (one_factor(1000, 0.5), 0.0, INF, -math.log(1001)),
        (one_factor(1000, 0.9, -1.0), -1.0, INF, -0.7141099217502042577),
        (one_factor(25, 0.5), 5.0, INF, -38.0365506527319941210),
    ],
)
def test_one_factor(covariance, low, high, truth):
    d = covariance.dimension
    value = log_prob(np.zeros(d), covariance, jnp.full(d, low), jnp.full(d, high))
    np.testing.assert_allclose(value, truth, rtol=1e-13, atol=1e-13)


@pytest.mark.full
def test_one_factor_beside_its_matrix():
    covariance = tg.LowRank([[1.0], [-2.0], [3.0]], [1e-2, 1e-6, 1.0])
    loc, low, high = (jnp.array(x) for x in ([0.1, 0.2, 0.3], [-1.0, -0.5, -0.3], [0.3, 2.5, INF]))
    of_factor = jax.jit(jax.value_and_grad(log_prob, (0, 1, 2, 3)))
    value, (by_loc, by_factor, by_low, by_high) = of_factor(loc, covariance, low, high)
    rows = (x[None] for x in (loc, covariance.covariance_matrix, low, high))
    other, (loc, matrix, low, high) = (
        jax.tree.map(lambda x: x[0], part) for part in rows_of_slopes(*rows)
    )
    np.testing.assert_allclose(value, other, rtol=1e-12)
    loadings = 2 * matrix @ covariance.cov_factor
    pairs = [(by_loc, loc), (by_low, low), (by_high, high), (by_factor.cov_factor, loadings)]
    for one, two in [*pairs, (by_factor.cov_diag, jnp.diagonal(matrix))]:
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-7)


def chain_of(d, coefficient):
    """Stationary autoregression; a random walk for 1."""
    noise = 1.0 if coefficient == 1.0 else math.sqrt(1 - coefficient**2)
    return tg.Markov(jnp.full(d - 1, coefficient), noise, 1.0)


# The last two by another transfer operator, to about 1e-12.
@pytest.mark.quick("0.0-10.0-inf--5323.128515051247", "0.7-4.0-inf--234.70892930123804")
@pytest.mark.parametrize(
    "coefficient, low, high, truth",
    [
        (1.0, 0.0, INF, math.log(math.comb(200, 100)) - 200 * math.log(2)),
        (0.0, 10.0, INF, 100 * -53.23128515051247),
        (0.7, -1.5, 1.0, -15.176594589097565),
        (0.7, 4.0, INF, -234.70892930123804),
    ],
)
def test_chains(coefficient, low, high, truth):
    """Random walk, independent and autoregressive, each of a hundred places."""
    chain = chain_of(100, coefficient)
    box = tg.Box(jnp.full(100, low), jnp.full(100, high))
    value, stderr = tg.log_probability(np.zeros(100), chain, box, method=EXACT)
    np.testing.assert_allclose(value, truth, rtol=1e-13, atol=3e-12)
    assert stderr <= 1e-10


@pytest.mark.full
def test_chain_beside_one_factor():
    """Two coordinates that share a factor are a chain of one step; two more stand alone."""
    factor = tg.LowRank([[2.0], [0.0], [0.0], [-1.5]], [1.0, 0.4, 0.3, 0.5])
    # X1 and X4 share the factor; given X1, X4 is regressed on it; the others are independent.
    slope = -3.0 / 5.0
    chain = tg.Markov(
        [slope, 0.0, 0.0], [math.sqrt(2.75 - slope**2 * 5.0), 0.4**0.5, 0.3**0.5], 5.0**0.5
    )
    loc, low, high = (
        jnp.array(x) for x in ([0.1, 0.2, 0.3, 0.4], [-1.0, -0.5, -0.3, 1.0], [0.3, 2.5, INF, 9.0])
    )
    order = jnp.array([0, 3, 1, 2])
    slopes = jax.jit(jax.value_and_grad(log_prob, (0, 2, 3)))
    value, by_factor = slopes(loc, factor, low, high)
    other, by_chain = slopes(loc[order], chain, low[order], high[order])
    np.testing.assert_allclose(value, other, rtol=1e-13)
    for one, two in zip(by_factor, by_chain):
        np.testing.assert_allclose(one[order], two, rtol=1e-10, atol=1e-11)
    for covariance in (factor, chain):
        root = np.asarray(covariance.scale_tril)
        np.testing.assert_allclose(root @ root.T, covariance.covariance_matrix, rtol=1e-14)


def test_chain_that_no_grid_follows():
    chain = tg.Markov([1.0, 1.0, 1.0], [1e-3, 1e-3, 5.0], 1.0)
    box = tg.Box(np.zeros(4), np.full(4, INF))
    assert tg.log_probability(np.zeros(4), chain, box, method=EXACT).stderr == INF


def test_a_chain_keeps_the_digits_of_narrow_intervals():
    """Where all are narrow, log P is the log density at the middle plus the logs of the widths."""
    d, rng = 6, np.random.default_rng(4)
    loc, low = rng.normal(size=d), rng.normal(size=d)
    high = low + 10.0 ** rng.uniform(-9, -7, d)
    scale = math.sqrt(1.3)
    chain = tg.Markov(np.full(d - 1, 0.8), np.full(d - 1, 0.6 * scale), scale)
    covariance = chain.covariance_matrix
    middle, widths = 0.5 * (low + high), high - low
    truth = stats.multivariate_normal(loc, covariance).logpdf(middle) + np.log(widths).sum()
    found = tg.log_probability(loc, chain, tg.Box(low, high), tg.Exact())
    np.testing.assert_allclose(found.log_prob, truth, rtol=1e-13)
    assert found.stderr == 0
    moments = tg.truncated_moments(loc, chain, tg.Box(low, high), tg.Exact())
    uniform = np.diag(moments.covariance) / (widths**2 / 12)
    np.testing.assert_allclose(uniform, 1.0, rtol=1e-7)


def test_a_chain_in_a_far_tail():
    """log P, from -3e7 to -1e10, is that at the most likely point, by least squares within limits.

    The rest is logs of widths. Cavities by differences were NaN; centres that had not converged
    left the grid beside the mode.
    """
    transition = np.array([[0.5, 0.999, 0.9, 0.999], [0.171, -0.209, 0.888, 0.878]])
    noise = np.array([[1.09, 0.65, 0.77, 1.23], [1.936, 0.764, 1.486, 0.669]])
    first = np.array([0.58, 1.298])
    low = np.array(
        [[10610.02, -24614.2391675, -INF, -INF, -83888.9], [-INF, 3294.06, -INF, -INF, -INF]]
    )
    high = np.array(
        [[10610.03, -24614.239166, INF, INF, INF], [-4979.5, 3701.9, -5367.0, INF, INF]]
    )
    for row in zip(transition, noise, first, low, high):
        a, scale, start, low, high = row
        whiten = (np.eye(5) - np.diag(a, -1)) / np.append(start, scale)[:, None]
        nearest = optimize.lsq_linear(whiten, np.zeros(5), (low, high), "bvls", tol=1e-14).x
        height = -0.5 * np.sum((whiten @ nearest) ** 2)
        covariance = tg.Markov(a, scale, start)
        result = tg.log_probability(np.zeros(5), covariance, tg.Box(low, high), EXACT)
        assert height < -2e7 and abs(result.log_prob - height) < 100.0
