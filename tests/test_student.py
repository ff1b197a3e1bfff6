"""Multivariate t probabilities, against SciPy and quadrature over the scale."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from narrow_t import log_narrow
from scipy import special, stats

import truncgauss as tg

PAIR = np.array([[1.0, 0.5], [0.5, 1.0]])


def test_one_coordinate_of_traced_degrees_of_freedom():
    """By SciPy's incomplete beta function: the number of nodes is not chosen for such a df."""
    dfs, x = np.array([0.02, 0.1, 0.3, 1.0, 4.0, 50.0]), np.array([0.5, 3.0, 200.0])
    of = jax.jit(
        lambda df, x: tg.log_probability([0.0], [[4.0]], tg.Box([2.0 * x], [jnp.inf]), df=df)
    )
    result = jax.vmap(lambda df: jax.vmap(lambda x: of(df, x))(x))(dfs)
    df, x = dfs[:, None], x
    truth = np.log(special.betainc(df / 2, 0.5, df / (df + x**2)) / 2)
    np.testing.assert_allclose(result.log_prob, truth, rtol=1e-11, atol=1e-11)
    assert np.all(result.stderr == 0)
    slope = jax.grad(lambda df: of(df, 3.0).log_prob)
    for df in (0.1, 1.0):
        ends = [float(of(df * (1 + sign * 1e-4), 3.0).log_prob) for sign in (1, -1)]
        np.testing.assert_allclose(slope(df), (ends[0] - ends[1]) / (2e-4 * df), rtol=1e-6)


@pytest.mark.full
def test_five_equicorrelated_coordinates():
    # By SciPy's quadrature over the factor and the scale.
    truth = -0.680291902294577
    region = tg.Box(-jnp.ones(5), 3 * jnp.ones(5))
    matrix = 0.5 * jnp.eye(5) + 0.5
    exact = tg.log_probability(jnp.zeros(5), matrix, region, df=4)
    assert exact.stderr == 0
    np.testing.assert_allclose(exact.log_prob, truth, rtol=1e-10)
    sampled = tg.log_probability(jnp.zeros(5), matrix, region, tg.Separation(256), df=4)
    assert abs(sampled.log_prob - truth) < 5 * sampled.stderr < 1e-3


@pytest.mark.full
@pytest.mark.parametrize("df", [0.5, 5.0, 1e6])
def test_the_outside_of_a_ball_and_of_limits(df):
    ball = tg.Outside(tg.Ball(np.zeros(3), 60.0))
    result = tg.log_probability(np.zeros(3), np.eye(3), ball, df=df)
    truth = stats.f.logsf(1200.0, 3, df) if df < 1e6 else -1793.0226
    np.testing.assert_allclose(result.log_prob, truth, rtol=1e-9 if df < 1e6 else 1e-2)
    region = tg.Outside(tg.Box([-30.0], [40.0]))
    result = tg.log_probability([1.0], [[4.0]], region, df=df)
    truth = np.logaddexp(stats.t.logsf(19.5, df), stats.t.logcdf(-15.5, df))
    np.testing.assert_allclose(result.log_prob, truth, rtol=1e-9)


@pytest.mark.full
def test_moments_within_a_bounded_polyhedron_exist_for_any_df():
    limits = np.array([-1.0, -0.5]), np.array([1.0, 2.0])
    box = tg.truncated_moments([0.3, 0.0], PAIR, tg.Box(*limits), df=0.7)
    rows = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    low, high = (np.insert(limit, 1, other) for limit, other in zip(limits, (-9.0, np.inf)))
    turned = tg.Polyhedron(rows, low, high)
    same = tg.truncated_moments([0.3, 0.0], PAIR, turned, df=0.7)
    np.testing.assert_allclose(same.mean, box.mean, rtol=1e-9)
    np.testing.assert_allclose(same.covariance, box.covariance, rtol=1e-9)
    strip = tg.Polyhedron(np.array([[1.0, 1.0]]), np.array([-1.0]), np.array([1.0]))
    with pytest.warns(UserWarning, match="means and covariances do not exist at df = 0.7"):
        assert np.all(np.isnan(tg.truncated_moments([0.3, 0.0], PAIR, strip, df=0.7).mean))


def test_a_trace_with_df_as_a_number_takes_its_nodes():
    region = tg.Box([2.0], [np.inf])
    result = jax.jit(lambda loc: tg.log_probability(loc, [[1.0]], region, df=0.4))(np.zeros(1))
    np.testing.assert_allclose(result.log_prob, stats.t.logsf(2.0, 0.4), rtol=1e-10)
    assert result.stderr == 0


@pytest.mark.full
@pytest.mark.parametrize("df", [5.0, math.inf])
def test_hessians_of_sampled_vectors_in_a_loop(df):
    """Of a t, which is a loop itself, and of rows in one."""
    box, steps = (
        tg.Box(-np.ones(4), [np.inf, 1.0, 2.0, np.inf]),
        jnp.array([[0.3], [-0.4]]) * jnp.ones(4),
    )
    covariance = 0.5 * np.eye(4) + 0.5
    method = tg.Separation(64, 4).hold(np.zeros(4), covariance, box)
    value = lambda loc: tg.log_probability(loc, covariance, box, method, df=df).log_prob
    total = lambda batch: lambda loc: batch(lambda step: value(loc + step), steps).sum()
    slope = jax.jit(jax.grad(total(lambda f, rows: jax.vmap(f)(rows))))
    differences = [(slope(1e-4 * row) - slope(-1e-4 * row)) / 2e-4 for row in np.eye(4)]
    found = jax.jit(jax.hessian(total(jax.lax.map)))(jnp.zeros(4))
    np.testing.assert_allclose(found, differences, atol=1e-7)


