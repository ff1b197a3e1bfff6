"""Laws of truncated distributions: quantiles, moments, densities, draws and residuals."""

import mpmath as mp
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp, softmax

from tests.normal_truth import DIGITS, Truth
from tests.referee import oracles
from tests.referee.boxes import gaussian, limits, lines, log_box_of, text
from tests.referee.fits import slopes
from tests.referee.frame import Case, law
from tests.referee.groups import log_box_t

INF = np.inf


def quantile(truth, q):
    """log(x - low) of the point x below which a share q lies, by halving intervals of that log."""
    below = lambda t: truth.upper_a - truth.tail(truth.a + mp.exp(t)) - mp.mpf(q) * truth.mass
    left, right = mp.mpf(-800), mp.mpf(5)
    for _ in range(80):
        middle = (left + right) / 2
        left, right = (middle, right) if below(middle) < 0 else (left, middle)
    return float(left + mp.log(truth.scale))


def share(truth, x):
    """P(X <= x) of a truncated normal variable."""
    z = (mp.mpf(x) - truth.loc) / truth.scale
    below = truth.upper_a - truth.tail(z) if truth.a + z > 0 else truth.tail(-z) - truth.lower_a
    return min(below / truth.mass, 1)


@law
def univariate(draw):
    """A truncated normal variable: quantiles, moments, densities, in 400 digits."""
    low = draw(st.sampled_from([0.0, -1.0, 5.0, 40.0, 1e3, -6.0, -41.0]))
    high = draw(st.sampled_from([INF, 1e300, low + 1.0, low + 4.0, low + 1e-6]))
    loc, scale = draw(st.sampled_from([0.0, 0.5])), draw(st.sampled_from([1.0, 2.0]))
    kinds = ["icdf", "mean", "variance", "entropy", "log_prob", "cdf", "log_normalizer", "sample"]
    what = draw(st.sampled_from(kinds))
    setup = f"d = tg.TruncatedNormal({loc}, {scale}, {low}, {high})\n".replace("inf", "np.inf")
    words = f"{what}, [{low:g}, {high:g}]"
    if what == "icdf":
        q = draw(st.sampled_from([0.5, 1e-3, 0.99] + [1e-300] * (low == 0.0)))
        ours = f"np.log(d.icdf({q}) - {low})"
        of, tol = lambda truth: quantile(truth, q), 1e-9 if low == 0.0 else 1e-4
    elif what == "log_prob":
        x = low + draw(st.sampled_from([0.0, 1e-7, 0.3]))
        ours = f"d.log_prob({x})"
        of, tol = lambda truth: float(truth.log_density(x)) if x <= high else -INF, 1e-9
    elif what in ("cdf", "sample"):
        x, key = low + draw(st.sampled_from([0.3, 1e-7])), draw(st.integers(0, 9))
        ours = f"d.cdf({x})" if what == "cdf" else f"d.sample(jax.random.key({key}))"
        of, tol = lambda truth: float(share(truth, x)), 1e-9
    else:
        ours = {"mean": f"d.mean - {low}", "entropy": "d.entropy()"}.get(what, f"d.{what}")
        ours = ours.replace("zer", "zer.log_prob")
        name = {"log_normalizer": "log_mass"}.get(what, what)
        of = lambda truth: float(getattr(truth, name) - (low if what == "mean" else 0))
        tol = 1e-9

    by = draw(st.sampled_from([None, "loc", "scale", "low", "high"]))
    known = {"loc": loc, "scale": scale, "low": low, "high": high}
    by = None if what == "log_prob" and by == "low" else by  # at which the density jumps
    if by is None or abs(low) > 6 or high - low < 0.5 or known[by] >= 1e300:
        by = None
        assume(what != "sample")
    else:
        ours = f"d.icdf({q})" if what == "icdf" else ours.replace(f" - {low}", "")
        ours = ours.replace("d.", f"of({by}).")
        names = ", ".join(by if key == by else str(x) for key, x in known.items())
        setup = f"of = lambda {by}: tg.TruncatedNormal({names})\n".replace("inf", "np.inf")
        ours, words, tol = f"jax.grad(lambda {by}: {ours})({known[by]})", f"{words} by {by}", 1e-6

    def oracle(names):
        with mp.workdps(2 * DIGITS):  # shares of 1e-300 are differences of tails
            if by is None:
                return of(Truth(loc, scale, low, high)), 0.0
            moved = lambda t: Truth(*(x + t * (key == by) for key, x in known.items()))
            if what == "sample":  # it keeps its share
                y = float(names["of"](known[by]).sample(names["jax"].random.key(key)))
                slope, error = oracles.slope(lambda t: float(share(moved(t), y)), 1, 0.02)
                density = float(mp.exp(moved(0).log_density(y)))
                return -slope / density, error / density
            values = {"mean": lambda t: float(moved(t).mean)}
            values["icdf"] = lambda t: low + t * (by == "low") + np.exp(of(moved(t)))
            return oracles.slope(values.get(what, lambda t: of(moved(t))), 1, 0.02)

    return Case(words, setup, ours, oracle, tol)


