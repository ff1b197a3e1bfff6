"""The truncated mixture for NumPyro, and the true values behind rows of a mixture."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import integrate, stats

import truncgauss as tg
from tests.mixture_em import INF
from tests.test_mixture_fit import NAMES, PAIR, simulated


@pytest.mark.full
def test_whole_numbers_are_real_numbers():
    halves = tg.TruncatedMixture([1], [[0, 0]], [[[1, 0], [0, 1]]], low=0)
    expected = 2 * np.log(2.0) + stats.norm.logpdf([0.5, 0.7]).sum()
    np.testing.assert_allclose(halves.log_prob(np.array([0.5, 0.7])), expected, rtol=1e-12)


def test_the_slope_in_a_weight_of_zero_is_that_from_above():
    def function(share, which):
        weights = jnp.array([share, 1.0 - share])
        parts = np.array([[0.0], [2.0]]), np.array([[[1.0]], [[0.5]]])
        return getattr(tg.TruncatedMixture(weights, *parts, low=0.0), which)

    density = lambda share: function(share, "log_prob")(np.array([0.5]))
    mean = lambda share: function(share, "mean")[0]
    for value in map(jax.jit, (density, mean)):
        slope = (value(1e-6) - value(0.0)) / 1e-6
        np.testing.assert_allclose(jax.grad(value)(0.0), slope, rtol=1e-5)


@pytest.mark.slow
def test_a_soft_selection_is_part_of_the_density_and_of_the_draws():
    weights, locs, scales = np.array([0.3, 0.7]), np.array([0.0, 2.0]), np.array([1.0, 0.6])
    soft = tg.Selection(lambda x: jax.nn.sigmoid(2.0 * (x[0] - 1.0)), 1)
    mixture = tg.TruncatedMixture(
        weights, locs[:, None], scales[:, None, None] ** 2, region=soft,
        method=tg.ImportanceSampling(num_points=1024, num_replicates=8),
    )  # fmt: skip
    density = lambda x: (
        sum(w * stats.norm.pdf(x, m, s) for w, m, s in zip(weights, locs, scales))
        / (1 + np.exp(-2.0 * (x - 1.0)))
    )
    whole = integrate.quad(density, -9, 9)[0]
    x = np.array([[0.1], [1.7], [2.9]])
    allowed = 5 * float(np.max(mixture.component_log_prob.stderr)) + 1e-12
    np.testing.assert_allclose(mixture.log_prob(x), np.log(density(x[:, 0]) / whole), atol=allowed)
    assert allowed < 0.02
    mean = integrate.quad(lambda x: x * density(x), -9, 9)[0] / whole
    np.testing.assert_allclose(mixture.mean, [mean], atol=0.01)
    draws = np.asarray(mixture.sample(jax.random.key(0), (500,)))[:, 0]
    below = np.vectorize(lambda t: integrate.quad(density, -9, t)[0] / whole)
    assert stats.kstest(draws, below).pvalue > 1e-3
    nothing = tg.Selection(lambda x: 0.0 * x[0], 1)
    empty = tg.TruncatedMixture([1.0], [[0.0]], [[[1.0]]], region=nothing)
    assert np.isnan(empty.sample(jax.random.key(0))).all()


@pytest.mark.slow
def test_nuts_finds_the_means_of_an_ordered_mixture():
    mixture = tg.TruncatedMixture([0.3, 0.7], [[0.0], [2.0]], [[[1.0]], [[0.36]]], 0.5, 3.0)
    y = mixture.sample(jax.random.key(2), (400,))

    def model():
        ordered = dist.constraints.ordered_vector
        locs = numpyro.sample("locs", dist.ImproperUniform(ordered, (), (2,)))
        numpyro.sample("near", dist.Normal(locs, 3.0).to_event(1), obs=jnp.zeros(2))
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2) * 3.0))
        scales = numpyro.sample("scales", dist.HalfNormal(jnp.ones(2)).to_event(1))
        parts = weights, locs[:, None], scales[:, None, None] ** 2
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", tg.TruncatedMixture(*parts, low=0.5, high=3.0), obs=y)

    chain = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model), num_warmup=300, num_samples=300, progress_bar=False
    )
    chain.run(jax.random.key(3))
    locs = np.asarray(chain.get_samples()["locs"])
    assert np.all(locs[:, 0] < locs[:, 1])
    pulls = (locs.mean(axis=0) - [0.0, 2.0]) / locs.std(axis=0)
    assert np.all(np.abs(pulls) < 4.0)


# The true values behind rows


@pytest.mark.full
def test_what_is_observed_without_noise_has_no_variance():
    exact = np.random.default_rng(0).normal(size=(50, 2))
    exact = tg.Observations.exact(np.where(np.arange(50)[:, None] < [9, 0], np.nan, exact),
                                  nan_is_missing=True)  # fmt: skip
    covariances = [[[1.0, 0.6], [0.6, 1.1]], [[2.0, 0.1], [0.1, 0.3]]]
    spread = tg.mixtures.posterior(exact, [0.3, 0.7], [[0.0, 0.0], [1.0, -1.0]], covariances)
    variances = np.diagonal(spread.covariance, 0, 1, 2)
    assert np.all((variances == 0) == np.isfinite(exact.lower)) and np.all(variances >= 0)


def test_the_true_value_behind_a_limit_is_truncated():
    # A row known to lie above 1 only, without noise: the mean of the tail.
    rows = tg.Observations([[1.0]], [[INF]])
    found = tg.mixtures.posterior(rows, [1.0], [[0.3]], [[[1.44]]])
    tail = stats.truncnorm(0.7 / 1.2, INF, loc=0.3, scale=1.2)
    np.testing.assert_allclose(found.mean, [[tail.mean()]], rtol=1e-10)
    np.testing.assert_allclose(found.covariance, [[[tail.var()]]], rtol=1e-9)
    outside = tg.Observations.exact([[2.0]], region=tg.Box([-1.0], [1.0]))
    assert np.isnan(tg.mixtures.posterior(outside, [1.0], [[0.3]], [[[1.44]]]).mean).all()


@pytest.mark.full
def test_a_fit_draws_and_refuses_what_is_no_gaussian():
    y, _ = simulated()
    fit = tg.fit_mixture(tg.Observations.exact(y), 2, start=dict(zip(NAMES, PAIR)))
    draws = fit.sample(jax.random.key(0), 4000)
    mean = fit.weights @ fit.locs
    np.testing.assert_allclose(
        draws.mean(axis=0), mean, atol=5 * draws.std(axis=0).max() / 4000**0.5
    )
    with pytest.raises(ValueError, match="predict: needs tg.Observations, got ndarray"):
        fit.predict(y[:5])
    censored = tg.Observations([[0.0, 0.0]], [[INF, 0.0]])
    with pytest.raises(ValueError, match="exact or missing without a bound"):
        fit.completed(jax.random.key(0), censored)
