"""Efficiency of each kind of work on several devices, beside that of independent processes."""

import numpy as np

from truncgauss import plotting


def plot(results):
    """Bars of the efficiency on all devices, by the clock and by processor seconds.

    A line across a bar is what as many independent processes reach that do the same work at once:
    the machine's bound.
    """
    scaling = results["scaling"]
    kinds = [name for name in scaling if "processes" not in name]
    at = np.arange(len(kinds), dtype=float)
    picture, axes = plotting.figure(1, 2, size=(4.0, 2.4), sharey=True)
    titles = {
        "efficiency": ("wall", "By the clock"),
        "work_efficiency": ("work", "By processor seconds"),
    }
    for ax, (field, (bound, title)) in zip(axes, titles.items(), strict=True):
        count = max(int(scaling[name]["counts"][-1]) for name in kinds)
        ax.barh(
            at, [scaling[name][field][-1] for name in kinds], 0.6, color=plotting.SERIES[5].color,
            label=f"{count} devices",
        )  # fmt: skip
        bounds = {name: each[bound] for name, each in results["bounds"].items()}
        ax.plot(
            list(bounds.values()), [at[kinds.index(name)] for name in bounds], "|", color="#000000",
            markersize=16, markeredgewidth=1.6, label="independent processes",
        )  # fmt: skip
        of_processes = [name for name in scaling if "processes" in name]
        plotting.points(
            [scaling[name][field][-1] for name in of_processes],
            [at[kinds.index(name.replace("processes", "strong"))] for name in of_processes],
            series=1, label="joined processes of one device", ax=ax,
        )  # fmt: skip
        ax.set(xlim=(0.0, 1.2), xlabel="efficiency", yticks=at, yticklabels=[*map(in_words, kinds)])
        ax.set_ylim(len(kinds) - 0.5, -0.5)
        plotting.title(title, ax=ax)
    axes[0].set_ylabel("kind of work")
    return plotting.lettered(plotting.shared_legend(picture, columns=3))


def in_words(kind):
    """The name of a kind of work for readers: strong scaling shares the same work, weak adds."""
    what, scaling = kind.split(", ")
    return f"{what}, {'the same work shared' if scaling == 'strong' else 'more work each'}"
