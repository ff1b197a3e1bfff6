"""Laws of fits of clusters, of ordered pairs and of fractions, and of the intervals of profiles."""

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from scipy import optimize, stats
from scipy.special import log_ndtr, logsumexp

from tests.referee import oracles
from tests.referee.boxes import chain_factor
from tests.referee.fits import QUIET, also, fitted, numbers, slopes
from tests.referee.frame import Case, law

INF = np.inf
NODES = np.linspace(-9.0, 9.0, 1801)  # of an effect, in its standard deviations
ALTERNATIVES = ["two-sided", "less", "greater"]
FALL = 1.9207294103470602  # half of the 0.95 quantile of chi squared with 1 degree of freedom


def integrated(rows, labels):
    """The log-likelihood of each cluster, at its first row, from those of rows at NODES (n, 1801).

    By the trapezoidal rule, whose error falls exponentially for a smooth integrand.
    """
    own = labels[:, None] == np.unique(labels)
    sums = own.T.astype(float) @ rows - NODES**2 / 2 - oracles.LOG_ROOT_2PI
    found = np.zeros(len(labels))
    found[np.argmax(own, axis=0)] = logsumexp(sums, axis=1) + np.log(NODES[1] - NODES[0])
    return found


@law
def clusters(draw):
    """One random intercept; outcomes exact, below a limit, binary or ordered, some missing."""
    seed, unit, origin = numbers(draw)
    kind = draw(st.sampled_from(["exact", "censored", "binary", "ordered"]))
    unit, origin = (1.0, 0.0) if kind in ("binary", "ordered") else (unit, origin)
    of = {"no weights": "None", "integer weights": "1 + g % 2", "a weight of 0": "1.0 * (g > 0)"}
    word, w = draw(st.sampled_from(list(of.items())))
    effect = draw(st.sampled_from([1.0, 0.4]))
    setup = f"rng = np.random.default_rng({seed}); g = rng.permutation(np.arange(40) ** 2 % 11)\n"
    setup += f"x, e = rng.normal(size=(2, 40)); z = x + e + {effect} * rng.normal(size=11)[g]\n"
    one = '{"constant": np.ones(40), "x": x}'
    outcome, design, more, limit = {
        "exact": (f"{origin} + {unit} * z", one, "", -INF),
        "censored": (
            f"np.maximum({origin} + {unit} * z, {origin})",
            one,
            f", censored_low={origin}",
            origin,
        ),
        "binary": ("1.0 * (z > 0)", one, ", binary=True", 0.0),
        "ordered": ("np.digitize(z, [-0.5, 0.8])", '{"x": x}', "", 0.0),
    }[kind]
    gaps = kind != "ordered" and draw(st.booleans())
    setup += f"y = {outcome}; w = {w}\n" + "y[::6] = np.nan\n" * gaps
    y = "tg.Ordinal(y)" if kind == "ordered" else "y"
    setup += f"fit = tg.fit_clusters({y}, {design}, g{more}, weights=w, {QUIET})"

    def rows_of(names, b):
        # What is estimated, in the order of fit.names.
        by_name = dict(zip(names["fit"].names, b))
        sigma = by_name.get("sigma", 1.0)
        cuts = [value for name, value in by_name.items() if name.startswith("cut")]
        if not (by_name["sigma[intercept]"] >= 0 and sigma > 0 and np.all(np.diff(cuts) > 0)):
            return np.full(40, np.nan)
        mean = by_name.get("constant", 0.0) + by_name["x"] * names["x"][:, None]
        mean = mean + by_name["sigma[intercept]"] * NODES
        y = np.asarray(names["y"])[:, None]
        if kind == "ordered":
            ends = np.r_[-INF, cuts, INF]
            rows = oracles.log_interval(ends[y] - mean, ends[y + 1] - mean)
        elif kind == "binary":
            rows = log_ndtr(np.where(y > 0, mean, -mean))
        else:
            r = (y - mean) / sigma
            rows = -r * r / 2 - np.log(sigma) - oracles.LOG_ROOT_2PI
            rows = np.where(y <= limit, log_ndtr((limit - mean) / sigma), rows)
        return integrated(np.where(np.isnan(y), 0.0, rows), names["g"])

    return fitted(f"{kind}, {word}" + ", gaps" * gaps, setup, rows_of, refused=True, outcomes=True)


