"""Laws of minima: of any loss over any tree of parameters, of errors from curvature, of sums."""

import numpy as np
from hypothesis import strategies as st

from tests.referee.frame import Case, law

INF = np.inf
LEAVES = "np.hstack([np.ravel(x) for x in jax.tree.leaves({})])"


def gaussian_sample(draw):
    """A script of a sample of two columns, of a constraint, loss and start; its minimum, errors."""
    form = draw(st.sampled_from(["scales", "frozen", "matrix", "factor"]))
    unit = draw(st.sampled_from([1.0, 10.0, 0.1]))
    script = (
        f"y = {unit} * rng.normal(size=(40, 2)) @ [[1.0, 0.6], [0.0, 0.8]] + {unit}; n = w.sum()\n"
    )
    script += "m = w @ y / n; C = (y - m).T * w @ (y - m) / n\n"
    f = "tg.fitting."
    if form in ("scales", "frozen"):
        script += f"start = {{'loc': jnp.zeros(2), 'scale': {{'a': {2 * unit}, 'b': {unit}}}}}\n"
        loss = "w @ ((y - p['loc']) ** 2 / 2 / of(p) ** 2 + jnp.log(of(p))) @ jnp.ones(2)"
        script += (
            f"of = lambda p: jnp.stack([p['scale'][k] for k in 'ab']); loss = lambda p: {loss}\n"
        )
        paths = {"frozen": f"{{'loc': {f}Frozen(), 'scale': {f}Positive()}}"}
        paths = paths.get(
            form,
            draw(
                st.sampled_from(
                    [
                        f"{{'scale': {f}Positive()}}",
                        f"{{'scale/a': {f}Positive(), 'scale/b': {f}Positive()}}",
                    ]
                )
            ),
        )

        def truth(names):
            y, w = names["y"], names["w"]
            loc = np.zeros(2) if form == "frozen" else w @ y / w.sum()
            scale = np.sqrt(w @ (y - loc) ** 2 / w.sum())
            errors = scale / np.sqrt(w.sum()), scale / np.sqrt(2 * w.sum())
            value = w.sum() * np.sum(0.5 + np.log(scale))
            return np.r_[loc, scale], np.r_[errors[0] * (form != "frozen"), errors[1]], value

        return form, script, paths, truth
    script += f"start = {unit} * jnp.array([[2.0, 0.0], [0.3, 1.0]])\n"
    S = "L @ L.T" if form == "factor" else "L"
    script = script.replace(
        "0.3, 1.0]])", "0.3, 1.0]])" if form == "factor" else "0.3, 1.0]]); start = start @ start.T"
    )
    script += f"loss = lambda L: n / 2 * (jnp.linalg.slogdet(S := {S})[1] + "
    script += "jnp.trace(jnp.linalg.solve(S, C)))\n"
    paths = f"{f}LowerTriangular()" if form == "factor" else f"{f}PositiveDefinite()"

    def truth(names):
        C, n = names["C"], names["n"]
        variances = (np.outer(np.diag(C), np.diag(C)) + C**2) / n
        value = n / 2 * (np.linalg.slogdet(C)[1] + 2)
        if form == "matrix":
            return C.ravel(), np.sqrt(variances).ravel(), value
        # Of C = L L^T: a = L00, b = L10 and c = L11 of independent errors, but b's, as in Bartlett.
        L = np.linalg.cholesky(C)
        errors = [L[0, 0] / np.sqrt(2 * n), 0.0, 0.0, L[1, 1] / np.sqrt(2 * n)]
        errors[2] = np.sqrt(L[1, 1] ** 2 / n + L[1, 0] ** 2 / (2 * n))
        return L.ravel(), np.array(errors), value

    return form, script, paths, truth


