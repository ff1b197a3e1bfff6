"""The log-likelihood of observed rows: exact, censored, interval, missing, noisy and truncated."""

from truncgauss.likelihood.held import HeldMethods
from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.rows import (
    fraction_not_truncated,
    hold,
    log_likelihood,
    total_log_likelihood,
)

__all__ = [
    "HeldMethods",
    "Observations",
    "fraction_not_truncated",
    "hold",
    "log_likelihood",
    "total_log_likelihood",
]
