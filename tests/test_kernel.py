"""The kernel of separation of variables, its tangents, and the order of integration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import autoregression, equal_correlations, problem
from scipy.stats import norm, truncnorm

import truncgauss as tg
from truncgauss.arrays.linalg import ranks_of
from truncgauss.gaussian.regions.region import GaussianLimits
from truncgauss.probability import separation
from truncgauss.separation import kernel
from truncgauss.separation.planning import smallest_mass_first


@pytest.mark.full
@pytest.mark.parametrize("turns", ["lanes", "replicates"])
def test_turns_change_nothing(turns, monkeypatch):
    """Value, gradient and, for lanes, both kinds of Hessian, all at once and some at a time."""
    p = problem("equi-5-box")
    box = tg.Box(p.low, p.high)
    method = tg.Separation(num_points=64).hold(p.loc, p.covariance(), box)
    value = lambda loc: tg.log_probability(loc, p.covariance(), box, method).log_prob

    def results(loc):
        second = jax.hessian(value)(loc), jax.jacrev(jax.jacrev(value))(loc)
        return *jax.value_and_grad(value)(loc), *(second if turns == "lanes" else ())

    once = jax.jit(results)(p.loc)
    if turns == "lanes":
        np.testing.assert_allclose(once[-1], once[-2], rtol=1e-8, atol=1e-10)
        monkeypatch.setattr(kernel, "LANES", 64)
    else:
        monkeypatch.setattr(separation, "PASS_SIZE", 3 * 5 * 64)
    jax.clear_caches()
    for one, other in zip(once, jax.jit(lambda loc: results(loc))(p.loc)):
        np.testing.assert_allclose(one, other, rtol=1e-10)


LOW = np.array([-1.0, -np.inf, 0.3, -1.9])
HIGH = np.array([1.0, 0.5, np.inf, -1.8])
LOC = np.array([0.1, -0.2, 0.3, 0.4])
TILT = np.array([0.2, -0.3, 0.1, 0.0])


def four_dimensions():
    root = np.random.default_rng(1).normal(size=(4, 4))
    return root @ root.T + np.eye(4)


def by_hand(constraints, tilt, uniforms):
    """Draws, conditional means and log masses by SciPy, one variable and one lane at a time."""
    low, high, loc, factor = (np.asarray(x) for x in constraints)
    d, n = len(tilt), uniforms.shape[1]
    draws, means, log_mass = (np.zeros((d, n)) for _ in range(3))
    for lane in range(n):
        for k in range(d):
            means[k, lane] = factor[k, :k] @ draws[:k, lane]
            centre = loc[k] + means[k, lane] + factor[k, k] * tilt[k]
            ends = (np.array([low[k], high[k]]) - centre) / factor[k, k]
            log_mass[k, lane] = np.log(norm.cdf(ends[1]) - norm.cdf(ends[0]))
            if k < d - 1:
                draws[k, lane] = tilt[k] + truncnorm.ppf(uniforms[k, lane], *ends)
    return draws[:-1], means, log_mass


def four_constraints():
    return kernel.Constraints(LOW, HIGH, LOC, np.linalg.cholesky(four_dimensions()))


UNIFORMS = np.random.default_rng(3).uniform(0.05, 0.95, (3, 4))
PATHS = jax.jit(kernel.paths)


def test_a_path_draws_each_variable_given_the_earlier_ones():
    path = PATHS(four_constraints(), TILT, UNIFORMS)
    for mine, other in zip(path, by_hand(four_constraints(), TILT, UNIFORMS), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-11, atol=1e-12)


def test_one_variable_has_a_mass_and_no_draw():
    one = kernel.Constraints(*map(np.array, ([-1.0], [0.5], [0.2], [[2.0]])))
    path = PATHS(one, np.zeros(1), np.zeros((0, 3)))
    assert path.draws.shape == (0, 3) and np.all(path.means == 0.0)
    np.testing.assert_allclose(
        path.log_mass, np.full((1, 3), np.log(norm.cdf(0.15) - norm.cdf(-0.6)))
    )


def test_tangents_of_paths_are_differences():
    """Every limit, mean and factor moves at once; tilt and uniforms are held."""
    constraints = four_constraints()
    rng = np.random.default_rng(4)
    moved = [np.where(np.isfinite(x), rng.normal(size=x.shape), 0.0) for x in constraints]
    moved = kernel.Constraints(*moved[:3], np.tril(moved[3]))
    of = lambda constraints: kernel.paths(constraints, TILT, UNIFORMS)
    _, tangents = jax.jit(lambda x, move: jax.jvp(of, (x,), (move,)))(constraints, moved)
    at = lambda t: PATHS(
        kernel.Constraints(*(x + t * move for x, move in zip(constraints, moved))), TILT, UNIFORMS
    )
    differences = [(np.asarray(x) - y) / 2e-6 for x, y in zip(at(1e-6), at(-1e-6))]
    for one, two in zip(tangents, differences, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-7, atol=1e-10)


def test_slopes_of_a_step_keep_their_digits_in_a_narrow_interval_far_out():
    """Z is phi(a) w to first order: d log Z of a common shift is -a, where 1/w - 1/w would be."""
    low, width = 30.0, 1e-9
    log_mass = norm.logpdf(low) + np.log(width)
    slopes_of = jax.jit(kernel.interval_slopes)
    slopes = slopes_of(low, low + width, width, log_mass, low + 0.25 * width, 0.25)
    np.testing.assert_allclose(slopes.mass_shift, -low, rtol=1e-6)
    np.testing.assert_allclose(
        [slopes.mass_low, slopes.mass_high], [-1 / width, 1 / width], rtol=1e-6
    )
    draws = float(slopes.draw_low), float(slopes.draw_high)
    np.testing.assert_allclose(sum(draws), 1.0, rtol=1e-6)
    endless = slopes_of(-np.inf, np.inf, np.inf, 0.0, 0.3, 0.6)
    assert all(slope == 0.0 for slope in endless)


def test_a_sweep_is_the_recursion():
    """70 rows make blocks with padding."""
    step = lambda mean, row: (jnp.tanh(mean + row), mean)
    for height in (1, 5, 70):
        rng = np.random.default_rng(5)
        strict = np.tril(rng.normal(size=(height, height)) / height**0.5, -1)
        rows = rng.normal(size=(height, 3))
        new, out = jax.jit(lambda *x: kernel.sweep(x[0], step, x[1], 3))(strict, rows)
        expected = np.zeros((height, 3))
        for k in range(height):
            expected[k] = np.tanh(strict[k] @ expected + rows[k])
        np.testing.assert_allclose(new, expected, atol=1e-12)
        np.testing.assert_allclose(out, strict @ expected, atol=1e-12)


def test_an_extra_constraint_narrows_the_interval_of_its_last_variable():
    """z0 and z1 are free but for z0 - z1 / 2 <= 1, so that z1 >= 2 (z0 - 1)."""
    far = np.full(2, np.inf)
    free = kernel.Constraints(-far, far, np.zeros(2), np.eye(2))
    extra = [-far[:1], np.ones(1), np.zeros(1), np.array([[1.0, -0.5]])]
    uniforms, paths = UNIFORMS[:1], jax.jit(kernel.intersected_paths)
    draws, log_mass = paths(free, kernel.Constraints(*extra), np.zeros(2), uniforms)
    np.testing.assert_allclose(draws, norm.ppf(uniforms), rtol=1e-11)
    expected = [np.zeros(4), norm.logsf(2 * (norm.ppf(uniforms[0]) - 1))]
    np.testing.assert_allclose(log_mass, expected, rtol=1e-11, atol=1e-14)
    extra[0], extra[3] = np.full(1, 2.0), np.zeros((1, 2))  # 2 <= 0 <= 1 can never be
    impossible = paths(free, kernel.Constraints(*extra), np.zeros(2), uniforms)
    assert np.all(impossible[1] == -np.inf)


@pytest.mark.quick("5")
@pytest.mark.parametrize("h", [5, 70])
def test_substitution_solves_and_transposes(h):
    """70 rows make blocks with padding."""
    rng = np.random.default_rng(2)
    strict = np.tril(rng.normal(size=(h + 1, h)) / h**0.5, -1)
    follow, right, base = (rng.normal(size=(n, 3)) for n in (h, h, h + 1))
    solve = jax.jit(lambda right, base: kernel.substitution(strict, follow, right, base))
    x, y = map(np.asarray, solve(right, base))
    np.testing.assert_allclose(y, base + strict @ x, atol=1e-10)
    np.testing.assert_allclose(x + follow * y[:-1], right, atol=1e-10)
    seen = rng.normal(size=x.shape), rng.normal(size=y.shape)
    back = jax.jit(lambda *seen: jax.vjp(solve, right, base)[1](seen))(*seen)
    other = rng.normal(size=right.shape), rng.normal(size=base.shape)
    forth = solve(*other)
    dot = lambda a, b: sum(np.vdot(u, v) for u, v in zip(a, b))
    np.testing.assert_allclose(dot(back, other), dot(seen, forth), rtol=1e-9)


@pytest.mark.full
def test_step_stores_no_mask_of_bytes():
    """Of loops that read bytes XLA on a CPU calls the exponential one element at a time."""
    lanes = np.linspace(0.1, 0.9, 1024)
    program = jax.jit(tg.special.separation_step).lower(
        lanes - 1.0, lanes + 1.0, lanes, 2.0 + 0.0 * lanes
    )
    whole = program.compile().as_text().split("\nENTRY")[1]
    assert "fusion(" in whole
    assert "= pred[1024]" not in whole


# --- The order of integration ---------------------------------------------------------------------


def plain_order(covariance, low, high):
    """Gibson, Glasbey and Elston's order by elimination, one variable at a time."""
    d = len(low)
    remainder, mean = covariance.copy(), np.zeros(d)
    order, point = [], []
    for _ in range(d):
        left = [i for i in range(d) if i not in order]
        scale = np.sqrt(np.diag(remainder)[left])
        below, above = (low[left] - mean[left]) / scale, (high[left] - mean[left]) / scale
        mass = norm.cdf(above) - norm.cdf(below)
        best = int(np.argmin(mass))
        chosen = left[best]
        draw = (norm.pdf(below[best]) - norm.pdf(above[best])) / mass[best]
        column = remainder[:, chosen] / scale[best]
        mean = mean + column * draw
        remainder = remainder - np.outer(column, column)
        order.append(chosen)
        point.append(draw)
    return np.array(order), np.array(point)


