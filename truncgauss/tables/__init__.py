"""Tables of numbers, read strictly and by name, from memory or a file."""

from truncgauss.tables.alignment import (
    RowLabels,
    as_labels,
    in_one_order,
    in_order,
    labels_of,
    taken,
)
from truncgauss.tables.censoring import limit_of
from truncgauss.tables.columns import (
    Table,
    aligned,
    categories_of,
    chosen,
    data_frame,
    each_row,
    named_columns,
    numbers,
    read,
)
from truncgauss.tables.files import (
    chunks,
    from_file,
    header,
    location,
    mismatch,
    num_rows,
    units,
)
from truncgauss.tables.formulas import (
    Design,
    by_formula,
    column_or,
    design,
    formula,
    levels_of,
    names_in,
    ordered_outcome,
)
from truncgauss.tables.known import arrays_of, names_of_logs

__all__ = [
    "Design",
    "RowLabels",
    "Table",
    "aligned",
    "arrays_of",
    "as_labels",
    "by_formula",
    "categories_of",
    "chosen",
    "chunks",
    "column_or",
    "data_frame",
    "design",
    "each_row",
    "formula",
    "from_file",
    "header",
    "in_one_order",
    "in_order",
    "labels_of",
    "levels_of",
    "limit_of",
    "mismatch",
    "named_columns",
    "names_in",
    "names_of_logs",
    "num_rows",
    "numbers",
    "location",
    "ordered_outcome",
    "read",
    "taken",
    "units",
]
