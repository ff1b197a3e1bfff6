r"""Box probabilities with one common factor and independent noise, of many small problems.

By equally spaced nodes, whose error has a bound: with X_j = loc_j + w_j F + s_j Y_j the integrand
:math:`g(f) = \phi(f) \prod_j P_j(f)` is entire, and
:math:`|g(f + i y)| \le g(f) e^{p y^2 / 2}` with :math:`p = 1 + \sum_j (w_j / s_j)^2`. So nodes at
distances h leave a relative error below :math:`2 e^{-2 \pi^2 / (p h^2)}`, whatever the limits are.

References:
    Trefethen and Weideman (2014), The exponentially convergent trapezoidal rule, theorem 5.1.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.gaussian.linalg import in_full_precision
from truncgauss.quadrature import log_concave
from truncgauss.special import log_interval_mass, log_sum_exp, standardize
from truncgauss.special.normal import log_mass_and_slopes
from truncgauss.special.tails import LOG_SQRT_2PI

REACH = 8.7  # of the nodes from the mode, at which the integrand has fallen by 37 nats at least
ERROR = 1e-12  # of a probability, for which `num_nodes` is made
COUNTS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
SPARE = {1: 1.25, 2: 1.0}  # nodes more than needed at the start by effects, so that these may move
ELEMENTS = 2**17  # masses that are computed at once


def log_probability(
    loc: jax.Array,
    loading: jax.Array,
    scale: jax.Array,
    low: jax.Array,
    high: jax.Array,
    num_nodes: int,
) -> tuple[jax.Array, jax.Array]:
    """log P(low <= X <= high), and an upper bound of its error that is 0 below rounding.

    Args:
        loc, loading, scale, low, high: (d,), each low below its high.
        num_nodes: of the rule, see `nodes_needed`.
    """
    centre, precision = mode_and_precision(loc, loading, scale, low, high)
    step = 2.0 * REACH / num_nodes
    nodes = centre + step * (jnp.arange(num_nodes, dtype=loc.dtype) - 0.5 * (num_nodes - 1))
    total = integral(loc, loading, scale, low, high, nodes) + math.log(step) - LOG_SQRT_2PI
    error = 2.0 * jnp.exp(-2.0 * math.pi**2 / (precision * step**2))
    return total, jnp.where(error < 1e-14, 0.0, error)


@jax.custom_jvp
def integral(
    loc: jax.Array,
    loading: jax.Array,
    scale: jax.Array,
    low: jax.Array,
    high: jax.Array,
    nodes: jax.Array,
) -> jax.Array:
    """The log of the sum over nodes, which carry no derivative.

    The gradient is a mean over the nodes of that of the masses, in closed form, so that a Hessian
    differentiates these once.
    """
    return with_slopes(loc, loading, scale, low, high, nodes)[0]


@integral.defjvp
@in_full_precision
def _integral_jvp(
    primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    value, *slopes = with_slopes(*primals)
    return value, sum((a @ b for a, b in zip(slopes, tangents[:5])), jnp.zeros_like(value))


def with_slopes(
    loc: jax.Array,
    loading: jax.Array,
    scale: jax.Array,
    low: jax.Array,
    high: jax.Array,
    nodes: jax.Array,
) -> tuple[jax.Array, ...]:
    """`integral`, and its derivatives by loc, loading, scale and limits, (d,) each."""
    ends = standardize(low, high, loc, scale)
    shift = nodes[:, None] * (loading / scale)[None]
    a, b = ends.low - shift, ends.high - shift
    masses = log_mass_and_slopes(a, b, jnp.broadcast_to(ends.width[None], a.shape))
    closest = jnp.clip(0.0, a, b)
    heights = jnp.sum(masses.relative_log - 0.5 * closest**2, axis=1) - 0.5 * nodes**2
    value = log_sum_exp(heights)
    weights = jnp.exp(heights - value)[:, None]
    pull = weights * masses.mean / scale
    return (
        value,
        jnp.sum(pull, axis=0),
        jnp.sum(nodes[:, None] * pull, axis=0),
        jnp.sum(weights * masses.spread, axis=0) / scale,
        -jnp.sum(weights * masses.at_low, axis=0) / scale,
        jnp.sum(weights * masses.at_high, axis=0) / scale,
    )


def mode_and_precision(
    loc: jax.Array, loading: jax.Array, scale: jax.Array, low: jax.Array, high: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The mode of the integrand, and p; they carry no derivative."""
    loc, loading, scale, low, high = jax.lax.stop_gradient((loc, loading, scale, low, high))
    ends, rate = standardize(low, high, loc, scale), loading / scale

    def log_density(f: jax.Array) -> jax.Array:
        masses = log_interval_mass(ends.low - rate * f, ends.high - rate * f, ends.width)
        return jnp.sum(masses) - 0.5 * f * f

    everywhere = jnp.full_like(loc[0], jnp.inf)
    mode = log_concave.support(log_density, -everywhere, everywhere).mode
    return mode, precision_of(rate, low, high)


def precision_of(rate: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """p, an upper bound of the curvature, of loadings in units of the noise."""
    limited = jnp.isfinite(low) | jnp.isfinite(high)
    return 1.0 + jnp.sum(jnp.where(limited, rate**2, 0.0), axis=-1)


def nodes_needed(precision: jax.Array) -> jax.Array:
    """The number of nodes for an error of `ERROR`, by p."""
    return 2.0 * REACH * jnp.sqrt(precision * math.log(2.0 / ERROR) / (2.0 * math.pi**2))


def in_batches(function: Any, problems: Any, size: int) -> Any:
    """function(problem) of all problems, so many at a time that numbers of `size` each fit."""
    count = jax.tree.leaves(problems)[0].shape[0]
    batch = max(1, min(count, ELEMENTS // max(size, 1)))
    if batch == count:
        return jax.vmap(function)(problems)
    num_batches = -(-count // batch)
    batch = -(-count // num_batches)
    # Filled up to whole batches: for the rest `lax.map` would compile the function once more.
    index = np.minimum(np.arange(num_batches * batch), count - 1)
    whole = jax.tree.map(lambda leaf: leaf[index], problems)
    results = jax.lax.map(jax.checkpoint(function), whole, batch_size=batch)
    return jax.tree.map(lambda leaf: leaf[:count], results)
