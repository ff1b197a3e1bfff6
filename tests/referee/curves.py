"""Laws of populations of which a curve keeps some: whole rows, or entries of them one by one."""

import numpy as np
from hypothesis import strategies as st
from scipy.special import log_expit, log_ndtr, logsumexp, ndtr

from tests.referee import oracles
from tests.referee.fits import QUIET, also, fitted, gaussian_of, numbers, weights
from tests.referee.frame import law

INF = np.inf
FAR = 30.0  # standard deviations of a score from the middle of a curve, beyond which none is sought
DEVIATIONS = np.arange(-35.0, 36.0)  # of a score, between which Gauss's rule is taken
EDGES = np.r_[-36.0, -18.0, -9.0, -5.0, -2.5, -1.0, 0.0]  # likewise, in widths around a middle
EDGES = np.r_[EDGES, -EDGES[:-1]]
ROLES = "weights", "midpoint", "width"  # of a curve, in the order of its estimates
LOG_CURVES = {"probit": log_ndtr, "logistic": log_expit}


def log_mean(log_curve, loc, scale, middles, widths):
    """log E s of a score of this mean and scale, of curves with middles and widths (n, r)."""
    ends = (middles + np.multiply.outer(EDGES, widths) - loc) / scale  # (k, n, r)
    ends = np.moveaxis(ends, 0, -1).reshape(len(middles), -1)
    ends = np.hstack([np.tile(DEVIATIONS, (len(ends), 1)), ends])
    ends = np.sort(np.clip(ends, DEVIATIONS[0], DEVIATIONS[-1]))
    x, w = np.polynomial.legendre.leggauss(10)
    half = np.diff(ends)[..., None] / 2
    z = ends[:, :-1, None] + half * (x + 1)
    with np.errstate(divide="ignore"):
        terms = np.log(half * w) - z * z / 2 - oracles.LOG_ROOT_2PI + log_curve(loc + scale * z)
    return logsumexp(terms.reshape(len(ends), -1), axis=1)


def log_ways(n, lost):
    """The log of the binomial coefficient of those lost among n others and them."""
    k = np.arange(1, lost + 1)
    return np.sum(np.log(n + k) - np.log(k))


def curve_of(names, b, told, by_row):
    """Weights (r, d), midpoints and widths (n or 1, r) by the estimates of some of them."""
    W, M, T = (np.asarray(names[x], float) for x in "WMT")
    M, T = np.atleast_2d(M), np.atleast_2d(T)
    for role in sorted(told, key=ROLES.index):
        size = {"weights": W.size, "midpoint": T.shape[1], "width": T.shape[1]}[role]
        value, b = b[:size], b[size:]
        if role == "weights":
            W = value.reshape(W.shape)
        elif role == "midpoint":
            M = M + value if by_row else value[None]
        else:
            T = T * value if by_row else value[None]
    return W, M, T


def log_of_selected(names, b, family, told, by_row, counted):
    """The log-likelihood of each row of a selected sample, and log P of one or each; one curve, or
    two of one score."""
    y, d = names["y"], names["y"].shape[1]
    size = 2 if d == 1 else 5
    gaussian, w = gaussian_of(b[:size], d), names["w"]
    W, M, T = curve_of(names, b[size:], told, by_row)
    if gaussian is None or not np.all(T > 0):
        return np.full(len(y), np.nan), np.nan
    (loc, matrix), score, sides = gaussian, W[0], np.sign(W @ W[0])
    loc_of, scale = score @ loc, np.sqrt(score @ matrix @ score)
    if np.any(abs(sides * loc_of - M) > FAR * scale):
        return np.full(len(y), np.nan), np.nan

    def log_curve(s):  # by scores (n or 1, ...)
        middles, widths = (np.expand_dims(x.T, tuple(range(2, s.ndim + 1))) for x in (M, T))
        return sum(map(LOG_CURVES[family], (np.multiply.outer(sides, s) - middles) / widths))

    if family == "box":
        kept, log_p = 0.0, log_ndtr((loc_of - M[:, 0]) / scale)
    elif family == "probit" and len(W) == 1:
        kept, log_p = log_curve(y @ score), log_ndtr((loc_of - M[:, 0]) / np.hypot(scale, T[:, 0]))
    else:
        kept = log_curve(y @ score)
        log_p = log_mean(log_curve, loc_of, scale, sides * M, T)
    rows = oracles.log_rows(y, y, loc, matrix) + kept
    if not counted:
        return rows - log_p, log_p
    total = len(y) if w is None else np.sum(w)
    lost = names["u"] * np.log(-np.expm1(log_p)) + log_ways(total, names["u"])
    return rows + lost / total, log_p


