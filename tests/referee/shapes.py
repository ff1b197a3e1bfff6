"""Laws of regions that are no boxes, of soft edges, of injections and of sparse fields."""

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit, logsumexp, ndtr

from tests.referee import oracles
from tests.referee.boxes import limits, lines, special_matrix, tenths, text
from tests.referee.frame import Case, law

INF = np.inf
MOVES = st.sampled_from([0.0, 1.0, -0.5])


def direction(draw, parts):
    """A direction for each argument, of matrices that stay symmetric."""
    moves = {}
    for key, x in parts.items():
        move = np.reshape(draw(st.lists(MOVES, min_size=x.size, max_size=x.size)), x.shape)
        moves[key] = np.tril(move) + np.tril(move, -1).T if key in ("S", "M") else move
    return moves


def along(parts, moves):
    """Lines of a script that name the arguments, and a direction of them all."""
    each = ", ".join(f"jnp.array({text(x)})" for x in moves.values())
    return f"{lines(parts)}x, v = ({', '.join(parts)}), ({each})\n"


def moved(parts, moves, t):
    return {key: x + t * moves[key] for key, x in parts.items()}


# --- Regions --------------------------------------------------------------------------------------


def log_ball(loc, factor, radius):
    """log P(|loc + factor Z| < radius) for rows of loc (n, d) and radius (n,).

    With the first coordinate radius sin(t) the others must lie in a ball of radius cos(t).
    """
    scale = factor[0, 0]
    if len(factor) == 1:
        return oracles.log_interval((-radius - loc[:, 0]) / scale, (radius - loc[:, 0]) / scale)
    t, w = (np.pi / 2 * x for x in np.polynomial.legendre.leggauss(80))
    x, length = radius[:, None] * np.sin(t), radius[:, None] * np.cos(t)
    z = (x - loc[:, :1]) / scale
    rest = (loc[:, None, 1:] + z[..., None] * factor[1:, 0]).reshape(-1, len(factor) - 1)
    inner = log_ball(rest, factor[1:, 1:], length.ravel()).reshape(z.shape)
    return logsumexp(np.log(w * length / scale) + stats.norm.logpdf(z) + inner, axis=1)


def log_shape(p):
    """log P of the ball, the ellipsoid or the polyhedron of these arguments."""
    if "A" in p:
        factor = oracles.factor_of(p["A"] @ p["S"] @ p["A"].T)
        return oracles.log_box(p["A"] @ p["loc"], factor, p["low"], p["high"], 16)[0]
    root = np.linalg.cholesky(p["M"]) if "M" in p else p["r"] * np.eye(len(p["c"]))
    inverse = np.linalg.inv(root)
    factor = oracles.factor_of(inverse @ p["S"] @ inverse.T)
    return log_ball((inverse @ (p["loc"] - p["c"]))[None], factor, np.ones(1))[0]


@law
def shapes(draw):
    """log P of balls, ellipsoids, polyhedra and their outsides, and its slope in all arguments."""
    d, units = draw(st.integers(1, 3)), draw(st.sampled_from([1.0, 1e3]))
    name, matrix = special_matrix(draw, d, singular=False)
    which = draw(st.sampled_from(["Ball(c, r)", "Ellipsoid(c, M)", "Polyhedron(A, low, high)"]))
    loc, low, high = (units * x for x in limits(draw, d, odd=False))
    parts = {"loc": loc, "S": units**2 * matrix}
    if "A" in which:
        rows = [(1.0, 0.0, 0.0), (1.0, 1.0, 0.0), (1.0, -1.0, 0.5), (0.5, 2.0, -1.0)]
        rows = draw(st.lists(st.sampled_from(rows), min_size=d, max_size=d, unique=True))
        matrix = np.array(rows)[:, :d]
        assume(abs(np.linalg.det(matrix)) > 0.1)
        parts |= {"A": matrix, "low": low, "high": high}
    else:
        center = units * np.array(draw(st.lists(tenths, min_size=d, max_size=d)))
        size = units * np.array(draw(st.sampled_from([1.0, 0.3, 2.0])))
        shape = size**2 * (np.diag([1.0, 0.5, 2.0][:d]) + 0.3 * (1 - np.eye(d)))
        parts |= {"c": center} | ({"r": size} if "r" in which else {"M": shape})
    assume(-40 < log_shape(parts) < -1e-6)
    moves = {key: units ** (2 * (key in "SM")) * x for key, x in direction(draw, parts).items()}
    route = draw(st.sampled_from(["f", "jax.jit(f)", "outside"]))
    region = f"tg.Outside(tg.{which})" if route == "outside" else f"tg.{which}"
    arguments = ", ".join(parts)
    setup = along(parts, moves) + f"f = lambda {arguments}: tg.log_probability(loc, S, {region})\n"
    setup += f"e, slope = jax.jvp({route.replace('outside', 'f')}, x, v)"

    def oracle(names):
        def of(t):
            value = log_shape(moved(parts, moves, t))
            return np.log(-np.expm1(value)) if route == "outside" else value

        slope, error = oracles.slope(of, 1, 0.01)
        return np.r_[of(0.0), slope], np.r_[1e-10, error]

    rough = "A" in which and d == 3  # where it is by samples, to a relative error of 1e-4
    tol = np.r_[1e-8, 1e-3 if rough else 1e-6]
    kind = f"{route}, {which}, {name}, d = {d}"
    return Case(kind, setup, "np.r_[e.log_prob, slope.log_prob]", oracle, tol, "np.r_[e.stderr, 0]")


