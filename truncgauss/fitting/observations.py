"""The Gaussian, or the Gaussian regression, behind rows that are known in part."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats
from tqdm import tqdm

from truncgauss.fitting.newton import CLOSE, Point, newton_steps, point, settled_within, verdict
from truncgauss.fitting.observations_loss import Coordinates, ObservationsLoss, OneEstimate
from truncgauss.fitting.observations_start import as_coordinates, as_designs, first_guess
from truncgauss.fitting.profile import profile_interval
from truncgauss.fitting.result import BASELESS, Fit
from truncgauss.fitting.uncertainty import (
    Certificate,
    certificate,
    error_bars,
    information_factor,
)
from truncgauss.likelihood import Observations, fraction_not_truncated, hold, log_likelihood
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import Method
from truncgauss.problem import as_key

WIDEST = 1e3  # of the rows' own spread: beyond, the Gaussian is a straight slope across them
ROUNDS = 4  # how often the method's plans are made anew
WIDENING = 10.0  # the most by which a step may lower the inverse of a scale or variance
UNUSED_START = (
    "From the start that was given the steps did not converge; these began at least squares."
)
ENDLESS = (
    "There is no maximum: the likelihood grows as the Gaussian widens, already to "
    f"{WIDEST:.0f} times the spread of its rows. Inside their regions they look as spread as an "
    "exponential or uniform distribution: use wider regions, more rows, or a prior."
)


class ObservationsErrors(NamedTuple):
    """Standard errors, in the shapes of the estimates; 0 for what was fixed."""

    coefficients: tuple[np.ndarray, ...]
    covariance_matrix: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservationsFit(Fit):
    """The Gaussian behind observed rows, and how far to trust it; `print` shows a table.

    Attributes, besides those of `Fit`:
        coefficients: of each outcome's covariates, d arrays; without a design one mean each.
        covariance_matrix: of the outcomes given their covariates, without noise, (d, d).
        standard_errors: `.coefficients` and `.covariance_matrix` likewise, from the observed
            information; inf where the data do not identify it.
        log_likelihood: of all rows, in nats, with all constants.
        log_likelihood_stderr: its sampling error, 0 if the integrals are exact.
        num_rows: n.
        num_parameters: how many were estimated.
        names, estimates: all estimated numbers and what to call them; `parameter_covariance` and
            `errors` are in the same order.
        fraction_not_truncated: mean probability that a row could be seen; what the fit says of the
            rest no row has checked.
        newton_decrement_trace: at each step; times sqrt(n) the estimated distance to the maximum
            in standard errors.
        loss, best: minus the mean log-likelihood of a row, and the point where it is lowest.
    """

    coefficients: tuple[np.ndarray, ...]
    covariance_matrix: np.ndarray
    standard_errors: ObservationsErrors
    log_likelihood: float
    log_likelihood_stderr: float
    num_rows: int
    num_parameters: int
    names: tuple[str, ...]
    estimates: np.ndarray
    errors: np.ndarray
    fraction_not_truncated: float
    newton_decrement_trace: np.ndarray
    loss: ObservationsLoss = dataclasses.field(repr=False)
    best: Point = dataclasses.field(repr=False)

    def profile(self, name: str, level: float = 0.95) -> tuple[float, float]:
        """The profile-likelihood interval of an estimate, such as "loc[0]".

        It holds all values whose likelihood ratio to the maximum, over all other parameters, does
        not speak against them at that level. Unlike Wald's, it need not be symmetric. An end is
        infinite where the likelihood does not fall that far.

        Raises:
            ValueError: for a name that is no estimate, or a fit that has not converged.

        Example:
            >>> fit = tg.fit_observations(tg.Observations.exact([1.0, 2.0, 3.0, 4.0]))
            >>> [round(end, 3) for end in fit.profile("loc[0]")]
            [1.08, 3.92]
        """
        if name not in self.names:
            raise ValueError(
                f"profile: there is no estimate {name!r}, but {', '.join(self.names)}."
            )
        if not self.converged:
            raise ValueError(f"profile: there is no maximum to start from. {self.reason}")
        fall = 0.5 * float(stats.chi2.ppf(level, 1))
        with jax.enable_x64(True):
            estimate = OneEstimate(self.loss.coordinates, jnp.asarray(self.names.index(name)))
            return profile_interval(self.loss, float(self.loss.size), self.best, estimate, fall)

    @property
    def loc(self) -> np.ndarray:
        """The mean (d,) of a fit without a design."""
        if any(len(own) != 1 for own in self.coefficients):
            raise AttributeError("loc: the mean depends on covariates; see coefficients.")
        return np.concatenate(self.coefficients)

    @property
    def aic(self) -> float:
        """Akaike's criterion, 2 q - 2 log L."""
        return 2 * self.num_parameters - 2 * self.log_likelihood

    @property
    def bic(self) -> float:
        """Schwarz's criterion, q log n - 2 log L."""
        return self.num_parameters * math.log(self.num_rows) - 2 * self.log_likelihood

    def __str__(self) -> str:
        width = max(map(len, self.names), default=0)
        lines = [f"{'':{width}}  {'estimate':>12} {'std. error':>12} {'95 % Wald interval':>26}"]
        for name, value, error in zip(self.names, self.estimates, self.errors):
            low, high = value - 1.959964 * error, value + 1.959964 * error
            interval = f"[{low:.6g}, {high:.6g}]"
            lines.append(f"{name:{width}}  {value:12.6g} {error:12.6g} {interval:>26}")
        lines.append(
            f"log-likelihood {self.log_likelihood:.8g}, {self.num_rows} rows, "
            f"{self.num_parameters} parameters, AIC {self.aic:.6g}, BIC {self.bic:.6g}"
        )
        return "\n".join([*lines, self.reason, *self.notes])


