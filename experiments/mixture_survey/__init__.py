"""A survey that passes cuts, with noise and gaps: the mixture behind it, naive and corrected."""
