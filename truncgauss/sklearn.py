"""A scikit-learn estimator of a Gaussian seen inside limits; needs the extra `sklearn`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import tables
from truncgauss.draws.sampling import truncated_samples
from truncgauss.fits.gaussian.observations_fit import ObservationsFit
from truncgauss.fits.gaussian.truncated_normal import fit_truncated_normal
from truncgauss.gaussian.regions.box import Box
from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.rows import log_likelihood
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import Method

try:
    from sklearn.base import BaseEstimator, DensityMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "truncgauss.sklearn needs scikit-learn: pip install 'truncgauss[sklearn]'."
    ) from error


class TruncatedGaussian(DensityMixin, BaseEstimator):
    """The Gaussian behind a truncated sample, as a scikit-learn estimator.

    `fit` is `tg.fit_truncated_normal`. The density is the truncated one: the Gaussian's inside the
    bounds, divided by the probability of these.

    Args:
        low: limits below, a number or shape (n_features,), or a dictionary by the names of the
            columns of a DataFrame, of which those without a limit may be left out; None leaves the
            side open.
        high: limits above, likewise.
        method: how probabilities are computed.
        max_iter: the most Newton steps.

    Attributes:
        location_: the mean, shape (n_features,).
        covariance_: the covariance matrix, shape (n_features, n_features).
        standard_errors_: `.loc` and `.covariance_matrix`, from the observed information.
        fraction_not_truncated_: probability that an observation is not truncated.
        converged_: whether the fit ended at the maximum.
        n_iter_: Newton steps made.
        fit_: the `tg.fitting.ObservationsFit` itself, with its certificate.
        n_features_in_: the number of columns; `feature_names_in_` has their names, if any.

    Example:
        >>> from truncgauss.sklearn import TruncatedGaussian
        >>> model = TruncatedGaussian(low=0.0).fit([[0.2], [0.9], [1.1], [0.4], [1.6], [0.3]])
        >>> model.converged_, model.score_samples([[0.5], [-1.0]]).round(3)
        (True, array([-0.251,   -inf]))
    """

    def __init__(
        self,
        low: Any = None,
        high: Any = None,
        *,
        method: Method | None = None,
        max_iter: int = 100,
    ) -> None:
        self.low = low
        self.high = high
        self.method = method
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> "TruncatedGaussian":
        """Fit the Gaussian to rows, shape (n_samples, n_features), all inside the limits.

        Args:
            X: the rows; an array or a DataFrame.
            y: ignored.
            sample_weight: shape (n_samples,): how often each row counts.

        Raises:
            ValueError: as `tg.fit_truncated_normal`.
        """
        X, sample_weight = tables.in_one_order("fit", X=X, sample_weight=sample_weight)
        limits = tables.read(X) if hasattr(X, "columns") else None
        rows = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=2)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64)
        sides = (("low", self.low, -np.inf), ("high", self.high, np.inf))
        low, high = (
            end if end is None or limits is None else tables.aligned(end, limits, name, fill)
            for name, end, fill in sides
        )
        fit: ObservationsFit = fit_truncated_normal(
            rows, low, high, weights=sample_weight, method=self._method(), num_steps=self.max_iter
        )
        self.fit_ = fit
        self.limits_ = low, high
        self.location_ = np.asarray(fit.loc)
        self.covariance_ = np.asarray(fit.covariance_matrix)
        self.standard_errors_ = fit.standard_errors
        self.fraction_not_truncated_ = fit.fraction_not_truncated
        self.converged_ = fit.converged
        self.n_iter_ = fit.num_steps
        return self

    def score_samples(self, X: Any) -> np.ndarray:
        """The truncated log density of each observation, shape (n_samples,), in nats.

        -inf outside the bounds.
        """
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        with jax.enable_x64(True):
            observations = Observations.exact(rows.astype(np.float64), region=self._region())
            estimate = log_likelihood(observations, *self._parameters(), self._method())
            return np.asarray(estimate.log_prob).astype(rows.dtype)

    def score(self, X: Any, y: Any = None) -> float:
        """The mean log density of the rows, in nats; y is ignored."""
        return float(np.mean(self.score_samples(X)))

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Exact draws from the truncated Gaussian, shape (n_samples, n_features)."""
        check_is_fitted(self)
        key = jax.random.key(check_random_state(random_state).randint(2**31 - 1))
        with jax.enable_x64(True):
            drawn = truncated_samples(key, *self._parameters(), self._region(), n_samples)
            return np.asarray(drawn).astype(self.location_.dtype)

    def aic(self, X: Any) -> float:
        """Akaike's criterion of some rows, 2 q - 2 log L."""
        return 2.0 * self._num_parameters - 2.0 * float(np.sum(self.score_samples(X)))

    def bic(self, X: Any) -> float:
        """Schwarz's criterion of some rows, q log n - 2 log L."""
        densities = self.score_samples(X)
        return self._num_parameters * float(np.log(len(densities))) - 2.0 * float(densities.sum())

    @property
    def _num_parameters(self) -> int:
        d = len(self.location_)
        return d + d * (d + 1) // 2

    def _method(self) -> Method:
        return Automatic() if self.method is None else self.method

    def _parameters(self) -> tuple[jax.Array, jax.Array]:
        parts = self.location_, self.covariance_
        loc, covariance = (jnp.asarray(part, jnp.float64) for part in parts)
        return loc, covariance

    def _region(self) -> Box:
        shape = self.location_.shape
        low, high = self.limits_
        ends = (-np.inf if low is None else low), (np.inf if high is None else high)
        return Box(*(jnp.broadcast_to(jnp.asarray(end, jnp.float64), shape) for end in ends))
