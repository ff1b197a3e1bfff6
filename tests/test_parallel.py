"""Many devices give the number of one, its gradient and its Hessian."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from truncgauss.execution.batches import DIVIDED, at_once, mapped, operations
from truncgauss.special import log_mean_exp

LOC = jnp.array([0.3, -0.4, 0.1])
FACTOR = jnp.array([[1.0, 0.0, 0.0], [0.5, 1.2, 0.0], [-0.3, 0.2, 0.9]])
BOX = tg.Box([-1.0, -jnp.inf, 0.0], [1.0, 0.5, jnp.inf])
SAMPLES = jax.random.normal(jax.random.key(2), (4096, 3))


def log_prob(loc, samples):
    method = tg.SoftMonteCarlo(edge=tg.Tanh(20.0), samples=samples)
    return tg.log_probability(loc, tg.ScaleTril(FACTOR), BOX, method).log_prob


@pytest.mark.quick("4")
@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_samples_spread_over_devices_give_the_same_number(num_devices):
    spread = tg.parallel.spread(SAMPLES, tg.parallel.device_mesh(num_devices))
    assert len(spread.sharding.device_set) == num_devices
    for transform in (lambda f: f, jax.grad, jax.hessian):
        f = jax.jit(transform(log_prob))
        np.testing.assert_allclose(f(LOC, spread), f(LOC, SAMPLES), rtol=1e-12, atol=1e-13)


def test_spread_work_only_adds_sums_across_devices():
    """No device gathers what the others hold: the compiled gradient all-reduces."""
    spread = tg.parallel.spread(SAMPLES, tg.parallel.device_mesh(4))
    text = jax.jit(jax.grad(log_prob)).lower(LOC, spread).compile().as_text()
    assert "all-reduce" in text and "all-gather" not in text


def test_pmap_gives_the_same_number():
    quarters = SAMPLES.reshape(4, 1024, 3)
    parts = jax.pmap(log_prob, in_axes=(None, 0))(LOC, quarters)
    assert parts.shape == (4,)
    spread = tg.parallel.spread(SAMPLES, tg.parallel.device_mesh(4))
    np.testing.assert_allclose(log_mean_exp(parts), log_prob(LOC, spread), rtol=1e-12)


def test_rows_spread_over_devices_give_the_same_numbers():
    shifts = jnp.linspace(-1.0, 1.0, 8)[:, None] + LOC
    method = tg.SoftMonteCarlo(num_samples=256)
    of_rows = jax.jit(lambda loc: tg.log_probability(loc, jnp.eye(3), BOX, method).log_prob)
    spread = tg.parallel.spread(shifts, tg.parallel.device_mesh(4))
    np.testing.assert_allclose(of_rows(spread), of_rows(shifts), rtol=1e-13)


def test_errors_speak():
    with pytest.raises(ValueError, match="asked for 9 device"):
        tg.parallel.device_mesh(9)
    with pytest.raises(ValueError, match="must divide by the 4 devices"):
        tg.parallel.spread(jnp.zeros((10, 2)), tg.parallel.device_mesh(4))
    with pytest.raises(ValueError, match="must be positive, got 0"):
        tg.parallel.host_devices(0)
    with pytest.raises(RuntimeError, match="JAX has already started with 4"):
        jnp.zeros(1).block_until_ready()
        tg.parallel.host_devices(7)


@pytest.mark.full
def test_host_devices_split_a_fresh_process_whose_devices_wait_for_each_other():
    """XLA takes the flag beside the user's, and does not end a process on an overloaded machine."""
    code = (
        "import os, jax, truncgauss as tg; tg.parallel.host_devices(3); "
        "print(jax.device_count(), os.environ['XLA_FLAGS'])"
    )
    name, _, day = tg.execution.parallel.PATIENCE.partition("=")
    for flags, expected in {
        "": f"{name}={day}",
        "--xla_cpu_use_fusion_emitters=true": f"--xla_cpu_use_fusion_emitters=true {name}={day}",
        f"{name}=7": f"{name}=7",
    }.items():
        environment = {**os.environ, "XLA_FLAGS": flags}
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.split(maxsplit=1) == ["3", f"{expected}\n"]


