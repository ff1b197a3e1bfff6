"""Maximum likelihood of a mixture of Gaussians from rows known in part, and how far to trust it."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from truncgauss.arrays import parallel
from truncgauss.arrays.keys import as_key, checked_key
from truncgauss.arrays.progress import reported
from truncgauss.arrays.pytrees import floats_as_float64
from truncgauss.covariates.rows_fit import RowsFit
from truncgauss.fits.gaussian.centring import COARSE
from truncgauss.fits.mixtures.climb import ENDLESS, MixtureDescent, edge_of, natural_coordinates
from truncgauss.fits.mixtures.curvature import (
    MixtureSummary,
    rough_point,
    score_products,
    shares,
    terms_at,
)
from truncgauss.fits.mixtures.em import generator, scattered, seeded, standard_rows
from truncgauss.fits.mixtures.likelihood import (
    MixtureLoss,
    check_enough,
    divided,
    mixture_log_likelihood,
    planned,
    row_weights,
)
from truncgauss.fits.mixtures.parameters import (
    STRUCTURES,
    Components,
    MixtureCoordinates,
    components_at,
)
from truncgauss.fits.mixtures.posteriors import Posterior, completed, posterior
from truncgauss.fits.mixtures.search import ENOUGH_ROWS, without_region
from truncgauss.fitting.derived import DerivedCoordinates
from truncgauss.fitting.engine import check_count, check_settings, maximum_likelihood
from truncgauss.fitting.existence import ABSURD
from truncgauss.fitting.likelihood_fit import Ending
from truncgauss.fitting.model import MOSTLY_UNSEEN, Model, arrays_of_start, in_words
from truncgauss.fitting.profile import Profile, Unbounded
from truncgauss.fitting.wald import coverages_of, table_of, untrusted
from truncgauss.fitting.widening import direction_in_words
from truncgauss.likelihood.observations import Observations, as_observations
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import Method
from truncgauss.words.names import check_choice
from truncgauss.words.terminal import wrapped

SAME = 1e-4  # nats, within which two starts have reached one maximum
MORE_STARTS = 60  # where a component shrinks in each of those asked for
MOST_COMPARED = 10**6  # rows in all evaluations of the likelihood that compare it with Wald's
FEW_ROWS = 2  # for each parameter of several components, below which maxima are accidents
ACCIDENT = (
    "Not converged: {} observations are too few for {} parameters, and the steps ended at one of "
    "the many maxima that so few observations have by accident. Use more observations, fewer "
    "components, or a simpler covariance."
)
LONE = (
    " {} of {} starts{} reached it, which is no proof that none is higher: fit again with more "
    "starts (num_starts) and another key, and take the fit of the highest log-likelihood."
)
FURTHER = " Splits and merges of the components that they reached, or short runs, led to it."
WAYS = " that were followed"
JOINED = (
    " The other {} were not: EM steps that leave the region out had led each to the mixture of one "
    "that was."
)
SLENDER = 0.1  # of the spread of all rows, below which a component of few rows is narrow
THIN = 1e-6  # variance in units of the rows', below which a component is nearly singular
EXCHANGED = 0.05  # part of the rows that may change their component between two values
NOT_COMPARED = "Wald intervals were not compared with the likelihood of so many observations."
IMPOSSIBLE = "Do not trust the Wald intervals of {}: they reach {}, where no such value can be."
ROUGH = (
    "Take standard errors and Wald intervals of {} for rough ones: the log-likelihood is far from "
    "quadratic. In simulations of such mixtures 95 % intervals held the truth in 0.82 to 0.96 of "
    "the samples, and stated errors were 0.6 to 1.0 of the estimates' scatter."
)


class MixtureErrors(NamedTuple):
    """Standard errors, in the shapes of the estimates; 0 for what is fixed, inf for what the rows
    do not identify, and for all where the likelihood is highest at an edge."""

    weights: np.ndarray
    observed_weights: np.ndarray
    locs: np.ndarray
    covariances: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtureFit(RowsFit):
    """The mixture of Gaussians behind observed rows; `print` shows a table.

    Components are sorted by their observed weights, the largest first.

    Attributes, besides those of `RowsFit`:
        weights: of the components in the whole population, observed or not, (K,).
        observed_weights: in the part of it that can be observed, (K,); where rows differ in regions
            or noise, the mean over rows.
        locs: means, (K, d).
        covariances: of the true values, without noise, (K, d, d).
        standard_errors: `.weights`, `.observed_weights`, `.locs` and `.covariances` likewise, from
            the information that was asked for.
        responsibilities: P(component | what a row shows), (n, K); of rows that are spread over
            processes those of this one.
        entropy: of the components of all rows, given these, in nats.
        fraction_not_truncated: of each component, (K,); the mean over rows.
        start_log_likelihoods: what each start that was followed reached; -inf where a component
            shrank onto a few rows, where the likelihood has no maximum.
        num_reached: how many of these reached the reported maximum; 0 where only mixtures did that
            were tried from the best of them.
        em_log_likelihoods: of the start that led here, at each EM step. These, the start's and the
            trace include the log prior, if one was asked for.
    """

    weights: np.ndarray
    observed_weights: np.ndarray
    locs: np.ndarray
    covariances: np.ndarray
    standard_errors: MixtureErrors
    responsibilities: np.ndarray
    entropy: float
    start_log_likelihoods: np.ndarray
    num_reached: int
    em_log_likelihoods: np.ndarray

    @property
    def icl(self) -> float:
        """The integrated complete likelihood criterion, BIC plus twice the entropy of the
        responsibilities: it prefers components that do not overlap.

        Reference:
            Biernacki, Celeux and Govaert, "Assessing a mixture model for clustering with the
            integrated completed likelihood" (2000).
        """
        return self.bic + 2 * self.entropy

    def parts(self, estimates: Any) -> tuple[Any, Any, Any]:
        """A vector in the order of `names` as weights (K,), means (K, d) and covariances (K, d, d).

        Example:
            >>> fit = tg.fit_mixture(tg.Observations.exact([1.0, 2.0, 4.0, 3.0]), 1)
            >>> variance = fit.delta(lambda estimates: fit.parts(estimates)[2][0, 0, 0] ** 0.5)
            >>> print(variance.value.round(4), variance.standard_errors.round(4))
            1.118 0.3953
        """
        return cast(tuple[Any, Any, Any], self.coordinates.shaped(estimates))

    def kind_of(self, number: int) -> str:
        kind: str = self.coordinates.kinds[number]
        return kind

    def range_of(self, number: int) -> tuple[float, float]:
        return {"weight": (0.0, 1.0), "variance": (0.0, np.inf)}.get(
            self.kind_of(number), (-np.inf, np.inf)
        )

    def profile_along(self, number: int, function: Any = None) -> Profile:
        """The profile likelihood of an estimate, or of an entry of a function of all; components
        keep their labels."""
        if function is None and self.errors[number] == 0.0:
            raise ValueError(
                f"profile: {self.names[number]} is fixed at {self.estimates[number]:g}."
            )
        loss, kind = self.loss, "number" if function else self.kind_of(number)
        table = standard_rows(loss.observations)[0]
        natural = natural_coordinates(loss, table, self.best.x)  # in which ridges are straight
        free = natural.mixture_coordinates

        def same_labels(one: np.ndarray, other: np.ndarray) -> bool:
            weights = np.asarray(row_weights(loss.observations, np.float64))[:, None]
            first, second = (
                np.asarray(terms_at(loss, free(x)).responsibilities) for x in (one, other)
            )
            shared = first.T @ (weights * second)
            best_match = shared[scipy.optimize.linear_sum_assignment(shared, maximize=True)].sum()
            return bool(np.trace(shared) >= (1.0 - EXCHANGED) * best_match)

        coordinates = DerivedCoordinates(natural, function) if function else natural
        estimate = Unbounded(coordinates, jnp.asarray(number), kind)
        labels = same_labels if self.coordinates.num_components > 1 else None
        evaluate = functools.partial(natural.point, loss)
        start = evaluate(natural.natural(self.best.x))
        return Profile(evaluate, float(loss.size), start, estimate, same_labels=labels)

    def coverages_along(self, coordinates: Any, jacobian: np.ndarray) -> np.ndarray:
        value = lambda x: rough_point(self.loss, x).loss
        return coverages_of(self.loss, self.best, coordinates, jacobian, value=value)

    @property
    def names_of_start(self) -> tuple[str, ...]:
        return Components._fields

    def arrays_of(self, estimates: Any) -> dict[str, Any]:
        return dict(zip(("weights", "locs", "covariances"), self.parts(estimates)))

    def with_intervals(self, num_profiles: int, seconds: float = np.inf) -> Self:
        """The fit with notes on how far Wald's intervals may be trusted."""
        if not self.converged:
            return self
        notes = []
        wrong, where = self.impossible_intervals()
        if len(wrong):
            notes.append(IMPOSSIBLE.format(", ".join(self.names[k] for k in wrong), where))
        if not len(self.wald_coverages):
            return dataclasses.replace(self, notes=(*self.notes, *notes, NOT_COMPARED))
        rough = np.setdiff1d(np.flatnonzero(untrusted(self.wald_coverages)), wrong)
        if len(rough):
            notes.append(ROUGH.format(", ".join(self.names[k] for k in rough)))
        return dataclasses.replace(self, notes=(*self.notes, *notes))

    def untestable(self, other: RowsFit) -> str | None:
        if self.loss.prior_rows is not None:
            return "a fit with prior_rows is not at the maximum of the likelihood."
        k = getattr(other.coordinates, "num_components", 1)
        if k == self.coordinates.num_components:
            return None
        return (
            f"the fits have {self.coordinates.num_components} and {k} component(s), which no "
            "chi-squared distribution compares: where the weight of a component is 0 its mean and "
            "covariance mean nothing. Compare their `bic`."
        )

    def row_log_likelihood(
        self, observations: Observations, method: Method = Automatic()
    ) -> np.ndarray:
        """The log-likelihood of each of these rows, old or new, under the fitted mixture, (n,).

        Their weights are not counted: of a row that a fit leaves out, by a weight of 0, this is how
        well the fit predicts it.

        Example:
            >>> fit = tg.fit_mixture(tg.Observations.exact([1.0, 2.0, 4.0, 3.0]), 1)
            >>> fit.row_log_likelihood(tg.Observations.exact([2.5])).round(3)
            array([-1.031])
        """
        rows = dataclasses.replace(
            as_observations(observations, "row_log_likelihood", self.loss.observations),
            weights=None,
        )
        with jax.enable_x64(True):
            mixture = self.weights, self.locs, self.covariances
            terms = mixture_log_likelihood(rows, *mixture, method)
            return np.asarray(terms.log_prob)

    @reported
    def predict(  # type: ignore[override]  # of rows known in part, with their components
        self, observations: Observations, method: Method = Automatic()
    ) -> Posterior:
        """The true values and components of rows, old or new, under the fitted mixture; see
        `tg.mixtures.posterior`."""
        as_observations(observations, "predict", self.loss.observations)
        if observations.dimension != (d := self.locs.shape[1]):
            raise ValueError(
                f"predict: the observations have {observations.dimension} column(s), the fit {d}."
            )
        with jax.enable_x64(True):
            return posterior(observations, self.weights, self.locs, self.covariances, method)

    @reported
    def completed(
        self, key: jax.Array, observations: Observations, num_samples: int = 1
    ) -> np.ndarray:
        """Draws of the true values of rows, without noise and gaps, (num_samples, n, d).

        They vary as the rows' true values may; the errors of the estimates are not in them.

        Raises:
            ValueError: for rows with censored or interval entries, or missing ones that a region
                limits.

        Example:
            >>> fit = tg.fit_mixture(tg.Observations.exact([1.0, 2.0, 4.0, 3.0]), 1)
            >>> rows = tg.Observations.exact([2.0, 3.0], noise=[[0.0], [0.1]])
            >>> fit.completed(jax.random.key(0), rows, 5)[:, 0, 0]
            array([2., 2., 2., 2., 2.])
        """
        with jax.enable_x64(True):
            posterior = self.predict(observations)
            return np.asarray(completed(key, observations, posterior, num_samples))

    @reported
    def sample(self, key: jax.Array, num_samples: int) -> np.ndarray:
        """Draws from the whole population, observed or not, without noise, (num_samples, d)."""
        check_count("sample: num_samples", num_samples)
        choice, normal = jax.random.split(checked_key(key))
        with jax.enable_x64(True):
            logs = jnp.log(jnp.asarray(self.weights))
            components = jax.random.categorical(choice, logs, shape=(num_samples,))
            noise = jax.random.normal(normal, (num_samples, self.locs.shape[1]), jnp.float64)
            values, vectors = np.linalg.eigh(self.covariances)  # which may be singular, at an edge
            factors = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
            return self.locs[components] + np.einsum("sij,sj->si", factors[components], noise)

    def __str__(self) -> str:
        shares = " ".join(f"{share:.4g}" for share in self.observed_weights)
        fractions = " ".join(f"{fraction:.4g}" for fraction in self.fraction_not_truncated)
        lines = [
            *table_of(self.names, self.estimates, self.errors),
            f"observed weights {shares}; fractions not truncated {fractions}",
            f"log-likelihood {self.log_likelihood:.8g}, {self.num_rows:g} observations, "
            f"{self.num_parameters} parameters, AIC {self.aic:.6g}, BIC {self.bic:.6g}, "
            f"ICL {self.icl:.6g}; standard errors from the {self.information} information",
        ]
        return "\n".join(map(wrapped, [*lines, self.reason, *self.notes]))


