"""Regions of space: what a point must satisfy to be seen. One region, one file."""

from truncgauss.regions.ball import Ball
from truncgauss.regions.box import Box
from truncgauss.regions.ellipsoid import Ellipsoid
from truncgauss.regions.polyhedron import Polyhedron
from truncgauss.regions.region import LinearRegion, Region, check_limits

__all__ = ["Ball", "Box", "Ellipsoid", "LinearRegion", "Polyhedron", "Region", "check_limits"]
