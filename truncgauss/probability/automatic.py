"""The method that chooses a method, and the entry functions whose default it is."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.probability.differentiation import Answer, combined, differentiable
from truncgauss.probability.exact import Exact
from truncgauss.probability.held_parts import HeldParts
from truncgauss.probability.method import Method, estimate, prepared
from truncgauss.probability.refinement import FAILURE, Found, Goal, Search, errors
from truncgauss.probability.separation import Separation
from truncgauss.probability.sequential import SequentialMonteCarlo
from truncgauss.probability.soft import SoftMonteCarlo
from truncgauss.probability.structure import Part, independent_parts, is_recognised
from truncgauss.probability.turns import in_turns
from truncgauss.problem import Estimate, Problem, Region, as_key, as_problem
from truncgauss.pytrees import frozen_pytree, is_concrete, static_field, values_of

# In this order. Exact answers need no other; of those that draw, the second is tried on rows where
# the first fails.
CANDIDATES: tuple[type[Method], ...] = (Exact, Separation, SequentialMonteCarlo, SoftMonteCarlo)
MOST_POINTS, LEAST_POINTS = 1024, 32  # of a lattice to begin with
LEAST_OF_MANY = 128  # where it is many rows, not dimensions, that ask for fewer


@frozen_pytree
class Automatic(Method):
    """The method that fits the problem: `Exact` where it applies, else `Separation`.

    Outside of a trace it looks at the numbers. It leaves out coordinates without limits, splits
    independent blocks, and recognises a chain or a common factor in a covariance matrix: these are
    exact in any dimension. Elsewhere it begins with 16 replicates of 1,024 points. Rows whose
    stderr is above 0.05 are tried by `SequentialMonteCarlo` too, as long and weakly truncated
    chains want it; what has the smaller error is kept. Then the rows whose stderr is above rtol get
    more points, until it is not, until their error falls more slowly than n^(-1/4), or until
    max_draws are spent. stderr says what was reached.

    Under a trace it sees shapes alone: its choice, and those 16 replicates of 1,024 points, are
    fixed by them. A `Ball` is left to `SoftMonteCarlo`.

    Args:
        rtol: relative error of the probability to aim at (static).
        max_draws: what one call may spend, in points x replicates x dimensions x rows; the draws of
            sequential Monte Carlo count four times (static). The default takes about three seconds
            of one core in float64. Each method that is tried may begin, whatever is left: with
            fewer points if they would cost more than this, but with 128 a row and replicate (32 in
            tens of thousands of dimensions).

    Raises:
        ValueError: if rtol is not positive, or max_draws no positive int.

    Example:
        >>> region = tg.Box([0.0, 0.0], [jnp.inf, 1000.0])
        >>> tg.fraction_not_truncated([0.0, 0.0], jnp.eye(2), region)
        Array(0.25, dtype=float64)
    """

    rtol: float = static_field(default=1e-4)
    max_draws: int = static_field(default=2**26)

    def __post_init__(self) -> None:
        if not self.rtol > 0:
            raise ValueError(f"Automatic: rtol must be positive, got {self.rtol!r}.")
        if not isinstance(self.max_draws, int) or self.max_draws < 1:
            raise ValueError(
                f"Automatic: max_draws must be a positive int, got {self.max_draws!r}."
            )

    def candidates(self, problem: Problem, num_rows: int = 1) -> Iterator[Method]:
        """The methods that apply to a problem, as far as it can be seen; the best one first."""
        num_points = self.affordable(problem.covariance.dimension, num_rows)
        for kind in CANDIDATES:
            method = kind.candidate(problem, num_points)
            if method is not None:
                yield method.serving(problem.covariance, problem.region)

    def choice(self, problem: Problem) -> Method:
        """The method for a problem, as far as the problem can be seen."""
        return next(self.candidates(problem))

    def affordable(self, dimension: int, num_rows: int = 1) -> int:
        """Points of a lattice to begin with."""
        most = max(1, self.max_draws // (16 * dimension))
        alone = min(MOST_POINTS, max(LEAST_POINTS, 2 ** int(math.log2(most))))
        of_many = 2 ** int(math.log2(max(1, most // num_rows)))
        return min(alone, max(LEAST_OF_MANY, of_many))

    def hold(self, loc: Any, covariance: Any, region: Region) -> Method:
        """The chosen method with its plan fixed, or `HeldParts` where there is structure to see."""
        problem = as_problem(loc, covariance, region)
        parts = independent_parts(problem)
        if not any(part.places is not None or is_recognised(part, problem) for part in parts):
            return self.choice(problem).hold(*problem)
        inner = [part.problem for part in parts]
        return HeldParts(
            tuple(self.of_part(part, problem).choice(part).hold(*part) for part in inner),
            tuple(part.covariance for part in inner),
            problem.covariance.covariance_matrix,
            tuple(None if part.places is None else tuple(part.places.tolist()) for part in parts),
        )

    def estimate(self, problem: Problem, key: jax.Array) -> Estimate:
        """The sum over independent parts of the problem."""
        # Where a derivative is taken at numbers that are there, these decide as in the plain call.
        values = values_of(problem)
        known = problem if values is None or not is_concrete(key) else values
        answers = [
            Answer(part, method.answer(part.problem, own, PROBABILITY), own)
            for method, part, own in self.parts(known, key)
        ]
        if known is not problem and not is_concrete(problem):
            return differentiable(problem, values, answers)
        return combined([answer.found.result for answer in answers])

    def parts(self, problem: Problem, key: jax.Array) -> list[tuple["Automatic", Part, jax.Array]]:
        """Independent problems that make up this one, as far as it can be seen.

        Each comes with a key, and with this method and the share of max_draws that it may spend.
        """
        parts = independent_parts(problem)
        if len(parts) == 1:
            return [(self, parts[0], key)]
        # With one key for all, equal parts would err alike, and their errors not add as squares.
        keys = jax.random.split(key, len(parts))
        return [(self.of_part(part.problem, problem), part, own) for part, own in zip(parts, keys)]

    def of_part(self, part: Problem, whole: Problem) -> "Automatic":
        """The method with the share of max_draws that a part's dimension is of the whole's."""
        share = part.covariance.dimension / whole.covariance.dimension
        return dataclasses.replace(self, max_draws=max(1, int(share * self.max_draws)))

    def answer(self, problem: Problem, key: jax.Array, goal: Goal) -> Found:
        """What the goal asks of one part, by which method, and what was tried."""
        chosen = self.choice(problem)
        if not is_concrete((problem, key)) or 0 in problem.batch_shape:
            chosen = prepared(chosen, problem)
            return Found(chosen, goal.evaluate(chosen, problem, key))
        if chosen.growth is not None:
            return self.sampled(problem, key, goal)
        result = in_turns(goal.evaluate, chosen, problem, key)
        if problem.covariance.dimension <= 3:
            return Found(chosen, result, recipe=((chosen, None),))
        first = jax.tree.leaves(result)[0]
        axes = tuple(range(len(problem.batch_shape), first.ndim))
        unknown = np.any(np.isnan(first), axis=axes) & ~np.any(np.isnan(problem.loc), axis=-1)
        error = np.where(unknown, math.inf, goal.error(result))
        if np.all(error <= self.rtol):
            return Found(chosen, result, recipe=((chosen, None),))
        # A chain too fine for its grid, or factors with next to no noise.
        search = Search(problem, key, goal, self.rtol, self.max_draws)
        search.begin(chosen, result, error)
        return self._searched(search, above=self.rtol)

    def sampled(self, problem: Problem, key: jax.Array, goal: Goal) -> Found:
        """The best that methods with a count that buys accuracy can do."""
        return self._searched(Search(problem, key, goal, self.rtol, self.max_draws), above=-1.0)

    def _searched(self, search: Search, above: float) -> Found:
        """Try one method after the other on rows that fail, then buy points where they help."""
        for method in self.candidates(search.problem, len(search.error)):
            if method.growth is not None:
                search.attempt(method, above)
                above = max(above, FAILURE)
        search.refine()
        return search.found()


PROBABILITY = Goal(lambda method, *inputs: estimate(method, *inputs), errors)


def log_probability(
    loc: Any,
    covariance: Any,
    region: Region,
    method: Method = Automatic(),
    key: jax.Array | None = None,
) -> Estimate:
    """log P(X in region) for X ~ Normal(loc, covariance), with its standard error.

    Args:
        loc: mean, shape (..., d).
        covariance: covariance matrix, shape (..., d, d), or a `ScaleTril`.
        region: `Box`, `Polyhedron` or `Ball`, of batch shape (...). Leading axes broadcast.
        method: how to compute it; `Automatic` by default.
        key: JAX random key of a sampling method. None stands for jax.random.key(0): the same call
            gives the same number, though under `jit` or `grad`, where `Automatic` sees shapes
            alone, another one within the errors. All rows of a batch share it.

    Returns:
        Estimate(log_prob, stderr), each of the broadcast leading shape. stderr is the standard
        error of log_prob: 0 exact to rounding, nan unknown, inf that the estimate rests on nothing.
        A `Ball` is answered with a soft edge: its probability is the smoothed one, and stderr does
        not speak of that difference, which reached 3e-3 of the log for balls of radius 0.3 to 1.

    Raises:
        ValueError: for disagreeing shapes, a covariance that is none, or a method that cannot
            answer; the message says what to use instead.

    Example:
        >>> region = tg.Box([1.0], [jnp.inf])
        >>> gradient = jax.grad(lambda loc: tg.log_probability(loc, [[1.0]], region).log_prob)
        >>> gradient(jnp.zeros(1))
        Array([1.52513528], dtype=float64)
    """
    if not isinstance(method, Method):
        raise TypeError(f"method must be one of tg's, such as tg.Exact(), got {method!r}.")
    problem = as_problem(loc, covariance, region)
    key = as_key(key)
    if isinstance(method, Automatic):
        return method.estimate(problem, key)
    return in_turns(estimate, prepared(method, problem), problem, key)


def fraction_not_truncated(
    loc: Any,
    covariance: Any,
    region: Region,
    method: Method = Automatic(),
    key: jax.Array | None = None,
) -> jax.Array:
    """P(X in region): the fraction of a Gaussian that a truncation leaves; arguments as in
    `log_probability`, of which it is the exponential.

    Returns:
        The probability, shape of the broadcast leading axes.

    Raises:
        ValueError: as `log_probability`.

    Example:
        >>> shifts = jnp.array([[-1.0], [0.0], [1.0]])
        >>> tg.fraction_not_truncated(shifts, [[1.0]], tg.Box([0.0], [1000.0]))
        Array([0.15865525, 0.5       , 0.84134475], dtype=float64)
    """
    return jnp.exp(log_probability(loc, covariance, region, method, key).log_prob)