def test_degrees_of_freedom_that_are_no_tracer_are_known_inside_of_a_trace():
    df = jnp.asarray(4.0)
    value = lambda low: tg.log_probability(np.zeros(2), np.eye(2), tg.Box(low, 2.0), df=df)
    low = np.full(2, -1.0)
    np.testing.assert_allclose(jax.jit(value)(low).log_prob, value(low).log_prob, rtol=1e-12)


def narrow_rows(random, d, count):
    """One matrix D + b b' in some units, and limits whose first interval is narrow, elsewhere some
    are infinite; with what `log_narrow` takes, which knows no units."""
    loading = random.uniform(-0.95, 0.95, d)
    noise = 1.0 - loading**2
    unit = 10.0 ** random.integers(-3, 4, d)
    low = random.normal(-0.5, 1.0, (count, d))
    high = low + random.exponential(2.0, (count, d))
    low[:, 1:][random.random((count, d - 1)) < 0.4] = -np.inf
    high[:, 1:][random.random((count, d - 1)) < 0.4] = np.inf
    low[:, 0] = random.standard_t(2.0, count)
    high[:, 0] = low[:, 0] + 10.0 ** random.uniform(-13, -2, count)
    low, high = low * unit, high * unit
    matrix = np.outer(loading * unit, loading * unit) + np.diag(noise * unit**2)
    return matrix, low, high, (loading * unit, noise * unit**2)


def check_narrow(result, truth, slack=1e-11):
    """No value is wrong by more than its stated error."""
    error = np.abs(np.asarray(result.log_prob) - truth)
    bound = 5.0 * np.asarray(result.stderr) + slack * np.maximum(1.0, np.abs(truth))
    assert np.all(error <= bound), (error, result.stderr)


@pytest.mark.full
def test_tails_beyond_the_range_of_squares_and_limits_far_from_zero():
    for low, df in ((1e200, 1.0), (1e130, 0.3), (1e300, 0.3)):
        result = tg.log_probability([0.0], [[1.0]], tg.Box([low], [jnp.inf]), df=df)
        # P = Gamma((df + 1) / 2) / Gamma(df / 2) / sqrt(pi) df^(df / 2 - 1) low^-df.
        gammas = math.lgamma(0.5 * (df + 1)) - math.lgamma(0.5 * df) - 0.5 * math.log(math.pi)
        truth = gammas + (0.5 * df - 1.0) * math.log(df) - df * math.log(low)
        np.testing.assert_allclose(result.log_prob, truth, rtol=1e-13)
        assert result.stderr == 0
    outside = tg.Outside(tg.Ball([0.0, 0.0], 1e200))
    result = tg.log_probability([0.0, 0.0], jnp.eye(2), outside, df=1.0)
    assert np.isnan(result.log_prob) and np.isnan(result.stderr)
    matrix = 0.5 * np.eye(4) + 0.5
    low, high = np.array([1.0, -1.0, -1.0, 0.0]), np.array([1.5, np.inf, 2.0, np.inf])
    near = tg.log_probability(np.zeros(4), matrix, tg.Box(low, high), df=3.0)
    far = tg.log_probability(np.full(4, 1e12), matrix, tg.Box(low + 1e12, high + 1e12), df=3.0)
    np.testing.assert_allclose(far.log_prob, near.log_prob, rtol=1e-13)
    assert near.stderr == far.stderr == 0


def test_the_error_of_few_degrees_of_freedom_in_a_trace():
    """They have the nodes of two, whose error half of the nodes may show by chance as nearly 0."""
    df, low = np.linspace(0.3, 2.0, 200), np.tile([0.7, -np.inf], (200, 1))
    high = np.tile([0.7 + 2.0**-20, np.inf], (200, 1))  # one variable alone has a rule of its own
    result = jax.jit(
        lambda df: tg.log_probability(np.zeros(2), np.eye(2), tg.Box(low, high), df=df)
    )(df)
    truth = stats.t.logpdf(low[:, 0] + 2.0**-21, df) - 20.0 * math.log(2.0)
    error = np.abs(result.log_prob - truth)
    assert np.all(error <= result.stderr + 1e-12) and error[0] > 1e-4
    assert np.all(result.stderr < 0.02) and result.stderr[-1] == 0


@pytest.mark.full
@pytest.mark.parametrize("d", range(1, 9))
def test_narrow_intervals_eagerly_and_compiled(d):
    random = np.random.default_rng(100 + d)
    method = tg.Exact() if d < 4 else tg.Separation(32, 8)
    traced = jax.jit(
        lambda matrix, low, high, df: tg.log_probability(
            jnp.zeros(d), matrix, tg.Box(low, high), method, df=df
        )
    )
    for df in (0.3, 2.0, 25.0, 1e6):
        matrix, low, high, form = narrow_rows(random, d, 10)
        truth = np.array([log_narrow(*form, df, *ends) for ends in zip(low, high)])
        result = tg.log_probability(np.zeros(d), matrix, tg.Box(low, high), df=df)
        check_narrow(result, truth)
        assert np.all(result.stderr == 0)
        few = 10 if d < 4 else 2  # sampled in a trace, with a plan for each node
        compiled = traced(matrix, low[:few], high[:few], df)
        check_narrow(compiled, truth[:few])
        if df >= 2.0:  # by which a traced df has its nodes
            assert np.median(compiled.stderr) < 0.03
