"""Soft edges that are functions of the margin."""

import contextlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

from truncgauss.arrays.closures import hoisted, without_slopes
from truncgauss.arrays.pytrees import as_float_array, frozen_pytree, is_concrete, static_field
from truncgauss.gaussian.edges import Edge, with_limits
from truncgauss.special.intervals import nan_slope
from truncgauss.words.arguments import explained_class

# In place of an infinite margin, where a function may have no slope; 0 and 1 may be special to it.
_ORDINARY = 0.618
_TRIED = -100.0, -1.0, -0.1, 0.0, 0.1, 1.0, 100.0  # margins at which a new function is checked
_ABOVE_ONE = 16.0  # units of rounding by which a value may exceed 1


@explained_class
@frozen_pytree
class EdgeFunction(Edge):
    """The edge of a function of the margin, with the rule of derivatives that the function brings.

    `SoftMonteCarlo(edge=function)` makes one. The estimate is the mean of products of values, whose
    derivative is that of the products, sum_j f'(m_j) prod_{k != j} f(m_k): also of a step whose
    `jax.custom_jvp` or `jax.custom_vjp` has a slope where its value is 0. The weight is 1 at margin
    inf and 0 at -inf, with slopes 0. Where all values are 0, log P = -inf has derivatives NaN, but
    `fraction_not_truncated` has those of the mean; moments have NaN where any value is 0. A product
    below the smallest number is 0: many faces, or tails, need the logarithm.

    Args:
        function: maps margins, elementwise, to values from 0 to 1 that rise with the margin; in JAX
            (static: the same function object shares a compilation). It may hold one width for each
            face, or coordinate, in the order of `Region.margins`. Numbers over which it closes may
            be traced, and are differentiated, as those of a loss; the derivative is NaN by one that
            enters through comparisons alone.
        log: whether the function returns the logarithm of the value.

    Raises:
        ValueError: if a value lies outside of [0, 1], the function does not rise from margin -100
            to 100 or its rule of derivatives falls (not while tracing: values outside are NaN
            then), or it is not elementwise.
        TypeError: if the function is not written in JAX, or not callable.

    Example:
        >>> step = tg.EdgeFunction(lambda margin: jnp.clip(0.5 + margin, 0.0, 1.0))
        >>> step.value(jnp.array([-1.0, 0.1, jnp.inf]))
        Array([0. , 0.6, 1. ], dtype=float64)
    """

    function: Callable[..., Any] = static_field()
    log: bool = static_field(default=False)
    constants: tuple[Any, ...] = ()  # the traced numbers over which the function closed
    faces: tuple[int, ...] = static_field(default=())  # () or the number of its widths
    jumps: tuple[int, ...] = static_field(default=())  # constants without a derivative

    def __init__(self, function: Callable[[Any], Any], log: bool = False) -> None:
        if not callable(function) or isinstance(function, type | Edge):
            raise TypeError(f"EdgeFunction: needs a function of the margin, got {function!r}.")
        shape: tuple[int, ...] = ()
        with contextlib.suppress(ValueError):  # of a function that shows no signature
            signature = inspect.signature(function)
            try:
                signature.bind(None)
            except TypeError as error:
                raise TypeError(
                    "edge: must be a function of one argument, the margin inside a face; "
                    f"got one of {signature}."
                ) from error
        try:
            for _ in range(2):  # of one margin; of one for each width, where there are several
                margin = jax.ShapeDtypeStruct(shape, jnp.result_type(float))
                traced = hoisted(function, margin)
                shapes = [leaf.shape for leaf in jax.tree.leaves(traced.result)]
                if shapes == [shape] or len(shapes) != 1 or len(shapes[0]) != 1:
                    break
                shape = shapes[0]
            hash(traced.function)
        except (jax.errors.JAXTypeError, TypeError) as error:
            if str(error).startswith("a function "):  # which says why
                raise TypeError(f"edge: {error}") from error
            raise TypeError(
                "edge: JAX cannot trace the function. Write a `def` or a lambda of the margin with "
                "jax.numpy instead of numpy, and with jnp.where instead of `if`."
            ) from error
        if shapes != [shape]:
            raise ValueError(
                "edge: the function must map margins to values one by one; for margins of shape "
                f"{shape} it returns {len(shapes)} array(s) of shape {shapes}."
            )
        object.__setattr__(self, "function", traced.function)
        object.__setattr__(self, "log", bool(log))
        object.__setattr__(self, "constants", traced.constants)
        object.__setattr__(self, "faces", shape)
        object.__setattr__(self, "jumps", without_slopes(traced, margin))
        if not self.constants:
            self._check_values()

    @property
    def num_widths(self) -> int | None:
        return self.faces[0] if self.faces else None

    def _check_values(self) -> None:
        margins = np.reshape(_TRIED, (-1, *(1 for _ in self.faces)))
        with jax.ensure_compile_time_eval():
            mapped, pull = jax.vjp(self._mapped, jnp.asarray(margins))
            by_margin = pull(jnp.ones_like(mapped))[0]
        if not (is_concrete(mapped) and is_concrete(by_margin)):
            return  # under vmap, of a rule of one's own: a value out of range becomes NaN
        values, slopes = np.asarray(mapped), np.asarray(by_margin)
        low, high = (-np.inf, 0.0) if self.log else (0.0, 1.0)
        outside = (values < low) | (values > high + _ABOVE_ONE * np.finfo(values.dtype).eps)
        if outside.any():
            k = np.argwhere(outside)[0]
            if self.log:
                cure = "a logarithm of at most 0"
            else:
                cure = "from 0 to 1; if it is a logarithm, tg.EdgeFunction(function, log=True)"
            raise ValueError(
                f"edge: at margin {_TRIED[k[0]]} the function returns {values[tuple(k)]:.6g}, "
                f"expected {cure}."
            )
        if (values[0] > values[-1]).any():
            raise ValueError(
                f"edge: the function returns {values[0].max():.6g} at margin -100, which is far "
                f"outside, and {values[-1].min():.6g} at 100, far inside: it must rise. Change the "
                "sign of its argument."
            )
        if (values[0] == values[-1]).any():
            raise ValueError(
                f"edge: the function returns {values[0].min():.6g} at margin -100, which is far "
                "outside, and at 100, far inside: it must rise, as tg.special.sigmoid(50 * margin) "
                "does."
            )
        if slopes.min() < 0 and not slopes.max() > 0:
            margin = _TRIED[np.unravel_index(slopes.argmin(), slopes.shape)[0]]
            raise ValueError(
                f"edge: the function rises from {values[0].min():.6g} to {values[-1].max():.6g}, "
                f"but its rule of derivatives says {slopes.min():.6g} at margin {margin}. Change "
                "the sign of the rule."
            )

    def _mapped(self, margin: Array) -> Array:
        margin = jnp.broadcast_to(margin, jnp.broadcast_shapes(margin.shape, self.faces))
        values = jax.vmap(partial(self.function, *self.constants))(margin.reshape(-1, *self.faces))
        return values.reshape(margin.shape).astype(margin.dtype)

    def _limited(self, margin: ArrayLike) -> Array:
        margin = as_float_array(margin)
        values = self._mapped(jnp.where(jnp.isinf(margin), _ORDINARY, margin))
        below, above = (-jnp.inf, 0.0) if self.log else (0.0, 1.0)
        most = above + _ABOVE_ONE * float(jnp.finfo(values.dtype).eps)
        values = jnp.where((values < below) | (values > most), jnp.nan, values)
        for k in self.jumps:
            values += nan_slope(jnp.sum(self.constants[k])).astype(values.dtype)
        return with_limits(margin, values, below, above)

    def log_value(self, margin: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
        return self._limited(margin) if self.log else jnp.log(self._limited(margin))

    def value(self, margin: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
        return jnp.exp(self._limited(margin)) if self.log else self._limited(margin)

    def log_mean(self, margins: Float[Array, "n k m"]) -> tuple[Float[Array, ""], Array]:
        if self.log:
            return super().log_mean(margins)
        weights = self._limited(margins).prod((1, 2))
        return jnp.log(weights.mean()), jnp.log(weights)

    def with_slopes(self) -> tuple[Edge, float]:
        return (self, 1.0) if self.log else (_Raised(self), 2.0)


@frozen_pytree
class _Raised(Edge):
    """An edge whose weights are raised by 1 and halved, so that no mean of them is 0.

    Then c exp(log mean) = mean + 1 for c = 2, which has the derivatives of the mean.
    """

    edge: EdgeFunction

    @property
    def num_widths(self) -> int | None:
        return self.edge.num_widths

    def log_mean(self, margins: Float[Array, "n k m"]) -> tuple[Float[Array, ""], Array]:
        weights = self.edge._limited(margins).prod((1, 2))
        return jnp.log1p(weights.mean()) - np.log(2.0), jnp.log1p(weights)
