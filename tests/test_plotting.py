"""Pictures show what they are given, mark what is not finite, and hide nothing behind a legend."""

import pathlib
import re
import xml.etree.ElementTree
from functools import partial

import jax
import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb, to_rgba_array
from matplotlib.figure import Figure
from scipy import stats

import truncgauss as tg
from truncgauss import plotting
from truncgauss.plotting.style import entries
from truncgauss.plotting.truncation import highest, window

INF = np.inf
X = np.linspace(-2.0, 2.0, 21)
LOC, COVARIANCE = np.array([0.5, 0.0]), np.array([[1.0, 0.6], [0.6, 1.5]])


def labels_of(ax):
    return ax.get_legend_handles_labels()[1]


REFUSED = {
    "low below high": partial(plotting.density, 0.0, 1.0, 1.0, -1.0),
    "7 can be distinguished, got 8": partial(plotting.curves, X, [X] * 8, list("abcdefgh")),
    "dimension 3": partial(plotting.region, tg.Ball([0.0, 0.0, 0.0], 1.0)),
    r"batch shape \(2,\)": partial(plotting.region, tg.Ball([[0.0, 0.0], [1.0, 1.0]], 1.0)),
    "(?#1)give two of the coordinates": partial(plotting.contours, np.zeros(1), np.eye(1)),
    "(?#3)give two of the coordinates": partial(plotting.contours, np.zeros(3), np.eye(3)),
    "(?#truncated)give two of the coordinates": partial(
        plotting.truncated_contours, np.zeros(3), np.eye(3), tg.Ball(np.zeros(3), 1.0)
    ),
    "no part of the region": partial(
        plotting.truncated_contours, np.zeros(2), np.eye(2), tg.Ball([90.0, 0.0], 1.0)
    ),
    "d at least 2": partial(plotting.corner, X),
    "inverted must be": partial(plotting.points, [1.0], [1.0], inverted="z"),
    "(?#1)as of 2 outcomes: choose one, .*residuals": partial(plotting.worm, np.zeros((30, 2))),
    "(?#2)as of 2 outcomes: choose one, .*residuals": partial(plotting.qq, np.zeros((5, 30, 2))),
    "finite in the same places": partial(plotting.worm, [[0.1, np.nan, 0.2], [0.1, 0.3, 0.2]]),
    "1 of them finite": partial(plotting.qq, [0.1, np.nan]),
    "(?#1)finite numbers, one row or more": partial(plotting.corner, np.zeros((0, 2))),
    "(?#2)finite numbers, .* 2 of them not": partial(plotting.corner, [[0.1, np.nan], [np.inf, 1]]),
    r"points: x and y must .*\(2,\), \(1,\)": partial(plotting.points, [1.0, 2.0], [1.0]),
    r"points: x, y and counts .*\(3,\)": partial(plotting.points, X[:2], X[:2], counts=X[:3]),
    "(?#number)points: x and y must": partial(plotting.points, 1.0, 2.0),
    "profile: values and fall must": partial(plotting.profile, X, X[1:]),
    "profile: needs two values .* got 0": partial(plotting.profile, [], []),
    "(?#negative)profile: .*not negative": partial(plotting.profile, X[:3], [-1.0, 0.0, -1.0]),
    "(?#NaN)profile: .*not negative": partial(plotting.profile, X[:3], [1.0, 0.0, np.nan]),
    r"curves: x, ys\[0\] and ys\[1\] must": partial(plotting.curves, X, [X, X[1:]], ["a", "b"]),
    "curves: labels must be a list of 2": partial(plotting.curves, X, [X, X], ["a"]),
    "curves: ys must hold one array": partial(plotting.curves, X, X, ["a"]),
    "value_and_gradient: reference must be a pair": partial(
        plotting.value_and_gradient, X, X, X, reference=X
    ),
    "figure: rows and columns must be": partial(plotting.figure, "2", 1),
    "figure: size must be a pair": partial(plotting.figure, size=3.5),
    "mosaic: size must be a pair": partial(plotting.mosaic, [["a"]], size=3.5),
    "trace: loss and gradient_norm": partial(plotting.trace, X, X[1:]),
    "nan_spans: x and y": partial(plotting.nan_spans, X, X[1:]),
    "(?#none)one number or more": partial(plotting.histogram, []),
    "1 of them not finite": partial(plotting.histogram, [1.0, np.nan]),
    "points: series must be from 0 to 6, got": partial(plotting.points, X, X, series=7),
    "histogram: series must be from 0": partial(plotting.histogram, X, series="red"),
    "contours: covariance must be": partial(plotting.contours, LOC, -COVARIANCE),
    "(?#NaN)contours: covariance must": partial(plotting.contours, LOC, COVARIANCE * np.nan),
}
MISTYPED = {
    "points: there is no setting colour, got 'red'. Did you mean color": partial(
        plotting.points, X, X, colour="red"
    ),
    "profile: there is no setting colour": partial(
        plotting.profile, X[:3], [1.0, 0.0, 1.0], colour="red"
    ),
    "no setting qq, got 1. Settings are those": partial(plotting.band, X, X, X, qq=1),
    "missing 1 required .* 'fall'. It takes values, fall": partial(plotting.profile, X),
    "points: ax must be Axes .*returns its figure and": partial(
        plotting.points, X, X, ax=plotting.figure()
    ),
    "points: needs x, numbers; got None": partial(plotting.points, None, None),
    "corner: needs draws, .* got None": partial(plotting.corner, None),
    "truncated_contours: needs a region": partial(
        plotting.truncated_contours, LOC, COVARIANCE, None
    ),
}


