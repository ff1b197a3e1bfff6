"""Efficiencies against the number of devices, and seconds of the work."""

from truncgauss import plotting


def plot(results):
    """Seconds, the efficiency by the clock and that by processor seconds, a line for each work.

    A dash is what independent processes reach that do the same work at the same time: the machine's
    own bound.
    """
    scaling = results["scaling"]
    picture, axes = plotting.figure(1, 3, size=(3.6, 3.2))
    labels = {
        "wall": "seconds of a call",
        "efficiency": f"efficiency by the clock\n{int(results['cores'])} cores, load before "
        f"{results['load']:.0f}",
        "work_efficiency": "efficiency by\nprocessor seconds",
    }
    for ax, (field, label) in zip(axes, labels.items(), strict=True):
        kinds = [name for name in scaling if "processes" not in name]
        for name, curve in scaling.items():
            # Processes have the colour of the same work on devices.
            style = {} if name in kinds else {"linestyle": "--", "marker": "s"}
            number = kinds.index(name.replace("processes", "strong"))
            plotting.curves(
                curve["counts"], [curve[field]], [name], series=[number], **style,
                xlabel="devices, or processes of one device", ylabel=label, ax=ax,
            )  # fmt: skip
        bounds = {} if field == "wall" else results["bounds"]
        for name, bound in bounds.items():
            height = bound["wall" if field == "efficiency" else "work"]
            ax.plot(  # what independent processes reach, above which no spreading can come
                [int(results["cores"])], [height], "_", markersize=14,
                color=plotting.SERIES[kinds.index(name)].color,
            )  # fmt: skip
        counts = sorted({int(n) for curve in scaling.values() for n in curve["counts"]})
        ax.set_xscale("log", base=2)
        ax.set_xticks(counts, [str(n) for n in counts])
        ax.minorticks_off()
        if field == "wall":
            ax.set_yscale("log")
        else:
            ax.set_ylim(0.0, 1.2)
    return plotting.shared_legend(picture, columns=3)
