"""The files to begin with: the config of a built-in experiment, or an experiment of one's own."""

import os
from pathlib import Path

from truncgauss.runs import config as settings
from truncgauss.execution import files

CODE = '''\
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
    """Write NAME.yaml, with the data or the NAME.py that it names, and return their paths.

    Raises:
        ValueError: the name cannot be that of a Python file, or one of the files is there already.
    """
    if not name.isidentifier():
        raise ValueError(f"a name must be letters, digits and underscores (got {name!r})")
    own: dict[str, str | bytes] = {f"{name}.yaml": CONFIG.format(name=name), f"{name}.py": CODE}
    contents = _built_in(name) if name in settings.names() else own
    texts = {folder / file: content for file, content in contents.items()}
    for path in texts:
        if path.exists():
            raise ValueError(f"{path} is there already: move it, or work in another folder")
    for path, text in texts.items():
        files.write(path, text)
    return list(texts)


def _built_in(name: str) -> dict[str, str | bytes]:
    """The config of a built-in experiment and its data, by the names of their files."""
    configs = settings.folder("configs")
    shipped = configs / f"{name}.yaml"
    text, data = settings.with_schema(shipped.read_text("utf-8"), name), dict[str, str | bytes]()
    for path in settings.files(settings.load(shipped)):
        text = text.replace(Path(os.path.relpath(path, configs)).as_posix(), path.name)
        data[path.name] = path.read_bytes()
    return {shipped.name: text, **data}
