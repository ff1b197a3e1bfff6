"""The log-likelihood of observed rows: exact, censored, interval, missing, noisy and truncated."""

from truncgauss.likelihood.blocks import RowBlock, blocks, filled_up, first_rows
from truncgauss.likelihood.integrals import HeldMethods
from truncgauss.likelihood.observations import Observations, as_observations
from truncgauss.likelihood.ordinal import LatentRows, Ordinal
from truncgauss.likelihood.rows import (
    RowSlopes,
    RowTerms,
    fraction_not_truncated,
    hold,
    log_likelihood,
    nested_quadratures,
    prepared,
    row_slopes,
    row_terms,
    total_log_likelihood,
    variance_of_sum,
)

__all__ = [
    "RowBlock",
    "HeldMethods",
    "LatentRows",
    "Observations",
    "Ordinal",
    "RowSlopes",
    "RowTerms",
    "as_observations",
    "blocks",
    "filled_up",
    "first_rows",
    "fraction_not_truncated",
    "hold",
    "log_likelihood",
    "nested_quadratures",
    "prepared",
    "row_slopes",
    "row_terms",
    "total_log_likelihood",
    "variance_of_sum",
]
