"""Terms of a covariance with parameters, which add up to that of the rows of a cluster."""

import dataclasses
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import tables
from truncgauss.arrays.pytrees import frozen_pytree, static_field
from truncgauss.gaussian.covariances import CovarianceMatrix


class Parts(NamedTuple):
    """A covariance matrix A A^T + diag(v) + M of the m rows of a cluster; None for 0.

    Attributes:
        factor: A, (m, r), the loadings of r independent standard normal effects.
        variances: v, (m,).
        matrix: M, (m, m).
    """

    factor: Any = None
    variances: Any = None
    matrix: Any = None

    def __add__(self, other: "Parts") -> "Parts":  # type: ignore[override]
        pairs = list(zip(self, other))
        merged = [b if a is None else a if b is None else a + b for a, b in pairs]
        if pairs[0][0] is not None and pairs[0][1] is not None:
            merged[0] = jnp.concatenate(pairs[0], axis=-1)
        return Parts(*merged)

    @property
    def dense(self) -> jax.Array:
        """The covariance matrix, (m, m)."""
        parts = [] if self.factor is None else [self.factor @ self.factor.T]
        parts += [] if self.variances is None else [jnp.diag(self.variances)]
        parts += [] if self.matrix is None else [self.matrix]
        return sum(parts[1:], parts[0])


class LongRows(NamedTuple):
    """The rows of a long table, for terms that read their columns.

    Attributes:
        data: the table, or None.
        position: the number of each row within its cluster, (n,).
        row_labels: labels of the rows, if they have some.
    """

    data: Any
    position: np.ndarray
    row_labels: tables.RowLabels | None = None

    def column(self, values: Any, what: str) -> np.ndarray:
        """A column as it is, by its name or its values, (n, ...)."""
        values = tables.in_order(values, self.row_labels, what, "the rows")
        column = np.asanyarray(tables.column_or(values, self.data, what))
        if np.ma.is_masked(column):
            lost = np.sum(np.ma.getmaskarray(column))
            raise ValueError(f"{what}: {lost} value(s) are masked. Leave out these rows.")
        column = np.asarray(column)
        if column.ndim == 0 or len(column) != len(self.position):
            raise ValueError(
                f"{what}: needs one value for each of {len(self.position)} rows, or the name of a "
                f"column of the data, got {values!r}."
            )
        return column

    def numbers(self, values: Any, what: str) -> np.ndarray:
        """A column of numbers, none missing, (n,)."""
        return tables.numbers(self.column(values, what), what)

    def spread(self, values: np.ndarray, what: str) -> np.ndarray:
        """Times or positions, refused where all are the same."""
        if len(values) > 1 and not np.ptp(values, axis=0).any():
            raise ValueError(
                f"{what} is {values[0]} in all {len(values)} rows, and correlations fall with the "
                "distance between rows. Give the value of each row; rows that vary together are "
                "tg.RandomEffects()."
            )
        return values

    def codes(self, values: Any, what: str) -> tuple[np.ndarray, tuple[str, ...]]:
        """A column of labels as whole numbers (n,), and the labels; by default the number of a row
        within its cluster."""
        labels = self.position if values is None else self.column(values, what)
        kinds, codes = np.unique(labels, return_inverse=True)
        return codes.ravel(), tuple(map(str, kinds))


