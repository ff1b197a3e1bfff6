"""The likelihood of rows against closed forms, quadrature, simulation and published fits."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import truncgauss as tg
from tests import published_rows
from tests.referee import oracles
from tests.row_quadrature import COVARIANCE, LOC, LOW, every_kind, total

INF = np.inf


# Values


@pytest.mark.full
def test_rows_of_every_kind_agree_with_quadrature():
    lower, upper = every_kind()
    rows = tg.Observations(lower, upper, region=tg.Box(LOW, INF))
    result = tg.log_likelihood(rows, LOC, COVARIANCE)
    expected = oracles.log_rows(lower, upper, LOC, COVARIANCE, LOW)
    np.testing.assert_allclose(result.log_prob, expected, rtol=1e-9, atol=1e-9)
    assert np.all(np.asarray(result.stderr) == 0.0)


def test_regions_and_noises_of_each_row_agree_with_quadrature():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(20, 2)) + 1.0
    low, noise = y - rng.exponential(size=(20, 2)) * [1.0, INF], rng.random((20, 2))
    lower = np.where(rng.random((20, 1)) < 0.5, y, y - [0.3, 0.0])
    rows = tg.Observations(lower, y, region=tg.Box(low, [4.0, INF]), noise=noise)
    full = np.stack([np.diag(row) for row in noise])
    same = tg.Observations(lower, y, region=tg.Box(low, [4.0, INF]), noise=full)
    loc, covariance = LOC[:2], COVARIANCE[:2, :2]
    expected = [
        oracles.log_rows(lower[i], y[i], loc, covariance + full[i], low[i], [4.0, INF])[0]
        for i in range(20)
    ]
    for observations in (rows, same):
        found = tg.log_likelihood(observations, loc, covariance).log_prob
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.quick("exact")
@pytest.mark.parametrize("kind", ["exact", "known in part", "latent"])
def test_regions_that_bound_other_entries_in_each_row(kind):
    """Of y1, of y2, or of both: three kinds were computed together, with the data's terms."""
    low = np.array([[-1.0, -INF], [-INF, -2.0], [-1.0, -1.0], [-INF, 0.0]])
    x, noise = np.full((4, 2), 0.5), None
    lower = x if kind != "known in part" else np.where([[False, True]] * 4, -INF, x)
    upper = np.where(lower == x, x, INF)
    if kind == "known in part":
        upper[1:] = [[INF, INF], [0.5, 0.7], [INF, 1.0]]
    region = tg.Box(low, np.full((4, 2), INF))
    if kind == "latent":
        noise = np.full((4, 2), 0.5)
    rows = tg.Observations(
        lower, upper, region, noise, limits_on="latent" if kind == "latent" else "observed"
    )

    mass = oracles.log_interval  # of independent entries, each by itself
    if kind == "latent":  # x given y = x + e
        deviation = (0.5 / 1.5) ** 0.5
        value = stats.norm.logpdf(x, 0.0, 1.5**0.5) + mass((low - x / 1.5) / deviation, INF)
    else:
        below, above = np.maximum(lower, low), upper
        value = np.where(lower == upper, stats.norm.logpdf(x), mass(below, above))
    expected = np.sum(value - mass(low, INF), axis=1)
    found = tg.log_likelihood(rows, np.zeros(2), np.eye(2)).log_prob
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    if kind == "latent":
        return
    # Correlated, with slopes: as each row is alone, and in a mixture.
    loc, covariance = LOC[:2], COVARIANCE[:2, :2]

    def each(loc):
        parts = [tg.Observations(*(z[i : i + 1] for z in (lower, upper)), tg.Box(low[i], INF))
                 for i in range(4)]  # fmt: skip
        return sum(tg.log_likelihood(part, loc, covariance).log_prob[0] for part in parts)

    whole = lambda loc: jnp.sum(tg.log_likelihood(rows, loc, covariance).log_prob)
    for function, of_each in ((whole, each), (jax.grad(whole), jax.grad(each))):
        np.testing.assert_allclose(function(loc), of_each(loc), rtol=1e-9)
    weights, locs = np.array([0.4, 0.6]), np.array([[0.0, 0.0], [1.0, 1.0]])
    covariances = np.stack([np.eye(2)] * 2)
    parts = np.stack([
        np.sum(np.where(lower == upper, stats.norm.logpdf(x - m), mass(below - m, above - m)), 1)
        for m in locs
    ])  # fmt: skip
    seen = np.stack([np.sum(mass(low - m, INF), axis=1) for m in locs])
    expected = special.logsumexp(parts, 0, weights[:, None])
    expected -= special.logsumexp(seen, 0, weights[:, None])
    found = tg.mixtures.mixture_log_likelihood(rows, weights, locs, covariances)
    np.testing.assert_allclose(found.log_prob, expected, rtol=1e-9)


