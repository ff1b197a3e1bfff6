"""Wages that are seen of the employed only, and the wage line of everyone."""
