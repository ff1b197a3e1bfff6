"""`tg.minimize`: its end is honest, free coordinates keep constraints, errors are right."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import truncgauss as tg
from truncgauss import fitting

INF = jnp.inf


def rosenbrock(x):
    return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


# The loop


@pytest.mark.parametrize("dtype, accuracy", [(jnp.float64, 1e-8), (jnp.float32, 2e-3)])
def test_lbfgs_finds_a_narrow_valley_in_both_precisions(dtype, accuracy):
    result = tg.minimize(rosenbrock, jnp.full(4, -1.0, dtype), progress=False)
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
        tg.minimize(jax.tree_util.Partial(loss, jnp.asarray(data)), jnp.zeros(2), progress=progress)
        for data, progress in [([1.0, 2.0], True), ([1.0, 2.0], False), ([3.0, -1.0], False)]
    ]
    for first, second in zip(fits[0].loss_trace, fits[1].loss_trace, strict=True):
        assert first == second
    np.testing.assert_array_equal(fits[0].params, fits[1].params)
    assert not np.allclose(fits[1].params, fits[2].params)
    once = len(traces)
    tg.minimize(jax.tree_util.Partial(loss, jnp.asarray([5.0, 6.0])), jnp.ones(2), progress=False)
    assert len(traces) <= once + 1  # the check of its shape, never the compiled loop
    assert "loss" not in capsys.readouterr().err  # silent off a terminal


def test_any_optimiser_and_any_tree():
    start = {"width": 1.0, "centre": [jnp.zeros(2), 3]}
    result = tg.minimize(
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
    short = tg.minimize(rosenbrock, jnp.full(4, -1.0), num_steps=3, progress=False)
    assert not short.converged and "3 steps are used up" in short.reason
    assert short.num_steps == 3 and len(short.loss_trace) == 4
    flat = tg.minimize(lambda x: jnp.sum(jnp.cos(x)), jnp.zeros(1), progress=False)
    assert not flat.converged and "exactly zero at the start" in flat.reason
    kink = tg.minimize(lambda x: jnp.abs(x), 1.05, optax.sgd(0.1), 400, progress=False)
    assert not kink.converged and "Stalled" in kink.reason


def test_a_loss_without_a_minimum_is_called_so():
    endless = tg.minimize(lambda x: -x, 0.0, num_steps=50, progress=False)
    assert not endless.converged and "seems to decrease without end" in endless.reason
    short = tg.minimize(lambda x: jnp.sum(jnp.log(x)), jnp.array([1.0, 2.0]), progress=False)
    assert not short.converged and "Bound the parameters" in short.reason
    assert "tg.fitting.Positive()" in short.reason


def test_a_gradient_that_is_nan_at_the_start_is_printed_as_nan():
    result = tg.minimize(lambda x: jnp.sqrt(x) * 0.0, 0.0, progress=False)
    assert np.isnan(result.gradient_norm) and "gradient norm nan" in str(result)


def test_a_loss_that_turns_nan_stops_the_fit_and_names_the_culprit():
    result = tg.minimize(
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

    result = tg.minimize(naive, {"near": 0.0, "far": -1000.0}, progress=False)
    assert not result.converged and result.num_steps == 0
    assert "the gradient is not finite at far = -1000 and near = 0" in result.reason
    assert result.params == {"near": 0.0, "far": -1000.0} and result.loss == 0.0


def test_random_objectives_settle_or_say_that_they_fall():
    def noisy(mean, key):
        return jnp.mean((mean - 1.0 - jax.random.normal(key, (64,))) ** 2)

    key = jax.random.key(3)
    result = tg.minimize(noisy, 3.0, num_steps=400, key=key, progress=False)
    assert result.converged and "Settled" in result.reason
    assert abs(result.params - 1.0) < 0.1
    again = tg.minimize(noisy, 3.0, num_steps=400, key=key, progress=False)
    np.testing.assert_array_equal(result.loss_trace, again.loss_trace)
    falling = tg.minimize(noisy, 30.0, optax.sgd(1e-4), 400, key=key, progress=False)
    assert not falling.converged and "mean loss of the last quarter" in falling.reason


# Free coordinates


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


def test_a_saddle_is_no_strict_optimum():
    saddle = fitting.certificate([0.0, 0.0], np.diag([1.0, -1.0]))
    assert not saddle.positive_definite and "no strict optimum" in str(saddle)


def test_a_curvature_that_is_not_finite_leaves_standard_errors_unknown():
    assert np.isnan(fitting.standard_errors(jnp.sqrt, 0.0))
    assert not fitting.certificate([jnp.nan], [[1.0]]).positive_definite


@pytest.mark.full
def test_a_plateau_is_no_minimum():
    result = tg.minimize(lambda x: jnp.exp(-x), 0.0, progress=False)
    assert not result.converged and "still falls" in result.reason and "plateau" in result.reason
    # The likelihood of truncated rows, of which a wide Gaussian is a straight slope.
    y, low = jnp.array([0.3, 0.5, 1.1, 0.2, 0.9]), jnp.array([0.0, 0.1, 0.5, -1.0, 0.2])

    def loss(params):
        law = tg.TruncatedNormal(params["loc"], jnp.exp(params["log_scale"]), low, low + 1.5)
        return -jnp.mean(law.log_prob(y))

    result = tg.minimize(loss, {"loc": 0.0, "log_scale": float(np.log(1e6))}, progress=False)
    assert not result.converged and "plateau" in result.reason
    # A minimum, however flat, is none.
    flat = tg.minimize(lambda x: jnp.sum((x - 1.0) ** 4), jnp.zeros(2), progress=False)
    assert flat.converged, flat.reason


@pytest.mark.full
def test_a_random_fit_that_gained_nothing_has_not_converged():
    def loss(x, key):
        return 1e-3 * (x - 3.0) ** 2 + jax.random.normal(key)

    def slow(start):
        slowly = optax.sgd(1e-6)
        return tg.minimize(loss, start, slowly, 100, key=jax.random.key(0), progress=False)

    stuck = slow(0.0)
    assert not stuck.converged and "nothing was gained" in stuck.reason
    there = slow(3.0)
    assert there.converged and there.params == 3.0


def test_a_direction_that_a_loss_does_not_determine_is_named():
    target = jnp.array([0.2, 0.5, 0.3])

    def loss(params):
        """Of a mean common to all populations, and a box that may move with it."""
        low, high = params["box"] - params["shift"]
        means = jnp.array([0.0, 0.5, 1.0])
        mass = tg.special.ndtr(high - means) - tg.special.ndtr(low - means)
        return jnp.sum((mass - target) ** 2)

    start = {"box": jnp.array([-1.0, 1.0]), "shift": jnp.array(0.0)}
    result = tg.minimize(loss, start, progress=False)
    assert result.converged
    assert "does not change along +1 box[0] +1 box[1] +1 shift:" in result.reason
    held = tg.minimize(
        lambda params: loss({"box": params["box"], "shift": 0.0}),
        {"box": start["box"]},
        progress=False,
    )
    assert held.converged and "does not change" not in held.reason
    # No Hessian at the minimum, but one minimum.
    result = tg.minimize(lambda x: jnp.sum((x - 1.0) ** 4), jnp.zeros(2), progress=False)
    assert "does not change" not in result.reason


@pytest.mark.parametrize("far", [10.0, 1000.0, 1e6, INF])
def test_a_far_end_does_not_move_with_the_near_one(far):
    """Both ends of [0, 1000] jumped to a plateau, which was said to be a minimum."""
    method = tg.SoftMonteCarlo(256, edge=tg.Tanh(10.0))
    share = lambda box: tg.fraction_not_truncated([0.3], [[2.0]], box, method)
    for sign in (1.0, -1.0):
        low, high = sorted((0.0, sign * far))
        fit = tg.minimize(
            lambda box: (share(box) - 0.25) ** 2,
            tg.Box([low], [high]),
            constraints=fitting.Limits(),
            progress=False,
        )
        assert fit.converged and abs(share(fit.params) - 0.25) < 1e-6
        assert "log_width" not in fit.reason and ("does not change" in fit.reason) == (far < INF)
        other = fit.params.high if sign > 0 else fit.params.low
        np.testing.assert_allclose(other, sign * far, rtol=1e-5)


def test_a_plateau_without_slope_is_no_minimum():
    loss = lambda x: jnp.where(x > 1.0, 0.4, 0.5 + (x - 1.0) ** 2)
    fit = tg.minimize(loss, -3.0, optimizer=optax.sgd(0.6), progress=False)
    assert not fit.converged and "plateau" in fit.reason
    # In float32 the rounding of a large loss hides its curve, and it is a minimum.
    with jax.enable_x64(False):
        far = jnp.float32(3000.0)
        fit = tg.minimize(lambda x: far + (x - 1.0) ** 2, jnp.float32(0.5), progress=False)
    assert fit.converged and "plateau" not in fit.reason
