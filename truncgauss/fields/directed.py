"""Covariances of fields, given by the distribution of each block of sites given earlier ones."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from truncgauss.arrays.pytrees import (
    as_float_array,
    check_numbers,
    frozen_pytree,
    is_concrete,
    static_field,
    values_of,
)
from truncgauss.fields import building, field_particles, guide, lines, precision
from truncgauss.gaussian.covariances import Covariance, check_positive
from truncgauss.words.arguments import explained

MOST_DENSE = 20_000  # coordinates of which the matrix is formed
MOST_EXACT = 4096  # points of which the matrix of the kernel is factorised


@frozen_pytree
class Directed(Covariance):
    r"""The covariance of a field in which each coordinate depends on few earlier ones.

    .. math:: f_i = \sum_j w_{ij} f_{n_{ij}} + \sigma_i z_i, \qquad X_i = f_i + \tau_i e_i

    with independent standard normal z and e, neighbours n_ij < i and X less its mean. A sparse
    precision matrix, a tree and Vecchia's approximation of a random field are of this form, and
    `Markov` is the case of one neighbour. The noise tau is no part of the field: given the field,
    coordinates are independent, which is why few neighbours are enough.

    Of `from_points` the neighbours are those of a block of sites, with a factor of the covariance
    of the block in place of sigma.

    Args:
        neighbours: places of earlier coordinates in the order, shape (n, m), filled up with n.
        weights: of the neighbours, shape (n, m), 0 where there is none.
        scale: standard deviation of each coordinate given its neighbours, positive, shape (n,).
        order: the coordinate at each place, shape (n,); by default 0, 1, 2, ...
        noise: tau, shape (n,) or a number, of each coordinate.

    Raises:
        ValueError: if the shapes disagree, a neighbour is not earlier, or a scale is not positive
            (of values only where they are known, not while tracing).

    References:
        Vecchia (1988), Estimation and model identification for continuous spatial processes.
        Guinness (2018), Permutation and grouping methods for sharpening Gaussian process
        approximations, for blocks. Katzfuss and Guinness (2021), A general framework for Vecchia
        approximations of Gaussian processes, for noise.

    Example:
        >>> chain = tg.Directed([[3], [0], [1]], [[0.0], [0.5], [0.5]], [1.0, 1.0, 1.0])
        >>> chain.covariance_matrix
        Array([[1.    , 0.5   , 0.25  ],
               [0.5   , 1.25  , 0.625 ],
               [0.25  , 0.625 , 1.3125]], dtype=float64)
    """

    order: Float[Array, "*batch n"]  # places are floats: all leaves of a problem have one dtype
    neighbours: Float[Array, "*batch blocks m"]
    slots: Float[Array, "*batch sites"]
    weights: Float[Array, "*batch blocks size m"]
    scale: Float[Array, "*batch blocks size size"]
    noise: Float[Array, "*batch n"]
    coarse_weights: Float[Array, "*batch blocks size half"]
    coarse_scale: Float[Array, "*batch blocks size size"]
    guide_weights: Float[Array, "*batch blocks size few"]
    guide_scale: Float[Array, "*batch blocks size size"]
    exact_root: Float[Array, "*batch places places"]  # of the field in order, or empty
    width: int = static_field()  # of the guide's state

    event_ranks = {
        "order": 1,
        "neighbours": 2,
        "slots": 1,
        "weights": 3,
        "scale": 3,
        "noise": 1,
        "coarse_weights": 3,
        "coarse_scale": 3,
        "guide_weights": 3,
        "guide_scale": 3,
        "exact_root": 2,
    }
    methods = (field_particles.FieldParticles,)
    is_sparse = True

    @explained
    def __init__(
        self, neighbours: Any, weights: Any, scale: Any, order: Any = None, noise: Any = 0.0
    ) -> None:
        scale = as_float_array(scale, "Directed: scale")
        weights = as_float_array(weights, "Directed: weights")
        places = as_float_array(neighbours, "Directed: neighbours")
        n = scale.shape[-1] if scale.ndim else 0
        if weights.shape != places.shape or weights.ndim != 2 or scale.shape != weights.shape[:1]:
            raise ValueError(
                "Directed: neighbours and weights must have one shape (n, m) and scale (n,), got "
                f"{places.shape}, {weights.shape} and {scale.shape}."
            )
        if is_concrete((places, weights)) and np.any((places == n) & (weights != 0)):
            raise ValueError(f"Directed: weights must be 0 where neighbours hold {n}, for none.")
        order = jnp.arange(n) if order is None else order
        noise = jnp.broadcast_to(as_float_array(noise, "Directed: noise"), (n,))
        known, slots, width = values_of(places), np.arange(n + 1), n
        if known is not None:
            _check_places(np.asarray(known), 1)
            slots, width = building.slots_of(np.asarray(known, int), 1)
        self._fill(
            width,
            order=as_float_array(order, "Directed: order"),
            neighbours=places,
            slots=jnp.asarray(slots),
            noise=noise,
            **_alike(weights[:, None, :], scale[:, None, None]),
        )

    @classmethod
    @explained
    def from_points(
        cls,
        points: Any,
        kernel: Callable[[Array, Array], Array],
        neighbours: int = 256,
        noise: Any = 0.0,
        block: int = 64,
        neighbour_points: Any = None,
        exact: bool | None = None,
    ) -> "Directed":
        """A random field at scattered points, exact or by the approximation of Vecchia in blocks.

        The points are divided into compact blocks, and the field in a block is given by that at
        the nearest points of earlier blocks. If `exact` this only guides draws: their weights are
        by the whole matrix of the kernel, of which everything is then a function. If not, it is
        the field, and the error of this approximation shows in the stderr of
        `log_probability`: a field with half of the neighbours is compared.

        Args:
            points: shape (n, p), or (n,) on a line, of a plane or a space: degrees of longitude and
                latitude are warned of only where they span more than half of the earth.
            kernel: the covariance k(x, y) of the field at two points of shape (p,), of JAX; it is
                differentiated in whatever numbers it holds. tinygp's kernels are such functions
                by their method `evaluate`.
            neighbours: earlier points on which a block depends.
            noise: standard deviation of what is added to the field at each point (the root of a
                nugget), a number or shape (n,).
            block: points in a block.
            neighbour_points: the points in coordinates in which nearness is judged, (n, q), such as
                divided by the ranges of an anisotropic kernel; by default `points`. Numbers, not
                tracers.
            exact: whether to factorise the matrix of the kernel, n^3 / 3 multiplications and n^2 /
                2 for each draw; by default up to 4,096 points.

        Raises:
            ValueError: for points that are not finite, of which two are equal without noise, or a
                kernel that is not positive definite on them.

        Example:
            >>> line = tg.Directed.from_points(
            ...     jnp.arange(50.0), lambda x, y: jnp.exp(-jnp.abs(x - y)[0] / 5.0)
            ... )
            >>> line.dimension, round(float(line.covariance_matrix[0, 1]), 4)
            (50, 0.8187)
        """
        by = points if neighbour_points is None else neighbour_points  # numbers, within jit too
        points = as_float_array(points, "from_points: points")
        points = points[:, None] if points.ndim == 1 else points
        building.check_kernel(kernel, points)
        places = building.places_of(by, points.shape)
        if neighbour_points is None:
            building.warn_of_degrees(places)
        exact = exact or (exact is None and len(points) <= MOST_EXACT)
        plan = building.arranged(places, neighbours, block, exact)
        check_numbers(noise, "from_points: noise")
        if np.shape(noise) not in ((), (len(points),)):
            raise ValueError(
                f"from_points: noise must be a number or have shape ({len(points)},), one for each "
                f"point, got {np.shape(noise)}."
            )
        if is_concrete(noise) and not np.all(np.asarray(noise) > 0):
            building.check_distinct(points, noise)
        noise = jnp.broadcast_to(as_float_array(noise, "from_points: noise"), (len(points),))
        nugget = building.SHARE * noise**2
        parts = building.factors(points, kernel, nugget, plan)
        if exact:
            root, parts = building.root_of(points, kernel, nugget, plan), lax.stop_gradient(parts)
        else:
            root = jnp.zeros((0, 0))
        parts["exact_root"] = root
        building.check_positive_definite(parts)
        noise *= (1.0 - building.SHARE) ** 0.5
        known: dict[str, Any] = {"neighbours": plan.neighbours, "slots": plan.slots}
        return cls._of(plan.width, order=plan.order, noise=noise, **known, **parts)

    @classmethod
    @explained
    def from_matrix(cls, covariance: Any, noise: Any = 0.0) -> "Directed":
        """A field by its dense covariance matrix, (n, n), whose rows may be in any order.

        They are put in an order in which correlated ones are near; the field is then that of
        `from_points` with the entries of the matrix, by which it is differentiated, for a kernel.

        Raises:
            ValueError: for a matrix that is traced by `jax.jit`, not finite, not symmetric or not
                positive definite.

        Example:
            >>> equal = tg.Directed.from_matrix(0.5 + 0.5 * jnp.eye(40))
            >>> found = tg.log_probability(jnp.zeros(40), equal, tg.Box(0.0, jnp.full(40, jnp.inf)))
            >>> bool(abs(found.log_prob + jnp.log(41.0)) < 0.01)
            True
        """
        matrix = as_float_array(covariance, "from_matrix: covariance")
        places = building.coordinates_of(matrix)
        rows = jnp.arange(len(matrix), dtype=matrix.dtype)
        entry: Any = lambda x, y: matrix[x[0].astype(int), y[0].astype(int)]
        return cls.from_points(rows, entry, noise=noise, neighbour_points=places)

    @classmethod
    @explained
    def from_precision(
        cls, indptr: Any, indices: Any, data: Any, noise: Any = 0.0, block: int = 64
    ) -> "Directed":
        """A Gaussian Markov random field by its sparse precision matrix, without approximation.

        The coordinates are put in an order of small band (reverse Cuthill and McKee), in blocks no
        smaller than the band, each of which depends on the one before. Time and memory grow as the
        number of coordinates times the band, times the band or the block.

        Args:
            indptr, indices, data: of a `scipy.sparse.csr_array`, with both halves of the symmetric
                matrix. It is differentiated in data.
            noise: standard deviation of what is added to the field, a number or shape (n,).
            block: coordinates in a block, at least.

        Raises:
            ValueError: for a matrix that is not square, symmetric or positive definite, and where
                in that order neighbours are more than 1,024 places apart.

        Reference:
            Rue and Held (2005), Gaussian Markov Random Fields, section 2.4.

        Example:
            >>> from scipy import sparse
            >>> Q = sparse.csr_array([[2.0, -1.0, 0.0], [-1.0, 2.0, -1.0], [0.0, -1.0, 2.0]])
            >>> tg.Directed.from_precision(Q.indptr, Q.indices, Q.data).covariance_matrix
            Array([[0.75, 0.5 , 0.25],
                   [0.5 , 1.  , 0.5 ],
                   [0.25, 0.5 , 0.75]], dtype=float64)
        """
        order, neighbours, weights, scale = precision.factors(indptr, indices, data, block)
        n, (slots, width) = len(order), building.slots_of(neighbours, scale.shape[-1])
        noise = jnp.broadcast_to(as_float_array(noise, "from_precision: noise"), (n,))
        places = {"order": order, "neighbours": neighbours, "slots": slots}
        return cls._of(width, noise=noise, **places, **_alike(weights, scale))

    @staticmethod
    def from_quasiseparable(kernel: Any, x: Any, noise: Any = 0.0) -> lines.QuasiSeparable:
        """A process on a line at any number of points, without approximation.

        Time and memory grow as the number of points, times the square of the kernel's state.

        Args:
            kernel: a `MaternProcess`, or a kernel of `tinygp.kernels.quasisep`, a sum or a product
                of them: what has the methods `stationary_covariance()`, `observation_model(x)` and
                `transition_matrix(x1, x2)`, which depends on x2 - x1 alone. It is differentiated in
                whatever numbers it holds.
            x: the points, in any order, shape (n,). Numbers, not tracers.
            noise: standard deviation of what is added to the process at each point (the root of a
                nugget), a number or shape (n,).

        Raises:
            ValueError: for points that are not finite, or of which two are equal without noise.

        Example:
            >>> line = tg.Directed.from_quasiseparable(tg.MaternProcess(1.0, 5.0), jnp.arange(50.0))
            >>> line.dimension, round(float(line.covariance_matrix[0, 1]), 4)
            (50, 0.9522)
        """
        return lines.QuasiSeparable.from_kernel(kernel, x, noise)

    @classmethod
    def _of(cls, width: int, **leaves: Any) -> "Directed":
        self = object.__new__(cls)
        dtype = leaves["weights"].dtype
        self._fill(width, **{name: jnp.asarray(leaf, dtype) for name, leaf in leaves.items()})
        return self

    def _fill(self, width: int, **leaves: Array) -> None:
        object.__setattr__(self, "width", width)
        self._set(**leaves)
        self.check()

    @property
    def dimension(self) -> int:
        return self.order.shape[-1]

    @property
    def block_size(self) -> int:
        """The number of coordinates in a block."""
        return self.coarse_scale.shape[-1]

    def in_blocks(self, values: Array, fill: float) -> Array:
        """Values of the coordinates, shape (n,), in blocks of the order, filled up."""
        blocks, size = self.weights.shape[-3], self.block_size
        placed = values[self.order.astype(int)]
        filled = jnp.full(blocks * size, fill, values.dtype).at[: self.dimension].set(placed)
        return filled.reshape(blocks, size)

    @property
    def covariance_matrix(self) -> Float[Array, "*batch n n"]:
        """The dense matrix, for at most 20,000 coordinates."""
        if self.dimension > MOST_DENSE:
            raise ValueError(
                f"Directed: a dense matrix of {self.dimension} coordinates is too large, and "
                "nothing but tg.FieldParticles() and tg.log_likelihood serves so many."
            )
        for _ in self.batch_shape:
            return jax.vmap(lambda one: one.covariance_matrix)(self)
        size, place = self.block_size, jnp.argsort(self.order)
        if self.exact_root.size:
            root = self.exact_root[place]
            return root @ root.T + jnp.diag(self.noise**2)
        whole = self.weights.shape[-3] * size

        def step(matrix: Array, part: Any) -> tuple[Array, None]:
            """A block's covariances with earlier ones, by regression, and with itself."""
            start, neighbours, weights, scale = part
            near = neighbours.astype(int)
            rows = weights @ matrix[near]
            inner = rows[:, near] @ weights.T + scale @ scale.T
            rows = lax.dynamic_update_slice_in_dim(rows, inner, start, 1)
            matrix = lax.dynamic_update_slice_in_dim(matrix, rows, start, 0)
            return lax.dynamic_update_slice_in_dim(matrix, rows.T, start, 1), None

        parts = size * jnp.arange(whole // size), self.neighbours, self.weights, self.scale
        start = jnp.zeros((whole + 1, whole + 1), self.weights.dtype)
        matrix, _ = lax.scan(step, start, parts)
        return matrix[place[:, None], place] + jnp.diag(self.noise**2)

    @property
    def num_normals(self) -> int:
        """The number of standard normal variables that `combined` takes."""
        return self.weights.shape[-3] * self.block_size + self.dimension

    def combined(self, normals: Array) -> Array:
        """Vectors with this covariance, (n, k), from standard normal ones, (num_normals, k)."""
        size, n = self.block_size, self.dimension
        normals, noise = normals[:-n], normals[-n:]
        if self.exact_root.size:
            paths = self.exact_root @ normals
        else:
            blocks = normals.reshape(-1, size, normals.shape[1])
            own = self.weights, jnp.zeros(blocks.shape[:2]), self.scale
            near, places = self.neighbours, jnp.arange(len(normals)).reshape(-1, size)
            paths = guide.paths(guide.BlockConditional(*own), blocks, places, len(normals), near)
            paths = paths.reshape(-1, normals.shape[1])
        return paths[jnp.argsort(self.order)] + self.noise[:, None] * noise

    @property
    def scale_tril(self) -> Float[Array, "*batch n n"]:
        return jnp.linalg.cholesky(self.covariance_matrix)

    def scaled(self, by: Float[Array, "*batch n"]) -> "Directed":
        if self.batch_shape or by.ndim > 1:
            raise ValueError("Directed: scaled takes one field at a time; use jax.vmap for more.")
        own = self.in_blocks(by, 1.0)
        flat = jnp.append(own.reshape(-1), 1.0)
        before = flat[self.neighbours.astype(int)]
        changed: dict[str, Array] = {}
        for kind in "", "coarse_", "guide_":
            weights, scale = getattr(self, f"{kind}weights"), getattr(self, f"{kind}scale")
            ratio = own[:, :, None] / before[:, None, : weights.shape[-1]]
            changed |= {f"{kind}weights": weights * ratio, f"{kind}scale": scale * own[:, :, None]}
        return self._of(
            self.width,
            order=self.order,
            neighbours=self.neighbours,
            slots=self.slots,
            noise=self.noise * by,
            exact_root=self.exact_root * flat[: len(self.exact_root), None],
            **changed,
        )

    def log_likelihood(self, observations: Any, loc: Any, method_given: Any, key: Any) -> Any:
        """The log-likelihood of each row by `FieldParticles`."""
        kind = field_particles.FieldParticles
        return field_particles.likelihood(kind, self, observations, loc, method_given, key)

    def check(self) -> None:
        check_positive("Directed", "scale", jnp.diagonal(self.scale, axis1=-2, axis2=-1))
        if not is_concrete(self.order):
            return
        order, n = np.asarray(self.order), self.dimension
        if not np.array_equal(np.sort(order, axis=-1), np.broadcast_to(np.arange(n), order.shape)):
            raise ValueError("Directed: order must hold each of 0, ..., n - 1 once.")
        if is_concrete(self.noise) and not np.all(np.asarray(self.noise) >= 0):
            raise ValueError("Directed: noise is a standard deviation and must not be negative.")
        for name in ("weights", "scale", "noise"):
            values = getattr(self, name)
            if is_concrete(values) and not np.all(np.isfinite(np.asarray(values))):
                raise ValueError(f"Directed: {name} holds NaN or infinity.")
        if not is_concrete(self.neighbours):
            return
        _check_places(np.asarray(self.neighbours), self.block_size)


def _alike(weights: Array, scale: Array) -> dict[str, Array]:
    """Leaves of regressions that are what they say, no approximation: there are no coarser ones."""
    every = {f"{kind}weights": weights for kind in ("", "coarse_", "guide_")}
    every |= {f"{kind}scale": scale for kind in ("", "coarse_", "guide_")}
    return every | {"exact_root": jnp.zeros((0, 0), weights.dtype)}


def _check_places(neighbours: np.ndarray, size: int) -> None:
    """Raise ValueError for a neighbour that is no earlier place; a batch has one more axis."""
    blocks = neighbours.shape[-2]
    first, fill = size * np.arange(blocks)[:, None], blocks * size
    wrong = ~(((neighbours >= 0) & (neighbours < first)) | (neighbours == fill)) | (
        neighbours % 1 != 0
    )
    if wrong.any():
        *_, i, j = (int(k) for k in np.argwhere(wrong)[0])
        raise ValueError(
            f"Directed: neighbours must be places that come earlier in the order, got "
            f"{neighbours[..., i, j].flat[0]:g} for place {first[i, 0]}; write {fill} where there "
            "is none. Where neighbours form a cycle no order exists."
        )
