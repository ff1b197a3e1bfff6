"""The contract of balls and ellipsoids."""

from jaxtyping import Array, Float

from truncgauss.gaussian.regions.region import Region


class QuadraticRegion(Region):
    """All x with |L^-1 (x - center)| <= 1, for a lower-triangular matrix L, its root."""

    center: Float[Array, "*batch d"]

    @property
    def root(self) -> Float[Array, "d d"]:
        """L, of a region without leading axes."""
        raise NotImplementedError(f"{type(self).__name__} does not define root.")

    def moved(self, by: Float[Array, "*#batch d"]) -> "QuadraticRegion":
        """The set of all x + by, for x inside."""
        raise NotImplementedError(f"{type(self).__name__} does not define moved.")

    @property
    def dimension(self) -> int:
        return self.center.shape[-1]

    @property
    def is_convex(self) -> bool:
        return True
