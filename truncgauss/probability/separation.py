"""Separation of variables: one integral after the other, looking ahead, on randomised lattices."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from truncgauss.covariances import Covariance
from truncgauss.points import GrowingLattice, lattice_points, shifted_uniforms
from truncgauss.probability.factor_lattice import FactorLattice, serves
from truncgauss.probability.method import (
    Growth,
    Method,
    check_counts,
    check_held,
    check_linear,
    spread,
)
from truncgauss.problem import Estimate, Problem, as_problem
from truncgauss.pytrees import frozen_pytree, is_concrete, static_field
from truncgauss.regions import LinearRegion, Polyhedron, Region
from truncgauss.separation.draw_offsets import (
    DrawOffsets,
    draw_offsets,
    inner_point,
    intersected_draws,
)
from truncgauss.separation.kernel import paths
from truncgauss.separation.plan import Plan, Proposal, proposal_of
from truncgauss.separation.planning import plan_of
from truncgauss.separation.row_plans import full_rank, rank_of_limits, solved_plans
from truncgauss.separation.weights import (
    Sums,
    log_weights,
    summary,
    summed,
    unseen_share,
    weighed,
)
from truncgauss.special import effective_sample_size
from truncgauss.total_moments import (
    Moments,
    Pieces,
    Surprises,
    corrected,
    followed,
    merged,
    pooled_moments,
    surprises,
    weighted_pieces,
    with_unseen,
)
from truncgauss.units import standardized

# Numbers in an array of one pass: more replicates than fit are made in turns.
PASS_SIZE = 2**21
# Numbers in an array that is kept for the derivative; beyond, paths are drawn a second time.
KEPT_SIZE = 2**23


@frozen_pytree
class Separation(Method):
    """Separation of variables that looks ahead, on randomly shifted lattice points.

    With Sigma = L L^T in some order of the variables and x = loc + L z, untwisted,

        P = E prod_k mass_k(z_1, ..., z_(k-1)) exp(mu_k^2 / 2 - mu_k z_k),

    where z_k is drawn from Normal(mu_k, 1) truncated to its conditional interval, whose mass is
    mass_k, and mu is the saddle point that makes the largest weight smallest. Twisted, each
    variable is drawn from the law that the later constraints, stood for by Gaussian sites, leave to
    it (see the module `twisting`): weights are then nearly equal, and errors often smaller by a
    factor of 3 to 100. A pilot of 128 points chooses between the two. All of it is done in logs;
    probabilities of 1e-2000 are as good as others. Each replicate shifts the lattice anew.

    For a box and a `LowRank` covariance of few factors `FactorLattice` answers in its place, and
    `hold` returns that: dimension 100,000 at rank 5 is ordinary.

    Order, sites and mu are a plan, solved without being differentiated. `hold` fixes it; for one
    key the value is then one smooth function of loc, covariance and limits, and its gradient exact.

    Args:
        num_points: lattice points a replicate; a power of two is best (static).
        num_replicates: random shifts; their spread is the standard error (static). Intervals use
            Student's t with num_replicates - 1 degrees of freedom.
        tilted: whether draws are steered at all; if not, a call is cheaper, its error larger
            (static).
        twisted: whether they may be steered by the sites of expectation propagation. The minimax
            tilt remains, with a pilot of its own: where propagation does not converge, where its
            sites would leave weights without a variance, where the tilt leaves more effective
            points, and where the limited distribution is singular (static).
        rank: of the law of what is limited, where that is singular: after this many draws nothing
            is left to draw, and the other constraints limit earlier variables too. Found where the
            numbers can be looked at; else None stands for the largest that is possible (static).
        plan: a fixed plan, from `hold`.
        lattice: set by `Automatic`, which buys points without compiling for them.

    Raises:
        ValueError: for a `Ball`, or a count that is not positive.

    Reference:
        Genz (1992), Numerical computation of multivariate normal probabilities. Botev (2017), The
        normal law under linear restrictions. Guarniero, Johansen and Lee (2017), The iterated
        auxiliary particle filter.

    Example:
        >>> d = 100
        >>> covariance = 2 * jnp.eye(d) - jnp.eye(d, k=1) - jnp.eye(d, k=-1)
        >>> region = tg.Box(jnp.zeros(d), jnp.inf)
        >>> estimate = tg.log_probability(jnp.zeros(d), covariance, region, tg.Separation())
        >>> bool(abs(estimate.log_prob + 368.354496) < 0.01)  # P = 1/101!
        True
    """

    num_points: int = static_field(default=1024)
    num_replicates: int = static_field(default=16)
    tilted: bool = static_field(default=True)
    twisted: bool = static_field(default=True)
    rank: int | None = static_field(default=None)
    plan: Plan | None = None
    lattice: GrowingLattice | None = None

    growth = Growth("num_points", 1.0)

    def __post_init__(self) -> None:
        check_counts(self, "num_points", "num_replicates")

    @property
    def is_held(self) -> bool:
        return self.plan is not None

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes of a plan held for many problems."""
        return () if self.plan is None else self.plan.batch_shape

    @classmethod
    def candidate(cls, problem: Problem, num_points: int) -> "Separation | None":
        return cls(num_points=num_points) if isinstance(problem.region, LinearRegion) else None

    def reason(self, problem: Problem) -> str:
        if isinstance(problem.region, Polyhedron):
            return "a polyhedron, whatever the number of its rows"
        if problem.covariance.dimension <= 3:
            return "coordinates that determine each other"
        return "more than three dimensions and no structure that is exact"

    def check(self, loc: Array, covariance: Covariance, region: Region) -> None:
        check_linear("Separation", region)
        if self.plan is not None:
            check_plan(self.plan, Problem(loc, covariance, region))

    def serving(self, covariance: Covariance, region: Region) -> "Separation | FactorLattice":
        """`FactorLattice` for a box and few common factors, unless a plan is held."""
        if self.plan is None and serves(covariance, region):
            return FactorLattice(self.num_points, self.num_replicates)
        return self

    def hold(self, loc: Array, covariance: Covariance, region: Region) -> Method:
        """The method with its plan solved for this problem, or for each row of a batch."""
        problem = as_problem(loc, covariance, region)
        fresh = replace(self, plan=None)
        served = fresh.serving(problem.covariance, problem.region)
        if not isinstance(served, Separation):
            return served.hold(*problem)
        served.check(*problem)
        settled = served.settled(*problem)
        plan = solved_plans(problem, settled.tilted, settled.twisted, settled.rank)
        return replace(settled, plan=plan)

    def settled(self, loc: Array, covariance: Covariance, region: Region) -> "Separation":
        """The method with the rank of a singular distribution, if numbers can be looked at."""
        if self.rank is not None or not is_concrete((covariance, region)):
            return self
        problem = Problem(loc, covariance, region)
        rank = rank_of_limits(problem)
        return self if rank >= full_rank(problem) else replace(self, rank=rank)

    def scaled(self, by: Array) -> "Separation":
        """The method with its plan made to fit constraints multiplied by `by`."""
        return self if self.plan is None else replace(self, plan=self.plan.scaled(by))

    def broadcast_to(self, batch_shape: tuple[int, ...]) -> "Separation":
        """The same plan, or plans, for every row."""
        lattice = None if self.lattice is None else self.lattice.broadcast_to(batch_shape)
        return replace(self, plan=self.plan.broadcast_to(batch_shape), lattice=lattice)

    # --- Its growth

    @property
    def count(self) -> int:
        if self.lattice is None:
            return self.num_points
        return self.num_points * int(np.max(self.lattice.num_pieces, initial=1))

    def growing(self) -> "Separation":
        return self.enlarged(1) if self.lattice is not None else self._in_pieces(1)

    def enlarged(self, factor: int) -> "Separation":
        if self.lattice is None:
            return replace(self, num_points=factor * self.num_points)
        return self._in_pieces(factor * self.count // self.num_points)

    def _in_pieces(self, num_pieces: int) -> "Separation":
        # Moments draw one variable more than probabilities.
        dimension = self.plan.tilt.shape[-1]
        lattice = GrowingLattice.of(self.num_points, num_pieces, dimension, self.batch_shape)
        return replace(self, lattice=lattice)

    def grown(self) -> "Separation":
        return replace(self, num_points=self.count, lattice=None)

    def plan_of(self, problem: Problem) -> Plan:
        """The plan that is held, or one for this problem as the settings ask for it."""
        if self.plan is not None:
            return lax.stop_gradient(self.plan)
        rank = full_rank(problem) if self.rank is None else self.rank
        return lax.stop_gradient(plan_of(problem.limits, self.tilted, self.twisted, rank))

    def replicate(self, loc: Array, covariance: Covariance, region: Region, key: Array) -> Estimate:
        """One random shift of the lattice."""
        log_probs, alone = self.replicates(loc, covariance, region, key[None])
        # Of its error one replicate knows at most that too few points carry it.
        return Estimate(log_probs[0], jnp.where(jnp.isinf(alone[0]), jnp.inf, jnp.nan))

    def replicates(
        self, loc: Array, covariance: Covariance, region: Region, keys: Array
    ) -> Estimate:
        """Many random shifts, as many at a time as fit a pass."""
        problem = Problem(loc, covariance, region)
        plan = self.plan_of(problem)
        proposal = proposal_of(problem.limits, plan)
        d, num_keys = len(proposal.tilt), len(keys)
        num_points = self._num_points()
        unseen = unseen_share(proposal.constraints, num_keys * num_points)
        unseen = jnp.hypot(unseen, plan.rounding)

        def of_points(points: Array, keys: Array) -> Sums:
            uniforms = shifted_uniforms(points, keys, proposal.tilt.dtype)
            return summed(*log_weights(proposal, uniforms), len(keys))

        def some(keys: Array) -> Estimate:
            sums = self._over_pieces(lambda points: of_points(points, keys), Sums.plus, d - 1)
            return summary(sums, num_points, unseen)

        turns = self._turns(keys, d)
        if len(turns) == 1:
            return some(keys)
        kept = num_keys * self.num_points * d <= KEPT_SIZE
        policy = jax.checkpoint_policies.save_only_these_names("path") if kept else None
        results = lax.map(jax.checkpoint(some, policy=policy), turns)
        return jax.tree.map(lambda x: x.reshape(num_keys), results)

    def _turns(self, keys: Array, dimension: int) -> Array:
        """The keys in equal parts, as many at a time as fit a pass."""
        at_once = max(1, min(len(keys), PASS_SIZE // (self.num_points * dimension)))
        while len(keys) % at_once:
            at_once -= 1
        return keys.reshape(len(keys) // at_once, at_once)

    def _num_points(self) -> Array | int:
        """Points a replicate; traced if the lattice may grow."""
        if self.lattice is None:
            return self.num_points
        return (self.num_points * self.lattice.num_pieces).astype(self.plan.tilt.dtype)

    def _over_pieces(self, function: Callable, combine: Callable, dimension: int) -> Any:
        """`function` of the lattice's points, or of each piece of them, combined."""
        if self.lattice is None:
            return function(lattice_points(self.num_points, dimension))
        piece = lambda j: function(self.lattice.piece(j, self.num_points, dimension))

        def add(j: Array, so_far: Any) -> Any:
            return combine(so_far, piece(j))

        return lax.fori_loop(1, self.lattice.num_pieces.astype(int), add, piece(jnp.uint32(0)))

    def combined_stderr(self, log_probs: Array, alone: Array) -> Array:
        """The spread of the replicates, and what all of them may have missed alike."""
        return jnp.hypot(spread(log_probs, alone), jnp.where(jnp.isfinite(alone[0]), alone[0], 0.0))

    def moments(self, row: Problem, key: Array) -> Moments:
        """Mean and covariance of the paths by their importance weights, with control variates."""
        plan = self.plan_of(row)
        proposal = proposal_of(row.limits, plan)
        constraints, extra, tilt = proposal[:3]
        # With extra constraints the last variable is drawn too, for a free one behind it.
        height = len(tilt) if len(extra.low) else len(tilt) - 1
        point = inner_point(constraints, tilt)
        n, count = self.num_points, self.num_replicates

        def of_points(points: Array, keys: Array) -> PathMoments:
            uniforms = shifted_uniforms(points, keys, tilt.dtype)
            weights, level, drawn = _weighted_draws(proposal, uniforms, point)
            split = lambda x: jnp.moveaxis(x.reshape(*x.shape[:-1], len(keys), n), -2, 0)
            drawn = jax.tree.map(split, drawn)
            pieces = weighted_pieces(split(weights), drawn.deviations, drawn.variances[:, -1])
            return PathMoments(pieces, surprises(*drawn), level, jnp.ones_like(level))

        def some(keys: Array) -> PathMoments:
            return self._over_pieces(
                lambda points: of_points(points, keys), PathMoments.plus, height
            )

        turns = self._turns(jax.random.split(key, count), len(tilt))
        pieces, found, levels, _ = lax.map(jax.checkpoint(some), turns)
        pieces = pieces._replace(log_shares=pieces.log_shares + (levels - levels[0])[:, None])
        pieces, found = jax.tree.map(lambda x: x.reshape(count, *x.shape[2:]), (pieces, found))
        factors = constraints.factor, extra.factor
        regression = row.region.regression(row.loc, row.covariance, plan.order, factors, point)
        pieces = followed(corrected(pieces, found), regression)
        moments = pooled_moments(pieces, regression.origin)
        return with_unseen(moments, unseen_share(constraints, count * self._num_points()))

    def numbers_held(self, dimension: int) -> int:
        return 8 * min(self.num_points * self.num_replicates * dimension, PASS_SIZE)

    def effective_share(self, problem: Problem, key: Array) -> Array:
        """The effective sample size of one replicate over its number of points."""
        row = standardized(*problem)
        self, problem = self.scaled(1.0 / row.row_unit), row.problem
        proposal = proposal_of(problem.limits, self.plan_of(problem))
        tilt = proposal.tilt
        points = lattice_points(self.num_points, len(tilt) - 1)
        uniforms = shifted_uniforms(points, key[None], tilt.dtype)
        return effective_sample_size(log_weights(proposal, uniforms)[0]) / self.num_points

    def account(self, problem: Problem, key: Array) -> list[str]:
        """The minimax tilt's bound, what the draws know, and the effective sample size."""
        held = self if self.plan is not None else self.hold(*problem)
        tilted = Separation(twisted=False, rank=self.rank).hold(*problem).plan
        found = bool(tilted.converged)
        bound = f"{float(tilted.bound):.10g} bounds log P from above" if found else "none found"
        plan = held.plan
        sites = plan.twist is not None and bool(jnp.any(plan.twist.precision > 0))
        steered = "none, the tilt does better" if bool(jnp.any(plan.tilt != 0)) else "none"
        ahead = "expectation propagation" if sites else steered
        share = f"{float(held.effective_share(problem, key)):.0%} effective"
        return [f"tilt     {bound}", f"sites    {ahead}", f"points   {share}"]


class PathMoments(NamedTuple):
    """What one set of points says of the moments, and how many such sets it stands for."""

    pieces: Pieces
    surprises: Surprises
    level: Array
    count: Array

    def plus(self, other: "PathMoments") -> "PathMoments":
        """The points of both together."""
        log_shares = other.pieces.log_shares + (other.level - self.level)
        pieces = merged(self.pieces, other.pieces._replace(log_shares=log_shares))
        count = self.count + other.count
        mean = lambda x, y: (self.count * x + other.count * y) / count
        return PathMoments(
            pieces, jax.tree.map(mean, self.surprises, other.surprises), self.level, count
        )


def check_plan(plan: Plan, problem: Problem) -> None:
    """Raise ValueError unless a held plan is one for such a problem, as far as shapes tell."""
    if not isinstance(plan, Plan):
        raise ValueError(
            "Separation: this problem is integrated over coordinates, and the plan that is held "
            f"over {getattr(plan, 'integrates_over', type(plan).__name__)}. Hold the method for "
            "this problem: method.hold(loc, covariance, region)."
        )
    m, draws = problem.region.num_constraints, plan.tilt.shape[-1]
    counts = {
        "constraints": (plan.order.shape[-1], m),
        "variables to draw": (draws, min(draws, m, problem.covariance.dimension)),
    }
    check_held("Separation", plan, counts, problem)


def _weighted_draws(
    proposal: Proposal, uniforms: Array, point: Array
) -> tuple[Array, Array, DrawOffsets]:
    """Log weights of paths less their common level, that level, and what the paths drew."""
    constraints, extra, tilt = proposal[:3]
    if len(extra.low):
        draws, log_mass = intersected_draws(constraints, extra, tilt, uniforms)
        deviations = (constraints.loc - point)[:, None] + constraints.factor @ draws
        # Of an interval that several constraints cut, no more is known than the draw.
        drawn = DrawOffsets(deviations, deviations, jnp.zeros_like(deviations))
        return *weighed(proposal, draws, None, log_mass), drawn
    path = paths(constraints, tilt, uniforms)
    drawn = draw_offsets(constraints, tilt, uniforms, path.means, point)
    return *weighed(proposal, *path), drawn
