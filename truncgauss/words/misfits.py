"""Sentences about wrong calls, which only these load: arguments that a function has not, and values
of another kind than an argument takes, of which Python, NumPy or JAX speak in their own words."""

import dis
import fnmatch
import inspect
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from truncgauss.words.elsewhere import ELSEWHERE, HIGH, INSTEAD, LOW, OF_FITS
from truncgauss.words.names import closest, is_key
from truncgauss.words.numbers import is_float

RAISE = dis.opmap["RAISE_VARARGS"]
# Packages whose errors wrong arguments end in; those of a type checker or a user's own class stay.
BELOW = {
    "builtins",
    "decimal",
    "jax",
    "jaxlib",
    "matplotlib",
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
}
# Arguments of any annotation that take numbers alone, and those that take what has a name here.
NUMBERS = set(
    "covariance covariances df estimates fall gradient gradient_norm gradient_stderr high highest "
    "loc locs loss low lower lowest mean noise null num_rows num_trials observed scale scatter "
    "sigma standard_errors stderr upper value value_stderr values weight weights x y".split()
)
KINDS = {
    "key": "a random key, such as jax.random.key(0)",
    "region": "a region, such as tg.Box(low, high)",
    "shape": "a region, such as tg.Box(low, high)",
    "method": "a method, such as tg.Automatic()",
    "observations": "tg.Observations",
    "known": "tg.Observations",
}
ONE_OBSERVATION = (
    "The weights add up to 1: all rows together count as one observation, by which the standard "
    "errors, AIC and BIC go. A weight says how often its row counts: multiply them by the number "
    "of rows."
)
ARRAYS, NUMBER, COUNT = "numbers or an array of them", "one number", "a whole number"
FLAG = "True or False"
TRUTH = " True and False are no numbers here: write the number that is meant, such as 1.0."
# Arguments that take a function, an object of this package or a constraint, and say so themselves.
ANYTHING = set(
    "constraints distribution edge fit fun function large observed optimizer prior result small "
    "start terms".split()
)
# Classes and functions that keep no labels of pandas, by which they could be compared with a mean.
BY_POSITION = set(
    "Ball Directed Ellipsoid Injections LowRank Markov Polyhedron ScaleTril from_matrix "
    "Selection.probit Selection.logistic".split()
)
# What arguments are that are left out.
MEANING = {
    "region": "the region, such as tg.Box(low, high)",
    "loc": "the mean, of shape (d,)",
    "covariance": "the covariance matrix, of shape (d, d)",
    "key": "a random key, such as jax.random.key(0)",
    "num_samples": "the number of draws",
    "high": "the upper bound, jnp.inf where there is none",
    "low": "the lower bound, -jnp.inf where there is none",
    "radius": "one positive number",
    "width": "the distance over which an edge rises, a positive number",
    "level": "the threshold of the field",
    "num_components": "how many components the mixture has",
    "start": "the parameters to start from, an array or a tree of arrays",
    "dimension": "the number of coordinates of x",
    "df": "the degrees of freedom, which come first",
    "num_total": "the number of all draws, found or not",
    "cov_diag": "the variances beside the factors, of shape (d,)",
    "indices": "the columns of the entries, of a sparse matrix Q.indptr, Q.indices, Q.data",
    "initial_scale": "the standard deviation of the first coordinate",
    "scale": "the length over which a process changes; of Directed the deviation given neighbours",
    "columns": 'the names of the outcomes, such as columns=["y"]',
    "scatter": "num_rows * numpy.cov(rows.T, ddof=0)",
}
# Likewise of `fit_limits`.
OF_LIMITS = {
    "observed": "the share of draws that each region held, between 0 and 1",
    "start": 'the limits to begin with, such as start={"low": [-1.0], "high": [1.0]}, one of each '
    "for a coordinate",
}
# What functions that users write are called with.
TAKES = {
    "objective": "the parameters alone, and a key where key= is given; for others write "
    "lambda params: objective(params, data)",
    "kernel": "two points, such as lambda x, y: jnp.exp(-jnp.abs(x - y).sum())",
    "fun": "the arguments that follow it, as in first_nonfinite(fun, x)",
}
# How a function with a rule of derivatives of its own is given a number, by argument.
PASSED = {
    "edge": "edge=lambda margin: mine(margin, width)",
    "region": "tg.Selection(lambda x: mine(x, width), dimension)",
    "objective": "lambda params: mine(params['x'], params['width'])",
}
CUSTOM = "custom_jvp_call", "custom_vjp_call"
MOST_SEEN = 200  # objects in which such a function is looked for
# Arguments that take names or a list of them.
LISTS = {"columns", "covariates", "discrete", "labels", "levels", "names", "variables"}
# What distributions cannot compute, and how to get it from draws.
ABSENT = {
    "rsample": ": its draws, d.sample(key, (n,)), carry no derivatives; tg.weighted_samples draws "
    "with weights that do",
    "cdf": ": take the share of draws, (d.sample(key, (100_000,)) <= x).all(-1).mean(0)",
    "icdf": ": take quantiles of draws, jnp.quantile(d.sample(key, (100_000,)), q, axis=0)",
    "entropy": "; average -log_prob over draws instead",
    "mean": ": take that of draws, d.sample(key, (100_000,)).mean(0)",
    "variance": ": take that of draws, d.sample(key, (100_000,)).var(0)",
    "mode": ": take the draw of the largest log_prob, or maximise log_prob",
}
# What other packages call attributes of values that have these, and what to write.
ATTRIBUTES = [
    ("ppf quantile percentile", "icdf", "d.icdf(q)"),
    ("isf", "icdf", "d.icdf(1 - q)"),
    ("median", "icdf", "d.icdf(0.5)"),
    ("interval", "icdf", "d.icdf(jnp.array([0.025, 0.975]))"),
    ("pdf pmf density likelihood", "log_prob sample", "jnp.exp(d.log_prob(x))"),
    ("logpdf log_pdf logp lpdf log_density", "log_prob sample", "d.log_prob(x)"),
    ("rvs draw draws simulate random random_state", "sample", "d.sample(jax.random.key(0), (n,))"),
    ("std stddev sd stdev", "variance", "jnp.sqrt(d.variance)"),
    ("var", "variance", "d.variance"),
    ("sf survival survival_function", "cdf", "1 - d.cdf(x)"),
    ("logcdf log_cdf", "cdf", "jnp.log(d.cdf(x))"),
    ("logsf log_sf", "cdf", "jnp.log1p(-d.cdf(x))"),
    ("moment expect", "sample", "the average over draws, d.sample(jax.random.key(0), (n,))"),
    ("stats", "variance", "d.mean and d.variance"),
    ("fit mle", "variance", "tg.fit_truncated_normal(data, low, high)"),
    ("value val prob p probability exp item tolist", "log_prob stderr", "jnp.exp(e.log_prob)"),
    ("logprob logp log_probability log_likelihood ll loglik", "log_prob stderr", "e.log_prob"),
    ("std sd se error standard_error std_error err tol", "log_prob stderr", "e.stderr"),
    ("quantile q level x item", "value stderr", "q.value"),
    ("std sd se error standard_error std_error err", "value stderr", "q.stderr"),
    ("variance var", "covariance_stderr", "jnp.diagonal(m.covariance, axis1=-2, axis2=-1)"),
    ("std sd", "covariance_stderr", "jnp.sqrt(jnp.diagonal(m.covariance, axis1=-2, axis2=-1))"),
    ("loc mu", "covariance_stderr", "m.mean"),
    ("cov sigma", "covariance_stderr", "m.covariance"),
    ("log_prob value", "estimate gradient", "g.estimate.log_prob"),
    ("grad gradients", "estimate gradient", "g.gradient"),
    ("n nobs n_rows size count", "num_rows", "num_rows"),
    (
        "values data rows y",
        "lower upper num_rows",
        "lower, which equals upper where a row is exact",
    ),
    ("x", "loss_trace", "params"),
    ("fun fval", "loss_trace", "loss"),
    ("success", "converged", "converged"),
    ("message status", "reason", "reason"),
    ("nit niter n_iter nfev", "num_steps", "num_steps"),
    ("jac grad", "loss_trace", "gradient_norm"),
    ("hess_inv cov covariance", "parameter_covariance", "parameter_covariance"),
    ("confint conf_int intervals interval ci", "low high", "low and high"),
    ("stderr std_error se std sd error errors bse", "value standard_errors", "standard_errors"),
    (
        "effects effect mean estimate estimates values margins predicted_mean",
        "value standard_errors",
        "value",
    ),
    (
        "pvalue pvalues p_value p_values pval",
        "value standard_errors",
        "2 * scipy.stats.norm.sf(abs(x.value / x.standard_errors)), of Wald's test against 0",
    ),
    ("interval intervals ci confint conf_int low high", "value wald", "wald() or profile()"),
    ("to_csv to_excel to_dict to_html to_latex", "to_frame", "to_frame(), and that of the result"),
    ("draws draw x value values sample", "samples acceptance_rate", "samples"),
    ("ess n_eff neff", "samples acceptance_rate", "effective_sample_size"),
]
# What a fit has for its own use, and how alike a name must be to be the one that was meant.
INTERNAL = set(
    "array_constants best centred coordinates coverages_along delta edges_beyond errors_from "
    "first_cuts free_errors impossible_intervals loss names_of_start profile_along profile_fall "
    "range_of remarks seconds_of_profiles seen_word size_in_words small_sample spreads untestable "
    "with_intervals with_labels without_rows".split()
)
ALIKE = 0.75
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def explain(
    owner: str,
    error: Exception,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Raise an error of a call again with a sentence on what to write: a TypeError of Python where
    the arguments do not fit the signature, and any that this package did not raise itself where an
    argument is of another kind than the function takes."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        text = str(error).replace(".__init__()", "()").partition(". Did you mean")[0].rstrip(".")
        text = re.sub(r"^\w+\.(?=\w+\(\))", "", text)  # the class of a method
        of_class = {x.__name__ for x in type(args[0]).__mro__} if args else set()
        if (name := text.partition("(")[0]) in of_class:  # of a class that is made of another
            text = text.replace(name, type(args[0]).__name__, 1)
        key = args[0] if args else kwargs.get("key")
        if [*signature.parameters][:1] == ["key"] and not is_key(key):
            text = f"{text.partition('(')[0]}: the first argument must be a random key, such as "
            text += f"jax.random.key(0), got {key!r:.60}"
        raise TypeError(f"{text}. {advice(signature, args, kwargs)}") from None
    explain_limits(owner, error, bound.arguments)
    if is_own(error) or type(error).__module__.partition(".")[0] not in BELOW:
        return
    taken = {
        name: (signature.parameters[name], value)
        for name, value in bound.arguments.items()
        if name not in ("self", "cls")
    }
    values = {name: value for name, (_, value) in taken.items()}
    explain_rule(owner, error, values)
    explain_of_user(owner, error, values)
    # Arguments of a fit, or beside a table, that may name a column or have a value for each.
    named = {*taken} if {"data", "table"} & {*taken} else set()
    named |= {"low", "high", "weights", "noise"} if owner.startswith("fit_") else set()
    wrong = {
        name: got
        for name, (parameter, value) in taken.items()
        if (got := misfit(parameter, value))
        and not (name in named and parameter.annotation is Any and isinstance(value, str | Mapping))
    }
    for name, got in wrong.items():
        parameter, value = taken[name]
        kind = kind_of(parameter)
        others = (x for x in wrong if x != name and not misfit(parameter, taken[x][1]))
        turned = next((x for x in others if not misfit(taken[x][0], value)), None)
        said = f"must be {kind}, got {got}" if kind else f"cannot be {got}"
        cure = f" Exchange it with {turned}." if turned else advice_on(value, parameter, signature)
        raise (ValueError if isinstance(error, ValueError) else TypeError)(
            f"{owner}: {name} {said}.{cure}"
        ) from error


def explain_limits(owner: str, error: Exception, taken: Mapping[str, Any]) -> None:
    """Raise again an error of limits that are equal in single precision alone."""
    text, cure = str(error), " Condition on a coordinate"
    low, high = taken.get("low"), taken.get("high")
    if cure not in text or no_numbers(low) or no_numbers(high) or low is None or high is None:
        return
    from numpy import all as every_one
    from numpy import asarray

    try:
        differ = bool(every_one(asarray(low, "float64") < asarray(high, "float64")))
    except (TypeError, ValueError):
        return
    if differ:
        raise ValueError(
            f"{text.partition(cure)[0]} They are equal in float32 alone, which has seven digits: "
            'write jax.config.update("jax_enable_x64", True) at the start, or take a number such '
            "as the mean from all of them."
        ) from None


def explain_of_user(owner: str, error: Exception, taken: Mapping[str, Any]) -> None:
    """Raise again an error of a function of the user's that was called with other arguments than it
    takes, or that JAX cannot trace, and one of a start that is a list."""
    text, start = str(error), taken.get("start")
    for name, function in taken.items():
        if not callable(function) or name not in TAKES:
            continue
        called = getattr(function, "__qualname__", type(function).__name__)
        if isinstance(error, TypeError) and re.match(
            rf"{re.escape(called)}\(\) (missing|takes)", text
        ):
            raise TypeError(f"{owner}: {name} is called with {TAKES[name]}: {text}.") from error
        if type(error).__name__ in ("TracerArrayConversionError", "ConcretizationTypeError"):
            raise TypeError(
                f"{owner}: {name} cannot be traced by JAX. Write it with jax.numpy instead of "
                "numpy, and without float or int."
            ) from error
    if isinstance(error, KeyError) and isinstance(start, Mapping) and "objective" in taken:
        there = ", ".join(map(repr, start))
        raise KeyError(
            f"{owner}: the objective asks for {text}, which start has not: it has {there}."
        ) from error
    if isinstance(start, list | tuple) and start and all(map(is_real, start)):
        raise TypeError(
            f"{owner}: start is a {type(start).__name__} of {len(start)} parameters, each a number "
            f"by itself, and so the function gets one. For one vector write jax.numpy.array({start}"
            f", float). ({text:.80})"
        ) from error


def explain_rule(owner: str, error: Exception, taken: Mapping[str, Any]) -> None:
    """Raise again an error of a function with a rule of derivatives of its own that closes over a
    traced value, which no rule may do: of an edge, a selection or an objective."""
    text, kind = str(error), type(error).__name__
    sure = kind == "CustomVJPException" or ("No constant handler" in text and "Tracer" in text)
    if not (sure or kind == "UnexpectedTracerError" or "compiler_options" in text):
        return
    parts = {"edge": taken.get("edge")}
    for name, value in taken.items():  # of a method its edge, before what holds both
        parts |= {"edge": value.edge} if hasattr(value, "edge") else {name: value}
    having = [name for name, value in parts.items() if has_rule(value)]
    if having or sure:
        name = having[0] if having else "objective" if "objective" in taken else "function"
        name = {"EdgeFunction": "edge", "Selection": "region"}.get(owner, name)
        raise TypeError(
            f"{owner}: {name}: a function with a rule of its own (jax.custom_jvp or "
            "jax.custom_vjp) closes over a traced number; pass it as an argument: "
            f"{PASSED.get(name, 'lambda x: mine(x, width)')}. The rule then has the derivative by "
            "that argument too."
        ) from error


def has_rule(value: Any) -> bool:
    """Whether a function, or one in an object, has a rule of derivatives of its own."""
    stack: list[Any] = [value]
    seen: list[Any] = []
    while stack and len(seen) < MOST_SEEN:
        part = stack.pop()
        if part is None or isinstance(part, type | types.ModuleType) or id(part) in map(id, seen):
            continue
        seen.append(part)
        if type(part).__name__ in ("custom_jvp", "custom_vjp"):
            return True
        equations = getattr(part, "eqns", [])
        if any(each.primitive.name.startswith(CUSTOM) for each in equations):
            return True
        stack += [x for each in equations for x in each.params.values() if hasattr(x, "eqns")]
        stack += [cell.cell_contents for cell in getattr(part, "__closure__", None) or ()]
        stack += [*part] if isinstance(part, list | tuple) else []
        stack += [*getattr(part, "__dict__", {}).values()]
    return False


def is_own(error: BaseException) -> bool:
    """Whether a statement of this package raised an error, rather than what it calls."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return True
    code, name = trace.tb_frame.f_code, trace.tb_frame.f_globals.get("__name__", "")
    return name.partition(".")[0] == "truncgauss" and code.co_code[trace.tb_lasti] == RAISE


def kind_of(parameter: inspect.Parameter) -> str:
    """The kind of values that an argument takes, by name, default and annotation; empty for any."""
    note, default = parameter.annotation, parameter.default
    text = str(note)
    if parameter.name in KINDS:
        return KINDS[parameter.name]
    if note is bool:
        return FLAG
    numbers = parameter.name in NUMBERS and (note is Any or "Array" in text)
    if "Real[" in text or "ArrayLike" in text or numbers:
        return ARRAYS
    if parameter.name in LISTS:
        return "a list"
    if note is int:
        return COUNT
    if note is float or text in ("float | None", "typing.Optional[float]"):
        return NUMBER
    if note is str:
        return f"a text, such as {default!r}" if isinstance(default, str) and default else "a text"
    return "a function" if text.startswith("collections.abc.Callable") else ""


def misfit(parameter: inspect.Parameter, value: Any) -> str:
    """A value in words, if an argument takes none of its kind; empty if it may."""
    kind, default = kind_of(parameter), parameter.default
    table = isinstance(value, Mapping) and parameter.name in ("values", "lower", "upper")
    if table or isinstance(value, str) and isinstance(default, str):
        return ""
    if value is default or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
        return ""
    named = any(x.__name__ in str(parameter.annotation) for x in type(value).__mro__[:-1])
    if named and not is_typed_key(value):
        return no_numbers(value) if kind == ARRAYS and hasattr(value, "dtype") else ""
    has_axes = bool(getattr(value, "ndim", 0))
    fits = {
        FLAG: lambda: type(value).__name__ in ("bool", "bool_"),
        COUNT: lambda: isinstance(value, int) or str(getattr(value, "dtype", "")).startswith("int"),
        NUMBER: lambda: not (no_numbers(value) or isinstance(value, list | tuple) or has_axes),
        ARRAYS: lambda: not no_numbers(value) or is_covariance(parameter, value),
        "a list": lambda: hasattr(value, "__iter__") and not is_typed_key(value),
        "a function": lambda: callable(value),
        KINDS["key"]: lambda: is_key(value),
        KINDS["region"]: lambda: callable(value) or hasattr(value, "shape_name"),
        KINDS["method"]: lambda: hasattr(value, "check_kind") and not isinstance(value, type),
        KINDS["observations"]: lambda: hasattr(value, "num_rows"),
    }
    if kind.startswith("a text"):
        good = isinstance(value, str)
    elif kind:
        good = fits[kind]()
    else:
        good = not implausible(value) or parameter.name in ANYTHING
        good &= value is not None or default is not parameter.empty
    return "" if good else described(value)


def is_covariance(parameter: inspect.Parameter, value: Any) -> bool:
    """Whether a value is a covariance by its factor, for an argument that takes one."""
    return "covar" in parameter.name and hasattr(value, "scale_tril")


def implausible(value: Any) -> bool:
    """Whether no argument takes a value of its kind, but those whose names say so."""
    kinds = (type, types.ModuleType, set, frozenset, complex, range, *FUNCTIONS)
    if isinstance(value, kinds) or type(value) is object:
        return True
    if isinstance(value, list | tuple):
        return no_numbers(value).startswith("lists")
    return is_typed_key(value) or hasattr(value, "shape_name") or hasattr(value, "check_kind")


def is_typed_key(value: Any) -> bool:
    return str(getattr(value, "dtype", "")).startswith("key")


def is_real(value: Any) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, str | bytes)


def no_numbers(value: Any) -> str:
    """A value in words, if it cannot be read as real numbers; empty if it can."""
    if isinstance(value, list | tuple):
        wrong = next(filter(None, map(no_numbers, value)), "")
        if wrong:
            return wrong if wrong.startswith("the text") else f"a list with {wrong} in it"
        lengths = {
            len(x) if hasattr(x, "__len__") and bool(getattr(x, "ndim", 1)) else 0 for x in value
        }
        return "lists of different lengths" if len(lengths) > 1 else ""
    if isinstance(value, type | types.ModuleType):
        return described(value)
    value = value.to_numpy() if hasattr(value, "iloc") else value
    dtype = getattr(value, "dtype", None)
    if isinstance(value, bool | int | float):
        return ""
    if dtype is None:  # a number of Decimal's, a column of Arrow's, a buffer
        ways = "__float__", "__array__", "typecode"
        known = isinstance(value, range) or any(hasattr(value, way) for way in ways)
        return "" if known else described(value)
    if is_typed_key(value):
        return described(value)
    if getattr(dtype, "kind", "f") == "O" and all(map(is_real, value.ravel())):
        return ""  # numbers that are held one by one
    if getattr(dtype, "kind", "f") in "OUScMmV" and not str(dtype).startswith("bfloat"):
        return described(value)
    mask = getattr(value, "mask", False)  # of NumPy's masked arrays
    return "masked numbers" if getattr(mask, "any", bool)() else ""


def refuse_leaf(leaf: Any, name: str) -> None:
    """Raise an error for what is no number of JAX, or an array of them, and says it is so.

    Raises:
        ValueError: for text, complex or masked numbers, and whole ones beyond the largest float64.
        TypeError: for NumPy's long doubles.
    """
    dtype: Any = getattr(leaf, "dtype", None)
    if isinstance(leaf, str | bytes) or getattr(dtype, "kind", "") in ("U", "S"):
        text = str(leaf if isinstance(leaf, str | bytes) else leaf.ravel()[0])
        cure = f"Convert it, such as by float({text!r})." if is_float(text) else "Convert it."
        raise ValueError(f"{name} must be numbers, got the text {text!r}. {cure}")
    if type(leaf).__name__ in ("bool", "bool_"):
        raise ValueError(f"{name} must be numbers, got {leaf}.{TRUTH}")
    if getattr(dtype, "kind", "") == "f" and dtype.itemsize > 8:
        raise TypeError(
            f"{name} must be numbers in float64 or float32, got {dtype}, which JAX does not "
            "have. Convert it by numpy.asarray(x, float)."
        )
    if isinstance(leaf, int):
        raise ValueError(
            f"{name} must be numbers below 1.8e308, the largest of float64, got a whole number "
            f"of {leaf.bit_length()} bits. For no limit write jnp.inf."
        )
    refuse_no_numbers(f"{name} must be real numbers or an array of them", leaf)
    owner, axes = name.partition(":")[0], [*getattr(leaf, "axes", [])]
    labelled = [x.to_list() for x in axes if x.to_list() != list(range(len(x)))]
    if labelled and owner in BY_POSITION:
        raise ValueError(
            f"{name} goes by position, and would lose its labels {labelled[0]!r:.60}. Bring it "
            "into the order of loc, and give its .to_numpy()."
        )


def check_start(what: str, start: Mapping[str, Any]) -> None:
    """Raise ValueError for a start of a fit with a parameter that is no number or array of them, or
    a list of such, as of coefficients of several outcomes."""
    for name, value in start.items():
        for part in value if isinstance(value, list | tuple) else (value,):
            refuse_no_numbers(f"{what}: start: {name} must be numbers or an array of them", part)


def refuse_names_as_points(at: Any) -> None:
    """Raise ValueError for names of covariates in the place of the points of `margins`."""
    if isinstance(at, str) or all(isinstance(x, str) for x in at):
        raise ValueError(
            'margins: at says where effects are taken: "mean", {name: value} or a table of points; '
            f"got {at!r}. Which covariates they are of is variables={at!r}."
        )


def refuse_duplicates(table: Any, error: str) -> NoReturn:
    """Raise ValueError for a table of which several columns have one name, by narwhals' message."""
    names = re.findall(r"- (.*?) (\d+) times", error)
    shown = ", ".join(f"{name} ({count} columns)" for name, count in names[:5])
    more = f" and {len(names) - 5} more" if names[5:] else ""
    cure = ", or keep the first of each: data.loc[:, ~data.columns.duplicated()]"
    raise ValueError(
        f"data: each column needs a name of its own, but several share {shown}{more}. Rename them"
        f"{cure * hasattr(table, 'loc')}."
    ) from None


def refuse_value(value: Any, name: str) -> NoReturn:
    """Raise an error for what JAX takes for no array of real numbers."""
    got = no_numbers(value) or f"a {type(value).__name__}, {value!r:.60}"
    array = value is None or isinstance(value, list | tuple) or hasattr(value, "dtype")
    real = "real " * ("complex" in got)
    raise (ValueError if array else TypeError)(
        f"{name} must be {real}numbers or an array of them, got {got}.{remedy(value)}"
    )


def refuse_no_numbers(needed: str, value: Any) -> None:
    """Raise ValueError, with what was needed, for what cannot be read as real numbers."""
    if got := no_numbers(value):
        raise ValueError(f"{needed}, got {got}.{remedy(value)}")


def described(value: Any) -> str:
    """A value in words."""
    if isinstance(value, str | bytes | bool | int | float | complex):
        text = f"the text {value!r:.60}" if isinstance(value, str | bytes) else repr(value)
        return f"the complex number {text}" if isinstance(value, complex) else text
    if value is None or type(value).__name__ in ("bool_", "float64", "int64"):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, types.ModuleType):
        return f"the module {value.__name__}"
    if isinstance(value, FUNCTIONS):
        return "a function"
    if is_typed_key(value):
        return "a random key"
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    kind = getattr(dtype, "kind", "")
    if kind == "O":
        some = [*filter(lambda x: not is_real(x), value.ravel())][:1]
        return f"an array of objects, such as {some[0]!r:.40}" if some else "an array of objects"
    if kind in ("U", "S"):
        return f"the text {str(value.ravel()[0])!r:.60}" if value.size else "texts"
    words = {"c": "complex numbers", "M": "dates", "m": "durations", "V": "an array with columns"}
    if kind in words:
        return words[kind]
    if isinstance(value, list | tuple):
        return no_numbers(value) or f"a {type(value).__name__} of {len(value)}"
    if dtype is not None and shape is not None:
        return f"an array of shape {tuple(shape)}"
    if isinstance(value, dict):
        return f"a dictionary, {value!r:.60}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeio' else 'a'} {name}"


