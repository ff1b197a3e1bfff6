"""Truncated distributions in NumPyro's models, guides and samplers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO, autoguide
from numpyro.infer.util import log_density, potential_energy

import truncgauss as tg
from tests.truncated_vectors import PAIR, vector_law

INF = math.inf


def model(observed=None):
    loc = numpyro.sample("loc", tg.TruncatedNormal(0.0, 1.0, -2.0, None))
    place = numpyro.sample(
        "place", tg.TruncatedMultivariateNormal([0.0, 0.0], PAIR, low=[0.0, -INF], high=[1.0, 0.0])
    )
    with numpyro.plate("rows", 3):
        truncated = tg.TruncatedNormal(loc + place.sum(), 1.0, 0.0, [1.0, 2.0, INF])
        numpyro.sample("observed", truncated, obs=observed)


OBSERVED = jnp.array([0.5, 1.5, 4.0])


@pytest.mark.full
def test_a_model_has_their_density():
    params = {"loc": jnp.asarray(0.3), "place": jnp.array([0.5, -0.2])}
    total, _ = log_density(model, (OBSERVED,), {}, params)
    vector = tg.TruncatedMultivariateNormal([0.0, 0.0], PAIR, low=[0.0, -INF], high=[1.0, 0.0])
    parts = [
        tg.TruncatedNormal(0.0, 1.0, -2.0, None).log_prob(0.3),
        vector.log_prob(params["place"]),
        tg.TruncatedNormal(0.6, 1.0, 0.0, [1.0, 2.0, INF]).log_prob(OBSERVED).sum(),
    ]
    assert total == pytest.approx(float(sum(parts)), rel=1e-13)


def test_a_potential_has_the_slope_of_its_differences():
    potential = jax.jit(
        jax.value_and_grad(lambda free: potential_energy(model, (OBSERVED,), {}, free))
    )
    free = {"loc": jnp.asarray(-0.4), "place": jnp.array([0.3, 1.2])}
    _, slope = potential(free)
    h = 1e-5
    for name, index in [("loc", ()), ("place", 0), ("place", 1)]:
        ends = [potential({**free, name: free[name].at[index].add(way * h)})[0] for way in (1, -1)]
        assert slope[name][index] == pytest.approx(float(ends[0] - ends[1]) / (2 * h), rel=1e-7)
    for far in (-700.0, 700.0):
        value, slope = potential({"loc": jnp.asarray(far), "place": jnp.array([far, far])})
        assert np.isfinite(value) and all(np.isfinite(s).all() for s in slope.values())


def test_a_seeded_model_draws_within_the_limits():
    with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.trace() as sites:
        loc = numpyro.sample("loc", tg.TruncatedNormal(0.0, 1.0, -2.0, None))
        with numpyro.plate("rows", 3):
            numpyro.sample("x", tg.TruncatedNormal(loc, 1.0, 0.0, [1.0, 2.0, INF]))
    assert sites["loc"]["value"] >= -2.0
    assert np.all(sites["x"]["fn"].support(sites["x"]["value"]))
    with pytest.raises(ValueError, match="seed the model"):
        numpyro.sample("x", tg.TruncatedNormal())


@pytest.mark.slow
def test_a_guide_takes_a_step():
    def model(observed):
        place = numpyro.sample("place", vector_law([0.0, 0.0], low=[0.0, -INF], high=[1.0, 0.0]))
        truncated = tg.TruncatedNormal(place.sum(), 1.0, 0.0, [1.0, 2.0, INF])
        numpyro.sample("observed", truncated.to_event(1), obs=observed)

    guide = autoguide.AutoNormal(model, init_loc_fn=numpyro.infer.init_to_feasible)
    svi = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO())
    state = svi.init(jax.random.key(0), OBSERVED)
    state, loss = jax.jit(svi.update)(state, OBSERVED)
    assert np.isfinite(loss)
    median = guide.median(svi.get_params(state))["place"]
    assert 0 < median[0] < 1 and median[1] < 0


@pytest.mark.slow
def test_nuts_draws_a_latent_truncated_distribution():
    def moving(observed):
        loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
        numpyro.sample("above", tg.TruncatedNormal(0.0, 1.0, loc, None))
        rows = tg.TruncatedNormal(0.0, 1.0, loc * jnp.ones(2))
        numpyro.sample("rows", rows.to_event(1))
        pair = tg.TruncatedMultivariateNormal([0.0, 0.0], PAIR, low=jnp.stack([loc, -INF]))
        numpyro.sample("pair", pair)

    chain = MCMC(NUTS(moving), num_warmup=300, num_samples=1000, progress_bar=False)
    chain.run(jax.random.key(0), None, extra_fields=("diverging",))
    draws = chain.get_samples()
    assert not chain.get_extra_fields()["diverging"].any()
    # The limits move with another site: each draw must be brought back through its own.
    for place in (draws["above"], draws["pair"][:, 0], *draws["rows"].T):
        assert np.all(place >= draws["loc"])
    assert abs(draws["loc"].mean()) < 0.2 and abs(draws["loc"].std() - 1.0) < 0.2


@pytest.mark.full
def test_draws_of_many_dimensions_are_constants_in_a_variational_bound():
    """A distribution without `rsample` gives detached draws, as NumPyro expects of it."""

    def model():
        numpyro.sample("x", tg.TruncatedMultivariateNormal(np.zeros(2), np.eye(2), low=0.0))

    def guide():
        loc = numpyro.param("loc", jnp.array([0.5, 1.0]))
        numpyro.sample("x", tg.TruncatedMultivariateNormal(loc, np.eye(2), low=0.0))

    def loss(params):
        return Trace_ELBO().loss(jax.random.key(0), params, model, guide)

    slope = jax.grad(loss)({"loc": jnp.array([0.5, 1.0])})["loc"]
    assert np.isfinite(slope).all() and np.all(slope != 0)
    drawn = lambda loc: vector_law(loc, low=0.0).sample(jax.random.key(0)).sum()
    np.testing.assert_array_equal(jax.grad(drawn)(jnp.zeros(2)), 0.0)