@law
def selected_samples(draw):
    """A Gaussian and the curve that keeps its rows: known or estimated, with those lost counted, or
    with a prior, and a curve of each row."""
    (seed, unit, origin), d = numbers(draw), draw(st.integers(1, 2))
    word, w = weights(draw, 40)
    family = draw(st.sampled_from(["probit", "logistic", "box"]))
    shape = draw(st.sampled_from(["rising", "rows", "falling", "window", "rows"]))
    shape = "rising" if family == "box" else shape
    by_row, counted = shape == "rows", family == "box" or (shape != "rows" and draw(st.booleans()))
    some = [["midpoint"], [], ["width", "midpoint"], ["width"], ["weights"]]
    told = draw(st.sampled_from(some[: 4 if shape in ("window", "rows") or d == 2 else 5]))
    told = [] if family == "box" else told
    trusted = draw(st.booleans()) and [role for role in told if role != "weights"]
    sides = {"falling": [-1.0], "window": [1.0, -1.0]}.get(shape, [1.0])
    direction = [[1.0], [0.6, 0.8]][d - 1] if family != "box" else [1.0, 0.0][:d]
    middles, widths = [-0.2, -1.1][: len(sides)], [0.4, 0.5][: len(sides)]
    setup = f"rng = np.random.default_rng({seed}); z = rng.normal(size=(400, {d}))\n"
    setup += "z = z @ [[1.0, 0.6], [0.0, 0.8]]\n" if d == 2 else ""
    setup += f"W, t = np.outer({sides}, {direction}), np.array({widths}); m = np.array({middles})"
    setup += " + rng.normal(size=(400, 1))\n" if by_row else "\n"
    s = "(z @ W.T > m)" if family == "box" else "1 / (1 + np.exp((m - z @ W.T) / t))"
    setup += f"k = np.flatnonzero(rng.uniform(size=400) < np.prod({s}, axis=1)); w = {w}\n"
    setup += "u = int(40 * (400 - len(k)) / len(k)); k = k[:40]\n"
    m, tiles = (
        ("m[k]", ("np.tile(W, (40, 1, 1))", "np.tile(T, (40, 1))")) if by_row else ("m", "WT")
    )
    setup += f"y, M, T = {origin} + {unit} * z[k], {unit} * {m} + {origin} * W.sum(1), {unit} * t\n"
    region = f"region=tg.Selection.{family}({tiles[0]}, M, {tiles[1]}), "
    region = f"low=[M[0]{', -np.inf' * (d - 1)}], " if family == "box" else region
    centres = {"midpoint": "0" if by_row else "M", "width": "1" if by_row else "T"}
    scales = {"midpoint": 0.3 * unit, "width": 0.4 if by_row else 0.3 * unit}
    one = "jnp.sum(((p['{}'] - {}) / {}) ** 2)"
    beliefs = " + ".join(one.format(x, centres[x], scales[x]) for x in trusted or [])
    options = f"estimate={told}, " * bool(told) + "num_unobserved=u, " * counted
    options += f"prior=lambda p: -0.5 * ({beliefs}), " * bool(trusted)
    setup += f"fit = tg.fit_truncated_normal(y, {region}{options}weights=w, {QUIET})"
    size = 2 if d == 1 else 5

    def prior(names, b):
        parts = curve_of(names, b[size:], told, by_row)
        place = {"midpoint": parts[1] - np.atleast_2d(names["M"]), "width": parts[2] - names["T"]}
        place["width"] = parts[2] / names["T"] - 1 if by_row else place["width"]
        return sum(-0.5 * np.sum((place[x][0] / scales[x]) ** 2) for x in trusted)

    of = lambda names, b: log_of_selected(names, b, family, told, by_row, counted)
    rows_of = lambda names, b: of(names, b)[0]

    def said(names):
        fit, w = names["fit"], names["w"]
        shares = np.exp(of(names, np.asarray(fit.estimates))[1])
        parts = np.asarray([fit.estimates, fit.errors])
        loc, scales = parts[:, :d], parts[:, 1:2] * [[1], [2 * parts[0, 1]]]  # of a variance
        scales[0] = scales[0] ** 2 if d == 1 else 0.0
        scales = scales if d == 1 else parts[:, [2, 3, 3, 4]]
        share = np.average(shares, weights=w if by_row else None)
        return np.r_[share, np.hstack([loc, scales, parts[:, size:]]).ravel()]

    says = "[x.loc, x.covariance_matrix, *(x.curve[role] for role in told)]"
    says = "np.hstack([*map(np.ravel, {})])".format(
        says.replace("told", str(sorted(told, key=ROLES.index)))
    )
    says = f"[fit.fraction_not_truncated, *np.r_[*({says} for x in (fit, fit.standard_errors))]]"
    words = [shape, family, word, *told, *["counted"] * counted, *["prior"] * bool(trusted)]
    case = fitted(", ".join(words), setup, rows_of, refused=True, prior=prior if trusted else None)
    return also(case, says, said)


