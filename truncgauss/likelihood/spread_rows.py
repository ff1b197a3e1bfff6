"""Observations that are spread over processes: those of one of these, and facts of all."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution import parallel, row_sums
from truncgauss.execution.row_sums import RowSums
from truncgauss.gaussian.problem import Estimate
from truncgauss.likelihood.observations import Observations

T = TypeVar("T")


@contextlib.contextmanager
def rows_of_fit(
    what: str,
    inputs: Any,
    start: Any,
    read: Callable[[RowSums], T],
    columns: Callable[[T], tuple[Any, ...]],
) -> Iterator[tuple[RowSums, T]]:
    """A context in which a fit of rows runs, with its sums over rows and what it reads of those on
    this process: all of them, unless they are spread over processes.

    Args:
        what: which fit, for messages.
        inputs: a pytree whose arrays tell whether rows are spread.
        start: what all processes must give alike.
        read: from the sums what is to be fitted, checked; it may raise ValueError, which is raised
            on all processes then, and exchanges nothing.
        columns: from that the observations and arrays beside them, which processes that have all
            rows must give alike.

    Raises:
        ValueError: for rows or starts that differ between processes, or what `read` raises.
    """
    sums = row_sums.of_spread(what, inputs)
    if sums.share is not None:
        parallel.agreed(f"{what}: the start", start)
    with sums.working():
        with sums.checked():
            local = read(sums)
        if sums.share is None and jax.process_count() > 1:
            parallel.agreed(f"{what}: rows, covariates and start", (columns(local), start))
        yield sums, local


def local_rows(observations: Observations, sums: RowSums) -> Observations:
    """The rows that lie on this process, with their patterns and the keys that they have among all
    rows; an integral that rows of several processes share is computed by each of these."""
    if sums.share is None:
        return observations
    region, noise = observations.region, observations.noise
    if region is not None and region.batch_shape:
        region = jax.tree.map(lambda leaf: jnp.asarray(sums.local(leaf)), region)
    rows = Observations(
        jnp.asarray(sums.local(observations.lower)),
        jnp.asarray(sums.local(observations.upper)),
        region,
        sums.local(noise) if noise is not None and noise.ndim == 3 else noise,
        sums.local(observations.weights),
        observations.limits_on,
        names=observations.names,
    )
    return numbered_among_all(rows, sums)


def numbered_among_all(rows: Observations, sums: RowSums) -> Observations:
    """Rows of this process with the random keys that they have among all rows."""
    if sums.share is None:
        return rows
    for name in ("patterns", "region_patterns"):
        patterns = getattr(rows, name)
        object.__setattr__(rows, name, tuple(part.numbered(sums.begin) for part in patterns))
    return rows


def over_processes(
    function: Callable[[Observations], Estimate], observations: Observations, sums: RowSums
) -> Estimate:
    """A likelihood of each row, (n,) and spread as the rows are, computed where they lie.

    Args:
        function: of local rows, their likelihoods.
        observations: all rows.
        sums: over them.
    """
    if sums.share is None:
        return function(observations)
    with sums.working():
        with sums.checked():
            rows = local_rows(observations, sums)
        result = function(rows)
    return Estimate(*(sums.share.spread(leaf, observations.lower) for leaf in result))


class Summary(NamedTuple):
    """Facts of all rows of a fit, exchanged once between the processes that hold them.

    Attributes:
        num_rows: the number of rows.
        size: their total weight.
        counted: the total weight of those that say something.
        num_exact: how many rows of positive weight know each outcome exactly, (d,).
        limited: how many entries of a row are limited, neither exact nor missing, at most.
        num_triple: how many rows have three limited entries.
        exact: whether every entry is known exactly.
        noise_definite: whether there is noise, in every direction of every row.
        equal_designs: which outcomes have the same covariates, (d, d); all if there are none.
    """

    num_rows: int
    size: float
    counted: float
    num_exact: np.ndarray
    limited: int
    num_triple: int
    exact: bool
    noise_definite: bool
    equal_designs: np.ndarray


def summary_of(
    rows: Observations, sums: RowSums, designs: tuple[np.ndarray, ...] | None = None
) -> Summary:
    """The summary of all rows, of which these are local.

    Args:
        rows: the local rows.
        sums: over all rows.
        designs: covariates of each outcome, (n, p_j), or None.
    """
    lower, upper = np.asarray(rows.lower), np.asarray(rows.upper)
    n, d = lower.shape
    exact = lower == upper
    limited = np.sum((lower < upper) & ~(np.isinf(lower) & np.isinf(upper)), axis=1)
    weights = rows.row_weights
    faint = rows.noise is None or not np.linalg.eigvalsh(np.asarray(rows.noise)).min() > 0
    pairs = itertools.product(designs or (None,) * d, repeat=2)
    apart = [one is not other and not np.array_equal(one, other) for one, other in pairs]
    totals = (
        np.array([n, np.sum(weights), rows.weight]),
        np.sum(exact & (weights > 0)[:, None], axis=0),
        np.bincount(limited, minlength=max(d, 3) + 1),  # rows by how many entries are limited
        np.array([np.sum(~exact), faint]),
        np.reshape(apart, (d, d)).astype(int),
    )
    sizes, num_exact, by_limited, (inexact, num_faint), apart_on = sums.sum(totals)
    return Summary(
        num_rows=int(sizes[0]),
        size=float(sizes[1]),
        counted=float(sizes[2]),
        num_exact=num_exact,
        limited=int(np.flatnonzero(by_limited)[-1]),
        num_triple=int(by_limited[3]),
        exact=bool(inexact == 0),
        noise_definite=bool(num_faint == 0),
        equal_designs=apart_on == 0,
    )
