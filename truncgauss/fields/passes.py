"""Sequential Monte Carlo over the blocks of a field, and the slopes along the surviving paths.

With q the guide of `guide` and t its sites, the particles of a block are drawn from the guide's
conditional distribution within the limits, and weighted by

    prod_i int q(f_i | before) g_i(f_i) / t_i(f_i) df_i,

g_i the probability of the limits given f_i. They are resampled between blocks. Where the guide has
fewer neighbours than the field this is made good at the end, by the ratio p(f) t(f) / q(f) of each
path, else one number. So E exp(log_prob) is the probability for every guide.

References:
    Ridgway (2016), Computation of Gaussian orthant probabilities in high dimension. Guarniero,
    Johansen and Lee (2017), The iterated auxiliary particle filter. Poyiadjis, Doucet and Singh
    (2011), Particle approximations of the score, for Fisher's identity. L'Ecuyer, Lecot and Tuffin
    (2008), A randomized quasi-Monte Carlo simulation method for Markov chains, for the lattice.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.linalg import cho_solve, solve_triangular

from truncgauss.fields.guide import FieldSites, Rows, WholeGuide, log_sites, slots_in_blocks
from truncgauss.special.logspace import effective_sample_size, log_sum_exp
from truncgauss.special.normal import log_interval_mass, separation_step
from truncgauss.special.tails import LOG_SQRT_2PI, fixed_interval, standardize

LEAST_EFFECTIVE = 0.9  # of the particles; half of them gave up to twice the variance
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


class Pass(NamedTuple):
    """One run.

    Attributes:
        log_prob: log of the estimate.
        least: the smallest effective sample size at any step.
        log_weights: of the particles, shape (n,).
        paths: the surviving draws of each place, and a row of zeros, shape (places + 1, n).
    """

    log_prob: Array
    least: Array
    log_weights: Array
    paths: Array


class _Paths(NamedTuple):
    drawn: Array  # of an exact field in standard deviations of the guide
    state: Array  # the draws on which the guide of the next blocks depends, in their slots
    ancestors: Array
    log_weights: Array
    owed: Array  # log t / q so far, not yet in the weights
    log_prob: Array
    least: Array


def run(
    field: Any, rows: Rows, sites: FieldSites, law: Any, key: Array, num_particles: int
) -> Pass:
    """One run over all blocks; law is the `BlockConditional` of each, or one `WholeGuide`."""
    (blocks, size), n, dtype = rows.low.shape, num_particles, rows.low.dtype
    lanes, nothing = jnp.arange(n), jnp.zeros(n, dtype)
    exact = isinstance(law, WholeGuide)
    asked, laws = rows, law
    if exact:
        asked = rows._replace(noise=law.noise)
        laws = law.mean.reshape(blocks, size), law.factor.reshape(blocks, size, -1)

    def block(cloud: _Paths, part: Any) -> tuple[_Paths, None]:
        k, slots, conditional, rows, sites, key = part
        keys = jax.random.split(key, 3)
        if exact:
            base, factor = _by_all(cloud, k, *conditional)
        else:
            factor = conditional.factor
            base = conditional.weights @ cloud.state + conditional.shift[:, None]
        cloud, base = _resampled(cloud, base, keys[0])
        noisy = jnp.any(rows.noise > 0)
        normals = lax.cond(
            noisy, lambda: jax.random.normal(keys[2], (size, n), dtype), lambda: 0.0 * base
        )
        random = jax.random.uniform(keys[1], (size,), dtype), normals
        drawn, offsets, gains = _drawn(factor, base, rows, sites, random)
        guide = jnp.sum(0.5 * offsets**2, axis=0) + jnp.sum(jnp.log(jnp.diagonal(factor)))
        columns = jax.tree.map(lambda x: x[:, None], (rows, sites))
        at_sites = jnp.sum(log_sites(drawn, *columns), axis=0)
        kept = offsets if exact else drawn
        cloud = cloud._replace(
            drawn=lax.dynamic_update_slice_in_dim(cloud.drawn, kept, k * size, 0),
            state=cloud.state.at[slots].set(drawn, mode="drop"),
            ancestors=lax.dynamic_update_index_in_dim(cloud.ancestors, lanes, k, 0),
            log_weights=cloud.log_weights + gains,
            owed=cloud.owed if exact else cloud.owed + guide + at_sites,
        )
        return cloud, None

    start = _Paths(
        jnp.zeros((blocks * size + 1, n), dtype),
        jnp.zeros((0 if exact else field.width, n), dtype),
        jnp.zeros((blocks + 1, n), lanes.dtype),
        *(nothing, nothing, jnp.zeros((), dtype), jnp.full((), n, dtype)),
    )
    keys = jax.random.split(key, blocks + 1)
    parts = jnp.arange(blocks), slots_in_blocks(field), laws, asked, sites, keys[1:]
    cloud, _ = lax.scan(block, start, parts)
    drawn = cloud.drawn[:-1].reshape(blocks, size, n)
    drawn = jnp.take_along_axis(drawn, cloud.ancestors[:-1, None], axis=2).reshape(-1, n)
    if exact:
        drawn = _field_given(field, law, rows, law.mean[:, None] + law.factor @ drawn, keys[0])
    paths = cloud.drawn.at[:-1].set(drawn)
    ratio = law.log_mass if exact else _log_densities(field, paths)
    log_weights = cloud.log_weights + cloud.owed + ratio
    total = log_sum_exp(log_weights)
    return Pass(
        cloud.log_prob + total - math.log(n),
        jnp.minimum(cloud.least, effective_sample_size(log_weights)),
        log_weights,
        paths,
    )


def _by_all(cloud: _Paths, k: Array, mean: Array, rows: Array) -> tuple[Array, Array]:
    """The guide's means of block k given all earlier ones, and its factor: tile by tile."""
    size, n = len(mean), cloud.drawn.shape[1]

    def add(j: Array, base: Array) -> Array:
        offsets = lax.dynamic_slice_in_dim(cloud.drawn, j * size, size)
        tile = lax.dynamic_slice_in_dim(rows, j * size, size, 1)
        return base + tile @ offsets[:, cloud.ancestors[j]]

    base = lax.fori_loop(0, k, add, jnp.broadcast_to(mean[:, None], (size, n)))
    return base, lax.dynamic_slice_in_dim(rows, k * size, size, 1)


