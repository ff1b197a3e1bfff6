"""An experiment of fits that take milliseconds a step, to be interrupted.

It has one of each that is kept in its own way: rows of work, Newton steps, EM steps, and an
optimiser with a random objective.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import truncgauss as tg
from truncgauss import fitting
from truncgauss.runs import config


class Settings(config.Experiment):
    pause: config.Positive
    """Seconds that each row of work takes."""
    parts: tuple[str, ...]


def run(settings):
    key, found = jax.random.key(settings.seed), {}
    for part in settings.parts:
        found[part] = PARTS[part](settings, key)
        print(f"done: {part}", flush=True)
    return found


def rows(settings, key):
    """Twenty rows of work."""
    done = [fitting.computed(f"row {i}", row, settings, key, i) for i in range(20)]
    return {name: np.array([each[name] for each in done]) for name in ("sum", "word")}


def row(settings, key, i):
    time.sleep(settings.pause)
    return {"sum": float(jax.random.normal(jax.random.fold_in(key, i))), "word": f"row {i}"}


def data(key):
    x = jax.random.normal(key, (60, 2)) + 3.0 * (jnp.arange(60)[:, None] % 2)
    return tg.Observations.exact(x, region=tg.Box(jnp.full(2, -4.0), jnp.inf))


def newton(settings, key):
    fit = tg.fit_observations(data(key), covariance="diagonal", progress=False)
    return {"estimates": np.asarray(fit.estimates), "errors": np.asarray(fit.errors)}


def em(settings, key):
    fit = tg.fit_mixture(data(key), 2, covariance="diagonal", num_starts=2, progress=False)
    return {"loc": np.asarray(fit.locs), "weights": np.asarray(fit.weights)}


def valley(x, key):
    jax.debug.callback(lambda: time.sleep(0.002))
    return jnp.sum((x - jax.random.normal(key, x.shape)) ** 2)


def descent(settings, key):
    fit = tg.minimize(valley, jnp.zeros(2), optax.adam(0.05), 300, key=key, progress=False)
    return {"params": fit.params, "trace": fit.loss_trace}


PARTS = {"rows": rows, "newton": newton, "em": em, "descent": descent}


def plot(results):
    from truncgauss import plotting

    return plotting.figure()[0]
