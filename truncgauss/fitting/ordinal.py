r"""Ordered and binary outcomes: regressions and latent Gaussians whose limits are parameters.

Row i has latent outcomes :math:`x_i \sim N(X_i \beta, \Sigma)`. An ordered entry shows between
which of its limits (cuts) :math:`x_{ij}` lies; its variance is 1, as categories do not tell it.
Other entries are exact, limited or missing. Of one outcome this is the ordered probit, of several
binary ones the multivariate probit. Equal rows are counted once.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution.pytrees import as_float_array, frozen_pytree, static_field
from truncgauss.execution.row_sums import RowSums
from truncgauss.fitting.centring import whitened
from truncgauss.fitting.engine import ONE_LABEL, maximum_likelihood
from truncgauss.fitting.existence import rising_sentence
from truncgauss.fitting.gaussian_starts import as_columns, check_designs
from truncgauss.fitting.linear_gaussian import STEP
from truncgauss.fitting.model import Model, RowsLoss
from truncgauss.fitting.optimization.descent import Path
from truncgauss.fitting.polychoric_correlations import UNUSED, free_limits, increasing, limits_of
from truncgauss.fitting.result import LikelihoodFit
from truncgauss.fitting.rising import direction_of
from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.ordinal import LatentRows
from truncgauss.special import log_interval_mass, standardize
from truncgauss.special.tails import LOG_SQRT_2PI

NODES = {2: 40, 3: 32, 4: 20}  # a dimension, of integrals over so many limited entries
FACTOR = 9.0 * np.array(np.polynomial.legendre.leggauss(120))  # nodes and weights of a common error
DEPTH = 30.0  # by how many nats a density falls within the part that is integrated
FARTHEST = 39.0  # standard deviations from 0, beyond which no mass is left
BATCH = 32  # rows whose integrals are computed together
STRUCTURES = ("full", "common", "diagonal")
NO_ERROR = 1e-9  # of a correlation matrix that is singular
PROBIT_SCALE = "The variance of each ordered outcome is fixed at 1: categories do not tell it."
FIRST_CUT = (
    "The first cut of each ordered outcome is fixed at 0, as its covariates span a constant."
)
NOT_COMPARED = "Wald intervals were not compared with the likelihood; profile() does that."
NO_COMMON = 1e-6  # a common correlation that has fallen to 0
AT_ZERO_COMMON = (
    "The common correlation is at the edge 0 of its range: the rows speak for none, or for a "
    'negative one. Use covariance="diagonal" or "full".'
)
RESOLVED = {1: 0.0, 2: 0.08, 3: 0.13, 4: 0.21}  # smallest conditional standard deviation of a
# latent outcome for which log_box has errors below 4e-6 of a mass of 1e-4, by its dimension
RESOLVED_COMMON = 0.03  # the same of log_box_of_common
UNRESOLVED = (
    "The latent outcomes determine one another but for a standard deviation of {:.2g}, below the "
    "{:g} that the integrals resolve: the likelihood may grow up to correlations of 1 or -1. "
    "tg.polychoric says so of two outcomes."
)
SINGULAR = (
    "There is no maximum inside: the likelihood grows as the correlation matrix becomes singular "
    "(smallest eigenvalue {:.1e})."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrdinalFit(LikelihoodFit):
    """A regression of ordered outcomes, or the Gaussian behind them; `print` shows a table.

    Attributes, besides those of `fitting.LikelihoodFit`:
        coefficients: of each outcome's covariates, d arrays.
        thresholds: the limits of the categories of each outcome; empty of one that is not ordered.
        covariance_matrix: of the latent outcomes given their covariates, (d, d).
        levels: the categories of each outcome that occur.
    """

    coefficients: tuple[np.ndarray, ...]
    thresholds: tuple[np.ndarray, ...]
    covariance_matrix: np.ndarray
    levels: tuple[tuple[Any, ...], ...]

    @property
    def array_constants(self) -> Any:
        return self.coordinates

    def arrays_of(self, estimates: Any) -> dict[str, Any]:
        coefficients, cuts, covariance = self.coordinates.of_estimates(estimates)
        return {"coefficients": coefficients, "thresholds": cuts, "covariance": covariance}

    def predict(self, *args: Any, **settings: Any) -> Any:
        """Refusal: predictions of ordered outcomes are `probabilities`."""
        raise ValueError("predict: not for ordered outcomes. Use probabilities(new), or derived.")

    def margins(self, *args: Any, **settings: Any) -> Any:
        """Refusal: effects on ordered outcomes are differences of `probabilities`."""
        raise ValueError("margins: not for ordered outcomes. Use probabilities(new), or derived.")

    def probabilities(self, new: Any = None, entry: int = 0) -> Any:
        """The probability of each category of an outcome, as `derived` has it: value (m, K) with
        standard errors by the delta method.

        Args:
            new: covariates of that outcome, (m, p); None without covariates.
            entry: the number of the outcome.

        Example:
            >>> rows = tg.Ordinal([0, 1, 2, 1, 0, 2, 1, 2, 0, 1])
            >>> x = np.array([0.1, 0.6, 0.9, 0.2, 0.4, 0.8, 0.7, 0.3, 0.0, 0.5])[:, None]
            >>> fit = tg.fit_regression(rows, x)
            >>> fit.probabilities([[0.2], [0.8]]).value.round(2)
            array([[0.56, 0.4 , 0.05],
                   [0.02, 0.29, 0.69]])
        """
        if not self.thresholds[entry].size and not self.levels[entry]:
            raise ValueError(f"probabilities: outcome {entry} has no categories.")
        size = len(self.coefficients[entry])
        design = np.zeros((1, 0)) if new is None else as_columns(new, "probabilities").values
        if design.ndim != 2 or design.shape[1] != size:
            raise ValueError(f"probabilities: new must have shape (m, {size}), got {design.shape}.")

        def function(p: Any) -> jax.Array:
            index = design @ p.coefficients[entry]
            below = jax.scipy.special.ndtr(p.thresholds[entry] - index[:, None])
            ends = jnp.pad(below, [(0, 0), (1, 1)], constant_values=((0.0, 0.0), (0.0, 1.0)))
            return jnp.diff(ends, axis=1)

        with jax.enable_x64(True):
            return self.derived(function, "probabilities")


def fit_ordinal(
    rows: LatentRows,
    design: Any = None,
    covariance: Any = "full",
    what: str = "fit_observations",
    *,
    common_coefficients: bool = False,
    common_limits: bool = False,
    **settings: Any,
) -> OrdinalFit:
    """The fit of rows with ordered entries: what `fit_regression` and `fit_observations` call.

    Args:
        rows: with d entries.
        design: covariates (n, p) of every outcome, or a tuple of d such; None for none.
        covariance: "full", "common" for one correlation of all pairs, or "diagonal".
        what: the function that was called.
        common_coefficients: whether all outcomes share their coefficients.
        common_limits: whether all ordered outcomes share their limits.
        settings: of `maximum_likelihood`.
    """
    if not isinstance(covariance, str) or covariance not in STRUCTURES:
        raise ValueError(
            f'{what}: with ordered outcomes covariance must be "full", "common" or "diagonal", got '
            f"{covariance!r}."
        )
    if settings.get("information") == "expected":
        raise ValueError(f'{what}: ordered outcomes have no information="expected".')
    with jax.enable_x64(True):
        shared, labels = (common_coefficients, common_limits), settings.pop("cluster", None)
        model, order = model_of(rows, design, covariance, shared, what, grouped=labels is None)
        if labels is not None:
            values = np.asarray(labels)
            if values.shape != (len(rows.codes),):
                raise ValueError(ONE_LABEL.format(len(rows.codes), values.shape))
            settings["cluster"] = values[order]
        return maximum_likelihood(model, **settings)


# ---------------------------------------------------------------- coordinates


@frozen_pytree
class LatentCoordinates:
    """Free coordinates of coefficients, limits, standard deviations and correlations.

    x holds the coefficients of whitened covariates; for each ordered outcome its first limit,
    unless that is 0, and the logarithms of the differences; for each other outcome the logarithm of
    its standard deviation; and the correlations, as artanh of partial ones in the rows of the
    Cholesky factor, or as the logit of a common one.

    Attributes:
        transforms: whitened covariates to the user's, each (p_j, p_j).
        middles: of the user's covariates, subtracted where limits are free, each (p_j,).
        kinds: number of levels of each outcome, 0 where it is not ordered (static).
        structure: "full", "common" or "diagonal" (static).
        shared: whether coefficients, and limits, are common (static).
        first_zero: whether the first limits are 0 (static).
    """

    transforms: tuple[jax.Array, ...]
    middles: tuple[jax.Array, ...]
    kinds: tuple[int, ...] = static_field()
    structure: str = static_field()
    shared: tuple[bool, bool] = static_field()
    first_zero: bool = static_field()

    @property
    def sizes(self) -> list[int]:
        """Numbers of coordinates of coefficient vectors, limits, scales and correlations."""
        parts = self.transforms[:1] if self.shared[0] else self.transforms
        return [*(len(part) for part in parts), *self.limit_sizes, *self.last_sizes]

    @property
    def limit_sizes(self) -> list[int]:
        """Of the limits of each ordered outcome."""
        ordered = [kind - 1 - self.first_zero for kind in self.kinds if kind]
        return ordered[:1] if self.shared[1] else ordered

    @property
    def last_sizes(self) -> list[int]:
        """Of the standard deviations, and of the correlations."""
        d = len(self.kinds)
        number = {"diagonal": 0, "common": min(d - 1, 1), "full": d * (d - 1) // 2}[self.structure]
        return [self.kinds.count(0), number]

    def split(self, x: jax.Array) -> tuple[list[jax.Array], list[jax.Array], jax.Array, jax.Array]:
        """Coefficients of whitened covariates, limits, log scales and correlations."""
        parts = jnp.split(x, np.cumsum(self.sizes)[:-1])
        count = len(self.sizes) - 2 - len(self.limit_sizes)
        return parts[:count], parts[count:-2], parts[-2], parts[-1]

    def values(self, x: jax.Array) -> tuple[list[jax.Array], list[jax.Array], jax.Array]:
        """Coefficients of whitened covariates, limits, and the covariance matrix, of each
        outcome."""
        coefficients, limits, scales, rest = self.split(x)
        d, cuts, number = len(self.kinds), [], 0
        for kind in self.kinds:
            part = limits[0 if self.shared[1] else number] if kind else jnp.zeros(0)
            if kind and self.first_zero:
                part = jnp.cumsum(jnp.concatenate([jnp.zeros(1), jnp.exp(part)]))
            cuts.append(part if self.first_zero or not kind else increasing(part))
            number += kind > 0
        if self.shared[0]:
            coefficients = coefficients * d
        return coefficients, cuts, self.covariance(jnp.exp(scales), self.correlation(rest))

    def covariance(self, scales: jax.Array, correlation: jax.Array) -> jax.Array:
        """The covariance matrix, the ordered outcomes having scale 1."""
        roots, free = jnp.ones(len(self.kinds)), [j for j, k in enumerate(self.kinds) if not k]
        roots = roots.at[np.array(free, int)].set(scales) if free else roots
        return roots[:, None] * correlation * roots

    def correlation(self, rest: jax.Array) -> jax.Array:
        d = len(self.kinds)
        if self.structure == "diagonal" or d == 1:
            return jnp.eye(d)
        if self.structure == "common":
            common = self.common(rest[0])
            return jnp.where(np.eye(d, dtype=bool), 1.0, common)
        rows, start = [jnp.eye(d)[0]], 0
        for i in range(1, d):
            partial, left, row = jnp.tanh(rest[start : start + i]), jnp.ones(()), []
            for j in range(i):
                row.append(partial[j] * left)
                left = left * jnp.sqrt(1.0 - partial[j] ** 2)
            rows.append(jnp.concatenate([jnp.stack([*row, left]), jnp.zeros(d - i - 1)]))
            start += i
        factor = jnp.stack(rows)
        return jnp.where(np.eye(d, dtype=bool), 1.0, factor @ factor.T)

    def common(self, z: Any) -> Any:
        """The common correlation: of two outcomes by artanh, of more by its logit, so that it is
        positive."""
        return jnp.tanh(z) if len(self.kinds) == 2 else jax.nn.sigmoid(z)

    def factor(self, x: jax.Array) -> jax.Array | None:
        """The common correlation of three or more outcomes; None of another structure."""
        several = self.structure == "common" and len(self.kinds) > 2
        return self.common(x[-1]) if several else None

    def estimates(self, x: jax.Array) -> jax.Array:
        coefficients, cuts, covariance = self.values(x)
        user = [t @ b for t, b in zip(self.transforms, coefficients)]
        moved = [c + m @ b if len(c) else c for c, m, b in zip(cuts, self.middles, user)]
        ordered = [moved[j] for j, kind in enumerate(self.kinds) if kind]
        parts = [*(user[:1] if self.shared[0] else user)]
        parts += [] if self.first_zero and max(self.kinds) <= 2 else self.free_cuts(ordered)
        scales = jnp.sqrt(jnp.diagonal(covariance))
        parts.append(scales[np.array([j for j, k in enumerate(self.kinds) if not k], int)])
        i, j = np.tril_indices(len(self.kinds), -1)
        correlations = covariance[i, j] / (scales[i] * scales[j])
        last = {"diagonal": 0, "common": 1, "full": len(i)}[self.structure]
        return jnp.concatenate([*parts, correlations[:last]])

    def free_cuts(self, ordered: list[jax.Array]) -> list[jax.Array]:
        """The limits that are estimated."""
        some = ordered[:1] if self.shared[1] else ordered
        return [cuts[1:] if self.first_zero else cuts for cuts in some]

    def of_estimates(self, estimates: jax.Array) -> tuple[list[Any], list[Any], jax.Array]:
        """Coefficients, limits and the covariance matrix of the vector of estimates."""
        coefficients, limits, scales, rest = self.split(estimates)
        d, cuts, number = len(self.kinds), [], 0
        for kind in self.kinds:
            part = limits[0 if self.shared[1] else number] if kind else jnp.zeros(0)
            cuts.append(jnp.append(0.0, part) if kind and self.first_zero else part)
            number += kind > 0
        matrix, (i, j) = jnp.eye(d), np.tril_indices(d, -1)
        if len(rest):
            entries = jnp.broadcast_to(rest, i.shape)
            matrix = matrix.at[i, j].set(entries).at[j, i].set(entries)
        if self.shared[0]:
            coefficients = coefficients * d
        return coefficients, cuts, self.covariance(scales, matrix)

    def names(self, rows: LatentRows, columns: list[Any]) -> tuple[str, ...]:
        """Names of the estimates."""
        labels, d = rows.labels, len(self.kinds)
        names: list[str] = []
        for j, part in enumerate(self.transforms[:1] if self.shared[0] else self.transforms):
            each = columns[j] or [str(k) for k in range(len(part))]
            plain = d == 1 or self.shared[0]
            if plain and columns[j]:
                names += list(map(str, each))
            else:
                outcome = "" if plain else f"[{labels[j]}]"
                names += [f"coefficients{outcome}[{name}]" for name in each]
        ordered = [j for j, kind in enumerate(self.kinds) if kind]
        for j in ordered[:1] if self.shared[1] else ordered:
            label = "" if self.shared[1] and d > 1 else f"[{labels[j]}]"
            levels = rows.levels[j][:-1][self.first_zero :]
            names += [f"cut{label}[{level}]" for level in levels]
        names += [f"sigma[{labels[j]}]" for j, kind in enumerate(self.kinds) if not kind]
        if self.structure == "common" and d > 1:
            return (*names, "correlation")
        pairs = zip(*np.tril_indices(d, -1)) if self.structure == "full" else ()
        return (*names, *(f"correlation[{labels[i]}, {labels[j]}]" for i, j in pairs))


# ---------------------------------------------------------------- rows


@frozen_pytree
class LatentPattern:
    """Rows that know the same entries exactly, and the same ones to limits.

    Attributes:
        values: of exact entries, (m, e).
        codes: of limited ones, -1 where these are not ordered, (m, l).
        lower, upper: their limits where they are known, (m, l).
        designs: whitened covariates of exact and then of limited entries, each (m, p).
        weights: (m,).
        exact, limited: numbers of the entries (static).
        independent: whether all entries are (static).
    """

    values: jax.Array
    codes: jax.Array
    lower: jax.Array
    upper: jax.Array
    designs: tuple[jax.Array, ...]
    weights: jax.Array
    exact: tuple[int, ...] = static_field()
    limited: tuple[int, ...] = static_field()
    independent: bool = static_field()

    def __call__(
        self, coefficients: Any, cuts: Any, covariance: jax.Array, common: jax.Array | None
    ) -> jax.Array:
        """The log-likelihood of each row, (m,); `common` is the correlation of all pairs, if they
        have one that is positive."""
        entries = (*self.exact, *self.limited)
        loc = jnp.stack([x @ coefficients[j] for x, j in zip(self.designs, entries)], axis=1)
        factor = jnp.linalg.cholesky(covariance[np.ix_(entries, entries)])
        e = len(self.exact)
        z = jax.scipy.linalg.solve_triangular(
            factor[:e, :e], (self.values - loc[:, :e]).T, lower=True
        ).T
        density = -0.5 * jnp.sum(z**2, axis=1) - jnp.sum(jnp.log(jnp.diagonal(factor)[:e]))
        total = density - e * LOG_SQRT_2PI
        if not self.limited:
            return total
        mean = loc[:, e:] + z @ factor[e:, :e].T
        low, high = self.limits(cuts)
        if common is None or len(self.limited) < 3:
            return total + log_box(low, high, mean, factor[e:, e:], self.independent)
        scale = jnp.sqrt(jnp.diagonal(covariance)[np.array(self.limited)])
        shared = common * (1.0 - common) / (1.0 + (e - 1.0) * common)
        return total + log_box_of_common(low, high, mean, scale, 1.0 - common, shared)

    def limits(self, cuts: Any) -> tuple[jax.Array, jax.Array]:
        """Of the limited entries, (m, l)."""
        sides = []
        for side, known in enumerate((self.lower, self.upper)):
            columns = []
            for k, j in enumerate(self.limited):
                column = known[:, k]
                if len(cuts[j]):
                    ends = jnp.concatenate([jnp.array([-jnp.inf]), cuts[j], jnp.array([jnp.inf])])
                    column = jnp.where(self.codes[:, k] < 0, column, ends[self.codes[:, k] + side])
                columns.append(column)
            sides.append(jnp.stack(columns, axis=1))
        return sides[0], sides[1]


def log_box(
    low: jax.Array, high: jax.Array, loc: jax.Array, factor: jax.Array, independent: bool
) -> jax.Array:
    """log P(low < x < high), (m,), of rows (m, l) with means (m, l) and one Cholesky factor (l, l):
    Gauss-Legendre over all coordinates but the last."""
    size = low.shape[1]
    if size == 1 or independent:
        each = standardize(low, high, loc, jnp.diagonal(factor))
        return jnp.sum(log_interval_mass(*each), axis=1)
    nodes, weights = np.polynomial.legendre.leggauss(NODES[size])

    def mass(row: tuple[jax.Array, ...]) -> jax.Array:
        a, b, mean = row
        z, weight = jnp.zeros((1, 0)), jnp.ones(1)
        for k in range(size):
            shift = mean[k] + z @ factor[k, :k]
            ends = standardize(a[k], b[k], shift, factor[k, k])
            if k == size - 1:
                return jnp.log(jnp.sum(weight * interval(ends.low, ends.high)))
            left, right = part_that_counts(ends.low, ends.high)
            half = 0.5 * (right - left)
            at = 0.5 * (left + right)[:, None] + half[:, None] * nodes
            density = jnp.exp(-0.5 * at**2 - LOG_SQRT_2PI) * weights * half[:, None]
            weight = (weight[:, None] * density).ravel()
            z = jnp.concatenate([jnp.repeat(z, len(nodes), axis=0), at.reshape(-1, 1)], axis=1)
        raise AssertionError

    return jax.lax.map(jax.checkpoint(mass), (low, high, loc), batch_size=BATCH)


def log_box_of_common(
    low: jax.Array,
    high: jax.Array,
    loc: jax.Array,
    scale: jax.Array,
    single: jax.Array,
    shared: jax.Array,
) -> jax.Array:
    """As `log_box`, where entries have standard deviations `scale` (l,) times the sum of errors of
    variance `single`, and one of variance `shared` that is common to all."""
    ends = standardize(low, high, loc, scale * jnp.sqrt(single))
    shift = jnp.sqrt(shared / single) * FACTOR[0]
    density = jnp.exp(-0.5 * FACTOR[0] ** 2 - LOG_SQRT_2PI) * FACTOR[1]
    mass = density * jnp.ones_like(loc[:, :1])
    for k in range(low.shape[1]):
        mass = mass * interval(ends.low[:, k : k + 1] - shift, ends.high[:, k : k + 1] - shift)
    return jnp.log(jnp.sum(mass, axis=1))


def interval(low: jax.Array, high: jax.Array) -> jax.Array:
    """The mass of an interval of a standard normal variable, from the tail closer to it."""
    low, high = (jnp.clip(end, -FARTHEST, FARTHEST) for end in (low, high))
    ndtr, upper = jax.scipy.special.ndtr, low > 0
    return ndtr(jnp.where(upper, -low, high)) - ndtr(jnp.where(upper, -high, low))


def part_that_counts(low: jax.Array, high: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The part of an interval within which a standard normal density falls by DEPTH."""
    above = jnp.maximum(jnp.where(jnp.isfinite(low), low, 0.0), 0.0)
    below = jnp.minimum(jnp.where(jnp.isfinite(high), high, 0.0), 0.0)
    right = jnp.minimum(high, jnp.sqrt(above**2 + 2.0 * DEPTH))
    left = jnp.maximum(low, -jnp.sqrt(below**2 + 2.0 * DEPTH))
    return jnp.where(left < right, left, right), right


