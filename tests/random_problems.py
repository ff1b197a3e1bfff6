"""Random Gaussians and boxes from ten families, each a fixed function of its seed.

The family, the kind of region and the dimension of a problem are digits of its seed, so that any
400 seeds in a row have each combination once. Numbers come from `numpy.random.RandomState`, whose
streams NumPy has frozen. `random_problems.csv` keeps the log probabilities of many of them, which
`reference.py` computed without this package: see there for how.
"""

import csv
import pathlib
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import lsq_linear

FAMILIES = tuple(
    "lkj field walk autoregression conflict negative duplicates scales wishart factors".split()
)
REGIONS = ("narrow", "one-sided", "tails", "two-sided", "mixed")
DIMENSIONS = (2, 3, 4, 5, 7, 10, 14, 20)
DEEPEST = 1e4  # least log density at the likeliest point of a box, relative to the mean's
TABLE = pathlib.Path(__file__).parent / "random_problems.csv"


class RandomProblem(NamedTuple):
    """P(low <= X <= high) for X ~ Normal(loc, covariance)."""

    seed: int
    family: str
    region: str
    loc: np.ndarray
    covariance: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def dimension(self) -> int:
        return len(self.loc)

    def cast(self, dtype) -> "RandomProblem":
        """The problem with its numbers rounded to a precision, and given in float64."""
        arrays = (x.astype(dtype).astype(float) for x in self[3:])
        return RandomProblem(*self[:3], *arrays)


class Known(NamedTuple):
    """A log probability, its standard error, and what the last digit of the input may change."""

    log_prob: float
    error: float
    rounding: float
    limits: float  # the sum of all finite standardised limits: whether it is the same problem


