"""The result of a mixture's fit, and what its reader must know: notes on every component."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from truncgauss.fitting.centring import COARSE
from truncgauss.fitting.mixtures.curvature import score_products
from truncgauss.fitting.mixtures.edge import edge_of
from truncgauss.fitting.mixtures.em import Ascent
from truncgauss.fitting.mixtures.likelihood import MixtureTerms, row_weights
from truncgauss.fitting.mixtures.loss import MixtureLoss, shares, slope, terms_at, total_at
from truncgauss.fitting.mixtures.parameters import estimates_at, jacobian_at
from truncgauss.fitting.mixtures.result import MixtureErrors, MixtureFit
from truncgauss.fitting.optimization.newton import Point, verdict
from truncgauss.fitting.optimization.result import BASELESS, MOSTLY_UNSEEN, in_words
from truncgauss.fitting.optimization.uncertainty import Certificate, FreeErrors, certificate
from truncgauss.fitting.optimization.wald import untrusted, wald_ratios
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
    """The result at a point; `endless` says why there is no maximum, if it is known that there is
    none."""
    size = float(loss.size)
    jacobian = np.asarray(jacobian_at(loss.coordinates, jnp.asarray(here.x)))
    estimated = estimates_of(loss, here, jacobian, information)
    terms = terms_at(loss, here.x)
    told = told_by(loss, terms)
    stderr, inside = told.stderr, told.inside / size
    estimated |= judged(loss, here, estimated, stderr, len(trace) - 1, endless)
    objective = -here.loss * size  # with the prior, if there is one
    notes = notes_of_starts(reached, objective, stderr, ascent, estimated["converged"])
    notes += notes_of(loss, told.counts, inside, estimated, stderr)
    notes += interval_notes(loss, here, jacobian, estimated) if estimated["converged"] else ()
    return MixtureFit(
        **estimated,
        log_likelihood=told.log_likelihood,
        log_likelihood_stderr=stderr,
        responsibilities=np.asarray(terms.responsibilities),
        entropy=told.entropy,
        fraction_not_truncated=inside,
        num_rows=loss.sums.sum(np.asarray(loss.observations.weight)).item(),
        num_parameters=len(here.x),
        start_log_likelihoods=reached,
        num_reached=int(np.sum(np.abs(reached - objective) <= max(SAME, 3.0 * stderr))),
        em_log_likelihoods=ascent.log_likelihoods,
        num_steps=len(trace) - 1,
        loss_trace=trace,
        notes=notes,
        loss=loss,
        best=here.x,
        share=loss.sums.share,
    )


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


def estimates_of(
    loss: MixtureLoss, here: Point, jacobian: np.ndarray, information: str
) -> dict[str, Any]:
    """The fields of a fit that hold estimates, whose Jacobian is given, and their errors."""
    place, x = loss.coordinates, jnp.asarray(here.x)
    names = place.names(loss.observations.labels)
    estimates = np.asarray(estimates_at(place, x))
    observed, slopes = shares(loss, here.x)
    # Together: a coordinate that moves no weight is still unknown, and its error counts.
    jacobian = np.concatenate([jacobian, slopes])
    matrix = float(loss.size) * here.hessian
    errors_of_x = FreeErrors.observed(matrix)
    if information == "sandwich":
        errors_of_x = errors_of_x._replace(root=sandwich_root(loss, here.x, matrix))
    bars = errors_of_x.of(jacobian)
    errors, of_observed = np.split(bars.standard_errors, [len(names)])
    by_weight, by_loc, by_covariance = place.shaped(errors)
    weights, locs, covariances = place.shaped(estimates)
    return {
        "weights": weights,
        "observed_weights": observed,
        "locs": locs,
        "covariances": covariances,
        "standard_errors": MixtureErrors(by_weight, of_observed, by_loc, by_covariance),
        "names": names,
        "estimates": estimates,
        "errors": errors,
        "parameter_covariance": bars.covariance[: len(names), : len(names)],
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


def judged(
    loss: MixtureLoss,
    here: Point,
    estimated: dict[str, Any],
    stderr: float,
    num_steps: int,
    endless: str | None,
) -> dict[str, Any]:
    """The fields of a fit that say whether it ended at a maximum; at an edge, or where there is
    none, also those of errors, which are infinite there but for what is fixed."""
    size = float(loss.size)
    proof = certificate(size * here.gradient, size * here.hessian, stderr)
    edge = endless or (edge_of(loss, here.x) if here.finite else None)
    fields: dict[str, Any] = {}
    if edge is not None:
        proof = Certificate(np.nan, np.nan, np.nan, False, stderr)
        fields = without_errors(estimated)
    converged, reason = ending(here, proof, size, num_steps, edge)
    if converged and FEW_ROWS * len(here.x) > size and loss.coordinates.num_components > 1:
        converged, reason = False, ACCIDENT.format(f"{size:g}", len(here.x))
        fields = without_errors(estimated)
    return fields | {"certificate": proof, "converged": converged, "reason": reason}


def without_errors(estimated: dict[str, Any]) -> dict[str, Any]:
    """The fields of errors where nothing is known: infinite but for what is fixed."""

    def unknown(errors: np.ndarray) -> np.ndarray:
        return np.where(errors == 0.0, 0.0, np.inf)

    return {
        "standard_errors": MixtureErrors(*map(unknown, estimated["standard_errors"])),
        "errors": unknown(estimated["errors"]),
        "parameter_covariance": np.full_like(estimated["parameter_covariance"], np.nan),
    }


def ending(
    here: Point, proof: Certificate, size: float, num_steps: int, edge: str | None
) -> tuple[bool, str]:
    """Whether this is a maximum, and a sentence."""
    if not here.finite:
        return False, "Not converged: the likelihood or its derivatives are not finite at the end."
    if not np.isfinite(proof.stderr):
        return False, BASELESS
    if edge is not None:
        return False, edge
    if proof.positive_definite:
        return verdict(here.decrement * size**0.5, num_steps)
    return False, (
        "Not converged: the curvature of the likelihood is not positive at the end (smallest "
        f"scaled eigenvalue {proof.curvature:.1e}). The rows do not determine that many "
        "components: two may be equal, one empty or without spread. Use fewer components."
    )


def interval_notes(
    loss: MixtureLoss, here: Point, jacobian: np.ndarray, estimated: dict[str, Any]
) -> tuple[str, ...]:
    """How far Wald's intervals may be trusted."""
    names, notes = estimated["names"], []
    wrong = impossible_intervals(loss, estimated)
    if len(wrong):
        notes.append(
            f"Do not trust the Wald intervals of {', '.join(names[k] for k in wrong)}: they reach "
            "below 0, where no such value can be."
        )
    num_rows = loss.sums.sum(np.asarray(loss.observations.num_rows)).item()
    if 2 * len(names) * num_rows > MOST_COMPARED:
        return (*notes, NOT_COMPARED)
    place = loss.coordinates
    ratios = wald_ratios(
        lambda x: slope(loss, x)[0],
        float(loss.size),
        here.x,
        np.linalg.inv(float(loss.size) * here.hessian),
        lambda x: np.asarray(estimates_at(place, jnp.asarray(x))),
        jacobian,
    )
    far = np.setdiff1d(np.flatnonzero(untrusted(ratios)), wrong)
    rough = (ROUGH.format(", ".join(names[k] for k in far)),) if len(far) else ()
    return (*notes, *rough)


