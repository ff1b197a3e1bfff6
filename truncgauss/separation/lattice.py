"""Random, antithetic and lattice point sets, in the unit cube and as standard normal points."""

import functools
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Integer, UInt32, UInt64

from truncgauss.arrays.pytrees import Batched, frozen_pytree
from truncgauss.words.names import check_choice

T = TypeVar("T")
KINDS = ("random", "antithetic", "lattice")
DRAWN = 32  # a shift is drawn in multiples of so many numbers


def normal_points(
    key: jax.Array, num_points: int, dimension: int, kind: str, dtype: DTypeLike
) -> Float[Array, "num_points dimension"]:
    """Standard normal points, shape (num_points, dimension).

    Args:
        key: JAX random key; the same key gives the same points.
        num_points: how many; even for "antithetic".
        dimension: coordinates of each.
        kind: "random" (independent), "antithetic" (pairs z, -z) or "lattice" (a randomly shifted
            rank-one lattice, folded by the baker's map and mapped by the normal quantile).
        dtype: floating dtype of the result.

    Raises:
        ValueError: for another kind, or an odd number of antithetic points.
    """
    check_choice(kind, KINDS, "points")
    if kind == "random":
        return jax.random.normal(key, (num_points, dimension), dtype)
    if kind == "antithetic":
        if num_points % 2:
            raise ValueError(f"antithetic points come in pairs, got num_samples={num_points}.")
        half = jax.random.normal(key, (num_points // 2, dimension), dtype)
        return jnp.concatenate([half, -half])
    return ndtri_of_bits(lattice_bits(lattice_points(num_points, dimension), key), dtype)


@frozen_pytree
class GrowingLattice(Batched):
    """A rank-one lattice in 2^k pieces of n points each, for which a program need not know k.

    Of its N = 2^k n points i s modulo 1, i < N, piece j has the points (i 2^k + j) s, i < n: a
    lattice of n points with the step 2^k s, shifted by j s.

    Attributes:
        step: s in units of 2^-32, shape (d,).
        num_pieces: 2^k.

    Reference:
        Hickernell, Hong, L'Ecuyer and Lemieux (2000), Extensible lattice sequences for quasi-Monte
        Carlo quadrature.
    """

    step: UInt32[Array, "*batch d"] | UInt32[np.ndarray, "*batch d"]
    num_pieces: UInt32[Array, "*batch"] | UInt32[np.ndarray, "*batch"]

    event_ranks = {"step": 1, "num_pieces": 0}

    @classmethod
    def of(
        cls, num_points: int, num_pieces: int, dimension: int, batch_shape: tuple[int, ...]
    ) -> "GrowingLattice":
        """The lattice of num_pieces * num_points points; both counts powers of two."""
        step = component_by_component(num_points * num_pieces, dimension)
        step = (step * np.uint64(2**32 // (num_points * num_pieces))).astype(np.uint32)
        pieces = np.full(batch_shape, num_pieces, np.uint32)
        return cls(np.broadcast_to(step, (*batch_shape, dimension)), pieces)

    def piece(
        self, j: Integer[Array, ""], num_points: int, dimension: int
    ) -> UInt32[Array, "num_points dimension"]:
        step = self.step[:dimension]
        index = jnp.arange(num_points, dtype=jnp.uint32)[:, None]
        return (index * self.num_pieces + j.astype(jnp.uint32)) * step[None, :]


def over_pieces(
    lattice: GrowingLattice | None, part: Callable[[Array], T], combine: Callable[[T, T], T]
) -> T:
    """The results of `part(j)` for every piece j of a lattice, combined; None has a single piece.

    A loop over pieces cannot be differentiated in reverse mode.
    """
    if lattice is None:
        return part(jnp.uint32(0))

    def add(j: Array, so_far: T) -> T:
        result = part(j)
        whole = combine(so_far, result)
        return jax.tree.map(lambda one, more: jnp.where(j == 0, one, more), result, whole)

    # The first piece is computed in the loop too: outside, its program would be compiled twice.
    shapes = jax.eval_shape(part, jnp.uint32(0))
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.fori_loop(0, lattice.num_pieces.astype(int), add, nothing)


def lattice_bits(points: UInt32[Array, "n d"], key: jax.Array) -> UInt32[Array, "n d"]:
    """A lattice, randomly shifted and folded, in units of 2^-32.

    Point i of a rank-one lattice is i * generator / n + shift modulo 1, in integers: a float32
    fraction is off by 2.5e-3 at i = 1e5. The baker's map u -> 1 - |2u - 1| makes the integrand
    periodic, which gives second order convergence for smooth integrands.

    Reference:
        Hickernell (2002), Obtaining O(N^(-2+eps)) convergence for lattice quadrature rules.
    """
    return folded(points + shift_of(key, points.shape[-1])[None])


def shift_of(key: jax.Array, dimension: int) -> UInt32[Array, " d"]:
    """The random shift of a lattice in units of 2^-32."""
    # A few more numbers: XLA unrolls loops over fewer than 16, which takes half a second for these.
    length = -(-dimension // DRAWN) * DRAWN
    return jax.random.bits(key, (length,), jnp.uint32)[:dimension]


def folded(bits: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """The baker's map of numbers in units of 2^-32."""
    doubled = bits << 1
    return jnp.where(bits >> 31 == 1, ~doubled, doubled)


def shifted_uniforms(
    points: UInt32[Array, "n d"], keys: jax.Array, dtype: DTypeLike
) -> Float[Array, "d lanes"]:
    """The points of a lattice in the open unit cube, with the random shift of each of R keys.

    Returns:
        Shape (d, R * n): coordinates first, so that each is contiguous.
    """
    bits = jax.vmap(lambda key: lattice_bits(points, key))(keys)
    n, d = points.shape
    return open_uniforms(jnp.moveaxis(bits, 2, 0).reshape(d, len(keys) * n), dtype)


def open_uniforms(bits: UInt32[Array, "*shape"], dtype: DTypeLike) -> Float[Array, "*shape"]:
    """Uniforms in the open interval (0, 1) from uint32; float32 keeps the upper 23 bits."""
    if dtype == jnp.float64:
        return (bits.astype(dtype) + 0.5) * 2.0**-32
    return ((bits >> 9).astype(dtype) + 0.5) * 2.0**-23


def lattice_points(num_points: int, dimension: int) -> UInt32[Array, "num_points dimension"]:
    """The rank-one lattice in units of 2^-32, neither shifted nor folded."""
    if is_power_of_two(num_points):
        # Products modulo 2^32 are exact, so the program holds d numbers rather than n d.
        spacing = np.uint64(2**32 // num_points)
        step = component_by_component(num_points, dimension) * spacing
        counter = jnp.arange(num_points, dtype=jnp.uint32)[:, None]
        return counter * jnp.asarray(step.astype(np.uint32))[None, :]
    index = np.arange(num_points, dtype=np.uint64)[:, None]
    steps = (index * korobov_generator(num_points, dimension)[None, :]) % np.uint64(num_points)
    return jnp.asarray(((steps << np.uint64(32)) // np.uint64(num_points)).astype(np.uint32))


def is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


@functools.lru_cache(maxsize=64)
def component_by_component(num_points: int, dimension: int) -> UInt64[np.ndarray, " dimension"]:
    """A generating vector for n = 2^m points, chosen one component after the other.

    Each component is the power of 5 modulo n with the least worst-case error given those before,
    by the criterion of `korobov_generator` with weights 0.1, from the 50th on 5/j. The powers of 5
    and their negatives are all odd numbers, so the errors of all candidates are a circular
    correlation for each power of two that divides the point, computed by fast Fourier transforms.

    Reference:
        Nuyens and Cools (2006), Fast component-by-component construction of rank-1 lattice rules
        with a non-prime number of points.
    """
    n = num_points
    if n < 8:
        return np.ones(dimension, np.uint64)
    powers = np.ones(n // 4, np.int64)
    for k in range(1, n // 4):
        powers[k] = powers[k - 1] * 5 % n
    kernel = 2 * np.pi**2 * bernoulli(np.arange(n) / n)
    orbits = []
    for level in range(n.bit_length() - 3):
        size = (n >> level) // 4
        points = (powers[:size] << level) % n
        orbits.append((points, np.fft.rfft(kernel[points]), size))
    product, generator = np.ones(n), []
    for j in range(1, dimension + 1):
        errors = np.zeros(n // 4)
        for points, transform, size in orbits:
            part = np.fft.irfft(np.conj(np.fft.rfft(product[points])) * transform, size)
            errors += np.tile(part, n // 4 // size)
        # All choices of the first component are equivalent: multiplying by it permutes the points.
        chosen = int(powers[np.argmin(errors)]) if j > 1 else 1
        generator.append(chosen)
        product *= 1 + min(0.1, 5 / j) * kernel[np.arange(n) * chosen % n]
    return np.array(generator, np.uint64)


def bernoulli(x: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """The second Bernoulli polynomial, x^2 - x + 1/6."""
    return x * x - x + 1 / 6


@functools.lru_cache(maxsize=64)
def korobov_generator(num_points: int, dimension: int) -> UInt64[np.ndarray, " dimension"]:
    """The generating vector (1, g, g^2, ...) mod n with the least worst-case error of 60 tried.

    The criterion is P_2 with weights 1/j^2: -1 + mean over points of the product over coordinates
    of 1 + gamma_j 2 pi^2 B_2({x_j}), where B_2 is the Bernoulli polynomial x^2 - x + 1/6.

    Reference:
        Sloan and Joe (1994), Lattice Methods for Multiple Integration, chapter 4.
    """
    n = np.uint64(num_points)
    index = np.arange(num_points, dtype=np.uint64)
    weights = 2 * np.pi**2 / np.arange(1, dimension + 1) ** 2.0
    best, best_error = np.ones(dimension, np.uint64), np.inf
    candidates = np.random.default_rng(0).integers(2, max(num_points, 3), 60)
    for candidate in dict.fromkeys(int(c) for c in candidates):
        if np.gcd(candidate, num_points) != 1:
            continue
        generator = np.array([pow(candidate, j, num_points) for j in range(dimension)], np.uint64)
        product = np.ones(num_points)
        for step, weight in zip(generator, weights):
            x = (index * step % n) / num_points
            product *= 1 + weight * bernoulli(x)
        error = product.mean()
        if error < best_error:
            best, best_error = generator, error
    return best


def ndtri_of_bits(bits: UInt32[Array, "*shape"], dtype: DTypeLike) -> Float[Array, "*shape"]:
    """Standard normal quantiles of (bits + 1/2) / 2^32: finite, and exactly antisymmetric.

    The upper half is reflected onto the lower one, where small probabilities keep their digits in
    float32 too; above, bits * 2^-32 would round to 1 for the top 128 integers.
    """
    upper = bits >> 31 == 1
    lower_bits = jnp.where(upper, ~bits, bits)
    z = ndtri((lower_bits.astype(dtype) + 0.5) * 2.0**-32)
    return jnp.where(upper, -z, z)