@pytest.mark.parametrize("message", MISTYPED)
def test_a_call_that_does_not_fit_is_refused(message):
    with pytest.raises(TypeError, match=message):
        MISTYPED[message]()


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_drawn_is_refused(message):
    with pytest.raises(ValueError, match=message):
        REFUSED[message]()


# ---------------------------------------------------------------- curves and points


def test_value_and_gradient_draws_both_with_their_bands():
    stderr = np.full_like(X, 0.1)
    ax = plotting.value_and_gradient(
        X, X**2, 2 * X, value_stderr=stderr, gradient_stderr=2 * stderr,
        reference=(X**2 + 1, 2 * X + 1), reference_label="truth", xlabel="shift (cm)",
        value_label="fraction", gradient_label="gradient (1/cm)",
    )  # fmt: skip
    right = plotting.gradient_axes(ax)
    assert right is not ax and right is plotting.gradient_axes(ax)
    labels = (ax.get_xlabel(), ax.get_ylabel(), right.get_ylabel())
    assert labels == ("shift (cm)", "fraction", "gradient (1/cm)")
    for side, y, reach in ((ax, X**2, 0.2), (right, 2 * X, 0.4)):
        np.testing.assert_array_equal(side.lines[0].get_xydata(), np.column_stack([X, y]))
        np.testing.assert_array_equal(side.lines[1].get_ydata(), y + 1)
        band = side.collections[0].get_paths()[0].vertices
        assert band[:, 1].min() == pytest.approx((y - reach).min())
        assert band[:, 1].max() == pytest.approx((y + reach).max())
    found = entries([ax])
    assert {"fraction", "gradient (1/cm)", "truth", "fraction, ± 2 standard errors"} <= set(found)
    # Told apart without colour.
    assert found["fraction"].get_linestyle() != found["gradient (1/cm)"].get_linestyle()


def test_what_is_not_finite_is_counted_and_covered():
    gradient = np.where((X < -1.5) | (X == 0), np.nan, 1.0)
    gradient[-1] = INF
    ax = plotting.value_and_gradient(X, X, gradient, gradient_label="gradient (1/cm)")
    bad = ~np.isfinite(gradient)
    assert f"gradient not finite: {bad.sum()} of 21 points" in entries([ax])
    spans = [(p.get_x(), p.get_x() + p.get_width()) for p in ax.patches]
    assert len(spans) == 3
    covered = np.any([(low < X) & (X < high) for low, high in spans], axis=0)
    np.testing.assert_array_equal(covered, bad)
    assert all(p.get_hatch() for p in ax.patches)
    np.testing.assert_array_equal(ax.lines[-1].get_xdata(), X[bad])  # ticks along the axis
    assert ax.get_ylim()[0] == pytest.approx(-2.2)  # which leave the view alone
    finite = plotting.nan_spans(X, X)
    assert not finite.patches and not finite.lines


