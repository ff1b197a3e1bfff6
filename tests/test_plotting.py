"""Pictures show what they are given, mark what is not finite, and hide nothing behind a legend."""

import pathlib
import re
import xml.etree.ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from scipy import stats

import truncgauss as tg
from truncgauss import plotting
from truncgauss.plotting.style import entries

X = np.linspace(-2.0, 2.0, 21)


def boxes(picture):
    """The drawn axes and legends, in pixels."""
    renderer = FigureCanvasAgg(picture).get_renderer()
    picture.draw(renderer)
    legends = [ax.get_legend() for ax in picture.axes if ax.get_legend()] + picture.legends
    return (
        [ax.get_window_extent(renderer) for ax in picture.axes],
        [legend.get_window_extent(renderer) for legend in legends],
    )


def test_no_global_state_is_touched():
    before = dict(matplotlib.rcParams)
    picture, axes = plotting.figure(1, 2)
    plotting.value_and_gradient(X, X**2, 2 * X, ax=axes[0])
    plotting.title("a", ax=axes[1])
    plotting.legend(ax=axes[0])
    assert dict(matplotlib.rcParams) == before
    assert axes[0].get_xaxis().get_label().get_fontsize() == plotting.STYLE["axes.labelsize"]
    assert picture.canvas.manager is None  # no window, no pyplot


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
    gradient[-1] = np.inf
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


def test_finite_curves_carry_no_alarm():
    ax = plotting.nan_spans(X, X)
    assert not ax.patches and not ax.lines


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
def test_contours_hold_their_probability(level):
    loc, covariance = np.array([1.0, -2.0]), np.array([[2.0, 0.9], [0.9, 0.5]])
    ax = plotting.contours(loc, covariance, levels=[level], label="fit")
    ellipse = ax.patches[0]
    outline = ellipse.get_patch_transform().transform(ellipse.get_path().vertices)
    mahalanobis = np.einsum("ni,ij,nj->n", outline - loc, np.linalg.inv(covariance), outline - loc)
    on_curve = mahalanobis[::3]  # the others steer the Bezier arcs
    np.testing.assert_allclose(1 - np.exp(-on_curve / 2), level, rtol=1e-9)
    low, high = ax.get_xlim()
    assert low < outline[::3, 0].min() and outline[::3, 0].max() < high
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [loc])


@pytest.mark.parametrize("d", [1, 3])
def test_contours_ask_for_two_coordinates(d):
    with pytest.raises(ValueError, match="give two of the coordinates"):
        plotting.contours(np.zeros(d), np.eye(d))


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


def test_region_hatches_the_outside_and_keeps_the_view():
    ax = plotting.figure()[1]
    ax.set(xlim=(-2, 2), ylim=(-1, 3))
    plotting.region(tg.Box([-np.inf, 0.0], [1.0, np.inf]), ax=ax)
    assert ax.get_xlim() == (-2, 2) and ax.get_ylim() == (-1, 3)
    boundary = np.concatenate([path.vertices for path in ax.collections[-1].get_paths()])
    on_face = np.isclose(boundary[:, 0], 1.0) | np.isclose(boundary[:, 1], 0.0)
    assert on_face.mean() > 0.98  # but for the corner, which is cut within one cell of the grid
    assert "not observed" in entries([ax])


def test_region_refuses_what_is_not_one_region_of_the_plane():
    with pytest.raises(ValueError, match="dimension 3"):
        plotting.region(tg.Ball([0.0, 0.0, 0.0], 1.0))
    with pytest.raises(ValueError, match=r"batch shape \(2,\)"):
        plotting.region(tg.Ball([[0.0, 0.0], [1.0, 1.0]], 1.0))


def test_a_trace_has_two_axes():
    ax = plotting.trace([3.0, 2.0, 1.0], [1.0, 0.1, 0.01], ylabel="loss (nats)", norm_label="norm")
    right = plotting.gradient_axes(ax)
    assert (ax.get_xlabel(), ax.get_ylabel(), right.get_ylabel()) == ("step", "loss (nats)", "norm")
    assert right.get_yscale() == "log"
    np.testing.assert_array_equal(right.lines[0].get_ydata(), [1.0, 0.1, 0.01])


def test_points_carry_counts_and_error_bars():
    ax = plotting.points([1.0, 2.0], [3.0, 4.0], stderr=[0.5, 0.25], counts=[1, 4], label="rows")
    marks = next(c for c in ax.collections if len(c.get_offsets()) == 2 and len(c.get_sizes()))
    np.testing.assert_array_equal(marks.get_offsets(), [[1.0, 3.0], [2.0, 4.0]])
    assert marks.get_sizes()[1] == 4 * marks.get_sizes()[0]
    bars = [segment for c in ax.collections if c is not marks for segment in c.get_segments()]
    np.testing.assert_allclose([bar[:, 1] for bar in bars], [[2.5, 3.5], [3.75, 4.25]])


