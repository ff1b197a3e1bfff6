"""The wage lines over education, and what each covariate does to the wage."""

import numpy as np

from truncgauss import plotting

from ..pictures import panels

KINDS = (1, 2, 0)  # series of least squares, of everyone, and of the employed


def plot(results):
    """Wage lines with bands, and marginal effects with intervals."""
    return panels(results, wage_lines, marginal_effects, size=(5.2, 4.1))


def wage_lines(results, ax):
    """Observed wages, and two lines through them."""
    seen = results["employed"]
    spread = 0.9 * ((np.arange(seen.sum()) * 0.6180339887) % 1.0 - 0.5)  # so that points are apart
    x = results["education"][seen] + spread
    plotting.points(x, results["wage"][seen], label="wages observed", alpha=0.25, s=6, ax=ax)
    x = results["line_education"]
    for name, series, label in (("naive", 1, "least squares"), ("corrected", 2, "corrected")):
        middle, low, high = results[f"{name}_line"]
        color = plotting.SERIES[series].color
        plotting.band(x, low, high, color=color, ax=ax)
        ax.plot(x, middle, color=color, label=label, zorder=3)
    if "true_line" in results:
        ax.plot(x, results["true_line"], "--", color="#333333", label="truth", zorder=4)
    ax.set(xlabel="education (years)", ylabel="wage at the mean age")
    plotting.title("Wages and education", ax=ax)


def marginal_effects(results, ax):
    """Average effects on the wage, with intervals."""
    names = [str(name) for name in results["effect_names"]]
    places = np.arange(len(names))[::-1].astype(float)
    for kind, rows, series, shift in zip(
        results["effect_kinds"], results["effects"], KINDS, (0.2, 0.0, -0.2)
    ):
        value, low, high = rows.T
        there = np.isfinite(value)
        color = plotting.SERIES[series].color
        ax.hlines(places[there] + shift, low[there], high[there], color=color, linewidth=1.8)
        plotting.points(value[there], places[there] + shift, series=series, label=str(kind), ax=ax)
        for place in places[~there]:
            ax.annotate(
                f"not in {kind}", (0.0, place + shift), (4, 0), textcoords="offset points",
                fontsize=7, color=color, va="center",
            )  # fmt: skip
    ax.axvline(0.0, color="#555555", linewidth=0.7)
    ax.set(
        xlabel=f"average effect on the wage, {results['level']:.0%} interval", ylabel="covariate",
        yticks=places, yticklabels=names, ylim=(-0.6, len(names) - 0.4),
    )  # fmt: skip
    plotting.title("Average effects on the wage", ax=ax)
