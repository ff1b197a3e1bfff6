"""The likelihood of rows against closed forms, SciPy, quadrature, simulation and published fits."""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

import truncgauss as tg
from tests import published_rows

INF = np.inf
LOC = np.array([0.3, -0.2, 0.5])
COVARIANCE = np.array([[1.0, 0.4, -0.3], [0.4, 2.0, 0.5], [-0.3, 0.5, 1.5]])


NODES, WEIGHTS = np.polynomial.legendre.leggauss(80)


def box_probability(loc, covariance, low, high):
    """P(low < X < high) by Gauss-Legendre quadrature of one entry given those before it."""
    keep = np.isfinite(low) | np.isfinite(high)
    if not keep.any():
        return 1.0
    factor = np.linalg.cholesky(covariance[np.ix_(keep, keep)])
    low, high = low[keep] - loc[keep], high[keep] - loc[keep]

    def given(z):
        """The integral over the entries that follow standard draws z, shape (points, k)."""
        k = z.shape[1]
        a, b = ((side[k] - z @ factor[k, :k]) / factor[k, k] for side in (low, high))
        if k == len(low) - 1:
            return stats.norm.cdf(b) - stats.norm.cdf(a)
        a, b = np.clip(a, -9.0, 9.0), np.clip(b, -9.0, 9.0)
        t = 0.5 * (b - a)[:, None] * NODES + 0.5 * (a + b)[:, None]
        inner = given(np.column_stack([z.repeat(len(NODES), 0), t.ravel()])).reshape(t.shape)
        return 0.5 * (b - a) * ((stats.norm.pdf(t) * inner) @ WEIGHTS)

    return given(np.zeros((1, 0)))[0]


def row_by_quadrature(loc, covariance, lower, upper, low, high):
    """The log-likelihood of one row in a box, from its definition."""
    exact = lower == upper
    density, mean, rest = 0.0, loc, covariance
    if exact.any():
        head = covariance[np.ix_(exact, exact)]
        density = stats.multivariate_normal(loc[exact], head).logpdf(lower[exact])
        gain = covariance[np.ix_(~exact, exact)] @ np.linalg.inv(head)
        mean = loc[~exact] + gain @ (lower[exact] - loc[exact])
        rest = covariance[np.ix_(~exact, ~exact)] - gain @ covariance[np.ix_(exact, ~exact)]
    else:
        mean = loc
    inner_low, inner_high = np.maximum(lower, low)[~exact], np.minimum(upper, high)[~exact]
    seen = box_probability(mean, rest, inner_low, inner_high)
    return density + np.log(seen) - np.log(box_probability(loc, covariance, low, high))


def mixed_rows(rng, n):
    """Rows of three entries of every kind, inside the box from -1 to infinity."""
    y = np.maximum(rng.normal(size=(n, 3)) + LOC, -0.9)
    lower, upper = y.copy(), y.copy()
    kind = rng.integers(4, size=(n, 3))
    lower[kind == 1], upper[kind == 1] = -INF, y[kind == 1] + 0.2  # censored
    lower[kind == 2], upper[kind == 2] = y[kind == 2] - 0.3, y[kind == 2] + 0.4  # an interval
    lower[kind == 3], upper[kind == 3] = -INF, INF  # missing
    return lower, upper


def total(rows, loc, covariance, **settings):
    return jnp.sum(tg.log_likelihood(rows, loc, covariance, **settings).log_prob)


# Values


LOW = np.array([-1.0, -1.5, -INF])


def every_kind():
    """Twenty-four rows of every kind."""
    return mixed_rows(np.random.default_rng(0), 24)