def test_curves_that_cannot_be_told_apart_are_refused():
    with pytest.raises(ValueError, match="7 can be distinguished, got 8"):
        plotting.curves(X, [X] * 8, list("abcdefgh"))


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


def test_legends_cover_no_axes():
    picture, axes = plotting.figure(2, 2)
    for ax in axes.flat:
        gradient = np.where(X > 1, np.nan, 2 * X)
        plotting.value_and_gradient(X, X**2, gradient, value_stderr=0.1 + 0 * X, ax=ax)
        plotting.legend(ax=ax)
    plotting.shared_legend(picture)
    drawn, legends = boxes(picture)
    assert len(legends) == 5
    assert not any(legend.overlaps(ax) for legend in legends for ax in drawn)
    texts = [text.get_text() for text in picture.legends[0].get_texts()]
    assert len(texts) == len(set(texts)) == 4


def test_panels_may_span_cells():
    picture, axes = plotting.mosaic([["tall", "top"], ["tall", "bottom"]])
    picture.draw_without_rendering()
    heights = {name: ax.get_position().height for name, ax in axes.items()}
    assert heights["tall"] > 1.9 * heights["top"]


def test_the_same_picture_is_the_same_file(tmp_path):
    contents = []
    for name in ("a", "b"):
        picture, ax = plotting.figure()
        plotting.value_and_gradient(X, X**2, np.where(X > 1, np.nan, 2 * X), ax=ax)
        plotting.legend(ax=ax)
        paths = plotting.save(picture, tmp_path / name)
        contents.append([pathlib.Path(path).read_bytes() for path in paths])
    assert contents[0] == contents[1]
    assert contents[0][0].startswith(b"\x89PNG") and b"<svg" in contents[0][1]


@pytest.mark.parametrize("shape", [(30, 2), (5, 30, 2)])
def test_a_worm_is_of_one_outcome(shape):
    for draw in (plotting.worm, plotting.qq):
        with pytest.raises(ValueError, match="as of 2 outcomes: choose one, .*residuals"):
            draw(np.zeros(shape))


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
    labels = ax.get_legend_handles_labels()[1]
    assert "95 % of samples of 400" in labels and "range of 3 randomisations" in labels
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


def test_residuals_without_a_value_are_counted():
    residuals = np.array([0.1, np.nan, -0.4, np.inf, 1.2])
    labels = plotting.worm(residuals, label="a").get_legend_handles_labels()[1]
    assert "a (2 of 5 not finite)" in labels
    with pytest.raises(ValueError, match="finite in the same places"):
        plotting.worm([[0.1, np.nan, 0.2], [0.1, 0.3, 0.2]])
    with pytest.raises(ValueError, match="1 of them finite"):
        plotting.qq([0.1, np.nan])


def test_many_points_are_one_picture_in_an_svg(tmp_path):
    rng = np.random.default_rng(0)
    picture, ax = plotting.figure()
    plotting.points(*rng.normal(size=(2, 50000)), label="rows", ax=ax)
    plotting.worm(rng.normal(size=50000), ax=plotting.figure()[1])
    plotting.save(picture, tmp_path / "many")
    assert (tmp_path / "many.svg").stat().st_size < 500_000


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
    labels = curve.get_legend_handles_labels()[1]
    assert labels == ["everywhere", "fitted", "at one point alone"]
    with pytest.raises(ValueError, match=r"x has shape \(3,\), the curve \(2,\)"):
        plotting.simultaneous(result, [0.0, 1.0, 2.0])
    one_sided = tg.simultaneous([0.3, -1.2], covariance, alternative="less")
    with pytest.raises(ValueError, match="two-sided"):
        plotting.simultaneous(one_sided)


def test_an_svg_has_no_more_digits_than_are_seen(tmp_path):
    x = np.linspace(0.0, 7.0, 200)
    picture, ax = plotting.figure()
    ax.plot(x, np.sin(x))
    plotting.save(picture, tmp_path / "sine")
    text = (tmp_path / "sine.svg").read_text("utf-8")
    xml.etree.ElementTree.fromstring(text)
    curve = max(re.findall(r' d="([^"]*)"', text), key=len)
    ends = np.array(re.findall(r"(\S+) (\S+)", re.sub("[MLz]", "", curve)), float)
    assert len(ends) > 50 and not re.search(r"\.\d{3}", curve)
    shown = ax.transData.inverted().transform((ends * [1, -1] + [0, 72 * 3.3]) * picture.dpi / 72)
    np.testing.assert_allclose(shown[:, 1], np.sin(shown[:, 0]), atol=1e-3)
