"""Laws of tables: columns of odd types, cells of files, formulas and what follows from them.

A number means the same whatever holds it, and a formula the same however it is written; what is no
number is refused by a sentence.
"""

import warnings

import numpy as np
from hypothesis import strategies as st
from scipy.stats import norm

from tests.referee.fits import QUIET
from tests.referee.frame import Case, law

INF = np.inf

# --- Types of columns -----------------------------------------------------------------------------

TYPES = {
    "int64": "k",
    "int8": "k.astype(np.int8)",
    "uint8": "k.astype(np.uint8)",
    "int16": "k.astype(np.int16)",
    "float32": "k.astype(np.float32)",
    "float16": "k.astype(np.float16)",
    "objects": "k.astype(object)",
    "nullable": 'pd.array(k, dtype="Int16")',
    "unmasked": "np.ma.array(k)",
    "big end first": 'k.astype(">i2")',
}
REFUSED = {
    "gap": "np.where(k == k[3], np.nan, k)",
    "nullable gap": 'pd.array([None, *k[1:]], dtype="Int16")',
    "objects with None": "np.array([None, *k[1:]], dtype=object)",
    "masked": "np.ma.array(k, mask=k == k[0])",
    "texts": "k.astype(str)",
    "decimal commas": "np.array([f'{v},5' for v in k])",
    "categories": "pd.Categorical(k.astype(str))",
    "dates": "pd.to_datetime(k, unit='D')",
    "complex": "k + 1j",
    "infinite": "np.where(k == k[3], np.inf, k)",
}
TERMS = {
    "x": lambda x, z: x,
    "z": lambda x, z: z,
    "I(x**2)": lambda x, z: x**2,
    "I(x*x)": lambda x, z: x * x,
    "x:z": lambda x, z: x * z,
    "I(-x)": lambda x, z: -x,
    "I(x - 100)": lambda x, z: x - 100,
    "I(3*x)": lambda x, z: 3 * x,
    "np.log(x + 5)": lambda x, z: np.log(x + 5),
    "np.sqrt(x)": lambda x, z: np.sqrt(x),
    "np.exp(-x/50)": lambda x, z: np.exp(-x / 50),
    "I(x > 60)": lambda x, z: 1.0 * (x > 60),
}


def least_squares(columns, y, w):
    """The log-likelihood of a normal regression at its maximum, and the rank of the columns."""
    a, root = np.column_stack(columns), np.sqrt(w)
    a = a / np.max(abs(a), axis=0)
    solution, _, rank, _ = np.linalg.lstsq(a * root[:, None], y * root, rcond=None)
    total = np.sum(w)
    variance = np.sum(w * (y - a @ solution) ** 2) / total
    return -total / 2 * (np.log(2 * np.pi * variance) + 1), rank


@law
def columns(draw):
    """A regression on a column of some type, by a formula or by a design."""
    by_formula = draw(st.booleans())
    seed = draw(st.integers(0, 10**4))
    types = TYPES if by_formula else TYPES | REFUSED
    kind = draw(st.sampled_from(list(types)))
    terms = draw(st.lists(st.sampled_from(list(TERMS)), min_size=1, max_size=3, unique=True))
    labelled = draw(st.booleans())
    setup = f"import pandas as pd; rng = np.random.default_rng({seed})\n"
    setup += (
        "k = rng.permutation(120)[:24]; z, e = rng.normal(size=(2, 24)); y = 0.05 * k + z + e\n"
    )
    setup += f"x, w = {types[kind]}, np.arange(24) % 3 + 1.0\n"
    w, given = ("w", "pd.Series(w).iloc[::-1]") if labelled else ("np.ones(24)", "None")
    table = "pd.DataFrame({'x': x, 'z': z, 'y': y})"
    if by_formula:
        formula = " + ".join(terms)
        call = f"'y ~ {formula}', data={table}, weights={given}"
    elif labelled:
        call = "pd.Series(y), pd.DataFrame({'constant': np.ones(24), 'x': x, 'z': z}), "
        call += f"weights={given}"
    else:
        call = "y, {'constant': np.ones(24), 'x': x, 'z': z}"
    setup += f"fit = tg.fit_regression({call}, {QUIET})"

    def oracle(names):
        x, z = np.asarray(names["k"], float), names["z"]
        parts = [TERMS[term](x, z) for term in terms] if by_formula else [x, z]
        truth, rank = least_squares([np.ones(24), *parts], names["y"], eval(w, dict(names)))
        assert rank == len(parts) + 1, "a redundant column is refused"
        return truth, 0.0

    redundant = by_formula and len({"x", "I(-x)", "I(x - 100)", "I(3*x)"} & {*terms}) > 1
    redundant |= by_formula and {"I(x**2)", "I(x*x)"} <= {*terms}
    words = f"{kind}, {' + '.join(terms) if by_formula else 'design'}" + ", labelled" * labelled
    no_number = not by_formula and kind in REFUSED
    return Case(
        words, setup, "fit.log_likelihood", oracle, 1e-8, must_refuse=no_number or redundant
    )


