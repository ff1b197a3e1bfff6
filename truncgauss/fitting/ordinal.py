r"""Ordered and binary outcomes: regressions and latent Gaussians whose limits are parameters.

Row i has latent outcomes :math:`x_i \sim N(X_i \beta, \Sigma)`. An ordered entry shows between
which of its limits (cuts) :math:`x_{ij}` lies; its variance is 1, as categories do not tell it.
Other entries are exact, limited or missing. Of one outcome this is the ordered probit, of several
binary ones the multivariate probit. The likelihood is that of rows with limits, see
`tg.log_likelihood`, where limits are functions of the parameters; equal rows are counted once.

In free coordinates the first cut of an ordered outcome is 0 and its covariates hold a constant. One
that the user did not give is subtracted from the cuts afterwards.
"""

import dataclasses
import functools
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from truncgauss import likelihood
from truncgauss.execution.pytrees import (
    as_float_array,
    floats_as_float64,
    frozen_pytree,
    static_field,
)
from truncgauss.execution.row_sums import RowSums
from truncgauss.execution.tables import Table
from truncgauss.fitting.centring import Whitened, centred, constant_of, whitened
from truncgauss.fitting.cluster_likelihood import given_exact
from truncgauss.fitting.derived import gaussian_arrays
from truncgauss.fitting.engine import check_settings, maximum_likelihood
from truncgauss.fitting.gaussian_starts import (
    as_columns,
    as_coordinates,
    check_designs,
    first_guess,
)
from truncgauss.fitting.linear_gaussian import (
    STEP,
    GaussianCoordinates,
    ObservationsLoss,
    mean_of,
)
from truncgauss.fitting.model import Model
from truncgauss.fitting.optimization.descent import Path
from truncgauss.fitting.predictions import (
    Covariates,
    Predictions,
    chosen_covariates,
    designs_of,
    points_of,
    standard_errors,
    with_interval,
)
from truncgauss.fitting.result import LikelihoodFit
from truncgauss.fitting.rising import direction_of, impossible
from truncgauss.gaussian.problem import Estimate, as_key
from truncgauss.gaussian.regions import Box
from truncgauss.likelihood import (
    LatentRows,
    Observations,
    common_effect,
    filled_up,
    fraction_not_truncated,
    total_log_likelihood,
)
from truncgauss.likelihood.nested import log_of_independent
from truncgauss.likelihood.patterns import is_empty
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import Method

