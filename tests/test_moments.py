"""Moments of the truncated law: closed forms, quadrature, identities, draws, and each other."""

import jax.numpy as jnp
import numpy as np

import truncgauss as tg

INF = np.inf


def test_one_dimension_is_the_truncated_normal():
    low = jnp.array([[5.0], [100.0], [-INF], [-1.0]])
    high = jnp.array([[INF], [115.0], [-38.0], [2.0]])
    moments = tg.truncated_moments([0.0], [[4.0]], tg.Box(low, high))
    law = 0.0, 2.0, low, high
    np.testing.assert_allclose(moments.mean, tg.special.truncated_mean(*law), rtol=1e-15)
    np.testing.assert_allclose(
        moments.covariance[..., 0], tg.special.truncated_variance(*law), rtol=1e-15
    )
    assert not np.any(moments.mean_stderr) and not np.any(moments.covariance_stderr)