# --- Samples --------------------------------------------------------------------------------------

EDGES = {
    "Tanh": lambda m, k: expit(k * m),
    "Probit": lambda m, k: ndtr(m / k),
    "Bump": lambda m, k: np.where(m < k, expit(k / (k - np.clip(m, 1e-9, k - 1e-9))
                                               - k / np.clip(m, 1e-9, k)) * (m > 0), 1.0),
}  # fmt: skip


@law
def soft_edges(draw):
    """The mean over given samples of products of edges, its slope in all arguments, its error."""
    d, n = draw(st.integers(1, 2)), 200
    loc, low, high = limits(draw, d, odd=False)
    covariance = np.diag([1.0, 0.5][:d]) + 0.3 * (1 - np.eye(d))
    edge, each = draw(st.sampled_from(list(EDGES))), draw(st.sampled_from([0, d, 2 * d]))
    outside, rule = draw(st.booleans()), draw(st.sampled_from([False, False, True]))
    edge, each = "Tanh" if rule else edge, 0 if outside or rule else each
    ball, hard = not outside and draw(st.booleans()), not rule and draw(st.booleans())
    each = 0 if ball else each
    widths = np.array([1.0, 2.0, 0.5, 1.5][: max(each, 1)])
    parts = {"loc": loc, "S": covariance, "low": low, "high": high}
    if ball:  # of a center and a radius
        parts |= {"low": loc + 0.3, "high": np.array(1.5)}
    parts |= {"k": widths if each else widths[0]}
    moves = direction(draw, parts)
    moves["k"] = 0.0 * moves["k"] if rule else moves["k"]  # which it does not take
    log = draw(st.booleans())
    setup = along(parts, moves)
    setup += f"z = np.random.default_rng({draw(st.integers(0, 99))}).normal(size=({n}, {d}))"
    way = "lambda m: jax.nn.sigmoid(1.0 * m)" if rule else f"tg.{edge}(k)"
    way = f"tg.Surrogate({way})" if hard else way  # whose slope is that of the edge
    setup += f"; of = lambda k: tg.SoftMonteCarlo({n}, edge={way}, samples=z)\n"
    region = "tg.Outside(tg.Box(low, high))" if outside else "tg.Box(low, high)"
    region = "tg.Ball(low, high)" if ball else region
    setup += f"e = lambda loc, S, low, high, k: tg.log_probability(loc, S, {region}, of(k))\n"
    p = region.replace("low, high", "*x[2:4]")
    p = f"tg.fraction_not_truncated(x[0], x[1], {p}, of(x[4]))"
    setup += f"f = lambda *x: {'e(*x).log_prob' if log else p}\n"
    setup += "slope = sum(map(jnp.vdot, jax.grad(f, range(5))(*x), v))"

    def oracle(names):
        def weights(t, edge=EDGES[edge]):
            p = moved(parts, moves, t)
            x = p["loc"] + names["z"] @ np.linalg.cholesky(p["S"]).T
            k = np.broadcast_to(p["k"] if each != d else np.tile(p["k"], 2), 2 * d)
            margins = np.hstack([x - p["low"], p["high"] - x])
            if ball:
                margins = (p["high"] - np.linalg.norm(x - p["low"], axis=1))[:, None]
            if outside:  # the face that a point is farthest beyond
                margins = -margins.min(axis=1, keepdims=True)
            return np.prod([edge(m, w) for m, w in zip(margins.T, k)], axis=0)

        of = lambda w: np.log(np.mean(w)) if log or hard else np.mean(w)
        step = 4e-6 if outside or ball else 0.004  # kinks at the center and between faces
        slope, error = oracles.slope(lambda t: of(weights(t)), 1, step)
        w = weights(0.0, lambda m, k: m >= 0) if hard else weights(0.0)
        value = np.log(np.mean(w)) if log else np.mean(w)
        slope = slope * value if hard and not log else slope
        if not np.any(w):  # the log has no slope
            return np.r_[value, names["slope"], INF], 0.0
        few = np.sum(w) ** 2 < 10 * np.sum(w**2)
        # With one sample more of weight 0 and one of the largest.
        scatter = np.std(np.r_[w, 0.0, w.max()], ddof=1) / n**0.5 / np.mean(w)
        return np.r_[value, slope, INF if few else scatter], np.r_[0.0, error, 0.0]

    kind = f"{way}, {'log' * log}, {each} widths, d = {d}" + ", outside" * outside + ", ball" * ball
    return Case(kind, setup, "np.r_[f(*x), slope, e(*x).stderr]", oracle, np.r_[1e-12, 1e-6, 1e-12])


