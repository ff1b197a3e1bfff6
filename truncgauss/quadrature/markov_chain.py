"""Markov chains: the law of each place is carried to the next on a grid, normalised in logs.

With p_1 the law of X_1 and limits at every place t,

    p_(t+1)(y) = integral over low_t < x < high_t of N(y; transition_t x, noise_scale_t^2) p_t(x),

and P is the integral of p_d over its limits. The grids cover what the *whole* chain leaves to each
place, found by expectation propagation.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.covariances import Markov
from truncgauss.pytrees import varying_like
from truncgauss.quadrature.log_concave import log_weighted_sum
from truncgauss.special import standardize, truncated_mean, truncated_variance

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
NUM_PANELS = 36
NUM_NODES = 12
MAX_STEPS = 300
DROP = 40.0
COARSEST = 10.0  # a panel's width in standard deviations of the noise


def log_probability(loc: jax.Array, covariance: Markov, low, high) -> tuple[jax.Array, jax.Array]:
    """log P(low <= X <= high), all of shape (d,), each low below its high; and its error's bound.

    The bound is the distance from the answer of a grid two thirds as fine, whose error is larger by
    orders of magnitude; below rounding it is 0. Where even the fine grid passes over the noise of a
    step, both answers are baseless, and the bound is inf.
    """
    low, high, _ = standardize(low, high, loc)
    left, right = spans(*jax.lax.stop_gradient((covariance, low, high)))
    coarse = carry(*jax.lax.stop_gradient((covariance, left, right)), 2 * NUM_PANELS // 3)
    # An end that coincides with a limit moves with it.
    left, right = jnp.where(left <= low, low, left), jnp.where(right >= high, high, right)
    log_prob = carry(covariance, left, right, NUM_PANELS)
    gap = jax.lax.stop_gradient(jnp.abs(log_prob - coarse))
    rounding = jnp.finfo(gap.dtype).eps * (2048.0 + 8.0 * len(loc) * jnp.abs(log_prob))
    bound = jnp.where(gap <= rounding, 0.0, gap)
    return log_prob, jnp.where(too_coarse(covariance, left, right), jnp.inf, bound)


def too_coarse(covariance: Markov, left, right) -> jax.Array:
    """Whether the grid passes over the noise of a step."""
    panel = (right - left) / NUM_PANELS
    noise, transition = covariance.noise_scale, jnp.abs(covariance.transition)
    wide = (panel[1:] > COARSEST * noise) | (panel[:-1] * transition > COARSEST * noise)
    return jnp.any(wide)


def carry(covariance: Markov, left, right, num_panels: int) -> jax.Array:
    """The log of the integral over the grid, place by place."""
    places, weights = grids(left, right, num_panels)

    def step(carried, inputs):
        log_law, x, w = carried
        transition, scale, y, w_next = inputs
        gap = (y[:, None] - transition * x) / scale
        exponents = log_law - 0.5 * gap * gap
        size = jax.lax.stop_gradient(exponents.max(1))
        total = (w * jnp.exp(exponents - size[:, None])).sum(1)
        return (size + jnp.log(total) - jnp.log(scale) - _LOG_SQRT_2PI, y, w_next), None

    z = places[0] / covariance.initial_scale
    first = -0.5 * z * z - jnp.log(covariance.initial_scale) - _LOG_SQRT_2PI
    steps = (covariance.transition, covariance.noise_scale, places[1:], weights[1:])
    carried = (first, places[0], weights[0])
    # Only the laws are kept for the way back, not the kernels.
    (log_law, _, w), _ = jax.lax.scan(jax.checkpoint(step), carried, steps)
    return log_weighted_sum(log_law, w)


def grids(left, right, num_panels: int) -> tuple[jax.Array, jax.Array]:
    """Gauss-Legendre nodes and weights on even panels between ends of shape (d,): (d, n) each."""
    nodes, weights = np.polynomial.legendre.leggauss(NUM_NODES)
    starts = np.arange(num_panels)[:, None]
    shares = ((starts + 0.5 * (1.0 + nodes)) / num_panels).ravel()
    weights = np.broadcast_to(0.5 * weights / num_panels, (num_panels, NUM_NODES)).ravel()
    shares, weights = (jnp.asarray(x, left.dtype) for x in (shares, weights))
    span = (right - left)[:, None]
    return left[:, None] + span * shares, span * weights


def spans(covariance: Markov, low: jax.Array, high: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Ends of the stretch that matters at every place.

    What the limits leave to a place is log-concave: beyond its mean it falls at least by one for
    every standard deviation, and at least as fast as the law without limits.
    """
    diagonal, beside = precision(covariance)
    mean, variance = marginals(diagonal, beside, low, high)
    scale, own = jnp.sqrt(variance), jnp.sqrt(inverse_diagonal(diagonal, beside))
    reach = jnp.minimum(DROP * scale, 2.0 * scale + (2.0 * DROP) ** 0.5 * own)
    return jnp.maximum(mean - reach, low), jnp.minimum(mean + reach, high)


