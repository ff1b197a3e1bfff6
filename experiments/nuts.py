"""Runs of the No-U-Turn sampler, what they say of their own convergence, and moments of draws.

References:
    M. D. Hoffman and A. Gelman, "The No-U-Turn sampler", Journal of Machine Learning Research 15
    (2014); split r-hat and the effective sample size after A. Gelman et al., "Bayesian Data
    Analysis", 3rd edition (2013), section 11.
"""

import functools
import importlib
import time

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import NUTS, init_to_median

from truncgauss.execution import checkpoint
from truncgauss.execution.progress import bar

MOST_R_HAT = 1.05
BLOCK = 128  # transitions between two looks at the clock and the keyboard, at most
MOST_DEVIATION = 4.5  # of two means, or two variances, in standard errors


def posteriors(models, config, start=init_to_median):
    """NUTS for each of several models, name -> (model, arguments).

    Chains start at the median of the prior: 0 may be far out in its tail, and slow to leave.
    """
    keys = jax.random.split(jax.random.key(config.seed), len(models))
    chains = {}
    with bar(models.items(), "NUTS", True) as shown:
        for key, (name, (model, arguments)) in zip(keys, shown, strict=True):
            shown.note = name
            chains[name] = posterior(model, arguments, config.chains, key, start)
    return chains


def posterior(model, arguments, chains, key, start):
    """Draws by site, shape (chains, draws, ...), and the diagnostics of convergence."""
    sampled = sampled_chains(model, arguments, chains, key, start)
    draws = sampled["draws"]
    # A Cholesky factor of correlations has entries that never move.
    moving = {name: x for name, x in draws.items() if name != "factor"}
    return {
        "draws": draws,
        "diverging": sampled["diverging"],
        "divergences": int(sampled["diverging"].sum()),
        "steps": float(sampled["num_steps"].mean()),
        "r_hat": max(float(np.max(split_gelman_rubin(x))) for x in moving.values()),
        "ess": min(float(np.min(effective_sample_size(x))) for x in moving.values()),
        "seconds": float(sampled["seconds"]),
    }


def sampled_chains(model, arguments, chains, key, start):
    """Draws, divergences and leapfrog steps, shapes (chains, draws, ...), and seconds.

    The chains move in blocks of transitions. Within `truncgauss.fitting.resumable` their state is
    kept between blocks, so that a sampler that was interrupted goes on to the bit.
    """
    began = time.perf_counter()
    accept = chains.target_accept
    kernel = NUTS(model, target_accept_prob=accept, dense_mass=True, init_strategy=start)
    keys = jax.random.split(key, chains.num_chains)
    first = kernel.init(keys, chains.num_warmup, None, arguments, {})
    advanced = jax.jit(functools.partial(block, kernel, arguments))
    nothing = jax.tree.map(lambda x: np.asarray(x)[:0], advanced(first, 0)[1])
    begin = {"state": first, "seconds": np.zeros(()), "traces": nothing}
    work = checkpoint.source_digest((model, arguments, repr(chains)))
    about = checkpoint.fingerprint(key=key, model=work)
    last, size = chains.num_warmup + chains.num_samples, 1
    with checkpoint.Checkpoint(begin, about, "nuts") as kept:
        while (done := int(np.max(kept.state["state"].i))) < last:
            count, kept_from = min(size, last - done), max(chains.num_warmup - done, 0)
            state, fresh = advanced(kept.state["state"], count)
            fresh = jax.tree.map(lambda x, own=slice(kept_from, count): np.asarray(x)[own], fresh)
            traces = jax.tree.map(lambda *x: np.concatenate(x), kept.state["traces"], fresh)
            took, began = time.perf_counter() - began, time.perf_counter()
            seconds = kept.state["seconds"] + took
            kept.update({"state": state, "seconds": seconds, "traces": traces})
            size = min(2 * size, BLOCK) if took < 0.2 else max(size // 2, 1)
    by_chain = jax.tree.map(lambda x: np.swapaxes(x, 0, 1), kept.state["traces"])
    return by_chain | {"seconds": kept.state["seconds"]}


def block(kernel, arguments, state, count):
    """The state after `count` transitions, at most BLOCK, and what each of them brought."""
    constrain = kernel.postprocess_fn(arguments, {})

    def told(state):
        draws = jax.vmap(constrain)(state.z)
        return {"draws": draws, "diverging": state.diverging, "num_steps": state.num_steps}

    def transition(i, carry):
        state, found = carry
        state = kernel.sample(state, arguments, {})
        return state, jax.tree.map(lambda all, one: all.at[i].set(one), found, told(state))

    shapes = jax.eval_shape(told, state)
    found = jax.tree.map(lambda x: jnp.zeros((BLOCK, *x.shape), x.dtype), shapes)
    return jax.lax.fori_loop(0, count, transition, (state, found))


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


def trouble(chains):
    """Why chains cannot be trusted; empty if they can."""
    for name, chain in chains.items():
        if chain["divergences"]:
            return f"{name}: {chain['divergences']} divergent transitions"
        if not chain["r_hat"] <= MOST_R_HAT:
            return f"{name}: the chains disagree, r-hat {chain['r_hat']:.3f}"
    return ""


def chain_lines(chains):
    """One line of diagnostics for each run."""
    return [
        f"{name}: {chain['diverging'].size} draws in {len(chain['diverging'])} chains, "
        f"{chain['divergences']} divergences, r-hat at most {chain['r_hat']:.4f}, "
        f"effective draws at least {chain['ess']:.0f}, {chain['steps']:.1f} leapfrog steps a draw, "
        f"{chain['seconds']:.1f} s with compilation"
        for name, chain in chains.items()
    ]


def inference_data(chain):
    """One posterior for ArviZ: its InferenceData before version 1, xarray's DataTree from then on.

    Args:
        chain: `results["chains"][name]`, of a run or of the folder of a complete one.

    Raises:
        ImportError: without ArviZ; `pip install "truncgauss[arviz]"` brings it.
    """
    arviz = optional("arviz", "inference_data")
    if int(arviz.__version__.split(".")[0]) < 1:
        return arviz.from_dict(**groups(chain))
    return arviz.from_dict(groups(chain))


def write_netcdf(chain, path):
    """Write one posterior to a netCDF file, which `arviz.from_netcdf` of any version reads.

    Args:
        chain: as for `inference_data`.
        path: of the file, which is replaced.

    Raises:
        ImportError: without xarray, h5netcdf and h5py; `pip install "truncgauss[arviz]"` brings
            them.
    """
    xarray, *_ = (optional(name, "write_netcdf") for name in ("xarray", "h5netcdf", "h5py"))
    for number, (group, sites) in enumerate(groups(chain).items()):
        variables = {}
        for name, x in sites.items():
            inner = [f"{name}_dim_{k}" for k in range(np.ndim(x) - 2)]
            variables[name] = (["chain", "draw", *inner], np.asarray(x))
        sizes = {axis: np.arange(n) for axis, n in zip(("chain", "draw"), chain["diverging"].shape)}
        data = xarray.Dataset(variables, sizes, {"inference_library": "numpyro"})
        data.to_netcdf(path, mode="a" if number else "w", group=group, engine="h5netcdf")


def groups(chain):
    """Draws by site and where NUTS diverged, each (chains, draws, ...), under ArviZ's names."""
    return {"posterior": chain["draws"], "sample_stats": {"diverging": chain["diverging"]}}


def optional(package, what):
    """A package that the extra `arviz` brings."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f'{what} needs {package}, which is optional: pip install "truncgauss[arviz]".'
        ) from error
