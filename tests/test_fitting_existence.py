"""Whether a maximum exists: called right on simulated samples, against criteria of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from truncgauss import fitting
from truncgauss.arrays.pytrees import frozen_pytree
from truncgauss.covariates.whitening import whitened
from truncgauss.fits.gaussian.gaussian_starts import as_designs
from truncgauss.fits.gaussian.observations_fit import GaussianRows
from truncgauss.fits.gaussian.rising import direction_of, endless
from truncgauss.fitting.descent import Descent
from truncgauss.fitting.existence import (
    UNDETERMINED,
    absurd,
    recession,
    refused,
    rising_direction,
    sums_beyond_rounding,
)
from truncgauss.tables import Table

INF = np.inf


def probit_limits(ones):
    return np.where(ones, 0.0, -INF), np.where(ones, INF, 0.0)


def test_rows_met_exactly_leave_no_variance():
    x = np.arange(5.0)
    design = np.column_stack([np.ones(5), x])
    lower, upper = np.array([-INF, 1.0, 2.0, 2.5, 4.0]), np.array([0.5, 1.0, 2.0, INF, 4.5])
    direction = rising_direction(lower, upper, design, scale_known=False)
    np.testing.assert_allclose(direction / direction[2], [0.0, 1.0, 1.0], atol=1e-9)
    assert rising_direction(lower, upper, design, scale_known=True) is None
    upper[4], lower[4] = 3.5, 3.0  # no line meets this too
    assert rising_direction(lower, upper, design, scale_known=False) is None


def test_many_rows_are_decided_by_few():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(20000, 4))
    rows[:, 0] = np.abs(rows[:, 0])  # the first coordinate lowers none of them
    direction = recession(rows, flat=False)
    assert np.all(rows @ direction > -1e-6) and direction[0] > 0
    rows[777, 0] = -rows[777, 0]
    other = recession(rows, flat=False)
    assert other is None or np.all(rows @ other > -1e-6)
    assert recession(rng.normal(size=(20000, 4)), flat=False) is None


def test_fits_say_along_which_direction_there_is_no_end():
    x = np.linspace(-1.0, 1.0, 40)
    design = {"constant": np.ones(40), "dose": x}
    fit = tg.fit_regression(np.column_stack(probit_limits(x > 0.2)), design)
    assert (
        not fit.converged and "observations are separated" in fit.reason and "in dose" in fit.reason
    )
    assert np.all(np.isinf(fit.errors)) and not fit.wald_coverages.size
    # A separated Tobit: all that is above the limit lies on a line.
    y = np.where(x > 0.2, x - 0.2, 0.0)
    fit = tg.fit_regression(y, design, censored_low=0.0)
    assert not fit.converged and "variance falls to 0" in fit.reason
    assert "constant = -0.2, dose = 1 meets" in fit.reason


@pytest.mark.full
def test_a_separated_outcome_among_several_is_named():
    rng, x = np.random.default_rng(3), np.linspace(-1.0, 1.0, 60)
    ones = np.column_stack([x > 0.0, rng.random(60) < 0.5])
    rows = tg.Observations(*probit_limits(ones))
    fit = tg.fit_observations(
        rows, np.column_stack([np.ones(60), x]), covariance=[[1.0, np.nan], [np.nan, 1.0]]
    )
    assert not fit.converged and "separated" in fit.reason and "coefficients[0][1]" in fit.reason


def test_outcomes_that_depend_on_each_other_have_no_covariance():
    x = np.random.default_rng(4).normal(size=(50, 1))
    fit = tg.fit_observations(tg.Observations.exact(np.hstack([x, 2.0 * x])))
    assert not fit.converged and "singular" in fit.reason and "This happens along" in fit.reason


def test_noise_that_explains_all_leaves_no_variance():
    y = 0.5 * np.random.default_rng(5).normal(size=50)
    for fit in (
        tg.fit_observations(tg.Observations.exact(y, noise=np.ones((50, 1)))),
        tg.fit_regression(y, np.ones((50, 1)), noise=1.0),
    ):
        assert not fit.converged and "at variance 0" in fit.reason
    fit = tg.fit_regression(y, np.ones((50, 1)), noise=0.1)
    assert fit.converged
    np.testing.assert_allclose(fit.scale**2, y.var() - 0.1, rtol=1e-8)


@pytest.mark.parametrize("value", [3e6, 2.5])
def test_equal_rows_leave_no_variance(value):
    for fit in (
        tg.fit_observations(tg.Observations.exact(np.full(10, value))),
        tg.fit_regression(np.full(10, value), np.ones((10, 1))),
    ):
        assert not fit.converged and f"= {value:.6g} meets every observation exactly" in fit.reason
        assert not any("no other maximum" in note for note in fit.notes)


@pytest.mark.quick("2.0-5.0")
@pytest.mark.parametrize("value, high", [(0.3, 1.0), (2.0, 5.0)])
def test_a_constant_column_in_a_box_leaves_no_variance(value, high):
    y = np.random.default_rng(0).normal(size=60)
    y = y[y > -0.5]
    rows = np.column_stack([y, np.full(len(y), value)])
    region = tg.Box([-0.5, 0.0], [INF, high])
    fit = tg.fit_observations(tg.Observations.exact(rows, region=region), num_starts=1)
    assert not fit.converged and f"loc[1] = {value:g} meets every observation exactly" in fit.reason
    assert np.all(np.isinf(fit.errors))


def test_limits_that_all_rows_share_are_not_called_exact():
    lower, upper = -1.0 - np.arange(6.0), 1.0 + np.arange(6.0)
    fit = tg.fit_observations(tg.Observations(lower, upper))
    assert "no maximum" in fit.reason and "exactly. Use more observations" in fit.reason
    assert (
        "lies within the bounds of every observation, of which none is known exactly" in fit.reason
    )
    lower[2] = upper[2] = 0.5
    fit = tg.fit_observations(tg.Observations(lower, upper))
    assert (
        "loc[0] = 0.5 meets every exact observation and lies within the bounds of all" in fit.reason
    )


def test_rows_far_from_zero_are_not_met_exactly():
    y = 1e9 + np.random.default_rng(0).normal(size=30)
    assert rising_direction(y, y, np.ones((30, 1)), scale_known=False) is None
    assert rising_direction(np.full(30, 1e9), np.full(30, 1e9), np.ones((30, 1)), False) is not None


def test_limits_without_an_exact_row_do_not_speak_of_the_scale():
    lower, upper = np.r_[np.zeros(5), np.full(5, -INF)], np.r_[np.full(5, INF), np.zeros(5)]
    assert rising_direction(lower, upper, np.ones((10, 1)), scale_known=False) is None


@pytest.mark.quick("-0.5")
@pytest.mark.parametrize("low", [None, -1e3, -0.5])
def test_regions_do_not_hide_that_there_is_no_maximum(low):
    y = np.array([0.0, 0, 0, 0, 1, 2, 3])
    design = np.column_stack([np.ones(7), [-4, -3, -2, -1, 1, 2, 3]])
    fit = tg.fit_regression(y, design, censored_low=0.0, truncated_low=low)
    assert not fit.converged and "variance falls to 0" in fit.reason
    # Exact rows at which the likelihood can be followed up: sigma falls on the line that meets all.
    loss, place = fit.loss, fit.coordinates
    total, line = jax.jit(lambda x: loss.total(x).log_prob), np.array([0.0, 1.0])
    variances = [np.array([[np.exp(2.0 * s)]]) for s in (-2.0, -4.0, -6.0)]
    totals = [float(total(place.free(line, variance))) for variance in variances]
    assert totals[0] + 5 < totals[1] and totals[1] + 5 < totals[2]


def test_rows_separated_inside_a_region_have_no_maximum():
    rng = np.random.default_rng(5)
    x = rng.normal(size=60)
    y, apart = 0.5 + x + rng.normal(size=60), x > 0.5
    design = np.column_stack([np.ones(60), apart])
    fit = tg.fit_regression(np.where(apart, -1, y), design, censored_low=-0.9, truncated_low=-100.0)
    assert not fit.converged and "separated" in fit.reason and "-1 in coefficients[1]" in fit.reason


def test_coefficients_without_information_are_absurd():
    design = np.column_stack([np.ones(50), np.linspace(0.0, 1.0, 50)])
    usual = np.sqrt(np.diagonal(np.linalg.inv(design.T @ design / 50)))
    transform = whitened(Table(design), None, "columns").transform
    assert not absurd(9e3 * usual, 1.0, transform).any()
    assert list(absurd(usual * [9e3, 2e4], 1.0, transform)) == [False, True]
    assert absurd(np.array([1.0, INF]), 1.0, transform)[1]
    with pytest.raises(ValueError, match="more of them .* than observations that count"):
        whitened(Table(design), np.r_[1.0, np.zeros(49)], "columns")
    fit = tg.fit_regression(np.arange(50.0) % 7, {"a": design[:, 0], "b": design[:, 1]})
    assert refused(fit, np.zeros(3, bool), UNDETERMINED) is fit
    lost = refused(fit, np.array([False, True, False]), UNDETERMINED)
    assert fit.converged and not lost.converged and "next to nothing of b," in lost.reason
    assert np.all(np.isinf(lost.errors))


def test_noise_that_differs_explains_rows_by_their_likelihood():
    rng = np.random.default_rng(6)
    noise = np.r_[np.full(30, 1e-14), np.full(30, 1.0)]
    y = np.r_[1e-5 * rng.normal(size=30), rng.normal(size=30)]
    for fit in (
        tg.fit_regression(y, np.ones((60, 1)), noise=noise),
        tg.fit_regression(y, np.ones((60, 1)), noise=noise, scale_design=np.ones((60, 1))),
        tg.fit_observations(tg.Observations.exact(y, noise=noise[:, None])),
    ):
        assert fit.converged and fit.log_likelihood > 200, fit.reason
        log = fit.names[1].startswith("log")
        variance = np.exp(2 * fit.estimates[1]) if log else fit.estimates[1] ** 2
        np.testing.assert_allclose(variance, np.mean((y[:30] - y[:30].mean()) ** 2), rtol=1e-3)


def test_what_is_said_of_a_gaussian_without_an_end_fits_its_rows():
    y = -np.log1p(-(np.linspace(0.01, 0.995, 20) ** 0.5))
    rows = tg.Observations.exact(y)
    assert "regions" not in endless(rows)
    assert "regions" in endless(tg.Observations.exact(y, region=tg.Box([0.0], [INF])))


SIDE = np.repeat([0.0, 1.0], 25)
BOX = tg.Box([-1.0, -INF], INF)


@pytest.mark.parametrize(
    "design, covariance, unique",
    [
        (None, "diagonal", True),
        (np.column_stack([np.ones(50), SIDE]), "full", True),
        ((np.ones((50, 1)), np.column_stack([np.ones(50), SIDE])), "diagonal", True),
        ((np.ones((50, 1)), np.column_stack([np.ones(50), SIDE])), "full", False),
        (None, np.array([[1.0, np.nan], [np.nan, np.nan]]), False),
        (None, np.array([[np.nan, 0.1], [0.1, np.nan]]), False),
    ],
)
def test_natural_parameters_that_are_free_leave_one_maximum(design, covariance, unique):
    y = np.random.default_rng(7).normal(size=(200, 2))
    y = y[y[:, 0] > -1.0][:50]
    rows = tg.Observations.exact(y, region=BOX)
    designs = as_designs(design, 50, 2, None)
    model = GaussianRows.of(rows, designs, covariance)
    assert model.unique == unique
    assert len(model.starts(None)) == (1 if unique else 5)


def test_outcomes_with_regions_of_their_own_are_decided_one_by_one():
    rng = np.random.default_rng(8)
    design = np.column_stack([np.ones(50), SIDE])
    y = rng.normal(size=(50, 2)) + 3.0
    lower, upper = y.copy(), y.copy()
    lower[:, 0], upper[:, 0] = probit_limits(SIDE > 0)  # separated by its covariate
    decided = lambda rows, alone: direction_of(rows, 0, design, True, alone)
    limits_the_other = tg.Observations(lower, upper, tg.Box([-INF, 0.0], INF))
    assert decided(limits_the_other, False) is not None
    limits_both = tg.Observations(lower, upper, tg.Box([-9.0, 0.0], INF))
    assert decided(limits_both, True) is not None and decided(limits_both, False) is None
    across = tg.Polyhedron([[1.0, 1.0]], [-20.0], [INF])
    assert decided(tg.Observations(lower, upper, across), True) is None


@frozen_pytree
class Falling(fitting.Loss):
    """A loss with a minimum of -2 at 0 that falls to -depth beyond 8."""

    depth: jax.Array
    size: jax.Array
    method = None

    def __call__(self, x):
        return -jnp.sum(2.0 * jnp.exp(-(x**2)) + self.depth * jax.nn.sigmoid(x - 8.0))


class Ending(fitting.Model):
    """A model with such a loss."""

    def __init__(self, depth):
        self.loss = Falling(jnp.asarray(depth), jnp.asarray(1.0))

    def loss_at(self, x):
        return self.loss


@pytest.mark.parametrize("depth", [1.0, 5.0])
def test_a_way_that_rises_above_every_maximum_is_told(depth):
    best = Descent(Ending(depth), 60, False).best([np.array([0.1]), np.array([9.0])])
    assert best.arrived == (depth < 2.0)
    assert ("likelihood rose to 3 nats above" in best.starts) == (depth > 2.0), best.starts


def inverse_covariance_in_the_disc(rows):
    """That of the most likely density exp(quadratic) on the unit disc, of a Gaussian or not, by
    quadrature in polar coordinates and Newton's method."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    radius, angle = (nodes + 1) / 2, np.arange(64) * (2 * np.pi / 64)
    points = np.stack([np.outer(radius, np.cos(angle)), np.outer(radius, np.sin(angle))], axis=-1)
    mass = np.repeat(radius * weights, 64)
    terms = lambda z: np.stack(
        [z[:, 0], z[:, 1], -(z[:, 0] ** 2) / 2, -z[:, 0] * z[:, 1], -(z[:, 1] ** 2) / 2]
    )
    features, goal, natural = terms(points.reshape(-1, 2)), terms(rows).mean(axis=1), np.zeros(5)
    for _ in range(30):
        density = mass * np.exp(natural @ features)
        mean = features @ density / density.sum()
        spread = (features * density) @ features.T / density.sum() - np.outer(mean, mean)
        natural = natural + np.linalg.solve(spread, goal - mean)
    assert np.allclose(mean, goal)
    return np.array([[natural[2], natural[3]], [natural[3], natural[4]]])


