"""A selection with smooth limits: near a limit an object is seen with a probability below one.

With probit edges an object is seen with probability prod_j Phi(margin_j / width_j), as if each
coordinate, with normal noise of that width added, had been compared with its limit. So, with one
limit for each coordinate, the fraction seen of a Gaussian is the probability of the same box under
the covariance Sigma + diag(width^2). The soft estimate with a held key and that formula are
compared in value, in gradient and in the posterior that NUTS finds from each.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.stats import norm

import truncgauss as tg

from ..nuts import MOST_DEVIATION, chain_lines, posteriors, trouble
from ..selected_population import run as selected

MOST_NATS = 0.1  # that the two log likelihoods may differ in shape
MOST_STDERR = 0.05  # of a log fraction that NUTS may use


def run(config):
    """The two log fractions along a shift, and the two posteriors."""
    given, widths = config.population, jnp.array(config.widths)
    rng = np.random.default_rng(config.seed)

    def is_seen(x, low, high, rng):
        return rng.uniform(size=len(x)) < seen_probability(x, low, high, config.widths)

    x, num_unseen = selected.seen_objects(given, rng, is_seen)
    low, high = selected.limits_of(given)
    soft, key = soft_estimate(config), jax.random.key(config.seed)
    data = (jnp.asarray(x, config.dtype), low, high, given.prior)
    models = {
        "soft estimate": (with_fraction, (*data, soft_fraction, (soft, key))),
        "wider covariance": (with_fraction, (*data, box_fraction, widths)),
    }
    chains = posteriors(models, config)
    flat = x.reshape(-1, 2)
    results = {
        **selected.described(given),
        "objects": x,
        "num_unseen": num_unseen,
        "naive": selected.parameters_of(flat.mean(0), np.cov(flat, rowvar=False)),
        "naive_spread": selected.plain_spread(flat),
        "chains": chains,
        "apart": selected.apart(chains["soft estimate"], chains["wider covariance"]),
        "shift": along_shift(config, (soft, key), widths),
        "gap": gap(chains["wider covariance"], low, high, (soft, key), widths, len(x)),
    }
    return results | {"failed": failure(results), "summary": summary(results)}


# ---------------------------------------------------------------- the fraction seen, twice


def soft_estimate(config):
    """Soft Monte Carlo with the edges' widths, lower faces first."""
    edge = tg.Probit(jnp.array(config.widths * 2))
    return tg.SoftMonteCarlo(
        num_samples=config.num_samples, num_replicates=config.num_replicates, points="lattice",
        edge=edge,
    )  # fmt: skip


def soft_fraction(loc, scale_tril, low, high, settings):
    """log of the fraction seen, in every field, by the soft estimate; the key makes it smooth."""
    method, key = settings
    return tg.log_probability(
        loc, tg.ScaleTril(scale_tril), tg.Box(low, high), method=method, key=key
    )


def box_fraction(loc, scale_tril, low, high, widths):
    """The same as the probability of the hard box under a wider covariance."""
    covariance = scale_tril @ scale_tril.T + jnp.diag(widths**2)
    return tg.log_probability(loc, covariance, tg.Box(low, high))


def with_fraction(x, low, high, prior, fraction, settings):
    """Normal densities over the fraction seen; the edges at x are constants and left out.

    Far in a tail the estimate may be much too small, which would look like a large likelihood:
    where its standard error is too large, the density is set to zero.
    """
    loc, scale_tril = selected.population(prior)
    plain = dist.MultivariateNormal(loc, scale_tril=scale_tril)
    with numpyro.plate("fields", len(low)), numpyro.plate("objects", len(x)):
        numpyro.sample("x", plain, obs=x)
    seen = fraction(loc, scale_tril, low, high, settings)
    known = jnp.where(seen.stderr <= MOST_STDERR, seen.log_prob, jnp.inf)
    numpyro.factor("selection", -len(x) * known.sum())


def seen_probability(x, low, high, widths):
    """The probability of each object to be seen, shape (n,)."""
    return np.prod(norm.cdf((x - low) / widths) * norm.cdf((high - x) / widths), axis=-1)


