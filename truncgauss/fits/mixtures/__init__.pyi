from truncgauss.fits.mixtures.climb import NoMaximum as NoMaximum
from truncgauss.fits.mixtures.fit import (
    MixtureErrors as MixtureErrors,
    MixtureFit as MixtureFit,
    fit_mixture as fit_mixture,
)
from truncgauss.fits.mixtures.likelihood import (
    HeldComponents as HeldComponents,
    hold as hold,
    mixture_log_likelihood as mixture_log_likelihood,
)
from truncgauss.fits.mixtures.parameters import Mixture as Mixture
from truncgauss.fits.mixtures.posteriors import (
    Posterior as Posterior,
    posterior as posterior,
)
