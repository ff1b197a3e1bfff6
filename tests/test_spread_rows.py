"""Rows of a file of which each process reads and holds its own: sums, fits and checkpoints."""

import os
import shutil
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from test_distributed import LIMIT, alone, ends, killed, launch, port, result

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

    def fit(count, num_steps, checkpoint=None):
        objective = jax.tree_util.Partial(loss, spread[count])
        return tg.minimize(
            objective, jnp.ones(2), optax.sgd(1e-2), num_steps, progress=False,
            checkpoint=checkpoint, tolerance=0.0,
        )  # fmt: skip

    whole = fit(1, 9)
    for count in (1, 4):
        assert fit(2, 4, state).num_steps == 4
        found = fit(count, 9, state)
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


FITS = """
import sys, numpy as np, jax, jax.numpy as jnp, truncgauss as tg
index, count, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[4]
jax.config.update("jax_enable_x64", True)
if count > 1:
    tg.distributed.join(sys.argv[3], count, index)
rows = tg.distributed.from_file(path, ["y", "x", "low", "two"])
y, x, low, two = (rows.values[:, k] for k in range(4))
design = {"constant": jnp.ones_like(x), "x": x}
line = tg.fit_regression(y, design, censored_low=0.0, truncated_low=low, weights=rows.weights)
box, ends = tg.Box(low[:, None], jnp.inf), (jnp.where(y > 0, y, -jnp.inf), y)
observed = tg.Observations(*ends, region=box, weights=rows.weights)
small = tg.fit_observations(observed)
fit = tg.fit_observations(observed, jnp.stack([x, jnp.ones_like(x)], axis=1))
each = tg.log_likelihood(observed, jnp.zeros(1), jnp.eye(1)).log_prob
normal = tg.fit_truncated_normal(rows.values[:, 1:2], low=-9.0, weights=rows.weights)
two_rows = tg.Observations.exact(two, weights=rows.weights)
mixture = tg.fit_mixture(two_rows, 2, num_starts=3)
parts = mixture.weights, mixture.locs, mixture.covariances
mixed = tg.mixtures.mixture_log_likelihood(two_rows, *parts).log_prob
assert mixture.converged and len(mixture.responsibilities) == len(each) // count
assert len(line.observations.lower) == len(each) // count  # of this process alone
np.savez(sys.argv[5], line=line.estimates, line_errors=line.errors, fit=fit.estimates,
         errors=fit.errors, profile=line.profile("x"), total=fit.log_likelihood,
         ratio=tg.likelihood_ratio(small, fit)[0], normal=normal.loc,
         mixture=mixture.estimates, mixture_errors=mixture.errors, icl=mixture.icl,
         starts=mixture.start_log_likelihoods,
         mixed=tg.distributed.gathered(mixed)[:37],
         residuals=np.concatenate(tg.distributed.exchanged(tg.quantile_residuals(small)))[:37],
         each=tg.distributed.gathered(each)[:37])
"""


@pytest.mark.slow
def test_fits_of_rows_of_which_each_process_holds_its_own(tmp_path):
    """37 rows on two processes of one device give the numbers of one process, as precisely."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=37)
    y = np.maximum(0.5 + x + rng.normal(size=37), 0.0)
    two = rng.normal(size=37) + np.where(np.arange(37) % 3 == 0, 5.0, 0.0)
    table, path = np.column_stack([x, np.minimum(x, y) - 1.5, y, two]), tmp_path / "rows.csv"
    np.savetxt(path, table, "%.17g", ",", header="x,low,y,two", comments="")

    def results(count):
        meeting = f"127.0.0.1:{port()}"
        files = [tmp_path / f"{count}-{index}.npz" for index in range(count)]
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", FITS, str(index), str(count), meeting, path, file],
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
        for name, value in one.items():
            tolerance = 1e-7 if name == "profile" else 1e-10
            np.testing.assert_allclose(found[name], value, rtol=tolerance, err_msg=name)


LONG = '''\
"""Fits of rows of which each process holds its own."""

from typing import ClassVar

import jax.numpy as jnp

import truncgauss as tg
from truncgauss import config


class Settings(config.Experiment):
    spreads: ClassVar[bool] = True
    rows: str
    starts: int


def run(settings):
    rows = tg.distributed.from_file(settings.rows, ["x", "low"])
    x, low = rows.values[:, 0], rows.values[:, 1]
    box = tg.Box(low[:, None], jnp.inf)
    observed = tg.Observations.exact(x[:, None], region=box, weights=rows.weights)
    normal = tg.fit_truncated_normal(x[:, None], low=-9.0, weights=rows.weights)
    one = tg.fit_observations(observed)
    two = tg.fit_mixture(tg.Observations.exact(x[:, None], weights=rows.weights), 2,
                         num_starts=settings.starts)
    return {"normal": normal.loc, "one": one.estimates, "two": two.estimates, "errors": two.errors,
            "reached": two.start_log_likelihoods, "summary": [two.reason]}


def plot(results):
    from truncgauss import plotting

    return plotting.figure()[0]
'''


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_fits_of_spread_rows_survive_a_process(victim, tmp_path):
    """One of two processes is killed amid a fit: the other ends with an error, and one process or
    two go on from the last checkpoint to the numbers of an undisturbed run."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=37) + np.where(np.arange(37) % 3 == 0, 5.0, 0.0)
    np.savez(tmp_path / "rows.npz", x=x, low=x - rng.exponential(size=37) - 0.5)
    (tmp_path / "shared.py").write_text(LONG)
    path, folder = tmp_path / "long.yaml", tmp_path / "runs"
    path.write_text(f"experiment: shared.py\nseed: 1\nrows: {tmp_path / 'rows.npz'}\nstarts: 60\n")
    processes = launch(tmp_path, 2, path, "--save_every", 0.2)
    while not list(folder.glob("shared-*/checkpoint/work.npz")) and processes[0].poll() is None:
        time.sleep(0.02)
    killed(processes, victim)
    [partial] = folder.glob("shared-*.partial")
    whole = alone(path, tmp_path / "whole")
    for count in (1, 2):
        copy = shutil.copytree(partial, tmp_path / str(count) / "runs" / partial.name)
        if count == 1:
            words = [sys.executable, "-m", "truncgauss.cli", "run", "--resume", copy]
            subprocess.run(list(map(str, words)), check=True, timeout=LIMIT, capture_output=True)
        else:
            found = ends(launch(copy.parents[1], count, "--resume", copy))
            assert [code for code, _, _ in found] == [0, 0], found
        resumed = result(copy.parent)[0]
        assert resumed.keys() == whole.keys()
        for name in ("normal", "one", "two", "errors", "reached"):
            rtol = 1e-8 if name == "errors" else 1e-10
            np.testing.assert_allclose(resumed[name], whole[name], rtol=rtol, err_msg=name)
