"""The referee: random cases of what users do, beside oracles of the tests' own."""

from tests.referee import (
    boxes as boxes,
    curves as curves,
    distributions as distributions,
    effects as effects,
    fits as fits,
    groups as groups,
    minima as minima,
    samples as samples,
    shapes as shapes,
    statements as statements,
    tables as tables,
)
from tests.referee.frame import (
    LAWS as LAWS,
    referee as referee,
)
