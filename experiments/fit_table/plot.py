"""How far the naive estimates are from the fit, and the residuals of each outcome."""

import numpy as np

from truncgauss import plotting


def plot(results):
    """The naive estimates in standard errors of the fit, and a worm plot of the residuals."""
    outcomes = list(results["outcomes"])
    picture, axes = plotting.figure(1, 2, size=(5.6, 4.0), width_ratios=(1.15, 1))
    left, right = axes
    forest(results, left)
    for number, outcome in enumerate(outcomes[: len(plotting.SERIES)]):
        draws = results["residuals"][..., number]
        draws = np.atleast_2d(draws)[:, np.isfinite(draws).all(axis=0)]
        plotting.worm(draws, label=str(outcome), series=number, bands=number == 0, ax=right)
    plotting.title("Randomised quantile residuals", ax=right)
    for ax in axes:
        plotting.legend(columns=1, ax=ax)
    return picture


def forest(results, ax):
    """Differences of the naive estimates from those of the fit, in its standard errors."""
    away = (results["naive"] - results["estimates"]) / results["stderr"]
    places = np.arange(len(away))[::-1]
    ax.axvspan(-1.96, 1.96, color="#888888", alpha=0.18, linewidth=0, label="95 % of the fit")
    ax.axvline(0.0, color="#555555", linewidth=0.7)
    plotting.points(away, places, series=1, label="naive", ax=ax)
    ax.set(
        xlabel="difference from the fit (its standard errors)", ylabel="estimate",
        yticks=places, yticklabels=[str(name) for name in results["names"]],
        ylim=(-0.7, len(away) - 0.3),
    )  # fmt: skip
    plotting.title("Naive estimates beside the fit", ax=ax)
