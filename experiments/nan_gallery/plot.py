"""Values and gradients of the naive and the safe formulas."""

import numpy as np

from truncgauss import plotting

from .run import ORDER

FEW = 5  # points that are too narrow for a hatched span


def plot(results):
    """One row for each exhibit: value on the left, gradient on the right."""
    picture, axes = plotting.figure(len(ORDER), 2, size=(5.2, 2.55))
    for number, (name, (left, right)) in enumerate(zip(ORDER, axes, strict=True), 1):
        exhibit = results[name]
        title = f"{number}  {exhibit['title']}"
        draw(exhibit, "value", exhibit["ylabel"], title, ax=left)
        draw(exhibit, "gradient", exhibit["slope"], exhibit["verdict"], ax=right)
    return picture


@plotting.in_house_style
def draw(exhibit, part, label, title, *, ax):
    """Safe below, naive on top of it, so that the safe curve shows wherever the naive one ends."""
    x, safe, naive = exhibit["x"], exhibit["safe"][part], exhibit["naive"][part]
    training = "optimum" in exhibit and part == "gradient"
    if training:  # it falls by orders of magnitude, swinging about 0
        safe, naive, label = np.abs(safe), np.abs(naive), f"|{label}|"
    curves = {"safe": safe, "naive": naive}
    curves |= {"Gaussian bell": exhibit["bell"][part]} if "bell" in exhibit else {}
    plotting.curves(x, list(curves.values()), list(curves), xlabel=exhibit["xlabel"], ylabel=label,
                    ax=ax)  # fmt: skip
    bad = ~np.isfinite(naive)
    if 0 < bad.sum() <= FEW:
        ax.plot(x[bad], safe[bad], "X", color=plotting.ALARM, markersize=8, zorder=5)
    if training:
        ax.set_yscale("log")
    ax.set_title(title)
    plotting.legend(columns=2 if "bell" in exhibit and bad.any() else 3, ax=ax)
