"""A report in words on one problem: its method, why that was chosen, and how exact it is."""

import math

import jax

from truncgauss.arrays.keys import PRNGKey, as_key
from truncgauss.arrays.progress import reported
from truncgauss.gaussian.problem import CovarianceLike, Estimate, Loc, Problem, as_problem
from truncgauss.gaussian.regions.region import Region
from truncgauss.probability import refinement
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.blocks import parts_of
from truncgauss.probability.method import Method, check_method, estimate, prepared
from truncgauss.probability.structure import combined


@reported
def explain(
    loc: Loc,
    covariance: CovarianceLike,
    region: Region,
    method: Method = Automatic(),
    key: PRNGKey | None = None,
) -> str:
    """A text report on one problem: the method, the reason for it, and diagnostics.

    Args:
        loc: mean, shape (d,).
        covariance: shape (d, d), or any form of a covariance.
        region: `Box`, `Polyhedron`, `Ball` or `Ellipsoid`.
        method, key: as in `log_probability`.

    Returns:
        Lines of text: the problem, its independent blocks, the coordinates left out, the method
        with its reason, log P with its standard error, and for `Separation` the upper bound of
        log P by a minimax tilt, the sites in use, and the effective sample size over the number of
        points, (sum w)^2 / (n sum w^2). Further lines name methods that were tried and not used,
        and the reason why a standard error stayed above rtol.

    Raises:
        ValueError: for a batch of problems, or as `log_probability`.

    Example:
        >>> print(tg.explain([0.0], [[1.0]], tg.Box([5.0], [jnp.inf])))
        problem  Box in 1 dimension, float64
        method   Exact: independent coordinates, in closed form
        log P    -15.06499839, exact to rounding
    """
    check_method(method)
    problem = as_problem(loc, covariance, region)
    if problem.batch_shape != ():
        raise ValueError(
            f"explain takes one problem at a time, got a batch of shape {problem.batch_shape}."
        )
    key = as_key(key)
    d, kind = problem.covariance.dimension, type(region).__name__
    lines = [f"problem  {kind} in {dimensions(d)}, {problem.loc.dtype}"]
    if not isinstance(method, Automatic):
        chosen = prepared(method, problem)
        return "\n".join(lines + account(chosen, "as asked for", problem, None, key))
    parts = parts_of(method, problem, key)
    left_out = d - sum(part.problem.covariance.dimension for _, part, _ in parts)
    if left_out:
        lines.append(f"free     {left_out} without bounds, left out")
    results = []
    for own_method, (part, _), own_key in parts:
        if len(parts) > 1:
            lines.append(f"part     independent, {dimensions(part.covariance.dimension)}")
        answer = refinement.answer(own_method, part, own_key, refinement.PROBABILITY)
        chosen, mine = answer.method, [x for x in answer.attempts if x.method is answer.method]
        others = [attempt for attempt in answer.attempts if attempt.method is not chosen]
        lines += [f"tried    {named(other.method)}: {verdict(other.error)}" for other in others]
        lines += account(chosen, chosen.reason(part), part, answer.result, own_key)
        if mine and mine[0].error > method.rtol:
            lines.append(f"short    of rtol={method.rtol:g}: {mine[0].ending}")
        results.append(answer.result)
    if len(parts) > 1:
        total = combined(results)
        lines.append(f"in all   {float(total.log_prob):.10g}, {verdict(float(total.stderr))}")
    return "\n".join(lines)


def dimensions(d: int) -> str:
    return "1 dimension" if d == 1 else f"{d} dimensions"


def account(
    chosen: Method, why: str, problem: Problem, result: Estimate | None, key: jax.Array
) -> list[str]:
    result = estimate(chosen, problem, key) if result is None else result
    lines = [
        f"method   {named(chosen)}: {why}",
        f"log P    {float(result.log_prob):.10g}, {verdict(float(result.stderr))}",
    ]
    return lines + chosen.account(problem, key)


def named(method: Method) -> str:
    fields = getattr(method, "__dataclass_fields__", {})
    counts = [f"{name}={getattr(method, name)}" for name in fields if name.startswith("num_")]
    return type(method).__name__ + (f"({', '.join(counts)})" if counts else "")


def verdict(stderr: float) -> str:
    if stderr == 0:
        return "exact to rounding"
    if math.isnan(stderr):
        return "error unknown"
    return "too few effective samples" if math.isinf(stderr) else f"standard error {stderr:.1e}"
