"""What the log-likelihood of a mixture and its gradient cost as rows, components and dimensions
grow: floating point operations, counted in the program, and processor seconds."""

import math
import time

import jax
import numpy as np

import truncgauss as tg
from truncgauss.fitting.mixtures import em, fit, likelihood

PEAK = 34e12  # double precision operations a second of one H100, by its data sheet
FREE = {
    "broadcast_in_dim", "reshape", "transpose", "squeeze", "slice", "dynamic_slice", "concatenate",
    "gather", "convert_element_type", "copy", "iota", "rev", "pad", "stop_gradient", "split",
}  # fmt: skip


def costs(sizes, seed):
    """For each (n, K, d): operations of one evaluation, and processor seconds of the second."""
    found = []
    for n, k, d in sizes:
        whole, start = problem(n, k, d, seed)
        parts = likelihood.parts_of(whole)
        traced = jax.make_jaxpr(lambda part, start: em._expectation.traced(part, start, None))
        counted = len(parts) * operations(traced(parts[0], start).jaxpr)
        em.expectation(whole, start)
        begin = time.process_time()
        em.expectation(whole, start)
        found.append((n, k, d, counted, time.process_time() - begin))
    return np.array(found)


def problem(n, k, d, seed):
    """Rows with noise of their own, a tenth without the last entry, that passed two cuts."""
    rng = np.random.default_rng(seed)
    locs = 2.0 * rng.normal(size=(k, d))
    roots = 0.3 * rng.normal(size=(k, d, d))
    covariances = roots @ np.swapaxes(roots, 1, 2) + 0.3 * np.eye(d)
    cuts, low = np.eye(d)[:2] + 0.5 * np.eye(d)[-2:][::-1], -2.0
    seen = np.zeros((0, d))
    while len(seen) < n:
        own = rng.integers(k, size=n)
        factors = np.linalg.cholesky(covariances)[own]
        y = locs[own] + np.einsum("nij,nj->ni", factors, rng.normal(size=(n, d)))
        seen = np.vstack([seen, y[np.all(y @ cuts.T > low, axis=1)]])
    seen = seen[:n]
    seen[: n // 10, -1] = np.nan
    region = tg.Polyhedron(cuts, [low, low], [np.inf, np.inf])
    noise = rng.uniform(0.02, 0.3, size=(n, d))
    rows = tg.Observations.exact(seen, nan_is_missing=True, noise=noise, region=region)
    whole, _ = fit.prepared_loss(rows, k, "full")
    start = em.Components(np.full(k, 1 / k), locs, covariances)
    return likelihood.planned(whole, whole.method, start), start


def operations(jaxpr):
    """Floating point operations of a program, each function of a number counted as one; a loop
    whose length depends on numbers counts once."""
    total = 0.0
    for equation in jaxpr.eqns:
        name, times = equation.primitive.name, 1
        inner = [part for value in equation.params.values() for part in programs(value)]
        if inner:
            times = equation.params["length"] if name == "scan" else 1
            parts = [operations(part) for part in inner]
            total += times * (max(parts) if name == "cond" else sum(parts))
        elif name not in FREE:
            total += own_operations(equation, name)
    return total


def programs(value):
    """The programs among the parameters of an operation."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    parts = [getattr(part, "jaxpr", part) for part in values]
    return [part for part in parts if hasattr(part, "eqns")]


def own_operations(equation, name):
    """Of one operation of arrays, by the sizes of its inputs and results."""
    shapes = [leaf.aval.shape for leaf in equation.invars]
    out = sum(math.prod(leaf.aval.shape) for leaf in equation.outvars)
    if name == "dot_general":
        contracted = equation.params["dimension_numbers"][0][0]
        return 2 * out * math.prod(shapes[0][axis] for axis in contracted)
    if name == "cholesky":
        return math.prod(shapes[0]) * shapes[0][-1] / 3
    if name == "triangular_solve":
        return math.prod(shapes[1]) * shapes[0][-1]
    if name.startswith("reduce") or name.startswith("cum"):
        return math.prod(shapes[0])
    return out


def table(found):
    """Lines for the summary."""
    lines = [
        f"{'rows':>9}{'K':>4}{'d':>4}{'operations':>13}{'processor s':>13}{'a second':>12}"
        f"{'at the peak of one H100':>26}"
    ]
    for n, k, d, counted, seconds in found:
        lines.append(
            f"{n:>9.0f}{k:>4.0f}{d:>4.0f}{counted:>13.2e}{seconds:>13.2f}{counted / seconds:>12.1e}"
            f"{counted / PEAK:>24.1e} s"
        )
    return lines
