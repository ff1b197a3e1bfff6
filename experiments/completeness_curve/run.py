"""A survey of objects in the plane that finds faint ones by a logistic curve of their magnitude.

The population and the curve are fitted together, once to the objects found alone, which tell the
curve only through the Gaussian shape, and once with the number of those that were not found.
"""

import jax
import jax.numpy as jnp
import numpy as np

import truncgauss as tg

AWAY = 1.0  # widths by which the fit begins from another curve
WANTED = ("midpoint", "width")


def run(config):
    """The sample, and of each fit the population and the curve with a band."""
    random = np.random.default_rng(config.seed)
    loc, covariance = np.array(config.gaussian.loc), np.array(config.gaussian.covariance)
    x = random.multivariate_normal(loc, covariance, config.num_objects)
    share = 1.0 / (1.0 + np.exp((x[:, 0] - config.midpoint) / config.width))
    found = random.uniform(size=len(x)) < share
    # The curve falls: weight and midpoint have the other sign.
    begin = -(config.midpoint - AWAY * config.width)
    curve = tg.Selection.logistic([-1.0, 0.0], begin, 2.0 * config.width)
    grid = np.linspace(x[:, 0].min(), x[:, 0].max(), 200)
    results = {
        "names": np.array(config.names),
        "objects": x,
        "found": found,
        "grid": grid,
        "true": {
            "loc": loc,
            "covariance": covariance,
            "curve": 1.0 / (1.0 + np.exp((grid - config.midpoint) / config.width)),
        },
        "naive": {"loc": x[found].mean(axis=0), "covariance": np.cov(x[found].T)},
    }
    summary = [f"{found.sum()} of {len(x)} objects were found"]
    for name, count in {"alone": None, "counted": int(np.sum(~found))}.items():
        fit = tg.fit_truncated_normal(x[found], region=curve, estimate=WANTED, num_unobserved=count)
        if not fit.converged:
            return results | {"failed": fit.reason, "summary": summary}
        results[name] = fitted(fit, grid)
        summary += ["", f"{name}:", *str(fit).splitlines()]
    return results | {"summary": summary}


def fitted(fit, grid):
    """The population, and the curve on a grid with its band of 95 %, on the scale of log odds."""

    def log_odds(p):
        return (-jnp.asarray(grid) - p["midpoint"]) / p["width"]

    odds = fit.derived(log_odds)
    half = 1.96 * odds.standard_errors
    values = [jax.nn.sigmoid(odds.value + move) for move in (0.0, -half, half)]
    names = ("curve", "low", "high")
    return {
        "loc": fit.loc,
        "covariance": fit.covariance_matrix,
        "stderr": fit.standard_errors.loc,
        "midpoint": -float(fit.curve["midpoint"]),
        "midpoint_stderr": float(fit.standard_errors.curve["midpoint"]),
        **{name: np.asarray(value) for name, value in zip(names, values, strict=True)},
    }
