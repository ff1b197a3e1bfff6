"""All that computes gives the same numbers on 1, 2, 4 and 8 devices, each in a process of its own.

Numbers of rows and replicates are primes, so that every share is padded.
"""

import os
import pathlib
import subprocess
import sys

import device_work
import jax
import numpy as np
import pytest

import truncgauss as tg

SCRIPT = pathlib.Path(device_work.__file__)
LIMIT = device_work.LIMIT + 30
CHEAP = (
    "--xla_llvm_disable_expensive_passes=true --xla_backend_optimization_level=0 "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_collective_call_terminate_timeout_seconds=86400"
)
# Newton steps end where they gain nothing that a reader would see; on the way rounding may decide
# whether one more is made.
# Standard errors of moments are differences of replicates: what rounding leaves of the moments,
# several times over, since they are widened by the square of the differences' skewness.
MORE = 8.0
OF_MOMENTS = {
    f"{name}/{error}": f"{name}/{moment}"
    for name in ("moments", "moments of one problem")
    for error, moment in ((2, 0), (3, 1))
}
ENDS = {"fit": 1e-10, "fit_observations": 1e-8, "fit_mixture": 1e-7, "fit_shift": 1e-8}


def started(num_devices, dtype, names, path):
    """The results of a process with so many devices."""
    words = [sys.executable, str(SCRIPT), str(path), *names]
    environment = {
        **os.environ,
        "XLA_FLAGS": CHEAP,
        "JAX_NUM_CPU_DEVICES": str(num_devices),
        "JAX_ENABLE_X64": str(int(dtype == "float64")),
    }
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(path))


def assert_same(one, many, tolerance, ends=True):
    assert one.keys() == many.keys()
    for place, expected in one.items():
        name, part = place.rsplit("/", 1)
        if part == "devices":
            continue
        allowed = max(tolerance, ENDS.get(name, 0.0))
        allowed *= MORE if place in OF_MOMENTS else 1.0
        size = one[OF_MOMENTS.get(place, place)]
        scale = np.abs(size[np.isfinite(size)]).max(initial=0.0)
        np.testing.assert_allclose(many[place], expected, 0.0, allowed * scale, err_msg=place)


@pytest.mark.full
def test_a_process_with_two_devices_gives_the_number_of_one(tmp_path):
    names = ["soft", "fit_regression"]
    found = {n: started(n, "float64", names, tmp_path / f"{n}.npz") for n in (1, 2)}
    assert_same(found[1], found[2], 1e-12)


def test_no_collective_stands_in_a_loop(name="gradient"):
    """A loop of a solver that asks the other devices would wait for the slowest in every round."""
    context, function, argument = device_work.WORK[name]
    with context(tg.parallel.device_mesh(3)):
        text = jax.jit(function).lower(argument).compile().as_text()
    assert "while" in text
    assert not collectives_in_loops(text)


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    ["value", "propagation", "Hessian", "log_likelihood", "moments of one problem"],
)
def test_no_collective_stands_in_any_loop(name):
    test_no_collective_stands_in_a_loop(name)


COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")


def collectives_in_loops(text):
    """Collectives of a compiled program that its `while` loops reach, by name."""
    bodies, name = {}, ""
    for line in text.splitlines():
        if line and not line[0].isspace() and line.rstrip().endswith("{"):
            name = line.removeprefix("ENTRY ").split()[0].lstrip("%")
        bodies.setdefault(name, []).append(line)
    code = {name: "\n".join(lines[1:]) for name, lines in bodies.items()}
    called = {
        name: {other.strip("%,(){}") for other in body.replace("=", " ").split()} & code.keys()
        for name, body in code.items()
    }
    waiting = [
        word.lstrip("%,").rstrip(",")
        for body in code.values()
        for line in body.splitlines()
        if " while(" in line
        for word in line.replace("=", " ").split()
        if word.lstrip("%,").rstrip(",") in code
    ]
    reached = set()
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting.extend(called[name])
    return [kind for name in reached for kind in COLLECTIVES if f" {kind}" in code[name]]


def test_a_collective_in_a_loop_is_found():
    mesh = tg.parallel.device_mesh(2)
    spread = jax.NamedSharding(mesh, jax.P(tg.parallel.AXIS))
    longest = lambda x: jax.lax.while_loop(lambda x: x.max() < 9.0, lambda x: 2.0 * x, x)
    text = jax.jit(longest).lower(jax.device_put(np.ones(4), spread)).compile().as_text()
    assert "all-reduce" in collectives_in_loops(text)


# ---------------------------------------------------------------- every count


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    """The results of one device, by dtype, computed once."""
    folder, found = tmp_path_factory.mktemp("one_device"), {}

    def results(dtype, names):
        key = dtype, tuple(names)
        if key not in found:
            found[key] = started(1, dtype, names, folder / f"{len(found)}.npz")
        return found[key]

    return results


CASES = [(2, "float64"), (4, "float64"), (8, "float64"), (8, "float32")]
PARTS = {
    "numbers": [name for name in device_work.WORK if "fit" not in name],
    "fits": [name for name in device_work.WORK if "fit" in name],
}


@pytest.mark.slow
@pytest.mark.parametrize(("num_devices", "dtype"), CASES)
@pytest.mark.parametrize("part", PARTS)
def test_every_count_of_devices_gives_the_numbers_of_one(
    part, num_devices, dtype, one_device, tmp_path
):
    names, tolerance = PARTS[part], 1e-12 if dtype == "float64" else 1e-6
    if dtype == "float32" and part == "fits":
        pytest.skip("fits work in float64 whatever the dtype of their data")
    many = started(num_devices, dtype, names, tmp_path / "many.npz")
    assert_same(one_device(dtype, names), many, tolerance)
    for name in names:
        if "fit" not in name and name != "default":
            assert many[f"{name}/devices"] == num_devices, name
