"""A Gaussian fitted to the rows of a table that a selection has let through.

The mean of the observations inside the bounds is not that of all. The truncated fit corrects it;
where the table is complete, and holds the rows outside the bounds too, the correction is judged
against all of them. For a table of one's own, censored, noisy or with covariates, there is
`fit_table`.
"""

import jax.numpy as jnp
import numpy as np

import truncgauss as tg
from truncgauss import tables
from truncgauss.arrays.progress import bar


def run(config):
    """Naive, corrected and full moments, and a check of the errors."""
    rows, seen = rows_of(config)
    low, high = np.array(config.limits.low), np.array(config.limits.high)
    sample = jnp.asarray(rows[seen], config.dtype)
    table = dict(zip(config.columns, np.asarray(sample).T))
    fit = tg.fit_truncated_normal(table, low, high, num_steps=config.num_steps)
    means = fit.names[: len(config.columns)] if fit.converged else ()
    with bar(None, "profile intervals", True):
        # Of means, and of estimates whose Wald intervals do not hold; none without a maximum.
        profiles = {
            name: np.array(fit.profiles.get(name) or fit.profile(name))
            for name in fit.names
            if name in means or name in fit.profiles
        }
    values = zip(fit.names, fit.estimates, fit.errors)
    results = {
        "columns": np.array(config.columns),
        "estimates": {  # for summary.json
            key: float(x)
            for name, estimate, error in values
            for key, x in ((name, estimate), (f"{name}.stderr", error))
        },
        "profile": profiles,
        "unit": config.unit,
        "limits": {"low": low, "high": high},
        "rows": rows,
        "seen": seen,
        "naive": moments(rows[seen]),
        "corrected": {
            "loc": np.asarray(fit.loc),
            "covariance": np.asarray(fit.covariance_matrix),
            "stderr": np.asarray(fit.standard_errors.loc),
            "fraction": float(fit.fraction_not_truncated),
            "log_likelihood": float(fit.log_likelihood),
        },
        "metrics": [
            {"step": step, "loss": float(loss), "decrement": float(decrement)}
            for step, (loss, decrement) in enumerate(
                zip(fit.loss_trace, fit.newton_decrement_trace, strict=True)
            )
        ],
        "resampled": resampled(sample, low, high, config),
        "failed": "" if fit.converged else fit.reason,
    }
    if not seen.all():
        results["full"] = moments(rows)
    results["summary"] = [*summary(results), fit.reason, *notes_of(fit), *intervals(results)]
    return results


def rows_of(config):
    """The chosen columns, (n, d), and which rows lie inside the limits, (n,)."""
    found = config.read_data()
    rows = np.stack([found[name] for name in config.columns], axis=1)
    endless = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(endless):
        raise ValueError(
            f"{tables.location(config.data, endless[0], config.where)} holds an infinite value: "
            f"{rows[endless[0]]}."
        )
    seen = np.all((rows >= config.limits.low) & (rows <= config.limits.high), axis=1)
    if not seen.any():
        raise ValueError(
            f"None of the {len(rows)} observations lies inside the bounds: check their units."
        )
    if not (config.complete or seen.all()):
        stray = np.flatnonzero(~seen)
        raise ValueError(
            f"{len(stray)} of {len(rows)} observations lie outside the bounds, first row "
            f"{stray[0]} {rows[stray[0]]}. If the table holds all, selected or not, say `complete: "
            "true`; if these are strays, correct or remove them, or use fit_table, which can drop "
            "them."
        )
    return rows, seen


def moments(rows):
    """Mean, covariance and the standard error of the mean of complete rows."""
    covariance = np.cov(rows, rowvar=False).reshape(rows.shape[1], rows.shape[1])
    stderr = np.sqrt(np.diagonal(covariance) / len(rows))
    return {"loc": rows.mean(axis=0), "covariance": covariance, "stderr": stderr}


