"""How often a truncated sample has no maximum-likelihood fit.

For rows of a normal distribution that are seen above a limit only, the likelihood has a maximum if
and only if the sample's standard deviation is below its mean distance from the limit; otherwise it
grows for ever as the Gaussian widens towards an exponential. So a fit may not exist although the
model is right. Samples are judged by that criterion, and some of them by the fit itself.

References:
    G. Barndorff-Nielsen, "Information and Exponential Families" (1978).
    A. C. Cohen, "Truncated and Censored Samples" (1991).
"""

import jax
import numpy as np

import truncgauss as tg
from truncgauss.arrays.progress import bar


def run(config):
    """The share of samples without a maximum, and whether the fits said so."""
    shape = len(config.cuts), len(config.sizes)
    missing, right = np.zeros(shape), []
    for i, j in bar(list(np.ndindex(shape)), "sizes and cuts", True):
        cut, size = config.cuts[i], config.sizes[j]
        key = jax.random.fold_in(jax.random.key(config.seed), i * shape[1] + j)
        above = tg.TruncatedNormal(0.0, 1.0, low=cut)
        rows = np.asarray(above.sample(key, (config.num_samples, size)))
        exists = rows.std(axis=1) < rows.mean(axis=1) - cut
        missing[i, j] = 1.0 - exists.mean()
        for sample, known in zip(rows[: config.num_fits], exists):
            right.append(tg.fit_truncated_normal(sample, cut).converged == known)
    wrong = len(right) - sum(right)
    results = {
        "cuts": np.array(config.cuts),
        "sizes": np.array(config.sizes),
        "missing": missing,
        "stderr": np.sqrt(missing * (1 - missing) / config.num_samples),
        "fits_right": int(sum(right)),
        "fits_wrong": int(wrong),
        "failed": f"{wrong} fits misjudge whether there is a maximum." if wrong else "",
    }
    return results | {"summary": summary(results)}


def summary(results):
    """The shares as a table."""
    row = ("{:>12}" * (1 + len(results["sizes"]))).format
    lines = [
        "share of samples without a maximum, by size and bound (standard deviations)",
        row("bound", *(f"n = {size}" for size in results["sizes"])),
    ]
    for cut, shares in zip(results["cuts"], results["missing"]):
        lines.append(row(f"{cut:+g}", *(f"{share:.1%}" for share in shares)))
    total = results["fits_right"] + results["fits_wrong"]
    return [*lines, f"{results['fits_right']} of {total} fits said rightly whether there is one"]
