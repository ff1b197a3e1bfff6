"""Expectation propagation for limits on a Gaussian vector.

Each constraint low_i <= y_i <= high_i on a Gaussian vector y is replaced by a Gaussian factor, its
*site* exp(-t_i (y_i - c_i)^2 / 2). The Gaussian with all sites is the *posterior*, that without
site i the *cavity* of y_i. At the fixed point the cavity truncated to constraint i (the *tilted*
distribution) has the mean and variance of the posterior, for every i.

The formulas avoid cancellation in tails. The unknowns are the log variances log v_i and means m_i
of the cavities, which stay of moderate size while site precisions range from 0 (no limits) to 1e8;
sites are represented by precision and centre, not by precision times centre; and only the
covariance K of y is used, not its inverse, so it may be singular. With D = diag(sqrt t), V the
posterior variances and B = I + D K D,

    left_i = (B^-1)_ii = 1 - t_i V_i,   v_i = V_i / left_i,
    force = D B^-1 D c,   m = K force - v force.

Rounds of parallel updates approach the fixed point, and Newton's method converges to it: the
derivatives of the cavities in the sites follow from the posterior covariance, so that a step is one
linear solve of order 2 m, at the cost of about five rounds.

References:
    Minka (2001), Expectation Propagation for Approximate Bayesian Inference. Cunningham, Hennig and
    Lacoste-Julien (2011), Gaussian Probabilities and Expectation Propagation.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular

from truncgauss.arrays.linalg import diagonal_of, in_full_precision, product, times_vector
from truncgauss.arrays.pytrees import varying_like
from truncgauss.gaussian.regions.region import GaussianLimits
from truncgauss.special.intervals import nan_slope
from truncgauss.special.normal import log_interval_mass, quick_moments
from truncgauss.special.tails import Interval, fixed_interval, standardize

MAX_STEPS = 100
NEAR = 0.1  # residual below which Newton's method is tried
LEAST_FACTOR = 0.2  # the smallest fraction of a round's update that is taken
LONGEST_STEP = 2.0  # the largest change of a log variance in a step


class ScaledLimits(NamedTuple):
    """low <= y <= high for y = loc + scale * x, x ~ Normal(0, correlation); all of length m.

    `scale` is a constant: no derivative goes through it.
    """

    low: Array
    high: Array
    loc: Array
    scale: Array
    correlation: Array  # (m, m)

    @property
    def limits(self) -> tuple[Array, Array, Array]:
        """The low and high limits of each y, and its mean."""
        return self.low, self.high, self.loc


class Cavity(NamedTuple):
    """The cavity of each y, the Gaussian without its own site, in units of `scale` about `loc`."""

    log_variance: Array
    mean: Array


class Sites(NamedTuple):
    """The precision and centre of each site, in units of `scale` about `loc`."""

    precision: Array
    center: Array


class SitePosterior(NamedTuple):
    """The Gaussian with all sites.

    Attributes:
        variance, mean: of each coordinate of x, shape (m,).
        cavity: of each coordinate.
        force: gradient of the log normaliser in the mean of x, shape (m,).
        left: posterior variance over cavity variance, shape (m,).
        root: D, shape (m,).
        tril, inverse: the Cholesky factor and the inverse of B, shape (m, m).
        half: tril^-1 D K, shape (m, m).
    """

    variance: Array
    mean: Array
    cavity: Cavity
    force: Array
    left: Array
    root: Array
    tril: Array
    inverse: Array
    half: Array


class FixedPoint(NamedTuple):
    """Cavities, their sites, the posterior with these, and whether the solver converged.

    Of the posterior there are the mean of x and the force, see `SitePosterior`.
    """

    cavity: Cavity
    sites: Sites
    mean: Array
    force: Array
    converged: Array


def scaled_limits(limits: GaussianLimits) -> tuple[ScaledLimits, Array]:
    """The limits in units of standard deviations, and the log probability of degenerate inputs.

    That is -inf if an interval is empty, NaN if one is inverted or the covariance is not positive
    semi-definite, and 0 otherwise.
    """
    low, high, loc, matrix = limits.low, limits.high, limits.loc, limits.covariance
    empty, inverted = jnp.any(low == high), jnp.any(low > high)
    variances = jax.lax.stop_gradient(diagonal_of(matrix))
    # A coordinate of variance 0 has no limits here.
    fixed = variances <= 0
    scale = jnp.sqrt(jnp.where(fixed, 1.0, variances))
    correlation = jnp.where(
        fixed[:, None] | fixed[None, :], 0.0, matrix / scale[:, None] / scale[None, :]
    )
    correlation = correlation + jnp.diag(fixed.astype(matrix.dtype))
    constraints = ScaledLimits(low, high, loc, scale, correlation)
    known = jnp.where(inverted, jnp.nan, jnp.where(empty, -jnp.inf, 0.0)).astype(matrix.dtype)
    # The shift is larger than the rounding of the eigenvalues of a singular matrix.
    shift = 64 * len(correlation) * float(jnp.finfo(correlation.dtype).eps)
    identity = jnp.eye(len(correlation), dtype=correlation.dtype)
    # Finite for a positive semi-definite matrix, else NaN.
    defect = jnp.sum(jnp.linalg.cholesky(correlation + shift * identity))
    return constraints, known + 0.0 * jax.lax.stop_gradient(defect + jnp.sum(loc))


def _cut(cavity: Cavity, constraints: ScaledLimits) -> tuple[Array, Array, Array, Array]:
    """Mean and standard deviation of each cavity in the user's units, and the limits."""
    low, high, loc, scale, _ = constraints
    spread = scale * jnp.exp(0.5 * cavity.log_variance)
    return loc + scale * cavity.mean, spread, low, high


