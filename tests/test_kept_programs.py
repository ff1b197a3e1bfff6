"""Programs on disk: the same numbers from them, and none where another program could be meant."""

import dataclasses
import functools
import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import truncgauss as tg
from truncgauss.arrays import compiling, kept_programs
from truncgauss.special import truncated_log_mass, truncated_mean

FULL = pytest.mark.full
# Five dimensions have a Cholesky factor, whose kernel a program that was read must find.
SCRIPT = """
import jax, sys
import numpy as np
import truncgauss as tg
compiled = []
listen = lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
jax.monitoring.register_event_duration_secs_listener(listen)
jax.config.update("jax_enable_x64", sys.argv[1] == "64")
covariance = 0.5 * np.eye(5) + 0.5
covariance[0, 1] = covariance[1, 0] = 0.3
box = tg.Box([-1.0] * 5, [2.0, 1.0, 1.0, 3.0, np.inf])
value = lambda loc: tg.log_probability(loc, covariance, box).log_prob
fit = tg.fit_truncated_normal(np.linspace(0.1, 1.0, 20), low=0.0)
print(value(np.zeros(5)), jax.grad(value)(np.zeros(5)), fit.loc, fit.standard_errors)
print(len(compiled))
"""


def start(folder, precision="64", script=SCRIPT):
    environment = {**os.environ, "TRUNCGAUSS_CACHE": str(folder), "JAX_COMPILATION_CACHE_DIR": ""}
    return subprocess.Popen(
        [sys.executable, "-c", script, precision],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def lines(process):
    out, error = process.communicate()
    assert process.returncode == 0, error
    *numbers, compiled = out.splitlines()
    return numbers, int(compiled)


@FULL
@pytest.mark.parametrize("precision", ["64", pytest.param("32", marks=pytest.mark.slow)])
def test_a_later_process_compiles_nothing_that_was_kept(precision, tmp_path):
    """Two at once first, of which each may read what the other writes; then a third."""
    both = [lines(process) for process in [start(tmp_path, precision), start(tmp_path, precision)]]
    files = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    numbers, compiled = lines(start(tmp_path, precision))
    assert [numbers, numbers] == [each for each, _ in both]
    assert lines(start("off", precision))[0] == numbers
    assert files == {path.name: path.stat().st_ino for path in tmp_path.iterdir()}  # none written
    assert sum(count - compiled for _, count in both) >= len(files) > 3


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A folder for programs; JAX's own cache, of which they would come, is off."""
    monkeypatch.setenv(kept_programs.SETTING, str(tmp_path))
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield tmp_path
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


def fresh():
    """The mean of a normal variable within [0, high] as a process has it that has not called it."""
    compiled = compiling.Compiled(truncated_mean, compiling.closed_form)
    return lambda high: compiled(0.0, 1.0, 0.0, high)


def test_a_program_is_read_again(kept, monkeypatch):
    x = np.linspace(0.1, 3.0, 5)
    first = fresh()(x)
    (path,) = kept.iterdir()
    monkeypatch.setattr(compiling.Compiled, "program", None)  # so that nothing is compiled
    monkeypatch.setattr(kept_programs, "ready_kernels", None)  # nor LAPACK, which it does without
    np.testing.assert_array_equal(fresh()(x), first)
    assert list(kept.iterdir()) == [path]


def test_a_program_that_jax_keeps_too_is_kept(tmp_path, monkeypatch):
    """What JAX read from its own cache cannot be written again: its functions are missing."""
    x, values = np.linspace(0.1, 3.0, 5), []
    for folder in ("off", tmp_path / "a", tmp_path / "b"):  # JAX's cache is on in these tests
        monkeypatch.setenv(kept_programs.SETTING, str(folder))
        values += [fresh()(x), fresh()(x)]
    for value in values:
        np.testing.assert_array_equal(value, values[0])
    assert [len(list((tmp_path / name).iterdir())) for name in "ab"] == [1, 1]


@pytest.mark.parametrize("content", [b"", b"no pickle", "cut off"])
def test_a_file_that_cannot_be_read_is_compiled_again(content, kept):
    first = fresh()(1.0)
    (path,) = kept.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-100] if content == "cut off" else content)
    assert fresh()(1.0) == first
    assert len(path.read_bytes()) == len(whole)


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(kept_programs.SETTING, str(tmp_path / "file" / "folder"))
    assert fresh()(np.inf) == pytest.approx((2 / np.pi) ** 0.5)