# ---------------------------------------------------------------- the model


@frozen_pytree
class OrdinalLoss(RowsLoss):
    """Minus the mean log-likelihood of a row with ordered entries. Where integrals have three
    dimensions its Hessian is by differences of gradients, as its program would take long to
    compile."""

    def steps(self, x: np.ndarray) -> np.ndarray | None:
        return np.full(len(x), STEP) if self.model.expensive else None


@frozen_pytree
class OrdinalModel(Model):
    """Rows with ordered entries.

    Attributes, besides those of `Model`:
        patterns: the rows.
        inner: the coordinates.
        start: free coordinates to begin with.
        rising: why there is no maximum, if the rows are separated (static).
        sentences: on the rows (static).
        levels: of each outcome (static).
    """

    patterns: tuple[LatentPattern, ...]
    inner: LatentCoordinates
    start: np.ndarray
    rising: str | None = static_field()
    sentences: tuple[str, ...] = static_field()
    levels: tuple[tuple[Any, ...], ...] = static_field()
    names: tuple[str, ...] = static_field(default=())
    weights: np.ndarray | None = None
    references = ("ashford1970", "mckelvey1975")

    @property
    def coordinates(self) -> LatentCoordinates:
        return self.inner

    @property
    def unique(self) -> bool:
        """Whether there is one outcome, whose likelihood is concave in coefficients and limits."""
        return len(self.inner.kinds) == 1

    def estimates(self, x: jax.Array) -> jax.Array:
        return self.inner.estimates(x)

    def log_likelihoods(self, x: jax.Array) -> jax.Array:
        values, common = self.inner.values(x), self.inner.factor(x)
        return jnp.concatenate([pattern(*values, common) for pattern in self.patterns])

    def loss_at(self, x: np.ndarray) -> OrdinalLoss:
        return OrdinalLoss(self, jnp.sum(jnp.asarray(self.weights)))

    @property
    def most_limited(self) -> int:
        """The dimension of the largest integral that is no product."""
        sizes = [len(pattern.limited) for pattern in self.patterns]
        return 1 if self.inner.structure != "full" else max(sizes)

    @property
    def expensive(self) -> bool:
        return self.most_limited > 2

    def wald_ratios(self, path: Path, total: Any, errors: Any, compare: Any) -> Any:
        return (np.zeros((0, 2)), (NOT_COMPARED,)) if self.expensive else (compare(), ())

    def starts(self, count: int | None) -> list[np.ndarray]:
        number = self.inner.last_sizes[-1]
        turned = [self.start.copy() for _ in range(1, count or 1)]
        random = np.random.default_rng(0)
        for x in turned:
            x[len(x) - number :] = random.normal(size=number)
        return [self.start, *turned]

    def obstacle(self, path: Path) -> str | None:
        if self.rising is not None:
            return self.rising
        common = self.inner.factor(jnp.asarray(path.end.x))
        if common is not None and float(common) < NO_COMMON:
            return AT_ZERO_COMMON
        covariance = np.asarray(self.inner.values(jnp.asarray(path.end.x))[2])
        root = np.sqrt(np.diagonal(covariance))
        correlation = covariance / np.outer(root, root)
        least = float(np.linalg.eigvalsh(correlation)[0])
        if least < NO_ERROR:
            return SINGULAR.format(least)
        rest = float(np.diagonal(np.linalg.inv(correlation)).max()) ** -0.5
        return UNRESOLVED.format(rest, self.resolved) if rest < self.resolved else None

    @property
    def resolved(self) -> float:
        """The smallest conditional standard deviation of an outcome that integrals resolve."""
        several = max(len(pattern.limited) for pattern in self.patterns)
        if self.inner.structure == "diagonal" or several < 2:
            return 0.0
        if self.inner.structure == "common" and several > 2:
            return RESOLVED_COMMON
        return RESOLVED[several]

    def notes(self, fields: dict[str, Any], common: tuple[str, ...], path: Path) -> tuple[str, ...]:
        return (*common, *self.sentences)

    def result(self, fields: dict[str, Any], path: Path) -> OrdinalFit:
        parts = self.inner.of_estimates(jnp.asarray(fields["estimates"]))
        coefficients, cuts, covariance = jax.tree.map(np.asarray, parts)
        return OrdinalFit(
            **fields,
            standard_errors=fields["errors"],
            coefficients=tuple(coefficients),
            thresholds=tuple(cuts),
            covariance_matrix=covariance,
            levels=self.levels,
        )