def log_masses(cavity: Cavity, constraints: ScaledLimits) -> Array:
    center, spread, low, high = _cut(cavity, constraints)
    return log_interval_mass(*standardize(low, high, center, spread))


def sites_of(
    cavity: Cavity, constraints: ScaledLimits, interval: Callable[..., Interval] = standardize
) -> Sites:
    """The sites with which each cavity has the mean and variance of its tilted distribution.

    For values only, `fixed_interval` may stand for `standardize`.
    """
    center, spread, low, high = _cut(cavity, constraints)
    cut = quick_moments(interval(low, high, center, spread))
    mean, variance = cut.mean, cut.variance
    lost = 1.0 - variance
    # A constraint that takes away no more than rounding of the variance is as none.
    active = lost > float(jnp.finfo(lost.dtype).eps) ** 0.75
    lost, variance = jnp.where(active, lost, 1.0), jnp.where(active, variance, 1.0)
    # In float32 the variance in a narrow interval may be 0.
    most = float(jnp.finfo(mean.dtype).max) ** 0.5
    precision = jnp.minimum(lost / variance * jnp.exp(-cavity.log_variance), most)
    center = jnp.exp(0.5 * cavity.log_variance) * mean / lost
    # A NaN is not active, and must not turn into a coordinate without limits.
    nan_propagator = 0.0 * jax.lax.stop_gradient(mean)
    return Sites(
        jnp.where(active, precision, nan_propagator),
        cavity.mean + jnp.where(active, center, nan_propagator),
    )


def posterior(sites: Sites, correlation: Array) -> SitePosterior:
    """The Gaussian with covariance `correlation` and mean 0, multiplied by all sites."""
    precision, center = sites
    positive = precision != 0
    root = jnp.where(positive, jnp.sqrt(jnp.where(positive, precision, 1.0)), 0.0)
    rows = root[:, None] * correlation
    identity = jnp.eye(len(root), dtype=root.dtype)
    tril = jnp.linalg.cholesky(identity + rows * root[None, :])
    right = jnp.concatenate([identity, rows, (root * center)[:, None]], axis=1)
    solved = solve_triangular(tril, right, lower=True)
    tril_inverse, half = solved[:, : len(root)], solved[:, len(root) : -1]
    force = root * times_vector(tril_inverse.T, solved[:, -1])
    mean, left = times_vector(correlation, force), jnp.sum(tril_inverse**2, 0)
    strong = left < 0.5
    variance = jnp.where(
        strong,
        (1.0 - left) / jnp.where(strong, precision, 1.0),
        diagonal_of(correlation) - jnp.sum(half**2, 0),
    )
    cavity_variance = variance / left
    cavity = Cavity(jnp.log(cavity_variance), mean - cavity_variance * force)
    inverse = tril_inverse.T @ tril_inverse
    return SitePosterior(variance, mean, cavity, force, left, root, tril, inverse, half)


def residual(cavity: Cavity, constraints: ScaledLimits) -> Cavity:
    """The change of the cavities by one round of parallel updates."""
    updated = posterior(sites_of(cavity, constraints), constraints.correlation).cavity
    return jax.tree.map(jnp.subtract, updated, cavity)


def _couplings(post: SitePosterior, correlation: Array) -> Array:
    """Posterior covariances over the variance of the row's coordinate, with a diagonal of 0.

    K - K D B^-1 D K cancels for sites of high precision; D Sigma = B^-1 D K does not.
    """
    strong = post.left < 0.5
    root = jnp.where(strong, post.root, 1.0)
    rows = post.inverse @ (post.root[:, None] * correlation) / root[:, None]
    both = -post.inverse / root[:, None] / root[None, :]
    neither = correlation - post.half.T @ post.half
    covariance = jnp.where(
        strong[:, None],
        jnp.where(strong[None, :], both, rows),
        jnp.where(strong[None, :], rows.T, neither),
    )
    return covariance / post.variance[:, None] * (1.0 - jnp.eye(len(root), dtype=root.dtype))


