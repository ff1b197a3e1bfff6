r"""Bivariate normal distribution function in closed derivatives, for many pairs of limits at once.

.. math:: \Phi_2(h, k; r) = P(X < h, Y < k), \quad
    \partial_r \Phi_2 = \varphi_2(h, k; r), \quad
    \partial_h \Phi_2 = \varphi(h)\, \Phi\left(\frac{k - r h}{\sqrt{1 - r^2}}\right)

Its error is about 1e-16, absolute: for masses that are differences of it, and not too small. Boxes
far in a tail are for `quadrature.bivariate`, whose error is relative and which costs more.

References:
    Drezner and Wesolowsky (1990), On the computation of the bivariate normal integral.
    Genz (2004), Numerical computation of rectangular bivariate and trivariate normal and t
    probabilities.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)
STRONG = 0.925  # correlation from which on the integral begins at 1 and not at 0
FARTHEST = 39.0  # limit beyond which a density is 0
SMALLEST = -100.0  # exponents below which nothing is left
ROOT_TWO_PI = float(np.sqrt(2.0 * np.pi))


@jax.custom_jvp
def orthant(h: jax.Array, k: jax.Array, r: jax.Array) -> jax.Array:
    """P(X < h, Y < k) of standard normal X, Y of correlation r, -1 < r < 1; limits may be infinite.

    All of one shape, element by element.
    """
    h, k = (jnp.clip(-limit, -FARTHEST, FARTHEST) for limit in (h, k))
    strong = jnp.abs(r) >= STRONG
    mild = _from_independence(h, k, jnp.where(strong, 0.0, r))
    near_one = _from_dependence(h, k, jnp.where(strong, r, STRONG))
    return jnp.clip(jnp.where(strong, near_one, mild), 0.0, 1.0)


@orthant.defjvp
def _orthant_jvp(
    primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    (h, k, r), (dh, dk, dr) = primals, tangents
    slope = by_limit(h, k, r) * dh + by_limit(k, h, r) * dk + density(h, k, r) * dr
    return orthant(h, k, r), slope


def density(h: jax.Array, k: jax.Array, r: jax.Array) -> jax.Array:
    """Standard bivariate normal density; 0 at infinite limits."""
    h, k = (jnp.clip(limit, -FARTHEST, FARTHEST) for limit in (h, k))
    rest = (1.0 - r) * (1.0 + r)
    return jnp.exp(-0.5 * (h * h + jnp.square(k - r * h) / rest)) / (2.0 * np.pi * jnp.sqrt(rest))


def by_limit(h: jax.Array, k: jax.Array, r: jax.Array) -> jax.Array:
    """Derivative of the distribution function by its first limit."""
    h, k = (jnp.clip(limit, -FARTHEST, FARTHEST) for limit in (h, k))
    conditional = ndtr((k - r * h) / jnp.sqrt((1.0 - r) * (1.0 + r)))
    return jnp.exp(-0.5 * h * h) / ROOT_TWO_PI * conditional


def _summed(term: object, like: jax.Array) -> jax.Array:
    """The sum of weight times term(node) over the nodes, one after the other."""
    nodes = jnp.asarray(NODES, like.dtype), jnp.asarray(WEIGHTS, like.dtype)
    step = lambda total, at: (total + at[1] * term(at[0]), None)  # type: ignore[operator]
    return jax.lax.scan(step, jnp.zeros_like(like), nodes)[0]


def _from_independence(h: jax.Array, k: jax.Array, r: jax.Array) -> jax.Array:
    """P(X > h, Y > k) by the integral of the density over the correlation, from 0."""
    product, squares, half = h * k, 0.5 * (h * h + k * k), 0.5 * jnp.arcsin(r)

    def term(node: jax.Array) -> jax.Array:
        sine = jnp.sin(half * (1.0 + node))
        return jnp.exp((sine * product - squares) / ((1.0 - sine) * (1.0 + sine)))

    return half * _summed(term, product) / (2.0 * np.pi) + ndtr(-h) * ndtr(-k)


def _from_dependence(h: jax.Array, k: jax.Array, r: jax.Array) -> jax.Array:
    """P(X > h, Y > k) by the integral over the correlation from 1, or -1, less its first terms."""
    k = jnp.where(r < 0, -k, k)
    product, square = h * k, jnp.square(h - k)
    rest = (1.0 - r) * (1.0 + r)
    root, c, d = jnp.sqrt(rest), (4.0 - product) / 8.0, (12.0 - product) / 80.0
    exponent = -0.5 * (square / rest + product)
    series = 1.0 - c * (square - rest) * (1.0 - d * square) / 3.0 + c * d * rest * rest
    inner = jnp.where(exponent > SMALLEST, root * jnp.exp(exponent) * series, 0.0)
    gap = jnp.sqrt(square)
    tail = jnp.exp(-0.5 * jnp.maximum(product, SMALLEST)) * ROOT_TWO_PI * ndtr(-gap / root)
    tail = tail * gap * (1.0 - c * square * (1.0 - d * square) / 3.0)
    inner = inner - jnp.where(product > SMALLEST, tail, 0.0)

    def term(node: jax.Array) -> jax.Array:
        squared = jnp.square(0.5 * root * (1.0 + node))
        exponent = -0.5 * (square / squared + product)
        cosine = jnp.sqrt(1.0 - squared)
        known = 1.0 + c * squared * (1.0 + 5.0 * d * squared)
        exact = jnp.exp(-0.5 * product * squared / jnp.square(1.0 + cosine)) / cosine
        value = jnp.exp(jnp.maximum(exponent, SMALLEST)) * (known - exact)
        return jnp.where(exponent > SMALLEST, value, 0.0)

    inner = (0.5 * root * _summed(term, product) - inner) / (2.0 * np.pi)
    between = jnp.where(h < 0, ndtr(k) - ndtr(h), ndtr(-h) - ndtr(-k))
    opposed = jnp.where(h >= k, 0.0, between) - inner
    return jnp.where(r > 0, inner + ndtr(-jnp.maximum(h, k)), opposed)
