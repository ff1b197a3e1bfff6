"""Worm plots and quantile plots of the residuals."""

import numpy as np

from truncgauss import plotting


def plot(results):
    """The worms of all samples, and their quantiles."""
    samples = [value for value in results.values() if isinstance(value, dict)]
    picture, axes = plotting.figure(2, len(samples), size=(4.4, 3.3), squeeze=False)
    for number, sample in enumerate(samples):
        finite = sample["residuals"][:, np.isfinite(sample["residuals"]).all(axis=0)]
        for draw, ax in ((plotting.worm, axes[0, number]), (plotting.qq, axes[1, number])):
            draw(finite, label="median residual", series=1, ax=ax)
        plotting.title(str(sample["label"]), ax=axes[0, number])
        plotting.legend(columns=2, ax=axes[1, number])
    return plotting.lettered(picture)
