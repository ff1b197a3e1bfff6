"""Quantile residuals of a sample that is Gaussian and of one that is not.

Rows outside the limits are left out, and a truncated Gaussian is fitted to the others. Its
residuals are standard normal if the model is right. They judge it where rows are seen, and nowhere
else: what is not Gaussian below the limit leaves residuals without a fault, as of the
concentrations of particles (PM10) that textbooks on truncated regression use, which a Student t or
a skew normal distribution does not fit any better. Rounded values are intervals, within which the
residuals are drawn.
"""

import jax
import numpy as np
from scipy import stats

import truncgauss as tg


def run(config):
    """The fit and the residuals of each sample."""
    results, lines, failures = {}, [], []
    key = jax.random.key(config.seed)
    for number, (sample, x) in enumerate(zip(config.samples, config.read_data())):
        seen = x[(x >= sample.low) & (x <= sample.high)]
        half = (sample.rounding or 0.0) / 2
        region = tg.Box([sample.low], [sample.high])
        fit = tg.fit_observations(tg.Observations(seen - half, seen + half, region=region))
        residuals = tg.quantile_residuals(fit, key, num_draws=config.num_draws)[..., 0]
        found = np.median([distance(draw[np.isfinite(draw)]) for draw in residuals])
        results[f"sample{number}"] = {
            "label": sample.label,
            "residuals": residuals,
            "loc": float(fit.loc[0]),
            "variance": float(fit.covariance_matrix[0, 0]),
            "distance": float(found),
            "fraction_not_truncated": fit.fraction_not_truncated,
        }
        lines.append(
            f"{sample.label}: {len(seen)} of {len(x)} observed, mean {fit.loc[0]:.4g} ± "
            f"{fit.errors[0]:.2g}; Anderson-Darling distance of the residuals {found:.2f} "
            f"(above 0.75 in 5 % of Gaussian samples)"
        )
        if not fit.converged:
            failures.append(f"{sample.label}: {fit.reason}")
    return results | {"summary": lines, "failed": " ".join(failures)}


def distance(residuals):
    """Anderson's and Darling's distance from a normal distribution of any mean and variance."""
    return float(stats.anderson(residuals, "norm", method="interpolate").statistic)
