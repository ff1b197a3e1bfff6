"""A truncated Gaussian beside the whole one: densities, sets of highest density, corner plots."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from scipy import special as normal

from truncgauss.arrays.coordinates import check_one_order
from truncgauss.plotting.panels import histogram
from truncgauss.plotting.plane import contours, refuse_no_region
from truncgauss.plotting.plane import region as hatched
from truncgauss.plotting.style import (
    NEW_AXES,
    SERIES,
    STYLE,
    UNSEEN,
    entries,
    in_house_style,
    page,
    refuse_no_numbers,
    with_settings,
)
from truncgauss.special.normal import truncated_log_density, truncated_quantile
from truncgauss.tables.columns import named_columns

CELLS = 401  # of a grid, along each axis
quantile_of, log_density_of = jax.jit(truncated_quantile), jax.jit(truncated_log_density)
FAINT = 12.0  # nats below the highest density: what is fainter is not looked at


@in_house_style
def density(
    loc: float, scale: float, low: float | None = None, high: float | None = None, *,
    label: str = "truncated", series: int = 1, xlabel: str = "x", ax: Axes = NEW_AXES,
    **kwargs: Any,
) -> Axes:  # fmt: skip
    """A Gaussian's density, the mass that limits remove from it, and the density that is left.

    Args:
        loc, scale: mean and standard deviation of the Gaussian.
        low, high: limits; None stands for an infinite one.
        label: name of the truncated density in the legend.
        series: which entry of `SERIES`, 0 to 6, it is drawn as.
        xlabel: label of the x axis, with its unit.
        ax: where to draw; new axes if None.
        **kwargs: properties of the truncated density's line.

    Raises:
        ValueError: if scale is not positive, or low is not below high.

    Example:
        >>> tg.plotting.density(0.0, 1.0, low=0.0).get_legend_handles_labels()[1]
        ['Gaussian', 'removed: 50 % of it', 'truncated']
    """
    low, high = -np.inf if low is None else float(low), np.inf if high is None else float(high)
    if not (scale > 0 and low < high):
        raise ValueError(
            f"density: scale must be positive and low below high, got {scale}, {low} and {high}."
        )
    ends = np.asarray(quantile_of(np.array([1e-3, 0.999]), loc, scale, low, high))
    left, right = min(loc - 3.5 * scale, ends[0]), max(loc + 3.5 * scale, ends[1])
    x = np.sort(np.append(np.linspace(left, right, 801), np.clip([low, high], left, right)))
    whole = np.exp(-0.5 * ((x - loc) / scale) ** 2) / (scale * np.sqrt(2 * np.pi))
    ax.plot(x, whole, color=SERIES[0].color, linewidth=0.9, label="Gaussian")
    removed = normal.ndtr((low - loc) / scale) + normal.ndtr((loc - high) / scale)
    share = f"{100 * removed:.3g} % of it" if removed < 0.999995 else "nearly all"
    text: str | None = f"removed: {share}"  # once in the legend
    for outside in (x <= low, x >= high):
        if outside.any():
            ax.fill_between(
                x[outside], whole[outside], facecolor="none", edgecolor=UNSEEN, hatch="////",
                linewidth=0, label=text,
            )  # fmt: skip
            text = None
    inside = (x >= low) & (x <= high)
    left_over = np.exp(np.asarray(log_density_of(x, loc, scale, low, high), float))
    # It falls to zero at the limits.
    inside, left_over = np.pad(x[inside], 1, mode="edge"), np.pad(left_over[inside], 1)
    line = {"color": SERIES[series].color, "label": label, "linestyle": SERIES[series].linestyle}
    ax.plot(inside, left_over, **with_settings(Line2D, line, kwargs))
    ax.set(xlabel=xlabel, ylabel="density", ylim=(0, None))
    return ax


@in_house_style
def truncated_contours(
    loc: Any, covariance: Any, region: Any, levels: Iterable[float] = (0.5, 0.9), *,
    label: str = "truncated", series: int = 1, ax: Axes = NEW_AXES, **kwargs: Any,
) -> Axes:  # fmt: skip
    """The smallest sets that hold given probabilities of a truncated Gaussian in the plane.

    Each is the part of an ellipse inside the region, so large that it holds a share p of what the
    region keeps. The masses are sums over a grid, accurate to about 1 %. Call it last: like
    `region`, which draws the boundary, it keeps the view of what was drawn before.

    Args:
        loc: mean of the whole Gaussian, shape (2,).
        covariance: its covariance matrix, shape (2, 2).
        region: `Box`, `Ball`, `Ellipsoid` or `Polyhedron` of dimension 2.
        levels: shares of the truncated distribution.
        label: name in the legend.
        series: which entry of `SERIES`, 0 to 6.
        ax: where to draw; new axes if None.
        **kwargs: properties of the lines.

    Raises:
        ValueError: if loc, covariance and region are not those of one problem in the plane, or no
            part of the region is near the Gaussian.

    Example:
        >>> box = tg.Box([0.0, -1.0], [jnp.inf, 1.0])
        >>> ax = tg.plotting.truncated_contours([0.0, 0.0], jnp.eye(2), box)
        >>> ax.get_legend_handles_labels()[1]
        ['truncated', 'outside the region']

    References:
        Hyndman, "Computing and graphing highest density regions", The American Statistician (1996).
    """
    refuse_no_region("truncated_contours", region)
    check_one_order(loc=loc, covariance=covariance, region=region)
    loc, covariance = np.asarray(loc, float), np.asarray(covariance, float)
    if loc.shape != (2,) or covariance.shape != (2, 2) or region.dimension != 2:
        raise ValueError(
            "truncated_contours: a problem in the plane can be drawn, with loc (2,), covariance "
            f"(2, 2) and a region of dimension 2, got {loc.shape}, {covariance.shape} and "
            f"{region.dimension}; give two of the coordinates."
        )
    grid, log_density, depth = window(loc, covariance, region)
    heights = highest(np.where(depth >= 0, log_density, -np.inf), levels)
    seen = (depth >= 0) & (log_density > min(heights) - 1.0)  # no more, for the view's sake
    part = tuple(slice(max(k.min() - 5, 0), k.max() + 6) for k in np.nonzero(seen))
    (across, up), log_density, depth = (x[part] for x in grid), log_density[part], depth[part]
    # One function, positive inside: the nearer of the two boundaries decides.
    line = with_settings(
        Line2D,
        {"color": SERIES[series].color, "linestyle": SERIES[series].linestyle, "linewidth": 1.5},
        kwargs,
    )
    for height in heights:
        inside = np.minimum(log_density - height, depth)
        area: Any = {"colors": [line["color"]], "alpha": 0.16, "zorder": 0.8}
        ax.contourf(across, up, inside, levels=[0, np.inf], **area)
        ax.contour(
            across, up, inside, levels=[0], colors=[line["color"]], linewidths=line["linewidth"],
            linestyles=[line["linestyle"]],
        )  # fmt: skip
    ax.plot([], [], label=label, **line)
    return hatched(region, label="outside the region", ax=ax)


def window(loc: np.ndarray, covariance: np.ndarray, region: Any) -> tuple[Any, Any, Any]:
    """A grid over the part of a region where a Gaussian's density is not faint: the abscissae and
    ordinates, the log density less its maximum, and the distance inside the region."""
    spread = 7.0 * np.sqrt(np.diagonal(covariance))
    ends = np.stack([loc - spread, loc + spread])
    for limit in (region.low, region.high) if region.is_box else ():
        near = np.where(np.isfinite(limit), limit, loc)  # what a box keeps may be far away
        ends = np.stack([np.minimum(ends[0], near - spread), np.maximum(ends[1], near + spread)])
    precision = np.linalg.inv(covariance)
    for _ in range(4):
        grid = np.meshgrid(*np.linspace(ends[0], ends[1], CELLS, axis=1))
        x = np.stack(grid, axis=-1)
        depth = np.asarray(region.margins(x)).min(axis=-1)
        depth = np.minimum(depth, np.hypot(*(ends[1] - ends[0])))  # a face may be infinitely far
        away = x - loc
        log_density = -0.5 * np.einsum("...i,ij,...j->...", away, precision, away)
        if not (depth >= 0).any():
            raise ValueError(
                "truncated_contours: no part of the region is within seven standard deviations of "
                "the mean, or it is too small to be visible there."
            )
        log_density -= log_density[depth >= 0].max()
        bright = x[(depth >= 0) & (log_density > -FAINT)]
        cell = (ends[1] - ends[0]) / (CELLS - 1)
        ends = np.stack([bright.min(axis=0) - 3 * cell, bright.max(axis=0) + 3 * cell])
    return grid, log_density, depth


def highest(log_density: np.ndarray, levels: Iterable[float]) -> list[float]:
    """The log densities above which a distribution on a grid has given shares of its mass."""
    ordered = np.sort(log_density[np.isfinite(log_density)], axis=None)[::-1]
    shares = np.cumsum(np.exp(ordered))
    shares /= shares[-1]
    return [float(ordered[np.searchsorted(shares, level)]) for level in levels]


def corner(
    draws: Any, names: Sequence[str] | None = None, *, loc: Any = None, covariance: Any = None,
    low: Any = None, high: Any = None, bins: int = 40, inverted: Sequence[int] = (),
    label: str = "truncated draws", picture: Any = None,
) -> Figure:  # fmt: skip
    """A corner plot: histograms of every coordinate, and of every pair, of a truncated sample.

    The whole Gaussian, if given, is drawn over them: its densities on the diagonal, the ellipses
    that hold 50 and 90 % of it elsewhere. Histograms are not smoothed, so that limits stay sharp.

    Args:
        draws: such as those of `tg.truncated_samples`, or of a posterior, shape (n, d), d at
            least 2.
        names: of the coordinates, with their units; if None those of the columns of a table, or x0,
            x1, ....
        loc, covariance: mean (d,) and covariance matrix (d, d) of the Gaussian before truncation.
        low, high: limits, shape (d,), drawn as dotted lines; infinite ones are not.
        bins: of the histograms, along each axis.
        inverted: the coordinates whose axes run backwards, as magnitudes do.
        label: name of the draws in the legend, such as "observed".
        picture: an empty Figure or SubFigure to draw in; a new one if None.

    Returns:
        The figure; the panel of row i and column j <= i is its axes number i (i + 1) / 2 + j.

    Raises:
        ValueError: if shapes disagree.

    References:
        Foreman-Mackey, "corner.py: scatterplot matrices in Python", Journal of Open Source Software
            (2016).

    Example:
        >>> box = tg.Box([0.0, -jnp.inf], [jnp.inf, 1.0])
        >>> x = tg.truncated_samples(jax.random.key(0), jnp.zeros(2), jnp.eye(2), box, 500)
        >>> picture = tg.plotting.corner(x, loc=jnp.zeros(2), covariance=jnp.eye(2))
        >>> len(picture.axes)
        3
    """
    refuse_no_numbers("corner", "draws", draws)
    columns = [name for name in named_columns(draws) or () if isinstance(name, str)]
    check_one_order(draws=draws, loc=loc, covariance=covariance, low=low, high=high)
    draws = np.asarray(draws, float)
    d = draws.shape[-1] if draws.ndim == 2 else 0
    whole = None if loc is None or covariance is None else (np.asarray(loc), np.asarray(covariance))
    given = columns if len(columns) == d else [f"x{j}" for j in range(d)]
    names = given if names is None else list(names)
    limits = [np.full(d, np.nan) if end is None else np.asarray(end, float) for end in (low, high)]
    shapes = [x.shape for x in (*(whole or ()), *limits)]
    expected = [(d,), (d, d), (d,), (d,)][-len(shapes) :]
    if d < 2 or len(names) != d or shapes != expected:
        raise ValueError(
            "corner: expected draws (n, d) with d at least 2, d names, loc (d,), covariance "
            f"(d, d), low and high (d,); got draws {draws.shape}, {len(names)} names and {shapes}."
        )
    if not draws.size or not np.isfinite(draws).all():
        raise ValueError(
            "corner: draws must be finite numbers, one row or more, got shape "
            f"{draws.shape}, {np.count_nonzero(~np.isfinite(draws))} of them not finite. Leave "
            "such rows out, draws[np.isfinite(draws).all(axis=1)]."
        )
    if picture is None:
        picture = page(1.3 + 1.7 * d, 1.1 + 1.7 * d)
    with matplotlib.rc_context(STYLE):
        axes = {(i, j): picture.add_subplot(d, d, i * d + j + 1) for i in range(d)
                for j in range(i + 1)}  # fmt: skip
        views = [view(draws[:, j], whole, j) for j in range(d)]
        for (i, j), ax in axes.items():
            if i == j:
                diagonal(draws[:, j], whole, j, bins, label, ax)
            else:
                pair(draws[:, [j, i]], whole, [j, i], (views[j], views[i]), bins, ax)
            look: Any = {"color": "#555555", "linewidth": 0.9, "linestyle": ":", "label": "limit"}
            for ends in limits:
                if np.isfinite(ends[j]):
                    ax.axvline(ends[j], **look)
                if i != j and np.isfinite(ends[i]):
                    ax.axhline(ends[i], **look)
            ax.set_xlim(views[j])
            labelled((i, j), d, names, ax)
            ax.xaxis.set_inverted(j in inverted)
            ax.yaxis.set_inverted(i in inverted and i != j)
        handles = entries([axes[1, 0], axes[0, 0]])
        axes[0, 0].legend(
            handles.values(), handles.keys(), loc="upper left", bbox_to_anchor=(1.15, 1.0),
            borderaxespad=0,
        ).set_in_layout(False)  # fmt: skip
        picture.align_labels()
    return picture


def view(x: np.ndarray, whole: Any, j: int) -> tuple[float, float]:
    """The range of a coordinate: that of the draws, and three standard deviations of the whole."""
    ends = [x.min(), x.max()]
    if whole is not None:
        loc, reach = whole[0][j], 3.0 * np.sqrt(whole[1][j, j])
        ends = [min(ends[0], loc - reach), max(ends[1], loc + reach)]
    margin = 0.04 * (ends[1] - ends[0])
    return ends[0] - margin, ends[1] + margin


def diagonal(x: np.ndarray, whole: Any, j: int, bins: int, label: str, ax: Axes) -> None:
    """The histogram of one coordinate under the density of the whole Gaussian."""
    histogram(x, bins=bins, series=5, label=label, ax=ax)
    if whole is not None:
        loc, scale = whole[0][j], np.sqrt(whole[1][j, j])
        grid = np.linspace(loc - 4 * scale, loc + 4 * scale, 301)
        y = np.exp(-0.5 * ((grid - loc) / scale) ** 2) / (scale * np.sqrt(2 * np.pi))
        ax.plot(grid, y, color=SERIES[1].color, linestyle=SERIES[1].linestyle, linewidth=1.3)


def pair(xy: np.ndarray, whole: Any, columns: list[int], views: Any, bins: int, ax: Axes) -> None:
    """The histogram of two coordinates under the ellipses of the whole Gaussian."""
    counts, across, up = np.histogram2d(xy[:, 0], xy[:, 1], bins=bins)
    shade = np.where(counts > 0, counts, np.nan).T
    ax.pcolormesh(across, up, shade, cmap="Blues", vmin=-0.15 * counts.max(), rasterized=True)
    if whole is not None:
        loc, covariance = whole[0][columns], whole[1][np.ix_(columns, columns)]
        label = "whole Gaussian: density,\n50 and 90 % ellipses"
        contours(loc, covariance, series=1, linewidth=1.2, label=label, ax=ax)
    ax.set_ylim(views[1])


def labelled(panel: tuple[int, int], d: int, names: Sequence[str], ax: Axes) -> None:
    """Tick labels and names on the outer panels only."""
    (i, j), few = panel, MaxNLocator(4, prune="both")
    ax.xaxis.set_major_locator(few)
    ax.yaxis.set_major_locator(MaxNLocator(4, prune="both"))
    ax.grid(False)
    ax.tick_params(axis="x", labelbottom=i == d - 1)
    if i == d - 1:
        ax.set_xlabel(names[j])
    if i == j:
        ax.set_yticks([])
        ax.set_ylabel("density" if i == 0 else "")
    else:
        ax.tick_params(axis="y", labelleft=j == 0)
        ax.set_ylabel(names[i] if j == 0 else "")