def test_rows_of_every_kind_agree_with_quadrature():
    lower, upper = every_kind()
    rows = tg.Observations(lower, upper, region=tg.Box(LOW, INF))
    result = tg.log_likelihood(rows, LOC, COVARIANCE)
    expected = [
        row_by_quadrature(LOC, COVARIANCE, *row, LOW, np.full(3, INF))
        for row in zip(lower, upper, strict=True)
    ]
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
        row_by_quadrature(loc, covariance + full[i], lower[i], y[i], low[i], np.array([4.0, INF]))
        for i in range(20)
    ]
    for observations in (rows, same):
        found = tg.log_likelihood(observations, loc, covariance).log_prob
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_one_dimension_agrees_with_closed_forms_into_the_tails(shift):
    # Censored below 0 (Tobit), truncated below 0, and intervals; each row with its own mean.
    x = np.linspace(-2.0, 2.0, 9)
    loc, scale = (0.5 * x - shift)[:, None], 1.3
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
    ends = [((a - m) / scale, (b - m) / scale) for a, b, m in zip(y, y + 0.5, loc[:, 0])]
    whole = [((0.0 - m) / scale, (9.0 - m) / scale) for m in loc[:, 0]]
    expected = [log_interval(*part) - log_interval(*all_) for part, all_ in zip(ends, whole)]
    np.testing.assert_allclose(found.log_prob, expected, rtol=1e-9, atol=1e-9)


def log_interval(a, b):
    """log(Phi(b) - Phi(a)) with fifty digits more than may cancel."""
    with mpmath.workdps(400):
        return float(mpmath.log(mpmath.ncdf(b) - mpmath.ncdf(a)))


@pytest.mark.slow
def test_a_polyhedron_and_latent_limits_agree_with_quadrature():
    wedge = tg.Polyhedron([[1.0, 1.0], [1.0, -1.0]], [-0.5, -INF], [INF, 1.0])
    loc, covariance = np.array([0.3, -0.2]), np.array([[1.0, 0.4], [0.4, 2.0]])
    noise = np.array([[0.3, 0.1], [0.1, 0.5]])
    lower = [[0.5, 0.7], [0.5, -INF], [0.0, 0.2], [-INF, 1.0]]
    upper = [[0.5, 0.7], [0.5, INF], [1.0, INF], [INF, 1.0]]

    def seen(x, y):
        return np.where((x + y >= -0.5) & (x - y <= 1.0), 1.0, 0.0)

    grid, weight = np.polynomial.legendre.leggauss(400)

    def panel(a, b):
        return 0.5 * (b - a) * grid + 0.5 * (a + b), 0.5 * (b - a) * weight

    def mass(gaussian, lower, upper, region):
        """The integral of density times region over the intervals; exact entries are kept."""
        (x, wx), (y, wy) = (
            (np.array([a]), np.ones(1)) if a == b else panel(max(a, -9.0), min(b, 9.0))
            for a, b in zip(lower, upper)
        )
        points = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1)
        return np.einsum("i,j,ij->", wx, wy, gaussian.pdf(points).reshape(points.shape[:-1])
                         * region(points[..., 0], points[..., 1]))  # fmt: skip

    # On the observed values: the sum of covariance and noise in the wedge.
    rows = tg.Observations(lower, upper, region=wedge, noise=noise)
    gaussian = stats.multivariate_normal(loc, covariance + noise)
    expected = [np.log(mass(gaussian, a, b, seen)) for a, b in zip(lower, upper)]
    expected -= np.log(mass(gaussian, [-INF] * 2, [INF] * 2, seen))
    result = tg.log_likelihood(rows, loc, covariance)
    np.testing.assert_allclose(result.log_prob, expected, atol=0.02)  # of the quadrature's edges

    # On the latent values, in a box: P(x in box | y), with y given and x unknown.
    low, high = np.array([0.0, -INF]), np.array([2.0, 0.5])
    rows = tg.Observations(lower, upper, region=tg.Box(low, high), noise=noise, limits_on="latent")
    x, wx = panel(0.0, 2.0)
    z, wz = panel(-9.0, 0.5)
    latent = np.stack(np.meshgrid(x, z, indexing="ij"), axis=-1)
    prior = stats.multivariate_normal(loc, covariance).pdf(latent) * wx[:, None] * wz

    def measured(row_lower, row_upper):
        """p(y or its interval | x) at every latent point."""
        row_lower, row_upper = np.array(row_lower), np.array(row_upper)
        exact, kept = row_lower == row_upper, np.isfinite(row_lower) | np.isfinite(row_upper)
        error = stats.multivariate_normal(np.zeros(2), noise)
        if exact.all():
            return error.pdf(row_lower - latent)
        j = int(np.flatnonzero(kept)[0])
        scale = np.sqrt(noise[j, j])
        if exact.any():  # the other entry is missing
            return stats.norm.pdf(row_lower[j], latent[..., j], scale)
        gain, rest = noise[0, 1] / noise[0, 0], noise[1, 1] - noise[0, 1] ** 2 / noise[0, 0]
        e, we = panel(-5.0, 5.0)
        total = 0.0
        for error_0, w in zip(e, we * stats.norm.pdf(e, 0.0, np.sqrt(noise[0, 0]))):
            y0 = latent[..., 0] + error_0
            inside = (y0 >= row_lower[0]) & (y0 <= row_upper[0])
            mean = latent[..., 1] + gain * error_0
            total = total + w * inside * stats.norm.sf(row_lower[1], mean, np.sqrt(rest))
        return total

    expected = np.log([np.sum(prior * measured(a, b)) for a, b in zip(lower, upper)])
    expected -= np.log(prior.sum())
    result = tg.log_likelihood(rows, loc, covariance)
    errors = np.abs(result.log_prob - expected)
    assert np.all(errors < [1e-9, 1e-9, 0.02, 1e-9]), errors


