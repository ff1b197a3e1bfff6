"""A Gaussian, a Gaussian regression or a mixture of Gaussians, fitted to a table of one's own.

The config says by the names of columns what is known of each outcome: exact, censored, an
interval, missing or noisy, and where a row could be seen at all. The fit is set beside the naive
one, by least squares through the recorded values, and judged by its residuals.

Several processes read and hold their own rows of a table of numbers; one with columns of texts,
whose marks and levels are those of all rows, is read by each.
"""

import sys

import numpy as np
from tqdm import tqdm

import truncgauss as tg
from truncgauss import distributed, pooling, tables

from . import mixture
from .settings import Entry, levels_of

NUM_CURVE = 7  # points of a profile's curve


def run(config):
    """Estimates with standard errors, the naive ones, the certificate, and residuals."""
    import jax

    table, share = own_table(config)
    table, share, dropped = without_strays(config, table, share)
    with pooling.pool(share), pooling.checked_together():
        rows, design = observations(config, table), design_of(config, table)
    covariates = None if design is None else np.column_stack(list(design.values()))
    with (
        pooling.given(share),
        tqdm(total=2 + len(config.profile), desc="fit", disable=None) as bar,
    ):
        fit = fitted(config, table, rows, design)
        bar.update()
        profiles = {name: profile(fit, name, bar) for name in config.profile}
        bar.set_description("residuals")
        residuals = tg.quantile_residuals(
            fit, jax.random.key(config.seed), num_draws=config.num_residuals
        )
        said, residuals = of_all(rows, residuals, share)
        simple = naive(config, rows, covariates, fit, share)
        bar.update()
    results = {
        "outcomes": np.array(list(config.outcomes)),
        **of_fit(fit),
        "naive": simple,
        "num_components": config.components,
        "profile": {name: np.array(ends) for name, (ends, _) in profiles.items()},
        "profile_curves": {name: np.array(curve) for name, (_, curve) in profiles.items()},
        "residuals": residuals,
        "dropped": np.array(dropped, int),
    }
    results["summary"] = summary(results, said, fit)
    return results


def of_fit(fit):
    """What the fit found, and how it went."""
    return {
        "names": np.array(fit.names),
        "estimates": fit.estimates,
        "stderr": fit.errors,
        "by_name": by_name(fit),
        "log_likelihood": fit.log_likelihood,
        "fraction_not_truncated": fit.fraction_not_truncated,
        "num_rows": fit.num_rows,
        "metrics": metrics(fit),
        "failed": "" if fit.converged else fit.reason,
    }


def of_all(rows, residuals, share):
    """What the rows of all processes are, in words, and the residuals of all of them."""
    counts = rows.counts()
    with pooling.pool(share):
        whole = pooling.total(np.array(list(counts.values())))
        stacked = pooling.stacked(np.swapaxes(residuals, 0, 1))
    return rows.described(dict(zip(counts, map(int, whole)))), np.swapaxes(stacked, 0, 1)


def own_table(config):
    """The columns of the rows that this process is to fit, and which of all rows these are; None if
    it has all."""
    import jax

    count = jax.process_count()
    if count == 1 or any(config.texts()):
        if count > 1 and distributed.first():
            print(
                "truncgauss: the table has columns of texts: every process reads all of it",
                file=sys.stderr,
            )
        return config.read_data(), None
    if distributed.first():
        scanned = ", scanning the text before them" if str(config.data).endswith(".csv") else ""
        print(f"truncgauss: each process reads its own rows{scanned}", file=sys.stderr)
    with pooling.checked_together(apart=True):
        table = config.read_data((jax.process_index(), count))
    return table, pooling.of_processes(len(next(iter(table.values()))))


def metrics(fit):
    """The loss at each step, and the Newton decrement where the fit keeps it."""
    decrements = getattr(fit, "newton_decrement_trace", np.full(len(fit.loss_trace), np.nan))
    return [
        {"step": i, "loss": float(loss), "decrement": float(decrement)}
        for i, (loss, decrement) in enumerate(zip(fit.loss_trace, decrements))
    ]


