"""Runs of the No-U-Turn sampler, what they say of their own convergence, and moments of draws.

References:
    M. D. Hoffman and A. Gelman, "The No-U-Turn sampler", Journal of Machine Learning Research 15
    (2014); split r-hat and the effective sample size after A. Gelman et al., "Bayesian Data
    Analysis", 3rd edition (2013), section 11.
"""

import time

import jax
import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import NUTS, init_to_median

from truncgauss import fitting
from truncgauss.arrays.progress import bar
from truncgauss.execution import checkpoint

MOST_R_HAT = 1.05
BLOCK = 20  # steps of all chains, after which their state is kept
MOST_DEVIATION = 4.5  # of two means, or two variances, in standard errors


def drawn(key, model, arguments, chains):
    """Draws by site, where chains diverged, and leapfrog steps: shapes (chains, draws, ...)."""
    start, steps = begun(key, model, arguments, chains)
    return after_warmup(steps(start, chains.num_warmup + chains.num_samples)[1], chains)


def kept(key, model, arguments, chains):
    """The same as arrays of NumPy, by blocks of steps. After each the chains' state and the draws
    so far are kept, see `tg.fitting.resumable`."""
    start, steps = begun(key, model, arguments, chains)
    block = jax.jit(lambda state: steps(state, BLOCK))
    shapes = jax.eval_shape(block, start)[1]
    nothing = jax.tree.map(lambda x: np.zeros((0, *x.shape[1:]), x.dtype), shapes)
    belongs_to = checkpoint.fingerprint(key=key, chains=repr(chains))
    belongs_to["model"] = checkpoint.source_digest((model, arguments))
    begin = {"state": start, "traces": nothing}
    with checkpoint.Checkpoint(begin, belongs_to, "NUTS") as stored:
        while len(stored.state["traces"][1]) < chains.num_warmup + chains.num_samples:
            state, some = block(stored.state["state"])
            traces = jax.tree.map(lambda *x: np.concatenate(x), stored.state["traces"], some)
            stored.update({"state": state, "traces": traces})
    return after_warmup(stored.state["traces"], chains)


def begun(key, model, arguments, chains):
    """The first state of all chains, and the function of a state and a number of steps that returns
    the last state and draws, divergences and leapfrog steps: shapes (steps, chains, ...).

    Chains start at the median of the prior: 0 may be far out in its tail, and slow to leave.
    """
    kernel = NUTS(
        model, target_accept_prob=chains.target_accept, dense_mass=True,
        init_strategy=init_to_median,
    )  # fmt: skip
    keys = jax.random.split(key, chains.num_chains)
    start = kernel.init(keys, chains.num_warmup, None, arguments, {})
    sites = jax.vmap(kernel.postprocess_fn(arguments, {}))

    def step(state, _):
        state = kernel.sample(state, arguments, {})
        return state, (sites(state.z), state.diverging, state.num_steps)

    return start, lambda state, num_steps: jax.lax.scan(step, state, length=num_steps)


def after_warmup(traces, chains):
    """Traces (steps, chains, ...) as (chains, draws, ...), without the steps that adapt."""
    chosen = slice(chains.num_warmup, chains.num_warmup + chains.num_samples)
    return jax.tree.map(lambda x: x[chosen].swapaxes(0, 1), traces)


def posteriors(models, config):
    """NUTS for each of several models, name -> (model, arguments), with its diagnostics."""
    keys = jax.random.split(jax.random.key(config.seed), len(models))
    chains = {}
    with bar(models.items(), "NUTS", True) as shown:
        for key, (name, (model, arguments)) in zip(keys, shown, strict=True):
            shown.note = name
            chains[name] = fitting.computed(name, posterior, key, model, arguments, config.chains)
    return chains


def posterior(key, *asked):
    """Draws by site, shape (chains, draws, ...), and the diagnostics of convergence."""
    start = time.perf_counter()
    draws, diverging, num_steps = kept(key, *asked)
    # A Cholesky factor of correlations has entries that never move.
    moving = [x for name, x in draws.items() if name != "factor"]
    return {
        "draws": draws,
        "diverging": diverging,
        "divergences": int(diverging.sum()),
        "steps": float(num_steps.mean()),
        "r_hat": max(float(np.max(split_gelman_rubin(x))) for x in moving),
        "ess": min(float(np.min(effective_sample_size(x))) for x in moving),
        "seconds": time.perf_counter() - start,
    }


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
