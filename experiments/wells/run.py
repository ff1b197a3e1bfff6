"""Concentrations in wells over space and time, most of them below a limit of detection.

The logs of all concentrations are one Gaussian field with noise, so that the wells are one
observation: the density of what was detected times the probability that all others are below their
limits. Its maximum is found by gradients and then by values. The map is
of the probability that a new sample on the last day exceeds the threshold, given all wells: the
places of the map are wells at which nothing is known.

Reference:
    Cao and Katzfuss (2025), Linear-cost Vecchia approximation of multivariate normal probabilities,
    for the model and its data.
"""

import datetime

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import truncgauss as tg

NAMES = "sill", "space", "time", "nugget"
LARGEST_STEP, MOST_STEPS = 0.7, 12  # of a log parameter; of the fit
BETWEEN, MOST_SURFACES = 5, 3  # steps between differences of gradients; quadratics
WIDTH, SPREAD = 0.2, 1.5  # of differences of gradients, of values, in standard errors
CLOSE = 0.01  # rise of the log-likelihood: a seventh of a standard error
LEAST_SIZE = 0.01  # of a curvature, in the largest
EXTENT = 10.0  # of the simulated region and, times 365 days, of its years


def run(config):
    """Estimates with intervals, and the map of exceedance with its standard error."""
    table = simulated(config) if config.data is None else read(config)
    logs = np.log(np.where(table["below"], table["limit"], table["value"]))
    seen = logs[~table["below"]]
    center, scale = (seen.mean(), seen.std()) if config.scaling is None else (
        config.scaling.center, config.scaling.scale
    )  # fmt: skip
    upper = (logs - center) / scale
    lower = np.where(table["below"], -np.inf, upper)
    points = scaled(table, table["place"], table["day"])
    method = tg.FieldParticles(config.num_particles, config.num_replicates)
    fit = fitted(config, points, lower, upper, method)
    places = on_map(config, table["place"])
    last = np.full(len(places), table["day"].max())
    new = scaled(table, places, last)
    rise = (np.log(config.threshold) - center) / scale
    maps = exceedance(config, fit, np.concatenate([points, new]), lower, upper, rise)
    half = stats.norm.isf(0.5 - 0.5 * config.level) * fit["stderr"]
    results = {
        "names": np.array(NAMES),
        "estimates": np.exp(fit["x"]),
        "interval": np.exp(fit["x"] + np.outer([-1.0, 1.0], half)),
        "level": config.level,
        "log_likelihood": fit["log_likelihood"],
        "log_likelihood_stderr": fit["log_likelihood_stderr"],
        "steps": fit["steps"],
        "failed": fit["failed"],
        "threshold": config.threshold,
        "east_north": table["place"],
        "exceeds": np.where(table["below"], np.nan, table["value"]) > config.threshold,
        "map_places": places.reshape(*config.map_sides, 2),
        "probability": maps.mean(0).reshape(config.map_sides),
        "stderr": maps.std(0, ddof=1).reshape(config.map_sides),
        "below": table["below"],
    }
    if config.data is None:
        results["truth"] = np.array([getattr(config.truth, name) for name in NAMES])
    return results | {"summary": summary(results)}


def read(config):
    """Places, days, values, limits and whether they are below, of the table that is given."""
    table = config.read_data()
    below = np.isnan(table["value"])
    day = np.array([datetime.date.fromisoformat(str(x)).toordinal() for x in table["date"]], float)
    wrong = np.flatnonzero(~(np.where(below, table["limit"], table["value"]) > 0))
    if len(wrong):
        raise ValueError(
            f"{config.data}: row {wrong[0] + 1} of the table has neither a positive concentration "
            "nor a positive limit."
        )
    place = np.column_stack([table["east"], table["north"]])
    return {"place": place, "day": day, "below": below} | {
        name: table[name] for name in ("value", "limit")
    }


