"""Sample selection: an outcome that is observed where a probit of other covariates says so."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import tables
from truncgauss.arrays.linalg import namespace
from truncgauss.arrays.progress import reported
from truncgauss.arrays.pytrees import as_float_array, frozen_pytree
from truncgauss.covariates.outliers import Outliers, outliers_of
from truncgauss.covariates.predictions import (
    Prediction,
    Predictions,
    between,
    limit_of,
    prediction_of,
)
from truncgauss.covariates.whitening import Whitened, whitened
from truncgauss.fits.gaussian.linear_gaussian import GaussianCoordinates
from truncgauss.fits.gaussian.observations_fit import (
    GaussianRows,
    ObservationsErrors,
    ObservationsFit,
    names_of,
)
from truncgauss.fits.probit import mills_of, probit
from truncgauss.fitting.descent import SAME, Path
from truncgauss.fitting.engine import check_settings, maximum_likelihood
from truncgauss.fitting.least_squares import least_squares
from truncgauss.fitting.likelihood_fit import Ending
from truncgauss.fitting.newton import lowest_within
from truncgauss.likelihood.observations import Observations
from truncgauss.tables.columns import ONE_COLUMN
from truncgauss.words.names import listed

CORRELATIONS = ((0.0,), (0.5,), (-0.5,), (0.9,), (-0.9,))  # of further starts
PAIRS = ((0.7, 0.7), (0.7, -0.7), (-0.7, 0.7), (-0.7, -0.7))  # of two regimes
# Rows up to which the likelihood may grow towards rho = 1 or -1 beyond a valley, and starts there.
FEW, EDGES, EDGE_PAIRS = 200, ((0.999,), (-0.999,)), tuple(np.multiply(PAIRS, 0.999 / 0.7))
DESIGNS = ("selection_design", "design", "unselected_design")
LARGEST = 0.95  # correlation of a start
NO_ERROR = 1e-9  # distance of rho from 1 or -1, where it has no maximum inside
AT_THE_EDGE = 12.0  # athrho, at less than that distance
EDGE_STEPS = 30  # most Newton steps with one rho at an edge, before it moves
EDGE = 1e-3  # distance of rho from 1 or -1 that is said
EXCLUDED = 1e-8  # part of a covariate that others do not explain, below which they do
UNKNOWN = "Whether an observation is selected must be known: 1 or 0, True or False."
NOT_EXCLUDED = (
    "No covariate of the selection is left out of the outcome{}: what is known of rho rests on the "
    "curvature of the inverse Mills ratio alone, and so on the Gaussian shape of the errors."
)
AT_EDGE = (
    "rho is at the edge of its range, {:.6g}{}: there the errors of the outcome are a multiple of "
    "those of the selection, and standard errors and Wald intervals do not hold."
)
NO_MAXIMUM = (
    "There is no maximum: the likelihood grows as {}, where the errors of the outcome are a "
    "multiple of those of the selection."
)


class TwoStep(NamedTuple):
    """Heckman's two-step estimate: a probit of the selection, and least squares of the outcome on
    its covariates and the inverse Mills ratio of the first.

    Attributes:
        selection_coefficients: of the probit, (q,).
        coefficients: of the outcome, (p,).
        rho: lambda / sigma, which need not lie between -1 and 1.
        sigma: standard deviation of the outcome's errors.
        lambda_: the coefficient of the inverse Mills ratio, rho sigma.
    """

    selection_coefficients: np.ndarray
    coefficients: np.ndarray
    rho: float
    sigma: float
    lambda_: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionFit(ObservationsFit):
    """A selection model, and how far to trust it; `print` shows a table.

    Attributes, besides those of `fitting.ObservationsFit`, whose outcomes are the latent variable
    of the selection and then the outcome, or those of the two regimes:
        two_steps: Heckman's two-step estimate of each outcome, by which the first start is made;
            none of binary outcomes.
    """

    two_steps: tuple[TwoStep, ...] = ()

    @property
    def two_step(self) -> TwoStep:
        """The two-step estimate of the outcome where it is selected."""
        if not self.two_steps:
            raise AttributeError("two_step: binary outcomes have none.")
        return self.two_steps[0]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of predictions: of binary outcomes the probabilities that they are 1."""
        means = "mean", "mean_observed", "observed", "latent"
        return (*means, "probability", "quantile") if self.two_steps else means

    @property
    def num_unlimited(self) -> int:
        """The latent variable of the selection."""
        return 1

    def predict(self, new: Any = None, kind: str = "mean", **settings: Any) -> Predictions:
        """Predictions of P(selected) and of the outcome, with errors and intervals.

        Args:
            new: covariates of m rows, see `RowsFit.predict`: one table that has those of both
                equations, or a tuple of two, of the selection and of the outcome.
            kind: "mean", P(selected) and the mean of the outcome in all rows, selected or not;
                "mean_observed", P(selected) and the mean of the outcome given that the row is
                selected; "observed", P(selected) alone; "latent", z g and x b, the means of the
                latent variables; "probability" of low < outcome < high in all rows; "quantile" of
                an outcome in all rows. A binary outcome has the probability that it is 1 for a
                mean, and neither "probability" nor "quantile".
            settings: as of `RowsFit.predict`. `low` and `high` are of the outcome, numbers or
                (m,); of two regimes (2,) or (m, 2). With `known` there is no column of P(selected).

        Returns:
            Predictions, with value (m, 2), or (m, 3) of two regimes, whose second outcome is given
            that the row is not selected by "mean_observed"; (m,) for one thing alone.

        Example:
            >>> rng = np.random.default_rng(0)
            >>> x, z, u, e = rng.normal(size=(4, 500))
            >>> wage, employed = 1.0 + x + u + e, 0.5 * x + z + u > 0
            >>> design = {"constant": np.ones(500), "x": x}
            >>> fit = tg.fit_selection(wage, design, employed, design | {"z": z})
            >>> new = {"constant": 1.0, "x": 0.0, "z": [-1.0, 1.0]}
            >>> for kind in ("mean", "mean_observed"):
            ...     made = fit.predict(new, kind)
            ...     print(made.outcomes, made.value.round(2).tolist())
            ('P(selected)', 'outcome') [[0.17, 1.11], [0.84, 1.11]]
            ('P(selected)', 'outcome | selected') [[0.17, 2.46], [0.84, 1.37]]

        References:
            Stata's `predict` after `heckman`: psel, xb, ycond, xbsel are P(selected), "mean",
            "mean_observed", and the first column of "latent".
        """
        if kind == "quantile" and len(self.two_steps) == 1:
            settings = {"entry": 1, **settings}
        return super().predict(new, kind, **settings)

    def predictions(
        self, kind: str, shape: tuple[int, ...], known: Observations | None, limits: Any
    ) -> tuple[tuple[Prediction, ...], tuple[str, ...]]:
        assert self.observations is not None
        (n, d), (selected, *outcomes) = shape, self.observations.labels
        some = any(end is not None for end in limits)
        if kind == "probability" and some:  # of each outcome by itself: no row knows of two
            low, high = (
                limit_of(end, (n, d - 1), far) for end, far in zip(limits, (-np.inf, np.inf))
            )
            each = []
            for j in range(1, d):
                own = np.arange(d) == j
                ends = (
                    np.where(own, low[:, j - 1 : j], -np.inf),
                    np.where(own, high[:, j - 1 : j], np.inf),
                )
                each.append(prediction_of(self, kind, shape, known, ends))
            return tuple(each), tuple(outcomes)
        if kind not in ("mean", "mean_observed", "observed"):
            return super().predictions("mean" if kind == "latent" else kind, shape, known, limits)
        if some:
            raise ValueError(f'{kind}: takes neither low nor high, which are for "probability".')
        share = Prediction(None, kind="positive", entry=0)
        if kind == "observed" and known is None:
            return (share,), ()
        given = prediction_of(self, kind, shape, known, limits).rows
        parts, labels = [share], [f"P({selected})"]
        for j, outcome in enumerate(outcomes, 1):
            condition = f" | {'not ' * (j == 2)}{selected}" if kind == "mean_observed" else ""
            if condition:
                low, high = np.full((2, n, d), [[[-np.inf]], [[np.inf]]])
                (low if j == 1 else high)[:, 0] = 0.0
                given = between(low, high)
            if self.two_steps:
                part, label = Prediction(given, entry=j), outcomes[0] if condition else outcome
            else:
                label = "P(" + (outcomes[0] if condition else outcome)
                part = Prediction(None, kind="positive", entry=j)
                if given is not None:
                    low = np.where(np.arange(d) == j, 0.0, -np.inf)
                    part = prediction_of(self, "probability", shape, given, (low, None))
            parts.append(part)
            labels.append(label + condition + ")" * (not self.two_steps))
        first = int(known is not None)
        return tuple(parts[first:]), tuple(labels[first:])

    def __str__(self) -> str:
        assert self.observations is not None
        lines = [
            f"two-step estimate of {label}: coefficients {numbers_of(step.coefficients)}; rho "
            f"{step.rho:.6g}, sigma {step.sigma:.6g}, lambda {step.lambda_:.6g}"
            for label, step in zip(self.observations.labels[1:], self.two_steps)
        ]
        return "\n".join([super().__str__(), *lines])