def model_of(
    rows: LatentRows,
    design: Any,
    covariance: str,
    shared: tuple[bool, bool],
    what: str,
    grouped: bool = True,
) -> tuple[OrdinalModel, np.ndarray]:
    """The model, checked, and for each row of it a row of the user's that it stands for."""
    designs, columns = covariates_of(rows, design, shared, what)
    parts, transforms, middles, first_zero = centred(rows, designs, shared, what)
    kinds = tuple(map(len, rows.levels))
    inner = LatentCoordinates(
        tuple(map(as_float_array, transforms)), tuple(map(as_float_array, middles)),
        kinds, covariance, shared, first_zero,
    )  # fmt: skip
    if shared[1] and len({kind for kind in kinds if kind}) > 1:
        raise ValueError(
            f"{what}: outcomes with common limits must have as many levels, got {kinds}."
        )
    names = inner.names(rows, columns)
    patterns, order = patterns_of(rows, parts, grouped, covariance)
    weights = np.concatenate([np.asarray(pattern.weights) for pattern in patterns])
    start = start_of(rows, parts, inner)
    if weights.sum() <= len(start):
        raise ValueError(
            f"{what}: {weights.sum():g} row(s) cannot determine {len(start)} parameters; more are "
            "needed, or fewer covariates."
        )
    notes = [PROBIT_SCALE, *([FIRST_CUT] if first_zero else [])]
    for label, unused in zip(rows.labels, rows.unused):
        notes += [UNUSED.format(label, ", ".join(map(str, unused)))] if unused else []
    rising = separation(rows, designs, inner, names)
    model = OrdinalModel(
        patterns, inner, start, rising, tuple(notes), rows.levels, names, weights
    )  # fmt: skip
    return model, order