@law
def averages(draw):
    """The probability of a selection by what it found of simulated objects, its slope and error."""
    d, n = draw(st.integers(1, 2)), draw(st.sampled_from([200, 40]))
    total, rows = draw(st.sampled_from([2 * n, 50 * n])), draw(st.sampled_from([0, 0, 2, 10]))
    loc, covariance = np.array([0.5, -0.2][:d]), np.diag([1.0, 2.0][:d]) + 0.4 * (1 - np.eye(d))
    setup = f"z = np.random.default_rng({draw(st.integers(0, 99))}).normal(size=({n}, {d}))\n"
    setup += f"x, log_q = 2.0 * z, -np.sum(z**2, 1) / 2 - {d * np.log(2 * np.sqrt(2 * np.pi))}\n"
    setup += lines({"loc": loc, "S": covariance})
    p = "jax.scipy.stats.multivariate_normal.logpdf(x, loc, S)"
    call = f"log_mean_weights({p} - log_q, {total}, {rows})"
    if rows == 0:
        call = f"log_probability(loc, S, tg.Injections(x, log_q, {total}))"
    setup += f"f = lambda loc: tg.{call}\n"
    setup += "e, slope = f(loc), jax.grad(lambda loc: f(loc).log_prob)(loc)"

    def oracle(names):
        def weights(t):
            p = stats.multivariate_normal(loc + t * np.eye(d)[0], covariance)
            return np.exp(p.logpdf(names["x"]) - names["log_q"])

        def of(t):
            w = weights(t)
            square = np.sum(w**2) / np.sum(w) ** 2 - 1 / total
            return np.log(np.sum(w) / total) + (square / 2 if rows else 0.0)

        w = weights(0.0)
        error = np.sqrt(np.sum(w**2) / np.sum(w) ** 2 - 1 / total)
        if rows and error**-2 < 4 * rows:
            return np.r_[np.nan, np.nan, error], 0.0
        slope, rough = oracles.slope(of, 1, 0.02)
        error = INF if error**-2 < 10 and not rows else error
        return np.r_[of(0.0), slope, error], np.r_[0.0, rough, 0.0]

    said = "np.r_[e.log_prob, slope[0], e.stderr]"
    return Case(f"{rows} rows, d = {d}", setup, said, oracle, np.r_[1e-10, 1e-7, 1e-10])


# --- Fields ---------------------------------------------------------------------------------------