# --- Cells ----------------------------------------------------------------------------------------

NUMBERS = {"0.7": 0.7, " 2 ": 2.0, "+3": 3.0, "-1e-3": -1e-3, ".5": 0.5, "4.": 4.0, "1E2": 100.0}
NO_NUMBERS = [
    "1_000",
    "1,634",
    "0,5",
    "0x10",
    "",
    "NA",
    "1.0 U",
    "5%",
    "1.5D3",
    "１２",
    "--1",
    "1 2",
]
CENSORED = {f"{mark}0.5": (-INF, 0.5) for mark in ("<", "<=", "≤", "< ", "≤ ")}
CENSORED |= {f"{mark}2": (2.0, INF) for mark in (">", ">=", "≥", "> ", "≥ ")}
CENSORED |= {text: (-INF, 3.0) for text in ("3 U", "3UJ", "3 ND", "ND 3", "nd<3", "ND (3)", "<3 U")}
CENSORED |= {"0.5 J": (0.5, 0.5), "<0.5 UJ": (-INF, 0.5)}
NO_LIMITS = ["abc", "1,634", "<1,634", "< ", "<<2", "", "3>", "1.0 mg", "<0.5 J", "1.5D3", "nan"]
READINGS = {  # of what is no number here: each that somebody may mean is said
    "1,634": ("1634", "1.634"),
    "<1,634": ("1634", "1.634"),
    "1.5D3": ("1.5e3",),
    "1_000": ("1000",),
    "0,5": ("0.5",),
    "5%": ("5,", "0.05"),
    "1.0 U": ("not detected", "1.0"),
}


@law
def cells(draw):
    """Numbers and limits as files have them: read exactly, or refused."""
    texts = draw(st.booleans())
    right = {key: (x, x) for key, x in NUMBERS.items()} | (CENSORED if texts else {})
    wrong = NO_LIMITS if texts else NO_NUMBERS + list(CENSORED)
    some = draw(st.lists(st.sampled_from(list(right)), min_size=2, max_size=5))
    odd = draw(st.one_of(st.none(), st.sampled_from(wrong)))
    some = some if odd is None else [*some, odd]
    if texts:
        setup = f'rows = tg.Observations.from_table({{"y": {some!r}}}, "y", censoring="text")\n'
        ours = "np.r_[rows.lower[:, 0], rows.upper[:, 0]]"
    else:
        content = "\n".join(["x,n", *(f'"{cell}",1' for cell in some), ""])
        setup = "import pathlib, tempfile; path = pathlib.Path(tempfile.mkdtemp()) / 't.csv'\n"
        setup += f"path.write_text({content!r}, 'utf-8')\n"
        setup += "x = tg.tables.from_file(path, ['x'])['x']"
        ours = "np.r_[x, x]"
    oracle = lambda names: (np.r_[[right[c][0] for c in some], [right[c][1] for c in some]], 0.0)
    kind = f"{'censored' if texts else 'file'}: {odd!r}"
    says = READINGS.get(odd, ())
    return Case(kind, setup, ours, oracle, 0.0, must_refuse=odd is not None, says=says)