def covariates_of(
    rows: LatentRows, design: Any, shared: tuple[bool, bool], what: str
) -> tuple[list[np.ndarray], list[Any]]:
    """The user's covariates of each outcome, and the names of their columns, None if none."""
    n, d = rows.codes.shape
    if design is None:
        if shared[0]:
            raise ValueError(f"{what}: common coefficients need a design.")
        sizes = [0 if level else 1 for level in rows.levels]
        return [np.ones((n, size)) for size in sizes], [["constant"] * size for size in sizes]
    read = [as_columns(x, what) for x in (design if isinstance(design, tuple | list) else [design])]
    read = read * d if len(read) == 1 else read
    designs = [np.asarray(table.values, float) for table in read]
    check_designs(designs, n, d, what, "design")
    if shared[0] and len({part.shape[1] for part in designs}) > 1:
        raise ValueError(f"{what}: common coefficients need as many covariates of every outcome.")
    return designs, [None if t.names is None else list(map(str, t.names)) for t in read]


def centred(
    rows: LatentRows, designs: list[np.ndarray], shared: tuple[bool, bool], what: str
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray], bool]:
    """Whitened covariates, their transforms and middles, and whether they span constants, so that
    the first limits are 0."""
    d, weights = len(designs), rows.row_weights
    words = f"{what}: the columns of the design"
    stacked = [np.concatenate(designs)] if shared[0] else designs
    repeated = np.tile(weights, d) if shared[0] else weights
    white = [whitened(part, repeated, words) if part.shape[1] else None for part in stacked]
    constant = [part is not None and part.constant is not None for part in white] * (
        d if shared[0] else 1
    )
    ordered = [flag for flag, level in zip(constant, rows.levels) if level]
    if len(set(ordered)) > 1:
        raise ValueError(
            f"{what}: the covariates of some ordered outcomes span a constant, of others not. Give "
            "all of them a constant, and their first limits are 0; or none."
        )
    middles = [np.zeros(part.shape[1]) for part in stacked]
    if not ordered[0]:
        middles = [np.average(part, axis=0, weights=repeated) for part in stacked]
        middles = [m if not c else 0.0 * m for m, c in zip(middles, constant)]
        pairs = zip(stacked, middles, constant)
        white = [whitened(x - m, repeated, words) if x.shape[1] else None for x, m, _ in pairs]
    parts = [np.zeros((len(x), 0)) if w is None else w.design for x, w in zip(stacked, white)]
    transforms = [np.zeros((0, 0)) if w is None else w.transform for w in white]
    if shared[0]:
        return np.split(parts[0], d), transforms * d, middles * d, ordered[0]
    return parts, transforms, middles, ordered[0]


