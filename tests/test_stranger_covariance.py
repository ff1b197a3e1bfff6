"""A structure of a covariance that is written here alone, with an exact method of its own."""

import jax
import jax.numpy as jnp
import numpy as np

import truncgauss as tg
from truncgauss.arrays.pytrees import frozen_pytree
from truncgauss.gaussian.covariances import Covariance


@frozen_pytree
class PairedQuadrature(tg.Method):
    """log P of a box as the sum over pairs of neighbours, each a problem in two dimensions."""

    @classmethod
    def candidate(cls, problem, num_points):
        return cls() if problem.region.is_box else None

    def reason(self, problem):
        return "pairs of neighbours, each integrated by quadrature"

    def replicate(self, loc, covariance, region, key):
        pairs = lambda x: x.reshape(-1, 2)
        parts = tg.log_probability(
            pairs(loc), covariance.blocks(), tg.Box(pairs(region.low), pairs(region.high))
        )
        return tg.Estimate(parts.log_prob.sum(), jnp.sqrt(jnp.square(parts.stderr).sum()))


@frozen_pytree
class Paired(Covariance):
    """Coordinates 0 and 1, 2 and 3, ... have a correlation each, and no others have one."""

    scale: jax.Array  # (..., d)
    correlation: jax.Array  # (..., d / 2)

    event_ranks = {"scale": 1, "correlation": 1}
    methods = (PairedQuadrature,)

    @property
    def dimension(self):
        return self.scale.shape[-1]

    def blocks(self):
        """The covariance matrix of each pair, shape (..., d / 2, 2, 2)."""
        one = jnp.ones_like(self.correlation)
        rows = [[one, self.correlation], [self.correlation, one]]
        unit = jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)
        scale = self.scale.reshape(*self.correlation.shape, 2)
        return unit * scale[..., :, None] * scale[..., None, :]

    @property
    def scale_tril(self):
        factors, half = jnp.linalg.cholesky(self.blocks()), self.correlation.shape[-1]
        whole = jnp.einsum("...kij,kl->...kilj", factors, jnp.eye(half))
        return whole.reshape(*self.correlation.shape[:-1], 2 * half, 2 * half)

    def scaled(self, by):
        return Paired(self.scale * by, self.correlation)

    def check(self):
        """Correlations beyond 1 give NaN."""


D = 8
LOC = jnp.linspace(-0.5, 1.0, D)
COVARIANCE = Paired(jnp.linspace(0.5, 2.0, D), jnp.array([0.9, -0.5, 0.0, 0.3]))
REGION = tg.Box(jnp.linspace(-2.0, 0.5, D), jnp.array([jnp.inf, 3.0] * (D // 2)))


def log_prob(loc, covariance):
    return tg.log_probability(loc, covariance, REGION).log_prob


def test_the_method_of_a_stranger_is_chosen_and_exact():
    matrix = COVARIANCE.covariance_matrix
    found = tg.log_probability(LOC, COVARIANCE, REGION)
    assert found.stderr == 0
    # The blocks of the matrix are recognised in its numbers: another way to the same sum.
    np.testing.assert_allclose(found.log_prob, log_prob(LOC, matrix), rtol=1e-12)
    sampled = tg.log_probability(LOC, COVARIANCE, REGION, method=tg.Separation())
    assert abs(sampled.log_prob - found.log_prob) < 5 * sampled.stderr
    assert "PairedQuadrature: pairs of neighbours" in tg.explain(LOC, COVARIANCE, REGION)
    assert isinstance(tg.Automatic().hold(LOC, COVARIANCE, REGION), PairedQuadrature)


def test_its_derivatives_and_rows_are_those_of_the_matrix():
    def of_matrix(loc, scale, correlation):
        return log_prob(loc, Paired(scale, correlation).covariance_matrix)

    def of_structure(loc, scale, correlation):
        return log_prob(loc, Paired(scale, correlation))

    inputs = LOC, COVARIANCE.scale, COVARIANCE.correlation
    slopes = jax.grad(of_structure, (0, 1, 2))(*inputs)
    others = jax.grad(of_matrix, (0, 1, 2))(*inputs)
    for slope, other in zip(slopes, others):
        np.testing.assert_allclose(slope, other, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(jax.jit(of_structure)(*inputs), of_matrix(*inputs), rtol=1e-12)
    rows = jnp.stack([LOC, LOC + 0.25])
    one_by_one = [log_prob(row, COVARIANCE) for row in rows]
    np.testing.assert_allclose(log_prob(rows, COVARIANCE), one_by_one, rtol=1e-12)


def test_other_regions_are_left_to_other_methods():
    region = tg.Polyhedron(jnp.ones((1, D)), [0.0], [jnp.inf])
    found = tg.log_probability(LOC, COVARIANCE, region)
    variance = jnp.sum(COVARIANCE.covariance_matrix)
    truth = jax.scipy.stats.norm.logcdf(LOC.sum() / jnp.sqrt(variance))
    assert abs(found.log_prob - truth) <= 5 * found.stderr + 1e-9
