"""A selection known from simulations alone: which of many simulated objects it finds."""

import copy
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

from truncgauss.arrays.pytrees import as_float_array, frozen_pytree, is_concrete
from truncgauss.gaussian.regions.region import Region
from truncgauss.words.arguments import explained_class

EFFECTIVE_PER_ROW = 4.0  # effective injections that a sample needs for each of its rows
ABOVE_ONE = (
    "{}: the injections give a probability above 1{}. Either log_draw_density is not the log of a "
    "density that is normalised over all that could be drawn, or num_total not the number of all "
    "draws; or under this Gaussian too few of them are effective, and more are needed."
)


@explained_class
@frozen_pytree
class Injections(Region):
    r"""A selection known by the simulated objects that it finds: injections.

    Of N objects drawn from a known density q, as of signals injected into the data of a survey, n
    were found, at x_1 to x_n. The probability that an object of density p is found is

    .. math:: P = \int p(x)\, s(x)\, dx \approx \frac1N \sum_{i=1}^{n} \frac{p(x_i)}{q(x_i)}

    With p a Gaussian, or a t by `df`, `log_probability` returns its log and the standard error of
    that, with derivatives of any order in the Gaussian. In `Observations` it is the selection of
    complete rows without bounds: see `log_mean_weights` for how many injections n rows need, and
    for densities of other families, such as mixtures. Nothing tells whether another point would be
    found, so that draws are refused.

    Args:
        points: found ones, shape (n, d).
        log_draw_density: log q at these, (n,), normalised over all that could be drawn.
        num_total: N, the number of draws, found or not.

    Raises:
        ValueError: for shapes that disagree, no point or one that is not finite, or a num_total
            that is not above their number.

    References:
        Tiwari (2018), Estimation of the sensitive volume for gravitational-wave source populations
        using weighted Monte Carlo integration. Farr (2019), Accuracy requirements for empirically
        measured selection functions.

    Example:
        >>> x = 3.0 * jax.random.normal(jax.random.key(0), (100_000, 1))
        >>> log_q = jax.scipy.stats.norm.logpdf(x[:, 0], 0.0, 3.0)
        >>> seen = x[:, 0] > 1.0  # what the survey finds, which nobody needs to know
        >>> survey = tg.Injections(x[seen], log_q[seen], num_total=len(x))
        >>> log_prob, stderr = tg.log_probability([0.0], [[1.0]], survey)
        >>> bool(abs(log_prob - tg.special.log_ndtr(-1.0)) < 3 * stderr), bool(stderr < 0.02)
        (True, True)
    """

    points: Float[Array, "*batch n d"]
    log_draw_density: Float[Array, "*batch n"]
    num_total: Float[Array, "*batch"]
    num_rows: Float[Array, "*batch"]  # of the sample in whose likelihood it stands, else 0

    event_ranks = {"points": 2, "log_draw_density": 1, "num_total": 0, "num_rows": 0}
    answers_points = False

    def __init__(
        self,
        points: Real[ArrayLike, "n d"],
        log_draw_density: Real[ArrayLike, " n"],
        num_total: Real[ArrayLike, ""],
    ) -> None:
        x = as_float_array(points, "Injections: points")
        logs = as_float_array(log_draw_density, "Injections: log_draw_density")
        total = as_float_array(num_total, "Injections: num_total").astype(x.dtype)
        if x.ndim != 2 or logs.shape != x.shape[:1]:
            raise ValueError(
                "Injections: points need shape (n, d) and log_draw_density (n,), one for each "
                f"point that was found; got {x.shape} and {logs.shape}."
            )
        if len(x) == 0:
            raise ValueError(
                "Injections: no point was found, so that nothing is known of the selection. Draw "
                "more, or closer to what it finds."
            )
        if is_concrete((x, logs)) and not (np.isfinite(x).all() and np.isfinite(logs).all()):
            raise ValueError("Injections: points and log_draw_density must be finite.")
        if total.ndim or is_concrete(total) and not total > len(x):
            raise ValueError(
                f"Injections: num_total is the number of all draws, found or not, got {num_total} "
                f"with {len(x)} that were found. A selection that finds all needs no correction."
            )
        self._set(points=x, log_draw_density=logs, num_total=total, num_rows=jnp.zeros_like(total))

    @property
    def dimension(self) -> int:
        return self.points.shape[-1]

    def of_sample(self, rows: Any) -> "Injections":
        """The selection of a sample, an `Observations`, for whose likelihood its error matters."""
        ends = rows.lower, rows.upper
        bounded = is_concrete(ends) and bool(np.any(np.asarray(ends[0]) != np.asarray(ends[1])))
        if bounded or rows.latent:
            raise ValueError(
                "Observations: Injections select complete rows, without bounds or missing entries "
                'and without limits_on="latent": of parts of a row they know no probability.'
            )
        number = len(ends[0]) if rows.weights is None else jnp.sum(rows.weights)
        number = jnp.asarray(number, self.num_total.dtype)
        region = copy.copy(self)
        object.__setattr__(region, "num_rows", jnp.broadcast_to(number, self.batch_shape))
        return region

    def check_probability(self, caller: str, log_prob: Any, stderr: Any) -> None:
        """Raise ValueError for a log probability above 0 whose error is therefore infinite."""
        above = np.isposinf(np.asarray(stderr)) & (np.asarray(log_prob) > 0)
        if above.any():
            most = np.exp(np.max(np.asarray(log_prob)[above]))
            raise ValueError(ABOVE_ONE.format(caller, f", {most:.3g}"))

    def check_enough(self, caller: str, weights: Any, log_prob: Any, stderr: Any) -> None:
        """Raise ValueError if the likelihood of weighted rows is NaN for too few injections, or
        has an infinite error, as it has where a probability is above 1."""
        if np.isposinf(np.asarray(stderr)).any():
            raise ValueError(ABOVE_ONE.format(caller, ""))
        each = np.asarray(stderr) / (1.0 if weights is None else np.maximum(weights, 1e-300))
        refused = np.isnan(np.asarray(log_prob)) & np.isfinite(each) & (each > 0)
        if not refused.any():
            return
        effective, rows = float(np.min(each[refused] ** -2)), float(np.max(self.num_rows))
        needed = EFFECTIVE_PER_ROW * rows
        raise ValueError(
            f"{caller}: {effective:.3g} injections are effective under this Gaussian, and "
            f"the {rows:g} rows need {needed:.3g} of them. About {needed / effective:.3g} times as "
            "many draws would do, or as many from a density closer to that of what is found."
        )

    def contains(self, x: Float[Array, "*#points d"]) -> Any:
        raise NotImplementedError(
            "Injections: it is not known whether a point would be found, only the probability of "
            "all under a density. Use log_probability or log_likelihood, or for a density of your "
            "own log_mean_weights."
        )

    margins = closeness = kept = contains
