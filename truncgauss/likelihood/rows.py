"""The log-likelihood of observed rows, given a Gaussian."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import tables
from truncgauss.arrays.compiling import Compiled, closed_form
from truncgauss.arrays.keys import as_key
from truncgauss.arrays.linalg import in_full_precision, is_symmetric
from truncgauss.arrays.progress import reported
from truncgauss.arrays.pytrees import Estimate, is_concrete
from truncgauss.gaussian.covariances import Covariance, CovarianceMatrix
from truncgauss.gaussian.problem import as_problem
from truncgauss.gaussian.regions.box import Box
from truncgauss.likelihood.conditioning import Integrals
from truncgauss.likelihood.integrals import HeldMethods, held, joined, kind_of, probabilities
from truncgauss.likelihood.nested import NODES, NestedQuadrature
from truncgauss.likelihood.observations import Observations, as_observations, check_names
from truncgauss.likelihood.patterns import Pattern
from truncgauss.likelihood.row_blocks import filled_up, first_rows
from truncgauss.likelihood.terms import outside, terms_of
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.exact import Exact
from truncgauss.probability.method import Method
from truncgauss.special.tails import undefined
from truncgauss.words.arguments import explained

LARGE = 2**12  # entries of covariances that are looked at whether they are singular


class RowTerms(NamedTuple):
    """The two terms of each row's log-likelihood, (n,) each, without its weight.

    Attributes:
        data: log density and probability of what the row shows; -inf if it is impossible.
        region: log P(Y in R), 0 without a region.
        data_variance, region_variance: of their sampling errors.
    """

    data: jax.Array
    region: jax.Array
    data_variance: jax.Array
    region_variance: jax.Array


@reported
@in_full_precision
def log_likelihood(
    observations: Observations,
    loc: Any,
    covariance: Any,
    method: Method = Automatic(),
    key: jax.Array | None = None,
) -> Estimate:
    """The log-likelihood of each observed row under Normal(loc, covariance), and its error.

    With E the exact entries of a row y, I the others and their intervals, R its region and S the
    covariance plus the row's noise,

        log N(y_E; loc_E, S_EE) + log P(Y_I in I and Y in R | Y_E = y_E) - log P(Y in R),

    times its weight: the Tobit model, truncated regression, interval data, multivariate probit and
    doubly truncated samples are cases of it. The sum over rows is the log-likelihood of a sample,
    to be given to `numpyro.factor`, a sampler or an optimiser.

    Args:
        observations: n rows of d entries.
        loc: mean, shape (d,), or (n, d) for one a row.
        covariance: (d, d), (n, d, d), or an object such as `tg.ScaleTril`.
        method: how probabilities are computed. `Automatic` sees shapes alone, here and under a
            trace: integrals over up to three dimensions are exact, others by `Separation`, with
            16 replicates of 1024 points for up to 64 rows and 4 of 1024 to 32 points for more.
            `likelihood.hold` fixes plans.
        key: JAX random key. Each row gets its own, made of its number, so that the errors of rows
            are independent.

    Returns:
        Estimate(log_prob, stderr), each (n,). A row is -inf if it is
        impossible: an exact entry outside its region, or an interval that does not meet it. Rows
        with the same integral, such as that of a common region, share its error: see
        `likelihood.total_log_likelihood` for the error of the sum.

    Raises:
        ValueError: for shapes that disagree or a covariance that is none.

    Example:
        >>> seen_above_zero = tg.Box([0.0], [jnp.inf])
        >>> rows = tg.Observations.exact([0.5, 1.5], region=seen_above_zero)
        >>> tg.log_likelihood(rows, [1.0], [[1.0]]).log_prob.round(6)
        Array([-0.871185, -0.871185], dtype=float64)

    References:
        Tobin, "Estimation of relationships for limited dependent variables", Econometrica (1958).
        Little and Rubin, "Statistical Analysis with Missing Data" (2019), for entries missing at
        random.
    """
    if isinstance(covariance, Covariance):
        rows = as_observations(observations, "log_likelihood").unnamed()
        check_columns(rows, loc, covariance, "log_likelihood")
        check_names(observations, loc=loc)
        own = covariance.log_likelihood(rows, loc, method, as_key(key))
        if own is not None:
            return own
    parts = with_density(*prepared(observations, loc, covariance))
    return _log_likelihood(*parts, method, as_key(key))[0]


def total_log_likelihood(
    observations: Observations,
    loc: Any,
    covariance: Any,
    method: Method = Automatic(),
    key: jax.Array | None = None,
) -> Estimate:
    """The log-likelihood of all rows together, with the standard error of that sum.

    Errors of different integrals add as squares; the error of an integral that many rows share,
    such as that of a common region, counts as often as it is used. Arguments as in
    `log_likelihood`.

    Example:
        >>> rows = tg.Observations.exact([0.5, 1.5], region=tg.Box([0.0], [jnp.inf]))
        >>> tg.likelihood.total_log_likelihood(rows, [1.0], [[1.0]]).log_prob.round(6)
        Array(-1.74237, dtype=float64)
    """
    parts = with_density(*prepared(observations, loc, covariance))
    rows, error, _ = _log_likelihood(*parts, method, as_key(key))
    return Estimate(jnp.sum(rows.log_prob), error)


@explained
def fraction_not_truncated(
    observations: Observations,
    loc: Any,
    covariance: Any,
    method: Method = Automatic(),
    key: jax.Array | None = None,
) -> jax.Array:
    """P(a row like this lies in its region), (n,): what of the Gaussian could have been seen.

    1 for rows without a region or without any entry. Arguments as in `log_likelihood`.

    Example:
        >>> rows = tg.Observations.exact([0.5, 1.5], region=tg.Box([[0.0], [1.0]], jnp.inf))
        >>> tg.likelihood.fraction_not_truncated(rows, [0.0], [[1.0]]).round(4)
        Array([0.5   , 0.1587], dtype=float64)
    """
    problem = prepared(observations, loc, covariance)
    region, others, count = problem[0].region, (method, as_key(key)), problem[0].num_rows
    if region is None or not region.answers_points or not is_concrete(others):
        return jnp.exp(_log_likelihood(*problem, *others)[2])
    Method.check_kind(method)
    return first_rows(_of_regions(*filled_problem(*problem), *others), count)


@reported
def hold(method: Method, observations: Observations, loc: Any, covariance: Any) -> HeldMethods:
    """The method with its plans fixed for these observations and parameters.

    Given to `log_likelihood`, and with one key, that is one smooth function of its parameters,
    whose gradient is exactly its own.

    Example:
        >>> rows = tg.Observations([[0.0] * 4], [[jnp.inf] * 4])
        >>> loc, covariance = jnp.zeros(4), 0.5 * (jnp.eye(4) + 1.0)
        >>> method = tg.likelihood.hold(tg.Separation(), rows, loc, covariance)
        >>> tg.log_likelihood(rows, loc, covariance, method).log_prob.round(3)  # log(1 / 5)
        Array([-1.609], dtype=float64)
    """
    if not isinstance(method, Method):
        raise TypeError(
            "hold: the order is (method, observations, loc, covariance), and the method an object, "
            f"such as tg.Separation(), not a class; got {method!r:.60}."
        )
    return held_for_key(method, observations, loc, covariance, None)


def held_for_key(
    method: Method, observations: Observations, loc: Any, covariance: Any, key: jax.Array | None
) -> HeldMethods:
    """As `hold`; with the key of the calls to come points of importance sampling are drawn here,
    once, unless they are too many to be kept.

    Such points know nothing of a region that moves: this is for fits in which it does not.
    """
    observations, loc, covariance = prepared(observations, loc, covariance)
    sizes = box_sizes(observations)
    plain = covariance.is_dense
    small = plain and sizes is not None and max(sizes, default=0) <= 2
    if small and isinstance(method, Automatic | Exact):  # exact, whatever the numbers
        return HeldMethods({f"{d}": Exact() for d in sizes or ()})
    problem = filled_problem(observations, loc, covariance)
    return held(method, _integrals(*problem, as_key(key)), drawn=key is not None)


def box_sizes(observations: Observations) -> dict[int, int] | None:
    """The dimensions of the boxes over which a likelihood integrates, and at most how many there
    are of each; None if there are other regions, or not known."""
    patterns = observations.patterns
    if not observations.has_limits_alone or patterns is None:
        return None
    sizes: dict[int, int] = {}
    for pattern in (*patterns, *(observations.region_patterns or ())):
        d = len(pattern.limited)
        sizes[d] = sizes.get(d, 0) + len(pattern.rows)
    return {d: count for d, count in sizes.items() if d > 0}


def nested_quadratures(observations: Observations, most: float) -> HeldMethods | None:
    """Quadratures that are quick to compile for all integrals of a likelihood, which are NaN where
    they do not reach; None if there are others than boxes in up to four dimensions, or more than
    `most` nodes."""
    sizes = box_sizes(observations)
    if sizes is None or not 1 < max(sizes, default=0) <= max(NODES):
        return None
    if sum(count * NODES[d] ** (d - 1) for d, count in sizes.items()) > most:
        return None
    return HeldMethods({f"{d}": NestedQuadrature() for d in sizes})


@functools.partial(Compiled, cost=closed_form)
def _integrals(
    observations: Observations, loc: jax.Array, covariance: Covariance, key: jax.Array
) -> dict[str, Integrals]:
    """The integrals of a likelihood, of each kind."""
    terms = terms_of(observations, loc, covariance, key)
    return integrals_by_kind([term.integrals for term in terms])


def check_columns(observations: Observations, loc: Any, covariance: Any, what: str) -> None:
    """Raise ValueError unless a mean and a covariance are of the columns of observations."""
    n, d = observations.lower.shape
    last = covariance.dimension if isinstance(covariance, Covariance) else np.shape(covariance)[-1:]
    for name, size in (("loc", np.shape(loc)[-1:]), ("covariance", last)):
        if any(np.reshape(size, -1) != d):
            cure = "a coordinate for each column"
            if np.max(size) == n:
                cure += f"; {n} values that are observed together are one row, low[None] of (n,)"
            raise ValueError(
                f"{what}: the observations have {d} column(s), {name} {np.max(size)}. Give "
                f"loc the shape ({d},) and covariance ({d}, {d}), {cure}."
            )


def prepared(
    observations: Observations, loc: Any, covariance: Any, what: str = "log_likelihood"
) -> tuple[Observations, jax.Array, Covariance]:
    """The arguments of a likelihood, checked and in one dtype."""
    n, d = as_observations(observations, what).lower.shape
    check_names(observations, region=observations.region, loc=loc, covariance=covariance)
    if np.ndim(loc) == 2:
        loc = tables.in_one_order(what, observations=observations, loc=loc)[1]
    observations = observations.unnamed()
    check_columns(observations, loc, covariance, what)
    # As rows of a box without limits, which says nothing.
    infinity = np.full(d, np.inf, observations.lower.dtype)
    everywhere = Box(-infinity, infinity)
    loc, covariance, _ = as_problem(loc, covariance, everywhere)
    for name, batch in (("loc", loc.shape[:-1]), ("covariance", covariance.batch_shape)):
        if batch not in ((), (n,)):
            raise ValueError(
                f"{what}: {name} has leading axes {batch}, expected () or ({n},), one for each row."
            )
    if covariance.is_matrix and not is_concrete(covariance.covariance_matrix):
        matrix = covariance.covariance_matrix  # one triangle alone was refused if it is known
        covariance = CovarianceMatrix(undefined(~is_symmetric(matrix)[..., None, None], matrix))
    floats = [leaf for leaf in jax.tree.leaves(observations) if is_number(leaf)]
    if any(leaf.dtype != loc.dtype for leaf in floats):
        convert = lambda leaf: leaf.astype(loc.dtype) if is_number(leaf) else leaf
        observations = jax.tree.map(convert, observations)
    return observations, loc, covariance


def with_density(
    rows: Observations, loc: jax.Array, covariance: Covariance
) -> tuple[Observations, jax.Array, Covariance]:
    """The same; ValueError for a covariance that is singular on the exact entries of some row,
    which have no density then. Large ones are not looked at; under a trace the result is NaN."""
    same = rows, loc, covariance
    if covariance.is_matrix and is_concrete(same) and rows.noise is None:
        matrix = np.asarray(covariance.covariance_matrix)
        if matrix.size <= LARGE and np.isfinite(matrix).all():
            try:
                np.linalg.cholesky(matrix)  # the usual case
            except np.linalg.LinAlgError:
                from truncgauss.likelihood.row_names import refuse_singular

                refuse_singular(rows, matrix)
    return same


def is_number(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def integrals_by_kind(integrals: list[Integrals | None]) -> dict[str, Integrals]:
    """All integrals of each kind, in one batch."""
    kinds: dict[str, list[Integrals]] = {}
    for part in integrals:
        if part is not None:
            kinds.setdefault(kind_of(part), []).append(part)
    return {kind: joined(parts) for kind, parts in kinds.items()}


def evaluated(integrals: list[Integrals | None], method: Method) -> list[Estimate | None]:
    """The estimates of all integrals, those of one kind together."""
    results = {
        kind: probabilities(
            integrals_of_kind, method.of(kind) if isinstance(method, HeldMethods) else method
        )
        for kind, integrals_of_kind in integrals_by_kind(integrals).items()
    }
    used = dict.fromkeys(results, 0)
    estimates: list[Estimate | None] = []
    for part in integrals:
        if part is None:
            estimates.append(None)
            continue
        kind = kind_of(part)
        begin, used[kind] = used[kind], used[kind] + len(part.loc)
        part_rows = slice(begin, used[kind])
        estimates.append(Estimate(*(leaf[part_rows] for leaf in results[kind])))
    return estimates


def row_terms(
    observations: Observations,
    loc: jax.Array,
    covariance: Covariance,
    method: Method,
    key: jax.Array,
    equal: bool = False,
    *,
    of_region: bool = False,
) -> RowTerms:
    """The terms of the data and of the region of each row, unweighted; or of the region alone.

    Arguments as `prepared` and `terms_of`.
    """
    n, dtype = observations.num_rows, loc.dtype
    zeros = jnp.zeros(n, dtype)
    if observations.observed is not None:
        from truncgauss.likelihood import dropout  # which other rows do not need

        limits = observations.observed, observations.lower, observations.upper
        log_observed = dropout.log_observed(*limits)
        few = (covariance.num_factors or 0) <= dropout.MOST_FACTORS
        if few and covariance.num_factors is not None and isinstance(method, Automatic | Exact):
            value, error = dropout.by_factors(*limits, loc, covariance)
            return RowTerms(value + log_observed, zeros, error**2, zeros)
    by_sign: dict[float, list[Any]] = {1.0: [], -1.0: []}
    terms = terms_of(observations, loc, covariance, key, equal)
    terms = [term for term in terms if term.sign < 0] if of_region else terms
    for term, estimate in zip(terms, evaluated([term.integrals for term in terms], method)):
        value, rows = term.density, term.pattern.destinations
        squares = jnp.zeros(len(rows), dtype)
        if estimate is not None:
            value = value + term.pattern.for_rows(estimate.log_prob)
            squares = term.pattern.for_rows(jax.lax.stop_gradient(estimate.stderr**2))
        by_sign[term.sign].append((rows, value, squares))

    def together(parts: list[Any]) -> tuple[jax.Array, jax.Array]:
        if not parts:
            return zeros, zeros
        rows, *numbers = map(jnp.concatenate, zip(*parts))
        value, variance = (zeros.at[rows].add(x) for x in numbers)
        return value, variance

    (data, data_variance), (region, region_variance) = map(together, by_sign.values())
    data = jnp.where(outside(observations), -jnp.inf, data)
    if observations.observed is not None:
        data += log_observed
    return RowTerms(data, region, data_variance, region_variance)


def variance_of_sum(
    observations: Observations,
    terms: RowTerms,
    on_data: jax.Array,
    on_region: jax.Array,
    shared: bool = True,
) -> jax.Array:
    """The variance of a sum over rows, of which each takes its two terms so often, (n,) each.

    The error of an integral that rows share counts as often as all of these take it. None is shared
    if each row has a Gaussian of its own.
    """
    total = jnp.zeros((), terms.data.dtype)
    parts = (
        (observations.patterns, terms.data_variance, on_data),
        (observations.region_patterns, terms.region_variance, on_region),
    )
    for patterns, variance, often in parts:
        for pattern in patterns or ():
            pattern = pattern if shared else pattern.each_by_itself()
            uses = often.at[pattern.destinations].get(mode="fill", fill_value=0.0)
            if pattern.kind is not None and pattern.first is not None:  # of each integral
                none = jnp.zeros(len(pattern.first), uses.dtype)
                uses = none.at[pattern.kind].add(uses)
            total += jnp.sum(variance[pattern.representatives] * uses**2)
    return total


@Compiled
def _evaluated(
    observations: Observations,
    loc: jax.Array,
    covariance: Covariance,
    method: Method,
    key: jax.Array,
) -> tuple[Estimate, jax.Array, jax.Array]:
    """The weighted rows, the standard error of their sum, and log P(Y in R) of each row."""
    weights = observations.weights
    weights = jnp.ones(observations.num_rows, loc.dtype) if weights is None else weights
    terms = row_terms(observations, loc, covariance, method, key)
    impossible = terms.data == -jnp.inf
    value = jnp.where(impossible, -jnp.inf, terms.data - terms.region)
    value = jnp.where(weights == 0, 0.0, weights * value)
    value += 0.0 * sum(jnp.sum(leaf) for leaf in jax.tree.leaves((loc, covariance)))  # NaN stays
    shared = loc.ndim == 1 and not covariance.batch_shape
    error = jnp.sqrt(variance_of_sum(observations, terms, weights, weights, shared))
    spread = jnp.sqrt(terms.data_variance + terms.region_variance)
    return Estimate(value, weights * spread), error, terms.region


@Compiled
def _of_regions(*problem: Any) -> Any:
    """P(Y in R) of each row."""
    return jnp.exp(row_terms(*problem, of_region=True).region)


def _log_likelihood(
    observations: Observations, loc: jax.Array, covariance: Covariance, *others: Any
) -> tuple[Estimate, jax.Array, jax.Array]:
    """`_evaluated` of rows filled up to one of few lengths."""
    Method.check_kind(others[0])
    problem = observations, loc, covariance
    if is_concrete(others):
        problem = filled_problem(*problem)
    results = _evaluated(*problem, *others)
    result: tuple[Estimate, jax.Array, jax.Array] = first_rows(results, observations.num_rows)
    region: Any = observations.region
    if region and not region.answers_points and is_concrete((observations, result)):
        region.check_enough("log_likelihood", observations.weights, *result[0])
    return result


def filled_problem(
    observations: Observations, loc: jax.Array, covariance: Covariance
) -> tuple[Observations, jax.Array, Covariance]:
    """The arguments of a likelihood, filled up to one of few lengths, see `filled_up`."""
    locs = loc if loc.ndim == 2 else None
    covariances = covariance if covariance.batch_shape else None
    rows, locs, covariances = filled_up(observations, locs, covariances)
    loc = loc if locs is None else locs
    return rows, loc, covariance if covariances is None else covariances


class RowSlopes(NamedTuple):
    """Derivatives of one term of each row by mean, (n, d), and covariance matrix, (n, d, d)."""

    by_loc: jax.Array
    by_matrix: jax.Array


def row_slopes(
    observations: Observations, loc: jax.Array, matrix: jax.Array, method: Method, key: jax.Array
) -> tuple[RowTerms, RowSlopes, RowSlopes]:
    """The terms of each row, unweighted, and the derivatives of those of the data and the region.

    Each row gets a Gaussian of its own, of which one backward pass has all derivatives. Integrals
    that rows share are shared too: the first row of each kind has their derivatives, and the
    others get them from it.

    Args:
        observations: n rows.
        loc: mean of all rows, (d,).
        matrix: their covariance matrix, (d, d).
        method, key: as in `row_terms`.
    """
    n, d = observations.lower.shape

    def both(locs: jax.Array, matrices: jax.Array) -> tuple[tuple[jax.Array, ...], RowTerms]:
        covariance = CovarianceMatrix(matrices)
        terms = row_terms(observations, locs, covariance, method, key, equal=True)
        return (terms.data, terms.region), terms

    rows = jnp.broadcast_to(loc, (n, d)), jnp.broadcast_to(matrix, (n, d, d))
    _, pulled, terms = jax.vjp(both, *rows, has_aux=True)
    nothing = jnp.zeros(n, loc.dtype)
    is_first, source = _sources(observations.patterns or (), nothing)
    data = RowSlopes(*(leaf[source] for leaf in pulled((is_first, nothing))))
    is_first, source = _sources(observations.region_patterns or (), nothing)
    region = RowSlopes(*(leaf[source] for leaf in pulled((nothing, is_first))))
    return terms, data, region


def _sources(patterns: tuple[Pattern, ...], nothing: jax.Array) -> tuple[jax.Array, jax.Array]:
    """1 for rows whose integral is computed, 0 for others, and the row that has that of each,
    (n,)."""
    is_first, source = nothing, jnp.arange(len(nothing), dtype=jnp.int32)
    for pattern in patterns:
        is_first = is_first.at[pattern.representatives].set(1.0)
        source = source.at[pattern.destinations].set(pattern.for_rows(pattern.representatives))
    return is_first, source