def two_step(counts):
    """A correlation with the cuts of the margins of a table, and its error by cells' influence."""

    def score(rho, counts):
        shares = [counts.sum(axis=k).cumsum()[:-1] / counts.sum() for k in (1, 0)]
        x, y = (np.r_[-40.0, stats.norm.ppf(share), 40.0] for share in shares)
        corner = lambda k: np.stack(np.meshgrid(x[k], y[k], indexing="ij"), -1).reshape(-1, 2)
        factor = oracles.factor_of([[1.0, rho], [rho, 1.0]])
        mass = np.exp(oracles.log_box(0.0, factor, corner(np.s_[:-1]), corner(np.s_[1:])))
        (a, b), root = np.meshgrid(x, y, indexing="ij"), np.sqrt(1 - rho**2)
        density = np.exp(-(a * a - 2 * rho * a * b + b * b) / (2 * root**2)) / (2 * np.pi * root)
        slope = np.diff(np.diff(density, axis=0), axis=1)
        return np.sum(counts * slope / mass.reshape(counts.shape).clip(1e-250))

    side, h = np.sign(score(0.0, counts)) or 1.0, 1e-4
    beyond = [t for t in (0.5, 0.8, 0.95, 0.99) if side * score(side * t, counts) < 0]
    if not beyond:
        return side, np.nan
    rho = optimize.brentq(score, 0.0, side * beyond[0], (counts,), 1e-14)
    bend = (score(rho + h, counts) - score(rho - h, counts)) / (2 * h)
    each = np.eye(counts.size).reshape(-1, *counts.shape)
    moves = [score(rho, counts + h * one) - score(rho, counts - h * one) for one in each]
    return rho, np.sqrt(counts.ravel() @ np.square(moves)) / abs(2 * h * bend)


@law
def ordered_pairs(draw):
    """The polychoric correlation of a table of counts, some of them small."""
    r, c = draw(st.sampled_from([(2, 2), (2, 3), (3, 3)]))
    counts = np.array(draw(st.lists(st.sampled_from([3, 8, 1, 0, 20]), min_size=9, max_size=9)))
    counts = counts[: r * c].reshape(r, c)
    assume(counts.any(0).all() and counts.any(1).all())  # no category but those that occur
    setup = f"counts = np.array({counts.tolist()}); w = counts.ravel()\n"
    setup += "fit = tg.polychoric(counts, num_profiles=0, progress=False)"

    def rows_of(names, b):
        rho, x, y = b[0], np.r_[-INF, b[1:r], INF], np.r_[-INF, b[r:], INF]
        if not (abs(rho) < 1 and np.all(np.diff(x) > 0) and np.all(np.diff(y) > 0)):
            return np.full(r * c, np.nan)
        i, j = np.divmod(np.arange(r * c), c)
        low, high = np.stack([x[i], y[j]], 1), np.stack([x[i + 1], y[j + 1]], 1)
        return oracles.log_box(0.0, oracles.factor_of([[1.0, rho], [rho, 1.0]]), low, high)

    case = fitted(f"{r} x {c}", setup, rows_of, refused=True)
    return also(case, "fit.two_step[:2]", lambda names: two_step(1.0 * counts), 1e-6)


@law
def correlations(draw):
    """Two-step correlations of three items by pairs, their errors and intervals."""
    seed, level = draw(st.integers(0, 10**4)), draw(st.sampled_from([0.95, 0.5]))
    setup = f"rng = np.random.default_rng({seed}); z = rng.normal(size=(50, 4))\n"
    setup += "y = 1.0 * np.digitize(z[:, :3] + 0.7 * z[:, 3:], [-0.5, 0.6])\n"
    setup += "m = tg.polychoric_matrix(y); k = tuple(m.pairs.T)"

    def oracle(names):
        is_one = names["y"].T[:, None] == np.arange(3.0)[:, None]  # items, categories, rows
        tables = [is_one[i].astype(float) @ is_one[j].T for i, j in names["m"].pairs]
        rho, error = np.transpose([two_step(counts) for counts in tables])
        half = stats.norm.ppf(0.5 + level / 2) * error / (1 - rho**2)
        return np.r_[
            rho, error, np.tanh(np.arctanh(rho) - half), np.tanh(np.arctanh(rho) + half)
        ], 0.0

    ours = f"np.r_[m.correlations[k], m.standard_errors[k], np.ravel(m.intervals({level})[k].T)]"
    return Case(f"{level}", setup, ours, oracle, 1e-6)


