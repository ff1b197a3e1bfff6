"""Gaussians, their mixtures, and regions in the plane."""

import functools
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse

from truncgauss.arrays.compiling import Compiled, closed_form
from truncgauss.arrays.coordinates import check_one_order
from truncgauss.gaussian.regions.region import Region
from truncgauss.plotting.panels import points
from truncgauss.plotting.style import (
    NEW_AXES,
    SERIES,
    UNSEEN,
    in_house_style,
    legend,
    with_settings,
)
from truncgauss.words.numbers import check_share

BEYOND = "\\" * 4  # the hatch of what is not observed: in an SVG lines take bytes, dots 200 kB


@in_house_style
def contours(
    loc: Any,
    covariance: Any,
    levels: Iterable[float] = (0.5, 0.9),
    *,
    label: str | None = None,
    series: int = 0,
    ax: Axes = NEW_AXES,
    **kwargs: Any,
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
        **kwargs: properties of the ellipses.

    Raises:
        ValueError: if loc and covariance are not those of a Gaussian in the plane, or a level is no
            probability.

    Example:
        >>> ax = tg.plotting.contours([0.0, 0.0], jnp.eye(2), levels=[0.5])
        >>> len(ax.patches)
        1
    """
    check_one_order(loc=loc, covariance=covariance)
    loc, covariance = np.asarray(loc, float), np.asarray(covariance, float)
    if loc.shape != (2,) or covariance.shape != (2, 2):
        raise ValueError(
            "contours: a Gaussian in the plane can be drawn, with loc (2,) and covariance (2, 2), "
            f"got {loc.shape} and {covariance.shape}; give two of the coordinates."
        )
    symmetric = np.allclose(covariance, covariance.T)  # which NaN is not
    variances, axes = np.linalg.eigh(covariance) if symmetric else (np.full(2, -1.0), np.eye(2))
    if variances[0] < -1e-12 * abs(variances[1]):
        raise ValueError(
            "contours: covariance must be symmetric and positive semi-definite, got "
            f"{covariance.tolist()}."
        )
    variances = np.maximum(variances, 0.0)
    angle = np.degrees(np.arctan2(axes[1, 1], axes[0, 1]))
    look = SERIES[series]
    line = {"edgecolor": look.color, "linewidth": 1.5, "linestyle": look.linestyle, "fill": False}
    line = with_settings(Ellipse, line | {"angle": angle}, kwargs)
    # A single point: it draws no line, but the legend shows its style.
    ax.plot(
        *loc, marker="+", markersize=10, markeredgewidth=2, color=line["edgecolor"], zorder=4,
        linestyle=line["linestyle"], label=label,
    )  # fmt: skip
    for level in levels if isinstance(levels, Iterable) else [levels]:
        check_share(level, "contours: levels")
        radius = np.sqrt(-2 * np.log1p(-level))
        long, short = 2 * radius * np.sqrt(variances[1]), 2 * radius * np.sqrt(variances[0])
        ax.add_patch(Ellipse(loc, long, short, **line))
        # Patches alone do not move the view: their outermost points do.
        reach = radius * np.sqrt(np.diagonal(covariance))
        ax.update_datalim([loc - reach, loc + reach])
    ax.autoscale_view()
    return ax


def refuse_no_region(what: str, shape: Any) -> None:
    """Raise TypeError for what is no region."""
    if not isinstance(shape, Region):
        raise TypeError(
            f"{what}: needs a region, such as tg.Box([0, 0], [1, 1]), got a {type(shape).__name__}."
        )


@in_house_style
def mixture(
    fit: Any, columns: tuple[Any, Any] = (0, 1), levels: Iterable[float] = (0.5, 0.9), *,
    ax: Axes = NEW_AXES,
) -> Axes:  # fmt: skip
    """The rows of a fitted mixture in two of their columns, each in the colour of its likeliest
    component, under the ellipses of the components.

    Rows that are not known exactly in both columns are not drawn, and counted in the legend. The
    region of rows of two columns is drawn if all share one.

    Args:
        fit: what `tg.fit_mixture` returns, of seven components at most.
        columns: names or numbers of the two.
        levels: probabilities inside each ellipse.
        ax: where to draw; new axes if None.

    Raises:
        TypeError: for what is no fit of a mixture.
        ValueError: for columns that are not there, or more components than can be distinguished.

    Example:
        >>> rows = jax.random.normal(jax.random.key(0), (60, 2))
        >>> fit = tg.fit_mixture(tg.Observations.exact(rows), 1)
        >>> tg.plotting.mixture(fit).get_legend_handles_labels()[1]
        ['component 0: 100 %']
    """
    if not hasattr(fit, "locs"):
        raise TypeError(f"mixture: draws a fit of tg.fit_mixture, got {type(fit).__name__}.")
    rows, d, labels = fit.observations, fit.locs.shape[1], list(fit.observations.labels)
    where = [labels.index(name) if name in labels else name for name in columns]
    if len(fit.weights) > len(SERIES) or len({*where} & {*range(d)}) != 2:
        raise ValueError(
            f"mixture: two of {d} columns, {', '.join(labels)}, can be drawn, with at most "
            f"{len(SERIES)} components; got {columns} and {len(fit.weights)}."
        )
    lower, upper = (np.asarray(ends)[:, where] for ends in (rows.lower, rows.upper))
    exact, likeliest = (lower == upper).all(axis=1), np.argmax(fit.responsibilities, axis=1)
    area = float(np.clip(2500 / exact.sum(), 2.5, 14.0)) if exact.any() else 14.0
    for k, weight in enumerate(fit.weights):
        xy = lower[exact & (likeliest == k)]
        points(*xy.T, series=k, s=area, alpha=0.45, linewidth=0, zorder=1.5, ax=ax)
        covariance, label = fit.covariances[k][np.ix_(where, where)], f"component {k}: {weight:.0%}"
        shown = {"label": label.replace("%", " %"), "series": k, "zorder": 3.5}
        contours(fit.locs[k, where], covariance, levels, ax=ax, **shown)
    if not exact.all():
        ax.plot([], [], " ", label=f"not drawn: {np.sum(~exact)} observation(s) known in part")
    ax.set(xlabel=labels[where[0]], ylabel=labels[where[1]])
    if d == 2 and where == [0, 1] and rows.region is not None and not rows.region.batch_shape:
        region(rows.region, ax=ax)
    return legend(ax=ax)


@in_house_style
def region(shape: Region, *, label: str = "not observed", ax: Axes = NEW_AXES) -> Axes:
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
        ['not observed']
    """
    refuse_no_region("region", shape)
    if shape.dimension != 2 or shape.batch_shape:
        raise ValueError(
            f"region: one region of the plane can be drawn, got dimension {shape.dimension} and "
            f"batch shape {shape.batch_shape}."
        )
    across, up = ax.get_xlim(), ax.get_ylim()
    grid = np.stack(np.meshgrid(np.linspace(*across, 401), np.linspace(*up, 401)), axis=-1)
    # A face at infinity is infinitely far away; contours want numbers.
    far = np.hypot(np.ptp(across), np.ptp(up))
    depth = np.minimum(np.asarray(margins_at(shape, grid)).min(axis=-1), far)
    if depth.min() < 0 < depth.max():
        ax.contourf(
            *np.moveaxis(grid, -1, 0), depth, levels=[-np.inf, 0], colors="none", hatches=[BEYOND]
        ).set(edgecolor=UNSEEN, linewidth=0, zorder=0.6)
        ax.contour(*np.moveaxis(grid, -1, 0), depth, levels=[0], colors="#555555", linewidths=1.1)
    ax.set(xlim=across, ylim=up)
    ax.fill([], [], facecolor="none", edgecolor=UNSEEN, hatch=BEYOND, linewidth=0, label=label)
    ax.set(xlim=across, ylim=up)
    return ax


@functools.partial(Compiled, cost=closed_form)
def margins_at(shape: Region, points: jax.Array) -> jax.Array:
    """`Region.margins` by one program, in place of one for each of its operations."""
    return shape.margins(points)
