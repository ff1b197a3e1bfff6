"""Quantities derived from a fit: differentiable functions of its parameters, and their errors."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from truncgauss import tables
from truncgauss.arrays.compiling import Compiled, closed_form
from truncgauss.arrays.progress import reported
from truncgauss.arrays.pytrees import frozen_pytree, no_numbers, static_field
from truncgauss.fitting.wald import estimates_at, table_of, untrusted
from truncgauss.words import earlier
from truncgauss.words.names import listed
from truncgauss.words.numbers import check_share

ROUNDING = 1e-14  # of a value, which no error is below
FEW_ENTRIES = 8  # of a function of the user's, that need no program of their own
NOT_COMPARED = "The Wald interval of {} was not compared with the likelihood; profile() does that."
LAST_AXES = {"loc": 1, "scales": 1, "covariance": 2, "covariance_matrix": 2, "correlation": 2}
LAST_AXES |= {"slopes": 2, "locs": 1, "covariances": 2}  # arrays of fits that go by the entries
SYMMETRIC = {"covariance": 0, "covariance_matrix": 0, "covariances": 0, "correlation": -1}
NO_MAXIMUM = "{}: the fit has found no maximum, so that no error is known. {}"
AT_AN_EDGE = (
    "The standard error of {} is infinite: the observations do not identify it, or it has no "
    "finite slope, as where a parameter lies at an edge."
)


class UnknownEstimate(KeyError):
    """A name that no estimate has; its message is printed without the quotes of a KeyError."""

    def __str__(self) -> str:
        return str(self.args[0])


class Parameters:
    """The parameters of a fit by name, as the functions of `derived` see them.

    Attributes are the fit's arrays, such as `p.loc` or `p.coefficients`, and the estimates of its
    table that have a plain name; `p["covariance[0, 1]"]` is an estimate by any name. `dict(p)` has
    those that say all, which `print` shows and another fit takes as its `start`.

    Args:
        names: of the estimates.
        estimates: the vector of them, (p,), an attribute too.
        arrays: further attributes, functions of these.
        of_start: the names of arrays or estimates that say all.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        estimates: Any,
        arrays: dict[str, Any],
        of_start: tuple[str, ...] = (),
    ) -> None:
        self.estimates, self._names, self._arrays = estimates, names, arrays
        self._of_start = of_start

    def keys(self) -> tuple[str, ...]:
        """The names of what a start takes."""
        return self._of_start

    def __repr__(self) -> str:
        return repr(dict(self))

    def __getitem__(self, name: str) -> Any:
        if name in self._of_start and name in self._arrays:
            return self._arrays[name]
        if name not in self._names:
            known = listed(self._names, name)
            raise UnknownEstimate(f"there is no estimate {name!r}, but {known}")
        return self.estimates[self._names.index(name)]

    def __getattr__(self, name: str) -> Any:
        arrays = self.__dict__.get("_arrays", {})
        if name in arrays:
            return arrays[name]
        if name in self.__dict__.get("_names", ()):
            return self[name]
        known = [*arrays, *self.__dict__.get("_names", ())]
        cure = " Of several write a function, lambda p: p[one] / p[other]." * ("/" in name)
        raise AttributeError(f"the fit has no parameter {name!r}, but {listed(known, name)}{cure}")


def gaussian_arrays(loc: Any, covariance: Any) -> dict[str, Any]:
    """Parameters of a Gaussian by name: loc (d,), if there is one, the covariance matrix (d, d),
    standard deviations `scales` (d,), the matrix `correlation`, and `slopes` (d, d), in row i those
    of outcome i by each outcome alone, covariance[i, j] / covariance[j, j]."""
    variances = jnp.diagonal(covariance)
    scales = jnp.sqrt(variances)
    arrays = {
        "covariance": covariance,
        "covariance_matrix": covariance,
        "scales": scales,
        "correlation": covariance / scales[:, None] / scales,
        "slopes": covariance / variances,
    }
    return arrays if loc is None else {"loc": loc, **arrays}


