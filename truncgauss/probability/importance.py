"""Importance sampling in any region: draws from a Gaussian adapted to the part that is kept."""

import math
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from truncgauss.arrays import parallel
from truncgauss.arrays.batches import with_slopes
from truncgauss.arrays.compiling import Compiled, Cost
from truncgauss.arrays.linalg import product
from truncgauss.arrays.pytrees import Batched, frozen_pytree, is_concrete, static_field
from truncgauss.gaussian.covariances import Covariance
from truncgauss.gaussian.problem import Estimate, Moments, Problem, over_rows
from truncgauss.gaussian.regions.region import Region
from truncgauss.gaussian.total_moments import (
    MIN_EFFECTIVE_POINTS,
    pooled_moments,
    weighted_pieces,
    with_unseen,
)
from truncgauss.probability.method import (
    NUM_REPLICATES,
    Growth,
    Method,
    check_counts,
    check_held,
    effective_share,
    spread,
    with_fields,
)
from truncgauss.separation.lattice import (
    GrowingLattice,
    is_power_of_two,
    lattice_bits,
    lattice_points,
    ndtri_of_bits,
    normal_points,
    over_pieces,
)
from truncgauss.special.logspace import effective_sample_size, log_mean_exp, log_sum_exp
from truncgauss.special.tails import log_ndtr
from truncgauss.words.arguments import explained_class

EDGE = 0.05  # of the spread of the margins inside, by which slopes in a region's numbers are smooth
PILOT, ROUNDS = 1024, 24  # draws and rounds that adapt the proposal
FEW = 16  # rows of which that is over in a part of a second, however it is compiled
ELITE = 0.1  # share of the draws, the closest to the region, that determine the next proposal
SUPPORTED = 0.02  # of the pilot draws must be effective for the region itself to determine it
ROUNDED = 1e-6  # by which rounding may take a probability above 1
WIDER = 1.2  # by which the covariance of the kept part is enlarged
# For one point of the adapted Gaussian, so many of one twice as wide and of the Gaussian itself.
BROAD, DEFENSIVE = 1 / 4, 1 / 8


@frozen_pytree
class RegionProposal(Batched):
    """Two Gaussians to draw from, by their means and Cholesky factors.

    Attributes:
        loc, scale_tril: adapted to the part that is kept, (d,) and (d, d).
        wide_loc, wide_scale_tril: the Gaussian for which the proposal was made.
        convex: whether the region is known to be convex (static).
    """

    loc: Float[Array, "*batch d"]
    scale_tril: Float[Array, "*batch d d"]
    wide_loc: Float[Array, "*batch d"]
    wide_scale_tril: Float[Array, "*batch d d"]
    convex: bool = static_field(default=False)

    event_ranks = {"loc": 1, "scale_tril": 2, "wide_loc": 1, "wide_scale_tril": 2}


