"""One name for one thing in every function, and earlier names for one version."""

import numpy as np
import pytest

import truncgauss as tg

OF_ERRORS = "standard_error is standard_errors now: write standard_errors"


@pytest.fixture(scope="module")
def fit():
    return tg.fit_observations(tg.Observations.exact([1.0, 2.0, 3.0, 4.0]))


def test_standard_errors_of_what_follows_from_a_fit_have_one_name(fit):
    for given in (fit.derived("loc"), fit.predict()):
        with pytest.warns(DeprecationWarning, match=f"{type(given).__name__}.{OF_ERRORS}"):
            assert given.standard_error is given.standard_errors
    pairs = tg.polychoric([[20, 5], [6, 30]])
    with pytest.warns(DeprecationWarning, match=r"write standard_errors\[0\]"):
        assert pairs.standard_error == pairs.standard_errors[0]
    with pytest.warns(DeprecationWarning, match=f"MarginalTwoStep.{OF_ERRORS}"):
        assert pairs.two_step.standard_error == pairs.two_step.standard_errors
    rows = [1.0, 2.0, 1.5, 4.0], np.ones((4, 1)), [0, 0, 1, 1]
    effects = tg.fit_clusters(*rows, progress=False).effects()
    with pytest.warns(DeprecationWarning, match=f"Effects.{OF_ERRORS}"):
        assert effects.standard_error is effects.standard_errors


def test_the_regions_of_fit_shift_are_its_region():
    settings = dict(num_trials=1000, num_starts=1)
    box = tg.Box([0.0], [np.inf])
    with pytest.warns(DeprecationWarning, match="fit_shift: regions= is region= now") as told:
        earlier = tg.fit_shift([841], [0.0], [[1.0]], regions=box, **settings)
    assert told[0].filename == __file__
    assert earlier.params == tg.fit_shift([841], [0.0], [[1.0]], region=box, **settings).params


def test_a_start_has_the_shapes_of_what_parameters_print(fit):
    start = dict(fit.parameters())
    assert [*start] == ["loc", "covariance"] and repr(fit.parameters()) == repr(start)
    np.testing.assert_array_equal(start["covariance"], fit.covariance_matrix)
    with pytest.raises(ValueError, match=r"start must have loc and covariance of 1 numbers"):
        tg.fit_observations(
            tg.Observations.exact([1.0, 2.0, 4.0]), start={**start, "loc": [0.0, 1.0]}
        )


def test_a_start_without_names_works_with_a_warning_that_says_them(fit):
    rows, pair = tg.Observations.exact([1.0, 2.0, 3.0, 4.0]), (fit.loc, fit.covariance_matrix)
    with pytest.warns(DeprecationWarning, match=r"write start=\{'loc': \[2.5\d*\], 'cov"):
        again = tg.fit_observations(rows, start=pair)
    np.testing.assert_allclose(again.estimates, fit.estimates)
    limits = {"low": [-np.inf], "high": [1.0]}
    of_limits = lambda start: tg.fit_limits([400], [0.0], [[1.0]], start, 1000)
    with pytest.warns(DeprecationWarning, match=r"write start=\{'low': \[-jnp.inf\], 'h"):
        assert of_limits(tg.Box(**limits)).params.high == of_limits(limits).params.high
