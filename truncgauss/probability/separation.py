"""Separation of variables with twisted or tilted proposals, on randomised lattices."""

import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from truncgauss.arrays import parallel
from truncgauss.arrays.linalg import product
from truncgauss.arrays.pytrees import frozen_pytree, is_concrete, static_field, values_of
from truncgauss.gaussian.covariances import Covariance
from truncgauss.gaussian.problem import Estimate, Moments, Problem, standardized
from truncgauss.gaussian.regions.region import Region, as_linear
from truncgauss.gaussian.total_moments import (
    Pieces,
    Surprises,
    corrected,
    followed,
    pooled_moments,
    surprises,
    weighted_pieces,
    with_unseen,
)
from truncgauss.probability.method import (
    NUM_REPLICATES,
    Growth,
    Method,
    check_counts,
    check_held,
    check_linear,
    effective_share,
    with_derivative,
)
from truncgauss.separation.lattice import (
    GrowingLattice,
    lattice_points,
    over_pieces,
    shifted_uniforms,
)
from truncgauss.separation.plan import Plan, arranged, proposal_of
from truncgauss.separation.planning import (
    full_rank,
    known_rank,
    largest_ranks,
    plan_of,
    solved_plans,
)
from truncgauss.separation.weights import (
    PathMoments,
    Sums,
    inner_point,
    log_density,
    log_weights,
    summary,
    summed,
    sums_over,
    unseen_share,
    weighted_draws,
    weighted_paths,
    whole_draws,
)
from truncgauss.special.intervals import differentiable_once
from truncgauss.special.logspace import effective_sample_size, log_mean_exp
from truncgauss.words.arguments import explained_class
from truncgauss.words.earlier import warn

# Numbers in an array of one pass: replicates that do not fit go into further passes.
PASS_SIZE = 2**21
# Points of a growing lattice at a time on a CPU, where more need more than its cache, and XLA
# divides longer loops among threads, which costs more than it brings. A loop over passes has no
# Hessian in mixed mode, see `nan_slope` of `special.intervals`: other lattices, through which JAX
# takes derivatives, have as few passes as possible.
CPU_POINTS = 256
# Numbers in an array of all rows that are computed at a time under `jax.vmap`, on a CPU.
TURN_SIZE = 2**17
# Numbers in an array stored for the derivative; larger ones are computed a second time.
KEPT_SIZE = 2**23
LARGEST_DENSE = 4000  # dimensions; in more a matrix made of factors is too large
LARGE_DIMENSION = 3000
LARGE = (
    "a covariance matrix of 3,000 or more dimensions: Separation solves for its plan in several "
    "times d^3 operations and holds some twenty such matrices. Use tg.LowRank or tg.Markov if the "
    "covariance has their structure; otherwise the method DenseBlocks, which takes a small part of "
    "that: truncgauss.experiments.large_dense.dense_blocks, a file that may be copied."
)


