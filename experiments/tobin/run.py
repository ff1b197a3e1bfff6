"""Tobin's table of durable goods, fitted by the model that has his name.

Thirteen of twenty households bought none. Least squares takes their zeros for values, or leaves the
households out; the Tobit model takes them for values that are not above zero. The published fit is
that of `survreg` in R's package survival.

References:
    J. Tobin, "Estimation of relationships for limited dependent variables", Econometrica 26 (1958).
"""

import jax
import numpy as np

import truncgauss as tg

NAMES = ("constant", "age", "quant", "sigma")
SIGMA, LOG_STDERR = np.exp(1.71785092), 0.3103227  # published as its logarithm
PUBLISHED = np.array([15.14486636, -0.12905928, -0.04554166, SIGMA])
PUBLISHED_STDERR = np.array([16.0794532, 0.2185836, 0.0582541, LOG_STDERR * SIGMA])
PUBLISHED_LOG_LIKELIHOOD = -28.94013320


def run(config):
    """The fit, its intervals, the published one, and both kinds of least squares."""
    table = config.read_data()
    y = table["durable"]
    covariates = {"constant": np.ones(len(y)), "age": table["age"], "quant": table["quant"]}
    design = np.column_stack(list(covariates.values()))
    fit = tg.fit_regression(y, covariates, censored_low=0.0)
    profile = np.array([fit.profile(name, config.level) for name in fit.names])
    log_likelihood = float(fit.log_likelihood)
    results = {
        "names": np.array(NAMES),
        "estimates": fit.estimates,
        "stderr": fit.errors,
        "wald": fit.wald(config.level),
        "profile": profile,
        "published": PUBLISHED,
        "published_stderr": PUBLISHED_STDERR,
        "distance": float(np.max(np.abs(fit.estimates - PUBLISHED) / PUBLISHED_STDERR)),
        "all_rows": least_squares(y, design),
        "buyers": least_squares(y[y > 0], design[y > 0]),
        "log_likelihood": log_likelihood,
        "purchases": y,
        "mean": design @ fit.coefficients,
        "residuals": tg.quantile_residuals(
            fit, jax.random.key(config.seed), num_draws=config.num_residuals
        )[..., 0],
        "level": config.level,
        "failed": "" if fit.converged else fit.reason,
    }
    notes = dict.fromkeys([*fit.notes, str(fit.outliers)])
    return results | {"summary": [*summary(results), fit.reason, *notes]}


def least_squares(y, design):
    """Coefficients, and the root mean square of the residuals."""
    coefficients = np.linalg.lstsq(design, y, rcond=None)[0]
    return np.append(coefficients, np.std(y - design @ coefficients))


def summary(results):
    """Ours beside the published table."""
    row = "{:<10}{:>22}{:>24}{:>22}{:>11}{:>11}".format
    interval = f"profile {results['level']:.0%}"
    lines = [row("", "estimate ± std. error", "published", interval, "all", "buyers")]
    for j, name in enumerate(NAMES):
        low, high = results["profile"][j]
        lines.append(
            row(
                name,
                f"{results['estimates'][j]:.6f} ± {results['stderr'][j]:.5f}",
                f"{results['published'][j]:.6f} ± {results['published_stderr'][j]:.5f}",
                f"[{low:.4g}, {high:.4g}]",
                f"{results['all_rows'][j]:.4f}",
                f"{results['buyers'][j]:.4f}",
            )
        )
    lines.append(
        f"log-likelihood {results['log_likelihood']:.8f}, published {PUBLISHED_LOG_LIKELIHOOD:.8f};"
        f" largest difference {results['distance']:.1e} standard errors"
    )
    return lines