def patterns_of(
    rows: LatentRows, designs: list[np.ndarray], grouped: bool, structure: str
) -> tuple[tuple[LatentPattern, ...], np.ndarray]:
    """The rows by what they know, equal ones once, and the number of a row that each stands for."""
    lower, upper, codes, weights = rows.lower, rows.upper, rows.codes, rows.row_weights
    exact = (lower == upper) & (codes < 0)
    limited = (codes >= 0) | (~exact & (np.isfinite(lower) | np.isfinite(upper)))
    useful = (exact | limited).any(axis=1) & (weights > 0)
    kinds, which = np.unique((exact + 2 * limited)[useful], axis=0, return_inverse=True)
    patterns, order = [], []
    for number, kind in enumerate(kinds):
        some = np.flatnonzero(useful)[which.ravel() == number]
        e, k = np.flatnonzero(kind == 1), np.flatnonzero(kind == 2)
        if len(k) > max(NODES) and structure == "full":
            raise ValueError(
                f"fit_observations: rows with {len(k)} limited or ordered entries; up to "
                f'{max(NODES)} are integrated. Use covariance="common", or tg.polychoric_matrix.'
            )
        table = np.column_stack([codes, lower, upper, *designs])[some]
        first, inverse = np.arange(len(some)), np.arange(len(some))
        if grouped:
            _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
        totals = np.bincount(inverse.ravel(), weights[some])
        at = some[first]
        parts = tuple(as_float_array(designs[j][at]) for j in (*e, *k))
        sides = [as_float_array(side[np.ix_(at, k)]) for side in (lower, upper)]
        values, levels = as_float_array(lower[np.ix_(at, e)]), jnp.asarray(codes[np.ix_(at, k)])
        entries = tuple(map(int, e)), tuple(map(int, k))
        counted = as_float_array(totals)
        pattern = LatentPattern(
            values, levels, sides[0], sides[1], parts, counted, *entries, structure == "diagonal"
        )
        patterns.append(pattern)
        order.append(at)
    return tuple(patterns), np.concatenate(order)


