"""The probability of a selection that is known from simulations, by weights of what it found."""

import math
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from jaxtyping import Float, Real

from truncgauss.arrays.pytrees import as_float_array, frozen_pytree, is_concrete
from truncgauss.gaussian.covariances import Covariance
from truncgauss.gaussian.problem import Estimate, Problem
from truncgauss.gaussian.regions.injections import EFFECTIVE_PER_ROW, Injections
from truncgauss.gaussian.regions.region import Region
from truncgauss.gaussian.total_moments import MIN_EFFECTIVE_POINTS
from truncgauss.probability.importance import log_density
from truncgauss.probability.method import Method
from truncgauss.special.logspace import log_sum_exp
from truncgauss.special.tails import LOG_SQRT_2PI
from truncgauss.words.arguments import explained


@explained
def log_mean_weights(
    log_weights: Real[ArrayLike, "*batch n"],
    num_total: Real[ArrayLike, "*#batch"],
    num_rows: Real[ArrayLike, "*#batch"] = 0,
) -> Estimate:
    r"""The log of a mean of weights of which most are 0, as of injections, and its standard error.

    .. math:: \hat P = \frac1N \sum_{i=1}^{n} w_i, \qquad
        \epsilon^2 = \frac{\sum_i w_i^2}{(\sum_i w_i)^2} - \frac1N, \qquad
        n_\mathrm{eff} = \epsilon^{-2}

    In the log-likelihood of a sample it stands once for each row, with the same error: that of the
    sum is num_rows times stderr. With num_rows the bias of the logarithm, -stderr^2 / 2 to leading
    order, is taken away, and the value is NaN where there are not four effective injections a row:
    then the error of the sum, sqrt(num_rows) / 2 at that bound, is no longer small beside what the
    sample tells.

    Args:
        log_weights: of the found points, log p(x_i) - log q(x_i), along the last axis; -inf for 0.
        num_total: N, the number of all draws, found or not.
        num_rows: observations in whose likelihood it stands; 0 for a probability alone.

    Returns:
        Estimate(log_prob, stderr). stderr is inf for fewer than ten effective points, if there are
        no rows. The first has derivatives of any order, the second none.

    Raises:
        ValueError: for no weight, or fewer draws than weights (while tracing the value is NaN).

    Reference:
        Farr (2019), Accuracy requirements for empirically measured selection functions.

    Example:
        >>> log_prob, stderr = tg.log_mean_weights(jnp.zeros(400), num_total=1000)
        >>> print(f"{jnp.exp(log_prob):.4f} {stderr:.4f}")  # a binomial proportion
        0.4000 0.0387
    """
    logs = as_float_array(log_weights, "log_mean_weights: log_weights")
    if logs.ndim == 0 or logs.shape[-1] == 0:
        raise ValueError(
            "log_mean_weights: log_weights need one entry for each point that was found, got "
            f"shape {logs.shape}."
        )
    total = as_float_array(num_total, "log_mean_weights: num_total").astype(logs.dtype)
    rows = as_float_array(num_rows, "log_mean_weights: num_rows").astype(logs.dtype)
    fewest = logs.shape[-1]
    if is_concrete(total) and np.any(np.asarray(total) < fewest):
        raise ValueError(
            f"log_mean_weights: num_total counts all draws, found or not, got {np.min(total):g} "
            f"for {fewest} weights."
        )
    if is_concrete(rows) and np.any(np.asarray(rows) < 0):
        raise ValueError(f"log_mean_weights: num_rows must not be negative, got {np.min(rows):g}.")
    log_sum = log_sum_exp(logs, axis=-1)
    shares = jnp.exp(log_sum_exp(2.0 * (logs - log_sum[..., None]), axis=-1))
    variance = shares - 1.0 / total
    stderr = jnp.sqrt(lax.stop_gradient(jnp.maximum(variance, 0.0)))
    few = shares * MIN_EFFECTIVE_POINTS > 1.0
    enough = variance * EFFECTIVE_PER_ROW * rows < 1.0
    log_prob = log_sum - jnp.log(total) + jnp.where(rows > 0, 0.5 * variance, 0.0)
    log_prob = log_prob * jnp.where(enough & (total >= fewest), 1.0, jnp.nan)
    return Estimate(log_prob, jnp.where(few & (rows == 0), jnp.inf, stderr))


@frozen_pytree
class Reweighting(Method):
    """The log probability of `Injections`, by the weights of the points that were found.

    Args:
        df: degrees of freedom of a multivariate t, a number; inf for the Gaussian.
    """

    df: Any = math.inf

    own_units = False
    loops = False

    @classmethod
    def candidate(cls, problem: Problem, num_points: int) -> "Reweighting | None":
        return None if problem.region.answers_points else cls()

    def reason(self, problem: Problem) -> str:
        return "a selection known by injections"

    def for_problem(self, problem: Problem) -> "Reweighting":
        region = problem.region
        if region.answers_points:
            raise ValueError(f"Reweighting applies to Injections, got {type(region).__name__}.")
        if np.ndim(self.df):
            raise ValueError(
                f"Injections: df must be one number for all rows, got shape {np.shape(self.df)}. "
                "Use tg.log_mean_weights for others."
            )
        return self

    def replicate(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, key: Array
    ) -> Estimate:
        survey = cast(Injections, region)
        x, factor, d = survey.points, covariance.scale_tril, len(loc)
        df = jnp.asarray(self.df, loc.dtype)
        gaussian = log_density(x, loc, factor)
        # Of the density up to the constant: minus half a square, less the log of the determinant.
        level = log_density(loc[None], loc, factor)
        is_t = jnp.isfinite(df)
        df = jnp.where(is_t, df, 1.0)
        square = 2.0 * (level - gaussian)
        constant = gammaln(0.5 * (df + d)) - gammaln(0.5 * df) - 0.5 * d * jnp.log(df * math.pi)
        of_t = constant + level - 0.5 * (df + d) * jnp.log1p(square / df)
        logs = jnp.where(is_t, of_t, gaussian - d * LOG_SQRT_2PI) - survey.log_draw_density
        return log_mean_weights(logs, survey.num_total, survey.num_rows)

    def numbers_held(self, dimension: int) -> int:
        return 2**20  # few rows at a time: the points of one are many
