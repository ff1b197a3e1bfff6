"""Selections with parameters, and probit curves: values and derivatives, beside closed forms."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from jax.scipy.special import ndtr

import truncgauss as tg
from truncgauss.fits.gaussian import selected

LOC, COVARIANCE = jnp.array([0.2, -0.3]), jnp.array([[1.0, 0.3], [0.3, 0.8]])
WEIGHTS = jnp.array([1.0, 0.5])
THREE = jnp.array([[1.0, 0.5], [-0.3, 1.0], [0.2, 0.2]])


def log_prob(loc, covariance, weights, midpoint, width):
    return tg.log_probability(
        loc, covariance, tg.Selection.probit(weights, midpoint, width)
    ).log_prob


def true(loc, covariance, weights, midpoint, width):
    """log Phi((w . mu - m) / sqrt(w' S w + t^2)), with 50 digits."""
    w = mp.matrix(np.asarray(weights).tolist())
    mean = mp.fdot(w, np.asarray(loc).tolist()) - midpoint
    variance = (w.T * mp.matrix(np.asarray(covariance).tolist()) * w)[0] + mp.mpf(width) ** 2
    return mp.log(mp.ncdf(mean / mp.sqrt(variance)))


@pytest.mark.parametrize("midpoint", [-30.0, 1.0, 15.0, 300.0])
def test_one_curve_in_any_tail(midpoint):
    value = log_prob(LOC, COVARIANCE, WEIGHTS, midpoint, 0.7)
    with mp.workdps(300):
        truth = float(true(LOC, COVARIANCE, WEIGHTS, midpoint, 0.7))
    np.testing.assert_allclose(value, truth, rtol=1e-11)


def test_derivatives_in_mean_covariance_and_weights():
    arguments = LOC, COVARIANCE, WEIGHTS, 1.0, 0.7

    def closed(loc, covariance, weights, midpoint, width):
        variance = weights @ covariance @ weights + width**2
        return tg.special.log_ndtr((weights @ loc - midpoint) / jnp.sqrt(variance))

    for mine, truth in zip(*(jax.grad(f, (0, 1, 2))(*arguments) for f in (log_prob, closed))):
        np.testing.assert_allclose(mine, truth, rtol=1e-10)
    shifts = jnp.array([[0.0, 0.0], [2.0, -1.0]])
    mapped = jax.vmap(lambda shift: log_prob(LOC + shift, *arguments[1:]))(shifts)
    np.testing.assert_allclose(mapped, log_prob(LOC + shifts, *arguments[1:]), rtol=1e-12)
    single = [np.float32(x) for x in arguments]
    value = log_prob(*single)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, closed(*arguments), rtol=1e-5)


def test_moments_draws_and_rows_behind_a_probit_curve():
    region = tg.Selection.probit(WEIGHTS, 1.0, 0.7)
    # X given w . X + t e >= m, by regression on that score.
    variance = WEIGHTS @ COVARIANCE @ WEIGHTS + 0.7**2
    score = tg.TruncatedNormal(WEIGHTS @ LOC, jnp.sqrt(variance), low=1.0)
    slope = COVARIANCE @ WEIGHTS / variance
    mean = LOC + slope * (score.mean - WEIGHTS @ LOC)
    matrix = COVARIANCE + jnp.outer(slope, slope) * (score.variance - variance)
    moments = tg.truncated_moments(LOC, COVARIANCE, region)
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(moments.covariance, matrix, rtol=1e-8, atol=1e-10)
    draws = tg.truncated_samples(jax.random.key(0), LOC, COVARIANCE, region, 10_000)
    error = jnp.sqrt(jnp.diagonal(matrix) / 10_000)
    assert np.all(np.abs(draws.mean(0) - mean) < 5 * error)
    rows = tg.Observations.exact(draws[:3], region=region)
    result = tg.log_likelihood(rows, LOC, COVARIANCE)
    kept = tg.special.log_ndtr((draws[:3] @ WEIGHTS - 1.0) / 0.7)
    density = jax.scipy.stats.multivariate_normal.logpdf(draws[:3], LOC, COVARIANCE)
    truth = density + kept - log_prob(LOC, COVARIANCE, WEIGHTS, 1.0, 0.7)
    np.testing.assert_allclose(result.log_prob, truth, rtol=1e-10)
    assert np.all(result.stderr < 1e-10)


def curve(x, p):
    return ndtr((x @ p["weights"] - p["midpoint"]) / p["width"])


PARAMETERS = {"weights": WEIGHTS, "midpoint": 1.0, "width": 0.7}


def sampled(parameters, **settings):
    region = tg.Selection(curve, 2, True, parameters=parameters, **settings)
    return tg.log_probability(LOC, COVARIANCE, region, tg.ImportanceSampling())


def closed(p):
    return log_prob(LOC, COVARIANCE, p["weights"], p["midpoint"], p["width"])


def test_parameters_of_a_function_are_differentiated_twice():
    assert abs(sampled(PARAMETERS).log_prob - log_prob(LOC, COVARIANCE, WEIGHTS, 1.0, 0.7)) < 2e-4
    slopes = jax.grad(lambda p: sampled(p).log_prob)(PARAMETERS)
    compiled = jax.jit(jax.grad(lambda p: sampled(p).log_prob))(PARAMETERS)
    truth = jax.grad(closed)(PARAMETERS)
    for name, value in truth.items():
        np.testing.assert_allclose(slopes[name], value, atol=2e-3)
        np.testing.assert_allclose(compiled[name], slopes[name], rtol=1e-6)

    def along(f):
        return jax.hessian(lambda m, t: f(PARAMETERS | {"midpoint": m, "width": t}), (0, 1))

    bends = along(lambda p: sampled(p).log_prob)(1.0, 0.7)
    truth = along(closed)(1.0, 0.7)
    np.testing.assert_allclose(bends, truth, atol=5e-3)


@pytest.mark.full
def test_parameters_equal_numbers_that_a_function_closes_over():
    def closing(midpoint):
        region = tg.Selection(lambda x: curve(x, PARAMETERS | {"midpoint": midpoint}), 2, True)
        return tg.log_probability(LOC, COVARIANCE, region, tg.ImportanceSampling()).log_prob

    with_parameters = jax.value_and_grad(lambda m: sampled(PARAMETERS | {"midpoint": m}).log_prob)
    np.testing.assert_allclose(with_parameters(1.0), jax.value_and_grad(closing)(1.0), rtol=1e-9)

    def both(midpoint, width):  # one closed over, one a parameter
        region = tg.Selection(
            lambda x, p: curve(x, PARAMETERS | {"midpoint": midpoint, "width": p}),
            2,
            True,
            parameters=width,
        )
        return tg.log_probability(LOC, COVARIANCE, region, tg.ImportanceSampling()).log_prob

    slopes = jax.grad(both, (0, 1))(1.0, 0.7)
    truth = jax.grad(lambda p: sampled(p).log_prob)(PARAMETERS)
    np.testing.assert_allclose(slopes, [truth["midpoint"], truth["width"]], rtol=1e-9)


def test_one_selection_for_each_row():
    rows = jax.tree.map(lambda x: jnp.stack([x, x * 1.2]), jax.tree.map(jnp.asarray, PARAMETERS))
    together = sampled(rows, num_batch_axes=1).log_prob
    second = {name: value[1] for name, value in rows.items()}
    apart = [sampled(PARAMETERS).log_prob, sampled(second).log_prob]
    np.testing.assert_allclose(together, apart, rtol=1e-9)
    mapped = jax.vmap(lambda p: sampled(p).log_prob)(rows)
    np.testing.assert_allclose(mapped, apart, rtol=1e-9)
    probits = tg.Selection.probit(
        rows["weights"][:, None], rows["midpoint"][:, None], rows["width"][:, None]
    )
    each = [closed(p) for p in (PARAMETERS, second)]
    result = tg.log_probability(LOC, COVARIANCE, probits).log_prob
    np.testing.assert_allclose(result, each, rtol=1e-12)


def test_a_parameter_of_a_step_has_no_derivative():
    def step(m):
        region = tg.Selection(lambda x, m: x[0] > m, 2, True, parameters=m)
        return tg.log_probability(LOC, COVARIANCE, region, tg.ImportanceSampling(1024)).log_prob

    assert np.isfinite(step(0.5)) and np.isnan(jax.grad(step)(0.5))


def test_refusals():
    for parameters, kind, message in [
        ({"midpoint": 1, "width": 1.0}, TypeError, "midpoint"),
        ({"midpoint": jnp.nan}, ValueError, "must be finite"),
        ({"m": jnp.zeros(2), "t": jnp.ones(3)}, ValueError, "leading axes"),
    ]:
        with pytest.raises(kind, match=message):
            tg.Selection(curve, 2, parameters=parameters, num_batch_axes=int("m" in parameters))
    with pytest.raises(ValueError, match="kept with"):
        region = tg.Selection(lambda x, a: a * jnp.exp(x[0]), 2, parameters=2.0)
        tg.log_probability(LOC, COVARIANCE, region, tg.ImportanceSampling(1024))
    for arguments, message in [
        ((1.0, 0.0, 1.0), "weights need shape"),
        ((THREE, jnp.zeros(2), 1.0), "of 3 curves"),
        ((WEIGHTS, 0.0, 0.0), "width must be positive"),
    ]:
        with pytest.raises(ValueError, match=message):
            tg.Selection.probit(*arguments)


def test_the_reason_names_what_was_not_given():
    """Of a fit without a maximum: of a count within bounds, and of a curve."""
    rows = np.linspace(-1.5, 1.5, 12)[:, None]

    def cures(prior=None, num_unobserved=None, region=None, estimate="midpoint"):
        region = region or tg.Selection.probit([1.0], 0.0, 1.0)
        settings = estimate, prior, num_unobserved
        model = selected.model_of("fit_truncated_normal", rows, None, region, *settings)
        return model.flat.removeprefix(selected.FLAT)

    of_count = cures(None, 20, tg.Box([-9.0], [9.0]), ())
    assert of_count.endswith("check num_unobserved= and the bounds, or give a start=.")
    assert "estimate=" not in of_count

    count = "num_unobserved= if it is known how many were not observed."
    assert cures() == f" Leave a parameter out of estimate=, give a prior=, or {count}"
    assert cures(lambda p: 0.0) == f" Leave a parameter out of estimate=, or give {count}"
    assert cures(None, 9) == " Leave a parameter out of estimate=, or give a prior=."
    assert cures(lambda p: 0.0, 9) == " Leave a parameter out of estimate=."
