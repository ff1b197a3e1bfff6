"""Correlations of all pairs with intervals, by both ways, beside the truth."""

import numpy as np

from truncgauss import plotting


def plot(results):
    """One panel: pairs in the order of the truth."""
    picture, ax = plotting.figure(1, 1, size=(5.2, 4.4))
    order = np.argsort(results["true"])
    rows = np.arange(len(order))
    for name, series, shift in (("pearson", 1, 0.17), ("polychoric", 2, -0.17)):
        value, low, high = results[name][order].T
        color = plotting.SERIES[series].color
        ax.hlines(rows + shift, low, high, color=color, linewidth=1.6)
        label = "Pearson, of the categories" if series == 1 else "polychoric"
        plotting.points(value, rows + shift, series=series, label=label, ax=ax)
    marks = {"color": "#222222", "linewidth": 1.4, "label": "truth"}
    ax.vlines(results["true"][order], rows - 0.4, rows + 0.4, **marks)
    names = results["names"]
    labels = [f"{names[j]}, {names[i]}" for i, j in results["pairs"][order]]
    ax.set(
        xlabel=f"correlation, {results['level']:.0%} interval", ylabel="pair of items",
        yticks=rows, yticklabels=labels, ylim=(-0.7, len(rows) - 0.3),
    )  # fmt: skip
    plotting.title("Correlation of ordered answers", ax=ax)
    plotting.legend(columns=3, ax=ax)
    return picture
