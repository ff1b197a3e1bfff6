"""The script that compares a GPU with the CPU, on the only device that is sure to be here."""

import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[1] / ".ci" / "bench_gpu.py"


def benchmark(*words):
    return subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True)


def test_a_missing_device_is_told():
    done = benchmark("--device", "nowhere")
    assert done.returncode == 2 and "truncgauss[cuda12]" in done.stderr


@pytest.mark.slow
def test_the_cpu_agrees_with_itself():
    done = benchmark("--device", "cpu", "--dimensions", "1")
    rows = [line.split() for line in done.stdout.splitlines()[2:10]]
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row[:4] for row in rows] == [
        [task, dtype, d, points]
        for dtype in ("float64", "float32")
        for d, points in (("5", "32"), ("1", "exact"))
        for task in ("value", "gradient")
    ]
    assert all(float(row[5]) > 0 and float(row[-1]) < 1e-5 for row in rows)