def simulated(config):
    """Wells in towns and between them, with the truth, and limits by chance."""
    rng, n = np.random.default_rng(config.seed), config.num_wells
    towns = rng.uniform(0.05, 0.95, (40, 2)) * [1.0, 0.75]
    near = towns[rng.integers(0, len(towns), n)] + rng.normal(scale=0.03, size=(n, 2))
    scattered = rng.uniform(0.0, 1.0, (n, 2)) * [1.0, 0.75]
    place = np.where(rng.uniform(size=(n, 1)) < 0.7, near, scattered).clip(0.0, [1.0, 0.75])
    day = np.floor(rng.uniform(0.0, EXTENT * 365.0, n))
    table = {"place": EXTENT * place, "day": day}
    points = scaled(table, table["place"], day)
    pairs = jax.vmap(jax.vmap(kernel(*at(config.truth)[:3]), (None, 0)), (0, None))
    covariance = np.asarray(pairs(points, points))
    noise = config.truth.sill * config.truth.nugget
    y = np.linalg.cholesky(covariance + noise * np.eye(n)) @ rng.normal(size=n)
    scaling = config.scaling
    value = np.exp(y) if scaling is None else np.exp(scaling.center + scaling.scale * y)
    limit = rng.choice(config.limits, n)
    return table | {"value": value, "limit": limit, "below": value < limit}


def scaled(table, place, day):
    """Points with coordinates from 0 to 1, (n, 3): one scale for the plane, one for time."""
    plane, days = table["place"], table["day"]
    low, high = plane.min(), plane.max()
    when = (day - days.min()) / (np.ptp(days) or 1.0)
    return np.column_stack([(place - low) / (high - low), when])


def at(process):
    """The parameters as a tuple."""
    return tuple(getattr(process, name) for name in NAMES)


def kernel(sill, space, time):
    """The covariance of the field at two points."""

    def of_two(x, y):
        apart = (x - y) / jnp.stack([space, space, time])
        square = jnp.sum(apart**2)
        r = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)
        return sill * (1.0 + r) * jnp.exp(-r)

    return of_two


def field_of(config, points, parameters, ranges):
    """The field; its neighbours are judged in units of the ranges, which are numbers."""
    sill, space, time, nugget = parameters
    units = np.array([ranges[0], ranges[0], ranges[1]])
    return tg.Directed.from_points(
        points, kernel(sill, space, time), config.neighbours, jnp.sqrt(sill * nugget),
        config.block, points / units, exact=False,
    )  # fmt: skip


def fitted(config, points, lower, upper, method):
    """The maximum of the log-likelihood, and the inverse of its curvature there.

    Newton steps by gradients go on until a gradient is no larger than its error; they are along
    the eigenvectors of differences of gradients by the sizes of their curvatures, which leads away
    from saddle points. A value is known far better than a gradient, which has the scatter of whole
    fields: the top is that of a quadratic through values. All are by the same random numbers.
    """
    ranges, key = (config.start.space, config.start.time), jax.random.key(config.seed)
    question = lambda x: (0.0, field_of(config, points, jnp.exp(x), ranges), lower, upper)
    slopes = jax.jit(lambda x: method.gradient(question, x, key))
    rows = tg.Observations(lower[None], upper[None])

    @jax.jit
    def value(x):
        loc, field, *_ = question(x)
        return tg.log_likelihood(rows, loc, field, method, key)

    x, rise, noise = np.log(at(config.start)), np.inf, 0.0
    for number in range(MOST_STEPS):
        gradient, error = map(np.asarray, slopes(x)[1:])
        if number % BETWEEN == 0:
            sides = WIDTH * np.eye(4)
            moved = np.array([np.asarray(slopes(x + side).gradient) for side in sides])
            sizes, frame = eigenvectors((gradient - moved) / WIDTH)
        along = frame.T @ gradient / sizes
        rise = 0.5 * float(along**2 @ sizes)
        noise = 0.5 * float((frame**2).T @ error**2 @ (1.0 / sizes))
        if rise < max(2.0 * noise, CLOSE):
            break
        step = frame @ along
        x = x + step * min(1.0, LARGEST_STEP / np.abs(step).max())
    frame = frame * np.minimum(sizes**-0.5, LARGEST_STEP)
    for _ in range(MOST_SURFACES):
        move, curvature = surface(lambda z: float(value(x + frame @ z).log_prob[0]))  # noqa: B023
        x = x + frame @ move
        if np.abs(move).max() < 1.0:
            break
    sound = np.linalg.eigvalsh(curvature).min() > 0 and np.abs(move).max() < 1.0
    covariance = frame @ np.linalg.pinv(curvature) @ frame.T
    top = value(x)
    return {
        "x": x,
        "covariance": covariance,
        "stderr": np.sqrt(np.abs(np.diagonal(covariance))),
        "log_likelihood": float(top.log_prob[0]),
        "log_likelihood_stderr": float(top.stderr[0]),
        "steps": number,
        "failed": "" if sound else "no maximum of the likelihood was reached",
    }


