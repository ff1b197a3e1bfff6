"""Strict settings of JAX change no number: rank promotion, dtype promotion, NaN checks."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import biject_to

import truncgauss as tg

INF = jnp.inf


def gaussian(d):
    lag = np.abs(np.arange(d)[:, None] - np.arange(d)[None, :])
    return jnp.linspace(-0.5, 0.5, d), jnp.asarray(0.5 * np.eye(d) + 0.5 * 0.6**lag)


def box(d):
    return tg.Box(jnp.linspace(-1.0, 0.0, d), jnp.where(jnp.arange(d) % 2 == 0, INF, 1.0))


def polyhedron(d):
    matrix = jnp.eye(d + 1, d).at[-1].set(1.0)
    return tg.Polyhedron(matrix, jnp.full(d + 1, -1.0), jnp.full(d + 1, 2.0))


def value(loc, covariance, region, method=tg.Automatic()):
    of = lambda loc, covariance: tg.log_probability(loc, covariance, region, method).log_prob
    return jax.jit(jax.value_and_grad(of, (0, 1)))(loc, covariance)


def curvature(loc, covariance, region, method=tg.Automatic()):
    of = lambda loc: tg.log_probability(loc, covariance, region, method).log_prob
    return jax.jit(jax.hessian(of))(loc)


def slope_of_moments(loc, covariance, region, method=tg.Automatic()):
    of = lambda loc: sum(map(jnp.sum, tg.truncated_moments(loc, covariance, region, method)[:2]))
    return jax.jit(jax.grad(of))(loc)


def vectors():
    given = tg.TruncatedMultivariateNormal(jnp.zeros((3, 2)), gaussian(2)[1], low=jnp.zeros(2))
    bijection = biject_to(given.support)
    x = jnp.linspace(-1.0, 1.0, 30).reshape(5, 3, 2)
    y = bijection(x)
    parts = bijection.inv(y), bijection.log_abs_det_jacobian(x, y)
    return given.log_prob(y), given.log_prob(jnp.ones(2)), given.entropy(), parts


SMALL, PARTICLES = tg.Separation(64, 4), tg.SequentialMonteCarlo(32, 4)
SOFT = tg.SoftMonteCarlo(128, 2, points="lattice")
LOW_RANK = tg.LowRank(jnp.linspace(0.2, 0.8, 5)[:, None], jnp.ones(5))
RANK_TWO = tg.LowRank(jnp.linspace(-0.5, 0.5, 10).reshape(5, 2), jnp.ones(5))
CHAIN = tg.Markov(jnp.full(4, 0.5), 0.5, 1.0)
BALL, ELLIPSOID = tg.Ball([0.0, 0.0], 1.0), tg.Ellipsoid([0.0, 0.0], jnp.eye(2))
FADING = tg.Selection(lambda x: jax.nn.sigmoid(x[0] - x[1] ** 2), 2)
FAR = tg.Polyhedron(jnp.ones((1, 4)), [8.0], [9.0])
ROWS = jnp.asarray(np.random.default_rng(0).normal(size=(16, 3)))
LOWER = jnp.where(ROWS < -0.5, -INF, ROWS)
UPPER = jnp.where(ROWS < -0.5, -0.5, ROWS)
CENSORED = tg.Observations(LOWER, UPPER)
WIDE = tg.Polyhedron([[1.0, 1.0, 1.0]], [-9.0], [9.0])
COMPONENTS = [0.4, 0.6], [[0.0, 0.0], [2.0, 2.0]], np.stack([np.eye(2)] * 2)


def slope_of_t(d):
    of = lambda loc: tg.log_probability(loc, gaussian(d)[1], box(d), df=5.0).log_prob
    return jax.value_and_grad(of)(gaussian(d)[0])


def slope_of_rows(**settings):
    rows = tg.Observations(LOWER, UPPER, **settings)
    of = lambda loc: jnp.sum(tg.log_likelihood(rows, loc, gaussian(3)[1]).log_prob)
    return jax.jit(jax.value_and_grad(of))(gaussian(3)[0])


def fit_of_rows():
    fit = tg.fit_observations(CENSORED)
    return fit.loc, fit.covariance_matrix, fit.log_likelihood


def fit_of_mixture():
    rows = np.concatenate([ROWS[:, :2], ROWS[:, 1:] + 4.0])
    fit = tg.fit_mixture(tg.Observations(rows, rows), 2)
    return fit.locs, fit.weights, fit.log_likelihood


def density_of_mixture(region):
    mixture = tg.TruncatedMixture(*COMPONENTS, region=region)
    return mixture.log_prob(0.5 * ROWS[:, :2]), mixture.log_prob(jnp.zeros(2))


WORKLOADS = {
    "one": lambda: value(*gaussian(1), box(1)),
    "two": lambda: value(*gaussian(2), box(2)),
    "three": lambda: value(*gaussian(3), box(3)),
    "plain": lambda: tg.log_probability(*gaussian(4), box(4), tg.Automatic(rtol=1e-2)),
    "plain gradient": lambda: jax.grad(
        lambda loc: (
            tg.log_probability(loc, gaussian(4)[1], box(4), tg.Automatic(rtol=1e-2)).log_prob
        )
    )(gaussian(4)[0]),
    "separation": lambda: value(*gaussian(4), box(4), SMALL),
    "held": lambda: value(*gaussian(4), box(4), SMALL.hold(*gaussian(4), box(4))),
    "tilted": lambda: value(*gaussian(4), box(4), tg.Separation(64, 4, twisted=False)),
    "polyhedron": lambda: value(*gaussian(3), polyhedron(3), SMALL),
    "sequential": lambda: value(*gaussian(4), box(4), PARTICLES),
    "propagation": lambda: value(*gaussian(4), box(4), tg.ExpectationPropagation()),
    "soft": lambda: value(*gaussian(4), box(4), SOFT),
    "ball": lambda: value(*gaussian(2), BALL, SOFT),
    "ball exactly": lambda: value(*gaussian(2), BALL, tg.Exact()),
    "outside a ball": lambda: value(*gaussian(2), tg.Outside(BALL), tg.Exact()),
    "ball by importance": lambda: value(*gaussian(2), BALL, tg.ImportanceSampling(64, 2)),
    "gradient with its error": lambda: tg.log_probability_and_gradient(*gaussian(4), box(4), SMALL),
    "factor lattice": lambda: tg.log_probability(
        jnp.zeros(5), LOW_RANK, box(5), tg.probability.FactorLattice(64, 4)
    ),
    "moments in three": lambda: tg.truncated_moments(*gaussian(3), box(3)),
    "moments by separation": lambda: tg.truncated_moments(*gaussian(4), box(4), SMALL),
    "moments by particles": lambda: tg.truncated_moments(*gaussian(4), box(4), PARTICLES),
    "moments by propagation": lambda: tg.truncated_moments(
        *gaussian(4), box(4), tg.ExpectationPropagation()
    ),
    "moments by samples": lambda: tg.truncated_moments(*gaussian(4), box(4), SOFT),
    "draws": lambda: tg.truncated_draws(jax.random.key(0), *gaussian(3), box(3), 50),
    "draws of a polyhedron": lambda: tg.truncated_draws(
        jax.random.key(0), *gaussian(3), polyhedron(3), 50
    ),
    "weighted draws": lambda: tg.weighted_samples(jax.random.key(0), *gaussian(3), box(3), 50),
    "distribution": lambda: tg.TruncatedNormal(0.5, 1.0, low=-1.0).log_prob(jnp.array([0.0, 2.0])),
    "distribution of rows": vectors,
    "distribution function": lambda: tg.TruncatedNormal(jnp.zeros((3, 1)), low=-1.0).cdf(
        jnp.array([0.5, 2.0])
    ),
    "curvature in two": lambda: curvature(*gaussian(2), box(2)),
    "curvature by separation": lambda: curvature(*gaussian(3), box(3), SMALL),
    "curvature by propagation": lambda: curvature(
        *gaussian(3), box(3), tg.ExpectationPropagation()
    ),
    "curvature of one factor": lambda: curvature(jnp.zeros(5), LOW_RANK, box(5)),
    "slope of moments in two": lambda: slope_of_moments(*gaussian(2), box(2)),
    "slope of moments by separation": lambda: slope_of_moments(*gaussian(3), polyhedron(3), SMALL),
    "moments of one factor": lambda: tg.truncated_moments(jnp.zeros(5), LOW_RANK, box(5)),
    "moments of two factors": lambda: tg.truncated_moments(jnp.zeros(5), RANK_TWO, box(5)),
    "moments of a factor lattice": lambda: tg.truncated_moments(
        jnp.zeros(5), RANK_TWO, box(5), tg.probability.FactorLattice(64, 4)
    ),
    "moments of a chain": lambda: tg.truncated_moments(jnp.zeros(5), CHAIN, box(5)),
    "draws by chains": lambda: tg.truncated_draws(
        jax.random.key(0), jnp.full(4, -3.0), gaussian(4)[1], FAR, 100
    ),
    "inside": lambda: [
        (region.contains(jnp.zeros((5, 2))), region.margins(jnp.zeros((5, 2))))
        for region in (box(2), polyhedron(2), BALL, ELLIPSOID)
    ],
    "slope of a selection": lambda: jax.grad(
        lambda loc: tg.log_probability(loc, gaussian(2)[1], FADING).log_prob
    )(jnp.zeros(2)),
    "t in one": lambda: slope_of_t(1),
    "t in two": lambda: slope_of_t(2),
    "t in three": lambda: slope_of_t(3),
    "draws of t": lambda: tg.truncated_samples(jax.random.key(0), *gaussian(2), box(2), 50, df=5.0),
    "quantile of t": lambda: tg.quantile(0.9, jnp.zeros(2), gaussian(2)[1], df=5.0),
    "slope of rows": slope_of_rows,
    "rows in a box": lambda: slope_of_rows(region=tg.Box(jnp.full(3, -3.0), jnp.full(3, 3.0))),
    "rows in a polyhedron": lambda: slope_of_rows(region=WIDE),
    "rows with noise": lambda: slope_of_rows(noise=np.full((16, 3), 0.1), region=box(3)),
    "fit of rows": fit_of_rows,
    "mixture": lambda: density_of_mixture(tg.Box(jnp.full(2, -3.0), jnp.full(2, INF))),
    "mixture in a ball": lambda: density_of_mixture(tg.Ball([0.0, 0.0], 3.0)),
    "fading mixture": lambda: density_of_mixture(FADING),
    "fit of a mixture": fit_of_mixture,
    "rows": lambda: tg.log_probability(jnp.zeros((3, 4)), gaussian(4)[1], box(4), SMALL),
}
SETTINGS = {
    "rank": lambda: jax.numpy_rank_promotion("raise"),
    "dtype": lambda: jax.numpy_dtype_promotion("strict"),
    "nans": lambda: jax.debug_nans(True),
}
REFUSED = {
    "rank": lambda: jnp.ones((1, 1)) + jnp.ones(1),
    "dtype": lambda: jnp.ones(1) + jnp.ones(1, int),
    "nans": lambda: jnp.log(-jnp.ones(1)),
}


@pytest.mark.quick("distribution function")
@pytest.mark.parametrize("name", WORKLOADS)
def test_strict_settings_change_no_number(name):
    expected = jax.tree.leaves(WORKLOADS[name]())
    with contextlib.ExitStack() as stack:
        for setting in SETTINGS.values():  # all at once: each of them refuses on its own
            stack.enter_context(setting())
        ours = jax.tree.leaves(WORKLOADS[name]())
    for one, other in zip(ours, expected, strict=True):
        if not jnp.issubdtype(jnp.asarray(one).dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", SETTINGS)
def test_strict_settings_refuse_what_they_should(name):
    with SETTINGS[name](), pytest.raises((FloatingPointError, ValueError)):
        REFUSED[name]()