@reported
def fit_mixture(
    observations: Observations,
    num_components: int,
    *,
    covariance: str = "full",
    prior_rows: float = 0.0,
    num_starts: int = 8,
    start: Mapping[str, Any] | None = None,
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
    parameters are many) to it. From the best of several, some hundred mixtures in which components
    are split and merged, or put about a row and its neighbours, and others about random rows, are
    tried by short runs of EM in closed form, and those above it followed, where rows are exact,
    without noise and in one region, and `prior_rows` is 0. The likelihood has no bound where a
    component shrinks: of these none is narrower than 0.03 of the spread of all rows (0.005 if it
    stands for ten or more) unless the starts led to one that is. The result is the highest maximum
    found; what the other starts found, and what the estimates rest on, is said with it.

    All options go together.

    Args:
        observations: the rows, `tg.Observations`: exact, censored, in intervals, missing, with
            noise, seen inside their regions. Their weights count rows.
        num_components: K.
        covariance: "full", "diagonal", or "tied" for one matrix that all components share.
        prior_rows: 0 for maximum likelihood; v > 0 for a prior that keeps components from
            collapsing, as if v more rows with the variances of all had been seen in each of them,
            log prior = -v/2 sum_k {log det(S^-1 Sigma_k) + tr(S Sigma_k^-1)} with S the diagonal
            matrix of the rows' variances (Chen and Tan, 2009). A tied matrix counts once. 1 is
            weak.
        num_starts: how many starts to make, in turn by k-means++ and from random rows with random
            parts of their spread. One component has one start. Of a single start only the maximum
            that it leads to is looked for. Behind a region without linear limits those after the
            first begin with EM steps that leave it out, where rows are exact and without noise; of
            those that come to one mixture one goes on for all. Where a component shrinks in all,
            60 more are made of exact rows, of which those go on that EM steps do not make narrow.
        start: {"weights": (k,), "locs": (k, d), "covariances": (k, d, d)}, a start of one's own in
            place of these, as `dict(fit.parameters())` of another fit.
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
    if isinstance(observations, int) and isinstance(num_components, Observations):
        raise ValueError("fit_mixture: the observations come first, then num_components.")
    as_observations(observations, "fit_mixture")
    check_settings(information, num_profiles=0)
    settings: Any = dict(
        num_steps=num_steps, num_starts=num_starts, information=information, progress=progress
    )
    parallel.agreed("fit_mixture: rows and start", (observations, start))
    with jax.enable_x64(True):
        rows = floats_as_float64(observations)
        loss, table = prepared_loss(rows, num_components, covariance, method, key, prior_rows)
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
    descent = MixtureDescent
    flat = (
        "The observations do not determine that many components: two may be equal, one empty or "
        "without spread. Use fewer components."
    )
    undetermined_reason = (
        "Not converged: the observations do not determine {}. The likelihood is flat there, as "
        "where all observations of a component are censored. Use fewer components."
    )

    @property
    def coordinates(self) -> MixtureCoordinates:
        return self.loss.coordinates

    @property
    def names(self) -> tuple[str, ...]:
        return self.coordinates.names(self.loss.observations.labels)

    @property
    def num_rows(self) -> float:
        return float(self.loss.observations.weight)

    def begun(self, numbers: range, steps: bool) -> tuple[list[Components], list[Components]]:
        """Mixtures in units of the rows, by k-means++ and about random rows in turn; and after
        steps in closed form, but for the first, if they are wanted."""
        loss, begun = self.loss, list[Components]()
        weights = np.asarray(row_weights(loss.observations, jnp.float64))
        for number in numbers:
            rng = generator(jax.random.fold_in(loss.key, number))
            around = scattered if number % 2 else seeded
            first = around(self.table, weights, self.coordinates.num_components, rng)
            restricted = self.coordinates.restricted(first.weights, first.covariances)
            begun.append(first._replace(covariances=restricted))
        return begun, [*begun[:1], *without_region(loss, self.table, begun[1:])] if steps else begun

    def in_users_units(self, mixtures: list[Components]) -> list[Components]:
        """The mixtures, of which those that are one object remain one."""
        scale, centre = np.asarray(self.coordinates.scale), np.asarray(self.coordinates.centre)
        moved = {}
        for at in mixtures:
            matrices = at.covariances * np.outer(scale, scale)
            moved[id(at)] = Components(at.weights, centre + scale * at.locs, matrices)
        return [moved[id(at)] for at in mixtures]

    def elsewhere(self, first: int) -> list[Components]:
        """More starts, for where most others shrink, from this number on: those that after steps
        do not."""
        pairs = zip(*self.begun(range(first, first + MORE_STARTS), True))
        return self.in_users_units([end for begun, end in pairs if end is not begun])

    def starts(self, count: Any) -> list[Any]:
        loss, coordinates, rows = self.loss, self.coordinates, self.loss.observations
        starts = [self.first] if self.first else []
        if not starts:
            number = count if coordinates.num_components > 1 else 1
            starts = self.in_users_units(self.begun(range(number), loss.is_sampled)[1])
        planned_loss = planned(loss, loss.method, starts[0])
        terms = terms_at(planned_loss, coordinates.free(*starts[0]))
        wrong = np.flatnonzero(~np.isfinite(np.asarray(terms.log_prob)))
        if len(wrong):
            check_enough("fit_mixture", rows, starts[0].locs, starts[0].covariances)
            raise ValueError(
                f"fit_mixture: {len(wrong)} of {rows.num_rows} observation(s) are impossible, "
                f"first row {wrong[0]}: lower {rows.lower[wrong[0]]}, upper {rows.upper[wrong[0]]} "
                "do not lie in its region, or no component does. Correct the region, or "
                "remove those observations."
            )
        return starts

    # ---------------------------------------------------------------- the end of a way

    def obstacle(self, path: Any) -> str | None:
        loss, x, coordinates = path.loss, path.end.x, self.coordinates
        if path.ascending is not None:
            number, direction = path.ascending
            loc = ", ".join(f"{entry:.3g}" for entry in components_at(coordinates, x).locs[number])
            return ENDLESS.format(number, loc) + direction_in_words(direction)
        edge, size = edge_of(loss, x), float(loss.size)
        few = coordinates.num_components > 1 and FEW_ROWS * coordinates.size > size
        if edge is None and few and path.arrived:
            return ACCIDENT.format(f"{size:g}", coordinates.size)
        return edge

    def undetermined(self, path: Any, errors: np.ndarray) -> np.ndarray:
        """A mask of means whose errors are absurd for the spread of the rows."""
        _, by_loc, _ = self.coordinates.shaped(errors)
        wrong = ~(by_loc <= ABSURD * np.asarray(self.coordinates.scale))
        first = self.coordinates.num_components
        return np.pad(wrong.ravel(), (first, len(errors) - first - wrong.size))

    def total(self, path: Any) -> MixtureSummary:
        summary: MixtureSummary = path.summary
        return summary

    def score_root(self, path: Any) -> np.ndarray:
        values, vectors = np.linalg.eigh(score_products(path.loss, path.end.x))
        return vectors * np.sqrt(np.maximum(values, 0.0))

    def wald_coverages(self, path: Any, total: Any, errors: Any, compare: Any) -> Any:
        """See `Model`; none where the rows are too many to be looked at so often."""
        num_rows = self.loss.observations.num_rows
        if 2 * len(errors) * num_rows > MOST_COMPARED:
            return np.zeros(0), ()
        return compare(value=lambda x: rough_point(path.loss, x).loss), ()

    def judged(self, path: Any, total: MixtureSummary, converged: bool) -> tuple[Any, None]:
        return total.inside / float(self.loss.size), None

    def result(self, ending: Ending, path: Any) -> MixtureFit:
        coordinates, summary, size = self.coordinates, path.summary, float(self.loss.size)
        weights, locs, covariances = coordinates.shaped(ending.estimates)
        by_weight, by_loc, by_covariance = coordinates.shaped(ending.errors)
        observed, slopes = shares(path.loss, path.end.x)
        of_observed = ending.free_errors.of(slopes).standard_errors
        same = max(SAME, 3.0 * summary.stderr)
        return MixtureFit(
            **vars(ending),
            weights=weights,
            observed_weights=observed,
            locs=locs,
            covariances=covariances,
            standard_errors=MixtureErrors(by_weight, of_observed, by_loc, by_covariance),
            responsibilities=summary.responsibilities,
            entropy=summary.entropy,
            start_log_likelihoods=path.reached,
            num_reached=int(np.sum(np.abs(path.reached + path.end.loss * size) <= same)),
            em_log_likelihoods=path.em_log_likelihoods,
            observations=path.loss.observations,
        )

    def ending(self, path: Any, proof: Any, obstacle: str | None) -> tuple[bool, str]:
        converged, reason = super().ending(path, proof, obstacle)
        value, same = -path.end.loss * float(self.loss.size), max(SAME, 3.0 * path.summary.stderr)
        count = np.sum(path.reached > value - same)
        if converged and len(path.reached) > 1 and count <= 1:
            reason += LONE.format(
                "Only 1" if count else "None", len(path.reached), WAYS * bool(path.shared)
            )
        return converged, reason

    # ---------------------------------------------------------------- notes

    def other_maxima(self, ending: Ending, path: Any) -> tuple[str, ...]:
        notes, reached, finite = [], path.reached, np.isfinite(path.reached)
        value = -path.end.loss * float(self.loss.size)  # with the prior, if there is one
        same = max(SAME, 3.0 * path.summary.stderr)
        others = reached[finite & (np.abs(reached - value) > same)]
        if len(reached) + path.shared > 1:
            count = int(finite.sum()) - len(others)
            end = "maximum" if ending.converged else "end"
            further = FURTHER if count == 0 and ending.converged else ""
            joined = JOINED.format(path.shared) if path.shared else ""
            which = f"{count} of {len(reached)} starts{WAYS * bool(path.shared)}"
            notes.append(f"{which} reached this {end}.{joined}{further}")
        if len(others):
            notes.append(
                f"{len(others)} reached other maxima or stopped, lower by "
                f"{value - others.max():.3g} to {value - others.min():.3g} nats."
            )
        if not np.all(finite):
            notes.append(
                f"In {int(np.sum(~finite))} start(s) a component shrank onto a few observations, "
                "where the likelihood has no maximum; these do not count."
            )
        if path.fell > 0:
            notes.append(
                f"An EM step would have lowered the log-likelihood by {path.fell:.2g}, as "
                "its integrals are estimates: give the method more points."
            )
        return tuple(notes)

    def unseen(self, fraction: np.ndarray) -> tuple[str, ...]:
        return tuple(
            f"Only {in_words(part)} of component {k} lies where observations can be made: its "
            "weight and width rest on the Gaussian shape of what no observation can check."
            for k, part in enumerate(fraction)
            if part < MOSTLY_UNSEEN
        )

    def notes(self, ending: Ending, common: tuple[str, ...], path: Any) -> tuple[str, ...]:
        notes, d, prior = [], self.coordinates.dimension, self.loss.prior_rows
        if prior is not None:
            notes.append(
                f"A prior holds every covariance as {float(prior):g} more observation(s) of all "
                "observations' variances would. Estimates and standard errors include it; "
                "log-likelihood, AIC, BIC and ICL are those of the observations alone."
            )
        scale = np.asarray(self.coordinates.scale)
        matrices = self.coordinates.shaped(ending.estimates)[2]
        least = np.linalg.eigvalsh(matrices / np.outer(scale, scale))[:, 0]
        for k, count in enumerate(path.summary.counts):
            if count < d + 1:
                below = np.floor(1e3 * count) / 1e3
                notes.append(
                    f"Component {k} rests on {below:.4g} observations, fewer than the {d + 1} that "
                    "span it: it may be an accident of the sample."
                )
            elif count < ENOUGH_ROWS and THIN < least[k] < SLENDER**2:
                notes.append(
                    f"Component {k} rests on {count:.1f} observations and is narrow, by "
                    f"{least[k] ** 0.5:.2g} of the spread of all: maxima with such a component are "
                    "often accidents of the sample. Fit fewer components too, and compare what "
                    "both say."
                )
            if least[k] < THIN:
                notes.append(
                    f"Component {k} is nearly singular: its smallest variance is {least[k]:.1g} of "
                    "the observations' own."
                )
        return (*common, *notes)


