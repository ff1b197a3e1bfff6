"""Selections by probit or logistic curves of linear scores."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from truncgauss.arrays.pytrees import as_float_array, frozen_pytree, is_concrete, static_field
from truncgauss.gaussian.regions.region import Region
from truncgauss.special.logspace import log_sigmoid
from truncgauss.special.tails import log_ndtr, undefined


@frozen_pytree
class ScoreSelection(Region):
    """Every x, kept with the product of F((w_j . x - m_j) / t_j): see `Selection.probit`.

    Args:
        weights: w, shape (r, d), or (d,) for one curve; leading axes, one selection each.
        midpoint: m, shape (r,) or ().
        width: t, positive, shape (r,) or ().
        curve: F, "probit", the normal distribution function, or "logistic" (static).
    """

    weights: Float[Array, "*batch r d"]
    midpoint: Float[Array, "*batch r"]
    width: Float[Array, "*batch r"]
    curve: str = static_field(default="probit")

    event_ranks = {"weights": 2, "midpoint": 1, "width": 1}
    parameter_roles = {"weights": "slope", "midpoint": "location", "width": "scale"}

    def __init__(self, weights: Any, midpoint: Any, width: Any, curve: str = "probit") -> None:
        what = f"Selection.{curve}"
        w, m, t = (
            as_float_array(value, f"{what}: {name}")
            for name, value in (("weights", weights), ("midpoint", midpoint), ("width", width))
        )
        w = w[None] if w.ndim == 1 else w
        if w.ndim == 0 or 0 in w.shape:
            raise ValueError(
                f"{what}: weights need shape (d,), or (r, d) for r curves, got {w.shape}."
            )
        m, t = (jnp.broadcast_to(x, w.shape[-2:-1]) if x.ndim == 0 else x for x in (m, t))
        if not m.shape[-1] == t.shape[-1] == w.shape[-2]:
            raise ValueError(
                f"{what}: of {w.shape[-2]} curves midpoint and width need one number "
                f"each in their last axis, got shapes {m.shape} and {t.shape}."
            )
        for name, value in (("weights", w), ("midpoint", m), ("width", t)):
            if is_concrete(value) and not np.all(np.isfinite(np.asarray(value))):
                raise ValueError(f"{what}: {name} holds NaN or infinity.")
        if is_concrete(t) and not np.all(np.asarray(t) > 0):
            raise ValueError(
                f"{what}: width must be positive, got {np.min(np.asarray(t))}. A sharp "
                "limit is a tg.Polyhedron."
            )
        self._set(weights=w, midpoint=m, width=t)
        object.__setattr__(self, "curve", curve)

    @property
    def parameters(self) -> dict[str, Array]:
        """Weights, midpoint and width by name."""
        return {name: getattr(self, name) for name in self.event_ranks}

    def with_parameters(self, parameters: dict[str, Array]) -> "ScoreSelection":
        """The selection with other numbers in place of its parameters."""
        return ScoreSelection(**parameters, curve=self.curve)

    @property
    def dimension(self) -> int:
        return self.weights.shape[-1]

    @property
    def positive_width(self) -> Float[Array, "*batch r"]:
        """The width; NaN where it is negative, as only a traced one can be."""
        return undefined(self.width < 0, self.width)

    @property
    def is_convex(self) -> bool:
        return True  # log F is concave

    def score_selection(self) -> "ScoreSelection":
        return self

    def flipped(self) -> "ScoreSelection":
        """The selection of what one curve does not keep: 1 - F(z) = F(-z)."""
        return ScoreSelection(-self.weights, -self.midpoint, self.width, self.curve)

    def carried(self, x: Float[Array, "n d"]) -> tuple[Float[Array, "n d"], Float[Array, ""]]:
        return x, jnp.zeros((), x.dtype)  # what moves with its numbers is the weight of a point

    def closeness(self, x: Float[Array, "*#points d"]) -> Float[Array, "*points"]:
        scores = jnp.einsum("...rd,...d->...r", self.weights, x)
        log_curve = {"probit": log_ndtr, "logistic": log_sigmoid}[self.curve]
        return jnp.sum(log_curve((scores - self.midpoint) / self.positive_width), axis=-1)

    def kept(self, x: Float[Array, "*#points d"]) -> Float[Array, "*points"]:
        return jnp.exp(self.closeness(x))

    def contains(self, x: Float[Array, "*#points d"]) -> Bool[Array, "*points"]:
        return self.kept(x) > 0
