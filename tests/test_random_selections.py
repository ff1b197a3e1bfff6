"""Three hundred random selections beside quadrature and closed forms, with their derivatives."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg

CURVES = {"probit": tg.special.log_ndtr, "logistic": tg.special.log_sigmoid}


def log_prob(kind, loc, covariance, weights, midpoint, width):
    region = getattr(tg.Selection, kind)(weights, midpoint, width)
    return tg.log_probability(loc, covariance, region).log_prob


def by_quadrature(kind, num, loc, covariance, weights, midpoint, width):
    """The trapezoidal rule along standard normal variables behind the scores, about their mode."""
    log_curve, r = CURVES[kind], len(midpoint)
    mean = (weights @ loc - midpoint) / width
    if r <= len(loc):
        root = jnp.linalg.cholesky(weights @ covariance @ weights.T) / width[:, None]
    else:
        root = weights @ jnp.linalg.cholesky(covariance) / width[:, None]
        r = len(loc)
    loss = lambda u: 0.5 * u @ u - jnp.sum(log_curve(mean + root @ u))

    def newton(_, u):
        step = jnp.linalg.solve(jax.hessian(loss)(u), jax.grad(loss)(u))
        return u - step * jnp.minimum(1.0, 2.0 / jnp.linalg.norm(step + 1e-300))

    u = jax.lax.stop_gradient(jax.lax.fori_loop(0, 200, newton, jnp.zeros(r)))
    axes = [u[j] + jnp.linspace(-9.0, 9.0, num) for j in range(r)]
    logs = -jax.vmap(loss)(jnp.stack(jnp.meshgrid(*axes), -1).reshape(-1, r))
    return jax.nn.logsumexp(logs) + r * jnp.log(18.0 / (num - 1) / jnp.sqrt(2 * jnp.pi))


def problems(seed, count, d, r):
    """Gaussians and curves, from wide to narrow ones, and tails down to e^-100 and lower."""
    random = np.random.default_rng(seed)
    loc = random.normal(size=(count, d))
    factor = random.normal(size=(count, d, d)) / d**0.5
    covariance = factor @ np.swapaxes(factor, 1, 2) + 0.3 * np.eye(d)
    weights = random.normal(size=(count, r, d))
    scale = np.sqrt(np.einsum("krd,kde,kre->kr", weights, covariance, weights))
    distance = random.choice([-1.0, 1.0, 4.0, 9.0], (count, 1)) * random.uniform(size=(count, r))
    midpoint = np.einsum("krd,kd->kr", weights, loc) + scale * distance
    width = scale * np.exp(random.uniform(-1.0, 1.0, (count, r)))
    return tuple(map(jnp.asarray, (loc, covariance, weights, midpoint, width)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["probit", "logistic"])
@pytest.mark.parametrize(
    "d, r, count", [(1, 1, 35), (2, 1, 35), (6, 1, 35), (2, 2, 15), (5, 2, 15)]
)
def test_curves(kind, d, r, count):
    arguments = problems(d + 10 * r, count, d, r)
    every, num = tuple(range(5)), 4001 if r == 1 else 301
    sloped = jax.value_and_grad(partial(log_prob, kind), every)
    mine, slopes = jax.jit(jax.vmap(sloped))(*arguments)
    truth, true_slopes = jax.lax.map(
        lambda row: jax.value_and_grad(partial(by_quadrature, kind, num), every)(*row), arguments
    )
    np.testing.assert_allclose(mine, truth, rtol=1e-10, atol=1e-10)
    for slope, true_slope in zip(slopes, true_slopes):
        sizes = np.abs(true_slope).reshape(count, -1).max(axis=1)
        gaps = np.abs(slope - true_slope).reshape(count, -1).max(axis=1)
        assert np.all(gaps <= 1e-8 * sizes + 1e-12), (gaps / sizes).max()
    assert np.exp(np.min(mine)) < 1e-3


@pytest.mark.full
@pytest.mark.parametrize("kind, r", [("probit", 4), ("probit", 6), ("logistic", 4)])
def test_products_of_many_curves(kind, r):
    """Of scores of two coordinates, with derivatives."""
    arguments, every = [x[0] for x in problems(r, 1, 2, r)], tuple(range(5))

    def estimated(loc, covariance, *curves):
        region = getattr(tg.Selection, kind)(*curves)
        return tuple(tg.log_probability(loc, covariance, region))

    (value, stderr), slopes = jax.value_and_grad(estimated, every, has_aux=True)(*arguments)
    at = partial(by_quadrature, kind, 301)
    truth, true_slopes = jax.jit(jax.value_and_grad(at, every))(*arguments)
    assert abs(value - truth) < 5 * stderr + 1e-10 and stderr < 1e-3
    for slope, true_slope in zip(slopes, true_slopes):
        size = np.abs(true_slope).max()
        np.testing.assert_allclose(slope, true_slope, atol=5e-3 * size)


@pytest.mark.slow
@pytest.mark.parametrize("d", [2, 5])
def test_rings_and_steps(d):
    """Spherical shells, and half-spaces, as functions of a point; 15 of each."""
    random = np.random.default_rng(d)
    for _ in range(15):
        inner, outer = np.sort(random.uniform(0.3, 3.0, 2))
        ring = tg.Selection(
            lambda x, p: (
                jax.nn.sigmoid(50.0 * (p["outer"] - jnp.linalg.norm(x)))
                * jax.nn.sigmoid(50.0 * (jnp.linalg.norm(x) - p["inner"]))
            ),
            d,
            parameters={"inner": inner, "outer": outer},
        )
        value, stderr = tg.log_probability(jnp.zeros(d), jnp.eye(d), ring)
        radii = np.linspace(0.0, 12.0, 200_001)
        kept = 1 / (1 + np.exp(-50 * (outer - radii))) / (1 + np.exp(-50 * (radii - inner)))
        truth = np.log(np.trapezoid(kept * stats.chi.pdf(radii, d), radii))
        assert abs(value - truth) < 5 * stderr + 1e-12
        bound = random.uniform(-1.0, 4.0)
        step = tg.Selection(lambda x, bound: x[0] > bound, d, log_concave=True, parameters=bound)
        loc = jnp.zeros(d).at[0].set(0.3)
        value, stderr = tg.log_probability(loc, jnp.eye(d), step)
        assert abs(value - stats.norm.logsf(bound - 0.3)) < 5 * stderr + 1e-12


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


@pytest.mark.full
@pytest.mark.parametrize("d", [2, 3])
def test_gradients_of_soft_rings(d):
    """In mean, covariance and parameters, as for discs."""
    loc, covariance = jnp.array([0.2, 0.9, -0.4])[:d], 0.3 + 0.7 * jnp.eye(d)
    curve = {"center": jnp.array([0.4, -0.3, 0.1])[:d], "inner": 0.8, "outer": 1.7}
    r, weights = np.polynomial.legendre.leggauss(200)
    r, weights = 2.5 + 2.5 * r, 2.5 * weights
    z, of_z = np.polynomial.legendre.leggauss(40) if d == 3 else (np.zeros(1), np.ones(1))
    angles, s = np.arange(120) * 2 * np.pi / 120, np.sqrt(1.0 - z**2)[:, None]
    ways = np.stack([s * np.cos(angles), s * np.sin(angles), z[:, None] + 0.0 * angles])[:d]
    logs_of_ways = np.log(np.repeat(of_z, 120) * 2 * np.pi / 120)

    def ring(radius, curve):
        edges = curve["outer"] - radius, radius - curve["inner"]
        return sum(jax.nn.log_sigmoid(8.0 * edge) for edge in edges)

    def truth(loc, covariance, curve):
        def shell(r):
            points = curve["center"] + r * ways.reshape(d, -1).T
            logs = jax.scipy.stats.multivariate_normal.logpdf(points, loc, covariance)
            return jax.nn.logsumexp(logs + logs_of_ways)

        kept = ring(r, curve) + np.log(weights * r ** (d - 1))
        return jax.nn.logsumexp(jax.lax.map(shell, jnp.asarray(r)) + kept)

    def estimated(loc, covariance, curve, key):
        kept = lambda x, curve: jnp.exp(ring(jnp.linalg.norm(x - curve["center"]), curve))
        region = tg.Selection(kept, d, parameters=curve)
        return tuple(tg.log_probability(loc, covariance, region, key=key))

    at, every = (loc, covariance, curve), (0, 1, 2)
    sloped = jax.jit(jax.value_and_grad(estimated, every, has_aux=True))
    draws = lambda key: sloped(*at, key)
    (values, errors), slopes = jax.lax.map(draws, jax.random.split(jax.random.key(0), 20))
    value, true_slopes = jax.jit(jax.value_and_grad(truth, every))(*at)
    assert np.all(np.abs(values - value) < 5 * errors) and np.max(errors) < 0.01
    for slope, true_slope in zip(*map(jax.tree.leaves, (slopes, true_slopes))):
        spread = np.std(slope, axis=0, ddof=1) / 20**0.5
        assert np.all(np.abs(np.mean(slope, axis=0) - true_slope) < 5 * spread + 1e-12)
