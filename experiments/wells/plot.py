"""Maps of the probability of exceedance and of its standard error."""

import numpy as np

from truncgauss import plotting

from ..pictures import panels


def plot(results):
    """Two maps side by side, with the wells on the first."""
    return panels(results, probability, stderr, size=(5.2, 4.4))


def probability(results, ax):
    """The probability, with the wells that were seen above the threshold and all others."""
    label = f"probability of more than {results['threshold']:g}"
    mapped(results, results["probability"], label, ax, vmin=0.0, vmax=1.0)
    above = results["exceeds"]
    for chosen, color, name in (
        (~above, "#999999", "other wells"),
        (above, "#d62728", "seen above"),
    ):
        east, north = results["east_north"][chosen].T
        ax.scatter(east, north, s=2, c=color, label=name, rasterized=True)
    plotting.title("A new sample on the last day", ax=ax)


def stderr(results, ax):
    """The standard error, and where the probability is a half."""
    mapped(results, results["stderr"], "standard error of the probability", ax, vmin=0.0)
    east, north = np.moveaxis(results["map_places"], -1, 0)
    if results["probability"].min() < 0.5 < results["probability"].max():
        ax.contour(east, north, results["probability"], [0.5], colors="#d62728", linewidths=1.0)
    ax.plot([], [], color="#d62728", label="probability 1/2")
    plotting.title("Its standard error", ax=ax)


def mapped(results, values, label, ax, **limits):
    """Values at the places of the map, with a bar of their colours."""
    east, north = np.moveaxis(results["map_places"], -1, 0)
    image = ax.pcolormesh(
        east, north, values, cmap="YlGnBu", shading="nearest", rasterized=True, **limits
    )
    bar = ax.figure.colorbar(image, ax=ax, shrink=0.7)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=8)
    ax.set(xlabel="east", ylabel="north", aspect="equal")
