"""Three hundred random selections beside quadrature and closed forms, with their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from tests.random_selections import (
    DIMENSIONS,
    EXACT,
    SAMPLED,
    along,
    directions,
    family,
    with_hessian,
)

# Over which the spread of an estimate is its error: of 16 keys, one Hessian was 6.5 of these away,
# of 96 others 1.2.
NUM_KEYS = 48
# Fewer and as many dimensions as curves, even and odd ones; derivatives are taken in all six.
FEW_DIMENSIONS = 1, 2, 3


def of_all(function, *arguments):
    """One row after the other, in one program."""
    return jax.jit(lambda *rows: jax.lax.map(lambda row: function(*row), rows))(*arguments)


def row_of(numbers, k):
    return jax.tree.map(lambda x: x[k], numbers)


@pytest.mark.quick("probit 2-3", "logistic 1-3")
@pytest.mark.parametrize("d", FEW_DIMENSIONS)
@pytest.mark.parametrize("kind", EXACT | SAMPLED)
def test_values_eagerly_and_compiled(kind, d):
    """Of each selection by itself, under `jit`, and of all by `vmap`."""
    selections = family(kind, d)
    truth = of_all(selections.truth, *selections.numbers)
    rows = [row_of(selections.numbers, k) for k in range(selections.count)]
    by_vmap = jax.jit(jax.vmap(selections.estimate))(*selections.numbers)
    compiled = jax.jit(selections.estimate)
    alone = np.transpose([selections.estimate(*row) for row in rows])
    under_jit = np.transpose([compiled(*row) for row in rows])
    for value, stderr in (alone, under_jit, by_vmap):
        known = np.isfinite(stderr)
        assert np.all(known) or kind == "disc" and d == 6  # far out it is missed, which is said
        error = 1e-10 * np.maximum(1.0, np.abs(truth)) + (5 * stderr if selections.sampled else 0.0)
        assert np.all((np.abs(value - truth) < error)[known]), (value - truth) / error
        assert selections.sampled or np.all(stderr == 0)
        assert np.all(stderr[known] < 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("kind", EXACT)
def test_derivatives_of_curves(kind, d):
    """Gradients in mean, covariance and all numbers of the curve, by `jit` and `vmap` together and
    by themselves, and Hessians along a direction in each of these."""
    selections, every = family(kind, d), (0, 1, 2)
    ways, size = directions(selections, d), lambda x: np.abs(x).reshape(len(x), -1).max(axis=1)
    log_prob = lambda *row: selections.estimate(*row)[0]

    def both(function):
        def of_row(row, ways):
            moved, number = along(function, row, ways, moves=True)
            hessian = jax.hessian(moved)(jnp.zeros(number))
            return jax.value_and_grad(function, every)(*row), hessian

        return of_row

    (value, slopes), hessian = jax.jit(jax.vmap(both(log_prob)))(selections.numbers, ways)
    (truth, true_slopes), true = of_all(both(selections.truth), selections.numbers, ways)
    np.testing.assert_allclose(value, truth, rtol=1e-10, atol=1e-10)
    pairs = [*zip(*map(jax.tree.leaves, (slopes, true_slopes))), (hessian, true)]
    for mine, exact in pairs:
        assert np.all(size(mine - exact) <= 1e-9 * size(exact)), size(mine - exact) / size(exact)
    sloped = jax.value_and_grad(log_prob, every)
    for k, function in [(0, sloped), *((k, jax.jit(sloped)) for k in range(selections.count))]:
        alone = function(*row_of(selections.numbers, k))
        for one, of_all_rows in zip(*map(jax.tree.leaves, (alone, (value, slopes)))):
            scale = np.abs(of_all_rows[k]).max()
            np.testing.assert_allclose(one, of_all_rows[k], rtol=1e-10, atol=1e-10 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("kind", SAMPLED)
def test_derivatives_of_estimates(kind, d):
    """Gradients and Hessians along a direction in mean, covariance and, where the curve is smooth,
    each of its numbers, by `jit` and `vmap`: their means over keys, within five errors of these."""
    selections = family(kind, d)
    ways, moves = directions(selections, d), selections.moves

    def true(row, ways):
        exact = lambda *row: (selections.truth(*row), 0.0)
        return with_hessian(*along(exact, row, ways, moves))

    def estimated(row, ways, key):
        with_key = lambda *row: selections.estimate(*row, key=key)
        return with_hessian(*along(with_key, row, ways, moves))

    @jax.jit
    def over_keys(keys):
        every = jax.vmap(estimated, (0, 0, None))
        return jax.lax.map(lambda key: every(selections.numbers, ways, key), keys)

    truth, _, *true_slopes = of_all(true, selections.numbers, ways)
    value, stderr, *slopes = over_keys(jax.random.split(jax.random.key(7), NUM_KEYS))
    known = np.all(np.isfinite(stderr), axis=0)
    assert np.all(known) or kind == "disc" and d == 6
    error = np.sqrt(np.mean(stderr**2, axis=0) / NUM_KEYS) + 1e-10
    assert np.all((np.abs(np.mean(value, axis=0) - truth) < 5 * error)[known])
    for slope, true_slope in zip(slopes, true_slopes):
        error = np.std(slope, axis=0, ddof=1) / NUM_KEYS**0.5
        gap = np.abs(np.mean(slope, axis=0) - true_slope)
        bound = 5 * error + 1e-10 * np.abs(true_slope) + 1e-11
        assert np.all((gap < bound)[known]), (gap / bound)[known].max()


@pytest.mark.full
@pytest.mark.parametrize("within", [True, False])
def test_gradients_of_discs(within):
    """In the mean and the covariance, inside of a disc or outside of it, beside polar coordinates;
    the error of a gradient is its spread over keys."""
    center, radius = jnp.array([0.4, -0.3]), 1.3
    loc, covariance = jnp.array([0.2, 0.9]), jnp.array([[0.8, 0.3], [0.3, 1.1]])
    r, weights = np.polynomial.legendre.leggauss(80)
    ends = (0.0, radius) if within else (radius, radius + 12.0)
    r, weights = np.mean(ends) + np.ptp(ends) / 2 * r, np.ptp(ends) / 2 * weights
    angles = np.arange(200) * 2 * np.pi / 200
    points = center + r[:, None, None] * np.stack([np.cos(angles), np.sin(angles)], axis=-1)

    def truth(loc, covariance):
        logs = jax.scipy.stats.multivariate_normal.logpdf(points, loc, covariance)
        return jax.nn.logsumexp(logs + np.log(weights * r * 2 * np.pi / 200)[:, None])

    disc = tg.Selection(lambda x: (jnp.linalg.norm(x - center) < radius) == within, 2)

    @jax.jit
    def estimated(key):
        value = lambda *at: tuple(tg.log_probability(*at, disc, key=key))
        return jax.value_and_grad(value, (0, 1), has_aux=True)(loc, covariance)

    (values, errors), slopes = jax.lax.map(estimated, jax.random.split(jax.random.key(0), 12))
    value, true_slopes = jax.value_and_grad(truth, (0, 1))(loc, covariance)
    assert np.all(np.abs(values - value) < 5 * errors) and np.max(errors) < 0.01
    for slope, true_slope in zip(slopes, true_slopes):
        spread = np.std(slope, axis=0, ddof=1) / 12**0.5
        assert np.all(np.abs(np.mean(slope, axis=0) - true_slope) < 5 * spread + 1e-12)
