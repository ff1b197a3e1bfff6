r"""Polychoric correlations: of the normal variables behind ordered categories.

Cell (a, b) of a table of two ordered variables is seen where :math:`\tau_{a-1} < X \leq \tau_a` and
:math:`\kappa_{b-1} < Y \leq \kappa_b`, with X and Y standard normal and of correlation rho. The
two-step estimate takes the limits from the margins of the table, and rho from its cells; full
maximum likelihood estimates all together. Many tables are one program.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize, stats

from truncgauss import tables
from truncgauss.execution.compiling import Compiled
from truncgauss.execution.progress import reported
from truncgauss.execution.pytrees import frozen_pytree, static_field
from truncgauss.fitting.engine import check_settings, maximum_likelihood
from truncgauss.fitting.model import Model
from truncgauss.fitting.optimization.descent import Path
from truncgauss.fitting.ordinal import UNUSED
from truncgauss.fitting.orthants import by_limit, density, orthant
from truncgauss.fitting.result import LikelihoodFit, LikelihoodRatio
from truncgauss.likelihood.ordinal import Ordinal, is_whole, limits_of
from truncgauss.special import log_interval_mass, standardize
from truncgauss.special.tails import LOG_SQRT_2PI

CORNERS = 2**13  # of cells whose masses are computed at once
MOST_LEVELS = 100  # of a table of counts; a longer one holds answers
LEAST_MASS = 1e-14  # below which a mass is rounding
MOST_STEPS, ARRIVED = 100, 1e-12  # of the correlation alone
STRONGEST = 0.95  # correlation of a start
LEAST_EIGENVALUE = 1e-4  # of a repaired matrix
AT_EDGE = (
    "rho is at the edge of its range, {:+d}: the occupied cells form one {} chain, and the "
    "likelihood grows up to there. Its standard error and Wald interval do not exist."
)
DETERMINES = (
    "{} determines {}: each level of the first occurs with one of the second alone, as levels of "
    "two normal variables do at rho = 1 or -1 only."
)
EMPTY = "{} of the {} cells are empty; {}"
ADDED = {
    (True, False): "nothing was added.",
    (False, False): "nothing was added.",
    (True, True): "correction was added to each, and the others changed so as to keep the margins.",
    (False, True): "correction was added to each.",
}
LEFT_OUT = "{} of {} rows lack a category and were left out."


class MarginalTwoStep(NamedTuple):
    """The correlation with the limits taken from the margins.

    Attributes:
        rho: the estimate.
        standard_error: with the errors of the limits; nan where rho is at an edge.
        thresholds: of the two variables.
    """

    rho: float
    standard_error: float
    thresholds: tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolychoricFit(LikelihoodFit):
    """A polychoric, tetrachoric or polyserial correlation; `print` shows a table.

    Attributes, besides those of `fitting.LikelihoodFit`:
        rho: the correlation of the latent variables.
        standard_error: of rho.
        thresholds: the limits of the categories, of each ordered variable.
        two_step: the two-step estimate.
        normality: the likelihood-ratio test of the bivariate normal distribution against a table
            of any probabilities; p_value is nan without degrees of freedom, as of four cells, and
            all is nan of a polyserial correlation.
        table: the counts, (r, c); of a polyserial correlation None.
        expected: the counts that the fit expects, (r, c).
    """

    rho: float
    standard_error: float
    thresholds: tuple[np.ndarray, ...]
    two_step: MarginalTwoStep
    normality: LikelihoodRatio
    table: np.ndarray | None = None
    expected: np.ndarray | None = None

    def profile(self, name: str, level: float = 0.95) -> tuple[float, float]:
        low, high = super().profile(name, level)
        return (max(low, -1.0), min(high, 1.0)) if name == "rho" else (low, high)

    def __str__(self) -> str:
        lines, test = [super().__str__()], self.normality
        lines.append(
            f"two-step estimate of rho {self.two_step.rho:.6g}, standard error "
            f"{self.two_step.standard_error:.6g}"
        )
        if test.degrees:
            lines.append(
                f"test of bivariate normality: {test.statistic:.6g}, {test.degrees} degrees of "
                f"freedom, p = {test.p_value:.4g}"
            )
        return "\n".join(lines)


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
    multinomial constant. Of two binary variables rho is tetrachoric; of an ordered and an exact one
    polyserial. Where the occupied cells form one rising or falling chain, as with an empty cell of
    four, the likelihood is highest at the edge rho = 1 or -1, and `reason` says so: nothing is
    added to empty cells unless `correction` asks for it.

    Args:
        x: categories of each row, (n,): codes, a `tg.Ordinal`, or numbers that are not whole, which
            are exact values of a normal variable; NaN where missing. Or, without y, a table of
            counts (r, c), which need not be whole.
        y: likewise, of the same rows.
        weights: shape (n,): how often each row counts.
        correction: what is added to each empty cell, such as the 0.5 of other programs; of four
            cells the others are changed so as to keep the margins.
        information: what standard errors come from: "observed" or "sandwich".
        num_steps: the most Newton steps.
        num_profiles: up to how many estimates get a profile interval in the table at once.
        progress: say on standard error what goes on, if the fit takes more than a second.

    Returns:
        PolychoricFit, with `rho`, `standard_error`, `thresholds`, `log_likelihood`, `two_step` and
        `normality`; its estimates are called rho and `cut[x][level]`, the upper limit of a level.

    Raises:
        ValueError: for a variable that is constant, two exact ones, counts that are negative, or
            columns of different lengths.

    Example:
        >>> fit = tg.polychoric([[13, 6, 0], [69, 113, 22], [41, 132, 104]])
        >>> round(fit.rho, 6), round(fit.standard_error, 6), round(fit.log_likelihood, 4)
        (0.491479, 0.048554, -890.8319)

    References:
        Olsson, "Maximum likelihood estimation of the polychoric correlation coefficient",
            Psychometrika (1979).
        Brown and Benedetti, "On the mean and variance of the tetrachoric correlation coefficient",
            Psychometrika (1977).
        Olsson, Drasgow and Dorans, "The polyserial correlation coefficient", Psychometrika (1982).
    """
    check_settings(information, num_profiles)
    with jax.enable_x64(True):
        model = model_of(x, y, weights, correction)
        return maximum_likelihood(
            model,
            num_steps=num_steps if model.edge == 0 else 0,
            information=information,
            num_profiles=num_profiles,
            progress=progress,
        )


