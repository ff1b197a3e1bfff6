"""Truncated normal distributions for NumPyro."""

from truncgauss.distributions.multivariate_normal import TruncatedMultivariateNormal
from truncgauss.distributions.normal import TruncatedNormal

__all__ = ["TruncatedMultivariateNormal", "TruncatedNormal"]
