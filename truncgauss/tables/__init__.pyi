from truncgauss.arrays.alignment import (
    RowLabels as RowLabels,
    as_labels as as_labels,
    in_one_order as in_one_order,
    in_order as in_order,
    labels_of as labels_of,
    square_in_order as square_in_order,
    taken as taken,
)
from truncgauss.tables.censoring import limit_of as limit_of
from truncgauss.tables.columns import (
    Table as Table,
    aligned as aligned,
    categories_of as categories_of,
    check_outcome as check_outcome,
    chosen as chosen,
    dropped as dropped,
    each_row as each_row,
    gaps as gaps,
    is_missing as is_missing,
    named_columns as named_columns,
    numbers as numbers,
    read as read,
    refuse_booleans as refuse_booleans,
)
from truncgauss.tables.files import (
    chunks as chunks,
    from_file as from_file,
    header as header,
    location as location,
    mismatch as mismatch,
    num_rows as num_rows,
    units as units,
)
from truncgauss.tables.formulas import (
    Design as Design,
    bounds_or as bounds_or,
    by_formula as by_formula,
    column_or as column_or,
    design as design,
    formula as formula,
    is_text as is_text,
    levels_of as levels_of,
    made_by as made_by,
    names_in as names_in,
    ordered_outcome as ordered_outcome,
)
from truncgauss.tables.frames import (
    data_frame as data_frame,
    estimates_frame as estimates_frame,
)
from truncgauss.tables.known import (
    arrays_of as arrays_of,
    names_of_logs as names_of_logs,
)
