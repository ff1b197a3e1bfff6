"""The rows with the true, naive and corrected mixture, the climb of the fit, and its errors."""

import numpy as np

from truncgauss import plotting

from ..pictures import panels
from .run import scatter_of


def plot(results):
    """Rows and ellipses, the log-likelihood at each step, and errors beside the scatter."""
    return panels(results, survey, climb, errors, size=(4.6, 4.6))


def survey(results, ax):
    """Complete rows, the cuts, and an ellipse of 90 % of each component."""
    seen = results["seen"]
    ax.plot(*seen.T, ".", markersize=2, color="#bbbbbb", zorder=0, label="selected, with noise")
    for name, series in (("truth", 0), ("naive", 3), ("fit", 1)):
        look = {"series": series, "label": {"fit": "corrected"}.get(name, name)}
        for loc, covariance in components(results[name]):
            plotting.contours(loc, covariance, levels=(0.9,), ax=ax, **look)
    low, high = ax.get_xlim(), ax.get_ylim()
    ends = np.stack([results["low"], results["high"]], axis=1)
    look = {"color": "#000000", "linewidth": 0.7, "label": "cuts"}
    for i, j in np.argwhere(np.isfinite(ends)):
        face = results["matrix"][i]
        point = face * ends[i, j] / (face @ face)
        ax.axline(point, point + [-face[1], face[0]], **look)
    ax.set(xlim=low, ylim=high, xlabel=results["names"][0], ylabel=results["names"][1])
    plotting.title("A survey, and 90 % of each component", ax=ax)


def components(numbers):
    """Means and covariance matrices, of numbers in the order of the labels."""
    k = len(numbers) // 6
    locs = numbers[k : 3 * k].reshape(k, 2)
    entries = numbers[3 * k :].reshape(k, 3)
    return [(loc, np.array([[a, b], [b, c]])) for loc, (a, b, c) in zip(locs, entries)]


def climb(results, ax):
    """How far the log-likelihood is below its maximum at each step, EM's and the finish's."""
    em, finish = results["em"], results["finish"]
    best = finish.max()
    gap = best - finish
    shown = gap > 1e-9
    plotting.points(np.arange(len(em)), best - em, series=0, label="EM", ax=ax)
    imputed = best - results["imputed"].T
    draws = results["imputed_every"] * np.arange(len(imputed))
    look = {"color": "#bbbbbb", "linewidth": 0.8, "label": "EM by draws of hidden objects"}
    ax.plot(draws, imputed, zorder=0, **look)
    steps = len(em) - 1 + np.arange(len(finish))
    plotting.points(steps[shown], gap[shown], series=1, label="Newton", ax=ax)
    ax.set(yscale="log", xlabel="step", ylabel="nats below the maximum")
    plotting.title("The climb of one start", ax=ax)


def errors(results, ax):
    """Standard errors, their medians, against the scatter of the estimates."""
    good = np.isfinite(results["repeat_errors"]).all(axis=1)
    scatter = scatter_of(results["repeats"][good])
    stated = np.median(results["repeat_errors"][good], axis=0)
    k = len(scatter) // 6
    parts = {"weights": slice(0, k), "means": slice(k, 3 * k), "covariances": slice(3 * k, None)}
    for series, (name, part) in enumerate(parts.items()):
        plotting.points(scatter[part], stated[part], series=series, label=name, ax=ax)
    worst = np.argmin(stated / scatter)
    words = f"error {stated[worst]:.2g} where\nthe scatter is {scatter[worst]:.2g}"
    ax.annotate(
        words, (scatter[worst], stated[worst]), (0, -10), textcoords="offset points", ha="center",
        va="top", fontsize=8,
    )  # fmt: skip
    ends = [0.8 * min(scatter.min(), stated.min()), 1.25 * max(scatter.max(), stated.max())]
    ax.plot(ends, ends, color="#000000", linewidth=0.7, zorder=0, label="equal")
    ax.set(
        xscale="log", yscale="log",
        xlabel=f"scatter over {good.sum()} surveys, half of the central 68 %",
        ylabel="standard error, median",
    )  # fmt: skip
    plotting.title("Standard errors against the scatter", ax=ax)
