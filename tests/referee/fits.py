"""Laws of fits: log-likelihoods, optima and errors by the fit's own words, beside NumPy and SciPy.

Of each fit that says it converged: its log-likelihood is the oracle's at its estimates, SciPy finds
no higher one, and its errors are those of the oracle's second derivatives, for a sandwich with the
slopes of rows. What follows from a fit, as predictions, is compared with the same function of the
estimates and its error by the delta method. Weights, units, origins and the order of rows are part
of the case, and the oracle sees them as plain numbers.
"""

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from scipy import optimize
from scipy.special import expit, log_ndtr, logit, logsumexp, ndtr
from scipy.stats import norm

from tests.referee import oracles
from tests.referee.frame import Case, law

INF = np.inf
QUIET = "num_profiles=0, progress=False"
SANDWICH = 'information="sandwich", '
QUANTILE = norm.ppf(0.975)
SAYS = "np.r_[fit.log_likelihood, fit.log_likelihood, np.asarray(fit.errors)[{free}]{follows}, "
SAYS += "fit.aic, fit.bic, np.ravel(fit.to_frame())]"


def weights(draw, n):
    """Words, and an expression of weights, None for none; a row of weight 0 is no row."""
    of = {
        "no weights": "None",
        "equal weights": f"np.ones({n})",
        "weights of 0": f"np.where(np.arange({n}) < 4, 0.0, 1.0)",
        "integer weights": f"np.arange({n}) % 3 + 1",
        "fractions": f"0.5 + np.arange({n}) % 2",
    }
    return draw(st.sampled_from(list(of.items())))


def weighted(w, rows):
    """The sum of weights times log-likelihoods of the rows that count."""
    w = np.ones(len(rows)) if w is None else np.asarray(w, float)
    return float(np.sum(np.where(w > 0, w * rows, 0.0)))


def information(draw, n):
    """Options that say what errors come from, and the groups of rows of a sandwich, else None."""
    of = {"": None, SANDWICH: np.arange(n)}
    of[f"{SANDWICH}cluster=np.arange({n}) // 2, "] = np.arange(n) // 2
    return draw(st.sampled_from(list(of.items())))


def slopes(function, q, step=1e-3):
    """Derivatives in q numbers at 0, (..., q), of the fourth order in the step."""
    ends = [[function(k * step * move) for k in (-2, -1, 1, 2)] for move in np.eye(q)]
    return np.stack([(a - 8 * b + 8 * c - d) / (12 * step) for a, b, c, d in ends], axis=-1)


def outer_products(each, w, groups):
    """The sum of outer products of rows' slopes (n, q) by weight; or of those of groups of rows,
    with the factor G / (G - 1) of the number of those that count."""
    w = np.ones(len(each)) if w is None else np.asarray(w, float)
    each, w, groups = each[w > 0], w[w > 0], groups[w > 0]
    if len(np.unique(groups)) == len(groups):
        return (w[:, None] * each).T @ each
    totals = np.stack([w[groups == g] @ each[groups == g] for g in np.unique(groups)])
    return totals.T @ totals * len(totals) / (len(totals) - 1)


def wald(value, error, shares=False):
    """The ends of 95 % intervals, those of probabilities by their logits."""
    if not shares:
        return value + QUANTILE * np.outer([-1, 1], error)
    return expit(logit(value) + QUANTILE * np.outer([-1, 1], error / (value * (1 - value))))


def statements(names, estimates, root, errors_along, follows, step):
    """What follows from the estimates, its errors by the delta method, and what else is said."""
    of = lambda u: follows[1](names, estimates + root @ u, step)
    numbers = of(np.zeros(len(estimates)))
    scatter = errors_along(slopes(of, len(estimates), 10 * step))[0]
    rough = scatter * (1 + step / 10)  # so that ends are known as well as this, if terms cancel
    return np.r_[numbers, scatter, np.ravel(follows[2](numbers, rough))]


def also(case, says, truth, tol=1e-8):
    """A case with more that is said in its script, beside the truth by the script's names."""

    def oracle(names):
        (values, slack), more = case.oracle(names), np.ravel(truth(names))
        return np.r_[values, more], np.r_[slack, tol * (1 + abs(more))]

    return case._replace(ours=f"np.r_[{case.ours}, np.ravel({says})]", oracle=oracle)


