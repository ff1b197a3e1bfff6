"""Named problems: Gaussians and boxes whose log probability is known by another route.

Values come from closed forms, one-dimensional quadrature (one factor, equal correlations) or a
transfer operator (autoregressions), right to about 1e-12; those of the ill-conditioned matrices
from two long simulations that agree, right to about 1e-6.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Problem(NamedTuple):
    """P(low <= X <= high) for X ~ Normal(loc, covariance()) is exp(log_prob)."""

    name: str
    loc: np.ndarray
    covariance: Callable[[], np.ndarray]
    low: np.ndarray
    high: np.ndarray
    log_prob: float
    tags: frozenset[str]

    @property
    def dimension(self) -> int:
        return len(self.low)


# --- Families of covariances ----------------------------------------------------------------------


def equal_correlations(d: int, rho: float = 0.5) -> np.ndarray:
    return np.full((d, d), rho) + (1 - rho) * np.eye(d)


def autoregression(d: int, rho: float = 0.7) -> np.ndarray:
    return rho ** np.abs(np.subtract.outer(np.arange(d), np.arange(d)))


def one_factor(d: int) -> np.ndarray:
    loadings = np.array(LOADINGS[d])
    return np.outer(loadings, loadings) + np.diag(1 - loadings**2)


def tridiagonal(d: int) -> np.ndarray:
    """Differences of d + 1 independent normals: its orthant is one of their (d + 1)! orders."""
    return 2 * np.eye(d) - np.eye(d, k=1) - np.eye(d, k=-1)


def negative_correlations(d: int) -> np.ndarray:
    return 2 * np.eye(d) - 2 / (d + 1)


def brownian(d: int) -> np.ndarray:
    steps = np.arange(1.0, d + 1)
    return np.minimum.outer(steps, steps)


def ill_conditioned(d: int) -> np.ndarray:
    return np.array(ILL_CONDITIONED[d])


LOADINGS = {
    2: (0.6027900611500373, 0.7610204063033471),
    3: (0.18719338946056174, 0.27139936789108454, 0.22138325553893246),
    5: (
        0.8885209616187714,
        0.35724946337600294,
        0.6437304468570418,
        0.7278469267569455,
        0.7882403918633503,
    ),
    20: (
        0.46667071521760983,
        0.6417942968045819,
        0.7612498485516129,
        0.1476789868546229,
        0.8721310835865392,
        0.6522472102188615,
        0.25868519929777073,
        0.31806607493276734,
        0.1403112932116007,
        0.4720441910943707,
        0.18751019547175107,
        0.7333639479349655,
        0.6813687682145385,
        0.31741880127641164,
        0.2686499954360205,
        0.42785002378937254,
        0.6164178695793322,
        0.5849717653702923,
        0.1096770315494457,
        0.7213997010748125,
    ),
}

ILL_CONDITIONED = {
    3: [
        [1.0, 0.9999999687090149, 0.9999999681129328],
        [0.9999999687090149, 1.0, 0.999999963700296],
        [0.9999999681129328, 0.999999963700296, 1.0],
    ],
    5: [
        [1.0, 0.9999999423352198, 0.9999999278249245, 0.9999999342911613, 0.999999926752866],
        [0.9999999423352198, 1.0, 0.9999999401182702, 0.999999946584507, 0.9999999390462116],
        [0.9999999278249245, 0.9999999401182702, 1.0, 0.9999999320742116, 0.9999999245359164],
        [0.9999999342911613, 0.999999946584507, 0.9999999320742116, 1.0, 0.9999999310021531],
        [0.999999926752866, 0.9999999390462116, 0.9999999245359164, 0.9999999310021531, 1.0],
    ],
}

FAMILIES = {
    "id": np.eye,
    "equi": equal_correlations,
    "ar1": autoregression,
    "factor": one_factor,
    "ill": ill_conditioned,
}

# Limits that all coordinates share, in standard deviations.
BOXES = {
    "box": (-1.5, 1.0),
    "orth": (-math.inf, 0.0),
    "tail2": (2.0, math.inf),
    "tail4": (4.0, math.inf),
    "wide": (0.0, 1000.0),
}

LOG_PROBS = {
    ("id", 1): {
        "box": -0.2554891441223731,
        "orth": -0.6931471805599453,
        "tail2": -3.7831843336820317,
        "tail4": -10.360101486527292,
        "wide": -0.6931471805599453,
    },
    ("id", 2): {
        "box": -0.5109782882447462,
        "orth": -1.3862943611198906,
        "tail2": -7.566368667364063,
        "tail4": -20.720202973054583,
        "wide": -1.3862943611198906,
    },
    ("equi", 2): {
        "box": -0.45943497850603165,
        "orth": -1.0986122886681104,
        "tail2": -5.508311196866098,
        "tail4": -14.534889271964204,
        "wide": -1.09861228866811,
    },
    ("ar1", 2): {
        "box": -0.41350610181225556,
        "orth": -0.9850827009184467,
        "tail2": -4.911480221048862,
        "tail4": -12.923915924177152,
        "wide": -0.9850827009184466,
    },
    ("factor", 2): {
        "box": -0.46694996999609395,
        "orth": -1.1213220127246057,
        "tail2": -5.640310682994975,
        "tail4": -14.905712845556666,
        "wide": -1.1213220127246055,
    },
    ("id", 3): {
        "box": -0.7664674323671193,
        "orth": -2.0794415416798357,
        "tail2": -11.349553001046095,
        "tail4": -31.080304459581875,
        "wide": -2.0794415416798357,
    },
    ("equi", 3): {
        "box": -0.6364238835193942,
        "orth": -1.3862943611198886,
        "tail2": -6.589307826848662,
        "tail4": -16.975468387539472,
        "wide": -1.3862943611198917,
    },
    ("ar1", 3): {
        "box": -0.5653907290319853,
        "orth": -1.24077804283066,
        "tail2": -5.910361445822579,
        "tail4": -15.258366768815634,
        "wide": -1.2407780428306603,
    },
    ("factor", 3): {
        "box": -0.762113680323485,
        "orth": -1.9868439979778572,
        "tail2": -10.559529144926731,
        "tail4": -28.597717366284865,
        "wide": -1.986843997977857,
    },
    ("ill", 3): {
        "box": -0.25556302143388676,
        "orth": -0.6932700783369884,
        "tail2": -3.7835499016937817,
        "tail4": -10.360752449694807,
        "wide": -0.6932700783394263,
    },
    ("id", 5): {
        "box": -1.2774457206118655,
        "orth": -3.4657359027997265,
        "tail2": -18.915921668410157,
        "tail4": -51.80050743263646,
        "wide": -3.4657359027997265,
    },
    ("equi", 5): {
        "box": -0.9449183988532833,
        "orth": -1.791759469228055,
        "tail2": -7.963344475537261,
        "tail4": -19.896857346721745,
        "wide": -1.7917594692280545,
    },
    ("ar1", 5): {
        "box": -0.8670846538444646,
        "orth": -1.720543211114395,
        "tail2": -7.821351150433252,
        "tail4": -19.809515796445766,
        "wide": -1.7205432111143952,
    },
    ("factor", 5): {
        "box": -0.953196658895442,
        "orth": -1.8973125323282325,
        "tail2": -8.678969577927145,
        "tail4": -22.032084685781516,
        "wide": -1.897312532328229,
    },
    ("ill", 5): {
        "box": -0.2556319653156425,
        "orth": -0.6933847584141097,
        "tail2": -3.783891023559162,
        "tail4": -10.361359903326443,
        "wide": -0.6933847584136477,
    },
    ("id", 20): {
        "box": -5.109782882447464,
        "orth": -13.862943611198906,
        "tail2": -75.66368667364063,
        "tail4": -207.20202973054586,
        "wide": -13.862943611198906,
    },
    ("equi", 20): {
        "box": -2.6744385833899464,
        "orth": -3.0445224377234217,
        "tail2": -11.50075328104948,
        "tail4": -26.653385461097265,
        "wide": -3.044522437723423,
    },
    ("ar1", 20): {
        "box": -3.1265450764155913,
        "orth": -5.194330581215725,
        "tail2": -21.93663210807141,
        "tail4": -53.74334720443258,
        "wide": -5.194330581215726,
    },
    ("factor", 20): {
        "box": -3.955412918956874,
        "orth": -6.471535008224467,
        "tail2": -29.015303804984438,
        "tail4": -73.75521812987682,
        "wide": -6.471535008224471,
    },
    ("id", 100): {
        "box": -25.5489144122373,
        "orth": -69.31471805599453,
        "tail2": -378.318433368203,
        "tail4": -1036.0101486527294,
        "wide": -69.31471805599453,
    },
    ("equi", 100): {
        "box": -9.836702959479403,
        "orth": -4.615120516841258,
        "tail2": -15.125970771120501,
        "tail4": -32.79602602132553,
        "wide": -4.615120516841259,
    },
    ("ar1", 100): {
        "box": -15.176594589097565,
        "orth": -23.687549356440602,
        "tail2": -97.1888980947243,
        "tail4": -234.70892930123804,
        "wide": -23.687549356440584,
    },
}

# Closed forms and quadratures of other shapes: name, covariance, d, low, high, log P, tags.
OTHERS = (
    ("order-100", tridiagonal, 100, 0.0, math.inf, -math.lgamma(102), "tail high-d"),
    ("order-1000", tridiagonal, 1000, 0.0, math.inf, -math.lgamma(1002), "tail high-d"),
    ("negative-10", negative_correlations, 10, 0.5, 1.0, -32.391385396886459502, "tail"),
    ("negative-25", negative_correlations, 25, 0.5, 1.0, -121.04928171879103, "tail"),
    ("negative-50", negative_correlations, 50, 0.5, 1.0, -351.53597455549234, "tail high-d"),
    ("brownian-8", brownian, 8, 0.0, math.inf, math.log(0.196380615234375), "correlated"),
    ("ones-3", lambda d: np.ones((d, d)), 3, -math.inf, 1.0, -0.1727537790234499, "singular"),
)


def _tags(family: str, d: int, box: str) -> frozenset[str]:
    tags = {"tail"} if box.startswith("tail") else set()
    tags |= {"infinite"} if box in ("orth", "tail2", "tail4") else set()
    tags |= {"high-d"} if d >= 50 else set()
    return frozenset(tags | ({"correlated"} if family == "ill" else set()))


def _problem(name, covariance, d, low, high, log_prob, tags) -> Problem:
    limits = np.full(d, float(low)), np.full(d, float(high))
    return Problem(name, np.zeros(d), lambda: covariance(d), *limits, log_prob, frozenset(tags))


PROBLEMS = tuple(
    _problem(f"{family}-{d}-{box}", FAMILIES[family], d, *BOXES[box], value, _tags(family, d, box))
    for (family, d), row in LOG_PROBS.items()
    for box, value in row.items()
) + tuple(_problem(*other, tags.split()) for *other, tags in OTHERS)


def problem(name: str) -> Problem:
    """The problem of this name."""
    return next(p for p in PROBLEMS if p.name == name)