def prepared_loss(
    observations: Observations,
    num_components: int,
    structure: str,
    method: Method = Automatic(),
    key: Any = None,
    prior_rows: float = 0.0,
) -> tuple[MixtureLoss, np.ndarray]:
    """The loss without plans, and the rows in units of their own; checked."""
    check_choice(structure, STRUCTURES, "fit_mixture: covariance")
    Method.check_kind(method)
    if type(num_components) is not int or num_components < 1:
        several = isinstance(num_components, range | list | tuple)
        raise ValueError(
            f"fit_mixture: num_components must be a positive int, got {num_components!r}."
            + " Fit each number of them, and compare the fits' bic." * several
        )
    if not 0 <= prior_rows < np.inf:
        raise ValueError(f"fit_mixture: prior_rows must be 0 or positive, got {prior_rows!r}.")
    table, centre, scale = standard_rows(observations)
    coordinates = MixtureCoordinates(
        jnp.asarray(centre), jnp.asarray(scale), num_components, structure
    )
    size = observations.weight
    if coordinates.size >= size:
        raise ValueError(
            f"fit_mixture: {size:g} observation(s) cannot determine {coordinates.size} parameters "
            f"of {num_components} component(s): use fewer components, a simpler covariance, or "
            "more observations."
        )
    prior = jnp.asarray(float(prior_rows)) if prior_rows else None
    loss = MixtureLoss(
        observations,
        coordinates,
        jnp.asarray(size),
        method,
        as_key(key),
        prior,
    )
    return divided(loss), table


def components_of(start: Any, loss: MixtureLoss) -> Components:
    """A start of the user's own, checked."""
    coordinates = loss.coordinates
    k, d = coordinates.num_components, coordinates.dimension
    parts = arrays_of_start("fit_mixture", start, Components._fields)
    components = Components(*(np.asarray(part, np.float64) for part in parts))
    shapes = tuple(part.shape for part in components)
    if shapes != ((k,), (k, d), (k, d, d)):
        raise ValueError(
            f"fit_mixture: start must have weights, locs and covariances of shapes {(k,)}, "
            f"{(k, d)} and {(k, d, d)}, got {shapes}."
        )
    finite = all(np.all(np.isfinite(part)) for part in components)
    if not finite or np.any(components.weights <= 0):
        raise ValueError("fit_mixture: start must be finite, with positive weights.")
    if not np.all(np.linalg.eigvalsh(components.covariances) > 0):
        raise ValueError("fit_mixture: the start's covariances must be positive definite.")
    covariances = coordinates.restricted(np.ones(k), components.covariances)
    weights = components.weights / components.weights.sum()
    return Components(weights, components.locs, covariances)


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
