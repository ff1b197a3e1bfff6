"""What follows from the end of a descent: standard errors, the certificate, and notes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution import pooling
from truncgauss.execution.compiling import Compiled, closed_form
from truncgauss.fitting.observations_loss import ObservationsLoss, gaussian_at
from truncgauss.fitting.optimization.descent import Path
from truncgauss.fitting.optimization.newton import Point, point, verdict
from truncgauss.fitting.optimization.result import (
    BASELESS,
    MOSTLY_UNSEEN,
    NO_OTHER,
    UNSEEN,
    in_words,
)
from truncgauss.fitting.optimization.uncertainty import Certificate, FreeErrors, certificate
from truncgauss.fitting.optimization.wald import wald_ratios
from truncgauss.fitting.outliers import Outliers, outliers_of
from truncgauss.gaussian.problem import Estimate
from truncgauss.likelihood import Observations, fraction_not_truncated, total_log_likelihood

INFORMATION = ("observed", "expected", "sandwich")


def check_information(information: str) -> None:
    if information not in INFORMATION:
        raise ValueError(
            f'information must be "observed", "expected" or "sandwich", got {information!r}.'
        )


@functools.partial(Compiled, cost=closed_form)
def described(coordinates: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The estimates (p,) at free coordinates x, and their Jacobian (p, q)."""
    return coordinates.estimates(x), jax.jacfwd(coordinates.estimates)(x)


