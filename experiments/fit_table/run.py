"""A Gaussian, a Gaussian regression or a mixture of Gaussians, fitted to a table of one's own.

The config says by the names of columns what is known of each outcome: exact, censored, an
interval, missing or noisy, and where a row could be seen at all. The fit is set beside the naive
one, by least squares through the recorded values, and judged by its residuals.
"""

import pathlib

import jax
import numpy as np

import truncgauss as tg
from truncgauss import tables
from truncgauss.arrays.progress import bar

from . import drawn

NUM_CURVE = 7  # points of a profile's curve
QUANTILE = 1.959964


def run(config):
    """Estimates with standard errors, the naive ones, the certificate, and residuals."""
    data = config.read_data()
    known = {key: array for key, array in data.known.items() if key not in ("low", "high")}
    if "low" in data.known:
        known["region"] = tg.Box(data.known["low"], data.known["high"])
    rows = tg.Observations(**known, names=tuple(config.labels))
    design = None
    if config.formula:
        design = tables.formula(config.formula, data.columns, config.categories)[1]
    elif config.covariates or config.categories:
        design = tables.design(data.columns, config.covariates, config.categories)
    covariates = None if design is None else np.column_stack(list(design.values()))
    fit = fitted(config, data, rows, design)
    profiles = {name: profile(fit, name) for name in config.profile}
    with bar(None, "residuals", True):
        residuals = tg.quantile_residuals(
            fit, jax.random.key(config.seed), num_draws=config.num_residuals
        )
    results = {
        "outcomes": np.array(config.labels),
        **of_fit(fit, profiles),
        "naive": naive(config, rows, covariates, fit),
        "num_components": config.components,
        "correlations": correlations_of(config, fit),
        "profile": {name: np.array(ends) for name, (ends, _) in profiles.items()},
        "profile_curves": {name: np.array(curve) for name, (_, curve) in profiles.items()},
        "residuals": residuals,
        "data": drawn.shown(config, data, covariates, fit),
        "dropped": data.stray,
        "incomplete": data.incomplete,
        **outliers_of(fit, config, data),
    }
    results["summary"] = summary(results, rows.described(rows.counts()), fit)
    return results


def of_fit(fit, profiles):
    """What the fit found, and how it went."""
    ends = np.stack([fit.estimates - QUANTILE * fit.errors, fit.estimates + QUANTILE * fit.errors])
    asked = {name: low_and_high for name, (low_and_high, _) in profiles.items()}
    by_profile = getattr(fit, "profiles", {}) | asked
    for name, low_and_high in by_profile.items():
        ends[:, fit.names.index(name)] = low_and_high
    kinds = [", profile" if name in by_profile else "" for name in fit.names]
    decrements = getattr(fit, "newton_decrement_trace", np.full(len(fit.loss_trace), np.nan))
    return {
        "log_likelihood": fit.log_likelihood,
        "bic": fit.bic,
        "names": np.array(fit.names),
        "estimates": fit.estimates,
        "stderr": fit.errors,
        "intervals": np.array([f"[{a:.6g}, {b:.6g}]{c}" for a, b, c in zip(*ends, kinds)]),
        "interval_ends": ends.T,
        "by_name": by_name(fit, ends),
        "fraction_not_truncated": fit.fraction_not_truncated,
        "num_rows": fit.num_rows,
        "metrics": [
            {"step": i, "loss": float(loss), "decrement": float(decrement)}
            for i, (loss, decrement) in enumerate(zip(fit.loss_trace, decrements))
        ],
        "failed": "" if fit.converged else fit.reason,
    }


def correlations_of(config, fit):
    """The correlation of each pair of outcomes with its standard error and Wald interval, by name,
    where the fit has some."""
    several = len(config.outcomes) > 1 and config.covariance != "diagonal"
    if not several or config.components > 1 or not fit.converged:
        return {}
    found = fit.derived("correlation")
    ends = found.wald().reshape(-1, 2)
    numbers = np.column_stack([found.value.ravel(), found.standard_errors.ravel(), ends])
    return {found.names[k]: numbers[k] for k in found.shown}


def outliers_of(fit, config, data):
    """The rows that are farthest from their fitted means, if the fit judges them, with the numbers
    and the lines that they have in the table."""
    outliers = getattr(fit, "outliers", None)
    if outliers is None:
        return {}

    # As seen from the current folder, if it lies there: records then do not tell where that is.
    here, path = pathlib.Path.cwd(), config.data
    shown = path.relative_to(here) if path.is_relative_to(here) else path

    def line(row):
        place = tables.location(path, row, config.where, units_row=config.units_row)
        return place.replace(str(path), str(shown), 1)

    outliers = outliers.renumbered(data.rows)
    return {"outliers": outliers._asdict() | {"said": outliers.described(line)}}


def fitted(config, data, rows, design):
    """The fit of the rows: a mixture, a regression whose scale has covariates, or any other."""
    settings = {"num_steps": config.num_steps, "information": config.information}
    if config.components > 1:
        return tg.fit_mixture(
            rows, config.components, covariance=config.covariance, num_starts=config.num_starts,
            key=jax.random.key(config.seed), **settings,
        )  # fmt: skip
    if not config.scale_covariates:
        return tg.fit_observations(rows, design, config.covariance, **settings)
    columns = [np.ones(rows.num_rows), *(data.columns[own] for own in config.scale_covariates)]
    scales = dict(zip(["constant", *config.scale_covariates], columns))
    outcome = np.column_stack([rows.lower, rows.upper])
    for key, side in (("truncated_low", "low"), ("truncated_high", "high")):
        if side in data.known:
            settings[key] = data.known[side][..., 0]
    if rows.noise is not None:
        settings["noise"] = np.broadcast_to(np.ravel(rows.noise), rows.num_rows)
    covariates = {"constant": columns[0]} if design is None else design
    return tg.fit_regression(
        outcome, covariates, scale_design=scales, weights=rows.weights, **settings
    )