def test_one_dimension_agrees_with_closed_forms_in_the_tails():
    # Censored below 0 (Tobit), truncated below 0, and intervals; each row with its own mean.
    x = np.linspace(-2.0, 2.0, 9)
    loc, scale = (0.5 * x - 30.0)[:, None], 1.3
    y = np.maximum(0.5 * x + 0.7 * np.sin(7 * x), 0.0)
    z = (y - loc[:, 0]) / scale
    density = stats.norm.logpdf(z) - np.log(scale)
    tobit = tg.Observations(np.where(y > 0, y, -INF), y)
    found = tg.log_likelihood(tobit, loc, [[scale**2]])
    np.testing.assert_allclose(
        found.log_prob, np.where(y > 0, density, stats.norm.logcdf(z)), rtol=1e-12
    )
    truncated = tg.Observations.exact(y, region=tg.Box([0.0], [INF]))
    found = tg.log_likelihood(truncated, loc, [[scale**2]])
    expected = density - stats.norm.logsf(-loc[:, 0] / scale)
    np.testing.assert_allclose(found.log_prob, expected, rtol=1e-9, atol=1e-9)
    both = tg.Observations(y, y + 0.5, region=tg.Box([0.0], [9.0]))
    found = tg.log_likelihood(both, loc, [[scale**2]])
    inside = lambda *ends: oracles.log_interval(*((end - loc[:, 0]) / scale for end in ends))
    expected = inside(y, y + 0.5) - inside(0.0, 9.0)
    np.testing.assert_allclose(found.log_prob, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.full
def test_a_polyhedron_agrees_with_quadrature():
    wedge = tg.Polyhedron([[1.0, 1.0], [1.0, -1.0]], [-0.5, -INF], [INF, 1.0])
    loc, covariance, noise = LOC[:2], COVARIANCE[:2, :2], np.array([[0.3, 0.1], [0.1, 0.5]])
    lower = [[0.5, 0.7], [0.5, -INF], [0.0, 0.2], [-INF, 1.0]]
    upper = [[0.5, 0.7], [0.5, INF], [1.0, INF], [INF, 1.0]]
    rows = tg.Observations(lower, upper, region=wedge, noise=noise)
    gaussian = stats.multivariate_normal(loc, covariance + noise)

    def mass(lower, upper):
        """The integral of the density in the wedge over intervals; exact entries are kept."""
        (x, wx), (y, wy) = (
            (np.array([a]), np.ones(1)) if a == b else panel(max(a, -9.0), min(b, 9.0))
            for a, b in zip(lower, upper)
        )
        x, y = np.meshgrid(x, y, indexing="ij")
        seen = (x + y >= -0.5) & (x - y <= 1.0)
        density = gaussian.pdf(np.stack([x, y], axis=-1)).reshape(x.shape)
        return np.einsum("i,j,ij->", wx, wy, density * seen)

    whole = np.log(mass([-INF] * 2, [INF] * 2))
    expected = [np.log(mass(a, b)) - whole for a, b in zip(lower, upper)]
    found = tg.log_likelihood(rows, loc, covariance).log_prob
    np.testing.assert_allclose(found, expected, atol=0.02)  # of the quadrature at the edges


def panel(a, b):
    grid, weight = np.polynomial.legendre.leggauss(400)
    return 0.5 * (b - a) * grid + 0.5 * (a + b), 0.5 * (b - a) * weight


@pytest.mark.parametrize("kind", [tg.Ball, tg.Polyhedron])
def test_regions_of_each_row_have_the_derivatives_of_each_alone(kind):
    """Six rows, of which a loop takes four balls at a time; exact, as the probabilities are."""
    centers = np.random.default_rng(0).normal(size=(6, 2)) * 0.5
    ball, faces = kind is tg.Ball, np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])

    def region(centers):
        middle = centers @ faces.T
        return tg.Ball(centers, 0.8) if ball else tg.Polyhedron(faces, middle - 0.9, middle + 0.7)

    def parts(x):
        matrix = jnp.array([[x[2], x[3]], [x[3], x[4]]])
        return jnp.linalg.cholesky(matrix), (x[:2], matrix)

    def total(x):
        return tg.log_likelihood(rows, *parts(x)[1]).log_prob.sum()

    def alone(x, center):
        factor, gaussian = parts(x)
        z = jax.scipy.linalg.solve_triangular(factor, center - x[:2], lower=True)
        density = -0.5 * z @ z - jnp.log(jnp.diagonal(factor)).sum() - np.log(2 * np.pi)
        return density - tg.log_probability(*gaussian, region(center)).log_prob

    rows = tg.Observations.exact(centers, region=region(centers))
    x = jnp.array([0.2, 0.0, 1.0, 0.4, 1.5])
    assert jnp.all(tg.log_likelihood(rows, *parts(x)[1]).stderr == 0)
    one = jax.jit(jax.jacfwd(jax.jacfwd(alone)))
    truth = sum(one(x, center) for center in centers)
    np.testing.assert_allclose(jax.jit(jax.hessian(total))(x), truth, atol=1e-10)


