"""Programs of little effort: the numbers of others, by any compiler's options."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from truncgauss.arrays import compiling

COSTS = {
    "LIGHT": compiling.Cost(1, loops=False),
    "MEDIUM": compiling.Cost(1, loops=True),
    "FULL": compiling.Cost(2 * compiling.MOST_MEDIUM),
}

# Of a process without the flags of these tests, which says nothing of what takes long.
USER = {
    "JAX_PLATFORMS": "cpu", "PATH": "", "PYTHONPATH": ".", "TRUNCGAUSS_PROGRESS": "0",
    "TRUNCGAUSS_CACHE": "off",  # what an earlier process has kept is not compiled
}  # fmt: skip


@pytest.fixture
def compiler_without(monkeypatch):
    """Replace the options by some of which this compiler does not know the one that is named."""

    def replace(name):
        for effort in COSTS:
            monkeypatch.setattr(compiling, effort, getattr(compiling, effort) | {name: False})
        compiling.accepted_names.cache_clear()

    yield replace
    compiling.accepted_names.cache_clear()


@pytest.mark.parametrize("effort", COSTS)
def test_options_that_the_compiler_does_not_know_are_left_out(effort, compiler_without):
    known = compiling.accepted_names()
    assert "xla_backend_optimization_level" in known
    compiler_without("xla_cpu_of_another_release")
    assert compiling.accepted_names() == known
    assert compiling.effort_of(COSTS[effort]) is getattr(compiling, effort)
    program = compiling.Compiled(lambda x: jnp.tanh(x) + 1, cost=lambda x: COSTS[effort])
    assert program(np.float64(0.0)) == 1.0
    staged = jax.jit(lambda x: x + program(np.ones(3)))
    np.testing.assert_allclose(staged(0.0), np.tanh(1.0) + 1)


def test_another_error_of_the_compiler_is_not_taken_for_an_unknown_option():
    with pytest.raises(jax.errors.JaxRuntimeError):
        compiling.is_accepted({"xla_backend_optimization_level": "much"})


@pytest.mark.full
def test_programs_of_float32_do_not_end_the_process():
    """One that LLVM cannot compile at level 1 on processors with AVX-512."""
    lines = (
        "import numpy as np, truncgauss as tg",
        "root = np.random.default_rng(5).normal(size=(5, 10)) / 10**0.5",
        "box = tg.Box(np.full(5, -1.0), np.full(5, 2.0))",
        "print(tg.log_probability(np.linspace(-0.3, 0.4, 5), root @ root.T, box, df=3.0,",
        "                         noncentral='Kshirsagar').log_prob)",
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    found = subprocess.run(command, env=USER, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-1000:]
    assert abs(float(found.stdout) + 0.9627895) < 2e-5


@pytest.mark.full
def test_the_first_call_of_a_user():
    """In a process without the flags of these tests, on whichever JAX is installed."""
    lines = (
        "import truncgauss as tg",
        "low, high = [-1.0, 0.0], [1.0, float('inf')]",
        "print(tg.log_probability([0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]], tg.Box(low, high)).stderr)",
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(lines)],
        capture_output=True, text=True, env=USER,
    )  # fmt: skip
    assert (result.stderr, result.stdout.strip()) == ("", "0.0")


def covariance_of(d, *leading):
    root = np.random.default_rng(d).normal(size=(*leading, d, d + 2)) / d**0.5
    return root @ np.swapaxes(root, -1, -2)


def box_of(d):
    low = np.linspace(-1.5, 0.0, d)
    return tg.Box(low, np.where(np.arange(d) % 3 == 1, np.inf, low + 2.0))


FORMS = {
    "four": (np.zeros(4), covariance_of(4), box_of(4)),
    "particles": (np.zeros(5), covariance_of(5), box_of(5)),
    "two blocks": (np.zeros(40), covariance_of(40), box_of(40)),
    "single precision": tuple(
        jax.tree.map(np.float32, x) for x in (np.zeros(6), covariance_of(6), box_of(6))
    ),
    "rows": (np.linspace(-0.5, 0.5, 3)[:, None] + np.zeros(6), covariance_of(6), box_of(6)),
    "rows of covariances": (np.zeros(5), covariance_of(5, 3), box_of(5)),
    "many rows": (np.linspace(-1, 1, 200)[:, None] + np.zeros(4), covariance_of(4), box_of(4)),
    "a factor": (np.zeros(5), tg.ScaleTril(np.linalg.cholesky(covariance_of(5))), box_of(5)),
    "fewer half spaces": (
        np.zeros(6), covariance_of(6), tg.Polyhedron(np.eye(6)[:4] + 0.2, -1.0, 1.5)
    ),
    "more half spaces": (
        np.zeros(3), covariance_of(3), tg.Polyhedron(covariance_of(5)[:, :3], -1.0, 1.5)
    ),
    "a singular covariance": (
        np.zeros(5), np.linalg.multi_dot([c := covariance_of(7)[:5, :3], c.T]), box_of(5)
    ),
}  # fmt: skip
SITES = tg.Separation(num_points=64, num_replicates=4)
METHODS = {
    "four": tg.Automatic(rtol=0.005, max_draws=2**20),
    "rows": tg.Automatic(rtol=0.02),
    "particles": tg.SequentialMonteCarlo(num_particles=256, num_replicates=4),
    "rows of covariances": tg.Separation(num_points=48, num_replicates=3, twisted=False),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_programs_of_little_effort_give_the_numbers_of_others(form, monkeypatch):
    loc, covariance, region = FORMS[form]
    method = METHODS.get(form, SITES)

    def results():
        value = lambda loc: tg.log_probability(loc, covariance, region, method).log_prob.sum()
        slope = value(loc), jax.grad(value)(jnp.asarray(loc))
        if form not in ("two blocks", "many rows"):
            return slope
        return *slope, *tg.truncated_moments(loc, covariance, region, method)[:2]

    quick = results()
    monkeypatch.setattr(compiling.Compiled, "program", lambda self, effort: self.traced)
    rtol = 1e-4 if form == "single precision" else 1e-9
    for one, other in zip(quick, results()):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol)


TRACED = """
import jax
import truncgauss as tg
traces = []

