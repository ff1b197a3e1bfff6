"""Regression of one outcome that is censored, truncated, known to intervals, or noisy."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution import pooling, tables
from truncgauss.fitting.centring import Centred, UserUnits, Whitened, centred
from truncgauss.fitting.existence import (
    AT_ZERO,
    NO_VARIANCE,
    absurd,
    explained,
    refuse,
    rising_sentence,
)
from truncgauss.fitting.expected import expected_regression_loss
from truncgauss.fitting.inference import (
    check_information,
    judged_rows,
    notes_of,
    summary,
    total_of,
)
from truncgauss.fitting.intervals import check_num_profiles, with_intervals
from truncgauss.fitting.observations_start import as_coordinates, as_designs, first_guess
from truncgauss.fitting.optimization.descent import MANY_STARTS, MOST_ROWS, Descent, Path, fitted
from truncgauss.fitting.optimization.progress import bar
from truncgauss.fitting.optimization.widening import Precision
from truncgauss.fitting.regression_loss import (
    LOG,
    RegressionCoordinates,
    RegressionLoss,
    full_design,
    terms_of,
)
from truncgauss.fitting.regression_result import RegressionErrors, RegressionFit
from truncgauss.fitting.regression_rows import Checked, Columns, RegressionRows, names_of
from truncgauss.fitting.rising import direction_of, endless, exact_rows, impossible
from truncgauss.likelihood import Observations, fitted_together

NARROW = 1e-7  # of the rows' spread: a scale that falls to 0


def fit_regression(
    outcome: Any,
    design: Any,
    *,
    censored_low: Any = None,
    censored_high: Any = None,
    truncated_low: Any = None,
    truncated_high: Any = None,
    scale_design: Any = None,
    noise: Any = None,
    weights: Any = None,
    start: tuple[Any, Any] | None = None,
    num_steps: int = 100,
    num_starts: int | None = None,
    information: str = "observed",
    num_profiles: int = 10,
    progress: bool = True,
) -> RegressionFit:
    """Maximum likelihood of a Gaussian regression whose outcome is not fully observed.

    For row i the outcome is y_i ~ Normal(x_i . b, sigma_i^2), with one sigma or with
    log sigma_i = z_i . g. It is known exactly, up to an interval, or as being beyond a limit
    (censoring: the Tobit model), and rows outside the limits of truncation are not in the data at
    all. Likelihoods are those of `tg.Observations`; Hessians are exact.

    Args:
        outcome: shape (n,), or (n, 2) for the lower and upper ends of intervals, which are equal
            where a value is known and infinite where a side is open.
        design: covariates x_i, (n, p), with a column of ones if a constant is meant; a table's
            column names become those of the estimates.
        censored_low: a number or (n,): outcomes at or below it are only known to be that low.
        censored_high: likewise: only known to be that high.
        truncated_low: a number or (n,): rows with an outcome below it are never seen.
        truncated_high: likewise, above.
        scale_design: covariates z_i of log sigma, (n, k), with a column of ones if a constant is
            meant; by default sigma is one number.
        noise: variances of measurement errors, a number or (n,), added to sigma^2.
        weights: shape (n,): how often each row counts.
        start: (coefficients, log_scale) to begin with.
        num_steps: the most Newton steps from each start.
        num_starts: from how many points to begin, the first by least squares, the others drawn
            around it. By default 1 if the likelihood has one maximum or the rows are more than
            100,000, else 4. What the others found stands in `notes`.
        information: what standard errors come from: "observed", "expected" or "sandwich", see
            `fit_observations`. Censored rows have an expected information too, as their limits
            are known; outcomes given as intervals have none.
        num_profiles: up to how many estimates get a profile interval in the table at once, see
            `fit_observations`.
        progress: say on standard error what goes on, such as compiling, or the log-likelihood after
            each step, if the fit takes more than a second: in one line on a terminal, else in few.

    Returns:
        RegressionFit.

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
    check_information(information)
    check_num_profiles(num_profiles)
    with jax.enable_x64(True), bar(None, "fit_regression", progress):
        limits = censored_low, censored_high, truncated_low, truncated_high
        columns = Columns(outcome, limits, noise, weights, design, scale_design)
        request = Request(start, num_steps, num_starts, information, num_profiles, progress)

        def read(share: pooling.Share | None) -> Checked:
            own = columns if share is None else Columns(*share.own(tuple(columns)))
            return own.checked(information)

        def arrays(own: Checked) -> tuple[Any, ...]:
            known, *designs = own
            values = (part.values for part in designs if part is not None)
            return known.observations, known.censoring.T, *values

        given = tuple(columns)
        with fitted_together("fit_regression", given, start, information, read, arrays) as own:
            return with_intervals(Regression.of(*own).fit(request), num_profiles)