def fitted(
    kind,
    setup,
    rows_of,
    free="[:]",
    refused=False,
    groups=None,
    follows=None,
    outcomes=False,
    prior=None,
):
    """The case of a fit called `fit` in a script, whose weights are `w`.

    Args:
        kind, setup, refused: of the case.
        rows_of: maps the script's names and the free estimates to log-likelihoods of rows.
        free: which of the estimates are free, an index in the script.
        groups: of rows, for errors of the sandwich.
        follows: an expression of numbers that follow from a fit, one after the other those, their
            errors and what else is said; a function of the script's names, the free estimates and
            a step of differences that returns them; and one of both that returns what else.
        outcomes: whether BIC counts rows that have an outcome, y in the script, and not all.
        prior: maps names and estimates to the log density of these, which is maximised too.
    """

    def oracle(names):
        fit = names["fit"]
        index = eval(f"np.s_{free}", {"np": np})
        estimates, errors = (np.asarray(x, float)[index] for x in (fit.estimates, fit.errors))

        def log_likelihood(x):
            with np.errstate(all="ignore"):
                total = weighted(names["w"], rows_of(names, x))
                return total if prior is None else total + prior(names, x)

        value = log_likelihood(estimates)
        sides = np.random.default_rng(0).choice([-1.5, 1.5], size=(2, len(errors)))
        starts = estimates + sides * np.where(np.isfinite(errors), errors, 0.0)
        highest = max(value, oracles.best(log_likelihood, estimates, errors, starts))
        believed = 0.0 if prior is None else prior(names, estimates)
        truth, error = errors, 0.0  # where they are not known, or an edge is too close
        more = both = [] if follows is None else eval(follows[0], names)
        if np.all(np.isfinite(errors)):
            # Along the axes of the covariance as stated: of the estimates' own directions, a flat
            # likelihood leaves differences that no inverse survives.
            lengths, axes = np.linalg.eigh(np.asarray(fit.parameter_covariance)[index][:, index])
            root = axes * np.sqrt(np.maximum(lengths, 0.0))
            at = lambda u: log_likelihood(estimates + root @ u)
            seconds, rates = oracles.hessian(at, len(errors)), slopes(at, len(errors))
            below = not np.all(abs(rates) < 1e-4)  # the top of a ridge, if one
            known = np.all(np.isfinite(seconds))
            if known and not (below and np.linalg.eigvalsh(seconds).max() >= 0):
                variances = np.linalg.inv(-np.array(seconds))
                if groups is not None:
                    by_row = lambda u: rows_of(names, estimates + root @ u)
                    squares = outer_products(slopes(by_row, len(errors)), names["w"], groups)
                    variances = variances @ squares @ variances
                errors_along = lambda a: np.sqrt(np.diagonal(a @ variances @ a.T, 0, 1, 2))
                with np.errstate(invalid="ignore"):
                    truth, rough = errors_along(root)
                error = abs(truth - rough)
                if np.any(abs(truth - errors) > 1e-4 * truth + error):  # on a ridge, a step away?
                    step = np.linalg.solve(-seconds[0], rates)
                    bent = oracles.hessian(lambda u: at(step + u), len(errors))[0]
                    apart = np.linalg.inv([-bent, -seconds[0]])
                    squares = np.maximum(np.diagonal(root @ apart @ root.T, 0, 1, 2), 0.0)
                    error = error + abs(np.subtract(*np.sqrt(squares)))
                if follows is not None:
                    more, both = (
                        statements(names, estimates, root, errors_along, follows, step)
                        for step in (1e-4, 2e-4)
                    )
        apart = 1e-4 * abs(np.asarray(more, float)) + abs(np.subtract(more, both))
        rows = np.isfinite(names["y"]) if outcomes else np.isfinite(rows_of(names, estimates))
        count = weighted(names["w"], rows)
        criteria = np.array([2, np.log(count)]) * len(errors) - 2 * (value - believed)
        every = np.stack([fit.estimates, fit.errors, *wald(fit.estimates, fit.errors)], axis=1)
        table = np.r_[criteria, every.ravel()]
        slack = np.r_[0.0, 2e-8 * (1 + abs(value)), 1e-4 * abs(truth) + error, apart, 0 * table]
        likelihoods = np.r_[value, highest] - believed
        return np.r_[likelihoods, truth, more, table], slack

    ours = SAYS.format(free=free[1:-1], follows="" if follows is None else f", {follows[0]}")
    return Case(kind, setup, ours, oracle, 1e-8, refused=refused)


def numbers(draw):
    """A seed and the unit and origin of the outcome."""
    unit = draw(st.sampled_from([1.0, 1e3, 1e-3]))
    origin = draw(st.sampled_from([0.0, 10.0])) * unit
    return draw(st.integers(0, 10**4)), unit, origin


