"""The end of a truncated fit: whether it is the maximum, its errors, and the user's units."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.fitting.optimization.newton import Point, slope_at, verdict
from truncgauss.fitting.optimization.result import (
    BASELESS,
    MOSTLY_UNSEEN,
    NO_OTHER,
    UNSEEN,
    in_words,
)
from truncgauss.fitting.optimization.uncertainty import Certificate, FreeErrors, certificate
from truncgauss.fitting.optimization.widening import WIDEST, Precision, along
from truncgauss.fitting.truncated_normal_loss import (
    TruncatedLoss,
    estimate_of,
    gaussian,
    packed,
    unpacked,
)
from truncgauss.fitting.truncated_normal_notes import integral_notes, wald_ratios_of
from truncgauss.fitting.truncated_normal_result import (
    GaussianErrors,
    NaturalCoordinates,
    TruncatedFit,
    names_of,
    with_sigma,
)
from truncgauss.fitting.truncated_normal_rows import Sample

REFERENCES = ("marquardt1963", "cohen1991", "barndorff1978")


def finished(
    sample: Sample,
    loss: TruncatedLoss,
    here: Point,
    visited: list[Point],
    notes: tuple[str, ...],
    dtype: Any,
) -> TruncatedFit:
    """The result in the user's units."""
    n, d, scale, x = sample.weight, len(sample.centre), sample.scale, jnp.asarray(here.x)
    log_units = sample.log_units
    coordinates = NaturalCoordinates(*map(jnp.asarray, (sample.centre, scale, sample.root)))
    estimates = np.asarray(coordinates.estimates(x))
    known = known_at_the_end(sample, loss, here, len(visited) - 1)
    errors, variances = known["errors"], estimates
    if d == 1:  # of sigma
        errors, variances = errors * [1.0, 2.0 * estimates[1]], estimates ** [1, 2]
    loc, covariance = unpacked(variances, d)
    return TruncatedFit(
        loc=jnp.asarray(loc, dtype),
        covariance_matrix=jnp.asarray(covariance, dtype),
        standard_errors=GaussianErrors(*unpacked(errors, d)),
        names=names_of(sample.columns),
        estimates=estimates,
        information="observed",
        log_likelihood=-n * (here.loss + log_units),
        num_rows=n,
        num_parameters=len(here.x),
        num_steps=len(visited) - 1,
        loss_trace=np.array([p.loss for p in visited]) + log_units,
        newton_decrement_trace=np.array([p.decrement for p in visited]),
        loss=loss,
        coordinates=coordinates,
        best=here,
        **known | {"notes": notes + known["notes"]},
    )


def known_at_the_end(
    sample: Sample, loss: TruncatedLoss, here: Point, num_steps: int
) -> dict[str, Any]:
    """The fields of a fit that say whether it ended at the maximum, and how far to trust it."""
    n, x = sample.weight, jnp.asarray(here.x)
    # Computed once: where it is quick to run, it should be quick to compile.
    estimate = estimate_of(loss, x)
    proof = certificate(n * here.gradient, n * here.hessian, n * float(estimate.stderr))
    wide = Precision.packed(len(sample.centre)).wide(here.x)
    converged, reason = ending(here, proof, n, num_steps, np.asarray(sample.root) @ wide)
    if np.isinf(estimate.stderr):
        converged, reason = False, BASELESS
    slopes = np.array(gaussian_slopes(x, sample.root))
    if len(slopes) == 2:  # of sigma, the root of the variance
        slopes[1] /= 2.0 * math.sqrt(float(gaussian(x, sample.root)[1][0, 0]))
    free_errors = FreeErrors.observed(n * here.hessian)
    errors, spread = errors_of(free_errors, slopes, exists=not wide.size)
    fraction = math.exp(estimate.log_prob)
    notes, ratios = tuple[str, ...](), np.zeros((0, 2))
    if converged:
        value = functools.partial(slope_at, loss) if estimate.stderr == 0 else None
        ratios, left_out = wald_ratios_of(value, n, here, sample, slopes, errors)
        unseen = (UNSEEN.format(in_words(fraction)),) if fraction < MOSTLY_UNSEEN else ()
        notes = NO_OTHER, *unseen, *left_out, *integral_notes(loss, here, n, proof.stderr)
    units = with_sigma(packed(sample.scale, np.outer(sample.scale, sample.scale)))
    return {
        "converged": converged,
        "reason": reason,
        "notes": notes,
        "certificate": proof,
        "log_likelihood_stderr": proof.stderr,
        "fraction_not_truncated": fraction,
        "errors": errors * units,
        "parameter_covariance": spread * np.outer(units, units),
        "free_errors": free_errors,
        "wald_ratios": ratios,
        "references": REFERENCES + ("genz1992",) * (proof.stderr > 0),
    }


def errors_of(
    free: FreeErrors, jacobian: np.ndarray, exists: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Standard errors and covariance of packed (loc, covariance) in standard units.

    At the maximum the gradient is zero, so that the information transforms by the Jacobian alone.
    """
    if not exists:
        q = len(jacobian)
        return np.full(q, np.inf), np.full((q, q), np.nan)
    bars = free.of(jacobian)
    return bars.standard_errors, bars.covariance


@jax.jit
def gaussian_slopes(natural: jax.Array, root: jax.Array) -> jax.Array:
    """The Jacobian of packed (loc, covariance) with respect to the natural parameters."""
    return jax.jacfwd(lambda x: packed(*gaussian(x, root)))(natural)


def ending(
    here: Point, proof: Certificate, n: float, num_steps: int, wide: np.ndarray
) -> tuple[bool, str]:
    """Whether this is the maximum, and a sentence; `wide` are the directions (d, k) in which the
    Gaussian widens without an end."""
    if wide.size:
        return False, (
            "There is no maximum: the likelihood grows as the Gaussian widens, already to "
            f"{WIDEST:.0f} standard deviations of the sample. Inside these limits the rows look as "
            "spread as an exponential or uniform distribution. A Gaussian cannot be told from its "
            "slope: use wider limits, more rows, or a prior." + along(wide[:, 0])
        )
    if not proof.positive_definite:
        return False, (
            "Not converged: the curvature of the likelihood is not positive at the end (smallest "
            f"scaled eigenvalue {proof.curvature:.1e})."
        )
    return verdict(here.decrement * n**0.5, num_steps)