@pytest.mark.parametrize("kind", ["truncated", "latent"])
def test_densities_of_truncated_rows_integrate_to_one(kind):
    if kind == "truncated":
        grid, region, limits_on = (np.linspace(-1.0, 2.0, 2001),) * 2, tg.Box([-1.0], [2.0]), None
    else:
        grid, region, limits_on = (np.linspace(-9.0, 12.0, 2001),) * 2, tg.Box([1.0], [2.0]), 1
    x = grid[0]
    settings = {"limits_on": "latent", "noise": [[0.7]]} if limits_on else {}
    rows = tg.Observations.exact(x, region=region, **settings)
    density = np.exp(tg.log_likelihood(rows, [0.4], [[1.5]]).log_prob)
    np.testing.assert_allclose(integrate.simpson(density, x=x), 1.0, rtol=1e-8)


@pytest.mark.slow
def test_the_mean_score_of_simulated_rows_is_zero_at_the_truth():
    rng = np.random.default_rng(4)
    n, noise = 20_000, np.array([0.2, 0.5])
    x = rng.multivariate_normal(LOC[:2], COVARIANCE[:2, :2], size=n)
    y = x + rng.normal(size=(n, 2)) * np.sqrt(noise)
    seen = (x[:, 0] > 0.0) & (x[:, 1] < 1.5)
    y = y[seen]
    # Below -0.5 the second entry is not detected; a third of the first ones are lost.
    lower, upper = y.copy(), y.copy()
    lower[y[:, 1] < -0.5, 1], upper[y[:, 1] < -0.5, 1] = -INF, -0.5
    lost = rng.random(len(y)) < 0.3
    lower[lost, 0], upper[lost, 0] = -INF, INF
    rows = tg.Observations(
        lower, upper, region=tg.Box([0.0, -INF], [INF, 1.5]), noise=np.diag(noise),
        limits_on="latent",
    )  # fmt: skip

    def of_shift(shift):
        return tg.log_likelihood(rows, LOC[:2] + shift, COVARIANCE[:2, :2]).log_prob

    scores = np.asarray(jax.jacfwd(of_shift)(jnp.zeros(2)))
    pulls = scores.mean(0) / (scores.std(0) / len(y) ** 0.5)
    assert np.all(np.abs(pulls) < 4.0) and np.all(scores.std(0) > 0.1)