def start_of(rows: LatentRows, designs: list[np.ndarray], inner: LatentCoordinates) -> np.ndarray:
    """Limits from the margins, least squares of what is known, and no correlation."""
    coefficients, limits, scales, weights = [], [], [], rows.row_weights
    for j, (part, kind) in enumerate(zip(designs, inner.kinds)):
        root = np.sqrt(weights)
        if kind:
            seen = rows.codes[:, j] >= 0
            cuts = limits_of(np.bincount(rows.codes[seen, j], weights[seen], kind))
            target = np.full(len(part), -cuts[0] if inner.first_zero else 0.0)
            cuts = cuts - cuts[0] if inner.first_zero else cuts
            limits.append(free_limits(cuts)[1:] if inner.first_zero else free_limits(cuts))
        else:
            ends = np.clip(rows.lower[:, j], -1e300, None), np.clip(rows.upper[:, j], None, 1e300)
            known = (np.abs(ends[0]) < 1e300) | (np.abs(ends[1]) < 1e300)
            target = np.where(np.abs(ends[0]) < 1e300, ends[0], ends[1])
            root, target = root * known, np.where(known, target, 0.0)
        fitted = np.linalg.lstsq(root[:, None] * part, root * target, rcond=None)[0]
        coefficients.append(fitted)
        if not kind:
            left = root * (target - part @ fitted)
            scales.append(0.5 * np.log(max(left @ left / max((root**2).sum(), 1.0), 1e-12)))
    if inner.shared[0]:
        coefficients = [np.mean(coefficients, axis=0)]
    limits = limits[:1] if inner.shared[1] else limits
    return np.concatenate([*coefficients, *limits, scales, np.zeros(inner.last_sizes[-1])])


