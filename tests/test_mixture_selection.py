"""Mixtures behind a `Selection`: drawn points, EM steps and fits beside quadrature on a grid."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import truncgauss as tg
from tests.mixture_em import drawn
from truncgauss import likelihood
from truncgauss.fits.mixtures import em
from truncgauss.fits.mixtures.curvature import scores_at
from truncgauss.fits.mixtures.fit import prepared_loss
from truncgauss.fits.mixtures.likelihood import padded, planned
from truncgauss.fits.mixtures.parameters import Components, MixtureCoordinates
from truncgauss.fits.mixtures.search import without_region
from truncgauss.likelihood.rows import held_for_key
from truncgauss.probability.importance import DrawnPoints

TRUTH = Components(
    np.array([0.6, 0.4]),
    np.array([[0.0, 0.0], [2.5, 0.5]]),
    np.array([[[1.0, 0.3], [0.3, 0.8]], [[0.5, -0.2], [-0.2, 0.7]]]),
)
FEW = tg.ImportanceSampling(num_points=256, num_replicates=4)


def kept(x):
    return jax.nn.sigmoid(3.0 * (x[0] + x[1]))


REGION = tg.Selection(kept, 2)


def simulated(n):
    """The first n rows of the mixture that the selection keeps."""
    rng = np.random.default_rng(0)
    y = drawn(rng, 4 * n, *TRUTH)
    return y[rng.random(4 * n) < np.asarray(jax.vmap(kept)(y))][:n]


@pytest.mark.full
def test_drawn_points_have_the_values_and_slopes_of_draws_at_each_call():
    y = simulated(6)
    y[4:, 1] = np.nan  # whose integrals are over sections of the region
    rows = tg.Observations.exact(y, nan_is_missing=True, region=REGION)
    key, loc, matrix = jax.random.key(3), TRUTH.locs[0], TRUTH.covariances[0]
    held = likelihood.hold(FEW, rows, loc, matrix)
    points = held_for_key(FEW, rows, loc, matrix, key)
    assert all(isinstance(each, DrawnPoints) for each in points.methods.values())

    def total(loc, matrix, method):
        return tg.likelihood.total_log_likelihood(rows, loc, matrix, method, key)

    def slopes(*inputs):
        value = lambda *inputs: total(*inputs).log_prob
        return jax.value_and_grad(value, (0, 1))(*inputs), total(*inputs).stderr

    elsewhere = jnp.array([0.2, -0.1]), jnp.array([[1.2, 0.1], [0.1, 0.9]])
    expected, found = (jax.jit(slopes)(*elsewhere, method) for method in (held, points))
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
    jax.tree.map(close, found, expected)
    value = lambda loc: total(loc, elsewhere[1], points).log_prob
    second = jax.jit(jax.hessian(value))(elsewhere[0])
    slope, steps = jax.jit(jax.grad(value)), 1e-5 * np.eye(2)
    differences = [(slope(elsewhere[0] + s) - slope(elsewhere[0] - s)) / 2e-5 for s in steps]
    np.testing.assert_allclose(second, differences, rtol=1e-6, atol=1e-7)


def test_points_are_not_drawn_without_a_key_or_where_they_are_too_many(monkeypatch):
    rows = tg.Observations.exact(simulated(3), region=REGION)
    inputs = FEW, rows, TRUTH.locs[0], TRUTH.covariances[0]
    (method,) = likelihood.hold(*inputs).methods.values()
    assert isinstance(method, tg.ImportanceSampling)
    monkeypatch.setattr(likelihood.integrals, "MOST_DRAWN", 2**10)
    (method,) = held_for_key(*inputs, jax.random.key(0)).methods.values()
    assert isinstance(method, tg.ImportanceSampling)


@pytest.mark.full
@pytest.mark.parametrize("structure", ["full", "diagonal", "tied"])
def test_em_steps_by_scores_are_those_of_a_gradient_of_their_own(structure):
    loss, _ = prepared_loss(tg.Observations.exact(simulated(40), region=REGION), 2, structure, FEW)
    matrices = loss.coordinates.restricted(TRUTH.weights, TRUTH.covariances)
    at = TRUTH._replace(covariances=matrices)
    loss = planned(loss, FEW, at)
    found = em.expectation(loss, at)
    alike, numbers = padded(loss.parts[0])
    filled = Components(*(leaf[np.maximum(numbers, 0)] for leaf in at))
    filled = filled._replace(weights=np.where(numbers >= 0, filled.weights, 0.0))
    value, gradient, hidden = em._expectation(alike, filled, numbers)
    gradient = Components(*(np.asarray(leaf)[:2] for leaf in gradient))
    expected = em.Expectation(float(value), gradient, 40.0 + float(hidden))
    np.testing.assert_allclose(found.log_likelihood, expected.log_likelihood, rtol=1e-12)
    np.testing.assert_allclose(found.population, expected.population, rtol=1e-12)
    moved = [em.maximised(loss, at, each) for each in (found, expected)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), *moved)
    x = loss.coordinates.free(*at)
    np.testing.assert_allclose(scores_at(loss, x)[0], expected.log_likelihood, rtol=1e-12)


def test_starts_that_come_to_one_mixture_without_the_region_are_one():
    loss, table = prepared_loss(tg.Observations.exact(simulated(300), region=REGION), 2, "full")
    keys = [jax.random.fold_in(loss.key, k) for k in range(6)]
    begun = [em.scattered(table, np.ones(300), 2, em.generator(key)) for key in keys]
    narrow = begun[0]._replace(covariances=1e-6 * begun[0].covariances)
    ends = without_region(loss, table, [*begun, narrow])
    assert ends[-1] is narrow and len({id(end) for end in ends[:-1]}) < 6
    for one in ends[:-1]:
        for other in ends[:-1]:
            order = [np.argsort(end.locs[:, 0]) for end in (one, other)]
            gap = np.abs(one.locs[order[0]] - other.locs[order[1]]).max()
            assert one is other or gap > 1e-3
    noisy = tg.Observations.exact(simulated(300), noise=0.1 * np.eye(2), region=REGION)
    assert without_region(prepared_loss(noisy, 2, "full")[0], table, begun) is begun


@pytest.mark.full
def test_a_fit_behind_a_selection_is_that_of_quadrature_on_a_grid():
    """log P by the trapezium rule, which is exact to rounding for smooth functions that vanish at
    the ends of the grid."""
    y = simulated(500)
    fit = tg.fit_mixture(tg.Observations.exact(y, region=REGION), 2)
    assert fit.converged, fit.reason
    (note,) = (note for note in fit.notes if "reached this maximum" in note)
    assert note.startswith("2 of 2 starts that were followed") and "The other 6 were not" in note
    assert fit.num_reached == len(fit.start_log_likelihoods) == 2
    axis = np.linspace(-9.0, 12.0, 421)
    grid = jnp.array(np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2))
    log_kept = jax.nn.log_sigmoid(3.0 * jnp.sum(grid, axis=1)) + 2 * np.log(axis[1] - axis[0])
    coordinates = MixtureCoordinates(jnp.zeros(2), jnp.ones(2), 2, "full")

    def density(x, points):
        mixture = coordinates.mixture(x)
        parts = jax.vmap(
            lambda loc, matrix: jax.scipy.stats.multivariate_normal.logpdf(points, loc, matrix)
        )(mixture.locs, mixture.covariance.covariance_matrix)
        return jax.scipy.special.logsumexp(parts, axis=0, b=mixture.weights[:, None])

    def loss(x):
        log_p = jax.scipy.special.logsumexp(density(x, grid) + log_kept)
        seen = jax.nn.log_sigmoid(3.0 * jnp.sum(y, axis=1))
        return 500 * log_p - jnp.sum(density(x, jnp.array(y)) + seen)

    value, curvature = jax.jit(jax.value_and_grad(loss)), jax.jit(jax.hessian(loss))
    here = coordinates.free(fit.weights, fit.locs, fit.covariances)
    assert abs(fit.log_likelihood + value(here)[0]) < 4 * fit.log_likelihood_stderr < 0.2
    best = optimize.minimize(value, here, jac=True, hess=curvature, method="trust-exact").x
    assert value(here)[0] - value(best)[0] < 0.01
    jacobian = jax.jacfwd(coordinates.estimates)(here)
    errors = np.sqrt(np.diag(jacobian @ np.linalg.inv(curvature(here)) @ jacobian.T))
    np.testing.assert_allclose(fit.errors, errors, rtol=0.05)
