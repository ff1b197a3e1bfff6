"""Values and derivatives by Exact, many problems at a time."""

import jax
import numpy as np

import truncgauss as tg

EXACT = tg.Exact()


def log_prob_by(method):
    def log_prob(loc, covariance, low, high):
        return tg.log_probability(loc, covariance, tg.Box(low, high), method).log_prob

    return log_prob


log_prob = log_prob_by(EXACT)
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
