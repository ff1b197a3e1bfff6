"""The Gaussian, or the Gaussian regression, behind rows that are known in part."""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np

from truncgauss.execution import pooling
from truncgauss.execution.pytrees import floats_as_float64
from truncgauss.fitting.centring import UserUnits, centred, coarse
from truncgauss.fitting.expected import check_expected
from truncgauss.fitting.inference import check_information
from truncgauss.fitting.intervals import check_num_profiles, with_intervals
from truncgauss.fitting.observations_problem import Rows
from truncgauss.fitting.observations_result import ObservationsFit
from truncgauss.fitting.observations_start import (
    as_columns,
    as_coordinates,
    as_designs,
    first_guess,
)
from truncgauss.fitting.optimization.descent import Descent, fitted
from truncgauss.fitting.optimization.progress import bar
from truncgauss.fitting.regression_loss import is_simple
from truncgauss.gaussian.problem import as_key
from truncgauss.likelihood import Observations, fitted_together, own_rows
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.exact import Exact
from truncgauss.probability.method import Method

FEW_PROFILED = 2**10  # entries of rows that are not simple, up to which a fit profiles by itself


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
    num_profiles: int = 10,
    progress: bool = True,
) -> ObservationsFit:
    """Maximum likelihood of a Gaussian, or a Gaussian regression, from rows known in part.

    The likelihood is that of `log_likelihood`. One outcome is fitted in coordinates where exact
    rows (truncated or not) and censored rows (not truncated) have no other maximum; several in
    natural parameters where they are exact, of which the same holds, and otherwise in coefficients,
    log standard deviations and Fisher's z of correlations. What is known of other
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
            around it. By default 1 where there is one maximum; else 4, and a wide one inside
            regions, for one outcome of up to 100,000 rows, or for up to 4096 entries whose
            integrals have three dimensions at most. What the others found stands in `notes`.
        information: what standard errors come from: "observed", minus the Hessian of the
            log-likelihood; "expected", its mean over samples from the fitted Gaussian with the
            same covariates, regions and noise, for complete and exact rows; or "sandwich", which
            holds for many rows of another distribution too.
        num_profiles: up to how many estimates get a profile interval in the table at once where
            their Wald intervals are not to be trusted; of several outcomes that are not exact, for
            up to 1024 entries. Each takes about as long as a fit from one start; 0 for none:
            `profile(name)` has them later.
        progress: say on standard error what goes on, such as compiling, or the log-likelihood after
            each step, if the fit takes more than a second: in one line on a terminal, else in few.

    Returns:
        ObservationsFit.

    Raises:
        ValueError: for rows that are impossible, collinear covariates, no more rows than
            parameters, or a covariance structure that makes no sense. Nothing is dropped silently.

    Example:
        >>> y = jnp.array([0.0, 1.2, 0.0, 2.3, 0.4, 0.0, 1.9, 0.8])  # 0 stands for 0 or less
        >>> fit = tg.fit_observations(tg.Observations(jnp.where(y > 0, y, -jnp.inf), y))
        >>> fit.converged, fit.loc.round(3), fit.covariance_matrix.round(3)
        (True, array([0.515]), array([[1.549]]))
    """
    check_information(information)
    check_num_profiles(num_profiles)
    with jax.enable_x64(True), bar(None, "fit_observations", progress):
        request = Request(
            covariance, start, method, as_key(key), num_steps, num_starts, information,
            num_profiles, progress,
        )  # fmt: skip

        def read(share: pooling.Share | None) -> tuple[Observations, Any]:
            if share is None:
                return observations, design
            return own_rows(observations, share), share.own(design)

        def columns(own: tuple[Observations, Any]) -> tuple[Any, ...]:
            return own[0], *arrays_of(own[1])

        given, asked = (observations, design), (covariance, repr(method), method, key)
        with fitted_together("fit_observations", given, start, asked, read, columns) as own:
            return fit_of_rows(*own, request)


class Request(NamedTuple):
    """How to fit; the arguments of `fit_observations`."""

    covariance: Any
    start: tuple[Any, Any] | None
    method: Method
    key: jax.Array
    num_steps: int
    num_starts: int | None
    information: str
    num_profiles: int
    progress: bool


def fit_of_rows(observations: Observations, design: Any, request: Request) -> ObservationsFit:
    """The fit of rows that are here, or of those of all processes within `pooling.pool`."""
    hidden, observations = coarse(observations), floats_as_float64(observations)
    n, d = observations.lower.shape
    weights = None if observations.weights is None else np.asarray(observations.weights)
    designs = as_designs(design, n, d, weights)
    sizes = (1,) * d if designs is None else tuple(len(part.transform) for part in designs)
    coordinates = as_coordinates(request.covariance, sizes, observations)
    near = centred(observations, designs, coordinates.known_scale, is_simple(observations))
    x, scale = first_guess(near.rows, near.covariates, coordinates)
    method, information, start = request.method, request.information, request.start
    closed = is_simple(observations) and isinstance(method, Automatic | Exact)
    check_expected(information, observations)
    settings = information == "sandwich", closed, method, request.key
    problem, x = Rows(observations, near, coordinates, scale, *settings).in_natural(x)
    if len(x) >= problem.num_rows:
        raise ValueError(
            f"fit_observations: {problem.num_rows} row(s) cannot determine {len(x)} parameters; "
            "more are needed, or a simpler covariance."
        )
    renewed = problem.losses()
    problem.check_possible(renewed, x)
    bounds = request.num_steps, request.progress, problem.dear
    descent = Descent(renewed, problem.width, problem.precision, *bounds)
    given = None if start is None else as_start(start, problem.estimated, coordinates.sizes)
    starts = problem.starts(x, request.num_starts)
    fit = fitted(problem, descent, given, starts, information)
    quick = problem.simple or problem.num_rows * d <= FEW_PROFILED
    fit = with_intervals(fit, request.num_profiles if quick else 0)
    return fit if hidden is None else dataclasses.replace(fit, notes=(*fit.notes, hidden))


def arrays_of(design: Any) -> list[Any]:
    """The covariates of a design as arrays, whose leading axis is that of the rows."""
    if design is None:
        return []
    if isinstance(design, tuple | list):
        return [array for part in design for array in arrays_of(part)]
    return [as_columns(design, "fit_observations").values]


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
