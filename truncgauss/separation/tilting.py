"""The minimax tilt, for separation of variables and for exact draws.

The standardised variables are drawn one after the other, X_k from Normal(mu_k, 1) truncated to its
conditional interval. The importance weight of such a path is exp(psi), with

    psi(x, mu) = sum_k  mu_k^2 / 2 - mu_k x_k + log mass_k,
    mass_k = Phi(h_k) - Phi(l_k),   l_k, h_k = (low_k, high_k - (L x)_k) / L_kk - mu_k,

where L x runs over the variables before k. The mu of the saddle point, max over x and min over mu,
makes the largest weight smallest; the value there is an upper bound of log P.

Reference:
    Botev (2017), The normal law under linear restrictions: simulation and estimation via minimax
    tilting.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import cho_factor, cho_solve

from truncgauss.arrays.linalg import diagonal_of, times_vector
from truncgauss.arrays.pytrees import varying_like
from truncgauss.special.normal import quick_moments
from truncgauss.special.tails import Interval, fixed_interval

MAX_STEPS = 100
MAX_HALVINGS = 40
MAX_INNER_STEPS = 60
NARROW = 0.25  # an interval is narrow if its width is below this power of eps
ROUNDED = 256.0  # of log P in units of its last digit: a smaller gain is rounding


class Tilt(NamedTuple):
    """A minimax tilt and its saddle point.

    Attributes:
        tilt: mu, shape (d,); its last entry is 0.
        bound: an upper bound of log P; inf where the solver did not converge.
        converged: whether it did. If not, the tilt is 0, which is valid too.
        point: x at the saddle point, shape (d,).
    """

    tilt: Array
    bound: Array
    converged: Array
    point: Array


class DenseTriangle(NamedTuple):
    """A unit lower-triangular matrix U = diag(L)^-1 L, and the product of it and its transpose."""

    unit: Array
    gram: Array

    def times(self, x: Array) -> Array:
        return times_vector(self.unit, x)

    def transposed_times(self, x: Array) -> Array:
        return times_vector(self.unit.T, x)

    def strict_times(self, x: Array) -> Array:
        return times_vector(jnp.tril(self.unit, -1), x)

    def strict_transposed_times(self, x: Array) -> Array:
        return times_vector(jnp.tril(self.unit, -1).T, x)

    def solve(self, root: Array, right: Array) -> Array:
        """The solution of (I + diag(root) U U^T diag(root)) x = right."""
        matrix = jnp.eye(len(root), dtype=root.dtype) + root[:, None] * self.gram * root[None, :]
        return cho_solve(cho_factor(matrix, lower=True), right)


class _Iterate(NamedTuple):
    x: Array
    mu: Array
    value: Array  # min over mu of psi(x, mu)
    slope: Array  # its gradient in x
    variance: Array  # of the truncated distributions
    dx: Array  # the Newton step from here, in x and in mu
    dmu: Array
    gain: Array  # twice the predicted increase of the value


def saddle(factor: Array, low: Array, high: Array, start: Array) -> Tilt:
    """The minimax tilt: Newton's method for the concave function x -> min over mu of psi(x, mu).

    For x inside the region the minimum over mu consists of d separate convex problems. It tends to
    -inf at the faces, which makes it a barrier function, for which Newton's method with
    backtracking converges up to rounding. With v the variances of the truncated distributions,
    q = 1 - v and U = diag(L)^-1 L, the negative Hessian is I + U^T diag(q / v) U. It is inverted by
    the Cholesky factor of I + W^(1/2) U U^T W^(1/2), W = q / v, whose eigenvalues are at least 1.

    It runs in float64, whatever the dtype of the inputs, where JAX has it. At a limit 38 standard
    deviations away float32 ends at a value that is right to a millionth, with a tilt so far off
    that the weights exceed that value, as a bound, by a factor of 3.

    Args:
        factor: L, lower triangular, shape (d, d).
        low, high: limits less the mean, shape (d,).
        start: standard-normal coordinates of a point inside the region, shape (d,).
    """
    dtype, widest = low.dtype, jax.dtypes.canonicalize_dtype(jnp.float64)
    factor, low, high, start = (x.astype(widest) for x in (factor, low, high, start))
    scale = diagonal_of(factor)
    unit = factor / scale[:, None]
    precise = 1e-9 if widest == jnp.float64 else 1e-3
    limits = fixed_interval(low, high, jnp.zeros_like(low), scale)
    tilt = saddle_of(DenseTriangle(unit, unit @ unit.T), limits, start, precise)
    tilts = {name: getattr(tilt, name).astype(dtype) for name in ("tilt", "bound", "point")}
    return tilt._replace(**tilts)


def saddle_of(unit: DenseTriangle, limits: Interval, start: Array, precise: float) -> Tilt:
    """The minimax tilt for a triangular matrix that may be no array.

    Args:
        unit: U, of `DenseTriangle` or a class with the same methods.
        limits: less the mean and over the scale, shape (d,).
        start: as for `saddle`.
        precise: the gain in log P by another Newton step, beside rounding, below which the solver
            stops.
    """
    zero = jnp.zeros_like(start)
    nowhere = jnp.full((), -jnp.inf, start.dtype)
    before = _Iterate(start, zero, nowhere, zero, zero, zero, zero, -nowhere)

    eps = float(jnp.finfo(start.dtype).eps)

    def rounded(now: _Iterate) -> Array:
        """Whether all that another step would gain is rounding of log P; not where its parts only
        cancel, as they do by chance once slopes are rounding."""
        value = jnp.where(jnp.isfinite(now.value), now.value, 0.0)
        return jnp.sum(jnp.abs(now.slope * now.dx)) < ROUNDED * eps * jnp.abs(value)

    def unfinished(state: Any) -> Array:
        now, num_steps, stuck = state
        return (now.gain > precise) & ~rounded(now) & (num_steps < MAX_STEPS) & ~stuck

    def advance(state: Any) -> Any:
        now, num_steps, _ = state
        later, moved = _line_search(unit, limits, now)
        # The Newton step from there, at which both linearised gradients of psi vanish.
        v = later.variance
        q = jnp.maximum(1.0 - v, 1e-30)
        root = jnp.sqrt(q / v)
        inner = root * unit.solve(root, root * unit.times(later.slope))
        dx = later.slope - unit.transposed_times(inner)
        dmu = inner / q - unit.strict_times(dx)
        later = later._replace(dx=dx, dmu=dmu, gain=jnp.abs(later.slope @ dx))
        return later, num_steps + 1, ~moved

    now, _, _ = jax.lax.while_loop(
        unfinished, advance, varying_like((before, 0, jnp.zeros((), bool)), unit)
    )
    converged = ((now.gain <= precise) | rounded(now)) & jnp.isfinite(now.value)
    bound = jnp.where(converged, now.value + now.gain, jnp.inf)
    # The last variable is not drawn, so its weight would not correct for a tilt.
    tilt = jnp.where(converged, now.mu, 0.0).at[-1].set(0.0)
    # In a narrow interval the draw is nearly uniform whatever the tilt, and the tilt, which depends
    # on the slope across the interval, is ill-conditioned and may be large, which costs digits.
    # Leaving it out changes a weight by at most the factor exp(|mu| width).
    low, high, width = limits
    narrow = width < eps**NARROW
    # The width of the interval that the solver saw is the difference of two rounded limits.
    seen = eps * (jnp.abs(low) + jnp.abs(high)) / jnp.where(narrow & (width > 0), width, 1.0)
    bound = bound + jnp.sum(jnp.where(narrow, jnp.abs(tilt * width) + seen, 0.0))
    tilt = jnp.where(narrow, 0.0, tilt)
    return Tilt(tilt, bound, converged, now.x)


def _line_search(unit: DenseTriangle, limits: Interval, now: _Iterate) -> tuple[_Iterate, Array]:
    """The first point along the repeatedly halved step that is inside and has a larger value."""
    place, move = unit.times(now.x), unit.times(now.dx)
    room = jnp.where(move < 0, limits.low - place, limits.high - place)
    reach = jnp.min(jnp.where(move == 0, jnp.inf, room / jnp.where(move == 0, 1.0, move)))
    slack = 16.0 * float(jnp.finfo(now.x.dtype).eps) * jnp.abs(now.value)

    def trial(state: Any) -> Any:
        _, length, halvings, _ = state
        later = _minimum_over_mu(unit, limits, now.x + length * now.dx, now.mu + length * now.dmu)
        wanted = now.value + 1e-4 * length * jnp.where(halvings > 0, now.gain, 0.0) - slack
        sufficient = later.value >= jnp.where(jnp.isfinite(now.value), wanted, -jnp.inf)
        return later, 0.5 * length, halvings + 1, sufficient

    length = jnp.minimum(1.0, 0.95 * reach)
    start = varying_like((now, length, 0, jnp.zeros((), bool)), unit)
    unfound = lambda state: ~state[3] & (state[2] < MAX_HALVINGS)
    later, _, _, sufficient = jax.lax.while_loop(unfound, trial, start)
    return jax.tree.map(lambda new, old: jnp.where(sufficient, new, old), later, now), sufficient


def _minimum_over_mu(unit: DenseTriangle, limits: Interval, x: Array, mu: Array) -> _Iterate:
    """min over mu of psi(x, mu), where the truncated means equal x, by Newton's method from mu.

    The truncated mean increases with mu, convexly below the middle of the interval and concavely
    above it. A step across the middle (across x, if only one limit is finite) ends there; all
    further steps approach the root from one side.
    """
    others = unit.strict_times(x)
    low, high = limits.low - others, limits.high - others
    both = jnp.isfinite(low) & jnp.isfinite(high)
    middle = jnp.where(both, 0.5 * (jnp.where(both, low, 0.0) + jnp.where(both, high, 0.0)), x)
    lower_half = jnp.where(both, x < middle, jnp.isfinite(low))
    precise = 1e-10 if x.dtype == jnp.float64 else 1e-5
    rounding = 16.0 * float(jnp.finfo(x.dtype).eps)

    def step(state: Any) -> Any:
        mu, *_, num_steps = state
        shift = mu + others
        cut = quick_moments(fixed_interval(limits.low, limits.high, shift, 1.0))
        variance = cut.variance
        mean = jnp.clip(shift, limits.low, limits.high) + cut.offset - others
        error = mean - x
        moved = mu - error / variance
        moved = jnp.where(lower_half, jnp.minimum(moved, middle), jnp.maximum(moved, middle))
        error = jnp.max((jnp.abs(error) - rounding * jnp.abs(mean + others)) / jnp.sqrt(variance))
        return moved, mu, mean - mu, variance, cut.log_mass, error, num_steps + 1

    unfinished = lambda state: (state[-2] > precise) & (state[-1] < MAX_INNER_STEPS)
    state = varying_like((mu, mu, x, x, x, jnp.full((), jnp.inf, x.dtype), 0), x)
    _, mu, pull, variance, log_mass, error, _ = jax.lax.while_loop(unfinished, step, state)
    value = jnp.sum(0.5 * mu * mu - mu * x + log_mass)
    value = jnp.where(error <= jnp.sqrt(precise), value, jnp.nan)
    zero = jnp.zeros_like(x)
    slope = unit.strict_transposed_times(pull) - mu
    return _Iterate(x, mu, value, slope, variance, zero, zero, zero[0])