def precision(covariance: Markov) -> tuple[jax.Array, jax.Array]:
    """Diagonal (d,) and neighbouring entries (d - 1,) of the tridiagonal precision."""
    noise = jnp.square(1.0 / covariance.scales)
    following = jnp.append(noise[1:] * jnp.square(covariance.transition), 0.0)
    return noise + following, -covariance.transition * noise[1:]


def marginals(diagonal, beside, low, high) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of each place under the limits, nearly, by expectation propagation.

    Every pair of limits is stood for by a Gaussian factor exp(shift x - bend x^2/2) with which its
    place has the moments of the rest of the chain cut by the limits.
    """

    def solution(bend, shift):
        variance = inverse_diagonal(diagonal + bend, beside)
        return tridiagonal_solve(diagonal + bend, beside, shift), variance

    def step(state):
        bend, shift, count, _ = state
        mean, variance = solution(bend, shift)
        rest = jnp.maximum(1.0 / variance - bend, 1e-10 / variance)
        mean, variance = (mean / variance - shift) / rest, 1.0 / rest
        scale = jnp.sqrt(variance)
        cut = truncated_variance(mean, scale, low, high)
        centre = truncated_mean(mean, scale, low, high)
        new_bend = jnp.maximum(1.0 / cut - 1.0 / variance, 0.0)
        new_shift = centre * (1.0 / variance + new_bend) - mean / variance
        change = jnp.max(jnp.abs(new_bend - bend) * cut)
        mix = lambda new, old: old + 0.7 * (new - old)
        return mix(new_bend, bend), mix(new_shift, shift), count + 1, change

    def unfinished(state):
        return (state[3] > 1e-2) & (state[2] < MAX_STEPS)

    nothing = jnp.zeros_like(diagonal)
    start = (nothing, nothing, jnp.asarray(0), jnp.asarray(jnp.inf, low.dtype))
    start = varying_like(start, low)
    bend, shift, _, _ = jax.lax.while_loop(unfinished, step, start)
    return solution(bend, shift)


def tridiagonal_solve(diagonal, beside, right) -> jax.Array:
    """The solution of a symmetric tridiagonal system, by elimination down and up."""
    zero = jnp.zeros((1,), diagonal.dtype)

    def down(carried, row):
        pivot, value = carried
        a, b, r = row
        factor = b / pivot
        following = a - factor * b, r - factor * value
        return following, following

    def up(x, row):
        pivot, value, b = row
        x = (value - b * x) / pivot
        return x, x

    start = varying_like((jnp.ones_like(diagonal[0]), zero[0]), right)
    rows = (diagonal, jnp.concatenate([zero, beside]), right)
    _, (pivots, values) = jax.lax.scan(down, start, rows)
    rows = (pivots, values, jnp.concatenate([beside, zero]))
    return jax.lax.scan(up, varying_like(zero[0], right), rows, reverse=True)[1]


def inverse_diagonal(diagonal, beside) -> jax.Array:
    """Diagonal of the inverse of a symmetric tridiagonal matrix: pivots from both ends."""

    def pivots(diagonal, beside):
        def down(pivot, row):
            a, b = row
            pivot = a - b * b / pivot
            return pivot, pivot

        rows = (diagonal, jnp.concatenate([jnp.zeros((1,), diagonal.dtype), beside]))
        return jax.lax.scan(down, jnp.ones_like(diagonal[0]), rows)[1]

    upwards = pivots(diagonal[::-1], beside[::-1])[::-1]
    return 1.0 / (pivots(diagonal, beside) + upwards - diagonal)


# --- Moments --------------------------------------------------------------------------------------


def moments(loc: jax.Array, covariance: Markov, low, high) -> tuple[jax.Array, ...]:
    """Mean and covariance of X given low <= X <= high, and bounds of their errors.

    The points of all grids, weighted, are a chain too, of d places with n values each. Its
    transitions are the backward recursion of `carry`, and its covariance, all pairs of places, is
    what they make of the deviations of each place at every later one: d^2 n^2 / 2 products. Bounds
    are those of `log_probability`, for each entry.

    Returns:
        A point of the region, shape (d,); the mean less the point; the covariance, shape (d, d);
        bounds of the errors of both.
    """
    low, high, _ = standardize(low, high, loc)
    left, right = spans(*jax.lax.stop_gradient((covariance, low, high)))
    point = jax.lax.stop_gradient(left)
    coarse = deviations(
        *jax.lax.stop_gradient((covariance, point, left, right)), 2 * NUM_PANELS // 3
    )
    left, right = jnp.where(left <= low, low, left), jnp.where(right >= high, high, right)
    mean, matrix = deviations(covariance, point, left, right, NUM_PANELS)
    gaps = (jnp.abs(x - y) for x, y in zip(jax.lax.stop_gradient((mean, matrix)), coarse))
    scale = jnp.sqrt(jax.lax.stop_gradient(jnp.diagonal(matrix)))
    slack = 4096.0 * jnp.finfo(scale.dtype).eps
    sizes = slack * scale, slack * scale[:, None] * scale
    passed = too_coarse(covariance, left, right)
    bounds = (
        jnp.where(passed, jnp.inf, jnp.where(gap <= size, 0.0, gap))
        for gap, size in zip(gaps, sizes)
    )
    return loc + point, mean, matrix, *bounds


def deviations(covariance: Markov, point, left, right, num_panels: int):
    """Mean less `point`, and covariance, of the chain on the grid."""
    d = len(point)
    places, weights = grids(left - point, right - point, num_panels)
    start = covariance.transition * point[:-1] - point[1:]
    steps = (covariance.transition, covariance.noise_scale, start)
    onward = (*steps, places[:-1], places[1:], weights[1:])

    def exponents(row, later):
        """Logs of the weighted paths from each x to each y, up to a constant."""
        transition, scale, start, x, y, w = row
        gap = (y - (start + transition * x[:, None])) / scale
        return later + jnp.log(w) - 0.5 * gap * gap

    def back(later, row):
        logs = exponents(row, later)
        size = jax.lax.stop_gradient(logs.max(1, keepdims=True))
        earlier = size[:, 0] + jnp.log(jnp.exp(logs - size).sum(1))
        return earlier - jax.lax.stop_gradient(earlier.max()), later

    nothing = jnp.zeros_like(places[0])
    first, later = jax.lax.scan(jax.checkpoint(back), nothing, onward, reverse=True)
    z = (point[0] + places[0]) / covariance.initial_scale
    law = jax.nn.softmax(first + jnp.log(weights[0]) - 0.5 * z * z)

    def arrive(law, pulls, t, x):
        """The mean of place t, and its covariance with all earlier ones."""
        mean = law @ x
        pulls = pulls.at[t].set(law * (x - mean))
        return pulls, (mean, pulls @ (x - mean))

    def forth(carried, inputs):
        law, pulls, t = carried
        row, later = inputs
        pulls, found = arrive(law, pulls, t, row[3])
        transitions = jax.nn.softmax(exponents(row, later), axis=1)
        return (law @ transitions, pulls @ transitions, t + 1), found

    carried = varying_like((law, jnp.zeros((d, len(law)), law.dtype), 0), law)
    (law, pulls, t), (means, columns) = jax.lax.scan(
        jax.checkpoint(forth), carried, (onward, later)
    )
    _, (mean, column) = arrive(law, pulls, t, places[-1])
    upper = jnp.concatenate([columns, column[None]]).T
    return jnp.append(means, mean), upper + jnp.triu(upper, 1).T
