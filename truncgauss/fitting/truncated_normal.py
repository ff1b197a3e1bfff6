"""The Gaussian behind rows that were seen only inside limits."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution import distributed, parallel, pooling, tables
from truncgauss.execution.tables import Table
from truncgauss.fitting.held import hold
from truncgauss.fitting.intervals import check_num_profiles, with_intervals
from truncgauss.fitting.likelihood_fit import LikelihoodFit
from truncgauss.fitting.observations import fit_observations
from truncgauss.fitting.optimization.newton import NEAR, Chord, Point, newton_steps, point, verdict
from truncgauss.fitting.optimization.progress import bar, watched
from truncgauss.fitting.optimization.widening import WIDEST, Precision
from truncgauss.fitting.statistics import Statistics
from truncgauss.fitting.truncated_normal_end import finished
from truncgauss.fitting.truncated_normal_loss import (
    TruncatedLoss,
    gaussian,
    hessian_of,
    natural_parameters,
)
from truncgauss.fitting.truncated_normal_result import (
    GaussianErrors,
    TruncatedFit,
)
from truncgauss.fitting.truncated_normal_rows import (
    UNCHECKED,
    Sample,
    as_noise,
    as_rows,
    as_sample,
    as_weights,
    check_rows,
    check_statistics,
    columns_of,
    limits_of,
)
from truncgauss.gaussian.problem import as_key, as_problem
from truncgauss.gaussian.regions import Box
from truncgauss.likelihood import Observations
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.exact import Exact
from truncgauss.probability.method import Method
from truncgauss.probability.separation import Separation

ROUNDS = 10  # how often the method's plan may be made anew
ARRIVED = 1e-5  # standard errors: as near as a maximum with a held curvature is followed
NEAR_EXACT = 1e-3  # decrement from where the curvature of an exact loss is held
FEW_REPLICATES = 4  # for the curvature: standard errors were off by 4e-3 at most up to d = 5


UNUSED_START = (
    "The start is no covariance matrix, or too far from the sample; the sample's mean and "
    "covariance were used instead. The maximum does not depend on it."
)


def fit_truncated_normal(
    data: Any = None,
    low: Any = None,
    high: Any = None,
    *,
    statistics: Statistics | None = None,
    noise: Any = None,
    weights: Any = None,
    start: tuple[Any, Any] | None = None,
    method: Method = Automatic(),
    key: jax.Array | None = None,
    num_steps: int = 100,
    num_profiles: int = 10,
    progress: bool = True,
) -> TruncatedFit:
    """Maximum likelihood of loc and covariance of rows seen only inside limits.

    For rows x_i in the box B the log-likelihood is

        sum_i log N(x_i; loc, covariance) - n log P(X in B),

    a function of n, the mean and the scatter alone and concave in (covariance^-1 loc,
    covariance^-1): damped Newton steps there reach its maximum from any start, if there is one.
    There is none where the rows look as spread as an exponential or uniform
    distribution in the box; the likelihood then grows for ever as the Gaussian widens, and the fit
    says so. Everything happens in units of the sample's standard deviations, and in a time that
    does not depend on n.

    Rows with limits of their own, or measured with noise, are fitted one by one, as by
    `fit_observations`, whose coordinates are those of the covariance.

    Args:
        data: shape (n, d), or (n,) for one dimension; every row inside the limits. An array or a
            table, such as a DataFrame, all of whose columns are numbers.
        low: limits below, shape (d,) or a number; (n, d) for limits of each row, or (n,) if d = 1
            and n > 1. None or -inf leaves a side open. A dictionary or a Series goes by the names
            of the columns, of which it may leave some out.
        high: limits above, likewise.
        statistics: in place of data, `tg.Statistics` of the rows.
        noise: covariance of a row's measurement error: (d, d) for all rows, (n, d, d), or
            variances (n, d). The estimates are those without noise; the limits act on what was
            measured.
        weights: shape (n,): how often each row counts.
        start: (loc, covariance) to begin with; the sample's mean and covariance by default.
        method: how P is computed. The edge of a soft method is in standard units.
        key: its random key.
        num_steps: the most Newton steps.
        num_profiles: up to how many estimates get a profile interval in the table at once where
            their Wald intervals are not to be trusted. Each takes as long as one to three fits; 0
            for none: `profile(name)` has them later.
        progress: say on standard error what goes on, such as compiling, or the log-likelihood after
            each step, if the fit takes more than a second: in one line on a terminal, else in few.

    Returns:
        TruncatedFit.

    Raises:
        ValueError: for rows outside the limits, NaN, a constant or linearly dependent column, too
            few rows or wrong shapes. Nothing is dropped silently.

    Example:
        >>> rows = [[0.2], [0.9], [1.1], [0.4], [1.6], [0.3], [0.8], [1.2]]
        >>> fit = tg.fit_truncated_normal(rows, low=0.0)
        >>> fit.converged, fit.loc.round(3)
        (True, Array([0.717], dtype=float64))
        >>> parts = tg.Statistics.from_rows(rows[:3]) + tg.Statistics.from_rows(rows[3:])
        >>> tg.fit_truncated_normal(statistics=parts, low=0.0).loc.round(3)
        Array([0.717], dtype=float64)

    References:
        Cohen, "Truncated and Censored Samples" (1991).
    """
    check_num_profiles(num_profiles)
    settings: dict[str, Any] = dict(
        method=method, key=as_key(key), num_steps=num_steps, num_profiles=num_profiles,
        progress=progress,
    )  # fmt: skip
    if statistics is None:
        if data is None:
            raise ValueError("fit_truncated_normal: give data, or statistics.")
        share = pooling.share_of("fit_truncated_normal", (data, low, high, noise, weights))
        if share is not None:
            statistics = of_all_processes(share, data, weights, (low, high), noise)
            return fit_truncated_normal(
                None, low, high, statistics=statistics, start=start, **settings
            )
        with bar(None, "fit_truncated_normal", progress):
            return fit_table(tables.read(data), low, high, noise, weights, start, **settings)
    if not (data is None and noise is None and weights is None):
        raise ValueError(
            "fit_truncated_normal: statistics stand in place of data, noise and weights. Rows "
            "with noise have no statistics; weights belong to tg.Statistics.from_rows."
        )
    dtype = jnp.result_type(float)
    with jax.enable_x64(True), bar(None, "fit_truncated_normal", progress):
        limits = limits_of(low, high, Table(statistics.mean[None]))
        return fit_statistics(statistics, *limits, start, dtype, **settings)


def of_all_processes(
    share: pooling.Share, data: Any, weights: Any, limits: tuple[Any, Any], noise: Any
) -> Statistics:
    """The statistics of rows that are spread over processes.

    Raises:
        ValueError: for limits or noise of single rows.
    """
    if noise is not None or any(np.ndim(end) and len(end) == share.total for end in limits):
        raise ValueError(
            "fit_truncated_normal: rows with limits or noise of their own that are spread over "
            "processes are fitted by tg.fit_observations(tg.Observations.exact(rows, "
            "region=tg.Box(low, high), noise=noise, weights=weights))."
        )
    with pooling.pool(share), pooling.checked_together():
        own = Statistics.from_rows(share.own(data), share.own(weights))
    statistics: Statistics = sum(distributed.exchanged(own))
    return statistics


def fit_table(
    table: Table, low: Any, high: Any, noise: Any, weights: Any, start: Any, **settings: Any
) -> TruncatedFit:
    """The fit of the rows of a table."""
    dtype = jnp.result_type(table.values)
    with jax.enable_x64(True):  # half a dozen sums, where float32 would lose the curvature
        rows = as_rows(table)
        low, high = limits_of(low, high, table)
        check_rows(rows, low, high)
        weights = as_weights(weights, table)
        statistics = Statistics.from_rows(rows, weights)
        if noise is None and max(low.ndim, high.ndim) < 2:
            return fit_statistics(statistics, low, high, start, dtype, table, **settings)
        check_statistics(statistics, np.array([-np.inf]), np.array([np.inf]), table)
        noise = None if noise is None else as_noise(noise, table)
        names = columns_of(table, rows.shape[1])
        return fit_each_row(rows, low, high, noise, weights, names, start, dtype, **settings)


def fit_statistics(
    statistics: Statistics,
    low: Any,
    high: Any,
    start: Any,
    dtype: Any,
    table: Table | None = None,
    *,
    num_profiles: int,
    **settings: Any,
) -> TruncatedFit:
    """The fit of rows with shared limits, by natural parameters."""
    sample = as_sample(statistics, low, high, table)
    parallel.agreed("fit_truncated_normal: the rows and the start", (sample, start))
    unchecked = () if statistics.lowest is not None else (UNCHECKED,)
    own, _ = first_natural(sample, None)
    x, notes = first_natural(sample, start)
    result = fit_sample(sample, dtype, x, notes + unchecked, **settings)
    if not (result.converged or np.array_equal(x, own)):
        result = fit_sample(sample, dtype, own, (UNUSED_START, *unchecked), **settings)
    return with_intervals(result, num_profiles)


def fit_each_row(
    rows: np.ndarray, low: Any, high: Any, noise: Any, weights: Any, names: Any, start: Any,
    dtype: Any, **settings: Any,
) -> TruncatedFit:  # fmt: skip
    """The fit of rows with limits or noise of their own."""
    limited = np.isfinite(low).any() or np.isfinite(high).any()
    region = Box(*np.broadcast_arrays(low, high, rows[0])[:2]) if limited else None
    observations = Observations.exact(
        rows, region=region, noise=noise, weights=weights, names=names
    )
    fit = fit_observations(observations, start=start, **settings)
    shared = {field.name: getattr(fit, field.name) for field in dataclasses.fields(LikelihoodFit)}
    return TruncatedFit(
        loc=jnp.asarray(fit.loc, dtype),
        covariance_matrix=jnp.asarray(fit.covariance_matrix, dtype),
        standard_errors=GaussianErrors(
            np.concatenate(fit.standard_errors.coefficients), fit.standard_errors.covariance_matrix
        ),
        **shared,
    )


def fit_sample(
    sample: Sample,
    dtype: Any,
    x: np.ndarray,
    notes: tuple[str, ...],
    *,
    method: Method,
    key: Any,
    num_steps: int,
    progress: bool,
) -> TruncatedFit:
    """The fit of a sample in standard units from natural parameters x."""
    visited: list[Point] = []
    chord, precision = None, Precision.packed(len(sample.centre))
    for _ in range(ROUNDS):
        loss = held_loss(sample, x, method, key)
        rough = curvatures(loss)
        kept = None if chord is None else chord.kept
        near = NEAR if len(rough) > 1 else NEAR_EXACT
        chord = Chord(loss, rough, kept, near) if rough else None
        evaluate = chord or functools.partial(point, loss)
        here = evaluate(x)
        check_finite(here)
        moves = not verdict(here.decrement * sample.weight**0.5, 0)[0]
        left = num_steps - len(visited) + (not visited)
        close = ARRIVED / sample.weight**0.5 if len(rough) > 1 else 0.0
        stop = lambda here, close=close: precision.too_wide(here) or here.decrement < close
        steps = newton_steps(evaluate, here, left, stop=stop, admits=precision.admits)
        path = [here, *watched(steps, sample.weight, progress, sample.log_units)]
        if precision.too_wide(path[-1]):
            path.append(precision.settled_but_for_width(evaluate, path[-1], left))
        visited += path[bool(visited) :]
        here, x = path[-1], path[-1].x
        narrowed = len(path) > 1 and precision.too_wide(path[-2])
        again = moves and (loss.held.planned or narrowed)
        if not again or precision.too_wide(here) or len(visited) > num_steps:
            break
    here = here if chord is None else chord.renewed(here, FEW_REPLICATES)
    return finished(sample, loss, here, visited, notes, dtype)


def curvatures(loss: TruncatedLoss) -> tuple[Callable[[np.ndarray], np.ndarray], ...]:
    """Functions x -> about the loss's Hessian, cheaper than that: its differences where P is exact,
    and otherwise Hessians by single replicates, which are together as good for standard errors;
    none for a method that does not have more."""
    method = loss.held.method
    if isinstance(method, Exact):
        return (functools.partial(hessian_of, loss),)
    if not isinstance(method, Separation) or method.num_replicates <= FEW_REPLICATES:
        return ()
    alone = dataclasses.replace(method, num_replicates=1)
    keys = jax.random.split(loss.held.key, FEW_REPLICATES)
    held = [dataclasses.replace(loss.held, method=alone, key=key) for key in keys]
    losses = [dataclasses.replace(loss, held=own) for own in held]
    return tuple(lambda x, own=own: point(own, x).hessian for own in losses)


def first_natural(
    sample: Sample, start: tuple[Any, Any] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Packed natural parameters to begin with, and a note if they are not those asked for."""
    d = len(sample.centre)
    own = np.asarray(natural_parameters(np.zeros(d), np.eye(d)))
    if start is None:
        return own, ()
    loc, covariance = (np.asarray(part, np.float64) for part in start)
    if loc.shape != (d,) or covariance.shape != (d, d):
        raise ValueError(
            f"start must be (loc, covariance) of shapes ({d},) and ({d}, {d}), got {loc.shape} and "
            f"{covariance.shape}."
        )
    units = sample.scale[:, None] * np.asarray(sample.root)
    half = np.linalg.solve(units, covariance)
    white = np.linalg.solve(units, loc - sample.centre), np.linalg.solve(units, half.T)
    given = np.asarray(natural_parameters(*white))
    values = np.linalg.eigvalsh((white[1] + white[1].T) / 2)
    if not np.all(np.isfinite(given)) or values[0] < WIDEST**-2 or values[-1] > WIDEST**2:
        return own, (UNUSED_START,)
    return given, ()


def held_loss(sample: Sample, x: np.ndarray, method: Method, key: Any) -> TruncatedLoss:
    """The loss, with the method's plan made at natural parameters x."""
    loc, covariance = gaussian(jnp.asarray(x), sample.root)
    # A method that sees zeros may take independence for a property of every covariance to come.
    covariance = np.asarray(covariance)
    small = 1e-7 * np.sqrt(np.outer(*[np.diagonal(covariance)] * 2))
    dense = np.where(covariance == 0, small, covariance)
    problem = as_problem(loc, dense, sample.region)
    if isinstance(method, Automatic):  # by shapes, for the same reason
        method = method.choice(problem)
    held = hold(method, key, problem)
    return TruncatedLoss(sample.root, sample.region, held, jnp.asarray(sample.weight))


def check_finite(here: Point) -> None:
    if not here.finite:
        raise ValueError(
            "fit_truncated_normal: the likelihood or its derivatives are not finite at the start "
            f"(loss {here.loss}). The method cannot see the rows' region; use tg.Automatic(), or "
            "more samples."
        )
