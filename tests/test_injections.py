"""Injections: weights of what was found, beside the selection that found it; their error."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import truncgauss as tg

LOC, COVARIANCE = np.array([0.2, -0.3]), np.array([[1.0, 0.3], [0.3, 0.8]])


def found_by(points, rng):
    """Which points a logistic curve of their sum finds."""
    return rng.uniform(size=len(points)) < 1.0 / (1.0 + np.exp(-(points.sum(1) - 1.0) / 0.3))


def injections(count, seed=0, scale=2.0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(count, 2)) * scale
    seen = found_by(points, rng)
    logs = stats.norm.logpdf(points, 0.0, scale).sum(1)
    return tg.Injections(points[seen].astype(dtype), logs[seen].astype(dtype), count)


def of_sum(mean, df=np.inf):
    """P by quadrature over the sum of the coordinates, on which alone the curve depends."""
    scale = np.sqrt(COVARIANCE.sum())
    law = stats.norm(mean.sum(), scale) if df == np.inf else stats.t(df, mean.sum(), scale)
    curve = lambda x: law.pdf(x) / (1.0 + np.exp(-(x - 1.0) / 0.3))
    return integrate.quad(curve, -20.0, 60.0, points=[1.0], limit=500)[0]


SURVEY = injections(200_000)


@pytest.mark.parametrize("df", [np.inf, 4.0])
def test_probability_beside_quadrature(df):
    log_prob, stderr = tg.log_probability(LOC, COVARIANCE, SURVEY, df=df)
    assert 1e-3 < stderr < 1e-2
    assert abs(log_prob - np.log(of_sum(LOC, df))) < 4 * stderr


@pytest.mark.parametrize("df", [np.inf, 4.0])
def test_derivatives_are_those_of_the_estimate(df):
    def log_prob(loc, covariance):
        return tg.log_probability(loc, covariance, SURVEY, df=df).log_prob

    by_loc, by_covariance = jax.grad(log_prob, (0, 1))(LOC, COVARIANCE)
    for k in range(2):
        step = 1e-5 * np.eye(2)[k]
        ends = [log_prob(LOC + sign * step, COVARIANCE) for sign in (1, -1)]
        np.testing.assert_allclose(by_loc[k], (ends[0] - ends[1]) / 2e-5, rtol=1e-6)
    step = 1e-5 * np.ones((2, 2))
    ends = [log_prob(LOC, COVARIANCE + sign * step) for sign in (1, -1)]
    np.testing.assert_allclose(by_covariance.sum(), (ends[0] - ends[1]) / 2e-5, rtol=1e-6)
    second = jax.jit(jax.hessian(log_prob))(LOC, COVARIANCE)
    for k in range(2):
        step = 1e-5 * np.eye(2)[k]
        ends = [jax.grad(log_prob)(LOC + sign * step, COVARIANCE) for sign in (1, -1)]
        np.testing.assert_allclose(second[k], (ends[0] - ends[1]) / 2e-5, rtol=1e-6)


def test_batches_and_single_precision():
    locs = jnp.stack([LOC, LOC + 1.0])
    log_prob, stderr = tg.log_probability(locs, COVARIANCE, SURVEY)
    single = tg.log_probability(LOC, COVARIANCE, SURVEY)
    np.testing.assert_allclose([log_prob[0], stderr[0]], single, rtol=1e-12)
    mapped = jax.vmap(lambda loc: tg.log_probability(loc, COVARIANCE, SURVEY).log_prob)(locs)
    np.testing.assert_allclose(mapped, log_prob, rtol=1e-12)
    single = injections(200_000, dtype=np.float32)
    value = tg.log_probability(np.float32(LOC), np.float32(COVARIANCE), single).log_prob
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, log_prob[0], rtol=1e-5)


def rows_of(number, region, seed=1, **settings):
    rng = np.random.default_rng(seed)
    points = rng.multivariate_normal(LOC, COVARIANCE, 20 * number)
    return tg.Observations.exact(points[found_by(points, rng)][:number], region=region, **settings)


def test_likelihood_of_rows_and_its_common_error():
    rows = rows_of(40, SURVEY)
    total = tg.likelihood.total_log_likelihood(rows, LOC, COVARIANCE)
    log_prob, stderr = tg.log_probability(LOC, COVARIANCE, SURVEY)
    density = stats.multivariate_normal(LOC, COVARIANCE).logpdf(rows.lower).sum()
    truth = density - 40 * (log_prob + 0.5 * stderr**2)
    np.testing.assert_allclose(total, [truth, 40 * stderr], rtol=1e-10)
    weighted = rows_of(20, SURVEY, weights=np.full(20, 2.0))
    np.testing.assert_allclose(weighted.region.num_rows, 40.0)


def test_too_few_injections_for_the_rows_are_refused():
    few = injections(4000)
    stderr = float(tg.log_probability(LOC, COVARIANCE, few).stderr)
    most = int(stderr**-2 / 4.0)
    assert np.isfinite(tg.log_likelihood(rows_of(most, few), LOC, COVARIANCE).log_prob).all()
    rows = rows_of(most + 1, few)
    with pytest.raises(ValueError, match=r"About 1\.\d* times as many draws would do"):
        tg.log_likelihood(rows, LOC, COVARIANCE)
    traced = jax.jit(lambda loc: tg.log_likelihood(rows, loc, COVARIANCE).log_prob)(LOC)
    assert np.isnan(traced).all()
    assert np.isinf(tg.log_mean_weights(jnp.zeros(9), 1000).stderr)


def test_few_injections_of_rows_have_no_infinite_error():
    """Which is therefore that of a probability above 1 alone, as the refusal says."""
    one, none = np.where(np.arange(500) == 0, 0.0, -np.inf), np.full(500, -np.inf)
    logs = np.stack([one, none, np.linspace(-700.0, 700.0, 500), np.zeros(500)])
    few = tg.log_mean_weights(logs[:3], 1000)
    assert np.isposinf(np.asarray(few.stderr)[[0, 2]]).all()
    for num_rows in (1e-3, 1.0, 1e9):
        stderr = np.asarray(tg.log_mean_weights(logs, 1000, num_rows).stderr)
        assert not np.isinf(stderr).any() and np.isfinite(stderr[[0, 2, 3]]).all()


def test_too_few_injections_for_a_component_are_said():
    rows, two = rows_of(40, injections(400)), np.stack([COVARIANCE, COVARIANCE])
    with pytest.raises(ValueError, match="mixture_log_likelihood: .* injections are effective"):
        tg.mixtures.mixture_log_likelihood(rows, [0.5, 0.5], np.stack([LOC, LOC]), two)
    with pytest.raises(ValueError, match="fit_mixture: .* injections are effective"):
        start = {"weights": [0.5, 0.5], "locs": np.stack([LOC, LOC]), "covariances": two}
        tg.fit_mixture(rows, 2, start=start, progress=False)


@pytest.mark.full
def test_fit_behind_injections_is_that_behind_the_curve():
    survey = injections(400_000)
    curve = tg.Selection(lambda x: jax.nn.sigmoid((x.sum() - 1.0) / 0.3), 2)
    by_points = tg.fit_observations(rows_of(150, survey))
    by_curve = tg.fit_observations(rows_of(150, curve))
    assert by_points.converged
    gap = np.abs(np.asarray(by_points.loc) - np.asarray(by_curve.loc))
    assert np.all(gap < 0.5 * np.asarray(by_curve.standard_errors[0]))


@pytest.mark.full
def test_a_mixture_behind_injections_is_that_behind_the_bound():
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.normal(-2.0, 0.7, 300), rng.normal(2.0, 1.0, 500)])[:, None]
    x, points = x[x[:, 0] > -2.3], rng.normal(0.0, 3.0, (200_000, 1))
    found = points[points[:, 0] > -2.3]
    region = tg.Injections(found, stats.norm.logpdf(found[:, 0], 0.0, 3.0), len(points))
    fits = [
        tg.fit_mixture(tg.Observations(x, x, kind), 2, num_starts=3, progress=False)
        for kind in (region, tg.Box([-2.3], np.inf))
    ]
    ours, exact = fits
    assert ours.converged and exact.converged
    # Of 1e5 found points P is known to .3 %, a tenth of what 690 rows leave open.
    np.testing.assert_array_less(abs(ours.estimates - exact.estimates), 0.3 * exact.errors)


def test_refusals():
    points, logs = np.zeros((3, 2)), np.zeros(3)
    for arguments, message in [
        ((points, np.zeros(2), 10), "one for each"),
        ((points[:0], logs[:0], 10), "no point was found"),
        ((points, logs, 3), "number of all draws"),
        ((points + np.nan, logs, 10), "must be finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            tg.Injections(*arguments)
    with pytest.raises(ValueError, match="do not know"):
        tg.log_probability(LOC, COVARIANCE, SURVEY, tg.ImportanceSampling())
    for method in (tg.SoftMonteCarlo(), tg.Separation(), tg.SequentialMonteCarlo()):
        with pytest.raises(ValueError, match=r"got Injections. Use tg.Automatic\(\)"):
            tg.log_probability(LOC, COVARIANCE, SURVEY, method)
    with pytest.raises(NotImplementedError, match="not known whether"):
        tg.truncated_samples(jax.random.key(0), LOC, COVARIANCE, SURVEY, 10)
    with pytest.raises(ValueError, match="complete rows"):
        tg.Observations([[0.0, -np.inf]], [[0.0, 1.0]], region=SURVEY)
    with pytest.raises(ValueError, match="log_mean_weights"):
        tg.log_probability(jnp.stack([LOC, LOC]), COVARIANCE, SURVEY, df=jnp.array([3.0, 4.0]))


def test_a_density_that_is_not_normalised_is_said_where_a_probability_is_above_one():
    wrong = tg.Injections(SURVEY.points, SURVEY.log_draw_density - 3.0, 200_000)
    for df in (np.inf, 4.0):
        with pytest.raises(ValueError, match="probability above 1, [45].* is normalised over"):
            tg.log_probability(LOC, COVARIANCE, wrong, df=df)
    traced = jax.jit(lambda loc: tg.log_probability(loc, COVARIANCE, wrong))(LOC)
    assert np.isinf(traced.stderr)
    rows = rows_of(40, wrong)
    with pytest.raises(ValueError, match="log_likelihood: the injections give a probability above"):
        tg.log_likelihood(rows, LOC, COVARIANCE)
    with pytest.raises(ValueError, match="a probability above 1"):
        tg.fit_observations(rows, progress=False)


def test_fewer_draws_than_weights():
    with pytest.raises(ValueError, match="counts all draws, found or not, got 5 for 10 weights"):
        tg.log_mean_weights(jnp.zeros(10), 5, 1)
    assert np.isnan(jax.jit(lambda n: tg.log_mean_weights(jnp.zeros(10), n).log_prob)(5))
