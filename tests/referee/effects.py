"""Laws of the terms of clusters' covariances, of the effects of each, and of deviations."""

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from scipy import optimize, stats

from tests.referee.fits import QUIET, also, fitted, numbers
from tests.referee.frame import Case, law

WEIGHTS = {"no weights": "None", "integer weights": "1 + g % 2", "a weight of 0": "1.0 * (g > 2)"}
EFFECTS = {  # by terms: their covariates, and what each effect is called
    "intercept": (["one"], ["intercept"]),
    "b": (["x"], ["b: 0"]),
    "both": (["one", "x"], ["both: 0", "both: 1"]),
}
random = lambda label: (label, lambda p, c: of_effects(p, c, *EFFECTS[label]))
TERMS = {  # their labels, and covariances by parameters p and columns c, but for sigma^2
    "tg.RandomEffects()": random("intercept"),
    "tg.RandomEffects(x, name='b')": random("b"),
    "tg.RandomEffects(np.c_[one, x], name='both')": random("both"),
    "tg.AutoRegressive(t)": ("autoregressive", lambda p, c: p["rho"] ** apart(c["t"])),
    "tg.Exponential(t)": ("exponential", lambda p, c: np.exp(-apart(c["t"]) / p["range"])),
    "tg.Matern(np.c_[t, x], 1.5)": ("matern", lambda p, c: matern(3, p, c)),
    "tg.Matern(np.c_[t, x], 2.5)": ("matern", lambda p, c: matern(5, p, c)),
    "tg.Kinship(K)": ("kinship", lambda p, c: c["K"]),
    "tg.Factor(1, item)": ("factor", lambda p, c: np.outer(*2 * [by_item(p, c, "loading")])),
    "tg.CommonCorrelation()": ("common", lambda p, c: common(p, 0.0)),
    "tg.CommonCorrelation(negative=True)": ("common", lambda p, c: common(p, -1.0)),
    "tg.Unstructured(item)": ("unstructured", lambda p, c: covariance(p, c["item"])),
    "tg.Residual()": ("residual", lambda p, c: np.eye(44)),
    "tg.Diagonal(item)": ("diagonal", lambda p, c: np.diag(by_item(p, c, "sigma") ** 2)),
}


by_item = lambda p, c, what: np.array([p[f"{what}[{label}]"] for label in c["item"]])
apart = lambda *columns: np.sqrt(sum(np.subtract.outer(x, x) ** 2.0 for x in columns))


def matern(twice, p, c):
    s = np.sqrt(twice) * apart(c["t"], c["x"]) / p["range"]
    return np.exp(-s) * (1 + s + (s * s / 3 if twice == 5 else 0.0))


def common(p, least):
    r = p["correlation"] if p["correlation"] >= least else np.nan
    return r + (1 - r) * np.eye(44)


def covariance(p, labels):
    """By the deviations and correlations of labels, of which some may be the same."""
    kinds, k = np.unique(labels, return_inverse=True)
    pair = lambda i, j: p[f"correlation[{kinds[max(i, j)]}, {kinds[min(i, j)]}]"]
    size, sigma = range(len(kinds)), np.array([p[f"sigma[{label}]"] for label in kinds])
    correlation = np.array([[1.0 if i == j else pair(i, j) for j in size] for i in size])
    positive = np.linalg.eigvalsh(correlation)[0] > -1e-9  # at an edge singular
    return ((correlation if positive else np.nan) * np.outer(sigma, sigma))[np.ix_(k, k)]


def of_effects(p, c, columns, labels):
    z = np.stack([c[name] for name in columns], axis=1)
    return z @ covariance(p, labels) @ z.T


