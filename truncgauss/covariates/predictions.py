"""Predictions of new rows by a fitted Gaussian or regression, and their marginal effects.

A prediction is a function h of a row's mean and covariance, which one program evaluates with its
slopes for all rows; the errors follow by the delta method. With f the probability (density) of what
is known of a row, the mean of its true values is loc + covariance @ d log f / d loc.

References:
    Williams, "Using the margins command to estimate and interpret adjusted predictions and marginal
        effects", The Stata Journal (2012).
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from truncgauss import tables
from truncgauss.arrays.compiling import Compiled
from truncgauss.arrays.importing import imported
from truncgauss.arrays.keys import as_key
from truncgauss.arrays.pytrees import as_float_array, floats_as_float64, frozen_pytree, static_field
from truncgauss.covariates.whitening import Whitened
from truncgauss.fitting.derived import (
    AT_AN_EDGE,
    NO_MAXIMUM,
    Derived,
    arrays_at,
    errors_of,
    jacobian_of,
)
from truncgauss.fitting.wald import table_of
from truncgauss.gaussian.covariances import CovarianceMatrix
from truncgauss.likelihood.observations import Observations, as_observations
from truncgauss.likelihood.row_blocks import filled_up
from truncgauss.likelihood.rows import row_terms
from truncgauss.probability.automatic import Automatic
from truncgauss.special.tails import ndtr
from truncgauss.words import earlier
from truncgauss.words.arguments import answering
from truncgauss.words.names import check_choice, closest, listed
from truncgauss.words.numbers import check_share

answering(Derived)  # whose file those read that have no use for words
KINDS = ("mean", "observed", "mean_observed", "recorded", "probability", "quantile")
SHARES = ("observed", "probability", "positive")  # kinds that are probabilities
CHUNK = 256  # rows whose errors are computed together
INFLATED = 1e4  # variances of coefficients, by which covariates are called nearly collinear
SHOWN = 20  # rows of a table that is printed
# Between derivatives of formulas by two steps, relative: at which no shorter one is tried, and at
# most.
ALIKE, ROUGHLY = 1e-7, 1e-4
JUMPS = 1e-3  # of a column's range: changes by which it jumps, as its variable moves by LITTLE
LITTLE, BLOCK = 1e-7, 4096  # of the variable's range; rows whose formulas are read together
EACH_COLUMN = (
    "Each column of a design without a formula moves by itself: the effect of a covariate does not "
    "include that of its products and functions, {}. Write a formula, or compare predictions where "
    "it differs."
)


class Covariates(NamedTuple):
    """Covariates of a mean or a log scale, as the user has them.

    Attributes:
        values: (n, p).
        names: of the columns; their numbers where the table had none.
        named: whether it had some.
        encoder: the function that makes these columns of another table, if there is one.
        remark: a sentence on covariates that are nearly collinear, if there are some.
    """

    values: np.ndarray
    names: tuple[str, ...]
    named: bool
    encoder: Any = None
    remark: str = ""

    @classmethod
    def of(cls, design: Whitened) -> "Covariates":
        names = design.names or tuple(map(str, range(design.columns.shape[1])))
        inflation = np.ones(len(names)) if design.inflation is None else design.inflation
        near = np.flatnonzero(inflation > INFLATED)
        remark = ""
        if len(near):
            shown = ", ".join(names[j] for j in near[:6]) + " and others" * (len(near) > 6)
            remark = (
                f"The covariates {shown} are nearly collinear: the others tell all but "
                f"{1.0 / inflation.max():.0e} of the variance of one of them, so that "
                "their estimates can hardly be told apart. Leave one out, or centre a covariate "
                "that stands beside its powers."
            )
        return cls(design.columns, names, design.names is not None, design.encoder, remark)

    @property
    def by_formula(self) -> bool:
        """Whether these are made of other columns, by a formula or of categories."""
        return bool(getattr(self.encoder, "source", {}))

    @property
    def source(self) -> Mapping[Any, Any]:
        """The columns of the user's data: those that a formula reads; without one, these."""
        own = dict(zip(self.names, self.values.T))
        return self.encoder.source if self.by_formula else own

    @property
    def levels(self) -> Mapping[Any, Sequence[Any]]:
        """The categories of the data's columns that have some, as `tables.Design` has them."""
        return getattr(self.encoder, "levels", {})

    def read(self, table: Any, what: str) -> np.ndarray:
        """The same columns of another table, (m, p)."""
        if isinstance(table, Mapping):
            n = max(map(np.size, table.values()), default=0)
            numbers = {name: np.full(n, x) for name, x in table.items() if np.ndim(x) == 0}
            table = {**table, **numbers}
        columns = tables.named_columns(table)
        if columns is not None and self.named and None in columns:
            raise ValueError(
                f"{what}: expected a table, such as a DataFrame or {{{self.names[-1]!r}: [1.0]}}, "
                "got a Series without a name. A row of a DataFrame is table.loc[[label]]."
            )
        if self.encoder is not None and columns is not None and not {*self.names} <= {*columns}:
            try:
                table = self.encoder(table)
            except ValueError as error:
                reads = ", ".join(map(repr, self.source))
                cure = f" The fit reads {reads}: give all of these." if self.source else ""
                cure = "" if {*self.source} <= {*columns} else cure
                raise ValueError(f"{what}: {str(error).removeprefix('formula: ')}{cure}") from error
        named = columns is not None
        known = tables.named_columns(table) or {} if self.named and named else self.names
        for name, column in zip(self.names, self.values.T):
            if name not in known and len(column) and np.all(column == column[0]):
                raise ValueError(
                    f"{what}: there is no column {name!r}, which is {column[0]:g} in every row of "
                    f"the fit: add it, {name!r}: {column[0]:g}."
                )
        lacking = [name for name in self.names if self.named and columns and name not in known]
        if columns and lacking:
            near = closest(lacking[0], columns)
            rename = f" Rename {near!r}." if near else ""
            raise ValueError(
                f"{what} lacks the covariate {lacking[0]!r} of the fit, whose covariates are "
                f"{', '.join(map(repr, self.names))}; it has {listed(columns, '', True)}{rename}"
            )
        if self.named and named:
            values = tables.read(table, self.names, what=what).values
        else:
            values = tables.read(table, what=what).values
            values = values.reshape(-1, 1) if values.ndim == 1 and len(self.names) == 1 else values
        if values.ndim != 2 or values.shape[1] != len(self.names) or not len(values):
            raise ValueError(
                f"{what} must have the {len(self.names)} column(s) {', '.join(self.names)} and one "
                f"row at least, got shape {values.shape}."
            )
        if len(wrong := np.argwhere(~np.isfinite(values))):
            raise ValueError(f"{what} holds NaN or infinity, first in row {wrong[0, 0]}.")
        return np.asarray(values, float)


