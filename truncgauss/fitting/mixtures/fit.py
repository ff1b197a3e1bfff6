"""Maximum likelihood of a mixture of Gaussians from rows known in part, behind a selection."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution.progress import bar
from truncgauss.execution.pytrees import floats_as_float64
from truncgauss.execution.row_sums import RowSums
from truncgauss.fitting.centring import COARSE
from truncgauss.fitting.engine import maximum_likelihood
from truncgauss.fitting.mixtures.curvature import (
    MixtureSummary,
    rough_point,
    score_products,
    shares,
    terms_at,
)
from truncgauss.fitting.mixtures.edge import edge_of
from truncgauss.fitting.mixtures.em import Components
from truncgauss.fitting.mixtures.likelihood import row_weights
from truncgauss.fitting.mixtures.loss import MixtureLoss, divided, planned
from truncgauss.fitting.mixtures.parameters import STRUCTURES, MixtureCoordinates
from truncgauss.fitting.mixtures.result import MixtureErrors, MixtureFit
from truncgauss.fitting.mixtures.rising import ascending_sentence
from truncgauss.fitting.mixtures.search import MixtureDescent
from truncgauss.fitting.mixtures.starts import seeded, standard_rows
from truncgauss.fitting.model import LONE, Model
from truncgauss.fitting.optimization.result import MOSTLY_UNSEEN, in_words
from truncgauss.gaussian.problem import as_key
from truncgauss.likelihood import Observations, as_observations, local_rows, rows_of_fit
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import Method

INFORMATION = ("observed", "sandwich")
SAME = 1e-4  # nats, within which two starts have reached one maximum
MOST_COMPARED = 10**6  # rows in all evaluations of the likelihood that compare it with Wald's
FEW_ROWS = 2  # for each parameter of several components, below which maxima are accidents
ACCIDENT = (
    "Not converged: {} rows are too few for {} parameters, and the steps ended at one of the many "
    "maxima that so few rows have by accident. Use more rows, fewer components, or a simpler "
    "covariance."
)
THIN = 1e-6  # variance in units of the rows', below which a component is nearly singular


def fit_mixture(
    observations: Observations,
    num_components: int,
    *,
    covariance: str = "full",
    prior_rows: float = 0.0,
    num_starts: int = 8,
    start: tuple[Any, Any, Any] | None = None,
    method: Method = Automatic(),
    key: jax.Array | None = None,
    num_em_steps: int = 200,
    num_steps: int = 100,
    information: str = "observed",
    progress: bool = True,
) -> MixtureFit:
    """Maximum likelihood of a mixture of Gaussians from rows known in part, behind a selection.

    The likelihood is that of `mixture_log_likelihood`. From each start EM steps, of which none
    lowers it, lead near a maximum, and Newton steps (after steps by the products of scores, if
    parameters are many) to it. The result is the highest maximum found; what the other starts
    found, and what the estimates rest on, is said with it.

    Args:
        observations: the rows, `tg.Observations`: exact, censored, in intervals, missing, with
            noise, seen inside their regions. Their weights count rows.
        num_components: K.
        covariance: "full", "diagonal", or "tied" for one matrix that all components share.
        prior_rows: 0 for maximum likelihood; v > 0 for a prior that keeps components from
            collapsing, as if v more rows with the variances of all had been seen in each of them,
            log prior = -v/2 sum_k {log det(S^-1 Sigma_k) + tr(S Sigma_k^-1)} with S the diagonal
            matrix of the rows' variances (Chen and Tan, 2009). 1 is weak.
        num_starts: how many starts to make by k-means++ seeds. One component has one start.
        start: (weights, locs, covariances), a start of one's own in place of these.
        method: how probabilities are computed; its plans and key are held.
        key: random key of the seeds and of the method.
        num_em_steps: the most EM steps of each start.
        num_steps: the most Newton steps of each start; behind a region as many again where these
            reach no maximum, to find out whether a component widens without an end.
        information: what the standard errors come from: "observed", the curvature of the
            log-likelihood; or "sandwich", which holds for many rows of another distribution too.
        progress: say on standard error what goes on, such as compiling, or the log-likelihood after
            each step, if the fit takes more than a second: in one line on a terminal, else in few.

    Returns:
        MixtureFit, with `converged` false and the reason where there is no maximum.

    Raises:
        ValueError: for rows that are impossible, more parameters than rows, entries that are all
            equal, or settings that make no sense; a `NoMaximum` where every start ends with a
            component on a few rows.

    Example:
        >>> y = jnp.concatenate([jnp.linspace(0.0, 2.0, 20), jnp.linspace(5.0, 8.0, 30)])
        >>> fit = tg.fit_mixture(tg.Observations.exact(y), 2, num_starts=2)
        >>> fit.converged, fit.locs.ravel().round(2), fit.weights.round(2)
        (True, array([6.5, 1. ]), array([0.6, 0.4]))
    """
    as_observations(observations, "fit_mixture")
    if information not in INFORMATION:
        raise ValueError(
            f'fit_mixture: information must be "observed" or "sandwich", got {information!r}.'
        )
    settings: Any = dict(
        num_steps=num_steps, num_starts=num_starts, information=information, progress=progress
    )
    asked = num_components, covariance, prior_rows, repr(method), method, key
    read = functools.partial(local_rows, observations)
    with (
        jax.enable_x64(True),
        bar(None, "fit_mixture", progress),
        rows_of_fit("fit_mixture", observations, start, asked, read, lambda x: (x,)) as known,
    ):
        sums, rows = known
        loss, table = prepared_loss(
            floats_as_float64(rows), num_components, covariance, method, key, prior_rows, sums
        )
        first = None if start is None else components_of(start, loss)
        model = MixtureRows(loss=loss, table=table, first=first, num_em_steps=num_em_steps)
        fit: MixtureFit = maximum_likelihood(model, **settings)
        coarse = coarse_notes(observations, fit.locs, fit.covariances)
        return dataclasses.replace(fit, notes=(*fit.notes, *coarse))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtureRows(Model):
    """Rows of a mixture of Gaussians.

    Attributes, besides those of `Model`:
        loss: minus the mean log-likelihood of a row, without plans.
        table: the rows in units of their own, (n, d), NaN where missing.
        first: a start in place of those by seeds, if there is one.
        num_em_steps: the most EM steps of each start.
    """

    loss: MixtureLoss
    table: np.ndarray
    first: Components | None
    num_em_steps: int
    flat = (
        "The rows do not determine that many components: two may be equal, one empty or without "
        "spread. Use fewer components."
    )

    @property
    def coordinates(self) -> MixtureCoordinates:
        return self.loss.coordinates

    @property
    def names(self) -> tuple[str, ...]:
        return self.coordinates.names(self.loss.observations.labels)

    @property
    def num_rows(self) -> float:
        weight: float = self.loss.sums.sum(np.asarray(self.loss.observations.weight)).item()
        return weight

    def starts(self, count: Any) -> list[Any]:
        starts = [self.first] if self.first else seeded_starts(self.loss, self.table, count)
        with self.loss.sums.checked():
            check_possible(self.loss, starts[0])
        return starts

    def descent(self, num_steps: int, progress: bool) -> MixtureDescent:
        return MixtureDescent(self, num_steps, progress)

    # ---------------------------------------------------------------- the end of a way

    def obstacle(self, path: Any) -> str | None:
        loss, x, coordinates = path.loss, path.end.x, self.coordinates
        if path.ascending is not None:
            return ascending_sentence(loss, x, path.ascending)
        edge, size = edge_of(loss, x), float(loss.size)
        few = coordinates.num_components > 1 and FEW_ROWS * coordinates.size > size
        if edge is None and few and path.arrived:
            return ACCIDENT.format(f"{size:g}", coordinates.size)
        return edge

    def total(self, path: Any) -> MixtureSummary:
        summary: MixtureSummary = path.summary
        return summary

    def score_root(self, path: Any) -> np.ndarray:
        values, vectors = np.linalg.eigh(score_products(path.loss, path.end.x))
        return vectors * np.sqrt(np.maximum(values, 0.0))

    def wald_ratios(self, path: Any, total: Any, errors: Any, compare: Any) -> Any:
        """See `Model`; none where the rows are too many to be looked at so often."""
        num_rows = self.loss.sums.sum(np.asarray(self.loss.observations.num_rows)).item()
        if 2 * len(errors) * num_rows > MOST_COMPARED:
            return np.zeros((0, 2)), ()
        return compare(value=lambda x: rough_point(path.loss, x).loss), ()

    def judged(self, path: Any, total: MixtureSummary, converged: bool) -> tuple[Any, None]:
        return total.inside / float(self.loss.size), None

    def result(self, fields: dict[str, Any], path: Any) -> MixtureFit:
        coordinates, summary, size = self.coordinates, path.summary, float(self.loss.size)
        weights, locs, covariances = coordinates.shaped(fields["estimates"])
        by_weight, by_loc, by_covariance = coordinates.shaped(fields["errors"])
        observed, slopes = shares(path.loss, path.end.x)
        of_observed = fields["free_errors"].of(slopes).standard_errors
        same = max(SAME, 3.0 * summary.stderr)
        return MixtureFit(
            **fields,
            weights=weights,
            observed_weights=observed,
            locs=locs,
            covariances=covariances,
            standard_errors=MixtureErrors(by_weight, of_observed, by_loc, by_covariance),
            responsibilities=summary.responsibilities,
            entropy=summary.entropy,
            start_log_likelihoods=path.reached,
            num_reached=int(np.sum(np.abs(path.reached + path.end.loss * size) <= same)),
            em_log_likelihoods=path.ascent.log_likelihoods,
            observations=path.loss.observations,
            share=path.loss.sums.share,
        )

    def ending(self, path: Any, proof: Any, obstacle: str | None) -> tuple[bool, str]:
        converged, reason = super().ending(path, proof, obstacle)
        value, same = -path.end.loss * float(self.loss.size), max(SAME, 3.0 * path.summary.stderr)
        if converged and len(path.reached) > 1 and np.sum(path.reached > value - same) == 1:
            reason += LONE.format(len(path.reached))
        return converged, reason

    # ---------------------------------------------------------------- notes

    def other_maxima(self, fields: dict[str, Any], path: Any) -> tuple[str, ...]:
        notes, reached, finite = [], path.reached, np.isfinite(path.reached)
        value = -path.end.loss * float(self.loss.size)  # with the prior, if there is one
        same = max(SAME, 3.0 * path.summary.stderr)
        others = reached[finite & (np.abs(reached - value) > same)]
        if len(reached) > 1:
            count = int(finite.sum()) - len(others)
            end = "maximum" if fields["converged"] else "end"
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
        if path.ascent.fell > 0:
            notes.append(
                f"An EM step would have lowered the log-likelihood by {path.ascent.fell:.2g}, as "
                "its integrals are estimates: give the method more points."
            )
        return tuple(notes)

    def unseen(self, fraction: np.ndarray) -> tuple[str, ...]:
        return tuple(
            f"Only {in_words(part)} of component {k} lies where rows can be seen: its weight and "
            "width rest on the Gaussian shape of what no row can check."
            for k, part in enumerate(fraction)
            if part < MOSTLY_UNSEEN
        )

    def notes(self, fields: dict[str, Any], common: tuple[str, ...], path: Any) -> tuple[str, ...]:
        notes, d, prior = [], self.coordinates.dimension, self.loss.prior_rows
        if prior is not None:
            notes.append(
                f"A prior holds every covariance as {float(prior):g} more row(s) of all rows' "
                "variances would. Estimates and standard errors include it; log-likelihood, AIC, "
                "BIC and ICL are those of the rows alone."
            )
        scale = np.asarray(self.coordinates.scale)
        matrices = self.coordinates.shaped(fields["estimates"])[2]
        least = np.linalg.eigvalsh(matrices / np.outer(scale, scale))[:, 0]
        for k, count in enumerate(path.summary.counts):
            if count < d + 1:
                below = np.floor(1e3 * count) / 1e3
                notes.append(
                    f"Component {k} rests on {below:.4g} rows, fewer than the {d + 1} that span "
                    "it: it may be an accident of the sample."
                )
            if least[k] < THIN:
                notes.append(
                    f"Component {k} is nearly singular: its smallest variance is {least[k]:.1g} of "
                    "the rows' own."
                )
        return (*common, *notes)


def seeded_starts(loss: MixtureLoss, table: np.ndarray, count: int) -> list[Components]:
    """So many starts by seeds, of rows in units of their own; one where there is one maximum."""
    coordinates, starts = loss.coordinates, []
    weights = np.asarray(row_weights(loss.observations, jnp.float64))
    for number in range(count if coordinates.num_components > 1 else 1):
        key = jax.random.fold_in(loss.key, number)
        first = seeded(table, weights, coordinates.num_components, key, loss.sums)
        starts.append(in_user_units(first, coordinates))
    return starts


def prepared_loss(
    observations: Observations,
    num_components: int,
    structure: str,
    method: Method = Automatic(),
    key: Any = None,
    prior_rows: float = 0.0,
    sums: RowSums = RowSums(),
) -> tuple[MixtureLoss, np.ndarray]:
    """The loss without plans, and the rows in units of their own; checked."""
    if structure not in STRUCTURES:
        raise ValueError(
            f'fit_mixture: covariance must be "full", "diagonal" or "tied", got {structure!r}.'
        )
    if not isinstance(num_components, int) or num_components < 1:
        raise ValueError(
            f"fit_mixture: num_components must be a positive int, got {num_components!r}."
        )
    if not 0 <= prior_rows < np.inf:
        raise ValueError(f"fit_mixture: prior_rows must be 0 or positive, got {prior_rows!r}.")
    table, centre, scale = standard_rows(observations, sums)
    coordinates = MixtureCoordinates(
        jnp.asarray(centre), jnp.asarray(scale), num_components, structure
    )
    size = float(sums.sum(np.sum(np.asarray(row_weights(observations, np.float64)))))
    if coordinates.size >= size:
        raise ValueError(
            f"fit_mixture: {size:g} row(s) cannot determine {coordinates.size} parameters of "
            f"{num_components} component(s): use fewer components, a simpler covariance, or more "
            "rows."
        )
    prior = jnp.asarray(float(prior_rows)) if prior_rows else None
    loss = MixtureLoss(
        observations,
        coordinates,
        jnp.asarray(size),
        method,
        as_key(key),
        prior,
        sums=sums,
    )
    return divided(loss), table


def components_of(start: tuple[Any, Any, Any], loss: MixtureLoss) -> Components:
    """A start of the user's own, checked."""
    coordinates = loss.coordinates
    k, d = coordinates.num_components, coordinates.dimension
    components = Components(*(np.asarray(part, np.float64) for part in start))
    shapes = tuple(part.shape for part in components)
    if shapes != ((k,), (k, d), (k, d, d)):
        raise ValueError(
            f"fit_mixture: start must be (weights, locs, covariances) of shapes {(k,)}, {(k, d)} "
            f"and {(k, d, d)}, got {shapes}."
        )
    finite = all(np.all(np.isfinite(part)) for part in components)
    if not finite or np.any(components.weights <= 0):
        raise ValueError("fit_mixture: start must be finite, with positive weights.")
    if not np.all(np.linalg.eigvalsh(components.covariances) > 0):
        raise ValueError("fit_mixture: the start's covariances must be positive definite.")
    covariances = coordinates.restricted(np.ones(k), components.covariances)
    weights = components.weights / components.weights.sum()
    return Components(weights, components.locs, covariances)


def in_user_units(start: Components, coordinates: MixtureCoordinates) -> Components:
    """A start in the units of the rows."""
    centre, scale = np.asarray(coordinates.centre), np.asarray(coordinates.scale)
    matrices = start.covariances * np.outer(scale, scale)
    restricted = coordinates.restricted(start.weights, matrices)
    return Components(start.weights, centre + scale * start.locs, restricted)


def check_possible(loss: MixtureLoss, start: Components) -> None:
    """Raise ValueError if a row cannot be, or its likelihood is not finite."""
    planned_loss, rows = planned(loss, loss.method, start), loss.observations
    values = np.asarray(terms_at(planned_loss, loss.coordinates.free(*start)).log_prob)
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        first = wrong[0]
        raise ValueError(
            f"fit_mixture: {len(wrong)} of {len(values)} row(s) are impossible, first row {first}: "
            f"lower {rows.lower[first]}, upper {rows.upper[first]} do not lie in its region, or no "
            "component does. Correct the region, or remove those rows."
        )


def coarse_notes(rows: Observations, locs: np.ndarray, matrices: np.ndarray) -> tuple[str, ...]:
    """Sentence that rows in float32 hide how those of a component differ, if so.

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
