"""The experiment on large dense covariances, reduced to dozens of variables."""

import numpy as np
import pytest

from tests.test_experiments import check_picture, completed
from truncgauss.probability import dense_blocks
from truncgauss.separation import block_factor


@pytest.mark.slow
def test_values_and_slopes_are_those_of_the_closed_form(monkeypatch):
    monkeypatch.setattr(block_factor, "LARGEST_BLOCK", 32)
    monkeypatch.setattr(dense_blocks, "LEAST_DIMENSION", 40)
    results, picture = completed(
        "large_dense", dimensions=(40, 70), largest_gradient=70, least_of_exponent=40, num_points=64
    )
    check_picture(picture)
    assert not results["failed"]
    assert np.all(np.abs(results["gradient"]["slope_error"]) < 0.1)
    assert np.all(results["gradient"]["memory"] > results["value"]["memory"])
    assert any("GB" in line for line in results["summary"])
