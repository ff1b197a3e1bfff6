"""First and warm calls against the dimension, and first fits."""

import numpy as np

from truncgauss import plotting

PANELS = {  # what is shown of calls: title, and label of the axis
    "first": ("First call", "processor seconds"),
    "warm": ("Warm call", "seconds"),
    "error": ("Errors of values", "rms error of log P"),
}
STEPS = {"first": "first fit", "kept": "first fit, programs kept", "warm": "warm fit"}
GREYS = ("#333333", "#888888", "#cccccc")  # lines of the other panels have the colours


def plot(results):
    """Processor seconds of a first call and seconds of a warm one, a line for each task, beside the
    errors of values; and of a first fit, one with programs kept and a warm one. Calls of a batch
    and with held plans are in the table only."""
    several = len(results["fits"]) > 0
    picture = plotting.page(10.8, 7.4 if several else 3.9)
    parts = picture.subfigures(2, 1, height_ratios=(3.9, 3.5)) if several else [picture]
    dimensions, costs = results["dimensions"], results["costs"]
    plain = [name for name in costs if "batch" not in name and "held" not in name]
    axes = plotting.mosaic([list(PANELS)], picture=parts[0])[1]
    for field, (title, label) in PANELS.items():
        ax, floor = axes[field], 1e-16 if field == "error" else 0.0  # an error may be 0
        shown = {name: costs[name][field] for name in plain}
        shown = {name: y for name, y in shown.items() if not np.isnan(y).all()}
        plotting.curves(
            dimensions, [np.maximum(y, floor) for y in shown.values()], list(shown), marker="o",
            markersize=3, series=[plain.index(name) % len(plotting.SERIES) for name in shown],
            xlabel="dimension", ylabel=label, ax=ax,
        )  # fmt: skip
        ax.set(xscale="log", yscale="log")
        ax.set_xticks(list(dimensions), [str(d) for d in dimensions])
        ax.minorticks_off()
        plotting.title(title, ax=ax)
    plotting.shared_legend(parts[0], columns=4)
    if several:
        ax = plotting.mosaic([["fits"]], picture=parts[1])[1]["fits"]
        bars(results["fits"], results["fit_costs"], ax)
        plotting.shared_legend(parts[1], columns=3)
    return plotting.lettered(picture)


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
    ax.set(xscale="log", xlabel="seconds; of first fits, processor seconds", ylabel="fit")
    ax.set_yticks(at, list(names))
    ax.invert_yaxis()
    plotting.title("Fits", ax=ax)
