"""Proposals for draws from a truncated Gaussian, by separation of variables with a minimax tilt.

The standardised variables are drawn one after the other, z_k from Normal(mu_k, 1) truncated to its
conditional interval. The importance weight of such a path is exp(psi(z)), see `tilting`, and the
saddle point bounds it: psi <= bound. A ball or ellipsoid has proposals from a Gaussian, tilted
by the Laplace transform of its quadratic form.

References:
    Botev (2017), The normal law under linear restrictions: simulation and estimation via minimax
    tilting. Asmussen and Glynn (2007), Stochastic Simulation, section 6.2, for exponential tilting.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.special import ndtri

from truncgauss.arrays.linalg import semidefinite_factor
from truncgauss.gaussian.problem import Problem
from truncgauss.gaussian.regions.region import LinearRegion, QuadraticRegion, Region, as_linear
from truncgauss.quadrature.quadratic_form import ball_coordinates, form_of, log_transform, principal
from truncgauss.quadrature.quadratic_tail import QuadraticForm, saddle
from truncgauss.separation.kernel import Constraints, intersected_paths, paths, with_free_end
from truncgauss.separation.lattice import open_uniforms
from truncgauss.separation.plan import Plan, arranged
from truncgauss.separation.planning import solve_plan
from truncgauss.special.logspace import less_level
from truncgauss.special.normal import log_interval_mass, moved_inside
from truncgauss.special.tails import standardize


def fresh_uniforms(key: Array, index: Any, shape: tuple[int, int], dtype: Any) -> Array:
    """Uniforms in the open interval (0, 1), a new set for each index under one key.

    Those in float64 have 52 random bits: of a million with 32 a hundred would be equal.
    """
    key = jax.random.fold_in(key, index)
    bits = jax.random.bits(key, shape, jnp.uint32)
    if dtype != jnp.float64:
        return open_uniforms(bits, dtype)
    lower = jax.random.bits(jax.random.fold_in(key, 1), shape, jnp.uint32) >> 12
    return (bits.astype(dtype) * 2.0**20 + lower.astype(dtype) + 0.5) * 2.0**-52


class Proposals(NamedTuple):
    """Paths z, shape (r, n), their points x, shape (d, n), and log weights less a common level."""

    draws: Array
    points: Array
    log_weights: Array
    level: Array


class Sampler(NamedTuple):
    """Proposals for limits on linear functions of x, in the order of a plan.

    The values of the constraints on a path z are loc + factor @ z. For a box these are the
    coordinates; for a polyhedron the coordinates are centre + lift @ z + rest @ g with another
    standard normal g, where `rest` is None if the constraints determine x.

    Attributes:
        constraints, extra: see `plan.Proposal`.
        tilt, bound, order: of the plan.
        region: the box or polyhedron.
        centre: mean of x.
        lift, rest: see above; `lift` is None for a box.
    """

    constraints: Constraints
    extra: Constraints
    tilt: Array
    bound: Array
    order: Array
    region: LinearRegion
    centre: Array
    lift: Array | None
    rest: Array | None

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
        """Paths and points from uniforms, shape (num_uniforms, n), with their weights."""
        constraints, extra, tilt = with_free_end(self.constraints, self.extra, self.tilt)
        r = len(self.tilt)
        if len(extra.low):
            draws, log_mass = intersected_paths(constraints, extra, tilt, uniforms[:r])
            values = self.values(draws)
        else:
            draws, means, log_mass = paths(constraints, tilt, uniforms[:r])
            plain = self.constraints
            values = plain.loc[:, None] + means[:r] + plain.scale[:, None] * draws
        # mu^2/2 - mu z, written around the draw z - mu so that large tilts do not cancel.
        tilt = self.tilt[:, None]
        terms = log_mass[:r] - tilt * (draws - tilt) - 0.5 * tilt * tilt
        points = self.points(draws, values, uniforms[r:])
        return Proposals(draws, points, *less_level(terms))

    def values(self, draws: Array) -> Array:
        """The values of all constraints on paths z of shape (r, n)."""
        loc = jnp.concatenate([self.constraints.loc, self.extra.loc])
        factor = jnp.concatenate([jnp.tril(self.constraints.factor), self.extra.factor])
        return loc[:, None] + factor @ draws

    def points(self, draws: Array, values: Array, uniforms: Array) -> Array:
        """The points x, shape (d, n), of paths with these values of the constraints."""
        if self.lift is not None:
            points = self.centre[:, None] + self.lift @ draws
            return points if self.rest is None else points + self.rest @ ndtri(uniforms)
        points = values[jnp.argsort(self.order)]
        return moved_inside(points, self.region.low[:, None], self.region.high[:, None])

    def inside(self, points: Array) -> Array:
        """Whether points, shape (d, n), lie in the region after rounding too."""
        if self.lift is None:  # where the coordinates are moved inside
            return jnp.ones(points.shape[1], bool)
        return self.region.contains_surely(points.T)


class GaussianSampler(NamedTuple):
    """Proposals from a Gaussian, accepted where and as often as the region keeps them.

    The proposals are x = center + axes @ y with independent y. By a tilt s > 0 their density is
    that of the untruncated Gaussian times exp(-s |y|^2), for regions inside of |y| <= 1.

    Attributes:
        region: any region.
        center: shape (d,).
        axes: shape (d, d).
        mean, scale: of the entries of y, shape (d,).
        tilt: s, shape ().
    """

    region: Region
    center: Array
    axes: Array
    mean: Array
    scale: Array
    tilt: Array

    @property
    def dimension(self) -> int:
        return len(self.mean)

    @property
    def num_draws(self) -> int:
        return self.dimension

    @property
    def num_uniforms(self) -> int:
        return self.dimension

    @property
    def bound(self) -> Array:
        return jnp.zeros_like(self.tilt)

    def proposals(self, uniforms: Array) -> Proposals:
        draws = self.mean[:, None] + self.scale[:, None] * ndtri(uniforms)
        points = self.center[:, None] + self.axes @ draws
        excess = self.tilt * (jnp.sum(draws * draws, axis=0) - 1.0)
        return Proposals(draws, points, excess + jnp.log(self.region.kept(points.T)), self.bound)

    def inside(self, points: Array) -> Array:
        return self.region.contains_surely(points.T)


def plain_sampler_of(row: Problem) -> GaussianSampler:
    """Proposals from the Gaussian itself."""
    loc, covariance, region = row
    root = semidefinite_factor(covariance.covariance_matrix)
    nothing = jnp.zeros_like(loc)
    return GaussianSampler(region, loc, root, nothing, jnp.ones_like(loc), nothing.sum())


def quadratic_sampler_of(row: Problem, region: QuadraticRegion) -> GaussianSampler:
    r"""Proposals for |y| <= 1, a ball or ellipsoid in its own coordinates, by principal axes.

    A proposal inside is accepted with probability exp{-s (1 - |y|^2)}. s is the saddle point of P,
    so that of all proposals about

    .. math:: \bigl(s \sqrt{2 \pi \kappa''(s)}\bigr)^{-1}

    are accepted, where kappa is the log of P's integrand: 1 in 12 for a small ball in 50
    dimensions. s is 0 where more are then accepted.
    """
    loc, covariance, region = lax.stop_gradient((row.loc, row.covariance, region))
    root, center = region.root, region.center
    mean, matrix = ball_coordinates(loc, covariance.covariance_matrix, center, root)
    gaussian = principal(mean, matrix)
    mean, variances = gaussian.mean, gaussian.variances
    weights, df, shifts = form_of(gaussian)
    tilt = saddle(QuadraticForm(-weights, df, -shifts), -jnp.ones_like(df)).point
    log_share = -tilt - jnp.real(log_transform(tilt[None], variances, mean, jnp.diag(variances)))[0]
    tilt = jnp.where(log_share > 0, tilt, 0.0)
    shrunk = 1.0 + 2.0 * tilt * variances
    return GaussianSampler(
        region, center, root @ gaussian.axes, mean / shrunk, jnp.sqrt(variances / shrunk), tilt
    )


def sampler_of(row: Problem, rank: int, plan: Plan | None = None) -> Sampler | GaussianSampler:
    """The proposals for one row, by a plan or by the minimax tilt.

    Args:
        row: one Gaussian and one region in units of about one.
        rank: of the values of the constraints; 0 if all are on constants.
        plan: order and tilt; solved if None.
    """
    if rank == 0:
        return plain_sampler_of(row)
    limits = row.limits
    plan = lax.stop_gradient(solve_plan(limits, True, rank) if plan is None else plan)
    constraints, extra = arranged(limits, plan.order, rank)
    bound = plan.bound
    if rank == 1:
        low, high, loc, _ = constraints
        bound = log_interval_mass(*standardize(low, high, loc, constraints.scale))[0]
    # Rounding of a sum of this size must not exceed the bound.
    bound = bound + 16.0 * float(jnp.finfo(bound.dtype).eps) * jnp.abs(bound)
    region = as_linear(row.region)
    lift, rest = region.lift(row.covariance, plan.order[:rank], constraints.factor)
    return Sampler(
        constraints, extra, plan.tilt, lax.stop_gradient(bound), plan.order, region, row.loc,
        lift, rest,
    )  # fmt: skip
