"""`make test-for FILE`: the tests nearest to a file."""

import pathlib
import runpy
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SCRIPT = ROOT / ".ci" / "affected.py"
affected = runpy.run_path(str(SCRIPT))["affected"]


NEAREST = {
    "separation/kernel.py": "test_kernel",
    "special/safe.py": "test_safe",
    "quadrature/polygon.py": "test_exact_polygons",
    "optimize/loop.py": "test_fitting",
    "probability/separation.py": "test_separation",
}


@pytest.mark.full
def test_the_nearest_tests_come_first():
    for file, nearest in NEAREST.items():
        examples, first, *others = affected(ROOT / "truncgauss" / file)
        assert examples == ROOT / "truncgauss" / file and first.stem == nearest
        assert len(others) <= 3
    # Tests and experiments have no examples.
    assert affected(ROOT / "tests" / "test_house.py") == [ROOT / "tests" / "test_house.py"]
    assert affected(ROOT / "experiments/tobin/run.py")[0].stem == "test_fit_experiments"


def test_a_file_that_is_none_of_the_project_is_refused():
    done = subprocess.run(
        [sys.executable, SCRIPT, "nothing.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "got 'nothing.py'" in done.stderr