class Request(NamedTuple):
    """How to fit; arguments of `fit_regression`."""

    start: tuple[Any, Any] | None
    num_steps: int
    num_starts: int | None
    information: str
    num_profiles: int
    progress: bool


def check_possible(rows: Observations, count: int) -> None:
    """Raise ValueError if a row lies outside its limits of truncation, or there are too few rows
    for so many parameters."""
    num_rows = pooling.total(np.asarray(rows.num_rows)).item()
    if count >= num_rows:
        raise ValueError(
            f"fit_regression: {num_rows} row(s) cannot determine so many coefficients; more "
            "are needed, or fewer covariates."
        )
    with pooling.checked_together():
        wrong = impossible(rows)
        if len(wrong):
            raise ValueError(
                f"fit_regression: {len(wrong)} of {rows.num_rows} row(s) lie outside their limits "
                f"of truncation, first row {wrong[0]}: lower {rows.lower[wrong[0]]}, upper "
                f"{rows.upper[wrong[0]]}. Correct the limits, or remove those rows."
            )


@dataclasses.dataclass(frozen=True)
class Regression:
    """What is to be fitted.

    Attributes:
        given: the observations, as the user has them.
        near: as they are fitted.
        censoring: limits (2, n) beyond which outcomes are not seen, as they are fitted.
        white_scales: covariates of the log scale, or None.
        names: of the estimates.
        coordinates: of the coefficients as they are fitted.
        loss: minus the mean log-likelihood.
        first: free coordinates by least squares.
        spread: of the rows about that.
    """

    given: Observations
    near: Centred
    censoring: np.ndarray
    white_scales: Whitened | None
    names: tuple[str, ...]
    coordinates: RegressionCoordinates
    loss: RegressionLoss
    first: np.ndarray
    spread: float

    @classmethod
    def of(
        cls, known: RegressionRows, design: tables.Table, scales: tables.Table | None
    ) -> "Regression":
        """The problem, checked."""
        given, n = known.observations, known.observations.num_rows
        weights = None if given.weights is None else np.asarray(given.weights)
        parts = [part.values for part in (design, scales) if part is not None]
        checked = [as_designs(part, n, 1, weights, "fit_regression") for part in parts]
        white = [part[0] for part in checked if part is not None]
        p = parts[0].shape[1]
        check_possible(given, sum(part.shape[1] for part in parts) + (scales is None))
        place = as_coordinates("full", (p,), given)
        near = centred(given, (white[0],), np.zeros(1), by_line=True)
        x, spread = first_guess(near.rows, near.covariates, place, "fit_regression")
        coefficients = x[:p] / x[p]
        white_scales = white[1] if len(white) > 1 else None
        link, scale_design = place.power, None if white_scales is None else white_scales.design
        log_scale = np.log(spread)
        if scale_design is not None:
            link = LOG
            log_scale = pooling.least_squares(scale_design, np.full(n, log_scale[0]))
        coordinates = RegressionCoordinates(p, link, single=scales is None)
        loss = RegressionLoss(
            terms=terms_of(near.rows, each=True),
            design=full_design(white[0].design),
            scale_design=None if scale_design is None else full_design(scale_design),
            fixed_scale=None,
            size=near.size,
            link=link,
            sums=pooling.current(),
        )
        last = ("sigma",) if scales is None else names_of(scales, "log_scale", nested=True)
        return cls(
            given=given,
            near=near,
            censoring=known.censoring - moves_of(given, near.rows),
            white_scales=white_scales,
            names=(*names_of(design, "coefficients"), *last),
            coordinates=coordinates,
            loss=loss,
            first=coordinates.free(coefficients, log_scale),
            spread=float(spread[0]),
        )

    def fit(self, request: Request) -> RegressionFit:
        bounds = request.num_steps, request.progress
        descent = Descent(self.renewed, self.width, self.precision, *bounds)
        given = None if request.start is None else self.as_start(request.start)
        several = not self.unique and pooling.total(np.asarray(self.rows.num_rows)) <= MOST_ROWS
        others = self.scattered((request.num_starts or (MANY_STARTS if several else 1)) - 1)
        return fitted(self, descent, given, [self.first, *others], request.information)

    @property
    def rows(self) -> Observations:
        return self.near.rows

    @property
    def design(self) -> np.ndarray:
        """Whitened covariates (n, p)."""
        return self.near.design_of(0)

    @property
    def scale_design(self) -> np.ndarray | None:
        """Whitened covariates of the log scale (n, k), or None."""
        return None if self.white_scales is None else self.white_scales.design

    @property
    def estimated(self) -> UserUnits:
        """The coordinates in the units of the user."""
        others = () if self.white_scales is None else (self.white_scales.transform,)
        return self.near.coordinates(self.coordinates, *others)

    def renewed(self, x: np.ndarray) -> RegressionLoss:
        return self.loss

    def scales(self, x: np.ndarray) -> np.ndarray:
        """Sigma of each row, (n,), or the one of all, (1,)."""
        log_scale = np.asarray(self.coordinates.values(jnp.asarray(x)))[self.design.shape[1] :]
        if self.scale_design is None:
            return np.exp(log_scale)
        with np.errstate(over="ignore"):
            return np.exp(self.scale_design @ log_scale)

    def width(self, x: np.ndarray) -> float:
        return self.narrowest(x)

    def narrowest(self, x: np.ndarray) -> float:
        """The smallest sigma of a row, in units of the rows' spread."""
        return -float(pooling.largest(-self.scales(x).min())) / self.spread

    @property
    def precision(self) -> Precision | None:
        """Where the inverse scale or variance stands in x, if it is one number."""
        if self.scale_design is not None:
            return None
        return Precision.single(self.design.shape[1], self.spread, self.coordinates.link)

    @property
    def unique(self) -> bool:
        """Whether the log-likelihood is known to be concave in these coordinates."""
        if self.rows.noise is not None or self.scale_design is not None:
            return False
        return not self.limited or self.rows.region is None

    @property
    def limited(self) -> bool:
        """Whether some outcome is not known exactly."""
        lower, upper = np.asarray(self.rows.lower), np.asarray(self.rows.upper)
        return pooling.some(np.any(lower != upper))

    def as_start(self, start: tuple[Any, Any]) -> np.ndarray:
        p, k = self.design.shape[1], len(self.first) - self.design.shape[1]
        coefficients, log_scale = (np.atleast_1d(np.asarray(part, float)) for part in start)
        if coefficients.shape != (p,) or log_scale.shape != (k,):
            raise ValueError(
                f"fit_regression: start must be (coefficients, log_scale) of shapes ({p},) and "
                f"({k},), got {coefficients.shape} and {log_scale.shape}."
            )
        if not (np.all(np.isfinite(coefficients)) and np.all(np.isfinite(log_scale))):
            raise ValueError("fit_regression: start must be finite.")
        if self.scale_design is not None:
            coefficients, log_scale = np.append(coefficients, log_scale), np.zeros(0)
        return self.estimated.free(coefficients, log_scale)

    def scattered(self, count: int) -> list[np.ndarray]:
        """So many starts around the first: means moved by about the rows' spread along each
        direction of the covariates, which are whitened, and scales by a factor of about e."""
        random = np.random.default_rng(0)
        p = self.design.shape[1]
        values = np.asarray(self.coordinates.values(jnp.asarray(self.first)))
        return [
            self.coordinates.free(
                values[:p] + self.spread * random.normal(size=p),
                values[p:] + random.normal(size=len(values) - p),
            )
            for _ in range(count)
        ]

    def no_maximum(self, path: Path) -> str | None:
        """Why there is no maximum, if there is none."""
        risen = self.rising()
        if risen is not None:
            return risen
        if path.endless:
            return endless(self.rows)
        narrowest = self.narrowest(path.end.x)
        if self.rows.noise is not None:
            zero = narrowest**2 < NO_VARIANCE and self.explained(path)
            return AT_ZERO if zero else None
        if narrowest < NARROW:
            return (
                "There is no maximum: the likelihood grows as sigma falls to 0, since some rows "
                "are met exactly. Use fewer covariates, or say what noise there is."
            )
        return None

    def explained(self, path: Path) -> bool:
        """Whether the likelihood is no lower without the scales that are negligible."""
        p, scales = self.design.shape[1], self.scales(path.end.x)
        values = np.asarray(self.coordinates.values(jnp.asarray(path.end.x)))
        columns = np.column_stack([np.log(scales), (scales / self.spread) ** 2 < NO_VARIANCE])
        columns = np.broadcast_to(columns, (len(self.design), 2))
        loss = dataclasses.replace(path.loss, scale_design=full_design(columns), link=LOG)

        def log_likelihood(factor: float) -> float:
            x = np.append(values[:p], [1.0, np.log(factor)])
            return float(total_of(loss, jnp.asarray(x)).log_prob)

        return explained(log_likelihood)

    def rising(self) -> str | None:
        """The direction along which the likelihood never falls, in words."""
        known = self.rows.noise is not None or not self.free_scale
        found = direction_of(self.rows, 0, self.design, known, alone=True)
        if found is None:
            return None
        direction = self.near.direction_of(0, found)
        return rising_sentence(direction, list(self.names), exact_rows(self.rows, 0))

    @property
    def free_scale(self) -> bool:
        """Whether all scales can fall together."""
        if self.scale_design is None:
            return True
        ones = np.ones(len(self.scale_design))
        nearest = self.scale_design @ pooling.least_squares(self.scale_design, ones)
        return pooling.every(np.abs(nearest - ones).max() < 1e-9)

    def result(self, path: Path, information: str, starts: str) -> RegressionFit:
        fields = summary(
            path, self.estimated, self.names, (self.given, self.rows), information,
            self.no_maximum(path), compare=True,
            expected=self.expected_loss(path) if information == "expected" else None,
        )  # fmt: skip
        x, p = jnp.asarray(path.end.x), self.design.shape[1]
        fraction, fields["outliers"] = judged_rows(
            path.loss, x, self.rows, len(path.end.x) - 1, fields["converged"]
        )
        if not self.unique:
            width = max(self.spread, float(pooling.largest(self.scales(path.end.x).max())))
            refuse(fields, absurd(fields["errors"][:p], width, self.near.transform_of(0)))
        (coefficients, scale), (errors, wide) = (
            (fields[key][:p], fields[key][p:]) for key in ("estimates", "errors")
        )
        single = self.coordinates.single
        return RegressionFit(
            **fields,
            coefficients=coefficients,
            log_scale=np.log(scale) if single else scale,
            standard_errors=RegressionErrors(errors, wide / scale if single else wide),
            fraction_not_truncated=fraction,
            notes=notes_of(fields, self.unique, starts, fraction) + self.near.notes,
            references=self.references(information),
        )

    def expected_loss(self, path: Path) -> RegressionLoss:
        """The loss whose Hessian is the expected information of a row where a descent ended."""
        return expected_regression_loss(path.loss, self.rows, self.censoring, path.end.x)

    def references(self, information: str) -> tuple[str, ...]:
        """What the fit rests on, as keys of the literature."""
        found = {
            "marquardt1963": True,
            "tobin1958": self.limited,
            "cohen1991": self.rows.region is not None,
            "olsen1978": self.coordinates.link == 1 and self.limited,
            "barndorff1978": self.coordinates.link == 2,
            "messner2016": self.scale_design is not None,
            "white1982": information == "sandwich",
            "efron1978": information == "expected",
        }
        return tuple(key for key, used in found.items() if used)


def moves_of(given: Observations, fitted: Observations) -> np.ndarray:
    """What was subtracted from each outcome, (n,)."""
    lower, upper = (np.asarray(side)[:, 0] for side in (given.lower, given.upper))
    low, high = (np.asarray(side)[:, 0] for side in (fitted.lower, fitted.upper))
    finite = np.isfinite(lower)
    ends = np.where(finite, lower, np.where(np.isfinite(upper), upper, 0.0))
    return ends - np.where(finite, low, np.where(np.isfinite(upper), high, 0.0))
