"""Residuals against the normal distribution: worm plots and quantile-quantile plots."""

from statistics import NormalDist
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from truncgauss.plotting.panels import band
from truncgauss.plotting.style import MANY, NEW_AXES, SERIES, in_house_style, with_given

NORMAL = NormalDist()


@in_house_style
def worm(
    residuals: Any, *, label: str | None = None, series: int = 0, bands: bool = True,
    ax: Axes = NEW_AXES, **kwargs: Any,
) -> Axes:  # fmt: skip
    """A worm plot: sorted residuals less the normal quantiles expected of them.

    A flat worm within the band is that of a standard normal sample; one that rises or falls has
    another spread, a U or an S another skewness or tail. Of several randomisations the median is
    drawn, and the range as a shade.

    Args:
        residuals: such as those of `tg.quantile_residuals`, shape (n,), or (k, n) for k
            randomisations. What is not finite is left out, and counted in the legend.
        label: name in the legend.
        series: which entry of `SERIES`, 0 to 6.
        bands: whether to draw the band that holds 95 % of all samples at each quantile.
        ax: where to draw; new axes if None.
        **kwargs: properties of the markers.

    Raises:
        ValueError: for fewer than two finite residuals, or randomisations that differ in what is
            finite.

    Example:
        >>> tg.plotting.worm(jax.random.normal(jax.random.key(0), (3, 50))).get_xlabel()
        'normal quantile'

    References:
        van Buuren and Fredriks, "Worm plot: a simple diagnostic device for modelling growth
            reference curves", Statistics in Medicine (2001).
    """
    return _quantiles(residuals, label, series, bands, True, ax, kwargs)


@in_house_style
def qq(
    residuals: Any, *, label: str | None = None, series: int = 0, bands: bool = True,
    ax: Axes = NEW_AXES, **kwargs: Any,
) -> Axes:  # fmt: skip
    """Sorted residuals over the normal quantiles expected of them; arguments as in `worm`.

    Example:
        >>> tg.plotting.qq([-1.2, 0.1, 0.4, 1.3]).get_ylabel()
        'residual'
    """
    return _quantiles(residuals, label, series, bands, False, ax, kwargs)


def _quantiles(
    residuals: Any, label: str | None, series: int, bands: bool, detrended: bool, ax: Axes,
    kwargs: dict[str, Any],
) -> Axes:  # fmt: skip
    """Sorted residuals, or what they exceed their normal quantiles by."""
    draws = np.atleast_2d(np.asarray(residuals, float))
    finite = np.isfinite(draws).all(axis=0)
    n = int(finite.sum())
    if draws.ndim != 2 or n < 2 or np.any(np.isfinite(draws) != finite):
        raise ValueError(
            "residuals must have shape (n,) or (k, n), be finite in the same places in all k "
            f"draws, and in two at least; got shape {draws.shape}, {n} of them finite."
        )
    if n < draws.shape[1]:
        label = f"{label or 'residuals'} ({draws.shape[1] - n} of {draws.shape[1]} not finite)"
    p = (np.arange(1, n + 1) - 0.5) / n
    x = np.array([NORMAL.inv_cdf(value) for value in p])
    level = 0.0 if detrended else x
    sorted_draws = np.sort(draws[:, finite], axis=1) - (x if detrended else 0.0)
    if bands:
        density = np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
        reach = 1.96 * np.sqrt(p * (1 - p) / n) / density
        band(x, level - reach, level + reach, label=f"95 % of samples of {n}", ax=ax)
        ax.plot(x, level + 0.0 * x, color="#555555", linewidth=0.7)
    look = SERIES[series]
    if len(draws) > 1:
        ax.fill_between(
            x, sorted_draws.min(axis=0), sorted_draws.max(axis=0), color=look.color, alpha=0.3,
            linewidth=0, label=f"range of {len(draws)} randomisations",
        )  # fmt: skip
    marks = {
        "linestyle": "none", "marker": look.marker, "markersize": 2.5, "color": look.color,
        "label": label, "rasterized": n > MANY,
    }  # fmt: skip
    ax.plot(x, np.median(sorted_draws, axis=0), **with_given(Line2D, marks, kwargs))
    ax.set(xlabel="normal quantile", ylabel="residual" + (" − quantile" if detrended else ""))
    return ax
