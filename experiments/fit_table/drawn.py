"""What the figure shows of the rows: what is known of them, beside what was fitted."""

import numpy as np


def shown(config, data, design, fit):
    """The rows and the fit as arrays.

    Args:
        config: the settings.
        data: the rows, as of `table.read`.
        design: their covariates, (n, p), or None.
        fit: the fit.

    Returns:
        lower, upper: of the outcomes, (n, d).
        low, high: where a row could be seen, (1, d) or (n, d).
        loc, scale: the fitted mean and standard deviation, (1, d) or (n, d); of a mixture (K, d).
        weights: of the components, (K,).
        covariance: of the first two outcomes, (2, 2); of a mixture (K, 2, 2).
        abscissa, abscissa_name, levels: what the outcomes are drawn over, if that is one covariate
            or one category, whose levels are numbered from 0.
        labels: of the outcomes, with their units.
        noisy: whether outcomes have measurement errors.
    """
    known, d = data.known, len(config.outcomes)
    limits = {
        side: np.atleast_2d(np.asarray(known.get(side, np.full(d, end))))
        for side, end in (("low", -np.inf), ("high", np.inf))
    }
    weights = np.ones(1)
    if config.components > 1:
        matrices, weights = np.asarray(fit.covariances), np.asarray(fit.weights)
        loc, scale = fit.locs, np.sqrt(np.diagonal(matrices, axis1=1, axis2=2))
    else:
        columns = np.ones((1, 1)) if design is None else design
        if config.scale_covariates:
            scales = np.column_stack([data.columns[name] for name in config.scale_covariates])
            loc, matrices = (columns @ fit.coefficients)[:, None], np.zeros((1, 1))
            scale = np.exp(fit.log_scale[0] + scales @ fit.log_scale[1:])[:, None]
        else:
            loc = np.column_stack([columns @ own for own in fit.coefficients])
            matrices = np.asarray(fit.covariance_matrix)
            scale = np.sqrt(np.diagonal(matrices))[None]
    place, name, levels = abscissa(config, data.columns)
    labels = [
        f"log {with_unit(config, name)}" if entry.log else with_unit(config, name)
        for name, entry in config.outcomes.items()
    ]
    return limits | ({} if place is None else {"abscissa": place}) | {
        "lower": known["lower"], "upper": known["upper"], "weights": weights,
        "loc": np.asarray(loc), "scale": np.asarray(scale), "covariance": matrices[..., :2, :2],
        "abscissa_name": name, "levels": np.array(levels, str), "labels": np.array(labels),
        "noisy": "noise" in known,
    }  # fmt: skip


def abscissa(config, columns):
    """The only covariate (n,), its name, and the levels that its numbers stand for."""
    if config.formula:
        return None, "", []
    if len(config.covariates) == 1 and not config.categories:
        (name,) = config.covariates
        return columns[name], with_unit(config, name), []
    if len(config.categories) == 1 and not config.covariates:
        ((name, reference),) = config.categories.items()
        others = sorted({str(level) for level in columns[name]} - {reference})
        levels = [reference, *others]
        return np.array([float(levels.index(str(x))) for x in columns[name]]), name, levels
    return None, "", []


def with_unit(config, name):
    unit = config.units().get(name, "")
    there = not unit or f"({unit})" in name or f"[{unit}]" in name
    return name if there else f"{name} ({unit})"
