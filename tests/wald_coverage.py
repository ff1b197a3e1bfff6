"""Simulated coverage of 95 % Wald intervals beside the alarm that is to say where they fail.

`python tests/wald_coverage.py 400 Tobit Heckman` prints, for each estimate of the models whose
names begin so (of all without a name), in what share of the samples that have an estimate Wald's
interval holds the truth, in what share a fit replaces it by the profile interval, and how often
the interval that the fit reports holds the truth. These numbers set
`optimization.wald.LEAST_COVERED`.
"""

import sys

import jax
import numpy as np
from scipy import stats

import truncgauss as tg

INF = np.inf


def gaussian(n, low, high, correlation=0.5):
    """Rows of a Gaussian with mean 0 and unit variances that lie inside a box."""
    low, high = np.atleast_1d(low), np.atleast_1d(high)
    d = len(low)
    truth = np.where(np.eye(d, dtype=bool), 1.0, correlation)

    def fitted(rng):
        if d == 1:
            rows = stats.truncnorm.rvs(low[0], high[0], size=(n, 1), random_state=rng)
        else:
            rows = rng.normal(size=(40 * n, d)) @ np.linalg.cholesky(truth).T
            rows = rows[np.all((rows > low) & (rows < high), axis=1)][:n]
        return tg.fit_truncated_normal(rows, low, high)

    return fitted, np.concatenate([np.zeros(d), truth[np.tril_indices(d)]])


def tobit(n, constant):
    """A regression whose outcome is censored at 0."""

    def fitted(rng):
        x = rng.normal(size=n)
        y = constant + x + rng.normal(size=n)
        return tg.fit_regression(np.maximum(y, 0.0), {"one": np.ones(n), "x": x}, censored_low=0.0)

    return fitted, np.array([constant, 1.0, 1.0])


def noisy(n):
    """Rows with limits of their own, measured with noise."""

    def fitted(rng):
        low = rng.uniform(-1.5, 0.5, size=30 * n)
        y = rng.normal(size=30 * n) + 0.3 * rng.normal(size=30 * n)
        seen = np.flatnonzero(y > low)[:n]
        region, noise = tg.Box(low[seen, None], INF), np.full((n, 1), 0.09)
        return tg.fit_observations(tg.Observations.exact(y[seen], region=region, noise=noise))

    return fitted, np.array([0.0, 1.0])


def tetrachoric(n, correlation, thresholds=(0.0, 0.0)):
    """A 2 x 2 table of counts. Where a cell is empty there is no estimate, and the sample is left
    out: what is printed holds for the samples without such a cell."""
    truth = np.array([[1.0, correlation], [correlation, 1.0]])

    def fitted(rng):
        rows = rng.normal(size=(n, 2)) @ np.linalg.cholesky(truth).T
        first, second = (rows > np.asarray(thresholds)).astype(int).T
        return tg.polychoric(first, second)

    return fitted, np.array([correlation, *thresholds])


def selection(n, correlation):
    """An outcome seen where another one is positive, by Heckman's model."""
    truth = np.array([[1.0, correlation], [correlation, 1.0]])

    def fitted(rng):
        x, w = rng.normal(size=(2, n))
        errors = rng.normal(size=(n, 2)) @ np.linalg.cholesky(truth).T
        selected = 0.3 + 0.5 * x + w + errors[:, 1] > 0
        outcome = np.where(selected, 1.0 + x + errors[:, 0], np.nan)
        design = {"one": np.ones(n), "x": x}
        return tg.fit_selection(outcome, design, selected, design | {"w": w})

    estimates = [0.3, 0.5, 1.0, 1.0, 1.0, correlation, 1.0, correlation, np.arctanh(correlation)]
    return fitted, np.array(estimates)


CELLS = {
    "no limits, n = 60": gaussian(60, -INF, INF),
    "no limits, n = 150": gaussian(150, -INF, INF),
    "above -1, n = 200": gaussian(200, -1.0, INF),
    "above 0, n = 2000": gaussian(2000, 0.0, INF),
    "above 1, n = 200": gaussian(200, 1.0, INF),
    "above 2, n = 200": gaussian(200, 2.0, INF),
    "within 1, n = 200": gaussian(200, -1.0, 1.0),
    "Tobit, 40 % censored, n = 100": tobit(100, 0.35),
    "Tobit, 80 % censored, n = 100": tobit(100, -1.2),
    "limits of their own and noise, n = 300": noisy(300),
    "a corner, n = 150": gaussian(150, [-1.0, -1.0], [INF, INF]),
    "a corner, n = 42": gaussian(42, [-INF, -INF], [1.3, 1.3], 0.75),
    "2 x 2 table, rho 0.5, n = 100": tetrachoric(100, 0.5),
    "2 x 2 table, rho 0.9, n = 200": tetrachoric(200, 0.9),
    "2 x 2 table, rho 0.8, n = 60": tetrachoric(60, 0.8),
    "2 x 2 table off centre, rho 0.9, n = 200": tetrachoric(200, 0.9, (0.5, -0.3)),
    "Heckman, rho 0.5, n = 500": selection(500, 0.5),
}


def simulated(cell, num_samples):
    """By name of an estimate the shares of fits in which Wald's interval holds the truth, is
    replaced, and in which the reported interval holds it."""
    fitted, truth = CELLS[cell]
    counts, found = [], None
    for number in range(num_samples):
        fit = fitted(np.random.default_rng([7, number]))
        if not fit.converged:
            continue
        wald = fit.wald()
        reported = np.array([fit.profiles.get(name, w) for name, w in zip(fit.names, wald)])
        replaced = [name in fit.profiles for name in fit.names]
        holds = [(ends[:, 0] <= truth) & (truth <= ends[:, 1]) for ends in (wald, reported)]
        counts.append([holds[0], replaced, holds[1]])
        found = fit.names
    shares = np.mean(counts, axis=0).T
    return dict(zip(found, shares.round(3).tolist())), len(counts)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    for cell in [cell for cell in CELLS if cell.startswith(tuple(sys.argv[2:]) or "")]:
        shares, number = simulated(cell, int(sys.argv[1]))
        for name, (covered, replaced, reported) in shares.items():
            print(f"{cell:40} {number:5} fits  {name:28} Wald {covered:.3f}  "
                  f"replaced {replaced:.2f}  reported {reported:.3f}", flush=True)  # fmt: skip
