"""The birth of a NaN is found: primitive, operands, line, feeder, and which result it reaches."""

import inspect
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from truncgauss.diagnosis.nonfinite import first_nonfinite


def naive_sigmoid(x):
    return 1 / (1 + jnp.exp(-x))


def masked_root(x):
    return jnp.where(x > 0, jnp.sqrt(x), 0.0).sum()


def guarded(x):
    root = jax.lax.stop_gradient(jnp.sqrt(x))
    return x * jnp.where(x > 0, root, 1.0)


def written_down(x):
    return jnp.where(x > 0, x, jnp.nan)


def steep(x):
    return jnp.tanh(3.0 * x) + 2.0 * jnp.sin(1e7 * x)


SHIFTS = np.array([0.0, 1.0, -5.0, 1.0])


def chain(x):
    def body(carry, shift):
        carry = carry * x + shift
        return carry, jnp.log(carry)

    return jax.lax.scan(body, jnp.ones_like(x), SHIFTS)[1].sum()


def reverse(x):
    step = lambda carry, shift: (carry, naive_sigmoid(carry * shift))
    return jax.lax.scan(step, x, SHIFTS * 300)[1].sum()


def exploding(x):
    return jax.lax.scan(lambda carry, _: (carry * 10, None), x, None, length=50)[0]


@jax.custom_jvp
def wrong_slope(x):
    return jnp.sin(x)


wrong_slope.defjvp(lambda x, t: (wrong_slope(*x), jnp.log(x[0]) * t[0]))


@jax.custom_vjp
def wrong_pullback(x):
    return jnp.sin(x)


wrong_pullback.defvjp(lambda x: (jnp.sin(x), x), lambda x, t: (jnp.log(x) * t,))


def countdown(x):
    """Not differentiated: reverse mode has no rule for a while loop."""
    frozen = jax.lax.stop_gradient(x)
    return x + jax.lax.while_loop(lambda c: c > -2, lambda c: jnp.sqrt(c) - 1, frozen)


def solved(b):
    """A linear system, whose solver is the culprit."""
    root = lambda _, c: jnp.sqrt(c) / 2
    return jax.lax.custom_linear_solve(lambda v: 2.0 * v, b, root, symmetric=True)


