"""One task in a fresh process: a JSON line of what its first and its warm calls cost.

Run as `python probe.py TASK DIMENSION NUM_CALLS`; `scipy` in front of the task asks SciPy.
"""

import json
import sys
import time

import numpy as np


def problem(d):
    """A covariance matrix without structure, and limits on both sides."""
    rng = np.random.default_rng(d)
    factor = rng.normal(size=(d, d + 2))
    covariance = factor @ factor.T
    scale = np.sqrt(np.diag(covariance))
    low = -1.0 + 0.5 * rng.normal(size=d)
    covariance = covariance / scale[:, None] / scale[None, :]
    return np.zeros(d), covariance, low, low + 1.5 + rng.uniform(size=d)


def ours(task, d):
    """The call, and a list to which JAX adds the seconds of each compilation."""
    import jax
    import jax.monitoring

    jax.config.update("jax_enable_x64", True)
    import truncgauss as tg

    compilations = []

    def listen(name, seconds, **_):
        if name.endswith("backend_compile_duration"):
            compilations.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    loc, covariance, low, high = problem(d)
    arrays = [jax.device_put(x) for x in (loc, covariance, low, high)]
    value = lambda loc, covariance, low, high: (
        tg.log_probability(loc, covariance, tg.Box(low, high)).log_prob
    )
    box = lambda: tg.Box(low, high)
    calls = {
        "value": lambda: value(loc, covariance, low, high),
        "gradient": lambda: jax.value_and_grad(value, argnums=(0, 1, 2, 3))(*arrays),
        "moments": lambda: tg.truncated_moments(loc, covariance, box()),
        "draws": lambda: tg.truncated_samples(jax.random.key(0), loc, covariance, box(), 1000),
    }
    return lambda: jax.block_until_ready(calls[task]()), compilations


def scipy(task, d):
    """SciPy's value by quasi-Monte Carlo; it has none of the other tasks."""
    from scipy.stats import multivariate_normal

    loc, covariance, low, high = problem(d)
    call = lambda: multivariate_normal.cdf(high, loc, covariance, lower_limit=low, rng=0)
    return call, []


def main(words):
    """Measure a task and print it."""
    library = scipy if words[0] == "scipy" else ours
    task, d, num_calls = words[-3], int(words[-2]), int(words[-1])
    call, compilations = library(task, d)
    before = len(compilations)
    start, clock = time.process_time(), time.perf_counter()
    call()
    first, wall = time.process_time() - start, time.perf_counter() - clock
    compiled = len(compilations) - before
    warm = []
    for _ in range(num_calls):
        start = time.perf_counter()
        call()
        warm.append(time.perf_counter() - start)
    found = {"first": first, "wall": wall, "warm": min(warm), "compilations": compiled}
    print(json.dumps(found | {"later": len(compilations) - before - compiled}))


if __name__ == "__main__":
    main(sys.argv[1:])
