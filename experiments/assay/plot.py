"""The rows of one trial with both lines, and the estimates of all trials."""

import numpy as np

from truncgauss import plotting

from ..pictures import panels

WAYS = "half of the limit", "likelihood"


def plot(results):
    """One trial, and how far estimates lie from the truth in all of them."""
    return panels(results, trial, errors, size=(3.6, 3.4))


def trial(results, ax):
    """What was measured, week by week, with the true line and both estimates of it."""
    week, measured, seen = results["week"], results["measured"], results["detected"]
    shift = 0.5 * (np.random.default_rng(0).random(len(week)) - 0.5)
    plotting.points(week[seen] + shift[seen], measured[seen], series=0, s=5, alpha=0.4, ax=ax)
    x = np.unique(week)
    for k, series in ((0, 1), (1, 2)):
        start, slope = results["estimates"][0, k, :2]
        ax.plot(x, start + slope * x, color=plotting.SERIES[series].color, label=WAYS[k])
    start, slope = results["truth"][:2]
    ax.plot(x, start + slope * x, "--", color="#222222", label="truth")
    ax.axhline(results["limit"], color="#777777", linewidth=0.8)
    low = results["limit"] - 0.75
    for at in x:
        share = np.mean(~seen[week == at])
        ax.text(at, low, f"{share:.0%}", ha="center", va="center", fontsize=6.5, color="#555555")
    end = (1.0, results["limit"])
    ax.annotate(
        "limit", end, (2, 0), ("axes fraction", "data"), textcoords="offset points",
        fontsize=7, color="#555555", va="center", annotation_clip=False,
    )  # fmt: skip
    ax.set(xlabel="week", ylabel="log10 of the concentration", ylim=(low - 0.2, None))
    plotting.title("One trial, shares below the limit", ax=ax)


def errors(results, ax):
    """Estimates minus the truth, of all trials and their mean."""
    rows = np.arange(len(results["names"]))[::-1].astype(float)
    differences = results["estimates"] - results["truth"]
    for k, (series, shift) in enumerate(((1, 0.17), (2, -0.17))):
        color = plotting.SERIES[series].color
        jitter = 0.16 * (np.random.default_rng(k).random(len(differences)) - 0.5)
        for j, row in enumerate(rows):
            ax.plot(differences[:, k, j], row + shift + jitter, ".", color=color, ms=3, alpha=0.6)
            mean = differences[:, k, j].mean()
            ax.plot(mean, row + shift, "|", color=color, ms=13, mew=2.2, label=WAYS[k])
    ax.axvline(0.0, color="#222222", linestyle="--", linewidth=0.9)
    ax.set(
        xlabel="estimate minus truth", ylabel="estimate",
        yticks=rows, yticklabels=list(results["names"]), ylim=(-0.5, len(rows) - 0.5),
    )  # fmt: skip
    plotting.title(f"{len(differences)} trials, and their means", ax=ax)
