"""Mean and covariance of rows given what their observations show: kriging and imputation."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.keys import as_key
from truncgauss.arrays.linalg import in_full_precision
from truncgauss.arrays.progress import reported
from truncgauss.arrays.pytrees import is_concrete
from truncgauss.draws.truncated_moments import truncated_moments
from truncgauss.gaussian.problem import Moments
from truncgauss.gaussian.regions.box import Box
from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.ordinal import LatentRows
from truncgauss.likelihood.patterns import filled_length
from truncgauss.likelihood.rows import prepared
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import Method
from truncgauss.special.tails import undefined

WHAT = "conditional_moments"


class Group(NamedTuple):
    """Rows of which the same entries are exact, and the same limited.

    Attributes:
        rows: their positions, (g,).
        limited: positions of the limited entries, (l,).
        clear: whether an entry of x is that of y, observed without noise, (d,).
        seen: positions of the exact entries, and then of the limited, (o,).
        loc: of x, before anything is observed, (g, d).
        mean: of y: exact values, and the limited entries' means given these alone, (g, o).
        rest: the covariance of the limited entries given the exact, (l, l) or (g, l, l).
        moves: K of E(x) = loc + K (y - loc), (d, o) or (g, d, o).
        left: the covariance of x given y, (d, d) or (g, d, d).
    """

    rows: np.ndarray
    limited: np.ndarray
    clear: np.ndarray
    seen: np.ndarray
    loc: Any
    mean: Any
    rest: Any
    moves: Any
    left: Any


@reported
@in_full_precision
def conditional_moments(
    observations: Observations,
    loc: Any,
    covariance: Any,
    method: Method = Automatic(rtol=1e-2),
    key: jax.Array | None = None,
) -> Moments:
    r"""Mean and covariance of each row of a Gaussian, given what was observed of it.

    With x ~ Normal(loc, S) and y = x + e its observation, e ~ Normal(0, N) its noise, of which the
    entries E are exact and the entries L limited, and K = S_O (S + N)_OO^-1 for O = E and L,

    .. math:: E(x) = \mu + K \{E(y_O) - \mu_O\}, \qquad
        \operatorname{Cov}(x) = S - K S_O^T + K_L \operatorname{Cov}(y_L) K_L^T,

    where the moments of y_L are those of a truncated Gaussian, given y_E. A missing entry is
    predicted: this is kriging with nondetects, whose new places are missing entries, the imputation
    of censored data, and the E step of their EM algorithm.

    Args:
        observations: n rows of d entries, numbers; a region of theirs is a `Box`. Noise belongs to
            the observation: the result is that of x, without it.
        loc: mean, shape (d,), or (n, d) for one a row.
        covariance: (d, d), (n, d, d), or an object such as `tg.ScaleTril`.
        method, key: of the moments of limited entries, see `truncated_moments`; up to three of a
            row are exact.

    Returns:
        Moments(mean, covariance, mean_stderr, covariance_stderr), of shapes (n, d) and (n, d, d);
        NaN in a row that is impossible. The standard errors are those of the moments of limited
        entries; of others, which follow from several of these, upper bounds. An entry that is exact
        has its value and variance 0.

    Raises:
        ValueError: for shapes that disagree, another region, a covariance that is none, or exact
            and limited entries of which one is determined by others.

    Example:
        >>> covariance = jnp.array([[1.0, 0.5], [0.5, 1.0]])
        >>> rows = tg.Observations([[-jnp.inf, -jnp.inf]], [[0.0, jnp.inf]])
        >>> moments = tg.conditional_moments(rows, [0.0, 0.0], covariance)  # -0.5 sqrt(2 / pi)
        >>> moments.mean.round(6)
        Array([[-0.797885, -0.398942]], dtype=float64)

    References:
        Eaton (1983), Multivariate Statistics, proposition 3.13, for what is linear in y.
        Dempster, Laird and Rubin (1977), Maximum likelihood from incomplete data via the EM
        algorithm, for the E step.
    """
    Method.check_kind(method)
    if isinstance(observations, LatentRows):
        raise ValueError(f"{WHAT}: takes no ordered outcomes, whose cuts a fit estimates.")
    rows, loc, covariance = prepared(observations, loc, covariance, WHAT)
    low, high, possible = limits_of(rows)
    if not possible.any():
        raise ValueError(
            f"{WHAT}: no row can be observed in the region: the first is {rows.lower[0]} to "
            f"{rows.upper[0]}, outside of it. Correct the region of the observations, or "
            "their entries."
        )
    exact = low == high
    limited = (np.isfinite(low) | np.isfinite(high)) & ~exact
    patterns, kinds = np.unique(np.hstack([exact, limited]), axis=0, return_inverse=True)
    numbers = rows.noise, low, loc, covariance.covariance_matrix
    groups = [
        group_of(np.flatnonzero(kinds.ravel() == k), pattern, *numbers)
        for k, pattern in enumerate(patterns)
    ]
    moments: dict[int, Moments] = {}  # of limited entries, by the first row of a group
    for size in {len(group.limited) for group in groups} - {0}:
        alike = [group for group in groups if len(group.limited) == size]
        moments |= limited_moments(alike, low, high, method, as_key(key))
    parts = [combined(group, moments.get(int(group.rows[0]))) for group in groups]
    order = np.argsort(np.concatenate([group.rows for group in groups]))
    whole = [jnp.concatenate(leaves)[order] for leaves in zip(*parts)]
    known = possible & ~jnp.isnan(whole[0]).any(axis=1) & ~jnp.isnan(whole[1]).any(axis=(1, 2))
    return Moments(
        *(undefined(jnp.asarray(~known)[(..., *[None] * (x.ndim - 1))], x) for x in whole)
    )


def limits_of(rows: Observations) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lower and upper ends of the entries of rows within their region, and whether a row is
    possible; of one that is not the entries are as if they were missing."""
    region: Any = rows.region
    if rows.latent:
        raise ValueError(f'{WHAT}: takes no region with limits_on="latent"; leave the region out.')
    if not is_concrete(rows):
        raise ValueError(
            f"{WHAT}: the observations must be numbers, also under jit, where loc and covariance "
            "may be arguments. Make the observations outside, and let the function close over them."
        )
    if region is not None and not region.is_box:
        raise ValueError(
            f"{WHAT}: the region of the observations must be a tg.Box that limits what was "
            f"observed, got {region!r:.60}. Draws of others are those of tg.truncated_samples."
        )
    low, high = np.array(rows.lower), np.array(rows.upper)
    exact, possible = low == high, np.ones(len(low), bool)
    if region is not None:
        inside = (region.low <= low) & (high <= region.high)
        low, high = np.maximum(low, region.low), np.minimum(high, region.high)
        possible = np.all(np.where(exact, inside, low < high), axis=1)
    low, high = (
        np.where(possible[:, None], x, side) for x, side in ((low, -np.inf), (high, np.inf))
    )
    return low, high, possible