@law
def densities(draw):
    """Log densities of truncated vectors of three kinds: inside, outside and at infinity."""
    d, which = draw(st.integers(1, 2)), draw(st.sampled_from(["Normal", "StudentT", "Mixture"]))
    loc, low, high = limits(draw, d, odd=False)
    points = st.sampled_from([0.0, 0.7, -1.1, 3.0, -INF, INF])
    x = np.array(draw(st.lists(points, min_size=d, max_size=d)))
    covariance = np.eye(d) + 0.4 * (1 - np.eye(d))
    setup = lines({"loc": loc, "low": low, "high": high, "S": covariance, "x": x})
    setup += {
        "Normal": "p = tg.TruncatedMultivariateNormal(loc, S, low=low, high=high)",
        "StudentT": "p = tg.TruncatedMultivariateStudentT(4.0, loc, S, low=low, high=high)",
        "Mixture": "p = tg.TruncatedMixture([0.3, 0.7], [loc, loc + 1], [S, 2 * S], low, high)",
    }[which]
    each = [stats.multivariate_normal(loc, covariance)]
    each += [stats.multivariate_normal(loc + 1, 2 * covariance)] * (which == "Mixture")
    each = [stats.multivariate_t(loc, covariance, 4.0)] if which == "StudentT" else each
    shares = np.log([0.3, 0.7] if which == "Mixture" else [1.0])

    def masses(nodes):
        if which == "StudentT":
            return log_box_t(low - loc, high - loc, oracles.factor_of(covariance), 4.0)
        factors = [oracles.factor_of(covariance), oracles.factor_of(2 * covariance)]
        of = lambda k: oracles.log_box(loc + k, factors[k], low, high, nodes)[0]
        return logsumexp([share + of(k) for k, share in enumerate(shares)])

    def oracle(names):
        if not np.all((low <= x) & (x <= high) & np.isfinite(x)):
            return np.r_[-INF, np.zeros(d)], 0.0
        of = lambda x: logsumexp([s + one.logpdf(x) for s, one in zip(shares, each)])
        mass, error = oracles.with_error(masses)
        return np.r_[of(x) - mass, slopes(lambda u: of(x + u), d)], error + 1e-9

    ours = "np.r_[p.log_prob(x), jax.grad(p.log_prob)(x)]"
    return Case(f"{which}, d = {d}, at {text(x)}", setup, ours, oracle, 1e-8)


