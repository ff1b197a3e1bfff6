"""Ordered probits, multivariate probits and mixed rows, against other optimisers and integrals."""

import numpy as np
import pytest
from scipy import integrate, optimize, stats

import truncgauss as tg
from tests.published_rows import SHARED
from truncgauss.fitting.ordinal import log_box, log_box_of_common


def sample(n=300, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2)) + [3.0, 0.0]
    return x, np.digitize(x @ [0.5, -1.0] + rng.normal(size=n), [0.5, 1.5, 3.0])


@pytest.fixture(scope="module")
def probit():
    x, y = sample()
    return tg.fit_regression(tg.Ordinal(y, name="pain"), {"a": x[:, 0], "b": x[:, 1]})


def test_the_ordered_probit_is_that_of_another_optimiser(probit):
    x, y = sample()

    def loss(p):
        ends = np.concatenate([[-np.inf], p[2:], [np.inf]])
        if np.any(np.diff(ends) <= 0):
            return np.inf
        index = x @ p[:2]
        masses = stats.norm.cdf(ends[y + 1] - index) - stats.norm.cdf(ends[y] - index)
        return -np.sum(np.log(masses))

    best = optimize.minimize(loss, [0.4, -0.8, 0.3, 1.2, 2.5], method="Nelder-Mead",
                             options={"maxfev": 5000, "xatol": 1e-8, "fatol": 1e-10})  # fmt: skip
    np.testing.assert_allclose(probit.estimates, best.x, rtol=1e-4)
    np.testing.assert_allclose(probit.log_likelihood, -best.fun, rtol=1e-10)
    assert probit.converged and probit.certificate.positive_definite
    assert probit.names == ("a", "b", "cut[pain][0]", "cut[pain][1]", "cut[pain][2]")
    assert "The likelihood has no other maximum." in probit.notes
    assert any("variance of each ordered outcome is fixed at 1" in note for note in probit.notes)
    low, high = probit.profile("b")
    assert low < probit.estimates[1] < high


def test_a_constant_moves_the_limits_and_changes_nothing_else(probit):
    x, y = sample()
    fit = tg.fit_regression(tg.Ordinal(y), np.column_stack([np.ones(len(x)), x]))
    np.testing.assert_allclose(fit.log_likelihood, probit.log_likelihood, rtol=1e-12)
    np.testing.assert_allclose(fit.coefficients[0][1:], probit.coefficients[0], rtol=1e-7)
    np.testing.assert_allclose(-fit.coefficients[0][0], probit.thresholds[0][0], rtol=1e-7)
    np.testing.assert_allclose(np.diff(fit.thresholds[0]), np.diff(probit.thresholds[0]), rtol=1e-7)
    assert any("first cut" in note for note in fit.notes)


def test_probabilities_of_categories_and_their_errors(probit):
    new = [[2.5, 0.3], [4.0, -1.0]]
    result = probit.probabilities(new)
    ends = np.concatenate([[-np.inf], probit.thresholds[0], [np.inf]])
    index = np.asarray(new) @ probit.coefficients[0]
    true = np.diff(stats.norm.cdf(ends - index[:, None]), axis=1)
    np.testing.assert_allclose(result.value, true, rtol=1e-9)
    assert result.standard_error.shape == (2, 4) and np.all(result.standard_error > 0)
    with pytest.raises(ValueError, match="must have shape"):
        probit.probabilities([[1.0]])
    for refused in (probit.predict, probit.margins):
        with pytest.raises(ValueError, match=r"Use probabilities\(new\)"):
            refused()


def test_separated_rows_have_no_maximum_and_the_direction_is_named():
    x, _ = sample()
    codes = np.digitize(x[:, 0], [2.5, 3.5])
    fit = tg.fit_regression(tg.Ordinal(codes), {"dose": x[:, 0], "b": x[:, 1]})
    assert not fit.converged and "separated" in fit.reason and "dose" in fit.reason
    assert np.all(np.isinf(fit.errors))


