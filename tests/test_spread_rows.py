"""Rows of a file of which each process reads and holds its own: sums and likelihoods."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from test_distributed import ends, port

import truncgauss as tg
from truncgauss.execution.checkpoint import digest, source_digest


def test_a_fit_of_a_files_rows_goes_on_with_any_number_of_devices(tmp_path):
    """37 rows, which two and four devices fill up to 38 and 40."""
    path, state = tmp_path / "rows.npy", tmp_path / "fit.npz"
    np.save(path, np.random.default_rng(1).normal(size=(37, 2)))
    spread = {
        count: tg.distributed.from_file(path, mesh=tg.parallel.device_mesh(count))
        for count in (1, 2, 4)
    }
    assert [len(rows.weights) for rows in spread.values()] == [37, 38, 40]

    def loss(rows, loc):
        return jnp.sum(rows.weights[:, None] * jnp.cosh(rows.values - loc))

    def fit(count, num_steps):
        objective, start = jax.tree_util.Partial(loss, spread[count]), jnp.ones(2)
        with tg.fitting.resumable(state):
            return tg.minimize(objective, start, optax.sgd(1e-2), num_steps, tolerance=0.0)

    whole = fit(1, 9)
    state.unlink()
    for count in (1, 4):
        assert fit(2, 4).num_steps == 4
        found = fit(count, 9)
        assert found.num_steps == 9 and len(found.loss_trace) == len(whole.loss_trace)
        np.testing.assert_allclose(found.params, whole.params, rtol=1e-12)
        state.unlink()
    for of in (digest, lambda rows: source_digest(jax.tree_util.Partial(loss, rows))):
        assert len({of(rows) for rows in spread.values()}) == 1
        other = spread[4]._replace(values=spread[4].values.at[36].add(1e-9))
        assert of(other) != of(spread[4])
        assert of(spread[4]._replace(values=spread[4].values.at[39].add(1e-9))) == of(spread[4])


FROM_FILE = """
import sys, numpy as np, jax, jax.numpy as jnp, truncgauss as tg
index, count, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[4]
jax.config.update("jax_enable_x64", True)
if count > 1:
    tg.distributed.join(sys.argv[3], count, index)
rows = tg.distributed.from_file(path, ["x", "low"])
held = sum(len(shard.data) for shard in rows.values.addressable_shards)

def loss(rows, loc):
    x, low = rows.values.T
    box = tg.Box(low[:, None], jnp.inf)
    seen = tg.log_probability(jnp.full(1, loc), jnp.eye(1), box).log_prob
    return jnp.sum(rows.weights * (0.5 * (x - loc) ** 2 + seen))

fit = tg.minimize(jax.tree_util.Partial(loss, rows), 0.3, progress=False)
print(repr(float(fit.params)), int(jnp.sum(rows.weights)), len(rows.weights), held)
"""


@pytest.mark.slow
def test_each_process_reads_and_holds_its_own_rows(tmp_path):
    """37 rows on two processes of one device, and on one of three: the same maximum."""
    rng = np.random.default_rng(0)
    low = rng.normal(size=37) - 1.0
    x, path = low + np.abs(rng.normal(size=37)), tmp_path / "rows.csv"
    table = np.column_stack([low, x, np.zeros(37)])
    np.savetxt(path, table, "%.17g", ",", header="low,x,other", comments="")

    def printed(count, devices):
        words = [sys.executable, "-c", FROM_FILE]
        meeting = f"127.0.0.1:{port()}"
        processes = [
            subprocess.Popen(
                [*words, str(index), str(count), meeting, str(path)], text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)},
            )
            for index in range(count)
        ]  # fmt: skip
        found = ends(processes)
        assert all(code == 0 for code, _, _ in found), found
        return [out.split()[-4:] for _, out, _ in found]

    [one], two = printed(1, 3), printed(2, 1)
    assert one[1:] == ["37", "39", "39"]  # rows, with those repeated, held here
    assert two[0] == two[1] and two[0][1:] == ["37", "38", "19"]
    found = [float(words[0]) for words in (one, two[0])]
    np.testing.assert_allclose(*found, rtol=1e-9)
    # At the maximum the truncated means add up to the rows.
    means = scipy.stats.truncnorm.mean(low - found[0], np.inf, loc=found[0])
    np.testing.assert_allclose(means.sum(), x.sum(), rtol=1e-7)


LIKELIHOODS = """
import sys, numpy as np, jax, jax.numpy as jnp, truncgauss as tg
index, count, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[4]
jax.config.update("jax_enable_x64", True)
if count > 1:
    tg.distributed.join(sys.argv[3], count, index)
