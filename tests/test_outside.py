"""Tails of quadratic forms and probabilities outside of regions, against other routes."""

import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import integrate, stats

import truncgauss as tg
from truncgauss.probability import Complement


def numbers(estimate):
    return np.asarray(estimate.log_prob), np.asarray(estimate.stderr)


# --- Quadratic forms ------------------------------------------------------------------------------


def by_ray(weights, df, noncentrality, q):
    """log P(Q > q) in 25 digits along two rays from a point of the real axis."""
    with mp.workdps(25):
        w, n, d = ([mp.mpf(float(x)) for x in part] for part in (weights, df, noncentrality))
        q = mp.mpf(float(q))
        is_lower = q < sum(a * (b + c) for a, b, c in zip(w, n, d))
        if is_lower:
            w, q = [-a for a in w], -q
        end = 1 / (2 * max(w)) if max(w) > 0 else None

        def slope(t):
            spread = [1 - 2 * a * t for a in w]
            return sum(a * b / z + a * c / z**2 for a, b, c, z in zip(w, n, d, spread)) - q - 1 / t

        def exponent(t):
            terms = ((a, b, c, 1 - 2 * a * t) for a, b, c in zip(w, n, d))
            return sum(a * c * t / z - b / 2 * mp.log(z) for a, b, c, z in terms) - t * q

        def point(x):
            return mp.exp(x) if end is None else end / (1 + mp.exp(-x))

        low, high = mp.mpf(-50), mp.mpf(50)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if slope(point(middle)) > 0 else (middle, high)
        start = point(low)
        step, level = mp.expjpi(mp.mpf(38 if q > 0 else 62) / 100), exponent(start)
        ray = lambda r: mp.im(
            mp.exp(exponent(start + r * step) - level) * step / (start + r * step)
        )
        ends = [mp.mpf(0), start / 8]
        while abs(ray(ends[-1])) * ends[-1] > mp.mpf(10) ** -17:
            ends.append(2 * ends[-1])
        tail = mp.exp(level) * mp.quad(ray, ends) / mp.pi
        return float(mp.log1p(-tail) if is_lower else mp.log(tail))


