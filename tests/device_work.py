"""Everything that computes, spread over the devices of a process or of several.

`JAX_NUM_CPU_DEVICES=... python tests/device_work.py NAME ...` compares the results of each name
with those of one device. With `JOIN="HOST:PORT COUNT INDEX"` in the environment it is one of
several processes.
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
    jax.distributed.initialize(meeting, int(num_processes), int(index))

LIMIT = 1200  # seconds, after which a stand-still is reported
COVARIANCE, REGION = 0.5 * np.eye(4) + 0.5, tg.Box(np.full(4, -1.0), np.full(4, 1.5))
MEANS = np.linspace(-1.0, 1.0, 7)[:, None] + np.zeros(4)  # a prime number of rows
FEW = tg.Separation(32, 5, tilted=False)  # a prime number of replicates
# Newton steps end where they gain nothing that a reader would see; on the way rounding may decide
# whether one more is made.
ENDS = {"fit": 1e-10, "fit_observations": 1e-8, "fit_mixture": 1e-7, "fit_shift": 1e-8}
# Standard errors of moments are differences of replicates: what rounding leaves of the moments,
# several times over, since they are widened by the square of the differences' skewness.
MORE, ERRORS = 8.0, {2: 0, 3: 1}
PLANNED = tg.Separation(32, 5)


def log_prob(loc, covariance=COVARIANCE, method=FEW):
    return tg.log_probability(loc, covariance, REGION, method).log_prob


def mean(loc):
    return tg.truncated_moments(loc, COVARIANCE, REGION, FEW).mean.sum()


def draws(loc):
    return tg.truncated_samples(jax.random.key(1), loc, COVARIANCE, REGION, 20)


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
    "values under vmap": of_rows(jax.vmap(log_prob)),
    "gradients under vmap": of_rows(jax.jit(jax.vmap(jax.value_and_grad(log_prob)))),
    "Hessians under vmap": of_rows(jax.vmap(jax.hessian(log_prob))),
    "moments under vmap": of_rows(
        jax.vmap(lambda loc: tg.truncated_moments(loc, COVARIANCE, REGION, FEW).mean)
    ),
    "draws under vmap": of_rows(jax.vmap(draws)),
    "moments": of_rows(lambda loc: tg.truncated_moments(loc, COVARIANCE, REGION, FEW)),
    "moments of one problem": of_replicates(
        lambda loc: tg.truncated_moments(loc, COVARIANCE, REGION, FEW)
    ),
    "moments of particles": of_replicates(
        lambda loc: tg.truncated_moments(
            loc, COVARIANCE, REGION, tg.SequentialMonteCarlo(64, 5)
        ).mean
    ),
    "slope of moments": of_rows(jax.jit(jax.grad(mean))),
    "draws": of_rows(draws),
    "draws of one problem": of_replicates(draws),
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
    held = [len(leaf.sharding.device_set) for leaf in leaves if isinstance(leaf, jax.Array)]
    return [np.asarray(leaf) for leaf in leaves], max(held, default=1)


def assert_same(name, mesh, tolerance=1e-12):
    """Work on a mesh gives the numbers of one device, and lies on the devices of the mesh."""
    (one, _), (many, held) = results(name, tg.parallel.device_mesh(1)), results(name, mesh)
    of_moments = name in ("moments", "moments of one problem")
    for part, (expected, result) in enumerate(zip(one, many, strict=True)):
        error = of_moments and part in ERRORS
        size = one[ERRORS[part]] if error else expected
        scale = np.abs(size[np.isfinite(size)]).max(initial=0.0)
        allowed = scale * max(tolerance, ENDS.get(name, 0.0)) * (MORE if error else 1.0)
        np.testing.assert_allclose(result, expected, 0.0, allowed, err_msg=f"{name}, part {part}")
    anywhere = "fit" in name or name in ("default", "draws of one problem")
    assert anywhere or held == mesh.size, (name, held)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    for name in sys.argv[1:]:
        assert_same(name, tg.parallel.device_mesh(), 1e-12 if jax.config.jax_enable_x64 else 1e-6)
