"""Selections: regions in which each point is kept with some probability."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from truncgauss.execution.arguments import explained_class
from truncgauss.execution.pytrees import frozen_pytree, static_field
from truncgauss.gaussian.regions.region import Region


@explained_class
@frozen_pytree
class Selection(Region):
    r"""Every x, kept with the probability s(x) that a function gives.

    The probability of a selection is E{s(X)}: of a survey whose completeness falls off softly, or
    of any set, where s is 0 or 1, such as a box from which a disc was removed.

    Args:
        function: maps one point, shape (d,), to a probability or a truth value; written in JAX
            (static: the same function object shares a compilation). It may not depend on what is
            differentiated.
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

    function: Callable[[Any], Any] = static_field()
    size: int = static_field()
    log_concave: bool = static_field(default=False)

    event_ranks = {}

    def __init__(
        self, function: Callable[[Any], Any], dimension: int, log_concave: bool = False
    ) -> None:
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "size", dimension)
        object.__setattr__(self, "log_concave", log_concave)
        if not callable(function):
            raise TypeError(f"Selection: needs a function of one point, got {function!r}.")
        point = jax.ShapeDtypeStruct((dimension,), jnp.result_type(float))
        try:
            result = jax.eval_shape(function, point)
        except jax.errors.JAXTypeError as error:
            raise TypeError(
                "Selection: the function cannot be traced by JAX. Write it with jax.numpy instead "
                "of numpy, and with jnp.where or & and | instead of `if`, `and` and `or`."
            ) from error
        shapes = [leaf.shape for leaf in jax.tree.leaves(result)]
        if shapes != [()]:
            raise ValueError(
                "Selection: the function must map one point to one probability; for a point of "
                f"shape ({dimension},) it returns {len(shapes)} array(s) of shape {shapes}."
            )

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return ()

    def broadcast_to(self, batch_shape: tuple[int, ...]) -> "Selection":
        return self

    @property
    def dimension(self) -> int:
        return self.size

    @property
    def is_convex(self) -> bool:
        return self.log_concave

    def carried(self, x: Float[Array, "n d"]) -> tuple[Float[Array, "n d"], Float[Array, ""]]:
        return x, jnp.zeros((), x.dtype)  # it has no numbers of its own

    def kept(self, x: Float[Array, "*#points d"]) -> Float[Array, "*points"]:
        x = x.astype(jnp.result_type(x, 0.0))  # whole numbers would cut a probability to 0 or 1
        values = jax.vmap(self.function)(x.reshape(-1, x.shape[-1]))
        return values.astype(x.dtype).reshape(x.shape[:-1])

    def contains(self, x: Float[Array, "*#points d"]) -> Bool[Array, "*points"]:
        return self.kept(x) > 0

    def closeness(self, x: Float[Array, "*#points d"]) -> Float[Array, "*points"]:
        return jnp.log(self.kept(x))