def random_forms(count, seed):
    """Forms of every kind, with q on either side of the mean and far out."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        d = rng.choice([1, 2, 4])
        weights = np.exp(rng.choice([0.3, 1.0, 3.0]) * rng.normal(size=d))
        weights *= [1.0, -1.0, rng.choice([-1.0, 1.0], d)][rng.integers(3)]
        df = rng.choice([0.3, 0.5, 1.0, 1.0, 2.0, 7.3, 100.0], d)
        away = rng.choice([0.0, 1.0], d) * np.exp(2.0 * rng.normal(size=d))
        mean = weights @ (df + away)
        q = mean + rng.choice([-1, 1]) * np.exp(rng.normal()) * np.sqrt(
            2.0 * weights**2 @ (df + 2.0 * away)
        )
        if np.all(weights > 0) != np.all(weights < 0) and q * weights[0] <= 0:
            q = 0.3 * mean
        yield weights, df, away, q


@pytest.mark.full
@pytest.mark.parametrize(
    "count, seed", [(12, 1), pytest.param(200, 2, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_random_forms_agree_with_another_path_in_25_digits(count, seed):
    forms = list(random_forms(count, seed))
    truth = [by_ray(*form) for form in forms]
    pad = lambda part, fill: np.append(part, np.full(4 - len(part), fill))
    weights, df, away = (
        np.stack([pad(form[i], fill) for form in forms]) for i, fill in enumerate((0.0, 1.0, 0.0))
    )
    q = np.array([form[3] for form in forms])
    log_prob, stderr = numbers(tg.log_quadratic_form_tail(q, weights, df, away))
    error = np.abs(log_prob - truth)
    assert np.all(error <= 1e-10 * np.maximum(1.0, np.abs(truth)) + stderr), error.max()
    assert np.mean(stderr == 0) > 0.95


@pytest.mark.full
def test_weights_with_two_degrees_of_freedom_give_exponentials():
    q = np.array([60.0, 300.0, 1000.0, 3000.0])
    truth = [-4.128751371667016, -24.12453126265478, -82.45786459597943, -249.1245312626461]
    log_prob, stderr = numbers(tg.log_quadratic_form_tail(q, [6.0, 3.0, 1.0], 2))
    np.testing.assert_allclose(log_prob, truth, rtol=1e-14)
    assert np.all(stderr == 0)
    far = tg.log_quadratic_form_tail(1e7, [6.0, 3.0, 1.0], 2).log_prob
    np.testing.assert_allclose(far, -1e7 / 12 + np.log(1 / (0.5 * 5 / 6)), rtol=1e-12)
    # The difference of two exponentials of means 2 a and 2 b is P = a / (a + b) exp(-q / 2a).
    sides = tg.log_quadratic_form_tail([-50.0, 0.0, 1e-9, 80.0], [3.0, -1.0], 2).log_prob
    exact = np.array([np.log1p(-0.25 * np.exp(-25.0)), *np.log(0.75) - np.array([0, 1e-9, 80]) / 6])
    np.testing.assert_allclose(sides, exact, rtol=1e-11, atol=1e-15)


@pytest.mark.full
@pytest.mark.parametrize(
    "df, away", [(0.1, 0.0), (1.0, 0.0), (3.5, 2.5), (50.0, 400.0), (1e5, 0.0)]
)
def test_a_single_chi_square(df, away):
    mean, scale = df + away, np.sqrt(2.0 * df + 4.0 * away)
    q = mean * np.exp(scale / mean * np.array([-3.0, -1.0, -0.1, 0.0, 1.0, 3.0]))
    truth = stats.chi2.logsf(q, df) if away == 0 else np.log(stats.ncx2.sf(q, df, away))
    result = tg.log_quadratic_form_tail(3.0 * q, [3.0], df, away)
    known = np.isfinite(truth)
    np.testing.assert_allclose(result.log_prob[known], truth[known], rtol=2e-8, atol=1e-13)
    mirrored = tg.log_quadratic_form_tail(-3.0 * q, [-3.0], [df], [away])
    other = np.log1p(-np.exp(np.asarray(result.log_prob)))
    np.testing.assert_allclose(mirrored.log_prob, other, rtol=1e-7, atol=1e-13)


# Imhof (1961), table 1, and Davies (1980), table 1, by P(Q < q) to four digits.
PUBLISHED = (
    ([6, 3, 1], [1, 1, 1], [0, 0, 0], [1, 7, 20], [0.0542, 0.4936, 0.8760]),
    ([6, 3, 1], [2, 2, 2], [0, 0, 0], [20, 60], [0.6002, 0.9839]),
    ([6, 3, 1], [6, 4, 2], [0, 0, 0], [10, 50, 120], [0.0027, 0.5647, 0.9912]),
    ([6, 3, 1], [2, 4, 6], [0, 0, 0], [10, 30, 80], [0.0334, 0.5804, 0.9913]),
    ([7, 3], [6, 2], [6, 2], [20, 100, 200], [0.0061, 0.5913, 0.9779]),
    ([7, 3], [1, 1], [6, 2], [10, 60], [0.0451, 0.5924]),
)


@pytest.mark.quick("weights2-df2-away2-q2-truth2", "weights3-df3-away3-q3-truth3")
@pytest.mark.parametrize("weights, df, away, q, truth", PUBLISHED)
def test_published_probabilities(weights, df, away, q, truth):
    inputs = (np.asarray(part, float) for part in (q, weights, df, away))
    log_prob, stderr = numbers(tg.log_quadratic_form_tail(*inputs))
    np.testing.assert_allclose(-np.expm1(log_prob), truth, atol=5.1e-5)
    assert np.all(stderr == 0)


@pytest.mark.full
def test_second_derivatives_agree_with_differences_and_values_hold_under_transformations():
    function = lambda *args: tg.log_quadratic_form_tail(*args).log_prob
    weights, df, away = (
        jnp.array([3.0, -2.0, 0.5]),
        jnp.array([1.0, 2.0, 0.7]),
        jnp.array([0.1, 1, 2]),
    )
    curve = jax.hessian(lambda q: function(q, weights, df, away))(40.0)
    slopes = [jax.grad(function)(40.0 + s, weights, df, away) for s in (1e-4, -1e-4)]
    np.testing.assert_allclose(curve, (slopes[0] - slopes[1]) / 2e-4, rtol=1e-6)
    q = jnp.array([1.0, 5.0])
    mapped = jax.jit(jax.vmap(lambda q: function(q, weights, df, away)))(q)
    np.testing.assert_allclose(mapped, function(q, weights, df, away), rtol=1e-13)
    one, many = function(q, weights, 1.5), function(q, weights, jnp.full(3, 1.5))
    np.testing.assert_allclose(one, many, rtol=1e-13)


@pytest.mark.full
def test_edges_of_quadratic_forms():
    q = [-1.0, 0.0, np.inf, -np.inf, np.nan]
    log_prob, _ = numbers(tg.log_quadratic_form_tail(q, [2.0, 0.0, 1.0]))
    np.testing.assert_array_equal(log_prob, [0.0, 0.0, -np.inf, 0.0, np.nan])
    log_prob, _ = numbers(tg.log_quadratic_form_tail(q[:2], [-2.0, -1.0]))
    np.testing.assert_allclose(np.exp(log_prob), [1.0 - exceedance(1.0, [2.0, 1.0]), 0.0])
    np.testing.assert_array_equal(
        tg.log_quadratic_form_tail([-1.0, 0.0, 1.0], [0.0, 0.0]).log_prob, [0.0, -np.inf, -np.inf]
    )
    slopes = jax.grad(lambda w: tg.log_quadratic_form_tail(-1.0, w).log_prob)(jnp.ones(2))
    np.testing.assert_array_equal(slopes, 0.0)
    single = tg.log_quadratic_form_tail(np.float32(300.0), np.array([6, 3, 1], np.float32), 2)
    assert single.log_prob.dtype == jnp.float32
    assert abs(single.log_prob + 24.12453126) < 1e-4 + float(single.stderr)


def exceedance(q, weights):
    """P(Q > q) of two central chi-squares, one integrated over the other."""
    a, b = weights
    inner = lambda z: stats.norm.pdf(z) * stats.chi2.sf((q - a * z * z) / b, 1)
    edge = np.sqrt(q / a)
    parts = [integrate.quad(inner, *ends)[0] for ends in ((-40, -edge), (-edge, edge), (edge, 40))]
    return sum(parts)


# --- Outside of regions ---------------------------------------------------------------------------

LOC = np.array([0.3, -0.2])
COVARIANCE = np.array([[1.0, 0.5], [0.5, 2.0]])
REGIONS = {
    "ball": tg.Ball([0.0, 0.0], 2.0),
    "ellipse": tg.Ellipsoid([0.0, 1.0], [[1.0, 0.3], [0.3, 2.0]]),
    "box": tg.Box([-1.0, -1.0], [1.0, 2.0]),
    "half-open box": tg.Box([-1.0, -np.inf], [1.0, 2.0]),
    "polygon": tg.Polyhedron([[1.0, 1.0], [1.0, -1.0], [2.0, 1.0]], -1.0, [1.0, np.inf, 2.0]),
}


@pytest.mark.full
@pytest.mark.parametrize("name", REGIONS)
def test_inside_and_outside_make_up_everything(name):
    """In one draw's indicator too, and for a method chosen by default."""
    region, outside = REGIONS[name], tg.Outside(REGIONS[name])
    inner, outer = (tg.log_probability(LOC, COVARIANCE, x) for x in (region, outside))
    np.testing.assert_allclose(-np.expm1(inner.log_prob), np.exp(outer.log_prob), rtol=1e-13)
    assert outer.stderr == 0
    x = LOC + np.random.default_rng(0).normal(size=(500, 2)) * 2.0
    assert np.all(outside.contains(x) == ~region.contains(x))
    assert np.all((outside.margins(x)[:, 0] > 0) == outside.contains(x))
    draws = tg.truncated_samples(jax.random.key(0), LOC, COVARIANCE, outside, 4000)
    assert bool(outside.contains(draws).all())
    moments = tg.truncated_moments(LOC, COVARIANCE, outside)
    error = np.sqrt(np.diagonal(moments.covariance) / 4000)
    assert np.all(np.abs(draws.mean(0) - moments.mean) < 4.5 * error)


