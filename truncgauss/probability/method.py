"""The contract of a method, and the average of its replicates.

A method answers for one Gaussian and one region. The average over independent randomisations and
its standard error are written once, here.
"""

import jax
import jax.numpy as jnp

from truncgauss.covariances import Covariance
from truncgauss.problem import Estimate, Problem, Region, over_rows
from truncgauss.pytrees import Batched
from truncgauss.regions import Box, Polyhedron
from truncgauss.special import log_mean_exp
from truncgauss.units import Standardized, standardized


class Method:
    """What every method offers; "The house" in the README says how to add one.

    A method is a frozen pytree: counts are static, so that equal settings share a compilation.
    `replicate` is one independent randomisation for one unbatched problem; its own `stderr` is what
    it can say alone (nan if nothing). A deterministic method has one replicate.
    """

    num_replicates: int = 1
    batch_shape: tuple[int, ...] = ()  # of a held plan, if it has one for each of many rows
    own_units = True  # whether boxes and polyhedra come with standard deviations of about one

    def check(self, loc: jax.Array, covariance: Covariance, region: Region) -> None:
        """Raise ValueError if this method cannot answer for such inputs."""

    def settled(self, loc, covariance: Covariance, region: Region) -> "Method":
        """The method with those choices made that need numbers; called outside of a trace too."""
        return self

    def hold(self, loc: jax.Array, covariance: Covariance, region: Region) -> "Method":
        """The method with its plan fixed, so that for one key it is one smooth function."""
        return self

    def scaled(self, by: jax.Array) -> "Method":
        """The method with what it holds made to fit constraints multiplied by `by`, shape (m,)."""
        return self

    def replicate(self, loc, covariance: Covariance, region: Region, key) -> Estimate:
        raise TypeError(f"{type(self).__name__} does not define replicate.")

    def replicates(self, loc, covariance: Covariance, region: Region, keys) -> Estimate:
        """One replicate for each key, by default one after the other, in the memory of one."""
        one = jax.checkpoint(lambda key: self.replicate(loc, covariance, region, key))
        return jax.lax.map(one, keys)

    def combined_stderr(self, log_probs: jax.Array, alone: jax.Array) -> jax.Array:
        """The standard error of the log of the replicates' mean, given what each says alone."""
        return spread(log_probs, alone)


def check_held(owner: str, plan: Batched, counts: dict[str, tuple], problem: Problem) -> None:
    """Raise ValueError unless a held plan can serve a problem, as far as their shapes tell.

    Args:
        owner: the method's name.
        plan: what it holds.
        counts: what was counted -> how many there are in the plan, how many the problem has.
        problem: what is asked.
    """
    remedy = "Hold the method for this problem: method.hold(loc, covariance, region)."
    for what, (planned, asked) in counts.items():
        if planned != asked:
            raise ValueError(
                f"{owner}: the plan that is held was made for {planned} {what}, this problem has "
                f"{asked}. {remedy}"
            )
    rows, batch = plan.batch_shape, problem.batch_shape
    try:
        fits = jnp.broadcast_shapes(rows, batch) == batch
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"{owner}: the plan that is held has leading axes {rows}, one plan a row, which do not "
            f"broadcast to the problem's {batch}. {remedy}"
        )


def estimate(method: Method, problem: Problem, key: jax.Array) -> Estimate:
    """The method's estimate for every row of a problem, with one key for all rows."""
    if not jax.config.jax_debug_nans:
        return _estimate(method, problem, key)
    with jax.debug_nans(False):  # a stderr of NaN is no failure
        log_prob, stderr = _estimate(method, problem, key)
    return Estimate(log_prob + 0.0, stderr)


@jax.jit
def _estimate(method: Method, problem: Problem, key: jax.Array) -> Estimate:
    return over_rows(lambda row, method: average(method, row, key), problem, method)


def average(method: Method, problem: Problem, key: jax.Array) -> Estimate:
    """The log of the mean of the replicates' probabilities, and its standard error.

    With p_r the R replicates and p their mean, stderr = sd(p_r) / (sqrt(R) p), computed from
    exp(log p_r - max). A single replicate speaks for itself. If replicates that call their own
    result baseless (stderr inf) carry more than half of the mean, so is the average.
    """
    if method.own_units and isinstance(problem.region, Box | Polyhedron):
        row = standardized(*problem)
        result = _average(method.scaled(1.0 / row.row_unit), row.problem, key)
        return decided(row, result)
    return _average(method, problem, key)


def decided(row: Standardized, result: Estimate) -> Estimate:
    """The estimate together with what constraints without variance say."""
    certain = jax.lax.stop_gradient(row.known != 0)
    stderr = jnp.where(jnp.isnan(row.known), jnp.nan, 0.0)
    return Estimate(
        jnp.where(certain, row.known, result.log_prob), jnp.where(certain, stderr, result.stderr)
    )


def _average(method: Method, problem: tuple, key: jax.Array) -> Estimate:
    if method.num_replicates == 1:
        log_prob, stderr = method.replicate(*problem, key)
        return Estimate(log_prob, jax.lax.stop_gradient(stderr))
    keys = jax.random.split(key, method.num_replicates)
    log_probs, alone = method.replicates(*problem, keys)
    stderr = jax.lax.stop_gradient(method.combined_stderr(log_probs, alone))
    return Estimate(log_mean_exp(log_probs, axis=0), stderr)


def spread(log_probs: jax.Array, alone: jax.Array) -> jax.Array:
    """Standard error of the log of the mean of exp(log_probs), shape (R,) -> ()."""
    size = jnp.max(log_probs)
    shares = jnp.exp(log_probs - jnp.where(jnp.isfinite(size), size, 0.0))
    total = shares.sum()
    stderr = jnp.std(shares, ddof=1) * len(log_probs) ** 0.5 / total
    baseless = jnp.sum(jnp.where(jnp.isinf(alone), shares, 0.0)) > 0.5 * total
    baseless = baseless | (size == -jnp.inf)
    return jnp.where(baseless, jnp.inf, stderr)
