"""Groups against a control, and a band for a curve, each with one error for all intervals.

The groups are patients who recover under blankets: minutes under the standard one, b0, and under
three others. Intervals for one comparison alone are too short for three, and for a curve at many
points far too short; Bonferroni's are too long, as the comparisons share a control.

References:
    Westfall, Tobias, Rom, Wolfinger and Hochberg, Multiple Comparisons and Multiple Tests (1999),
        for the data. Dunnett, "A multiple comparison procedure for comparing several treatments
        with a control", Journal of the American Statistical Association (1955).
"""

import numpy as np
from scipy import stats

import truncgauss as tg


def run(config):
    """Both sets of intervals, with those for one alone and Bonferroni's."""
    names = tuple(config.groups)
    means = np.array([group.mean for group in config.groups.values()])
    sizes = np.array([group.size for group in config.groups.values()], float)
    pairs = tg.simultaneous(
        means, np.diag(config.variance / sizes), config.df, "dunnett", config.level, names=names
    )
    x, design, estimates, covariance, df, points = simulated(config)
    band = tg.simultaneous(estimates, covariance, df, design, config.level)
    truth = design @ np.array(config.curve.truth)
    held = bool(np.all((band.low < truth) & (truth < band.high)))
    return {
        "names": np.array(pairs.names),
        "df": np.array([config.df, df], float),
        "level": config.level,
        "differences": np.stack([pairs.estimates, pairs.low, pairs.high]),
        "stderr": pairs.standard_errors,
        "p_values": pairs.p_values,
        "step_down": pairs.step_down_p_values,
        "critical": critical(pairs, config),
        "x": x,
        "points": points,
        "true_curve": truth,
        "curve": np.stack([band.estimates, band.low, band.high]),
        "curve_stderr": band.standard_errors,
        "curve_critical": critical(band, config),
        "curve_critical_error": float(band.critical_value.stderr),
        "held": held,
        "failed": "" if np.all(np.isfinite(band.low)) else "the band has no limits",
        "summary": [
            *str(pairs).splitlines(),
            "",
            f"a curve of {len(estimates)} coefficients at {len(x)} points",
            str(band).splitlines()[-1],
            f"the band {'holds' if held else 'does not hold'} the truth everywhere",
        ],
    }


def critical(result, config):
    """Critical values for one comparison alone, for all of them, and Bonferroni's."""
    alpha, count = 1.0 - config.level, len(result.names)
    alone, bonferroni = (stats.t.isf(0.5 * alpha / k, result.df) for k in (1, count))
    return np.array([alone, float(result.critical_value.value), bonferroni])


def simulated(config):
    """A grid with its design, estimates by least squares with covariance and degrees of freedom,
    and the points."""
    curve, rng = config.curve, np.random.default_rng(config.seed)
    powers = np.arange(len(curve.truth))
    seen = rng.random(curve.num_points)
    design = seen[:, None] ** powers
    y = design @ np.array(curve.truth) + curve.noise * rng.normal(size=curve.num_points)
    inverse = np.linalg.inv(design.T @ design)
    estimates = inverse @ design.T @ y
    df = curve.num_points - len(powers)
    variance = np.sum((y - design @ estimates) ** 2) / df
    x = np.linspace(0.0, 1.0, curve.grid)
    return x, x[:, None] ** powers, estimates, variance * inverse, df, np.stack([seen, y])
