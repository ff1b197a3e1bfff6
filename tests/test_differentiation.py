"""Outside of `jit`, the derivative of a default call is that of the number which it returns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import block_diag

import truncgauss as tg
from tests.problems import autoregression, tridiagonal
from tests.test_degenerate import log_prob as of
from truncgauss.gaussian.problem import as_problem
from truncgauss.probability import separation
from truncgauss.probability.method import estimate_with_gradient

INF = np.inf


def dense(d, seed=0):
    factor = np.random.default_rng(seed).normal(size=(d, d + 2))
    scale = np.sqrt(np.sum(factor**2, axis=1))
    return factor @ factor.T / scale[:, None] / scale


SINGULAR = np.array([[1.0, 0.5, 1.5], [0.5, 1.0, 1.5], [1.5, 1.5, 3.0]])
PROBLEMS = {
    "two": (dense(2), 0.0),
    "three": (dense(3), 0.0),
    "singular": (SINGULAR, 1e-9),
    "dense": (dense(5), 0.0),
    "chain": (autoregression(7, 0.9), 0.0),
    "common factor": (0.5 * np.eye(6) + 0.5, 0.0),
    "blocks": (block_diag(dense(2), autoregression(4, 0.5), dense(4, 1)), 0.0),
}


def inputs(name):
    covariance = PROBLEMS[name][0]
    d = len(covariance)
    low = np.linspace(-1.0, 0.0, d)
    high = np.where(np.arange(d) % 2 == 0, INF, 1.5)
    return np.linspace(-0.3, 0.3, d), covariance, low, high


@pytest.mark.quick("two")
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_value_is_that_of_the_plain_call(name):
    given = inputs(name)
    plain = of(*given)
    value, _ = jax.value_and_grad(of, argnums=(0, 2, 3))(*given)
    np.testing.assert_allclose(value, plain, rtol=1e-12)
    value, change = jax.jvp(lambda loc: of(loc, *given[1:]), given[:1], (np.ones_like(given[0]),))
    np.testing.assert_allclose(value, plain, rtol=1e-12)
    gradient = jax.grad(of)(*given)
    np.testing.assert_allclose(change, gradient.sum(), rtol=1e-8)


@pytest.mark.quick("two")
@pytest.mark.parametrize("name", ["two", "dense", "chain", "common factor", "blocks"])
def test_the_value_is_that_of_the_plain_call_with_a_derivative_in_the_covariance(name):
    given = inputs(name)
    value, gradient = jax.value_and_grad(of, argnums=1)(*given)
    np.testing.assert_allclose(value, of(*given), rtol=1e-12)
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient, gradient.T, atol=1e-10)


@pytest.mark.full
def test_free_coordinates_have_no_derivative():
    covariance = block_diag(dense(4), jnp.eye(1)) + 0.1
    low, high = jnp.array([-1.0, -1.0, 0.0, -1.0, -INF]), jnp.full(5, INF)
    gradient = jax.grad(of, argnums=(0, 1))(jnp.zeros(5), covariance, low, high)
    assert gradient[0][4] == 0 and np.all(gradient[1][4] == 0)
    inner = jax.grad(of, argnums=(0, 1))(jnp.zeros(4), covariance[:4, :4], low[:4], high[:4])
    np.testing.assert_allclose(gradient[0][:4], inner[0], rtol=1e-8)
    np.testing.assert_allclose(gradient[1][:4, :4], inner[1], rtol=1e-6, atol=1e-9)


HELD_FULL = ["common factor", "blocks", "dense", "three"]
CLASSES = {
    "chain": (autoregression(7, 0.9), tg.Markov(np.full(6, 0.9), 0.19**0.5, 1.0)),
    "common factor": (
        0.5 * np.eye(6) + 0.5,
        tg.LowRank(jnp.full((6, 1), 0.5**0.5), np.full(6, 0.5)),
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", CLASSES)
def test_derivatives_in_the_mean_are_those_of_the_exact_classes(name):
    matrix, structure = CLASSES[name]
    loc, _, low, high = inputs(name)
    for order in (jax.grad, jax.hessian):
        ours = order(of)(loc, matrix, low, high)
        theirs = order(of)(loc, structure, low, high)
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.quick("common factor")
@pytest.mark.parametrize("name", CLASSES)
def test_the_derivative_in_a_recognised_matrix_is_the_general_one(name):
    """Along the structure as its own class has it; in general half the Hessian over P."""
    matrix, structure = CLASSES[name]
    loc, _, low, high = inputs(name)
    gradient = jax.grad(of, argnums=1)(loc, matrix, low, high)

    @jax.jit
    def by_the_class(structure, gradient):
        probability = lambda loc: jnp.exp(of(loc, structure, low, high))
        _, back = jax.vjp(lambda structure: structure.covariance_matrix, structure)
        own = jax.grad(of, argnums=1)(loc, structure, low, high)
        return back(gradient)[0], own, 0.5 * jax.hessian(probability)(loc) / probability(loc)

    # Within the structure by the chain rule; off it the Hessian in the mean.
    within, own, general = by_the_class(structure, gradient)
    for ours, theirs in zip(jax.tree.leaves(within), jax.tree.leaves(own)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(gradient, general, rtol=1e-7, atol=1e-9)


@pytest.mark.full
def test_blocks_have_the_derivatives_of_the_whole():
    """Entries between blocks too: there the derivative is the product of two gradients."""
    loc, covariance, low, high = inputs("blocks")
    ours = jax.grad(of, argnums=(0, 1, 2))(loc, covariance, low, high)
    held = tg.Separation(2**13, 8).hold(loc, covariance, tg.Box(low, high))
    theirs = jax.grad(of, argnums=(0, 1, 2))(loc, covariance, low, high, held)
    for one, other in zip(ours, theirs):
        np.testing.assert_allclose(one, other, atol=2e-4)


@pytest.mark.full
@pytest.mark.parametrize("batched", ["loc", "limits"])
def test_rows_of_a_batch(batched):
    loc, covariance, low, high = inputs("chain")
    shifts = jnp.array([0.0, 0.4, -0.7])[:, None]
    given = [loc, covariance, low, high]
    place = 0 if batched == "loc" else 2
    given[place] = given[place] + shifts
    of_rows = lambda x, covariance: of(
        *(x if k == place else covariance if k == 1 else part for k, part in enumerate(given))
    )
    value, back = jax.vjp(of_rows, given[place], covariance)
    np.testing.assert_allclose(value, of(*given), rtol=1e-12)
    slope, matrix_slope = back(jnp.array([1.0, 2.0, -1.0]))
    expected, total = [], 0.0
    for k, weight in enumerate((1.0, 2.0, -1.0)):
        row = [part[k] if j == place else part for j, part in enumerate(given)]
        one, other = jax.grad(of, argnums=(place, 1))(*row)
        expected.append(weight * one)
        total = total + weight * other
    np.testing.assert_allclose(slope, jnp.stack(expected), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(matrix_slope, total, rtol=1e-8, atol=1e-10)


@pytest.mark.full
def test_rows_that_end_with_different_methods_and_points():
    loc, covariance, low, high = inputs("dense")
    shifts = jnp.array([0.0, -8.0, 3.0])[:, None]
    of_rows = lambda loc: of(loc, covariance, low, high)
    value, back = jax.vjp(of_rows, loc + shifts)
    np.testing.assert_allclose(value, of_rows(loc + shifts), rtol=1e-11)
    (slope,) = back(jnp.ones(3))
    for k in range(3):
        alone = jax.grad(of_rows)(loc + shifts[k])
        np.testing.assert_allclose(slope[k], alone, rtol=5e-3, atol=5e-4)


def test_a_second_derivative_in_a_recognised_matrix_is_refused():
    loc, covariance, low, high = inputs("chain")
    mean_first = jax.jacfwd(jax.grad(of), 1)  # once 0
    for derivative in (jax.hessian(of, argnums=1), mean_first):
        with pytest.raises(ValueError, match="second derivative in a covariance matrix"):
            derivative(loc, covariance, low, high)


@pytest.mark.full
def test_a_plan_is_held_for_every_method_outside_of_a_trace():
    loc, covariance, low, high = inputs("dense")
    for method in (tg.Separation(256, 4), tg.SequentialMonteCarlo(64, 4)):
        value, _ = jax.value_and_grad(of)(loc, covariance, low, high, method)
        np.testing.assert_allclose(value, of(loc, covariance, low, high, method), rtol=1e-12)


def test_a_mean_with_a_nan_is_nan():
    loc, covariance = np.array([np.nan, 0.0, 0.0, 0.0]), block_diag(dense(2), dense(2, 1))
    low, high = np.full(4, -1.0), np.full(4, INF)
    value, gradient = jax.value_and_grad(of)(loc, covariance, low, high)
    assert np.isnan(value) and np.isnan(gradient[0])


@pytest.mark.parametrize(
    "name", ["chain"] + [pytest.param(name, marks=pytest.mark.full) for name in HELD_FULL]
)
def test_a_held_default_is_the_plain_call_under_jit(name):
    loc, covariance, low, high = inputs(name)
    held = tg.Automatic(rtol=1.0).hold(loc, covariance, tg.Box(low, high))
    plain = of(loc, covariance, low, high, tg.Automatic(rtol=1.0))
    compute = jax.jit(jax.value_and_grad(of, argnums=(0, 1, 2)), static_argnums=())
    value, gradient = compute(loc, covariance, low, high, held)
    np.testing.assert_allclose(value, plain, rtol=1e-11)
    truth = jax.grad(of, argnums=(0, 1, 2))(loc, covariance, low, high, tg.Automatic(rtol=1.0))
    for ours, theirs in zip(gradient, truth):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.full
def test_a_chain_too_fine_for_its_grid_is_differentiated_as_it_was_sampled():
    """The moments of draws, between two inverses of the matrix, once gave 2.98 for -4.40."""
    covariance = autoregression(5, 0.9999)
    low, high = -jnp.ones(5), jnp.array([1.0, 0.5, 1.0, INF, 2.0])
    gradient = jax.grad(of, argnums=1)(jnp.zeros(5), covariance, low, high)
    result = tg.log_probability_and_gradient(jnp.zeros(5), covariance, tg.Box(low, high))
    gap = np.abs(gradient - result.gradient.covariance)
    assert np.all(gap < 0.05 * np.abs(gradient))


@pytest.mark.full
def test_rows_with_two_leading_axes():
    loc, covariance, low, high = inputs("dense")
    rows = loc + jnp.linspace(-0.2, 0.2, 4).reshape(2, 2, 1)
    total = lambda rows: of(rows, covariance, low, high, tg.Automatic(rtol=0.1)).sum()
    slope = jax.grad(total)(rows)
    assert slope.shape == rows.shape
    alone = jax.grad(of)(rows[1, 0], covariance, low, high, tg.Automatic(rtol=0.1))
    np.testing.assert_allclose(slope[1, 0], alone, rtol=1e-8)


@pytest.mark.full
def test_a_held_structure_answers_for_other_means_and_forms():
    loc, covariance, low, high = inputs("chain")
    held = tg.Automatic().hold(loc, covariance, tg.Box(low, high))
    shifted = of(loc + 0.3, covariance, low, high, held)
    np.testing.assert_allclose(shifted, of(loc + 0.3, covariance, low, high), rtol=1e-11)
    factor = tg.ScaleTril(jnp.linalg.cholesky(covariance))
    np.testing.assert_allclose(of(loc, factor, low, high, held), of(loc, covariance, low, high))
    with pytest.raises(ValueError, match="made for a tg.Box and a covariance matrix in 7"):
        of(loc[:3], covariance[:3, :3], low[:3], high[:3], held)
    rows = loc + jnp.array([0.0, 0.3])[:, None]
    np.testing.assert_allclose(of(rows, covariance, low, high, held)[1], shifted, rtol=1e-11)


MOVED = {
    "identity": np.eye(4),
    "diagonal": np.diag([1.0, 0.5, 2.0, 1.5]),
    "autoregression": autoregression(4, 0.6),
    "one factor": np.outer([0.9, -0.5, 0.3, 0.6], [0.9, -0.5, 0.3, 0.6]) + 0.5 * np.eye(4),
    "blocks": block_diag(dense(2), dense(2, 1)),
    "three": np.eye(3),
}


@pytest.mark.full
@pytest.mark.parametrize("name", MOVED)
def test_a_held_structure_is_one_smooth_function_of_the_matrix(name):
    """Once NaN at any other matrix, and refused for a factor."""
    matrix = MOVED[name]
    d = len(matrix)
    loc, low, high = np.zeros(d), np.array([-1.0, -0.5, 0.0, -1.0])[:d], [INF, 1.0, INF, 0.5][:d]
    box, move = tg.Box(low, np.array(high)), np.zeros((d, d))
    move[0, 2] = move[2, 0] = 0.3
    held = tg.Automatic().hold(loc, matrix, box)
    ask = jax.jit(lambda x: tg.log_probability(loc, x, box, held))
    along = jax.jit(jax.grad(lambda t: ask(matrix + t * move).log_prob))
    got, truth = ask(matrix), tg.log_probability(loc, matrix, box)
    np.testing.assert_allclose(got.log_prob, truth.log_prob, rtol=1e-12)
    assert got.stderr == 0
    general = tg.Separation(2**14, 8)
    for t in (1e-6, 0.05, 1.0):
        value = ask(matrix + t * move)
        other = tg.log_probability(loc, matrix + t * move, box, general, jax.random.key(1))
        error = np.hypot(value.stderr, other.stderr)
        assert abs(value.log_prob - other.log_prob) < 5 * error + 1e-9 and value.stderr < 1e-3
    for t in (0.0, 1e-6, 1.0):
        ends = [ask(matrix + (t + step) * move).log_prob for step in (1e-4, -1e-4)]
        np.testing.assert_allclose(along(t), (ends[0] - ends[1]) / 2e-4, rtol=1e-5, atol=1e-7)
    if name != "identity":
        return
    curve = (along(1e-4) - along(-1e-4)) / 2e-4
    np.testing.assert_allclose(jax.jit(jax.grad(along))(0.0), curve, rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_a_method_held_at_a_diagonal_factor_follows_it():
    loc, box = np.zeros(4), tg.Box([-1.0, -0.5, 0.0, -1.0], [INF, 1.0, INF, 0.5])
    moved = jnp.eye(4).at[0, 2].set(0.3).at[2, 0].set(0.3)
    held = tg.Automatic().hold(loc, tg.ScaleTril(np.eye(4)), box)
    got = tg.log_probability(loc, tg.ScaleTril(jnp.linalg.cholesky(moved)), box, held)
    truth = tg.log_probability(loc, moved, box)  # blocks of two, exact
    assert truth.stderr == 0 and 0 < got.stderr < 1e-4
    assert abs(got.log_prob - truth.log_prob) < 5 * got.stderr


# --- Diagonal covariances, of whose zeros log P is a function

LIMITS = np.array([0.0, -1.0, -INF, 0.2]), np.array([INF, 1.0, 0.5, 2.0])
LOC, SCALE = np.array([0.3, -0.2, 0.5, 0.1]), np.array([1.0, 0.7, 1.3, 1.1])


def factor_and_move():
    move = [[0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [-2.0, 1.0, 0.0, 0.0], [0.5, 1.0, 1.0, 0.0]]
    return np.diag(SCALE), np.array(move)


def _of_factor(factor, **others):
    return tg.log_probability(LOC, tg.ScaleTril(factor), tg.Box(*LIMITS), **others).log_prob


DIAGONAL = {
    "factor": _of_factor,
    "t": lambda factor: _of_factor(factor, df=4.0),
    "matrix": lambda factor: of(LOC, factor @ factor.T, *LIMITS),
    "batch of factors": lambda factor: _of_factor(jnp.stack([factor, 1.5 * factor])).sum(),
    "batch of matrices": lambda factor: of(
        LOC, jnp.stack([factor @ factor.T, 1.5 * factor @ factor.T]), *LIMITS
    ).sum(),
    "outside": lambda factor: (
        tg.log_probability(LOC, tg.ScaleTril(factor), tg.Outside(tg.Box(*LIMITS))).log_prob
    ),
    "fraction": lambda factor: tg.fraction_not_truncated(
        LOC, tg.ScaleTril(factor), tg.Box(*LIMITS)
    ),
    "distribution": lambda factor: tg.TruncatedMultivariateNormal(
        LOC, scale_tril=factor, low=LIMITS[0], high=LIMITS[1]
    ).log_prob(np.full(4, 0.4)),
    "quantile": lambda factor: tg.quantile(0.9, np.zeros(4), tg.ScaleTril(factor)).value,
}


@pytest.mark.quick("factor")
@pytest.mark.parametrize("name", DIAGONAL)
def test_a_diagonal_factor_is_differentiated_in_its_zeros(name):
    """Outside of `jit` these derivatives were 0. The truth is in differences under `jit`, where
    nothing is recognised."""
    function, (factor, move) = DIAGONAL[name], factor_and_move()
    value, slope = jax.jvp(lambda t: function(factor + t * move), (0.0,), (1.0,))
    np.testing.assert_allclose(value, function(factor), rtol=1e-11)
    gradient = jax.grad(function)(jnp.asarray(factor))
    np.testing.assert_allclose(slope, np.sum(gradient * move), rtol=1e-8)
    traced = jax.jit(function)
    step = 1e-3
    ends = [traced(factor + sign * step * move) for sign in (1, -1)]
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2 * step), rtol=2e-3, atol=1e-4)


def test_the_gradient_at_an_identity_is_exact():
    box = tg.Box(np.zeros(4), INF)
    for form, truth in ((tg.ScaleTril(np.eye(4)), 2 / np.pi), (np.eye(4), 1 / np.pi)):
        result = tg.log_probability_and_gradient(np.zeros(4), form, box)
        slopes, errors = result.gradient.covariance, result.stderr.covariance
        if isinstance(form, tg.ScaleTril):
            slopes, errors = slopes.matrix, errors.matrix
        np.testing.assert_allclose(slopes[1, 0], truth, rtol=1e-14)
        assert errors[1, 0] == 0


@pytest.mark.full
@pytest.mark.parametrize("form", ["factor", "matrix"])
def test_second_derivatives_at_a_diagonal_covariance(form):
    """Against two blocks of two, whose log P is known for any matrix."""
    pairs = [np.array([0, 1]), np.array([2, 3])]
    move = np.zeros((4, 4))
    move[0, 1] = move[1, 0] = 0.6
    move[2, 3] = move[3, 2] = -0.4

    def of_pairs(loc, t):
        matrix = np.diag(SCALE**2) + t * move
        parts = [of(loc[k], matrix[np.ix_(k, k)], LIMITS[0][k], LIMITS[1][k]) for k in pairs]
        return sum(parts)

    def whole(loc, t):
        matrix = np.diag(SCALE**2) + t * move
        if form == "matrix":
            return of(loc, matrix, *LIMITS)
        factor = tg.ScaleTril(jnp.linalg.cholesky(matrix))
        return tg.log_probability(loc, factor, tg.Box(*LIMITS)).log_prob

    first = 1 if form == "factor" else 0
    derivative = lambda f: jax.jacfwd(jax.grad(f, first), 1)(jnp.asarray(LOC), 0.0)
    np.testing.assert_allclose(derivative(whole), derivative(of_pairs), rtol=1e-7, atol=1e-9)


@pytest.mark.full
def test_a_gradient_is_accumulated_over_the_pieces_of_a_growing_lattice(monkeypatch):
    """In a pass for each key over sixteen pieces of the lattice, as in reverse mode over all."""
    loc, covariance, low, high = inputs("dense")
    box = tg.Box(low, high)
    problem = as_problem(loc, covariance, box)
    monkeypatch.setattr(separation, "CPU_POINTS", 16)
    held = tg.Separation(num_points=64).hold(loc, covariance, box)
    pieces = held.in_pieces(4)
    assert pieces.num_points == 16 and pieces.lattice.num_pieces == 16
    key = jax.random.key(3)
    found, gradient = estimate_with_gradient(pieces, problem, key)
    whole, reverse = estimate_with_gradient(held.enlarged(4), problem, key)
    for one, other in zip(jax.tree.leaves((found, gradient)), jax.tree.leaves((whole, reverse))):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.full
def test_a_gradient_at_more_points_compiles_nothing(compilations):
    given, counts = inputs("dense"), [len(compilations)]
    jax.clear_caches()
    for rtol in (1e-2, 1e-5):
        method = tg.Automatic(rtol=rtol)
        jax.value_and_grad(of)(*given, method)
        counts.append(len(compilations))
    assert counts[0] < counts[1] == counts[2]
    shown = str(tg.explain(*given[:2], tg.Box(*given[2:]), method=method))
    assert "num_points=16384" in shown  # and not the 1024 that it begins with


def test_rows_of_vmap_are_computed_one_after_the_other():
    """Two axes of rows, of means and of covariances: the numbers and the memory of single rows."""
    d = 5
    region, keys = tg.Box(np.zeros(d), np.inf), jax.random.split(jax.random.key(1), 3)

    def log_prob(loc, covariance, key):
        return tg.log_probability(loc, covariance, region, tg.Separation(), key).log_prob

    one = jax.jit(jax.value_and_grad(log_prob, argnums=(0, 1)))
    inner = jax.vmap(jax.value_and_grad(log_prob, argnums=(0, 1)), in_axes=(0, None, 0))
    many = jax.jit(jax.vmap(inner, in_axes=(None, 0, None)))
    means = np.linspace(-1.0, 1.0, 3 * d).reshape(3, d)
    covariances = tridiagonal(d) * np.array([1.0, 0.5])[:, None, None]
    program = many.lower(means, covariances, keys).compile()
    value, slopes = jax.tree.map(np.asarray, program(means, covariances, keys))
    for i, j in ((0, 0), (1, 0), (1, 2)):
        alone = one(means[j], covariances[i], keys[j])
        got = value[i, j], jax.tree.map(lambda slope, at=(i, j): slope[at], slopes)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12), got, alone
        )
    stored = 16 * 1024 * d * 8  # bytes of the draws of a row
    assert program.memory_analysis().temp_size_in_bytes < 3 * 6 * stored
