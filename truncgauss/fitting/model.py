"""Models of rows: what maximum likelihood needs to know of what it fits."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.importing import imported
from truncgauss.arrays.pytrees import Estimate, frozen_pytree
from truncgauss.fitting.descent import SAME, Descent, Path
from truncgauss.fitting.existence import UNDETERMINED
from truncgauss.fitting.likelihood_fit import Ending, LikelihoodFit
from truncgauss.fitting.newton import Loss, Point, point, verdict
from truncgauss.fitting.widening import Precision
from truncgauss.optimize.uncertainty import Certificate
from truncgauss.words.earlier import warn_of

BASELESS = (
    "Not converged: at the end the estimate of log P rests on too few effective samples (its "
    "standard error is inf). Give the method more points, or use another one such as "
    "tg.Automatic()."
)
NO_OTHER = "The likelihood has no other maximum."
UNSEEN = (
    "Only {} of the fitted distribution lies where observations can be made: the rest follows from "
    "the Gaussian shape, which no observation can check."
)
MOSTLY_UNSEEN = 0.5  # fraction not truncated, of a fit or a component, below which that is said
LONE = " Only 1 of {} starts reached it: other maxima may be higher, see num_starts."


def in_words(fraction: float) -> str:
    """A fraction with two digits, or that it is smaller than any number."""
    return f"{fraction:.2g}" if fraction > 0 else "less than 1e-300"


@frozen_pytree
class RowsLoss(Loss):
    """Minus the mean log-likelihood of a row, of a model that defines `log_likelihoods`.

    Attributes:
        model: with the rows.
        size: the total weight of the rows.
    """

    model: Any
    size: jax.Array
    method = None

    def total(self, x: jax.Array) -> Estimate:
        """The log-likelihood of all rows, exact."""
        rows, weights = self.model.log_likelihoods(x), self.model.weights
        total = jnp.sum(rows) if weights is None else jnp.asarray(weights) @ rows
        return Estimate(total, jnp.zeros_like(total))

    def scores(self, x: jax.Array) -> jax.Array:
        scores, weights = jax.jacfwd(self.model.log_likelihoods)(x), self.model.weights
        return scores if weights is None else jnp.asarray(weights)[:, None] * scores


class Model:
    """A model of rows, which `maximum_likelihood` fits.

    Its parameters are free coordinates x, a vector (q,) in which steps may go anywhere, or nearly
    so: logarithms of what is positive, say. A model is a pytree that holds its rows and defines
    `names`, `estimates`, `log_likelihoods` and `starts`; all else has a default. One whose loss is
    another pytree defines `loss_at` in place of `log_likelihoods`.

    Attributes:
        names: of the estimates, (p,).
        weights: how often each row counts, (n,); None for once.
        num_rows: the weight of the rows that say something; None for that of all.
        unique: whether the likelihood is known to have one maximum at most.
        complete: whether all rows are exact, so that other maxima are rare: where all starts lead
            to one, no others are spoken of.
        precision: where the inverse covariance of a Gaussian stands in x, which a step may lower
            only so far, and which is 0 where the Gaussian widens for ever; None if nowhere.
        expensive: whether the Hessian is to be learnt from gradients until a maximum is near.
        rounds: how often plans of the loss are made anew.
        quick: whether the fit may compute profile intervals however long they take.
        damping: of the first step, in the units of the points.
        flat: what it means where the curvature is not positive at the end.
        no_start: the message where the likelihood is finite at no start.
        undetermined_reason: what to say of `undetermined` estimates, with {} for their names.
        descent: the class of the steps from one start or several.

    Example:
        >>> from truncgauss.arrays.pytrees import frozen_pytree
        >>> @frozen_pytree
        ... class Exponential(tg.fitting.Model):
        ...     rows: jax.Array
        ...     names = ("rate",)
        ...
        ...     def estimates(self, x):
        ...         return jnp.exp(x)
        ...
        ...     def log_likelihoods(self, x):
        ...         return x - self.rows * jnp.exp(x)
        ...
        ...     def starts(self, count):
        ...         return [np.zeros(1)]
        >>> fit = tg.fitting.maximum_likelihood(Exponential(jnp.array([1.0, 2.0, 3.0])))
        >>> fit.converged, fit.estimates.round(6), fit.errors.round(6)
        (True, array([0.5]), array([0.288675]))
    """

    names: Any
    weights: Any = None
    num_rows: Any = None
    unique: Any = False
    complete: Any = False
    precision: Any = None
    expensive: Any = False
    rounds: Any = 4
    quick: Any = True
    damping: Any = 0.0
    flat: Any = (
        "The observations do not determine the parameters, or some of these lie so far off that "
        "rounding hides it."
    )
    no_start: Any = (
        "The likelihood or its derivatives are not finite at the start. Give another start, or "
        "another method."
    )
    undetermined_reason: Any = UNDETERMINED
    descent: Any = Descent

    # ---------------------------------------------------------------- to be defined

    def estimates(self, x: jax.Array) -> jax.Array:
        """The numbers that `names` calls, in the user's units, (p,)."""
        raise NotImplementedError(f"{type(self).__name__} defines no estimates(x).")

    def log_likelihoods(self, x: jax.Array) -> jax.Array:
        """The log-likelihood of each row, (n,)."""
        raise NotImplementedError(f"{type(self).__name__} defines no log_likelihoods(x).")

    def starts(self, count: int | None) -> list[np.ndarray]:
        """Free coordinates to begin with, the best guess first; so many, or as many as seem
        worthwhile."""
        raise NotImplementedError(f"{type(self).__name__} defines no starts(count).")

    # ---------------------------------------------------------------- with defaults

    @property
    def coordinates(self) -> Any:
        """A pytree with the method `estimates`."""
        return self

    def loss_at(self, x: np.ndarray) -> Any:
        """Minus the mean log-likelihood of a row, a `fitting.Loss`, with the plans of its integrals
        made at x."""
        if self.weights is not None:
            return RowsLoss(self, jnp.sum(jnp.asarray(self.weights, float)))
        rows = jax.eval_shape(self.log_likelihoods, jnp.asarray(x, float))
        return RowsLoss(self, jnp.asarray(float(rows.shape[0])))

    def loss_that_reaches(self, x: np.ndarray) -> Any:
        """`loss_at` by means that serve everywhere, where there are quicker ones that do not."""
        return self.loss_at(x)

    def points(self, loss: Any) -> Callable[[np.ndarray], Point]:
        """x -> the loss with gradient and curvature, by default the Hessian."""
        return functools.partial(point, loss)

    def images(self, x: np.ndarray) -> list[np.ndarray]:
        """Further starts, such as where symmetries of the likelihood take its best maximum, x; also
        of the best end of all starts where that is higher, and no maximum."""
        return []

    def rank(self, path: Path) -> tuple[Any, ...]:
        """The order of the paths from several starts, the best one being the least.

        A path that rises higher than every maximum, but has none, is the best: what the others
        reached are no estimates then.
        """
        beyond = 0.0 if path.arrived else SAME / float(path.loss.size)
        return not path.end.finite, path.end.loss + beyond

    def is_endless(self, x: np.ndarray) -> bool:
        """Whether a Gaussian has widened so far that the rows see a straight slope of it."""
        precision: Precision | None = self.precision
        return precision is not None and bool(precision.wide(x).size)

    def obstacle(self, path: Path) -> str | None:
        """Why there is no maximum where a path leads, in words; None if nothing is known of it."""
        return None

    def ending(self, path: Path, proof: Certificate, obstacle: str | None) -> tuple[bool, str]:
        """Whether this is a maximum, and a sentence."""
        if not path.end.finite:
            return False, (
                "Not converged: the likelihood or its derivatives are not finite at the end."
            )
        if np.isinf(proof.stderr):
            return False, BASELESS
        if obstacle is not None:
            return False, obstacle
        if proof.positive_definite:
            method = "method" if proof.stderr > 0 and hasattr(self, "method") else ""
            converged, reason = verdict(proof.distance, len(path.visited) - 1, method)
            if converged and path.agreed == 1 and path.others[1:] and not self.unique:
                reason += LONE.format(len(path.others))
            return converged, reason
        return False, (
            "Not converged: the curvature of the likelihood is not positive beyond rounding at the "
            f"end (smallest scaled eigenvalue {proof.curvature:.1e}). {self.flat}"
        )

    def undetermined(self, path: Path, errors: np.ndarray) -> np.ndarray:
        """A mask of estimates of which the rows say nothing, though the path seems to have
        arrived."""
        return np.zeros(len(errors), bool)

    def total(self, path: Path) -> Any:
        """The log-likelihood of all rows, if that is known cheaper than by the loss: `log_prob`,
        `stderr` and what else of the path's end `wald_coverages` and `judged` are to be given."""
        return None

    def wald_coverages(
        self, path: Path, total: Any, errors: np.ndarray, compare: Callable[..., np.ndarray]
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        """About the coverages of the Wald intervals of all estimates, (p,), or (0,) if they are not
        computed, see `fitting.wald`; and sentences on them.

        Args:
            path: to the maximum.
            total: the log-likelihood of all rows, as `total` returned it.
            errors: standard errors of the estimates, (p,).
            compare: numbers of estimates, by default all -> their coverages.
        """
        return compare(), ()

    def judged(self, path: Path, total: Any, converged: bool) -> tuple[Any, Any]:
        """The mean probability that a row could be seen, and the rows farthest from their means."""
        return 1.0, None

    def score_root(self, path: Path) -> np.ndarray | None:
        """R with R R^T the sum of the outer products of the scores of all rows, (q, r), if that is
        known cheaper than by the loss."""
        return None

    def other_maxima(self, ending: Ending, path: Path) -> tuple[str, ...]:
        """Whether there may be higher maxima, in sentences. Where a likelihood that has one maximum
        at most was not followed to it, nothing is said of others."""
        if self.unique:
            return (NO_OTHER,) if ending.converged else ()
        if np.isnan(ending.certificate.curvature):  # known to have no maximum at the end
            lower = path.agreed == 0 and any(other.arrived for other in path.others)
            return (path.starts,) if lower else ()
        if self.complete and path.starts and path.agreed == len(path.others):
            return (path.starts,)
        others = f". {path.starts}" if path.starts else "; try num_starts."
        return (f"The likelihood may have other maxima{others}",)

    def unseen(self, fraction: Any) -> tuple[str, ...]:
        """The warning that most of the fitted distribution lies where no row could be seen, by the
        mean probability that one could."""
        return (UNSEEN.format(in_words(fraction)),) if fraction < MOSTLY_UNSEEN else ()

    def notes(self, ending: Ending, common: tuple[str, ...], path: Path) -> tuple[str, ...]:
        """Sentences that a reader of the fit must know.

        Args:
            ending: the fit without notes.
            common: what is to be said of any model.
            path: to the end of the fit.
        """
        return common

    def result(self, ending: Ending, path: Path) -> Any:
        """The fit, from what every fit has."""
        return LikelihoodFit(**vars(ending), standard_errors=ending.errors)


def arrays_of_start(what: str, start: Any, names: Sequence[str], earlier: Any = None) -> list[Any]:
    """The parameters of a start, in the order of their names.

    Args:
        what: the function, for messages.
        start: a dictionary with these names, as `dict(fit.parameters())` of another fit; for one
            version also its values alone, in this order.
        names: of the parameters.
        earlier: the values alone where their earlier form was another.

    Raises:
        ValueError: for something else, or other names.
    """
    shape = f"{{{', '.join(f'{name!r}: ...' for name in names[:10])}{', ...' * bool(names[10:])}}}"
    values: list[Any] = []
    if isinstance(start, Mapping):
        values = [start[name] for name in names] if set(start) == set(names) else []
    elif earlier is not None or (isinstance(start, tuple | list) and len(start) == len(names)):
        values = list(start if earlier is None else earlier)
        text = str(dict(zip(names, [np.asarray(value).tolist() for value in values])))
        text = shape if len(text) > 100 else text.replace("inf", "jnp.inf")
        warn_of(f"{what}: a start without names", f"start={text}")
    imported("truncgauss.words.misfits").check_start(what, dict(zip(names, values)))
    if values:
        return values
    got = f"the names {', '.join(map(str, start))}" if isinstance(start, Mapping) else repr(start)
    raise ValueError(
        f"{what}: start must be a dictionary {shape}, such as dict(fit.parameters()) of another "
        f"fit, got {got}."
    )
