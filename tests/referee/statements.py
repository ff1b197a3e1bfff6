"""Laws of what is said of a fit or a table: whether there is a maximum and why not, what else fits,
and what stands for a missing cell. A false alarm breaks them as a miss does."""

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from scipy import optimize
from scipy.special import logsumexp
from scipy.stats import norm

from tests.referee.fits import QUIET, heckman
from tests.referee.frame import Case, law

INF = np.inf
ABSENT = ["", "NA", "n/a", "null", "NaN", "None"]
NO_NUMBER = ["1.0 U", "1,634", "5%", "1.5D3", "nd", "abc", "1 mg"]


@law
def maxima(draw):
    """Whether a likelihood has a maximum, and if not the word by which that is explained."""
    seed, n = draw(st.integers(0, 10**4)), draw(st.sampled_from([10, 20]))
    which = draw(st.sampled_from(["tobit", "binary", "truncated", "selection"]))
    unit = draw(st.sampled_from([1.0, 1e3, 1e-3]))
    setup = f"rng = np.random.default_rng({seed}); x, z, u, e = rng.normal(size=(4, {n}))\n"
    setup += f"one, y, s = np.ones({n}), x + 0.6 * u + 0.8 * e, 0.3 + z + u > 0\n"
    limit = unit * draw(st.sampled_from([0.0, 9.0, -9.0]))
    call, word = {
        "tobit": (
            f"fit_regression({unit} * y, {{'one': one, 'x': x}}, censored_low={limit}",
            f"{n} of {n} outcomes are censored",
        ),
        "binary": (
            f"fit_regression(tg.Ordinal(1 * (x + 0.4 * e > 0)), {{'x': {unit} * np.round(2 * x)}}",
            "separated",
        ),
        "truncated": (f"fit_truncated_normal({unit} * abs(y) ** 1.5, low=0.0", "widens"),
        "selection": (
            f"fit_selection(np.where(s, {unit} * y, np.nan), {{'one': one, 'x': x}}, s, "
            "{'one': one, 'z': z}",
            "rho",
        ),
    }[which]
    setup += f"f = tg.{call}, {QUIET})"
    ours = f"np.r_[f.converged, {word!r} in (f.reason or '')]"

    def oracle(names):
        x, y, e = (names[name] for name in "xye")
        undecided = np.r_[bool(names["f"].converged), word in (names["f"].reason or "")]
        if which == "tobit":
            assume(np.sum(unit * y > limit) not in (1, 2))  # which a line may meet
            rises = bool(np.all(unit * y <= limit))
        elif which == "binary":
            yes, x = x + 0.4 * e > 0, np.round(2 * x)
            low, high = x[yes], x[~yes]
            rises = yes.all() or not yes.any()
            rises = rises or low.min() >= high.max() or high.min() >= low.max()
        elif which == "truncated":  # del Castillo (1994): where the coefficient of variation is < 1
            t = abs(y) ** 1.5
            ratio = t.std() / t.mean()
            if abs(ratio - 1) < 0.05:
                return undecided, 0.0
            rises = ratio > 1
        else:
            assume(names["s"].sum() > 2)  # two are met exactly
            at_edges, inside = profile_of_rho(names)
            if abs(at_edges - inside) < 0.02:
                return undecided, 0.0
            rises = at_edges > inside
        return np.r_[not rises, rises], 0.0

    return Case(which, setup, ours, oracle, 0.0)


def profile_of_rho(names):
    """The highest log-likelihood of a selection model with rho beside 1 or -1, and elsewhere."""
    rows = names["x"], names["z"], names["s"], names["y"]

    def highest(athrho):
        loss = lambda b: -np.sum(heckman(np.r_[b[:4], np.tanh(athrho), np.exp(b[4])], *rows))
        starts = np.zeros(5), np.r_[0.3, 1.0, 0.0, 1.0, np.sign(athrho)]
        with np.errstate(all="ignore"):
            return max(-optimize.minimize(loss, start, method="BFGS").fun for start in starts)

    inside = max(map(highest, np.linspace(-2.5, 2.5, 11)))
    return max(highest(-7.0), highest(7.0)), inside


@law
def other_solutions(draw):
    """The shifts that explain a count inside of an interval, of which all are reported."""
    middle, width = draw(st.sampled_from([1.0, 0.0, -2.0])), draw(st.sampled_from([0.5, 1.0, 2.0]))
    scale, count = draw(st.sampled_from([1.0, 1e3])), draw(st.sampled_from([20, 100, 150]))
    two, n = draw(st.booleans()), 1000
    low, high = middle - width / 2, middle + width / 2
    inside = lambda t: norm.cdf(high - t) - norm.cdf(low - t)
    away = optimize.brentq(lambda t: inside(middle + t) - count / n, 0.0, 30.0)
    assume(away > 0.1)
    beyond = round(n * norm.sf(high - (middle + away)))  # a second region tells them apart
    counts, lows, highs = [count, beyond], [[low], [high]], [[high], [INF]]
    counts, lows, highs = (x[: 1 + two] for x in (counts, lows, highs))
    setup = f"box = tg.Box({scale} * np.array({lows}), {scale} * np.array({highs}))\n"
    setup = setup.replace("inf", "np.inf")
    setup += f"fit = tg.fit_shift({counts}, [0.0], [[{scale**2}]], box, {n}, progress=False)\n"
    setup += "x = np.sort(np.ravel([fit.params, *fit.alternatives]))"
    truth = [middle + away, INF] if two else [middle - away, middle + away]
    ours = f"np.r_[x / {scale}, np.inf, np.inf][:2]"
    return Case(f"{1 + two} regions", setup, ours, lambda names: (truth, 0.0), 5e-3 * two + 1e-6)