def eigenvectors(curvature):
    """The sizes of the eigenvalues of the symmetric part, not too small, and the eigenvectors."""
    sizes, frame = np.linalg.eigh(0.5 * (curvature + curvature.T))
    return np.maximum(np.abs(sizes), LEAST_SIZE * np.abs(sizes).max()), frame


def surface(value):
    """The top of the quadratic through values around 0, no further than 2, and its curvature."""
    sides = SPREAD * np.eye(4)
    pairs = [sides[i] + sign * sides[j] for i in range(4) for j in range(i) for sign in (-1.0, 1.0)]
    design = np.array([np.zeros(4), *sides, *-sides, *pairs])
    first, second = np.triu_indices(4)
    terms = np.column_stack([np.ones(len(design)), design, design[:, first] * design[:, second]])
    fit = np.linalg.lstsq(terms, np.array([value(z) for z in design]), rcond=None)[0]
    curvature = np.zeros((4, 4))
    curvature[first, second] = -fit[5:]
    curvature = curvature + curvature.T
    sizes, frame = eigenvectors(curvature)
    move = frame @ (frame.T @ fit[1:5] / sizes)
    return move * min(1.0, 2.0 / np.abs(move).max()), curvature


def on_map(config, place):
    """Places of the map, (east * north, 2), over the rectangle of the wells."""
    sides = [
        np.linspace(*ends, num) for *ends, num in zip(place.min(0), place.max(0), config.map_sides)
    ]
    return np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)


def exceedance(config, fit, points, lower, upper, rise):
    """P(a new sample > threshold) at the last points, by parameters drawn within their errors.

    Given the field the probability is that of the noise, which is averaged over weighted draws.
    """
    new = len(points) - len(lower)
    ends = [
        np.append(limits, np.full(new, end)) for limits, end in ((lower, -np.inf), (upper, np.inf))
    ]
    method = tg.FieldParticles(config.num_particles, 1)
    ranges = np.exp(fit["x"][1:3])

    @jax.jit
    def one(x, key):
        parameters = jnp.exp(x)
        field = field_of(config, points, parameters, ranges)
        draws, log_weights = method.weighted_draws(field, *ends, key=key)
        noise = jnp.sqrt(parameters[0] * parameters[3])
        above = jax.scipy.stats.norm.cdf((draws[0, :, -new:] - rise) / noise)
        return jax.nn.softmax(log_weights[0]) @ above

    rng = np.random.default_rng(config.seed + 1)
    drawn = rng.multivariate_normal(fit["x"], fit["covariance"], config.num_maps)
    keys = jax.random.split(jax.random.key(config.seed + 2), config.num_maps)
    return np.array([one(x, key) for x, key in zip(drawn, keys)])


def summary(results):
    """The table of estimates, the log-likelihood, and the map in one line."""
    low, high = results["interval"]
    known = results.get("truth", np.full(4, np.nan))
    ends = f"{results['level']:.0%} interval"
    lines = [f"{'':8}{'estimate':>10}{ends:>20}{'truth' if 'truth' in results else '':>9}"]
    for name, value, *ends, true in zip(NAMES, results["estimates"], low, high, known):
        told = "" if np.isnan(true) else f"{true:9.4g}"
        lines.append(f"{name:8}{value:10.4g}{'{:.4g} to {:.4g}'.format(*ends):>20}{told}")
    below, probability = results["below"], results["probability"]
    return [
        *lines,
        f"log-likelihood {results['log_likelihood']:.2f} ± {results['log_likelihood_stderr']:.2f}, "
        f"after {results['steps']} steps",
        f"{below.sum()} of {len(below)} concentrations are below their limit",
        f"a new sample exceeds {results['threshold']:g} in {probability.mean():.1%} of the region; "
        f"the median standard error of the probability is {np.median(results['stderr']):.3f}",
    ]
