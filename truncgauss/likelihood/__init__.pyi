from truncgauss.likelihood.row_blocks import (
    RowBlock as RowBlock,
    blocks as blocks,
    filled_up as filled_up,
    first_rows as first_rows,
)
from truncgauss.likelihood.integrals import HeldMethods as HeldMethods
from truncgauss.likelihood.observations import (
    Observations as Observations,
    as_observations as as_observations,
)
from truncgauss.likelihood.ordinal import (
    LatentRows as LatentRows,
    Ordinal as Ordinal,
)
from truncgauss.likelihood.rows import (
    RowSlopes as RowSlopes,
    RowTerms as RowTerms,
    fraction_not_truncated as fraction_not_truncated,
    hold as hold,
    log_likelihood as log_likelihood,
    nested_quadratures as nested_quadratures,
    prepared as prepared,
    row_slopes as row_slopes,
    row_terms as row_terms,
    total_log_likelihood as total_log_likelihood,
    variance_of_sum as variance_of_sum,
)
