"""Probabilities outside of linear limits."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from truncgauss.arrays.compiling import Compiled, closed_form
from truncgauss.arrays.linalg import row_norms
from truncgauss.arrays.pytrees import frozen_pytree
from truncgauss.gaussian.covariances import Covariance
from truncgauss.gaussian.problem import CovarianceLike, Estimate, Loc, Problem, as_problem
from truncgauss.gaussian.regions.outside import pieces_outside
from truncgauss.gaussian.regions.region import LinearRegion, Region, as_linear
from truncgauss.probability.exact import Exact, applies
from truncgauss.probability.method import Method, average_in_turns, with_fields
from truncgauss.probability.separation import Separation
from truncgauss.special.logspace import log_sum_exp


@frozen_pytree
class Complement(Method):
    r"""The probability outside of a box or a polyhedron, as a sum over disjoint pieces.

    .. math:: P(X \notin R) = \sum_j P(\text{constraint } j \text{ violated below or above, all
        constraints before } j \text{ met})

    Nothing cancels, however small the probability is. Each of the 2 m terms is the probability of
    a `Box` or `Polyhedron`, by the same method.

    Args:
        method: for the pieces; `Exact` or `Separation`. stderr is at most the sum of theirs.

    Raises:
        ValueError: for other regions than the `Outside` of linear limits.

    Example:
        >>> outside = tg.Outside(tg.Box([-9.0, -9.0], [9.0, 9.0]))
        >>> tg.log_probability([0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]], outside).log_prob.round(8)
        Array(-42.24185483, dtype=float64)
    """

    method: Method = Exact()

    own_units = False

    @classmethod
    def candidate(cls, problem: Problem, num_points: int) -> "Complement | None":
        region = problem.region
        if not region.is_outside or not region.enclosed.is_linear:
            return None
        if applies(problem.covariance, region.enclosed):
            return cls()
        return cls(Separation(num_points=num_points))

    def reason(self, problem: Problem) -> str:
        pieces = "integrated exactly" if isinstance(self.method, Exact) else "by Separation"
        return f"the complement of linear bounds, a sum over disjoint pieces, each {pieces}"

    def for_problem(self, problem: Problem) -> "Complement":
        """The method with `Exact` for pieces of a singular pair, where these are polygons."""
        region = problem.region
        if not region.is_outside or not region.enclosed.is_linear:
            raise ValueError(
                "Complement applies to tg.Outside of a Box or a Polyhedron, got a "
                f"{type(region).__name__}. Use tg.Automatic()."
            )
        fresh = with_fields(self.method, **dict.fromkeys(self.method.held_fields))
        served = fresh.for_problem(problem._replace(region=region.enclosed))
        held, count = self.method.batch_shape[-1:], 2 * as_linear(region.enclosed).num_constraints
        if held not in ((), (count,)):
            raise ValueError(
                f"Complement: the plan that is held is of {held[0]} pieces, this problem has "
                f"{count}. Hold the method for this problem: method.hold(loc, covariance, region)."
            )
        return replace(self, method=served) if isinstance(served, Exact) else self

    def hold(self, loc: Loc, covariance: CovarianceLike, region: Region) -> "Complement":
        fresh = with_fields(self.method, **dict.fromkeys(self.method.held_fields))
        problem = as_problem(loc, covariance, region)
        return replace(self, method=fresh).for_problem(problem).planned(problem)

    def planned(self, problem: Problem) -> "Complement":
        """The method with a plan for each piece, which follow the rows."""
        rows = problem.batch_shape
        pieces, _ = pieces_outside(as_linear(problem.region.enclosed.broadcast_to(rows)))
        held = self.method.hold(problem.loc, problem.covariance, pieces)
        plans = {name: getattr(held, name) for name in held.held_fields}
        plans = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, len(rows)), plans)
        return replace(self, method=with_fields(held, **plans))

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.method.batch_shape[:-1]

    def broadcast_to(self, batch_shape: tuple[int, ...]) -> "Complement":
        last = self.method.batch_shape[-1:]
        method = self.method.broadcast_to((*batch_shape, *last)) if last else self.method
        return replace(self, method=method)

    def replicate(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, key: Array
    ) -> Estimate:
        limits = as_linear(region.enclosed)
        pieces, empty = pieces_outside(limits)
        # A point mass on a face is inside.
        value, still = limits.rows(loc), row_norms(limits.rows(covariance.root)) == 0
        on_face = jnp.concatenate([value == limits.low, value == limits.high])
        empty = empty | jnp.concatenate([still, still]) & on_face

        def of_piece(piece: LinearRegion, method: Method) -> Estimate:
            return average_in_turns(method, Problem(loc, covariance, piece), key)

        plans = 0 if self.method.batch_shape else None
        parts = jax.vmap(of_piece, (0, plans))(pieces, self.method)
        log_prob, stderr = sum_of_pieces(parts, empty)
        # The sum exceeds 1 by no more than the errors of its terms.
        log_prob = log_prob - jax.lax.stop_gradient(jnp.maximum(log_prob, 0.0))
        log_prob = jnp.where(region.is_proper, log_prob, jnp.nan)
        return Estimate(log_prob, jnp.where(jnp.isnan(log_prob), jnp.nan, stderr))

    def numbers_held(self, dimension: int) -> int:
        return 2 * dimension * self.method.numbers_held(dimension)


@partial(Compiled, cost=closed_form)
def sum_of_pieces(parts: Estimate, empty: Array) -> Estimate:
    """log P of disjoint pieces, along a first axis, whose errors may have one sign."""
    log_probs = jnp.where(empty, -jnp.inf, parts.log_prob)
    log_prob = log_sum_exp(log_probs, axis=0)
    shares = jnp.where(log_probs == -jnp.inf, 0.0, jnp.exp(log_probs - log_prob))
    return Estimate(log_prob, jnp.sum(jnp.where(shares == 0, 0.0, shares * parts.stderr), axis=0))