@law
def regressions(draw):
    """Tobit, truncated and plain regressions, or both, with a scale that may depend on x."""
    seed, unit, origin = numbers(draw)
    word, w = weights(draw, 24)
    kinds = ["plain", "censored_low", "censored_high", "truncated_low", "both", "cut and censored"]
    which = draw(st.sampled_from(kinds))
    cut = which in ("truncated_low", "cut and censored")
    by_x, units = draw(st.booleans()), draw(st.sampled_from([1.0, 0.1, 10.0]))
    setup = f"rng = np.random.default_rng({seed}); x, e = rng.normal(size=(2, 200))\n"
    setup += "y = 0.4 + x + e * np.exp(0.3 * x)\n" if by_x else "y = 0.4 + x + e\n"
    bounds = {
        "plain": (-INF, INF),
        "censored_low": (0.0, INF),
        "censored_high": (-INF, 1.0),
        "truncated_low": (-1.0, INF),
        "both": (-0.5, 1.2),
        "cut and censored": (-1.0, 1.2),
    }[which]
    low, high = (b * unit + origin for b in bounds)
    setup += f"k = np.flatnonzero(y > {bounds[0] if cut else -9.0})[:24]\n"
    clip = which not in ("plain", "truncated_low")
    value = f"{origin} + {unit} * y[k]"
    value = f"np.clip({value}, {text_of(low)}, {text_of(high)})" if clip else value
    setup += f"x, y, w = {units} * x[k], {value}, {w}\n"
    words = {"plain": "", "truncated_low": f"truncated_low={low}, "}
    words["both"] = f"censored_low={low}, censored_high={high}, "
    words["cut and censored"] = f"truncated_low={low}, censored_high={high}, "
    more = words.get(which, f"{which}={low if which.endswith('low') else high}, ")
    more += "scale_design=design, " if by_x else ""
    setup += 'design = {"constant": np.ones(24), "x": x}\n'
    options, groups = information(draw, 24)
    setup += f"fit = tg.fit_regression(y, design, {more}{options}weights=w, {QUIET})\n"
    asked = ["mean"] + ["observed", "mean_observed"] * (which not in ("plain", "cut and censored"))
    asked += ["recorded"] * (clip and not cut)
    asked = draw(st.sampled_from([*asked, "quantile", "probability", "known", "share of known"]))
    on_average, bound = draw(st.booleans()), origin + 0.3 * unit
    on_average = on_average and asked not in ("quantile", "known", "share of known")
    more_of = {"quantile": ", probability=0.9", "probability": f", high={bound}"}.get(asked, "")
    known = f"predict(new, known=tg.Observations([-np.inf] * 3, [{bound}] * 3)"
    beyond = origin - 0.2 * unit
    at = draw(st.sampled_from(["", 'at="mean", ', f'at={{"x": {0.3 * units}}}, ']))
    call = f'predict(new, "{asked}"'
    call = f'margins({at}kind="{asked}", variables="x"' if on_average else call
    calls = {"known": known, "share of known": f'{known}, kind="probability", high={beyond}'}
    call = f"{calls.get(asked, call)}{more_of})"
    setup += f'new = {{"constant": 1.0, "x": {units} * np.array([-0.5, 0.0, 0.7])}}; p = fit.{call}'

    def predicted(names, b, step):
        own = {"probability": bound, "known": bound, "share of known": beyond}
        ends = (-INF, own[asked]) if asked in own else (low, high)
        scale = lambda x: np.exp(b[2] + b[3] * x) if by_x else b[2]
        kind = {"known": "mean_observed", "share of known": "observed"}.get(asked, asked)
        of = lambda x: prediction(kind, b[0] + b[1] * x, scale(x), *ends)
        if asked == "share of known":
            x = names["new"]["x"]
            return of(x) / prediction("observed", b[0] + b[1] * x, scale(x), -INF, bound)
        if not on_average:
            return of(names["new"]["x"])
        points = names["x"] if not at else np.r_[0.3 * units]
        points = np.r_[np.average(names["x"], weights=names["w"])] if "mean" in at else points
        rates = slopes(lambda move: of(points + move), 1, step)[:, 0]
        return np.r_[np.average(rates, weights=None if at else names["w"])]

    shares = asked in ("observed", "probability", "share of known") and not on_average
    ends = lambda numbers, scatter: wald(numbers, scatter, shares)
    follows = "np.r_[p.value, p.standard_errors, p.low, p.high]", predicted, ends

    def rows_of(names, b):
        x, y = names["x"], names["y"]
        sigma = np.exp(b[2] + b[3] * x) if by_x else np.full(24, b[2])
        sigma = np.where(sigma > 0, sigma, np.nan)
        mean = b[0] + b[1] * x
        z = (y - mean) / sigma
        exact = -z * z / 2 - np.log(sigma) - oracles.LOG_ROOT_2PI
        seen = log_ndtr(-(low - mean) / sigma) if cut else 0.0
        if not clip:
            return exact - seen
        below, above = log_ndtr((low - mean) / sigma), log_ndtr(-(high - mean) / sigma)
        return np.where(y <= low, below, np.where(y >= high, above, exact)) - seen

    def shaped(names):
        b, errors = np.array(names["fit"].estimates), np.array(names["fit"].errors)
        scale, of_scale = (b[2:], errors[2:]) if by_x else (np.log(b[2:]), errors[2:] / b[2:])
        return np.r_[b[:2], scale, errors[:2], of_scale]

    says = "fit.coefficients, fit.log_scale, fit.standard_errors.coefficients, "
    says = f"np.r_[{says}fit.standard_errors.log_scale]"
    kind = f"{which}, {word}, {'scale by x' if by_x else 'one scale'}, {options}{call}"
    case = fitted(kind, setup, rows_of, refused=cut, groups=groups, follows=follows)
    return also(case, says, shaped)


