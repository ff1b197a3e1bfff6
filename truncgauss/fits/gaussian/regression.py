"""Regression of one outcome that is censored, truncated, known to intervals, or noisy."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import tables
from truncgauss.arrays import parallel
from truncgauss.arrays.progress import reported
from truncgauss.arrays.pytrees import as_float_array
from truncgauss.covariates.predictions import Covariates
from truncgauss.covariates.rows_fit import RowsFit
from truncgauss.covariates.whitening import Whitened
from truncgauss.fits.gaussian.centring import UserUnits
from truncgauss.fits.gaussian.gaussian_starts import as_designs
from truncgauss.fits.gaussian.observations_fit import GaussianRows
from truncgauss.fits.gaussian.one_outcome import LOG, RegressionLoss, full_design
from truncgauss.fits.gaussian.rising import impossible
from truncgauss.fits.gaussian.sample import limits_of_box
from truncgauss.fits.recorded import beyond_alone, censored_ends, recorded_from
from truncgauss.fitting.derived import Estimates
from truncgauss.fitting.descent import Path
from truncgauss.fitting.engine import check_settings, maximum_likelihood
from truncgauss.fitting.existence import COMPARED, NO_VARIANCE, explained
from truncgauss.fitting.least_squares import least_squares
from truncgauss.fitting.likelihood_fit import Ending
from truncgauss.fitting.model import arrays_of_start
from truncgauss.fitting.newton import point
from truncgauss.fitting.widening import WIDEST
from truncgauss.gaussian.regions.box import Box
from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.ordinal import Ordinal

if TYPE_CHECKING:
    from truncgauss.fits.gaussian.ordinal_fit import OrdinalFit


TILT = 1.5  # of the log scale along a covariate of unit spread, in further starts


class RegressionErrors(NamedTuple):
    """Standard errors of the coefficients (p,) and of those of the log scale (k,)."""

    coefficients: np.ndarray
    log_scale: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressionFit(RowsFit):
    """The regression behind one outcome, and how far to trust it; `print` shows a table.

    Attributes, besides those of `fitting.RowsFit`:
        coefficients: of the covariates, (p,).
        log_scale: the log of sigma, (1,), or its coefficients with a `scale_design`, (k,).
        standard_errors: `.coefficients` and `.log_scale` likewise; inf where the data do not
            identify it.
    """

    coefficients: np.ndarray
    log_scale: np.ndarray
    standard_errors: RegressionErrors

    @property
    def scale(self) -> float:
        """Sigma, where it is one number."""
        if not self.names[-1] == "sigma":
            raise AttributeError("scale: it depends on covariates; see log_scale.")
        return float(self.estimates[-1])

    @property
    def array_constants(self) -> Any:
        return len(self.coefficients)

    @property
    def names_of_start(self) -> tuple[str, ...]:
        return "coefficients", "log_scale"

    def arrays_of(self, estimates: Any) -> dict[str, Any]:
        coefficients, rest = jnp.split(estimates, [len(self.coefficients)])
        if self.names[-1] != "sigma":
            return {"coefficients": coefficients, "log_scale": rest}
        scale = {"log_scale": jnp.log(rest), "scale": rest[0]}
        return {"coefficients": coefficients, **scale, "covariance": rest[:, None] ** 2}


@overload
def fit_regression(outcome: Ordinal, *args: Any, **settings: Any) -> "OrdinalFit": ...


@overload
def fit_regression(outcome: Any, *args: Any, **settings: Any) -> RegressionFit: ...


@reported
def fit_regression(
    outcome: Any,
    design: Any = None,
    *,
    data: Any = None,
    censored_low: Any = None,
    censored_high: Any = None,
    truncated_low: Any = None,
    truncated_high: Any = None,
    region: Box | None = None,
    scale_design: Any = None,
    noise: Any = None,
    weights: Any = None,
    start: Mapping[str, Any] | None = None,
    num_steps: int = 100,
    num_starts: int | None = None,
    information: str = "observed",
    cluster: Any = None,
    num_profiles: int = 10,
    progress: bool = True,
) -> Any:
    """Maximum likelihood of a Gaussian regression whose outcome is not fully observed.

    For row i the outcome is y_i ~ Normal(x_i . b, sigma_i^2), with one sigma or with
    log sigma_i = z_i . g. It is known exactly, up to an interval, or as being beyond a limit
    (censoring: the Tobit model), and rows outside the limits of truncation are not in the data at
    all. Likelihoods are those of `tg.Observations`; Hessians are exact. Series and DataFrames of
    pandas go by the labels of their rows, arrays by position.

    All options go together, but for `region` with `truncated_low` and `truncated_high`, and a
    `tg.Ordinal` with these, `censored_low`, `censored_high`, `scale_design` and `noise`. A
    `cluster` needs information="sandwich".

    Args:
        outcome: shape (n,), or (n, 2) for the lower and upper ends of intervals, which are equal
            where a value is known and infinite where a side is open; or a formula such as
            "hours ~ wage * children", which has the design too, see `tables.formula`; or a
            `tg.Ordinal`, whose limits are estimated: an ordered probit.
        design: covariates x_i, (n, p), with a column of ones if a constant is meant; a table's
            column names become those of the estimates.
        data: the table of a formula's columns.
        censored_low: a number, (n,) or the name of a column of the data, in the outcome's own
            units: outcomes at or below it are only known to be that low.
        censored_high: likewise: only known to be that high.
        truncated_low: likewise: rows with an outcome below it are absent.
        truncated_high: likewise, above.
        region: in place of both, a `tg.Box` of one dimension, with limits (1,), or (n, 1) for each
            row.
        scale_design: covariates z_i of log sigma, (n, k), with a column of ones if a constant is
            meant, or a formula; by default sigma is one number.
        noise: variances of measurement errors, a number, (n,) or the name of a column, added to
            sigma^2.
        weights: how often each row counts, (n,) or the name of a column.
        start: {"coefficients": (p,), "log_scale": (1,) or (k,)} to begin with, of ordered outcomes
            estimates by `names`; as `dict(fit.parameters())` of another fit.
        num_steps: the most Newton steps from each start.
        num_starts: from how many points to begin, the first by least squares, the others drawn
            around it. By default 1 if the likelihood has one maximum or the rows are more than
            100,000, else 4. What the others found stands in `notes`.
        information: what standard errors come from: "observed" or "sandwich", see
            `fit_observations`.
        cluster: labels (n,) of groups of rows that may depend on each other, such as the visits of
            a patient, or the name of a column of the data; with information="sandwich", whose
            errors then hold for many groups, with the factor G / (G - 1) of their number G.
        num_profiles: up to how many estimates get a profile interval in the table at once, see
            `fit_observations`.
        progress: say on standard error what goes on, such as compiling, or the log-likelihood after
            each step, if the fit takes more than a second: in one line on a terminal, else in few.

    Returns:
        RegressionFit, or OrdinalFit of a `tg.Ordinal`.

    Raises:
        ValueError: for rows outside their truncation limits, limits that contradict each other,
            NaN, collinear covariates, or no more rows than parameters. Nothing is dropped silently.

    Example:
        >>> hours = [0.0, 0.0, 1.2, 0.0, 2.3, 0.4, 3.1, 1.9]  # 0 stands for 0 or less
        >>> design = {"constant": [1.0] * 8, "wage": [1, 2, 3, 2, 5, 3, 6, 4]}
        >>> fit = tg.fit_regression(hours, design, censored_low=0.0)
        >>> fit.names, fit.coefficients.round(3), round(fit.scale, 3)
        (('constant', 'wage', 'sigma'), array([-1.855,  0.851]), 0.3)

    References:
        Tobin, "Estimation of relationships for limited dependent variables", Econometrica (1958).
        Messner, Mayr and Zeileis, "Heteroscedastic censored and truncated regression with crch",
            The R Journal (2016).
    """
    what = "fit_regression"
    check_settings(information, num_profiles, cluster)
    data, outcome, design, scale_design, noise, weights, cluster, *limits = tables.in_one_order(
        what, data=data, outcome=outcome, design=design, scale_design=scale_design,
        noise=noise, weights=weights, cluster=cluster, censored_low=censored_low,
        censored_high=censored_high, truncated_low=truncated_low, truncated_high=truncated_high,
    )  # fmt: skip
    index = tables.labels_of(
        (data, outcome, design, scale_design, noise, weights, cluster, *limits)
    )
    limits = [tables.bounds_or(limit, outcome, data, what) for limit in limits]
    noise, weights = (tables.column_or(part, data, what) for part in (noise, weights))
    settings = dict(
        num_steps=num_steps, num_starts=num_starts, information=information,
        num_profiles=num_profiles, progress=progress,
        cluster=tables.column_or(cluster, data, "fit_regression: cluster"),
    )  # fmt: skip
    if ordered := tables.ordered_outcome(outcome, design, data):
        name, outcome, design = ordered
        outcome = Ordinal(outcome, name=name)
    if isinstance(outcome, Ordinal):
        if any(each is not None for each in (*limits, region, scale_design, noise)):
            raise ValueError(f"{what}: a tg.Ordinal takes no other bounds, scale_design or noise.")
        rows = Observations.of([outcome], weights)
        design = tables.by_formula(None, design, data, what)[1]
        from truncgauss.fits.gaussian.ordinal_fit import fit_ordinal  # which others do not need

        return fit_ordinal(rows, design, "diagonal", what, start=start, **settings)
    if isinstance(outcome, Observations):
        raise ValueError(
            f"{what}: the outcome is tg.Observations, which hold their bounds themselves. "
            "Give them to tg.fit_observations, with the design."
        )
    tables.check_outcome(outcome, design, what, data)
    name = outcome.partition("~")[0].strip() if isinstance(outcome, str) else ""
    made = tables.made_by(outcome, data)
    outcome, design = tables.by_formula(outcome, design, data, what)
    if design is None:
        raise ValueError(f"{what}: needs a design, or a formula as the outcome, and data.")
    scale_design = tables.by_formula(None, scale_design, data, what)[1]
    names = "truncated_low and truncated_high"
    ends = limits_of_box(what, region, (limits[2], limits[3]), names)
    if region is not None:
        if region.dimension != 1:
            raise ValueError(f"{what}: region must have one dimension, got {region.dimension}.")
        ends = ends[0][..., 0], ends[1][..., 0]
    inputs = outcome, (*limits[:2], *ends), noise, weights, design, scale_design
    with jax.enable_x64(True):
        observed, censoring, recorded, covariates, of_scale = read(*inputs, name, data)
        notes = beyond_alone(outcome, outcome, censoring) if made else ()
        columns = covariates.values, None if of_scale is None else of_scale.values
        every = observed, censoring, columns, start
        parallel.agreed(f"{what}: rows, covariates and start", every)
        model = regression_of(observed, censoring, recorded, covariates, of_scale)
        begin = None if start is None else model.as_start(start)
        fit: RegressionFit = maximum_likelihood(model, start=begin, **settings)
    return dataclasses.replace(fit.with_labels(index), notes=(*fit.notes, *notes))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regression(GaussianRows):
    """Rows of one outcome, whose limits of censoring are known.

    Attributes, besides those of `GaussianRows`:
        censoring: limits (2, n) beyond which outcomes are not seen, in the user's units.
    """

    censoring: np.ndarray

    def check(self) -> None:
        rows = self.observations
        if len(self.first) >= rows.num_known:
            raise ValueError(
                f"fit_regression: {rows.num_known} observation(s) cannot determine "
                f"{len(self.first)} parameters; more are needed, or fewer covariates."
            )
        wrong = impossible(rows)
        if len(wrong):
            first, shape = wrong[0], rows.lower.shape
            ends = rows.region_limits(np)[:2]
            low, high = (np.broadcast_to(np.asarray(end), shape)[first] for end in ends)
            scale = f" {COMPARED.format('Bounds')}" * (len(wrong) == rows.num_rows)
            raise ValueError(
                f"fit_regression: {len(wrong)} of {rows.num_rows} observation(s) lie outside their "
                f"bounds of truncation, first row {first}: lower {rows.lower[first]}, upper "
                f"{rows.upper[first]}, where outcomes are between {low[0]:g} and {high[0]:g}. "
                "Correct the bounds, or remove those observations; what is recorded at a bound is "
                f"censored, not truncated.{scale}"
            )

    @property
    def num_coefficients(self) -> int:
        return self.inner.sizes[0]

    def as_start(self, start: Any) -> np.ndarray:
        """Free coordinates of the user's coefficients and those of the log scale."""
        parts = arrays_of_start("fit_regression", start, ("coefficients", "log_scale"))
        p, k = self.num_coefficients, len(self.first) - self.num_coefficients
        coefficients, log_scale = (np.atleast_1d(np.asarray(part, float)) for part in parts)
        if coefficients.shape != (p,) or log_scale.shape != (k,):
            raise ValueError(
                f"fit_regression: start must have coefficients and log_scale of shapes ({p},) and "
                f"({k},), got {coefficients.shape} and {log_scale.shape}."
            )
        if not (np.all(np.isfinite(coefficients)) and np.all(np.isfinite(log_scale))):
            raise ValueError("fit_regression: start must be finite.")
        return self.free(coefficients, log_scale)

    def free(self, coefficients: np.ndarray, log_scale: np.ndarray) -> np.ndarray:
        return self.coordinates.free(coefficients, np.exp(2.0 * log_scale)[:, None])

    def with_scales(self, scales: Whitened) -> "HeteroscedasticRegression":
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        p, log_scale = self.num_coefficients, np.full(len(scales.design), np.log(self.scale[0]))
        first = least_squares(scales.design, log_scale)
        names = (f"log_scale[{name}]" for name in scales.names or range(len(scales.transform)))
        fields |= {
            "names": (*self.names[:p], *names),
            "unique": False,
            "may_fall": scales.constant is not None,
            "num_fitted": p + len(first) - 1,
            "first": np.append(self.first[:p] / self.first[p], first),
        }
        return HeteroscedasticRegression(**fields, scales=scales)

    def result(self, ending: Ending, path: Path) -> RegressionFit:
        p = self.num_coefficients
        scale, error = ending.estimates[p:], ending.errors[p:]
        if self.names[-1] == "sigma":
            scale, error = np.log(scale), error / scale
        low, high = (
            float(side[0]) if np.all(side == side[0]) and np.isfinite(side[0]) else None
            for side in self.censoring[:, self.observations.row_weights > 0]
        )
        return RegressionFit(
            **vars(ending),
            **self.kept_rows,
            limits=(low, high),
            coefficients=ending.estimates[:p],
            log_scale=scale,
            standard_errors=RegressionErrors(ending.errors[:p], error),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeteroscedasticRegression(Regression):
    """Rows of one outcome whose log scale is linear in covariates of its own.

    Attributes, besides those of `Regression`:
        scales: whitened covariates of the log scale.
    """

    scales: Whitened
    precision = None

    @property
    def coordinates(self) -> UserUnits:
        return self.centred.coordinates(Estimates(), self.scales.transform)

    def free(self, coefficients: np.ndarray, log_scale: np.ndarray) -> np.ndarray:
        return self.coordinates.inwards(np.append(coefficients, log_scale))

    def starts(self, count: int | None) -> list[np.ndarray]:
        """By default also with a scale that rises or falls by one covariate after the other: where
        rows are truncated, little may tell that from a slope of the mean."""
        starts, p, k = super().starts(count), self.num_coefficients, len(self.scales.transform)
        tilts = np.pad(np.vstack([np.eye(k), -np.eye(k)]), ((0, 0), (p, 0)))
        several = count is None and len(starts) > 1
        return starts + [self.first + TILT * tilt for tilt in tilts if several]

    def scattered(self, count: int) -> list[np.ndarray]:
        random, p, k = np.random.default_rng(0), self.num_coefficients, len(self.scales.transform)
        sizes = np.append(np.full(p, self.scale[0]), np.ones(k))
        return [self.first + sizes * random.normal(size=p + k) for _ in range(count)]

    def widened(self, x: np.ndarray, factors: Any, moves: Any = 0.0) -> np.ndarray:
        rows, p = self.scales.design, self.num_coefficients
        wider = least_squares(rows, np.full(len(rows), np.log(factors)))
        return x + np.append(np.full(p, moves), wider)

    def one_outcome_loss(self) -> RegressionLoss:
        design = full_design(self.scales.design)
        return dataclasses.replace(super().one_outcome_loss(), scale_design=design, link=LOG)

    def scales_at(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.exp(self.scales.design @ x[self.num_coefficients :])[:, None]

    def is_endless(self, x: np.ndarray) -> bool:
        return bool(np.all(self.scales_at(x) > WIDEST * self.scale))

    def explained(self, path: Path) -> bool:
        p, scales = self.num_coefficients, self.scales_at(path.end.x)[:, 0]
        columns = np.column_stack([np.log(scales), (scales / self.scale) ** 2 < NO_VARIANCE])
        loss = dataclasses.replace(path.loss, scale_design=full_design(columns))

        def log_likelihood(factor: float) -> float:
            x = np.append(path.end.x[:p], [1.0, np.log(factor)])
            return -float(loss.size) * point(loss, x).loss

        return explained(log_likelihood)

    @property
    def kept_rows(self) -> dict[str, Any]:
        kept, scales = super().kept_rows, Covariates.of(self.scales)
        return kept | {"designs": (*kept["designs"], scales)}


def regression_of(
    rows: Observations,
    censoring: np.ndarray,
    recorded: str,
    design: tables.Table,
    scales: tables.Table | None,
) -> Regression:
    """The model of rows with covariates, and those of the log scale, checked."""
    weights, what = None if rows.weights is None else np.asarray(rows.weights), "fit_regression"

    def columns(table: tables.Table, name: str) -> Whitened:
        checked = as_designs(table, rows.num_rows, 1, weights, what, name)
        assert checked is not None
        return checked[0]

    model = Regression.of(
        rows, (columns(design, "design"),), "full", what=what, censoring=censoring,
        recorded=recorded,
    )  # fmt: skip
    if scales is not None:
        model = model.with_scales(columns(scales, "scale_design"))
    model.check()
    return model


def read(
    outcome: Any, limits: tuple[Any, ...], noise: Any, weights: Any, design: Any,
    scale_design: Any, name: str = "", data: Any = None,
) -> tuple[Observations, np.ndarray, str, tables.Table, tables.Table | None]:  # fmt: skip
    """The observations, the limits (2, n) at or beyond which no value is seen, words on the numbers
    that stand for outcomes, the covariates, and those of the log scale, checked; `name` is that of
    the outcome in messages, a column of data."""

    def columns(part: Any, word: str) -> tables.Table:
        table = tables.read(part, what=f"fit_regression: {word}")
        if table.values.ndim not in (1, 2):
            got = table.values.shape
            raise ValueError(f"fit_regression: {word} must have shape (n,) or (n, p), got {got}.")
        one = table.values.ndim == 1
        return table._replace(values=table.values[:, None]) if one else table

    def each_row(column: Any, word: str, default: float) -> np.ndarray:
        return tables.each_row(column, len(ends), f"fit_regression: {word}", default)

    ends = columns(outcome, "outcome").values
    if ends.shape[1] > 2:
        raise ValueError(
            "fit_regression: outcome must have shape (n,), or (n, 2) for the ends of intervals, "
            f"got {ends.shape}."
        )
    if ends.shape[1] == 2 and np.any(half := np.isnan(ends).sum(axis=1) == 1):
        raise ValueError(
            f"fit_regression: one end of the outcome is NaN in {half.sum()} of {len(ends)} rows, "
            f"first in row {np.argmax(half)}. Write -inf for the lower end of an outcome that is "
            "only known to lie below the other, and inf for the upper end of one above."
        )
    if (absent := np.isnan(ends).any(axis=1)).any():
        known = name in (tables.named_columns(data) or {} if name else {})
        cure = tables.dropped(data, name) if known else "keep = ~np.isnan(y)"
        what = f"fit_regression: the outcome{f' {name!r}' * bool(name)}"
        raise ValueError(
            f"{tables.gaps(what, absent, cure)}: those that are missing by chance say nothing. One "
            "that is missing because it lies beyond a bound is censored there: write the bound, "
            "and say censored_low or censored_high."
        )
    words = "censored_low", "censored_high", "truncated_low", "truncated_high"
    sides = [
        each_row(limit, word, np.inf if word.endswith("high") else -np.inf)
        for word, limit in zip(words, limits)
    ]
    censored = censored_ends(ends[:, 0], ends[:, -1], sides[0], sides[1], "fit_regression")
    if len(wrong := np.flatnonzero(sides[2] >= sides[3])):
        raise ValueError(
            f"fit_regression: truncated_low must lie below truncated_high, but in row {wrong[0]} "
            f"they are {sides[2][wrong[0]]} and {sides[3][wrong[0]]}."
        )
    truncated = limits[2] is not None or limits[3] is not None
    region = Box(sides[2][:, None], sides[3][:, None]) if truncated else None
    settings: dict[str, Any] = {}
    if noise is not None:
        settings["noise"] = each_row(noise, "noise", 0.0)[:, None, None]
    if weights is not None:
        settings["weights"] = each_row(weights, "weights", 1.0)
    lower, upper = (as_float_array(side[:, None]) for side in censored)
    return (
        Observations(lower, upper, region, **settings),
        np.stack(sides[:2]),
        recorded_from(ends[:, 0], ends[:, -1], name),
        columns(design, "design"),
        None if scale_design is None else columns(scale_design, "scale_design"),
    )
