"""Pearson's correlation of ordered categories beside the polychoric one, with intervals."""