def clusters_at(names, words, noise, b):
    """Rows that count, their residuals, each term's covariance of all rows, and that of the rows,
    by estimates."""
    p, g, each = dict(zip(names["fit"].names, b)), names["g"], []
    for term in words:
        label, of = TERMS[term]
        named = label not in (*EFFECTS, "factor", "diagonal", "unstructured")
        s = p.get(f"sigma[{label}]", p.get("sigma", 1.0)) if named else 1.0
        matrix = s**2 * of(p, names)
        each.append(np.where(np.equal.outer(g, g), matrix, 0.0))
    seen = np.isfinite(names["y"]) & (True if names["w"] is None else names["w"] > 0)
    sound = abs(p.get("rho", 0.0)) < 1 and p.get("range", 1.0) > 0
    total = sum(each)[np.ix_(seen, seen)] + (noise if sound else np.nan) * np.eye(seen.sum())
    return seen, (names["y"] - b[0] - b[1] * names["x"])[seen], each, total


@law
def terms(draw):
    """Exact outcomes of clusters under each covariance term, by a dense Gaussian; its effects."""
    seed, unit, origin = numbers(draw)
    term = draw(st.sampled_from(list(TERMS)[:-2]))
    words = [term] if TERMS[term][0] in ("common", "unstructured") else [term, "tg.Residual()"]
    words = [term, "tg.Diagonal(item)"] if "Factor" in term else words
    more = len(words) > 1 and term != "tg.RandomEffects()" and "Factor" not in term
    words += ["tg.RandomEffects()"] * (more and draw(st.booleans()))
    word, w = draw(st.sampled_from(list(WEIGHTS.items())))
    gaps, noise = draw(st.booleans()), draw(st.sampled_from([0.0, 0.3])) * unit**2
    labels = draw(st.sampled_from(["g", "7 * g % 13 - 5", "np.array(list('qxabzymdkcrf'))[g]"]))
    label = TERMS[asked := draw(st.sampled_from(words))][0]
    setup = f"rng = np.random.default_rng({seed}); g, one = rng.permutation(44) % 12, np.ones(44)\n"
    setup += "t = np.array([sum(g[:i] == g[i]) for i in range(44)]) * 7 % 4\n"
    setup += "x, e, u, v = rng.normal(size=(4, 44)); K = 0.7 ** abs(t[:, None] - t); "
    setup += f"w, item = {w}, np.array(list('cadb'))[t]\n"
    setup += f"y = {origin} + {unit} * (x + e + u[g] + 0.5 * v[g] * x)"
    setup += "; y[::9] = np.nan" * gaps + f"\nterms = {', '.join(words)},\n"
    options = f"noise={noise}, " * bool(noise) + f"weights=w, {QUIET}"
    setup += f'fit = tg.fit_clusters(y, {{"one": one, "x": x}}, {labels}, terms, {options})\n'
    setup += f"effects = fit.effects('{label}')"

    def rows_of(names, b):
        named = zip(names["fit"].names, names["fit"].estimates)
        assume(dict(named).get("range", 1.0) > 0.2)  # below, rows tell nothing of it
        seen, rest, _, total = clusters_at(names, words, noise, b)
        rows = np.full(44, np.nan)
        if np.all(np.isfinite(total)) and np.linalg.eigvalsh(total)[0] > 0:
            root = np.linalg.cholesky(total)  # each row given those of its cluster before it
            r, scale = np.linalg.solve(root, rest), np.diag(root)
            rows[:], rows[seen] = 0.0, stats.norm.logpdf(r) - np.log(scale)
        return rows

    def effects(names):
        g, b = names["g"], names["fit"].estimates
        seen, rest, each, total = clusters_at(names, words, noise, b)
        across = (prior := each[words.index(asked)])[:, seen]
        if label in EFFECTS:  # of every cluster that says something, in the order that is said
            order = [g[eval(labels, names) == one][0] for one in names["effects"].labels]
            named = names["effects"].names in (("effect",), tuple(EFFECTS[label][1]))
            assert named and sorted(order) == sorted(set(g[seen])), "other effects or clusters"
            z = np.stack([names[name] for name in EFFECTS[label][0]], axis=1)
            z = (z[:, None] * np.equal.outer(g, order)[:, :, None]).reshape(44, -1)
            matrix = covariance(dict(zip(names["fit"].names, b)), EFFECTS[label][1])
            prior = np.kron(np.eye(len(order)), matrix)
            across = prior @ z[seen].T
        gain = np.linalg.solve(total, across.T).T
        moments = np.stack([gain @ rest, np.sqrt(np.diag(prior - gain @ across.T).clip(0))])
        return moments if label in EFFECTS else np.where(seen, moments, np.nan)

    kind = f"{words}, effects of {asked}, {word}" + ", gaps" * gaps
    case = fitted(kind, setup, rows_of, refused=True, outcomes=True)
    return also(case, "effects[1:]", effects, 1e-7 * unit)