# --- Rows and replicates --------------------------------------------------------------------------

COVARIANCE, REGION = 0.5 * jnp.eye(4) + 0.5, tg.Box(jnp.full(4, -1.0), jnp.full(4, 1.5))
MEANS = jnp.linspace(-1.0, 1.0, 7)[:, None] + jnp.zeros(4)  # a prime number of rows
FEW = tg.Separation(32, 5)
CONTEXTS = {"rows": (tg.parallel.rows, MEANS), "replicates": (tg.parallel.replicates, MEANS[2])}


def log_probs(loc, method=FEW):
    return tg.log_probability(loc, COVARIANCE, REGION, method).log_prob


def assert_same(function, argument, context, num_devices, spread=True, rtol=1e-11):
    """The function's results are the same on one device and on several, where they lie."""
    plain = jax.tree.leaves(function(argument))
    with context(tg.parallel.device_mesh(num_devices)):
        shared = jax.tree.leaves(function(argument))
    for one, many in zip(plain, shared, strict=True):
        scale = np.nanmax(np.abs(one))
        np.testing.assert_allclose(many, one, rtol=0.0, atol=rtol * scale)
        assert not spread or len(many.sharding.device_set) == num_devices


@pytest.mark.quick("replicates")
@pytest.mark.parametrize("name", CONTEXTS)
def test_a_context_spreads_value_and_gradient_and_changes_neither(name):
    context, loc = CONTEXTS[name]
    method = tg.Separation(32, 5, tilted=False)
    both = jax.jit(jax.value_and_grad(lambda loc: log_probs(loc, method).sum()))
    assert_same(both, loc, context, 3)


@pytest.mark.full
@pytest.mark.parametrize("num_devices", [2, 3, 4])
@pytest.mark.parametrize("name", CONTEXTS)
def test_contexts_spread_all_that_is_computed(name, num_devices):
    context, loc = CONTEXTS[name]
    of_covariance = lambda c: tg.log_probability(loc, c, REGION, FEW).log_prob.sum()
    assert_same(jax.jit(jax.grad(of_covariance)), COVARIANCE, context, num_devices)
    hessian = jax.jit(jax.hessian(lambda loc: log_probs(loc).sum()))
    assert_same(hessian, loc, context, num_devices)
    moments = lambda loc: tg.truncated_moments(loc, COVARIANCE, REGION, FEW)
    assert_same(moments, loc, context, num_devices)
    slope = jax.jit(jax.grad(lambda loc: moments(loc).mean.sum()))
    assert_same(slope, loc, context, num_devices)
    default = lambda loc: tg.log_probability(loc, COVARIANCE, REGION)
    assert_same(default, loc, context, num_devices, spread=False)
    draws = lambda loc: tg.truncated_samples(jax.random.key(1), loc, COVARIANCE, REGION, 20)
    assert_same(draws, loc, context, num_devices, spread=False)


@pytest.mark.full
@pytest.mark.parametrize(
    "method", [tg.SoftMonteCarlo(100, 5), tg.SequentialMonteCarlo(64, 5)], ids=["soft", "particles"]
)
def test_replicates_of_every_method_are_spread(method):
    for function in (tg.log_probability, tg.truncated_moments):
        of_loc = lambda loc, f=function: f(loc, COVARIANCE, REGION, method)
        assert_same(of_loc, MEANS[2], tg.parallel.replicates, 3)


@pytest.mark.full
def test_fits_and_likelihoods_take_spread_rows():
    regions = tg.Box(MEANS[:, :2] - 1.0, MEANS[:, :2] + 1.0)
    counts = jnp.array([5.0, 20.0, 35.0, 45.0, 35.0, 20.0, 5.0])
    rows = 0.5 * jax.random.normal(jax.random.key(3), (11, 2))
    square = tg.Box([-2.0, -2.0], [2.0, 2.0])
    observed = tg.Observations(rows, jnp.where(rows > 0.4, jnp.inf, rows), region=square)
    work = {
        "shift": lambda _: tg.fit_shift(counts, jnp.zeros(2), jnp.eye(2), regions, 100).params,
        "normal": lambda _: tg.fit_truncated_normal(rows, -2.0, 2.0).loc,
        "likelihood": lambda _: tg.log_likelihood(observed, jnp.zeros(2), jnp.eye(2)).log_prob,
    }
    for function in work.values():
        assert_same(function, None, tg.parallel.rows, 3, spread=False, rtol=1e-8)