def on_devices(x):
    mesh = jax.make_mesh((1,), ("rows",), (jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("rows")
    local = jax.shard_map(jnp.log, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return local(x).sum()


def fraction(key, num_samples, shift, region):
    x = jax.random.normal(key, (num_samples,)) + shift
    return jnp.mean(naive_sigmoid(1000 * region.margins(x[:, None])[:, 0]))


def shuffled(x):
    flat = jnp.log(x.T.reshape(2, 3)[::-1])
    return jnp.concatenate([flat, jnp.ones((1, 3))]).sum(axis=0)


def two_at(index):
    """The square root makes element 0 NaN, the logarithm element 1."""

    def two(x):
        first = jnp.where(x < -1, jnp.sqrt(x), x)
        return jnp.where(x > 0, jnp.log(-x), first)[index]

    return two


def line_of(function):
    line = inspect.getsourcelines(function)[1] + 1
    return f"test_diagnostics.py:{line} in {function.__name__}"


NEGATIVE = np.ones((3, 2))
NEGATIVE[2, 0] = -1.0
PARAMETERS = {"loc": np.array([1.0, np.nan]), "scale": 2.0}
HALF_LINE = tg.Box(np.zeros(1), np.array([1000.0]))
THOUSANDTH = np.array([0.5, -1000.0])
BRANCHING = jax.checkpoint(lambda x: jax.lax.cond(x > 0, jnp.log, naive_sigmoid, x))
SIGMOID = {"kind": "nan", "where": "gradient", "primitive": "mul", "fed_by": "exp", "failed": True}
SQRT_VALUE = {"where": "value", "primitive": "sqrt"}
CASES = {  # function, arguments, attributes of the report, parts of what it says
    "sigmoid": (naive_sigmoid, [THOUSANDTH], SIGMOID | {
        "index": (1,), "chain": ("neg", "exp", "mul")}, [line_of(naive_sigmoid)]),
    "sigmoid in float32": (naive_sigmoid, [THOUSANDTH.astype(np.float32)], SIGMOID, ["inf"]),
    "every part": (naive_sigmoid, [-1000.0], SIGMOID, [
        "gradient with respect to `x`", "`mul`", "inf", "`exp` of 1000.0", "sigmoid"]),
    "value": (lambda x: jnp.log(x) * 2, [-3.0], {
        "kind": "nan", "where": "value", "primitive": "log", "operands": (-3.0,),
        "fed_by": None}, []),
    "overflow": (lambda x: jnp.exp(x) - jnp.exp(2 * x), [800.0], {
        "where": "value", "primitive": "sub", "operands": (np.inf, np.inf), "fed_by": "exp"}, []),
    "mask": (masked_root, [np.array([1.0, -1.0])], {
        "kind": "nan", "where": "gradient", "primitive": "sqrt", "operands": (-1.0,)}, []),
    "entropy": (lambda p: jnp.where(p > 0, p * jnp.log(p), 0.0).sum(), [np.zeros(2)], {
        "where": "gradient", "primitive": "mul", "fed_by": "log"}, ["double where"]),
    "masked": (guarded, [-4.0], SQRT_VALUE | {"kind": "masked", "failed": False}, [
        "reaches no result"]),
    # A NaN that someone wrote down on purpose is not news.
    "written down, not met": (written_down, [2.0], {"kind": "finite"}, []),
    "written down": (written_down, [-2.0], {"kind": "input"}, ["written into the program"]),
    "norm": (lambda x: jnp.sqrt(jnp.sum(x**2)), [np.zeros(3)], {
        "where": "gradient", "primitive": "mul", "fed_by": "div"}, ["safe_norm"]),
    # The call: the library keeps no line of its own.
    "library's norm": (lambda x: jnp.linalg.norm(x, axis=-1), [np.zeros((2, 3))], {
        "failed": True}, ["test_diagnostics.py"]),
    "path of an argument": (lambda params: (params["loc"] / params["scale"]).sum(), [PARAMETERS], {
        "kind": "input", "primitive": None, "index": (1,)}, ["`params['loc']` at [1]"]),
    "captured": (lambda x: x * PARAMETERS["loc"], [1.0], {"kind": "input"}, ["captures"]),
    "infinite argument": (lambda x: x - x, [np.inf], {"kind": "nan", "fed_by": "`x`"}, []),
    "infinite value": (lambda x: jnp.log(x) - 1, [0.0], {
        "kind": "infinite", "where": "value", "primitive": "log", "failed": False}, []),
    "infinite slope": (jnp.sqrt, [0.0], {
        "kind": "infinite", "where": "gradient", "primitive": "div"}, []),
    "steep": (steep, [0.1], {"kind": "finite", "primitive": "mul"}, [
        "clipped_gradient", line_of(steep)]),
    "calm": (lambda x: x + 1, [2.0], {"kind": "finite", "suggestion": None}, []),
    "integer": (lambda n: n * 2.0, [3], {"kind": "finite", "primitive": None}, []),
    "scan": (chain, [1.0], {"where": "value", "primitive": "log", "operands": (-3.0,)}, [
        "scan step 2"]),
    "scan under jit": (jax.jit(chain), [1.0], {"primitive": "log"}, ["scan step 2"]),
    "reverse scan": (reverse, [1.0], SIGMOID, ["scan step 2"]),
    "explosion": (exploding, [2.0], {"kind": "finite"}, ["passed 50 times", "1e+50"]),
    "custom_jvp": (lambda x: wrong_slope(x).sum(), [np.array([1.0, -2.0])], {
        "where": "gradient", "primitive": "log", "operands": (-2.0,)}, []),
    "custom_vjp": (lambda x: wrong_pullback(x).sum(), [np.array([1.0, -2.0])], {
        "where": "gradient", "primitive": "log", "operands": (-2.0,)}, []),
    "cond": (BRANCHING, [-1000.0], {"where": "gradient", "fed_by": "exp"}, ["cond branch 0"]),
    "while": (countdown, [1.0], SQRT_VALUE, ["while step 2"]),
    "linear solve": (solved, [-np.ones(2)], {"primitive": "sqrt"}, ["custom_linear_solve"]),
    "evaluated whole": (on_devices, [-np.ones(2)], {"primitive": "shard_map"}, [
        "evaluated whole"]),
    "other arguments": (fraction, [jax.random.key(0), 16, 0.1, HALF_LINE], {
        "where": "gradient", "fed_by": "exp"}, ["`shift`"]),
    "a gradient": (jax.vmap(jax.grad(naive_sigmoid)), [np.array([1.0, -1000.0])], {
        "where": "value", "primitive": "mul", "index": (1,)}, []),
    "reshapes": (shuffled, [NEGATIVE], {
        "primitive": "log", "index": (1, 2), "operands": (-1.0,)}, [
        "then     concatenate -> reduce_sum"]),
    "one of two": (two_at(1), [np.array([-2.0, 2.0])], {
        "primitive": "log", "index": (1,), "operands": (-2.0,)}, []),
    "the other of two": (two_at(0), [np.array([-2.0, 2.0])], {
        "primitive": "sqrt", "index": (0,), "operands": (-2.0,)}, []),
    "indefinite matrix": (lambda x: jnp.linalg.cholesky(x).sum(), [-np.eye(2)], {
        "where": "value", "primitive": "cholesky"}, ["positive definite"]),
    "library's sigmoid": (jax.nn.sigmoid, [np.array([-1e4, 0.0, 1e4])], {"kind": "finite"}, []),
    # The slope of x^2 at 0 is 0, although the square depends on x.
    "slope 0": (lambda x: x**2, [0.0], {}, ["the gradient is 0"]),
    "constant": (lambda x: jnp.array(3.0), [0.0], {}, ["no result depends"]),
    "integer 0": (lambda x: jnp.sqrt(1.0 * x), [0], {}, ["give 0.0 instead of 0"]),
    "log of a probability": (lambda x: jnp.log(jax.scipy.stats.norm.cdf(x)), [-40.0], {}, [
        "log_ndtr"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_found_and_said(name):
    function, arguments, attributes, parts = CASES[name]
    report = first_nonfinite(function, *arguments)
    found = SimpleNamespace(**{key: getattr(report, key) for key in attributes})
    assert found == SimpleNamespace(**attributes)
    text = str(report)
    assert all(part in text for part in parts), text
    assert report.kind != "nan" or 5 <= len(text.splitlines()) <= 10


def test_numbers_of_a_report():
    report = first_nonfinite(naive_sigmoid, THOUSANDTH)
    assert set(map(abs, report.operands)) == {0.0, np.inf}
    assert line_of(naive_sigmoid) in report.source
    assert first_nonfinite(steep, 0.1).amplification == pytest.approx(1e7, rel=1e-12)
    assert first_nonfinite(exploding, 2.0).amplification == pytest.approx(10)
    hidden = first_nonfinite(lambda x: jnp.where(x > 0, x, jnp.log(0 * x)), 1.0)
    assert hidden.kind != "infinite"


def test_auxiliary_output_is_evaluated_but_not_differentiated():
    def loss(x):
        return x**2, {"root": jnp.sqrt(x)}

    assert first_nonfinite(loss, 0.0).kind == "infinite"
    assert first_nonfinite(loss, 0.0, has_aux=True).kind == "finite"
    report = first_nonfinite(loss, -1.0, has_aux=True)
    assert (report.kind, report.where) == ("nan", "value")
    assert "aux output ['root']" in report.message


def test_a_division_by_an_integer_that_is_held_says_what_to_write():
    with pytest.raises(ZeroDivisionError) as caught:
        first_nonfinite(lambda x: 1 / x, 0)
    assert any("write 0.0 for an argument" in note for note in caught.value.__notes__)


def test_traps_for_nan_do_not_stop_the_search():
    with jax.debug_nans(True):
        assert first_nonfinite(naive_sigmoid, -1000.0).fed_by == "exp"


def test_precision_of_the_program_is_kept():
    # exp(100) overflows in float32 only; inside an island of float64 it does not.
    def island(x):
        with jax.enable_x64(True):
            wide = jnp.exp(x.astype(jnp.float64))
            return jnp.log(wide).astype(x.dtype)

    with jax.enable_x64(False):
        x = jnp.float32(100.0)
        assert first_nonfinite(island, x).kind == "finite"
        for same in (x, 100.0, np.float64(100.0), np.full(2, 100.0)):
            assert first_nonfinite(lambda x: jnp.log(jnp.exp(x)), same).fed_by == "exp"
