"""The scaling experiment, reduced to a few rows on one and two devices and processes."""

import numpy as np
import pytest

from tests.test_experiments import check_picture, completed, settings

ROWS = {"num_rows": 32, "dimension": 3, "num_points": 64}
POINTS = {"dimension": 4, "num_points": 64, "num_replicates": 4}
FILE = {"num_rows": 97, "dimension": 4, "num_points": 16}
LARGER = {
    "num_rows": 10**9, "num_devices": 64, "num_gradients": 50, "latency": 1e-4, "gigabytes": 8,
}  # fmt: skip


@pytest.mark.slow
def test_more_devices_and_processes_give_the_same_numbers():
    results, picture = completed(
        "device_scaling", num_devices=(1, 2), num_processes=(2,), rows=ROWS, points=POINTS,
        file=FILE, larger=LARGER, num_calls=2, num_repeats=1,
    )  # fmt: skip
    check_picture(picture)
    assert not results["failed"] and results["largest_difference"] < 1e-12
    for name, curve in results["scaling"].items():
        np.testing.assert_array_equal(curve["held"], [1, 2], err_msg=name)
        assert curve["efficiency"][0] == curve["work_efficiency"][0] == 1.0
        assert np.all(curve["wall"] > 0) and np.all(curve["memory"] > 0)
    assert set(results["bounds"]) == {"rows, strong", "points, strong", "file, strong"}
    assert all(0 < bound["wall"] < np.inf for bound in results["bounds"].values())
    assert sum("independent processes at once" in line for line in results["summary"]) == 3
    larger = results["larger"]
    assert larger["row_bytes"] == 64 and larger["bytes_of_device"] == 10**9
    # Sums of a number, a mean and a covariance: what is exchanged has nothing of the rows.
    assert larger["collectives"] > 0 and 8 * 21 <= larger["exchanged"] < 8 * 48
    unit = results["scaling"]["file, strong"]["work"][0] / 97
    np.testing.assert_allclose(larger["gradient"], unit * 10**9 / 64)
    assert any("50 such gradients" in line for line in results["summary"])


def test_sizes_must_divide():
    with pytest.raises(ValueError, match="divided by 2 devices"):
        settings("device_scaling", num_devices=(1, 2), rows=ROWS | {"num_rows": 33})
    with pytest.raises(ValueError, match="begin with 1"):
        settings("device_scaling", num_devices=(2, 4))
