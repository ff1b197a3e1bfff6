"""Fields by few neighbours made good by Gaussian integrals, and weighted draws of fields."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from tests.test_experiments import check_picture, completed
from tests.test_fields import kernel
from truncgauss.fields import correction

N = 80
RNG = np.random.default_rng(7)
POINTS = jnp.asarray(RNG.uniform(0.0, 3.0, (N, 2)))
NOISE = 0.4
METHOD = tg.FieldParticles(num_particles=500, num_replicates=8)
VALUES = jnp.asarray(RNG.normal(size=N))
KNOWN = jnp.arange(N) % 4 == 0
LOW = jnp.where(KNOWN, VALUES, jnp.where(jnp.arange(N) % 4 == 1, -1.0, -jnp.inf))
HIGH = jnp.where(KNOWN, VALUES, 0.5)


def matrix():
    return np.asarray(jax.vmap(jax.vmap(kernel, (None, 0)), (0, None))(POINTS, POINTS))


@pytest.mark.parametrize("columns", [17, 1024])
def test_the_integral_of_a_whole_field_is_that_of_the_dense_matrices(columns, monkeypatch):
    monkeypatch.setattr(correction, "COLUMNS", columns)
    precision, force = RNG.exponential(size=N), RNG.normal(size=N)
    precision[:5] = force[:5] = 0.0
    known = np.arange(N) == 7  # whose site is 1 at its value
    sites = precision, force, known
    mass = correction.whole_log_mass(POINTS, kernel, np.full(N, 0.1), sites)
    mass += 0.5 * force[7] ** 2 / precision[7]
    covariance = matrix() + 0.1 * np.eye(N)
    after = np.linalg.inv(np.linalg.inv(covariance) + np.diag(precision))
    shrunk = np.linalg.slogdet(after)[1] - np.linalg.slogdet(covariance)[1]
    assert mass == pytest.approx(0.5 * (shrunk + force @ after @ force), rel=1e-10)


def test_few_neighbours_are_made_good():
    """Of exact, censored and missing entries, beside the exact field."""
    low, high = LOW.at[-5:].set(-jnp.inf), HIGH.at[-5:].set(jnp.inf)
    row = tg.Observations(low[None], high[None])
    exact = tg.Directed.from_points(POINTS, kernel, noise=NOISE)
    truth = tg.log_likelihood(row, 0.2, exact, tg.FieldParticles(1000, 16))
    few = tg.Directed.from_points(POINTS, kernel, 8, NOISE, block=8, exact=False)
    bare = tg.log_likelihood(row, 0.2, few, METHOD)
    better = METHOD.corrected(POINTS, kernel, low, high, 0.2, NOISE, 8, block=8)
    away = abs(bare.log_prob[0] - truth.log_prob[0])
    off = abs(better.log_prob - truth.log_prob[0])
    assert off < 3.0 * jnp.hypot(better.stderr, truth.stderr[0])
    assert off < 0.25 * away and better.stderr < 0.25 * bare.stderr[0]


def test_what_cannot_be_corrected_is_refused():
    wrong = lambda x, y: -jnp.sum(jnp.abs(x - y) ** 4)
    for arguments, words in (
        ((POINTS, wrong, LOW, HIGH, 0.0, NOISE), "not positive definite"),
        ((POINTS, kernel, LOW, LOW - 1.0, 0.0, NOISE), "lower must not be above upper"),
        ((POINTS, kernel, LOW, HIGH, 0.0, NOISE, 2), "at least 4"),
    ):
        with pytest.raises(ValueError, match=words):
            METHOD.corrected(*arguments)


def test_weighted_draws_have_the_moments_given_what_is_known():
    """At all points, and at those of which nothing is known; the density is their mean weight."""
    n = 12
    low, high = LOW[:n].at[-2:].set(-jnp.inf), HIGH[:n].at[-2:].set(jnp.inf)
    field = tg.Directed.from_points(POINTS[:n], kernel, noise=NOISE)
    draws, log_weights = METHOD.weighted_draws(field, low, high, 0.2)
    covariance = jnp.asarray(matrix()[:n, :n])
    rows = tg.Observations(low[None], high[None], noise=NOISE**2 * jnp.eye(n))
    mean = jnp.full(n, 0.2)
    truth = tg.conditional_moments(rows, mean, covariance)
    shares = jax.nn.softmax(log_weights.reshape(-1)) @ draws.reshape(-1, n)
    np.testing.assert_allclose(0.2 + shares, truth.mean[0], atol=0.05)
    row = tg.Observations(low[None], high[None])
    value = tg.log_likelihood(row, mean, covariance + NOISE**2 * jnp.eye(n)).log_prob[0]
    ours = jax.scipy.special.logsumexp(log_weights) - jnp.log(log_weights.size)
    assert abs(ours - value) < 0.02


@pytest.mark.full
def test_wells():
    results, picture = completed(
        "wells", num_wells=250, num_particles=64, num_maps=3, map_sides=(8, 6)
    )
    assert results["failed"] == "" and 0.5 < results["below"].mean() < 0.95
    low, high = np.log(results["interval"])
    middle, truth = np.log(results["estimates"]), np.log(results["truth"])
    assert np.all(np.abs(middle - truth) < high - low)
    assert 0.0 <= results["probability"].min() and results["probability"].max() <= 1.0
    assert 0.01 < results["probability"].mean() < 0.5
    check_picture(picture)
