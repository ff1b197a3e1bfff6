"""The gallery: every kind of figure on one page, of numbers that are checked elsewhere."""

import io

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image
from scipy.stats import multivariate_normal, norm

import truncgauss as tg
from experiments.gallery.animation import gif
from experiments.gallery.plot import annealing, bias_and_spread, growing_bump
from tests.test_experiments import completed
from truncgauss import plotting
from truncgauss.runs import work
from truncgauss.runs.config import ConfigError, load

SMALL = {
    "num_draws": 4000, "num_rows": 200, "steepnesses": (5.0, 50.0), "num_samples": 300,
    "num_repeats": 12, "shift": {"start": -1.0, "stop": 1.0, "num": 5},
    "widths": {"start": 0.5, "stop": 1.0, "num": 2},
}  # fmt: skip


@pytest.mark.full
def test_gallery():
    results, (picture, moving) = completed("gallery", **SMALL)
    assert results["failed"] == ""
    loc, covariance = results["loc"], results["covariance"]
    whole = np.random.default_rng(0).multivariate_normal(loc, covariance, 200_000)
    inside = ((whole >= results["low"]) & (whole <= results["high"])).all(axis=1)
    spread = whole[inside].std(axis=0) / 4000**0.5
    assert np.all(np.abs(results["draws"].mean(0) - whole[inside].mean(0)) < 5 * spread)
    # Both limits of the plane are from above.
    law = multivariate_normal(loc[:2], covariance[:2, :2], abseps=1e-11)
    exact = lambda s: law.cdf(results["high"][:2] - [s, 0.0])
    values = [exact(s) for s in results["shift"]]
    np.testing.assert_allclose(results["exact"]["value"], values, atol=1e-8)
    assert results["fraction"] == pytest.approx(exact(0.0), abs=1e-8)
    slope = (exact(1e-3) - exact(-1e-3)) / 2e-3
    assert results["slope"] == pytest.approx(slope, abs=1e-5)
    soft, steep = results["slopes"].T
    assert abs(soft.mean() - slope) > 5 * soft.std() / 12**0.5  # bias,
    assert steep.std() > 3 * soft.std()  # or spread
    fit = results["fit"]
    best = np.argmin(fit["fall"])
    assert fit["values"][best] == fit["estimate"]
    assert norm.isf(1e-4) > abs(fit["estimate"] - loc[2]) / fit["stderr"]
    drawn_whole(picture)
    with Image.open(io.BytesIO(moving)) as frames:
        assert frames.n_frames == 2


def drawn_whole(picture):
    """Nothing is cut off, and no legend outside of the corner plot lies on a panel."""
    renderer = FigureCanvasAgg(picture).get_renderer()
    picture.draw(renderer)
    everything, (width, height) = picture.get_tightbbox(renderer), picture.get_size_inches()
    assert everything.x0 >= 0 and everything.x1 <= width
    assert everything.y0 >= 0 and everything.y1 <= height
    legends = [ax.get_legend() for ax in picture.axes if ax.get_legend()]
    assert len(legends) == 11
    boxes = [ax.get_window_extent(renderer) for ax in picture.axes]
    for legend in legends:
        assert not any(legend.get_window_extent(renderer).overlaps(box) for box in boxes)


def test_gallery_asks_for_three_dimensions(tmp_path):
    text = (work.ROOT / "configs" / "gallery.yaml").read_text()
    assert "low: [-.inf, -.inf, 0.4]" in text
    text = text.replace("low: [-.inf, -.inf, 0.4]", "low: [-.inf, 0.4]")
    text = text.replace("high: [-19.0, 0.9, .inf]", "high: [-19.0, 0.9]")
    (tmp_path / "my.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"limits.low: must have 3 numbers"):
        load(tmp_path / "my.yaml")


def test_a_figure_that_moves_is_kept_as_a_gif(tmp_path, monkeypatch):
    drawn = plotting.figure()[0], gif(growing_bump([0.5, 1.0]))
    monkeypatch.setattr(work.settings, "function", lambda *_: lambda results: drawn)
    settings = load(work.ROOT / "configs" / "gallery.yaml")
    paths = work._draw(settings, {}, tmp_path)
    assert [path.rpartition(".")[2] for path in paths] == ["png", "svg", "gif"]
    assert (tmp_path / "gallery.gif").read_bytes().startswith(b"GIF89a")


def test_edges_sharpen_and_darken():
    edges = {"soft": tg.Tanh(2.0), "sharp": tg.Tanh(20.0)}
    ax = annealing(edges, "margin")
    for edge, line in zip(edges.values(), ax.lines[:2], strict=True):
        np.testing.assert_allclose(line.get_ydata(), np.asarray(edge.value(line.get_xdata())))
    light, dark = (np.sum(line.get_color()) for line in ax.lines[:2])
    assert light > dark


def test_bias_and_spread_are_those_of_the_estimates():
    estimates = np.random.default_rng(0).normal([1.0, 2.0, 4.0], 0.3, (50, 3))
    ax = bias_and_spread([1.0, 2.0, 3.0], estimates, [1.0, 2.0, 3.0], label="soft")
    np.testing.assert_allclose(ax.lines[0].get_ydata(), estimates.mean(0) - [1, 2, 3])
    bars = ax.collections[0].get_segments()
    lengths = [np.ptp(bar[:, 1]) for bar in bars]
    np.testing.assert_allclose(lengths, 2 * estimates.std(0, ddof=1) / np.sqrt(50))


def test_the_bump_grows_in_a_gif():
    widths = [0.5, 1.0, 2.0]
    with Image.open(io.BytesIO(gif(growing_bump(widths), dpi=40))) as picture:
        assert picture.n_frames == 3 and picture.info["loop"] == 0
        assert picture.convert("RGB").getpixel((1, 1)) == (255, 255, 255)
    for width, frame in zip(widths, growing_bump(widths), strict=True):
        x, y = frame.axes[0].lines[0].get_data()
        np.testing.assert_allclose(y, np.asarray(tg.safe.bump(x, width)))
        right = frame.axes[1]
        top = right.lines[0].get_ydata().max()
        assert 0.0 < top < right.get_ylim()[1]
