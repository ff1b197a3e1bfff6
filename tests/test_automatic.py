"""The method that chooses: what it picks, when it buys more points, and when it stops."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from tests.problems import equal_correlations, tridiagonal
from truncgauss.gaussian.problem import Estimate, as_problem
from truncgauss.probability.refinement import (
    PROBABILITY,
    SPENT,
    STUCK,
    Goal,
    Search,
    answer,
    errors,
)

INF = np.inf


def choice(covariance, region):
    problem = as_problem(np.zeros(region.dimension), covariance, region)
    return tg.Automatic().choice(problem)


def test_structure_decides():
    box = lambda d: tg.Box(np.zeros(d), np.full(d, INF))
    assert isinstance(choice(np.eye(1), box(1)), tg.Exact)
    assert isinstance(choice(equal_correlations(3), box(3)), tg.Exact)
    assert isinstance(choice(np.eye(50), box(50)), tg.Exact)
    assert isinstance(choice(equal_correlations(4), box(4)), tg.Separation)
    assert isinstance(choice(np.eye(2), tg.Polyhedron(np.ones((3, 2)), 0.0, INF)), tg.Exact)
    assert isinstance(choice(np.eye(3), tg.Polyhedron(np.ones((3, 3)), 0.0, INF)), tg.Separation)
    assert isinstance(choice(np.eye(2), tg.Ball(np.zeros(2), 1.0)), tg.Exact)


def test_the_structure_of_a_constant_is_seen_under_a_trace():
    factor, region = tg.ScaleTril(np.diag(np.arange(1.0, 6.0))), tg.Box(np.zeros(5), INF)
    found = jax.jit(lambda loc: tg.log_probability(loc, factor, region))(np.zeros(5))
    assert found.log_prob == pytest.approx(5 * math.log(0.5), rel=1e-13) and found.stderr == 0


def test_a_trace_shows_shapes_alone():
    """Independence is a matter of numbers: eagerly it is seen, under a trace it is not."""
    seen = []

    def log_prob(covariance):
        seen.append(type(choice(covariance, tg.Box(np.zeros(5), np.full(5, INF)))))
        return 0.0

    log_prob(np.eye(5))
    jax.jit(log_prob)(np.eye(5))
    assert seen == [tg.Exact, tg.Separation]


@pytest.mark.full
def test_a_trace_around_a_singular_covariance_has_its_gradient():
    """Three equal coordinates: log P = log Phi(-max low), and the largest limit takes the slope."""
    box = tg.Box([0.0, 0.0, 0.5], INF)
    log_prob = lambda loc: tg.log_probability(loc, np.ones((3, 3)), box).log_prob
    value, gradient = jax.value_and_grad(log_prob)(np.zeros(3))
    assert abs(value - tg.special.log_ndtr(-0.5)) < 1e-12
    np.testing.assert_allclose(gradient, [0.0, 0.0, tg.special.hazard(0.5)], atol=1e-10)


@pytest.mark.full
def test_equal_parts_do_not_err_alike():
    """Six copies of one ordering problem: their errors add as squares, or not at all."""
    d, copies = 4, 6
    covariance = jnp.kron(jnp.eye(copies), tridiagonal(d))
    region = tg.Box(jnp.zeros(d * copies), jnp.full(d * copies, INF))
    for seed in range(3):
        key = jax.random.key(seed)
        got = tg.log_probability(jnp.zeros(d * copies), covariance, region, key=key)
        assert abs(got.log_prob + copies * math.log(120)) < 5 * got.stderr < 1e-3


@pytest.mark.full
def test_a_chain_that_no_grid_follows_is_left_to_separation():
    """Five places all but equal: P = 1/2."""
    chain = tg.Markov(jnp.ones(4), 1e-8, 1.0)
    got = tg.log_probability(jnp.zeros(5), chain, tg.Box(jnp.zeros(5), jnp.full(5, INF)))
    assert abs(got.log_prob + math.log(2.0)) < 5 * got.stderr + 1e-6


@pytest.mark.full
def test_rtol_is_met_or_the_error_bar_says_that_it_is_not():
    region = tg.Box(jnp.zeros(8), jnp.full(8, INF))
    for rtol in (1e-2, 2e-5):
        got = tg.log_probability(jnp.zeros(8), tridiagonal(8), region, tg.Automatic(rtol))
        assert 0 < got.stderr <= rtol
        # a t law with 15 degrees of freedom: |t| > 7 has probability 4e-6
        assert abs(got.log_prob + math.lgamma(10)) < 7 * got.stderr


class Shop:
    """A goal whose errors are made up: row k has the error loc[k] n^-rate[k] after n samples."""

    def __init__(self, size, rate):
        self.size, self.rate, self.bought = np.array(size), np.array(rate), []
        self.goal = Goal(self.evaluate, errors)
        self.key = jax.random.key(0)

    def evaluate(self, method, problem, key):
        rows = np.asarray(problem.loc)[..., 0].astype(int)
        self.bought.append((method.num_samples, rows.tolist()))
        return Estimate(np.asarray(problem.loc)[..., 0], self.size[rows] * self.gain(method, rows))

    def gain(self, method, rows):
        return (4096 / method.num_samples) ** self.rate[rows]

    def found(self, rtol, max_draws):
        row_numbers = np.arange(float(len(self.size)))[:, None]
        problem = as_problem(row_numbers, np.eye(1), tg.Ball(np.zeros(1), 1.0))
        search = Search(problem, self.key, self.goal, rtol, max_draws)
        search.attempt(tg.SoftMonteCarlo(4096, 16, points="lattice"), -1.0)
        search.refine()
        return search.answer()

    @property
    def draws(self):
        return sum(n * 16 * len(rows) for n, rows in self.bought)


def test_only_rows_that_need_it_get_more_points():
    shop = Shop([1e-5, 2e-3, 1e-5, 3e-2, 1e-4], [0.5] * 5)
    got = shop.found(1e-3, 2**40)
    np.testing.assert_array_equal(got.result.log_prob, np.arange(5.0))
    assert np.all(got.result.stderr <= 1e-3) and got.result.stderr[4] == 1e-4
    assert shop.bought[0] == (4096, [0, 1, 2, 3, 4])
    assert {row for _, rows in shop.bought[1:] for row in rows} == {1, 3}
    # Row 1 is content with 16 times the samples; row 3 needs 225 times as many still, and gets 64.
    found = [(n // 4096, sorted(set(rows))) for n, rows in shop.bought[1:]]
    assert found == [(16, [1, 3]), (1024, [3])]


def test_the_budget_counts_every_row():
    first = 23 * 16 * 4096  # which every row may have
    for max_draws in (2**17, 2**20, 2**24, 2**28):
        shop = Shop(np.linspace(0.1, 1.0, 23), [0.5] * 23)
        got = shop.found(1e-6, max_draws)
        assert max_draws / 32 < shop.draws <= max(first, max_draws)
        assert got.attempts[0].ending == SPENT


def test_rows_that_more_points_do_not_help_are_left_alone():
    shop = Shop([0.1, 0.1, INF, 0.1], [0.05, 0.5, 0.5, -0.5])
    got = shop.found(1e-3, 2**40)
    assert got.result.stderr[1] <= 1e-3 and got.result.stderr[2] == INF
    assert sorted(shop.bought[1][1]) == [0, 1, 2, 3]  # the infinite one is given one step
    assert all(rows == [1] for _, rows in shop.bought[2:]) and got.attempts[0].ending == STUCK
    shop = Shop([INF], [0.5])
    assert shop.found(1e-3, 2**40).attempts[0].ending == STUCK and len(shop.bought) == 2


def test_what_has_the_smaller_error_is_kept():
    """A second method for two of three rows, better for one of them."""
    shop = Shop([0.5, 1e-5, 0.5], [0.0] * 3)
    problem = as_problem(np.arange(3.0)[:, None], np.eye(1), tg.Ball(np.zeros(1), 1.0))
    search = Search(problem, shop.key, shop.goal, 1e-4, 2**40)
    search.attempt(tg.SoftMonteCarlo(4096, 16), -1.0)
    shop.size = np.array([0.9, 0.0, 0.01])
    search.attempt(tg.SoftMonteCarlo(2048, 16), 0.05)
    got = search.answer()
    np.testing.assert_array_equal(got.result.stderr, [0.5, 1e-5, 0.01])
    assert shop.bought[1] == (2048, [0, 2]) and [a.error for a in got.attempts] == [0.5, 0.9]


def test_more_points_are_a_number_of_the_method():
    assert tg.Separation(1024).enlarged(4).num_points == 4096
    soft = tg.SoftMonteCarlo(1000, 16).enlarged(16)
    assert soft.num_samples == 16000 and soft.edge.steepness == 100.0
    for field in ({"rtol": 0.0}, {"max_draws": 0}, {"max_draws": 1e9}):
        with pytest.raises(ValueError, match=f"{next(iter(field))} must be"):
            tg.Automatic(**field)


def test_many_rows_begin_with_fewer_points():
    counts = lambda d, rows: tg.Automatic().counts(
        as_problem(np.zeros(d), tg.LowRank(np.zeros((d, 0)), np.ones(d)), tg.Box(np.zeros(d), INF)),
        rows,
    )
    assert counts(5, 1) == counts(5, 32) == counts(5, None) == (1024, 1024)
    assert counts(5, 10_000) == (128, 128) and counts(100_000, 1) == (32, 32)


@pytest.mark.full
def test_rows_in_batches_are_the_rows(monkeypatch):
    """Two-dimensional rows, 4 at a time and the last turn begun anew; then one at a time."""
    shifts = jnp.linspace(-2.0, 2.0, 10).reshape(5, 2, 1) + jnp.array([0.0, 0.5])
    regions = tg.Box(jnp.zeros((2, 2)), INF)
    covariances = equal_correlations(2) * jnp.array([1.0, 2.0])[:, None, None]
    ask = lambda method: tg.log_probability(shifts, covariances, regions, method)
    whole, moments = ask(tg.Exact()), tg.truncated_moments(shifts, covariances, regions)
    for most in (4 * 3000, 10):
        monkeypatch.setattr("truncgauss.arrays.batches.MOST_NUMBERS", most)
        for method in (tg.Exact(), tg.Automatic()):
            got = ask(method)
            assert got.log_prob.shape == (5, 2)
            np.testing.assert_allclose(got.log_prob, whole.log_prob, rtol=1e-12)
        again = tg.truncated_moments(shifts, covariances, regions)
        np.testing.assert_allclose(again.mean, moments.mean, rtol=1e-10)
        assert again.covariance.shape == (5, 2, 2, 2)


@pytest.mark.full
def test_held_plans_take_turns_with_their_rows(monkeypatch):
    shifts = jnp.linspace(-1.0, 1.0, 5)[:, None] + jnp.zeros(4)
    region = tg.Box(jnp.zeros(4), INF)
    held = tg.Separation(num_points=128, num_replicates=2).hold(shifts, tridiagonal(4), region)
    whole = tg.log_probability(shifts, tridiagonal(4), region, held)
    monkeypatch.setattr("truncgauss.arrays.batches.MOST_NUMBERS", 2 * held.numbers_held(4))
    got = tg.log_probability(shifts, tridiagonal(4), region, held)
    # A stderr is a difference of logs, rounded as they are.
    np.testing.assert_allclose(got, whole, rtol=1e-10, atol=1e-14)


@pytest.mark.full
def test_explain_says_what_was_chosen_and_why():
    region = tg.Box(jnp.zeros(4), jnp.full(4, INF))
    text = tg.explain(jnp.zeros(4), tridiagonal(4), region, tg.Automatic(1e-2))
    assert "Box in 4 dimensions, float64" in text
    assert "Separation(num_points=256, num_replicates=16): more than three" in text
    bound = float(text.split("tilt     ")[1].split()[0])
    assert -math.log(120) < bound < 0
    assert 50 < float(text.split("points   ")[1].split("%")[0]) <= 100
    with pytest.raises(ValueError, match="one problem at a time"):
        tg.explain(jnp.zeros((2, 4)), tridiagonal(4), region)
    wide = tg.Box(jnp.full(4, -INF).at[0].set(0.0), jnp.full(4, INF).at[2].set(1.0))
    text = tg.explain(jnp.zeros(4), jnp.diag(jnp.arange(1.0, 5.0)), wide)
    assert "2 without bounds, left out" in text and text.count("part     independent") == 2
    assert f"{math.log(0.5) + float(tg.special.log_ndtr(3**-0.5)):.10g}, exact" in text


def test_rtol_buys_points_under_a_trace():
    """Of which 1e-4, the default, buys 1,024; and a plan that is held has at least 256."""
    region, bought = tg.Box(jnp.zeros(5), jnp.full(5, INF)), []
    for rtol in (0.5, 1e-2, 7e-3, 1e-3, 1e-4, 5e-5, 1e-6, 1e-9):
        method = tg.Automatic(rtol)

        def log_prob(loc, method=method):
            chosen = method.choice(as_problem(loc, tridiagonal(5), region))
            bought.append(chosen.num_points)
            assert isinstance(chosen, tg.Separation) and chosen.num_replicates == 16
            return loc

        jax.eval_shape(log_prob, jnp.zeros(5))
        problem = as_problem(jnp.zeros(5), tridiagonal(5), region)
        assert method.choice(problem).num_points == max(256, bought[-1])
    assert bought == [64, 64, 256, 1024, 1024, 8192, 65536, 65536]
    wide, bought = as_problem(np.zeros(20), np.eye(20), tg.Box(np.zeros(20), INF)), []
    for rtol in (1e-2, 1e-4):
        ask = lambda loc, rtol=rtol: bought.append(
            tg.Automatic(rtol).counts(wide._replace(loc=loc))
        )
        jax.eval_shape(ask, wide.loc)
    assert bought == [(128, 128), (1024, 1024)]


@pytest.mark.parametrize("differentiates", [False, True])
def test_rtol_buys_points_of_a_call_with_numbers(differentiates):
    """Six rows: 256 points, then 1,024 of those above rtol, as many rows as before, and so on."""
    factor, bought = tg.ScaleTril(np.linalg.cholesky(tridiagonal(4))), []
    size = np.array([1e-3, 8e-3, 1e-3, 3e-2, 0.2, 1e-3])

    def evaluate(method, problem, key):
        pieces = 1 if method.lattice is None else int(np.max(method.lattice.num_pieces))
        loc = np.asarray(problem.loc)[..., 0]
        rows = loc.astype(int)
        bought.append((pieces * method.num_points, rows.tolist()))
        error = size[rows] * 256 / bought[-1][0]
        return Estimate(loc, error)

    rows = np.arange(6.0)[:, None] + np.zeros(4)
    problem = as_problem(rows, factor, tg.Box(np.zeros(4), np.full(4, INF)))
    goal = Goal(evaluate, errors, differentiates)
    got = answer(tg.Automatic(rtol=1e-2), problem, jax.random.key(0), goal)
    assert got.attempts[0].method.num_points >= 1024 and len(got.attempts) == 1
    if differentiates:  # where each count of points is a program
        assert [n for n, _ in bought] == [1024, 16384]
        return
    assert bought[0] == (256, [0, 1, 2, 3, 4, 5])
    assert bought[1] == (1024, [3, 4, 3, 3, 3, 3])
    assert [(n, set(rows)) for n, rows in bought[2:]] == [(16384, {4})]
    np.testing.assert_allclose(got.result.stderr, [1e-3, 8e-3, 1e-3, 7.5e-3, 3.125e-3, 1e-3])


def test_a_key_of_the_earlier_kind_is_one():
    old = tg.log_probability([0.0], [[1.0]], tg.Box([0.0], [1.0]), key=jax.random.PRNGKey(0))
    assert old.stderr == 0


@pytest.mark.slow
def test_long_chains_go_to_sequential_monte_carlo():
    """AR(1) 0.9 orthant, 1,000 dense dimensions, not taken for the chain it is: log P = -85.039."""
    d = 1000
    covariance = 0.9 ** jnp.abs(jnp.arange(d)[:, None] - jnp.arange(d))
    problem = as_problem(jnp.zeros(d), covariance, tg.Box(jnp.zeros(d), jnp.full(d, INF)))
    found = answer(tg.Automatic(rtol=0.05), problem, jax.random.key(0), PROBABILITY)
    assert isinstance(found.method, tg.SequentialMonteCarlo)
    got = found.result
    assert abs(got.log_prob + 85.039) < 7 * got.stderr < 0.5