# Laws


def test_rows_and_coordinates_may_be_permuted_and_rows_split():
    lower, upper = (side[:, :2] for side in every_kind())
    loc, covariance, low = LOC[:2], COVARIANCE[:2, :2], LOW[:2]
    make = lambda lower, upper, low: tg.Observations(lower, upper, region=tg.Box(low, INF))
    found = tg.log_likelihood(make(lower, upper, low), loc, covariance).log_prob
    order = np.random.default_rng(2).permutation(24)
    again = tg.log_likelihood(make(lower[order], upper[order], low), loc, covariance).log_prob
    np.testing.assert_allclose(again, found[order], rtol=1e-12)
    turned = make(lower[:, ::-1], upper[:, ::-1], low[::-1])
    turned = tg.log_likelihood(turned, loc[::-1], covariance[::-1, ::-1])
    np.testing.assert_allclose(turned.log_prob, found, rtol=1e-9, atol=1e-9)
    # p(y) = p(y_0) p(y_1, y_2 | y_0), the first factor without its region.
    y = np.array([[0.4, 0.1, -0.3]])
    gain = COVARIANCE[1:, 0] / COVARIANCE[0, 0]
    rest = COVARIANCE[1:, 1:] - np.outer(gain, COVARIANCE[0, 1:])
    whole = total(tg.Observations(y - [[0, 0, 0.5]], y), LOC, COVARIANCE)
    first = total(tg.Observations.exact(y[:, :1]), LOC[:1], COVARIANCE[:1, :1])
    second = tg.Observations(y[:, 1:] - [[0, 0.5]], y[:, 1:])
    split = first + total(second, LOC[1:] + gain * (y[0, 0] - LOC[0]), rest)
    np.testing.assert_allclose(whole, split, rtol=1e-12)


def test_intervals_shrink_to_exact_entries_and_missing_rows_say_nothing():
    y = np.array([[0.4, 0.1, -0.3], [1.0, -0.5, 0.2]])
    exact = tg.log_likelihood(tg.Observations.exact(y), LOC, COVARIANCE).log_prob
    for width in (1e-2, 1e-4):
        rows = tg.Observations(y - width / 2, y + width / 2)
        near = tg.log_likelihood(rows, LOC, COVARIANCE).log_prob - 3 * np.log(width)
        np.testing.assert_allclose(near, exact, atol=width**2)
    nothing = np.full((2, 3), INF)
    for region in (None, tg.Box([0.0, 0.0, -INF], INF)):
        rows = tg.Observations(-nothing, nothing, region=region)
        found = tg.log_likelihood(rows, LOC, COVARIANCE)
        np.testing.assert_array_equal(found.log_prob, 0.0)
        np.testing.assert_array_equal(found.stderr, 0.0)


def test_weights_are_repeated_rows():
    y, few = np.array([0.5, 1.5, 2.5]), tg.Box([0.0], [INF])
    weighted = tg.Observations(y - [0.0, 0.2, 0.0], y, region=few, weights=[2.0, 3.0, 0.0])
    repeated = y.repeat([2, 3, 0])
    repeated = tg.Observations(repeated - [0.0, 0.0, 0.2, 0.2, 0.2], repeated, region=few)
    np.testing.assert_allclose(
        total(weighted, [0.3], [[2.0]]), total(repeated, [0.3], [[2.0]]), rtol=1e-12
    )
    outside = tg.Observations.exact([2.0, 0.5], region=tg.Box([0.0], [1.0]), weights=[0.0, 1.0])
    assert np.isfinite(total(outside, [0.0], [[1.0]]))  # a row of weight 0 is no row