@law
def shifts(draw):
    """The shift of a mean by counts inside of intervals, or by shares, and its errors."""
    k, n = draw(st.integers(1, 3)), draw(st.sampled_from([100, 1000]))
    scale = draw(st.sampled_from([1.0, 2.0, 1e3]))
    low = np.array(draw(st.lists(st.sampled_from([0.0, -1.0, -INF]), min_size=k, max_size=k)))
    high = np.where(np.isinf(low), 0.5, draw(st.sampled_from([INF, 1.5])))
    y = np.array(draw(st.lists(st.sampled_from([30, 60, 5]), min_size=k, max_size=k)))
    array = lambda x: f"np.array({np.asarray(x, float).tolist()})".replace("inf", "np.inf")
    setup = f"y, low, high = {array(y)}, {array(low)}, {array(high)}\n"
    setup += f"box = tg.Box({scale} * low[:, None], {scale} * high[:, None])\n"
    seen, trials = draw(st.sampled_from([("y", n), (f"y / {n}", None)][:k]))
    setup += f"fit = tg.fit_shift({seen}, [0.0], [[{scale**2}]], box, {trials}, progress=False)"

    share = lambda t: np.exp(oracles.log_interval(low - t / scale, high - t / scale))

    def log_likelihood(shift):
        p = share(shift[0])
        with np.errstate(divide="ignore"):
            return float(np.sum(y * np.log(p) + (n - y) * np.log1p(-p)))

    def oracle(names):
        shift = np.ravel(names["fit"].params)
        value = log_likelihood(shift)
        starts = scale * np.linspace(-3.0, 3.0, 7)[:, None]
        higher = oracles.best(log_likelihood, shift, np.array([scale / 10]), starts) - value
        p, slope = share(shift[0]), oracles.slope(lambda t: share(shift[0] + t), 1, scale / 10)
        scatter = 1.0 if trials else np.sum((y - n * p) ** 2 / (n * p * (1 - p))) / (k - 1)
        truth = np.sqrt(scatter / np.sum(n * slope[0] ** 2 / (p * (1 - p))))  # as is expected
        return np.r_[0.0 if higher < 1e-7 * n else higher, truth, truth], 0.0

    ours = "np.r_[0.0, fit.standard_errors, fit.parameter_covariance[0] ** 0.5]"
    return Case(f"{k} intervals, {seen}", setup, ours, oracle, np.r_[0.0, 1e-5, 1e-5], refused=True)


@law
def limits_of_regions(draw):
    """Limits by counts of trials of several populations, and their errors."""
    k, n = draw(st.integers(3, 4)), draw(st.sampled_from([300, 1000]))
    scale, two = draw(st.sampled_from([1.0, 1e3])), draw(st.booleans())
    loc = np.array([0.0, 0.4, -0.5, 0.9][:k])
    moves = np.array(draw(st.lists(st.sampled_from([-20, 0, 9]), min_size=k, max_size=k)))
    inside = lambda b: np.exp(oracles.log_interval(b[0] - loc, (b[1] if two else INF) - loc))
    y = np.rint(n * inside([-0.6, 1.1])) + moves
    setup = f"y, loc = np.array({y.tolist()}), {scale} * np.array({loc.tolist()})\n"
    start = f'{{"low": [0.0], "high": [{f"{scale}" if two else "np.inf"}]}}'
    seen, trials = draw(st.sampled_from([("y", n), (f"y / {n}", None)]))
    setup += f"fit = tg.fit_limits({seen}, loc[:, None], [[{scale**2}]], {start}, {trials}, "
    setup += "progress=False)\n"
    setup += f"b, s = (np.asarray(x)[:{1 + two}] / {scale} for x in (fit.estimates, fit.errors))"

    def log_likelihood(b):
        p = inside(b)
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.sum(y * np.log(p) + (n - y) * np.log1p(-p)))

    def oracle(names):
        at = np.asarray(names["b"], float)
        starts = at + np.array([[0.3], [-0.3]])
        higher = oracles.best(log_likelihood, at, np.full(len(at), 0.1), starts)
        p, found = inside(at), slopes(lambda u: inside(at + u), len(at))
        expected = (found.T * (n / (p * (1 - p)))) @ found
        value = np.nan if trials is None else log_likelihood(at)  # as a quasi-likelihood has none
        value = higher if higher > log_likelihood(at) + 1e-7 * n else value
        scatter = 1.0 if trials else np.sum((y - n * p) ** 2 / (n * p * (1 - p))) / (k - 1 - two)
        return np.r_[value, np.sqrt(scatter * np.diag(np.linalg.inv(expected)))], 0.0

    tol = np.r_[1e-9, np.full(1 + two, 1e-5)]
    ours = "np.r_[fit.log_likelihood, s]"
    return Case(f"{k} populations, {seen}", setup, ours, oracle, tol, refused=True)


