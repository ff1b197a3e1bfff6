"""One task in a fresh process: a JSON line of what its first and its warm calls cost.

Run as `python probe.py TASK DIMENSION NUM_CALLS`, where TASK is one of `TASKS` or a fit of `FITS`,
whose dimension is not read; `scipy` in front of the task asks SciPy.
"""

import json
import sys
import time

import numpy as np
from fits import FITS


def problem(d):
    """A covariance matrix without structure, and limits on both sides."""
    rng = np.random.default_rng(d)
    factor = rng.normal(size=(d, d + 2))
    covariance = factor @ factor.T
    scale = np.sqrt(np.diag(covariance))
    low = -1.0 + 0.5 * rng.normal(size=d)
    covariance = covariance / scale[:, None] / scale[None, :]
    return np.zeros(d), covariance, low, low + 1.5 + rng.uniform(size=d)


BATCH = 9  # boxes
HELD = "jit value with a held plan"
READ = [0]  # programs that were read instead of compiled


def tasks(jax, tg, d, held):
    """The calls by name; those of a batch have one box in each row, and one has a plan if `held`.

    The plan is solved for, and what that needs is compiled, before the call.
    """
    numbers = problem(d)
    arrays = [jax.device_put(x) for x in numbers]
    shifts = np.linspace(-0.5, 0.5, BATCH)[:, None]
    batch = [*arrays[:2], *(jax.device_put(x + shifts) for x in numbers[2:])]
    loc, covariance, low, high = numbers
    box = lambda: tg.Box(low, high)

    def value(loc, covariance, low, high, **settings):
        return tg.log_probability(loc, covariance, tg.Box(low, high), **settings).log_prob

    total = lambda *args: value(*args).sum()
    slopes = {"argnums": (0, 1, 2, 3)}
    gradient = jax.value_and_grad(value, **slopes)
    method = tg.Separation().hold(loc, covariance, box()) if held else tg.Automatic()
    planned = jax.jit(lambda *args: value(*args, method=method))
    staged = {
        HELD: (planned, arrays),
        "jit value": (jax.jit(value), arrays),
        "jit gradient": (jax.jit(gradient), arrays),
        "jit gradient of a batch": (jax.jit(jax.value_and_grad(total, **slopes)), batch),
        "jit Hessian of a batch": (jax.jit(jax.hessian(total)), batch),
    }
    called = {name: lambda f=f, args=args: f(*args) for name, (f, args) in staged.items()}
    return called | {
        "value": lambda: value(*numbers),
        "gradient": lambda: gradient(*arrays),
        "moments": lambda: tg.truncated_moments(loc, covariance, box()),
        "draws": lambda: tg.truncated_samples(jax.random.key(0), loc, covariance, box(), 1000),
    }


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

    def count(name, **_):
        READ[0] += name.endswith("compilation_cache/cache_hits")

    jax.monitoring.register_event_duration_secs_listener(listen)
    jax.monitoring.register_event_listener(count)
    if task in FITS:
        return FITS[task](tg), compilations
    call = tasks(jax, tg, d, task == HELD)[task]
    return lambda: jax.block_until_ready(call()), compilations


def scipy(task, d, seed=0):
    """SciPy's value by quasi-Monte Carlo; it has none of the other tasks."""
    from scipy.stats import multivariate_normal

    loc, covariance, low, high = problem(d)
    call = lambda: multivariate_normal.cdf(high, loc, covariance, lower_limit=low, rng=seed)
    return call, []


def rms_error(library, d, num_calls):
    """Root mean square error of log P over keys, of a default call; exact in up to 3 dimensions."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import truncgauss as tg

    loc, covariance, low, high = problem(d)
    box, exact = tg.Box(low, high), d <= 3
    method = tg.Automatic() if exact else tg.Separation(num_points=2**16)
    truth = tg.log_probability(loc, covariance, box, method, jax.random.key(2026)).log_prob
    if library is scipy:
        values = [np.log(scipy("value", d, k)[0]()) for k in range(num_calls)]
    else:
        keys = map(jax.random.key, range(num_calls))
        values = [tg.log_probability(loc, covariance, box, key=key).log_prob for key in keys]
    return float(np.sqrt(np.mean((np.array(values) - truth) ** 2)))


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
    costs = {
        "first": first,
        "wall": wall,
        "warm": min(warm),
        "compilations": compiled,
        "read": READ[0],
        "later": len(compilations) - before - compiled,
    }
    error = rms_error(library, d, num_calls) if task == "value" else None
    print(json.dumps(costs | {"error": error}))


if __name__ == "__main__":
    main(sys.argv[1:])
