"""The probability of a selection by logistic curves, as a mixture of those by probit curves."""

import math
from itertools import product as combinations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from truncgauss.arrays.linalg import product
from truncgauss.arrays.pytrees import frozen_pytree
from truncgauss.gaussian.covariances import Covariance, CovarianceMatrix
from truncgauss.gaussian.problem import Estimate, Problem
from truncgauss.gaussian.regions.box import Box
from truncgauss.gaussian.regions.region import Region
from truncgauss.probability.exact import Exact
from truncgauss.probability.method import Method, average
from truncgauss.special.logspace import log1mexp, log_sum_exp
from truncgauss.special.tails import log_ndtr

MOST_CURVES = 2
FIRST, LAST, STEP = -1.8, 1.5, 0.15  # of log k
NEWTON_STEPS = 20  # towards the most likely scores, where a guess will do


def mixture() -> tuple[np.ndarray, np.ndarray]:
    r"""Twice the scales k and the weights a of the mixture, (23,) each.

    A standard logistic variable is 2 K Z with Z standard normal and K of Kolmogorov's distribution
    (Andrews and Mallows, 1974), whose density f has two series, for large k and for small,

    .. math:: 8 k \sum_j (-1)^{j-1} j^2 e^{-2 j^2 k^2} = \sqrt{2\pi} \sum_j
        \{2 c_j k^{-4} - k^{-2}\} e^{-c_j / k^2}, \qquad c_j = (2j-1)^2 \pi^2 / 8

    and 1 / (1 + e^{-z}) = sum_i a_i Phi(z / 2 k_i) is the trapezoidal rule in log k: a = h k f.
    """
    k, j = np.exp(np.arange(FIRST, LAST, STEP))[:, None], np.arange(1, 9)
    c = (2 * j - 1) ** 2 * math.pi**2 / 8
    small = math.sqrt(2 * math.pi) * (2 * c / k**4 - 1 / k**2) * np.exp(-c / k**2)
    large = 8 * k * (-1.0) ** (j - 1) * j**2 * np.exp(-2 * j**2 * k**2)
    density = np.where(k < 1, small, large).sum(axis=1)
    return 2.0 * k[:, 0], STEP * k[:, 0] * density


SCALES, SHARES = mixture()


@frozen_pytree
class LogisticScores(Method):
    r"""The log probability of a `Selection.logistic` of up to two curves, without points in x.

    With z the scores in units of the widths, Normal(m, V), the probability is E prod_j s(z_j) with
    s(z) = 1 / (1 + e^{-z}). Two identities make it exact in any tail. First, s is a mixture of
    probit curves, see `mixture`, so that the expectation is one of probabilities of orthants,

    .. math:: \sum_i a_i\, P(z + \epsilon_i \ge 0), \qquad
        \epsilon_i \sim \mathcal N(0, \mathrm{diag}(2 k_i)^2)

    which is relative where the most likely scores, given that x is kept, are positive. Second,
    s(z) = e^z s(-z), and e^z moves the mean of the Gaussian: for a set of curves with indicator f,

    .. math:: E \prod_j s(z_j) = e^{f \cdot m + f^T V f / 2}\;
        E \prod_j s\{(1 - 2 f_j)(z + V f)_j\}

    which is taken for the curves whose most likely score is negative. Of one curve that is the
    condition m < -V / 2.

    References:
        Andrews and Mallows (1974), Scale mixtures of normal distributions.
        Monahan and Stefanski (1992), Normal scale mixture approximations to F*(z) and computation
        of the logistic-normal integral: mixtures of few terms, of absolute accuracy.
    """

    own_units = False

    @classmethod
    def candidate(cls, problem: Problem, num_points: int) -> "LogisticScores | None":
        return cls() if cls.applies(problem.region) else None

    @staticmethod
    def applies(region: Region) -> bool:
        scores = region.score_selection()
        logistic = scores is not None and scores.curve == "logistic"
        return logistic and scores.width.shape[-1] <= MOST_CURVES

    def reason(self, problem: Problem) -> str:
        return "a mixture of boxes of scores with normal noise"

    def for_problem(self, problem: Problem) -> "LogisticScores":
        region = problem.region
        if not self.applies(region):
            raise ValueError(
                f"LogisticScores applies to a Selection.logistic of up to {MOST_CURVES} curves, "
                f"got {type(region).__name__}. Use tg.Automatic()."
            )
        return self

    def replicate(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, key: Array
    ) -> Estimate:
        curves = region.score_selection()
        width = curves.positive_width
        root = product(curves.weights, covariance.scale_tril) / width[:, None]
        mean = (product(curves.weights, loc) - curves.midpoint) / width
        matrix = product(root, root.T)
        if len(mean) == 1:
            value = log_mean_logistic(mean[0], matrix[0, 0])
            return Estimate(value, jnp.zeros_like(value))
        return of_two(mean, matrix, key)


