"""A method held for one problem answers it, or one like it, and refuses all others.

A plan of another problem of the same shape is unbiased for this one; of another shape it would
answer for some of the coordinates, with a small error.
"""

import jax
import numpy as np
import pytest

import truncgauss as tg

INF = np.inf


def problem(d, rows=()):
    """The orthant of equal correlations 1/2, of probability 1 / (d + 1)."""
    covariance = 0.5 * np.eye(d) + 0.5
    return np.zeros((*rows, d)), covariance, tg.Box(np.zeros(d), np.full(d, INF))


def low_rank(d, rank=1):
    return np.zeros(d), tg.LowRank(np.ones((d, rank)), np.ones(d)), tg.Box(np.zeros(d), INF)


METHODS = {
    "separation": tg.Separation(64, 4),
    "tilted": tg.Separation(64, 4, twisted=False),
    "sequential": tg.SequentialMonteCarlo(64, 4),
}
QUESTIONS = {
    "log_probability": tg.log_probability,
    "moments": tg.truncated_moments,
    "explain": tg.explain,
    "distribution": lambda loc, covariance, region, held: tg.TruncatedMultivariateNormal(
        loc, covariance, region=region, method=held
    ),
    "traced": lambda loc, covariance, region, held: jax.jit(
        lambda loc: tg.log_probability(loc, covariance, region, held).log_prob
    )(loc),
    "fit": lambda loc, covariance, region, held: tg.fit_truncated_normal(
        np.abs(np.random.default_rng(0).normal(size=(50, loc.shape[-1]))), low=0.0, method=held
    ),
    "counts": lambda loc, covariance, region, held: tg.fit_shift(
        np.array([30]), loc, covariance, region, num_trials=100, method=held
    ),
}


def held_shapes(method, *problem):
    """The held method with shapes in place of numbers, which is all that a refusal looks at."""
    return jax.eval_shape(lambda: method.hold(*problem))


def answer_shape(loc, covariance, region, held):
    """The shape of the answer, without a compilation."""
    ask = lambda held: tg.log_probability(loc, covariance, region, held).log_prob
    return jax.eval_shape(ask, held).shape


@pytest.mark.quick("separation", "sequential")
@pytest.mark.parametrize("name", METHODS)
def test_plans_are_refused_by_every_door_that_they_do_not_fit(name):
    """Two of three coordinates were once answered for the three: -1.386 for -2.079, stderr 0."""
    held = held_shapes(METHODS[name], *problem(2))
    for door, ask in QUESTIONS.items():
        with pytest.raises(ValueError, match="held was made for 2 constraints, this problem has 3"):
            ask(*problem(3), held)
            pytest.fail(f"{door} takes it")
    plans = held_shapes(METHODS[name], *problem(2, (7,)))
    for rows in [(5,), (2, 5), ()]:
        with pytest.raises(ValueError, match=r"leading axes \(7,\), one plan a row"):
            tg.log_probability(*problem(2, rows), plans)
    for rows in [(7,), (3, 7)]:
        assert answer_shape(*problem(2, rows), plans) == rows
    # One plan serves any number of rows.
    assert answer_shape(*problem(2, (5,)), held) == (5,)


def test_rows_of_a_polyhedron_are_counted_and_not_coordinates():
    rows = np.array([[1.0, 1.0], [1.0, -1.0], [0.0, 1.0]])
    of = lambda matrix: tg.Polyhedron(matrix, np.zeros(len(matrix)), INF)
    loc, covariance, _ = problem(2)
    held = held_shapes(tg.Separation(64, 4), loc, covariance, of(rows[:2]))
    assert answer_shape(loc, covariance, of(rows[:2]), held) == ()
    with pytest.raises(ValueError, match="made for 2 constraints, this problem has 3"):
        tg.log_probability(loc, covariance, of(rows), held)
    # Three rows in three dimensions are not three rows in two.
    held = held_shapes(tg.Separation(64, 4), np.zeros(3), np.eye(3), of(np.eye(3)))
    with pytest.raises(ValueError, match="3 variables to draw, this problem has 2"):
        tg.log_probability(loc, covariance, of(rows), held)


def test_a_plan_over_factors_is_none_over_coordinates():
    held = held_shapes(tg.Separation(64, 4), *low_rank(10))
    with pytest.raises(ValueError, match="applies to a tg.Box and a tg.LowRank"):
        tg.log_probability(*problem(10), held)
    with pytest.raises(ValueError, match="made for 1 factors, this problem has 2"):
        tg.log_probability(*low_rank(20, 2), held)


@pytest.mark.full
def test_a_plan_over_factors_serves_any_number_of_coordinates():
    held = tg.Separation(64, 4).hold(*low_rank(10))
    assert abs(float(tg.log_probability(*low_rank(10), held).log_prob) + np.log(11)) < 1e-2
    # The coordinates are no part of that plan: it is unbiased in any number of them.
    other = tg.log_probability(*low_rank(20), held)
    assert abs(float(other.log_prob) + np.log(21)) < max(0.02, 5 * float(other.stderr))


def test_draws_refuse_the_plan_of_another_problem():
    plan = held_shapes(tg.Separation(twisted=False), *problem(2)).plan
    for draws in (tg.truncated_draws, tg.weighted_samples):
        with pytest.raises(ValueError, match="made for 2 constraints, this problem has 3"):
            draws(jax.random.key(0), *problem(3), 10, plan=plan)


@pytest.mark.full
@pytest.mark.parametrize("name", METHODS)
def test_a_plan_of_another_problem_of_the_same_shape_is_honest(name):
    loc, covariance, region = problem(4)
    held = METHODS[name].hold(loc + 1.0, covariance + np.diag(np.arange(4.0)), region)
    estimate = tg.log_probability(loc, covariance, region, held)
    assert abs(float(estimate.log_prob) + np.log(5)) < 8 * float(estimate.stderr)  # t of 3 degrees
    assert float(estimate.stderr) < 0.2


@pytest.mark.full
def test_the_plan_of_a_singular_law_does_not_answer_for_a_regular_one():
    """Three coordinates of rank 2: after two draws the third would be taken for known."""
    loc, _, region = problem(3)
    factor = np.array([[1.0, 0.0], [0.5, 0.8], [0.3, -0.4]])
    singular, regular = factor @ factor.T, factor @ factor.T + 0.1 * np.eye(3)
    held = tg.Separation(256, 4).hold(loc, singular, region)
    assert held.plan.tilt.shape == (2,)
    own, other = (tg.log_probability(loc, matrix, region, held) for matrix in (singular, regular))
    assert np.isfinite(own.log_prob) and not np.isfinite(other.log_prob)
    assert not np.any(np.isfinite(tg.truncated_moments(loc, regular, region, held).mean))
    again = tg.log_probability(loc, regular, region, tg.Separation(256, 4))
    assert np.isfinite(again.log_prob)
