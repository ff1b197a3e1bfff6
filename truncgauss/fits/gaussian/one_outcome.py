"""The loss of one outcome whose mean, and perhaps log scale, is linear in covariates.

A row's log-likelihood depends on the parameters through two numbers, so that gradient and Hessian
over any number of covariates come from five derivatives of each row and products with the designs.

Reference:
    McCullagh and Nelder (1989), Generalized Linear Models, section 2.5, for one predictor.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays import parallel
from truncgauss.arrays.compiling import Compiled
from truncgauss.arrays.pytrees import Estimate, frozen_pytree, static_field
from truncgauss.fitting.least_squares import products_of
from truncgauss.fitting.newton import Loss
from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.patterns import filled_length
from truncgauss.special.normal import log_interval_mass
from truncgauss.special.tails import LOG_SQRT_2PI, hazard, hazard_excess, log_ndtr, standardize

# Links by which a mean and a scale follow from the predictors u and v of a row.
LOG = 0  # mean u, scale exp(v)
OLSEN = 1  # mean u / v, scale 1 / v: concave for censored rows (Olsen, 1978)
NATURAL = 2  # mean u / v, variance 1 / v: concave for exact rows (Barndorff-Nielsen, 1978)

LARGE = 2**17  # rows, each of which may move a maximum by next to nothing

# Kinds of terms of the likelihood: the log density of exact rows, the log mass of the intervals of
# others, or that of the regions in which rows are seen.
DENSITY, INTERVAL, REGION = range(3)


class Derivatives(NamedTuple):
    """A row's log-likelihood (m,) with its derivatives by its two predictors."""

    value: jax.Array
    mean: jax.Array
    scale: jax.Array
    mean_mean: jax.Array
    mean_scale: jax.Array
    scale_scale: jax.Array


@frozen_pytree
class Term:
    """Contributions of rows to the log-likelihood: a log density, or the log mass of an interval.

    Attributes:
        lower, upper: (t,), equal where the term is a density.
        weight: (t,), negative for the regions that the likelihood is divided by.
        noise: (t,) variances, or None.
        rows: (t,), to which predictors each belongs; None if to all in order.
        kind: DENSITY, INTERVAL or REGION (static).
        half_open: whether each interval has one infinite end (static).
        design: covariates of these rows, (t, p), where they are kept apart from those of all.
        products: sums of w c c^T over densities, with c = (covariates, outcome), (p + 1, p + 1),
            by which they are known then.
    """

    lower: jax.Array
    upper: jax.Array
    weight: jax.Array
    noise: jax.Array | None
    rows: jax.Array | None
    kind: int = static_field()
    half_open: bool = static_field(default=False)
    design: jax.Array | None = None
    products: jax.Array | None = None

    def __call__(self, u: jax.Array, v: jax.Array, link: int) -> jax.Array:
        """The terms (t,), by their predictors; rows are shared among `parallel.rows`."""
        values = lambda term, u, v: term._values(u, v, link)
        return parallel.over_rows(values, (self, u, v), (0, 0, 0 if jnp.ndim(v) else None))

    def _values(self, u: jax.Array, v: jax.Array, link: int) -> jax.Array:
        if self.half_open:
            return self.weight * log_ndtr(self._beyond(u, v, link))
        loc, scale = self._gaussian(u, v, link)
        if self.kind == DENSITY:
            z = (self.lower - loc) / scale
            value = -0.5 * z**2 - jnp.log(scale) - LOG_SQRT_2PI
        else:
            value = log_interval_mass(*standardize(self.lower, self.upper, loc, scale))
        return self.weight * value

    def _gaussian(self, u: jax.Array, v: jax.Array, link: int) -> tuple[jax.Array, jax.Array]:
        """Mean and standard deviation of what is observed."""
        loc, scale = gaussian_of(u, v, link)
        return loc, scale if self.noise is None else jnp.sqrt(scale**2 + self.noise)

    def _beyond(self, u: jax.Array, v: jax.Array, link: int) -> jax.Array:
        """x with mass Phi(x) of each half-open interval: how far its mean lies inside."""
        loc, scale = self._gaussian(u, v, link)
        below = jnp.isinf(self.lower)
        return jnp.where(below, self.upper - loc, loc - jnp.where(below, loc, self.lower)) / scale

    def derivatives(self, u: jax.Array, v: jax.Array, link: int) -> Derivatives:
        """The terms (t,), with their derivatives by the predictors."""
        derivatives = lambda term, u, v: term._derivatives(u, v, link)
        return parallel.over_rows(derivatives, (self, u, jnp.broadcast_to(v, u.shape)), (0, 0, 0))

    def _derivatives(self, u: jax.Array, v: jax.Array, link: int) -> Derivatives:
        if not self.half_open:
            return derivatives_of(lambda u, v: self._values(u, v, link), u, v)
        x = derivatives_of(lambda u, v: self._beyond(u, v, link), u, v)
        slope, w = hazard(-x.value), self.weight
        bend = -slope * hazard_excess(-x.value)
        return Derivatives(
            w * log_ndtr(x.value),
            w * slope * x.mean,
            w * slope * x.scale,
            w * (slope * x.mean_mean + bend * x.mean * x.mean),
            w * (slope * x.mean_scale + bend * x.mean * x.scale),
            w * (slope * x.scale_scale + bend * x.scale * x.scale),
        )

    def condensed(self, design: np.ndarray) -> "Term":
        """The same term with its own covariates, of those of all rows, or with its products."""
        rows = None if self.rows is None else np.asarray(self.rows)
        if self.kind == DENSITY:
            weight, outcome = np.asarray(self.weight), np.asarray(self.lower)
            products = products_of(design, -outcome, weight, rows)
            return replace(self, products=jax.device_put(products))
        return self if rows is None else replace(self, design=jax.device_put(design[rows]))


