"""Soft edges and bumps as they change, and the bias and spread of estimators."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from truncgauss.execution import files
from truncgauss.plotting.panels import band, gradient_axes, value_and_gradient
from truncgauss.plotting.style import (
    NEW_AXES,
    SERIES,
    VALUE,
    figure,
    in_house_style,
    title,
    with_given,
)
from truncgauss.special.safe import bump as bump_function

bump_and_growth = jax.jit(jax.vmap(jax.value_and_grad(bump_function, argnums=1), (0, None)))


@in_house_style
def annealing(
    edges: Sequence[Any], margin: Any = None, *, labels: Sequence[str] | None = None,
    xlabel: str = "distance inside the limit", ax: Axes = NEW_AXES, **kwargs: Any,
) -> Axes:  # fmt: skip
    """Soft edges from the first to the last, light to dark, and the limit that they tend to.

    Args:
        edges: such as `[tg.Tanh(steepness) for steepness in (2.0, 8.0, 32.0)]`, the softest first.
        margin: signed distances inside the limit, shape (n,), increasing; from -1.5 to 1.5 if None.
        labels: one name an edge; its class and width if None.
        xlabel: label of the x axis, with its unit.
        ax: where to draw; new axes if None.
        **kwargs: properties of the edges' lines.

    Example:
        >>> ax = tg.plotting.annealing([tg.Tanh(4.0), tg.Tanh(16.0)])
        >>> ax.get_legend_handles_labels()[1]
        ['Tanh(4)', 'Tanh(16)', 'hard limit']
    """
    margin = np.linspace(-1.5, 1.5, 601) if margin is None else np.asarray(margin, float)
    labels = [edge_name(edge) for edge in edges] if labels is None else labels
    for number, (edge, label) in enumerate(zip(edges, labels, strict=True)):
        # Between white and the colour, so that the order is seen without colours too.
        share = (number + 1.5) / (len(edges) + 0.5)
        color = tuple(1 - share * (1 - part) for part in to_rgb(VALUE.color))
        line = with_given(Line2D, {"color": color, "linewidth": 1.4, "label": label}, kwargs)
        ax.plot(margin, np.asarray(edge.value(margin)), **line)
    ends = np.array([margin[0], 0.0, 0.0, margin[-1]])
    ax.plot(ends, [0, 0, 1, 1], color="#000000", linewidth=0.9, linestyle=":", label="hard limit")
    ax.set(xlabel=xlabel, ylabel="weight of a point")
    return ax


def edge_name(edge: Any) -> str:
    """The class of an edge and its widths.

    Example:
        >>> from truncgauss.plotting.estimators import edge_name
        >>> edge_name(tg.Probit(0.25))
        'Probit(0.25)'
    """
    widths = ", ".join(f"{float(np.mean(leaf)):g}" for leaf in jax.tree.leaves(edge))
    return f"{type(edge).__name__}({widths})"


@in_house_style
def bias_and_spread(
    x: Any, estimates: Any, truth: Any, *, label: str = "estimator", series: int = 1,
    xlabel: str = "x", ylabel: str = "estimate − truth", ax: Axes = NEW_AXES, **kwargs: Any,
) -> Axes:  # fmt: skip
    """The bias of repeated estimates with its standard error, and the spread of a single one.

    Markers are means over the repetitions less the truth, bars the standard errors of these means:
    a bias is seen where the bars do not reach 0. The shade holds the truth plus or minus one
    standard deviation of a single estimate about its mean.

    Args:
        x: abscissae, such as a width or a number of samples, shape (n,).
        estimates: one row a repetition, shape (k, n), k at least 2.
        truth: a number, or shape (n,).
        label: name in the legend.
        series: which entry of `SERIES`, 0 to 6.
        xlabel: label of the x axis, with its unit.
        ylabel: label of the y axis, with its unit.
        ax: where to draw; new axes if None.
        **kwargs: properties of the line through the means.

    Raises:
        ValueError: if there are not two repetitions or more of n estimates.

    Example:
        >>> ax = tg.plotting.bias_and_spread([1.0, 2.0], [[0.0, 1.0], [2.0, 3.0]], 1.0)
        >>> ax.lines[0].get_ydata()
        array([0., 1.])
    """
    x, estimates = np.asarray(x, float), np.asarray(estimates, float)
    if estimates.ndim != 2 or len(estimates) < 2 or x.shape != estimates.shape[1:]:
        raise ValueError(
            "bias_and_spread: expected x (n,) and estimates (k, n) with k at least 2, got "
            f"{x.shape} and {estimates.shape}."
        )
    bias, spread = estimates.mean(axis=0) - truth, estimates.std(axis=0, ddof=1)
    look = SERIES[series]
    line = {
        "color": look.color, "linestyle": look.linestyle, "marker": look.marker, "markersize": 4,
        "label": f"{label}: bias ± its standard error",
    }  # fmt: skip
    line = with_given(Line2D, line, kwargs)
    ax.plot(x, bias, **line)
    error = spread / np.sqrt(len(estimates))
    ax.errorbar(x, bias, error, linestyle="none", color=line["color"], capsize=2, elinewidth=1)
    band(
        x, bias - spread, bias + spread, color=line["color"], alpha=0.18,
        label=f"{label}: ± s.d. of one estimate", ax=ax,
    )  # fmt: skip
    ax.axhline(0, color="#555555", linewidth=0.7)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    return ax


@in_house_style
def bump(width: float, reach: float = 2.5, *, xlabel: str = "x", ax: Axes = NEW_AXES) -> Axes:
    """The bump function of a width, left axis, and its derivative by the width, right axis.

    Args:
        width: beyond it the bump and all its derivatives are 0.
        reach: the ends of the x axis, -reach and reach.
        xlabel: label of the x axis, with its unit.
        ax: where to draw; new axes if None.

    Example:
        >>> tg.plotting.bump(1.0).get_ylabel()
        'bump Ψ(x; σ)'
    """
    x = np.linspace(-reach, reach, 501)
    value, growth = bump_and_growth(x, width)
    value_and_gradient(
        x, value, growth, xlabel=xlabel, value_label="bump Ψ(x; σ)", gradient_label="∂Ψ/∂σ", ax=ax
    )
    ax.set(xlim=(-reach, reach))
    return ax


def growing_bump(widths: Iterable[float], reach: float = 2.5) -> Iterable[Figure]:
    """One figure for each width of a bump, as the frames of `animation`; the axes stay the same.

    Args:
        widths: positive numbers.
        reach: the ends of the x axis, -reach and reach.

    Example:
        >>> len(list(tg.plotting.growing_bump([0.5, 1.0])))
        2
    """
    widths = list(widths)
    for width in widths:
        picture, ax = figure(size=(4.6, 3.0))
        bump(width, reach, ax=ax)
        title(f"width σ = {width:.2f}", ax=ax).set_ylim(-0.02, 0.41)
        top = 0.65 / min(widths)  # above the largest slope
        gradient_axes(ax).set_ylim(-0.02 / 0.41 * top, top)
        yield picture


def animation(frames: Iterable[Figure], path: Any, seconds: float = 4.0, dpi: int = 100) -> str:
    """Write figures as a GIF that repeats for ever, and return its path.

    Args:
        frames: figures of one size.
        path: of the file; it should end in .gif.
        seconds: of one repetition.
        dpi: pixels an inch.

    Raises:
        ValueError: without frames.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     frames = tg.plotting.growing_bump([0.5, 1.0])
        ...     tg.plotting.animation(frames, f"{folder}/bump.gif")[-8:]
        'bump.gif'
    """
    images = []
    for picture in frames:
        picture.set_dpi(dpi)
        canvas: Any = FigureCanvasAgg(picture)
        canvas.draw()
        images.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
    if not images:
        raise ValueError("animation: expected one figure or more, got none.")
    # One palette for all frames: colours do not flicker.
    palette = images[-1].quantize(64, method=Image.Quantize.MEDIANCUT)
    colors = np.array(palette.getpalette(), int).reshape(-1, 3)
    colors[colors.min(axis=1) > 245] = 255  # the page, which averages with its lines have tinted
    palette.putpalette(colors.ravel().tolist())
    first, *others = (i.quantize(palette=palette, dither=Image.Dither.NONE) for i in images)
    with files.replacing(path) as partial:
        first.save(
            partial, "gif", save_all=True, append_images=others, loop=0, optimize=True,
            duration=round(1000 * seconds / len(images)),
        )  # fmt: skip
    return str(path)
