"""A Gaussian, a regression or a mixture, fitted to a table of one's own."""
