"""The result of a mixture's fit, and what its reader must know: notes on every component."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from truncgauss.fitting.centring import COARSE
from truncgauss.fitting.engine import estimates_at
from truncgauss.fitting.mixtures.curvature import rough_point, score_products
from truncgauss.fitting.mixtures.edge import edge_of
from truncgauss.fitting.mixtures.em import Ascent
from truncgauss.fitting.mixtures.likelihood import MixtureTerms, row_weights
from truncgauss.fitting.mixtures.loss import MixtureLoss, shares, terms_at, total_at
from truncgauss.fitting.mixtures.result import MixtureErrors, MixtureFit
from truncgauss.fitting.optimization.newton import Point, verdict
from truncgauss.fitting.optimization.result import BASELESS, MOSTLY_UNSEEN, in_words
from truncgauss.fitting.optimization.uncertainty import Certificate, FreeErrors, certificate
from truncgauss.fitting.optimization.wald import by_differences, untrusted, wald_ratios
from truncgauss.likelihood import Observations

SAME = 1e-4  # nats, within which two starts have reached one maximum
MOST_COMPARED = 10**6  # rows in all evaluations of the likelihood that compare it with Wald's
NOT_COMPARED = "Wald intervals were not compared with the likelihood of so many rows."
ROUGH = (
    "Take standard errors and Wald intervals of {} for rough ones: the log-likelihood is far from "
    "quadratic. In simulations of such mixtures 95 % intervals held the truth in 0.82 to 0.96 of "
    "the samples, and stated errors were 0.6 to 1.0 of the estimates' scatter."
)
QUANTILE = 1.959963984540054  # of a normal distribution, for 95 % intervals
FEW_ROWS = 2  # for each parameter of several components, below which maxima are accidents
ACCIDENT = (
    "Not converged: {} rows are too few for {} parameters, and the steps ended at one of the many "
    "maxima that so few rows have by accident. Use more rows, fewer components, or a simpler "
    "covariance."
)
THIN = 1e-6  # variance in units of the rows', below which a component is nearly singular


def finished(
    loss: MixtureLoss,
    here: Point,
    reached: np.ndarray,
    ascent: Ascent,
    trace: np.ndarray,
    information: str,
    endless: str | None = None,
) -> MixtureFit:
    """The result at a point.

    Args:
        loss: with the plans made there.
        here: the point.
        reached: what each start reached.
        ascent: the EM steps of the start that led here.
        trace: the loss and the Newton decrement at each step after these, (m, 2).
        information: what the standard errors come from.
        endless: why there is no maximum, if it is known that there is none.
    """
    size, place = float(loss.size), loss.coordinates
    terms = terms_at(loss, here.x)
    told = told_by(loss, terms)
    stderr = told.stderr
    proof = certificate(size * here.gradient, size * here.hessian, stderr)
    edge = endless or (edge_of(loss, here.x) if here.finite else None)
    if edge is not None:
        proof = Certificate(np.nan, np.nan, np.nan, False, stderr)
    converged, reason = ending(loss, here, proof, len(trace) - 1, edge)
    known = edge is None and reason != accident(loss)
    estimated = estimates_of(loss, here, information, known)
    estimated |= {"certificate": proof, "converged": converged, "reason": reason}
    ratios = ratios_of(loss, here) if converged else np.zeros((0, 2))
    objective = -here.loss * size  # with the prior, if there is one
    notes = notes_of_starts(reached, objective, stderr, ascent, converged)
    notes += notes_of(loss, told, estimated)
    notes += interval_notes(place.kinds, estimated, ratios) if converged else ()
    return MixtureFit(
        **estimated,
        **row_fields(loss, terms, told),
        start_log_likelihoods=reached,
        num_reached=int(np.sum(np.abs(reached - objective) <= max(SAME, 3.0 * stderr))),
        em_log_likelihoods=ascent.log_likelihoods,
        num_parameters=len(here.x),
        num_steps=len(trace) - 1,
        loss_trace=trace[:, 0],
        newton_decrement_trace=trace[:, 1],
        notes=notes,
        wald_ratios=ratios,
        loss=loss,
        coordinates=place,
        best=here,
    )


def row_fields(loss: MixtureLoss, terms: MixtureTerms, told: "Told") -> dict[str, Any]:
    """The fields of a fit that say what the mixture makes of the rows."""
    return {
        "log_likelihood": told.log_likelihood,
        "log_likelihood_stderr": told.stderr,
        "responsibilities": np.asarray(terms.responsibilities),
        "entropy": told.entropy,
        "fraction_not_truncated": told.inside / float(loss.size),
        "num_rows": loss.sums.sum(np.asarray(loss.observations.weight)).item(),
        "observations": loss.observations,
        "share": loss.sums.share,
    }


class Told(NamedTuple):
    """What all rows together tell of a mixture.

    Attributes:
        log_likelihood, stderr: of all rows, and its sampling error.
        counts: the expected number of rows of each component, (K,).
        inside: the sum over rows of the probability that each component lies in their region, (K,).
        entropy: of the components of all rows, in nats.
    """

    log_likelihood: float
    stderr: float
    counts: np.ndarray
    inside: np.ndarray
    entropy: float


def told_by(loss: MixtureLoss, terms: MixtureTerms) -> Told:
    """The sums over rows, of all processes, of what a mixture says of each."""
    value, stderr = map(np.asarray, total_at(loss, terms))
    weights = np.asarray(row_weights(loss.observations, jnp.float64))
    shares = np.asarray(terms.responsibilities)
    inside = weights @ np.exp(np.asarray(terms.components.region).T)
    logs = np.log(np.where(shares > 0, shares, 1.0))
    own = value, stderr**2, weights @ shares, inside, -weights @ np.sum(shares * logs, axis=1)
    value, variance, counts, inside, entropy = loss.sums.sum(own)
    return Told(float(value), float(variance) ** 0.5, counts, inside, float(entropy))


def estimates_of(loss: MixtureLoss, here: Point, information: str, known: bool) -> dict[str, Any]:
    """The fields of a fit that hold estimates and their errors: where these are not known, infinite
    but for what is fixed."""
    place, x = loss.coordinates, jnp.asarray(here.x)
    names = place.names(loss.observations.labels)
    estimates, jacobian = map(np.asarray, estimates_at(place, x))
    observed, slopes = shares(loss, here.x)
    matrix = float(loss.size) * here.hessian if known else np.zeros_like(here.hessian)
    free_errors = FreeErrors.observed(matrix)
    if known and information == "sandwich":
        free_errors = free_errors._replace(root=sandwich_root(loss, here.x, matrix))
    # Together: a coordinate that moves no weight is still unknown, and its error counts.
    bars = free_errors.of(np.concatenate([jacobian, slopes]))
    errors, of_observed = np.split(bars.standard_errors, [len(names)])
    by_weight, by_loc, by_covariance = place.shaped(errors)
    weights, locs, covariances = place.shaped(estimates)
    covariance = bars.covariance[: len(names), : len(names)]
    return {
        "weights": weights,
        "observed_weights": observed,
        "locs": locs,
        "covariances": covariances,
        "standard_errors": MixtureErrors(by_weight, of_observed, by_loc, by_covariance),
        "names": names,
        "estimates": estimates,
        "errors": errors,
        "parameter_covariance": covariance if known else np.full_like(covariance, np.nan),
        "free_errors": free_errors,
        "information": information,
    }


def sandwich_root(loss: MixtureLoss, x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """R with R R^T = H^-1 (sum_i s_i s_i^T) H^-1, of the Hessian H, (q, q), and the rows' scores s:
    the covariance of free coordinates also if the rows come from another distribution (White,
    1982). Unknown (nan) where H is not positive definite."""
    if not (np.all(np.isfinite(matrix)) and np.linalg.eigvalsh(matrix)[0] > 0):
        return np.full_like(matrix, np.nan)
    values, vectors = np.linalg.eigh(score_products(loss, x))
    return np.linalg.solve(matrix, vectors * np.sqrt(np.maximum(values, 0.0)))


def accident(loss: MixtureLoss) -> str | None:
    """That the rows are too few for a maximum to be believed, in words; None if they are not."""
    place, size = loss.coordinates, float(loss.size)
    if place.num_components == 1 or FEW_ROWS * place.size <= size:
        return None
    return ACCIDENT.format(f"{size:g}", place.size)


def ending(
    loss: MixtureLoss, here: Point, proof: Certificate, num_steps: int, edge: str | None
) -> tuple[bool, str]:
    """Whether this is a maximum, and a sentence."""
    if not here.finite:
        return False, "Not converged: the likelihood or its derivatives are not finite at the end."
    if not np.isfinite(proof.stderr):
        return False, BASELESS
    if edge is not None:
        return False, edge
    if proof.positive_definite:
        converged, reason = verdict(here.decrement * float(loss.size) ** 0.5, num_steps)
        few = accident(loss) if converged else None
        return converged and few is None, few or reason
    return False, (
        "Not converged: the curvature of the likelihood is not positive at the end (smallest "
        f"scaled eigenvalue {proof.curvature:.1e}). The rows do not determine that many "
        "components: two may be equal, one empty or without spread. Use fewer components."
    )


def ratios_of(loss: MixtureLoss, here: Point) -> np.ndarray:
    """See `wald_ratios`; none where the rows are too many to be looked at so often."""
    place, size = loss.coordinates, float(loss.size)
    estimates, jacobian = map(np.asarray, estimates_at(place, jnp.asarray(here.x)))
    num_rows = loss.sums.sum(np.asarray(loss.observations.num_rows)).item()
    if 2 * len(estimates) * num_rows > MOST_COMPARED:
        return np.zeros((0, 2))
    return wald_ratios(
        by_differences(lambda x: rough_point(loss, x).loss),
        size,
        here.x,
        np.linalg.inv(size * here.hessian),
        lambda x: np.asarray(estimates_at(place, jnp.asarray(x))[0]),
        jacobian,
    )


def interval_notes(
    kinds: tuple[str, ...], estimated: dict[str, Any], ratios: np.ndarray
) -> tuple[str, ...]:
    """How far Wald's intervals may be trusted."""
    names, notes = estimated["names"], []
    with np.errstate(invalid="ignore"):
        low = estimated["estimates"] - QUANTILE * estimated["errors"]
    positive = np.array(kinds) != "number"
    if kinds.count("weight") == 1:
        positive[0] = False  # it is fixed
    wrong = np.flatnonzero(positive & np.isfinite(low) & (low < 0))
    if len(wrong):
        notes.append(
            f"Do not trust the Wald intervals of {', '.join(names[k] for k in wrong)}: they reach "
            "below 0, where no such value can be."
        )
    if not len(ratios):
        return (*notes, NOT_COMPARED)
    far = np.setdiff1d(np.flatnonzero(untrusted(ratios)), wrong)
    rough = (ROUGH.format(", ".join(names[k] for k in far)),) if len(far) else ()
    return (*notes, *rough)


