"""Terms of the covariance of clusters of rows, one class a file."""

from truncgauss.fitting.terms.autoregressive import AutoRegressive
from truncgauss.fitting.terms.common_correlation import CommonCorrelation
from truncgauss.fitting.terms.diagonal import Diagonal
from truncgauss.fitting.terms.exponential import Exponential
from truncgauss.fitting.terms.factor import Factor
from truncgauss.fitting.terms.kinship import Kinship
from truncgauss.fitting.terms.matern import Matern
from truncgauss.fitting.terms.random_effects import RandomEffects
from truncgauss.fitting.terms.residual import Residual
from truncgauss.fitting.terms.term import CovarianceTerm, LongRows, Parts
from truncgauss.fitting.terms.unstructured import Unstructured

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