def observations(config, table):
    """What the table says of the outcomes."""
    given = {
        key: {name: value for name, entry in config.outcomes.items()
              if (value := getattr(entry, key)) is not None}
        for key in Entry.model_fields
    }  # fmt: skip
    return tg.Observations.from_table(
        table, list(config.outcomes), missing=bool(config.missing),
        weights=config.weights or None, **given,
    )  # fmt: skip


def fitted(config, table, rows, design):
    """The fit of the rows: a mixture, a regression whose scale has covariates, or any other."""
    if config.components > 1:
        return mixture.fitted(config, rows)
    settings = {"num_steps": config.num_steps, "information": config.information}
    if not config.scale_covariates:
        return tg.fit_observations(rows, design, config.covariance, **settings)
    ((name, entry),) = config.outcomes.items()
    columns = [np.ones(rows.num_rows), *(table[own] for own in config.scale_covariates)]
    scales = dict(zip(["constant", *config.scale_covariates], columns))
    with pooling.checked_together(apart=True):
        check_present(scales)
    outcome = np.column_stack([rows.lower, rows.upper])
    given = {"truncated_low": entry.truncated_low, "truncated_high": entry.truncated_high}
    marked = entry.left_censored or entry.right_censored
    if not (entry.lower or entry.upper or marked or config.missing):
        # With its limits of censoring, which have an expected information.
        outcome = table[name]
        given |= {"censored_low": entry.censored_low, "censored_high": entry.censored_high}
    settings |= {key: table[own] if isinstance(own, str) else own for key, own in given.items()}
    if rows.noise is not None:
        settings["noise"] = np.broadcast_to(np.ravel(rows.noise), rows.num_rows)
    covariates = {"constant": columns[0]} if design is None else design
    return tg.fit_regression(
        outcome, covariates, scale_design=scales, weights=rows.weights, **settings
    )


def without_strays(config, table, share):
    """The table without rows that lie outside of where they could be seen, its share of what is
    left, and the numbers of the strays among all rows.

    Raises:
        ValueError: there are such rows, and they are not to be dropped.
    """
    before = 0 if share is None else share.begin
    with pooling.pool(share):
        with pooling.checked_together():
            rows = observations(config, table)
            stray = strays(config, rows, before)
        dropped = [int(row) for row in pooling.stacked(stray + before)]
    kept = np.delete(np.arange(rows.num_rows), stray)
    table = {name: column[kept] for name, column in table.items()}
    return table, share and pooling.of_processes(len(kept)), dropped


def strays(config, rows, before):
    """The numbers of rows outside of where they could be seen, of which some stand before these."""
    if rows.region is None:
        return np.zeros(0, int)
    lower, upper = np.asarray(rows.lower), np.asarray(rows.upper)
    low, high = (np.broadcast_to(end, lower.shape) for end in (rows.region.low, rows.region.high))
    stray = np.flatnonzero(((lower > high) | (upper < low)).any(axis=1))
    if len(stray) and config.stray_rows == "refuse":
        raise ValueError(
            f"{len(stray)} of {len(lower)} rows lie outside of where a row could be seen, first "
            f"{tables.place(config.data, before + stray[0], config.where)}: {lower[stray[0]]} to "
            f"{upper[stray[0]]}, but seen only from {low[stray[0]]} to {high[stray[0]]}. Correct "
            "the limits or the rows, or say `stray_rows: drop`."
        )
    return stray


def design_of(config, table):
    """The covariates by name, with a constant, or None if there are none."""
    names = ["constant", *config.covariates]
    columns = [np.ones(len(next(iter(table.values())))), *(table[n] for n in config.covariates)]
    for name, reference in config.categories.items():
        levels = levels_of(table, name, reference)
        names += [f"{name}: {level}" for level in levels]
        columns += [(table[name] == level).astype(float) for level in levels]
    if len(names) == 1:
        return None
    design = dict(zip(names, columns))
    check_present(design)
    return design


def check_present(columns):
    """Raise ValueError if a covariate is missing in some row."""
    absent = [name for name, column in columns.items() if np.isnan(column).any()]
    if absent:
        raise ValueError(
            f"covariate {absent[0]!r} is missing in some rows. Only outcomes may be missing: "
            "remove these rows, or leave the covariate out."
        )


