"""`jax.shard_map` and arrays on an explicit mesh give the numbers of one device, and derivatives.

JAX keeps book of what varies over a mesh while it traces, so that the quick tests need not compile.
"""

import contextlib
from functools import partial

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
# The default, and what is exact, differ from one dimension to the next; other methods do not.
SIZES = {"exact": (1, 2, 3), "automatic": (1, 2, 3, 5), "separation": (1, 2, 5)}
CASES = [(name, d) for name in METHODS for d in SIZES.get(name, (2, 5))]
NUMBERS = [case for case in CASES if case[0] in ("exact", "automatic") or case[1] == 2]


def mesh_of(kind):
    return jax.make_mesh((4,), ("rows",), (kind,))


def rows(d):
    return jnp.asarray(np.linspace(-1.0, 1.0, 4)[:, None] + np.zeros(d))


def on_explicit_mesh(d):
    return jax.device_put(rows(d), NamedSharding(mesh_of(AxisType.Explicit), ROWS))


def law(d):
    return 0.5 * np.eye(d) + 0.5, tg.Box(np.full(d, -1.0), np.full(d, 1.5))


def log_prob_of(name, d):
    """A function of means (rows, d)."""
    method, (covariance, box) = METHODS[name], law(d)
    if name == "held":
        method = method.hold(np.zeros(d), covariance, box)
    return lambda loc: tg.log_probability(loc, covariance, box, method).log_prob


def total(function):
    return lambda loc: function(loc).sum()


def other_work(d):
    """Functions of means (rows, d) that are not probabilities of a box by a method."""
    covariance, box = law(d)
    wedge = tg.Polyhedron(np.eye(d) + np.eye(d, k=1), box.low, box.high)
    ones, polyhedral, key = np.ones(d), tg.Separation(64, 4), jax.random.key(0)
    forms = {
        "one factor": tg.LowRank(ones[:, None], ones),
        "two factors": tg.LowRank(np.ones((d, 2)), ones),
        "chain": tg.Markov(ones[1:], 1.0, 1.0),
    }

    def of(loc, matrix=covariance, region=box, *method):
        return tg.log_probability(loc, matrix, region, *method).log_prob

    def mean(loc, method):
        return tg.truncated_moments(loc, covariance, box, method).mean.sum(-1)

    def normal(loc):
        law = tg.TruncatedNormal(loc, 1.0, low=-1.0, high=1.5)
        parts = law.log_prob(0.3), law.cdf(0.2), law.icdf(0.3), law.mean, law.entropy()
        return sum(parts).sum(-1)

    def vector(loc):
        law = tg.TruncatedMultivariateNormal(loc, covariance, low=-1.0, high=1.5)
        return law.log_prob(np.zeros(d)) + law.entropy()

    def draws(loc):
        fixed = jax.lax.stop_gradient(loc)
        return tg.truncated_samples(key, fixed, covariance, box, 10).sum((0, 2))

    methods = {name: method for name, method in METHODS.items() if name != "exact" or d <= 3}
    return {
        **{name: partial(of, matrix=form) for name, form in forms.items()},
        **{f"moments, {name}": partial(mean, method=method) for name, method in methods.items()},
        "polyhedron": lambda loc: of(loc, covariance, wedge, polyhedral),
        "covariances": lambda loc: of(0.0 * ones, covariance * (2.0 + loc[:, :1, None])),
        "limits": lambda loc: of(0.0 * ones, covariance, tg.Box(loc - 1.0, loc + 1.0)),
        "normal": normal,
        "vector": vector,
        "draws": draws,
        "weighted": lambda loc: tg.weighted_samples(key, loc, covariance, box, 10).samples.sum(
            (0, 2)
        ),
        "safe": lambda loc: tg.safe.safe_norm(loc) + tg.safe.bump(loc, 1.0).sum(-1),
    }


def over_devices(function, check_vma=True, kind=AxisType.Auto):
    return jax.shard_map(
        function, mesh=mesh_of(kind), in_specs=ROWS, out_specs=ROWS, check_vma=check_vma
    )


@pytest.mark.quick("exact-2", "separation-1")
@pytest.mark.parametrize(("name", "d"), CASES)
def test_every_method_takes_rows_on_a_mesh(name, d):
    """Loops that started from constants were refused by `jax.shard_map` in any d >= 2. An explicit
    mesh is the default of `jax.make_mesh`, with and without `jax.set_mesh` around the call."""
    function = log_prob_of(name, d)
    spread, both = over_devices(function), jax.jit(jax.value_and_grad(total(function)))
    assert jax.eval_shape(spread, rows(d)).shape == (4,)
    assert jax.eval_shape(jax.grad(total(spread)), rows(d)).shape == (4, d)
    both.lower(on_explicit_mesh(d))
    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        both.lower(on_explicit_mesh(d))


@pytest.mark.full
@pytest.mark.parametrize("d", [2, 5])
def test_all_other_work_takes_rows_on_a_mesh(d):
    for name, function in other_work(d).items():
        spread = over_devices(function)
        assert jax.eval_shape(spread, rows(d)).shape == (4,), name
        assert jax.eval_shape(jax.grad(total(spread)), rows(d)).shape == (4, d), name
        jax.jit(function).lower(on_explicit_mesh(d))


def value_and_slope(function):
    """Values of the rows, and the gradient of their sum, by one program."""

    def both(loc):
        value, back = jax.vjp(function, loc)
        return value, back(jnp.ones_like(value))[0]

    return jax.jit(both)


@pytest.mark.full
@pytest.mark.parametrize(("name", "d"), NUMBERS)
def test_a_mesh_gives_the_number_of_one_device_and_its_gradient(name, d):
    plain = log_prob_of(name, d)
    # Under `jit` too: outside of it `Automatic` looks for structure in the covariance.
    truth = value_and_slope(plain)(rows(d))
    kind = AxisType.Explicit if d == 3 else AxisType.Auto
    shared = value_and_slope(over_devices(plain, d != 1, kind))
    found = {"shard_map": shared(on_explicit_mesh(d) if d == 3 else rows(d))}
    within = d == 2  # with and without `jax.set_mesh` around the call
    context = jax.set_mesh(mesh_of(AxisType.Explicit)) if within else contextlib.nullcontext()
    with context:
        found["explicit"] = value_and_slope(plain)(on_explicit_mesh(d))
        if name != "automatic":  # which spends more where it sees numbers
            found["eager"] = plain(on_explicit_mesh(d)), found["explicit"][1]
    for way, (value, slope) in found.items():
        np.testing.assert_allclose(value, truth[0], rtol=1e-12, atol=1e-13, err_msg=way)
        np.testing.assert_allclose(slope, truth[1], rtol=1e-10, atol=1e-12, err_msg=way)
