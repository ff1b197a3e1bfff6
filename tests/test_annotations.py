"""What the annotations say of shapes and dtypes is so: public calls under jaxtyping's checker."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# Checked modules: every annotated function in them, private ones included, whoever calls it.
CHECKED = [
    "truncgauss.gaussian.covariances",
    "truncgauss.distributions",
    "truncgauss.gaussian.edges",
    "truncgauss.arrays.linalg",
    "truncgauss.draws.truncated_moments",
    "truncgauss.arrays.parallel",
    "truncgauss.separation.lattice",
    "truncgauss.probability",
    "truncgauss.gaussian.problem",
    "truncgauss.quadrature",
    "truncgauss.gaussian.regions",
    "truncgauss.special.safe",
    "truncgauss.draws.sampling",
    "truncgauss.separation",
    "truncgauss.special",
    "truncgauss.gaussian.total_moments",
]
SETUP = f"""
import importlib, pkgutil
from jaxtyping import install_import_hook
with install_import_hook({CHECKED}, "beartype.beartype"):
    import truncgauss as tg
    for name in tg.__all__:
        getattr(tg, name)
    for name in {CHECKED}:  # some modules are imported where a problem needs them
        module = importlib.import_module(name)
        for part in pkgutil.iter_modules(getattr(module, "__path__", ()), name + "."):
            importlib.import_module(part.name)
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
from truncgauss.separation import lattice as points
key = jax.random.key(0)
"""
NUMBERS = """
for function in (tg.special.log_ndtr, tg.special.ndtr, tg.special.hazard,
                 tg.special.hazard_excess, tg.special.sigmoid, tg.special.log_sigmoid,
                 tg.special.log1pexp, tg.special.log1mexp, tg.special.log_sum_exp,
                 tg.special.log_mean_exp, tg.special.effective_sample_size):
    function(jnp.ones((3, 2)))
    function(np.ones(3, np.float32))
jax.vmap(jax.grad(tg.special.log_ndtr))(jnp.ones(3))
for function in (tg.special.truncated_mean, tg.special.truncated_variance,
                 tg.special.truncated_entropy, tg.special.truncated_log_mass):
    function(0.0, 1.0, -1, jnp.inf)
    function(jnp.zeros((3, 1)), 1.0, jnp.zeros(2), np.ones(2))
tg.special.truncated_log_density(0.5, 0.0, jnp.ones(3), 0.0, 1.0)
tg.special.truncated_quantile(jnp.full(3, 0.5), 0.0, 1.0, 0.0, 1e-9)
tg.special.separation_step(jnp.zeros(3), jnp.inf, 0.5)
tg.special.log_interval_mass(jnp.zeros(3), 1.0, jnp.ones((2, 1)))
tg.safe.safe_norm(jnp.ones((3, 2)), axis=0)
tg.safe.safe_norm(jnp.ones(3, complex))
tg.safe.bump(jnp.ones(3), 2.0)
tg.safe.bell(0.5, jnp.ones(2))
tg.safe.clipped_gradient(jnp.ones((2, 3)), 1.0)
tg.safe.clipped_logits(jnp.ones((2, 3)), 30)

for edge in (tg.Tanh(10), tg.Probit(0.1), tg.Bump(jnp.ones(3)), tg.Hard(),
             tg.Surrogate(tg.Tanh(4.0))):
    edge.value(jnp.zeros((2, 3)))
    jax.grad(lambda margin: edge.log_value(margin).sum())(jnp.full((2, 3), 0.5))

one = tg.TruncatedNormal(jnp.zeros(3), 1.0, low=0)
x = one.sample(key, (5,))
one.log_prob(x), one.cdf(x), one.icdf(np.full(3, 0.5)), one.mean, one.variance, one.entropy()
one.support(x), one.to_event().support(x), one.log_normalizer
"""
ARRAYS = """
covariances = [
    tg.ScaleTril([[2.0, 0.0], [1.0, 1.0]]), tg.ScaleTril(jnp.stack([jnp.eye(2)] * 3)),
    tg.LowRank(jnp.ones((3, 2, 1)), jnp.ones(2)), tg.LowRank([[1.0], [2.0]], [1, 2]),
    tg.Markov([0.5], 1.0, 1.0), tg.Markov(jnp.ones((3, 1)), jnp.ones(1), 2),
]
for covariance in covariances:
    for name in ("covariance_matrix", "scale_tril", "root", "variances", "dimension"):
        getattr(covariance, name)
    covariance.scaled(jnp.ones(2))
    jax.vmap(lambda c: c.covariance_matrix)(covariance.broadcast_to((4, 3)))

for kind in points.KINDS:
    points.normal_points(key, 16, 3, kind, jnp.float32)
points.shifted_uniforms(points.lattice_points(24, 3), jax.random.split(key, 4), jnp.float64)

