"""Peers: SciPy's `multivariate_normal.cdf` and, where it is installed, R's `mvtnorm::pmvnorm`.

References:
    A. Genz and F. Bretz, "Computation of Multivariate Normal and t Probabilities" (2009), the
    algorithm of both.
"""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from scipy.stats import multivariate_normal

PMVNORM = """
suppressMessages(library(mvtnorm))
x <- scan(file("stdin"), quiet = TRUE)
d <- x[1]; keys <- x[2]; set.seed(x[3])
settings <- GenzBretz(maxpts = x[4], abseps = 1e-15, releps = 0)
low <- x[4 + 1:d]; high <- x[4 + d + 1:d]; sigma <- matrix(x[4 + 2 * d + 1:(d * d)], d)
for (i in 1:keys) {
  start <- Sys.time()
  p <- pmvnorm(low, high, sigma = sigma, algorithm = settings)
  cat(sprintf("%.17g %.17g\\n", as.numeric(Sys.time() - start, units = "secs"), p))
}
"""


def scipy_mvn(problem, num_points, config):
    """SciPy's probabilities, one a seed, and the seconds of each."""
    loc, covariance, region = (jax.tree.map(np.asarray, part) for part in problem)
    probabilities, seconds = [], []
    for seed in range(config.num_keys):
        rng = np.random.default_rng([config.seed, seed])
        start = time.process_time()
        probability = multivariate_normal.cdf(
            region.high, loc, covariance, lower_limit=region.low, maxpts=num_points,
            abseps=1e-15, releps=1e-15, rng=rng,
        )  # fmt: skip
        seconds.append(time.process_time() - start)
        probabilities.append(probability)
        if np.sum(seconds) > config.peer_seconds:
            break
    return np.array(probabilities), np.array(seconds)


def r_has_mvtnorm():
    if not shutil.which("Rscript"):
        return False
    words = ["Rscript", "-e", "library(mvtnorm)"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def r_mvtnorm(problem, num_points, config):
    """Those of R's mvtnorm; the seconds are R's own, its start not among them."""
    _, covariance, region = problem
    numbers = [[len(region.low), config.num_keys, config.seed, num_points]]
    numbers += [region.low, region.high, np.ravel(covariance)]
    text = " ".join(f"{x:.17g}" for part in numbers for x in np.asarray(part, float)).title()  # Inf
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "pmvnorm.R")
        script.write_text(PMVNORM)
        words = ["Rscript", str(script)]
        done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChildProcessError(f"Rscript: {done.stderr.strip()}")
    seconds, probabilities = np.array(done.stdout.split(), float).reshape(-1, 2).T
    return probabilities, seconds
