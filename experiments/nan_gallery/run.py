"""Five ways to a NaN gradient: the naive formula beside the safe one.

Every exhibit is a pair of functions of a point and of what is trained. Values and gradients are
taken over a grid; where the naive gradient first fails, `first_nonfinite` explains it.
"""

import jax
import jax.numpy as jnp
import numpy as np

import truncgauss as tg
from truncgauss import special

ORDER = ("filter", "log1pexp", "norm", "softmax", "bump")

# ---------------------------------------------------------------- 1. the filter


def naive_sigmoid(x):
    return 1 / (1 + jnp.exp(-x))


def naive_filter(x, low, high, steepness):
    """How much of x lies between the limits: what is above one, less what is above the other."""
    return naive_sigmoid(steepness * (x - low)) - naive_sigmoid(steepness * (x - high))


def safe_filter(x, low, high, steepness):
    margins = tg.Box(jnp.atleast_1d(low), jnp.atleast_1d(high)).margins(jnp.atleast_1d(x))
    return jnp.exp(jnp.sum(tg.Tanh(steepness).log_value(margins)))


# ---------------------------------------------------------------- 2. log(1 + exp(x))


def naive_log1pexp(x):
    return jnp.log(1 + jnp.exp(x))


# ---------------------------------------------------------------- 3. the norm under a mask


def naive_masked_norm(vector):
    norm = jnp.sqrt(jnp.sum(vector**2, axis=-1))
    return jnp.where(norm > 0, norm, 0.0)


def safe_masked_norm(vector):
    norm = tg.safe.safe_norm(vector)
    return jnp.where(norm > 0, norm, 0.0)


# ---------------------------------------------------------------- 4. the softmax


def naive_cross_entropy(w, depth, share):
    """- share log p - (1 - share) log(1 - p), with (p, 1 - p) the softmax of (w ** depth, 0)."""
    return cross_entropy(deep_logits(w, depth), share)


def safe_cross_entropy(w, depth, share, bound, span):
    """The same, with the gradient bounded where it leaves and the logits where they meet."""
    logits = deep_logits(tg.safe.clipped_gradient(w, bound), depth)
    return cross_entropy(tg.safe.clipped_logits(logits, span), share)


def deep_logits(w, depth):
    power, _ = jax.lax.scan(lambda h, _: (h * w, None), jnp.ones_like(w), length=depth)
    return jnp.stack([power, jnp.zeros_like(power)])


def cross_entropy(logits, share):
    p, rest = jax.nn.softmax(logits)
    return -share * jnp.log(p) - (1 - share) * jnp.log(rest)


def training(loss, start, learning_rate, num_steps):
    """Parameter, loss and gradient at each step of gradient descent at a rate that falls to 0."""

    def step(w, rate):
        value, gradient = jax.value_and_grad(loss)(w)
        return w - rate * gradient, (w, value, gradient)

    rates = learning_rate * (1 - jnp.arange(num_steps, dtype=start.dtype) / num_steps)
    return jax.lax.scan(step, start, rates)[1]


# ---------------------------------------------------------------- 5. the bump


def naive_bump(x, width):
    u = x / width
    return jnp.where(jnp.abs(u) < 1, jnp.exp(-1 / (1 - u**2)), 0.0)


# ---------------------------------------------------------------- the gallery


def run(config):
    """Values and gradients, naive and safe, and what `first_nonfinite` says of each."""
    number = lambda value: jnp.asarray(value, float)
    low, high = number(config.limits.low[0]), number(config.limits.high[0])
    limits = (low, high, number(config.steepness))
    width = number(config.bump_width)
    in_plane = lambda norm: lambda x: norm(jnp.stack([x, jnp.zeros_like(x)]))
    results = {
        "filter": on_grid(
            f"Filter on [{low:g}, {high:g}]", "filter", "d filter / dx", config.filter_points,
            naive=lambda x: naive_filter(x, *limits), safe=lambda x: safe_filter(x, *limits),
        ),
        "log1pexp": on_grid(
            "log(1 + exp x)", "log(1 + exp x)", "derivative", config.log_points,
            naive=naive_log1pexp, safe=special.log1pexp,
        ),
        "norm": on_grid(
            "Norm of (x, 0), masked at 0", "norm", "d norm / dx", config.norm_points,
            naive=in_plane(naive_masked_norm), safe=in_plane(safe_masked_norm),
        ),
        "softmax": in_training(config.training),
        "bump": on_grid(
            f"Bump of width σ = {width:g}", "value", "d value / dσ", config.bump_points,
            at=lambda function, x: (lambda width: function(x, width), width),
            naive=naive_bump, safe=tg.safe.bump, bell=tg.safe.bell,
        ),
    }  # fmt: skip
    failed = [name for name in ORDER if count_bad(results[name], "safe")]
    return {
        **results,
        "summary": [line for name in ORDER for line in lines_of(results[name])],
        "failed": f"not finite where it should be: {', '.join(failed)}" if failed else "",
    }


