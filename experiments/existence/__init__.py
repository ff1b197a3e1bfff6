"""How often a truncated sample has no maximum-likelihood fit."""
