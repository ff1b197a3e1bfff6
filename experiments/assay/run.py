"""Repeated measurements with a detection limit: half of the limit in its place, or the likelihood.

Every patient is measured each week, and what lies below the limit of detection is only known to lie
there. Half of the limit in its place makes the slope too flat and both standard deviations wrong;
the likelihood of what is known does not. Trials are simulated, so that the truth is known.

References:
    Hughes, "Mixed effects models with censored data with application to HIV RNA levels", Biometrics
        (1999). Vaida, Fitzgerald and DeGruttola, "Efficient hybrid EM for linear and nonlinear
        mixed effects models with censored response", Computational Statistics and Data Analysis
        (2007), for the design.
"""

import numpy as np
from scipy import stats

import truncgauss as tg

NAMES = "start", "slope", "between", "within"


def run(config):
    """Estimates of all trials in both ways, and the rows of the first trial."""
    rng, course = np.random.default_rng(config.seed), config.course
    truth = np.array([getattr(course, name) for name in NAMES])
    trials = [simulated(rng, config) for _ in range(config.num_trials)]
    fits = [(fitted(trial, config, False), fitted(trial, config, True)) for trial in trials]
    estimates, errors = (
        np.array([[getattr(fit, field) for fit in pair] for pair in fits])
        for field in ("estimates", "errors")
    )
    half = stats.norm.isf(0.5 * (1.0 - config.level)) * errors
    held = np.mean(np.abs(estimates - truth) < half, axis=0)
    failed = [fit.reason for pair in fits for fit in pair if not fit.converged]
    patient, week, y = trials[0]
    return {
        "names": np.array(NAMES),
        "truth": truth,
        "estimates": estimates,
        "errors": errors,
        "held": held,
        "level": config.level,
        "limit": config.limit,
        "below": float(np.mean([y < config.limit for _, _, y in trials])),
        "patient": patient,
        "week": week,
        "measured": np.where(y < config.limit, config.limit, y),
        "detected": y >= config.limit,
        "failed": failed[0] if failed else "",
        "summary": summary(truth, estimates, held, config),
    }


def simulated(rng, config):
    """Patients, weeks and logarithms of what is there, whether it can be measured or not."""
    course, size = config.course, (config.num_patients, config.num_weeks)
    patient, week = np.indices(size)
    level = course.start + course.between * rng.normal(size=(config.num_patients, 1))
    y = level + course.slope * week + course.within * rng.normal(size=size)
    return patient.ravel(), week.ravel().astype(float), y.ravel()


def fitted(trial, config, likelihood):
    """The fit by the likelihood, or with half of the limit in place of what lies below it."""
    patient, week, y = trial
    design = {"start": np.ones(len(week)), "slope": week}
    if likelihood:
        limits = {"censored_low": config.limit}
    else:
        y, limits = np.where(y < config.limit, config.limit - np.log10(2.0), y), {}
    return tg.fit_clusters(y, design, patient, **limits, num_profiles=0, progress=False)


def summary(truth, estimates, held, config):
    """A table of both ways beside the truth."""
    lines = [f"{'':8} {'truth':>8} {'half of the limit':>24} {'likelihood':>24}"]
    for j, name in enumerate(NAMES):
        cells = [f"{estimates[:, k, j].mean():10.3f}, held {held[k, j]:6.0%}" for k in range(2)]
        lines.append(f"{name:8} {truth[j]:8.3f} {cells[0]:>24} {cells[1]:>24}")
    count = (
        f"means of {config.num_trials} trials, and how many intervals of {config.level:.0%} hold"
    )
    return [*lines, count]