def test_impossible_rows_are_minus_infinity_and_nan_stays_nan():
    region = tg.Box([0.0, 0.0], [1.0, 1.0])
    lower = np.array([[2.0, 0.5], [0.5, 2.0], [0.5, 0.5], [0.5, -INF]])
    upper = np.array([[2.0, 0.5], [0.5, 3.0], [0.5, 0.5], [0.5, -1.0]])
    rows = tg.Observations(lower, upper, region=region)

    def rows_at(loc):
        return tg.log_likelihood(rows, loc, COVARIANCE[:2, :2]).log_prob

    found = rows_at(jnp.zeros(2))
    np.testing.assert_array_equal(np.isneginf(found), [True, True, False, True])
    assert np.isfinite(found[2])
    assert np.all(np.isfinite(jax.jacrev(rows_at)(jnp.zeros(2))))
    assert np.all(np.isnan(rows_at(jnp.array([jnp.nan, 0.0]))))
    matrix = jnp.array([[1.0, jnp.nan], [jnp.nan, 1.0]])
    assert np.all(np.isnan(tg.log_likelihood(rows, jnp.zeros(2), matrix).log_prob))
    wedge = tg.Polyhedron([[1.0, 1.0]], [-INF], [1.0])
    lower = np.array([[0.2, 0.3], [0.9, 0.3], [2.0, -INF], [2.0, 0.0]])
    upper = np.array([[0.2, 0.3], [0.9, 0.3], [2.0, INF], [2.0, 1.0]])
    found = tg.log_likelihood(
        tg.Observations(lower, upper, region=wedge), jnp.zeros(2), COVARIANCE[:2, :2]
    ).log_prob
    np.testing.assert_array_equal(np.isneginf(found), [False, True, False, True])


def test_shapes_that_disagree_are_refused():
    rows = tg.Observations.exact(np.zeros((4, 3)))
    with pytest.raises(ValueError, match="dimensions disagree"):
        tg.log_likelihood(rows, np.zeros(2), np.eye(2))
    with pytest.raises(ValueError, match="do not broadcast"):
        tg.log_likelihood(rows, np.zeros((5, 3)), np.eye(3))
    with pytest.raises(ValueError, match="leading axes"):
        tg.log_likelihood(rows, np.zeros((2, 4, 3)), np.eye(3))
    held = tg.likelihood.hold(tg.Exact(), tg.Observations([0.0], [1.0]), [0.0], [[1.0]])
    with pytest.raises(ValueError, match="another pattern"):
        tg.log_likelihood(tg.Observations(np.zeros((1, 2)), np.ones((1, 2))), *TWO, held)


TWO = np.zeros(2), np.eye(2)
FOUR = np.full((4, 4), 0.5) + 0.5 * np.eye(4)


def orthants(n=12):
    """Rows of four signs, and others of an exact entry and three signs."""
    signs = np.random.default_rng(5).random((n, 4)) < 0.5
    lower, upper = np.where(signs, 0.0, -INF), np.where(signs, INF, 0.0)
    lower[::3, 0] = upper[::3, 0] = 0.3
    return tg.Observations(lower, upper)


