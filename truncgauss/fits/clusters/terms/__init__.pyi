from truncgauss.fits.clusters.terms.autoregressive import AutoRegressive as AutoRegressive
from truncgauss.fits.clusters.terms.common_correlation import CommonCorrelation as CommonCorrelation
from truncgauss.fits.clusters.terms.diagonal import Diagonal as Diagonal
from truncgauss.fits.clusters.terms.exponential import Exponential as Exponential
from truncgauss.fits.clusters.terms.factor import Factor as Factor
from truncgauss.fits.clusters.terms.kinship import Kinship as Kinship
from truncgauss.fits.clusters.terms.matern import Matern as Matern
from truncgauss.fits.clusters.terms.random_effects import RandomEffects as RandomEffects
from truncgauss.fits.clusters.terms.residual import Residual as Residual
from truncgauss.fits.clusters.terms.term import (
    CovarianceTerm as CovarianceTerm,
    LongRows as LongRows,
    Parts as Parts,
)
from truncgauss.fits.clusters.terms.unstructured import Unstructured as Unstructured
