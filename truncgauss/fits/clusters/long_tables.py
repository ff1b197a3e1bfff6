"""Rows of a long table, checked and gathered into clusters of few shapes, in NumPy."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import tables
from truncgauss.arrays.pytrees import as_float_array
from truncgauss.fits.clusters.cluster_likelihood import (
    DENSE_SIZES,
    EXACT_SIZES,
    MOST_EXACT,
    MOST_NESTED,
    ClusterRows,
)
from truncgauss.fits.gaussian.gaussian_starts import as_columns
from truncgauss.fits.gaussian.ordinal_fit import OrdinalModel
from truncgauss.fits.recorded import beyond_alone, censored_ends, recorded_from
from truncgauss.fitting.engine import ONE_LABEL, refuse_missing_labels
from truncgauss.likelihood import nested
from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.ordinal import Ordinal
from truncgauss.likelihood.patterns import filled_length
from truncgauss.probability.automatic import Automatic
from truncgauss.tables.columns import DROPPED, ONE_COLUMN

WHAT = "fit_clusters"
FEW_MASSES = 2**19  # of all clusters, that are computed in no time however they are filled up
NODES = 64  # of an integral, about
DRAWS = 2**14  # of an integral over more limited entries than have a quadrature, about
GROWTH = 1.25  # of the masses of all clusters, for fewer programs


class LongTable(NamedTuple):
    """The rows as the user has them.

    Attributes:
        observations: all rows.
        covariates: of all rows.
        labels: of the clusters that say something, sorted, (k,).
        number: of each of them in the model, where equal ones are counted once, (k,).
        shape: of each, (k,).
        rows: those of the clusters of each shape, (k_s, m_s).
    """

    observations: Any
    covariates: Any
    labels: np.ndarray
    number: np.ndarray
    shape: np.ndarray
    rows: tuple[np.ndarray, ...]

    def of_rows(self, parts: Sequence[Any], missing: float = 0.0) -> jax.Array:
        """Values of all rows, (n, ...), of those of the clusters of each shape, (u_s, m_s, ...);
        `missing` where there is no outcome."""
        whole = jnp.full((self.observations.num_rows, *parts[0].shape[2:]), missing)
        begin = 0
        for s, (part, index) in enumerate(zip(parts, self.rows)):
            some, seen = self.number[self.shape == s] - begin, index >= 0
            whole = whole.at[index[seen]].set(part[some][seen])
            begin += len(part)
        return whole


class ClusterInputs(NamedTuple):
    """Outcomes and covariates of the rows of a long table, checked.

    Attributes:
        lower, upper: (n,).
        design: (n, p).
        codes: numbers of the clusters, in the order in which they come, (n,).
        labels: of the clusters.
        noise: known variances, (n,).
        binary: whether outcomes are 0 and 1.
        weights: how often each cluster counts, (k,); None for once.
        single: the model of ordered categories as rows by themselves; None of other outcomes.
        row_labels: labels of the rows, if they have some.
        recorded: words on the numbers that stand for outcomes, in a sentence on their limits.
        beyond: notes on outcomes of a formula of which none is at its limit.
    """

    lower: np.ndarray
    upper: np.ndarray
    design: tables.Table
    codes: np.ndarray
    labels: np.ndarray
    noise: np.ndarray
    binary: bool
    weights: np.ndarray | None = None
    single: OrdinalModel | None = None
    row_labels: tables.RowLabels | None = None
    recorded: str = ""
    beyond: tuple[str, ...] = ()

    @property
    def scaleless(self) -> str:
        """Outcomes that do not tell the scale behind them, in words; empty of others."""
        return "ordered categories" if self.single else "outcomes of 0 and 1" if self.binary else ""

    @property
    def row_weights(self) -> np.ndarray:
        """The weight of the cluster of each row, (n,), and 0 of rows without an outcome."""
        weights = 1.0 if self.weights is None else self.weights[self.codes]
        return np.where(self.missing, 0.0, weights)

    @property
    def observations(self) -> Observations:
        """The rows, one outcome each."""
        lower, upper = (as_float_array(side[:, None]) for side in (self.lower, self.upper))
        weights = None if self.weights is None else as_float_array(self.weights[self.codes])
        return Observations(lower, upper, weights=weights, index=self.row_labels)

    def levels_of(self, index: np.ndarray) -> np.ndarray | None:
        """Codes of the ordered categories of rows, -1 where there is none; None if none is."""
        if self.single is None:
            return None
        return np.where(index >= 0, self.single.rows.codes[index, 0], -1)

    @property
    def exact(self) -> np.ndarray:
        return self.lower == self.upper

    @property
    def missing(self) -> np.ndarray:
        return np.isneginf(self.lower) & np.isposinf(self.upper)


def inputs_of(
    columns: tuple[Any, ...], data: Any, binary: bool, weights: Any = None
) -> ClusterInputs:
    """The arguments of `fit_clusters` that describe the rows, checked."""
    words = "outcome", "design", "cluster", "censored_low", "censored_high", "noise", "weights"
    rows = dict(zip(words, (*columns, weights)))
    if not isinstance(binary, bool | np.bool_):
        raise TypeError(f"{WHAT}: binary must be True or False, got {binary!r:.60}.")
    data, *rest = tables.in_one_order(WHAT, data=data, **rows)
    if declared := tables.ordered_outcome(rest[0], rest[1], data):
        name, outcome, rest[1] = declared
        rest[0] = Ordinal(outcome, name=name)
    columns = tuple(rest)
    ordered = isinstance(columns[0], Ordinal)
    if not ordered and not binary:
        tables.check_outcome(columns[0], columns[1], WHAT, data)
    outcome, design = tables.by_formula(None if ordered else columns[0], columns[1], data, WHAT)
    index = tables.labels_of((data, *columns))
    outcome = columns[0] if ordered else outcome
    cluster, noise, weights = (tables.column_or(columns[k], data, WHAT) for k in (2, 5, 6))
    low, high = (tables.bounds_or(x, columns[0], data, WHAT) for x in columns[3:5])
    if design is None or cluster is None:
        lacks = 'cluster, a label of each row or the name of its column, such as cluster="patient"'
        if design is None:
            lacks = 'a design, or a formula as the outcome, such as "y ~ week"'
        raise ValueError(f"{WHAT}: needs {lacks}.")
    table = as_columns(design, WHAT)
    n, cluster = len(table.values) if table.values.ndim else 0, np.asanyarray(cluster)
    if table.values.ndim != 2:
        cure = ONE_COLUMN.format("design")
        if cluster.ndim == 2:
            cure = "It and cluster are exchanged: the order is (outcome, design, cluster)."
        got = table.values.shape
        raise ValueError(f"{WHAT}: design must have shape (n, p), got {got}. {cure}")
    if len(wrong := np.argwhere(~np.isfinite(table.values))):
        raise ValueError(
            f"{WHAT}: design holds NaN or infinity, first in row {wrong[0, 0]}, column "
            f"{wrong[0, 1]}. {DROPPED}"
        )
    if cluster.shape != (n,):
        raise ValueError(f"{WHAT}: {ONE_LABEL.format(n, cluster.shape)}")
    refuse_missing_labels(cluster, f"{WHAT}: cluster")
    kinds, first, codes = np.unique(cluster, return_index=True, return_inverse=True)
    if len(kinds) == n > 1 and kinds.dtype.kind == "f" and np.any(kinds % 1):
        raise ValueError(
            f"{WHAT}: cluster must have one label for all rows of a cluster, got {n} numbers that "
            f"all differ, such as {kinds[0]:g}. The order is (outcome, design, cluster)."
        )
    order = np.argsort(first)  # in which they come
    rank = np.empty(len(kinds), int)
    rank[order] = np.arange(len(kinds))
    codes = rank[codes.ravel()]
    counts = None if weights is None else weights_of(weights, codes)
    single, recorded, beyond = None, "", tuple[str, ...]()
    if ordered:
        each = None if counts is None else counts[codes]
        if binary or (low, high) != (None, None):
            raise ValueError(f"{WHAT}: ordered categories are neither binary nor censored.")
        if outcome.codes.shape != (n,):
            got = outcome.codes.shape
            raise ValueError(f"{WHAT}: outcome must have {n} categories, got {got}.")
        # Their model as rows by themselves has cuts and starts.
        single = OrdinalModel.of(
            Observations.of([outcome], each), [design], "diagonal", WHAT, method=Automatic(),
            key=None, each=True,
        )  # fmt: skip
        sides = single.rows.observations.lower, single.rows.observations.upper
        lower, upper = (np.asarray(side)[:, 0] for side in sides)
    else:
        lower, upper, recorded, beyond = ends_of(outcome, (low, high), binary, n)
        beyond = beyond if tables.made_by(columns[0], data) else ()
    variances = tables.each_row(noise, n, f"{WHAT}: noise")
    refuse_negative(variances, "noise")
    return ClusterInputs(
        lower, upper, table, codes, kinds[order], variances, binary, counts, single, index,
        recorded, beyond,
    )  # fmt: skip


def ends_of(
    outcome: Any, limits: tuple[Any, Any], binary: bool, n: int
) -> tuple[np.ndarray, np.ndarray, str, tuple[str, ...]]:
    """Limits (n,) of each outcome, equal where it is exact, infinite on both sides where it is
    missing; words on the numbers that stand for outcomes, and notes on them."""
    if isinstance(outcome, Observations):
        raise TypeError(
            f"{WHAT}: outcome is Observations: give the ends of their intervals, "
            "np.hstack([rows.lower, rows.upper])."
        )
    values = np.asarray(outcome) if np.ndim(outcome) == 2 else None
    if values is None:
        values = tables.numbers(outcome, f"{WHAT}: outcome", missing=True)[:, None]
    if values.shape not in ((n, 1), (n, 2)):
        raise ValueError(
            f"{WHAT}: outcome must have shape ({n},), or ({n}, 2) for the ends of intervals, got "
            f"{values.shape[:1] if values.shape[1] == 1 else values.shape}."
        )
    values = np.asarray(values, float)
    missing = np.isnan(values).any(axis=1)
    lower, upper = (np.where(missing, end, values[:, k]) for k, end in ((0, -np.inf), (-1, np.inf)))
    wrong = np.flatnonzero((lower > upper) | ((lower == upper) & np.isinf(lower)))
    if len(wrong):
        raise ValueError(
            f"{WHAT}: each outcome must be finite, or its lower end below the upper one; row "
            f"{wrong[0]} has {lower[wrong[0]]} and {upper[wrong[0]]}."
        )
    if binary:
        if values.shape[1] > 1 or limits != (None, None):
            raise ValueError(f"{WHAT}: binary outcomes are one column without bounds of censoring.")
        wrong = np.flatnonzero(~missing & ~np.isin(lower, (0.0, 1.0)))
        if len(wrong):
            kinds = np.unique(lower[~missing])
            cure = f" Pass outcome == {kinds[1]:g}." if len(kinds) == 2 else ""
            raise ValueError(
                f"{WHAT}: a binary outcome must be 0 or 1, got {lower[wrong[0]]:g} in row "
                f"{wrong[0]}.{cure}"
            )
        one = lower == 1.0  # where the latent outcome is positive
        return np.where(~missing & one, 0.0, -np.inf), np.where(missing | one, np.inf, 0.0), "", ()
    low, high = (
        tables.each_row(limit, n, f"{WHAT}: censored_{word}", end)
        for limit, word, end in zip(limits, ("low", "high"), (-np.inf, np.inf))
    )
    notes = beyond_alone(lower, upper, (low, high))
    return *censored_ends(lower, upper, low, high, WHAT), recorded_from(lower, upper), notes


def refuse_negative(values: np.ndarray, name: str) -> None:
    """Raise ValueError for numbers of rows that are negative or not finite."""
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(wrong):
        got = f"{values[wrong[0]]:g} in row {wrong[0]}"
        raise ValueError(f"{WHAT}: {name} must be finite and not negative, got {got}.")


def weights_of(weights: Any, codes: np.ndarray) -> np.ndarray:
    """Weights of the clusters, (k,), from those of their rows."""
    values = tables.each_row(weights, len(codes), f"{WHAT}: weights")
    refuse_negative(values, "weights")
    counts = np.zeros(codes.max() + 1)
    counts[codes] = values
    wrong = np.flatnonzero(counts[codes] != values)
    if len(wrong):
        raise ValueError(
            f"{WHAT}: weights are of clusters, and must be the same in all rows of one; those of "
            f"the cluster of row {wrong[0]} differ."
        )
    return counts


def shapes_of(
    inputs: ClusterInputs, columns: list[Any], design: np.ndarray, ladder: Sequence[int]
) -> tuple[tuple[ClusterRows, ...], np.ndarray, LongTable]:
    """The clusters by their numbers of entries, equal ones once, how often each counts, and the
    rows as the user has them.

    Clusters of a shape are filled up to one of few lengths by empty ones that count 0 times.
    """
    count, limited = len(inputs.labels), ~inputs.exact
    some = np.flatnonzero(~inputs.missing)
    codes, groups = inputs.codes[some], limited[some].astype(int)
    number = order_within(codes, groups)
    totals = [np.bincount(codes[groups == g], minlength=count) for g in (0, 1)]
    dense = ladder is DENSE_SIZES
    exact_sizes = (0, *EXACT_SIZES[2:]) if dense else EXACT_SIZES
    sizes = np.stack([filled(totals[0], exact_sizes), filled(totals[1], ladder)], axis=1)
    each = np.ones(count) if inputs.weights is None else inputs.weights
    informative = (totals[0] + totals[1] > 0) & (each > 0)
    kinds, which = np.unique(sizes[informative], axis=0, return_inverse=True)
    present = np.bincount(which.ravel())
    # Those of one accuracy: integrals by quadrature stay such ones.
    apart = np.searchsorted((MOST_EXACT, MOST_NESTED), kinds[:, 1]) * dense
    joined = np.empty_like(kinds)
    for part in (apart == value for value in np.unique(apart)):
        joined[part] = joined_shapes(kinds[part], present[part], nodes if dense else masses)
    kinds, which = np.unique(joined[which.ravel()], axis=0, return_inverse=True)
    shapes, weights, members, numbers, indices, begin = [], [], [], [], [], 0
    for k, (e, c) in enumerate(kinds):
        clusters = np.flatnonzero(informative)[which.ravel() == k]
        at = np.full(count, -1)
        at[clusters] = np.arange(len(clusters))
        inside = at[codes] >= 0
        index = np.full((len(clusters) + 1, e + c), -1)  # the last one is empty
        index[at[codes[inside]], number[inside] + e * groups[inside]] = some[inside]
        whole = arrays_of(inputs, columns, design, index, e)
        table = np.concatenate([x.reshape(len(index), -1) for x in whole], axis=1)
        _, first, inverse = np.unique(table[:-1], axis=0, return_index=True, return_inverse=True)
        counts = np.bincount(inverse.ravel(), each[clusters])
        # Few lengths: samples of about one size share their programs.
        n = len(first)
        more = 0, filled_length(n) - n if dense else -n % 2 ** max(n.bit_length() - 4, 0)
        first, counts = np.pad(first, more, constant_values=-1), np.pad(counts, more)
        levels = inputs.levels_of(index[first, e:])
        shapes.append(as_rows(index[first], [x[first] for x in whole], levels))
        weights.append(counts)
        members.append(clusters)
        numbers.append(begin + inverse.ravel())
        indices.append(index[:-1])
        begin += len(first)
    shape = np.repeat(np.arange(len(kinds)), [len(x) for x in members])
    together = np.concatenate(members)
    order = np.argsort(together)  # as the labels; within a shape it is that of the rows
    labels, number = inputs.labels[together[order]], np.concatenate(numbers)[order]
    long = LongTable(None, None, labels, number, shape[order], tuple(indices))
    return tuple(shapes), np.concatenate(weights), long


def order_within(codes: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The number of each row among those of its cluster and group, (n,)."""
    order = np.lexsort((np.arange(len(codes)), groups, codes))
    keys = codes[order] * 4 + groups[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    number = np.empty(len(codes), int)
    lengths = np.diff(np.append(starts, len(codes)))
    number[order] = np.arange(len(codes)) - np.repeat(starts, lengths)
    return number


def filled(count: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """The least of some sizes that is as large as each count."""
    ladder = np.array([*sizes, *(2 ** np.arange(int(sizes[-1]).bit_length(), 30))])
    return ladder[np.searchsorted(ladder, count)]


def masses(exact: int, limited: int) -> float:
    """Numbers that a cluster of effects and variances is computed from, about."""
    return exact + limited * (NODES if limited > 1 else 1)


def nodes(exact: int, limited: int) -> float:
    """Likewise of one under any covariance."""
    most = nested.NODES.get(limited)
    return exact**3 + (limited * DRAWS if most is None else most ** max(limited - 1, 0))


def joined_shapes(
    kinds: np.ndarray, numbers: np.ndarray, cost: Callable[[int, int], float]
) -> np.ndarray:
    """Sizes (s, 2) to which the clusters of each shape are filled up, so that there are few
    programs: shapes are joined as long as the costs of all clusters grow little.

    Args:
        kinds: numbers of exact and limited entries, (s, 2).
        numbers: of clusters of each, (s,).
        cost: of a cluster with so many.
    """
    groups = [(kind, float(number), [k]) for k, (kind, number) in enumerate(zip(kinds, numbers))]
    costs = [number * cost(*kind) for kind, number, _ in groups]
    most = max(GROWTH * sum(costs), FEW_MASSES)
    while len(groups) > 1:
        unions = {}
        for i, j in itertools.combinations(range(len(groups)), 2):
            kind, number = np.maximum(groups[i][0], groups[j][0]), groups[i][1] + groups[j][1]
            unions[number * cost(*kind) - costs[i] - costs[j], i, j] = kind, number
        (more, i, j), (kind, number) = min(unions.items(), key=lambda item: item[0])
        if sum(costs) + more > most:
            break
        rest = [k for k in range(len(groups)) if k not in (i, j)]
        groups = [*(groups[k] for k in rest), (kind, number, groups[i][2] + groups[j][2])]
        costs = [*(costs[k] for k in rest), number * cost(*kind)]
    result = np.empty_like(kinds)
    for kind, _, members in groups:
        result[members] = kind
    return result


def arrays_of(
    inputs: ClusterInputs, columns: list[Any], design: np.ndarray, index: np.ndarray, e: int
) -> list[np.ndarray]:
    """Arrays that the likelihood reads of the rows of clusters, (k, m, ...) each, filled up."""
    # What is filled up has the columns of another row of its cluster, as of a Kinship.
    at, seen = np.where(index >= 0, index, index.max(axis=1, keepdims=True)), index >= 0
    values = np.where(seen, inputs.lower[at], 0.0)[:, :e]
    lower = np.where(seen, inputs.lower[at], -np.inf)[:, e:]
    upper = np.where(seen, inputs.upper[at], np.inf)[:, e:]
    covariates = np.where(seen[..., None], design[at], 0.0)
    read = [np.asarray(column(at), float) for column in columns]
    noise = np.where(seen, inputs.noise[at], 0.0)
    return [seen.astype(float), values, lower, upper, covariates, noise, *read]


def as_rows(index: np.ndarray, arrays: list[np.ndarray], codes: np.ndarray | None) -> ClusterRows:
    """The clusters of arrays by `arrays_of`, and of the codes of ordered categories."""
    _, values, lower, upper, design, noise, *columns = map(as_float_array, arrays)
    shift = as_float_array(np.zeros(index.shape))
    return ClusterRows(
        jnp.asarray(index), values, lower, upper, design, tuple(columns), noise, shift,
        None if codes is None else jnp.asarray(codes),
    )  # fmt: skip
