"""What a fit of observed rows is about: its loss, its starts, and what is known of its maxima."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import likelihood
from truncgauss.execution import pooling
from truncgauss.fitting.centring import Centred, UserUnits
from truncgauss.fitting.existence import (
    AT_SINGULAR,
    AT_ZERO,
    NO_VARIANCE,
    absurd,
    explained,
    refuse,
    rising_sentence,
)
from truncgauss.fitting.expected import ExpectedLoss, expected_loss
from truncgauss.fitting.inference import judged_rows, notes_of, summary, total_of
from truncgauss.fitting.observations_loss import (
    Coordinates,
    ObservationsLoss,
    gaussian_at,
    values_at,
)
from truncgauss.fitting.observations_result import ObservationsFit, shaped
from truncgauss.fitting.observations_start import (
    in_natural,
    scattered,
    widened,
)
from truncgauss.fitting.optimization.descent import MANY_STARTS, MOST_ROWS, Path
from truncgauss.fitting.optimization.widening import Precision, along
from truncgauss.fitting.regression_loss import (
    LOG,
    RegressionLoss,
    full_design,
    terms_of,
)
from truncgauss.fitting.rising import direction_of, endless, exact_rows, impossible
from truncgauss.likelihood import Observations, filled_up
from truncgauss.probability.method import Method

FEW_ENTRIES = 2**12  # of rows of several outcomes, up to which Wald's intervals are compared
MANY_INTEGRALS = 50  # of three dimensions, whose Hessian takes ten times as long as a gradient
WIDE = 10.0  # standard deviations of a start that is to find out whether wider ones are better
NOT_DECIDED = (
    "This is a maximum, but that the likelihood does not grow beyond it far away is not proved: "
    "for several outcomes inside regions no criterion is known. {}"
)
ONE_START = "Only one start was tried; see num_starts."
WIDE_START = "A start ten times as wide led to nothing higher."
SINGULAR = 1e-10  # smallest eigenvalue of a correlation matrix that is one no longer


@dataclasses.dataclass(frozen=True)
class Rows:
    """What is to be fitted.

    Attributes:
        given: the rows, as the user has them.
        near: what is fitted.
        coordinates: of the coefficients and the covariance of that.
        scale: spread of each outcome (d,), in whose units a Gaussian is wide.
        each: whether the scores of single rows are asked for.
        simple: whether the rows are intervals of one outcome, whose masses have closed forms.
        method: how other probabilities are computed.
        key: its random key.
    """

    given: Observations
    near: Centred
    coordinates: Coordinates
    scale: np.ndarray
    each: bool
    simple: bool
    method: Method
    key: jax.Array

    @property
    def observations(self) -> Observations:
        """The rows as they are fitted."""
        return self.near.rows

    @property
    def designs(self) -> tuple[jax.Array, ...] | None:
        return self.near.covariates

    @property
    def estimated(self) -> UserUnits:
        """The coordinates in the units of the user."""
        return self.near.coordinates(self.coordinates)

    @property
    def names(self) -> tuple[str, ...]:
        """What to call the estimates, by the names of covariates that have some."""
        labels = self.given.labels
        found = self.coordinates.names(self.designs is not None, labels)
        for j, part in enumerate(self.near.designs or ()):
            start, several = sum(self.coordinates.sizes[:j]), len(self.coordinates.sizes) > 1
            for i, name in enumerate(part.names or ()):
                found[start + i] = f"coefficients[{labels[j]}][{name}]" if several else name
        return tuple(found)

    @property
    def size(self) -> jax.Array:
        return self.near.size

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return pooling.total(np.asarray(self.observations.num_rows)).item()

    def starts(self, x: np.ndarray, count: int | None) -> list[np.ndarray]:
        """Free coordinates to begin with, the first of them x; so many, or as many as the problem
        asks for and can bear."""
        n, d = self.num_rows, self.observations.dimension
        cheap = n <= MOST_ROWS if self.simple else n * d <= FEW_ENTRIES and self.exact_integrals
        several = cheap and not self.unique
        count = count or (MANY_STARTS if several else 1)
        found = [x, *scattered(x, self.scale, self.coordinates, count - 1)]
        if self.wide_start and count > 1:
            found.append(widened(x, self.coordinates, WIDE))
        return found

    @property
    def exact_integrals(self) -> bool:
        """Whether no integral has more than three dimensions, so that all are quick."""
        rows = self.observations
        if rows.region is not None:
            return rows.dimension <= 3
        return int(pooling.largest(np.max(self.limited))) <= 3

    @property
    def limited(self) -> np.ndarray:
        """How many entries of each row are limited, (n,): neither exact nor missing."""
        lower, upper = (
            np.asarray(side) for side in (self.observations.lower, self.observations.upper)
        )
        return np.sum((lower < upper) & ~(np.isinf(lower) & np.isinf(upper)), axis=1)

    @property
    def dear(self) -> bool:
        """Whether Hessians are to be avoided: many rows are integrals in three dimensions."""
        if self.simple:
            return False
        return pooling.total(np.sum(self.limited == 3)).item() > MANY_INTEGRALS

    @property
    def wide_start(self) -> bool:
        """Whether the likelihood may grow as the Gaussian widens, beyond a maximum."""
        free = bool(self.coordinates.scales)
        return free and not self.unique and self.observations.region is not None

    def losses(self) -> Callable[[np.ndarray], Any]:
        """x -> the loss, with the method's plans made at x."""
        if self.simple:
            loss = self.simple_loss()
            return lambda x: loss
        general = self.general_loss()

        def renewed(x: np.ndarray) -> ObservationsLoss:
            at = gaussian_at(general, jnp.asarray(x))
            held = likelihood.hold(self.method, general.observations, *at)
            return dataclasses.replace(general, method=held)

        return renewed

    def general_loss(self) -> ObservationsLoss:
        """The loss of any rows, filled up to one of few lengths, by a method without plans."""
        rows, designs = filled_up(self.observations, self.designs)
        return ObservationsLoss(
            rows, designs, self.coordinates, self.size, self.method, self.key, pooling.current(),
        )  # fmt: skip

    def expected_loss(self, path: Path) -> ExpectedLoss:
        """The loss whose Hessian is the expected information of a row where a descent ended."""
        return expected_loss(self.general_loss(), self.method, path.end.x)

    def simple_loss(self) -> RegressionLoss:
        """The loss of one outcome seen in intervals, whose integrals have closed forms."""
        place, n = self.coordinates, self.observations.num_rows
        each = self.each or self.designs is not None
        design = np.ones((n if each else 1, 1))
        if self.designs is not None:
            design = np.asarray(self.designs[0])
        return RegressionLoss(
            terms=terms_of(self.observations, each),
            design=full_design(design),
            scale_design=None,
            fixed_scale=None if place.single else jnp.log(place.fixed[0, 0]) / 2,
            size=self.size,
            link=place.power if place.single else LOG,
            sums=pooling.current(),
        )

    def check_possible(self, renewed: Callable[[np.ndarray], Any], x: np.ndarray) -> None:
        """Raise ValueError if a row cannot be, or nothing is known of the start."""
        rows, n = self.observations, self.observations.num_rows
        if self.simple:
            wrong = impossible(rows)
        else:
            loss = renewed(x)
            loc, covariance = gaussian_at(loss, jnp.asarray(x))
            own = loss.observations
            found = likelihood.log_likelihood(own, loc, covariance, loss.method, loss.key)
            wrong = np.flatnonzero(np.isneginf(np.asarray(found.log_prob)))
        with pooling.checked_together():
            if len(wrong):
                first = wrong[0]
                raise ValueError(
                    f"fit_observations: {len(wrong)} of {n} row(s) are impossible, first row "
                    f"{first}: lower {self.given.lower[first]}, upper {self.given.upper[first]} do "
                    "not meet its region. Correct the region, or remove those rows."
                )

    def width(self, x: np.ndarray) -> float:
        """The largest standard deviation in any direction, in units of the outcomes' spread."""
        matrix = np.asarray(values_at(self.coordinates, jnp.asarray(x))[1])
        if not self.coordinates.scales or not np.all(np.isfinite(matrix)):
            return 0.0
        return float(np.sqrt(np.linalg.eigvalsh(matrix / np.outer(self.scale, self.scale))[-1]))

    def no_maximum(self, path: Path) -> str | None:
        """Why there is no maximum, if there is none."""
        matrix = np.asarray(values_at(self.coordinates, jnp.asarray(path.end.x))[1])
        risen = self.rising()
        if risen is not None:
            return risen
        if path.endless:
            return endless(self.observations) + self.towards(matrix, -1)
        if self.observations.noise is not None and self.coordinates.scales:
            shares = np.diagonal(matrix) / self.scale**2
            if shares[list(self.coordinates.scales)].min() < NO_VARIANCE and self.explained(path):
                return AT_ZERO
        if len(matrix) == 1:
            return None
        root = np.sqrt(np.diagonal(matrix))
        if np.linalg.eigvalsh(matrix / np.outer(root, root))[0] > SINGULAR:
            return None
        noise = self.observations.noise
        if noise is not None and pooling.every(np.linalg.eigvalsh(np.asarray(noise)).min() > 0):
            return AT_SINGULAR.format(self.towards(matrix, 0))
        return (
            "There is no maximum: the likelihood grows as the covariance becomes singular. Some "
            "outcomes are linear functions of others in every row." + self.towards(matrix, 0)
        )

    def explained(self, path: Path) -> bool:
        """Whether the likelihood is no lower without the variances that are negligible."""
        place = self.coordinates
        coefficients, matrix = place.values(jnp.asarray(path.end.x))
        shares = np.diagonal(np.asarray(matrix)) / self.scale**2
        small = np.isin(np.arange(len(shares)), place.scales) & (shares < NO_VARIANCE)
        flat = np.concatenate([np.asarray(own) for own in coefficients])

        def log_likelihood(factor: float) -> float:
            factors = np.where(small, factor, 1.0)
            x = place.free(flat, np.asarray(matrix) * np.outer(factors, factors))
            return float(total_of(path.loss, jnp.asarray(x)).log_prob)

        return explained(log_likelihood)

    def towards(self, matrix: np.ndarray, which: int) -> str:
        """In which direction of the outcomes that happens."""
        return along(np.linalg.eigh(matrix / np.outer(self.scale, self.scale))[1][:, which])

    def rising(self) -> str | None:
        """The direction along which the likelihood never falls, in words."""
        rows, place = self.observations, self.coordinates
        apart = np.count_nonzero(np.asarray(place.fixed), axis=1) == 1
        for j, size in enumerate(place.sizes):
            known = rows.noise is not None or j not in place.scales or not apart[j]
            alone = [j] in (place.independent_blocks() or []) and rows.noise is None
            found = direction_of(rows, j, self.near.design_of(j), known, alone)
            if found is not None:
                found = self.near.direction_of(j, found)
                start = sum(place.sizes[:j])
                names = list(self.names[start : start + size])
                return rising_sentence(found, names, exact_rows(rows, j))
        return None

    @property
    def unique(self) -> bool:
        """Whether the log-likelihood is known to be concave in some coordinates.

        It is in the natural parameters for complete, exact rows, truncated or not, and in Olsen's
        for one outcome, censored or in intervals but not truncated.
        """
        rows, place = self.observations, self.coordinates
        if rows.noise is not None:
            return False
        if len(place.sizes) == 1 and not place.scales and rows.region is None:
            return True  # log-concave in the mean
        return (self.exact and self.free_natural) or (place.single and rows.region is None)

    @property
    def exact(self) -> bool:
        """Whether every entry is known exactly."""
        rows = self.observations
        return pooling.every(np.array_equal(np.asarray(rows.lower), np.asarray(rows.upper)))

    def in_natural(self, x: np.ndarray) -> tuple["Rows", np.ndarray]:
        """The same problem in coordinates where it is concave, if there are such for several
        outcomes, and where to begin; else as it is."""
        if self.coordinates.single or not (self.unique and self.exact and self.free_natural):
            return self, x
        found = in_natural(self.observations, self.designs, self.coordinates)
        if found is None:
            return self, x
        return dataclasses.replace(self, coordinates=found[0]), found[1]

    @property
    def precision(self) -> Precision | None:
        """Where the inverse covariance stands in x; None where it does not."""
        return self.coordinates.precision(self.scale)

    @property
    def free_natural(self) -> bool:
        """Whether natural parameters, the inverse covariance and its product with the coefficients,
        are free: then outcomes that depend on each other have the same covariates."""
        blocks = self.coordinates.independent_blocks()
        if blocks is None or self.designs is None:
            return blocks is not None
        return pooling.every(
            all(
                np.array_equal(self.designs[block[0]], self.designs[j])
                for block in blocks
                for j in block
            )
        )

    def result(self, path: Path, information: str, starts: str) -> ObservationsFit:
        rows, place, x = self.observations, self.coordinates, jnp.asarray(path.end.x)
        names = self.names
        compare = self.simple or self.num_rows * rows.dimension <= FEW_ENTRIES
        fields = summary(
            path, self.estimated, names, (self.given, rows), information,
            self.no_maximum(path), compare,
            expected=self.expected_loss(path) if information == "expected" else None,
        )  # fmt: skip
        fitted = max(place.sizes) if place.scales else -np.inf
        fraction, fields["outliers"] = judged_rows(path.loss, x, rows, fitted, fields["converged"])
        matrix = np.asarray(values_at(place, x)[1])
        ends = np.cumsum(place.sizes)
        if not self.unique:
            refuse(fields, self.undetermined(fields["errors"], matrix))
        notes = notes_of(fields, self.unique, starts, fraction) + self.undecided(fields, starts)
        return ObservationsFit(
            **fields,
            coefficients=tuple(np.split(fields["estimates"][: ends[-1]], ends[:-1])),
            covariance_matrix=matrix,
            standard_errors=shaped(place, matrix, fields["errors"]),
            fraction_not_truncated=fraction,
            notes=notes + self.near.notes,
            references=self.references(information),
        )

    def undecided(self, fields: dict[str, Any], starts: str) -> tuple[str, ...]:
        """What is not known of the maximum's existence."""
        several = len(self.coordinates.sizes) > 1 and self.observations.region is not None
        if not several or self.unique or not fields["converged"]:
            return ()
        tried = ONE_START if not starts else WIDE_START if self.wide_start else ""
        return (NOT_DECIDED.format(tried).strip(),)

    def undetermined(self, errors: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Which coefficients the rows do not determine."""
        found, start = [], 0
        for j, size in enumerate(self.coordinates.sizes):
            width = max(self.scale[j], float(matrix[j, j]) ** 0.5)
            own = errors[start : start + size]
            found.append(absurd(own, width, self.near.transform_of(j)))
            start += size
        return np.concatenate(found)

    def references(self, information: str) -> tuple[str, ...]:
        """What the fit rests on, as keys of the literature."""
        rows, place = self.observations, self.coordinates
        lower, upper = np.asarray(rows.lower), np.asarray(rows.upper)
        limited = pooling.some(np.any(lower != upper))
        missing = pooling.some(np.any(np.isinf(lower) & np.isinf(upper)))
        found = {
            "marquardt1963": True,
            "tobin1958": limited,
            "cohen1991": rows.region is not None,
            "olsen1978": place.single and place.power == 1 and limited,
            "barndorff1978": (place.single and place.power == 2) or place.white is not None,
            "little2019": missing,
            "genz1992": rows.dimension > 3 and (limited or rows.region is not None),
            "white1982": information == "sandwich",
            "efron1978": information == "expected",
        }
        return tuple(key for key, used in found.items() if used)
