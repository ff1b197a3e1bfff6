"""Ordered categories in clusters: likelihoods by quadrature, and fits."""

import numpy as np
import pytest
from scipy import special

import truncgauss as tg
from tests.published_rows import needed, ohio
from tests.test_predictions import differences
from truncgauss.fits.clusters.cluster_fit import model_of
from truncgauss.fits.clusters.long_tables import inputs_of


def visits(count=25, m=5, seed=0, slope=0.0):
    """Categories 0 to 3 of patients at visits, some missing, covariates and patients."""
    rng = np.random.default_rng(seed)
    patient, time = np.repeat(np.arange(count), m), np.tile(np.linspace(-1.0, 1.0, m), count)
    effects = rng.normal(size=(count, 2)) * [1.2, slope]
    latent = 0.4 * time + effects[patient, 0] + effects[patient, 1] * time
    codes = np.digitize(latent + rng.normal(size=count * m), [-0.8, 0.3, 1.5]).astype(float)
    codes[rng.uniform(size=len(codes)) < 0.1] = np.nan
    return codes, time, patient


def test_ordered_columns_are_an_outcome_of_a_formula():
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("formulaic")
    codes, time, patient = visits()
    words = pandas.Categorical.from_codes(
        np.where(np.isnan(codes), -1, codes).astype(int), ["none", "mild", "bad", "worst"], True
    )
    table = pandas.DataFrame({"pain": words, "time": time, "patient": patient})
    rest = "patient", None, None, None
    asked = ("pain ~ time", None), ("pain", "~ time"), (tg.Ordinal(words, name="pain"), "~ time")
    *read, known = (inputs_of((*pair, *rest), table, False) for pair in asked)
    for inputs in read:
        np.testing.assert_array_equal(inputs.single.rows.codes, known.single.rows.codes)
        np.testing.assert_array_equal(inputs.design.values, known.design.values)
        assert inputs.single.names == known.single.names
        assert inputs.single.names[-1] == "cut[pain][bad]"
    with pytest.raises(ValueError, match="the outcome 'pain' holds texts. Say their order"):
        inputs_of(("pain ~ time", None, *rest), table.astype({"pain": str}), False)


