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
from numpyro.infer import MCMC, NUTS, init_to_median

from truncgauss import fitting
from truncgauss.execution.progress import bar

MOST_R_HAT = 1.05
MOST_DEVIATION = 4.5  # of two means, or two variances, in standard errors


def drawn(key, model, arguments, chains):
    """Draws by site, where chains diverged, and leapfrog steps: shapes (chains, draws, ...).

    Chains start at the median of the prior: 0 may be far out in its tail, and slow to leave.
    """
    kernel = NUTS(
        model, target_accept_prob=chains.target_accept, dense_mass=True,
        init_strategy=init_to_median,
    )  # fmt: skip
    mcmc = MCMC(
        kernel, num_warmup=chains.num_warmup, num_samples=chains.num_samples,
        num_chains=chains.num_chains, chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    mcmc.run(key, *arguments, extra_fields=("diverging", "num_steps"))
    extra = mcmc.get_extra_fields(group_by_chain=True)
    return mcmc.get_samples(group_by_chain=True), extra["diverging"], extra["num_steps"]


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
    draws, diverging, num_steps = jax.tree.map(np.asarray, drawn(key, *asked))
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
