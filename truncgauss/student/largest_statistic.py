"""The largest of several statistics: its quantile and its tails, by the most accurate route."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.keys import PRNGKey, as_key
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import Method
from truncgauss.student.exact_largest import LOWEST_LEVEL, ExactLargest
from truncgauss.student.quantile import (
    MOST_OUTSIDE,
    RARE,
    Quantile,
    exceeds_exactly,
    log_exceedance,
    quantile,
)
from truncgauss.student.radial import LargestCoordinate


@dataclasses.dataclass(frozen=True, kw_only=True)
class LargestStatistic:
    """The distribution of max T_j, or of max |T_j|, of Gaussian or t statistics of mean 0.

    Attributes:
        correlation: of the statistics, shape (m, m).
        two_sided: whether of absolute values.
        df: degrees of freedom; inf for Gaussian ones.
        method, key: how probabilities are computed.
        by_directions: the distribution by directions.
        exact: the same by quadrature, if the correlation is of one factor or of rank 2 and no
            method is asked for.
        directed: whether directions are used, as they are where the distribution has no exact form
            and no method is asked for.
    """

    correlation: np.ndarray
    two_sided: bool
    df: float
    method: Method
    key: PRNGKey | None
    by_directions: LargestCoordinate
    exact: ExactLargest | None
    directed: bool

    @classmethod
    def of(
        cls, factor: np.ndarray, correlation: np.ndarray, two_sided: bool, df: float,
        method: Method, key: PRNGKey | None, level: float,
    ) -> "LargestStatistic":  # fmt: skip
        """By a root (m, k) of the correlation, of which nearly equal statistics keep more digits
        than the correlation does, and the level of the quantile that is wanted."""
        by_directions = LargestCoordinate.of(factor, two_sided, df, as_key(key))
        automatic, exact = isinstance(method, Automatic), None
        if automatic and level >= LOWEST_LEVEL:
            exact = ExactLargest.of(correlation, by_directions)
        return cls(
            correlation=correlation, two_sided=two_sided, df=df, method=method, key=key,
            by_directions=by_directions, exact=exact,
            directed=automatic and exact is None and not exceeds_exactly(correlation, two_sided),
        )  # fmt: skip

    def quantile(self, level: float) -> Quantile:
        """The value that the largest statistic does not exceed with probability `level`."""
        if self.exact is not None:
            value, stderr = self.exact.quantile(level), 0.0
        elif self.directed:
            value, stderr = self.by_directions.quantile(level)
        else:
            tail = "both" if self.two_sided else "lower"
            return quantile(
                level, jnp.zeros(len(self.correlation)), self.correlation, tail=tail, df=self.df,
                method=self.method, key=self.key,
            )  # fmt: skip
        return Quantile(*jax.device_put((np.asarray(value, float), np.asarray(stderr, float))))

    def tails(self, limits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log P(some statistic exceeds a limit), of all statistics and of those whose limits are
        not above it, and the standard errors, shape (2, m) each.

        Args:
            limits: one for each statistic, shape (m,).
        """
        m = len(limits)
        if self.exact is not None:
            exact = self.by_directions.bounded(self.exact.tails(limits), limits)
            return exact, np.zeros((2, m))
        if self.directed:
            return self.by_directions.tails(limits)
        several = np.broadcast_to(limits[:, None], (2, m, m)).copy()
        several[1][limits[None, :] > limits[:, None]] = np.inf
        log_p, error = map(np.array, log_exceedance(
            several, self.correlation, self.two_sided, self.df, self.method, self.key
        ))  # fmt: skip
        if m > MOST_OUTSIDE and np.any(log_p < math.log(RARE)):
            # Small probabilities are there 1 less nearly 1.
            sampled = self.by_directions.tails(limits)
            better = (log_p < math.log(RARE)) & ~(error <= sampled[1])
            log_p, error = (np.where(better, *x) for x in zip(sampled, (log_p, error)))
        return self.by_directions.bounded(log_p, limits), error
