"""Rows that a soft selection, or any function of their values, lets be seen: against quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, stats

import truncgauss as tg
from tests.mixture_em import INF

LOC, MATRIX = np.array([0.2, -0.1]), np.array([[1.0, 0.4], [0.4, 0.8]])
EDGE = tg.Selection(lambda x: jax.nn.sigmoid(3.0 * (x[0] - 0.5)), 1, log_concave=True)
BAND = tg.Selection(
    lambda x: jax.nn.sigmoid(3.0 * (x[0] + x[1] - 0.5)) * (1.0 - 0.8 * jnp.exp(-(x[0] ** 2))), 2
)


def edge(x):
    return 1.0 / (1.0 + np.exp(-3.0 * (x - 0.5)))


def band(a, b):
    return edge(a + b) * (1.0 - 0.8 * np.exp(-(a**2)))


def density(x):
    return stats.norm.pdf(x, 0.3, 1.2**0.5)


def check(found, expected):
    """Within five stated standard errors of sums of 65,536 or more points, which are small."""
    assert np.all(np.asarray(found.stderr) < 2e-3)
    assert np.all(np.abs(found.log_prob - expected) < 5 * np.asarray(found.stderr) + 1e-12)


def test_points_of_whole_numbers_keep_the_digits_of_their_probability():
    np.testing.assert_allclose(EDGE.kept(jnp.array([[0], [1]])), edge(np.array([0, 1])), rtol=1e-12)


@pytest.mark.full
def test_a_soft_edge_in_one_dimension_is_its_quadrature():
    rows = tg.Observations([[0.2], [2.0], [0.2], [-INF]], [[0.2], [2.0], [0.9], [0.1]], region=EDGE)

    def mass(low, high):
        return integrate.quad(lambda x: edge(x) * density(x), low, high)[0]

    shown = [edge(0.2) * density(0.2), edge(2.0) * density(2.0), mass(0.2, 0.9), mass(-9.0, 0.1)]
    check(tg.log_likelihood(rows, [0.3], [[1.2]]), np.log(shown) - np.log(mass(-9.0, 9.0)))


@pytest.mark.full
@pytest.mark.parametrize("limits_on", ["observed", "latent"])
def test_missing_entries_are_integrated_over_what_may_be_seen(limits_on):
    noise = np.diag([0.3, 0.2])
    y = [[0.5, np.nan], [0.3, 0.9]]
    rows = tg.Observations.exact(
        y, nan_is_missing=True, region=BAND, noise=noise, limits_on=limits_on
    )
    grid = np.linspace(-8.0, 8.0, 801)
    a, b = np.meshgrid(grid, grid, indexing="ij")
    points, step = np.stack([a, b], axis=-1), grid[1] - grid[0]
    if limits_on == "observed":
        whole = stats.multivariate_normal(LOC, MATRIX + noise)
        across = whole.pdf(np.stack([np.full_like(grid, 0.5), grid], -1)) * band(0.5, grid)
        shown = [across.sum() * step, whole.pdf(y[1]) * band(*y[1])]
        mass = np.sum(whole.pdf(points) * band(a, b)) * step**2
    else:
        kept = stats.multivariate_normal(LOC, MATRIX).pdf(points) * band(a, b)
        first = stats.norm.pdf(0.5, a, 0.3**0.5)
        both = stats.norm.pdf(0.3, a, 0.3**0.5) * stats.norm.pdf(0.9, b, 0.2**0.5)
        shown = [np.sum(kept * part) * step**2 for part in (first, both)]
        mass = np.sum(kept) * step**2
    check(tg.log_likelihood(rows, LOC, MATRIX), np.log(shown) - np.log(mass))


@pytest.mark.full
def test_a_selection_that_keeps_boxes_or_balls_is_the_box_or_ball():
    ball = tg.Ball([0.3, 0.0], 1.5)
    y = np.array([[0.1, 0.2], [0.9, -0.3], [3.0, 0.0]])
    few = tg.ImportanceSampling(num_points=512)
    found = tg.log_likelihood(tg.Observations.exact(y, region=ball), LOC, MATRIX, few)
    expected = stats.multivariate_normal(LOC, MATRIX).logpdf(y)
    value, stderr = tg.log_probability(LOC, MATRIX, ball, few, jax.random.key(5))
    assert found.log_prob[2] == -INF  # outside
    gaps = np.asarray(found.log_prob[:2] + value) - expected[:2]
    assert np.all(np.abs(gaps) < 5 * np.hypot(found.stderr[:2], stderr))


@pytest.mark.slow
def test_a_gaussian_far_from_zero_is_fitted_behind_a_soft_edge():
    rng, far = np.random.default_rng(3), 1e6
    x = rng.normal(size=3000)
    x = x[rng.random(3000) < edge(x)]
    region = tg.Selection(lambda x: jax.nn.sigmoid(3.0 * (x[0] - far - 0.5)), 1, log_concave=True)
    fit = tg.fit_observations(tg.Observations.exact(x + far, region=region))
    assert fit.converged

    def minus(parameters):
        loc, scale = parameters[0], np.exp(parameters[1])
        grid = np.linspace(-12.0, 12.0, 4001)
        mass = np.sum(edge(grid) * stats.norm.pdf(grid, loc, scale)) * (grid[1] - grid[0])
        return -np.sum(stats.norm.logpdf(x, loc, scale)) + len(x) * np.log(mass)

    best = optimize.minimize(minus, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7})
    gap = (
        fit.coefficients[0][0] - far - best.x[0],
        fit.covariance_matrix[0, 0] - np.exp(2 * best.x[1]),
    )
    assert np.all(np.abs(gap) < 0.05 * fit.errors)  # the integrals' errors move it by less
