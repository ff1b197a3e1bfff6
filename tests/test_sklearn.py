"""The scikit-learn estimator: its contract, and the fit behind it."""

import re
import subprocess
import sys

import numpy as np
import pytest

import truncgauss as tg

INF = np.inf


def rows(n=400):
    drawn = np.random.default_rng(0).multivariate_normal([0.3, 0.0], [[1, 0.4], [0.4, 1]], size=n)
    return drawn[drawn[:, 0] > 0.0]


@pytest.fixture
def estimator():
    pytest.importorskip("sklearn")
    from truncgauss.sklearn import TruncatedGaussian

    return TruncatedGaussian


def test_without_scikit_learn_the_way_to_get_it_is_said():
    code = "import sys; sys.modules['sklearn'] = None; import truncgauss; truncgauss.sklearn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode and "pip install 'truncgauss[sklearn]'" in done.stderr


def test_it_is_the_fit_of_a_truncated_normal(estimator):
    x = rows()
    model, fit = estimator([0.0, -INF]).fit(x), tg.fit_truncated_normal(x, [0.0, -INF])
    assert model.converged_ and model.n_iter_ == fit.num_steps
    np.testing.assert_array_equal(model.location_, fit.loc)
    np.testing.assert_array_equal(model.covariance_, fit.covariance_matrix)
    assert np.sum(model.score_samples(x)) == pytest.approx(fit.log_likelihood, rel=1e-10)
    assert model.score(x) == pytest.approx(fit.log_likelihood / len(x), rel=1e-10)
    assert model.aic(x) == pytest.approx(10 - 2 * fit.log_likelihood, rel=1e-10)
    assert model.bic(x) == pytest.approx(5 * np.log(len(x)) - 2 * fit.log_likelihood, rel=1e-10)
    np.testing.assert_array_equal(model.score_samples([[-0.1, 0.0]]), [-INF])
    drawn = model.sample(3000, random_state=1)
    assert drawn.shape == (3000, 2) and drawn[:, 0].min() > 0.0
    np.testing.assert_array_equal(drawn, model.sample(3000, random_state=1))
    np.testing.assert_allclose(drawn.mean(0), x.mean(0), atol=4 / np.sqrt(len(x)))
    again = estimator(**model.get_params()).set_params(low=None)
    assert again.low is None and model.low == [0.0, -INF]


def test_weights_stand_for_repeated_rows(estimator):
    x = rows(60)[:, :1]
    weights = np.random.default_rng(1).integers(0, 3, len(x))
    model = estimator(0.0).fit(x, sample_weight=weights)
    repeated = estimator(0.0).fit(np.repeat(x, weights, axis=0))
    # The sums of squares of both agree to rounding alone.
    np.testing.assert_allclose(model.location_, repeated.location_, rtol=1e-14)


def test_limits_of_a_frame_go_by_name(estimator):
    frame = pytest.importorskip("pandas").DataFrame(rows(), columns=["x", "y"])
    model = estimator({"x": 0.0, "y": -INF}).fit(frame[["y", "x"]])
    assert list(model.feature_names_in_) == ["y", "x"]
    np.testing.assert_allclose(model.location_[::-1], estimator([0.0, -INF]).fit(rows()).location_)
    some = estimator({"x": 0.0}, {"y": 9.0}).fit(frame)
    fit = tg.fit_truncated_normal(frame, {"x": 0.0}, {"y": 9.0})
    np.testing.assert_allclose(some.location_, fit.loc, rtol=1e-12)
    np.testing.assert_array_equal(some.limits_, [[0.0, -INF], [INF, 9.0]])
    assert np.isfinite(some.score(frame)) and (some.sample(9) > [0.0, -INF]).all()
    with pytest.raises(ValueError, match="low: is labelled 'z', but the columns of the data are"):
        estimator({"z": 0.0}).fit(frame)


@pytest.mark.slow
def test_scikit_learn_accepts_it(estimator):
    from sklearn.utils.estimator_checks import check_estimator

    # That check has fewer rows than its 30 columns, whose covariance has no estimate; a test above
    # shows the same of enough rows.
    impossible = "27 observation.s. cannot determine a covariance in 30"
    name = "check_sample_weight_equivalence_on_dense_data"
    checks = check_estimator(
        estimator(), expected_failed_checks={name: "too few rows"}, on_skip=None, on_fail=None
    )
    failed = [check for check in checks if check["status"] not in ("passed", "skipped")]
    assert [check["check_name"] for check in failed] == [name] and len(checks) > 40
    assert re.search(impossible, str(failed[0]["exception"]))