def separation(
    rows: LatentRows, designs: list[np.ndarray], inner: LatentCoordinates, names: tuple[str, ...]
) -> str | None:
    """The direction of coefficients and limits along which no row becomes less likely, in words.

    Row i with level k has tau_(k-1) < x_i b + e < tau_k: each limit is half a line for a linear
    function of b and tau.
    """
    sizes = inner.sizes
    count = len(sizes) - 2 - len(inner.limit_sizes)
    ends = np.cumsum([0, *sizes])
    width, tables = ends[-3], []
    number = 0
    for j, kind in enumerate(inner.kinds):
        if not kind:
            continue
        codes, part = rows.codes[:, j], designs[j]
        start = ends[0 if inner.shared[0] else j]
        limit = ends[count + (0 if inner.shared[1] else number)] - inner.first_zero
        for side in (0, 1):  # the lower limit of a level, and the upper
            some = np.flatnonzero(
                (codes >= 1 - side) & (codes < kind - side) & (rows.row_weights > 0)
            )
            table = np.zeros((len(some), width))
            table[:, start : start + part.shape[1]] = part[some]
            cut = codes[some] - 1 + side
            free = cut >= inner.first_zero
            table[np.flatnonzero(free), limit + cut[free]] -= 1.0
            tables.append(np.unique(table * (1 - 2 * side), axis=0))
        number += 1
    table = np.concatenate(tables)
    used = np.flatnonzero(np.any(table != 0, axis=0))
    if not len(used):
        return None
    zeros = np.zeros((len(table), 1))
    half = Observations(as_float_array(zeros), as_float_array(zeros + np.inf))
    direction = direction_of(half, 0, table[:, used], True, True)
    if direction is None:
        return None
    labels = [names[k] for k in used]
    exact = np.zeros(len(table), bool)
    return rising_sentence(direction, labels, exact, RowSums())
