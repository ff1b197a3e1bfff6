"""A method or a region that a reader writes works everywhere, with no line changed elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg
from truncgauss.arrays.pytrees import Batched, frozen_pytree, static_field
from truncgauss.gaussian.problem import over_rows
from truncgauss.probability.method import check_held
from truncgauss.special import log_interval_mass, standardize

INF = np.inf


@frozen_pytree
class Independent(tg.Method):
    """The product of the coordinates' own probabilities: exact for a diagonal covariance."""

    def replicate(self, loc, covariance, region, key):
        scale = jnp.sqrt(covariance.variances)
        log_prob = log_interval_mass(*standardize(region.low, region.high, loc, scale)).sum()
        return tg.Estimate(log_prob, jnp.zeros_like(log_prob))


@frozen_pytree
class Slab(tg.Region):
    """low <= normal @ x <= high: a region that is a polyhedron."""

    normal: jax.Array
    low: jax.Array
    high: jax.Array

    event_ranks = {"normal": 1, "low": 0, "high": 0}

    @property
    def dimension(self):
        return self.normal.shape[-1]

    def linear(self):
        return tg.Polyhedron(self.normal[..., None, :], self.low[..., None], self.high[..., None])


@frozen_pytree
class Annulus(tg.Region):
    """inner <= |x| <= outer: a region without linear constraints."""

    inner: jax.Array
    outer: jax.Array

    event_ranks = {"inner": 0, "outer": 0}

    @property
    def dimension(self):
        return 2

    def contains(self, x):
        radius = tg.safe.safe_norm(x)
        return (radius >= self.inner) & (radius <= self.outer)

    def margins(self, x):
        radius = tg.safe.safe_norm(x)
        return jnp.stack([radius - self.inner, self.outer - radius], axis=-1)


@frozen_pytree
class Brightness(tg.Region):
    """Points kept by a probit curve of the difference of two coordinates."""

    limit: jax.Array
    blur: jax.Array

    event_ranks = {"limit": 0, "blur": 0}

    @property
    def dimension(self):
        return 2

    def score_selection(self):
        weights = jnp.broadcast_to(jnp.array([1.0, -1.0]), (*self.limit.shape, 1, 2))
        return tg.Selection.probit(weights, self.limit[..., None], self.blur[..., None])


@frozen_pytree
class Scales(Batched):
    """A plan: the scales of a proposal."""

    scale: jax.Array

    event_ranks = {"scale": 1}


@frozen_pytree
class Wider(tg.Method):
    """Importance sampling from independent coordinates, whose scales are a plan."""

    num_replicates: int = static_field(default=8)
    plan: Scales | None = None

    held_fields = ("plan",)

    def for_problem(self, problem):
        if self.plan is not None:
            counts = {"dimensions": (self.plan.scale.shape[-1], problem.covariance.dimension)}
            check_held("Wider", self.plan, counts, problem)
        return self

    def planned(self, problem):
        scale = lambda row: Scales(jnp.sqrt(row.covariance.variances))
        return Wider(self.num_replicates, over_rows(scale, problem))

    def replicate(self, loc, covariance, region, key):
        scale = self.plan.scale
        points = scale * jax.random.normal(key, (4096, len(loc)))
        inside = ((points > region.low - loc) & (points < region.high - loc)).all(axis=1)
        mean = jnp.zeros_like(loc)
        density = jax.scipy.stats.multivariate_normal.logpdf
        ratio = density(points, mean, covariance.covariance_matrix)
        ratio = jnp.where(inside, ratio - density(points, mean, jnp.diag(scale**2)), -INF)
        return tg.Estimate(tg.special.log_mean_exp(ratio), np.nan)


D = 5
LOC, LOW, HIGH = np.linspace(-1.0, 1.0, D), np.full(D, -1.0), np.full(D, 2.0)
DIAGONAL = np.diag(np.linspace(0.5, 2.0, D))
BOX = tg.Box(LOW, HIGH)


def marginal():
    scale = np.sqrt(np.diag(DIAGONAL))
    return stats.truncnorm((LOW - LOC) / scale, (HIGH - LOC) / scale, LOC, scale)


def truth():
    scale = np.sqrt(np.diag(DIAGONAL))
    mass = stats.norm.cdf((HIGH - LOC) / scale) - stats.norm.cdf((LOW - LOC) / scale)
    return np.log(mass).sum()