@law
def new_clusters(draw):
    """Means and probabilities of rows of new clusters, with effects of each by a formula."""
    seed, unit, origin = numbers(draw)
    kind = draw(st.sampled_from(["mean", "probability"]))
    effects = draw(st.sampled_from(["1", "1 + x", "0 + x"]))
    setup = f"rng = np.random.default_rng({seed}); g = np.arange(60) % 12\n"
    setup += "x, e, u, v = rng.normal(size=(4, 60)); data = {'x': 10 * x + 3}\n"
    setup += f"data['y'] = {origin} + {unit} * (x + e + u[g] + 0.5 * v[g] * x)\n"
    setup += f"terms = tg.RandomEffects('{effects}'), tg.Residual()\n"
    setup += f"fit = tg.fit_clusters('y ~ x', None, g, terms, data=data, {QUIET})\n"
    high = f", high={origin + unit}" if kind == "probability" else ""
    setup += f"p = fit.predict({{'x': [-5.0, 3.0, 20.0]}}, '{kind}'{high}).value"

    def oracle(names):
        b = dict(zip(names["fit"].names, names["fit"].estimates))
        x, labels = np.array([-5.0, 3.0, 20.0]), effects.replace("1", "Intercept").split(" + ")
        labels = [label for label in labels if label != "0"]
        z = np.stack([x if label == "x" else np.ones(3) for label in labels], axis=1)
        mean = b["Intercept"] + b["x"] * x
        variance = np.sum((z @ covariance(b, labels)) * z, axis=1) + b["sigma"] ** 2
        within = stats.norm.cdf((origin + unit - mean) / np.sqrt(variance))
        return mean / unit if kind == "mean" else within, 0.0

    ours = f"p / {unit}" if kind == "mean" else "p"
    return Case(f"{kind}, {effects}", setup, ours, oracle, 1e-7)


@law
def deviations(draw):
    """Profile intervals of an effect's deviation, with the lower end of Feldman and Cousins."""
    seed, unit, origin = numbers(draw)
    word, w = draw(st.sampled_from(list(WEIGHTS.items())))
    size, level = draw(st.sampled_from([0.6, 1.2, 0.3])), draw(st.sampled_from([0.95, 0.8]))
    setup = f"rng = np.random.default_rng({seed}); g = rng.permutation(48) % 12; w = {w}\n"
    setup += f"y = {origin} + {unit} * (rng.normal(size=48) + {size} * rng.normal(size=12)[g])\n"
    setup += f"fit = tg.fit_clusters(y, np.ones((48, 1)), g, weights=w, {QUIET})\n"
    setup += f"ends = fit.profile('sigma[intercept]', {level})"

    def oracle(names):
        g, y = names["g"], (names["y"] - origin) / unit
        w = np.ones(48) if names["w"] is None else np.asarray(names["w"], float)

        def lowest(deviation):
            """Minus the log-likelihood, with the best mean and sigma."""

            def loss(log_sigma):
                matrix = np.exp(2 * log_sigma) * np.eye(48) + deviation**2 * np.equal.outer(g, g)
                root = np.linalg.cholesky(matrix)
                one, rest = np.linalg.solve(root, np.stack([np.ones(48), y], 1)).T
                rest = rest - one * np.sum(w * one * rest) / np.sum(w * one * one)
                return np.sum(w * (rest * rest / 2 + np.log(np.diag(root))))

            return optimize.minimize_scalar(loss, bracket=(-0.3, 0.3), tol=1e-10).fun

        best = optimize.minimize_scalar(lowest, bounds=(0.0, 4.0), method="bounded").x
        least = min(lowest(best), lowest(0.0))
        root = lambda deviation: np.sqrt(2 * max(lowest(deviation) - least, 0.0))
        reach = lambda goal, a, b: optimize.brentq(lambda v: root(v) - goal, a, b, xtol=1e-9)
        usual, one_sided = stats.norm.ppf([0.5 + level / 2, level])
        zero, goal, cdf = root(0.0), usual, stats.norm.cdf
        if one_sided < zero < 2 * usual:
            below = lambda c: cdf(-((zero - c) ** 2 + c * c) / (2 * (zero - c)))
            off = lambda c: cdf(c) - below(c) - level
            goal = optimize.brentq(off, one_sided, min(usual, zero - 1e-9))
        low = reach(goal, 0.0, best) if zero > one_sided else 0.0
        return np.r_[low, reach(usual, best, 20.0)], 0.0

    return Case(f"{word}, {level}", setup, f"np.array(ends) / {unit}", oracle, 1e-5, refused=True)