def numbers_of(values: np.ndarray) -> str:
    """Numbers of six digits, with commas between them."""
    return ", ".join(f"{value:.6g}" for value in values)


@reported
def fit_selection(
    outcome: Any,
    design: Any = None,
    selected: Any = None,
    selection_design: Any = None,
    *,
    data: Any = None,
    binary: bool = False,
    unselected_design: Any = None,
    weights: Any = None,
    start: Mapping[str, Any] | None = None,
    num_steps: int = 100,
    num_starts: int | None = None,
    information: str = "observed",
    cluster: Any = None,
    num_profiles: int = 10,
    progress: bool = True,
) -> SelectionFit:
    """Full maximum likelihood of an outcome that is observed only where a row is selected.

    Row i is selected where z_i . g + u_i > 0, with u_i ~ Normal(0, 1), and has the outcome
    y_i = x_i . b + e_i, with e_i ~ Normal(0, sigma^2) of correlation rho with u_i (Heckman). With
    `binary` the outcome is whether that is positive, and sigma is 1 (a probit with selection). With
    `unselected_design` rows that are not selected have an outcome too, by a regression with
    coefficients, sigma and rho of its own: two regimes (Roy's model, a switching regression); the
    correlation of the two outcomes is in no row, and their errors are taken as independent given
    u_i.

    The likelihood may have several maxima, so that several starts are always made: from the
    two-step estimate, and from correlations between -0.9 and 0.9; of up to 200 rows then with a rho
    of -0.999 and 0.999, and all else as is best beside it. All maxima that they reach are listed in
    `notes`, and the fit is the highest.

    All options go together. A `cluster` needs information="sandwich".

    Args:
        outcome: (n,); where a row is not selected its value does not matter, and may be NaN. With
            `binary` 0 and 1, or False and True. Or a formula such as "wage ~ age * education",
            which has the design too, see `tables.formula`; and so may the selection be,
            "employed ~ age + children".
        design: covariates x_i, (n, p), with a column of ones if a constant is meant; a table's
            column names become those of the estimates. Where the outcome is not observed they are
            not used, and may be missing (NaN), such as the tenure of those who do not work.
        selected: 1 or True where the row is selected, else 0 or False, (n,).
        selection_design: covariates z_i, likewise.
        data: the table of the formulas' columns.
        binary: whether the outcome is a probit.
        unselected_design: covariates of the outcome of the rows that are not selected.
        weights: shape (n,): how often each row counts.
        start: {"coefficients": one array an equation, the selection first, "covariance": of their
            errors}, as `dict(fit.parameters())` of another fit; others are tried if the steps from
            there do not converge.
        num_steps: the most Newton steps from each start.
        num_starts: from how many points to begin; by default 6, or 5 of binary outcomes; of two
            regimes 5, or 4, of few rows 4 more. Then of few rows, for each rho, 2 from the best end
            that these have, and from the best maximum where that is another.
        information: what standard errors come from: "observed" or "sandwich", see
            `fit_observations`.
        cluster: (n,), labels of groups of rows that belong together, or the name of a column of
            the data, for the sandwich.
        num_profiles: up to how many estimates get a profile interval in the table at once, see
            `fit_observations`.
        progress: say on standard error what goes on, if the fit takes more than a second.

    Returns:
        SelectionFit, with rho, sigma, lambda = rho sigma and athrho = artanh(rho) among the
        estimates.

    Raises:
        ValueError: for a selection that is constant, an outcome that is missing where the row is
            selected, columns of different lengths, collinear covariates, or no more rows than
            parameters. Nothing is dropped silently.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x, z, u, e = rng.normal(size=(4, 500))
        >>> wage, employed = 1.0 + x + u + e, 0.5 * x + z + u > 0
        >>> design = {"constant": np.ones(500), "x": x}
        >>> fit = tg.fit_selection(wage, design, employed, design | {"z": z})
        >>> fit.converged, fit.names[5:], fit.estimates[5:].round(2)
        (True, ('rho', 'sigma', 'lambda', 'athrho'), array([0.68, 1.35, 0.92, 0.83]))

    References:
        Heckman, "Sample selection bias as a specification error", Econometrica (1979).
        Van de Ven and Van Praag, "The demand for deductibles in private health insurance: A probit
            model with sample selection", Journal of Econometrics (1981).
    """
    check_settings(information, num_profiles, cluster)
    data, outcome, design, selected, selection_design, unselected_design, weights, cluster = (
        tables.in_one_order(
            "fit_selection", data=data, outcome=outcome, design=design, selected=selected,
            selection_design=selection_design, unselected_design=unselected_design,
            weights=weights, cluster=cluster,
        )
    )  # fmt: skip
    pairs = (selected, selection_design), (outcome, design), (None, unselected_design)
    index = tables.labels_of((data, *pairs, weights, cluster))
    with jax.enable_x64(True):
        model = model_of(pairs, data, binary, weights, information == "sandwich")
        few = num_starts is None and model.observations.num_rows <= FEW
        model = dataclasses.replace(model, edges=few)
        fit: SelectionFit = maximum_likelihood(
            model,
            start=None if start is None else model.as_start(start),
            num_steps=num_steps,
            num_starts=num_starts,
            information=information,
            num_profiles=num_profiles,
            progress=progress,
            cluster=tables.column_or(cluster, data, "fit_selection: cluster"),
        )
    return fit.with_labels(index)


