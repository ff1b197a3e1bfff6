"""Many devices give the number of one, its gradient and its Hessian.

Numbers of rows and replicates are primes, so that every share is padded.
"""

import os
import re
import subprocess
import sys

import device_work
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from truncgauss.arrays.batches import DIVIDED, mapped, operations, rows_undivided

COVARIANCE, REGION, MEANS = device_work.COVARIANCE, device_work.REGION, device_work.MEANS
FEW = tg.Separation(32, 5)


def log_probs(loc, method=FEW):
    return tg.log_probability(loc, COVARIANCE, REGION, method).log_prob


@pytest.mark.quick("gradient", "gradient of one problem")
@pytest.mark.parametrize("name", device_work.WORK)
def test_several_devices_give_the_numbers_of_one(name):
    count = 4 if name == "dense blocks" else 3  # which take a power of two
    device_work.assert_same(name, tg.parallel.device_mesh(count))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_process_of_eight_devices_gives_the_numbers_of_one(dtype):
    """More devices than rows; fits work in float64 whatever the dtype of their data."""
    names = [name for name in device_work.WORK if dtype == "float64" or "fit" not in name]
    more = {"JAX_NUM_CPU_DEVICES": "8", "JAX_ENABLE_X64": str(int(dtype == "float64"))}
    done = subprocess.run(
        [sys.executable, device_work.__file__, *names],
        env=os.environ | more, capture_output=True, text=True, timeout=device_work.LIMIT + 30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


FACTOR = np.array([[1.0, 0.0, 0.0], [0.5, 1.2, 0.0], [-0.3, 0.2, 0.9]])
BOX = tg.Box([-1.0, -np.inf, 0.0], [1.0, 0.5, np.inf])


def test_samples_spread_over_devices_give_the_same_number_and_only_their_sums_travel():
    def log_prob(loc, samples):
        method = tg.SoftMonteCarlo(edge=tg.Tanh(20.0), samples=samples)
        return tg.log_probability(loc, tg.ScaleTril(FACTOR), BOX, method).log_prob

    loc, samples = np.array([0.3, -0.4, 0.1]), np.random.default_rng(2).normal(size=(4096, 3))
    spread = tg.parallel.spread(samples, tg.parallel.device_mesh(4))
    assert len(spread.sharding.device_set) == 4
    for transform in (lambda f: f, jax.grad, jax.hessian):
        f = jax.jit(transform(log_prob))
        np.testing.assert_allclose(f(loc, spread), f(loc, samples), rtol=1e-12, atol=1e-13)
    text = jax.jit(jax.grad(log_prob)).lower(loc, spread).compile().as_text()
    assert "all-reduce" in text and "all-gather" not in text


@pytest.mark.full
def test_spread_rows_stay_where_they_are_and_exchange_nothing():
    """A loop that asks all devices whether to go on would wait for the slowest in every round."""
    of_rows = jax.jit(lambda loc: log_probs(loc, tg.ExpectationPropagation()))
    mesh = tg.parallel.device_mesh(4)
    loc = tg.parallel.spread(np.concatenate([MEANS, MEANS[:1]]), mesh)
    with tg.parallel.rows(mesh):
        program = of_rows.lower(loc).compile()
    text = program.as_text()
    assert "while" in text
    assert not any(collective in text for collective in COLLECTIVES)
    values = log_probs(loc, tg.ExpectationPropagation())  # of any call
    assert len(values.sharding.device_set) == 4
    np.testing.assert_allclose(values, program(loc), rtol=1e-12)
    assert not tg.parallel.is_spread(values.sum()) and tg.parallel.is_spread(values)


COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")


def collectives_in_loops(text):
    """Collectives of a compiled program outside of its entry, where the bodies of loops are."""
    entry = re.search(r"^ENTRY .*?^}", text, re.MULTILINE | re.DOTALL)[0]
    return [kind for kind in COLLECTIVES if f" {kind}" in text.replace(entry, "")]


@pytest.mark.quick("gradient")
@pytest.mark.parametrize(
    "name",
    ["gradient", "value", "propagation", "Hessian", "log_likelihood", "moments of one problem"],
)
def test_no_collective_stands_in_a_loop(name):
    """A loop of a solver that asks the other devices would wait for the slowest in every round."""
    context, function, argument = device_work.WORK[name]
    with context(tg.parallel.device_mesh(3)):
        text = jax.jit(function).lower(argument).compile().as_text()
    assert "while" in text
    assert not collectives_in_loops(text)


SOFT = tg.SoftMonteCarlo(64, edge=tg.Probit(0.2))
PAIRS = np.stack([MEANS, MEANS + 0.1], axis=1)


def soft(loc):
    return tg.log_probability(loc, COVARIANCE, REGION, SOFT).log_prob


def both(x, dx):
    return jax.jvp(jax.grad(soft), (x,), (dx,))


def with_spread_samples(loc):
    samples = jax.random.normal(jax.random.key(0), (64, 4))
    samples = tg.parallel.spread(samples, tg.parallel.device_mesh(4))
    method = tg.SoftMonteCarlo(samples=samples, edge=tg.Probit(0.2))
    one = lambda x: tg.log_probability(x, COVARIANCE, REGION, method).log_prob
    return jax.jit(jax.vmap(jax.value_and_grad(one)))(loc)


MAPPED = {
    "value": (jax.vmap(soft), MEANS),
    "gradient, samples on all devices": (with_spread_samples, MEANS),
    "gradient": (jax.vmap(jax.value_and_grad(soft)), MEANS),
    "gradient, jit": (jax.jit(jax.vmap(jax.value_and_grad(soft))), MEANS),
    "jit within": (jax.vmap(jax.jit(jax.grad(soft))), MEANS),
    "Hessian": (jax.vmap(jax.hessian(soft)), MEANS),
    "backwards, forwards": (jax.vmap(jax.jacrev(jax.jacfwd(soft))), MEANS),
    "change of the gradient": (lambda x: jax.vmap(both)(x, 1.0 + x), MEANS),
    "of the sum": (jax.grad(lambda x: jax.vmap(soft)(x).sum()), MEANS),
    "last axis": (jax.vmap(jax.grad(soft), in_axes=1), MEANS.T),
    "twice": (jax.vmap(jax.vmap(jax.grad(soft))), PAIRS),
    "of a batch": (jax.vmap(jax.grad(lambda x: soft(x).sum())), PAIRS),
}


@pytest.mark.quick("gradient, jit", "gradient, samples on all devices")
@pytest.mark.parametrize("name", MAPPED)
def test_rows_of_vmap_are_spread_and_exchange_nothing(name):
    function, rows = MAPPED[name]
    expected = jax.jit(function)(rows)
    with tg.parallel.rows(tg.parallel.device_mesh(4)):
        results = function(jnp.asarray(rows))
        text = jax.jit(function).lower(rows).compile().as_text()
    for one, other in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
        assert len(one.sharding.device_set) == 4
    assert "num_partitions=4" in text and not collectives_in_loops(text)


@pytest.mark.full
def test_around_vmap_pmap_and_shard_map_share_as_ever():
    rows, split = np.concatenate([MEANS, MEANS[:1]]), jax.P(tg.parallel.AXIS)
    mesh, each = tg.parallel.device_mesh(4), jax.vmap(jax.grad(soft))
    share = jax.shard_map(each, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    with tg.parallel.rows(mesh):
        shared, pieces = jax.jit(share)(rows), jax.pmap(each)(rows.reshape(4, 2, 4))
        alone = jax.value_and_grad(soft)(rows[0])
    expected = each(rows)
    np.testing.assert_allclose(shared, expected, rtol=1e-12)
    np.testing.assert_allclose(pieces.reshape(8, 4), expected, rtol=1e-12)
    np.testing.assert_allclose(alone[1], expected[0], rtol=1e-12)


def test_a_collective_in_a_loop_is_found():
    mesh = tg.parallel.device_mesh(2)
    spread = jax.NamedSharding(mesh, jax.P(tg.parallel.AXIS))
    longest = lambda x: jax.lax.while_loop(lambda x: x.max() < 9.0, lambda x: 2.0 * x, x)
    text = jax.jit(longest).lower(jax.device_put(np.ones(4), spread)).compile().as_text()
    assert "all-reduce" in collectives_in_loops(text)


def test_errors_speak():
    with pytest.raises(ValueError, match="asked for 9 device"):
        tg.parallel.device_mesh(9)
    with pytest.raises(ValueError, match="must divide by the 4 devices"):
        tg.parallel.spread(jnp.zeros((10, 2)), tg.parallel.device_mesh(4))
    for number in (0, "4"):
        with pytest.raises(ValueError, match=f"must be a positive int, got {number!r}"):
            tg.parallel.host_devices(number)
    with pytest.raises(ValueError, match="asked for '4' device"):
        tg.parallel.device_mesh("4")
    with pytest.raises(RuntimeError, match="JAX has already started with 4"):
        jnp.zeros(1).block_until_ready()
        tg.parallel.host_devices(7)


def test_devices_of_one_host_wait_for_each_other(monkeypatch):
    """XLA ends a process on an overloaded machine, unless the user has said how long they may."""
    monkeypatch.setattr(jax.config, "update", lambda *setting: None)
    name, _, day = tg.parallel.PATIENCE.partition("=")
    for flags, expected in {
        "": f"{name}={day}",
        "--xla_cpu_use_fusion_emitters=true": f"--xla_cpu_use_fusion_emitters=true {name}={day}",
        f"{name}=7": f"{name}=7",
    }.items():
        monkeypatch.setenv("XLA_FLAGS", flags)
        tg.parallel.host_devices(3)
        assert os.environ["XLA_FLAGS"] == expected


@pytest.mark.full
def test_a_context_of_one_device_or_inside_of_a_share_changes_nothing():
    assert "shard_map" not in str(jax.make_jaxpr(log_probs)(MEANS))
    for mesh in (None, tg.parallel.device_mesh(1)):
        with tg.parallel.rows(mesh), tg.parallel.replicates(mesh):
            assert "shard_map" not in str(jax.make_jaxpr(log_probs)(MEANS))
    mesh, split = tg.parallel.device_mesh(4), jax.sharding.PartitionSpec(tg.parallel.AXIS)
    share = jax.shard_map(log_probs, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    with tg.parallel.rows(mesh), tg.parallel.replicates(mesh):
        assert str(jax.make_jaxpr(share)(jnp.zeros((8, 4)))).count("shard_map") == 1


@pytest.mark.quick("False-ExpectationPropagation()")
@pytest.mark.parametrize(
    "method", [tg.ExpectationPropagation(), FEW, tg.SequentialMonteCarlo(16, 2)], ids=repr
)
@pytest.mark.parametrize("rows_in_context", [False, True])
def test_no_factorisation_is_divided_among_threads(method, rows_in_context):
    many = np.zeros((4096, 4))
    mesh = tg.parallel.device_mesh(2 if rows_in_context else 1)
    with tg.parallel.rows(mesh):
        for function in (log_probs, jax.grad(lambda *given: log_probs(*given).sum())):
            program = jax.make_jaxpr(lambda loc, f=function: f(loc, method))(many)
            assert 0 < max(operations(program.jaxpr)) < DIVIDED


def test_turns_give_what_all_rows_at_once_give():
    rows = np.eye(8) + 0.1 * np.random.default_rng(0).uniform(size=(1009, 1, 1))
    assert rows_undivided(jnp.linalg.cholesky, (rows,), (0,)) < 400
    assert rows_undivided(jnp.sin, (rows,), (0,)) == 1009
    scaled = lambda matrix, by: jnp.linalg.cholesky(matrix) * by
    found = mapped(scaled, (rows, jnp.float64(2.0)), (0, None))
    np.testing.assert_array_equal(found, 2.0 * jnp.linalg.cholesky(rows))


SPREAD_ROWS = """
import faulthandler, sys
faulthandler.dump_traceback_later(850, exit=True)
import truncgauss as tg
tg.parallel.host_devices(2)
import jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
loc = jnp.linspace(-1.0, 1.0, 4096)[:, None] + jnp.zeros(4)
covariance, box = 0.5 * jnp.eye(4) + 0.5, tg.Box(jnp.full(4, -1.0), jnp.full(4, 1.5))
method = tg.Automatic(max_draws=2048)  # 32 points a replicate
of_rows = jax.jit(lambda loc: tg.log_probability(loc, covariance, box, method))
found = of_rows(tg.parallel.spread(loc, tg.parallel.device_mesh(2)))
truth = tg.log_probability(loc[::512], covariance, box)
print(float(abs(found.log_prob[::512] - truth.log_prob).max()), float(found.stderr.max()))
"""


@pytest.mark.full
def test_many_spread_rows_do_not_wait_for_each_other():
    """Threads of jaxlib's pool that wait for work of the same pool stood still for ever."""
    done = subprocess.run(
        [sys.executable, "-c", SPREAD_ROWS], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    error, stderr = map(float, done.stdout.split())
    assert 0 < stderr < 0.02 and error < 5 * stderr


def test_a_broken_connection_is_no_mistake_of_the_user_s(monkeypatch):
    """JAX may report the end of another process as ValueError, which would stand for bad input."""

    def broken(array):
        raise ValueError("UNKNOWN: Gloo AllGather failed: connection reset by peer")

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(tg.parallel.multihost_utils, "process_allgather", broken)
    with pytest.raises(RuntimeError, match="another one has ended: UNKNOWN: Gloo"):
        tg.parallel.agreed("anything", np.ones(2))
