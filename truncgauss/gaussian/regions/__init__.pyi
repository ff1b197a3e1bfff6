from truncgauss.arrays.pytrees import check_limits as check_limits
from truncgauss.gaussian.regions.ball import Ball as Ball
from truncgauss.gaussian.regions.box import Box as Box
from truncgauss.gaussian.regions.ellipsoid import Ellipsoid as Ellipsoid
from truncgauss.gaussian.regions.injections import Injections as Injections
from truncgauss.gaussian.regions.outside import Outside as Outside
from truncgauss.gaussian.regions.polyhedron import Polyhedron as Polyhedron
from truncgauss.gaussian.regions.region import (
    LinearRegion as LinearRegion,
    QuadraticRegion as QuadraticRegion,
    Region as Region,
    as_linear as as_linear,
)
from truncgauss.gaussian.regions.section import Section as Section
from truncgauss.gaussian.regions.selection import Selection as Selection
