"""Bumps of several widths, their slopes, and the relative errors of the recovered widths."""

import numpy as np

from truncgauss import plotting


def plot(results):
    """The bump and its slopes over x and as the width grows; how well widths were recovered."""
    curves, widths = results["curves"], results["widths"]
    picture, axes = plotting.figure(2, 2, size=(4.9, 3.5))
    names = [f"σ = {width:g}" for width in widths]
    plotting.curves(
        curves["x"], curves["value"], names, xlabel="distance x from the centre",
        ylabel="bump Ψ(x; σ)", ax=axes[0, 0],
    )  # fmt: skip
    plotting.title("The bump", ax=axes[0, 0]).set_xscale("log")
    plotting.curves(
        curves["x"], [slope * width for slope, width in zip(curves["slope"], widths, strict=True)],
        names, xlabel="distance x from the centre", ylabel="σ ∂Ψ/∂x", ax=axes[0, 1],
    )  # fmt: skip
    plotting.title("Its slope, times the width", ax=axes[0, 1]).set_xscale("log")
    plotting.value_and_gradient(
        curves["width"], curves["value_at_one"], curves["growth_at_one"],
        xlabel="width σ", value_label="Ψ(1; σ)", gradient_label="∂Ψ(1; σ)/∂σ", ax=axes[1, 0],
    )  # fmt: skip
    plotting.title("One input, x = 1, as the width grows", ax=axes[1, 0]).set_xscale("log")
    recovered(results, axes[1, 1])
    for ax in axes.flat:
        plotting.legend(columns=3 if ax in axes[0] else 2, ax=ax)
    return plotting.lettered(picture)


def recovered(results, ax):
    """Relative errors of the widths by dtype, one marker for each start; rounding errors."""
    for i, dtype in enumerate(results["dtypes"]):
        eps, series = float(np.finfo(str(dtype)).eps), (2, 1)[i % 2]
        look = {"series": series, "filled": series == 2, "label": f"{dtype}, every start"}
        for errors in results["error"][i].T:
            plotting.points(results["widths"], np.maximum(errors, eps / 8), ax=ax, **look)
        ax.axhline(eps, color=plotting.SERIES[series].color, linewidth=0.8, linestyle=":")
        ax.text(results["widths"][0], 1.3 * eps, f"rounding of {dtype}", fontsize=7, va="bottom")
    ax.set(xscale="log", yscale="log", xlabel="true width", ylabel="relative error of the width")
    plotting.title("Recovered widths", ax=ax)
