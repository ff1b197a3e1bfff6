"""Three hundred random selections, and the log probability of each by quadrature.

A `Family` is a kind of curve in one dimension, with Gaussians and numbers of the curve from a seed.
The truth of scores is the trapezoidal rule along the standard normal variables behind them; that of
rings and discs, functions of the distance from a center, is an integral of the density of that
distance, whose Laplace transform is known and inverted along a contour through its saddle point.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import truncgauss as tg

CURVES = {"probit": tg.special.log_ndtr, "logistic": tg.special.log_sigmoid}
NODE = 0.02  # of the contour of an inversion
STEEP = 30.0  # of the edge of a soft disc over its radius, and of a ring


class Family(NamedTuple):
    """Selections of one kind and dimension, one in each leading row of the numbers.

    Attributes:
        kind: such as "probit" or "soft ring".
        region: the selection of the numbers of its curve.
        truth: log P by mean, covariance and these numbers.
        numbers: mean, covariance and a dictionary of the curve's numbers.
        sampled: whether log P has a standard error.
        moves: whether it is differentiated in the curve's numbers.
    """

    kind: str
    region: Callable[[Any], Any]
    truth: Callable[..., Any]
    numbers: tuple[Any, Any, dict[str, Any]]
    sampled: bool
    moves: bool = True

    @property
    def count(self) -> int:
        return len(self.numbers[0])

    def estimate(self, loc: Any, covariance: Any, curve: Any, key: Any = None) -> tuple[Any, Any]:
        """Log P and its standard error, for one row."""
        return tuple(tg.log_probability(loc, covariance, self.region(curve), key=key))


def gaussians(random, count, d):
    """Means and covariances."""
    factor = random.normal(size=(count, d, d)) / d**0.5
    matrix = factor @ np.swapaxes(factor, 1, 2) + 0.3 * np.eye(d)
    return jnp.asarray(random.normal(size=(count, d))), jnp.asarray(matrix)


# ---------------------------------------------------------------- scores


def of_scores(kind, loc, covariance, curve, limit=9.0, step=0.2):
    """About the mode of the standard normal variables, as many as there are scores or entries."""
    log_curve, weights = CURVES[kind], curve["weights"]
    mean = (weights @ loc - curve["midpoint"]) / curve["width"]
    if weights.shape[0] <= len(loc):
        matrix = weights @ covariance @ weights.T
        root = jnp.linalg.cholesky(matrix) / curve["width"][:, None]
    else:
        root = weights @ jnp.linalg.cholesky(covariance) / curve["width"][:, None]
    r = root.shape[1]
    loss = lambda u: 0.5 * u @ u - jnp.sum(log_curve(mean + root @ u))

    def newton(_, u):
        move = jnp.linalg.solve(jax.hessian(loss)(u), jax.grad(loss)(u))
        return u - move * jnp.minimum(1.0, 2.0 / jnp.linalg.norm(move + 1e-300))

    start = jax.lax.stop_gradient(jax.lax.fori_loop(0, 200, newton, jnp.zeros(r)))
    axes = np.arange(-limit, limit + step / 2, step)
    shifts = np.stack(np.meshgrid(*[axes] * r, indexing="ij"), -1).reshape(-1, r)
    u = start + shifts
    logs = -0.5 * jnp.sum(u**2, axis=1) + jnp.sum(log_curve(mean + u @ root.T), axis=1)
    return jax.nn.logsumexp(logs) + r * (np.log(step) - 0.5 * np.log(2 * np.pi))


def scores(kind, d, r, count, seed):
    """From wide curves to narrow ones, and tails down to e^-100 and lower."""
    random = np.random.default_rng([seed, d, r])
    loc, covariance = gaussians(random, count, d)
    weights = random.normal(size=(count, r, d))
    scale = np.sqrt(np.einsum("krd,kde,kre->kr", weights, covariance, weights))
    far = [-1.0, 1.0, 5.0, 12.0] if r <= (3 if kind == "probit" else 2) else [-1.0, 1.0, 3.0]
    distance = random.choice(far, (count, 1)) * random.uniform(size=(count, r))
    curve = {
        "weights": weights,
        "midpoint": np.einsum("krd,kd->kr", weights, loc) + scale * distance,
        "width": scale * np.exp(random.uniform(-1.0, 1.0, (count, r))),
    }
    numbers = loc, covariance, jax.tree.map(jnp.asarray, curve)
    coarse = {"limit": 7.5, "step": 0.3} if min(r, d) == 4 else {}
    region = lambda curve: getattr(tg.Selection, kind)(**curve)
    sampled = r > (3 if kind == "probit" else 2)
    name = f"{kind} {r}"
    return Family(name, region, partial(of_scores, kind, **coarse), numbers, sampled)


# ---------------------------------------------------------------- distances


def log_transform(z, loc, covariance, center):
    """The log of E exp(-z q) of q = |X - center|^2."""
    variances, axes = jnp.linalg.eigh(covariance)
    squares = (axes.T @ (loc - center)) ** 2
    scaled = 1.0 + 2.0 * jnp.multiply.outer(z, variances)
    return -jnp.sum(0.5 * jnp.log(scaled) + z[..., None] * squares / scaled, axis=-1)


def log_of_inversion(q, power, loc, covariance, center):
    """The log of the density of q for power 0, and of P(|X - center|^2 < q) for power 1: the
    integral of exp(z q) E exp(-z q) z^-power over a parabola around the negative numbers, through
    the point of the positive ones where it is least."""
    grid = jnp.exp(jnp.linspace(-12.0, 14.0, 2001)) / q
    exponent = lambda z: z * q + log_transform(z, loc, covariance, center) - power * jnp.log(z)
    saddle = jax.lax.stop_gradient(grid[jnp.argmin(exponent(grid))])
    saddle = jnp.maximum(saddle, 1.0 / q)
    u = jnp.arange(0.0, 7.0, NODE)
    z = saddle * (1.0 + 1j * u) ** 2
    level = exponent(saddle)
    terms = jnp.real(jnp.exp(exponent(z) - level) * (1.0 + 1j * u))
    total = 2.0 * jnp.sum(terms) - terms[0]
    total = jnp.where(total > 1e-11, total, 1e-300)  # of a density that is lost in rounding
    return level + jnp.log(total * NODE * saddle / np.pi)


def of_distance(log_kept, ends, loc, covariance, curve):
    """By Gauss and Legendre's rule between these ends, where the density matters."""
    nodes, weights = np.polynomial.legendre.leggauss(300)
    low, high = ends(curve)
    low, high = jax.lax.stop_gradient((low, high))
    r = 0.5 * (low + high) + 0.5 * (high - low) * nodes
    at = lambda r: log_of_inversion(r**2, 0, loc, covariance, curve["center"]) + jnp.log(2 * r)
    logs = jax.vmap(at)(r) + log_kept(r**2, curve) + jnp.log(weights * 0.5 * (high - low))
    return jax.nn.logsumexp(logs)


