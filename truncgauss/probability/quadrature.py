"""The integral of a log-concave function of one variable, in logs, on panels laid about its mode.

Where the panels lie is a plan: it is found under `stop_gradient`, only the panels that end at a
limit move with it. The sum over nodes is then one smooth function of its inputs, and its
derivatives of every order are those of the integral, to the accuracy of the quadrature.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.pytrees import varying_like

# Beyond a fall of exp(-42) from the mode nothing reaches the last digit of float64; the rest is for
# layouts by a function that knows the integrand only to a factor.
DROP = 54.0
NUM_UNIFORM = 8
MAX_STEPS = 80
NUM_NODES = 20

LogDensity = Callable[[jax.Array], jax.Array]


class Support(NamedTuple):
    """Where a log-concave function is highest, and where it has fallen by `DROP` on either side."""

    left: jax.Array
    mode: jax.Array
    right: jax.Array


def support(log_density: LogDensity, low: jax.Array, high: jax.Array) -> Support:
    """The support of log_density(z) = -z^2/2 + concave, for z standard normal a priori.

    The slope of the concave part at 0 bounds the mode: -z + slope(z) changes sign between 0 and
    slope(0). Newton's method, kept inside that bracket, finds it; from outside, where the function
    is steeper, Newton's method walks to each fall without overshooting it.
    """

    def slope(z):
        return jax.jvp(log_density, (z,), (jnp.ones_like(z),))[1]

    mode = decreasing_root(slope, jnp.zeros_like(low))
    mode = jnp.clip(mode, low, high)
    reach = (2.0 * DROP) ** 0.5
    start = jnp.clip(jnp.stack([mode - reach, mode + reach]), low, high)
    left, right = fall(log_density, mode, start)
    return Support(left, mode, right)


def decreasing_root(fun: LogDensity, origin: jax.Array) -> jax.Array:
    """The root of a decreasing function whose slope is at most -1."""
    value = fun(origin)
    below, above = origin + jnp.minimum(value, 0.0), origin + jnp.maximum(value, 0.0)

    def step(state):
        z, below, above, count, _ = state
        value, bend = jax.jvp(fun, (z,), (jnp.ones_like(z),))
        below, above = jnp.where(value > 0, z, below), jnp.where(value > 0, above, z)
        newton = z - value / bend
        inside = (newton > below) & (newton < above)
        # Every third step halves, so that the bracket closes whatever the function does.
        halve = ~inside | (count % 3 == 2)
        following = jnp.where(halve, 0.5 * (below + above), newton)
        # Layout needs the mode to a fraction of the local width 1/sqrt(-bend), no better.
        near = value * value <= 1e-4 * -bend
        return jnp.where(near, z, following), below, above, count + 1, near

    def unfinished(state):
        return ~state[-1] & (state[-2] < MAX_STEPS)

    start = (origin, below, above, jnp.asarray(0), jnp.asarray(False))
    state = varying_like(start, value)
    return jax.lax.while_loop(unfinished, step, state)[0]


def fall(log_density: LogDensity, mode: jax.Array, start: jax.Array) -> jax.Array:
    """Where log_density has fallen by about DROP from the mode, sought inwards from `start`."""
    floor = log_density(mode) - DROP

    def heights(z):
        return jax.vmap(lambda z: jax.jvp(log_density, (z,), (jnp.ones_like(z),)))(z)

    def step(state):
        z, count, _ = state
        value, slope = heights(z)
        beyond = value < floor - 4.0
        inward = z + (floor - value) / jnp.where(slope == 0, 1.0, slope)
        return jnp.where(beyond, inward, z), count + 1, jnp.any(beyond)

    def unfinished(state):
        return state[-1] & (state[-2] < MAX_STEPS)

    state = varying_like((start, jnp.asarray(0), jnp.asarray(True)), floor)
    return jax.lax.while_loop(unfinished, step, state)[0]


def panels(left: jax.Array, right: jax.Array, scales: jax.Array) -> jax.Array:
    """Sorted breakpoints on [left, right]: evenly spread, and crowded towards both ends.

    A factor that switches from 1 to 0 over a short length does so near an end of the support,
    because the function is negligible a few such lengths further. `scales` holds those lengths.
    """
    near = jnp.asarray([3.5, 8.0, 13.0, 18.0], scales.dtype) * scales[:, None]
    return graded_panels(left, right, near.ravel())


def graded_panels(left: jax.Array, right: jax.Array, near: jax.Array) -> jax.Array:
    """Sorted breakpoints on [left, right]: evenly spread, and at lengths `near` from both ends."""
    span = right - left
    near = jnp.minimum(near, span)
    even = left + span * jnp.linspace(0.0, 1.0, NUM_UNIFORM + 1, dtype=span.dtype)[1:-1]
    inner = jnp.clip(jnp.concatenate([even, left + near, right - near]), left, right)
    return jnp.sort(jnp.concatenate([jnp.stack([left, right]), inner]))


def rule(breakpoints: jax.Array, num_nodes: int = NUM_NODES) -> tuple[jax.Array, jax.Array]:
    """Gauss-Legendre nodes and weights on every panel, flattened."""
    nodes, weights = (
        jnp.asarray(part, breakpoints.dtype) for part in np.polynomial.legendre.leggauss(num_nodes)
    )
    half = 0.5 * jnp.diff(breakpoints)[:, None]
    middle = 0.5 * (breakpoints[1:] + breakpoints[:-1])[:, None]
    return (middle + half * nodes).ravel(), (half * weights).ravel()


def touches(found: Support, low: jax.Array, high: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whether the support reaches the lower and the upper limit.

    With a slack, since equality does not survive a compiler that computes a limit twice; a support
    taken too far does no harm.
    """
    eps = jnp.finfo(found.mode.dtype).eps
    slack = 1e-3 * (found.right - found.left) + 16 * eps * jnp.abs(found.mode)
    return found.left - low <= slack, high - found.right <= slack


