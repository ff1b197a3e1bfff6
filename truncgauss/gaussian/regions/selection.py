"""Selections: regions in which each point is kept with some probability."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from truncgauss.arrays.closures import hoisted, without_slopes
from truncgauss.arrays.pytrees import frozen_pytree, static_field
from truncgauss.gaussian.regions.region import Region
from truncgauss.special.intervals import nan_slope
from truncgauss.words.arguments import explained_class


@explained_class
@frozen_pytree
class Selection(Region):
    r"""Every x, kept with the probability s(x) that a function gives.

    The probability of a selection is E{s(X)}: of a survey whose completeness falls off softly, or
    of any set, where s is 0 or 1, such as a box from which a disc was removed.

    Args:
        function: maps one point, shape (d,), to a probability or a truth value; written in JAX
            (static: the same function object shares a compilation). Numbers over which it closes
            may be traced, as in a loss, and are differentiated where s is smooth in them. Where s
            depends on one through comparisons alone, as x[0] > c does, the derivative by it is NaN;
            a jump besides a smooth part is left out of it.
        dimension: the number d of coordinates (static).
        log_concave: whether log s is known to be concave, as for a convex set or a completeness
            that falls off to one side; then no other piece can hide, and tails can be reached, of
            a set of few dimensions also where s is 0 or 1. stderr is inf where they were not.

    Raises:
        ValueError: if the function of a point is no scalar.
        TypeError: if it is not written in JAX.

    Example:
        >>> disc, box = tg.Ball([0.0, 0.0], 1.0), tg.Box([-2.0, -2.0], [2.0, 2.0])
        >>> ring = tg.Selection(lambda x: box.contains(x) & ~disc.contains(x), 2)
        >>> method = tg.ImportanceSampling(1024)  # the default adds points until rtol is met
        >>> log_prob, stderr = tg.log_probability([0.0, 0.0], jnp.eye(2), ring, method)
        >>> truth = 0.911070 - (1.0 - jnp.exp(-0.5))  # of the box, less that of the disc
        >>> bool(abs(log_prob - jnp.log(truth)) < 3 * stderr), bool(stderr < 5e-3)
        (True, True)
    """

    function: Callable[..., Any] = static_field()
    size: int = static_field()
    log_concave: bool = static_field(default=False)
    constants: tuple[Any, ...] = ()  # the traced numbers over which the function closed
    ranks: tuple[int, ...] = static_field(default=())  # of these
    jumps: tuple[int, ...] = static_field(default=())  # those of them without a derivative

    event_ranks = {}

    def __init__(
        self, function: Callable[[Any], Any], dimension: int, log_concave: bool = False
    ) -> None:
        object.__setattr__(self, "size", dimension)
        object.__setattr__(self, "log_concave", log_concave)
        if not callable(function):
            raise TypeError(f"Selection: needs a function of one point, got {function!r}.")
        point = jax.ShapeDtypeStruct((dimension,), jnp.result_type(float))
        try:
            traced = hoisted(function, point)
        except jax.errors.JAXTypeError as error:
            raise TypeError(
                "Selection: the function cannot be traced by JAX. Write it with jax.numpy instead "
                "of numpy, and with jnp.where or & and | instead of `if`, `and` and `or`."
            ) from error
        shapes = [leaf.shape for leaf in jax.tree.leaves(traced.result)]
        if shapes != [()]:
            raise ValueError(
                "Selection: the function must map one point to one probability; for a point of "
                f"shape ({dimension},) it returns {len(shapes)} array(s) of shape {shapes}."
            )
        object.__setattr__(self, "function", traced.function)
        object.__setattr__(self, "constants", traced.constants)
        object.__setattr__(self, "jumps", without_slopes(traced, point))
        object.__setattr__(self, "ranks", tuple(jnp.ndim(c) for c in traced.constants))

    @property
    def batch_shape(self) -> tuple[int, ...]:
        shapes = [jnp.shape(c)[: jnp.ndim(c) - r] for c, r in zip(self.constants, self.ranks)]
        return shapes[0] if shapes else ()

    def broadcast_to(self, batch_shape: tuple[int, ...]) -> "Selection":
        extra = len(self.batch_shape)
        return jax.tree.map(lambda c: jnp.broadcast_to(c, batch_shape + c.shape[extra:]), self)

    @property
    def dimension(self) -> int:
        return self.size

    @property
    def is_convex(self) -> bool:
        return self.log_concave

    def carried(self, x: Float[Array, "n d"]) -> tuple[Float[Array, "n d"], Float[Array, ""]]:
        return x, jnp.zeros((), x.dtype)  # what moves with its numbers is the weight of a point

    def kept(self, x: Float[Array, "*#points d"]) -> Float[Array, "*points"]:
        x = x.astype(jnp.result_type(x, 0.0))  # whole numbers would cut a probability to 0 or 1
        of_point = partial(self.function, *self.constants)
        values = jax.vmap(of_point)(x.reshape(-1, x.shape[-1])).astype(x.dtype)
        for k in self.jumps:
            values += nan_slope(jnp.sum(self.constants[k])).astype(x.dtype)
        return values.reshape(x.shape[:-1])

    def contains(self, x: Float[Array, "*#points d"]) -> Bool[Array, "*points"]:
        return self.kept(x) > 0

    def closeness(self, x: Float[Array, "*#points d"]) -> Float[Array, "*points"]:
        return jnp.log(self.kept(x))