def test_a_new_method_answers_and_is_transformed():
    of = lambda loc: tg.log_probability(loc, DIAGONAL, BOX, Independent()).log_prob
    np.testing.assert_allclose(of(LOC), truth(), rtol=1e-12)
    rows = np.stack([LOC, LOC + 0.3])
    mapped, slopes = jax.jit(jax.vmap(jax.value_and_grad(of)))(rows)
    np.testing.assert_allclose(mapped[0], truth(), rtol=1e-12)
    batch = tg.log_probability(rows, DIAGONAL, BOX, Independent()).log_prob
    np.testing.assert_allclose(mapped, batch, rtol=1e-12)
    wanted = (marginal().mean() - LOC) / np.diag(DIAGONAL)
    np.testing.assert_allclose(np.asarray(slopes)[0], wanted, rtol=1e-9)


@pytest.mark.quick("jit")
@pytest.mark.parametrize("jit", [False, True], ids=["plain", "jit"])
def test_a_new_method_has_moments_by_its_derivatives(jit):
    of = lambda loc: tg.truncated_moments(loc, DIAGONAL, BOX, Independent())
    moments = (jax.jit(of) if jit else of)(LOC)
    np.testing.assert_allclose(moments.mean, marginal().mean(), rtol=1e-9)
    np.testing.assert_allclose(moments.covariance, np.diag(marginal().var()), atol=1e-9)
    assert np.all(moments.mean_stderr == 0) and np.all(moments.covariance_stderr == 0)


def test_a_new_method_with_a_plan_is_held_for_each_row():
    rows, covariance = np.stack([LOC, LOC + 0.3]), DIAGONAL + 0.1
    log_prob, stderr = tg.log_probability(rows, covariance, BOX, Wider())
    exact = tg.log_probability(rows, covariance, BOX)
    assert np.all(np.abs(log_prob - exact.log_prob) < 5 * stderr) and np.all(stderr < 0.05)
    held = Wider().hold(rows, covariance, BOX)
    assert held.is_held and held.batch_shape == (2,)
    np.testing.assert_array_equal(
        tg.log_probability(rows, covariance, BOX, held).log_prob, log_prob
    )
    with pytest.raises(ValueError, match=r"Wider: .* leading axes \(2,\)"):
        tg.log_probability(LOC, covariance, BOX, held)


def test_a_new_method_is_explained_and_gives_its_gradient():
    lines = tg.explain(LOC, DIAGONAL, BOX, Independent())
    assert "Independent: as asked for" in lines and "exact to rounding" in lines
    result = tg.log_probability_and_gradient(LOC, DIAGONAL, BOX, Independent())
    np.testing.assert_allclose(
        result.gradient.loc, (marginal().mean() - LOC) / np.diag(DIAGONAL), rtol=1e-9
    )


COVARIANCE = 0.5 * np.eye(D) + 0.5
NORMAL = np.linspace(0.5, 1.5, D)


def slab_truth(loc, low, high):
    mean, scale = NORMAL @ loc, np.sqrt(NORMAL @ COVARIANCE @ NORMAL)
    return np.log(stats.norm.cdf((high - mean) / scale) - stats.norm.cdf((low - mean) / scale))


METHODS = {
    "automatic": (tg.Automatic(), 1e-9),
    "separation": (tg.Separation(256, 4), 1e-9),
    "sequential": (tg.SequentialMonteCarlo(64, 4), 1e-9),
    "propagation": (tg.ExpectationPropagation(), 1e-6),
    "soft": (tg.SoftMonteCarlo(2**14, 4, edge=tg.Hard(), points="lattice"), 0.02),
}


@pytest.mark.quick("soft")
@pytest.mark.parametrize("name", METHODS)
def test_a_new_linear_region_serves_every_method(name):
    method, tolerance = METHODS[name]
    slab = Slab(NORMAL, np.asarray(0.5), np.asarray(2.0))
    estimate = tg.log_probability(LOC, COVARIANCE, slab, method)
    np.testing.assert_allclose(estimate.log_prob, slab_truth(LOC, 0.5, 2.0), atol=tolerance)


