r"""Regression of rows that belong together: clusters under a sum of covariance terms.

Cluster i has outcomes :math:`y_i \sim N(X_i \beta, \sum_t K_{ti}(\theta_t))`, each entry exact,
censored, known to an interval, or missing. Standard deviations are free coordinates of either sign,
of which the likelihood is an even function: a variance of 0 is a smooth maximum of it.

References:
    Hughes, "Mixed effects models with censored data with application to HIV RNA levels", Biometrics
        (1999).
    Self and Liang, "Asymptotic properties of maximum likelihood estimators and likelihood ratio
        tests under nonstandard conditions", JASA (1987).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.scipy.linalg import solve_triangular
from scipy import special

from truncgauss import tables
from truncgauss.arrays.alignment import labels_of
from truncgauss.arrays.compiling import MOST_MEDIUM, PER_INPUT, Compiled, Cost, closed_form
from truncgauss.arrays.linalg import ranks_of
from truncgauss.arrays.progress import reported
from truncgauss.arrays.pytrees import (
    Estimate,
    as_float_array,
    frozen_pytree,
    is_staged,
    static_field,
)
from truncgauss.covariates.predictions import (
    Covariates,
    Predictions,
    check,
    chosen_effects,
    designs_of,
    each_column,
    effect_on,
    limit_of,
    move_of,
    names_of_rows,
    of_categories,
    points_of,
    shares_between,
    with_interval,
)
from truncgauss.covariates.rows_fit import RowsFit
from truncgauss.covariates.whitening import Whitened, whitened
from truncgauss.fits.clusters.cluster_likelihood import (
    DENSE_SIZES,
    FACTOR_SIZES,
    MOST_EXACT,
    Cluster,
    ClusterPlan,
    ClusterRows,
    CovarianceSum,
    LimitedMoments,
    MeanParameters,
    before_sums,
    clusters_at,
    is_summed,
    limited_moments,
    linear_ends,
    log_likelihoods,
    plan_of,
)
from truncgauss.fits.clusters.long_tables import (
    WHAT,
    ClusterInputs,
    LongTable,
    inputs_of,
    order_within,
    shapes_of,
)
from truncgauss.fits.clusters.terms.autoregressive import AutoRegressive
from truncgauss.fits.clusters.terms.common_correlation import CommonCorrelation
from truncgauss.fits.clusters.terms.diagonal import Diagonal
from truncgauss.fits.clusters.terms.matern import Matern
from truncgauss.fits.clusters.terms.random_effects import RandomEffects
from truncgauss.fits.clusters.terms.residual import Residual
from truncgauss.fits.clusters.terms.term import CovarianceTerm, LongRows, Parts
from truncgauss.fits.gaussian.linear_gaussian import STEP
from truncgauss.fits.gaussian.ordinal_fit import FIRST_CUT, NOT_COMPARED, LatentCoordinates
from truncgauss.fits.probit import probit
from truncgauss.fitting.derived import arrays_at, presume_the_model
from truncgauss.fitting.descent import Descent, Path
from truncgauss.fitting.engine import check_settings, maximum_likelihood
from truncgauss.fitting.existence import (
    all_censored,
    clearly_bounded,
    rising_direction,
    sums_beyond_rounding,
)
from truncgauss.fitting.likelihood_fit import Ending
from truncgauss.fitting.model import Model, arrays_of_start
from truncgauss.fitting.newton import CLOSE, Loss, Point, point, sloped
from truncgauss.fitting.profile import Profile
from truncgauss.likelihood import effect_sums
from truncgauss.optimize.uncertainty import Certificate, scaled_spectrum
from truncgauss.special.normal import log_interval_mass
from truncgauss.special.tails import standardize
from truncgauss.words import earlier
from truncgauss.words.numbers import check_share, single

WITHOUT_TIME = RandomEffects, CommonCorrelation, Residual, Diagonal  # none holds a process
NOT_CONTAINED = (
    "the larger model has no term that holds the process {} of the smaller one, and so does not "
    "contain it. Compare AIC."
)
COARSE = 1e-3  # error of the log-likelihood, from which derivatives may be off by a per cent
UNRESOLVED = (
    "Not converged: integrals over effects leave the log-likelihood known to {:.2g} only, as the "
    "errors of rows are too small beside the effects. Of rows that repeat a measurement without "
    "an error keep one."
)
EXACT_STARTS = 3  # by default, where all rows are exact and steps take no time
FEW_PRODUCTS = 2**22  # of entries of covariances, in a step, that take none
FEW_CLUSTERS = 20
TYPICAL_NODES = 64  # over effects, by which the work of their predictions is told
MOST_SHOWN = 20  # effects in a print
FEW = (
    "There are only {:g} clusters: maximum likelihood then takes {} for too small, and intervals "
    "of these and of what varies between clusters hold the truth less often than they say: those "
    "of 95 % in 84, 89 and 93 % of simulated samples of 6, 12 and 20 clusters."
)
FLAT = 1e-9  # smallest scaled eigenvalue of a curvature that is none
EDGE = 1e-3  # of the outcomes' standard deviation, below which a deviation is at its edge 0
AT_EDGE = (
    "{} is at the edge 0 of its range: the observations speak for no such variance. It has no "
    "standard error; profile intervals hold, and likelihood_ratio takes the edge into account."
)
DETERMINED = (
    "{} is at the edge of its range: an effect is determined by the ones before it. It has no "
    "standard error and no interval; fewer effects, of sums of these columns, describe the "
    "observations as well."
)
SEPARATED = (
    "There is no maximum: the outcomes are separated. The likelihood grows for ever along the "
    "direction of {}: no observation becomes less likely the farther that goes. Drop the "
    "covariates that separate the observations, or use a prior in NumPyro."
)
MET_EXACTLY = (
    "There is no maximum: the effects explain the exact outcomes, and the likelihood grows as {} "
    "falls to 0. Leave out effects, or give noise."
)
APART = (
    "There is no maximum: the outcomes of a cluster hardly differ: the likelihood grows with {}. "
    "Use other terms, more observations in a cluster, or a prior in NumPyro."
)
VANISHED = (
    "There is no single maximum: the variance of the term {} falls to 0, where {} can be any. The "
    "observations speak for no such term: leave it out."
)
SHORT = (
    " A process whose correlations vanish at the distances of the observations is like "
    "tg.Residual(): leave out one of these."
)
UNTESTABLE = (
    "the term {} of the larger model has {}, which cannot all be told where its effects vanish, as "
    "in the smaller one: twice the gain has no chi-squared distribution then, nor a mixture of "
    "these. Compare AIC, or simulate the ratio under the smaller model."
)
TOLD = 3.0  # standard errors from 0, at which a deviation below that is told from 0
ZERO = 1e-7  # of the outcomes' standard deviation: what is 0 at an edge
ROUNDING = 1e-9  # of numbers that are alike, and of a correlation matrix that is singular
FIRST_ROWS, NUMBERS = 32, 10**7  # of a cluster, and of matrices at a time, seen to be singular
FARTHEST = 1e2  # deviation of effects on outcomes of 0 and 1 beyond which none is a maximum
PROBIT_SCALE = (
    "sigma of {} is fixed at 1, as {} do not tell the scale of what is behind them: coefficients "
    "are in units of it."
)
ONE_CLUSTER = (
    f"{WHAT}: all observations are of one cluster, of which the effects are drawn once, so that "
    "nothing tells {}. Leave that term out, or say by `cluster` which observations share their "
    "effects."
)
NOTHING_SEEN = (
    f"{WHAT}: no outcome is observed: all {{}}. There is nothing to fit: give observations of "
    "which more is known."
)
UNKNOWN_VARIANCE = (
    "predict: the variance of new rows is not known: that of the term {} differs between rows, by "
    "more than the covariates of the design. Give the covariates of its effects in the design too; "
    'or ask for kind="mean".'
)
UNMOVED = (
    "margins: the variance of the term {} moves with {!r} by more than the covariates of the "
    "design. Give the covariates of its effects in the design too."
)
NOT_TOLD_APART = (
    "There is no single maximum: the observations do not tell {}, of which the likelihood stays "
    "the same along a line.{} Leave out a term, or fix its sigma."
)
ONE_LIMIT = "linear in the covariates, which tells no scale. Use binary=True of 0 and 1."
SINGLE_ROWS = (
    " Each cluster has one observation, so that effects of clusters are like errors of these."
)
NO_SCALE = (
    f"{WHAT}: {{}} do not tell the scale of what is behind them. Fix it by tg.Residual() or "
    "tg.CommonCorrelation() among the terms, whose sigma is then 1, or by sigma=1 in another."
)


# ---------------------------------------------------------------- coordinates


@frozen_pytree
class ClusterCoordinates:
    """Free coordinates: coefficients of whitened covariates, and those of each term, of outcomes in
    units.

    Attributes:
        transform: whitened coefficients to the user's, (p, p).
        shift: the user's coefficients of what was subtracted, (p,).
        unit: of outcomes.
        covariance: the terms.
        latent: the coordinates of coefficients and cuts of ordered categories; else None.
        signed: whether estimates that are squares are to be their roots (static).
    """

    transform: jax.Array
    shift: jax.Array
    unit: jax.Array
    covariance: CovarianceSum
    latent: LatentCoordinates | None = None
    signed: bool = static_field(default=False)

    @property
    def num_covariances(self) -> int:
        """The number of coordinates of the terms, which come last, and of their estimates."""
        return sum(self.covariance.sizes)

    def halves(self, x: Any) -> tuple[Any, Any]:
        """Coordinates, or estimates, of the mean and of the terms."""
        end = len(x) - self.num_covariances
        return x[:end], x[end:]

    def split(self, x: Any) -> tuple[MeanParameters, Any]:
        """Coefficients and cuts, and the coordinates of the terms."""
        mean, rest = self.halves(x)
        if self.latent is None:
            return MeanParameters(mean), rest
        coefficients, cuts = self.latent.parts(mean)
        return MeanParameters(coefficients, cuts[0]), rest

    def estimates(self, x: jax.Array) -> jax.Array:
        mean, rest = self.halves(x)
        if self.latent is None:
            parts = [self.shift + self.unit * (self.transform @ mean)]
        else:
            parts = [self.latent.estimates(mean)]
        for term, part in zip(self.covariance.terms, self.covariance.split(rest)):
            values = term.signed(part) if self.signed else term.estimates(part)
            parts.append(jnp.where(term.in_units, self.unit, 1.0) * values)
        return jnp.concatenate(parts)

    def free(self, estimates: jax.Array) -> jax.Array:
        """The coordinates of estimates."""
        mean, rest = self.halves(estimates)
        if self.latent is None:
            parts = [jnp.linalg.solve(self.transform, (mean - self.shift) / self.unit)]
        else:
            parts = [self.latent.free(mean)]
        for term, values in zip(self.covariance.terms, self.covariance.split(rest)):
            units = jnp.where(term.in_units, self.unit, 1.0)
            parts.append(term.free(values / units))
        return jnp.concatenate(parts)


# ---------------------------------------------------------------- results


class Predicted(NamedTuple):
    """The three arrays of `Effects`."""

    labels: np.ndarray
    mean: np.ndarray
    standard_errors: np.ndarray


class Effects(Predicted):
    """Predictions of the effects of a term, given all that is known of each cluster.

    Attributes:
        labels: of the clusters, or the numbers of the rows, (k,).
        mean: conditional means at the estimates (empirical Bayes), (k,) or (k, r).
        standard_errors: conditional standard deviations, likewise; they take the estimates for the
            truth.
        names: of several effects, (r,), as in the names of their standard deviations.
    """

    names: tuple[str, ...] = ("effect",)  # beside the three, so that these can be unpacked
    standard_error = earlier.attribute("standard_error", "standard_errors")

    def to_frame(self, backend: str = "pandas") -> Any:
        """The effects as a DataFrame, one row for each label, as `LikelihoodFit.to_frame` without
        intervals; of several effects a row for each, such as 7[Intercept] and 7[week]."""
        rows = self.labels.tolist()
        if self.mean.ndim == 2:
            rows = [f"{label}[{name}]" for label in rows for name in self.names]
        columns = {"estimate": self.mean.ravel(), "standard_error": self.standard_errors.ravel()}
        return tables.data_frame(rows, columns, backend)

    def __str__(self) -> str:
        """A table of the first effects; `labels`, `mean` and `standard_errors` have all."""
        k, labels = len(self.labels), [str(label) for label in self.labels[:MOST_SHOWN]]
        mean, error = (np.reshape(part, (k, -1)) for part in (self.mean, self.standard_errors))
        width, widths = max(map(len, labels), default=0), [max(12, len(x)) for x in self.names]
        heads = (f"  {name:>{w}} {'std. error':>12}" for name, w in zip(self.names, widths))
        lines = [" " * width + "".join(heads)]
        for label, values, errors in zip(labels, mean, error):
            cells = (f"  {x:{w}.6g} {s:12.6g}" for x, s, w in zip(values, errors, widths))
            lines.append(f"{label:{width}}{''.join(cells)}")
        return "\n".join([*lines, *[f"and {k - MOST_SHOWN} more"] * (k > MOST_SHOWN)])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterFit(RowsFit):
    """A regression of clusters of rows, and how far to trust it; `print` shows a table.

    Attributes, besides those of `fitting.RowsFit`:
        coefficients: of the covariates, (p,).
        thresholds: the cuts between ordered categories, (K - 1,), the first of which is 0 if the
            covariates span a constant; None of other outcomes.
        levels: the categories that occur.
        edges: names of the estimates at an edge of their range, which have no standard error.
        terms: of the covariance.
        table: the rows as the user has them.
    """

    coefficients: np.ndarray
    thresholds: np.ndarray | None = None
    levels: tuple[Any, ...] = ()
    edges: tuple[str, ...] = ()
    terms: tuple[CovarianceTerm, ...] = ()
    table: "LongTable" = dataclasses.field(repr=False)

    @property
    def labels(self) -> np.ndarray:
        """Labels of the clusters that say something, (k,)."""
        return self.table.labels

    @property
    def first_cuts(self) -> tuple[str, ...]:
        prefixes = {x.partition("][")[0] for x in self.names if x.startswith("cut[")}
        return tuple(f"{prefix}][{self.levels[0]}]" for prefix in prefixes)

    def arrays_of(self, estimates: Any) -> dict[str, Any]:
        latent = self.coordinates.latent
        if latent is None:
            return {"coefficients": estimates[: len(self.coefficients)]}
        mean = self.coordinates.halves(estimates)[0]
        coefficients, cuts, _ = latent.of_estimates(mean)
        return {"coefficients": coefficients[0], "thresholds": cuts[0]}

    @property
    def num_outcomes(self) -> float:
        """The number of rows that have an outcome, each counted as often as its cluster."""
        rows = self.observations
        assert rows is not None
        seen = np.isfinite(np.asarray(rows.lower)) | np.isfinite(np.asarray(rows.upper))
        return float(rows.row_weights[seen[:, 0]].sum())

    @property
    def size_in_words(self) -> str:
        """The numbers of rows with an outcome and of clusters, for the table."""
        clusters = f"{self.num_rows:g} cluster{'' if self.num_rows == 1 else 's'}"
        return f"{self.num_outcomes:g} observations in {clusters}"

    @property
    def bic(self) -> float:
        """Schwarz's criterion, q log n - 2 log L, with n = `num_outcomes`, as in lme4 and Stata."""
        return self.num_parameters * math.log(self.num_outcomes) - 2 * self.log_likelihood

    @property
    def array_constants(self) -> Any:
        return len(self.coefficients)

    def log_likelihoods(self, estimates: Any) -> jax.Array:
        """The log-likelihood of each cluster at a vector of estimates, in JAX: for a sampler.

        Args:
            estimates: in the order of `names`, (p,).

        Returns:
            (k,), clusters in the order of `labels`. Second derivatives are by forward mode, as of
            `jax.hessian`, where there are integrals over effects.

        Example:
            >>> rng = np.random.default_rng(0)
            >>> y = np.repeat(rng.normal(size=20), 4) + rng.normal(size=80)
            >>> fit = tg.fit_clusters(y, np.ones((80, 1)), np.repeat(np.arange(20), 4))
            >>> bool(np.isclose(fit.log_likelihoods(fit.estimates).sum(), fit.log_likelihood))
            True
        """
        loss: ClustersLoss = self.loss
        if jnp.result_type(float) != np.float64:  # in the types that JAX has then
            leaves, structure = jax.tree.flatten(loss)
            wide = [getattr(leaf, "dtype", None) in (np.float64, np.int64) for leaf in leaves]
            leaves = [jax.device_put(np.asarray(x)) if w else x for x, w in zip(leaves, wide)]
            loss = jax.tree.unflatten(structure, leaves)
        free = loss.inner.free(jnp.asarray(estimates))
        result: jax.Array = loss.evaluated(free).log_prob[self.table.number]
        return result

    @reported
    def profile(self, name: str, level: float = 0.95) -> tuple[float, float]:
        r"""The profile-likelihood interval of an estimate, such as "sigma[intercept]".

        All values whose likelihood ratio to the maximum is below a critical value, that of
        chi-squared with one degree of freedom. A variance that is a term's only parameter is an
        exception, as its estimate is 0 in half of all samples if it is 0 in truth. Its lower end is
        0 if the likelihood ratio of 0 is below the quantile of that distribution at 2 level - 1
        (2.71 at 95 %). Otherwise it is the value whose ratio is c, with

        .. math:: \Phi(\sqrt c) - \Phi(-(d^2 + c) / (2 d)) = level,

        d being the root of the ratio of 0 less that of c: then values at d standard errors from 0
        are in so many of all intervals. From d = 1.96 on c is 3.84, and the interval that of any
        other estimate, as its upper end always is. This presumes that the other variances are not
        at 0. The interval of the correlation of two effects is (-1, 1) where the likelihood ratio
        of a deviation of 0 of one of them is below the critical value: so is that of any value.

        Raises:
            ValueError: see `LikelihoodFit.profile`; and for a correlation at its edge, which has no
                interval.

        References:
            Feldman and Cousins, "Unified approach to the classical statistical analysis of small
                signals", Physical Review D (1998).
        """
        number = self._profiled(name)
        if name in self.determined:
            raise ValueError(f"profile: {DETERMINED.format(name)}")
        if number in self.squares and name in self.edges:
            return 0.0, self.roots.profile(name, level)[1] ** 2
        check_share(level, "profile: level")
        presume_the_model("profile", self)
        goal = float(special.gammaincinv(0.5, level))
        with jax.enable_x64(True):
            for deviation in self.deviations_of(name):
                # Beside a deviation that comes near 0 every correlation is as likely.
                if self._profile(deviation).by_cheaper(Profile.end, -1.0, goal) == -np.inf:
                    return -1.0, 1.0
        # Those without which a term has no parameters.
        variances = {t.names[0] for t in self.terms if len(t.names) == len(t.sigma_names) == 1}
        variances |= {self.names[k] for k in self.squares}
        if name in self.edges or name not in variances:
            return super().profile(name, level)
        with jax.enable_x64(True):
            profile, critical = self._profile(name), self.critical_root(name, level)
            low = 0.0 if critical is None else max(profile.reach(-1.0, 0.5 * critical**2), 0.0)
            return low, profile.reach(1.0, goal)

    def critical_root(self, name: str, level: float) -> float | None:
        """The root of the critical value at the lower end of the interval of a variance, by the
        likelihood ratio of 0; None if the interval reaches 0."""
        usual = float(special.ndtri(0.5 + 0.5 * level))
        parts = self.coordinates.covariance.split(self.coordinates.halves(self.best.x)[1])
        zero = [term.independent and term.names == (name,) for term in self.terms]
        others = [0.0 * x if at_zero else x for x, at_zero in zip(parts, zero)]
        if any(zero) and is_singular(self.loss, others):  # without it the rows cannot be
            return usual
        plain = dataclasses.replace(self.roots, edges=(name,))  # not in logarithms
        root = np.sqrt(2.0 * plain.profile_fall(name, 0.0))
        if not np.isfinite(root):  # likewise
            return usual
        critical = critical_root(level, root)
        return None if critical >= root else critical

    def deviations_of(self, name: str) -> list[str]:
        """Names of the deviations of the two effects of a correlation, the less certain one first;
        none of another estimate."""
        for term in self.terms:
            sigmas = term.sigma_names
            if name in term.names[len(sigmas) :] and len(sigmas) > 1:
                k = term.names.index(name) - len(sigmas)
                pair = [sigmas[int(part[k])] for part in np.tril_indices(len(sigmas), -1)]
                numbers = [self.names.index(x) for x in pair]
                sizes = self.estimates[numbers] / self.errors[numbers]
                return [pair[k] for k in np.argsort(sizes)]
        return []

    @property
    def roots(self) -> "ClusterFit":
        """The fit with estimates that are squares as roots, which may have either sign."""
        if not self.squares:
            return self
        signed = dataclasses.replace(self.coordinates, signed=True)
        return dataclasses.replace(self, coordinates=signed, edges=(), terms=())

    @property
    def num_means(self) -> int:
        """The number of estimates of coefficients and cuts, which come first."""
        return len(self.names) - int(self.coordinates.num_covariances)

    @property
    def determined(self) -> set[str]:
        """Names of the correlations at an edge, of effects that others determine."""
        squares = {self.names[k] for k in self.squares}
        return {x for x in self.edges if x.startswith("correlation") and x not in squares}

    def kind_of(self, number: int) -> str:
        if number in self.squares:
            return "variance"
        # A deviation at its edge 0 may have either sign: a logarithm has no profile there.
        return "number" if self.names[number] in self.edges else super().kind_of(number)

    def range_of(self, number: int) -> tuple[float, float]:
        least, most = super().range_of(number)
        return (0.0 if number in self.squares else least), most

    @property
    def squares(self) -> set[int]:
        """Numbers of the estimates that are squares of what has a sign."""
        begin, squares = self.num_means, set()
        for term in self.terms:
            squares |= {begin + k for k in term.squares}
            begin += len(term.names)
        return squares

    def profile_along(self, number: int, function: Any = None) -> Profile:
        if function is None and number in self.squares and self.names[number] in self.edges:
            raise ValueError(f"{self.names[number]} is at its edge 0: it has profile() alone.")
        profile = super().profile_along(number, function)
        if not self.loss.plan.nested:
            return profile
        # By what serves everywhere where the way of a quick loss leads to no end.
        whole = functools.cache(lambda: self.loss.held_at(self.best.x, nested=False))
        return dataclasses.replace(profile, evaluate=lambda x: point(whole(), x))

    @property
    def spreads(self) -> dict[str, tuple[float, float]]:
        return {}  # few clusters are spoken of by their number

    def small_sample(self, known: set[str]) -> tuple[str, ...]:
        shared = [name for term in self.terms if term.shared for name in term.names]
        if self.num_rows >= FEW_CLUSTERS or not shared:
            return ()
        return (FEW.format(self.num_rows, ", ".join(shared)),)

    def with_intervals(self, num_profiles: int, seconds: float = np.inf) -> "ClusterFit":
        coverages = self.wald_coverages
        if len(coverages):  # an estimate without an interval has none to be replaced
            coverages = np.array(coverages)
            coverages[[name in self.determined for name in self.names]] = 0.95
        fit = RowsFit.with_intervals(
            dataclasses.replace(self, wald_coverages=coverages), num_profiles, seconds
        )
        if not fit.converged or self.information == "sandwich" or not num_profiles:
            return fit
        some = [x for x in self.edges if x not in fit.profiles and x not in self.determined]
        profiles = {name: self.profile(name) for name in some}
        return dataclasses.replace(fit, profiles=fit.profiles | profiles)

    def untestable(self, other: RowsFit) -> str | None:
        terms = terms_of(other)
        processes = [t for t in self.terms if isinstance(t, AutoRegressive | Matern)]
        if processes and self.num_parameters < other.num_parameters:
            if all(isinstance(t, WITHOUT_TIME) for t in terms):
                return NOT_CONTAINED.format(processes[0].label)
        errors = [any(t.independent for t in some) for some in (self.terms, terms)]
        if errors[1] and not errors[0]:  # a process in the place of independent errors
            return None
        mine = {(type(t), t.label) for t in self.terms}
        if any((type(t), t.label) not in mine for t in terms if not t.independent):
            return None  # effects that this model has by other terms, which do not vanish
        lost = [t for t in self.terms if t.lost_at_zero and not {*t.names} <= {*other.names}]
        if not lost or self.num_parameters <= other.num_parameters:
            return None
        return UNTESTABLE.format(lost[0].label, " and ".join(lost[0].names))

    def edges_beyond(self, small: RowsFit) -> int:
        both = self.terms, terms_of(small)
        effects = [sum(t.edges for t in terms if not t.independent) for terms in both]
        errors = [sum(t.edges for t in terms if t.independent) for terms in both]
        if errors[1] and not errors[0]:  # independent errors are a process with rho = 0
            effects[0] -= any(isinstance(t, AutoRegressive) for t in self.terms)
        return effects[0] - effects[1] + (0 if errors[1] else errors[0])

    @property
    def kinds(self) -> tuple[str, ...]:
        return ("category", "mean") if self.levels else ("mean", "probability")

    @reported
    def predict(  # type: ignore[override]
        self,
        new: Any = None,
        kind: str | None = None,
        *,
        low: Any = None,
        high: Any = None,
        level: float = 0.95,
    ) -> Predictions:
        """Predictions of new rows in the population, whose effects are averaged over: as of a new
        cluster.

        Args:
            new: covariates of m rows, see `RowsFit.predict`; by default those of the fit.
            kind: "category", the probability of each category; "mean", x b, of categories that of
                the latent outcomes; or "probability" of low < outcome < high, of outcomes without
                the errors that `noise` was. By default the first of these that there is.
            low, high: numbers or (m,), of a probability.
            level: of the intervals.

        Returns:
            Predictions, with value (m,), or (m, K) of K categories.

        Raises:
            ValueError: as `RowsFit.predict`; of probabilities, where the variance of new rows
                is not known, as under `tg.Diagonal`.
        """
        kind = self.kinds[0] if kind is None else kind
        with jax.enable_x64(True):
            check(self, kind, level, "predict")
            if (kind == "probability") == (low is None and high is None):
                raise ValueError(
                    "predict: low and high are the bounds of a probability, such as "
                    f'kind="probability", high=0.5; got kind {kind!r}, low {low!r}, high {high!r}.'
                )
            (design,) = designs_of(self, new, "predict: new")
            names = names_of_rows(labels_of(self.observations if new is None else new), len(design))
            if kind != "mean":
                columns, shape = columns_of_new(self, design), (len(design), 1)
                ends = limit_of(low, shape, -np.inf), limit_of(high, shape, np.inf)

                def shares(estimates: jax.Array) -> jax.Array:
                    scale = self.loss.inner.unit * jnp.sqrt(self.new_variances(estimates, columns))
                    if kind == "category":
                        return shares_between(self.below(design, scale, estimates))
                    loc = design @ self.arrays_of(estimates)["coefficients"]
                    at = standardize(*ends, loc[:, None], scale[:, None])
                    return jnp.exp(log_interval_mass(*at))

                result = of_categories(self, shares, names, self.levels, level, logits=True)
                return dataclasses.replace(result, kind=kind)
            arrays = arrays_at(self)(self.estimates)
            value, slopes = (design @ np.asarray(part["coefficients"]) for part in arrays)
            result = with_interval(self, names, (), value[:, None], slopes[:, None], level)
        return dataclasses.replace(result, kind=kind)

    def below(self, design: Any, scale: Any, estimates: Any) -> jax.Array:
        """The probabilities, (m, K - 1), that rows of such covariates (m, p) and deviations (m,)
        lie below each cut."""
        arrays = self.arrays_of(estimates)
        b, cuts = arrays["coefficients"], arrays.get("thresholds", jnp.zeros(1))
        return jax.scipy.special.ndtr((cuts - (design @ b)[:, None]) / scale[:, None])

    def row_variances(
        self, estimates: Any, design: Any = None, effects: dict[int, Any] | None = None
    ) -> jax.Array:
        """The variance of each row's outcome over all clusters, (n,); 0 where it is missing.

        Args:
            estimates: of the fit.
            design: covariates (n, p) that may differ from those of the fit.
            effects: `columns_of_effects` of the terms whose covariates differ with them.
        """
        rest = self.coordinates.halves(self.coordinates.free(estimates))[1]
        covariance = self.coordinates.covariance
        of: Any = lambda columns: jnp.diagonal(covariance.parts(rest, columns).dense)
        total = self.table.of_rows([jax.vmap(of)(rows.columns) for rows in self.loss.shapes])
        for k, (each, number) in (effects or {}).items():
            term, x = covariance.terms[k], covariance.split(rest)[k]
            moved = jnp.where(number < 0, each, with_constant(design)[:, number])
            both = ((part / jnp.array(term.units)) @ term.factor(x) for part in (each, moved))
            before, after = (jnp.sum(part**2, axis=1) for part in both)
            total += after - before
        return total

    def new_variances(self, estimates: Any, columns: list[np.ndarray | None]) -> jax.Array:
        """The variances of the outcomes of new rows over all clusters, by `columns_of_new`, in
        units of the fit."""
        rest = self.coordinates.halves(self.coordinates.free(estimates))[1]
        covariance, total = self.coordinates.covariance, jnp.zeros(1)
        for k, (term, x) in enumerate(zip(covariance.terms, covariance.split(rest))):
            if columns[k] is None:
                total += term.parts(x, self.loss.shapes[0].columns[k][0]).dense[0, 0]
            else:
                total += jnp.sum((columns[k] @ term.factor(x)) ** 2, axis=1)
        return total

    @reported
    def margins(  # type: ignore[override]
        self, at: Any = None, *, variables: Any = None, discrete: Any = None, level: float = 0.95
    ) -> Predictions:
        """Marginal effects of covariates in the population, whose effects are averaged over: on the
        mean, which are coefficients, or on P(category), averaged over the rows.

        Args:
            at: of categories, {name: number} for all rows with these covariates so, see
                `RowsFit.margins`.
            variables, discrete, level: see `RowsFit.margins`.

        Returns:
            Predictions, with value (v,) of v covariates, or (v, K) of K categories.
        """
        chosen = chosen_effects(self, variables, discrete)
        with jax.enable_x64(True):
            points = points_of(self, at)
            designs, weights = points.designs, points.weights
            (design,) = designs
            seen = np.asarray(self.row_variances(self.estimates) > 0)
            if len(design) != len(seen):
                raise ValueError(
                    "margins: those of clusters are averages over the rows of the fit: at must be "
                    f"{{name: number}} of covariates that are the same in all of them, got {at!r}."
                )
            weights = np.where(seen, weights, 0.0)
            moves = [move_of(self, points, *each) for each in chosen.values()]
            terms = self.loss.inner.covariance.terms
            random = [k for k, term in enumerate(terms) if isinstance(term, RandomEffects)]
            slopes = {k: columns_of_effects(self, k) for k in random if self.levels}
            moved = {name for name, _ in chosen.values()} | {*(at or ())}
            for k, term in enumerate(terms if self.levels else ()):
                alike = k in slopes and np.all(slopes[k][1] >= 0)
                if not alike and (names := moved.intersection(getattr(term, "reads", ()))):
                    raise ValueError(UNMOVED.format(term.label, min(names)))

            def effects(estimates: jax.Array) -> jax.Array:
                if not self.levels:
                    b = self.arrays_of(estimates)["coefficients"]
                    each = [(m[0] if m else e[1][0] - e[0][0]) @ b for m, e in moves]
                    return jnp.stack([x[:1] + weights @ (x - x[0]) / weights.sum() for x in each])

                def shares(x: Any) -> jax.Array:
                    variances = self.row_variances(estimates, x, slopes)
                    scale = jnp.sqrt(jnp.where(weights > 0, variances, 1.0))
                    below = weights @ self.below(x, scale, estimates) / weights.sum()
                    return shares_between(below)

                return jnp.stack([effect_on(shares, designs, 0, *move) for move in moves])

            result = of_categories(self, effects, tuple(chosen), self.levels, level)
        notes = (*result.notes, *each_column(self, chosen))
        return dataclasses.replace(result, kind=self.kinds[0], notes=notes)

    @functools.cached_property
    def limited(self) -> list[LimitedMoments | None]:
        """Moments of the limited entries of the clusters of each shape, for the effects of all
        terms; None of integrals over effects."""
        loss, shapes = self.loss, enumerate(self.loss.shapes)
        covariance, plan = loss.inner.covariance, loss.plan
        with jax.enable_x64(True):
            mean, x = loss.inner.split(np.asarray(self.best.x))
            return [
                limited_moments(rows, covariance, plan.methods[s], mean, x, s)
                if covariance.form(rows.columns) is None
                else None
                for s, rows in shapes
            ]

    @reported
    def effects(self, term: str | None = None) -> Effects:
        r"""The effects of a term given all that is known of each cluster, with their errors.

        With K the term's covariance, and g and H the derivatives of a cluster's log-likelihood by
        its mean, the mean is K g and the covariance K + K H K; exactly so for censored rows too.
        Where the likelihood has an error, as its integrals are by draws, these come from moments of
        the limited outcomes given the exact ones, which are known to a thousandth of their standard
        deviations.

        Args:
            term: its label, such as "intercept", "residual" or the `name` of a term; by default
                the first one's.

        Returns:
            Effects: of `RandomEffects` by cluster, with one column for each of several effects; of
            other terms by row, NaN where an outcome is missing, and in rows of weight 0, which
            the fit leaves out.
        """
        known = [t.label for t in self.terms]
        if term is not None and term not in known:
            raise ValueError(f"effects: there is no term {term!r}, but {', '.join(known)}.")
        number = 0 if term is None else known.index(term)
        loss, table, means, errors = self.loss, self.table, [], []
        with jax.enable_x64(True):
            at = loss.inner.split(np.asarray(self.best.x))
            covariance, unit = loss.inner.covariance, float(loss.inner.unit)
            for rows, limited in zip(loss.shapes, self.limited):
                if limited is None:
                    parts = effects_of(rows, covariance, *at, number)
                else:
                    parts = effects_given(rows, covariance, limited, *at, number)
                means.append(unit * np.asarray(parts[0]))
                errors.append(unit * np.asarray(parts[1]))
            if isinstance(its := covariance.terms[number], RandomEffects):
                units = np.array(its.units)
                pair = [np.concatenate(parts)[table.number] / units for parts in (means, errors)]
                effects = Effects(table.labels, *(x[:, 0] if its.rank == 1 else x for x in pair))
                effects.names = its.labels if its.rank > 1 else effects.names
                return effects
            whole = (np.asarray(table.of_rows(parts, np.nan)) for parts in (means, errors))
            return Effects(np.arange(table.observations.num_rows), *whole)


