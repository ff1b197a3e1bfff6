"""Expected information: the covariance of scores, by quadrature over what rows may show."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import multivariate_normal, norm

import truncgauss as tg

INF = np.inf
NODES, WEIGHTS = np.polynomial.legendre.leggauss(60)


def on(low, high):
    """Nodes and weights of a quadrature from low to high."""
    return low + (high - low) * (NODES + 1) / 2, (high - low) * WEIGHTS / 2


@functools.cache
def scored(log_density, count):
    axes = (None, 0, *[None] * count)
    return jax.jit(jax.vmap(jax.value_and_grad(log_density), in_axes=axes))


def information_of(log_density, places, log_weights, parameters, *row):
    """The covariance of the score of what is seen at places (k, ...), with these weights."""
    density, scores = scored(log_density, len(row))(parameters, places, *row)
    share = np.exp(np.asarray(density) + log_weights)
    share, scores = share / share.sum(), np.asarray(scores)
    away = scores - share @ scores
    return away.T @ (share[:, None] * away)


def censored_rows(n=80):
    rng = np.random.default_rng(0)
    design = np.column_stack([np.ones(n), rng.uniform(-1, 1, n)])
    noise, low = rng.uniform(0.05, 0.2, n), rng.choice([-1.5, -0.5], n)
    y = np.full(n, -INF)
    while np.any(y < low):
        new = design @ [0.5, 1.0] + np.sqrt(0.8 + noise) * rng.normal(size=n)
        y = np.where(y < low, new, y)
    return np.clip(y, 0.0, 1.5), design, noise, low


def test_censored_and_truncated_regression():
    y, design, noise, low = censored_rows()
    settings = dict(censored_low=0.0, censored_high=1.5, truncated_low=low, noise=noise)
    fit = tg.fit_regression(y, design, information="expected", **settings)

    def log_density(p, at, z, variance, least):
        """Of a value at[0], or of being at or beyond a limit, by the sign of at[1]."""
        loc, scale = p[:2] @ z, jnp.sqrt(p[2] ** 2 + variance)
        inside = norm.logpdf(at[0], loc, scale)
        below = jnp.log(norm.cdf(0.0, loc, scale) - norm.cdf(least, loc, scale))
        beyond = norm.logsf(1.5, loc, scale)
        return jnp.where(at[1] == 0, inside, jnp.where(at[1] < 0, below, beyond))

    places, weights = on(0.0, 1.5)
    at = np.concatenate([np.column_stack([places, 0 * places]), [[0, -1.0], [0, 1.0]]])
    fixed = log_density, at, np.log([*weights, 1, 1]), jnp.array(fit.estimates)
    whole = sum(information_of(*fixed, *row) for row in zip(design, noise, low))
    np.testing.assert_allclose(fit.parameter_covariance, np.linalg.inv(whole), rtol=1e-8)
    observed = tg.fit_regression(y, design, **settings)
    np.testing.assert_array_equal(observed.estimates, fit.estimates)
    assert np.all(np.abs(observed.errors / fit.errors - 1.0) < 0.2)
    assert not np.allclose(observed.errors, fit.errors, rtol=1e-3)
    assert "expected information" in str(fit) and "efron1978" in fit.citation()


@pytest.mark.slow
def test_several_outcomes_with_covariates_inside_boxes_of_their_own():
    rng = np.random.default_rng(1)
    n, kinds = 240, rng.integers(0, 2, 240)
    low, high = (
        np.array([[-0.5, -1.0], [0.2, 0.0]])[kinds],
        np.array([[2.0, 3.0], [3.0, 2.5]])[kinds],
    )
    design = np.column_stack([np.ones(n), kinds + 0.0])
    y, root = np.full((n, 2), INF), np.linalg.cholesky([[1.0, 0.4], [0.4, 0.7]])
    outside = np.ones(n, bool)
    while outside.any():
        new = design @ [[0.3, 0.5], [0.4, -0.2]] + rng.normal(size=(n, 2)) @ root.T
        y = np.where(outside[:, None], new, y)
        outside = np.any((y < low) | (y > high), axis=1)
    rows = tg.Observations.exact(y, region=tg.Box(low, high))
    fit = tg.fit_observations(rows, design, information="expected")

    def log_density(p, at, z):
        matrix = jnp.array([[p[4], p[5]], [p[5], p[6]]])
        return multivariate_normal.logpdf(at, jnp.stack([p[:2] @ z, p[2:4] @ z]), matrix)

    whole = np.zeros((7, 7))
    for kind, count in zip((0, 1), np.bincount(kinds)):
        first = np.flatnonzero(kinds == kind)[0]
        (a, v), (b, w) = (on(low[first, j], high[first, j]) for j in (0, 1))
        at = np.stack(np.meshgrid(a, b), axis=-1).reshape(-1, 2)
        log_weights = np.log(np.outer(w, v)).ravel()
        fixed = log_density, at, log_weights, jnp.array(fit.estimates)
        whole += count * information_of(*fixed, jnp.array([1.0, kind]))
    np.testing.assert_allclose(fit.parameter_covariance, np.linalg.inv(whole), rtol=1e-6)


def test_it_is_the_observed_one_of_a_whole_exponential_family():
    rng = np.random.default_rng(2)
    y = rng.normal(size=(400, 1)) * 1.5
    rows = tg.Observations.exact(y[y[:, 0] > -1.0], region=tg.Box([-1.0], [INF]))
    fits = [tg.fit_observations(rows, information=kind) for kind in ("observed", "expected")]
    np.testing.assert_allclose(fits[0].errors, fits[1].errors, rtol=1e-6)
    # Without a region: s^2 / n, and s^2 / (2 n) for s itself.
    y = rng.normal(size=50)
    fit = tg.fit_observations(tg.Observations.exact(y), information="expected")
    np.testing.assert_allclose(fit.errors**2, [y.var() / 50, y.var() / 100], rtol=1e-9)


@pytest.mark.parametrize("changes", [{"lower": -INF}, {"limits_on": "latent"}])
def test_what_other_samples_would_show_must_be_known(changes):
    y = np.random.default_rng(3).normal(size=(30, 1)) + 2.0
    settings = {"region": tg.Box([0.0], [INF]), "noise": np.full((30, 1), 0.1)}
    lower = np.where(y < 2.0, changes.pop("lower", y), y)
    rows = tg.Observations(lower, y, **settings, **changes)
    with pytest.raises(ValueError, match="needs rows that are complete and exact"):
        tg.fit_observations(rows, information="expected")


def test_intervals_have_no_expected_information():
    ends = np.column_stack([np.arange(30.0), np.arange(30.0) + 1.0])
    with pytest.raises(ValueError, match="or censored by limits"):
        tg.fit_regression(ends, np.ones((30, 1)), information="expected")
