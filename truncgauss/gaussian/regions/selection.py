"""Selections: regions in which each point is kept with some probability."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from truncgauss.arrays.closures import hoisted, without_slopes
from truncgauss.arrays.pytrees import frozen_pytree, is_concrete, static_field
from truncgauss.gaussian.regions.probit_selection import ScoreSelection
from truncgauss.gaussian.regions.region import Region
from truncgauss.special.intervals import nan_slope
from truncgauss.words.arguments import explained, explained_class


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
            a jump besides a smooth part is left out of it. With `parameters` it is a function of
            these too, s(x, parameters).
        dimension: the number d of coordinates (static).
        log_concave: whether log s is known to be concave, as for a convex set or a completeness
            that falls off to one side; then no other piece can hide, and tails can be reached, of
            a set of few dimensions also where s is 0 or 1. stderr is inf where they were not.
        parameters: numbers of the curve, such as {"midpoint": 20.0, "width": 0.5}: any pytree of
            floating-point arrays, which are leaves of the region as the limits of a box are. It is
            differentiated in them, as in numbers over which the function closes.
        num_batch_axes: how many leading axes of each parameter count selections, one each (static).

    Raises:
        ValueError: if the function of a point is no scalar.
        TypeError: if it is not written in JAX, or a parameter is no floating-point number.

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
    constants: tuple[Any, ...] = ()  # the traced numbers over which it closed, and parameters
    ranks: tuple[int, ...] = static_field(default=())  # of these
    jumps: tuple[int, ...] = static_field(default=())  # those of them without a derivative
    structure: Any = static_field(default=None)  # of the parameters, the last constants

    event_ranks = {}

    def __init__(
        self,
        function: Callable[..., Any],
        dimension: int,
        log_concave: bool = False,
        *,
        parameters: Any = None,
        num_batch_axes: int = 0,
    ) -> None:
        object.__setattr__(self, "size", dimension)
        object.__setattr__(self, "log_concave", log_concave)
        if not callable(function):
            raise TypeError(f"Selection: needs a function of one point, got {function!r}.")
        if not isinstance(dimension, int) or dimension < 1:
            raise ValueError(f"Selection: dimension must be a positive int, got {dimension!r:.60}.")
        point = jax.ShapeDtypeStruct((dimension,), jnp.result_type(float))
        leaves = parameter_leaves(parameters, num_batch_axes)
        shapes = [jax.ShapeDtypeStruct(x.shape[num_batch_axes:], x.dtype) for x in leaves]
        if leaves:
            function = OfParameters(function, jax.tree.structure(parameters))
        try:
            traced = hoisted(function, *shapes, point)
        except jax.errors.JAXTypeError as error:
            raise TypeError(
                "Selection: the function cannot be traced by JAX. Write it with jax.numpy instead "
                "of numpy, and with jnp.where or & and | instead of `if`, `and` and `or`."
            ) from error
        results = [leaf.shape for leaf in jax.tree.leaves(traced.result)]
        if results != [()]:
            raise ValueError(
                "Selection: the function must map one point to one probability; for a point of "
                f"shape ({dimension},) it returns {len(results)} array(s) of shape {results}."
            )
        batch = leaves[0].shape[:num_batch_axes] if leaves else ()
        closed = [jnp.broadcast_to(c, (*batch, *jnp.shape(c))) for c in traced.constants]
        alike: Any = shapes  # of which shapes and dtypes alone are read
        traced = traced._replace(constants=(*traced.constants, *alike))
        object.__setattr__(self, "function", traced.function)
        object.__setattr__(self, "constants", (*closed, *leaves))
        object.__setattr__(self, "jumps", without_slopes(traced, point))
        object.__setattr__(self, "ranks", tuple(len(c.shape) for c in traced.constants))
        object.__setattr__(self, "structure", jax.tree.structure(parameters))

    @staticmethod
    @explained
    def probit(weights: Any, midpoint: Any, width: Any) -> ScoreSelection:
        r"""A selection by probit curves of linear scores, whose probability is that of a box.

        .. math:: s(x) = \prod_j \Phi\{(w_j \cdot x - m_j) / t_j\}

        `log_probability` is exact for up to three curves, in any tail, and by `Separation` for
        more, with derivatives in mean, covariance, weights, midpoints and widths. A falling curve
        has weights and midpoint of the other sign. With one curve a coordinate it is the box of
        lower limits that `SoftMonteCarlo` smooths by `tg.Probit` edges.

        Args:
            weights: w, shape (d,) for one curve or (r, d); with leading axes, one selection each.
            midpoint: m, the score that is kept with probability 1/2, () or (r,).
            width: t, positive, () or (r,).

        Example:
            >>> faint = tg.Selection.probit([1.0], 20.0, 0.5)
            >>> tg.fraction_not_truncated([19.0], [[0.75]], faint).round(6)  # Phi(-1)
            Array(0.158655, dtype=float64)
        """
        return ScoreSelection(weights, midpoint, width)

    @staticmethod
    @explained
    def logistic(weights: Any, midpoint: Any, width: Any) -> ScoreSelection:
        r"""A selection by logistic curves of linear scores: a logistic regression of being kept.

        .. math:: s(x) = \prod_j 1 / [1 + \exp\{-(w_j \cdot x - m_j) / t_j\}]

        `log_probability` of one curve or two is a mixture of those of probit curves, to 1e-11 in
        any tail, with derivatives as `probit` has them; of more curves by importance sampling.

        Args:
            weights: w, shape (d,) for one curve or (r, d); with leading axes, one selection each.
            midpoint: m, the score that is kept with probability 1/2, () or (r,).
            width: t, positive, () or (r,): one width above it is kept with probability .73.

        Example:
            >>> faint = tg.Selection.logistic([1.0], 20.0, 0.5)
            >>> tg.fraction_not_truncated([[20.0], [-80.0]], [[0.75]], faint)
            Array([5.00000000e-01, 6.20219394e-87], dtype=float64)
        """
        return ScoreSelection(weights, midpoint, width, "logistic")

    @property
    def parameters(self) -> Any:
        """The parameters, as they were given."""
        return jax.tree.unflatten(self.structure, self.constants[self._num_closed :])

    def with_parameters(self, parameters: Any) -> "Selection":
        """The selection with other numbers in place of its parameters."""
        region = copy.copy(self)
        constants = (*self.constants[: self._num_closed], *jax.tree.leaves(parameters))
        object.__setattr__(region, "constants", constants)
        return region

    @property
    def _num_closed(self) -> int:
        return len(self.constants) - self.structure.num_leaves

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


@dataclass(frozen=True)
class OfParameters:
    """A function of the leaves of its parameters and, last, a point."""

    function: Callable[..., Any]
    structure: Any

    def __call__(self, *inputs: Any) -> Any:
        *leaves, x = inputs
        return self.function(x, jax.tree.unflatten(self.structure, leaves))


def parameter_leaves(parameters: Any, num_batch_axes: int) -> list[Array]:
    """The parameters of a selection as arrays, checked."""
    leaves = []
    for path, value in jax.tree_util.tree_leaves_with_path(parameters):
        array, name = jnp.asarray(value), f"parameters{jax.tree_util.keystr(path)}"
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(
                f"Selection: parameters must be floating-point numbers, got {array.dtype} in "
                f"{name}. Write 1.0 for 1; what is no number, or a count, belongs into the "
                "function."
            )
        if is_concrete(array) and not np.isfinite(array).all():
            raise ValueError(f"Selection: {name} must be finite, got {value}.")
        leaves.append(array)
    batches = {x.shape[:num_batch_axes] for x in leaves}
    if len(batches) > 1 or any(len(batch) < num_batch_axes for batch in batches):
        raise ValueError(
            f"Selection: with num_batch_axes={num_batch_axes} all parameters need the same leading "
            f"axes, got {sorted(batches)}."
        )
    return leaves
