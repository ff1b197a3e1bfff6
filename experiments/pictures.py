"""Panels side by side, each with a legend below it."""

import numpy as np

from truncgauss import plotting


def panels(results, *draws, size, columns=2):
    """A figure of one panel for each function of results and Axes, from the left to the right."""
    picture, axes = plotting.figure(1, len(draws), size=size)
    for draw, ax in zip(draws, np.atleast_1d(axes)):
        draw(results, ax)
        plotting.legend(columns=columns, ax=ax)
    return plotting.lettered(picture)
