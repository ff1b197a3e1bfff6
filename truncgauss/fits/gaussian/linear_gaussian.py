"""The loss of observed rows, and the coordinates in which a Gaussian's parameters move freely."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.linalg import cholesky, namespace, solve_lower
from truncgauss.arrays.pytrees import Estimate, frozen_pytree, static_field
from truncgauss.fitting.newton import Loss, Point, sloped
from truncgauss.fitting.widening import Precision
from truncgauss.likelihood.integrals import HeldMethods
from truncgauss.likelihood.nested import NestedQuadrature
from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.rows import (
    hold,
    log_likelihood,
    nested_quadratures,
    total_log_likelihood,
)
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.exact import Exact
from truncgauss.probability.method import Method
from truncgauss.probability.separation import Separation

MOST_NODES = 2**23  # of nested quadratures, whose gradients then take some tenths of a second
RESOLVED = 1e-4  # bound of the error of a log-likelihood by nested quadratures, which is far less
NEARLY = 0.05  # likewise over four variables, which are otherwise estimated
FEW = 12  # outcomes whose covariance matrix is a sum of matrices, one for each entry
SMOOTH = Exact | NestedQuadrature | Separation  # methods whose gradients of boxes are smooth
STEP = 1e-4  # of a Gaussian's own size, between gradients whose differences are a Hessian


@frozen_pytree
class White:
    """Outcomes standardised by a first fit: the mean 0 and the covariance the identity.

    Attributes:
        centre: coefficients of that fit, one outcome after the other.
        root: the Cholesky factor of its covariance matrix, (d, d).
    """

    centre: jax.Array
    root: jax.Array


def positions(pairs: Sequence[tuple[int, int]], d: int) -> np.ndarray:
    """The number of the pair that stands at each place of a symmetric matrix, (d, d); -1: none."""
    number, (i, j) = np.full((d, d), -1), np.reshape(pairs, (-1, 2)).T.astype(int)
    number[i, j] = number[j, i] = np.arange(len(pairs))
    return number


@frozen_pytree
class GaussianCoordinates:
    """Free coordinates x of a mean that is linear in covariates, and of a covariance matrix.

    With several outcomes x holds the coefficients, the logarithms of the free standard deviations
    and Fisher's z = artanh(correlation) of the free pairs. With one outcome of unknown variance it
    holds coefficients / sigma^p and 1 / sigma^p. For p = 1 the log-likelihood of censored rows and
    of intervals is concave (Olsen, 1978); for p = 2, the natural parameters, that of exact rows,
    truncated or not (Barndorff-Nielsen, 1978). So is that of several exact outcomes, in the inverse
    of their covariance matrix and its product with the coefficients: x holds these, of outcomes
    made white by a first fit.

    Attributes:
        fixed: the covariance matrix (d, d), of which the free entries do not matter.
        sizes: number of coefficients of each outcome (static).
        scales: outcomes of free variance (static).
        pairs: pairs (i, j), i < j, of free covariance (static).
        power: p, with one outcome (static).
        white: the outcomes made white, if x holds natural parameters of several.

    References:
        Barndorff-Nielsen, "Information and Exponential Families" (1978).
        Olsen, "Note on the uniqueness of the maximum likelihood estimator for the Tobit model",
            Econometrica (1978).
    """

    fixed: jax.Array
    sizes: tuple[int, ...] = static_field()
    scales: tuple[int, ...] = static_field()
    pairs: tuple[tuple[int, int], ...] = static_field()
    power: int = static_field(default=1)
    white: White | None = None

    @property
    def single(self) -> bool:
        """Whether there is one outcome, of unknown variance."""
        return len(self.sizes) == 1 and len(self.scales) == 1

    def independent_blocks(self) -> list[list[int]] | None:
        """Sets of outcomes whose covariance is free while that with others is 0; None if the
        covariance has another structure.

        So has its inverse then, which is free as well: these covariances are all those of some
        natural parameters.
        """
        d = len(self.sizes)
        if len(self.scales) < d or np.count_nonzero(np.asarray(self.fixed)) > d:
            return None
        linked = np.eye(d, dtype=bool)
        for i, j in self.pairs:
            linked[i, j] = linked[j, i] = True
        if np.any(linked @ linked & ~linked):
            return None
        return [list(np.flatnonzero(row)) for row in np.unique(linked, axis=0)]

    @property
    def known_scale(self) -> np.ndarray:
        """Standard deviations of the outcomes, (d,), 0 where they are free."""
        scale = np.sqrt(np.diagonal(np.asarray(self.fixed)))
        return np.where(np.isin(np.arange(len(scale)), self.scales), 0.0, scale)

    def values(self, x: Any) -> tuple[tuple[Any, ...], Any]:
        """Coefficients of each outcome, and the covariance matrix, NaN where it is none; of numbers
        in NumPy, where nothing is compiled."""
        count = sum(self.sizes)
        coefficients, rest = x[:count], x[count:]
        if self.white is not None:
            root: Any = self.white.root
            centre: Any = self.white.centre
            if namespace(x) is np:
                root, centre = np.asarray(root), np.asarray(centre)
            factor = cholesky(self._symmetric(rest, self.entries))
            half = solve_lower(factor, root.T)
            solved = solve_lower(factor, self._in_columns(coefficients))
            matrix = half.T @ half
            coefficients = centre + (half.T @ solved)[self._positions]
            matrix = (matrix + matrix.T) / 2
        elif self.single:
            xp = namespace(x)
            scale = xp.where(rest > 0, 1.0 / xp.where(rest > 0, rest, 1.0), xp.nan)
            coefficients, matrix = coefficients * scale, scale[:, None] ** (2 // self.power)
        else:
            matrix = self.covariance(rest)
        ends = np.cumsum([0, *self.sizes])
        return tuple(coefficients[i:j] for i, j in zip(ends, ends[1:])), matrix

    @np.errstate(over="ignore", invalid="ignore")  # where a likelihood has no maximum
    def covariance(self, rest: Any) -> Any:
        """The covariance matrix, from log standard deviations and Fisher's z; NaN if it is not
        positive definite."""
        xp, k = namespace(rest), len(self.scales)
        matrix = self.covariance_of(xp.exp(rest[:k]), xp.tanh(rest[k:]))
        factor = cholesky(matrix if xp is np else jax.lax.stop_gradient(matrix))
        return matrix + 0.0 * xp.sum(factor)

    def covariance_of(self, scales: Any, correlations: Any) -> Any:
        """The matrix of the standard deviations and the correlations that are free."""
        xp, d = namespace(scales), len(self.sizes)
        fixed = self.fixed if xp is jnp else np.asarray(self.fixed)
        free, diagonal = np.eye(d)[list(self.scales)], np.eye(d, dtype=bool)
        scale = xp.sqrt(xp.diagonal(fixed))
        if self.scales:
            scale = xp.where(free.any(axis=0), scales @ free, scale)
        products = scale[:, None] * scale[None, :]
        matrix = xp.where(diagonal, products, fixed)
        if self.pairs:
            linked = self._symmetric(np.ones(len(self.pairs)), self.pairs) > 0
            matrix = xp.where(linked, self._symmetric(correlations, self.pairs) * products, matrix)
        return matrix

    def _symmetric(self, entries: Any, pairs: Any) -> Any:
        """A symmetric matrix (d, d) of entries at such pairs, 0 elsewhere."""
        d, number = len(self.sizes), positions(pairs, len(self.sizes))
        if d <= FEW:  # a product, whose derivatives have fewer operations to compile
            units = 1.0 * (np.arange(len(pairs))[:, None] == number.ravel())
            return (entries @ units).reshape(d, d)
        return namespace(entries).append(entries, 0.0)[number]

    def _in_columns(self, coefficients: Any) -> Any:
        """Coefficients of all outcomes, (d, p), 0 where an outcome has fewer; from one line."""
        outcome, number = self._positions
        units = np.zeros((len(outcome), len(self.sizes), max(self.sizes)))
        units[np.arange(len(outcome)), outcome, number] = 1.0
        return (coefficients @ units.reshape(len(outcome), -1)).reshape(units.shape[1:])

    @property
    def _positions(self) -> tuple[np.ndarray, np.ndarray]:
        """Row and column in `_in_columns` of each coefficient."""
        outcome, number = np.nonzero(np.arange(max(self.sizes)) < np.array(self.sizes)[:, None])
        return outcome, number

    def precision(self, scale: np.ndarray) -> Precision | None:
        """The position in x of the inverse covariance, or the inverse scale of one outcome; None
        if it is not part of x.

        Args:
            scale: spread of each outcome, (d,).
        """
        count = sum(self.sizes)
        if self.white is not None:
            return Precision(count, *np.transpose(self.entries))
        if not self.single:
            return None
        spread, one = float(scale[0]), np.zeros(1, int)
        return Precision(count, one, one, spread**self.power, self.power)

    def units(self, x: np.ndarray) -> np.ndarray | None:
        """Moves of each coordinate where the Gaussian changes by about itself, (q,); None
        of natural parameters, which do not move one by one."""
        if self.white is not None or self.single:
            return None
        scale = np.sqrt(np.diagonal(self.values(x)[1]))
        count = sum(self.sizes)
        return np.append(np.repeat(scale, self.sizes), np.ones(len(x) - count))

    def free(self, coefficients: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """x of coefficients, one after the other, and a covariance matrix."""
        if self.white is not None:
            root, centre = np.asarray(self.white.root), np.asarray(self.white.centre)
            half = np.linalg.solve(root, np.linalg.cholesky(matrix))
            precision = np.linalg.inv(half @ half.T)
            moved = np.linalg.solve(root, self._in_columns(coefficients - centre))
            eta = (precision @ moved)[self._positions]
            return np.append(eta, precision[tuple(np.transpose(self.entries))])
        scale = np.sqrt(np.diagonal(matrix))
        if self.single:
            return np.append(coefficients, 1.0) / scale**self.power
        correlations = [np.arctanh(matrix[i, j] / (scale[i] * scale[j])) for i, j in self.pairs]
        return np.concatenate([coefficients, np.log(scale[list(self.scales)]), correlations])

    def names(self, linear: bool, labels: tuple[str, ...]) -> list[str]:
        """Names of the estimates: coefficients, then the free entries of the covariance; of one
        outcome its standard deviation, sigma.

        Args:
            linear: whether there are covariates.
            labels: of the outcomes, (d,).
        """
        several = len(self.sizes) > 1
        locs = [
            (f"coefficients[{label}][{i}]" if several else f"coefficients[{i}]")
            if linear
            else f"loc[{label}]"
            for label, size in zip(labels, self.sizes)
            for i in range(size)
        ]
        if self.has_sigma:
            return [*locs, "sigma"]
        return locs + [f"covariance[{labels[i]}, {labels[j]}]" for i, j in self.entries]

    @property
    def has_sigma(self) -> bool:
        """Whether the last estimate is the standard deviation of the only outcome."""
        return len(self.sizes) == 1 and len(self.entries) == 1

    @property
    def entries(self) -> list[tuple[int, int]]:
        """The free entries of the covariance matrix, in its lower triangle, by rows."""
        return sorted([(j, j) for j in self.scales] + [(j, i) for i, j in self.pairs])

    @property
    def positions(self) -> np.ndarray:
        """The number of the free entry at each place of the covariance matrix, (d, d); -1: none."""
        return positions(self.entries, len(self.sizes))

    def standard_errors(self, errors: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Standard errors of the covariance matrix (d, d), 0 where it is fixed; of its entries'."""
        if self.has_sigma:  # whose error times 2 sigma is that of the variance
            errors = 2.0 * np.sqrt(matrix[0, 0]) * errors
        return np.append(errors, 0.0)[self.positions]

    def estimates(self, x: Any) -> Any:
        """The numbers that `names` calls, as one vector; of numbers in NumPy."""
        xp, (coefficients, matrix) = namespace(x), self.values(x)
        entries = matrix[*np.array(self.entries, int).reshape(-1, 2).T]
        return xp.concatenate([*coefficients, xp.sqrt(entries) if self.has_sigma else entries])

    def of_estimates(self, estimates: jax.Array) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """Coefficients of each outcome, and the covariance matrix, of the vector of estimates."""
        *coefficients, entries = jnp.split(estimates, np.cumsum(self.sizes))
        if self.has_sigma:
            return tuple(coefficients), entries[:, None] ** 2
        values, number = jnp.append(entries, 0.0), self.positions
        return tuple(coefficients), jnp.where(number < 0, self.fixed, values[number])


