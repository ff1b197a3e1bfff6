"""Simultaneous intervals and adjusted p-values of many contrasts, by their joint distribution.

References:
    Hothorn, Bretz and Westfall (2008), Simultaneous inference in general parametric models.
    Westfall and Young (1993), Resampling-Based Multiple Testing, for the step-down test. Montiel
    Olea and Plagborg-Moller (2019), Simultaneous confidence bands, for sup-t bands.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Real

from truncgauss import tables
from truncgauss.arrays.keys import PRNGKey
from truncgauss.arrays.linalg import is_symmetric
from truncgauss.arrays.progress import reported
from truncgauss.arrays.pytrees import host_numbers, no_numbers
from truncgauss.fitting.derived import Derived
from truncgauss.fitting.engine import refuse_missing_labels
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import Method
from truncgauss.student.largest_statistic import LargestStatistic
from truncgauss.student.quantile import Quantile
from truncgauss.words.arguments import answering
from truncgauss.words.names import check_choice
from truncgauss.words.numbers import check_share

ALTERNATIVES = "two-sided", "less", "greater"
MOST_PRINTED = 30  # contrasts up to which a table shows adjusted p-values


@answering
@dataclasses.dataclass(frozen=True, kw_only=True)
class SimultaneousInference:
    """Estimates of contrasts with simultaneous intervals; `print` shows a table.

    Attributes:
        names: of the contrasts.
        estimates: shape (m,).
        standard_errors: shape (m,).
        statistics: (estimate - null) / standard error, shape (m,).
        critical_value: of the largest statistic, with its own numerical standard error.
        low, high: limits of the intervals, shape (m,); the band, if the contrasts are a curve.
        level: of all intervals together.
        alternative: "two-sided", "less" or "greater".
        correlation: of the contrasts, shape (m, m).
        df: degrees of freedom.
        largest: the distribution of the largest statistic.
    """

    names: tuple[str, ...]
    estimates: np.ndarray
    standard_errors: np.ndarray
    statistics: np.ndarray
    critical_value: Quantile
    low: np.ndarray
    high: np.ndarray
    level: float
    alternative: str
    correlation: np.ndarray = dataclasses.field(repr=False)
    df: float
    largest: LargestStatistic = dataclasses.field(repr=False)

    @property
    def p_values(self) -> np.ndarray:
        """Single-step adjusted p-values: of the largest of all statistics, shape (m,)."""
        return np.exp(self.log_p_values[0])

    @property
    def step_down_p_values(self) -> np.ndarray:
        """Step-down adjusted p-values: of the largest of the statistics not yet rejected, (m,)."""
        return np.exp(self.log_p_values[1])

    @property
    def p_value_errors(self) -> np.ndarray:
        """Numerical standard errors of the single-step and step-down p-values, shape (2, m)."""
        return np.exp(self.log_p_values) * self.log_p_value_errors

    @property
    def log_p_values(self) -> np.ndarray:
        """Logarithms of the single-step and step-down p-values, which do not underflow, (2, m)."""
        return self._log_probabilities[0]

    @property
    def log_p_value_errors(self) -> np.ndarray:
        """Numerical standard errors of these logarithms, shape (2, m)."""
        return self._log_probabilities[1]

    @functools.cached_property
    def _log_probabilities(self) -> tuple[np.ndarray, np.ndarray]:
        """log P(some statistic of a set is beyond one's value), of all and of those not above it,
        the latter not below that of any that is rejected before, and standard errors."""
        size, m = self.statistics, len(self.names)  # in the direction of the alternative
        if self.alternative != "greater":
            size = np.abs(size) if self.alternative == "two-sided" else -size
        log_p, error = self.largest.tails(size)
        order = np.argsort(-size, kind="stable")
        p = log_p[1, order]
        source = order[
            np.maximum.accumulate(np.where(p >= np.maximum.accumulate(p), np.arange(m), 0))
        ]
        log_p[1, order], error[1, order] = log_p[1, source], error[1, source]
        return log_p, error

    def to_frame(self, backend: str = "pandas") -> Any:
        """The table as a DataFrame, one row for each contrast, as `LikelihoodFit.to_frame`, with
        statistics and adjusted p-values."""
        columns = {
            "estimate": self.estimates,
            "standard_error": self.standard_errors,
            "low": self.low,
            "high": self.high,
            "statistic": self.statistics,
            "p_value": self.p_values,
            "step_down_p_value": self.step_down_p_values,
        }
        return tables.data_frame(self.names, columns, backend)

    def __str__(self) -> str:
        width = max(map(len, self.names))
        head = f"{100 * self.level:g} % simultaneous"
        lines = [f"{'':{width}}  {'estimate':>10} {'std. error':>10} {head:>24}"]
        shown = len(self.names) <= MOST_PRINTED
        lines[0] += f" {'t':>8} {'p':>9} {'step-down':>9}" if shown else ""
        for j, name in enumerate(self.names):
            interval = f"[{self.low[j]:.5g}, {self.high[j]:.5g}]"
            row = f"{name:{width}}  {self.estimates[j]:10.5g} {self.standard_errors[j]:10.5g}"
            row += f" {interval:>24}"
            if shown:
                p, down = map(probability_in_words, self.log_p_values[:, j])
                row += f" {self.statistics[j]:8.4g} {p:>9} {down:>9}"
            lines.append(row)
        error = float(self.critical_value.stderr)
        exact = f", standard error {error:.1g}" if error > 0 else ""
        degrees = "" if math.isinf(self.df) else f", {self.df:g} degrees of freedom"
        value = float(self.critical_value.value)
        return "\n".join([*lines, f"critical value {value:.8g}{exact}{degrees}"])


def probability_in_words(log_p: float) -> str:
    """A probability to three digits, also one below the smallest number."""
    if log_p > math.log(1e-300):
        return f"{math.exp(log_p):.3g}"
    power, digits = divmod(log_p / math.log(10.0), 1.0)
    return f"{10.0**digits:.3g}e{power:.0f}"


@reported
def simultaneous(
    estimates: Real[ArrayLike, " k"] | Derived | None = None,
    covariance: Real[ArrayLike, "k k"] | None = None,
    df: float = math.inf,
    contrasts: str | Real[ArrayLike, "m k"] | None = None,
    level: float = 0.95,
    alternative: str = "two-sided",
    names: Sequence[str] | None = None,
    null: Real[ArrayLike, "*#m"] = 0.0,
    method: Method = Automatic(),
    key: PRNGKey | None = None,
    *,
    y: Any = None,
    group: Any = None,
) -> SimultaneousInference:
    r"""Simultaneous intervals, a band, and adjusted p-values, exact for their joint distribution.

    With contrasts C b of estimates b, standard errors s and the critical value c,

    .. math:: P\Bigl(\max_j |T_j| \le c\Bigr) = \text{level}, \qquad (C b)_j \pm c\, s_j,

    T being Gaussian, or t with df degrees of freedom, with the correlation of C b. Adjusted
    p-values are P(max |T| >= |t_j|), over all contrasts (single step) or those not yet rejected
    (step down).

    Args:
        estimates: b, shape (k,), or what `fit.derived(...)` returns, with its covariance.
        covariance: of b, shape (k, k); of means of groups, the variance over their sizes.
        df: degrees of freedom of the variance; inf if it is known, or for large samples.
        contrasts: "dunnett", each group against the first, which is the control; "tukey", all
            pairs; a matrix (m, k); or None for the estimates themselves, as for a sup-t band of a
            curve.
        level: probability that all intervals hold.
        alternative: "two-sided", "less" or "greater".
        names: of the estimates, or of the contrasts of a matrix; of groups, their order, the
            control first. By default the labels of a Series or DataFrame of pandas, by which the
            estimates, their covariance, the columns of contrasts and null go.
        null: values of the contrasts under the hypotheses.
        method, key: see `log_probability`. By default, where the joint distribution has no exact
            form, it is that of the largest statistic along 65,536 directions, with exact radii.
        y, group: in place of estimates, covariance and df: a response and the label of its group in
            every row, (n,) each. The estimates are the means of the groups, in the order of a
            Categorical's categories, else in that in which they come, and their covariance is the
            variance within the groups, pooled with df = n - k, over the sizes.

    Raises:
        ValueError: for disagreeing shapes, unknown contrasts or alternatives, or a contrast without
            variance.

    Example:
        >>> sizes = jnp.array([20.0, 3.0, 3.0, 15.0])
        >>> result = tg.simultaneous(
        ...     [14.8, 12.6667, 7.3333, 13.1333], jnp.diag(6.71 / sizes), df=37, contrasts="dunnett"
        ... )
        >>> result.critical_value.value.round(6), result.names[0]
        (Array(2.488589, dtype=float64), '1 - 0')
        >>> minutes, arm = [15.0, 14.0, 16.0, 11.0, 12.0, 10.0], ["b0"] * 3 + ["b1"] * 3
        >>> tg.simultaneous(y=minutes, group=arm, contrasts="dunnett").names
        ('b1 - b0',)
    """
    check_choice(alternative, ALTERNATIVES, "simultaneous: alternative")
    if y is not None or group is not None:
        if estimates is not None or covariance is not None or not math.isinf(df):
            raise ValueError(
                "simultaneous: y and group give estimates, covariance and df: leave these out."
            )
        whole = contrasts is None or isinstance(contrasts, str)
        estimates, covariance, df, order = _of_groups(y, group, names if whole else None)
        names = order if whole else names
    df = float(df)
    if not df > 0:
        raise ValueError(f"df, the degrees of freedom, must be positive, got {df}.")
    check_share(level, "simultaneous: level")
    estimates, covariance, contrasts, names = _by_labels(estimates, covariance, contrasts, names)
    b, matrix = _with_covariance(estimates, covariance)
    rows, labels = contrasts_of(contrasts, len(b), names)
    labelled: Any = null
    if tables.labels_of(labelled) is not None:
        every = tables.labels_of(type(labelled)(0.0, list(labels)))
        null = tables.in_order(labelled.rename(str), every, "simultaneous: null", "the contrasts")
    values, spread = rows @ b, rows @ matrix @ rows.T
    if np.diagonal(matrix).min(initial=0.0) < 0:
        raise ValueError(
            "the covariance of the estimates must be positive semi-definite, got a variance of "
            f"{np.diagonal(matrix).min():g}. Variances are squares of standard errors."
        )
    errors = np.sqrt(np.maximum(np.diagonal(spread), 0.0))
    # From the factors rather than from the correlations, of which nearly equal ones lose digits.
    scales = np.sqrt(np.maximum(np.diagonal(matrix), np.finfo(float).tiny))
    sizes, vectors = np.linalg.eigh(matrix / np.outer(scales, scales))
    if sizes.min(initial=0.0) < -64 * len(sizes) * np.finfo(float).eps * sizes.max(initial=1.0):
        raise ValueError(
            "the covariance of the estimates must be positive semi-definite, got a matrix whose "
            f"correlations have the eigenvalue {sizes.min():.3g}: a correlation is above 1, or "
            "they contradict each other."
        )
    sizes = np.where(sizes > len(sizes) * np.finfo(float).eps * sizes[-1], sizes, 0.0)
    factor = rows * scales @ (vectors * np.sqrt(sizes))
    lengths = np.where(errors > 0, np.linalg.norm(factor, axis=1), 0.0)
    if not np.all(lengths > 0):
        raise ValueError(
            f"the contrast {labels[int(np.argmin(lengths))]!r} has no variance. Leave it out."
        )
    factor /= lengths[:, None]
    correlation = spread / np.outer(errors, errors)
    np.fill_diagonal(correlation, 1.0)
    correlation = 0.5 * (correlation + correlation.T)
    largest = LargestStatistic.of(
        factor, correlation, alternative == "two-sided", df, method, key, level
    )
    critical = largest.quantile(level)
    width = float(critical.value) * errors
    return SimultaneousInference(
        names=labels, estimates=values, standard_errors=errors,
        statistics=(values - host_numbers(null, "simultaneous: null")) / errors,
        critical_value=critical,
        low=np.full_like(values, -np.inf) if alternative == "less" else values - width,
        high=np.full_like(values, np.inf) if alternative == "greater" else values + width,
        level=level, alternative=alternative, correlation=correlation, df=df, largest=largest,
    )  # fmt: skip


def _of_groups(
    y: Any, group: Any, names: Sequence[str] | None
) -> tuple[np.ndarray, np.ndarray, float, tuple[str, ...]]:
    """Means of groups, their covariance, the degrees of freedom within groups, and the labels."""
    if y is None or group is None:
        raise ValueError("simultaneous: y and group are given together, one label a row.")
    for name, column in (("y", y), ("group", group)):
        if isinstance(column, str):
            raise ValueError(
                f"simultaneous: {name} must be a column, got the text {column!r}. Of a table write "
                f"{name}=table[{column!r}]."
            )
    y, group = tables.in_one_order("simultaneous", y=y, group=group)
    values = tables.numbers(y, "simultaneous: y", advice="Remove these rows, of the groups too.")
    declared = tables.categories_of(group)
    column = np.atleast_1d(group)  # with its mask, if there is one
    refuse_missing_labels(column, "simultaneous: group")
    labels = np.array([str(label) for label in column.tolist()])
    if values.ndim != 1 or labels.shape != values.shape:
        raise ValueError(
            f"simultaneous: y and group need one shape (n,), got {values.shape} and {labels.shape}."
        )
    seen = list(dict.fromkeys(labels.tolist()))
    if declared is not None:
        order = [label for label in map(str, declared[0]) if label in seen]
        seen = order + [label for label in seen if label not in order]
    order = seen if names is None else list(map(str, names))
    if sorted(order) != sorted(seen):
        raise ValueError(
            f"simultaneous: names must be the groups {', '.join(seen)}, the control first, "
            f"got {', '.join(order)}."
        )
    parts = [values[labels == label] for label in order]
    df = len(values) - len(parts)
    if df < 1:
        raise ValueError(
            f"simultaneous: {len(parts)} groups of {len(values)} observations in all leave no "
            "degrees of freedom for the variance within groups."
        )
    means = np.array([part.mean() for part in parts])
    variance = sum(float(np.sum((part - part.mean()) ** 2)) for part in parts) / df
    return means, np.diag([variance / len(part) for part in parts]), float(df), tuple(order)


def _by_labels(
    estimates: Any, covariance: Any, contrasts: Any, names: Sequence[str] | None
) -> tuple[Any, Any, Any, Any]:
    """Estimates, their covariance and contrasts in one order, by the labels of the estimates, which
    are their names; in that of the names where these are the same."""
    index, first = tables.labels_of((estimates, covariance)), "the estimates"
    if index is None:
        return estimates, covariance, contrasts, names
    covariance = tables.square_in_order(covariance, index, "simultaneous: covariance", first)
    if hasattr(contrasts, "loc"):
        contrasts = tables.in_order(contrasts.T, index, "simultaneous: contrasts", first).T
    if not (contrasts is None or isinstance(contrasts, str)):
        return estimates, covariance, contrasts, names
    own, k = list(map(str, index.index)), len(index)
    names = own if names is None else list(map(str, names))
    if sorted(names) == sorted(own) and len({*own}) == k and np.shape(covariance) == (k, k):
        order = np.array([own.index(name) for name in names])
        covariance = np.asarray(covariance)[np.ix_(order, order)]
        estimates = np.asarray(estimates)[order]
    return estimates, covariance, contrasts, names


def _with_covariance(estimates: Any, covariance: Any) -> tuple[np.ndarray, np.ndarray]:
    """The estimates and their covariance as arrays of agreeing shapes."""
    if isinstance(estimates, Derived):
        covariance, estimates = estimates.covariance, np.ravel(estimates.value)
    try:
        b = host_numbers(estimates, "simultaneous: estimates")
        matrix = b if covariance is None else host_numbers(covariance, "simultaneous: covariance")
    except (TypeError, ValueError) as error:
        raise no_numbers(
            "simultaneous: needs estimates (k,) and their covariance (k, k)", estimates, covariance,
            advice=" Those of some coefficients of a fit are "
            'fit.derived(lambda p: jnp.stack([p["a"], p["b"]])), given alone; the columns of a '
            'table are y=table["y"], group=table["g"].',
        ) from error  # fmt: skip
    if covariance is None:
        raise ValueError(
            "simultaneous: needs estimates (k,) and their covariance (k, k), got an array of shape "
            f"{np.shape(estimates)} alone. Of draws (n, k) of a posterior give draws.mean(0) and "
            "np.cov(draws.T); of a table its columns, y=table['y'], group=table['group']."
        )
    if b.ndim != 1 or matrix.shape != (len(b), len(b)):
        cure = " Of independent ones write np.diag(variances) or np.diag(errors**2)."
        raise ValueError(
            "estimates need shape (k,) and their covariance (k, k), got "
            f"{b.shape} and {matrix.shape}.{cure if matrix.ndim == 1 else ''}"
        )
    known = np.isfinite(b) & np.isfinite(matrix).all(axis=1)
    if not known.all():
        raise ValueError(
            f"estimate {int(np.argmin(known))} or its covariances are not finite. Leave it out, of "
            "both and of the names and contrasts."
        )
    dtype, scale = np.asarray(covariance).dtype, np.sqrt(np.abs(np.diagonal(matrix)))
    scale = np.where(scale > 0, scale, 1.0)  # so that units are none of the question
    relative = (matrix / np.outer(scale, scale)).astype(dtype if dtype.kind == "f" else float)
    if not is_symmetric(relative):
        i, j = np.unravel_index(np.argmax(np.abs(relative - relative.T)), matrix.shape)
        raise ValueError(
            f"the covariance of the estimates must be symmetric, got {matrix[i, j]:.6g} at "
            f"({i}, {j}) and {matrix[j, i]:.6g} at ({j}, {i}). If rounding made them differ, give "
            "(matrix + matrix.T) / 2."
        )
    return b, (matrix + matrix.T) / 2


def contrasts_of(
    contrasts: str | Any | None, k: int, names: Sequence[str] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The matrix of contrasts of k estimates, and their names."""
    groups = tuple(map(str, range(k) if names is None else names))
    if contrasts is None or isinstance(contrasts, str):
        if len(groups) != k:
            raise ValueError(
                f"simultaneous: names must be {k}, one for each estimate, got {len(groups)}."
            )
    if contrasts is None:
        return np.eye(k), groups
    if isinstance(contrasts, str):
        check_choice(
            contrasts, ("dunnett", "tukey"), "simultaneous: contrasts",
            ' "dunnett" compares each with the first, "tukey" all pairs; none needs another '
            "adjustment.", ", a matrix or None",
        )  # fmt: skip
        if k < 2:
            raise ValueError(f"{contrasts} compares groups: two estimates are needed, got {k}.")
        every = itertools.combinations(range(k), 2)
        pairs = [(i, j) for i, j in every if contrasts == "tukey" or i == 0]
        identity = np.eye(k)
        rows = np.stack([identity[j] - identity[i] for i, j in pairs])
        return rows, tuple(f"{groups[j]} - {groups[i]}" for i, j in pairs)
    own = tables.labels_of(contrasts)
    names = list(own.index) if names is None and own is not None else names
    rows = host_numbers(contrasts, "simultaneous: contrasts")
    if rows.ndim != 2 or rows.shape[1] != k:
        raise ValueError(f"contrasts of {k} estimates need shape (m, {k}), got {rows.shape}.")
    labels = tuple(map(str, range(len(rows)))) if names is None else tuple(map(str, names))
    if len(labels) != len(rows):
        raise ValueError(f"{len(labels)} names for {len(rows)} contrasts.")
    return rows, labels
