"""The width of a bump, learnt by gradient from inputs inside and far beyond its support.

The bump is 0, with all its derivatives, at most of the inputs; the width is recovered from
starts that are up to 100 times too large or too small, in float32 and float64, without a NaN.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import truncgauss as tg
from truncgauss import fitting
from truncgauss.arrays.progress import bar


def run(config):
    """Recovered widths, shape (dtypes, widths, starts), and the curves of the bump."""
    options = config.dtypes, config.widths, config.starts
    shape = tuple(map(len, options))
    fits = {name: np.zeros(shape) for name in ("recovered", "steps", "converged")}
    metrics = []
    for place in bar(list(np.ndindex(shape)), "widths", True):
        dtype, width, start = (each[i] for each, i in zip(options, place, strict=True))
        fit = learnt(width, start, dtype, config)
        found = {"recovered": fit.params, "steps": fit.num_steps, "converged": fit.converged}
        for name, value in found.items():
            fits[name][place] = value
        metrics.append(
            {"dtype": dtype, "width": width, "start": start, "recovered": float(fit.params),
             "num_steps": fit.num_steps, "converged": fit.converged, "loss": fit.loss,
             "reason": fit.reason}
        )  # fmt: skip
    stranded = learnt(config.widths[-1], config.stranded_start, config.dtype, config)
    fits["error"] = np.abs(fits["recovered"] / np.array(config.widths)[:, None] - 1)
    curves = bump_curves(config)
    failed = "" if fits["converged"].all() else (
        f"{int(np.sum(fits['converged'] == 0))} fits did not converge"
    )  # fmt: skip
    if not all(np.isfinite(curve).all() for curve in curves.values()):
        failed = "a curve of the bump is not finite"
    return fits | {
        "widths": np.array(config.widths),
        "starts": np.array(config.starts),
        "dtypes": np.array(config.dtypes),
        "curves": curves,
        "stranded": float(stranded.params),
        "summary": summary(fits, stranded, curves, config),
        "metrics": metrics,
        "failed": failed,
    }


def learnt(width, start, dtype, config):
    """The fit of one width from one start, by L-BFGS."""
    inputs = jnp.asarray(inputs_of(width, start, config), dtype)
    targets = tg.safe.bump(inputs, jnp.asarray(width, dtype))
    objective = jax.tree_util.Partial(relative_loss, inputs, targets)
    return tg.minimize(
        objective, jnp.asarray(start, dtype), optax.lbfgs(), config.num_steps, progress=False,
        constraints=fitting.Positive(),
    )  # fmt: skip


def inputs_of(width, start, config):
    """Inputs well beyond both supports and beyond 1, some of them inside both."""
    reach = config.span * max(width, start, 1.0)
    return np.linspace(-reach, reach, config.num_inputs)


def relative_loss(inputs, targets, width):
    """Squared residuals over squared targets."""
    return jnp.sum((tg.safe.bump(inputs, width) - targets) ** 2) / jnp.sum(targets**2)


def bump_curves(config):
    """The bump and its derivatives: over x for every width, and at x = 1 as the width grows."""
    widths = jnp.array(config.widths)
    x = jnp.geomspace(config.curve.start, config.curve.stop, config.curve.num)
    grown = jnp.geomspace(min(config.widths), max(config.widths), config.curve.num)
    over_x = jax.vmap(jax.value_and_grad(tg.safe.bump), (0, None))
    over_width = jax.vmap(jax.value_and_grad(tg.safe.bump, argnums=1), (None, 0))
    value, slope = jax.vmap(over_x, (None, 0))(x, widths)
    at_one, growth = over_width(1.0, grown)
    return {
        "x": x, "value": value, "slope": slope,
        "width": grown, "value_at_one": at_one, "growth_at_one": growth,
    }  # fmt: skip


def summary(fits, stranded, curves, config):
    """A table of the recovered widths, and the fit from a start that sees no input."""
    lines = ["recovered widths, one column for each start"]
    starts = "".join(f"{start:>14g}" for start in config.starts)
    lines.append(f"{'dtype':<9}{'true':>6}{starts}{'worst error':>13}{'steps':>7}")
    for i, dtype in enumerate(config.dtypes):
        for j, width in enumerate(config.widths):
            digits = 10 if dtype == "float64" else 7
            found = "".join(f"{value:>14.{digits}g}" for value in fits["recovered"][i, j])
            worst, steps = fits["error"][i, j].max(), int(fits["steps"][i, j].max())
            lines.append(f"{dtype:<9}{width:>6g}{found}{worst:>13.1e}{steps:>7}")
    bad = sum(int(np.sum(~np.isfinite(x))) for x in (*curves.values(), fits["recovered"]))
    lines.append(f"not finite: {bad} of all values, derivatives and widths")
    inputs, start = inputs_of(config.widths[-1], config.stranded_start, config), stranded.params
    inside = int(np.sum(np.abs(inputs) < config.stranded_start))
    lines.append(
        f"from {config.stranded_start:g}, with {inside} inputs inside, the width ends at "
        f"{float(start):g}. {stranded.reason}"
    )
    return lines
