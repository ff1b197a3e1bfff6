"""The referee finds what is wrong, makes it small, and finds nothing in a slice of its cases."""

import contextlib
import io

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.referee import LAWS, frame, oracles, referee


def test_a_wrong_answer_is_made_small_and_printed_as_a_script_that_shows_it(monkeypatch):
    pairs = st.tuples(st.integers(0, 50), st.integers(0, 50))
    case = lambda p: frame.Case(
        "sum", f"a, b = {p}", "a + b if a < 7 else a", lambda names: (sum(p), 0.0)
    )
    monkeypatch.setitem(LAWS, "sums", pairs.map(case))
    shown = []
    failures = referee(9.0, 1, ["sums"], 100, lambda line: shown.append(str(line)), turns=2)
    assert "a, b = (7, 1)" in failures[0].case.script
    assert len(failures) == 1 and len(shown) == 2  # of one kind once, and what was done
    assert "printed 7.0; the oracle: 8.0" in shown[0] and "broken as before" in shown[1]
    assert len(shown[0].splitlines()) <= 12
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(shown[0], {})
    assert printed.getvalue() == "7\n"


def test_what_must_be_refused_and_what_breaks_are_failures(monkeypatch):
    oracle = lambda names: (1.0, 0.0)
    refusal = "raise ValueError('this sentence says what to do')"
    assert frame.outcome(frame.Case("", refusal, "1", oracle, must_refuse=True)) == "refused"
    for setup, ours, more in (
        (refusal, "1", {}),
        ("", "1", {"must_refuse": True}),
        ("raise IndexError('list index out of range')", "1", {"refused": True}),
        ("", "jnp.nan", {}),
        ("", "1 + 1e-6", {}),
    ):
        with pytest.raises(frame.Broken):
            frame.outcome(frame.Case("", setup, ours, oracle, **more))
    assert frame.outcome(frame.Case("", "", "1 + 1e-8", oracle)) == "equal"


@pytest.mark.parametrize("ends", frame.SILENT)
def test_a_law_whose_cases_nearly_all_say_nothing_is_broken(ends, monkeypatch):
    setup = "import types; fit = types.SimpleNamespace(converged={} > 90)"
    if ends == "refused":
        setup = "if {} <= 90: raise ValueError('this sentence says what to do')"
    case = lambda k: frame.Case("", setup.format(k), "1", lambda names: (1.0, 0.0), refused=True)
    monkeypatch.setitem(LAWS, "stuck", st.integers(0, 100).map(case))
    failures = referee(9.0, 1, ["stuck"], 40, lambda line: None, turns=2)
    assert [failure.case.kind for failure in failures] == [frame.SILENT[ends]]


def test_oracles_agree_with_scipy():
    from scipy import stats

    covariance = np.array([[1.0, 0.3, -0.2], [0.3, 2.0, 0.7], [-0.2, 0.7, 1.5]])
    high = np.array([0.3, 1.0, -0.5])
    for d in (1, 2, 3):
        s = covariance[:d, :d]
        got = oracles.log_box(np.zeros(d), oracles.factor_of(s), np.full(d, -np.inf), high[:d])
        truth = stats.multivariate_normal(np.zeros(d), s, abseps=1e-9).cdf(high[:d])
        np.testing.assert_allclose(np.exp(got[0]), truth, rtol=1e-6)
    value, error = oracles.slope(np.sin, 2)
    assert abs(value) < 1e-9 and error < 1e-9
    second, _ = oracles.hessian(lambda x: (1 + x[0]) ** 2 * (0.5 + x[1]) + np.exp(0.5 + x[1]), 2)
    np.testing.assert_allclose(second, [[1.0, 2.0], [2.0, np.exp(0.5)]], atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("name", LAWS)
def test_a_slice_of_the_cases(name):
    tally, failure = frame.search(name, 1, 3, np.inf, set())
    assert failure is None, str(failure)
    assert tally.total() == 3