def prediction(kind, mean, sigma, low, high):
    """A prediction of normal outcomes that are seen between two bounds."""
    a, b = (low - mean) / sigma, (high - mean) / sigma
    log_inside = oracles.log_interval(a, b)
    observed = mean + sigma * (
        np.exp(norm.logpdf(a) - log_inside) - np.exp(norm.logpdf(b) - log_inside)
    )
    inside = np.exp(log_inside)
    beyond = sum(x * p for x, p in ((low, ndtr(a)), (high, ndtr(-b))) if np.isfinite(x))
    recorded = observed * inside + beyond
    every = {"observed": inside, "mean_observed": observed, "recorded": recorded}
    every |= {"probability": inside, "quantile": mean + norm.ppf(0.9) * sigma}
    return every.get(kind, mean + 0 * inside)


def text_of(x):
    return repr(float(x)).replace("inf", "np.inf")


def gaussian_of(b, d):
    """A mean and a covariance by estimates, of one outcome its sigma; None where that is none."""
    if d == 1:
        return (b[:1], b[1:, None] ** 2) if b[1] > 0 else None
    covariance = np.zeros((d, d))
    covariance[np.tril_indices(d)] = b[d:]
    covariance = covariance + np.tril(covariance, -1).T
    return (b[:d], covariance) if np.all(np.linalg.eigvalsh(covariance) > 0) else None


@law
def gaussians(draw):
    """Gaussians of one or two outcomes, truncated, censored, missing, measured with noise."""
    d, n = draw(st.integers(1, 2)), 24
    seed, unit, origin = numbers(draw)
    word, w = weights(draw, n)
    by = draw(st.sampled_from(["rows", "rows", "rows", "table", "parts"]))
    cut = by != "rows" or draw(st.booleans())
    censored = by == "rows" and draw(st.booleans())
    missing = by == "rows" and d == 2 and draw(st.booleans())
    noise = draw(st.sampled_from([0.0, 0.3, 0.3])) * unit**2 if by == "rows" else 0.0
    varied = noise and draw(st.booleans())  # every other row has twice the deviation
    of_table = varied and d == 1
    low = origin - 0.7 * unit if cut else -INF
    setup = f"rng = np.random.default_rng({seed}); z = rng.normal(size=(200, {d}))\n"
    setup += "z = z @ [[1.0, 0.6], [0.0, 0.8]]\n" if d == 2 else ""
    inside = "[z[:, 0] > -0.7]" if cut else ""
    setup += f"y = z{inside}[:{n}] * {unit} + {origin}; w = {w}\n"
    setup += "lower, upper = y.copy(), y.copy()\n"
    if censored:
        at = origin + 0.8 * unit
        setup += f"lower[:, -1] = np.minimum(y[:, -1], {at}); upper[y[:, -1] > {at}, -1] = np.inf\n"
    if missing:
        setup += "lower[::5, 1], upper[::5, 1] = -np.inf, np.inf\n"
    box = f"tg.Box([{low}{', -np.inf' * (d - 1)}], np.inf)" if cut else "None"
    options, groups = "", None
    if by != "rows":
        data, bounds, w = "y", f"region={box}", ", weights=w"
        if by == "parts":
            data = "statistics=sum(tg.Statistics.from_rows(y[i::5], w if w is None else w[i::5])"
            data, w = f"{data} for i in range(5))", ""
        elif d == 2 and draw(st.booleans()):  # by names, in another order
            data, bounds = (
                "pd.DataFrame(y, columns=['a', 'b'])",
                f"low={{'b': -np.inf, 'a': {low}}}",
            )
            setup = f"import pandas as pd; {setup}"
        fit = f"tg.fit_truncated_normal({data}, {bounds}{w}, {QUIET})"
    else:
        options, groups = information(draw, n)
        by_row = f" * np.where(np.arange({n}) % 2, 4, 1)[:, None, None]" if varied else ""
        measured = f", noise={noise} * np.eye({d}){by_row}" if noise else ""
        rows = f"tg.Observations(lower, upper, {box}, weights=w{measured})"
        if of_table:
            columns = "{'a': lower[:, 0], 'b': upper[:, 0], 's': s, 'w': 1.0 if w is None else w}"
            setup += f"s = np.sqrt({noise}) * (1 + np.arange({n}) % 2); t = {columns}\n"
            columns = "'y', lower='a', upper='b', noise_scale='s', weights='w'"
            columns += f", truncated_low={low}" * cut
            rows = f"tg.Observations.from_table(t, {columns})"
        fit = f"tg.fit_observations({rows}, {options}{QUIET})"
    setup += f"fit = {fit}"
    derived = '[*fit.derived("{}")]'.format
    product = "[*fit.delta(lambda e: (p := fit.parameters(e)).loc[-1] * p.covariance)]"
    scales = lambda b, m: np.sqrt(np.diag(m))
    of = {
        "[fit.covariance_matrix, fit.standard_errors.covariance_matrix]": lambda b, m: m,
        derived("covariance"): lambda b, m: m,
        derived("scales"): scales,
        derived("correlation"): lambda b, m: m / np.outer(scales(b, m), scales(b, m)),
        derived("slopes"): lambda b, m: m / np.diag(m),
        product: lambda b, m: b[d - 1] * m,
    }
    asked = "[(p := fit.predict({})).value, p.standard_errors]".format
    level, a = lambda b, m: (b[0] - low) / np.sqrt(m[0, 0]), origin + 0.4 * unit
    if by == "rows" and d == 2:
        row = f"tg.Observations.exact([[{a}, np.nan]], nan_is_missing=True)"
        of[asked(row)] = lambda b, m: np.r_[a, b[1] + m[0, 1] / m[0, 0] * (a - b[0])]
        of[asked('None, "quantile", probability=0.9, entry=1')] = lambda b, m: np.r_[
            b[1] + norm.ppf(0.9) * np.sqrt(m[1, 1])
        ]
    if by == "rows" and cut and not (noise or censored):
        of[asked('kind="observed"')] = lambda b, m: np.r_[ndtr(level(b, m))]
        of[asked('kind="mean_observed"')] = lambda b, m: (
            b[:d]
            + m[0] / np.sqrt(m[0, 0]) * np.exp(norm.logpdf(level(b, m)) - log_ndtr(level(b, m)))
        )
    alone = derived("correlation"), derived("slopes")
    said = draw(st.sampled_from([x for x in of if d == 2 or x not in alone]))
    matrix = lambda names, b, step: np.ravel(of[said](b, gaussian_of(b, d)[1]))
    follows = f"np.ravel({said})", matrix, lambda numbers, scatter: []
    box_low = np.array([low] + [-INF] * (d - 1))

    def rows_of(names, b):
        gaussian = gaussian_of(b, d)
        if gaussian is None:
            return np.full(n, np.nan)
        (loc, matrix), ends = gaussian, (names["lower"], names["upper"])
        box, noises = (box_low, np.full(d, INF)), noise * np.eye(d)
        of = lambda k: oracles.log_rows(*ends, loc, matrix + k * noises, *box)
        return np.where(np.arange(n) % 2, of(4), of(1)) if varied else of(1)

    on = {"truncated": cut, "censored": censored, "missing": missing, "noise": noise}
    on |= {"by row": varied, "of a table": of_table}
    kind = ", ".join([f"d = {d}", word, *(name for name, is_on in on.items() if is_on)])
    kind = f"{kind}, {options}{said}"
    return fitted(kind, setup, rows_of, refused=cut, groups=groups, follows=follows)