@pytest.mark.full
def test_rows_as_if_uniform_in_a_disc_are_told_from_gaussian_ones():
    rng, found = np.random.default_rng(3), []
    for scale in (0.5, 0.9, 5.0):
        rows = scale * rng.normal(size=(20000, 2)) * [1.0, 0.8]
        rows = rows[np.sum(rows**2, axis=1) < 1][:100]
        truth = inverse_covariance_in_the_disc(rows)
        fit = tg.fit_observations(tg.Observations.exact(rows, region=tg.Ball(np.zeros(2), 1.0)))
        exists = np.linalg.eigvalsh(truth)[0] > 0
        found.append(exists)
        assert fit.converged == exists
        if exists:
            np.testing.assert_allclose(np.linalg.inv(fit.covariance_matrix), truth, rtol=1e-6)
        else:
            assert (
                fit.reason.startswith("There is no maximum") and "This happens along" in fit.reason
            )
    assert 1 < sum(found) < 5


def test_curvature_learnt_from_gradients_leads_to_the_same_maximum(monkeypatch):
    rng = np.random.default_rng(4)
    values = 1.0 + rng.normal(size=200)
    rows = tg.Observations.exact(
        values[values > 0.3], region=tg.Box([0.3], [INF]), noise=jnp.array([[0.2]])
    )
    exact = tg.fit_observations(rows)
    always = property(lambda model: True, lambda model, value: None)
    monkeypatch.setattr(GaussianRows, "expensive", always, raising=False)
    learnt = tg.fit_observations(rows)
    assert learnt.converged and learnt.notes == exact.notes
    gap = learnt.estimates - exact.estimates
    assert np.all(np.abs(gap) <= 1e-4 * exact.errors)
    np.testing.assert_allclose(learnt.errors, exact.errors, rtol=1e-5)
    assert learnt.num_steps > exact.num_steps