@explained_class
@frozen_pytree
class ImportanceSampling(Method):
    r"""The probability of any region, or of a soft `Selection`, by importance sampling.

    With s(x) the probability that x is kept, 0 or 1 for a set, and q a mixture of three Gaussians,
    one adapted to the part that is kept, one twice as wide, and the Gaussian itself,

    .. math:: P = E\{s(X)\} = \frac1n \sum_i s(x_i)\, \frac{\phi(x_i; \mu, \Sigma)}{q(x_i)}

    The points x_i do not move with mean and covariance, so derivatives of any order in these are as
    unbiased as the value, though s may jump: they are score-function estimates. With the numbers of
    a `Ball` or an `Ellipsoid` the points move as the region does, and their volume with them. Only
    for a region that does not say how its points move, derivatives in its own numbers are those
    with edges smoothed by a twentieth of the spread of the margins inside, good to a percent or so.

    The proposal has one centre. Of a region in several pieces it may miss all but one, unless the
    Gaussian itself reaches them; for regions not known to be convex its share of the points is
    larger, and stderr includes 2/N over P, with N points from the Gaussian itself: far out it then
    says that nothing is known.

    Args:
        num_points: points of a randomly shifted lattice a replicate; a power of two (static).
        num_replicates: random shifts, whose spread is the standard error (static).
        proposal: from `hold`.
        lattices: of each Gaussian, in pieces of `num_points` or a fixed share of these; without
            them the lattice is one piece. Set by `in_pieces`.

    Raises:
        ValueError: if a count is not positive, or a held proposal does not fit the problem.

    References:
        Owen and Zhou (2000), Safe and effective importance sampling, for the mixture. De Boer,
        Kroese, Mannor and Rubinstein (2005), A tutorial on the cross-entropy method, for its
        adaptation.

    Example:
        >>> ball = tg.Ball([0.0, 0.0], 1.0)
        >>> method = tg.ImportanceSampling(1024)
        >>> log_prob, stderr = tg.log_probability([0.0, 0.0], jnp.eye(2), ball, method)
        >>> bool(abs(log_prob - jnp.log(1.0 - jnp.exp(-0.5))) < 3 * stderr), bool(stderr < 5e-3)
        (True, True)
    """

    num_points: int = static_field(default=4096)
    num_replicates: int = static_field(default=NUM_REPLICATES)
    proposal: RegionProposal | None = None
    lattices: tuple[GrowingLattice, ...] | None = None

    own_units = False  # a region that is no set of linear limits has the user's units
    growth = Growth("num_points", 1.5, price=8)
    of_any_region = True
    held_fields = "proposal", "lattices"

    @classmethod
    def candidate(cls, problem: Problem, num_points: int) -> "ImportanceSampling | None":
        region = problem.region
        known = region.answers_points and not (region.is_linear or region.is_outside)
        return cls() if known else None

    def reason(self, problem: Problem) -> str:
        return f"{type(problem.region).__name__} has no linear constraints"

    def __post_init__(self) -> None:
        check_counts(self, "num_points", "num_replicates")
        if not is_power_of_two(self.num_points):
            raise ValueError(
                f"ImportanceSampling: num_points must be a power of two, got {self.num_points}."
            )

    def for_problem(self, problem: Problem) -> "ImportanceSampling":
        _, covariance, region = problem
        if region.is_outside:
            raise ValueError(
                "ImportanceSampling has one centre, and an Outside lies all around it. Use "
                "tg.Automatic()."
            )
        if not region.answers_points:
            raise ValueError(
                f"ImportanceSampling needs the probability with which any point is kept, which "
                f"{type(region).__name__} do not know. Use tg.Automatic()."
            )
        if self.proposal is not None:
            counts = {"coordinates": (self.proposal.loc.shape[-1], covariance.dimension)}
            check_held(type(self).__name__, self.proposal, counts, problem)
            if self.proposal.convex and not region.is_convex:
                raise ValueError(
                    "ImportanceSampling: the proposal that is held was made for a convex region, "
                    f"which this {type(region).__name__} is not known to be. Hold the method for "
                    "this problem: method.hold(loc, covariance, region)."
                )
        return self

    def planned(self, problem: Problem) -> "ImportanceSampling":
        """The method with its proposal adapted to this problem, or to each row of a batch."""
        with jax.debug_nans(False):  # by which no such point is known
            proposal, strange = _proposals(problem)
        if is_concrete(strange) and np.any(np.isfinite(strange)):
            check_probabilities(problem.region, strange)
        return replace(self, proposal=proposal, lattices=None)

    def in_pieces(self, factor: int) -> "ImportanceSampling":
        assert self.proposal is not None
        d, shape = self.proposal.loc.shape[-1], self.batch_shape
        lattices = (GrowingLattice.of(count, factor, d, shape) for count in self._counts)
        return replace(self, lattices=tuple(lattices))

    @property
    def _counts(self) -> tuple[int, ...]:
        convex = self.proposal is not None and self.proposal.convex
        shares = (1, BROAD, DEFENSIVE if convex else 1)
        return tuple(max(1, int(share * self.num_points)) for share in shares)

    def drawn(self, region: Region, keys: Array) -> "DrawnPoints":
        """The held method with the points that it draws in regions with these keys, (u,).

        Args:
            region: of batch shape (u,), or () if it has no numbers.
            keys: one for each of the u rows of the proposal.
        """
        x, log_weights = _drawn(self, region, keys)
        return DrawnPoints(x=x, log_weights=log_weights, num_wide=self._num_wide)

    # --- Estimates

    def replicates(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, keys: Array
    ) -> Estimate:
        """One estimate for each key; their stderr is what the points may not have seen."""
        row = Problem(loc, covariance, region)
        self = self._with_proposal(row)
        lattice = None if self.lattices is None else self.lattices[0]

        def total(key: Array) -> Weights:
            total = over_pieces(lattice, lambda j: self._weights(row, key, j), Weights.plus)
            number = jnp.asarray(1 if lattice is None else lattice.num_pieces, row.loc.dtype)
            return total._replace(log_mean=total.log_mean - jnp.log(number))

        totals = lax.map(jax.checkpoint(total), keys)
        return Estimate(totals.log_mean, totals.unsure)

    def combined_stderr(self, log_probs: Array, alone: Array) -> Array:
        return stderr_of(log_probs, alone)

    def moments(self, row: Problem, key: Array) -> Moments:
        self = self._with_proposal(row)

        def one(key: Array) -> tuple[Array, Array]:
            x, log_ratio = self._points(row, key)
            kept = probabilities(row.region, x)
            log_kept = jnp.log(jnp.where(kept == 0, 1.0, kept))  # whose slope is infinite at 0
            log_kept = jnp.where(kept == 0, -jnp.inf, log_kept)
            return log_ratio + log_kept, (x - row.loc[None]).T

        keys = jax.random.split(key, self.num_replicates)
        log_weights, deviations = parallel.each_replicate(one, keys)
        moments = pooled_moments(weighted_pieces(log_weights, deviations), row.loc)
        flat = log_weights.reshape(-1)
        squares, largest = jnp.sum(jax.nn.softmax(flat) ** 2), jnp.max(jax.nn.softmax(flat))
        number = self._num_wide * self.num_replicates
        total = Weights(log_mean_exp(flat), squares, largest, jnp.asarray(number, flat.dtype))
        return with_unseen(moments, total.unsure)

    def numbers_held(self, dimension: int) -> int:
        return 8 * self.num_points * dimension

    def effective_share(self, problem: Problem, key: Array) -> Array:
        x, log_ratio = self._with_proposal(problem)._points(problem, key)
        log_weights = log_ratio + jnp.log(probabilities(problem.region, x))
        return effective_sample_size(log_weights) / len(x)

    def account(self, problem: Problem, key: Array) -> list[str]:
        return [f"points   {float(effective_share(self, problem, key)):.0%} effective"]

    def _with_proposal(self, row: Problem) -> "ImportanceSampling":
        if self.proposal is not None:
            return self
        return with_fields(self, proposal=adapted(lax.stop_gradient(row)))

    @property
    def _num_wide(self) -> float:
        """The points from the Gaussian itself; inf where they need not find other pieces."""
        convex = self.proposal is not None and self.proposal.convex
        return math.inf if convex else self._counts[2]

    def _weights(self, row: Problem, key: Array, piece: Array) -> "Weights":
        x, log_ratio = self._points(row, key, piece)
        kept = probabilities(row.region, x)
        counted = lax.stop_gradient(jnp.where(kept > 0, log_ratio, -jnp.inf))
        top = jnp.max(counted)
        top = jnp.where(jnp.isfinite(top), top, 0.0)
        # Points outside may have any ratio under a proposal held for other parameters.
        each = jnp.exp(jnp.where(kept > 0, log_ratio - top, jnp.minimum(log_ratio - top, 0.0)))
        weights = kept * each
        if row.region.carried(x) is None:
            weights += smoothed_slope(row.region.margins(x), lax.stop_gradient(weights), each)
        total = jnp.sum(weights)
        none = total == 0
        log_mean = jnp.log(jnp.where(none, 1.0, total)) + top - math.log(len(x))
        inputs = row.loc, row.covariance.scale_tril, *jax.tree.leaves(row.region)
        unknown = sum(jnp.sum(jnp.isnan(leaf)) for leaf in inputs) > 0
        log_mean = jnp.where(unknown, jnp.nan, jnp.where(none, -jnp.inf, log_mean))
        weights, divisor = lax.stop_gradient((weights, jnp.where(none, 1.0, total)))
        shares = weights / divisor
        number = jnp.asarray(self._num_wide, shares.dtype)
        return Weights(log_mean, jnp.sum(shares**2), jnp.max(shares), number)

    def _points(self, row: Problem, key: Array, piece: Array | None = None) -> tuple[Array, Array]:
        """Points (n, d) of a piece or of all, and the logs of the Gaussian's density over q."""
        x, log_proposal = self._with_proposal(row)._draws(key, piece)
        moved, log_volume = row.region.carried(x) or (x, 0.0)
        own = log_density(moved, row.loc, row.covariance.scale_tril) + log_volume
        return x, own - log_proposal

    def _draws(self, key: Array, piece: Array | None = None) -> tuple[Array, Array]:
        """Points (n, d) of a piece or of all from the proposal, and its log density there, up to
        the constant of `log_density`."""
        proposal = lax.stop_gradient(self.proposal)
        assert proposal is not None
        gaussians = (
            (proposal.loc, proposal.scale_tril),
            (proposal.loc, 2.0 * proposal.scale_tril),
            (proposal.wide_loc, proposal.wide_scale_tril),
        )
        d, dtype, points = len(proposal.loc), proposal.loc.dtype, []
        counts = self._counts
        for k, (count, (loc, factor)) in enumerate(zip(counts, gaussians)):
            if piece is None or self.lattices is None:
                bits = lattice_points(count, d)
            else:
                bits = self.lattices[k].piece(piece, count, d)
            z = ndtri_of_bits(lattice_bits(bits, jax.random.fold_in(key, k)), dtype)
            points.append(loc[None] + z @ factor.T)
        x = jnp.concatenate(points)
        shares = np.log(np.array(counts) / sum(counts))
        logs = [log_density(x, *one) + share for one, share in zip(gaussians, shares.tolist())]
        return x, log_sum_exp(jnp.stack(logs), axis=0)


