"""Terms of the covariance of clusters of rows, one class a file."""

from truncgauss.gaussian.terms.autoregressive import AutoRegressive
from truncgauss.gaussian.terms.common_correlation import CommonCorrelation
from truncgauss.gaussian.terms.diagonal import Diagonal
from truncgauss.gaussian.terms.exponential import Exponential
from truncgauss.gaussian.terms.factor import Factor
from truncgauss.gaussian.terms.kinship import Kinship
from truncgauss.gaussian.terms.matern import Matern
from truncgauss.gaussian.terms.random_effects import RandomEffects
from truncgauss.gaussian.terms.residual import Residual
from truncgauss.gaussian.terms.term import CovarianceTerm, LongRows, Parts
from truncgauss.gaussian.terms.unstructured import Unstructured

__all__ = [
    "AutoRegressive",
    "CommonCorrelation",
    "CovarianceTerm",
    "Diagonal",
    "Exponential",
    "Factor",
    "Kinship",
    "LongRows",
    "Matern",
    "Parts",
    "RandomEffects",
    "Residual",
    "Unstructured",
]
