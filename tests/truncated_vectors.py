"""A truncated vector in two dimensions, with a method that gives what it is told."""

import jax
import jax.numpy as jnp
import numpy as np

import truncgauss as tg
from truncgauss.arrays.pytrees import frozen_pytree
from truncgauss.gaussian.problem import Estimate
from truncgauss.probability.method import Method

PAIR = np.array([[1.0, 0.3], [0.3, 2.0]])


@frozen_pytree
class Given(Method):
    """A made-up answer that moves with loc and compiles at once, where only its use is tested."""

    is_smoothed = True  # it may lie above the probability of a single limit
    stderr: float = 0.0

    def replicate(self, loc, covariance, region, key):
        return Estimate(-1.0 - 0.1 * jnp.sum(loc * loc), jnp.asarray(self.stderr, loc.dtype))


def vector_law(loc, covariance=PAIR, **options):
    return tg.TruncatedMultivariateNormal(loc, covariance, **{"method": Given(), **options})


def shape_of(function, *arguments):
    """The shape of what a function would return."""
    return jax.eval_shape(function, *arguments).shape
