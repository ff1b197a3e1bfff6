"""The probability of a box as the mean of the Gaussian moves, and its gradient."""

import jax
import jax.numpy as jnp

import truncgauss as tg
from truncgauss.runs import config


class Settings(config.Experiment):
    """The keys of the YAML file, next to experiment, seed, devices and dtype."""

    gaussian: config.Gaussian
    limits: config.Limits
    shift: config.Grid
    """Added to every coordinate of the mean."""


def run(settings):
    """Arrays, numbers and texts by name; `summary` holds lines to print."""
    shifts = jnp.linspace(settings.shift.start, settings.shift.stop, settings.shift.num)
    covariance = jnp.asarray(settings.gaussian.covariance)
    box = tg.Box(settings.limits.low, settings.limits.high)

    def probability(shift):
        loc = jnp.asarray(settings.gaussian.loc) + shift
        return jnp.exp(tg.log_probability(loc, covariance, box).log_prob)

    value, gradient = jax.jit(jax.vmap(jax.value_and_grad(probability)))(shifts)
    best = jnp.argmax(value)
    return {
        "shift": shifts,
        "probability": value,
        "gradient": gradient,
        "summary": [f"the probability is largest, {value[best]:.4f}, at {shifts[best]:.3f}"],
    }


def plot(results):
    """A matplotlib Figure of what `run` returned."""
    from truncgauss import plotting

    picture, ax = plotting.figure()
    plotting.value_and_gradient(
        results["shift"],
        results["probability"],
        results["gradient"],
        xlabel="shift of the mean",
        value_label="probability of the box",
        gradient_label="its gradient",
        ax=ax,
    )
    plotting.legend(ax=ax)
    return picture