def within(region, x, k):
    """Where coordinate k leaves a ball or an ellipsoid, the others being x: roots of a square."""
    matrix = np.eye(3) * region.radius**2 if isinstance(region, tg.Ball) else region.shape_matrix
    inverse, unit = np.linalg.inv(matrix), np.arange(3) == k
    away = np.where(unit, 0.0, x - region.center)
    square, half, rest = unit @ inverse @ unit, unit @ inverse @ away, away @ inverse @ away - 1.0
    root = np.sqrt(half**2 - square * rest)
    return region.center[k] + (-half + np.array([-root, root])) / square


@pytest.mark.full
@pytest.mark.parametrize("kind", [tg.Ball, tg.Ellipsoid])
def test_missing_entries_in_balls_and_ellipsoids_agree_with_quadrature(kind):
    """Rows of which one entry is missing, or limited, or two are."""
    size = (
        1.7 if kind is tg.Ball else np.array([[3.0, 0.8, -0.4], [0.8, 2.0, 0.3], [-0.4, 0.3, 1.5]])
    )
    region = kind(np.array([0.3, -0.2, 0.1]), size)
    lower = np.array([[0.2, -0.3, -INF], [0.2, 0.1, 0.3], [0.4, -INF, -INF], [3.0, 0.0, -INF]])
    upper = np.where(np.isinf(lower), INF, lower + [[0.0], [0.0], [0.0], [0.0]])
    upper[1, 2] = 4.0
    rows = tg.Observations(lower, upper, region=region)

    def log_density(x, last):  # of coordinate 2 between limits, the others being x
        head = COVARIANCE[:2, :2]
        gain = np.linalg.solve(head, COVARIANCE[:2, 2])
        mean, scale = (
            LOC[2] + gain @ (x - LOC[:2]),
            np.sqrt(COVARIANCE[2, 2] - gain @ COVARIANCE[:2, 2]),
        )
        mass = np.diff(stats.norm.cdf((last - mean) / scale))[0]
        return stats.multivariate_normal(LOC[:2], head).logpdf(x) + np.log(mass)

    ends = [within(region, np.append(row[:2], 0.0), 2) for row in lower[:2]]
    ends[1] = np.array([0.3, min(ends[1][1], 4.0)])
    expected = [log_density(row[:2], end) for row, end in zip(lower, ends)]
    # The middle coordinate between the roots of a discriminant, by the midpoint rule in an angle.
    shape = np.eye(3) * size**2 if kind is tg.Ball else size
    gap, head = lower[2, 0] - region.center[0], shape[:2, :2]
    share = 1.0 - gap**2 / head[0, 0]
    middle = region.center[1] + head[1, 0] * gap / head[0, 0]
    reach = np.sqrt(share * (head[1, 1] - head[1, 0] ** 2 / head[0, 0]))
    angles = (np.arange(200) + 0.5) * np.pi / 200
    points = [np.array([lower[2, 0], middle - reach * np.cos(angle)]) for angle in angles]
    parts = [np.exp(log_density(x, within(region, np.append(x, 0.0), 2))) for x in points]
    expected.append(np.log(np.mean(parts * np.sin(angles)) * np.pi * reach))
    whole = tg.log_probability(LOC, COVARIANCE, region).log_prob
    found = tg.log_likelihood(rows, LOC, COVARIANCE)
    np.testing.assert_allclose(found.log_prob[:3] + whole, expected, rtol=1e-9)
    assert found.log_prob[3] == -INF and jnp.all(found.stderr == 0.0)
    # Of one outcome, limits meet those of the region.
    line = kind([0.3], 1.1 if kind is tg.Ball else [[1.21]])
    lower, upper = np.array([[0.2, -0.5, -INF, 1.2], [0.2, 0.4, 0.1, INF]])[..., None]
    found = tg.log_likelihood(tg.Observations(lower, upper, region=line), [0.0], [[1.5]])
    in_box = tg.Observations(lower, upper, region=tg.Box([-0.8], [1.4]))
    np.testing.assert_allclose(found.log_prob, tg.log_likelihood(in_box, [0.0], [[1.5]]).log_prob)
    assert jnp.all(found.stderr == 0.0)