@law
def draws(draw):
    """The mean of draws inside a box, beside the slope of log P in the mean; of mixtures too."""
    d = draw(st.integers(1, 3))
    name, parts, cov, factor = gaussian(draw, d)
    loc, low, high = limits(draw, d, odd=False)
    parts = {"loc": loc, "low": low, "high": high} | parts
    setup = lines(parts) + f"key = jax.random.key({draw(st.integers(0, 99))})\n"
    mixed = cov == "S" and draw(st.booleans())
    problem = f"key, loc, {cov}, tg.Box(low, high), 1600"
    way = draw(
        st.sampled_from(
            [f"tg.truncated_samples({problem})", f"tg.truncated_draws({problem}).samples"]
        )
    )
    mixture = "tg.TruncatedMixture([0.5, 0.5], [loc, loc + 4], [S, S], low, high)"
    setup += f"x = {f'{mixture}.sample(key, (1600,))' if mixed else way}[:, 0]"

    def oracle(names):
        root = factor({key: np.asarray(names[key]) for key in parts})
        along = (root @ root.T)[0]
        log_p = lambda t, move: oracles.log_box(loc + move + t * along, root, low, high)[0]
        moves = [0.0, 4.0][: 1 + mixed]
        means = [loc[0] + m + oracles.slope(lambda t, m=m: log_p(t, m), 1)[0] for m in moves]
        weights = np.exp([log_p(0.0, move) for move in moves])
        return np.average(np.nan_to_num(means), weights=weights), 1e-6

    impossible = np.isneginf(log_box_of(parts, factor))
    words = f"{name}, d = {d}" + ", mixed" * mixed  # which no singular covariances may be
    return Case(words, setup, "x.mean()", oracle, 1e-6, "x.std() / 40", impossible or mixed)


@law
def smooth_draws(draw):
    """The mean and square of draws of a smooth field, singular to rounding, beside rejection."""
    n, length = 60, draw(st.sampled_from([0.1, 0.3]))
    setup = f"i = np.arange({n}) / {n}; S = np.exp(-0.5 * ((i[:, None] - i) / {length}) ** 2)\n"
    setup += f"box = tg.Box(np.full({n}, -1.0), {draw(st.sampled_from([1.0, 2.0]))})\n"
    setup += (
        f"x = tg.truncated_samples(jax.random.key({draw(st.integers(0, 9))}), 0 * i, S, box, 200)"
    )

    def oracle(names):
        values, axes = np.linalg.eigh(names["S"])
        z = np.random.default_rng(0).normal(size=(40_000, n))
        x = z @ (axes * np.sqrt(values.clip(0))).T
        x = x[np.all((x > -1) & (x < float(names["box"].high[0])), axis=1)]
        both = np.stack([x.mean(1), x.var(1)])
        return both.mean(1), both.std(1) / np.sqrt(len(x))

    both = "np.stack([x.mean(1), x.var(1)])"
    return Case(f"{n} sites", setup, f"{both}.mean(1)", oracle, 1e-6, f"{both}.std(1) / 14")


@law
def conditionals(draw):
    """Means and covariances given what is known, by slopes of the log-likelihood in the mean."""
    d, errors = draw(st.integers(1, 2)), draw(st.booleans())
    loc, low, high = limits(draw, d)
    matrix, noise = np.array([[1.0, 0.6], [0.6, 2.0]])[:d, :d], errors * (0.5 * np.eye(d) + 0.1)
    parts = {"loc": loc, "low": low, "high": high, "S": matrix, "N": noise}
    setup = lines(parts) + f"rows = tg.Observations(low[None], high[None]{', noise=N' * errors})\n"
    method = draw(st.sampled_from(["Automatic", "Separation", "SequentialMonteCarlo"]))
    inside, way = not errors and draw(st.booleans()), "conditional_moments(rows, loc, S)"
    way = f"truncated_moments(loc, S, tg.Box(low, high), tg.{method}())" if inside else way
    setup += f"m = tg.{way}"

    def oracle(names):
        of = lambda u: oracles.log_rows(low, high, loc + matrix @ u, matrix + noise)
        along = lambda u: slopes(lambda v: of(u + v), d, 0.02)
        parts = loc + along(np.zeros(d)), matrix + slopes(along, d, 0.02)
        return np.concatenate([part.ravel() for part in parts]), 0.0

    ours = "np.r_[m.mean.ravel(), m.covariance.ravel()]"
    words, wrong = f"{way}, d = {d}" + ", noise" * errors, bool(np.any(low > high))
    wrong |= inside and bool(np.any(low == high))
    stderr = "2 * np.r_[m.mean_stderr.ravel(), m.covariance_stderr.ravel()]" if inside else "0.0"
    return Case(words, setup, ours, oracle, 1e-6, stderr, must_refuse=wrong)


