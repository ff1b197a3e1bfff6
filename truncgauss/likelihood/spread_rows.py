"""Observations that are spread over processes: the rows of one of these, and the mark of all."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import pooling
from truncgauss.likelihood.observations import Observations


def own_rows(observations: Observations, share: pooling.Share) -> Observations:
    """The rows that lie on this process, with their patterns and the keys that they have among all
    rows; an integral that rows of several processes share is computed by each of these."""
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
