from truncgauss.fitting.terms.autoregressive import AutoRegressive as AutoRegressive
from truncgauss.fitting.terms.common_correlation import CommonCorrelation as CommonCorrelation
from truncgauss.fitting.terms.diagonal import Diagonal as Diagonal
from truncgauss.fitting.terms.exponential import Exponential as Exponential
from truncgauss.fitting.terms.factor import Factor as Factor
from truncgauss.fitting.terms.kinship import Kinship as Kinship
from truncgauss.fitting.terms.matern import Matern as Matern
from truncgauss.fitting.terms.random_effects import RandomEffects as RandomEffects
from truncgauss.fitting.terms.residual import Residual as Residual
from truncgauss.fitting.terms.term import (
    CovarianceTerm as CovarianceTerm,
    LongRows as LongRows,
    Parts as Parts,
)
from truncgauss.fitting.terms.unstructured import Unstructured as Unstructured
