"""Exact for polygons: near-singular covariances, duplicated and nearly parallel faces, far tails.

The truths are integrals over one coordinate between all vertices, by mpmath with 40 digits.
"""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg

INF = np.inf


def truth(loc, matrix, rows, low, high):
    """log P by Gauss-Legendre rules in z_1, z = L^-1 (x - loc) turned by 0.3."""
    with mp.workdps(40):
        first = mp.sqrt(matrix[0][0])
        slope = mp.mpf(matrix[1][0]) / first
        second = mp.sqrt(mp.mpf(matrix[1][1]) - slope**2)
        c, s = mp.cos(0.3), mp.sin(0.3)
        faces = []
        for a, *limits in zip(rows, low, high):
            a = [mp.mpf(float(x)) for x in a]
            b, d = a[0] * first + a[1] * slope, a[1] * second
            middle = a[0] * loc[0] + a[1] * loc[1]
            for limit, sign in zip(limits, (1, -1)):
                if np.isfinite(limit):
                    side = sign * (mp.mpf(float(limit)) - middle)
                    faces.append((sign * (b * c + d * s), sign * (d * c - b * s), side))
        return float(mp.log(_integral(faces)))


def _integral(faces):
    def inside(t, s):
        return all(p * t + q * s >= r - mp.mpf(10) ** -30 * (1 + abs(r)) for p, q, r in faces)

    points = [(r * p / (p * p + q * q), r * q / (p * p + q * q)) for p, q, r in faces]
    vertices = []
    for i, (p, q, r) in enumerate(faces):
        for u, v, w in faces[:i]:
            if (det := p * v - u * q) != 0:
                vertices.append(((r * v - w * q) / det, (p * w - u * r) / det))
    near = min((t * t + s * s, t) for t, s in [(0, 0), *points, *vertices] if inside(t, s))
    reach = mp.sqrt(near[0] + 180)
    steps = [mp.mpf(float(x)) for x in np.geomspace(1e-4, 2 * float(reach), 60)]
    ends = [near[1] + sign * x for x in steps for sign in (-1, 1)] + [near[1], -reach, reach]
    ends = sorted(x for x in [*ends, *(t for t, _ in vertices)] if -reach <= x <= reach)
    nodes, weights = np.polynomial.legendre.leggauss(24)
    total = mp.mpf(0)
    for left, right in zip(ends, ends[1:]):
        for x, w in zip(nodes, weights):
            t = left + (right - left) * (1 + mp.mpf(x)) / 2
            total += (right - left) / 2 * mp.mpf(w) * _mass(faces, t) * mp.npdf(t)
    return total


def _mass(faces, t):
    below = max(((r - p * t) / q for p, q, r in faces if q > 0), default=-mp.inf)
    above = min(((r - p * t) / q for p, q, r in faces if q < 0), default=mp.inf)
    if below >= above:
        return mp.mpf(0)
    if below + above < 0:
        below, above = -above, -below
    return (mp.erfc(below / mp.sqrt(2)) - mp.erfc(above / mp.sqrt(2))) / 2


def matrix_of(correlation):
    return np.array([[1.0, correlation], [correlation, 1.0]])


def hexagon(center, size):
    angles = 0.1 + np.arange(6) * np.pi / 3
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return rows, np.full(6, -INF), rows @ np.array(center) + size


def duplicated():
    rows = np.array([[0.7, -0.4], [0.1, 0.3], [0.2, 1.0], [-1.0, -0.5]])
    rows[1] = rows[0] * 1.7
    return rows, np.array([-0.3, -0.3 * 1.7, -1.0, -INF]), np.array([0.5, 0.5 * 1.7, INF, 0.9])


def nearly_parallel():
    rows = np.array([[1.0, 1.0], [1.0, 1.0 + 1e-8], [1.0, -0.2], [0.3, 1.0]])
    return rows, np.array([-0.5, -0.5, -1.0, -INF]), np.array([1.0, INF, 2.0, 0.8])


PROBLEMS = {
    "nearly singular": (matrix_of(0.99995), *nearly_parallel()),
    "more nearly singular": (matrix_of(-0.9999999), *duplicated()),
    "duplicated": (matrix_of(0.5), *duplicated()),
    "far": (matrix_of(0.3), *hexagon([30.0, -20.0], 1.0)),
    "small and far": (matrix_of(-0.9), *hexagon([12.0, 9.0], 1e-3)),
}


