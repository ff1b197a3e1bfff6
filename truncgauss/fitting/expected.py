"""The expected information of a fit: what rows like these say on average if the model is right.

At parameters x0 of the model it is minus the Hessian of x -> E[log-likelihood at x], taken at x0,
where the expectation is over rows drawn at x0. Where log densities are quadratic in a row, that
needs the row's truncated mean and covariance only, which are derivatives of log P(row in region).

References:
    Efron and Hinkley, "Assessing the accuracy of the maximum likelihood estimator: observed versus
        expected Fisher information", Biometrika (1978).
    Kenward and Molenberghs, "Likelihood based frequentist inference when data are missing at
        random", Statistical Science (1998), on why missing entries have no expected information
        without a model of what is missing.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution.compiling import Compiled
from truncgauss.execution.pytrees import frozen_pytree
from truncgauss.execution.row_sums import RowSums
from truncgauss.fitting.linear_gaussian import ObservationsLoss
from truncgauss.fitting.one_outcome import (
    RegressionLoss,
    full_design,
    gaussian_of,
    limits_of,
    terms_of,
)
from truncgauss.gaussian.covariances import CovarianceMatrix
from truncgauss.gaussian.regions import Box
from truncgauss.likelihood import Observations, hold, row_terms
from truncgauss.probability.method import Method
from truncgauss.special import log_interval_mass, standardize

NOT_EXPECTED = (
    '{}: information="expected" needs rows that are complete and exact{}, with limits on what was '
    "observed. Which entries of other samples would be censored, rounded to an interval or missing "
    'these rows do not say. Use "observed" or "sandwich".'
)


def check_expected(information: str, rows: Observations, sums: RowSums) -> None:
    """Raise ValueError if what other samples would show is asked for, and not known."""
    exact = sums.all(not rows.latent and np.array_equal(rows.lower, rows.upper))
    if information == "expected" and not exact:
        raise ValueError(NOT_EXPECTED.format("fit_observations", ""))


@frozen_pytree
class ExpectedLoss:
    """Minus the mean expected log-likelihood of complete rows, by free coordinates.

    For a row in region R with mean m and covariance V under the parameters that are held, the
    expected log-likelihood at loc and S, the covariance plus noise, is

        -(tr(S^-1 (V + (m - loc) (m - loc)^T)) + log det(2 pi S)) / 2 - log P(Y in R).

    Attributes:
        rows: of which only regions, noise and weights matter.
        mean, covariance: m (n, d) and V (n, d, d).
        loss: that of the observed rows, whose coordinates x are.
        method: with its plans held for these rows.
    """

    rows: Observations
    mean: jax.Array
    covariance: jax.Array
    loss: ObservationsLoss
    method: Method

    @property
    def sums(self) -> RowSums:
        """Sums over the rows of all processes."""
        return self.loss.sums

    def __call__(self, x: jax.Array) -> jax.Array:
        loc, covariance = of_each_row(self.loss, len(self.mean), x)
        total = covariance if self.rows.noise is None else covariance + self.rows.noise
        factor = jnp.linalg.cholesky(total)
        away = self.mean - loc
        about = self.covariance + away[:, :, None] * away[:, None, :]
        half = jax.scipy.linalg.solve_triangular(factor, about, lower=True)
        white = jax.scipy.linalg.solve_triangular(factor, jnp.swapaxes(half, 1, 2), lower=True)
        log_scales = jnp.sum(jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)), axis=1)
        energy = 0.5 * jnp.trace(white, axis1=1, axis2=2) + log_scales
        energy += 0.5 * self.mean.shape[1] * jnp.log(2.0 * jnp.pi)
        log_masses = log_mass(self.rows, loc, covariance, self.method, self.loss.key)
        return jnp.asarray(self.rows.weights) @ (energy + log_masses) / self.loss.size


def of_each_row(loss: ObservationsLoss, num_rows: int, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean (n, d) and covariance (n, d, d) of each row."""
    loc, covariance = loss.gaussian(x)
    d = loc.shape[-1]
    return jnp.broadcast_to(loc, (num_rows, d)), jnp.broadcast_to(covariance, (num_rows, d, d))


def log_mass(
    rows: Observations, loc: jax.Array, covariance: jax.Array, method: Method, key: jax.Array
) -> jax.Array:
    """log P(Y in its region) of each row, (n,)."""
    return row_terms(rows, loc, CovarianceMatrix(covariance), method, key).region


