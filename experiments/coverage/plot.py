"""The shares of intervals that hold the truth, beside what they promise."""

import numpy as np

from truncgauss import plotting

from .run import KINDS, LEVEL


def plot(results):
    """Four markers for each kind of samples, and the band of three standard errors of a share."""
    cases = list(results["cases"].values())
    picture, ax = plotting.figure(size=(6.4, 4.2))
    places = np.arange(len(cases))
    for place, found in enumerate(cases):
        low, high = LEVEL - 3 * found["stderr"], min(LEVEL + 3 * found["stderr"], 1.0)
        label = "within three standard errors of 95 %"
        plotting.band([place - 0.4, place + 0.4], low, high, label=label, ax=ax)
    ax.axhline(LEVEL, color="#555555", linewidth=0.7)
    for number, (name, label) in enumerate(KINDS.items()):
        shares = [found[name] for found in cases]
        away = 0.16 * (number - 1.5)
        series, filled = number % 2, number < 2
        plotting.points(places + away, shares, label=label, series=series, filled=filled, ax=ax)
    labels = [
        f"d = {found['dimension']}\n{found['seen']:.0%} observed\n{found['num_fits']} fits"
        for found in cases
    ]
    ax.set(xticks=places, xticklabels=labels, ylabel="share that holds the truth")
    ax.set_xlim(-0.6, len(cases) - 0.4)
    ax.set_ylim(min(ax.get_ylim()[0], 0.84), 1.005)
    plotting.title(f"Coverage of {LEVEL:.0%} intervals", ax=ax)
    plotting.legend(columns=2, below=62, ax=ax)
    return picture