@law
def limits_in_columns(draw):
    """Ends of what is known of values in a table, by limits, marks, ends in columns and logs."""
    some = lambda values: np.array(draw(st.lists(st.sampled_from(values), min_size=6, max_size=6)))
    either = lambda: draw(st.booleans())
    y, gap, log = some([1.0, 0.5, 2.0, 3.0, 0.25]), either(), either()
    y[0] = np.nan if gap else y[0]
    table = {"y": y}
    if draw(st.sampled_from([False, False, True])):
        words, wrong = "lower='low', upper='high', ", False
        table = {"y": y, "low": some([0.25, 0.5]), "high": some([1.0, 2.0])}
        low, high = table["low"], table["high"]
    else:
        words, wrong, left, right, least, most = "", False, y != y, y != y, np.nan, np.nan
        for side in ("left", "right"):
            if either():
                table[side], words = some([0, 0, 1]), words + f"{side}_censored=('{side}', 1), "
                wrong |= not table[side].any()  # a mark that is nowhere
        left, right = table.get("left", 0 * y) == 1, table.get("right", 0 * y) == 1
        if limit := draw(st.sampled_from(["", "1.0", "'low'"])):
            words, table["low"] = words + f"censored_low={limit}, ", some([1.0, 0.5])
            least = table["low"] if limit == "'low'" else 1.0
        if limit := draw(st.sampled_from(["", "2.0", "'high'"])):
            words, table["high"] = words + f"censored_high={limit}, ", some([2.0, 2.5])
            most = table["high"] if limit == "'high'" else 2.0
        below, above = y <= least, y >= most
        wrong |= np.any(left & right | below & right | above & left)
        low = np.where(above & ~right, most, np.where(left | below, -INF, y))
        high = np.where(below & ~left, least, np.where(right | above, INF, y))
        low, high = np.where(np.isnan(y), -INF, low), np.where(np.isnan(y), INF, high)
    parts, truth, s = ["rows.lower", "rows.upper"], [], some([0.0, 0.5, 2.0])
    more = draw(st.sampled_from(["", "noise_scale", "weights", "truncated"]))
    if more == "noise_scale":
        scale = draw(st.sampled_from(["'s'", "0.3"]))
        words, parts, wrong = words + f"noise_scale={scale}, ", [*parts, "rows.noise"], wrong or log
        truth = (s if scale == "'s'" else np.full(6, 0.3)) ** 2
    elif more == "weights":
        words, parts, truth = words + "weights='s', ", [*parts, "rows.weights"], s
        wrong |= not s.any()
    elif more:
        words += "truncated_low=0.1, truncated_high='s', "
        parts, s = [*parts, "rows.region.low", "rows.region.high"], s + 4.0
        truth = np.log(np.r_[np.full(6, 0.1), s]) if log else np.r_[np.full(6, 0.1), s]
    cells = ", ".join(f"'{key}': {x.tolist()}" for key, x in [*table.items(), ("s", s)])
    setup = f"table = {{{cells}}}\n".replace("nan", "np.nan")
    setup += f"rows = tg.Observations.from_table(table, 'y', {words}log={log}, missing={gap})"
    ends = np.r_[low, high]
    ends = np.where(ends > 0, np.log(np.maximum(ends, 1e-9)), -INF) if log else ends
    ours = f"np.r_[{', '.join(f'np.resize({part}, 6)' for part in parts)}]"
    oracle = lambda names: (np.r_[ends, truth], 0.0)
    return Case(words, setup, ours, oracle, 1e-7, must_refuse=bool(wrong))


@law
def orders(draw):
    """Ends and noise of rows by the names of columns and the labels of rows, in any order."""
    d, n = draw(st.integers(2, 3)), 4
    names = ["b", "a", "c"][:d]
    order, rows = draw(st.permutations(names)), draw(st.permutations(range(n)))
    what = draw(st.sampled_from(["upper", "noise"]))
    lower = np.arange(1.0 * n * d).reshape(n, d)
    wide, noise = np.sqrt(lower) + lower, 2.0 * np.eye(d) + np.diag(range(d)) + 0.5
    setup = f"import pandas as pd; lower = pd.DataFrame(np.arange({n * d}.0).reshape({n}, {d}))\n"
    setup += f"lower.columns = {names}; upper = lower + np.sqrt(lower)\n"
    frame = f"upper[{order}]"
    forms = [frame, f"{frame}.loc[{rows}]", f"dict({frame})", f"{frame}.to_records(index=False)"]
    if what == "upper":
        form = draw(st.sampled_from(forms))
        setup += f"rows = tg.Observations(lower, {form})"
        return Case(form, setup, "np.r_[rows.lower, rows.upper]",
                    lambda names: (np.r_[lower, wide], 0.0), 1e-15)  # fmt: skip
    setup += f"S = pd.DataFrame({noise.tolist()}, {names}, {names})\n"
    form = f"S.loc[{draw(st.permutations(names))}, {order}]"
    setup += f"rows = tg.Observations(lower, lower, noise={form})"
    return Case(form, setup, "rows.noise", lambda names: (noise, 0.0), 1e-15)


# --- Formulas -------------------------------------------------------------------------------------

