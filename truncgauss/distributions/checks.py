"""The arguments of the distributions: arrays of one dtype, and checks."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from truncgauss.arrays.pytrees import check_numbers, is_concrete, is_staged


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


def as_value(distribution: Any, value: Any, parameter: Array) -> Array:
    """A value of a distribution as an array of its dtype.

    Raises:
        ValueError: for a value of pandas that names the coordinates otherwise than the parameters.
    """
    if hasattr(value, "iloc") and parameter.ndim:
        from truncgauss.arrays.coordinates import check_one_order, coordinate_labels

        owner, names = type(distribution).__name__, coordinate_labels(value)
        check_one_order(**{owner: distribution, "its value": value})
        if distribution.coordinate_names is None and names != list(range(len(names))):
            raise ValueError(
                f"{owner}: the value has the coordinates {names}, and a distribution that JAX "
                "copied keeps no names. Give `.to_numpy()`, in the order of the parameters."
            )
    if not isinstance(value, jax.Array | float | int):
        from truncgauss.words.misfits import refuse_no_numbers

        refuse_no_numbers("value must be numbers", value)
    return jnp.asarray(value, common_dtype((value, parameter)))


def of_equal_ranks(*arrays: Array) -> list[Array]:
    """The arrays with as many leading axes of length one as make their ranks equal."""
    rank = max(array.ndim for array in arrays)
    return [jax.lax.broadcast_to_rank(array, rank) for array in arrays]


def common_dtype(values: Any) -> Any:
    """The floating dtype of the arrays among the values; Python numbers do not change it."""
    for name, value in (values if isinstance(values, dict) else {"value": values}).items():
        check_numbers(value, name)
    leaves = [np.asarray(x) if hasattr(x, "iloc") else x for x in jax.tree.leaves(values)]
    dtype = jnp.result_type(*leaves, 0.0)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"real numbers are expected, got dtype {dtype}.")
    return dtype


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
