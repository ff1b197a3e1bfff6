"""The arguments of the distributions: one form of a covariance, limits or a region, and checks."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import solve_triangular
from numpy.typing import NDArray

from truncgauss.arrays.pytrees import check_numbers, is_concrete, is_staged
from truncgauss.gaussian.covariances import Covariance, CovarianceMatrix, ScaleTril, as_covariance
from truncgauss.gaussian.problem import Problem, as_problem
from truncgauss.gaussian.regions.box import Box
from truncgauss.gaussian.regions.region import Region


def compile_time_constants(values: Any) -> contextlib.AbstractContextManager[Any]:
    """A context in which computations on constants give constants, even inside a traced model."""
    # Outside of a trace they do so anyway, and there JAX would run what is constant in each program
    # operation by operation.
    constant = is_staged() and is_concrete(values)
    return jax.ensure_compile_time_eval() if constant else contextlib.nullcontext()


def common_arrays(owner: str, **values: Any) -> list[Array]:
    """The values as arrays of one floating dtype and one shape.

    Raises:
        ValueError: if the shapes do not broadcast.
    """
    dtype = common_dtype(values)
    with compile_time_constants(values), np.errstate(over="ignore"):
        arrays = {name: jnp.asarray(value, dtype) for name, value in values.items()}
        try:
            return list(jnp.broadcast_arrays(*arrays.values()))
        except ValueError:
            shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise ValueError(f"{owner}: the shapes do not broadcast: {shapes}.") from None


def of_equal_ranks(*arrays: Array) -> list[Array]:
    """The arrays with as many leading axes of length one as make their ranks equal."""
    rank = max(array.ndim for array in arrays)
    return [jax.lax.broadcast_to_rank(array, rank) for array in arrays]


def common_dtype(values: Any) -> Any:
    """The floating dtype of the arrays among the values; Python numbers do not change it."""
    for name, value in values.items() if isinstance(values, dict) else ():
        check_numbers(value, name)
    dtype = jnp.result_type(*jax.tree.leaves(values), 0.0)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"real numbers are expected, got dtype {dtype}.")
    return dtype


def truncated_problem(
    owner: str, loc: Any, covariances: dict[str, Any], low: Any, high: Any, region: Any
) -> Problem:
    """The problem of a mean, exactly one of three forms of a covariance, and limits or a region.

    Raises:
        ValueError: for no form, several, or a precision matrix that is none.
        TypeError: for a region that is no limits on linear functions of the coordinates.
    """
    values = {"loc": loc, **covariances, "low": low, "high": high, "region": region}
    dtype = common_dtype(values)
    with compile_time_constants(values):
        forms = {name: value for name, value in covariances.items() if value is not None}
        if any(isinstance(value, Region) for value in forms.values()):
            raise TypeError(f"{owner}: a region is given by its name: region=tg.Box(low, high).")
        if len(forms) != 1:
            vectors = any(np.ndim(x) < 2 for x in forms.values() if not isinstance(x, Covariance))
            named = " Bounds go by their names: low=..., high=..." if vectors else ""
            raise ValueError(
                f"{owner} needs exactly one of {', '.join(covariances)}; got "
                f"{' and '.join(forms) or 'none'}.{named}"
            )
        ((name, value),) = forms.items()
        if not isinstance(value, Covariance):
            value = jnp.asarray(value, dtype)
            if name == "precision_matrix":
                # With both axes reversed a lower factor is an upper one: matrix = U U^T, so U^-T is
                # lower, a factor of the inverse, which is not formed.
                matrix = CovarianceMatrix(value).covariance_matrix
                upper = CovarianceMatrix(matrix[..., ::-1, ::-1]).scale_tril[..., ::-1, ::-1]
                identity = jnp.broadcast_to(jnp.eye(matrix.shape[-1], dtype=dtype), matrix.shape)
                inverse = solve_triangular(jnp.swapaxes(upper, -1, -2), identity, lower=True)
                if is_concrete(inverse) and np.isnan(inverse).any() and not np.isnan(value).any():
                    raise ValueError(
                        f"{owner}: precision_matrix must be symmetric and positive definite, got "
                        f"{value}."
                    )
                value = inverse
            value = as_covariance(value) if name == "covariance_matrix" else ScaleTril(value)
        region = one_region(owner, dtype, low, high, region, value.dimension)
        linear = region.linear() if isinstance(region, Region) else None
        if linear is None:
            raise TypeError(
                f"{owner}: region must be a tg.Box, a tg.Polyhedron or another region with linear "
                f"constraints, got {type(region).__name__}."
            )
        loc = jnp.asarray(loc, dtype)
        loc = jnp.full(value.dimension, loc) if loc.ndim == 0 else loc
        return as_problem(loc, value, linear)


def one_region(owner: str, dtype: Any, low: Any, high: Any, region: Any, d: int) -> Any:
    """The region, or a box with these limits; a scalar limit holds for all coordinates."""
    if region is None:
        with np.errstate(over="ignore"):  # a number beyond this precision is infinite
            low = jnp.asarray(-math.inf if low is None else low, dtype)
            high = jnp.asarray(math.inf if high is None else high, dtype)
        return Box(*(jnp.full(d, x) if x.ndim == 0 else x for x in (low, high)))
    if low is not None or high is not None:
        raise ValueError(f"{owner}: give bounds or a region, not both; a Box has its own bounds.")
    return region


def refuse(owner: str, what: str, refused: Any, stderr: Any, most: float | None = None) -> None:
    """Raise ValueError if an estimate is refused for its standard error; not while tracing."""
    if not is_concrete((refused, stderr)) or not np.any(refused):
        return
    worst = np.max(np.where(refused, stderr, -np.inf))
    bound = "" if most is None else f", more than max_stderr={most:g}"
    unknown = start = ""
    if np.isinf(worst):
        unknown = ": too few samples were effective to estimate it"
        start = "begin a sampler nearer to the observations (numpyro.infer.init_to_value), "
    raise ValueError(
        f"{owner}: the standard error of the {what} is {worst:.3g}{bound}{unknown}. Give the "
        f"method more points or use another one, {start}or allow for more: max_stderr=jnp.inf "
        "allows anything."
    )


def require(owner: str, name: str, value: Array, good: Callable[[Any], Any], expected: str) -> None:
    """Raise ValueError naming the first value that is not good; not while tracing."""
    if not is_concrete(value):
        return
    values = np.asarray(value)
    wrong = np.argwhere(~good(values))
    if len(wrong):
        where = tuple(int(i) for i in wrong[0])
        index = f" at index {where}" if where else ""
        raise ValueError(f"{owner}: {name} must be {expected}, got {values[where]}{index}.")


def is_positive(x: NDArray[Any]) -> NDArray[Any]:
    """Whether each number is positive and finite."""
    return np.isfinite(x) & (x > 0)
