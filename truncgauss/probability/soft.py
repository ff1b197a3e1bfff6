"""Monte Carlo with a soft edge: the mean of smoothed indicators over Gaussian samples."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from truncgauss.arrays import parallel
from truncgauss.arrays.pytrees import check_numbers, frozen_pytree, static_field
from truncgauss.gaussian.covariances import Covariance
from truncgauss.gaussian.edges import Edge, Hard, Surrogate, Tanh, with_slope_of
from truncgauss.gaussian.problem import Estimate, Moments, Problem
from truncgauss.gaussian.regions.region import Region
from truncgauss.probability.method import Growth, Method, check_counts
from truncgauss.separation.lattice import KINDS, normal_points
from truncgauss.special.logspace import effective_sample_size
from truncgauss.words.arguments import explained_class
from truncgauss.words.names import check_choice

NUM_SAMPLES = 1000  # by default
MIN_EFFECTIVE_SAMPLES = 10.0
COUNTED = 1e-6  # distance of a relative weight from 0 or 1, within which a sample is out or in


@explained_class
@frozen_pytree
class SoftMonteCarlo(Method):
    """Monte Carlo estimate of P with a smoothed indicator of the region.

    With x_i = loc + L z_i, L the Cholesky factor, z_i standard normal, and m_j(x) the margin of x
    inside face j of the region,

        P = mean_i exp( sum_j log edge(m_j(x_i)) ).

    It estimates the *smoothed* probability E[prod_j edge(m_j(X))], whose difference from P
    vanishes with the width of the edge; stderr covers the sampling error only. It is inf for fewer
    than ten effective samples, (sum w)^2 / sum w^2 < 10: in a tail the value then depends on the
    edge more than on the Gaussian. Use `Exact` or another method there.

    Args:
        num_samples: samples per replicate (static).
        num_replicates: independent replicates, evaluated one after the other in the memory of one
            (static).
        edge: `Tanh`, `Probit`, `Bump`, `Hard` or `Surrogate`, whose width or steepness is a leaf:
            one number, one for each coordinate or constraint, or one for each face, lower faces
            first. It may be trained or annealed without compiling again. Or a function of the
            margin with values from 0 to 1, and any rule of derivatives: see `tg.EdgeFunction`.
        points: "random", "antithetic" or "lattice" (static). For a single lattice stderr is nan;
            it takes several replicates.
        samples: standard normal samples to use instead of drawing, shape (n, d); then the key is
            ignored. They may be spread over devices (`tg.parallel.spread`).

    Raises:
        ValueError: if a count is not positive, given samples have the wrong shape, are no real
            numbers or not `num_samples`, or the edge has another number of widths.

    Example:
        >>> soft = tg.SoftMonteCarlo(num_samples=4096, points="lattice", num_replicates=8)
        >>> p = tg.fraction_not_truncated([0.0], [[1.0]], tg.Box([0.0], [1000.0]), method=soft)
        >>> round(float(p), 2)
        0.5
    """

    num_samples: int = static_field(default=NUM_SAMPLES)
    num_replicates: int = static_field(default=1)
    edge: Edge | Callable[..., Any] = Tanh(steepness=100.0)
    points: str = static_field(default="random")
    samples: Any = None

    own_units = False  # the edge's width is in the user's units
    is_smoothed = True
    growth = Growth("num_samples", 2.0)

    def __post_init__(self) -> None:
        if np.ndim(self.num_samples) or hasattr(self.num_samples, "iloc"):
            raise ValueError(
                "SoftMonteCarlo: num_samples comes first, a positive int, got an array of shape "
                f"{np.shape(self.num_samples)}. Samples of your own are given by name, samples=..."
            )
        check_counts(self, "num_samples", "num_replicates")
        check_choice(self.points, KINDS, "SoftMonteCarlo: points")
        if self.points == "antithetic" and self.num_samples % 2:
            raise ValueError(
                f"SoftMonteCarlo: antithetic points come in pairs, got {self.num_samples} samples."
            )
        if callable(self.edge) and not isinstance(self.edge, type | Edge):
            from truncgauss.gaussian.edge_functions import EdgeFunction

            object.__setattr__(self, "edge", EdgeFunction(self.edge))
        if not isinstance(self.edge, Edge):
            raise ValueError(
                "SoftMonteCarlo: edge must be an edge such as tg.Tanh(100.0), or a function of the "
                f"margin that returns a value from 0 to 1, got {self.edge!r}."
            )
        if self.samples is not None:
            self._check_samples()

    def _check_samples(self) -> None:
        """Make lists of samples an array, and raise ValueError for what are no samples."""
        if self.num_replicates != 1:
            raise ValueError("SoftMonteCarlo: given samples are one replicate: num_replicates=1.")
        if isinstance(self.samples, list | tuple) or hasattr(self.samples, "iloc"):
            object.__setattr__(self, "samples", np.asarray(self.samples))
        check_numbers(self.samples, "SoftMonteCarlo: samples")
        if isinstance(self.samples, np.ndarray) and self.samples.dtype.kind == "O":
            raise ValueError("SoftMonteCarlo: samples must be numbers, got objects or texts.")
        kind, shape = jnp.result_type(self.samples), jnp.shape(self.samples)
        if not jnp.issubdtype(kind, jnp.floating):
            raise ValueError(
                f"SoftMonteCarlo: samples must be draws of the standard normal, (n, d), got {kind}."
            )
        # Those of JAX may be spread over devices and hosts; NaN among them is NaN in the estimate.
        host = isinstance(self.samples, np.ndarray)
        if host and not np.all(finite := np.isfinite(self.samples)):
            raise ValueError(
                f"SoftMonteCarlo: samples must be finite, got {np.sum(~finite)} that are not."
            )
        if 0 in shape:
            raise ValueError(f"SoftMonteCarlo: samples must not be empty, got shape {shape}.")
        if shape and self.num_samples not in (NUM_SAMPLES, shape[0]):
            raise ValueError(
                f"SoftMonteCarlo: samples has {shape[0]} rows, all of which are used, but "
                f"num_samples is {self.num_samples}. Leave it out."
            )

    def for_problem(self, problem: Problem) -> "SoftMonteCarlo":
        _, covariance, region = problem
        if not region.answers_points:
            raise ValueError(f"SoftMonteCarlo: got {type(region).__name__}. Use tg.Automatic().")
        if widths := cast(Edge, self.edge).num_widths:
            point = jax.ShapeDtypeStruct((covariance.dimension,), jnp.result_type(float))
            faces = jax.eval_shape(region.margins, point).shape[-1]
            linear = region.is_linear
            if widths not in (1, faces, faces // 2 if linear else faces):
                order = ", first all lower and then all upper ones" if linear else ""
                some = f"{faces // 2} (one for each coordinate or constraint) or " if linear else ""
                has = f"{widths} widths, but the {type(region).__name__} has {faces} faces{order}"
                cure = f"Give 1 width, {some}{faces} (one for each face)."
                raise ValueError(f"SoftMonteCarlo: the edge has {has}. {cure}")
        shape, d = np.shape(self.samples), covariance.dimension
        if self.samples is not None and (len(shape) != 2 or shape[-1] != d):
            turned = " Write samples.T." if len(shape) == 2 and shape[0] == d else ""
            turned = " Write samples[:, None]." if len(shape) == d == 1 else turned
            raise ValueError(
                f"SoftMonteCarlo: samples have shape {shape}, expected (n, {d}).{turned}"
            )
        return self

    def replicate(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, key: Array
    ) -> Estimate:
        margins = region.margins(loc[None, :] + self._deviations(key, covariance.scale_tril))
        edge = cast(Edge, self.edge)
        if not isinstance(edge, Surrogate):
            return self._filtered(edge, margins)
        soft, hard = self._filtered(edge.edge, margins), self._filtered(Hard(), margins)
        return Estimate(with_slope_of(hard.log_prob, soft.log_prob), hard.stderr)

    def fraction(self, log_prob: Array, log_prob_of: Callable[[Method], Array]) -> Array:
        """P with the derivatives of P by an edge whose log P has these, also where P is 0."""
        p, (edge, c) = jnp.exp(log_prob), cast(Edge, self.edge).with_slopes()
        by_edge: Callable[[], Array] = lambda: c * jnp.exp(log_prob_of(replace(self, edge=edge)))
        return p if edge is self.edge else with_slope_of(p, by_edge())

    def _deviations(self, key: Array, factor: Array) -> Array:
        """The samples less the mean, shape (n, d)."""
        z = self.samples
        if z is None:
            z = normal_points(key, self.num_samples, len(factor), self.points, factor.dtype)
        return z.astype(factor.dtype) @ factor.T

    def _filtered(self, edge: Edge, margins: Array) -> Estimate:
        """The log of the mean of the weights, and its standard error.

        Two additional samples, one of weight 0 and one of the largest weight, enter the variance:
        when all samples lie inside, the fraction is not known to be exactly 1. For a single lattice
        it is nan, or inf for too few effective samples. Of one replicate of several it is the least
        that can be: what one sample changes, or half a point of a lattice, where all lie inside or
        outside of the edges, else 0.

        Reference:
            Agresti and Coull (1998), Approximate is better than "exact" for interval estimation of
            binomial proportions.
        """
        log_prob, log_weights = edge.log_mean(by_width(edge, margins))
        log_weights = jax.lax.stop_gradient(log_weights)
        top = jnp.max(log_weights)
        weights = jnp.exp(log_weights - jnp.where(jnp.isfinite(top), top, 0.0))
        effective = effective_sample_size(log_weights)
        if self.points == "antithetic" and self.samples is None:
            weights = weights.reshape(2, -1).mean(0)
        with_two = jnp.concatenate([weights, jnp.array([0.0, 1.0], weights.dtype)])
        stderr = jnp.std(with_two, ddof=1) / (len(weights) ** 0.5 * weights.mean())
        lattice = self.points == "lattice" and self.samples is None
        if self.num_replicates > 1:
            counted = jnp.all((weights < COUNTED) | (weights > 1.0 - COUNTED))
            least = (0.5 if lattice else 1.0) / (len(weights) * weights.mean())
            stderr = jnp.where(counted, least, 0.0)
        elif lattice:
            stderr = jnp.full_like(stderr, jnp.nan)
        supported = (effective >= MIN_EFFECTIVE_SAMPLES) | jnp.isnan(top)
        return Estimate(log_prob, jnp.where(supported, stderr, jnp.inf))

    def combined_stderr(self, log_probs: Array, alone: Array) -> Array:
        """As of other methods, but not 0 where replicates count as many samples by chance."""
        power = 0.5 if self.points == "lattice" else 1.0  # one sample is one of all replicates
        least = jnp.min(alone) / self.num_replicates**power
        return jnp.maximum(super().combined_stderr(log_probs, alone), least)

    def moments(self, row: Problem, key: Array) -> Moments:
        from truncgauss.gaussian.total_moments import Pieces, pooled_moments, weighted_pieces

        loc, covariance, region = row
        factor, edge = covariance.scale_tril, cast(Edge, self.edge)

        def one(key: Array) -> tuple[Array, Array]:
            deviations = self._deviations(key, factor)
            margins = by_width(edge, region.margins(loc[None, :] + deviations))
            return edge.log_mean(margins)[1], deviations.T

        if self.num_replicates > 1:
            keys = jax.random.split(key, self.num_replicates)

            def of_key(key: Array) -> Pieces:
                log_weights, deviations = one(key)
                return weighted_pieces(log_weights[None], deviations[None])

            pieces = parallel.each_replicate(of_key, keys)
            return pooled_moments(jax.tree.map(lambda x: x[:, 0], pieces), loc)
        log_weights, deviations = one(key)
        pieces = weighted_pieces(log_weights[None], deviations[None])
        moments = pooled_moments(pieces, loc)
        if self.points != "random" and self.samples is None:
            return moments  # samples that are not independent give no standard error
        # Of ratios of means of independent weighted samples.
        weights, matrix = jax.nn.softmax(log_weights), moments.covariance
        gaps = deviations - (deviations @ weights)[:, None]
        squares = weights * weights
        both = (squares * gaps**2) @ (gaps**2).T
        cross = (squares * gaps) @ gaps.T
        variance = both - 2.0 * matrix * cross + matrix**2 * squares.sum()
        few = ~(pieces.num_effective[0] >= MIN_EFFECTIVE_SAMPLES)
        return moments._replace(
            mean_stderr=jnp.where(few, jnp.inf, jnp.sqrt(jnp.diagonal(cross))),
            covariance_stderr=jnp.where(few, jnp.inf, jnp.sqrt(jnp.maximum(variance, 0.0))),
        )


def by_width(edge: Edge, margins: Float[Array, "n faces"]) -> Float[Array, "n k m"]:
    """Margins with those of one width along the second axis: lower and upper of a coordinate."""
    return margins.reshape(len(margins), -1, edge.num_widths or margins.shape[-1])