def refuse_texts(selected: Any, name: str, data: Any) -> None:
    """Raise ValueError for texts that say whether rows are selected, also in a column of data."""
    column = selected if data is None else (tables.named_columns(data) or {}).get(name, selected)
    cells = () if isinstance(column, str) else np.asarray(column, object).ravel()
    texts = sorted({str(cell) for cell in cells if isinstance(cell, str)})
    if texts:
        raise ValueError(
            f"fit_selection: {name or 'selected'} holds texts: {listed(texts, '', quoted=True)} "
            f"Give True and False, such as by column == {texts[-1]!r}."
        )


def refuse_two_formulas(first: Any, second: Any, data: Any) -> None:
    """Raise ValueError for two formulas in the places of the outcome and its design. That of the
    selection is the one whose left side is 0 and 1, or else has no gaps where the other has some.
    """
    texts = [x for x in (first, second) if isinstance(x, str) and x.partition("~")[0].strip()]
    if len(texts) < 2 or not all("~" in text for text in texts):
        return
    columns, kinds = tables.named_columns(data) or {}, []
    for text in texts:
        left = [columns[x] for x in tables.names_in(text.partition("~")[0], columns)]
        parts = [(np.asarray(column), tables.is_missing(column)) for column in left]
        known = [cell for cells, absent in parts for cell in cells[~absent].tolist()]
        complete = not any(absent.any() for _, absent in parts)
        kinds.append((bool(known) and all(x in (0, 1) for x in known), complete))
    which = "outcome=..., selected=..."
    if kinds[0] != kinds[1]:
        which = "outcome={!r}, selected={!r}".format(*texts[:: 1 if kinds[0] < kinds[1] else -1])
    raise ValueError(
        f"fit_selection: of two formulas the names say which is which: {which}, data=table."
    )