def test_a_trace_has_two_axes_and_points_carry_counts_and_error_bars():
    ax = plotting.trace([3.0, 2.0, 1.0], [1.0, 0.1, 0.01], ylabel="loss (nats)", norm_label="norm")
    right = plotting.gradient_axes(ax)
    assert (ax.get_xlabel(), ax.get_ylabel(), right.get_ylabel()) == ("step", "loss (nats)", "norm")
    assert right.get_yscale() == "log"
    np.testing.assert_array_equal(right.lines[0].get_ydata(), [1.0, 0.1, 0.01])
    ax = plotting.points([1.0, 2.0], [3.0, 4.0], stderr=[0.5, 0.25], counts=[1, 4], label="rows")
    marks = next(c for c in ax.collections if len(c.get_offsets()) == 2 and len(c.get_sizes()))
    np.testing.assert_array_equal(marks.get_offsets(), [[1.0, 3.0], [2.0, 4.0]])
    assert marks.get_sizes()[1] == 4 * marks.get_sizes()[0]
    bars = [segment for c in ax.collections if c is not marks for segment in c.get_segments()]
    np.testing.assert_allclose([bar[:, 1] for bar in bars], [[2.5, 3.5], [3.75, 4.25]])


def test_series_differ_without_colour():
    for looks in (plotting.SERIES, (plotting.VALUE, plotting.GRADIENT)):
        for attribute in ("linestyle", "marker"):
            assert len({str(getattr(look, attribute)) for look in looks}) == len(looks)
    okabe_ito = {
        "#000000", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"
    }  # fmt: skip
    assert {to_hex(look.color) for look in plotting.SERIES} <= okabe_ito
    light = [np.dot(to_rgb(look.color), [0.299, 0.587, 0.114]) for look in plotting.SERIES]
    # Neighbours; the seventh leans on its line style and marker alone.
    assert np.abs(np.diff(light))[:-1].min() > 0.1


# ---------------------------------------------------------------- residuals


def test_a_worm_shows_deviations_from_a_normal_sample():
    draws = np.random.default_rng(0).normal(size=(3, 400))
    ax = plotting.worm(draws, label="fine")
    middle, worm = ax.lines
    assert np.all(middle.get_ydata() == 0.0) and worm.get_label() == "fine"
    x, y = worm.get_data()
    ordered = np.sort(draws, axis=1) - x
    np.testing.assert_allclose(y, np.median(ordered, axis=0), atol=1e-12)
    # The middle order statistic has standard error sqrt(pi / 2 n).
    band = ax.collections[0].get_paths()[0].vertices
    near = band[np.argsort(np.abs(band[:, 0]))[:4], 1]
    assert np.abs(near) == pytest.approx(1.96 * np.sqrt(np.pi / 800), rel=1e-3)
    labels = labels_of(ax)
    assert "95 % of samples of 400" in labels and "range of 3 randomisations" in labels
    assert "a (2 of 5 not finite)" in labels_of(
        plotting.worm([0.1, np.nan, -0.4, INF, 1.2], label="a")
    )
    other = plotting.qq(draws[0])
    np.testing.assert_allclose(other.lines[1].get_ydata(), np.sort(draws[0]))


@pytest.mark.parametrize(
    "values, worm, quantiles, meaning",
    [
        (stats.norm, None, None, "as of a Gaussian"),
        (stats.norm(0.5), "lies high", "above the line", "the mean is above"),
        (stats.norm(0.0, 0.7), "the worm falls", "rise less", "spread less"),
        (stats.gamma(2.0, -2.0), "a U:", "both ends bend up", "skewed to high"),
        (stats.t(3), "an S from low to high", "both ends bend away", "heavier tails"),
        (stats.uniform(-1.75, 3.5), "an S from high to low", "bend to the middle", "lighter tails"),
    ],
)
def test_the_shape_of_residuals_is_explained(values, worm, quantiles, meaning):
    draws = values.ppf((np.arange(400) + 0.5) / 400)[None]
    for draw, shape in ((plotting.worm, worm), (plotting.qq, quantiles)):
        ax = draw(draws)
        [text] = [own.get_text().replace("\n", " ") for own in ax.texts]
        assert meaning in text and (shape is None or shape in text)
        ax.figure.draw_without_rendering()  # the words lie above band and points
        drawn = [own.get_ydata() for own in ax.lines]
        drawn.append(ax.collections[0].get_paths()[0].vertices[:, 1])
        highest = ax.transData.transform((0.0, max(map(np.max, drawn))))[1]
        assert ax.texts[0].get_window_extent().y0 > highest
        assert not draw(draws, hint=False).texts and not draw(draws[:, :10]).texts
    # A second series says so below the first, by its name.
    ax = plotting.worm(draws, label="other", bands=False, ax=plotting.worm(draws))
    assert len(ax.texts) == 2 and ax.texts[1].get_text().startswith("other: ")