def test_weights_clusters_and_levels_that_never_occur():
    x, y = sample()
    counts = 1 + np.arange(len(y)) % 3
    rows = tg.Ordinal(2.0 * y, [0, 1, 2, 4, 6])
    weighted = tg.fit_regression(rows, x, weights=counts, num_profiles=0)
    whole = np.repeat(np.arange(len(y)), counts)
    repeated = tg.fit_regression(tg.Ordinal(y[whole]), x[whole], num_profiles=0)
    np.testing.assert_allclose(weighted.estimates, repeated.estimates, rtol=1e-7)
    np.testing.assert_allclose(weighted.errors, repeated.errors, rtol=1e-6)
    assert "Levels of 0 that never occur have no limits: 1." in weighted.notes
    clusters = {"information": "sandwich", "num_profiles": 0}
    robust = tg.fit_regression(tg.Ordinal(y), x, cluster=np.arange(len(y)), **clusters)
    plain = tg.fit_regression(tg.Ordinal(y), x, **clusters)
    share = (len(y) / (len(y) - 1)) ** 0.5
    np.testing.assert_allclose(robust.errors, share * plain.errors, rtol=1e-7)


# ---------------------------------------------------------------- several outcomes


@pytest.mark.parametrize("size", [2, 3, 4])
def test_boxes_are_those_of_a_common_factor(size):
    rng = np.random.default_rng(size)
    low = rng.normal(size=(5, size)) - 0.7
    high = np.where(rng.random((5, size)) < 0.4, np.inf, low + 1.5)
    low[0], loc, rho = -np.inf, 0.3 * rng.normal(size=(5, size)), 0.6

    def mass(u, k):
        ends = ((side[k] - loc[k] - rho**0.5 * u) / (1 - rho) ** 0.5 for side in (high, low))
        return stats.norm.pdf(u) * np.prod(stats.norm.cdf(next(ends)) - stats.norm.cdf(next(ends)))

    true = [np.log(integrate.quad(mass, -9, 9, args=(k,), epsabs=1e-13)[0]) for k in range(5)]
    factor = np.linalg.cholesky((1 - rho) * np.eye(size) + rho)
    np.testing.assert_allclose(log_box(low, high, loc, factor, False), true, atol=5e-7)
    common = log_box_of_common(low, high, loc, np.ones(size), 1 - rho, rho)
    np.testing.assert_allclose(common, true, rtol=1e-10, atol=1e-11)
    far = log_box(low + 12.0, high + 12.0, loc, factor, False)
    assert np.all(np.isfinite(far)) and np.all(far[1:] < -60)


def test_two_ordered_outcomes_are_a_polychoric_correlation():
    table = np.array([[13, 6, 0], [69, 113, 22], [41, 132, 104]])
    x, y = np.repeat(np.indices((3, 3)).reshape(2, -1), table.ravel(), axis=1)
    rows = tg.Observations.of([tg.Ordinal(x, name="x"), tg.Ordinal(y, name="y")])
    fit = tg.fit_observations(rows, num_profiles=0)
    np.testing.assert_allclose(fit.log_likelihood, -890.8319486, atol=5e-8)
    np.testing.assert_allclose(fit.estimates[-1], 0.49147865, atol=5e-8)
    np.testing.assert_allclose(fit.errors[-1], 0.0485544, atol=5e-7)
    assert fit.names == ("cut[x][0]", "cut[x][1]", "cut[y][0]", "cut[y][1]", "correlation[y, x]")


def test_two_outcomes_that_are_nearly_one_have_no_maximum_inside():
    """The cells form a rising chain, where the likelihood is highest at a correlation of 1."""
    table = np.array([[590, 0, 0], [220, 700, 0], [0, 115, 375]])
    x, y = np.repeat(np.indices((3, 3)).reshape(2, -1), table.ravel(), axis=1)
    fit = tg.fit_observations(tg.Observations.of([tg.Ordinal(x), tg.Ordinal(y)]))
    assert not fit.converged and "correlations of 1 or -1" in fit.reason
    assert np.all(np.isinf(fit.errors)) and tg.polychoric(table).rho == 1.0


