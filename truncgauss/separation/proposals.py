"""Proposals for draws from a truncated Gaussian: paths of the tilted separation, and their points.

A path draws one standardised variable after the other, from Normal(mu_k, 1) truncated to the
interval that the earlier ones leave it, the last one too. Its weight is exp(psi(z)), see `tilting`,
and the saddle point mu bounds it, psi <= bound.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.special import ndtri

from truncgauss.covariances import CovarianceMatrix
from truncgauss.linalg import semidefinite_factor
from truncgauss.points import open_uniforms
from truncgauss.problem import Problem
from truncgauss.regions import Box
from truncgauss.separation.arrangement import arranged
from truncgauss.separation.kernel import Constraints, intersected_paths, paths
from truncgauss.separation.plan import Plan
from truncgauss.separation.planning import solve_plan
from truncgauss.special import log_interval_mass, moved_inside, standardize


def fresh_uniforms(key: Array, turn: Any, shape: tuple[int, int], dtype) -> Array:
    """Uniforms of the open interval: all that a turn needs at once, as each call is compiled."""
    return open_uniforms(jax.random.bits(jax.random.fold_in(key, turn), shape, jnp.uint32), dtype)


class Proposals(NamedTuple):
    """Paths z, shape (r, n), the points x they lead to, (d, n), and weights less a common level."""

    draws: Array
    points: Array
    log_weights: Array
    level: Array


class Sampler(NamedTuple):
    """A law limited by linear constraints, in the order of its plan.

    A path z makes the constraints' values loc + factor z. In a box these are the coordinates; in a
    polyhedron the coordinates are `centre + lift @ z` and, if fewer constraints than coordinates
    have a say, `rest @ g` with another standard normal g.
    """

    constraints: Constraints
    extra: Constraints
    tilt: Array
    bound: Array
    order: Array
    region: Any
    centre: Array
    lift: Array | None
    rest: Array | None
    pins: Array | None  # the value of a coordinate that the limits leave no room, else NaN

    @property
    def dimension(self) -> int:
        return len(self.centre)

    @property
    def num_draws(self) -> int:
        return len(self.tilt)

    @property
    def num_uniforms(self) -> int:
        return self.num_draws + (0 if self.rest is None else self.dimension)

    def proposals(self, uniforms: Array) -> Proposals:
        """Paths through these points of the open unit cube."""
        constraints, extra, tilt = self._with_free_end()
        r = len(self.tilt)
        if len(extra.low):
            draws, log_mass = intersected_paths(constraints, extra, tilt, uniforms[:r])
            values = self.values(draws)
        else:
            draws, means, log_mass = paths(constraints, tilt, uniforms[:r])
            own = self.constraints
            values = own.loc[:, None] + means[:r] + own.scale[:, None] * draws
        # mu^2/2 - mu z, written around the draw z - mu so that large tilts do not cancel.
        tilt = self.tilt[:, None]
        terms = log_mass[:r] - tilt * (draws - tilt) - 0.5 * tilt * tilt
        fixed = lax.stop_gradient(terms)
        level = jnp.mean(fixed, axis=1, where=jnp.isfinite(fixed), keepdims=True)
        level = jnp.where(jnp.isfinite(level), level, 0.0)
        log_weights = jnp.sum(terms - level, axis=0)
        return Proposals(draws, self.points(draws, values, uniforms[r:]), log_weights, level.sum())

    def _with_free_end(self) -> tuple[Constraints, Constraints, Array]:
        """The same with one more variable, without limits.

        The last variable of a path is not drawn, because its weight does not need it.
        """
        low, high, loc, factor = self.constraints
        grown = jnp.pad(factor, (0, 1)).at[-1, -1].set(1.0)
        constraints = Constraints(
            jnp.append(low, -jnp.inf), jnp.append(high, jnp.inf), jnp.append(loc, 0.0), grown
        )
        extra = self.extra._replace(factor=jnp.pad(self.extra.factor, ((0, 0), (0, 1))))
        return constraints, extra, jnp.append(self.tilt, 0.0)

    def values(self, draws: Array) -> Array:
        """The values of all constraints on these paths."""
        loc = jnp.concatenate([self.constraints.loc, self.extra.loc])
        factor = jnp.concatenate([jnp.tril(self.constraints.factor), self.extra.factor])
        return loc[:, None] + factor @ draws

    def points(self, draws: Array, values: Array, uniforms: Array) -> Array:
        if self.lift is not None:
            points = self.centre[:, None] + self.lift @ draws
            return points if self.rest is None else points + self.rest @ ndtri(uniforms)
        points = values[jnp.argsort(self.order)]
        points = moved_inside(points, self.region.low[:, None], self.region.high[:, None])
        if self.pins is None:
            return points
        return jnp.where(jnp.isnan(self.pins)[:, None], points, self.pins[:, None])

    def inside(self, points: Array) -> Array:
        """Whether points (d, n) that should lie in the region do so in spite of rounding."""
        if self.lift is None:
            return jnp.ones(points.shape[1], bool)
        values, size = self.region.matrix @ points, jnp.abs(self.region.matrix) @ jnp.abs(points)
        # Whoever checks may add in another order.
        slack = 2.0 * float(jnp.finfo(points.dtype).eps) * size
        low, high = self.region.low[:, None], self.region.high[:, None]
        return jnp.all((values >= low + slack) & (values <= high - slack), axis=0)

    def all_constraints(self) -> Constraints:
        own, extra = self.constraints, self.extra
        own = own._replace(factor=jnp.tril(own.factor))
        return Constraints(*(jnp.concatenate(pair) for pair in zip(own, extra)))


class PlainSampler(NamedTuple):
    """Proposals of the law without limits, for a ball, or if nothing that is limited varies."""

    row: Problem

    @property
    def dimension(self) -> int:
        return len(self.row.loc)

    @property
    def num_draws(self) -> int:
        return self.dimension

    @property
    def num_uniforms(self) -> int:
        return self.dimension

    @property
    def bound(self) -> Array:
        return jnp.zeros((), self.row.loc.dtype)

    def proposals(self, uniforms: Array) -> Proposals:
        loc, covariance, _ = self.row
        draws = ndtri(uniforms)
        points = loc[:, None] + semidefinite_factor(covariance.covariance_matrix) @ draws
        return Proposals(draws, points, jnp.zeros_like(points[0]), self.bound)

    def inside(self, points: Array) -> Array:
        return self.row.region.contains(points.T)


def sampler_of(row: Problem, rank: int, pinned: bool, plan: Plan | None = None) -> Sampler:
    """The law and its plan, ready for proposals."""
    pins = None
    if pinned:
        row, pins = _given_pins(row)
    limits = row.limits
    plan = lax.stop_gradient(solve_plan(limits, True, rank) if plan is None else plan)
    constraints, extra = arranged(limits, plan.order, rank)
    bound = plan.bound
    if rank == 1:
        first = constraints[:3]
        bound = log_interval_mass(*standardize(*first, constraints.scale))[0]
    # What rounding may add to a sum of this size must not exceed the bound.
    bound = bound + 16.0 * float(jnp.finfo(bound.dtype).eps) * jnp.abs(bound)
    lift, rest = row.region.lift(row.covariance, plan.order[:rank], constraints.factor)
    return Sampler(
        constraints, extra, plan.tilt, lax.stop_gradient(bound), plan.order, row.region, row.loc,
        lift, rest, pins,
    )  # fmt: skip


def _given_pins(row: Problem) -> tuple[Problem, Array]:
    """The law given the coordinates whose limits are equal, those then free and independent."""
    loc, covariance, (low, high) = row.loc, row.covariance, (row.region.low, row.region.high)
    pinned = low == high
    pair = pinned[:, None] | pinned
    identity = jnp.eye(len(loc), dtype=loc.dtype)
    matrix = covariance.covariance_matrix
    cross = jnp.where(pinned, matrix, 0.0)
    inner = jnp.where(pinned[:, None], cross, identity)
    gain = jnp.linalg.solve(inner, cross.T).T
    moved = loc + gain @ jnp.where(pinned, low - loc, 0.0)
    box = Box(jnp.where(pinned, -jnp.inf, low), jnp.where(pinned, jnp.inf, high))
    matrix = jnp.where(pair, identity, matrix - gain @ cross.T)
    given = Problem(jnp.where(pinned, 0.0, moved), CovarianceMatrix(matrix), box)
    return given, jnp.where(pinned, low, jnp.nan)
