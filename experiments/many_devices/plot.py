"""The fraction and its gradient along the shift, and seconds against the number of devices."""

import numpy as np

from truncgauss import plotting


def plot(results):
    """The soft curves over the exact ones; the seconds, and those of a perfect division."""
    picture, (left, right) = plotting.figure(1, 2, size=(4.4, 3.6))
    plotting.value_and_gradient(
        results["shift"], results["value"], results["gradient"],
        reference=(results["exact"]["value"], results["exact"]["gradient"]),
        xlabel="shift of the mean (s.d.)", value_label="fraction not truncated",
        gradient_label="its gradient (per s.d.)", ax=left,
    )  # fmt: skip
    names = [str(name) for name in results["devices"]]
    at = np.arange(len(names))
    for series, way in enumerate(results["ways"], 1):
        look, seconds = plotting.SERIES[series], results["seconds"][:, series - 1]
        right.plot(at, seconds, color=look.color, marker=look.marker, label=str(way), linestyle="")
        ideal = seconds[0] / np.array([int(name.split()[0]) for name in names])
        label = "of one device, divided" if series == 1 else "_"
        right.plot(at, ideal, color="#999999", linewidth=0.8, label=label, zorder=1)
    right.set(xlabel="devices", ylabel="seconds of a warm call")
    right.set_ylim(bottom=0)
    right.set_xticks(at, labels=names)
    for ax, title in ((left, "The same on any of them"), (right, "Seconds")):
        plotting.legend(columns=2, ax=plotting.title(title, ax=ax))
    return plotting.lettered(picture)
