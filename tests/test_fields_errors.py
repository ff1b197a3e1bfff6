"""The stated error of log P and of likelihoods of random fields, beside long runs of the matrix."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse

import truncgauss as tg

METHOD = tg.FieldParticles()  # its defaults
LONG = tg.FieldParticles(num_particles=2000, num_replicates=32)


def kernel_of(rng):
    """Exponential, Matern 3/2 or 5/2, with a range, a variance and a nugget, at random."""
    degree, reach, sill = rng.integers(3), 10.0 ** rng.uniform(-1.0, 0.0), rng.uniform(0.5, 2.0)

    def kernel(x, y):
        square = jnp.sum((x - y) ** 2)
        r = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0) / reach
        return sill * jnp.exp(-r) * [1.0, 1.0 + r, 1.0 + r + r**2 / 3.0][degree]

    return kernel, rng.uniform(0.1, 0.5)


def points_of(kind, n, rng):
    side = round(n**0.5)
    if kind == "grid":
        return np.stack(np.divmod(np.arange(n), side), 1) / side
    return {"line": np.sort(rng.uniform(0, 5, (n, 1)), 0), "scattered": rng.uniform(0, 1, (n, 2))}[
        kind
    ]


def field_of(kind, n, rng, exact=None):
    if kind == "tree":
        above = [rng.integers(max(0, i - 20), i) if i else n for i in range(n)]
        weights = np.where(np.arange(n) > 0, rng.uniform(-0.9, 0.95, n), 0.0)
        return tg.Directed(
            np.array(above)[:, None], weights[:, None], rng.uniform(0.4, 1.0, n), noise=0.2
        )
    if kind == "precision":
        side = round(n**0.5)
        line = sparse.diags_array([2.0, -1.0, -1.0], offsets=[0, 1, -1], shape=(side, side))
        unit = sparse.eye_array(side)
        whole = sparse.kron(line, unit) + sparse.kron(unit, line)
        matrix = sparse.csr_array(whole + 10.0 ** rng.uniform(-2, 0) * sparse.eye_array(side**2))
        return tg.Directed.from_precision(matrix.indptr, matrix.indices, matrix.data, noise=0.3)
    kernel, noise = kernel_of(rng)
    few = {} if exact is None else {"neighbours": n // 4, "block": n // 10}
    return tg.Directed.from_points(points_of(kind, n, rng), kernel, noise=noise, exact=exact, **few)


def limits_of(matrix, rng):
    """Rows with upper limits, with two, with either, and with exact and missing entries too."""
    n, deviations = len(matrix), np.sqrt(np.diagonal(matrix))
    shares = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0.5, 0.5, 0, 0], [0.3, 0.2, 0.4, 0.1]])
    kind = np.stack([rng.choice(4, n, p=p) for p in shares])
    high = deviations * rng.normal(rng.uniform(0.0, 1.0, (4, 1)), 0.3, (4, n))
    low = high - deviations * rng.uniform(1.0, 3.0, (4, n))
    value = rng.normal(size=(4, n)) @ np.linalg.cholesky(matrix).T
    low = np.select([kind == 1, kind == 2], [low, value], -np.inf)
    return low, np.select([kind < 2, kind == 2], [high, value], np.inf)


@functools.partial(jax.jit, static_argnums=3)
def likelihoods(rows, field, key, method):
    """One program for all fields of a shape."""
    return tg.log_likelihood(rows, jnp.zeros(rows.lower.shape[1]), field, method, key)


def ratios(kind, seed, n=100, exact=None):
    """Estimates less those of long runs of the matrix, in units of the stated errors, and both."""
    field = field_of(kind, n, np.random.default_rng(seed), exact)
    whole = field if exact is None else field_of(kind, n, np.random.default_rng(seed))
    matrix = np.asarray(whole.covariance_matrix)
    rows = tg.Observations(*limits_of(matrix, np.random.default_rng(seed + 1000)))
    found = likelihoods(rows, field, jax.random.key(seed), METHOD)
    truth = likelihoods(rows, tg.Directed.from_matrix(matrix), jax.random.key(seed + 1000), LONG)
    error = jnp.hypot(found.stderr, truth.stderr)
    return np.asarray((found.log_prob - truth.log_prob) / error), found, truth


@pytest.mark.slow
def test_errors_of_exact_fields_are_as_stated():
    """Of 20 ratios by 16 normal replicates the root mean square is 1.02 +- .17."""
    kinds = ["line", "grid", "scattered", "tree", "precision"]
    found = np.stack([ratios(kind, seed)[0] for seed, kind in enumerate(kinds)])
    assert 0.7 < np.sqrt(np.mean(found**2)) < 1.4
    assert np.abs(found).max() < 4.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["line", "scattered"])
def test_errors_of_approximate_fields_are_not_stated_too_small(kind):
    """By 25 neighbours of 100; what half of them would change exceeds the error."""
    found, ours, _ = ratios(kind, 0, exact=False)
    assert np.sqrt(np.mean(found**2)) < 1.6
    assert np.all(np.isfinite(ours.stderr))