def test_a_held_method_is_one_smooth_function():
    rows, loc = orthants(), jnp.array([0.2, -0.1, 0.3, 0.0])
    method = tg.Separation(num_points=64, num_replicates=4)
    held = tg.likelihood.hold(method, rows, loc, FOUR)

    @jax.jit
    def loss(shift):
        return total(rows, loc + shift, FOUR, method=held, key=jax.random.key(3))

    slope = jax.grad(loss)(jnp.zeros(4))
    step = 1e-5
    differences = [(loss(step * e) - loss(-step * e)) / (2 * step) for e in jnp.eye(4)]
    np.testing.assert_allclose(slope, differences, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(loss(jnp.zeros(4)), total(rows, loc, FOUR), rtol=1e-2)


def test_errors_of_rows_are_independent_and_those_of_a_common_region_are_not():
    # Sixteen equal integrals, with limits that differ in the last bit, so that none is shared.
    n, method = 16, tg.Separation(num_points=32, num_replicates=16, tilted=False)
    lower = np.zeros((n, 4)) + 1e-12 * np.arange(n)[:, None]
    rows = tg.Observations(lower, np.full((n, 4), INF))
    found = tg.log_likelihood(rows, np.zeros(4), FOUR, method, jax.random.key(1))
    error = np.asarray(found.log_prob) - np.log(0.2)
    assert len(np.unique(np.round(error, 9))) == n
    assert 0.5 < error.std() / np.sqrt(np.mean(np.asarray(found.stderr) ** 2)) < 1.7
    whole = tg.likelihood.total_log_likelihood(rows, np.zeros(4), FOUR, method, jax.random.key(1))
    np.testing.assert_allclose(whole.stderr, np.sqrt(np.sum(found.stderr**2)))
    shared = tg.Observations.exact(np.ones((n, 4)) * np.arange(1, n + 1)[:, None],
                                   region=tg.Box(np.zeros(4), INF))  # fmt: skip
    found = tg.log_likelihood(shared, np.zeros(4), FOUR, method)
    whole = tg.likelihood.total_log_likelihood(shared, np.zeros(4), FOUR, method)
    np.testing.assert_allclose(whole.stderr, np.sum(found.stderr))
    assert whole.stderr > 0 and len(np.unique(found.stderr)) == 1


def test_float32_follows_float64():
    y = np.array([[0.4, 0.1], [1.0, -0.5], [30.0, -40.0]])
    lower, upper = y - [[0.0, 0.3], [0.2, 0.3], [0.0, 0.1]], y
    region = tg.Box([-1.0, -50.0], INF)
    loc, covariance = LOC[:2], COVARIANCE[:2, :2]
    wide = tg.log_likelihood(tg.Observations(lower, upper, region=region), loc, covariance)
    cast = functools.partial(jnp.asarray, dtype=jnp.float32)
    rows = tg.Observations(cast(lower), cast(upper), region=jax.tree.map(cast, region))
    found = tg.log_likelihood(rows, cast(loc), cast(covariance))
    assert found.log_prob.dtype == found.stderr.dtype == jnp.float32
    np.testing.assert_allclose(found.log_prob, wide.log_prob, rtol=1e-4, atol=1e-4)


def test_new_numbers_of_the_same_patterns_compile_nothing():
    traces = []

    @jax.jit
    def loss(rows, loc):
        traces.append(1)
        return total(rows, loc, [[1.0]])

    region = tg.Box([0.0], [INF])
    for shift in (0.1, 0.2, 0.3):
        rows = tg.Observations([0.0, 1.0 + shift], [shift, 1.0 + shift], region=region)
        expected = total(rows, jnp.array([shift]), [[1.0]])
        np.testing.assert_allclose(loss(rows, jnp.array([shift])), expected, rtol=1e-12)
    assert len(traces) == 1


def test_a_likelihood_is_a_factor_of_a_numpyro_model():
    import numpyro
    from numpyro import distributions
    from numpyro.infer.util import log_density

    rows = tg.Observations([0.0, -INF, 0.4], [0.5, 0.0, 0.4], region=tg.Box([-2.0], [3.0]))

    def model(rows):
        loc = numpyro.sample("loc", distributions.Normal(0.0, 1.0))
        scale = numpyro.sample("scale", distributions.LogNormal(0.0, 1.0))
        found = tg.log_likelihood(rows, loc[None], scale[None, None] ** 2)
        numpyro.factor("rows", jnp.sum(found.log_prob))

    def density(params):
        return log_density(model, (rows,), {}, params)[0]

    params = {"loc": jnp.asarray(0.2), "scale": jnp.asarray(1.3)}
    value, slope = jax.jit(jax.value_and_grad(density))(params)
    prior = stats.norm.logpdf(0.2) + stats.lognorm.logpdf(1.3, 1.0)
    np.testing.assert_allclose(value, prior + total(rows, [0.2], [[1.69]]), rtol=1e-12)
    assert all(np.isfinite(part) and part != 0 for part in slope.values())


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