def model_of(x: Any, y: Any, weights: Any, correction: float) -> "LatentPair":
    """The model of a table, or of two columns."""
    if not correction >= 0:
        raise ValueError(f"polychoric: correction must not be negative, got {correction!r}.")
    if y is None:
        if weights is not None:
            raise ValueError("polychoric: weights belong to rows; a table has its counts.")
        counts = np.asarray(x, float)
        if counts.ndim != 2 or not np.all((counts >= 0) & np.isfinite(counts)):
            got = f"shape {counts.shape}" if counts.ndim != 2 else f"{counts.min():g} among them"
            raise ValueError(
                "polychoric: without y, x must be a table of counts (r, c), finite and not "
                f"negative; got {got}. Of answers give two columns, polychoric(x, y)."
            )
        if max(counts.shape) > MOST_LEVELS:
            raise ValueError(
                f"polychoric: x of shape {counts.shape} is read as a table of counts, a row and a "
                f"column for each level, at most {MOST_LEVELS}. For answers give two columns, "
                "polychoric(x, y), or tg.polychoric_matrix(data)."
            )
        levels = [tuple(range(1, size + 1)) for size in counts.shape]
        return PolychoricModel.of(counts, ("x", "y"), levels, correction, ())
    x, y, weights = tables.in_one_order("polychoric", x=x, y=y, weights=weights)
    columns = [as_column(values, name) for values, name in zip((x, y), "xy")]
    names = [getattr(v, "name", None) or name for v, name in zip((x, y), "xy")]
    labels = tuple(map(str, names)) if names[0] != names[1] else ("x", "y")
    seen, count = complete(columns, weights)
    notes = (LEFT_OUT.format(len(seen) - seen.sum(), len(seen)),) if not seen.all() else ()
    exact = [isinstance(column, np.ndarray) for column in columns]
    if all(exact):
        raise ValueError("polychoric: both variables are exact; use fit_observations.")
    if any(exact):
        ordinal, values = columns[exact.index(False)], columns[exact.index(True)]
        order = (labels[exact.index(False)], labels[exact.index(True)])
        return PolyserialModel.of_rows(ordinal, values, seen, count, order, notes)
    table = np.zeros([len(column.levels) for column in columns])
    np.add.at(table, tuple(column.codes[seen] for column in columns), count[seen])
    levels = [column.levels for column in columns]
    return PolychoricModel.of(table, labels, levels, correction, notes)


def as_column(values: Any, name: str) -> Any:
    """Ordered categories, or exact numbers."""
    if isinstance(values, Ordinal):
        return values
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"polychoric: {name} must have shape (n,), got {array.shape}.")
    if array.dtype.kind == "f":
        column = tables.numbers(values, f"polychoric: {name}", missing=True)
        if not is_whole(column):
            return column
    return Ordinal(values)


def complete(columns: list[Any], weights: Any) -> tuple[np.ndarray, np.ndarray]:
    """A mask of the rows that lack nothing, and the weights, (n,)."""
    parts = [v if isinstance(v, np.ndarray) else np.where(v.codes < 0, np.nan, 0) for v in columns]
    if len(parts[0]) != len(parts[1]):
        raise ValueError(
            f"polychoric: x and y have {len(parts[0])} and {len(parts[1])} rows; they must be the "
            "same rows."
        )
    count = np.ones(len(parts[0]))
    if weights is not None:
        count = tables.each_row(weights, len(parts[0]), "polychoric: weights")
        if not np.all((count >= 0) & np.isfinite(count)):
            raise ValueError("polychoric: weights must be one finite number >= 0 for each row.")
    return np.isfinite(parts[0]) & np.isfinite(parts[1]), count


def corrected(table: np.ndarray, correction: float) -> np.ndarray:
    """A table whose empty cells hold the correction; one of four cells keeps its margins (Brown and
    Benedetti, 1977)."""
    if table.shape != (2, 2):
        return np.where(table == 0, correction, table)
    moved = np.where(
        (np.indices((2, 2)).sum(axis=0) % 2) == np.argwhere(table == 0)[0].sum() % 2, 1, -1
    )
    if not np.all(table + correction * moved >= 0):
        raise ValueError(f"polychoric: the correction {correction:g} exceeds another count.")
    return np.asarray(table + correction * moved)


def increasing(x: jax.Array) -> jax.Array:
    """Limits by their first and the logarithms of their differences."""
    return jnp.cumsum(jnp.concatenate([x[:1], jnp.exp(x[1:])]))


def free_limits(limits: np.ndarray) -> np.ndarray:
    """The inverse of `increasing`."""
    return np.append(limits[:1], np.log(np.diff(limits)))