def jacobian(cavity: Cavity, constraints: ScaledLimits) -> Array:
    """The derivative of the residual, with means in units of cavity standard deviations.

    Shape (2 m, 2 m). With C the couplings, t and c the sites,

        d(1/v) = C^2 dt,   d(m/v) = C (t dc + (c - mean) dt) + mean C^2 dt   (C^2 by elements).
    """
    deviation = jnp.exp(0.5 * cavity.log_variance)
    one, zero = jnp.ones_like(deviation), jnp.zeros_like(deviation)
    directions = Cavity(jnp.stack([one, zero]), jnp.stack([zero, deviation]))
    sites, slopes = _sites_and_slopes(cavity, directions, constraints)
    post = posterior(sites, constraints.correlation)
    couplings = _couplings(post, constraints.correlation)
    variance = jnp.exp(post.cavity.log_variance)[:, None]
    squares, linear = variance * couplings**2, variance * couplings
    blocks = []
    for precision, center in zip(*slopes):
        turn = sites.precision * center + (sites.center - post.mean) * precision
        spread = squares * precision[None, :]
        shift = linear * turn[None, :] + (variance[:, 0] * post.force)[:, None] * spread
        blocks.append(jnp.concatenate([-spread, shift / deviation[:, None]]))
    slope = jnp.concatenate(blocks, 1)
    return slope - jnp.eye(len(slope), dtype=slope.dtype)


@jax.jit
def _sites_and_slopes(
    cavity: Cavity, directions: Cavity, constraints: ScaledLimits
) -> tuple[Sites, Sites]:
    """The sites and, along a new leading axis, their derivatives in each of the directions."""

    def along(direction: Cavity) -> tuple[Sites, Sites]:
        return jax.jvp(lambda cavity: sites_of(cavity, constraints), (cavity,), (direction,))

    return jax.vmap(along, out_axes=(None, 0))(directions)


class _Search(NamedTuple):
    """The state of the solver.

    Attributes:
        cavity, sites, mean, force: see `FixedPoint`.
        change: the residual, with means in units of cavity standard deviations, shape (2 m,).
        size: its root mean square.
        factor: the fraction of it that the next round adds.
        trusted: whether the next step is one of Newton's method.
        num_steps: steps taken.
    """

    cavity: Cavity
    sites: Sites
    mean: Array
    force: Array
    change: Array
    size: Array
    factor: Array
    trusted: Array
    num_steps: Array


def fixed_point(constraints: ScaledLimits, rtol: float | None = None) -> FixedPoint:
    """The cavities at the fixed point, to a root mean square residual of rtol.

    Rounds of parallel updates come first, each damped by the Barzilai-Borwein factor of the last
    two residuals. If no rtol is given, Newton steps follow until the residual is below eps^0.6. A
    residual of eps^(1/3) counts as converged, because the error of the log probability is of the
    order of its square.

    Reference:
        Barzilai and Borwein (1988), Two-point step size gradient methods.
    """
    eps = float(jnp.finfo(constraints.loc.dtype).eps)

    def newton(search: _Search) -> _Search:
        """One Newton step, undone if it does not halve the residual; then a round follows."""
        slope = jacobian(search.cavity, constraints)
        step = jnp.where(search.trusted, jnp.linalg.solve(slope, -search.change), search.change)
        length = jnp.where(search.trusted, 1.0, search.factor)
        moved = _moved(search, length, step, constraints)
        better = ~search.trusted | (moved.size < 0.5 * search.size)
        accepted = jax.tree.map(lambda new, old: jnp.where(better, new, old), moved, search)
        return accepted._replace(trusted=better, num_steps=moved.num_steps)

    def repeated(step: Callable[[_Search], _Search], search: _Search, size: float) -> _Search:
        unfinished = lambda search: (search.size > size) & (search.num_steps < MAX_STEPS)
        return jax.lax.while_loop(unfinished, step, search)

    nothing = jnp.zeros_like(constraints.loc)
    one, yes = jnp.ones((), nothing.dtype), jnp.asarray(True)
    # The Gaussian without sites; the first round only computes the residual there.
    start = Cavity(nothing, nothing), Sites(nothing, nothing), nothing, nothing
    search = _Search(*start, jnp.tile(nothing, 2), jnp.inf * one, one, yes, jnp.asarray(0))
    search = varying_like(search, constraints)
    damped = lambda search: _moved(search, search.factor, search.change, constraints)
    search = repeated(damped, search, NEAR if rtol is None else rtol)
    if rtol is None:
        search = repeated(newton, search, eps**0.6)
    converged = search.size <= (eps ** (1 / 3) if rtol is None else rtol)
    return FixedPoint(search.cavity, search.sites, search.mean, search.force, converged)