@pytest.mark.parametrize("count", [4, 3])
def test_rows_of_a_t_share_a_region(count):
    """As many rows as pieces of the outside, and fewer."""
    locs, matrices = np.arange(8.0).reshape(4, 2)[:count] / 4, np.eye(2)
    degrees = np.array([1.0, 3.0, 10.0, 100.0])[:count]
    outside = tg.Outside(tg.Box([-3.0, -3.0], [2.5, 2.5]))
    for loc, df in ((locs, 4.0), (locs[0], degrees), (locs, degrees), (locs, degrees[:, None])):
        rows = tg.log_probability(loc, matrices, outside, df=df)
        shape = np.broadcast_shapes(loc.shape[:-1], np.shape(df))
        loc, df = np.broadcast_to(loc, (*shape, 2)), np.broadcast_to(df, shape)
        assert rows.log_prob.shape == shape and np.all(rows.stderr == 0)
        for k in np.ndindex(shape):
            inside = tg.log_probability(loc[k], matrices, outside.region, df=df[k])
            np.testing.assert_allclose(
                rows.log_prob[k], math.log(-math.expm1(inside.log_prob)), rtol=1e-12
            )


@pytest.mark.full
def test_far_tails_of_balls_and_boxes():
    d = 50
    ball = tg.Outside(tg.Ball(np.zeros(d), 45.0))
    result = tg.log_probability(np.zeros(d), np.eye(d), ball)
    with mp.workdps(30):
        truth = mp.log(mp.gammainc(d / 2, mp.mpf(45) ** 2 / 2, regularized=True))
    np.testing.assert_allclose(result.log_prob, float(truth), rtol=1e-13)
    assert result.stderr == 0
    box = tg.Outside(tg.Box([-10.0], [12.0]))
    truth = np.logaddexp(stats.norm.logsf(10.0), stats.norm.logsf(12.0))
    np.testing.assert_allclose(tg.log_probability([0.0], [[1.0]], box).log_prob, truth, rtol=1e-13)
    # Inclusion and exclusion of two exceedances, the second negligible in the far tail.
    corner = tg.Outside(tg.Box(-jnp.inf * jnp.ones(2), [20.0, 20.0]))
    matrix = jnp.array([[1.0, 0.3], [0.3, 1.0]])
    both = tg.log_probability(jnp.zeros(2), matrix, tg.Box([20.0, 20.0], jnp.inf)).log_prob
    single = stats.norm.logsf(20.0)
    truth = single + np.log(2.0 - np.exp(both - single))
    result = tg.log_probability(jnp.zeros(2), matrix, corner)
    np.testing.assert_allclose(result.log_prob, truth, rtol=1e-13)


