"""Fields: covariances of neighbours, log P, gradients and likelihoods beside dense matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg

N = 24
RNG = np.random.default_rng(3)
POINTS = RNG.uniform(0.0, 3.0, (N, 2))
LOC = jnp.linspace(-0.3, 0.4, N)
LOW = jnp.where(jnp.arange(N) % 3 == 0, -jnp.inf, -1.0)
HIGH = jnp.where(jnp.arange(N) % 3 == 1, jnp.inf, 0.5)
METHOD = tg.FieldParticles(num_particles=1000, num_replicates=8)


def kernel(x, y, reach=1.0):
    """Matern 3/2; the derivative of the root is 0 where the points are equal."""
    square = jnp.sum((x - y) ** 2)
    r = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0) / reach
    return (1.0 + r) * jnp.exp(-r)


def field(reach=1.0, noise=0.3, neighbours=256, block=8):
    return tg.Directed.from_points(
        POINTS, lambda x, y: kernel(x, y, reach), neighbours, noise=noise, block=block
    )


def matrix(reach=1.0, noise=0.3):
    pairs = jax.vmap(jax.vmap(lambda x, y: kernel(x, y, reach), (None, 0)), (0, None))
    return pairs(POINTS, POINTS) + noise**2 * jnp.eye(N)


def close(found, truth, beyond=0.0):
    error = jnp.hypot(found.stderr, truth.stderr)
    assert jnp.all(jnp.abs(found.log_prob - truth.log_prob) < 5.0 * error + beyond)


def test_with_all_neighbours_it_is_the_matrix_of_the_kernel():
    np.testing.assert_allclose(field().covariance_matrix, matrix(), atol=1e-13)
    by = jnp.linspace(0.5, 2.0, N)
    scaled = field(neighbours=4).scaled(by).covariance_matrix
    np.testing.assert_allclose(
        scaled, field(neighbours=4).covariance_matrix * by[:, None] * by, rtol=1e-12
    )


@pytest.mark.full
def test_the_first_form_is_a_chain_where_there_is_one_neighbour():
    chain = tg.Markov([0.5, -0.7, 1.1], [1.0, 2.0, 0.5], 1.5)
    one = tg.Directed([[4], [0], [1], [2]], [[0.0], [0.5], [-0.7], [1.1]], [1.5, 1.0, 2.0, 0.5])
    np.testing.assert_allclose(one.covariance_matrix, chain.covariance_matrix, rtol=1e-12)
    box = tg.Box([-1.0, -jnp.inf, 0.0, -2.0], [1.0, 0.5, jnp.inf, 2.0])
    found = tg.log_probability(jnp.zeros(4), one, box, METHOD)
    close(found, tg.log_probability(jnp.zeros(4), chain, box))
    assert found.stderr < 0.02


def sparse(noise, loc, reach, low, high):
    return tg.log_probability(loc, field(reach, noise), tg.Box(low, high), METHOD)


def dense(noise, loc, reach, low, high):
    exact = tg.Separation(num_points=2048)
    return tg.log_probability(loc, matrix(reach, noise), tg.Box(low, high), exact)


def test_log_p_is_that_of_the_dense_matrix():
    found = sparse(0.3, LOC, 1.0, LOW, HIGH)
    close(found, dense(0.3, LOC, 1.0, LOW, HIGH))
    assert 0 < found.stderr < 0.02


@pytest.mark.full
@pytest.mark.parametrize("noise", [0.3, 0.0])
def test_gradients_are_those_of_the_dense_matrix(noise):
    inputs = LOC, 1.0, LOW, HIGH
    close(sparse(noise, *inputs), dense(noise, *inputs))
    slopes = jax.grad(lambda *x: sparse(noise, *x).log_prob, (0, 1, 2, 3))(*inputs)
    others = jax.grad(lambda *x: dense(noise, *x).log_prob, (0, 1, 2, 3))(*inputs)
    for slope, other in zip(slopes, others):
        # Of a derivative by 8,000 draws; without noise the density of a smooth field is steep.
        np.testing.assert_allclose(slope, other, atol=0.1 if noise else 0.6)
        np.testing.assert_allclose(np.sum(slope), np.sum(other), atol=0.15)
    np.testing.assert_allclose(slopes[1], others[1], atol=0.05)
    assert "FieldParticles" in tg.explain(LOC, field(1.0, noise), tg.Box(LOW, HIGH))


@pytest.mark.full
@pytest.mark.parametrize("noise", [0.3, 0.0])
def test_one_row_with_exact_censored_and_missing_entries(noise):
    value = jnp.asarray(RNG.normal(size=N))
    kind = jnp.arange(N) % 4  # exact, below a limit, in an interval, missing
    low = jnp.where(kind == 0, value, jnp.where(kind == 2, -1.0, -jnp.inf))
    high = jnp.where(kind == 0, value, jnp.where(kind == 3, jnp.inf, 0.7))
    row = tg.Observations(low[None], high[None])
    found = tg.log_likelihood(row, LOC, field(1.0, noise), METHOD)
    truth = tg.log_likelihood(row, LOC, matrix(1.0, noise), tg.Separation())
    close(found, truth, 1e-9)
    assert 0 < found.stderr[0] < 5e-3
    known = tg.Observations(value[None], value[None])
    found = tg.log_likelihood(known, LOC, field(1.0, 0.3), METHOD)
    truth = tg.log_likelihood(known, LOC, matrix(1.0, 0.3))
    np.testing.assert_allclose(found.log_prob, truth.log_prob, rtol=1e-9)


@pytest.mark.full
def test_what_neighbours_cannot_say_shows_in_the_error():
    points = jnp.arange(200.0)
    equal = tg.Directed.from_points(
        points, lambda x, y: 0.5 + 0.5 * jnp.all(x == y), neighbours=8, block=8
    )
    below = tg.Box(jnp.full(200, -jnp.inf), 0.0)
    found = tg.log_probability(jnp.zeros(200), equal, below)
    assert abs(found.log_prob + np.log(201)) < 3.0 * found.stderr
    assert found.stderr > 0.1


@pytest.mark.full
def test_second_derivatives_raise():
    box, near = tg.Box(LOW, HIGH), field()
    slope = jax.grad(lambda loc: tg.log_probability(loc, near, box, METHOD).log_prob)
    with pytest.raises(ValueError, match="no second derivatives"):
        jax.jvp(slope, (LOC,), (LOC,))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tg.Directed([[1], [0]], [[0.5], [0.5]], [1.0, 1.0]), "come earlier"),
        (lambda: tg.Directed([[2], [0]], [[0.0], [0.5]], [1.0, 0.0]), "scale must be positive"),
        (lambda: tg.Directed([[2], [0]], [[0.0]], [1.0, 1.0]), "one shape"),
        (lambda: tg.Directed([[2], [0]], [[0.0], [0.5]], [1.0, 1.0], [0, 0]), "each of 0"),
        (lambda: tg.Directed([[2], [0]], [[0.0], [0.5]], [1.0, 1.0], noise=-1.0), "negative"),
        (lambda: tg.Directed.from_points(np.zeros((3, 2)), kernel), "give them noise"),
        (lambda: tg.Directed.from_points([[jnp.nan]], kernel), "finite"),
        (lambda: tg.Directed.from_points([0.0, 1.0], lambda x, y: -kernel(x, y)), "positive def"),
        (lambda: tg.Directed.from_points([0.0, 1.0], kernel, neighbours=1), "at least 2"),
        (lambda: jax.jit(lambda x: tg.Directed.from_points(x, kernel))(jnp.ones(3)), "traced"),
    ],
)
def test_bad_input_is_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_other_regions_and_rows_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="FieldParticles applies to a tg.Box"):
        tg.log_probability(LOC, matrix(), tg.Box(LOW, HIGH), METHOD)
    row = tg.Observations(LOW[None], HIGH[None], noise=jnp.ones((1, N)))
    with pytest.raises(ValueError, match="give the field its noise"):
        tg.log_likelihood(row, LOC, field())


def test_a_likelihood_by_another_method_is_refused():
    rows = tg.Observations(np.full((1, N), -1.0), np.full((1, N), 1.0))
    with pytest.raises(ValueError, match="tg.FieldParticles.. computes it, got Separation"):
        tg.log_likelihood(rows, LOC, field(), tg.Separation())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": [1.0, np.nan]}, "scale"),
        ({"weights": [[0.0], [np.nan]]}, "weights holds NaN"),
        ({"weights": [[9.0], [0.5]]}, "weights must be 0 where neighbours hold 2, for none"),
        ({"noise": np.nan}, "noise is a standard deviation"),
        ({"noise": np.inf}, "noise holds NaN or infinity"),
    ],
)
def test_numbers_that_are_none_are_refused(changes, message):
    given = {"neighbours": [[2], [0]], "weights": [[0.0], [0.5]], "scale": [1.0, 1.0]}
    tg.Directed(**given)
    with pytest.raises(ValueError, match=message):
        tg.Directed(**given | changes)