def _moved(search: _Search, length: Array, step: Array, constraints: ScaledLimits) -> _Search:
    """The state after a step, with the Barzilai-Borwein factor for the next round.

    Of the step the fraction `length` is taken, or less where a log variance would move too far.
    """
    farthest = jnp.max(jnp.abs(jnp.split(step, 2)[0]))
    length = jnp.minimum(length, jnp.minimum(1.0, LONGEST_STEP / farthest))
    log_variance, mean = jnp.split(length * step, 2)
    deviation = jnp.exp(0.5 * search.cavity.log_variance)
    cavity = Cavity(
        search.cavity.log_variance + log_variance, search.cavity.mean + deviation * mean
    )
    sites = sites_of(cavity, constraints, fixed_interval)
    post = posterior(sites, constraints.correlation)
    log_variance, mean = jax.tree.map(jnp.subtract, post.cavity, cavity)
    change = jnp.concatenate([log_variance, mean * jnp.exp(-0.5 * cavity.log_variance)])
    both = jnp.stack([search.change, change])
    (before, across), (_, after) = product(both, both.T)
    bend = across - before
    falling = bend < 0
    factor = -length * before / jnp.where(falling, bend, -1.0)
    factor = jnp.where(falling, jnp.clip(factor, LEAST_FACTOR, 1.0), 1.0)
    size = jnp.sqrt(after / len(change))
    state = change, size, factor, search.trusted, search.num_steps + 1
    return _Search(cavity, sites, post.mean, post.force, *state)


def differentiable(solution: FixedPoint, constraints: ScaledLimits) -> Cavity:
    """The cavities as a function of the constraints, by the implicit function theorem."""

    def tangent_solve(_: Any, change: Cavity) -> Cavity:
        slope = jacobian(solution.cavity, constraints)
        deviation = jnp.exp(0.5 * solution.cavity.log_variance)
        stacked = jnp.concatenate([change.log_variance, change.mean / deviation])
        log_variance, mean = jnp.split(jnp.linalg.solve(slope, stacked), 2)
        return Cavity(log_variance, deviation * mean)

    # Where JAX forgets the rule, in loops, a derivative is NaN, not that of cavities at rest.
    still = nan_slope(*constraints.limits, jnp.sum(constraints.correlation, axis=1))
    return jax.lax.custom_root(
        lambda cavity: residual(cavity, constraints),
        jax.lax.stop_gradient(solution.cavity),
        lambda _, cavity: jax.tree.map(lambda x: x + still, cavity),
        tangent_solve,
    )


@jax.custom_jvp
def free_energy(cavity: Cavity, constraints: ScaledLimits) -> Array:
    """The approximation of log P by expectation propagation, for given cavities.

    With Z_i the mass of a cavity between its limits,

        sum_i ( log Z_i + log(v_i / V_i) / 2 - m_i force_i / 2 ) - log det(B) / 2.

    It is stationary in the cavities at the fixed point, so that its derivatives are those at fixed
    cavities: 1/2 (force force^T - D B^-1 D) in the covariance, and those of the log Z_i in the
    limits and the mean.
    """
    post = posterior(sites_of(cavity, constraints), constraints.correlation)
    each = (
        log_masses(post.cavity, constraints)
        - 0.5 * jnp.log(post.left)
        - 0.5 * post.cavity.mean * post.force
    )
    return jnp.sum(each) - jnp.sum(jnp.log(diagonal_of(post.tril)))


@free_energy.defjvp
@in_full_precision
def _free_energy_jvp(primals: tuple[Cavity, ScaledLimits], tangents: Any) -> tuple[Array, Array]:
    cavity, constraints = primals
    change = tangents[1]
    post = posterior(sites_of(cavity, constraints), constraints.correlation)
    slope = (
        jnp.outer(post.force, post.force) - post.root[:, None] * post.inverse * post.root[None, :]
    )

    def masses(low: Array, high: Array, loc: Array) -> Array:
        moved = constraints._replace(low=low, high=high, loc=loc)
        return jnp.sum(log_masses(post.cavity, moved))

    _, of_limits = jax.jvp(masses, constraints.limits, change.limits)
    return free_energy(cavity, constraints), 0.5 * jnp.sum(slope * change.correlation) + of_limits
