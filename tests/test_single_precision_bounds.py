"""Bounds beyond the largest number of float32, which behave as infinite ones."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg

FAR = 1e300
LOC, MATRIX = [0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]]


def log_prob(region):
    return tg.log_probability(LOC, MATRIX, region).log_prob


CALLS = {
    "box": lambda high: log_prob(tg.Box([-1.0, -1.0], [high, 1.0])),
    "array": lambda high: log_prob(tg.Box(np.array([-1.0, -high]), np.array([high, 1.0]))),
    "polyhedron": lambda high: log_prob(tg.Polyhedron([[1.0, 1.0]], [-high], [1.0])),
    "outside": lambda high: log_prob(tg.Outside(tg.Box([-1.0, -1.0], [np.float64(high), 1.0]))),
    "rows": lambda high: tg.log_likelihood(
        tg.Observations([[0.0]], [[high]]), jnp.zeros(1), jnp.eye(1)
    ).log_prob,
    "interval": lambda high: tg.special.log_interval_mass(jnp.float32(0.0), high),
    "distribution": lambda high: tg.TruncatedNormal(0.0, 1.0, 0.0, high).log_prob(0.5),
    "vector": lambda high: tg.TruncatedMultivariateNormal(
        jnp.zeros(2), jnp.array(MATRIX), low=[-1.0, -1.0], high=[high, 1.0]
    ).log_prob(jnp.zeros(2)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_bound_beyond_float32_is_infinite_without_a_warning(name):
    with jax.enable_x64(False), warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(CALLS[name](FAR), CALLS[name](np.inf))
