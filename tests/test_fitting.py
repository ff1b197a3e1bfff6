"""Fits: the loop's honest end, free coordinates, error bars, and three kinds of truncated data."""

import csv
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions.constraints as numpyro_constraints
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

import truncgauss as tg
from truncgauss import fitting
from truncgauss.probability.method import Method
from truncgauss.problem import Estimate
from truncgauss.pytrees import frozen_pytree

ROOT = pathlib.Path(__file__).parents[1]
SHARED = pathlib.Path(os.environ.get("TRUNCGAUSS_DATA", ROOT.parent / "shared" / "data"))
INF = jnp.inf


def rosenbrock(x):
    return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


# The loop


@pytest.mark.parametrize("dtype, accuracy", [(jnp.float64, 1e-8), (jnp.float32, 2e-3)])
def test_lbfgs_finds_a_narrow_valley_in_both_precisions(dtype, accuracy):
    result = tg.fit(rosenbrock, jnp.full(4, -1.0, dtype), progress=False)
    assert result.converged and "Converged" in result.reason
    assert result.params.dtype == dtype
    np.testing.assert_allclose(result.params, 1.0, atol=accuracy)
    assert result.loss_trace.shape == result.gradient_norm_trace.shape == (result.num_steps + 1,)
    assert result.loss_trace[-1] == result.loss and result.loss < 1e-6 * result.loss_trace[0]


def test_equal_fits_compile_once_and_give_equal_numbers_with_and_without_a_bar(capsys):
    traces = []

    def loss(data, x):
        traces.append(1)
        return jnp.sum((x - data) ** 2) + jnp.sum(x**4)

    fits = [
        tg.fit(jax.tree_util.Partial(loss, jnp.asarray(data)), jnp.zeros(2), progress=progress)
        for data, progress in [([1.0, 2.0], True), ([1.0, 2.0], False), ([3.0, -1.0], False)]
    ]
    for first, second in zip(fits[0].loss_trace, fits[1].loss_trace, strict=True):
        assert first == second
    np.testing.assert_array_equal(fits[0].params, fits[1].params)
    assert not np.allclose(fits[1].params, fits[2].params)
    once = len(traces)
    tg.fit(jax.tree_util.Partial(loss, jnp.asarray([5.0, 6.0])), jnp.ones(2), progress=False)
    assert len(traces) <= once + 1  # the check of its shape, never the compiled loop
    assert "loss" not in capsys.readouterr().err  # silent off a terminal


def test_any_optimiser_and_any_tree():
    start = {"width": 1.0, "centre": [jnp.zeros(2), 3]}
    result = tg.fit(
        lambda p: (p["width"] - 2.0) ** 2 + sum(jnp.sum((x - 1.0) ** 2) for x in p["centre"]),
        start,
        optax.adam(0.1),
        2000,
        progress=False,
    )
    assert result.converged, result.reason
    assert jax.tree.structure(result.params) == jax.tree.structure(start)
    np.testing.assert_allclose(result.params["centre"][0], 1.0, atol=1e-6)
    np.testing.assert_allclose(result.params["width"], 2.0, atol=1e-6)


def test_a_fit_that_is_not_finished_says_so():
    short = tg.fit(rosenbrock, jnp.full(4, -1.0), num_steps=3, progress=False)
    assert not short.converged and "3 steps are used up" in short.reason
    assert short.num_steps == 3 and len(short.loss_trace) == 4
    flat = tg.fit(lambda x: jnp.sum(jnp.cos(x)), jnp.zeros(1), progress=False)
    assert not flat.converged and "exactly zero at the start" in flat.reason
    kink = tg.fit(lambda x: jnp.abs(x), 1.05, optax.sgd(0.1), 400, progress=False)
    assert not kink.converged and "Stalled" in kink.reason


