"""Simulation-based calibration of the posteriors of a truncated normal model.

Parameters are drawn from the prior and data from the truncated normal distribution; if a posterior
is right, the rank of each true value among draws of its posterior is uniform [1]. Ranks of the log
likelihood also detect a posterior that ignores its data [2]. The bands are simultaneous: they hold
the whole empirical distribution function with the stated probability [3]. As a positive control, a
model without the truncation is run on the same data; its ranks must leave the bands.

References:
    [1] S. Talts et al., "Validating Bayesian inference algorithms with simulation-based
    calibration", arXiv:1804.06788 (2018).
    [2] M. Modrák et al., "Simulation-based calibration checking for Bayesian computation: the
    choice of test quantities shapes sensitivity", Bayesian Analysis (2023).
    [3] T. Säilynoja, P.-C. Bürkner and A. Vehtari, "Graphical test for discrete uniformity and its
    applications in goodness-of-fit evaluation and multiple sample comparison", Statistics and
    Computing 32 (2022).
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

import truncgauss as tg
from truncgauss import fitting

from ..nuts import MOST_R_HAT, drawn

BLOCK = 50  # simulations between two checkpoints
MISS_RATE = 1e-6  # probability of rejecting a calibrated model
QUANTITIES = ("loc", "scale", "log likelihood")


def run(config):
    """Ranks of three quantities under the truncated model and under the one without truncation."""
    low, high = (jnp.array(getattr(config.limits, side)) for side in ("low", "high"))
    truth, x = simulated(config, low, high)
    results = {
        "num_draws": config.chains.num_chains * config.chains.num_samples // config.thinning,
        "ranks": {}, "chains": {},
    }  # fmt: skip
    for name, distribution in (("truncated", tg.TruncatedNormal), ("forgetful", plain)):
        start = time.perf_counter()
        draws, diagnostics = posteriors(distribution, x, low, high, config)
        results["ranks"][name] = ranks(distribution, truth, draws, x, low, high)
        results["chains"][name] = diagnostics | {"seconds": time.perf_counter() - start}
    n, num_draws = config.num_simulations, results["num_draws"]
    results |= {
        "distance": {name: distance(r, num_draws) for name, r in results["ranks"].items()},
        "allowed": float(np.sqrt(np.log(2 * len(QUANTITIES) / MISS_RATE) / (2 * n))),
        "band": band(n, num_draws, config),
        "level": config.level,
    }
    return results | {"failed": failure(results), "summary": summary(results)}


# ---------------------------------------------------------------- the models


def plain(loc, scale, low, high):
    return dist.Normal(loc, scale).expand(low.shape)


def model(distribution, prior, low, high, x=None):
    """Unknown mean and standard deviation of numbers, each between limits of its own."""
    loc = numpyro.sample("loc", dist.Normal(prior.loc, prior.loc_scale))
    scale = numpyro.sample("scale", dist.LogNormal(np.log(prior.scale), prior.scale_spread))
    numpyro.sample("x", distribution(loc, scale, low, high).to_event(1), obs=x)


def simulated(config, low, high):
    """Parameters from the prior and data given them, one row for each simulation."""
    keys = jax.random.split(jax.random.key(config.seed), config.num_simulations)

    @jax.jit
    @jax.vmap
    def once(key):
        seeded = numpyro.handlers.seed(model, key)
        asked = tg.TruncatedNormal, config.prior, low, high
        sites = numpyro.handlers.trace(seeded).get_trace(*asked)
        return {name: sites[name]["value"] for name in ("loc", "scale", "x")}

    sites = once(keys)
    x = sites.pop("x")
    return sites, x


def posteriors(distribution, x, low, high, config):
    """Thinned draws of every posterior, (simulations, draws), and the chains' diagnostics."""
    keys = jax.random.split(jax.random.key(config.seed + 1), len(x))

    def once(key, x):
        draws, diverging, _ = drawn(
            key, model, (distribution, config.prior, low, high, x), config.chains
        )
        return draws, diverging.sum()

    compiled, name = jax.jit(jax.vmap(once)), f"simulations, {distribution.__name__}"
    blocks = [
        fitting.computed(name, compiled, keys[first : first + BLOCK], x[first : first + BLOCK])
        for first in range(0, len(x), BLOCK)
    ]
    draws, diverging = jax.tree.map(lambda *parts: np.concatenate(parts), *blocks)
    each = [chains for y in draws.values() for chains in y]
    diagnostics = {
        "divergences": int(diverging.sum()),
        "r_hat": max(float(split_gelman_rubin(chains)) for chains in each),
        "ess": min(float(effective_sample_size(chains)) for chains in each),
    }
    kept = {name: y[:, :, :: config.thinning].reshape(len(x), -1) for name, y in draws.items()}
    return kept, diagnostics


