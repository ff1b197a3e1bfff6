"""A shift and a pair of limits, each recovered from the counts that it produced.

First, draws of a Gaussian with an unknown mean are counted in known regions; then draws of known
Gaussians are counted inside unknown limits. Repetitions check the standard errors, and two data
sets that do not identify the parameters show what the fits report then.
"""

import jax.numpy as jnp
import numpy as np

import truncgauss as tg
from truncgauss.execution.progress import bar


def run(config):
    """Recovered parameters with standard errors, traces, residuals, pulls of repetitions."""
    questions = {"shift": Shift(config), "limits": Limits(config)}
    results = {"num_trials": config.num_trials}
    for number, (name, question) in enumerate(questions.items()):
        rng = np.random.default_rng((config.seed, number))
        first = recovered(question, rng, config)
        pulls = [
            recovered(question, rng, config)["pull"]
            for _ in bar(range(config.num_repeats), f"{name} again", True)
        ]
        results[name] = first | {"names": np.array(question.names), "pulls": np.array(pulls)}
    unanswered, notes = without_answer(questions, config)
    results |= {"unanswered": unanswered, **axes_of(config)}
    if len(config.gaussian.loc) == 1:
        results["curve"] = fitted_curve(questions["limits"], results["limits"]["params"])
    failed = [name for name in questions if not results[name]["converged"]]
    return results | {
        "summary": [*summary(results), *notes],
        "metrics": [
            {"fit": name, "step": step, "loss": float(loss)}
            for name in questions
            for step, loss in enumerate(results[name]["loss"])
        ],
        "failed": f"no convergence: {', '.join(failed)}" if failed else "",
    }


class Shift:
    """The shift of the mean, from counts in known regions."""

    def __init__(self, config):
        dtype = jnp.dtype(config.dtype)
        self.loc = jnp.asarray(config.gaussian.loc, dtype)
        self.covariance = jnp.asarray(config.gaussian.covariance, dtype)
        self.regions = tg.Box(
            jnp.asarray([region.low for region in config.regions], dtype),
            jnp.asarray([region.high for region in config.regions], dtype),
        )
        self.truth = np.array(config.shift)
        self.names = [numbered("shift", j, len(self.truth)) for j in range(len(self.truth))]
        self.num_steps = config.num_steps

    def fractions(self, params):
        return tg.fraction_not_truncated(self.loc + params, self.covariance, self.regions)

    def fit(self, counts, num_trials):
        fit = tg.fit_shift(
            counts, self.loc, self.covariance, self.regions, num_trials, num_steps=self.num_steps
        )
        return fit, np.asarray(fit.params), np.asarray(fit.standard_errors)


class Limits:
    """The limits, from counts of known Gaussians."""

    def __init__(self, config):
        dtype = jnp.dtype(config.dtype)
        self.locs = jnp.asarray(config.populations, dtype)
        self.covariance = jnp.asarray(config.gaussian.covariance, dtype)
        self.start = tg.Box(
            jnp.asarray(config.start.low, dtype), jnp.asarray(config.start.high, dtype)
        )
        self.truth = np.concatenate([config.limits.low, config.limits.high])
        d = self.start.dimension
        self.names = [numbered(side, j, d) for side in ("low", "high") for j in range(d)]
        self.num_steps = config.num_steps

    def fractions(self, params):
        box = tg.Box(*jnp.split(jnp.asarray(params, self.locs.dtype), 2))
        return tg.fraction_not_truncated(self.locs, self.covariance, box)

    def fit(self, counts, num_trials):
        fit = tg.fit_limits(
            counts, self.locs, self.covariance, self.start, num_trials, num_steps=self.num_steps
        )
        params, errors = (
            np.concatenate([np.asarray(box.low), np.asarray(box.high)])
            for box in (fit.params, fit.standard_errors)
        )
        return fit, params, errors


def numbered(name, j, dimension):
    return name if dimension == 1 else f"{name} {j + 1}"


