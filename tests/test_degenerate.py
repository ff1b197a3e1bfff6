"""Inputs at the edge of what a Gaussian is: each has a plain answer, and derivatives that exist.

A coordinate of variance 0 is its mean: inside its limits it changes nothing, outside the
probability is 0. Two copies of a coordinate share the intersection of their limits. Constraints
without effect, an empty batch and a Gaussian without coordinates have answers too. The truth of
each comes from the smaller problem that is left, in closed form or by SciPy; nothing is random
within these tests, so none has a false alarm by chance.
"""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

import truncgauss as tg
from experiments.large_dense.dense_blocks import DenseBlocks
from tests.referee import oracles
from truncgauss.arrays.linalg import cholesky

INF = np.inf
FULL = pytest.mark.full
TOLERANCE = {np.float32: 2e-5, np.float64: 1e-9}
LOC, VARIANCE = 0.25, 2.0
LOW, HIGH = -0.5, 1.0  # of the coordinate that varies
TRUNCATED = stats.truncnorm(
    (LOW - LOC) / VARIANCE**0.5, (HIGH - LOC) / VARIANCE**0.5, LOC, VARIANCE**0.5
)


def log_mass(loc):
    """log P(LOW <= X <= HIGH) of the coordinate that varies."""
    return oracles.log_interval((LOW - loc) / VARIANCE**0.5, (HIGH - loc) / VARIANCE**0.5)


SLOPE = (log_mass(LOC + 1e-6) - log_mass(LOC - 1e-6)) / 2e-6


