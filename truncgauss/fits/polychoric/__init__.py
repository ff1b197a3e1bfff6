"""Correlations behind pairs of ordered or binary outcomes."""