def recovered(question, rng, config):
    """Counts drawn at the truth, and the parameters that they lead back to."""
    n = config.num_trials
    true_fractions = np.asarray(question.fractions(question.truth))
    counts = rng.binomial(n, true_fractions)
    fit, params, stderr = question.fit(counts, n)
    fitted = np.asarray(question.fractions(params))
    # A limit that is infinite, in truth and in the fit, is no unknown.
    difference = np.where(np.isinf(question.truth), 0.0, params - question.truth)
    return {
        "truth": question.truth,
        "params": params,
        "stderr": stderr,
        "pull": difference / np.where(stderr > 0, stderr, 1.0),
        "observed": counts / n,
        "fitted": fitted,
        "residual": (counts / n - fitted) / np.sqrt(fitted * (1 - fitted) / n),
        "loss": np.asarray(fit.loss_trace),
        "gradient_norm": np.asarray(fit.gradient_norm_trace),
        "converged": fit.converged,
        "reason": fit.reason,
    }


def axes_of(config):
    """Abscissae of the two sets of counts, and the regions' first limits as labels."""
    regions = [f"{box.low[0]:g}\n{box.high[0]:g}" for box in config.regions]
    regions = [text.replace("inf", "∞").replace("-", "−") for text in regions]
    x = {
        "shift": np.arange(1, len(config.regions) + 1),
        "limits": np.array(config.populations)[:, 0],
    }
    return {"x": x, "regions": np.array(regions)}


def fitted_curve(question, params):
    """The fraction inside the fitted limits as the mean moves, in one dimension."""
    x = np.linspace(float(question.locs.min()), float(question.locs.max()), 200)
    box = tg.Box(*jnp.split(jnp.asarray(params), 2))
    fitted = tg.fraction_not_truncated(jnp.asarray(x)[:, None], question.covariance, box)
    return {"x": x, "fitted": np.asarray(fitted)}


def without_answer(questions, config):
    """Reports on data that do not identify: one count for two limits, and a mirror image."""
    rng = np.random.default_rng((config.seed, len(questions)))
    n, ask = config.num_trials, questions["limits"]
    count = rng.binomial(n, np.asarray(ask.fractions(ask.truth))[len(ask.locs) // 2])
    middle = ask.locs[len(ask.locs) // 2][None]
    limits = tg.fit_limits([count], middle, ask.covariance, ask.start, n)
    ask = questions["shift"]
    bounded = np.isfinite(ask.regions.low).all(1) & np.isfinite(ask.regions.high).all(1)
    place = int(np.flatnonzero(bounded)[0]) if bounded.any() else 0
    region = tg.Box(ask.regions.low[place][None], ask.regions.high[place][None])
    count = rng.binomial(n, np.asarray(ask.fractions(ask.truth))[place])
    shift = tg.fit_shift([count], ask.loc, ask.covariance, region, n)
    errors = limits.standard_errors
    values = {
        "limit_errors": np.array([float(side[0]) for side in (errors.low, errors.high)]),
        "shift": np.asarray(shift.params),
        "mirrors": np.array([np.asarray(other) for other in shift.alternatives]),
    }
    return values, [
        f"one count for two limits: standard errors {values['limit_errors']}. "
        + " ".join(limits.notes),
        f"one region for a shift: {values['shift']}, and as likely "
        f"{[np.round(other, 4).tolist() for other in values['mirrors']]}. " + " ".join(shift.notes),
    ]


def summary(results):
    row = "{:<10}{:>10}{:>12}{:>12}{:>8}{:>14}{:>12}".format
    lines = [
        f"{results['num_trials']} draws behind each count; pulls of "
        f"{len(results['shift']['pulls'])} repetitions",
        row("", "true", "recovered", "stderr", "pull", "pulls: mean", "s.d."),
    ]
    for name in ("shift", "limits"):
        result = results[name]
        pulls = result["pulls"]
        for j, label in enumerate(result["names"]):
            again = ["", ""]
            if len(pulls) > 1:
                again = [f"{pulls[:, j].mean():+.2f}", f"{pulls[:, j].std(ddof=1):.2f}"]
            numbers = (f"{result[key][j]:.4f}" for key in ("truth", "params", "stderr"))
            lines.append(row(str(label), *numbers, f"{result['pull'][j]:+.2f}", *again))
    for name in ("shift", "limits"):
        result = results[name]
        free = int(np.sum(np.isfinite(result["truth"])))
        chi2 = float(np.sum(result["residual"] ** 2))
        lines.append(
            f"{name}: chi-squared {chi2:.1f} for {len(result['residual']) - free} degrees of "
            f"freedom. {result['reason']}"
        )
    return lines
