"""First and warm calls against the dimension, and first fits."""

import numpy as np

from truncgauss import plotting


def plot(results):
    """Processor seconds of a first call and seconds of a warm one, a line for each task; and
    of a first fit, one with programs kept and a warm one."""
    dimensions, costs = results["dimensions"], results["costs"]
    picture, axes = plotting.figure(1, 2 + bool(len(results["fits"])), size=(4.2, 4.2))
    labels = {"first": "first call, processor seconds", "warm": "warm call, seconds"}
    for ax, (field, label) in zip(axes, labels.items(), strict=False):
        ys = [cost[field] for cost in costs.values()]
        plotting.curves(
            dimensions, ys, list(costs), series=[k % 6 for k in range(len(ys))],
            xlabel="dimension", ylabel=label, ax=ax,
        )  # fmt: skip
        ax.set(xscale="log", yscale="log")
        ax.set_xticks(list(dimensions), [str(d) for d in dimensions])
        ax.minorticks_off()
    if len(results["fits"]):
        bars(results["fits"], results["fit_costs"], axes[2])
    return plotting.shared_legend(picture, columns=3)


STEPS = {"first": "first fit", "kept": "first fit, programs kept", "warm": "warm fit"}


def bars(names, versions, ax):
    """A group of bars for each fit: first, with programs kept, warm; versions side by side."""
    at = np.arange(len(names))
    width = 0.8 / (len(STEPS) * len(versions))
    shown = [(version, field) for version in versions for field in STEPS]
    for k, (version, field) in enumerate(shown):
        label = STEPS[field] if len(versions) == 1 else f"{version}, {STEPS[field]}"
        ax.barh(
            at + (k + 0.5) * width - 0.4, versions[version][field], width, label=label,
            color=f"C{k % 10}",
        )  # fmt: skip
    ax.set(xscale="log", xlabel="seconds", ylabel="fit")
    ax.set_yticks(at, list(names))
    ax.invert_yaxis()