@law
def residuals(draw):
    """Probabilities at quantile residuals: of entries known to intervals, their mean over draws."""
    d, n = draw(st.integers(1, 2)), 6
    numbers = lambda values, size: np.array(
        draw(st.lists(st.sampled_from(values), min_size=size, max_size=size))
    )
    lower = numbers([0.0, 0.7, -1.1, 2.0, -INF], n * d).reshape(n, d)
    width = numbers([0.0, 0.5, INF], n * d).reshape(n, d)
    upper = np.where(np.isinf(lower), np.where(width == 0.5, INF, 0.5), lower.clip(-9) + width)
    loc, covariance = numbers([0.0, 0.5], d), np.eye(d) + 0.6 * (1 - np.eye(d))
    box = numbers([-INF, -1.5], d), numbers([INF, 2.5], d)
    cut = bool(np.isfinite(box).any())
    parts = {"lower": lower, "upper": upper, "loc": loc, "S": covariance}
    setup = lines(parts | ({"low": box[0], "high": box[1]} if cut else {}))
    setup += f"rows = tg.Observations(lower, upper{', tg.Box(low, high)' if cut else ''})\n"
    setup += f"key = jax.random.key({draw(st.integers(0, 99))})\n"
    setup += "r = tg.quantile_residuals((rows, loc, S), key, num_draws=4000)"

    def mass(j, low, high):
        """The probability of rows whose entry j lies between numbers, those before as they are."""
        rest = np.full((n, d - j - 1), INF)
        low = np.hstack([lower[:, :j], low[:, None], -rest])
        high = np.hstack([upper[:, :j], high[:, None], rest])
        inside = np.maximum(low, box[0]), np.minimum(high, box[1])
        empty = inside[0][:, j] >= inside[1][:, j]
        return np.where(empty, 0.0, np.exp(oracles.log_rows(*inside, loc, covariance)))

    def oracle(names):
        middle, error = np.full((2, n, d), np.nan)
        for j in range(d):
            low, high, most = lower[:, j], upper[:, j], np.full(n, INF)
            parts = mass(j, -most, low), mass(j, low, high), mass(j, -most, most)
            below, inside, whole = np.where(np.isfinite(low) | np.isfinite(high), parts, np.nan)
            with np.errstate(invalid="ignore"):
                middle[:, j] = (below + inside / 2) / whole
                error[:, j] = np.nan_to_num(inside / whole / np.sqrt(12 * 4000))
        return middle, error

    ours = "jax.scipy.special.ndtr(r).mean(0)"
    return Case(f"d = {d}{', truncated' * cut}", setup, ours, oracle, 1e-8)


