"""A survey that observes an object if its measured brightness passes a limit of its own.

Every object has measurement errors of its own size, and is observed if its measured first
coordinate is above a limit that depends on when and where it was looked for. The moments of what
was observed are those of no population. A fit that knows limits and errors of each object finds
the population; one that forgets the errors does not.
"""

import numpy as np

import truncgauss as tg

KINDS = ("naive", "noise ignored", "corrected")


def run(config):
    """The population, and three estimates of it."""
    seen, low, noise, total = observed(config)
    fits = {
        "noise ignored": tg.fit_truncated_normal(seen, low),
        "corrected": tg.fit_truncated_normal(seen, low, noise=noise),
    }
    n, d = seen.shape
    covariance = np.cov(seen.T, ddof=0).reshape(d, d)
    variances = np.diagonal(covariance)
    errors = np.sqrt(variances / n), np.sqrt((np.outer(variances, variances) + covariance**2) / n)
    truth = np.array(config.population.loc), np.array(config.population.covariance)
    results = {
        "names": np.array(names(config)),
        "truth": vector(*truth),
        "rows": seen,
        "labels": np.array(config.names),
        "num_objects": total,
        "naive": gaussian(seen.mean(axis=0), covariance, *errors),
        "failed": " ".join(fit.reason for fit in fits.values() if not fit.converged),
    }
    for name, fit in fits.items():
        stderr = fit.standard_errors.loc, fit.standard_errors.covariance_matrix
        results[name] = gaussian(fit.loc, fit.covariance_matrix, *stderr)
    results["population"] = {"loc": truth[0], "covariance": truth[1]}
    results["expected_objects"] = expected_objects(fits["corrected"], seen, low, noise)
    return results | {"summary": summary(results, fits["corrected"])}


def observed(config):
    """Measured rows that were seen, their limits (n, d), the variances of their errors (n, d)."""
    rng = np.random.default_rng(config.seed)
    size, d = config.num_objects, len(config.population.loc)
    objects = rng.multivariate_normal(config.population.loc, config.population.covariance, size)
    scale = np.exp(rng.uniform(np.log(config.noise.start), np.log(config.noise.stop), (size, d)))
    measured = objects + scale * rng.normal(size=(size, d))
    low = np.full((size, d), -np.inf)
    low[:, 0] = rng.uniform(config.limit.start, config.limit.stop, size)
    kept = measured[:, 0] > low[:, 0]
    return measured[kept], low[kept], scale[kept] ** 2, size


def expected_objects(fit, seen, low, noise):
    """How many objects there are by a fit: each that was seen stands for 1 / P(it is seen)."""
    rows = tg.Observations.exact(seen, region=tg.Box(low, np.inf), noise=noise)
    seen_of = tg.likelihood.fraction_not_truncated(rows, fit.loc, fit.covariance_matrix)
    return float(np.sum(1.0 / np.asarray(seen_of)))


def gaussian(loc, covariance, *stderr):
    """Estimates as the results hold them."""
    both = {"estimates": vector(loc, covariance), "stderr": vector(*stderr)}
    return {"loc": loc, "covariance": covariance, **both}


def vector(loc, covariance):
    """The mean and the lower triangle of the covariance, one after the other."""
    return np.concatenate([loc, covariance[np.tril_indices(len(loc))]])


def names(config):
    """What to call the entries of `vector`."""
    found = [f"mean of {name}" for name in config.names]
    for i, one in enumerate(config.names):
        found += [f"covariance of {one} and {other}" for other in config.names[:i]]
        found.append(f"variance of {one}")
    return found


def summary(results, fit):
    """The table of estimates, and what the certificate says of the corrected one."""
    width = max(map(len, results["names"]))
    row = (f"{{:<{width}}}" + "{:>12}" + "{:>20}" * len(KINDS)).format
    lines = [row("", "truth", *KINDS)]
    for j, name in enumerate(results["names"]):
        cells = [
            f"{results[kind]['estimates'][j]:.3f} ± {results[kind]['stderr'][j]:.3f}"
            for kind in KINDS
        ]
        lines.append(row(name, f"{results['truth'][j]:.3f}", *cells))
    pulls = (results["corrected"]["estimates"] - results["truth"]) / results["corrected"]["stderr"]
    lines += [
        f"{len(results['rows'])} of {results['num_objects']} objects were observed; by the "
        f"corrected fit there are {results['expected_objects']:.0f}",
        f"the corrected fit is {np.abs(pulls).max():.2f} standard errors from the truth at most",
    ]
    certificate = fit.certificate
    certified = [] if certificate is None else [f"It is {certificate.kind}; {certificate.known}."]
    return [*lines, fit.reason, *certified, *fit.notes]
