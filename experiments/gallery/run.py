"""One truncated Gaussian: its draws, its fraction along a shift, a fit, and soft estimates."""

import jax
import jax.numpy as jnp
import numpy as np

import truncgauss as tg


def run(config):
    """The numbers behind every figure."""
    loc, covariance = jnp.array(config.gaussian.loc), jnp.array(config.gaussian.covariance)
    low, high = jnp.array(config.limits.low), jnp.array(config.limits.high)
    keys = jax.random.split(jax.random.key(config.seed), 3)
    draws = tg.truncated_samples(keys[0], loc, covariance, tg.Box(low, high), config.num_draws)
    # The first two coordinates make a problem of the plane.
    plane = loc[:2], covariance[:2, :2], tg.Box(low[:2], high[:2])
    curves = fractions(plane, config, keys[1])
    fit = fitted(loc[2], covariance[2, 2] ** 0.5, low[2], high[2], config, keys[2])
    failed = "" if fit["converged"] else "the fit did not converge"
    if not all(np.isfinite(x).all() for x in (*jax.tree.leaves(curves), draws)):
        failed = "a curve or a draw is not finite"
    return {
        "names": np.array(config.names),
        "loc": loc, "covariance": covariance, "low": low, "high": high, "draws": draws,
        **curves,
        "steepness": config.steepness, "num_samples": config.num_samples,
        "steepnesses": np.array(config.steepnesses),
        "fit": fit,
        "widths": np.geomspace(config.widths.start, config.widths.stop, config.widths.num),
        "summary": summary(curves, fit, config),
        "failed": failed,
    }  # fmt: skip


def fractions(plane, config, key):
    """The fraction kept and its gradient along a shift of the first mean, exact, shape (n,), and by
    soft edges, (repeats, n); at shift 0 also for every steepness, (repeats, steepnesses)."""
    loc, covariance, box = plane

    def fraction(shift, method, key=None):
        moved = loc.at[0].add(shift)
        return tg.fraction_not_truncated(moved, covariance, box, method, key)

    def soft(shift, steepness, key):
        method = tg.SoftMonteCarlo(config.num_samples, edge=tg.Tanh(steepness))
        return jax.value_and_grad(fraction)(shift, method, key)

    shifts = jnp.linspace(config.shift.start, config.shift.stop, config.shift.num)
    keys = jax.random.split(key, config.num_repeats)
    more = jnp.array(config.steepnesses)
    # One program: all shifts at one steepness, then no shift at all of these.
    places = jnp.append(shifts, jnp.zeros_like(more))
    edges = jnp.append(jnp.full_like(shifts, config.steepness), more)
    found = jax.jit(jax.vmap(jax.vmap(soft, (0, 0, None)), (None, None, 0)))(places, edges, keys)
    exact = jax.jit(jax.vmap(jax.value_and_grad(lambda s: fraction(s, tg.Exact()))))
    truth = exact(jnp.append(shifts, 0.0))
    names, n = ("value", "gradient"), len(shifts)
    return {
        "shift": shifts,
        "exact": {name: x[:n] for name, x in zip(names, truth)},
        "soft": {name: x[:, :n] for name, x in zip(names, found)},
        "fraction": float(truth[0][n]), "slope": float(truth[1][n]), "slopes": found[1][:, n:],
    }  # fmt: skip


def fitted(loc, scale, low, high, config, key):
    """A Gaussian fitted to one coordinate seen between limits: trace, profile and residuals."""
    rows = tg.TruncatedNormal(loc, scale, low=low, high=high).sample(key, (config.num_rows,))
    box = tg.Box(low[None], high[None])
    fit = tg.fit_observations(tg.Observations.exact(rows, region=box))
    values, fall = fit.profile_curve("loc[0]", num=17)
    residuals = tg.quantile_residuals(fit, key)
    return {
        "loss": fit.loss_trace,
        "decrement": fit.newton_decrement_trace,
        "values": values,
        "fall": fall,
        "estimate": float(fit.estimates[0]),
        "stderr": float(fit.errors[0]),
        "interval": np.array(fit.profile("loc[0]")),
        "residuals": residuals[..., 0],
        "converged": fit.converged,
    }


def summary(curves, fit, config):
    """The fraction kept, the fit, and what softness costs."""
    (low, high), slopes, truth = fit["interval"], curves["slopes"], curves["slope"]
    bias, spread = np.mean(slopes, axis=0) - truth, np.std(slopes, axis=0, ddof=1)
    lines = [
        f"the first two limits keep {100 * curves['fraction']:.1f} % of the Gaussian",
        f"mean of {config.names[2]}: {fit['estimate']:.3f} +- {fit['stderr']:.3f}, "
        f"profile interval {low:.3f} to {high:.3f}, truth {config.gaussian.loc[2]:g}",
        f"gradient of the fraction, {truth:.4f} a unit of {config.names[0]}, from "
        f"{config.num_samples} samples:",
    ]
    return lines + [
        f"  steepness {k:>5g}: bias {b:+.4f}, standard deviation {s:.4f}"
        for k, b, s in zip(config.steepnesses, bias, spread)
    ]
