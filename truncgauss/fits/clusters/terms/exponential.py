"""Correlations that fall exponentially with distance."""

from truncgauss.arrays.pytrees import frozen_pytree, static_field
from truncgauss.fits.clusters.terms.matern import Matern
from truncgauss.words.arguments import explained_class


@explained_class
@frozen_pytree
class Exponential(Matern):
    """A process with covariance sigma^2 exp(-d / range) at distance d: in time, that of Ornstein
    and Uhlenbeck, which is `AutoRegressive` at any times.

    Args:
        position: the name of a column, several names, or values (n,) or (n, k).
        sigma: the standard deviation where it is known.
        name: to call the term by.
    """

    smoothness: float = static_field(default=0.5)
    title = "exponential"
