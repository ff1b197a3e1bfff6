"""Laws of what lies in a region, by every method: moments, draws, weights and distributions."""

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit

from tests.referee import oracles
from tests.referee.boxes import gaussian, limits, lines, log_box_of, tenths, text
from tests.referee.frame import Case, law
from tests.referee.shapes import along, direction, moved

INF = np.inf
ENDS = np.arange(-4.2, 4.2, 0.035)  # of the double-exponential rule
LINEAR = ["Box(low, high)", "Polyhedron(B, low, high)"]
SHARP = [*LINEAR, "Ball(c, r)", "Ellipsoid(c, M)"]
SOFT = "Selection(lambda x: jax.nn.sigmoid(k * (x[0] - c[0])), {d}, log_concave=True)"


def nodes_between(low, high, loc, scale, ends=ENDS):
    """Nodes and log weights of the double-exponential rule on an interval, in some units."""
    bend = np.pi / 2 * np.sinh(ends)
    slope = np.log(np.pi / 2 * np.cosh(ends) * (ends[1] - ends[0]))
    if np.isfinite(low) and np.isfinite(high):
        half, rest = (high - low) / 2, np.exp(-abs(bend)) / np.cosh(bend)
        x = np.where(bend < 0, low + half * rest, high - half * rest)
        return x, np.log(half) + slope - 2 * np.logaddexp(bend, -bend) + np.log(4)
    if np.isfinite(low) or np.isfinite(high):
        x = low + scale * np.exp(bend) if np.isfinite(low) else high - scale * np.exp(bend)
        return x, np.log(scale) + slope + bend
    both = np.logaddexp(bend, -bend) - np.log(2)  # of the cosine
    return loc + scale * np.sinh(bend), np.log(scale) + slope + both


def points_of(p, covariance, ends):
    """Points (n, d) of a region of one or two dimensions, and their log weights."""
    if "c" in p and "k" not in p:  # the others of a ball where the first is sin(t)
        root = np.linalg.cholesky(p["M"]) if "M" in p else p["r"] * np.eye(len(p["c"]))
        t, w = np.polynomial.legendre.leggauss(120)
        t, w = np.pi / 2 * t, np.pi / 2 * w * np.cos(np.pi / 2 * t)
        u, log_w = np.sin(t)[:, None], np.log(w)
        if len(root) == 2:
            rest = np.cos(t)[:, None] * np.sin(t)
            u = np.stack(np.broadcast_arrays(u, rest), -1).reshape(-1, 2)
            log_w = (np.log(w * np.cos(t))[:, None] + np.log(w)).ravel()
        return p["c"] + u @ root.T, log_w + np.log(np.linalg.det(root))
    rows = p.get("B", np.eye(len(covariance)))
    loc, scale = rows @ p["loc"], np.sqrt(np.diag(rows @ covariance @ rows.T))
    faces = [np.full(len(rows), s * INF) for s in (-1, 1)]
    faces = faces if "k" in p else [p["low"], p["high"]]
    each = [nodes_between(*of, ends) for of in zip(*faces, loc, scale)]
    y = np.stack(np.meshgrid(*[x for x, _ in each]), -1).reshape(-1, len(rows))
    log_w = sum(np.meshgrid(*[w for _, w in each])).ravel()
    return y @ np.linalg.inv(rows).T, log_w - np.log(abs(np.linalg.det(rows)))


def inside(p, covariance, df=None, ends=ENDS):
    """P, the mean and the covariance matrix in a region, of a Gaussian or a t: by quadrature."""
    x, log_w = points_of(p, covariance, ends)
    of = stats.multivariate_t(p["loc"], covariance, df) if df else None
    of = of or stats.multivariate_normal(p["loc"], covariance)
    w = np.exp(log_w + of.logpdf(x)) * (expit(p["k"] * (x[:, 0] - p["c"][0])) if "k" in p else 1.0)
    total, x = np.sum(w), np.nan_to_num(x, posinf=0.0, neginf=0.0)
    mean = w @ x / total
    return total, mean, np.einsum("n,ni,nj", w, x - mean, x - mean) / total


