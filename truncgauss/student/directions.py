r"""The probability outside of limits about the mean, in a trace, by directions with exact radii.

Let X = loc + A Z with Z ~ Normal(0, I_q), and let K half-spaces a_k' Z > g_k, of |a_k| = 1 and
g_k > 0, be where one of the limits is exceeded. The direction u of Z is uniform on the sphere, and
independent of |Z|, with the tail G(r) = P(|Z| > r), which is a finite sum for an even q. So

.. math:: P(\text{outside}) = E_u\left[ G\left(1 / \max_k \frac{a_k' u}{g_k}\right) \right].

Directions are drawn as those of Z given a_k' Z > g_k, where k is drawn with probabilities
proportional to p_k = P(a_k' Z > g_k). Their density relative to the uniform one is the sum of
G(g_k / a_k' u) over the sum of p_k. At the limits where they were drawn the mean is that of a
number between 1 / K and 1, times the sum of p_k: its relative error is bounded however small P is.
With the directions held it is a smooth function of limits, mean and covariance.

References:
    Deak (1980), Three digit accurate multiple normal probabilities. Adler, Blanchet and Liu (2012),
    Efficient Monte Carlo for high excursions of Gaussian random fields.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import ndtr, ndtri

from truncgauss.arrays.linalg import product, row_norms
from truncgauss.arrays.pytrees import Batched, frozen_pytree
from truncgauss.gaussian.problem import Estimate, Problem
from truncgauss.gaussian.regions.region import as_linear
from truncgauss.separation.lattice import lattice_bits, lattice_points, ndtri_of_bits, open_uniforms

NUM_POINTS, NUM_REPLICATES = 1024, 16
UNSEEN = 0.5  # points that may be missing where two limits are exceeded together
# Squared radius over 2, beyond which G is 0, with x^k / k! a number up to there for the most
# variables.
FARTHEST = {4: 170.0, 8: 1400.0}
MOST_VARIABLES = {4: 64, 8: 256}


@frozen_pytree
class Directions(Batched):
    """Directions of R replicates, and their density relative to the uniform one.

    Attributes:
        unit: shape (R, n, q).
        density: shape (R, n).
    """

    unit: Array
    density: Array

    event_ranks = {"unit": 3, "density": 2}


def is_served(problem: Problem) -> bool:
    """Whether the limits are a box, of not too many variables."""
    root = jax.eval_shape(lambda: problem.covariance.root)
    return problem.region.is_box and root.shape[-1] <= MOST_VARIABLES[root.dtype.itemsize]


def directions_to(row: Problem, two_sided: bool, keys: Array) -> Directions:
    """Directions given that one of the limits, above or on both sides of the mean, is exceeded."""
    row = jax.lax.stop_gradient(row)
    normals, gaps = _caps(row, two_sided)
    q = normals.shape[1]
    bits = jax.vmap(lambda key: lattice_bits(lattice_points(NUM_POINTS, q + 2), key))(keys)
    uniforms = open_uniforms(bits[..., :2], gaps.dtype)
    z = ndtri_of_bits(bits[..., 2:], gaps.dtype)
    singles = ndtr(-gaps)
    sums = jnp.cumsum(singles)
    chosen = jnp.sum(uniforms[..., :1] * sums[-1] > sums[:-1], axis=-1)
    along = -ndtri(uniforms[..., 1] * singles[chosen])
    normal = normals[chosen]
    z = z + (along - jnp.sum(normal * z, axis=-1))[..., None] * normal
    unit = z / jnp.linalg.norm(z, axis=-1, keepdims=True)
    density = jnp.sum(_tail(_inverse_radii(normals, gaps, unit), q), axis=-1) / sums[-1]
    return Directions(unit, density)


def log_outside(row: Problem, two_sided: bool, directions: Directions) -> Estimate:
    """log P(some limit is exceeded), NaN where the mean is outside, and its standard error."""
    normals, gaps = _caps(row, two_sided)
    nearest = jnp.max(_inverse_radii(normals, gaps, directions.unit), axis=-1)
    values = jnp.mean(_tail(nearest, normals.shape[1]) / directions.density, axis=-1)
    mean = jnp.mean(values)
    spread = jnp.std(values, ddof=1) / math.sqrt(NUM_REPLICATES) / mean
    # If two limits are exceeded, the sum of both variables exceeds that of the limits.
    correlations = product(normals, normals.T)
    tiny = float(jnp.finfo(gaps.dtype).tiny) ** 0.5
    lengths = jnp.sqrt(jnp.maximum(2.0 + 2.0 * correlations, tiny))
    pairs = jnp.triu(ndtr(-(gaps[:, None] + gaps[None, :]) / lengths), 1)
    unseen = jnp.minimum(UNSEEN / (NUM_POINTS * NUM_REPLICATES), jnp.sum(pairs) / mean)
    stderr = jax.lax.stop_gradient(jnp.hypot(spread, unseen))
    return Estimate(jnp.where(jnp.all(gaps > 0), jnp.log(mean), jnp.nan), stderr)


def _caps(row: Problem, two_sided: bool) -> tuple[Array, Array]:
    """Half-spaces of a standard normal vector, normals of length 1 (K, q) and distances (K,)."""
    loc, covariance, box = row.loc, row.covariance, as_linear(row.region)
    root = covariance.root
    lengths = row_norms(root)
    still = lengths == 0
    lengths = jnp.where(still, 1.0, lengths)
    # One more variable, without influence, makes their number even.
    normals = jnp.pad(root / lengths[:, None], ((0, 0), (0, root.shape[1] % 2)))
    gaps = (box.high - loc) / lengths
    if two_sided:
        normals = jnp.concatenate([normals, -normals])
        gaps = jnp.concatenate([gaps, (loc - box.low) / lengths])
        still = jnp.concatenate([still, still])
    return normals, jnp.where(still & (gaps >= 0), jnp.inf, gaps)


def _inverse_radii(normals: Array, gaps: Array, unit: Array) -> Array:
    """One over the distances along directions (..., n, q) to the half-spaces, shape (..., n, K);
    not positive for those that are never met."""
    return product(unit, normals.T) / gaps


def _tail(inverse_radius: Array, q: int) -> Array:
    """G of an even number of variables."""
    farthest = FARTHEST[inverse_radius.dtype.itemsize]
    least = math.sqrt(0.5 / farthest)
    met = inverse_radius > least
    x = 0.5 / jnp.square(jnp.where(met, inverse_radius, least))
    terms = np.array([1.0 / math.factorial(k) for k in reversed(range(q // 2))])
    half = jnp.exp(-0.5 * x)
    return jnp.where(met, half * jnp.polyval(jnp.asarray(terms, x.dtype), x) * half, 0.0)
