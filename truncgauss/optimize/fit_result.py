"""The result of any fit: its end, and how far to trust it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from truncgauss.optimize.uncertainty import Certificate

if TYPE_CHECKING:
    from truncgauss.diagnosis.nonfinite import Report

BASELESS = (
    "Not converged: at the end the estimate of log P rests on too few effective samples (its "
    "standard error is inf). Give the method more points, or use another one such as "
    "tg.Automatic()."
)


NO_OTHER = "The likelihood has no other maximum."
UNSEEN = (
    "Only {} of the fitted distribution lies where observations can be made: the rest follows from "
    "the Gaussian shape, which no observation can check."
)
MOSTLY_UNSEEN = 0.5  # fraction not truncated, of a fit or a component, below which that is said


def in_words(fraction: float) -> str:
    """A fraction with two digits, or that it is smaller than any number."""
    return f"{fraction:.2g}" if fraction > 0 else "less than 1e-300"


def table_of(
    names: Sequence[str], estimates: Any, errors: Any, profiles: Mapping[str, Any] = {}
) -> list[str]:
    """The lines of a table of estimates, with standard errors and 95 % intervals: Wald's, but for
    those that have a profile interval."""
    width, quantile = max(map(len, names), default=0), 1.959963984540054
    head = "95 % interval" if profiles else "95 % Wald interval"
    lines = [f"{'':{width}}  {'estimate':>12} {'std. error':>12} {head:>26}"]
    for name, value, error in zip(names, np.asarray(estimates), np.asarray(errors)):
        low, high = profiles.get(name, (value - quantile * error, value + quantile * error))
        interval = f"[{low:.6g}, {high:.6g}]"
        kind = ("  profile" if name in profiles else "  Wald") if profiles else ""
        lines.append(f"{name:{width}}  {value:12.6g} {error:12.6g} {interval:>26}{kind}")
    return lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """The end of a fit, whatever was fitted.

    Attributes:
        converged: whether the fit ended at an optimum.
        reason: why it ended, in a sentence.
        num_steps: updates made.
        loss_trace: the loss at the start and after each step, shape (num_steps + 1,).
        parameter_covariance: covariance matrix of the estimates, or None.
        certificate: what is known of the distance to the optimum, or None.
        notes: sentences that a reader of the numbers must know.
    """

    converged: bool
    reason: str
    num_steps: int
    loss_trace: np.ndarray
    parameter_covariance: np.ndarray | None = None
    certificate: Certificate | None = None
    notes: tuple[str, ...] = ()


class InformationCriteria:
    """The criteria by which fits of the same rows are compared: q parameters, n rows, log L.

    n is the total of the rows' weights, which say how often each row counts; a row all of whose
    entries are missing says nothing and does not count."""

    log_likelihood: float
    num_rows: float
    num_parameters: int

    @property
    def aic(self) -> float:
        """Akaike's criterion, 2 q - 2 log L."""
        return 2 * self.num_parameters - 2 * self.log_likelihood

    @property
    def bic(self) -> float:
        """Schwarz's criterion, q log n - 2 log L."""
        return self.num_parameters * math.log(self.num_rows) - 2 * self.log_likelihood


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitResult(Fit):
    """The parameters that minimise an objective, and how far to trust them.

    Attributes, besides those of `Fit`:
        params: the parameters, in the structure of the start.
        loss: the objective there.
        gradient_norm: the Euclidean norm of its gradient in free coordinates.
        gradient_norm_trace: likewise at every step, shape (num_steps + 1,).
        standard_errors: in the structure of params, or None where the objective gives none. inf:
            the data do not identify it. nan: unknown. 0: it was held fixed.
        parameter_covariance: covariance of the entries of params, flattened, or None.
        alternatives: other solutions which the data cannot tell from this one.
        diagnosis: what `first_nonfinite` found if a loss or gradient was not finite.
    """

    params: Any
    loss: float
    gradient_norm: float
    gradient_norm_trace: np.ndarray
    standard_errors: Any = None
    alternatives: tuple[Any, ...] = ()
    diagnosis: "Report | None" = None

    def __str__(self) -> str:
        from truncgauss.optimize.constraints import named_leaves
        from truncgauss.words.terminal import wrapped

        leaves = [(name or "params", np.asarray(leaf)) for name, leaf in named_leaves(self.params)]
        width, lines = max((len(name) for name, _ in leaves), default=0) + 2, []
        for name, leaf in leaves:
            text = np.array2string(leaf, precision=6, threshold=50)
            lines.append(f"{name:{width}}{text.replace(chr(10), chr(10) + ' ' * width)}")
        lines.append(f"loss {self.loss:.8g}, gradient norm {self.gradient_norm:.2g}")
        return "\n".join(map(wrapped, [*lines, self.reason, *self.notes]))
