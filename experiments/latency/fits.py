"""Fits whose first call a newcomer waits for: each builds its rows and returns the call."""

import numpy as np

INF = np.inf


def truncated_normal(tg):
    """500 rows of a bivariate normal above 0."""
    rows = normal_rows(2, 1500, 0.4) + [0.5, 0.2]
    rows = rows[np.all(rows > 0, axis=1)][:500]
    return lambda: tg.fit_truncated_normal(rows, low=[0.0, 0.0], progress=False)


def observations(tg):
    """200 rows of two entries, some of them below a limit of detection, some missing."""
    rows = normal_rows(2, 200, 0.4) + [0.5, 0.2]
    lower, upper = with_gaps(*below(rows, -0.3))
    return lambda: tg.fit_observations(tg.Observations(lower, upper), progress=False)


def probit(tg, d):
    """300 rows of d correlated signs with a covariate."""
    x, design = covariate(300)
    latent = normal_rows(d, 300, 0.4) + (0.3 + 0.5 * x)[:, None]
    signs = latent > 0
    rows = tg.Observations(np.where(signs, 0.0, -INF), np.where(signs, INF, 0.0))
    covariance = np.where(np.eye(d) == 1.0, 1.0, np.nan)  # all but variances is to be estimated
    return lambda: tg.fit_observations(rows, design, covariance=covariance, progress=False)


def selection(tg):
    """Heckman's model for 1,000 rows: an outcome that is missing where another is negative."""
    x, design = covariate(1000)
    w = np.random.default_rng(3).normal(size=1000)
    errors = normal_rows(2, 1000, 0.5)
    selected = 0.3 + 0.5 * x + 0.8 * w + errors[:, 0] > 0
    outcome = 1.0 + 0.7 * x + 1.2 * errors[:, 1]
    rows = tg.Observations(
        np.column_stack([np.where(selected, 0.0, -INF), np.where(selected, outcome, -INF)]),
        np.column_stack([np.where(selected, INF, 0.0), np.where(selected, outcome, INF)]),
    )
    designs = np.column_stack([design, w]), design
    covariance = np.array([[1.0, np.nan], [np.nan, np.nan]])
    return lambda: tg.fit_observations(rows, designs, covariance=covariance, progress=False)


def censored(tg):
    """96 rows of four entries, each below its limit of detection for a third of them."""
    lower, upper = below(normal_rows(4, 96, 0.4) + [0.5, 0.2, 0.4, 0.3], 0.0)
    return lambda: tg.fit_observations(tg.Observations(lower, upper), progress=False)


def several_mixtures(tg, gaps=False):
    """Mixtures of one to four components for 600 rows of three groups; with gaps a tenth of the
    entries is missing, and the others have noise whose covariance each row knows."""
    groups = np.random.default_rng(2).integers(0, 3, 600)
    rows = normal_rows(2, 600, 0.3) + np.array([[0.0, 0.0], [4.0, 1.0], [1.0, 5.0]])[groups]
    observed = tg.Observations.exact(rows)
    if gaps:
        rng = np.random.default_rng(4)
        scales = rng.uniform(0.1, 0.5, size=rows.shape)
        rows = rows + scales * rng.normal(size=rows.shape)
        lower, upper = with_gaps(rows, rows)
        noise = np.square(scales)[:, :, None] * np.eye(2)
        observed = tg.Observations(lower, upper, noise=noise)
    return lambda: [tg.fit_mixture(observed, k, progress=False) for k in (1, 2, 3, 4)]


def normal_rows(d, n, correlation):
    """n rows of d standard normal variables with that correlation, (n, d)."""
    matrix = np.full((d, d), correlation) + (1.0 - correlation) * np.eye(d)
    return np.random.default_rng(0).multivariate_normal(np.zeros(d), matrix, n)


def covariate(n):
    """A covariate (n,), and the design of it and a constant (n, 2)."""
    x = np.random.default_rng(1).normal(size=n)
    return x, np.column_stack([np.ones(n), x])


def below(rows, limit):
    """Lower and upper limits of entries of which those below a limit are known only to be so."""
    return np.where(rows < limit, -INF, rows), np.maximum(rows, limit)


def with_gaps(lower, upper):
    """The limits with a tenth of the entries missing, never all of a row."""
    missing = np.random.default_rng(1).uniform(size=lower.shape) < 0.1
    missing &= ~missing.all(axis=1)[:, None]
    return np.where(missing, -INF, lower), np.where(missing, INF, upper)


FITS = {
    "truncated normal, 2-d": truncated_normal,
    "limits of detection, 2-d": observations,
    "bivariate probit": lambda tg: probit(tg, 2),
    "trivariate probit": lambda tg: probit(tg, 3),
    "selection model": selection,
    "limits of detection, 4-d": censored,
    "mixtures of 1 to 4": several_mixtures,
    "mixtures with noise and gaps": lambda tg: several_mixtures(tg, gaps=True),
}
