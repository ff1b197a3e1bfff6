"""Clusters under every covariance term against brute quadrature, on random small designs."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import truncgauss as tg
from tests.referee import oracles
from truncgauss.fits.clusters.cluster_fit import effects_given, effects_of, model_of
from truncgauss.fits.clusters.cluster_likelihood import limited_moments, moments_by_slopes
from truncgauss.fits.clusters.long_tables import inputs_of
from truncgauss.fitting.newton import derivatives, point
from truncgauss.gaussian.covariances import CovarianceMatrix
from truncgauss.gaussian.regions.box import Box
from truncgauss.likelihood import common_effect, effect_sums
from truncgauss.likelihood.conditioning import Integrals
from truncgauss.likelihood.nested import NestedQuadrature
from truncgauss.special import log_interval_mass, standardize

ROWS, DESIGNS, NODES = 6, 7, 64
KIN = np.full((ROWS, ROWS), 0.5) + 0.5 * np.eye(ROWS)
KIN[0, 1] = KIN[1, 0] = 0.0
HOUSE = np.kron(np.eye(2), np.ones((3, 3)))
CORRELATIONS = 0.6 ** np.abs(np.subtract.outer(range(ROWS), range(ROWS)))
DEVIATIONS = np.array([1.0, 0.8, 1.2, 0.9, 1.1, 1.3])
LOADINGS = np.array([0.9, 0.5, -0.4, 0.7, 0.6, 0.8])


def matern(smoothness):
    def matrix(d):
        s = (2.0 * smoothness) ** 0.5 * d["gap"] / 1.5
        more = {0.5: 1.0, 1.5: 1.0 + s, 2.5: 1.0 + s + s**2 / 3.0}[smoothness]
        return 0.81 * more * np.exp(-s) + 0.49 * np.eye(ROWS)

    terms = tg.Matern(["time"], smoothness=smoothness), tg.Residual()
    return terms, [0.9, 1.5, 0.7], matrix


def process(rho):
    terms = tg.AutoRegressive("visit"), tg.Residual()
    return terms, [0.9, rho, 0.7], lambda d: 0.81 * rho ** d["visits"] + 0.49 * np.eye(ROWS)


KINDS = {  # terms, their parameters, and the covariance of a cluster
    "two effects": (
        (tg.RandomEffects("1 + time"), tg.Residual()),
        [0.9, 0.6, -0.3, 0.7],
        lambda d: d["z"] @ [[0.81, -0.162], [-0.162, 0.36]] @ d["z"].T + 0.49 * np.eye(ROWS),
    ),
    "autoregressive": process(0.7),
    "alternating": process(-0.6),
    "exponential": (
        (tg.Exponential("time"), tg.Residual()),
        [0.9, 1.5, 0.7],
        lambda d: 0.81 * np.exp(-d["gap"] / 1.5) + 0.49 * np.eye(ROWS),
    ),
    "matern 3/2": matern(1.5),
    "matern 5/2": matern(2.5),
    "relatives": (
        (tg.Kinship(KIN, "item"), tg.Kinship(HOUSE, "item", name="house"), tg.Residual()),
        [0.8, 0.5, 0.7],
        lambda d: 0.64 * KIN + 0.25 * HOUSE + 0.49 * np.eye(ROWS),
    ),
    "factor": (
        (tg.Factor(1, "item"), tg.Diagonal("item")),
        [*LOADINGS, *DEVIATIONS],
        lambda d: np.outer(LOADINGS, LOADINGS) + np.diag(DEVIATIONS**2),
    ),
    "unstructured": (
        tg.Unstructured("item"),
        [*DEVIATIONS, *CORRELATIONS[np.tril_indices(ROWS, -1)]],
        lambda d: CORRELATIONS * np.outer(DEVIATIONS, DEVIATIONS),
    ),
    "competing": (
        tg.CommonCorrelation(negative=True),
        [1.1, -0.1],
        lambda d: 1.21 * (-0.1 + 1.1 * np.eye(ROWS)),
    ),
}


def reference(low, high, mean, covariance):
    """The log-likelihood of a cluster; what is missing says nothing."""
    known = np.isfinite(low) | np.isfinite(high)
    ends = low[known], high[known], mean[known], covariance[np.ix_(known, known)]
    return oracles.log_rows(*ends)[0]


def designs(matrix, seed):
    """Outcomes, covariates and columns of clusters whose entries are exact, censored, in intervals
    or missing, at most three of them limited."""
    rng, data, ends = np.random.default_rng(seed), [], []
    for _ in range(DESIGNS):
        time, visit = np.sort(rng.uniform(0, 4, ROWS)), np.cumsum(rng.integers(1, 4, ROWS))
        d = {"time": time, "visit": visit, "z": np.column_stack([np.ones(ROWS), time])}
        d |= {key: np.abs(np.subtract.outer(x, x)) for key, x in (("gap", time), ("visits", visit))}
        y = rng.multivariate_normal(0.3 + 0.5 * time, matrix(d))
        kind = rng.permutation([0, 0, *rng.integers(0, 5, 3), 4])  # 0: exact, 4: missing
        low = np.select([kind == 1, kind == 2, kind == 4], [-np.inf, np.floor(y), -np.inf], y)
        high = np.select(
            [kind == 1, kind == 2, kind == 3, kind == 4],
            [y + 0.3, np.floor(y) + 1.0, np.inf, np.inf],
            y,
        )
        data.append(d)
        ends.append((low, high))
    return data, ends


@pytest.mark.quick("matern 3/2")
@pytest.mark.parametrize("kind", KINDS)
def test_terms_agree_with_brute_quadrature(kind):
    terms, parameters, matrix = KINDS[kind]
    data, ends = designs(matrix, list(KINDS).index(kind))
    table = {name: np.concatenate([d[name] for d in data]) for name in ("time", "visit")}
    table["item"] = np.tile(np.arange(ROWS), DESIGNS)
    outcome = np.concatenate([np.column_stack(pair) for pair in ends])
    columns = outcome, "~ time", np.repeat(np.arange(DESIGNS), ROWS), None, None, None
    model = model_of(inputs_of(columns, table, False), terms, table)
    x = np.asarray(jax.jit(model.inner.free)(np.array([0.3, 0.5, *parameters])))
    result = model.loss_at(x).evaluated(x)
    value, error = (np.asarray(part)[model.table.number] for part in result)
    labels = model.table.labels
    expected = [reference(*ends[k], 0.3 + 0.5 * data[k]["time"], matrix(data[k])) for k in labels]
    assert np.abs(value - expected).max() < 1e-8 and error.max() < 1e-8


def test_tails_narrow_intervals_and_empty_clusters():
    spread, sigma, inf = 0.8, 0.6, np.inf
    narrow = 1e-7
    clusters = [
        ([-inf, 0.2, -0.1], [-20.0, 0.2, -0.1]),  # 20 deviations below the mean
        ([20.0, -inf, 0.5], [inf, 0.4, 0.7]),
        ([0.3, -0.2, 1.0], [0.3 + narrow, -0.2 + narrow, 1.0 + narrow]),
        ([25.0], [25.5]),
        ([0.7], [0.7]),
        ([-inf, -inf], [inf, inf]),  # all missing
        ([0.1, 0.9, -0.6], [0.1, 0.9, -0.6]),  # all exact
    ]
    outcome = np.concatenate([np.column_stack(pair) for pair in clusters])
    label = np.repeat(np.arange(len(clusters)), [len(low) for low, _ in clusters])
    columns = outcome, np.ones((len(label), 1)), label, None, None, None
    made = model_of(inputs_of(columns, None, False), (tg.RandomEffects(), tg.Residual()))
    x = made.inner.free(jnp.asarray([0.0, spread, sigma]))
    value = np.asarray(made.loss_at(np.asarray(x)).evaluated(x).log_prob)[made.table.number]
    assert list(made.table.labels) == [0, 1, 2, 3, 4, 6]  # the missing one says nothing
    u = np.linspace(-45.0, 45.0, 360001)
    for number, got in zip(made.table.labels, value):
        logs = stats.norm.logpdf(u)
        for low, high in zip(*clusters[number]):
            a, b = (low - spread * u) / sigma, (high - spread * u) / sigma
            if high - low <= narrow:  # the density at the middle, to 1e-14
                logs += stats.norm.logpdf(0.5 * (a + b)) - np.log(sigma) + np.log(high - low or 1.0)
            elif np.isinf(low) or np.isinf(high):
                logs += special.log_ndtr(b if np.isinf(low) else -a)
            else:
                upper = np.where(a > 0, -a, b), np.where(a > 0, -b, a)
                first, second = map(special.log_ndtr, upper)
                logs += first + np.log(-np.expm1(second - first))
        expected = special.logsumexp(logs) + np.log(u[1] - u[0])
        assert abs(got - expected) < 1e-8 * max(1.0, abs(expected))


@pytest.mark.quick("2")
@pytest.mark.parametrize("rank", [1, 2])
def test_derivatives_over_effects_agree_with_those_of_a_plain_sum(rank):
    """Gradient and Hessian by means, loadings, noise and limits, in closed form, beside automatic
    differentiation of a Gauss-Hermite sum."""
    rng, d = np.random.default_rng(rank), 5
    low = np.array([-np.inf, -np.inf, 0.2, 0.4, -0.5])
    high = np.array([0.3, -1.0, np.inf, 0.45, 0.8])
    ends = np.isfinite(low), np.isfinite(high)
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    grid = np.stack(np.meshgrid(*[nodes] * rank), axis=-1).reshape(-1, rank)
    logs = np.log(np.stack(np.meshgrid(*[weights] * rank), axis=-1).prod(axis=-1).ravel())

    def parts(x):
        cuts = jnp.where(ends[0], x[-2 * d : -d], -np.inf), jnp.where(ends[1], x[-d:], np.inf)
        return x[:d], x[d : d + rank * d].reshape(d, rank), x[-3 * d : -2 * d], *cuts

    def quick(x):
        return common_effect.log_probability(*parts(x), moving=True)[0]

    def plain(x):
        loc, factor, scale, below, above = parts(x)
        a, b, width = standardize(below, above, loc + grid @ factor.T, scale)
        sums = jnp.sum(log_interval_mass(a, b, width), axis=1) + logs
        return jax.scipy.special.logsumexp(sums) - 0.5 * rank * np.log(2.0 * np.pi)

    numbers = [rng.normal(size=d), 0.5 * rng.normal(size=rank * d), rng.uniform(0.7, 1.0, d)]
    finite = [np.where(known, end, 0.0) for known, end in zip(ends, (low, high))]
    x = jnp.asarray(np.concatenate([*numbers, *finite]))
    counts = np.asarray(jax.jit(lambda x: common_effect.grid_of(*parts(x)).counts)(x))
    assert np.all(counts < 48) and np.all(counts > 10)
    for one, other in zip(*(jax.jit(all_derivatives(f))(x) for f in (quick, plain))):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-11)


@pytest.mark.full
@pytest.mark.parametrize("rank", [1, 2])
def test_batches_and_one_limit_beside_each_problem_alone(rank):
    """Problems of many numbers of nodes, in batches of as many, and each by itself with a lower
    limit of minus infinity: the integral, and two derivatives of it along some change. Without
    limits it is exactly 1."""
    rng, k, d = np.random.default_rng(rank), 2 * common_effect.LEAST_TOGETHER + 3, 3
    loc, factor = rng.normal(size=(k, d)), rng.normal(size=(k, d, rank))
    factor *= rng.choice([0.1, 1.0, 4.0], (k, 1, 1))
    scale = rng.uniform(0.5, 1.0, (k, d))
    high = np.where(rng.uniform(size=(k, d)) < 0.5, np.inf, 0.3)
    high[0] = np.inf
    problems = jnp.asarray(np.concatenate([loc, factor.reshape(k, -1), scale], axis=1))

    def one(x, high, low):
        parts = x[:d], x[d : d + rank * d].reshape(d, rank), x[-d:]
        return common_effect.log_probability(*parts, low, high)[0]

    def derivatives(function, x, change):
        return function(x), *jax.jvp(jax.grad(lambda x: jnp.sum(function(x))), (x,), (change,))

    low, changes = np.full(d, -np.inf), jnp.asarray(rng.normal(size=problems.shape))
    together = jax.vmap(lambda x, high: one(x, high, None))
    single = lambda x, high, change: derivatives(lambda x: one(x, high, low), x, change)
    compiled = jax.jit(lambda x: derivatives(lambda x: together(x, high), x, changes))
    value, slopes, bends = compiled(problems)
    single = jax.jit(single)
    counts = jax.vmap(lambda x, h: common_effect.grid_of(
        x[:d], x[d : d + rank * d].reshape(d, rank), x[-d:], None, h
    ).counts)(problems, jnp.asarray(high))  # fmt: skip
    assert len(np.unique(np.prod(counts, axis=1))) > 10 and np.all(counts[0] == 1)
    assert value[0] == 0.0 and not np.any(slopes[0]) and not np.any(bends[0])
    for i in range(k):
        alone = single(problems[i], high[i], changes[i])
        np.testing.assert_allclose(value[i], alone[0], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(slopes[i], alone[1], rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(bends[i], alone[2], rtol=1e-10, atol=1e-11)


def all_derivatives(function):
    return lambda x: (function(x), jax.grad(function)(x), jax.jacfwd(jax.grad(function))(x))


def test_sums_in_numpy_are_those_of_the_program_with_two_derivatives():
    """Of intervals, single limits, rows without any, tails beyond 40 and loadings up to 6, along
    five parameters in which limits and loadings are linear."""
    rng, k, d, q = np.random.default_rng(0), 4, 9, 5
    low = rng.normal(size=(k, d))
    high = low + rng.uniform(0.02, 2.0, (k, d))
    low[:, :3], high[:, 2:5] = -np.inf, np.inf
    low[3, 5:7], high[3, 5:7] = [40.0, -60.0], [41.0, -45.0]
    rates = rng.normal(size=(k, d)) * np.array([0.1, 1.0, 6.0, 0.5])[:, None]
    ends = np.stack([low, high, rates], axis=1)
    jacobian = np.where(np.isinf(ends)[..., None], 0.0, rng.normal(size=(k, 3, d, q)))
    result = effect_sums.sums(ends, jacobian)

    def program(x):
        loc, one = jnp.zeros(d), jnp.ones(d)
        moved = jnp.where(np.isinf(ends), ends, np.where(np.isinf(ends), 0.0, ends) + jacobian @ x)
        row = lambda a, b, r: common_effect.log_probability(loc, r[:, None], one, a, b, True)
        return jax.vmap(row)(moved[:, 0], moved[:, 1], moved[:, 2])[0]

    value, slope, bends = (
        f(np.zeros(q)) for f in (program, jax.jacfwd(program), hessians(program))
    )
    np.testing.assert_allclose(result.value, value, rtol=1e-13)
    np.testing.assert_allclose(np.einsum("kmd,kmdq->kq", result.slopes, jacobian), slope, rtol=1e-9)
    np.testing.assert_allclose(result.bends, bends, rtol=1e-8, atol=1e-9)
    assert not result.error.any()


def hessians(function):
    return jax.jacfwd(jax.jacrev(function))


def test_sums_in_numpy_leave_narrow_intervals_and_large_tables_to_the_program():
    rng = np.random.default_rng(0)
    ends = np.stack([rng.normal(size=(3, 4)), np.full((3, 4), np.inf), np.ones((3, 4))], axis=1)
    jacobian = np.ones((3, 3, 4, 2))
    assert effect_sums.sums(ends, jacobian).value.shape == (3,)
    narrow, unknown = ends.copy(), ends.copy()
    narrow[1, 1, 2], unknown[1, 2, 2] = narrow[1, 0, 2] + 1e-3, np.nan
    assert effect_sums.sums(narrow, jacobian) is None
    assert np.isnan(effect_sums.sums(unknown, jacobian).bends).all()
    large = np.broadcast_to(ends[:1], (20000, 3, 4))
    assert effect_sums.sums(large, np.broadcast_to(jacobian[:1], (20000, 3, 4, 2))) is None


FULL = [pytest.param(x, marks=pytest.mark.full) for x in ("ordered", "binary", "items")]


@pytest.mark.parametrize("kind", ["mixed", *FULL])
def test_points_of_a_fit_are_those_of_the_program_of_two_derivatives(kind):
    """Of ordered rows; of 0 and 1 in clusters of 1 to 15 rows, with noise; of exact, censored and
    interval ones; and of a factor."""
    rng, n = np.random.default_rng(1), 96
    cluster, x = np.arange(n) % 12, rng.normal(size=n)
    if kind == "binary":
        cluster = np.repeat(np.arange(12), [1, 1, 3, 5, 7, 8, 9, 10, 11, 12, 14, 15])
    y = 0.4 * x + rng.normal(size=12)[cluster] + rng.normal(size=n)
    outcome, low, noise = tg.Ordinal(np.digitize(y, [-1.0, 0.0, 1.0])), None, None
    terms, data = (tg.RandomEffects(), tg.Residual()), {"item": np.arange(n) // 12}
    if kind in ("mixed", "items"):
        outcome, low, noise = np.stack([y, y + (rng.random(n) < 0.3)], axis=1), -0.3, 0.1
        terms = terms if kind == "mixed" else (tg.Factor(1, "item"), tg.Diagonal("item"))
    if kind == "binary":
        outcome, noise = (y > 0.3).astype(float), 0.1 * rng.random(n)
    columns = outcome, np.column_stack([np.ones(n), x]), cluster, low, None, noise
    model = model_of(inputs_of(columns, data, kind == "binary"), terms, data)
    loss, at = model.loss_at(model.start), jnp.asarray(model.start) + 0.05
    known = loss.at_numbers(np.asarray(at))
    assert (loss.linear is None) == (kind in ("mixed", "items"))
    for one, other in zip(known, derivatives(loss, at)):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
    nowhere = loss.at_numbers(np.full(len(model.start), np.nan))
    assert np.isnan(nowhere[0]) and np.isnan(nowhere[2]).any()


def test_second_derivatives_over_effects_take_memory_in_proportion_to_the_rows():
    ones = jnp.ones(300)
    value = lambda x: common_effect.log_probability(x, ones[:, None], ones, -ones, ones)[0]
    program = jax.make_jaxpr(lambda x: jax.jvp(jax.grad(value), (x,), (x,)))(ones)
    shapes = re.findall(r"f64\[([\d,]+)\]", str(program))
    largest = max(np.prod([int(n) for n in shape.split(",")]) for shape in shapes)
    assert 300 * common_effect.BLOCK <= largest < 300**2


@pytest.mark.full
def test_ordered_rows_in_few_large_clusters_agree_with_a_sum_on_a_fine_grid():
    """The log-likelihood of 240 rows in 4 schools by NumPy, and its differences."""
    rng, k = np.random.default_rng(3), 4
    school, x = rng.integers(0, k, 240), rng.normal(size=240)
    grade = np.digitize(
        0.5 * x + 0.7 * rng.normal(size=k)[school] + rng.normal(size=240), [-1, 0.5]
    )
    columns = tg.Ordinal(grade), x[:, None], school, None, None, None
    model = model_of(inputs_of(columns, None, False), (tg.RandomEffects(), tg.Residual()))
    nodes = np.linspace(-9.0, 9.0, 601)
    weights = stats.norm.pdf(nodes) * (nodes[1] - nodes[0])

    def plain(z):
        slope, *cuts, spread = np.asarray(model.inner.estimates(jnp.asarray(z)))
        ends, loc = np.array([-np.inf, *cuts, np.inf]), slope * x[:, None] + spread * nodes
        low, high = (end[:, None] - loc for end in (ends[grade], ends[grade + 1]))
        low, high = np.where(low > 0, -high, low), np.where(low > 0, -low, high)
        sums = np.zeros((k, len(nodes)))
        np.add.at(sums, school, np.log(special.ndtr(high) - special.ndtr(low)))
        return -special.logsumexp(sums, b=weights, axis=1).sum() / k

    at = model.start + 0.1
    got, step = point(model.loss_at(at), at), 1e-3 * np.eye(len(at))
    assert abs(got.loss - plain(at)) < 1e-10
    slopes = [(plain(at + h) - plain(at - h)) / 2e-3 for h in step]
    np.testing.assert_allclose(got.gradient, slopes, atol=1e-4)
    bends = [
        [sum(s * t * plain(at + s * h + t * g) for s in (-1, 1) for t in (-1, 1)) for g in step]
        for h in step
    ]
    np.testing.assert_allclose(got.hessian, np.array(bends) / 4e-6, atol=1e-3)


@pytest.mark.full
def test_effects_of_a_field_at_one_place_are_those_of_a_cluster():
    """Of 20 rows, 8 below limits: by moments under any covariance, and by a sum over an effect."""
    rng, n, cluster = np.random.default_rng(5), 20, np.arange(20) % 2
    y = rng.normal(size=2)[cluster] + rng.normal(size=n)
    low = np.array([np.sort(y[cluster == c])[3] for c in (0, 1)])[cluster]
    limits = np.column_stack([np.where(y <= low, -np.inf, y), np.maximum(y, low)])
    columns = limits, np.ones((n, 1)), cluster, None, None, None

    def effects(term, estimates):
        model, each = (
            model_of(inputs_of(columns, None, False), (term, tg.Residual())),
            np.ones((2, n)),
        )
        (rows,), inner = model.shapes, model.inner
        at = inner.split(np.asarray(inner.free(jnp.asarray(estimates))))
        if inner.covariance.form(rows.columns) is None:
            moments = limited_moments(rows, inner.covariance, None, *at, 0)
            parts = effects_given(rows, inner.covariance, moments, *at, 0)
        else:
            parts = effects_of(rows, inner.covariance, *at, 0)
        for row, *both in zip(np.asarray(rows.index), *map(np.asarray, parts)):
            for got, values in zip(each, both):
                got[row[row >= 0]] = np.broadcast_to(values, row.shape)[row >= 0]
        return each

    field = effects(tg.Matern(1.0 * cluster), [0.1, 0.8, 1.0, 0.9])
    whole = effects(tg.RandomEffects(), [0.1, 0.8, 0.9])
    np.testing.assert_allclose(field, whole, atol=3e-4)
    assert len(np.unique(whole)) == 4


@pytest.mark.parametrize("size", [2, 4])
def test_moments_of_limited_outcomes_agree_with_quadrature(size):
    """Of two rows, beside none or two of which nothing is known, by Gauss-Legendre in NumPy."""
    rng, k = np.random.default_rng(size), 3
    matrix = np.array([np.eye(size)] * k)
    matrix[:, :2, :2] = [[[1.5, r], [r, 0.8]] for r in (-0.6, 0.2, 0.9)]
    loc, low, high = np.zeros((k, size)), np.full((k, size), -np.inf), np.full((k, size), np.inf)
    loc[:, :2], high[:, 0], low[:, 1] = rng.normal(size=(k, 2)), 0.3, -0.4
    keys = jax.random.split(jax.random.key(0), k)
    problem = Box(low, high), keys, np.zeros(k, bool)
    integrals = Integrals(loc, CovarianceMatrix(jnp.asarray(matrix)), *problem)
    gap, covariance = moments_by_slopes(integrals, NestedQuadrature())
    nodes, weights = np.polynomial.legendre.leggauss(200)
    for c in range(k):
        x, w = 0.3 - 6.0 * (nodes + 1.0), -0.4 + 6.0 * (nodes + 1.0)
        grid = np.stack(np.meshgrid(x, w, indexing="ij"), axis=-1) - loc[c, :2]
        at = stats.multivariate_normal.pdf(grid, cov=matrix[c, :2, :2]) * np.outer(weights, weights)
        mean = np.einsum("ij,ijk->k", at, grid) / at.sum()
        second = np.einsum("ij,ijk,ijl->kl", at, grid - mean, grid - mean) / at.sum()
        np.testing.assert_allclose(gap[c], [*mean, *np.zeros(size - 2)], atol=1e-8)
        np.testing.assert_allclose(covariance[c, :2, :2], second, atol=1e-8)
        np.testing.assert_allclose(covariance[c, 2:, 2:], np.eye(size - 2), atol=1e-8)


@pytest.mark.parametrize(
    ("term", "numbers"),
    [(tg.RandomEffects(), (50, 51, 52)), (tg.AutoRegressive(), (9, 12, 16))],
    ids=["effects", "process"],
)
def test_samples_of_about_one_size_share_their_programs(term, numbers):
    """Numbers of different clusters are filled up to the last one."""
    rng, terms = np.random.default_rng(0), (term, tg.Residual())
    for k in numbers:
        columns = rng.normal(size=4 * k), np.ones((4 * k, 1)), np.repeat(np.arange(k), 4)
        model = model_of(inputs_of((*columns, None, None, None), None, False), terms)
        assert sum(len(rows.index) for rows in model.shapes) == numbers[-1]
        assert model.weights.sum() == k == len(model.table.number)


def test_one_program_sums_over_as_many_nodes_as_each_problem_needs():
    """Beside many nodes, of loadings that take few nodes, many, and too many to try."""
    rng = np.random.default_rng(0)
    loc, noise, low = rng.normal(size=4), np.ones(4), np.full(4, -np.inf)
    factors = np.array([0.1, 1.0, 5.0, np.nan])[:, None, None] * np.ones((4, 1))

    def both(factor):
        problem = loc, factor, noise, low, np.zeros(4)
        value, error = common_effect.log_probability(*problem)
        return value, error, common_effect.grid_of(*problem).counts

    values, errors, counts = map(np.asarray, jax.jit(jax.vmap(both))(factors))
    nodes = np.linspace(-12.0, 12.0, 4801)
    masses = stats.norm.cdf(-(loc + factors[:3, 0, 0, None, None] * nodes[:, None]))
    expected = np.log(masses.prod(axis=-1) @ stats.norm.pdf(nodes) * (nodes[1] - nodes[0]))
    np.testing.assert_allclose(values[:3], expected, rtol=1e-12)
    assert np.isnan(values[3]) and not np.any(errors[:3])
    assert counts[0, 0] < counts[1, 0] < counts[2, 0] and counts[3, 0] == 1


@pytest.mark.parametrize(("number", "replicates"), [(2, 16), (20, 4)])
def test_few_clusters_have_more_draws_each(number, replicates):
    outcome = np.tile([-np.inf, 0.0], (6 * number, 1))
    outcome[::6] = np.random.default_rng(0).normal(size=(number, 1))
    columns = outcome, np.ones((6 * number, 1)), np.repeat(np.arange(number), 6)
    terms = tg.AutoRegressive(), tg.Residual()
    model = model_of(inputs_of((*columns, None, None, None), None, False), terms)
    (held,) = model.loss_at(model.start).plan.methods
    assert held.num_replicates == replicates


def nearly_equal_pairs(n=30):
    """Outcomes of pairs that differ by a thousandth, beside the other columns, and a table."""
    rng = np.random.default_rng(0)
    y = np.repeat(rng.normal(size=n), 2) + 1e-3 * rng.normal(size=2 * n)
    columns = y, np.ones((2 * n, 1)), np.repeat(np.arange(n), 2), tg.Unstructured("t")
    return columns, {"t": np.tile([0, 1], n)}


def test_another_method_serves_where_nested_quadratures_do_not_resolve_a_correlation():
    (*columns, terms), data = nearly_equal_pairs()
    model = model_of(inputs_of((*columns, 0.0, None, None), data, False), terms, data)
    for correlation in (0.5, 0.999999):
        x = model.inner.free(jnp.asarray([0.0, 1.0, 1.0, correlation]))
        assert model.loss_at(np.asarray(x)).plan.nested == (correlation < 0.9)


@pytest.mark.full
def test_correlations_that_nested_quadratures_do_not_resolve():
    """Steps from independent outcomes of pairs to where other methods must serve."""
    n, (columns, data) = 30, nearly_equal_pairs()
    fit = tg.fit_clusters(*columns, data=data, censored_low=0.0, num_profiles=0)
    mean, first, second, correlation = fit.estimates
    assert fit.converged and correlation > 0.99999
    assert not fit.loss.held_at(fit.best.x).plan.nested
    slope, scale = second / first * correlation, second * (1.0 - correlation**2) ** 0.5
    z = np.linspace(-10.0, -mean / first, 10**6 + 1)
    below = stats.norm.pdf(z) * special.ndtr((-mean - slope * first * z) / scale)
    both = np.log((below.sum() - 0.5 * below[-1]) * (z[1] - z[0]))
    (a, b), seen = columns[0].reshape(n, 2).T, columns[0][::2] > 0.0
    assert np.array_equal(seen, b > 0.0)  # no pair has one censored outcome
    a, b = a[seen], b[seen]
    rest = (a - mean) / first, (b - mean - slope * (a - mean)) / scale
    logs = stats.norm.logpdf(rest).sum(axis=0) - np.log(first * scale)
    assert abs(fit.log_likelihood - logs.sum() - np.sum(~seen) * both) < 1e-6