def test_a_loss_that_turns_nan_stops_the_fit_and_names_the_culprit():
    result = tg.fit(
        lambda p: jnp.log(p["scale"]) + p["shift"] ** 2,
        {"scale": 1.0, "shift": 1.0},
        optax.sgd(0.3),
        progress=False,
    )
    assert not result.converged
    assert f"Stopped at step {result.num_steps}" in result.reason
    assert "scale = -" in result.reason and "shift" not in result.reason
    assert result.diagnosis.primitive == "log"
    assert np.isfinite(result.loss) and result.params["scale"] > 0  # the last good state
    assert np.isnan(result.loss_trace[-1]) and np.all(np.isfinite(result.loss_trace[:-1]))


def test_a_gradient_that_is_not_finite_at_the_start_is_reported_there():
    # The first user's filter, as written by hand: NaN slope once the limit is far away.
    def naive(p):
        return 1.0 / (1.0 + jnp.exp(-100.0 * (p["far"] - p["near"])))

    result = tg.fit(naive, {"near": 0.0, "far": -1000.0}, progress=False)
    assert not result.converged and result.num_steps == 0
    assert "the gradient is not finite at far = -1000. and near = 0." in result.reason
    assert result.params == {"near": 0.0, "far": -1000.0}


def test_random_objectives_settle_or_say_that_they_fall():
    def noisy(mean, key):
        return jnp.mean((mean - 1.0 - jax.random.normal(key, (64,))) ** 2)

    key = jax.random.key(3)
    result = tg.fit(noisy, 3.0, num_steps=400, key=key, progress=False)
    assert result.converged and "Settled" in result.reason
    assert abs(result.params - 1.0) < 0.1
    again = tg.fit(noisy, 3.0, num_steps=400, key=key, progress=False)
    np.testing.assert_array_equal(result.loss_trace, again.loss_trace)
    falling = tg.fit(noisy, 30.0, optax.sgd(1e-4), 400, key=key, progress=False)
    assert not falling.converged and "mean loss of the last quarter" in falling.reason


def test_senseless_calls_of_fit_are_told_what_to_do():
    quadratic = lambda x: jnp.sum(x**2)
    with pytest.raises(ValueError, match="one real number, got float64 of shape"):
        tg.fit(lambda x: x, jnp.zeros(2))
    with pytest.raises(ValueError, match="must be a function"):
        tg.fit(1.0, jnp.zeros(2))
    with pytest.raises(ValueError, match="real numbers"):
        tg.fit(quadratic, jnp.zeros(2, complex))
    with pytest.raises(ValueError, match="no parameters"):
        tg.fit(quadratic, {})
    with pytest.raises(ValueError, match="num_steps"):
        tg.fit(quadratic, 1.0, num_steps=-1)
    with pytest.raises(ValueError, match="every parameter is frozen"):
        tg.fit(quadratic, 1.0, constraints=fitting.Frozen())
    with pytest.raises(ValueError, match="'widht', which is no parameter; there are: width"):
        tg.fit(quadratic, {"width": 1.0}, constraints={"widht": fitting.Positive()})
    with pytest.raises(ValueError, match="width must be positive, got -1.0"):
        tg.fit(quadratic, {"width": -1.0}, constraints={"width": fitting.Positive()})


# Free coordinates


def test_constraints_hold_during_a_fit_and_infinite_ends_stay():
    wanted = {
        "box": tg.Box([-1.0, -INF, 0.5], [2.0, 1.0, INF]),
        "covariance": jnp.array([[2.0, 0.5], [0.5, 1.0]]),
        "factor": tg.ScaleTril([[1.0, 0.0], [-0.5, 2.0]]),
        "share": jnp.asarray(0.2),
        "fixed": jnp.asarray(4.0),
    }
    start = {
        "box": tg.Box([0.0, -INF, 0.0], [1.0, 0.0, INF]),
        "covariance": jnp.eye(2),
        "factor": tg.ScaleTril(jnp.eye(2)),
        "share": 0.7,
        "fixed": 4.0,
    }
    constraints = {
        "box": fitting.Limits(),
        "covariance": fitting.PositiveDefinite(),
        "factor/matrix": fitting.LowerTriangular(),
        "share": numpyro_constraints.unit_interval,
        "fixed": fitting.Frozen(),
    }

    def distance(p):
        gaps = jax.tree.map(
            lambda a, b: jnp.where(jnp.isfinite(b), a - jnp.where(jnp.isfinite(b), b, 0.0), 0.0),
            p,
            wanted,
        )
        return sum(jnp.sum(gap**2) for gap in jax.tree.leaves(gaps))

    result = tg.fit(distance, start, constraints=constraints, progress=False)
    assert result.converged, result.reason
    for found, expected in zip(
        jax.tree.leaves(result.params), jax.tree.leaves(wanted), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert isinstance(result.params["box"], tg.Box)


limit = st.floats(-1e3, 1e3)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(limit, st.floats(1e-3, 1e3), st.booleans(), st.booleans()), min_size=1,
                max_size=4))  # fmt: skip
