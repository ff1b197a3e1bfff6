"""Excursion functions beside exact nested probabilities, plain draws and other methods."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from truncgauss.fields import excursions

LOC = np.array([0.5, 0.1, 0.9])
COVARIANCE = np.array([[1.0, 0.5, 0.2], [0.5, 2.0, 0.3], [0.2, 0.3, 0.5]])
LEVEL = np.array([0.0, 0.2, -0.1])
LINE = np.linspace(0.0, 1.0, 30)
DECAY = np.exp(-np.abs(LINE[:, None] - LINE) / 0.4)
WAVE = 1.0 + np.sin(5.0 * LINE)


def equal(k, correlation=0.5):
    """Equal correlations as one factor, for which `tg.Exact` is a sum over one dimension."""
    return tg.LowRank(np.full((k, 1), correlation**0.5), np.full(k, 1.0 - correlation))


def orthant(loc, covariance):
    above = tg.Box(np.zeros(len(loc)), np.inf)
    return float(np.exp(tg.log_probability(loc, covariance, above, tg.Exact()).log_prob))


@pytest.mark.full
def test_errors_are_honest_over_keys():
    loc = np.random.default_rng(1).permutation(np.linspace(0.5, 3.5, 40))
    order, ranks = np.argsort(-loc), np.array([9, 24, 34])
    truth = np.array([orthant(loc[order[: k + 1]], equal(k + 1)) for k in ranks])
    scores = []
    for seed in range(12):
        key = jax.random.key(seed)
        result = tg.excursion(loc, equal(40), 0.0, num_particles=128, key=key)
        sites = order[ranks]
        scores.append((result.probability[sites] - truth) / result.stderr[sites])
    scores = np.array(scores)
    assert np.max(np.abs(scores)) < 4.0 and 0.6 < np.sqrt(np.mean(scores**2)) < 1.4
    assert np.all(np.abs(scores.mean(axis=0)) < 1.2)


def test_the_set_holds_with_its_probability():
    """The last F of the set beside the probability of all of it by separation of variables."""
    result = tg.excursion(WAVE, DECAY, 0.3)
    inside = np.asarray(result.inside(0.4))
    assert 2 <= inside.sum() < 30 and np.all(result.probability[inside] >= 0.6)
    box = tg.Box(np.full(inside.sum(), 0.3), np.inf)
    other = tg.log_probability(WAVE[inside], DECAY[np.ix_(inside, inside)], box, tg.Separation())
    last = np.argmin(np.where(inside, result.probability, 2.0))
    gap = abs(np.log(result.probability[last]) - other.log_prob)
    assert gap < 4.0 * np.hypot(result.stderr[last] / result.probability[last], other.stderr)


@pytest.mark.full
def test_passes_grow_until_it_is_below_least(monkeypatch):
    monkeypatch.setattr(excursions, "FIRST", 8)
    loc = np.linspace(3.5, -1.5, 40)
    result = tg.excursion(loc, equal(40), 0.0, least=0.3, key=jax.random.key(1))
    known = np.isfinite(result.probability)
    count = known.sum()
    assert 16 < count < 40 and known[:count].all() and np.all(np.isnan(result.stderr[~known]))
    for k in (8, 17, count, count + 1):
        truth = orthant(loc[:k], equal(k))
        assert (truth >= 0.3) == (k <= count)
        if k <= count:
            assert abs(result.probability[k - 1] - truth) < 4.0 * result.stderr[k - 1] + 1e-12
    assert not result.inside(0.7)[~known].any()
    with pytest.raises(ValueError, match=r"alpha must be above 0 and at most 0\.7, got 0\.8"):
        result.inside(0.8)


def test_of_one_factor_it_is_the_probability_of_the_last_site():
    """X_i = loc_i + a_i Z with a_i > 0: all exceed 0 where Z exceeds the largest -loc_i / a_i."""
    scale = np.linspace(0.5, 2.0, 12)
    loc = np.linspace(2.0, 1.0, 12)
    result = tg.excursion(loc, np.outer(scale, scale), 0.0, num_particles=4096)
    gap = np.abs(result.probability - result.marginal)
    assert np.all(gap < 4.0 * result.stderr + 1e-6) and np.all(result.stderr < 2e-4)


def test_sites_without_variance_are_certain_or_impossible():
    covariance = np.zeros((5, 5))
    covariance[1:4, 1:4] = COVARIANCE
    loc = np.r_[1.0, LOC, -1.0]
    result = tg.excursion(loc, covariance, np.r_[0.0, LEVEL, 0.0])
    inner = tg.excursion(LOC, COVARIANCE, LEVEL)
    np.testing.assert_array_equal(result.probability[1:4], inner.probability)
    assert (result.probability[0], result.stderr[0]) == (1.0, 0.0)
    assert result.marginal[4] == 0.0 and np.isnan(result.probability[4])
    nowhere = tg.excursion(np.full(3, -9.0), COVARIANCE, 0.0)
    assert np.isnan(nowhere.probability).all() and not nowhere.inside().any()


@pytest.mark.parametrize("form", ["ScaleTril", "Markov", "Directed", "from_points"])
def test_every_covariance_is_that_of_its_matrix(form):
    root, decay = np.linalg.cholesky(DECAY), np.exp(-(LINE[1] - LINE[0]) / 0.4)
    left = (1.0 - decay**2) ** 0.5
    before = np.r_[30, np.arange(29)][:, None]
    weights = np.r_[0.0, np.full(29, decay)][:, None]
    covariance = {
        "ScaleTril": lambda: tg.ScaleTril(root),
        "Markov": lambda: tg.Markov(np.full(29, decay), np.full(29, left), 1.0),
        "Directed": lambda: tg.Directed(before, weights, np.r_[1.0, np.full(29, left)]),
        "from_points": lambda: tg.Directed.from_points(
            LINE, lambda x, y: jnp.exp(-jnp.abs(x - y)[0] / 0.4), block=8
        ),
    }[form]()
    result, dense = (tg.excursion(WAVE, x, 0.3) for x in (covariance, DECAY))
    np.testing.assert_allclose(result.probability, dense.probability, rtol=1e-6)


def test_few_particles_and_single_precision():
    single = tg.excursion(*(x.astype(np.float32) for x in (LOC, COVARIANCE, LEVEL)))
    double = tg.excursion(LOC, COVARIANCE, LEVEL)
    assert single.probability.dtype == single.stderr.dtype == jnp.float32
    gap = np.abs(single.probability - double.probability)
    assert np.all(gap < 4.0 * np.hypot(single.stderr, double.stderr) + 1e-6)
    few = tg.excursion(
        np.full(30, -1.0), DECAY / 30 + np.eye(30), 0.0, least=1e-30, num_particles=16
    )
    assert np.isinf(few.stderr).any()


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        ((LOC[:2], COVARIANCE, 0.0), {}, r"loc must be a number or have shape \(3,\).*got \(2,\)"),
        ((LOC, COVARIANCE, np.zeros(4)), {}, r"level must be a number or have shape \(3,\)"),
        ((LOC * np.nan, COVARIANCE, 0.0), {}, "loc must be finite, got NaN"),
        ((LOC, COVARIANCE, np.inf), {}, "level must be finite, got NaN or infinity"),
        ((LOC, COVARIANCE * np.nan, 0.0), {}, "covariance must be finite"),
        ((LOC, -COVARIANCE, 0.0), {}, "positive semi-definite"),
        ((LOC, COVARIANCE[None], 0.0), {}, r"one field at a time, got leading axes \(1,\)"),
        ((LOC, COVARIANCE, 0.0), {"kind": "="}, 'kind must be ">", "<" or "!=", got \'=\''),
        ((LOC, COVARIANCE, 0.0), {"least": 0.0}, "least must be between 0 and 1, got 0.0"),
        ((LOC, COVARIANCE, 0.0), {"num_replicates": 1}, "num_replicates must be an int from 2"),
        ((LOC, COVARIANCE, 0.0), {"num_particles": 9.0}, "num_particles must be an int from 1"),
    ],
)
def test_bad_inputs_are_said(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        tg.excursion(*arguments, **options)


def test_it_is_not_traced():
    with pytest.raises(ValueError, match="must be numbers, not traced"):
        jax.jit(lambda loc: tg.excursion(loc, COVARIANCE, 0.0).probability)(LOC)
