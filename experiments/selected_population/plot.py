"""The selected objects, the posterior of the mean, and all five parameters."""

import numpy as np

from truncgauss import plotting

from ..nuts import moments
from .run import parameter_names, parameters

LABELS = {"factor": "likelihood by a factor", "distribution": "truncated distribution"}


def plot(results):
    """The objects in their fields, the posterior of the mean, and all five parameters."""
    picture, axes = plotting.mosaic([["objects", "mean", "all"]], size=(4.5, 4.6))
    fields(results, axes["objects"])
    series = {"factor": 1, "distribution": 2}
    mean_posterior(results, series, axes["mean"])
    estimates(results, series, axes["all"])
    for name, ax in axes.items():
        plotting.legend(columns=1, below=62.0 if name == "all" else 34.0, ax=ax)
    return plotting.lettered(picture)


def fields(results, ax):
    """Objects of every field with its limits; ellipses of the true and the naive Gaussian."""
    x = results["objects"]
    for k in range(x.shape[1]):
        look = {"series": k % len(plotting.SERIES), "ax": ax}
        label = f"field {k + 1}: {limit_text(results, k)}"
        grey = str(0.25 + 0.55 * k / max(x.shape[1] - 1, 1))  # colours tell the estimates apart
        plotting.points(
            *x[:, k].T, label=label, color=grey, inverted=magnitudes(results), **look
        )  # fmt: skip
    truth = results["loc"], results["covariance"]
    flat = x.reshape(-1, 2)
    naive = flat.mean(0), np.cov(flat, rowvar=False)
    plotting.contours(*truth, levels=(0.5, 0.9), series=0, label="population, 50 and 90 %", ax=ax)
    plotting.contours(*naive, levels=(0.5, 0.9), series=3, label="naive, 50 and 90 %", ax=ax)
    ax.set(xlabel=results["names"][0], ylabel=results["names"][1])
    plotting.title("Selected objects", ax=ax)


def limit_text(results, k):
    """A field's limits in few words."""
    words = []
    limits = (results["names"], results["low"][k], results["high"][k])
    for name, low, high in zip(*limits, strict=True):
        name = str(name).split(" (")[0].split()[-1]
        words += [f"{name} ≥ {low:g}"] if np.isfinite(low) else []
        words += [f"{name} ≤ {high:g}"] if np.isfinite(high) else []
    return (", ".join(words) or "no limit").replace("-", "−")


def magnitudes(results):
    """The axes whose coordinate is a magnitude: brighter objects, of smaller ones, to the right."""
    return "".join(
        axis for axis, name in zip("xy", results["names"]) if "magnitude" in str(name)
    )  # fmt: skip


def mean_posterior(results, series, ax):
    """Ellipses of 50 and 90 % of each posterior of the mean, over draws of the last one named."""
    loc = {name: results["chains"][name]["draws"]["loc"].reshape(-1, 2) for name in series}
    name, drawn = list(loc.items())[-1]
    thin = drawn[:: max(len(drawn) // 500, 1)]
    label = f"draws, {LABELS.get(name, name)}"
    ax.plot(*thin.T, ".", markersize=1.5, color="#bbbbbb", zorder=1, label=label)
    below = {"linewidth": 4.0, "linestyle": "-", "alpha": 0.4}  # where the two coincide
    for draws, name, look in zip(loc.values(), loc, (below, {}), strict=True):
        plotting.contours(
            draws.mean(0), np.cov(draws, rowvar=False), series=series[name],
            label=f"{LABELS.get(name, name)}, 50 and 90 %", inverted=magnitudes(results), ax=ax,
            **look,
        )  # fmt: skip
    ax.plot(*results["truth"][:2], "*", color="#000000", markersize=11, label="truth", zorder=5)
    ax.set(xlabel=f"mean {results['names'][0]}", ylabel=f"mean {results['names'][1]}")
    plotting.title("Posterior of the mean, by both routes", ax=ax)


def estimates(results, series, ax):
    """Posterior mean and standard deviation of every parameter, over the last posterior's own."""
    places = np.arange(5)
    shown = {name: moments(parameters(results["chains"][name]["draws"])) for name in series}
    unit = np.sqrt(list(shown.values())[-1]["variance"])
    step = 0.6 / (len(series) + 1)
    for i, (name, each) in enumerate(shown.items()):
        plotting.points(
            places + (i + 1) * step - 0.3, (each["mean"] - results["truth"]) / unit,
            stderr=np.sqrt(each["variance"]) / unit, series=series[name],
            label=LABELS.get(name, name), ax=ax,
        )  # fmt: skip
    plotting.points(
        places - 0.3, (results["naive"] - results["truth"]) / unit,
        stderr=results["naive_spread"] / unit, series=3, filled=False, label="naive", ax=ax,
    )  # fmt: skip
    ax.axhline(0, color="#000000", linewidth=0.7)
    names = [name.split(" (")[0].replace(" ", "\n") for name in parameter_names(results)]
    ax.set_xticks(places, names)
    ax.set(ylabel="(estimate − truth) / posterior s.d.")
    plotting.title("Five parameters, ± 1 standard deviation", ax=ax)
