"""Pearson's correlation of ordered categories beside the polychoric one, with intervals.

Answers in a few categories are cuts through a variable that is not seen. Pearson's correlation of
the numbers of the categories is that of the answers, closer to 0 than that of the variables, the
more so the fewer and the more unequal the categories are. The polychoric correlation is that of the
variables.

References:
    Olsson, "Maximum likelihood estimation of the polychoric correlation coefficient", Psychometrika
        (1979).
"""

import numpy as np
from scipy import stats

import truncgauss as tg


def run(config):
    """Both correlation matrices with intervals, the truth, and one pair by maximum likelihood."""
    names, items = list(config.items), list(config.items.values())
    loadings = np.array([item.loading for item in items])
    rng = np.random.default_rng(config.seed)
    factor = rng.normal(size=(config.num_rows, 1))
    rest = rng.normal(size=(config.num_rows, len(items)))
    latent = factor * loadings + rest * np.sqrt(1.0 - loadings**2)
    codes = np.column_stack([np.digitize(x, item.cuts) for x, item in zip(latent.T, items)])
    codes = np.where(rng.random(codes.shape) < config.missing, np.nan, codes)
    fit = tg.polychoric_matrix(dict(zip(names, codes.T)))
    pairs = fit.pairs
    pearson = np.array([of_numbers(codes[:, i], codes[:, j], config.level) for i, j in pairs])
    at = tuple(pairs.T)
    polychoric = np.column_stack([fit.correlations[at], fit.intervals(config.level)[at]])
    true = np.prod(loadings[pairs], axis=1)
    first, second = (tg.Ordinal(codes[:, i], name=names[i]) for i in pairs[0, ::-1])
    one = tg.polychoric(first, second)
    wrong = int(np.sum(~np.isfinite(polychoric[:, 0]) | (np.abs(polychoric[:, 0]) == 1)))
    inside = (polychoric[:, 1] < true) & (true < polychoric[:, 2])
    missed = (pearson[:, 1] < true) & (true < pearson[:, 2])
    return {
        "names": np.array(names),
        "pairs": pairs,
        "level": config.level,
        "true": true,
        "pearson": pearson,
        "polychoric": polychoric,
        "stderr": fit.standard_errors[at],
        "held": np.array([missed.sum(), inside.sum()]),
        "failed": f"{wrong} pair(s) have no polychoric correlation inside (-1, 1)" if wrong else "",
        "summary": [
            *str(fit).splitlines(),
            f"the truth lies in {inside.sum()} of {len(pairs)} polychoric intervals and in "
            f"{missed.sum()} of Pearson's",
            "",
            f"{names[pairs[0, 1]]} and {names[pairs[0, 0]]} by maximum likelihood",
            *str(one).splitlines(),
        ],
    }


def of_numbers(x, y, level):
    """Pearson's correlation of the numbers of categories, and Fisher's interval."""
    both = np.isfinite(x) & np.isfinite(y)
    r = np.corrcoef(x[both], y[both])[0, 1]
    half = stats.norm.ppf(0.5 + 0.5 * level) / np.sqrt(both.sum() - 3)
    return r, *np.tanh(np.arctanh(r) + np.array([-half, half]))
