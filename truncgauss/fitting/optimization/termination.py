"""Ends of a fit, and the sentence for each."""

import math

import numpy as np

LEAST = 8  # losses in a quarter of a random fit, from which a trend can be seen
STUCK = (
    "Not converged: nothing was gained, as far as the noise can tell, and the mean gradient is no "
    "smaller than at the start. Take larger steps, or more of them."
)
RUNNING, STATIONARY, STALLED, NONFINITE, FLAT, EXHAUSTED = range(6)


def verdict(status: int, step: int, relative: float, tolerance: float) -> tuple[bool, str]:
    """Whether a fit of a fixed objective converged, and why it ended."""
    gradient = f"the relative gradient is {relative:.1e}"
    small = relative <= math.sqrt(tolerance)
    if status == FLAT:
        return False, (
            "The gradient is exactly zero at the start: the objective is flat or symmetric there, "
            "or this is the solution already. Start elsewhere to tell."
        )
    if status == STATIONARY:
        return True, f"Converged after {step} steps: {gradient} (tolerance {tolerance:.1e})."
    if status == STALLED and small:
        return True, (
            f"Converged after {step} steps: the loss no longer decreases in this precision, and "
            f"{gradient}."
        )
    if status == STALLED:
        return False, (
            f"Stalled after {step} steps: the loss no longer decreases, but {gradient} (tolerance "
            f"{tolerance:.1e}). The objective may have a kink or be badly scaled; try float64, "
            "another start, or another optimiser."
        )
    return False, (
        f"Not converged: {step} steps are used up and {gradient} (tolerance {tolerance:.1e}). "
        "Allow more num_steps."
    )


def plateau(step: int, relative: float, far: float) -> str:
    """The sentence for an end where the gradient is small, but no minimum is near."""
    return (
        f"Not converged after {step} steps: the relative gradient is {relative:.1e}, but the loss "
        f"still falls at a distance of {far:.2g} along it. This is a plateau, or the way to a "
        "minimum at infinity: start elsewhere."
    )


def difference(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """Fall of the mean of losses, and its standard error."""
    noise = math.sqrt((before.var(ddof=1) + after.var(ddof=1)) / len(after))
    return float(before.mean() - after.mean()), noise


def gained(losses: np.ndarray) -> bool:
    """Whether the last quarter of random losses is clearly lower than the first."""
    quarter = len(losses) // 4
    gap, noise = difference(losses[:quarter], losses[-quarter:])
    return gap > 2 * noise


def settled(losses: np.ndarray) -> tuple[bool, str]:
    """Whether the loss of a random objective has stopped falling, as far as its noise can tell."""
    quarter = len(losses) // 4
    if quarter < LEAST:
        few = f"Not converged: {len(losses)} losses are too few to be told from their noise."
        return False, few
    before, after = losses[-2 * quarter : -quarter], losses[-quarter:]
    gap, noise = difference(before, after)
    numbers = f"the mean loss of the last quarter is lower by {gap:.2g} +- {noise:.1g}"
    if abs(gap) <= 2 * noise:
        return True, f"Settled after {len(losses) - 1} steps: {numbers}."
    return False, f"Not converged: {numbers}. Allow more num_steps."