@pytest.mark.full
def test_a_new_linear_region_is_transformed():
    of = lambda low: (
        tg.log_probability(LOC, COVARIANCE, Slab(NORMAL, low, jnp.asarray(2.0))).log_prob
    )
    lows = jnp.array([-1.0, 0.0, 0.5])
    np.testing.assert_allclose(jax.jit(of)(lows[2]), slab_truth(LOC, 0.5, 2.0), rtol=1e-9)
    np.testing.assert_allclose(jax.vmap(of)(lows), slab_truth(LOC, lows, 2.0), rtol=1e-9)
    step = 1e-5
    difference = (slab_truth(LOC, 0.5 + step, 2.0) - slab_truth(LOC, 0.5 - step, 2.0)) / (2 * step)
    np.testing.assert_allclose(jax.grad(of)(lows[2]), difference, rtol=1e-6)


@pytest.mark.full
def test_a_new_linear_region_has_moments_draws_and_a_reason():
    slab = Slab(NORMAL, jnp.asarray(0.5), jnp.asarray(2.0))
    moments = tg.truncated_moments(LOC, COVARIANCE, slab)
    mean, scale = float(NORMAL @ LOC), float(jnp.sqrt(NORMAL @ COVARIANCE @ NORMAL))
    line = stats.truncnorm((0.5 - mean) / scale, (2.0 - mean) / scale, mean, scale)
    np.testing.assert_allclose(NORMAL @ moments.mean, line.mean(), rtol=2e-3)
    draws = tg.truncated_samples(jax.random.key(0), LOC, COVARIANCE, slab, 4000)
    assert slab.contains(draws).all()
    np.testing.assert_allclose((draws @ NORMAL).mean(), line.mean(), atol=4 * line.std() / 63)
    assert "Slab in 5 dimensions" in tg.explain(LOC, COVARIANCE, slab)


def annulus_truth(inner, outer):
    return np.log(np.exp(-(inner**2) / 2) - np.exp(-(outer**2) / 2))


@pytest.mark.full
def test_a_new_region_without_linear_constraints():
    """By the method chosen by default, asked for as much as is compared."""
    ring, plane = Annulus(jnp.asarray(0.5), jnp.asarray(1.5)), (jnp.zeros(2), jnp.eye(2))
    method, key = tg.Automatic(rtol=1e-3), jax.random.key(1)
    of = lambda outer: (
        tg.log_probability(*plane, Annulus(jnp.asarray(0.5), outer), method, key=key).log_prob
    )
    truth = annulus_truth(0.5, 1.5)
    np.testing.assert_allclose(tg.log_probability(*plane, ring, method).log_prob, truth, atol=5e-3)
    outers = jnp.array([1.0, 1.5, 4.0])
    batched = jax.jit(jax.vmap(of))(outers)
    np.testing.assert_allclose(batched, annulus_truth(0.5, outers), atol=5e-3)
    slope = 1.5 * np.exp(-(1.5**2) / 2) / np.exp(truth)
    np.testing.assert_allclose(jax.grad(of)(1.5), slope, rtol=0.1)
    moments = tg.truncated_moments(*plane, ring)
    np.testing.assert_allclose(moments.mean, 0.0, atol=0.02)
    draws = tg.truncated_samples(jax.random.key(0), *plane, ring, 2000)
    assert ring.contains(draws).all()
    assert "Annulus has no linear constraints" in tg.explain(*plane, ring, method)


def test_a_new_selection_by_scores_is_that_of_its_curve():
    covariance = np.array([[2.0, 0.5], [0.5, 1.0]])  # the difference has variance 2
    of = lambda limit: tg.log_probability(
        [1.0, -0.5], covariance, Brightness(limit, jnp.full_like(limit, 0.5))
    )
    limits = np.array([0.0, 20.0])
    result, z = of(jnp.asarray(limits)), (1.5 - limits) / 1.5
    np.testing.assert_allclose(result.log_prob, stats.norm.logcdf(z), rtol=1e-12)
    assert np.all(result.stderr == 0)
    slope = jax.grad(lambda limit: of(limit).log_prob)(20.0)
    ratio = np.exp(stats.norm.logpdf(z[1]) - stats.norm.logcdf(z[1])) / 1.5
    np.testing.assert_allclose(slope, -ratio, rtol=1e-10)
    region = Brightness(np.asarray(0.0), np.asarray(0.5))
    rows = np.array([[0.0, 1.0], [2.0, 0.3]])
    same = [
        tg.Observations.exact(rows, region=x).region for x in (region, region.score_selection())
    ]
    np.testing.assert_array_equal(same[0].kept(rows), same[1].kept(rows))
    np.testing.assert_array_equal(region.kept(rows), same[1].kept(rows))
    assert region.contains(rows).all()


