"""Regions and covariances: geometry, batches, and errors that speak."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from truncgauss.gaussian.covariances import CovarianceMatrix, as_covariance

INF = jnp.inf


def test_box_margins_are_distances_inside_each_face():
    box = tg.Box([0.0, -INF], [1000.0, 2.0])
    margins = box.margins(jnp.array([[1.0, 1.0], [-3.0, 5.0]]))
    np.testing.assert_array_equal(margins, [[1, INF, 999, 1], [-3, INF, 1003, -3]])
    np.testing.assert_array_equal(box.contains(jnp.array([[1.0, 1.0], [-3.0, 5.0]])), [True, False])


def test_infinite_faces_have_no_gradient():
    def total(low, high, x):
        margins = tg.Box(low, high).margins(x)
        return jnp.where(jnp.isfinite(margins), margins, 0.0).sum()

    low, high = jnp.array([0.0, -INF]), jnp.array([INF, 2.0])
    gradients = jax.grad(total, (0, 1, 2))(low, high, jnp.array([0.5, 0.5]))
    for gradient, expected in zip(gradients, ([-1, 0], [0, 1], [1, -1])):
        np.testing.assert_array_equal(gradient, expected)


def test_polyhedron_margins_do_not_depend_on_how_a_row_is_scaled():
    x = jnp.array([0.3, -0.7])
    wedge = tg.Polyhedron([[3.0, 4.0], [0.0, 0.0]], [0.0, -1.0], [10.0, 1.0])
    scaled = tg.Polyhedron([[30.0, 40.0], [0.0, 0.0]], [0.0, -1.0], [100.0, 1.0])
    np.testing.assert_allclose(wedge.margins(x), scaled.margins(x), rtol=1e-15)
    # distance of x from the line 3 x + 4 y = 0, signed: (0.9 - 2.8) / 5
    np.testing.assert_allclose(wedge.margins(x)[0], -0.38, rtol=1e-14)
    assert not wedge.contains(x)


def test_box_and_identity_polyhedron_agree():
    low, high = jnp.array([-1.0, -INF, 0.2]), jnp.array([1.0, 3.0, INF])
    x = jax.random.normal(jax.random.key(1), (50, 3))
    box, rows = tg.Box(low, high), tg.Polyhedron(jnp.eye(3), low, high)
    np.testing.assert_array_equal(box.margins(x), rows.margins(x))
    np.testing.assert_array_equal(box.contains(x), rows.contains(x))


def test_ball_has_finite_gradients_at_its_centre():
    ball = tg.Ball([1.0, 2.0], 3.0)
    margin, gradient = jax.value_and_grad(lambda x: ball.margins(x)[0])(jnp.array([1.0, 2.0]))
    assert margin == 3.0
    np.testing.assert_array_equal(gradient, 0.0)
    assert ball.contains(jnp.array([1.0, 5.0])) and not ball.contains(jnp.array([1.0, 5.1]))


def test_leaves_share_one_batch_shape():
    box = tg.Box(jnp.zeros((4, 3)), jnp.ones(3))
    assert box.batch_shape == (4,) and box.high.shape == (4, 3) and box.dimension == 3
    assert tg.Box(0.0, [1.0, 2.0]).low.shape == (2,)
    assert tg.Ball(jnp.zeros(3), jnp.ones(5)).center.shape == (5, 3)
    assert tg.Polyhedron(jnp.ones((2, 3)), jnp.zeros((7, 2)), INF).matrix.shape == (7, 2, 3)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: tg.Box([0.0, 2.0], [1.0, 2.0]), r"low=2.0 and high=2.0 at index 1"),
        (lambda: tg.Box([[0.0], [3.0]], [1.0]), r"low=3.0 and high=1.0 at index \(1, 0\)"),
        (lambda: tg.Box([0.0, 1.0], [1.0, 2.0, 3.0]), r"low has shape \(2,\) and high \(3,\)"),
        (lambda: tg.Box([INF], [1.0]), "low must be below high"),
        (lambda: tg.Box(None, 1.0), "no limit write -jnp.inf .got None."),
        (lambda: tg.Box(0.0, [1.0, None]), r"no limit write jnp.inf .got \[1.0, None\]"),
        (lambda: tg.Polyhedron([1.0, 2.0], [0.0], [1.0]), r"needs shape \(m, d\), got \(2,\)"),
        (lambda: tg.Polyhedron(jnp.eye(2), [0.0], [1.0, 1.0]), "one limit a row"),
        (lambda: tg.Ball([0.0], -1.0), "radius must be positive, got -1.0"),
        (lambda: tg.Ball(0.0, 1.0), "center needs shape"),
        (lambda: tg.ScaleTril([1.0]), r"ScaleTril must have shape \(d, d\)"),
        (lambda: tg.ScaleTril([[-1.0]]), "diagonal must not be negative"),
    ],
)
def test_errors_say_what_came_and_what_was_expected(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_gradients_and_axes_of_regions_are_not_validated():
    """A tree of cotangents has the region's structure and any numbers at all."""
    box = tg.Box([0.0], [1.0])
    flipped = jax.tree.map(lambda leaf: -leaf, box)
    assert isinstance(flipped, tg.Box) and flipped.high == -1.0
    gradient = jax.grad(lambda box: (2 * box.low - 3 * box.high).sum())(box)
    assert (gradient.low[0], gradient.high[0]) == (2.0, -3.0)
    many = tg.Box(jnp.zeros((4, 2)), jnp.ones((4, 2)))
    assert jax.vmap(lambda box, x: box.contains(x))(many, jnp.full((4, 2), 0.5)).all()


def test_scale_tril_and_matrix_are_two_forms_of_one_covariance():
    factor = jnp.array([[2.0, 0.0], [1.0, 0.5]])
    matrix = as_covariance(factor @ factor.T)
    assert isinstance(matrix, CovarianceMatrix)
    np.testing.assert_allclose(matrix.scale_tril, factor, rtol=1e-14)
    np.testing.assert_allclose(tg.ScaleTril(factor).variances, [4.0, 1.25])
    np.testing.assert_allclose(tg.ScaleTril(factor).covariance_matrix, factor @ factor.T)


def test_a_matrix_that_is_no_covariance_is_an_error_or_nan_but_never_a_number():
    box = tg.Box([0.0, 0.0], [1.0, 1.0])
    skew, indefinite = jnp.array([[1.0, 0.5], [0.2, 1.0]]), jnp.array([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(ValueError, match="differs from its transpose by 0.3"):
        tg.log_probability(jnp.zeros(2), skew, box)
    with pytest.raises(ValueError, match="smallest eigenvalue is -1"):
        tg.log_probability(jnp.zeros(2), indefinite, box)
    traced = jax.jit(lambda matrix: tg.log_probability(jnp.zeros(2), matrix, box).log_prob)
    assert jnp.isnan(traced(skew)) and jnp.isnan(traced(indefinite))
