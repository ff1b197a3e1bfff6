"""Masses of boxes for the rows of fits: against exact methods, and where they do not reach."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from tests.exact_rows import log_prob_by
from truncgauss.likelihood import nested
from truncgauss.likelihood.nested import NestedQuadrature

jax.config.update("jax_enable_x64", True)
one_box = jax.jit(nested.log_box)


def log_mass(*box):
    """The plain sum over the nodes, with limits that are finite."""
    return jnp.log(nested.points_in(*(jnp.clip(x, -1e150, 1e150) for x in box)).mass())


def random_boxes(d, count, seed):
    """Limits and Cholesky factors of correlations of every strength, some limits far, some near to
    each other, (count, d) and (count, d, d)."""
    rng = np.random.default_rng(seed)
    factors, low, high = np.zeros((count, d, d)), np.zeros((count, d)), np.zeros((count, d))
    for k in range(count):
        kind = rng.integers(3)
        root = rng.normal(size=(d, d + rng.integers(6)))
        matrix = root @ root.T
        if kind == 1:
            rho = rng.uniform(-0.9 / (d - 1), 0.98)
            matrix = np.full((d, d), rho) + (1.0 - rho) * np.eye(d)
        if kind == 2:
            matrix = np.outer(root[:, 0], root[:, 0]) + np.diag(rng.uniform(0.01, 1.0, d))
        scale = np.sqrt(np.diagonal(matrix))
        factors[k] = np.linalg.cholesky(matrix / np.outer(scale, scale))
        high[k] = rng.normal(size=d) * rng.choice([0.5, 1.0, 3.0])
        width = 10.0 ** rng.uniform(-3.0, 0.5, d)
        low[k] = np.where(rng.random(d) < 0.5, -np.inf, high[k] - width)
        if rng.random() < 0.5:
            low[k], high[k] = -high[k], -low[k]
    return low, high, factors


def truths(low, high, factors):
    scales = tg.ScaleTril(jnp.asarray(factors))
    return np.asarray(tg.log_probability(np.zeros(low.shape), scales, tg.Box(low, high)).log_prob)


@pytest.mark.quick("2-400-0.9")
@pytest.mark.parametrize("d, count, reached", [(2, 400, 0.9), (3, 200, 0.7)])
def test_what_is_claimed_is_right(d, count, reached):
    """An error of 0 means seven digits, as a rule twelve; any other bounds the error."""
    low, high, factors = random_boxes(d, count, d)
    found = jax.jit(jax.vmap(nested.log_box))(low, high, np.zeros_like(low), factors)
    errors, claimed = np.abs(found.log_prob - truths(low, high, factors)), np.asarray(found.error)
    certain, known = claimed == 0, np.isfinite(claimed)
    assert np.mean(certain) > reached and np.all(errors[certain] < 1e-8)
    assert np.all(errors[known] <= claimed[known] + 1e-8)


@pytest.mark.quick("2-counts0")
@pytest.mark.parametrize("d, counts", [(2, (8, 16, 24)), (3, (10, 20)), (4, (8, 14))])
def test_errors_known_beforehand_bound_those_of_few_nodes(d, counts, monkeypatch):
    """Where no mass was cut off; the bound is no vacuous one either."""
    low, high, factors = random_boxes(d, 60, 20 + d)
    boxes = low, high, np.zeros_like(low), factors

    def both(*box):
        points = nested.points_in(*box)
        larger, smaller = points.tails()
        mass = jnp.sum(points.weight * (larger - smaller))
        cut = jnp.abs(jnp.sum(points.check * (larger - smaller)) / mass - 1.0)
        return mass, nested.error_beforehand(points, box[-1], nested.NODES[d]), cut

    def each():  # compiled anew, for other numbers of nodes
        return map(
            np.asarray, jax.jit(lambda boxes: jax.lax.map(lambda box: both(*box), boxes))(boxes)
        )

    fine, _, cut = each()
    kept = cut < 1e-12
    sharp = 0
    for count in counts:
        monkeypatch.setitem(nested.NODES, d, count)
        mass, bound, _ = each()
        assert np.all(np.abs(mass - fine)[kept] <= bound[kept] + 1e-13)
        sharp += np.sum(bound[kept] < 1e-3)
    assert kept.mean() > 0.4 and sharp > 10


def test_fewer_nodes_are_used_where_they_are_enough():
    """Batches of moderate boxes, with fewer nodes, and of any boxes, with all."""
    rng, n = np.random.default_rng(3), 40
    below = rng.normal(size=(n, 3))
    low, high = np.where(below > 0, -np.inf, below), np.where(below > 0, below, np.inf)
    factor = np.linalg.cholesky([[1.0, 0.5, 0.3], [0.5, 1.0, 0.4], [0.3, 0.4, 1.0]])
    loc, factors = np.zeros((n, 3)), np.broadcast_to(factor, (n, 3, 3))
    boxes = jax.jit(functools.partial(nested.log_boxes, True))
    every = jax.jit(jax.vmap(nested.log_box))
    few = jax.jit(jax.vmap(functools.partial(nested.log_box, count=nested.FEWER[3])))
    found = boxes(low, high, loc, factors)
    for part, one, all_of_them in zip(
        found, few(low, high, loc, factors), every(low, high, loc, factors)
    ):
        np.testing.assert_array_equal(part, one)
        np.testing.assert_allclose(part, all_of_them, rtol=0, atol=1e-11)
    low, high, factors = random_boxes(3, n, 5)
    found = boxes(low, high, loc, factors)
    for part, one in zip(found, every(low, high, loc, factors)):
        np.testing.assert_array_equal(part, one)


def test_steep_limits_at_any_place_are_seen():
    """Quadrants of nearly equal variables: the error oscillates with the place of the step."""
    rng = np.random.default_rng(0)
    rho = (1.0 - 10.0 ** rng.uniform(-3.5, -0.3, 4000)) * rng.choice([-1.0, 1.0], 4000)
    low = rng.normal(size=(4000, 2)) * rng.choice([1.0, 2.0], (4000, 1))
    high, factors = np.full((4000, 2), np.inf), np.zeros((4000, 2, 2))
    factors[:, 0, 0], factors[:, 1, 0], factors[:, 1, 1] = 1.0, rho, np.sqrt(1.0 - rho**2)
    found = jax.jit(jax.vmap(nested.log_box))(low, high, np.zeros_like(low), factors)
    exact = truths(low, high, factors)
    errors, claimed = np.abs(found.log_prob - exact), np.asarray(found.error)
    known = np.isfinite(claimed) & (exact > -300)
    assert np.mean(claimed == 0) > 0.4
    assert np.all(errors[known] <= np.maximum(claimed[known], 1e-7))


@pytest.mark.full
def test_four_variables_are_those_of_a_finer_rule(monkeypatch):
    low, high, factors = random_boxes(4, 24, 4)
    found = jax.jit(jax.vmap(nested.log_box))(low, high, np.zeros_like(low), factors)
    monkeypatch.setitem(nested.NODES, 4, 56)
    fine = jax.lax.map(
        lambda row: log_mass(*row[:2], jnp.zeros(4), row[2]),
        (jnp.asarray(low), jnp.asarray(high), jnp.asarray(factors)),
    )
    errors, claimed = np.abs(found.log_prob - fine), np.asarray(found.error)
    known = np.isfinite(claimed)
    assert np.mean(known) > 0.6 and np.mean(claimed < 1e-4) > 0.4
    assert np.all(errors[known] <= claimed[known] + 1e-8)


@pytest.mark.quick("1")
@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_scores_are_the_derivative_of_the_sum(d):
    """The closed forms beside the derivatives of the quadrature."""
    low, high, factors = random_boxes(d, 6, 10 + d) if d > 1 else random_boxes(2, 6, 9)
    low, high, factors = low[:, :d], high[:, :d], factors[:, :d, :d]
    slopes = jax.jit(jax.grad(log_mass, argnums=(0, 1, 2, 3)))
    for a, b, factor in zip(low, high, factors):
        loc = 0.1 * np.arange(1.0, d + 1.0)
        found = one_box(a, b, loc, factor)
        if found.error > 0:
            continue
        every = list(map(np.asarray, slopes(a, b, loc, factor)))
        scale = 1e-7 * max(1.0, *(np.abs(part).max() for part in every))
        np.testing.assert_allclose(found.by_loc, every[2], rtol=0, atol=scale)
        np.testing.assert_allclose(found.by_factor, np.tril(every[3]), rtol=0, atol=scale)
        np.testing.assert_allclose([found.by_low, found.by_high], every[:2], rtol=0, atol=scale)


def test_what_is_steeper_than_nodes_are_dense_is_not_claimed():
    """Coefficients of high degree are small by chance here, and the error is 1.6e-4."""
    last = [-0.780009004, -0.625731304, 0.0068]
    factor = np.array([[1.0, 0.0, 0.0], [0.476182279, 0.879346597, 0.0], last])
    low = np.array([-1.73341483, 0.32876002, -2.96504008])
    assert np.isnan(one_box(low, np.full(3, np.inf), np.zeros(3), factor).log_prob)


@pytest.mark.full
def test_derivatives_of_the_method():
    """By the Gaussian alone and by the limits too, under vmap, beside exact ones."""
    covariance = jnp.array([[1.0, 0.5, 0.2], [0.5, 2.0, 0.1], [0.2, 0.1, 0.5]])
    limits = jnp.array([-1.0, -jnp.inf, 0.2]), jnp.array([0.5, 1.0, jnp.inf])
    point = jnp.zeros(3), covariance, *limits
    for which in ((0, 1), (0, 1, 2, 3)):
        ours = jax.jit(jax.grad(log_prob_by(NestedQuadrature()), which))(*point)
        exact = jax.jit(jax.grad(log_prob_by(tg.Exact()), which))(*point)
        for a, b in zip(ours, exact):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def test_what_is_not_resolved_is_not_claimed():
    inf = np.inf
    for low, high, rho in (
        ([0.0, -inf], [inf, 0.0], 0.99999),  # a step between two nodes
        ([-inf, 40.0], [inf, inf], 0.0),  # no mass in floats
        ([-inf, 10.0], [inf, inf], 0.999),  # mass beyond what is integrated
        ([0.0, 0.1], [1.0, 0.1 + 1e-13], 0.3),  # tails that cancel
    ):
        factor = np.linalg.cholesky([[1.0, rho], [rho, 1.0]])
        found = one_box(np.array(low), np.array(high), np.zeros(2), factor)
        assert not found.error == 0.0, (low, high, rho)


@pytest.mark.full
def test_fits_go_on_with_exact_integrals_where_nodes_do_not_reach():
    """Nearly collinear outcomes with limits of detection: the fit is that by exact integrals."""
    rng = np.random.default_rng(0)
    rows = rng.multivariate_normal([0.5, 0.2], [[1.0, 0.9995], [0.9995, 1.0]], 80)
    lower, upper = np.where(rows < 0.0, -np.inf, rows), np.maximum(rows, 0.0)
    observations = tg.Observations(lower, upper)
    ours = tg.fit_observations(observations, progress=False, num_profiles=0)
    exact = tg.fit_observations(observations, method=tg.Exact(), progress=False, num_profiles=0)
    assert ours.converged and ours.log_likelihood_stderr == 0.0
    np.testing.assert_allclose(ours.estimates, exact.estimates, rtol=1e-7)
    np.testing.assert_allclose(ours.errors, exact.errors, rtol=1e-5)


@pytest.mark.full
def test_joined_patterns_are_those_apart(monkeypatch):
    """Exact, censored, interval and missing entries in every order, with a region and noise."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=(12, 3))
    kinds = np.tile(rng.integers(4, size=(6, 3)), (2, 1))
    lower = np.select([kinds == 0, kinds == 2], [values, values - 0.5], -np.inf)
    upper = np.select([kinds == 3], [np.inf], np.maximum(values, lower))
    upper = np.where(kinds == 2, values + 0.5, upper)
    noise = rng.uniform(0.1, 0.3, size=values.shape)
    region = tg.Box(jnp.full(3, -4.0), jnp.array([4.0, jnp.inf, 5.0]))
    loc, root = jnp.array([0.1, -0.2, 0.3]), jnp.array([[1.0, 0, 0], [0.4, 0.9, 0], [0.3, -0.2, 1]])

    def terms(**more):
        rows = tg.Observations(lower, upper, **more)

        def total(loc, covariance):
            return tg.log_likelihood(rows, loc, covariance).log_prob.sum()

        each = tg.log_likelihood(rows, loc, root @ root.T).log_prob
        return rows.orders is not None, each, *jax.grad(total, (0, 1))(loc, root @ root.T)

    for more in ({}, {"noise": noise}, {"region": region}, {"noise": noise, "region": region}):
        joined = terms(**more)
        monkeypatch.setattr("truncgauss.likelihood.patterns.MOST_JOINED", 0)
        apart = terms(**more)
        monkeypatch.undo()
        assert joined[0] and not apart[0]
        for a, b in zip(joined[1:], apart[1:]):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
