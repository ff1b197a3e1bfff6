"""One count of the rows that tell something, wherever it is asked whether there are enough."""

import numpy as np
import pytest

import truncgauss as tg
from truncgauss import plotting

NAN, QUIET = np.nan, {"progress": False}
EMPTY = {"nan_is_missing": True}


TOO_FEW = {
    "in a truncated sample": lambda: tg.fit_truncated_normal([0.1, 0.5], low=0.0, **QUIET),
    "of a weight": lambda: tg.fit_truncated_normal([0.1, 0.5, 0.7], weights=[1, 1, 0], **QUIET),
    "in a regression": lambda: tg.fit_regression(
        [0.1, 0.5, 0.7], np.ones((3, 1)), weights=[1, 1, 0], censored_low=0.0, **QUIET
    ),
}  # fmt: skip


@pytest.mark.parametrize("fit", TOO_FEW.values(), ids=TOO_FEW.keys())
def test_two_rows_do_not_determine_two_parameters(fit):
    with pytest.raises(ValueError, match=r"2 observation\(s\) cannot determine 2 parameters"):
        fit()


def test_rows_are_counted_by_what_they_tell():
    rows = tg.Observations.exact([[1.0, NAN], [NAN, NAN], [2.0, 3.0], [0.0, 1.0]], **EMPTY)
    assert rows.num_known == 3 and rows.num_rows == 4
    weighted = tg.Observations.exact([1.0, NAN, 2.0], weights=np.array([0.0, 1.0, 9.0]), **EMPTY)
    assert weighted.num_known == 1


def test_three_residuals_of_one_outcome_are_no_three_outcomes():
    draws = np.random.default_rng(0).normal(size=(20, 3, 1))
    assert plotting.worm(draws) is not None
    with pytest.raises(ValueError, match="as of 3 outcomes"):
        plotting.worm(draws[..., 0])