def profile(fit, name):
    """The profile interval and curve of an estimate."""
    if not fit.converged:
        return (np.nan, np.nan), np.full((2, NUM_CURVE), np.nan)
    with bar(None, f"profile of {name}", True):
        return fit.profile(name), fit.profile_curve(name, NUM_CURVE)


def naive(config, rows, design, fit):
    """The same estimates by least squares through the recorded values, as if known exactly.

    A censored entry counts by its limit, an interval by its middle; a missing one is left out, but
    not the other entries of its row.
    """
    lower, upper = np.asarray(rows.lower), np.asarray(rows.upper)
    low, high = np.where(np.isinf(lower), upper, lower), np.where(np.isinf(upper), lower, upper)
    recorded = np.isfinite(low) & np.isfinite(high)
    middle = np.where(recorded, low, 0.0) / 2 + np.where(recorded, high, 0.0) / 2
    if config.components > 1:
        ends = (np.where(recorded, middle, end) for end in (-np.inf, np.inf))
        return naive_mixture(config, tg.Observations(*ends, weights=rows.weights), fit)
    weights = np.ones(rows.num_rows) if rows.weights is None else np.asarray(rows.weights)
    root = np.sqrt(weights)[:, None] * recorded
    columns = np.ones((rows.num_rows, 1)) if design is None else design
    pairs = zip(root.T, middle.T)
    found = [np.linalg.lstsq(columns * x[:, None], y * x, rcond=None)[0] for x, y in pairs]
    coefficients = np.column_stack(found)
    residuals = (middle - columns @ coefficients) * root
    with np.errstate(invalid="ignore"):  # by the rows that have both columns, if there are any
        matrix = (residuals.T @ residuals) / (root.T @ root)
    entries = np.diag_indices if config.covariance == "diagonal" else np.tril_indices
    kept = entries(len(matrix))
    last = matrix[kept] if len(matrix) > 1 else np.sqrt(matrix[kept])
    if config.scale_covariates:
        last = np.append(0.5 * np.log(matrix[0]), np.zeros(len(config.scale_covariates)))
    values = np.concatenate([coefficients.T.ravel(), last])
    assert len(values) == len(fit.estimates)
    return values


def naive_mixture(config, rows, fit):
    """The mixture of the recorded values as if not truncated, from the corrected one on; NaN
    where that has no maximum."""
    start, none = dict(fit.parameters()), np.full(len(fit.estimates), np.nan)
    try:
        found = tg.fit_mixture(rows, config.components, covariance=config.covariance, start=start)
    except tg.mixtures.NoMaximum:
        return none
    return found.estimates if found.converged else none


def by_name(fit, ends):
    """Every estimate, its standard error and its interval by name, for summary.json."""
    more = {
        f"{name}, {what}": float(number)
        for name, *numbers in zip(fit.names, fit.errors, *ends)
        for what, number in zip(("standard error", "low", "high"), numbers)
    }
    estimates = {name: float(x) for name, x in zip(fit.names, fit.estimates)}
    return estimates | more | estimates  # which keep their names whatever the others are called


# ---------------------------------------------------------------- what the user reads


def summary(results, said, fit):
    """The table of estimates, the certificate, and what was dropped."""
    width = max(map(len, [*results["names"], *results["correlations"]]))
    wide = max(map(len, results["intervals"]))
    row = f"{{:<{width}}} {{:>12}} {{:>12}} {{:>{max(wide, 18)}}} {{:>12}}".format
    lines = [
        said,
        row("", "estimate", "std. error", "95 % interval", "naive"),
    ]
    keys = ("names", "estimates", "stderr", "intervals", "naive")
    for name, estimate, error, ends, simple in zip(*(results[key] for key in keys)):
        lines.append(row(name, f"{estimate:.6g}", f"{error:.6g}", ends, f"{simple:.6g}"))
    for name, (value, error, *ends) in results["correlations"].items():
        interval = "[{:.6g}, {:.6g}]".format(*ends)
        lines.append(row(name, f"{value:.6g}", f"{error:.6g}", interval, "").rstrip())
    lines.append(
        f"log-likelihood {fit.log_likelihood:.10g}, {fit.num_rows:g} observations, "
        f"{fit.num_parameters} parameters, AIC {fit.aic:.6g}, BIC {fit.bic:.6g}; standard errors "
        f"from the {fit.information} information"
    )
    for key, kind in (("dropped", "stray"), ("incomplete", "incomplete")):
        numbers = list(map(str, results[key]))
        if numbers:
            shown = ", ".join(numbers[:10]) + (", ..." if len(numbers) > 10 else "")
            lines.append(f"dropped {len(numbers)} {kind} row(s), counted from 0: {shown}")
    # Where there is no maximum, the point at which the steps ended says nothing.
    certified = fit.certificate is not None and not np.isinf(fit.errors).all()
    certificate = [f"It is {fit.certificate.kind}; {fit.certificate.known}."] if certified else []
    notes = [note for note in fit.notes if note != str(getattr(fit, "outliers", None))]
    outliers = [results["outliers"]["said"]] if "outliers" in results else []
    return [*lines, *(in_config(text) for text in (fit.reason, *certificate, *notes, *outliers))]


def in_config(text):
    """A sentence of the fit for those who have a config in place of a call."""
    return text.replace("Use profile(name).", "Name them under `profile` in the config.")
