"""Processor seconds and memory against the dimension."""

from truncgauss import plotting

PANELS = ("work", 1.0, "processor seconds"), ("memory", 1e9, "GB held by the program")


def plot(results):
    """Both on logarithmic axes, values and gradients, with the last exponents in the title."""
    picture, axes = plotting.figure(1, 2, size=(4.2, 3.2))
    for ax, (field, unit, label) in zip(axes, PANELS):
        for number, name in enumerate(("value", "gradient")):
            rows, look = results[name], {"series": [number], "marker": "o"}
            plotting.curves(rows["dimension"], [rows[field] / unit], [name], ax=ax, **look)
        ax.set(xlabel="dimension d", ylabel=label)
        powers = [float(results[name]["exponent"]) for name in ("value", "gradient")]
        said = r", at last as $d^{{{:.1f}}}$ and $d^{{{:.1f}}}$".format(*powers)
        plotting.title("Time" + said if field == "work" else "Memory", ax=ax)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ticks = [int(d) for d in results["dimensions"]]
        ax.set_xticks(ticks, [f"{d:,}" for d in ticks])
        ax.set_xticks([], minor=True)
    return plotting.lettered(plotting.shared_legend(picture, columns=2))
