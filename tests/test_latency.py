"""The latency experiment, reduced to one task in one dimension."""

import importlib.util
import json
import pathlib
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from tests.test_experiments import check_picture, completed, settings

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def results_and_picture():
    return completed(
        "latency", dimensions=(1, 2), tasks=("value",), fits=("truncated normal, 2-d",), num_calls=2
    )


@pytest.mark.full
def test_costs_are_positive_and_nothing_compiles_later(results_and_picture):
    results, picture = results_and_picture
    check_picture(picture)
    ours, theirs = results["costs"]["truncgauss, value"], results["costs"]["SciPy, value"]
    for cost in (ours, theirs):
        assert np.all(cost["warm"] > 0) and np.all(cost["first"] >= 0)
    assert np.all(ours["compilations"] > 0) and np.all(ours["later"] == 0)
    assert np.all(theirs["compilations"] == 0)
    assert np.all(ours["error"] < 1e-14) and np.all(theirs["error"] < 1e-6)  # d = 1 and 2
    assert "processor seconds" in results["summary"][0] and len(results["summary"]) == 8


def test_a_second_process_reads_the_programs_of_a_fit(results_and_picture):
    fit = results_and_picture[0]["fit_costs"]["truncgauss"]
    assert fit["read"][0] >= fit["compilations"][0] > 0 and fit["later"][0] == 0
    assert np.all(fit["kept"] > 0)


def test_every_fit_of_the_config_is_one_that_the_probe_knows():
    from experiments.latency.fits import FITS
    from experiments.latency.settings import Fit

    assert set(FITS) == set(get_args(Fit)) == set(settings("latency").fits)


def test_a_task_that_fails_is_told():
    from experiments.latency.run import measured

    class Calls:
        num_calls = 1

    with pytest.raises(RuntimeError, match="latency: nothing 2 1 failed: KeyError"):
        measured(["nothing"], 2, Calls, sys.executable, None)


def test_a_baseline_without_the_package_is_refused(tmp_path):
    with pytest.raises(ValueError, match="baseline: no truncgauss/__init__.py in"):
        completed("latency", dimensions=(1,), tasks=("value",), num_calls=1, baseline=str(tmp_path))
    with pytest.raises(ValueError, match="interpreters: other: nowhere cannot be executed"):
        completed("latency", dimensions=(1,), tasks=("value",), interpreters={"other": "nowhere"})


@pytest.mark.full
def test_the_problem_is_the_same_for_everyone(monkeypatch):
    """SciPy's answer to it agrees with ours, called as the probe calls it."""
    monkeypatch.syspath_prepend(ROOT / "experiments" / "latency")
    spec = importlib.util.spec_from_file_location(
        "probe", ROOT / "experiments" / "latency" / "probe.py"
    )
    probe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(probe)
    loc, covariance, low, high = probe.problem(2)
    call, _ = probe.ours("value", 2)
    truth = multivariate_normal.cdf(high, loc, covariance, lower_limit=low)
    np.testing.assert_allclose(np.exp(call().block_until_ready()), truth, rtol=1e-7)
    shown = subprocess.run(
        [sys.executable, spec.origin, "scipy", "value", "2", "1"], capture_output=True, text=True
    )
    assert json.loads(shown.stdout)["compilations"] == 0
