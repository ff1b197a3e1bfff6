"""Four estimates of each coefficient, and purchases over the fitted mean."""

import numpy as np
from scipy.stats import norm

from truncgauss import plotting

from ..pictures import panels


def plot(results):
    """Estimates with profile intervals in standard errors, and what households bought."""
    return panels(results, estimates, purchases, size=(5.2, 4.1))


def estimates(results, ax):
    """All estimates less the published ones, in published standard errors."""
    places = np.arange(len(results["names"]))[::-1].astype(float)
    scaled = lambda values: (values - results["published"]) / results["published_stderr"]
    look = {"color": plotting.SERIES[2].color, "linewidth": 2.2, "alpha": 0.5}
    label = f"profile interval, {results['level']:.0%}"
    ax.hlines(places, *map(scaled, results["profile"].T), label=label, **look)
    kinds = (
        ("estimates", 2, 0.0, "Tobit fit"),
        ("published", 0, 0.16, "published"),
        ("all_rows", 1, 0.0, "least squares, all households"),
        ("buyers", 3, 0.0, "least squares, buyers"),
    )
    for name, series, shift, label in kinds:
        look = {"series": series, "filled": name != "published", "label": label}
        plotting.points(scaled(results[name]), places + shift, ax=ax, **look)
    ax.axvline(0.0, color="#555555", linewidth=0.7)
    ax.set(
        xlabel="difference from the published estimate (standard errors)", ylabel="estimate",
        yticks=places, yticklabels=[str(name) for name in results["names"]], ylim=(-0.5, 3.6),
    )  # fmt: skip
    plotting.title("Four estimates of each coefficient", ax=ax)


def purchases(results, ax):
    """Purchases over the fitted mean, and the mean of what is observed."""
    mean, y = results["mean"], results["purchases"]
    scale = results["estimates"][-1]
    x = np.linspace(mean.min() - 1.0, mean.max() + 1.0, 200)
    expected = x * norm.cdf(x / scale) + scale * norm.pdf(x / scale)
    plotting.curves(
        x, [expected, x], ["mean of what is bought, at least 0", "mean of the latent purchase"],
        series=(2, 5), xlabel="fitted mean of the latent purchase", ylabel="durable goods bought",
        ax=ax,
    )  # fmt: skip
    for bought, label in ((True, "households that bought"), (False, "households that did not")):
        kind = (y > 0) == bought
        plotting.points(mean[kind], y[kind], filled=bought, label=label, ax=ax)
    plotting.title("Purchases of twenty households", ax=ax)