def terms_of(fit: RowsFit) -> tuple[CovarianceTerm, ...]:
    """The terms of a fit; of one that knows no clusters that of independent errors."""
    return fit.terms if isinstance(fit, ClusterFit) else (Residual(),)


def critical_root(level: float, zero: float) -> float:
    """The root of the critical value of the likelihood ratio at the lower end of the interval of a
    variance, whose ratio at 0 has the root `zero`; see `ClusterFit.profile`."""
    one_sided, usual = special.ndtri(level), special.ndtri(0.5 + 0.5 * level)
    if zero <= one_sided or zero >= 2.0 * usual:
        return float(one_sided if zero <= one_sided else usual)

    def excess(root: float) -> float:
        d = zero - root
        missed = special.ndtr(-(d**2 + root**2) / (2.0 * d)) if d > 0 else 0.0
        return float(special.ndtr(root) - missed - level)

    return float(scipy.optimize.brentq(excess, one_sided, min(usual, zero)))


def is_singular(loss: Any, parts: list[Any], least: float = 0.0) -> bool:
    """Whether the exact rows of a cluster have a singular covariance at these coordinates of the
    terms, where deviations of single rows below `least` are 0. Such rows cannot be, or their
    likelihood has no bound.

    Args:
        loss: with `shapes` and `inner`, as of `ClustersLoss`.
    """
    covariance = loss.inner.covariance
    zeroed = [
        np.where(np.abs(x) < least, 0.0, x) if term.independent else x
        for term, x in zip(covariance.terms, parts)
    ]
    x = jnp.concatenate(zeroed)

    def of_cluster(columns: Any, noise: Any, e: int) -> Any:
        """The covariance of the first exact rows."""
        factor, variances, matrix = covariance.parts(x, columns) + Parts(None, noise)
        factor = None if factor is None else factor[:e]
        return Parts(factor, variances[:e], None if matrix is None else matrix[:e, :e]).dense

    for rows in loss.shapes:
        # Where so many first rows are singular all are, and few are quickly seen to be.
        index, e = np.asarray(rows.index), min(rows.num_exact, FIRST_ROWS)
        step = max(1, NUMBERS // index.shape[1] ** 2)
        for k in range(0, len(index) if e else 0, step):
            part = slice(k, k + step)
            inputs = jax.tree.map(lambda leaf, some=part: leaf[some], (rows.columns, rows.noise))
            matrix = np.asarray(jax.vmap(functools.partial(of_cluster, e=e))(*inputs))
            seen = index[part, :e] >= 0
            matrix = np.where(seen[:, :, None] & seen[:, None, :], matrix, np.eye(e))
            if np.any(ranks_of(matrix, ROUNDING) < e):
                return True
    return False


# ---------------------------------------------------------------- the model


@frozen_pytree
class ClustersLoss(Loss):
    """Minus the mean log-likelihood of a cluster, with the plan of its integrals.

    Attributes:
        shapes: the clusters, by their numbers of exact and limited entries.
        inner: the coordinates.
        weights: how often each different cluster counts, (u,).
        plan: of the integrals.
        iterated: whether the Hessian is by differences of gradients (static).
    """

    shapes: tuple[ClusterRows, ...]
    inner: ClusterCoordinates
    weights: jax.Array
    plan: ClusterPlan
    iterated: bool = static_field()

    @property
    def size(self) -> jax.Array:
        return jnp.sum(self.weights)

    @functools.cached_property
    def forms(self) -> list[int | None]:
        """The form of the covariance of each shape, see `CovarianceSum.form`."""
        return [self.inner.covariance.form(rows.columns) for rows in self.shapes]

    def log_units(self, xp: Any) -> Any:
        """By how much the unit of outcomes raises the log density of each cluster, (u,); `xp` is
        NumPy or `jax.numpy`."""
        seen = [xp.asarray(s.index)[:, : s.num_exact] >= 0 for s in self.shapes]
        return xp.log(xp.asarray(self.inner.unit)) * xp.concatenate([x.sum(axis=1) for x in seen])

    @property
    def cost(self) -> Cost:
        """The work of a call. With all of XLA's optimisations (jaxlib 0.10.2) second derivatives of
        integrals over effects were wrong by one per cent, though first ones were right."""
        numbers = PER_INPUT * closed_form(self).numbers
        of_effects = all(method is None for method in self.plan.methods)
        return Cost(min(numbers, MOST_MEDIUM) if of_effects else numbers)

    def evaluated(self, x: jax.Array) -> Estimate:
        """The log-likelihood of each different cluster, and its error."""
        # Under `jax.jit` without a program of its own, which takes a seventh longer to trace.
        of = of_each_cluster.function if is_staged() else of_each_cluster
        result: Estimate = of(self, x)
        return result

    def total(self, x: jax.Array) -> Estimate:
        value, stderr = self.evaluated(x)
        return Estimate(self.weights @ value, jnp.sqrt(jnp.sum((self.weights * stderr) ** 2)))

    @functools.cached_property
    def linear(self) -> list[tuple[np.ndarray, np.ndarray]] | None:
        """See `linear_ends`."""
        latent = self.inner.latent
        return linear_ends(self.shapes, self.inner.covariance, latent.sizes[1] if latent else 0)

    @functools.cached_property
    def summed(self) -> list[int]:
        """Numbers of the shapes whose integrals are by `effect_sums`; none if some may not be."""
        forms, numbers = self.forms, range(len(self.shapes))
        summed = [k for k in numbers if is_summed(forms[k], self.shapes[k].num_limited)]
        if None in forms or {forms[k] for k in summed} != {1}:
            return []
        sizes = [len(self.shapes[k].index) * self.shapes[k].num_limited for k in summed]
        few = max(sizes) * effect_sums.LEAST_COUNTED <= effect_sums.MOST_MASSES
        return (summed if self.linear is None else [*numbers]) if few else []

    def at_numbers(self, x: np.ndarray) -> tuple[Any, ...] | None:
        """Value, gradient, Hessian and variance by sums in NumPy, if all integrals are over one
        effect, see `effect_sums`: a program of two derivatives takes seconds to compile."""
        if not self.summed:
            return None
        linear = self.linear is not None
        ends, jacobians, rest = linear_before(self, x) if linear else compiled_before(self, x)
        both = [effect_sums.sums(*pair) for pair in zip(ends, jacobians)]
        parts = [part for part in both if part is not None]
        if len(parts) < len(both):
            return None
        weights = np.asarray(self.weights)
        of_shapes = np.split(weights, np.cumsum([len(rows.index) for rows in self.shapes])[:-1])
        each = [of_shapes[k] for k in self.summed]
        value, slope, hessian = rest(
            [w[:, None, None] * part.slopes for w, part in zip(each, parts)]
        )
        integrals = sum(float(w @ part.value) for w, part in zip(each, parts))
        total = value - weights @ self.log_units(np) + integrals
        bends = hessian + sum(np.tensordot(w, part.bends, 1) for w, part in zip(each, parts))
        variance = sum(np.sum((w * part.error) ** 2) for w, part in zip(each, parts))
        size = float(self.size)
        return -total / size, -slope / size, -bends / size, variance

    def scores(self, x: jax.Array) -> jax.Array:
        """The gradient of each cluster's log-likelihood, times its weight, (u, q)."""
        return self.weights[:, None] * jax.jacfwd(lambda x: self.evaluated(x).log_prob)(x)

    @property
    def method(self) -> Any:
        """Arrays that are to be made anew where steps lead, see `Descent.path`."""
        return self.plan

    def steps(self, x: np.ndarray) -> np.ndarray | None:
        return np.full(len(x), STEP) if self.iterated else None

    def reaches(self, current: Point) -> bool:
        """Whether steps have ended at a minimum and not at the edge of where nested quadratures, if
        integrals are by these, resolve them."""
        moves = current.decrement * float(self.size) ** 0.5
        return not self.plan.nested or (current.finite and moves <= CLOSE)

    def held_at(self, x: Any, nested: bool = True) -> "ClustersLoss":
        """The loss with a plan made at x; by nested quadratures if these may serve and reach
        there."""
        mean, rest = self.inner.split(np.asarray(x))
        plan = plan_of(self.shapes, self.inner.covariance, mean, rest, nested)
        loss = dataclasses.replace(self, plan=plan)
        if plan.nested and not np.isfinite(sloped(loss, x).loss):
            return self.held_at(x, nested=False)
        return loss


BeforeSums = tuple[list[np.ndarray], list[np.ndarray], Callable[[list[np.ndarray]], Any]]


def linear_before(loss: ClustersLoss, x: np.ndarray) -> BeforeSums:
    """Arguments of integrals that are linear in coefficients, cuts and a deviation, with their
    Jacobian by x; and a function that returns of the log-likelihood beside the integrals the value,
    which is 0, and the gradient and Hessian with what slopes of the integrals add to these."""
    assert loss.linear is not None
    cuts = loss.inner.latent.sizes[1] if loss.inner.latent else 0
    logs = slice(len(x) - 1 - cuts, len(x) - 1)  # of the differences of cuts
    values, chain = x.copy(), np.eye(len(x))
    values[logs] = np.cumsum(np.exp(x[logs]))
    chain[logs, logs] = np.tri(cuts) * np.exp(x[logs])
    ends = [start + slopes @ values for start, slopes in loss.linear]
    jacobians = [slopes @ chain for _, slopes in loss.linear]

    def rest(slopes: list[np.ndarray]) -> tuple[float, np.ndarray, np.ndarray]:
        slope, bends = np.zeros(len(x)), np.zeros(len(x))
        for pair in zip(slopes, jacobians):
            slope += np.tensordot(*pair, 3)
        bends[logs] = slope[logs]  # an exponential is its own derivative
        return 0.0, slope, np.diag(bends)

    return ends, jacobians, rest


def compiled_before(loss: ClustersLoss, x: np.ndarray) -> BeforeSums:
    """The same of arguments that are not linear, by `beside_sums`."""
    shapes = [loss.shapes[k] for k in loss.summed]
    none = [np.zeros((len(rows.index), 3, rows.num_limited)) for rows in shapes]
    ends, jacobians = (list(map(np.asarray, part)) for part in beside_sums(loss, x, none)[:2])
    return ends, jacobians, lambda slopes: map(np.asarray, beside_sums(loss, x, slopes)[2:])


@functools.partial(Compiled, cost=closed_form)
def beside_sums(loss: ClustersLoss, x: jax.Array, slopes: list[jax.Array]) -> tuple[Any, ...]:
    """The arguments of integrals over one effect, see `before_sums`, with their Jacobian by x; and
    of the rest of the log-likelihood the value, and the gradient and Hessian with what the slopes
    of the integrals add to these.

    Args:
        slopes: derivatives of the integrals by their arguments, times how often each cluster
            counts.
    """

    def total(x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, list[jax.Array]]]:
        mean, rest = loss.inner.split(x)
        values, ends = before_sums(loss.shapes, loss.inner.covariance, mean, rest)
        value = loss.weights @ values
        known = [jnp.where(jnp.isinf(end), 0.0, end) for end in ends]
        return value + sum(jnp.sum(a * b) for a, b in zip(slopes, known)), (value, ends)

    def with_slope(x: jax.Array) -> tuple[Any, Any]:
        slope, (value, ends) = jax.grad(total, has_aux=True)(x)
        return (slope, ends), (slope, ends, value)

    (hessian, jacobians), (slope, ends, value) = jax.jacfwd(with_slope, has_aux=True)(x)
    return ends, jacobians, value, slope, hessian