def turned(first: np.ndarray, count: int | None) -> list[np.ndarray]:
    """Starts from a first one, with its correlation and with others."""
    return [first, *(np.append(z, first[1:]) for z in (1.0, -1.0))][:count]


def names_of_cuts(name: str, levels: tuple[Any, ...]) -> list[str]:
    """Names of the limits of an item, by the level below each."""
    return [f"cut[{name}][{level}]" for level in levels[:-1]]


def edge_of(tables: np.ndarray) -> np.ndarray:
    """1 where the occupied cells (..., r, c) form a rising chain, -1 a falling one, 0 if neither;
    0 also of one row or column only."""
    below = np.cumsum(np.cumsum(tables, axis=-2), axis=-1)
    total = np.cumsum(tables, axis=-2)[..., -1:].sum(axis=-1, keepdims=True)
    left = np.cumsum(tables.sum(axis=-2), axis=-1)[..., None, :]
    above_left = left - below
    concordant = tables[..., 1:, 1:] * below[..., :-1, :-1]
    discordant = tables[..., :-1, 1:] * above_left[..., :-1, :-1]
    tiny = 1e-12 * np.maximum(total[..., 0, 0], 1.0) ** 2
    rises = concordant.sum(axis=(-2, -1)) > tiny
    falls = discordant.sum(axis=(-2, -1)) > tiny
    return np.where(rises & ~falls, 1, np.where(falls & ~rises, -1, 0))


# ---------------------------------------------------------------- one table


class LatentPair(Model):
    """Two latent variables, of a correlation that may be at an edge.

    Attributes, besides those of `Model`:
        edge: 1 or -1 if the likelihood is highest there, else 0.
        sentences: on the rows.
    """

    edge: Any
    sentences: Any

    def obstacle(self, path: Path) -> str | None:
        if self.edge == 0:
            return None
        return AT_EDGE.format(self.edge, "rising" if self.edge > 0 else "falling")

    def other_maxima(self, fields: dict[str, Any], path: Path) -> tuple[str, ...]:
        return () if self.edge else super().other_maxima(fields, path)

    def notes(self, fields: dict[str, Any], common: tuple[str, ...], path: Path) -> tuple[str, ...]:
        return (*common, *self.sentences)


