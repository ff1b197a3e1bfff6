"""The truncated multivariate normal distribution for NumPyro."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike
from jaxtyping import Array, Real
from numpyro.distributions import constraints
from numpyro.distributions.util import lazy_property

from truncgauss.arrays.coordinates import check_one_order
from truncgauss.arrays.linalg import diagonal_of
from truncgauss.arrays.pytrees import Estimate, as_float_array, check_numbers, is_concrete
from truncgauss.distributions.checks import (
    as_value,
    common_dtype,
    compile_time_constants,
    is_positive,
    of_equal_ranks,
    refuse,
    require,
)
from truncgauss.distributions.supports import Between, Inside, TruncatedDistribution, lacking
from truncgauss.distributions.univariate import entropy, log_density
from truncgauss.draws.sampling import truncated_samples
from truncgauss.draws.truncated_moments import truncated_moments
from truncgauss.gaussian.covariances import Covariance, CovarianceMatrix, ScaleTril
from truncgauss.gaussian.problem import Moments, Problem, as_problem
from truncgauss.gaussian.regions.box import Box
from truncgauss.gaussian.regions.region import LinearRegion, Region
from truncgauss.probability.automatic import Automatic, log_probability
from truncgauss.probability.exact import Exact
from truncgauss.probability.method import Method
from truncgauss.special.tails import undefined
from truncgauss.words.arguments import explained_class


@explained_class
class TruncatedMultivariateNormal(TruncatedDistribution):
    r"""A Gaussian vector truncated to a box or a polyhedron R.

    .. math:: p(x) = \frac{\mathrm{Normal}(x;\, \mu, \Sigma)}{Z}, \quad x \in R, \qquad
        Z = P(X \in R)

    Args:
        loc: mean before truncation, shape (..., d); leading axes broadcast. A scalar holds for all
            coordinates.
        covariance_matrix: before truncation, shape (..., d, d), or a `ScaleTril`, `LowRank` or
            `Markov`.
        precision_matrix, scale_tril: instead of it, its inverse or its lower Cholesky factor.
        low, high: limits, shape (..., d), or a scalar for all; None leaves a side open.
        region: instead of limits, a `Box`, a `Polyhedron` or another region with linear
            constraints. There is a bijection onto a box only: with other regions observed values
            and draws are fine, a latent variable in NUTS or SVI raises.
        method: how log Z is computed, see `log_probability`.
        key: key of that method; None stands for jax.random.key(0). The same key gives the same Z.
        max_stderr: the largest standard error of log Z that is accepted: beyond it, or if it is
            unknown, `log_prob` raises, and is NaN under a trace, where NUTS rejects the step as
            divergent. By default only inf is refused, where too few samples were effective;
            `jnp.inf` accepts that too. The log likelihood of n observations has n times this error.

    Raises:
        ValueError: if not exactly one form of the covariance, or both region and limits, are given;
            for disagreeing shapes, equal or inverted limits, or what is no covariance. Traced
            values cannot be checked: there an empty or inverted region gives NaN.

    `log_normalizer` is the `Estimate` of log Z with its standard error. If all parameters are
    constants it is computed once, to the accuracy of `method`, also inside a jitted model. If they
    are traced and d > 3, the default method plans anew for each value, and value and gradient agree
    only to the Monte Carlo error. For HMC, line searches and finite differences hold a plan, made
    once for a typical value; with it, and a fixed key, the log density is one smooth function:

        held = tg.Separation().hold(first_guess, covariance, tg.Box(low, high))

        def model(observed):
            loc = numpyro.sample("loc", dist.Normal(0.0, 5.0).expand([d]).to_event(1))
            truncated = tg.TruncatedMultivariateNormal(
                loc, covariance, low=low, high=high, method=held, max_stderr=0.01
            )
            with numpyro.plate("rows", len(observed)):
                numpyro.sample("observed", truncated, obs=observed)

    `covariance_matrix` is, like `loc`, the parameter; `mean`, `variance` and `moments` are those
    after truncation. Draws are exact but carry no derivatives: `has_rsample` is False.

    Reference:
        Kotz, Balakrishnan and Johnson (2000), Continuous Multivariate Distributions 1, section
        45.10.

    Example:
        >>> low, high = [0.0, 0.0], [1.0, jnp.inf]
        >>> truncated = tg.TruncatedMultivariateNormal(
        ...     [0.0, 0.0], jnp.eye(2), low=low, high=high
        ... )
        >>> truncated.log_normalizer.log_prob.round(4)
        Array(-1.768, dtype=float64)
        >>> truncated.log_prob(jnp.array([0.5, 0.5])).round(4)
        Array(-0.3199, dtype=float64)
    """

    arg_constraints = {
        "loc": constraints.real_vector,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
        "low": constraints.dependent(is_discrete=False, event_dim=1),
        "high": constraints.dependent(is_discrete=False, event_dim=1),
    }
    pytree_data_fields: tuple[str, ...] = ("loc", "covariance", "region", "method", "key")
    pytree_aux_fields = ("max_stderr",)
    rsample = lacking("rsample")

    def __init__(
        self,
        loc: Real[ArrayLike, "..."] | Sequence[Any],
        covariance_matrix: Real[ArrayLike, "*#b d d"] | Covariance | Sequence[Any] | None = None,
        precision_matrix: Real[ArrayLike, "*#b d d"] | Sequence[Any] | None = None,
        scale_tril: Real[ArrayLike, "*#b d d"] | Sequence[Any] | None = None,
        low: Real[ArrayLike, "..."] | Sequence[Any] | None = None,
        high: Real[ArrayLike, "..."] | Sequence[Any] | None = None,
        region: Region | None = None,
        method: Method | None = None,
        key: Array | None = None,
        *,
        max_stderr: float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        check_numbers(max_stderr, "max_stderr")
        self.method, self.key = Automatic() if method is None else method, key
        self.max_stderr = max_stderr
        covariances = {
            "covariance_matrix": covariance_matrix,
            "precision_matrix": precision_matrix,
            "scale_tril": scale_tril,
        }
        self.coordinate_names = check_one_order(
            loc=loc, **covariances, low=low, high=high, region=region
        )
        problem = truncated_problem(type(self).__name__, loc, covariances, low, high, region)
        self.loc, self.covariance = problem.loc, problem.covariance
        self.region: LinearRegion = problem.region  # type: ignore[assignment]  # it has no other
        if isinstance(self.method, Method):
            self.method.for_problem(problem)
        event = (problem.covariance.dimension,)
        super().__init__(problem.batch_shape, event, validate_args=validate_args)

    @property
    def _law(self) -> dict[str, Any]:
        """Arguments for probabilities and draws of another law than the Gaussian."""
        return {}

    @lazy_property
    def covariance_matrix(self) -> Array:
        """Covariance matrix before truncation, shape (..., d, d)."""
        with compile_time_constants(self.covariance):
            return self.covariance.covariance_matrix

    @lazy_property
    def scale_tril(self) -> Array:
        """Lower Cholesky factor of `covariance_matrix`."""
        with compile_time_constants(self.covariance):
            return self.covariance.scale_tril

    @lazy_property
    def precision_matrix(self) -> Array:
        """Inverse of `covariance_matrix`."""
        with compile_time_constants(self.covariance):
            factor = self.scale_tril
            identity = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
            inverse = jax.lax.linalg.triangular_solve(factor, identity, left_side=True, lower=True)
            return jnp.swapaxes(inverse, -1, -2) @ inverse

    @property
    def low(self) -> Array:
        """Lower limits, of the rows if the region is a `Polyhedron`."""
        return self.region.low

    @property
    def high(self) -> Array:
        """Upper limits, of the rows if the region is a `Polyhedron`."""
        return self.region.high

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> constraints.Constraint:
        """The region as a NumPyro constraint."""
        if self.region.is_box:
            return Between(self.region.low, self.region.high, event_dim=1)
        return Inside(self.region)

    def validate_args(self, strict: bool = True) -> None:
        """Raise ValueError for a loc that is not finite or a singular covariance."""
        require(type(self).__name__, "loc", self.loc, np.isfinite, "finite")
        with compile_time_constants(self.covariance):
            diagonal = diagonal_of(self.scale_tril)
        expected = "positive and finite"
        require(type(self).__name__, "the diagonal of scale_tril", diagonal, is_positive, expected)
        if not is_concrete((self.loc, self.covariance)):  # else NumPyro would ask the same again
            super().validate_args(strict)

    @classmethod
    def infer_shapes(
        cls,
        loc: tuple[int, ...] = (),
        covariance_matrix: Any = None,
        precision_matrix: Any = None,
        scale_tril: Any = None,
        low: Any = None,
        high: Any = None,
        **others: Any,
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Batch and event shape from the shapes of the arguments."""
        matrices = [covariance_matrix, precision_matrix, scale_tril]
        matrix = next(shape for shape in matrices if shape is not None)
        vectors = [shape[:-1] for shape in (loc, low, high) if shape is not None]
        return jnp.broadcast_shapes(*vectors, matrix[:-2]), matrix[-1:]

    @property
    def log_normalizer(self) -> Estimate:
        """log P(X in region) before truncation, with its standard error, of the batch shape."""
        if "_log_normalizer" in self.__dict__:
            known: Estimate = self.__dict__["_log_normalizer"]
            return known
        parts = (self.loc, self.covariance, self.region, self.method, self.key)
        with compile_time_constants((parts, self._law)):
            estimate = log_probability(*parts, **self._law)
            if self.region.is_box:
                estimate = _exact_where_open(estimate, self.low, self.high)
        if is_concrete(estimate):
            self.__dict__["_log_normalizer"] = estimate
        return estimate

    def log_prob(self, value: Any, intermediates: Any = None) -> Array:
        """Log density; -inf outside the region and at infinity, where its gradients are 0."""
        value = as_value(self, value, self.loc)
        if value.shape[-1:] != self.event_shape:
            raise ValueError(
                f"{type(self).__name__}: a value needs shape (..., {self.event_shape[0]}), "
                f"got {value.shape}."
            )
        if self._validate_args:
            self._validate_sample(value)  # warns; what follows needs no mask
        if self._is_scalar:
            return log_density(value[..., 0], *self._scalars)
        inside = self.support(jax.lax.broadcast_to_rank(value, max(value.ndim, self.loc.ndim)))
        return _log_density(
            type(self)._log_kernel, value, self.loc, self.scale_tril, inside,
            self._sound_log_normalizer, self._law,
        )  # fmt: skip

    @staticmethod
    def _log_kernel(square: Array, d: int) -> Array:
        """The log density but for the Gaussian's constant, of squared distances from the mean."""
        return -0.5 * square

    @property
    def _is_scalar(self) -> bool:
        """Whether the distribution is univariate, and so known in closed form."""
        known = isinstance(self.method, (Automatic, Exact)) and self.region.is_box
        return self.event_shape == (1,) and known and not self._law

    @property
    def _scalars(self) -> tuple[Array, ...]:
        scale = jnp.sqrt(self.covariance.variances)
        return tuple(x[..., 0] for x in (self.loc, scale, self.low, self.high))

    @property
    def _sound_log_normalizer(self) -> Array:
        """log Z, or NaN where there is no density or its standard error is refused."""
        estimate, region = self.log_normalizer, self.region
        refused, sound = _sound(estimate, region.low, region.high, self.max_stderr)
        refuse(type(self).__name__, "log normaliser", refused, estimate.stderr, self.max_stderr)
        return sound

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Independent draws, shape sample_shape + batch_shape + (d,); see `truncated_samples`."""
        self._check_draw(key, sample_shape)
        sample_shape = tuple(sample_shape)
        law = {name: jax.lax.stop_gradient(x) for name, x in self._law.items()}
        parts = jax.lax.stop_gradient((self.loc, self.covariance, self.region))
        draws = truncated_samples(key, *parts, math.prod(sample_shape), **law)
        return draws.reshape(sample_shape + draws.shape[1:])

    @property
    def moments(self) -> Moments:
        """Mean and covariance after truncation, with standard errors; see `truncated_moments`."""
        parts = (self.loc, self.covariance, self.region, self.method, self.key)
        with compile_time_constants((parts, self._law)):
            return truncated_moments(*parts, **self._law)

    @property
    def mean(self) -> Array:
        """Mean after truncation, shape (..., d); one whose standard error is inf is refused."""
        return self._sound("mean", *self.moments[::2])

    @property
    def variance(self) -> Array:
        """Variances after truncation, shape (..., d); refused as the mean is."""
        return self._sound("variance", *map(jnp.linalg.diagonal, self.moments[1::2]))

    def _sound(self, what: str, value: Array, stderr: Array) -> Array:
        """The value, or NaN where its standard error is infinite, unless max_stderr allows it."""
        if self.max_stderr == math.inf:
            return value
        refuse(type(self).__name__, what, jnp.isinf(stderr), stderr)
        return jnp.where(jnp.isinf(stderr), jnp.nan, value)

    def entropy(self) -> Array:
        r"""Differential entropy in nats, log Z - E log Normal(X; loc, covariance_matrix)."""
        if self._is_scalar:
            return entropy(*self._scalars)
        return _entropy(
            self.moments, self.loc, self.scale_tril, self.precision_matrix,
            self._sound_log_normalizer,
        )  # fmt: skip


# Under `jit`, so that calls outside of a trace compile one program and not one an operation.
@partial(jax.jit, inline=True)
def _exact_where_open(estimate: Estimate, low: Array, high: Array) -> Estimate:
    """The estimate, or log 1 without an error where no limit is finite."""
    open_ = jnp.all((low == -jnp.inf) & (high == jnp.inf), axis=-1)
    log_prob, stderr, open_ = of_equal_ranks(*estimate, open_)
    return Estimate(*(jnp.where(open_, 0.0, x) for x in (log_prob, stderr)))


@partial(jax.jit, static_argnames="most", inline=True)
def _sound(estimate: Estimate, low: Array, high: Array, most: float | None) -> tuple[Array, Array]:
    """Whether log Z has a larger standard error than is accepted, and log Z, or NaN if it has."""
    log_prob, stderr, ordered = of_equal_ranks(*estimate, jnp.all(low < high, axis=-1))
    proper = jnp.isfinite(log_prob) & ordered
    good = ~jnp.isinf(stderr) if most is None else (stderr <= most) | (most == math.inf)
    return proper & ~good, undefined(~(proper & good), log_prob)


@partial(jax.jit, static_argnums=0, inline=True)
def _log_density(
    log_kernel: Callable[..., Array],
    value: Array,
    loc: Array,
    factor: Array,
    inside: Array,
    normalizer: Array,
    law: dict[str, Any],
) -> Array:
    inside, value, loc = of_equal_ranks(inside[..., None], value, loc)
    d = loc.shape[-1]
    constant = jnp.log(diagonal_of(factor)).sum(-1) + 0.5 * d * math.log(2 * math.pi)
    residual = jnp.where(inside, value - loc, 0.0)
    square = jnp.square(_whitened(factor, residual)).sum(-1)
    square, constant, normalizer, inside, unknown = of_equal_ranks(
        square, constant, normalizer, inside[..., 0], jnp.isnan(value).any(-1)
    )
    log = log_kernel(square, d, **law) - (constant + normalizer)
    outside = jnp.where(unknown | jnp.isnan(log), jnp.nan, -jnp.inf)
    return jnp.where(inside, log, outside)


@partial(jax.jit, inline=True)
def _entropy(
    moments: Moments, loc: Array, factor: Array, precision: Array, log_normalizer: Array
) -> Array:
    half_log_det = jnp.log(diagonal_of(factor)).sum(-1)
    mean, loc = of_equal_ranks(moments.mean, loc)
    matrix, precision = of_equal_ranks(moments.covariance, precision)
    shift = jnp.square(_whitened(factor, mean - loc)).sum(-1)
    spread = jnp.sum(precision * matrix, axis=(-2, -1))
    shift, spread, half_log_det, log_normalizer = of_equal_ranks(
        shift, spread, half_log_det, log_normalizer
    )
    square = 0.5 * (shift + spread)
    constant = 0.5 * loc.shape[-1] * math.log(2 * math.pi)
    return log_normalizer + half_log_det + constant + square


def _whitened(factor: Array, residual: Array) -> Array:
    """factor^-1 residual for residuals (..., d), without a copy of the factor for each."""
    d, batch = residual.shape[-1], factor.shape[:-2]
    extra = max(residual.ndim - 1 - len(batch), 0)
    batch = jnp.broadcast_shapes(batch, residual.shape[extra:-1])
    residual = jnp.broadcast_to(residual, (*residual.shape[:extra], *batch, d))
    factor = jnp.broadcast_to(factor, (*batch, d, d))
    columns = residual.reshape(math.prod(residual.shape[:extra]), *batch, d)
    columns = jnp.moveaxis(columns, 0, -1)
    solved = jax.lax.linalg.triangular_solve(factor, columns, left_side=True, lower=True)
    return jnp.moveaxis(solved, -1, 0).reshape(residual.shape)


def truncated_problem(
    owner: str, loc: Any, covariances: dict[str, Any], low: Any, high: Any, region: Any
) -> Problem:
    """The problem of a mean, exactly one of three forms of a covariance, and limits or a region.

    Raises:
        ValueError: for no form, several, or a precision matrix that is none.
        TypeError: for a region that is no limits on linear functions of the coordinates.
    """
    values = {"loc": loc, **covariances, "low": low, "high": high, "region": region}
    if loc is None:
        raise ValueError(f"{owner}: loc must be the mean, a number or of shape (d,), got None.")
    dtype = common_dtype(values)
    with compile_time_constants(values):
        forms = {name: value for name, value in covariances.items() if value is not None}
        if any(isinstance(value, Region) for value in forms.values()):
            raise TypeError(f"{owner}: a region is given by its name: region=tg.Box(low, high).")
        if len(forms) != 1:
            vectors = any(np.ndim(x) < 2 for x in forms.values() if not isinstance(x, Covariance))
            named = " Bounds go by their names: low=..., high=..." if vectors else ""
            raise ValueError(
                f"{owner} needs exactly one of {', '.join(covariances)}; got "
                f"{' and '.join(forms) or 'none'}.{named}"
            )
        ((name, value),) = forms.items()
        if not isinstance(value, Covariance):
            value = jnp.asarray(value, dtype)
            if np.ndim(loc) > value.ndim == 1:
                raise ValueError(
                    f"{owner}: {name} must have shape (d, d), got {value.shape}, and loc (d,), got "
                    f"{np.shape(loc)}: they are exchanged. The mean comes first."
                )
            if value.ndim > 1 and np.ndim(loc) and np.shape(loc)[-1] not in (1, value.shape[-1]):
                raise ValueError(
                    f"{owner}: loc must have shape (d,) and {name} (d, d), got {np.shape(loc)} and "
                    f"{value.shape}."
                )
            if name == "precision_matrix":
                # With both axes reversed a lower factor is an upper one: matrix = U U^T, so U^-T is
                # lower, a factor of the inverse, which is not formed.
                matrix = CovarianceMatrix(value).covariance_matrix
                upper = CovarianceMatrix(matrix[..., ::-1, ::-1]).scale_tril[..., ::-1, ::-1]
                identity = jnp.broadcast_to(jnp.eye(matrix.shape[-1], dtype=dtype), matrix.shape)
                inverse = solve_triangular(jnp.swapaxes(upper, -1, -2), identity, lower=True)
                if is_concrete(inverse) and np.isnan(inverse).any() and not np.isnan(value).any():
                    raise ValueError(
                        f"{owner}: precision_matrix must be symmetric and positive definite, got "
                        f"{value}."
                    )
                value = inverse
            form = CovarianceMatrix if name == "covariance_matrix" else ScaleTril
            value = form(as_float_array(value, name))
        region = one_region(owner, dtype, low, high, region, value.dimension)
        linear = region.linear() if isinstance(region, Region) else None
        if linear is None:
            raise TypeError(
                f"{owner}: region must be a tg.Box, a tg.Polyhedron or another region with linear "
                f"constraints, got {type(region).__name__}."
            )
        loc = jnp.asarray(loc, dtype)
        loc = jnp.full(value.dimension, loc) if loc.ndim == 0 else loc
        return as_problem(loc, value, linear)


def one_region(owner: str, dtype: Any, low: Any, high: Any, region: Any, d: int) -> Any:
    """The region, or a box with these limits; a scalar limit holds for all coordinates."""
    if region is None:
        with np.errstate(over="ignore"):  # a number beyond this precision is infinite
            low = jnp.asarray(-math.inf if low is None else low, dtype)
            high = jnp.asarray(math.inf if high is None else high, dtype)
        return Box(*(jnp.full(d, x) if x.ndim == 0 else x for x in (low, high)))
    if low is not None or high is not None:
        raise ValueError(f"{owner}: give bounds or a region, not both; a Box has its own bounds.")
    return region
