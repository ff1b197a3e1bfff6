"""Fits of mixtures with more and more components, and the number that a criterion prefers.

References:
    Schwarz (1978), Estimating the dimension of a model. Biernacki, Celeux and Govaert (2000),
    Assessing a mixture model for clustering with the integrated completed likelihood. Smyth (2000),
    Model selection for probabilistic clustering using cross-validated likelihood.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution import row_sums
from truncgauss.execution.pytrees import floats_as_float64
from truncgauss.fitting.mixtures.fit import fit_mixture
from truncgauss.fitting.mixtures.likelihood import mixture_log_likelihood, row_weights
from truncgauss.fitting.mixtures.result import MixtureFit
from truncgauss.fitting.mixtures.search import NoMaximum
from truncgauss.fitting.optimization.progress import bar
from truncgauss.gaussian.problem import as_key
from truncgauss.likelihood import Observations
from truncgauss.probability.automatic import Automatic


@dataclasses.dataclass(frozen=True)
class MixturePath:
    """Fits by their number of components; `print` shows a table.

    Attributes:
        fits: by number of components.
        failures: why there is no fit, by number of components.
        held_out: with folds, the log-likelihood of each row under the mixture fitted without its
            fold, (n,), by number of components; those without a failure.
        weights: with folds, how often each row counts, (n,).
    """

    fits: dict[int, MixtureFit]
    failures: dict[int, str]
    held_out: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)
    weights: np.ndarray | None = None

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

    @property
    def held_out_means(self) -> dict[int, float]:
        """The mean held-out log-likelihood of a row, in nats, by number of components."""
        weights = self.weights
        return {k: float(np.average(rows, weights=weights)) for k, rows in self.held_out.items()}

    @property
    def held_out_errors(self) -> dict[int, float]:
        """The standard error of the difference of each of these means to the largest: rows that
        are unlikely under all mixtures do not count in it."""
        means, errors = self.held_out_means, {}
        best = max(means, key=lambda k: means[k], default=0)
        for k, rows in self.held_out.items():
            weights = np.ones(len(rows)) if self.weights is None else self.weights
            gaps = rows - self.held_out[best] - (means[k] - means[best])
            errors[k] = float(np.sqrt(np.sum(weights * gaps**2)) / np.sum(weights))
        return errors

    def __str__(self) -> str:
        lines = [f"{'K':>3} {'log-likelihood':>15} {'parameters':>10} {'BIC':>12} {'ICL':>12}"]
        means, errors = self.held_out_means, self.held_out_errors
        lines[0] += f" {'held out a row':>16} {'below the best':>20}" if means else ""
        for number, fit in self.fits.items():
            line = (
                f"{number:3} {fit.log_likelihood:15.8g} {fit.num_parameters:10} {fit.bic:12.7g} "
                f"{fit.icl:12.7g}"
            )
            if number in means:
                gap = max(means.values()) - means[number]
                line += f" {means[number]:16.6g} {gap:10.2g} ± {errors[number]:.2g}"
            lines.append(line if fit.converged else f"{line}  {fit.reason}")
        return "\n".join([*lines, *(f"{k:3} {why}" for k, why in self.failures.items())])


def fit_mixture_path(
    observations: Observations, num_components: Sequence[int], *, folds: int = 0, **settings: Any
) -> MixturePath:
    """Maximum likelihood of mixtures with each number of components.

    Args:
        observations: the rows, as in `fit_mixture`.
        num_components: the numbers to try.
        folds: of which each is left out once, to be predicted by a fit of the others; 0 for none.
            That makes folds + 1 fits for each number, all from `num_starts` starts. `key` among
            the settings chooses them.
        settings: others of `fit_mixture`.

    Returns:
        MixturePath; `.best` is the fit of lowest BIC. `tg.plotting.mixture_path` draws it.

    Raises:
        ValueError: as `fit_mixture`, but for mixtures that have no maximum, which are reported; for
            less than two folds, or more than rows, or with folds for rows that are spread over
            processes.

    Example:
        >>> y = jnp.concatenate([jnp.linspace(0.0, 2.0, 20), jnp.linspace(5.0, 8.0, 30)])
        >>> path = tg.mixtures.fit_mixture_path(tg.Observations.exact(y), [1, 2], num_starts=2)
        >>> path.best.num_parameters, path.bic.round(1)
        (5, array([253. , 202.2]))
    """
    if folds:
        row_sums.refuse_spread("fit_mixture_path with folds", observations)
    if folds and (not isinstance(folds, int) or not 2 <= folds <= observations.num_rows):
        raise ValueError(
            f"fit_mixture_path: folds must be 0 or an int from 2 to the number of rows, "
            f"{observations.num_rows}; got {folds!r}."
        )
    fits, failures, held_out = {}, {}, {}
    with bar(num_components, "numbers of components", settings.get("progress", True)) as numbers:
        for number in numbers:
            try:
                fits[number] = fit_mixture(observations, number, **settings)
                if folds:
                    held_out[number] = left_out(observations, number, folds, settings)
                numbers.note = f"{number}: BIC {fits[number].bic:.7g}"
            except NoMaximum as error:
                failures[number] = str(error)
    weights = None if not folds or observations.weights is None else observations.weights
    return MixturePath(fits, failures, held_out, None if weights is None else np.asarray(weights))


def left_out(
    observations: Observations, number: int, folds: int, settings: dict[str, Any]
) -> np.ndarray:
    """The log-likelihood of each row, unweighted, under the fit of the other folds, (n,).

    Rows are left out by a weight of 0, so that all folds share one compilation.
    """
    with jax.enable_x64(True):
        observations = floats_as_float64(observations)
        weights = row_weights(observations, jnp.float64)
        rows = dataclasses.replace(observations, weights=None)
    shuffled = jax.random.permutation(as_key(settings.get("key")), observations.num_rows)
    fold = np.asarray(shuffled) % folds
    log_densities = np.zeros(len(fold))
    for out in bar(range(folds), "folds left out", settings.get("progress", True)):
        others = dataclasses.replace(
            observations, weights=jnp.where(jnp.asarray(fold == out), 0.0, weights)
        )
        fit = fit_mixture(others, number, **settings)
        with jax.enable_x64(True):
            parts = fit.weights, fit.locs, fit.covariances
            method = settings.get("method", Automatic())
            estimate = mixture_log_likelihood(rows, *parts, method, settings.get("key"))
        log_densities[fold == out] = np.asarray(estimate.log_prob)[fold == out]
    return log_densities
