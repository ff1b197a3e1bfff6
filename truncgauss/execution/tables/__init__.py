"""Tables of numbers, read strictly and by name, from memory or a file."""

from truncgauss.execution.tables.alignment import aligned, check_labels, row_values
from truncgauss.execution.tables.censoring import limit_of
from truncgauss.execution.tables.columns import Table, chosen, named_columns, numbers, read
from truncgauss.execution.tables.files import chunks, from_file, location, units
from truncgauss.execution.tables.formats import header, mismatch, num_rows
from truncgauss.execution.tables.known import arrays_of

__all__ = [
    "Table",
    "aligned",
    "arrays_of",
    "check_labels",
    "chosen",
    "chunks",
    "from_file",
    "header",
    "limit_of",
    "mismatch",
    "named_columns",
    "num_rows",
    "numbers",
    "location",
    "read",
    "row_values",
    "units",
]
