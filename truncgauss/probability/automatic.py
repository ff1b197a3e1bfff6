"""The method that chooses a method, and the entry functions whose default it is."""

from typing import Any

import jax
import jax.numpy as jnp

from truncgauss.probability import base, exact
from truncgauss.probability.base import Estimate, Method, Problem, Region
from truncgauss.probability.soft import SoftMonteCarlo
from truncgauss.pytrees import frozen_pytree, is_concrete, static_field

NUM_SAMPLES = 4096
MAX_REPLICATES = 256


@frozen_pytree
class Automatic(Method):
    """The method that fits the problem: `Exact` where that applies, `SoftMonteCarlo` elsewhere.

    Outside of a trace it looks at the numbers, and doubles the replicates of a sampling method
    until stderr <= rtol or 256 replicates of 4,096 lattice points are spent; stderr then says what
    was reached. Under a trace it sees shapes alone: its choice and its budget of 16 replicates are
    fixed by them.

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
        return SoftMonteCarlo(num_samples=NUM_SAMPLES, num_replicates=16, points="lattice")

    def hold(self, loc: Any, covariance: Any, region: Region) -> Method:
        """The chosen method, with its plan fixed."""
        problem = base.as_problem(loc, covariance, region)
        return self.choice(problem).hold(*problem)


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
            gives the same number. All rows of a batch share it.

    Returns:
        Estimate(log_prob, stderr), each of the broadcast leading shape. stderr is the standard
        error of log_prob: 0 exact to rounding, nan unknown, inf that the estimate rests on nothing.

    Raises:
        ValueError: for disagreeing shapes, a covariance that is none, or a method that cannot
            answer; the message says what to use instead.

    Example:
        >>> region = tg.Box([1.0], [jnp.inf])
        >>> gradient = jax.grad(lambda loc: tg.log_probability(loc, [[1.0]], region).log_prob)
        >>> gradient(jnp.zeros(1))
        Array([1.52513528], dtype=float64)
    """
    problem = base.as_problem(loc, covariance, region)
    key = jax.random.key(0) if key is None else key
    if isinstance(method, Automatic):
        return automatic_estimate(method, problem, key)
    method.check(*problem)
    return base.estimate(method, problem, key)


def automatic_estimate(method: Automatic, problem: Problem, key: jax.Array) -> Estimate:
    """The estimate of the chosen method, refined until rtol is met where that can be seen."""
    chosen = method.choice(problem)
    result = base.estimate(chosen, problem, key)
    if not is_concrete((problem, key)) or not isinstance(chosen, SoftMonteCarlo):
        return result
    num_replicates = chosen.num_replicates
    while num_replicates < MAX_REPLICATES and bool(jnp.any(result.stderr > method.rtol)):
        num_replicates *= 4
        chosen = SoftMonteCarlo(NUM_SAMPLES, num_replicates, chosen.edge, chosen.points)
        result = base.estimate(chosen, problem, key)
    return result


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
