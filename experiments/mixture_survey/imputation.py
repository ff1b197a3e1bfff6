"""EM that draws the rows which a selection hid, as an alternative to exact moments.

Each step draws a population from the mixture of the step before, with noise, and takes what does
not pass the cuts for the rows that are missing; missing entries of rows are drawn likewise, so that
these pass. The mixture never settles: it moves as the draws do.

Reference:
    Melchior and Goulding, "Filling the gaps: Gaussian mixture models from noisy, truncated or
    incomplete samples", Astronomy and Computing (2018).
"""

import time

import numpy as np

import truncgauss as tg

MOST_TRIES = 10_000  # of draws of a missing entry


def climbed(rows, start, passes, num_steps, every, seed):
    """The log-likelihood of every so many-th step, the last mixture, and processor seconds.

    Args:
        rows: `tg.Observations` with noise of their own and a region.
        start: weights, means and covariances.
        passes: points (n, d) -> which of them the survey shows.
        num_steps, every: steps, and how many of them make a row of the result.
        seed: of the draws.
    """
    rng, mixture, seconds, found = np.random.default_rng(seed), start, 0.0, []
    lower, upper = np.asarray(rows.lower), np.asarray(rows.upper)
    y = np.where(lower == upper, lower, np.nan)
    noise = np.diagonal(np.asarray(rows.noise), axis1=1, axis2=2)
    for step in range(num_steps + 1):
        if step % every == 0:
            found.append(float(np.sum(tg.mixtures.mixture_log_likelihood(rows, *mixture).log_prob)))
        begin = time.process_time()
        if step < num_steps:
            extra, errors = hidden(rng, len(y), noise, mixture, passes)
            whole = filled(rng, y, noise, mixture, passes)
            mixture = em_step(np.vstack([whole, extra]), np.vstack([noise, errors]), *mixture)
        seconds += time.process_time() - begin
    return {"log_likelihoods": np.array(found), "mixture": mixture, "seconds": seconds}


def hidden(rng, num_seen, noise, mixture, passes):
    """Rows that do not pass, drawn until as many passed as were seen, and their noise."""
    weights, locs, covariances = mixture
    factors, lost, count = np.linalg.cholesky(covariances), [], 0
    while count < num_seen:
        own = rng.choice(len(weights), p=weights, size=num_seen)
        errors = noise[rng.integers(len(noise), size=num_seen)]
        normal = rng.normal(size=(2, num_seen, locs.shape[1]))
        y = locs[own] + np.einsum("nij,nj->ni", factors[own], normal[0])
        y = y + np.sqrt(errors) * normal[1]
        seen = passes(y)
        until = np.searchsorted(np.cumsum(seen), num_seen - count) + 1
        count += int(seen[:until].sum())
        lost.append((y[:until][~seen[:until]], errors[:until][~seen[:until]]))
    return tuple(np.concatenate(parts) for parts in zip(*lost))


def filled(rng, y, noise, mixture, passes):
    """Rows (n, 2) with a draw for each entry that is missing, such that the row passes."""
    (weights, locs, covariances), result = mixture, y.copy()
    open_rows = np.flatnonzero(np.isnan(y).any(axis=1))
    for _ in range(MOST_TRIES):
        if not len(open_rows):
            return result
        rows, lines = np.arange(len(open_rows)), y[open_rows]
        logs = expected(lines, noise[open_rows], weights, locs, covariances)[0]
        own = np.argmax(logs + rng.gumbel(size=logs.shape), axis=1)
        gap = np.argmax(np.isnan(lines), axis=1)
        whole = covariances[own] + noise[open_rows][:, :, None] * np.eye(2)
        slope = whole[rows, gap, 1 - gap] / whole[rows, 1 - gap, 1 - gap]
        known = lines[rows, 1 - gap] - locs[own, 1 - gap]
        spread = whole[rows, gap, gap] - slope * whole[rows, gap, 1 - gap]
        normal = np.sqrt(spread) * rng.normal(size=len(rows))
        lines[rows, gap] = locs[own, gap] + slope * known + normal
        seen = passes(lines)
        result[open_rows[seen]] = lines[seen]
        open_rows = open_rows[~seen]
    raise ArithmeticError(f"{len(open_rows)} rows cannot be completed so that they pass the cuts.")


def em_step(y, noise, weights, locs, covariances):
    """The mixture after an EM step for rows (n, d), NaN where missing, and variances of noise."""
    logs, means, spreads = expected(y, noise, weights, locs, covariances)
    shares = np.exp(logs - np.logaddexp.reduce(logs, axis=1, keepdims=True))
    counts = shares.sum(axis=0)
    locs = np.einsum("nk,nkd->kd", shares, means) / counts[:, None]
    gaps = means - locs
    squares = np.einsum("nk,nki,nkj->kij", shares, gaps, gaps)
    squares += np.einsum("nk,nkij->kij", shares, spreads)
    squares = (squares + np.swapaxes(squares, 1, 2)) / 2  # rounding would grow from step to step
    return counts / len(y), locs, squares / counts[:, None, None]


def expected(y, noise, weights, locs, covariances):
    """log w_k f_k(row), (n, K), and mean and covariance of the true values given row and k."""
    (n, d), k = y.shape, len(weights)
    logs, means, spreads = np.zeros((n, k)), np.zeros((n, k, d)), np.zeros((n, k, d, d))
    known = ~np.isnan(y)
    for pattern in np.unique(known, axis=0):
        rows = np.flatnonzero(np.all(known == pattern, axis=1))
        i = np.flatnonzero(pattern)
        across = covariances[:, :, i]
        own = noise[rows][:, i]
        whole = covariances[:, i][:, :, i] + (own[:, None, :, None] * np.eye(len(i)))
        gaps = y[rows][:, None, i] - locs[:, i]
        solved = np.linalg.solve(whole, gaps[..., None])[..., 0]
        constants = np.linalg.slogdet(whole)[1] + len(i) * np.log(2 * np.pi)
        logs[rows] = np.log(weights) - 0.5 * (np.sum(gaps * solved, axis=-1) + constants)
        means[rows] = locs + np.einsum("kij,nkj->nki", across, solved)
        back = np.linalg.solve(whole, np.swapaxes(across, 1, 2) + np.zeros((len(rows), 1, 1, 1)))
        spreads[rows] = covariances - across @ back
    return logs, means, spreads