def model_of(
    pairs: Sequence[tuple[Any, Any]], data: Any, binary: bool, weights: Any, each: bool
) -> "SelectionModel":
    """The model of the selection, the outcome and what rows that are not selected have, each with
    its design, checked."""
    what = "fit_selection"
    refuse_two_formulas(*pairs[1], data)
    names = [x.partition("~")[0].strip() if isinstance(x, str) else "" for x, _ in pairs[:2]]
    labels = names[0] or "selected", names[1] or "outcome"
    labels = labels if labels[0] != labels[1] else ("selected", "outcome")
    if not binary:
        tables.check_outcome(*pairs[1], what, data)
    refuse_texts(pairs[0][0], names[0], data)
    selected, selection_design = tables.by_formula(*pairs[0], data, what)
    if selection_design is None:
        raise ValueError(f"fit_selection: needs a {DESIGNS[0]}, or a formula in its place.")
    if selected is None:
        raise ValueError(
            "fit_selection: needs selected, True where the outcome is observed and else False, "
            "such as selected=table['wage'].notna()."
        )
    values = tables.numbers(selected, "fit_selection: selected", advice=UNKNOWN)
    if weights is not None:
        weights = tables.each_row(weights, len(values), "fit_selection: weights")
    if not np.isin(values, (0.0, 1.0)).all():
        wrong = values[~np.isin(values, (0.0, 1.0))][0]
        kinds = np.unique(values)
        cure = f" Write the one that means it is, such as selected == {kinds[-1]:g}."
        raise ValueError(
            f"fit_selection: selected must hold 0 and 1, or booleans, got {wrong:g}."
            f"{cure * (len(kinds) == 2)}"
        )
    counted = values if weights is None else values[weights > 0]
    if len(np.unique(counted)) < 2:
        all_or_none = "All" if counted.any() else "None"
        raise ValueError(
            f"fit_selection: {all_or_none} of the {len(counted)} observations are selected, so "
            "that nothing is known of the selection. Use fit_regression, or give the observations "
            "that were left out."
        )
    where = values == 1.0
    (outcome, design), (_, unselected_design) = (
        read_where(pair, data, side) for pair, side in zip(pairs[1:], (where, ~where))
    )
    if design is None:
        raise ValueError(f"fit_selection: needs a {DESIGNS[1]}, or a formula in its place.")
    sides = [where] if unselected_design is None else [where, ~where]
    lower, upper = [np.where(where, 0.0, -np.inf)], [np.where(where, np.inf, 0.0)]
    for side in sides:
        values = seen_outcome(outcome, side, binary)
        low = np.where(values > 0, 0.0, -np.inf) if binary else values
        high = np.where(values > 0, np.inf, 0.0) if binary else values
        lower.append(np.where(side, low, -np.inf))
        upper.append(np.where(side, high, np.inf))
    ends = [as_float_array(np.column_stack(side)) for side in (lower, upper)]
    each_label = labels if len(sides) == 1 else (*labels, f"{labels[1]}, not {labels[0]}")
    rows = Observations(ends[0], ends[1], weights=weights, names=each_label)
    given = selection_design, design, unselected_design
    parts = zip(given, DESIGNS, [where | True, *sides])
    designs = tuple(covariates_of(*part, weights) for part in parts)
    template = np.diag([1.0, *[1.0 if binary else np.nan] * len(sides)])
    template[0, 1:] = template[1:, 0] = np.nan
    model = SelectionModel.of(rows, designs, template, what=what, each=each)
    if len(model.first) >= rows.num_known:
        raise ValueError(
            f"fit_selection: {rows.num_known} observation(s) cannot determine "
            f"{len(model.first)} parameters; more are needed, or fewer covariates."
        )
    old = model.inner
    inner = SelectionCoordinates(old.fixed, old.sizes, old.scales, old.pairs, old.power)
    names_now = names_of(rows, model.centred, inner)
    model = dataclasses.replace(model, inner=inner, names=names_now)
    steps, starts = starts_of(rows, designs, sides, binary)
    guesses = tuple(model.coordinates.free(*start) for start in starts)
    return dataclasses.replace(model, steps=steps, guesses=guesses, first=guesses[0])