def problem(draw, d, kinds):
    """A name, the parts, the words of a covariance and a region of them, and the covariance."""
    name, parts, cov, factor = gaussian(draw, d, singular=False)
    loc, low, high = limits(draw, d, odd=False)
    region, parts = draw(st.sampled_from(kinds)), {"loc": loc} | parts
    parts |= {"low": low, "high": high} if "low" in region else {}
    parts |= {"B": np.array([[1.0, -0.5], [0.5, 2.0]])[:d, :d]} if "Poly" in region else {}
    if "c" in region:
        parts["c"] = np.array(draw(st.lists(tenths, min_size=d, max_size=d)))
    parts |= {"M": np.array([[1.0, 0.3], [0.3, 0.5]])[:d, :d]} if "M" in region else {}
    parts |= {"r": np.array(1.5)} if ", r" in region else {}
    parts |= {"k": np.array(draw(st.sampled_from([1.0, 3.0])))} if "k *" in region else {}
    of = lambda p: (root := factor(p)) @ root.T
    fine, rough = (np.hstack(inside(parts, of(parts), None, x)[:2]) for x in (ENDS, ENDS[::2]))
    assume(fine[0] > 1e-9 and np.allclose(fine, rough, 1e-6, 0))  # which the rule resolves
    return f"{name}, {region}, d = {d}", parts, cov, f"tg.{region.format(d=d)}", of


METHODS = {  # and of which regions: those of linear limits, all but soft ones, all
    "Automatic()": "all",
    "Exact()": "sharp",
    "Separation(512)": "linear",
    "Separation(512, twisted=False)": "linear",
    "SequentialMonteCarlo(512)": "linear",
    "ImportanceSampling(1024)": "all",
    "SoftMonteCarlo(4096, edge=tg.Hard())": "sharp",
    "probability.FactorLattice(256)": "Box",
}


@law
def moments(draw):
    """Mean and covariance in a region, and log P, by every method, with their stated errors."""
    d = draw(st.integers(1, 2))
    kind, parts, cov, region, of = problem(draw, d, [*SHARP, SOFT])
    reach = ["all"] + ["sharp"] * ("k" not in parts) + ["linear"] * ("low" in parts)
    reach += ["Box"] * ("Box" in region and "W" in parts and parts["W"].shape[-1] > 0)
    method = draw(st.sampled_from([name for name, to in METHODS.items() if to in reach]))
    plain = "k" in parts or method not in ("Automatic()", "Exact()")
    df = None if plain else draw(st.sampled_from([None, 4.5, 30.0]))
    way = "f" if df else draw(st.sampled_from(["f", "held"] + ["vmap"] * ("Box" in region)))
    x, more = f"loc, {cov}, {region}", f", df={df}" if df else ""
    key = f"key=jax.random.key({draw(st.integers(0, 99))})"
    setup = lines(parts) + f"method = tg.{method}{f'.hold({x})' * (way == 'held')}\n"
    setup += f"f = lambda loc: (tg.truncated_moments({x}, method, {key}{more}), "
    setup += f"tg.log_probability({x}, method, {key}{more}))\n"
    batch = "jax.tree.map(lambda x: x[1], jax.vmap(f)(jnp.stack([loc, loc])))"
    setup += f"m, e = {batch if way == 'vmap' else 'f(loc)'}"

    def oracle(names):
        p, mean, matrix = inside(parts, of(parts), df)
        return np.r_[np.log(p), mean, matrix.ravel()], 1e-9

    ours = "np.r_[e.log_prob, m.mean, m.covariance.ravel()]"
    stderr = "2 * np.nan_to_num(np.r_[e.stderr, m.mean_stderr, m.covariance_stderr.ravel()], "
    return Case(f"{method}, {way}, {kind}, df = {df}", setup, ours, oracle, 1e-6, f"{stderr}nan=9)")


@law
def slopes_of_moments(draw):
    """Derivatives of exact moments, along a direction of all that they depend on."""
    d = draw(st.integers(1, 2))
    kind, parts, cov, region, of = problem(draw, d, SHARP)
    moves = direction(draw, parts)
    moves |= {"L": np.tril(moves["L"])} if "L" in parts else {}
    setup = along(parts, moves) + f"f = lambda {', '.join(parts)}: "
    setup += f"tg.truncated_moments(loc, {cov}, {region}, tg.Exact())\nm = jax.jvp(f, x, v)[1]"

    def oracle(names):
        def flat(t):
            p = moved(parts, moves, t)
            _, mean, matrix = inside(p, of(p))
            return np.r_[mean, matrix.ravel()]

        each = [oracles.slope(lambda t, k=k: flat(t)[k], 1, 0.01) for k in range(d + d * d)]
        return np.transpose(each)

    return Case(kind, setup, "np.r_[m.mean, m.covariance.ravel()]", oracle, 1e-5)


