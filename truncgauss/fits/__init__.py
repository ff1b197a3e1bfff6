"""The fits: of fractions, Gaussians, selected samples, categories, clusters and mixtures."""
