"""Ordered probits, multivariate probits and mixed rows, against other optimisers and integrals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, stats

import truncgauss as tg
from truncgauss.likelihood.nested import log_box, points_in
from truncgauss.likelihood.ordinal import between_cuts


def sample(n=300, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2)) + [3.0, 0.0]
    return x, np.digitize(x @ [0.5, -1.0] + rng.normal(size=n), [0.5, 1.5, 3.0])


@pytest.fixture(scope="module")
def probit():
    x, y = sample()
    return tg.fit_regression(tg.Ordinal(y, name="pain"), {"a": x[:, 0], "b": x[:, 1]})


def test_names_and_notes_of_an_ordered_probit(probit):
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


def test_separated_rows_have_no_maximum_and_the_direction_is_named():
    x, _ = sample()
    codes = np.digitize(x[:, 0], [2.5, 3.5])
    fit = tg.fit_regression(tg.Ordinal(codes), {"dose": x[:, 0], "b": x[:, 1]})
    assert not fit.converged and "separated" in fit.reason and "dose" in fit.reason
    assert np.all(np.isinf(fit.errors))


def test_levels_that_never_occur():
    x, y = sample()
    fit = tg.fit_regression(tg.Ordinal(2.0 * y, [0, 1, 2, 4, 6]), x, num_profiles=0)
    assert "Levels of 0 that never occur have no thresholds: 1." in fit.notes


# ---------------------------------------------------------------- several outcomes


@pytest.mark.quick("2")
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
    boxes, points = (
        jax.jit(jax.vmap(lambda *row, of=of: of(*row, jnp.asarray(factor))))
        for of in (log_box, lambda *box: jnp.log(points_in(*box).mass()))
    )
    found = boxes(low, high, loc)
    np.testing.assert_allclose(found.log_prob, true, atol=1e-11)
    assert np.all(np.isfinite(found.error))
    far = points(low + 12.0, high + 12.0, loc)
    assert np.all(np.isfinite(far)) and np.all(far[1:] < -60)


@pytest.mark.full
def test_two_ordered_outcomes_are_a_polychoric_correlation():
    table = np.array([[13, 6, 0], [69, 113, 22], [41, 132, 104]])
    x, y = np.repeat(np.indices((3, 3)).reshape(2, -1), table.ravel(), axis=1)
    rows = tg.Observations.of([tg.Ordinal(x, name="x"), tg.Ordinal(y, name="y")])
    fit = tg.fit_observations(rows, num_profiles=0)
    np.testing.assert_allclose(fit.log_likelihood, -890.8319486, atol=5e-8)
    np.testing.assert_allclose(fit.estimates[-1], 0.49147865, atol=5e-8)
    np.testing.assert_allclose(fit.errors[-1], 0.0485544, atol=5e-7)
    assert fit.names == ("cut[x][0]", "cut[x][1]", "cut[y][0]", "cut[y][1]", "correlation[y, x]")


@pytest.mark.full
def test_two_outcomes_that_are_nearly_one_have_no_maximum_inside():
    """The cells form a rising chain, where the likelihood is highest at a correlation of 1."""
    table = np.array([[590, 0, 0], [220, 700, 0], [0, 115, 375]])
    x, y = np.repeat(np.indices((3, 3)).reshape(2, -1), table.ravel(), axis=1)
    fit = tg.fit_observations(tg.Observations.of([tg.Ordinal(x), tg.Ordinal(y)]))
    assert not fit.converged and "correlations of 1 or -1" in fit.reason
    assert np.all(np.isinf(fit.errors)) and tg.polychoric(table).rho == 1.0


@pytest.mark.quick("table2")
@pytest.mark.parametrize("table", [[[34, 156], [0, 10]], [[19, 175], [6, 0]], [[102, 87], [11, 0]]])
def test_tables_with_empty_cells_have_no_maximum_inside(table):
    """The likelihood is flat to rounding from a correlation of .95 on, or of -.95."""
    x, y = (np.repeat(part.ravel(), np.ravel(table)) for part in np.indices(np.shape(table)))
    rows = tg.Observations.of([tg.Ordinal(x), tg.Ordinal(y)])
    fit = tg.fit_observations(rows, num_profiles=0, progress=False)
    assert not fit.converged and abs(tg.polychoric(x, y).rho) == 1.0


@pytest.mark.full
def test_mixed_rows_are_their_density():
    """Exact, ordered, limited and missing entries in the same rows; an ordered and an exact entry
    have the polyserial correlation, by another optimiser."""
    rng = np.random.default_rng(0)
    latent = rng.multivariate_normal([0, 0], [[1, 0.7], [0.7, 1]], 500)
    codes = np.digitize(latent[:, 0], [-0.5, 0.5]).astype(float)
    values = 10.0 + 3.0 * latent[:, 1]

    def loss(p):
        rho, low, high, loc, scale = p
        if not (abs(rho) < 1 and low < high and scale > 0):
            return np.inf
        z, ends = (values - loc) / scale, np.array([-np.inf, low, high, np.inf])
        rest, x = (1 - rho**2) ** 0.5, codes.astype(int)
        upper, lower = (stats.norm.cdf((ends[x + k] - rho * z) / rest) for k in (1, 0))
        return -np.sum(np.log(upper - lower) + stats.norm.logpdf(values, loc, scale))

    best = optimize.minimize(loss, [0.5, -0.4, 0.4, 9.9, 2.9], method="Nelder-Mead",
                             options={"maxfev": 4000, "xatol": 1e-7, "fatol": 1e-9})  # fmt: skip
    both = tg.Observations.of({"pain": tg.Ordinal(codes), "y": values})
    fit = tg.fit_observations(both, num_profiles=0)
    np.testing.assert_allclose(fit.log_likelihood, -best.fun, rtol=1e-9)
    assert fit.names[0] == "coefficients[y][constant]" and fit.names[-2] == "sigma[y]"
    np.testing.assert_allclose(fit.estimates[-1], best.x[0], atol=1e-4)
    codes[:50], values[50:90] = np.nan, np.nan
    lower, upper = values.copy(), values.copy()
    lower[90:140], upper[90:140] = -np.inf, 12.0
    gaps = tg.fit_observations(
        tg.Observations.of({"pain": tg.Ordinal(codes), "y": (lower, upper)}), num_profiles=0
    )
    assert gaps.converged and abs(gaps.estimates[-1] - fit.estimates[-1]) < 0.1
    assert gaps.errors[-1] > fit.errors[-1]


@pytest.mark.full
def test_margins_of_categories(probit):
    x, y = sample()
    effects = probit.margins()
    assert effects.names == ("a", "b") and effects.outcomes == ("0", "1", "2", "3")
    np.testing.assert_allclose(effects.value.sum(axis=1), 0.0, atol=1e-14)
    dummy = (x[:, 0] > 3).astype(float)
    fit = tg.fit_regression(tg.Ordinal(y > 1), {"one": np.ones(len(y)), "up": dummy})
    change = fit.margins(variables=["up"])
    shares = [np.mean(y[dummy == side] > 1) for side in (0, 1)]
    np.testing.assert_allclose(change.value[0, 1], shares[1] - shares[0], atol=1e-8)
    errors = [(p * (1 - p) / np.sum(dummy == side)) ** 0.5 for side, p in enumerate(shares)]
    np.testing.assert_allclose(change.standard_errors[0, 1], np.hypot(*errors), rtol=1e-6)
    assert probit.margins("mean", kind="mean").value.shape == (2,)
    with pytest.raises(ValueError, match="which have categories"):
        probit.predict(x, entry="b")
    # Intervals of NaN came back, and settings that categories do not take were ignored.
    for method in (probit.predict, probit.margins):
        with pytest.raises(ValueError, match="level must lie between 0 and 1, got 95. For 95 %"):
            method(level=95)
        with pytest.raises(ValueError, match="categories take no low"):
            method(low=0.0)


def test_residuals_lie_between_the_probabilities_of_the_ends(probit):
    x, y = sample()
    residuals = tg.quantile_residuals(probit, num_draws=20)[..., 0]
    ends = np.concatenate([[-np.inf], probit.thresholds[0], [np.inf]])
    index = x @ probit.coefficients[0]
    assert np.all((ends[y] - index <= residuals) & (residuals <= ends[y + 1] - index))
    assert abs(residuals.mean()) < 0.1 and abs(residuals.std() - 1.0) < 0.1


def test_entries_of_which_none_is_ordered_are_observations():
    values = np.random.default_rng(0).normal(size=(40, 2))
    for columns in (values.T[:1], values.T):
        mixed = tg.fit_observations(tg.Observations.of(list(columns)), num_profiles=0)
        exact = tg.fit_observations(tg.Observations.exact(columns.T), num_profiles=0)
        np.testing.assert_allclose(mixed.estimates, exact.estimates, rtol=1e-12)


def density_of(codes, values, noise, low, cut, estimates):
    """The log-likelihood of pairs of a binary and an exact entry that is seen above a limit."""
    loc, tau, sigma, rho = estimates
    scale = (sigma**2 + noise) ** 0.5
    slope, rest = rho * sigma / scale, (1.0 - (rho * sigma / scale) ** 2) ** 0.5
    z = (values - loc) / scale
    above = stats.norm.sf((tau - slope * z) / rest)
    seen = stats.norm.logsf((low - loc) / scale)
    return stats.norm.logpdf(values, loc, scale) + np.log(np.where(codes, above, 1 - above)) - seen


@pytest.mark.full
def test_selection_and_noise_beside_ordered_entries():
    rng = np.random.default_rng(1)
    latent = rng.multivariate_normal([0.0, 1.0], [[1.0, 0.6], [0.6, 1.5]], 3000)
    values, codes = latent[:, 1] + 0.5 * rng.normal(size=3000), latent[:, 0] > 0.3
    seen = values > 0.0
    rows = tg.Observations.of(
        {"up": tg.Ordinal(codes[seen]), "y": values[seen]},
        region=tg.Box([-np.inf, 0.0], [np.inf, np.inf]), noise=np.diag([0.0, 0.25]),
    )  # fmt: skip
    fit = tg.fit_observations(rows, num_profiles=0)
    terms = lambda p: density_of(codes[seen], values[seen], 0.25, 0.0, 0, p)
    np.testing.assert_allclose(fit.log_likelihood, terms(fit.estimates).sum(), rtol=1e-12)
    for step in 1e-4 * np.eye(4):
        sides = [terms(fit.estimates + sign * step).sum() for sign in (1, -1)]
        assert max(sides) < fit.log_likelihood and abs(np.diff(sides)) < 1e-5
    true = [1.0, 0.3, 1.5**0.5, 0.6 / 1.5**0.5]
    assert np.all(np.abs(fit.estimates - true) < 4.0 * fit.errors)
    alone = tg.fit_observations(rows, covariance="diagonal", num_profiles=0)
    test = tg.likelihood_ratio(alone, fit)
    np.testing.assert_allclose(alone.log_likelihood, terms([*alone.estimates, 0.0]).sum())
    assert test.degrees == 1 and test.p_value < 1e-6


@pytest.mark.full
def test_blocks_are_fits_by_themselves():
    x, y = np.repeat(np.indices((3, 3)).reshape(2, -1), [13, 6, 9, 69, 113, 22, 41, 132, 104], 1)
    order = np.random.default_rng(3).permutation(len(x))
    items = [tg.Ordinal(column) for column in (x, y, x[order], y[order])]
    block = np.where(np.kron(np.eye(2), np.ones((2, 2))) > 0, np.nan, 0.0)
    four = tg.fit_observations(tg.Observations.of(items), covariance=block, num_profiles=0)
    two = tg.fit_observations(tg.Observations.of(items[:2]), num_profiles=0)
    np.testing.assert_allclose(four.log_likelihood, 2.0 * two.log_likelihood, rtol=1e-7)
    np.testing.assert_allclose(four.estimates[-2:], two.estimates[-1], atol=1e-5)


def test_extreme_cuts_keep_their_digits():
    """A category of one row in a million, whose limit is far in the tail."""
    counts = np.array([1.0, 999_999.0, 1e6])
    fit = tg.fit_regression(tg.Ordinal([0, 1, 2]), np.zeros((3, 0)), weights=counts)
    np.testing.assert_allclose(fit.thresholds[0], stats.norm.ppf([5e-7, 0.5]), rtol=1e-7)
    shares = counts / counts.sum()
    np.testing.assert_allclose(fit.log_likelihood, counts @ np.log(shares), rtol=1e-12)
    spread = shares[0] ** 0.5 / stats.norm.pdf(fit.thresholds[0][0]) / counts.sum() ** 0.5
    np.testing.assert_allclose(fit.errors[0], spread, rtol=1e-5)


@pytest.mark.slow
def test_intervals_hold_where_cuts_are_extreme():
    """300 samples; a coverage of 95 % gives one below 0.91 by chance once in a thousand."""
    rng, inside = np.random.default_rng(0), []
    for _ in range(300):
        x = rng.normal(size=300)
        codes = np.digitize(0.5 * x + rng.normal(size=300), [-2.2, 2.2])
        fit = tg.fit_regression(tg.Ordinal(codes, 3), x[:, None], progress=False)
        if fit.converged and len(fit.names) == 3:
            wald = zip(fit.estimates - 1.96 * fit.errors, fit.estimates + 1.96 * fit.errors)
            ends = [fit.profiles.get(name, end) for name, end in zip(fit.names, wald)]
            inside.append([low < at < high for (low, high), at in zip(ends, [0.5, -2.2, 2.2])])
    assert len(inside) > 290 and np.all(np.mean(inside, axis=0) > 0.91)


def test_a_cut_that_is_not_a_number_is_that_of_its_own_rows():
    codes, cuts = np.arange(4), np.array([0.0, np.nan, np.inf])
    free = np.full(4, np.inf)
    for xp in (np, jnp):
        lower, upper = between_cuts(
            codes, xp.asarray(cuts), xp.asarray(-free), xp.asarray(free), xp
        )
        np.testing.assert_array_equal(lower, [-np.inf, 0.0, np.nan, np.inf])
        np.testing.assert_array_equal(upper, [0.0, np.nan, np.inf, np.inf])