def test_mixed_rows_are_their_density():
    """Exact, ordered, limited and missing entries in the same rows."""
    rng = np.random.default_rng(0)
    latent = rng.multivariate_normal([0, 0], [[1, 0.7], [0.7, 1]], 500)
    codes = np.digitize(latent[:, 0], [-0.5, 0.5]).astype(float)
    values = 10.0 + 3.0 * latent[:, 1]
    serial = tg.polychoric(codes, values, num_profiles=0)
    both = tg.Observations.of({"pain": tg.Ordinal(codes), "y": values})
    fit = tg.fit_observations(both, num_profiles=0)
    np.testing.assert_allclose(fit.log_likelihood, serial.log_likelihood, rtol=1e-10)
    assert fit.names[0] == "coefficients[y][constant]" and fit.names[-2] == "sigma[y]"
    np.testing.assert_allclose(fit.estimates[-1], serial.rho, atol=1e-7)
    np.testing.assert_allclose(fit.errors[-1], serial.standard_error, rtol=1e-5)
    codes[:50], values[50:90] = np.nan, np.nan
    lower, upper = values.copy(), values.copy()
    lower[90:140], upper[90:140] = -np.inf, 12.0
    gaps = tg.fit_observations(
        tg.Observations.of({"pain": tg.Ordinal(codes), "y": (lower, upper)}), num_profiles=0
    )
    assert gaps.converged and abs(gaps.estimates[-1] - fit.estimates[-1]) < 0.1
    assert gaps.errors[-1] > fit.errors[-1]


def test_what_ordered_rows_do_not_take_is_refused():
    rows = tg.Observations.of([tg.Ordinal([0, 1, 0, 1]), tg.Ordinal([0, 1, 1, 0])])
    for settings, words in (
        ({"covariance": np.eye(2)}, 'must be "full", "common" or "diagonal"'),
        ({"start": ([], [])}, "take no start"),
        ({"information": "expected"}, "have no information"),
        ({"common_coefficients": True}, "need a design"),
    ):
        with pytest.raises(ValueError, match=words):
            tg.fit_observations(rows, **settings)
    with pytest.raises(ValueError, match="are of ordered entries"):
        tg.fit_observations(tg.Observations.exact([1.0, 2.0, 3.0]), common_limits=True)
    with pytest.raises(ValueError, match="takes no other limits"):
        tg.fit_regression(tg.Ordinal([0, 1]), [[1.0], [2.0]], censored_low=0.0)
    with pytest.raises(ValueError, match="is constant"):
        tg.Observations.of([tg.Ordinal([1, 1])])
    five = tg.Observations.of([tg.Ordinal(np.arange(40) >> j & 1, 2) for j in range(5)])
    with pytest.raises(ValueError, match="5 limited or ordered entries"):
        tg.fit_observations(five)


def test_a_common_correlation_that_would_be_negative_is_an_edge():
    codes = np.random.default_rng(0).permuted(np.tile([0, 0, 1], (200, 1)), axis=1)  # one of three
    rows = tg.Observations.of([tg.Ordinal(column) for column in codes.T])
    fit = tg.fit_observations(rows, covariance="common")
    assert not fit.converged and "at the edge 0" in fit.reason


@pytest.mark.skipif(not SHARED.exists(), reason="the real data are not beside the project")
def test_the_multivariate_probit_of_ohio():
    data = np.genfromtxt(SHARED / "ohio_sixcities.csv", delimiter=",", names=True)
    visits = {name: data[name].reshape(-1, 4) for name in data.dtype.names}
    age, smoke = visits["age"], visits["smoke"]
    rows = tg.Observations.of([tg.Ordinal(column, 2) for column in visits["resp"].T])
    design = tuple(
        np.stack([np.ones(len(age)), age[:, j], smoke[:, j], age[:, j] * smoke[:, j]], axis=1)
        for j in range(4)
    )
    fit = tg.fit_observations(rows, design, "common", common_coefficients=True)
    published = [-1.119373965, -0.07774778, 0.16103840, 0.03848945, 0.5985964964]
    np.testing.assert_allclose(fit.estimates, published, atol=1e-6)
    np.testing.assert_allclose(fit.errors[-1], 0.0406406, atol=5e-7)
    np.testing.assert_allclose(fit.log_likelihood, -797.6672005, atol=5e-7)
    free = tg.fit_observations(rows, design, common_coefficients=True)
    np.testing.assert_allclose(free.log_likelihood, -794.7379327, atol=5e-7)
