r"""Box probabilities of Gaussian Markov chains by the forward recursion on a grid, in logs.

With p_1 the density of X_1 and limits at every time t,

.. math:: p_{t+1}(y) = \int_{l_t}^{h_t} N(y;\, a_t x, \sigma_t^2) \, p_t(x) \, dx,

and P is the integral of p_d over its limits. The grids cover the marginal distributions given the
limits of the *whole* chain, which expectation propagation finds approximately.

References:
    Kitagawa (1987), Non-Gaussian state-space modeling of nonstationary time series: the recursion.
    Minka (2001), Expectation propagation for approximate Bayesian inference: the grids.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from truncgauss.arrays.pytrees import varying_like
from truncgauss.gaussian.covariances import Markov
from truncgauss.quadrature.log_concave import log_weighted_sum
from truncgauss.special.normal import quick_moments
from truncgauss.special.tails import LOG_SQRT_2PI, Interval, standardize

NUM_PANELS = 36
NUM_NODES = 12
MAX_STEPS = 300
TOLERANCE = 1e-2  # relative change of a precision, or change of a mean in hundreds of its width
ROUNDING = 64.0
DROP = 40.0
COARSEST = 10.0  # largest width of a panel in standard deviations of the noise

Pair = tuple[Array, Array]
Row = tuple[Array, ...]


def log_probability(loc: Array, covariance: Markov, low: Array, high: Array) -> tuple[Array, Array]:
    """log P(low <= X <= high), and a bound of its error; shapes (d,), each low below its high.

    The bound is the difference from a grid two thirds as fine, whose error is larger by orders of
    magnitude; 0 where that is rounding. If even the fine grid does not resolve the noise of a step,
    the bound is inf.
    """
    limits = standardize(low, high, loc)
    ends = spans(*jax.lax.stop_gradient((covariance, limits)))
    num_coarse = 2 * NUM_PANELS // 3
    coarse = forward(*jax.lax.stop_gradient((covariance, ends)), num_coarse)
    ends = ends.at_limits(limits)
    log_prob = forward(covariance, ends, NUM_PANELS)
    gap = jax.lax.stop_gradient(jnp.abs(log_prob - coarse))
    rounding = jnp.finfo(gap.dtype).eps * (2048.0 + 8.0 * len(loc) * jnp.abs(log_prob))
    bound = jnp.where(gap <= rounding, 0.0, gap)
    return log_prob, jnp.where(too_coarse(covariance, ends), jnp.inf, bound)


class Ends(NamedTuple):
    """The ends of the grid at every time, and its length without the rounding of the ends: (d,)."""

    left: Array
    right: Array
    length: Array

    def at_limits(self, limits: Interval) -> "Ends":
        """The same, where ends that coincide with limits have the derivatives of the limits.

        The difference of two standardised limits would lose the digits of a narrow interval.
        """
        low, high = self.left <= limits.low, self.right >= limits.high
        left, right = (
            jnp.where(low, limits.low, self.left),
            jnp.where(high, limits.high, self.right),
        )
        return Ends(left, right, jnp.where(low & high, limits.width, right - left))


def too_coarse(covariance: Markov, ends: Ends) -> Array:
    """Whether the grid does not resolve the noise of a step."""
    panel = ends.length / NUM_PANELS
    noise, transition = covariance.noise_scale, jnp.abs(covariance.transition)
    wide = (panel[1:] > COARSEST * noise) | (panel[:-1] * transition > COARSEST * noise)
    return jnp.any(wide)


def forward(covariance: Markov, ends: Ends, num_panels: int) -> Array:
    """The log of the integral over the grid, by the forward recursion."""
    points, weights = grids(ends.left, ends.length, num_panels)

    def step(
        state: tuple[Array, Array, Array], inputs: tuple[Array, ...]
    ) -> tuple[tuple[Array, Array, Array], None]:
        log_density, x, w = state
        transition, scale, y, w_next = inputs
        gap = (y[:, None] - transition * x[None, :]) / scale
        exponents = log_density[None, :] - 0.5 * gap * gap
        size = jax.lax.stop_gradient(exponents.max(1))
        total = (w[None, :] * jnp.exp(exponents - size[:, None])).sum(1)
        return (size + jnp.log(total) - jnp.log(scale) - LOG_SQRT_2PI, y, w_next), None

    z = points[0] / covariance.initial_scale
    first = -0.5 * z * z - jnp.log(covariance.initial_scale) - LOG_SQRT_2PI
    steps = (covariance.transition, covariance.noise_scale, points[1:], weights[1:])
    # For the reverse pass the densities are stored and the transition matrices computed again.
    state, _ = jax.lax.scan(jax.checkpoint(step), (first, points[0], weights[0]), steps)
    log_density, _, last_weights = state
    return log_weighted_sum(log_density, last_weights)


def grids(left: Array, length: Array, num_panels: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on equal panels, from left ends and lengths: (d, n) each."""
    nodes, weights = np.polynomial.legendre.leggauss(NUM_NODES)
    starts = np.arange(num_panels)[:, None]
    fractions = ((starts + 0.5 * (1.0 + nodes)) / num_panels).ravel()
    steps = np.broadcast_to(0.5 * weights / num_panels, (num_panels, NUM_NODES)).ravel()
    length = length[:, None]
    points = left[:, None] + length * jnp.asarray(fractions, left.dtype)[None]
    return points, length * jnp.asarray(steps, left.dtype)[None]