def of_disc(inside, loc, covariance, curve):
    log_prob = log_of_inversion(curve["radius"] ** 2, 1, loc, covariance, curve["center"])
    return log_prob if inside else jnp.log1p(-jnp.exp(log_prob))


def edge(q, radius, curve):
    """Of the squared distance, which has no kink at the center; the width is one of distances."""
    return (radius**2 - q) / (2.0 * radius * curve["width"])


def log_soft_disc(q, curve):
    return jax.nn.log_sigmoid(edge(q, curve["radius"], curve))


def log_soft_ring(q, curve):
    outer, inner = edge(q, curve["outer"], curve), edge(q, curve["inner"], curve)
    return jax.nn.log_sigmoid(outer) + jax.nn.log_sigmoid(-inner)


def square(x, curve):
    return jnp.sum((x - curve["center"]) ** 2)


def soft_disc(x, curve):
    return jnp.exp(log_soft_disc(square(x, curve), curve))


def soft_ring(x, curve):
    return jnp.exp(log_soft_ring(square(x, curve), curve))


def within(x, curve):
    return square(x, curve) < curve["radius"] ** 2


def beyond(x, curve):
    return square(x, curve) >= curve["radius"] ** 2


def step(x, curve):
    return x @ curve["weights"] > curve["midpoint"]


def of_step(loc, covariance, curve):
    w = curve["weights"]
    return tg.special.log_ndtr((w @ loc - curve["midpoint"]) / jnp.sqrt(w @ covariance @ w))


SETS = {  # kind: the function, log concave or not, and what follows
    "soft disc": (soft_disc, True),
    "soft ring": (soft_ring, False),
    "disc": (within, True),
    "outside": (beyond, False),
    "step": (step, True),
}


def ends_of(curve):
    """Distances outside of which a soft disc or ring is less than e^-45."""
    edges = curve.get("inner", 0.0), curve.get("outer", curve.get("radius"))
    moves = -90.0 * edges[0] * curve["width"], 90.0 * edges[1] * curve["width"]
    return [jnp.sqrt(jnp.maximum(r**2 + move, 0.0)) for r, move in zip(edges, moves)]


