"""A Gaussian fitted to the rows of a table that a selection has let through.

The mean of the observations inside the bounds is not that of all. The truncated fit corrects it;
where the table is complete, and holds the rows outside the bounds too, the correction is judged
against all of them. For a table of one's own, censored, noisy or with covariates, there is
`fit_table`.
"""

import numpy as np

import truncgauss as tg
from truncgauss import tables
from truncgauss.arrays.progress import bar


def run(config):
    """Naive, corrected and full moments, and a check of the errors."""
    rows, seen = rows_of(config)
    low, high = np.array(config.limits.low), np.array(config.limits.high)
    sample = np.asarray(rows[seen], config.dtype)
    table = dict(zip(config.columns, sample.T))
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
    results["summary"] = [*summary(results, fit.names), fit.reason, *notes_of(fit)]
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
    found = []
    for _ in bar(range(config.num_resamples), "fits to bootstrap samples", True):
        again = sample[rng.integers(len(sample), size=len(sample))]
        try:
            fit = tg.fit_truncated_normal(
                again, low, high, num_steps=config.num_steps, num_profiles=0
            )
        except ValueError:
            continue
        if fit.converged:
            found.append(fit.estimates)
    stderr = np.std(found, axis=0, ddof=1) if len(found) > 1 else np.zeros(0)
    return {"count": len(found), "stderr": stderr, "without_fit": config.num_resamples - len(found)}


# ---------------------------------------------------------------- what the user reads


HEADINGS = {"loc": "mean", "sigma": "standard deviation", "covariance": "covariance"}


def summary(results, names):
    """A table of the estimates beside those of all rows, and what its columns are."""
    seen, resampling, whole = results["seen"], results["resampled"], results.get("full")
    naive, full = entries(results["naive"]), entries(whole) if whole else {}
    errors = resampling["stderr"] if len(resampling["stderr"]) else None
    row = "{:<26}{:>9}{:>19}{:>19}{:>9}".format
    lines, last = [], ""
    for k, (name, own) in enumerate(zip(names, naive)):
        kind, _, entry = name.partition("[")
        if kind != last:
            unit = f" ({results['unit']})" if kind == "loc" and results["unit"] else ""
            heads = ("naive", "corrected", "95 % interval", f"all {len(seen)}" if whole else "")
            lines.append(row(HEADINGS[kind] + unit, *(heads if not last else [""] * 4)).rstrip())
        last = kind
        stderr = results["estimates"][f"{name}.stderr"] if errors is None else errors[k]
        ends = results["profile"].get(name)
        cells = (
            f"{own:.4f}", f"{results['estimates'][name]:.4f} ± {stderr:.4f}",
            "" if ends is None else f"[{ends[0]:.4f}, {ends[1]:.4f}]",
            f"{full[k]:.4f}" if whole else "",
        )  # fmt: skip
        lines.append(row(entry.rstrip("]") or str(results["columns"][0]), *cells).rstrip())
    inside = results["corrected"]["fraction"]
    what = f"naive: of the {seen.sum()} as they are; corrected: by a truncated Gaussian, ± its "
    if errors is None:
        what += "standard error by the curvature of the likelihood"
    else:
        what += f"bootstrap standard error ({resampling['count']} samples)"
    what += "; intervals: by the profile likelihood" if results["profile"] else ""
    what += f"; all {len(seen)}: the truth here" if whole else ""
    if resampling["without_fit"]:
        what += (
            f". {resampling['without_fit']} bootstrap samples allow no fit and are left out, so "
            "that these errors are too small"
        )
    first = (
        f"{seen.sum()} of {len(seen)} observations lie inside the bounds; the fitted Gaussian "
        f"expects {inside:.1%} inside"
    )
    return [first, *lines, what]


def entries(moments):
    """The mean and the lower triangle of the covariance, or of one column its deviation."""
    matrix = moments["covariance"]
    spread = matrix[np.tril_indices(len(matrix))] if len(matrix) > 1 else matrix[0] ** 0.5
    return np.concatenate([moments["loc"], spread])


def notes_of(fit):
    """What must be known of the fit."""
    notes = [note for note in fit.notes if not note.startswith("Profile intervals replace")]
    if fit.profiles:
        notes.append(
            "The log-likelihood is not quadratic: 1.96 standard errors on both sides are no 95 % "
            "interval here."
        )
    return notes
