r"""Ordered and binary outcomes: regressions and latent Gaussians whose limits are parameters.

Row i has latent outcomes :math:`x_i \sim N(X_i \beta, \Sigma)`. An ordered entry shows between
which of its limits (cuts) :math:`x_{ij}` lies; its variance is 1, as categories do not tell it.
Other entries are exact, limited or missing. Of one outcome this is the ordered probit, of several
binary ones the multivariate probit. The likelihood is that of rows with limits, see
`tg.log_likelihood`, where limits are functions of the parameters; equal rows are counted once.

In free coordinates the first cut of an ordered outcome is 0 and its covariates hold a constant. One
that the user did not give is subtracted from the cuts afterwards.
"""

import dataclasses
import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from truncgauss.arrays.alignment import labels_of
from truncgauss.arrays.keys import as_key
from truncgauss.arrays.linalg import namespace
from truncgauss.arrays.progress import reported
from truncgauss.arrays.pytrees import (
    Estimate,
    as_float_array,
    floats_as_float64,
    frozen_pytree,
    static_field,
)
from truncgauss.covariates.predictions import (
    Covariates,
    Predictions,
    chosen_effects,
    designs_of,
    each_column,
    effect_on,
    move_of,
    names_of_rows,
    of_categories,
    points_of,
    shares_between,
)
from truncgauss.covariates.rows_fit import RowsFit
from truncgauss.covariates.whitening import Whitened, constant_of, whitened
from truncgauss.fits.gaussian.centring import Centred, centred
from truncgauss.fits.gaussian.gaussian_starts import (
    OR_MATRIX,
    STRUCTURES,
    as_coordinates,
    check_designs,
    each_design,
    first_guess,
)
from truncgauss.fits.gaussian.linear_gaussian import STEP, GaussianCoordinates, ObservationsLoss
from truncgauss.fits.gaussian.rising import direction_of, impossible
from truncgauss.fitting.derived import gaussian_arrays
from truncgauss.fitting.descent import Path
from truncgauss.fitting.engine import maximum_likelihood
from truncgauss.fitting.likelihood_fit import Ending
from truncgauss.fitting.model import Model, arrays_of_start
from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.ordinal import LEFT_OUT, UNUSED, LatentRows
from truncgauss.likelihood.patterns import is_empty, unique_rows
from truncgauss.likelihood.row_blocks import filled_up
from truncgauss.likelihood.rows import fraction_not_truncated
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import Method
from truncgauss.special.normal import log_interval_mass, log_mass_and_slopes
from truncgauss.special.tails import LOG_SQRT_2PI, standardize
from truncgauss.tables.columns import Table
from truncgauss.words.names import check_choice
from truncgauss.words.numbers import check_share