def profile(fit, name, bar):
    """The profile interval and curve of an estimate."""
    bar.set_description(f"profile of {name}")
    bar.update()
    if not fit.converged:
        return (np.nan, np.nan), np.full((2, NUM_CURVE), np.nan)
    return fit.profile(name), fit.profile_curve(name, NUM_CURVE)


def naive(config, rows, design, fit, share):
    """The same estimates by least squares through the recorded values, as if known exactly.

    A censored entry counts by its limit, an interval by its middle; a missing one is left out.
    """
    lower, upper = np.asarray(rows.lower), np.asarray(rows.upper)
    low, high = np.where(np.isinf(lower), upper, lower), np.where(np.isinf(upper), lower, upper)
    complete = (np.isfinite(low) & np.isfinite(high)).all(axis=1)
    middle = np.where(complete[:, None], low, 0.0) / 2 + np.where(complete[:, None], high, 0.0) / 2
    if config.components > 1:
        with pooling.given(share and pooling.of_processes(int(complete.sum()))):
            return mixture.naive(config, rows, (middle[complete], complete), fit)
    weights = np.ones(len(middle)) if rows.weights is None else np.asarray(rows.weights)
    root = np.sqrt(weights[complete])[:, None]
    columns = np.ones((len(middle), 1)) if design is None else design
    x, y = columns[complete] * root, middle[complete] * root
    with pooling.pool(share):
        coefficients = np.column_stack([pooling.least_squares(x, own) for own in y.T])
        residuals = y - x @ coefficients
        products, size = pooling.total((residuals.T @ residuals, weights[complete].sum()))
    matrix = products / size
    kept = np.tril_indices(len(matrix))
    if config.covariance == "diagonal":
        kept = np.diag_indices(len(matrix))
    last = matrix[kept]
    if config.scale_covariates:
        last = np.append(0.5 * np.log(matrix[0]), np.zeros(len(config.scale_covariates)))
    values = np.concatenate([coefficients.T.ravel(), last])
    assert len(values) == len(fit.estimates)
    return values


def by_name(fit):
    """Every estimate and its standard error by name, for summary.json."""
    pairs = zip(fit.names, fit.estimates, fit.errors)
    return {
        key: float(number)
        for name, estimate, error in pairs
        for key, number in ((name, estimate), (f"{name}, standard error", error))
    }


# ---------------------------------------------------------------- what the user reads


def summary(results, said, fit):
    """The table of estimates, the certificate, and what was dropped."""
    width = max(map(len, results["names"]))
    row = f"{{:<{width}}} {{:>12}} {{:>12}} {{:>26}} {{:>12}}".format
    verdict = "converged" if fit.converged else "not converged"
    lines = [
        f"{said}; {verdict}, log-likelihood {fit.log_likelihood:.6g}",
        row("", "estimate", "std. error", "95 % interval", "naive"),
    ]
    columns = zip(results["names"], results["estimates"], results["stderr"], results["naive"])
    for name, estimate, error, simple in columns:
        wald = estimate - 1.959964 * error, estimate + 1.959964 * error
        ends = "[{:.6g}, {:.6g}]".format(*fit.profiles.get(name, wald))
        lines.append(row(name, f"{estimate:.6g}", f"{error:.6g}", ends, f"{simple:.6g}"))
    for name, (low, high) in results["profile"].items():
        lines.append(f"profile interval of {name}: [{low:.6g}, {high:.6g}]")
    lines.append(
        f"log-likelihood {fit.log_likelihood:.10g}, {fit.num_rows:g} rows, {fit.num_parameters} "
        f"parameters, AIC {fit.aic:.6g}, BIC {fit.bic:.6g}; standard errors from the "
        f"{fit.information} information"
    )
    dropped = results["dropped"]
    if len(dropped):
        shown = ", ".join(map(str, dropped[:10])) + (", ..." if len(dropped) > 10 else "")
        lines.append(f"dropped {len(dropped)} stray row(s), counted from 0: {shown}")
    certificate = [] if fit.certificate is None else [f"Certificate: {fit.certificate}."]
    return [
        *lines,
        *(in_config(text) for text in (fit.reason, *certificate, *fit.notes)),
    ]


def in_config(text):
    """A sentence of the fit for those who have a config in place of a call."""
    return text.replace("Use profile(name).", "Name them under `profile` in the config.")
