"""Accuracy of the normal distribution in one dimension, in four libraries.

The reference values are the series and the continued fraction of the normal tail in 80 digits (M.
Abramowitz and I. A. Stegun, "Handbook of Mathematical Functions", 26.2.11 and 26.2.14).
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

import truncgauss as tg
from truncgauss import special

PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899863"
)
ORDERS = ("value", "first derivative", "second derivative")
TARGETS = {"float64": (1e-13, 1e-11, 1e-9), "float32": (2e-6, 1e-5, 1e-4)}


def run(config):
    """Errors of log Phi, and truncated normals where others fail."""
    x = np.linspace(config.grid.start, config.grid.stop, config.grid.num)
    errors = {name: log_ndtr_errors(x.astype(name)) for name in config.dtypes}
    worst = max(
        found["truncgauss"][order].max() / target
        for name, found in errors.items()
        for order, target in zip(ORDERS, TARGETS[name])
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
        "summary": [*accuracy_table(x, errors), "", *trap_table(found)],
        "failed": failed,
    }


# ---------------------------------------------------------------- the truth


def exact_log_ndtr(x):
    """log Phi(x) and its first two derivatives, from the exact value of a float."""
    with localcontext() as context:
        context.prec = 110  # the series loses as many digits as the tail is small
        z = abs(Decimal(float(x)))
        density = (-z * z / 2).exp() / (2 * PI).sqrt()
        if z < 8:
            term, total, k = z, z, 1
            while abs(term) > Decimal(10) ** -105:
                term *= z * z / (2 * k + 1)
                total, k = total + term, k + 1
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
    found = {}
    for name, function in (("truncgauss", special.log_ndtr), ("JAX", jax.scipy.special.log_ndtr)):
        slope = jax.grad(function)
        orders = (function, slope, jax.grad(slope))
        found[name] = [np.asarray(jax.jit(jax.vmap(f))(jnp.asarray(x))) for f in orders]
    found["SciPy"] = [scipy.special.log_ndtr(x)]

    def error(value, true):
        size = np.abs(value.astype(float) - true) / np.maximum(1, np.abs(true))
        return np.where(np.isnan(size), math.inf, size)

    return {name: dict(zip(ORDERS, map(error, values, exact))) for name, values in found.items()}


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
    found = {}

    def ask(case, truth, of):
        libraries = {"truncgauss": tg.TruncatedNormal, "NumPyro": dist.TruncatedNormal}
        found[case] = {"truth": truth} | {name: float(of(x)) for name, x in libraries.items()}

    for low, high, x in DENSITIES:
        truth, slope = exact_density(low, high, x)
        name = f"[{low}, {high}] log density at {x:g}"

        def log_density(loc, make, ends=(float(low), float(high)), x=x):
            return make(loc, 1.0, low=ends[0], high=ends[1]).log_prob(x)

        ask(name, truth, partial(log_density, 0.0))
        ask(f"{name}, slope in loc", slope, partial(jax.grad(log_density), 0.0))
    mean, _ = exact_moments(100.0, 115.0)
    ask("[100, 115] mean", mean, lambda make: make(0.0, 1.0, low=100.0, high=115.0).mean)
    _, variance = exact_moments(1e6 - 1000.0, 1e6)
    ask(
        "loc 1e6 on [0, 1000], variance", variance,
        lambda make: make(1e6, 1.0, low=0.0, high=1000.0).variance,
    )  # fmt: skip
    upper = lambda make: make(0.0, 1.0, low=9.0, high=10.0).icdf(jnp.ones(()))
    ask("[9, 10] quantile of 1", 10.0, upper)
    key, (mean, _) = jax.random.key(seed), exact_moments(30.0, 31.0)
    loc, scale, low, high = map(jnp.float32, (0, 1, 30, 31))
    drawn = lambda make: make(loc, scale, low=low, high=high).sample(key, (100_000,)).mean()
    ask("[30, 31] mean of 1e5 draws in float32", mean, drawn)
    return found


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