regions = [
    tg.Box([0.0, 0], [1, jnp.inf]), tg.Box(0.0, jnp.ones((3, 2))),
    tg.Polyhedron([[1.0, 1.0]], [0.0], jnp.inf), tg.Polyhedron(jnp.ones((2, 2)), 0, [1.0, 2.0]),
    tg.Ball([0.0, 0.0], 1), tg.Ball(jnp.zeros((3, 2)), jnp.ones(3)),
    tg.Ellipsoid([0.0, 0.0], jnp.eye(2)), tg.Ellipsoid(jnp.zeros((3, 2)), jnp.eye(2)),
]
for region in regions:
    region.contains(jnp.zeros((3, 2)))
    region.margins(jnp.zeros((3, 2)))
    jax.vmap(lambda r: r.margins(jnp.zeros(2)))(region.broadcast_to((4, *region.batch_shape)))

soft = tg.SoftMonteCarlo(num_samples=64)
for region in regions[::3]:
    tg.log_probability([0.0, 0], jnp.eye(2), region, soft)
tg.truncated_moments(np.zeros(2), [[1, 0], [0, 1]], regions[-1], soft, jax.random.key(1))

tg.parallel.spread(jnp.ones(4), tg.parallel.device_mesh(1))
"""
INTEGRALS = """
box = tg.Box([0.0, -jnp.inf], [1.0, 2.0])
wide = tg.Box(jnp.zeros(3), jnp.ones(3))
dense = 0.5 * jnp.eye(3) + 0.5
for loc, covariance, region in (
    (jnp.zeros(2), jnp.eye(2), box), ([0, 0], [[1, 0], [0, 1]], box),
    (jnp.zeros((4, 2)), tg.ScaleTril([[2.0, 0.0], [1.0, 1.0]]), box),
    (np.zeros(3), dense, wide), (np.zeros(3), tg.LowRank(jnp.ones((3, 1)), jnp.ones(3)), wide),
    (np.zeros(3), tg.Markov([0.5, 0.5], 1.0, 1.0), wide),
):
    tg.log_probability(loc, covariance, region, tg.Exact())
    tg.truncated_moments(loc, covariance, region, tg.Exact())

four = np.zeros(4), 0.5 * jnp.eye(4) + 0.5, tg.Box(np.zeros(4), np.ones(4))
rows = jnp.zeros((3, 4)), jnp.eye(4)[::-1] + 2 * jnp.eye(4), tg.Polyhedron(jnp.eye(4)[:3], 0, 1)
methods = (
    tg.Separation(64, 2), tg.SequentialMonteCarlo(64, 2), tg.ExpectationPropagation(),
    tg.SoftMonteCarlo(64, 2), tg.Automatic(rtol=0.1),
)
for method in methods:
    for loc, covariance, region in (four, rows):
        tg.log_probability(loc, covariance, region, method, jax.random.key(1))
        tg.truncated_moments(loc, covariance, region, method)
jax.grad(lambda loc: tg.fraction_not_truncated(loc, four[1], four[2]))(jnp.zeros(4))
tg.log_probability_and_gradient(*four, methods[0])
tg.explain(*four)
factors = tg.LowRank(jnp.ones((12, 1)), jnp.ones(12))
lattice = tg.probability.FactorLattice(64, 2)
tg.log_probability(np.zeros(12), factors, tg.Box(np.zeros(12), 1.0), lattice)
for region in (four[2], rows[2], tg.Ball(np.zeros(4), 1.0)):
    tg.truncated_samples(key, np.zeros(4), four[1], region, 10)
tg.weighted_samples(key, *four, 16, points="lattice")

many = tg.TruncatedMultivariateNormal([0.0, 0.0], jnp.eye(2), low=0.0, high=[1.0, jnp.inf])
x = many.sample(key, (5,))
many.log_prob(x), many.mean, many.variance, many.entropy(), many.support(x), many.to_event()
"""
REFUSED = {
    "a covariance that is not square": "tg.gaussian.covariances.CovarianceMatrix(jnp.ones((2, 3)))",
    "factors of one length, noise of another": "tg.LowRank(jnp.ones((3, 1)), jnp.ones(2))",
    "limits that do not broadcast": "tg.special.truncated_mean(0.0, 1.0, np.ones(2), np.ones(3))",
    "a ball around a number": "tg.Ball(0.0, 1.0)",
    "limits of another length": "tg.Polyhedron(jnp.ones((2, 2)), jnp.ones(3), 1.0)",
    "a mean of another length": "tg.log_probability(jnp.zeros(3), jnp.eye(2), tg.Box([0, 0], 1.0))",
    "a complex mean": "tg.log_probability(jnp.ones(2, complex), jnp.eye(2), tg.Box([0, 0], 1))",
    "text": "tg.special.log_ndtr('1')",
    "complex numbers": "tg.special.sigmoid(jnp.ones(2, complex))",
}


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", SETUP + code], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.full
@pytest.mark.parametrize("calls", [NUMBERS, ARRAYS], ids=["numbers", "arrays"])
def test_public_calls_have_the_shapes_that_their_annotations_say(calls):
    done = run(calls)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow  # each of these integrals takes seconds to compile
def test_integrals_have_the_shapes_that_their_annotations_say():
    done = run(INTEGRALS)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_what_contradicts_an_annotation_is_refused_by_the_checker():
    tries = "\n".join(
        f"try: {call}\nexcept jaxtyping.TypeCheckError: pass\nelse: missed.append({what!r})"
        for what, call in REFUSED.items()
    )
    done = run(f"import jaxtyping\nmissed = []\n{tries}\nassert not missed, missed")
    assert done.returncode == 0, done.stderr