def test_what_was_used_longest_ago_makes_room(kept, monkeypatch):
    monkeypatch.setattr(kept_programs, "MOST_BYTES", 250)
    for name, age in {"old": 30, "used": 10, "older": 40}.items():
        (kept / name).write_bytes(b"0" * 100)
        os.utime(kept / name, (0, time.time() - age))
    kept_programs.make_room(kept)
    assert sorted(path.name for path in kept.iterdir()) == ["old", "used"]


def key(*arrays, fixed=(), function=truncated_mean, options=()):
    return kept_programs.key_of(function, dict(options), fixed, arrays)


@dataclasses.dataclass(frozen=True)
class Stranger:
    """A class of a user, of which nothing is known."""

    number: float = 1.0


def test_everything_that_determines_a_program_is_in_its_key(monkeypatch):
    x = np.zeros(3)
    keys = [
        key(x),
        key(x.astype(np.float32)),
        key(x[None]),
        key(0.0),
        key(jnp.zeros(())),
        key([x]),
        key(x, fixed=(1,)),
        key(x, fixed=(1.0,)),
        key(x, fixed=(True,)),
        key(x, fixed=(jax.nn.softplus,)),
        key(x, options={"xla_backend_optimization_level": 1}),
        key(x, function=truncated_log_mass),
        key(tg.Automatic(), x),
        key(tg.Automatic(rtol=1e-3), x),
        key(tg.Box(x, x + 1.0)),
        key(tg.SoftMonteCarlo(edge=tg.Tanh(0.5))),
        key(tg.SoftMonteCarlo(edge=tg.Probit(0.5))),
    ]
    with jax.default_matmul_precision("highest"):
        keys.append(key(x))
    with jax.enable_x64(False):
        keys.append(key(x))
    monkeypatch.setattr(kept_programs, "surroundings", lambda: "another source")
    keys.append(key(x))
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    "fixed",
    [
        lambda x: x,
        functools.wraps(jax.nn.softplus)(lambda x: x),
        jax.grad(jax.nn.softplus),
        jax.jit(truncated_mean),
        Stranger(),
        tg.Selection(lambda x: jax.nn.sigmoid(x[0]), 1),
        tg.SoftMonteCarlo(edge=lambda margin: jax.nn.sigmoid(margin)),
        np.zeros(2),
    ],
)
def test_what_a_user_wrote_is_not_kept(fixed):
    for given in ({"fixed": (fixed,)}, {"fixed": ((1, {"a": fixed}),)}):
        with pytest.raises(kept_programs.Unknown):
            key(0.0, **given)


def test_functions_and_classes_of_a_user_within_arrays_are_not_kept():
    soft = tg.SoftMonteCarlo(edge=lambda margin: jax.nn.sigmoid(margin))
    selection = tg.Selection(lambda x: jax.nn.sigmoid(x[0]), 1)
    for made in (soft, selection):
        with pytest.raises(kept_programs.Unknown):
            key(made)
    with pytest.raises(kept_programs.Unknown):
        key(0.0, function=lambda x: x)
    if len(jax.local_devices()) > 1:
        with pytest.raises(kept_programs.Unknown):
            key(jax.device_put(0.0, jax.local_devices()[1]))


def test_nothing_is_kept_where_jax_looks_for_nan(kept):
    with jax.debug_nans(True):
        fresh()(1.0)
    with jax.disable_jit():
        fresh()(1.0)
    assert not list(kept.iterdir())


def test_off_keeps_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(kept_programs.SETTING, "off")
    assert kept_programs.folder() is None
    fresh()(1.0)
    assert not list(tmp_path.iterdir())
    monkeypatch.delenv(kept_programs.SETTING)
    assert kept_programs.folder() == tmp_path / "truncgauss" / "programs"