def notes_of_starts(
    reached: np.ndarray, value: float, stderr: float, ascent: Ascent, converged: bool
) -> tuple[str, ...]:
    """What the starts say of other maxima."""
    notes, finite = [], np.isfinite(reached)
    others = reached[finite & (np.abs(reached - value) > max(SAME, 3.0 * stderr))]
    if len(reached) > 1:
        count = int(finite.sum()) - len(others)
        end = "maximum" if converged else "end"
        notes.append(f"{count} of {len(reached)} starts reached this {end}.")
    if len(others):
        notes.append(
            f"{len(others)} reached other maxima or stopped, lower by "
            f"{value - others.max():.3g} to {value - others.min():.3g} nats."
        )
    if not np.all(finite):
        notes.append(
            f"In {int(np.sum(~finite))} start(s) a component shrank onto a few rows, where the "
            "likelihood has no maximum; these do not count."
        )
    if ascent.fell > 0:
        notes.append(
            f"An EM step would have lowered the log-likelihood by {ascent.fell:.2g}, as its "
            "integrals are estimates: give the method more points."
        )
    return tuple(notes)


def notes_of(
    loss: MixtureLoss,
    told: Told,
    estimated: dict[str, Any],
) -> tuple[str, ...]:
    """What each component rests on."""
    notes, d, inside = [], loss.coordinates.dimension, told.inside / float(loss.size)
    matrices, converged = estimated["covariances"], estimated["converged"]
    if loss.prior_rows is not None:
        notes.append(
            f"A prior holds every covariance as {float(loss.prior_rows):g} more row(s) of all "
            "rows' variances would. Estimates and standard errors include it; log-likelihood, AIC, "
            "BIC and ICL are those of the rows alone."
        )
    scale = np.asarray(loss.coordinates.scale)
    least = np.linalg.eigvalsh(matrices / np.outer(scale, scale))[:, 0]
    for k, count in enumerate(told.counts):
        if count < d + 1:
            below = np.floor(1e3 * count) / 1e3
            notes.append(
                f"Component {k} rests on {below:.4g} rows, fewer than the {d + 1} that span it: it "
                "may be an accident of the sample."
            )
        if inside[k] < MOSTLY_UNSEEN and converged:
            notes.append(
                f"Only {in_words(inside[k])} of component {k} lies where rows can be seen: its "
                "weight and width rest on the Gaussian shape of what no row can check."
            )
        if least[k] < THIN:
            notes.append(
                f"Component {k} is nearly singular: its smallest variance is {least[k]:.1g} of the "
                "rows' own."
            )
    if 0.1 < told.stderr < np.inf:
        notes.append(
            f"The log-likelihood is known to {told.stderr:.2g} only, as its integrals are "
            "estimates: give the method more points."
        )
    return tuple(notes)


def coarse_notes(rows: Observations, locs: np.ndarray, matrices: np.ndarray) -> tuple[str, ...]:
    """That rows in float32 hide how those of a component differ, in words, if so.

    Args:
        rows: the observations, as the user has them.
        locs: means of the components, (K, d).
        matrices: their covariances, (K, d, d).
    """
    if rows.lower.dtype != jnp.float32:
        return ()
    steps = np.spacing(np.abs(locs).astype(np.float32)).astype(float)
    spreads = np.sqrt(np.diagonal(matrices, axis1=1, axis2=2))
    wrong = np.argwhere(steps > COARSE * spreads)
    if not len(wrong):
        return ()
    k, j = worst = tuple(wrong[np.argmax((steps / spreads)[tuple(wrong.T)])])
    return (
        f"Entry {rows.labels[j]} is kept in float32, in steps of {steps[worst]:.2g} where "
        f"component {k} lies, and the spread of that is {spreads[worst]:.2g}: errors do not count "
        "that rounding. Subtract a value from the middle of that entry, or set "
        'jax.config.update("jax_enable_x64", True) before making rows.',
    )
