"""Products of float32 matrices are in full precision, which GPUs do not give unless asked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg

FLOAT = jnp.float32
D = 4
LOC, LOW, HIGH = (jnp.full(D, x, FLOAT) for x in (0.0, -1.0, 2.0))
ROOT = np.random.default_rng(0).normal(size=(D, D + 2))
COVARIANCE = jnp.asarray(ROOT @ ROOT.T, FLOAT)
CONTRASTS = jnp.asarray(np.random.default_rng(1).normal(size=(D + 2, D)), FLOAT)
KEY = jax.random.key(0)


def of(method, region=tg.Box, **more):
    def log_prob(loc, covariance, low):
        return tg.log_probability(loc, covariance, region(low, HIGH), method, **more).log_prob

    return log_prob


def constrained(low, high):
    ends = (jnp.full(len(CONTRASTS), x[0]) for x in (low, high))
    return tg.Polyhedron(CONTRASTS, *ends)


def total(tree):
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree))


def law(loc, covariance, low):
    return tg.TruncatedMultivariateNormal(loc, covariance, low=low, high=HIGH)


# Two exact entries and two below a limit, behind a region.
LOWER = jnp.asarray([[0.5, 0.0, -jnp.inf, -jnp.inf]], FLOAT)
UPPER = jnp.asarray([[0.5, 0.0, 1.0, 1.0]], FLOAT)
ROWS = tg.Observations(LOWER, UPPER, region=tg.Box(LOW - 1.0, HIGH + 1.0))


WORK = {
    "automatic": of(tg.Automatic()),
    "polyhedron": of(tg.Separation(), constrained),
    "ball": of(tg.Automatic(), lambda low, high: tg.Ball(low, high[0])),
    "importance": of(tg.ImportanceSampling()),
    "sequential": of(tg.SequentialMonteCarlo()),
    "soft": of(tg.SoftMonteCarlo()),
    "propagation": of(tg.ExpectationPropagation()),
    "student": of(tg.Automatic(), df=jnp.asarray(4.0, FLOAT)),
    "factor": lambda loc, covariance, low: (
        tg.log_probability(
            loc, tg.LowRank(covariance[:, :1], jnp.ones(D, FLOAT)), tg.Box(low, HIGH)
        ).log_prob
    ),
    "moments": lambda *inputs: total(tg.truncated_moments(*inputs[:2], tg.Box(inputs[2], HIGH))),
    "gradient": lambda *inputs: total(
        tg.log_probability_and_gradient(*inputs[:2], tg.Box(inputs[2], HIGH))
    ),
    "distribution": lambda *inputs: law(*inputs).log_prob(LOC),
    "quantile": lambda loc, covariance, low: total(tg.quantile(0.9, loc, covariance)),
    "likelihood": lambda loc, covariance, low: total(
        tg.log_likelihood(ROWS, loc + low, covariance)
    ),
}


def imprecise(jaxpr):
    """Lines of products of float32 numbers for which a device may choose the precision."""
    found = []
    for equation in jaxpr.eqns:
        precise = "HIGHEST" in str(equation.params.get("precision"))
        if equation.primitive.name == "dot_general" and not precise:
            found += [str(equation)] * (equation.outvars[0].aval.dtype == FLOAT)
        for value in equation.params.values():
            for part in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(part, "jaxpr", part)
                found += imprecise(inner) if hasattr(inner, "eqns") else []
    return found


@pytest.mark.quick("soft", "distribution")
@pytest.mark.parametrize("name", WORK)
def test_products_are_in_full_precision(name):
    inputs = LOC, COVARIANCE, LOW
    assert not imprecise(jax.make_jaxpr(WORK[name])(*inputs).jaxpr)
    # A rule of a compiled function is traced when its user differentiates, not when it was called.
    slope = jax.grad(jax.jit(WORK[name]), (0, 1, 2))
    assert not imprecise(jax.make_jaxpr(slope)(*inputs).jaxpr)


def test_draws_are_in_full_precision():
    draw = lambda loc: tg.truncated_samples(KEY, loc, COVARIANCE, tg.Box(LOW, HIGH), 8)
    assert not imprecise(jax.make_jaxpr(draw)(LOC).jaxpr)
    direct = lambda loc: tg.truncated_draws(KEY, loc, COVARIANCE, tg.Box(LOW, HIGH), 8)
    assert not imprecise(jax.make_jaxpr(direct)(LOC).jaxpr)
    weighted = lambda loc: tg.weighted_samples(KEY, loc, COVARIANCE, tg.Box(LOW, HIGH), 8)
    assert not imprecise(jax.make_jaxpr(weighted)(LOC).jaxpr)
    sample = lambda loc: law(loc, COVARIANCE, LOW).sample(KEY, (8,))
    assert not imprecise(jax.make_jaxpr(sample)(LOC).jaxpr)


@pytest.mark.full
def test_a_product_of_the_user_is_not_touched():
    assert imprecise(
        jax.make_jaxpr(lambda x: of(tg.Separation())(x, COVARIANCE, LOW) + x @ x)(LOC).jaxpr
    )
