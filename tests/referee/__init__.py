"""The referee: random cases of what users do, beside oracles of the tests' own."""

from tests.referee import (
    boxes as boxes,
    distributions as distributions,
    effects as effects,
    fits as fits,
    groups as groups,
    samples as samples,
    shapes as shapes,
    statements as statements,
    tables as tables,
)
from tests.referee.frame import (
    LAWS as LAWS,
    referee as referee,
)
