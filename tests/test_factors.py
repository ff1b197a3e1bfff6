"""A few factors: two exactly, any number on a lattice; values, derivatives, tails, honesty.

The truth is a product: coordinates that load on one factor each are blocks of one factor, which
`Exact` knows to rounding. A rotation of the factors disguises the blocks and changes nothing else.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy import special

import truncgauss as tg
from truncgauss.probability.method import spread
from truncgauss.quadrature.factor_integrand import FactorPlan, solve_plan

INF = math.inf
D = 8


def rotation(r, seed=0):
    return jnp.asarray(np.linalg.qr(np.random.default_rng(seed).normal(size=(r, r)))[0])


def blocks(r):
    """Which factor each coordinate loads on."""
    return np.arange(D) * r // D


@jax.jit
@partial(jax.vmap, in_axes=(0, 0, 0, 0, 0, None))
@partial(jax.value_and_grad, argnums=(0, 1, 2, 3, 4), has_aux=True)
def truth(loc, loading, noise, low, high, own):
    """The sum over blocks of their log probabilities: outside of its block nothing is limited."""

    def of_block(mine):
        there, none = jnp.where(mine, loading, 0.0), np.full(D, INF)
        box = tg.Box(jnp.where(mine, low, -none), jnp.where(mine, high, none))
        covariance = tg.LowRank(there[:, None], noise)
        return tg.log_probability(loc, covariance, box, tg.Exact()).log_prob

    return jax.vmap(of_block)(own).sum(), 0.0


def true_rows(rows, r):
    own = jnp.asarray(blocks(r) == np.arange(r)[:, None])
    (values, _), slopes = truth(*rows, own)
    return values, slopes


def disguised(loading, noise, r):
    """The covariance, of loadings (8,) each on its factor, after a rotation."""
    spread = jnp.asarray(np.eye(r)[blocks(r)]) @ rotation(r)
    return tg.LowRank(loading[:, None] * spread.astype(loading.dtype), noise)


def in_plane(loc, loading, noise, low, high):
    covariance = disguised(loading, noise, 2)
    estimate = tg.log_probability(loc, covariance, tg.Box(low, high), tg.Exact())
    return estimate.log_prob, estimate.stderr


planes = jax.jit(
    jax.vmap(jax.value_and_grad(in_plane, argnums=(0, 1, 2, 3, 4), has_aux=True), axis_size=16)
)


def rows_of(cases):
    """Cases padded to sixteen rows, so that one compilation serves all."""
    full = lambda part: np.broadcast_to(np.asarray(part, float), (D,))
    rows = [[full(part) for part in case] for case in cases]
    rows += rows[:1] * (16 - len(rows))
    return tuple(jnp.asarray(part) for part in zip(*rows))


W = np.random.default_rng(1).normal(size=D)
MIXED_LOW = [-INF, -1.0, 0.0, -INF, -INF, 2.0, -3.0, -INF]
MIXED_HIGH = [INF, 1.0, INF, -0.5, INF, 2.5, INF, 0.3]
# loc, loadings, variance of the noise, low, high.
SMOOTH = [
    (0.0, W, 1.0, 0.0, INF),
    (0.1, W, 0.3, -1.0, 1.0),
    (0.0, W, 1.0, 5.0, INF),
    (0.0, np.abs(W), 0.5, 40.0, INF),
    (0.0, W, 1.0, -INF, -300.0),
    (0.0, W, 1.0, 0.5, 0.5 + 1e-6),
    (0.2, W, 0.5, MIXED_LOW, MIXED_HIGH),
    (W, 0.0, 0.7, -1.0, INF),
    (0.0, np.r_[W[:4], 0.0, 0.0, 0.0, 0.0], 1.0, 0.0, INF),  # columns that repeat each other
    (1e3, 1e-3 * W, 1e-6, 1e3 - 1e-3, 1e3 + 2e-3),
    (0.0, 30.0 * W, np.linspace(1.0, 900.0, D), -20.0, 50.0),
    (0.0, W, 0.1, -1.0, INF),
    (0.0, W, 1.0, -INF, INF),
]


@pytest.mark.full
def test_two_factors_to_rounding():
    rows = rows_of(SMOOTH)
    (values, stderr), slopes = planes(*rows)
    true_values, true_slopes = true_rows(rows, 2)
    error = np.abs(values - true_values)
    np.testing.assert_array_less(error, 1e-11 + 8 * np.finfo(float).eps * np.abs(true_values))
    np.testing.assert_array_equal(stderr, 0.0)
    for ours, theirs in zip(slopes, true_slopes):
        size = 1 + np.max(np.abs(theirs), axis=1, keepdims=True)
        np.testing.assert_allclose(ours / size, theirs / size, rtol=1e-9, atol=1e-10)
    assert np.all(np.asarray(slopes[3])[np.isinf(rows[3])] == 0)
    assert np.all(np.asarray(slopes[4])[np.isinf(rows[4])] == 0)


def test_two_factors_with_little_noise_are_honest():
    noises = [1e-2, 3e-3, 1e-3, 1e-4, 1e-6, 1e-8, 1e-12]
    cases = [(0.1, W, noise, -0.7, INF) for noise in noises]
    cases += [(0.0, W, noise, -1.0, 1.5) for noise in noises]
    rows = rows_of(cases)
    (values, stderr), _ = planes(*rows)
    error = np.abs(values - true_rows(rows, 2)[0])
    assert np.isfinite(values).all()
    np.testing.assert_array_less(error, 1e-11 + np.asarray(stderr))


# --- On a lattice ---------------------------------------------------------------------------------


def replicates(loc, covariance, low, high, plan, keys, num_points):
    method = tg.probability.FactorLattice(num_points, len(keys), plan)
    return method.replicates(loc, covariance, tg.Box(low, high), keys)


def on_lattice(plan, loc, loading, noise, low, high, num_points=256, num_keys=16, r=3, seed=0):
    """As `average` has it: the value and its standard error."""
    keys = jax.random.split(jax.random.key(seed), num_keys)
    covariance = disguised(loading, noise, r)
    found = replicates(loc, covariance, low, high, plan, keys, num_points)
    stderr = spread(found.log_prob, found.stderr)
    return tg.special.log_mean_exp(found.log_prob), jax.lax.stop_gradient(stderr)


lattices = jax.jit(
    jax.vmap(
        jax.value_and_grad(partial(on_lattice, None), argnums=(0, 1, 2, 3, 4), has_aux=True),
        axis_size=16,
    )
)


@pytest.mark.full
def test_three_factors_on_a_lattice():
    rows = rows_of(SMOOTH)
    (values, stderr), slopes = lattices(*rows)
    true_values, true_slopes = true_rows(rows, 3)
    assert np.all(stderr < 4e-3) and np.all(stderr[: len(SMOOTH)] > 0)
    np.testing.assert_array_less(np.abs(values - true_values), 4 * stderr + 1e-15)
    for ours, theirs in zip(slopes, true_slopes):
        size = 1 + np.max(np.abs(theirs), axis=1, keepdims=True)
        np.testing.assert_allclose(ours / size, theirs / size, atol=0.02)
        assert np.isfinite(ours).all()


@pytest.mark.full
def test_a_lattice_with_little_noise_is_honest():
    noises = [1e-2, 1e-3, 1e-4, 1e-6, 1e-8, 1e-12]
    cases = [(0.1, W, noise, -0.7, INF) for noise in noises]
    cases += [(0.0, W, noise, -1.0, 1.5) for noise in noises]
    rows = rows_of(cases)
    (values, stderr), _ = lattices(*rows)
    assert np.all(stderr < 0.1)
    np.testing.assert_array_less(np.abs(values - true_rows(rows, 3)[0]), 4 * stderr)


def test_a_plan_that_misses_says_so():
    """Equal weights in an empty corner would look like success."""
    low, high = np.full(D, -1.0), np.full(D, INF)
    covariance = disguised(jnp.asarray(W), np.ones(D), 3)
    plan = FactorPlan(np.full(3, 8.0), 0.01 * np.eye(3), np.zeros(3))
    keys = jax.random.split(jax.random.key(0), 4)
    compute = jax.jit(replicates, static_argnums=6)
    found = compute(np.zeros(D), covariance, low, high, plan, keys, 64)
    assert np.all(np.isinf(found.stderr))


@pytest.mark.full
def test_a_held_plan_is_one_function():
    case = tuple(part[6] for part in rows_of(SMOOTH))
    plan = jax.jit(solve_plan)(case[0], disguised(*case[1:3], 3), *case[3:])
    fun = lambda loc, loading, noise: on_lattice(
        plan, loc, loading, noise, *case[3:], num_points=32, num_keys=2
    )[0]
    check_grads(jax.jit(fun), case[:3], order=2, rtol=1e-5, atol=1e-6)
    exact = lambda *point: in_plane(*point, *case[3:])[0]
    check_grads(jax.jit(exact), case[:3], order=2, rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_turns_change_nothing(monkeypatch):
    from truncgauss.quadrature import factor_integrand

    case = tuple(part[1] for part in rows_of(SMOOTH))
    plan = jax.jit(solve_plan)(case[0], disguised(*case[1:3], 3), *case[3:])

    def results():
        fun = lambda *args: on_lattice(plan, *args, num_points=50, num_keys=3)[0]
        value, slope = jax.value_and_grad(fun, (0, 1, 2, 3, 4))(*case)
        return [value, *slope, jax.hessian(fun)(*case)]

    whole = jax.jit(lambda: results())()
    monkeypatch.setattr(factor_integrand, "CHUNK_SIZE", 7 * D)
    for ours, theirs in zip(jax.jit(lambda: results())(), whole):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.full
def test_single_precision():
    rows = rows_of(SMOOTH[:9] + SMOOTH[10:])
    rounded = tuple(part.astype(jnp.float32) for part in rows)
    wide = tuple(part.astype(jnp.float64) for part in rounded)
    # 0.5 + 1e-6 is another number in float32: the truth is that at the rounded limits.
    for fun, r in ((in_plane, 2), (partial(on_lattice, None), 3)):
        ours, stderr = jax.jit(jax.vmap(fun))(*rounded)
        assert ours.dtype == stderr.dtype == jnp.float32
        theirs = true_rows(wide, r)[0]
        allowed = 1e-4 + 1e-6 * np.abs(theirs) + 4 * np.asarray(stderr)
        np.testing.assert_array_less(np.abs(ours - theirs), allowed)


@pytest.mark.slow
@pytest.mark.parametrize("case", [0, 2, 6, 11])
def test_error_bars_cover(case):
    """Of 400 intervals of 95 % between 366 and 392 cover: as rare as 1 in 3,000 to fail by chance
    below, and 1 in 2,000 above."""
    row = tuple(part[case] for part in rows_of(SMOOTH))
    plan = jax.jit(solve_plan)(row[0], disguised(*row[1:3], 3), *row[3:])
    one = lambda seed: on_lattice(plan, *row, num_points=128, seed=seed)
    values, stderr = jax.jit(lambda seeds: jax.lax.map(one, seeds))(jnp.arange(400))
    truth = true_rows(tuple(part[None] for part in row), 3)[0][0]
    student = 2.131449545559323  # of 15 degrees of freedom
    covered = np.sum(np.abs(values - truth) < student * stderr)
    assert 366 <= covered <= 392, covered


@pytest.mark.slow
def test_a_hundred_thousand_coordinates():
    """Blocks of five factors, disguised; the memory is that of one turn."""
    d, r, n = 100_000, 5, 16
    generator = np.random.default_rng(6)
    own, loading = generator.integers(0, r, d), generator.uniform(-0.8, 0.8, d)
    noise, low = jnp.asarray(generator.uniform(0.5, 1.5, d)), jnp.full(d, -3.0)
    loadings = np.eye(r)[own] * loading[:, None]
    covariance = tg.LowRank(loadings @ rotation(r), noise)
    high, loc = jnp.full(d, INF), jnp.zeros(d)
    keys = jax.random.split(jax.random.key(0), 16)
    compute = jax.jit(lambda loc: replicates(loc, covariance, low, high, None, keys, n))
    found = compute(loc)
    assert compute.lower(loc).compile().memory_analysis().temp_size_in_bytes < 2**28
    log_prob, stderr = tg.special.log_mean_exp(found.log_prob), spread(*found)
    block = jax.jit(
        lambda k: (
            tg.log_probability(
                loc,
                tg.LowRank(jnp.asarray(loadings)[:, k, None], noise),
                tg.Box(jnp.where(own == k, low, -INF), high),
                tg.Exact(),
            ).log_prob
        )
    )
    truth = sum(float(block(k)) for k in range(r))
    assert stderr < 0.05 and abs(log_prob - truth) < 4 * stderr


@pytest.mark.full
@pytest.mark.parametrize("d", [2, 12])
def test_limits_of_all_scales_at_one_end_of_a_common_factor(d):
    """Panels of Gauss-Legendre about every limit say what the integral over the factor is. One with
    a deviation of 1e-8 beside one of 1e-2 was off by up to 1e-3, with an error of 0."""
    random, count = np.random.default_rng(d), 64
    deviation = 10.0 ** random.uniform(-8.0, -0.3, (count, d))
    low = random.uniform(-1.0, 1.0, (count, 1)) - deviation * random.uniform(-3.0, 9.0, (count, d))
    covariance = tg.LowRank(np.ones((count, d, 1)), deviation**2)
    box, zeros = tg.Box(low, np.full((count, d), INF)), np.zeros((count, d))
    found = tg.log_probability(zeros, covariance, box, tg.Exact())
    moments = tg.truncated_moments(zeros, covariance, box, tg.Exact())
    slopes = jax.grad(
        lambda low: tg.log_probability(
            zeros, covariance, tg.Box(low, box.high), tg.Exact()
        ).log_prob.sum()
    )(low)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    for row in range(count):
        kinks = (low[row] + offset * deviation[row] for offset in np.linspace(-12.0, 12.0, 25))
        points = [np.linspace(-12.0, 12.0, 60), *kinks]
        ends = np.unique(np.clip(np.concatenate(points), -12.0, 12.0))
        middle, half = 0.5 * (ends[1:] + ends[:-1]), 0.5 * np.diff(ends)
        f = (middle[:, None] + half[:, None] * nodes).ravel()
        z = (f[:, None] - low[row]) / deviation[row]
        values = np.sum(special.log_ndtr(z), axis=1) - 0.5 * f * f
        top = values.max()
        parts = (half[:, None] * weights).ravel() * np.exp(values - top)
        total = parts.sum()
        error = float(found.stderr[row])
        assert error <= 1e-6 and (error == 0.0 or d > 2)
        gap = top + np.log(total / np.sqrt(2.0 * np.pi)) - float(found.log_prob[row])
        assert abs(gap) <= error + 1e-11
        hazard = np.exp(-0.5 * z * z - special.log_ndtr(z)) / np.sqrt(2.0 * np.pi) / deviation[row]
        exact = -(parts @ hazard) / total
        np.testing.assert_allclose(slopes[row], exact, rtol=1e-4 if error else 1e-9, atol=1e-9)
        means = (parts @ (f[:, None] + deviation[row] ** 2 * hazard)) / total
        np.testing.assert_allclose(moments.mean[row], means, rtol=0, atol=1e-9 + 1e1 * error)