def rows_with_gaps(names, b, form, told):
    """The log-likelihood of rows of which entries are missing because of their value: these are
    below, or above, a limit with noise."""
    y, d = names["y"], names["y"].shape[1]
    size, mean = {"exchangeable": 4, "diagonal": 4}.get(form, 2 if d == 1 else 5), b[:d]
    W, M, T = curve_of(names, b[size:], told, False)
    w, m, t = (np.broadcast_to(x, d) for x in (np.diag(W), M[0], T[0]))
    if form == "exchangeable":
        matrix = b[3] + (b[2] - b[3]) * np.eye(2)
    else:
        matrix = np.diag(b[2:4]) if form == "diagonal" else gaussian_of(b[:size], d)
        matrix = matrix if form == "diagonal" or matrix is None else matrix[1]
    if matrix is None or np.linalg.eigvalsh(matrix)[0] <= 0 or not np.all(t > 0):
        return np.full(len(y), np.nan)
    gaps, rows = np.isnan(y), np.zeros(len(y))
    lower = np.where(gaps, np.where(w > 0, -INF, m / w), y)
    upper = np.where(gaps, np.where(w > 0, m / w, INF), y)
    for pattern in np.unique(gaps, axis=0):
        own = np.all(gaps == pattern, axis=1)
        noisy = matrix + np.diag(pattern * (t / w) ** 2)
        rows[own] = oracles.log_rows(lower[own], upper[own], mean, noisy)
    return rows + np.sum(np.where(gaps, 0.0, log_ndtr((w * y - m) / t)), axis=1)


@law
def dropouts(draw):
    """Rows of which a curve, known or estimated, observes each entry by its value."""
    (seed, unit, origin), d = numbers(draw), draw(st.integers(1, 2))
    word, w = weights(draw, 60)
    form = draw(st.sampled_from(["full", "exchangeable", "diagonal"])) if d == 2 else "full"
    each = d == 2 and draw(st.booleans())
    told = draw(st.sampled_from([["midpoint"], [], ["width", "midpoint"], ["width"]]))
    trusted = "midpoint" in told and draw(st.booleans())
    sides = np.diag([1.0, -2.0]) if each else np.eye(1)
    middles, widths = ([-0.6, -0.8], [0.4, 0.9]) if each else ([-0.6], [0.4])
    setup = f"rng = np.random.default_rng({seed}); z = rng.normal(size=(60, {d}))\n"
    setup += "z = z @ [[1.0, 0.6], [0.0, 0.8]]\n" if d == 2 else ""
    setup += (
        f"W, m, t, w = np.array({sides.tolist()}), np.array({middles}), np.array({widths}), {w}\n"
    )
    setup += (
        "seen = rng.uniform(size=z.shape) < 1 / (1 + np.exp(1.7 * (m - W.diagonal() * z) / t))\n"
    )
    setup += f"y = np.where(seen, {origin} + {unit} * z, np.nan); T = {unit} * t; "
    setup += f"M = {unit} * m + {origin} * W.diagonal()\n"
    setup += "rows = tg.Observations.exact(y, nan_is_missing=True, weights=w, "
    setup += "observed=tg.Selection.probit(W, M, T))\n"
    prior = f"prior=lambda p: -8.0 * jnp.sum(((p['midpoint'] - M) / {unit}) ** 2), "
    options = f'covariance="{form}", estimate={told}, {prior if trusted else ""}'
    setup += f"fit = tg.fit_observations(rows, {options}{QUIET})"
    size = {"exchangeable": 4, "diagonal": 4}.get(form, 2 if d == 1 else 5)

    def believed(names, b):
        return -8.0 * np.sum(((curve_of(names, b[size:], told, False)[1] - names["M"]) / unit) ** 2)

    rows_of = lambda names, b: rows_with_gaps(names, b, form, told)
    kind = ", ".join([f"d = {d}", form, word, *told, *["each"] * each, *["prior"] * trusted])
    case = fitted(kind, setup, rows_of, refused=True, prior=believed if trusted else None)
    if not told and form == "full":
        return case

    def share(names):
        b, fit = np.asarray(names["fit"].estimates), names["fit"]
        w, m, t = curve_of(names, b[size:], told, False)
        scale = np.sqrt(np.diag(w) ** 2 * np.diag(fit.covariance_matrix) + t[0] ** 2)
        return np.mean(ndtr((np.diag(w) * fit.loc - m[0]) / scale))

    return also(case, "fit.fraction_not_truncated", share)
