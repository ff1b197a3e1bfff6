"""TruncatedMultivariateNormal: densities, normalisers and their errors, moments, draws."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import truncgauss as tg
from tests.normal_truth import Truth
from tests.truncated_vectors import PAIR, Given, shape_of, vector_law

INF = math.inf
gaussian = jax.jit(lambda loc, covariance, x: dist.MultivariateNormal(loc, covariance).log_prob(x))


@pytest.mark.full
def test_shapes_of_the_vector_distribution():
    truncated = vector_law(np.zeros((3, 1, 2)), low=[[-1.0, 0.0]] * 4)
    assert truncated.batch_shape == (3, 4) and truncated.event_shape == (2,)
    assert truncated.infer_shapes((3, 1, 2), (2, 2), low=(4, 2)) == ((3, 4), (2,))
    x = np.ones((5, 1, 1, 2))
    values = truncated.log_prob(x)
    assert values.shape == (5, 3, 4) and truncated.log_normalizer.log_prob.shape == (3, 4)
    alone = vector_law([0.0, 0.0], low=[-1.0, 0.0])
    assert np.allclose(values, alone.log_prob(x[0, 0, 0]), rtol=1e-13)
    many = vector_law(np.zeros(2), jnp.stack([PAIR, 2 * PAIR]), low=[-1.0, 0.0])
    assert many.log_prob(x[:, 0]).shape == (5, 2)
    assert np.allclose(many.log_prob(x[:, 0])[:, 0], alone.log_prob(x[0, 0, 0]))
    assert shape_of(many.to_event(1).log_prob, np.ones((2, 2))) == ()
    wide = many.expand((6, 2))
    assert shape_of(wide.log_prob, np.ones(2)) == (6, 2)
    assert shape_of(lambda: wide.sample(jax.random.key(0), (5,))) == (5, 6, 2, 2)


def test_every_form_of_a_covariance():
    loc, x, factor = np.array([0.2, -0.1]), np.array([0.5, 0.7]), np.linalg.cholesky(PAIR)
    whole = vector_law(loc, low=0.0).log_prob(x)
    for form in [
        {"covariance_matrix": PAIR.tolist()},
        {"covariance_matrix": tg.ScaleTril(factor)},
        {"precision_matrix": np.linalg.inv(PAIR)},
        {"scale_tril": factor},
    ]:
        truncated = tg.TruncatedMultivariateNormal(loc, **form, low=0.0, method=Given())
        assert np.allclose(truncated.covariance_matrix, PAIR) and np.allclose(
            truncated.scale_tril, factor
        )
        assert np.allclose(truncated.precision_matrix, np.linalg.inv(PAIR))
        assert truncated.log_prob(x) == pytest.approx(float(whole), rel=1e-12)
    for form in (tg.LowRank([[1.0], [0.5]], [0.5, 0.5]), tg.Markov([0.5], 1.0, 1.0)):
        dense = vector_law(loc, form.covariance_matrix, low=0.0).log_prob(x)
        assert vector_law(loc, form, low=0.0).log_prob(x) == pytest.approx(float(dense), rel=1e-12)


def test_a_vector_without_limits_is_the_normal_distribution():
    d = 4
    covariance = np.eye(d) + 0.5
    x = np.random.default_rng(0).normal(size=(10, d))
    theirs = gaussian(np.ones(d), covariance, x)
    ours = vector_law(1.0, covariance)
    assert ours.loc.shape == (d,) and ours.log_normalizer == (0.0, 0.0)
    assert np.allclose(ours.log_prob(x), theirs, rtol=4e-16, atol=4e-16)
    traced = jax.jit(lambda low: vector_law(1.0, covariance, low=low).log_prob(x))
    assert np.allclose(traced(jnp.full(d, -INF)), theirs, rtol=1e-15, atol=1e-15)


def test_one_coordinate_is_right_in_any_tail():
    truncated = tg.TruncatedMultivariateNormal([0.0], [[4.0]], low=18.0, high=20.0)
    one = tg.TruncatedNormal(0.0, 2.0, 18.0, 20.0)
    assert truncated.log_prob(jnp.array([18.1])) == one.log_prob(18.1)
    assert truncated.entropy() == one.entropy()
    share, truth = one.log_normalizer, Truth(0.0, 2.0, 18.0, 20.0).log_mass
    assert share.log_prob == pytest.approx(float(truth), rel=1e-14) and share.stderr == 0.0
    assert truncated.log_normalizer.log_prob == pytest.approx(float(truth), rel=1e-14)


def test_the_leaves_of_a_method_go_with_the_distribution():
    truncated = vector_law(np.zeros(2), method=Given(stderr=jnp.asarray(0.25)), low=0.0)
    plan = {id(leaf) for leaf in jax.tree.leaves(truncated.method)}
    assert plan and plan <= {id(leaf) for leaf in jax.tree.leaves(truncated)}
    assert jax.jit(lambda truncated: truncated.log_normalizer.stderr)(truncated) == 0.25


def test_constants_are_normalised_once_even_in_a_model():
    seen = []

    @jax.jit
    def density(x):
        truncated = vector_law(np.zeros(2), low=0.0)
        seen.append(truncated.log_normalizer)
        assert truncated.log_normalizer is seen[-1]
        return truncated.log_prob(x)

    value = density(np.ones(2))
    assert not isinstance(seen[0].log_prob, jax.core.Tracer)
    assert value == pytest.approx(float(vector_law(np.zeros(2), low=0.0).log_prob(np.ones(2))))


def test_the_error_of_the_normaliser_is_known_and_can_be_bounded():
    method, x = Given(stderr=0.01), np.ones(2)
    assert vector_law(x, low=0.0, method=method).log_normalizer.stderr == 0.01

    def density(loc, max_stderr, stderr=0.01):
        truncated = vector_law(loc, low=0.0, method=Given(stderr=stderr), max_stderr=max_stderr)
        return truncated.log_prob(x)

    assert density(x, 0.02) == density(x, None)
    refusal = "standard error of the log normaliser is {} more than max_stderr=0.005"
    for stderr, said in [(0.01, "0.01,"), (np.nan, "nan,"), (np.inf, "inf,")]:
        with pytest.raises(ValueError, match=refusal.format(said)):
            density(x, 0.005, stderr)
    traced = jax.jit(density, static_argnums=1)
    assert np.isfinite(traced(x, 0.02)) and np.isnan(traced(x, 0.005))


def test_a_normaliser_that_rests_on_nothing_is_refused_unless_it_is_asked_for():
    x = np.ones(2)

    def density(loc, stderr, max_stderr=None):
        truncated = vector_law(loc, low=0.0, method=Given(stderr=stderr), max_stderr=max_stderr)
        return truncated.log_prob(x)

    with pytest.raises(
        ValueError, match="too few samples were effective to estimate it. Give the method"
    ):
        density(x, np.inf)
    known = density(x, 0.01)
    assert density(x, np.nan) == known  # unknown is not the same as baseless
    assert density(x, np.inf, np.inf) == density(x, np.nan, np.inf) == known
    traced = jax.jit(density, static_argnums=2)
    assert np.isnan(traced(x, np.inf)) and traced(x, np.inf, np.inf) == known
    # In a batch the row that rests on nothing is NaN, and the other one stays.
    rows = jax.jit(jax.vmap(density))(jnp.stack([x, x]), jnp.array([np.inf, 0.01]))
    np.testing.assert_array_equal(rows, [np.nan, known])


@pytest.mark.full
def test_a_mean_that_rests_on_nothing_is_refused_unless_it_is_asked_for():
    """Eight samples, none of which lies that far out."""
    few = tg.SoftMonteCarlo(num_samples=8, edge=tg.Tanh(1.0))

    def truncated(loc, max_stderr=None):
        return vector_law(loc, low=9.0, method=few, max_stderr=max_stderr)

    assert np.all(np.isinf(truncated(0.0).moments.mean_stderr))
    for name in ("mean", "variance"):
        with pytest.raises(ValueError, match=f"{name} is inf: too few samples were effective"):
            getattr(truncated(0.0), name)
        traced = jax.jit(lambda loc, most: getattr(truncated(loc, most), name), static_argnums=1)  # noqa: B023
        assert np.all(np.isnan(traced(jnp.zeros(2), None)))
        assert np.all(np.isfinite(traced(jnp.zeros(2), np.inf)))
