"""Regions of space that a Gaussian is truncated to. One region, one file."""

from truncgauss.gaussian.regions.ball import Ball
from truncgauss.gaussian.regions.box import Box
from truncgauss.gaussian.regions.ellipsoid import Ellipsoid
from truncgauss.gaussian.regions.outside import Outside
from truncgauss.gaussian.regions.polyhedron import Polyhedron
from truncgauss.gaussian.regions.region import (
    LinearRegion,
    QuadraticRegion,
    Region,
    as_linear,
    check_limits,
)
from truncgauss.gaussian.regions.section import Section
from truncgauss.gaussian.regions.selection import Selection

__all__ = [
    "Ball",
    "Box",
    "Ellipsoid",
    "LinearRegion",
    "Outside",
    "Polyhedron",
    "QuadraticRegion",
    "Region",
    "Section",
    "Selection",
    "as_linear",
    "check_limits",
]