def on_grid(title, ylabel, slope, grid, at=lambda function, x: (function, x), **functions):
    """Values and slopes over a grid of functions of a point, of which `at` makes one of what is
    differentiated, and its value."""
    points = np.asarray(jnp.asarray(np.linspace(grid.start, grid.stop, grid.num)))
    results = {"title": title, "xlabel": "x", "ylabel": ylabel, "slope": slope, "x": points}
    for name, function in functions.items():

        def pair(x, function=function):
            one, value = at(function, x)
            return jax.value_and_grad(one)(value)

        value, gradient = map(np.asarray, jax.jit(jax.vmap(pair))(points))
        results[name] = {"value": value, "gradient": gradient}
    first = points[first_nan(results["naive"]["gradient"])]
    return results | diagnosis(tg.first_nonfinite(*at(functions["naive"], first)))


def in_training(config):
    """Loss and gradient along the steps of a training, with bare and with guarded softmax."""
    number = lambda value: jnp.asarray(value, float)
    share = number(config.share)
    naive = lambda w: naive_cross_entropy(w, config.depth, share)
    safe = lambda w: safe_cross_entropy(w, config.depth, share, config.bound, config.span)
    results = {
        "title": f"Training a softmax of (w^{config.depth}, 0)",
        "xlabel": "step",
        "ylabel": "cross entropy",
        "slope": "d loss / dw",
        "x": np.arange(config.num_steps),
        "optimum": float(-(share * jnp.log(share) + (1 - share) * jnp.log1p(-share))),
    }
    for name, loss in (("naive", naive), ("safe", safe)):
        train = jax.jit(lambda start, loss=loss: training(
            loss, start, number(config.learning_rate), config.num_steps))  # fmt: skip
        w, value, gradient = map(np.asarray, train(number(config.start)))
        results[name] = {"value": value, "gradient": gradient, "parameter": w}
    first = results["naive"]["parameter"][first_nan(results["naive"]["gradient"])]
    return results | diagnosis(tg.first_nonfinite(naive, first))


def first_nan(gradient):
    """Where the gradient first is NaN; the first place if nowhere."""
    return int(np.argmax(np.isnan(gradient)))


def diagnosis(report):
    """The report of `first_nonfinite` as text, and in one line for the figure."""
    fed = f", fed by `{report.fed_by}`" if report.fed_by else ""
    operands = " and ".join(f"{x:g}" if isinstance(x, float) else str(x) for x in report.operands)
    kind = "NaN" if report.kind == "nan" else report.kind
    return {
        "kind": report.kind,
        "verdict": f"{kind}: `{report.primitive}` of {operands}{fed}",
        "report": str(report),
    }


def count_bad(exhibit, name):
    """Points at which the value or the gradient is not finite."""
    pair = exhibit[name]
    return int(np.sum(~np.isfinite(pair["value"]) | ~np.isfinite(pair["gradient"])))


def lines_of(exhibit):
    """How often either formula is not finite, and what `first_nonfinite` reports."""
    total = len(exhibit["x"])
    unit = "steps" if exhibit["xlabel"] == "step" else "points"
    counts = [f"{name} at {count_bad(exhibit, name)}" for name in ("naive", "safe")]
    yield f"{exhibit['title']}: not finite {' and '.join(counts)} of {total} {unit}"
    if "optimum" in exhibit:
        last, least = exhibit["safe"]["value"][-1], exhibit["optimum"]
        yield f"  the guarded loss ends at {last:.5f}, the least possible is {least:.5f}"
    yield from (f"  {line}" for line in exhibit["report"].splitlines())
