"""Accuracy and speed of the normal distribution in one dimension, in four libraries.

The reference values are the series and the continued fraction of the normal tail in 80 digits (M.
Abramowitz and I. A. Stegun, "Handbook of Mathematical Functions", 26.2.11 and 26.2.14). Times are
for one jitted call on an array, in nanoseconds for each element; they depend on the machine, their
ratios less so.
"""

import math
from decimal import Decimal, localcontext
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import scipy.integrate
import scipy.special
import scipy.stats

import truncgauss as tg
from truncgauss import special

from ..timing import timed

PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899863"
)
ORDERS = ("value", "first derivative", "second derivative")
TARGETS = {"float64": (1e-13, 1e-11, 1e-9), "float32": (2e-6, 1e-5, 1e-4)}


def run(config):
    """Errors of log Phi, of truncated normals where others fail, and times of every function."""
    x = np.linspace(config.grid.start, config.grid.stop, config.grid.num)
    errors = {name: log_ndtr_errors(x.astype(name)) for name in config.dtypes}
    times = {name: speeds(config, jnp.dtype(name)) for name in config.dtypes}
    worst = max(
        curve[order].max() / TARGETS[name][k]
        for name, found in errors.items()
        for k, (order, curve) in enumerate((order, found["truncgauss"]) for order in ORDERS)
    )
    found = traps(config.seed)
    lost = [case for case, row in found.items() if not close(case, row)]
    failed = "" if worst <= 1 else f"an error of ours is {worst:.3g} times its target"
    if lost:
        failed = f"the truncated normal of ours is wrong: {', '.join(lost)}"
    return {
        "x": x,
        "errors": errors,
        "traps": found,
        "nanoseconds": times,
        "summary": [
            *accuracy_table(x, errors), "", *trap_table(found), "", *speed_table(times),
        ],
        "failed": failed,
    }  # fmt: skip


# ---------------------------------------------------------------- the truth


def exact_log_ndtr(x):
    """log Phi(x) and its first two derivatives, from the exact value of a float."""
    with localcontext() as context:
        context.prec = 80
        z = abs(Decimal(float(x)))
        density = (-z * z / 2).exp() / (2 * PI).sqrt()
        if z < 8:
            context.prec = 110  # the series loses as many digits as the tail is small
            term, total, k = z, z, 1
            while abs(term) > Decimal(10) ** -105:
                term *= z * z / (2 * k + 1)
                total, k = total + term, k + 1
            density = (-z * z / 2).exp() / (2 * PI).sqrt()
            tail = Decimal("0.5") - density * total
        else:
            rest = z
            for k in range(400, 0, -1):
                rest = z + k / rest
            tail = density / rest
        below = tail if x < 0 else 1 - tail
        slope = density / below
        return [float(v) for v in (below.ln(), slope, -slope * (slope + Decimal(float(x))))]


def log_ndtr_errors(x):
    """|error| / max(1, |truth|) on the grid, by library and order; a NaN counts as infinite."""
    exact = np.array([exact_log_ndtr(v) for v in x]).T
    functions = {"truncgauss": special.log_ndtr, "JAX": jax.scipy.special.log_ndtr}
    found = {}
    for name, function in functions.items():
        slope = jax.grad(function)
        orders = (function, slope, jax.grad(slope))
        found[name] = [np.asarray(jax.jit(jax.vmap(f))(jnp.asarray(x))) for f in orders]
    found["SciPy"] = [scipy.special.log_ndtr(x)]
    errors = {}
    for name, values in found.items():
        errors[name] = {}
        for order, value, true in zip(ORDERS, values, exact):
            error = np.abs(value.astype(float) - true) / np.maximum(1, np.abs(true))
            errors[name][order] = np.where(np.isnan(error), math.inf, error)
    return errors


