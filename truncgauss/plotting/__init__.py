"""Figures in one style; every function takes ax=None and returns the Axes that it drew on.

No global state is touched: figures are made without pyplot, and the style applies only while a
function of this module draws. Colours are those of Okabe and Ito, which colour-blind readers can
distinguish; line style, marker and lightness differ too, for print in grey. Legends are outside of
the axes, where they cover no data.

References:
    M. Okabe and K. Ito, "Color Universal Design" (2008), https://jfly.uni-koeln.de/color/.
"""

from truncgauss.plotting.panels import (
    ALARM,
    GRADIENT,
    MANY,
    REFERENCE,
    SERIES,
    STYLE,
    UNSEEN,
    VALUE,
    Series,
    band,
    contours,
    curves,
    entries,
    figure,
    gradient_axes,
    histogram,
    in_house_style,
    legend,
    mosaic,
    nan_spans,
    points,
    region,
    residuals,
    save,
    shared_legend,
    title,
    trace,
    value_and_gradient,
)
from truncgauss.plotting.quantiles import qq, worm

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
    "curves",
    "entries",
    "figure",
    "gradient_axes",
    "histogram",
    "in_house_style",
    "legend",
    "mosaic",
    "nan_spans",
    "points",
    "qq",
    "region",
    "residuals",
    "save",
    "shared_legend",
    "title",
    "trace",
    "value_and_gradient",
    "worm",
]
