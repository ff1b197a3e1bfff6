"""Observed rows: what is known of every entry, where a row could have been seen, and its noise."""

import copy
import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import tables
from truncgauss.arrays.importing import imported
from truncgauss.arrays.pytrees import as_float_array, frozen_pytree, is_concrete, static_field
from truncgauss.gaussian.regions.box import Box
from truncgauss.gaussian.regions.region import LinearRegion, Region, as_linear
from truncgauss.likelihood.ordinal import LatentRows, entries_of, limits_of
from truncgauss.likelihood.patterns import Pattern, RowLimits, RowOrders, find_patterns, is_empty
from truncgauss.words.arguments import explained, explained_class
from truncgauss.words.names import check_choice

LIMITS_ON = ("observed", "latent")
WITH_DROPOUT = ("log_likelihood", "conditional_moments", "fit_observations")  # take observed=
MOST_NAMES = 6  # of entries, in a print


@explained_class
@frozen_pytree
class Observations:
    """n rows of d entries, each exact, censored, known to an interval, or missing.

    An entry lies between `lower` and `upper`: it is exact where these are equal, censored where one
    is infinite, an interval where both are finite, and missing where both are infinite. A row is
    in the sample only because it lies in its region (truncation).

    Rows y = x + e are measurements of x ~ Normal(loc, covariance) with errors e ~ Normal(0, noise).
    `lower` and `upper` are limits of y. The region limits y too, or x if limits_on is "latent".

    The patterns of exact and limited entries are found from the numbers here, once. Under `jit` an
    object of this class is an argument like any other; to differentiate with respect to limits,
    replace them: `dataclasses.replace(observations, region=region)` keeps the patterns.

    Args:
        lower: shape (n, d), or (n,) for d = 1; an array or a table, such as a DataFrame.
        upper: likewise.
        region: a `Box` or `Polyhedron` for all rows, or one with leading axis n; or any other
            region, such as a `Ball`, or a `Selection` that keeps a row with some probability. The
            integrals over these, one for each row that lacks an entry, are by importance sampling.
            With `Injections` the log-likelihood leaves out log s(y), which does not depend on the
            Gaussian; it is NaN where they are too few for so many rows, see `log_mean_weights`.
        noise: covariance matrix of e: (d, d) for all rows, (n, d, d), or variances (n, d). Of shape
            (d, d) it is one matrix, also if n = d.
        weights: shape (n,): how often each row counts.
        limits_on: "observed" or "latent" (static).
        names: of the entries, d different texts, by which fits call their estimates; by default
            those of the columns of `lower`, if it is a table (static).
        index: labels of the rows, by default those of `lower`, if it has some, such as the index of
            a DataFrame: what else has labels is brought into their order (static).
        observed: by which probability an entry is observed, by its value, a `Selection.probit` of
            one entry or with a curve for each (dropout): a missing entry is then one that was not,
            which is the same as one censored at the midpoint with noise of the curve's width.

    Raises:
        ValueError: for NaN, lower above upper, shapes or names that disagree, noise that is no
            covariance matrix, or weights that are negative or all zero.

    Example:
        >>> rows = tg.Observations([[0.5, -1.0], [2.0, -jnp.inf]], [[0.5, jnp.inf], [2.0, 0.0]])
        >>> tg.log_likelihood(rows, jnp.zeros(2), jnp.eye(2)).log_prob.round(3)
        Array([-1.217, -3.612], dtype=float64)
    """

    lower: jax.Array
    upper: jax.Array
    region: Region | None = None
    noise: jax.Array | None = None
    weights: jax.Array | None = None
    limits_on: str = static_field(default="observed")
    patterns: tuple[Pattern, ...] | None = None
    region_patterns: tuple[Pattern, ...] | None = None
    orders: RowOrders | None = None
    region_orders: RowOrders | None = None
    names: tuple[str, ...] | None = static_field(default=None)
    index: tables.RowLabels | None = static_field(default=None)
    observed: Region | None = None
    placed: bool = static_field(default=False)  # whether missing entries have limits by `observed`

    def __post_init__(self) -> None:
        check_choice(self.limits_on, LIMITS_ON, "Observations: limits_on")
        if self.names is None:
            self._set(names=names_of(self.lower))
        elif not hasattr(self.lower, "dtype"):  # a table
            refusals().check_renamed(self.names, names_of(self.lower))
        self._set_order()
        lower = as_table("lower", self.lower)
        ends = in_order_of(self.upper, self.lower, "upper")
        upper, noise = as_table("upper", ends), self.noise
        if hasattr(noise, "iloc"):
            noise = in_order_of(noise, self.lower, "noise")
            self._set(noise=np.asarray(noise, float))
        dtype = jnp.result_type(lower, upper)
        self._set(lower=lower.astype(dtype), upper=upper.astype(dtype))
        if lower.shape != upper.shape:
            raise ValueError(
                "Observations: lower and upper must have one shape (n, d), got "
                f"{lower.shape} and {upper.shape}."
            )
        if 0 in lower.shape:
            raise ValueError(
                "Observations: needs one row and one entry or more, got lower and upper of shape "
                f"{lower.shape}. A filter of the table may have removed all rows."
            )
        names, d = self.names, self.dimension
        unordered = isinstance(names, set | frozenset) or (isinstance(names, str) and d > 1)
        if names is not None and (unordered or len(names) != d or len(set(map(str, names))) < d):
            raise ValueError(f"Observations: names must be {d} different texts, got {names}.")
        self._set(names=None if names is None else tuple(map(str, names)))
        if d > 1:
            check_names(self, upper=ends, noise=noise, region=self.region)
        self._check_region()
        for name in ("noise", "weights"):
            if getattr(self, name) is not None:
                array = as_float_array(getattr(self, name), f"Observations: {name}")
                self._set(**{name: array.astype(dtype)})
        self._check_noise()
        self._check_weights()
        region: Any = self.region
        if region and not region.answers_points:
            self._set(region=region.of_sample(self))
        if self.observed is not None:
            self._set_observed(self.observed, check=not self.placed)
        self._set_patterns()

    def with_observed(self, observed: Any) -> "Observations":
        """The rows whose entries are observed by a curve of other numbers, with their patterns."""
        rows = copy.copy(self)
        rows._set_observed(observed, check=False)
        return rows

    def _set_observed(self, observed: Any, check: bool) -> None:
        from truncgauss.likelihood import dropout  # which other rows do not need

        if check:
            dropout.check_observed(observed, self.lower, self.upper, self.noise, self.region)
        curves = observed.score_selection()
        observed = jax.tree.map(lambda leaf: jnp.asarray(leaf, self.lower.dtype), curves)
        lower, upper, noise = dropout.placed(observed, self.lower, self.upper)
        self._set(lower=lower, upper=upper, noise=noise, observed=observed, placed=True)

    @classmethod
    @explained
    def exact(
        cls, values: Any, *, nan_is_missing: bool = False, region: Any = None, noise: Any = None,
        weights: Any = None, limits_on: str = "observed", names: Any = None, index: Any = None,
        observed: Any = None,
    ) -> "Observations":  # fmt: skip
        """Rows known exactly, shape (n, d); NaN stands for a missing entry if so said.

        Args:
            values: shape (n, d), or (n,) for d = 1.
            nan_is_missing: whether NaN means missing; otherwise it is refused.
            region, noise, weights, limits_on, names, index, observed: as in `Observations`.

        Example:
            >>> rows = tg.Observations.exact([[0.5, jnp.nan]], nan_is_missing=True)
            >>> rows.lower, rows.upper
            (Array([[ 0.5, -inf]], dtype=float64), Array([[0.5, inf]], dtype=float64))
        """
        if hasattr(noise, "iloc"):
            noise = in_order_of(noise, values, "noise")
        if names is not None:
            refusals().check_renamed(names, names_of(values))
        if index is not None:
            refusals().check_relabelled(index, tables.labels_of(values))
        settings: dict[str, Any] = dict(
            region=region, noise=noise, weights=weights, limits_on=limits_on, observed=observed,
            names=names_of(values) if names is None else names,
            index=tables.labels_of(values) if index is None else index,
        )  # fmt: skip
        tables.refuse_booleans(values, "Observations: values")
        values = as_table("values", values, missing=nan_is_missing)
        if not nan_is_missing:
            return cls(values, values, **settings)
        xp = np if is_concrete(values) else jnp  # NumPy compiles nothing for a new length
        missing = xp.isnan(values)
        lower, upper = (xp.where(missing, side, values) for side in (-jnp.inf, jnp.inf))
        return cls(as_float_array(lower), as_float_array(upper), **settings)

    @classmethod
    @explained
    def from_table(
        cls,
        table: Any,
        columns: str | Sequence[Hashable],
        *,
        lower: Any = None,
        upper: Any = None,
        censored_low: Any = None,
        censored_high: Any = None,
        left_censored: Any = None,
        right_censored: Any = None,
        truncated_low: Any = None,
        truncated_high: Any = None,
        noise_scale: Any = None,
        not_detected: Any = None,
        weights: Hashable | None = None,
        missing: bool = False,
        censoring: str = "columns",
        log: bool | str | Sequence[Hashable] = False,
        limits_on: str = "observed",
    ) -> "Observations":
        """Rows of a table with named columns: a DataFrame, an astropy table, a dictionary, ...

        The other arguments are dictionaries with the names of entries as keys; a single value
        belongs to all entries. Where it says "column", a number will do for all rows.

        Args:
            table: as in `tables.read`; other columns than those named here are not looked at.
            columns: the entries' names, d of them. Their columns hold what was observed; of an
                entry with `lower` or `upper` the name only is taken.
            lower: columns of the lower ends of entries that are known to an interval.
            upper: likewise; without one that side is open.
            censored_low: columns of the limits at or below which a value is only known to be so.
            censored_high: likewise, at or above.
            left_censored: (column, mark): where that column holds this mark, the value is only an
                upper limit.
            right_censored: likewise, a lower limit.
            truncated_low: columns of the bounds below which a row would not be in the sample.
            truncated_high: likewise, above.
            noise_scale: columns of the standard deviations of measurement errors.
            not_detected: columns of the limits below which a value lies whose cell says "nd", for
                these cells alone: numbers at or below it stay exact.
            weights: the column that says how often each row counts.
            missing: whether entries may be missing; otherwise a gap is refused.
            censoring: "text" reads cells such as "<0.5" and ">100" as limits, and "nd", not
                detected, as at most `not_detected` or `censored_low`; and the letters of
                laboratories beside a number: "0.5 U", "ND 0.5" (not detected) and "0.5 UJ" (nor is
                the limit exact) are at most 0.5, "0.5 J" (detected, value estimated) is 0.5. By
                default the other arguments say it all, and such cells are refused.
            log: take the natural logarithm of these entries, as of concentrations, or of all if
                True. What is said of them, such as `censored_low`, is of the values themselves, and
                they are called log(name) in what is fitted to them.
            limits_on: "observed" or "latent".

        Raises:
            ValueError: for columns that are not there or hold no numbers, and as `Observations`.

        Example:
            >>> table = {"durable": [0.0, 1.2, 0.0, 2.3], "age": [40, 50, 30, 45]}
            >>> rows = tg.Observations.from_table(table, ["durable"], censored_low=0.0)
            >>> rows.lower.T
            Array([[-inf,  1.2, -inf,  2.3]], dtype=float64)
            >>> table = {"zinc": ["<1", "2.5", "7"]}
            >>> tg.Observations.from_table(table, "zinc", censoring="text", log=True).labels
            ('log(zinc)',)
        """
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        known = dict(
            lower=lower, upper=upper, censored_low=censored_low, censored_high=censored_high,
            left_censored=left_censored, right_censored=right_censored,
            truncated_low=truncated_low, truncated_high=truncated_high, noise_scale=noise_scale,
            not_detected=not_detected,
        )  # fmt: skip
        arrays = tables.arrays_of(
            table, names, known, missing=missing, censoring=censoring, weights=weights, log=log
        )
        logged = tables.names_of_logs(names, log)
        labels = tuple(f"log({name})" if name in logged else str(name) for name in names)
        settings: dict[str, Any] = arrays | {"names": labels}
        if "low" in arrays:
            settings["region"] = Box(settings.pop("low"), settings.pop("high"))
        return cls(limits_on=limits_on, index=tables.labels_of(table), **settings)

    @classmethod
    def of(cls, entries: Any, weights: Any = None, **settings: Any) -> LatentRows:
        """Rows of mixed entries, of which some are ordered categories, for `fit_observations`.

        Args:
            entries: each a `tg.Ordinal`; exact numbers, (n,), NaN where missing; or a pair of their
                lower and upper limits. A list, or a dictionary with their names.
            weights: shape (n,): how often each row counts.
            settings: region, noise and limits_on, as in `Observations`.

        Raises:
            ValueError: for one array or table as the entries, entries of different lengths or equal
                names, or a constant category.

        Example:
            >>> rows = tg.Observations.of({"pain": tg.Ordinal([0, 2, 1]), "age": [40, 61, 55]})
            >>> rows.labels, rows.levels
            (('pain', 'age'), ((0, 1, 2), ()))
        """
        if hasattr(entries, "shape"):
            raise ValueError(
                "Observations.of: takes a list or a dictionary of one entry for each outcome, "
                f"got one {type(entries).__name__} of shape {entries.shape}. Exact outcomes, one "
                "in each column, are tg.Observations.exact(...)."
            )
        if settings.get("observed") is not None:
            raise ValueError("Observations.of: takes no observed=: its entries are given in full.")
        entries, weights = tables.in_one_order("Observations.of", entries=entries, weights=weights)
        (codes, lower, upper, levels, unused), names = entries_of(entries, weights)
        settings.setdefault("index", tables.labels_of(entries))
        with jax.enable_x64(True):
            rows = cls(lower, upper, weights=weights, names=names, **settings)
            latent = LatentRows(codes, levels, unused, rows)
            cuts = [np.zeros(0)] * len(levels)
            for j in (j for j, level in enumerate(levels) if level):
                seen = codes[:, j] >= 0
                counts = np.bincount(codes[seen, j], rows.row_weights[seen])
                cuts[j] = limits_of(np.maximum(counts, 1e-9 * counts.sum()))
            lower, upper = map(as_float_array, latent.between(cuts))
            complete = dataclasses.replace(rows, lower=lower, upper=upper)
            return dataclasses.replace(latent, observations=complete)

    @property
    def num_rows(self) -> int:
        return self.lower.shape[0]

    @property
    def dimension(self) -> int:
        return self.lower.shape[1]

    def __repr__(self) -> str:
        concrete = is_concrete((self.lower, self.upper))
        return f"Observations({self.described(self.counts() if concrete else {})})"

    def counts(self) -> dict[str, int]:
        """Number of rows, under "", and of those of each kind of knowledge."""
        lower, upper = np.asarray(self.lower), np.asarray(self.upper)
        low, high, empty = np.isinf(lower), np.isinf(upper), is_empty(lower, upper)
        kinds = {
            "exact": np.all(lower == upper, axis=1),
            "with a censored entry": np.any(low ^ high, axis=1),
            "with an interval": np.any((lower < upper) & ~low & ~high, axis=1),
            "with a missing entry": np.any(low & high, axis=1) & ~empty,
        }
        several = np.sum(list(kinds.values()), axis=0) > 1
        every = {"": np.ones_like(empty), **kinds}
        every |= {"of these in several kinds": several, "with no entry at all": empty}
        return {kind: int(rows.sum()) for kind, rows in every.items()}

    @property
    def row_weights(self) -> np.ndarray:
        """The weight of each row, 1 where none is stated, (n,)."""
        return np.ones(self.num_rows) if self.weights is None else np.asarray(self.weights)

    @property
    def weight(self) -> float:
        """Sum of the weights of the rows, without those of which every entry is missing."""
        known = ~is_empty(np.asarray(self.lower), np.asarray(self.upper))
        weights = known if self.weights is None else np.where(known, np.asarray(self.weights), 0.0)
        return float(weights.sum(dtype=float))

    @property
    def num_known(self) -> int:
        """The number of rows that tell something: with a weight, and an entry that is known."""
        known = ~is_empty(np.asarray(self.lower), np.asarray(self.upper))
        return int(
            np.sum(known if self.weights is None else known & (np.asarray(self.weights) > 0))
        )

    def described(self, counts: dict[str, int]) -> str:
        """Text with the number of rows of each kind, from `counts`."""
        numbers = [f"{count} {kind}" for kind, count in counts.items() if kind and count]
        kinds = f": {', '.join(numbers)}" if numbers else ""
        more = [name for name in ("region", "noise", "weights") if getattr(self, name) is not None]
        ending = f"; with {' and '.join(more)}" if more else ""
        num_rows = counts.get("", self.num_rows)
        entries = f"{self.dimension} entries"
        if self.names:
            others = len(self.names) - MOST_NAMES
            entries = ", ".join(self.names[:MOST_NAMES]) + f" and {others} more" * (others > 0)
        return f"{num_rows} observations of {entries}{kinds}{ending}"

    @property
    def latent(self) -> bool:
        """Whether the region limits values without noise, and the entries those with noise."""
        return self.limits_on == "latent" and self.noise is not None and self.region is not None

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the entries, or else their numbers."""
        return self.names or tuple(map(str, range(self.dimension)))

    @property
    def coordinate_names(self) -> tuple[str, ...]:
        """The names that `check_one_order` compares; none of one entry, which has no order."""
        return self.names if self.names and self.dimension > 1 else ()

    def unnamed(self) -> "Observations":
        """The rows without names and labels, so that rows of others share their programs."""
        return self.with_known(names=None, index=None)

    def at_rows(self, positions: np.ndarray) -> "Observations":
        """The rows at these positions, without labels."""
        rows: Any = lambda leaf: jnp.asarray(leaf)[positions]
        region, noise = self.region, self.noise
        return dataclasses.replace(
            self,
            lower=rows(self.lower),
            upper=rows(self.upper),
            region=jax.tree.map(rows, region) if region and region.batch_shape else region,
            noise=noise if noise is None or noise.ndim == 2 else rows(noise),
            weights=None if self.weights is None else rows(self.weights),
            index=None,
        )

    def with_known(self, **fields: Any) -> "Observations":
        """Rows with other fields, taken as they are: unlike `dataclasses.replace`, nothing
        is checked and no pattern is sought."""
        rows = copy.copy(self)
        rows._set(**fields)
        return rows

    def _set_order(self) -> None:
        """Bring what has labels into the order of those of the rows."""
        parts = {word: getattr(self, word) for word in ("lower", "upper", "weights")}
        shape = getattr(self.lower, "shape", ())
        if not isinstance(self.index, tables.RowLabels | None):  # but what a user gives
            refusals().check_index(self.index, shape)
        index = tables.as_labels(self.index)
        if index is not None and shape and len(index) != shape[0]:  # of rows that were replaced
            index = None
        noise: Any = self.noise
        if len(np.shape(noise)) == 2 and np.shape(noise)[0] != np.shape(noise)[1]:
            parts["noise"] = noise  # not one matrix, whose rows are entries
        first = {} if index is None else {"index": index}  # by which arrays go too
        ordered = tables.in_one_order("Observations", **first, **parts)[len(first) :]
        self._set(index=tables.labels_of((index, *parts.values())), **dict(zip(parts, ordered)))

    def _check_region(self) -> None:
        region, (n, d) = self.region, self.lower.shape
        if region is None:
            return
        if not isinstance(region, Region):
            raise TypeError(
                "Observations: region must be a tg.Box, Polyhedron, Ball, Ellipsoid or Selection, "
                f"got {region!r}."
            )
        region = region.simplified()
        self._set(region=region)
        if region.dimension != d or region.batch_shape not in ((), (n,)):
            raise ValueError(
                f"Observations: there are {n} observations of {d} entries, but the region has "
                f"dimension {region.dimension} and leading axes {region.batch_shape}; expected () "
                f"or ({n},)."
            )
        if any(np.isnan(leaf).any() for leaf in jax.tree.leaves(region) if is_concrete(leaf)):
            raise ValueError("Observations: the region has NaN among its bounds.")

    def _check_noise(self) -> None:
        noise, (n, d) = self.noise, self.lower.shape
        if noise is None:
            return
        if noise.shape == (n, d) and noise.shape != (d, d):
            xp = np if is_concrete(noise) else jnp
            noise = as_float_array(xp.asarray(noise)[..., None] * xp.eye(d, dtype=noise.dtype))
        if noise.shape not in ((d, d), (n, d, d)):
            raise ValueError(
                "Observations: noise must be the covariance of all observations or of each, "
                f"({d}, {d}) or ({n}, {d}, {d}), or variances ({n}, {d}), got {noise.shape}."
            )
        self._set(noise=noise)
        if not is_concrete(noise):
            return
        values = np.asarray(noise)
        least = np.linalg.eigvalsh(values)[..., 0] if np.isfinite(values).all() else np.array(-1.0)
        allowed = 1e-6 * np.abs(values).max(initial=0.0)
        crooked = np.abs(values - np.swapaxes(values, -1, -2)).max() > allowed
        if crooked or not np.all(least >= -allowed):
            wrong = ~np.isfinite(values).all((-2, -1))
            if not wrong.any():
                gaps = np.abs(values - np.swapaxes(values, -1, -2)).max((-2, -1))
                wrong = (gaps > allowed) | (least < -allowed)
            row = int(np.argmax(wrong))
            first, where = (values[row], f" in row {row}") if values.ndim == 3 else (values, "")
            raise ValueError(
                "Observations: noise must be a covariance matrix, symmetric positive semi-definite,"
                " or variances, the squares of standard errors, 0 where there is none, without "
                f"NaN; got {str(first.tolist()):.80}{where}."
            )
        if self.latent and not np.all(least > 0):
            raise ValueError(
                'Observations: with limits_on="latent" every entry needs noise, positive definite '
                "in each row. An entry without noise is its own latent value."
            )
        if noise.ndim == 3 and np.all(values == values[0]):
            self._set(noise=noise[0])

    def _check_weights(self) -> None:
        weights, n = self.weights, self.num_rows
        if weights is None:
            return
        if weights.shape != (n,):
            raise ValueError(f"Observations: weights must have shape ({n},), got {weights.shape}.")
        if is_concrete(weights):
            values = np.asarray(weights)
            wrong = np.flatnonzero(~((values >= 0) & np.isfinite(values)))
            if len(wrong) or not values.any():
                got = f"{values[wrong[0]]:g} in row {wrong[0]}" if len(wrong) else "zeros alone"
                raise ValueError(
                    "Observations: weights must be finite, not negative, and not all zero; got "
                    f"{got}. A weight is how often a row counts."
                )

    def _check_selection(self) -> None:
        """Raise ValueError if what keeps rows is no probability of the complete ones."""
        region = self.region
        if region is None or region.is_linear or not region.answers_points:
            return
        whole = np.all(np.asarray(self.lower) == np.asarray(self.upper), axis=1)
        if not whole.any():
            return
        if region.batch_shape:
            region = jax.tree.map(lambda leaf: leaf[whole], region)
        values = np.asarray(region.kept(self.lower[whole]))
        wrong = np.flatnonzero(~((values >= 0) & (values <= 1)))
        if len(wrong):
            row = np.flatnonzero(whole)[wrong[0]]
            raise ValueError(
                f"Observations: the region keeps {len(wrong)} observation(s) with what is no "
                f"probability, first row {row} with {values[wrong[0]]:.6g}. It must lie between 0 "
                "and 1."
            )

    def _set_patterns(self) -> None:
        """Compute the patterns or, under a trace, keep those that were passed."""
        # The numbers of one region that is no box tell nothing of entries.
        region = self.region
        unread = self.box is None and region is not None and not region.batch_shape
        if is_concrete((self.lower, self.upper, self.noise, None if unread else region)):
            lower, upper = np.asarray(self.lower), np.asarray(self.upper)
            check_limits(lower, upper)
            if is_concrete(self.region):
                self._check_selection()
            rows = np.flatnonzero(~is_empty(lower, upper))  # the others have no term
            truncated = rows if self.region is not None else rows[:0]
            exact, none = lower == upper, np.zeros(lower.shape, bool)
            entries = np.hstack([exact, none]) if self.latent else exact
            # The noise and the region of each row as numbers, (n, q), where they differ.
            leaves: list[Any] = [np.zeros((self.num_rows, 0))]
            if self.noise is not None and self.noise.ndim == 3:
                leaves.append(self.noise)
            if self.region is not None and self.region.batch_shape:
                leaves += jax.tree.leaves(self.region)
            others = np.hstack([np.asarray(x).reshape(self.num_rows, -1) for x in leaves])
            data, limits = self.data_limits(np), self.region_limits(np)
            patterns, orders = find_patterns(data, entries, others, rows)
            region_patterns, region_orders = find_patterns(limits, none, others, truncated)
            self._set(patterns=patterns, orders=orders)
            self._set(region_patterns=region_patterns, region_orders=region_orders)
            return
        if self.patterns is None or self.region_patterns is None:
            raise ValueError(
                "Observations: which entries are exact or missing must be known, so that they "
                "cannot be made under a trace, nor of rows on other processes. Make them outside, "
                "pass them as an argument, and change them by dataclasses.replace; of several "
                "processes each makes those of its own rows."
            )
        if region is not None and self.patterns and not self.region_patterns:
            raise ValueError(
                "Observations: these were made without a region, so that it is not known which "
                "rows one truncates. Under a trace replace a region: make them with one of its "
                "kind."
            )
        # Rows that were equal may no longer be.
        for name in ("patterns", "region_patterns"):
            self._set(**{name: tuple(part.each_by_itself() for part in getattr(self, name))})

    def data_limits(self, xp: Any = jnp) -> RowLimits:
        """The limits of what was observed and, if the region is of the latent values, of these."""
        lower, upper = xp.asarray(self.lower), xp.asarray(self.upper)
        region = self.region_limits(xp)
        if self.latent:
            lower = xp.concatenate([lower, region.lower], axis=1)
            upper = xp.concatenate([upper, region.upper], axis=1)
        elif (box := self.box) is not None:
            exact = lower == upper
            low, high = (xp.broadcast_to(xp.asarray(x), lower.shape) for x in (box.low, box.high))
            lower = xp.where(exact, lower, xp.maximum(lower, low))
            upper = xp.where(exact, upper, xp.minimum(upper, high))
        return RowLimits(lower, upper, region.region)

    def region_limits(self, xp: Any = jnp) -> RowLimits:
        """The limits of the region alone, as if every entry were missing."""
        region, shape = self.region, self.lower.shape
        dtype = self.lower.dtype
        sides: tuple[Any, Any] = np.asarray(-np.inf, dtype), np.asarray(np.inf, dtype)
        if (box := self.box) is not None:
            sides, region = (box.low, box.high), None
        lower, upper = (xp.broadcast_to(xp.asarray(side), shape) for side in sides)
        return RowLimits(lower, upper, region)

    @property
    def box(self) -> LinearRegion | None:
        """The region, if its limits are on single entries."""
        return None if self.region is None or not self.region.is_box else as_linear(self.region)

    @property
    def is_univariate(self) -> bool:
        """Whether rows are of one outcome, and seen in intervals."""
        return self.dimension == 1 and self.has_limits_alone

    @property
    def has_limits_alone(self) -> bool:
        """Whether a region, if there is one, limits each observed entry by itself."""
        return self.region is None or (self.box is not None and not self.latent)

    def univariate_limits(self) -> tuple[np.ndarray, ...]:
        """Lower and upper limits of the rows of one outcome, and those of their regions, (n,)."""
        sides = self.lower, self.upper, *self.region_limits(np)[:2]
        return tuple(np.asarray(side)[:, 0] for side in sides)


def as_observations(rows: Any, what: str, of: Any = None) -> Observations:
    """The rows, unless they are none, or named otherwise than those of a fit: then ValueError,
    which names the function that was called."""
    if not isinstance(rows, Observations):
        raise ValueError(
            f"{what}: needs tg.Observations, got {type(rows).__name__}. For complete observations "
            "write tg.Observations.exact(rows), with nan_is_missing=True where NaN is a missing "
            "entry; for censored ones tg.Observations(low, high), with their bounds."
        )
    if rows.observed is not None and what not in WITH_DROPOUT:
        raise ValueError(f"{what}: takes no rows with observed=; {' and '.join(WITH_DROPOUT)} do.")
    check_names(rows, fit=of)
    return rows


def check_names(observations: Any, **others: Any) -> None:
    """Raise ValueError unless others name the columns of observations as these do."""
    from truncgauss.arrays.coordinates import check_one_order

    check_one_order(observations=observations, **others)


def as_table(name: str, values: Any, missing: bool = False) -> jax.Array:
    """An array of shape (n, d)."""
    if not isinstance(values, jax.Array):
        values = tables.read(values, missing=missing, what=f"Observations: {name}").values
    column = isinstance(values, np.ndarray) and values.ndim == 1
    table = as_float_array(values[:, None] if column else values, f"Observations: {name}")
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2:
        raise ValueError(f"Observations: {name} must have shape (n, d), got {table.shape}.")
    return table


def names_of(values: Any) -> tuple[str, ...] | None:
    """The names of a table's columns, if it has some."""
    names = None if isinstance(values, jax.Array) else tables.named_columns(values)
    return None if names is None or None in names else tuple(map(str, names))