def absence(value: Any, name: str) -> str:
    """A sentence on a name that a value has not, with what to write instead."""
    kind, cure = type(value), ""
    text = f"{kind.__name__!r} object has no attribute {name!r}"
    every = {x for x in dir(value) if not x.startswith("_")} - INTERNAL
    if "derived" in every:
        return absence_of_fit(value, name, every)
    for words, needed, instead in ATTRIBUTES:
        if name in words.split() and every.issuperset(needed.split()):
            method: Any = getattr(kind, needed.split()[0], None)
            method = getattr(method, "fget", method)
            away = getattr(method, "__module__", "") == "truncgauss.distributions.supports"
            if away and method.__name__ in ABSENT:
                return f"{text}. {lacking(value, method.__name__)}"
            return f"{text}. Write {instead}."
    parameters = [*inspect.signature(kind).parameters]
    fields = [x for x in getattr(kind, "_fields", parameters) if x in every - {"validate_args"}]
    close = closest(name, [*fields, *sorted(every - {*ABSENT})], ALIKE)
    if "distributions" in kind.__module__:
        fields += ["log_prob", "sample", "mean", "variance"]
    cure = f"Did you mean {close!r}?" if close else f"It has {', '.join(fields)}." if fields else ""
    return f"{text}. {cure}".rstrip()