@law
def profiles(draw):
    """The ends of a profile interval, where the highest likelihood of all others is 1.92 less."""
    seed, unit, origin = numbers(draw)
    which = draw(st.sampled_from(["censored", "plain", "binary", "truncated"]))
    name = draw(st.sampled_from(["x", "sigma", "constant"]))
    name = "x" if which == "binary" else name
    setup = f"rng = np.random.default_rng({seed}); x, e = rng.normal(size=(2, 90))\n"
    setup += (
        f"z = 0.6 * x + e; k = np.flatnonzero(z > {-0.8 if which == 'truncated' else -9})[:25]\n"
    )
    setup += f"x, z, one = x[k], z[k], np.ones(25)\ny = {origin} + {unit} * z\n"
    bound = origin - 0.8 * unit
    option = {"truncated": f"truncated_low={bound}, ", "censored": f"censored_low={origin}, "}
    y = "tg.Ordinal(1 * (z > 0))" if which == "binary" else "y"
    design = '{"x": x}' if which == "binary" else '{"constant": one, "x": x}'
    setup += f"fit = tg.fit_regression({y}, {design}, {option.get(which, '')}{QUIET})\n"
    ways = [f'fit.profile("{name}")', f'fit.derived("{name}").profile()']
    setup += f"ends = np.array({draw(st.sampled_from(ways))})"

    def rows_of(names, b):
        x, y = names["x"], names["y"]
        if which == "binary":  # a category above its cut
            return log_ndtr(np.where(names["z"] > 0, 1, -1) * (b[0] * x - b[1]))
        if not b[2] > 0:
            return np.full(25, np.nan)
        mean, sigma = b[0] + b[1] * x, b[2]
        r = (y - mean) / sigma
        rows = -r * r / 2 - np.log(sigma) - oracles.LOG_ROOT_2PI
        if which == "censored":
            return np.where(y <= origin, log_ndtr((origin - mean) / sigma), rows)
        return rows - (log_ndtr((mean - bound) / sigma) if which == "truncated" else 0.0)

    def oracle(names):
        fit, falls = names["fit"], []
        at, errors = np.array(fit.estimates, float), np.asarray(fit.errors, float)
        j = fit.names.index(name)

        def log_likelihood(b):
            with np.errstate(all="ignore"):
                return float(np.sum(rows_of(names, b)))

        free = np.arange(len(at)) != j
        for side, end in zip((-1, 1), names["ends"]):
            fixed = end if np.isfinite(end) else at[j] + side * 20 * errors[j]
            of = lambda b, fixed=fixed: log_likelihood(np.insert(b, j, fixed))
            # Begin where a step along the curvature would lead, and elsewhere.
            rows = fit.parameter_covariance
            near = (at + (fixed - at[j]) * rows[:, j] / rows[j, j])[free]
            near = near if np.isfinite(of(near)) else at[free]
            starts = near + errors[free] * np.array([[0.5], [-0.5]])
            fall = log_likelihood(at) - oracles.best(of, near, errors[free], starts)
            falls.append(FALL if np.isinf(end) and fall < FALL else fall)
        # On a ridge hundreds of standard errors away BFGS stops before it is at the top.
        far = abs(names["ends"] - at[j]) > 100 * errors[j]
        return np.array(falls), np.where(far, 1e-3, 1e-5)

    kind = f"{which}, {name}"
    return Case(kind, setup, f"np.full(2, {FALL})", oracle, 2e-5, refused=True)  # fmt: skip


