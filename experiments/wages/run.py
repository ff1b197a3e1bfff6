"""Wages that are seen of the employed only, and the wage line of everyone.

Who works depends on the wage that she would get, beyond what covariates say, so that least squares
through the wages that are seen answers another question than what work would pay. Heckman's model
fits both equations at once. Marriage and children are taken to matter for work alone, which is what
tells the two apart.

References:
    Heckman, "Sample selection bias as a specification error", Econometrica (1979).
"""

import numpy as np

import truncgauss as tg

from .settings import COVARIATES

WAGE = ("education", "age")


def run(config):
    """The corrected and the naive wage line, and marginal effects with intervals."""
    table = simulated(config) if config.data is None else config.read_data()
    wage, n = table["wage"], len(table["wage"])
    employed = np.isfinite(wage)
    design = {"constant": np.ones(n), **{name: table[name] for name in WAGE}}
    selection = {"constant": np.ones(n), **{name: table[name] for name in COVARIATES}}
    fit = tg.fit_selection(wage, design, employed, selection)
    seen = {name: column[employed] for name, column in design.items()}
    naive = tg.fit_regression(wage[employed], seen)
    results = {
        "names": np.array(fit.names),
        "estimates": fit.estimates,
        "stderr": fit.errors,
        "naive": naive.estimates,
        "two_step": np.append(fit.two_step.coefficients, fit.two_step[2:]),
        "log_likelihood": fit.log_likelihood,
        "level": config.level,
        "employed": employed,
        "wage": wage,
        "education": table["education"],
        "failed": "" if fit.converged else fit.reason,
        **lines(config, table, fit, naive),
    }
    if fit.converged:
        results |= effects(config, fit, naive)
    return results | {"summary": str(fit).splitlines() + ["", "least squares, the employed"] + (
        str(naive).splitlines()
    )}  # fmt: skip


def simulated(config):
    """A table with the design of the published one: its covariates, by chance, and the truth."""
    rng, n, truth = np.random.default_rng(config.seed), config.num_rows, config.truth
    table = {
        "married": rng.binomial(1, 0.67, n).astype(float),
        "children": rng.poisson(1.6, n).clip(0, 5).astype(float),
        "education": rng.choice([10.0, 12.0, 16.0, 20.0], n, p=[0.25, 0.35, 0.25, 0.15]),
        "age": rng.integers(20, 60, n).astype(float),
    }
    u, e = rng.normal(size=(2, n))
    columns = table | {"constant": np.ones(n)}
    index = sum(value * columns[name] for name, value in truth.employed.items())
    mean = sum(value * columns[name] for name, value in truth.wage.items())
    error = truth.sigma * (truth.rho * u + np.sqrt(1.0 - truth.rho**2) * e)
    return table | {"wage": np.where(index + u > 0, mean + error, np.nan)}


def lines(config, table, fit, naive):
    """Wages over education at the mean age, by each fit, with intervals; and the truth."""
    education = np.linspace(table["education"].min(), table["education"].max(), 25)
    new = {"constant": np.ones(25), "education": education, "age": np.full(25, table["age"].mean())}
    everyone = new | {name: np.full(25, table[name].mean()) for name in ("married", "children")}
    corrected = fit.predict(everyone, level=config.level)
    least_squares = naive.predict(new, level=config.level)
    found = {"line_education": education}
    for name, made, j in (("corrected", corrected, 1), ("naive", least_squares, 0)):
        parts = (part.reshape(25, -1)[:, j] for part in (made.value, made.low, made.high))
        found[f"{name}_line"] = np.stack(list(parts))
    if config.data is None:
        found["true_line"] = sum(value * new[name] for name, value in config.truth.wage.items())
    return found


def effects(config, fit, naive):
    """Average marginal effects on the wage, by least squares, of everyone and of the employed."""
    kinds = {
        "least squares": naive.margins(level=config.level),
        "everyone": fit.margins(level=config.level),
        "the employed": fit.margins(kind="mean_observed", level=config.level),
    }
    rows = np.full((len(kinds), len(COVARIATES), 3), np.nan)
    for i, made in enumerate(kinds.values()):
        for k, name in enumerate(made.names):
            parts = (np.atleast_1d(part[k])[-1] for part in (made.value, made.low, made.high))
            rows[i, COVARIATES.index(name)] = list(parts)
    return {
        "effect_kinds": np.array(list(kinds)),
        "effect_names": np.array(COVARIATES),
        "effects": rows,
    }
