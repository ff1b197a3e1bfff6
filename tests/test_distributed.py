"""Several processes share a run: the numbers of one, one folder, and an end if one of them dies.

Real processes on this host, which meet on the loopback interface. Each has a hard time limit.
"""

import os
import signal
import socket
import subprocess
import sys
import time

import device_work
import numpy as np
import pytest

import truncgauss as tg

LIMIT = 1200  # seconds for any process here
STOPPED = 60  # seconds within which processes stop after another one was killed
EXPERIMENT = '''\
"""Work that is spread over rows."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import optax

import truncgauss as tg
from truncgauss import config


class Settings(config.Experiment):
    spreads: ClassVar[bool] = True
    mode: str
    steps: int = 30


def run(settings):
    box, soft = tg.Box([-1.0, -1.0], [1.0, 1.5]), tg.SoftMonteCarlo(num_samples=64)
    means = jnp.linspace(-1.0, 1.0, 8)[:, None] + jnp.zeros(2)
    log_prob = lambda loc: tg.log_probability(loc, jnp.eye(2), box, soft).log_prob
    found = {"processes": jax.process_count(), "devices": jax.device_count()}
    if settings.mode == "differ":
        means = means + jax.process_index()
    if settings.mode == "fail" and jax.process_index() == 1:
        raise KeyError("a bug on one process")
    found["rows"] = log_prob(means)
    if settings.mode == "rows":
        return found | {"summary": ["done"]}
    loss = jax.tree_util.Partial(lambda means, loc: -log_prob(means + loc).sum(), means)
    fit = tg.minimize(loss, jnp.full(2, 0.3), num_steps=settings.steps, progress=False,
                      tolerance=0.0, optimizer=optax.sgd(1e-6))
    return found | {"params": fit.params, "trace": fit.loss_trace, "summary": ["done"]}


def plot(results):
    from truncgauss import plotting

    return plotting.figure()[0]
'''


def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(*words, **environment):
    """A process of Python."""
    return subprocess.Popen(
        list(map(str, [sys.executable, *words])),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "1", **environment},
    )


def launch(folder, count, *words, configs=None):
    """Processes of one run, which write to `folder`; with the configs of each, or with words."""
    meeting = f"127.0.0.1:{port()}"
    shared = ["--distributed", "--coordinator", meeting, "--num_processes", count]
    shared += ["--runs", folder / "runs", "--process_index"]
    each = configs or [words] * count
    command = ["-m", "truncgauss.cli", "run"]
    return [start(*command, *words, *shared, index) for index, words in enumerate(each)]


