"""The panels of figures, what they share, and their legends."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Ellipse
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

STYLE: Any = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": 9,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "savefig.dpi": 200,
    "svg.hashsalt": "truncgauss",
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


class Series(NamedTuple):
    """Colour, line style and marker of a data series; each alone identifies it."""

    color: str
    linestyle: Any
    marker: str


# Ordered so that neighbours differ in lightness as well as in hue.
SERIES = (
    Series("#000000", "-", "o"),
    Series("#D55E00", (0, (5, 1.5)), "s"),
    Series("#0072B2", (0, (4, 1.2, 1, 1.2)), "^"),
    Series("#E69F00", (0, (1, 1)), "D"),
    Series("#009E73", (0, (8, 2)), "v"),
    Series("#56B4E9", (0, (3, 1, 1, 1, 1, 1)), "P"),
    Series("#CC79A7", (0, (2, 2)), "X"),
)
VALUE = Series("#0072B2", "-", "o")
GRADIENT = Series("#D55E00", (0, (5, 1.5)), "s")
REFERENCE = "#000000"
ALARM = "#B00020"
UNSEEN = "#999999"
MANY = 2000  # points: beyond, an SVG holds them as one picture


NEW_AXES: Any = None  # no Axes given: `in_house_style` makes some


def in_house_style(draw: Callable[..., Any]) -> Callable[..., Any]:
    """A function that draws in the style of this module, on new Axes if the caller gives none."""

    @functools.wraps(draw)
    def styled(*args: Any, ax: Axes | None = None, **settings: Any) -> Any:
        with matplotlib.rc_context(STYLE):
            return draw(*args, ax=figure()[1] if ax is None else ax, **settings)

    return styled


def figure(
    rows: int = 1, columns: int = 1, size: tuple[float, float] = (4.6, 3.3), **settings: Any
) -> tuple[Figure, Any]:
    """A figure in the style of this module, and its axes, without any global state.

    Args:
        rows: number of rows of panels.
        columns: number of columns.
        size: width and height of one panel in inches, labels included.
        **settings: further arguments of `matplotlib.figure.Figure.subplots`.

    Returns:
        The figure, and one Axes, a row of them, or a (rows, columns) array.

    Example:
        >>> picture, (left, right) = tg.plotting.figure(1, 2)
        >>> len(picture.axes)
        2
    """
    picture = _empty(columns * size[0], rows * size[1])
    with matplotlib.rc_context(STYLE):
        return picture, picture.subplots(rows, columns, **settings)


def mosaic(
    layout: Sequence[Sequence[str]], size: tuple[float, float] = (4.6, 3.3), **settings: Any
) -> tuple[Figure, dict[str, Axes]]:
    """A figure in the style of this module whose panels may span rows and columns.

    Args:
        layout: rows of names; a name that is repeated spans these cells.
        size: width and height of one cell in inches.
        **settings: further arguments of `matplotlib.figure.Figure.subplot_mosaic`.

    Returns:
        The figure, and its Axes by name.

    Example:
        >>> picture, axes = tg.plotting.mosaic([["tall", "top"], ["tall", "bottom"]])
        >>> sorted(axes)
        ['bottom', 'tall', 'top']
    """
    picture = _empty(len(layout[0]) * size[0], len(layout) * size[1])
    with matplotlib.rc_context(STYLE):
        return picture, picture.subplot_mosaic([list(row) for row in layout], **settings)


def _empty(width: float, height: float) -> Figure:
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.04, hspace=0.04)
    return Figure(figsize=(width, height), layout=layout, dpi=STYLE["savefig.dpi"])


def save(picture: Figure, stem: Any) -> list[str]:
    """Write stem.png and stem.svg, the same bytes for the same figure, and return their paths.

    Args:
        picture: the figure.
        stem: path without suffix.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [p[-4:] for p in tg.plotting.save(tg.plotting.figure()[0], f"{folder}/x")]
        ['.png', '.svg']
    """
    paths = [f"{stem}.png", f"{stem}.svg"]
    with matplotlib.rc_context(STYLE):
        picture.savefig(paths[0], metadata={"Software": None})
        picture.savefig(paths[1], metadata={"Date": None, "Creator": None})
    return paths


@in_house_style
def title(text: str, *, ax: Axes = NEW_AXES) -> Axes:
    """Set the title of the axes.

    Example:
        >>> tg.plotting.title("Tanh edge").get_title(loc="left")
        'Tanh edge'
    """
    ax.set_title(text)
    return ax


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
    for number, (side, look, y, stderr, label) in enumerate(sides):
        x, y = np.asarray(x), np.asarray(y)
        if stderr is not None:
            reach, name = 2 * np.asarray(stderr), f"{label}, ± 2 standard errors"
            band: dict[str, Any] = {
                "color": look.color,
                "alpha": 0.22,
                "linewidth": 0,
                "label": name,
            }
            side.fill_between(x, y - reach, y + reach, **band)
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
    name = f"right of {id(ax)}"
    found = [other for other in ax.figure.axes if other.get_label() == name]
    if found:
        return found[0]
    with matplotlib.rc_context(STYLE | {"axes.grid": False, "axes.spines.right": True}):
        right = ax.twinx()
    right.set_label(name)
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
    ylabel: str = "value", ax: Axes = NEW_AXES,
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

    Raises:
        ValueError: if there are more curves than entries of `series`.

    Example:
        >>> ax = tg.plotting.curves([0.0, 1.0], [[1.0, 2.0], [3.0, 4.0]], ["a", "b"])
        >>> len(ax.lines)
        2
    """
    if len(ys) > len(series):
        raise ValueError(f"curves: {len(series)} can be distinguished, got {len(ys)}.")
    for number, y, label in zip(series, ys, labels, strict=False):
        look = SERIES[number]
        ax.plot(x, y, color=look.color, linestyle=look.linestyle, lw=linewidth, label=label)
        nan_spans(x, y, name=label, ax=ax)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    return ax