@Compiled
def truncated_mean_and_covariance(
    rows: Observations, loc: jax.Array, covariance: jax.Array, method: Method, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The mean (n, d) and covariance (n, d, d) of what each row may show.

    With g and G the derivatives of log P by loc and the symmetric S, the mean is loc + S g and the
    covariance S + S (2 G - g g^T) S.
    """
    function = lambda loc, covariance: jnp.sum(log_mass(rows, loc, covariance, method, key))
    slope, bend = jax.grad(function, argnums=(0, 1))(loc, covariance)
    bend = bend + jnp.swapaxes(bend, 1, 2) - slope[:, :, None] * slope[:, None, :]
    total = covariance if rows.noise is None else covariance + rows.noise
    shift = jnp.einsum("nij,nj->ni", total, slope)
    return loc + shift, total + total @ bend @ total


def expected_loss(loss: ObservationsLoss, method: Method, x: np.ndarray) -> ExpectedLoss:
    """The loss whose Hessian at x is the expected information of a row.

    Args:
        loss: of complete and exact rows.
        method: how probabilities are computed.
        x: free coordinates.
    """
    rows, designs = distinct(loss.observations, loss.designs)
    loss = replace(loss, observations=rows, designs=designs)
    at = of_each_row(loss, rows.num_rows, jnp.asarray(x))
    held = hold(method, rows, *at)
    mean, covariance = truncated_mean_and_covariance(rows, *at, held, loss.key)
    return ExpectedLoss(rows, mean, covariance, loss, held)


def distinct(
    rows: Observations, designs: tuple[jax.Array, ...] | None
) -> tuple[Observations, tuple[jax.Array, ...] | None]:
    """One of all rows whose regions, noise and covariates are the same, with their weight."""
    n, region = rows.num_rows, rows.region
    weights = rows.row_weights
    parts = [] if designs is None else list(designs)
    parts += [rows.noise] if rows.noise is not None and rows.noise.ndim == 3 else []
    parts += jax.tree.leaves(region) if region is not None and region.batch_shape else []
    table = np.hstack([np.zeros((n, 1)), *(np.asarray(part).reshape(n, -1) for part in parts)])
    _, first, which = np.unique(table, axis=0, return_index=True, return_inverse=True)
    if region is not None and region.batch_shape:
        region = jax.tree.map(lambda leaf: leaf[first], region)
    noise = rows.noise[first] if rows.noise is not None and rows.noise.ndim == 3 else rows.noise
    few = Observations(
        rows.lower[first],
        rows.upper[first],
        region,
        noise,
        jnp.asarray(np.bincount(which.ravel(), weights)),
    )
    return few, None if designs is None else tuple(design[first] for design in designs)


def expected_regression_loss(
    loss: RegressionLoss, rows: Observations, censoring: np.ndarray, x: np.ndarray
) -> RegressionLoss:
    """The loss of one outcome whose Hessian at x is the expected information of a row.

    Args:
        loss: of the rows.
        rows: the observations, in intervals, of which only regions, noise and weights matter.
        censoring: limits (2, n) at or below which, and at or above which, no value is seen.
        x: free coordinates.
    """
    n, predictors = rows.num_rows, loss.predictors(jnp.asarray(x))
    loc, scale = (
        np.broadcast_to(np.asarray(part), len(loss.design))[:n]
        for part in gaussian_of(*predictors, loss.link)
    )
    replaced, of = with_expected_outcomes(rows, censoring, loc, scale)
    scales = loss.scale_design
    return replace(
        loss,
        terms=terms_of(replaced, each=True),
        design=full_design(np.asarray(loss.design)[of]),
        scale_design=None if scales is None else full_design(np.asarray(scales)[of]),
    )


def with_expected_outcomes(
    rows: Observations, censoring: np.ndarray, loc: np.ndarray, scale: np.ndarray
) -> tuple[Observations, np.ndarray]:
    """Rows whose log-likelihood is that expected of `rows`, and which of these each stands for.

    Each row is replaced by rows of weights that add up to its weight: one censored on either side,
    as often as it would be, and two exact ones with the mean and variance of what is not censored.
    """
    n, (low, high) = rows.num_rows, limits_of(rows)[2:]
    weights = rows.row_weights
    noise = None if rows.noise is None else np.broadcast_to(np.asarray(rows.noise), (n, 1, 1))
    if noise is not None:
        scale = np.sqrt(scale**2 + noise[:, 0, 0])
    below, above = (np.clip(limit, low, high) for limit in censoring)
    whole = log_masses(low, high, loc, scale)[0]
    ends = (low, below), (below, above), (above, high)
    pieces = [log_masses(start, end, loc, scale) for start, end in ends]
    left, middle, right = (np.exp(piece[0] - whole) for piece in pieces)
    _, slope, bend = pieces[1]
    mean, spread = loc + scale**2 * slope, np.sqrt(np.maximum(scale**2 + scale**4 * bend, 0.0))
    parts = (
        (np.full(n, -np.inf), below, left * weights),
        (mean - spread, mean - spread, 0.5 * middle * weights),
        (mean + spread, mean + spread, 0.5 * middle * weights),
        (above, np.full(n, np.inf), right * weights),
    )
    likely = [np.flatnonzero(weight > 0) for *_, weight in parts]
    lower, upper, weight = (
        np.concatenate([part[rows] for part, rows in zip(column, likely)]) for column in zip(*parts)
    )
    of = np.concatenate(likely)
    region = None if rows.region is None else Box(low[of, None], high[of, None])
    noise_of = None if noise is None else jnp.asarray(noise[of])
    sides = jnp.asarray(lower)[:, None], jnp.asarray(upper)[:, None]
    return Observations(*sides, region, noise_of, jnp.asarray(weight)), of


def log_masses(
    low: np.ndarray, high: np.ndarray, loc: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log P(low < Y < high) of each row, -inf where nothing lies between, and its first and second
    derivatives by loc, (n,) each."""
    some = low < high
    safe = jnp.asarray(np.where(some, low, -np.inf)), jnp.asarray(np.where(some, high, np.inf))
    function = lambda loc: log_interval_mass(*standardize(*safe, loc, scale))
    along = (jnp.ones(len(loc)),)
    slopes = lambda loc: jax.jvp(function, (loc,), along)
    (value, slope), (_, bend) = jax.jvp(slopes, (jnp.asarray(loc),), along)
    return np.where(some, value, -np.inf), np.asarray(slope), np.asarray(bend)
