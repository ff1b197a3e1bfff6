"""The fraction inside limits and its gradient along a shift of the mean: naive, soft and exact.

Standard-normal samples are transformed by the Cholesky factor, shifted, filtered by a smooth edge
at either limit and averaged. Every way to do that, and its gradient, is held against the exact
answer.
"""

import jax
import jax.numpy as jnp
import numpy as np

import truncgauss as tg
from truncgauss import parallel

from ..timing import timed

SAMPLES_AT_ONCE = 2**20


def run(config):
    """Value, gradient, standard errors and relative errors of every way, and its timings."""
    shifts = jnp.linspace(config.shift.start, config.shift.stop, config.shift.num)
    gaussian = jnp.array(config.gaussian.loc), jnp.array(config.gaussian.covariance)
    problem = *gaussian, tg.Box(**dict(config.limits))
    samples = drawn(config)
    sizes = {tanh_name(n): n for n in config.num_samples}
    few = samples[config.num_samples[0]]
    edge = tg.Tanh(jnp.asarray(config.steepness))
    gentle = tg.Surrogate(tg.Tanh(jnp.asarray(config.surrogate_steepness)))

    ways = {"exact": (library, tg.Exact(), 1)}
    ways["naive"] = (naive, (edge.steepness, few), len(few))
    for name, n in sizes.items():
        ways[name] = (library, tg.SoftMonteCarlo(samples=samples[n], edge=edge), n)
    ways["surrogate"] = (library, tg.SoftMonteCarlo(samples=few, edge=gentle), len(few))

    curves = {}
    for name, (fraction, settings, num_samples) in ways.items():
        curve = along(shifts, num_samples, fraction)
        cost = timed(curve, (problem, settings), config.num_repeats)
        value, gradient = map(np.asarray, cost["output"])
        curves[name] = {"value": value, "gradient": gradient}
        curves[name] |= {"first_seconds": cost["first_seconds"], "later_seconds": cost["seconds"]}
    for name, n in sizes.items():
        curves[name] |= standard_errors(shifts, problem, samples[n], edge)
    core = np.abs(np.asarray(shifts)) <= config.core
    for name in set(curves) - {"exact"}:
        curves[name] |= relative_errors(curves[name], curves["exact"], core)
    finite = all(np.isfinite(curves["exact"][key]).all() for key in ("value", "gradient"))
    return {
        "shift": shifts,
        "steepness": config.steepness,
        "surrogate_steepness": config.surrogate_steepness,
        "num_samples": np.array(config.num_samples),
        "curves": curves,
        "summary": summary(curves, config),
        "failed": "" if finite else "the exact curve is not finite everywhere",
    }


def tanh_name(num_samples):
    return f"tanh {num_samples:,}"


def drawn(config):
    """Standard-normal samples of every size, spread over the devices."""
    mesh, d = parallel.device_mesh(config.devices), len(config.gaussian.loc)
    keys = jax.random.split(jax.random.key(config.seed), len(config.num_samples))
    return {
        n: parallel.spread(jax.random.normal(key, (n, d)), mesh)
        for key, n in zip(keys, config.num_samples, strict=True)
    }


# ---------------------------------------------------------------- ways to a fraction


def library(shift, problem, method):
    """The fraction as truncgauss computes it."""
    loc, covariance, region = problem
    return tg.fraction_not_truncated(loc + shift, covariance, region, method=method)


def naive(shift, problem, settings):
    """The filter as one writes it first: a sigmoid 1 / (1 + exp(-k m)) of either margin."""
    steepness, samples = settings
    x = shifted(shift, problem, samples)
    _, _, region = problem
    above = 1 / (1 + jnp.exp(-steepness * (x - region.low)))
    below = 1 / (1 + jnp.exp(-steepness * (region.high - x)))
    return jnp.mean(jnp.prod(above * below, axis=-1))


def shifted(shift, problem, samples):
    loc, covariance, _ = problem
    return loc + shift + samples @ jnp.linalg.cholesky(covariance).T


# ---------------------------------------------------------------- curves and their errors


def along(shifts, num_samples, fraction):
    """A compiled function (problem, settings) -> value and gradient at every shift."""

    @jax.jit
    def curve(problem, settings):
        one = jax.value_and_grad(lambda shift: fraction(shift, problem, settings))
        return jax.lax.map(one, shifts, batch_size=max(1, SAMPLES_AT_ONCE // num_samples))

    return curve


def standard_errors(shifts, problem, samples, edge):
    """Those of value and gradient, from the spread of the samples' own weights and slopes."""
    _, _, region = problem

    def weights(shift):
        margins = region.margins(shifted(shift, problem, samples))
        return jnp.exp(edge.log_value(margins).sum(-1))

    def spread(shift):
        weight, slope = jax.jvp(weights, (shift,), (jnp.ones_like(shift),))
        return tuple(jnp.std(y, ddof=1) / len(samples) ** 0.5 for y in (weight, slope))

    value, gradient = jax.jit(lambda x: jax.lax.map(spread, x))(shifts)
    return {"value_stderr": np.asarray(value), "gradient_stderr": np.asarray(gradient)}


def relative_errors(curve, exact, core):
    """|estimate / exact - 1|: at every shift, the largest, and medians over all and the core."""
    errors = {}
    for kind in ("value", "gradient"):
        error = np.abs(curve[kind] / exact[kind] - 1)
        finite = error[np.isfinite(error)]
        errors[f"{kind}_error"] = error
        errors[f"{kind}_median_error"] = np.median(finite) if finite.size else np.nan
        errors[f"{kind}_core_error"] = np.median(error[core])
        errors[f"{kind}_max_error"] = np.max(finite, initial=0.0) if finite.size else np.nan
        errors[f"{kind}_not_finite"] = int(np.sum(~np.isfinite(curve[kind])))
        if f"{kind}_stderr" in curve:
            held = np.abs(curve[kind] - exact[kind]) <= 2 * curve[f"{kind}_stderr"]
            errors[f"{kind}_held"] = np.mean(held[core])
    return errors


def summary(curves, config):
    row = "{:<17}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>7}{:>10}{:>10}".format
    lines = [
        f"relative errors at {config.shift.num} shifts, and at those within {config.core:g} of 0",
        row("", "value", "", "", "gradient", "", "", "", "seconds", ""),
        row("", "median", "core", "largest", "median", "core", "largest", "NaN", "first", "later"),
    ]
    for name, curve in curves.items():
        errors = [""] * 7
        if name != "exact":
            errors = [
                f"{curve[f'{kind}_{which}_error']:.2g}"
                for kind in ("value", "gradient")
                for which in ("median", "core", "max")
            ] + [curve["gradient_not_finite"]]
        times = (f"{curve[key]:.2g}" for key in ("first_seconds", "later_seconds"))
        lines.append(row(name, *errors, *times))
    for name, curve in curves.items():
        if "value_held" in curve:
            lines.append(
                f"{name}: two standard errors hold the exact value at {curve['value_held']:.0%} "
                f"of the core's shifts, the exact gradient at {curve['gradient_held']:.0%}"
            )
    return lines