def absence_of_safe(name: str) -> str:
    """Likewise of `tg.safe`, of a function that others have in such a module."""
    text = (
        f"tg.safe has no {name!r}. It has bell, bump, clipped_gradient, clipped_logits, safe_norm"
    )
    if name in ("norm", "linalg_norm", "hypot", "distance"):
        return f"tg.safe has no {name!r}. It is safe_norm(x, axis)."
    if name in ("log", "sqrt", "div", "divide", "power", "reciprocal", "where", "safe_log"):
        return (
            f"{text}. Elsewhere make the argument safe before the function and choose after it: "
            "jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1.0)), -jnp.inf)."
        )
    return f"{text}; functions of logarithms are in tg.special."


def absence_of_fit(fit: Any, name: str, every: set[str]) -> str:
    """Likewise of a fit, whose estimates have names of their own."""
    text = f"{type(fit).__name__} has no {name!r}."
    for words, needed, sentence in OF_FITS:
        if name in words.split() and every.issuperset(needed.split()):
            return f"{text} {sentence}"
    close = closest(name, sorted(every), ALIKE)
    return (
        f"{text} {f'Did you mean {close!r}? ' * bool(close)}Its estimates are `estimates`, called "
        "`names`; one of them, with its error, is derived(name)."
    )


def refuse_operation(value: Any, operation: str, *others: Any) -> Any:
    """Raise TypeError for arithmetic with a tuple of results; what tuples have stays."""
    if (operation == "add" and type(others[0]) is tuple) or others == ("",):
        return getattr(tuple, f"__{operation}__")(value, *others)
    kind, fields = type(value).__name__, type(value)._fields
    if operation == "getitem":
        close = closest(others[0], fields, ALIKE) or fields[0]
        raise TypeError(
            f"{kind} has no items by name, as [{others[0]!r}]. It has {', '.join(fields)}: write "
            f"x.{close}."
        )
    write = "jnp.exp(x.log_prob)" if fields[0] == "log_prob" else f"x.{fields[0]}"
    article, names = "An" if kind[0] in "AEIOU" else "A", f"{', '.join(fields[:-1])} and"
    raise TypeError(
        f"{article} {kind} is not one number: it has {names} {fields[-1]}. Take one of them, such "
        f"as {write}."
    )


