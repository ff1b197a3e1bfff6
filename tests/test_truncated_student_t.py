"""The truncated multivariate t: density, moments and draws, against SciPy's quadrature."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS
from scipy import stats

import truncgauss as tg

INF = np.inf


@pytest.mark.full
def test_moments_exist_where_limits_or_df_make_them():
    box = tg.Box([0.0], [INF])
    for df, exist in ((0.9, (False, False)), (1.5, (True, False)), (2.5, (True, True))):
        lacking = nullcontext() if all(exist) else pytest.warns(UserWarning, match=f"df = {df}, ")
        with lacking:
            moments = tg.truncated_moments([0.0], [[1.0]], box, df=df)
        assert (np.isfinite(moments.mean[0]), np.isfinite(moments.covariance[0, 0])) == exist
    half = stats.t.expect(lambda x: x, (2.5,), lb=0.0, conditional=True)
    np.testing.assert_allclose(moments.mean[0], half, rtol=1e-7)
    np.testing.assert_allclose(moments.covariance[0, 0], 2.5 / 0.5 - half**2, rtol=1e-6)
    cauchy = tg.truncated_moments([0.0], [[1.0]], tg.Box([-1.0], [1.0]), df=1.0)
    np.testing.assert_allclose(cauchy.covariance[0, 0], 4 / np.pi - 1, rtol=1e-9)


def test_large_df_is_the_gaussian():
    x, options = jnp.array([0.5, 0.2]), {"low": 0.0, "high": [1.0, INF]}
    matrix = jnp.array([[1.0, 0.5], [0.5, 1.0]])
    gaussian = tg.TruncatedMultivariateNormal([0.1, 0.0], matrix, **options)
    for df in (1e12, INF):
        law = tg.TruncatedMultivariateStudentT(df, [0.1, 0.0], matrix, **options)
        np.testing.assert_allclose(law.log_prob(x), gaussian.log_prob(x), rtol=1e-10)


def test_batches_transformations_and_the_derivative_in_df():
    def log_prob(df):
        law = tg.TruncatedMultivariateStudentT(df, [0.3], [[1.0]], low=0.0, high=2.0)
        return law.log_prob(jnp.array([0.5]))

    def truth(df):
        return stats.t.logpdf(0.2, df) - np.log(stats.t.cdf(1.7, df) - stats.t.cdf(-0.3, df))

    dfs = jnp.array([2.0, 4.0])
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(log_prob)))(dfs)
    np.testing.assert_allclose(values, truth(np.array(dfs)), rtol=1e-9)
    differences = (truth(np.array(dfs) + 1e-4) - truth(np.array(dfs) - 1e-4)) / 2e-4
    np.testing.assert_allclose(slopes, differences, rtol=1e-6)
    law = tg.TruncatedMultivariateStudentT(dfs, [0.3], [[1.0]], low=0.0, high=2.0)
    assert law.batch_shape == (2,) and law.event_shape == (1,)
    np.testing.assert_allclose(law.log_prob(jnp.array([0.5])), values, rtol=1e-9)
    with pytest.raises(NotImplementedError, match="average -log_prob"):
        law.entropy()


@pytest.mark.full
def test_draws_of_five_coordinates_have_the_moments():
    matrix, high = 0.5 * jnp.eye(5) + 0.5, jnp.array([1.0, 2.0, 3.0, 1.0, INF])
    region = tg.Box(-jnp.ones(5), high)
    draws = tg.truncated_samples(jax.random.key(0), jnp.zeros(5), matrix, region, 2000, df=4.0)
    moments = tg.truncated_moments(jnp.zeros(5), matrix, region, df=4.0)
    assert bool(region.contains(draws).all())
    error = np.sqrt(np.diagonal(moments.covariance) / 2000)
    assert np.all(np.abs(draws.mean(0) - moments.mean) < 4.5 * error + moments.mean_stderr)


@pytest.mark.slow
def test_nuts_learns_location_and_df():
    x = stats.t.rvs(4.0, 1.0, 1.0, 400, random_state=0)
    x = jnp.asarray(x[x > 0.0][:, None])

    def model():
        df = numpyro.sample("df", dist.LogNormal(1.5, 0.5))
        loc = numpyro.sample("loc", dist.Normal(0.0, 3.0))
        law = tg.TruncatedMultivariateStudentT(df, loc[None], [[1.0]], low=0.0)
        numpyro.sample("x", law.expand((len(x),)), obs=x)

    chain = MCMC(NUTS(model), num_warmup=100, num_samples=200, progress_bar=False)
    chain.run(jax.random.key(0))
    loc = chain.get_samples()["loc"]
    assert abs(loc.mean() - 1.0) < 0.3 and 0.02 < loc.std() < 0.3
    assert not chain.get_extra_fields()["diverging"].any()
