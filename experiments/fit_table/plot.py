"""The rows with the fit and its limits, the estimates with their intervals, and the residuals."""

import numpy as np

from truncgauss import plotting

MOST, LEAST = 10, 4  # estimates that are drawn, and for which there is room
FEW = 2  # outcomes that have panels of their own
# Entries that are known to a limit alone: the side it is on, its colour, and its markers along x
# and y, which show where the value is.
LIMITED = (
    ("at most", "upper", plotting.SERIES[2].color, "<v"),
    ("at least", "lower", plotting.SERIES[6].color, ">^"),
)
INTERVAL, FIT = plotting.SERIES[4].color, plotting.GRADIENT.color
APART = 0.6180339887  # multiples of it, less their whole parts, lie apart


def plot(results):
    """Data above residuals, and estimates in their units beside them."""
    results = results | {"data": {key: np.asarray(x) for key, x in results["data"].items()}}
    data, curves = results["data"], results.get("profile_curves", {})
    number = min(len(data["labels"]), FEW)
    # Rows that differ in their means are drawn over these.
    means = "abscissa" in data or (len(data["weights"]) == 1 and len(data["loc"]) > 1)
    above = [f"data {j}" for j in range(number if means else 1)]
    below = [f"residuals {j}" for j in range(number)] + ["profile"] * bool(curves)
    width = (4.6, 7.2, 8.6)[max(len(above), len(below)) - 1]
    height = max(6.6, 1.2 + 0.9 * min(len(results["names"]), MOST))
    page = plotting.page(width + 4.2, height)
    left, right = page.subfigures(1, 2, width_ratios=(width, 4.2))
    panels = {}
    for part, row in zip(left.subfigures(2, 1), (above, below)):
        panels |= plotting.mosaic([row], picture=part)[1]
    for j, name in enumerate(above):
        draw = over_covariates if means else density if number == 1 else plane
        draw(results, j, panels[name])
    for j in range(number):
        ax, draws = panels[f"residuals {j}"], np.atleast_2d(results["residuals"][..., j])
        finite = draws[:, np.isfinite(draws).all(axis=0)]
        plotting.worm(finite[..., None], label="residuals", series=2, ax=ax)
        plotting.title(f"Residuals of {data['labels'][j]}", ax=ax)
    if curves:
        profiles(results, panels["profile"])
    for row in (above, below):
        wide = len(row) == 1 and len(below) > 1
        columns = 4 if wide else 2 if row is above or len(row) == 1 else 1
        for name in row:
            plotting.legend(columns=columns, ax=panels[name])
    plotting.lettered(page)
    estimates(results, right, "abcdefg"[len(panels)])
    return page


# ---------------------------------------------------------------- the rows


def kinds(lower, upper):
    """Which entries (n,) are exact, between two limits, at most and at least one, by name."""
    below, above, exact = np.isfinite(upper), np.isfinite(lower), lower == upper
    return {
        "exact": exact,
        "between": below & above & ~exact,
        "at most": below & ~above,
        "at least": above & ~below,
    }


def limited(x, y, color, marker, words, count, ax, **look):
    """Entries that are known to a limit alone."""
    label = f"{words} ({count})"
    plotting.points(x, y, color=color, marker=marker, filled=False, label=label, ax=ax, **look)


def unseen(data, j, ax, across=False, x=None):
    """What lies beyond limits of truncation: hatched if these are one for all rows."""
    ends = ax.get_xlim() if across else ax.get_ylim()
    span = ax.axvspan if across else ax.axhspan
    for limits, outer in zip((data["low"][:, j], data["high"][:, j]), ends):
        if len(limits) == 1 and np.isfinite(limits[0]):
            span(
                outer, limits[0], facecolor="none", edgecolor=plotting.UNSEEN, hatch="\\\\\\\\",
                linewidth=0, label="truncated", zorder=0.5,
            )  # fmt: skip
        elif len(limits) > 1 and np.isfinite(limits).any():
            at = np.zeros(len(limits)) if x is None else x
            ax.plot(
                *((limits, at) if across else (at, limits)), "|" if across else "_",
                color=plotting.UNSEEN, markersize=5, label="bound of the observation", zorder=1,
            )  # fmt: skip
    (ax.set_xlim if across else ax.set_ylim)(ends)