@law
def ordered(draw):
    """Ordered probit of three categories."""
    seed = draw(st.integers(0, 10**4))
    word, w = weights(draw, 40)
    unit = draw(st.sampled_from([1.0, 1e3]))
    setup = f"rng = np.random.default_rng({seed}); x, e = rng.normal(size=(2, 40)); w = {w}\n"
    setup += f"y = np.digitize(0.6 * x + e, [-0.5, 0.7]); x = {unit} * x\n"
    options, groups = information(draw, 40)
    named = draw(st.booleans())  # with a level that does not occur
    outcome = "np.array(list('acd'))[y], levels=list('abcd')" if named else "y"
    setup += (
        f'fit = tg.fit_regression(tg.Ordinal({outcome}), {{"x": x}}, {options}weights=w, {QUIET})\n'
    )
    setup += f'new = {{"x": {unit} * np.array([-0.5, 1.2])}}; p = fit.predict(new)'

    def shares(names, b, step):
        return np.ravel(np.diff(ndtr(np.r_[-INF, b[1:], INF] - b[0] * names["new"]["x"][:, None])))

    said = "np.ravel([p.value, p.standard_errors, p.low, p.high])"
    follows = said, shares, lambda numbers, scatter: wald(numbers, scatter, shares=True)

    def rows_of(names, b):
        cuts = np.r_[-INF, b[1:], INF]
        if np.any(np.diff(cuts) <= 0):
            return np.full(40, np.nan)
        mean = b[0] * names["x"]
        return oracles.log_interval(cuts[names["y"]] - mean, cuts[names["y"] + 1] - mean)

    case = fitted(f"{word}, {options}", setup, rows_of, groups=groups, follows=follows)
    levels = [ord(level) for level in ("acd" if named else "012")]
    return also(case, "[ord(x[2]) for x in p.labels]", lambda names: 2 * levels)


