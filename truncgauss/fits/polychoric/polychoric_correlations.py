r"""Polychoric correlations: of the normal variables behind ordered categories.

Cell (a, b) of a table of two ordered variables is seen where :math:`\tau_{a-1} < X \leq \tau_a` and
:math:`\kappa_{b-1} < Y \leq \kappa_b`, with X and Y standard normal and of correlation rho. The
two-step estimate takes the limits from the margins of the table, and rho from its cells; full
maximum likelihood estimates all together. Many tables are one program.
"""

import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from scipy import special

from truncgauss import tables
from truncgauss.arrays.compiling import Compiled
from truncgauss.arrays.progress import reported
from truncgauss.arrays.pytrees import frozen_pytree, static_field
from truncgauss.fits.polychoric.orthants import density, orthant
from truncgauss.fitting.descent import Path
from truncgauss.fitting.engine import maximum_likelihood
from truncgauss.fitting.likelihood_fit import Ending, LikelihoodFit, LikelihoodRatio
from truncgauss.fitting.model import Model
from truncgauss.likelihood.ordinal import LEFT_OUT, UNUSED, Ordinal, is_whole, limits_of
from truncgauss.words import earlier
from truncgauss.words.arguments import explained
from truncgauss.words.numbers import check_share, single

CORNERS = 2**13  # of cells whose masses are computed at once
MOST_LEVELS = 100  # of a table of counts; a longer one holds answers
LEAST_MASS = 1e-14  # below which a mass is rounding
MOST_STEPS, ARRIVED = 100, 1e-12  # of the correlation alone
STRONGEST = 0.95  # correlation of a start
AT_EDGE = (
    "rho is at the edge of its range, {:+d}: the occupied cells form one {} chain, and the "
    "likelihood grows up to there. Its standard error and Wald interval do not exist."
)
DETERMINES = (
    "{} determines {}: each level of the first occurs with one of the second alone, as levels of "
    "two normal variables do at rho = 1 or -1 only."
)
EMPTY = "{} of the {} cells are empty; {}"
NOTHING = "nothing was added."
ADDED = (
    "correction was added to each.",
    "correction was added to each, and the others changed so as to keep the margins.",
)
INDEFINITE = (
    "The matrix is not positive definite; statsmodels has a close one that is: "
    "stats.correlation_tools.corr_nearest(matrix.correlations)."
)


class MarginalTwoStep(NamedTuple):
    """The correlation with the limits taken from the margins.

    Attributes:
        rho: the estimate.
        standard_errors: of rho, with the errors of the limits; nan where rho is at an edge.
        thresholds: of the two variables.
    """

    rho: float
    standard_errors: float
    thresholds: tuple[np.ndarray, np.ndarray]

    @property
    def standard_error(self) -> float:
        """The earlier name of `standard_errors`."""
        earlier.warn_of("MarginalTwoStep.standard_error", "standard_errors")
        return self.standard_errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolychoricFit(LikelihoodFit):
    """A polychoric or tetrachoric correlation; `print` shows a table.

    Attributes, besides those of `fitting.LikelihoodFit`:
        rho: the correlation of the latent variables, of which `standard_errors[0]` is the error.
        thresholds: the limits of the categories, of each ordered variable.
        two_step: the two-step estimate.
        normality: the likelihood-ratio test of the bivariate normal distribution against a table
            of any probabilities; p_value is nan without degrees of freedom, as of four cells.
        table: the counts, (r, c).
        expected: the counts that the fit expects, (r, c).
    """

    rho: float
    thresholds: tuple[np.ndarray, ...]
    two_step: MarginalTwoStep
    normality: LikelihoodRatio
    table: np.ndarray
    expected: np.ndarray
    standard_error = earlier.attribute(
        "standard_error", "standard_errors[0]", lambda fit: fit.standard_errors[0]
    )

    def __str__(self) -> str:
        test, rho, error = self.normality, *self.two_step[:2]
        lines = [super().__str__()]
        lines.append(f"two-step estimate of rho {rho:.6g}, standard error {error:.6g}")
        if test.degrees:
            lines.append(
                f"test of bivariate normality: {test.statistic:.6g}, {test.degrees} degrees of "
                f"freedom, p = {test.p_value:.4g}"
            )
        return "\n".join(lines)