def counts(draw):
    """Likewise of counts of categories, or of limits that are wanted."""
    form = draw(st.sampled_from(["simplex", "unit interval", "limits"]))
    if form == "limits":
        high = draw(st.sampled_from([3.0, 1.5, 1e3]))
        script = (
            f"start = {{'box': tg.Box([0.0, 0.0], [1.0, jnp.inf]), 'v': 2.0}}; b, n = {high}, 1.0\n"
        )
        script += "loss = lambda p: jnp.sum((p['box'].low - 1.0) ** 2) + p['v'] ** 2 + "
        script += "(p['box'].high[0] / b - 1) ** 2\n"
        truth = lambda names: (np.r_[1.0, 1.0, high, INF, 0.0], np.zeros(0), 0.0)
        return form, script, "{'box': tg.fitting.Limits()}", truth
    script = (
        "from numpyro.distributions import constraints; k = np.array([5.0, 20.0, 15.0]); n = 40.0\n"
    )
    if form == "simplex":
        script += "start = jnp.full(3, 1 / 3); loss = lambda p: -jnp.sum(k * jnp.log(p))\n"
        p = np.array([5.0, 20.0, 15.0]) / 40
        value = -40 * np.sum(p * np.log(p))
    else:
        script += "start = jnp.full(3, 0.5)\n"
        script += "loss = lambda p: -jnp.sum(k * jnp.log(p) + (n - k) * jnp.log1p(-p))\n"
        p = np.array([5.0, 20.0, 15.0]) / 40
        value = -40 * np.sum(p * np.log(p) + (1 - p) * np.log1p(-p))
    errors = np.sqrt(p * (1 - p) / 40)
    chosen = draw(st.sampled_from(["{}", "tg.fitting.Bijection({})"]))
    paths = chosen.format(f"constraints.{form.replace(' ', '_')}")
    return form, script, paths, lambda names: (p, errors, value)


@law
def minima(draw):
    """Minima under constraints, known in closed form, and errors by the curvature there."""
    form, script, paths, truth = draw(st.sampled_from([gaussian_sample, counts]))(draw)
    seed = draw(st.integers(0, 10**4))
    w = draw(st.sampled_from(["np.ones(40)", "1.0 + np.arange(40) % 3"]))
    options = draw(st.sampled_from(["", "num_steps=3000, ", "tolerance=1e-9, "]))
    setup = f"rng = np.random.default_rng({seed}); w = {w}\n{script}c = {paths}; "
    setup += f"fit = tg.minimize(loss, start, constraints=c, {options}progress=False)\n"
    bars = "np.zeros(0)"
    if form != "limits":
        setup += "bars = tg.fitting.standard_errors(loss, fit.params, c)"
        bars = LEAVES.format("bars")
    ours = f"np.r_[{LEAVES.format('fit.params')}, {bars}, fit.loss, float(loss(fit.params)), "
    ours += "fit.loss_trace[0], len(fit.loss_trace) - fit.num_steps, fit.gradient_norm < 1e-2]"

    def oracle(names):
        place, errors, value = truth(names)
        first = float(names["loss"](names["start"]))
        return np.r_[place, errors, value, value, first, 1.0, 1.0], 0.0

    return Case(f"{form}, {paths}", setup, ours, oracle, 1e-4)


@law
def curvatures(draw):
    """Errors of estimates by a factor of the information, and the distance to an optimum."""
    rows, q = draw(st.sampled_from([6, 3])), draw(st.integers(1, 3))
    seed, lost = draw(st.integers(0, 10**4)), draw(st.sampled_from([None, 0, q - 1]))
    sizes = np.array(draw(st.lists(st.sampled_from([1.0, 1e4, 1e-6]), min_size=q, max_size=q)))
    setup = f"rng = np.random.default_rng({seed}); v = {sizes.tolist()}\n"
    setup = setup if lost is None else setup.split(";")[0] + "; v = 1.0\n"  # no unit of no column
    setup += f"A = rng.normal(size=({rows}, {q})) * v\n"
    setup += f"A[:, {lost}] = 0.0\n" if lost is not None else ""
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
            root = J[:, kept] @ np.linalg.pinv(A[:, kept])
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
    columns = "None" if kind in ("npy", "rows") else columns
    columns = (
        "['x', 'y']" if columns == "None" and kind not in ("npy", "rows") and not word else columns
    )
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
