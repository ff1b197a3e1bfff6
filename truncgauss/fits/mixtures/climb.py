r"""Ways up the likelihood of a mixture: EM steps near a maximum, then Newton steps to it; and ends
where there is none, as a component widens for ever, or where some variance falls to 0.

Inside a region the rows of a component may look as spread as an exponential or uniform
distribution. With the weighted density of component k about a centre c of its rows,

.. math:: w_k \, N(y; \mu_k, \Sigma_k) =
    \exp\{a_k + \eta_k^T (y - c) - (y - c)^T \Sigma_k^{-1} (y - c) / 2\},

that is an ordinary point in a, eta and the inverse covariance, where this is singular. Newton steps
in these reach it, or a maximum before it, where steps in means and logarithms of scales creep along
a curved ridge.

With noise a component may be without a spread of its own; the likelihood then rises as its variance
falls, and has a finite limit. The logarithm of such a variance has no maximum, and no standard
error.

Reference:
    Barndorff-Nielsen, "Information and Exponential Families" (1978), section 9.3.
"""

import dataclasses
import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.compiling import Compiled, closed_form
from truncgauss.arrays.progress import bar
from truncgauss.arrays.pytrees import frozen_pytree
from truncgauss.fits.mixtures.curvature import (
    MANY,
    MixtureSummary,
    point,
    rough_point,
    shares,
    summary_at,
    terms_at,
)
from truncgauss.fits.mixtures.em import ascended, expectation, has_collapsed, log_prior_of
from truncgauss.fits.mixtures.likelihood import MixtureLoss, parts_of, planned, row_weights
from truncgauss.fits.mixtures.parameters import Components, MixtureCoordinates, components_at
from truncgauss.fits.mixtures.search import GAIN, in_units, is_wide, least_variance, proposed
from truncgauss.fitting.descent import PLANNED, Descent, Path, watched
from truncgauss.fitting.existence import explained
from truncgauss.fitting.newton import Point, newton_steps
from truncgauss.fitting.widening import Precision

ENOUGH = 1e-2  # nats a step, below which EM has come near
ENOUGH_OF_MANY = 5e-3  # likewise for each parameter, if these are many
ENOUGH_BY_POINTS = 0.1  # likewise where integrals are means over many points
LOST = 1.0  # nats that the log-likelihood of an end may change with plans made there
# Steps by products of scores end so many standard errors from the maximum, after so many, or where
# one brings less than this part of what it promised.
ARRIVED, ROUGH_STEPS, KEPT_PROMISE = 0.1, 20, 0.25
SEARCHES = 8  # the most times that a mixture above the best one is looked for
POLISHING = 20  # the most steps after components are sorted and plans made anew
COLLAPSED = (
    "In every start a component shrank onto a few observations, where the likelihood has no "
    "maximum, or its derivatives were not finite. Use fewer components, more observations, "
    'covariance="tied" or "diagonal", or state the noise of the observations.'
)
NEAR = 0.02  # decrement below which the curvature is kept: it changes little from there on
WIDEST = 20.0  # of the spread of a component's rows: beyond, it is a straight slope across them
ENDLESS = (
    "There is no maximum: the likelihood grows as component {} widens, already to "
    f"{WIDEST:.0f} times the spread of the observations that it stands for, and its mean moves "
    "away from these, already to ({}). Inside their region they look as spread as an exponential "
    "or uniform distribution: use fewer components, wider regions, more observations, or "
    "prior_rows."
)
# In units of the variance of all rows: smaller ones are taken away, to see what that costs.
SMALL = 1e-4
NO_ERRORS = "Standard errors and intervals do not hold there"
BY_NOISE = (
    "The likelihood is highest at the edge of what can be, where {} has variance 0{}: the noise "
    f"alone explains how far its observations spread. {NO_ERRORS}; the noise may be overstated{{}}."
)
TOO_MANY = ", or there may be a component too many"


