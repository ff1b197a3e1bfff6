"""The Gaussian of rows whose entries are missing because of their value, and that curve."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.keys import as_key
from truncgauss.arrays.pytrees import frozen_pytree, static_field
from truncgauss.fits.gaussian.linear_gaussian import ObservationsLoss
from truncgauss.fits.gaussian.selected import (
    CurveCoordinates,
    SelectedFit,
    SelectedSample,
    checked_parts,
    in_float64,
)
from truncgauss.fitting.descent import Path
from truncgauss.fitting.engine import maximum_likelihood
from truncgauss.gaussian.problem import Estimate
from truncgauss.likelihood.dropout import curves_of
from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.row_blocks import filled_up
from truncgauss.likelihood.rows import total_log_likelihood
from truncgauss.probability.method import Method
from truncgauss.special.tails import ndtr

ALONE = {"information": "observed", "cluster": None}


@frozen_pytree
class DropoutLoss(ObservationsLoss):
    """Minus the mean log-likelihood of a row whose entries a curve observes, by the coordinates of
    a Gaussian and of that curve; `prior` is the log density of its parameters (static)."""

    coordinates: Any
    prior: Callable[[Any], Any] | None = static_field(default=None)

    def rows_at(self, x: jax.Array) -> Observations:
        return self.observations.with_observed(self.coordinates.region(x))

    def total(self, x: jax.Array) -> Estimate:
        value, stderr = total_log_likelihood(
            self.rows_at(x), *self.gaussian(x), self.method, self.key
        )
        return Estimate(value + self.coordinates.log_prior(self.prior, x), stderr)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropoutRows(SelectedSample):
    """Rows whose entries a curve observed; `rows` are filled at the midpoint, for starts alone."""

    observations: Observations
    what = "fit_observations"

    def starts(self, count: int | None) -> list[np.ndarray]:
        return super().starts((count or 1) + 1)[1:]  # weighted by no inverse probability

    def loss_at(self, x: np.ndarray) -> Any:
        return self.general_loss.held_at(x)

    def loss_that_reaches(self, x: np.ndarray) -> Any:
        return self.general_loss.held_at(x, 0.0)

    @functools.cached_property
    def general_loss(self) -> DropoutLoss:
        (rows,) = filled_up(self.observations)
        size = jnp.asarray(float(self.weights.sum()))
        return DropoutLoss(
            rows, None, self.coordinates, size, self.method, self.key, prior=self.prior
        )

    def judged(self, path: Path, total: Any, converged: bool) -> tuple[float, None]:
        """The mean probability that an entry is observed."""
        parts, matrix = self.inner.values(path.end.x[: self.coordinates.split])
        curve = self.coordinates.region(jnp.asarray(path.end.x))
        w, m, t = map(np.asarray, curves_of(curve, len(matrix)))
        scale = np.sqrt(w**2 * np.diagonal(matrix) + t**2)
        return float(np.mean(np.asarray(ndtr((w * np.concatenate(parts) - m) / scale)))), None


def fit_dropout(
    observations: Observations,
    estimate: Any,
    prior: Any,
    method: Method,
    key: jax.Array | None,
    **settings: Any,
) -> SelectedFit:
    """The fit of rows with `observed`; arguments as `fit_observations` has them."""
    what = "fit_observations"
    if any(settings.pop(name) != value for name, value in ALONE.items()):
        raise ValueError(f"{what}: errors of a curve are those of the observed information.")
    with jax.enable_x64(True):
        rows = in_float64(observations.with_known(patterns=None, region_patterns=None, orders=None))
        rows = dataclasses.replace(rows, index=None)
        curve = rows.observed
        parts = checked_parts(what, curve, estimate, prior)
        lower, upper = np.asarray(rows.lower), np.asarray(rows.upper)
        bounds = np.where(np.isinf(lower), upper, lower)
        model = DropoutRows(
            rows=bounds,
            weights=rows.row_weights,
            curve=CurveCoordinates(curve, parts),
            unobserved=None,
            prior=prior,
            labels=rows.labels,
            method=method,
            key=as_key(key),
            observations=rows.unnamed(),
        )
        if rows.num_rows <= len(model.names):
            raise ValueError(
                f"{what}: {rows.num_rows} rows cannot determine {len(model.names)} estimates."
            )
        start = settings.pop("start")
        x = None if start is None else model.as_start(start)
        fit: SelectedFit = maximum_likelihood(model, start=x, **settings)
        return fit