@pytest.mark.full
def test_three_dimensions_and_more():
    """The exceedances of equicorrelated variables, by quadrature over their common factor."""

    def log_outside(d, limit):
        inside = lambda z: d * stats.norm.logcdf((limit - np.sqrt(0.5) * z) / np.sqrt(0.5))
        integrand = lambda z: stats.norm.pdf(z) * -np.expm1(inside(z))
        return np.log(integrate.quad(integrand, -15, 15, epsabs=0, epsrel=1e-10, limit=400)[0])

    for d, limit in ((3, 2.0), (3, 6.0), (6, 5.0)):
        matrix = 0.5 * np.eye(d) + 0.5
        outside = tg.Outside(tg.Box(np.full(d, -np.inf), np.full(d, limit)))
        log_prob, stderr = tg.log_probability(np.zeros(d), matrix, outside)
        assert abs(log_prob - log_outside(d, limit)) <= 1e-9 + 4.0 * stderr
        assert stderr == 0 if d == 3 else 0 < stderr < 1e-3
    low_rank = tg.LowRank(np.full((6, 1), np.sqrt(0.5)), np.full(6, 0.5))
    exact = tg.log_probability(np.zeros(6), low_rank, outside)
    np.testing.assert_allclose(exact.log_prob, log_outside(6, 5.0), rtol=1e-9)
    assert exact.stderr == 0


