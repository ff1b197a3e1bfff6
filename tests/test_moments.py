"""Moments after truncation: closed forms, quadrature, identities, draws, and each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import autoregression, equal_correlations

import truncgauss as tg
from tests.moment_errors import assert_sound, errors
from truncgauss.quadrature import markov_chain

INF = np.inf


# --- Exact ----------------------------------------------------------------------------------------


def test_one_dimension_is_the_truncated_normal():
    low = np.array([[5.0], [100.0], [-INF], [-1.0]])
    high = np.array([[INF], [115.0], [-38.0], [2.0]])
    moments = tg.truncated_moments([0.0], [[1.0]], tg.Box(low, high))
    # From mpmath, with 40 digits.
    mean = [5.1865039671258421, 100.00999800099926, -38.026279466575869, 0.22963717909132897]
    variance = [
        0.032696434617112225,
        9.994004994826345e-5,
        0.00068965975346625887,
        0.51976253921153394,
    ]
    np.testing.assert_allclose(np.asarray(moments.mean)[:, 0], mean, rtol=2e-15)
    np.testing.assert_allclose(np.asarray(moments.covariance)[:, 0, 0], variance, rtol=1e-13)
    assert not np.any(moments.mean_stderr) and not np.any(moments.covariance_stderr)


def test_independent_coordinates_are_many_of_one():
    region = tg.Box(np.array([0.0, -INF, 50.0, -INF]), np.array([1.0, -5.0, INF, INF]))
    variances = np.array([1.0, 2.0, 3.0, 4.0])
    moments = tg.truncated_moments(np.ones(4), np.diag(variances), region)
    of_one = tg.special.truncated_mean, tg.special.truncated_variance
    truncated = 1.0, np.sqrt(variances), region.low, region.high
    mean, variance = jax.jit(lambda *x: [function(*x) for function in of_one])(*truncated)
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-15)
    np.testing.assert_allclose(moments.covariance, np.diag(variance), rtol=1e-15)


# loc, covariance, low, high, mean, (variance, covariance, variance): from mpmath, with 40 digits.
# In the last case the coordinates determine each other.
TWO = [
    ([0, 0], [[1.0, -0.5], [-0.5, 1.0]], [5, 5], [INF, INF],
     [5.096903106855016, 5.096903106855016],
     [0.009169089137602584, -5.541745490625454e-05, 0.009169089137602584]),
    ([0, 0], [[1.0, 0.999], [0.999, 1.0]], [1, 0.5], [INF, 3],
     [1.5100776867819197, 1.5085112901928042],
     [0.17353677396288197, 0.17327949535638343, 0.17502121685404784]),
    ([0, 0], [[1.0, -0.999], [-0.999, 1.0]], [0.5, 0.5], [INF, INF],
     [0.5019881628201137, 0.5019881628201137],
     [3.937341030643377e-06, -7.717458975491854e-09, 3.937341030643377e-06]),
    ([0, 0], [[1.0, 0.3], [0.3, 1.0]], [100, 100], [INF, INF],
     [100.01299589923825, 100.01299589923825],
     [0.00016883076388228576, 9.397911001912313e-09, 0.00016883076388228576]),
    ([0, 0], [[1.0, 0.9], [0.9, 1.0]], [-INF, 38], [0.5, INF],
     [0.49436466327945894, 38.005057874663315],
     [3.174641409144107e-05, 3.844906073287437e-09, 2.557521279249844e-05]),
    ([0, 0], [[1.0, 0.7], [0.7, 1.0]], [30, 20], [30.000001, 20.00001],
     [30.000000499997387, 20.00000500001634],
     [8.333333350055297e-14, 9.531590432102396e-25, 8.333333332487711e-12]),
    ([1, 2], [[4.0, -3.0], [-3.0, 9.0]], [-1, -INF], [INF, 0],
     [2.405512955077543, -1.8192973402695345],
     [2.7674360760501884, -0.6551193877071442, 2.210686533594698]),
    ([0, 0], [[1.0, 0.999999], [0.999999, 1.0]], [1, -INF], [INF, 1.001],
     [1.0011332085368676, 0.999865746363876],
     [8.033356228962297e-07, 2.4076887459805597e-07, 8.042795945036058e-07]),
    ([0, 1], [[1.0, -2.0], [-2.0, 4.0]], [-1.0, -3.0], [INF, 2.0],
     [0.4457437782725148, 0.10851244345497033],
     [0.3765938361368359, -0.7531876722736718, 1.5063753445473436]),
]  # fmt: skip


def two_dimensions(dtype):
    """All cases in the precision, the narrow one replaced in float32, where it is empty."""
    cases = [case if case[3][1] != 20.00001 or dtype == np.float64 else TWO[0] for case in TWO]
    loc, matrix, low, high = (np.array([case[k] for case in cases], dtype) for k in range(4))
    moments = tg.truncated_moments(loc, matrix, tg.Box(low, high))
    assert_sound(moments, low, high)
    return (loc, matrix, low, high), moments


@pytest.mark.full
def test_two_dimensions_in_tails_and_corners():
    mean, parts = (np.array([case[k] for case in TWO]) for k in (4, 5))
    _, moments = two_dimensions(np.float64)
    of_mean, of_covariance = errors(moments, mean, parts[:, [[0, 1], [1, 2]]])
    # The mean itself, if far away, is only as near as its last digit.
    assert of_mean < 1e-8 and of_covariance < 3e-13
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-12)


@pytest.mark.slow
def test_two_dimensions_in_float32():
    inputs, moments = two_dimensions(np.float32)
    assert all(part.dtype == np.float32 for part in moments)
    loc, matrix, low, high = (part.astype(float) for part in inputs)
    truth = tg.truncated_moments(loc, matrix, tg.Box(low, high))
    # A last digit of the limit that lies 87 conditional deviations away moves as much.
    assert errors(moments, truth.mean, truth.covariance)[1] < 87**2 * np.finfo(np.float32).eps
    np.testing.assert_allclose(moments.mean, truth.mean, rtol=1e-5)


FACTORS = [  # loadings, variances of the noise, low, high
    ([1.0, 0.5, -0.7], [0.5, 1.0, 2.0], [0.0, 0.0, 0.0], [INF, INF, INF]),
    ([1.0, 1.0, 1.0], [1e-3, 1e-3, 1e-3], [1.0, 1.0, 1.0], [INF, INF, INF]),
    ([1.0, 1.0, -1.0], [1e-3, 1e-3, 1e-3], [-0.5, -0.5, -0.5], [1.0, INF, INF]),
    ([1.0, 1.0, 1.0], [0.2, 0.2, 0.2], [50.0, 50.0, 50.0], [INF, INF, INF]),
    ([1.0, 1.0, 1.0], [0.2, 0.2, 0.2], [50.0, -INF, 20.0], [50.00001, INF, 20.0000001]),
    ([0.7, 0.7, 0.7], [0.51, 0.51, 0.51], [-INF, -INF, -INF], [INF, INF, INF]),
]


@pytest.mark.slow
def test_three_dimensions_by_two_quadratures():
    """The integral over two coordinates against that over one factor."""
    loadings, noise, low, high = (jnp.array([case[k] for case in FACTORS]) for k in range(4))
    form, box, loc = tg.LowRank(loadings[..., None], noise), tg.Box(low, high), jnp.zeros(3)
    by_factor = tg.truncated_moments(loc, form, box)
    moments = tg.truncated_moments(loc, form.covariance_matrix, box)
    assert max(errors(moments, by_factor.mean, by_factor.covariance)) < 1e-12
    assert_sound(moments, low, high)
    np.testing.assert_array_equal(moments.mean[-1], 0.0)
    np.testing.assert_array_equal(moments.covariance[-1], form.covariance_matrix[-1])


@pytest.mark.slow
def test_two_factors_against_one_and_one():
    """Blocks in disguise: two factors that share no coordinate are two problems of one factor."""
    first, second = jnp.array([1.0, 0.5, -0.7]), jnp.array([0.3, 2.0])
    noise = jnp.array([0.5, 1.0, 2.0, 0.2, 0.7])
    loadings = jnp.zeros((5, 2)).at[:3, 0].set(first).at[3:, 1].set(second)
    turn = jnp.array([[0.6, -0.8], [0.8, 0.6]])
    low, high = jnp.array([0.0, -1.0, 0.5, 3.0, -INF]), jnp.array([INF, 1.0, INF, INF, 2.0])
    form = tg.LowRank(loadings @ turn, noise)
    moments = tg.truncated_moments(jnp.zeros(5), form, tg.Box(low, high))
    mean, matrix = [], np.zeros((5, 5))
    for loading, part in ((first, slice(0, 3)), (second, slice(3, 5))):
        block = tg.LowRank(loading[:, None], noise[part])
        box = tg.Box(low[part], high[part])
        of_block = tg.truncated_moments(jnp.zeros(len(loading)), block, box)
        mean.extend(of_block.mean)
        matrix[part, part] = of_block.covariance
    assert max(errors(moments, np.array(mean), matrix)) < 1e-9
    assert not np.any(moments.mean_stderr)


@pytest.mark.slow
def test_chain_against_three_dimensions_and_its_own_gradient():
    rho = np.array([0.7, -0.9, 0.99, 0.5, 0.5, 0.5])
    low = jnp.array([[0.0], [-1.0], [5.0], [100.0], [-INF], [-2.0]]) * jnp.ones(3)
    high = jnp.array([[INF], [2.0], [INF], [100.001], [-1.0], [INF]]) * jnp.ones(3)
    matrices = jnp.array([autoregression(3, r) for r in rho])
    truth = tg.truncated_moments(jnp.zeros(3), matrices, tg.Box(low, high))
    form = tg.Markov(rho[:, None] * jnp.ones(2), np.sqrt(1 - rho**2)[:, None] * jnp.ones(2), 1.0)
    of_row = lambda form, low, high: markov_chain.moments(jnp.zeros(3), form, low, high)
    mean, matrix, *bounds = jax.jit(jax.vmap(of_row))(form, low, high)
    moments = tg.probability.Moments(mean, matrix, *bounds)
    assert max(errors(moments, truth.mean, truth.covariance)) < 1e-12
    assert not np.any(bounds[0]) and not np.any(bounds[1])


# --- Separation -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_parts_of_a_gaussian():
    """Two blocks, mixed up, one free coordinate in each, and a batch of means."""
    mixed = np.array([4, 0, 3, 1, 2])
    matrix, loc = np.zeros((5, 5)), np.array([np.zeros(5), np.linspace(-1.0, 1.0, 5)])
    matrix[:3, :3], matrix[3:, 3:] = autoregression(3, 0.8), equal_correlations(2)
    low, high = np.array([0.0, 1.0, -INF, -INF, -1.0]), np.array([INF, 2.0, INF, INF, 1.0])
    box = tg.Box(low[mixed], high[mixed])
    moments = tg.truncated_moments(loc[:, mixed], matrix[mixed][:, mixed], box)
    mean, covariance = np.zeros((2, 5)), np.zeros((2, 5, 5))
    for part in (slice(0, 3), slice(3, 5)):
        block = tg.Box(low[part], high[part])
        answer = tg.truncated_moments(loc[:, part], matrix[part, part], block, tg.Exact())
        mean[:, part], covariance[:, part, part] = answer.mean, answer.covariance
    truth = mean[:, mixed], covariance[:, mixed][:, :, mixed]
    assert max(errors(moments, *truth)) < 1e-12


# --- Singular distributions, polyhedra and other methods -----------------------------------------


@pytest.mark.slow
def test_singular_distribution_against_draws():
    factor = np.array([[1.0, 0.0], [0.5, 0.5], [1.0, -1.0]])
    low, high = np.full(3, -1.0), np.array([1.0, 2.0, INF])
    x = np.random.default_rng(0).normal(size=(2_000_000, 2)) @ factor.T
    x = x[np.all((low <= x) & (x <= high), axis=1)]
    moments = tg.truncated_moments(np.zeros(3), factor @ factor.T, tg.Box(low, high))
    assert max(errors(moments, x.mean(0), np.cov(x.T))) < 6e-3


@pytest.mark.slow
def test_one_constraint_across_four_dimensions():
    """a^T X is cut off, and the rest follows from it by regression."""
    matrix, a = equal_correlations(4), jnp.array([1.0, -1.0, 2.0, 0.5])
    loc, region = jnp.arange(4.0), tg.Polyhedron(a[None], [6.0], [6.5])
    moments = tg.truncated_moments(loc, matrix, region, tg.Separation(64))
    variance, slope = a @ matrix @ a, matrix @ a / (a @ matrix @ a)
    truncated = a @ loc, jnp.sqrt(variance), 6.0, 6.5
    mean = loc + slope * (tg.special.truncated_mean(*truncated) - a @ loc)
    left = variance - tg.special.truncated_variance(*truncated)
    assert max(errors(moments, mean, matrix - left * jnp.outer(slope, slope))) < 1e-13


@pytest.mark.slow
def test_polyhedron_with_more_rows_than_dimensions():
    """A redundant row changes nothing."""
    matrix = equal_correlations(2)
    exact = tg.truncated_moments(jnp.zeros(2), matrix, tg.Box([0.0, 0.0], [INF, INF]))
    rows = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    for method in (tg.Separation(), tg.SequentialMonteCarlo()):
        region = tg.Polyhedron(rows, jnp.zeros(3), INF)
        moments = tg.truncated_moments(jnp.zeros(2), matrix, region, method)
        gap = np.abs(moments.covariance - exact.covariance)
        assert np.all(gap <= 5 * moments.covariance_stderr)
        assert np.all(np.abs(moments.mean - exact.mean) <= 5 * moments.mean_stderr)


# --- The entry ------------------------------------------------------------------------------------


NEARLY_SINGULAR = (
    # covariance, is it a factor, limits: X1 above and X2 below, many of their difference's sd apart
    ([[1.0, 1 - 1e-11], [1 - 1e-11, 1.0]], False, [1.0, -INF], [INF, 1 - 3e-4]),
    (
        [[1.0, 0.9, 0.9], [0.9, 1.0, 1 - 1e-9], [0.9, 1 - 1e-9, 1.0]],
        False,
        [0.0, 1.0, -9.0],
        [9.0, 9.0, 0.999],
    ),
    ([[1.0, 0.0], [1.0, 1e-6]], True, [1.0, -INF], [INF, 1 - 1e-4]),
)


@pytest.mark.quick("matrix2-True-low2-high2")
@pytest.mark.parametrize("matrix, by_factor, low, high", NEARLY_SINGULAR)
def test_errors_include_the_rounding_of_the_inputs(matrix, by_factor, low, high):
    """The moments of inputs whose last digits changed differ by about the error that is stated."""
    random, eps = np.random.default_rng(0), np.finfo(float).eps
    form = tg.ScaleTril if by_factor else jnp.asarray
    moments = jax.jit(
        lambda matrix, low, high: tg.truncated_moments(
            np.zeros(len(low)), form(matrix), tg.Box(low, high), tg.Exact()
        )
    )
    matrix, low, high = map(np.array, (matrix, low, high))
    given = jax.tree.map(np.asarray, moments(matrix, low, high))
    means, matrices = [], []
    for _ in range(20):
        sign = np.triu(random.choice([-1, 1], matrix.shape))
        sign = sign + np.triu(sign, 1).T
        factors = 1 + eps * random.choice([-1, 1], (2, len(low)))
        turned = moments(matrix * (1 + eps * sign), low * factors[0], high * factors[1])
        means.append(turned.mean - given.mean)
        matrices.append(turned.covariance - given.covariance)
    seen, error = np.sqrt(np.mean(np.square(means), 0)), given.mean_stderr
    largest = np.argmax(seen / np.sqrt(np.diag(given.covariance)))
    assert 0.3 < seen[largest] / error[largest] < 3
    size = 3e-5 * np.sqrt(np.diag(given.covariance))  # squared, 1e-9
    seen = np.sqrt(np.mean(np.square(matrices), 0))
    assert np.all(seen <= 3 * given.covariance_stderr + size * size[:, None])


@pytest.mark.full
def test_empty_regions_have_no_moments():
    of = jax.jit(lambda high: tg.truncated_moments([0.0], [[1.0]], tg.Box([1.0], high)))
    for high in (1.0, 0.5):
        assert all(np.all(np.isnan(part)) for part in of(jnp.array([high])))
