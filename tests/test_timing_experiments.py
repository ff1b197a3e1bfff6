"""The experiments that measure times, `latency` and `work_precision`, reduced: what they compare
and with what, their tables and pictures; no time is asserted."""

import math
import os
import sys
import types
from typing import get_args

import jax
import numpy as np
import pytest

from experiments.work_precision import curves, plot, problems, run
from tests.test_experiments import check_picture, completed, settings
from truncgauss import fitting


@pytest.mark.full
def test_costs_are_positive_and_a_second_process_reads_the_programs_of_a_fit():
    results, picture = completed(
        "latency", dimensions=(1, 2), tasks=("value",), fits=("truncated normal, 2-d",), num_calls=2
    )
    check_picture(picture)
    ours, theirs = results["costs"]["truncgauss, value"], results["costs"]["SciPy, value"]
    for cost in (ours, theirs):
        assert np.all(cost["warm"] > 0) and np.all(cost["first"] >= 0)
    assert np.all(ours["compilations"] > 0) and np.all(ours["later"] == 0)
    assert np.all(theirs["compilations"] == 0)
    assert np.all(ours["error"] < 1e-14) and np.all(theirs["error"] < 1e-6)  # d = 1 and 2
    assert "processor seconds" in results["summary"][0] and len(results["summary"]) == 8
    fit = results["fit_costs"]["truncgauss"]
    assert fit["read"][0] >= fit["compilations"][0] > 0 and fit["later"][0] == 0
    assert np.all(fit["kept"] > 0)


def test_settings_and_the_probe_agree_and_what_fails_is_told(tmp_path):
    from experiments.latency.fits import FITS
    from experiments.latency.run import measured
    from experiments.latency.settings import Fit

    assert set(FITS) == set(get_args(Fit)) == set(settings("latency").fits)
    with pytest.raises(RuntimeError, match="latency: nothing 2 1 failed: KeyError"):
        measured(["nothing"], 2, types.SimpleNamespace(num_calls=1), sys.executable, None)
    with pytest.raises(ValueError, match="baseline: no truncgauss/__init__.py in"):
        completed("latency", dimensions=(1,), tasks=("value",), num_calls=1, baseline=str(tmp_path))
    with pytest.raises(ValueError, match="interpreters: other: nowhere cannot be executed"):
        completed("latency", dimensions=(1,), tasks=("value",), interpreters={"other": "nowhere"})


# ---------------------------------------------------------------- work_precision

FEW = {"num_keys": 4, "num_calls": 1, "peer_points": (500, 2000), "truth_points": 256}
CASE = {"name": "a", "dimension": 4, "low": 0.0, "high": math.inf, "num_points": (16, 128)}
EXACT = {
    "families": ({"family": "identity"},),
    "dimensions": (2, 4),
    "limits": {"orthant": (0.0, math.inf), "box": (-1.0, 1.0)},
}


@pytest.mark.slow
def test_errors_and_times_of_ours_and_the_peers(tmp_path):
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    cases = (
        CASE | {"family": "equicorrelated", "correlation": 0.5, "num_points": (128,)},
        CASE | {"name": "b", "family": "tridiagonal", "num_particles": (64,)},
    )
    gradients = CASE | {"family": "wishart", "num_points": (16,)}
    changes = {"curves": cases, "shared": EXACT, "gradients": (gradients,)}
    chosen = settings("work_precision", parts=tuple(changes), **FEW, **changes)
    with fitting.resumable(tmp_path / "work.npz"):
        first = run.run(chosen)
    with fitting.resumable(tmp_path / "work.npz"):  # all of it is read, the times as well
        results = run.run(chosen)
    assert results["summary"][2:] == first["summary"][2:]  # but for the threads and load of now
    results = jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, results)
    assert results["failed"] == ""
    curve, ordering = results["curves"]["a"], results["curves"]["b"]
    assert curve["truth"] == pytest.approx(-math.log(5), abs=1e-12)  # 1/(d + 1)
    for way in ("Separation", "SciPy"):
        assert curve[way]["rms"][-1] < 1e-2 and np.all(curve[way]["seconds"] > 0)
    assert curve["Separation"]["honest"][0] > 0.7
    assert ordering["truth"] == pytest.approx(-math.log(120))  # 1/(d + 1)!
    assert ordering["SequentialMonteCarlo"]["rms"][0] < 0.1
    assert np.all(ordering["Separation"]["honest"] > 0.4)
    assert results["shared"]["error"].max() < 1e-12 and results["shared"]["honest"].all()
    assert results["gradients"]["finite"].all() and results["gradients"]["both_bytes"][0] > 0
    text = "\n".join(results["summary"])
    assert "SciPy, times the least of ours" in text and "beyond three standard errors: none" in text
    if affinity is not None:
        assert os.sched_getaffinity(0) == affinity
    check_picture(plot.plot(results))


@pytest.mark.full
def test_every_truth_has_another_route():
    chosen = settings("work_precision", **FEW)
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
