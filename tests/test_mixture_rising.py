"""Mixtures without a maximum: a component that the rows show as an exponential distribution."""

import jax
import numpy as np
import pytest
from scipy import optimize, special, stats

import truncgauss as tg
from truncgauss.fits.mixtures.climb import natural_coordinates
from truncgauss.fits.mixtures.fit import prepared_loss

CUT, INF = 0.5, np.inf


def survey(seed, cut=CUT, n=300):
    """n rows of two components of which a limit hides half of the first."""
    rng = np.random.default_rng(seed)
    first = rng.random(20 * n) < 0.5
    y = np.where(first, rng.normal(size=20 * n), 3.0 + rng.normal(size=20 * n))
    return y[y > cut][:n]


def of_limit(rows, begin):
    """The log-likelihood of rows above 0 by a Gaussian above 0 and an exponential, its maximum; and
    by how much the second moment of the exponential part exceeds that of the distribution.

    With w(y) exp(-precision y^2 / 2) in place of the exponential w(y), the derivative by the
    precision is minus half of the rows' second moment less that of w: where this is positive the
    likelihood grows as the precision of a Gaussian component falls to 0.
    """

    def parts(numbers):
        share, loc, log_scale, log_rate = numbers
        scale, rate = np.exp(log_scale), np.exp(log_rate)
        gaussian = stats.norm.logpdf(rows, loc, scale) - stats.norm.logsf(0.0, loc, scale)
        return np.array([
            np.log(special.expit(share)) + gaussian,
            np.log(special.expit(-share)) + log_rate - rate * rows,
        ])  # fmt: skip

    def loss(numbers):
        return -np.logaddexp(*parts(numbers)).sum()

    settings = {"maxiter": 8000, "maxfev": 8000, "xatol": 1e-8, "fatol": 1e-9}
    found = optimize.minimize(loss, begin, method="Nelder-Mead", options=settings)
    gaussian, exponential = parts(found.x)
    shares = special.expit(exponential - gaussian)
    return -found.fun, shares @ rows**2 / shares.sum() * np.exp(2 * found.x[3]) / 2 - 1


@pytest.mark.quick("18-1.0")
@pytest.mark.parametrize("seed, cut", [(20, CUT), (18, 1.0)])
def test_a_component_that_is_exponential_where_it_is_seen_is_named(seed, cut):
    y = survey(seed, cut)
    rows = tg.Observations.exact(y, region=tg.Box([cut], [INF]))
    fit = tg.fit_mixture(rows, 2, num_starts=2)
    highest, excess = of_limit(y - cut, [0.0, 2.5, 0.0, 0.0])
    # No Gaussians reach the limit, and the fit is near to it.
    assert excess > 0 and highest - 5e-3 < fit.log_likelihood < highest
    assert not fit.converged and fit.reason.startswith("There is no maximum")
    k = int(np.argmin(fit.locs[:, 0]))
    assert f"as component {k} widens" in fit.reason
    assert f"its mean moves away from these, already to ({fit.locs[k, 0]:.3g})" in fit.reason
    assert fit.locs[k, 0] < -50 and np.all(np.isinf(fit.errors))
    assert "of 2 starts reached this end." in fit.notes[0] and "steps" not in fit.reason


def test_one_component_alone_widens_without_end():
    """Rows between two limits whose second moment exceeds that of the exponential distribution with
    their mean there: no Gaussian reaches its likelihood."""
    rng = np.random.default_rng(21)
    second = rng.uniform(size=1200) < 0.35
    y = np.where(second, rng.normal(3.0, 0.6, 1200), rng.normal(0.0, 1.0, 1200))
    y = y[(y > -0.3) & (y < 4.0)] + 0.3
    n, length = len(y), 4.3
    minus = lambda rate: n * np.log(-np.expm1(-rate * length) / rate) + rate * y.sum()
    limit = optimize.minimize_scalar(minus, bounds=(1e-6, 5.0), method="bounded")
    grid = np.linspace(0.0, length, 100_001)
    density = np.exp(-limit.x * grid)
    assert np.mean(y**2) > np.average(grid**2, weights=density)
    fit = tg.fit_mixture(tg.Observations.exact(y, region=tg.Box([0.0], [length])), 1)
    assert not fit.converged and fit.reason.startswith("There is no maximum")
    assert "component 0 widens" in fit.reason and np.all(np.isinf(fit.errors[1:]))
    assert -limit.fun - 5e-3 < fit.log_likelihood < -limit.fun