@frozen_pytree
class DrawnPoints(Batched, Method):
    """Importance sampling with the points of `ImportanceSampling`, drawn for one region and key.

    It has the value that the held method has with that key, and its derivatives by mean and
    covariance, in a fraction of the time. The region and the key of a call are not used.

    Attributes:
        x: points of R replicates, (R, n, d).
        log_weights: of the probability with which the region keeps a point over the proposal's
            density there, (R, n).
        num_wide: points from the Gaussian itself, inf for a convex region (static).
    """

    x: Float[Array, "*batch R n d"]
    log_weights: Float[Array, "*batch R n"]
    num_wide: float = static_field()

    own_units = False
    event_ranks = {"x": 3, "log_weights": 2}
    is_drawn = True

    def replicate(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, key: Array
    ) -> Estimate:
        points = lax.stop_gradient((self.x, self.log_weights))
        log_prob, log_means, squares, largest = drawn_sums(loc, covariance.scale_tril, *points)
        each = Weights(log_means, squares, largest, jnp.asarray(self.num_wide, log_means.dtype))
        return Estimate(log_prob, stderr_of(log_means, each.unsure))

    def numbers_held(self, dimension: int) -> int:
        return 8 * math.prod(self.log_weights.shape[-2:]) * dimension


def drawn_sums(loc: Array, factor: Array, x: Array, log_weights: Array) -> tuple[Array, ...]:
    """log P from drawn points, and of each replicate the log of its mean weight, the sum of the
    squared shares and the largest share; arguments as `DrawnPoints` has them.

    The derivative of log P is the mean of those of the points' log densities by weight.
    """

    drawn = loc, factor, x, log_weights
    return with_slopes(lambda *x: _drawn_sums(*x)[0], lambda _, *x: _drawn_sums(*x), *drawn)


