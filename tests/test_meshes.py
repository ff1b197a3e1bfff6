"""`jax.shard_map` and arrays on an explicit mesh give the numbers of one device, and derivatives.

JAX keeps book of what varies over a mesh while it traces, so that the quick tests need not compile.
"""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import truncgauss as tg

ROWS = PartitionSpec("rows")
METHODS = {
    "exact": tg.Exact(),
    "separation": tg.Separation(64, 4),
    "tilted": tg.Separation(64, 4, twisted=False),
    "held": tg.Separation(64, 4),
    "propagation": tg.ExpectationPropagation(),
    "sequential": tg.SequentialMonteCarlo(64, 2),
    "soft": tg.SoftMonteCarlo(64),
    "automatic": tg.Automatic(),
}
CASES = [(name, d) for d in (1, 2, 3, 5) for name in METHODS if (name, d) != ("exact", 5)]
# Numbers of each method once; of the default and of what is exact in several dimensions.
NUMBERS = [case for case in CASES if case[0] in ("exact", "automatic") or case[1] == 2]
# The comparison of numbers takes two dimensions through the same `shard_map`.
TRACED = [case for case in CASES if case[1] != 2]


def mesh_of(kind):
    return jax.make_mesh((4,), ("rows",), (kind,))


def rows(d):
    return jnp.linspace(-1.0, 1.0, 4)[:, None] + jnp.zeros(d)


def on_explicit_mesh(d):
    return jax.device_put(rows(d), NamedSharding(mesh_of(AxisType.Explicit), ROWS))


def law(d):
    return 0.5 * jnp.eye(d) + 0.5, tg.Box(jnp.full(d, -1.0), jnp.full(d, 1.5))


def log_prob_of(name, d):
    """A function of means (rows, d)."""
    method, (covariance, box) = METHODS[name], law(d)
    if name == "held":
        method = method.hold(jnp.zeros(d), covariance, box)
    return lambda loc: tg.log_probability(loc, covariance, box, method).log_prob


def total(function):
    return lambda loc: function(loc).sum()


def other_work(d):
    """Functions of means (rows, d) that are not probabilities of a box."""
    covariance, box = law(d)
    wedge = tg.Polyhedron(jnp.eye(d) + jnp.eye(d, k=1), box.low, box.high)
    forms = {
        "one factor": tg.LowRank(jnp.ones((d, 1)), jnp.ones(d)),
        "two factors": tg.LowRank(jnp.ones((d, 2)), jnp.ones(d)),
        "chain": tg.Markov(jnp.ones(d - 1), 1.0, 1.0),
    }
    work = {
        name: lambda loc, form=form: tg.log_probability(loc, form, box).log_prob
        for name, form in forms.items()
    }
    work |= {
        f"moments, {name}": lambda loc, method=method: tg.truncated_moments(
            loc, covariance, box, method
        ).mean.sum(-1)
        for name, method in METHODS.items()
        if not (name == "exact" and d > 3)
    }
    polyhedral = tg.Separation(64, 4)
    return work | {
        "polyhedron": lambda loc: tg.log_probability(loc, covariance, wedge, polyhedral).log_prob,
        "covariances": lambda loc: (
            tg.log_probability(jnp.zeros(d), covariance * (2.0 + loc[:, :1, None]), box).log_prob
        ),
        "limits": lambda loc: (
            tg.log_probability(jnp.zeros(d), covariance, tg.Box(loc - 1.0, loc + 1.0)).log_prob
        ),
        **distributions_and_draws(d),
    }


def distributions_and_draws(d):
    """Functions of means that draw, or ask a distribution."""
    covariance, box = law(d)

    def normal(loc):
        law = tg.TruncatedNormal(loc, 1.0, low=-1.0, high=1.5)
        parts = law.log_prob(0.3), law.cdf(0.2), law.icdf(0.3), law.mean, law.entropy()
        return sum(parts).sum(-1)

    def vector(loc):
        law = tg.TruncatedMultivariateNormal(loc, covariance, low=-1.0, high=1.5)
        return law.log_prob(jnp.zeros(d)) + law.entropy()

    def draws(loc):
        loc = jax.lax.stop_gradient(loc)
        return tg.truncated_samples(jax.random.key(0), loc, covariance, box, 10).sum((0, 2))

    def weighted(loc):
        return tg.weighted_samples(jax.random.key(0), loc, covariance, box, 10).samples.sum((0, 2))

    return {
        "normal": normal,
        "vector": vector,
        "draws": draws,
        "weighted": weighted,
        "safe": lambda loc: tg.safe.safe_norm(loc) + tg.safe.bump(loc, 1.0).sum(-1),
    }


