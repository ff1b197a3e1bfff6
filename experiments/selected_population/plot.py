"""The selected objects, the posterior of the mean, and all five parameters."""

import numpy as np

from truncgauss import plotting

ROUTES = {"factor": (1, "likelihood by a factor"), "distribution": (2, "truncated distribution")}


def plot(results):
    """The objects in their fields, the posterior of the mean, and all five parameters."""
    picture, axes = plotting.mosaic([["objects", "mean", "all"]], size=(4.5, 4.6))
    # The axes of magnitudes run backwards: brighter objects, of smaller ones, to the right.
    names = [str(name) for name in results["names"]]
    inverted = "".join(axis for axis, name in zip("xy", names) if "magnitude" in name)
    fields(results, inverted, axes["objects"])
    mean_posterior(results, inverted, axes["mean"])
    estimates(results, axes["all"])
    for name, ax in axes.items():
        plotting.legend(columns=1, below=62.0 if name == "all" else 34.0, ax=ax)
    return plotting.lettered(picture)


def fields(results, inverted, ax):
    """Objects of every field with its limits; ellipses of the true and the naive Gaussian."""
    x = results["objects"]
    for k in range(x.shape[1]):
        words = []
        limits = (results["names"], results["low"][k], results["high"][k])
        for name, low, high in zip(*limits, strict=True):
            name = str(name).split(" (")[0].split()[-1]
            words += [f"{name} ≥ {low:g}"] if np.isfinite(low) else []
            words += [f"{name} ≤ {high:g}"] if np.isfinite(high) else []
        label = f"field {k + 1}: {(', '.join(words) or 'no bound').replace('-', '−')}"
        grey = str(0.25 + 0.55 * k / max(x.shape[1] - 1, 1))  # colours tell the estimates apart
        look = {"color": grey, "series": k % len(plotting.SERIES), "label": label}
        plotting.points(*x[:, k].T, inverted=inverted, ax=ax, **look)
    truth = results["loc"], results["covariance"]
    flat = x.reshape(-1, 2)
    naive = flat.mean(0), np.cov(flat, rowvar=False)
    plotting.contours(*truth, levels=(0.5, 0.9), series=0, label="population, 50 and 90 %", ax=ax)
    plotting.contours(*naive, levels=(0.5, 0.9), series=3, label="naive, 50 and 90 %", ax=ax)
    ax.set(xlabel=results["names"][0], ylabel=results["names"][1])
    plotting.title("Selected objects", ax=ax)


def mean_posterior(results, inverted, ax):
    """Ellipses of 50 and 90 % of each posterior of the mean, over draws of the last one."""
    loc = {name: results["chains"][name]["draws"]["loc"].reshape(-1, 2) for name in ROUTES}
    thin = loc["distribution"][:: max(len(loc["distribution"]) // 500, 1)]
    label = f"draws, {ROUTES['distribution'][1]}"
    ax.plot(*thin.T, ".", markersize=1.5, color="#bbbbbb", zorder=1, label=label)
    below = {"linewidth": 4.0, "linestyle": "-", "alpha": 0.4}  # where the two coincide
    for (name, (series, label)), look in zip(ROUTES.items(), (below, {}), strict=True):
        look = look | {"series": series, "label": f"{label}, 50 and 90 %", "inverted": inverted}
        plotting.contours(loc[name].mean(0), np.cov(loc[name], rowvar=False), ax=ax, **look)
    ax.plot(*results["truth"][:2], "*", color="#000000", markersize=11, label="truth", zorder=5)
    ax.set(xlabel=f"mean {results['names'][0]}", ylabel=f"mean {results['names'][1]}")
    plotting.title("Posterior of the mean, by both routes", ax=ax)


def estimates(results, ax):
    """Mean and standard deviation of every parameter, over those of the last posterior."""
    places, found = np.arange(5), results["posteriors"]
    unit = np.sqrt(found["distribution"]["variance"])
    plotted = [
        (found[name]["mean"], np.sqrt(found[name]["variance"]), {"series": series, "label": label})
        for name, (series, label) in ROUTES.items()
    ]
    look = {"series": 3, "filled": False, "label": "naive"}
    plotted.append((results["naive"], results["naive_spread"], look))
    for (value, spread, look), shift in zip(plotted, (-0.1, 0.1, -0.3), strict=True):
        away = (value - results["truth"]) / unit
        plotting.points(places + shift, away, stderr=spread / unit, ax=ax, **look)
    ax.axhline(0, color="#000000", linewidth=0.7)
    ax.set_xticks(places, [str(x).split(" (")[0].replace(" ", "\n") for x in results["parameters"]])
    ax.set(ylabel="(estimate − truth) / posterior s.d.")
    plotting.title("Five parameters, ± 1 standard deviation", ax=ax)