def _field_given(field: Any, law: WholeGuide, rows: Rows, paths: Array, key: Array) -> Array:
    """Draws of an exact field given it and its noise.

    With (f, x) drawn from their distribution without limits, C the covariance of the field and A
    that of field and noise, f + C A^{-1} (paths - x) is drawn from that of the field given paths.
    """
    within = (rows.noise - law.noise).reshape(-1, 1)
    normals = jax.random.normal(key, (2, *paths.shape), paths.dtype)
    root = field.exact_root
    drawn = root @ normals[0]
    left = cho_solve((law.root, True), paths - drawn - jnp.sqrt(within) * normals[1])
    return jnp.where(within > 0, drawn + root @ (root.T @ left), paths)


def _log_densities(field: Any, paths: Array) -> Array:
    """The log density of each path, without powers of 2 pi."""
    size = field.block_size

    def step(total: Array, part: Any) -> tuple[Array, None]:
        start, neighbours, weights, scale = part
        drawn, earlier = lax.dynamic_slice_in_dim(paths, start, size), paths[neighbours.astype(int)]
        return total + _squares(weights, scale, drawn, earlier), None

    starts = size * jnp.arange(len(field.weights))
    parts = starts, field.neighbours, field.weights, field.scale
    return lax.scan(step, jnp.zeros_like(paths[0]), parts)[0]


def _resampled(cloud: _Paths, base: Array, key: Array) -> tuple[_Paths, Array]:
    """The particles, systematically resampled if too few of them are effective, and their means.

    They are taken in the order of the sum of these means over the next block.
    """
    n = len(cloud.log_weights)
    effective = effective_sample_size(cloud.log_weights)
    dtype = cloud.log_weights.dtype
    at = (jnp.arange(n, dtype=dtype) + jax.random.uniform(key, (), dtype)) / n

    def anew() -> tuple[Array, ...]:
        order = jnp.argsort(jnp.sum(base, axis=0))
        heights = jnp.cumsum(jnp.exp(cloud.log_weights - jnp.max(cloud.log_weights))[order])
        chosen = jnp.searchsorted(heights, at * heights[-1], side="right")
        parents = order[jnp.minimum(chosen, n - 1)]
        mean = log_sum_exp(cloud.log_weights) - math.log(n)
        moved = *(x[:, parents] for x in kept[:2]), jnp.zeros_like(cloud.log_weights)
        return *moved, cloud.owed[parents], cloud.log_prob + mean, base[:, parents]

    kept = cloud.state, cloud.ancestors, cloud.log_weights, cloud.owed, cloud.log_prob, base
    *parts, base = lax.cond(effective < LEAST_EFFECTIVE * n, anew, lambda: kept)
    names = "state", "ancestors", "log_weights", "owed", "log_prob"
    least = jnp.minimum(cloud.least, effective)
    return cloud._replace(least=least, **dict(zip(names, parts, strict=True))), base


