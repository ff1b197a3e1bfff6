"""What was chosen for a problem, why, and how much there is to trust."""

from typing import Any

import jax
import jax.numpy as jnp

from truncgauss.probability.automatic import PROBABILITY, Automatic
from truncgauss.probability.differentiation import combined
from truncgauss.probability.method import Method, estimate, prepared
from truncgauss.probability.refinement import Found
from truncgauss.problem import Problem, as_key, as_problem
from truncgauss.regions import Region


def explain(
    loc: Any,
    covariance: Any,
    region: Region,
    method: Method = Automatic(),
    key: jax.Array | None = None,
) -> str:
    """A few lines on one problem: the method, why it was chosen, and what its estimate rests on.

    Args:
        loc: mean, shape (d,).
        covariance: shape (d, d), or any form of a covariance.
        region: `Box`, `Polyhedron` or `Ball`.
        method: as in `log_probability`, which is called.
        key: likewise.

    Returns:
        Lines of text: the problem, what was split or left out, the method with its reason, log P
        with its standard error, and for `Separation` the upper bound of log P that a minimax tilt
        gives, what the draws look ahead through, and the effective share of the points,
        (sum w)^2 / (n sum w^2), 1 where all weights are equal. Methods that were tried in vain, and
        why an error above rtol was left as it is, have lines of their own.

    Raises:
        ValueError: for a batch of problems, or as `log_probability`.

    Example:
        >>> print(tg.explain([0.0], [[1.0]], tg.Box([5.0], [jnp.inf])))
        problem  Box in 1 dimension, float64
        method   Exact: independent coordinates, in closed form
        log P    -15.06499839, exact to rounding
    """
    problem = as_problem(loc, covariance, region)
    if problem.batch_shape != ():
        raise ValueError(
            f"explain takes one problem at a time, got a batch of shape {problem.batch_shape}."
        )
    key = as_key(key)
    d, kind = problem.covariance.dimension, type(region).__name__
    lines = [f"problem  {kind} in {dimensions(d)}, {problem.loc.dtype}"]
    if not isinstance(method, Automatic):
        chosen = prepared(method, problem).hold(*problem)
        return "\n".join(lines + account(chosen, "as asked for", problem, None, key))
    parts = method.parts(problem, key)
    left_out = d - sum(part.problem.covariance.dimension for _, part, _ in parts)
    if left_out:
        lines.append(f"free     {left_out} without limits, left out")
    results = []
    for own_method, (part, _), own_key in parts:
        if len(parts) > 1:
            lines.append(f"part     independent, {dimensions(part.covariance.dimension)}")
        found = own_method.answer(part, own_key, PROBABILITY)
        lines += trials(found)
        lines += account(found.method, found.method.reason(part), part, found.result, own_key)
        lines += shortfall(found, method)
        results.append(found.result)
    if len(parts) > 1:
        total = combined(results)
        lines.append(f"in all   {float(total.log_prob):.10g}, {verdict(float(total.stderr))}")
    return "\n".join(lines)


def dimensions(d: int) -> str:
    return "1 dimension" if d == 1 else f"{d} dimensions"


def trials(found: Found) -> list[str]:
    """What else was tried, and how it ended."""
    return [
        f"tried    {named(attempt.method)}: {verdict(attempt.error)}"
        for attempt in found.attempts
        if attempt.method is not found.method
    ]


def shortfall(found: Found, method: Automatic) -> list[str]:
    """Why an error above rtol was left as it is."""
    own = [attempt for attempt in found.attempts if attempt.method is found.method]
    if not own or not own[0].error > method.rtol:
        return []
    return [f"short    of rtol={method.rtol:g}: {own[0].ending}"]


def account(chosen: Method, why: str, problem: Problem, result, key: jax.Array) -> list[str]:
    """What was chosen for a problem, what it says, and what that rests on."""
    result = estimate(chosen, problem, key) if result is None else result
    lines = [
        f"method   {named(chosen)}: {why}",
        f"log P    {float(result.log_prob):.10g}, {verdict(float(result.stderr))}",
    ]
    return lines + chosen.account(problem, key)


def named(method: Method) -> str:
    """The method with its counts."""
    fields = getattr(method, "__dataclass_fields__", {})
    counts = [f"{name}={getattr(method, name)}" for name in fields if name.startswith("num_")]
    return type(method).__name__ + (f"({', '.join(counts)})" if counts else "")


def verdict(stderr: float) -> str:
    """What a standard error of log P says, in words."""
    if stderr == 0:
        return "exact to rounding"
    if jnp.isnan(stderr):
        return "error unknown"
    return "resting on nothing" if jnp.isinf(stderr) else f"standard error {stderr:.1e}"
