"""Box probabilities by quadrature, to rounding: d = 2 and 3, one or two factors, Markov chains."""