@Compiled
def compiled_total(loss: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    total = loss.total(x)
    return total.log_prob, total.stderr**2


def total_by_rows(loss: ObservationsLoss, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """As `compiled_total`, by the program of `log_likelihood`, which a fit has compiled already."""
    loc, covariance = gaussian_at(loss, x)
    total = total_log_likelihood(loss.observations, loc, covariance, loss.method, loss.key)
    return total.log_prob, total.stderr**2


def total_of(loss: Any, x: jax.Array) -> Estimate:
    """The log-likelihood of all rows and its standard error."""
    if isinstance(loss, ObservationsLoss):
        value, variance = pooling.evaluated(total_by_rows, loss, x)
    else:
        value, variance = pooling.evaluated(compiled_total, loss, x)
    return Estimate(value, variance**0.5)


@Compiled
def compiled_fractions(loss: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return loss.fractions(x)


def fraction_of(loss: Any, x: jax.Array) -> float:
    """The mean probability that a row could be seen, with its digits where that is small."""
    parts = pooling.evaluated(compiled_fractions, loss, x)
    unseen, seen = map(float, parts)
    if unseen < 0.5:
        return 1.0 - unseen
    anywhere = 1.0 - unseen - seen  # rows without a region, but for rounding
    return seen + (anywhere if anywhere > 1e-12 else 0.0)


def judged_rows(
    loss: Any, x: jax.Array, rows: Observations, fitted: float, converged: bool
) -> tuple[float, Outliers | None]:
    """The mean probability that a row could be seen, and the rows that are farthest from their
    means, of a fit that has converged; see `outliers_of`."""
    if isinstance(loss, ObservationsLoss):
        filled, held = loss.observations, (loss.method, loss.key)
        loc, covariance = gaussian_at(loss, x)
        seen = np.asarray(fraction_not_truncated(filled, loc, covariance, *held))
        weights = 1.0 if filled.weights is None else np.asarray(filled.weights)
        fraction = float(pooling.total(np.sum(weights * seen)) / loss.size)
        seen = seen[: rows.num_rows]
    else:
        fraction, seen = fraction_of(loss, x), np.ones(1)
        loc, covariance = loss.gaussian(x)
    return fraction, outliers_of(rows, loc, covariance, seen, fitted) if converged else None


@Compiled
def scores_of(loss: Any, x: jax.Array) -> jax.Array:
    return loss.scores(x)


def summary(
    path: Path,
    coordinates: Any,
    names: tuple[str, ...],
    rows: tuple[Observations, Observations],
    information: str,
    endless: str | None,
    compare: bool,
    expected: Any = None,
) -> dict[str, Any]:
    """The fields of a `RowsFit` that follow from where a descent ended, but for the fraction
    not truncated and the references.

    Args:
        path: the descent.
        coordinates: what x stands for.
        names: of the estimates.
        rows: as the user has them, and centred as in the loss.
        information: "observed", "expected" or "sandwich".
        endless: why there is no maximum, or None.
        compare: whether to compare Wald's intervals with the likelihood.
        expected: the loss whose Hessian is the expected information of a row, if that is asked for.
    """
    loss, here, x = path.loss, path.end, jnp.asarray(path.end.x)
    total = total_of(loss, x)
    estimates, jacobian = map(np.asarray, described(coordinates, x))
    slope, curvature = (float(loss.size) * part for part in (here.gradient, here.hessian))
    proof = certificate(slope, curvature, float(total.stderr))
    free_errors = free_errors_of(information, loss, here, rows[0], proof, expected)
    bars = free_errors.of(jacobian)
    converged, reason = ending(path, proof, endless)
    errors = bars.standard_errors if endless is None else np.full(len(names), np.inf)
    compare &= converged
    ratios = ratios_of(loss, here, coordinates, jacobian) if compare else np.zeros((0, 2))
    return {
        "names": names,
        "estimates": estimates,
        "errors": errors,
        "information": information,
        "wald_ratios": ratios,
        "log_likelihood": float(total.log_prob),
        "log_likelihood_stderr": float(total.stderr),
        "num_rows": counted(rows[0]),
        "converged": converged,
        "reason": reason,
        **traces(path),
        "parameter_covariance": bars.covariance,
        "free_errors": free_errors,
        "certificate": proof,
        "observations": rows[0],
        "centred": rows[1],
        "share": pooling.own_share(),
        "coordinates": coordinates,
    }


def counted(rows: Observations) -> float:
    """How many rows of all processes say something, each counted as often as its weight says."""
    return pooling.total(np.asarray(rows.weight)).item()


def traces(path: Path) -> dict[str, Any]:
    """How the descent went, over how many parameters, and where it ended."""
    return {
        "loss": path.loss,
        "best": path.end,
        "num_parameters": len(path.end.x),
        "num_steps": len(path.visited) - 1,
        "loss_trace": np.array([p.loss for p in path.visited]),
        "newton_decrement_trace": np.array([p.decrement for p in path.visited]),
    }


def ending(path: Path, proof: Certificate, endless: str | None) -> tuple[bool, str]:
    """Whether this is a maximum, and a sentence."""
    if np.isinf(proof.stderr):
        return False, BASELESS
    if endless is not None:
        return False, endless
    if proof.positive_definite:
        return verdict(proof.distance, len(path.visited) - 1)
    return False, (
        "Not converged: the curvature of the likelihood is not positive beyond rounding at the end "
        f"(smallest scaled eigenvalue {proof.curvature:.1e}). The rows do not determine the "
        "parameters, or some of these lie so far off that rounding hides it."
    )


def free_errors_of(
    information: str,
    loss: Any,
    here: Point,
    observations: Observations,
    proof: Certificate,
    expected: Any,
) -> FreeErrors:
    """What is known of the errors of the coordinates, by the information asked for."""
    size = float(loss.size)
    if information == "expected":
        return FreeErrors.observed(size * point(expected, here.x).hessian)
    observed = FreeErrors.observed(size * here.hessian)
    return (
        observed
        if information == "observed"
        else sandwich(observed, loss, here, observations, proof)
    )


def sandwich(
    observed: FreeErrors, loss: Any, here: Point, observations: Observations, proof: Certificate
) -> FreeErrors:
    """Error bars that hold for many rows even if their distribution is not Gaussian (White, 1982):
    with H the Hessian and s_i the rows' scores, the covariance H^-1 (sum_i s_i s_i^T) H^-1.

    Unknown (nan) where the Hessian is not positive definite.
    """
    size = float(loss.size)
    given = observations.weights
    weights = np.ones(observations.num_rows) if given is None else np.asarray(given)
    scores = np.asarray(scores_of(loss, jnp.asarray(here.x)))[: len(weights)]
    seen = weights > 0
    if not proof.positive_definite:
        return observed._replace(root=np.full_like(here.hessian, np.nan))
    # The root of the scores' squares by QR, which loses no digits to squaring.
    root = pooling.triangle(scores[seen] / np.sqrt(weights[seen, None]))
    return observed._replace(root=np.linalg.solve(size * here.hessian, root.T))


def ratios_of(loss: Any, here: Point, coordinates: Any, jacobian: np.ndarray) -> np.ndarray:
    """See `wald_ratios`."""
    size = float(loss.size)

    def value(x: np.ndarray) -> float:
        return -float(total_of(loss, jnp.asarray(x)).log_prob) / size

    def estimates(x: np.ndarray) -> np.ndarray:
        return np.asarray(described(coordinates, jnp.asarray(x))[0])

    covariance = np.linalg.inv(size * here.hessian)
    return wald_ratios(value, size, here.x, covariance, estimates, jacobian)


def notes_of(fields: dict[str, Any], unique: bool, starts: str, fraction: float) -> tuple[str, ...]:
    """What a reader of the numbers must know: is it global, and what does it rest on?

    Where a likelihood that has one maximum at most was not followed to it, nothing is said of
    others.
    """
    notes = []
    if not unique:
        others = f". {starts}" if starts else "; try num_starts."
        notes.append(f"The likelihood may have other maxima{others}")
    elif fields["converged"]:
        notes.append(NO_OTHER)
    stderr, ratios = fields["certificate"].stderr, fields["wald_ratios"]
    if 0.1 < stderr < np.inf:
        notes.append(
            f"The log-likelihood is known to {stderr:.2g} only, as its integrals are estimates: "
            "give the method more points."
        )
    if fraction < MOSTLY_UNSEEN and fields["converged"]:
        notes.append(UNSEEN.format(in_words(fraction)))
    if fields["outliers"] is not None and len(fields["outliers"].rows):
        notes.append(str(fields["outliers"]))
    if fields["converged"] and not len(ratios):
        notes.append("Wald intervals were not compared with the likelihood; profile() does that.")
    return tuple(notes)
