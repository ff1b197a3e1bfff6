"""A Gaussian population of which every field shows only the objects inside limits of its own.

The astronomer's way: the plain normal density of every object seen, and `numpyro.factor` with minus
the log of the probability of being seen. The same as one law: an observed
`TruncatedMultivariateNormal`. Both are run with NUTS and must find one posterior.
"""

import importlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS, init_to_median
from numpyro.infer.util import log_density
from tqdm import tqdm

import truncgauss as tg
from truncgauss import cli, plotting

MOST_R_HAT = 1.05
MOST_DEVIATION = 4.5  # of two means, or two variances, in standard errors


def run(config):
    """The two posteriors, how far they are apart, and what the selection does to plain moments."""
    given = config.population
    rng = np.random.default_rng(config.seed)
    x, num_unseen = seen_objects(given, rng, inside)
    low, high = limits_of(given)
    arguments = (jnp.asarray(x, config.dtype), low, high, given.prior)
    models = {"factor": with_factor, "law": with_law}
    chains = posteriors({name: (model, arguments) for name, model in models.items()}, config)
    flat = x.reshape(-1, 2)
    results = {
        **told_of(given),
        "objects": x,
        "num_unseen": num_unseen,
        "naive": parameters_of(flat.mean(0), np.cov(flat, rowvar=False)),
        "naive_spread": plain_spread(flat),
        "chains": chains,
        "apart": apart(chains["factor"], chains["law"]),
        "log_density_gap": log_density_gap(*models.values(), arguments, chains["law"]),
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
    """x (objects, fields, 2), limits (fields, 2): plain densities over the chance to be seen."""
    loc, scale_tril = population(prior)
    plain = dist.MultivariateNormal(loc, scale_tril=scale_tril)
    with numpyro.plate("fields", len(low)), numpyro.plate("objects", len(x)):
        numpyro.sample("x", plain, obs=x)
    seen = tg.log_probability(loc, tg.ScaleTril(scale_tril), tg.Box(low, high))
    numpyro.factor("selection", -len(x) * seen.log_prob.sum())


def with_law(x, low, high, prior):
    """The same as one observed law."""
    loc, scale_tril = population(prior)
    law = tg.TruncatedMultivariateNormal(loc, scale_tril=scale_tril, low=low, high=high)
    with numpyro.plate("fields", len(low)), numpyro.plate("objects", len(x)):
        numpyro.sample("x", law, obs=x)


# ---------------------------------------------------------------- the objects


def limits_of(given):
    """Lower and upper limits, shape (fields, 2) each."""
    low, high = ([getattr(box, side) for box in given.fields] for side in ("low", "high"))
    return jnp.array(low), jnp.array(high)


def inside(x, low, high, rng):
    return np.all((x >= low) & (x <= high), axis=-1)


def seen_objects(given, rng, is_seen):
    """The first `num_objects` seen in each field, shape (objects, fields, 2), and the unseen.

    Raises:
        ValueError: for a field that hides practically everything.
    """
    columns, num_unseen, size = [], [], 200 * given.num_objects
    for low, high in zip(*map(np.asarray, limits_of(given)), strict=True):
        x = rng.multivariate_normal(given.gaussian.loc, given.gaussian.covariance, size)
        found = np.flatnonzero(is_seen(x, low, high, rng))
        if len(found) < given.num_objects:
            raise ValueError(
                f"The field between {low} and {high} shows {len(found)} of {size} objects, but "
                f"{given.num_objects} are asked for: widen its limits."
            )
        found = found[: given.num_objects]
        columns.append(x[found])
        num_unseen.append(found[-1] + 1 - len(found))
    return np.stack(columns, axis=1), np.array(num_unseen)


# ---------------------------------------------------------------- chains


def posteriors(models, config, start=init_to_median):
    """NUTS for each of several models, name -> (model, arguments).

    Chains start in the prior's middle: 0 may be far out in its tail, long to come home from.
    """
    keys = jax.random.split(jax.random.key(config.seed), len(models))
    chains = {}
    with tqdm(models.items(), desc="NUTS", disable=None) as bar:
        for key, (name, (model, arguments)) in zip(keys, bar, strict=True):
            bar.set_description(f"NUTS, {name}")
            chains[name] = posterior(model, arguments, config.chains, key, start)
    return chains


def posterior(model, arguments, chains, key, start):
    """Draws by site, shape (chains, draws, ...), and what says whether to believe them."""
    accept = chains.target_accept
    kernel = NUTS(model, target_accept_prob=accept, dense_mass=True, init_strategy=start)
    mcmc = MCMC(
        kernel, num_warmup=chains.num_warmup, num_samples=chains.num_samples,
        num_chains=chains.num_chains, chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    began = time.perf_counter()
    mcmc.run(key, *arguments, extra_fields=("diverging", "num_steps"))
    draws = jax.tree.map(np.asarray, mcmc.get_samples(group_by_chain=True))
    extra = jax.tree.map(np.asarray, mcmc.get_extra_fields(group_by_chain=True))
    seconds = time.perf_counter() - began
    # A Cholesky factor of correlations has entries that never move.
    moving = {name: x for name, x in draws.items() if name != "factor"}
    return {
        "draws": draws,
        "diverging": extra["diverging"],
        "divergences": int(extra["diverging"].sum()),
        "steps": float(extra["num_steps"].mean()),
        "r_hat": max(float(np.max(split_gelman_rubin(x))) for x in moving.values()),
        "ess": min(float(np.min(effective_sample_size(x))) for x in moving.values()),
        "seconds": seconds,
    }


def parameters(draws):
    """Both means, both standard deviations and the correlation, shape (chains, draws, 5)."""
    columns = (draws["loc"], draws["scale"], draws["correlation"][..., None])
    return np.concatenate(columns, axis=-1)


def moments(x):
    """Mean and variance of draws (chains, draws, p), each with its Monte Carlo standard error."""
    mean = x.mean((0, 1))
    squares = (x - mean) ** 2

    def stderr(y):
        return y.std((0, 1)) / np.sqrt(effective_sample_size(y))

    return {
        "mean": mean,
        "mean_stderr": stderr(x),
        "variance": squares.mean((0, 1)),
        "variance_stderr": stderr(squares),
    }


def apart(one, other):
    """Differences of two posteriors' means and variances, in their Monte Carlo errors."""
    one, other = (moments(parameters(each["draws"])) for each in (one, other))
    return {
        name: (one[name] - other[name]) / np.hypot(one[f"{name}_stderr"], other[f"{name}_stderr"])
        for name in ("mean", "variance")
    }


def log_density_gap(one, other, arguments, chain):
    """The largest relative difference of two models' log densities, at a few draws."""
    sites = {name: x[:, -1] for name, x in chain["draws"].items() if name != "correlation"}

    @jax.jit
    def of(sites):
        return [log_density(model, arguments, {}, sites)[0] for model in (one, other)]

    pairs = [of({name: x[i] for name, x in sites.items()}) for i in range(len(sites["loc"]))]
    return float(max(abs(a - b) / max(abs(b), 1.0) for a, b in pairs))


def inference_data(chain):
    """One posterior as ArviZ's InferenceData: draws by site, and where NUTS diverged.

    Args:
        chain: `results["chains"][name]`.

    Raises:
        ImportError: without ArviZ; `pip install "truncgauss[arviz]"` brings it.
    """
    try:
        arviz = importlib.import_module("arviz")
    except ImportError as error:
        raise ImportError(
            'inference_data needs ArviZ, which is optional: pip install "truncgauss[arviz]".'
        ) from error
    return arviz.from_dict(posterior=chain["draws"], sample_stats={"diverging": chain["diverging"]})


# ---------------------------------------------------------------- what the user reads


def trouble(chains):
    """Why chains are not to be believed, or nothing."""
    for name, chain in chains.items():
        if chain["divergences"]:
            return f"{name}: {chain['divergences']} divergent transitions"
        if not chain["r_hat"] <= MOST_R_HAT:
            return f"{name}: the chains disagree, r-hat {chain['r_hat']:.3f}"
    return ""


def failure(results):
    """Why the numbers are not to be trusted, or nothing."""
    if found := trouble(results["chains"]):
        return found
    worst = max(float(np.max(np.abs(z))) for z in results["apart"].values())
    if not worst <= MOST_DEVIATION:
        return f"the two posteriors are {worst:.1f} Monte Carlo standard errors apart"
    if not results["log_density_gap"] <= 1e-9:
        return f"the two log densities differ by {results['log_density_gap']:.1e} of their size"
    return ""


def told_of(given):
    """What the figures need to know of the settings."""
    low, high = limits_of(given)
    return {
        "names": np.array(given.names),
        "low": low,
        "high": high,
        "loc": np.array(given.gaussian.loc),
        "covariance": np.array(given.gaussian.covariance),
        "truth": parameters_of(given.gaussian.loc, given.gaussian.covariance),
    }


def parameters_of(loc, covariance):
    """Both means, both standard deviations and the correlation of one Gaussian."""
    scale = np.sqrt(np.diagonal(covariance))
    return np.array([*loc, *scale, np.asarray(covariance)[0, 1] / scale.prod()])


def plain_spread(x):
    """Standard errors of the plain moments of complete rows, in the order of `parameters_of`."""
    _, _, *scale, correlation = parameters_of(x.mean(0), np.cov(x, rowvar=False))
    n, scale = len(x), np.array(scale)
    return np.array([*(scale / n**0.5), *(scale / (2 * n) ** 0.5), (1 - correlation**2) / n**0.5])


def rows_of(results, labels):
    """A line for each parameter: the truth, the naive estimate, and every posterior."""
    shown = [moments(parameters(results["chains"][name]["draws"])) for name in labels]
    head = f"{'':<30}{'truth':>9}{'naive':>18}" + "".join(f"{name:>20}" for name in labels)
    lines = [head]
    for j, name in enumerate(parameter_names(results)):
        naive = f"{results['naive'][j]:.3f} ± {results['naive_spread'][j]:.3f}"
        cells = [f"{each['mean'][j]:.4f} ± {each['variance'][j] ** 0.5:.4f}" for each in shown]
        cells = "".join(f"{cell:>20}" for cell in cells)
        lines.append(f"{name:<30}{results['truth'][j]:>9.3f}{naive:>18}{cells}")
    return lines


def parameter_names(results):
    return [
        *(f"mean {name}" for name in results["names"]),
        *(f"s.d. {name}" for name in results["names"]),
        "correlation",
    ]


def chain_lines(chains):
    """How each run went."""
    return [
        f"{name}: {chain['diverging'].size} draws in {len(chain['diverging'])} chains, "
        f"{chain['divergences']} divergences, r-hat at most {chain['r_hat']:.4f}, "
        f"effective draws at least {chain['ess']:.0f}, {chain['steps']:.1f} leapfrog steps a draw, "
        f"{chain['seconds']:.1f} s with compilation"
        for name, chain in chains.items()
    ]


def summary(results):
    x, unseen, apart = results["objects"], results["num_unseen"], results["apart"]
    return [
        f"{x.shape[0] * x.shape[1]} objects in {x.shape[1]} fields, {unseen.sum()} more not seen",
        *rows_of(results, ("factor", "law")),
        *chain_lines(results["chains"]),
        "factor against law, in Monte Carlo standard errors: means at most "
        f"{np.abs(apart['mean']).max():.2f}, variances {np.abs(apart['variance']).max():.2f} apart",
        "their log densities at the same parameters agree to "
        f"{results['log_density_gap']:.0e} of their size",
    ]


# ---------------------------------------------------------------- the figure


def plot(results):
    """The objects in their fields, the posterior of the mean, and all five parameters."""
    picture, axes = plotting.mosaic([["objects", "mean", "all"]], size=(4.5, 4.6))
    fields(results, axes["objects"])
    series = {"factor": 1, "law": 2}
    mean_posterior(results, series, axes["mean"])
    estimates(results, series, axes["all"])
    for name, ax in axes.items():
        plotting.legend(columns=1, below=62.0 if name == "all" else 34.0, ax=ax)
    return picture


def fields(results, ax):
    """Objects of every field with its limits, and half and 90 % of the true and naive Gaussian."""
    x = results["objects"]
    for k in range(x.shape[1]):
        look = {"series": k % len(plotting.SERIES), "ax": ax}
        plotting.points(*x[:, k].T, label=f"field {k + 1}: {limit_text(results, k)}", **look)
    truth = results["loc"], results["covariance"]
    flat = x.reshape(-1, 2)
    naive = flat.mean(0), np.cov(flat, rowvar=False)
    plotting.contours(*truth, levels=(0.5, 0.9), series=0, label="the population", ax=ax)
    plotting.contours(*naive, levels=(0.5, 0.9), series=3, label="naive, 50 and 90 %", ax=ax)
    ax.set(xlabel=results["names"][0], ylabel=results["names"][1])
    plotting.title("What is seen of the population", ax=ax)


def limit_text(results, k):
    """A field's limits in few words."""
    words = []
    limits = (results["names"], results["low"][k], results["high"][k])
    for name, low, high in zip(*limits, strict=True):
        name = str(name).split(" (")[0].split()[-1]
        words += [f"{name} ≥ {low:g}"] if np.isfinite(low) else []
        words += [f"{name} ≤ {high:g}"] if np.isfinite(high) else []
    return ", ".join(words) or "no limit"


def mean_posterior(results, series, ax):
    """Half and 90 % of each posterior of the mean, over the draws of the last."""
    loc = {name: results["chains"][name]["draws"]["loc"].reshape(-1, 2) for name in series}
    drawn = list(loc.values())[-1]
    thin = drawn[:: max(len(drawn) // 500, 1)]
    ax.plot(*thin.T, ".", markersize=1.5, color="#bbbbbb", zorder=1, label="draws of the last")
    for name, draws in loc.items():
        plotting.contours(
            draws.mean(0), np.cov(draws, rowvar=False), series=series[name],
            label=f"{name}, 50 and 90 %", ax=ax,
        )  # fmt: skip
    ax.plot(*results["truth"][:2], "*", color="#000000", markersize=11, label="truth", zorder=5)
    ax.set(xlabel=f"mean {results['names'][0]}", ylabel=f"mean {results['names'][1]}")
    plotting.title("Posterior of the mean", ax=ax)


def estimates(results, series, ax):
    """Every parameter's posterior mean and standard deviation, in units of the last posterior."""
    places = np.arange(5)
    shown = {name: moments(parameters(results["chains"][name]["draws"])) for name in series}
    unit = np.sqrt(list(shown.values())[-1]["variance"])
    step = 0.6 / (len(series) + 1)
    for i, (name, each) in enumerate(shown.items()):
        plotting.points(
            places + (i + 1) * step - 0.3, (each["mean"] - results["truth"]) / unit,
            stderr=np.sqrt(each["variance"]) / unit, series=series[name], label=name, ax=ax,
        )  # fmt: skip
    plotting.points(
        places - 0.3, (results["naive"] - results["truth"]) / unit,
        stderr=results["naive_spread"] / unit, series=3, filled=False, label="naive", ax=ax,
    )  # fmt: skip
    ax.axhline(0, color="#000000", linewidth=0.7)
    names = [name.split(" (")[0].replace(" ", "\n") for name in parameter_names(results)]
    ax.set_xticks(places, names)
    ax.set(ylabel="(estimate − truth) / posterior s.d.")
    plotting.title("Five parameters, ± 1 s.d.", ax=ax)


if __name__ == "__main__":
    raise SystemExit(cli.main_experiment(__file__))