def fit_observations(
    observations: Observations,
    design: Any = None,
    covariance: Any = "full",
    *,
    start: tuple[Any, Any] | None = None,
    method: Method = Automatic(),
    key: jax.Array | None = None,
    num_steps: int = 100,
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
            a tuple of d such, one for each outcome. None: a constant mean.
        covariance: "full", "diagonal", or a matrix (d, d) with NaN where it is to be estimated and
            a number where it is known, such as the 1 of a probit model.
        start: (coefficients, covariance) to begin with, coefficients one after the other.
        method: how probabilities are computed; its plans and key are held in a fit.
        key: its random key.
        num_steps: the most Newton steps.
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
    with jax.enable_x64(True):
        observations = jax.tree.map(as_double, observations)
        n, d = observations.lower.shape
        designs = as_designs(design, n, d)
        sizes = (1,) * d if designs is None else tuple(part.shape[1] for part in designs)
        coordinates = as_coordinates(covariance, sizes, observations)
        x, scale = first_guess(observations, designs, coordinates)
        if len(x) >= n:
            raise ValueError(
                f"fit_observations: {n} row(s) cannot determine {len(x)} parameters; more are "
                "needed, or a simpler covariance."
            )
        weights = observations.weights
        size = jnp.asarray(float(n) if weights is None else jnp.sum(weights))
        loss = ObservationsLoss(observations, designs, coordinates, size, method, as_key(key))
        check_possible(planned(loss, loss.method, x), x)
        descend = functools.partial(descended, loss, scale, num_steps, progress)
        if start is not None:
            given = as_start(start, coordinates)
            result = descend(given)
            if result.converged:
                return result
        result = descend(x)
        if start is None:
            return result
        return dataclasses.replace(result, notes=(UNUSED_START, *result.notes))


def as_start(start: tuple[Any, Any], coordinates: Coordinates) -> np.ndarray:
    """Free coordinates of the coefficients and covariance matrix to begin with."""
    coefficients = np.concatenate([np.ravel(np.asarray(part, np.float64)) for part in start[0]])
    matrix, d = np.asarray(start[1], np.float64), len(coordinates.sizes)
    if coefficients.shape != (sum(coordinates.sizes),) or matrix.shape != (d, d):
        raise ValueError(
            f"fit_observations: start must be (coefficients, covariance) of "
            f"{sum(coordinates.sizes)} numbers and shape ({d}, {d}), got {coefficients.shape} and "
            f"{matrix.shape}."
        )
    if not np.all(np.isfinite(coefficients)) or not np.linalg.eigvalsh(matrix)[0] > 0:
        raise ValueError(
            "fit_observations: start must be finite, its covariance positive definite."
        )
    return coordinates.free(coefficients, matrix)


def as_double(leaf: jax.Array) -> jax.Array:
    return leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def planned(loss: ObservationsLoss, method: Method, x: np.ndarray) -> ObservationsLoss:
    """The loss with a method's plans made at x."""
    held = hold(method, loss.observations, *loss.gaussian(jnp.asarray(x)))
    return dataclasses.replace(loss, method=held)


def check_possible(loss: ObservationsLoss, x: np.ndarray) -> None:
    """Raise ValueError if a row cannot be, or nothing is known of the start."""
    found = log_likelihood(loss.observations, *loss.gaussian(jnp.asarray(x)), loss.method, loss.key)
    values = np.asarray(found.log_prob)
    wrong = np.flatnonzero(np.isneginf(values))
    if len(wrong):
        first, rows = wrong[0], loss.observations
        raise ValueError(
            f"fit_observations: {len(wrong)} of {len(values)} row(s) are impossible, first row "
            f"{first}: lower {rows.lower[first]}, upper {rows.upper[first]} do not meet its "
            "region. Correct the region, or remove those rows."
        )
    if not np.all(np.isfinite(values)):
        raise ValueError(
            "fit_observations: the likelihood is not finite at the start. Give another start, "
            "whose covariance is positive definite."
        )


def descended(
    loss: ObservationsLoss, scale: np.ndarray, num_steps: int, progress: bool, x: np.ndarray
) -> ObservationsFit:
    """The fit from free coordinates x, with the method's plans made anew where they lead."""
    visited: list[Point] = []
    method = loss.method
    wide = functools.partial(is_wide, loss.coordinates, scale)

    def stop(here: Point) -> bool:
        return wide(here) and bool(here.gradient[-1] > 0)

    for _ in range(ROUNDS):
        loss = planned(loss, method, x)
        evaluate = functools.partial(point, loss)
        here = evaluate(x)
        if not here.finite:
            raise ValueError(
                "fit_observations: the likelihood or its derivatives are not finite at the start. "
                "Give another start, or another method."
            )
        moves = here.decrement * float(loss.size) ** 0.5 > CLOSE
        left = num_steps - len(visited) + (not visited)
        admits = functools.partial(widens_in_bounds, loss.coordinates)
        steps = newton_steps(evaluate, here, left, stop=stop, admits=admits)
        path = [here, *tqdm(steps, "Newton steps", disable=None if progress else True)]
        narrowed = stop(path[-1])
        if narrowed:  # by chance, on the way to a maximum, or because there is none?
            rest = np.eye(len(x))[:, :-1]
            path.append(settled_within(evaluate, path[-1], rest, left))
        visited += path[bool(visited) :]
        x = visited[-1].x
        again = moves and (narrowed or bool(jax.tree.leaves(loss.method)))
        if not again or stop(visited[-1]) or len(visited) > num_steps:
            break
    return finished(loss, visited, wide(visited[-1]))


def is_wide(coordinates: Coordinates, scale: np.ndarray, here: Point) -> bool:
    """Whether one outcome's Gaussian is almost a straight slope across its rows."""
    power = coordinates.power
    return coordinates.single and bool(here.x[-1] * (scale[0] * WIDEST) ** power < 1)


def widens_in_bounds(coordinates: Coordinates, here: Point, x: np.ndarray) -> bool:
    return not coordinates.single or bool(x[-1] >= here.x[-1] / WIDENING)


def finished(loss: ObservationsLoss, visited: list[Point], endless: bool) -> ObservationsFit:
    """The result at the last point visited."""
    here, size, coordinates = visited[-1], float(loss.size), loss.coordinates
    x = jnp.asarray(here.x)
    total = loss.total(x)
    coefficients, matrix = coordinates.values(x)
    proof = certificate(size * here.gradient, size * here.hessian, float(total.stderr))
    jacobian = np.asarray(jax.jacfwd(coordinates.estimates)(x))
    bars = error_bars(information_factor(size * here.hessian), jacobian)
    names = tuple(coordinates.names(loss.designs is not None))
    converged, reason = ending(here, proof, size, len(visited) - 1)
    errors = bars.standard_errors
    if endless:
        converged, reason, errors = False, ENDLESS, np.full(len(names), np.inf)
    if np.isinf(total.stderr):
        converged, reason = False, BASELESS
    fraction = fraction_not_truncated(loss.observations, *loss.gaussian(x), loss.method, loss.key)
    return ObservationsFit(
        coefficients=tuple(np.asarray(own) for own in coefficients),
        covariance_matrix=np.asarray(matrix),
        standard_errors=shaped(coordinates, names, errors),
        log_likelihood=float(total.log_prob),
        log_likelihood_stderr=float(total.stderr),
        num_rows=loss.observations.num_rows,
        num_parameters=len(here.x),
        names=names,
        estimates=np.asarray(coordinates.estimates(x)),
        errors=errors,
        fraction_not_truncated=float(jnp.mean(fraction)),
        converged=converged,
        reason=reason,
        num_steps=len(visited) - 1,
        loss_trace=np.array([p.loss for p in visited]),
        newton_decrement_trace=np.array([p.decrement for p in visited]),
        loss=loss,
        best=here,
        parameter_covariance=bars.covariance,
        certificate=proof,
        notes=notes_of(loss, proof.stderr, float(jnp.mean(fraction))),
    )


def ending(here: Point, proof: Certificate, size: float, num_steps: int) -> tuple[bool, str]:
    """Whether this is a maximum, and a sentence."""
    if proof.positive_definite:
        return verdict(here.decrement * size**0.5, num_steps)
    return False, (
        "Not converged: the curvature of the likelihood is not positive at the end (smallest "
        f"scaled eigenvalue {proof.curvature:.1e}). The rows do not determine the parameters."
    )


def shaped(
    coordinates: Coordinates, names: tuple[str, ...], errors: np.ndarray
) -> ObservationsErrors:
    """Standard errors in the shapes of the estimates."""
    count, d = sum(coordinates.sizes), len(coordinates.sizes)
    parts = np.split(errors[:count], np.cumsum(coordinates.sizes)[:-1])
    matrix = np.zeros((d, d))
    for (i, j), error in zip(coordinates.entries, errors[count:]):
        matrix[i, j] = matrix[j, i] = error
    return ObservationsErrors(tuple(parts), matrix)


def notes_of(loss: ObservationsLoss, stderr: float, fraction: float) -> tuple[str, ...]:
    """What a reader of the numbers must know: is it global, and what does it rest on?"""
    notes = [
        "The likelihood has no other maximum."
        if unique(loss)
        else "The likelihood may have other maxima: try other starts."
    ]
    if 0.1 < stderr < np.inf:
        notes.append(
            f"The log-likelihood is known to {stderr:.2g} only, as its integrals are estimates: "
            "give the method more points."
        )
    if fraction < 0.5:
        notes.append(
            f"A row could be seen with probability {fraction:.2g} only: most of the fitted "
            "distribution rests on its shape, which no row can check."
        )
    return tuple(notes)


def unique(loss: ObservationsLoss) -> bool:
    """Whether the log-likelihood is known to be concave in some coordinates.

    It is in the natural parameters for complete, exact rows, truncated or not, and in Olsen's for
    one outcome, censored or in intervals but not truncated.
    """
    rows, coordinates = loss.observations, loss.coordinates
    if rows.noise is not None:
        return False
    d = len(coordinates.sizes)
    exact = bool(jnp.all(rows.lower == rows.upper))
    full = len(coordinates.scales) == d and len(coordinates.pairs) == d * (d - 1) // 2
    # With covariates of several outcomes, natural parameters are no longer free of each other.
    natural = exact and full and (d == 1 or loss.designs is None)
    return natural or (coordinates.single and rows.region is None)