def along_shift(config, soft, widths):
    """Fraction seen and gradient in the first field as the mean of the first coordinate moves."""
    given = config.population
    low, high = (side[0] for side in selected.limits_of(given))
    loc = jnp.array(given.gaussian.loc)
    scale_tril = jnp.linalg.cholesky(jnp.array(given.gaussian.covariance))

    def of(fraction, settings):
        def one(shift):
            moved = loc + shift * scale_tril[0, 0] * jnp.array([1.0, 0.0])
            estimate = fraction(moved, scale_tril, low, high, settings)
            return estimate.log_prob, estimate.stderr

        return jax.jit(jax.vmap(jax.value_and_grad(one, has_aux=True)))

    grid = jnp.linspace(config.shift.start, config.shift.stop, config.shift.num)
    curves = {"shift": grid}
    for name, fraction, settings in (
        ("soft", soft_fraction, soft), ("box", box_fraction, widths),
        ("hard", box_fraction, jnp.zeros(2)),
    ):  # fmt: skip
        (value, stderr), gradient = of(fraction, settings)(grid)
        curves |= {name: value, f"{name}_stderr": stderr, f"{name}_gradient": gradient}
    return curves


def gap(chain, low, high, soft, widths, num_objects):
    """How the difference of the two log likelihoods varies over the posterior.

    Importance weights of one posterior's draws give the means of the other without a second chain.
    """
    draws = chain["draws"]
    scale_tril = draws["scale"][..., None] * draws["factor"]
    sites = (draws["loc"].reshape(-1, 2)[::5], scale_tril.reshape(-1, 2, 2)[::5])

    @jax.jit
    def differences(sites):
        def one(site):
            return [
                fraction(*site, low, high, settings).log_prob
                for fraction, settings in ((soft_fraction, soft), (box_fraction, widths))
            ]

        estimate, truth = jax.lax.map(one, sites)
        return estimate - truth

    each = np.asarray(differences(sites))
    theta = selected.parameters(draws).reshape(-1, 5)[::5]
    log_weights = -num_objects * each.sum(-1)
    weights = np.exp(log_weights - log_weights.max())
    shift = np.average(theta, axis=0, weights=weights) - theta.mean(0)
    return {
        "log_prob_worst": float(np.abs(each).max()),
        "nats_spread": float(log_weights.std()),
        "mean_shift": float(np.max(np.abs(shift) / theta.std(0))),
    }


# ---------------------------------------------------------------- what the user reads


def failure(results):
    """Why the results cannot be trusted; empty if they can."""
    if found := trouble(results["chains"]):
        return found
    worst = max(float(np.max(np.abs(z))) for z in results["apart"].values())
    if not worst <= MOST_DEVIATION:
        return f"the two posteriors are {worst:.1f} Monte Carlo standard errors apart"
    if not results["gap"]["nats_spread"] <= MOST_NATS:
        return (
            f"the two log likelihoods differ by {results['gap']['nats_spread']:.2f} nats over the "
            "posterior: give the soft estimate more samples"
        )
    return ""


def summary(results):
    """The parameters by either route, the diagnostics of the chains, and the differences."""
    x, unseen, apart = results["objects"], results["num_unseen"], results["apart"]
    curves, gaps = results["shift"], results["gap"]
    value = np.abs(curves["soft"] - curves["box"]).max()
    slope = np.abs(curves["soft_gradient"] - curves["box_gradient"]).max()
    return [
        f"{x.shape[0] * x.shape[1]} objects in {x.shape[1]} fields, {unseen.sum()} more not seen",
        *selected.rows_of(results, tuple(results["chains"])),
        *chain_lines(results["chains"]),
        "soft estimate against wider covariance, in Monte Carlo standard errors: means at most "
        f"{np.abs(apart['mean']).max():.2f}, variances {np.abs(apart['variance']).max():.2f} apart",
        f"log fractions along the shift differ by at most {value:.1e}, gradients by {slope:.1e}; "
        f"over the posterior by {gaps['log_prob_worst']:.1e}",
        f"over the posterior the two log likelihoods differ by a constant ± "
        f"{gaps['nats_spread']:.3f} nats, which moves no mean by more than "
        f"{gaps['mean_shift']:.4f} posterior s.d.",
    ]