@explained
def polychoric(
    x: Any,
    y: Any = None,
    *,
    weights: Any = None,
    correction: float = 0.0,
    information: str = "observed",
    num_steps: int = 100,
    num_profiles: int = 10,
    progress: bool = True,
) -> PolychoricFit:
    r"""The correlation of the normal variables behind two ordered ones, by maximum likelihood.

    The log-likelihood is :math:`\sum_{ab} n_{ab} \log p_{ab}(\rho, \tau, \kappa)`, without the
    multinomial constant. Of two binary variables rho is tetrachoric. Where the occupied cells form
    one rising or falling chain, as with an empty cell of four, the likelihood is highest at the
    edge rho = 1 or -1, and `reason` says so: nothing is added to empty cells unless `correction`
    asks for it. All options go together, but for `weights` with a `table`. Counts weigh its cells.

    Args:
        x: categories of each row, (n,): codes, NaN where missing, or a `tg.Ordinal`. Or, without y,
            a table of counts (r, c), which need not be whole.
        y: likewise, of the same rows.
        weights: shape (n,): how often each row counts.
        correction: what is added to each empty cell, such as the 0.5 of other programs; of four
            cells the others are changed so as to keep the margins.
        information: what standard errors come from: "observed" or "sandwich".
        num_steps: the most Newton steps.
        num_profiles: up to how many estimates get a profile interval in the table at once.
        progress: say on standard error what goes on, if the fit takes more than a second.

    Returns:
        PolychoricFit, with `rho`, `standard_errors`, `thresholds`, `log_likelihood`, `two_step` and
        `normality`; its estimates are called rho and `cut[x][level]`, the upper limit of a level.

    Raises:
        ValueError: for a variable that is constant or exact, counts that are negative or add up to
            1, or columns of other lengths. The polyserial correlation of an exact variable is from
            `tg.fit_observations(tg.Observations.of({"x": tg.Ordinal(x), "y": y}))`.

    Example:
        >>> fit = tg.polychoric([[13, 6, 0], [69, 113, 22], [41, 132, 104]])
        >>> round(fit.rho, 6), round(float(fit.standard_errors[0]), 6), round(fit.log_likelihood, 4)
        (0.491479, 0.048554, -890.8319)

    References:
        Olsson, "Maximum likelihood estimation of the polychoric correlation coefficient",
            Psychometrika (1979).
        Brown and Benedetti, "On the mean and variance of the tetrachoric correlation coefficient",
            Psychometrika (1977).
    """
    model = model_of(x, y, weights, correction)
    return maximum_likelihood(
        model,
        num_steps=num_steps if model.edge == 0 else 0,
        information=information,
        num_profiles=num_profiles,
        progress=progress,
    )


def model_of(x: Any, y: Any, weights: Any, correction: float) -> "PolychoricModel":
    """The model of a table, or of two columns."""
    if not single(correction) >= 0:
        raise ValueError(f"polychoric: correction must be a number from 0 on, got {correction!r}.")
    counts, labels, levels, notes = counts_of(x, y, weights)
    names, occurring = ["rho"], [counts.sum(axis=axis) > 0 for axis in (1, 0)]
    for label, level, occurs in zip(labels, levels, occurring):
        used, unused = ([*itertools.compress(level, which)] for which in (occurs, ~occurs))
        if len(used) < 2:
            raise ValueError(
                f"polychoric: {label} is constant, so that it has no correlation. Leave it out."
            )
        names += [f"cut[{label}][{below}]" for below in used[:-1]]
        notes += [UNUSED.format(label, ", ".join(map(str, unused)))] * bool(unused)
    table = counts[np.ix_(*occurring)]
    for axis, pair in ((1, labels), (0, labels[::-1])):
        if np.all(np.count_nonzero(table, axis=axis) == 1):
            notes.append(DETERMINES.format(*pair))
    empty, four = table == 0, table.shape == (2, 2)
    if empty.any():
        notes.append(EMPTY.format(empty.sum(), table.size, ADDED[four] if correction else NOTHING))
        moved = empty.astype(int)
        if four:  # one of four cells keeps its margins (Brown and Benedetti)
            odd = np.indices((2, 2)).sum(axis=0) % 2
            moved = np.where(odd == odd[empty][0], 1, -1)
        table = table + correction * moved
        if not np.all(table >= 0):
            raise ValueError(f"polychoric: the correction {correction:g} exceeds another count.")
    return PolychoricModel(table, tuple(notes), int(edge_of(table)), tuple(names), table.ravel())