def group_of(
    rows: np.ndarray, pattern: np.ndarray, noise: Any, low: np.ndarray, loc: Any, matrix: Any
) -> Group:
    """The linear part of the moments of some rows, in NumPy where all are numbers."""
    xp: Any = np if is_concrete((loc, matrix)) else jnp
    of_rows: Any = lambda x, ndim: x[rows] if x.ndim > ndim else x
    loc, matrix = xp.asarray(loc), xp.asarray(matrix)
    loc, matrix = xp.broadcast_to(of_rows(loc, 1), (len(rows), loc.shape[-1])), of_rows(matrix, 2)
    noise = None if noise is None else of_rows(np.asarray(noise), 2)
    total = matrix if noise is None else matrix + noise
    exact, limited = np.split(pattern, 2)
    clear = exact | limited
    if noise is not None:
        clear &= ~np.any(noise != 0, axis=tuple(range(noise.ndim - 1)))
    exact, limited = np.flatnonzero(exact), np.flatnonzero(limited)
    seen = np.concatenate([exact, limited])
    part: Any = lambda x, i, j: x[..., i[:, None], j]
    refuse_singular(part(total, seen, seen), seen)
    turned: Any = lambda x: xp.swapaxes(x, -1, -2)
    solved: Any = lambda i, x: turned(xp.linalg.solve(part(total, i, i), turned(x)))
    # Of the limited entries given the exact ones, and of all given both.
    by_exact = solved(exact, part(total, limited, exact))
    values = low[rows][:, exact]
    move = xp.einsum("...le,...e->...l", by_exact, values - loc[:, exact])
    rest = part(total, limited, limited) - by_exact @ part(total, exact, limited)
    every = np.arange(loc.shape[-1])
    moves = solved(seen, part(matrix, every, seen))
    left = matrix - moves @ turned(part(matrix, every, seen))
    moves = xp.where(clear[:, None], (every[:, None] == seen).astype(moves.dtype), moves)
    left = xp.where(clear[:, None] | clear, 0.0, (left + turned(left)) / 2)
    if xp is jnp:  # numbers were refused
        left = undefined(is_none(part(total, seen, seen), left, matrix)[..., None, None], left)
    mean = xp.concatenate([values, loc[:, limited] + move], axis=-1)
    return Group(rows, limited, clear, seen, loc, mean, rest, moves, left)