def heckman(b, x, z, s, y):
    """Log-likelihoods of rows of a selection by z of outcomes y on x, which s says are seen."""
    g0, g1, b0, b1, rho, sigma = b
    if not (abs(rho) < 1 and sigma > 0):
        return np.full(len(x), np.nan)
    index = g0 + g1 * z
    r = np.where(s, (y - b0 - b1 * x) / sigma, 0.0)
    seen = norm.logpdf(r) - np.log(sigma) + log_ndtr((index + rho * r) / np.sqrt(1 - rho**2))
    return np.where(s, seen, log_ndtr(-index))


def two_step_of_heckman(names):
    """A probit, then least squares of the outcomes that are seen on x and the ratio of Mills."""
    x, z, s, y = (names[name] for name in "xzsy")
    w = np.ones(80) if names["w"] is None else np.asarray(names["w"], float)
    z, side = np.stack([np.ones(80), z], 1), np.where(s, 1.0, -1.0)
    ratio = lambda t: np.exp(norm.logpdf(t) - log_ndtr(t))
    score = lambda g: (w * side * ratio(side * (z @ g))) @ z
    g = optimize.root(score, np.zeros(2), tol=1e-12).x
    mills = ratio(z @ g)[s]
    columns, root = np.stack([np.ones(s.sum()), x[s], mills], 1), np.sqrt(w[s])
    b = np.linalg.lstsq(root[:, None] * columns, root * y[s])[0]
    squares = (y[s] - columns @ b) ** 2 + b[2] ** 2 * mills * (mills + (z @ g)[s])
    sigma = np.sqrt(np.average(squares, weights=w[s]))
    return np.r_[g, b[:2], b[2] / sigma, sigma, b[2]]


def regimes(b, x, z, s, y):
    """Likewise where rows that are not selected have an outcome too, of their own coefficients."""
    other = heckman(np.r_[-b[:2], b[4:6], -b[8], b[9]], x, z, ~s, y)
    return np.where(s, heckman(b[[0, 1, 2, 3, 6, 7]], x, z, s, y), other)


def probit_pairs(b, x, z, s, y):
    """Likewise where the outcome is whether it is positive."""
    g0, g1, b0, b1, rho = b
    if not abs(rho) < 1:
        return np.full(len(x), np.nan)
    index, mean = g0 + g1 * z, b0 + b1 * x
    ends = np.where(s, -INF, index), np.where(y == 0, mean, -INF)
    others = np.where(s, index, INF), np.where(y == 1, mean, INF)
    factor = np.array([[1.0, 0.0], [rho, np.sqrt(1 - rho**2)]])
    return oracles.log_box(0.0, factor, np.stack(ends, 1), np.stack(others, 1))


def selection_prediction(kind, b, x, z, bound):
    """A prediction (m, k) of a selection model: P(selected) and each outcome."""
    index, seen = b[0] + b[1] * z, ndtr(b[0] + b[1] * z)
    means = [b[k] + b[k + 1] * x for k in (2, 4)[: 2 if len(b) > 6 else 1]]
    if kind == "observed":
        return seen[:, None]
    if len(b) == 5:
        factor = np.array([[1.0, 0.0], [b[4], np.sqrt(1 - b[4] ** 2)]])
        both = np.exp(oracles.log_box(0.0, factor, np.array([-INF] * 2), np.c_[index, means[0]]))
        each = {"latent": [index, means[0]], "mean": [seen, ndtr(means[0])]}
        return np.stack(each.get(kind, [seen, both / seen]), axis=1)
    errors = np.reshape(b[2 * len(means) + 2 :], (-1, 2))  # rho and sigma of each
    if kind == "probability":
        each = [ndtr((bound - m) / sigma) for m, (_, sigma) in zip(means, errors)]
        return np.stack(each, axis=1)
    if kind == "quantile":
        return (means[0] + norm.ppf(0.9) * errors[0, 1])[:, None]
    slopes_of = (
        np.exp(norm.logpdf(index) - log_ndtr(index)),
        -np.exp(norm.logpdf(index) - log_ndtr(-index)),
    )
    moved = [m + rho * sigma * t for m, (rho, sigma), t in zip(means, errors, slopes_of)]
    each = {"latent": [index, *means], "mean": [seen, *means]}.get(kind, [seen, *moved])
    return np.stack(each, axis=1)