@law
def completions(draw):
    """Components and true values of rows of a mixture, by Bayes's rule, and the mean of draws."""
    seed, unit, origin = numbers(draw)
    gap, noise = draw(st.sampled_from([2.5, 5.0])), draw(st.sampled_from([0.0, 0.2])) * unit**2
    missing = draw(st.booleans())
    setup = f"rng = np.random.default_rng({seed}); z = rng.normal(size=(40, 2))\n"
    setup += f"y = {origin} + {unit} * (z + {gap} * (np.arange(40) % 3 > 0)[:, None])"
    setup += "; y[::4, 1] = np.nan" * missing
    more = f", noise={noise} * np.eye(2)" if noise else ""
    setup += f"\nrows = tg.Observations.exact(y, nan_is_missing=True{more})\n"
    setup += "fit = tg.fit_mixture(rows, 2, progress=False); p = fit.predict(rows)\n"
    setup += f"x = (fit.completed(jax.random.key({seed}), rows, 900) - {origin}) / {unit}\n"
    setup += f"m = x - (p.mean - {origin}) / {unit}; q = np.einsum('sni,snj->sij', m, m) / 40"

    def oracle(names):
        fit, parts = names["fit"], []
        for row in names["y"]:
            k, each = np.flatnonzero(np.isfinite(row)), []
            for share, loc, matrix in zip(fit.weights, fit.locs, fit.covariances):
                total = matrix[np.ix_(k, k)] + noise * np.eye(len(k))
                gain = np.linalg.solve(total, matrix[k]).T
                density = share * stats.multivariate_normal(loc[k], total).pdf(row[k])
                each.append((density, loc + gain @ (row[k] - loc[k]), matrix - gain @ matrix[k]))
            density, means, spreads = (np.stack(part) for part in zip(*each))
            shares = density / density.sum()
            apart = means - shares @ means
            spread = np.tensordot(shares, spreads, 1) + (shares * apart.T) @ apart
            mean, spread = (shares @ means - origin) / unit, spread / unit**2
            parts.append((shares, mean, spread))
        shares, mean, spread = map(np.array, zip(*parts))
        every = shares, mean, spread, mean, spread.mean(axis=0)
        return np.concatenate([part.ravel() for part in every]), 0.0

    ours = f"np.r_[np.ravel(p.responsibilities), np.ravel(p.mean - {origin}) / {unit}, "
    ours += f"np.ravel(p.covariance) / {unit**2}, np.ravel(x.mean(0)), np.ravel(q.mean(0))]"
    words = f"{gap} apart" + ", noise" * bool(noise) + ", missing" * missing
    stderr = "np.r_[np.zeros(320), np.ravel(x.std(0)) / 30, np.ravel(q.std(0)) / 30]"
    return Case(words, setup, ours, oracle, 1e-7, stderr, refused=True)
