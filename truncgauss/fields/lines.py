r"""Covariances of processes on a line, by a state of few numbers.

    s_t = A_t s_{t-1} + q_t,   q_t ~ Normal(0, Q_t),   X_t = h_t' s_t + tau_t e_t

Kernels of one dimension have this form if they are quasiseparable: of Matern's those of smoothness
1/2, 3/2 and 5/2, and sums and products of such.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from truncgauss.arrays.pytrees import (
    as_float_array,
    frozen_pytree,
    is_concrete,
    static_field,
    values_of,
)
from truncgauss.fields import building, field_particles, line_particles
from truncgauss.gaussian.covariances import Covariance, check_positive
from truncgauss.words.arguments import explained, explained_class

MOST_DENSE = 20_000  # coordinates of which the matrix is formed
NEAR = 0.5  # distance, by the rate of the process, up to which Q is integrated
NODES, WEIGHTS = np.polynomial.legendre.leggauss(10)


@explained_class
@frozen_pytree
class MaternProcess:
    r"""The kernel of Matern of a process on a line, for `Directed.from_quasiseparable`.

    With r = sqrt(2 nu) |x - y| / scale it is sigma^2 exp(-r) times 1, 1 + r or 1 + r + r^2 / 3 for
    nu = 1/2, 3/2 and 5/2. The state is the process and its derivatives, in units of the rate
    sqrt(2 nu) / scale. The three methods are those of the kernels in `tinygp.kernels.quasisep`,
    which serve as well.

    Args:
        sigma: standard deviation.
        scale: in the units of the points.
        smoothness: nu, which is 0.5, 1.5 or 2.5 (static).

    Reference:
        Hartikainen and Sarkka (2010), Kalman filtering and smoothing solutions to temporal Gaussian
        process regression models.

    Example:
        >>> move = tg.MaternProcess(2.0, 1.0, smoothness=0.5).transition_matrix(0.0, 1.0)
        >>> round(float(move[0, 0]), 4)
        0.3679
    """

    sigma: Any
    scale: Any
    smoothness: float = static_field(default=1.5)

    def __post_init__(self) -> None:
        if self.smoothness not in (0.5, 1.5, 2.5):
            raise ValueError(
                f"MaternProcess: smoothness must be 0.5, 1.5 or 2.5, got {self.smoothness!r}."
            )
        check_positive("MaternProcess", "sigma", self.sigma)
        check_positive("MaternProcess", "scale", self.scale)

    def stationary_covariance(self) -> Array:
        """The covariance of the state at one point."""
        third = 1.0 / 3.0
        whole = np.array([[1.0, 0.0, -third], [0.0, third, 0.0], [-third, 0.0, 1.0]])
        size = round(self.smoothness + 0.5)
        own = np.eye(size) if size < 3 else whole
        return jnp.square(jnp.asarray(self.sigma, float)) * own

    def observation_model(self, x: Any) -> Array:
        """The row that takes the process from the state."""
        return jnp.eye(round(self.smoothness + 0.5))[0] + 0.0 * jnp.asarray(x, float)

    def transition_matrix(self, start: Any, end: Any) -> Array:
        """The transposed matrix that takes the mean of the state from one point to a later one."""
        t = (2.0 * self.smoothness) ** 0.5 * (end - start) / self.scale
        one = jnp.ones_like(t)
        if self.smoothness == 0.5:
            rows = [[one]]
        elif self.smoothness == 1.5:
            rows = [[1.0 + t, -t], [t, 1.0 - t]]
        else:
            half = 0.5 * t**2
            rows = [
                [1.0 + t + half, -half, half - t],
                [t + 2.0 * half, 1.0 + t - 2.0 * half, 2.0 * half - 3.0 * t],
                [half, t - half, 1.0 - 2.0 * t + half],
            ]
        return jnp.exp(-t) * jnp.stack([jnp.stack(row) for row in rows])


@frozen_pytree
class QuasiSeparable(Covariance):
    r"""The covariance of a process on a line at n points, by the state of its kernel.

    Made by `Directed.from_quasiseparable`. log P of a `Box`, and the log-likelihood of one row with
    exact, limited and missing values, are those of the kernel itself, in time and memory that grow
    as n, by `LineParticles`.

    Attributes:
        order: the point at each place, from the largest, shape (n,).
        transition: A of each place from the one before, shape (n, s, s); 0 at the first.
        innovation: Q of each place, shape (n, s, s); the covariance of the state at the first.
        observation: h of each place, shape (n, s).
        noise: tau of each point, shape (n,).
    """

    order: Float[Array, "*batch n"]  # places are floats: all leaves of a problem have one dtype
    transition: Float[Array, "*batch n s s"]
    innovation: Float[Array, "*batch n s s"]
    observation: Float[Array, "*batch n s"]
    noise: Float[Array, "*batch n"]

    event_ranks = {"order": 1, "transition": 3, "innovation": 3, "observation": 2, "noise": 1}
    methods = (line_particles.LineParticles,)

    @classmethod
    @explained
    def from_kernel(cls, kernel: Any, x: Any, noise: Any = 0.0) -> "QuasiSeparable":
        """As `Directed.from_quasiseparable`, which has the arguments.

        With T the kernel's transition matrix, P the covariance of its state and g = dT/dx at 0,
        A = T' and Q = P - A P A'. That difference loses the digits of close points, where
        Q = int_0^x A(u) q A(u)' du, of q = -(g' P + P g), is integrated instead.
        """
        if not hasattr(kernel, "observation_model"):
            raise TypeError(
                "from_quasiseparable: kernel must be a tg.MaternProcess or one of "
                f"tinygp.kernels.quasisep, got {type(kernel).__name__}. A function k(x, y) is for "
                "tg.Directed.from_points."
            )
        points = as_float_array(x, "from_quasiseparable: x")
        known = values_of(x)  # NumPy's numbers become traced ones under `jax.jit`
        if known is None or points.ndim != 1 or not np.all(np.isfinite(np.asarray(known, float))):
            raise ValueError(
                "from_quasiseparable: x must be finite numbers of shape (n,), not traced by "
                f"jax.jit, since points are sorted by them; got shape {points.shape}."
            )
        noise = jnp.broadcast_to(as_float_array(noise, "from_quasiseparable: noise"), points.shape)
        sites = np.asarray(known, points.dtype)
        building.check_distinct(sites[:, None], noise if is_concrete(noise) else 1.0)
        order = np.argsort(-sites, kind="stable")
        placed = points[order]
        observation = jax.vmap(kernel.observation_model)(placed)
        unit = jnp.sqrt(jnp.diagonal(kernel.stationary_covariance()))
        whole = kernel.stationary_covariance() / unit[:, None] / unit

        def transition(start: Array, end: Array) -> Array:
            return (kernel.transition_matrix(start, end) * unit[:, None] / unit).T

        def of_place(start: Array, end: Array) -> tuple[Array, Array]:
            gap, at_end = end - start, transition(start, end)

            def along(gap: Array) -> Array:
                return transition(start, start + gap)

            still, rate = jax.jvp(along, [jnp.zeros_like(gap)], [jnp.ones_like(gap)])
            near = gap * jnp.max(jnp.sum(jnp.abs(rate), axis=1)) < NEAR
            spectrum = -(rate @ whole + whole @ rate.T)
            # An entry of rounding is 0; its derivative is kept.
            size = jnp.abs(rate) @ jnp.abs(whole)
            rounding = 16.0 * jnp.finfo(size.dtype).eps * (size + size.T)
            left = jnp.where(jnp.abs(spectrum) > rounding, 0.0, spectrum)
            spectrum -= lax.stop_gradient(left)
            short = jnp.where(near, gap, 0.0)
            some = jax.vmap(along)(0.5 * short * (1.0 + jnp.asarray(NODES, gap.dtype)))
            parts = jnp.asarray(WEIGHTS, gap.dtype)[:, None, None] * 0.5 * short
            close = jnp.sum(parts * (some @ spectrum @ jnp.swapaxes(some, 1, 2)), axis=0)
            return at_end, jnp.where(near, close, whole - at_end @ whole @ at_end.T)

        moves, news = jax.vmap(of_place)(placed[1:], placed[:-1])
        return cls._of(
            order=order,
            transition=jnp.concatenate([0.0 * whole[None], moves]),
            innovation=jnp.concatenate([whole[None], news]),
            observation=observation * unit,
            noise=noise,
        )

    @classmethod
    def _of(cls, **leaves: Any) -> "QuasiSeparable":
        self = object.__new__(cls)
        dtype = leaves["transition"].dtype
        self._set(**{name: jnp.asarray(leaf, dtype) for name, leaf in leaves.items()})
        self.check()
        return self

    @property
    def dimension(self) -> int:
        return self.order.shape[-1]

    @property
    def variances(self) -> Float[Array, "*batch n"]:
        for _ in self.batch_shape:
            return jax.vmap(lambda one: one.variances)(self)
        states = self.innovation[0]  # of a stationary state at every place
        placed = jnp.sum((self.observation @ states) * self.observation, axis=-1)
        return placed[jnp.argsort(self.order)] + self.noise**2

    @property
    def covariance_matrix(self) -> Float[Array, "*batch n n"]:
        """The dense matrix, for at most 20,000 coordinates."""
        if self.dimension > MOST_DENSE:
            raise ValueError(
                f"QuasiSeparable: a dense matrix of {self.dimension} coordinates is too large, and "
                "nothing but tg.LineParticles() and tg.log_likelihood serves so many."
            )
        for _ in self.batch_shape:
            return jax.vmap(lambda one: one.covariance_matrix)(self)
        whole, n = self.innovation[0], self.dimension

        def step(cross: Array, part: Any) -> tuple[Array, Array]:
            """Covariances of the earlier values with the state."""
            k, move, row = part
            cross = (cross @ move.T).at[k].set(row @ whole)
            return cross, cross @ row

        parts = jnp.arange(n), self.transition, self.observation
        rows = lax.scan(step, jnp.zeros((n, len(whole)), whole.dtype), parts)[1]
        lower, place = jnp.tril(rows), jnp.argsort(self.order)
        matrix = lower + jnp.tril(rows, -1).T
        return matrix[place[:, None], place] + jnp.diag(self.noise**2)

    @property
    def scale_tril(self) -> Float[Array, "*batch n n"]:
        return jnp.linalg.cholesky(self.covariance_matrix)

    def scaled(self, by: Float[Array, "*batch n"]) -> "QuasiSeparable":
        placed = jnp.take_along_axis(by, self.order.astype(int), axis=-1)[..., None]
        return self._of(
            order=self.order,
            transition=self.transition,
            innovation=self.innovation,
            observation=self.observation * placed,
            noise=self.noise * by,
        )

    def log_likelihood(self, observations: Any, loc: Any, method_given: Any, key: Any) -> Any:
        """The log-likelihood of each row by `LineParticles`."""
        kind = line_particles.LineParticles
        return field_particles.likelihood(kind, self, observations, loc, method_given, key)

    def check(self) -> None:
        for name in ("transition", "innovation", "observation", "noise"):
            values = getattr(self, name)
            if is_concrete(values) and not np.all(np.isfinite(np.asarray(values))):
                raise ValueError(f"QuasiSeparable: {name} holds NaN or infinity.")
        if is_concrete(self.noise) and not np.all(np.asarray(self.noise) >= 0):
            raise ValueError("QuasiSeparable: noise is a standard deviation, so not negative.")