def problem(seed: int) -> RandomProblem:
    """The problem of a seed."""
    family = FAMILIES[seed % 10]
    region = REGIONS[seed // 10 % 5]
    d = DIMENSIONS[seed // 50 % 8]
    random = np.random.RandomState(seed)
    correlation = unit_variances(COVARIANCES[family](random, d))
    low, high = boxed(random, correlation, region, family == "conflict")
    scale = 10 ** random.uniform(-8, 8, d) if family == "scales" else random.uniform(0.5, 2, d)
    loc = scale * random.uniform(-2, 2, d) * (random.uniform() < 0.5)
    width = scale * (high - low)
    low = loc + scale * low
    both = np.isfinite(width)
    high = np.where(both, low + np.where(both, width, 0.0), loc + scale * high)
    covariance = correlation * scale[:, None] * scale
    return RandomProblem(seed, family, region, loc, (covariance + covariance.T) / 2, low, high)


def moved(seed: int) -> RandomProblem | None:
    """The problem of a seed at other scales, means and limits, None where none is likely enough.

    Scales are from a third to three times as large, with the limits or without them, means up to
    three standard deviations away, limits up to one, widths up to 4.5 times as large or as small.
    """
    p, d = problem(seed), DIMENSIONS[seed // 50 % 8]
    random = np.random.RandomState(seed + 10**6)
    for attempt in range(40):
        shrunk = 0.7**attempt
        by = np.exp(random.uniform(-np.log(3), np.log(3), d) * (attempt < 30))
        by = np.full(d, by[0]) if seed // 400 % 4 == 1 else by
        covariance = p.covariance * by[:, None] * by
        scale = np.sqrt(np.diag(covariance))
        with_scales = by if random.uniform() < 0.5 else 1.0
        low, high = (p.low - p.loc) * with_scales, (p.high - p.loc) * with_scales
        if seed // 400 % 4 == 2:
            shift = np.zeros(d)
        elif random.uniform() < 0.5:  # together, as the coordinates vary
            shift = np.linalg.cholesky(covariance) @ random.normal(size=d)
            shift *= random.uniform(0, 3) / np.max(np.abs(shift) / scale)
        else:
            shift = shrunk * scale * random.uniform(-3, 3, d) * (random.uniform() < 0.7)
        limits_move = shrunk * scale * (random.uniform() < 0.6)
        width = high - low
        low = low + limits_move * random.uniform(-1, 1, d)
        if random.uniform() < 0.5:
            width = width * np.exp(random.uniform(-1.5, 1.5, d))
        both = np.isfinite(width)
        above = high + limits_move * random.uniform(-1, 1, d)
        high = np.where(both, low + np.where(both, width, 0.0), above)
        ends = (low - shift) / scale, (high - shift) / scale
        if depth(unit_variances(covariance), *ends) < DEEPEST:
            new = p.loc + shift, covariance, p.loc + low, p.loc + high
            return RandomProblem(*p[:3], *new)
    return None


def known(precision: str = "float64") -> dict[int, Known]:
    """The reference values that are kept, by seed, of the problems as they are in a precision."""
    with TABLE.open() as file:
        rows = csv.reader(line for line in file if not line.startswith("#"))
        return {int(row[1]): Known(*map(float, row[2:])) for row in rows if row[0] == precision}


def sum_of_limits(problem: RandomProblem) -> float:
    """The sum of all finite standardised limits."""
    scale = np.sqrt(np.diag(problem.covariance))
    limits = (np.stack([problem.low, problem.high]) - problem.loc) / scale
    return float(limits[np.isfinite(limits)].sum())


# --- Covariances ----------------------------------------------------------------------------------


def unit_variances(covariance):
    scale = np.sqrt(np.diag(covariance))
    correlation = covariance / scale[:, None] / scale
    correlation = (correlation + correlation.T) / 2
    np.fill_diagonal(correlation, 1.0)
    return correlation


def lkj(random, d, concentration=None):
    """A random correlation matrix by the vine of Lewandowski, Kurowicka and Joe (2009)."""
    if concentration is None:
        concentration = np.exp(random.uniform(np.log(0.3), np.log(5)))
    factor = np.zeros((d, d))
    factor[0, 0] = 1
    beta = concentration + (d - 1) / 2
    partial = np.zeros((d, d))
    for k in range(d - 1):
        beta -= 0.5
        partial[k + 1 :, k] = 2 * random.beta(beta, beta, d - 1 - k) - 1
    for i in range(1, d):
        rest = 1.0
        for k in range(i):
            factor[i, k] = partial[i, k] * np.sqrt(rest)
            rest *= 1 - partial[i, k] ** 2
        factor[i, i] = np.sqrt(rest)
    return factor @ factor.T


def field(random, d):
    """Matern 1/2, 3/2, 5/2 or squared exponential at random places, plus a nugget."""
    places = np.sort(random.uniform(0, 1, d))
    r = np.abs(np.subtract.outer(places, places)) / np.exp(random.uniform(np.log(0.1), np.log(2)))
    kernel = random.randint(4)
    s3, s5 = np.sqrt(3) * r, np.sqrt(5) * r
    matrix = (
        np.exp(-r),
        (1 + s3) * np.exp(-s3),
        (1 + s5 + s5**2 / 3) * np.exp(-s5),
        np.exp(-(r**2) / 2),
    )[kernel]
    return matrix + 10 ** random.uniform(-8, -2) * np.eye(d)


def walk(random, d):
    steps = np.cumsum(np.exp(random.normal(0, 1, d)))
    return np.minimum.outer(steps, steps)


def autoregression(random, d):
    rho = random.choice([-1, 1]) * (1 - 10 ** random.uniform(-3, -0.2))
    return rho ** np.abs(np.subtract.outer(np.arange(d), np.arange(d)))


def conflict(random, d):
    """Strong positive correlations: two in three are equal ones, the others a smooth field."""
    if random.uniform() < 1 / 3:
        return field(random, d)
    rho = 1 - 10 ** random.uniform(-3, -0.3)
    return np.full((d, d), rho) + (1 - rho) * np.eye(d)


def negative(random, d):
    """Equal or neighbouring correlations near the least that is possible."""
    share = 1 - 10 ** random.uniform(-4, -0.3)
    if random.uniform() < 0.5:
        return np.eye(d) + share / (d - 1) * (np.eye(d) - 1)
    least = 1 / (2 * np.cos(np.pi / (d + 1)))
    return np.eye(d) - share * least * (np.eye(d, k=1) + np.eye(d, k=-1))


def duplicates(random, d):
    """Copies of a few variables of an LKJ matrix, with a correlation of 1 - 1e-3 to 1 - 1e-8."""
    kept = max(1, d - 1 - random.randint(max(1, d // 2)))
    of = np.concatenate([np.arange(kept), random.randint(0, kept, d - kept)])
    of = of[random.permutation(d)]
    noise = 10 ** random.uniform(-8, -3)
    matrix = lkj(random, kept, 1.0)[np.ix_(of, of)]
    return matrix + np.diag(np.full(d, noise / (1 - noise)))


def scales(random, d):
    return lkj(random, d, 1.0)


def wishart(random, d):
    rows = random.normal(0, 1, (d + random.randint(2 * d), d))
    return rows.T @ rows


def factors(random, d):
    loadings = random.normal(0, 1, (d, 1 + random.randint(3)))
    return loadings @ loadings.T + np.diag(10 ** random.uniform(-3, 0, d))


FAMILY = lkj, field, walk, autoregression, conflict, negative, duplicates, scales, wishart, factors
COVARIANCES = dict(zip(FAMILIES, FAMILY))


# --- Limits, in standard deviations ---------------------------------------------------------------


def boxed(random, correlation, region, opposed):
    """Limits of a kind, drawn towards a point of the Gaussian until they are not too unlikely."""
    d = len(correlation)
    point = np.linalg.cholesky(correlation) @ random.normal(0, 1, d)
    other = random.normal(0, 1, d)
    if opposed:
        other = (1 + np.abs(other)) * (-1.0) ** np.arange(d) * random.choice([0.3, 1, 3])
    strength = 1.0 if opposed else random.choice([0.0, 0.3, 1.0])
    state = random.get_state()
    for attempt in range(60):
        random.set_state(state)
        shrunk = 0.7**attempt
        low, high = LIMITS[region](random, point, other, strength * shrunk, shrunk)
        if depth(correlation, low, high) < DEEPEST:
            return low, high
    raise ArithmeticError("no limits near a point of the Gaussian are likely enough")


def depth(correlation, low, high):
    """Half the squared Mahalanobis length of the likeliest point in a box."""
    x = likeliest(correlation, low, high)
    factor = np.linalg.cholesky(correlation)
    return np.sum(solve_triangular(factor, x, lower=True) ** 2) / 2


def likeliest(correlation, low, high):
    """The point of largest density in a box, of a Gaussian with mean 0."""
    factor = np.linalg.cholesky(correlation)
    inverse = solve_triangular(factor, np.eye(len(low)), lower=True)
    zero = np.zeros(len(low))
    return lsq_linear(inverse, zero, (low, high), method="bvls", max_iter=400).x


def slab(random, centre):
    width = 10 ** random.uniform(-9, -2, len(centre))
    return centre, centre + width


def sided(random, centre, most, same=None):
    """Below or above a limit, which may miss the centre by `most`; `same` gives the side of all."""
    limit = random.uniform(-0.5, 1.5, len(centre))
    limit = np.where(limit < 0, most * limit, limit)
    above = random.uniform(size=len(centre)) < 0.5 if same is None else np.full(len(centre), same)
    low = np.where(above, centre - limit, -np.inf)
    return low, np.where(above, np.inf, centre + limit)


def between(random, centre):
    half = random.uniform(0.1, 2, (2, len(centre)))
    return centre - half[0], centre + half[1]


def wide(random, centre):
    """No limits, one or two, far from the centre."""
    kind = random.randint(0, 4, len(centre))
    low = np.where(kind % 2 == 1, centre - random.uniform(0.5, 3, len(centre)), -np.inf)
    return low, np.where(kind >= 2, centre + random.uniform(0.5, 3, len(centre)), np.inf)


def narrow(random, point, other, strength, shrunk):
    centre = point + strength * (other - point)
    d = len(point)
    place = random.permutation(d)
    slabs = place < (d if random.uniform() < 0.1 else 1 + random.randint(1 + d // 3))
    return chosen([slabs, ~slabs], [slab(random, centre), wide(random, centre)])


def one_sided(random, point, other, strength, shrunk):
    same = random.choice([None, True, False])
    return sided(random, point + strength * (other - point), shrunk, same)


def tails(random, point, other, strength, shrunk):
    """Every limit away from the mean, on the point's side or all on one."""
    far = np.exp(random.uniform(np.log(2), np.log(100)))
    side = np.where(point + strength * (other - point) > 0, 1.0, -1.0)
    side = np.ones(len(point)) if random.uniform() < 0.5 else side
    start = side * far * strength**2 * (1 + 0.3 * random.uniform(size=len(point)))
    start = np.where(strength == 0, side * np.abs(point), start)
    thick = np.where(random.uniform(size=len(point)) < 0.3, 1.0, np.inf)
    return np.where(side > 0, start, start - thick), np.where(side > 0, start + thick, start)


def two_sided(random, point, other, strength, shrunk):
    return between(random, point + strength * (other - point))


def mixed(random, point, other, strength, shrunk):
    """Each coordinate free, one-sided, two-sided, in a slab, or beyond 3 standard deviations."""
    centre = point + strength * (other - point)
    kind = random.choice(5, size=len(point), p=[0.3, 0.25, 0.25, 0.1, 0.1])
    side, far = np.sign(centre), np.abs(centre) + 3 * strength
    beyond = np.where(side > 0, far, -np.inf), np.where(side > 0, np.inf, -far)
    free = np.full(len(point), -np.inf), np.full(len(point), np.inf)
    inner = sided(random, centre, shrunk), between(random, centre), slab(random, centre)
    options = [free, *inner, beyond]
    return chosen([kind == k for k in range(5)], options)


def chosen(conditions, options):
    low, high = zip(*options)
    return np.select(conditions, low), np.select(conditions, high)


LIMITS = dict(zip(REGIONS, (narrow, one_sided, tails, two_sided, mixed)))
