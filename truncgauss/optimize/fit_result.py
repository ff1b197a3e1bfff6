"""The result of any fit: its end, and how far to trust it."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from truncgauss.optimize.uncertainty import Certificate

if TYPE_CHECKING:
    from truncgauss.diagnosis.nonfinite import Report


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
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            from truncgauss.words.arguments import absent  # of which only wrong names have use

            return absent(self, name)

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