@dataclasses.dataclass(frozen=True)
class Flat:
    """A function of the vector of estimates as a vector. Equal ones share their programs: of one
    function, and fits of one kind with the same names and constants.

    Attributes:
        function: of `Parameters`.
        key: by which the fit's parameters are shaped.
        fit: without its rows.
    """

    function: Callable[..., Any]
    key: Any
    fit: Any = dataclasses.field(compare=False, repr=False)

    @classmethod
    def of(cls, function: Callable[..., Any], fit: Any) -> "Flat":
        constants = [np.asarray(leaf) for leaf in jax.tree.leaves(fit.array_constants)]
        shaped = tuple((leaf.shape, leaf.tobytes()) for leaf in constants)
        return cls(function, (type(fit), fit.names, shaped), fit.without_rows())

    def __call__(self, estimates: jax.Array) -> jax.Array:
        return jnp.ravel(jnp.asarray(self.function(self.fit.parameters(estimates))))


@frozen_pytree
class Estimates:
    """The coordinates that are the estimates themselves."""

    def estimates(self, x: jax.Array) -> jax.Array:
        return x


@frozen_pytree
class DerivedCoordinates:
    """Free coordinates whose estimates are a function of those of others.

    Attributes:
        coordinates: the others.
        function: of their vector of estimates, (p,) -> (k,) (static).
    """

    coordinates: Any
    function: Callable[[jax.Array], jax.Array] = static_field()

    def estimates(self, x: jax.Array) -> jax.Array:
        return self.function(self.coordinates.estimates(x))


@functools.partial(Compiled, cost=closed_form)
def _arrays_at(coordinates: DerivedCoordinates, estimates: jax.Array) -> tuple[Any, Any]:
    arrays_of = coordinates.function.fit.arrays_of  # type: ignore[attr-defined]
    return arrays_of(estimates), jax.jacfwd(arrays_of)(estimates)