# ---------------------------------------------------------------- the plane


@pytest.mark.parametrize("level", [0.1, 0.9])
def test_contours_hold_their_probability(level):
    loc, covariance = np.array([1.0, -2.0]), np.array([[2.0, 0.9], [0.9, 0.5]])
    with pytest.raises(ValueError, match="levels must lie between 0 and 1, got 90. For 90 % write"):
        plotting.contours(loc, covariance, levels=[90])
    ax = plotting.contours(loc, covariance, levels=[level], label="fit")
    ellipse = ax.patches[0]
    outline = ellipse.get_patch_transform().transform(ellipse.get_path().vertices)
    mahalanobis = np.einsum("ni,ij,nj->n", outline - loc, np.linalg.inv(covariance), outline - loc)
    on_curve = mahalanobis[::3]  # the others steer the Bezier arcs
    np.testing.assert_allclose(1 - np.exp(-on_curve / 2), level, rtol=1e-9)
    low, high = ax.get_xlim()
    assert low < outline[::3, 0].min() and outline[::3, 0].max() < high
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [loc])


def test_truncated_contours_hold_their_share():
    # By symmetry half a plane through the mean keeps of every ellipse as much as of the whole.
    half = tg.Box([LOC[0], -INF], INF)
    ax = plotting.truncated_contours(LOC, COVARIANCE, half, levels=[0.5, 0.9])
    lines = [c for c in ax.collections if len(c.get_paths()) and c.get_facecolor().size == 0]
    radii = []
    for outline in lines[:2]:
        x = np.concatenate([path.vertices for path in outline.get_paths()])
        assert x[:, 0].min() > LOC[0] - 1e-6
        away = x[x[:, 0] > LOC[0] + 0.05] - LOC
        inverse = np.linalg.inv(COVARIANCE)
        squares = np.einsum("ni,ij,nj->n", away, inverse, away)
        assert np.ptp(squares) < 0.02 * squares.mean()
        radii.append(squares.mean())
    np.testing.assert_allclose(1 - np.exp(-0.5 * np.array(radii)), [0.5, 0.9], atol=0.01)


def test_truncated_contours_count_draws_in_a_far_corner():
    box = tg.Box([4.0, 5.0], [INF, 9.0])
    grid, log_density, depth = window(LOC, COVARIANCE, box)
    [height] = highest(np.where(depth >= 0, log_density, -INF), [0.8])
    draws = np.asarray(tg.truncated_samples(jax.random.key(1), LOC, COVARIANCE, box, 4000))
    inverse = np.linalg.inv(COVARIANCE)
    squares = np.einsum("ni,ij,nj->n", draws - LOC, inverse, draws - LOC)
    top = np.einsum("i,ij,j->", [4.0, 5.0] - LOC, inverse, [4.0, 5.0] - LOC)
    share = np.mean(-0.5 * (squares - top) >= height)
    assert abs(share - 0.8) < 4 * np.sqrt(0.8 * 0.2 / 4000) + 0.01


def test_region_hatches_the_outside_and_keeps_the_view():
    ax = plotting.figure()[1]
    ax.set(xlim=(-2, 2), ylim=(-1, 3))
    plotting.region(tg.Box([-INF, 0.0], [1.0, INF]), ax=ax)
    assert ax.get_xlim() == (-2, 2) and ax.get_ylim() == (-1, 3)
    boundary = np.concatenate([path.vertices for path in ax.collections[-1].get_paths()])
    on_face = np.isclose(boundary[:, 0], 1.0) | np.isclose(boundary[:, 1], 0.0)
    assert on_face.mean() > 0.98  # but for the corner, which is cut within one cell of the grid
    assert "not observed" in entries([ax])


