"""Differences that cancel, computed in twice the working precision.

Every product below is of two half-length factors, hence exact: a compiler that contracts it with
the addition that follows changes nothing.

References:
    Dekker (1971), A floating-point technique for extending the available precision.
    Ogita, Rump and Oishi (2005), Accurate sum and dot product.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from truncgauss.arrays.linalg import two_sum
from truncgauss.special.tails import Arrays


def products(x: Array, y: Array) -> list[Array]:
    """Four numbers whose exact sum is x * y, largest first."""
    info = jnp.finfo(x.dtype)

    def halves(v: Array) -> tuple[Array, Array]:
        top = jax.lax.reduce_precision(v, info.nexp, info.nmant // 2 - 1)
        return top, v - top

    (x1, x2), (y1, y2) = halves(x), halves(y)
    return [x1 * y1, x1 * y2, x2 * y1, x2 * y2]


def exact_sum(terms: list[Array]) -> tuple[Array, Array]:
    """The sum of the terms, rounded, and its rounding error."""
    total, rest = terms[0], jnp.zeros_like(terms[0])
    for term in terms[1:]:
        total, error = two_sum(total, term)
        rest = rest + error
    return two_sum(total, rest)


def together(*parts: Array) -> Array:
    """All in one array, by selections: XLA compiles a concatenation as a kernel of its own, and a
    quotient with several uses too, so that those of one array take one."""
    result = parts[-1]
    for k, part in enumerate(parts[:-1]):
        at = np.reshape(np.arange(len(parts)) == k, (-1, *[1] * part.ndim))
        result = jnp.where(at, part[None], result)
    return result


@jax.custom_jvp
def difference_of_products(a: Array, b: Array, c: Array, d: Array) -> Array:
    """a b - c d with one rounding, however much cancels."""
    # Both products as one operation on vectors: fewer to compile.
    total, rest = exact_sum(products(together(a, -c), together(b, d)))
    total, error = two_sum(*total)
    return total + (error + (rest[0] + rest[1]))


@difference_of_products.defjvp
def _difference_of_products_jvp(primals: Arrays, tangents: Arrays) -> tuple[Array, Array]:
    (a, b, c, d), (da, db, dc, dd) = primals, tangents
    return difference_of_products(a, b, c, d), a * db + b * da - c * dd - d * dc


@jax.custom_jvp
def line(x: Array, x0: Array, y0: Array, slope: Array, slope_rest: Array) -> tuple[Array, Array]:
    """y0 + (slope + slope_rest) (x - x0), rounded, and the rounding error.

    `slope_rest` is the rounding error of the slope. Neither of the two has a derivative.
    """
    step, step_rest = two_sum(x, -x0)
    value, rest = exact_sum([y0, *products(slope, step)])
    return value, rest + (slope * step_rest + slope_rest * step)


@line.defjvp
def _line_jvp(primals: Arrays, tangents: Arrays) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    x, x0, _, slope, _ = primals
    dx, dx0, dy0, dslope, _ = tangents
    value, rest = line(*primals)
    return (value, rest), (dy0 + slope * (dx - dx0) + dslope * (x - x0), jnp.zeros_like(rest))
