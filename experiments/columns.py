"""Names of columns in settings, held against the header of a table; without JAX."""

from truncgauss.runs.config import columns_of, problem, problems
from truncgauss.tables import mismatch


def check_columns(data, named):
    """Refuse columns that a table does not have.

    Args:
        data: the table.
        named: pairs of the keys under which a column is named in the settings, and its name.
    """
    names, found = columns_of(data), []
    for at, name in named:
        if why := mismatch(name, names):
            limit = str(at[-1]).startswith(("censored", "truncated"))
            found.append(problem("must be a number or a column; " * limit + why, *at, got=name))
    if found:
        raise problems(found)