def over_covariates(results, j, ax):
    """An outcome over its only covariate or, of several, over its fitted mean."""
    data = results["data"]
    lower, upper, loc = (data[key][:, j] for key in ("lower", "upper", "loc"))
    levels = list(map(str, np.atleast_1d(data["levels"])))
    x = data.get("abscissa", loc)
    scale = np.broadcast_to(data["scale"], data["lower"].shape)[:, j]
    if levels:
        numbers = [np.flatnonzero(x == k)[0] for k in range(len(levels))]
        ax.errorbar(
            np.arange(len(levels)), loc[numbers], scale[numbers], color=FIT, marker="_",
            markersize=22, linestyle="none", capsize=5, label="fitted mean ± sigma", zorder=3,
        )  # fmt: skip
        ax.set_xticks(range(len(levels)), levels)
        x = x + 0.5 * ((np.arange(len(x)) * APART) % 1.0 - 0.5)
    else:
        order = np.argsort(x)
        ax.plot(x[order], loc[order], color=FIT, label="fitted mean", zorder=3)
        steps = np.diff(scale[order])
        if np.all(steps >= 0) or np.all(steps <= 0):
            ends = (loc - scale)[order], (loc + scale)[order]
            plotting.band(x[order], *ends, color=FIT, label="± sigma", ax=ax)
    found = kinds(lower, upper)
    exact, between = found["exact"], found["between"]
    small = {"s": 9 if len(x) > 300 else 16, "alpha": 0.6 if len(x) > 100 else 0.9}
    if exact.any():
        plotting.points(x[exact], lower[exact], label=f"measured ({exact.sum()})", ax=ax, **small)
    for words, side, color, markers in LIMITED:
        if (kind := found[words]).any():
            ends = data[side][kind, j]
            limited(x[kind], ends, color, markers[1], words, kind.sum(), ax, **small)
    if between.any():
        ax.vlines(
            x[between], lower[between], upper[between], color=INTERVAL, linewidth=0.9,
            label=f"between ({between.sum()})",
        )  # fmt: skip
    unseen(data, j, ax, x=x)
    label = data["labels"][j]
    name = str(data["abscissa_name"]) if "abscissa" in data else "fitted mean"
    ax.set(xlabel=name, ylabel=str(label))
    plotting.title(f"{label} and the fit", ax=ax)


def density(results, j, ax):
    """The values of one outcome as a histogram, and the fitted density before truncation."""
    data = results["data"]
    lower, upper = data["lower"][:, j], data["upper"][:, j]
    found = kinds(lower, upper)
    whole = found["exact"] | found["between"]
    values = (lower[whole] + upper[whole]) / 2
    loc, scale, weights = data["loc"][:, j], data["scale"][:, j], data["weights"]
    fraction = float(np.sum(weights * results["fraction_not_truncated"]))
    heights = [0.0]
    if len(values):
        bars, edges = np.histogram(values, bins="auto")
        heights = bars / (np.any(list(found.values()), axis=0).sum() * np.diff(edges))
        ax.bar(
            edges[:-1], heights, np.diff(edges), align="edge", color=plotting.SERIES[0].color,
            alpha=0.25, label=f"measured ({len(values)})",
        )  # fmt: skip
    finite = np.concatenate([lower[np.isfinite(lower)], upper[np.isfinite(upper)]])
    ends = [*(loc - 3.5 * scale), *(loc + 3.5 * scale), finite.min(), finite.max()]
    x = np.linspace(min(ends), max(ends), 401)
    z = (x - loc[:, None]) / scale[:, None]
    curve = weights @ (np.exp(-0.5 * z**2) / (np.sqrt(2 * np.pi) * scale[:, None])) / fraction
    words = "fitted, before errors" if data["noisy"] else "fitted, truncated or not"
    ax.plot(x, curve, color=FIT, label=words)
    ax.set_ylim(0.0, 1.12 * max(curve.max(), *heights))
    top = ax.get_ylim()[1]
    for words, side, color, markers in LIMITED:
        if (kind := found[words]).any():
            at = top * (0.03 + 0.12 * ((np.arange(kind.sum()) * APART) % 1.0))
            ends, look = data[side][kind, j], {"s": 12, "alpha": 0.7}
            limited(ends, at, color, markers[0], words, kind.sum(), ax, **look)
    unseen(data, j, ax, across=True)
    ax.set(xlabel=str(data["labels"][j]), ylabel="density")
    plotting.title(f"{data['labels'][j]} and the fit", ax=ax)