NO_ERROR = 1e-9  # of a correlation matrix that is singular
PROBIT_SCALE = "The variance of each ordered outcome is fixed at 1: categories do not tell it."
FIRST_CUT = (
    "The first cut of each ordered outcome is fixed at 0, as its covariates span a constant."
)
NOT_COMPARED = "Wald intervals were not compared with the likelihood; profile() does that."
LARGEST = 2.0  # standard error of a correlation: the length of all that it can be
NEARLY_ONE = 0.08  # standard deviation of an outcome given others with limits
UNRESOLVED = (
    "The latent outcomes determine one another but for a standard deviation of {:.2g}, below the "
    "{:g} at which a maximum can be told: the likelihood may grow up to correlations of 1 or -1. "
    "tg.polychoric decides that for two outcomes."
)
FLAT = (
    "No maximum was found: the likelihood is flat along {} up to 1 or -1, as where cells of a "
    "table are empty. tg.polychoric decides that for two outcomes."
)
SINGULAR = (
    "There is no maximum inside: the likelihood grows as the correlation matrix becomes singular "
    "(smallest eigenvalue {:.1e})."
)
SEPARATED = (
    "There is no maximum: the ordered categories are separated. The likelihood grows for ever "
    "along the direction of {}: no category becomes less likely the farther that goes. Drop the "
    "covariates that separate the categories, join categories, or use a prior in NumPyro."
)
OF_A_BOX = (
    "{}: a region that bounds ordered entries needs covariates with a constant, so that their "
    "first threshold is 0 and the region is in known units. Give a column of ones, or a tg.Box "
    "without bounds on these entries."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrdinalFit(RowsFit):
    """A regression of ordered outcomes, or the Gaussian behind them; `print` shows a table.

    Attributes, besides those of `fitting.RowsFit`:
        coefficients: of each outcome's covariates, d arrays.
        thresholds: the limits of the categories of each outcome; empty of one that is not ordered.
        covariance_matrix: of the latent outcomes given their covariates, (d, d).
        levels: the categories of each outcome that occur.
        rows: the rows with their categories.
    """

    coefficients: tuple[np.ndarray, ...]
    thresholds: tuple[np.ndarray, ...]
    covariance_matrix: np.ndarray
    levels: tuple[tuple[Any, ...], ...]
    rows: LatentRows = dataclasses.field(repr=False)

    @property
    def first_cuts(self) -> tuple[str, ...]:
        pairs = zip(self.rows.labels, self.levels)
        return tuple(f"cut[{label}][{level[0]}]" for label, level in pairs if level)

    def arrays_of(self, estimates: Any) -> dict[str, Any]:
        coefficients, cuts, covariance = self.coordinates.of_estimates(estimates)
        loc = None if self.designs else jnp.array([b[0] if len(b) else 0.0 for b in coefficients])
        arrays = {"coefficients": tuple(coefficients), "thresholds": cuts}
        return arrays | gaussian_arrays(loc, covariance)

    def rows_and_gaussian(self) -> tuple[Observations, np.ndarray, np.ndarray]:
        """The rows with their fitted limits, and the mean and covariance of their Gaussian."""
        lower, upper = map(as_float_array, self.rows.between(self.thresholds))
        known = self.rows.observations.with_known(lower=lower, upper=upper)
        if not self.designs:
            loc = np.array([b[0] if len(b) else 0.0 for b in self.coefficients])
        else:
            pairs = zip(self.designs, self.coefficients)
            loc = np.stack([part.values @ b for part, b in pairs], axis=1)
        return known, loc, self.covariance_matrix

    def entry(self, entry: Any, what: str) -> int:
        """The number of an ordered outcome, by number or name; the first one by default."""
        ordered = [j for j, level in enumerate(self.levels) if level]
        labels = self.rows.labels
        number = ordered[0] if entry is None else entry
        number = labels.index(number) if number in labels else number
        if isinstance(number, bool) or number not in ordered:
            words = ", ".join(labels[j] for j in ordered)
            raise ValueError(f"{what}: entry must be one of {words}, which have categories.")
        return int(number)

    def categories(self, entry: int, design: np.ndarray, estimates: Any) -> jax.Array:
        """The probability of each category of an outcome, (m, K), at covariates (m, p)."""
        coefficients, cuts, _ = self.coordinates.of_estimates(estimates)
        below = jax.scipy.special.ndtr(cuts[entry] - (design @ coefficients[entry])[:, None])
        return shares_between(below)

    @reported
    def predict(
        self, new: Any = None, kind: str = "category", *, entry: Any = None, level: float = 0.95,
        **settings: Any,
    ) -> Predictions:  # fmt: skip
        """Probabilities of the categories of an outcome, or predictions of latent outcomes.

        Args:
            new: covariates of m rows, see `RowsFit.predict`; for one table, of the outcome.
            kind: "category", the probability of each category; or a kind of
                `RowsFit.predict`, which is of the latent outcomes.
            entry: number or name of the outcome; by default the first ordered one.
            level: of the intervals.
            settings: of other kinds, as there.

        Returns:
            Predictions, with value (m, K) for categories.

        Example:
            >>> rows = tg.Ordinal([0, 1, 2, 1, 0, 2, 1, 2, 0, 1])
            >>> x = np.array([0.1, 0.6, 0.9, 0.2, 0.4, 0.8, 0.7, 0.3, 0.0, 0.5])[:, None]
            >>> fit = tg.fit_regression(rows, x)
            >>> fit.predict([[0.2], [0.8]]).value.round(2)
            array([[0.56, 0.4 , 0.05],
                   [0.02, 0.29, 0.69]])
        """
        if kind != "category":
            return super().predict(new, kind, entry=entry, level=level, **settings)
        check_settings_of_categories("predict", level, settings)
        j = self.entry(entry, "predict")
        with jax.enable_x64(True):
            design = np.zeros((1, 0))
            if self.designs and not isinstance(new, tuple | None):
                design = self.designs[j].read(new, "predict: new")
            elif self.designs or new is not None:
                design = designs_of(self, new, "predict: new")[j]
            labels = labels_of(self.observations if new is None and self.designs else new)
            of = functools.partial(self.categories, j, design)
            names = names_of_rows(labels, len(design))
            return of_categories(self, of, names, self.levels[j], level, logits=True)

    @reported
    def margins(
        self, at: Any = None, kind: str = "category", *, variables: Any = None,
        discrete: Any = None, average: bool = True, entry: Any = None, level: float = 0.95,
        **settings: Any,
    ) -> Predictions:  # fmt: skip
        """Marginal effects of covariates on the probabilities of categories: derivatives, and for
        dummies changes from 0 to 1; or on latent outcomes, as `RowsFit.margins`.

        Args:
            at, variables, discrete, average, level: see `RowsFit.margins`.
            kind: "category", or a kind of predictions of latent outcomes.
            entry: number or name of the outcome; by default the first ordered one.
            settings: of other kinds, as there.

        Returns:
            Predictions, with value (v, K) of v covariates, or (v, m, K) if not averaged.
        """
        if kind != "category":
            more = {"variables": variables, "discrete": discrete, "average": average, **settings}
            return super().margins(at, kind, level=level, **more)
        check_settings_of_categories("margins", level, settings)
        chosen = chosen_effects(self, variables, discrete)
        j = self.entry(entry, "margins")
        with jax.enable_x64(True):
            points = points_of(self, at)
            designs, weights = points.designs, points.weights
            moves = [move_of(self, points, *each) for each in chosen.values()]

            def effect(move: Any, estimates: Any) -> jax.Array:
                of = functools.partial(self.categories, j, estimates=estimates)
                change = effect_on(of, designs, j, *move)
                return weights @ change / weights.sum() if average else change

            of = lambda estimates: jnp.stack([effect(move, estimates) for move in moves])
            result = of_categories(self, of, tuple(chosen), self.levels[j], level)
        return dataclasses.replace(result, notes=(*result.notes, *each_column(self, chosen)))

    def probabilities(self, new: Any = None, entry: Any = None) -> Predictions:
        """The probability of each category of an outcome, (m, K), as `predict` has it."""
        return self.predict(new, entry=entry)


def check_settings_of_categories(what: str, level: Any, settings: dict[str, Any]) -> None:
    if settings:
        raise ValueError(f"{what}: categories take no {', '.join(settings)}.")
    check_share(level, f"{what}: level")


def fit_ordinal(
    rows: LatentRows,
    design: Any = None,
    covariance: Any = "full",
    what: str = "fit_observations",
    *,
    method: Method = Automatic(),
    key: Any = None,
    start: Any = None,
    **settings: Any,
) -> OrdinalFit:
    """The fit of rows with ordered entries, for `fit_regression` and `fit_observations`."""
    if isinstance(covariance, str):
        check_choice(
            covariance, STRUCTURES, f"{what}: with ordered outcomes covariance",
            " One correlation or one factor of repeated outcomes is a term of tg.fit_clusters.",
            OR_MATRIX,
        )  # fmt: skip
    with jax.enable_x64(True):
        each = settings["information"] == "sandwich"
        model = OrdinalModel.of(rows, design, covariance, what, method=method, key=key, each=each)
        x = None if start is None else model.as_start(start, what)
        fit: OrdinalFit = maximum_likelihood(model, start=x, **settings)
        return fit


# ---------------------------------------------------------------- coordinates


@frozen_pytree
class LatentCoordinates:
    """Free coordinates of coefficients, standard deviations, correlations and limits.

    x holds coefficients of orthogonal covariates; the logarithms of the differences of the limits
    of each ordered outcome, of which the first is 0; those of the standard deviations of outcomes
    that are not ordered; and Fisher's z of the correlation of each free pair.

    Attributes:
        inner: of whitened coefficients and the covariance.
        transform: coefficients of whitened covariates, and all limits but those that are 0, to the
            estimates of both, (p, p).
        shift: what is added to these, (p,).
        numbers: of each outcome's coefficients among the estimates (static).
        cuts: likewise of its limits, -1 of one that is 0; none where it is not ordered (static).
    """

    inner: GaussianCoordinates
    transform: jax.Array
    shift: jax.Array
    numbers: tuple[tuple[int, ...], ...] = static_field()
    cuts: tuple[tuple[int, ...], ...] = static_field()

    @property
    def sizes(self) -> list[int]:
        """The numbers of coefficients, and of the free limits of each outcome."""
        return [sum(self.inner.sizes), *(max(len(part) - 1, 0) for part in self.cuts)]

    def parts(self, x: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        """Coefficients of whitened covariates, and the limits of each outcome, the first 0; of
        numbers in NumPy."""
        xp = namespace(x)
        theta, *logs, _ = xp.split(x, np.cumsum(self.sizes))
        firsts = (xp.zeros(int(part != ())) for part in self.cuts)
        cuts = [xp.cumsum(xp.append(*both)) for both in zip(firsts, map(xp.exp, logs))]
        return theta, cuts

    def values(self, x: jax.Array) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """Coefficients of whitened covariates of each outcome, and the covariance matrix, NaN
        where it is none."""
        coefficients = jnp.split(x, np.cumsum(self.inner.sizes))[:-1]
        return tuple(coefficients), self.covariance(x)

    def covariance(self, x: Any) -> Any:
        """The covariance matrix; of numbers in NumPy."""
        return self.inner.covariance(x[len(self.shift) :])

    def estimates(self, x: jax.Array) -> jax.Array:
        theta, cuts = self.parts(x)
        moved = jnp.concatenate([theta, *(part[1:] for part in cuts)])
        logs, z = jnp.split(x[len(self.shift) :], [len(self.inner.scales)])
        return jnp.concatenate([self.transform @ moved + self.shift, jnp.exp(logs), jnp.tanh(z)])

    def free(self, estimates: jax.Array) -> jax.Array:
        """Free coordinates of coefficients and limits, of outcomes that are all ordered."""
        moved = jnp.linalg.solve(self.transform, estimates - self.shift)
        theta, *cuts = jnp.split(moved, np.cumsum(self.sizes)[:-1])
        return jnp.concatenate([theta, *(jnp.log(jnp.diff(part, prepend=0.0)) for part in cuts)])

    def of_estimates(self, estimates: Any) -> tuple[list[Any], list[Any], Any]:
        """Coefficients, limits and the covariance matrix of the vector of estimates; of numbers in
        NumPy."""
        xp, end = namespace(estimates), len(self.shift)
        padded = xp.append(estimates, 0.0)
        coefficients, cuts = (
            [padded[np.array(part, int)] for part in parts] for parts in (self.numbers, self.cuts)
        )
        scales, correlations = xp.split(estimates[end:], [len(self.inner.scales)])
        return coefficients, cuts, self.inner.covariance_of(scales, correlations)


# ---------------------------------------------------------------- the likelihood


@frozen_pytree
class LatentLoss(ObservationsLoss):
    """Minus the mean log-likelihood of a row, some of whose limits are parameters.

    Attributes, besides those of `ObservationsLoss`:
        codes: the number of each entry's level, -1 where there is none, (n, d).
        independent: whether the entries of a row are independent (static).
    """

    coordinates: Any
    codes: Any = None
    independent: bool = static_field(default=False)

    def rows_at(self, x: jax.Array) -> Observations:
        rows = LatentRows(self.codes, (), (), self.observations)
        lower, upper = rows.between(self.coordinates.parts(x)[1], jnp)
        return self.observations.with_known(lower=lower, upper=upper)

    def by_entries(self, x: jax.Array, limits: Any, exact: Any) -> jax.Array:
        """The log probability (density) of limits on independent entries, (n,)."""
        loc, covariance = self.gaussian(x)
        variance = jnp.diagonal(covariance)
        if self.observations.noise is not None:
            variance = variance + jnp.diagonal(self.observations.noise, axis1=-2, axis2=-1)
        low, high, scale = limits.lower, limits.upper, jnp.sqrt(variance)
        z = (jnp.where(exact, low, loc) - loc) / scale
        density = -0.5 * z**2 - jnp.log(scale) - LOG_SQRT_2PI
        low, high = jnp.where(exact, -jnp.inf, low), jnp.where(exact, jnp.inf, high)
        masses = log_interval_mass(*standardize(low, high, loc, scale))
        return jnp.sum(jnp.where(exact, density, masses), axis=1)

    def log_likelihoods(self, x: jax.Array) -> jax.Array:
        if not self.independent:
            return super().log_likelihoods(x)
        rows, exact = self.rows_at(x), self.observations.lower == self.observations.upper
        each = self.by_entries(x, rows.data_limits(), exact)
        if rows.region is not None:
            each -= self.by_entries(x, rows.region_limits(), False)
        return each if rows.weights is None else rows.weights * each

    def total(self, x: jax.Array) -> Estimate:
        if not self.independent:
            return super().total(x)
        total = jnp.sum(self.log_likelihoods(x))
        return Estimate(total, jnp.zeros_like(total))

    @property
    def iterated(self) -> bool:
        return not self.independent and not set(self.methods or [""]) <= {"1"}

    def steps(self, x: np.ndarray) -> np.ndarray | None:
        return np.full(len(x), STEP) if self.iterated and self.smooth else None


@frozen_pytree
class OneOrderedLoss(LatentLoss):
    """The loss of one ordered outcome: the log mass of each row's interval depends on two numbers
    that are linear in coefficients and cuts, its lower end less the mean, and its width."""

    def derivatives(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        def linear(x: jax.Array) -> jax.Array:
            theta, cuts = self.coordinates.parts(x)
            return jnp.concatenate([theta, cuts[0]])

        known, (design,) = self.rows_at(x), self.designs or ()
        low, high, width = standardize(
            known.lower[:, 0], known.upper[:, 0], design @ x[: design.shape[1]]
        )
        of = log_mass_and_slopes(low, high, width)
        nearest = jnp.maximum(jnp.maximum(low, -high), 0.0)
        value, high = of.relative_log - 0.5 * nearest**2, jnp.where(jnp.isinf(high), 0.0, high)
        weights = jnp.ones_like(value) if known.weights is None else known.weights
        # A row's derivatives by a shift s of both ends, and by the width t.
        by_s, by_ss = -weights * of.mean, weights * (of.spread - of.mean**2)
        by_t, by_st, by_tt = weights * of.at_high * jnp.stack(
            [jnp.ones_like(high), of.mean - high, -(high + of.at_high)]
        )  # fmt: skip
        kinds = np.arange(len(self.coordinates.cuts[0]))
        below, above = (jnp.asarray(self.codes - one == kinds, x.dtype) for one in (1, 0))
        shift, wide = jnp.hstack([-design, below]), jnp.hstack([0.0 * design, above - below])
        cross = shift.T @ (by_st[:, None] * wide)
        hessian = shift.T @ (by_ss[:, None] * shift) + cross + cross.T
        hessian += wide.T @ (by_tt[:, None] * wide)
        gradient, jacobian = by_s @ shift + by_t @ wide, jax.jacfwd(linear)(x)
        bent = jax.hessian(lambda x: gradient @ linear(x))(x)
        parts = weights @ value, gradient @ jacobian, jacobian.T @ hessian @ jacobian + bent
        value, slope, curvature = (-part / self.size for part in parts)
        return value, slope, curvature


# ---------------------------------------------------------------- the model


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrdinalModel(Model):
    """Rows with ordered entries.

    Attributes, besides those of `Model`:
        centred: rows as they are fitted, with whitened covariates of each outcome.
        designs: covariates of the user; empty without any.
        first: free coordinates to begin with.
        each: whether the scores of single rows are asked for.
        rising: why there is no maximum, if the observations are separated.
    """

    rows: LatentRows
    centred: Centred
    designs: tuple[Covariates, ...]
    inner: LatentCoordinates
    first: np.ndarray
    names: tuple[str, ...]
    weights: np.ndarray
    num_rows: float
    method: Method
    key: Any
    each: bool
    rising: str | None
    undetermined_reason = FLAT

    @classmethod
    def of(cls, rows: LatentRows, design: Any, covariance: Any, what: str, **more: Any) -> Self:
        """The model, checked."""
        known = floats_as_float64(rows.observations)
        designs, white = covariates_of(rows, design, what)
        sizes = tuple(part.columns.shape[1] for part in white)
        implicit = [size > len(part.names) for size, part in zip(sizes, designs)]
        if not isinstance(covariance, str):
            matrix, shape = np.array(covariance, float), (len(sizes),) * 2
            if matrix.shape != shape:
                raise ValueError(f"{what}: covariance must have shape {shape}, got {matrix.shape}.")
            scales = np.diagonal(matrix)[[bool(level) for level in rows.levels]]
            if not np.all(np.isnan(scales) | (scales == 1.0)):
                raise ValueError(
                    f"{what}: the variances of ordered outcomes are 1, as categories do not tell "
                    f"them; the covariance must have 1 or NaN there, got {scales}."
                )
        free = as_coordinates(covariance, sizes, known)
        pairs = dataclasses.replace(
            free,
            scales=tuple(j for j in free.scales if not rows.levels[j]),
            pairs=tuple(sorted((j, i) for i, j in free.pairs)),
        )
        moved = centred(known, tuple(white), pairs.known_scale, False)
        inner, names = coordinates_of(rows, designs, implicit, moved, pairs)
        if known.region is not None and any(implicit):
            box, some = known.box, np.flatnonzero(implicit)
            if box is None or np.isfinite([box.low[..., some], box.high[..., some]]).any():
                raise ValueError(OF_A_BOX.format(what))  # in unknown units
        model = cls(
            rows=rows, centred=moved, designs=() if design is None else tuple(designs),
            inner=inner, first=start_of(rows, moved, pairs, what), names=names,
            weights=known.row_weights, num_rows=moved.rows.weight,
            rising=separation(rows, designs, inner, names), **more,
        )  # fmt: skip
        if model.num_rows <= len(model.first):
            raise ValueError(
                f"{what}: {model.num_rows:g} observation(s) cannot determine {len(model.first)} "
                "parameters; more are needed, or fewer covariates."
            )
        wrong = impossible(known) if known.box is not None else np.zeros(0, int)
        if len(wrong):
            raise ValueError(
                f"{what}: {len(wrong)} observation(s) are impossible, first row {wrong[0]}: they "
                "do not meet their region. Correct the region, or remove those observations."
            )
        return model

    @property
    def coordinates(self) -> LatentCoordinates:
        return self.inner

    @property
    def unique(self) -> bool:
        """Whether there is one outcome, whose likelihood is concave in coefficients and limits."""
        rows = self.centred.rows
        return len(self.inner.cuts) == 1 and rows.region is None and rows.noise is None

    @property
    def independent(self) -> bool:
        """Whether the entries of each row are independent, so that no integral is needed."""
        rows, inner = self.centred.rows, self.inner.inner
        matrices = [np.asarray(x) for x in (inner.fixed, rows.noise) if x is not None]
        linked = any(np.any(x * (1.0 - np.eye(rows.dimension))) for x in matrices)
        return bool(rows.has_limits_alone and not inner.pairs and not linked)

    @property
    def expensive(self) -> bool:
        return not self.independent and bool(self.centred.limited.max() > 2)

    def as_start(self, start: Any, what: str) -> np.ndarray:
        """Free coordinates of the user's estimates."""
        values = np.array(arrays_of_start(what, start, self.names), float)
        count, scales = len(self.inner.shift), len(self.inner.inner.scales)
        rest = np.split(values[count:], [scales])
        with np.errstate(all="ignore"):
            mean = self.inner.free(jnp.asarray(values[:count]))
            x = np.concatenate([mean, np.log(rest[0]), np.arctanh(rest[1])])
        if not np.all(np.isfinite(x)):
            raise ValueError(
                f"{what}: start must have finite numbers, rising cuts, positive deviations and "
                f"correlations between -1 and 1, got {dict(zip(self.names, values.tolist()))}."
            )
        return x

    # ---------------------------------------------------------------- losses

    @functools.cached_property
    def plain_loss(self) -> LatentLoss:
        """The loss of rows of which equal ones are counted once, by a method without plans."""
        rows, codes = self.centred.rows, self.rows.codes
        designs = [part.design for part in self.centred.designs or ()]
        alone = rows.region is not None and rows.region.batch_shape != ()
        alone |= rows.noise is not None and rows.noise.ndim == 3
        if not self.each and not alone:
            ends = np.asarray(rows.lower), np.asarray(rows.upper)
            counted = np.flatnonzero(~is_empty(*ends) & (self.weights > 0))
            table = np.column_stack([codes, *ends, *designs])[counted]
            first, kind = unique_rows(table)
            totals, some = np.bincount(kind, self.weights[counted]), counted[first]
            sides = (as_float_array(end[some]) for end in ends)
            rows = dataclasses.replace(
                rows, lower=next(sides), upper=next(sides), weights=as_float_array(totals)
            )
            codes, designs = codes[some], [x[some] for x in designs]
        rows, codes, designs = filled_up(rows, codes, tuple(map(as_float_array, designs)))
        return (OneOrderedLoss if self.unique else LatentLoss)(
            rows, designs, self.inner, jnp.asarray(self.num_rows), self.method, as_key(self.key),
            codes=jnp.asarray(codes), independent=self.independent,
        )  # fmt: skip

    def loss_at(self, x: np.ndarray) -> LatentLoss:
        loss = self.plain_loss
        return loss if loss.independent else loss.held_at(x, np.inf)

    def loss_that_reaches(self, x: np.ndarray) -> LatentLoss:
        return self.plain_loss.held_at(x, 0.0)

    def undetermined(self, path: Path, errors: np.ndarray) -> np.ndarray:
        """A mask of correlations whose likelihood is flat up to 1 or -1, as of tables with empty
        cells."""
        correlations = np.arange(len(errors)) >= len(errors) - len(self.inner.inner.pairs)
        return correlations & ~(errors < LARGEST)

    def starts(self, count: int | None) -> list[np.ndarray]:
        turned = [self.first.copy() for _ in range(1, count or 1)]
        random, number = np.random.default_rng(0), len(self.inner.inner.pairs)
        for x in turned:
            x[len(x) - number :] = random.normal(size=number)
        return [self.first, *turned]

    # ---------------------------------------------------------------- the end of a path

    def wald_coverages(self, path: Path, total: Any, errors: Any, compare: Any) -> Any:
        return (np.zeros(0), (NOT_COMPARED,)) if self.expensive else (compare(), ())

    def judged(self, path: Path, total: Any, converged: bool) -> tuple[float, None]:
        loss, x = path.loss, jnp.asarray(path.end.x)
        if loss.observations.region is None:
            return 1.0, None
        if loss.independent:
            seen = np.exp(loss.by_entries(x, loss.observations.region_limits(), False))
        else:
            at = loss.rows_at(x), *loss.gaussian(x), loss.method, loss.key
            seen = np.asarray(fraction_not_truncated(*at))
        return float(np.average(seen, weights=loss.observations.row_weights)), None

    def obstacle(self, path: Path) -> str | None:
        if self.rising is not None:
            return self.rising
        covariance = self.inner.covariance(path.end.x)
        root = np.sqrt(np.diagonal(covariance))
        correlation = covariance / np.outer(root, root)
        least = float(np.linalg.eigvalsh(correlation)[0])
        if least < NO_ERROR:
            return SINGULAR.format(least)
        rest = float(np.diagonal(np.linalg.inv(correlation)).max()) ** -0.5
        by_quadrature = self.centred.limited.max() > 1 and isinstance(self.method, Automatic)
        if rest < NEARLY_ONE and by_quadrature and not self.independent:
            return UNRESOLVED.format(rest, NEARLY_ONE)
        return None

    def notes(self, ending: Ending, common: tuple[str, ...], path: Path) -> tuple[str, ...]:
        first = (FIRST_CUT,) * any(-1 in part for part in self.inner.cuts)
        unused = zip(self.rows.labels, self.rows.unused)
        words = (UNUSED.format(label, ", ".join(map(str, part))) for label, part in unused if part)
        rows = self.rows.observations
        lost = is_empty(np.asarray(rows.lower), np.asarray(rows.upper))[rows.row_weights > 0]
        left = (LEFT_OUT.format(lost.sum(), len(lost)),) * bool(lost.any())
        return (*common, PROBIT_SCALE, *first, *words, *left, *self.centred.notes)

    def result(self, ending: Ending, path: Path) -> OrdinalFit:
        coefficients, cuts, covariance = self.inner.of_estimates(ending.estimates)
        return OrdinalFit(
            **vars(ending),
            standard_errors=ending.errors,
            observations=self.rows.observations,
            designs=self.designs,
            coefficients=tuple(coefficients),
            thresholds=tuple(cuts),
            covariance_matrix=covariance,
            levels=self.rows.levels,
            rows=self.rows,
        )


# ---------------------------------------------------------------- inputs


def covariates_of(
    rows: LatentRows, design: Any, what: str
) -> tuple[list[Covariates], list[Whitened]]:
    """The user's covariates of each outcome, and these whitened, behind a constant where the
    outcome is ordered and they have none."""
    n, d = rows.codes.shape
    if design is None:  # a constant mean of outcomes that are not ordered
        constants = [("constant",) * (not level) for level in rows.levels]
        read = [Table(np.ones((n, len(names))), names) for names in constants]
    else:
        read = each_design(design, what)[0]
    read = read * d if len(read) == 1 else read
    values = [np.asarray(table.values, float) for table in read]
    check_designs(values, n, d, what, "design")
    parts, white = [], []
    for j, (table, part, level) in enumerate(zip(read, values, rows.levels)):
        names = tuple(map(str, range(part.shape[1]) if table.names is None else table.names))
        parts.append(Covariates(part, names, table.names is not None, table.encoder))
        added = bool(level) and (not part.shape[1] or constant_of(part) is None)
        columns = np.hstack([np.ones((n, int(added))), part])
        table = Table(columns, ("constant",) * added + names)
        words = f"{what}: the columns of the design of outcome {j}"
        white.append(whitened(table, rows.observations.row_weights, words))
    return parts, white


def coordinates_of(
    rows: LatentRows,
    designs: list[Covariates],
    implicit: list[bool],
    moved: Centred,
    pairs: GaussianCoordinates,
) -> tuple[LatentCoordinates, tuple[str, ...]]:
    """The free coordinates, and the names of the estimates. A constant that was added is no
    estimate: it is subtracted from the limits."""
    names, numbers, cuts, labels = list[str](), [], [], rows.labels
    for label, part in zip(labels, designs):
        outcome = "" if len(labels) == 1 else f"[{label}]"
        known = not outcome and part.named
        numbers.append(tuple(range(len(names), len(names) + len(part.names))))
        names += [x if known else f"coefficients{outcome}[{x}]" for x in part.names]
    for label, level, added in zip(labels, rows.levels, implicit):
        zero = bool(level) and not added
        free = level[int(zero) : -1]
        cuts.append((-1,) * zero + tuple(range(len(names), len(names) + len(free))))
        names += [f"cut[{label}][{x}]" for x in free]
    transform, shift, begin = np.zeros((len(names), len(names))), np.zeros(len(names)), 0
    end = sum(pairs.sizes)
    for j, added in enumerate(implicit):
        whole, middle = moved.transform_of(j), moved.shifts[j]
        chosen, columns = np.array(numbers[j], int), slice(begin, begin + len(whole))
        transform[chosen, columns], shift[chosen] = whole[int(added) :], middle[int(added) :]
        if added:
            transform[cuts[j], columns], shift[list(cuts[j])] = -whole[0], -middle[0]
        later = list(cuts[j][1:])
        transform[later, range(end, end + len(later))] = 1.0
        begin, end = begin + len(whole), end + len(later)
    inner = LatentCoordinates(
        pairs, as_float_array(transform), as_float_array(shift), tuple(numbers), tuple(cuts)
    )
    names += [f"sigma[{labels[j]}]" for j in pairs.scales]
    names += [f"correlation[{labels[i]}, {labels[j]}]" for i, j in pairs.pairs]
    return inner, tuple(names)


def start_of(rows: LatentRows, moved: Centred, pairs: GaussianCoordinates, what: str) -> np.ndarray:
    """Least squares of what is known, of ordered entries by the mean of a standard normal variable
    within their limits, which come from the shares of the categories."""
    lower, upper = (np.array(side) for side in (moved.rows.lower, moved.rows.upper))
    limits: list[np.ndarray] = []
    for j in (j for j, level in enumerate(rows.levels) if level):
        seen = rows.codes[:, j] >= 0
        ends = lower[seen, j], upper[seen, j]
        cuts = np.unique(ends[1][np.isfinite(ends[1])])
        limits.append(np.log(np.diff(cuts)))
        densities = np.subtract(*(np.exp(-0.5 * end**2) for end in ends)) / np.sqrt(2.0 * np.pi)
        shares = np.subtract(*map(special.ndtr, ends))
        lower[seen, j] = upper[seen, j] = -densities / shares - cuts[0]
    scored = moved.rows.with_known(lower=lower, upper=upper)
    guess, _ = first_guess(scored, moved.covariates, pairs, what)
    end = sum(pairs.sizes)
    return np.concatenate([guess[:end], *limits, guess[end:]])


def separation(
    rows: LatentRows, designs: list[Covariates], inner: LatentCoordinates, names: tuple[str, ...]
) -> str | None:
    """The direction of coefficients and limits along which no row becomes less likely, in words.

    Row i with level k has tau_(k-1) < x_i b + e < tau_k: each limit is half a line for a linear
    function of b and tau.
    """
    tables, weights = [], rows.observations.row_weights
    for j, numbers in enumerate(inner.cuts):
        codes = rows.codes[:, j]
        for side in (0, 1):  # the lower limit of a level, and the upper
            limited = (codes >= 1 - side) & (codes < len(numbers) + 1 - side)
            some = np.flatnonzero(limited & (weights > 0))
            table = np.zeros((len(some), len(inner.shift) + 1))  # the last of limits that are 0
            table[:, list(inner.numbers[j])] = designs[j].values[some]
            table[np.arange(len(some)), np.array(numbers, int)[codes[some] - 1 + side]] -= 1.0
            table = table[:, :-1] * (1 - 2 * side)
            tables.append(table[unique_rows(table)[0]])
    table = np.concatenate(tables)
    used = np.flatnonzero(np.any(table != 0, axis=0))
    if not len(used):
        return None
    zeros = np.zeros((len(table), 1))
    half = Observations(as_float_array(zeros), as_float_array(zeros + np.inf))
    direction = direction_of(half, 0, table[:, used], True, True)
    if direction is None:
        return None
    slopes = direction[:-1] / np.abs(direction[:-1]).max()
    parts = zip(slopes, (names[k] for k in used))
    return SEPARATED.format(", ".join(f"{b:.3g} in {name}" for b, name in parts if b))