def hermite(codes, mean, spreads, cuts, nodes):
    """log P of a cluster's categories, by Gauss-Hermite quadrature over effects of loadings
    (m, r)."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    effects = np.stack(np.meshgrid(*[x] * spreads.shape[1]), axis=-1).reshape(-1, spreads.shape[1])
    weights = np.stack(np.meshgrid(*[w] * spreads.shape[1]), axis=-1).reshape(len(effects), -1)
    at = mean + effects @ spreads.T
    seen = np.isfinite(codes)
    ends = np.concatenate([[-np.inf], cuts, [np.inf]])
    k = codes[seen].astype(int)
    low, high = ends[k] - at[:, seen], ends[k + 1] - at[:, seen]
    sign = np.where(low > 0, -1.0, 1.0)
    masses = np.abs(special.ndtr(sign * high) - special.ndtr(sign * low))
    total = weights.prod(axis=1) @ masses.prod(axis=1)
    return np.log(total / (2.0 * np.pi) ** (spreads.shape[1] / 2))


def likelihoods(fit_model, estimates):
    x = np.asarray(fit_model.as_start(dict(zip(fit_model.names, estimates))))
    result = fit_model.loss_at(x).evaluated(x)
    return [np.asarray(part)[fit_model.table.number] for part in result]


@pytest.mark.full
def test_what_a_fit_of_clusters_has_not_is_said():
    codes, time, patient = visits()
    design = {"one": np.ones(len(time)), "time": time}
    pain = tg.Ordinal(codes, name="pain")
    fit = tg.fit_clusters(pain, design, patient, num_profiles=0, progress=False)
    assert "cut[pain][1]" in fit.names
    plain = tg.fit_regression(pain, design, num_profiles=0, progress=False)
    for each in (fit, plain):
        (first,) = each.first_cuts
        with pytest.raises(ValueError, match="is fixed at 0, as the covariates span a constant"):
            each.profile(first)
    with pytest.raises(ValueError, match=r'rows depend on each other. fit.effects\("residual"\)'):
        tg.quantile_residuals(fit)


@pytest.mark.full
def test_two_effects_on_categories_agree_with_quadrature():
    codes, time, patient = visits(count=6, slope=0.8)
    columns = tg.Ordinal(codes), np.column_stack([np.ones(30), time]), patient, None, None, None
    terms = tg.RandomEffects(np.column_stack([np.ones(30), time])), tg.Residual()
    model = model_of(inputs_of(columns, None, False), terms)
    value, error = likelihoods(model, [0.6, 0.4, 1.0, 2.2, 0.9, 0.7, 0.3])
    root = np.linalg.cholesky(np.outer([0.9, 0.7], [0.9, 0.7]) * [[1.0, 0.3], [0.3, 1.0]])
    cuts = np.array([0.0, 1.0, 2.2])
    for label, got in zip(model.table.labels, value):
        s = patient == label
        loadings = np.column_stack([np.ones(5), time[s]]) @ root
        assert abs(got - hermite(codes[s], 0.6 + 0.4 * time[s], loadings, cuts, 80)) < 1e-8
    assert error.max() < 1e-8


@pytest.mark.full
def test_categories_of_relatives_agree_with_quadrature():
    codes, time, family = visits(count=12, m=3)
    kin = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5], [0.5, 0.5, 1.0]])
    terms = tg.Kinship(kin, np.tile(np.arange(3), 12), name="additive"), tg.Residual()
    columns = tg.Ordinal(codes), time[:, None], family, None, None, None
    model = model_of(inputs_of(columns, None, False), terms)
    cuts = np.array([-0.7, 0.4, 1.6])
    value, _ = likelihoods(model, [0.5, *cuts, 1.1])
    root = 1.1 * np.linalg.cholesky(kin)
    for label, got in zip(model.table.labels, value):
        s = family == label
        assert abs(got - hermite(codes[s], 0.5 * time[s], root, cuts, 60)) < 1e-8


@needed
def test_two_levels_are_a_probit():
    table = ohio()
    outcome, terms = tg.Ordinal(table["resp"]), (tg.RandomEffects(), tg.Residual())
    fit = tg.fit_clusters(
        outcome, "~ age * smoke", "id", terms, data=table, num_profiles=0, progress=False
    )
    assert fit.converged and abs(fit.log_likelihood + 797.6672005) < 1e-7
    assert fit.thresholds.tolist() == [0.0] and fit.levels == (0, 1)
    variance = fit.estimates[-1] ** 2
    expected = [-1.119373965, -0.07774778, 0.16103840, 0.03848945]
    np.testing.assert_allclose(fit.estimates[:4] / (1.0 + variance) ** 0.5, expected, atol=1e-6)
    np.testing.assert_allclose(variance / (1.0 + variance), 0.5985964964, atol=1e-6)


@pytest.mark.full
def test_cuts_that_visits_share():
    codes, time, patient = visits(count=150, seed=1)
    outcome = tg.Ordinal(codes, name="pain")
    settings = {"terms": (tg.RandomEffects(), tg.Residual()), "progress": False}
    fit = tg.fit_clusters(outcome, time[:, None], patient, **settings)
    cuts = "cut[pain][0]", "cut[pain][1]", "cut[pain][2]"
    assert fit.converged and fit.names == ("coefficients[0]", *cuts, "sigma[intercept]")
    assert np.all(np.abs(fit.estimates - [0.4, -0.8, 0.3, 1.5, 1.2]) < 4.0 * fit.errors)
    begin = dict(fit.parameters())
    again = tg.fit_clusters(outcome, time[:, None], patient, **settings, start=begin)
    assert again.num_steps <= 1 and abs(again.log_likelihood - fit.log_likelihood) < 1e-9
    gap = fit.derived(lambda p: p.thresholds[1] - p.thresholds[0])
    np.testing.assert_allclose(gap.value, fit.thresholds[1] - fit.thresholds[0], rtol=1e-12)
    effects = fit.effects()
    assert np.all(np.isfinite(effects.mean)) and np.all(effects.standard_errors < 1.2)


@pytest.mark.full
def test_categories_in_a_new_cluster_are_integrals_over_its_effects():
    """By Gauss-Hermite quadrature over intercept and slope, and errors by finite differences."""
    codes, time, patient = visits(count=40, seed=1, slope=0.8)
    design, settings = np.column_stack([np.ones(len(time)), time]), {"progress": False}
    terms = tg.RandomEffects(design), tg.Residual()
    fit = tg.fit_clusters(tg.Ordinal(codes), design, patient, terms, num_profiles=0, **settings)
    new = np.array([[1.0, -2.0], [1.0, 0.3]])

    def shares(theta):
        b, cuts, (s, t, r) = theta[:2], [0.0, *theta[2:4]], theta[4:]
        root = np.linalg.cholesky([[s * s, r * s * t], [r * s * t, t * t]])
        of = lambda x, k: hermite(np.array([k]), x[None] @ b, x[None] @ root, cuts, 90)
        return np.exp([of(x, float(k)) for x in new for k in range(4)])

    found = fit.predict(new)
    np.testing.assert_allclose(found.value.ravel(), shares(fit.estimates), rtol=1e-9)
    slopes = differences(shares, fit.estimates)
    errors = np.sqrt(np.einsum("pk,pq,qk->k", slopes, fit.parameter_covariance, slopes))
    np.testing.assert_allclose(found.standard_errors.ravel(), errors, rtol=1e-6)
    assert np.all((found.low > 0) & (found.low < found.value) & (found.high < 1))
    np.testing.assert_allclose(fit.predict(new, "mean").value, new @ fit.coefficients, rtol=1e-12)
    short = tg.fit_clusters(codes > 1, design[:, :1], patient, terms, binary=True, num_steps=1)
    with pytest.raises(ValueError, match="not known: that of the term intercept differs between"):
        short.predict()


@pytest.mark.full
def test_separated_categories_have_no_maximum():
    _, time, patient = visits()
    outcome = tg.Ordinal(np.digitize(time, [-0.3, 0.3]))
    separated = tg.fit_clusters(outcome, time[:, None], patient, progress=False)
    assert not separated.converged and "categories are separated" in separated.reason
