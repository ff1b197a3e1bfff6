"""What was observed, the Gaussians fitted to it, and how far each estimate is from the truth."""

import numpy as np

from truncgauss import plotting

from ..pictures import panels
from .run import KINDS

SERIES = {"naive": 3, "noise ignored": 5, "corrected": 1}


def plot(results):
    """The plane of the first two coordinates, and all estimates less the truth."""
    draws = [plane, differences] if results["rows"].shape[1] > 1 else [differences]
    return panels(results, *draws, size=(5.4, 4.6))


def plane(results, ax):
    """Measured rows, and the half and 90 % ellipses of the population and of two estimates."""
    ax.scatter(*results["rows"][:, :2].T, s=2, color="#999999", label="measured", rasterized=True)
    kinds = (("population", 0), ("naive", SERIES["naive"]), ("corrected", SERIES["corrected"]))
    for name, series in kinds:
        given = results[name]
        first = given["loc"][:2], given["covariance"][:2, :2]
        plotting.contours(*first, levels=(0.5, 0.9), series=series, label=name, ax=ax)
    ax.set(xlabel=str(results["labels"][0]), ylabel=str(results["labels"][1]))
    plotting.title("Measured objects; ellipses of 50 and 90 %", ax=ax)


def differences(results, ax):
    """Estimates less the truth, in standard errors of the corrected fit."""
    places = np.arange(len(results["names"]))[::-1].astype(float)
    unit = results["corrected"]["stderr"]
    ax.axvspan(-1.96, 1.96, color="#888888", alpha=0.18, linewidth=0, label="95 % of the corrected")
    ax.axvline(0.0, color="#555555", linewidth=0.7)
    for name in KINDS:
        away = (results[name]["estimates"] - results["truth"]) / unit
        plotting.points(away, places, series=SERIES[name], label=name, ax=ax)
    ax.set_xscale("symlog", linthresh=3.0)
    ticks = [-100, -30, -10, -3, 0, 3, 10, 30, 100]
    low, high = ax.get_xlim()
    ax.set(
        xlabel="estimate − truth (standard errors of the corrected fit)", ylabel="parameter",
        yticks=places, yticklabels=[str(name) for name in results["names"]],
        xticks=[tick for tick in ticks if low <= tick <= high], ylim=(-0.5, len(places) - 0.5),
    )  # fmt: skip
    ax.xaxis.set_major_formatter("{x:g}")
    plotting.title("Estimates of three methods, less the truth", ax=ax)
