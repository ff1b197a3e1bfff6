"""First and warm calls against the dimension, and first fits."""

import numpy as np

from truncgauss import plotting


def plot(results):
    """Processor seconds of a first call and seconds of a warm one, a line for each task, beside the
    errors of values; and of a first fit, one with programs kept and a warm one. Calls of a batch
    and with held plans are in the table only."""
    dimensions, costs = results["dimensions"], results["costs"]
    plain = [name for name in costs if "batch" not in name and "held" not in name]
    grid = (2, 2) if len(results["fits"]) else (1, 3)
    picture, axes = plotting.figure(*grid, size=(5.4, 3.6))
    labels = {
        "first": "first call, processor seconds",
        "warm": "warm call, seconds",
        "error": "rms error of log P",
    }
    series = {name: k % len(plotting.SERIES) for k, name in enumerate(plain)}
    for ax, (field, label) in zip(axes.flat, labels.items(), strict=False):
        shown = {name: costs[name][field] for name in plain}
        shown = {name: y for name, y in shown.items() if not np.isnan(y).all()}
        floor = 1e-16 if field == "error" else 0.0  # an error may be 0
        plotting.curves(
            dimensions, [np.maximum(y, floor) for y in shown.values()], list(shown),
            series=[series[name] for name in shown], xlabel="dimension", ylabel=label, ax=ax,
        )  # fmt: skip
        ax.set(xscale="log", yscale="log")
        ax.set_xticks(list(dimensions), [str(d) for d in dimensions])
        ax.minorticks_off()
    if len(results["fits"]):
        bars(results["fits"], results["fit_costs"], axes.flat[3])
    plotting.legend(columns=2, ax=axes.flat[0])
    return plotting.lettered(picture)


GREYS = ("#333333", "#888888", "#cccccc")  # lines of the other panels have the colours
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
            color=GREYS[k % len(GREYS)],
        )  # fmt: skip
    ax.set(xscale="log", xlabel="seconds", ylabel="fit")
    ax.set_yticks(at, list(names))
    ax.invert_yaxis()
    plotting.legend(columns=1, ax=ax)