@Compiled
def of_each_cluster(loss: ClustersLoss, x: jax.Array) -> Estimate:
    """The log-likelihood of each different cluster, and its error."""
    mean, rest = loss.inner.split(x)
    result = log_likelihoods(loss.shapes, loss.inner.covariance, loss.plan, mean, rest)
    return Estimate(result.log_prob - loss.log_units(jnp), result.stderr)


@dataclasses.dataclass(frozen=True)
class Mirrored(Descent):
    """Steps whose end is reflected to where standard deviations are positive."""

    def path(self, x: np.ndarray, known: tuple[Path, ...] = ()) -> Path:
        path = super().path(x, known)
        end, signs = path.end, self.model.signs(path.end.x)
        if not end.finite or np.all(signs > 0):
            return path
        hessian = signs[:, None] * end.hessian * signs
        end = Point(signs * end.x, end.loss, signs * end.gradient, hessian, variance=end.variance)
        return dataclasses.replace(path, visited=[*path.visited[:-1], end])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterModel(Model):
    """Clusters of rows under a sum of covariance terms.

    Attributes, besides those of `Model`:
        shapes, inner: see `ClustersLoss`.
        start: free coordinates to begin with.
        table: the rows as the user has them.
        sentences: on the rows.
        rising: why there is no maximum, if outcomes are separated.
        scaleless: whether outcomes are categories, which do not tell the scale behind them.
        levels: those of ordered categories that occur.
    """

    shapes: tuple[ClusterRows, ...]
    inner: ClusterCoordinates
    start: np.ndarray
    weights: np.ndarray
    table: "LongTable"
    names: tuple[str, ...]
    sentences: tuple[str, ...]
    rising: str | None
    scaleless: bool
    levels: tuple[Any, ...] = ()
    descent = Mirrored
    no_start = (
        "fit_clusters: the likelihood is not finite at the start: the covariance may be singular "
        "there, as without a tg.Residual() among the terms."
    )

    @property
    def coordinates(self) -> ClusterCoordinates:
        return self.inner

    @property
    def complete(self) -> bool:
        return not any(rows.num_limited for rows in self.shapes)

    def loss_at(self, x: np.ndarray) -> ClustersLoss:
        return self.plain_loss.held_at(x)

    def loss_that_reaches(self, x: np.ndarray) -> ClustersLoss:
        return self.plain_loss.held_at(x, nested=False)

    @functools.cached_property
    def plain_loss(self) -> ClustersLoss:
        """The loss without a plan."""
        nothing, weights = ClusterPlan(()), as_float_array(self.weights)
        return ClustersLoss(self.shapes, self.inner, weights, nothing, self.most_dense > 2)

    @property
    def expensive(self) -> bool:
        """Whether there are integrals over more limited entries than have a quadrature."""
        return self.most_dense > MOST_EXACT

    @functools.cached_property
    def most_dense(self) -> int:
        """The most limited entries of a cluster with a dense covariance."""
        dense = [s for s in self.shapes if self.inner.covariance.form(s.columns) is None]
        return max((rows.num_limited for rows in dense), default=0)

    def wald_coverages(self, path: Path, total: Any, errors: Any, compare: Any) -> Any:
        return (np.zeros(0), (NOT_COMPARED,)) if self.expensive else (compare(), ())

    def signs(self, x: np.ndarray) -> np.ndarray:
        """1 and -1, (q,), that make standard deviations positive."""
        mean, rest = self.inner.halves(x)
        covariance = self.inner.covariance
        parts = [t.signs(z) for t, z in zip(covariance.terms, covariance.split(rest))]
        return np.concatenate([np.ones(len(mean)), *parts])

    def edges(self, path: Path) -> tuple[str, ...]:
        """Names of the estimates at an edge."""
        covariance, rest = self.inner.covariance, self.inner.halves(path.end.x)[1]
        pairs, least = zip(covariance.terms, covariance.split(rest)), self.least(path)
        return tuple(name for t, z in pairs for name in t.at_edge(z, least))

    def least(self, path: Path) -> float:
        """The size below which coordinates are 0 at an edge: `EDGE`, but `ZERO` where the
        observations tell all that are smaller than that from 0."""
        small = np.abs(self.inner.halves(path.end.x)[1]) < EDGE
        if not small.any():
            return EDGE
        units, values, vectors = scaled_spectrum(float(path.loss.size) * path.end.hessian)
        if not values[0] > 0:
            return EDGE
        errors = np.sqrt(np.sum(vectors**2 / values, axis=1)) / units
        told = np.abs(self.inner.halves(path.end.x)[1]) > TOLD * self.inner.halves(errors)[1]
        return ZERO if np.all(told[small]) else EDGE

    def starts(self, count: int | None) -> list[np.ndarray]:
        random, p = np.random.default_rng(0), len(self.inner.halves(self.start)[0])
        products = sum(len(rows.index) * rows.num_exact**3 for rows in self.shapes)
        pairs = zip(self.inner.covariance.terms, self.inner.covariance.split(self.start[p:]))
        turned = np.concatenate([np.full(len(z), term.of_either_sign) for term, z in pairs])
        most = EXACT_STARTS * (2 if turned.any() else 1)
        others = []
        for _ in range(1, count or (most if self.complete and products <= FEW_PRODUCTS else 1)):
            x = self.start + 0.3 * random.normal(size=len(self.start))
            x[p:] = self.start[p:] * np.exp(0.7 * random.normal(size=len(x) - p))
            if turned.any():
                x[p:] *= np.where(turned, random.choice([-1.0, 1.0], len(x) - p), 1.0)
            others.append(x)
        return [self.start, *others]

    def as_start(self, start: Any) -> np.ndarray:
        """The free coordinates of estimates of the user."""
        vector = start if isinstance(start, np.ndarray) else None  # the earlier form
        values = np.asarray(arrays_of_start(WHAT, start, self.names, vector), float)
        if values.shape == (len(self.names),):
            free = np.asarray(self.inner.free(jnp.asarray(values)))
            if np.all(np.isfinite(free)):
                return free
        raise ValueError(
            f"{WHAT}: start must have a number inside its range for each of "
            f"{', '.join(self.names)}; got {start!r}."
        )

    def obstacle(self, path: Path) -> str | None:
        if self.rising is not None:
            return self.rising
        terms = self.inner.covariance.terms
        parts = self.inner.covariance.split(self.inner.halves(path.end.x)[1])
        least = self.least(path)
        for term, x in zip(terms, parts):
            wide = [name for name, z in zip(term.sigma_names, np.abs(x)) if z > FARTHEST]
            if self.scaleless and wide:
                return APART.format(wide[0])
            if term.independent and term.at_edge(x, least) and is_singular(self, parts, least):
                return MET_EXACTLY.format(term.at_edge(x, least)[0])
            if term.lost_at_zero and term.at_edge(x, least):
                return VANISHED.format(term.label, " and ".join(term.shape_names or term.names))
            if term.endless(x) is not None:
                return term.endless(x)
        # Parameters of the terms along a line of which the likelihood is flat, to rounding, and
        # which are neither at an edge nor too far off to tell.
        _, values, vectors = scaled_spectrum(path.end.hessian)
        line = np.abs(self.inner.halves(vectors[:, 0])[1])
        flat = np.diagonal(path.end.hessian)[len(path.end.x) - len(line) :] < FLAT
        if not flat.any() and (abs(values[0]) > FLAT or np.linalg.norm(line) < 0.99):
            return None
        flat = flat if flat.any() else line > 0.1 * line.max()
        names = self.names[len(self.names) - len(line) :]
        some = [name for name, z in zip(names, flat) if z]
        alone = all(np.all(np.sum(rows.index >= 0, axis=1) == 1) for rows in self.shapes)
        words = " and ".join(some) + (" apart" if len(some) > 1 else "")
        return NOT_TOLD_APART.format(words, SINGLE_ROWS if alone else self.short)

    def ending(self, path: Path, proof: Certificate, obstacle: str | None) -> tuple[bool, str]:
        of_effects = all(method is None for method in path.loss.plan.methods)
        if obstacle is None and of_effects and COARSE < proof.stderr < np.inf:
            return False, UNRESOLVED.format(proof.stderr)
        return super().ending(path, proof, obstacle)

    @property
    def short(self) -> str:
        """A reason why a process may not be told from errors of rows, if there is one."""
        terms = self.inner.covariance.terms
        return SHORT if any(t.lost_at_zero and t.shape_names for t in terms) else ""

    @property
    def flat(self) -> str:
        return f"{Model.flat}{self.short}"

    def notes(self, ending: Ending, common: tuple[str, ...], path: Path) -> tuple[str, ...]:
        edges = self.edges(path) if ending.converged else ()
        return (*common, *map(self.at_edge, edges), *self.sentences)

    def at_edge(self, name: str) -> str:
        """The sentence on an estimate at an edge."""
        terms = self.inner.covariance.terms
        squares = {term.names[k] for term in terms for k in term.squares}
        determined = name.startswith("correlation") and name not in squares
        return (DETERMINED if determined else AT_EDGE).format(name)

    def result(self, ending: Ending, path: Path) -> ClusterFit:
        edges = self.edges(path)
        known = np.array([name not in edges for name in ending.names])
        zero = ~known & (np.abs(ending.estimates) < ZERO * float(self.inner.unit))
        estimates, errors = np.where(zero, 0.0, ending.estimates), ending.errors
        if not ending.converged:  # an estimate that steps have left where it no longer changes
            errors = np.where(errors == 0, np.inf, errors)
        if not np.isinf(errors).all():  # else nothing is determined, at edges too
            errors = np.where(known, errors, np.nan)
        mean, cuts = self.inner.halves(estimates)[0], None
        if self.inner.latent is not None:
            (mean,), (cuts,), _ = self.inner.latent.of_estimates(mean)
        return ClusterFit(
            **vars(dataclasses.replace(ending, estimates=estimates, errors=errors)),
            standard_errors=errors,
            coefficients=mean,
            thresholds=cuts,
            levels=self.levels,
            edges=edges,
            terms=self.inner.covariance.terms,
            observations=self.table.observations,
            designs=(self.table.covariates,),
            table=self.table,
        )


