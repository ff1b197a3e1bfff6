"""The minimax tilt for a covariance in blocks, by products of its factor with vectors.

Newton's method as in the module `tilting`; its linear systems, whose matrix is the identity plus a
positive semi-definite one, are solved by conjugate gradients to a few digits, which an iteration
that corrects itself can do with. A step is then of order d^2 rather than d^3.

Reference:
    Nocedal and Wright (2006), Numerical Optimization, section 7.1, inexact Newton methods.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.scipy.sparse.linalg import cg

from truncgauss.separation import block_factor
from truncgauss.separation.block_paths import BlockLimits, inner_point
from truncgauss.separation.tilting import Tilt, saddle_of
from truncgauss.special import standardize

PRECISE = 1e-3  # gain in log P by another Newton step; a proposal needs few digits
RESIDUAL = 1e-2  # of the linear systems, relative
MOST_PRODUCTS = 60


class BlockTriangle(NamedTuple):
    """The unit triangle diag(L)^-1 L of a factor in blocks.

    Attributes:
        factor: L.
        scale: its diagonal, in blocks, shape (n, b).
    """

    factor: Array
    scale: Array

    def times(self, x: Array) -> Array:
        product = block_factor.times(self.factor, x.reshape(self.scale.shape))
        return (product / self.scale).ravel()

    def transposed_times(self, x: Array) -> Array:
        scaled = x.reshape(self.scale.shape) / self.scale
        return block_factor.transposed_times(self.factor, scaled).ravel()

    def strict_times(self, x: Array) -> Array:
        return self.times(x) - x

    def strict_transposed_times(self, x: Array) -> Array:
        return self.transposed_times(x) - x

    def solve(self, root: Array, right: Array) -> Array:
        def system(x: Array) -> Array:
            return x + root * self.times(self.transposed_times(root * x))

        return cg(system, right, tol=RESIDUAL, maxiter=MOST_PRODUCTS)[0]


def tilt_of(factor: Array, limits: BlockLimits) -> Tilt:
    """The minimax tilt of all variables, shape (n * b,), without a bound of log P."""
    scale = block_factor.scales(factor)
    unit = BlockTriangle(factor, scale)
    low, high, loc = (x.ravel() for x in limits)
    interval = standardize(low, high, loc, scale.ravel())
    start = inner_point(factor, limits).ravel()
    result = saddle_of(unit, interval, start, PRECISE)
    return result._replace(bound=jnp.full_like(result.bound, jnp.inf))
