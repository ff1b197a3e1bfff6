"""log P(X in region) for a Gaussian X: one method, one file."""