def test_spread_rows_exchange_nothing():
    """A loop that asks all devices whether to go on would wait for the slowest in every round."""
    of_rows = jax.jit(lambda loc: log_probs(loc, tg.ExpectationPropagation()))
    with tg.parallel.rows(tg.parallel.device_mesh(4)):
        loc = tg.parallel.spread(jnp.concatenate([MEANS, MEANS[:1]]), tg.parallel.device_mesh(4))
        text = of_rows.lower(loc).compile().as_text()
    assert "while" in text
    for collective in ("all-reduce", "all-gather", "collective-permute", "all-to-all"):
        assert collective not in text


@pytest.mark.full
def test_a_context_of_one_device_or_inside_of_a_share_changes_nothing():
    plain = jax.make_jaxpr(log_probs)(MEANS)
    for mesh in (None, tg.parallel.device_mesh(1)):
        with tg.parallel.rows(mesh), tg.parallel.replicates(mesh):
            assert "shard_map" not in str(jax.make_jaxpr(log_probs)(MEANS))
    assert "shard_map" not in str(plain)
    mesh, split = tg.parallel.device_mesh(4), jax.sharding.PartitionSpec(tg.parallel.AXIS)
    share = jax.shard_map(log_probs, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    with tg.parallel.rows(mesh), tg.parallel.replicates(mesh):
        assert str(jax.make_jaxpr(share)(jnp.zeros((8, 4)))).count("shard_map") == 1


@pytest.mark.full
def test_a_call_with_spread_rows_shares_them():
    mesh = tg.parallel.device_mesh(4)
    loc = tg.parallel.spread(jnp.concatenate([MEANS, MEANS[:1]]), mesh)
    found = tg.log_probability(loc, COVARIANCE, REGION, tg.ExpectationPropagation()).log_prob
    assert len(found.sharding.device_set) == 4
    alone = tg.log_probability(np.asarray(loc), COVARIANCE, REGION, tg.ExpectationPropagation())
    np.testing.assert_allclose(found, alone.log_prob, rtol=1e-12)
    assert not tg.parallel.is_spread(found.sum()) and tg.parallel.is_spread(found)


# --- Factorisations -------------------------------------------------------------------------------


@pytest.mark.quick("False-ExpectationPropagation()")
@pytest.mark.parametrize(
    "method", [tg.ExpectationPropagation(), FEW, tg.SequentialMonteCarlo(16, 2)], ids=repr
)
@pytest.mark.parametrize("rows_in_context", [False, True])
def test_no_factorisation_is_divided_among_threads(method, rows_in_context):
    many = jnp.zeros((4096, 4))
    mesh = tg.parallel.device_mesh(2 if rows_in_context else 1)
    with tg.parallel.rows(mesh):
        for function in (log_probs, jax.grad(lambda *given: log_probs(*given).sum())):
            program = jax.make_jaxpr(lambda loc, f=function: f(loc, method))(many)
            assert 0 < max(operations(program.jaxpr)) < DIVIDED


def test_turns_give_what_all_rows_at_once_give():
    rows = jnp.eye(8) + 0.1 * jax.random.uniform(jax.random.key(0), (1009, 1, 1))
    assert at_once(jnp.linalg.cholesky, (rows,), (0,)) < 400
    assert at_once(jnp.sin, (rows,), (0,)) == 1009
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

    monkeypatch.setattr(tg.parallel, "everywhere", broken)
    with pytest.raises(RuntimeError, match="another one has ended: UNKNOWN: Gloo"):
        tg.parallel.all_bytes(b"1")