def fixed_but_one(d, dtype):
    """Rows of zero variances but at one position, or nowhere, the fixed ones inside their limits.

    And where each row varies. A last row is fixed with its first coordinate outside its limits.
    """
    position = np.array([*sorted({0, d // 2, d - 1}), d, d])
    one = np.arange(d) == position[:, None]
    loc = np.where(one, LOC, 0.1 * np.arange(d))
    covariance = np.where(one, VARIANCE, 0.0)[..., None] * np.eye(d)
    low = np.where(one, LOW, np.where(np.arange(d) % 2, -INF, loc - 1.0))
    high = np.where(one, HIGH, loc + 2.0)
    low[-1, 0], high[-1, 0] = 1.0, 2.0
    return [x.astype(dtype) for x in (loc, covariance, low, high)], one


def log_prob(loc, covariance, low, high, method=tg.Automatic()):
    return tg.log_probability(loc, covariance, tg.Box(low, high), method).log_prob


def with_slopes(function):
    """A function of rows with its slopes in the first argument."""

    def both(*arrays):
        value, pull = jax.vjp(lambda first: function(first, *arrays[1:]), arrays[0])
        return value, pull(jnp.ones_like(value))[0]

    return both


def transformed(function):
    """A function of rows plain, under jit, and row by row under vmap."""
    return {"plain": function, "jit": jax.jit(function), "vmap": jax.vmap(function)}


def cases(*dimensions):
    """Each dimension under jit; two dimensions, and the most, in every way and precision."""
    every = [(d, "jit", np.float64) for d in dimensions]
    for d in {2, dimensions[-1]}:
        every += [(d, "plain", np.float64), (d, "vmap", np.float64), (d, "plain", np.float32)]
        every += [(d, "jit", np.float32)]
    quick = 2, "jit", np.float64
    return pytest.mark.parametrize(
        "d, transform, dtype",
        [
            pytest.param(*x, id=f"{x[0]}-{x[1]}-{x[2].__name__}", marks=[] if x == quick else FULL)
            for x in every
        ],
    )


def check_of_one(one, value, slope, dtype):
    """Beside the coordinate that varies, fixed ones change nothing; the last row is outside."""
    wanted = np.where(one.any(1), log_mass(LOC), 0.0)
    np.testing.assert_allclose(value[:-1], wanted[:-1], atol=TOLERANCE[dtype])
    assert value.dtype == dtype and value[-1] == -INF
    wanted = np.where(one, SLOPE, 0.0)
    np.testing.assert_allclose(slope[:-1], wanted[:-1], atol=100 * TOLERANCE[dtype])


@cases(1, 2, 4, 6)
def test_variances_of_zero(d, transform, dtype):
    """The probability is that of the coordinate that varies; a fixed one may move inside."""
    arguments, one = fixed_but_one(d, dtype)
    value, slope = transformed(with_slopes(log_prob))[transform](*arguments)
    check_of_one(one, value, slope, dtype)


@FULL
@pytest.mark.parametrize("d, dtype", [(2, np.float64), (6, np.float32)])
def test_a_factor_with_rows_of_zeros(d, dtype):
    (loc, covariance, low, high), one = fixed_but_one(d, dtype)
    for method in (tg.Automatic(), tg.Separation(64, 4), *([tg.Exact()] if d == 2 else [])):
        of = lambda loc, root, method=method: log_prob(loc, tg.ScaleTril(root), low, high, method)
        root = np.sqrt(covariance)
        check_of_one(one, *with_slopes(of)(loc, root), dtype)
        check_of_one(one, *jax.jit(with_slopes(of))(loc, root), dtype)
        of = lambda loc, method=method: log_prob(loc, covariance, low, high, method)
        check_of_one(one, *with_slopes(of)(loc), dtype)


@pytest.mark.parametrize(
    "d, dtype", [(2, np.float64), *(pytest.param(*x, marks=FULL) for x in [(3, float), (6, "f")])]
)
def test_moments_and_draws_beside_variances_of_zero(d, dtype):
    """And NaN where a coordinate that does not vary is outside of its limits."""
    arguments, one = fixed_but_one(d, dtype)
    inside = [x[[0, -3]] for x in arguments]
    (loc, covariance, low, high), one = inside, one[[0, -3]]
    moments = tg.truncated_moments(loc, covariance, tg.Box(low, high))
    # Drawn in many dimensions.
    allowed = 1e-2 if d > 3 else 100 * TOLERANCE[loc.dtype.type]
    np.testing.assert_allclose(moments.mean, np.where(one, TRUNCATED.mean(), loc), atol=allowed)
    wanted = np.where(one, TRUNCATED.var(), 0.0)[..., None] * np.eye(d)
    np.testing.assert_allclose(moments.covariance, wanted, atol=allowed)
    loc, covariance, low, high = (x[-1] for x in arguments)
    assert np.isnan(tg.truncated_moments(loc, covariance, tg.Box(low, high)).mean).all()
    loc, covariance, low, high = (x[1] for x in inside)
    region = tg.Box(low, high)
    draws = tg.truncated_samples(jax.random.key(1), loc, covariance, region, 400)
    draws = np.asarray(draws)
    assert np.all(region.contains(draws))
    np.testing.assert_allclose(draws[:, ~one[1]], np.tile(loc[~one[1]], (400, 1)), atol=1e-6)
    # One key, hence one number, decided once: within five standard errors.
    assert abs(draws[:, one[1]].mean() - TRUNCATED.mean()) < 5 * TRUNCATED.std() / 20


@FULL
@pytest.mark.parametrize(
    "method",
    [
        tg.Separation(64, 2),
        DenseBlocks(64, 2),
        tg.SequentialMonteCarlo(64, 2),
        tg.ExpectationPropagation(),
        tg.Automatic(),
    ],
    ids=lambda method: type(method).__name__,
)
def test_an_empty_row_adds_nothing_to_the_gradient_of_a_masked_batch(method):
    """Under `jit`; its NaN went into the gradient in the covariance that all rows share."""
    check_an_empty_row(method, 0.5 * np.eye(5) + 0.5, jax.jit)


@FULL
@pytest.mark.parametrize("kind", ["one factor", "chain", "independent"])
def test_an_empty_row_adds_nothing_where_the_structure_is_recognised(kind):
    """Outside of `jit`: the moments of a region of probability 0 are NaN."""
    i = np.arange(5)
    covariance = {
        "one factor": 0.5 * np.eye(5) + 0.5,
        "chain": 0.5 ** np.abs(i[:, None] - i),
        "independent": np.eye(5),
    }[kind]
    check_an_empty_row(tg.Automatic(), covariance, lambda function: function)
    high = np.array([1.0, 0.0, 1.0, 1.0, 1.0])
    steep = jax.grad(lambda high: log_prob(np.zeros(5), covariance, np.zeros(5), high))(high)
    assert steep[1] > 1e300  # infinite, as far as the dtype goes: descent leaves equal limits


def check_an_empty_row(method, covariance, transformed):
    d = 5
    low, high = np.zeros((2, d)), np.ones((2, d))
    high[0, 1] = 0.0

    def total(inputs):
        values = log_prob(*inputs, method)
        return jnp.sum(jnp.where(jnp.array([False, True]), values, 0.0)), values

    inputs = np.zeros(d), covariance, low, high
    slopes, values = transformed(jax.grad(total, has_aux=True))(inputs)
    assert values[0] == -INF and np.isfinite(values[1])
    assert not np.any(slopes[2][0]) and not np.any(slopes[3][0])
    assert all(np.isfinite(slope).all() for slope in slopes)
    assert np.all(slopes[2][1] < 0) and np.all(slopes[3][1] > 0)


COPIES = {
    2: (np.array([[1.0, 1.0], [1.0, 1.0]]), [0, 0]),
    3: (np.array([[1.0, 1.0, 0.5], [1.0, 1.0, 0.5], [0.5, 0.5, 1.0]]), [0, 0, 1]),
    4: (np.kron(np.array([[1.0, 0.5], [0.5, 1.0]]), np.ones((2, 2))), [0, 0, 1, 1]),
}


def intersected(d, dtype):
    """Limits of copies, their covariance, and the limits of the variables that they copy."""
    covariance, of = COPIES[d]
    low, high = np.array([-1.0, -0.5, -2.0, 0.0])[:d], np.array([1.0, 2.0, 0.75, INF])[:d]
    kept = range(max(of) + 1)
    below = [max(low[k] for k in range(d) if of[k] == j) for j in kept]
    above = [min(high[k] for k in range(d) if of[k] == j) for j in kept]
    return [np.zeros(d, dtype), *(x.astype(dtype) for x in (covariance, low, high))], below, above


def rectangle(low, high):
    """log P of the variables that are copied: of one, or of two with correlation 1/2."""
    factor = np.array([[1.0, 0.0], [0.5, 0.75**0.5]])[: len(low), : len(low)]
    return oracles.log_box(0.0, factor, low, high)[0]


@cases(2, 3, 4)
def test_copies_share_the_intersection_of_their_limits(d, transform, dtype):
    """Traced numbers hide that a matrix is singular: then stderr is wide, inf or nan."""
    arguments, below, above = intersected(d, dtype)
    whole = lambda *a: jnp.stack(tg.log_probability(a[0], a[1], tg.Box(a[2], a[3])), -1)
    found = transformed(whole)[transform](*(np.stack([x, x]) for x in arguments))
    for value, stderr in np.asarray(found, float):
        error = abs(value - rectangle(below, above))
        seen = transform == "plain"
        allowed = max(TOLERANCE[dtype], 1e-7) if seen else 1e-3
        unknown = not np.isfinite(stderr) and not seen
        assert unknown or error <= 5 * stderr + allowed, (value, stderr, error)


@FULL
@pytest.mark.parametrize(
    "d, transform, dtype", [(1, "jit", "f"), (5, "plain", "d"), (5, "vmap", "f")]
)
def test_constraints_without_effect(d, transform, dtype):
    """No limits at all, and limits forty standard deviations away."""
    covariance = np.tile(0.5 * np.eye(d, dtype=dtype) + 0.5, (2, 1, 1))
    limits = np.stack([np.full(d, INF, dtype), np.full(d, 40, dtype)])
    slopes = lambda *a: jax.vjp(log_prob, *a)[1](jnp.zeros(a[0].shape[:-1], dtype) + 1)
    both = lambda *a: (log_prob(*a), slopes(*a))
    arguments = np.zeros((2, d), dtype), covariance, -limits, limits
    for found in jax.tree.leaves(transformed(both)[transform](*arguments)):
        np.testing.assert_allclose(found, 0, atol=1e-6)


@pytest.mark.quick("jit-float64")
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("transform", ["plain", "jit", "vmap"])
def test_a_polyhedron_without_rows_or_with_rows_of_zeros(transform, dtype):
    """Nothing is asked; or 0 is asked to lie within limits, which it does, or does not."""
    loc, covariance = np.zeros(2, dtype), np.eye(2, dtype=dtype)

    def of_rows(matrix, low, high):
        return tg.log_probability(loc, covariance, tg.Polyhedron(matrix, low, high)).log_prob

    ask = transformed(of_rows)[transform]
    if transform == "vmap":
        of_batch, ask = ask, lambda *arrays: of_batch(*(np.stack([x, x]) for x in arrays))[1]
    empty = np.zeros(0, dtype)
    assert ask(np.zeros((0, 2), dtype), empty, empty) == 0.0
    rows = np.array([[0.0, 0.0], [1.0, 1.0]], dtype)
    half = np.array([-1.0, 0.0], dtype), np.array([1.0, INF], dtype)
    np.testing.assert_allclose(ask(rows, *half), -np.log(2), atol=TOLERANCE[dtype])
    half[0][0] = 0.5
    assert ask(rows, *half) == -INF


# --- Without rows, dimensions or digits -----------------------------------------------------------

METHODS = {
    "exact": tg.Exact(),
    "separation": tg.Separation(64, 4),
    "propagation": tg.ExpectationPropagation(),
    "sequential": tg.SequentialMonteCarlo(64, 2),
    "soft": tg.SoftMonteCarlo(64),
    "automatic": tg.Automatic(),
}
ORTHANT = tg.Box([0.0, 0.0], INF)


@pytest.mark.quick("soft")
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_batch_without_rows_has_answers_without_rows(method):
    point, matrix, none = np.zeros(2), np.eye(2), np.zeros((3, 0, 2))
    for loc, covariance, region in (
        (none, matrix, ORTHANT),
        (point, np.zeros((3, 0, 2, 2)), ORTHANT),
        (point, matrix, tg.Box(none, INF)),
    ):
        estimate = tg.log_probability(loc, covariance, region, method)
        assert estimate.log_prob.shape == estimate.stderr.shape == (3, 0)
        total = lambda loc, *rest: tg.log_probability(loc, *rest, method).log_prob.sum()
        np.testing.assert_array_equal(jax.grad(total)(loc, covariance, region), np.zeros_like(loc))
    moments = tg.truncated_moments(none, matrix, ORTHANT, method)
    assert moments.mean.shape == (3, 0, 2) and moments.covariance.shape == (3, 0, 2, 2)


def test_a_batch_of_covariances_without_factors():
    covariance = tg.LowRank(np.zeros((3, 2, 0)), np.ones((3, 2)))
    for region in (tg.Ball(np.zeros(2), 1.0), tg.Box(np.zeros(2), INF)):
        values = tg.log_probability(np.zeros((3, 2)), covariance, region).log_prob
        one = tg.log_probability(np.zeros(2), np.eye(2), region).log_prob
        np.testing.assert_allclose(values, np.full(3, one), rtol=1e-9)


def test_draws_plans_and_programs_of_no_rows():
    rows = np.zeros((0, 2))
    of = lambda loc: tg.log_probability(loc, np.eye(2), ORTHANT).log_prob
    assert jax.jit(of)(rows).shape == jax.vmap(of)(rows).shape == (0,)
    draws = tg.truncated_draws(jax.random.key(0), rows, np.eye(2), ORTHANT, 5)
    assert draws.samples.shape == (5, 0, 2) and draws.acceptance_rate.shape == (0,)
    held = tg.Separation(64, 4).hold(rows, np.eye(2), ORTHANT)
    assert tg.log_probability(rows, np.eye(2), ORTHANT, held).log_prob.shape == (0,)


@pytest.mark.quick("float16")
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_is_for_one_interval_only(dtype):
    """With a covariance it ended in an error of the linear algebra underneath."""
    with pytest.raises(ValueError, match=f"{dtype.__name__} has too few digits for a covariance"):
        low = np.zeros(2, dtype)
        tg.log_probability(low, np.eye(2, dtype=dtype), tg.Box(low, low + 1))
    law = [np.asarray(x, dtype) for x in (0.0, 1.0, 4.0, INF)]
    log_mass = jax.jit(tg.special.truncated_log_mass)(*law)
    assert log_mass.dtype == dtype
    np.testing.assert_allclose(float(log_mass), -10.360101, rtol=4 * float(jnp.finfo(dtype).eps))


def test_modules_are_reachable_at_once():
    """`tg.safe` was there only once another import had brought it."""
    code = """
import sys
for name in ("safe", "edges", "special", "parallel"):
    for module in [x for x in sys.modules if x.startswith("truncgauss")]:
        del sys.modules[module]
    import truncgauss
    getattr(truncgauss, name)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


SUM, REGULAR = np.array([[1.0, 0, 1], [0, 1, 1], [1, 1, 2]]), np.eye(3) + 0.3  # X3 = X1 + X2
CUBE = tg.Box(-np.ones((3, 3)), np.ones((3, 3)))  # of three rows
CUT = tg.Polyhedron(np.stack([np.eye(3)] * 3), CUBE.low, CUBE.high)


def sum_in_the_cube():
    """log P of the cube where X3 = X1 + X2, by quadrature over X1."""
    slab = lambda x: special.ndtr(min(1.0, 1.0 - x)) - special.ndtr(max(-1.0, -1.0 - x))
    density = lambda x: np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)
    return np.log(sum(
        integrate.quad(lambda x: density(x) * slab(x), *ends, epsabs=1e-13)[0]
        for ends in ((-1.0, 0.0), (0.0, 1.0))
    ))  # fmt: skip


@pytest.mark.parametrize("region", [CUBE, CUT], ids=["box", "polyhedron"])
def test_rows_that_are_singular_beside_rows_that_are_not(region):
    found = tg.log_probability(np.zeros((3, 3)), np.stack([REGULAR, SUM, REGULAR]), region)
    alone = tg.log_probability(np.zeros(3), REGULAR, tg.Box(-np.ones(3), np.ones(3))).log_prob
    errors = np.asarray(found.stderr)
    assert np.all(errors < 1e-4) and (region is CUT or errors[0] == errors[2] == 0)
    exact = np.array([alone, sum_in_the_cube(), alone])
    assert np.all(np.abs(found.log_prob - exact) <= 5.0 * errors + 1e-12)


@pytest.mark.full
def test_derivatives_and_moments_of_rows_that_are_singular_beside_rows_that_are_not():
    both, truth = np.stack([REGULAR, SUM, REGULAR]), sum_in_the_cube()
    # Taken to have full rank, as under `jit`, the third constraint still cuts off what it should.
    traced = jax.jit(tg.log_probability)(np.zeros((3, 3)), both, CUT)
    assert abs(traced.log_prob[1] - truth) <= 5.0 * traced.stderr[1] < 5e-2
    of_t = tg.log_probability(np.zeros((3, 3)), both, CUBE, df=1e9)
    assert float(of_t.log_prob[1]) == pytest.approx(truth, abs=1e-6)
    slope = lambda matrix, box: jax.grad(
        lambda loc: jnp.sum(tg.log_probability(loc, matrix, box).log_prob)
    )(jnp.full(matrix.shape[:-1], 0.1))
    one = tg.Box(-np.ones(3), np.ones(3))
    slopes = np.stack([slope(matrix, one) for matrix in both])
    np.testing.assert_allclose(slope(both, CUBE), slopes, rtol=1e-6)
    moments = tg.truncated_moments(np.zeros((3, 3)), both, CUBE).covariance[1]
    alone = tg.truncated_moments(np.zeros(3), SUM, one).covariance
    np.testing.assert_allclose(moments, alone, rtol=1e-10)


def test_rows_that_are_singular_up_to_rounding_are_not_integrated_as_if_exact():
    """Beside regular rows they are what they are alone, within their errors."""
    rng = np.random.default_rng(3)
    factors = [rng.normal(size=(3, 2 if row % 2 else 6)) for row in range(16)]
    matrices = np.stack([factor @ factor.T for factor in factors])
    scales = np.sqrt(np.diagonal(matrices, axis1=1, axis2=2))
    low, high = -rng.uniform(0.3, 2.0, (16, 3)) * scales, rng.uniform(0.3, 2.0, (16, 3)) * scales
    whole = tg.log_probability(np.zeros((16, 3)), matrices, tg.Box(low, high))
    rows = zip(matrices, low, high)
    alone = [tg.log_probability(np.zeros(3), matrix, tg.Box(*ends)) for matrix, *ends in rows]
    errors = np.hypot(whole.stderr, [float(each.stderr) for each in alone])
    gaps = np.abs(whole.log_prob - np.array([float(each.log_prob) for each in alone]))
    assert np.all(gaps <= 5.0 * errors + 1e-12) and np.all(errors < 1e-4)
    near = np.eye(3) + (1.0 - 1e-7) * (1.0 - np.eye(3))  # of full rank, alone and in a batch
    box = tg.Box(-np.ones(3), np.ones(3))
    exact = [tg.log_probability(np.zeros(3), x, box) for x in (near, np.stack([near, np.eye(3)]))]
    np.testing.assert_allclose(exact[1].log_prob[0], exact[0].log_prob, rtol=1e-12)
    assert float(exact[0].stderr) == 0.0


@FULL
@pytest.mark.parametrize("distance", [1e-8, 3e-8, 1e-7, 1e-6])
def test_three_coordinates_in_a_plane_of_which_two_nearly_agree(distance):
    """As polygons in that plane, which their limits cut at edges that nearly coincide."""
    rng = np.random.default_rng(5)
    for _ in range(15):
        root = rng.normal(size=(3, 2))
        root[2] = root[0] * rng.normal() + distance * rng.normal(size=2)
        inside = root @ rng.normal(size=2)
        width = rng.exponential(size=3) * 10.0 ** rng.uniform(-3.0, 0.5, size=3)
        low = inside - width * rng.random(3)
        polygon = tg.Polyhedron(root, low, low + width)
        truth = tg.log_probability(np.zeros(2), np.eye(2), polygon).log_prob
        box = tg.Box(low, low + width)
        log_prob, stderr = tg.log_probability(np.zeros(3), root @ root.T, box)
        assert abs(log_prob - truth) < 5.0 * stderr + 1e-10 and stderr < 0.05, (root, low, width)


def test_panels_for_three_coordinates_of_which_two_determine_each_other():
    """Under `jit` a covariance is taken to have full rank: where it has not, by rounding, the kinks
    of the integrand are resolved all the same. Two of 300 random ones that were off by 4e-5."""
    rng, problems = np.random.default_rng(3), []
    for _ in range(236):
        factor = rng.normal(size=(3, 2))
        scale = np.linalg.norm(factor, axis=1)
        ends = -rng.uniform(0.3, 2.0, 3) * scale, rng.uniform(0.3, 2.0, 3) * scale
        problems.append((factor @ factor.T, tg.Box(*ends)))
    traced = jax.jit(lambda matrix, box: tg.log_probability(np.zeros(3), matrix, box).log_prob)
    for row in (195, 235):
        alone = tg.log_probability(np.zeros(3), *problems[row])
        assert float(traced(*problems[row])) == pytest.approx(float(alone.log_prob), abs=1e-6)


def test_outside_of_a_box_of_two_coordinates_that_determine_each_other():
    """X1 = X2, and the box leaves them -1 to 1/2; beside a regular row too."""
    box, zeros = tg.Box([-1.0, -2.0], [1.0, 0.5]), np.zeros((2, 2))
    truth = np.log(1.0 - (special.ndtr(0.5) - special.ndtr(-1.0)))
    alone = tg.log_probability(zeros[0], np.ones((2, 2)), tg.Outside(box)).log_prob
    assert float(alone) == pytest.approx(truth, rel=1e-12)
    both = np.stack([np.ones((2, 2)), np.eye(2)])
    found = tg.log_probability(zeros, both, tg.Outside(box)).log_prob
    sides = [special.ndtr(1.0) - special.ndtr(-1.0), special.ndtr(0.5) - special.ndtr(-2.0)]
    np.testing.assert_allclose(found, [truth, np.log1p(-sides[0] * sides[1])], rtol=1e-12)


@FULL
def test_gradients_of_copies_beside_rows_of_full_rank():
    """In four dimensions, of which two copy the others: off by 7e-4, and only in a batch."""
    (loc, copies, low, high), below, above = intersected(4, np.float64)
    both = np.stack([0.5 * np.eye(4) + 0.5, copies])
    total = lambda loc: jnp.sum(tg.log_probability(loc, both, tg.Box(low, high)).log_prob)
    slopes = jax.grad(total)(np.stack([loc, loc]))
    pair = lambda loc: tg.log_probability(loc, copies[::2, ::2], tg.Box(below, above)).log_prob
    of_both = slopes[1].reshape(2, 2).sum(1)
    np.testing.assert_allclose(of_both, jax.grad(pair)(np.zeros(2)), atol=1e-5)


def test_a_traced_upper_factor_gives_nan():
    """Its upper part was dropped; a known one is refused."""
    box = tg.Box([0.0, 0.0], [jnp.inf, 1.0])
    log_prob = jax.jit(lambda x: tg.log_probability([0.0, 0.0], tg.ScaleTril(x), box).log_prob)
    factor = jnp.array([[1.0, 0.0], [0.6, 1.2]])
    assert np.isfinite(log_prob(factor)) and np.isnan(log_prob(factor.T))
    slope = jax.jit(jax.grad(log_prob))(factor)
    assert np.all(np.isfinite(slope)) and slope[0, 1] == 0


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_factor_of_one_row_is_a_square_root_and_nan_as_any_other(dtype):
    """Beside JAX's own, of 2 x 2 with a second row that changes nothing, and its slopes."""
    variances = jnp.array([1e-30, 0.3, 2.0, 1e30, 0.0, -1.0, jnp.nan, jnp.inf], dtype)

    def of_two(v):
        return jnp.linalg.cholesky(jnp.diag(jnp.stack([v, jnp.ones_like(v)])))[0, 0]

    def of_one(v):
        return cholesky(v[None, None])[0, 0]

    for rule in (lambda f: f, jax.grad, lambda f: jax.grad(jax.grad(f))):
        expected, found = (jax.vmap(rule(f))(variances) for f in (of_two, of_one))
        np.testing.assert_allclose(found[:7], expected[:7], rtol=4 * np.finfo(dtype).eps)
        assert np.isnan(found[7])  # of an infinite variance LAPACK's factor is inf
