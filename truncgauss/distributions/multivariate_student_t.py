"""The truncated multivariate t distribution for NumPyro."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Real
from numpyro.distributions import constraints

from truncgauss.arrays.pytrees import as_float_array
from truncgauss.distributions.checks import common_dtype, of_equal_ranks, require
from truncgauss.distributions.multivariate_normal import TruncatedMultivariateNormal
from truncgauss.gaussian.covariances import Covariance
from truncgauss.student.student import log_kernel
from truncgauss.words.arguments import explained_class


@explained_class
class TruncatedMultivariateStudentT(TruncatedMultivariateNormal):
    r"""A multivariate t vector truncated to a box or a polyhedron R.

    .. math:: p(x) = \frac{t_{df}(x;\, \mu, \Sigma)}{Z}, \quad x \in R, \qquad Z = P(X \in R)

    Args:
        df: degrees of freedom, positive, of the batch shape; inf is the Gaussian.
        loc: centre before truncation, shape (..., d).
        covariance_matrix, precision_matrix, scale_tril: of the scale matrix, not the covariance.
        low, high, region, method, key, max_stderr: see `TruncatedMultivariateNormal`.

    Raises:
        ValueError: as `TruncatedMultivariateNormal`, or for df that is not positive.

    If df is traced, log Z is by as many nodes as df = 2 needs. `log_normalizer.stderr` has the
    error. Mean and variance exist only for df > 1 and df > 2, unless limits replace the tails: they
    are NaN where they do not exist. The entropy is not implemented.

    Reference:
        Ho, Lin, Chen and Wang (2012), Some results on the truncated multivariate t distribution.

    Example:
        >>> truncated = tg.TruncatedMultivariateStudentT(
        ...     3.0, [0.0, 0.0], jnp.eye(2), low=0.0, high=[1.0, jnp.inf]
        ... )
        >>> truncated.log_prob(jnp.array([0.5, 0.5])).round(4)
        Array(-0.341, dtype=float64)
    """

    arg_constraints = {"df": constraints.positive, **TruncatedMultivariateNormal.arg_constraints}
    pytree_data_fields = ("df",)

    def __init__(
        self,
        df: Real[ArrayLike, "..."],
        loc: Real[ArrayLike, "..."] | Sequence[Any],
        covariance_matrix: Real[ArrayLike, "*#b d d"] | Covariance | Sequence[Any] | None = None,
        *args: Any,
        **options: Any,
    ) -> None:
        if np.ndim(loc) > 1 and isinstance(covariance_matrix, int | float):
            raise ValueError(
                "TruncatedMultivariateStudentT: df comes first, then loc and covariance_matrix, "
                f"got {covariance_matrix} as the last and a matrix as loc."
            )
        dtype = common_dtype((loc, covariance_matrix, options.get("scale_tril")))
        self.df = as_float_array(df, "TruncatedMultivariateStudentT: df").astype(dtype)
        super().__init__(loc, covariance_matrix, *args, **options)
        self._batch_shape = jnp.broadcast_shapes(self.batch_shape, self.df.shape)
        self.loc = jnp.broadcast_to(self.loc, self.batch_shape + self.event_shape)

    def validate_args(self, strict: bool = True) -> None:
        """Raise ValueError for degrees of freedom or other arguments that are not allowed."""
        require(type(self).__name__, "df", self.df, lambda df: df > 0, "positive")
        super().validate_args(strict)

    @property
    def _law(self) -> dict[str, Any]:
        return {"df": self.df}

    @classmethod
    def infer_shapes(  # type: ignore[override]  # df comes first
        cls, df: tuple[int, ...] = (), *shapes: Any, **others: Any
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Batch and event shape from the shapes of the arguments."""
        batch, event = super().infer_shapes(*shapes, **others)
        return jnp.broadcast_shapes(batch, df), event

    @staticmethod
    def _log_kernel(square: Array, d: int, df: Array) -> Array:  # type: ignore[override]
        square, df = of_equal_ranks(square, df)
        return log_kernel(square, df, d)

    def entropy(self) -> Array:
        """Not implemented: there is no closed form.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "TruncatedMultivariateStudentT has no entropy; average -log_prob over draws instead."
        )