def accuracy_table(x, errors):
    lines = [f"log Phi: largest error for x from {x[0]:g} to {x[-1]:g}, and where"]
    for dtype, libraries in errors.items():
        for name, orders in libraries.items():
            cells = [f"{e.max():.1e} at {x[e.argmax()]:g}" for e in orders.values()]
            lines.append(f"{dtype:8} {name:11}" + "".join(f"{text:>22}" for text in cells))
    return lines


# ---------------------------------------------------------------- traps of the truncated normal

DENSITIES = ((9, 10, 9.1), (8, 9, 8.1), (30, 31, 30.1), (-31, -30, -30.1), (1000, 1001, 1000.001))


def traps(seed):
    """Properties of truncated normals far out in a tail: true values, ours, and NumPyro's."""
    libraries = {"truncgauss": tg.TruncatedNormal, "NumPyro": dist.TruncatedNormal}
    of = lambda ask: {name: float(ask(make)) for name, make in libraries.items()}
    found = {}
    for low, high, x in DENSITIES:
        truth, slope = exact_density(low, high, x)
        name = f"[{low}, {high}] log density at {x:g}"
        asked = partial(density_and_slope, low=float(low), high=float(high), x=x)
        both = {library: asked(make) for library, make in libraries.items()}
        for k, (case, true) in enumerate({name: truth, f"{name}, slope in loc": slope}.items()):
            found[case] = {"truth": true} | {library: pair[k] for library, pair in both.items()}
    mean, _ = exact_moments(100.0, 115.0)
    found["[100, 115] mean"] = {"truth": mean} | of(
        lambda make: make(0.0, 1.0, low=100.0, high=115.0).mean
    )
    _, variance = exact_moments(1e6 - 1000.0, 1e6)
    found["loc 1e6 on [0, 1000], variance"] = {"truth": variance} | of(
        lambda make: make(1e6, 1.0, low=0.0, high=1000.0).variance
    )
    found["[9, 10] quantile of 1"] = {"truth": 10.0} | of(
        lambda make: make(0.0, 1.0, low=9.0, high=10.0).icdf(jnp.ones(()))
    )
    key, (mean, _) = jax.random.key(seed), exact_moments(30.0, 31.0)
    single = jnp.float32
    found["[30, 31] mean of 1e5 draws in float32"] = {"truth": mean} | of(
        lambda make: make(
            single(0), single(1), low=single(30), high=single(31)
        ).sample(key, (100_000,)).mean()
    )  # fmt: skip
    return found


def density_and_slope(make, low, high, x):
    """Log density at x of a truncated standard normal, and its derivative in the mean."""
    log_prob = lambda loc: make(loc, 1.0, low=low, high=high).log_prob(x)
    return tuple(map(float, jax.value_and_grad(log_prob)(0.0)))


def close(case, row):
    """Whether ours has the digits that its question has: a mean of draws has few, and x - mean of
    a slope cancels."""
    relative = 1e-5 if "draws" in case else 1e-9
    allowed = relative * abs(row["truth"]) + (1e-11 if "slope in loc" in case else 0.0)
    return abs(row["truncgauss"] - row["truth"]) <= allowed


def exact_density(low, high, x):
    """Log density of the standard normal on [low, high], and its derivative in the mean."""
    sign = 1.0 if low > 0 else -1.0
    near, far, x = (low, high, x) if low > 0 else (-high, -low, -x)
    (near_mass, near_slope, _), (far_mass, far_slope, _) = map(exact_log_ndtr, (-near, -far))
    rest = math.exp(far_mass - near_mass)
    log_mass = near_mass + math.log1p(-rest)
    mean = (near_slope - far_slope * rest) / (1.0 - rest)
    log_density = -0.5 * x * x - 0.5 * math.log(2 * math.pi) - log_mass
    return log_density, sign * (x - mean)


def exact_moments(low, high):
    """Mean and variance of the standard normal on [low, high], low far above 0, by quadrature."""
    weight = lambda s: math.exp(-s - 0.5 * (s / low) ** 2)  # s = low (x - low)
    end = min(60.0, low * (high - low))
    total, first, second = (
        scipy.integrate.quad(lambda s, k=k: s**k * weight(s), 0, end, epsabs=0, epsrel=1e-13)[0]
        for k in range(3)
    )
    mean = first / total
    return low + mean / low, (second / total - mean**2) / low**2