def counts_of(x: Any, y: Any, weights: Any) -> tuple[np.ndarray, Any, list[Any], list[str]]:
    """A table of counts, the names of both variables, their levels, and sentences on the rows."""
    if y is None:
        if weights is not None:
            raise ValueError("polychoric: weights belong to rows; a table has its counts.")
        try:
            counts = np.asarray(x, float)
        except (TypeError, ValueError):
            raise ValueError(
                "polychoric: without y, x must be a table of counts (r, c), got one that holds no "
                "numbers. Of answers give two columns, polychoric(table['a'], table['b'])."
            ) from None
        if counts.ndim != 2 or not np.all((counts >= 0) & np.isfinite(counts)):
            got = f"shape {counts.shape}" if counts.ndim != 2 else f"{counts.min():g} among them"
            raise ValueError(
                "polychoric: without y, x must be a table of counts (r, c), finite and not "
                f"negative; got {got}. Of answers give two columns, polychoric(x, y)."
            )
        if np.any(counts % 1) and (total := counts.sum()) < 1.0 + 1e-3:
            raise ValueError(
                f"polychoric: counts that add up to {total:.4g} are fractions: multiply by n."
            )
        if max(counts.shape) > MOST_LEVELS:
            raise ValueError(
                f"polychoric: x of shape {counts.shape} is read as a table of counts, a row and a "
                f"column for each level, at most {MOST_LEVELS}. For answers give two columns, "
                "polychoric(x, y), or tg.polychoric_matrix(data)."
            )
        return counts, ("x", "y"), [range(1, size + 1) for size in counts.shape], long(x)
    x, y, weights = tables.in_one_order("polychoric", x=x, y=y, weights=weights)
    columns: list[Ordinal] = []
    for values, name in ((x, "x"), (y, "y")):
        array = values.codes if isinstance(values, Ordinal) else np.asarray(values)
        if array.ndim != 1:
            raise ValueError(f"polychoric: {name} must have shape (n,), got {array.shape}.")
        if array.dtype.kind == "f" and not is_whole(
            tables.numbers(values, f"polychoric: {name}", missing=True)
        ):
            raise ValueError(
                f"polychoric: {name} is exact, not ordered. A polyserial correlation is that of "
                'tg.fit_observations(tg.Observations.of({"x": tg.Ordinal(x), "y": y})).'
            )
        columns.append(values if isinstance(values, Ordinal) else Ordinal(values))
    first, second = columns
    labels = str(first.name or "x"), str(second.name or "y")
    labels = labels if labels[0] != labels[1] else ("x", "y")
    codes = first.codes, second.codes
    n, m = map(len, codes)
    if n != m:
        raise ValueError(f"polychoric: x and y have {n} and {m} rows; they must be the same rows.")
    count = tables.each_row(weights, n, "polychoric: weights", 1.0)
    if not np.all((count >= 0) & np.isfinite(count)):
        raise ValueError("polychoric: weights must be one finite number >= 0 for each row.")
    seen = np.minimum(*codes) >= 0
    notes = [LEFT_OUT.format(np.sum(~seen), len(seen))] * (not seen.all())
    table = np.zeros((len(first.levels), len(second.levels)))
    np.add.at(table, tuple(column[seen] for column in codes), count[seen])
    return table, labels, [first.levels, second.levels], notes