@law
def weighted(draw):
    """Draws with weights: of their means P and the moments, and the slopes of these in all."""
    kind, parts, cov, region, of = problem(draw, 2, LINEAR)
    moves = direction(draw, parts)
    moves |= {"L": np.tril(moves["L"])} if "L" in parts else {}
    points, plan = draw(st.sampled_from(["random", "lattice"])), draw(st.booleans())
    setup = along(parts, moves)
    setup += f"plan = tg.Separation(twisted=False).hold(loc, {cov}, {region}).plan\n" * plan
    more = f"'{points}'" + ", plan" * plan
    setup += f"of = lambda key, {', '.join(parts)}: tg.weighted_samples(key, loc, {cov}, {region}, "
    setup += f"256, {more})\nw = lambda s: jnp.exp(s.log_weights)[:, None] * jnp.stack([s.samples[:"
    setup += ", 0] ** k for k in range(3)], 1); "
    setup += "f = lambda key: jax.jvp(lambda *x: w(of(key, *x)).mean(0), x, v)\n"
    key = f"jax.random.split(jax.random.key({draw(st.integers(0, 99))}), 24)"
    setup += f"y = np.hstack(jax.vmap(f)({key}))"

    def oracle(names):
        def flat(t):
            p, mean, matrix = inside((q := moved(parts, moves, t)), of(q))
            return np.array([p, p * mean[0], p * (matrix[0, 0] + mean[0] ** 2)])

        each = [oracles.slope(lambda t, k=k: flat(t)[k], 1, 0.01) for k in range(3)]
        slopes, errors = np.transpose(each)
        return np.r_[flat(0.0), slopes], np.r_[np.full(3, 1e-10), errors]

    stderr = "y.std(0, ddof=1) / 24**0.5 * 1.3"
    return Case(f"{points}, {kind}", setup, "y.mean(0)", oracle, 1e-6, stderr)


@law
def draws_within(draw):
    """The mean and squares of draws from a Gaussian or a t in a region of any kind."""
    d = draw(st.integers(1, 2))
    kind, parts, cov, region, of = problem(draw, d, [*SHARP, SOFT])
    df = draw(st.sampled_from([None, 6.0])) if "Box" in region else None
    assume(inside(parts, of(parts))[0] > 2e-3)
    call = f"jax.random.key({draw(st.integers(0, 99))}), loc, {cov}, {region}, 1600"
    setup = lines(parts) + f"x = tg.truncated_samples({call}{f', df={df}' if df else ''})\n"
    setup += "y = np.hstack([x, x**2, x[:, :1] * x])"

    def oracle(names):
        _, mean, matrix = inside(parts, of(parts), df)
        square = matrix + np.outer(mean, mean)
        return np.r_[mean, np.diag(square), square[0]], 1e-9

    return Case(f"{kind}, df = {df}", setup, "y.mean(0)", oracle, 1e-6, "y.std(0) / 40")


@law
def vector_distributions(draw):
    """Distributions of truncated vectors: moments, normalisers, entropy, rows of a batch."""
    d = draw(st.integers(1, 2))
    kind, parts, cov, region, of = problem(draw, d, LINEAR)
    which = draw(st.sampled_from(["Mixture", "Normal", "StudentT"]))
    form = draw(st.sampled_from(["covariance", "precision", "scale_tril"]))
    matrix = of(parts)
    by_name = {"precision": np.linalg.inv(matrix), "scale_tril": np.linalg.cholesky(matrix)}
    parts = {k: parts[k] for k in ("loc", "low", "high", "B") if k in parts}
    parts |= {"S": matrix if which == "Mixture" else by_name.get(form, matrix)}
    form = {"covariance": "covariance_matrix", "precision": "precision_matrix"}.get(form, form)
    expand = draw(st.booleans()) and which != "Mixture"
    bounds = f"region={region}" if "Poly" in region or draw(st.booleans()) else "low=low, high=high"
    both = {
        "Normal": f"MultivariateNormal(jnp.stack([loc + 1, loc]), {form}=S",
        "StudentT": f"MultivariateStudentT([9.0, 4.5], loc, {form}=S",
        "Mixture": "Mixture([0.3, 0.7], [loc + 1, loc], [2 * S, S]",
    }[which]
    setup = lines(parts) + f"p = tg.Truncated{both}, {bounds})" + "\np = p.expand((3, 2))" * expand
    row = "" if which == "Mixture" else "[-1, -1]" if expand else "[-1]"
    ours = f"np.r_[p.mean{row}, p.variance{row}, "
    ours += "p.observed_weights]" if which == "Mixture" else f"p.log_normalizer.log_prob{row}"
    ours += {"Mixture": "", "StudentT": "]"}.get(which, f", p.entropy(){row}]")
    if expand:  # which has neither a normaliser nor an entropy
        ours = ours.split(", p.log")[0] + "]"

    def oracle(names):
        p, mean, inner = inside(parts, matrix, 4.5 if which == "StudentT" else None)
        if which == "Mixture":
            away = parts | {"loc": parts["loc"] + 1}
            (q, other, wide), rough = (inside(away, 2 * matrix, None, x) for x in (ENDS, ENDS[::2]))
            assume(np.allclose(other, rough[1], 1e-6, 0))  # as in `problem`
            shares = np.array([0.3 * q, 0.7 * p]) / (0.3 * q + 0.7 * p)
            total = shares @ np.stack([other, mean])
            squares = np.stack([np.diag(wide) + other**2, np.diag(inner) + mean**2])
            return np.r_[total, shares @ squares - total**2, shares], 1e-9
        away = inner + np.outer(mean - parts["loc"], mean - parts["loc"])
        log_det = np.linalg.slogdet(2 * np.pi * matrix)[1]
        entropy = np.log(p) + (log_det + np.sum(np.linalg.inv(matrix) * away)) / 2
        more = [] if expand else [np.log(p), entropy][: 1 + (which == "Normal")]
        return np.r_[mean, np.diag(inner), *more], 1e-9

    return Case(f"{which}, {form}, {kind}{', expanded' * expand}", setup, ours, oracle, 1e-8)


