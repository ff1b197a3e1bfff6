"""Five troubles of automatic differentiation: the naive form fails, ours is right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import truncgauss as tg
from experiments.nan_gallery import plot as figure
from experiments.nan_gallery import run as gallery
from truncgauss import special
from truncgauss.runs import config

PRECISIONS = (jnp.float32, jnp.float64)


def finite(*arrays):
    return all(bool(jnp.isfinite(a).all()) for a in arrays)


def along(function, x):
    """Value and derivative at every x."""
    return jax.jit(jax.vmap(jax.value_and_grad(function)))(x)


# ---------------------------------------------------------------- 1. the sigmoid filter


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("high", [1000.0, 1e30])
def test_filter_with_a_far_limit(high, dtype):
    x = jnp.linspace(-0.3, 0.3, 61, dtype=dtype)
    low, high = dtype(0), dtype(high)
    steepness = dtype(100)
    value, slope = along(lambda x: gallery.naive_filter(x, low, high, steepness), x)
    assert finite(value)
    assert jnp.isnan(slope).all()

    value, slope = along(lambda x: gallery.safe_filter(x, low, high, steepness), x)
    z = 100 * np.asarray(x, np.float64)
    share = 1 / (1 + np.exp(-z))
    tolerance = 1e-5 if dtype == jnp.float32 else 1e-13
    np.testing.assert_allclose(value, share, rtol=tolerance)
    np.testing.assert_allclose(slope, 100 * share / (1 + np.exp(z)), rtol=tolerance)


def test_filtered_fraction_of_five_hundred_shifts():
    key = jax.random.key(0)
    shifts = jnp.linspace(-6.0, 6.0, 500)
    for d, high in ((1, 1000.0), (5, 1e300)):
        region = tg.Box(jnp.zeros(d), jnp.full(d, high))
        samples = jax.random.normal(key, (200, d))
        method = tg.SoftMonteCarlo(num_samples=200, edge=tg.Tanh(100.0))

        def naive(shift, samples=samples, high=high):
            weights = gallery.naive_filter(samples + shift, 0.0, high, 100.0)
            return jnp.mean(jnp.prod(weights, axis=-1))

        def ours(shift, region=region, method=method, d=d):
            loc = jnp.full(d, shift)
            return tg.fraction_not_truncated(loc, jnp.eye(d), region, method, key)

        assert jnp.isnan(along(naive, shifts)[1]).all()
        value, slope = along(ours, shifts)
        assert finite(value, slope)
        assert (value >= 0).all() and (value <= 1).all()
        assert (slope >= 0).all()


# ---------------------------------------------------------------- 2. log(1 + exp x) and its kin


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_log1pexp_where_exp_overflows(dtype):
    x = jnp.array([-1000.0, -20.0, 0.0, 20.0, 1000.0], dtype)
    value, slope = along(gallery.naive_log1pexp, x)
    assert jnp.isinf(value[-1]) and jnp.isnan(slope[-1])

    value, slope = along(special.log1pexp, x)
    exact = np.asarray(x, np.float64)
    tolerance = 1e-6 if dtype == jnp.float32 else 1e-14
    np.testing.assert_allclose(value, np.logaddexp(0, exact), rtol=tolerance)
    np.testing.assert_allclose(slope, np.exp(-np.logaddexp(0, -exact)), rtol=tolerance)
    assert value.dtype == slope.dtype == dtype


def test_kin_of_log1pexp_to_the_third_derivative():
    x = jnp.array([-700.0, -30.0, -1.0, 0.0, 2.0, 30.0, 700.0])
    e = np.exp(-np.abs(np.asarray(x)))
    big, small = 1 / (1 + e), e / (1 + e)
    s, t = np.where(x >= 0, big, small), np.where(x >= 0, small, big)  # sigmoid(x), sigmoid(-x)
    derivatives = {
        special.log1pexp: (s, s * t, s * t * (t - s)),
        special.log_sigmoid: (t, -s * t, -s * t * (t - s)),
        special.sigmoid: (s * t, s * t * (t - s), s * t * (1 - 6 * s * t)),
    }
    for function, exact in derivatives.items():
        orders = [jax.grad(function)]
        orders.append(jax.grad(orders[-1]))
        orders.append(jax.grad(orders[-1]))
        all_orders = jax.jit(jax.vmap(lambda x, orders=orders: [order(x) for order in orders]))
        for ours, truth in zip(all_orders(x), exact, strict=True):
            np.testing.assert_allclose(ours, truth, rtol=1e-13, atol=0)

    third = jax.grad(jax.grad(jax.grad(gallery.naive_log1pexp)))
    assert jnp.isnan(third(30.0 * 25))  # the naive form has lost it long before


def test_kin_of_log1pexp_pass_check_grads():
    x = jnp.array([-3.0, -0.4, 0.0, 1.7, 5.0])
    together = jax.jit(lambda x: (special.log1pexp(x), special.sigmoid(x), special.log_sigmoid(x)))
    check_grads(together, (x,), order=2, modes=("fwd", "rev"))


def test_gradients_of_single_samples():
    # Logistic regression with one row far from the boundary, on the wrong side.
    rows = jnp.array([[1.0, 0.5], [900.0, -2.0], [-0.3, 0.1]])
    labels = jnp.array([1.0, 0.0, 1.0])
    weights = jnp.array([1.2, -0.7])

    def per_row(softplus):
        loss = lambda w, row, label: softplus(row @ w) - label * (row @ w)
        return jax.vmap(jax.value_and_grad(loss), in_axes=(None, 0, 0))

    value, slopes = per_row(gallery.naive_log1pexp)(weights, rows, labels)
    assert jnp.isinf(value[1]) and jnp.isnan(slopes[1]).all()
    assert finite(slopes[0], slopes[2])  # vmap(grad) shows which row it was

    value, slopes = per_row(special.log1pexp)(weights, rows, labels)
    logits = rows @ weights
    np.testing.assert_allclose(value, np.logaddexp(0, logits) - labels * logits, rtol=1e-14)
    np.testing.assert_allclose(
        slopes, (special.sigmoid(logits) - labels)[:, None] * rows, rtol=1e-13
    )


def test_stop_gradient_freezes_a_parameter():
    x, seen = jnp.linspace(-2.0, 2.0, 9), jnp.linspace(0.1, 0.9, 9)

    def loss(params, frozen):
        params = {k: jax.lax.stop_gradient(v) if k in frozen else v for k, v in params.items()}
        share = special.sigmoid(params["slope"] * x + params["offset"])
        return jnp.sum((share - seen) ** 2)

    start = {"slope": jnp.array(0.4), "offset": jnp.array(0.3)}
    value, free = jax.value_and_grad(loss)(start, frozenset())
    same, slopes = jax.value_and_grad(loss)(start, frozenset(["offset"]))
    assert value == same
    assert slopes["offset"] == 0 and free["offset"] != 0
    assert slopes["slope"] == free["slope"]

    params = start
    for _ in range(20):
        slopes = jax.grad(loss)(params, frozenset(["offset"]))
        params = jax.tree.map(lambda p, g: p - 0.2 * g, params, slopes)
    assert params["offset"] == start["offset"]
    assert loss(params, frozenset()) < value


def test_make_jaxpr_shows_the_rule():
    naive = str(jax.make_jaxpr(jax.grad(gallery.naive_log1pexp))(1.0))
    assert "exp" in naive and "custom_jvp_call" not in naive
    assert "custom_jvp_call" in str(jax.make_jaxpr(special.log1pexp)(1.0))
    # One evaluation serves value and slope: the rule is written in terms of its own parts.
    names = [eqn.primitive.name for eqn in jax.make_jaxpr(gallery.naive_log1pexp)(1.0).eqns]
    assert names == ["exp", "add", "log"]


# ---------------------------------------------------------------- 3. the norm under a mask


def test_norm_at_zero_under_a_mask():
    rows = jnp.array([[3.0, 4.0], [0.0, 0.0], [-1e-3, 0.0]])
    present = jnp.array([True, False, True])

    def total(norm):
        return lambda rows: jnp.sum(jnp.where(present, norm(rows), 0.0))

    naive = total(lambda rows: jnp.sqrt(jnp.sum(rows**2, axis=-1)))
    library = total(lambda rows: jnp.linalg.norm(rows, axis=-1))
    for norm in (naive, library):
        value, slopes = jax.value_and_grad(norm)(rows)
        assert value == pytest.approx(5.001)
        assert jnp.isnan(slopes[1]).all()

    value, slopes = jax.value_and_grad(total(tg.safe.safe_norm))(rows)
    assert value == pytest.approx(5.001)
    np.testing.assert_allclose(slopes, [[0.6, 0.8], [0.0, 0.0], [-1.0, 0.0]], atol=1e-15)

    value, slopes = jax.value_and_grad(total(gallery.safe_masked_norm))(rows)
    assert finite(value, slopes)


def test_norm_of_tiny_and_huge_vectors():
    scales = jnp.array([1e-200, 1e-20, 1.0, 1e20, 1e300])
    vectors = scales[:, None] * jnp.array([3.0, -4.0])
    naive = jax.vmap(jax.value_and_grad(lambda v: jnp.sqrt(jnp.sum(v**2))))
    assert not finite(*naive(vectors))
    value, slopes = jax.vmap(jax.value_and_grad(tg.safe.safe_norm))(vectors)
    np.testing.assert_allclose(value, 5 * scales, rtol=1e-15)
    np.testing.assert_allclose(slopes, np.tile([0.6, -0.8], (5, 1)), rtol=1e-15)
    # A small constant inside of the root is wrong where it matters and still not smooth enough.
    patched = jnp.sqrt(jnp.sum((5e-6 * jnp.array([0.6, -0.8])) ** 2) + 1e-12)
    assert abs(patched / 5e-6 - 1) > 0.01
    check_grads(jax.jit(tg.safe.safe_norm), (jnp.array([0.3, -0.2, 1.0]),), order=2)


# ---------------------------------------------------------------- 4. the softmax


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_softmax_in_training(dtype):
    """Finite logits, a gradient that explodes behind them: NaN; with both guards it learns."""
    depth, share, bound, span = 50, dtype(0.75), 0.1, 30.0
    trained = lambda loss, start: jax.jit(
        lambda w: gallery.training(loss, w, dtype(0.04), num_steps=150)
    )(dtype(start))

    naive = lambda w: gallery.naive_cross_entropy(w, depth, share)
    w, loss, slope = trained(naive, 0.9)
    failure = int(jnp.argmax(jnp.isnan(slope)))
    assert failure > 5
    assert loss[5] < loss[0]  # it was learning
    assert jnp.isfinite(w[failure] ** depth)  # and the logits were clean when it failed
    assert jnp.isnan(w[failure + 1 :]).all()  # for ever

    safe = lambda w: gallery.safe_cross_entropy(w, depth, share, bound, span)
    w, loss, slope = trained(safe, 0.9)
    assert finite(w, loss, slope)
    assert abs(w[-1] ** depth - np.log(3)) < 1e-3  # the logits whose softmax is (0.75, 0.25)

    # Each guard alone is not enough where the start is bad.
    clipped = lambda w: gallery.cross_entropy(
        tg.safe.clipped_logits(gallery.deep_logits(w, depth), span), share
    )
    bounded = lambda w: naive(tg.safe.clipped_gradient(w, bound))
    for loss_with_one_guard in (clipped, bounded):
        assert jnp.isnan(trained(loss_with_one_guard, 1.2)[2]).any()
    w, loss, slope = trained(safe, 1.2)
    assert finite(w, loss, slope)
    assert loss[0] > 7 and loss[-1] < 0.6  # the least possible is 0.5623


def test_clipped_gradient_is_the_identity_forward():
    x = jnp.array([-1e300, 0.1, jnp.inf])
    np.testing.assert_array_equal(tg.safe.clipped_gradient(x, 1.0), x)
    steep = lambda x: jnp.sum(jnp.array([1e9, -0.5, -jnp.inf]) * tg.safe.clipped_gradient(x, 2.0))
    np.testing.assert_array_equal(jax.grad(steep)(jnp.ones(3)), [2.0, -0.5, -2.0])
    assert jnp.isnan(jax.grad(lambda x: jnp.nan * tg.safe.clipped_gradient(x, 2.0))(1.0))
    with pytest.raises(TypeError, match="forward-mode|custom_vjp"):
        jax.jvp(lambda x: tg.safe.clipped_gradient(x, 1.0), (1.0,), (1.0,))


def test_clipped_logits_are_relative_to_the_maximum():
    logits = jnp.array([800.0, 790.0, -500.0])
    guarded = lambda logits: -jnp.log(jax.nn.softmax(tg.safe.clipped_logits(logits, 30.0)))[2]
    absolute = lambda logits: -jnp.log(jax.nn.softmax(jnp.clip(logits, -30.0, 30.0)))[2]
    bare = lambda logits: -jnp.log(jax.nn.softmax(logits))[2]

    assert jnp.isnan(jax.grad(bare)(logits)).any()
    assert not jax.grad(absolute)(logits).any()  # no NaN, but nothing to learn from
    value, slope = jax.value_and_grad(guarded)(logits)
    assert value == pytest.approx(30.0, abs=1e-3)
    assert slope[0] == pytest.approx(1.0, abs=1e-3)  # the winner is still pulled down
    shifted = tg.safe.clipped_logits(logits + 1e4, 30.0) - tg.safe.clipped_logits(logits, 30.0)
    np.testing.assert_array_equal(shifted, jnp.full(3, 1e4))


# ---------------------------------------------------------------- 5. the trainable bump


@pytest.mark.quick("float64")
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_bump_whose_width_is_trained(dtype):
    width = dtype(0.7)
    x = width * jnp.linspace(-2.0, 2.0, 20_001, dtype=dtype)
    slopes = lambda bump: jax.jit(jax.vmap(jax.grad(bump, (0, 1)), in_axes=(0, None)))(x, width)
    assert jnp.isnan(slopes(gallery.naive_bump)[1]).any()
    assert finite(*slopes(tg.safe.bump))

    u = np.array([-0.9, -0.5, 0.1, 0.6])
    value, (by_x, by_width) = jax.vmap(
        jax.value_and_grad(tg.safe.bump, (0, 1)), in_axes=(0, None)
    )(jnp.asarray(u * width, dtype), width)  # fmt: skip
    room = 1 - u**2
    exact = np.exp(-1 / room)
    tolerance = 2e-5 if dtype == jnp.float32 else 1e-12
    np.testing.assert_allclose(value, exact, rtol=tolerance)
    np.testing.assert_allclose(by_width, 2 * u**2 / (width * room**2) * exact, rtol=tolerance)
    np.testing.assert_allclose(by_x, -2 * u / (width * room**2) * exact, rtol=tolerance)


def test_bump_beside_the_bell_in_training():
    true = 1.0
    x = jnp.linspace(-3.0, 3.0, 601)  # the support's own edges are among the inputs

    def learnt(shape, start, rate=5.0):
        loss = lambda width: jnp.mean((shape(x, width) - shape(x, true)) ** 2)
        step = lambda width, _: (width - rate * jax.grad(loss)(width), None)
        return jax.jit(lambda start: jax.lax.scan(step, start, length=400)[0])(start)

    assert jnp.isnan(learnt(gallery.naive_bump, 1.5))
    for start in (0.5, 1.5):
        assert learnt(tg.safe.bump, start) == pytest.approx(true, rel=1e-6)
    assert learnt(tg.safe.bell, 1.5, rate=1.0) == pytest.approx(true, rel=1e-6)

    # What the bell offers: outside of the support it still has something to say.
    by_width = jax.grad(tg.safe.bump, 1), jax.grad(tg.safe.bell, 1)
    assert by_width[0](2.0, 1.0) == 0 and by_width[1](2.0, 1.0) > 0.1


# ---------------------------------------------------------------- what first_nonfinite says


@pytest.mark.full
def test_gallery_names_every_culprit(request):
    settings = config.load(request.config.rootpath / "configs" / "nan_gallery.yaml")
    results = gallery.run(settings)
    assert results["failed"] == ""
    culprits = {
        "filter": "fed by `exp`",
        "log1pexp": "fed by `exp`",
        "norm": "fed by `div`",
        "softmax": "fed by `div`",
        "bump": "fed by `integer_pow`",
    }
    for name, feeder in culprits.items():
        exhibit = results[name]
        assert exhibit["kind"] == "nan", name
        assert feeder in exhibit["verdict"], exhibit["verdict"]
        assert "nan_gallery" in exhibit["report"]
        assert gallery.count_bad(exhibit, "naive") > 0
        assert gallery.count_bad(exhibit, "safe") == 0
    picture = figure.plot(results)
    assert len(picture.axes) == 2 * len(culprits)