@answering
@dataclasses.dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predictions of rows, or their marginal effects; `print` shows a table.

    Attributes:
        kind: of the prediction.
        names: of the rows, or of the covariates whose effects these are.
        value: one for each of these, or an array.
        standard_errors: likewise, by the delta method: of the estimates, not the scatter of new
            rows. inf where it is not identified.
        low, high: the ends of the intervals, likewise; those of a probability lie within 0 and 1.
        level: of these.
        covariance: of average effects, one after the other; None for others.
        outcomes: names of several outcomes, along the last axis.
        notes: sentences that a reader of the numbers must know.
    """

    kind: str
    names: tuple[str, ...]
    value: np.ndarray
    standard_errors: np.ndarray
    low: np.ndarray
    high: np.ndarray
    level: float
    covariance: np.ndarray | None = None
    outcomes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    standard_error = earlier.attribute("standard_error", "standard_errors")

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of all entries."""

        def label(first: int, *others: int) -> str:
            words = [str(k) for k in others]
            if self.outcomes:
                words[-1] = self.outcomes[others[-1]]
            return f"{self.names[first]}[{', '.join(words)}]" if words else self.names[first]

        return tuple(label(*index) for index in np.ndindex(self.value.shape))

    def to_frame(self, backend: str = "pandas") -> Any:
        """The table as a DataFrame, one row for each entry, as `LikelihoodFit.to_frame`."""
        parts = self.value, self.standard_errors, self.low, self.high
        words = "estimate", "standard_error", "low", "high"
        columns = {word: part.ravel() for word, part in zip(words, parts)}
        return tables.data_frame(self.labels, columns, backend)

    def __str__(self) -> str:
        ends = dict(zip(self.labels, zip(self.low.ravel(), self.high.ravel())))
        parts = self.labels[:SHOWN], self.value.ravel(), self.standard_errors.ravel()
        lines = table_of(*parts, ends)
        lines = [line.removesuffix("  profile") for line in lines]
        lines[0] = lines[0].replace("  95 %", f"{100 * self.level:4.3g} %")
        more = len(ends) - SHOWN
        lines += [f"and {more} more"] if more > 0 else []
        return "\n".join([*lines, *self.notes])


class EffectPoints(NamedTuple):
    """Rows at which effects are asked for.

    Attributes:
        sources: of each design, the columns of the data.
        unpooled: the designs of these, (n, p) each.
        designs: likewise, or their means over the rows where that is one point.
        weights: of the points.
        labels: of the points, if they have some.
        means: the weights of the rows of one point, their mean; None for a point each row.
    """

    sources: tuple[Mapping[Any, Any], ...]
    unpooled: tuple[np.ndarray, ...]
    designs: tuple[np.ndarray, ...]
    weights: np.ndarray
    labels: Any = None
    means: np.ndarray | None = None

    @property
    def num_rows(self) -> int:
        return len(self.unpooled[0])

    def pooled(self, rows: np.ndarray) -> np.ndarray:
        """Rows of a design, or their mean where that is one point."""
        return rows if self.means is None else np.average(rows, 0, self.means)[None]


# ---------------------------------------------------------------- one prediction of all rows