@law
def quadratic_tails(draw):
    """Log tails of weighted sums of two chi-squares, and their slopes in all arguments."""
    some = lambda *values: np.array([draw(st.sampled_from(values)) for _ in range(2)])
    parts = {"q": np.array(draw(st.sampled_from([1.0, 6.0, 40.0, -1.0])))}
    parts |= {"w": some(1.0, 3.0, -0.5), "df": some(1.0, 2.0, 4.5), "away": some(0.0, 1.0, 7.0)}
    assume(parts["w"].max() > 0 and (parts["q"] > 0 or parts["w"].min() < 0))
    moves = direction(draw, parts)
    moves["away"] *= parts["away"] > 0
    setup = along(parts, moves)
    setup += f"f = {draw(st.sampled_from(['', 'jax.jit']))}(tg.log_quadratic_form_tail)\n"
    setup += "e, slope = jax.jvp(lambda *x: f(*x).log_prob, x, v)"

    def value(t):
        p = moved(parts, moves, t)
        first, second = (stats.ncx2(df, away) for df, away in zip(p["df"], p["away"]))
        beyond = max(p["q"] / p["w"][0], 0.0)  # where the tail of the second has a corner
        total = 0.0
        for ends in [(0.0, beyond)] * bool(beyond > 0) + [(beyond, INF)]:
            x, log_w = nodes_between(*ends, 0.0, 5.0)
            rest = (p["q"] - p["w"][0] * x) / p["w"][1]
            tail = second.sf(rest) if p["w"][1] > 0 else second.cdf(rest)
            total += np.nansum(np.exp(log_w + first.logpdf(x)) * tail)
        return np.log(total)

    def oracle(names):
        slope, error = oracles.slope(value, 1, 0.02)
        return np.r_[value(0.0), slope], np.r_[1e-10, error]

    return Case(f"{parts['w']}, q = {parts['q']}", setup, "np.r_[e, slope]", oracle, 1e-6)


@law
def moments_of_forms(draw):
    """Mean and variance of a sum of three coordinates in a box, in every form of a covariance."""
    name, parts, cov, factor = gaussian(draw, 3, singular=False)
    loc, low, high = limits(draw, 3, odd=False)
    parts = {"loc": loc, "low": low, "high": high} | parts
    log_box_of(parts, factor)
    v = np.array([draw(st.sampled_from([1.0, -0.5, 2.0, 0.0])) for _ in range(3)])
    assume(np.any(v))
    methods = ["Automatic()", "Exact()", "Separation(512)", "SequentialMonteCarlo(512)"]
    method = draw(st.sampled_from(methods[:: 1 if "S" in parts or "L" in parts else -1][:3]))
    setup = lines(parts) + f"v, method = jnp.array({text(v)}), tg.{method}\n"
    setup += f"m = tg.truncated_moments(loc, {cov}, tg.Box(low, high), method)"

    def oracle(names):
        root = factor(parts)
        along = root @ (root.T @ v)
        of = lambda t: oracles.log_box(loc + t * along, root, low, high, 14)[0]
        step = 0.1 / max(1.0, np.sqrt(v @ along))
        (mean, error), (bend, rough) = (oracles.slope(of, order, step) for order in (1, 2))
        return np.r_[v @ loc + mean, v @ along + bend], np.r_[error, rough]

    stderr = "2 * np.r_[abs(v) @ m.mean_stderr, abs(v) @ m.covariance_stderr @ abs(v)]"
    ours = "np.r_[v @ m.mean, v @ m.covariance @ v]"
    refused = method == "Exact()"  # of three coordinates with no structure
    return Case(f"{method}, {name}", setup, ours, oracle, 1e-6, stderr, refused)
