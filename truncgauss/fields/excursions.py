"""Excursion sets of a Gaussian field by nested probabilities, all of them from one pass.

Reference:
    Bolin and Lindgren (2015), Excursion and contour uncertainty regions for latent Gaussian models.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Array as AnyArray
from jaxtyping import Bool, Float, Real

from truncgauss.arrays.coordinates import check_one_order
from truncgauss.arrays.keys import PRNGKey, as_key
from truncgauss.arrays.pytrees import as_float_array, is_concrete
from truncgauss.fields.field_particles import LEAST_EFFECTIVE
from truncgauss.gaussian.covariances import CovarianceMatrix, as_covariance
from truncgauss.gaussian.problem import CovarianceLike
from truncgauss.separation.kernel import Constraints
from truncgauss.separation.particles import particles
from truncgauss.separation.plan import Proposal
from truncgauss.separation.twisting import Twist
from truncgauss.special.logspace import standard_error
from truncgauss.special.tails import ndtr
from truncgauss.words.arguments import explained

FIRST = 256  # sites of the first pass; their number doubles until F is below `least`
CERTAIN = 10.0  # standard deviations above the level: all such sites change F by no digit
SIGNS = {">": 1.0, "<": -1.0, "!=": 0.0}


class Excursion(NamedTuple):
    """The excursion function of a Gaussian field, in the order of the sites.

    Attributes:
        probability: F, NaN where it is below `least`, shape (d,).
        stderr: standard error of F: inf where too few particles were effective, NaN where F is
            NaN, and 0 up to rounding at the first site of the order.
        marginal: the probability of the event at each site by itself, which F never exceeds.
        above: whether the event is X > level: of ">" everywhere, of "<" nowhere, and of "!=" where
            the mean is at least the level.
        least: below it F is not computed.
    """

    probability: Float[AnyArray, " d"]
    stderr: Float[AnyArray, " d"]
    marginal: Float[AnyArray, " d"]
    above: Bool[AnyArray, " d"]
    least: float

    def inside(self, alpha: float = 0.05) -> Bool[AnyArray, " d"]:
        """The sites of the excursion set at 1 - alpha: those with F of at least 1 - alpha.

        The events at all of them hold together with a probability of at least 1 - alpha. A site
        whose F is within some stderr of 1 - alpha may be on either side.

        Raises:
            ValueError: for alpha that is not between 0 and 1 - least.
        """
        if not 0.0 < alpha <= 1.0 - self.least:
            raise ValueError(
                f"inside: alpha must be above 0 and at most {1.0 - self.least:g}, got {alpha!r}: "
                f"the probabilities were computed down to least={self.least:g}."
            )
        return self.probability >= 1.0 - alpha


@explained
def excursion(
    loc: Real[Any, "#d"],
    covariance: CovarianceLike,
    level: Real[Any, "#d"],
    kind: str = ">",
    *,
    least: float = 0.01,
    num_particles: int = 512,
    num_replicates: int = 16,
    key: PRNGKey | None = None,
) -> Excursion:
    r"""The excursion function of a Gaussian field, with which all sites of a set exceed a level.

    .. math:: F(s_k) = P(X_{s_1} > u_{s_1}, \ldots, X_{s_k} > u_{s_k}),
        \qquad P(X_{s_1} > u_{s_1}) \ge P(X_{s_2} > u_{s_2}) \ge \ldots

    So {F >= 1 - alpha} is the largest set of this order in which the field exceeds the level
    everywhere, with probability 1 - alpha. A map of the marginal probabilities has no such meaning:
    of many sites with 0.95 each, some are below.

    All F are by one pass of particles over the sites in this order, of which the mean weight after
    site k is unbiased for F(s_k); the replicates are averaged and their scatter is the error.
    Particles that are sorted by their conditional means share a lattice. The pass is over the first
    256 sites, or twice as many and so on, until F is below `least`, by the Cholesky factor of their
    covariance matrix. A `tg.Directed` is taken by its matrix too, since its factor belongs to an
    order of its own; that of an approximation by neighbours is the field, and stderr does not
    contain its error. Noise of it is a part of X.

    Args:
        loc: mean, shape (d,) or a number. After data, the mean and the covariance are conditional.
        covariance: of X: a matrix, (d, d), or any covariance of this package, without leading axes.
        level: u, shape (d,) or a number, finite.
        kind: ">", or "<" for the sites below the level, or "!=" for those on the side of it on
            which their mean is: the rest of that set is where a contour line may pass.
        least: F below it is NaN, and costs nothing.
        num_particles, num_replicates: of the pass, and how many, at least 2, for the error.
        key: of the random numbers.

    Returns:
        `Excursion(probability, stderr, marginal, above, least)`, whose method `inside(alpha)` is
        the set. It has no derivative, and no place within jax.jit: the order is one of numbers.

    Raises:
        ValueError: for wrong shapes, NaN, an unknown kind, and what is no covariance.

    Reference:
        Bolin and Lindgren (2015), Excursion and contour uncertainty regions for latent Gaussian
        models, sections 2 and 3; their R package is `excursions`.

    Example:
        >>> x = jnp.linspace(0.0, 1.0, 50)
        >>> field = jnp.exp(-jnp.abs(x[:, None] - x)) * 0.1
        >>> where = tg.excursion(jnp.sin(6.0 * x), field, 0.0)
        >>> int(where.inside(0.05).sum()), int((where.marginal >= 0.95).sum())
        (16, 17)
    """
    if kind not in SIGNS:
        raise ValueError(f'excursion: kind must be ">", "<" or "!=", got {kind!r}.')
    for name, value in ("loc", loc), ("level", level):
        if getattr(value, "ndim", 0) > 1 or hasattr(value, "scale_tril"):
            raise ValueError(
                f"excursion: {name} must be a number or of shape (d,), got a matrix or a "
                "covariance. The order is (loc, covariance, level)."
            )
    if not 0.0 < least < 1.0:
        raise ValueError(f"excursion: least must be between 0 and 1, got {least!r}.")
    for name, count, fewest in ("particles", num_particles, 1), ("replicates", num_replicates, 2):
        if not isinstance(count, int) or count < fewest:
            raise ValueError(f"excursion: num_{name} must be an int from {fewest}, got {count!r}.")
    mean, matrix, threshold = _checked(loc, covariance, level)
    dtype = matrix.dtype
    sign = (
        np.where(mean >= threshold, 1.0, -1.0) if kind == "!=" else np.full(len(mean), SIGNS[kind])
    )
    margin, scale = sign * (mean - threshold), np.sqrt(np.maximum(np.diagonal(matrix), 0.0))
    # Without variance the event is certain or impossible.
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.where(scale > 0, margin / scale, np.where(margin > 0, np.inf, -np.inf))
    marginal = np.asarray(ndtr(score.astype(dtype)))
    order = np.argsort(-score, kind="stable")
    order = order[(marginal[order] >= least) & (score[order] < CERTAIN)]
    probability, stderr = np.where(score >= CERTAIN, [[1.0], [0.0]], np.nan).astype(dtype)
    keys = jax.random.split(as_key(key), num_replicates)
    size = min(FIRST, len(order))
    while size:
        sites = order[:size]
        part = (matrix[np.ix_(sites, sites)] * sign[sites, None] * sign[sites]).astype(dtype)
        values = _nested(margin[sites].astype(dtype), part, keys, num_particles)
        probability[sites], stderr[sites] = (np.asarray(x) for x in values)
        if size == len(order) or probability[sites[-1]] < least:
            break
        size = min(2 * size, len(order))
    low = probability < least
    probability[low], stderr[low] = np.nan, np.nan
    F, error, single, above = map(jnp.asarray, (probability, stderr, marginal, sign > 0))
    return Excursion(F, error, single, above, least)


def _checked(loc: Any, covariance: Any, level: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean, the covariance matrix and the level of each site."""
    if not is_concrete((loc, covariance, level)):
        raise ValueError("excursion: loc, covariance and level must be numbers, not traced.")
    check_one_order(loc=loc, covariance=covariance, level=level)
    form = as_covariance(covariance)
    form.check()
    if form.batch_shape:
        raise ValueError(
            f"excursion takes one field at a time, got leading axes {form.batch_shape} of the "
            "covariance."
        )
    each = []
    for name, value in ("loc", loc), ("level", level):
        values = np.asarray(as_float_array(value, f"excursion: {name}"))
        if values.shape not in ((), (1,), (form.dimension,)):
            raise ValueError(
                f"excursion: {name} must be a number or have shape ({form.dimension},), one for "
                f"each site of the covariance, got {values.shape}."
            )
        if not np.all(np.isfinite(values)):
            raise ValueError(f"excursion: {name} must be finite, got NaN or infinity.")
        each.append(np.broadcast_to(values, (form.dimension,)))
    matrix = np.asarray(form.covariance_matrix)
    if not np.all(np.isfinite(matrix)):
        raise ValueError("excursion: the covariance must be finite, got NaN or infinity.")
    return each[0], matrix, each[1]


