"""Text for numbers, and seeds for keys, are refused by the name of the argument."""

import numpy as np
import pytest

import truncgauss as tg

BOX = tg.Box([0.0, 0.0], [1.0, 1.0])
ROWS, ONES = np.array([1.5, 2.0, 1.2, 3.1]), np.ones((4, 1))
EYE = np.eye(2)
TEXT = {
    "loc": lambda: tg.log_probability(["a", 0], EYE, BOX),
    "covariance": lambda: tg.log_probability([0, 0], [["1", "0"], ["0", "1"]], BOX),
    "Box: low": lambda: tg.Box(["0", "1"], 2.0),
    "Polyhedron: high": lambda: tg.Polyhedron(EYE, 0.0, "1"),
    "Ball: radius": lambda: tg.Ball([0.0, 1.0], "1.0"),
    "Ellipsoid: shape_matrix": lambda: tg.Ellipsoid([0.0, 1.0], EYE.astype(str)),
    "LowRank: cov_factor": lambda: tg.LowRank([["1"]], [1.0]),
    "Observations: noise": lambda: tg.Observations.exact([1.0, 2.0], noise="0.1"),
    "fit_regression: truncated_low": lambda: tg.fit_regression(ROWS, ONES, truncated_low="1.0"),
    "fit_regression: noise": lambda: tg.fit_regression(ROWS, ONES, noise="1.0"),
    "observed": lambda: tg.fit_shift(["0.3"], [0.0, 0.0], EYE, BOX),
    "low": lambda: tg.TruncatedNormal(0.0, 1.0, low="0"),
    "locs": lambda: tg.TruncatedMixture([1.0], [["0", "1"]], [EYE], low=0.0),
}


@pytest.mark.parametrize("name", TEXT)
def test_text_is_refused_by_the_name_of_the_argument(name):
    with pytest.raises(ValueError, match=f"^{name} must be numbers, got the text .*Convert it"):
        TEXT[name]()


SEEDS = {
    "log_probability": lambda key: tg.log_probability([0, 0], EYE, BOX, key=key),
    "truncated_moments": lambda key: tg.truncated_moments([0, 0], EYE, BOX, key=key),
    "truncated_samples": lambda key: tg.truncated_samples(key, [0, 0], EYE, BOX, 2),
    "weighted_samples": lambda key: tg.weighted_samples(key, [0, 0], EYE, BOX, 2),
    "fit": lambda key: tg.minimize(lambda x, key: x**2, 1.0, key=key),
    "fit_truncated_normal": lambda key: tg.fit_truncated_normal(ROWS, low=0.0, key=key),
    "fit_shift": lambda key: tg.fit_shift(0.3, [0.0, 0.0], EYE, BOX, key=key),
    "log_likelihood": lambda key: tg.log_likelihood(
        tg.Observations.exact(ROWS), [0.0], [[1.0]], key=key
    ),
    "TruncatedMixture": lambda key: tg.TruncatedMixture([1.0], [[0.0]], [[[1.0]]]).sample(key),
}


@pytest.mark.parametrize("name", SEEDS)
def test_a_seed_is_no_key(name):
    with pytest.raises(TypeError, match=r"^key must be jax\.random\.key\(seed\), got 0\.$"):
        SEEDS[name](0)


def test_a_number_for_all_coordinates_has_its_advice():
    loc, identity = np.zeros(3), np.eye(3)
    with pytest.raises(ValueError, match=r"same limits everywhere write Box\(jnp\.full\(3, low\)"):
        tg.log_probability(loc, identity, tg.Box(0.0, np.inf))
    with pytest.raises(ValueError, match=r"got \(3,\)\. For independent .* jnp\.diag"):
        tg.log_probability(loc, np.ones(3), tg.Box(loc, np.inf))
