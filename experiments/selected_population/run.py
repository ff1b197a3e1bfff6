"""A Gaussian population of which every field shows only the objects inside limits of its own.

Two ways to write the same model: the normal density of every object seen, with `numpyro.factor` of
minus the log of the probability of being seen; and an observed `TruncatedMultivariateNormal`. Both
are run with NUTS and must find the same posterior.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.util import log_density

import truncgauss as tg

from ..nuts import MOST_DEVIATION, MOST_R_HAT, moments, posteriors


def run(config):
    """The two posteriors, how far they are apart, and what the selection does to plain moments."""
    given = config.population
    x, num_unseen = seen_objects(given, np.random.default_rng(config.seed))
    low, high = limits_of(given)
    arguments = (jnp.asarray(x, config.dtype), low, high, given.prior)
    models = {"factor": with_factor, "distribution": with_distribution}
    chains = posteriors({name: (model, arguments) for name, model in models.items()}, config)
    # Both means, both standard deviations and the correlation: (chains, draws, 5).
    columns = lambda draws: (draws["loc"], draws["scale"], draws["correlation"][..., None])
    found = {
        name: moments(np.concatenate(columns(chain["draws"]), -1)) for name, chain in chains.items()
    }
    one, other = found["factor"], found["distribution"]
    results = {
        "names": np.array(given.names),
        "low": low,
        "high": high,
        "loc": np.array(given.gaussian.loc),
        "covariance": np.array(given.gaussian.covariance),
        "parameters": np.array(
            [f"{what} {name}" for what in ("mean", "s.d.") for name in given.names]
            + ["correlation"]
        ),
        "truth": parameters_of(given.gaussian.loc, given.gaussian.covariance),
        "objects": x,
        "num_unseen": num_unseen,
        **naive(x.reshape(-1, 2)),
        "chains": chains,
        "posteriors": found,
        "apart": {  # in Monte Carlo standard errors
            name: (one[name] - other[name])
            / np.hypot(one[f"{name}_stderr"], other[f"{name}_stderr"])
            for name in ("mean", "variance")
        },
        "log_density_gap": log_density_gap(arguments, chains["distribution"]),
    }
    return results | {"failed": failure(results), "summary": summary(results)}


# ---------------------------------------------------------------- the models


def population(prior):
    """The unknown Gaussian: its mean and the Cholesky factor of its covariance."""
    place, reach = jnp.array(prior.loc), jnp.array(prior.loc_scale)
    loc = numpyro.sample("loc", dist.Normal(place, reach).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(jnp.array(prior.scale)).to_event(1))
    factor = numpyro.sample("factor", dist.LKJCholesky(len(prior.loc), prior.concentration))
    numpyro.deterministic("correlation", factor[1, 0])
    return loc, scale[:, None] * factor


def with_factor(x, low, high, prior):
    """Normal densities of x (objects, fields, 2) over the probability to be seen, a factor."""
    loc, scale_tril = population(prior)
    plain = dist.MultivariateNormal(loc, scale_tril=scale_tril)
    with numpyro.plate("fields", len(low)), numpyro.plate("objects", len(x)):
        numpyro.sample("x", plain, obs=x)
    seen = tg.log_probability(loc, tg.ScaleTril(scale_tril), tg.Box(low, high))
    # Where nothing can be seen, by rounding at nearly singular covariances, minus the log is
    # infinite: without this, a sampler would take that for the most likely of all places.
    possible = jnp.where(jnp.isneginf(seen.log_prob), jnp.inf, seen.log_prob)
    numpyro.factor("selection", -len(x) * possible.sum())


def with_distribution(x, low, high, prior):
    """The same model, with the truncated distribution observed."""
    loc, scale_tril = population(prior)
    truncated = tg.TruncatedMultivariateNormal(loc, scale_tril=scale_tril, low=low, high=high)
    with numpyro.plate("fields", len(low)), numpyro.plate("objects", len(x)):
        numpyro.sample("x", truncated, obs=x)


def log_density_gap(arguments, chain):
    """The largest relative difference of the two models' log densities, at a few draws."""
    sites = {name: x[:, -1] for name, x in chain["draws"].items() if name != "correlation"}

    @jax.jit
    @jax.vmap
    def of(sites):
        models = with_factor, with_distribution
        return jnp.stack([log_density(model, arguments, {}, sites)[0] for model in models])

    one, other = np.asarray(of(sites)).T
    return float(np.max(np.abs(one - other) / np.maximum(np.abs(other), 1.0)))


