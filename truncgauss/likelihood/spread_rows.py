"""Observations that are spread over processes: the rows of one of these, and the mark of all."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution import checkpoint, parallel, pooling
from truncgauss.execution.digests import source_digest
from truncgauss.likelihood.observations import Observations

T = TypeVar("T")


@contextlib.contextmanager
def fitted_together(
    what: str,
    given: Any,
    start: Any,
    asked: Any,
    read: Callable[[pooling.Share | None], T],
    columns: Callable[[T], tuple[Any, ...]],
) -> Iterator[T]:
    """A context in which a fit of rows runs, with what it reads of them: of all, or, if these are
    spread over processes, of those that lie here, with sums over rows by `pooling`.

    Where results are kept, in a checkpoint, the work is known by its rows and by what is asked, so
    that it goes on with any number of processes.

    Args:
        what: which fit, for messages.
        given: a pytree whose arrays tell whether rows are spread.
        start: what all processes must give alike.
        asked: settings that the likelihood depends on; texts, numbers and pytrees.
        read: from the own share, or None for all rows, what is to be fitted, checked; it may raise
            ValueError, which is raised on all processes then, and exchanges nothing.
        columns: from that the observations and arrays beside them, by which the rows are known.

    Raises:
        ValueError: for rows or starts that differ between processes, or what `read` raises.
    """
    share = pooling.share_of(what, given)
    if share is None:
        found = read(None)
        if jax.process_count() > 1:
            parallel.agreed(f"{what}: rows, covariates and start", (columns(found), start))
        elif checkpoint.RECORD.get() is not None:
            rows, *beside = columns(found)
            share = pooling.Share(0, rows.num_rows, rows.num_rows)
            with pooling.marked(mark_of_work(rows, share, asked, *beside)):
                yield found
            return
        yield found
        return
    parallel.agreed(f"{what}: the start", start)
    with pooling.pool(share):
        with pooling.checked_together():
            found = read(share)
        rows, *beside = columns(found)
        with pooling.marked(mark_of_work(rows, share, asked, *beside)):
            yield found


def mark_of_work(rows: Observations, share: pooling.Share, asked: Any, *columns: Any) -> jax.Array:
    """The mark of all rows, of which these are here, with that of what is asked of them, (4,)."""
    of_asked = np.frombuffer(bytes.fromhex(source_digest(asked)), np.uint32)
    return jnp.concatenate([mark_of_rows(rows, share, *columns), jnp.asarray(of_asked)])


def own_rows(observations: Observations, share: pooling.Share | None) -> Observations:
    """The rows that lie on this process, with their patterns and the keys that they have among all
    rows; an integral that rows of several processes share is computed by each of these. All rows
    if no share is given."""
    if share is None:
        return observations
    region, noise = observations.region, observations.noise
    if region is not None and region.batch_shape:
        region = jax.tree.map(lambda leaf: jnp.asarray(share.own(leaf)), region)
    rows = Observations(
        jnp.asarray(share.own(observations.lower)),
        jnp.asarray(share.own(observations.upper)),
        region,
        share.own(noise) if noise is not None and noise.ndim == 3 else noise,
        share.own(observations.weights),
        observations.limits_on,
        names=observations.names,
    )
    return numbered(rows, share)


def numbered(rows: Observations, share: pooling.Share) -> Observations:
    """Rows of this process with the random keys that they have among all rows."""
    for name in ("patterns", "region_patterns"):
        found = getattr(rows, name)
        object.__setattr__(rows, name, tuple(part.numbered(share.begin) for part in found))
    return rows


def mark_of_rows(rows: Observations, share: pooling.Share, *columns: Any) -> jax.Array:
    """The mark of all rows, of which these are here, and of columns beside them; see
    `pooling.mark_of`."""
    n, d = rows.lower.shape
    found = [rows.lower, rows.upper, *columns]
    if rows.noise is not None:
        found.append(jnp.broadcast_to(rows.noise, (n, d, d)))
    if rows.region is not None and rows.region.batch_shape:
        found += jax.tree.leaves(rows.region)
    if rows.weights is None:
        return pooling.mark_of(found, None, share)
    weights = np.asarray(rows.weights)
    return pooling.mark_of([*found, weights], weights > 0, share)
