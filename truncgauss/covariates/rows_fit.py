"""Fits that keep rows: predictions, marginal effects, and tests of one fit against another."""

import dataclasses
import math
from typing import Any, Self

import jax
import numpy as np
from scipy import special

from truncgauss import tables
from truncgauss.arrays.progress import reported
from truncgauss.covariates.outliers import Outliers
from truncgauss.covariates.predictions import (
    KINDS,
    Covariates,
    Prediction,
    Predictions,
    margins,
    predict,
    prediction_of,
)
from truncgauss.fitting.derived import presume_the_model
from truncgauss.fitting.likelihood_fit import LikelihoodFit, LikelihoodRatio
from truncgauss.likelihood.observations import Observations


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsFit(LikelihoodFit):
    """A maximum of the likelihood of rows, with covariates perhaps, which predicts further rows.

    Attributes, besides those of `LikelihoodFit`:
        observations: the rows; None if the fit does not keep them.
        centred: the rows as they were fitted, with a middle subtracted if they lie far from 0.
        designs: the covariates of each mean, and those of a log scale; empty if there are none.
        limits: of all rows, between which an outcome is recorded as it is; None where an outcome is
            not censored, or rows differ in limits; (d,) each for several outcomes.
        outliers: the rows that are farthest from their fitted means; None if the fit has not
            converged, or no row is judged.
    """

    observations: Observations | None = dataclasses.field(default=None, repr=False)
    centred: Observations | None = dataclasses.field(default=None, repr=False)
    designs: tuple[Covariates, ...] = dataclasses.field(default=(), repr=False)
    limits: tuple[Any, Any] = (None, None)
    outliers: Outliers | None = dataclasses.field(default=None, repr=False)

    @property
    def num_coefficients(self) -> tuple[int, ...]:
        return tuple(len(design.names) for design in self.designs)

    @property
    def remarks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.remark for part in self.designs if part.remark))

    def without_rows(self) -> Self:
        fit = super().without_rows()
        return dataclasses.replace(fit, observations=None, centred=None, designs=())

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of predictions."""
        return KINDS

    @property
    def num_unlimited(self) -> int:
        """The number of first entries that predictions take no limits of."""
        return 0

    def predictions(
        self, kind: str, shape: tuple[int, ...], known: Observations | None, limits: Any
    ) -> tuple[tuple[Prediction, ...], tuple[str, ...]]:
        """Functions that predict n rows of d entries, and names of what they give side by side."""
        labels = getattr(self.observations, "labels", tuple(map(str, range(shape[1]))))
        return (prediction_of(self, kind, shape, known, limits),), labels

    @reported
    def predict(
        self,
        new: Any = None,
        kind: str = "mean",
        *,
        known: Observations | None = None,
        low: Any = None,
        high: Any = None,
        probability: float = 0.5,
        entry: Any = None,
        level: float = 0.95,
    ) -> Predictions:
        """Predictions of new rows by a Gaussian or a regression, with errors and intervals.

        Args:
            new: covariates of m rows, a table whose columns go by the names of those of the fit, or
                an array with as many columns; a tuple of such for several designs. None: the rows
                of the fit; or, without covariates, the population. Of a fit without covariates,
                `Observations` stand for `known`.
            kind: "mean" of the true outcomes, given what is known of a row, before any truncation
                or censoring: x b of a regression; "observed", the probability that a row is
                observed, in its region and not censored; "mean_observed", the mean given that it
                is; "recorded", the mean of one outcome that counts as a bound of censoring where it
                lies beyond; "probability" of low < outcome < high, given what is known; "quantile"
                of an entry. Those of a selection model: `fitting.SelectionFit.predict`.
            known: what is known of the rows, such as some of their entries, or limits of others.
            low, high: limits, numbers, (d,) or (m, d), for all kinds but "mean" and "quantile". By
                default those of the fit, if all its rows share them.
            probability: of the quantile.
            entry: number or name of the entry whose quantile is asked for; of one outcome, that.
            level: of the intervals.

        Returns:
            Predictions, with value (m,), or (m, d) for means of several outcomes, standard_errors,
            low and high. The errors are those of the estimates; how far new outcomes scatter say
            quantiles. Integrals over more than three entries are estimates, whose own error is not
            counted.

        Raises:
            ValueError: for a kind that is none, a column that is not there, NaN, shapes that
                disagree, or limits that are not known.

        Example:
            >>> hours = [0.0, 0.0, 1.2, 0.0, 2.3, 0.4, 3.1, 1.9]  # 0 stands for 0 or less
            >>> design = {"constant": [1.0] * 8, "wage": [1, 2, 3, 2, 5, 3, 6, 4]}
            >>> fit = tg.fit_regression(hours, design, censored_low=0.0)
            >>> seen = fit.predict({"constant": 1.0, "wage": [2.0, 3.0]}, "observed")
            >>> seen.value.round(3), seen.standard_errors.round(3)
            (array([0.305, 0.99 ]), array([0.241, 0.027]))
        """
        return predict(self, new, kind, known, (low, high), probability, entry, level)

    @reported
    def margins(
        self,
        at: Any = None,
        kind: str = "mean",
        *,
        variables: Any = None,
        discrete: Any = None,
        average: bool = True,
        low: Any = None,
        high: Any = None,
        level: float = 0.95,
    ) -> Predictions:
        """Marginal effects of covariates on predictions: derivatives, and for dummies changes from
        0 to 1, with errors by the delta method.

        A variable moves in the data: through every formula, product, power and category, and in all
        designs that have it, as differences of `predict` have it. In a design that no formula made
        each column is a variable, and moves by itself: its products and powers stay as they are.

        Args:
            at: where: None at all rows of the fit; "mean" at the means of their numbers, with the
                shares of their categories; {name: value} at all rows with these variables so; or a
                table of points, with the columns of the data.
            kind, low, high: of the prediction, as in `predict`, quantiles excepted.
            variables: names of columns of the data; by default all that vary. Columns without names
                are called "0", "1", ... Of categories there is an effect of each, called "site: b",
                against the one that the formula compares with.
            discrete: names of those whose effect is a change from 0 to 1; by default those that are
                0 or 1 in all rows.
            average: whether to average over the points, with the weights of the rows.
            level: of the intervals.

        Returns:
            Predictions, one for each variable, with the covariance of averages; or an array (v, m)
            of effects at each of m points. A last axis is that of outcomes, if there are several.

        Raises:
            ValueError: as `predict`; for a fit without covariates, a name that is none, or a
                function without a derivative, such as I(x > 0). Of one with slopes between its
                jumps the derivatives are these slopes.

        Example:
            >>> hours = [0.0, 0.0, 1.2, 0.0, 2.3, 0.4, 3.1, 1.9]  # 0 stands for 0 or less
            >>> design = {"constant": [1.0] * 8, "wage": [1, 2, 3, 2, 5, 3, 6, 4]}
            >>> fit = tg.fit_regression(hours, design, censored_low=0.0)
            >>> effects = fit.margins(kind="recorded")
            >>> effects.names, effects.value.round(3), effects.standard_errors.round(3)
            (('wage',), array([0.595]), array([0.039]))

        References:
            Williams, "Using the margins command to estimate and interpret adjusted predictions and
                marginal effects", The Stata Journal (2012).
        """
        return margins(self, at, kind, variables, discrete, average, (low, high), level)

    def with_labels(self, index: tables.RowLabels | None) -> Self:
        """The same fit, whose rows have these labels, with which predictions compare theirs."""
        if index is None or self.observations is None:
            return self
        return dataclasses.replace(self, observations=self.observations.with_known(index=index))

    def untestable(self, other: "RowsFit") -> str | None:
        """Why twice the gain in log-likelihood over another fit of the same rows, or of that over
        this one, is not chi-squared by chance, in words; None if nothing is known against it."""
        return None

    def edges_beyond(self, small: "RowsFit") -> int:
        """The number of variances of this model that are 0, at an edge, in a smaller one."""
        return 0


@reported
def likelihood_ratio(small: RowsFit, large: RowsFit) -> LikelihoodRatio:
    """Wilks' test of a fit against one of the same rows by a model that contains the first.

    That the models are nested cannot be seen from the numbers and is taken for granted. The
    distribution holds for many rows, and where no parameter of the smaller model lies on an edge of
    the larger one's space. One variance of clusters that is 0 in the smaller model is such an edge:
    there it is the mixture in equal parts of chi-squared with all degrees and with one less. Of
    several the p-value is an upper bound.

    Args:
        small: the fit with fewer parameters.
        large: the fit with more.

    Returns:
        LikelihoodRatio(statistic, degrees, p_value).

    Raises:
        ValueError: if a fit does not keep its rows, or has not converged, the rows differ, the
            larger model has no more parameters, or a lower likelihood, so that it cannot contain
            the other.

    References:
        Wilks, "The large-sample distribution of the likelihood ratio for testing composite
            hypotheses", Annals of Mathematical Statistics (1938).
        Stram and Lee, "Variance components testing in the longitudinal mixed effects model",
            Biometrics (1994).

    Example:
        >>> pairs = [[1.0, 2.0], [2.0, 2.5], [3.0, 5.0], [4.0, 4.0], [6.0, 7.0], [7.0, 5.0]]
        >>> rows = tg.Observations.exact(pairs)
        >>> diagonal = tg.fit_observations(rows, covariance="diagonal")
        >>> test = tg.likelihood_ratio(diagonal, tg.fit_observations(rows))
        >>> round(test.statistic, 3), test.degrees, round(test.p_value, 4)
        (6.423, 1, 0.0113)
    """
    for fit in (small, large):
        if getattr(fit, "observations", None) is None:
            raise ValueError(
                "likelihood_ratio: needs fits that keep their observations, of fit_observations or "
                f"fit_regression; got {type(fit).__name__}. Whether two fits of "
                "fit_truncated_normal are of the same observations cannot be told."
            )
        if not fit.converged:
            raise ValueError(f"likelihood_ratio: a fit has not converged. {fit.reason}")
        presume_the_model("likelihood_ratio", fit)
    why = small.untestable(large) or large.untestable(small)
    if why is not None:
        raise ValueError(f"likelihood_ratio: {why}")
    assert small.observations is not None and large.observations is not None
    both = small.observations, large.observations
    if not same_rows(*both):
        one, other = (np.asarray([rows.lower, rows.upper]) for rows in both)
        with np.errstate(over="ignore"):
            alike = np.array_equal(one.astype(np.float32), other.astype(np.float32))
        cure = " They are the same in float32: enable jax_enable_x64 before they are made."
        both_fits = " Fit both models to the rows of one table, those that both can use."
        raise ValueError(
            "likelihood_ratio: the two fits are of different observations, or of these in another "
            f"order.{cure if alike and not np.array_equal(one, other) else both_fits}"
        )
    degrees = large.num_parameters - small.num_parameters
    if degrees <= 0:
        raise ValueError(
            f"likelihood_ratio: the larger model must have more parameters, got "
            f"{small.num_parameters} and {large.num_parameters}. Give the smaller one first."
        )
    statistic = 2.0 * (large.log_likelihood - small.log_likelihood)
    sampling = math.hypot(small.log_likelihood_stderr, large.log_likelihood_stderr)
    if statistic < -1e-6 * max(1.0, abs(large.log_likelihood)) - 6.0 * sampling:
        raise ValueError(
            f"likelihood_ratio: the larger model's log-likelihood is lower, by {-statistic / 2:.3g}"
            ". It does not contain the smaller one, or its fit is not the maximum."
        )
    rounding = 1e-11 * max(1.0, abs(large.log_likelihood))
    statistic = statistic if statistic > rounding else 0.0
    p_value = float(special.chdtrc(degrees, statistic))
    if large.edges_beyond(small) == 1:
        fewer = special.chdtrc(degrees - 1, statistic) if degrees > 1 else float(statistic == 0.0)
        p_value = 0.5 * p_value + 0.5 * float(fewer)
    return LikelihoodRatio(statistic, degrees, p_value)


def same_rows(one: Observations, other: Observations) -> bool:
    """Whether two objects hold the same observations."""
    weights = (np.ones(len(o.lower)) if o.weights is None else o.weights for o in (one, other))
    mine, yours = (
        (o.lower, o.upper, o.region, o.noise, o.latent, weight)
        for o, weight in zip((one, other), weights)
    )
    if str(jax.tree.structure(mine)) != str(jax.tree.structure(yours)):
        return False
    pairs = zip(jax.tree.leaves(mine), jax.tree.leaves(yours))
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)
