"""Many devices give the number of one, its gradient and its Hessian."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from truncgauss.special import log_mean_exp

LOC = jnp.array([0.3, -0.4, 0.1])
FACTOR = jnp.array([[1.0, 0.0, 0.0], [0.5, 1.2, 0.0], [-0.3, 0.2, 0.9]])
BOX = tg.Box([-1.0, -jnp.inf, 0.0], [1.0, 0.5, jnp.inf])
SAMPLES = jax.random.normal(jax.random.key(2), (4096, 3))


def log_prob(loc, samples):
    method = tg.SoftMonteCarlo(edge=tg.Tanh(20.0), samples=samples)
    return tg.log_probability(loc, tg.ScaleTril(FACTOR), BOX, method).log_prob


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


def test_host_devices_split_a_fresh_process():
    code = (
        "import truncgauss as tg; tg.parallel.host_devices(3); import jax; "
        "print(jax.device_count())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "3"


SPREAD_ROWS = """
import faulthandler, sys
faulthandler.dump_traceback_later(170, exit=True)
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


def test_many_spread_rows_do_not_wait_for_each_other():
    """Threads of jaxlib's pool that wait for work of the same pool stood still for ever."""
    done = subprocess.run(
        [sys.executable, "-c", SPREAD_ROWS], capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    error, stderr = map(float, done.stdout.split())
    assert 0 < stderr < 0.02 and error < 5 * stderr
