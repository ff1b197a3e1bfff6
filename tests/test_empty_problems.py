"""Problems at the edge of what makes sense: without rows, dimensions, constraints or digits."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg

INF = jnp.inf
METHODS = {
    "exact": tg.Exact(),
    "separation": tg.Separation(64, 4),
    "propagation": tg.ExpectationPropagation(),
    "sequential": tg.SequentialMonteCarlo(64, 2),
    "soft": tg.SoftMonteCarlo(64),
    "automatic": tg.Automatic(),
}
SOME_QUICK = [
    pytest.param(method, id=name, marks=() if name == "soft" else pytest.mark.full)
    for name, method in METHODS.items()
]
ORTHANT = tg.Box([0.0, 0.0], INF)


@pytest.mark.parametrize("method", SOME_QUICK)
@pytest.mark.parametrize("where", ["loc", "covariance", "region"])
def test_a_batch_without_rows_has_answers_without_rows(method, where):
    loc, covariance, region = jnp.zeros(2), jnp.eye(2), ORTHANT
    if where == "loc":
        loc = jnp.zeros((3, 0, 2))
    elif where == "covariance":
        covariance = jnp.zeros((3, 0, 2, 2))
    else:
        region = tg.Box(jnp.zeros((3, 0, 2)), INF)
    estimate = tg.log_probability(loc, covariance, region, method)
    assert estimate.log_prob.shape == estimate.stderr.shape == (3, 0)
    total = lambda loc: tg.log_probability(loc, covariance, region, method).log_prob.sum()
    np.testing.assert_array_equal(jax.grad(total)(loc), jnp.zeros_like(loc))
    if where == "loc":
        moments = tg.truncated_moments(loc, covariance, region, method)
        assert moments.mean.shape == (3, 0, 2) and moments.covariance.shape == (3, 0, 2, 2)


def test_draws_plans_and_programs_of_no_rows():
    rows = jnp.zeros((0, 2))
    of = lambda loc: tg.log_probability(loc, jnp.eye(2), ORTHANT).log_prob
    assert jax.jit(of)(rows).shape == jax.vmap(of)(rows).shape == (0,)
    draws = tg.truncated_draws(jax.random.key(0), rows, jnp.eye(2), ORTHANT, 5)
    assert draws.samples.shape == (5, 0, 2) and draws.acceptance_rate.shape == (0,)
    held = tg.Separation(64, 4).hold(rows, jnp.eye(2), ORTHANT)
    assert tg.log_probability(rows, jnp.eye(2), ORTHANT, held).log_prob.shape == (0,)


def test_no_dimensions_are_refused():
    with pytest.raises(ValueError, match="the dimension is 0: without coordinates there is"):
        tg.log_probability(jnp.zeros(0), jnp.zeros((0, 0)), tg.Box([], []))


@pytest.mark.quick("float16")
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_is_for_one_interval_only(dtype):
    """With a covariance it ended in an error of the linear algebra underneath."""
    with pytest.raises(ValueError, match=f"{dtype.__name__} has too few digits for a covariance"):
        low = jnp.zeros(2, dtype)
        tg.log_probability(low, jnp.eye(2, dtype=dtype), tg.Box(low, low + 1))
    law = [jnp.asarray(x, dtype) for x in (0.0, 1.0, 4.0, INF)]
    log_mass = tg.special.truncated_log_mass(*law)
    assert log_mass.dtype == dtype
    np.testing.assert_allclose(float(log_mass), -10.360101, rtol=4 * float(jnp.finfo(dtype).eps))


def test_complex_numbers_are_refused():
    for loc, low in ((jnp.array([1j, 0.0]), 0.0), (jnp.zeros(2), 1j)):
        with pytest.raises(ValueError, match="real numbers are expected"):
            tg.log_probability(loc, jnp.eye(2), tg.Box([low, low], [INF, INF]))


@pytest.mark.quick("edges")
@pytest.mark.parametrize("name", ["safe", "edges", "special", "parallel"])
def test_modules_are_reachable_at_once(name):
    """`tg.safe` was there only once another import had brought it."""
    code = f"import truncgauss as tg; tg.{name}"
    subprocess.run([sys.executable, "-c", code], check=True)