def _uniforms(middle: Array, shift: Array) -> Array:
    """A golden lattice, shifted, in the order of the means; they are sorted as whole numbers.

    The number of a particle stands in the low bits: that is six times as quick as argsort.
    """
    n, dtype = len(middle), middle.dtype
    bits = (n - 1).bit_length()
    low, high = jnp.min(middle), jnp.max(middle)
    share = (middle - low) / jnp.where(high > low, high - low, 1.0)
    level = (share * (2.0 ** min(24, 32 - bits) - 1.0)).astype(jnp.uint32)
    packed = jnp.sort((level << bits) | jnp.arange(n, dtype=jnp.uint32))
    order = packed & jnp.uint32(2**bits - 1)
    lattice = (jnp.asarray(np.arange(n) * GOLDEN % 1.0, dtype) + shift) % 1.0
    uniforms = jnp.zeros_like(middle).at[order].set(lattice, unique_indices=True)
    return jnp.clip(uniforms, jnp.finfo(dtype).tiny, 1.0 - jnp.finfo(dtype).epsneg)


def _drawn(
    factor: Array, base: Array, rows: Rows, sites: FieldSites, random: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """The draws of a block, in standard deviations of the guide too, and the gains in weight.

    The guide's conditional mean and variance of f_i are those of a cavity, v and m, with the site
    i. X_i = f_i + noise is drawn from Normal(m, v + noise) within the limits, f_i given X_i.
    """
    pivots = jnp.diagonal(factor)

    def step(carry: tuple[Array, Array], part: Any) -> tuple[Any, Array]:
        offsets, gains = carry
        k, row, pivot, base, (low, high, noise, exact), (p, h), (shift, normal) = part
        mean = base + row @ offsets
        variance, centre = 1.0 / (1.0 / pivot**2 - p), jnp.where(exact, low, 0.0)
        h -= p * centre  # of the site about the centre
        off = variance * ((mean - centre) / pivot**2 - h)
        middle = centre + off
        whole = jnp.sqrt(variance + noise)
        limits = fixed_interval(low, jnp.where(exact, jnp.inf, high), middle, whole)
        uniform = _uniforms(middle, shift)
        value, log_mass = separation_step(limits.low, limits.high, uniform, limits.width)
        value = jnp.where(exact, limits.low, value)
        density = -0.5 * limits.low**2 - jnp.log(whole) - LOG_SQRT_2PI
        left = jnp.sqrt(variance * noise) / whole
        draw = middle + variance / whole * value + left * normal
        ratio = 1.0 + p * variance
        at_site = h * off + 0.5 * variance * h**2 - 0.5 * p * off**2
        site = at_site / ratio - 0.5 * jnp.log(ratio)
        offsets = lax.dynamic_update_index_in_dim(offsets, (draw - mean) / pivot, k, 0)
        return (offsets, gains + jnp.where(exact, density, log_mass) - site), draw

    start = jnp.zeros_like(base), jnp.zeros_like(base[0])
    parts = jnp.arange(len(base)), factor, pivots, base, rows, sites, random
    (offsets, gains), drawn = lax.scan(step, start, parts)
    return drawn, offsets, gains


def _squares(weights: Array, factor: Array, drawn: Array, earlier: Array) -> Array:
    """The log density of a block given its neighbours, without the powers of 2 pi."""
    left = solve_triangular(factor, drawn - weights @ earlier, lower=True)
    return -0.5 * jnp.sum(left**2, axis=0) - jnp.sum(jnp.log(jnp.diagonal(factor)))


class FieldSlopes(NamedTuple):
    """Derivatives of log P in the numbers of a field, and in the rows."""

    weights: Array
    scale: Array
    exact_root: Array
    rows: tuple[Array, Array, Array]


def slopes(field: Any, rows: Rows, record: Pass) -> FieldSlopes:
    """Derivatives of the log of one run's estimate by Fisher's identity: the mean, over surviving
    paths, of the derivative of the log density of a path and of what is asked of it.

    A path moves with its limits where these are those of the field itself (no noise): between two
    in proportion, else with the one that there is. The domain of a path is then fixed. With r the
    residual of a block, e = L^{-1} r and v = L^{-T} e, the derivative of its log density is -v in
    the block, W^T v in the neighbours, v f_N^T in W and v e^T - diag(1 / L) in L. An exact field is
    one block.
    """
    share = jax.nn.softmax(record.log_weights)[None]
    paths = record.paths[:-1].reshape(*rows.low.shape, -1)
    root = field.exact_root
    if root.size:
        left = solve_triangular(root, record.paths[:-1], lower=True)
        force = solve_triangular(root.T, left, lower=False)
        pulls, of_weights, of_scale = -force, *map(jnp.zeros_like, (field.weights, field.scale))
        of_root = jnp.tril((force * share) @ left.T) - jnp.diag(1.0 / jnp.diagonal(root))
    else:
        pulls, of_weights, of_scale = _slopes_by_neighbours(field, record.paths, share)
        of_root = jnp.zeros_like(root)
    pulls = pulls.reshape(paths.shape)

    def asked(low: Array, high: Array, noise: Array) -> Array:
        some = jax.tree.map(lambda x: x[..., None], Rows(low, high, noise, rows.exact))
        path, stretch = _moved(paths, some, jax.tree.map(lambda x: x[..., None], rows))
        along = jnp.sum(path * pulls + stretch + _asked(paths, some), axis=(0, 1))
        return jnp.sum(along * share[0])

    return FieldSlopes(of_weights, of_scale, of_root, jax.grad(asked, (0, 1, 2))(*rows[:3]))


def _slopes_by_neighbours(field: Any, drawn: Array, share: Array) -> tuple[Array, Array, Array]:
    """Of the log density of each path in the path, and of their mean in weights and scale."""
    size = field.block_size

    def step(pulls: Array, part: Any) -> tuple[Array, tuple[Array, Array]]:
        start, neighbours, weights, scale = part
        near = neighbours.astype(int)
        earlier, own = drawn[near], lax.dynamic_slice_in_dim(drawn, start, size)
        left = solve_triangular(scale, own - weights @ earlier, lower=True)
        force = solve_triangular(scale.T, left, lower=False)
        pulls = pulls.at[near].add(weights.T @ force)
        before = lax.dynamic_slice_in_dim(pulls, start, size)
        pulls = lax.dynamic_update_slice_in_dim(pulls, before - force, start, 0)
        by_scale = jnp.tril((force * share) @ left.T) - jnp.diag(1.0 / jnp.diagonal(scale))
        return pulls, ((force * share) @ earlier.T, by_scale)

    parts = size * jnp.arange(len(field.weights)), field.neighbours, field.weights, field.scale
    pulls, (by_weights, by_scale) = lax.scan(step, jnp.zeros_like(drawn), parts)
    return pulls[:-1], by_weights, by_scale


def _moved(paths: Array, rows: Rows, before: Rows) -> tuple[Array, Array]:
    """Paths that move with their limits, and the log of the factor by which they stretch."""
    low, high = jnp.isfinite(before.low), jnp.isfinite(before.high) & ~before.exact
    ends = (low, rows.low), (high, rows.high), (low, before.low), (high, before.high)
    lower, upper, low0, high0 = (jnp.where(known, end, 0.0) for known, end in ends)
    both, width = low & high, jnp.where(low & high, high0 - low0, 1.0)
    ratio = jnp.where(both, (upper - lower) / width, 1.0)
    start = jnp.where(low, low0, high0)
    moved = jnp.where(low, lower, upper) + (paths - start) * ratio
    bare = before.noise == 0
    return jnp.where(bare, moved, paths), jnp.where(bare & both, jnp.log(ratio), 0.0)


def _asked(paths: Array, rows: Rows) -> Array:
    """The log probability, or density, of what is asked of coordinates given the field."""
    noisy = rows.noise > 0
    scale = jnp.sqrt(jnp.where(noisy, rows.noise, 1.0))
    limits = standardize(rows.low, jnp.where(rows.exact, jnp.inf, rows.high), paths, scale)
    log_mass = log_interval_mass(*limits)
    at = jnp.where(rows.exact, limits.low, 0.0)
    density = -0.5 * at**2 - jnp.log(scale) - LOG_SQRT_2PI
    return jnp.where(noisy, jnp.where(rows.exact, density, log_mass), 0.0)
