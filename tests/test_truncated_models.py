"""Models with truncated distributions: two ways to one posterior, closed forms, calibration."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm

from experiments import nuts
from experiments.calibration import run as calibration
from experiments.selected_population import run as selected_population
from tests.test_experiments import check_picture, completed, settings
from truncgauss import fitting
from truncgauss.execution.checkpoint import Checkpoint

FEW = {"num_chains": 4, "num_warmup": 300, "num_samples": 200, "target_accept": 0.85}


# ---------------------------------------------------------------- a factor against the distribution


def few_objects(name, num_objects=40, fields=2):
    given = settings(name).population.model_dump()
    return given | {"num_objects": num_objects, "fields": given["fields"][:fields]}


def chain(**changes):
    return {"divergences": 0, "r_hat": 1.0} | changes


@pytest.mark.full
def test_interrupted_chains_go_on_to_the_bit(tmp_path, monkeypatch):
    def model(x):
        numpyro.sample("x", dist.Normal(numpyro.sample("loc", dist.Normal(0.0, 3.0)), 1.0), obs=x)

    chains = SimpleNamespace(num_chains=2, num_warmup=25, num_samples=30, target_accept=0.8)
    config = SimpleNamespace(seed=4, chains=chains)
    models = {"one": (model, (jnp.array([0.5, 1.5, 0.2]),))}
    whole = nuts.posteriors(models, config)["one"]
    update, path = Checkpoint.update, tmp_path / "chains.npz"

    def interrupted(kept, state):
        update(kept, state)
        if len(state["traces"][1]) >= 2 * nuts.BLOCK:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Checkpoint, "update", interrupted)
        with fitting.resumable(path):
            nuts.posteriors(models, config)
    steps = []
    monkeypatch.setattr(Checkpoint, "update", lambda *args: (steps.append(1), update(*args)))
    with fitting.resumable(path):
        again = nuts.posteriors(models, config)["one"]
    assert len(steps) == 1
    assert whole["draws"]["loc"].shape == (2, 30) and whole["r_hat"] == again["r_hat"]
    np.testing.assert_array_equal(whole["draws"]["loc"], again["draws"]["loc"])


@pytest.mark.slow
def test_selected_population():
    name = "selected_population"
    results, picture = completed(name, population=few_objects(name), chains=FEW)
    assert results["failed"] == ""
    assert results["objects"].shape == (40, 2, 2)
    assert np.all(results["objects"] <= results["high"])
    assert np.all(np.abs(results["apart"]["mean"]) < 4.5)
    check_picture(picture)


def test_a_factor_and_the_distribution_are_one_density():
    config = settings("selected_population")
    given = config.population
    rng = np.random.default_rng(0)
    x, _ = selected_population.seen_objects(given, rng)
    low, high = selected_population.limits_of(given)
    sites = {
        "loc": jnp.array([-19.0, 0.6]), "scale": jnp.array([1.1, 0.3]),
        "factor": jnp.array([[1.0, 0.0], [-0.6, 0.8]]),
    }  # fmt: skip
    arguments = (jnp.array(x), low, high, given.prior)
    factor, truncated = (
        jax.jit(lambda sites, model=model: log_density(model, arguments, {}, sites)[0])(sites)
        for model in (selected_population.with_factor, selected_population.with_distribution)
    )
    assert float(factor) == pytest.approx(float(truncated), rel=1e-13)

    # Likelihood and prior once more, by SciPy.
    correlation = np.array([[1.0, -0.6], [-0.6, 1.0]])
    scale = np.array(sites["scale"])
    covariance = correlation * np.outer(scale, scale)
    gaussian = multivariate_normal(sites["loc"], covariance, abseps=1e-12)
    expected = gaussian.logpdf(x).sum()
    for low_, high_ in zip(np.array(low), np.array(high), strict=True):
        seen = gaussian.cdf(high_, lower_limit=low_)
        expected -= len(x) * np.log(seen)
    expected += norm.logpdf(sites["loc"], given.prior.loc, given.prior.loc_scale).sum()
    expected += norm.logpdf(scale, 0, given.prior.scale).sum() + 2 * np.log(2)
    # The LKJ density of a correlation r is proportional to (1 - r^2)^(concentration - 1); that of
    # the factor's entry, too, since it is r itself.
    expected += np.log(0.64) - np.log(quad(lambda r: 1 - r**2, -1, 1)[0])
    assert float(truncated) == pytest.approx(expected, rel=1e-6)


def test_no_population_that_shows_nothing_is_likely():
    given = settings("selected_population").population
    x, _ = selected_population.seen_objects(given, np.random.default_rng(0))
    low, high = selected_population.limits_of(given)
    sites = {
        "loc": np.array([0.5, 54.9]), "scale": np.array([1.6e-31, 1.8e-43]),
        "factor": np.array([[1.0, 0.0], [-1.0 + 2e-16, 2e-8]]),
    }  # fmt: skip
    arguments = (x, low, high, given.prior)
    density = lambda sites: log_density(selected_population.with_factor, arguments, {}, sites)[0]
    value = jax.jit(density)(sites)
    assert not value > -1e3  # neither likely nor infinitely so


def test_settings_that_do_not_fit_together():
    given = settings("selected_population").population.model_dump() | {"names": ("one",)}
    with pytest.raises(ValueError, match="must have two entries"):
        settings("selected_population", population=given)


def test_a_field_that_hides_everything():
    given = few_objects("selected_population")
    given["fields"] = ({"low": (0.0, 0.0), "high": (1.0, np.inf)},)
    config = settings("selected_population", population=given)
    with pytest.raises(ValueError, match="shows 0 of 8000 objects, but 40 are asked for"):
        selected_population.run(config)


def test_chains_that_cannot_be_believed():
    good = {
        "chains": {"law": chain()}, "apart": {"mean": np.zeros(2)}, "log_density_gap": 0.0,
    }  # fmt: skip
    assert selected_population.failure(good) == ""
    for changes, message in (
        ({"chains": {"law": chain(divergences=3)}}, "law: 3 divergent transitions"),
        ({"chains": {"law": chain(r_hat=1.2)}}, "law: the chains disagree, r-hat 1.200"),
        ({"chains": {"law": chain(r_hat=np.nan)}}, "law: the chains disagree, r-hat nan"),
        ({"apart": {"mean": np.array([0.0, -9.0])}}, "9.0 Monte Carlo standard errors apart"),
        ({"apart": {"mean": np.array([0.0, np.nan])}}, "nan Monte Carlo standard errors apart"),
        ({"log_density_gap": 1e-3}, "log densities differ by 1.0e-03"),
    ):
        assert message in selected_population.failure(good | changes)


def test_moments_have_the_errors_they_tell():
    rng = np.random.default_rng(1)
    found = nuts.moments(rng.normal(2.0, 3.0, size=(4, 4000, 2)))
    assert np.all(np.abs(found["mean"] - 2.0) < 5 * found["mean_stderr"])
    assert np.all(np.abs(found["variance"] - 9.0) < 5 * found["variance_stderr"])
    np.testing.assert_allclose(found["mean_stderr"], 3 / 16000**0.5, rtol=0.2)
    np.testing.assert_allclose(found["variance_stderr"], 9 * (2 / 16000) ** 0.5, rtol=0.2)


# ---------------------------------------------------------------- calibration


def test_bands_hold_whole_curves():
    config = settings("calibration")
    half = calibration.band(100, 50, config)
    rng = np.random.default_rng(7)
    curves = calibration.shares(rng.integers(51, size=(2000, 100)), 50)
    within = np.all(np.abs(curves - calibration.uniform(50)) <= half + 1e-12, axis=-1)
    assert abs(within.mean() - config.level) < 5 * (0.95 * 0.05 / 1000) ** 0.5
    np.testing.assert_allclose(curves[:, -1], 1.0)


def test_ranks_that_are_not_uniform_are_told():
    rng = np.random.default_rng(3)
    good, bad = rng.integers(21, size=(3, 400)), rng.binomial(20, 0.5, size=(3, 400))
    good, bad = (calibration.distance(ranks, 20) for ranks in (good, bad))
    allowed = {"allowed": 0.15, "chains": {"truncated": chain()}}
    results = allowed | {"distance": {"truncated": good, "forgetful": bad}}
    assert calibration.failure(results) == ""
    assert "ranks of loc are not uniform" in calibration.failure(
        allowed | {"distance": {"truncated": bad, "forgetful": bad}}
    )
    assert "too few simulations" in calibration.failure(
        allowed | {"distance": {"truncated": good, "forgetful": good}}
    )
    for changes, message in (({"divergences": 1}, "1 divergent"), ({"r_hat": 1.2}, "r-hat 1.200")):
        told = calibration.failure(results | {"chains": {"truncated": chain(**changes)}})
        assert message in told


@pytest.mark.slow
def test_calibration():
    """Ranks of a right model leave the allowed distance once in a million times."""
    results, picture = completed("calibration")
    assert results["failed"] == ""
    assert np.all(results["distance"]["truncated"] < results["allowed"])
    check_picture(picture)
