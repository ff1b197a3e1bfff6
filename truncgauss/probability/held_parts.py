"""What `Automatic` sees in the numbers of a problem, held: its parts and their structure."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from truncgauss.covariances import Covariance, CovarianceMatrix
from truncgauss.probability.differentiation import Answer, structured_estimate
from truncgauss.probability.method import Method
from truncgauss.probability.refinement import Found
from truncgauss.probability.structure import Part
from truncgauss.problem import Estimate, Problem
from truncgauss.pytrees import frozen_pytree, static_field
from truncgauss.regions import Box, Region

ROUNDING = 8.0  # units in the last place, of the product of two standard deviations


@frozen_pytree
class HeldParts(Method):
    """Independent parts of a box with one covariance matrix, each with its structure and method.

    `Automatic.hold` returns it where it splits blocks, drops coordinates or recognises a chain or a
    common factor. It is made for one covariance matrix: means and limits may change, and be
    differentiated; for another matrix the answer is NaN. Derivatives in the matrix, at this one,
    are the general ones.

    Args:
        methods: the held method of each part.
        covariances: the covariance of each part.
        matrix: the covariance matrix of all coordinates, shape (d, d).
        places: the coordinates of each part, None for all (static).

    Raises:
        ValueError: for anything but a `Box` and one covariance matrix of the same dimension.
    """

    methods: tuple[Method, ...]
    covariances: tuple[Covariance, ...]
    matrix: Array
    places: tuple[tuple[int, ...] | None, ...] = static_field()

    own_units = False  # each part has units of its own

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes of plans held for many problems."""
        return jnp.broadcast_shapes(*(method.batch_shape for method in self.methods))

    def broadcast_to(self, batch_shape: tuple[int, ...]) -> "HeldParts":
        """The same plans, or plans, for every row."""
        spread = lambda leaf: jnp.broadcast_to(leaf, batch_shape + leaf.shape)
        methods = tuple(
            method.broadcast_to(batch_shape) if method.batch_shape else jax.tree.map(spread, method)
            for method in self.methods
        )
        covariances = jax.tree.map(spread, self.covariances)
        return replace(self, methods=methods, covariances=covariances, matrix=spread(self.matrix))

    def check(self, loc: Array, covariance: Covariance, region: Region) -> None:
        d = self.matrix.shape[-1]
        fits = isinstance(region, Box) and isinstance(covariance, CovarianceMatrix)
        if not fits or covariance.dimension != d:
            raise ValueError(
                f"the plan that is held was made for a tg.Box and a covariance matrix in {d} "
                f"dimensions, this problem has a {type(region).__name__} and a "
                f"{type(covariance).__name__} in {covariance.dimension}. Hold the method for this "
                "problem: method.hold(loc, covariance, region)."
            )

    def replicate(self, loc: Array, covariance: Covariance, region: Region, key: Array) -> Estimate:
        """The sum over the parts; NaN where the covariance matrix is not the one it is held for."""
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
        return Estimate(jnp.where(same, log_prob, jnp.nan), jnp.where(same, stderr, jnp.nan))

    def _keys(self, key: Array) -> Array:
        # As the plain call has them.
        return key[None] if len(self.methods) == 1 else jax.random.split(key, len(self.methods))