def columns_of_new(fit: ClusterFit, design: np.ndarray) -> list[np.ndarray | None]:
    """The covariates (m, r) of each term's random effects in new rows, out of their design (m, p);
    None of a term that gives all rows the same variance.

    Raises:
        ValueError: of effects of other covariates, and terms of several variances.
    """
    result: list[np.ndarray | None] = []
    covariance, rest = fit.loss.inner.covariance, fit.loss.inner.halves(fit.best.x)[1]
    for k, (term, x) in enumerate(zip(covariance.terms, covariance.split(rest))):
        columns = [rows.columns[k] for rows in fit.loss.shapes]
        if isinstance(term, RandomEffects):
            _, number = columns_of_effects(fit, k)
            alike = bool(np.all(number >= 0))
            result.append(np.asarray(with_constant(design))[:, number] / term.units)
        else:
            of = functools.partial(variances_of, term, columns)
            both = np.column_stack([of(x), jax.jacfwd(of)(x)])
            alike = np.allclose(both, both[0], rtol=ROUNDING, atol=0.0)
            result.append(None)
        if not alike:
            raise ValueError(UNKNOWN_VARIANCE.format(term.label))
    return result


def columns_of_effects(fit: ClusterFit, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The covariates of the random effects of term k in all rows, (n, r), 0 in those without an
    outcome; and the column of `with_constant` of the design that each of them is, or -1."""
    term: Any = fit.loss.inner.covariance.terms[k]
    parts = [rows.columns[k] for rows in fit.loss.shapes]
    each = np.asarray(fit.table.of_rows(parts, np.nan)) * term.units
    seen, known = ~np.isnan(each[:, 0]), np.asarray(with_constant(fit.designs[0].values))
    equal = np.all(known[seen, :, None] == each[seen, None], axis=0)  # (1 + p, r)
    return np.nan_to_num(each), np.where(equal.any(axis=0), equal.argmax(axis=0), -1)


def with_constant(design: Any) -> Any:
    """A design (n, p) with a column of ones in front, (n, 1 + p)."""
    return jnp.concatenate([jnp.ones_like(design[:, :1]), design], axis=1)


def variances_of(term: CovarianceTerm, columns: list[Any], x: jax.Array) -> jax.Array:
    """The variances that a term gives the rows of the clusters of all shapes, one after another."""
    of: Any = lambda part: jnp.diagonal(term.parts(x, part).dense)
    return jnp.concatenate([jnp.ravel(jax.vmap(of)(part)) for part in columns])


def cost_of_effects(rows: ClusterRows, *rest: Any) -> Cost:
    """The work of `effects_of`, whose program runs but once in a fit; see `ClustersLoss.cost`."""
    return Cost(min(TYPICAL_NODES * rows.lower.size, MOST_MEDIUM), loops=False)


def priors_of(
    rows: ClusterRows, covariance: CovarianceSum, x: jax.Array, number: int
) -> tuple[jax.Array, jax.Array]:
    """Covariances of the effects of a term with the rows of each cluster, (k, r, m), and variances,
    (k, r)."""
    term, coordinates = covariance.terms[number], covariance.split(x)[number]

    def priors(columns: jax.Array) -> tuple[jax.Array, jax.Array]:
        if isinstance(term, RandomEffects):
            factor = term.factor(coordinates)
            prior = factor @ factor.T  # of columns in units
            return prior @ columns.T, jnp.diagonal(prior)
        prior = term.parts(coordinates, columns).dense
        return prior, jnp.diagonal(prior)

    across, variances = jax.vmap(priors)(rows.columns[number])
    return across, variances


@functools.partial(Compiled, cost=cost_of_effects, static=(4,))
def effects_of(
    rows: ClusterRows, covariance: CovarianceSum, mean: MeanParameters, x: jax.Array, number: int
) -> tuple[jax.Array, jax.Array]:
    """Means and standard errors of the effects of a term, of each cluster of effects and variances:
    by the derivatives of its log-likelihood."""
    across, variances = priors_of(rows, covariance, x, number)
    origin = jnp.zeros_like(variances)

    def total(moves: jax.Array) -> jax.Array:
        shift = jnp.einsum("kr,krm->km", moves, across)
        shapes = (dataclasses.replace(rows, shift=shift),)
        plan = ClusterPlan((None,))
        return jnp.sum(log_likelihoods(shapes, covariance, plan, mean, x).log_prob)

    def along(k: jax.Array) -> tuple[jax.Array, jax.Array]:
        slopes, bends = jax.jvp(jax.grad(total), (origin,), (origin.at[:, k].set(1.0),))
        return slopes, bends[:, k]

    slopes, bends = jax.vmap(along)(jnp.arange(origin.shape[1]))
    return slopes[0], jnp.sqrt(jnp.maximum(variances + bends.T, 0.0))


@functools.partial(Compiled, cost=closed_form, static=(5,))
def effects_given(
    rows: ClusterRows,
    covariance: CovarianceSum,
    limited: LimitedMoments,
    mean: MeanParameters,
    x: jax.Array,
    number: int,
) -> tuple[jax.Array, jax.Array]:
    """Likewise under any covariance, by the moments of the limited entries: with T the factor of
    the covariance of all entries, exact ones first, effects are linear in T^-1 (y - mean)."""
    e = rows.num_exact

    def of(cluster: Cluster, across: Any, variances: Any, limited: LimitedMoments) -> Any:
        bounded = jnp.isfinite(cluster.lower) | jnp.isfinite(cluster.upper)
        seen = jnp.concatenate([cluster.seen, bounded])
        matrix = cluster.covariance.dense
        factor = jnp.linalg.cholesky(jnp.where(seen[:, None] & seen, matrix, jnp.eye(len(matrix))))
        loadings = solve_triangular(factor, jnp.where(seen, across, 0.0).T, lower=True)
        rest = jnp.where(cluster.seen, cluster.values - cluster.loc[:e], 0.0)
        exact = solve_triangular(factor[:e, :e], rest, lower=True)
        last = functools.partial(solve_triangular, factor[e:, e:], lower=True)
        spread = last(last(limited.covariance).T)
        known = jnp.sum(loadings**2, axis=0)
        left = jnp.sum(loadings[e:] * (spread @ loadings[e:]), axis=0)
        means = exact @ loadings[:e] + last(limited.gap) @ loadings[e:]
        return means, jnp.sqrt(jnp.maximum(variances - known + left, 0.0))

    clusters = clusters_at(rows, covariance, mean, x)
    effects: tuple[jax.Array, jax.Array] = jax.vmap(of)(
        clusters, *priors_of(rows, covariance, x, number), limited
    )
    return effects


def fixed_scale(
    terms: list[CovarianceTerm], outcomes: str
) -> tuple[list[CovarianceTerm], tuple[str, ...]]:
    """The terms of outcomes that are categories, with a sigma of 1 in the first that is to have it,
    and a note."""
    if any(term.sigma is not None for term in terms):
        return terms, ()
    for k, term in enumerate(terms):
        if isinstance(term, Residual | CommonCorrelation):
            fixed: CovarianceTerm = dataclasses.replace(term, sigma=1.0)
            words = PROBIT_SCALE.format(type(term).__name__, outcomes)
            return [*terms[:k], fixed, *terms[k + 1 :]], (words,)
    raise ValueError(NO_SCALE.format(outcomes))


def model_of(inputs: ClusterInputs, terms: Any, data: Any = None) -> ClusterModel:
    """The model of checked rows."""
    terms = [terms] if isinstance(terms, CovarianceTerm | str | type) else list(terms)
    if not terms or not all(isinstance(term, CovarianceTerm) for term in terms):
        raise ValueError(
            f"{WHAT}: terms must be covariance terms, such as (tg.RandomEffects(), tg.Residual()), "
            f"got {terms!r}."
        )
    for term in terms:
        if term.sigma is not None and not 0 <= single(term.sigma) < np.inf:
            raise ValueError(
                f"{type(term).__name__}: sigma must be a standard deviation, a number from 0 on, "
                f"got {term.sigma!r}."
            )
    position = order_within(inputs.codes, np.zeros(len(inputs.codes), int))
    rows = LongRows(data, position, inputs.row_labels)
    chosen, notes = fixed_scale(terms, inputs.scaleless) if inputs.scaleless else (terms, ())
    pairs = [term.prepared(rows) for term in chosen]  # with functions that return their columns
    notes, seen = (*notes, *inputs.beyond), ~inputs.missing
    if inputs.missing.any():
        notes = (*notes, f"{inputs.missing.sum()} of {len(seen)} outcomes are missing.")
    mean = mean_of_ordered(inputs) if inputs.single else mean_of_numbers(inputs)
    scaled = [term.scaled(mean.unit) for term, _ in pairs]
    starts = starts_of(mean, scaled, bool(inputs.scaleless))
    alike = all(isinstance(term, RandomEffects | Residual) for term in scaled)
    alike = alike and not np.any(inputs.noise)
    covariance = CovarianceSum(tuple(scaled), tuple(map(len, starts[1:])), alike)
    names = (*mean.names, *(name for term in scaled for name in term.names))
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise ValueError(
            f"{WHAT}: {', '.join(sorted(repeated))} would be the name of two estimates. Give the "
            "terms a name, or the columns others."
        )
    centre = inputs._replace(
        lower=(inputs.lower - mean.middle) / mean.unit,
        upper=(inputs.upper - mean.middle) / mean.unit,
        noise=inputs.noise / mean.unit**2,
    )
    columns = [column for _, column in pairs]
    tried = tuple(column(np.zeros((1, 1), int)) for column in columns)
    ladder = DENSE_SIZES if covariance.form(tried) is None else FACTOR_SIZES
    shapes, weights, table = shapes_of(centre, columns, mean.white.design, ladder)
    if seen.sum() <= len(names):
        raise ValueError(
            f"{WHAT}: {weights.sum():g} cluster(s) with {seen.sum()} observation(s) cannot "
            f"determine {len(names)} parameters."
        )
    shared = [name for term in scaled if term.shared for name in term.names]
    if weights.sum() <= 1 and shared:
        raise ValueError(ONE_CLUSTER.format(" and ".join(shared)))
    transform, *numbers = jax.device_put((mean.white.transform, mean.shift, np.asarray(mean.unit)))
    latent = None if inputs.single is None else inputs.single.inner
    inner = ClusterCoordinates(transform, numbers[0], numbers[1], covariance, latent)
    table = table._replace(observations=inputs.observations, covariates=Covariates.of(mean.white))
    rising = inputs.single.rising if inputs.single else separated(centre, mean)
    return ClusterModel(
        shapes=shapes, inner=inner, start=np.concatenate(starts), weights=weights, table=table,
        names=names, sentences=(*mean.notes, *notes), rising=rising,
        scaleless=bool(inputs.scaleless),
        levels=inputs.single.rows.levels[0] if inputs.single else (0, 1) * inputs.binary,
    )  # fmt: skip


class MeanModel(NamedTuple):
    """Covariates of the mean in units in which it is fitted, and coordinates to begin with.

    Attributes:
        white: whitened covariates.
        middle, unit: of the outcomes.
        shift: the user's coefficients of the middle, (p,).
        start: coefficients of whitened covariates, and logarithms of differences of cuts.
        names: of the coefficients and the cuts.
        notes: sentences on them.
    """

    white: Whitened
    middle: float
    unit: float
    shift: np.ndarray
    start: np.ndarray
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def mean_of_numbers(inputs: ClusterInputs) -> MeanModel:
    """The mean of outcomes that are numbers, or 0 and 1."""
    words, seen = f"{WHAT}: the columns of the design", ~inputs.missing & (inputs.row_weights > 0)
    if not seen.any():
        raise ValueError(NOTHING_SEEN.format("are missing"))
    for word, side in (("below", inputs.lower[seen]), ("above", inputs.upper[seen])):
        if np.all(np.isinf(side)) and not inputs.binary:
            bounds = f"{seen.sum()} are censored, known only to lie {word} some bound"
            censored = all_censored(inputs.lower[seen], inputs.upper[seen], inputs.recorded)
            raise ValueError(NOTHING_SEEN.format(bounds) + censored)
    white = whitened(inputs.design, inputs.row_weights, words)
    lower, upper, design = inputs.lower[seen], inputs.upper[seen], white.design[seen]
    middle, unit = 0.0, 1.0
    if inputs.binary:
        start = probit(design, np.isfinite(lower), np.ones(len(design)))
    else:  # least squares of what is known
        low = np.where(np.isfinite(lower), lower, upper)
        high = np.where(np.isfinite(upper), upper, lower)
        values = 0.5 * (low + high)
        middle = 0.0 if white.constant is None else float(np.median(values))
        fitted = np.linalg.lstsq(design, values - middle, rcond=None)[0]
        unit = float(np.std(values - middle - design @ fitted))
        if not unit > 1e-12 * np.abs(values).max():
            if not inputs.exact.any():
                raise ValueError(f"{WHAT}: no outcome is exact, and their bounds are {ONE_LIMIT}")
            raise ValueError(f"{WHAT}: the covariates explain the outcomes exactly.")
        start = fitted / unit
    shift = np.zeros(len(start)) if white.constant is None else middle * white.constant
    plain = [f"coefficients[{j}]" for j in range(inputs.design.values.shape[1])]
    names = tuple(str(name) for name in inputs.design.names or plain)
    return MeanModel(white, middle, unit, shift, start, names)


def mean_of_ordered(inputs: ClusterInputs) -> MeanModel:
    """The mean of ordered categories, from their model as rows by themselves."""
    single = inputs.single
    assert single is not None
    design, table = single.centred.design_of(0), inputs.design
    names = None if table.names is None else tuple(map(str, table.names))
    identity = np.eye(design.shape[1])
    white = Whitened(design, identity, None, table.values, names, table.encoder)
    notes = (FIRST_CUT,) * (-1 in single.inner.cuts[0])
    shift = np.zeros(design.shape[1])
    return MeanModel(white, 0.0, 1.0, shift, single.first, single.names, notes)


def separated(inputs: ClusterInputs, mean: MeanModel) -> str | None:
    """The sentence on a direction of coefficients along which no row becomes less likely, whatever
    the effects are, and some more so; None if there is none."""
    seen = inputs.row_weights > 0
    rows = inputs.lower[seen], inputs.upper[seen], mean.white.design[seen], True
    direction = None if clearly_bounded(*rows) else rising_direction(*rows)
    if direction is None:
        return None
    slopes = sums_beyond_rounding(mean.white.transform * direction[:-1])
    slopes = slopes / np.abs(slopes).max()
    parts = ", ".join(f"{b:.3g} in {name}" for b, name in zip(slopes, mean.names) if b)
    return SEPARATED.format(parts)


def starts_of(mean: MeanModel, terms: list[CovarianceTerm], scaleless: bool) -> list[np.ndarray]:
    """Free coordinates to begin with: of the mean, and terms of equal variances."""
    variance = 0.5 if scaleless else 1.0 / len(terms)
    grown = (1.0 + variance * (len(terms) - 1)) ** 0.5 if scaleless else 1.0
    p = len(mean.shift)
    first = [grown * mean.start[:p], np.log(grown) + mean.start[p:]]
    return [np.concatenate(first), *(term.start(variance) for term in terms)]


@reported
def fit_clusters(
    outcome: Any,
    design: Any = None,
    cluster: Any = None,
    terms: CovarianceTerm | Sequence[CovarianceTerm] = (RandomEffects(), Residual()),
    *,
    data: Any = None,
    censored_low: Any = None,
    censored_high: Any = None,
    binary: bool = False,
    noise: Any = None,
    weights: Any = None,
    start: Any = None,
    num_steps: int = 100,
    num_starts: int | None = None,
    information: str = "observed",
    num_profiles: int = 10,
    progress: bool = True,
) -> ClusterFit:
    """Maximum likelihood of a regression of rows in clusters whose outcomes are known in part.

    The outcomes of a cluster are Gaussian with means x . b and a covariance that is a sum of terms
    with parameters. Exact outcomes are conditioned on, and limited ones integrated: by quadrature
    to rounding over up to two random effects, and over up to three limited entries under any
    covariance, else by separation of variables with fixed points, whose error is in the
    certificate.

    All options go together, but for `binary`, a `tg.Ordinal` and `censored_low` or `censored_high`
    with one another.

    Args:
        outcome: shape (n,), NaN where missing, or (n, 2) for the lower and upper ends of intervals,
            infinite where a side is open, as `np.hstack([rows.lower, rows.upper])` of
            `Observations`; or a formula such as "titre ~ time * arm", which has the
            design too; or a `tg.Ordinal` of n rows, with a design such as "~ time * arm", whose
            cuts are estimated and shared by all rows: an ordered probit. A column of ordered
            categories, of pandas or an Enum of polars, may be the outcome of a formula as it is.
        design: covariates x_i, (n, p), with a column of ones if a constant is meant; a table's
            column names become those of the estimates.
        cluster: labels (n,) of the clusters, in any order, or the name of a column of the data.
        terms: of the covariance, see `tg.RandomEffects`, `Residual`, `CommonCorrelation`,
            `AutoRegressive`, `Exponential`, `Matern`, `Kinship`, `Factor`, `Diagonal` and
            `Unstructured`.
        data: the table of columns that are called by name, here and in the terms.
        censored_low: a number, (n,) or the name of a column: outcomes at or below it are only known
            to be that low.
        censored_high: likewise: only known to be that high.
        binary: whether outcomes are 0 and 1: whether a latent outcome is positive (a probit). The
            sigma of `Residual` or `CommonCorrelation` is then 1, as it is of a `tg.Ordinal`.
        noise: variances of measurement errors, a number or (n,), added to the covariance.
        weights: how often each cluster counts, (n,) or the name of a column, the same in all rows
            of a cluster.
        start: estimates to begin with, by `names`, as `dict(fit.parameters())`; others are tried if
            the steps from there do not converge.
        num_steps: the most Newton steps from each start.
        num_starts: from how many points to begin, by default 3 of few rows that are all exact, 6
            with a `Factor`, else 1.
        information: what standard errors come from: "observed", or "sandwich", which sums over
            clusters and holds for many of these even where the covariance is another (without a
            factor G / (G - 1) of their number G).
        num_profiles: up to how many estimates get a profile interval in the table at once.
        progress: say on standard error what goes on, if the fit takes more than a second.

    Returns:
        ClusterFit. Its log-likelihoods, `num_rows` and scores are of clusters.

    Raises:
        ValueError: for labels that are missing, limits that contradict each other, collinear
            covariates, categories without a term of known scale, weights that differ within a
            cluster, or a start that is none.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> patient, week = np.repeat(np.arange(50), 4), np.tile(np.arange(4.0), 50)
        >>> titre = 1.0 - 0.5 * week + np.repeat(rng.normal(size=50), 4) + rng.normal(size=200)
        >>> table = {"titre": titre, "week": week, "patient": patient}
        >>> fit = tg.fit_clusters("titre ~ week", cluster="patient", data=table, censored_low=-1.0)
        >>> fit.names, fit.converged
        (('Intercept', 'week', 'sigma[intercept]', 'sigma'), True)

    References:
        Hughes, "Mixed effects models with censored data with application to HIV RNA levels",
            Biometrics (1999).
    """
    check_settings(information, num_profiles)
    columns = outcome, design, cluster, censored_low, censored_high, noise
    with jax.enable_x64(True):
        model = model_of(inputs_of(columns, data, binary, weights), terms, data)
        if information == "sandwich" and len(model.table.labels) == 1:
            raise ValueError(f"{WHAT}: all observations are of one cluster, which has no sandwich.")
        return maximum_likelihood(
            model,
            start=None if start is None else model.as_start(start),
            num_steps=num_steps,
            num_starts=num_starts,
            information=information,
            num_profiles=num_profiles,
            progress=progress,
        )
