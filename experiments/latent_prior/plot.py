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
        plotting.histogram(draws[:, j], series=5, label="draws of NUTS", ax=ax)
        ends = grid["middle"][j] + grid["half"][j] * np.array([-1, 1])
        left, right = np.quantile(draws[:, j], [0, 1])
        margin = 0.25 * (right - left)
        x = np.linspace(left - margin, right + margin, 1200)
        inside = (x >= ends[0]) & (x <= ends[1])
        truth = np.where(inside, density(np.clip(x, *ends), grid, j), 0.0)
        free = (x - before["mean"][j]) / before["sd"][j]
        free = np.exp(-0.5 * free**2) / (np.sqrt(2 * np.pi) * before["sd"][j])
        plotting.curves(
            x, [truth, free], ["closed form", "without limits"], series=(0, 1), linewidth=1.2,
            xlabel=str(results["names"][j]), ylabel="posterior density", ax=ax,
        )  # fmt: skip
        for limit in (results["low"][j], results["high"][j]):
            if x[0] <= limit <= x[-1]:
                ax.axvline(limit, color="#555555", linewidth=1.0, linestyle=(0, (1, 2)))
        low, high = results["low"][j], results["high"][j]
        without = f"{before['mean'][j]:.2f} ± {before['sd'][j]:.2f}"
        text = f"Limits [{low:g}, {high:g}]\n(without: {without})".replace("inf", "∞")
        plotting.title(text.replace("-", "−"), ax=ax)
    plotting.shared_legend(picture, columns=3)
    return picture