# ---------------------------------------------------------------- ranks and their bands


def ranks(distribution, truth, draws, x, low, high):
    """How many draws lie below the truth, shape (quantities, simulations)."""

    def of(theta, x):
        return distribution(theta["loc"], theta["scale"], low, high).log_prob(x).sum()

    at_truth = jax.jit(jax.vmap(of))(truth, x)
    at_draws = jax.jit(jax.vmap(jax.vmap(of, (0, None))))(draws, x)
    pairs = [(truth[name], draws[name]) for name in ("loc", "scale")] + [(at_truth, at_draws)]
    return np.stack([np.sum(np.asarray(y) < np.asarray(t)[:, None], axis=1) for t, y in pairs])


def shares(ranks, num_draws):
    """Share of ranks up to each of 0 ... num_draws, shape (..., num_draws + 1)."""
    counts = np.apply_along_axis(np.bincount, -1, ranks, minlength=num_draws + 1)
    return np.cumsum(counts, axis=-1) / ranks.shape[-1]


def uniform(num_draws):
    return np.arange(1, num_draws + 2) / (num_draws + 1)


def distance(ranks, num_draws):
    """Kolmogorov's distance of each quantity's ranks from uniform ones."""
    return np.abs(shares(ranks, num_draws) - uniform(num_draws)).max(-1)


def band(n, num_draws, config):
    """Half-width over each share, such that `level` of all uniform curves stay within.

    The band has one width in standard deviations of the share, found by simulation.
    """
    rng = np.random.default_rng(config.seed)
    drawn = rng.integers(num_draws + 1, size=(config.num_curves, n))
    spread = np.sqrt(uniform(num_draws) * (1 - uniform(num_draws)) / n)[:-1]
    gaps = np.abs(shares(drawn, num_draws) - uniform(num_draws))[:, :-1]
    width = np.quantile((gaps / spread).max(-1), config.level)
    return np.append(width * spread, 0.0)


# ---------------------------------------------------------------- what the user reads


def failure(results):
    """Why the results cannot be trusted; empty if they can."""
    chain = results["chains"]["truncated"]
    if chain["divergences"]:
        return f"{chain['divergences']} divergent transitions"
    if not chain["r_hat"] <= MOST_R_HAT:
        return f"chains of one simulation disagree, r-hat {chain['r_hat']:.3f}"
    for quantity, gap in zip(QUANTITIES, results["distance"]["truncated"], strict=True):
        if not gap <= results["allowed"]:
            return f"the ranks of {quantity} are not uniform: distance {gap:.3f}"
    if not np.max(results["distance"]["forgetful"]) > results["allowed"]:
        return "too few simulations: a model without the truncation passes too"
    return ""


def summary(results):
    n, half = results["ranks"]["truncated"].shape[-1], results["band"]
    uniform_curve = uniform(results["num_draws"])
    lines = [f"{n} simulations, {results['num_draws']} thinned draws of each posterior"]
    for name, chain in results["chains"].items():
        gaps = np.abs(shares(results["ranks"][name], results["num_draws"]) - uniform_curve)
        within = np.all(gaps <= half + 1e-12, axis=-1)
        distances = ", ".join(
            f"{quantity} {gap:.3f} ({'within' if good else 'outside'})"
            for quantity, gap, good in zip(
                QUANTITIES, results["distance"][name], within, strict=True
            )
        )
        lines += [
            f"{name}: distance from uniform ranks ({results['level']:.0%} band): {distances}",
            f"{name}: {chain['divergences']} divergences, r-hat at most {chain['r_hat']:.3f}, "
            f"effective draws at least {chain['ess']:.0f} in all simulations, "
            f"{chain['seconds']:.1f} s with compilation",
        ]
    return [*lines, f"a distance above {results['allowed']:.3f} is chance once in a million runs"]
