"""Maximum likelihood of any model of rows: steps, several starts, certificate, errors and notes."""

import dataclasses
import functools
import time
from typing import Any

import jax
import numpy as np

from truncgauss.arrays.compiling import Compiled
from truncgauss.arrays.importing import imported
from truncgauss.arrays.progress import bar
from truncgauss.arrays.pytrees import Estimate
from truncgauss.fitting.descent import Path
from truncgauss.fitting.existence import refused
from truncgauss.fitting.least_squares import triangle
from truncgauss.fitting.likelihood_fit import Ending
from truncgauss.fitting.model import Model
from truncgauss.fitting.wald import coverages_of, estimates_at
from truncgauss.optimize.uncertainty import Certificate, FreeErrors, certificate
from truncgauss.words.names import check_choice
from truncgauss.words.numbers import is_missing_cell

INFORMATION = ("observed", "sandwich")
FEW_CLUSTERS = 40
FEW = (
    "Standard errors rest on {} clusters; from fewer than about "
    f"{FEW_CLUSTERS} they are too small as a rule."
)
UNUSED_START = (
    "From the start that was given the steps did not converge; these began at least squares."
)
ONE_LABEL = (
    "cluster must have one label for each of {} rows, got {}. Of one label a cluster make "
    "np.repeat(labels, sizes)."
)


def check_settings(information: str, num_profiles: int, cluster: Any = None) -> None:
    """Raise ValueError for settings that no fit takes."""
    if cluster is not None and information != "sandwich":
        raise ValueError(f'cluster needs information="sandwich", got {information!r}.')
    robust = ' "sandwich" is for robust standard errors.'
    check_choice(information, INFORMATION, "information", robust)
    check_count("num_profiles", num_profiles)


def check_count(name: str, count: Any, least: int = 0) -> None:
    """Raise ValueError for what is no whole number from the least on."""
    whole = isinstance(count, int | np.integer) and not isinstance(count, bool)
    if not whole or count < least:
        raise ValueError(f"{name} must be a whole number from {least} on, got {count!r}.")


def maximum_likelihood(
    model: Model,
    *,
    start: Any = None,
    num_steps: int = 100,
    num_starts: int | None = None,
    information: str = "observed",
    num_profiles: int = 10,
    progress: bool = True,
    cluster: Any = None,
) -> Any:
    """The fit of a model: where its likelihood is highest, and how far to trust that.

    Args:
        model: what to fit, see `fitting.Model`.
        start: free coordinates (q,) to begin with. The model's own starts are taken where the steps
            from there do not converge.
        num_steps: the most Newton steps from each start.
        num_starts: from how many points to begin, by default as many as the model asks for.
        information: what standard errors come from: "observed", minus the Hessian of the
            log-likelihood, or "sandwich", which holds for many rows of another distribution too.
        num_profiles: up to how many estimates get a profile interval in the table at once where
            their Wald intervals are not to be trusted.
        progress: say on standard error what goes on, if the fit takes more than a second.
        cluster: labels (n,) of groups of rows that may depend on each other, whose scores the
            sandwich adds up first; None for rows that do not.

    Returns:
        What `model.result` makes of it, by default a LikelihoodFit.

    Raises:
        ValueError: if the likelihood is not finite at any start, or for counts that are none.
    """
    check_settings(information, num_profiles, cluster)
    check_count("num_steps", num_steps)
    if num_starts is not None:
        check_count("num_starts", num_starts, 1)
    names = list(getattr(model, "names", ()))  # what a model lacks is said in its own words
    if twice := [name for k, name in enumerate(names) if name in names[:k]]:
        raise ValueError(
            f"two estimates would be called {twice[0]!r}: a covariate has the name of another "
            "estimate. Rename the covariate."
        )
    began = time.perf_counter()
    with jax.enable_x64(True), bar(None, "", progress):
        groups = None if cluster is None else groups_of(cluster, model.weights)
        descent, path = model.descent(model, num_steps, progress), None
        if start is not None:
            path = descent.path(np.asarray(start, np.float64))
        unused = path is not None and not path.arrived
        if path is None or unused:
            path = descent.best(model.starts(num_starts))
        fit = fit_at(model, path, information, groups)
        if unused:
            fit = dataclasses.replace(fit, notes=(UNUSED_START, *fit.notes))
        if groups is not None:
            count = groups[1]
            few = (FEW.format(count),) if count < FEW_CLUSTERS else ()
            fit = dataclasses.replace(fit, num_clusters=count, notes=(*fit.notes, *few))
        seconds = np.inf if model.quick else time.perf_counter() - began
        return fit.with_intervals(num_profiles, seconds)