def test_free_coordinates_lead_back_to_the_limits(sides):
    low = np.array([-np.inf if open_low else a for a, _, open_low, _ in sides])
    high = np.array([np.inf if open_high else a + w for a, w, _, open_high in sides])
    box = tg.Box(low, high)
    place = fitting.coordinates(box, fitting.Limits())
    back = place.params(place.free(box))
    np.testing.assert_allclose(back.low, low, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(back.high, high, rtol=1e-12, atol=1e-9)
    far = place.params(jax.tree.map(lambda x: 3.0 * x - 1.0, place.free(box)))
    assert np.all(np.asarray(far.low) < np.asarray(far.high))
    np.testing.assert_array_equal(np.isinf(far.low), np.isinf(low))


# Error bars


def test_error_bars_tell_what_is_not_identified_by_coordinate():
    # x0 alone; x1 + x2 together; x3 not at all.
    bars = fitting.error_bars([[2.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]])
    np.testing.assert_allclose(bars.standard_errors, [0.5, np.inf, np.inf, np.inf])
    assert (bars.rank, bars.num_free) == (2, 4)
    # Their sum, as a parameter, is known; no unit changes what is.
    units = np.diag([1e-9, 1e5, 1.0, 1.0])
    factor = np.array([[2.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]])
    scaled = fitting.error_bars(factor @ units, np.array([[0.0, 1.0, 1.0, 0.0]]) @ units)
    np.testing.assert_allclose(scaled.standard_errors, [1.0])


def test_certificate_measures_the_distance_in_standard_errors():
    hessian = np.array([[4.0, 1.0], [1.0, 9.0]]) * 100.0
    offset = np.array([0.01, -0.02])
    proof = fitting.certificate(hessian @ offset, hessian)
    np.testing.assert_allclose(proof.distance, np.sqrt(offset @ hessian @ offset))
    assert proof.positive_definite and proof.curvature > 0.5
    saddle = fitting.certificate([0.0, 0.0], np.diag([1.0, -1.0]))
    assert not saddle.positive_definite and "no strict optimum" in str(saddle)


def test_standard_errors_of_any_likelihood_pass_through_constraints():
    rows = jnp.asarray(np.random.default_rng(0).normal(2.0, 3.0, 400))

    def loss(p):
        return -jnp.sum(jax.scipy.stats.norm.logpdf(rows, p["loc"], p["scale"]) * p["weight"])

    scale = float(rows.std())
    params = {"loc": rows.mean(), "scale": scale, "weight": 1.0}
    constraints = {"scale": fitting.Positive(), "weight": fitting.Frozen()}
    errors = fitting.standard_errors(loss, params, constraints)
    np.testing.assert_allclose(errors["loc"], scale / 20.0, rtol=1e-9)
    np.testing.assert_allclose(errors["scale"], scale / np.sqrt(800.0), rtol=1e-9)
    assert errors["weight"] == 0.0


# Shifts


def test_a_shift_and_its_error_from_one_count_in_closed_form():
    result = tg.fit_shift([841], [0.0], [[1.0]], tg.Box([0.0], [INF]), 1000)
    shift = stats.norm.ppf(0.841)
    error = np.sqrt(0.841 * 0.159 / 1000) / stats.norm.pdf(shift)
    np.testing.assert_allclose(result.params, [shift], rtol=1e-9)
    np.testing.assert_allclose(result.standard_errors, [error], rtol=1e-9)
    assert result.converged and not result.alternatives and not result.notes
    # In other units, in float32, and from counts in two halves: the same answer.
    far = tg.fit_shift([841], [5e6], [[1e12]], tg.Box([5e6], [INF]), 1000)
    np.testing.assert_allclose(far.params / 1e6, result.params, rtol=1e-9)
    np.testing.assert_allclose(far.standard_errors / 1e6, result.standard_errors, rtol=1e-9)
    small = tg.fit_shift(841, jnp.zeros(1, jnp.float32), jnp.eye(1, dtype=jnp.float32),
                         tg.Box(jnp.zeros(1, jnp.float32), INF), 1000)  # fmt: skip
    assert small.params.dtype == small.standard_errors.dtype == jnp.float32
    np.testing.assert_allclose(small.params, result.params, rtol=1e-6)
    halves = tg.fit_shift([421, 420], [0.0], [[1.0]], tg.Box([[0.0], [0.0]], INF), 500)
    np.testing.assert_allclose(halves.params, result.params, rtol=1e-6)
    np.testing.assert_allclose(halves.standard_errors, result.standard_errors, rtol=1e-6)


def test_the_mirror_solution_of_an_interval_is_reported():
    result = tg.fit_shift([300], [1.0], [[4.0]], tg.Box([-1.0], [3.5]), 1000)
    (other,) = result.alternatives
    # Mirrored about the middle of the interval, 1.25.
    np.testing.assert_allclose(1.0 + result.params, 2.5 - (1.0 + other), atol=1e-7)
    assert abs(result.params[0]) < abs(other[0])
    assert "1 other solution" in result.notes[0]
    p = stats.norm.cdf(3.5, 1 + result.params[0], 2) - stats.norm.cdf(-1, 1 + result.params[0], 2)
    np.testing.assert_allclose(p, 0.3, rtol=1e-9)
    # A second region tells them apart.
    both = tg.fit_shift([300, 700], [1.0], [[4.0]], tg.Box([[-1.0], [2.0]], [[3.5], [INF]]), 1000)
    assert both.converged and not both.alternatives


@pytest.mark.slow
def test_what_one_fraction_cannot_tell_has_an_infinite_error():
    quadrant = tg.fit_shift([300], jnp.zeros(2), jnp.eye(2), tg.Box([0.0, 0.0], INF), 1000)
    assert np.all(np.isinf(quadrant.standard_errors))
    assert "do not identify shift[0], shift[1]" in quadrant.notes[0]
    assert quadrant.converged  # the fraction is met
    half = tg.fit_shift([300], jnp.zeros(2), jnp.eye(2), tg.Box([0.0, -INF], INF), 1000)
    assert np.isfinite(half.standard_errors[0]) and np.isinf(half.standard_errors[1])
    np.testing.assert_allclose(half.params[0], stats.norm.ppf(0.3), rtol=1e-8)
    top = tg.fit_shift([900], [0.0], [[1.0]], tg.Box([-1.0], [1.0]), 1000)  # above the highest
    assert np.isinf(top.standard_errors[0]) and abs(top.params[0]) < 1e-6
    assert "not explained" in " ".join(top.notes)


@pytest.mark.parametrize("observed, trials", [([1000], 1000), ([1.0], None), ([0], 50)])
def test_all_or_nothing_has_its_optimum_at_infinity(observed, trials):
    result = tg.fit_shift(observed, [0.0], [[1.0]], tg.Box([0.0], [INF]), trials)
    assert not result.converged and "at infinity" in result.reason
    assert np.isinf(result.standard_errors[0])


def test_an_empty_region_beside_a_telling_one_does_no_harm():
    result = tg.fit_shift([0, 500], [0.0], [[1.0]], tg.Box([[5.0], [0.0]], [[6.0], [INF]]), 1000)
    assert result.converged and np.isfinite(result.standard_errors[0])
    assert abs(result.params[0]) < 1e-4


def test_fractions_without_trials_take_their_errors_from_the_residuals():
    low = np.linspace(-1.5, 1.5, 12)[:, None]
    rng = np.random.default_rng(5)
    p = stats.norm.sf(low[:, 0] - 0.4)
    noise = 0.02
    draws = []
    for _ in range(40):
        f = np.clip(p + noise * np.sqrt(p * (1 - p)) * rng.normal(size=12), 0.0, 1.0)
        result = tg.fit_shift(f, [0.0], [[1.0]], tg.Box(low, INF))
        draws.append((float(result.params[0]), float(result.standard_errors[0])))
    shifts, errors = np.array(draws).T
    # The spread of the estimates, known to 1 / sqrt(80), is what the residuals said.
    assert 0.6 < shifts.std() / np.sqrt(np.mean(errors**2)) < 1.5
    one = tg.fit_shift([0.3], [0.0], [[1.0]], tg.Box([0.0], INF))
    assert np.isnan(one.standard_errors[0]) and "no residuals" in one.notes[0]


@pytest.mark.slow
def test_a_sampling_method_is_held_and_its_own_error_is_told():
    region = tg.Box([[0.0, 0.0], [-1.0, -INF], [-INF, 0.5]], [[INF, 1.0], [1.0, INF], [INF, INF]])
    covariance = jnp.array([[1.0, 0.6], [0.6, 2.0]])
    counts = [2800, 5500, 4100]
    soft = tg.SoftMonteCarlo(num_samples=512, num_replicates=4, points="lattice")
    ask = (counts, jnp.zeros(2), covariance, region, 10_000)
    rough = tg.fit_shift(*ask, method=soft, num_starts=2)
    again = tg.fit_shift(*ask, method=soft, num_starts=2)
    np.testing.assert_array_equal(rough.params, again.params)
    assert rough.certificate.distance < 1e-3
    assert any("sampling error" in note for note in rough.notes)


def test_senseless_observations_are_refused():
    box = tg.Box([0.0], [INF])
    with pytest.raises(ValueError, match="for counts, give num_trials.*first 30.0 at index 0"):
        tg.fit_shift([30], [0.0], [[1.0]], box)
    with pytest.raises(ValueError, match="1 of 1 are not, first 30.0"):
        tg.fit_shift([30], [0.0], [[1.0]], box, 20)
    with pytest.raises(ValueError, match="between 0 and the number of trials"):
        tg.fit_shift([jnp.nan], [0.0], [[1.0]], box, 20)
    with pytest.raises(ValueError, match="num_trials must be positive"):
        tg.fit_shift([0], [0.0], [[1.0]], box, 0)
    with pytest.raises(ValueError, match="observed has shape"):
        tg.fit_shift([0.1, 0.2], [0.0], [[1.0]], tg.Box([[0.0], [1.0], [2.0]], INF))
    with pytest.raises(ValueError, match="no finite end"):
        tg.fit_limits([0.1], [0.0], [[1.0]], tg.Box([-INF], [INF]))
    with pytest.raises(ValueError, match="one tg.Box"):
        tg.fit_limits([0.1], [0.0], [[1.0]], (0.0, 1.0))


# Limits


def test_limits_are_recovered_and_infinite_ends_stay():
    locs = jnp.linspace(-2.0, 3.0, 6)[:, None]
    p = stats.norm.cdf(1.5, locs[:, 0], 2.0) - stats.norm.cdf(-0.5, locs[:, 0], 2.0)
    result = tg.fit_limits(p * 1e6, locs, [[4.0]], tg.Box([-3.0], [3.0]), 1e6)
    assert result.converged
    np.testing.assert_allclose(
        [result.params.low[0], result.params.high[0]], [-0.5, 1.5], atol=1e-6
    )
    assert 0 < result.standard_errors.low[0] < 0.05
    one = tg.fit_limits([400], [0.0], [[1.0]], tg.Box([-INF], [1.0]), 1000)
    assert one.params.low[0] == -INF and one.standard_errors.low[0] == 0.0
    high = stats.norm.ppf(0.4)
    np.testing.assert_allclose(one.params.high, [high], rtol=1e-9)
    error = np.sqrt(0.4 * 0.6 / 1000) / stats.norm.pdf(high)
    np.testing.assert_allclose(one.standard_errors.high, [error], rtol=1e-9)


def test_one_fraction_does_not_tell_two_limits():
    result = tg.fit_limits([400], [0.0], [[1.0]], tg.Box([-1.0], [2.0]), 1000)
    assert np.isinf(result.standard_errors.low[0]) and np.isinf(result.standard_errors.high[0])
    assert "do not identify low[0], high[0]" in result.notes[0]
    p = stats.norm.cdf(result.params.high[0]) - stats.norm.cdf(result.params.low[0])
    np.testing.assert_allclose(p, 0.4, rtol=1e-8)
    full = tg.fit_limits([1000], [0.0], [[1.0]], tg.Box([-INF], [1.0]), 1000)
    assert not full.converged and "at infinity" in full.reason


# Gaussians behind truncated rows


def reference(x, low, high):
    """loc, variance and log-likelihood by another optimiser on SciPy's density."""

    def loss(p):
        scale = np.exp(p[1])
        a, b = (low - p[0]) / scale, (high - p[0]) / scale
        return -stats.truncnorm.logpdf(x, a, b, p[0], scale).sum()

    options = {"xatol": 1e-7, "fatol": 1e-12}
    start = [x.mean(), np.log(x.std())]
    best = optimize.minimize(loss, start, method="Nelder-Mead", options=options)
    return best.x[0], np.exp(2 * best.x[1]), -best.fun


@pytest.mark.parametrize("low, high", [(0.5, np.inf), (-1.0, 1.5), (-np.inf, 0.0)])
def test_one_dimension_agrees_with_another_optimiser(low, high):
    x = np.random.default_rng(1).normal(size=600)
    x = x[(x >= low) & (x <= high)]
    fit = tg.fit_truncated_normal(x, low, high)
    loc, variance, log_likelihood = reference(x, low, high)
    assert fit.converged, fit.reason
    np.testing.assert_allclose(fit.log_likelihood, log_likelihood, rtol=1e-11)
    np.testing.assert_allclose(
        [fit.loc[0], fit.covariance_matrix[0, 0]], [loc, variance], rtol=1e-5
    )
    assert fit.certificate.positive_definite and fit.certificate.distance < 1e-6


def test_standard_errors_are_the_curvature_in_loc_and_covariance():
    x = np.random.default_rng(1).normal(size=600)
    x = x[(x >= -1.0) & (x <= 1.5)]
    fit = tg.fit_truncated_normal(x, -1.0, 1.5)

    def loss(p):
        return -jnp.sum(tg.special.truncated_log_density(x, p[0], jnp.sqrt(p[1]), -1.0, 1.5))

    errors = fitting.standard_errors(loss, jnp.array([fit.loc[0], fit.covariance_matrix[0, 0]]))
    mine = [fit.standard_errors.loc[0], fit.standard_errors.covariance_matrix[0, 0]]
    np.testing.assert_allclose(mine, errors, rtol=1e-6)


def test_the_fit_does_not_depend_on_units_or_start():
    x = np.array([0.2, 0.9, 1.1, 0.4, 1.6, 0.3, 0.8, 1.2])
    fit = tg.fit_truncated_normal(x, low=0.0)
    for unit in (1e-6, 1e6):
        scaled = tg.fit_truncated_normal(x * unit, low=0.0)
        assert scaled.converged
        np.testing.assert_allclose(scaled.loc / unit, fit.loc, rtol=1e-9)
        np.testing.assert_allclose(scaled.covariance_matrix / unit**2, fit.covariance_matrix)
        np.testing.assert_allclose(scaled.standard_errors.loc / unit, fit.standard_errors.loc)
        change = len(x) * np.log(unit)
        np.testing.assert_allclose(scaled.log_likelihood + change, fit.log_likelihood, rtol=1e-9)
    for loc, variance in [(5.0, 100.0), (-30.0, 1.0), (0.5, 1e-3), (4.0, 1e9)]:
        other = tg.fit_truncated_normal(x, low=0.0, start=([loc], [[variance]]))
        assert other.converged
        np.testing.assert_allclose(other.loc, fit.loc, rtol=1e-9)
    assert other.notes  # the last start was of no use, and that is said
    single = tg.fit_truncated_normal(jnp.asarray(x, jnp.float32), low=0.0)
    assert single.loc.dtype == jnp.float32
    np.testing.assert_allclose(single.loc, fit.loc, rtol=1e-5)


def test_a_likelihood_without_maximum_is_said_to_have_none():
    # On a half-line there is a maximum if and only if the sample's standard deviation is below its
    # mean distance from the limit; at equality the likelihood ends at the exponential law.
    q = (np.arange(200) + 0.5) / 200
    lasting = tg.fit_truncated_normal(stats.gamma.ppf(q, 1.1), low=0.0)
    assert lasting.converged, lasting.reason
    for rows, high in [(stats.gamma.ppf(q, 0.9), None), (stats.beta.ppf(q, 0.6, 0.6), 1.0)]:
        fit = tg.fit_truncated_normal(rows, 0.0, high)
        assert not fit.converged and "There is no maximum" in fit.reason
        assert np.all(np.isinf(fit.standard_errors.loc))
        assert np.all(np.isinf(fit.standard_errors.covariance_matrix))


@pytest.mark.slow
def test_rows_without_limits_give_the_sample_moments():
    rows = np.random.default_rng(2).normal(size=(60, 2)) @ [[1.0, 0.4], [0.0, 2.0]] + [3.0, -1.0]
    fit = tg.fit_truncated_normal(rows)
    covariance = np.cov(rows.T, ddof=0)
    np.testing.assert_allclose(fit.loc, rows.mean(0), rtol=1e-9)
    np.testing.assert_allclose(fit.covariance_matrix, covariance, rtol=1e-9)
    variances = np.diagonal(covariance)
    np.testing.assert_allclose(fit.standard_errors.loc, np.sqrt(variances / 60), rtol=1e-6)
    wanted = np.sqrt((np.outer(variances, variances) + covariance**2) / 60)
    np.testing.assert_allclose(fit.standard_errors.covariance_matrix, wanted, rtol=1e-6)
    likelihood = stats.multivariate_normal(rows.mean(0), covariance).logpdf(rows).sum()
    np.testing.assert_allclose(fit.log_likelihood, likelihood, rtol=1e-10)
    assert fit.fraction_not_truncated == pytest.approx(1.0)


@pytest.mark.slow
def test_setosa_flowers_seen_below_two_limits():
    with open(ROOT / "experiments" / "data" / "iris.csv", newline="") as file:
        table = [row for row in csv.DictReader(file) if row["species"] == "setosa"]
    rows = np.array([[float(row["sepal_length"]), float(row["sepal_width"])] for row in table])
    high = np.array([5.45, 3.85])
    seen = rows[(rows < high).all(axis=1)]
    fit = tg.fit_truncated_normal(seen, high=high)
    assert fit.converged
    np.testing.assert_allclose(seen.mean(0), [4.91, 3.32], atol=0.01)
    np.testing.assert_allclose(fit.loc, [4.98, 3.41], atol=0.015)
    # The truth of all 50 flowers is nearer to the corrected mean, in both columns.
    full = rows.mean(0)
    assert np.all(np.abs(np.asarray(fit.loc) - full) < np.abs(seen.mean(0) - full))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published tables are not beside the project")
def test_a_published_bivariate_fit():
    table = np.genfromtxt(SHARED / "tmvtnorm_gmm_example_n500.csv", delimiter=",", skip_header=1)
    fit = tg.fit_truncated_normal(table, [-1.0, -2.0], [3.0, np.inf])
    assert fit.converged
    # Published to the tolerance of its optimiser; the likelihood is flat to second order there.
    np.testing.assert_allclose(fit.loc, [0.004861529844, 0.040156021743], atol=1e-5)
    covariance = [[1.077771579769, 0.846515654918], [0.846515654918, 1.963549189398]]
    np.testing.assert_allclose(fit.covariance_matrix, covariance, atol=1e-5)
    np.testing.assert_allclose(fit.log_likelihood, -1285.234923, atol=1e-6)
    np.testing.assert_allclose(fit.standard_errors.loc, [0.0901287, 0.1022377], rtol=1e-4)
    errors = [[0.1324755, 0.1324214], [0.1324214, 0.1921866]]
    np.testing.assert_allclose(fit.standard_errors.covariance_matrix, errors, rtol=1e-4)


@pytest.mark.parametrize(
    "rows, low, high, sentence",
    [
        ([[0.5], [-1.0], [np.nan]], None, None, "1 of 3 row.s. hold NaN or infinity, first row 2"),
        ([[0.5], [-1.0], [-2.0]], 0.0, None, "2 of 3 row.s. lie outside the limits, first row 1"),
        ([[1.0, 2.0], [1.0, 3.0], [1.0, 5.0]], None, None, "column 0 is constant at 1.0"),
        ([[1.0, 2.0], [2.0, 3.0]], None, None, "2 row.s. cannot determine a covariance in 2"),
        ([[1.0, 2.0], [2.0, 4.0], [5.0, 10.0]], None, None, "linearly dependent"),
        (np.zeros((2, 2, 2)), None, None, "data must have shape"),
        ([[1.0], [2.0], [3.0]], [0.0, 0.0], None, "low and high must be numbers or of shape"),
        ([[1.0], [2.0], [3.0]], 5.0, 4.0, "low must be below high"),
    ],
)
def test_rows_that_cannot_be_fitted_are_refused_in_a_sentence(rows, low, high, sentence):
    with pytest.raises(ValueError, match=sentence):
        tg.fit_truncated_normal(rows, low, high)


@pytest.mark.slow
def test_standard_errors_cover_the_truth():
    rng = np.random.default_rng(11)
    pulls = []
    for _ in range(300):
        x = rng.normal(0.3, 1.2, size=2000)
        x = x[(x > -0.5) & (x < 2.5)]
        fit = tg.fit_truncated_normal(x, -0.5, 2.5)
        assert fit.converged, fit.reason
        pulls.append((float(fit.loc[0]) - 0.3) / float(fit.standard_errors.loc[0]))
    assert abs(np.mean(pulls)) < 0.25 and 0.85 < np.std(pulls) < 1.15


@frozen_pytree
class Baseless(Method):
    """The right answer, and the word that it rests on nothing."""

    def replicate(self, loc, covariance, region, key):
        log_prob, _ = tg.Exact().replicate(loc, covariance, region, key)
        return Estimate(log_prob, jnp.full_like(log_prob, INF))


def test_a_fit_does_not_converge_on_what_rests_on_nothing():
    rows = np.array([[0.2], [0.9], [1.1], [0.4], [1.6], [0.3], [0.8], [1.2]])
    known, doubted = (
        tg.fit_truncated_normal(rows, low=0.0, method=method) for method in (tg.Exact(), Baseless())
    )
    assert known.converged and not doubted.converged
    assert "rests on nothing" in doubted.reason and doubted.notes == ()
    np.testing.assert_allclose(doubted.loc, known.loc)
    counts = ([841, 500], [0.0], [[1.0]], tg.Box([[0.0], [1.0]], [[INF], [INF]]), 1000)
    known, doubted = (tg.fit_shift(*counts, method=method) for method in (tg.Exact(), Baseless()))
    assert known.converged and not doubted.converged
    assert "rests on nothing" in doubted.reason
    np.testing.assert_allclose(doubted.params, known.params)
