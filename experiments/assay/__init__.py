"""Repeated measurements with a detection limit, by the likelihood or with half of the limit."""