# ---------------------------------------------------------------- the rows


def read_where(pair: tuple[Any, Any], data: Any, side: np.ndarray) -> tuple[Any, Any]:
    """An outcome and its design, where one may be a formula; where rows are not on its side and
    lack a covariate both are NaN, as nothing there is used."""
    text = next((x for x in (pair[1], pair[0]) if isinstance(x, str)), "")
    formula = "~" in text or isinstance(pair[1], str)
    columns = (tables.named_columns(data) if formula else None) or {}
    lacking, gaps = np.zeros(len(side), bool), {}
    for name in tables.names_in(text.rpartition("~")[2], columns):
        absent = tables.is_missing(columns[name])
        if absent.shape == side.shape:
            lacking, gaps[name] = lacking | (~side & absent), side & absent
    if not lacking.any():
        return tables.by_formula(*pair, data, "fit_selection")
    kept = np.flatnonzero(~lacking)
    some = {name: tables.taken(x, kept) for name, x in columns.items()}
    try:
        outcome, design = tables.by_formula(*pair, some, "fit_selection")
    except ValueError as error:
        for name, absent in gaps.items():  # by the numbers of all rows
            if absent.any():
                cure = f"table[table[{name!r}].notna() | (selected == {int(pair[0] is None)})]"
                words = tables.gaps(f"the covariate {name!r}", absent, cure)
                raise ValueError(f"fit_selection: {words}, or complete them.") from error
        raise

    def whole(values: np.ndarray) -> np.ndarray:
        every = np.full(len(side), np.nan)
        every[kept] = values
        return every

    encoder, source, levels = design._encoder
    # The columns that the formula reads, complete: the effects that ask for them refuse these rows.
    complete = np.where(lacking, kept[0], np.arange(len(side)))
    source = {name: tables.taken(columns[name], complete) for name in source}
    everywhere = {x: whole(values) for x, values in design.items()}
    made = tables.Design(everywhere, encoder, None, source, levels)
    return whole(outcome) if isinstance(pair[0], str) else outcome, made


