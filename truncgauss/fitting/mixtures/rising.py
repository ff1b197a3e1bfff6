r"""Likelihoods of mixtures that rise for ever: a component widens as its mean moves away.

Inside a region the rows of a component may look as spread as an exponential or uniform
distribution. With the weighted density of component k about a centre c of its rows,

.. math:: w_k \, N(y; \mu_k, \Sigma_k) =
    \exp\{a_k + \eta_k^T (y - c) - (y - c)^T \Sigma_k^{-1} (y - c) / 2\},

that is an ordinary point in a, eta and the inverse covariance, where this is singular. Newton steps
in these reach it, or a maximum before it, where steps in means and logarithms of scales creep along
a curved ridge.

Reference:
    Barndorff-Nielsen, "Information and Exponential Families" (1978), section 9.3.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution.compiling import Compiled, closed_form
from truncgauss.execution.pytrees import frozen_pytree
from truncgauss.fitting.mixtures.curvature import point, terms_at
from truncgauss.fitting.mixtures.em import components_at
from truncgauss.fitting.mixtures.likelihood import row_weights
from truncgauss.fitting.mixtures.loss import MixtureLoss
from truncgauss.fitting.mixtures.parameters import MixtureCoordinates
from truncgauss.fitting.optimization.newton import Point, newton_steps
from truncgauss.fitting.optimization.widening import Precision, direction_in_words

WIDEST = 20.0  # of the spread of a component's rows: beyond, it is a straight slope across them
ENDLESS = (
    "There is no maximum: the likelihood grows as component {} widens, already to "
    f"{WIDEST:.0f} times the spread of the rows that it stands for, and its mean moves away from "
    "these, already to ({}). Inside their region they look as spread as an exponential or uniform "
    "distribution: use fewer components, wider regions, more rows, or prior_rows."
)


class Ascending(NamedTuple):
    """The end of steps that a widening component leads beyond all bounds.

    Attributes:
        component: its number.
        direction: of the columns, in units of their spread, along which it widens, (d,).
    """

    component: int
    direction: np.ndarray


@frozen_pytree
class ComponentCoordinates:
    """Coordinates z in which the densities of all components are log-linear.

    z holds log heights a_k at the centres of the components' rows over the last one's, then eta_k,
    then the free entries of the inverse covariances, component after component; in units of the
    spread of the component's rows.

    Attributes:
        free_coordinates: the free coordinates x of the mixture.
        centres, units: of the rows of each component, in units of all rows, (K, d).
    """

    free_coordinates: MixtureCoordinates
    centres: jax.Array
    units: jax.Array

    def free(self, z: jax.Array) -> jax.Array:
        """The coordinates x; NaN where an inverse covariance is not positive definite."""
        coordinates = self.free_coordinates
        k, d = coordinates.num_components, coordinates.dimension
        heights, slopes, entries = jnp.split(z, [k - 1, k - 1 + k * d])
        i, j = np.array(coordinates.entries).T
        precision = jnp.zeros((coordinates.num_factors, d, d), z.dtype)
        entries = entries.reshape(coordinates.num_factors, -1)
        precision = precision.at[:, i, j].set(entries).at[:, j, i].set(entries)
        root = jnp.linalg.cholesky(precision)
        matrix = jnp.linalg.inv(precision)
        spread = jnp.linalg.cholesky(matrix) * self.units[: coordinates.num_factors, :, None]
        roots = spread[:, i, j]
        factors = jnp.where(i == j, jnp.log(jnp.where(i == j, roots, 1.0)), roots)
        slopes = slopes.reshape(k, d)
        means = (jnp.broadcast_to(matrix, (k, d, d)) @ slopes[..., None])[..., 0]
        logs = jnp.sum(jnp.log(jnp.diagonal(root, axis1=1, axis2=2)), axis=1)
        # The log density of each component at its centre, but for the same constant.
        logs = logs - 0.5 * jnp.sum(slopes * means, axis=1) - jnp.sum(jnp.log(self.units), axis=1)
        ratios = jnp.append(heights, 0.0) - logs
        locs = self.centres + self.units * means
        return jnp.concatenate([ratios[:-1] - ratios[-1], locs.ravel(), factors.ravel()])

    def natural(self, x: np.ndarray) -> np.ndarray:
        """The coordinates z of x."""
        coordinates, at = self.free_coordinates, components_at(self.free_coordinates, x)
        scale, units, centres = map(np.asarray, (coordinates.scale, self.units, self.centres))
        locs = ((at.locs - np.asarray(coordinates.centre)) / scale - centres) / units
        sizes = scale * units
        matrices = at.covariances / (sizes[:, :, None] * sizes[:, None, :])
        precision = np.linalg.inv(matrices)
        slopes = np.einsum("kij,kj->ki", precision, locs)
        logs = np.linalg.slogdet(precision)[1] / 2 - np.sum(slopes * locs, axis=1) / 2
        k = coordinates.num_components
        ratios = np.append(x[: k - 1], 0.0) + logs - np.sum(np.log(units), axis=1)
        i, j = np.array(coordinates.entries).T
        entries = precision[: coordinates.num_factors, i, j]
        return np.concatenate([ratios[:-1] - ratios[-1], slopes.ravel(), entries.ravel()])

    def mixture_coordinates(self, z: np.ndarray) -> np.ndarray:
        """The coordinates x, by one program."""
        return np.asarray(_free(self, jnp.asarray(z))[0])

    def estimates(self, z: jax.Array) -> jax.Array:
        """The estimates of the mixture at z, as those of its free coordinates."""
        return self.free_coordinates.estimates(self.free(z))

    def point(self, loss: MixtureLoss, z: np.ndarray) -> Point:
        """The loss of a mixture at z with its derivatives there; NaN where there is no mixture."""
        free, jacobian = map(np.asarray, _free(self, jnp.asarray(z)))
        if not np.all(np.isfinite(free)):
            nothing = np.full(len(z), np.nan)
            return Point(z, np.nan, nothing, np.outer(nothing, nothing))
        end = point(loss, free)
        bends = _bends(self, jnp.asarray(z), jnp.asarray(end.gradient))
        hessian = jacobian.T @ end.hessian @ jacobian + np.asarray(bends)
        return Point(z, end.loss, end.gradient @ jacobian, (hessian + hessian.T) / 2)

    @property
    def precisions(self) -> list[Precision]:
        """Positions of the inverse covariances in z."""
        coordinates = self.free_coordinates
        k, (i, j) = coordinates.num_components, np.array(coordinates.entries).T
        first = k - 1 + k * coordinates.dimension
        starts = [first + number * len(i) for number in range(coordinates.num_factors)]
        return [Precision(start, i, j, widest=WIDEST) for start in starts]


def natural_coordinates(
    loss: MixtureLoss, table: np.ndarray, x: np.ndarray
) -> ComponentCoordinates:
    """Natural coordinates about the rows of the components of a mixture at x.

    Args:
        loss: minus the mean log-likelihood.
        table: the rows in units of their own, (n, d), NaN where missing.
        x: free coordinates.
    """
    coordinates, known = loss.coordinates, ~np.isnan(table)
    weights = np.asarray(row_weights(loss.observations, np.float64))[:, None]
    shares = (weights * np.asarray(terms_at(loss, x).responsibilities)).T
    filled = np.where(known, table, 0.0)
    moments = shares @ known, shares @ filled, shares @ filled**2
    counts, totals, squares = loss.sums.sum(moments)
    counts = np.maximum(counts, 1.0)
    centres = totals / counts
    units = np.sqrt(np.maximum(squares / counts - centres**2, 1e-6))
    if coordinates.structure == "tied":
        units = np.broadcast_to(units.max(axis=0), units.shape)
    return ComponentCoordinates(coordinates, jnp.asarray(centres), jnp.asarray(units))


def natural_end(
    loss: MixtureLoss, table: np.ndarray, x: np.ndarray, num_steps: int
) -> tuple[np.ndarray, list[Point], Ascending | None]:
    """The end of steps in natural coordinates from x, in free ones, the points of the steps, and
    which component widens beyond all bounds, if one does.

    The width is the end of such a way where the likelihood tends to rise beyond it when all else is
    settled, and where the next step, which would be short, leaves the Gaussians.
    """
    coordinates = natural_coordinates(loss, table, x)
    precisions = coordinates.precisions

    evaluate = functools.partial(coordinates.point, loss)

    def admits(current: Point, z: np.ndarray) -> bool:
        return all(precision.admits(current, z) for precision in precisions)

    def stop(current: Point) -> bool:
        return any(precision.too_wide(current) for precision in precisions)

    with jax.debug_nans(False):  # by which a step out of the domain is known
        current = evaluate(coordinates.natural(x))
        path = [current, *newton_steps(evaluate, current, num_steps, stop=stop, admits=admits)]
        wide = [precision for precision in precisions if precision.too_wide(path[-1])]
        for precision in wide[:1]:
            path.append(precision.settled_but_for_width(evaluate, path[-1], num_steps))
    end = path[-1]
    free = np.asarray(_free(coordinates, jnp.asarray(end.x))[0])
    for number, precision in enumerate(precisions):
        if precision.too_wide(end):
            direction = np.asarray(coordinates.units)[number] * precision.wide(end.x)[:, 0]
            return free, path, Ascending(number, direction)
    return free, path, None


def ascending_sentence(loss: MixtureLoss, x: np.ndarray, ascending: Ascending) -> str:
    """The statement that there is no maximum, by free coordinates x of the end and which component
    widens there."""
    k = ascending.component
    loc = ", ".join(f"{entry:.3g}" for entry in components_at(loss.coordinates, x).locs[k])
    return ENDLESS.format(k, loc) + direction_in_words(ascending.direction)


@functools.partial(Compiled, cost=closed_form)
def _free(coordinates: ComponentCoordinates, z: jax.Array) -> tuple[jax.Array, jax.Array]:
    return coordinates.free(z), jax.jacfwd(coordinates.free)(z)


@functools.partial(Compiled, cost=closed_form)
def _bends(coordinates: ComponentCoordinates, z: jax.Array, slopes: jax.Array) -> jax.Array:
    return jax.hessian(lambda z: slopes @ coordinates.free(z))(z)
