"""What holds in the precision that JAX is set to: float64 as the other tests, or JAX's float32.

`make test-float32` runs this file in a process without float64. Tolerances are in units of the
precision, except where the answer is a Monte Carlo estimate.
"""

import contextlib
import doctest
import importlib
import io
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import PROBLEMS
from scipy import special, stats

import truncgauss as tg

INF = jnp.inf
FLOAT = jnp.result_type(float)
EPS = float(jnp.finfo(FLOAT).eps)
GRID = np.concatenate([-np.logspace(4, -4, 33), [0.0], np.logspace(-4, 4, 33)])
KNOWN = {
    "log_ndtr": special.log_ndtr,
    "log_sigmoid": special.log_expit,
    "sigmoid": special.expit,
    "log1pexp": lambda x: -special.log_expit(-x),
}


@pytest.mark.parametrize("name", KNOWN)
def test_special_functions_are_right_and_their_slopes_finite(name):
    function = getattr(tg.special, name)
    x = jnp.asarray(GRID, FLOAT)
    value, slope = function(x), jax.vmap(jax.grad(function))(x)
    assert value.dtype == slope.dtype == FLOAT
    known = KNOWN[name](GRID.astype(FLOAT).astype(float))
    # A value below 1 is a tail there: rounding of x alone moves it by eps x^2.
    allowed = 64 * EPS * np.where(np.abs(known) < 1, 1 + GRID**2, 1.0) * np.abs(known)
    assert np.all(np.abs(value - known) <= allowed + float(jnp.finfo(FLOAT).tiny))
    assert np.all(np.isfinite(slope))


def test_the_truncated_normal_distribution_in_its_tails():
    lows, widths = np.array([-3.0, 0.5, 4.0, 9.0, 50.0, 1e4])[:, None], np.array([1e-3, 1.0, INF])
    low, high = (x.astype(FLOAT) for x in np.broadcast_arrays(lows, lows + widths))
    distribution = tg.TruncatedNormal(0.0, 1.0, low=low, high=high)
    mean, *others = distribution.mean, distribution.variance, distribution.entropy()
    for part in (mean, *others):
        assert part.dtype == FLOAT and np.all(np.isfinite(part))
    assert np.all((low <= mean) & (mean <= high)) and np.all(others[0] > 0)
    draws = np.asarray(distribution.sample(jax.random.key(0), (100,)))
    assert np.all((draws >= low) & (draws <= high))
    assert np.all(np.isfinite(distribution.log_prob(draws)))

    @jax.jit
    @jax.grad
    def slope(loc):
        return tg.TruncatedNormal(loc, 1.0, low=low, high=high).log_prob(draws).sum()

    assert np.all(np.isfinite(slope(np.zeros((6, 3), FLOAT))))


@pytest.mark.quick("exact")
@pytest.mark.parametrize(
    ("method", "d", "allowed"),
    [(tg.Exact(), 2, 0.0), (tg.Separation(256, 8), 5, 1e-2)],
    ids=["exact", "separation"],
)
def test_methods_are_right_with_finite_gradients(method, d, allowed):
    problems = [p for p in PROBLEMS if p.dimension == d and not p.tags & {"correlated", "singular"}]
    stack = lambda values: jnp.asarray(np.stack(list(values)), FLOAT)
    loc, low, high = (stack(getattr(p, k) for p in problems) for k in ("loc", "low", "high"))
    covariance = stack(p.covariance() for p in problems)

    def log_prob(loc):
        return tg.log_probability(loc, covariance, tg.Box(low, high), method).log_prob

    value, pull = jax.vjp(log_prob, loc)
    (gradient,) = pull(jnp.ones_like(value))
    truth = np.array([p.log_prob for p in problems])
    assert value.dtype == gradient.dtype == FLOAT and len(problems) > 10
    assert np.all(np.isfinite(gradient))
    # Rounding of the inputs moves log P by eps times the squared distance of the region.
    error = np.abs(value - truth) / np.maximum(1.0, np.abs(truth))
    np.testing.assert_array_less(error, allowed + 1e3 * EPS)


def test_a_fit_recovers_its_gaussian():
    rows = np.random.default_rng(0).normal(size=(4000, 2)) @ np.array([[1.0, 0.5], [0.0, 1.0]])
    seen = rows[(rows[:, 0] > 0.0) & (rows[:, 1] < 1.0)]
    fit = tg.fit_truncated_normal(seen.astype(FLOAT), low=[0.0, -INF], high=[INF, 1.0])
    assert fit.converged
    bound = stats.norm.ppf(1 - 1e-6)
    assert np.all(np.abs(fit.loc) < bound * fit.standard_errors.loc)


def examples():
    """Examples of the docstrings of the package, without those of packages that are extras."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for module in pkgutil.walk_packages(tg.__path__, "truncgauss."):
        if module.name.rpartition(".")[2] not in ("sklearn", "torch", "__main__"):
            yield from finder.find(importlib.import_module(module.name), module.name)


@pytest.mark.slow
def test_examples_of_docstrings_run_without_float64_too():
    """As in JAX's default mode; a warning of a truncated dtype is an error."""
    count = 0
    for found in examples():
        names = dict(found.globs) | {"jax": jax, "jnp": jnp, "np": np, "optax": optax, "tg": tg}
        for example in found.examples:
            if example.exc_msg is None:
                with jax.enable_x64(False), contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(example.source, found.name, "single"), names)
                count += 1
    assert count > 200