def seen_outcome(outcome: Any, side: np.ndarray, binary: bool) -> np.ndarray:
    """The outcome (n,), 0 in rows where it does not matter; elsewhere none may be missing."""
    values = tables.numbers(outcome, "fit_selection: outcome", missing=True)
    if len(values) != len(side):
        raise ValueError(
            f"fit_selection: outcome has {len(values)} rows, but selected has {len(side)}."
        )
    wrong = np.flatnonzero(side & ~np.isfinite(values))
    if len(wrong):
        cure = (
            "Mark them as not selected only if the selection equation describes them; otherwise "
            "remove them."
        )
        if np.array_equal(side, ~np.isfinite(values)):
            cure = "All other rows have it: is `selected` the wrong way round? Pass ~selected."
        raise ValueError(
            f"fit_selection: the outcome is missing in {len(wrong)} of the {side.sum()} rows where "
            f"it should be observed, first row {wrong[0]}. {cure}"
        )
    values = np.where(side, values, 0.0)
    if binary and not np.isin(values, (0.0, 1.0)).all():
        wrong = values[~np.isin(values, (0.0, 1.0))]
        raise ValueError(f"fit_selection: a binary outcome must be 0 or 1, got {wrong[0]:g}.")
    return values


def covariates_of(design: Any, name: str, side: np.ndarray, weights: Any) -> Whitened:
    """Covariates with mean squares of 1, checked in all rows and in those where they matter; in the
    others they may be missing, where their means in the former stand in for them."""
    table = tables.read(design, what=f"fit_selection: {name}", missing=True)
    if table.values.ndim != 2 or len(table.values) != len(side):
        got, cure = table.values.shape, ""
        if len(got) == 1:
            cure = f" {ONE_COLUMN.format(name)}"
        raise ValueError(
            f"fit_selection: {name} must have shape ({len(side)}, p), got {got}.{cure}"
        )
    values = np.asarray(table.values, np.float64)
    wrong = np.argwhere(~np.isfinite(values) & (side[:, None] | np.isinf(values)))
    if len(wrong):
        row, column = wrong[0]
        label = "" if table.names is None else f", column {table.names[column]!r}"
        raise ValueError(
            f"fit_selection: {name} holds NaN or infinity{label}, first in row {row}. Only the "
            "covariates of an outcome may be missing, in rows where it is not observed."
        )
    filled = np.where(np.isnan(values), values[side].mean(axis=0), values)
    if not side.all():
        some = None if weights is None else weights[side]
        words = f"fit_selection: in the rows where it matters, the columns of {name}"
        whitened(table._replace(values=values[side]), some, words)
    words = f"fit_selection: the columns of {name}"
    return whitened(table._replace(values=filled), weights, words)._replace(columns=values)


# ---------------------------------------------------------------- the model