def derivatives_of(
    function: Callable[[jax.Array, jax.Array], jax.Array], u: jax.Array, v: jax.Array
) -> Derivatives:
    """The values (m,) of an elementwise function of u and v, with its derivatives."""
    one, zero = jnp.ones_like(u), jnp.zeros_like(u)
    along = {"u": (one, zero), "v": (zero, one)}

    def slopes(u: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        value, by_u = jax.jvp(function, (u, v), along["u"])
        return value, by_u, jax.jvp(function, (u, v), along["v"])[1]

    (value, by_u, by_v), (_, by_uu, by_uv) = jax.jvp(slopes, (u, v), along["u"])
    by_vv = jax.jvp(slopes, (u, v), along["v"])[1][2]
    return Derivatives(value, by_u, by_v, by_uu, by_uv, by_vv)


def gaussian_of(u: jax.Array, v: jax.Array, link: int) -> tuple[jax.Array, jax.Array]:
    """Mean and standard deviation of rows, by their predictors; NaN where there is none."""
    if link == LOG:
        return u, jnp.exp(v)
    v = jnp.where(v > 0, v, jnp.nan)
    return u / v, v ** (-1.0 / link)


@frozen_pytree
class RegressionLoss(Loss):
    """Minus the mean log-likelihood of a row, by x: coefficients of u, then of v.

    Attributes:
        terms: of the log-likelihood.
        design: covariates of u (m, p), m rows or 1.
        scale_design: covariates of v (m, k); None if v is one number.
        fixed_scale: v if it is known, else None.
        size: the total weight of the rows.
        link: LOG, OLSEN or NATURAL (static).
    """

    terms: tuple[Term, ...]
    design: jax.Array
    scale_design: jax.Array | None
    fixed_scale: jax.Array | None
    size: jax.Array
    link: int = static_field()
    method = None

    def predictors(self, x: jax.Array, term: Term | None = None) -> tuple[jax.Array, jax.Array]:
        """The predictors u and v of all rows, or of those of a term; one number of scale stays
        one."""
        p = self.design.shape[1]
        own = None if term is None else term.design
        u, v = (self.design if own is None else own) @ x[:p], self._scales(x[p:])
        if own is not None or term is None or term.rows is None:
            return u, v
        return u[term.rows], v[term.rows] if v.ndim else v

    def _scales(self, rest: jax.Array) -> jax.Array:
        if self.fixed_scale is not None:
            return self.fixed_scale
        return rest[0] if self.scale_design is None else self.scale_design @ rest

    def condensed(self) -> "RegressionLoss":
        """The same loss where each step takes one pass over the rows that are not exact: of many
        rows of one scale without noise."""
        noisy = any(term.noise is not None for term in self.terms)
        if len(self.design) < LARGE or self.scale_design is not None or noisy:
            return self
        design = np.asarray(self.design)
        return replace(self, terms=tuple(term.condensed(design) for term in self.terms))

    def gaussian(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The mean (m, 1) and the variance (m, 1, 1) of rows, or (1,) and (1, 1) of all."""
        return gaussian_at(self, x)

    def total(self, x: jax.Array) -> Estimate:
        total = sum((self._sum_of(term, x) for term in self.terms), jnp.zeros((), x.dtype))
        return Estimate(total, jnp.zeros_like(total))

    def _sum_of(self, term: Term, x: jax.Array) -> jax.Array:
        if term.products is None:
            return jnp.sum(term(*self.predictors(x, term), self.link))
        p = self.design.shape[1]
        loc, scale = gaussian_of(x[:p], self._scales(x[p:]), self.link)
        residual = jnp.append(loc, 1.0) / scale  # of c, whose products these are
        constant = jnp.sum(term.weight) * (jnp.log(scale) + LOG_SQRT_2PI)
        return -0.5 * residual @ term.products @ residual - constant

    def of_rows(self, x: jax.Array) -> Derivatives:
        """The log-likelihood of each row (m,), times its weight, and its derivatives."""
        total = Derivatives(*(jnp.zeros(len(self.design), x.dtype) for _ in Derivatives._fields))
        for term in self.terms:
            parts = term.derivatives(*self.predictors(x, term), self.link)
            if term.rows is None:
                total = Derivatives(*(a + b for a, b in zip(total, parts)))
            else:
                total = Derivatives(*(a.at[term.rows].add(b) for a, b in zip(total, parts)))
        return total

    def scores(self, x: jax.Array) -> jax.Array:
        rows = self.of_rows(x)
        return jnp.concatenate([rows.mean[:, None] * self.design, self._by_scale(rows.scale)], 1)

    def _by_scale(self, slopes: jax.Array) -> jax.Array:
        """Slopes by v (m,) as slopes by its coefficients, (m, k)."""
        if self.fixed_scale is not None:
            return jnp.zeros((len(slopes), 0), slopes.dtype)
        column = slopes[:, None]
        return column if self.scale_design is None else column * self.scale_design

    def derivatives(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        if any(term.products is not None or term.design is not None for term in self.terms):
            parts = []
            for term in self.terms:
                if term.products is None:
                    rows = term.derivatives(*self.predictors(x, term), self.link)
                    design = self.design if term.design is None else term.design
                    parts.append(self._sums_over(rows, design))
                else:
                    sum_of = functools.partial(self._sum_of, term)
                    parts.append((sum_of(x), jax.grad(sum_of)(x), jax.hessian(sum_of)(x)))
            value, gradient, hessian = (sum(part[1:], part[0]) for part in zip(*parts))
        else:
            value, gradient, hessian = self._sums_over(self.of_rows(x), self.design)
        return -value / self.size, -gradient / self.size, -hessian / self.size

    def _sums_over(self, rows: Derivatives, design: jax.Array) -> tuple[jax.Array, ...]:
        """The sum of log-likelihoods, its gradient and its Hessian, from those of rows with such
        covariates."""
        gradient = jnp.concatenate([rows.mean @ design, jnp.sum(self._by_scale(rows.scale), 0)])
        corner = design.T @ (rows.mean_mean[:, None] * design)
        side = design.T @ self._by_scale(rows.mean_scale)
        if self.scale_design is None:
            last = jnp.sum(self._by_scale(rows.scale_scale), 0)[:, None]
            last = last[:, : side.shape[1]]
        else:
            last = self.scale_design.T @ self._by_scale(rows.scale_scale)
        hessian = jnp.block([[corner, side], [side.T, last]])
        return jnp.sum(rows.value), gradient, hessian


@Compiled
def fractions_of(loss: RegressionLoss, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean probabilities that a row could not be seen, and that it could, of rows in
    regions."""
    unseen = seen = jnp.zeros((), x.dtype)
    for term in loss.terms:
        if term.kind == REGION:
            log_mass = replace(term, weight=jnp.ones_like(term.weight))
            masses = jnp.exp(log_mass(*loss.predictors(x, term), loss.link))
            unseen -= jnp.sum(term.weight * (1.0 - masses))
            seen -= jnp.sum(term.weight * masses)
    return unseen / loss.size, seen / loss.size


@Compiled
def gaussian_at(loss: RegressionLoss, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    loc, scale = gaussian_of(*loss.predictors(x), loss.link)
    if len(loss.design) == 1:
        return loc, scale.reshape(1, 1) ** 2
    return loc[:, None], jnp.broadcast_to(scale, loc.shape)[:, None, None] ** 2


def terms_of(observations: Observations, each: bool) -> tuple[Term, ...]:
    """The terms of the log-likelihood of rows of one outcome.

    Args:
        observations: the rows, with numbers.
        each: whether rows have different predictors; else all have the same, and equal
            integrals are asked for once.
    """

    def full(part: np.ndarray, by: float) -> jax.Array:
        rest = np.full(filled_length(len(part)) - len(part), by, part.dtype)
        return jax.device_put(np.append(part, rest))

    n = observations.num_rows
    lower, upper, low, high = observations.univariate_limits()
    weight = observations.row_weights
    noise: np.ndarray | None = None
    if observations.noise is not None:
        noise = np.broadcast_to(np.asarray(observations.noise).reshape(-1), n)
    exact, missing = lower == upper, np.isneginf(lower) & np.isposinf(upper)
    inside = np.maximum(lower, low), np.minimum(upper, high)
    limited = ~exact & ~missing & (np.isfinite(inside[0]) | np.isfinite(inside[1]))
    truncated = ~missing & (np.isfinite(low) | np.isfinite(high))
    kinds = (
        (exact, (lower, upper), weight, DENSITY),
        (limited, inside, weight, INTERVAL),
        (truncated, (low, high), -weight, REGION),
    )
    terms = []
    for chosen, (a, b), factor, kind in kinds:
        counted = chosen & (weight != 0)
        groups, half_open = [counted], np.isinf(a) | np.isinf(b)
        if counted.sum() >= LARGE:  # the derivatives of half-open ones take a fifth of the time
            groups = [counted & half_open, counted & ~half_open]
        for rows in (np.flatnonzero(group) for group in groups if group.any()):
            whole, counts = each and len(rows) == n, factor[rows]
            columns = [a[rows], b[rows], *([] if noise is None else [noise[rows]])]
            if not each:  # equal integrals are joined
                table, which = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
                counts = np.bincount(which.ravel(), counts)
                columns, rows = list(table.T), np.zeros(len(table), int)
            lower, upper, *variances = columns
            terms.append(
                Term(
                    full(lower, lower[0]),
                    full(upper, upper[0]),
                    full(counts, 0.0),
                    full(variances[0], variances[0][0]) if variances else None,
                    None if whole else full(rows.astype(np.int32), rows[0]),
                    kind,
                    bool(np.all(np.isinf(lower) | np.isinf(upper))),
                )
            )
    return tuple(terms)


def full_design(design: np.ndarray) -> jax.Array:
    """Covariates (n, p), filled up by rows of zeros to one of few lengths."""
    rest = np.zeros((filled_length(len(design)) - len(design), design.shape[1]))
    return jax.device_put(np.concatenate([design, rest]))
