"""Programs of little effort: loops in one kernel give the numbers of many kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from truncgauss import compiling
from truncgauss.separation import kernel
from truncgauss.special import separation_step


@pytest.fixture(autouse=True)
def as_users_compile(monkeypatch):
    """Without the flags of the tests, which leave every effort to XLA."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def recursion(strict, rows):
    def step(mean, row):
        value = jnp.tanh(row + mean)
        return value, value * mean

    return kernel.sweep(strict, step, rows, rows.shape[-1])


def inputs(height, lanes, dtype, leading=((), ())):
    generator = np.random.default_rng(height)
    shapes = (*leading[0], height, height), (*leading[1], height, lanes)
    strict, rows = (generator.normal(size=shape).astype(dtype) for shape in shapes)
    return jnp.asarray(np.tril(strict, -1) / height), jnp.asarray(rows)  # means of about 1


@pytest.mark.parametrize("effort", [compiling.LIGHT, compiling.MEDIUM])
@pytest.mark.parametrize(("height", "lanes"), [(1, 7), (5, 256), (32, 3), (40, 1), (70, 4100)])
def test_a_recursion_in_one_kernel(height, lanes, effort):
    for dtype in (np.float64, np.float32):
        given = inputs(height, lanes, dtype)
        found = compiling.Compiled(recursion)(*given, effort=effort)
        for one, other in zip(found, jax.jit(recursion)(*given)):
            np.testing.assert_allclose(one, other, atol=64 * np.finfo(dtype).eps)


@pytest.mark.parametrize("leading", [((3,), ()), ((), (3,)), ((3,), (3,))])
@pytest.mark.parametrize("height", [6, 40])
def test_rows_of_recursions_in_one_kernel(height, leading):
    axes = tuple(0 if shape else None for shape in leading)
    rows = jax.vmap(recursion, in_axes=axes)
    given = inputs(height, 33, np.float64, leading)
    found = compiling.Compiled(rows)(*given, effort=compiling.MEDIUM)
    for one, other in zip(found, jax.jit(rows)(*given)):
        np.testing.assert_allclose(one, other, atol=1e-14)


@pytest.mark.parametrize("derivative", [jax.jacfwd, jax.jacrev])
def test_a_recursion_in_one_kernel_is_differentiated(derivative):
    def slope(strict, rows):
        return derivative(lambda rows: recursion(strict, rows)[1].sum())(rows)

    given = inputs(5, 4, np.float64)
    found = compiling.Compiled(slope)(*given, effort=compiling.MEDIUM)
    np.testing.assert_allclose(found, jax.jit(slope)(*given), atol=1e-14)


def test_only_programs_of_little_effort_are_marked():
    given = inputs(5, 4, np.float64)
    mark = "xla_cpu_small_call"
    assert mark not in jax.jit(recursion).lower(*given).as_text()
    texts = []

    def function(*given):
        texts.append(jax.jit(recursion).lower(*given).as_text())
        return recursion(*given)

    program = compiling.Compiled(function)
    program(*given, effort=None)
    assert mark not in texts.pop()
    program(*given, effort=compiling.LIGHT)
    assert mark in texts.pop()


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (50, 256), (3, 9, 40)])
def test_slopes_of_intervals_in_one_kernel(shape):
    generator = np.random.default_rng(len(shape))
    for dtype in (np.float64, np.float32):
        low = generator.normal(size=shape).astype(dtype)
        width = np.where(generator.uniform(size=shape) < 0.2, np.inf, 1.5).astype(dtype)
        high, uniform = low + width, generator.uniform(size=shape).astype(dtype)
        draw, log_mass = separation_step(low, high, uniform, width)

        def slopes(*given):
            return compiling.in_one_kernel(kernel.interval_slopes, *given)

        given = low, high, width, log_mass, draw, uniform
        found = compiling.Compiled(slopes)(*map(jnp.asarray, given), effort=compiling.MEDIUM)
        for one, other in zip(found, jax.jit(slopes)(*given)):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=16 * np.finfo(dtype).eps)


def covariance_of(d, *leading):
    root = np.random.default_rng(d).normal(size=(*leading, d, d + 2)) / d**0.5
    return root @ np.swapaxes(root, -1, -2)


def box_of(d):
    low = np.linspace(-1.5, 0.0, d)
    return tg.Box(low, np.where(np.arange(d) % 3 == 1, np.inf, low + 2.0))


FORMS = {
    "four": (np.zeros(4), covariance_of(4), box_of(4)),
    "particles": (np.zeros(5), covariance_of(5), box_of(5)),
    "two blocks": (np.zeros(40), covariance_of(40), box_of(40)),
    "single precision": tuple(
        jax.tree.map(np.float32, x) for x in (np.zeros(6), covariance_of(6), box_of(6))
    ),
    "rows": (np.linspace(-0.5, 0.5, 3)[:, None] + np.zeros(6), covariance_of(6), box_of(6)),
    "rows of covariances": (np.zeros(5), covariance_of(5, 3), box_of(5)),
    "many rows": (np.linspace(-1, 1, 200)[:, None] + np.zeros(4), covariance_of(4), box_of(4)),
    "a factor": (np.zeros(5), tg.ScaleTril(np.linalg.cholesky(covariance_of(5))), box_of(5)),
    "fewer half spaces": (
        np.zeros(6), covariance_of(6), tg.Polyhedron(np.eye(6)[:4] + 0.2, -1.0, 1.5)
    ),
    "more half spaces": (
        np.zeros(3), covariance_of(3), tg.Polyhedron(covariance_of(5)[:, :3], -1.0, 1.5)
    ),
    "a singular covariance": (
        np.zeros(5), np.linalg.multi_dot([c := covariance_of(7)[:5, :3], c.T]), box_of(5)
    ),
}  # fmt: skip
SITES = tg.Separation(num_points=64, num_replicates=4)
METHODS = {
    "four": tg.Automatic(rtol=0.005, max_draws=2**20),
    "rows": tg.Automatic(rtol=0.02),
    "particles": tg.SequentialMonteCarlo(num_particles=256, num_replicates=4),
    "rows of covariances": tg.Separation(num_points=48, num_replicates=3, twisted=False),
}


@pytest.mark.slow  # with the flags of the tests these paths are not taken
@pytest.mark.parametrize("form", FORMS)
def test_programs_of_little_effort_give_the_numbers_of_others(form, monkeypatch):
    loc, covariance, region = FORMS[form]
    method = METHODS.get(form, SITES)

    def results():
        value = lambda loc: tg.log_probability(loc, covariance, region, method).log_prob.sum()
        found = value(loc), jax.grad(value)(jnp.asarray(loc))
        if form not in ("two blocks", "many rows"):
            return found
        return *found, *tg.truncated_moments(loc, covariance, region, method)[:2]

    found = results()
    monkeypatch.setenv("XLA_FLAGS", "--unused")  # read by `Compiled`; XLA has read its own before
    rtol = 1e-4 if form == "single precision" else 1e-9
    for one, other in zip(found, results()):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol)
