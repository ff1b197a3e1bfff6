"""Figures of truncated Gaussians show the numbers that they should."""

from functools import partial

import jax
import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

import truncgauss as tg
from truncgauss import plotting
from truncgauss.plotting.truncation import highest, window

LOC, COVARIANCE = np.array([0.5, 0.0]), np.array([[1.0, 0.6], [0.6, 1.5]])


@pytest.mark.parametrize("low, high", [(-0.5, 1.5), (None, 0.2), (4.0, None)])
def test_a_density_keeps_all_of_its_mass(low, high):
    ax = plotting.density(0.3, 1.2, low, high)
    whole, truncated = (line.get_data() for line in ax.lines)
    assert np.trapezoid(whole[1], whole[0]) == pytest.approx(1.0, abs=2e-3)
    assert np.trapezoid(truncated[1], truncated[0]) == pytest.approx(1.0, abs=3e-3)
    assert truncated[1][0] == truncated[1][-1] == 0.0
    ends = -np.inf if low is None else low, np.inf if high is None else high
    if low is not None:
        assert truncated[0][0] == truncated[0][1] == low
    removed = 1.0 - np.diff(stats.norm.cdf(ends, 0.3, 1.2))[0]
    [label] = [text for text in ax.get_legend_handles_labels()[1] if "removed" in text]
    assert float(label.split()[1]) == pytest.approx(100 * removed, rel=5e-3)


def test_a_density_refuses_crossed_limits():
    with pytest.raises(ValueError, match="low below high"):
        plotting.density(0.0, 1.0, 1.0, -1.0)


def test_truncated_contours_hold_their_share():
    # By symmetry half a plane through the mean keeps of every ellipse as much as of the whole.
    half = tg.Box([LOC[0], -np.inf], np.inf)
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


@pytest.mark.quick("1")
@pytest.mark.parametrize("seed", range(2))
def test_truncated_contours_count_draws_in_a_far_corner(seed):
    box = tg.Box([4.0, 5.0], [np.inf, 9.0])
    grid, log_density, depth = window(LOC, COVARIANCE, box)
    [height] = highest(np.where(depth >= 0, log_density, -np.inf), [0.8])
    draws = np.asarray(tg.truncated_samples(jax.random.key(seed), LOC, COVARIANCE, box, 4000))
    inverse = np.linalg.inv(COVARIANCE)
    squares = np.einsum("ni,ij,nj->n", draws - LOC, inverse, draws - LOC)
    top = np.einsum("i,ij,j->", [4.0, 5.0] - LOC, inverse, [4.0, 5.0] - LOC)
    share = np.mean(-0.5 * (squares - top) >= height)
    assert abs(share - 0.8) < 4 * np.sqrt(0.8 * 0.2 / 4000) + 0.01


def test_truncated_contours_say_what_they_take():
    with pytest.raises(ValueError, match="give two of the coordinates"):
        plotting.truncated_contours(np.zeros(3), np.eye(3), tg.Ball(np.zeros(3), 1.0))
    with pytest.raises(ValueError, match="no part of the region"):
        plotting.truncated_contours(np.zeros(2), np.eye(2), tg.Ball([90.0, 0.0], 1.0))


def test_a_corner_plot_shows_every_pair_and_its_limits():
    draws = np.random.default_rng(0).normal(size=(500, 3))
    draws = draws[draws[:, 0] > -0.5]
    low = np.array([-0.5, -np.inf, -np.inf])
    picture = plotting.corner(
        draws, ["magnitude", "b", "c"], loc=np.zeros(3), covariance=np.eye(3), low=low,
        high=np.full(3, np.inf), bins=20, inverted=(0,),
    )  # fmt: skip
    assert isinstance(picture, Figure) and len(picture.axes) == 6
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
    with pytest.raises(ValueError, match="d at least 2"):
        plotting.corner(draws[:, 0])


def test_a_profile_shows_what_the_fit_says():
    fit = tg.fit_observations(tg.Observations.exact([1.0, 2.0, 3.0, 4.0]))
    values, fall = fit.profile_curve("loc[0]", num=7)
    # Over the variance, the log-likelihood of the mean falls by n/2 log(1 + (mean - m)^2 / s^2).
    np.testing.assert_allclose(2 * np.log1p((values - 2.5) ** 2 / 1.25), fall, atol=1e-6)
    values[0] = -np.inf
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


# ---------------------------------------------------------------- what a caller may change


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
    assert matplotlib.colors.to_rgba_array(shown)[0, :3].tolist() == [1.0, 0.0, 0.0]
    assert ax.xaxis_inverted() and not ax.yaxis_inverted()


def test_an_axis_stays_inverted_when_more_is_drawn():
    ax = plotting.points([-21.0, -17.0], [1.0, 0.5], inverted="x")
    plotting.points([-24.0], [0.9], ax=ax)
    plotting.region(tg.Box([-np.inf, 0.0], [-18.0, 1.0]), ax=ax)
    left, right = ax.get_xlim()
    assert left > -17.0 and right < -24.0
    with pytest.raises(ValueError, match="inverted must be"):
        plotting.points([1.0], [1.0], inverted="z")


def below(ax):
    """Whether the legend of axes lies on the page and covers no axes."""
    picture = ax.figure
    matplotlib.backends.backend_agg.FigureCanvasAgg(picture).draw()
    legend = ax.get_legend().get_window_extent()
    page = picture.bbox
    inside = 0 <= legend.x0 and legend.x1 <= page.width and 0 <= legend.y0
    return inside and not any(legend.overlaps(o.get_window_extent()) for o in picture.axes)


def test_a_legend_stays_on_the_page_of_ones_own_axes():
    x = np.linspace(-1.0, 1.0, 9)
    own = Figure(figsize=(8, 6)).subplots(2, 2)
    for ax in own.flat:
        plotting.value_and_gradient(x, x, 1.0 + x, value_stderr=0.1 + 0 * x, ax=ax)
        plotting.legend(ax=ax)
    assert all(below(ax) for ax in own.flat)
    alone = Figure(figsize=(4, 3)).add_axes((0.15, 0.15, 0.8, 0.8))
    plotting.value_and_gradient(x, x, 1.0 + x, ax=alone)
    plotting.legend(ax=alone)
    assert below(alone) and alone.get_position().height > 0.5