@frozen_pytree
class Prediction:
    """A function of the means (n, d) and covariances (n, d, d) of rows -> (n,), or (n, d).

    Attributes:
        rows: what is known of the rows, or the event; None for nothing.
        narrower: the event whose probability is asked for, within what is known.
        possible: whether what is known meets that event, (n,); the probability is 0 elsewhere.
        normal: the standard normal quantile of that entry, if a quantile is asked for.
        kind: one of KINDS, or "positive", the probability that the entry is (static).
        region: whether the event is the region of the rows (static).
        entry: the entry that is asked for; None for all (static).
    """

    rows: Observations | None
    narrower: Observations | None = None
    possible: jax.Array | None = None
    normal: jax.Array | None = None
    kind: str = static_field(default="mean")
    region: bool = static_field(default=False)
    entry: int | None = static_field(default=None)

    def log_mass(self, rows: Any, loc: jax.Array, covariance: jax.Array) -> jax.Array:
        """The log probability (density) of the event, (n,)."""
        terms = row_terms(rows, loc, CovarianceMatrix(covariance), Automatic(), as_key(None))
        return terms.region if self.region else terms.data

    def __call__(self, loc: jax.Array, covariance: jax.Array) -> jax.Array:
        j = self.entry
        if j is not None and self.rows is None:
            mean, scale = loc[:, j], jnp.sqrt(covariance[:, j, j])
            if self.normal is not None:
                return mean + self.normal * scale
            return ndtr(mean / scale) if self.kind == "positive" else mean
        if self.rows is None:
            return loc
        if self.kind == "recorded":
            return self.recorded(loc, covariance)
        if self.narrower is not None and self.possible is not None:
            inside = self.log_mass(self.narrower, loc, covariance)
            share = jnp.exp(inside - self.log_mass(self.rows, loc, covariance))
            return jnp.where(self.possible, share, 0.0)
        if self.kind in ("observed", "probability"):
            return jnp.exp(self.log_mass(self.rows, loc, covariance))
        slope = jax.grad(lambda loc: jnp.sum(self.log_mass(self.rows, loc, covariance)))(loc)
        mean = loc + jnp.einsum("nij,nj->ni", covariance, slope)
        return mean if j is None else mean[:, j]

    def recorded(self, loc: jax.Array, covariance: jax.Array) -> jax.Array:
        """The mean of one outcome that counts as the limit where it lies beyond, (n, 1)."""
        assert self.rows is not None
        scale = jnp.sqrt(covariance[:, 0])
        total = loc
        for sign, limit in ((1.0, self.rows.lower), (-1.0, self.rows.upper)):
            finite = jnp.isfinite(limit)
            z = sign * (jnp.where(finite, limit, 0.0) - loc) / scale
            excess = scale * (z * ndtr(z) + jnp.exp(-0.5 * z**2) / (2.0 * jnp.pi) ** 0.5)
            total += jnp.where(finite, sign * excess, 0.0)
        return total


def gaussians(arrays: Any, designs: Any) -> tuple[jax.Array, jax.Array]:
    """Means (n, d) and covariances (n, d, d) of rows with these covariates, by a fit's arrays."""
    coefficients, matrix = arrays.get("coefficients"), arrays.get("covariance")
    parts = coefficients if isinstance(coefficients, tuple) else (coefficients,)
    means = [design @ part for design, part in zip(designs, parts)]
    loc = jnp.stack(means, axis=1) if means else arrays["loc"][None]
    if matrix is None:  # of one outcome
        matrix = jnp.exp(2.0 * (designs[-1] @ arrays["log_scale"]))
    d = loc.shape[1]
    return loc, jnp.broadcast_to(matrix.reshape(-1, d, d), (len(loc), d, d))


@Compiled
def sloped(
    prediction: Prediction, arrays: Any, slopes: Any, designs: Any, rates: Any
) -> tuple[jax.Array, jax.Array]:
    """A prediction of all rows, or the rate at which it changes as designs move at theirs, and its
    Jacobian by the estimates, of which the arrays have these slopes."""

    def at(arrays: Any, designs: Any) -> jax.Array:
        known, parts = prediction.rows, gaussians(arrays, designs)
        n = len(parts[0]) if known is None else known.num_rows
        return prediction(*(jnp.broadcast_to(part, (n, *part.shape[1:])) for part in parts))

    def function(arrays: Any) -> jax.Array:
        if rates is None:
            return at(arrays, designs)
        return jax.jvp(functools.partial(at, arrays), (designs,), (rates,))[1]

    value, along = jax.linearize(function, arrays)
    return value, jax.vmap(along, in_axes=-1, out_axes=-1)(slopes)


