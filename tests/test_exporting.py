"""Exported log probabilities and likelihoods are those of the package, and run without it."""

import collections
import importlib.util
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg

needs_flatbuffers = pytest.mark.skipif(
    importlib.util.find_spec("flatbuffers") is None, reason="flatbuffers is not installed"
)
ALONE = """
import sys
sys.modules["truncgauss"] = None  # an import of it fails
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
folder = sys.argv[1]
with open(folder + "/artefact", "rb") as file:
    artefact = jax.export.deserialize(file.read())
with np.load(folder + "/given.npz") as given:
    arguments = [given[name] for name in given.files]
value, stderr = artefact.call(*arguments)
slopes = jax.grad(lambda *x: artefact.call(*x)[0].sum(), tuple(range(len(arguments))))(*arguments)
np.savez(folder + "/found.npz", value, stderr, *slopes)
print(sorted(artefact.platforms))
"""


def alone(folder, artefact, arguments):
    """Value, stderr and gradients, computed from the file by a program without this package."""
    (folder / "artefact").write_bytes(artefact.serialize(vjp_order=1))
    np.savez(folder / "given.npz", *arguments)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with np.load(folder / "found.npz") as found:
        return done.stdout.strip(), [found[name] for name in found.files]


def problems(d, n):
    """n Gaussians in d dimensions with limits of their own."""
    rng = np.random.default_rng(d)
    root = 0.3 * rng.normal(size=(n, d, d)) + np.eye(d)
    low, high = rng.uniform(-2.0, -0.5, (n, d)), rng.uniform(0.5, 2.0, (n, d))
    high[:, 0] = np.inf
    return [rng.normal(size=(n, d)), root @ root.transpose(0, 2, 1), low, high]


def test_an_artefact_takes_any_number_of_problems():
    artefact = tg.export(tg.Box([0.0], [jnp.inf]), jnp.zeros(1), jnp.eye(1))
    assert artefact.platforms == ("cpu", "cuda")
    for n in (1, 3):
        given = problems(1, n)
        log_prob, stderr = artefact.call(*given)
        expected = tg.log_probability(given[0], given[1], tg.Box(*given[2:]), tg.Exact())
        np.testing.assert_allclose(log_prob, expected.log_prob, rtol=1e-13)
        np.testing.assert_array_equal(stderr, 0.0)


def test_what_cannot_be_exported_is_said():
    box = tg.Box([0.0, 0.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="one typical problem, got leading axes"):
        tg.export(box, jnp.zeros((3, 2)), jnp.eye(2))
    with pytest.raises(ValueError, match="one typical Gaussian"):
        tg.export(tg.Observations.exact([0.5, 1.0]), jnp.zeros(2), jnp.eye(2))
    with pytest.raises(ValueError, match="Exact"):
        half = tg.Selection(lambda x: x[..., 0] > 0, 2)
        tg.export(half, jnp.zeros(2), jnp.eye(2), tg.Exact())


def for_cuda(d, n, gradient):
    """Counts of loops, branches and calls in the program of n problems lowered for CUDA."""

    def value(loc, matrix, low, high):
        return tg.log_probability(loc, matrix, tg.Box(low, high)).log_prob

    one = jax.value_and_grad(value, argnums=(0, 1, 2, 3)) if gradient else value
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in problems(d, n)]
    program = jax.export.export(jax.jit(jax.vmap(one)), platforms=["cuda"])(*shapes)
    text = program.mlir_module()
    return collections.Counter(
        re.findall(r"stablehlo\.(?:while|infeed|outfeed|send|recv)|custom_call @\w+", text)
    )


# Loops: in two dimensions the strips of the quadrature; from four dimensions on the plan and the
# points. None grows with the dimension or the batch, and nothing goes back to the host's Python.
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize(("d", "loops"), [(1, 0), (2, 1), (3, 4), (5, 11)])
def test_batches_for_cuda_have_few_loops_and_no_callback(d, loops, gradient):
    counts = for_cuda(d, 4, gradient)
    assert counts.pop("stablehlo.while", 0) <= loops
    assert set(counts) <= {"custom_call @cusolver_potrf_ffi"}


def test_programs_for_cuda_do_not_grow_with_dimension_or_batch():
    assert for_cuda(16, 64, False) == for_cuda(5, 4, False)


@pytest.mark.slow  # compiles derivatives twice
@needs_flatbuffers
def test_a_log_probability_runs_without_the_package(tmp_path):
    given = problems(5, 4)
    method, typical = tg.Separation(64, 4), [x[0] for x in given]
    box = tg.Box(*typical[2:])
    artefact = tg.export(box, *typical[:2], method)
    platforms, (value, stderr, *slopes) = alone(tmp_path, artefact, given)
    assert platforms == "['cpu', 'cuda']"
    held = method.hold(*typical[:2], box)

    def total(loc, matrix, low, high):
        found = tg.log_probability(loc, matrix, tg.Box(low, high), held)
        return found.log_prob.sum(), found

    expected, found = jax.grad(total, (0, 1, 2, 3), has_aux=True)(*map(jnp.asarray, given))
    np.testing.assert_allclose(value, found.log_prob, rtol=1e-12)
    np.testing.assert_allclose(stderr, found.stderr, rtol=1e-6)
    for one, other in zip(slopes, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    assert np.all(slopes[3][:, 0] == 0.0)  # of the infinite limit


@pytest.mark.slow  # compiles derivatives twice
@needs_flatbuffers
def test_a_likelihood_runs_without_the_package(tmp_path):
    rows = tg.Observations(  # exact, censored and an interval, seen above 0
        [[0.5], [1.0], [0.2]], [[0.5], [jnp.inf], [0.7]], region=tg.Box([0.0], [jnp.inf])
    )
    loc, matrix = problems(1, 2)[:2]
    artefact = tg.export(rows, loc[0], matrix[0], batch=2)
    _, (value, _, by_loc, by_matrix) = alone(tmp_path, artefact, [loc, matrix])
    assert value.shape == (2, 3)
    one = lambda m, s: tg.log_likelihood(rows, m, s).log_prob
    for k in range(2):
        np.testing.assert_allclose(value[k], one(loc[k], matrix[k]), rtol=1e-9)
        expected = jax.grad(lambda m, s: one(m, s).sum(), (0, 1))(loc[k], matrix[k])
        np.testing.assert_allclose(by_loc[k], expected[0], rtol=1e-6)
        np.testing.assert_allclose(by_matrix[k], expected[1], rtol=1e-6)
