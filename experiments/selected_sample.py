"""A Gaussian fitted to the rows of a table that a selection has let through.

The mean of the rows that were seen is not the mean of all. The truncated fit corrects it; where the
table also holds the rows outside the limits, the correction is judged against all of them. With
`data` and `columns` it does the same for a table of one's own, with or without unseen rows.
"""

import csv

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import truncgauss as tg
from truncgauss import cli, parallel, plotting
from truncgauss.config import suggestion


def run(config):
    """Naive, corrected and full moments, a check of the errors, and the fraction along a shift."""
    rows = table(config.data, config.columns, config.where)
    low, high = np.array(config.limits.low), np.array(config.limits.high)
    seen = np.all((rows >= low) & (rows <= high), axis=1)
    if not seen.any():
        raise ValueError(f"None of the {len(rows)} rows lies inside the limits: check their units.")
    sample = jnp.asarray(rows[seen], config.dtype)
    with tqdm(total=config.num_resamples + 2, desc="fit", disable=None) as bar:
        fit = tg.fit_truncated_normal(sample, low, high, num_steps=config.num_steps)
        bar.update()
        bar.set_description("fits to resampled rows")
        again = resampled(sample, low, high, config, bar)
        bar.set_description("fraction along a shift")
        curves = shift_curve(fit, tg.Box(low, high), config)
        bar.update()
    results = {
        "columns": np.array(config.columns),
        "unit": config.unit,
        "limits": {"low": low, "high": high},
        "rows": rows,
        "seen": seen,
        "naive": moments(rows[seen]),
        **of_fit(fit),
        "resampled": again,
        "shift": curves,
        "failed": "" if fit.converged else fit.reason,
    }
    if not seen.all():
        results["full"] = moments(rows)
    results["summary"] = [*summary(results), fit.reason, *fit.notes]
    return results


def moments(rows):
    """Mean, covariance and the standard error of the mean of complete rows."""
    covariance = np.cov(rows, rowvar=False).reshape(rows.shape[1], rows.shape[1])
    stderr = np.sqrt(np.diagonal(covariance) / len(rows))
    return {"loc": rows.mean(axis=0), "covariance": covariance, "stderr": stderr}


def of_fit(fit):
    """What the truncated fit found, and its trace."""
    losses, decrements = np.asarray(fit.loss_trace), np.asarray(fit.newton_decrement_trace)
    steps = enumerate(zip(losses, decrements, strict=True))
    return {
        "corrected": {
            "loc": np.asarray(fit.loc),
            "covariance": np.asarray(fit.covariance_matrix),
            "stderr": np.asarray(fit.standard_errors.loc),
            "fraction": float(fit.fraction_not_truncated),
            "log_likelihood": float(fit.log_likelihood),
        },
        "loss": losses,
        "decrement": decrements,
        "metrics": [
            {"step": step, "loss": float(loss), "decrement": float(decrement)}
            for step, (loss, decrement) in steps
        ],
    }


def resampled(sample, low, high, config, bar):
    """Standard errors once more: the spread of fits to rows drawn again with replacement.

    Rows drawn again may allow no fit: the likelihood may have no maximum, few rows no spread.
    """
    rng = np.random.default_rng(config.seed)
    locs, failed = [], 0
    for _ in range(config.num_resamples):
        again = sample[rng.integers(len(sample), size=len(sample))]
        bar.update()
        try:
            fit = tg.fit_truncated_normal(again, low, high, num_steps=config.num_steps)
        except ValueError:
            failed += 1
            continue
        if fit.converged:
            locs.append(np.asarray(fit.loc))
        else:
            failed += 1
    locs = np.array(locs).reshape(-1, len(low))
    stderr = np.std(locs, axis=0, ddof=1) if len(locs) > 1 else np.full(len(low), np.nan)
    return {"loc": locs, "stderr": stderr, "without_fit": failed}


