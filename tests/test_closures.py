"""Functions that close over traced values, beside closed forms of a probit curve."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

import truncgauss as tg
from truncgauss.arrays.closures import hoisted
from truncgauss.arrays.pytrees import frozen_pytree

METHOD = tg.ImportanceSampling(1024, 4)
MATRIX = [[1.0, 0.5], [0.5, 1.0]]
norm = jax.scipy.stats.norm


def curve(centre, steepness=3.0, dimension=1):
    return tg.Selection(lambda x: norm.cdf(steepness * (x[0] - centre)), dimension)


def log_kept(centre, mean=0.0, steepness=3.0):
    """log P by importance sampling."""
    mean = jnp.array([mean, 0.0])
    return tg.log_probability(mean, MATRIX, curve(centre, steepness, 2), METHOD).log_prob


def exact(centre, mean=0.0, steepness=3.0, variance=1.0):
    return norm.logcdf((mean - centre) / jnp.sqrt(variance + steepness**-2))


def hard(centre):
    selection = tg.Selection(lambda x: x[0] > centre, 2)
    return tg.log_probability(jnp.zeros(2), MATRIX, selection, METHOD).log_prob


def close(value, truth, atol=2e-3):
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=atol, rtol=0), value, truth)


def test_programs_of_the_same_operations_are_equal():
    programs = []

    def traced(c, power):
        inner = jax.jit(lambda x: jnp.where(x > c, x, c) ** power)
        change = hoisted(lambda x: inner(x) + jax.nn.softplus(c * x), 1.0)
        programs.append(change.function)
        return change.function(*change.constants, 2.0)

    slope = jax.grad(traced)
    close(slope(1.5, 2), 2.0 * jax.nn.sigmoid(3.0))
    close(slope(2.5, 2), 2.0 * 2.5 + 2.0 * jax.nn.sigmoid(5.0))
    slope(1.5, 3)
    assert programs[0] == programs[1] and hash(programs[0]) == hash(programs[1])
    assert programs[0] != programs[2]
    plain = lambda x: x + np.ones(2)
    assert hoisted(plain, 1.0)[:2] == (plain, ())


def test_a_random_key_is_refused():
    def drawn(key):
        return tg.Selection(lambda x: jax.nn.sigmoid(x[0] - jax.random.normal(key)), 1).size

    with pytest.raises(TypeError, match="may close over numbers alone"):
        jax.jit(drawn)(jax.random.key(0))


def test_a_curve_under_jit_and_vmap():
    centres = jnp.array([0.5, 0.9])
    close(jax.jit(jax.vmap(jax.grad(log_kept)))(centres), jax.vmap(jax.grad(exact))(centres))


@pytest.mark.full
def test_a_curve_under_every_transformation():
    at = 0.5, 0.2, 2.0
    close(jax.grad(log_kept, (0, 1, 2))(*at), jax.grad(exact, (0, 1, 2))(*at))
    change = (0.3, -1.0, 0.5)
    close(jax.jvp(log_kept, at, change), jax.jvp(exact, at, change))
    close(jax.hessian(log_kept, (0, 1))(*at), jax.hessian(exact, (0, 1))(*at), 5e-3)


@pytest.mark.full
def test_a_curve_of_rows():
    centres = jnp.array([0.5, 0.9])
    close(jax.vmap(log_kept)(centres), jax.vmap(exact)(centres))
    sum_of_rows = lambda f: jax.grad(lambda c: jnp.sum(jax.jit(jax.vmap(f))(c)))
    close(sum_of_rows(log_kept)(centres), sum_of_rows(exact)(centres))


@pytest.mark.full
def test_moments_of_a_curve():
    mean = lambda c: tg.truncated_moments(jnp.zeros(2), MATRIX, curve(c, dimension=2), METHOD).mean
    truth = jax.grad(lambda c: jax.grad(exact, 1)(c, 0.0))
    close(jax.jacfwd(mean)(0.5)[0], truth(0.5))
    clipped = lambda c: tg.Selection(lambda x: jnp.clip(x[0] - c, 0.0, 1.0), 1)
    inside = lambda c: tg.truncated_moments(jnp.zeros(1), [[1.0]], clipped(c), METHOD).mean[0]
    step = 1e-3
    difference = (inside(0.5 + step) - inside(0.5 - step)) / (2.0 * step)
    close(jax.jit(jax.grad(inside))(0.5), difference, 0.02)


@pytest.mark.full
def test_a_curve_that_jumps_has_no_derivative_in_silence():
    close(jax.jit(hard)(0.5), norm.logcdf(-0.5))
    assert np.isnan(jax.grad(hard)(0.5)) and np.isnan(jax.jit(jax.grad(hard))(0.5))
    assert np.isnan(jax.jit(hard)(jnp.nan))

    def both(step, centre):
        keeps = lambda x: jnp.where(x[0] > step, 1.0, 0.0) * jax.nn.sigmoid(x[1] - centre)
        return tg.log_probability(jnp.zeros(2), jnp.eye(2), tg.Selection(keeps, 2), METHOD).log_prob

    by_step, by_centre = jax.jit(jax.grad(both, (0, 1)))(0.5, 0.2)
    smooth = lambda c: jnp.log(
        jnp.mean(jax.nn.sigmoid(norm.ppf((jnp.arange(4000) + 0.5) / 4000) - c))
    )
    assert np.isnan(by_step)
    close(by_centre, jax.grad(smooth)(0.2))


VALUES = jnp.array([[0.3], [1.2], [0.9], [2.0]])


def truth_of_rows(centre, mean):
    y = VALUES[:, 0]
    return jnp.sum(norm.logpdf(y, mean) + norm.logcdf(3.0 * (y - centre))) - 4 * exact(centre, mean)


@pytest.mark.full
def test_the_likelihood_of_rows_that_a_curve_selects():
    complete = tg.Observations.exact(VALUES)

    def of(rows, mean):
        return jnp.sum(tg.log_likelihood(rows, mean[None], [[1.0]], METHOD).log_prob)

    made = lambda c, m: of(tg.Observations.exact(VALUES, region=curve(c)), m)
    replaced = lambda c, m: of(dataclasses.replace(complete, region=curve(c)), m)
    at = jnp.array(0.5), jnp.array(0.4)
    for likelihood in (made, replaced):
        close(jax.grad(likelihood, (0, 1))(*at), jax.grad(truth_of_rows, (0, 1))(*at), 5e-3)
    centres = jnp.array([0.5, 0.6])
    rows = jax.vmap(replaced, (0, None))(centres, at[1])
    close(rows, jax.vmap(truth_of_rows, (0, None))(centres, at[1]), 5e-3)


@pytest.mark.full
def test_rows_that_lack_an_entry_that_a_curve_selects():
    values = jnp.array([[0.3, jnp.nan], [1.2, 0.5], [jnp.nan, 0.9]])
    rows = tg.Observations.exact(values, nan_is_missing=True)

    def likelihood(c, m):
        region, mean = curve(c, dimension=2), jnp.stack([m, jnp.zeros_like(m)])
        selected = dataclasses.replace(rows, region=region)
        return jnp.sum(tg.log_likelihood(selected, mean, jnp.eye(2), METHOD).log_prob)

    def truth(c, m):
        first = sum(norm.logpdf(y, m) + norm.logcdf(3.0 * (y - c)) for y in (0.3, 1.2))
        return first + norm.logpdf(0.5) + norm.logpdf(0.9) - 2.0 * exact(c, m)

    at = jnp.array(0.5), jnp.array(0.4)
    close(jax.jit(jax.grad(likelihood, (0, 1)))(*at), jax.grad(truth, (0, 1))(*at), 5e-3)


def test_rows_made_without_a_region_are_refused_one_in_a_trace():
    rows = tg.Observations.exact(VALUES)

    def truncated(rows):
        return dataclasses.replace(rows, region=tg.Box([0.0], [jnp.inf])).lower

    with pytest.raises(ValueError, match="made without a region"):
        jax.jit(truncated)(rows)


@pytest.mark.full
def test_a_mixture_that_a_curve_selects_in_numpyro():
    locs, matrices, weights = jnp.array([[0.0], [1.0]]), jnp.array([[[1.0]], [[0.5]]]), [0.4, 0.6]

    def model():
        c = numpyro.sample("c", dist.Normal(0.0, 1.0))
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        part = tg.TruncatedMixture(
            jnp.array(weights), locs + m, matrices, region=curve(c), method=METHOD
        )
        numpyro.sample("y", part, obs=VALUES)

    def potential(c, m):
        return log_density(model, (), {}, {"c": c, "m": m})[0]

    def truth(c, m):
        y = VALUES[:, 0]
        density = 0.4 * norm.pdf(y, m) + 0.6 * norm.pdf(y, m + 1.0, 0.5**0.5)
        kept = 0.4 * jnp.exp(exact(c, m)) + 0.6 * jnp.exp(exact(c, m + 1.0, variance=0.5))
        rows = jnp.sum(jnp.log(density) + norm.logcdf(3.0 * (y - c))) - 4 * jnp.log(kept)
        return norm.logpdf(c) + norm.logpdf(m) + rows

    slopes = jax.jit(jax.grad(potential, (0, 1)))(0.5, 0.4)
    close(slopes, jax.grad(truth, (0, 1))(0.5, 0.4), 5e-3)


@pytest.mark.full
def test_mean_and_curve_are_minimised_together():
    generator = np.random.default_rng(0)
    x = generator.normal(1.0, 1.0, 2000)
    x = x[generator.random(2000) < np.asarray(norm.cdf(3.0 * (x - 0.7)))][:400]
    rows = tg.Observations.exact(x)
    held = METHOD.hold([0.5], [[1.0]], curve(0.5))

    def loss(p):
        selected = dataclasses.replace(rows, region=curve(p["centre"]))
        return -jnp.mean(tg.log_likelihood(selected, p["mean"][None], [[1.0]], held).log_prob)

    def truth(p):
        each = norm.logpdf(x, p["mean"]) + norm.logcdf(3.0 * (x - p["centre"]))
        return exact(p["centre"], p["mean"]) - jnp.mean(each)

    start = {"mean": jnp.array(0.5), "centre": jnp.array(0.5)}
    results = [tg.minimize(f, start, progress=False) for f in (loss, truth)]
    assert all(result.converged for result in results)
    close(results[0].params, results[1].params, 0.01)


@frozen_pytree
class Scaled(tg.Method):
    """A method by a function, which may close over anything."""

    function: object = dataclasses.field(metadata={"static": True})

    def replicate(self, loc, covariance, region, key):
        return tg.Estimate(self.function(loc), jnp.zeros(()))


def by_stranger(scale):
    method = Scaled(lambda loc: scale * jnp.sum(loc - 1.0))
    box = tg.Box([0.0, 0.0], [1.0, 1.0])
    return tg.log_probability(jnp.zeros(2), jnp.eye(2), box, method).log_prob


def by_minimum(scale):
    return tg.minimize(lambda x: (x - scale) ** 2, 0.0, progress=False).params


FIT = functools.cache(lambda: tg.fit_observations(tg.Observations.exact([1.0, 2.0, 4.0])))


def by_derived(scale):
    return FIT().derived(lambda p: scale * p.sigma).value


def by_report(scale):
    return tg.first_nonfinite(lambda x: scale * x, 1.0).amplification


def test_a_method_of_a_stranger_in_a_trace():
    assert jax.jit(jax.grad(by_stranger))(2.0) == -2.0


def test_a_method_of_a_stranger_is_refused_or_right():
    """JAX 0.12 makes what it closes over an argument; 0.10 cannot."""
    try:
        slope = jax.grad(by_stranger)(2.0)
    except TypeError as error:
        assert "closes over a value that JAX traces" in str(error)
    else:
        assert slope == -2.0


@pytest.mark.parametrize("function", [by_minimum, by_derived, by_report])
def test_what_cannot_become_an_argument_is_refused(function):
    with pytest.raises(TypeError, match="closes over a value that JAX traces"):
        jax.grad(function)(2.0)
