"""Laws of minima: of any loss over any tree of parameters, of errors from curvature, of sums."""

import numpy as np
from hypothesis import strategies as st

from tests.referee.frame import Case, law

INF = np.inf
LEAVES = "np.hstack([np.ravel(x) for x in jax.tree.leaves({})])"
SPREAD = "n / 2 * (jnp.linalg.slogdet(S := {0})[1] + jnp.trace(jnp.linalg.solve(S, C)))"
SCALED = "w @ ((y - p['m']) ** 2 / 2 / p['s']['a'] ** 2 + jnp.log(p['s']['a'])) @ jnp.ones(2)"
BOUNDED = "jnp.sum((p['b'].low - 1.0) ** 2) + p['v'] ** 2 + (p['b'].high[0] / top - 1) ** 2"
AROUND = "start = {'m': jnp.zeros(2), 's': {'a': 2 * jnp.ones(2)}}"
WITHIN = "start = {'b': tg.Box([0.0, 0.0], [1.0, jnp.inf]), 'v': 2.0}"
FORMS = {  # the start, the loss of p, and constraints
    "scales": (AROUND, SCALED, ["{'s': tg.fitting.Positive()}", "{'s/a': tg.fitting.Positive()}"]),
    "frozen": (AROUND, SCALED, ["{'m': tg.fitting.Frozen(), 's': tg.fitting.Positive()}"]),
    "matrix": ("start = 2 * jnp.eye(2)", SPREAD.format("p"), ["tg.fitting.PositiveDefinite()"]),
    "factor": ("start = jnp.eye(2)", SPREAD.format("p @ p.T"), ["tg.fitting.LowerTriangular()"]),
    "limits": (WITHIN, BOUNDED, ["{'b': tg.fitting.Limits()}"]),
    "simplex": (
        "start = jnp.full(3, 1 / 3)",
        "-jnp.sum(k * jnp.log(p))",
        ["constraints.simplex", "tg.fitting.Bijection(constraints.simplex)"],
    ),
    "interval": (
        "start = jnp.full(3, 0.5)",
        "-jnp.sum(k * jnp.log(p) + (k.sum() - k) * jnp.log1p(-p))",
        ["constraints.unit_interval"],
    ),
}


def minimum(form, names):
    """Where the loss is lowest, and the errors by its curvature there."""
    y, w, k, n, C = (names[x] for x in ("y", "w", "k", "n", "C"))
    if form in ("scales", "frozen"):
        m = np.zeros(2) if form == "frozen" else w @ y / n
        s = np.sqrt(w @ (y - m) ** 2 / n)
        return np.r_[m, s], np.r_[s * (form != "frozen"), s / np.sqrt(2)] / np.sqrt(n)
    if form == "matrix":
        return C.ravel(), np.sqrt((np.outer(np.diag(C), np.diag(C)) + C**2) / n).ravel()
    if form == "factor":  # of independent chi and normal variables, as Bartlett's
        (a, _), (b, c) = L = np.linalg.cholesky(C)
        return L.ravel(), np.sqrt(np.r_[a**2 / 2, 0.0, b**2 / 2 + c**2, c**2 / 2] / n)
    if form == "limits":
        return np.r_[1.0, 1.0, names["top"], INF, 0.0], np.zeros(0)
    p = k / k.sum()
    return p, np.sqrt(p * (1 - p) / k.sum())


@law
def minima(draw):
    """Minima under constraints, known in closed form, and errors by the curvature there."""
    form, seed = draw(st.sampled_from(list(FORMS))), draw(st.integers(0, 10**4))
    start, loss, constraints = FORMS[form]
    w = draw(st.sampled_from(["np.ones(40)", "1.0 + np.arange(40) % 3"]))
    options = draw(st.sampled_from(["", "num_steps=3000, ", "tolerance=1e-9, "]))
    setup = "from numpyro.distributions import constraints\n"
    setup += f"rng = np.random.default_rng({seed}); w = {w}; k = rng.integers(3, 20, 3); "
    setup += f"top = {draw(st.sampled_from([3.0, 1.5, 1e3]))}\n"
    unit = draw(st.sampled_from([1.0, 10.0, 0.1]))
    setup += f"y = {unit} * (rng.normal(size=(40, 2)) @ [[1.0, 0.6], [0.0, 0.8]] + 1.0)\n"
    setup += "n = w.sum(); m = w @ y / n; C = (y - m).T * w @ (y - m) / n\n"
    setup += f"{start}; loss = lambda p: {loss}; c = {draw(st.sampled_from(constraints))}\n"
    setup += f"fit = tg.minimize(loss, start, constraints=c, {options}progress=False)\n"
    bars = "np.zeros(0)" if form == "limits" else LEAVES.format("bars")
    setup += "bars = tg.fitting.standard_errors(loss, fit.params, c)" * (form != "limits")
    ours = f"np.r_[{LEAVES.format('fit.params')}, {bars}, fit.loss, fit.loss_trace[0], "
    ours += "len(fit.loss_trace) - fit.num_steps, fit.gradient_norm < 1e-2]"

    def oracle(names):
        loss, fit = names["loss"], names["fit"]
        return np.r_[*minimum(form, names), loss(fit.params), loss(names["start"]), 1.0, 1.0], 0.0

    return Case(f"{form}, {options}", setup, ours, oracle, 1e-4)


