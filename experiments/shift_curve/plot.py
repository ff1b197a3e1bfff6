"""Value and gradient of each estimate along the shift, beside the exact ones."""

import numpy as np

from truncgauss import plotting

from .run import tanh_name


def plot(results):
    """A column for each way: the fraction above, its gradient below, with the exact curves."""
    curves, x = results["curves"], results["shift"]
    exact = curves["exact"]
    few, many = (tanh_name(int(n)) for n in results["num_samples"][[0, -1]])
    titles = {
        "naive": f"Naive sigmoid,\n{few.split()[1]} samples",
        few: f"Tanh edge,\n{few.split()[1]} samples",
        many: f"Tanh edge,\n{many.split()[1]} samples",
        "surrogate": f"Hard value, gentle slope,\n{few.split()[1]} samples",
    }
    picture, axes = plotting.figure(2, 4, size=(2.6, 2.6), sharex=True, sharey="row")
    for column, (name, title) in zip(axes.T, titles.items(), strict=True):
        plotting.title(title, ax=column[0])
        for ax, kind, series in zip(column, ("value", "gradient"), (2, 1), strict=True):
            color = plotting.SERIES[series].color
            curve, stderr = curves[name][kind], curves[name].get(f"{kind}_stderr")
            label = {"value": "fraction not truncated", "gradient": "its gradient"}[kind]
            if stderr is not None:
                ends = curve - 2 * stderr, curve + 2 * stderr
                plotting.band(x, *ends, label=f"{label}, ± 2 standard errors", color=color, ax=ax)
            ax.plot(x, exact[kind], color="#bbbbbb", linewidth=3.5, label="exact")
            plotting.curves(x, [curve], [label], series=(series,), xlabel="", ylabel="", ax=ax)
        column[1].set_xlabel("shift of the mean (s.d.)")
    top = max(np.nanmax(curves[name]["gradient"]) for name in titles)
    axes[1, 0].set_ylim(-0.05 * top, 1.1 * top)
    axes[0, 0].set_ylabel("fraction not truncated")
    axes[1, 0].set_ylabel("gradient (per s.d.)")
    return plotting.lettered(plotting.shared_legend(picture, columns=3))
