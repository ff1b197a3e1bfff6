"""A Gaussian, or a Gaussian regression, fitted to a table of one's own."""
