"""Laws of truncated distributions: quantiles, moments, densities and draws."""

import mpmath as mp
import numpy as np
from hypothesis import strategies as st
from scipy import stats

from tests.normal_truth import DIGITS, Truth
from tests.referee import oracles
from tests.referee.boxes import gaussian, limits, lines, log_box_of, text
from tests.referee.frame import Case, law

INF = np.inf


def quantile(truth, q):
    """log(x - low) of the point x below which a share q lies, by halving intervals of that log."""
    below = lambda t: truth.upper_a - truth.tail(truth.a + mp.exp(t)) - mp.mpf(q) * truth.mass
    left, right = mp.mpf(-800), mp.mpf(5)
    for _ in range(80):
        middle = (left + right) / 2
        left, right = (middle, right) if below(middle) < 0 else (left, middle)
    return float(left + mp.log(truth.scale))


@law
def univariate(draw):
    """A truncated normal variable: quantiles, moments, densities, in 400 digits."""
    low = draw(st.sampled_from([0.0, -1.0, 5.0, 40.0, 1e3]))
    high = draw(st.sampled_from([INF, 1e300, low + 1.0, low + 1e-6]))
    loc, scale = draw(st.sampled_from([0.0, 0.5])), draw(st.sampled_from([1.0, 2.0]))
    what = draw(st.sampled_from(["icdf", "mean", "variance", "log_prob"]))
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
    else:
        ours = f"d.mean - {low}" if what == "mean" else "d.variance"
        of = lambda truth: float(truth.mean - low if what == "mean" else truth.variance)
        tol = 1e-9

    def oracle(names):
        with mp.workdps(2 * DIGITS):  # shares of 1e-300 are differences of tails
            return of(Truth(loc, scale, low, high)), 0.0

    return Case(words, setup, ours, oracle, tol)


@law
def densities(draw):
    """Log densities of a truncated Gaussian vector inside, outside and at infinity."""
    d = draw(st.integers(1, 2))
    loc, low, high = limits(draw, d, odd=False)
    points = st.sampled_from([0.0, 0.7, -1.1, 3.0, -INF, INF])
    x = np.array(draw(st.lists(points, min_size=d, max_size=d)))
    covariance = np.eye(d) + 0.4 * (1 - np.eye(d))
    setup = lines({"loc": loc, "low": low, "high": high, "S": covariance, "x": x})
    setup += "p = tg.TruncatedMultivariateNormal(loc, S, low=low, high=high).log_prob"

    def oracle(names):
        inside = bool(np.all((low <= x) & (x <= high) & np.isfinite(x)))
        if not inside:
            return np.r_[-INF, np.zeros(d)], 0.0
        mass, error = oracles.with_error(
            lambda n: oracles.log_box(loc, oracles.factor_of(covariance), low, high, n)[0]
        )
        slope = -np.linalg.solve(covariance, x - loc)
        return np.r_[stats.multivariate_normal(loc, covariance).logpdf(x) - mass, slope], error

    return Case(f"d = {d}, at {text(x)}", setup, "np.r_[p(x), jax.grad(p)(x)]", oracle, 1e-8)


@law
def draws(draw):
    """The mean of draws inside a box, beside the slope of log P in the mean."""
    d = draw(st.integers(1, 3))
    name, parts, cov, factor = gaussian(draw, d)
    loc, low, high = limits(draw, d, odd=False)
    parts = {"loc": loc, "low": low, "high": high} | parts
    setup = lines(parts) + f"key = jax.random.key({draw(st.integers(0, 99))})\n"
    setup += f"x = tg.truncated_samples(key, loc, {cov}, tg.Box(low, high), 400)[:, 0]"

    def oracle(names):
        root = factor({key: np.asarray(names[key]) for key in parts})
        along = (root @ root.T)[0]
        log_p = lambda t: oracles.log_box(loc + t * along, root, low, high)[0]
        return loc[0] + oracles.slope(log_p, 1)[0], 1e-6

    impossible = np.isneginf(log_box_of(parts, factor))
    return Case(f"{name}, d = {d}", setup, "x.mean()", oracle, 1e-6, "x.std() / 20", impossible)
