"""Constraints of which some are linear combinations of others, but for rounding.

The truth is an integral over the few dimensions that they span, by SciPy's quadrature, or the value
of a quadrature by other means. A residual deviation delta changes log P by about delta^2 in these
problems.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special

import truncgauss as tg
from truncgauss.probability.method import bounded

INF = np.inf
FULL = pytest.mark.full
ANGLES, LIMITS = np.array([0.0, 2.1, 4.2]), np.array([0.5, 0.5, 0.3])
FACES = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)


def log_mass_within(faces, limits):
    """log P(faces @ z <= limits) of two standard normal variables, one integral of masses."""

    def slice_of(x):
        ends = (limits - faces[:, 0] * x) / np.where(faces[:, 1] == 0, 1.0, faces[:, 1])
        above = np.min(ends[faces[:, 1] > 0], initial=INF)
        below = np.max(ends[faces[:, 1] < 0], initial=-INF)
        flat = np.all((faces[:, 0] * x <= limits)[faces[:, 1] == 0])
        mass = max(special.ndtr(above) - special.ndtr(below), 0.0) if flat else 0.0
        return mass * np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)

    pairs = [(i, j) for i in range(len(limits)) for j in range(i)]
    corners = [np.linalg.solve(faces[list(p)], limits[list(p)])[0] for p in pairs]
    breaks = np.sort(np.clip(np.array([-9.0, *corners, 9.0]), -9.0, 9.0))
    parts = [integrate.quad(slice_of, a, b, epsabs=1e-13)[0] for a, b in zip(breaks, breaks[1:])]
    return np.log(sum(parts))


TRUTH = log_mass_within(FACES, LIMITS)


def triangle(delta, dtype=np.float64, limits=LIMITS):
    """A triangle whose faces are independent by residual deviations of about delta."""
    matrix = np.concatenate([FACES, delta * np.array([[0.3], [-0.5], [1.0]])], axis=1)
    return tg.Polyhedron(matrix.astype(dtype), -INF, np.asarray(limits, dtype))


def assert_honest(estimate, truth, most):
    """The error is explained by the stderr, which is small, and by a few units of rounding."""
    log_prob, stderr = (float(x) for x in estimate)
    rounding = 64.0 * float(np.finfo(estimate.log_prob.dtype).eps)
    assert abs(log_prob - truth) < 4.5 * stderr + rounding * (1.0 + abs(truth))
    assert stderr < most


@pytest.mark.quick("1e-10")
@pytest.mark.parametrize("delta", [1e-15, 1e-13, 1e-10, 1e-7])
def test_a_triangle_of_dependent_faces(delta):
    estimate = tg.log_probability(np.zeros(3), np.eye(3), triangle(delta))
    assert_honest(estimate, TRUTH, 1e-4)


@FULL
@pytest.mark.parametrize("delta", [1e-7, 1e-5, 1e-4, 1e-3])
def test_a_triangle_of_dependent_faces_in_float32(delta):
    zero, one = np.zeros(3, np.float32), np.eye(3, dtype=np.float32)
    assert_honest(tg.log_probability(zero, one, triangle(delta, np.float32)), TRUTH, 1e-3)


@pytest.mark.quick("1e-10")
@pytest.mark.parametrize("delta", [1e-13, 1e-10])
def test_dependent_faces_in_a_trace_and_with_a_plan_held(delta):
    problem = np.zeros(3), np.eye(3), triangle(delta)
    assert_honest(jax.jit(tg.log_probability)(*problem), TRUTH, 0.01)
    held = tg.Separation().hold(*problem)
    assert_honest(tg.log_probability(*problem, held), TRUTH, 0.01)


@FULL
@pytest.mark.parametrize("delta", [1e-13, 1e-10])
def test_the_gradient_at_dependent_faces(delta):
    """The gradient in the limits is that of the triangle in two dimensions."""

    def log_prob(high):
        region = triangle(delta)
        region = tg.Polyhedron(region.matrix, region.low, high)
        return tg.log_probability(np.zeros(3), np.eye(3), region).log_prob

    slope = jax.grad(log_prob)(LIMITS)
    step = 1e-4 * np.eye(3)
    ends = [[log_mass_within(FACES, LIMITS + s * row) for s in (1, -1)] for row in step]
    truth = [(above - below) / 2e-4 for above, below in ends]
    # The slope in a limit comes from the points within delta of its face, if these are many.
    assert np.all(np.isfinite(slope)) and np.max(np.abs(slope - np.array(truth))) < 1.0


@pytest.mark.quick("1e-10")
@pytest.mark.parametrize("delta", [1e-15, 1e-13, 1e-10])
def test_weighted_samples_of_dependent_faces(delta):
    problem = np.zeros(3), np.eye(3), triangle(delta)
    draws = tg.weighted_samples(jax.random.key(0), *problem, 2**14)
    weights = np.exp(np.asarray(draws.log_weights))
    stderr = weights.std() / weights.mean() / 2**7
    assert_honest(tg.Estimate(np.log(weights.mean()), stderr), TRUTH, 0.05)


@pytest.mark.full
def test_a_box_with_a_root_of_dependent_rows():
    root = np.eye(4)
    root[1, :2], root[2, :2], root[2, 2] = FACES[1], FACES[2], 1e-13
    box = tg.Box([-INF, -INF, -INF, 0.0], [*LIMITS, INF])
    estimate = tg.log_probability(np.zeros(4), tg.ScaleTril(root), box)
    assert_honest(estimate, TRUTH + np.log(0.5), 1e-4)


EIGHT_LOC = [-1.0832293841253042, 0.243305700938176, -0.7527746860182191, 0.8153382894223141]
EIGHT_COVARIANCE = [
    [1.937379606612081, -3.928676644331429, 6.60546331673316, -1.0649746823359485],
    [-3.928676644331429, 21.650150985572544, -42.99627704936657, 1.7734108591462459],
    [6.60546331673316, -42.99627704936657, 91.86207322495541, -4.773545881107263],
    [-1.0649746823359485, 1.7734108591462459, -4.773545881107263, 1.6142620034741462],
]
EIGHT_ROWS = [
    [0.2767800270546273, 0.23389437639860375, 0.12702870962398136, -0.45795275384077744],
    [-2.0203936730029617, -1.4262506011306542, -0.5881554406873155, -1.5830979174288315],
    [-1.153435457074761, -1.48817984777369, -0.7219226435509005, -1.4132993803341716],
    [-0.21280552322439528, -0.5519274178464402, -0.20331391736561713, 0.4485842586504318],
    [0.21280552322439528, 0.5519274178464402, 0.20331391736561713, -0.4485842586504318],
    [0.2713005024486986, 0.9121860319268978, 0.4918993421948443, 0.7574228811414521],
    [-2.054336690082576, -1.5199561013698404, -0.637997934553285, -1.6624226535638287],
    [2.054336690082576, 1.5199561013698404, 0.637997934553285, 1.6624226535638287],
]
EIGHT_HIGH = [
    0.1958706325638504, 1.4985961625668123, 2.6264370101962764, -0.5252888283150758,
    0.8831491015643955, 0.4516747682917228, 2.0477954498166766, -1.2183401268189664,
]  # fmt: skip
EIGHT_TRUTH = -6.0493346


@pytest.mark.full
@pytest.mark.parametrize("method", [tg.Automatic(), pytest.param(tg.Separation(), marks=FULL)])
def test_more_rows_than_dimensions(method):
    rows = tg.Polyhedron(EIGHT_ROWS, -INF, EIGHT_HIGH)
    estimate = tg.log_probability(EIGHT_LOC, EIGHT_COVARIANCE, rows, method)
    assert_honest(estimate, EIGHT_TRUTH, 1e-3)


@pytest.mark.full
def test_a_correlation_that_rounding_makes_singular():
    """At the corner of two variables that nearly determine each other stderr says what is unknown.

    Their sum has the standard deviation 1.4e-3, and one unit in the last place of the correlation
    changes that by 3 %. The truth of the same numbers in float64.
    """
    root = np.eye(4)
    root[1, :2] = -0.999999, np.sqrt(1.0 - 0.999999**2)
    root[2, 0], root[3, :3] = 0.3, (0.2, 0.0, 0.4)
    covariance = (root @ root.T).astype(np.float32)
    low = np.array([0.3, -0.3005, -INF, -INF], np.float32)
    high = np.array([INF, INF, 0.5, 1.0], np.float32)

    def estimate(dtype):
        box = tg.Box(low.astype(dtype), high.astype(dtype))
        method = tg.Separation()
        return tg.log_probability(np.zeros(4, dtype), covariance.astype(dtype), box, method)

    log_prob, stderr = estimate(np.float32)
    truth = estimate(np.float64).log_prob
    assert np.isinf(stderr) or abs(log_prob - truth) < 4.5 * stderr
    assert stderr > 0.01


def test_a_constraint_that_cuts_off_a_corner():
    """A face that cuts off 1e-7 of a square, where few points fall, is not taken for granted."""
    faces = np.array([[1.0, 0.0], [0.0, 1.0], [0.5**0.5, 0.5**0.5]])
    high = np.array([1.0, 1.0, 1.4135])
    problem = np.zeros(2), np.eye(2), tg.Polyhedron(faces, -INF, high)
    held = tg.Separation().hold(*problem)
    estimate = tg.log_probability(*problem, held)
    assert_honest(estimate, log_mass_within(faces, high), 1e-4)
    outside = special.ndtr(-high[2]) / np.exp(estimate.log_prob)
    assert abs(held.plan.rare / outside - 1.0) < 0.1
    assert estimate.stderr > 0.9 * outside * 2.0 / 2**14


class Certain(tg.Method):
    """The same estimate of every problem."""

    def __init__(self, log_prob, stderr):
        self.result = log_prob, stderr

    def replicate(self, loc, covariance, region, key):
        return tg.Estimate(*(jnp.full((), x, loc.dtype) for x in self.result))


def test_no_estimate_lies_above_a_bound():
    """No probability exceeds 1, nor that of one of its constraints, here one half."""
    problem = tg.gaussian.problem.as_problem(
        np.zeros(2), np.eye(2), tg.Box([0.0, -1.0], [INF, 1.0])
    )
    log_prob = np.array([0.1, -0.5, -0.7])
    average = lambda x: tg.probability.method.average(Certain(x, 1e-5), problem, jax.random.key(0))
    result = jax.jit(jax.vmap(average))(log_prob)
    np.testing.assert_array_equal(result.log_prob, log_prob)
    assert np.isfinite(result.stderr).tolist() == [False, False, True]


def test_the_bound_of_single_constraints():
    """It is above the mass of the interval, and hardly."""
    rng = np.random.default_rng(0)
    low = rng.normal(size=4000) * 10.0 ** rng.uniform(-2, 2, 4000)
    high = low + 10.0 ** rng.uniform(-12, 2, 4000)
    low = np.where(rng.uniform(size=4000) < 0.2, -INF, low)
    high = np.where(rng.uniform(size=4000) < 0.2, INF, high)
    bound = lambda *x: tg.Box(*x).log_bound(np.zeros(1), tg.ScaleTril([[1.0]]))
    found = np.asarray(jax.jit(jax.vmap(bound))(low[:, None], high[:, None]))
    truth = np.asarray(jax.jit(tg.special.truncated_log_mass)(0.0, 1.0, low, high))
    assert np.all(found >= truth - 1e-12 * (1.0 + np.abs(truth)))
    inside = (low < 0) & (high > 0) & (truth > -2.0)
    assert np.max((found - truth)[inside]) < 1e-12
    assert np.max((found - truth)[truth < -10.0] / np.abs(truth[truth < -10.0])) < 0.5


@pytest.mark.full
def test_an_estimate_of_unknown_error_stays_unknown():
    row = tg.gaussian.problem.as_problem(np.zeros(1), np.eye(1), tg.Box([-1.0], [1.0]))
    result = bounded(tg.Exact(), row, tg.Estimate(jnp.asarray(0.5), jnp.asarray(jnp.nan)))
    assert np.isnan(result.stderr)
