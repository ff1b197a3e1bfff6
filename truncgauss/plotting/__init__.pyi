from truncgauss.plotting.fits import (
    profile as profile,
    simultaneous as simultaneous,
    trace as trace,
)
from truncgauss.plotting.panels import (
    band as band,
    curves as curves,
    gradient_axes as gradient_axes,
    histogram as histogram,
    nan_spans as nan_spans,
    points as points,
    value_and_gradient as value_and_gradient,
)
from truncgauss.plotting.plane import (
    contours as contours,
    mixture as mixture,
    region as region,
)
from truncgauss.plotting.quantiles import (
    qq as qq,
    worm as worm,
)
from truncgauss.plotting.style import (
    ALARM as ALARM,
    GRADIENT as GRADIENT,
    MANY as MANY,
    REFERENCE as REFERENCE,
    SERIES as SERIES,
    STYLE as STYLE,
    UNSEEN as UNSEEN,
    VALUE as VALUE,
    Series as Series,
    figure as figure,
    in_house_style as in_house_style,
    legend as legend,
    lettered as lettered,
    mosaic as mosaic,
    page as page,
    save as save,
    shared_legend as shared_legend,
    title as title,
)
from truncgauss.plotting.truncation import (
    corner as corner,
    density as density,
    truncated_contours as truncated_contours,
)