@frozen_pytree
class SelectionCoordinates(GaussianCoordinates):
    """Free coordinates of a selection equation of variance 1 and of outcomes that depend on each
    other through its errors alone: coefficients, the logarithms of the sigmas, and athrho."""

    def deviations(self, rest: Any) -> tuple[Any, Any]:
        """Sigma and athrho of each outcome."""
        xp, k = namespace(rest), len(self.scales)
        return xp.exp(rest[:k]) if k else xp.ones(len(self.sizes) - 1), rest[k:]

    def covariance(self, rest: Any) -> Any:
        with np.errstate(over="ignore", invalid="ignore"):  # of steps too long, which are rejected
            sigma, athrho = self.deviations(rest)
            return self.matrix_of(sigma, namespace(rest).tanh(athrho))

    def of_estimates(self, estimates: jax.Array) -> tuple[tuple[jax.Array, ...], jax.Array]:
        *coefficients, rest = jnp.split(estimates, np.cumsum(self.sizes))
        rho, *more = rest.reshape(len(self.sizes) - 1, -1).T
        return tuple(coefficients), self.matrix_of(more[0] if self.scales else jnp.ones(1), rho)

    def matrix_of(self, sigma: Any, rho: Any) -> Any:
        xp = namespace(rho)
        loadings = xp.concatenate([xp.ones(1), sigma * rho])
        variances = xp.concatenate([xp.ones(1), sigma**2 * xp.ones(len(self.sizes) - 1)])
        products = loadings[:, None] * loadings
        return xp.where(np.eye(len(self.sizes), dtype=bool), variances, products)

    def names(self, linear: bool, labels: tuple[str, ...]) -> list[str]:
        each = ("rho", "sigma", "lambda", "athrho") if self.scales else ("rho", "athrho")
        coefficients = super().names(linear, labels)[: sum(self.sizes)]
        several = len(self.sizes) > 2
        ends = [f"[{label}]" if several else "" for label in labels[1:]]
        return [*coefficients, *(f"{name}{end}" for end in ends for name in each)]

    def estimates(self, x: jax.Array) -> jax.Array:
        count = sum(self.sizes)
        sigma, athrho = self.deviations(x[count:])
        rho = jnp.tanh(athrho)
        each = [rho, sigma, rho * sigma, athrho] if self.scales else [rho, athrho]
        return jnp.concatenate([x[:count], jnp.stack(each, axis=1).ravel()])


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionModel(GaussianRows):
    """Rows of a selection equation and its outcomes.

    Attributes, besides those of `GaussianRows`:
        steps: of each outcome, the two-step estimate; none of binary outcomes.
        guesses: free coordinates to begin with.
        edges: whether to begin also where a rho is at an edge of its range and the rest is best
            there.
    """

    inner: SelectionCoordinates
    steps: tuple[TwoStep, ...] = ()
    guesses: tuple[np.ndarray, ...] = ()
    edges: bool = False
    function = "fit_selection"

    def starts(self, count: int | None) -> list[np.ndarray]:
        count = len(self.guesses) if count is None else count
        more = self.scattered(max(count - len(self.guesses), 0))
        return [*self.guesses[:count], *more]

    def images(self, x: np.ndarray) -> list[np.ndarray]:
        """The highest points where each rho is at an edge in turn, from the others of x."""
        if not self.edges:
            return []
        starts, points = [], self.points(self.loss_at(x))
        for j, (rho,) in itertools.product(range(-len(self.rho(x)), 0), EDGES):
            start = x.copy()
            start[j] = np.arctanh(rho)
            others = np.delete(np.eye(len(x)), j, axis=1)
            starts.append(lowest_within(points, start, others, EDGE_STEPS).x)
        return starts

    def judged(self, path: Path, total: Any, converged: bool) -> tuple[float, Outliers | None]:
        """As of other rows; also where rho ends at 1 or -1, as it may because of such rows."""
        if converged or not path.end.finite or not self.inner.scales:
            return super().judged(path, total, converged)
        loc, covariance = path.loss.gaussian(path.end.x)
        rows = self.centred.rows
        return 1.0, outliers_of(rows, loc, covariance, np.ones(1), self.num_fitted)

    def rho(self, x: np.ndarray) -> np.ndarray:
        """The correlation of each outcome with the selection."""
        return np.tanh(self.inner.deviations(x[sum(self.inner.sizes) :])[1])

    # ---------------------------------------------------------------- the end of a path

    def obstacle(self, path: Path) -> str | None:
        rising = self.rising()
        if rising is not None:
            return rising
        rho = self.rho(path.end.x)
        gaps = 1.0 - np.abs(rho)
        near = (
            j
            for j in map(int, np.flatnonzero(gaps < EDGE))
            if gaps[j] < NO_ERROR or self.rises(path, j)
        )
        edge = list(near)
        if not edge:
            return None
        each = [f"rho{self.ends()[j]} tends to {np.sign(rho[j]):+.0f}" for j in edge]
        return NO_MAXIMUM.format(" and ".join(each))

    def rises(self, path: Path, j: int) -> bool:
        """Whether the likelihood is as high as where a path ended with rho j at its edge."""
        x, number = path.end.x.copy(), len(path.end.x) - len(self.rho(path.end.x)) + j
        x[number] = np.sign(x[number]) * AT_THE_EDGE
        others = np.delete(np.eye(len(x)), number, axis=1)
        best = lowest_within(self.points(self.loss_at(x)), x, others, EDGE_STEPS)
        return bool(best.loss <= path.end.loss)

    def ends(self) -> list[str]:
        """Suffixes of the names of rho: none of one outcome."""
        labels = self.observations.labels[1:]
        return [f"[{label}]" for label in labels] if len(labels) > 1 else [""]

    def other_maxima(self, ending: Ending, path: Path) -> tuple[str, ...]:
        maxima: list[Path] = []
        for other in sorted(filter(lambda other: other.arrived, path.others), key=self.rank):
            gaps = (abs(other.end.loss - known.end.loss) for known in maxima)
            if all(gap * float(path.loss.size) > SAME for gap in gaps):
                maxima.append(other)
        sentences = super().other_maxima(ending, path)
        if len(maxima) < 1 + path.arrived:
            return sentences
        each = (
            f"log-likelihood {-float(path.loss.size) * one.end.loss:.8g} with rho "
            f"{numbers_of(self.rho(one.end.x))}"
            for one in maxima
        )
        return (*sentences, f"The maxima: {'; '.join(each)}.")

    def notes(self, ending: Ending, common: tuple[str, ...], path: Path) -> tuple[str, ...]:
        designs, rho, notes = self.centred.designs, self.rho(path.end.x), []
        assert designs is not None
        for j, (end, design) in enumerate(zip(self.ends(), designs[1:])):
            projected = least_squares(design.design, designs[0].design)
            residual = designs[0].design - design.design @ projected
            if np.abs(residual).max() < EXCLUDED * np.abs(designs[0].design).max():
                notes.append(NOT_EXCLUDED.format(end))
            if ending.converged and 1.0 - abs(rho[j]) < EDGE:
                notes.append(AT_EDGE.format(rho[j], f" of{end}" if end else ""))
        return (*super().notes(ending, common, path), *notes)

    def result(self, ending: Ending, path: Path) -> SelectionFit:
        count, d = sum(self.inner.sizes), len(self.inner.sizes)
        ends, matrix = np.cumsum(self.inner.sizes), self.inner.values(path.end.x)[1]
        errors = np.full((d, d), np.inf)  # the covariance of two regimes is in no row
        rows = ending.errors[count:].reshape(d - 1, -1)
        widths = 2.0 * np.diagonal(matrix)[1:] ** 0.5 * rows[:, 1] if self.inner.scales else 0.0
        errors[np.diag_indices(d)] = np.append(0.0, np.broadcast_to(widths, d - 1))
        errors[0, 1:] = errors[1:, 0] = rows[:, 2 if self.inner.scales else 0]
        each = ending.estimates, ending.errors
        parts = (tuple(np.split(values[:count], ends[:-1])) for values in each)
        return SelectionFit(
            **vars(ending),
            **self.kept_rows,
            coefficients=next(parts),
            covariance_matrix=matrix,
            standard_errors=ObservationsErrors(next(parts), errors),
            two_steps=self.steps,
            limits=((0.0, *[-np.inf] * (d - 1)), None),  # selected
        )