@frozen_pytree
class ObservationsLoss(Loss):
    """Minus the mean log-likelihood of a row, by free coordinates.

    Attributes:
        observations: the rows.
        designs: covariates of each outcome, (n, p_j), or None for a constant mean.
        coordinates: what x stands for.
        size: the total weight of the rows.
        method: how probabilities are computed, with its plans held.
        key: its random key.
    """

    observations: Observations
    designs: tuple[jax.Array, ...] | None
    coordinates: GaussianCoordinates
    size: jax.Array
    method: Method
    key: jax.Array

    @property
    def methods(self) -> dict[str, Method] | None:
        """The method of each kind of integral, whose plans are held; None if they are not."""
        return self.method.methods if isinstance(self.method, HeldMethods) else None

    @property
    def nested(self) -> bool:
        """Whether integrals are nested quadratures, which do not reach everywhere."""
        return any(isinstance(m, NestedQuadrature) for m in (self.methods or {}).values())

    def reaches(self, point: Point) -> bool:
        """Whether nested quadratures, if integrals are by these, resolve them at a point; over four
        variables, of which other methods give estimates, nearly so."""
        if not self.nested:
            return True
        most = NEARLY if "4" in (self.methods or {}) else RESOLVED
        return point.finite and point.variance <= most**2

    @property
    def iterated(self) -> bool:
        """Whether some integral may have more than two dimensions, so that a gradient takes
        milliseconds and a Hessian many times as long."""
        return self.methods is None or not set(self.methods) <= {"1", "2"}

    @property
    def smooth(self) -> bool:
        """Whether gradients are known to change smoothly: those of probabilities of boxes, exact or
        estimated by points that move along, not those of regions which points enter and leave."""
        kinds = {} if self.methods is None else self.methods
        known = [kind.isdecimal() and isinstance(m, SMOOTH) for kind, m in kinds.items()]
        return self.methods is not None and all(known)

    def steps(self, x: np.ndarray) -> np.ndarray | None:
        """Moves of each coordinate between gradients whose differences are the Hessian,
        (q,); None if that is exact."""
        units = self.coordinates.units(x) if self.smooth or not self.iterated else None
        return None if units is None else STEP * units

    def held_at(self, x: np.ndarray, most: float = MOST_NODES) -> Self:
        """The loss with the plans of its integrals made at x: by nested quadratures where these
        reach, if that takes so many nodes at most, else by its method."""
        if isinstance(self.method, Automatic):
            quick = nested_quadratures(self.observations, most)
            nested = dataclasses.replace(self, method=quick or self.method)
            if nested.nested and nested.reaches(sloped(nested, x)):
                return nested
        rows = self.rows_at(jnp.asarray(x))
        return dataclasses.replace(self, method=hold(self.method, rows, *self.gaussian(x)))

    def rows_at(self, x: jax.Array) -> Observations:
        """The rows, with those of their limits that are parameters at x."""
        return self.observations

    def log_likelihoods(self, x: jax.Array) -> jax.Array:
        """The log-likelihood of each row times its weight, (n,)."""
        at = self.rows_at(x), *self.gaussian(x), self.method, self.key
        return log_likelihood(*at).log_prob

    def total(self, x: jax.Array) -> Estimate:
        at = self.rows_at(x), *self.gaussian(x), self.method, self.key
        return total_log_likelihood(*at)

    def scores(self, x: jax.Array) -> jax.Array:
        return jax.jacfwd(self.log_likelihoods)(x)

    def gaussian(self, x: Any) -> tuple[Any, Any]:
        """The mean, (d,) or (n, d), and the covariance matrix; of numbers in NumPy."""
        coefficients, covariance = self.coordinates.values(x)
        xp = namespace(coefficients[0])
        if self.designs is None:
            return xp.concatenate(coefficients), covariance
        columns = [np.asarray(design) for design in self.designs] if xp is np else self.designs
        means = [design @ part for design, part in zip(columns, coefficients)]
        return xp.stack(means, axis=-1), covariance