@law
def selections(draw):
    """Heckman's selection model, by the log-likelihood of its textbook; of binary outcomes too, and
    of two regimes; its predictions of every kind and their slopes."""
    (seed, unit, origin), of = numbers(draw), draw(st.sampled_from(["", "binary", "regimes"]))
    word, w = weights(draw, 80)
    unit, origin = (1.0, 0.0) if of == "binary" else (unit, origin)
    setup = f"rng = np.random.default_rng({seed}); x, z, u, e = rng.normal(size=(4, 80)); w = {w}\n"
    setup += "s = 0.3 + z + u > 0; one = np.ones(80)\n"
    outcome = "0.4 + x + 0.6 * u + 0.8 * e"
    outcome = f"{outcome} > 0" if of == "binary" else f"{origin} + {unit} * ({outcome})"
    other = f"{origin} + {unit} * (0.5 * x - 0.5 * u + e)" if of == "regimes" else "np.nan"
    setup += f"y = np.where(s, {outcome}, {other})\n"
    setup += 'outcome, selection = {"constant": one, "x": x}, {"constant": one, "z": z}\n'
    options, groups = information(draw, 80)
    options += {"": "", "binary": "binary=True, ", "regimes": "unselected_design=outcome, "}[of]
    setup += f"fit = tg.fit_selection(y, outcome, s, selection, {options}weights=w, {QUIET})\n"
    kinds = ["mean_observed", "mean", "observed", "latent", "probability", "quantile"]
    asked = draw(st.sampled_from(kinds[: 4 if of == "binary" else 6]))
    bound, on_average = origin + 0.3 * unit, asked != "quantile" and draw(st.booleans())
    at = draw(st.sampled_from(["", 'at="mean", ', 'at={"z": 0.3}, ']))
    more_of = {"quantile": ", probability=0.9", "probability": f", high={bound}"}.get(asked, "")
    call = f'predict(new, "{asked}"'
    call = f'margins({at}kind="{asked}", variables=["z", "x"]' if on_average else call
    call += f"{', entry=1' if asked == 'quantile' and of else ''}{more_of})"
    setup += 'new = {"constant": 1.0, "x": np.array([-0.5, 0.7]), "z": np.array([0.4, -1.0])}; '
    setup += f"p = fit.{call}"

    def numbers_of(names, b, step):
        rows = names if on_average else names["new"]
        x, z, w = rows["x"], rows["z"], names["w"] if on_average else None
        products = {"": b[4:6], "regimes": b[6:8]}.get(of, np.ones(2))
        products = np.r_[products[0] * products[1], products[1] ** 2][: 0 if of == "binary" else 2]
        if on_average:  # slopes do not know the origin, of whose digits differences lose some
            b = b - origin * np.isin(np.arange(len(b)), [2, 4] if of == "regimes" else [2])
        beyond = bound - origin * on_average
        value = lambda x, z: selection_prediction(asked, b, x, z, beyond)
        if not on_average:
            return np.r_[value(x, z).ravel(), products]
        if "mean" in at:
            x, z, w = np.average(x, weights=w)[None], np.average(z, weights=w)[None], None
        z = np.full(len(x), 0.3) if "z" in at else z
        rates = slopes(lambda u: value(x + u[1], z + u[0]), 2, 1e-2)
        return np.r_[np.average(rates, axis=0, weights=w).T.ravel(), products]

    def ends(numbers, scatter):
        m = len(numbers) - 2 * (of != "binary")
        width = 1 if asked in ("observed", "quantile") or m % 2 else 2
        width = {"regimes": 3}.get(of, 2) if asked in kinds[:2] + ["latent"] else width
        shares = {"mean": [0], "mean_observed": [0], "observed": [0], "probability": [0, 1]}
        share = np.isin(np.arange(m) % width, shares.get(asked, []))
        share |= of == "binary" and asked != "latent"
        share &= not on_average
        plain, logits = (wald(numbers[:m], scatter[:m], x) for x in (False, True))
        return np.where(share, logits, plain)

    log_rows = {"": heckman, "binary": probit_pairs, "regimes": regimes}[of]
    rho_of = lambda f: [b for name, b in zip(f.names, f.estimates) if name.startswith("rho")]
    within = lambda names: assume(np.max(np.abs(rho_of(names["fit"]))) < 0.999)  # its errors hold
    rows_of = lambda names, b: within(names) and log_rows(b, *(names[name] for name in "xzsy"))
    matrix = ["", ""] if of == "binary" else ["fit.covariance_matrix[1, :2], "]
    matrix = [*matrix, "fit.standard_errors.covariance_matrix[1, :2], "][:2]
    said = f"np.r_[np.ravel(p.value), {matrix[0]}np.ravel(p.standard_errors), {matrix[1]}"
    follows = f"{said}np.ravel(p.low), np.ravel(p.high)]", numbers_of, ends
    free = {"": "[:6]", "binary": "[:5]"}.get(of, "[[0, 1, 2, 3, 4, 5, 6, 7, 10, 11]]")
    kind = f"{of}, {word}, {options}{call}"
    case = fitted(kind, setup, rows_of, free, refused=True, groups=groups, follows=follows)
    return case if of else also(case, "np.hstack(fit.two_step)", two_step_of_heckman, 1e-6)


def mixture_of(b, d, form):
    """Shares, means and covariances of two components by the estimates that are free."""
    i, j = np.tril_indices(d)
    i, j = (np.arange(d), np.arange(d)) if form == "diagonal" else (i, j)
    parts = np.resize(b[1 + 2 * d :], (2, len(i)))  # of one matrix twice where they are tied
    matrices = np.zeros((2, d, d))
    matrices[:, i, j] = matrices[:, j, i] = parts
    return np.r_[b[0], 1 - b[0]], b[1 : 1 + 2 * d].reshape(2, d), matrices


