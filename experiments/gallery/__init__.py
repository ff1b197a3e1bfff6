"""Every kind of figure that `tg.plotting` draws, of one truncated Gaussian in three dimensions.

The sample that its limits let through, the fraction that they keep and its gradient, a fit to one
of its coordinates, and the soft edges by which fractions are estimated.
"""