@pytest.mark.full
def test_a_mixture_has_its_rows_below_its_ellipses_and_axes_named_by_columns():
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(size=(30, 3)), rng.normal(6.0, 1.0, size=(20, 3))])
    y[3, 2] = np.nan
    names = ("mass", "age", "size")
    rows = tg.Observations.exact(y, nan_is_missing=True, names=names)
    fit = tg.fit_mixture(rows, 2, covariance="tied", num_starts=1)
    ax = plotting.mixture(fit, ("size", 0), levels=[0.9])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("size", "mass")
    labels = ["component 0: 60 %", "component 1: 40 %"]
    assert ax.get_legend_handles_labels()[1] == [
        *labels,
        "not drawn: 1 observation(s) known in part",
    ]
    drawn = [np.asarray(marks.get_offsets()) for marks in ax.collections]
    np.testing.assert_array_equal(drawn[0], np.delete(y[:30], 3, axis=0)[:, [2, 0]])
    np.testing.assert_array_equal(drawn[1], y[30:, [2, 0]])
    assert max(marks.zorder for marks in ax.collections) < min(each.zorder for each in ax.patches)
    with pytest.raises(ValueError, match="two of 3 columns, mass, age, size, can be drawn"):
        plotting.mixture(fit, ("size", "weight"))


def test_a_corner_plot_shows_every_pair_and_its_limits():
    draws = np.random.default_rng(0).normal(size=(500, 3))
    draws = draws[draws[:, 0] > -0.5]
    low = np.array([-0.5, -INF, -INF])
    picture = plotting.corner(
        draws, ["magnitude", "b", "c"], loc=np.zeros(3), covariance=np.eye(3), low=low,
        high=np.full(3, INF), bins=20, inverted=(0,), label="observed",
    )  # fmt: skip
    assert isinstance(picture, Figure) and len(picture.axes) == 6
    assert "observed" in [text.get_text() for text in picture.axes[0].get_legend().get_texts()]
    first, pair = picture.axes[:2]
    heights = [bar.get_height() * bar.get_width() for bar in first.patches]
    assert sum(heights) == pytest.approx(1.0)
    counts = np.ma.filled(pair.collections[0].get_array(), 0.0)
    expected = np.histogram2d(draws[:, 0], draws[:, 1], bins=20)[0]
    np.testing.assert_array_equal(np.nan_to_num(counts).reshape(20, 20), expected.T)
    assert first.xaxis_inverted() and pair.xaxis_inverted() and not pair.yaxis_inverted()
    assert any(np.all(np.asarray(line.get_xdata()) == -0.5) for line in pair.lines)
    bottom = [ax.get_xlabel() for ax in picture.axes[3:]]
    assert bottom == ["magnitude", "b", "c"]
    pandas = pytest.importorskip("pandas")
    for names, expected in ((["depth", "b", "c"], ["depth", "b", "c"]), (None, ["x0", "x1", "x2"])):
        picture = plotting.corner(pandas.DataFrame(draws, columns=names))
        assert [ax.get_xlabel() for ax in picture.axes[3:]] == expected


# ---------------------------------------------------------------- densities and fits


@pytest.mark.parametrize("low, high", [(-0.5, 1.5), (None, 0.2), (4.0, None)])
def test_a_density_keeps_all_of_its_mass(low, high):
    ax = plotting.density(0.3, 1.2, low, high)
    whole, truncated = (line.get_data() for line in ax.lines)
    assert np.trapezoid(whole[1], whole[0]) == pytest.approx(1.0, abs=2e-3)
    assert np.trapezoid(truncated[1], truncated[0]) == pytest.approx(1.0, abs=3e-3)
    assert truncated[1][0] == truncated[1][-1] == 0.0
    ends = -INF if low is None else low, INF if high is None else high
    if low is not None:
        assert truncated[0][0] == truncated[0][1] == low
    removed = 1.0 - np.diff(stats.norm.cdf(ends, 0.3, 1.2))[0]
    [label] = [text for text in ax.get_legend_handles_labels()[1] if "removed" in text]
    assert float(label.split()[1]) == pytest.approx(100 * removed, rel=5e-3)


