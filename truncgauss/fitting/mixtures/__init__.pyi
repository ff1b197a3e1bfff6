from truncgauss.fitting.mixtures.descent import NoMaximum as NoMaximum
from truncgauss.fitting.mixtures.fit import (
    MixtureErrors as MixtureErrors,
    MixtureFit as MixtureFit,
    fit_mixture as fit_mixture,
)
from truncgauss.fitting.mixtures.likelihood import (
    HeldComponents as HeldComponents,
    hold as hold,
    mixture_log_likelihood as mixture_log_likelihood,
)
from truncgauss.fitting.mixtures.parameters import Mixture as Mixture
from truncgauss.fitting.mixtures.posteriors import (
    Posterior as Posterior,
    posterior as posterior,
)
