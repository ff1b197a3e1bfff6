"""Structure that an explicit covariance hides: found where it is, and only there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import autoregression
from scipy import linalg

import truncgauss as tg
from truncgauss.gaussian.covariances import CovarianceMatrix, LowRank, Markov
from truncgauss.gaussian.problem import as_problem
from truncgauss.probability.structure import independent_parts, structured

INF = np.inf


def scaled(matrix, seed=0):
    """The same correlations with variances of very different sizes."""
    scale = 10.0 ** np.random.default_rng(seed).uniform(-3, 3, len(matrix))
    return jnp.asarray(matrix * np.outer(scale, scale))


def common_factor(d, seed=0):
    loadings = np.random.default_rng(seed).uniform(-0.95, 0.95, d)
    return np.outer(loadings, loadings) + np.diag(1 - loadings**2)


def test_chains_walks_and_common_factors_are_recognised_and_what_only_looks_alike_is_not():
    d = 6
    walk = 0.5 + np.minimum.outer(np.arange(1.0, 9.0), np.arange(1.0, 9.0))
    chains = [*(autoregression(d, rho) for rho in (0.7, -0.7, 0.999)), walk]
    cases = [(Markov, scaled(chain)) for chain in chains]
    cases += [(LowRank, scaled(common_factor(7, seed), seed)) for seed in range(20)]
    cases += [(LowRank, common_factor(d) * (1 - 1e-7) + 1e-7 * np.eye(d))]  # duplicates
    nearly = autoregression(d, 0.7)
    nearly[0, 5] = nearly[5, 0] = nearly[0, 5] * (1 + 1e-9)
    random = np.corrcoef(np.random.default_rng(0).normal(size=(d, 40)))
    two, singular = common_factor(d, 1) + common_factor(d, 2), np.ones((d, d)) + 1e-9 * np.eye(d)
    cases += [(CovarianceMatrix, x) for x in (nearly, random, two, singular)]
    for kind, matrix in cases:
        assert isinstance(structured(CovarianceMatrix(jnp.asarray(matrix))), kind), matrix


def of_many_parts():
    """Four blocks of four kinds, shuffled, and a coordinate without limits."""
    wishart = np.corrcoef(np.random.default_rng(3).normal(size=(4, 8)))
    matrix = linalg.block_diag(wishart, autoregression(5, 0.6), np.eye(2), common_factor(4))
    low = np.concatenate([np.full(4, -1.0), np.full(5, 0.0), [-np.inf, 0.0], np.full(4, 1.0)])
    high = np.concatenate([np.full(4, 1.5), np.full(5, np.inf), [np.inf, 2.0], np.full(4, np.inf)])
    order = np.random.default_rng(4).permutation(15)
    order = order[np.argsort(np.isin(order, range(4, 9)) * (order + 1), kind="stable")]
    box = tg.Box(jnp.asarray(low[order]), jnp.asarray(high[order]))
    return as_problem(np.zeros(15), jnp.asarray(matrix[np.ix_(order, order)]), box)


def test_parts_are_split_and_free_coordinates_left_out():
    parts = [part.problem for part in independent_parts(of_many_parts())]
    kinds = sorted(type(part.covariance).__name__ for part in parts)
    assert kinds == ["CovarianceMatrix", "CovarianceMatrix", "LowRank", "Markov"]
    assert sum(part.covariance.dimension for part in parts) == 14


@pytest.mark.full
def test_parts_together_are_the_whole():
    whole = of_many_parts()
    got = tg.log_probability(*whole)
    other = tg.log_probability(*whole, tg.Separation(), jax.random.key(1))
    assert abs(got.log_prob - other.log_prob) < 4 * np.hypot(got.stderr, other.stderr)
    assert 0 < got.stderr < 1e-4


def test_what_cannot_be_looked_at_stays_whole():
    rows = as_problem(np.zeros(4), jnp.stack([np.eye(4)] * 2), tg.Box(-np.ones(4), np.ones(4)))
    assert independent_parts(rows)[0].problem is rows
    ball = as_problem(np.zeros(4), np.eye(4), tg.Ball(np.zeros(4), 1.0))
    assert independent_parts(ball)[0].problem is ball
    free = as_problem(np.zeros(4), np.eye(4), tg.Box(np.full(4, -INF), np.full(4, INF)))
    assert tg.log_probability(*free) == (0.0, 0.0)


def test_one_nan_row_leaves_the_others_their_structure():
    """Two blocks and a coordinate without limits, in which one row's mean is NaN."""
    matrix = linalg.block_diag(autoregression(4, 0.7), common_factor(5), [[1.0]])
    shifts, low = np.zeros((3, 10)), np.zeros(10)
    shifts[1, 9], low[9] = np.nan, -INF
    problem = as_problem(shifts, matrix, tg.Box(low, INF))
    parts = [part.problem for part in independent_parts(problem)]
    assert [type(part.covariance) for part in parts] == [Markov, LowRank]
    for part in parts:
        np.testing.assert_array_equal(np.isnan(part.loc).all(-1), [False, True, False])
        assert np.isfinite(part.loc[::2]).all()
    got = tg.log_probability(*problem)
    alone = tg.log_probability(shifts[::2], matrix, problem.region)
    np.testing.assert_allclose(got.log_prob, [alone.log_prob[0], np.nan, alone.log_prob[1]], 1e-12)
    np.testing.assert_array_equal(np.asarray(got.stderr)[::2], 0.0)
