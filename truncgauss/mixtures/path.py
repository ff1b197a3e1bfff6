"""Fits of mixtures with more and more components, and the number that a criterion prefers.

References:
    Schwarz (1978), Estimating the dimension of a model. Biernacki, Celeux and Govaert (2000),
    Assessing a mixture model for clustering with the integrated completed likelihood.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from truncgauss.likelihood import Observations
from truncgauss.mixtures.fit import NoMaximum, fit_mixture
from truncgauss.mixtures.result import MixtureFit


@dataclasses.dataclass(frozen=True)
class MixturePath:
    """Fits by their number of components; `print` shows a table.

    Attributes:
        fits: by number of components.
        failures: why there is no fit, by number of components.
    """

    fits: dict[int, MixtureFit]
    failures: dict[int, str]

    @property
    def bic(self) -> np.ndarray:
        """Schwarz's criterion of each fit; inf where it has not converged."""
        fits = self.fits.values()
        return np.array([fit.bic if fit.converged else np.inf for fit in fits])

    @property
    def best(self) -> MixtureFit:
        """The converged fit with the lowest BIC.

        Raises:
            ValueError: if none has converged.
        """
        if not np.any(np.isfinite(self.bic)):
            raise ValueError("MixturePath: no fit has converged; print the path for the reasons.")
        return list(self.fits.values())[int(np.argmin(self.bic))]

    def __str__(self) -> str:
        lines = [f"{'K':>3} {'log-likelihood':>15} {'parameters':>10} {'BIC':>12} {'ICL':>12}"]
        for number, fit in self.fits.items():
            line = (
                f"{number:3} {fit.log_likelihood:15.8g} {fit.num_parameters:10} {fit.bic:12.7g} "
                f"{fit.icl:12.7g}"
            )
            lines.append(line if fit.converged else f"{line}  {fit.reason}")
        return "\n".join([*lines, *(f"{k:3} {why}" for k, why in self.failures.items())])


def fit_mixture_path(
    observations: Observations, num_components: Sequence[int], **settings: Any
) -> MixturePath:
    """Maximum likelihood of mixtures with each number of components.

    Args:
        observations: the rows, as in `fit_mixture`.
        num_components: the numbers to try.
        settings: others of `fit_mixture`.

    Returns:
        MixturePath; `.best` is the fit of lowest BIC.

    Raises:
        ValueError: as `fit_mixture`, but for mixtures that have no maximum, which are reported.

    Example:
        >>> y = jnp.concatenate([jnp.linspace(0.0, 2.0, 20), jnp.linspace(5.0, 8.0, 30)])
        >>> path = tg.fit_mixture_path(tg.Observations.exact(y), [1, 2], num_starts=2)
        >>> path.best.num_parameters, path.bic.round(1)
        (5, array([253. , 202.2]))
    """
    fits, failures = {}, {}
    for number in num_components:
        try:
            fits[number] = fit_mixture(observations, number, **settings)
        except NoMaximum as error:
            failures[number] = str(error)
    return MixturePath(fits, failures)