tail = lambda x: mp.erfc(x / mp.sqrt(2)) / 2
logistic = lambda x: 1 / (1 + mp.exp(-x))
hazard_of = lambda x: mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi) / tail(x)
FUNCTIONS = {
    "tg.special.log_ndtr({x})": lambda x: mp.log(tail(-x)),
    "tg.special.ndtr({x})": lambda x: tail(-x),
    "tg.special.sigmoid({x})": logistic,
    "tg.special.log_sigmoid({x})": lambda x: mp.log(logistic(x)),
    "tg.special.log1pexp({x})": lambda x: mp.log1p(mp.exp(x)),
    "tg.special.log1mexp({x} ** 2 + 1e-20)": lambda x: mp.log(-mp.expm1(-x * x - mp.mpf(1e-20))),
    "tg.special.hazard({x})": hazard_of,
    "tg.special.hazard_excess({x})": lambda x: hazard_of(x) - x,
    "tg.special.log_interval_mass({x}, {x} + 0.7)": lambda x: mp.log(
        tail(x) - tail(x + mp.mpf(0.7))
    ),
    "tg.safe.bell({x}, 1.5)": lambda x: mp.exp(-x * x / 4.5),
    "tg.safe.bell(2.5, {x} ** 2 + 0.5)": lambda x: mp.exp(-3.125 / (x * x + 0.5) ** 2),
    "tg.special.log_interval_mass(-jnp.inf, {x})": lambda x: mp.log(tail(-x)),
    "tg.special.truncated_log_mass(0.3, 2.0, {x}, {x} + 0.7)": lambda x: mp.log(
        tail((x - mp.mpf(0.3)) / 2) - tail((x + mp.mpf(0.7) - mp.mpf(0.3)) / 2)
    ),
    "tg.Probit(2.0).log_value({x})": lambda x: mp.log(tail(-x / 2)),
    "tg.Tanh(3.0).log_value({x})": lambda x: mp.log(logistic(3 * x)),
    "tg.safe.bump(1.0, {x} ** 2 + 1.5)": lambda x: mp.exp(-1 / (1 - 1 / (x * x + 1.5) ** 2)),
}


@law
def functions(draw):
    """Special functions and their first three derivatives, relative to their size."""
    expression, of = draw(st.sampled_from(list(FUNCTIONS.items())))
    x = draw(st.sampled_from([0.0, 0.3, -1.7, 5.0, -8.0, 25.0, -30.0, 1e-5, 300.0, -600.0]))
    order, way = draw(st.integers(0, 3)), draw(st.sampled_from(["f", "jax.jit(f)", "jax.vmap(f)"]))
    with mp.workdps(4 * DIGITS):
        truth = float(mp.diff(of, mp.mpf(x), order, h=mp.mpf(10) ** -60))
    assume(1e-290 < abs(truth) < 1e290 or truth == 0)
    setup = f"f = lambda x: {expression.format(x='x')}\n" + order * "f = jax.grad(f)\n"
    size = abs(truth) or 1.0
    ours = f"{way}({f'jnp.array([{x}])' if 'vmap' in way else x}) / {size!r}"
    kind, oracle = f"{expression.format(x=x)}, order {order}", lambda names: (truth / size, 0.0)
    return Case(kind, setup, ours, oracle, 10.0 ** (order - 11))


VARIABLES = {
    "Normal(m, 2.0)": lambda m: stats.norm(m, 2.0),
    "LogNormal(m, 0.5)": lambda m: stats.lognorm(0.5, scale=np.exp(m)),
    "StudentT(4.0, m, 2.0)": lambda m: stats.t(4.0, m, 2.0),
    "Weibull(m, 1.5)": lambda m: stats.weibull_min(1.5, scale=m),
    "Logistic(m, 2.0)": lambda m: stats.logistic(m, 2.0),
}


@law
def censored_variables(draw):
    """Log densities of censored variables of NumPyro, and their slopes in a parameter."""
    name, of = draw(st.sampled_from(list(VARIABLES.items())))
    m, y = draw(st.sampled_from([1.0, 0.3, 2.0])), draw(st.sampled_from([1.0, 0.5, 3.0, 9.0]))
    low, high = draw(st.sampled_from([None, 0.7, -2.0])), draw(st.sampled_from([None, 2.5, 9.0]))
    setup = "import numpyro.distributions as dist\n"
    setup += f"f = lambda m: tg.Censored(dist.{name}, {low}, {high}).log_prob({y})"

    def oracle(names):
        def along(t):
            x = of(m + t)
            if low is not None and y <= low:
                return x.logcdf(low)
            return x.logsf(high) if high is not None and y >= high else x.logpdf(y)

        slope, error = oracles.slope(along, 1, 0.02)
        return np.r_[along(0.0), slope], np.r_[1e-12, error]

    return Case(f"{name}, [{low}, {high}]", setup, f"np.r_[f({m}), jax.grad(f)({m})]", oracle, 1e-8)


