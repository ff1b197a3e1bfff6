"""Everything that computes, spread over the devices of a process of its own.

`JAX_NUM_CPU_DEVICES=... python tests/device_work.py FILE NAME ...` writes the results of each name.
With `JOIN="HOST:PORT COUNT INDEX"` in the environment it is one of several processes.
"""

import faulthandler
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np

import truncgauss as tg
from experiments.large_dense import dense_blocks

if __name__ == "__main__" and "JOIN" in os.environ:  # before the first array is made
    meeting, num_processes, index = os.environ["JOIN"].split()
    tg.distributed.join(meeting, int(num_processes), int(index))

LIMIT = 1200  # seconds, after which a stand-still is reported
COVARIANCE, REGION = 0.5 * np.eye(4) + 0.5, tg.Box(np.full(4, -1.0), np.full(4, 1.5))
MEANS = np.linspace(-1.0, 1.0, 7)[:, None] + np.zeros(4)  # a prime number of rows
FEW = tg.Separation(32, 5, tilted=False)  # a prime number of replicates
PLANNED = tg.Separation(32, 5)


def log_prob(loc, covariance=COVARIANCE, method=FEW):
    return tg.log_probability(loc, covariance, REGION, method).log_prob


def of_rows(function):
    """A function of means for the rows of a batch."""
    return tg.parallel.rows, function, MEANS


def of_replicates(function):
    return tg.parallel.replicates, function, MEANS[2]


def own_limits(d, size=53):
    """Rows, each in a box of its own."""
    rows = np.random.default_rng(1).normal(size=(size, d))
    low = rows - np.random.default_rng(2).exponential(size=(size, d)) - 0.5
    return tg.Observations.exact(rows, region=tg.Box(low, np.inf))


LIMITED = own_limits(4)  # which cannot be made under a trace


def estimates(fit):
    return fit.estimates, fit.errors, fit.log_likelihood


def regression(_):
    x = np.linspace(0.0, 1.0, 101)
    y = np.maximum(x + np.random.default_rng(2).normal(size=101), 0.0)
    design = np.column_stack([np.ones(101), x])
    return estimates(tg.fit_regression(y, design, censored_low=0.0))


def mixture(_):
    low = np.random.default_rng(3).normal(size=101)
    rows = np.concatenate([low[low > -1.0], 4.0 + 0.5 * low])
    observed = tg.Observations.exact(rows, region=tg.Box([-1.0], [np.inf]))
    fit = tg.fit_mixture(observed, 2, num_starts=2)
    return fit.locs, fit.weights, fit.standard_errors.locs, fit.log_likelihood


def noisy(_):
    rows = np.abs(np.random.default_rng(4).normal(size=101)) + 0.1
    fit = tg.fit_truncated_normal(rows, low=0.0, noise=np.linspace(0.1, 0.5, 101)[:, None])
    return fit.loc, fit.covariance_matrix, fit.standard_errors.loc


def shift(_):
    counts = jnp.array([5.0, 20.0, 35.0, 45.0, 35.0, 20.0, 5.0])
    regions = tg.Box(MEANS[:, :2] - 1.0, MEANS[:, :2] + 1.0)
    return tg.fit_shift(counts, jnp.zeros(2), jnp.eye(2), regions, 100).params


def optimised(_):
    loss = lambda loc: -log_prob(MEANS + loc, method=FEW).sum()
    return tg.minimize(loss, jnp.full(4, 0.3), num_steps=5, progress=False).params


def likelihood(loc):
    of_loc = lambda loc: tg.log_likelihood(LIMITED, loc, COVARIANCE, FEW).log_prob
    return of_loc(loc), jax.grad(lambda loc: of_loc(loc).sum())(loc)


def dense(covariance):
    """A value and its gradient by blocks of few variables, of which one is filled up."""
    dense_blocks.LARGEST_BLOCK = 32
    method = dense_blocks.DenseBlocks(16, 5)
    region = tg.Box(np.full(len(covariance), -1.0), np.inf)
    of = lambda c: tg.log_probability(np.zeros(len(c)), c, region, method).log_prob
    return jax.value_and_grad(of)(covariance)


LARGE = np.eye(70) + 0.5 * np.exp(-0.1 * np.abs(np.subtract.outer(np.arange(70), np.arange(70))))
# Contexts, functions and what they are called with.
WORK = {
    "value": of_rows(lambda loc: log_prob(loc, method=PLANNED)),
    "one problem": of_replicates(lambda loc: log_prob(loc, method=PLANNED)),
    "default": of_rows(lambda loc: tg.log_probability(loc, COVARIANCE, REGION)),
    "gradient": of_rows(jax.jit(jax.grad(lambda loc: log_prob(loc).sum()))),
    "gradient by the covariance": (
        tg.parallel.rows, jax.jit(jax.grad(lambda c: log_prob(MEANS, c).sum())), COVARIANCE
    ),
    "gradient of one problem": of_replicates(jax.jit(jax.grad(log_prob))),
    "Hessian": of_rows(jax.jit(jax.hessian(lambda loc: log_prob(loc).sum()))),
    "Hessian of one problem": of_replicates(jax.jit(jax.hessian(log_prob))),
    "moments": of_rows(lambda loc: tg.truncated_moments(loc, COVARIANCE, REGION, FEW)),
    "moments of one problem": of_replicates(
        lambda loc: tg.truncated_moments(loc, COVARIANCE, REGION, FEW)
    ),
    "draws": of_rows(
        lambda loc: tg.truncated_samples(jax.random.key(1), loc, COVARIANCE, REGION, 20)
    ),
    "particles": of_replicates(lambda loc: log_prob(loc, method=tg.SequentialMonteCarlo(64, 5))),
    "dense blocks": (tg.parallel.replicates, dense, LARGE),
    "soft": of_replicates(lambda loc: log_prob(loc, method=tg.SoftMonteCarlo(100, 5))),
    "propagation": of_rows(lambda loc: log_prob(loc, method=tg.ExpectationPropagation())),
    "log_likelihood": (tg.parallel.rows, likelihood, np.zeros(4)),
    "fit": (tg.parallel.rows, optimised, None),
    "fit_shift": (tg.parallel.rows, shift, None),
    "fit_observations": (
        tg.parallel.rows, lambda _: estimates(tg.fit_observations(own_limits(2))), None
    ),
    "fit_regression": (tg.parallel.rows, regression, None),
    "fit_truncated_normal": (tg.parallel.rows, noisy, None),
    "fit_mixture": (tg.parallel.rows, mixture, None),
}  # fmt: skip


def results(name, mesh):
    """The numbers of a piece of work on a mesh, and how many devices held the first of them."""
    context, function, argument = WORK[name]
    with context(mesh):
        leaves = jax.tree.leaves(function(argument))
    arrays = {f"{name}/{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    held = [len(leaf.sharding.device_set) for leaf in leaves if isinstance(leaf, jax.Array)]
    return arrays | {f"{name}/devices": max(held, default=1)}


if __name__ == "__main__":
    path, *names = sys.argv[1:]
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    found: dict[str, object] = {}
    for name in names:
        found |= results(name, tg.parallel.device_mesh())
    np.savez(path, **found)
