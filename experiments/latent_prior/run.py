"""Truncated normal priors of unobserved quantities: a share in [0, 1] and a vector with limits.

A `TruncatedNormal` and a `TruncatedMultivariateNormal` are latent, and linear measurements of both
with normal noise pull one coordinate far past its limit. The posterior is a truncated Gaussian
again. The draws of NUTS are compared with its marginal distributions, which are integrated by
Gauss-Legendre quadrature, without a function of this package.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpy.polynomial import legendre
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import init_to_uniform

import truncgauss as tg

from .. import nuts

MISS_RATE = 1e-6  # probability of rejecting a right posterior


def run(config):
    """Draws of NUTS, the posterior's marginals on a grid, and the distances between the two."""
    given = config.latent
    arguments = (given, jnp.array(given.observed))
    chains = nuts.posteriors({"NUTS": (latent, arguments)}, config, init_to_uniform)
    closed = closed_form(given)
    grid = marginals(*closed, config.num_nodes)
    draws = vector_of(chains["NUTS"]["draws"])
    flat, effective = draws.reshape(-1, 3), effective_sample_size(draws)
    found = nuts.moments(draws)
    exact = tg.truncated_moments(closed[0], closed[1], tg.Box(*closed[2:]))
    results = {
        "names": np.array(given.names),
        "chains": chains,
        "low": closed[2],
        "high": closed[3],
        "unlimited": {"mean": closed[0], "sd": np.sqrt(np.diagonal(closed[1]))},
        "grid": grid,
        "found": found,
        "z": (found["mean"] - grid["mean"]) / found["mean_stderr"],
        "distance": np.array([distance(flat[:, j], grid, j) for j in range(3)]),
        "allowed": np.sqrt(np.log(2 / MISS_RATE) / (2 * np.minimum(effective, len(flat)))),
        "moments_error": float(np.max(np.abs(np.asarray(exact.mean) - grid["mean"]))),
        "outside": int(np.sum((flat < closed[2]) | (flat > closed[3]))),
    }
    return results | {"failed": failure(results), "summary": summary(results)}


def latent(given, observed=None):
    """Both latent sites and their measurements."""
    share, vector = given.share, given.vector
    shape = {"low": share.limits.low[0], "high": share.limits.high[0]}
    first = numpyro.sample("share", tg.TruncatedNormal(share.loc, share.scale, **shape))
    prior = tg.TruncatedMultivariateNormal(
        jnp.array(vector.gaussian.loc), jnp.array(vector.gaussian.covariance),
        low=jnp.array(vector.limits.low), high=jnp.array(vector.limits.high),
    )  # fmt: skip
    rest = numpyro.sample("vector", prior)
    x = jnp.concatenate([first[None], rest])
    signal, noise = jnp.array(given.matrix) @ x, jnp.array(given.noise)
    numpyro.sample("observed", dist.Normal(signal, noise).to_event(1), obs=observed)


def vector_of(draws):
    """Both sites side by side, shape (chains, draws, 3)."""
    return np.concatenate([draws["share"][..., None], draws["vector"]], axis=-1)


# ---------------------------------------------------------------- the closed form, on a grid


def closed_form(given):
    """loc, covariance, low and high of the truncated Gaussian that the posterior is."""
    share, vector = given.share, given.vector
    loc = np.array([share.loc, *vector.gaussian.loc])
    covariance = np.zeros((3, 3))
    covariance[0, 0], covariance[1:, 1:] = share.scale**2, vector.gaussian.covariance
    matrix, weights = np.array(given.matrix), 1 / np.array(given.noise) ** 2
    precision = np.linalg.inv(covariance) + matrix.T * weights @ matrix
    after = np.linalg.inv(precision)
    pulled = after @ (np.linalg.solve(covariance, loc) + matrix.T @ (weights * given.observed))
    low = np.array([*share.limits.low, *vector.limits.low])
    high = np.array([*share.limits.high, *vector.limits.high])
    return pulled, (after + after.T) / 2, low, high