def _drawn_sums(
    loc: Array, factor: Array, x: Array, log_weights: Array
) -> tuple[tuple[Array, ...], tuple[Array, Array]]:
    count, n, d = x.shape
    inverse = solve_triangular(factor, jnp.eye(d, dtype=factor.dtype), lower=True)
    z = product(x.reshape(-1, d) - loc[None], inverse.T)
    logs = -0.5 * jnp.sum(z**2, axis=1) - jnp.sum(jnp.log(jnp.abs(jnp.diagonal(factor))))
    logs = logs.reshape(count, n) + log_weights
    top = lax.stop_gradient(jnp.max(logs))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    weights = jnp.exp(logs - top)
    sums = jnp.sum(weights, axis=1)
    total = jnp.sum(sums)
    none = total == 0
    divisor = jnp.where(none, 1.0, total)
    log_prob = jnp.log(divisor) + top - math.log(count * n)
    shares = weights / jnp.where(sums == 0, 1.0, sums)[:, None]
    each = jnp.sum(shares**2, axis=1), jnp.max(shares, axis=1)
    results = jnp.where(none, -jnp.inf, log_prob), jnp.log(sums) + top - math.log(n), *each
    weighted = weights.reshape(-1, 1) * z
    mean, square = (part / divisor for part in (jnp.sum(weighted, axis=0), product(weighted.T, z)))
    by_loc = product(inverse.T, mean)
    size = jnp.diag(jnp.where(none, 0.0, 1.0 / jnp.diagonal(factor)))
    by_factor = jnp.tril(product(inverse.T, square)) - size
    return results, (by_loc, by_factor)


