"""The Gaussian of rows whose entries are missing because of their value, and that curve."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.keys import as_key
from truncgauss.arrays.linalg import namespace
from truncgauss.arrays.pytrees import Estimate, frozen_pytree, static_field
from truncgauss.fits.gaussian.linear_gaussian import GaussianCoordinates, ObservationsLoss
from truncgauss.fits.gaussian.selected import (
    CurveCoordinates,
    SelectedFit,
    SelectedSample,
    checked_parts,
    in_float64,
)
from truncgauss.fitting.descent import Path
from truncgauss.fitting.engine import maximum_likelihood
from truncgauss.gaussian.covariances import LowRank
from truncgauss.likelihood.dropout import MOST_FACTORS, curves_of
from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.row_blocks import filled_up
from truncgauss.likelihood.rows import log_likelihood, total_log_likelihood
from truncgauss.probability.method import Method
from truncgauss.special.tails import ndtr
from truncgauss.words.names import meant

ALONE = {"information": "observed", "cluster": None}
MOST_MISSING = 4  # entries of a row, over which a covariance of any form is integrated
LEAST_SHARE = 1e-3  # of a variance that a start leaves to the noise, or to the common effect
NOT_COMPARED = "Wald intervals were not compared with the likelihood; profile() does that."
COVARIANCES = (
    'fit_observations: of rows with observed=, covariance is "full", "exchangeable", "diagonal", '
    'or the group of each entry, such as ["A", "A", "B", "B"]: one group or two, of two entries or '
    "more; got {!r} for {} entries{}"
)


@frozen_pytree
class ExchangeableCoordinates(GaussianCoordinates):
    r"""Free coordinates of a mean, and of a covariance matrix whose entries depend on the groups of
    the outcomes alone: with g(i) the group of outcome i,

    .. math:: \Sigma_{ij} = T_{g(i)\, g(j)} + \delta_{ij}\, s^2_{g(i)}

    a common effect for each group, whose covariance matrix is T, and independent noise. x holds the
    mean, the logarithms of s, and the Cholesky factor of T with logarithms in its diagonal. Where
    every outcome is a group, T is 0.

    Attributes, besides those of `GaussianCoordinates`:
        groups: number of the group of each outcome, from 0 on (static).
    """

    groups: tuple[int, ...] = static_field(default=())

    @classmethod
    def of(cls, covariance: Any, d: int) -> "ExchangeableCoordinates":
        """The coordinates of d outcomes, by the argument of a user."""
        named: dict[str, Any] = {"exchangeable": ["all"] * d, "diagonal": range(d)}
        labels: Any = named.get(covariance, ()) if isinstance(covariance, str) else covariance
        if np.shape(labels) != (d,):
            guess = meant(covariance, ("full", *named)) or "."
            raise ValueError(COVARIANCES.format(covariance, d, guess))
        kinds = list(dict.fromkeys(np.asarray(labels).tolist()))
        groups = [kinds.index(label) for label in np.asarray(labels).tolist()]
        few = len(kinds) <= MOST_FACTORS and min(map(groups.count, groups)) > 1
        if d == 1 or not (few or (isinstance(covariance, str) and covariance == "diagonal")):
            raise ValueError(COVARIANCES.format(covariance, d, "."))
        return cls(jnp.eye(d), (1,) * d, (), (), groups=tuple(groups))

    @property
    def common(self) -> int:
        """The number of common effects."""
        count = max(self.groups) + 1
        return count if count < len(self.groups) else 0

    @property
    def _first(self) -> dict[tuple[bool, int, int], tuple[int, int]]:
        """The first entry of each kind in the lower triangle."""
        known: dict[tuple[bool, int, int], tuple[int, int]] = {}
        for i, g in enumerate(self.groups):
            for j, h in enumerate(self.groups[: i + 1]):
                if i == j or self.common:
                    known.setdefault((i == j, min(g, h), max(g, h)), (i, j))
        return known

    @property
    def entries(self) -> list[tuple[int, int]]:
        return sorted(self._first.values())

    @property
    def positions(self) -> np.ndarray:
        number = {kind: self.entries.index(entry) for kind, entry in self._first.items()}
        kinds = [
            [number.get((i == j, min(g, h), max(g, h)), -1) for j, h in enumerate(self.groups)]
            for i, g in enumerate(self.groups)
        ]
        return np.array(kinds)

    def low_rank(self, rest: Any) -> tuple[Any, Any]:
        """Loadings (d, r) and variances of the noise (d,)."""
        xp, r, groups = namespace(rest), self.common, np.array(self.groups)
        count = max(self.groups) + 1
        diagonal = xp.exp(2.0 * rest[:count])[groups]
        if not r:
            return xp.zeros((len(groups), 0)), diagonal
        rows, columns = np.tril_indices(r)
        units = np.zeros((len(rows), r, r))
        units[np.arange(len(rows)), rows, columns] = 1.0
        logs = rest[count:]
        factor = xp.where(rows == columns, xp.exp(logs), logs) @ units.reshape(len(rows), -1)
        return factor.reshape(r, r)[groups], diagonal

    def values(self, x: Any) -> tuple[tuple[Any, ...], Any]:
        d = len(self.sizes)
        factor, diagonal = self.low_rank(x[d:])
        parts = tuple(x[i : i + 1] for i in range(d))
        return parts, factor @ factor.T + namespace(x).diag(diagonal)

    def free(self, coefficients: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """x of a mean and of the averages of a covariance matrix over its entries of each kind."""
        groups, r = np.array(self.groups), self.common
        units = np.eye(max(self.groups) + 1)[groups]
        sizes = units.sum(axis=0)
        variances = np.diagonal(matrix) @ units / sizes
        if not r:
            return np.concatenate([coefficients, 0.5 * np.log(variances)])
        pairs = np.outer(sizes, sizes) - np.diag(sizes)
        between = units.T @ (matrix - np.diag(np.diagonal(matrix))) @ units / pairs
        common = np.clip(
            np.diagonal(between), LEAST_SHARE * variances, (1 - LEAST_SHARE) * variances
        )
        noise, root = variances - common, np.sqrt(common)
        if r == 2:
            most = (1 - LEAST_SHARE) * root[0] * root[1]
            between[0, 1] = np.clip(between[0, 1], -most, most)
        matrix = np.where(np.eye(r) > 0, common[:, None], between)
        factor = np.linalg.cholesky(matrix)
        rows, columns = np.tril_indices(r)
        logs = np.where(
            rows == columns, np.log(np.abs(factor[rows, columns])), factor[rows, columns]
        )
        return np.concatenate([coefficients, 0.5 * np.log(noise), logs])


@frozen_pytree
class DropoutLoss(ObservationsLoss):
    """Minus the mean log-likelihood of a row whose entries a curve observes, by the coordinates of
    a Gaussian and of that curve; `prior` is the log density of its parameters (static)."""

    coordinates: Any
    prior: Callable[[Any], Any] | None = static_field(default=None)

    def rows_at(self, x: jax.Array) -> Observations:
        return self.observations.with_observed(self.coordinates.region(x))

    @property
    def by_factors(self) -> bool:
        """Whether the likelihood of a row is an integral over common effects, without plans."""
        return isinstance(self.coordinates.inner, ExchangeableCoordinates)

    @property
    def iterated(self) -> bool:
        return not self.by_factors and super().iterated

    def steps(self, x: np.ndarray) -> np.ndarray | None:
        return None if self.by_factors else super().steps(x)

    def held_at(self, x: np.ndarray, *most: float) -> Any:
        return self if self.by_factors else super().held_at(x, *most)

    def gaussian(self, x: Any) -> tuple[Any, Any]:
        if not self.by_factors:
            return super().gaussian(x)
        inner, d = self.coordinates.inner, self.observations.dimension
        factor, diagonal = inner.low_rank(x[d : self.coordinates.split])
        return x[:d], LowRank(factor, diagonal)

    def total(self, x: jax.Array) -> Estimate:
        problem = self.rows_at(x), *self.gaussian(x), self.method, self.key
        if self.by_factors:  # of rows without patterns; bounds of errors add up
            value, stderr = map(jnp.sum, log_likelihood(*problem))
        else:
            value, stderr = total_log_likelihood(*problem)
        return Estimate(value + self.coordinates.log_prior(self.prior, x), stderr)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropoutRows(SelectedSample):
    """Rows whose entries a curve observed; `rows` are filled at the midpoint, for starts alone."""

    observations: Observations
    covariance: Any
    what = "fit_observations"

    @functools.cached_property
    def inner(self) -> GaussianCoordinates:
        d = self.rows.shape[1]
        if isinstance(self.covariance, str) and self.covariance == "full":
            return super().inner
        return ExchangeableCoordinates.of(self.covariance, d)

    @property
    def gaps(self) -> np.ndarray:
        """Of exact entries; NaN of others."""
        rows, curve = self.observations, self.curve.region
        w, m, _ = map(np.asarray, curves_of(curve, self.rows.shape[1]))
        exact = np.asarray(rows.lower) == np.asarray(rows.upper)
        gaps = np.where(exact, w * self.rows - m, np.nan)[self.weights > 0]
        return gaps.reshape(-1, curve.midpoint.shape[-1])

    def starts(self, count: int | None) -> list[np.ndarray]:
        return super().starts(count and count + 1)[1:]  # weighted by no inverse probability

    def wald_coverages(self, path: Path, total: Any, errors: Any, compare: Any) -> Any:
        common = getattr(self.inner, "common", 0)
        if common > 1:  # a Hessian of which takes a second
            return np.zeros(0), (NOT_COMPARED,)
        return super().wald_coverages(path, total, errors, compare)

    def loss_at(self, x: np.ndarray) -> Any:
        return self.general_loss.held_at(x)

    def loss_that_reaches(self, x: np.ndarray) -> Any:
        return self.general_loss.held_at(x, 0.0)

    @functools.cached_property
    def general_loss(self) -> DropoutLoss:
        (rows,) = filled_up(self.observations)
        if isinstance(self.inner, ExchangeableCoordinates):  # so that all rows share a program
            rows = rows.with_known(patterns=(), region_patterns=(), orders=None)
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
    covariance: Any,
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
            covariance=covariance,
        )
        if rows.num_rows <= len(model.names):
            raise ValueError(
                f"{what}: {rows.num_rows} rows cannot determine {len(model.names)} estimates."
            )
        most = int(np.max(np.sum(lower != upper, axis=1)))
        if not isinstance(model.inner, ExchangeableCoordinates) and most > MOST_MISSING:
            raise ValueError(
                f'{what}: with covariance="full" up to {MOST_MISSING} entries of a row may be '
                f"missing because of their value, and {most} are. Give covariance="
                '"exchangeable", or the group of each entry such as ["A", "A", "B", "B"]: any '
                "number of missing ones is then an integral over one or two common effects."
            )
        start = settings.pop("start")
        x = None if start is None else model.as_start(start)
        fit: SelectedFit = maximum_likelihood(model, start=x, **settings)
        return fit