def marginals(loc, covariance, low, high, num_nodes):
    """Mean, variance, and the marginal densities as Legendre series, by Gauss-Legendre nodes."""
    ends = reach(loc, covariance, low, high)
    nodes, weights = legendre.leggauss(num_nodes)
    middle, half = ends.mean(0), np.ptp(ends, axis=0) / 2
    axes = [m + h * nodes for m, h in zip(middle, half, strict=True)]
    residual = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1) - loc
    log = -0.5 * np.einsum("...i,ij,...j->...", residual, np.linalg.inv(covariance), residual)
    mass = np.exp(log - log.max()) * np.einsum("i,j,k->ijk", weights, weights, weights)
    mass /= mass.sum()
    each = np.stack([mass.sum(tuple({0, 1, 2} - {j})) for j in range(3)])
    orders = np.arange(num_nodes)
    mean = np.sum(each * axes, axis=1)
    return {
        "mean": mean,
        "variance": np.sum(each * (np.array(axes) - mean[:, None]) ** 2, axis=1),
        # Density over (-1, 1), the standardised axis: coefficients (2k + 1) / 2 <p, P_k>.
        "series": (orders + 0.5) * (each @ legendre.legvander(nodes, num_nodes - 1)),
        "middle": middle,
        "half": half,
    }


def reach(loc, covariance, low, high):
    """Ends of each axis between which the mass lies: within the limits, and cut at small densities.

    The density falls at least as fast as a Gaussian one from the box's most likely point.
    """
    precision = np.linalg.inv(covariance)
    mode = np.clip(loc, low, high)
    for _ in range(500):  # coordinate ascent of a concave function
        for j in range(3):
            pull = precision[j] @ (mode - loc) - precision[j, j] * (mode[j] - loc[j])
            mode[j] = np.clip(loc[j] - pull / precision[j, j], low[j], high[j])
    spread = 9 * np.sqrt(np.diagonal(covariance))
    return np.array([np.maximum(low, mode - spread), np.minimum(high, mode + spread)])


def density(x, grid, j):
    """Marginal density of coordinate j."""
    half = grid["half"][j]
    return legendre.legval((x - grid["middle"][j]) / half, grid["series"][j]) / half


def share_below(x, grid, j):
    """Marginal distribution function of coordinate j."""
    place = np.clip((x - grid["middle"][j]) / grid["half"][j], -1, 1)
    return legendre.legval(place, legendre.legint(grid["series"][j], lbnd=-1))


def distance(draws, grid, j):
    """Kolmogorov's distance of draws from the marginal of coordinate j."""
    draws = np.sort(draws)
    expected, n = share_below(draws, grid, j), len(draws)
    steps = np.arange(n)
    return max(np.max((steps + 1) / n - expected), np.max(expected - steps / n))


# ---------------------------------------------------------------- what the user reads


def failure(results):
    """Why the results cannot be trusted; empty if they can."""
    if found := nuts.trouble(results["chains"]):
        return found
    if results["outside"]:
        return f"{results['outside']} draws lie outside the bounds"
    if not np.all(results["distance"] <= results["allowed"]):
        return "the draws do not follow the closed form: see the distances"
    if not np.all(np.abs(results["z"]) <= nuts.MOST_DEVIATION):
        return "the means are not those of the closed form"
    return ""


def summary(results):
    """Means and standard deviations without limits, in closed form and from the draws."""
    found, grid, before = results["found"], results["grid"], results["unlimited"]
    row = "{:<12}{:>18}{:>20}{:>20}{:>20}{:>10}".format
    lines = [row("", "limits", "without limits", "closed form", "NUTS", "distance")]
    for j, name in enumerate(results["names"]):
        lines.append(
            row(
                str(name),
                f"[{results['low'][j]:g}, {results['high'][j]:g}]",
                f"{before['mean'][j]:.4f} ± {before['sd'][j]:.4f}",
                f"{grid['mean'][j]:.4f} ± {grid['variance'][j] ** 0.5:.4f}",
                f"{found['mean'][j]:.4f} ± {found['variance'][j] ** 0.5:.4f}",
                f"{results['distance'][j]:.4f}",
            )
        )
    return [
        *lines,
        f"means: at most {np.abs(results['z']).max():.2f} Monte Carlo standard errors from the "
        f"closed form; distances up to {results['allowed'].min():.3f} may be chance",
        f"truncated_moments of the closed form: within {results['moments_error']:.0e} of the grid",
        *nuts.chain_lines(results["chains"]),
    ]