def ends(processes, limit=LIMIT):
    """Exit codes and what was printed; whatever happens, no process is left behind."""
    until, found = time.monotonic() + limit, []
    try:
        for process in processes:
            out, err = process.communicate(timeout=max(until - time.monotonic(), 0.1))
            found.append((process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return found


def killed(processes, victim):
    """Kill one of two processes; the other must end in time, and with an error that says why."""
    processes[victim].send_signal(signal.SIGKILL)
    began = time.monotonic()
    code, _, err = ends(processes)[1 - victim]
    assert time.monotonic() - began < STOPPED
    assert code not in (0, None) and ("another one" in err or "coordination" in err.lower()), err


@pytest.fixture
def config(tmp_path):
    (tmp_path / "shared.py").write_text(EXPERIMENT)

    def written(mode, **more):
        path = tmp_path / f"{mode}.yaml"
        lines = {"experiment": "shared.py", "seed": 1, "mode": mode, **more}
        path.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
        return path

    return written


def result(folder, name="shared"):
    [run] = folder.glob(f"{name}-*")
    assert not run.name.endswith(".partial")
    return dict(np.load(run / "result.npz")), run


def alone(path, folder, name="shared"):
    """The results of one process."""
    words = [sys.executable, "-m", "truncgauss.cli", "run", path, "--runs", folder / "runs"]
    subprocess.run(list(map(str, words)), check=True, timeout=LIMIT, capture_output=True)
    return result(folder / "runs", name)[0]


# ---------------------------------------------------------------- where to meet


@pytest.mark.full
def test_half_of_an_address_and_no_cluster_are_refused():
    for given, environment, message in (
        ((), {}, "of no cluster"),
        ((), {"SLURM_JOB_ID": "5"}, "of no cluster"),
        (("here:99",), {}, "belong together"),
        (("here", 2, 1), {}, "HOST:PORT, got 'here'"),
        (("here:99", 2, 2), {}, "process_id=2, num_processes=2"),
    ):
        code, err = joined(*given, environment=environment)
        assert code == 2 and message in err, err


def test_one_process_agrees_with_itself():
    tg.parallel.agreed("anything", (1.0, lambda: None))


# ---------------------------------------------------------------- shared runs


@pytest.mark.full
def test_two_processes_give_the_numbers_of_one_and_write_one_folder(config, tmp_path):
    path = config("rows")
    found = ends(launch(tmp_path / "two", 2, path))
    assert [code for code, _, _ in found] == [0, 0], found
    assert "process 1 of 2" in found[1][2] and "run folder" in found[0][1]
    assert "run folder" not in found[1][1]
    many = result(tmp_path / "two" / "runs")[0]
    means, box = np.linspace(-1.0, 1.0, 8)[:, None] + np.zeros(2), tg.Box([-1.0] * 2, [1.0, 1.5])
    one = tg.log_probability(means, np.eye(2), box, tg.SoftMonteCarlo(num_samples=64))
    np.testing.assert_allclose(many["rows"], one.log_prob, rtol=1e-12)
    assert many["processes"] == many["devices"] == 2


@pytest.mark.full
@pytest.mark.parametrize(
    ("modes", "code", "message"),
    [
        (("differ", "differ"), 2, "the arguments of process(es) 1 differ"),
        (("rows", "fit"), 2, "the settings of process(es) 1 differ"),
        (("fail", "fail"), 1, "a bug on one process"),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_what_differs_or_fails_on_one_process_ends_all(modes, code, message, config, tmp_path):
    found = ends(launch(tmp_path, 2, configs=[[config(mode)] for mode in modes]))
    assert message in found[1][2] and found[1][0] == code
    assert found[0][0] not in (0, None) and (code == 1 or message in found[0][2])
    assert not list((tmp_path / "runs").glob("shared-*Z"))


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_others_and_the_run_goes_on_with_any_number(
    victim, config, tmp_path
):
    path, folder = config("long", steps=400), tmp_path / "runs"
    processes = launch(tmp_path, 2, path, "--save_every", 0.2)
    until = time.monotonic() + LIMIT
    while not list(folder.glob("shared-*/checkpoint/work.npz")) and time.monotonic() < until:
        time.sleep(0.05)
    killed(processes, victim)
    [partial] = folder.glob("shared-*.partial")
    resumed = subprocess.run(
        list(map(str, [sys.executable, "-m", "truncgauss.cli", "run", "--resume", partial])),
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert resumed.returncode == 0, resumed.stderr
    many, one = result(folder)[0], alone(path, tmp_path / "one")
    np.testing.assert_allclose(many["trace"], one["trace"], rtol=1e-12)
    assert len(many["trace"]) == 401


@pytest.mark.slow
def test_processes_do_the_work_of_one():
    """The work of the tests of several devices."""
    names = "draws", "moments", "default", "log_likelihood", "fit", "fit_shift", "fit_mixture"
    words, meeting = (device_work.__file__, *names, "dense blocks"), f"127.0.0.1:{port()}"
    joining = (f"{meeting} 2 {index}" for index in range(2))
    found = ends([start(*words, JOIN=where, JAX_ENABLE_X64="1") for where in joining])
    assert all(code == 0 for code, _, _ in found), found


def joined(*address, environment=None):
    """The exit code, and what was said, of a process that waits for others for two seconds."""
    code = (
        "from truncgauss import cli\nfrom truncgauss.execution import distributed\n"
        "cli._act = lambda words: print(distributed.join(*eval(words[0]), patience=2)) or 0\n"
        "cli.console()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, repr(address)], capture_output=True, text=True, timeout=900,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.full
def test_a_lone_process_ends_in_a_line():
    cluster = {
        "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911",
    }  # fmt: skip
    slurm = {
        "SLURM_JOB_ID": "5", "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2",
        "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
    }  # fmt: skip
    for address, environment, words in (
        ((f"127.0.0.1:{port()}", 2, 0), None, "process 0 of 2"),
        ((f"127.0.0.1:{port()}", 2, 1), None, "process 1 of 2"),
        ((f"127.0.0.1:{port()}", 2, 1), slurm, "process 1 of 2"),  # the given numbers hold
        ((), cluster, "see what the others said"),
        ((), slurm, "see what the others said"),
    ):
        code, err = joined(*address, environment=environment)
        line = err.splitlines()[-1]
        assert code == 1 and "not all processes came within 2 seconds" in line, err
        assert words in line.lower()


def test_a_port_that_is_taken_is_refused():
    with socket.create_server(("", 0)) as taken:
        meeting = f"127.0.0.1:{taken.getsockname()[1]}"
        code, err = joined(meeting, 2, 0)
    assert code == 2 and "cannot listen at port" in err and "in use" in err