def refuse_method(value: Any, name: str) -> NoReturn:
    """Raise NotImplementedError for what a distribution cannot compute, with how to get it."""
    raise NotImplementedError(lacking(value, name))


def lacking(value: Any, name: str) -> str:
    """A sentence on what a distribution cannot compute, and how to get it from draws."""
    all_ = ".all(-1)" if value.event_shape else ""
    return f"{type(value).__name__} has no {name}{ABSENT[name].replace('.all(-1)', all_)}."


def advice_on(value: Any, parameter: inspect.Parameter, signature: inspect.Signature) -> str:
    """A sentence, after a blank, on what to write in the place of a value; or nothing."""
    for name, mark in (("region", "shape_name"), ("method", "check_kind"), ("key", "")):
        of_kind = is_typed_key(value) if name == "key" else hasattr(value, mark)
        if of_kind and name in signature.parameters and not isinstance(value, type):
            return f" Give it as {name}=."
    if value is None and parameter.default is not parameter.empty:
        return f" Leave it out for its default, {parameter.default!r:.60}."
    return remedy(value)


def remedy(value: Any) -> str:
    """A sentence, after a blank, on what to write in the place of no number; or nothing."""
    got = no_numbers(value)
    if got.startswith("the text"):
        text = got.removeprefix("the text ")
        return f" Convert it, such as by float({text})." if is_float(text.strip("'")) else ""
    if isinstance(value, FUNCTIONS):
        return " Call the function, and give its result."
    if isinstance(value, type):
        return f" Write {value.__name__}(...), an object of the class."
    if "complex" in got or isinstance(value, complex):
        return " Give the real part, numpy.real(x), if the imaginary one is 0."
    if got != "None" and "None" in got:
        return " Where a value is missing write NaN."
    if got == "masked numbers":
        return " Leave out the masked values, or give x.filled(numpy.nan)."
    return ""