def limits(covariance, low, high):
    low, high, covariance = map(jnp.asarray, (low, high, covariance))
    return GaussianLimits(low, high, jnp.zeros_like(low), covariance, None)


@pytest.mark.parametrize("d", [7, 70])
def test_order_is_that_of_plain_elimination(d):
    """70 variables are eliminated in blocks."""
    rng = np.random.default_rng(d)
    scales = rng.uniform(0.5, 2.0, d)
    covariance = autoregression(d, 0.6) * np.outer(scales, scales)
    low, high = rng.normal(-1.5, 1.0, d), rng.normal(2.5, 1.0, d)
    low, high = np.minimum(low, high - 0.5), np.where(rng.uniform(size=d) < 0.3, np.inf, high)
    order, point = smallest_mass_first(limits(covariance, low, high))
    expected, conditional_means = plain_order(covariance, low, high)
    np.testing.assert_array_equal(order, expected)
    np.testing.assert_allclose(point, conditional_means, atol=1e-8)


def test_free_and_determined_variables_come_last():
    covariance = np.zeros((4, 4))
    covariance[:2, :2] = 1.0
    covariance[2:, 2:] = np.eye(2)
    low, high = jnp.array([-1.0, -1.0, -jnp.inf, 0.0]), jnp.full(4, jnp.inf)
    order, point = smallest_mass_first(limits(covariance, low, high))
    assert order.tolist() == [3, 0, 2, 1]
    assert abs(point[3]) < 1e-14  # a determined variable has the rounding of its scale


def test_rank():
    thin = np.random.default_rng(0).normal(size=(6, 3))
    assert ranks_of(thin @ thin.T) == 3
    assert ranks_of(equal_correlations(6, 1 - 1e-9)) == 6
    assert ranks_of(np.diag([1e-30, 1.0, 0.0])) == 2
    assert ranks_of(np.full((2, 2), np.nan)) == 2
    assert ranks_of(np.stack([np.eye(2), np.ones((2, 2))])).tolist() == [2, 1]
