"""Censored: log probabilities of bounds in any tail, beside mpmath; shapes, draws and chains."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

import truncgauss as tg
from truncgauss.special.student_t import log_t_mass
from truncgauss.special.tails import standardize

INF = float("inf")


def t_above(df, x):
    """P(T > x) by the incomplete beta function."""
    df, x = mp.mpf(df), mp.mpf(x)
    tail = mp.betainc(df / 2, mp.mpf(1) / 2, 0, df / (df + x * x), regularized=True) / 2
    return tail if x >= 0 else 1 - tail


def ends_of(above, low, high, symmetric=False):
    """log P(low <= X <= high) from P(X > x), with as many digits as the working precision has."""
    low, high = (-high, -low) if symmetric and low < -high else (low, high)
    return mp.log((1 if low == -INF else above(low)) - (0 if high == INF else above(high)))


T_CASES = [
    (-INF, INF), (-3.0, INF), (0.0, 1e-9), (2.0, INF), (2.0, 2.001), (1e4, 2e4), (-INF, -50.0),
    (-30.0, 2.0), (1e8, INF),
]  # fmt: skip


@pytest.mark.parametrize("df", [0.05, 1.0, 4.0, 30.0, 1e6])
@pytest.mark.parametrize(("dtype", "bar"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_mass_of_t_in_any_tail(df, dtype, bar):
    low, high = (np.array(ends, dtype) for ends in zip(*T_CASES))
    df = float(dtype(df))
    values = log_t_mass(jnp.asarray(df, dtype), standardize(low, high))
    assert values.dtype == dtype
    with mp.workdps(60):
        truth = [
            float(ends_of(lambda x: t_above(df, x), *map(float, e), True)) for e in zip(low, high)
        ]
    np.testing.assert_allclose(values, truth, rtol=bar, atol=bar)


@pytest.mark.full
def test_derivatives_of_the_mass_of_t():
    def mass(df, low, high):
        return log_t_mass(df, standardize(low, high))

    for df, low, high in [(4.0, 2.0, INF), (0.3, -1.0, 2.5), (30.0, 20.0, 21.0), (2.5, -INF, -9.0)]:
        args = jnp.array([df, low, high])
        gradient = jax.grad(lambda x: mass(*x))(args)
        second = jax.jit(jax.hessian(mass))(df, low, high)
        with mp.workdps(60):
            for k, value in enumerate(gradient):
                if not np.isfinite(args[k]):
                    assert value == 0.0
                    continue

                def moved(x, k=k, df=df, low=low, high=high):
                    point = [df, low, high]
                    point[k] = x
                    return ends_of(lambda x: t_above(point[0], x), *point[1:], high < 0)

                h = mp.mpf(10) ** -20
                np.testing.assert_allclose(
                    value, float(mp.diff(moved, float(args[k]), h=h)), rtol=1e-9
                )
                if k == 0:
                    bend = float(mp.diff(moved, df, 2, h=mp.mpf(10) ** -15))
                    np.testing.assert_allclose(second, bend, rtol=1e-8)


TRUTHS = {  # P(X > x), as mpmath has it
    "Normal": (dist.Normal(0.5, 2.0), lambda x: mp.ncdf((0.5 - mp.mpf(x)) / 2)),
    "LogNormal": (
        dist.LogNormal(0.5, 2.0),
        lambda x: mp.ncdf((0.5 - mp.log(x)) / 2) if x > 0 else mp.mpf(1),
    ),
    "StudentT": (dist.StudentT(3.0, 0.5, 2.0), lambda x: t_above(3, (mp.mpf(x) - 0.5) / 2)),
    "Exponential": (dist.Exponential(1.5), lambda x: mp.exp(-1.5 * max(mp.mpf(x), 0))),
    "Weibull": (dist.Weibull(2.0, 1.5), lambda x: mp.exp(-((max(mp.mpf(x), 0) / 2) ** 1.5))),
    "Logistic": (dist.Logistic(0.5, 2.0), lambda x: 1 / (1 + mp.exp((mp.mpf(x) - 0.5) / 2))),
    "TruncatedNormal": (
        tg.TruncatedNormal(0.5, 2.0, low=-1.0),
        lambda x: mp.ncdf((0.5 - max(mp.mpf(x), -1)) / 2) / mp.ncdf(mp.mpf(1.5) / 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRUTHS)
def test_log_probabilities_of_intervals(name):
    distribution, above = TRUTHS[name]
    pairs = [(-INF, 0.25), (0.25, INF), (70.0, INF), (0.25, 3.0), (40.0, 41.0), (-INF, 1e-3)]
    values = tg.Censored(distribution, intervals=True).log_prob(jnp.array(pairs))
    with mp.workdps(500):
        truth = [float(ends_of(above, *pair)) for pair in pairs]
    np.testing.assert_allclose(values, truth, rtol=1e-12)
    exact = tg.Censored(distribution, intervals=True).log_prob(jnp.array([0.7, 0.7]))
    np.testing.assert_allclose(exact, distribution.log_prob(0.7), rtol=1e-15)
    assert tg.Censored(distribution, intervals=True).log_prob(jnp.array([-INF, INF])) == 0.0
    crossed = jnp.array([[1.0, 2.0], [2.0, 1.0]])
    assert np.isnan(jax.jit(tg.Censored(distribution, intervals=True).log_prob)(crossed)[1])
    with pytest.raises(ValueError, match=r"got \[2.0, 1.0\] in 1 pair\(s\), first at index \(1,\)"):
        tg.Censored(distribution, intervals=True).log_prob(crossed)


@pytest.mark.quick("LogNormal-float64", "TruncatedNormal-float64")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", TRUTHS)
def test_gradients_are_finite_in_both_branches(name, dtype):
    distribution = jax.tree.map(lambda x: jnp.asarray(x, dtype), TRUTHS[name][0])
    limits = jnp.array([0.25, 40.0], dtype)

    def loss(distribution, low, high):
        values = jnp.asarray([0.25, 1.0, 40.0], dtype)
        return tg.Censored(distribution, low, high).log_prob(values).sum()

    value, slopes = jax.value_and_grad(loss, (0, 1, 2))(distribution, *limits)
    assert value.dtype == dtype
    assert all(np.isfinite(slope).all() for slope in jax.tree.leaves(slopes))
    assert slopes[1] != 0.0 and slopes[2] != 0.0


def test_a_value_at_or_beyond_a_bound_stands_for_all_beyond():
    censored = tg.Censored(dist.Normal(0.0, 1.0), low=-1.0, high=2.0)
    values = censored.log_prob(jnp.array([-5.0, -1.0, 0.3, 2.0, INF, jnp.nan]))
    below, above = tg.special.log_ndtr(jnp.array([-1.0, -2.0]))
    inside = dist.Normal(0.0, 1.0).log_prob(0.3)
    np.testing.assert_allclose(values[:5], [below, below, inside, above, above], rtol=1e-15)
    assert np.isnan(values[5])
    open_ended = tg.Censored(dist.Normal(0.0, 1.0), low=-1.0)
    assert open_ended.log_prob(INF) == -INF and jax.grad(open_ended.log_prob)(INF) == 0.0


@pytest.mark.parametrize("intervals", [False, True])
def test_shapes_draws_and_transformations(intervals):
    limits = jnp.array([-0.5, -INF, 0.0])
    censored = tg.Censored(dist.Normal(jnp.zeros((4, 1)), 1.0), limits, 1.0, intervals=intervals)
    assert censored.batch_shape == (4, 3) and censored.event_shape == (2,) * intervals
    draws = censored.sample(jax.random.key(0), (20_000,))
    assert draws.shape == (20_000, *censored.shape()) and censored.support(draws).all()
    values = censored.log_prob(draws)
    assert values.shape == (20_000, 4, 3) and np.isfinite(values).all()
    again = jax.jit(lambda d, x: d.log_prob(x))(censored, draws[0])
    np.testing.assert_allclose(again, values[0], rtol=1e-13)
    low = draws[..., 1] if intervals else draws
    shares = jnp.mean(low[..., [0, 2]] == limits[jnp.array([0, 2])], axis=(0, 1))
    truth = tg.special.ndtr(limits[jnp.array([0, 2])])
    np.testing.assert_allclose(shares, truth, atol=5 * np.sqrt(0.25 / 80_000))
    assert censored.to_event(1).log_prob(draws[0]).shape == (4,)
    assert censored.expand((5, 4, 3)).log_prob(draws[0]).shape == (5, 4, 3)
    masked = censored.mask(jnp.arange(3) > 0).log_prob(draws[0])
    np.testing.assert_allclose(masked, values[0] * jnp.array([0, 1, 1]), rtol=1e-13)


def test_single_precision_follows_the_distribution():
    single = tg.Censored(dist.Normal(jnp.float32(0.0), jnp.float32(1.0)), low=-20.0)
    value = single.log_prob(jnp.float32(-20.0))
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, -203.917155, rtol=1e-6)


def test_a_distribution_of_ones_own():
    class Gumbel(dist.Gumbel):
        def log_cdf(self, x):
            return -jnp.exp(-(x - self.loc) / self.scale)

        def log_sf(self, x):
            return tg.special.log1mexp(jnp.exp(-(x - self.loc) / self.scale))

    censored = tg.Censored(Gumbel(0.0, 1.0), low=-6.0, high=50.0)
    values = censored.log_prob(jnp.array([-6.0, 50.0]))
    np.testing.assert_allclose(values, [-np.exp(6.0), -50.0], rtol=1e-14)


def test_refusals():
    for wrong in (dist.Gamma(1.0, 1.0), dist.Poisson(2.0), dist.Dirichlet(jnp.ones(3)), 3.0):
        with pytest.raises(TypeError, match="^Censored: "):
            tg.Censored(wrong, 0.0)
    with pytest.raises(ValueError, match="low must be below high"):
        tg.Censored(dist.Normal(0.0, 1.0), 1.0, 1.0)
    with pytest.raises(ValueError, match="pairs"):
        tg.Censored(dist.Normal(0.0, 1.0), intervals=True).log_prob(jnp.zeros(3))
    with pytest.raises(NotImplementedError, match="latent"):
        dist.biject_to(tg.Censored(dist.Normal(0.0, 1.0), 0.0).support)


@pytest.mark.full
def test_nuts_finds_the_parameters_behind_detection_limits():
    limits = np.random.default_rng(0).uniform(0.0, 2.0, 300)
    y = tg.Censored(dist.Normal(1.0, 2.0), low=limits).sample(jax.random.key(0))

    def model(y):
        loc = numpyro.sample("loc", dist.Normal(0.0, 5.0))
        scale = numpyro.sample("scale", dist.HalfNormal(5.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", tg.Censored(dist.Normal(loc, scale), low=limits), obs=y)

    mcmc = MCMC(NUTS(model), num_warmup=200, num_samples=200, progress_bar=False)
    mcmc.run(jax.random.key(1), y)
    draws = mcmc.get_samples()
    for name, truth in (("loc", 1.0), ("scale", 2.0)):
        assert abs(draws[name].mean() - truth) < 4 * draws[name].std(), name
        assert 0.05 < draws[name].std() < 0.4
    assert abs(y.mean() - 1.0) > 0.4  # as the mean of what was recorded is not


def test_traced_bounds_in_the_wrong_order_give_nan():
    at = lambda high: tg.Censored(dist.Normal(0.0, 1.0), low=0.0, high=high).log_prob(0.5)
    assert np.isnan(jax.jit(at)(-1.0)) and np.isfinite(jax.jit(at)(1.0))