def over_devices(function, check_vma=True, kind=AxisType.Auto):
    return jax.shard_map(
        function, mesh=mesh_of(kind), in_specs=ROWS, out_specs=ROWS, check_vma=check_vma
    )


# --- shard_map ------------------------------------------------------------------------------------


@pytest.mark.quick("separation-1")
@pytest.mark.parametrize(("name", "d"), TRACED)
def test_shard_map_takes_every_method(name, d):
    """Loops that started from constants were refused in any d >= 2."""
    spread = over_devices(log_prob_of(name, d))
    assert jax.eval_shape(spread, rows(d)).shape == (4,)
    assert jax.eval_shape(jax.grad(total(spread)), rows(d)).shape == (4, d)


@pytest.mark.full
@pytest.mark.parametrize("d", [2, 5])
def test_shard_map_takes_all_other_work(d):
    for name, function in other_work(d).items():
        spread = over_devices(function)
        assert jax.eval_shape(spread, rows(d)).shape == (4,), name
        assert jax.eval_shape(jax.grad(total(spread)), rows(d)).shape == (4, d), name


def value_and_slope(function):
    """Values of the rows, and the gradient of their sum, by one program."""

    def both(loc):
        value, back = jax.vjp(function, loc)
        return value, back(jnp.ones_like(value))[0]

    return jax.jit(both)


@pytest.mark.full
@pytest.mark.parametrize(("name", "d"), NUMBERS)
def test_shard_map_gives_the_number_of_one_device_and_its_gradient(name, d):
    explicit, check_vma = d == 3, d != 1
    spread_rows = on_explicit_mesh(d) if explicit else rows(d)
    plain, kind = log_prob_of(name, d), AxisType.Explicit if explicit else AxisType.Auto
    value, slope = value_and_slope(over_devices(plain, check_vma, kind))(spread_rows)
    # Under `jit` too: outside of it `Automatic` looks for structure in the covariance.
    truth = value_and_slope(plain)(rows(d))
    np.testing.assert_allclose(value, truth[0], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(slope, truth[1], rtol=1e-10, atol=1e-12)


# --- Explicit meshes ------------------------------------------------------------------------------


@pytest.mark.quick("exact-2")
@pytest.mark.parametrize(("name", "d"), CASES)
def test_rows_on_an_explicit_mesh_are_taken(name, d):
    """The default of `jax.make_mesh`; with and without `jax.set_mesh` around the call."""
    function = jax.jit(jax.value_and_grad(total(log_prob_of(name, d))))
    function.lower(on_explicit_mesh(d))
    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        function.lower(on_explicit_mesh(d))


@pytest.mark.full
@pytest.mark.parametrize("d", [2, 5])
def test_all_other_work_takes_rows_on_an_explicit_mesh(d):
    for function in other_work(d).values():
        jax.jit(function).lower(on_explicit_mesh(d))


@pytest.mark.full
@pytest.mark.parametrize(("name", "d"), NUMBERS)
def test_an_explicit_mesh_gives_the_number_of_one_device_and_its_gradient(name, d):
    plain = log_prob_of(name, d)
    truth = value_and_slope(plain)(rows(d))
    within = d == 2  # with and without `jax.set_mesh` around the call
    context = jax.set_mesh(mesh_of(AxisType.Explicit)) if within else contextlib.nullcontext()
    with context:
        value, slope = value_and_slope(plain)(on_explicit_mesh(d))
        eager = plain(on_explicit_mesh(d))
    np.testing.assert_allclose(value, truth[0], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(slope, truth[1], rtol=1e-10, atol=1e-12)
    if name != "automatic":  # which spends more where it sees numbers
        np.testing.assert_allclose(eager, truth[0], rtol=1e-12, atol=1e-13)