@jax.jit
def program(x):
    traces.append(x)
    return tg.log_probability([0.0], [[1.0]], tg.Box(x - 1.0, x)).log_prob

for _ in range(2):
    program(jax.numpy.zeros(1))
print(len(traces))
"""


@pytest.mark.full
def test_a_program_that_is_the_first_to_use_the_library_is_traced_once():
    result = subprocess.run(
        [sys.executable, "-c", TRACED], capture_output=True, text=True, env=USER
    )
    assert result.stdout.strip() == "1", result.stderr


def test_each_kind_of_argument_has_its_program():
    """By shape, dtype and whether that is weak, as of `jax.jit`; values are of one kind."""
    double = compiling.Compiled(lambda x: 2 * x, cost=compiling.closed_form)
    arrays = np.ones(2), np.ones(2, np.float32), np.ones(3), jnp.ones(2), jnp.ones(2, np.float32)
    kinds = 1, 1.0, True, *arrays, jnp.asarray(1.0), jnp.asarray(np.float64(1.0))
    for count, argument in enumerate(kinds):
        assert len(double.ahead) == count
        for x in (argument, argument * 1):
            result, expected = double(x), jax.jit(lambda x: 2 * x)(x)
            assert jax.typeof(result) == jax.typeof(expected)
            np.testing.assert_array_equal(result, expected)


PROGRAMS = """
import jax, sys
import truncgauss as tg
jax.numpy.ones(3) + 1  # JAX has compiled before
try:
    print(tg.use_compilation_cache(*sys.argv[1:]))
except ValueError as error:
    sys.exit(str(error))
tg.log_probability([0.0], [[1.0]], tg.Box([0.0], [1.0]))
"""


@pytest.mark.quick("False")
@pytest.mark.parametrize("given", [True, False])
def test_a_user_keeps_small_programs_too(given, tmp_path):
    """Those of JAX's own threshold, a second, would be none here."""
    environment = dict(USER)
    if not given:
        environment["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path)
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAMS, *([str(tmp_path)] if given else [])],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert result.stdout.splitlines()[0] == str(tmp_path), result.stderr
    assert list(tmp_path.glob("*-cache"))


def test_a_folder_that_cannot_be_written_is_refused():
    with pytest.raises(PermissionError, match="/proc/nothing cannot be written; give another"):
        tg.use_compilation_cache("/proc/nothing")


def test_a_user_without_a_home_is_asked_for_a_folder():
    environment = {"JAX_PLATFORMS": "cpu", "PATH": "", "PYTHONPATH": ".", "HOME": "~"}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAMS], capture_output=True, text=True, env=environment
    )
    assert (result.returncode, "give folder=" in result.stderr) == (1, True)
