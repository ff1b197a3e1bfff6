"""Regions and covariances: geometry, batches, and errors that speak."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from truncgauss.gaussian.covariances import CovarianceMatrix, as_covariance

INF = np.inf
MARGINS = jax.jit(lambda region, x: (region.margins(x), region.contains(x)))


def test_box_margins_are_distances_inside_each_face():
    box = tg.Box([0.0, -INF], [1000.0, 2.0])
    margins, inside = MARGINS(box, np.array([[1.0, 1.0], [-3.0, 5.0]]))
    np.testing.assert_array_equal(margins, [[1, INF, 999, 1], [-3, INF, 1003, -3]])
    np.testing.assert_array_equal(inside, [True, False])


def test_infinite_faces_have_no_gradient():
    def total(low, high, x):
        margins = tg.Box(low, high).margins(x)
        return jnp.where(jnp.isfinite(margins), margins, 0.0).sum()

    low, high = np.array([0.0, -INF]), np.array([INF, 2.0])
    gradients = jax.jit(jax.grad(total, (0, 1, 2)))(low, high, np.array([0.5, 0.5]))
    for gradient, expected in zip(gradients, ([-1, 0], [0, 1], [1, -1])):
        np.testing.assert_array_equal(gradient, expected)


def test_polyhedron_margins_do_not_depend_on_how_a_row_is_scaled():
    x = np.array([0.3, -0.7])
    wedge = tg.Polyhedron([[3.0, 4.0], [0.0, 0.0]], [0.0, -1.0], [10.0, 1.0])
    scaled = tg.Polyhedron([[30.0, 40.0], [0.0, 0.0]], [0.0, -1.0], [100.0, 1.0])
    (margins, inside), (same, _) = MARGINS(wedge, x), MARGINS(scaled, x)
    np.testing.assert_allclose(margins, same, rtol=1e-15)
    # distance of x from the line 3 x + 4 y = 0, signed: (0.9 - 2.8) / 5
    np.testing.assert_allclose(np.asarray(margins)[0], -0.38, rtol=1e-14)
    assert not inside


def test_box_and_identity_polyhedron_agree():
    low, high = np.array([-1.0, -INF, 0.2]), np.array([1.0, 3.0, INF])
    x = np.random.default_rng(1).normal(size=(50, 3))
    box, rows = tg.Box(low, high), tg.Polyhedron(np.eye(3), low, high)
    for of_box, of_rows in zip(MARGINS(box, x), MARGINS(rows, x)):
        np.testing.assert_array_equal(of_box, of_rows)


def test_ball_has_finite_gradients_at_its_centre():
    ball = tg.Ball([1.0, 2.0], 3.0)
    with_slope = jax.jit(jax.value_and_grad(lambda x: ball.margins(x)[0]))
    margin, gradient = with_slope(np.array([1.0, 2.0]))
    assert margin == 3.0
    np.testing.assert_array_equal(gradient, 0.0)
    assert MARGINS(ball, np.array([[1.0, 5.0], [1.0, 5.1]]))[1].tolist() == [True, False]


def test_leaves_share_one_batch_shape():
    box = tg.Box(np.zeros((4, 3)), np.ones(3))
    assert box.batch_shape == (4,) and box.high.shape == (4, 3) and box.dimension == 3
    assert tg.Box(0.0, [1.0, 2.0]).low.shape == (2,)
    assert tg.Ball(np.zeros(3), np.ones(5)).center.shape == (5, 3)
    assert tg.Polyhedron(np.ones((2, 3)), np.zeros((7, 2)), INF).matrix.shape == (7, 2, 3)


def test_gradients_and_axes_of_regions_are_not_validated():
    """A tree of cotangents has the region's structure and any numbers at all."""
    box = tg.Box([0.0], [1.0])
    flipped = jax.tree.map(lambda leaf: -leaf, box)
    assert isinstance(flipped, tg.Box) and flipped.high == -1.0
    gradient = jax.jit(jax.grad(lambda box: (2 * box.low - 3 * box.high).sum()))(box)
    assert (gradient.low[0], gradient.high[0]) == (2.0, -3.0)
    many = tg.Box(np.zeros((4, 2)), np.ones((4, 2)))
    assert jax.vmap(lambda box, x: MARGINS(box, x)[1])(many, np.full((4, 2), 0.5)).all()


def test_scale_tril_and_matrix_are_two_forms_of_one_covariance():
    factor = np.array([[2.0, 0.0], [1.0, 0.5]])
    matrix, forms = (
        as_covariance(factor @ factor.T),
        ("scale_tril", "variances", "covariance_matrix"),
    )
    assert isinstance(matrix, CovarianceMatrix)
    every = jax.jit(lambda covariance: [getattr(covariance, form) for form in forms])
    for covariance in (matrix, tg.ScaleTril(factor)):
        for found, wanted in zip(every(covariance), (factor, [4.0, 1.25], factor @ factor.T)):
            np.testing.assert_allclose(found, wanted, rtol=1e-14)


MOVED = {
    "a box": tg.Box([-1.0, -np.inf], [2.0, 0.5]),
    "a polyhedron": tg.Polyhedron([[1.0, 1.0], [1.0, -1.0]], [0.0, -1.0], [2.0, 1.0]),
    "a wedge": tg.Polyhedron([[1.0, 1.0], [0.0, 1.0]], [-1.0, -2.0], [0.5, np.inf]),
    "a ball": tg.Ball([0.3, -0.2], 1.1),
    "outside of an ellipsoid": tg.Outside(tg.Ellipsoid([0.1, 0.2], [[2.0, 0.3], [0.3, 1.0]])),
    "a selection": tg.Selection(lambda x: jnp.exp(-jnp.sum(x**2, axis=-1)), 2),
}


@pytest.mark.parametrize("kind", MOVED)
def test_a_moved_region_keeps_the_moved_points_and_a_mirrored_one_all(kind):
    region, by = MOVED[kind], np.array([3.0, -4.0])
    x = 2.0 * np.random.default_rng(0).normal(size=(200, 2))
    kept = region.kept(jnp.asarray(x))
    moved = region.moved(by) or tg.regions.Section(region, -by, (0, 1))
    np.testing.assert_allclose(moved.kept(jnp.asarray(x + by)), kept, rtol=1e-12)
    middle = np.asarray(region.middle)
    if np.all(np.isfinite(middle)) and kind != "a wedge":
        np.testing.assert_array_equal(region.kept(jnp.asarray(2 * middle - x)), kept)


def test_the_middle_and_the_bounds_of_a_region():
    unknown = {kind: np.isnan(region.middle).tolist() for kind, region in MOVED.items()}
    assert unknown.pop("a box") == [False, True] and unknown.pop("a selection") == [True, True]
    assert not np.any([*unknown.values()])
    bounded = {kind: np.asarray(region.bounded).tolist() for kind, region in MOVED.items()}
    assert bounded.pop("a box") == [True, False]
    assert bounded.pop("a ball") == bounded.pop("a polyhedron") == [True, True]
    assert not np.any([*bounded.values()])
    np.testing.assert_allclose(MOVED["a polyhedron"].middle, [0.5, 0.5])