SPELLED = ["x", "I(x**2)", "I(x)", "z", "x:z", "C(g)", "x:C(g)", "s", "x:s", "np.log(x)", "d"]
SPELLED += ["poly(x, 2)", "bs(x, df=4)", "center(x):z", "I(x*d)", "np.exp(-x)", "I(1/x)", "x:d"]
SPELLED += ["(x + z)**2", "(x + z + d)**3", "x/z", "{x**2}", "`x`*z", "scale(x)", "I(x)*C(g)"]
SPELLED += [
    'C(s, contr.treatment("c"))',
    "bs(x, degree=1, knots=[1.5])",
    "np.maximum(x, 1.7)",
    "0 + cr(x, df=4)",
]
LINES = "rng = np.random.default_rng({seed}); x, e = rng.uniform(0.5, 3, 60), rng.normal(size=60)\n"
LINES += "k = np.arange(60); data = pd.DataFrame({{'x': x, 'z': rng.normal(size=60), 'g': k % 3,\n"
LINES += (
    "    's': np.array(list('abc'))[k // 3 % 3], 'd': k // 9 % 2, 'y': np.log(x) + 0.5 * e}})\n"
)


def predicted(kind, mean, sigma, low):
    """A prediction of a normal outcome that is censored below."""
    if kind == "mean":
        return mean
    t = (mean - low) / sigma
    if kind == "observed":
        return norm.cdf(t)
    if kind == "recorded":
        return low + sigma * (t * norm.cdf(t) + norm.pdf(t))
    return mean + sigma * np.exp(norm.logpdf(t) - norm.logcdf(t))


@law
def spellings(draw):
    """Predictions and margins of a formula: those of its matrix by formulaic, moved in the data."""
    import formulaic

    terms = draw(st.lists(st.sampled_from(SPELLED), min_size=1, max_size=3, unique=True))
    right = " + ".join(terms)
    low = draw(st.sampled_from([None, 0.0]))
    kinds = ["mean"] if low is None else ["mean", "observed", "recorded", "mean_observed"]
    kind = draw(st.sampled_from(kinds))
    some = [v for v in "xz" if v in right.replace("exp", "")]
    some += ["s"] * bool({"s", "x:s", 'C(s, contr.treatment("c"))'} & {*terms})
    variable = draw(st.sampled_from(some or ["d"]))
    setup = "import pandas as pd\n" + LINES.format(seed=draw(st.integers(0, 10**4)))
    if "s" in right and draw(st.booleans()):
        setup += f"data['s'] = pd.Categorical(data['s'], {draw(st.permutations(list('cab')))})\n"
    outcome = "y" if low is None else "np.maximum(y, 0)"
    setup += f"fit = tg.fit_regression('{outcome} ~ {right}', data=data, "
    setup += f"{'' if low is None else 'censored_low=0.0, '}{QUIET})"
    ours = f"np.r_[fit.predict(data, '{kind}').value[:3], "
    ours += f"np.ravel(fit.margins(kind='{kind}', variables='{variable}').value)]"

    def oracle(names):
        fit, data = names["fit"], names["data"]
        spec = formulaic.model_matrix(right, data).model_spec
        assert len(spec.column_names) == len(fit.names) - 1

        def prediction(moved):
            matrix = np.asarray(spec.get_model_matrix(moved), float)
            return predicted(kind, matrix @ fit.estimates[:-1], fit.estimates[-1], low)

        if variable == "s":
            levels = list(data["s"].cat.categories if hasattr(data["s"], "cat") else "abc")
            base = "c" if "contr" in right and not {"s", "x:s"} & {*terms} else levels[0]
            each = {level: np.mean(prediction(data.assign(s=level))) for level in levels}
            changes = [each[level] - each[base] for level in levels if level != base]
            return np.r_[prediction(data)[:3], changes], 0.0
        x = data[variable].to_numpy(float)
        if variable == "d":
            change = prediction(data.assign(d=1)) - prediction(data.assign(d=0))
            return np.r_[prediction(data)[:3], np.mean(change)], 0.0
        step = min(1e-5, 0.2 * np.min(abs(x - 1.5)))  # which crosses no knot
        inward = np.where(x > np.median(x), -step, step)  # splines end with the data
        weights = {0: -25.0, 1: 48.0, 2: -36.0, 3: 16.0, 4: -3.0}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            of = lambda k: prediction(data.assign(**{variable: x + k * inward}))
            change = sum(c * of(k) for k, c in weights.items()) / (12 * inward)
        return np.r_[prediction(data)[:3], np.mean(change)], 0.0

    # A spline, its polynomial and x itself may be redundant together.
    words = f"{kind} by {variable}, y ~ {right}"
    return Case(words, setup, ours, oracle, 1e-6, refused=len(terms) > 1 or "d" in variable)