unit = lambda x: (u := x / (abs(x).max() or 1.0)) / (np.linalg.norm(u) or 1.0)
size = lambda x: abs(x).max() * np.linalg.norm(x / (abs(x).max() or 1.0))
rise = np.array([0.2, -0.7, 3.0])
among = lambda p, v: p * (v - p @ v)
across = lambda x, v: (v - unit(x) * (unit(x) @ v)) / size(x) if size(x) else 0 * x
VECTORS = {  # values, slopes and the change of these along v
    "tg.special.log_sum_exp": (logsumexp, softmax, lambda x, v: among(softmax(x), v)),
    "tg.special.log_mean_exp": (
        lambda x: logsumexp(x) - np.log(len(x)), softmax, lambda x, v: among(softmax(x), v)
    ),
    "lambda x: tg.special.log_sum_exp(jnp.stack([x, 2.0 * x]), axis=(1,))[1]": (
        lambda x: logsumexp(2 * x), lambda x: 2 * softmax(2 * x),
        lambda x, v: 4 * among(softmax(2 * x), v),
    ),
    "tg.special.effective_sample_size": (
        lambda x: 1 / np.sum(softmax(x) ** 2), np.zeros_like, lambda x, v: 0 * v
    ),
    "lambda x: tg.safe.clipped_logits(x, 3.0) @ jnp.array([0.2, -0.7, 3.0])": (
        lambda x: np.maximum(x, x.max() - 3) @ rise, lambda x: np.where(x < x.max() - 3, 0, rise),
        lambda x, v: 0 * v,
    ),
    "lambda x: tg.safe.clipped_gradient(x, 0.5 + (x < 0)) @ jnp.array([0.2, -0.7, 3.0])": (
        lambda x: x @ rise, lambda x: rise.clip(-0.5 - (x < 0), 0.5 + (x < 0)), None
    ),
    "tg.safe.safe_norm": (size, unit, across),
    "lambda x: tg.safe.safe_norm(jax.lax.complex(x, 2 * x)[:, None], axis=0)[0]": (
        lambda x: 5**0.5 * size(x), lambda x: 5**0.5 * unit(x), lambda x, v: 5**0.5 * across(x, v)
    ),
}  # fmt: skip


@law
def vectors(draw):
    """Sums in logs, norms and clipped vectors, with their gradients and second derivatives."""
    name, (value, slope, bend) = draw(st.sampled_from(list(VECTORS.items())))
    extremes = [700.0, -1e3, -INF]
    extremes = [1e200, 1e-300] if "norm" in name else [] if "gradient" in name else extremes
    numbers = [0.0, 1.0, -2.5, 1e-3, *extremes]
    x = np.array(draw(st.lists(st.sampled_from(numbers), min_size=3, max_size=3)))
    assume(np.any(np.isfinite(x)))
    v, setup = np.array([1.0, -2.0, 0.5]), f"x = jnp.array({text(x)}); f = {name}"
    grad = draw(st.sampled_from(["jax.grad(f)", "jax.vmap(jax.grad(f))"]))
    at = "(x)" if "vmap" not in grad else "(jnp.stack([-x, x]))[1]"
    largest = size(x[np.isfinite(x)]) or 1.0
    second = bend is not None and bool(1e-200 < largest < 1e100)
    more = f", jax.jvp(jax.grad(f), (x,), (jnp.array({text(v)}),))[1]" * second
    ours = f"np.r_[f(x), {grad}{at}{more}]"
    truth = np.r_[value(x), slope(x), bend(x, v) if second else []]
    return Case(f"{name} of {text(x)}", setup, ours, lambda names: (truth, 0.0), 1e-12)
