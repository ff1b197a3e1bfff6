"""The fitted Gaussians, and the fraction along a shift of the mean."""

import numpy as np

import truncgauss as tg
from truncgauss import plotting


def plot(results):
    """The Gaussians with the box; the fraction along a shift, and below it its gradient."""
    layout = [["rows", "fraction"], ["rows", "gradient"]]
    picture, axes = plotting.mosaic(layout, size=(3.8, 2.3))
    (plane if len(results["columns"]) > 1 else line)(results, axes["rows"])
    curves = results["shift"]
    soft = {"linewidth": 3.0, "linestyle": "-", "alpha": 0.55}  # under the exact curve, and wider
    for kind, suffix in (("fraction", ""), ("gradient", "_gradient")):
        labels = "by samples and soft limits", str(curves["best_name"])
        for name, label, series, look in zip(("soft", "best"), labels, (1, 0), (soft, {})):
            plotting.curves(
                curves["shift"], [curves[name + suffix]], [label], series=(series,),
                **{"linewidth": 0.9, **look}, xlabel="shift of the mean (standard deviations)",
                ylabel="", ax=axes[kind],
            )  # fmt: skip
    axes["fraction"].set(xlabel="", ylabel="fraction not truncated")
    axes["gradient"].set_ylabel("its gradient (per s.d.)")
    plotting.title("The fraction as the mean moves", ax=axes["fraction"])
    plotting.legend(ax=axes["rows"])
    plotting.legend(ax=axes["gradient"])
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
                results[name]["loc"][:2], results[name]["covariance"][:2, :2], levels=(0.9,),
                series=(3, 1, 2)[number], label=NAMES[name],
                ax=ax,
            )  # fmt: skip
    low, high = results["limits"]["low"][:2], results["limits"]["high"][:2]
    plotting.region(tg.Box(low, high), label="outside the limits", ax=ax)
    ax.set(xlabel=axis_name(results, 0), ylabel=axis_name(results, 1))
    plotting.title("Rows behind limits, and 90 % ellipses", ax=ax)


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
