"""Truncated normal and t distributions for NumPyro."""

from truncgauss.distributions.multivariate_normal import TruncatedMultivariateNormal
from truncgauss.distributions.multivariate_student_t import TruncatedMultivariateStudentT
from truncgauss.distributions.normal import TruncatedNormal

__all__ = ["TruncatedMultivariateNormal", "TruncatedMultivariateStudentT", "TruncatedNormal"]