def predicted(
    prediction: Prediction, arrays: Any, designs: Any, rates: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """A prediction of n rows, or its rate, (n, k), and the Jacobian by the estimates, (n, k, p)."""
    rows, narrower = prediction.rows, prediction.narrower
    columns = jax.tree.map(as_float_array, (designs, rates))
    n = len(designs[0]) if designs else 1
    if rows is not None:  # by programs for few lengths
        n, possible = rows.num_rows, prediction.possible
        rows, possible, *columns = filled_up(rows, possible, *columns)
        narrower = None if narrower is None else filled_up(narrower)[0]
        prediction = dataclasses.replace(
            prediction, rows=rows, narrower=narrower, possible=possible
        )
    value, jacobian = map(np.asarray, sloped(prediction, *arrays, *columns))
    return value[:n].reshape(n, -1), jacobian[:n].reshape(n, -1, jacobian.shape[-1])


def joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Predictions of several things of each row, with their Jacobians, side by side."""
    values, jacobians = zip(*parts)
    return np.concatenate(values, axis=-1), np.concatenate(jacobians, axis=-2)


# ---------------------------------------------------------------- the calls


def predict(
    fit: Any,
    new: Any,
    kind: str,
    known: Any,
    limits: Any,
    probability: float,
    entry: Any,
    level: Any,
) -> Predictions:
    """Predictions of new rows, see `RowsFit.predict`."""
    check(fit, kind, level, "predict")
    ignored = ["entry"] * (entry is not None) + ["probability"] * bool(np.any(probability != 0.5))
    if ignored and kind != "quantile":
        raise ValueError(
            f'predict: {ignored[0]} is for kind "quantile" alone, got kind {kind!r}. Leave it out, '
            'or say "quantile".'
        )
    own = None if new is not None or not fit.designs else fit.observations.index
    own, new, known = tables.in_one_order("predict", fit=own, new=new, known=known)
    index = tables.labels_of((own, new, known))
    with jax.enable_x64(True):
        if isinstance(new, Observations) and not fit.designs:
            new, known = None, new
        designs = designs_of(fit, new, "predict: new")
        arrays = arrays_at(fit)(fit.estimates)
        n, d = jax.eval_shape(gaussians, arrays[0], designs)[0].shape
        if known is not None:
            if isinstance(known, Observations):
                as_observations(known, "predict", fit.observations)
            if known.dimension != d or (designs and known.num_rows != n):
                raise ValueError(
                    f"predict: what is known must have shape {(n if designs else 'n', d)}, got "
                    f"{known.lower.shape}."
                )
            n = known.num_rows
        limits = limits_of_rows(fit, "predict", index, d, limits)
        parts, outcomes = fit.predictions(kind, (n, d), known, limits)
        if kind == "quantile":
            parts, outcomes = (quantile_of(fit, d, known, probability, entry),), ()
        value, jacobian = joined([predicted(part, arrays, designs) for part in parts])
        logits = [k for k, part in enumerate(parts) if part.kind in SHARES]
        names = names_of_rows(index, len(value))
        result = with_interval(fit, names, outcomes, value, jacobian, level, logits)
    return dataclasses.replace(result, kind=kind)


def margins(
    fit: Any,
    at: Any,
    kind: str,
    variables: Any,
    discrete: Any,
    average: bool,
    limits: Any,
    level: Any,
) -> Predictions:
    """Marginal effects of covariates, see `RowsFit.margins`."""
    check(fit, kind, level, "margins")
    if kind == "quantile":
        raise ValueError("margins: gives no effects on quantiles.")
    chosen = chosen_effects(fit, variables, discrete)
    with jax.enable_x64(True):
        points = points_of(fit, at)
        arrays = arrays_at(fit)(fit.estimates)
        shape = jax.eval_shape(gaussians, arrays[0], points.designs)[0].shape
        limits = limits_of_rows(fit, "margins", points.labels, shape[1], limits)
        parts, outcomes = fit.predictions(kind, shape, None, limits)
        moves = [move_of(fit, points, *each) for each in chosen.values()]
        effects = [joined([effect(arrays, p, points.designs, *m) for p in parts]) for m in moves]
        value, jacobian = (np.stack(parts) for parts in zip(*effects))  # (v, n, k), (v, n, k, p)
        covariance = None
        if average:
            value, jacobian = (np.average(x, 1, points.weights) for x in (value, jacobian))
            flat = jacobian.reshape(-1, jacobian.shape[-1]) @ jacobian_of(fit)
            covariance = errors_of(fit, flat)[1]
        result = with_interval(fit, tuple(chosen), outcomes, value, jacobian, level)
    notes = (*result.notes, *each_column(fit, chosen))
    return dataclasses.replace(result, kind=kind, covariance=covariance, notes=notes)


def each_column(fit: Any, chosen: Iterable[str]) -> tuple[str, ...]:
    """A sentence on marginal effects of columns of which others are products or functions."""
    products = [
        name
        for part in fit.designs
        for name in (() if part.by_formula else part.names)
        if re.search(r":(?! )|\*|\(", name)
        and any(x != name for x in tables.names_in(name, {*chosen} & {*part.names}))
    ]
    return (EACH_COLUMN.format(", ".join(dict.fromkeys(products))),) * bool(products)


def effect(
    arrays: Any, prediction: Prediction, designs: Any, rates: Any, ends: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The effect of a covariate on each row's prediction, (n, k), and its Jacobian (n, k, p): the
    derivative as designs move at some rates, or the change between two ends."""
    if not ends:
        return predicted(prediction, arrays, designs, rates)
    before, after = (predicted(prediction, arrays, end) for end in ends)
    return after[0] - before[0], after[1] - before[1]


def effect_on(function: Any, designs: Any, j: int, rates: Any, ends: Any) -> Any:
    """Likewise, on a function of design j alone, in JAX."""
    if ends:
        return function(ends[1][j]) - function(ends[0][j])
    return jax.jvp(function, (jnp.asarray(designs[j]),), (jnp.asarray(rates[j]),))[1]


def move_of(fit: Any, points: EffectPoints, name: Any, ends: Any) -> tuple[Any, Any]:
    """The rates at which designs move with a variable of the data; or the designs at both ends of
    its change."""
    if ends:
        moved = [designs_at(fit, points, {name: np.full(points.num_rows, end)}) for end in ends]
        return (), tuple(tuple(map(points.pooled, designs)) for designs in moved)
    rates = []
    for part, source in zip(fit.designs, points.sources):
        if name not in source:
            rate = np.zeros((points.num_rows, len(part.names)))
        elif not part.by_formula:  # a column moves by itself
            rate = np.tile(np.array(part.names) == name, (points.num_rows, 1)).astype(float)
        else:
            rate = rates_of(part, source, name)
        rates.append(points.pooled(rate))
    return tuple(rates), ()


def designs_at(fit: Any, points: EffectPoints, values: Mapping[Any, Any]) -> tuple[np.ndarray, ...]:
    """The designs where variables of the data have other values (n,)."""
    pairs = [
        (part, source, {name: values[name] for name in values if name in source})
        for part, source in zip(fit.designs, points.sources)
    ]
    return tuple(
        part.read({**source, **some}, "margins") if some else np.asarray(x)
        for (part, source, some), x in zip(pairs, points.unpooled)
    )


def rates_of(part: Covariates, source: Mapping[Any, Any], name: Any) -> np.ndarray:
    """The derivatives (n, p) of the columns of a formula by a variable of the data.

    Raises:
        ValueError: where a column has none, does nothing but jump, or depends on other rows.
    """

    def values_at(source: Mapping[Any, Any], values: np.ndarray) -> np.ndarray:
        """The columns (k, n, p) at values (k, n) of the variable, in one reading."""
        rows = np.tile(np.arange(values.shape[1]), len(values))
        moved = {**tables.taken(source, rows), name: values.ravel()}
        return part.read(moved, "margins").reshape(*values.shape, -1)

    complete = np.flatnonzero(~np.isnan(part.values).any(axis=1))
    sizes = np.ptp(part.values[complete], axis=0)
    some = complete[: len(complete) // 2 + 1]
    alone = part.read(tables.taken(part.source, some), "margins")
    if (others := (np.abs(alone - part.values[some]) > ROUGHLY * LITTLE * sizes).any(axis=0)).any():
        raise ValueError(
            f"margins: {part.names[int(np.argmax(others))]!r} of one row depends on other rows, so "
            "that it has no derivative by row. Means that are stored are those of center and scale."
        )
    rows = tables.taken(part.source, complete)
    known, x = (np.asarray(columns[name], float) for columns in (rows, source))
    sides = np.where(known > 0.5 * (known.min() + known.max()), -1.0, 1.0)
    moved = known, known + sides * LITTLE * np.ptp(known), known[::-1]
    first, beside, other = values_at(rows, np.stack(moved))
    jumps = (other != first).any(axis=0)
    jumps &= ((beside == first) | (np.abs(beside - first) > JUMPS * sizes)).all(axis=0)
    if jumps.any():
        raise ValueError(
            f"margins: {part.names[int(np.argmax(jumps))]!r} changes with {name!r} by jumps alone, "
            f"so that there is no derivative. Compare predictions where {name!r} differs, and ask "
            "for the effects of other variables by name."
        )
    blocks = np.array_split(np.arange(len(x)), -(-len(x) // BLOCK))
    pairs = [
        by_differences(functools.partial(values_at, tables.taken(source, block)), x[block], known)
        for block in blocks
    ]
    rates, exist = map(np.concatenate, zip(*pairs))
    if not np.all(exist):
        first = int(np.argmin(exist))
        raise ValueError(
            f"margins: a function of {name!r} in the formula has no derivative at {np.sum(~exist)}"
            f" of the {len(x)} points, the first of which is {name} = {x[first]:g}. Give points by "
            "`at` where it has one."
        )
    return rates


def by_differences(
    function: Callable[[np.ndarray], np.ndarray], x: np.ndarray, known: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The derivatives (n, p) of functions of each of n numbers, and where they were found, (n,).

    By differences of the fourth order on both sides, which must agree, or on one where the other
    leaves the range of the known numbers: no formula need have values beyond it. Steps are parts of
    the range, as ever shorter ones as it takes for two to agree, and at last of the number itself,
    as of logarithms.

    Args:
        function: (k, n) -> (k, n, p), by element.
        x: (n,).
        known: numbers at which the function is known to have values.
    """
    least, most = known.min(), known.max()
    side = np.where(x > 0.5 * (least + most), -1.0, 1.0)
    spread, size = (most - least) or abs(most) or 1.0, np.abs(x)
    steps = [np.full_like(x, spread * 10.0**-k) for k in range(2, 8)] + [1e-3 * size, 1e-4 * size]
    rates = before = np.full((len(x), 1), np.nan)
    apart = np.full(len(x), np.inf)
    for step in steps:
        far = x - 4.0 * side * step
        both = (far >= least) & (far <= most)
        sides = np.stack([side, np.where(both, -side, side)])[:, None] * step
        points = x + np.arange(1.0, 5.0)[:, None] * sides  # (2, 4, n)
        lengths = points[:, 0] - x  # as rounding leaves them
        points = x + np.arange(1.0, 5.0)[:, None] * lengths[:, None]
        middle, *there = function(np.concatenate([x[None], *points]))
        with np.errstate(divide="ignore", invalid="ignore"):
            change = np.reshape(there - middle, (2, 4, *middle.shape))
            weighted = np.einsum("k,skni->sni", [48.0, -36.0, 16.0, -3.0], change)
            one, other = weighted / (12.0 * lengths[..., None])
            rate = 0.5 * (one + other)
            same = np.all(np.reshape(there, change.shape) == points[..., None], axis=(0, 1))
            rate = np.where(same, 1.0, rate)  # the variable itself
            scale = np.maximum(np.abs(rate), 1e-9 * np.nanmax(np.abs(rate), axis=0, initial=0.0))
            differences = np.maximum(np.abs(rate - before), np.abs(one - other))
            between = np.max(np.where(differences == 0, 0.0, differences / scale), axis=1)
        nearer = between < apart
        rates, apart = np.where(nearer[:, None], rate, rates), np.where(nearer, between, apart)
        before = rate
        if np.all(apart < ALIKE):
            break
    return rates, apart < ROUGHLY


# ---------------------------------------------------------------- inputs


def check(fit: Any, kind: str, level: float, what: str) -> None:
    """Raise ValueError for fits that predict nothing, and unknown words."""
    with jax.enable_x64(True):
        arrays = jax.eval_shape(fit.arrays_of, fit.estimates)
    if not {"loc", "coefficients"} & set(arrays):
        raise ValueError(f"{what}: knows Gaussians and regressions, got {type(fit).__name__}.")
    effects = " Effects are derivatives of that already: leave kind out for those on the mean."
    check_choice(kind, fit.kinds, f"{what}: kind", effects if what == "margins" else "")
    check_share(level, f"{what}: level")


def designs_of(fit: Any, new: Any, what: str) -> tuple[np.ndarray, ...]:
    """The covariates of new rows, or of those of the fit, in the order of `fit.designs`."""
    if new is None:
        return tuple(part.values for part in fit.designs)
    if not fit.designs:
        raise ValueError(f"{what}: the fit has no covariates; give Observations, or nothing.")
    (new,) = tables.in_one_order(what, new=new)
    several = isinstance(new, tuple | list)
    if several and len(new) != len(fit.designs):
        raise ValueError(
            f"{what} must be one table, such as a DataFrame, with the columns "
            f"{', '.join(fit.designs[0].names)}, or a tuple of {len(fit.designs)}, one for each "
            f"design of the fit; got a {type(new).__name__} of {len(new)}."
        )
    parts = new if several else [new] * len(fit.designs)
    designs = tuple(part.read(table, what) for part, table in zip(fit.designs, parts))
    if len({len(design) for design in designs}) > 1:
        raise ValueError(f"{what}: its tables have {[len(design) for design in designs]} rows.")
    return designs


def prediction_of(
    fit: Any,
    kind: str,
    shape: tuple[int, ...],
    known: Observations | None,
    limits: tuple[Any, Any],
) -> Prediction:
    """The function to be computed of n rows of d entries."""
    if known is not None and kind not in ("mean", "probability", "quantile"):
        raise ValueError(f"{kind}: what is known of an observation makes no difference to it.")
    if known is not None and known.noise is not None and kind != "mean":
        raise ValueError(
            f"{kind}: not of observations with noise, whose true values have a mean only."
        )
    known = None if known is None else inside(known)
    none = limits[0] is None and limits[1] is None
    if kind in ("mean", "quantile"):
        if not none:
            raise ValueError(f"{kind}: takes no bounds; say known=tg.Observations(low, high).")
        return Prediction(known, kind=kind)
    if kind == "recorded" and shape[1] > 1:
        raise ValueError(f"recorded: of one outcome only, got a fit of {shape[1]}.")
    region = getattr(fit.observations, "region", None)
    if none and kind != "probability":  # those between which an outcome is seen
        low, high = fit.limits
        if kind != "recorded" and (box := getattr(fit.observations, "box", None)) is not None:
            ends = np.asarray(box.low), np.asarray(box.high)
            first, last = (np.unique(end.reshape(-1, box.dimension), axis=0) for end in ends)
            if len(first) == len(last) == 1:  # the box of all rows
                low = np.maximum(first[0], -np.inf if low is None else low)
                high = np.minimum(last[0], np.inf if high is None else high)
            else:
                low = high = None
        limits, none = (low, high), low is None and high is None
    if none and kind.endswith("observed") and region is not None and not region.batch_shape:
        return Prediction(
            Observations.exact(np.zeros(shape), region=region), kind=kind, region=True
        )
    if none:
        raise ValueError(
            f"{kind}: give low or high, the bounds between which a new outcome is observed. Those "
            "of this fit have none in common: they are uncensored, or have their own bounds."
        )
    low, high = (limit_of(end, shape, side) for end, side in zip(limits, (-np.inf, np.inf)))
    whole = between(low, high)
    if known is None:
        return Prediction(whole, kind=kind)
    low, high = np.maximum(low, known.lower), np.minimum(high, known.upper)
    exact = np.asarray(known.lower == known.upper)
    possible = np.all((low < high) | exact & (low == high), axis=1)
    low, high = (
        np.where(possible[:, None], end, own)
        for end, own in ((low, known.lower), (high, known.upper))
    )
    return Prediction(known, between(low, high, known.region), jnp.asarray(possible), kind=kind)


def limits_of_rows(fit: Any, what: str, labels: Any, d: int, limits: tuple[Any, Any]) -> Any:
    """Limits, brought into the order of the rows where they are of each row."""
    low, high = limits
    if d > 1 and not fit.num_unlimited:
        from truncgauss.arrays.coordinates import check_one_order

        check_one_order(fit=fit.observations, low=low, high=high)
    if d - fit.num_unlimited > 1 and max(np.ndim(low), np.ndim(high)) < 2:
        return limits
    return tables.in_one_order(what, index=labels, low=low, high=high)[1:]


def between(lower: np.ndarray, upper: np.ndarray, region: Any = None, **more: Any) -> Observations:
    """Rows whose entries lie between limits."""
    return Observations(as_float_array(lower), as_float_array(upper), region, **more)


def limit_of(limit: Any, shape: tuple[int, ...], default: float) -> np.ndarray:
    """The limit of every entry of rows, (n, d), from a number, (d,), (n, d), or (n,) if d = 1."""
    values = np.asarray(default if limit is None else limit, float)
    if values.shape == shape[:1] and shape[1] == 1:
        values = values[:, None]
    if values.shape not in ((), shape[1:], shape) or np.any(np.isnan(values)):
        raise ValueError(f"low and high must be numbers, of shape (), {shape[1:]} or {shape}.")
    return np.broadcast_to(values, shape)


def inside(known: Observations) -> Observations:
    """Rows in a box with its limits for their own, without weights."""
    known = floats_as_float64(dataclasses.replace(known, weights=None))
    if (box := known.box) is None or known.latent:
        return known
    lower, upper, low, high = map(np.asarray, (known.lower, known.upper, box.low, box.high))
    if np.any(np.maximum(lower, low) > np.minimum(upper, high)):
        raise ValueError("predict: what is known of some observations does not meet their region.")
    return between(np.maximum(lower, low), np.minimum(upper, high), noise=known.noise)


def quantile_of(
    fit: Any, d: int, known: Observations | None, probability: float, entry: Any
) -> Prediction:
    """The quantile of one of d entries of each row."""
    if known is not None:
        raise ValueError(
            "quantile: not given what is known of an observation. Seek the high at which kind "
            '"probability" is the one asked for.'
        )
    labels = getattr(fit.observations, "labels", tuple(map(str, range(d))))
    number = 0 if entry is None and d == 1 else entry
    number = labels.index(number) if number in labels else number
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < d:
        raise ValueError(f"quantile: entry must be one of {', '.join(labels)}; got {entry!r}.")
    check_share(probability, "quantile: probability")
    normal = jnp.asarray(special.ndtri(probability))
    return Prediction(None, normal=normal, kind="quantile", entry=number)


def counted(fit: Any) -> Any:
    """A mask of the rows of a fit that have a weight, or a slice of all."""
    weights = getattr(fit.observations, "weights", None)
    return slice(None) if weights is None else np.asarray(weights) > 0


def chosen_effects(fit: Any, variables: Any, discrete: Any) -> dict[str, tuple[Any, Any]]:
    """The effects that are asked for, by default of all variables of the data that vary: of each
    label the variable, and both ends of its change, or () for a derivative."""
    if not fit.designs:
        raise ValueError("margins: the fit has no covariates.")
    if any(not part.named and part is not fit.designs[0] for part in fit.designs):
        raise ValueError("margins: covariates of several designs need names: give tables.")
    variables, discrete = ((x,) if isinstance(x, str) else x for x in (variables, discrete))
    rows, levels = counted(fit), levels_of(fit)
    effects: dict[str, tuple[Any, Any]] = {}
    columns: dict[Any, list[np.ndarray]] = {}
    for part in fit.designs:
        for name, column in part.source.items():
            columns.setdefault(name, []).append(np.asarray(column)[rows])
    for name, several in columns.items():
        if not any(np.any(column != column[0]) for column in several):
            continue
        first, *others = levels.get(name, [None])
        dummy = discrete is None and all(np.all((x == 0) | (x == 1)) for x in several)
        for level in others:
            effects[f"{name}: {level}"] = name, (first, level)
        if not others:
            ends: Any = (0.0, 1.0) if dummy or name in (discrete or ()) else ()
            effects[str(name)] = name, ends
    chosen: dict[str, tuple[Any, Any]] = {}
    for name in (*(effects if variables is None else variables), *(discrete or ())):
        some = {label: x for label, x in effects.items() if name in (label, x[0])}
        if not some:
            known = listed(list(effects), name)
            refuse_made(fit, name)
            raise ValueError(f"margins: {name!r} is no covariate that varies; there are {known}")
        chosen |= some if variables is None or name in variables else {}
    if not chosen:
        raise ValueError("margins: no covariate of the fit varies.")
    return chosen


def levels_of(fit: Any) -> dict[Any, Sequence[Any]]:
    """The categories of the variables of the data that have some, by name."""
    return {name: part.levels[name] for part in fit.designs for name in part.levels}


def refuse_made(fit: Any, name: Any) -> None:
    """Raise ValueError for a name that is that of a column which a formula makes of others."""
    for part in fit.designs:
        its = tables.names_in(name, part.source) if part.by_formula and name in part.names else []
        if its:
            raise ValueError(
                f"margins: {name!r} is made of {', '.join(map(repr, its))}. A variable moves in "
                f"the data, through every formula: say {its[0]!r}."
            )


def points_of(fit: Any, at: Any) -> EffectPoints:
    """The points at which effects are asked for."""
    sources = tuple(part.source for part in fit.designs)
    rows = tuple(part.values for part in fit.designs)
    weights = getattr(fit.observations, "weights", None)
    weights = np.ones(len(rows[0])) if weights is None else np.asarray(weights)
    points = EffectPoints(sources, rows, rows, weights, getattr(fit.observations, "index", None))
    values: Mapping[Any, Any] = {}
    if isinstance(at, str | list | tuple) and at != "mean":
        imported("truncgauss.words.misfits").refuse_names_as_points(at)
    if isinstance(at, str):
        refuse_gaps(points)
        levels, every = levels_of(fit), {name: x for part in sources for name, x in part.items()}
        values = {
            name: np.average(np.asarray(x, float), weights=weights)
            for name, x in every.items()
            if name not in levels
        }
        points = points._replace(means=weights, weights=np.ones(1), labels=None)
    elif isinstance(at, Mapping) and all(np.ndim(value) == 0 for value in at.values()):
        known = list(dict.fromkeys(name for part in sources for name in part))
        for name in at:
            if name not in known:
                refuse_made(fit, name)
                raise ValueError(f"margins: at: no covariate {name!r}, but {listed(known, name)}")
        values = at
    elif at is not None:
        designs = designs_of(fit, at, "margins: at")
        each = (
            at if isinstance(at, tuple | list) and len(at) == len(designs) else [at] * len(designs)
        )
        sources = tuple(map(source_at, fit.designs, each, designs))
        return EffectPoints(
            sources, designs, designs, np.ones(len(designs[0])), tables.labels_of(at)
        )
    moved = {name: np.full(points.num_rows, value) for name, value in values.items()}
    designs = designs_at(fit, points, moved)
    sources = tuple({name: moved.get(name, part[name]) for name in part} for part in sources)
    points = points._replace(sources=sources, unpooled=designs)
    refuse_gaps(points)
    return points._replace(designs=tuple(map(points.pooled, designs)))


def source_at(part: Covariates, table: Any, design: np.ndarray) -> Mapping[Any, Any]:
    """The columns of the data in a table of points, whose design (m, p) was read."""
    if not part.by_formula:
        return dict(zip(part.names, design.T))
    columns = tables.named_columns(table) or {}
    if lacking := [name for name in part.source if name not in columns]:
        raise ValueError(
            f"margins: at lacks the column {lacking[0]!r}, of which the formula makes covariates."
        )
    read = {name: columns[name] for name in part.source}
    return {name: np.full(len(design), x) if np.ndim(x) == 0 else x for name, x in read.items()}


def refuse_gaps(points: EffectPoints) -> None:
    """Raise ValueError for points whose covariates are missing."""
    lacking = np.any([np.isnan(part).any(axis=1) for part in points.unpooled], axis=0).sum()
    if lacking:
        raise ValueError(
            f"margins: covariates of {lacking} of the {points.num_rows} observations are "
            "missing, so that no mean of all is known. Give points by `at`, such as the "
            "complete observations."
        )


# ---------------------------------------------------------------- errors and intervals


def names_of_rows(labels: tables.RowLabels | None, n: int) -> tuple[str, ...]:
    """The labels of n rows, or their numbers."""
    return tuple(map(str, range(n) if labels is None else labels.index))


def of_categories(
    fit: Any,
    function: Callable[[jax.Array], jax.Array],
    names: tuple[str, ...],
    levels: Sequence[Any],
    level: float,
    logits: bool = False,
) -> Predictions:
    """A function (..., K) of the estimates, in JAX, for the levels of an outcome, if it has some,
    with intervals: by logits, of probabilities."""
    both = jax.jit(lambda at: (function(at), jax.jacfwd(function)(at)))
    value, jacobian = map(np.asarray, both(jnp.asarray(fit.estimates, jnp.float64)))
    numbers = range(value.shape[-1]) if logits else ()
    outcomes = tuple(map(str, levels))
    result = with_interval(fit, names, outcomes, value, jacobian, level, numbers)
    return dataclasses.replace(result, kind="category")


def shares_between(below: Any) -> jax.Array:
    """The probabilities of categories, (..., K), by those of lying below each cut."""
    ends = [(0, 0)] * (below.ndim - 1) + [(1, 1)]
    return jnp.diff(jnp.pad(below, ends, constant_values=(0.0, 1.0)))


def with_interval(
    fit: Any,
    names: tuple[str, ...],
    outcomes: tuple[str, ...],
    value: np.ndarray,
    jacobian: np.ndarray,
    level: float,
    logits: Sequence[int] = (),
) -> Predictions:
    """Predictions with intervals, those of some columns by their logits, and notes; a last axis
    of one outcome is left out."""
    flat = jacobian.reshape(-1, jacobian.shape[-1]) @ jacobian_of(fit)
    parts = np.array_split(flat, -(-len(flat) // CHUNK))
    errors = np.concatenate([errors_of(fit, part)[0] for part in parts]).reshape(value.shape)
    half = float(special.ndtri(0.5 + 0.5 * level)) * errors
    low, high = value - half, value + half
    for k in logits:
        part, width = value[..., k], half[..., k]
        with np.errstate(divide="ignore", invalid="ignore"):
            logit, slope = special.logit(part), 1.0 / (part * (1.0 - part))
            for end, step in ((low, -width), (high, width)):
                end[..., k] = np.where(width == 0, part, special.expit(logit + step * slope))
    if value.shape[-1] == 1:
        value, errors, low, high = (part[..., 0] for part in (value, errors, low, high))
        outcomes = ()
    notes = () if fit.converged else (NO_MAXIMUM.format("Predictions", fit.reason),)
    if fit.converged and np.any(np.isinf(errors)):
        notes = (AT_AN_EDGE.format("some predictions"),)
    return Predictions(
        kind="",
        names=names,
        value=value,
        standard_errors=errors,
        low=low,
        high=high,
        level=level,
        outcomes=outcomes,
        notes=notes,
    )