@pytest.mark.quick("duplicated", "small and far")
@pytest.mark.parametrize("name", [*PROBLEMS])
def test_polygons(name):
    matrix, *limits = PROBLEMS[name]
    result = tg.log_probability(np.zeros(2), matrix, tg.Polyhedron(*limits))
    exact = truth(np.zeros(2), matrix, *limits)
    assert abs(result.log_prob - exact) < 1e-10 * max(1.0, abs(exact)) + 5 * result.stderr
    assert result.stderr < 1e-6 * abs(exact)
    assert name != "far" or exact < -500


@pytest.mark.full
def test_gradients_and_hessians_of_a_polygon():
    """Differences of values and of gradients, in mean, covariance factor, rows and limits."""
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(4, 2))
    middle = rows @ rng.normal(size=2)
    start = [0.1, 0.2, 1.0, 0.9, 0.5, *rows.ravel(), *middle - 0.7, *middle + 0.4]

    def value(v):
        factor = jnp.array([[v[2], 0.0], [v[3], v[4]]])
        region = tg.Polyhedron(v[5:13].reshape(4, 2), v[13:17], v[17:])
        return tg.log_probability(v[:2], factor @ factor.T, region).log_prob

    point, step = jnp.array(start), 1e-5 * jnp.eye(len(start))
    gradient = jax.jit(jax.grad(value))
    values = jax.jit(jax.vmap(value))
    slopes = (values(point + step) - values(point - step)) / 2e-5
    np.testing.assert_allclose(gradient(point), slopes, atol=1e-8)
    curves = jax.vmap(gradient)
    differences = (curves(point + step) - curves(point - step)) / 2e-5
    np.testing.assert_allclose(jax.hessian(value)(point), differences, atol=1e-6)


@pytest.mark.full
def test_the_slope_of_a_face_that_is_there_twice_is_counted_once():
    """P(-1 < X_1 < h) with h twice: moved together, phi(h) / P."""
    high = stats.norm.cdf(0.5) - stats.norm.cdf(-1.0)

    def value(h):
        rows = jnp.array([[1.0, 0.0], [3.0, 0.0]])
        region = tg.Polyhedron(rows, jnp.array([-1.0, -INF]), jnp.stack([h, 3.0 * h]))
        return tg.log_probability(jnp.zeros(2), jnp.eye(2), region).log_prob

    found, slope = jax.value_and_grad(value)(0.5)
    np.testing.assert_allclose([found, slope], [np.log(high), stats.norm.pdf(0.5) / high], 1e-12)


@pytest.mark.full
def test_moments_of_a_polygon():
    """Of a triangle, by a rule of two dimensions; NaN for an empty one."""
    matrix = matrix_of(0.5)
    region = tg.Polyhedron([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0.0, 0.0, -INF], [INF, INF, 1.0])
    nodes, weights = np.polynomial.legendre.leggauss(40)
    u, w = 0.5 * (1 + nodes), 0.5 * weights
    x, y = np.broadcast_arrays(u[:, None], (1 - u[:, None]) * u)
    points = np.stack([x, y], axis=-1).reshape(-1, 2)
    shares = np.outer(w * (1 - u), w).ravel()
    shares = shares * stats.multivariate_normal([0, 0], matrix).pdf(points)
    log_prob = tg.log_probability(np.zeros(2), matrix, region).log_prob
    np.testing.assert_allclose(log_prob, np.log(shares.sum()), atol=1e-13)
    found = tg.truncated_moments(np.zeros(2), matrix, region)
    mean = shares @ points / shares.sum()
    covariance = np.cov(points.T, aweights=shares, ddof=0)
    np.testing.assert_allclose(found.mean, mean, atol=1e-13)
    np.testing.assert_allclose(found.covariance, covariance, atol=1e-13)
    empty = tg.Polyhedron([[1.0, 0.0], [1.0, 0.0]], [-INF, 1.0], [0.0, INF])
    assert tg.log_probability(np.zeros(2), matrix, empty) == (-INF, 0.0)
    assert np.all(np.isnan(tg.truncated_moments(np.zeros(2), matrix, empty).mean))
