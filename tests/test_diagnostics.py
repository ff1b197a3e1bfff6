"""The birth of a NaN is found: primitive, operands, line, feeder, and which result it reaches."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from truncgauss.diagnosis.nonfinite import first_nonfinite

PRECISIONS = (jnp.float32, jnp.float64)


def naive_sigmoid(x):
    return 1 / (1 + jnp.exp(-x))


def line_of(fun):
    return inspect.getsourcelines(fun)[1] + 1


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_naive_sigmoid_multiplies_zero_by_the_infinity_of_exp(dtype):
    report = first_nonfinite(naive_sigmoid, jnp.array([0.5, -1000.0], dtype))
    assert (report.kind, report.where, report.failed) == ("nan", "gradient", True)
    assert report.primitive == "mul"
    assert set(map(abs, report.operands)) == {0.0, np.inf}
    assert report.index == (1,)
    assert report.fed_by == "exp"
    assert report.chain == ("neg", "exp", "mul")
    assert f"test_diagnostics.py:{line_of(naive_sigmoid)} in naive_sigmoid" in report.source


def test_the_text_is_short_and_names_everything():
    text = str(first_nonfinite(naive_sigmoid, -1000.0))
    assert 5 <= len(text.splitlines()) <= 10
    for part in ("gradient with respect to `x`", "`mul`", "inf", "`exp` of 1000.0", "sigmoid"):
        assert part in text


def test_birth_in_the_value_is_told_from_birth_in_the_gradient():
    inverted = first_nonfinite(lambda x: jnp.log(x) * 2, -3.0)
    assert (inverted.kind, inverted.where, inverted.primitive) == ("nan", "value", "log")
    assert inverted.operands == (-3.0,)
    assert inverted.fed_by is None

    overflowing = first_nonfinite(lambda x: jnp.exp(x) - jnp.exp(2 * x), 800.0)
    assert (overflowing.where, overflowing.primitive) == ("value", "sub")
    assert overflowing.operands == (np.inf, np.inf)
    assert overflowing.fed_by == "exp"


def test_masked_nan_that_comes_back_in_the_gradient():
    def masked_root(x):
        return jnp.where(x > 0, jnp.sqrt(x), 0.0).sum()

    report = first_nonfinite(masked_root, jnp.array([1.0, -1.0]))
    assert (report.kind, report.where, report.primitive) == ("nan", "gradient", "sqrt")
    assert report.operands == (-1.0,)

    entropy = first_nonfinite(lambda p: jnp.where(p > 0, p * jnp.log(p), 0.0).sum(), jnp.zeros(2))
    assert (entropy.where, entropy.primitive, entropy.fed_by) == ("gradient", "mul", "log")
    assert "double where" in entropy.suggestion


def test_masked_nan_that_reaches_nothing_is_no_failure():
    def guarded(x):
        root = jax.lax.stop_gradient(jnp.sqrt(x))
        return x * jnp.where(x > 0, root, 1.0)

    report = first_nonfinite(guarded, -4.0)
    assert (report.kind, report.where, report.primitive) == ("masked", "value", "sqrt")
    assert not report.failed
    assert "reaches no result" in str(report)

    # A NaN that someone wrote down on purpose is not news.
    report = first_nonfinite(lambda x: jnp.where(x > 0, x, jnp.nan), 2.0)
    assert report.kind == "finite"
    report = first_nonfinite(lambda x: jnp.where(x > 0, x, jnp.nan), -2.0)
    assert report.kind == "input"
    assert "written into the program" in report.message


def test_norm_at_zero_points_to_the_slope_of_the_root():
    report = first_nonfinite(lambda x: jnp.sqrt(jnp.sum(x**2)), jnp.zeros(3))
    assert (report.where, report.primitive, report.fed_by) == ("gradient", "mul", "div")
    assert "safe_norm" in report.suggestion
    report = first_nonfinite(lambda x: jnp.linalg.norm(x, axis=-1), jnp.zeros((2, 3)))
    assert report.failed
    assert "test_diagnostics.py" in report.source  # the call: the library keeps no line of its own


def test_nan_in_an_argument_is_called_by_its_path():
    parameters = {"loc": jnp.array([1.0, jnp.nan]), "scale": 2.0}
    report = first_nonfinite(lambda params: (params["loc"] / params["scale"]).sum(), parameters)
    assert (report.kind, report.primitive, report.index) == ("input", None, (1,))
    assert "`params['loc']` at [1]" in report.message

    data = jnp.array([1.0, jnp.nan])
    report = first_nonfinite(lambda x: x * data, 1.0)
    assert report.kind == "input"
    assert "captures" in report.message

    report = first_nonfinite(lambda x: x - x, jnp.inf)
    assert report.kind == "nan"
    assert report.fed_by == "`x`"


def test_infinities_count_only_where_they_are_returned():
    hidden = first_nonfinite(lambda x: jnp.where(x > 0, x, jnp.log(0 * x)), 1.0)
    assert hidden.kind != "infinite"
    value = first_nonfinite(lambda x: jnp.log(x) - 1, 0.0)
    assert (value.kind, value.where, value.primitive) == ("infinite", "value", "log")
    assert not value.failed
    slope = first_nonfinite(jnp.sqrt, 0.0)
    assert (slope.kind, slope.where, slope.primitive) == ("infinite", "gradient", "div")


def test_finite_function_names_the_steepest_primitive():
    def steep(x):
        return jnp.tanh(3.0 * x) + 2.0 * jnp.sin(1e7 * x)

    report = first_nonfinite(steep, 0.1)
    assert (report.kind, report.primitive) == ("finite", "mul")
    assert report.amplification == pytest.approx(1e7, rel=1e-12)
    assert "clipped_gradient" in report.suggestion
    assert f"test_diagnostics.py:{line_of(steep)} in steep" in report.source

    calm = first_nonfinite(lambda x: x + 1, 2.0)
    assert calm.kind == "finite"
    assert calm.suggestion is None


def test_no_gradient_without_floating_point_arguments():
    report = first_nonfinite(lambda n: n * 2.0, 3)
    assert (report.kind, report.primitive) == ("finite", None)
    with pytest.raises(ValueError, match="no floating-point array"):
        first_nonfinite(lambda x: 3, 1.0)


def test_scan_names_its_step_in_both_directions():
    shifts = jnp.array([0.0, 1.0, -5.0, 1.0])

    def chain(x):
        def body(carry, shift):
            carry = carry * x + shift
            return carry, jnp.log(carry)

        return jax.lax.scan(body, jnp.ones_like(x), shifts)[1].sum()

    report = first_nonfinite(chain, 1.0)
    assert (report.where, report.primitive) == ("value", "log")
    assert report.operands == (-3.0,)
    assert "scan step 2" in str(report)
    assert "scan step 2" in str(first_nonfinite(jax.jit(chain), 1.0))

    def reverse(x):
        sigmoid = jax.lax.scan(lambda c, s: (c, naive_sigmoid(c * s)), x, shifts * 300)[1]
        return sigmoid.sum()

    report = first_nonfinite(reverse, 1.0)
    assert (report.where, report.primitive, report.fed_by) == ("gradient", "mul", "exp")
    assert "scan step 2" in str(report)

    exploding = first_nonfinite(
        lambda x: jax.lax.scan(lambda c, _: (c * 10, None), x, None, length=50)[0], 2.0
    )
    assert exploding.amplification == pytest.approx(10)
    assert "passed 50 times" in str(exploding)
    assert "1e+50" in exploding.message


@jax.custom_jvp
def wrong_slope(x):
    return jnp.sin(x)


wrong_slope.defjvp(lambda x, t: (wrong_slope(*x), jnp.log(x[0]) * t[0]))


@jax.custom_vjp
def wrong_pullback(x):
    return jnp.sin(x)


wrong_pullback.defvjp(lambda x: (jnp.sin(x), x), lambda x, t: (jnp.log(x) * t,))


@pytest.mark.parametrize("fun", [wrong_slope, wrong_pullback], ids=["jvp", "vjp"])
def test_custom_rules_are_entered(fun):
    report = first_nonfinite(lambda x: fun(x).sum(), jnp.array([1.0, -2.0]))
    assert (report.where, report.primitive, report.operands) == ("gradient", "log", (-2.0,))


def test_control_flow_and_checkpoint_are_entered():
    branching = jax.checkpoint(lambda x: jax.lax.cond(x > 0, jnp.log, naive_sigmoid, x))
    report = first_nonfinite(branching, -1000.0)
    assert (report.where, report.fed_by) == ("gradient", "exp")
    assert "cond branch 0" in str(report)

    def countdown(x):
        # Not differentiated: reverse mode has no rule for a while loop.
        frozen = jax.lax.stop_gradient(x)
        return x + jax.lax.while_loop(lambda c: c > -2, lambda c: jnp.sqrt(c) - 1, frozen)

    report = first_nonfinite(countdown, 1.0)
    assert (report.where, report.primitive) == ("value", "sqrt")
    assert "while step 2" in str(report)

    matrix = 2 * jnp.eye(2)
    report = first_nonfinite(
        lambda b: jax.lax.custom_linear_solve(
            lambda v: matrix @ v, b, lambda _, c: jnp.sqrt(c) / 2, symmetric=True
        ),
        -jnp.ones(2),
    )
    assert report.primitive == "sqrt"
    assert "custom_linear_solve" in str(report)


def test_other_programs_are_evaluated_whole_and_said_so():
    mesh = jax.make_mesh((1,), ("rows",), (jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("rows")
    local = jax.shard_map(jnp.log, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    report = first_nonfinite(lambda x: local(x).sum(), -jnp.ones(2))
    assert report.primitive == "shard_map"
    assert "evaluated whole" in str(report)


def test_auxiliary_output_is_evaluated_but_not_differentiated():
    def loss(x):
        return x**2, {"root": jnp.sqrt(x)}

    assert first_nonfinite(loss, 0.0).kind == "infinite"
    report = first_nonfinite(loss, 0.0, has_aux=True)
    assert report.kind == "finite"
    report = first_nonfinite(loss, -1.0, has_aux=True)
    assert (report.kind, report.where) == ("nan", "value")
    assert "aux output ['root']" in report.message


def test_keys_integers_regions_and_methods_pass_through():
    def fraction(key, num_samples, shift, region):
        x = jax.random.normal(key, (num_samples,)) + shift
        return jnp.mean(naive_sigmoid(1000 * region.margins(x[:, None])[:, 0]))

    region = tg.Box(jnp.zeros(1), jnp.array([1000.0]))
    report = first_nonfinite(fraction, jax.random.key(0), 16, 0.1, region)
    assert (report.where, report.fed_by) == ("gradient", "exp")
    assert "`shift`" in report.message


def test_a_gradient_may_itself_be_examined():
    report = first_nonfinite(jax.vmap(jax.grad(naive_sigmoid)), jnp.array([1.0, -1000.0]))
    assert (report.where, report.primitive, report.index) == ("value", "mul", (1,))


def test_the_element_is_followed_through_reshapes_and_reductions():
    def shuffled(x):
        flat = jnp.log(x.T.reshape(2, 3)[::-1])
        return jnp.concatenate([flat, jnp.ones((1, 3))]).sum(axis=0)

    x = jnp.ones((3, 2)).at[2, 0].set(-1.0)
    report = first_nonfinite(shuffled, x)
    assert (report.primitive, report.index, report.operands) == ("log", (1, 2), (-1.0,))
    assert "then     concatenate -> reduce_sum" in str(report)


def test_two_nans_in_one_array_are_not_confused():
    def two(x):
        first = jnp.where(x < -1, jnp.sqrt(x), x)  # NaN in element 0
        return jnp.where(x > 0, jnp.log(-x), first)  # NaN in element 1

    report = first_nonfinite(lambda x: two(x)[1], jnp.array([-2.0, 2.0]))
    assert (report.primitive, report.index, report.operands) == ("log", (1,), (-2.0,))
    report = first_nonfinite(lambda x: two(x)[0], jnp.array([-2.0, 2.0]))
    assert (report.primitive, report.index, report.operands) == ("sqrt", (0,), (-2.0,))


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


def test_indefinite_matrix():
    report = first_nonfinite(lambda matrix: jnp.linalg.cholesky(matrix).sum(), -jnp.eye(2))
    assert (report.where, report.primitive) == ("value", "cholesky")
    assert "positive definite" in report.suggestion


def test_library_functions_at_their_edges_are_clean():
    sigmoid = functools.partial(first_nonfinite, jax.nn.sigmoid)
    assert sigmoid(jnp.array([-1e4, 0.0, 1e4])).kind == "finite"


def test_a_gradient_of_zero_is_not_independence():
    """The slope of x^2 at 0 is 0, although the square depends on x."""
    assert "the gradient is 0" in str(first_nonfinite(lambda x: x**2, 0.0))
    assert "no result depends" in str(first_nonfinite(lambda x: jnp.array(3.0), 0.0))
    assert "give 0.0 instead of 0" in str(first_nonfinite(lambda x: jnp.sqrt(1.0 * x), 0))


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="expected a function and its arguments"):
        first_nonfinite(jnp.ones(2), 0.0)


def test_the_log_of_a_normal_probability_that_is_zero_has_its_own_remedy():
    log_cdf = lambda x: jnp.log(jax.scipy.stats.norm.cdf(x))
    assert "log_ndtr" in tg.first_nonfinite(log_cdf, -40.0).suggestion
