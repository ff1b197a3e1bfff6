"""The mixture behind observed rows, and how far to trust it."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Self, cast

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution import row_sums
from truncgauss.execution.terminal import wrapped
from truncgauss.fitting.mixtures.curvature import rough_point
from truncgauss.fitting.mixtures.likelihood import mixture_log_likelihood
from truncgauss.fitting.mixtures.posterior import Posterior, completed, posterior
from truncgauss.fitting.mixtures.profile import profile_of
from truncgauss.fitting.optimization.result import table_of
from truncgauss.fitting.optimization.wald import ratios_of, untrusted
from truncgauss.fitting.profile import Profile
from truncgauss.fitting.result import LikelihoodFit
from truncgauss.gaussian.problem import checked_key
from truncgauss.likelihood import Observations
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import Method

NOT_COMPARED = "Wald intervals were not compared with the likelihood of so many rows."
BELOW_ZERO = (
    "Do not trust the Wald intervals of {}: they reach below 0, where no such value can be."
)
ROUGH = (
    "Take standard errors and Wald intervals of {} for rough ones: the log-likelihood is far from "
    "quadratic. In simulations of such mixtures 95 % intervals held the truth in 0.82 to 0.96 of "
    "the samples, and stated errors were 0.6 to 1.0 of the estimates' scatter."
)


class MixtureErrors(NamedTuple):
    """Standard errors, in the shapes of the estimates; 0 for what is fixed, inf for what the rows
    do not identify, and for all where the likelihood is highest at an edge."""

    weights: np.ndarray
    observed_weights: np.ndarray
    locs: np.ndarray
    covariances: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtureFit(LikelihoodFit):
    """The mixture of Gaussians behind observed rows; `print` shows a table.

    Components are sorted by their observed weights, the largest first.

    Attributes, besides those of `LikelihoodFit`:
        weights: of the components in the whole population, seen or not, (K,).
        observed_weights: in the part of it that can be seen, (K,); where rows differ in regions or
            noise, the mean over rows.
        locs: means, (K, d).
        covariances: of the true values, without noise, (K, d, d).
        standard_errors: `.weights`, `.observed_weights`, `.locs` and `.covariances` likewise, from
            the information that was asked for.
        responsibilities: P(component | what a row shows), (n, K); of rows that are spread over
            processes those of this one.
        entropy: of the components of all rows, given these, in nats.
        fraction_not_truncated: of each component, (K,); the mean over rows.
        start_log_likelihoods: what each start reached; -inf where a component shrank onto a few
            rows, where the likelihood has no maximum.
        num_reached: how many starts reached the reported maximum.
        em_log_likelihoods: of the start that led here, at each EM step. These, the start's and the
            trace include the log prior, if one was asked for.
    """

    weights: np.ndarray
    observed_weights: np.ndarray
    locs: np.ndarray
    covariances: np.ndarray
    standard_errors: MixtureErrors
    responsibilities: np.ndarray
    entropy: float
    fraction_not_truncated: np.ndarray  # type: ignore[assignment]  # one for each component
    start_log_likelihoods: np.ndarray
    num_reached: int
    em_log_likelihoods: np.ndarray

    @property
    def icl(self) -> float:
        """The integrated complete likelihood criterion, BIC plus twice the entropy of the
        responsibilities: it prefers components that do not overlap.

        Reference:
            Biernacki, Celeux and Govaert, "Assessing a mixture model for clustering with the
            integrated completed likelihood" (2000).
        """
        return self.bic + 2 * self.entropy

    def parts(self, estimates: Any) -> tuple[Any, Any, Any]:
        """A vector in the order of `names` as weights (K,), means (K, d) and covariances (K, d, d).

        Example:
            >>> fit = tg.fit_mixture(tg.Observations.exact([1.0, 2.0, 4.0, 3.0]), 1)
            >>> variance = fit.delta(lambda estimates: fit.parts(estimates)[2][0, 0, 0] ** 0.5)
            >>> print(variance.value.round(4), variance.standard_error.round(4))
            1.118 0.3953
        """
        return cast(tuple[Any, Any, Any], self.coordinates.shaped(estimates))

    def function_of(self, function: Callable[..., Any]) -> tuple[Any, Any]:
        """A function of (weights, locs, covariances) and its standard errors. Deprecated: write
        `fit.delta(lambda estimates: function(*fit.parts(estimates)))`."""
        warnings.warn(
            "function_of will go: write fit.delta(lambda estimates: "
            "function(*fit.parts(estimates))).",
            DeprecationWarning,
            stacklevel=2,
        )
        if not self.converged:
            raise ValueError(f"function_of: there are no standard errors. {self.reason}")
        value, error = self.delta(lambda estimates: jnp.asarray(function(*self.parts(estimates))))
        return value, error

    def kind_of(self, number: int) -> str:
        kind: str = self.coordinates.kinds[number]
        return kind

    def profile_along(self, number: int, function: Any = None) -> Profile:
        if function is None and self.errors[number] == 0.0:
            raise ValueError(
                f"profile: {self.names[number]} is fixed at {self.estimates[number]:g}."
            )
        return profile_of(self.loss, self.best.x, number, function)

    def ratios_along(self, coordinates: Any, jacobian: np.ndarray) -> np.ndarray:
        value = lambda x: rough_point(self.loss, x).loss
        return ratios_of(self.loss, self.best, coordinates, jacobian, value=value)

    def arrays_of(self, estimates: Any) -> dict[str, Any]:
        return dict(zip(("weights", "locs", "covariances"), self.parts(estimates)))

    def with_intervals(self, num_profiles: int, seconds: float = np.inf) -> Self:
        """The fit with notes on how far Wald's intervals may be trusted."""
        if not self.converged:
            return self
        notes, low = [], self.wald()[:, 0]
        positive = np.array(self.coordinates.kinds) != "number"
        wrong = np.flatnonzero(positive & np.isfinite(low) & (low < 0))
        if len(wrong):
            notes.append(BELOW_ZERO.format(", ".join(self.names[k] for k in wrong)))
        if not len(self.wald_ratios):
            return dataclasses.replace(self, notes=(*self.notes, *notes, NOT_COMPARED))
        rough = np.setdiff1d(np.flatnonzero(untrusted(self.wald_ratios)), wrong)
        if len(rough):
            notes.append(ROUGH.format(", ".join(self.names[k] for k in rough)))
        return dataclasses.replace(self, notes=(*self.notes, *notes))

    def untestable(self, other: LikelihoodFit) -> str | None:
        if self.loss.prior_rows is not None:
            return "a fit with prior_rows is not at the maximum of the likelihood."
        k = getattr(other.coordinates, "num_components", 1)
        if k == self.coordinates.num_components:
            return None
        return (
            f"the fits have {self.coordinates.num_components} and {k} component(s), which no "
            "chi-squared distribution compares: where the weight of a component is 0 its mean and "
            "covariance mean nothing. Compare their `bic`."
        )

    def row_log_likelihood(
        self, observations: Observations, method: Method = Automatic()
    ) -> np.ndarray:
        """The log-likelihood of each of these rows, old or new, under the fitted mixture, (n,).

        Example:
            >>> fit = tg.fit_mixture(tg.Observations.exact([1.0, 2.0, 4.0, 3.0]), 1)
            >>> fit.row_log_likelihood(tg.Observations.exact([2.5])).round(3)
            array([-1.031])
        """
        with jax.enable_x64(True):
            row_sums.refuse_spread("row_log_likelihood", observations)
            mixture = self.weights, self.locs, self.covariances
            terms = mixture_log_likelihood(observations, *mixture, method)
            return np.asarray(terms.log_prob)

    def predict(  # type: ignore[override]  # of rows known in part, with their components
        self, observations: Observations, method: Method = Automatic()
    ) -> Posterior:
        """The true values and components of rows, old or new, under the fitted mixture; see
        `tg.mixtures.posterior`."""
        with jax.enable_x64(True):
            return posterior(observations, self.weights, self.locs, self.covariances, method)

    def completed(
        self, key: jax.Array, observations: Observations, num_samples: int = 1
    ) -> np.ndarray:
        """Draws of the true values of rows, without noise and gaps, (num_samples, n, d).

        They vary as the rows' true values may; the errors of the estimates are not in them.

        Raises:
            ValueError: for rows with censored or interval entries, or missing ones that a region
                limits.

        Example:
            >>> fit = tg.fit_mixture(tg.Observations.exact([1.0, 2.0, 4.0, 3.0]), 1)
            >>> rows = tg.Observations.exact([2.0, 3.0], noise=[[0.0], [0.1]])
            >>> fit.completed(jax.random.key(0), rows, 5)[:, 0, 0]
            array([2., 2., 2., 2., 2.])
        """
        with jax.enable_x64(True):
            posterior = self.predict(observations)
            return np.asarray(completed(key, observations, posterior, num_samples))

    def sample(self, key: jax.Array, num_samples: int) -> np.ndarray:
        """Draws from the whole population, seen or not, without noise, (num_samples, d)."""
        choice, normal = jax.random.split(checked_key(key))
        with jax.enable_x64(True):
            logs = jnp.log(jnp.asarray(self.weights))
            components = jax.random.categorical(choice, logs, shape=(num_samples,))
            noise = jax.random.normal(normal, (num_samples, self.locs.shape[1]), jnp.float64)
            values, vectors = np.linalg.eigh(self.covariances)  # which may be singular, at an edge
            factors = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
            return self.locs[components] + np.einsum("sij,sj->si", factors[components], noise)

    def __str__(self) -> str:
        shares = " ".join(f"{share:.4g}" for share in self.observed_weights)
        fractions = " ".join(f"{fraction:.4g}" for fraction in self.fraction_not_truncated)
        lines = [
            *table_of(self.names, self.estimates, self.errors),
            f"observed weights {shares}; fractions not truncated {fractions}",
            f"log-likelihood {self.log_likelihood:.8g}, {self.num_rows:g} rows, "
            f"{self.num_parameters} parameters, AIC {self.aic:.6g}, BIC {self.bic:.6g}, "
            f"ICL {self.icl:.6g}; standard errors from the {self.information} information",
        ]
        return "\n".join(map(wrapped, [*lines, self.reason, *self.notes]))