def plane(results, _, ax):
    """Two outcomes, and the ellipses of the fit."""
    data, labels = results["data"], results["data"]["labels"]
    lower, upper = data["lower"][:, :2].T, data["upper"][:, :2].T
    found = [kinds(*ends) for ends in zip(lower, upper)]
    low, high = np.where(np.isinf(lower), upper, lower), np.where(np.isinf(upper), lower, upper)
    with np.errstate(invalid="ignore"):  # where a value is missing
        x, y = (low + high) / 2
    known = np.isfinite(x) & np.isfinite(y)
    rows = known & found[0]["exact"] & found[1]["exact"]
    small = {"s": 9 if rows.sum() > 300 else 16, "alpha": 0.7}
    plotting.points(x[rows], y[rows], label=f"measured ({rows.sum()})", ax=ax, **small)
    for words, _, color, markers in LIMITED:
        for j in (0, 1):
            rows, said = known & found[j][words], f"{labels[j]} {words}"
            if rows.any():
                limited(x[rows], y[rows], color, markers[j], said, rows.sum(), ax, **small)
    rows = known & (found[0]["between"] | found[1]["between"])
    if rows.any():
        limited(x[rows], y[rows], INTERVAL, "s", "middle of an interval", rows.sum(), ax, **small)
    covariances = data["covariance"].reshape(-1, 2, 2)
    for loc, covariance in zip(data["loc"][:, :2], covariances):
        plotting.contours(loc, covariance, label="fitted: 50 and 90 % of all", series=1, ax=ax)
    for j in (0, 1):
        unseen(data, j, ax, across=j == 0)
    ax.set(xlabel=str(labels[0]), ylabel=str(labels[1]))
    more = f" (of {len(labels)} outcomes)" if len(labels) > FEW else ""
    plotting.title(f"{labels[0]}, {labels[1]} and the fit{more}", ax=ax)


# ---------------------------------------------------------------- the estimates


def estimates(results, part, letter):
    """Every estimate with its interval and the naive one, each on an axis of its own units."""
    names = [str(name) for name in results["names"]]
    shown = list(range(min(len(names), MOST)))
    blank = [["."]] * max(0, LEAST - len(shown))
    axes = plotting.mosaic([[str(k)] for k in shown] + blank, picture=part)[1]
    ends = np.asarray(results["interval_ends"])
    for k in shown:
        ax, value = axes[str(k)], results["estimates"][k]
        low, high = np.where(np.isfinite(ends[k]), ends[k], value)
        line = {"color": FIT, "linewidth": 1.6}
        ax.plot([low, high], [0.0, 0.0], label="95 % interval", **line)
        plotting.points([value], [0.0], series=1, label="fit", s=22, ax=ax)
        naive = results["naive"][k]
        if np.isfinite(naive):
            look = {"series": 3, "s": 18, "filled": False}
            plotting.points([naive], [-0.45], label="naive", ax=ax, **look)
        if min(low, value, naive) < 0 < max(high, value, naive):
            ax.axvline(0.0, color="#555555", linewidth=0.7)
        text = f"{names[k]}:  {value:.4g}  [{ends[k][0]:.4g}, {ends[k][1]:.4g}]"
        ax.annotate(
            text, (0.0, 1.0), (0, 1), xycoords="axes fraction", textcoords="offset points",
            fontsize=7.5 * min(1.0, 60 / len(text)), va="bottom", annotation_clip=False,
        ).set_in_layout(False)  # fmt: skip
        ax.set(ylim=(-0.8, 0.5), yticks=[])
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="x", labelsize=6.5, length=2, pad=1)
        ax.locator_params(axis="x", nbins=4)
        ax.margins(x=0.08)
        for side, marker in enumerate("<>"):
            if np.isinf(ends[k][side]):
                edge = ax.get_xlim()[side]
                ax.plot([value, edge], [0.0, 0.0], **line)
                ax.plot([edge], [0.0], marker, color=FIT, markersize=4, clip_on=False)
                ax.set_xlim(**{("left", "right")[side]: edge})
    more = f" (the first {MOST} of {len(names)})" if len(names) > MOST else ""
    title = f"{letter}   Estimates and 95 % intervals{more}"
    part.suptitle(title, fontsize=9.5, weight="bold", x=0.03, ha="left")
    plotting.legend(columns=3, below=20.0, ax=axes[str(shown[-1])])


def profiles(results, ax):
    """Profile log-likelihoods in the standard errors of their estimates, and Wald's parabola."""
    known = list(results["names"])
    curves = list(results["profile_curves"].items())[: len(plotting.SERIES)]
    for number, (name, (values, fall)) in enumerate(curves):
        place = known.index(name)
        away = (values - results["estimates"][place]) / results["stderr"][place]
        look = plotting.SERIES[number]
        style = {"label": str(name), "color": look.color, "marker": look.marker}
        if number == 0:
            plotting.profile(away, fall, estimate=0.0, stderr=1.0, ax=ax, **style)
        else:
            ax.plot(away, -fall, markersize=3, **style)
    ax.set(xlabel="standard errors from the estimate")
    plotting.title("Profile log-likelihood", ax=ax)
