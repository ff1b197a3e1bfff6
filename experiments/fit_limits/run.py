"""A shift and a pair of limits, each recovered from the counts that it produced.

First, draws of a Gaussian with an unknown mean are counted in known regions; then draws of known
Gaussians are counted inside unknown limits. Repetitions check the standard errors, and two data
sets that do not identify the parameters show what the fits report then.
"""

import jax
import numpy as np

import truncgauss as tg
from truncgauss.arrays.progress import bar

NAMES = {"shift": ("shift",), "limits": ("low", "high")}


def run(config):
    """Recovered parameters with standard errors, traces, residuals, pulls of repetitions."""
    problem = Problem(config)
    results = {"num_trials": config.num_trials}
    for number, name in enumerate(NAMES):
        rng = np.random.default_rng((config.seed, number))
        first, *others = (
            recovered(problem, name, rng)
            for _ in bar(range(1 + config.num_repeats), f"{name}, again and again", True)
        )
        results[name] = first | {
            "names": np.array(NAMES[name]), "pulls": np.array([other["pull"] for other in others]),
        }  # fmt: skip
    regions = [f"{box.low[0]:g}\n{box.high[0]:g}" for box in config.regions]
    x = np.linspace(np.min(config.populations), np.max(config.populations), 200)
    low, high = results["limits"]["params"]
    results |= {
        "x": {
            "shift": np.arange(1, len(config.regions) + 1),
            "limits": np.array(config.populations)[:, 0],
        },
        "regions": np.array([x.replace("inf", "∞").replace("-", "−") for x in regions]),
        "curve": {"x": x, "fitted": problem.inside(x[:, None], tg.Box([low], [high]))},
    }
    unanswered, notes = without_answer(problem)
    failed = [name for name in NAMES if not results[name]["converged"]]
    return results | {
        "unanswered": unanswered,
        "summary": [*summary(results), *notes],
        "metrics": [
            {"fit": name, "step": step, "loss": float(loss)}
            for name in NAMES
            for step, loss in enumerate(results[name]["loss"])
        ],
        "failed": f"no convergence: {', '.join(failed)}" if failed else "",
    }


class Problem:
    """What is known of either question, and what is true."""

    def __init__(self, config):
        self.config = config
        self.loc, self.covariance = map(np.array, (config.gaussian.loc, config.gaussian.covariance))
        self.locs, self.start = np.array(config.populations), dict(config.start)
        low, high = np.array([[box.low, box.high] for box in config.regions]).swapaxes(0, 1)
        self.regions = tg.Box(low, high)
        limits = np.concatenate([config.limits.low, config.limits.high])
        self.truth = {"shift": np.array(config.shift), "limits": limits}

    def inside(self, loc, region):
        return np.asarray(tg.fraction_not_truncated(loc, self.covariance, region))

    def fractions(self, name, params):
        """The fractions of all regions, or of all Gaussians."""
        if name == "shift":
            return self.inside(self.loc + params, self.regions)
        return self.inside(self.locs, tg.Box(*np.split(params, 2)))

    def fit(self, name, counts):
        """The fit, its parameters and their standard errors."""
        n, steps = self.config.num_trials, {"num_steps": self.config.num_steps}
        if name == "shift":
            fit = tg.fit_shift(counts, self.loc, self.covariance, self.regions, n, **steps)
        else:
            fit = tg.fit_limits(counts, self.locs, self.covariance, self.start, n, **steps)
        both = fit.params, fit.standard_errors
        return fit, *(np.concatenate(jax.tree.leaves(each)) for each in both)


def recovered(problem, name, rng):
    """Counts drawn at the truth, and the parameters that they lead back to."""
    n, truth = problem.config.num_trials, problem.truth[name]
    counts = rng.binomial(n, problem.fractions(name, truth))
    fit, params, stderr = problem.fit(name, counts)
    fitted = problem.fractions(name, params)
    # A limit that is infinite, in truth and in the fit, is no unknown.
    difference = np.where(np.isinf(truth), 0.0, params - truth)
    return {
        "truth": truth,
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


def without_answer(problem):
    """Reports on data that do not identify: one count for two limits, and a mirror image."""
    rng, n = np.random.default_rng((problem.config.seed, len(NAMES))), problem.config.num_trials
    middle = len(problem.locs) // 2
    count = rng.binomial(n, problem.fractions("limits", problem.truth["limits"])[middle])
    limits = tg.fit_limits(
        [count], problem.locs[middle][None], problem.covariance, problem.start, n
    )
    low, high = problem.regions.low, problem.regions.high
    place = int(np.argmax(np.isfinite(low[:, 0]) & np.isfinite(high[:, 0])))
    count = rng.binomial(n, problem.fractions("shift", problem.truth["shift"])[place])
    region = tg.Box(low[place][None], high[place][None])
    shift = tg.fit_shift([count], problem.loc, problem.covariance, region, n)
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
    yield (
        f"{results['num_trials']} draws behind each count; pulls of "
        f"{len(results['shift']['pulls'])} repetitions"
    )
    yield row("", "true", "recovered", "stderr", "pull", "pulls: mean", "s.d.")
    for name, labels in NAMES.items():
        result = results[name]
        pulls = result["pulls"]
        for j, label in enumerate(labels):
            again = ["", ""]
            if len(pulls) > 1:
                again = [f"{pulls[:, j].mean():+.2f}", f"{pulls[:, j].std(ddof=1):.2f}"]
            numbers = (f"{result[key][j]:.4f}" for key in ("truth", "params", "stderr"))
            yield row(label, *numbers, f"{result['pull'][j]:+.2f}", *again)
    for name in NAMES:
        result = results[name]
        free = int(np.sum(np.isfinite(result["truth"])))
        chi2 = float(np.sum(result["residual"] ** 2))
        yield (
            f"{name}: chi-squared {chi2:.1f} for {len(result['residual']) - free} degrees of "
            f"freedom. {result['reason']}"
        )