rows = tg.distributed.from_file(path)
x, y, weights = rows.values[:, 0], rows.values[:, 1], rows.weights
box, ends = tg.Box(x[:, None] - 9.0, jnp.inf), (jnp.where(y > 0, y, -jnp.inf), y)
observed = tg.Observations(*ends, region=box, noise=0.1 + x[:, None] ** 2, weights=weights)
each = tg.log_likelihood(observed, x[:, None], jnp.eye(1)).log_prob
assert count == 1 or len(each.addressable_shards) == 1
wide = jnp.stack([x, y, x + y, x - y], axis=1)
box = tg.Box(wide - 1.0, jnp.inf)  # four dimensions: rows draw the points that they draw beside all
points = tg.log_likelihood(tg.Observations.exact(wide, region=box), jnp.zeros(4), jnp.eye(4),
                           tg.Separation(num_points=16, num_replicates=4)).log_prob
exact, messages = tg.Observations.exact(x, weights=weights), []
for call in (
    lambda: tg.fit_observations(exact),
    lambda: tg.fit_regression(y, {"x": x}),
    lambda: tg.fit_mixture(exact, 2),
    lambda: tg.fit_truncated_normal(x, low=-9.0),
    lambda: tg.mixtures.posterior(exact, [1.0], [[0.0]], [[[1.0]]]),
    lambda: tg.quantile_residuals((exact, jnp.zeros(1), jnp.eye(1))),
    lambda: tg.log_likelihood(tg.Observations(jnp.where(weights > 0, x, x), jnp.where(
        jnp.arange(len(x)) == 20, x - 1.0, x)), jnp.zeros(1), jnp.eye(1)),
):
    try:
        call()
    except ValueError as error:
        messages.append(str(error))
np.savez(sys.argv[5], messages=messages, each=tg.distributed.gathered(each)[:37],
         points=tg.distributed.gathered(points)[:37])
"""


@pytest.mark.slow
def test_likelihoods_of_rows_of_which_each_process_holds_its_own(tmp_path):
    """37 rows on two processes of one device give the numbers of one process; fits refuse them,
    and what is wrong with a row of one process is said on both."""
    rng = np.random.default_rng(4)
    table, path = rng.normal(size=(37, 2)), tmp_path / "rows.npy"
    np.save(path, np.maximum(table, [-np.inf, 0.0]))

    def results(count):
        meeting = f"127.0.0.1:{port()}"
        files = [tmp_path / f"{count}-{index}.npz" for index in range(count)]
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", LIKELIHOODS, str(index), str(count), meeting, path, file],
                text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"},
            )
            for index, file in enumerate(files)
        ]  # fmt: skip
        found = ends(processes)
        assert all(code == 0 for code, _, _ in found), found
        return [dict(np.load(file)) for file in files]

    [one], two = results(1), results(2)
    for found in two:
        for name in ("each", "points"):
            np.testing.assert_allclose(found[name], one[name], rtol=1e-12)
        *refused, wrong = found["messages"]
        for text, name in zip(refused, NAMES, strict=True):
            assert text.startswith(name) and "tg.distributed.gathered(rows)" in text, text
        assert wrong.startswith("process 1, of its own rows: Observations:"), wrong


NAMES = (
    "fit_observations", "fit_regression", "fit_mixture", "fit_truncated_normal", "log_likelihood",
    "quantile_residuals",
)  # fmt: skip
