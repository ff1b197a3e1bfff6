"""Regions of space that a Gaussian is truncated to. One region, one file."""

from truncgauss.regions.ball import Ball
from truncgauss.regions.box import Box
from truncgauss.regions.ellipsoid import Ellipsoid
from truncgauss.regions.polyhedron import Polyhedron
from truncgauss.regions.quadratic import QuadraticRegion
from truncgauss.regions.region import LinearRegion, Region, as_linear, check_limits
from truncgauss.regions.section import Section
from truncgauss.regions.selection import Selection

__all__ = [
    "Ball",
    "Box",
    "Ellipsoid",
    "LinearRegion",
    "Polyhedron",
    "QuadraticRegion",
    "Region",
    "Section",
    "Selection",
    "as_linear",
    "check_limits",
]