@frozen_pytree
class CovarianceTerm:
    """A term of the covariance of a cluster's rows, for `fit_clusters`.

    A term has free coordinates, a vector x in which steps may go anywhere, and maps these and the
    columns of one cluster to `Parts`. By default the first is sigma, which multiplies the rest of
    the term and may have either sign, so that a variance of 0 is no edge of the coordinates; the
    others are those of parameters of shape. A new term defines `prepared`, `parts` and, if it has
    parameters of shape, `shape_names`, `shape`, `shape_coordinates`.

    Attributes:
        sigma: the standard deviation where it is known; None to estimate it.
        name: to call the term by, if there are several of its kind.
        labels: of the columns that the term reads, once they are read.
    """

    sigma: float | None = static_field(default=None, kw_only=True)
    name: str | None = static_field(default=None, kw_only=True)
    labels: tuple[str, ...] = static_field(default=(), kw_only=True)

    title = "term"
    independent = False  # whether these are errors of each row by itself
    shared = False  # whether they are effects of a cluster, of which one cluster has one draw
    of_either_sign = False  # whether starts differ in the signs of its coordinates
    shape_names: ClassVar[tuple[str, ...]] = ()
    squares: ClassVar[
        tuple[int, ...]
    ] = ()  # numbers of the estimates that `signed` has as their roots

    def prepared(self, rows: LongRows) -> tuple[Self, Any]:
        """The term without arrays, and `columns`, a function of row numbers (k, m) that returns
        what `parts` needs of these rows, (k, m, ...)."""
        return self, lambda index: np.zeros((*index.shape, 0))

    def parts(self, x: jax.Array, columns: jax.Array) -> Parts:
        """The covariance of one cluster.

        Args:
            x: free coordinates, (q,).
            columns: of the cluster's rows, (m, ...).
        """
        raise NotImplementedError(f"{type(self).__name__} defines no parts(x, columns).")

    # ---------------------------------------------------------------- parameters

    def scaled(self, unit: float) -> Self:
        """The term of outcomes divided by a unit."""
        sigma = None if self.sigma is None else float(self.sigma) / unit
        return dataclasses.replace(self, sigma=sigma)

    def split(self, x: jax.Array) -> tuple[Any, jax.Array]:
        """Sigma and the coordinates of the shape."""
        return (x[0], x[1:]) if self.sigma is None else (jnp.asarray(self.sigma), x)

    @property
    def edges(self) -> int:
        """The number of estimated variances that may be 0."""
        return len(self.sigma_names)

    @property
    def lost_at_zero(self) -> bool:
        """Whether there are parameters which mean nothing where the term's variance is 0."""
        return bool(self.shape_names) and self.sigma is None

    @property
    def label(self) -> str:
        return self.name or self.title

    @property
    def sigma_names(self) -> tuple[str, ...]:
        """Names of the standard deviations that are estimated."""
        return (f"sigma[{self.label}]",) if self.sigma is None else ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the estimates, standard deviations first."""
        suffix = "" if self.name is None else f"[{self.name}]"
        return (*self.sigma_names, *(f"{name}{suffix}" for name in self.shape_names))

    @property
    def in_units(self) -> np.ndarray:
        """Whether each estimate is in units of the outcome, (p,)."""
        return np.arange(len(self.names)) < len(self.sigma_names)

    def start(self, variance: float) -> np.ndarray:
        """Free coordinates to begin with, for a term of such a variance."""
        first = [variance**0.5] if self.sigma is None else []
        return np.array([*first, *self.shape_start])

    @property
    def shape_start(self) -> tuple[float, ...]:
        return (0.0,) * len(self.shape_names)

    def shape(self, rest: jax.Array) -> jax.Array:
        """Parameters of shape by their coordinates."""
        return rest

    def shape_coordinates(self, shape: jax.Array) -> jax.Array:
        """The inverse of `shape`."""
        return shape

    def estimates(self, x: jax.Array) -> jax.Array:
        """The numbers that `names` calls, (p,)."""
        count = len(self.sigma_names)
        return jnp.concatenate([x[:count], self.shape(x[count:])])

    def signed(self, x: jax.Array) -> jax.Array:
        """The estimates, squares as roots that may have either sign."""
        return self.estimates(x)

    def free(self, estimates: jax.Array) -> jax.Array:
        """The free coordinates of estimates, (q,)."""
        count = len(self.sigma_names)
        return jnp.concatenate([estimates[:count], self.shape_coordinates(estimates[count:])])

    def signs(self, x: np.ndarray) -> np.ndarray:
        """1 and -1, (q,), that make sigma positive and leave the covariance as it is."""
        signs = np.ones(len(x))
        if self.sigma is None and x[0] < 0:
            signs[0] = -1.0
        return signs

    def at_edge(self, x: np.ndarray, least: float) -> tuple[str, ...]:
        """Names of the estimates that are at an edge: standard deviations below `least`."""
        return self.sigma_names if self.sigma is None and abs(x[0]) < least else ()

    def endless(self, x: np.ndarray) -> str | None:
        """Why the likelihood has no maximum where its coordinates have come to, in words."""
        return None


# ---------------------------------------------------------------- several deviations


def lower_factor(x: jax.Array, r: int) -> jax.Array:
    """L, (r, r), with the rows of its lower triangle from a vector."""
    return jnp.zeros((r, r)).at[np.tril_indices(r)].set(x)


def deviations_and_correlations(factor: jax.Array) -> jax.Array:
    """Standard deviations and correlations, in rows of the lower triangle, of L L^T."""
    r = len(factor)
    if r == 1:
        return factor[0]
    matrix, (i, j) = factor @ factor.T, np.tril_indices(r, -1)
    deviations = jnp.sqrt(jnp.diagonal(matrix))
    return jnp.concatenate([deviations, matrix[i, j] / (deviations[i] * deviations[j])])


def factor_of(estimates: jax.Array, r: int) -> jax.Array:
    """The lower triangle of L, in rows, from standard deviations and correlations."""
    i, j = np.tril_indices(r, -1)
    matrix = jnp.eye(r).at[i, j].set(estimates[r:]).at[j, i].set(estimates[r:])
    return (estimates[:r, None] * CovarianceMatrix(matrix).root)[np.tril_indices(r)]


def edges_of_factor(
    factor: np.ndarray, effects: np.ndarray, names: tuple[str, ...], least: float
) -> tuple[str, ...]:
    """Names of the deviations that are below `least`, and of the correlations of an effect that the
    ones before it determine.

    Args:
        factor: L of the covariance L L^T of the coordinates, (r, r).
        effects: A L for effects that are A times these, (r, r).
        names: of the deviations and correlations of the effects.
        least: see above.
    """
    r = len(factor)
    sizes = np.linalg.norm(factor, axis=1)
    zero = np.linalg.norm(effects, axis=1) < least
    determined = (np.abs(np.diagonal(factor)) < least * sizes) & (np.arange(r) > 0)
    absent = zero | (sizes < least)
    i, j = np.tril_indices(r, -1)
    edges = np.concatenate([zero, (determined | absent)[i] | absent[j]])
    return tuple(name for name, at in zip(names, edges[edges.size - len(names) :]) if at)


def signs_of_columns(x: np.ndarray, r: int) -> np.ndarray:
    """1 and -1 for each entry of a lower triangle, that make its diagonal positive."""
    i, j = np.tril_indices(r)
    diagonal = x[i == j]
    return np.where(diagonal < 0, -1.0, 1.0)[j]


def pairs_of(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the correlations, in rows of the lower triangle."""
    pairs = zip(*np.tril_indices(len(labels), -1))
    return tuple(f"correlation[{labels[i]}, {labels[j]}]" for i, j in pairs)