def log_mean_logistic(mean: Array, variance: Array) -> Array:
    """log E 1 / (1 + e^{-z}) of z ~ Normal(mean, variance), relative also where it is near 0."""
    above = mean > 0  # where one minus that is computed, with all digits of the log
    tail = _log_tail(jnp.where(above, -mean, mean), variance)
    return jnp.where(above, log1mexp(jnp.where(above, -tail, 1.0)), tail)


def _log_tail(mean: Array, variance: Array) -> Array:
    """The same for a mean that is not positive."""
    turned = mean < -0.5 * variance
    level = jnp.where(turned, mean + 0.5 * variance, 0.0)
    mean = jnp.where(turned, -mean - variance, mean)
    scales = jnp.sqrt(variance + jnp.asarray(SCALES**2, mean.dtype))
    logs = log_ndtr(mean / scales) + jnp.asarray(np.log(SHARES), mean.dtype)
    return level + log_sum_exp(logs)


def of_two(mean: Float[Array, "2"], matrix: Float[Array, "2 2"], key: Array) -> Estimate:
    """log E of the product of two logistic curves of the entries of z ~ Normal(mean, matrix)."""
    score = jax.lax.stop_gradient(most_likely(mean, matrix))
    turned = jnp.where(score < 0, 1.0, 0.0).astype(mean.dtype)
    signs = 1.0 - 2.0 * turned
    moved = product(matrix, turned)
    level = turned @ mean + 0.5 * turned @ moved
    mean, matrix = signs * (mean + moved), signs[:, None] * matrix * signs
    pairs = np.array(list(combinations(range(len(SCALES)), repeat=2)))
    noise = jnp.asarray(SCALES[pairs] ** 2, mean.dtype)
    box = Box(jnp.zeros_like(mean), jnp.full_like(mean, jnp.inf))

    def one(variances: Array) -> Estimate:
        scores = CovarianceMatrix(matrix + jnp.diag(variances))
        return average(Exact(), Problem(mean, scores, box), key)

    each = jax.vmap(one)(noise)
    logs = each.log_prob + jnp.asarray(np.log(SHARES[pairs]).sum(axis=1), mean.dtype)
    return Estimate(level + log_sum_exp(logs), jnp.max(each.stderr))


def most_likely(mean: Float[Array, "2"], matrix: Float[Array, "2 2"]) -> Float[Array, "2"]:
    """About the scores of largest density times the two curves, by Newton's method for their slopes
    p: z = m + V p with p = s(-z)."""

    def step(_: int, p: Array) -> Array:
        z = mean + product(matrix, p)
        share = jax.nn.sigmoid(-z)
        bend = share * (1.0 - share)
        change = jnp.linalg.solve(jnp.eye(2, dtype=p.dtype) + bend[:, None] * matrix, share - p)
        return jnp.clip(p + change, 0.0, 1.0)

    p = jax.lax.fori_loop(0, NEWTON_STEPS, step, jnp.full_like(mean, 0.5))
    return mean + product(matrix, p)