@frozen_pytree
class PolychoricModel(LatentPair):
    """The cells of one table; free coordinates are artanh(rho) and the limits of both variables,
    each the first and the logarithms of the differences.

    Attributes, besides those of `Model`:
        table: the counts, (r, c), without empty rows and columns.
        weights: the counts of the cells, (r c,).
        sentences: on the table (static).
        edge: 1 or -1 if the likelihood is highest there, else 0 (static).
    """

    table: np.ndarray
    sentences: tuple[str, ...] = static_field()
    edge: int = static_field()
    names: tuple[str, ...] = static_field(default=())
    weights: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        counts: np.ndarray,
        labels: tuple[str, ...],
        levels: list[tuple[Any, ...]],
        correction: float,
        notes: tuple[str, ...],
    ) -> "PolychoricModel":
        sums = [counts.sum(axis=1), counts.sum(axis=0)]
        names, notes = ["rho"], tuple(notes)
        for label, level, occurring in zip(labels, levels, sums):
            if np.count_nonzero(occurring) < 2:
                raise ValueError(
                    f"polychoric: {label} is constant, so that it has no correlation. Leave it out."
                )
            names += names_of_cuts(label, tuple(v for v, n in zip(level, occurring) if n > 0))
            unused = ", ".join(str(v) for v, n in zip(level, occurring) if n == 0)
            notes += (UNUSED.format(label, unused),) if unused else ()
        table = counts[sums[0] > 0][:, sums[1] > 0]
        for axis, (one, other) in ((1, labels), (0, labels[::-1])):
            if np.all(np.count_nonzero(table, axis=axis) == 1):
                notes += (DETERMINES.format(one, other),)
        empty = int(np.count_nonzero(table == 0))
        if empty:
            notes += (
                EMPTY.format(empty, table.size, ADDED[table.shape == (2, 2), correction > 0]),
            )
            table = corrected(table, correction)
        return cls(table, notes, int(edge_of(table)), tuple(names), table.ravel())

    def parts(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """rho, and the limits of both variables."""
        first = len(self.table)
        return jnp.tanh(x[0]), increasing(x[1:first]), increasing(x[first:])

    def estimates(self, x: jax.Array) -> jax.Array:
        rho, first, second = self.parts(x)
        return jnp.concatenate([rho[None], first, second])

    def masses(self, x: jax.Array) -> jax.Array:
        """The probabilities of the cells, (r, c)."""
        rho, first, second = self.parts(x)
        return cells(orthant(*jnp.broadcast_arrays(first[:, None], second, rho)), first, second)

    def log_likelihoods(self, x: jax.Array) -> jax.Array:
        seen = jnp.where(jnp.asarray(self.table) > 0, self.masses(x), 1.0)
        usable = jnp.where(seen > LEAST_MASS, seen, jnp.nan)
        return jnp.log(usable).ravel()

    @property
    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Limits of the margins."""
        return limits_of(self.table.sum(axis=1)), limits_of(self.table.sum(axis=0))

    def two_step(self) -> MarginalTwoStep:
        """The two-step estimate."""
        if self.edge:
            return MarginalTwoStep(float(self.edge), np.nan, self.limits)
        sums = [self.table.sum(axis=1)[None], self.table.sum(axis=0)[None]]
        size = max(self.table.shape)
        table = padded(self.table, (size, size))[None]
        limits = [padded(part[None], (1, size - 1), np.inf) for part in self.limits]
        rho, influence = two_steps(table, limits[0], limits[1], np.zeros(1, int))
        error = errors_of(table, influence, *(padded(part, (1, size)) for part in sums))
        return MarginalTwoStep(float(rho[0]), float(error[0]), self.limits)

    def starts(self, count: int | None) -> list[np.ndarray]:
        rho = np.clip(self.two_step().rho, -STRONGEST, STRONGEST)
        first = np.concatenate([[np.arctanh(rho)], *map(free_limits, self.limits)])
        return turned(first, count)

    def result(self, fields: dict[str, Any], path: Path) -> PolychoricFit:
        counts, size = self.table, float(self.table.sum())
        logs = np.log(np.where(counts > 0, counts, 1.0) / size)
        saturated = float(np.sum(counts * logs))
        expected = counts.copy()
        if self.edge:
            fields["estimates"] = np.concatenate([[self.edge], *self.limits])
            fields["log_likelihood"] = saturated
        else:
            expected = size * np.asarray(masses_of(self, jnp.asarray(path.end.x)))
        statistic = max(2.0 * (saturated - fields["log_likelihood"]), 0.0)
        degrees = counts.size - sum(counts.shape)
        p_value = float(stats.chi2.sf(statistic, degrees)) if degrees else np.nan
        split = np.split(fields["estimates"][1:], [len(counts) - 1])
        return PolychoricFit(
            **fields,
            standard_errors=fields["errors"],
            rho=float(fields["estimates"][0]),
            standard_error=float(fields["errors"][0]),
            thresholds=tuple(split),
            two_step=self.two_step(),
            normality=LikelihoodRatio(statistic, degrees, p_value),
            table=counts,
            expected=expected,
        )


@Compiled
def masses_of(model: PolychoricModel, x: jax.Array) -> jax.Array:
    return model.masses(x)


def cells(corners: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    """Masses of cells (..., r, c) by the distribution function at their corners (..., r - 1, c -
    1), the limits being (..., r - 1) and (..., c - 1)."""
    ndtr = jax.scipy.special.ndtr
    ones = jnp.ones_like(corners[..., :1, :1])
    last = jnp.concatenate([ndtr(second)[..., None, :], ones], axis=-1)
    full = jnp.concatenate([corners, ndtr(first)[..., None]], axis=-1)
    return differences(jnp.concatenate([full, last], axis=-2))


def differences(corners: jax.Array) -> jax.Array:
    """Differences of a function that is 0 at the lower ends, along the last two axes."""
    edges = [(0, 0)] * (corners.ndim - 2)
    padded = jnp.pad(corners, [*edges, (1, 0), (1, 0)])
    return jnp.diff(jnp.diff(padded, axis=-1), axis=-2)


def padded(array: np.ndarray, shape: tuple[int, ...], by: float = 0.0) -> np.ndarray:
    """An array filled up at the ends of its last axes."""
    lengths = [0] * (array.ndim - len(shape)) + [
        size - length for size, length in zip(shape, array.shape[-len(shape) :])
    ]
    return np.pad(array, [(0, length) for length in lengths], constant_values=by)


# ---------------------------------------------------------------- an ordered and an exact variable


@frozen_pytree
class PolyserialModel(LatentPair):
    """Rows of an ordered and an exact variable; free coordinates are artanh(rho), the limits as of
    `PolychoricModel`, and the mean and the logarithm of the scale of the exact variable, in units
    of its rows.

    Attributes, besides those of `Model`:
        codes, values: of the rows, (n,), the values standardised.
        weights: of the rows, (n,).
        centre, scale: mean and standard deviation of the rows.
        sentences: on the rows (static).
        edge: 1 or -1 if the likelihood is highest there, else 0 (static).
    """

    codes: np.ndarray
    values: np.ndarray
    centre: float
    scale: float
    sentences: tuple[str, ...] = static_field()
    edge: int = static_field()
    names: tuple[str, ...] = static_field(default=())
    weights: np.ndarray | None = None

    @classmethod
    def of_rows(
        cls,
        ordinal: Ordinal,
        values: np.ndarray,
        seen: np.ndarray,
        weights: np.ndarray,
        labels: tuple[str, str],
        notes: tuple[str, ...],
    ) -> "PolyserialModel":
        seen = seen & (weights > 0)
        part = Ordinal(np.where(seen, ordinal.codes, np.nan), tuple(range(len(ordinal.levels))))
        codes, numbers, unused = part.used()
        codes, values, weights = codes[seen], values[seen], weights[seen]
        centre = float(np.average(values, weights=weights))
        scale = float(np.average((values - centre) ** 2, weights=weights)) ** 0.5
        for label, constant in zip(labels, (len(numbers) < 2, not scale > 0)):
            if constant:
                raise ValueError(
                    f"polychoric: {label} is constant, so that it has no correlation. Leave it out."
                )
        if unused:
            words = ", ".join(str(ordinal.levels[number]) for number in unused)
            notes += (UNUSED.format(labels[0], words),)
        levels = tuple(ordinal.levels[number] for number in numbers)
        ends = [f"loc[{labels[1]}]", f"sigma[{labels[1]}]"]
        names = ("rho", *names_of_cuts(labels[0], levels), *ends)
        standardised, edge = (values - centre) / scale, chain_of(codes, values)
        return cls(codes, standardised, centre, scale, notes, edge, names, weights)

    def parts(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """rho, the limits, and mean and scale of the standardised values."""
        return jnp.tanh(x[0]), increasing(x[1:-2]), x[-2], jnp.exp(x[-1])

    def estimates(self, x: jax.Array) -> jax.Array:
        rho, limits, loc, scale = self.parts(x)
        ends = jnp.stack([self.centre + self.scale * loc, self.scale * scale])
        return jnp.concatenate([rho[None], limits, ends])

    def log_likelihoods(self, x: jax.Array) -> jax.Array:
        rho, limits, loc, scale = self.parts(x)
        z = (jnp.asarray(self.values) - loc) / scale
        ends = jnp.concatenate([jnp.array([-jnp.inf]), limits, jnp.array([jnp.inf])])
        codes, rest = jnp.asarray(self.codes), jnp.sqrt((1.0 - rho) * (1.0 + rho))
        interval = standardize(ends[codes], ends[codes + 1], rho * z, rest)
        return (
            log_interval_mass(*interval) - 0.5 * z**2 - x[-1] - jnp.log(self.scale) - LOG_SQRT_2PI
        )

    @property
    def limits(self) -> np.ndarray:
        """Limits of the margin."""
        return limits_of(np.bincount(self.codes, self.weights))

    def starts(self, count: int | None) -> list[np.ndarray]:
        spread = np.average(stats.norm.pdf(self.limits)[None], axis=0).sum()
        numbers = self.codes - np.average(self.codes, weights=self.weights)
        rho = np.average(numbers * self.values, weights=self.weights) / spread
        rho = np.clip(rho, -STRONGEST, STRONGEST)
        first = np.concatenate([[np.arctanh(rho)], free_limits(self.limits), np.zeros(2)])
        return turned(first, count)

    def result(self, fields: dict[str, Any], path: Path) -> PolychoricFit:
        if self.edge:
            ends = [self.edge, *self.limits, self.centre, self.scale]
            fields["estimates"], fields["log_likelihood"] = np.array(ends), np.nan
        estimates, size = fields["estimates"], len(self.limits)
        first = self.starts(None)[0]
        alone = np.tanh(at_limits(self, first)) if self.edge == 0 else float(self.edge)
        return PolychoricFit(
            **fields,
            standard_errors=fields["errors"],
            rho=float(estimates[0]),
            standard_error=float(fields["errors"][0]),
            thresholds=(estimates[1 : 1 + size],),
            two_step=MarginalTwoStep(float(alone), np.nan, (self.limits, np.zeros(0))),
            normality=LikelihoodRatio(np.nan, 0, np.nan),
        )


def chain_of(codes: np.ndarray, values: np.ndarray) -> int:
    """1 or -1 where the values of each category lie above, or below, those of all before."""
    for sign in (1, -1):
        order = np.lexsort((codes, sign * values))
        if np.all(np.diff(codes[order]) >= 0):
            return sign
    return 0


def at_limits(model: PolyserialModel, first: np.ndarray) -> float:
    """artanh(rho) that is most likely with all other coordinates as they are."""
    loss = jax.jit(model.loss_at(first))
    value = lambda z: float(loss(jnp.asarray(np.append(z, first[1:]))))
    return float(optimize.minimize_scalar(value, bracket=(first[0] - 0.1, first[0] + 0.1)).x)


# ---------------------------------------------------------------- many tables


class Influence(NamedTuple):
    """The change of two-step estimates of rho by one more row, of many pairs of variables.

    Attributes:
        joint: of a row in each cell, by its score of rho, (m, K, K).
        first, second: by the limits, of a row in each category, (m, K).
    """

    joint: np.ndarray
    first: np.ndarray
    second: np.ndarray

    def of(self, some: Any) -> "Influence":
        """The influence on some pairs."""
        return Influence(self.joint[some], self.first[some], self.second[some])


def two_steps(
    counts: np.ndarray, first: np.ndarray, second: np.ndarray, edges: np.ndarray
) -> tuple[np.ndarray, Influence]:
    """Two-step estimates of rho of many tables, and the influence of rows on them.

    Args:
        counts: (m, K, K), with rows and columns of 0 where a variable has fewer categories.
        first, second: limits (m, K - 1), infinite where there are fewer.
        edges: rho where that is known to be 1 or -1, else 0; NaN where there is none, (m,).
    """
    number, size = len(counts), max(counts.shape[-1] - 1, 1)
    length = min(max(CORNERS // size**2, 1), 2 ** int(np.ceil(np.log2(number))))
    parts = []
    for start in range(0, number, length):
        some = slice(start, start + length)
        rows = [counts[some], first[some], second[some], edges[some]]
        missing = length - len(rows[0])
        rows = [np.concatenate([x, np.repeat(x[:1], missing, axis=0)]) for x in rows]
        parts.append([np.asarray(part)[: length - missing] for part in correlated(*rows)])
    rho, joint, by_first, by_second = (np.concatenate(x) for x in zip(*parts))
    return rho, Influence(joint, by_first, by_second)


@Compiled
def correlated(
    counts: jax.Array, first: jax.Array, second: jax.Array, edges: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """rho by scoring steps within a bracket, and the three parts of `Influence`."""
    limits = jnp.broadcast_arrays(first[:, :, None], second[:, None, :])
    total, active = counts.sum(axis=(-2, -1)), edges == 0

    def step(state: Any) -> Any:
        to, low, high, unfinished, number = state[:5]
        rho, at = to, (*limits, jnp.broadcast_to(to[:, None, None], limits[0].shape))
        mass, slope = cells(orthant(*at), first, second), differences(outside(density(*at)))
        share = jnp.where(mass > LEAST_MASS, slope / jnp.maximum(mass, LEAST_MASS), 0.0)
        score, information = ((x * share).sum(axis=(-2, -1)) for x in (counts, slope))
        tiny = jnp.any((counts > 0) & (mass <= LEAST_MASS), axis=(-2, -1)) & (jnp.abs(rho) > 0.5)
        score = jnp.where(tiny, -jnp.sign(rho), score)
        low, high = jnp.where(score > 0, rho, low), jnp.where(score < 0, rho, high)
        newton = rho + score / (total * information)
        inside = (newton > low) & (newton < high) & ~tiny
        to = jnp.where(inside, newton, 0.5 * (low + high))
        to = jnp.where(unfinished & (score != 0), to, rho)
        unfinished = unfinished & (jnp.abs(to - rho) > ARRIVED)
        return to, low, high, unfinished, number + 1, mass

    start = jnp.where(active, jnp.clip(of_numbers(counts, total), -STRONGEST, STRONGEST), 0.0)
    ones = jnp.ones_like(total)
    state = start, -ones, ones, active, 0, jnp.ones_like(counts)
    unfinished = lambda state: jnp.any(state[3]) & (state[4] < MOST_STEPS)
    rho, *_, mass = jax.lax.while_loop(unfinished, step, state)
    mass = jnp.where(counts > 0, jnp.maximum(mass, LEAST_MASS), 1.0)
    parts = influences(counts / total[:, None, None], mass, first, second, rho)
    inside = jnp.where(active, 1.0, jnp.nan)
    joint, by_first, by_second = parts
    alone = inside[:, None]
    rho = jnp.where(active, rho, edges)
    return rho, joint * alone[..., None], by_first * alone, by_second * alone


def influences(
    shares: jax.Array, mass: jax.Array, first: jax.Array, second: jax.Array, rho: jax.Array
) -> list[jax.Array]:
    """The parts of `Influence`, by shares of rows in cells and the masses of these, (m, K, K)."""
    limits = jnp.broadcast_arrays(first[:, :, None], second[:, None, :])
    at = *limits, jnp.broadcast_to(rho[:, None, None], limits[0].shape)
    by_rho, bent = jax.jvp(lambda r: density(at[0], at[1], r), (at[2],), (jnp.ones_like(at[2]),))
    slope = differences(outside(by_rho))
    joint = slope / mass
    information = (shares * (joint**2 - differences(outside(bent)) / mass)).sum(axis=(-2, -1))
    weights = shares * joint / mass, shares / mass
    turned = tuple(jnp.swapaxes(weight, -2, -1) for weight in weights)
    parts = [of_limits(first, second, rho, weights), of_limits(second, first, rho, turned)]
    return [joint / information[:, None, None], *(x / information[:, None] for x in parts)]


def outside(corners: jax.Array) -> jax.Array:
    """Corners (..., r - 1, c - 1) with the 0 of a density at the upper ends."""
    return jnp.pad(corners, [*[(0, 0)] * (corners.ndim - 2), (0, 1), (0, 1)])


def of_numbers(counts: jax.Array, total: jax.Array) -> jax.Array:
    """Pearson's correlation of the numbers of the categories, by tables (m, K, K)."""
    numbers = jnp.arange(counts.shape[-1], dtype=counts.dtype)
    shares = counts / total[:, None, None]
    rows, columns = shares.sum(axis=2), shares.sum(axis=1)
    means = rows @ numbers, columns @ numbers
    variances = rows @ numbers**2 - means[0] ** 2, columns @ numbers**2 - means[1] ** 2
    product = jnp.einsum("mab,a,b->m", shares, numbers, numbers) - means[0] * means[1]
    return product / jnp.sqrt(jnp.maximum(variances[0] * variances[1], 1e-30))


def of_limits(
    limits: jax.Array, others: jax.Array, rho: jax.Array, weights: tuple[jax.Array, ...]
) -> jax.Array:
    """The change of the mean score of rho by the limits of one variable, by one more row in each
    of its categories, (m, K).

    Args:
        limits, others: of this variable and the other, (m, K - 1).
        rho: (m,).
        weights: shares of rows times the score over the mass, and over the mass, (m, K, K).
    """
    at = jnp.broadcast_arrays(limits[:, :, None], others[:, None, :], rho[:, None, None])
    along = jnp.isfinite(at[0]).astype(rho.dtype)
    bent = jax.jvp(lambda h: density(h, *at[1:]), (at[0],), (along,))[1]
    bent = jnp.diff(jnp.pad(bent, [(0, 0), (0, 0), (1, 1)]), axis=-1)
    ends = jnp.exp(-0.5 * jnp.square(jnp.clip(limits, -39.0, 39.0))) / np.sqrt(2.0 * np.pi)
    slopes = jnp.concatenate([by_limit(*at), ends[..., None]], axis=-1)
    slopes = jnp.diff(jnp.pad(slopes, [(0, 0), (0, 0), (1, 0)]), axis=-1)
    of_slope, of_bend = (weight[:, :-1] - weight[:, 1:] for weight in weights)
    moved = (slopes * of_slope - bent * of_bend).sum(axis=-1)
    finite = ends > 0
    moved = jnp.where(finite, moved / jnp.where(finite, ends, 1.0), 0.0)
    number = np.arange(limits.shape[-1] + 1)
    below = jnp.asarray(number <= number[:-1, None]) - jax.scipy.special.ndtr(limits)[..., None]
    return -jnp.einsum("ma,mak->mk", moved, below)


def errors_of(
    counts: np.ndarray, influence: Influence, first: np.ndarray, second: np.ndarray
) -> np.ndarray:
    """Standard errors of two-step estimates, (m,): the root of the sum over all rows of their
    influence squared, of rows in both variables or in one of them.

    Args:
        counts: (m, K, K).
        influence: on rho.
        first, second: counts of all rows that have the category of a variable, (m, K).
    """
    joint = influence.joint / counts.sum(axis=(-2, -1))[:, None, None]
    by_first = influence.first / first.sum(axis=-1)[:, None]
    by_second = influence.second / second.sum(axis=-1)[:, None]
    both = joint + by_first[:, :, None] + by_second[:, None, :]
    rest = (first - counts.sum(axis=2), by_first), (second - counts.sum(axis=1), by_second)
    alone = sum(np.sum(number * part**2, axis=-1) for number, part in rest)
    return np.asarray(np.sqrt(np.sum(counts * both**2, axis=(-2, -1)) + alone))


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
        repair: the largest change of a correlation that made the matrix positive definite; 0 if it
            was so, nan if that was not asked for.
        notes: sentences that a reader must know.
    """

    names: tuple[str, ...]
    correlations: np.ndarray
    standard_errors: np.ndarray
    thresholds: tuple[np.ndarray, ...]
    num_rows: np.ndarray
    pairs: np.ndarray
    repair: float
    notes: tuple[str, ...]
    codes: np.ndarray = dataclasses.field(repr=False)
    influence: Influence = dataclasses.field(repr=False)

    def intervals(self, level: float = 0.95) -> np.ndarray:
        """Intervals of the correlations, (p, p, 2): Wald's of Fisher's z = artanh(rho)."""
        half = stats.norm.ppf(0.5 + 0.5 * level) * self.standard_errors
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
        pairs, seen = self.pairs[some], self.codes >= 0
        scores = np.zeros((len(self.codes), len(pairs)))
        counted = seen.sum(axis=0)
        for k, ((j, i), part) in enumerate(zip(pairs, zip(*self.influence.of(some)))):
            joint, *single = part
            both = seen[:, i] & seen[:, j]
            scores[both, k] = joint[self.codes[both, i], self.codes[both, j]] / max(both.sum(), 1)
            for item, change in zip((i, j), single):
                rows = seen[:, item]
                scores[rows, k] += change[self.codes[rows, item]] / counted[item]
        return scores.T @ scores

    def __str__(self) -> str:
        p, lower = len(self.names), self.correlations[tuple(self.pairs.T)]
        ends = f" between {np.nanmin(lower):.3g} and {np.nanmax(lower):.3g}" if len(lower) else ""
        lines = [f"polychoric correlations of {p} variables, {len(self.pairs)} pairs{ends}"]
        if p <= 12:
            width = max(8, *map(len, self.names))
            for name, row in zip(self.names, self.correlations):
                lines.append(f"{name:{width}} " + " ".join(f"{value:8.4f}" for value in row))
        return "\n".join([*lines, *self.notes])


@reported
def polychoric_matrix(data: Any, *, repair: bool = False) -> PolychoricMatrix:
    r"""Polychoric correlations of all pairs of ordered variables, with standard errors.

    Each by the two-step estimate: limits from all rows that have a variable, and rho from those
    that have both (pairwise). Standard errors, and their covariance on request, add up the squared
    influence of each row, that on the limits included; they hold for many rows.

    Args:
        data: categories, (n, p), whole numbers in the order of the categories, NaN where missing:
            an array, a table such as a DataFrame, or a list or dictionary of columns, which may be
            `tg.Ordinal`.
        repair: whether a matrix that is not positive definite is replaced by a close correlation
            matrix whose least eigenvalue is 1e-4 (Higham); `repair` of the result says how far.

    Returns:
        PolychoricMatrix, with correlations, standard_errors, thresholds, and covariance().

    Raises:
        ValueError: for fewer than two variables, columns of different lengths or of no whole
            numbers; and for a repair where some pair has no correlation.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> latent = rng.multivariate_normal(np.zeros(3), 0.5 + 0.5 * np.eye(3), 1000)
        >>> matrix = tg.polychoric_matrix(np.digitize(latent, [-1.0, 0.0, 1.0]))
        >>> matrix.correlations.round(2)
        array([[1.  , 0.48, 0.45],
               [0.48, 1.  , 0.51],
               [0.45, 0.51, 1.  ]])

    References:
        Olsson, "Maximum likelihood estimation of the polychoric correlation coefficient",
            Psychometrika (1979).
        Joreskog, "On the estimation of polychoric correlations and their asymptotic covariance
            matrix", Psychometrika (1994).
        Higham, "Computing the nearest correlation matrix: a problem from finance", IMA Journal of
            Numerical Analysis (2002).
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
    p = len(names)
    table, counts, total = tables_of(codes, size)
    limits = np.full((p, size - 1), np.inf)
    for j, (_, levels, _) in enumerate(columns):
        limits[j, : len(levels) - 1] = limits_of(counts[j, : len(levels)])
    pairs = np.stack(np.tril_indices(p, -1), axis=1)
    j, i = pairs.T
    edges = np.where(defined(table), edge_of(table), np.nan)
    with jax.enable_x64(True):
        rho, influence = two_steps(table, limits[i], limits[j], edges)
    errors = errors_of_valid(table, influence, counts[i], counts[j])
    matrix, spread = np.eye(p), np.zeros((p, p))
    matrix[j, i] = matrix[i, j] = rho
    spread[j, i] = spread[i, j] = errors
    notes += notes_on(names, pairs, rho)
    change = np.nan
    if repair:
        matrix, change = repaired(matrix)
        notes.append(f"Repaired to be positive definite: correlations moved by up to {change:.3g}.")
    elif np.all(np.isfinite(matrix)) and np.linalg.eigvalsh(matrix)[0] <= 0:
        notes.append("The matrix is not positive definite; repair=True replaces it by a close one.")
    thresholds = tuple(row[np.isfinite(row)] for row in limits)
    result = names, matrix, spread, thresholds, total, pairs, change
    return PolychoricMatrix(*result, tuple(notes), codes, influence)


def items_of(data: Any) -> tuple[list[Ordinal], tuple[str, ...]]:
    """The columns of a table as ordered categories, and their names."""
    (data,) = tables.in_one_order("polychoric_matrix", data=data)
    columns = tables.named_columns(data) if not isinstance(data, list | tuple) else None
    if columns is None and isinstance(data, list | tuple) and len(data):
        if isinstance(data[0], Ordinal):
            columns = {getattr(x, "name", None) or str(k): x for k, x in enumerate(data)}
    if columns is None:
        array = np.ma.asarray(data) if isinstance(data, np.ma.MaskedArray) else np.asarray(data)
        if array.ndim != 2:
            raise ValueError(f"polychoric_matrix: data must have shape (n, p), got {array.shape}.")
        columns = {str(k): array[:, k] for k in range(array.shape[1])}
    items = []
    for name, value in columns.items():
        try:
            items.append(value if isinstance(value, Ordinal) else Ordinal(value))
        except ValueError as error:
            raise ValueError(f"polychoric_matrix: column {name!r}: {error}") from error
    lengths = {len(item.codes) for item in items}
    if len(items) < 2 or len(lengths) > 1:
        raise ValueError(
            f"polychoric_matrix: needs two or more columns of one length, got {len(items)} of "
            f"{', '.join(map(str, sorted(lengths)))} rows."
        )
    return items, tuple(map(str, columns))


def tables_of(codes: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tables (m, K, K) of all pairs below the diagonal, the smaller number first; counts of the
    categories (p, K); and of the rows that have both (p, p): one product of indicators."""
    n, p = codes.shape
    kind = np.float32 if n < 2**24 else np.float64  # exact whole numbers
    indicators = np.zeros((n, p * size), kind)
    rows, items = np.nonzero(codes >= 0)
    indicators[rows, items * size + codes[rows, items]] = 1.0
    product = (indicators.T @ indicators).reshape(p, size, p, size)
    j, i = np.tril_indices(p, -1)
    counts = np.einsum("jaja->ja", product)
    return product[i, :, j].astype(float), counts.astype(float), product.sum(axis=(1, 3))


def defined(table: np.ndarray) -> np.ndarray:
    """Whether tables (m, K, K) have two rows and two columns at least, (m,)."""
    return np.asarray(
        (np.count_nonzero(table.sum(axis=2), axis=1) > 1)
        & (np.count_nonzero(table.sum(axis=1), axis=1) > 1)
    )


def errors_of_valid(
    table: np.ndarray, influence: Influence, first: np.ndarray, second: np.ndarray
) -> np.ndarray:
    """Standard errors, nan of pairs without a correlation inside."""
    inside = np.isfinite(influence.joint[:, 0, 0])
    errors = np.full(len(table), np.nan)
    errors[inside] = errors_of(table[inside], influence.of(inside), first[inside], second[inside])
    return errors


def notes_on(names: tuple[str, ...], pairs: np.ndarray, rho: np.ndarray) -> list[str]:
    """Sentences on pairs at an edge, and on those without a correlation."""
    notes, kinds = [], ((np.abs(rho) == 1, "at the edge 1 or -1, without an error"),)
    for which, what in (
        *kinds,
        (np.isnan(rho), "nan, as they share no row or one is constant in these"),
    ):
        numbers = np.flatnonzero(which)
        if len(numbers):
            some = [f"{names[i]} and {names[j]}" for j, i in pairs[numbers[:5]]]
            more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
            notes.append(f"{len(numbers)} correlation(s) are {what}: {', '.join(some)}{more}.")
    return notes


def repaired(matrix: np.ndarray) -> tuple[np.ndarray, float]:
    """The nearest correlation matrix without an eigenvalue below 1e-4, by alternating projections
    (Higham, 2002), and the largest change of an entry."""
    if not np.all(np.isfinite(matrix)):
        raise ValueError("polychoric_matrix: no repair, as some pairs have no correlation.")
    if np.linalg.eigvalsh(matrix)[0] >= LEAST_EIGENVALUE:
        return matrix, 0.0
    current, correction = matrix, np.zeros_like(matrix)
    for _ in range(1000):
        moved = current - correction
        values, vectors = np.linalg.eigh(moved)
        definite = (vectors * np.maximum(values, LEAST_EIGENVALUE)) @ vectors.T
        correction, before = definite - moved, current
        current = definite.copy()
        np.fill_diagonal(current, 1.0)
        if np.abs(current - before).max() < 1e-10:
            break
    scale = np.sqrt(np.diagonal(definite))
    result = definite / np.outer(scale, scale)
    np.fill_diagonal(result, 1.0)
    return result, float(np.abs(result - matrix).max())