# ---------------------------------------------------------------- the starts


def starts_of(
    rows: Observations, designs: tuple[Whitened, ...], sides: list[np.ndarray], binary: bool
) -> tuple[tuple[TwoStep, ...], list[tuple[np.ndarray, np.ndarray]]]:
    """Two-step estimates of the outcomes, none of binary ones, and the starts, theirs first:
    coefficients of all equations, and the covariance, in the user's units.

    They come from least squares of each outcome and of the inverse Mills ratio on the outcome's
    covariates: coefficients of both, mean squares and product of their residuals, and the mean of
    1 - the variance of the selection's error.
    """
    lower, weights = np.asarray(rows.lower), rows.row_weights
    part = probit(designs[0].design, lower[:, 0] >= 0, weights)
    moments = mills_of(designs[0].design @ part, np.where(lower[:, 0] >= 0, 1.0, -1.0))
    fits, selection = [], designs[0].transform @ part
    for j, (side, design) in enumerate(zip(sides, designs[1:]), 1):
        columns, of_rows = design.design[side], weights[side]
        if binary:
            part = probit(columns, lower[side, j] >= 0, of_rows)
            fits.append((design.transform @ part, np.zeros(len(part)), np.eye(2), 0.0))
            continue
        both, root = np.stack([lower[side, j], moments[0][side]], axis=1), np.sqrt(of_rows)[:, None]
        parts = np.linalg.lstsq(root * columns, root * both, rcond=None)[0]
        left, size = root * (both - columns @ parts), of_rows.sum()
        shrinkage = float(of_rows @ moments[1][side] / size)
        pair = design.transform @ parts
        fits.append((pair[:, 0], pair[:, 1], left.T @ left / size, shrinkage))
    steps = []
    for own, of_mills, squares, shrinkage in [] if binary else fits:
        (square, product), (_, mills) = squares.tolist()
        slope = product / mills if mills > EXCLUDED**2 else np.nan  # the ratio is linear there
        sigma = (square - slope * product + slope**2 * shrinkage) ** 0.5
        steps.append(TwoStep(selection, own - slope * of_mills, slope / sigma, sigma, slope))
    limited = [tuple(np.clip(np.nan_to_num(step.rho), -LARGEST, LARGEST) for step in steps)]
    starts = []
    inner, outer = (CORRELATIONS, ()) if len(sides) == 1 else (PAIRS, EDGE_PAIRS)
    for rho in (*limited[: len(steps)], *inner, *(outer if len(lower) <= FEW else ())):
        coefficients, sigmas = [selection], []
        for (own, of_mills, squares, shrinkage), r in zip(fits, rho):  # of errors so correlated
            sigmas.append((squares[0, 0] / (1.0 - r**2 * shrinkage)) ** 0.5)
            coefficients.append(own - r * sigmas[-1] * of_mills)
        matrix = np.diag([1.0, *np.square(sigmas)])
        matrix[0, 1:] = matrix[1:, 0] = np.multiply(rho, sigmas)
        starts.append((np.concatenate(coefficients), matrix))
    return tuple(steps), starts
