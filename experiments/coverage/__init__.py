"""How often intervals of a truncated fit hold the truth."""