@law
def curvatures(draw):
    """Errors of estimates by a factor of the information, and the distance to an optimum."""
    rows, q = draw(st.sampled_from([6, 3])), draw(st.integers(1, 3))
    seed, lost = draw(st.integers(0, 10**4)), draw(st.sampled_from([None, 0, q - 1]))
    sizes = np.array(draw(st.lists(st.sampled_from([1.0, 1e4, 1e-6]), min_size=q, max_size=q)))
    setup = f"rng = np.random.default_rng({seed}); v = {sizes.tolist()}\n"
    setup = (
        setup if lost is None else setup.split(";")[0] + "; v = 1.0\n"
    )  # of a column of 0 there is no unit
    setup += f"A = rng.normal(size=({rows}, {q})) * v\n"
    setup += f"A[:, {lost}] = 0.0\n" if lost is not None else ""  # which has no unit
    setup += f"J = rng.normal(size=(4, {q})) / v; J[0] = 0.0; g = A.T @ rng.normal(size={rows})\n"
    setup += f"J[1, {lost}] = 0.0\n" if lost is not None else ""
    setup += "bars = tg.fitting.error_bars(A, J); c = tg.fitting.certificate(g, A.T @ A, 0.25)"
    ours = "np.r_[bars.standard_errors, np.ravel(bars.covariance), bars.identified, bars.rank, "
    ours += "c.gradient, c.distance, c.curvature, c.positive_definite, c.stderr]"

    def oracle(names):
        A, J, g = (names[x] for x in "AJg")
        kept = [j for j in range(q) if j != lost]
        covariance, touched = np.zeros((4, 4)), np.zeros(4, bool)
        if kept:
            unit = np.linalg.norm(A[:, kept], axis=0)
            root = J[:, kept] / unit @ np.linalg.pinv(A[:, kept] / unit)
            covariance = root @ root.T
        if lost is not None:
            touched = J[:, lost] != 0
            covariance[touched] = covariance[:, touched] = np.nan
            covariance[touched, touched] = INF
        errors = np.r_[np.sqrt(np.diag(covariance)), covariance.ravel(), ~touched, len(kept)]
        if lost is not None:
            return np.r_[errors, np.nan, np.nan, 0.0, 0.0, 0.25], 0.0
        H = A.T @ A
        unit = np.sqrt(np.diag(H))
        inverse = np.linalg.inv(H / np.outer(unit, unit))
        slope = np.max(abs(g / unit) * np.sqrt(np.diag(inverse)))
        least = np.linalg.eigvalsh(H / np.outer(unit, unit))[0]
        far = np.sqrt(g / unit @ inverse @ (g / unit))
        return np.r_[errors, slope, far, least, 1.0, 0.25], 0.0

    return Case(f"{q} of {rows}, without {lost}", setup, ours, oracle, 1e-6)


@law
def statistics(draw):
    """Number, weight, mean, scatter and ends of rows of a file, or of parts that are added."""
    kind = draw(st.sampled_from(["csv", "npz", "rows", "npy"]))
    count, seed = draw(st.sampled_from([1, 3, 7])), draw(st.integers(0, 10**4))
    count = 1 if kind == "csv" else count  # whose parts are of thousands of rows
    word = draw(st.sampled_from(["", "w", "w"])) if kind != "npy" else ""
    origin, zeros = draw(st.sampled_from([0.0, 1e6])), draw(st.booleans())
    columns = draw(st.sampled_from(["None", "['x', 'y']", "['y', 'x']"]))
    columns = "['x', 'y']" if columns == "None" and not word else columns
    columns = "None" if kind in ("npy", "rows") else columns
    n = draw(st.sampled_from([53, 9]))
    setup = "import os, tempfile, pandas as pd; f = tempfile.mkdtemp() + '/t.' + "
    setup += f"{kind!r}\n"
    setup += f"rng = np.random.default_rng({seed}); x, y = {origin} + rng.normal(size=(2, {n})); "
    setup += f"w = {'np.arange' if zeros else '1.0 + np.arange'}({n}) % 3.0\n"
    setup += "t = pd.DataFrame({'x': x, 'w': w, 'y': y})\n"
    setup += {
        "csv": "t.to_csv(f, index=False, float_format='%.17g')\n",
        "npz": "np.savez(f, x=x, w=w, y=y)\n",
        "npy": "np.save(f, np.c_[x, y])\n",
        "rows": "rows = np.c_[x, y]\n",
    }[kind]
    weighted = ", weights='w'" if word else ""
    of = f"tg.Statistics.from_file(f, {columns}{weighted}, part=(i, {count}))"
    if kind == "rows":
        weighted = f", w[i::{count}]" if word else ""
        of = f"tg.Statistics.from_rows(rows[i::{count}]{weighted})"
    setup += f"s = sum({of} for i in range({count}))"
    ours = "np.r_[s.num_rows, s.weight, s.mean, np.ravel(s.scatter), s.lowest, s.highest]"

    def oracle(names):
        rows, w = np.c_[names["x"], names["y"]], names["w"] if word else np.ones(n)
        rows = rows[:, ::-1] if columns == "['y', 'x']" else rows
        rows, w = rows[w > 0], w[w > 0]
        middle = np.average(rows - origin, axis=0, weights=w)
        apart = rows - origin - middle
        ends = rows.min(axis=0), rows.max(axis=0)
        return np.r_[len(w), w.sum(), middle + origin, ((w * apart.T) @ apart).ravel(), *ends], 0.0

    kinds = f"{kind}, {word or 'no weights'}, {count} parts, {columns}"
    return Case(kinds, setup, ours, oracle, 1e-12, refused=bool(word))
