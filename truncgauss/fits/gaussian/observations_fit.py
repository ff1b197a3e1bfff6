"""The Gaussian, or the Gaussian regression, behind rows that are known in part."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, overload

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import likelihood, tables
from truncgauss.arrays import parallel
from truncgauss.arrays.keys import as_key
from truncgauss.arrays.progress import reported
from truncgauss.arrays.pytrees import floats_as_float64
from truncgauss.covariates.outliers import Outliers, outliers_of
from truncgauss.covariates.predictions import Covariates
from truncgauss.covariates.rows_fit import RowsFit
from truncgauss.fits.gaussian.centring import Centred, UserUnits, centred, coarse
from truncgauss.fits.gaussian.gaussian_starts import (
    as_coordinates,
    as_designs,
    first_guess,
    in_natural,
)
from truncgauss.fits.gaussian.linear_gaussian import GaussianCoordinates, ObservationsLoss
from truncgauss.fits.gaussian.one_outcome import (
    LOG,
    RegressionLoss,
    fractions_of,
    full_design,
    terms_of,
)
from truncgauss.fits.gaussian.rising import direction_of, endless, impossible
from truncgauss.fitting.derived import gaussian_arrays
from truncgauss.fitting.descent import MANY_STARTS, MOST_ROWS, Path
from truncgauss.fitting.engine import check_settings, maximum_likelihood
from truncgauss.fitting.existence import (
    AT_SINGULAR,
    AT_ZERO,
    NO_VARIANCE,
    absurd,
    all_censored,
    explained,
    rising_sentence,
)
from truncgauss.fitting.likelihood_fit import Ending
from truncgauss.fitting.model import Model, arrays_of_start
from truncgauss.fitting.newton import point
from truncgauss.fitting.widening import WIDEST, direction_in_words
from truncgauss.likelihood.observations import Observations, as_observations
from truncgauss.likelihood.ordinal import LatentRows
from truncgauss.likelihood.row_blocks import filled_up
from truncgauss.likelihood.rows import fraction_not_truncated
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.exact import Exact
from truncgauss.probability.method import Method

if TYPE_CHECKING:
    from truncgauss.fits.gaussian.ordinal_fit import OrdinalFit

FEW_PROFILED = 2**10  # entries of rows that are not simple, up to which profiles may take longer
FEW_ENTRIES = 2**12  # of rows of several outcomes, up to which Wald's intervals are compared
MANY_INTEGRALS = 50  # of three dimensions, whose Hessian takes ten times as long as a gradient
WIDE = 10.0  # standard deviations of a start that is to find out whether wider ones are better
NARROW = 1e-7  # of the rows' spread: a scale that falls to 0
SINGULAR = 1e-10  # smallest eigenvalue of a correlation matrix that is one no longer
NOT_DECIDED = (
    "This is a maximum, but that the likelihood does not grow beyond it far away is not proved: "
    "for several outcomes inside regions no criterion is known. {}"
)
ONE_START = "Only one start was tried; see num_starts."
WIDE_START = "A start ten times as wide led to nothing higher."
NOT_COMPARED = "Wald intervals were not compared with the likelihood; profile() does that."
MET_EXACTLY = (
    "There is no maximum: the likelihood grows as sigma falls to 0, since some observations are "
    "met exactly. Use fewer covariates, or say what noise there is."
)


class ObservationsErrors(NamedTuple):
    """Standard errors, in the shapes of the estimates; 0 for what was fixed."""

    coefficients: tuple[np.ndarray, ...]
    covariance_matrix: np.ndarray

    @property
    def loc(self) -> np.ndarray:
        """Those of the mean (d,) of a fit without a design."""
        return loc_of(self.coefficients)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservationsFit(RowsFit):
    """The Gaussian behind observed rows, and how far to trust it; `print` shows a table.

    Attributes, besides those of `fitting.RowsFit`:
        coefficients: of each outcome's covariates, d arrays; without a design one mean each.
        covariance_matrix: of the outcomes given their covariates, without noise, (d, d).
        standard_errors: `.coefficients`, `.covariance_matrix` and, without a design, `.loc`
            likewise; inf where the data do not identify it, or there is no maximum.
    """

    coefficients: tuple[np.ndarray, ...]
    covariance_matrix: np.ndarray
    standard_errors: ObservationsErrors

    @classmethod
    def of(
        cls, inner: GaussianCoordinates, matrix: np.ndarray, ending: Ending, **kept: Any
    ) -> Self:
        """The fit with that covariance matrix, from what every fit has and what is kept of rows."""
        ends = np.cumsum(inner.sizes)
        *coefficients, _ = np.split(ending.estimates, ends)
        *of_coefficients, of_entries = np.split(ending.errors, ends)
        of_matrix = inner.standard_errors(of_entries, matrix)
        return cls(
            **vars(ending),
            **kept,
            coefficients=tuple(coefficients),
            covariance_matrix=matrix,
            standard_errors=ObservationsErrors(tuple(of_coefficients), of_matrix),
        )

    @property
    def loc(self) -> np.ndarray:
        """The mean (d,) of a fit without a design."""
        return loc_of(self.coefficients)

    @property
    def array_constants(self) -> Any:
        return self.coordinates.inner.fixed, *map(len, self.coefficients)

    @property
    def names_of_start(self) -> tuple[str, ...]:
        return ("coefficients" if self.designs else "loc"), "covariance"

    def arrays_of(self, estimates: Any) -> dict[str, Any]:
        coefficients, covariance = self.coordinates.inner.of_estimates(estimates)
        constant = all(len(part) == 1 for part in coefficients)
        loc = jnp.concatenate(coefficients) if constant else None
        return {"coefficients": coefficients, **gaussian_arrays(loc, covariance)}


def loc_of(coefficients: tuple[np.ndarray, ...]) -> np.ndarray:
    """The mean (d,), or its errors, by coefficients of constants."""
    if any(len(part) != 1 for part in coefficients):
        raise AttributeError("loc: the mean depends on covariates; see coefficients.")
    return np.concatenate(coefficients)


@overload
def fit_observations(observations: LatentRows, *args: Any, **settings: Any) -> "OrdinalFit": ...


@overload
def fit_observations(
    observations: Observations, *args: Any, **settings: Any
) -> ObservationsFit: ...


@reported
def fit_observations(
    observations: Any,
    design: Any = None,
    covariance: Any = "full",
    *,
    estimate: Sequence[str] = (),
    prior: Callable[[Any], Any] | None = None,
    start: Mapping[str, Any] | None = None,
    method: Method = Automatic(),
    key: jax.Array | None = None,
    num_steps: int = 100,
    num_starts: int | None = None,
    information: str = "observed",
    cluster: Any = None,
    num_profiles: int = 10,
    progress: bool = True,
    data: Any = None,
) -> Any:
    """Maximum likelihood of a Gaussian, or a Gaussian regression, from rows known in part.

    The likelihood is that of `log_likelihood`. One outcome is fitted in coordinates where exact
    rows (truncated or not) and censored rows (not truncated) have no other maximum; several in
    natural parameters where they are exact, of which the same holds, and otherwise in coefficients,
    log standard deviations and Fisher's z of correlations. What is known of other
    maxima, and of the part that no row could show, stands in `notes`.

    All options go together. A `cluster` needs information="sandwich", and a region that bounds
    ordered entries a constant among their covariates.

    Args:
        observations: the rows, `tg.Observations`; or mixed rows with ordered or binary entries,
            `tg.Observations.of([tg.Ordinal(...), ...])`, whose limits are estimated: an
            `OrdinalFit`. The variances of ordered entries are 1.
        design: covariates (n, p) of every outcome, with a column of ones if a constant is meant; or
            a tuple of d such, one for each outcome. The columns' names of a table, such as a
            DataFrame or a dictionary, become those of the estimates. None: a constant mean.
        covariance: "full", "diagonal", or a matrix (d, d) with NaN where it is to be estimated and
            a number where it is known, such as the 1 of a probit model. Of rows with `observed`
            also "exchangeable", one variance and one covariance, or the groups of the entries, such
            as ["A", "A", "B", "B"], one or two, by which alone variances and covariances differ;
            any number of missing entries is then an exact integral, and "full" takes four a row.
        estimate: of rows with `observed`, which parameters of that curve are estimated too, such as
            ("midpoint", "width"), without covariates; their values are the start.
        prior: the log density of these, a function of a dictionary of them, in JAX.
        start: {"coefficients": one array an outcome, "covariance": (d, d)} to begin with, without a
            design "loc" (d,) in place of the first; as `dict(fit.parameters())` of another fit.
        method: how probabilities are computed; its plans and key are held in a fit. By default
            boxes in up to four dimensions are integrated by quadratures that compile in a second,
            where their nodes resolve the integrals (in four dimensions nearly so); otherwise by
            what `tg.Automatic` chooses.
        key: its random key.
        num_steps: the most Newton steps from each start.
        num_starts: from how many points to begin, the first by least squares and the others drawn
            around it. By default 1 where there is one maximum; else 4, and a wide one inside
            regions, for one outcome of up to 100,000 rows, or for up to 4096 entries whose
            integrals have three dimensions at most. What the others found stands in `notes`.
        information: what standard errors come from: "observed", minus the Hessian of the
            log-likelihood, or "sandwich", which holds for many rows of another distribution too.
        cluster: labels (n,) of groups of rows that may depend on each other, such as the visits of
            a patient; with information="sandwich", whose errors then hold for many groups, with
            the factor G / (G - 1) of their number G.
        num_profiles: up to how many estimates get a profile interval in the table at once where
            their Wald intervals are not to be trusted; of several outcomes with more than 1024
            entries only where they take less than the fit did. Each takes about as long as a fit
            from one start; 0 for none: `profile(name)` has them later.
        progress: say on standard error what goes on, such as compiling, or the log-likelihood after
            each step, if the fit takes more than a second: in one line on a terminal, else in few.
        data: the table of a design that is a formula, such as "~ x", or of a tuple of these, and of
            a cluster's name.

    Returns:
        ObservationsFit, OrdinalFit, or with `estimate` a SelectedFit.

    Raises:
        ValueError: for rows that are impossible, collinear covariates, no more rows than
            parameters, or a covariance structure that makes no sense. Nothing is dropped silently.

    Example:
        >>> y = jnp.array([0.0, 1.2, 0.0, 2.3, 0.4, 0.0, 1.9, 0.8])  # 0 stands for 0 or less
        >>> fit = tg.fit_observations(tg.Observations(jnp.where(y > 0, y, -jnp.inf), y))
        >>> fit.converged, fit.loc.round(3), fit.covariance_matrix.round(3)
        (True, array([0.515]), array([[1.549]]))
    """
    what = "fit_observations"
    if isinstance(design, Method):
        raise TypeError(f"{what}: the design follows the observations: write method={design!r}.")
    data, observations, design, cluster = tables.in_one_order(
        what, data=data, observations=observations, design=design, cluster=cluster
    )
    read: Any = lambda part: tables.by_formula(None, part, data, what)[1]
    design = tuple(map(read, design)) if isinstance(design, tuple) else read(design)
    cluster = tables.column_or(cluster, data, f"{what}: cluster")
    settings = dict(
        start=start, num_steps=num_steps, num_starts=num_starts, information=information,
        num_profiles=num_profiles, progress=progress, cluster=cluster,
    )  # fmt: skip
    if estimate or prior is not None or getattr(observations, "observed", None) is not None:
        fit_dropout = dropout_fit_of(observations, estimate, prior, design, covariance)
        if fit_dropout is not None:
            return fit_dropout(method, key, **settings)
    if isinstance(observations, LatentRows) and not any(observations.levels):
        observations = observations.observations
    if isinstance(observations, LatentRows):
        from truncgauss.fits.gaussian.ordinal_fit import fit_ordinal  # which other rows do not need

        return fit_ordinal(observations, design, covariance, method=method, key=key, **settings)
    as_observations(observations, what)
    check_settings(information, num_profiles, cluster)
    with jax.enable_x64(True):
        rows = floats_as_float64(observations)
        weights = None if rows.weights is None else np.asarray(rows.weights)
        designs = as_designs(design, rows.num_rows, rows.dimension, weights, what)
        columns = [part.columns for part in designs or ()]
        parallel.agreed(f"{what}: rows, covariates and start", (rows, columns, start))
        each = information == "sandwich"
        model = GaussianRows.of(
            rows, designs, covariance, method=method, key=as_key(key), each=each
        )
        model.check()
        if start is not None:
            settings["start"] = model.as_start(start)
        fit, hidden = maximum_likelihood(model, **settings), coarse(observations)
        return fit if hidden is None else dataclasses.replace(fit, notes=(*fit.notes, hidden))


def dropout_fit_of(rows: Any, estimate: Any, prior: Any, design: Any, covariance: Any) -> Any:
    """The fit of rows by dropout whose curve is estimated too, or of a covariance with common
    effects; None if neither."""
    if getattr(rows, "observed", None) is None:
        raise ValueError(
            "fit_observations: estimate and prior are of the curve by which entries are observed: "
            "give tg.Observations(..., observed=tg.Selection.probit(...)). For a selection of rows "
            "use tg.fit_truncated_normal."
        )
    if design is not None:
        raise ValueError("fit_observations: rows with observed= are fitted without covariates.")
    if not estimate and prior is None and isinstance(covariance, str) and covariance == "full":
        return None
    from truncgauss.fits.gaussian.dropout_fit import fit_dropout  # which others do not need

    return functools.partial(fit_dropout, rows, estimate, prior, covariance)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianRows(Model):
    """Rows of a Gaussian whose mean may be linear in covariates.

    Attributes, besides those of `Model`:
        observations: the rows, as the user has them.
        centred: as they are fitted.
        inner: coordinates of the coefficients and the covariance of that.
        scale: spread of each outcome (d,), in whose units a Gaussian is wide.
        first: free coordinates by least squares.
        num_rows: how many rows say something, each counted as often as its weight says.
        num_fitted: of estimated coefficients of each mean; -inf if all variances are known.
        unique: whether the log-likelihood is known to be concave in some coordinates: in natural
            parameters for complete, exact rows, truncated or not, and in Olsen's for one outcome,
            censored or in intervals but not truncated.
        simple: whether the rows are intervals of one outcome, whose masses have closed forms.
        each: whether the scores of single rows are asked for.
        method: how other probabilities are computed.
        key: its random key.
        may_fall: whether the scales of all rows can fall together.
        recorded: words on the numbers that stand for censored outcomes, in a sentence.
    """

    observations: Observations
    centred: Centred
    inner: GaussianCoordinates
    scale: np.ndarray
    first: np.ndarray
    names: tuple[str, ...]
    weights: np.ndarray
    num_rows: float
    num_fitted: float
    unique: bool
    complete: bool
    simple: bool
    expensive: bool
    each: bool
    method: Method
    key: jax.Array
    may_fall: bool = True
    recorded: str = ""
    function = "fit_observations"  # for messages on its start

    @classmethod
    def of(
        cls,
        observations: Observations,
        designs: Any,
        covariance: Any,
        *,
        method: Method = Automatic(),
        key: jax.Array | None = None,
        each: bool = False,
        what: str = "fit_observations",
        **more: Any,
    ) -> Self:
        """The model of rows with whitened covariates of each outcome, checked.

        Raises:
            ValueError: see `fit_observations`.
        """
        Method.check_kind(method)
        n, d = observations.lower.shape
        sizes = (1,) * d if designs is None else tuple(len(part.transform) for part in designs)
        inner = as_coordinates(covariance, sizes, observations)
        moved = centred(observations, designs, inner.known_scale, observations.is_univariate)
        rows, (first, scale) = moved.rows, first_guess(moved.rows, moved.covariates, inner, what)
        # Natural parameters, the inverse covariance and its product with the coefficients, are free
        # where outcomes that depend on each other have the same covariates.
        blocks, columns = inner.independent_blocks(), [part.design for part in designs or ()]
        pairs = [(columns[j], columns[k]) for j, *block in blocks or () for k in block if columns]
        equal = all(one is other or np.array_equal(one, other) for one, other in pairs)
        natural = moved.exact and rows.noise is None and blocks is not None and equal
        known = len(sizes) == 1 and not inner.scales and rows.region is None  # concave in the mean
        unique = known or natural or (inner.single and rows.region is None)
        # Exact rows of one noise have sigma^2 plus that for their variance, which is unique too.
        alike = inner.single and moved.exact and getattr(rows.noise, "ndim", 0) == 2
        simple = rows.is_univariate and isinstance(method, Automatic | Exact)
        simple &= rows.observed is None  # whose curve counts for exact rows too
        if natural and not inner.single:
            whitened = in_natural(rows, moved.covariates, inner)
            inner, first = (inner, first) if whitened is None else whitened
        return cls(
            observations=observations,
            centred=moved,
            inner=inner,
            scale=scale,
            first=first,
            names=names_of(observations, moved, inner),
            weights=rows.row_weights,
            num_rows=rows.weight,
            num_fitted=max(sizes) if inner.scales else -np.inf,
            unique=unique and (rows.noise is None or alike),
            complete=moved.exact and rows.region is None,
            simple=simple,
            expensive=not simple and bool(np.sum(moved.limited == 3) > MANY_INTEGRALS),
            each=each,
            method=method,
            key=as_key(key),
            **more,
        )

    def check(self) -> None:
        """Raise ValueError if there are too few rows, one cannot be, or nothing is known of the
        start."""
        rows, count = self.centred.rows, self.centred.rows.num_known
        if len(self.first) >= count:
            fewer = count < rows.dimension
            raise ValueError(
                f"fit_observations: {count} observation(s) cannot determine "
                f"{len(self.first)} parameters; more are needed, or a simpler covariance"
                + (f", or the transpose, if these are {rows.dimension} rows." if fewer else ".")
            )
        if rows.has_limits_alone:
            wrong = impossible(rows)
        else:
            loss = self.loss_at(self.first)
            loc, covariance = loss.gaussian(self.first)
            held = loss.method, loss.key
            terms = likelihood.log_likelihood(loss.observations, loc, covariance, *held)
            wrong = np.flatnonzero(np.isneginf(np.asarray(terms.log_prob)))
        if len(wrong):
            first, ends = wrong[0], (self.observations.lower, self.observations.upper)
            raise ValueError(
                f"fit_observations: {len(wrong)} of {rows.num_rows} observation(s) are impossible, "
                f"first row {first}: lower {ends[0][first]}, upper {ends[1][first]} do "
                "not meet its region. Correct the region, or remove those observations."
            )

    @property
    def coordinates(self) -> UserUnits:
        return self.centred.coordinates(self.inner)

    @property
    def precision(self) -> Any:
        return self.inner.precision(self.scale)

    @property
    def num_entries(self) -> int:
        return self.centred.rows.num_rows * self.centred.rows.dimension

    @property
    def quick(self) -> bool:
        """Whether a fit may profile by itself however long that takes."""
        return self.simple or self.num_entries <= FEW_PROFILED

    # ---------------------------------------------------------------- starts

    def as_start(self, start: Any) -> np.ndarray:
        """Free coordinates of the user's coefficients and covariance matrix."""
        what, first = self.function, "coefficients" if self.centred.designs else "loc"
        parts, matrix = arrays_of_start(what, start, (first, "covariance"))
        parts = [parts] if isinstance(parts, int | float) else parts
        coefficients = np.concatenate([np.ravel(np.asarray(part, np.float64)) for part in parts])
        matrix, sizes = np.asarray(matrix, np.float64), self.inner.sizes
        d = len(sizes)
        if coefficients.shape != (sum(sizes),) or matrix.shape != (d, d):
            raise ValueError(
                f"{what}: start must have {first} and covariance of "
                f"{sum(sizes)} numbers and shape ({d}, {d}), got {coefficients.shape} and "
                f"{matrix.shape}."
            )
        if not np.all(np.isfinite(coefficients)) or not np.linalg.eigvalsh(matrix)[0] > 0:
            raise ValueError(f"{what}: start must be finite, its covariance positive definite.")
        return self.coordinates.free(coefficients, matrix)

    def starts(self, count: int | None) -> list[np.ndarray]:
        cheap, rows = self.centred.rows.num_rows <= MOST_ROWS, self.centred.rows
        if not self.simple:
            most = self.centred.limited.max() if rows.region is None else rows.dimension
            cheap = self.num_entries <= FEW_ENTRIES and most <= 3  # dimensions of an integral
        count = count or (MANY_STARTS if cheap and not self.unique else 1)
        starts = [self.first, *self.scattered(count - 1)]
        if self.wide_start and count > 1:
            starts.append(self.widened(self.first, WIDE))
        return starts

    def widened(self, x: np.ndarray, factors: Any, moves: Any = 0.0) -> np.ndarray:
        """Free coordinates x with other coefficients, and standard deviations, of those that are
        free, (k,), multiplied by factors."""
        coefficients, matrix = self.inner.values(x)
        sizes = np.ones(len(matrix))
        sizes[list(self.inner.scales)] = factors
        wider = matrix * np.outer(sizes, sizes)
        return self.inner.free(np.concatenate(coefficients) + moves, wider)

    def scattered(self, count: int) -> list[np.ndarray]:
        """So many free coordinates around the first: means moved by about the outcomes' scale in
        each direction of the covariates, which are whitened, and scales by a factor of about e."""
        random, starts, inner = np.random.default_rng(0), [], self.inner
        for _ in range(count):
            pairs = zip(self.scale, inner.sizes)
            moves = [size * random.normal(size=number) for size, number in pairs]
            factors = np.exp(random.normal(size=len(inner.scales)))
            starts.append(self.widened(self.first, factors, np.concatenate(moves)))
        return starts

    @property
    def wide_start(self) -> bool:
        """Whether the likelihood may grow as the Gaussian widens, beyond a maximum."""
        free = bool(self.inner.scales)
        return free and not self.unique and self.centred.rows.region is not None

    # ---------------------------------------------------------------- losses

    def loss_at(self, x: np.ndarray) -> Any:
        if self.simple:
            return self.simple_loss
        return self.general_loss.held_at(x)

    def loss_that_reaches(self, x: np.ndarray) -> Any:
        return self.general_loss.held_at(x, 0.0)

    @functools.cached_property
    def general_loss(self) -> ObservationsLoss:
        """The loss of any rows, filled up to one of few lengths, by a method without plans."""
        rows, designs = filled_up(self.centred.rows, self.centred.covariates)
        return ObservationsLoss(rows, designs, self.inner, self.centred.size, self.method, self.key)

    @functools.cached_property
    def simple_loss(self) -> RegressionLoss:
        return self.one_outcome_loss().condensed()

    def one_outcome_loss(self) -> RegressionLoss:
        """The loss of one outcome seen in intervals, whose integrals have closed forms."""
        inner, rows = self.inner, self.centred.rows
        each = self.each or self.centred.designs is not None
        design = self.centred.design_of(0) if each else np.ones((1, 1))
        return RegressionLoss(
            terms=terms_of(rows, each),
            design=full_design(design),
            scale_design=None,
            fixed_scale=None if inner.single else jnp.log(inner.fixed[0, 0]) / 2,
            size=self.centred.size,
            link=inner.power if inner.single else LOG,
        )

    # ---------------------------------------------------------------- existence of a maximum

    def is_endless(self, x: np.ndarray) -> bool:
        if self.precision is not None:
            return super().is_endless(x)
        matrix = self.in_units(x)
        if not self.inner.scales or not np.all(np.isfinite(matrix)):
            return False
        return bool(np.linalg.eigvalsh(matrix)[-1] > WIDEST**2)

    def in_units(self, x: np.ndarray) -> np.ndarray:
        """The covariance matrix, (d, d), in units of the observations' spread."""
        return self.inner.values(x)[1] / np.outer(self.scale, self.scale)

    def scales_at(self, x: np.ndarray) -> np.ndarray:
        """Standard deviations of the outcomes, (d,), or in each row, (n, d)."""
        return np.asarray(np.sqrt(np.diagonal(self.inner.values(x)[1])))

    def obstacle(self, path: Path) -> str | None:
        rising, noise = self.rising(), self.centred.rows.noise
        if rising is not None:
            return rising
        if path.endless:
            return endless(self.centred.rows) + self.towards(path.end.x, -1)
        scales = (self.scales_at(path.end.x) / self.scale)[..., list(self.inner.scales)]
        least = scales.min(initial=np.inf)
        if noise is not None and least**2 < NO_VARIANCE and self.explained(path):
            return AT_ZERO
        if self.centred.rows.dimension == 1:
            return MET_EXACTLY if noise is None and least < NARROW else None
        matrix = self.inner.values(path.end.x)[1]
        root = np.sqrt(np.diagonal(matrix))
        if np.linalg.eigvalsh(matrix / np.outer(root, root))[0] > SINGULAR:
            return None
        if noise is not None and np.linalg.eigvalsh(np.asarray(noise)).min() > 0:
            return AT_SINGULAR.format(self.towards(path.end.x, 0))
        return (
            "There is no maximum: the likelihood grows as the covariance becomes singular. Some "
            "outcomes are linear functions of others in every observation."
            + self.towards(path.end.x, 0)
        )

    def towards(self, x: np.ndarray, which: int) -> str:
        """The direction of the outcomes in words; nothing if there is one outcome."""
        if self.centred.rows.dimension == 1:
            return ""
        return direction_in_words(np.linalg.eigh(self.in_units(x))[1][:, which])

    def explained(self, path: Path) -> bool:
        """Whether the likelihood is no lower without the variances that are negligible."""
        small = np.diagonal(self.in_units(path.end.x))[list(self.inner.scales)] < NO_VARIANCE

        def log_likelihood(factor: float) -> float:
            x = self.widened(path.end.x, np.where(small, factor, 1.0))
            return -float(path.loss.size) * point(path.loss, x).loss

        return explained(log_likelihood)

    def rising(self) -> str | None:
        """The direction along which the likelihood never falls, in words."""
        rows, inner = self.centred.rows, self.inner
        apart = np.count_nonzero(np.asarray(inner.fixed), axis=1) == 1
        for j, size in enumerate(inner.sizes):
            known = rows.noise is not None or not (j in inner.scales and apart[j])
            known |= not self.may_fall
            alone = [j] in (inner.independent_blocks() or []) and rows.noise is None
            direction = direction_of(rows, j, self.centred.design_of(j), known, alone)
            if direction is not None:
                direction = self.centred.direction_of(j, direction)
                start = sum(inner.sizes[:j])
                names = list(self.names[start : start + size])
                lower, upper = (np.asarray(side)[:, j] for side in (rows.lower, rows.upper))
                seen = (np.isfinite(lower) | np.isfinite(upper)) & (rows.row_weights > 0)
                sentence = rising_sentence(direction, names, (lower == upper)[seen])
                own = self.observations
                name = own.labels[j] if own.dimension > 1 else ""
                lower, upper = (np.asarray(side)[seen, j] for side in (own.lower, own.upper))
                return sentence + all_censored(lower, upper, self.recorded, name)
        return None

    # ---------------------------------------------------------------- the end of a path

    def wald_coverages(self, path: Path, total: Any, errors: Any, compare: Any) -> Any:
        if self.simple or self.num_entries <= FEW_ENTRIES:
            return compare(), ()
        return np.zeros(0), (NOT_COMPARED,)

    def judged(self, path: Path, total: Any, converged: bool) -> tuple[float, Outliers | None]:
        loss, x, rows = path.loss, path.end.x, self.centred.rows
        loc, covariance = loss.gaussian(x)
        if self.simple:
            unseen, fraction = map(float, fractions_of(loss, x))
            anywhere = 1.0 - unseen - fraction  # rows without a region, but for rounding
            fraction += anywhere if anywhere > 1e-12 else 0.0
            # With its digits where it is small, and where it is nearly 1.
            fraction, seen = 1.0 - unseen if unseen < 0.5 else fraction, np.ones(1)
        elif rows.region is None:
            fraction, seen = 1.0, np.ones(1)
        else:
            filled, held = loss.observations, (loss.method, loss.key)
            seen = np.asarray(fraction_not_truncated(filled, loc, covariance, *held))
            weights = 1.0 if filled.weights is None else np.asarray(filled.weights)
            fraction = float(np.sum(weights * seen) / loss.size)
            seen = seen[: rows.num_rows]
        if not converged:
            return fraction, None
        return fraction, outliers_of(rows, loc, covariance, seen, self.num_fitted)

    def undetermined(self, path: Path, errors: np.ndarray) -> np.ndarray:
        if self.unique:
            return np.zeros(0, bool)
        wrong, start, scales = [], 0, self.scales_at(path.end.x)
        for j, size in enumerate(self.inner.sizes):
            width = max(self.scale[j], float(scales[..., j].max()))
            part = errors[start : start + size]
            wrong.append(absurd(part, width, self.centred.transform_of(j)))
            start += size
        return np.concatenate(wrong)

    def notes(self, ending: Ending, common: tuple[str, ...], path: Path) -> tuple[str, ...]:
        several = len(self.inner.sizes) > 1 and self.centred.rows.region is not None
        undecided = several and not self.unique and ending.converged
        tried = ONE_START if not path.starts else WIDE_START if self.wide_start else ""
        decided = (NOT_DECIDED.format(tried).strip(),) if undecided else ()
        return (*common, *decided, *self.centred.notes)

    @property
    def kept_rows(self) -> dict[str, Any]:
        """The fields of a fit that hold its rows."""
        designs = tuple(Covariates.of(x) for x in self.centred.designs or ())
        if len({id(design.values) for design in designs}) == 1:
            designs = designs[:1] * len(designs)
        kept = {"observations": self.observations, "centred": self.centred.rows}
        return {**kept, "designs": designs}

    def result(self, ending: Ending, path: Path) -> Any:
        matrix = self.inner.values(path.end.x)[1]
        return ObservationsFit.of(self.inner, matrix, ending, **self.kept_rows)


def names_of(rows: Observations, moved: Centred, inner: GaussianCoordinates) -> tuple[str, ...]:
    """Names of the estimates, by those of covariates that have some."""
    names = inner.names(moved.designs is not None, rows.labels)
    for j, part in enumerate(moved.designs or ()):
        start, several = sum(inner.sizes[:j]), len(inner.sizes) > 1
        for i, name in enumerate(part.names or ()):
            names[start + i] = f"coefficients[{rows.labels[j]}][{name}]" if several else name
    return tuple(names)
