"""The Gaussian, or the Gaussian regression, behind rows that are known in part."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import parallel
from truncgauss.compiling import MEDIUM
from truncgauss.fitting.centring import Centred, UserUnits, centred, coarse
from truncgauss.fitting.existence import (
    AT_ZERO,
    NO_VARIANCE,
    absurd,
    explained,
    refuse,
    rising_sentence,
)
from truncgauss.fitting.expected import ExpectedLoss, check_expected, expected_loss
from truncgauss.fitting.inference import check_information, fraction_of, notes_of, summary, total_of
from truncgauss.fitting.observations_loss import Coordinates, ObservationsLoss
from truncgauss.fitting.observations_result import ObservationsFit, shaped
from truncgauss.fitting.observations_start import (
    as_coordinates,
    as_designs,
    first_guess,
    scattered,
)
from truncgauss.fitting.regression_loss import (
    LOG,
    RegressionLoss,
    full_design,
    is_simple,
    terms_of,
)
from truncgauss.fitting.rising import direction_of, endless, impossible
from truncgauss.likelihood import Observations, fraction_not_truncated, hold, log_likelihood
from truncgauss.optimization.descent import MANY_STARTS, MOST_ROWS, Descent, Path, fitted
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.exact import Exact
from truncgauss.probability.method import Method
from truncgauss.problem import as_key
from truncgauss.pytrees import floats_as_float64

FEW_ENTRIES = 2**12  # of rows of several outcomes, up to which Wald's intervals are compared
NOT_DECIDED = (
    "This is a maximum, but whether the likelihood grows beyond it far away could not be decided: "
    "for several outcomes inside regions no test is known."
)
SINGULAR = 1e-10  # smallest eigenvalue of a correlation matrix that is one no longer


def fit_observations(
    observations: Observations,
    design: Any = None,
    covariance: Any = "full",
    *,
    start: tuple[Any, Any] | None = None,
    method: Method = Automatic(),
    key: jax.Array | None = None,
    num_steps: int = 100,
    num_starts: int | None = None,
    information: str = "observed",
    progress: bool = False,
) -> ObservationsFit:
    """Maximum likelihood of a Gaussian, or a Gaussian regression, from rows known in part.

    The likelihood is that of `log_likelihood`. One outcome is fitted in coordinates where exact
    rows (truncated or not) and censored rows (not truncated) have no other maximum; several in
    coefficients, log standard deviations and Fisher's z of correlations. What is known of other
    maxima, and of the part that no row could show, stands in `notes`.

    Args:
        observations: the rows, `tg.Observations`.
        design: covariates (n, p) of every outcome, with a column of ones if a constant is meant; or
            a tuple of d such, one for each outcome. The columns' names of a table, such as a
            DataFrame or a dictionary, become those of the estimates. None: a constant mean.
        covariance: "full", "diagonal", or a matrix (d, d) with NaN where it is to be estimated and
            a number where it is known, such as the 1 of a probit model.
        start: (coefficients, covariance) to begin with, coefficients one after the other.
        method: how probabilities are computed; its plans and key are held in a fit.
        key: its random key.
        num_steps: the most Newton steps from each start.
        num_starts: from how many points to begin, the first by least squares and the others drawn
            around it. By default 1 where there is one maximum; else 4 for one outcome of up to
            100,000 rows. What the others found stands in `notes`.
        information: what standard errors come from: "observed", minus the Hessian of the
            log-likelihood; "expected", its mean over samples from the fitted Gaussian with the
            same covariates, regions and noise, for complete and exact rows; or "sandwich", which
            holds for many rows of another distribution too.
        progress: show a bar, if on a terminal.

    Returns:
        ObservationsFit.

    Raises:
        ValueError: for rows that are impossible, collinear covariates, fewer rows than parameters,
            or a covariance structure that makes no sense. Nothing is dropped silently.

    Example:
        >>> y = jnp.array([0.0, 1.2, 0.0, 2.3, 0.4, 0.0, 1.9, 0.8])  # 0 stands for 0 or less
        >>> fit = tg.fit_observations(tg.Observations(jnp.where(y > 0, y, -jnp.inf), y))
        >>> fit.converged, fit.loc.round(3), fit.covariance_matrix.round(3)
        (True, array([0.515]), array([[1.549]]))
    """
    check_information(information)
    with jax.enable_x64(True):
        hidden, observations = coarse(observations), floats_as_float64(observations)
        parallel.agreed("fit_observations: rows, design and start", (observations, design, start))
        n, d = observations.lower.shape
        weights = None if observations.weights is None else np.asarray(observations.weights)
        designs = as_designs(design, n, d, weights)
        sizes = (1,) * d if designs is None else tuple(len(part.transform) for part in designs)
        coordinates = as_coordinates(covariance, sizes, observations)
        near = centred(observations, designs, coordinates.known_scale, is_simple(observations))
        x, scale = first_guess(near.rows, near.covariates, coordinates)
        if len(x) >= n:
            raise ValueError(
                f"fit_observations: {n} row(s) cannot determine {len(x)} parameters; more are "
                "needed, or a simpler covariance."
            )
        closed = is_simple(observations) and isinstance(method, Automatic | Exact)
        check_expected(information, observations)
        settings = information == "sandwich", closed, method, as_key(key)
        problem = Rows(observations, near, coordinates, scale, *settings)
        renewed = problem.losses()
        problem.check_possible(renewed, x)
        descent = Descent(renewed, problem.width, coordinates.single, num_steps, progress)
        given = None if start is None else as_start(start, problem.estimated, coordinates.sizes)
        count = num_starts or problem.default_starts
        starts = [x, *scattered(x, scale, coordinates, count - 1)]
        fit = fitted(problem, descent, given, starts, information)
        return fit if hidden is None else dataclasses.replace(fit, notes=(*fit.notes, hidden))


def as_start(start: tuple[Any, Any], estimated: UserUnits, sizes: tuple[int, ...]) -> np.ndarray:
    """Free coordinates of the coefficients and covariance matrix to begin with."""
    coefficients = np.concatenate([np.ravel(np.asarray(part, np.float64)) for part in start[0]])
    matrix, d = np.asarray(start[1], np.float64), len(sizes)
    if coefficients.shape != (sum(sizes),) or matrix.shape != (d, d):
        raise ValueError(
            f"fit_observations: start must be (coefficients, covariance) of "
            f"{sum(sizes)} numbers and shape ({d}, {d}), got {coefficients.shape} and "
            f"{matrix.shape}."
        )
    if not np.all(np.isfinite(coefficients)) or not np.linalg.eigvalsh(matrix)[0] > 0:
        raise ValueError(
            "fit_observations: start must be finite, its covariance positive definite."
        )
    return estimated.free(coefficients, matrix)


@dataclasses.dataclass(frozen=True)
class Rows:
    """What is to be fitted.

    Attributes:
        given: the rows, as the user has them.
        near: what is fitted.
        coordinates: of the coefficients and the covariance of that.
        scale: spread of each outcome (d,), in whose units a Gaussian is wide.
        each: whether the scores of single rows are asked for.
        simple: whether the rows are intervals of one outcome, whose masses have closed forms.
        method: how other probabilities are computed.
        key: its random key.
    """

    given: Observations
    near: Centred
    coordinates: Coordinates
    scale: np.ndarray
    each: bool
    simple: bool
    method: Method
    key: jax.Array

    @property
    def observations(self) -> Observations:
        """The rows as they are fitted."""
        return self.near.rows

    @property
    def designs(self) -> tuple[jax.Array, ...] | None:
        return self.near.covariates

    @property
    def estimated(self) -> UserUnits:
        """The coordinates in the units of the user."""
        return self.near.coordinates(self.coordinates)

    @property
    def names(self) -> tuple[str, ...]:
        """What to call the estimates, by the names of covariates that have some."""
        found = self.coordinates.names(self.designs is not None)
        for j, part in enumerate(self.near.designs or ()):
            start, several = sum(self.coordinates.sizes[:j]), len(self.coordinates.sizes) > 1
            for i, name in enumerate(part.names or ()):
                found[start + i] = f"coefficients[{j}][{name}]" if several else name
        return tuple(found)

    @property
    def size(self) -> jax.Array:
        return self.near.size

    @property
    def default_starts(self) -> int:
        several = self.simple and not self.unique and self.observations.num_rows <= MOST_ROWS
        return MANY_STARTS if several else 1

    def losses(self) -> Callable[[np.ndarray], Any]:
        """x -> the loss, with the method's plans made at x."""
        if self.simple:
            loss = self.simple_loss()
            return lambda x: loss
        general = self.general_loss()

        def renewed(x: np.ndarray) -> ObservationsLoss:
            held = hold(self.method, self.observations, *general.gaussian(jnp.asarray(x)))
            return dataclasses.replace(general, method=held)

        return renewed

    def general_loss(self) -> ObservationsLoss:
        """The loss of any rows, by a method without plans."""
        return ObservationsLoss(
            self.observations, self.designs, self.coordinates, self.size, self.method, self.key
        )

    def expected_loss(self, path: Path) -> ExpectedLoss:
        """The loss whose Hessian is the expected information of a row where a descent ended."""
        return expected_loss(self.general_loss(), self.method, path.end.x)

    def simple_loss(self) -> RegressionLoss:
        """The loss of one outcome seen in intervals, whose integrals have closed forms."""
        place, n = self.coordinates, self.observations.num_rows
        each = self.each or self.designs is not None
        design = np.ones((n if each else 1, 1))
        if self.designs is not None:
            design = np.asarray(self.designs[0])
        return RegressionLoss(
            terms=terms_of(self.observations, each),
            design=full_design(design),
            scale_design=None,
            fixed_scale=None if place.single else jnp.log(place.fixed[0, 0]) / 2,
            size=self.size,
            link=place.power if place.single else LOG,
        )

    def check_possible(self, renewed: Callable[[np.ndarray], Any], x: np.ndarray) -> None:
        """Raise ValueError if a row cannot be, or nothing is known of the start."""
        rows, n = self.observations, self.observations.num_rows
        if self.simple:
            wrong = impossible(rows)
        else:
            loss = renewed(x)
            loc, covariance = loss.gaussian(jnp.asarray(x))
            found = log_likelihood(rows, loc, covariance, loss.method, loss.key)
            wrong = np.flatnonzero(np.isneginf(np.asarray(found.log_prob)))
        if len(wrong):
            first = wrong[0]
            raise ValueError(
                f"fit_observations: {len(wrong)} of {n} row(s) are impossible, first row "
                f"{first}: lower {self.given.lower[first]}, upper {self.given.upper[first]} do not "
                "meet its region. Correct the region, or remove those rows."
            )

    def width(self, x: np.ndarray) -> float:
        """The largest standard deviation in any direction, in units of the outcomes' spread."""
        matrix = np.asarray(self.coordinates.values(jnp.asarray(x))[1])
        if not self.coordinates.scales or not np.all(np.isfinite(matrix)):
            return 0.0
        return float(np.sqrt(np.linalg.eigvalsh(matrix / np.outer(self.scale, self.scale))[-1]))

    def no_maximum(self, path: Path) -> str | None:
        """Why there is no maximum, if there is none."""
        matrix = np.asarray(self.coordinates.values(jnp.asarray(path.end.x))[1])
        risen = self.rising()
        if risen is not None:
            return risen
        if path.endless:
            return endless(self.observations) + self.towards(matrix, -1)
        if self.observations.noise is not None and self.coordinates.scales:
            shares = np.diagonal(matrix) / self.scale**2
            if shares[list(self.coordinates.scales)].min() < NO_VARIANCE and self.explained(path):
                return AT_ZERO
        if len(matrix) == 1:
            return None
        root = np.sqrt(np.diagonal(matrix))
        if np.linalg.eigvalsh(matrix / np.outer(root, root))[0] > SINGULAR:
            return None
        return (
            "There is no maximum: the likelihood grows as the covariance becomes singular. Some "
            "outcomes are linear functions of others in every row." + self.towards(matrix, 0)
        )

    def explained(self, path: Path) -> bool:
        """Whether the likelihood is no lower without the variances that are negligible."""
        place = self.coordinates
        coefficients, matrix = place.values(jnp.asarray(path.end.x))
        shares = np.diagonal(np.asarray(matrix)) / self.scale**2
        small = np.isin(np.arange(len(shares)), place.scales) & (shares < NO_VARIANCE)
        flat = np.concatenate([np.asarray(own) for own in coefficients])

        def log_likelihood(factor: float) -> float:
            factors = np.where(small, factor, 1.0)
            x = place.free(flat, np.asarray(matrix) * np.outer(factors, factors))
            return float(total_of(path.loss, jnp.asarray(x), effort=MEDIUM).log_prob)

        return explained(log_likelihood)

    def towards(self, matrix: np.ndarray, which: int) -> str:
        """In which direction of the outcomes that happens."""
        if len(matrix) == 1:
            return ""
        vector = np.linalg.eigh(matrix / np.outer(self.scale, self.scale))[1][:, which]
        listed = ", ".join(f"{entry:.3g}" for entry in vector)
        return f" This happens along ({listed}), in units of the outcomes' spread."

    def rising(self) -> str | None:
        """The direction along which the likelihood never falls, in words."""
        rows, place = self.observations, self.coordinates
        apart = np.count_nonzero(np.asarray(place.fixed), axis=1) == 1
        for j, size in enumerate(place.sizes):
            known = rows.noise is not None or j not in place.scales or not apart[j]
            found = direction_of(rows, j, self.near.design_of(j), known)
            if found is not None:
                found = self.near.direction_of(j, found)
                start = sum(place.sizes[:j])
                names = list(self.names[start : start + size])
                return rising_sentence(found, names)
        return None

    @property
    def unique(self) -> bool:
        """Whether the log-likelihood is known to be concave in some coordinates.

        It is in the natural parameters for complete, exact rows, truncated or not, and in Olsen's
        for one outcome, censored or in intervals but not truncated.
        """
        rows, place = self.observations, self.coordinates
        d = len(place.sizes)
        if rows.noise is not None:
            return False
        if d == 1 and not place.scales and rows.region is None:
            return True  # log-concave in the mean
        exact = bool(jnp.all(rows.lower == rows.upper))
        full = len(place.scales) == d and len(place.pairs) == d * (d - 1) // 2
        # With covariates of several outcomes, natural parameters are no longer free of each other.
        natural = exact and full and (d == 1 or self.designs is None)
        return natural or (place.single and rows.region is None)

    def result(self, path: Path, information: str, starts: str) -> ObservationsFit:
        rows, place, x = self.observations, self.coordinates, jnp.asarray(path.end.x)
        names = self.names
        compare = self.simple or rows.lower.size <= FEW_ENTRIES
        fields = summary(
            path, self.estimated, names, (self.given, rows), information,
            self.no_maximum(path), compare,
            expected=self.expected_loss(path) if information == "expected" else None,
        )  # fmt: skip
        if self.simple:
            fraction = float(fraction_of(path.loss, x, effort=MEDIUM))
        else:
            loc, covariance = path.loss.gaussian(x)
            held = path.loss.method, path.loss.key
            fraction = float(jnp.mean(fraction_not_truncated(rows, loc, covariance, *held)))
        matrix, ends = np.asarray(place.values(x)[1]), np.cumsum(place.sizes)
        if not self.unique:
            refuse(fields, self.undetermined(fields["errors"], matrix))
        return ObservationsFit(
            **fields,
            coefficients=tuple(np.split(fields["estimates"][: ends[-1]], ends[:-1])),
            covariance_matrix=matrix,
            standard_errors=shaped(place, names, fields["errors"]),
            fraction_not_truncated=fraction,
            notes=notes_of(fields, self.unique, starts, fraction) + self.undecided(fields),
            references=self.references(information),
        )

    def undecided(self, fields: dict[str, Any]) -> tuple[str, ...]:
        """What is not known of the maximum's existence."""
        several = len(self.coordinates.sizes) > 1 and self.observations.region is not None
        if not several or self.unique or not fields["converged"]:
            return ()
        return (NOT_DECIDED,)

    def undetermined(self, errors: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Which coefficients the rows do not determine."""
        found, start = [], 0
        for j, size in enumerate(self.coordinates.sizes):
            width = max(self.scale[j], float(matrix[j, j]) ** 0.5)
            own = errors[start : start + size]
            found.append(absurd(own, width, self.near.transform_of(j)))
            start += size
        return np.concatenate(found)

    def references(self, information: str) -> tuple[str, ...]:
        """What the fit rests on, as keys of the literature."""
        rows, place = self.observations, self.coordinates
        limited = bool(jnp.any(rows.lower != rows.upper))
        found = {
            "marquardt1963": True,
            "tobin1958": limited,
            "cohen1991": rows.region is not None,
            "olsen1978": place.single and place.power == 1 and limited,
            "barndorff1978": place.single and place.power == 2,
            "little2019": bool(jnp.any(jnp.isinf(rows.lower) & jnp.isinf(rows.upper))),
            "genz1992": rows.dimension > 3 and (limited or rows.region is not None),
            "white1982": information == "sandwich",
            "efron1978": information == "expected",
        }
        return tuple(key for key, used in found.items() if used)
