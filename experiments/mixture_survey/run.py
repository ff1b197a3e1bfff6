"""The mixture behind a survey: what is seen of it, what a naive fit takes it for, and what
`tg.fit_mixture` finds, over many surveys of one population.
"""

from functools import partial

import jax
import numpy as np

import truncgauss as tg
from truncgauss import fitting

from . import imputation

IMPUTATION_STEPS, EVERY = 300, 10


def run(config):
    """The naive and the corrected mixture, and the scatter of estimates beside their errors."""
    truth, rng = truth_of(config), np.random.default_rng(config.seed)
    rows = survey(config, truth, rng)
    seen, k = np.where(rows.lower == rows.upper, rows.lower, np.nan), len(config.components)
    starts = {"num_starts": config.num_starts, "key": jax.random.key(config.seed)}
    fit = tg.fit_mixture(rows, k, **starts)
    # As if every row were complete, exact, and the survey showed everything.
    whole = seen[~np.isnan(seen).any(axis=1)]
    naive = tg.fit_mixture(tg.Observations.exact(whole), k, **starts)
    start = naive.weights, naive.locs, naive.covariances

    def climb(start, seed):
        shows = partial(passes, config.cuts)
        return imputation.climbed(rows, start, shows, IMPUTATION_STEPS, EVERY, seed)

    imputed = [
        fitting.computed("imputation", climb, start, [config.seed, number])
        for number in range(config.num_imputations)
    ]
    repeats = [one_more(config, truth, rng) for _ in range(config.num_repeats)]
    results = {
        "names": np.array(config.names),
        "seen": seen,
        "truth": named(*truth),
        "naive": of_fit(naive, truth)[0],
        **dict(zip(("fit", "fit_errors"), of_fit(fit, truth))),
        "labels": labels(k),
        "em": fit.em_log_likelihoods,
        "finish": -fit.loss_trace * fit.num_rows,
        "num_reached": fit.num_reached,
        "num_starts": len(fit.start_log_likelihoods),
        "repeats": np.array([values for values, _ in repeats]),
        "repeat_errors": np.array([errors for _, errors in repeats]),
        "imputed": np.array([climb["log_likelihoods"] for climb in imputed]),
        "imputed_every": EVERY,
        "imputed_values": np.array([matched(truth, climb["mixture"])[0] for climb in imputed]),
        "imputed_seconds": np.array([climb["seconds"] for climb in imputed]),
        **{key: np.array(value) for key, value in config.cuts},
    }
    bad = "" if fit.converged else f"the fit has not converged: {fit.reason}"
    return results | {"failed": bad, "summary": summary(results)}


def truth_of(config):
    """Weights, means and covariances of the population."""
    weights = np.array([part.weight for part in config.components])
    locs = np.array([part.gaussian.loc for part in config.components])
    covariances = np.array([part.gaussian.covariance for part in config.components])
    return weights / weights.sum(), locs, covariances


def passes(cuts, y):
    """Which points (n, 2) the survey shows."""
    across = y @ np.array(cuts.matrix).T
    return np.all((across >= cuts.low) & (across <= cuts.high), axis=1)


def survey(config, truth, rng):
    """Rows that pass the cuts, some with a missing entry, each with noise of its own."""
    weights, locs, covariances = truth
    n = config.num_rows
    size = 20 * n
    own = rng.choice(len(weights), p=weights, size=size)
    factors = np.linalg.cholesky(covariances)[own]
    y = locs[own] + np.einsum("nij,nj->ni", factors, rng.normal(size=(size, 2)))
    noise = rng.uniform(*config.noise, size=(size, 2))
    y = y + rng.normal(size=y.shape) * np.sqrt(noise)
    passed = passes(config.cuts, y)
    if passed.sum() < n:
        raise ValueError(
            f"The cuts let {passed.sum()} of {size} objects pass, {n} are asked for: widen them."
        )
    y, noise = y[passed][:n], noise[passed][:n]
    lacking = int(round(config.missing * n / 2))
    y[:lacking, 0] = y[lacking : 2 * lacking, 1] = np.nan  # rows have no order: at random
    region = tg.Polyhedron(config.cuts.matrix, config.cuts.low, config.cuts.high)
    return tg.Observations.exact(y, nan_is_missing=True, noise=noise, region=region)