@functools.partial(jax.jit, static_argnums=3)
def _nested(margin: Array, matrix: Array, keys: Array, n: int) -> tuple[Array, Array]:
    """P(margin_1 + Y_1 > 0, ..., margin_k + Y_k > 0) of each k, and its standard error.

    Y with the covariance matrix. Where earlier sites determine a later one to rounding, it keeps
    the standard deviation that rounding leaves.
    """
    factor = CovarianceMatrix(matrix).root
    left = jnp.sqrt(len(margin) * jnp.finfo(matrix.dtype).eps * jnp.max(jnp.diagonal(matrix)))
    factor += jnp.diag(jnp.where(jnp.diagonal(factor) == 0, left, 0.0))
    none = jnp.zeros_like(margin)
    limits = Constraints(none, jnp.full_like(margin, jnp.inf), margin, factor)
    extra, start = Constraints(*(x[:0] for x in limits)), none[0]
    chain = Proposal(limits, extra, none, Twist(none, margin, start), start)

    def once(key: Array) -> tuple[Array, Array]:
        record = particles(chain, key, n)
        return record.log_probs, record.least_so_far

    log_probs, least = lax.map(once, keys)
    values = jnp.exp(log_probs)
    mean = jnp.mean(values, axis=0)
    few = jnp.min(least, axis=0) < min(LEAST_EFFECTIVE, n)
    return mean, jnp.where(few, jnp.inf, standard_error(values - mean))