def spans(covariance: Markov, limits: Interval) -> Ends:
    """Ends of the interval at every time outside of which the density is negligible.

    The marginal densities given the limits are log-concave: beyond the mean their logs fall by at
    least one for every standard deviation, and at least as fast as without limits.
    """
    diagonal, beside = precision(covariance)
    low, high, _ = limits
    mean, variance = marginals(diagonal, beside, low, high)
    nothing = jnp.zeros_like(diagonal)
    conditional_scale = 1.0 / jnp.sqrt(without_site(diagonal, beside, nothing, nothing)[0])
    mean, scale = jnp.clip(mean, low, high), jnp.sqrt(variance)
    reach = jnp.minimum(DROP * scale, 2.0 * scale + (2.0 * DROP) ** 0.5 * conditional_scale)
    left, right = jnp.maximum(mean - reach, low), jnp.minimum(mean + reach, high)
    return Ends(left, right, right - left).at_limits(limits)


def precision(covariance: Markov) -> tuple[Array, Array]:
    """Diagonal (d,) and off-diagonal entries (d - 1,) of the tridiagonal precision matrix."""
    noise = jnp.square(1.0 / covariance.scales)
    following = jnp.append(noise[1:] * jnp.square(covariance.transition), 0.0)
    return noise + following, -covariance.transition * noise[1:]


