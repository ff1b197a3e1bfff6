"""Integrals to rounding: two and three dimensions, one and two common factors, Markov chains."""