@pytest.mark.full
def test_limits_on_latent_values_agree_with_quadrature():
    loc, covariance, noise = LOC[:2], COVARIANCE[:2, :2], np.array([[0.3, 0.1], [0.1, 0.5]])
    lower = [[0.5, 0.7], [0.5, -INF], [-INF, 1.0], [-INF, 0.2]]
    upper = [[0.5, 0.7], [0.5, INF], [INF, 1.0], [INF, 0.9]]
    box = tg.Box([0.0, -INF], [2.0, 0.5])
    rows = tg.Observations(lower, upper, region=box, noise=noise, limits_on="latent")
    (x, wx), (z, wz) = panel(0.0, 2.0), panel(-9.0, 0.5)
    latent = np.stack(np.meshgrid(x, z, indexing="ij"), axis=-1)
    prior = stats.multivariate_normal(loc, covariance).pdf(latent) * wx[:, None] * wz
    scale = np.sqrt(np.diagonal(noise))
    measured = [  # p(y, or of its interval, given x) at every latent point
        stats.multivariate_normal([0.0, 0.0], noise).pdf([0.5, 0.7] - latent),
        stats.norm.pdf(0.5, latent[..., 0], scale[0]),
        stats.norm.pdf(1.0, latent[..., 1], scale[1]),
        stats.norm.cdf(0.9, latent[..., 1], scale[1])
        - stats.norm.cdf(0.2, latent[..., 1], scale[1]),
    ]
    expected = [np.log(np.sum(prior * part)) - np.log(prior.sum()) for part in measured]
    found = tg.log_likelihood(rows, loc, covariance).log_prob
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


# Published fits


@published_rows.needed
def test_published_log_likelihoods():
    rows, design = published_rows.tobin()
    mean = design @ [15.14486636, -0.12905928, -0.04554166]
    found = total(rows, mean[:, None], [[np.exp(2 * 1.71785092)]])
    np.testing.assert_allclose(found, -28.94013320, rtol=1e-8)
    found = total(published_rows.quasars(), [-2.478900110774], [[1.266962704526**2]])
    np.testing.assert_allclose(found, -59.889044870074, rtol=1e-9)
    rows = published_rows.iris()
    found = total(rows, published_rows.IRIS_LOC, published_rows.IRIS_COVARIANCE)
    np.testing.assert_allclose(found, -472.2084126, atol=2e-4)  # its entries have six decimals
    found = total(published_rows.stars(), published_rows.STARS_LOC, published_rows.STARS_COVARIANCE)
    np.testing.assert_allclose(found, -118.162893, rtol=1e-8)


def test_lapack_solves_for_no_rows_that_share_a_factor():
    """It does so on all processors, which wait for each other longer than they work."""
    rows = tg.Observations.exact(np.random.default_rng(0).normal(size=(100, 2)))
    total = lambda loc: tg.log_likelihood(rows, loc, COVARIANCE[:2, :2]).log_prob.sum()
    program = str(jax.make_jaxpr(jax.value_and_grad(total))(LOC[:2]))
    solved = re.findall(r"\[([\d,]+)\] = triangular_solve", program)
    assert solved and set(solved) == {"2,2"}


def test_one_triangle_of_a_traced_covariance_gives_nan():
    """It was averaged with the other, by half of the correlation; a known one is refused."""
    rows = tg.Observations([[0.3, -jnp.inf], [1.5, 0.4]], [[0.3, 0.0], [1.5, 0.4]])
    likelihood = jax.jit(lambda matrix: tg.log_likelihood(rows, [0.0, 0.0], matrix).log_prob)
    matrix = jnp.array([[1.0, 0.5], [0.5, 1.0]])
    assert np.all(np.isfinite(likelihood(matrix)))
    for half in (jnp.tril(matrix), jnp.triu(matrix)):
        assert np.all(np.isnan(likelihood(half)))