@explained_class
@frozen_pytree
class Separation(Method):
    """Importance sampling by separation of variables, on randomly shifted lattice points.

    With Sigma = L L^T in some order of the variables and x = loc + L z, the tilted estimate is

        P = E prod_k mass_k(z_1, ..., z_(k-1)) exp(mu_k^2 / 2 - mu_k z_k),

    where z_k is drawn from Normal(mu_k, 1) truncated to its conditional interval, mass_k is the
    mass of that interval, for any tilt mu. In the twisted estimate each variable is drawn given
    Gaussian approximations of the later constraints, their sites (see the module `twisting`): the
    weights are then nearly equal, and standard errors often smaller by a factor of 3 to 100. The
    sites come from expectation propagation, and the variables in the order of their precisions.
    Where sites may not be trusted, mu has the same forces on the later constraints as they. All
    computations are in logs: probabilities of 1e-2000 are no less accurate. Each replicate has its
    own random shift of the lattice.

    For a box and a `LowRank` covariance of few factors it is replaced by `FactorLattice`, which
    `hold` then returns: dimension 100,000 at rank 5 is feasible. For a box and a covariance matrix
    of 3,000 dimensions or more it warns that a method by blocks takes a fraction of its time.

    Order, sites and mu are a plan, which is solved for without derivatives. `hold` fixes it: for
    one key the value is then one smooth function of loc, covariance and limits, with its exact
    gradient.

    Args:
        num_points: lattice points per replicate; a power of two is best (static).
        num_replicates: random shifts, whose variance gives the standard error (static). Intervals
            use Student's t with num_replicates - 1 degrees of freedom.
        tilted: whether to use a tilt or sites; without them a call is cheaper and its error larger
            (static).
        twisted: whether to use expectation propagation: its sites, or a tilt by their forces where
            it does not converge or where their weights would have no finite variance. Otherwise,
            and where the values of the constraints have a singular covariance, the tilt is the
            minimax one, which makes the largest weight smallest (static).
        rank: of the covariance of the constraints' values, if it is singular: only so many
            variables are drawn, and the other constraints limit earlier variables too. Found
            outside of a trace; None in a trace stands for the largest possible rank (static).
        plan: a fixed plan, from `hold`.
        lattice: set by `Automatic`, which adds points without compiling again.

    Raises:
        ValueError: for a `Ball` or `Ellipsoid`, or a count that is not positive.

    Reference:
        Geweke (1989), Efficient simulation from the multivariate normal distribution subject to
        linear inequality constraints and the evaluation of constraint probabilities. Genz (1992),
        Numerical computation of multivariate normal probabilities. Hajivassiliou and McFadden
        (1998), The method of simulated scores for the estimation of LDV models. Botev (2017), The
        normal law under linear restrictions: simulation and estimation via minimax tilting.
        Guarniero, Johansen and Lee (2017), The iterated auxiliary particle filter. Minka (2001),
        Expectation Propagation for Approximate Bayesian Inference, for the sites.

    Example:
        >>> d = 100
        >>> covariance = 2 * jnp.eye(d) - jnp.eye(d, k=1) - jnp.eye(d, k=-1)
        >>> region = tg.Box(jnp.zeros(d), jnp.inf)
        >>> estimate = tg.log_probability(jnp.zeros(d), covariance, region, tg.Separation())
        >>> bool(abs(estimate.log_prob + 368.354496) < 0.01)  # P = 1/101!
        True
    """

    num_points: int = static_field(default=1024)
    num_replicates: int = static_field(default=NUM_REPLICATES)
    tilted: bool = static_field(default=True)
    twisted: bool = static_field(default=True)
    rank: int | None = static_field(default=None)
    plan: Plan | None = None
    lattice: GrowingLattice | None = None

    growth = Growth("num_points", 1.0)
    grows_by_pieces = True
    held_fields = ("plan", "lattice")
    common_error = True  # from mass that no point may have sampled

    def __post_init__(self) -> None:
        check_counts(self, "num_points", "num_replicates", *["rank"][: bool(self.rank)])

    @classmethod
    def candidate(cls, problem: Problem, num_points: int) -> "Separation | None":
        return cls(num_points=num_points) if problem.region.is_linear else None

    def reason(self, problem: Problem) -> str:
        if not problem.region.is_box:
            return "a polyhedron with any number of rows"
        if problem.covariance.dimension <= 3:
            return "a singular covariance"
        return "more than three dimensions, without a structure for an exact method"

    def for_problem(self, problem: Problem) -> "Method":
        """The method for few factors, or for a singular covariance.

        The rank of one is found where no plan can be solved for outside of a trace.
        """
        _, covariance, region = problem
        check_linear("Separation", region)
        if self.plan is not None:
            check_plan(self.plan, problem)
            return self
        d, factors = covariance.dimension, covariance.num_factors
        if factors and region.is_box:
            # With fewer dimensions for each factor the coordinates were cheaper for the same error.
            if d >= 10 * factors or d > LARGEST_DENSE:
                from truncgauss.probability.factor_lattice import FactorLattice

                return FactorLattice(self.num_points, self.num_replicates)
        if is_large(problem):
            warn(LARGE)
        if self.rank is not None or values_of(problem) is not None:
            return self
        return replace(self, rank=known_rank(problem))

    def planned(self, problem: Problem) -> "Separation":
        return self._planned(problem)[0]

    def _planned(self, problem: Problem) -> tuple["Separation", Plan]:
        """The method with a plan for every row of the problem, and the plan."""
        rank = self.rank
        if rank is None and is_concrete((problem.covariance, problem.region)):
            found, nearly = largest_ranks(problem)
            if nearly < found:
                plan = solved_plans(problem, self.tilted, self.twisted, nearly)
                most = float(jnp.finfo(plan.rounding.dtype).eps) ** 0.4
                if is_concrete(plan) and bool(np.all(plan.rounding <= most)):
                    return replace(self, rank=nearly, plan=plan), plan
            rank = found if found < full_rank(problem) else None
        plan = solved_plans(problem, self.tilted, self.twisted, rank)
        return replace(self, rank=rank, plan=plan), plan

    def scaled(self, by: Array) -> "Separation":
        return self if self.plan is None else replace(self, plan=self.plan.scaled(by))

    def in_pieces(self, factor: int) -> "Separation":
        assert self.plan is not None
        # Moments draw one variable more than probabilities.
        dimension, num_points = self.plan.tilt.shape[-1], self.num_points
        if jax.default_backend() == "cpu":
            # With a piece come sums over derivatives in a matrix: not fewer points than variables.
            num_points = min(num_points, max(CPU_POINTS, 2 ** (dimension - 1).bit_length()))
        num_pieces = factor * self.num_points // num_points
        lattice = GrowingLattice.of(num_points, num_pieces, dimension, self.batch_shape)
        return replace(self, num_points=num_points, lattice=lattice)

    def plan_of(self, problem: Problem) -> Plan:
        """The plan that is held, or else the one for this problem by the settings."""
        if self.plan is not None:
            return lax.stop_gradient(self.plan)
        rank = full_rank(problem) if self.rank is None else self.rank
        return lax.stop_gradient(plan_of(problem.limits, self.tilted, self.twisted, rank))

    def averaged(self, row: Problem, key: Array) -> Estimate:
        plan = self.plan_of(row)
        held, crossing = replace(self, plan=plan), len(plan.order) > len(plan.tilt)
        if self.lattice is not None or not (crossing or self._takes_passes(len(plan.tilt))):
            return super(Separation, held).averaged(row, key)
        width = self.rows_in_turn(row.covariance.dimension) or sys.maxsize
        return with_derivative(Method.averaged, width, held, row, key, smooth=by_density)

    def replicates(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, keys: Array
    ) -> Estimate:
        problem = Problem(loc, covariance, region)
        plan = self.plan_of(problem)
        proposal = proposal_of(problem.limits, plan)
        d, num_keys = len(proposal.tilt), len(keys)
        num_points = self._num_points()

        def some(keys: Array) -> Sums:
            if self.lattice is not None:
                return sums_over(proposal, self.lattice, keys, self.num_points)
            points = lattice_points(self.num_points, d - 1)
            uniforms = shifted_uniforms(points, keys, proposal.tilt.dtype)
            return summed(*weighted_paths(proposal, uniforms), len(keys))

        def whole(sums: Sums) -> Estimate:
            # The share of the mass that points may have missed, or that rounding may have moved.
            number = self.num_replicates * num_points
            unseen = unseen_share(sums, number, len(sums.log_total) / self.num_replicates)
            if plan.rare is not None:
                unseen = jnp.hypot(unseen, jnp.minimum(plan.rare, 1.0) * 2.0 / number)
            return summary(sums, num_points, jnp.hypot(unseen, plan.rounding))

        passes = self._passes(keys, d)
        if len(passes) == 1:
            return whole(some(keys))
        if self.lattice is None:  # the slopes of a loop over pieces are computed with its sums
            kept = num_keys * self.num_points * d <= KEPT_SIZE
            policy = jax.checkpoint_policies.save_only_these_names("path") if kept else None
            some = jax.checkpoint(some, policy=policy)
        results = lax.map(some, passes)
        return whole(jax.tree.map(lambda x: x.reshape(num_keys, *x.shape[2:]), results))

    def _passes(self, keys: Array, dimension: int) -> Array:
        """The keys in equal parts, each as large as fits a pass."""
        alone = self.lattice is not None and jax.default_backend() == "cpu"
        most = 1 if alone else PASS_SIZE // (self.num_points * dimension)
        at_once = max(1, min(len(keys), most))
        while len(keys) % at_once:
            at_once -= 1
        return keys.reshape(len(keys) // at_once, at_once)

    def _takes_passes(self, dimension: int) -> bool:
        return len(self._passes(jnp.arange(self.num_replicates), dimension)) > 1

    def _num_points(self) -> Array | int:
        """The number of points per replicate; traced if the lattice may grow."""
        if self.lattice is None or self.plan is None:
            return self.num_points
        pieces = jnp.asarray(self.lattice.num_pieces)
        return (self.num_points * pieces).astype(self.plan.tilt.dtype)

    def moments(self, row: Problem, key: Array) -> Moments:
        """Mean and covariance of the paths by their importance weights, with control variates."""
        plan = self.plan_of(row)
        proposal = proposal_of(row.limits, plan)
        constraints, extra, tilt = proposal.path_inputs
        # With extra constraints the last variable is drawn too, and a free one follows it.
        height = len(tilt) if len(extra.low) else len(tilt) - 1
        point = inner_point(constraints, tilt)
        n, count = self.num_points, self.num_replicates

        def of_piece(j: Array, keys: Array) -> PathMoments:
            if self.lattice is None:
                points = lattice_points(n, height)
            else:
                points = self.lattice.piece(j, n, height)
            uniforms = shifted_uniforms(points, keys, tilt.dtype)
            drawn, weighted = weighted_draws(proposal, uniforms, point)
            sums = summed(*weighted, len(keys))

            def split(x: Array) -> Array:
                return jnp.moveaxis(x.reshape(*x.shape[:-1], len(keys), n), -2, 0)

            drawn = jax.tree.map(split, drawn)
            weights = split(weighted[0])
            pieces = weighted_pieces(weights, drawn.deviations, drawn.variances[:, -1])
            return PathMoments(pieces, surprises(*drawn), sums, jnp.ones_like(weighted[1]))

        def some(keys: Array) -> PathMoments:
            return over_pieces(self.lattice, lambda j: of_piece(j, keys), PathMoments.plus)

        def of_keys(keys: Array) -> tuple[Pieces, Surprises, Sums]:
            passes = self._passes(keys, len(tilt))
            results = lax.map(jax.checkpoint(some), passes)
            return jax.tree.map(lambda x: x.reshape(len(keys), *x.shape[2:]), results[:3])

        pieces, found, sums = parallel.over_replicates(of_keys, jax.random.split(key, count))
        levels = sums.level - sums.level[0]
        pieces = pieces._replace(log_shares=pieces.log_shares + levels)
        factors = constraints.factor, extra.factor
        regression = as_linear(row.region).regression(
            row.loc, row.covariance, plan.order, factors, point
        )
        pieces = followed(corrected(pieces, found), regression)
        moments = pooled_moments(pieces, regression.origin)
        return with_unseen(moments, unseen_share(sums, count * self._num_points(), 1.0))

    def numbers_held(self, dimension: int) -> int:
        return 8 * min(self.num_points * self.num_replicates * dimension, PASS_SIZE)

    def rows_in_turn(self, dimension: int) -> int | None:
        # Arrays of all points of all rows at once would not fit a processor's cache.
        spread = parallel.plan().replicates is not None
        if self.lattice is not None or spread or jax.default_backend() != "cpu":
            return None
        return max(1, TURN_SIZE // (self.num_points * self.num_replicates * dimension))

    def effective_share(self, problem: Problem, key: Array) -> Array:
        row = standardized(*problem)
        self, problem = self.scaled(1.0 / row.row_unit), row.problem
        proposal = proposal_of(problem.limits, self.plan_of(problem))
        tilt = proposal.tilt
        points = lattice_points(self.num_points, len(tilt) - 1)
        uniforms = shifted_uniforms(points, key[None], tilt.dtype)
        return effective_sample_size(log_weights(proposal, uniforms)[0]) / self.num_points

    def account(self, problem: Problem, key: Array) -> list[str]:
        held, plan = self._planned(problem) if self.plan is None else (self, self.plan)
        _, tilted = Separation(twisted=False, rank=self.rank)._planned(problem)
        found = bool(tilted.converged)
        bound = f"{float(tilted.bound):.10g} bounds log P from above" if found else "none found"
        sites = plan.twist is not None and np.any(np.asarray(plan.twist.precision) > 0)
        steered = "none, but a tilt" if np.any(np.asarray(plan.tilt)) else "none"
        ahead = "expectation propagation" if sites else steered
        share = f"{float(effective_share(held, problem, key)):.0%} effective"
        lines = [f"tilt     {bound}", f"sites    {ahead}", f"points   {share}"]
        return lines + [f"large    {LARGE}"] * is_large(problem)


def by_density(method: Separation, row: Problem, key: Array) -> Array:
    r"""log P by a held plan, for derivatives of second and higher order.

    A variable that several constraints limit is drawn between the highest of the low and the lowest
    of the high limits, which have a kink where two limits cross. P is the mean of continuous
    functions, and its first derivatives are the means of theirs; second derivatives are not, they
    miss by how much slopes change at a kink. Nor does JAX know them where points are drawn in a
    loop over passes. Here draws y and weights w do not move with mean and covariance, only the
    density of the first variables, which determine the others:

    .. math:: \log P = \log \frac1n \sum_i w_i
        \frac{\phi(y_i; \mu, \Sigma)}{\phi(y_i; \mu_0, \Sigma_0)}

    at mu = mu_0 and Sigma = Sigma_0, so that derivatives of all orders are means of those of the
    density. With the numbers of the region draws and weights move as they do in the value: mixed
    derivatives in these and in mean or covariance are right, second ones in these are NaN. So are
    all where constraints determine others by a singular covariance, and not by the region alone.
    """
    plan = method.plan_of(row)
    rank = len(plan.tilt)
    region = jax.tree.map(differentiable_once, row.region)
    fixed = lax.stop_gradient(row)._replace(region=region).limits
    proposal = proposal_of(fixed, plan)
    before, extra = arranged(fixed, plan.order, rank)
    matrix = as_linear(row.region).rows(jnp.eye(row.covariance.dimension, dtype=row.loc.dtype))
    first, others = jnp.split(matrix[plan.order], [rank])
    shares = solve_triangular(before.factor, extra.factor.T, lower=True, trans=1).T
    off = lax.stop_gradient(jnp.abs(others - product(shares, first)))
    by_region = jnp.all(off <= float(jnp.finfo(off.dtype).eps) ** 0.5 * jnp.max(jnp.abs(matrix)))
    known = jnp.where(lax.stop_gradient(by_region), 1.0, jnp.nan)
    gaussian = row.loc, row.covariance
    loc, covariance = jax.tree.map(lambda x: x * known.astype(x.dtype), gaussian)
    moving = Problem(loc, covariance, lax.stop_gradient(row.region)).limits
    after, _ = arranged(moving, plan.order, rank)

    def of_key(key: Array) -> Array:
        points = lattice_points(method.num_points, rank)
        uniforms = shifted_uniforms(points, key[None], plan.tilt.dtype)
        draws, (log_weights, level, _, _) = whole_draws(proposal, uniforms)
        # This is 1, and stays so where draws move with the region.
        ratio = log_density(after, proposal, draws) - log_density(before, proposal, draws)
        return log_mean_exp(log_weights + ratio) + level

    keys = jax.random.split(key, method.num_replicates)
    if method._takes_passes(rank):
        return log_mean_exp(lax.map(jax.checkpoint(of_key), keys))
    return log_mean_exp(jax.vmap(of_key)(keys))


def is_large(problem: Problem) -> bool:
    """Whether a problem is one of a box and of a covariance matrix of thousands of dimensions."""
    dense = problem.covariance.is_matrix and problem.region.is_box
    return dense and problem.covariance.dimension >= LARGE_DIMENSION


def check_plan(plan: Plan, problem: Problem) -> None:
    if not isinstance(plan, Plan):
        raise ValueError(
            "Separation: this problem is integrated over coordinates, and the plan that is held "
            f"over {getattr(plan, 'integrates_over', type(plan).__name__)}. Hold the method for "
            "this problem: method.hold(loc, covariance, region)."
        )
    m, draws = as_linear(problem.region).num_constraints, plan.tilt.shape[-1]
    counts = {
        "constraints": (plan.order.shape[-1], m),
        "variables to draw": (draws, min(draws, m, problem.covariance.dimension)),
    }
    check_held("Separation", plan, counts, problem)