class Weights(NamedTuple):
    """Sums of importance weights for an estimate.

    Attributes:
        log_mean: the log of their mean.
        squares: the sum of their squared shares in the total.
        largest_share: the largest share in the total.
        num_wide: the points from the Gaussian itself, inf for a region that is known to be convex.
    """

    log_mean: Array
    squares: Array
    largest_share: Array
    num_wide: Array

    @property
    def unsure(self) -> Array:
        """The relative error from one point more or less, and from a piece that none may have met.

        It is inf for fewer than ten effective points, and where such a piece may be all there is.
        """
        unseen = 2.0 / self.num_wide * jnp.exp(-lax.stop_gradient(self.log_mean))
        few = ~(self.squares * MIN_EFFECTIVE_POINTS <= 1.0) | (self.squares == 0) | (unseen > 1.0)
        return jnp.where(few, jnp.inf, jnp.hypot(self.largest_share, unseen))

    def plus(self, other: "Weights") -> "Weights":
        """The weights of both, with the sum of their means in place of the mean."""
        both = jnp.stack([self.log_mean, other.log_mean])
        log_mean = log_sum_exp(both, axis=0)
        own, others = jnp.exp(both - jnp.where(log_mean == -jnp.inf, 0.0, log_mean))
        squares = own**2 * self.squares + others**2 * other.squares
        largest = jnp.maximum(own * self.largest_share, others * other.largest_share)
        return Weights(log_mean, squares, largest, self.num_wide + other.num_wide)


def stderr_of(log_probs: Array, alone: Array) -> Array:
    """The standard error of the log of the replicates' mean, given the stderr of each alone."""
    share = jnp.mean(jnp.where(jnp.isfinite(alone), alone, 0.0)) / len(log_probs)
    return jnp.hypot(spread(log_probs, alone), share)


def smoothed_slope(margins: Array, weights: Array, each: Array) -> Array:
    """0, with the derivative of weights under soft edges in the region's numbers, shape (n,).

    Args:
        margins: of all points, (n, faces).
        weights: of the points that are kept, (n,).
        each: the weights that points would have if they were kept, (n,).
    """
    inside = jnp.where((weights > 0)[:, None] & jnp.isfinite(margins), margins, 0.0)
    shares = (weights / jnp.maximum(jnp.sum(weights), jnp.finfo(weights.dtype).tiny))[:, None]
    mean = jnp.sum(shares * inside, axis=0, keepdims=True)
    width = EDGE * jnp.sqrt(jnp.sum(shares * (inside - mean) ** 2, axis=0))
    width = lax.stop_gradient(jnp.where(width > 0, width, 1.0))
    soft = jnp.exp(jnp.sum(log_ndtr(margins / width[None]), axis=1))
    return lax.stop_gradient(each) * (soft - lax.stop_gradient(soft))


def log_density(x: Array, loc: Array, factor: Array) -> Array:
    """The log density of a Gaussian at points (n, d), up to a constant, shape (n,)."""
    # Two solves for all points of many rows, at once, never end with JAX 0.10 on two cores.
    inverse = solve_triangular(factor, jnp.eye(len(loc), dtype=factor.dtype), lower=True)
    z = product(x - loc[None], inverse.T)
    return -0.5 * jnp.sum(z**2, axis=1) - jnp.sum(jnp.log(jnp.abs(jnp.diagonal(factor))))


def probabilities(region: Region, x: Array) -> Array:
    """The probability with which each point is kept, NaN where what a region gives is none."""
    kept = region.kept(x)
    return jnp.where((kept >= 0) & (kept <= 1.0 + ROUNDED), kept, jnp.nan)


def check_probabilities(region: Region, points: Array) -> None:
    """Raise ValueError if one of some points, shape (..., d), is kept with what is no probability.

    Points with NaN are left out.
    """
    x = np.asarray(points).reshape(-1, points.shape[-1])
    x = x[np.all(np.isfinite(x), axis=1)]
    kept = np.asarray(region.kept(jnp.asarray(x)))
    wrong = np.flatnonzero(~((kept >= 0) & (kept <= 1.0 + ROUNDED)))
    if len(wrong):
        first = wrong[0]
        raise ValueError(
            f"{type(region).__name__}: a point must be kept with a probability, a number between 0 "
            f"and 1; {x[first].tolist()} is kept with {kept[first]:.6g}."
        )