class NoMaximum(ValueError):
    """The likelihood has no maximum that any start leads to."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Climb(Path):
    """The way from one start of a mixture.

    Attributes, besides those of `Path`:
        em_log_likelihoods: at the start and after each EM step, before the points visited.
        fell: by how much one more EM step would have lowered the last of these.
        hessian: of the loss at the end, (q, q); None where none was computed.
        ascending: the number of a component that widens beyond all bounds, and the direction of the
            columns, in units of their spread, along which it does, (d,); None if none does.
        reached: the log-likelihood at the end of each start that was followed.
        shared: how many starts were not, as each is the same mixture as one that was.
        summary: the sums over all rows at the end of the best way; None of others.
    """

    em_log_likelihoods: np.ndarray
    fell: float = 0.0
    hessian: np.ndarray | None = None
    ascending: tuple[int, np.ndarray] | None = None
    reached: Any = ()
    shared: int = 0
    summary: MixtureSummary | None = None

    @property
    def log_likelihood(self) -> float:
        """With the log prior, if there is one; -inf where a component shrank onto a few rows."""
        value = -self.end.loss * float(self.loss.size)
        return value if np.isfinite(value) else -np.inf


class MixtureDescent(Descent):
    """The ways from mixtures up the likelihood of a `MixtureRows`, see `Descent`."""

    def path(self, x: Any, known: tuple[Path, ...] = ()) -> Climb:
        """The way from a mixture: EM steps near a maximum, then steps to it; from an end that is
        none as many again in coordinates that end where a component has widened."""
        loss: MixtureLoss = self.model.loss
        coordinates, planned_loss = loss.coordinates, planned(loss, loss.method, x)
        gain = max(ENOUGH, ENOUGH_OF_MANY * coordinates.size * (coordinates.size > MANY))
        gain = max(gain, ENOUGH_BY_POINTS * loss.is_sampled)
        most, shown = self.model.num_em_steps, self.progress
        at, values, fell = ascended(planned_loss, x, most, gain, shown)
        climb = functools.partial(Climb, em_log_likelihoods=values, fell=fell)
        if has_collapsed(loss, at):
            zeros = np.zeros(coordinates.size)
            nowhere = Point(zeros, np.inf, zeros, np.zeros((0, 0)))
            return climb(planned_loss, [nowhere], False)
        if jax.tree.leaves(parts_of(planned_loss)[0].method):
            planned_loss = planned(loss, loss.method, at)
        visited, hessian = self.finish(planned_loss, coordinates.free(*at))
        end, ascending = visited[-1], None
        # Behind a region steps may end on the way to a component that widens beyond all bounds.
        few = coordinates.size <= MANY
        ended = Path(planned_loss, [end], False)
        open_end = few and loss.observations.region is not None and end.finite
        if loss.is_sampled and end.finite:
            # Far from where a method was held its points say little of an integral.
            there = planned(loss, loss.method, components_at(coordinates, end.x))
            value, size = rough_point(there, end.x).loss, float(loss.size)
            if not size * abs(value - end.loss) < LOST:
                lost = dataclasses.replace(end, loss=value)
                return climb(there, [*traced(visited[:-1]), lost], False)
        if open_end and not flattened(planned_loss, end) and not ended.arrived:
            x, steps, ascending = natural_end(planned_loss, self.model.table, end.x, self.num_steps)
            visited += steps[1:]
            end, hessian = point(planned_loss, x), None
        if flattened(planned_loss, end):
            end = dataclasses.replace(end, loss=np.inf)
        way, endless = [*traced(visited[:-1]), end], ascending is not None
        return climb(planned_loss, way, endless, hessian=hessian, ascending=ascending)

    def finish(self, loss: MixtureLoss, x: np.ndarray) -> tuple[list[Point], np.ndarray | None]:
        """The points of the steps to the maximum near x, and the last Hessian."""
        # Behind a selection plans are made anew at the best end, from which steps go on.
        near = PLANNED / float(loss.size) ** 0.5 if loss.is_sampled else 0.0
        stop = lambda current: current.decrement < near or flattened(loss, current)
        rough = functools.partial(rough_point, loss)
        visited: list[Point] = []
        costly = len(x) > MANY or loss.is_sampled
        if costly:
            # A step by the products of scores costs about as much as one of EM, however many
            # parameters or points there are. They go on as long as they keep what they promise.
            visited, root = [rough(x)], float(loss.size) ** 0.5
            count = ROUGH_STEPS if visited[0].finite else 0
            for reached in newton_steps(rough, visited[0], count, stop=stop):
                promised, gain = visited[-1].decrement ** 2 / 2, visited[-1].loss - reached.loss
                visited.append(reached)
                if gain < KEPT_PROMISE * promised or reached.decrement * root < ARRIVED:
                    break
        evaluate = NearMinimum(loss, costly)
        first = evaluate(visited[-1].x if visited else x)
        if not first.finite:
            return [dataclasses.replace(first, loss=np.nan)], None
        steps = newton_steps(evaluate, first, self.num_steps, stop=stop)
        way = [*visited[:-1], first, *watched(steps, float(loss.size), self.progress)]
        return way, evaluate.hessian_for(way[-1].x)

    def searched(self, best: Climb, key: jax.Array) -> Climb:
        """The way to a maximum above the best one from mixtures that are `proposed`, over and over
        again as long as there is one."""
        coordinates, size = best.loss.coordinates, float(best.loss.size)
        least: float | None = None
        for number in range(SEARCHES):
            at = components_at(coordinates, best.end.x)
            least = least_variance(coordinates, at) if least is None else least
            key_of = jax.random.fold_in(key, number)
            for start in proposed(best.loss, self.model.table, at, least, key_of, number == 0):
                climb = self.path(start)
                end = in_units(coordinates, components_at(coordinates, climb.end.x))
                wide = is_wide(end.weights[None] * size, end.covariances[None], np.array([least]))
                higher = climb.log_likelihood > best.log_likelihood + GAIN
                if climb.arrived and higher and wide.all():
                    best = climb
                    break
            else:
                break
        return best

    def best(self, starts: list[Any]) -> Climb:
        """The best of the ways from several starts, its components sorted by their observed
        weights, its plans made there, and the last steps.

        Raises:
            NoMaximum: if a component shrinks onto a few rows in each.
        """
        best: Climb | None = None
        reached: list[float] = []
        climbs: set[int] = set()  # by the start, of which several may be one

        def every() -> Iterator[Any]:
            yield from starts
            if len(starts) > 1 and 2 * np.sum(np.isfinite(reached)) < len(starts):
                yield from self.model.elsewhere(len(starts))

        shown = bar(every(), "starts", self.progress, len(starts))
        for start in shown:
            if id(start) in climbs:
                continue
            climbs.add(id(start))
            climb = self.path(start)
            reached.append(climb.log_likelihood)
            shown.note = f"log-likelihood {reached[-1]:.8g}"
            if reached[-1] > max(reached[:-1], default=-np.inf):
                best = climb
        if best is None:
            raise NoMaximum(f"fit_mixture: {COLLAPSED}")
        loss: MixtureLoss = self.model.loss
        if len(starts) > 1 and best.arrived:
            best = self.searched(best, jax.random.fold_in(loss.key, len(starts)))
        coordinates, x = loss.coordinates, best.end.x
        at = components_at(coordinates, x)
        observed = shares(planned(loss, loss.method, at), x)[0]
        order = np.argsort(-observed, kind="stable")
        planned_loss = planned(loss, loss.method, Components(*(part[order] for part in at)))
        evaluate = NearMinimum(planned_loss, len(x) > MANY)
        change = coordinates.reordered(order)
        if len(x) > MANY and best.hessian is not None:
            back = np.linalg.inv(change)
            evaluate.kept = back.T @ best.hessian @ back
        first, ascending = evaluate(change @ x), best.ascending
        if ascending is not None:
            ascending = int(np.flatnonzero(order == ascending[0])[0]), ascending[1]
        more = 0 if best.endless else min(self.num_steps, POLISHING)
        path = [first, *newton_steps(evaluate, first, more)]
        return dataclasses.replace(
            best,
            loss=planned_loss,
            visited=[*best.visited[:-1], *traced(path[:-1]), path[-1]],
            ascending=ascending,
            reached=np.array(reached),
            shared=len(starts) - len(set(map(id, starts))),
            summary=summary_at(planned_loss, path[-1].x),
        )


def flattened(loss: MixtureLoss, end: Point) -> bool:
    """Whether a component has no spread in some direction at a point; see `has_collapsed`."""
    return has_collapsed(loss, components_at(loss.coordinates, end.x))


def traced(points: list[Point]) -> list[Any]:
    """Points without their Hessians, which of many parameters need not be kept."""
    return [SimpleNamespace(loss=each.loss, decrement=each.decrement) for each in points]


@dataclasses.dataclass
class NearMinimum:
    """Points of a loss with their Hessians. One that is costly is computed again only at lower
    points from which a step would still be long: elsewhere the last one does."""

    loss: MixtureLoss
    costly: bool
    kept: np.ndarray | None = None
    at: np.ndarray | None = None
    lowest: float = np.inf

    def __call__(self, x: np.ndarray) -> Point:
        if self.kept is not None and self.costly:
            near = dataclasses.replace(rough_point(self.loss, x), hessian=self.kept)
            lower, self.lowest = near.loss < self.lowest, min(near.loss, self.lowest)
            if not near.finite or not lower or near.decrement < NEAR:
                return near
        end = point(self.loss, x)
        self.kept, self.at, self.lowest = end.hessian, end.x, min(end.loss, self.lowest)
        return end

    def hessian_for(self, x: np.ndarray) -> np.ndarray | None:
        """The last Hessian if it was computed a part of a standard error from x, where it is that
        of x for all that errors show; else none."""
        if self.kept is None or self.at is None:
            return None
        gap = x - self.at
        near = float(self.loss.size) * gap @ self.kept @ gap <= ARRIVED**2
        return self.kept if near else None


# ---------------------------------------------------------------- a component that widens


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
        return np.asarray(_free(self, z)[0])

    def estimates(self, z: jax.Array) -> jax.Array:
        """The estimates of the mixture at z, as those of its free coordinates."""
        return self.free_coordinates.estimates(self.free(z))

    def point(self, loss: MixtureLoss, z: np.ndarray) -> Point:
        """The loss of a mixture at z with its derivatives there; NaN where there is no mixture."""
        free, jacobian = map(np.asarray, _free(self, z))
        if not np.all(np.isfinite(free)):
            nothing = np.full(len(z), np.nan)
            return Point(z, np.nan, nothing, np.outer(nothing, nothing))
        end = point(loss, free)
        bends = _bends(self, z, end.gradient)
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
    counts, totals, squares = moments
    counts = np.maximum(counts, 1.0)
    centres = totals / counts
    units = np.sqrt(np.maximum(squares / counts - centres**2, 1e-6))
    if coordinates.structure == "tied":
        units = np.broadcast_to(units.max(axis=0), units.shape)
    return ComponentCoordinates(coordinates, jnp.asarray(centres), jnp.asarray(units))


def natural_end(
    loss: MixtureLoss, table: np.ndarray, x: np.ndarray, num_steps: int
) -> tuple[np.ndarray, list[Point], tuple[int, np.ndarray] | None]:
    """The end of steps in natural coordinates from x, in free ones, the points of the steps, and
    the number of a component that widens beyond all bounds, if one does, with the direction.

    The width is the end of such a way where the likelihood tends to rise beyond it when all else is
    settled, and where the next step, which would be short, leaves the Gaussians.
    """
    coordinates = natural_coordinates(loss, table, x)
    precisions, evaluate = coordinates.precisions, functools.partial(coordinates.point, loss)
    admits = lambda current, z: all(precision.admits(current, z) for precision in precisions)
    stop = lambda current: any(precision.too_wide(current) for precision in precisions)
    with jax.debug_nans(False):  # by which a step out of the domain is known
        current = evaluate(coordinates.natural(x))
        path = [current, *newton_steps(evaluate, current, num_steps, stop=stop, admits=admits)]
        wide = [precision for precision in precisions if precision.too_wide(path[-1])]
        for precision in wide[:1]:
            path.append(precision.settled_but_for_width(evaluate, path[-1], num_steps))
    end = path[-1]
    free = coordinates.mixture_coordinates(end.x)
    for number, precision in enumerate(precisions):
        if precision.too_wide(end):
            direction = np.asarray(coordinates.units)[number] * precision.wide(end.x)[:, 0]
            return free, path, (number, direction)
    return free, path, None


@functools.partial(Compiled, cost=closed_form)
def _free(coordinates: ComponentCoordinates, z: jax.Array) -> tuple[jax.Array, jax.Array]:
    return coordinates.free(z), jax.jacfwd(coordinates.free)(z)


@functools.partial(Compiled, cost=closed_form)
def _bends(coordinates: ComponentCoordinates, z: jax.Array, slopes: jax.Array) -> jax.Array:
    return jax.hessian(lambda z: slopes @ coordinates.free(z))(z)


# ---------------------------------------------------------------- a variance of 0


def edge_of(loss: MixtureLoss, x: np.ndarray) -> str | None:
    """Sentence that the likelihood is highest with some variance at 0, as are those along
    eigenvalues that are small in units of the rows; None if it is not."""
    coordinates, mixture = loss.coordinates, components_at(loss.coordinates, x)
    units = np.outer(coordinates.scale, coordinates.scale)
    values, vectors = np.linalg.eigh(mixture.covariances / units)
    small = values < SMALL
    if loss.observations.noise is None or not small.any():
        return None
    parts = np.einsum("kij,kj,klj->kil", vectors, np.where(small, values, 0.0), vectors) * units

    def log_likelihood(factor: float) -> float:
        smaller = mixture._replace(covariances=mixture.covariances - (1 - factor**2) * parts)
        return expectation(loss, smaller).log_likelihood + log_prior_of(loss, smaller)

    if not explained(log_likelihood):
        return None
    k, where = int(np.argmax(small.any(axis=1))), ""
    if not small[k].all():
        listed = ", ".join(f"{entry:.3g}" for entry in vectors[k, :, 0])
        where = f" along ({listed}), in units of the observations' spread"
    who = "every component" if coordinates.structure == "tied" else f"component {k}"
    more = TOO_MANY if coordinates.num_components > 1 else ""
    return BY_NOISE.format(who, where, more)
