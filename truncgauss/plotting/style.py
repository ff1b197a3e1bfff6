"""The style of all figures: series, new figures, files, titles and legends."""

import functools
import inspect
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cbook import normalize_kwargs
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.transforms import ScaledTranslation

from truncgauss.arrays.pytrees import no_numbers
from truncgauss.execution import writing
from truncgauss.words.misfits import ARRAYS, NUMBERS, explain, misfit
from truncgauss.words.names import closest

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
MANY = 300  # points: beyond, an SVG holds them as one picture


SUCH_AS = {
    "residuals": ", such as those of tg.quantile_residuals(fit)",
    "draws": ", (n, d), such as those of tg.truncated_samples",
    "loss": ", numbers, one at each step",
    "shape": ", a tg.Box or another region",
}
# The settings that are asked for most, of lines, markers and areas.
PROPERTIES = "color", "linewidth", "linestyle", "marker", "markersize", "alpha", "label", "zorder"
NEW_AXES: Any = None  # no Axes given: `in_house_style` makes some


def in_house_style(draw: Callable[..., Any]) -> Callable[..., Any]:
    """A function that draws in the style of this package, on new Axes if the caller gives none.

    It takes one more argument, `inverted`: "x", "y" or "xy", the axes on which values decrease to
    the right or upwards, as magnitudes do.
    """

    @functools.wraps(draw)
    def styled(*args: Any, ax: Axes | None = None, inverted: str = "", **settings: Any) -> Any:
        if not set(inverted) <= set("xy"):
            raise ValueError(f'inverted must be "x", "y" or "xy", got {inverted!r}.')
        if args and first.name not in ("fit", "result", "text"):
            refuse_no_numbers(draw.__name__, first.name, args[0])
        for number in np.ravel(settings.get("series", 0)):
            if number not in range(len(SERIES)):
                raise ValueError(
                    f"{draw.__name__}: series must be from 0 to {len(SERIES) - 1}, got {number!r}. "
                    "For another colour give color=."
                )
        if not isinstance(ax, Axes | None):
            cure = "tg.plotting.figure() returns its figure and its Axes."
            raise TypeError(f"{draw.__name__}: ax must be Axes or None, got {ax!r:.60}. {cure}")
        for name, value in (dict(zip(signature.parameters, args)) | settings).items():
            got = misfit(signature.parameters[name], value) if name in numbered else ""
            if got and (got != "masked numbers" or name in ("loc", "covariance")):
                raise TypeError(f"{draw.__name__}: {name} must be {ARRAYS}, got {got}.")
        with matplotlib.rc_context(STYLE):
            try:
                drawn = draw(*args, ax=figure()[1] if ax is None else ax, **settings)
            except Exception as error:
                refuse_settings(draw.__name__, error, settings)
                explain(draw.__name__, error, signature, args, settings)
                raise
        for name in inverted:
            getattr(drawn, f"{name}axis").set_inverted(True)
        return drawn

    signature = inspect.signature(draw)
    numbered = NUMBERS - {"x", "y"}  # of which matplotlib draws dates and texts too
    first = next(iter(signature.parameters.values()))
    more = inspect.Parameter("inverted", inspect.Parameter.KEYWORD_ONLY, default="", annotation=str)
    parameters = list(signature.parameters.values())
    position = len(parameters) - (parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
    parameters.insert(position, more)
    vars(styled)["__signature__"] = signature.replace(parameters=parameters)
    return styled


def refuse_no_numbers(what: str, name: str, values: Any) -> None:
    """Raise TypeError for a text, a whole fit or draws by name where numbers are to be drawn."""
    if name == "draws" and isinstance(values, Mapping):  # such as of a posterior
        raise TypeError(
            f"{what}: needs {name} as an array, got a mapping of {', '.join(map(str, values))}. "
            "Stack those wanted: np.column_stack([values[name] for name in names])."
        )
    if values is None or isinstance(values, str) or hasattr(values, "log_likelihood"):
        raise no_numbers(f"{what}: needs {name}{SUCH_AS.get(name, ', numbers')}", values)


def refuse_settings(what: str, error: Exception, settings: Mapping[str, Any]) -> None:
    """Raise TypeError for a setting that matplotlib does not have, from its error that says so."""
    if unknown := re.search(
        r"(\w+)\.set\(\) got an unexpected keyword argument '(\w+)'", str(error)
    ):
        artist, word = unknown.groups()
        close = closest(word, PROPERTIES)
        cure = (
            f"Did you mean {close}?" if close else f"Settings are those of matplotlib's {artist}."
        )
        value = f", got {settings[word]!r:.60}" if word in settings else ""
        raise TypeError(f"{what}: there is no setting {word}{value}. {cure}") from None


def check_lengths(what: str, needed: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Raise ValueError unless arrays that are needed have one shape, and others the same, or are
    single numbers or None."""
    shapes = {name: np.shape(values) for name, values in needed.items()}
    first, *_ = shapes.values()
    more = {name: np.shape(values) for name, values in others.items() if values is not None}
    if first == () or {*shapes.values()} != {first} or not {*more.values()} <= {(), first}:
        every = shapes | more
        *names, last = every
        longer = [f" Write {name}[..., 0]." for name in every if every[name] == (*first, 1)]
        raise ValueError(
            f"{what}: {', '.join(names)} and {last} must have one length, got shapes "
            f"{', '.join(map(str, every.values()))}.{''.join(longer)}"
        )


def check_size(what: str, size: Any) -> None:
    """Raise ValueError for what is no width and height."""
    if np.shape(size) != (2,):
        raise ValueError(f"{what}: size must be a pair, (width, height) in inches, got {size!r}.")


def with_settings(artist: type, defaults: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    """Keyword arguments of an artist: the caller's settings, and defaults for the others.

    A `color` replaces those of faces and edges too, except where these are blank.
    """
    settings, merged = normalize_kwargs(dict(settings), artist), dict(defaults)
    if "color" in settings:
        for key in {"facecolor", "edgecolor"} & set(merged):
            if merged[key] not in ("none", "white"):
                merged[key] = settings["color"]
        if "color" not in merged:
            del settings["color"]
    return merged | settings


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
    if any(not hasattr(count, "__index__") or count < 1 for count in (rows, columns)):
        raise ValueError(
            f"figure: rows and columns must be positive ints, got {rows!r}, {columns!r}."
        )
    check_size("figure", size)
    picture = page(columns * size[0], rows * size[1])
    with matplotlib.rc_context(STYLE):
        return picture, picture.subplots(rows, columns, **settings)


def mosaic(
    layout: Sequence[Sequence[str]], size: tuple[float, float] = (4.6, 3.3), picture: Any = None,
    **settings: Any,
) -> tuple[Any, dict[str, Axes]]:  # fmt: skip
    """A figure in the style of this module whose panels may span rows and columns.

    Args:
        layout: rows of names; a name that is repeated spans these cells.
        size: width and height of one cell in inches.
        picture: an empty Figure or SubFigure to draw in; a new one of that size if None.
        **settings: further arguments of `matplotlib.figure.Figure.subplot_mosaic`.

    Returns:
        The figure, and its Axes by name.

    Example:
        >>> picture, axes = tg.plotting.mosaic([["tall", "top"], ["tall", "bottom"]])
        >>> sorted(axes)
        ['bottom', 'tall', 'top']
    """
    if picture is None:
        check_size("mosaic", size)
        picture = page(len(layout[0]) * size[0], len(layout) * size[1])
    with matplotlib.rc_context(STYLE):
        return picture, picture.subplot_mosaic([list(row) for row in layout], **settings)


def page(width: float, height: float) -> Figure:
    """A figure without axes, its size in inches, to be divided by `subfigures`.

    Example:
        >>> left, right = tg.plotting.page(8.0, 3.0).subfigures(1, 2)
        >>> sorted(tg.plotting.mosaic([["a", "b"]], picture=left)[1])
        ['a', 'b']
    """
    return Figure(figsize=(width, height), layout=layout_engine(), dpi=STYLE["savefig.dpi"])


def layout_engine() -> ConstrainedLayoutEngine:
    return ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.04, hspace=0.04)


def save(picture: Figure | Axes, stem: Any) -> list[str]:
    """Write stem.png and stem.svg, the same bytes for the same figure, and return their paths.

    Args:
        picture: the figure, or Axes of it.
        stem: path without suffix; .png and .svg are left out.

    Raises:
        ValueError: for the suffix of another format.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [p[-4:] for p in tg.plotting.save(tg.plotting.figure()[0], f"{folder}/x")]
        ['.png', '.svg']
    """
    figure: Any = picture if hasattr(picture, "savefig") else getattr(picture, "figure", None)
    if figure is None:
        raise TypeError(f"save: needs a Figure or Axes and the path to write, got {picture!r}.")
    if other := re.search(r"\.(pdf|eps|ps|jpe?g|tiff?|webp)$", str(stem), re.IGNORECASE):
        raise ValueError(f"save: writes .png and .svg; for {other[0]} figure.savefig({stem!r}).")
    stem = re.sub(r"\.(png|svg)$", "", str(stem))
    paths = [f"{stem}.png", f"{stem}.svg"]
    with matplotlib.rc_context(STYLE):
        for path, metadata in zip(paths, ({"Software": None}, {"Date": None, "Creator": None})):
            with writing.replacing(path) as written:
                figure.savefig(written, format=path[-3:], metadata=metadata)
                if path.endswith("svg"):
                    # Hundredths of a point and no indentation: two thirds as long.
                    round_path = lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0])
                    shorter = re.sub(r' d="[^"]*"', round_path, written.read_text("utf-8"))
                    written.write_text(re.sub(r"\n\s+", "\n", shorter), "utf-8")
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


def lettered(picture: Figure) -> Figure:
    """The figure with the letters a, b, c, ... before the titles of its panels, as a caption names
    them: of those with a title, or of all if none has one; one panel alone has no letter.

    Example:
        >>> picture = tg.plotting.lettered(tg.plotting.figure(1, 2)[0])
        >>> [ax.get_title(loc="left") for ax in picture.axes]
        ['a', 'b']
    """
    panels = [ax for ax in picture.axes if not str(ax.get_label()).startswith("right of")]
    titled = [ax for ax in panels if ax.get_title(loc="left")] or panels
    for letter, ax in zip(string.ascii_lowercase, titled if len(titled) > 1 else []):
        text = f"{letter}   {ax.get_title(loc='left')}".rstrip()
        with matplotlib.rc_context(STYLE):
            ax.set_title(text)
    return picture


def twins(ax: Axes) -> list[Axes]:
    """The right-hand Axes that `gradient_axes` has made for these."""
    return [other for other in ax.figure.axes if other.get_label() == f"right of {id(ax)}"]


def entries(axes: Iterable[Axes]) -> dict[str, Any]:
    """The legend entries of several axes and their right-hand twins: label -> handle, once each."""
    handles: dict[str, Any] = {}
    for ax in axes:
        for one in (ax, *twins(ax)):
            for handle, name in zip(*one.get_legend_handles_labels(), strict=True):
                handles.setdefault(name, handle)
    return handles


@in_house_style
def legend(*, columns: int = 2, below: float = 34.0, ax: Axes = NEW_AXES) -> Axes:
    """A legend below the axes, right-hand axis included, where it covers no data.

    It stays on the page: a figure without a layout engine is given one, or fewer columns, and axes
    that were placed by hand become lower by what the legend needs.

    Args:
        columns: number of columns.
        below: distance from the axes in points, room for the ticks and the label of the x axis.
        ax: the left Axes.

    Example:
        >>> ax = tg.plotting.points([0.0], [1.0], label="observed")
        >>> tg.plotting.legend(ax=ax).get_legend().get_texts()[0].get_text()
        'observed'
    """
    handles = entries([ax])

    def placed(columns: int) -> Legend:
        offset = ScaledTranslation(0, -below / 72, ax.figure.dpi_scale_trans)
        return ax.legend(
            handles.values(), handles.keys(), loc="upper left", bbox_to_anchor=(0, 0),
            ncols=columns, bbox_transform=ax.transAxes + offset, borderaxespad=0, columnspacing=1.2,
        )  # fmt: skip

    drawn, page = placed(columns), ax.figure.figure
    if page.get_layout_engine() is None:
        cell = ax.get_subplotspec()
        parts = 1 if cell is None else cell.get_gridspec().ncols // len(cell.colspan)
        while columns > 1 and drawn.get_window_extent().width > 0.85 * page.bbox.width / parts:
            columns -= 1
            drawn = placed(columns)
        if cell is not None:
            page.set_layout_engine(layout_engine())
        else:
            _raised(ax, drawn.get_window_extent().y0 / page.bbox.height)
    return ax


def _raised(ax: Axes, lowest: float) -> None:
    """Move the lower end of axes up by what a legend reaches below the page, in its heights."""
    box = ax.get_position()
    more = min(0.02 - lowest, 0.9 * box.height)
    for one in (ax, *twins(ax)) if more > 0 else ():
        one.set_position((box.x0, box.y0 + more, box.width, box.height - more))


def shared_legend(picture: Figure, *, columns: int = 4) -> Figure:
    """One legend below all panels of a figure, each entry once.

    Example:
        >>> picture, axes = tg.plotting.figure(1, 2)
        >>> for ax in axes:
        ...     ax = tg.plotting.points([0.0], [1.0], label="observed", ax=ax)
        >>> len(tg.plotting.shared_legend(picture).legends[0].get_texts())
        1
    """
    handles = entries(ax for ax in picture.axes if not str(ax.get_label()).startswith("right of"))
    if picture.get_layout_engine() is None:  # else the legend would lie on the panels
        picture.figure.set_layout_engine(layout_engine())
    with matplotlib.rc_context(STYLE):
        picture.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=columns,
            columnspacing=1.4,
        )  # fmt: skip
    return picture
