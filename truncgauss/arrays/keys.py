"""Random keys of JAX, and the one that None stands for."""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, UInt32

from truncgauss.arrays.pytrees import as_jax_array

PRNGKey: TypeAlias = Key[Array, ""] | UInt32[Array, " words"]


def checked_key(key: Any) -> Any:
    """The key itself.

    Raises:
        TypeError: for anything but a JAX random key, such as its seed.
    """
    dtype = getattr(key, "dtype", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if not typed and not (dtype == jnp.uint32 and jnp.ndim(key) >= 1):
        raise TypeError(f"key must be jax.random.key(seed), got {key!r}.")
    return key


_DEFAULT_KEYS: dict[str, PRNGKey] = {}


def as_key(key: Any) -> PRNGKey:
    """The key itself, or jax.random.key(0) for None.

    Raises:
        TypeError: for anything but a JAX random key.
    """
    if key is not None:
        return checked_key(key)
    implementation = jax.config.jax_default_prng_impl  # type: ignore[attr-defined]
    if implementation in _DEFAULT_KEYS:
        return _DEFAULT_KEYS[implementation]
    with jax.ensure_compile_time_eval():
        if implementation == "threefry2x32":  # the same key, without compiling a program
            zeros = as_jax_array(np.zeros(2, np.uint32))
            key = jax.random.wrap_key_data(zeros, impl=implementation)
        else:
            key = jax.random.key(0, impl=implementation)
    if not isinstance(key, jax.core.Tracer):  # as under `jax.shard_map`, which traces even that
        _DEFAULT_KEYS[implementation] = key
    return key