def one_more(config, truth, rng):
    """Estimates and errors from another survey of the same population."""
    start = dict(zip(("weights", "locs", "covariances"), truth))
    fit = tg.fit_mixture(survey(config, truth, rng), len(truth[0]), start=start)
    values, errors = of_fit(fit, truth)
    return values, errors if fit.converged else np.full_like(errors, np.nan)


def named(weights, locs, covariances):
    """Weights, means and the lower triangles of covariances, one after the other."""
    i, j = np.tril_indices(2)
    return np.concatenate([weights, locs.ravel(), covariances[:, i, j].ravel()])


def labels(k):
    entries = ["0,0", "1,0", "1,1"]
    return np.array(
        [f"weight {c}" for c in range(k)]
        + [f"mean {c} [{j}]" for c in range(k) for j in range(2)]
        + [f"covariance {c} [{entry}]" for c in range(k) for entry in entries]
    )


def matched(truth, *mixtures):
    """The numbers of mixtures, whose components are in the order of those of the first that are
    nearest to the true ones, none twice."""
    gaps, order = np.linalg.norm(mixtures[0][1][:, None] - truth[1], axis=-1), []
    for column in gaps.T:
        order.append(np.argmin(column))
        gaps[order[-1]] = np.inf
    return [named(*(np.asarray(part)[order] for part in mixture)) for mixture in mixtures]


def of_fit(fit, truth):
    """Estimates and errors, the components in the order of the true ones."""
    both = fit, fit.standard_errors
    return matched(truth, *((each.weights, each.locs, each.covariances) for each in both))


def scatter_of(repeats):
    """Half of the central 68 % of estimates, (surveys, q) -> (q,): what a wild one cannot move."""
    low, high = np.quantile(repeats, [0.1587, 0.8413], axis=0)
    return (high - low) / 2


def summary(results):
    """The truth, both fits, and the errors beside the scatter."""
    good = np.isfinite(results["repeat_errors"]).all(axis=1)
    repeats, errors = results["repeats"][good], results["repeat_errors"][good]
    inside = np.abs(repeats - results["truth"]) < 1.959964 * errors
    lines = [f"{'':<22}{'truth':>9}{'naive':>9}{'corrected':>18}{'scatter / error':>18}"]
    for j, label in enumerate(results["labels"]):
        cell = f"{results['fit'][j]:.3f} ± {results['fit_errors'][j]:.3f}"
        ratio = scatter_of(repeats)[j] / np.median(errors[:, j])
        line = f"{label:<22}{results['truth'][j]:>9.3f}{results['naive'][j]:>9.3f}{cell:>18}"
        lines.append(line + f"{ratio:>18.2f}")
    # What EM reaches that draws the hidden rows: the first variance of the first component.
    place, below = len(results["truth"]) // 2, results["finish"].max() - results["imputed"][:, -1]
    own = results["imputed_values"][:, place]
    return [
        f"{len(results['seen'])} rows; {results['num_reached']} of {results['num_starts']} starts "
        "reached the maximum",
        *lines,
        f"95 % intervals over the {good.sum()} of {len(good)} surveys whose fits converged "
        f"cover {100 * inside.mean():.0f} % of the true values",
        f"EM that draws the hidden objects, {len(own)} seeds, {IMPUTATION_STEPS} steps of "
        f"{1e3 * results['imputed_seconds'].mean() / IMPUTATION_STEPS:.1f} processor ms each:",
        f"  ends {below.min():.2f} to {below.max():.2f} nats below the maximum; covariance 0 [0,0] "
        f"{own.min():.3f} to {own.max():.3f}, by maximum likelihood {results['fit'][place]:.3f}, "
        f"in truth {results['truth'][place]:.3f}",
    ]
