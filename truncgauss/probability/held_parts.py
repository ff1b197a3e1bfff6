"""Held plans for the independent blocks of a problem, with their recognised structure."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from truncgauss.execution.pytrees import frozen_pytree, static_field, values_of
from truncgauss.gaussian.covariances import Covariance
from truncgauss.gaussian.problem import Estimate, Problem
from truncgauss.gaussian.regions import Box, Region, as_linear
from truncgauss.probability.differentiation import Answer, structured_estimate
from truncgauss.probability.method import Method, average
from truncgauss.probability.refinement import Found
from truncgauss.probability.structure import Part

ROUNDING = 8.0  # units in the last place of the product of two standard deviations


@frozen_pytree
class HeldParts(Method):
    """The sum of log probabilities over the independent blocks of a box, with held plans.

    `Automatic.hold` returns it where it separates blocks, leaves out coordinates without limits, or
    recognises a Markov chain or a common factor. It applies to a single covariance matrix: means
    and limits may change, and be differentiated; for another matrix the estimate over blocks is
    NaN. Where a coordinate that was left out has limits now, the method for all coordinates
    replaces the blocks. Derivatives in the matrix, at this one, are those in a general matrix.

    Args:
        methods: the held method of each block.
        covariances: the covariance of each block.
        matrix: the covariance matrix of all coordinates, shape (d, d).
        places: the indices of the coordinates of each block, None for all (static).
        whole: the held method of all coordinates, None where none is left out.

    Raises:
        ValueError: for anything but a `Box` and one covariance matrix of the same dimension.
    """

    methods: tuple[Method, ...]
    covariances: tuple[Covariance, ...]
    matrix: Array
    places: tuple[tuple[int, ...] | None, ...] = static_field()
    whole: Method | None = None

    own_units = False  # each block has units of its own

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes of plans held for many problems."""
        every = self.methods if self.whole is None else (*self.methods, self.whole)
        return jnp.broadcast_shapes(*(method.batch_shape for method in every))

    def broadcast_to(self, batch_shape: tuple[int, ...]) -> "HeldParts":
        """The method with its plans broadcast to leading axes."""

        def spread(leaf: Array) -> Array:
            return jnp.broadcast_to(leaf, batch_shape + leaf.shape)

        def of_rows(method: Method) -> Method:
            return (
                method.broadcast_to(batch_shape)
                if method.batch_shape
                else jax.tree.map(spread, method)
            )

        methods = tuple(map(of_rows, self.methods))
        whole = None if self.whole is None else of_rows(self.whole)
        covariances, matrix = jax.tree.map(spread, (self.covariances, self.matrix))
        return HeldParts(methods, covariances, matrix, self.places, whole)

    def check(self, loc: Float[Array, "*batch d"], covariance: Covariance, region: Region) -> None:
        d = self.matrix.shape[-1]
        if not isinstance(region, Box) or covariance.dimension != d:
            raise ValueError(
                f"the plan that is held was made for a tg.Box and a covariance matrix in {d} "
                f"dimensions, this problem has a {type(region).__name__} in "
                f"{covariance.dimension}. Hold the method for this problem: "
                "method.hold(loc, covariance, region)."
            )

    def serving(self, covariance: Covariance, region: Region) -> Method:
        """The method of all coordinates or that of the blocks, where the limits are numbers."""
        box = values_of(region) if isinstance(region, Box) else None
        if self.whole is None or box is None or covariance.dimension != self.matrix.shape[-1]:
            return self
        limited = self._limits_left_out(np.asarray(box.low), np.asarray(box.high))
        if not limited.any():
            return replace(self, whole=None)
        return self.whole.serving(covariance, region) if limited.all() else self

    def _limits_left_out(self, low: Any, high: Any) -> Any:
        """Whether each row has limits on coordinates that are in no block."""
        used = np.concatenate([np.array(places) for places in self.places])
        others = np.setdiff1d(np.arange(self.matrix.shape[-1]), used)
        return ((low[..., others] != -np.inf) | (high[..., others] != np.inf)).any(-1)

    def replicate(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, key: Array
    ) -> Estimate:
        """The estimate over the blocks, or over all coordinates where others have limits."""
        box, whole = as_linear(region), self.whole
        if whole is None:
            return self._over_blocks(loc, covariance, box, key)
        return lax.cond(
            self._limits_left_out(box.low, box.high),
            lambda row: average(whole, row, key),
            lambda row: self._over_blocks(row.loc, row.covariance, row.region, key),
            Problem(loc, covariance, box),
        )

    def _over_blocks(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, key: Array
    ) -> Estimate:
        """The sum over the blocks; NaN for another covariance matrix than the held one."""
        given = zip(self.methods, self.covariances, self.places, self._keys(key), strict=True)
        answers = [
            Answer(
                Part(Problem(loc, own, region), None if places is None else np.array(places)),
                Found(method, None, recipe=((method, None),)),
                part_key,
            )
            for method, own, places, part_key in given
        ]
        matrix = covariance.covariance_matrix
        log_prob, stderr = structured_estimate(answers, loc, region, matrix)
        asked = lax.stop_gradient(matrix)
        scale = jnp.sqrt(jnp.diagonal(self.matrix))
        gap = ROUNDING * float(jnp.finfo(loc.dtype).eps) * scale[:, None] * scale[None, :]
        same = jnp.all(jnp.abs(asked - self.matrix) <= gap)
        # A product, so that derivatives are NaN too.
        return Estimate(log_prob * jnp.where(same, 1.0, jnp.nan), jnp.where(same, stderr, jnp.nan))

    def _keys(self, key: Array) -> Array:
        """The keys of the blocks, as in `Automatic.parts`."""
        return key[None] if len(self.methods) == 1 else jax.random.split(key, len(self.methods))
