"""Curves, points, bands and histograms over one abscissa, and what is not finite among them."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from truncgauss.plotting.style import (
    ALARM,
    GRADIENT,
    MANY,
    NEW_AXES,
    REFERENCE,
    SERIES,
    STYLE,
    VALUE,
    check_lengths,
    in_house_style,
    twins,
    with_settings,
)

REACH = 2  # standard errors, from a curve to either end of its band


@in_house_style
def value_and_gradient(
    x: Any,
    value: Any,
    gradient: Any,
    *,
    value_stderr: Any = None,
    gradient_stderr: Any = None,
    reference: tuple[Any, Any] | None = None,
    reference_label: str = "exact",
    xlabel: str = "x",
    value_label: str = "value",
    gradient_label: str = "gradient",
    ax: Axes = NEW_AXES,
) -> Axes:
    """A value (left axis, solid) and its gradient (right axis, dashed); NaN is marked, not dropped.

    Args:
        x: abscissae, shape (n,), increasing.
        value: shape (n,).
        gradient: d value / d x, shape (n,).
        value_stderr: standard errors of the value, shape (n,); a band of two is drawn.
        gradient_stderr: likewise of the gradient.
        reference: the true value and gradient, drawn as thin black lines.
        reference_label: its name in the legend.
        xlabel: label of the x axis, with its unit.
        value_label: label of the left axis.
        gradient_label: label of the right axis.
        ax: where to draw; new axes if None.

    Returns:
        The left Axes; `gradient_axes` gives the right one.

    Raises:
        ValueError: if x, value and gradient have different lengths.

    Example:
        >>> x = jnp.linspace(-1, 1, 5)
        >>> tg.plotting.value_and_gradient(x, x**2, 2 * x).get_ylabel()
        'value'
    """
    right = gradient_axes(ax)
    sides = (
        (ax, VALUE, value, value_stderr, value_label),
        (right, GRADIENT, gradient, gradient_stderr, gradient_label),
    )
    errors = {"value_stderr": value_stderr, "gradient_stderr": gradient_stderr}
    if reference is not None:
        if len(reference) != 2:
            raise ValueError(
                "value_and_gradient: reference must be a pair, the true value and gradient, got "
                f"{len(reference)} entries."
            )
        errors |= {"reference[0]": reference[0], "reference[1]": reference[1]}
    check_lengths("value_and_gradient", {"x": x, "value": value, "gradient": gradient}, errors)
    for number, (side, look, y, stderr, label) in enumerate(sides):
        x, y = np.asarray(x), np.asarray(y)
        if stderr is not None:
            reach, name = REACH * np.asarray(stderr), f"{label}, ± {REACH} standard errors"
            band(x, y - reach, y + reach, label=name, color=look.color, alpha=0.22, ax=side)
        side.plot(x, y, color=look.color, linestyle=look.linestyle, label=label)
        if reference is not None:
            exact = np.asarray(reference[number])
            name = str(reference_label) if number == 0 else "_reference"
            side.plot(x, exact, color=REFERENCE, linewidth=0.7, label=name, zorder=3)
        side.set_ylabel(label, color=look.color)
        side.tick_params(axis="y", labelcolor=look.color)
    ax.set_xlabel(xlabel)
    for y, label in ((value, value_label), (gradient, gradient_label)):
        nan_spans(x, y, name=label.split(" (")[0], ax=ax)
    return ax


def gradient_axes(ax: Axes) -> Axes:
    """The right-hand Axes that share `ax`'s abscissa, made on first use.

    Example:
        >>> ax = tg.plotting.figure()[1]
        >>> tg.plotting.gradient_axes(ax) is tg.plotting.gradient_axes(ax)
        True
    """
    if existing := twins(ax):
        return existing[0]
    with matplotlib.rc_context(STYLE | {"axes.grid": False, "axes.spines.right": True}):
        right = ax.twinx()
    right.set_label(f"right of {id(ax)}")
    return right


@in_house_style
def nan_spans(x: Any, y: Any, *, name: str = "value", ax: Axes = NEW_AXES) -> Axes:
    """Hatched spans and ticks where y is not finite, and their count in the legend.

    Args:
        x: abscissae, shape (n,), increasing.
        y: shape (n,).
        name: what y is.
        ax: where to draw; new axes if None.

    Example:
        >>> ax = tg.plotting.nan_spans([0.0, 1.0, 2.0], [1.0, jnp.nan, 2.0], name="gradient")
        >>> ax.get_legend_handles_labels()[1]
        ['gradient not finite: 1 of 3 points']
    """
    check_lengths("nan_spans", {"x": x, "y": y}, {})
    x, bad = np.asarray(x, float), ~np.isfinite(np.asarray(y, float))
    if not bad.any():
        return ax
    label = f"{name} not finite: {bad.sum()} of {bad.size} points"
    steps = np.diff(x)
    before = x - np.concatenate([steps[:1], steps]) / 2 if x.size > 1 else x
    after = x + np.concatenate([steps, steps[-1:]]) / 2 if x.size > 1 else x
    jumps = np.diff(np.concatenate([[0], bad.astype(int), [0]]))
    starts, ends = np.flatnonzero(jumps == 1), np.flatnonzero(jumps == -1) - 1
    for start, end in zip(starts, ends, strict=True):
        ax.axvspan(
            before[start], after[end], facecolor="none", edgecolor=ALARM, hatch="////",
            linewidth=0, alpha=0.45, label=label, zorder=0.5,
        )  # fmt: skip
        label = f"_{name}"
    ax.plot(
        x[bad], np.zeros(bad.sum()), "|", markersize=8, color=ALARM, clip_on=False,
        transform=ax.get_xaxis_transform(), label="_ticks",
    )  # fmt: skip
    return ax


@in_house_style
def curves(
    x: Any, ys: Sequence[Any], labels: Sequence[str], *,
    series: Sequence[int] = tuple(range(len(SERIES))), linewidth: float = 1.4, xlabel: str = "x",
    ylabel: str = "value", ax: Axes = NEW_AXES, **kwargs: Any,
) -> Axes:  # fmt: skip
    """Several curves over one abscissa, each with its own colour, line style and lightness.

    Args:
        x: abscissae, shape (n,).
        ys: one array of shape (n,) a curve, seven at most.
        labels: one name a curve.
        series: which entry of `SERIES`, 0 to 6, each curve is drawn as.
        linewidth: in points.
        xlabel: label of the x axis, with its unit.
        ylabel: label of the y axis.
        ax: where to draw; new axes if None.
        **kwargs: properties of the lines, of all of them.

    Raises:
        ValueError: if there are more curves than entries of `series`, or other numbers of labels or
            of points.

    Example:
        >>> ax = tg.plotting.curves([0.0, 1.0], [[1.0, 2.0], [3.0, 4.0]], ["a", "b"])
        >>> len(ax.lines)
        2
    """
    if any(np.ndim(y) == 0 for y in ys):
        raise ValueError("curves: ys must hold one array for each curve, got numbers. Write [y].")
    if len(ys) > len(series):
        raise ValueError(f"curves: {len(series)} can be distinguished, got {len(ys)}.")
    if isinstance(labels, str) or len(labels) != len(ys):
        raise ValueError(
            f"curves: labels must be a list of {len(ys)} names, one a curve, got {labels!r}."
        )
    check_lengths("curves", {"x": x} | {f"ys[{k}]": y for k, y in enumerate(ys)}, {})
    for number, y, label in zip(series, ys, labels, strict=False):
        look = SERIES[number]
        line = {"color": look.color, "linestyle": look.linestyle, "linewidth": linewidth}
        ax.plot(x, y, **with_settings(Line2D, line | {"label": label}, kwargs))
        nan_spans(x, y, name=label, ax=ax)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    return ax


@in_house_style
def points(
    x: Any, y: Any, *, label: str | None = None, series: int = 0, filled: bool = True,
    stderr: Any = None, counts: Any = None, ax: Axes = NEW_AXES, **kwargs: Any,
) -> Axes:  # fmt: skip
    """Markers at (x, y), with error bars of one standard error if given.

    Args:
        x: shape (n,).
        y: shape (n,).
        label: name in the legend.
        series: which entry of `SERIES`, 0 to 6.
        filled: whether the markers are filled.
        stderr: standard errors of y, shape (n,).
        counts: how many points each marker stands for, shape (n,): its area.
        ax: where to draw; new axes if None.
        **kwargs: properties of the markers, as of `Axes.scatter`.

    Raises:
        ValueError: if x, y, stderr and counts have different lengths.

    Example:
        >>> ax = tg.plotting.points([1.0, 2.0], [1.0, 4.0], label="observed")
        >>> ax.get_legend_handles_labels()[1]
        ['observed']
    """
    check_lengths("points", {"x": x, "y": y}, {"stderr": stderr, "counts": counts})
    x, y, look = np.asarray(x), np.asarray(y), SERIES[series]
    area = STYLE["lines.markersize"] ** 2
    marks = {
        "s": area if counts is None else area * np.asarray(counts), "marker": look.marker,
        "facecolor": look.color if filled else "white", "edgecolor": look.color, "linewidth": 0.9,
        "label": label, "zorder": 2.5, "rasterized": len(x) > MANY,
    }  # fmt: skip
    marks = with_settings(PathCollection, marks, kwargs)
    if stderr is not None:
        ax.errorbar(
            x, y, yerr=np.asarray(stderr), linestyle="none", color=marks["edgecolor"], capsize=2,
            elinewidth=1,
        )  # fmt: skip
    ax.scatter(x, y, **marks)
    return ax


@in_house_style
def band(
    x: Any, low: Any, high: Any, *, label: str | None = None, ax: Axes = NEW_AXES, **kwargs: Any
) -> Axes:
    """The area between two curves, shaded.

    Args:
        x: abscissae, shape (n,).
        low, high: shape (n,).
        label: name in the legend.
        ax: where to draw; new axes if None.
        **kwargs: properties of the area, as of `Axes.fill_between`.

    Example:
        >>> len(tg.plotting.band([0.0, 1.0], [-1.0, -2.0], [1.0, 2.0]).collections)
        1
    """
    check_lengths("band", {"x": x}, {"low": low, "high": high})
    area = {"color": "#888888", "alpha": 0.25, "linewidth": 0, "label": label}
    ax.fill_between(x, low, high, **with_settings(PolyCollection, area, kwargs))
    return ax


@in_house_style
def histogram(
    values: Any, *, bins: int = 60, label: str | None = None, series: int = 0,
    ax: Axes = NEW_AXES, **kwargs: Any,
) -> Axes:  # fmt: skip
    """The density of draws, as bars from the smallest of them to the largest.

    Args:
        values: draws, shape (n,).
        bins: number of bars.
        label: name in the legend.
        series: which entry of `SERIES`, 0 to 6.
        ax: where to draw; new axes if None.
        **kwargs: properties of the bars, as of `Axes.hist`.

    Raises:
        ValueError: for values that are not finite, none, or of another shape.

    Example:
        >>> ax = tg.plotting.histogram([0.0, 0.2, 1.0], bins=2)
        >>> [float(bar.get_height().round(3)) for bar in ax.patches]
        [1.333, 0.667]
    """
    values = np.asarray(values, float)
    wrong = np.count_nonzero(~np.isfinite(values))
    if values.ndim != 1 or not len(values) or wrong:
        raise ValueError(
            "histogram: values must have shape (n,), with one number or more, all finite, got "
            f"shape {values.shape}, {wrong} of them not finite. Take one column, values[:, j], and "
            "leave those out, values[np.isfinite(values)]."
        )
    bars = {"density": True, "color": SERIES[series].color, "alpha": 0.5, "label": label}
    ax.hist(values, bins, **with_settings(Rectangle, bars, kwargs))
    return ax