@law
def profile_ranges(draw):
    """Where rows say little: an interval holds the estimate and ends where the range of it does."""
    seed, unit, origin = numbers(draw)
    which = draw(st.sampled_from(["deviation", "table", "selection", "scale"]))
    bound = origin + 0.5 * unit
    name, least, most, call = {
        "deviation": ("sigma[intercept]", 0.0, INF, "fit_clusters(y + d, one, g"),
        "table": ("rho", -1.0, 1.0, "polychoric(np.histogram2d(x, x + 2 * u, 3)[0]"),
        "selection": ("rho", -1.0, 1.0, "fit_selection(np.where(s, y, np.nan), one, s, z"),
        "scale": ("sigma", 0.0, INF, f"fit_regression(y[k], one[k], truncated_low={bound}"),
    }[which]
    setup = f"rng = np.random.default_rng({seed}); x, z, u, e = rng.normal(size=(4, 24))\n"
    setup += f"y, one = {origin} + {unit} * (0.6 * u + 0.8 * e), np.ones((24, 1))\n"
    setup += f"g, s, z, k = np.arange(24) % 6, z + u > 0, np.c_[one, z], y > {bound}\n"
    setup += f"d = {0.4 * unit} * x[g]\n"
    setup += f"fit = tg.{call}, {QUIET})\n"
    setup += f"ends, j = fit.profile('{name}'), fit.names.index('{name}')"

    def oracle(names):
        (low, high), value = names["ends"], names["fit"].estimates[names["j"]]
        return np.clip([min(low, value), max(high, value)], least, most), 0.0

    return Case(which, setup, "ends", oracle, 1e-12, refused=True)


@law
def ratios(draw):
    """Tests of a fit against a smaller one, also where a variance of that is 0, at its edge."""
    seed, unit, origin = numbers(draw)
    models = "regression(y, one", "regression(y, both", "clusters(y, one, g", "clusters(y, both, g"
    small, large = draw(st.sampled_from([(0, 1), (0, 2), (0, 3), (2, 3), (1, 3)]))
    setup = f"rng = np.random.default_rng({seed}); x, u, e = rng.normal(size=(3, 40))\n"
    setup += "g, one = np.arange(40) % 8, np.ones((40, 1)); both = np.c_[one, x]\n"
    setup += f"y = {origin} + {unit} * (0.3 * x + {draw(st.sampled_from([0.4, 0.0]))} * u[g] + e)\n"
    setup += f"small, fit = tg.fit_{models[small]}, {QUIET}), tg.fit_{models[large]}, {QUIET})"
    ours = "np.array(tg.likelihood_ratio(small, fit))"
    degrees, edge = [0, 1, 1, 2][large] - [0, 1, 1, 2][small], large >= 2 > small

    def oracle(names):
        gain = 2.0 * (names["fit"].log_likelihood - names["small"].log_likelihood)
        gain = gain if gain > 1e-11 * abs(names["fit"].log_likelihood) else 0.0  # beyond rounding
        p = [stats.chi2.sf(gain, k) if k else gain == 0.0 for k in (degrees, degrees - edge)]
        return np.r_[gain, degrees, np.mean(p)], 0.0

    return Case(f"{models[small]}), {models[large]})", setup, ours, oracle, 1e-10)


# --- Student's t ----------------------------------------------------------------------------------


def log_box_t(low, high, factor, df, loc=0.0):
    """log P(low < T < high) of a t, of (loc + Z) / S, whose scale matrix has this factor.

    Given W of chi squared it is a Gaussian box of bounds times sqrt(W / df); over log W the
    trapezoidal rule, whose error falls exponentially.
    """
    t = np.linspace(-140.0 / df, np.log(df + 60.0 + 20 * np.sqrt(df)), 400)
    root = np.sqrt(np.exp(t) / df)[:, None]
    with np.errstate(invalid="ignore"):
        rows = oracles.log_box(loc, factor, root * low, root * high)
    log_density = df / 2 * (t - np.log(2.0)) - np.exp(t) / 2
    total = logsumexp(log_density)  # its own integral by the same rule
    return float(logsumexp(rows + log_density) - total)


