"""Marginal densities of the posterior: draws of NUTS, closed form, and without limits."""

import numpy as np

from truncgauss import plotting

from .run import density, vector_of


def plot(results):
    """One panel for each marginal: draws of NUTS, closed form, and the posterior without limits."""
    picture, axes = plotting.figure(1, 3, size=(3.6, 3.6))
    draws = vector_of(results["chains"]["NUTS"]["draws"]).reshape(-1, 3)
    grid, before = results["grid"], results["unlimited"]
    for j, ax in enumerate(axes):
        mean, sd = before["mean"][j], before["sd"][j]
        low, high = results["low"][j], results["high"][j]
        plotting.histogram(draws[:, j], series=5, label="draws of NUTS", ax=ax)
        ends = grid["middle"][j] + grid["half"][j] * np.array([-1, 1])
        # Both posteriors, however far the limits have moved one of them.
        x = np.linspace(*view(draws[:, j], mean, sd), 1200)
        inside = (x >= ends[0]) & (x <= ends[1])
        truth = np.where(inside, density(np.clip(x, *ends), grid, j), 0.0)
        free = np.exp(-0.5 * ((x - mean) / sd) ** 2) / (np.sqrt(2 * np.pi) * sd)
        plotting.curves(
            x, [truth, free], ["closed form", "without limits"], series=(0, 1), linewidth=1.2,
            xlabel=str(results["names"][j]), ylabel="posterior density", ax=ax,
        )  # fmt: skip
        for limit in (low, high):
            if x[0] <= limit <= x[-1]:
                ax.axvline(limit, color="#555555", linewidth=1.0, linestyle=(0, (1, 2)))
        # Logarithmic: where a limit leaves a tail only, the density is far higher.
        ax.set(yscale="log", ylim=(0.02 * free.max(), 2.5 * max(truth.max(), free.max())))
        text = f"Limits [{low:g}, {high:g}]\n(without: {mean:.2f} ± {sd:.2f})"
        plotting.title(text.replace("inf", "∞").replace("-", "−"), ax=ax)
    plotting.shared_legend(picture, columns=3)
    return plotting.lettered(picture)


def view(draws, mean, sd):
    """The range of the draws and of the posterior without limits, with a margin."""
    left, right = min(draws.min(), mean - 2.5 * sd), max(draws.max(), mean + 2.5 * sd)
    return left - 0.05 * (right - left), right + 0.05 * (right - left)