def impossible_intervals(loss: MixtureLoss, estimated: dict[str, Any]) -> np.ndarray:
    """Numbers of the weights and variances whose Wald intervals reach below 0."""
    place = loss.coordinates
    k, d = place.num_components, place.dimension
    variances = [i == j for i, j in place.entries] * place.num_factors
    positive = np.array([k > 1] * k + [False] * (k * d) + variances)
    with np.errstate(invalid="ignore"):
        low = estimated["estimates"] - QUANTILE * estimated["errors"]
    return np.flatnonzero(positive & np.isfinite(low) & (low < 0))


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
    counts: np.ndarray,
    inside: np.ndarray,
    estimated: dict[str, Any],
    stderr: float,
) -> tuple[str, ...]:
    """What each component rests on."""
    notes, d = [], loss.coordinates.dimension
    matrices, converged = estimated["covariances"], estimated["converged"]
    if loss.prior_rows is not None:
        notes.append(
            f"A prior holds every covariance as {float(loss.prior_rows):g} more row(s) of all "
            "rows' variances would. Estimates and standard errors include it; log-likelihood, AIC, "
            "BIC and ICL are those of the rows alone."
        )
    scale = np.asarray(loss.coordinates.scale)
    least = np.linalg.eigvalsh(matrices / np.outer(scale, scale))[:, 0]
    for k, count in enumerate(counts):
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
    if 0.1 < stderr < np.inf:
        notes.append(
            f"The log-likelihood is known to {stderr:.2g} only, as its integrals are estimates: "
            "give the method more points."
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