def advice(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A sentence on what to write where arguments do not fit."""
    known = [name for name in signature.parameters if name not in ("self", "cls")]
    unknown = [name for name in kwargs if name not in known]
    word = unknown[0] if unknown else ""
    others = {name: closest(name, known, 0.7) for name in unknown}
    region = signature.parameters.get("region")
    bounds = [name for name in unknown if ELSEWHERE.get(name) in (LOW, HIGH)]
    if bounds and region and region.default is region.empty:
        ours = [f"{name} is {close}" for name, close in others.items() if close]
        first = f"{', '.join(ours)}. " if ours else ""
        return f"{first}Bounds are one argument: tg.Box(low, high), as the region."
    if said := {name: text for name in unknown if (text := instead_of(name, known))}:
        if word in said:
            each = (f"{name}: {text}" for name, text in said.items())
            return " ".join(each) if len(said) > 1 else said[word]
    close = others.pop(word, "")
    if close.startswith("censored_") and not word.startswith("censor"):
        return (
            f"{word} is {close} where what lies beyond it is recorded at it (censored), and "
            f"{close.replace('censored', 'truncated')} where nothing beyond it was observed."
        )
    if known[:2] == ["lower", "upper"] and not {*kwargs} - {*known}:
        return "Outcomes that are known exactly are tg.Observations.exact(values)."
    more = "".join(f" Likewise {name} is {near}." for name, near in others.items() if near)
    return f"Did you mean {close}?{more}" if close else taken_by(signature, args, kwargs)


def instead_of(word: str, known: Sequence[str]) -> str:
    """A sentence on what stands here for an argument of other packages, or nothing."""
    for words, needed, instead in INSTEAD:
        if any(fnmatch.fnmatchcase(word, each) for each in words.split()) and needed <= {*known}:
            return instead.format(word=word)
    return ""


def taken_by(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A sentence on the arguments that there are, and on those that lack."""
    every = [x for x in signature.parameters.values() if x.name not in ("self", "cls")]
    plain = [x.name for x in every if x.kind is x.POSITIONAL_OR_KEYWORD]
    named = [x.name for x in every if x.kind is x.KEYWORD_ONLY]
    words = ", ".join(plain) + " and by name " * bool(plain and named) + ", ".join(named)
    try:
        bound = signature.bind_partial(*args, **kwargs).arguments
        lacking = [x.name for x in every if x.default is x.empty and x.name not in bound]
    except TypeError:
        lacking = []
    if every and every[0].name == "key" and args and not is_key(args[0]):
        lacking = []  # the others moved by one place
    meaning = MEANING | (OF_LIMITS if {"observed", "num_trials"} <= {*plain} else {})
    more = "".join(f" {name} is {meaning[name]}." for name in lacking if name in meaning)
    return f"It takes {words or 'no arguments'}.{more}"