def arrays_at(fit: Any) -> Callable[[Any], tuple[dict[str, Any], dict[str, Any]]]:
    """Estimates -> the arrays of a fit by name, and their slopes by the estimates, in a last axis;
    by one program for all fits of a kind."""
    coordinates = DerivedCoordinates(Estimates(), Flat.of(arrays_at, fit))
    return lambda estimates: _arrays_at(coordinates, jnp.asarray(estimates, jnp.float64))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Derived:
    """A function of a fit's parameters and its errors; `print` shows a table. It unpacks as
    (value, standard_errors).

    Attributes:
        name: of the quantity.
        value: its estimate, a number or an array.
        standard_errors: by the delta method, of that shape; inf where it is not identified.
        covariance: of its entries, one after the other, (k, k).
        wald_coverages: of the Wald intervals of its entries, (k,), see `LikelihoodFit`; empty if
            they were not compared with the likelihood.
        fit: where it comes from.
        function: of the vector of all estimates, (p,) -> (k,).
        notes: sentences that a reader of the numbers must know.
        labels: of the entries of the rows that its last axes go by, (d,), such as the columns of a
            table; empty where they go by numbers alone.
    """

    name: str
    value: np.ndarray
    standard_errors: np.ndarray
    covariance: np.ndarray
    wald_coverages: np.ndarray
    fit: Any = dataclasses.field(repr=False)
    function: Callable[[jax.Array], jax.Array] = dataclasses.field(repr=False)
    notes: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    standard_error = earlier.attribute("standard_error", "standard_errors")

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter((self.value, self.standard_errors))

    def __getitem__(self, number: int) -> np.ndarray:
        return (self.value, self.standard_errors)[number]

    @property
    def names(self) -> list[str]:
        """Names of the entries."""
        axes: list[Any] = [range(size) for size in self.value.shape]
        if self.labels:
            last = LAST_AXES[self.name]
            axes[len(axes) - last :] = [self.labels] * last
        indices = [", ".join(map(str, index)) for index in itertools.product(*axes)]
        return [f"{self.name}[{index}]" if index else self.name for index in indices]

    @property
    def shown(self) -> list[int]:
        """Numbers of the entries that `print` shows: of a symmetric matrix those below the
        diagonal, and the diagonal too unless it is 1."""
        kept = np.ones(self.value.shape, bool)
        if self.name in SYMMETRIC and self.labels:
            kept &= np.tri(self.value.shape[-1], k=SYMMETRIC[self.name], dtype=bool)
        kept |= not kept.any()  # the correlation of a single entry
        return [int(k) for k in np.flatnonzero(kept)]

    def wald(self, level: float = 0.95) -> np.ndarray:
        """The Wald interval, symmetric, from the standard error: the shape of the value and 2.

        Raises:
            ValueError: for a level that is not between 0 and 1.
        """
        check_share(level, "wald: level")
        half = float(special.ndtri(0.5 + 0.5 * level)) * self.standard_errors
        return np.stack([self.value - half, self.value + half], axis=-1)

    @reported
    def profile(self, level: float = 0.95) -> np.ndarray:
        """The profile-likelihood interval, of the shape of the value and 2: all values whose
        likelihood ratio to the maximum, over all parameters with that value, does not speak against
        them at that level. An end is infinite where the likelihood does not fall that far.

        Raises:
            ValueError: for a level that is not between 0 and 1, or a fit that has not converged or
                has errors of the sandwich.

        Example:
            >>> fit = tg.fit_observations(tg.Observations.exact([1.0, 2.0, 3.0, 4.0]))
            >>> fit.derived(lambda p: p.sigma**2, "variance").profile().round(3)
            array([0.405, 7.517])
        """
        check_share(level, "profile: level")
        if not self.fit.converged:
            raise ValueError(f"profile: there is no maximum to start from. {self.fit.reason}")
        presume_the_model("profile", self.fit)
        fall = float(special.gammaincinv(0.5, level))
        with jax.enable_x64(True):
            pairs = enumerate(zip(self.value.ravel(), self.standard_errors.ravel()))
            ends = [
                self.fit.profile_along(k, self.function).interval(fall) if error else (value, value)
                for k, (value, error) in pairs  # what is constant has no error
            ]
        return np.reshape(np.array(ends, float), (*self.value.shape, 2))

    @property
    def _rows(self) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Names, values and standard errors of the entries shown."""
        names, shown = self.names, self.shown
        value, error = self.value.ravel(), self.standard_errors.ravel()
        return [names[k] for k in shown], value[shown], error[shown]

    def to_frame(self, level: float = 0.95, backend: str = "pandas") -> Any:
        """The table as a DataFrame, one row for each entry that `print` shows, as
        `LikelihoodFit.to_frame`."""
        wald = lambda level: self.wald(level).reshape(-1, 2)[self.shown]
        return tables.estimates_frame(*self._rows, wald, level, backend)

    def __str__(self) -> str:
        lines = table_of(*self._rows)
        lines.append(f"standard errors by the delta method from {self.fit.errors_from}")
        return "\n".join([*lines, *self.notes])


def presume_the_model(what: str, fit: Any) -> None:
    """Refuse a fit with errors of the sandwich where the likelihood has to be that of the rows."""
    if fit.information == "sandwich":
        raise ValueError(
            f"{what}: takes the likelihood for that of independent observations of the model, "
            f"which errors from {fit.errors_from} do not. Use wald() or derived(...).wald(), or "
            'fit with information="observed".'
        )


def derived(fit: Any, function: Callable[[Parameters], Any] | str, name: str | None) -> Derived:
    """A function of a fit's parameters with its errors, see `LikelihoodFit.derived`."""
    labels: tuple[str, ...] = ()
    if isinstance(function, str):
        if function in LAST_AXES and name in (None, function):
            rows = getattr(fit, "observations", None)
            located = (each[4:-1] for each in fit.names if each.startswith("loc["))
            labels = tuple(located) if rows is None else rows.labels
        name, function = name or function, ByName(function)
    if not callable(function):
        raise TypeError(
            "derived: needs the name of an estimate, or a function of the parameters such as "
            f'lambda p: p["a"] / p["b"], got {function!r}.'
        )
    name = name or "quantity"
    flat = Flat.of(function, fit)
    with jax.enable_x64(True):
        at = jnp.asarray(fit.estimates, jnp.float64)
        try:
            shaped = jax.eval_shape(lambda at: array_of(function(fit.parameters(at)), name), at)
        except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError) as error:
            raise TypeError(
                f"derived: {name}: write the function with jax.numpy, such as jnp.exp, not numpy, "
                "and without float or `if`."
            ) from error
        if not jnp.issubdtype(shaped.dtype, np.floating):
            raise ValueError(f"{name}: expected real numbers, got dtype {shaped.dtype}.")
        along: Any = DerivedCoordinates(fit.coordinates, flat)
        if isinstance(function, ByName) or shaped.size > FEW_ENTRIES:
            value, slopes = estimates_at(DerivedCoordinates(Estimates(), flat), at)
        else:  # a program for every new function would take longer, and stay
            value_at, both = by_operations(fit, function)
            value, slopes = both(at)
            along = lambda x: value_at(estimates_at(fit.coordinates, x)[0])
        value, slopes = np.asarray(value).reshape(shaped.shape), np.asarray(slopes)
        if np.all(np.isfinite(fit.estimates)) and not np.all(np.isfinite(value)):
            raise ValueError(f"{name} is not finite at the estimates, but {value}.")
        jacobian = slopes @ jacobian_of(fit)
        size = ROUNDING * np.abs(np.ravel(value))
        constant = errors_of(fit, jacobian)[0] <= size  # as on the diagonal of a correlation matrix
        jacobian = np.where(constant[:, None], 0.0, jacobian)
        errors, covariance = errors_of(fit, jacobian)
        coverages = np.zeros(0)
        if fit.converged and len(fit.wald_coverages) and np.all(np.isfinite(errors)):
            coverages = fit.coverages_along(along, jacobian)
    if labels and value.shape[value.ndim - LAST_AXES[name] :] != (len(labels),) * LAST_AXES[name]:
        labels = ()
    return Derived(
        name=name,
        labels=labels,
        value=value,
        standard_errors=np.reshape(errors, value.shape),
        covariance=covariance,
        wald_coverages=coverages,
        fit=fit,
        function=flat,
        notes=notes_of(fit, name, errors, coverages),
    )


