"""A covariance matrix of few factors in very many dimensions."""

import jax
import jax.numpy as jnp

import truncgauss as tg

from .clock import clock_of
from .curves import cases_table, columns, measured_each
from .problems import answered


def low_rank(config, part, peers):
    """A few factors in very many dimensions, disguised: a product of one-factor problems.

    Loadings in disjoint groups, turned by a rotation, which leaves the covariance as it is.
    """
    case, clock = config.low_rank, clock_of(config)
    d, r = case.dimension, case.rank
    keys = jax.random.split(jax.random.key(config.seed), 2)
    loadings = jax.random.uniform(keys[0], (d,), minval=0.2, maxval=0.8)
    group = jnp.arange(d) % r
    noise = 1 - loadings**2
    truth = 0.0
    for j in range(r):
        mine = group == j
        covariance = tg.LowRank(loadings[mine][:, None], noise[mine])
        region = tg.Box(jnp.full(mine.sum(), case.low), jnp.inf)
        truth += float(tg.log_probability(
            jnp.zeros(region.dimension), covariance, region, method=tg.Exact()
        ).log_prob)  # fmt: skip
    turned = jnp.linalg.qr(jax.random.normal(keys[1], (r, r)))[0]
    factor = (loadings[:, None] * (group[:, None] == jnp.arange(r))) @ turned
    problem = jnp.zeros(d), tg.LowRank(factor, noise), tg.Box(jnp.full(d, case.low), jnp.inf)
    rows, refused = [], ""
    for num_points in case.num_points:
        method = tg.Separation(num_points, case.num_replicates)
        refused = too_large(problem, method, keys[0], case.most_bytes)
        if refused:
            break
        rows += measured_each(problem, truth, [method], config, clock)
    curve = {"truth": truth, "truth_stderr": 0.0, "refused": refused}
    return {f"rank {r}, d = {d:,}": curve | ({"Separation": columns(rows)} if rows else {})}


def too_large(problem, method, key, most_bytes):
    """Why a call should not be attempted, found without running it; empty if it should."""
    d = problem[0].shape[-1]
    lowered = answered.lower(*problem, method, key)
    if f"tensor<{d}x{d}x" in lowered.as_text():
        return f"the method forms a matrix of {d} x {d} numbers"
    memory = lowered.compile().memory_analysis()
    if memory and memory.temp_size_in_bytes > most_bytes:
        return f"it takes {memory.temp_size_in_bytes / 1e9:.3g} GB"
    return ""


def low_rank_table(found):
    refused = [f"not attempted: {curve['refused']}" for curve in found.values() if curve["refused"]]
    return cases_table(found) + refused
