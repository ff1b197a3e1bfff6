"""Processor seconds and memory against the dimension."""

import numpy as np

from truncgauss import plotting


def plot(results):
    """Both on logarithmic axes, values and gradients, with the last exponents in the title."""
    picture, axes = plotting.figure(1, 2, size=(4.2, 3.2))
    for ax, field, unit, label in zip(
        axes, ("work", "memory"), (1.0, 1e9), ("processor seconds", "GB held by the program"),
        strict=True,
    ):  # fmt: skip
        for number, name in enumerate(("value", "gradient")):
            rows = results[name]
            plotting.curves(
                rows["dimension"], [np.asarray(rows[field]) / unit],
                [name], series=[number], marker="o",
                xlabel="dimension d", ylabel=label, ax=ax,
            )  # fmt: skip
        powers = [float(results[name]["exponent"]) for name in ("value", "gradient")]
        said = r", at last as $d^{{{:.1f}}}$ and $d^{{{:.1f}}}$".format(*powers)
        plotting.title("Time" + said if field == "work" else "Memory", ax=ax)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ticks = [int(d) for d in results["dimensions"]]
        ax.set_xticks(ticks, [f"{d:,}" for d in ticks])
        ax.set_xticks([], minor=True)
    return plotting.lettered(plotting.shared_legend(picture, columns=2))
