"""Programs of little effort: loops in one kernel give the numbers of many kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from truncgauss import compiling
from truncgauss.separation import kernel


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
