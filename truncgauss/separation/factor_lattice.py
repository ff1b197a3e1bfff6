"""The integral over a few common factors, in any number, on randomly shifted lattice points.

Only the factors are drawn: f = anchor + scale t, t of the product law of logistic variables, and

    P = E[ phi(f) det(scale) prod_j mass_j(f) / prod_k q(t_k) ].

Anchor and scale are about the mean and the covariance of the integrand. That is log-concave, so its
tails fall at least exponentially, as those of the logistic density q do.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array, lax

from truncgauss.covariances import LowRank
from truncgauss.points import lattice_points, open_uniforms
from truncgauss.problem import Estimate
from truncgauss.quadrature.factor_integrand import Integrand, Plan, about, solve_plan
from truncgauss.special import log_mean_exp

MIN_EFFECTIVE_POINTS = 10.0
# A logistic density of standard deviation 1.18: wider than the integrand, on purpose.
WIDTH = 0.65


def replicates(
    loc: Array,
    covariance: LowRank,
    low: Array,
    high: Array,
    plan: Plan | None,
    keys: Array,
    num_points: int,
) -> Estimate:
    """One estimate of log P(low <= X <= high) for each of R keys; all else of shape (d,).

    With a plan from `solve_plan`, or one found here for None. The stderr of each is what it can say
    alone: inf where fewer than ten points carry it, else nan. An empty interval makes P = 0, an
    inverted one or a NaN makes NaN.
    """
    invalid = jnp.any(jnp.isnan(low) | jnp.isnan(high) | (low > high))
    empty = jnp.any(low == high)
    # Nothing can be planned for an integrand that is 0 everywhere.
    low = jnp.where(invalid | empty, -jnp.inf, low)
    high = jnp.where(invalid | empty, jnp.inf, high)
    plan = solve_plan(loc, covariance, low, high) if plan is None else plan
    plan = lax.stop_gradient(plan)
    integrand = about(plan.anchor, loc, covariance, low, high)
    weights, level = log_weights(integrand, plan, lattice(keys, num_points, covariance.rank, loc))
    weights = weights.reshape(len(keys), num_points)
    log_probs = log_mean_exp(weights, axis=1) + level
    log_probs = jnp.where(empty, log_probs - jnp.inf, log_probs)
    log_probs = jnp.where(invalid, jnp.nan, log_probs)
    at_mode = log_weight_at_mode(lax.stop_gradient(integrand), plan)
    effective = effective_points(lax.stop_gradient(weights), at_mode)
    alone = jnp.where(effective < MIN_EFFECTIVE_POINTS, jnp.inf, jnp.nan)
    return Estimate(log_probs, jnp.where(empty, 0.0, alone).astype(loc.dtype))


def lattice(keys: Array, num_points: int, rank: int, like: Array) -> Array:
    """Uniforms of shape (R * n, r): a lattice, shifted anew for each key.

    It is not folded: the integrand vanishes with all derivatives on the faces of the cube.
    """
    points = lattice_points(num_points, rank)
    shifts = jax.vmap(lambda key: jax.random.bits(key, (rank,), jnp.uint32))(keys)
    bits = points + shifts[:, None, :]
    return open_uniforms(bits.reshape(-1, rank), like.dtype)


def log_weights(integrand: Integrand, plan: Plan, uniforms: Array) -> tuple[Array, Array]:
    """The log weight of each point (n, r), shape (n,), less a common level; and that level."""
    spread = WIDTH * (jnp.log(uniforms) - jnp.log1p(-uniforms))
    offsets = jnp.matmul(spread, plan.scale.T, precision="highest")
    heights, level = integrand.heights(offsets)
    log_density = jnp.sum(jnp.log(uniforms) + jnp.log1p(-uniforms) - math.log(WIDTH), axis=-1)
    return heights - log_density + log_determinant(plan), level


def log_determinant(plan: Plan) -> Array:
    return jnp.sum(jnp.log(jnp.diagonal(plan.scale)))


def log_weight_at_mode(integrand: Integrand, plan: Plan) -> Array:
    """The log weight that a point at the mode would have, on the level of `log_weights`."""
    offset = plan.mode - plan.anchor
    spread = jax.scipy.linalg.solve_triangular(plan.scale, offset, lower=True) / WIDTH
    height = integrand.heights(offset[None])[0][0]
    log_density = jnp.sum(jax.nn.log_sigmoid(spread) + jax.nn.log_sigmoid(-spread))
    log_density = log_density - len(offset) * math.log(WIDTH)
    return height - log_density + log_determinant(plan)


def effective_points(log_weights: Array, at_mode: Array) -> Array:
    """(sum w)^2 / sum w^2 of each row, the mode being one more point.

    Weights that all miss the bulk of the integrand may be alike; the mode then outweighs them.
    """
    others = jnp.broadcast_to(at_mode, (len(log_weights), 1))
    full = jnp.concatenate([log_weights, others], axis=1)
    shares = jnp.exp(full - jnp.max(full, axis=1, keepdims=True))
    return shares.sum(1) ** 2 / jnp.sum(shares**2, axis=1)
