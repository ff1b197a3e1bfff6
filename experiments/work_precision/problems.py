"""Gaussians of named families with boxes, and their probabilities by independent routes.

References:
    The equicorrelated and the one-factor family: Y. L. Tong, "The Multivariate Normal Distribution"
    (1990), chapter 8. The probability 1/(d + 1)! of the tridiagonal family: d + 1 independent
    variables in ascending order.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

import truncgauss as tg


def structured(family, d, seed):
    """The covariance of a family; a few factors show themselves to the exact method."""
    rho = family.correlation
    match family.family:
        case "identity":
            return jnp.eye(d)
        case "equicorrelated":
            return tg.LowRank(jnp.full((d, 1), math.sqrt(rho)), jnp.full(d, 1 - rho))
        case "autoregressive":
            return rho ** jnp.abs(jnp.arange(d)[:, None] - jnp.arange(d))
        case "one_factor":
            grid = np.linspace(0, 1, len(family.loadings))
            loadings = jnp.asarray(np.interp(np.linspace(0, 1, d), grid, family.loadings))
            return tg.LowRank(loadings[:, None], 1 - loadings**2)
        case "tridiagonal":
            return 2 * jnp.eye(d) - jnp.eye(d, k=1) - jnp.eye(d, k=-1)
        case "wishart":
            draws = jax.random.normal(jax.random.key(seed), (d, 2 * d))
            scatter = draws @ draws.T
            scale = jnp.sqrt(jnp.diagonal(scatter))
            return scatter / (scale[:, None] * scale)


def problem_of(family, d, low, high, seed):
    """loc, dense covariance and box."""
    covariance = structured(family, d, seed)
    dense = getattr(covariance, "covariance_matrix", covariance)
    return jnp.zeros(d), dense, tg.Box(jnp.full(d, low), jnp.full(d, high))


def truth_of(family, d, low, high, config):
    """log P and its standard error, by a route that the measured methods do not take."""
    problem = problem_of(family, d, low, high, config.seed)
    if family.family == "tridiagonal":
        if low != 0 or high < 100:
            raise ValueError(
                "tridiagonal: the truth is known where low is 0 and high is 100 or more, got "
                f"{low:g} and {high:g}."
            )
        return -math.lgamma(d + 2), 0.0
    if family.family == "autoregressive":
        return chain_log_probability(d, family.correlation, low, high), 0.0
    if family.family == "wishart":
        method = tg.Separation(num_points=config.truth_points)
        result = answered(*problem, method, jax.random.key(config.seed + 1))
    else:
        loc, _, region = problem
        result = tg.log_probability(loc, structured(family, d, 0), region, method=tg.Exact())
    return float(result.log_prob), float(result.stderr)


def chain_log_probability(d, correlation, low, high, num_nodes=400):
    """log P of a stationary autoregression, one transition of its density after the other.

    Gauss-Legendre nodes reach 12 standard deviations into a tail; 12 digits agree with values from
    elsewhere.
    """
    low = max(low, -12.0)
    high = min(high, max(low, 0.0) + 12.0)
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    nodes = low + 0.5 * (high - low) * (nodes + 1)
    weights = 0.5 * (high - low) * weights / math.sqrt(2 * math.pi)
    variance = 1 - correlation**2
    density = weights * np.exp(-0.5 * nodes**2)
    step = (nodes[:, None] - correlation * nodes) ** 2
    step = weights[:, None] * np.exp(-0.5 * step / variance) / math.sqrt(variance)
    log_prob = 0.0
    for _ in range(d - 1):
        mass = density.sum()
        log_prob += math.log(mass)
        density = step @ (density / mass)
    return log_prob + math.log(density.sum())


@jax.jit
def answered(loc, covariance, region, method, key):
    """The public function as it runs inside a compiled model."""
    return tg.log_probability(loc, covariance, region, method=method, key=key)
