"""Intervals of differences, and the band of a curve."""

import numpy as np

from truncgauss import plotting


def plot(results):
    """Differences from the control, and the curve."""
    picture, (left, right) = plotting.figure(1, 2, size=(5.2, 4.1))
    intervals(results, left)
    bands(results, right)
    for ax in (left, right):
        plotting.legend(columns=2, ax=ax)
    return picture


def intervals(results, ax):
    """Differences from the control with intervals for one alone and for all."""
    value, low, high = results["differences"]
    rows = np.arange(len(value))[::-1].astype(float)
    half = results["critical"][0] * results["stderr"]
    plain, joint = plotting.SERIES[1].color, plotting.SERIES[2].color
    ax.hlines(rows + 0.14, value - half, value + half, color=plain, linewidth=1.8)
    plotting.points(value, rows + 0.14, series=1, label="one alone", ax=ax)
    ax.hlines(rows - 0.14, low, high, color=joint, linewidth=1.8)
    plotting.points(value, rows - 0.14, series=2, label="all together", ax=ax)
    ax.axvline(0.0, color="#555555", linewidth=0.7)
    ax.set(
        xlabel=f"difference, {results['level']:.0%} intervals", ylabel="groups",
        yticks=rows, yticklabels=[str(name) for name in results["names"]],
        ylim=(-0.6, len(rows) - 0.4),
    )  # fmt: skip
    plotting.title("Against a control", ax=ax)


def bands(results, ax):
    """The curve with its band, and the narrower one that holds at one point alone."""
    x, (value, low, high) = results["x"], results["curve"]
    half = results["curve_critical"][0] * results["curve_stderr"]
    plain, joint = plotting.SERIES[1].color, plotting.SERIES[2].color
    plotting.points(*results["points"], label="points", alpha=0.4, s=7, ax=ax)
    plotting.band(x, low, high, color=joint, label="everywhere", ax=ax)
    for side in (value - half, value + half):
        label = "at one point alone" if side[0] < value[0] else None
        ax.plot(x, side, color=plain, linewidth=0.9, label=label)
    ax.plot(x, value, color=joint, label="fitted")
    ax.plot(x, results["true_curve"], "--", color="#333333", label="truth")
    ax.set(xlabel="x", ylabel="y")
    plotting.title("A band for a curve", ax=ax)