def log_components(y, shares, locs, matrices, low):
    """Log densities (n, 2) times shares, and the logs of shares times what is above a bound."""
    gaps = y[:, None] - locs
    squares = np.einsum("nki,kij,nkj->nk", gaps, np.linalg.inv(matrices), gaps)
    sizes = np.linalg.slogdet(2 * np.pi * matrices)[1]
    inside = log_ndtr((locs[:, 0] - low) / np.sqrt(matrices[:, 0, 0]))
    return np.log(shares) - (squares + sizes) / 2, np.log(shares) + inside


@law
def mixtures(draw):
    """Two Gaussians far apart, seen above a bound or everywhere, with equal covariances or not, and
    with a prior; what each row shows of its component."""
    (seed, unit, origin), d = numbers(draw), draw(st.integers(1, 2))
    word, w = weights(draw, 40)
    form, v = draw(st.sampled_from(["full", "tied", "diagonal"])), draw(st.sampled_from([0.0, 2.0]))
    cut = draw(st.booleans())
    low = origin - 0.5 * unit if cut else -INF
    setup = f"rng = np.random.default_rng({seed}); z = rng.normal(size=(120, {d})); w = {w}\n"
    setup += "z += 6.0 * (np.arange(120) % 3 == 0)[:, None]"
    setup += f"; y = {origin} + {unit} * z[z[:, 0] > {-0.5 if cut else -9}][:40]\n"
    box = f"tg.Box([{low}{', -np.inf' * (d - 1)}], np.inf)" if cut else "None"
    setup += f"rows = tg.Observations(y, y, {box}, weights=w)\n"
    options, groups = draw(st.sampled_from([("", None), (SANDWICH, np.arange(40))]))
    options, groups = (options, groups) if not v else (f"prior_rows={v}, ", None)
    setup += f'fit = tg.fit_mixture(rows, 2, covariance="{form}", {options}progress=False)'

    def rows_of(names, b):
        assume(np.min(names["fit"].weights) > 1e-3)  # else its own rows tell nothing of a component
        shares, locs, matrices = mixture_of(b, d, form)
        smallest = 0.05 * np.min(np.linalg.eigvalsh(names["fit"].covariances))
        if not (0 < b[0] < 1 and np.all(np.linalg.eigvalsh(matrices) > smallest)):
            return np.full(40, np.nan)
        each, inside = log_components(names["y"], shares, locs, matrices, low)
        return logsumexp(each, axis=1) - logsumexp(inside)

    def believed(names, b):
        matrices, y, w = mixture_of(b, d, form)[2], names["y"], names["w"]
        matrices = matrices[:1] if form == "tied" else matrices
        spread = np.diag(np.average((y - np.average(y, 0, w)) ** 2, 0, w))
        traces = np.trace(spread @ np.linalg.inv(matrices), axis1=1, axis2=2)
        return -v / 2 * np.sum(np.linalg.slogdet(np.linalg.inv(spread) @ matrices)[1] + traces)

    def said(names):
        fit, y = names["fit"], names["y"]
        b = np.delete(np.asarray(fit.estimates, float), 1)
        shares, locs, matrices = mixture_of(b, d, form)
        each, inside = log_components(y, shares, locs, matrices, low)
        known = np.exp(each - logsumexp(each, axis=1)[:, None])
        w = np.ones(40) if names["w"] is None else names["w"]
        entropy = -w @ np.sum(known * np.log(np.maximum(known, 1e-300)), axis=1)
        rows = logsumexp(each, axis=1) - logsumexp(inside)
        icl, inside = fit.bic + 2 * entropy, np.exp(inside) / shares
        parts = known, rows, entropy, icl, inside, shares, locs, matrices
        return np.concatenate([np.ravel(part) for part in parts])

    def seen(names, b, step):
        inside = log_components(names["y"], *mixture_of(b, d, form), low)[1]
        return np.exp(inside - logsumexp(inside))

    shares = "np.r_[fit.observed_weights, fit.standard_errors.observed_weights]"
    follows = shares, seen, lambda numbers, scatter: []
    says = "fit.responsibilities, fit.row_log_likelihood(rows), fit.entropy, fit.icl, "
    says += "fit.fraction_not_truncated, fit.weights, fit.locs"
    says = f"np.hstack([np.ravel(x) for x in ({says}, fit.covariances)])"
    entries = d if form == "diagonal" else d * (d + 1) // 2
    free = f"[{[0, *range(2, 2 + 2 * d + entries * (2 - (form == 'tied')))]}]"
    kind = f"d = {d}, {form}, {word}, {options}" + "truncated" * cut
    case = fitted(
        kind,
        setup,
        rows_of,
        free,
        refused=True,
        groups=groups,
        follows=follows,
        prior=believed if v else None,
    )
    return also(case, says, said)