STRUCTURES = ("full", "common", "factor", "diagonal")
COUNTS = common_effect.COUNTS[:-1]  # of nodes over a factor
NO_ERROR = 1e-9  # of a correlation matrix that is singular
UNUSED = "Levels of {} that never occur have no limits: {}."
PROBIT_SCALE = "The variance of each ordered outcome is fixed at 1: categories do not tell it."
FIRST_CUT = (
    "The first cut of each ordered outcome is fixed at 0, as its covariates span a constant."
)
NOT_COMPARED = "Wald intervals were not compared with the likelihood; profile() does that."
LARGEST = 2.0  # standard error of a correlation: the length of all that it can be
NEARLY_ONE = 0.08  # standard deviation of an outcome given others with limits
NO_COMMON = 1e-6  # a common correlation that has fallen to 0
AT_ZERO_COMMON = "The common correlation has fallen to 0."
UNRESOLVED = (
    "The latent outcomes determine one another but for a standard deviation of {:.2g}, below the "
    "{:g} at which a maximum can be told: the likelihood may grow up to correlations of 1 or -1. "
    "tg.polychoric decides that for two outcomes."
)
FLAT = (
    "No maximum was found: the likelihood is flat along {} up to 1 or -1, as where cells of a "
    "table are empty. tg.polychoric decides that for two outcomes."
)
SINGULAR = (
    "There is no maximum inside: the likelihood grows as the correlation matrix becomes singular "
    "(smallest eigenvalue {:.1e})."
)
SEPARATED = (
    "There is no maximum: the ordered categories are separated. The likelihood grows for ever "
    "along the direction of {}: no category becomes less likely the farther that goes. Drop the "
    "covariates that separate the categories, join categories, or use a prior."
)
OF_A_BOX = (
    "{}: a region that limits ordered entries needs covariates with a constant, so that their "
    "first limit is 0 and the region is in known units. Give a column of ones, or a tg.Box without "
    "limits of these entries."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrdinalFit(LikelihoodFit):
    """A regression of ordered outcomes, or the Gaussian behind them; `print` shows a table.

    Attributes, besides those of `fitting.LikelihoodFit`:
        coefficients: of each outcome's covariates, d arrays.
        thresholds: the limits of the categories of each outcome; empty of one that is not ordered.
        covariance_matrix: of the latent outcomes given their covariates, (d, d).
        levels: the categories of each outcome that occur.
        rows: the rows with their categories.
    """

    coefficients: tuple[np.ndarray, ...]
    thresholds: tuple[np.ndarray, ...]
    covariance_matrix: np.ndarray
    levels: tuple[tuple[Any, ...], ...]
    rows: LatentRows = dataclasses.field(repr=False)

    def arrays_of(self, estimates: Any) -> dict[str, Any]:
        coefficients, cuts, covariance = self.coordinates.of_estimates(estimates)
        loc = None
        if not self.designs:
            loc = jnp.stack([b[0] if len(b) else jnp.zeros(()) for b in coefficients])
        gaussian = gaussian_arrays(loc, covariance)
        return {"coefficients": coefficients, "thresholds": cuts, **gaussian}

    def rows_and_gaussian(self) -> tuple[Observations, np.ndarray, np.ndarray]:
        """The rows with their fitted limits, and the mean and covariance of their Gaussian."""
        lower, upper = map(as_float_array, self.rows.between(self.thresholds))
        known = self.rows.observations.with_known(lower=lower, upper=upper)
        if not self.designs:
            loc = np.array([b[0] if len(b) else 0.0 for b in self.coefficients])
        else:
            pairs = zip(self.designs, self.coefficients)
            loc = np.stack([part.values @ b for part, b in pairs], axis=1)
        return known, loc, self.covariance_matrix

    def entry(self, entry: Any, what: str) -> int:
        """The number of an ordered outcome, by number or name; the first one by default."""
        ordered = [j for j, level in enumerate(self.levels) if level]
        labels = self.rows.labels
        number = ordered[0] if entry is None else entry
        number = labels.index(number) if number in labels else number
        if isinstance(number, bool) or number not in ordered:
            words = ", ".join(labels[j] for j in ordered)
            raise ValueError(f"{what}: entry must be one of {words}, which have categories.")
        return int(number)

    def categories(self, entry: int, design: np.ndarray, estimates: Any) -> jax.Array:
        """The probability of each category of an outcome, (m, K), at covariates (m, p)."""
        coefficients, cuts, _ = self.coordinates.of_estimates(estimates)
        below = jax.scipy.special.ndtr(cuts[entry] - (design @ coefficients[entry])[:, None])
        ends = jnp.pad(below, [(0, 0), (1, 1)], constant_values=((0.0, 0.0), (0.0, 1.0)))
        return jnp.diff(ends, axis=1)

    def predict(
        self, new: Any = None, kind: str = "category", *, entry: Any = None, level: float = 0.95,
        **settings: Any,
    ) -> Predictions:  # fmt: skip
        """Probabilities of the categories of an outcome, or predictions of latent outcomes.

        Args:
            new: covariates of m rows, see `LikelihoodFit.predict`; for one table, of the outcome.
            kind: "category", the probability of each category; or a kind of
                `LikelihoodFit.predict`, which is of the latent outcomes.
            entry: number or name of the outcome; by default the first ordered one.
            level: of the intervals.
            settings: of other kinds, as there.

        Returns:
            Predictions, with value (m, K) for categories.

        Example:
            >>> rows = tg.Ordinal([0, 1, 2, 1, 0, 2, 1, 2, 0, 1])
            >>> x = np.array([0.1, 0.6, 0.9, 0.2, 0.4, 0.8, 0.7, 0.3, 0.0, 0.5])[:, None]
            >>> fit = tg.fit_regression(rows, x)
            >>> fit.predict([[0.2], [0.8]]).value.round(2)
            array([[0.56, 0.4 , 0.05],
                   [0.02, 0.29, 0.69]])
        """
        if kind != "category":
            with jax.enable_x64(True):
                return super().predict(new, kind, entry=entry, level=level, **settings)
        if settings:
            raise ValueError(f"predict: categories take no {', '.join(settings)}.")
        j = self.entry(entry, "predict")
        with jax.enable_x64(True):
            design = np.zeros((1, 0))
            if self.designs and not isinstance(new, tuple | None):
                design = self.designs[j].read(new, "predict: new")
            elif self.designs or new is not None:
                design = designs_of(self, new, "predict: new")[j]
            of = functools.partial(self.categories, j, design)
            return self.with_errors(
                of, tuple(map(str, range(len(design)))), j, level, "probability"
            )

    def margins(
        self, at: Any = None, kind: str = "category", *, variables: Any = None,
        discrete: Any = None, average: bool = True, entry: Any = None, level: float = 0.95,
        **settings: Any,
    ) -> Predictions:  # fmt: skip
        """Marginal effects of covariates on the probabilities of categories: derivatives, and for
        dummies changes from 0 to 1; or on latent outcomes, as `LikelihoodFit.margins`.

        Args:
            at, variables, discrete, average, level: see `LikelihoodFit.margins`.
            kind: "category", or a kind of predictions of latent outcomes.
            entry: number or name of the outcome; by default the first ordered one.
            settings: of other kinds, as there.

        Returns:
            Predictions, with value (v, K) of v covariates, or (v, m, K) if not averaged.
        """
        chosen, dummies = chosen_covariates(self, variables, discrete)
        if kind != "category":
            more = {"variables": chosen, "discrete": dummies, "average": average, **settings}
            with jax.enable_x64(True):
                return super().margins(at, kind, level=level, **more)
        j = self.entry(entry, "margins")
        with jax.enable_x64(True):
            points, weights = points_of(self, at)
            design, names = points[j], np.array(self.designs[j].names)

            def effect(name: str, estimates: Any) -> jax.Array:
                column = names == name
                move = np.where(column, 1.0, 0.0 * design)
                of = functools.partial(self.categories, j, estimates=estimates)
                if name in dummies:
                    change = of(np.where(column, 1.0, design)) - of(np.where(column, 0.0, design))
                else:
                    change = jax.jvp(of, (jnp.asarray(design),), (jnp.asarray(move),))[1]
                return weights @ change / weights.sum() if average else change

            of = lambda estimates: jnp.stack([effect(name, estimates) for name in chosen])
            return self.with_errors(of, chosen, j, level, "effect")

    def with_errors(
        self, function: Any, names: tuple[str, ...], j: int, level: float, kind: str
    ) -> Predictions:
        """A function (..., K) of the estimates for the categories of outcome j, with intervals."""
        at = jnp.asarray(self.estimates, jnp.float64)
        value, jacobian = map(np.asarray, (function(at), jax.jacfwd(function)(at)))
        errors = standard_errors(self, jacobian)
        result = with_interval(self, kind, names, value, errors, level)
        outcomes = tuple(map(str, self.levels[j]))
        return dataclasses.replace(result, kind="category", outcomes=outcomes)

    def probabilities(self, new: Any = None, entry: Any = None) -> Predictions:
        """The probability of each category of an outcome, (m, K), as `predict` has it."""
        return self.predict(new, entry=entry)


def fit_ordinal(
    rows: LatentRows,
    design: Any = None,
    covariance: Any = "full",
    what: str = "fit_observations",
    *,
    method: Method = Automatic(),
    key: Any = None,
    common: tuple[bool, bool] = (False, False),
    **settings: Any,
) -> OrdinalFit:
    """The fit of rows with ordered entries: what `fit_regression` and `fit_observations` call.

    Args:
        rows: with d entries.
        design: covariates (n, p) of every outcome, or a tuple of d such; None for none.
        covariance: "full", "common" for one correlation of all pairs, "factor", "diagonal", or a
            matrix (d, d) with NaN where it is to be estimated.
        what: the function that was called.
        method: how probabilities are computed.
        key: its random key.
        common: whether all outcomes share their coefficients, and ordered ones their limits.
        settings: of `maximum_likelihood`.
    """
    if isinstance(covariance, str) and covariance not in STRUCTURES:
        raise ValueError(
            f'{what}: with ordered outcomes covariance must be "full", "common", "factor", '
            f'"diagonal" or a matrix with NaN where it is free, got {covariance!r}.'
        )
    check_settings(settings["information"], settings["num_profiles"], settings.get("cluster"))
    with jax.enable_x64(True):
        each = settings["information"] == "sandwich"
        inputs = rows, design, covariance, common, what
        of = functools.partial(OrdinalModel.of, *inputs, method=method, key=key, each=each)
        fit: OrdinalFit = maximum_likelihood(of(negative=False), **settings)
        if fit.reason == AT_ZERO_COMMON:  # the likelihood rises towards negative ones
            fit = maximum_likelihood(of(negative=True), **settings)
        return fit


# ---------------------------------------------------------------- coordinates


@frozen_pytree
class LatentCoordinates:
    """Free coordinates of coefficients, standard deviations, correlations and limits.

    x holds coefficients of orthogonal covariates; the logarithms of the differences of the limits
    of each ordered outcome, of which the first is 0; those of the standard deviations of outcomes
    that are not ordered; and correlations, as Fisher's z of each free pair, the logit of a common
    one within its range, or artanh of the loadings of a factor.

    Attributes:
        inner: of whitened coefficients and the covariance.
        transform: coefficients of whitened covariates to the different ones of the user, (w, w).
        shift: what is added to these, (w,).
        stacked: whether all outcomes have the same coefficients of whitened covariates (static).
        numbers: of each outcome's covariates among these (static).
        constants: likewise of the constant that is subtracted from its limits, or -1 (static).
        kinds: number of levels of each outcome, 0 where it is not ordered (static).
        structure: "full" for pairs, "common" or "factor" (static).
        common_limits: whether ordered outcomes share their limits (static).
        least: the end of the range of a common correlation (static).
    """

    inner: GaussianCoordinates
    transform: jax.Array
    shift: jax.Array
    stacked: bool = static_field()
    numbers: tuple[tuple[int, ...], ...] = static_field()
    constants: tuple[int, ...] = static_field()
    kinds: tuple[int, ...] = static_field()
    structure: str = static_field()
    common_limits: bool = static_field()
    least: float = static_field()

    @property
    def ordered(self) -> list[int]:
        """Outcomes whose limits are estimated; the first of those that share them."""
        ordered = [j for j, kind in enumerate(self.kinds) if kind]
        return ordered[:1] if self.common_limits else ordered

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Pairs (i, j), i > j, of free correlation, by rows."""
        return sorted((j, i) for i, j in self.inner.pairs)

    @property
    def num_correlations(self) -> int:
        return {"common": 1, "factor": len(self.kinds)}.get(self.structure, len(self.pairs))

    def split(self, x: jax.Array, coefficients: int, limits: list[int]) -> list[jax.Array]:
        """Coefficients, limits of each of `ordered`, scales and correlations of a vector."""
        sizes = [coefficients, *limits, len(self.inner.scales), self.num_correlations]
        return jnp.split(x, np.cumsum(sizes)[:-1])

    def parts(self, x: jax.Array) -> tuple[jax.Array, list[jax.Array], jax.Array, jax.Array]:
        """Free coefficients, limits of each of `ordered`, the first 0, standard deviations, and
        correlations: of pairs, the common one, or those with the factor."""
        theta, *logs, scales, z = self.split(
            x, len(self.shift), [self.kinds[j] - 2 for j in self.ordered]
        )
        cuts = [jnp.cumsum(jnp.concatenate([jnp.zeros(1), jnp.exp(part)])) for part in logs]
        numbers = self.least + (1.0 - self.least) * jax.nn.sigmoid(z)
        numbers = numbers if self.structure == "common" else jnp.tanh(z)
        return theta, cuts, jnp.exp(scales), numbers

    def covariance(self, scales: jax.Array, numbers: jax.Array) -> jax.Array:
        """The covariance matrix of standard deviations that are free, and correlations."""
        fixed = jnp.asarray(self.inner.fixed)
        root = jnp.sqrt(jnp.diagonal(fixed)).at[np.array(self.inner.scales, int)].set(scales)
        if self.structure == "full":
            matrix, (i, j) = fixed, np.array(self.pairs, int).reshape(-1, 2).T
            entries = numbers * root[i] * root[j]
            matrix = matrix.at[i, j].set(entries).at[j, i].set(entries)
        else:
            product = numbers[0] if self.structure == "common" else numbers[:, None] * numbers
            matrix = product * root[:, None] * root
        return jnp.where(np.eye(len(root), dtype=bool), root**2, matrix)

    def values(self, x: jax.Array) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """Coefficients of whitened covariates of each outcome, and the covariance matrix, NaN
        where it is none."""
        theta, _, *rest = self.parts(x)
        matrix = self.covariance(*rest)
        matrix += 0.0 * jnp.sum(jnp.linalg.cholesky(jax.lax.stop_gradient(matrix)))
        flat = jnp.tile(theta, len(self.kinds)) if self.stacked else theta
        return tuple(jnp.split(flat, np.cumsum(self.inner.sizes)[:-1])), matrix

    def loading(self, x: jax.Array) -> jax.Array:
        """Correlations with a factor that the outcomes have in common, (d,)."""
        numbers = self.parts(x)[3]
        if self.structure == "common":
            return jnp.sqrt(jnp.maximum(numbers[0], 0.0)) * jnp.ones(len(self.kinds))
        return numbers if self.structure == "factor" else jnp.zeros(len(self.kinds))

    def of_each(self, limits: list[Any]) -> list[Any]:
        """Limits of `ordered` as those of each outcome; none where it is not ordered."""
        each = iter(limits * len(self.kinds) if self.common_limits else limits)
        return [next(each) if kind else jnp.zeros(0) for kind in self.kinds]

    @property
    def kept(self) -> list[int]:
        """Numbers of the user's coefficients that are estimates."""
        return [k for k in range(len(self.shift)) if k not in self.constants]

    def estimates(self, x: jax.Array) -> jax.Array:
        theta, cuts, *rest = self.parts(x)
        user, constants = (
            self.transform @ theta + self.shift,
            [self.constants[j] for j in self.ordered],
        )
        moved = [cut[1:] if k < 0 else cut - user[k] for cut, k in zip(cuts, constants)]
        return jnp.concatenate([user[np.array(self.kept, int)], *moved, *rest])

    def free(self, estimates: jax.Array) -> jax.Array:
        """Free coordinates of coefficients and limits, of outcomes that are all ordered."""
        first = [int(self.constants[j] < 0) for j in self.ordered]
        sizes = [self.kinds[j] - 1 - zero for j, zero in zip(self.ordered, first)]
        user, *limits, _, _ = self.split(estimates, len(self.kept), sizes)
        every, logs = jnp.zeros(len(self.shift)).at[np.array(self.kept, int)].set(user), []
        for j, zero, cuts in zip(self.ordered, first, limits):
            if not zero:
                every = every.at[self.constants[j]].set(-cuts[0])
            logs.append(jnp.log(jnp.diff(jnp.append(jnp.zeros(zero), cuts))))
        return jnp.concatenate([jnp.linalg.solve(self.transform, every - self.shift), *logs])

    def of_estimates(self, estimates: jax.Array) -> tuple[tuple[Any, ...], list[Any], jax.Array]:
        """Coefficients, limits and the covariance matrix of the vector of estimates."""
        first = [int(self.constants[j] < 0) for j in self.ordered]
        free = [self.kinds[j] - 1 - zero for j, zero in zip(self.ordered, first)]
        user, *limits, scales, numbers = self.split(estimates, len(self.kept), free)
        position = {k: at for at, k in enumerate(self.kept)}
        columns = [np.array([position[k] for k in part], int) for part in self.numbers]
        cuts = [jnp.append(jnp.zeros(zero), part) for zero, part in zip(first, limits)]
        return tuple(user[k] for k in columns), self.of_each(cuts), self.covariance(scales, numbers)

    def names(self, labels: tuple[str, ...], levels: Any, coefficients: list[str]) -> list[str]:
        """Names of the estimates."""
        names = [coefficients[k] for k in self.kept]
        for j in self.ordered:
            label = "" if self.common_limits and len(labels) > 1 else f"[{labels[j]}]"
            free = levels[j][:-1][int(self.constants[j] < 0) :]
            names += [f"cut{label}[{level}]" for level in free]
        names += [f"sigma[{labels[j]}]" for j in self.inner.scales]
        if self.structure == "common":
            return [*names, "correlation"]
        if self.structure == "factor":
            return [*names, *(f"loading[{label}]" for label in labels)]
        return [*names, *(f"correlation[{labels[i]}, {labels[j]}]" for i, j in self.pairs)]


# ---------------------------------------------------------------- the likelihood


class FactorRows(NamedTuple):
    """Rows of entries that are independent but for one factor, given their exact entries.

    Attributes:
        density: the log density of these, (n,).
        problem: of all entries, exact ones without limits, see `common_effect.log_probability`.
    """

    density: jax.Array
    problem: tuple[jax.Array, ...]

    @classmethod
    def of(cls, low: Any, high: Any, exact: Any, loc: Any, loading: Any, variance: Any) -> Self:
        """Given a standard normal factor f entry j has mean loc_j + loading_j f and this variance,
        (d,) or (n, d); given the exact entries f is normal again."""
        loc, loading, variance = (jnp.broadcast_to(x, low.shape) for x in (loc, loading, variance))
        rest = jnp.where(exact, low, 0.0) - loc

        def conditional(exact: Any, rest: Any, loading: Any, variance: Any) -> tuple[Any, Any, Any]:
            density, mean, turned = given_exact(exact, rest, loading[:, None], variance)
            return density, loading * mean[0], turned(loading[:, None])[:, 0]

        density, moved, turned = jax.vmap(conditional)(exact, rest, loading, variance)
        low, high = jnp.where(exact, -jnp.inf, low), jnp.where(exact, jnp.inf, high)
        return cls(density, (loc + moved, turned, jnp.sqrt(variance), low, high))

    def log_likelihoods(self, nodes: int) -> jax.Array:
        of = functools.partial(common_effect.log_probability, num_nodes=nodes)
        size = nodes * self.problem[0].shape[1]
        return self.density + common_effect.in_batches(lambda row: of(*row)[0], self.problem, size)

    @property
    def nodes_needed(self) -> jax.Array:
        """The number of nodes for a negligible error of every row."""
        _, loading, scale, *limits = self.problem
        precision = common_effect.precision_of(loading / scale, *limits)
        return common_effect.nodes_needed(jnp.max(precision))


@frozen_pytree
class LatentLoss(ObservationsLoss):
    """Minus the mean log-likelihood of a row, some of whose limits are parameters.

    Attributes, besides those of `ObservationsLoss`:
        codes: the number of each entry's level, -1 where there is none, (n, d).
        by_factor: whether entries are independent but for one factor (static).
        nodes: of the integrals over it, 0 without any (static).
    """

    coordinates: Any
    codes: jax.Array | None = None
    by_factor: bool = static_field(default=False)
    nodes: int = static_field(default=0)

    def rows_at(self, x: jax.Array) -> Observations:
        kinds: Any = self.coordinates.kinds
        rows = LatentRows(self.codes, kinds, (), self.observations)  # type: ignore[arg-type]
        lower, upper = rows.between(self.coordinates.of_each(self.coordinates.parts(x)[1]), jnp)
        return self.observations.with_known(lower=lower, upper=upper)

    def gaussian(self, x: Any) -> tuple[Any, Any]:
        coefficients, covariance = self.coordinates.values(jnp.asarray(x))
        return mean_of(self.designs, coefficients), covariance

    def seen(self, x: jax.Array) -> jax.Array:
        """The log probability that each row could be seen, (n,), of rows by a factor."""
        if self.observations.region is None:
            return jnp.zeros(self.observations.num_rows)
        none = jnp.zeros(self.observations.lower.shape, bool)
        return self.by_limits(x, self.observations.region_limits(), none)

    def by_limits(self, x: jax.Array, limits: Any, exact: jax.Array) -> jax.Array:
        """The log probability (density) of limits, (n,), by the factor."""
        loc, loading, variance = self.given_factor(x)
        ends = limits.lower, limits.upper, exact
        if not self.nodes:
            return log_of_independent(*ends, loc, jnp.sqrt(variance))
        return FactorRows.of(*ends, loc, loading, variance).log_likelihoods(self.nodes)

    def given_factor(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Means, loadings and variances of the entries given the factor."""
        loc, covariance = self.gaussian(x)
        scale, loading = jnp.sqrt(jnp.diagonal(covariance)), self.coordinates.loading(x)
        variance = scale**2 * (1.0 - loading) * (1.0 + loading)
        if self.observations.noise is not None:
            variance = variance + jnp.diagonal(self.observations.noise, axis1=-2, axis2=-1)
        return loc, scale * loading, variance

    @jax.jit
    def nodes_needed(self, x: jax.Array) -> jax.Array:
        """The number of nodes that the integrals of some row need at x."""
        rows, exact = self.observations, self.observations.lower == self.observations.upper
        at = self.given_factor(x)
        limits = self.rows_at(x).data_limits()
        needed = FactorRows.of(limits.lower, limits.upper, exact, *at).nodes_needed
        if rows.region is not None:
            limits, none = rows.region_limits(), jnp.zeros_like(exact)
            region = FactorRows.of(limits.lower, limits.upper, none, *at)
            needed = jnp.maximum(needed, region.nodes_needed)
        return needed

    def log_likelihoods(self, x: jax.Array) -> jax.Array:
        """The log-likelihood of each row times its weight, (n,)."""
        rows = self.rows_at(x)
        if self.by_factor:
            exact = self.observations.lower == self.observations.upper
            each = self.by_limits(x, rows.data_limits(), exact) - self.seen(x)
            return each if rows.weights is None else rows.weights * each
        at = rows, *self.gaussian(x), self.method, self.key
        return likelihood.log_likelihood(*at).log_prob

    def total(self, x: jax.Array) -> Estimate:
        if self.by_factor:
            total = jnp.sum(self.log_likelihoods(x))
            return Estimate(total, jnp.zeros_like(total))
        return total_log_likelihood(self.rows_at(x), *self.gaussian(x), self.method, self.key)

    def scores(self, x: jax.Array) -> jax.Array:
        return jax.jacfwd(self.log_likelihoods)(x)

    @property
    def iterated(self) -> bool:
        return not self.by_factor and not set(self.methods or [""]) <= {"1"}

    def steps(self, x: np.ndarray) -> np.ndarray | None:
        return np.full(len(x), STEP) if self.iterated and self.smooth else None


# ---------------------------------------------------------------- the model


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrdinalModel(Model):
    """Rows with ordered entries.

    Attributes, besides those of `Model`:
        rows: as the user has them.
        observations: with a middle subtracted from exact entries that lie far from 0.
        covariates: whitened, of each outcome, (n, p).
        designs: covariates of the user; empty without any.
        inner: the coordinates.
        first: free coordinates to begin with.
        limited: how many entries of a row are limited at most.
        method, key: see `fit_observations`.
        each: whether the scores of single rows are asked for.
        rising: why there is no maximum, if the rows are separated.
        remarks: on the covariates.
        counts: of nodes of the last losses of rows by a factor.
    """

    rows: LatentRows
    observations: Observations
    covariates: tuple[np.ndarray, ...]
    designs: tuple[Covariates, ...]
    inner: LatentCoordinates
    first: np.ndarray
    names: tuple[str, ...]
    weights: np.ndarray
    num_rows: float
    limited: int
    method: Method
    key: Any
    each: bool
    rising: str | None
    remarks: tuple[str, ...]
    counts: list[int] = dataclasses.field(default_factory=list)
    undetermined_reason = FLAT

    @classmethod
    def of(
        cls,
        rows: LatentRows,
        design: Any,
        covariance: Any,
        common: tuple[bool, bool],
        what: str,
        *,
        negative: bool,
        method: Method,
        **more: Any,
    ) -> Self:
        """The model, checked.

        Raises:
            ValueError: see `fit_observations`.
        """
        known, kinds = floats_as_float64(rows.observations), tuple(map(len, rows.levels))
        designs, implicit = covariates_of(rows, design, common, what)
        names, numbers, constants = coefficients_of(rows.labels, designs, implicit, common)
        stacked = len(names) * (common[0] or (common[1] and any(implicit)))
        white = whitened_of(known, designs, numbers, constants, stacked, what)
        sizes = tuple(len(part.transform) for part in white)
        pairs = as_coordinates(template_of(covariance, kinds, what), sizes, known)
        scale = pairs.known_scale + (np.inf if stacked else 0.0)  # what is shared does not move
        moved = centred(known, white, scale, False, RowSums())
        maps = maps_of(white, moved.shifts, numbers, constants, stacked)
        structure = covariance if isinstance(covariance, str) else "full"
        structure = structure if structure in ("common", "factor") else "full"
        least = -1.0 / max(len(kinds) - 1, 1) if negative or len(kinds) == 2 else 0.0
        free = dataclasses.replace(pairs, pairs=pairs.pairs if structure == "full" else ())
        inner = LatentCoordinates(
            free, *maps, bool(stacked), numbers, constants, kinds, structure, common[1], least
        )  # fmt: skip
        check_rows(rows, inner, what)
        every = tuple(inner.names(rows.labels, rows.levels, names))
        model = cls(
            rows=rows, observations=moved.rows,
            covariates=tuple(map(np.asarray, moved.covariates or ())),
            designs=() if design is None else tuple(designs), inner=inner,
            first=start_of(rows, moved, pairs, inner, what), names=every,
            weights=known.row_weights, num_rows=moved.summary.counted,
            limited=moved.summary.limited, method=method,
            rising=separation(rows, designs, inner, every), remarks=moved.notes, **more,
        )  # fmt: skip
        model.check(what)
        return model

    def check(self, what: str) -> None:
        """Raise ValueError if there are too few rows, or some cannot be."""
        if self.num_rows <= len(self.first):
            raise ValueError(
                f"{what}: {self.num_rows:g} row(s) cannot determine {len(self.first)} parameters; "
                "more are needed, or fewer covariates."
            )
        rows = self.rows.observations
        wrong = impossible(rows) if isinstance(rows.region, Box) else np.zeros(0, int)
        if len(wrong):
            raise ValueError(
                f"{what}: {len(wrong)} row(s) are impossible, first row {wrong[0]}: they do not "
                "meet their region. Correct the region, or remove those rows."
            )

    @property
    def coordinates(self) -> LatentCoordinates:
        return self.inner

    @property
    def unique(self) -> bool:
        """Whether there is one outcome, whose likelihood is concave in coefficients and limits."""
        rows = self.observations
        return len(self.inner.kinds) == 1 and rows.region is None and rows.noise is None

    @property
    def by_factor(self) -> bool:
        """Whether entries are independent but for one factor, so that any number of them is one
        integral."""
        rows, inner = self.observations, self.inner
        plain = rows.region is None or (isinstance(rows.region, Box) and not rows.latent)
        noise = None if rows.noise is None else np.asarray(rows.noise)
        if noise is not None:
            plain &= not np.any(noise * (1.0 - np.eye(noise.shape[-1])))
        single = not np.any(inner.inner.fixed - np.diag(np.diagonal(inner.inner.fixed)))
        single &= not inner.inner.pairs and not (inner.structure == "common" and inner.least < 0)
        return bool(plain and single)

    @property
    def expensive(self) -> bool:
        return not self.by_factor and self.limited > 2

    # ---------------------------------------------------------------- losses

    @functools.cached_property
    def plain_loss(self) -> LatentLoss:
        """The loss of rows of which equal ones are counted once, by a method without plans."""
        rows, codes, designs = self.observations, self.rows.codes, self.covariates
        alone = rows.region is not None and rows.region.batch_shape != ()
        alone |= rows.noise is not None and rows.noise.ndim == 3
        if not self.each and not alone:
            ends = np.asarray(rows.lower), np.asarray(rows.upper)
            counted = np.flatnonzero(~is_empty(*ends) & (self.weights > 0))
            table = np.column_stack([codes, *ends, *designs])[counted]
            _, first, kind = np.unique(table, axis=0, return_index=True, return_inverse=True)
            totals, some = np.bincount(kind.ravel(), self.weights[counted]), counted[first]
            sides = (as_float_array(end[some]) for end in ends)
            rows = dataclasses.replace(
                rows, lower=next(sides), upper=next(sides), weights=as_float_array(totals)
            )
            codes, designs = codes[some], tuple(np.asarray(x)[some] for x in designs)
        rows, codes, designs = filled_up(rows, codes, tuple(map(as_float_array, designs)))
        return LatentLoss(
            rows, designs, self.inner, jnp.asarray(self.num_rows), self.method, as_key(self.key),
            codes=jnp.asarray(codes), by_factor=self.by_factor,
        )  # fmt: skip

    def loss_at(self, x: np.ndarray) -> LatentLoss:
        loss = self.plain_loss
        at = jnp.asarray(x)
        if loss.by_factor and not self.inner.num_correlations:
            return loss
        if loss.by_factor:
            needed = float(loss.nodes_needed(at)) * (1.0 if self.counts else common_effect.SPARE[1])
            least = max([needed, *self.counts])  # programs change but upwards
            count = next((n for n in COUNTS if n >= least), COUNTS[-1])
            self.counts.append(count)
            plan: Any = np.asarray(count)  # which is made anew where steps lead
            return dataclasses.replace(loss, nodes=count, method=plan)
        return loss.held_at(x, np.inf)

    def loss_that_reaches(self, x: np.ndarray) -> LatentLoss:
        return self.plain_loss.held_at(x, 0.0)

    def undetermined(self, path: Path, errors: np.ndarray) -> np.ndarray:
        """A mask of correlations whose likelihood is flat up to 1 or -1, as of tables with empty
        cells."""
        correlations = np.arange(len(errors)) >= len(errors) - self.inner.num_correlations
        return correlations & ~(errors < LARGEST)

    def starts(self, count: int | None) -> list[np.ndarray]:
        turned = [self.first.copy() for _ in range(1, count or 1)]
        random, number = np.random.default_rng(0), self.inner.num_correlations
        for x in turned:
            x[len(x) - number :] = random.normal(size=number)
        return [self.first, *turned]

    # ---------------------------------------------------------------- the end of a path

    def wald_ratios(self, path: Path, total: Any, errors: Any, compare: Any) -> Any:
        return (np.zeros((0, 2)), (NOT_COMPARED,)) if self.expensive else (compare(), ())

    def judged(self, path: Path, total: Any, converged: bool) -> tuple[float, None]:
        loss, x = path.loss, jnp.asarray(path.end.x)
        if loss.observations.region is None:
            return 1.0, None
        if loss.by_factor:
            seen = np.exp(np.asarray(loss.seen(x)))
        else:
            at = loss.rows_at(x), *loss.gaussian(x), loss.method, loss.key
            seen = np.asarray(fraction_not_truncated(*at))
        return float(np.average(seen, weights=loss.observations.row_weights)), None

    def obstacle(self, path: Path) -> str | None:
        if self.rising is not None:
            return self.rising
        x, inner = jnp.asarray(path.end.x), self.inner
        if inner.structure == "common" and inner.least == 0 and inner.parts(x)[3] < NO_COMMON:
            return AT_ZERO_COMMON
        covariance = np.asarray(inner.values(x)[1])
        root = np.sqrt(np.diagonal(covariance))
        correlation = covariance / np.outer(root, root)
        least = float(np.linalg.eigvalsh(correlation)[0])
        if least < NO_ERROR:
            return SINGULAR.format(least)
        rest = float(np.diagonal(np.linalg.inv(correlation)).max()) ** -0.5
        resolved = self.resolved(path, rest)
        return UNRESOLVED.format(rest, resolved) if rest < resolved else None

    def resolved(self, path: Path, rest: float) -> float:
        """The smallest conditional standard deviation of an outcome at which a maximum is told from
        a likelihood that grows for ever; `rest` is the one at the end."""
        if self.by_factor:  # as many nodes are needed as it is smaller
            nodes = path.loss.nodes
            return rest * float(path.loss.nodes_needed(path.end.x)) / nodes if nodes else 0.0
        return NEARLY_ONE if self.limited > 1 and isinstance(self.method, Automatic) else 0.0

    def notes(self, fields: dict[str, Any], common: tuple[str, ...], path: Path) -> tuple[str, ...]:
        pairs = zip(self.inner.kinds, self.inner.constants)
        first = (FIRST_CUT,) * any(kind and k < 0 for kind, k in pairs)
        unused = zip(self.rows.labels, self.rows.unused)
        words = (UNUSED.format(label, ", ".join(map(str, part))) for label, part in unused if part)
        return (*common, PROBIT_SCALE, *first, *words, *self.remarks)

    def result(self, fields: dict[str, Any], path: Path) -> OrdinalFit:
        parts = self.inner.of_estimates(jnp.asarray(fields["estimates"]))
        coefficients, cuts, covariance = jax.tree.map(np.asarray, parts)
        return OrdinalFit(
            **fields,
            standard_errors=fields["errors"],
            observations=self.rows.observations,
            designs=self.designs,
            coefficients=tuple(coefficients),
            thresholds=tuple(cuts),
            covariance_matrix=covariance,
            levels=self.rows.levels,
            rows=self.rows,
        )


# ---------------------------------------------------------------- inputs


def template_of(covariance: Any, kinds: tuple[int, ...], what: str) -> Any:
    """The covariance matrix with NaN where it is free, and 1 for the ordered outcomes."""
    d, ordered = len(kinds), np.array(kinds) > 0
    if isinstance(covariance, str):
        matrix = np.full((d, d), np.nan)
        if covariance == "diagonal":
            matrix[~np.eye(d, dtype=bool)] = 0.0
    else:
        matrix = np.array(covariance, float)
        if matrix.shape != (d, d):
            raise ValueError(f"{what}: covariance must have shape {(d, d)}, got {matrix.shape}.")
    scales = np.diagonal(matrix)[ordered]
    if not np.all(np.isnan(scales) | (scales == 1.0)):
        raise ValueError(
            f"{what}: the variances of ordered outcomes are 1, as categories do not tell them; the "
            f"covariance must have 1 or NaN there, got {scales}."
        )
    matrix[np.diag_indices(d)] = np.where(ordered, 1.0, np.diagonal(matrix))
    return matrix


def covariates_of(
    rows: LatentRows, design: Any, common: tuple[bool, bool], what: str
) -> tuple[list[Covariates], list[bool]]:
    """The user's covariates of each outcome, and whether a constant is added to them, as the
    outcome is ordered and they have none."""
    n, d = rows.codes.shape
    ordered = [bool(level) for level in rows.levels]
    if design is None:
        if common[0]:
            raise ValueError(f"{what}: common coefficients need a design.")
        parts = [
            Covariates(np.ones((n, int(not of))), ("constant",) * (not of), True) for of in ordered
        ]
        return parts, ordered
    read = [as_columns(x, what) for x in (design if isinstance(design, tuple | list) else [design])]
    read = read * d if len(read) == 1 else read
    values = [np.asarray(table.values, float) for table in read]
    check_designs(values, n, d, what, "design")
    if common[0] and len({part.shape[1] for part in values}) > 1:
        raise ValueError(f"{what}: common coefficients need as many covariates of every outcome.")
    stacked = [np.concatenate(values)] * d if common[0] else values
    lacking = [not x.shape[1] or constant_of(x, RowSums()) is None for x in stacked]
    parts = []
    for table, part in zip(read, values):
        labels = map(str, range(part.shape[1]) if table.names is None else table.names)
        parts.append(Covariates(part, tuple(labels), table.names is not None, table.encoder))
    return parts, [of and lack for of, lack in zip(ordered, lacking)]


def coefficients_of(
    labels: tuple[str, ...],
    designs: list[Covariates],
    implicit: list[bool],
    common: tuple[bool, bool],
) -> tuple[list[str], tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Names of the different coefficients, the numbers of those of each outcome among them, and
    of its constant that is subtracted from the limits, or -1."""
    names: list[str] = []
    numbers: list[tuple[int, ...]] = []
    for label, part in zip(labels, designs):
        if not (common[0] and numbers):
            plain = common[0] or len(labels) == 1
            outcome = "" if plain else f"[{label}]"
            known = plain and part.named
            names += [x if known else f"coefficients{outcome}[{x}]" for x in part.names]
        numbers.append(tuple(range(len(names) - len(part.names), len(names))))
    constants: list[int] = []
    for added in implicit:
        if added and not (common[1] and max(constants, default=-1) >= 0):
            names.append("")
        constants.append(len(names) - 1 if added else -1)
    return names, tuple(numbers), tuple(constants)


def whitened_of(
    rows: Observations,
    designs: list[Covariates],
    numbers: tuple[tuple[int, ...], ...],
    constants: tuple[int, ...],
    stacked: int,
    what: str,
) -> tuple[Whitened, ...]:
    """Orthogonal covariates of each outcome, with the constant that is added first; or, if outcomes
    have `stacked` coefficients in common, all of these, orthogonal over all their rows."""
    words, weights = f"{what}: the columns of the design", rows.row_weights
    ones = np.ones((rows.num_rows, 1))
    tables = [
        Table(np.hstack([ones[:, k < 0 :], x.values]), ("constant",) * (k >= 0) + x.names)
        for x, k in zip(designs, constants)
    ]
    if not stacked:
        parts = enumerate(tables)
        return tuple(whitened(x, weights, f"{words} of outcome {j}") for j, x in parts)
    d = len(tables)
    whole = np.zeros((d, rows.num_rows, stacked))
    for part, table, columns, constant in zip(whole, tables, numbers, constants):
        part[:, [constant] * (constant >= 0) + list(columns)] = table.values
    white = whitened(Table(whole.reshape(-1, stacked)), np.tile(weights, d), words)
    return tuple(white._replace(design=part) for part in np.split(white.design, d))


def maps_of(
    white: tuple[Whitened, ...],
    shifts: tuple[np.ndarray, ...],
    numbers: tuple[tuple[int, ...], ...],
    constants: tuple[int, ...],
    stacked: int,
) -> tuple[jax.Array, jax.Array]:
    """`transform` and `shift` of `LatentCoordinates`."""
    if stacked:
        return as_float_array(white[0].transform), jnp.zeros(stacked)
    ends = np.cumsum([0, *(len(part.transform) for part in white)])
    transform, shift = np.zeros((ends[-1], ends[-1])), np.zeros(ends[-1])
    for j, part in enumerate(white):
        chosen = [constants[j]] * (constants[j] >= 0) + list(numbers[j])
        transform[chosen, ends[j] : ends[j + 1]] = part.transform
        shift[chosen] = shifts[j]
    return as_float_array(transform), as_float_array(shift)


def check_rows(rows: LatentRows, inner: LatentCoordinates, what: str) -> None:
    """Raise ValueError for common limits of different numbers, and regions in unknown units."""
    kinds = [kind for kind in inner.kinds if kind]
    if inner.common_limits and len(set(kinds)) > 1:
        raise ValueError(
            f"{what}: outcomes with common limits must have as many levels, got {inner.kinds}."
        )
    region = rows.observations.region
    free = [j for j, constant in enumerate(inner.constants) if constant >= 0]
    if region is None or not free:
        return
    if not isinstance(region, Box) or np.any(
        np.isfinite(region.low[..., free]) | np.isfinite(region.high[..., free])
    ):
        raise ValueError(OF_A_BOX.format(what))


def start_of(
    rows: LatentRows, moved: Any, pairs: GaussianCoordinates, inner: LatentCoordinates, what: str
) -> np.ndarray:
    """Least squares of what is known, of ordered entries by the mean of a standard normal variable
    within their limits, which come from the shares of the categories."""
    lower, upper = (np.array(side) for side in (moved.rows.lower, moved.rows.upper))
    limits: list[np.ndarray] = []
    for j in (j for j, kind in enumerate(inner.kinds) if kind):
        seen = rows.codes[:, j] >= 0
        ends = lower[seen, j], upper[seen, j]
        cuts = np.unique(ends[1][np.isfinite(ends[1])])
        limits.append(np.log(np.diff(cuts)))
        densities, shares = (np.subtract(*map(f, ends)) for f in (stats.norm.pdf, stats.norm.cdf))
        lower[seen, j] = upper[seen, j] = -densities / shares - cuts[0]
    scored = moved.rows.with_known(lower=lower, upper=upper)
    guess, _ = first_guess(scored, moved.covariates, pairs, what, RowSums())
    coefficients, covariance = pairs.values(guess)
    theta = np.concatenate(coefficients)
    if inner.stacked:
        fitted = [x @ part for x, part in zip(moved.covariates, coefficients)]
        whole = np.concatenate(moved.covariates), np.concatenate(fitted)
        theta = np.linalg.lstsq(*whole, rcond=None)[0]
    scales = np.sqrt(np.diagonal(covariance))
    correlation = covariance / np.outer(scales, scales)
    d = len(scales)
    z = [np.arctanh(correlation[i, j]) for i, j in inner.pairs]
    if inner.structure == "common":
        mean = (correlation.sum() - d) / max(d * (d - 1), 1)
        share = np.clip((mean - inner.least) / (1.0 - inner.least), 0.1, 0.9)
        z = [np.log(share / (1.0 - share))]
    elif inner.structure == "factor":
        values, vectors = np.linalg.eigh(correlation)
        loading = vectors[:, -1] * np.sqrt(max(values[-1] - 1.0, 0.1))
        z = list(np.arctanh(np.clip(loading * np.sign(loading.sum() or 1.0), -0.9, 0.9)))
    some = limits[:1] if inner.common_limits else limits
    logs = np.log(scales[list(inner.inner.scales)])
    return np.concatenate([theta, *some, logs, z])


def separation(
    rows: LatentRows, designs: list[Covariates], inner: LatentCoordinates, names: tuple[str, ...]
) -> str | None:
    """The direction of coefficients and limits along which no row becomes less likely, in words.

    Row i with level k has tau_(k-1) < x_i b + e < tau_k: each limit is half a line for a linear
    function of b and tau.
    """
    position = {k: at for at, k in enumerate(inner.kept)}
    ends, start = {}, len(position)
    for j in inner.ordered:
        ends[j] = start - (inner.constants[j] < 0)
        start += inner.kinds[j] - 1 - (inner.constants[j] < 0)
    tables = []
    for j, kind in enumerate(inner.kinds):
        codes, begin = rows.codes[:, j], ends.get(j, ends[inner.ordered[0]])
        for side in (0, 1) if kind else ():  # the lower limit of a level, and the upper
            limited = (codes >= 1 - side) & (codes < kind - side)
            some = np.flatnonzero(limited & (rows.observations.row_weights > 0))
            table = np.zeros((len(some), start))
            table[:, [position[k] for k in inner.numbers[j]]] = designs[j].values[some]
            cut = codes[some] - 1 + side
            free = cut >= (inner.constants[j] < 0)
            table[np.flatnonzero(free), begin + cut[free]] -= 1.0
            tables.append(np.unique(table * (1 - 2 * side), axis=0))
    table = np.concatenate(tables)
    used = np.flatnonzero(np.any(table != 0, axis=0))
    if not len(used):
        return None
    zeros = np.zeros((len(table), 1))
    half = Observations(as_float_array(zeros), as_float_array(zeros + np.inf))
    direction = direction_of(half, 0, table[:, used], True, True)
    if direction is None:
        return None
    slopes = direction[:-1] / np.abs(direction[:-1]).max()
    parts = zip(slopes, (names[k] for k in used))
    return SEPARATED.format(", ".join(f"{b:.3g} in {name}" for b, name in parts if b))
