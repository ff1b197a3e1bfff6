"""Both precisions and four host devices for every test."""

import ctypes
import gc
import importlib.metadata
import os
import pathlib
import resource
import tempfile
import time

# Before JAX and NumPy are imported by anyone: subprocesses of the tests inherit it too.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Threads of NumPy's BLAS wait for their small products in a loop, on the cores of the other worker.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tests change the source of functions in place, which no kept program knows.
os.environ["TRUNCGAUSS_CACHE"] = "off"
# Nearly all of the time of a test goes into compiling, most of that into fusions which save
# microseconds. `make test-slow` and `make test-all` compile as users do, with XLA_FLAGS set empty.
# A flag that this XLA does not know would be fatal.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_llvm_disable_expensive_passes=true --xla_backend_optimization_level=0"
    + " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    * importlib.metadata.version("jaxlib").startswith("0.10."),
)
# Devices of one host wait for each other on an overloaded machine, where XLA by default ends the
# process after 40 seconds.
os.environ["XLA_FLAGS"] += " --xla_cpu_collective_call_terminate_timeout_seconds=86400"

import importlib.util

import hypothesis
import jax
import pytest

# The same examples every time; `--hypothesis-profile=default` looks for others.
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.load_profile("repeatable")

# Compiled programs are kept for the next session, unless the environment names another place: the
# small ones too, since to read one takes a tenth of the time in which it is compiled.
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
KEPT, DAYS = CACHE / "truncgauss" / "tests", 3
try:
    KEPT.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=KEPT).close()
except OSError:  # a home that cannot be written to: nothing is kept
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", "")
for option, value in {
    "jax_compilation_cache_dir": str(KEPT),
    "jax_persistent_cache_min_compile_time_secs": "0",
}.items():
    if option.upper() not in os.environ:
        os.environ[option.upper()] = value  # for subprocesses
        jax.config.update(option, float(value) if option.endswith("secs") else value)

jax.config.update("jax_num_cpu_devices", 4)
# The suite is written for float64; `make test-float32` runs what holds in either precision.
jax.config.update("jax_enable_x64", os.environ.get("JAX_ENABLE_X64", "1") == "1")


def pytest_configure(config):
    """Remove compiled programs of some days ago, most of them from code that has changed since."""
    if hasattr(config, "workerinput"):
        return
    for path in KEPT.glob("*-cache"):
        if path.stat().st_mtime < time.time() - DAYS * 86400:
            path.unlink(missing_ok=True)


# Processor seconds, by `make test-times`, of tests and cases of the full layer, above 9 of
# the slow one, and their names.
LONG = pathlib.Path(__file__).with_name("long_tests.txt").read_text().splitlines()
LONG = {name: int(seconds) for seconds, name in (line.split(maxsplit=1) for line in LONG)}


def pytest_itemcollected(item):
    """Of a test with `quick`, the cases that are not named there are of the full layer; what takes
    long is of that or of the slow one."""
    if seconds := LONG.get(item.nodeid):
        item.add_marker("slow" if seconds > 9 else "full")
    for mark in item.iter_markers("quick"):
        if item.callspec.id not in mark.args:
            item.add_marker("full")


def pytest_ignore_collect(collection_path):
    """The examples of a module whose package is absent cannot be run."""
    extra = collection_path.stem
    if extra in ("sklearn", "torch") and importlib.util.find_spec(extra) is None:
        return True
    return None


# Tracing makes many objects that stay: Python's collector would go through them again and again.
gc.set_threshold(500_000, 5, 5)
# A process keeps as many programs, fewer where they are large.
PROGRAMS, FEWEST, BYTES = 600, 50, 1_400_000_000
STATM = pathlib.Path("/proc/self/statm")  # of Linux


@pytest.fixture(autouse=True, scope="session")
def compiled_soonest():
    """Programs that loop over points too, for which the library asks for a higher level."""
    from truncgauss.arrays import compiling

    if "--xla_backend_optimization_level=0" in os.environ["XLA_FLAGS"]:
        for effort in (compiling.MEDIUM, compiling.SINGLE):
            effort["xla_backend_optimization_level"] = 0


@pytest.fixture(scope="session")
def compilations():
    """The events of compilation since this process last forgot its programs."""
    events = []
    listen = lambda event, *_, **__: events.append(event) if "backend_compile" in event else None
    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture(autouse=True)
def bounded_memory(compilations):
    """The programs of one test are kept for the next, until they have become many."""
    yield
    pages = int(STATM.read_text().split()[1]) if STATM.exists() else 0
    large = len(compilations) > FEWEST and pages * resource.getpagesize() > BYTES
    if large or len(compilations) > PROGRAMS:
        compilations.clear()
        gc.unfreeze()
        jax.clear_caches()
        gc.collect()
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc keeps what is freed
            trim(0)


@pytest.fixture(autouse=True, scope="module")
def frozen_objects():
    """What a file leaves behind is not gone through again by Python's collector."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def doctest_names(doctest_namespace):
    """The names that every docstring example may use."""
    import jax.numpy as jnp
    import optax

    import truncgauss as tg

    doctest_namespace.update(jax=jax, jnp=jnp, optax=optax, tg=tg)
