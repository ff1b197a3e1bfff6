"""The script that compares a GPU with the CPU, on the only device that is sure to be here."""

import collections
import pathlib
import re
import subprocess
import sys

import jax
import pytest

import truncgauss as tg

SCRIPT = pathlib.Path(__file__).parents[1] / ".ci" / "bench_gpu.py"


def benchmark(*words):
    return subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True)


def test_a_missing_device_is_told():
    done = benchmark("--device", "nowhere")
    assert done.returncode == 2 and "truncgauss[cuda12]" in done.stderr


@pytest.mark.slow
def test_the_cpu_agrees_with_itself():
    done = benchmark("--device", "cpu", "--dimensions", "1")
    rows = [line.split() for line in done.stdout.splitlines()[2:10]]
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row[:4] for row in rows] == [
        [task, dtype, d, points]
        for dtype in ("float64", "float32")
        for d, points in (("5", "32"), ("1", "exact"))
        for task in ("value", "gradient")
    ]
    assert all(float(row[5]) > 0 and float(row[-1]) < 1e-5 for row in rows)


def for_cuda(d, n, gradient):
    """Counts of loops, branches and calls in the program of n problems lowered for CUDA."""

    def value(loc, matrix, low, high):
        return tg.log_probability(loc, matrix, tg.Box(low, high)).log_prob

    one = jax.value_and_grad(value, argnums=(0, 1, 2, 3)) if gradient else value
    parts = [(n, d), (n, d, d), (n, d), (n, d)]
    shapes = [jax.ShapeDtypeStruct(shape, float) for shape in parts]
    program = jax.export.export(jax.jit(jax.vmap(one)), platforms=["cuda"])(*shapes)
    text = program.mlir_module()
    return collections.Counter(
        re.findall(r"stablehlo\.(?:while|infeed|outfeed|send|recv)|custom_call @\w+", text)
    )


# Loops: in two dimensions the strips of the quadrature; from four dimensions on the plan and the
# points. None grows with the dimension or the batch, and nothing goes back to the host's Python.
@pytest.mark.quick("1-0")
@pytest.mark.parametrize(("d", "loops"), [(1, 0), (2, 1), (3, 4), (5, 11)])
def test_batches_for_cuda_have_few_loops_and_no_callback(d, loops):
    for gradient in (False, True):
        counts = for_cuda(d, 4, gradient)
        assert counts["stablehlo.while"] <= loops, gradient
        assert set(counts) <= {"custom_call @cusolver_potrf_ffi", "stablehlo.while"}, gradient
        if d == 5 and not gradient:
            assert for_cuda(16, 64, False) == counts