def trap_table(found):
    names = ("truth", "truncgauss", "NumPyro")
    lines = ["truncated normals" + " " * 22 + "".join(f"{name:>22}" for name in names)]
    for case, row in found.items():
        lines.append(f"{case:39}" + "".join(f"{row[name]:22.12g}" for name in names))
    return lines


# ---------------------------------------------------------------- the speed


def nanoseconds(function, arguments, num_repeats):
    """The median time of a call, an element; a NumPy function is timed as it is."""
    return timed(function, arguments, num_repeats)["seconds"] * 1e9 / arguments[0].size


def with_pullback(function, *arguments):
    value, pullback = jax.vjp(function, *arguments)
    return value, pullback(jax.tree.map(jnp.ones_like, value))


def speeds(config, dtype):
    """Nanoseconds an element of each function: value, value and vjp."""
    keys = jax.random.split(jax.random.key(config.seed), 4)
    draw = lambda key, kind: kind(key, (config.num_points,), dtype)
    x = 3 * draw(keys[0], jax.random.normal)
    low = 2 * draw(keys[1], jax.random.normal)
    high = low + 2 * draw(keys[2], jax.random.exponential)
    uniform = draw(keys[3], partial(jax.random.uniform, minval=1e-6))
    middle = 0.5 * (low + high)
    density = lambda x, low, high: special.truncated_log_density(x, 0.0, 1.0, low, high)
    entries = {
        "log_ndtr": ((x,), special.log_ndtr, jax.scipy.special.log_ndtr, scipy.special.log_ndtr),
        "ndtr": ((x,), special.ndtr, jax.scipy.special.ndtr, scipy.special.ndtr),
        "log_interval_mass": ((low, high), special.log_interval_mass, None, None),
        "truncated_log_density": (
            (middle, low, high), density, jax.scipy.stats.truncnorm.logpdf,
            scipy.stats.truncnorm.logpdf,
        ),
        "separation_step": ((low, high, uniform), special.separation_step, None, None),
    }  # fmt: skip
    clock = partial(nanoseconds, num_repeats=config.num_repeats)
    times = {}
    for name, (arguments, ours, theirs, host) in entries.items():
        row = {}
        for library, function in (("truncgauss", ours), ("JAX", theirs)):
            if function is not None:
                row[library] = clock(jax.jit(function), arguments)
                row[f"{library} vjp"] = clock(jax.jit(partial(with_pullback, function)), arguments)
        if host is not None:
            row["SciPy"] = clock(host, [np.asarray(a) for a in arguments])
        times[name] = row
    positive = jnp.abs(x) + 0.1
    for name, function, argument in (
        ("exp", jnp.exp, low), ("log", jnp.log, positive), ("erfc", jax.lax.erfc, low),
    ):  # fmt: skip
        times[name] = {"JAX": clock(jax.jit(function), (argument,))}
    return times


def speed_table(times):
    columns = ("truncgauss", "JAX", "SciPy", "truncgauss vjp", "JAX vjp")
    lines = ["nanoseconds an element" + " " * 11 + "".join(f"{name:>16}" for name in columns)]
    for dtype, rows in times.items():
        for name, row in rows.items():
            cells = (f"{row[column]:16.2f}" if column in row else " " * 16 for column in columns)
            lines.append(f"{dtype:9} {name:23}" + "".join(cells))
        # A step takes a tail at either end, two logarithms and two exponentials, whoever writes it.
        least = 2 * sum(rows[name]["JAX"] for name in ("exp", "log", "erfc"))
        ratio = rows["separation_step"]["truncgauss"] / least
        lines.append(f"{dtype:9} step over twice exp + log + erfc: {ratio:.2f}")
    return lines