@pytest.mark.full
def test_pieces_by_separation_have_a_plan_to_hold_and_second_derivatives():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4))
    covariance, loc = root @ root.T / 4 + 0.3 * np.eye(4), 0.3 * rng.normal(size=4)
    box = tg.Box(np.full(4, -1.5), np.full(4, 1.5))
    outside, fresh = tg.Outside(box), Complement(tg.Separation(num_points=256, num_replicates=4))
    held = fresh.hold(loc, covariance, outside)
    value = jax.jit(lambda x, m: tg.log_probability(x, covariance, outside, m).log_prob)
    slope = jax.jit(jax.grad(value))
    hessian = jax.jit(jax.hessian(value))(loc, held)
    step = 1e-4

    def differences(function):
        ends = [function(loc + c * step * e, held) for e in np.eye(4) for c in (1, -1, 2, -2)]
        a, b, c, d = np.moveaxis(np.reshape(ends, (4, 4, -1)), 1, 0)
        return (8.0 * (a - b) - (c - d)) / (12.0 * step)

    np.testing.assert_allclose(slope(loc, held), differences(value)[:, 0], atol=1e-10)
    np.testing.assert_allclose(hessian, differences(slope), atol=1e-9)
    # The whole distribution is a mixture of both parts.
    moments = tg.truncated_moments(loc, covariance, outside, fresh)
    inner, p = tg.truncated_moments(loc, covariance, box), np.exp(value(loc, held))
    parts = [
        weight * (part.covariance + np.outer(part.mean - loc, part.mean - loc))
        for weight, part in ((p, moments), (1 - p, inner))
    ]
    np.testing.assert_allclose(sum(parts), covariance, atol=3e-3)
    # Rows have plans of their own.
    rows = loc + np.array([[0.0], [0.2]])
    both = fresh.hold(rows, covariance, outside)
    assert both.batch_shape == (2,)
    alone = value(rows[1], fresh.hold(rows[1], covariance, outside))
    np.testing.assert_allclose(value(rows, both), [value(loc, held), alone], rtol=1e-12)
    with pytest.raises(ValueError, match="is of 8 pieces, this problem has 6. Hold the method for"):
        tg.log_probability(loc[:3], np.eye(3), tg.Outside(tg.Box([-1.0] * 3, [1.0] * 3)), held)


@pytest.mark.full
def test_point_masses_batches_and_rows_outside_a_hole():
    box = tg.Outside(tg.Box([0.0, 0.0], [1.0, 1.0]))
    still = jnp.array([[1.0, 0.0], [0.0, 0.0]])
    for second, truth in ((0.0, None), (2.0, 0.0)):  # on the face, hence inside; and outside
        result = tg.log_probability(jnp.array([0.5, second]), still, box).log_prob
        half = np.log(2.0 * stats.norm.sf(0.5)) if truth is None else truth
        np.testing.assert_allclose(result, half, rtol=1e-13, atol=1e-15)
    many = tg.Outside(tg.Ball(jnp.zeros((3, 2)), jnp.array([1.0, 2.0, 3.0])))
    result = jax.jit(tg.log_probability)(jnp.zeros(2), jnp.eye(2), many)
    np.testing.assert_allclose(result.log_prob, [-0.5, -2.0, -4.5], rtol=1e-14)
    hole = tg.Outside(tg.Ball([0.0, 0.0], 1.0))
    rows = tg.Observations.exact(jnp.array([[2.0, 0.0], [-1.0, 1.0], [0.1, 0.1]]), region=hole)
    log_density = stats.multivariate_normal(np.zeros(2), np.eye(2)).logpdf(rows.lower)
    result = tg.log_likelihood(rows, jnp.zeros(2), jnp.eye(2)).log_prob
    np.testing.assert_allclose(result[:2], log_density[:2] + 0.5, rtol=1e-13)
    assert result[2] == -jnp.inf