def points(kind, d, count, seed):
    """Functions of a point; discs, soft or not, and steps also in tails."""
    random = np.random.default_rng([seed, d, sorted(SETS).index(kind)])
    loc, covariance = gaussians(random, count, d)
    spread = np.sqrt(np.einsum("kdd->k", covariance))
    way = random.normal(size=(count, d))
    way /= np.linalg.norm(way, axis=1, keepdims=True)
    far = random.uniform(size=count) * random.choice([0.5, 2.0, 8.0], count)
    radius = spread * np.exp(random.uniform(-1.0, 0.5, count))
    if kind == "outside":  # of what is left at least a percent or so
        far, radius = np.minimum(far, 1.0), np.minimum(radius, spread)
    if kind == "soft ring":
        far = np.minimum(far, 2.0)
    along = np.sqrt(np.einsum("kd,kde,ke->k", way, covariance, way))
    center = loc + way * (far * along)[:, None]
    if kind in ("disc", "soft disc"):
        center += way * np.where(far > 2.0, radius, 0.0)[:, None]
    curve = {"center": center, "radius": radius}
    if kind == "step":
        deep = random.uniform(-1.0, 1.0, count) * random.choice([1.0, 4.0, 11.5], count)
        curve = {"weights": way, "midpoint": np.einsum("kd,kd->k", way, loc) + deep * along}
    elif kind == "soft disc":
        curve["width"] = radius / STEEP * np.exp(random.uniform(0.0, 1.5, count))
    elif kind == "soft ring":
        inner, outer = 0.6 * radius, 0.6 * radius + spread * random.uniform(0.2, 1.0, count)
        width = spread / STEEP * np.exp(random.uniform(0.0, 1.0, count))
        curve = {"center": center, "inner": inner, "outer": outer, "width": width}
    function, concave = SETS[kind]
    region = lambda curve: tg.Selection(function, d, concave, parameters=curve)
    truth = {
        "soft disc": partial(of_distance, log_soft_disc, ends_of),
        "soft ring": partial(of_distance, log_soft_ring, ends_of),
        "disc": partial(of_disc, True),
        "outside": partial(of_disc, False),
        "step": of_step,
    }[kind]
    numbers = loc, covariance, jax.tree.map(jnp.asarray, curve)
    return Family(kind, region, truth, numbers, True, moves=kind.startswith("soft"))


# ---------------------------------------------------------------- all of them

DIMENSIONS = range(1, 7)
# How many of each kind there are in each dimension: 50, and 300 together.
EXACT = {"probit 1": 8, "logistic 1": 8, "probit 2": 4, "logistic 2": 4, "probit 3": 3}
PRODUCTS = {"probit 4": 2, "logistic 3": 2}
SHAPED = {"soft disc": 4, "soft ring": 4, "disc": 3, "outside": 3, "step": 5}
SAMPLED = PRODUCTS | SHAPED


def family(kind, d, seed=0):
    """The selections of a kind, such as "probit 2" for products of two curves, or "disc"."""
    if kind in SHAPED:
        return points(kind, d, SHAPED[kind], seed)
    curve, number = kind.split()
    return scores(curve, d, int(number), (EXACT | PRODUCTS)[kind], seed)


# ---------------------------------------------------------------- along directions


def directions(family, seed):
    """A random direction in each argument, of about its size, as numbers are in `family`."""
    random = np.random.default_rng(seed)
    loc, covariance, curve = family.numbers
    spread = np.sqrt(np.einsum("kdd->k", covariance) / covariance.shape[-1])
    by_loc = random.normal(size=loc.shape) * spread[:, None]
    half = random.normal(size=covariance.shape) * 0.2 * spread[:, None, None] ** 2
    by_curve = {}
    for name, x in curve.items():
        size = spread.reshape(-1, *[1] * (x.ndim - 1)) if name in ("midpoint", "center") else x
        size = 1.0 if name == "weights" else size
        by_curve[name] = jnp.asarray(0.3 * size * random.normal(size=x.shape))
    return jnp.asarray(by_loc), jnp.asarray(half + np.swapaxes(half, 1, 2)), by_curve


def along(function, row, ways, moves):
    """A function of a row's numbers as one of the steps along the directions, and their number."""
    leaves, structure = jax.tree.flatten(row)
    units = jax.tree.leaves(ways)
    number = len(leaves) if moves else 2

    def moved(steps):
        pairs = [x + steps[i] * units[i] if i < number else x for i, x in enumerate(leaves)]
        return function(*jax.tree.unflatten(structure, pairs))

    return moved, number


def with_hessian(function, number):
    """Value, error, gradient and Hessian at 0 of a value with its error."""

    def slope(steps):
        (value, error), gradient = jax.value_and_grad(function, has_aux=True)(steps)
        return gradient, (value, error, gradient)

    hessian, (value, error, gradient) = jax.jacfwd(slope, has_aux=True)(jnp.zeros(number))
    return value, error, gradient, hessian