def test_methods_that_need_limits_refuse_other_regions():
    ring = Annulus(np.asarray(0.5), np.asarray(1.5))
    for method in (tg.Separation(), tg.SequentialMonteCarlo(), tg.ExpectationPropagation()):
        with pytest.raises(ValueError, match="applies to bounds on linear functions.*Annulus"):
            tg.log_probability(np.zeros(2), np.eye(2), ring, method)


# --- Ellipsoids -----------------------------------------------------------------------------------


def test_an_ellipsoid_of_the_distribution_itself_holds_a_chi_square():
    covariance = np.array([[2.0, 0.7, 0.1], [0.7, 1.0, -0.2], [0.1, -0.2, 0.5]])
    loc, radius = np.array([1.0, -2.0, 0.3]), 1.7
    estimate = tg.log_probability(loc, covariance, tg.Ellipsoid(loc, radius**2 * covariance))
    error = estimate.log_prob - stats.chi2(3).logcdf(radius**2)
    assert abs(error) < 1e-13 and estimate.stderr == 0


def test_a_round_ellipsoid_is_a_ball():
    points = np.random.default_rng(0).normal(size=(50, 3))
    center = np.array([0.2, -0.1, 0.4])
    ball, round_one = tg.Ball(center, 1.3), tg.Ellipsoid(center, 1.3**2 * np.eye(3))
    margin = lambda region, x: (region.margins(x)[0], region.contains(x))
    slopes = jax.value_and_grad(margin, 1, has_aux=True)
    every = jax.jit(jax.vmap(slopes, (None, 0)))
    ((margins, inside), slopes), ((others, others_inside), their_slopes) = (
        every(region, points) for region in (ball, round_one)
    )
    np.testing.assert_array_equal(inside, others_inside)
    np.testing.assert_allclose(margins, others, atol=1e-14)
    np.testing.assert_allclose(slopes, their_slopes, atol=1e-12)


@pytest.mark.full
def test_the_margin_of_an_ellipsoid_is_no_longer_than_the_way_out():
    """Inside, compared with the least distance to many points of the surface."""
    shape = jnp.array([[4.0, 0.9], [0.9, 0.5]])
    ellipse = tg.Ellipsoid([0.0, 0.0], shape)
    angles = jnp.linspace(0, 2 * jnp.pi, 20_001)
    surface = jnp.stack([jnp.cos(angles), jnp.sin(angles)], -1) @ jnp.linalg.cholesky(shape).T
    points = jax.random.normal(jax.random.key(0), (200, 2))
    points = points[ellipse.contains(points)]
    away = jnp.linalg.norm(points[:, None] - surface, axis=-1).min(axis=1)
    margin = ellipse.margins(points)[:, 0]
    assert len(points) > 50 and np.all(margin > 0) and np.all(margin <= away + 1e-6)
    assert np.isfinite(jax.grad(lambda x: ellipse.margins(x)[0])(jnp.zeros(2))).all()


@pytest.mark.full
def test_ellipsoids_come_in_batches_and_keep_their_points():
    shapes = jnp.stack([jnp.eye(2), jnp.diag(jnp.array([4.0, 0.25]))])
    two = tg.Ellipsoid(jnp.zeros(2), shapes)
    x = jnp.array([1.5, 0.0])
    assert two.contains(x).tolist() == [False, True]
    estimates = tg.log_probability(jnp.zeros(2), jnp.eye(2), two)
    alone = tg.log_probability(jnp.zeros(2), jnp.eye(2), tg.Ellipsoid([0.0, 0.0], shapes[1]))
    np.testing.assert_allclose(estimates.log_prob[1], alone.log_prob, rtol=1e-12)
    draws = tg.truncated_samples(jax.random.key(0), jnp.zeros(2), jnp.eye(2), two, 100)
    assert two.contains(draws).all()