def shift_curve(fit, region, config):
    """The fraction inside the limits, soft and by the best method, as the mean moves.

    The mean moves by a multiple of the standard deviations, in all columns at once.
    """
    scale = jnp.sqrt(jnp.diagonal(fit.covariance_matrix))
    grid = config.shift
    shifts = jnp.linspace(grid.start, grid.stop, grid.num, dtype=scale.dtype)
    samples = jax.random.normal(
        jax.random.key(config.seed), (config.num_samples, len(scale)), scale.dtype
    )
    samples = parallel.spread(samples, parallel.device_mesh(config.devices))
    soft = tg.SoftMonteCarlo(samples=samples, edge=edge_of(config.edge))

    def fraction(shift, method):
        loc = fit.loc + shift * scale
        estimate = tg.log_probability(loc, fit.covariance_matrix, region, method=method)
        return jnp.exp(estimate.log_prob), estimate.stderr

    @jax.jit
    def along(shifts, method):
        one = jax.value_and_grad(lambda shift: fraction(shift, method), has_aux=True)
        return jax.lax.map(one, shifts)

    curves = {"shift": np.asarray(shifts)}
    for name, method in (("soft", soft), ("best", tg.Automatic())):
        (value, stderr), gradient = jax.tree.map(np.asarray, along(shifts, method))
        curves |= {name: value, f"{name}_gradient": gradient, f"{name}_stderr": value * stderr}
    exact = not curves["best_stderr"].any()
    return curves | {"best_name": "exact" if exact else "Automatic"}


def edge_of(section):
    """The edge that a section of the settings describes."""
    kinds = {"tanh": tg.Tanh, "probit": tg.Probit, "bump": tg.Bump, "hard": tg.Hard}
    return kinds[section.kind](**section.model_dump(exclude={"kind"}))


# ---------------------------------------------------------------- the table


def table(path, columns, where):
    """The chosen columns of a CSV file as numbers, shape (n, d).

    Raises:
        ValueError: for a column that is not there, a cell that is no number, or no row left.
    """
    with open(path, newline="", encoding="utf-8-sig") as file:
        lines = file.read().splitlines()
    if not lines:
        raise ValueError(f"{path} is empty.")
    delimiter = max(",;\t", key=lines[0].count)
    reader = csv.reader(lines, delimiter=delimiter)
    header = [name.strip() for name in next(reader)]
    for name in (*columns, *where):
        if header.count(name) != 1:
            times = "twice" if name in header else "not"
            raise ValueError(
                f"{path}: column {name!r} is {times} in the header; {suggestion(name, header)}"
            )
    kept, texts = [], {name: set() for name in where}
    for cells in reader:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise ValueError(
                f"{path}:{reader.line_num}: {len(cells)} cells, but the header has {len(header)}."
            )
        row = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
        for name in where:
            texts[name].add(row[name])
        if all(row[name] == text for name, text in where.items()):
            kept.append([number(path, reader.line_num, name, row[name]) for name in columns])
    if not kept:
        found = "; ".join(
            f"{name}: {suggestion(text, sorted(texts[name]))}" for name, text in where.items()
        )
        raise ValueError(f"{path}: no row to fit. {found}".strip())
    return np.array(kept)


def number(path, line, column, text):
    try:
        value = float(text)
    except ValueError:
        value = None
    if value is None or not np.isfinite(value):
        got = repr(text) if text else "an empty cell"
        raise ValueError(
            f"{path}:{line}: column {column!r} must be a number, got {got}. Complete or drop the "
            "row: a missing cell is not a truncated one."
        )
    return value


# ---------------------------------------------------------------- what the user reads


def summary(results):
    """The three means with standard errors, and how far the correction went."""
    naive, corrected, full = (results.get(name) for name in ("naive", "corrected", "full"))
    seen, unit = results["seen"], results["unit"]
    resampling = results["resampled"]
    row = "{:<16}{:>18}{:>18}{:>18}{:>12}".format
    lines = [
        f"{seen.sum()} of {len(seen)} rows lie inside the limits; the fitted Gaussian expects "
        f"{corrected['fraction']:.1%} inside",
        row(f"mean{f' ({unit})' if unit else ''}", "naive", "corrected", "all rows", "resampled"),
    ]
    for j, column in enumerate(results["columns"]):
        cells = [
            f"{each['loc'][j]:.4f} ± {each['stderr'][j]:.4f}" if each else "none unseen"
            for each in (naive, corrected, full)
        ]
        lines.append(row(str(column), *cells, f"± {resampling['stderr'][j]:.4f}"))
    if resampling["without_fit"]:
        lines.append(
            f"{resampling['without_fit']} sets of resampled rows allow no fit and are left out of "
            "the last column, which is then too small"
        )
    if full:
        lines += [verdict(results, j) for j in range(len(results["columns"]))]
    return lines