def adaptation_cost(problem: Problem) -> Cost:
    """The work of adapting a proposal for every row, see `compiling`; of few it takes less than
    what optimising the loop over its rounds does."""
    rows = math.prod(problem.batch_shape)
    return Cost(PILOT * problem.covariance.dimension * rows, loops=rows > FEW)


@partial(Compiled, cost=adaptation_cost)
def _proposals(problem: Problem) -> tuple[RegionProposal, Array]:
    """The proposal of every row of a problem; and a point kept with no probability, (..., d), NaN
    if none of some draws from the Gaussian is."""

    def of_row(row: Problem) -> tuple[RegionProposal, Array]:
        x = row.loc[None] + pilot(row) @ row.covariance.scale_tril.T
        unsound = jnp.isnan(probabilities(row.region, x))
        strange = jnp.where(jnp.any(unsound), x[jnp.argmax(unsound)], jnp.nan)
        return adapted(row), strange

    return over_rows(of_row, problem)


def drawing_cost(method: ImportanceSampling, region: Region, keys: Array) -> Cost:
    return Cost(math.prod(keys.shape) * method.numbers_held(region.dimension))


@partial(Compiled, cost=drawing_cost)
def _drawn(method: ImportanceSampling, region: Region, keys: Array) -> tuple[Array, Array]:
    def of_row(row: tuple[ImportanceSampling, Region, Array]) -> tuple[Array, Array]:
        method, region, key = row

        def one(key: Array) -> tuple[Array, Array]:
            x, log_proposal = method._draws(key)
            return x, jnp.log(probabilities(region, x)) - log_proposal

        return lax.map(one, jax.random.split(key, method.num_replicates))

    return lax.map(of_row, (method, region, keys))


def pilot(row: Problem) -> Array:
    """Standard normal points that adapt the proposal, (PILOT, d)."""
    return normal_points(jax.random.key(0), PILOT, len(row.loc), "lattice", row.loc.dtype)


def adapted(row: Problem) -> RegionProposal:
    """The proposal for one problem, by rounds of the cross-entropy method.

    Each round draws pilot points and moves to the weighted mean and covariance of those that the
    region keeps, or, while too few are kept, of the tenth that comes closest to it. On its way to a
    region far out it keeps its spread: the tenth in front is thin. Where no point is kept, and
    nothing is known of how close one comes, the spread doubles.
    """
    loc, factor, region = row.loc, row.covariance.scale_tril, row.region
    d = len(loc)
    points = pilot(row)

    def step(_: Array, proposal: tuple[Array, Array]) -> tuple[Array, Array]:
        mean, spread = proposal
        x = mean[None] + points @ spread.T
        log_ratio = log_density(x, loc, factor) - log_density(x, mean, spread)
        closeness = region.closeness(x)
        level = jnp.minimum(jnp.sort(closeness)[int((1 - ELITE) * PILOT)], 0.0)
        known = closeness > -jnp.inf
        closest = jnp.where((closeness >= level) & known, log_ratio, -jnp.inf)
        inside = log_ratio + jnp.log(probabilities(region, x))
        supported = effective_sample_size(inside) >= SUPPORTED * PILOT
        log_weights = jnp.where(supported, inside, closest)
        shares = jax.nn.softmax(log_weights)
        centre = shares @ x
        gaps = x - centre[None]
        trust = 1.0 / (1.0 + d / effective_sample_size(log_weights))
        matrix = (
            WIDER * trust * ((shares[:, None] * gaps).T @ gaps) + (1.0 - trust) * spread @ spread.T
        )
        moved = solve_triangular(spread, centre - mean, lower=True)
        on_its_way = ~supported & (jnp.sum(moved**2) > 1.0)
        new = jnp.where(on_its_way, spread, jnp.linalg.cholesky(matrix))
        sound = jnp.all(jnp.isfinite(new)) & jnp.all(jnp.isfinite(centre))
        wider = jnp.where(jnp.any(known), spread, 2.0 * spread)
        return jnp.where(sound, centre, mean), jnp.where(sound, new, wider)

    mean, spread = lax.fori_loop(0, ROUNDS, step, (loc, factor))
    return RegionProposal(mean, spread, loc, factor, row.region.is_convex)