def resampled(sample, low, high, config):
    """Standard errors once more: the spread of fits to rows drawn again with replacement.

    Rows drawn again may allow no fit: the likelihood may have no maximum, few rows no spread.
    """
    rng = np.random.default_rng(config.seed)
    locs = []
    for _ in bar(range(config.num_resamples), "fits to bootstrap samples", True):
        again = sample[rng.integers(len(sample), size=len(sample))]
        try:
            fit = tg.fit_truncated_normal(
                again, low, high, num_steps=config.num_steps, num_profiles=0
            )
        except ValueError:
            continue
        if fit.converged:
            locs.append(np.asarray(fit.loc))
    failed, locs = config.num_resamples - len(locs), np.array(locs).reshape(-1, len(low))
    stderr = np.std(locs, axis=0, ddof=1) if len(locs) > 1 else np.full(len(low), np.nan)
    return {"loc": locs, "stderr": stderr, "without_fit": failed}


# ---------------------------------------------------------------- what the user reads


def summary(results):
    """Tables of the three means with standard errors, and of how far two of them are off."""
    naive, corrected, full = (results.get(name) for name in ("naive", "corrected", "full"))
    seen, unit = results["seen"], results["unit"]
    resampling = results["resampled"]
    again = len(resampling["loc"]) > 1
    row = "{:<16}{:>18}{:>18}{:>18}{:>12}".format
    last = "resampled" if again else ""
    lines = [
        f"{seen.sum()} of {len(seen)} observations lie inside the bounds; the fitted Gaussian "
        f"expects {corrected['fraction']:.1%} inside",
        row(f"mean{f' ({unit})' if unit else ''}", "naive", "corrected", "all", last),
    ]
    for j, column in enumerate(results["columns"]):
        cells = [
            f"{each['loc'][j]:.4f} ± {each['stderr'][j]:.4f}" if each else "none truncated"
            for each in (naive, corrected, full)
        ]
        lines.append(row(str(column), *cells, f"± {resampling['stderr'][j]:.4f}" if again else ""))
    if resampling["without_fit"]:
        lines.append(
            f"{resampling['without_fit']} bootstrap samples allow no fit and are left out of "
            "the last column, which is then too small"
        )
    if full:
        lines += distances(results)
    return lines


def distances(results):
    """A table of how far the naive and the corrected means are from those of all rows."""
    row = "{:<20}{:>24}{:>24}".format
    lines = [row("minus that of all", "naive", "corrected")]
    for j, column in enumerate(results["columns"]):
        cells = []
        for name in ("naive", "corrected"):
            off = results[name]["loc"][j] - results["full"]["loc"][j]
            cells.append(f"{off:+.4f}, {abs(off) / results[name]['stderr'][j]:.2f} errors")
        lines.append(row(str(column), *cells))
    return lines


def notes_of(fit):
    """What must be known of the fit, before the intervals that follow the likelihood."""
    notes = [note for note in fit.notes if not note.startswith("Profile intervals replace")]
    if fit.profiles:
        notes.append(
            "The log-likelihood is not quadratic, so that 95 % intervals are not ± 1.96 standard "
            "errors; by the profile likelihood they are:"
        )
    return notes


def intervals(results):
    """A table of estimates with intervals that follow the likelihood, and those of all rows."""
    row, whole = "{:<40}{:>10}{:>24}{:>10}".format, {}
    if not results["profile"]:
        return []
    if "full" in results:
        rows, columns = np.tril_indices(len(results["columns"]))
        entries = results["full"]["covariance"][rows, columns]
        numbers = np.concatenate([results["full"]["loc"], entries])
        names = [name for name in results["estimates"] if not name.endswith(".stderr")]
        whole = dict(zip(names, numbers))
    lines = [row("", "corrected", "95 % profile interval", "all" if whole else "").rstrip()]
    for name, (low, high) in results["profile"].items():
        of_all = f"{whole[name]:.4f}" if whole else ""
        estimate, interval = f"{results['estimates'][name]:.4f}", f"[{low:.4f}, {high:.4f}]"
        lines.append(row(name, estimate, interval, of_all).rstrip())
    return lines
