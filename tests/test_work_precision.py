"""The work-precision experiment, reduced: its truths, its peers, its table and its picture."""

import math
import os
import pathlib
import tempfile

import jax
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from experiments.work_precision import curves, plot, problems, run
from truncgauss import fitting
from truncgauss.runs import config

ROOT = pathlib.Path(__file__).parents[1]


def settings(**changes):
    shipped = config.load(ROOT / "configs" / "work_precision.yaml")
    few = {"num_keys": 4, "num_calls": 1, "peer_points": (500, 2000), "truth_points": 256}
    return type(shipped).model_validate(shipped.model_dump() | few | changes)


def completed(**changes):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "work.npz"
        with fitting.resumable(file):
            first = run.run(settings(**changes))
        with fitting.resumable(file):  # all of it is read, the times as well
            results = run.run(settings(**changes))
    assert results["summary"][2:] == first["summary"][2:]  # but for the threads and load of now
    results = jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, results)
    return results, plot.plot(results)


CASE = {"name": "a", "dimension": 4, "low": 0.0, "high": math.inf, "num_points": (16, 128)}
EXACT = {
    "families": ({"family": "identity"},),
    "dimensions": (2, 4),
    "limits": {"orthant": (0.0, math.inf), "box": (-1.0, 1.0)},
}


def check_picture(picture):
    renderer = FigureCanvasAgg(picture).get_renderer()
    picture.draw(renderer)
    assert len(picture.legends) == 1 and all(ax.get_ylabel() for ax in picture.axes)
    box = picture.legends[0].get_window_extent(renderer)
    assert not any(box.overlaps(ax.get_window_extent(renderer)) for ax in picture.axes)


@pytest.mark.slow
def test_errors_and_times_of_ours_and_the_peers():
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    case = CASE | {"family": "equicorrelated", "correlation": 0.5, "num_points": (128,)}
    results, picture = completed(parts=("curves", "shared"), curves=(case,), shared=EXACT)
    assert results["failed"] == ""
    curve = results["curves"]["a"]
    assert curve["truth"] == pytest.approx(-math.log(5), abs=1e-12)  # 1/(d + 1)
    for way in ("Separation", "SciPy"):
        assert curve[way]["rms"][-1] < 1e-2 and np.all(curve[way]["seconds"] > 0)
    assert curve["Separation"]["honest"][0] > 0.7
    assert results["shared"]["error"].max() < 1e-12 and results["shared"]["honest"].all()
    text = "\n".join(results["summary"])
    assert "SciPy, times the least of ours" in text and "beyond three standard errors: none" in text
    if affinity is not None:
        assert os.sched_getaffinity(0) == affinity
    check_picture(picture)


@pytest.mark.slow
def test_particles_and_gradients():
    ordering = CASE | {"name": "b", "family": "tridiagonal", "num_particles": (64,)}
    gradients = CASE | {"family": "wishart", "num_points": (16,)}
    results, picture = completed(
        parts=("curves", "gradients"), curves=(ordering,), gradients=(gradients,)
    )
    assert results["failed"] == ""
    ordering = results["curves"]["b"]
    assert ordering["truth"] == pytest.approx(-math.log(120))  # 1/(d + 1)!
    assert ordering["SequentialMonteCarlo"]["rms"][0] < 0.1
    assert np.all(ordering["Separation"]["honest"] > 0.4)
    assert results["gradients"]["finite"].all() and results["gradients"]["both_bytes"][0] > 0
    check_picture(picture)


def test_every_truth_has_another_route():
    chosen = settings()
    orthant = [
        ({"family": "identity"}, -4 * math.log(2)),
        ({"family": "equicorrelated", "correlation": 0.5}, -math.log(5)),
        ({"family": "tridiagonal"}, -math.log(120)),
    ]
    for changes, expected in orthant:
        case = type(chosen.curves[0]).model_validate(CASE | changes)
        truth, stderr = problems.truth_of(case, 4, 0.0, math.inf, chosen)
        assert truth == pytest.approx(expected, abs=1e-11) and stderr == 0
    # Quadrature by another hand: dimension, limits and log P of the autoregression of 0.7.
    for d, low, high, expected in [
        (20, -1.5, 1.0, -3.1265450764155913),
        (100, 2.0, math.inf, -97.1888980947243),
        (100, -math.inf, 0.0, -23.687549356440602),
    ]:
        found = problems.chain_log_probability(d, 0.7, low, high)
        assert found == pytest.approx(expected, abs=1e-11)
    case = type(chosen.curves[0]).model_validate(CASE | {"family": "tridiagonal"})
    with pytest.raises(ValueError, match="tridiagonal: the truth is known where low is 0"):
        problems.truth_of(case, 3, -1.0, 1.0, chosen)


def test_time_to_reach():
    seconds, errors = np.array([1.0, 2.0, 4.0, 8.0]), np.array([1e-1, 1e-2, 1e-3, 1e-4])
    between, mark = curves.time_to_reach(seconds, errors, 10**-2.5)
    assert between == pytest.approx(2**1.5) and mark == ""
    beyond, mark = curves.time_to_reach(seconds, errors, 1e-6)
    assert beyond == pytest.approx(32.0) and mark == "~"
    assert curves.time_to_reach(seconds, errors, 0.5) == (pytest.approx(1.0), "<")
    assert math.isnan(curves.time_to_reach(seconds, np.full(4, np.inf), 0.1)[0])
    assert math.isnan(curves.time_to_reach(seconds, np.full(4, 0.3), 0.1)[0])