def long(counts: Any) -> list[str]:
    """A sentence on a table of counts that has so many rows that it may hold answers.

    Raises:
        ValueError: if its columns have names and its rows are numbered, as of answers.
    """
    r, c = np.shape(counts)
    if r <= 10 or r <= 4 * c:
        return []
    numbered = [*getattr(counts, "index", range(r))] == [*range(r)]
    if hasattr(counts, "columns") and numbered:
        raise ValueError(
            f"polychoric: without y, x must be a table of counts (r, c), got {r} rows of answers "
            f"in the columns {', '.join(map(str, counts.columns))}. Of answers give two columns, "
            "polychoric(x[one], x[other]), or tg.polychoric_matrix(x); of counts x.to_numpy()."
        )
    return [
        f"x was read as a table of counts, of {r} by {c} levels. If its rows are answers, they are "
        "polychoric(x[:, 0], x[:, 1])."
    ]


def edge_of(tables: np.ndarray) -> np.ndarray:
    """1 where the occupied cells (..., r, c) form a rising chain, -1 a falling one, 0 if neither;
    0 also of one row or column only."""
    tiny = 1e-12 * np.maximum(tables.sum(axis=(-2, -1)), 1.0) ** 2

    def rises(tables: np.ndarray) -> np.ndarray:
        before = np.cumsum(np.cumsum(tables, axis=-2), axis=-1)[..., :-1, :-1]
        return np.asarray(np.sum(tables[..., 1:, 1:] * before, axis=(-2, -1)) > tiny, int)

    return rises(tables) - rises(tables[..., ::-1])


# ---------------------------------------------------------------- one table


