"""The method that chooses a method, and the entry functions whose default it is."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.probability import base, exact
from truncgauss.probability.base import Estimate, Method, Problem, Region
from truncgauss.probability.separation import Separation
from truncgauss.probability.sequential import SequentialMonteCarlo
from truncgauss.probability.soft import SoftMonteCarlo
from truncgauss.probability.structure import independent_parts
from truncgauss.pytrees import frozen_pytree, is_concrete, static_field
from truncgauss.regions import Ball

MAX_STEPS = 2**25  # points times dimensions that one estimate may spend
FAILURE = 0.05  # a stderr above this calls for another method
MARGIN = 2.0  # points are bought for an error this many times smaller than wanted


@frozen_pytree
class Automatic(Method):
    """The method that fits the problem: `Exact` where it applies, else `Separation`.

    Outside of a trace it looks at the numbers. It leaves out coordinates without limits, splits
    independent blocks, and recognises a chain or a common factor in a covariance matrix: these are
    exact in any dimension. Elsewhere it spends more points until stderr <= rtol, or until 2^25
    coordinates have been drawn; and where `Separation` fails, as it does in long and weakly
    truncated chains, it tries `SequentialMonteCarlo` and keeps what has the smaller error. stderr
    says what was reached. Under a trace it sees shapes alone: its choice, and a budget of 16
    replicates of 1,024 points, are fixed by them. A `Ball` is left to `SoftMonteCarlo`.

    Args:
        rtol: relative error of the probability to aim at (static).

    Raises:
        ValueError: if rtol is not positive.

    Example:
        >>> region = tg.Box([0.0, 0.0], [jnp.inf, 1000.0])
        >>> float(tg.fraction_not_truncated([0.0, 0.0], jnp.eye(2), region))
        0.25
    """

    rtol: float = static_field(default=1e-4)

    def __post_init__(self) -> None:
        if not self.rtol > 0:
            raise ValueError(f"Automatic: rtol must be positive, got {self.rtol!r}.")

    def choice(self, problem: Problem) -> Method:
        """The method for a problem, as far as the problem can be seen."""
        if exact.applies(problem.covariance, problem.region):
            return exact.Exact()
        if isinstance(problem.region, Ball):
            return SoftMonteCarlo(num_samples=4096, num_replicates=16, points="lattice")
        return Separation(num_points=affordable(problem))

    def hold(self, loc: Any, covariance: Any, region: Region) -> Method:
        """The chosen method, with its plan fixed."""
        problem = base.as_problem(loc, covariance, region)
        return self.choice(problem).hold(*problem)

    def estimate(self, problem: Problem, key: jax.Array) -> Estimate:
        """The sum over independent parts of the problem."""
        return combined([self.answer(*part, PROBABILITY)[1] for part in self.parts(problem, key)])

    def parts(self, problem: Problem, key: jax.Array) -> list[tuple[Problem, jax.Array]]:
        """Independent problems that make up this one, as far as it can be seen, each with a key."""
        self.choice(problem).check(*problem)
        parts = independent_parts(problem)
        # With one key for all, equal parts would err alike, and their errors not add as squares.
        keys = [key] if len(parts) == 1 else jax.random.split(key, len(parts))
        return list(zip(parts, keys))

    def answer(self, problem: Problem, key: jax.Array, goal: "Goal") -> tuple[Method, Any]:
        """What the goal asks of one part, and the method that was chosen for it."""
        chosen = self.choice(problem)
        if not is_concrete((problem, key)):
            chosen = chosen.settled(*problem)
            return chosen, goal.evaluate(chosen, problem, key)
        if not isinstance(chosen, exact.Exact):
            return self.sampled(problem, key, goal)
        result = goal.evaluate(chosen, problem, key)
        error = math.inf if np.any(np.isnan(result[0])) else goal.error(result)
        if problem.covariance.dimension <= 3 or error <= self.rtol:
            return chosen, result
        # A chain too fine for its grid, or factors with next to no noise.
        other, second = self.sampled(problem, key, goal)
        return (other, second) if goal.error(second) < error else (chosen, result)

    def sampled(self, problem: Problem, key: jax.Array, goal: "Goal") -> tuple[Method, Any]:
        """The best that methods which draw can do, and the method."""
        soft = isinstance(problem.region, Ball)
        chosen = self.choice(problem) if soft else Separation(num_points=affordable(problem))
        chosen, result = self._refined(chosen.hold(*problem), problem, key, goal)
        if not soft and goal.error(result) > FAILURE:
            other = SequentialMonteCarlo().hold(*problem)
            other, second = self._refined(other, problem, key, goal)
            if goal.error(second) < goal.error(result):
                return other, second
        return chosen, result

    def _refined(self, method: Method, problem: Problem, key, goal: "Goal") -> tuple[Method, Any]:
        """The method with as many points as rtol takes and the budget allows, and its result."""
        result = goal.evaluate(method, problem, key)
        while (error := goal.error(result)) > self.rtol:
            larger = enlarged(method, error / self.rtol, problem.covariance.dimension)
            if larger is None:
                break
            method, result = larger, goal.evaluate(larger, problem, key)
        return method, result


class Goal(NamedTuple):
    """What is wanted of a problem.

    Attributes:
        evaluate: the result by a method: a tuple of arrays, NaN in the first where there is none.
        error: how far a result is from the truth, by its own account.
    """

    evaluate: Callable[[Method, Problem, jax.Array], Any]
    error: Callable[[Any], float]


def affordable(problem: Problem) -> int:
    """Points of a lattice to begin with: 1,024, fewer in very many dimensions."""
    most = MAX_STEPS // (16 * problem.covariance.dimension)
    return 2 ** min(10, max(5, most.bit_length() - 1))


def combined(results: list[Estimate]) -> Estimate:
    """The log probability of independent parts together; their errors add as squares."""
    if len(results) == 1:
        return results[0]
    log_prob = sum(result.log_prob for result in results)
    return Estimate(log_prob, sum(result.stderr**2 for result in results) ** 0.5)


def worst(result: Estimate) -> float:
    """The largest stderr of a batch, inf if any row rests on nothing; unknown ones do not count."""
    stderr = np.asarray(result.stderr, float)
    return float(np.max(np.where(np.isnan(stderr), 0.0, stderr), initial=0.0))


PROBABILITY = Goal(lambda method, *inputs: base.estimate(method, *inputs), worst)


def enlarged(method: Method, excess: float, dimension: int) -> Method | None:
    """The method with so many more points that an error `excess` times too large becomes right.

    Lattices are taken to converge as 1/n, particles and soft edges as 1/sqrt(n). None if the budget
    allows no more, or if the error is infinite: more of what has failed is no remedy.
    """
    field, rate = {
        Separation: ("num_points", 1.0),
        SequentialMonteCarlo: ("num_particles", 2.0),
        SoftMonteCarlo: ("num_samples", 2.0),
    }[type(method)]
    now = getattr(method, field)
    most = MAX_STEPS / (method.num_replicates * dimension)
    if not math.isfinite(excess) or 2 * now > most:
        return None
    wanted = min(now * min((MARGIN * excess) ** rate, 1e9), most)
    count = now * 2 ** max(1, math.floor(math.log2(wanted / now)))
    return dataclasses.replace(method, **{field: count})


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
    problem = base.as_problem(loc, covariance, region)
    key = base.as_key(key)
    if isinstance(method, Automatic):
        return method.estimate(problem, key)
    method.check(*problem)
    return base.estimate(method.settled(*problem), problem, key)


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