def test_a_profile_shows_what_the_fit_says():
    fit = tg.fit_observations(tg.Observations.exact([1.0, 2.0, 3.0, 4.0]))
    values, fall = fit.profile_curve("loc[0]", num=7)
    # Over the variance, the log-likelihood of the mean falls by n/2 log(1 + (mean - m)^2 / s^2).
    np.testing.assert_allclose(2 * np.log1p((values - 2.5) ** 2 / 1.25), fall, atol=1e-6)
    values[0] = -INF
    ax = plotting.profile(values, fall, estimate=2.5, stderr=fit.errors[0], label="mean")
    curve = ax.lines[0].get_xydata()
    marked = curve[ax.lines[0].get_markevery()]
    np.testing.assert_allclose(marked, np.column_stack([values, -fall])[1:], atol=1e-12)
    # Between the values, too, it is the profile, to a fiftieth of the axis. Straight: a twentieth.
    np.testing.assert_allclose(
        curve[:, 1], -2 * np.log1p((curve[:, 0] - 2.5) ** 2 / 1.25), atol=0.1
    )
    np.testing.assert_allclose(ax.lines[2].get_ydata(), -0.5 * stats.chi2.ppf(0.95, 1))
    with pytest.raises(ValueError, match="odd"):
        fit.profile_curve("loc[0]", num=4)


@pytest.mark.full
def test_simultaneous_intervals_and_a_band():
    covariance = np.array([[0.2, 0.1], [0.1, 0.3]])
    result = tg.simultaneous([0.3, -1.2], covariance, df=12, names=["a", "b"])
    ax = plotting.simultaneous(result)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["a", "b"]
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    assert words == ["one alone", "all together"]
    alone, joint = (np.array(lines.get_segments())[:, :, 0] for lines in ax.collections[::2])
    reach = stats.t.ppf(0.975, 12) * result.standard_errors
    np.testing.assert_allclose(
        alone, np.stack([result.estimates - reach, result.estimates + reach], 1)
    )
    np.testing.assert_allclose(joint, np.stack([result.low, result.high], 1))
    assert np.all(np.ptp(joint, axis=1) > np.ptp(alone, axis=1))
    curve = plotting.simultaneous(result, [0.0, 1.0])
    labels = labels_of(curve)
    assert labels == ["everywhere", "fitted", "at one point alone"]
    with pytest.raises(ValueError, match=r"x has shape \(3,\), the curve \(2,\)"):
        plotting.simultaneous(result, [0.0, 1.0, 2.0])
    one_sided = tg.simultaneous([0.3, -1.2], covariance, alternative="less")
    with pytest.raises(ValueError, match="two-sided"):
        plotting.simultaneous(one_sided)


# ---------------------------------------------------------------- legends, files and style


def legends_of(picture):
    """Of a drawn figure, how many legends there are, whether any covers axes, and whether all lie
    on the page."""
    renderer = FigureCanvasAgg(picture).get_renderer()
    picture.draw(renderer)
    legends = [ax.get_legend() for ax in picture.axes if ax.get_legend()] + picture.legends
    places, page = [legend.get_window_extent(renderer) for legend in legends], picture.bbox
    drawn = [ax.get_window_extent(renderer) for ax in picture.axes]
    covers = any(place.overlaps(ax) for place in places for ax in drawn)
    return len(places), covers, all(0 <= x.x0 and x.x1 <= page.width and 0 <= x.y0 for x in places)


def test_legends_cover_no_axes_and_stay_on_the_page_of_ones_own():
    gradient = np.where(X > 1, np.nan, 2 * X)
    picture, axes = plotting.figure(2, 2)
    own = Figure(figsize=(8, 6)).subplots(2, 2)
    alone = Figure(figsize=(4, 3)).add_axes((0.15, 0.15, 0.8, 0.8))
    for ax in (*axes.flat, *own.flat, alone):
        slope = gradient if ax in axes else 2 * X
        band = None if ax is alone else 0.1 + 0 * X
        plotting.value_and_gradient(X, X**2, slope, value_stderr=band, ax=ax)
        plotting.legend(ax=ax)
    plotting.shared_legend(picture)
    assert legends_of(picture)[:2] == (5, False)
    assert legends_of(own[0, 0].figure) == (4, False, True)
    assert legends_of(alone.figure) == (1, False, True) and alone.get_position().height > 0.5
    texts = [text.get_text() for text in picture.legends[0].get_texts()]
    assert len(texts) == len(set(texts)) == 4


