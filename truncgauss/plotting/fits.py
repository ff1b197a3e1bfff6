"""Figures of a fit: traces, profile likelihoods."""

from statistics import NormalDist
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from scipy import stats
from scipy.interpolate import PchipInterpolator

from truncgauss.plotting.panels import band, gradient_axes, nan_spans, points
from truncgauss.plotting.style import (
    GRADIENT,
    NEW_AXES,
    SERIES,
    VALUE,
    check_lengths,
    in_house_style,
    legend,
    with_settings,
)
from truncgauss.words.numbers import check_share


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
    check_lengths("trace", {"loss": loss}, {"gradient_norm": gradient_norm})
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
def profile(
    values: Any, fall: Any, *, estimate: float | None = None, stderr: float | None = None,
    level: float = 0.95, label: str = "profile", xlabel: str = "parameter", ax: Axes = NEW_AXES,
    **kwargs: Any,
) -> Axes:  # fmt: skip
    """A profile log-likelihood below its maximum, beside the parabola of the standard error.

    The level's line lies half a quantile of chi-squared with one degree below the maximum: where
    the curve crosses it is the profile interval, where the parabola does, Wald's.

    Args:
        values: of a parameter, shape (n,), increasing, as from `fit.profile_curve(name)`. Infinite
            ones, where the likelihood does not fall that far, are left out. Between two values the
            curve is smooth in the signed root of the fall.
        fall: how far the log-likelihood, over all other parameters, is below its maximum there, in
            nats, shape (n,).
        estimate: the maximum-likelihood estimate.
        stderr: its standard error; with the estimate it gives the parabola.
        level: of the interval.
        label: name in the legend.
        xlabel: label of the x axis, with its unit.
        ax: where to draw; new axes if None.
        **kwargs: properties of the curve.

    References:
        Venzon and Moolgavkar, "A method for computing profile-likelihood-based confidence
            intervals", Applied Statistics (1988). Bates and Watts, Nonlinear Regression Analysis
            and Its Applications (1988), chapter 6, for the signed root.

    Raises:
        ValueError: for values and falls of other shapes, or those of no profile.

    Example:
        >>> fit = tg.fit_observations(tg.Observations.exact([1.0, 2.0, 3.0, 4.0]))
        >>> values, fall = fit.profile_curve("loc[0]", num=5)
        >>> tg.plotting.profile(values, fall, xlabel="mean").get_xlabel()
        'mean'
    """
    check_lengths("profile", {"values": values, "fall": fall}, {})
    values, fall = np.asarray(values, float), np.asarray(fall, float)
    known = np.isfinite(values)
    values, fall = values[known], fall[known]
    # A negative or missing fall fails the comparisons too.
    lowest, rising = np.argmin(fall) if fall.size else 0, np.diff(fall)
    single = np.all(rising[:lowest] < 0) and np.all(rising[lowest:] > 0) and np.all(fall >= 0)
    if values.ndim != 1 or len(values) < 2 or not single:
        raise ValueError(
            "profile: needs two values or more, and fall, by how much the log-likelihood is below "
            "its maximum: not negative, smaller and smaller up to the maximum and larger after it, "
            f"as from fit.profile_curve(name); got {len(values)} values and fall {fall!s:.100}."
        )
    style = {"color": VALUE.color, "linestyle": "-", "marker": "o", "markersize": 3, "label": label}
    # Over the signed root of the fall, in which they are straight if that is quadratic.
    root = np.sqrt(2.0 * fall) * np.where(np.arange(len(fall)) < np.argmin(fall), -1.0, 1.0)
    every = np.union1d(np.linspace(root[0], root[-1], 201), root)
    style["markevery"] = np.searchsorted(every, root).tolist()
    curve = PchipInterpolator(root, values)(every), -0.5 * every**2
    ax.plot(*curve, **with_settings(Line2D, style, kwargs))
    if estimate is not None and stderr is not None:
        x = np.linspace(estimate - 3 * stderr, estimate + 3 * stderr, 201)
        ax.plot(
            x, -0.5 * ((x - estimate) / stderr) ** 2, color=GRADIENT.color, linewidth=1.2,
            linestyle=GRADIENT.linestyle, label="from the standard error", zorder=1.9,
        )  # fmt: skip
    check_share(level, "profile: level")
    threshold = -0.5 * NormalDist().inv_cdf(0.5 + 0.5 * level) ** 2
    ax.axhline(
        threshold,
        color="#555555",
        linewidth=0.9,
        linestyle=":",
        label=f"{100 * level:g} % interval",
    )
    ax.set(xlabel=xlabel, ylabel="log-likelihood − maximum (nats)")
    ax.set_ylim(min(1.1 * -fall.max(initial=0.0), 1.6 * threshold), 0.35)
    return ax


@in_house_style
def simultaneous(result: Any, x: Any = None, *, ax: Axes = NEW_AXES) -> Axes:
    """Simultaneous intervals by name or, over x, a band; beside those that hold one at a time.

    Args:
        result: what `tg.simultaneous` returns, two-sided.
        x: abscissae of a curve, shape (m,); None draws an interval for each contrast.
        ax: where to draw; new axes if None.

    Raises:
        TypeError: for anything else.
        ValueError: for one-sided intervals, or x of another shape.

    Example:
        >>> result = tg.simultaneous([0.3, 1.2], jnp.eye(2) / 9, names=["a", "b"])
        >>> tg.plotting.simultaneous(result).get_xlabel()
        'contrast, 95% intervals'
    """
    if not hasattr(result, "alternative"):
        raise TypeError(
            f"simultaneous: draws what tg.simultaneous returns, got {type(result).__name__}."
        )
    if result.alternative != "two-sided":
        raise ValueError("simultaneous: only two-sided intervals have two ends to be drawn.")
    value, low, high = (np.asarray(part) for part in (result.estimates, result.low, result.high))
    half = stats.t.isf(0.5 * (1.0 - result.level), result.df) * result.standard_errors
    plain, joint = SERIES[1].color, SERIES[2].color
    if x is not None:
        x = np.asarray(x, float)
        if x.shape != value.shape:
            raise ValueError(f"simultaneous: x has shape {x.shape}, the curve {value.shape}.")
        band(x, low, high, color=joint, label="everywhere", ax=ax)
        ax.plot(x, value, color=joint, label="fitted")
        ax.plot(x, value - half, color=plain, linewidth=0.9, label="at one point alone")
        ax.plot(x, value + half, color=plain, linewidth=0.9)
        return legend(ax=ax)
    rows = np.arange(len(value))[::-1].astype(float)
    alone = value - half, value + half, 0.14, plain, 1, "one alone"
    ends = alone, (low, high, -0.14, joint, 2, "all together")
    for left, right, shift, color, series, label in ends:
        ax.hlines(rows + shift, left, right, color=color, linewidth=1.8)
        points(value, rows + shift, series=series, label=label, ax=ax)
    ax.axvline(0.0, color="#555555", linewidth=0.7)
    ax.set(
        xlabel=f"contrast, {result.level:.0%} intervals", yticks=rows,
        yticklabels=list(result.names), ylim=(-0.6, len(rows) - 0.4),
    )  # fmt: skip
    return legend(ax=ax)