def refuse_singular(matrix: Any, entries: np.ndarray) -> None:
    """Raise ValueError where an entry that is observed is determined by those before it."""
    if not is_concrete(matrix):
        return
    scale = np.sqrt(np.diagonal(matrix, axis1=-2, axis2=-1))
    units = scale[..., :, None] * scale[..., None, :]
    least = np.linalg.eigvalsh(matrix / np.where(units > 0, units, 1.0))[..., :1]
    if np.any(least < len(entries) * np.finfo(matrix.dtype).eps):
        if np.any(scale == 0):
            raise ValueError(f"{WHAT}: covariance has a variance of 0 for an observed entry.")
        some = ", ".join(map(str, np.sort(entries)[:8]))
        raise ValueError(
            f"{WHAT}: of the observed entries {some} one is determined by the others: their "
            "covariance is singular. Leave out repeated entries, or give the observations noise."
        )


def is_none(observed: Any, left: Any, matrix: Any) -> jax.Array:
    """Whether a traced matrix is no covariance, as its parts show."""
    observed, left, matrix = map(jax.lax.stop_gradient, (observed, left, matrix))
    size = jnp.max(jnp.abs(matrix), axis=(-2, -1))
    below = (
        jnp.linalg.eigvalsh(left)[..., 0] < -8 * matrix.shape[-1] * jnp.finfo(left.dtype).eps * size
    )
    return below | jnp.isnan(jnp.linalg.cholesky(observed)).any(axis=(-2, -1))


def limited_moments(
    groups: list[Group], low: np.ndarray, high: np.ndarray, method: Method, key: jax.Array
) -> dict[int, Moments]:
    """Moments of the limited entries of groups that have as many of them, in one call."""
    size, n = len(groups[0].limited), sum(len(group.rows) for group in groups)
    # Filled up by copies of the last row, so that samples of about as many rows share programs.
    filled = np.minimum(np.arange(filled_length(n)), n - 1)
    sides = (
        np.concatenate([side[np.ix_(g.rows, g.limited)] for g in groups]) for side in (low, high)
    )
    loc = jnp.concatenate([group.mean[:, -size:] for group in groups])
    matrix = jnp.asarray(groups[0].rest)
    if len(groups) > 1:
        spread = lambda group: jnp.broadcast_to(group.rest, (len(group.rows), size, size))
        matrix = jnp.concatenate([*map(spread, groups)])
    matrix = matrix[filled] if matrix.ndim == 3 else matrix
    box = Box(*(side[filled] for side in sides))
    every = truncated_moments(loc[filled], matrix, box, method, key)
    ends = np.cumsum([len(group.rows) for group in groups])
    pieces = zip(*(jnp.split(leaf, ends) for leaf in every))
    return {int(group.rows[0]): Moments(*piece) for group, piece in zip(groups, pieces)}


def combined(group: Group, moments: Moments | None) -> Moments:
    """The moments of all entries of a group of rows, by those of its limited ones."""
    n, d = group.loc.shape
    moves, size = jnp.asarray(group.moves), len(group.limited)
    mean, some = jnp.asarray(group.mean), moves[..., len(group.seen) - size :]
    matrix = jnp.broadcast_to(group.left, (n, d, d))
    errors = jnp.zeros((n, d), matrix.dtype), jnp.zeros((n, d, d), matrix.dtype)
    if moments is not None:
        turned = jnp.swapaxes(some, -1, -2)
        mean = mean.at[:, -size:].set(moments.mean)
        matrix = matrix + some @ moments.covariance @ turned
        sizes = jnp.abs(some)
        errors = (
            jnp.einsum("...dl,...l->...d", sizes, moments.mean_stderr),
            sizes @ moments.covariance_stderr @ jnp.abs(turned),
        )
    result = group.loc + jnp.einsum("...do,...o->...d", moves, mean - group.loc[:, group.seen])
    as_they_are = np.flatnonzero(group.clear[group.seen])
    result = result.at[:, group.seen[as_they_are]].set(mean[:, as_they_are])
    return Moments(result, matrix, *map(jax.lax.stop_gradient, errors))