@law
def few_rows(draw):
    """Rows that tell nothing, without an entry or a weight, do not count; two are too few."""
    few, empty, gone = draw(st.integers(1, 5)), draw(st.integers(0, 3)), draw(st.integers(0, 2))
    values = [1.2, 2.2, 3.1, 1.7, 2.9][:few] + [5.0] * gone + [np.nan] * empty
    weights = [1.0] * few + [0.0] * gone + [1.0] * empty
    fit = draw(st.sampled_from(["fit_observations(rows", "fit_mixture(rows, 1"]))
    setup = f"y, w = np.array({values}), np.array({weights})\n".replace("nan", "np.nan")
    setup += "rows = tg.Observations.exact(y, weights=w, nan_is_missing=True)\n"
    setup += f"fit = tg.{fit}, progress=False)"
    told = np.array(values[:few])
    truth = np.r_[told.mean(), told.var()]
    estimates = "np.r_[fit.loc, fit.covariance_matrix[0]]"
    if "mixture" in fit:
        estimates = "np.r_[fit.locs[0], fit.covariances[0, 0]]"
    oracle = lambda names: (truth, 0.0)
    return Case(f"{few} rows, {fit}", setup, estimates, oracle, 1e-6, must_refuse=few < 3)


@law
def proposals(draw):
    """A config that `truncgauss new` writes of a table: a text that holds a number, or is no word
    for a missing value, is asked about, and never taken for missing."""
    right = draw(st.lists(st.sampled_from(["1.0", "2.5", "-3e-1", "4"]), min_size=4, max_size=6))
    odd = draw(st.lists(st.sampled_from([*ABSENT, *NO_NUMBER]), max_size=2, unique=True))
    cells = draw(st.permutations([*right, *odd]))
    setup = "import contextlib, io, os, pathlib, tempfile; from truncgauss import cli, runs\n"
    setup += "os.chdir(tempfile.mkdtemp()); out = io.StringIO()\n"
    text = "y,k\n" + "".join(f'"{cell}",{k}\n' for k, cell in enumerate(cells))
    setup += f"pathlib.Path('t.csv').write_text({text!r})\n"
    setup += "with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):\n"
    setup += "    code = cli.main(['new', 't.csv', '--outcome', 'y'])\n"
    setup += "missing = () if code else runs.config.load('t.yaml').missing"
    fine = all(cell in ABSENT for cell in odd)
    truth = np.r_[0.0, len(odd)] if fine else np.r_[2.0, 0.0]
    kind = "one number or more" if not odd else f"{odd}"
    return Case(kind, setup, "np.r_[code, len(missing)]", lambda names: (truth, 0.0), 0.0)


@law
def highest_mixtures(draw):
    """The maximum of narrow components within a wide one, beside EM from many starts in NumPy."""
    seed, n = draw(st.integers(0, 10**4)), draw(st.sampled_from([82, 120]))
    gap, unit = draw(st.sampled_from([2.0, 3.0, 5.0])), draw(st.sampled_from([1.0, 1e3]))
    count = draw(st.sampled_from([4, 3]))
    setup = f"rng = np.random.default_rng({seed}); k = rng.integers({count}, size={n})\n"
    setup += f"y = {gap} * k * (k < 3) + np.array([1.0, 0.3, 0.6, 6.0])[k] * rng.normal(size={n})\n"
    setup += f"fit = tg.fit_mixture(tg.Observations.exact({unit} * y), {count}, progress=False)\n"
    setup += f"value = fit.log_likelihood + {n} * np.log({unit})"

    def oracle(names):
        y, value = names["y"], float(names["value"])
        return max(value, best_of_em(y, count, 100)), 0.0

    return Case(f"{count} of {n} rows, {gap} apart", setup, "value", oracle, 1e-5)


def best_of_em(y, count, starts):
    """The highest log-likelihood of EM for components of which none is narrow or of few rows."""
    rng = np.random.default_rng(1)
    locs = np.stack([rng.choice(y, count, replace=False) for _ in range(starts)])
    shares, scales = np.full(locs.shape, 1 / count), y.std() * rng.choice([0.1, 0.3], locs.shape)
    for _ in range(600):
        each = np.log(shares) + norm.logpdf(y[:, None, None], locs, scales)
        rows = logsumexp(each, axis=2)
        weights = np.exp(each - rows[:, :, None])
        sums = weights.sum(axis=0) + 1e-300
        shares, locs = sums / len(y), np.einsum("nsk,n->sk", weights, y) / sums
        squares = np.sum(weights * (y[:, None, None] - locs) ** 2, axis=0) / sums
        scales = np.sqrt(np.maximum(squares, 1e-4 * y.var()))
    sound = (scales.min(axis=1) > 0.05 * y.std()) & (sums.min(axis=1) > 6)
    return np.max(rows.sum(axis=0)[sound], initial=-INF)
