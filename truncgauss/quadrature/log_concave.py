"""The integral of a log-concave function of one variable, in logs, on panels laid about its mode.

Where the panels lie is a plan: it is found under `stop_gradient`, only the panels that end at a
limit move with it. The sum over nodes is then one smooth function of its inputs, and its
derivatives of every order are those of the integral, to the accuracy of the quadrature.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from truncgauss.special.logspace import sigmoid

# Beyond a fall of exp(-42) from the mode nothing reaches the last digit of float64; the rest is for
# layouts by a function that knows the integrand only to a factor.
DROP = 54.0
NUM_UNIFORM = 8
MAX_STEPS = 80
NUM_NODES = 24
# A rule of 24 nodes is right to 1e-14 on a panel that is eight times as long as what it must
# resolve: the width of a normal density, or of a step like Phi(z / width).
REACH = 8.0
LEAST_PANELS = 2  # an exponential that falls by DROP over the support takes two

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

    # From the inputs, so that their kind is that of the inputs on a device mesh too.
    count = jnp.zeros_like(origin, int)
    state = (origin, below, above, count, count > 0)
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

    count = jnp.zeros_like(mode, int)
    return jax.lax.while_loop(unfinished, step, (start, count, count == 0))[0]


class Zones(NamedTuple):
    """Where a function must be resolved more finely than elsewhere, and the length it has there."""

    start: jax.Array
    stop: jax.Array
    length: jax.Array


def end_zones(left: jax.Array, right: jax.Array, lengths: jax.Array) -> Zones:
    """Zones at both ends of a support for factors that switch from 1 to 0 over these lengths.

    They do so near an end, because the function is negligible some ten such lengths further, and
    eight lengths inwards the factor is 1 to the last digit; the panel that leaves the zone begins
    no more than REACH before its end.
    """
    depth = (18.0 + REACH) * lengths
    begin, end = jnp.broadcast_to(left, depth.shape), jnp.broadcast_to(right, depth.shape)
    both = lambda x, y: jnp.concatenate([x, y])
    return Zones(both(begin, right - depth), both(left + depth, end), both(lengths, lengths))


def mesh(
    left: jax.Array, right: jax.Array, length: jax.Array, zones: Zones, most: int
) -> tuple[jax.Array, jax.Array]:
    """Breakpoints on [left, right], shape (most + 1,), and the number of panels in use.

    Every panel is at most REACH times as long as what is to be resolved there: `length`, together
    with that of each zone it lies in. Breakpoints that are not in use repeat the last one.
    """
    limits = jnp.concatenate([jnp.stack([left, right]), zones.start, zones.stop])
    edges = jnp.sort(jnp.clip(jnp.where(jnp.isnan(limits), left, limits), left, right))
    spans, middles = jnp.diff(edges), 0.5 * (edges[1:] + edges[:-1])
    within = (zones.start <= middles[:, None]) & (middles[:, None] <= zones.stop)
    finest = jnp.max(jnp.where(within, 1.0 / zones.length, 0.0), axis=-1)
    costs = jnp.where(spans > 0, spans * jnp.hypot(1.0 / length, finest), 0.0) / REACH
    ends = jnp.cumsum(costs)
    # The comparison also takes a NaN to a number of panels.
    count = jnp.where(ends[-1] > LEAST_PANELS, jnp.ceil(jnp.minimum(ends[-1], most)), LEAST_PANELS)
    shares = jnp.minimum(jnp.arange(most + 1, dtype=count.dtype), count) / count
    covered = jnp.clip(shares[:, None] * ends[-1] - (ends - costs), 0.0, costs)
    steps = covered * (spans / jnp.where(costs > 0, costs, 1.0))
    breakpoints = jnp.where(shares < 1, left + steps.sum(-1), right)
    return breakpoints, count.astype(int)


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


def touches(log_density: LogDensity, mode: jax.Array, limits: jax.Array) -> jax.Array:
    """Whether the function still matters at each of the limits, so that the integral ends there.

    Decided by how far it has fallen, not by how close a support comes: a whole edge may hide in a
    thousandth of the span. `fall` leaves a point alone where less than DROP + 4 is lost; the slack
    beyond that is for a compiler that computes a limit twice, and by concavity it makes the support
    longer by a fifteenth at most.
    """
    finite = jnp.isfinite(limits)
    heights = jax.vmap(log_density)(jnp.where(finite, limits, mode))
    return finite & (heights >= log_density(mode) - DROP - 8.0)


def reaching(breakpoints: jax.Array, at_low: jax.Array, at_high: jax.Array) -> jax.Array:
    """Breakpoints of which the first and the last stand for the limits, if they are to."""
    last = breakpoints == breakpoints[-1]
    breakpoints = jnp.where(last & at_high, jnp.inf, breakpoints)
    return breakpoints.at[0].set(jnp.where(at_low, -jnp.inf, breakpoints[0]))


def between(breakpoints: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """Breakpoints kept inside [low, high]; those that stand for a limit move with it.

    None of the others may, however close it comes: a compiler that computes a limit twice would
    find it on either side, and move a weight but not its node.
    """
    fixed = jax.lax.stop_gradient(jnp.clip(breakpoints, low, high))
    moved = jnp.where(breakpoints == -jnp.inf, low, fixed)
    return jnp.where(breakpoints == jnp.inf, high, moved)


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


# --- Panels one after the other -------------------------------------------------------------------

Panel = Callable[[Any, Any], jax.Array]


def log_total(panel: Panel, inputs: Any, plan: Any, breakpoints: jax.Array, count) -> jax.Array:
    """log(sum_k exp(panel(inputs, (plan, two breakpoints)))) over the `count` panels in use.

    One after the other, so that many problems at once need the memory of one panel each, and no
    panel is computed that the problems do not need. A loop of unknown length has no derivative in
    reverse, so each comes with the value: d log(sum) = sum_k share_k d panel_k, and likewise once
    more for the second. `plan` and breakpoints carry none.
    """
    flat, unravel = ravel_pytree(inputs)
    plan = jax.lax.stop_gradient(plan)

    def one(flat, given):
        return panel(unravel(flat), given)

    return _total(one, flat, (plan, breakpoints), count)


def _over_panels(one: Callable, flat: jax.Array, given: Any, count, start: Any, merged: Callable):
    """The log of the sum, and `merged(old, new, their shares)` of what else `one` returns."""
    plan, breakpoints = given

    def step(k, state):
        top, old = state
        value, new = one(flat, (plan, jax.lax.dynamic_slice(breakpoints, (k,), (2,))))
        # Each share by itself: far out the sum has lost digits that their ratio has not.
        excess = jnp.where(value == -jnp.inf, -jnp.inf, value - top)
        shares = sigmoid(-excess), sigmoid(excess)
        # A panel that holds nothing has neither a derivative nor moments.
        keep = lambda x, y: jnp.where(shares[1] == 0, x, y)
        return jnp.logaddexp(top, value), jax.tree.map(keep, old, merged(old, new, shares))

    return jax.lax.fori_loop(0, count, step, (jnp.full_like(flat[0], -jnp.inf), start))


def _average(old: Any, new: Any, shares: tuple[jax.Array, jax.Array]) -> Any:
    return jax.tree.map(lambda x, y: shares[0] * x + shares[1] * y, old, new)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _total(one: Callable, flat: jax.Array, given: Any, count: jax.Array) -> jax.Array:
    return _over_panels(lambda *inputs: (one(*inputs), ()), flat, given, count, (), _average)[0]


@_total.defjvp
def _total_jvp(one, primals, tangents):
    value, slope = _slopes(one, *primals)
    return value, slope @ tangents[0]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _slopes(one: Callable, flat: jax.Array, given: Any, count: jax.Array):
    """The log of the sum and its gradient."""
    start = jnp.zeros_like(flat)
    return _over_panels(jax.value_and_grad(one), flat, given, count, start, _average)


@_slopes.defjvp
def _slopes_jvp(one, primals, tangents):
    flat, *others = primals
    value, slope = _slopes(one, *primals)

    def gradient(flat):
        start = jnp.zeros_like(flat)
        return _over_panels(jax.value_and_grad(one), flat, *others, start, _average)[1]

    return (value, slope), (slope @ tangents[0], jax.jacfwd(gradient)(flat) @ tangents[0])


class Parts(NamedTuple):
    """Laws to be mixed, or their mixture: log of the weight, mean and covariance of each."""

    log_weight: jax.Array
    mean: jax.Array
    covariance: jax.Array


def mixed(parts: Parts, weights: jax.Array) -> Parts:
    """The mixture of laws along a leading axis, each given another weight of the quadrature."""
    log_weight = log_weighted_sum(parts.log_weight, weights)
    sizes = weights * jnp.exp(parts.log_weight - jax.lax.stop_gradient(log_weight))
    # Far out the log has lost digits that the shares among each other have not.
    shares = sizes / sizes.sum()
    mean = shares @ parts.mean
    gaps = parts.mean - mean
    covariance = jnp.einsum("n,nij->ij", shares, parts.covariance)
    return Parts(log_weight, mean, covariance + (shares[:, None] * gaps).T @ gaps)


def total_moments(panel: Callable[..., Parts], inputs, plan, breakpoints, count, d: int) -> Parts:
    """The mixture of what `panel` returns for each of the panels in use; else as `log_total`.

    Its derivative, of all outputs in all inputs, is taken forwards through the loop.
    """
    flat, unravel = ravel_pytree(inputs)
    plan = jax.lax.stop_gradient(plan)

    def one(flat, given):
        log_weight, *moments = panel(unravel(flat), given)
        return log_weight, tuple(moments)

    zeros = jnp.zeros_like(flat[0])
    start = jnp.broadcast_to(zeros, (d,)), jnp.broadcast_to(zeros, (d, d))
    log_weight, moments = _mixture(one, flat, (plan, breakpoints), count, start)
    return Parts(log_weight, *moments)


def _joined(old: Any, new: Any, shares: tuple[jax.Array, jax.Array]) -> Any:
    """Mean and covariance of a mixture of two laws."""
    gap = new[0] - old[0]
    mean, within = _average(old, new, shares)
    return mean, within + shares[0] * shares[1] * gap[:, None] * gap


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _mixture(one: Callable, flat: jax.Array, given: Any, count: jax.Array, start: Any):
    return _over_panels(one, flat, given, count, start, _joined)


@_mixture.defjvp
def _mixture_jvp(one, primals, tangents):
    flat, *others = primals
    slopes = jax.jacfwd(lambda flat: _over_panels(one, flat, *others, _joined))(flat)
    return _mixture(one, *primals), jax.tree.map(lambda slope: slope @ tangents[0], slopes)