@law
def students(draw):
    """log P of a box under a t, and its slope in the degrees of freedom."""
    d = draw(st.integers(1, 2))
    df = draw(st.sampled_from([4.0, 1.0, 2.5, 30.0, 200.0]))
    high = np.array(draw(st.lists(st.sampled_from([1.0, INF, 0.2]), min_size=d, max_size=d)))
    low = np.array(draw(st.lists(st.sampled_from([-1.0, 0.0, -INF]), min_size=d, max_size=d)))
    rho = draw(st.sampled_from([0.0, 0.5, -0.9]))
    route = draw(st.sampled_from(["", "jax.jit"]))
    covariance = np.eye(d) + rho * (1 - np.eye(d))
    text = lambda x: str(np.asarray(x).tolist()).replace("inf", "jnp.inf")
    setup = f"S, box = jnp.array({text(covariance)}), tg.Box({text(low)}, {text(high)})\n"
    kind = draw(st.sampled_from(["shifted", "Kshirsagar"]))
    loc = np.array(draw(st.lists(st.sampled_from([0.0, 0.5, -1.0]), min_size=d, max_size=d)))
    setup += f"f = lambda df: tg.log_probability({loc.tolist()}, S, box, df=df, "
    setup += f"noncentral='{kind}')\n"
    setup += f"estimate = {route}(f)({df}); slope = jax.grad(lambda df: f(df).log_prob)({df})"
    factor = oracles.factor_of(covariance)

    def oracle(names):
        shift, away = (loc, 0.0) if kind == "shifted" else (0.0, loc)
        along = lambda t: log_box_t(low - shift, high - shift, factor, df + t, away)
        slope, error = oracles.slope(along, 1, 0.1)
        return np.r_[along(0.0), slope], np.r_[1e-10, error]

    ours = "np.r_[estimate.log_prob, slope]"
    return Case(
        f"{kind}, df = {df}, d = {d}",
        setup,
        ours,
        oracle,
        np.r_[1e-8, 1e-5],
        "np.r_[estimate.stderr, 0]",
    )


@law
def quantiles(draw):
    """The probability below an equicoordinate quantile of a Gaussian or a t."""
    d = draw(st.integers(1, 3))
    df = draw(st.sampled_from([INF, 5.0])) if d < 3 else INF
    p = draw(st.sampled_from([0.5, 0.05, 0.95, 0.999]))
    tail = draw(st.sampled_from(["lower", "both", "upper"]))
    rho = draw(st.sampled_from([0.0, 0.5, 0.97, -0.3]))
    scale = draw(st.sampled_from([1.0, 1e3]))
    covariance = scale**2 * (np.eye(d) + rho * (1 - np.eye(d)))
    loc = draw(st.lists(st.sampled_from([0.0, 0.5, -1.0]), min_size=d, max_size=d))
    loc = scale * np.array(loc)
    setup = f"S = jnp.array({covariance.tolist()})\n"
    more = "" if np.isinf(df) else f", df={df}"
    setup += f'q = tg.quantile({p}, {loc.tolist()}, S, tail="{tail}"{more})'
    factor = oracles.factor_of(covariance)

    def probability(q):
        low = np.full(d, {"lower": -INF, "both": -q, "upper": q}[tail]) - loc
        high = np.full(d, INF if tail == "upper" else q) - loc
        if np.isinf(df):
            return float(oracles.log_box(0.0, factor, low, high, 14)[0])
        return log_box_t(low, high, factor, df)

    def oracle(names):
        q = float(names["q"].value)
        slope = (probability(q + 1e-4 * scale) - probability(q - 1e-4 * scale)) / (2e-4 * scale)
        return probability(q), abs(slope) * (float(names["q"].stderr) + 1e-9 * scale)

    kind = f"{tail}, d = {d}, df = {df}"
    return Case(kind, setup, f"np.log({p})", oracle, 1e-7)


