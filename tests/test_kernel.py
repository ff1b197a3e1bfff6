"""The kernel of separation of variables and its derivative rule, against automatic derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import problem
from scipy.stats import norm, truncnorm

import truncgauss as tg
from truncgauss.probability import separation
from truncgauss.separation import kernel
from truncgauss.separation.lattice import lattice_uniforms
from truncgauss.separation.plan import Proposal
from truncgauss.separation.weights import log_weights


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


def unrolled(low, high, loc, covariance):
    """The estimator written out, for plain automatic differentiation."""
    uniforms = lattice_uniforms(jax.random.split(jax.random.key(0), 2), 32, 3, jnp.float64)
    factor = jnp.linalg.cholesky(covariance)
    z, log_weight = [], 0.0
    for k in range(4):
        mean = sum((factor[k, j] * z[j] for j in range(k)), jnp.zeros(uniforms.shape[1]))
        centre = loc[k] + mean + factor[k, k] * TILT[k]
        interval = tg.special.standardize(low[k], high[k], centre, factor[k, k])
        u = uniforms[k] if k < 3 else jnp.full(uniforms.shape[1], 0.5)
        y, log_mass = tg.special.separation_step(interval.low, interval.high, u, interval.width)
        z.append(y + TILT[k])
        log_weight += log_mass - TILT[k] * (y if k < 3 else 0.0) - 0.5 * TILT[k] ** 2
    return jnp.log(jnp.mean(jnp.exp(log_weight)))


def by_rule(low, high, loc, covariance):
    uniforms = lattice_uniforms(jax.random.split(jax.random.key(0), 2), 32, 3, jnp.float64)
    factor = jnp.linalg.cholesky(covariance)
    nothing = kernel.Constraints(low[:0], low[:0], low[:0], factor[:0])
    constraints = kernel.Constraints(low, high, loc, factor)
    weights, level = log_weights(Proposal(constraints, nothing, TILT, None, 0.0), uniforms)
    return jnp.log(jnp.mean(jnp.exp(weights))) + level


INPUTS = LOW, HIGH, LOC, four_dimensions()
EVERY = (0, 1, 2, 3)


def direction():
    """A direction in which no infinite limit moves."""
    waves = (np.cos(1.0 + np.arange(x.size)).reshape(x.shape) for x in INPUTS)
    return tuple(np.where(np.isfinite(x), wave, 0.0) for x, wave in zip(INPUTS, waves))


def assert_trees_close(mine, other, rtol):
    for one, two in zip(jax.tree.leaves(tuple(mine)), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(one, two, rtol=rtol, atol=1e-10)


@pytest.mark.full
def test_rule_equals_automatic_differentiation():
    mine, plain = (jax.jit(jax.value_and_grad(f, EVERY))(*INPUTS) for f in (by_rule, unrolled))
    assert_trees_close(mine, plain, 1e-9)
    gradient = mine[1]
    assert gradient[0][1] == 0 and gradient[1][2] == 0  # infinite limits
    slope = jax.jit(lambda *x: jax.jvp(by_rule, x, direction())[1])(*INPUTS)
    along = sum(jnp.vdot(g, t) for g, t in zip(gradient, direction()))
    np.testing.assert_allclose(slope, along, rtol=1e-10)


@pytest.mark.full
def test_second_derivatives_equal_automatic_ones_in_every_mode():
    def derivatives(f):
        gradient = jax.grad(f, EVERY)
        forwards = jax.jvp(gradient, INPUTS, direction())[1]
        return forwards, jax.vjp(gradient, *INPUTS)[1](direction())

    mine, plain = (jax.jit(lambda f=f: derivatives(f))() for f in (by_rule, unrolled))
    assert_trees_close(mine, plain, 1e-8)
    assert_trees_close(*mine, 1e-8)
    batch = jax.jit(jax.vmap(jax.grad(by_rule, 3), (None, None, 0, None)))
    alone = jax.jit(jax.grad(by_rule, 3))(*INPUTS)
    np.testing.assert_allclose(batch(LOW, HIGH, LOC[None], INPUTS[3])[0], alone, 1e-9)


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
    assert_trees_close(tangents, differences, 1e-7)


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


@pytest.mark.parametrize("height", [1, 5, 70])
def test_a_sweep_is_the_recursion(height):
    """70 rows make blocks with padding."""
    rng = np.random.default_rng(5)
    strict = np.tril(rng.normal(size=(height, height)) / height**0.5, -1)
    rows = rng.normal(size=(height, 3))
    step = lambda mean, row: (jnp.tanh(mean + row), mean)
    new, out = jax.jit(lambda strict, rows: kernel.sweep(strict, step, rows, 3))(strict, rows)
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
