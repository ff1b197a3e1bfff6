"""Tail probabilities of quadratic forms of Gaussian variables."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Real

from truncgauss.arrays.batches import with_slopes
from truncgauss.arrays.compiling import Compiled, Cost
from truncgauss.arrays.coordinates import check_one_order
from truncgauss.arrays.linalg import in_full_precision
from truncgauss.arrays.progress import reported
from truncgauss.arrays.pytrees import as_float_array, common_dtype, is_concrete
from truncgauss.gaussian.problem import Estimate
from truncgauss.quadrature.quadratic_tail import QuadraticForm, TailSlopes, tail_slopes

ROWS_AT_ONCE = 256  # whose arrays fit into a processor's cache
CAREFUL_AT_ONCE = 16


@reported
@in_full_precision
def log_quadratic_form_tail(
    q: Real[ArrayLike, "*#batch"] | Sequence[Any],
    weights: Real[ArrayLike, "*#batch d"] | Sequence[Any],
    df: Real[ArrayLike, "*#batch d"] | Real[ArrayLike, ""] | Sequence[Any] = 1.0,
    noncentrality: Real[ArrayLike, "*#batch d"] | Real[ArrayLike, ""] | Sequence[Any] = 0.0,
) -> Estimate:
    r"""The log upper tail probability of a weighted sum of independent chi-squares.

    .. math:: \log P\Bigl(\sum_j w_j \chi^2_{\nu_j}(\delta_j) > q\Bigr)

    to rounding, however small it is, by a contour integral through the saddle point. Weights may be
    of both signs, equal, or 0. For z ~ Normal(0, I) and a symmetric matrix A, z'Az has the
    eigenvalues of A as weights, each with one degree of freedom.

    Args:
        q: the values exceeded, shape (...).
        weights: w, shape (..., d). Leading axes broadcast.
        df: degrees of freedom, positive, not only whole numbers; a number or shape (..., d). One
            number for all takes less time.
        noncentrality: delta, the sums of squared means, not negative; a number or shape (..., d).

    Returns:
        Estimate(log_prob, stderr), each of the broadcast leading shape. stderr is 0 where log_prob
        is exact to rounding, else a bound of its error. Derivatives in all four arguments are
        those of log_prob.

    Raises:
        ValueError: if shapes disagree, a df is not positive or a noncentrality is negative (values:
            not while tracing).

    References:
        Imhof (1961), Computing the distribution of quadratic forms in normal variables. Davies
        (1980), Algorithm AS 155: the distribution of a linear combination of chi-2 random
        variables. Wu, Lee, Cai, Li, Boehnke and Lin (2011), Rare-variant association testing for
        sequencing data with the sequence kernel association test, for their use in genetics.

    Example:
        >>> log_prob, stderr = tg.log_quadratic_form_tail([60.0, 3000.0], [6.0, 3.0, 1.0], df=2.0)
        >>> log_prob.round(6), stderr
        (Array([  -4.128751, -249.124531], dtype=float64), Array([0., 0.], dtype=float64))
    """
    check_one_order(weights=weights, df=df, noncentrality=noncentrality)
    values, parts = as_float_array(q, "q"), as_float_array(weights, "weights")
    degrees, away = as_float_array(df, "df"), as_float_array(noncentrality, "noncentrality")
    _check(parts, degrees, away)
    d = parts.shape[-1]
    inputs = zip((q, weights, df, noncentrality), (values, parts, degrees, away))
    typed = [array for value, array in inputs if not isinstance(value, int | float)]
    dtype = common_dtype(*typed)
    q_rows, *others = (jnp.asarray(x, dtype) for x in (values, parts, degrees, away))
    leading = values.shape, *(x.shape[:-1] for x in others)
    try:
        batch = jnp.broadcast_shapes(*leading)
    except ValueError:
        raise ValueError(
            "the leading axes do not broadcast: q {}, weights {}, df {}, noncentrality {}.".format(
                *leading
            )
        ) from None

    def rows(array: Array) -> Array:
        return jnp.broadcast_to(array, (*batch, d)).reshape(-1, d)

    one = degrees.ndim == 0
    forms = QuadraticForm(
        rows(others[0]), others[1] if one else rows(others[1]), rows(others[0] * others[2])
    )
    # In units of the largest weight, whose powers would overflow.
    unit = lax.stop_gradient(jnp.max(jnp.abs(forms.weights), axis=-1))
    unit = jnp.where((unit > 0) & jnp.isfinite(unit), unit, 1.0)
    scaled = QuadraticForm(forms.weights / unit[:, None], forms.df, forms.shifts / unit[:, None])
    log_prob, error = _tails(scaled, jnp.broadcast_to(q_rows, batch).reshape(-1) / unit)
    return Estimate(log_prob.reshape(batch), error.reshape(batch))


def _check(parts: Array, degrees: Array, away: Array) -> None:
    d = parts.shape[-1] if parts.ndim else 0
    if d == 0:
        raise ValueError(
            f"weights must have shape (d,) or (..., d), d at least 1, got shape {parts.shape}; for "
            "a single chi-square write [1.0]."
        )
    for name, array, least, sign in (
        ("df", degrees, np.nextafter(0.0, 1.0), "positive"),
        ("noncentrality", away, 0.0, "at least 0"),
    ):
        if array.ndim and array.shape[-1] != d:
            raise ValueError(
                f"{name} must be one number or have a last axis of {d}, as weights have; got shape "
                f"{array.shape}."
            )
        if is_concrete(array) and np.any(np.asarray(array) < least):
            raise ValueError(f"{name} must be {sign}, got {float(jnp.min(array))}.")


def _cost(forms: QuadraticForm, q: Array) -> Cost:
    return Cost(100 * np.size(forms.weights))


@functools.partial(Compiled, cost=_cost)
def _tails(forms: QuadraticForm, q: Array) -> tuple[Array, Array]:
    """log P and error of rows, with their derivatives."""

    def sloped(moved: list[int], *rows: Any) -> tuple[tuple[Array, Array], Any]:
        weights, df, shifts = (k in moved for k in range(3))
        log_prob, error, *slopes = _with_slopes((weights, df, shifts), *rows)
        return (log_prob, error), slopes

    return with_slopes(
        lambda *rows: _with_slopes((False, False, False), *rows)[:2], sloped, forms, q
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _with_slopes(wanted: tuple[bool, bool, bool], forms: QuadraticForm, q: Array) -> TailSlopes:
    """log P, error and slopes of rows: on few nodes, and on many where these are not enough."""
    if len(q) == 0:
        return TailSlopes(q, q, forms, q)

    def quick(row: tuple[QuadraticForm, Array]) -> TailSlopes:
        form, value = row
        form = form if forms.df.ndim else form._replace(df=forms.df)
        return tail_slopes(form, value, wanted, quick=True)

    # One df for all rows is no part of a row.
    rows = (forms if forms.df.ndim else forms._replace(df=q), q)
    results: TailSlopes = lax.map(quick, rows, batch_size=ROWS_AT_ONCE)
    rough = (results.error > 0) | jnp.isnan(results.log_prob)
    order, width = jnp.argsort(~rough), min(len(q), CAREFUL_AT_ONCE)

    def mended(state: tuple[Array, TailSlopes]) -> tuple[Array, TailSlopes]:
        start, results = state
        index = order[jnp.minimum(start + jnp.arange(width), len(q) - 1)]
        some = jax.tree.map(lambda leaf: leaf[index] if leaf.ndim else leaf, forms)
        better = _carefully(wanted, some, q[index])
        put = lambda leaf, new: leaf.at[index].set(new) if leaf.ndim else leaf
        return start + width, jax.tree.map(put, results, better)

    count = jnp.sum(rough)
    state = jnp.zeros_like(count), results
    return lax.while_loop(lambda state: state[0] < count, mended, state)[1]


def _carefully(wanted: tuple[bool, bool, bool], forms: QuadraticForm, q: Array) -> TailSlopes:
    axes: Any = QuadraticForm(0, 0 if forms.df.ndim else None, 0)  # type: ignore[arg-type]
    function = functools.partial(tail_slopes, wanted=wanted)
    return jax.vmap(function, in_axes=(axes, 0))(forms, q)


@_with_slopes.defjvp
@in_full_precision
def _with_slopes_jvp(
    wanted: tuple[bool, bool, bool], primals: Any, tangents: Any
) -> tuple[TailSlopes, TailSlopes]:
    return jax.jvp(functools.partial(_carefully, wanted), primals, tangents)
