"""The log-likelihood of observed rows: exact, censored, interval, missing, noisy and truncated."""

from truncgauss.likelihood.blocks import Block, blocks, filled_up, first_rows
from truncgauss.likelihood.integrals import HeldMethods
from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.rows import (
    RowTerms,
    fraction_not_truncated,
    hold,
    log_likelihood,
    prepared,
    row_terms,
    total_log_likelihood,
    variance_of_sum,
)
from truncgauss.likelihood.slopes import RowSlopes, row_slopes
from truncgauss.likelihood.spread_rows import fitted_together, numbered, own_rows

__all__ = [
    "Block",
    "HeldMethods",
    "Observations",
    "RowSlopes",
    "RowTerms",
    "blocks",
    "filled_up",
    "first_rows",
    "fitted_together",
    "fraction_not_truncated",
    "hold",
    "log_likelihood",
    "numbered",
    "own_rows",
    "prepared",
    "row_slopes",
    "row_terms",
    "total_log_likelihood",
    "variance_of_sum",
]