def test_panels_may_span_cells():
    picture, axes = plotting.mosaic([["tall", "top"], ["tall", "bottom"]])
    picture.draw_without_rendering()
    heights = {name: ax.get_position().height for name, ax in axes.items()}
    assert heights["tall"] > 1.9 * heights["top"]


def test_pictures_are_the_same_files_small_and_without_digits_that_nobody_sees(tmp_path):
    contents, x = [], np.linspace(0.0, 7.0, 200)
    for name in ("a", "b"):
        picture, ax = plotting.figure()
        ax.plot(x, np.sin(x))
        plotting.nan_spans(X, np.where(X > 1, np.nan, 2 * X), ax=ax)
        plotting.legend(ax=ax)
        paths = plotting.save(picture, tmp_path / name)
        contents.append([pathlib.Path(path).read_bytes() for path in paths])
    assert contents[0] == contents[1]
    text = contents[0][1].decode()
    assert contents[0][0].startswith(b"\x89PNG") and "<svg" in text
    xml.etree.ElementTree.fromstring(text)
    curve = max(re.findall(r' d="([^"]*)"', text), key=len)
    ends = np.array(re.findall(r"(\S+) (\S+)", re.sub("[MLz]", "", curve)), float)
    assert len(ends) > 50 and not re.search(r"\.\d{3}", curve)
    ends = ends * [1, -1] + [0, 72 * picture.get_size_inches()[1]]
    shown = ax.transData.inverted().transform(ends * picture.dpi / 72)
    np.testing.assert_allclose(shown[:, 1], np.sin(shown[:, 0]), atol=1e-3)
    picture, ax = plotting.figure()  # many points are one picture in an SVG
    rng = np.random.default_rng(0)
    plotting.points(*rng.normal(size=(2, 50000)), label="rows", ax=ax)
    plotting.worm(rng.normal(size=50000), ax=plotting.figure()[1])
    plotting.save(picture, tmp_path / "many")
    assert (tmp_path / "many.svg").stat().st_size < 500_000


def test_no_global_state_is_touched():
    before = dict(matplotlib.rcParams)
    picture, axes = plotting.figure(1, 2)
    plotting.value_and_gradient(X, X**2, 2 * X, ax=axes[0])
    plotting.title("a", ax=axes[1])
    plotting.legend(ax=axes[0])
    assert dict(matplotlib.rcParams) == before
    assert axes[0].get_xaxis().get_label().get_fontsize() == plotting.STYLE["axes.labelsize"]
    assert picture.canvas.manager is None  # no window, no pyplot


@pytest.mark.parametrize(
    "draw, artists, part",
    [
        (partial(plotting.points, [1.0], [2.0]), "collections", "facecolor"),
        (partial(plotting.curves, [1, 2], [[1, 2]], ["a"]), "lines", "color"),
        (partial(plotting.band, [1, 2], [1, 2], [3, 4]), "collections", "facecolor"),
        (partial(plotting.histogram, [1.0, 2.0]), "patches", "facecolor"),
        (partial(plotting.contours, [0, 0], np.eye(2)), "patches", "edgecolor"),
        (partial(plotting.worm, [0.1, 0.2, -0.4], bands=False), "lines", "color"),
        (partial(plotting.profile, [1, 2, 3], [1, 0, 1]), "lines", "color"),
    ],
)
def test_a_caller_chooses_colours_and_directions(draw, artists, part):
    ax = draw(color="red", inverted="x")
    shown = matplotlib.artist.getp(getattr(ax, artists)[0], part)
    assert to_rgba_array(shown)[0, :3].tolist() == [1.0, 0.0, 0.0]
    assert ax.xaxis_inverted() and not ax.yaxis_inverted()


def test_an_axis_stays_inverted_when_more_is_drawn():
    ax = plotting.points([-21.0, -17.0], [1.0, 0.5], inverted="x")
    plotting.points([-24.0], [0.9], ax=ax)
    plotting.region(tg.Box([-INF, 0.0], [-18.0, 1.0]), ax=ax)
    left, right = ax.get_xlim()
    assert left > -17.0 and right < -24.0