@in_house_style
def points(
    x: Any, y: Any, *, label: str | None = None, series: int = 0, filled: bool = True,
    stderr: Any = None, counts: Any = None, ax: Axes = NEW_AXES,
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

    Example:
        >>> ax = tg.plotting.points([1.0, 2.0], [1.0, 4.0], label="seen")
        >>> ax.get_legend_handles_labels()[1]
        ['seen']
    """
    x, y, look = np.asarray(x), np.asarray(y), SERIES[series]
    if stderr is not None:
        ax.errorbar(
            x, y, yerr=np.asarray(stderr), linestyle="none", color=look.color, capsize=2,
            elinewidth=1,
        )  # fmt: skip
    area = STYLE["lines.markersize"] ** 2
    ax.scatter(
        x, y, s=area if counts is None else area * np.asarray(counts), marker=look.marker,
        facecolor=look.color if filled else "white", edgecolor=look.color, linewidth=0.9,
        label=label, zorder=2.5, rasterized=len(x) > MANY,
    )  # fmt: skip
    return ax


@in_house_style
def band(x: Any, low: Any, high: Any, *, label: str | None = None, ax: Axes = NEW_AXES) -> Axes:
    """The area between two curves, shaded.

    Args:
        x: abscissae, shape (n,).
        low, high: shape (n,).
        label: name in the legend.
        ax: where to draw; new axes if None.

    Example:
        >>> len(tg.plotting.band([0.0, 1.0], [-1.0, -2.0], [1.0, 2.0]).collections)
        1
    """
    ax.fill_between(x, low, high, color="#888888", alpha=0.25, linewidth=0, label=label)
    return ax


@in_house_style
def histogram(
    values: Any, *, bins: int = 60, label: str | None = None, series: int = 0,
    ax: Axes = NEW_AXES,
) -> Axes:  # fmt: skip
    """The density of draws, as bars from the smallest of them to the largest.

    Args:
        values: draws, shape (n,).
        bins: number of bars.
        label: name in the legend.
        series: which entry of `SERIES`, 0 to 6.
        ax: where to draw; new axes if None.

    Example:
        >>> ax = tg.plotting.histogram([0.0, 0.2, 1.0], bins=2)
        >>> [float(bar.get_height().round(3)) for bar in ax.patches]
        [1.333, 0.667]
    """
    color = SERIES[series].color
    ax.hist(np.asarray(values), bins, density=True, color=color, alpha=0.5, label=label)
    return ax


@in_house_style
def contours(
    loc: Any,
    covariance: Any,
    levels: Iterable[float] = (0.5, 0.9),
    *,
    label: str | None = None,
    series: int = 0,
    ax: Axes = NEW_AXES,
) -> Axes:
    """The ellipses that hold given probabilities of a Gaussian in the plane.

    A level p has squared Mahalanobis radius -2 log(1 - p).

    Args:
        loc: mean, shape (2,), marked by a cross.
        covariance: covariance matrix, shape (2, 2).
        levels: probabilities inside each ellipse.
        label: name in the legend.
        series: which entry of `SERIES`, 0 to 6.
        ax: where to draw; new axes if None.

    Raises:
        ValueError: if loc and covariance are not those of a Gaussian in the plane.

    Example:
        >>> ax = tg.plotting.contours([0.0, 0.0], jnp.eye(2), levels=[0.5])
        >>> len(ax.patches)
        1
    """
    loc, covariance = np.asarray(loc, float), np.asarray(covariance, float)
    if loc.shape != (2,) or covariance.shape != (2, 2):
        raise ValueError(
            "contours: a Gaussian in the plane can be drawn, with loc (2,) and covariance (2, 2), "
            f"got {loc.shape} and {covariance.shape}; give two of the coordinates."
        )
    variances, axes = np.linalg.eigh(covariance)
    angle = np.degrees(np.arctan2(axes[1, 1], axes[0, 1]))
    look = SERIES[series]
    # A single point: it draws no line, but the legend shows its style.
    ax.plot(
        *loc, marker="+", markersize=10, markeredgewidth=2, color=look.color, zorder=4,
        linestyle=look.linestyle, label=label,
    )  # fmt: skip
    for level in levels:
        radius = np.sqrt(-2 * np.log1p(-level))
        long, short = 2 * radius * np.sqrt(variances[1]), 2 * radius * np.sqrt(variances[0])
        line = {"edgecolor": look.color, "linewidth": 1.5, "linestyle": look.linestyle}
        ax.add_patch(Ellipse(loc, long, short, angle=angle, fill=False, **line))
        # Patches alone do not move the view: their outermost points do.
        reach = radius * np.sqrt(np.diagonal(covariance))
        ax.update_datalim([loc - reach, loc + reach])
    ax.autoscale_view()
    return ax


@in_house_style
def region(shape: Any, *, label: str = "not seen", ax: Axes = NEW_AXES) -> Axes:
    """The boundary of a region of the plane, with its outside hatched.

    Call it last: it fills the present view and keeps it.

    Args:
        shape: `Box`, `Ball` or `Polyhedron` of dimension 2.
        label: name of the outside in the legend.
        ax: where to draw; new axes if None.

    Raises:
        ValueError: if the region is not one region of the plane.

    Example:
        >>> ax = tg.plotting.region(tg.Ball([0.5, 0.5], 0.25))
        >>> ax.get_legend_handles_labels()[1]
        ['not seen']
    """
    if shape.dimension != 2 or shape.batch_shape:
        raise ValueError(
            f"region: one region of the plane can be drawn, got dimension {shape.dimension} and "
            f"batch shape {shape.batch_shape}."
        )
    across, up = ax.get_xlim(), ax.get_ylim()
    grid = np.stack(np.meshgrid(np.linspace(*across, 401), np.linspace(*up, 401)), axis=-1)
    # A face at infinity is infinitely far away; contours want numbers.
    far = np.hypot(np.ptp(across), np.ptp(up))
    depth = np.minimum(np.asarray(shape.margins(grid)).min(axis=-1), far)
    if depth.min() < 0 < depth.max():
        ax.contourf(
            *np.moveaxis(grid, -1, 0), depth, levels=[-np.inf, 0], colors="none", hatches=["..."]
        ).set(edgecolor=UNSEEN, linewidth=0, zorder=0.6)
        ax.contour(*np.moveaxis(grid, -1, 0), depth, levels=[0], colors="#555555", linewidths=1.1)
    ax.set(xlim=across, ylim=up)
    ax.fill([], [], facecolor="none", edgecolor=UNSEEN, hatch="....", linewidth=0, label=label)
    ax.set(xlim=across, ylim=up)
    return ax


@in_house_style
def trace(
    loss: Any, gradient_norm: Any = None, *, ylabel: str = "loss",
    norm_label: str = "norm of the gradient", ax: Axes = NEW_AXES,
) -> Axes:  # fmt: skip
    """A fit's loss at each step (left axis) and its gradient norm (right axis, logarithmic).

    Args:
        loss: shape (n,).
        gradient_norm: shape (n,), or None.
        ylabel: label of the left axis, with its unit.
        norm_label: label of the right axis.
        ax: where to draw; new axes if None.

    Example:
        >>> ax = tg.plotting.trace([3.0, 1.0, 0.5], [2.0, 1.0, 0.1])
        >>> ax.get_xlabel()
        'step'
    """
    steps = np.arange(len(np.asarray(loss)))
    sides = [(ax, VALUE, loss, ylabel)]
    if gradient_norm is not None:
        right = gradient_axes(ax)
        right.set_yscale("log")
        sides.append((right, GRADIENT, gradient_norm, norm_label))
    for side, look, y, label in sides:
        side.plot(
            steps, np.asarray(y), color=look.color, linestyle=look.linestyle, label=label,
            marker=look.marker if len(steps) <= 60 else None, markersize=3,
        )  # fmt: skip
        side.set_ylabel(label, color=look.color)
        side.tick_params(axis="y", which="both", labelcolor=look.color)
        nan_spans(steps, y, name=label, ax=ax)
    ax.set_xlabel("step")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return ax


@in_house_style
def residuals(
    x: Any, residual: Any, *, label: str | None = None, series: int = 0, xlabel: str = "x",
    ylabel: str = "residual / standard error", bands: bool = True, ax: Axes = NEW_AXES,
) -> Axes:  # fmt: skip
    """Residuals in units of their standard errors, as stems, over bands of one and two.

    Args:
        x: abscissae, shape (n,).
        residual: (observed - expected) / standard error, shape (n,).
        label: name in the legend.
        series: which entry of `SERIES`, 0 to 6.
        xlabel: label of the x axis, with its unit.
        ylabel: label of the y axis.
        bands: whether to draw the bands, once for all series.
        ax: where to draw; new axes if None.

    Example:
        >>> ax = tg.plotting.residuals([1, 2, 3], [0.3, -1.2, 0.8])
        >>> ax.get_ylabel()
        'residual / standard error'
    """
    x, residual, look = np.asarray(x, float), np.asarray(residual, float), SERIES[series]
    ax.vlines(x, 0, residual, color=look.color, linewidth=1.0)
    ax.plot(x, residual, linestyle="none", marker=look.marker, color=look.color, label=label)
    for reach in (2, 1) if bands else ():
        ax.axhspan(-reach, reach, color="#888888", alpha=0.13, linewidth=0, zorder=0.4)
    ax.axhline(0, color="#555555", linewidth=0.7)
    highest = np.max(np.abs(residual[np.isfinite(residual)]), initial=2.5)
    ax.set(xlabel=xlabel, ylabel=ylabel, ylim=(-1.15 * highest, 1.15 * highest))
    nan_spans(x, residual, name="residual", ax=ax)
    return ax


def entries(axes: Iterable[Axes]) -> dict[str, Any]:
    """The legend entries of several axes and their right-hand twins: label -> handle, once each."""
    found: dict[str, Any] = {}
    for ax in axes:
        twins = [other for other in ax.figure.axes if other.get_label() == f"right of {id(ax)}"]
        for one in (ax, *twins):
            for handle, name in zip(*one.get_legend_handles_labels(), strict=True):
                found.setdefault(name, handle)
    return found


@in_house_style
def legend(*, columns: int = 2, below: float = 34.0, ax: Axes = NEW_AXES) -> Axes:
    """A legend below the axes, right-hand axis included, where it covers no data.

    Args:
        columns: number of columns.
        below: distance from the axes in points, room for the ticks and the label of the x axis.
        ax: the left Axes.

    Example:
        >>> ax = tg.plotting.points([0.0], [1.0], label="seen")
        >>> tg.plotting.legend(ax=ax).get_legend().get_texts()[0].get_text()
        'seen'
    """
    found = entries([ax])
    place = ax.transAxes + ScaledTranslation(0, -below / 72, ax.figure.dpi_scale_trans)
    ax.legend(
        found.values(), found.keys(), loc="upper left", bbox_to_anchor=(0, 0), ncols=columns,
        bbox_transform=place, borderaxespad=0, columnspacing=1.2,
    )  # fmt: skip
    return ax


def shared_legend(picture: Figure, *, columns: int = 4) -> Figure:
    """One legend below all panels of a figure, each entry once.

    Example:
        >>> picture, axes = tg.plotting.figure(1, 2)
        >>> for ax in axes:
        ...     ax = tg.plotting.points([0.0], [1.0], label="seen", ax=ax)
        >>> len(tg.plotting.shared_legend(picture).legends[0].get_texts())
        1
    """
    found = entries(ax for ax in picture.axes if not str(ax.get_label()).startswith("right of"))
    with matplotlib.rc_context(STYLE):
        picture.legend(
            found.values(), found.keys(), loc="outside lower center", ncols=columns,
            columnspacing=1.4,
        )  # fmt: skip
    return picture
