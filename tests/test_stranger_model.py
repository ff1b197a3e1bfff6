"""A model that the library does not have, by its public names alone, is fitted by the engine:
a Gaussian whose entries have one variance and one correlation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import truncgauss as tg
from truncgauss.arrays.pytrees import frozen_pytree


@frozen_pytree
class CommonCorrelation(tg.fitting.Model):
    """Rows (n, d) whose covariance matrix has the eigenvalues s^2 (1 + (d - 1) r), along the
    diagonal, and s^2 (1 - r) across it; x holds the means and the logarithms of both."""

    rows: jax.Array
    weights: jax.Array | None = None
    unique = True  # the maximum has a closed form

    @property
    def names(self):
        return (*(f"loc[{j}]" for j in range(self.rows.shape[1])), "sigma", "correlation")

    def estimates(self, x):
        d, (along, across) = self.rows.shape[1], jnp.exp(x[-2:])
        variance = (along + (d - 1) * across) / d
        correlation = (along - across) / d / variance
        return jnp.concatenate([x[:-2], jnp.sqrt(variance)[None], correlation[None]])

    def log_likelihoods(self, x):
        d, residuals = self.rows.shape[1], self.rows - x[:-2]
        along = jnp.sum(residuals, axis=1) ** 2 / d
        across = jnp.sum(residuals**2, axis=1) - along
        energy = along * jnp.exp(-x[-2]) + across * jnp.exp(-x[-1])
        return -0.5 * (energy + x[-2] + (d - 1) * x[-1] + d * jnp.log(2.0 * jnp.pi))

    def starts(self, count):
        rows = np.asarray(self.rows)
        first = np.append(rows.mean(axis=0), np.log(rows.var(axis=0).mean()) * np.ones(2))
        random = np.random.default_rng(0)
        others = [first + random.normal(size=len(first)) for _ in range((count or 1) - 1)]
        return [first, *others]

    def obstacle(self, path):
        residuals = np.asarray(self.rows) - np.mean(self.rows, axis=0)
        if np.ptp(residuals, axis=1).max() < 1e-12 * np.ptp(residuals):
            return "There is no maximum: all entries of a row move together."
        return None


def sample(n=60, d=3):
    random = np.random.default_rng(0)
    return 2.0 + random.normal(size=(n, 1)) + random.normal(size=(n, d))


def eigenvalues(rows):
    """The most likely ones, by their closed form."""
    scatter, d = np.cov(rows.T, bias=True), rows.shape[1]
    along = np.sum(scatter) / d
    return along, (np.trace(scatter) - along) / (d - 1)


def test_the_maximum_and_its_errors_are_those_of_closed_forms():
    rows = sample()
    n, d = rows.shape
    fit = tg.fitting.maximum_likelihood(CommonCorrelation(jnp.asarray(rows)), num_starts=3)
    along, across = eigenvalues(rows)
    variance = (along + (d - 1) * across) / d
    r = (along - across) / d / variance
    assert fit.converged and fit.certificate.positive_definite, fit.reason
    np.testing.assert_allclose(fit.estimates, [*rows.mean(axis=0), variance**0.5, r], rtol=1e-7)
    of_loc, of_r = (variance / n) ** 0.5, (1 - r) * (1 + (d - 1) * r)
    np.testing.assert_allclose(fit.errors[:d], of_loc, rtol=1e-7)
    np.testing.assert_allclose(fit.errors[-1], of_r * (2 / (n * d * (d - 1))) ** 0.5, rtol=1e-6)
    matrix = variance * ((1 - r) * np.eye(d) + r)
    total = stats.multivariate_normal(rows.mean(axis=0), matrix).logpdf(rows).sum()
    np.testing.assert_allclose(fit.log_likelihood, total, rtol=1e-10)
    assert fit.num_rows == n and "The likelihood has no other maximum." in fit.notes
    assert "correlation" in fit.summary() and fit._repr_html_().startswith("<pre")
    derived = fit.delta(lambda estimates: estimates[-2] ** 2)
    np.testing.assert_allclose(derived.value, variance, rtol=1e-7)
    with pytest.raises(ValueError, match="needs fits that keep their observations"):
        tg.likelihood_ratio(fit, fit)


def test_clusters_of_another_number_of_rows_are_refused():
    rows = sample()
    model, settings = CommonCorrelation(jnp.asarray(rows)), {"information": "sandwich"}
    labels = np.arange(len(rows))
    fit = tg.fitting.maximum_likelihood(model, cluster=labels, **settings)
    alone = tg.fitting.maximum_likelihood(model, **settings)
    share = (len(rows) / (len(rows) - 1)) ** 0.5
    np.testing.assert_allclose(fit.errors, share * alone.errors, rtol=1e-9)
    with pytest.raises(ValueError, match=f"one label for each of {len(rows)} rows, got"):
        tg.fitting.maximum_likelihood(model, cluster=labels[:-1], **settings)


def test_the_profile_interval_is_where_the_likelihood_has_fallen():
    rows = sample()
    n, d = rows.shape
    fit = tg.fitting.maximum_likelihood(CommonCorrelation(jnp.asarray(rows)))
    along, across = eigenvalues(rows)

    def log_likelihood(r):
        """Of all rows, at the most likely means and variance."""
        shares = 1 + (d - 1) * r, 1 - r
        variance = (along / shares[0] + (d - 1) * across / shares[1]) / d
        logs = np.log(shares[0]) + (d - 1) * np.log(shares[1])
        return -0.5 * n * (d * np.log(variance) + logs)

    best = fit.estimates[-1]
    goal = log_likelihood(best) - 0.5 * stats.chi2.ppf(0.95, 1)
    ends = [
        optimize.brentq(lambda r: log_likelihood(r) - goal, best, far) for far in (-0.49, 0.999)
    ]
    np.testing.assert_allclose(fit.profile("correlation"), ends, rtol=1e-6)


def test_weights_are_repeats_and_the_sandwich_has_them():
    rows, counts = sample(40), 1 + np.arange(40) % 3
    whole = CommonCorrelation(jnp.asarray(np.repeat(rows, counts, axis=0)))
    weighted = CommonCorrelation(jnp.asarray(rows), jnp.asarray(counts, float))
    for information in ("observed", "sandwich"):
        one, other = (
            tg.fitting.maximum_likelihood(model, information=information)
            for model in (whole, weighted)
        )
        np.testing.assert_allclose(one.estimates, other.estimates, rtol=1e-8)
        np.testing.assert_allclose(one.errors, other.errors, rtol=1e-6)
        assert one.num_rows == other.num_rows == counts.sum()


@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_a_fit_makes_no_more_steps_than_it_may(num_steps):
    model = CommonCorrelation(jnp.asarray(sample()))
    fit = tg.fitting.maximum_likelihood(model, num_steps=num_steps)
    assert fit.num_steps == num_steps and not fit.converged
    assert "Allow more num_steps" in fit.reason


def test_what_a_model_does_not_know_is_said():
    model = CommonCorrelation(jnp.asarray(sample()))
    with pytest.raises(ValueError, match='must be one of "observed", "sandwich"'):
        tg.fitting.maximum_likelihood(model, information="expected")
    with pytest.raises(NotImplementedError, match="Model defines no starts"):
        tg.fitting.maximum_likelihood(tg.fitting.Model())
    together = CommonCorrelation(jnp.asarray(np.repeat(sample(d=1), 3, axis=1)))
    fit = tg.fitting.maximum_likelihood(together)
    assert not fit.converged and np.all(np.isinf(fit.errors)), fit.reason
