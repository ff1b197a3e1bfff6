"""Values and derivatives by Exact, many problems at a time."""

import jax
import numpy as np

import truncgauss as tg

EXACT = tg.Exact()


def log_prob(loc, covariance, low, high):
    return tg.log_probability(loc, covariance, tg.Box(low, high), method=EXACT).log_prob


ROWS = 18


padded_slopes = jax.jit(jax.vmap(jax.value_and_grad(log_prob, (0, 1, 2, 3))))


def rows_of_slopes(*inputs):
    """Values and gradients of many problems, padded to one size so that each d compiles once."""
    inputs = [np.asarray(part) for part in inputs]
    size = len(inputs[0])
    full = [np.concatenate([part, part[:1].repeat(ROWS - size, 0)]) for part in inputs]
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:size], padded_slopes(*full))


def rows_of_log_prob(*inputs):
    return rows_of_slopes(*inputs)[0]


curvature = jax.jit(jax.hessian(log_prob, (0, 2, 3)))


def check_curvature(loc, covariance, low, high, rtol):
    """The Hessian against differences of the gradient; Plackett's identity for the covariance."""
    stacked = np.concatenate([loc, low, high])
    d = len(loc)
    h = 1e-5
    moved = stacked + h * np.concatenate([np.eye(3 * d), -np.eye(3 * d)])
    repeated = np.broadcast_to(covariance, (6 * d, d, d))
    _, slopes = rows_of_slopes(moved[:, :d], repeated, moved[:, d : 2 * d], moved[:, 2 * d :])
    slopes = np.concatenate([slopes[0], slopes[2], slopes[3]], -1)
    differences = (slopes[: 3 * d] - slopes[3 * d :]) / (2 * h)
    blocks = curvature(loc, covariance, low, high)
    np.testing.assert_allclose(np.block([list(row) for row in blocks]), differences, rtol, 1e-8)
    _, (by_loc, by_covariance, _, _) = rows_of_slopes(
        *(x[None] for x in (loc, covariance, low, high))
    )
    plackett = 0.5 * (blocks[0][0] + np.outer(by_loc[0], by_loc[0]))
    np.testing.assert_allclose(by_covariance[0], plackett, rtol=1e-9, atol=1e-9)
