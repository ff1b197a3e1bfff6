"""Parameters and the free coordinates in which an optimiser may move without breaking them.

A parameter may be any pytree. A constraint names part of it by its path in the tree and maps that
part to free coordinates and back: a width to its logarithm, a covariance to a factor, a pair of
limits to two numbers in any order. What no constraint names is its own free coordinate.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.pytrees import as_float_array, frozen_pytree, is_concrete

Leaves = dict[str, jax.Array]  # what a constraint covers: path below its own name -> array


class Constraint:
    """A map between a part of the parameters and free coordinates; every leaf by itself.

    `held` is that part as it was at the start: what the free coordinates do not determine.
    """

    def check(self, name: str, leaves: Leaves) -> None:
        """Raise ValueError if the start does not satisfy the constraint."""

    def free(self, leaves: Leaves) -> Leaves:
        return {path: self.free_leaf(leaf) for path, leaf in leaves.items()}

    def value(self, free: Leaves, held: Leaves) -> Leaves:
        return {path: self.value_leaf(free[path]) for path in held}

    def free_leaf(self, leaf: jax.Array) -> jax.Array:
        return leaf

    def value_leaf(self, free: jax.Array) -> jax.Array:
        return free


@frozen_pytree
class Real(Constraint):
    """No constraint: the parameter is its own free coordinate."""


@frozen_pytree
class Frozen(Constraint):
    """The parameter keeps its start."""

    def free(self, leaves: Leaves) -> Leaves:
        return {}

    def value(self, free: Leaves, held: Leaves) -> Leaves:
        return jax.tree.map(jax.lax.stop_gradient, held)


@frozen_pytree
class Positive(Constraint):
    """A positive number, by its logarithm: NumPyro's map, without a second to import NumPyro.

    Example:
        >>> fit = tg.minimize(lambda w: (w - 2.0) ** 2, 1.0, constraints=tg.fitting.Positive())
        >>> round(float(fit.params), 6)
        2.0
    """

    def check(self, name: str, leaves: Leaves) -> None:
        for path, leaf in leaves.items():
            if not bool(jnp.all(leaf > 0)):
                raise ValueError(f"{of_start(name, path)} must be positive, got {leaf}.")

    def free_leaf(self, leaf: jax.Array) -> jax.Array:
        return jnp.log(leaf)

    def value_leaf(self, free: jax.Array) -> jax.Array:
        return jnp.exp(free)


@frozen_pytree
class PositiveDefinite(Constraint):
    """A covariance matrix, by its Cholesky factor with the diagonal in logs, shape (..., d, d).

    NumPyro's map is the same, but fails for float32 matrices where float64 is enabled.
    """

    def check(self, name: str, leaves: Leaves) -> None:
        for path, leaf in leaves.items():
            square = leaf.ndim >= 2 and leaf.shape[-1] == leaf.shape[-2]
            if not square or not bool(jnp.all(jnp.isfinite(jnp.linalg.cholesky(leaf)))):
                raise ValueError(
                    f"{of_start(name, path)} must be positive definite, (..., d, d), got {leaf}."
                )

    def free_leaf(self, leaf: jax.Array) -> jax.Array:
        return LowerTriangular().free_leaf(jnp.linalg.cholesky(leaf))

    def value_leaf(self, free: jax.Array) -> jax.Array:
        factor = LowerTriangular().value_leaf(free)
        return factor @ jnp.swapaxes(factor, -1, -2)


@frozen_pytree
class LowerTriangular(Constraint):
    """A Cholesky factor, such as `ScaleTril.matrix`: its diagonal stays positive.

    The map, and the reason why it is written here, are those of `PositiveDefinite`.
    """

    def check(self, name: str, leaves: Leaves) -> None:
        for path, leaf in leaves.items():
            square = leaf.ndim >= 2 and leaf.shape[-1] == leaf.shape[-2]
            if not square or not bool(jnp.all(diagonal(leaf) > 0)):
                raise ValueError(
                    f"{of_start(name, path)} must be square with a positive diagonal, got {leaf}."
                )

    def free_leaf(self, leaf: jax.Array) -> jax.Array:
        return jnp.tril(leaf, -1) + diagonal_matrix(jnp.log(diagonal(leaf)))

    def value_leaf(self, free: jax.Array) -> jax.Array:
        return jnp.tril(free, -1) + diagonal_matrix(jnp.exp(diagonal(free)))


@frozen_pytree
class Limits(Constraint):
    r"""Ordered limits, such as a `Box`: low < high, and an infinite end stays where it is.

    .. math:: high = low + s \log(1 + e^{(b - low) / s})

    Both ends move by themselves, the upper one by b, which is high to 3e-8 s where they are as far
    apart as at the start, 16 s; closer together they stay in order. So a far end, as of [0, 1000],
    does not move with the near one. The constraint covers two leaves, called `low` and `high`.

    Example:
        >>> start = tg.Box([0.0, 0.0], [1.0, jnp.inf])
        >>> wanted = lambda box: jnp.sum((box.low - 1.0) ** 2) + (box.high[0] - 3.0) ** 2
        >>> fit = tg.minimize(wanted, start, constraints=tg.fitting.Limits())
        >>> fit.params.high.round(4)
        Array([ 3., inf], dtype=float64)
    """

    def check(self, name: str, leaves: Leaves) -> None:
        if sorted(leaves) != ["high", "low"] or leaves["low"].shape != leaves["high"].shape:
            raise ValueError(
                f"Limits at {name!r} need two arrays of one shape called low and high: write the "
                f"start there as tg.Box(low, high); got {sorted(leaves)}."
            )
        if not bool(jnp.all(leaves["low"] < leaves["high"])):
            raise ValueError(f"{of_start(name, 'low')} must be below high, got {leaves}.")

    def free(self, leaves: Leaves) -> Leaves:
        unit = self._unit(leaves)
        ratio = (leaves["high"] - leaves["low"]) / unit
        above = leaves["low"] + unit * (ratio + jnp.log(-jnp.expm1(-ratio)))
        ends = jnp.where(jnp.isfinite(ratio), above, leaves["high"])
        zero = jnp.zeros_like(ends)
        return {
            "low": jnp.where(jnp.isfinite(leaves["low"]), leaves["low"], zero),
            "high": jnp.where(jnp.isfinite(leaves["high"]), ends, zero),
        }

    def value(self, free: Leaves, held: Leaves) -> Leaves:
        has_low, has_high = (jnp.isfinite(held[name]) for name in ("low", "high"))
        unit = self._unit(held)
        apart = jnp.where(has_low & has_high, (free["high"] - free["low"]) / unit, 0.0)
        above = free["low"] + unit * jnp.logaddexp(apart, 0.0)
        return {
            "low": jnp.where(has_low, free["low"], held["low"]),
            "high": jnp.where(has_high, jnp.where(has_low, above, free["high"]), held["high"]),
        }

    def _unit(self, held: Leaves) -> jax.Array:
        """A sixteenth of the distance at the start; 1 where it is infinite."""
        width = held["high"] - held["low"]
        return jnp.where(jnp.isfinite(width), width, 16.0) / 16.0


@frozen_pytree
class Bijection(Constraint):
    """A constraint of NumPyro, such as `numpyro.distributions.constraints.simplex`."""

    constraint: Any

    def transform(self) -> Any:
        import numpyro.distributions  # a second to import, and most fits need none of it

        return numpyro.distributions.biject_to(self.constraint)

    def check(self, name: str, leaves: Leaves) -> None:
        for path, leaf in leaves.items():
            if not bool(jnp.all(self.constraint(leaf))):
                raise ValueError(
                    f"{of_start(name, path)} must satisfy {self.constraint}, got {leaf}."
                )

    def free_leaf(self, leaf: jax.Array) -> jax.Array:
        return self.transform().inv(leaf)

    def value_leaf(self, free: jax.Array) -> jax.Array:
        return self.transform()(free)


@frozen_pytree
class Coordinates:
    """The free coordinates of a parameter tree: `free(params)` and back, `params(free)`.

    Args:
        start: the parameters at the start, whose structure, frozen parts and infinite ends stay.
        constraints: {path: Constraint}, see `coordinates`.
    """

    start: Any
    constraints: dict[str, Constraint]

    def free(self, params: Any) -> dict[str, Leaves]:
        """Free coordinates of parameters, one dictionary for each constraint."""
        parts = self._parts(params)
        return {name: self._constraint(name).free(leaves) for name, leaves in parts.items()}

    def params(self, free: dict[str, Leaves]) -> Any:
        """The parameters at free coordinates, in the structure of the start."""
        values: dict[str, jax.Array] = {}
        for name, held in self._parts(self.start).items():
            part = self._constraint(name).value(free[name], held)
            values |= {joined(name, path): part[path] for path in held}
        names = [name for name, _ in named_leaves(self.start)]
        return jax.tree.unflatten(jax.tree.structure(self.start), [values[name] for name in names])

    def check(self) -> None:
        for name, leaves in self._parts(self.start).items():
            self._constraint(name).check(name, leaves)

    def _constraint(self, name: str) -> Constraint:
        return self.constraints.get(name, Real())

    def _parts(self, params: Any) -> dict[str, Leaves]:
        """The leaves of a tree, grouped by the constraint (the longest name) that covers them."""
        parts: dict[str, Leaves] = {}
        for path, leaf in named_leaves(params):
            owners = [name for name in self.constraints if covers(name, path)]
            owner = max(owners, key=len) if owners else path
            parts.setdefault(owner, {})[path[len(owner) :].lstrip("/")] = leaf
        return parts


def coordinates(start: Any, constraints: Any = None) -> Coordinates:
    """The free coordinates of `start` under constraints, checked.

    Args:
        start: any pytree of real numbers.
        constraints: None; one constraint for everything; or {path: constraint} where a path is the
            parameter's name in the tree, such as "width" or "edge/width", and covers what is below
            it. A constraint is `Positive()`, `Frozen()`, `Limits()`, `PositiveDefinite()`,
            `LowerTriangular()`, or one of NumPyro's.

    Raises:
        ValueError: for a path that is not in the tree, a start that violates its constraint, or
            one that is not made of real numbers.

    Example:
        >>> tg.fitting.coordinates({"width": 1.0}, {"width": tg.fitting.Positive()}).free(
        ...     {"width": jnp.e}
        ... )
        {'width': {'': Array(1., dtype=float64, weak_type=True)}}
    """
    start = jax.tree.map(real_leaf, start)
    if not jax.tree.leaves(start):
        raise ValueError("start has no parameters: expected a pytree with at least one number.")
    named = constraints if isinstance(constraints, dict) else {"": constraints}
    chosen: dict[str, Constraint] = {}
    for name, value in named.items():
        of_numpyro = callable(value) and not isinstance(value, type) and hasattr(value, "event_dim")
        if isinstance(value, Constraint):
            chosen[name] = value
        elif of_numpyro:
            chosen[name] = Bijection(value)
        elif value is not None:
            raise ValueError(
                "a constraint is an object such as tg.fitting.Positive() or one of NumPyro's, got "
                f"{value!r}."
            )
    paths = [path for path, _ in named_leaves(start)]
    for name in chosen:
        if not any(covers(name, path) for path in paths):
            raise ValueError(
                f"constraints name {name!r}, which is no parameter; there are: {', '.join(paths)}."
            )
    result = Coordinates(start, chosen)
    if is_concrete(start):
        result.check()
    return result


def real_leaf(leaf: Any) -> jax.Array:
    if not isinstance(leaf, jax.Array):
        leaf = np.asarray(leaf)
    if not (jnp.issubdtype(leaf.dtype, jnp.floating) or jnp.issubdtype(leaf.dtype, jnp.integer)):
        raise ValueError(f"start must be made of real numbers, got {leaf!r}.")
    array = as_float_array(leaf)
    return jnp.asarray(array, dtype=array.dtype)  # sheds the weak type, which would retrace


def named_leaves(tree: Any) -> list[tuple[str, jax.Array]]:
    """The leaves of a tree with their paths, such as ("edge/width", 1.0)."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]


def covers(name: str, path: str) -> bool:
    return name == "" or path == name or path.startswith(name + "/")


def joined(name: str, path: str) -> str:
    return "/".join(part for part in (name, path) if part)


def of_start(name: str, path: str) -> str:
    """The beginning of a message about a part of the start."""
    where = joined(name, path)
    return f"start: {where}" if where else "start"


def diagonal(matrix: jax.Array) -> jax.Array:
    return jnp.diagonal(matrix, axis1=-2, axis2=-1)


def diagonal_matrix(entries: jax.Array) -> jax.Array:
    return entries[..., None] * jnp.eye(entries.shape[-1], dtype=entries.dtype)