def refusals() -> Any:
    """Checks of names and labels, of which rows without them have no use."""
    return imported("truncgauss.likelihood.row_names")


def in_order_of(values: Any, lower: Any, name: str) -> Any:
    """Upper ends, or noise, in the order of the columns of the lower ends where both have names."""
    if isinstance(values, jax.Array) or isinstance(lower, jax.Array):
        return values
    first = tables.read(lower, what="Observations: lower")
    if first.names is None or tables.named_columns(values) is None:
        return values
    return tables.aligned(values, first, f"Observations: {name}")


def check_limits(lower: np.ndarray, upper: np.ndarray) -> None:
    """Raise ValueError with the number of offending rows and the first of them."""

    def complain(wrong: np.ndarray, what: str, advice: str) -> None:
        rows = np.flatnonzero(wrong.any(axis=1))
        if len(rows):
            first = rows[0]
            raise ValueError(
                f"Observations: {len(rows)} of {len(lower)} observation(s) {what}, first row "
                f"{first}: lower {lower[first]}, upper {upper[first]}. {advice}"
            )

    nan = np.isnan(lower) | np.isnan(upper)
    advice = (
        "For a missing entry write -inf and inf, or use "
        "tg.Observations.exact(values, nan_is_missing=True)."
    )
    complain(nan, "hold NaN", advice)
    complain(lower > upper, "have lower above upper", "Exchange or correct them.")
    nowhere = (lower == np.inf) | (upper == -np.inf)
    advice = (
        "An open side is -inf below or inf above. The logarithm of 0 lies there too: a value below "
        "a bound, such as a limit of detection, is censored, with -inf and that bound for its "
        "ends; of a regression record the bound, and give censored_low."
    )
    complain(nowhere, "lie at infinity", advice)
