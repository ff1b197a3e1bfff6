"""A log probability with its gradient, and with the standard errors of both."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from truncgauss.covariances import Covariance
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import Method, average, prepared, spread
from truncgauss.probability.refinement import Goal, errors
from truncgauss.probability.row_batches import in_batches
from truncgauss.problem import Estimate, Problem, Region, as_key, as_problem, over_rows
from truncgauss.special.logspace import log_sum_exp

LEAST_MISSED = 1e-8  # of log P


class Gradient(NamedTuple):
    """The derivatives of log P in every number that describes the problem, or their errors.

    Attributes:
        loc: shape (..., d).
        covariance: shape (..., d, d) if the covariance was given as a matrix: symmetric, as
            `jax.grad` gives it, so that half of a covariance's derivative is in each of its two
            places; else an object of its kind, such as `tg.ScaleTril`.
        region: an object of the region's kind, such as `tg.Box`, of derivatives in its limits.
    """

    loc: Any
    covariance: Any
    region: Any


class LogProbabilityAndGradient(NamedTuple):
    """What `log_probability_and_gradient` returns.

    Attributes:
        estimate: log P and its standard error.
        gradient: of log P.
        stderr: of the gradient, entry for entry, of the same shapes.
    """

    estimate: Estimate
    gradient: Gradient
    stderr: Gradient


def log_probability_and_gradient(
    loc: Any,
    covariance: Any,
    region: Region,
    method: Method = Automatic(),
    key: jax.Array | None = None,
) -> LogProbabilityAndGradient:
    r"""log P(X in region), its gradient, and the standard errors of both.

    With p_r the R replicates of P, g_r the gradient of log p_r and w_r = p_r / sum p_r, the log of
    the mean has the gradient

    .. math:: g = \sum_r w_r\, g_r,

    a ratio of two means, p g over p. To first order its error is the mean of p_r (g_r - g) over
    the mean of p, whose standard error the spread of the replicates tells:

    .. math:: \mathrm{stderr}^2 = \frac{R}{R - 1} \sum_r w_r^2\, (g_r - g)^2.

    Near a singular covariance a gradient may be wrong by half where the value is right to 1e-3:
    there this is the error to look at. It is right in the mean over keys; but an entry that only
    few paths move, as one coordinate's where two others nearly repeat each other, has a skewed
    error, of which intervals of 95 % held 72 to 90 % at 64 to 1,024 points a replicate. The cost is
    that of a value and its gradient, and one value.

    Args:
        loc, covariance, region, method, key: as in `log_probability`, which gives the same estimate
            for the same held method. `Automatic` buys points for the rtol of the value, and does
            not look for structure in a covariance matrix.

    Returns:
        LogProbabilityAndGradient(estimate, gradient, stderr). The gradient's stderr is inf where
        the estimate rests on nothing. It is nan, unknown, where that of the estimate speaks of more
        than the replicates' spread: of a layer along the limits too thin for any of them to have
        met, in which the value changes by little and the gradient lives, or of the last digits of
        the inputs. A method without replicates, or with one, says 0 where the value is exact, else
        nan. Each row has a gradient of
        its own: what all rows share gets one for each, shape (..., d). Of a sum over rows with one
        key, errors do not add as squares.

    Raises:
        ValueError: as `log_probability`.

    Reference:
        Cochran (1977), Sampling Techniques, chapter 6, for the error of a ratio.

    Example:
        >>> box = tg.Box([0.0, 0.0], jnp.inf)
        >>> result = tg.log_probability_and_gradient([0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]], box)
        >>> result.gradient.loc.round(4), result.stderr.loc
        (Array([0.5984, 0.5984], dtype=float64), Array([0., 0.], dtype=float64))
    """
    if not isinstance(method, Method):
        raise TypeError(f"method must be one of tg's, such as tg.Exact(), got {method!r}.")
    problem = as_problem(loc, covariance, region)
    key = as_key(key)
    if isinstance(method, Automatic):
        result = method.answer(problem, key, Goal(_evaluated, _errors, differentiates=True)).result
    else:
        result = in_batches(_evaluated, prepared(method, problem), problem, key)
    if isinstance(covariance, Covariance):
        return result
    return result._replace(gradient=_plain(result.gradient), stderr=_plain(result.stderr))


@jax.jit
def _evaluated(method: Method, problem: Problem, key: Array) -> LogProbabilityAndGradient:
    """The result for every row of a problem, with one key for all rows."""
    held = method if jax.tree.leaves(method) else method.hold(*problem)
    return over_rows(lambda row, method: _of_row(method, row, key), problem, held)


def _of_row(method: Method, row: Problem, key: Array) -> LogProbabilityAndGradient:
    num = method.num_replicates
    single = dataclasses.replace(method, num_replicates=1) if num > 1 else method

    def one(key: Array) -> tuple[Array, Problem]:
        return jax.value_and_grad(lambda row: average(single, row, key).log_prob)(row)

    if num == 1:
        (log_prob, gradient), stderr = one(key), average(method, row, key).stderr
        own = jnp.where((stderr == 0) | jnp.isinf(stderr), stderr, jnp.nan)
        error = jax.tree.map(lambda leaf: jnp.broadcast_to(own, leaf.shape), gradient)
        return LogProbabilityAndGradient(
            Estimate(log_prob, stderr), Gradient(*gradient), Gradient(*error)
        )
    log_probs, gradients = lax.map(one, jax.random.split(key, num))
    estimate = average(method, row, key)
    shares = jnp.exp(log_probs - log_sum_exp(log_probs))
    gradient = jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, 1), gradients)

    # What all replicates may have missed alike is no part of their spread.
    seen = spread(log_probs, jnp.full_like(log_probs, jnp.nan))
    missed = estimate.stderr**2 - seen**2 > jnp.maximum(LEAST_MISSED, 1e-3 * seen) ** 2
    known = jnp.where(jnp.isinf(estimate.stderr), jnp.inf, jnp.where(missed, jnp.nan, 0.0))

    def error(leaf: Array, mean: Array) -> Array:
        squares = jnp.tensordot(shares**2, (leaf - mean) ** 2, 1)
        return jnp.sqrt(num / (num - 1) * squares) + known.astype(leaf.dtype)

    stderr = jax.tree.map(error, gradients, gradient)
    return LogProbabilityAndGradient(estimate, Gradient(*gradient), Gradient(*stderr))


def _errors(result: LogProbabilityAndGradient) -> np.ndarray:
    return errors(result.estimate)


def _plain(gradient: Gradient) -> Gradient:
    """The gradient with its covariance as a matrix."""
    return gradient._replace(covariance=gradient.covariance.matrix)
