"""Error against time, the cost of gradients, and the errors of the default call."""

import math
from functools import partial

import numpy as np

from truncgauss import plotting

LOOKS = {
    "Separation": 0, "Separation, 4 replicates": 2, "SequentialMonteCarlo": 4, "SciPy": 1,
}  # fmt: skip
STATED = "standard error that the call reports, in the same colour"


def plot(results):
    """Error against time for every case, then what gradients cost and how the default call errs."""
    cases = list(results.get("curves", {}).items())
    # Two settings are no curve: such cases are in the summary, and drawn if there is nothing else.
    several = [
        (name, curve)
        for name, curve in cases
        if any(len(curve[way]["rms"]) > 2 for way in LOOKS if way in curve)
    ]
    panels = [partial(work_precision, *case) for case in several or cases]
    if "gradients" in results:
        panels.append(partial(cost_of_gradients, results["gradients"]))
    if "shared" in results:
        panels.append(partial(default_errors, results["shared"]))
    num_columns = min(len(panels), 3 if len(panels) % 4 else 4)
    num_rows = -(-len(panels) // num_columns)
    picture, axes = plotting.figure(num_rows, num_columns, size=(3.9, 3.0), squeeze=False)
    for ax, draw in zip(axes.flat, panels, strict=False):
        draw(ax)
    for ax in axes.flat[len(panels) :]:
        ax.remove()
    return plotting.lettered(plotting.shared_legend(picture, columns=5))


def work_precision(name, curve, ax):
    """RMS error of log P against seconds, filled; the reported standard error, open markers."""
    for way, look in LOOKS.items():
        part = curve.get(way)
        if part is None:
            continue
        seen = np.isfinite(part["rms"])
        x, y = part["seconds"][seen], part["rms"][seen]
        if not len(x):
            plotting.title(f"{name}\n{way}: P = 0 with every number of points", ax=ax)
            continue
        plotting.curves(x, [y], [way], series=(look,), ax=ax)
        plotting.points(x, y, series=look, ax=ax)
        if "stated" in part and np.isfinite(part["stated"][seen]).any():
            stated = part["stated"][seen]
            plotting.points(x, stated, label=STATED, series=look, filled=False, ax=ax)
    ax.set(xscale="log", yscale="log", xlabel="seconds a call", ylabel="rms error of log P")
    for name_of, (low, high) in (("xlim", ax.get_xlim()), ("ylim", ax.get_ylim())):
        more = math.sqrt(max(1.0, 100.0 * low / high))  # a factor of 100 at least has labels
        ax.set(**{name_of: (low / more, high * more)})
    ax.tick_params(which="minor", labelbottom=False, labelleft=False)  # they collide
    if not ax.get_title(loc="left"):
        plotting.title(name, ax=ax)


def cost_of_gradients(found, ax):
    """Time of value and gradient over that of the value, by dimension."""
    x = found["dimension"]
    plotting.curves(x, [found["ratio"]], ["_"], ax=ax)  # a name that no legend shows
    plotting.points(x, found["ratio"], ax=ax)
    ax.set(xscale="log", xlabel="dimension", ylabel="time of both / time of the value")
    ax.set_ylim(0, None)
    plotting.title("Value and gradient, beside the value", ax=ax)


def default_errors(found, ax):
    """Relative error of the default call and its reported standard error, against -log P."""
    size, floor = -found["truth"], 1e-16
    seen = np.maximum(found["error"], floor)
    plotting.points(size, seen, series=0, ax=ax)
    sure = np.isfinite(found["stderr"]) & (found["stderr"] > 0)
    stated = found["stderr"][sure]
    plotting.points(size[sure], stated, label=STATED, series=0, filled=False, ax=ax)
    ax.set(
        xscale="log", yscale="log", xlabel="−log P", ylabel="relative error of P, at least 1e-16"
    )
    plotting.title("The default call, families of known P", ax=ax)
