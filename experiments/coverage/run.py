"""How often intervals of a truncated fit hold the truth.

Rows of a Gaussian with mean 0 and unit variances, of which those above a limit in every entry are
seen, are fitted again and again. A profile-likelihood interval of 95 % holds the truth where twice
the fall of the profile log-likelihood there is at most the quantile of chi-squared with one degree
of freedom, 3.84. Wald's intervals are counted beside: of the same two estimates, and of all.

References:
    D. J. Venzon and S. H. Moolgavkar, "A method for computing profile-likelihood-based confidence
    intervals", Applied Statistics (1988).
"""

import numpy as np
from scipy import stats

import truncgauss as tg
from truncgauss import fitting
from truncgauss.arrays.progress import bar

LEVEL = 0.95
BLOCK = 10  # simulations between two checkpoints
CHUNK = 100_000  # rows drawn at a time, seen or not
KINDS = {
    "profile, mean": "mean of the first entry, profile",
    "profile, variance": "its variance (d = 1: sigma), profile",
    "Wald, mean": "mean of the first entry, Wald",
    "Wald, variance": "its variance (d = 1: sigma), Wald",
}


def run(config):
    """Shares of intervals that hold the truth, by kind of interval and of sample."""
    results = {"cases": {}}
    blocks = [
        (number, start)
        for number, case in enumerate(config.cases)
        for start in range(0, case.num_simulations, BLOCK)
    ]
    parts = {number: [] for number in range(len(config.cases))}
    for number, start in bar(blocks, "blocks of samples", True):
        name = f"case{number}.{start}"
        parts[number].append(fitting.computed(name, simulated, config, number, start))
    for number, case in enumerate(config.cases):
        found = {name: np.concatenate([part[name] for part in parts[number]])
                 for name in parts[number][0]}  # fmt: skip
        results["cases"][f"case{number}"] = counted(case, found)
    outside = [
        f"d = {found['dimension']}, {kind}"
        for found in results["cases"].values()
        for kind in ("profile, mean", "profile, variance")
        if not abs(found[kind] - LEVEL) <= 3 * found["stderr"]
    ]
    failed = f"Beyond three standard errors of {LEVEL:.0%}: {'; '.join(outside)}."
    return results | {"summary": summary(results), "failed": failed if outside else ""}


def simulated(config, number, start):
    """Which intervals of a block of samples hold the truth, one a sample."""
    case, rng = config.cases[number], np.random.default_rng([config.seed, number, start])
    d = case.dimension
    covariance = config.correlation ** np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    truth = np.concatenate([np.zeros(d), covariance[np.tril_indices(d)]])
    named = {"mean": "loc[0]", "variance": "sigma" if d == 1 else "covariance[0, 0]"}
    found = {name: [] for name in (*KINDS, "exists", "Wald, all", "seen", "fitted")}
    for _ in range(min(BLOCK, case.num_simulations - start)):
        rows, seen = sample(rng, covariance, case)
        fit = tg.fit_truncated_normal(rows, low=case.low, num_profiles=0)
        inside = np.abs(fit.estimates - truth) <= stats.norm.ppf(0.5 + LEVEL / 2) * fit.errors
        found["exists"].append(fit.converged)
        found["seen"].append(seen)
        found["fitted"].append(fit.fraction_not_truncated)
        found["Wald, all"].append(np.mean(inside) if fit.converged else np.nan)
        for what, name in named.items():
            place, fall = fit.names.index(name), np.nan
            if fit.converged:
                fall = fit.profile_fall(name, truth[place])
                if np.isnan(fall):
                    raise RuntimeError(f"coverage: no profile likelihood of {name} at the truth.")
            within = np.nan if np.isnan(fall) else float(2 * fall <= stats.chi2.ppf(LEVEL, 1))
            found[f"profile, {what}"].append(within)
            found[f"Wald, {what}"].append(float(inside[place]) if fit.converged else np.nan)
    return {name: np.array(values, float) for name, values in found.items()}


def sample(rng, covariance, case):
    """Rows that are seen, (n, d), and the share of all rows that these are."""
    factor, parts, drawn = np.linalg.cholesky(covariance), [], 0
    while sum(map(len, parts)) < case.num_rows:
        rows = rng.normal(size=(CHUNK, len(factor))) @ factor.T
        parts.append(rows[np.all(rows > case.low, axis=1)])
        drawn += CHUNK
    rows = np.concatenate(parts)
    return rows[: case.num_rows], len(rows) / drawn


def counted(case, found):
    """The shares of one kind of samples, among those that have a fit."""
    exists = found["exists"] == 1
    number = int(exists.sum())
    shares = {name: float(np.mean(found[name][exists])) for name in (*KINDS, "Wald, all")}
    return shares | {
        "dimension": case.dimension,
        "num_fits": number,
        "num_without": len(exists) - number,
        "seen": float(np.mean(found["seen"])),
        "fitted": float(np.median(found["fitted"])),
        "stderr": float(np.sqrt(LEVEL * (1 - LEVEL) / max(number, 1))),
    }


def summary(results):
    """A line for each kind of samples."""
    lines = [f"share of {LEVEL:.0%} intervals that hold the truth (fits that exist)"]
    row = "d = {:<3} {:>5} fits, {:>3} without; {:>6} observed; profile {}, {}; Wald {}, {}; all {}"
    for found in results["cases"].values():
        shares = [f"{found[name]:.3f}" for name in (*KINDS, "Wald, all")]
        lines.append(
            row.format(found["dimension"], found["num_fits"], found["num_without"],
                       f"{found['seen']:.1%}", *shares)
            + f"; binomial error {found['stderr']:.3f}"
        )  # fmt: skip
    return lines