@pytest.mark.quick("35")
@pytest.mark.parametrize("seed", [17, 35])
def test_a_wide_component_far_outside_is_a_maximum_if_the_rows_bend(seed):
    y = survey(seed)
    fit = tg.fit_mixture(tg.Observations.exact(y, region=tg.Box([CUT], [INF])), 2, num_starts=1)
    highest, excess = of_limit(y - CUT, [0.0, 2.5, 0.0, 0.0])
    assert excess < 0 and fit.converged and fit.log_likelihood > highest
    # Steps along a ridge: the log-likelihood is stationary by every parameter, in differences.
    mixture = fit.weights, fit.locs, fit.covariances
    for part in range(3):
        for sign in (-1e-3, 1e-3):
            moved = [np.array(one) for one in mixture]
            moved[part][-1] *= 1 + sign
            other = tg.mixtures.mixture_log_likelihood(fit.loss.observations, *moved).log_prob.sum()
            assert other < fit.log_likelihood + 1e-9


@pytest.mark.full
def test_a_direction_is_named_in_several_dimensions():
    y = np.random.default_rng(4).normal(size=(4000, 2)) @ [[0.7, 0.3], [0.0, 0.4]]
    seen = np.append(
        np.column_stack([stats.expon.ppf((np.arange(150) + 0.5) / 150) ** 1.2, y[:150, 1]]),
        [4.0, 3.0] + y[150:400],
        axis=0,
    )
    seen = seen[seen[:, 0] > 0]
    rows = tg.Observations.exact(seen, region=tg.Box([0.0, -INF], INF))
    fit = tg.fit_mixture(rows, 2, num_starts=2)
    assert "There is no maximum" in fit.reason and "This happens along (1, " in fit.reason


@pytest.mark.quick("tied")
@pytest.mark.parametrize("structure", ["full", "diagonal", "tied"])
def test_natural_coordinates_are_those_of_the_mixture(structure):
    rng = np.random.default_rng(2)
    y = np.append(rng.normal(size=(40, 2)), [4.0, 1.0] + rng.normal(size=(30, 2)), axis=0)
    with jax.enable_x64(True):
        loss, table = prepared_loss(tg.Observations.exact(y), 2, structure)
        x = rng.normal(size=loss.coordinates.size)
        place = natural_coordinates(loss, table, x)
        z = place.natural(x)
        np.testing.assert_allclose(place.mixture_coordinates(z), x, atol=1e-10)
        # The density of each component is log-linear in z.
        mixture = jax.jit(loss.coordinates.mixture)(x)
        weights, locs = np.asarray(mixture.weights), np.asarray(mixture.locs)
        matrices = np.asarray(mixture.covariance.covariance_matrix)
    centre, scale = y.mean(axis=0), y.std(axis=0)
    sizes = scale * np.asarray(place.units)
    middles = centre + scale * np.asarray(place.centres)
    heights = [
        np.log(weights[k]) + stats.multivariate_normal(locs[k], matrices[k]).logpdf(middles[k])
        for k in range(2)
    ]
    np.testing.assert_allclose(z[0], heights[0] - heights[1], rtol=1e-9)
    for k in range(2):
        inverse = np.linalg.inv(matrices[k])
        slopes = sizes[k] * (inverse @ (locs[k] - middles[k]))
        np.testing.assert_allclose(z[1 + 2 * k : 3 + 2 * k], slopes, rtol=1e-9)
