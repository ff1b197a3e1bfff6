"""Derivatives at special points, where users begin, are those of the values: a law of them all.

At each point every derivative is compared with differences of values, extrapolated to a step of 0:
forwards and backwards, under `jit` and `vmap`, twice, with a held plan, in both precisions. It must
be equal, or NaN where the value or its differences are not finite. A derivative of exactly 0 must
be proved by its difference.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest

import truncgauss as tg
from tests.differences import Case, run

INF = np.inf


# --- Points ---------------------------------------------------------------------------------------

I2, EQUAL2 = np.eye(2), np.array([[1.0, 0.5], [0.5, 1.0]])
NUMBERS = [0, 1e-12, -1e-12, 1e-6, 1, -1, 8, -8, 38, -38, 1e3, -1e3, INF, -INF]
INTERVALS = [(-1, 1), (0, INF), (-INF, 0), (-INF, INF), (10, 11), (0, 1e3), (1e-12, 1 + 1e-6)]
EMPTY = [(0, 0), (1, 1)]
LIMITS = {"orthant": (0, INF), "middle": (-1, 1), "upper": (-INF, 0.5)}


def on(name, numbers):
    return {f"{x:g}": {name: x} for x in numbers}


def intervals(pairs, **others):
    return {f"[{a:g}, {b:g}]": {"low": a, "high": b, **others} for a, b in pairs}


def limits(d, name):
    if name == "mixed":
        return {
            "low": np.array([-1.0, -0.5, 0.0, -1.0, -0.7, 0.2])[:d],
            "high": np.array([INF, 1.0, INF, 0.5, 0.9, INF])[:d],
        }
    return {key: np.full(d, float(x)) for key, x in zip(("low", "high"), LIMITS[name])}


def matrices(d):
    """Covariance matrices in which structure can be recognised, and what lies beside them."""
    i = np.arange(d)
    sign, pair = np.where(i % 2, -1.0, 1.0), np.zeros((d, d))
    pair[0, -1] = pair[-1, 0] = 1.0
    equal = 0.5 * np.eye(d) + 0.5
    known = {
        "identity": np.eye(d),
        "diagonal": np.diag(1.0 + 0.5 * i),
        "equal": equal,
        "opposite": np.where(np.eye(d) > 0, 1.0, 0.4 * np.outer(sign, sign)),
        "negative": np.where(np.eye(d) > 0, 1.0, -0.5 / (d - 1)),
        "chain": 0.6 ** abs(np.subtract.outer(i, i)),
        "block": np.eye(d) + 0.5 * pair,
    }
    near = {f"identity + {e:g}": np.eye(d) + e * pair for e in (1e-12, 1e-6)}
    return known | near | {"equal + 1e-6": equal + 1e-6 * pair}


def factors(d):
    ones = np.ones((d, 1))
    loadings = {"none": 0 * ones, "equal": 0.7 * ones, "one": 0.5 * np.eye(d)[:, :1]}
    loadings |= {"opposite": 0.6 * np.where(np.arange(d) % 2, -1.0, 1.0)[:, None]}
    loadings |= {"1e-12": 1e-12 * ones, "1e-6": 1e-6 * ones}
    return {name: {"factor": w, "noise": np.full(d, 0.5)} for name, w in loadings.items()}


def chains(d):
    steps = {"none": np.zeros(d - 1), "walk": np.ones(d - 1), "one": 0.5 * np.eye(d - 1)[0]}
    steps |= {"1e-12": np.full(d - 1, 1e-12)}
    others = {"scale": np.ones(d - 1), "first": 1.0}
    return {name: {"transition": a, **others} for name, a in steps.items()}


FORMS = {
    "matrix": (lambda p: p["matrix"], {"symmetric": "matrix"}),
    "ScaleTril": (lambda p: tg.ScaleTril(p["tril"]), {"triangular": "tril"}),
    "LowRank": (lambda p: tg.LowRank(p["factor"], p["noise"]), {}),
    "Markov": (lambda p: tg.Markov(p["transition"], p["scale"], p["first"]), {}),
}


def covariances(form, d):
    if form in ("LowRank", "Markov"):
        return factors(d) if form == "LowRank" else chains(d)
    pick = (
        (lambda m: {"matrix": m})
        if form == "matrix"
        else (lambda m: {"tril": np.linalg.cholesky(m)})
    )
    return {name: pick(matrix) for name, matrix in matrices(d).items()}


def gaussians(form, d, names=("orthant", "mixed"), **others):
    return {
        f"{which}, {name}": {"loc": np.zeros(d), **limits(d, name), **covariance, **others}
        for which, covariance in covariances(form, d).items()
        for name in names
    }


def some(points, *words):
    return {label: p for label, p in points.items() if any(word in label for word in words)}


# --- Cases ----------------------------------------------------------------------------------------


def box(p):
    return tg.Box(p["low"], p["high"])


def log_p(form, region=box, method=tg.Automatic(), **law):
    covariance = FORMS[form][0]

    def function(p):
        more = {name: p[key] for name, key in law.items()}
        return tg.log_probability(p["loc"], covariance(p), region(p), method, **more).log_prob

    return function


def held(form, d, method, label):
    """log P by a method that is held at one of its points, from which it is moved."""
    p = gaussians(form, d)[label]
    covariance = FORMS[form][0]

    def prepare():
        plan = method.hold(p["loc"], covariance({k: jnp.asarray(x) for k, x in p.items()}), box(p))
        return {"function": log_p(form, method=plan)}

    return {"function": None, "points": {label: p}, "prepare": prepare}


def elementwise(names, room, points, **others):
    return {
        f"{room.__name__.split('.')[-1]}.{name}": Case(
            f"{name}", lambda p, f=getattr(room, name): f(*(p[k] for k in p)), points, **others
        )
        for name in names.split()
    }


def ordered(function, *keys):
    return lambda p: function(*(p[key] for key in keys))


def cases():
    """The table: public names, in the forms of their arguments."""
    special, safe = tg.special, tg.safe
    table = elementwise(
        "hazard hazard_excess log_ndtr ndtr log_sigmoid sigmoid log1pexp",
        special,
        on("x", NUMBERS),
        routes="backward jit single twice",
    )
    table |= elementwise("log1mexp", special, on("x", [0.1, 0.6931, 5, 40, INF]), step=1e-2)
    vectors = {
        "zero": [0, 0, 0],
        "gone": [-INF, 0, 0],
        "far": [1e3, 0, -1e3],
        "beside": [1e-12, 0, 0],
    }
    vectors = {label: {"x": x} for label, x in vectors.items()}
    table |= elementwise("log_sum_exp log_mean_exp", special, vectors)
    table["safe_norm"] = Case(
        "safe_norm",
        lambda p: safe.safe_norm(p["x"]),
        {"ones": {"x": [1, 1, 1]}, "axis": {"x": [1, 0, 0]}},
    )
    widths = {f"{x:g}": {"x": x, "width": 1.0} for x in (0, 1e-12, 1e-6, 0.5, 1, -1, 3, INF)}
    for name in ("bump", "bell"):
        function = ordered(getattr(safe, name), "x", "width")
        table[name] = Case(name, function, widths, routes="backward jit twice")
    table["clipped_logits"] = Case(
        "clipped_logits", lambda p: safe.clipped_logits(p["x"], 5.0), {"inside": {"x": [0, -4, -3]}}
    )
    return (
        table
        | on_intervals()
        | edges_and_regions()
        | selections()
        | probabilities()
        | in_more_dimensions()
        | distributions()
    )


def on_intervals():
    table, special = {}, tg.special
    four = dict(loc=0.0, scale=1.0)
    univariate = (
        intervals(INTERVALS, **four)
        | intervals(EMPTY, **four)
        | {
            "at the bound": {"low": 1.0, "high": 2.0, "loc": 1.0, "scale": 1.0},
            "in the middle": {"low": 1.0, "high": 2.0, "loc": 1.5, "scale": 1.0},
            "inverted": {"low": 1.0, "high": 0.0, "loc": 0.0, "scale": 1.0},
        }
    )
    table["log_interval_mass"] = Case(
        "log_interval_mass",
        ordered(special.log_interval_mass, "low", "high"),
        intervals([*INTERVALS, *EMPTY]),
        routes="backward jit",
    )
    table["standardize"] = Case(
        "standardize Interval",
        lambda p: jnp.stack(special.standardize(p["low"], p["high"], p["loc"], p["scale"])),
        some(intervals(INTERVALS, **four), "[-1", "[10"),
        routes="backward jit",
    )
    keys = "loc", "scale", "low", "high"
    for name in "truncated_log_mass truncated_mean truncated_variance truncated_entropy".split():
        routes = "backward jit twice" if name == "truncated_log_mass" else "jit forward"
        function = ordered(getattr(special, name), *keys)
        table[name] = Case(name, function, univariate, routes=routes)
    table["truncated_mean_and_variance"] = Case(
        "truncated_mean_and_variance",
        lambda p: jnp.stack(special.truncated_mean_and_variance(*(p[key] for key in keys))),
        univariate,
        routes="jit",
    )
    inside = {
        label: {**p, "x": 0.25} for label, p in some(univariate, "[-1", "[0", "[-INF").items()
    }
    inside |= {"at the limit": {"x": 0.0, "low": 0.0, "high": 1.0, **four}}
    distribution = lambda p: tg.TruncatedNormal(p["loc"], p["scale"], p["low"], p["high"])
    for name in ("log_prob", "cdf", "icdf"):
        function = lambda p, name=name: getattr(distribution(p), name)(p["x"])
        points = inside if name == "log_prob" else some(inside, "[")
        proper = {k: p for k, p in points.items() if p["low"] < p["high"]}
        table[f"TruncatedNormal.{name}"] = Case(
            "TruncatedNormal", function, proper, routes="backward jit twice"
        )
    table["truncated_log_density"] = Case(
        "truncated_log_density",
        ordered(special.truncated_log_density, "x", *keys),
        inside,
        routes="jit forward",
    )
    table["truncated_quantile"] = Case(
        "truncated_quantile",
        ordered(special.truncated_quantile, "x", *keys),
        inside,
        routes="jit forward",
    )
    table["separation_step"] = Case(
        "separation_step moved_inside",
        lambda p: jnp.stack(special.separation_step(p["low"], p["high"], p["x"])),
        {
            k: {n: x for n, x in p.items() if n in ("low", "high", "x")}
            for k, p in some(inside, "[-1", "[0, 1").items()
        },
        routes="jit forward",
    )
    return table


def edges_and_regions():
    table = {}
    margins = {f"{m:g}": {"m": m, "w": 0.5} for m in (0, 0.25, 0.5, 1, -1, INF, -INF)}
    function_of = lambda w: tg.EdgeFunction(lambda m: jax.nn.sigmoid(m * w))
    kinds = {edge.__name__: edge for edge in (tg.Tanh, tg.Probit, tg.Bump)}
    for title, edge in (kinds | {"EdgeFunction": function_of}).items():
        for name in ("value", "log_value"):
            function = lambda p, edge=edge, name=name: getattr(edge(p["w"]), name)(p["m"])
            # At the face itself the slope of a bump's logarithm is 0, as its docstring says.
            at_face = edge is tg.Bump and name == "log_value"
            points = {m: p for m, p in margins.items() if not (at_face and p["m"] == 0)}
            table[f"{title}.{name}"] = Case(title, function, points, routes="backward jit")
        soft = lambda p, edge=edge: tg.SoftMonteCarlo(num_samples=128, edge=edge(p["w"]))
        for form in ("matrix", "ScaleTril"):
            function = lambda p, form=form, soft=soft: log_p(form, method=soft(p))(p)
            points = some(gaussians(form, 2, ("middle",), w=2.0), "identity,", "equal,")
            table[f"SoftMonteCarlo {title}, {form}"] = Case(
                "SoftMonteCarlo",
                function,
                points,
                **FORMS[form][1],
                routes="backward jit",
                step=1e-2,
            )
    corners = {"loc": np.zeros(2), "matrix": EQUAL2}
    rows = {"rows": np.array([[1.0, 1.0], [1.0, -1.0]]), "low": [0.0, -1.0], "high": [INF, 1.0]}
    regions = {
        "Polyhedron": (lambda p: tg.Polyhedron(p["rows"], p["low"], p["high"]), rows, ""),
        "Ball": (
            lambda p: tg.Ball(p["center"], p["radius"]),
            {"center": [0.0, 0.0], "radius": 1.0},
            "",
        ),
        "Ellipsoid": (
            lambda p: tg.Ellipsoid(p["center"], p["shape"]),
            {"center": [0.0, 0.0], "shape": I2},
            " shape",
        ),
        "Outside": (lambda p: tg.Outside(box(p)), {"low": [-1.0, -1.0], "high": [1.0, INF]}, ""),
    }
    for name, (region, numbers, symmetric) in regions.items():
        points = {"equal": corners | numbers, "identity": corners | numbers | {"matrix": I2}}
        table[name] = Case(
            f"{name} log_probability Exact",
            log_p("matrix", region),
            points,
            symmetric="matrix" + symmetric,
            routes="backward jit forward",
            step=5e-2,
        )
    return table


def selections():
    table, corners = {}, {"loc": np.zeros(2), "matrix": EQUAL2}
    curve = lambda p: lambda x: jax.nn.sigmoid(3.0 * (x[0] - p["cut"]))
    region = lambda p: tg.Selection(curve(p), 2)

    def prepare():
        plan = tg.ImportanceSampling(512, 4).hold(np.zeros(2), EQUAL2, region({"cut": 0.5}))
        return {"differences": log_p("matrix", region, plan)}

    table["Selection"] = Case(
        "Selection ImportanceSampling",
        log_p("matrix", region),
        {"equal": corners | {"cut": 0.5}},
        symmetric="matrix",
        routes="backward jit",
        tol=1e-2,
        prepare=prepare,
    )
    scores = {"weights": [1.0, 0.0], "midpoint": 0.5, "width": 1.0}
    table["Selection.probit"] = Case(
        "Selection",
        log_p("matrix", lambda p: tg.Selection.probit(p["weights"], p["midpoint"], p["width"])),
        {"equal": corners | scores, "identity": corners | scores | {"matrix": I2}},
        symmetric="matrix",
        routes="backward jit forward twice",
    )
    x = np.random.default_rng(0).normal(size=(200, 2))
    table["Injections"] = Case(
        "Injections",
        log_p("matrix", lambda p: tg.Injections(x, p["logs"] - np.sum(x**2, 1) / 2, 1000)),
        {"equal": corners | {"logs": -1.8}, "identity": corners | {"logs": -1.8, "matrix": I2}},
        symmetric="matrix",
        routes="backward jit twice",
    )
    weights = {"equal": {"logs": np.zeros(50)}, "far": {"logs": -800.0 * np.ones(50)}}
    table["log_mean_weights"] = Case(
        "log_mean_weights",
        lambda p: tg.log_mean_weights(p["logs"], 100, 2).log_prob,
        weights,
        routes="backward jit forward",
    )
    return table


def probabilities():
    table = {}
    for form, (_, moved) in FORMS.items():
        sizes = (1, 2) if form != "Markov" else (2,)
        for d in sizes if form not in ("LowRank",) else (2,):
            points = gaussians(form, d) if d > 1 else gaussians(form, 2)
            if d == 1:
                cut = lambda x: np.asarray(x)[(slice(0, 1),) * np.ndim(x)]
                points = {
                    k: {n: cut(x) for n, x in p.items()}
                    for k, p in some(points, "identity,", "diagonal").items()
                }
            twice = " twice" if form != "matrix" or d == 2 else ""
            table[f"log P, {form}, {d}"] = Case(
                f"log_probability Box Automatic Exact {form}",
                log_p(form),
                points,
                **moved,
                routes="backward jit forward vmap single" + twice,
            )
        if form not in ("LowRank", "Markov"):  # see in_more_dimensions
            table |= other_functions(form, moved)
    parts = held("matrix", 4, tg.Separation(64, 2), "equal, orthant")
    table["Separation, held"] = Case(
        "Separation", **parts, symmetric="matrix", routes="backward jit twice", tol=1e-5
    )
    forms = {"loc": np.zeros(2), "matrix": EQUAL2, "low": [0.0, 0.0], "high": [0.0, 1.0]}
    table["equal limits"] = Case(
        "Box", log_p("matrix"), {"": forms}, symmetric="matrix", routes="jit"
    )
    weights = {
        "equal": [1.0, 1.0, 1.0],
        "one is 0": [1.0, 0.0, 2.0],
        "beside": [1.0, 1 + 1e-6, 2.0],
    }
    table["log_quadratic_form_tail"] = Case(
        "log_quadratic_form_tail",
        lambda p: tg.log_quadratic_form_tail(p["q"], p["weights"]).log_prob,
        {k: {"q": 3.0, "weights": w} for k, w in weights.items()},
        routes="backward jit",
        step=1e-2,
    )
    return table


def other_functions(form, moved):
    table = {}
    table[f"ExpectationPropagation, {form}"] = Case(
        "ExpectationPropagation",
        log_p(form, method=tg.ExpectationPropagation()),
        some(gaussians(form, 2), "identity,", "equal,", "diagonal"),
        **moved,
        routes="backward jit twice",
        tol=1e-5,
    )
    t = some(gaussians(form, 2, ("mixed",), df=4.0), "identity,", "equal,")
    table[f"t, {form}"] = Case(
        form, log_p(form, df="df"), t, **moved, routes="backward jit", tol=1e-5, step=5e-2
    )
    moments = lambda p, form=form: tg.truncated_moments(p["loc"], FORMS[form][0](p), box(p))[:2]
    table[f"moments, {form}"] = Case(
        "truncated_moments",
        lambda p, m=moments: jnp.concatenate([x.ravel() for x in m(p)]),
        some(gaussians(form, 2), "identity,", "equal,", "diagonal"),
        **moved,
        routes="backward jit",
    )
    rows = tg.Observations([[0.4, -np.inf], [-np.inf, -0.6]], [[0.4, 0.2], [np.inf, 1.5]])
    of_rows = lambda p, form=form: tg.conditional_moments(rows, p["loc"], FORMS[form][0](p))[:2]
    points = some(gaussians(form, 2), "identity,", "equal,", "diagonal")
    table[f"moments of rows, {form}"] = Case(
        "conditional_moments",
        lambda p, m=of_rows: jnp.concatenate([x.ravel() for x in m(p)]),
        {k: {n: x for n, x in p.items() if n not in ("low", "high")} for k, p in points.items()},
        **moved,
        routes="backward jit",
    )
    share = lambda p, form=form: tg.quantile(p["p"], p["loc"], FORMS[form][0](p))[0]
    points = {k: {n: x for n, x in p.items() if n not in ("low", "high")} for k, p in t.items()}
    table[f"quantile, {form}"] = Case(
        "quantile",
        share,
        {k: {n: x for n, x in p.items() if n != "df"} | {"p": 0.9} for k, p in points.items()},
        **moved,
        routes="backward jit",
        tol=1e-5,
        step=5e-3,
    )
    whole = lambda p, form=form: tg.log_probability_and_gradient(
        p["loc"], FORMS[form][0](p), box(p)
    )
    points = some(gaussians(form, 2), "identity,", "equal,")
    table[f"with its gradient, {form}"] = Case(
        "log_probability_and_gradient",
        lambda p, f=whole: f(p).estimate.log_prob,
        points,
        **moved,
        routes="backward",
    )
    fraction = lambda p, form=form: tg.fraction_not_truncated(p["loc"], FORMS[form][0](p), box(p))
    table[f"fraction, {form}"] = Case(
        "fraction_not_truncated", fraction, points, **moved, routes="backward jit"
    )
    return table


def in_more_dimensions():
    """Of forms whose functions are quadratures in any dimension, which take about a second under a
    program that is quick to compile: along random directions."""
    table = {}
    functions = {
        "log_probability": (log_p, dict(step=2e-2, routes="backward jit vmap forward twice")),
        "t": (t_of_four, dict(step=5e-2, tol=1e-5, routes="jit", directions=1)),
        "truncated_moments": (moments_of, dict(routes="jit forward")),
        "quantile": (quantile_of, dict(tol=1e-5, step=5e-3, routes="jit forward")),
    }
    for form, last in (("LowRank", "equal,"), ("Markov", "walk,")):
        for name, (function, settings) in functions.items():
            for d in (4, 6) if form == "LowRank" else (4,):
                words = ("none,", last) if name == "t" else ("",)
                points = some(gaussians(form, d, ("mixed",), p=0.9), *words)
                keys = {"t": "loc low high", "quantile": "loc p"}.get(name, "loc low high")
                keys = {*keys.split(), *factors(2)["none"], *chains(2)["none"]}
                points = {k: {n: x for n, x in p.items() if n in keys} for k, p in points.items()}
                table[f"{name}, {form}, {d}"] = Case(
                    f"{name} {form}".removeprefix("t "),
                    function(form),
                    points,
                    **{"directions": 2} | settings,
                )
    return table


def t_of_four(form):
    """log P of a t with 4 degrees of freedom that are no argument: else it has many more nodes."""
    covariance = FORMS[form][0]
    return lambda p: tg.log_probability(p["loc"], covariance(p), box(p), df=4.0).log_prob


def moments_of(form):
    def function(p):
        moments = tg.truncated_moments(p["loc"], FORMS[form][0](p), box(p))
        return jnp.concatenate([x.ravel() for x in moments[:2]])

    return function


def quantile_of(form):
    return lambda p: tg.quantile(p["p"], p["loc"], FORMS[form][0](p))[0]


def distributions():
    table = {}
    for form in ("matrix", "ScaleTril"):
        covariance, moved = FORMS[form]
        points = some(gaussians(form, 2, x=[0.5, 0.25]), "identity,", "equal,", "diagonal")
        normal = lambda p, c=covariance: tg.TruncatedMultivariateNormal(
            p["loc"], c(p), low=p["low"], high=p["high"]
        )
        student = lambda p, c=covariance: tg.TruncatedMultivariateStudentT(
            4.0, p["loc"], c(p), low=p["low"], high=p["high"]
        )
        for law in (normal, student):
            name = "TruncatedMultivariate" + ("Normal" if law is normal else "StudentT")
            table[f"{name}, {form}"] = Case(
                name,
                lambda p, law=law: law(p).log_prob(p["x"]),
                points,
                **moved,
                routes="backward jit",
                tol=1e-5,
            )
    rows = tg.Observations(
        jnp.array([[0.3, 0.2], [0.1, -INF], [-INF, 0.0]]),
        jnp.array([[0.3, 0.2], [0.1, 0.0], [INF, 1.0]]),
    )
    for form in ("matrix", "ScaleTril"):
        function = lambda p, form=form: (
            tg.log_likelihood(rows, p["loc"], FORMS[form][0](p)).log_prob
        )
        points = {
            k: {n: x for n, x in p.items() if n not in ("low", "high")}
            for k, p in gaussians(form, 2, ("mixed",)).items()
        }
        table[f"log_likelihood, {form}"] = Case(
            "log_likelihood Observations",
            function,
            some(points, "id", "dia", "equal,"),
            **FORMS[form][1],
            routes="backward jit",
        )
    censored = lambda p: tg.Censored(numpyro.distributions.Normal(p["loc"], p["scale"]), p["low"])
    inside = {"inside": {"loc": 0.0, "scale": 1.0, "low": -0.5, "x": 0.0}}
    beyond = on("loc", (0, 1, -1, 8, 38, 1e3))
    beyond = {k: m | {"scale": 1.0, "low": -0.5, "x": -1.5} for k, m in beyond.items()}
    table["Censored"] = Case(
        "Censored",
        lambda p: censored(p).log_prob(p["x"]),
        inside | beyond,
        routes="backward jit twice",
    )
    mixture = lambda p: tg.TruncatedMixture(
        p["w"], p["locs"], p["matrices"] * I2, low=p["low"], high=p["high"]
    )
    table["TruncatedMixture"] = Case(
        "TruncatedMixture",
        lambda p: mixture(p).log_prob(p["x"]),
        {
            "equal components": {
                "w": [0.5, 0.5],
                "locs": np.zeros((2, 2)),
                "matrices": np.ones((2, 1, 1)),
                "low": [0.0, -1.0],
                "high": [INF, 1.0],
                "x": [0.5, 0.0],
            }
        },
        routes="backward jit",
    )
    return table


# Public names without a derivative, and the reason.
FIT = "a fit of data, whose results are numbers"
TERM = "a name for a term of a fitted model"
RULE = "a method of its own error: its gradient is an estimate, see its docstring"
NOT_DIFFERENTIABLE = {
    **dict.fromkeys(
        "fit_clusters fit_limits fit_mixture fit_observations fit_regression".split(), FIT
    ),
    **dict.fromkeys(
        "fit_selection fit_shift fit_truncated_normal likelihood_ratio minimize".split(), FIT
    ),
    **dict.fromkeys(
        "polychoric polychoric_matrix quantile_residuals simultaneous Statistics".split(), FIT
    ),
    **dict.fromkeys(
        "AutoRegressive CommonCorrelation CovarianceTerm Diagonal Exponential".split(), TERM
    ),
    **dict.fromkeys("Factor Kinship Matern RandomEffects Residual Unstructured".split(), TERM),
    **dict.fromkeys(
        "excursion explain first_nonfinite progress use_compilation_cache".split(), "a report"
    ),
    **dict.fromkeys("truncated_draws truncated_samples weighted_samples".split(), "draws"),
    **dict.fromkeys("Directed FieldParticles SequentialMonteCarlo Surrogate".split(), RULE),
    **dict.fromkeys("LineParticles MaternProcess QuasiSeparable".split(), RULE),
    **dict.fromkeys("Estimate Method Region Ordinal".split(), "a container or a contract"),
    "Hard": "its gradient is 0 everywhere, see its docstring",
    "effective_sample_size": "it carries no derivative, see its docstring",
    "clipped_gradient": "its gradient is none of its value, see its docstring",
}


CASES = cases()
QUICK = "special.log_ndtr", "standardize", "log_interval_mass"


@pytest.mark.quick(*QUICK)
@pytest.mark.parametrize("name", CASES)
def test_derivatives_are_those_of_the_values(name):
    law = run(CASES[name])
    assert law.count and not law.failures, "\n".join([f"{len(law.failures)}", *law.failures[:20]])


def test_every_public_function_is_differentiated_or_has_a_reason():
    public = set(tg._HOME_OF) | set(tg.special.__all__)
    public |= {
        name
        for name, x in vars(tg.safe).items()
        if inspect.isfunction(x) and not name.startswith("_")
    }
    public = {name for name in public if name != "partial"}
    covered = {name for case in CASES.values() for name in case.names.split()}
    assert not covered & NOT_DIFFERENTIABLE.keys()
    assert public <= covered | NOT_DIFFERENTIABLE.keys(), (
        public - covered - NOT_DIFFERENTIABLE.keys()
    )