@law
def fields(draw):
    """log P and log-likelihoods of fields at three places, and how far they exceed a level."""
    points = np.array(draw(st.permutations([0.0, 0.4, 1.5])))
    sigma, length = draw(st.sampled_from([1.0, 2.0])), draw(st.sampled_from([1.0, 0.2, 5.0]))
    noise = draw(st.sampled_from([0.0, 0.5]))
    loc, low, high = limits(draw, 3, odd=False)
    which = draw(st.sampled_from(["points", "matrix", "precision", "line", "weights", "excursion"]))
    nu = 0.5 if length == 5.0 else draw(st.sampled_from([0.5, 1.5, 2.5]))
    kernel = {0.5: "1", 1.5: "(1 + r)", 2.5: "(1 + r + r**2 / 3)"}[nu]
    r = np.sqrt(2 * nu) * abs(np.subtract.outer(points, points)) / length
    field = sigma**2 * eval(kernel) * np.exp(-r)
    setup = lines({"x": points, "loc": loc, "S": field, "low": low, "high": high})
    matern = f"tg.MaternProcess({sigma}, {length}, smoothness={nu})"
    if which == "weights":  # one place after the other by those before
        root = np.linalg.cholesky(field)
        rows = np.tril(np.eye(3) - np.diag(np.diag(root)) @ np.linalg.inv(root), -1)
        setup += f"w, scale = np.array({text(rows[:, :2])}), np.array({text(np.diag(root))})\n"
    of = {
        "points": "from_points(x, lambda a, b: k(abs(a - b)[0]), 2",
        "matrix": "from_matrix(S",
        "precision": "from_precision([0, 3, 6, 9], [0, 1, 2] * 3, jnp.linalg.inv(S).ravel()",
        "line": f"from_quasiseparable({matern}, x",
        "weights": "weights",
    }.get(which, "from_matrix(S")
    directed = f"tg.Directed.{of}, noise={noise})"
    if which == "points":
        by = f"{np.sqrt(2 * nu)} * x / {length}"
        setup += f"k = lambda x: (lambda r: {sigma**2} * {kernel} * jnp.exp(-r))({by})\n"
    if which == "weights":
        directed = f"tg.Directed([[3, 3], [0, 3], [0, 1]], w, scale, noise={noise})"
    setup += f"C = {directed}\n"
    covariance = field + noise**2 * np.eye(3)
    factor = oracles.factor_of(covariance)
    if which == "excursion":
        kind, level = draw(st.sampled_from(["<", ">", "!="])), draw(st.sampled_from([0.0, 0.7]))
        setup += f"e = tg.excursion(loc, C, {level}, '{kind}', least=1e-9)"

        def oracle(names):
            above = {"<": False, ">": True}.get(kind, loc >= level) & np.full(3, True)
            sign = np.where(above, 1.0, -1.0)
            each = ndtr(sign * (loc - level) / np.sqrt(np.diag(covariance)))
            joint = np.empty(3)
            for k in range(3):
                within = each >= each[k] - 1e-12
                ends = np.where(within, level, -sign * INF), sign * INF
                ends = np.minimum(*ends), np.maximum(*ends)
                joint[k] = np.exp(oracles.log_box(loc, factor, *ends, 14)[0])
            return np.r_[each, joint, above], 0.0

        assume(len({*loc}) == 3 and level not in loc)  # no ties in the order
        said = "np.r_[e.marginal, e.probability, e.above]"
        stderr = "np.r_[np.zeros(3), e.stderr, np.zeros(3)]"
        return Case(f"excursion {kind}", setup, said, oracle, 1e-6, stderr)
    assume(oracles.log_box(loc, factor, low, high, 10)[0] > -40)
    rows = draw(st.booleans())
    if rows:  # one of which an entry is exact
        setup += "low, high = (jnp.where(jnp.arange(3) == 1, 0.3, x) for x in (low, high))\n"
        setup += "e = tg.log_likelihood(tg.Observations(low[None], high[None]), loc, C)"
        low, high = (np.where(np.arange(3) == 1, 0.3, x) for x in (low, high))
    else:
        setup += "e = tg.log_probability(loc, C, tg.Box(low, high), key=jax.random.key(1))"

    def oracle(names):
        value, error = np.atleast_1d(oracles.log_rows(low, high, loc, covariance)), 1e-8
        if not rows:
            each = oracles.with_error(lambda k: oracles.log_box(loc, factor, low, high, k))
            value, error = (np.atleast_1d(x)[0] for x in each)
        return np.r_[value, covariance.ravel()], np.r_[error, np.zeros(9)]

    kind = f"{which}, {'log-likelihood' if rows else 'log P'}, {nu}"
    ours, tol = "np.r_[e.log_prob, np.ravel(C.covariance_matrix)]", np.r_[1e-6, np.full(9, 1e-9)]
    return Case(kind, setup, ours, oracle, tol, "np.r_[e.stderr, np.zeros(9)]")
