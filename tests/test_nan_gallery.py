"""Five troubles of automatic differentiation: the naive form fails, ours is right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from experiments.nan_gallery import plot as figure
from experiments.nan_gallery import run as gallery
from truncgauss import special
from truncgauss.runs import config

PRECISIONS = (jnp.float32, jnp.float64)


def finite(*arrays):
    return all(np.isfinite(a).all() for a in arrays)


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
    assert np.isnan(slope).all()

    value, slope = along(lambda x: gallery.safe_filter(x, low, high, steepness), x)
    z = 100 * np.asarray(x, np.float64)
    share = 1 / (1 + np.exp(-z))
    tolerance = 1e-5 if dtype == jnp.float32 else 1e-13
    np.testing.assert_allclose(value, share, rtol=tolerance)
    np.testing.assert_allclose(slope, 100 * share / (1 + np.exp(z)), rtol=tolerance)


# ---------------------------------------------------------------- 2. log(1 + exp x) and its kin


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_log1pexp_where_exp_overflows(dtype):
    x = jnp.array([-1000.0, -20.0, 0.0, 20.0, 1000.0], dtype)
    value, slope = along(gallery.naive_log1pexp, x)
    assert np.isinf(value[-1]) and np.isnan(slope[-1])

    value, slope = along(special.log1pexp, x)
    exact = np.asarray(x, np.float64)
    tolerance = 1e-6 if dtype == jnp.float32 else 1e-14
    np.testing.assert_allclose(value, np.logaddexp(0, exact), rtol=tolerance)
    np.testing.assert_allclose(slope, np.exp(-np.logaddexp(0, -exact)), rtol=tolerance)
    assert value.dtype == slope.dtype == dtype


# ---------------------------------------------------------------- 3. the norm under a mask


def test_norm_at_zero_under_a_mask():
    rows = jnp.array([[3.0, 4.0], [0.0, 0.0], [-1e-3, 0.0]])
    present = jnp.array([True, False, True])

    def total(norm):
        return lambda rows: jnp.sum(jnp.where(present, norm(rows), 0.0))

    naive = total(lambda rows: jnp.sqrt(jnp.sum(rows**2, axis=-1)))
    library = total(lambda rows: jnp.linalg.norm(rows, axis=-1))
    for norm in (naive, library):
        value, slopes = jax.jit(jax.value_and_grad(norm))(rows)
        assert value == pytest.approx(5.001)
        assert np.isnan(slopes[1]).all()

    value, slopes = jax.jit(jax.value_and_grad(total(tg.safe.safe_norm)))(rows)
    assert value == pytest.approx(5.001)
    np.testing.assert_allclose(slopes, [[0.6, 0.8], [0.0, 0.0], [-1.0, 0.0]], atol=1e-15)

    value, slopes = jax.jit(jax.value_and_grad(total(gallery.safe_masked_norm)))(rows)
    assert finite(value, slopes)


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
    failure = int(np.argmax(np.isnan(slope)))
    assert failure > 5
    assert loss[5] < loss[0]  # it was learning
    assert np.isfinite(w[failure] ** depth)  # and the logits were clean when it failed
    assert np.isnan(w[failure + 1 :]).all()  # for ever

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
        assert np.isnan(trained(loss_with_one_guard, 1.2)[2]).any()
    w, loss, slope = trained(safe, 1.2)
    assert finite(w, loss, slope)
    assert loss[0] > 7 and loss[-1] < 0.6  # the least possible is 0.5623


# ---------------------------------------------------------------- 5. the trainable bump


@pytest.mark.quick("float64")
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_bump_whose_width_is_trained(dtype):
    width = dtype(0.7)
    x = width * jnp.linspace(-2.0, 2.0, 20_001, dtype=dtype)
    slopes = lambda bump: jax.jit(jax.vmap(jax.grad(bump, (0, 1)), in_axes=(0, None)))(x, width)
    assert np.isnan(slopes(gallery.naive_bump)[1]).any()
    assert finite(*slopes(tg.safe.bump))


def test_bump_beside_the_bell_in_training():
    true = 1.0
    x = jnp.linspace(-3.0, 3.0, 601)  # the support's own edges are among the inputs

    def learnt(shape, start, rate=5.0):
        loss = lambda width: jnp.mean((shape(x, width) - shape(x, true)) ** 2)
        step = lambda width, _: (width - rate * jax.grad(loss)(width), None)
        return jax.jit(lambda start: jax.lax.scan(step, start, length=400)[0])(start)

    assert np.isnan(learnt(gallery.naive_bump, 1.5))
    for start in (0.5, 1.5):
        assert learnt(tg.safe.bump, start) == pytest.approx(true, rel=1e-6)
    assert learnt(tg.safe.bell, 1.5, rate=1.0) == pytest.approx(true, rel=1e-6)

    # What the bell offers: outside of the support it still has something to say.
    both = jax.jit(lambda x, width: (tg.safe.bump(x, width), tg.safe.bell(x, width)))
    by_width = jax.jacrev(both, 1)(2.0, 1.0)
    assert by_width[0] == 0 and by_width[1] > 0.1


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
