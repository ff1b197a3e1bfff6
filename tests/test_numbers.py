"""Every recorded call gives the numbers, notes and messages that were recorded.

A result that is meant to change is recorded anew by its name, which says what moved by how much:
`python -m tests.recorded_calls --record "fit_shift: counts"`; without names, all are.
"""

import pytest

from tests import recorded_calls, recording

RECORDED = recording.recorded()
KINDS = list(dict.fromkeys(name.partition(":")[0] for name in RECORDED))


@pytest.mark.quick("argument", "covariance", "region", "method", "observations", "refused", "table")
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_the_recorded_ones(kind):
    lines = []
    for name in RECORDED:
        if name.partition(":")[0] == kind:
            found, tolerance = recording.result(name), recorded_calls.CALLS[name].tolerance
            lines += [name + x for x in recording.differences(RECORDED[name], found, tolerance)]
    assert not lines, "\n".join(lines)


def test_every_recorded_result_has_its_call():
    assert set(RECORDED) == set(recorded_calls.CALLS)


@pytest.mark.full
def test_changes_are_seen():
    of = lambda one, two: recording.differences(one, two, 1e-10)
    assert not of({"a": [1.0, 1e-12]}, {"a": [1.0, 2e-12]})
    assert of({"a": [1.0, 1e-9]}, {"a": [1.0, 2e-9]}) and of({"a": 1.0}, {"a": "nan"})
    assert of({"a": ["inf", 1.0]}, {"a": [1.0, 1.0]}) and of({"a": "b"}, {"a": "c"})
    assert of({"a": 1.0}, {}) and of({}, {"a": 1.0}) and of({"a": [1.0]}, {"a": [1.0, 1.0]})
    assert of({"raises": "ValueError", "message": "x"}, {"value": 1.0}) and of([], ["a note"])
    assert of({"converged": True}, {"converged": False}) and of({"a": "nan"}, {"a": 0.0})
    assert not of({"a": "after 6 steps"}, {"a": "after 5 steps"})
    assert of({"a": "after 6 steps"}, {"a": "after 4 steps"})
    assert not of({"a": ["inf", 1.0]}, {"a": ["inf", 1.0]})
    assert not of({"stderr": 1.0}, {"stderr": 1.0 + 5e-8}) and of({"a": 1.0}, {"a": 1.0 + 5e-8})