def fit_at(model: Model, path: Path, information: str, groups: Any = None) -> Any:
    """The fit where a path has led; the information is "observed" or "sandwich"."""
    loss, end = path.loss, path.end
    total = model.total(path)
    if total is None:  # of all rows, and its standard error
        value, variance = -float(loss.size) * end.loss, end.variance
        if np.isnan(variance):
            value, variance = map(float, compiled_total(loss, end.x))
        total = Estimate(*jax.device_put((np.asarray(value), np.asarray(variance**0.5))))
    estimates, jacobian = map(np.asarray, estimates_at(model.coordinates, end.x))
    slope, curvature = (float(loss.size) * part for part in (end.gradient, end.hessian))
    proof = certificate(slope, curvature, float(total.stderr))
    obstacle = model.obstacle(path) if end.finite else None
    converged, reason = model.ending(path, proof, obstacle)
    known = obstacle is None
    if not known:
        proof = Certificate(np.nan, np.nan, np.nan, False, proof.stderr)
    free_errors = free_errors_of(model, path, proof, information, known, groups)
    bars = free_errors.of(jacobian)
    errors, covariance = bars.standard_errors, np.where(known, bars.covariance, np.nan)
    coverages, remarks = np.zeros(0), tuple[str, ...]()
    if converged:
        compare = functools.partial(coverages_of, loss, end, model.coordinates, jacobian)
        coverages, remarks = model.wald_coverages(path, total, errors, compare)
    fraction, outliers = model.judged(path, total, converged)
    ending = Ending(
        names=model.names,
        estimates=estimates,
        errors=errors,
        information=information,
        wald_coverages=coverages,
        log_likelihood=float(total.log_prob),
        log_likelihood_stderr=float(total.stderr),
        num_rows=float(loss.size) if model.num_rows is None else model.num_rows,
        converged=converged,
        reason=reason,
        parameter_covariance=covariance,
        free_errors=free_errors,
        certificate=proof,
        coordinates=model.coordinates,
        loss=loss,
        best=end,
        num_parameters=len(end.x),
        num_steps=len(path.visited) - 1,
        loss_trace=np.array([p.loss for p in path.visited]),
        newton_decrement_trace=np.array([p.decrement for p in path.visited]),
        fraction_not_truncated=fraction,
        outliers=outliers,
    )
    ending = refused(ending, model.undetermined(path, errors), model.undetermined_reason)
    notes, stderr = [*model.other_maxima(ending, path)], ending.log_likelihood_stderr
    weighted = np.size(model.weights) > 1 or hasattr(model, "sample")  # or weights are in that
    if weighted and abs(float(loss.size) - 1.0) < 1e-6:
        notes.append(imported("truncgauss.words.misfits").ONE_OBSERVATION)
    if 0.1 < stderr < np.inf:
        notes.append(
            f"The log-likelihood is known to {stderr:.2g} only, as its integrals are estimates"
            + (": give the method more points." if hasattr(model, "method") else ".")
        )
    if ending.converged:
        notes += model.unseen(fraction)
    if outliers is not None and len(outliers.rows):
        notes.append(str(outliers))
    if ending.converged:
        notes += remarks
    ending = dataclasses.replace(ending, notes=model.notes(ending, tuple(notes), path))
    fit = model.result(ending, path)
    return dataclasses.replace(fit, notes=(*fit.notes, *fit.remarks))


# ---------------------------------------------------------------- the end of a path


@Compiled
def compiled_total(loss: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    total = loss.total(x)
    return total.log_prob, total.stderr**2


@Compiled
def scores_of(loss: Any, x: jax.Array) -> jax.Array:
    """The gradient of each row's log-likelihood, times its weight, (n, q)."""
    return loss.scores(x)


def groups_of(labels: Any, weights: Any) -> tuple[np.ndarray, int]:
    """The number of the group of each row, (n,), -1 for rows of weight 0, and how many groups there
    are, by labels that are numbers or texts.

    Raises:
        ValueError: for labels that are missing, of another length, or all equal.
    """
    values = np.asanyarray(labels)  # with a mask, if there is one
    n = len(values) if weights is None else len(weights)
    if values.shape != (n,):
        raise ValueError(ONE_LABEL.format(n, values.shape))
    refuse_missing_labels(values, "cluster")
    counted = np.ones(n, bool) if weights is None else np.asarray(weights) > 0
    codes = np.full(n, -1)
    kinds, codes[counted] = np.unique(values[counted].astype(str), return_inverse=True)
    if len(kinds) < 2:
        raise ValueError("cluster: all observations are of one cluster, so that nothing varies.")
    return codes, len(kinds)


def refuse_missing_labels(labels: np.ndarray, what: str) -> None:
    lost = [k for k, x in enumerate(labels.tolist()) if is_missing_cell(x)]
    if lost:
        raise ValueError(
            f"{what}: {len(lost)} of {len(labels)} labels are missing, first in row {lost[0]}. "
            "Remove these rows, or give them labels."
        )


def free_errors_of(
    model: Model,
    path: Path,
    proof: Certificate,
    information: str,
    known: bool,
    groups: tuple[np.ndarray, int] | None,
) -> FreeErrors:
    """Errors of the free coordinates, by the information asked for; infinite if none are known.

    With H the Hessian and R R^T the sum of w_i s_i s_i^T over the scores of rows, or of clusters
    with the factor G / (G - 1) of their number, H^-1 R is a root of a covariance that holds for
    many rows even if their distribution is not the model's (White, 1982).
    """
    loss, hessian = path.loss, path.end.hessian
    if not known:
        return FreeErrors.observed(np.zeros_like(hessian))
    observed = FreeErrors.observed(float(loss.size) * hessian)
    if information == "observed":
        return observed
    if not proof.positive_definite:
        return observed._replace(root=np.full_like(hessian, np.nan))
    weights = model.weights
    root = model.score_root(path) if groups is None else None
    if root is None:
        scores = np.asarray(scores_of(loss, path.end.x))
        if groups is not None:
            codes, count = groups
            # Only without weights the number of rows was not known before.
            if weights is None and len(codes) != len(scores):
                raise ValueError(ONE_LABEL.format(len(scores), codes.shape))
            total, counted = np.zeros((count, scores.shape[1])), codes >= 0
            np.add.at(total, codes[counted], scores[: len(codes)][counted])
            factor = np.asarray(np.linalg.qr(total, mode="r")).T
            root = factor * (count / (count - 1)) ** 0.5
        else:
            if weights is not None:
                weights = np.asarray(weights)
                seen = weights > 0
                scores = scores[: len(weights)][seen] / np.sqrt(weights[seen, None])
            root = triangle(scores).T  # by QR, which loses no digits to squaring
    return observed._replace(root=np.linalg.solve(float(loss.size) * hessian, root))
