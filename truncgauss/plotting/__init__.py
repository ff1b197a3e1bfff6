"""Figures in one style; every function takes ax=None and returns the Axes that it drew on.

No global state is touched: figures are made without pyplot, and the style applies only while a
function of this module draws. Colours are those of Okabe and Ito, which colour-blind readers can
distinguish; line style, marker and lightness differ too, for print in grey. Legends are outside of
the axes, where they cover no data. Further keyword arguments are properties of what is drawn, and
`inverted="x"`, `"y"` or `"xy"` lets values decrease along an axis, as magnitudes do.

References:
    M. Okabe and K. Ito, "Color Universal Design" (2008), https://jfly.uni-koeln.de/color/.
"""

from truncgauss.arrays.importing import served

__all__, __getattr__, __dir__ = served(__name__, __file__)
