"""Separation of variables: one integral after the other, looking ahead, on randomised lattices."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from truncgauss.covariances import Covariance, LowRank, numerical_rank, rank_of_root
from truncgauss.points import lattice_uniforms
from truncgauss.probability.method import Method, check_held, spread
from truncgauss.problem import Estimate, Problem, Region, as_problem, over_rows
from truncgauss.pytrees import frozen_pytree, is_concrete, static_field
from truncgauss.quadrature import factor_integrand
from truncgauss.regions import Box, Polyhedron
from truncgauss.separation import factor_lattice
from truncgauss.separation.limits import (
    linear_of,
)
from truncgauss.separation.plan import Plan, proposal_of
from truncgauss.separation.planning import chosen_plan, solve_plan
from truncgauss.separation.weights import (
    effective_points,
    log_weights,
    summary,
    unseen_share,
)
from truncgauss.units import standardized

# Numbers in an array of one pass: more replicates than fit are made in turns.
PASS_SIZE = 2**21
# Numbers in an array that is kept for the derivative; beyond, paths are drawn a second time.
KEPT_SIZE = 2**23
LARGEST_DENSE = 4000  # dimensions; beyond, a dense matrix is not an option


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

    For a box and a `LowRank` covariance of few factors it integrates over the factors alone, about
    the mean of the integrand: dimension 100,000 at rank 5 is ordinary.

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

    def __post_init__(self) -> None:
        for name in ("num_points", "num_replicates"):
            count = getattr(self, name)
            if not isinstance(count, int) or count < 1:
                raise ValueError(f"Separation: {name} must be a positive int, got {count!r}.")

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes of a plan held for many problems."""
        return () if self.plan is None else self.plan.batch_shape

    def check(self, loc: Array, covariance: Covariance, region: Region) -> None:
        if not isinstance(region, (Box, Polyhedron)):
            raise ValueError(
                f"Separation answers for a Box or a Polyhedron, got a {type(region).__name__}. "
                "Use SoftMonteCarlo for other regions."
            )
        if self.plan is not None:
            check_plan(self.plan, Problem(loc, covariance, region))

    def hold(self, loc: Array, covariance: Covariance, region: Region) -> "Separation":
        """The method with its plan solved for this problem, or for each row of a batch."""
        problem = as_problem(loc, covariance, region)
        fresh = replace(self, plan=None)
        fresh.check(*problem)
        settled = fresh.settled(*problem)
        return settled._with(_solved(settled, problem))

    def settled(self, loc: Array, covariance: Covariance, region: Region) -> "Separation":
        """The method that knows the rank of a singular law, if the numbers can be looked at."""
        if over_factors(covariance, region) or not is_concrete((covariance, region)):
            return self
        if self.rank is not None:
            return self
        problem = Problem(loc, covariance, region)
        if not is_concrete(problem):
            problem = problem._replace(loc=jnp.zeros(problem.loc.shape[-1:], problem.loc.dtype))
        with jax.ensure_compile_time_eval():
            matrix, root = _limited(problem)
        if not is_concrete((matrix, root)):
            return self
        full = min(matrix.shape[-1], covariance.dimension)
        rank = numerical_rank(np.asarray(matrix))
        if root is not None:
            rank = rank_of_root(np.asarray(root))
        return self if rank >= full else replace(self, rank=rank)

    def scaled(self, by: Array) -> "Separation":
        """The method with its plan made to fit constraints multiplied by `by`."""
        return self if self.plan is None else self._with(_scaled(self.plan, by))

    def broadcast_to(self, batch_shape: tuple[int, ...]) -> "Separation":
        """The same plan, or plans, for every row."""
        return self._with(self.plan.broadcast_to(batch_shape))

    def _with(self, plan: Plan | factor_integrand.Plan) -> "Separation":
        return replace(self, plan=plan)

    def replicate(self, loc, covariance: Covariance, region: Region, key) -> Estimate:
        """One random shift of the lattice."""
        log_probs, alone = self.replicates(loc, covariance, region, key[None])
        # Of its error one replicate knows at most that it rests on nothing.
        return Estimate(log_probs[0], jnp.where(jnp.isinf(alone[0]), jnp.inf, jnp.nan))

    def replicates(self, loc, covariance: Covariance, region: Region, keys) -> Estimate:
        """Many random shifts, as many at a time as fit a pass."""
        if over_factors(covariance, region):
            limits = region.low, region.high
            return factor_lattice.replicates(
                loc, covariance, *limits, self.plan, keys, self.num_points
            )
        linear = linear_of(loc, covariance, region)
        plan = self.plan_of(loc, covariance, region) if self.plan is None else self.plan
        proposal = proposal_of(linear, lax.stop_gradient(plan))
        d, num_keys = len(proposal.tilt), len(keys)
        unseen = unseen_share(proposal.constraints, num_keys * self.num_points)
        unseen = jnp.hypot(unseen, plan.rounding)

        def some(keys):
            uniforms = lattice_uniforms(keys, self.num_points, d - 1, proposal.tilt.dtype)
            weights, level = log_weights(proposal, uniforms)
            return summary(weights, level, len(keys), unseen)

        at_once = max(1, min(num_keys, PASS_SIZE // (self.num_points * d)))
        if at_once == num_keys:
            return some(keys)
        while num_keys % at_once:
            at_once -= 1
        kept = num_keys * self.num_points * d <= KEPT_SIZE
        policy = jax.checkpoint_policies.save_only_these_names("path") if kept else None
        turns = keys.reshape(num_keys // at_once, at_once)
        results = lax.map(jax.checkpoint(some, policy=policy), turns)
        return jax.tree.map(lambda x: x.reshape(num_keys), results)

    def plan_of(self, loc, covariance: Covariance, region: Region) -> Plan | factor_integrand.Plan:
        """A plan for one problem, as the settings ask for it."""
        if over_factors(covariance, region):
            return factor_integrand.solve_plan(loc, covariance, region.low, region.high)
        linear = linear_of(loc, covariance, region)
        m = len(linear.low)
        rank = min(m, len(loc)) if self.rank is None else self.rank
        if self.tilted and self.twisted and rank == m and m > 1:
            return chosen_plan(linear)
        return solve_plan(linear, self.tilted, rank)

    def effective_share(self, loc, covariance: Covariance, region: Region, key) -> Array:
        """The share of a replicate's points that its weights amount to, 1 if all are equal."""
        row = standardized(loc, covariance, region)
        self, (loc, covariance, region) = self.scaled(1.0 / row.row_unit), row.problem
        plan = self.plan_of(loc, covariance, region) if self.plan is None else self.plan
        if over_factors(covariance, region):
            integrand = factor_integrand.about(
                plan.anchor, loc, covariance, region.low, region.high
            )
            uniforms = factor_lattice.lattice(key[None], self.num_points, covariance.rank, loc)
            weights, _ = factor_lattice.log_weights(integrand, plan, uniforms)
        else:
            proposal, tilt = proposal_of(linear_of(loc, covariance, region), plan), plan.tilt
            uniforms = lattice_uniforms(key[None], self.num_points, len(tilt) - 1, tilt.dtype)
            weights, _ = log_weights(proposal, uniforms)
        return effective_points(weights) / self.num_points

    def combined_stderr(self, log_probs: Array, alone: Array) -> Array:
        """The spread of the replicates, and what all of them may have missed alike."""
        return jnp.hypot(spread(log_probs, alone), jnp.where(jnp.isfinite(alone[0]), alone[0], 0.0))


# --- The plan -------------------------------------------------------------------------------------


def check_plan(plan: Plan | factor_integrand.Plan, problem: Problem) -> None:
    """Raise ValueError unless a held plan is one for such a problem, as far as shapes tell."""
    wanted = factor_integrand.Plan if over_factors(*problem[1:]) else Plan
    if not isinstance(plan, wanted):
        kinds = {Plan: "coordinates", factor_integrand.Plan: "the factors of a tg.LowRank"}
        raise ValueError(
            f"Separation: this problem is integrated over {kinds[wanted]}, and the plan that is "
            f"held over {kinds.get(type(plan), type(plan).__name__)}. Hold the method for this "
            "problem: method.hold(loc, covariance, region)."
        )
    if isinstance(plan, Plan):
        m, draws = problem.region.low.shape[-1], plan.tilt.shape[-1]
        most = min(m, problem.covariance.dimension)
        counts = {
            "constraints": (plan.order.shape[-1], m),
            "variables to draw": (draws, min(draws, most)),
        }
    else:
        counts = {"factors": (plan.anchor.shape[-1], problem.covariance.rank)}
    check_held("Separation", plan, counts, problem)


def over_factors(covariance: Covariance, region: Region) -> bool:
    """Whether to integrate over the few factors of a covariance instead of its variables.

    Below ten dimensions a factor the variables were cheaper for the same error.
    """
    if not isinstance(covariance, LowRank) or not isinstance(region, Box):
        return False
    d = covariance.dimension
    return d >= 10 * covariance.rank or d > LARGEST_DENSE


def _plans(method: Separation, problem: Problem) -> Plan | factor_integrand.Plan:
    """A plan for every row of a problem."""

    def of_row(row):
        row = standardized(*row)
        return _scaled(method.plan_of(*row.problem), row.row_unit)

    return over_rows(of_row, problem)


_traced_plans = jax.jit(_plans)
# A small plan runs once and compiles longer than it runs, for fusions that save microseconds. With
# a hundred constraints unoptimised products of matrices would cost more.
_MOST_QUICK = 32
_QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
_quick_plans = jax.jit(_plans, compiler_options=_QUICK)


def _solved(method: Separation, problem: Problem) -> Plan | factor_integrand.Plan:
    small = problem.region.low.shape[-1] <= _MOST_QUICK
    if jax.default_backend() != "cpu" or not small or not is_concrete(problem):
        return _traced_plans(method, problem)
    # Compiler options are refused inside of another compilation.
    with jax.ensure_compile_time_eval():
        return _quick_plans(method, problem)


def _scaled(plan: Plan | factor_integrand.Plan, by: Array) -> Plan | factor_integrand.Plan:
    """The plan for constraints multiplied by `by`; factors have units of their own."""
    return plan.scaled(by) if isinstance(plan, Plan) else plan


@jax.jit
def _limited(problem: Problem) -> tuple[Array, Array | None]:
    """The covariance, and its root if there is one, of what each row's region limits."""

    def of_row(row):
        linear = linear_of(*standardized(*row).problem)
        return linear.covariance, linear.root

    return over_rows(of_row, problem)
