"""First and warm calls against the dimension."""

from truncgauss import plotting


def plot(results):
    """Processor seconds of a first call and seconds of a warm one, a line for each task."""
    dimensions, costs = results["dimensions"], results["costs"]
    picture, axes = plotting.figure(1, 2, size=(4.2, 3.2))
    labels = {"first": "first call, processor seconds", "warm": "warm call, seconds"}
    for ax, (field, label) in zip(axes, labels.items(), strict=True):
        ys = [cost[field] for cost in costs.values()]
        plotting.curves(
            dimensions, ys, list(costs), series=[k % 6 for k in range(len(ys))],
            xlabel="dimension", ylabel=label, ax=ax,
        )  # fmt: skip
        ax.set(xscale="log", yscale="log")
        ax.set_xticks(list(dimensions), [str(d) for d in dimensions])
        ax.minorticks_off()
    return plotting.shared_legend(picture, columns=3)