def marginals(diagonal: Array, beside: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Approximate mean and variance at every time given all limits, by expectation propagation.

    Each pair of limits is replaced by a Gaussian factor exp(shift x - bend x^2/2), chosen so that
    the coordinate has the moments that it has under its limits and the other factors.
    """
    State = tuple[Array, Array, Array, Array]

    def step(state: State) -> State:
        bend, shift, count, _ = state
        rest, force = without_site(diagonal, beside, bend, shift)
        mean, variance = force / rest, 1.0 / rest
        scale = jnp.sqrt(variance)
        tilted = quick_moments(standardize(low, high, mean, scale))
        centre = jnp.clip(mean, low, high) + scale * tilted.offset
        cut = variance * tilted.variance
        new_bend = jnp.maximum(1.0 / cut - rest, 0.0)
        new_shift = centre * (rest + new_bend) - force
        # The grids reach far: their centres need be no better than the width.
        unit = jnp.sqrt(cut) + ROUNDING * float(jnp.finfo(low.dtype).eps) * jnp.abs(centre)
        gap = jnp.abs(centre - (force + shift) / (rest + bend)) / unit
        change = jnp.max(jnp.maximum(jnp.abs(new_bend - bend) * cut, TOLERANCE * gap))
        return bend + 0.7 * (new_bend - bend), shift + 0.7 * (new_shift - shift), count + 1, change

    nothing = jnp.zeros_like(diagonal)
    start = (nothing, nothing, jnp.asarray(0), jnp.asarray(jnp.inf, low.dtype))
    start = varying_like(start, low)
    unfinished = lambda state: (state[3] > TOLERANCE) & (state[2] < MAX_STEPS)
    bend, shift, _, _ = jax.lax.while_loop(unfinished, step, start)
    rest, force = without_site(diagonal, beside, bend, shift)
    return (force + shift) / (rest + bend), 1.0 / (rest + bend)


def without_site(diagonal: Array, beside: Array, bend: Array, shift: Array) -> Pair:
    """Precision and precision times mean of each time, by all factors but its own: (d,) each.

    They are sums of what comes from either side. Differences from the marginals would lose their
    digits to factors of narrow limits.
    """
    zero = jnp.zeros((1,), diagonal.dtype)

    def from_before(diagonal: Array, beside: Array, shift: Array) -> Pair:
        def step(before: Pair, row: tuple[Array, ...]) -> tuple[Pair, Pair]:
            (pivot, force), (a, b, r) = before, row
            message = -b * (b / pivot), -b * (force / pivot)
            return (a + message[0], r + message[1]), message

        start = varying_like((jnp.ones_like(diagonal[0]), zero[0]), shift)
        return jax.lax.scan(step, start, (diagonal, jnp.concatenate([zero, beside]), shift))[1]

    whole = diagonal + bend
    before = from_before(whole, beside, shift)
    after = from_before(whole[::-1], beside[::-1], shift[::-1])
    return diagonal + before[0] + after[0][::-1], before[1] + after[1][::-1]


# --- Moments --------------------------------------------------------------------------------------


def moments(loc: Array, covariance: Markov, low: Array, high: Array) -> tuple[Array, ...]:
    """Mean and covariance of X given low <= X <= high, and bounds of their errors.

    The weighted grid points form a discrete Markov chain of d times with n states each. Its
    transition probabilities come from the backward recursion, and the covariance of all pairs of
    times from carrying the deviations at each time forward: d^2 n^2 / 2 products. Bounds are
    computed as in `log_probability`, for each entry.

    Returns:
        The mean, shape (d,); the covariance, shape (d, d); bounds of the errors of both.
    """
    limits = standardize(low, high, loc)
    ends = spans(*jax.lax.stop_gradient((covariance, limits)))
    point = jax.lax.stop_gradient(ends.left)
    coarse = deviations(*jax.lax.stop_gradient((covariance, point, ends)), 2 * NUM_PANELS // 3)
    ends = ends.at_limits(limits)
    mean, matrix = deviations(covariance, point, ends, NUM_PANELS)
    gaps = (jnp.abs(x - y) for x, y in zip(jax.lax.stop_gradient((mean, matrix)), coarse))
    scale = jnp.sqrt(jax.lax.stop_gradient(jnp.diagonal(matrix)))
    slack = 4096.0 * jnp.finfo(scale.dtype).eps
    sizes = slack * scale, slack * scale[:, None] * scale[None, :]
    unresolved = too_coarse(covariance, ends)
    bounds = (
        jnp.where(unresolved, jnp.inf, jnp.where(gap <= size, 0.0, gap))
        for gap, size in zip(gaps, sizes)
    )
    return loc + point + mean, matrix, *bounds


def exponents(row: Row, later: Array) -> Array:
    """Logs of the weights of all paths through each x and the next y, up to a constant."""
    transition, scale, start, x, y, w = row
    gap = (y[None, :] - (start + transition * x[:, None])) / scale
    return (later + jnp.log(w))[None, :] - 0.5 * gap * gap


def deviations(
    covariance: Markov, point: Array, ends: Ends, num_panels: int
) -> tuple[Array, Array]:
    d = len(point)
    points, weights = grids(ends.left - point, ends.length, num_panels)
    start = covariance.transition * point[:-1] - point[1:]
    steps = (covariance.transition, covariance.noise_scale, start)
    onward = (*steps, points[:-1], points[1:], weights[1:])

    def backward(later: Array, row: Row) -> Pair:
        logs = exponents(row, later)
        size = jax.lax.stop_gradient(logs.max(1, keepdims=True))
        earlier = size[:, 0] + jnp.log(jnp.exp(logs - size).sum(1))
        return earlier - jax.lax.stop_gradient(earlier.max()), later

    nothing = jnp.zeros_like(points[0])
    first, later = jax.lax.scan(jax.checkpoint(backward), nothing, onward, reverse=True)
    z = (point[0] + points[0]) / covariance.initial_scale
    probabilities = jax.nn.softmax(first + jnp.log(weights[0]) - 0.5 * z * z)

    def summarised(probabilities: Array, gaps: Array, t: Array, x: Array) -> tuple[Array, Pair]:
        """The mean at time t, and its covariance with all earlier times."""
        mean = probabilities @ x
        gaps = jax.lax.dynamic_update_index_in_dim(gaps, probabilities * (x - mean), t, 0)
        return gaps, (mean, gaps @ (x - mean))

    State = tuple[Array, Array, Array]

    def step(state: State, inputs: tuple[Row, Array]) -> tuple[State, Pair]:
        probabilities, gaps, t = state
        row, later = inputs
        gaps, summary = summarised(probabilities, gaps, t, row[3])
        transitions = jax.nn.softmax(exponents(row, later), axis=1)
        return (probabilities @ transitions, gaps @ transitions, t + 1), summary

    gaps = jnp.zeros((d, len(probabilities)), probabilities.dtype)
    state = varying_like((probabilities, gaps, jnp.asarray(0)), probabilities)
    state, (means, columns) = jax.lax.scan(jax.checkpoint(step), state, (onward, later))
    _, (mean, column) = summarised(*state, points[-1])
    upper = jnp.concatenate([columns, column[None]]).T
    return jnp.append(means, mean), upper + jnp.triu(upper, 1).T