@law
def comparisons(draw):
    """Means of groups against the first: intervals that hold together, and adjusted p-values."""
    count, seed = draw(st.integers(2, 3)), draw(st.integers(0, 10**4))
    level, alternative = draw(st.sampled_from([0.95, 0.8])), draw(st.sampled_from(ALTERNATIVES))
    kind = draw(st.sampled_from(["dunnett", "tukey"])) if count == 2 else "dunnett"
    null, unit = draw(st.sampled_from([0.0, 0.5])), draw(st.sampled_from([1.0, 1e3]))
    setup = f"rng = np.random.default_rng({seed}); g = np.arange(13) ** 2 % 7 % {count}\n"
    setup += f"y = {unit} * (rng.normal(size=13) + 0.7 * g)\n"
    setup += f"r = tg.simultaneous(y=y, group=g, contrasts='{kind}', level={level}, "
    setup += f"alternative='{alternative}', null={null * unit})"

    def oracle(names):
        parts = [names["y"][names["g"] == k] for k in dict.fromkeys(names["g"].tolist())]
        df = 13 - count
        variance = sum(np.sum((part - part.mean()) ** 2) for part in parts) / df
        differences = np.array([part.mean() - parts[0].mean() for part in parts[1:]])
        shares = np.diag([1 / len(part) for part in parts[1:]]) + 1 / len(parts[0])
        errors = np.sqrt(variance * np.diag(shares))
        scale = np.sqrt(np.diag(shares))
        factor_of = lambda some: oracles.factor_of((shares / np.outer(scale, scale))[some][:, some])

        def within(c, some=slice(None)):  # P(no statistic is beyond c)
            high = np.full(len(differences[some]), c)
            low = np.full(len(high), -c if alternative == "two-sided" else -INF)
            return np.exp(log_box_t(low, high, factor_of(some), float(df)))

        c = float(names["r"].critical_value.value)
        statistics = (differences - null * unit) / errors
        sizes = {"two-sided": abs(statistics), "less": -statistics}.get(alternative, statistics)
        low = np.where(alternative == "less", -INF, differences - c * errors)
        high = np.where(alternative == "greater", INF, differences + c * errors)
        p = [1 - within(size) for size in sizes]
        down = [1 - within(size, sizes <= size) for size in sizes]
        down = [max(q for q, other in zip(down, sizes) if other >= size) for size in sizes]
        return np.r_[differences, errors, low, high, within(c), p, down, np.log([*p, *down])], 0.0

    ours = f"np.r_[r.estimates, r.standard_errors, r.low, r.high, {level}, r.p_values, "
    ours += "r.step_down_p_values, np.ravel(r.log_p_values)]"
    return Case(f"{kind}, {count} groups, {alternative}", setup, ours, oracle, 1e-7)


@law
def single_precision(draw):
    """log P in float32, beside quadrature at the same numbers."""
    d = draw(st.integers(1, 3))
    bounds = st.sampled_from([0.0, -1.0, 2.0, 6.0, -30.0])
    low = np.array(draw(st.lists(bounds, min_size=d, max_size=d)))
    width = draw(st.sampled_from([INF, 1.0, 1e-3, 50.0]))
    rho = draw(st.sampled_from([0.0, 0.5, -0.25, 0.875]))
    rho = rho if d < 3 or rho > -0.5 else 0.0
    form = draw(st.sampled_from(["matrix", "LowRank", "Markov"]))
    rho = 0.25 if form == "LowRank" else rho
    covariance = np.eye(d) + rho * (1 - np.eye(d))
    factor = oracles.factor_of(covariance)
    if form == "Markov":
        factor = chain_factor({"A": np.full(d - 1, 0.5), "N": np.ones(d - 1), "first": 1.0})
    route = draw(st.sampled_from(["f", "jax.jit(f)"]))
    text = lambda x: str(np.asarray(x).tolist()).replace("inf", "jnp.inf")
    setup = f"low = jnp.array({text(low)}, jnp.float32); high = low + jnp.float32({text(width)})\n"
    full = lambda shape, x: f"jnp.full({shape}, {x}, jnp.float32)"
    setup += {
        "matrix": f"S = jnp.array({text(covariance)}, jnp.float32)\n",
        "LowRank": f"S = tg.LowRank({full((d, 1), 0.5)}, {full(d, 0.75)})\n",
        "Markov": f"S = tg.Markov({full(d - 1, 0.5)}, {full(d - 1, 1.0)}, jnp.float32(1.0))\n",
    }[form]
    setup += "f = lambda loc: tg.log_probability(loc, S, tg.Box(low, high))\n"
    setup += f"estimate = {route}(jnp.zeros({d}, jnp.float32))"

    def oracle(names):
        ends = (np.asarray(names[x], np.float64) for x in ("low", "high"))
        of = lambda n, ends=tuple(ends): oracles.log_box(0.0, factor, *ends, n)[0]
        return oracles.with_error(of)

    ours = "jnp.where(estimate.log_prob.dtype == jnp.float32, estimate.log_prob, jnp.nan)"
    kind = f"{route}, {form}, d = {d}, width {width:g}"
    return Case(kind, setup, ours, oracle, 3e-5, "estimate.stderr")
