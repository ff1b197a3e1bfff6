"""The settings of `latency`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from truncgauss.runs.config import Count, Experiment

Task = Literal[
    "value", "gradient", "moments", "draws",
    "jit value", "jit value with a held plan", "jit gradient", "jit gradient of a batch",
    "jit Hessian of a batch",
]  # fmt: skip
Fit = Literal[
    "truncated normal, 2-d", "limits of detection, 2-d", "bivariate probit", "trivariate probit",
    "selection model", "limits of detection, 4-d", "mixtures of 1 to 4",
    "mixtures with noise and gaps",
]  # fmt: skip


class Settings(Experiment):
    """The cost of a first and of a warm call."""

    cached: ClassVar[bool] = False  # compilations are what is measured

    dimensions: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Dimensions of the problem."""
    tasks: Annotated[tuple[Task, ...], Field(min_length=1)]
    """What is asked: log P, its value and gradient, moments, 1,000 draws; under `jax.jit` value and
    gradient of one box, the value by a `Separation` whose plan is held, and up to three dimensions
    gradient and Hessian of the sum of nine."""
    fits: tuple[Fit, ...] = ()
    """Fits whose first call is measured too, and once more with programs kept."""
    num_calls: Count
    """Warm calls, of which the fastest counts."""
    baseline: str | None = None
    """A folder with an earlier version of truncgauss, to be measured beside this one."""
    interpreters: dict[str, str] = {}
    """Other Pythons with another JAX, by the name under which they are shown."""