@frozen_pytree
class PolychoricModel(Model):
    """The cells of one table; free coordinates are artanh(rho) and the limits of both variables,
    each the first and the logarithms of the differences.

    Attributes, besides those of `Model`:
        table: the counts, (r, c), without empty rows and columns.
        sentences: on the table (static).
        edge: 1 or -1 if the likelihood is highest there, else 0 (static).
        weights: the counts of the cells, (r c,).
    """

    table: np.ndarray
    sentences: tuple[str, ...] = static_field()
    edge: int = static_field()
    names: tuple[str, ...] = static_field()
    weights: np.ndarray

    def parts(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """rho, and the limits of both variables."""
        z, *ends = jnp.split(x, [1, len(self.table)])
        first, second = (jnp.cumsum(jnp.append(end[:1], jnp.exp(end[1:]))) for end in ends)
        return jnp.tanh(z[0]), first, second

    def estimates(self, x: jax.Array) -> jax.Array:
        return jnp.hstack(self.parts(x))

    def masses(self, x: jax.Array) -> jax.Array:
        """The probabilities of the cells, (r, c)."""
        return cells(*self.parts(x))[0]

    def log_likelihoods(self, x: jax.Array) -> jax.Array:
        seen = jnp.where(jnp.asarray(self.table) > 0, self.masses(x), 1.0)
        return jnp.log(jnp.where(seen > LEAST_MASS, seen, jnp.nan)).ravel()

    def obstacle(self, path: Path) -> str | None:
        if self.edge == 0:
            return None
        return AT_EDGE.format(self.edge, "rising" if self.edge > 0 else "falling")

    def wald_coverages(self, path: Path, total: Any, errors: Any, compare: Any) -> Any:
        return compare(exists=self.exists), ()

    def exists(self, x: np.ndarray) -> float:
        """The share of samples without an empty cell of four, which has no estimate, by the masses
        p at x: the product of 1 - (1 - p)^n. Of more cells seldom one edge is reached: 1."""
        if self.table.size > 4:
            return 1.0
        masses = np.asarray(masses_of(self, x))
        shares = 1.0 - (1.0 - np.clip(masses, 1e-300, 1.0)) ** self.table.sum()
        return float(max(np.prod(shares), 1e-300))

    def other_maxima(self, ending: Ending, path: Path) -> tuple[str, ...]:
        return () if self.edge else super().other_maxima(ending, path)

    def notes(self, ending: Ending, common: tuple[str, ...], path: Path) -> tuple[str, ...]:
        return (*common, *self.sentences)

    @functools.cached_property
    def two_step(self) -> MarginalTwoStep:
        """The two-step estimate."""
        margins = self.table.sum(axis=1), self.table.sum(axis=0)
        limits = limits_of(margins[0]), limits_of(margins[1])
        if self.edge:
            return MarginalTwoStep(float(self.edge), np.nan, limits)
        rho, errors, _ = two_steps(*(x[None] for x in (self.table, *margins, np.zeros(()))))
        return MarginalTwoStep(float(rho[0]), float(errors[0]), limits)

    def starts(self, count: int | None) -> list[np.ndarray]:
        rho = np.clip(self.two_step.rho, -STRONGEST, STRONGEST)
        limits = (np.append(x[0], np.log(np.diff(x))) for x in self.two_step.thresholds)
        rest = np.concatenate([*limits])
        return [np.append(z, rest) for z in (np.arctanh(rho), 1.0, -1.0)][:count]

    def result(self, ending: Ending, path: Path) -> PolychoricFit:
        counts, size = self.table, float(self.table.sum())
        logs = np.log(np.where(counts > 0, counts, 1.0) / size)
        saturated = float(np.sum(counts * logs))
        expected = counts.copy()
        if self.edge:
            estimates = np.hstack([self.edge, *self.two_step.thresholds])
            ending = dataclasses.replace(ending, estimates=estimates, log_likelihood=saturated)
        else:
            expected = size * np.asarray(masses_of(self, path.end.x))
        statistic = max(2.0 * (saturated - ending.log_likelihood), 0.0)
        degrees = counts.size - sum(counts.shape)
        p_value = float(special.chdtrc(degrees, statistic)) if degrees else np.nan
        split = np.split(ending.estimates[1:], [len(counts) - 1])
        return PolychoricFit(
            **vars(ending),
            standard_errors=ending.errors,
            rho=float(ending.estimates[0]),
            thresholds=tuple(split),
            two_step=self.two_step,
            normality=LikelihoodRatio(statistic, degrees, p_value),
            table=counts,
            expected=expected,
        )


masses_of = Compiled(PolychoricModel.masses)


def cells(rho: jax.Array, first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Masses of the cells (r, c) between limits (r - 1,) and (c - 1,), and their slopes by rho."""
    at, ndtr = jnp.broadcast_arrays(first[:, None], second, rho), jax.scipy.special.ndtr
    full = jnp.concatenate([orthant(*at), ndtr(first)[:, None]], axis=1)
    corners = jnp.concatenate([full, jnp.append(ndtr(second), 1.0)[None]])
    both = corners, jnp.pad(density(*at), (0, 1))  # the density is 0 at the upper ends
    mass, slope = (jnp.diff(jnp.diff(jnp.pad(x, [(1, 0), (1, 0)]), axis=0), axis=1) for x in both)
    return mass, slope


# ---------------------------------------------------------------- many tables


def two_steps(
    counts: np.ndarray, first: np.ndarray, second: np.ndarray, edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...]]:
    """Two-step estimates of rho of many tables, their standard errors, and the influence on them of
    one more row: in a cell, by its score of rho, (m, r, c), and by the limits of both variables, in
    a category, (m, r) and (m, c). An error is the root of the sum over all rows, those in one of
    the variables too, of their influence squared; nan without a rho inside.

    Args:
        counts: (m, r, c), with rows and columns of 0 where a variable has fewer categories.
        first, second: counts of all rows that have the category of a variable, (m, r), (m, c).
        edges: rho where that is known to be 1 or -1, else 0; NaN where there is none, (m,).
    """
    number, size = len(counts), max(counts.shape[-1] - 1, 1)
    length = min(max(CORNERS // size**2, 1), 2 ** int(np.ceil(np.log2(number))))
    filled = np.arange(number + -number % length) % number  # blocks of one length, and program
    columns = (x[filled].reshape(-1, length, *x.shape[1:]) for x in (counts, first, second, edges))
    blocks = [correlated(*block) for block in zip(*columns)]
    rho, joint, by_first, by_second = (np.concatenate(x)[:number] for x in zip(*blocks))
    both = joint + by_first[:, :, None] + by_second[:, None, :]
    rest = (first - counts.sum(axis=2), by_first), (second - counts.sum(axis=1), by_second)
    alone = sum(np.sum(count * part**2, axis=-1) for count, part in rest)
    errors = np.sqrt(np.sum(counts * both**2, axis=(-2, -1)) + alone)
    return rho, errors, (joint, by_first, by_second)


@Compiled
@jax.vmap
def correlated(
    counts: jax.Array, first: jax.Array, second: jax.Array, edge: jax.Array
) -> tuple[jax.Array, ...]:
    """rho by secant steps within a bracket, and the three parts of its influence, from the score's
    derivatives by the counts and by rho. Steps by the expected information, as the first, may go
    from side to side for ever: of 27 rows the observed one may be twice as large."""

    def score(rho: jax.Array, counts: jax.Array, *limits: jax.Array) -> tuple[jax.Array, Any]:
        """Also the information of a row, and whether a cell that is seen has lost its mass."""
        mass, slope = cells(rho, *limits)
        share = slope / jnp.maximum(mass, LEAST_MASS)
        lost = jnp.any((counts > 0) & (mass <= LEAST_MASS)) & (jnp.abs(rho) > 0.5)
        return jnp.sum(counts * share), (jnp.sum(slope * share), lost)

    def step(state: Any) -> Any:
        rho, (before, slope_before), low, high, _, number = state
        slope, (information, lost) = score(rho, counts, *cuts)
        slope = jnp.where(lost, -jnp.sign(rho), slope)
        low, high = jnp.where(slope > 0, rho, low), jnp.where(slope < 0, rho, high)
        to = 0.5 * (low + high)
        scoring = rho + slope / (jnp.sum(counts) * information)
        secant = rho - slope * (rho - before) / (slope - slope_before)
        for other in (scoring, secant):
            to = jnp.where((other > low) & (other < high) & ~lost, other, to)
        to = jnp.where(slope == 0, rho, to)
        return to, (rho, slope), low, high, jnp.abs(to - rho) > ARRIVED, number + 1

    active, one, cuts = edge == 0, jnp.ones_like(edge), [*map(limits_by_counts, (first, second))]
    unfinished = lambda state: state[-2] & (state[-1] < MOST_STEPS)
    nowhere = jnp.nan * one, jnp.nan * one
    rho = jax.lax.while_loop(unfinished, step, (0.0 * one, nowhere, -one, one, active, 0))[0]
    by_margins = lambda rho, counts, *margins: score(rho, counts, *map(limits_by_counts, margins))
    slopes = jax.grad(by_margins, argnums=(0, 1, 2, 3), has_aux=True)
    bend, *parts = slopes(rho, counts, first, second)[0]
    by_row = jnp.where(active, -1.0 / bend, jnp.nan)
    return jnp.where(active, rho, edge), *(by_row * part for part in parts)


def limits_by_counts(counts: jax.Array) -> jax.Array:
    """Limits (K - 1,) of categories by counts (K,), infinite beyond the last that is."""
    below = jnp.cumsum(counts)
    share = below[:-1] / below[-1]
    inside = share < 1
    return jnp.where(inside, ndtri(jnp.where(inside, share, 0.5)), jnp.inf)


@dataclasses.dataclass(frozen=True)
class PolychoricMatrix:
    """Two-step polychoric correlations of all pairs of variables.

    Attributes:
        names: of the variables, (p,).
        correlations: (p, p); nan where a pair has none.
        standard_errors: (p, p), 0 on the diagonal; nan where a correlation is 1, -1 or nan.
        thresholds: limits of the categories of each variable.
        num_rows: how many rows have both variables, (p, p).
        pairs: row and column of each correlation below the diagonal, (m, 2), as in `covariance()`.
        notes: sentences that a reader must know.
    """

    names: tuple[str, ...]
    correlations: np.ndarray
    standard_errors: np.ndarray
    thresholds: tuple[np.ndarray, ...]
    num_rows: np.ndarray
    pairs: np.ndarray
    notes: tuple[str, ...]
    codes: np.ndarray = dataclasses.field(repr=False)
    influence: tuple[np.ndarray, ...] = dataclasses.field(repr=False)

    def intervals(self, level: float = 0.95) -> np.ndarray:
        """Intervals of the correlations, (p, p, 2): Wald's of Fisher's z = artanh(rho)."""
        check_share(level, "intervals: level")
        half = special.ndtri(0.5 + 0.5 * level) * self.standard_errors
        with np.errstate(divide="ignore", invalid="ignore"):
            half = half / (1.0 - self.correlations**2)
            z = np.arctanh(self.correlations)
            return np.tanh(np.stack([z - half, z + half], axis=-1))

    def covariance(self, some: Any = slice(None)) -> np.ndarray:
        """The asymptotic covariance matrix of the correlations, in the order of `pairs`, (m, m).

        It counts all rows, also those that lack some variables, and takes no model of more than
        two of them. It has m^2 entries and takes n m^2 products: choose some pairs of many.

        Args:
            some: numbers of pairs, or a slice.
        """
        j, i = self.pairs[some].T
        a, b, at = self.codes[:, i], self.codes[:, j], np.arange(len(i))
        # At the end, which is number -1, a 0 for those whose category is missing.
        edges = [[(0, 0), *[(0, 1)] * (part.ndim - 1)] for part in self.influence]
        joint, first, second = (np.pad(part[some], e) for part, e in zip(self.influence, edges))
        scores = joint[at, a, b] + first[at, a] + second[at, b]
        return scores.T @ scores

    def to_frame(self, level: float = 0.95, backend: str = "pandas") -> Any:
        """The correlations below the diagonal as a DataFrame, one row for each of `pairs`, as
        `LikelihoodFit.to_frame`; the ends are those of `intervals`."""
        names = [f"correlation[{self.names[i]}, {self.names[j]}]" for i, j in self.pairs]
        at = tuple(self.pairs.T)
        intervals = lambda level: self.intervals(level)[at]
        parts = names, self.correlations[at], self.standard_errors[at], intervals
        return tables.estimates_frame(*parts, level, backend)

    def __str__(self) -> str:
        p, lower = len(self.names), self.correlations[tuple(self.pairs.T)]
        known = lower[~np.isnan(lower)]
        ends = f" between {known.min():.3g} and {known.max():.3g}" if len(known) else ""
        lines = [f"polychoric correlations of {p} variables, {len(self.pairs)} pairs{ends}"]
        if p <= 12:
            width = max(8, *map(len, self.names))
            for name, row in zip(self.names, self.correlations):
                lines.append(f"{name:{width}} " + " ".join(f"{value:8.4f}" for value in row))
        return "\n".join([*lines, *self.notes])


@reported
def polychoric_matrix(data: Any) -> PolychoricMatrix:
    r"""Polychoric correlations of all pairs of ordered variables, with standard errors.

    Each by the two-step estimate: limits from all rows that have a variable, and rho from those
    that have both (pairwise). Standard errors, and their covariance on request, add up the squared
    influence of each row, that on the limits included; they hold for many rows.

    Args:
        data: categories, (n, p), whole numbers in the order of the categories, NaN where missing:
            an array, a table such as a DataFrame, or a list or dictionary of columns, which may be
            `tg.Ordinal`.

    Returns:
        PolychoricMatrix, with correlations, standard_errors, thresholds, and covariance().

    Raises:
        ValueError: for fewer than two variables, or columns of different lengths or of no whole
            numbers.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> root = np.linalg.cholesky(0.5 + 0.5 * np.eye(3))
        >>> latent = rng.normal(size=(1000, 3)) @ root.T
        >>> matrix = tg.polychoric_matrix(np.digitize(latent, [-1.0, 0.0, 1.0]))
        >>> matrix.correlations.round(2)
        array([[1.  , 0.52, 0.5 ],
               [0.52, 1.  , 0.47],
               [0.5 , 0.47, 1.  ]])

    References:
        Olsson, "Maximum likelihood estimation of the polychoric correlation coefficient",
            Psychometrika (1979).
        Joreskog, "On the estimation of polychoric correlations and their asymptotic covariance
            matrix", Psychometrika (1994).
    """
    items, names = items_of(data)
    columns, notes = [item.used() for item in items], []
    codes = np.stack([column[0] for column in columns], axis=1)
    for name, (_, levels, unused) in zip(names, columns):
        if len(levels) < 2:
            notes.append(f"{name} is constant: its correlations are nan.")
        if unused:
            notes.append(UNUSED.format(name, ", ".join(map(str, unused))))
    size = max(2, *(len(levels) for _, levels, _ in columns))
    # One product of indicators has the tables of all pairs, the smaller number first, the counts
    # of the categories, and those of the rows that have both.
    n, p = codes.shape
    kind = np.float32 if n < 2**24 else np.float64  # exact whole numbers
    indicators = np.zeros((n, p * size), kind)
    row, item = np.nonzero(codes >= 0)
    indicators[row, item * size + codes[row, item]] = 1.0
    product = (indicators.T @ indicators).reshape(p, size, p, size)
    counts, total = np.einsum("jaja->ja", product).astype(float), product.sum(axis=(1, 3))
    thresholds = tuple(limits_of(row[: len(kind[1])]) for row, kind in zip(counts, columns))
    pairs = np.stack(np.tril_indices(len(names), -1), axis=1)
    j, i = pairs.T
    table = product[i, :, j].astype(float)
    occurring = [np.count_nonzero(table.sum(axis=axis), axis=1) > 1 for axis in (1, 2)]
    with jax.enable_x64(True):
        edges = np.where(np.all(occurring, axis=0), edge_of(table), np.nan)
        rho, errors, influence = two_steps(table, counts[i], counts[j], edges)
    matrix, spread = np.eye(len(names)), np.zeros((len(names), len(names)))
    matrix[j, i] = matrix[i, j] = rho
    spread[j, i] = spread[i, j] = errors
    for which, what in (
        (np.abs(rho) == 1, "at the edge 1 or -1, without an error"),
        (np.isnan(rho), "nan, as they share no row or one is constant in these"),
    ):
        numbers = np.flatnonzero(which)
        if len(numbers):
            some = [f"{names[i]} and {names[j]}" for j, i in pairs[numbers[:5]]]
            more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
            notes.append(f"{len(numbers)} correlation(s) are {what}: {', '.join(some)}{more}.")
    if np.all(np.isfinite(matrix)) and np.linalg.eigvalsh(matrix)[0] <= 0:
        notes.append(INDEFINITE)
    return PolychoricMatrix(
        names, matrix, spread, thresholds, total, pairs, tuple(notes), codes, influence
    )


def items_of(data: Any) -> tuple[list[Ordinal], tuple[str, ...]]:
    """The columns of a table as ordered categories, and their names."""
    (data,) = tables.in_one_order("polychoric_matrix", data=data)
    listed = isinstance(data, list | tuple)
    columns = None if listed else tables.named_columns(data)
    if listed and any(hasattr(x, "name") for x in data):
        names = [getattr(x, "name", None) or str(k) for k, x in enumerate(data)]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(
                f"polychoric_matrix: two columns are called {twice[0]!r}. Rename one, such as by "
                '.rename("other"), or give a dictionary with their names.'
            )
        columns = dict(zip(names, data))
    if columns is None:
        array = data if isinstance(data, np.ma.MaskedArray) else np.asarray(data)
        if array.ndim != 2:
            raise ValueError(f"polychoric_matrix: data must have shape (n, p), got {array.shape}.")
        columns = {str(k): array[:, k] for k in range(array.shape[1])}
    items = []
    for name, value in columns.items():
        try:
            items.append(value if isinstance(value, Ordinal) else Ordinal(value))
        except ValueError as error:
            square = np.array([np.asarray(column) for column in columns.values()], object)
            if square.shape == (len(columns),) * 2 and np.all(np.diagonal(square) == 1.0):
                raise ValueError(
                    "polychoric_matrix: needs the categories themselves, a row for each "
                    "respondent, but got a matrix of correlations."
                ) from error
            raise ValueError(f"polychoric_matrix: column {name!r}: {error}") from error
    lengths = {len(item.codes) for item in items}
    if len(items) < 2 or len(lengths) > 1:
        raise ValueError(
            f"polychoric_matrix: needs two or more columns of one length, got {len(items)} of "
            f"{', '.join(map(str, sorted(lengths)))} rows."
        )
    return items, tuple(map(str, columns))
