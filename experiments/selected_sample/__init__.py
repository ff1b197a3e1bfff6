"""A Gaussian fitted to the rows of a table that a selection has let through."""