def test_methods_that_cannot_serve_the_outside_refuse():
    hole, matrix = tg.Outside(tg.Ball([0.0, 0.0], 1.0)), np.eye(2)
    frame = tg.Outside(REGIONS["box"])
    assert "disjoint pieces" in tg.explain(LOC, COVARIANCE, frame)
    assert "path in the complex plane" in tg.explain(LOC, COVARIANCE, hole)
    for region, method in (
        (hole, tg.Separation()),
        (frame, tg.ImportanceSampling()),
        (frame, tg.Exact()),
        (hole, Complement()),
    ):
        with pytest.raises((ValueError, TypeError)):
            tg.log_probability(LOC, matrix, region, method)
    with pytest.raises(ValueError, match="no method applies to Outside in 300 dimensions"):
        ball = tg.Outside(tg.Ball(np.zeros(300), 1.0))
        tg.log_probability(np.zeros(300), np.eye(300), ball)
    with pytest.raises(TypeError, match="Outside: a tg.Box, Polyhedron, Ball or Ellipsoid"):
        tg.Outside(tg.Selection(lambda x: x[0] > 0, 2))
    with pytest.raises(TypeError, match="Outside: a tg.Box, Polyhedron, Ball or Ellipsoid"):
        tg.Outside(hole)


@pytest.mark.full
def test_extreme_weights_and_values_of_quadratic_forms():
    """Values in closed form: of two degrees of freedom, and P(Q > q) = 1 to rounding."""
    tail = tg.log_quadratic_form_tail
    q = np.array([1e15, 1e18, 1e50, 1e300])
    np.testing.assert_allclose(tail(q, [1.0], 2.0).log_prob, -0.5 * q, rtol=1e-14)
    for scale in (1e-200, 1e200):
        value = tail([3.0 * scale], [scale, 0.5 * scale], 2.0)
        np.testing.assert_allclose(
            value.log_prob, np.log(2 * np.exp(-1.5) - np.exp(-3.0)), rtol=1e-13
        )
    for weights in ([1.0, -1e-16], [1.0, -1e-100]):
        assert tail(-1.0, weights) == (0.0, 0.0)
    small = jnp.asarray([1.0, -(2.0**-30)], jnp.float32)
    assert tail(jnp.float32(-1.0), small) == (0.0, 0.0)


@pytest.mark.full
@pytest.mark.parametrize("dtype, smallest", [(np.float64, 1e-300), (np.float32, 1e-35)])
def test_values_far_below_the_weights_are_exceeded(dtype, smallest):
    """With two degrees of freedom each, P(Q < q) is about q^3 / 3! over the product of 2 w."""
    q = np.geomspace(smallest, 1e-3, 60).astype(dtype)
    weights = np.array([1.0, 3.0, 6.0], dtype)

    def tail(q, weights):
        return tg.log_quadratic_form_tail(q, weights, 2.0)

    log_prob, stderr = tail(q, weights)
    below = q.astype(float) ** 3 / (6 * 8 * 18)
    np.testing.assert_allclose(log_prob, -below, rtol=2e-3, atol=np.finfo(dtype).eps)
    assert np.all(stderr == 0)
    slopes = jax.grad(lambda *x: tail(*x).log_prob.sum(), (0, 1))(q, weights)
    assert all(np.all(np.isfinite(slope)) for slope in slopes)
    mixed = tail(q, np.array([1.0, 3.0, -6.0], dtype))
    np.testing.assert_allclose(mixed.log_prob, mixed.log_prob[0], rtol=1e-3)


@pytest.mark.full
def test_degrees_of_freedom_near_0_state_their_error():
    """Against mpmath's incomplete gamma function: tails of size df."""
    for df, bound in ((1e-6, 1e-5), (1e-3, 1e-6), (1e-2, 1e-9)):
        q = [1e-3, 1.0]
        value, stderr = tg.log_quadratic_form_tail(q, [1.0], df)
        true = [float(mp.log(mp.gammainc(df / 2, x / 2, regularized=True))) for x in q]
        error = np.abs(value - np.array(true))
        assert np.all(error <= stderr + 1e-9 * np.abs(value)) and np.all(stderr < bound)
