"""Figures in one style; every function takes ax=None and returns the Axes that it drew on.

No global state is touched: figures are made without pyplot, and the style applies only while a
function of this module draws. Colours are those of Okabe and Ito, which colour-blind readers can
distinguish; line style, marker and lightness differ too, for print in grey. Legends are outside of
the axes, where they cover no data. Further keyword arguments are properties of what is drawn, and
`inverted="x"`, `"y"` or `"xy"` lets values decrease along an axis, as magnitudes do.

References:
    M. Okabe and K. Ito, "Color Universal Design" (2008), https://jfly.uni-koeln.de/color/.
"""

from truncgauss.plotting.fits import profile, simultaneous, trace
from truncgauss.plotting.panels import (
    band,
    curves,
    gradient_axes,
    histogram,
    nan_spans,
    points,
    value_and_gradient,
)
from truncgauss.plotting.plane import contours, mixture, region
from truncgauss.plotting.quantiles import qq, worm
from truncgauss.plotting.style import (
    ALARM,
    GRADIENT,
    MANY,
    REFERENCE,
    SERIES,
    STYLE,
    UNSEEN,
    VALUE,
    Series,
    figure,
    in_house_style,
    legend,
    lettered,
    mosaic,
    page,
    save,
    shared_legend,
    title,
)
from truncgauss.plotting.truncation import corner, density, truncated_contours

__all__ = [
    "ALARM",
    "GRADIENT",
    "MANY",
    "REFERENCE",
    "SERIES",
    "STYLE",
    "Series",
    "UNSEEN",
    "VALUE",
    "band",
    "contours",
    "corner",
    "curves",
    "density",
    "figure",
    "gradient_axes",
    "histogram",
    "in_house_style",
    "legend",
    "lettered",
    "mixture",
    "mosaic",
    "nan_spans",
    "page",
    "points",
    "profile",
    "qq",
    "region",
    "save",
    "shared_legend",
    "simultaneous",
    "title",
    "trace",
    "truncated_contours",
    "value_and_gradient",
    "worm",
]