# ---------------------------------------------------------------- the objects


def limits_of(given):
    """Lower and upper limits, shape (fields, 2) each."""
    low, high = ([getattr(box, side) for box in given.fields] for side in ("low", "high"))
    return jnp.array(low), jnp.array(high)


def seen_objects(given, rng):
    """The first `num_objects` seen in each field, shape (objects, fields, 2), and the unseen.

    Raises:
        ValueError: for a field that hides practically everything.
    """
    columns, num_unseen, size = [], [], 200 * given.num_objects
    for low, high in zip(*map(np.asarray, limits_of(given)), strict=True):
        x = rng.multivariate_normal(given.gaussian.loc, given.gaussian.covariance, size)
        found = np.flatnonzero(np.all((x >= low) & (x <= high), axis=-1))
        if len(found) < given.num_objects:
            raise ValueError(
                f"The field between {low} and {high} shows {len(found)} of {size} objects, but "
                f"{given.num_objects} are asked for: widen its limits."
            )
        found = found[: given.num_objects]
        columns.append(x[found])
        num_unseen.append(found[-1] + 1 - len(found))
    return np.stack(columns, axis=1), np.array(num_unseen)


def parameters_of(loc, covariance):
    """Both means, both standard deviations and the correlation of one Gaussian."""
    scale = np.sqrt(np.diagonal(covariance))
    return np.array([*loc, *scale, np.asarray(covariance)[0, 1] / scale.prod()])


def naive(x):
    """The parameters of plain moments of complete rows, with their standard errors."""
    found, n = parameters_of(x.mean(0), np.cov(x, rowvar=False)), len(x)
    scale, correlation = found[2:4], found[4]
    spread = [*(scale / n**0.5), *(scale / (2 * n) ** 0.5), (1 - correlation**2) / n**0.5]
    return {"naive": found, "naive_spread": np.array(spread)}


# ---------------------------------------------------------------- what the user reads


def failure(results):
    """Why the results cannot be trusted; empty if they can."""
    for name, chain in results["chains"].items():
        if chain["divergences"]:
            return f"{name}: {chain['divergences']} divergent transitions"
        if not chain["r_hat"] <= MOST_R_HAT:
            return f"{name}: the chains disagree, r-hat {chain['r_hat']:.3f}"
    worst = max(float(np.max(np.abs(z))) for z in results["apart"].values())
    if not worst <= MOST_DEVIATION:
        return f"the two posteriors are {worst:.1f} Monte Carlo standard errors apart"
    if not results["log_density_gap"] <= 1e-9:
        return f"the two log densities differ by {results['log_density_gap']:.1e} of their size"
    return ""


def summary(results):
    """The parameters by every route, the diagnostics of the chains, and the differences."""
    x, unseen, apart = results["objects"], results["num_unseen"], results["apart"]
    found = results["posteriors"]
    row = ("{:<30}{:>9}{:>18}" + "{:>20}" * len(found)).format
    lines = [
        f"{x.shape[0] * x.shape[1]} objects in {x.shape[1]} fields, {unseen.sum()} not observed",
        row("", "truth", "naive", *found),
    ]
    for j, name in enumerate(results["parameters"]):
        plain = f"{results['naive'][j]:.3f} ± {results['naive_spread'][j]:.3f}"
        cells = [f"{x['mean'][j]:.4f} ± {x['variance'][j] ** 0.5:.4f}" for x in found.values()]
        lines.append(row(name, f"{results['truth'][j]:.3f}", plain, *cells))
    return [
        *lines,
        *(
            f"{name}: {chain['diverging'].size} draws in {len(chain['diverging'])} chains, "
            f"{chain['divergences']} divergences, r-hat at most {chain['r_hat']:.4f}, effective "
            f"draws at least {chain['ess']:.0f}, {chain['steps']:.1f} leapfrog steps a draw, "
            f"{chain['seconds']:.1f} s with compilation"
            for name, chain in results["chains"].items()
        ),
        "factor against distribution, in Monte Carlo standard errors: means at most "
        f"{np.abs(apart['mean']).max():.2f}, variances {np.abs(apart['variance']).max():.2f} apart",
        "their log densities at the same parameters agree to "
        f"{results['log_density_gap']:.0e} of their size",
    ]