def verdict(results, j):
    """How far the correction of one mean went, in words that fit either direction."""
    naive, corrected, full = (results[name]["loc"][j] for name in ("naive", "corrected", "full"))
    stderr = results["corrected"]["stderr"][j]
    moved, needed = corrected - naive, full - naive
    if moved * needed < 0:
        how = "goes the wrong way"
    elif abs(moved) > abs(needed):
        how = f"overshoots by {abs(moved - needed):.4f}"
    else:
        how = f"falls short by {abs(moved - needed):.4f}"
    return (
        f"{results['columns'][j]}: corrected by {moved:+.4f} where all rows ask for {needed:+.4f}, "
        f"it {how}, {abs(corrected - full) / stderr:.2f} standard errors "
        f"(the naive mean: {abs(needed) / results['naive']['stderr'][j]:.2f} of its own)"
    )


# ---------------------------------------------------------------- the figure


def plot(results):
    """The Gaussians with the box, the trace of the fit, and the fraction along a shift."""
    picture, axes = plotting.mosaic(
        [["rows", "fit"], ["rows", "shift"]], size=(5.0, 3.1), width_ratios=(1.2, 1)
    )
    left, middle, right = (axes[name] for name in ("rows", "fit", "shift"))
    (plane if len(results["columns"]) > 1 else line)(results, left)
    plotting.trace(
        results["loss"] - results["loss"].min(), results["decrement"],
        ylabel="loss − lowest (nats a row)", norm_label="Newton decrement", ax=middle,
    )  # fmt: skip
    plotting.title("The fit", ax=middle)
    curves = results["shift"]
    plotting.value_and_gradient(
        curves["shift"], curves["soft"], curves["soft_gradient"],
        value_stderr=curves["soft_stderr"],
        reference=(curves["best"], curves["best_gradient"]), reference_label=curves["best_name"],
        xlabel="shift of the mean (standard deviations)",
        value_label="soft fraction not truncated", gradient_label="its gradient (per s.d.)",
        ax=right,
    )  # fmt: skip
    plotting.title("The fraction as the mean moves", ax=right)
    for ax in (left, middle, right):
        plotting.legend(columns=3 if ax is left else 2, ax=ax)
    return picture


NAMES = {"naive": "naive fit", "corrected": "truncated fit", "full": "fit to all rows"}


def axis_name(results, j):
    unit = f" ({results['unit']})" if str(results["unit"]) else ""
    return str(results["columns"][j]).replace("_", " ") + unit


def plane(results, ax):
    """Rows, ellipses of the three Gaussians, and the region, in the first two columns."""
    for kind, label in ((True, "rows, seen"), (False, "rows, not seen")):
        rows = results["rows"][results["seen"] == kind, :2]
        if len(rows):
            # Rounded measurements coincide.
            places, counts = np.unique(rows, axis=0, return_counts=True)
            plotting.points(*places.T, counts=counts, filled=kind, label=label, ax=ax)
    for number, name in enumerate(("naive", "corrected", "full")):
        if name in results:
            plotting.contours(
                results[name]["loc"][:2], results[name]["covariance"][:2, :2], levels=(0.5, 0.9),
                series=(3, 1, 2)[number], label=NAMES[name],
                ax=ax,
            )  # fmt: skip
    low, high = results["limits"]["low"][:2], results["limits"]["high"][:2]
    plotting.region(tg.Box(low, high), label="outside the limits", ax=ax)
    ax.set(xlabel=axis_name(results, 0), ylabel=axis_name(results, 1))
    plotting.title("Three Gaussians: half and 90 % of each", ax=ax)


def line(results, ax):
    """The same for a single column: its rows along the axis and three densities."""
    rows, seen = results["rows"][:, 0], results["seen"]
    x = np.linspace(rows.min() - np.std(rows), rows.max() + np.std(rows), 400)
    names = [name for name in ("naive", "corrected", "full") if name in results]
    densities = []
    for name in names:
        loc, variance = results[name]["loc"][0], results[name]["covariance"][0, 0]
        densities.append(np.exp(-((x - loc) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance))
    plotting.curves(
        x, densities, [NAMES[name] for name in names], series=(3, 1, 2),
        xlabel=axis_name(results, 0), ylabel="density", ax=ax,
    )  # fmt: skip
    plotting.points(rows[seen], np.zeros(seen.sum()), label="rows, seen", ax=ax)
    if not seen.all():
        plotting.points(
            rows[~seen], np.zeros((~seen).sum()), filled=False, label="rows, not seen", ax=ax
        )
    for limit in (results["limits"]["low"][0], results["limits"]["high"][0]):
        if np.isfinite(limit):
            ax.axvline(limit, color="#555555", linewidth=1.1)
    plotting.title("Three Gaussians and the limits", ax=ax)


if __name__ == "__main__":
    raise SystemExit(cli.main_experiment(__file__))
