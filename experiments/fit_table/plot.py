"""How far the naive estimates are from the fit, the residuals, and profiles of the likelihood."""

import numpy as np

from truncgauss import plotting


def plot(results):
    """The naive estimates in standard errors of the fit, a worm plot of the residuals, and the
    profile log-likelihoods that were asked for."""
    outcomes, curves = list(results["outcomes"]), results.get("profile_curves", {})
    widths = (1.15, 1, 1) if curves else (1.15, 1)
    picture, axes = plotting.figure(1, len(widths), size=(5.6, 4.0), width_ratios=widths)
    left, right, *rest = axes
    forest(results, left)
    for number, outcome in enumerate(outcomes[: len(plotting.SERIES)]):
        draws = results["residuals"][..., number]
        draws = np.atleast_2d(draws)[:, np.isfinite(draws).all(axis=0)]
        plotting.worm(draws, label=str(outcome), series=number, bands=number == 0, ax=right)
    plotting.title("Randomised quantile residuals", ax=right)
    for ax in rest:
        profiles(results, ax)
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


def profiles(results, ax):
    """Profile log-likelihoods in the standard errors of their estimates, and Wald's parabola."""
    known = {name: place for place, name in enumerate(results["names"])}
    curves = list(results["profile_curves"].items())[: len(plotting.SERIES)]
    for number, (name, (values, fall)) in enumerate(curves):
        place = known[name]
        away = (values - results["estimates"][place]) / results["stderr"][place]
        look = plotting.SERIES[number]
        style = {"label": str(name), "color": look.color, "marker": look.marker}
        if number == 0:
            plotting.profile(away, fall, estimate=0.0, stderr=1.0, ax=ax, **style)
        else:
            ax.plot(away, -fall, markersize=3, **style)
    ax.set(xlabel="difference from the estimate (its standard errors)")
    plotting.title("Profile log-likelihood", ax=ax)
