"""Residuals against the normal distribution: worm plots and quantile-quantile plots."""

import textwrap
from statistics import NormalDist
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from scipy import stats

from truncgauss.plotting.panels import band
from truncgauss.plotting.style import MANY, NEW_AXES, SERIES, in_house_style, with_settings

NORMAL = NormalDist()
FEW = 20  # residuals, below which nothing is said of their shape
SAID = 3.0  # standard errors of a moment from which on it is said
# What a moment below and above that of a standard normal distribution looks like in a worm plot, in
# a quantile plot, and what it means of the residuals.
SHAPES = {
    "mean": (
        ("the worm lies low", "points lie below the line", "the mean is below the model's"),
        ("the worm lies high", "points lie above the line", "the mean is above the model's"),
    ),
    "spread": (
        ("the worm falls", "points rise less than the line", "spread less than the model says"),
        ("the worm rises", "points rise more than the line", "spread more than the model says"),
    ),
    "skewness": (
        ("an arch", "both ends bend down", "skewed to low values"),
        ("a U", "both ends bend up", "skewed to high values"),
    ),
    "tails": (
        ("an S from high to low", "both ends bend to the middle", "lighter tails than a Gaussian"),
        ("an S from low to high", "both ends bend away", "heavier tails than a Gaussian"),
    ),
}


@in_house_style
def worm(
    residuals: Any, *, label: str | None = None, series: int = 0, bands: bool = True,
    hint: bool = True, ax: Axes = NEW_AXES, **kwargs: Any,
) -> Axes:  # fmt: skip
    """A worm plot: sorted residuals less the normal quantiles expected of them.

    A flat worm within the band is that of a standard normal sample; one that rises or falls has
    another spread, a U or an S another skewness or tail. Of several randomisations the median is
    drawn, and the range as a shade.

    Args:
        residuals: such as those of `tg.quantile_residuals`, shape (n,), or (k, n) for k
            randomisations; of one outcome a last axis of length 1 may follow. What is not finite is
            left out, and counted in the legend.
        label: name in the legend.
        series: which entry of `SERIES`, 0 to 6.
        bands: whether to draw the band that holds 95 % of all samples at each quantile.
        hint: whether to say, above the points, what their shape means: which of mean, spread,
            skewness and tails is three standard errors from the normal distribution's. Nothing is
            said of fewer than 20 residuals.
        ax: where to draw; new axes if None.
        **kwargs: properties of the markers.

    Raises:
        ValueError: for residuals of several outcomes, fewer than two finite ones, or randomisations
            that differ in what is finite.

    Example:
        >>> tg.plotting.worm(jax.random.normal(jax.random.key(0), (3, 50))).get_xlabel()
        'normal quantile'

    References:
        van Buuren and Fredriks, "Worm plot: a simple diagnostic device for modelling growth
            reference curves", Statistics in Medicine (2001).
    """
    return _quantiles(residuals, label, series, bands, hint, ax, kwargs, detrended=True)


@in_house_style
def qq(
    residuals: Any, *, label: str | None = None, series: int = 0, bands: bool = True,
    hint: bool = True, ax: Axes = NEW_AXES, **kwargs: Any,
) -> Axes:  # fmt: skip
    """Sorted residuals over the normal quantiles expected of them; arguments as in `worm`.

    Example:
        >>> tg.plotting.qq([-1.2, 0.1, 0.4, 1.3]).get_ylabel()
        'residual'
    """
    return _quantiles(residuals, label, series, bands, hint, ax, kwargs, detrended=False)


def _quantiles(
    residuals: Any, label: str | None, series: int, bands: bool, hint: bool, ax: Axes,
    kwargs: dict[str, Any], detrended: bool,
) -> Axes:  # fmt: skip
    """Sorted residuals, or what they exceed their normal quantiles by."""
    draws, finite = _checked(residuals)
    n = int(finite.sum())
    said = f"{label}: " if label else ""
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
    ax.plot(x, np.median(sorted_draws, axis=0), **with_settings(Line2D, marks, kwargs))
    ax.set(xlabel="normal quantile", ylabel="residual" + (" − quantile" if detrended else ""))
    if hint and n >= FEW:
        say(said + shape_of(draws[:, finite], detrended), ax)
    return ax


def _checked(residuals: Any) -> tuple[np.ndarray, np.ndarray]:
    """Randomisations of residuals (k, n), and which residuals are finite (n,)."""
    draws = np.asarray(residuals, float)
    one_outcome = draws.ndim > 1 and draws.shape[-1] == 1  # (n, 1) or (k, n, 1)
    draws = np.atleast_2d(draws[..., 0] if one_outcome else draws)
    finite = np.isfinite(draws).all(axis=0)
    n = int(finite.sum())
    few = draws.shape[-1] < min(len(draws), 4) and not one_outcome  # (n, d), not (k, n)
    if draws.ndim == 3 or few:
        raise ValueError(
            f"residuals must be those of one outcome, (n,) or (k, n), got shape {draws.shape}, as "
            f"of {draws.shape[-1]} outcomes: choose one, such as residuals[..., 0]."
        )
    if draws.ndim != 2 or n < 2 or np.any(np.isfinite(draws) != finite):
        raise ValueError(
            "residuals must have shape (n,) or (k, n), be finite in the same places in all k "
            f"draws, and in two at least; got shape {draws.shape}, {n} of them finite."
        )
    return draws, finite


def shape_of(draws: np.ndarray, detrended: bool) -> str:
    """Meaning of the shape of residuals (k, n): the moments whose distance from those of a standard
    normal distribution, the median over k randomisations, is beyond three standard errors.

    References:
        D'Agostino, Belanger and D'Agostino, "A suggestion for using powerful and informative tests
            of normality", The American Statistician (1990).
    """
    n = draws.shape[1]
    distances = {
        "mean": np.mean(draws, axis=1) * np.sqrt(n),
        "spread": np.log(np.var(draws, axis=1)) * np.sqrt(n / 2),
        "skewness": stats.skewtest(draws, axis=1).statistic,
        "tails": stats.kurtosistest(draws, axis=1).statistic,
    }
    meanings = []
    for moment, values in distances.items():
        distance = np.median(values)
        if abs(distance) > SAID:
            worm, quantiles, meaning = SHAPES[moment][int(distance > 0)]
            meanings.append(f"{worm if detrended else quantiles}: {meaning}")
    return "; ".join(meanings) or "as of a Gaussian, by mean, spread, skewness and tails"


def say(text: str, ax: Axes) -> None:
    """Write a sentence above all that is drawn, where the axes become higher for it."""
    there = [other.get_text().count("\n") + 1 for other in ax.texts if other.get_gid() == "hint"]
    lines = textwrap.fill(text, 44)
    height = 0.9 * ax.get_window_extent().height * 72 / ax.figure.dpi  # once labels have room
    share = min(0.5, 10.0 * (lines.count("\n") + 1) / height)
    low, high = ax.get_ylim()
    ax.update_datalim([(0.0, low + (high - low) / (1.0 - share))], updatex=False)
    ax.autoscale_view()
    ax.annotate(
        lines, (0.02, 0.99), (0, -10 * sum(there)), xycoords="axes fraction",
        textcoords="offset points", va="top", fontsize=8, color="#444444", gid="hint",
        bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.0},
    )  # fmt: skip