def test_rounding_is_left_out_of_directions():
    parts = np.array([[1.0, -1.0 + 1e-16, 3e-17], [1e-9, 2e-9, 0.0], [2.0, -1.0, 1e-3]])
    found = sums_beyond_rounding(parts)
    assert found[0] == 0.0
    np.testing.assert_allclose(found[1:], [3e-9, 1.001], rtol=1e-12)


def test_outcomes_that_are_all_censored_are_shown_with_their_limits():
    """As by a limit in other units than those of a formula's outcome."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=30)
    e = np.exp(1 + 0.5 * x + 0.5 * rng.normal(size=30))
    table, ends = {"x": x, "e": e, "site": np.arange(30) % 6}, np.log([e.min(), e.max()])
    compared = "where a formula takes its logarithm, they are logarithms too."
    for limit, word in (({"censored_low": 6.0}, "most 6"), ({"censored_high": -6.0}, "least -6")):
        fit = tg.fit_regression("np.log(e) ~ x", data=table, progress=False, **limit)
        said = f"30 of 30 outcomes are censored, known to be at {word}, where np.log(e) is from "
        assert not fit.converged and said + "{:.6g} to {:.6g}".format(*ends) in fit.reason
        assert fit.reason.startswith("There is no maximum: ") and fit.reason.endswith(compared)
        with pytest.raises(ValueError, match=f"30 of 30 .* at {word}, where the outcome .* too"):
            tg.fit_clusters("np.log(e) ~ x", data=table, cluster="site", progress=False, **limit)
    with pytest.raises(ValueError, match="outside their bounds of .* they are logarithms too"):
        tg.fit_regression("np.log(e) ~ x", data=table, progress=False, truncated_low=6.0)
    rows = tg.Observations.from_table(table, ["e", "x"], censored_low={"e": 60.0}, log=["e"])
    fit = tg.fit_observations(rows, progress=False)
    said = "30 of 30 outcomes log(e) are censored, known to be at most 4.09434, on the scale that "
    assert said in fit.reason
    fit = tg.fit_regression("np.log(e) ~ x", data=table, censored_low=1.0, progress=False)
    assert fit.converged and "outcomes are censored" not in fit.reason
