"""Log probabilities and log-likelihoods as artefacts that run without this package."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import export as jax_export

from truncgauss.gaussian.problem import as_key, as_problem
from truncgauss.gaussian.regions import Region
from truncgauss.likelihood import Observations, hold, log_likelihood
from truncgauss.probability.automatic import Automatic, log_probability
from truncgauss.probability.method import Method, prepared

PLATFORMS = ("cpu", "cuda")


def export(
    of: Region | Observations,
    loc: Any,
    covariance: Any,
    method: Method = Automatic(),
    *,
    batch: int | None = None,
    platforms: Sequence[str] = PLATFORMS,
    key: jax.Array | None = None,
) -> jax_export.Exported:
    """A held log probability, or a log-likelihood of rows, as an artefact of `jax.export`.

    The artefact holds the plan, the key and, of a likelihood, the observations, and is a function
    of a batch of n problems. `artefact.serialize(vjp_order=1)` gives the bytes for a file, with the
    derivative in reverse mode; it needs the package flatbuffers (the extra `export`). Another
    program reads them with JAX alone: `jax.export.deserialize(bytes).call(...)`. JAX promises to
    read them for six months at least. For a region the arguments are

        loc (n, d), covariance (n, d, d), and the region's own arrays, each with n leading

    (low and high, each (n, d), of a `Box`; matrix, low, high of a `Polyhedron`; center, radius of a
    `Ball`; center, shape_matrix of an `Ellipsoid`), for observations loc and covariance only. It
    returns log_prob and stderr, each (n,), or (n, rows) of a likelihood. Float64 needs
    `jax_enable_x64` where it is called.

    Args:
        of: a region, or `Observations`.
        loc: a typical mean, shape (d,), of the dtype of the artefact: plans are made for it.
        covariance: a typical covariance matrix, shape (d, d).
        method: how probabilities are computed. `Automatic` chooses by the shapes; structure that is
            in these numbers alone is not used.
        batch: n; None leaves it open.
        platforms: where it can run, such as "cpu", "cuda", "rocm" or "tpu"; none of them need be
            present.
        key: JAX random key of a sampling method; None as in `log_probability`.

    Returns:
        The artefact, a `jax.export.Exported`.

    Raises:
        ValueError: if shapes disagree, a leading axis is given, the method does not apply, or the
            batch is no positive int.

    Example:
        >>> box = tg.Box([0.0, -1.0], [jnp.inf, 1.0])
        >>> artefact = tg.export(box, jnp.zeros(2), jnp.eye(2))
        >>> problems = jnp.zeros((3, 2)), jnp.stack([jnp.eye(2)] * 3)
        >>> limits = jnp.array([[0.0, -1.0]] * 3), jnp.array([[jnp.inf, 1.0]] * 3)
        >>> log_prob, stderr = artefact.call(*problems, *limits)
        >>> jnp.exp(log_prob).round(4)
        Array([0.3413, 0.3413, 0.3413], dtype=float64)
    """
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise ValueError(f"export: batch must be a positive int, or None, got {batch!r}.")
    key = as_key(key)
    if isinstance(of, Observations):
        evaluate, single = likelihood_of(of, loc, covariance, method, key)
    else:
        evaluate, single = probability_of(of, loc, covariance, method, key)
    size = jax_export.symbolic_shape("n")[0] if batch is None else batch
    shapes = [jax.ShapeDtypeStruct((size, *leaf.shape), leaf.dtype) for leaf in single]
    return jax_export.export(jax.jit(jax.vmap(evaluate)), platforms=list(platforms))(*shapes)


def probability_of(
    region: Region, loc: Any, covariance: Any, method: Method, key: jax.Array
) -> tuple[Callable[..., Any], list[jax.Array]]:
    """The log probability as a function of arrays, and the arrays of one problem."""
    problem = as_problem(loc, covariance, region)
    if problem.batch_shape:
        raise ValueError(
            f"export: expected one typical problem, got leading axes {problem.batch_shape}; the "
            "artefact takes a batch by itself."
        )
    chosen = method.choice(problem) if isinstance(method, Automatic) else method
    held = prepared(chosen, problem)
    leaves, structure = jax.tree.flatten(problem.region)

    def evaluate(loc: jax.Array, matrix: jax.Array, *leaves: jax.Array) -> tuple[Any, ...]:
        region = jax.tree.unflatten(structure, leaves)
        return tuple(log_probability(loc, matrix, region, held, key))

    return evaluate, [problem.loc, problem.covariance.covariance_matrix, *leaves]


def likelihood_of(
    rows: Observations, loc: Any, covariance: Any, method: Method, key: jax.Array
) -> tuple[Callable[..., Any], list[jax.Array]]:
    """The log-likelihood as a function of arrays, and the arrays of one Gaussian."""
    loc, matrix = jnp.asarray(loc), jnp.asarray(covariance)
    d = rows.lower.shape[-1]
    if loc.shape != (d,) or matrix.shape != (d, d):
        raise ValueError(
            f"export: expected one typical Gaussian, loc ({d},) and covariance ({d}, {d}), got "
            f"{loc.shape} and {matrix.shape}."
        )
    held = hold(method, rows, loc, matrix)

    def evaluate(loc: jax.Array, matrix: jax.Array) -> tuple[Any, ...]:
        return tuple(log_likelihood(rows, loc, matrix, held, key))

    return evaluate, [loc, matrix]
