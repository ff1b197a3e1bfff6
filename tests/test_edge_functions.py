"""Edges that are functions of the margin: their derivatives, widths, compilations and refusals."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg

LOC, MATRIX = jnp.array([0.3, -0.2]), jnp.array([[1.0, 0.5], [0.5, 2.0]])
BOX = tg.Box([-1.0, -jnp.inf], [1.0, 1000.0])
SAMPLES = jax.random.normal(jax.random.key(1), (400, 2))


def fraction(edge, loc=LOC, region=BOX, **settings):
    method = tg.SoftMonteCarlo(samples=SAMPLES, edge=edge, **settings)
    return tg.fraction_not_truncated(loc, MATRIX, region, method)


def logistic(margin):
    return jax.nn.sigmoid(4.0 * margin)


def derivatives(edge):
    """The value, its slopes in the mean and the limits, and the Hessian in the mean."""
    of = lambda loc, box: fraction(edge, loc, box)
    value, slopes = jax.value_and_grad(of, (0, 1))(LOC, BOX)
    return jax.tree.leaves([value, slopes, jax.hessian(of)(LOC, BOX)])


LOGISTICS = [logistic, tg.EdgeFunction(lambda m: -jnp.log1p(jnp.exp(-4.0 * m)), log=True)]


@pytest.mark.quick("log")
@pytest.mark.parametrize("edge", LOGISTICS, ids=["value", "log"])
def test_a_function_has_the_derivatives_of_the_class_of_the_same_edge(edge):
    for ours, theirs in zip(derivatives(edge), derivatives(tg.Tanh(4.0))):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-13)


@jax.custom_vjp
def backward(margin):
    return jnp.where(margin > 0, 1.0, 0.0)


backward.defvjp(lambda m: (backward(m), m), lambda m, ct: (ct * jnp.exp(-(m**2)),))


@jax.custom_jvp
def forward(margin):
    return jnp.where(margin > 0, 1.0, 0.0)


forward.defjvps(lambda dm, value, m: dm * jnp.exp(-(m**2)))


@pytest.mark.parametrize("away", [0.0, 5.0])
@pytest.mark.parametrize("step", [backward, forward])
@pytest.mark.parametrize("under", [lambda f: f, jax.jit])
def test_the_rule_of_a_step_holds_where_its_value_is_0(step, under, away):
    """The value is the share inside; the slope sum_i sum_j f'(m_ij) prod_{k != j} f(m_ik) / n, also
    where no sample is inside."""
    loc = LOC - jnp.array([away, 0.0])
    value, slope = under(jax.value_and_grad(lambda loc: fraction(step, loc)))(loc)
    x = np.asarray(loc + SAMPLES @ np.linalg.cholesky(MATRIX).T)
    margins = np.stack([x[:, 0] + 1.0, 1.0 - x[:, 0], 1000.0 - x[:, 1]], 1)
    inside = (margins > 0).astype(float)
    slopes = np.exp(-(margins**2))
    others = np.stack([np.delete(inside, j, 1).prod(1) for j in range(3)], 1)
    by_face = (slopes * others).mean(0)
    assert (value == 0) == (away > 0) and by_face[0] > 0
    np.testing.assert_allclose(value, inside.prod(1).mean(), rtol=1e-13)
    np.testing.assert_allclose(slope, [by_face[0] - by_face[1], -by_face[2]], rtol=1e-12)


@jax.custom_jvp
def ignoring(margin, width):
    return jnp.where(margin > 0, 1.0, 0.0)


ignoring.defjvp(lambda p, t: (ignoring(*p), t[0] * jnp.exp(-((p[0] / p[1]) ** 2)) / p[1]))


def test_a_rule_that_leaves_out_a_width_has_mixed_derivatives():
    """The value does not depend on the width, of which the slope does."""
    of = lambda width, loc: fraction(lambda m: ignoring(m, width), loc)
    assert jax.grad(of)(0.7, LOC) == 0.0
    slope = lambda width: jax.grad(of, 1)(width, LOC)[0]
    by_steps = (slope(0.7001) - slope(0.6999)) / 2e-4
    np.testing.assert_allclose(jax.grad(slope)(0.7), by_steps, rtol=1e-6)


@pytest.mark.quick("jit")
@pytest.mark.parametrize("under", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_numbers_of_a_loss_over_which_a_function_closes_are_differentiated(under):
    of_class = lambda width: fraction(tg.Probit(width))
    of_function = lambda width: fraction(lambda m: jax.scipy.stats.norm.cdf(m / width))
    for width in (jnp.array(0.3), jnp.array([0.3, 0.7]), jnp.array([0.3, 0.7, 0.5, 0.2])):
        ours, theirs = (under(jax.value_and_grad(f))(width) for f in (of_function, of_class))
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
            np.testing.assert_allclose(a, b, rtol=1e-10)
    rule = jax.custom_vjp(lambda m, w: jnp.where(m > 0, 1.0, 0.0))
    rule.defvjp(lambda m, w: (rule(m, w), (m, w)), lambda mw, ct: (0 * mw[0], ct * mw[0] * mw[1]))
    slope = under(
        jax.grad(lambda w: fraction(lambda m: rule(m, w), region=tg.Box([-1.0, -jnp.inf], jnp.inf)))
    )(2.0)
    first = LOC[0] + SAMPLES[:, 0] + 1.0
    np.testing.assert_allclose(slope, 2.0 * first.mean(), rtol=1e-12)


def test_one_that_enters_through_comparisons_alone_has_no_derivative():
    slope = jax.grad(lambda c: fraction(lambda m: jnp.where(m > c, 1.0, 0.0)))(0.1)
    assert np.isnan(slope)


def test_the_same_function_shares_a_compilation_and_nan_stays_nan():
    traces = []

    @jax.jit
    def of(method, loc):
        traces.append(None)
        return tg.fraction_not_truncated(loc, MATRIX, BOX, method)

    for shift in (0.0, 0.5):
        value = of(tg.SoftMonteCarlo(samples=SAMPLES, edge=logistic), LOC + shift)
        np.testing.assert_allclose(value, fraction(tg.Tanh(4.0), LOC + shift), rtol=1e-12)
    assert len(traces) == 1
    assert np.isnan(of(tg.SoftMonteCarlo(samples=SAMPLES, edge=logistic), LOC * jnp.nan))
    naive = lambda m: 1.0 / (1.0 + jnp.exp(-4.0 * m))  # whose slope is NaN far outside
    far = tg.Box([0.0, -jnp.inf], [1000.0, 1e4])
    assert np.isnan(jax.grad(lambda loc: fraction(naive, loc, far))(LOC - 400.0)).any()


def results(edge):
    rows = LOC + jnp.arange(3.0)[:, None]
    surrogate = lambda loc: fraction(tg.Surrogate(edge), loc)
    return [
        jax.vmap(lambda loc: fraction(edge, loc))(rows),
        fraction(edge, rows),
        tg.log_probability(LOC, MATRIX, BOX, tg.SoftMonteCarlo(64, 4, edge)).log_prob,
        tg.truncated_moments(LOC, MATRIX, BOX, tg.SoftMonteCarlo(64, 1, edge)).mean,
        *jax.value_and_grad(surrogate)(LOC),
    ]


@pytest.mark.full
def test_functions_in_batches_replicates_moments_and_surrogates():
    for ours, theirs in zip(results(tg.EdgeFunction(logistic)), results(tg.Tanh(4.0))):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11)


@jax.custom_jvp
def falling(margin):
    return jnp.where(margin > 0, 1.0, 0.0)


falling.defjvps(lambda dm, value, m: -dm * jnp.exp(-(m**2)))


@pytest.mark.parametrize(
    "function, kind, words",
    [
        (lambda m: 4.0 * m, ValueError, "margin -100.0 the function returns -400, expected from 0"),
        (lambda m: -jnp.exp(-m), ValueError, r"tg.EdgeFunction\(function, log=True\)"),
        (lambda m: jax.nn.sigmoid(-m), ValueError, "it must rise. Change the sign"),
        (lambda m: 0.5 + 0 * m, ValueError, "0.5 at margin -100, .* and at 100, far inside"),
        (falling, ValueError, "rises from 0 to 1, but its rule .* says -1 at margin 0.0"),
        (lambda m: m.mean(keepdims=True) * jnp.ones((2, 2)), ValueError, "to values one by one"),
        (lambda m: np.exp(-np.exp(-m)), TypeError, "with jax.numpy instead of numpy"),
        (tg.Tanh, ValueError, "or a function of the margin"),
        (3.0, ValueError, "or a function of the margin"),
    ],
)  # fmt: skip
def test_what_is_no_edge_is_refused(function, kind, words):
    with pytest.raises(kind, match=words):
        tg.SoftMonteCarlo(edge=function)
    with pytest.raises(ValueError, match=r"or tg.EdgeFunction\(function\) of a function"):
        tg.Surrogate(function)


def test_values_outside_of_0_and_1_are_nan_where_they_are_first_seen():
    value = jax.jit(lambda a: fraction(lambda m: a * jax.nn.sigmoid(m)))(2.0)
    assert np.isnan(value)


@pytest.mark.parametrize("make", [tg.Tanh, lambda w: lambda m: jax.nn.sigmoid(m * w)])
def test_widths_are_those_of_coordinates_or_faces(make):
    half, whole = jnp.array([3.0, 5.0]), jnp.array([3.0, 5.0, 3.0, 5.0])
    by_hand = tg.Tanh(whole).value(BOX.margins(LOC + SAMPLES @ jnp.linalg.cholesky(MATRIX).T))
    expected = by_hand.prod(1).mean()
    for widths in (half, whole):
        np.testing.assert_allclose(fraction(make(widths)), expected, rtol=1e-12)
    words = "the edge has 3 widths, but the Box has 4 faces, first all lower and then all upper"
    with pytest.raises(ValueError, match=words):
        fraction(make(jnp.ones(3)))
    one = tg.Ball([0.0, 0.0], 2.0)
    with pytest.raises(ValueError, match="2 widths, but the Ball has 1 faces. Give 1 width"):
        fraction(make(half), region=one)


def test_a_rule_of_ones_own_made_under_vmap_and_hessian():
    @jax.custom_jvp
    def kept(margin):
        return jax.nn.sigmoid(margin)

    kept.defjvp(lambda p, t: (kept(*p), kept(*p) * kept(-p[0]) * t[0]))
    samples = jax.random.normal(jax.random.key(0), (50, 1))
    box = tg.Box([0.0], [9.0])

    def share(loc, edge=kept):
        return tg.fraction_not_truncated(
            loc, [[1.0]], box, tg.SoftMonteCarlo(samples=samples, edge=edge)
        )

    locs = jnp.array([[0.5], [1.0]])
    plain = [share(loc, tg.Tanh(1.0)) for loc in locs]
    np.testing.assert_allclose(jax.vmap(share)(locs), plain, rtol=1e-12)
    bends = [jax.hessian(partial(share, edge=edge))(locs[0]) for edge in (kept, tg.Tanh(1.0))]
    np.testing.assert_allclose(*bends, rtol=1e-9)
