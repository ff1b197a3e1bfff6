"""Predictions and margins against closed forms, finite differences, SciPy and simulated rows."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import truncgauss as tg
from truncgauss import tables
from truncgauss.covariates import predictions

INF = np.inf
NUMBERS = ("age", "yearsmarried", "religiousness", "occupation", "rating")


@pytest.fixture(scope="module")
def affairs():
    """Outcome and covariates of 601 rows, like those of a published table."""
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(1, 9, 601).astype(float) for name in NUMBERS}
    columns["male"] = rng.integers(0, 2, 601).astype(float)
    y = 1.0 + 0.5 * columns["age"] - columns["rating"] + columns["male"]
    return np.maximum(y + 4.0 * rng.normal(size=601), 0.0), {"constant": np.ones(601), **columns}


@pytest.fixture(scope="module")
def tobit(affairs):
    return tg.fit_regression(affairs[0], affairs[1], censored_low=0.0)


def tobit_kinds(x, theta):
    """Of each row: P(seen), the mean of what is seen, and that of what is recorded."""
    mean, scale = x @ theta[:-1], theta[-1]
    z = mean / scale
    seen, density = stats.norm.cdf(z), stats.norm.pdf(z)
    return {
        "mean": mean,
        "observed": seen,
        "mean_observed": mean + scale * density / seen,
        "recorded": mean * seen + scale * density,
    }


def differences(function, theta):
    """The gradient by central differences of the fourth order."""
    steps = 3e-4 * np.maximum(np.abs(theta), 0.1)
    by = lambda k, c: function(theta + c * steps * (np.arange(len(theta)) == k))
    slope = lambda k: 8.0 * (by(k, 1) - by(k, -1)) - (by(k, 2) - by(k, -2))
    return np.array([slope(k) / (12.0 * steps[k]) for k in range(len(theta))])


@pytest.mark.full
def test_a_truncation_that_all_rows_share_bounds_new_outcomes(affairs):
    """As a bound given to `predict` does, while bounds that differ are asked for."""
    seen = affairs[0] > 0
    y, x = affairs[0][seen], np.column_stack([np.ones(sum(seen)), affairs[1]["age"][seen]])
    fit = tg.fit_regression(y, x, truncated_low=0.0)
    new = x[:5]
    expected = tobit_kinds(new, np.append(fit.coefficients, fit.scale))
    for kind in ("observed", "mean_observed"):
        found = fit.predict(new, kind).value
        np.testing.assert_array_equal(found, fit.predict(new, kind, low=0.0).value)
        np.testing.assert_allclose(np.ravel(found), expected[kind], rtol=1e-9)
    with pytest.raises(ValueError, match="none in common"):
        fit.predict(new, "recorded")  # nothing is recorded beyond a truncation
    differing = tg.fit_regression(y, x, truncated_low=np.where(y > 3.0, 0.0, -1.0))
    with pytest.raises(ValueError, match="none in common"):
        differing.predict(new, "observed")


def test_the_effect_of_a_category_is_against_the_one_that_all_are_compared_with(affairs):
    y, age = affairs[0][:150], affairs[1]["age"][:150]
    site = np.array(list("abc"))[np.random.default_rng(1).integers(0, 3, 150)]
    table = {"age": age, "site": site}
    y = np.maximum(y + 2.0 * (site == "b"), 0.0)
    design = tables.design(table, ["age"], {"site": "a"})
    fit = tg.fit_regression(y, design, censored_low=0.0)
    at = lambda s: fit.predict({"age": age, "site": np.full(150, s)}, "recorded").value.mean()
    effects = fit.margins(kind="recorded")
    assert effects.names == ("age", "site: b", "site: c")
    np.testing.assert_allclose(effects.value[1:], [at("b") - at("a"), at("c") - at("a")], rtol=1e-9)


@pytest.mark.full
def test_rows_of_weight_zero_decide_nothing(affairs):
    """Neither which covariates are 0 or 1 and which limits all rows share, nor what is said."""
    y, design = affairs[0][:99], {name: column[:99] for name, column in affairs[1].items()}
    weights = np.repeat([0.0, 1.0], [9, 90])
    wild = np.where(weights == 0, 7.0, 0.0)
    some = tg.fit_regression(
        y + wild, design | {"male": design["male"] + wild}, censored_low=wild, weights=weights
    )
    left = tg.fit_regression(
        y[9:], {name: column[9:] for name, column in design.items()}, censored_low=0.0
    )
    one, other = some.margins(kind="recorded"), left.margins(kind="recorded")
    np.testing.assert_allclose(one.value, other.value, rtol=1e-9)
    assert one.names == other.names == (*NUMBERS, "male")
    codes = tg.Ordinal(np.digitize(y, [1.0, 4.0]))
    ordered = tg.fit_regression(codes, {"age": design["age"]}, weights=weights)
    assert not any("lack a category" in note for note in ordered.notes)
    groups = np.arange(99) // 9
    clusters = tg.fit_clusters(y + 1e9 * wild, np.ones((99, 1)), groups, weights=weights)
    alone = tg.fit_clusters(y[9:], np.ones((90, 1)), groups[9:])
    assert clusters.converged
    np.testing.assert_allclose(clusters.errors, alone.errors, rtol=1e-9)


@pytest.mark.parametrize(
    "function, slope, low, high",
    [
        (lambda x: np.sin(2 * np.pi * x), lambda x: 2 * np.pi * np.cos(2 * np.pi * x), 2001, 2015),
        (lambda x: np.log(x - 1990.0), lambda x: 1.0 / (x - 1990.0), 1990.001, 2015),
        (lambda x: np.exp((x - 2000.0) / 3), lambda x: np.exp((x - 2000.0) / 3) / 3, 1991, 2015),
        (np.log, lambda x: 1.0 / x, 1e-12, 1.0),
        (np.sqrt, lambda x: 0.5 / np.sqrt(x), 1e-3, 1e6),
        (lambda x: (x > 3.0) * 1.0, lambda x: 0.0 * x, 0.0, 10.0),
        (lambda x: np.where((x >= 0) & (x <= 1), x**3, np.nan), lambda x: 3.0 * x**2, 0.0, 1.0),
    ],
)
def test_derivatives_of_formulas_are_taken_where_these_have_values(function, slope, low, high):
    x = np.append([low, high], np.random.default_rng(0).uniform(low, high, 50))
    x[-1] = low + 1e-6 * (high - low)
    rates, found = predictions.by_differences(lambda z: function(z)[..., None], x, x)
    assert np.all(found)
    np.testing.assert_allclose(rates[:, 0], slope(x), rtol=2e-6, atol=1e-9 * slope(x).max())


def test_where_a_formula_has_no_derivative_none_is_made_up():
    x = np.array([0.0, 0.5, 1.0])
    found = predictions.by_differences(lambda z: np.sqrt(z)[..., None], x, x)[1]
    np.testing.assert_array_equal(found, [False, True, True])


def test_known_rows_of_single_precision_are_predicted_in_double(tobit, affairs):
    new = {name: column[:3] for name, column in affairs[1].items()}
    single = tg.Observations(jnp.full((3, 1), -INF, jnp.float32), jnp.ones((3, 1), jnp.float32))
    double = tg.Observations(np.full(3, -INF), np.ones(3))
    one, two = (tobit.predict(new, known=known) for known in (single, double))
    np.testing.assert_allclose(one.value, two.value, rtol=1e-12)


@pytest.fixture(scope="module")
def pair():
    rows = np.random.default_rng(1).multivariate_normal([1.0, -1.0], [[1.0, 0.6], [0.6, 2.0]], 400)
    rows = rows[rows[:, 0] > 0.0]
    region = tg.Box([0.0, -INF], [INF, INF])
    return tg.fit_observations(tg.Observations.exact(rows, region=region, names=("u", "v")))


def test_the_probability_of_what_is_known_not_to_be_is_0(pair):
    """In its rows alone: known exactly, or by limits, outside of low and high or at their edge."""
    lower = np.array([[0.5, -INF], [2.0, -INF], [0.2, -2.0], [0.3, 1.0], [0.5, -INF]])
    upper = np.array([[0.5, INF], [2.0, INF], [0.2, -0.5], [0.3, 1.0], [0.5, 0.0]])
    known = tg.Observations(lower, upper)
    asked = {"kind": "probability", "low": [0.0, 0.0], "high": [1.0, INF]}
    found = pair.predict(known=known, **asked)
    alone = pair.predict(known=tg.Observations(lower[:1], upper[:1]), **asked)
    np.testing.assert_allclose(found.value, [alone.value[0], 0.0, 0.0, 1.0, 0.0], rtol=1e-12)
    for part in (found.standard_errors, found.low, found.high):
        np.testing.assert_array_equal(part[[1, 2, 4]], 0.0)
    assert 0 < found.low[0] < found.value[0] < found.high[0] < 1
    with pytest.raises(ValueError, match="lower"):
        pair.predict(known=known, kind="probability", low=1.0, high=0.0)


@pytest.mark.full
def test_what_a_limit_says_of_the_other_entry(pair):
    """The mean of v where u < 0.5 is known, by quadrature over u within the region."""
    (m, n), c = pair.loc, pair.covariance_matrix
    region = tg.Box([0.0, -INF], [INF, INF])
    known = tg.Observations([[-INF, -INF]], [[0.5, INF]], region=region)
    weigh = lambda u: stats.norm.pdf(u, m, c[0, 0] ** 0.5)
    mass = integrate.quad(weigh, 0.0, 0.5)[0]
    mean = integrate.quad(lambda u: weigh(u) * (n + c[0, 1] / c[0, 0] * (u - m)), 0.0, 0.5)[0]
    np.testing.assert_allclose(pair.predict(known).value[0, 1], mean / mass, rtol=1e-8)


def test_margins_of_clusters_are_those_of_the_population():
    """P(1) averaged over the effects of clusters by quadrature; errors by finite differences; of
    exact outcomes the coefficients."""
    rng = np.random.default_rng(1)
    cluster = np.arange(120) // 4
    table = {"one": np.ones(120), "x": rng.normal(size=120), "d": rng.integers(0, 2, 120) * 1.0}
    latent = 0.3 + 0.8 * table["x"] - 0.5 * table["d"] + 0.9 * rng.normal(size=30)[cluster]
    latent += rng.normal(size=120)
    outcome = np.where(np.arange(120) == 3, np.nan, latent > 0)
    fit = tg.fit_clusters(outcome, table, cluster, binary=True)
    effects = fit.margins()
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    x = np.column_stack(list(table.values()))

    def average(theta):
        mean = np.delete(x, 3, axis=0)[:, :, None] * theta[:3, None]  # all but the missing outcome
        behind = lambda parts: parts.sum(1) + theta[3] * nodes
        slope = theta[1] * stats.norm.pdf(behind(mean))
        ends = [
            behind(mean * [[1.0], [1.0], [0.0]] + [[0.0], [0.0], [k * theta[2]]]) for k in (0, 1)
        ]
        change = stats.norm.cdf(ends[1]) - stats.norm.cdf(ends[0])
        return np.array([(part @ weights).mean() / weights.sum() for part in (slope, change)])

    expected = average(fit.estimates)
    np.testing.assert_allclose(effects.value, np.stack([-expected, expected], 1), rtol=1e-7)
    slopes = differences(average, fit.estimates)
    errors = np.sqrt(np.einsum("pv,pq,qv->v", slopes, fit.parameter_covariance, slopes))
    np.testing.assert_allclose(effects.standard_errors[:, 1], errors, rtol=1e-5)
    assert effects.labels == ("x[0]", "x[1]", "d[0]", "d[1]")
    behind = x @ fit.estimates[:3, None] + fit.estimates[3] * nodes
    expected = stats.norm.cdf(behind) @ weights / weights.sum()  # in a new cluster
    np.testing.assert_allclose(fit.predict().value[:, 1], expected, rtol=1e-7)
    with pytest.raises(ValueError, match="at must be {name: number} .* got 'mean'"):
        fit.margins("mean")
    exact = tg.fit_clusters(latent, table, cluster)
    np.testing.assert_allclose(exact.margins().value, exact.coefficients[1:])
    np.testing.assert_allclose(exact.margins().standard_errors, exact.errors[1:3], rtol=1e-9)
    high = np.where(np.arange(120) < 60, 0.5, np.inf)
    share = lambda at: stats.norm.cdf((high - x @ at[:3]) / np.hypot(*at[3:]))
    below = exact.predict(kind="probability", high=high)
    np.testing.assert_allclose(below.value, share(exact.estimates), rtol=1e-12)
    slopes = differences(share, exact.estimates)
    errors = np.sqrt(np.einsum("pv,pq,qv->v", slopes, exact.parameter_covariance, slopes))
    np.testing.assert_allclose(below.standard_errors, errors, rtol=1e-5, atol=1e-9)
    assert np.all(below.value[60:] == 1) and np.all(below.high[:60] < 1)
    far = exact.predict({name: [0.0] for name in table}, "probability", low=60.0, high=70.0)
    tail = stats.norm.sf(60.0 / np.hypot(*exact.estimates[3:]))
    np.testing.assert_allclose(far.value, tail, rtol=1e-9)
    with pytest.raises(ValueError, match="low and high are the bounds of a probability.*got kind"):
        exact.predict(high=0.5)
    product = {**table, "x:d": table["x"] * table["d"]}
    [note] = tg.fit_clusters(latent, product, cluster).margins().notes
    assert "functions, x:d. Write a formula" in note and not effects.notes + exact.margins().notes
