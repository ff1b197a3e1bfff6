"""Errors that say which of a mean, a covariance and a region does not go with the others.

Loaded by what goes wrong alone.
"""

import math
from typing import Any, cast

import numpy as np

from truncgauss.gaussian.covariances import Covariance
from truncgauss.gaussian.regions.region import Region


def no_region(loc: Any, covariance: Any, region: Any) -> TypeError:
    """The error that the last of these arguments is no region."""
    for need, value in (("loc must be the mean", loc), ("covariance must be a matrix", covariance)):
        if isinstance(value, Region):
            return TypeError(
                f"{need}, got a {type(value).__name__}: the region comes last, as in (loc, "
                "covariance, region)."
            )
    cure = "For bounds write tg.Box(low, high)."
    if callable(region):
        cure = "Of a function of x write tg.Selection(function, dimension), for bounds tg.Box."
    if isinstance(region, list | tuple) and any(isinstance(part, Region) for part in region):
        cure = "Of k boxes write one, tg.Box(lows, highs) of arrays (k, d): a row is a region."
    if np.ndim(cast(Any, covariance)) == 1 and np.ndim(cast(Any, region)) == 2:
        cure = "The order is (loc, covariance, region): (mean, sigma, tg.Box(lower, upper))."
    return TypeError(
        "region must be a tg.Box, Polyhedron, Ball, Ellipsoid, Outside or Selection, got "
        f"{type(region).__name__}. {cure}"
    )


def other_dimensions(shape: tuple[int, ...], d: int, limited: int) -> ValueError:
    """The error that a mean, a covariance and a region have different dimensions."""
    cure = (
        "The last axis of each must be d; for one dimension write [mean], [[variance]] and "
        "Box([low], [high])."
    )
    if shape[-1:] == (d,) and limited == 1:
        cure = f"For the same limits everywhere write Box(jnp.full({d}, low), jnp.full({d}, high))."
    elif shape == (limited, d):
        cure = f"For bounds of each row give the region arrays ({limited}, 1) or ({limited}, {d})."
    elif shape[-1:] == (d,):
        cure = f"Give the region {d} coordinate(s), from -inf to inf where one is free."
    elif d == limited == 1 and shape:
        cure = f"For {math.prod(shape)} means in one dimension write loc[..., None]."
    elif not shape and d > 1:
        cure = f"For the same mean everywhere write jnp.full({d}, loc)."
    elif shape and limited == d > 1:
        cure = f"Give loc {d} entries in its last axis, one a coordinate."
    elif shape[-1:] == (limited,) and limited > 1:
        cure = f"Give the covariance the shape ({limited}, {limited})."
    return ValueError(
        f"dimensions disagree: loc has shape {shape}, the covariance dimension {d}, the region "
        f"dimension {limited}. {cure}"
    )


def check_order(shape: tuple[int, ...], covariance: Any) -> None:
    """Raise ValueError if a mean of this shape is a matrix, and the covariance a vector."""
    vector = () if isinstance(covariance, Covariance) else np.shape(covariance)
    if shape[-1:] == vector:
        raise ValueError(
            f"covariance must have shape (d, d), got {vector}, and loc (d,), got {shape}: they are "
            "exchanged. The mean comes first: (loc, covariance, region)."
        )
