"""The fitted Gaussians, and their means."""

import numpy as np
import scipy

import truncgauss as tg
from truncgauss import plotting


def plot(results):
    """The Gaussians with the box, and their means with standard errors."""
    picture, axes = plotting.mosaic([["rows", "means"]], size=(4.6, 4.4))
    (plane if len(results["columns"]) > 1 else line)(results, axes["rows"])
    means(results, axes["means"])
    plotting.legend(ax=axes["rows"])
    plotting.legend(columns=1, ax=axes["means"])
    return plotting.lettered(picture)


NAMES = {"naive": "naive fit", "corrected": "truncated fit", "full": "fit to all"}
SERIES_OF = {"naive": 3, "corrected": 1, "full": 2}


def means(results, ax):
    """The mean of each column less the naive one, by each Gaussian."""
    names = [name for name in NAMES if name in results]
    places = np.arange(len(results["columns"]), dtype=float)
    for number, name in enumerate(names):
        stderr, label = results[name]["stderr"], NAMES[name]
        if name == "corrected" and len(bootstrap := results["resampled"]["stderr"]):
            stderr, label = bootstrap[: len(places)], f"{label}, error by bootstrap"
        plotting.points(
            places + 0.2 * (number - 1), results[name]["loc"] - results["naive"]["loc"],
            stderr=stderr, series=SERIES_OF[name], label=label, ax=ax,
        )  # fmt: skip
    labels = [str(column).replace("_", "\n") for column in results["columns"]]
    ax.axhline(0.0, color="#555555", linewidth=0.7)
    ax.set(xticks=places, xticklabels=labels, xlim=(-0.5, len(places) - 0.5))
    ax.set_ylabel(f"mean less the naive one{unit(results)}")
    plotting.title("Means, ± 1 standard error", ax=ax)


def unit(results):
    return f" ({results['unit']})" if str(results["unit"]) else ""


def axis_name(results, j):
    return str(results["columns"][j]).replace("_", " ") + unit(results)


def plane(results, ax):
    """Rows, ellipses of the three Gaussians, and the region, in the first two columns."""
    for kind, label in ((True, "selected"), (False, "not selected")):
        rows = results["rows"][results["seen"] == kind, :2]
        if len(rows):
            # Rounded measurements coincide.
            places, counts = np.unique(rows, axis=0, return_counts=True)
            more = f" (a large dot: 2 to {counts.max()} alike)" if counts.max() > 1 else ""
            more = more.replace("2 to 2", "2")
            plotting.points(*places.T, counts=counts, filled=kind, label=label + more, ax=ax)
    for name in NAMES:
        if name in results:
            plotting.contours(
                results[name]["loc"][:2], results[name]["covariance"][:2, :2], levels=(0.9,),
                series=SERIES_OF[name], label=NAMES[name], ax=ax,
            )  # fmt: skip
    low, high = results["limits"]["low"][:2], results["limits"]["high"][:2]
    plotting.region(tg.Box(low, high), label="truncated", ax=ax)
    ax.set(xlabel=axis_name(results, 0), ylabel=axis_name(results, 1))
    plotting.title("A truncated sample, and 90 % ellipses", ax=ax)


def line(results, ax):
    """The same for a single column: its rows along the axis and three densities."""
    rows, seen = results["rows"][:, 0], results["seen"]
    x = np.linspace(rows.min() - np.std(rows), rows.max() + np.std(rows), 400)
    names = [name for name in NAMES if name in results]
    fits = [results[name] for name in names]
    pdf = scipy.stats.norm.pdf  # whose import takes half a second
    densities = [pdf(x, fit["loc"][0], fit["covariance"][0, 0] ** 0.5) for fit in fits]
    plotting.curves(
        x, densities, [NAMES[name] for name in names], series=tuple(SERIES_OF.values()),
        xlabel=axis_name(results, 0), ylabel="density", ax=ax,
    )  # fmt: skip
    for kind, label in ((True, "selected"), (False, "not selected")):
        if len(shown := rows[seen == kind]):
            plotting.points(shown, 0.0 * shown, filled=kind, label=label, ax=ax)
    for limit in (results["limits"]["low"][0], results["limits"]["high"][0]):
        if np.isfinite(limit):
            ax.axvline(limit, color="#555555", linewidth=1.1)
    plotting.title("Three Gaussians and the bounds", ax=ax)
