"""The files of an experiment of one's own to begin with."""

from pathlib import Path

from truncgauss import files

CODE = '''\
"""The probability of a box as the mean of the Gaussian moves, and its gradient."""

import jax
import jax.numpy as jnp

import truncgauss as tg
from truncgauss import config


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
'''

CONFIG = """\
# {name}.py has the keys: its class Settings.
experiment: {name}.py
seed: 1

gaussian:
  loc: [0.0, 0.0]
  covariance: [[1.0, 0.5], [0.5, 1.0]]
limits:
  low: [0.0, -.inf]
  high: [.inf, 2.0]
shift: {{start: -3.0, stop: 3.0, num: 101}}
"""


def write(name: str, folder: Path = Path()) -> list[Path]:
    """Write NAME.yaml and NAME.py, and return their paths.

    Raises:
        ValueError: the name cannot be that of a Python file, or one of the files is there already.
    """
    if not name.isidentifier():
        raise ValueError(f"a name must be letters, digits and underscores (got {name!r})")
    texts = {folder / f"{name}.yaml": CONFIG.format(name=name), folder / f"{name}.py": CODE}
    for path in texts:
        if path.exists():
            raise ValueError(f"{path} is there already: choose another name")
    for path, text in texts.items():
        files.write(path, text)
    return list(texts)
