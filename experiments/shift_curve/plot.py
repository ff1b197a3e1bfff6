"""Value and gradient of each estimate along the shift, and their relative errors."""

import numpy as np

from truncgauss import plotting

from .run import tanh_name


def plot(results):
    """Each way on twin axes over the exact curve, then the relative errors."""
    curves, x = results["curves"], results["shift"]
    exact = curves["exact"]
    few, many = (tanh_name(int(n)) for n in results["num_samples"][[0, -1]])
    titles = {
        "naive": f"Naive sigmoid, {few.split()[1]} samples",
        few: f"Tanh edge, {few.split()[1]} samples",
        many: f"Tanh edge, {many.split()[1]} samples",
        "surrogate": f"Surrogate: hard value, gentle slope, {few.split()[1]} samples",
    }
    xlabel = "shift of the mean (standard deviations)"
    picture, axes = plotting.figure(3, 2, size=(4.9, 2.9))
    top = max(np.nanmax(curves[name]["gradient"]) for name in titles)
    for ax, (name, title) in zip(axes.flat, titles.items(), strict=False):
        curve = curves[name]
        plotting.value_and_gradient(
            x, curve["value"], curve["gradient"],
            value_stderr=curve.get("value_stderr"), gradient_stderr=curve.get("gradient_stderr"),
            reference=(exact["value"], exact["gradient"]), xlabel=xlabel,
            value_label="fraction not truncated", gradient_label="gradient (per s.d.)", ax=ax,
        )  # fmt: skip
        plotting.title(title, ax=ax)
        ax.set_ylim(-0.05, 1.1)
        plotting.gradient_axes(ax).set_ylim(-0.05 * top, 1.1 * top)
    shown = [few, many, "surrogate"]
    for ax, kind in zip(axes[-1], ("value", "gradient"), strict=True):
        errors = [np.maximum(curves[name][f"{kind}_error"], 1e-12) for name in shown]
        plotting.curves(
            x, errors, [titles[name] for name in shown], series=(3, 4, 2), linewidth=1.0,
            xlabel=xlabel, ylabel=f"relative error of the {kind}", ax=ax,
        )  # fmt: skip
        plotting.title(f"Error of the {kind}", ax=ax).set_yscale("log")
    return plotting.shared_legend(picture, columns=3)