def array_of(value: Any, name: str) -> jax.Array:
    """The result of a function of the parameters as an array."""
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        needed = f"derived: {name}: the function must return a number or an array"
        raise no_numbers(needed, value) from error


def by_operations(
    fit: Any, function: Callable[[Parameters], Any]
) -> tuple[Callable[[jax.Array], jax.Array], Callable[[jax.Array], tuple[jax.Array, jax.Array]]]:
    """Functions of estimates, computed one operation after the other: a function of a fit's
    parameters as a vector (k,), and that with its Jacobian by the estimates, (k, p)."""
    arrays_of = arrays_at(fit)

    def flat(estimates: jax.Array, arrays: dict[str, Any]) -> jax.Array:
        return jnp.ravel(jnp.asarray(function(Parameters(fit.names, estimates, arrays))))

    def both(at: jax.Array) -> tuple[jax.Array, jax.Array]:
        arrays, slopes = arrays_of(at)
        along: Any = lambda *direction: jax.jvp(flat, (at, arrays), direction)
        directions = jnp.asarray(np.eye(len(at))), slopes
        value, jacobian = jax.vmap(along, in_axes=-1, out_axes=(None, -1))(*directions)
        return value, jacobian

    return lambda at: flat(at, arrays_of(at)[0]), both


@dataclasses.dataclass(frozen=True)
class ByName:
    """A parameter, or an estimate of the table, by its name."""

    name: str

    def __call__(self, parameters: Parameters) -> Any:
        return parameters[self.name] if "[" in self.name else getattr(parameters, self.name)


def jacobian_of(fit: Any) -> np.ndarray:
    """The Jacobian of the estimates in free coordinates, (p, q)."""
    return np.asarray(estimates_at(fit.coordinates, fit.best.x)[1])


def errors_of(fit: Any, jacobian: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard errors (k,) and covariance (k, k) of functions with that Jacobian (k, q) in free
    coordinates; infinite for those that have no finite slope."""
    steep = ~np.all(np.isfinite(jacobian), axis=1)
    bars = fit.free_errors.of(np.where(steep[:, None], 0.0, jacobian))
    covariance = np.where(steep[:, None] | steep, np.nan, bars.covariance)
    covariance[steep, steep] = np.inf
    return np.where(steep, np.inf, bars.standard_errors), covariance


def notes_of(fit: Any, name: str, errors: np.ndarray, coverages: np.ndarray) -> tuple[str, ...]:
    """Sentences on the errors of a derived quantity, and on its Wald interval."""
    if not fit.converged:
        return (NO_MAXIMUM.format(name, fit.reason),)
    if np.any(np.isinf(errors)):
        return (AT_AN_EDGE.format(name),)
    if not len(coverages):
        return (NOT_COMPARED.format(name),)
    if not np.any(untrusted(coverages)):
        return ()
    advice = " Use profile()." if fit.information in ("observed", "expected") else ""
    return (f"Do not trust the Wald interval of {name}. {far_from_quadratic(coverages)}{advice}",)


def far_from_quadratic(coverages: np.ndarray) -> str:
    """The reason why Wald intervals are not to be trusted, in a sentence."""
    least = float(coverages.min())
    if least > 0.5:
        return (
            "The log-likelihood is not quadratic: Wald's of 95 % would hold the truth in about "
            f"{least:.0%} of such samples."
        )
    return "The log-likelihood is far from quadratic."