def reaching(breakpoints: jax.Array, at_low: jax.Array, at_high: jax.Array) -> jax.Array:
    """Breakpoints whose first and last stand for the limits, by an infinity, if they are to."""
    first = jnp.where(at_low, -jnp.inf, breakpoints[0])
    last = jnp.where(at_high, jnp.inf, breakpoints[-1])
    return breakpoints.at[0].set(first).at[-1].set(last)


def between(breakpoints: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """Breakpoints kept inside [low, high]; those that stand for a limit move with it.

    None of the others may, however close it comes: a compiler that computes a limit twice would
    find it on either side, and move a weight but not its node.
    """
    fixed = jax.lax.stop_gradient(jnp.clip(breakpoints, low, high))
    first = jnp.where(jnp.isinf(breakpoints[0]), low, fixed[0])
    last = jnp.where(jnp.isinf(breakpoints[-1]), high, fixed[-1])
    return jnp.concatenate([first[None], fixed[1:-1], last[None]])


class Along(NamedTuple):
    """What is integrated over, X1 or a factor, at the nodes, and what is left of the others there.

    Attributes:
        anchor: a value of it.
        mean: that of X2, or of all d coordinates, there.
        offsets: from the anchor, shape (n,).
        turns: of the mean with it, shape (n,) or (n, d).
        log_values: of the integrand, less `constant`, shape (n,).
        constant: its log density at the anchor, but for sqrt(2 pi).
        weights: of the quadrature, shape (n,).
    """

    anchor: jax.Array
    mean: jax.Array
    offsets: jax.Array
    turns: jax.Array
    log_values: jax.Array
    constant: jax.Array
    weights: jax.Array


def log_weighted_sum(log_values: jax.Array, weights: jax.Array) -> jax.Array:
    """log(sum(weights * exp(log_values))) over all nodes, differentiable in both."""
    size = jax.lax.stop_gradient(jnp.max(jnp.where(weights > 0, log_values, -jnp.inf)))
    size = jnp.where(jnp.isfinite(size), size, 0.0)
    return size + jnp.log(jnp.sum(weights * jnp.exp(log_values - size)))
