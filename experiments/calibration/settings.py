"""The settings of `calibration`."""

from truncgauss.runs.config import Chains, Count, Experiment, Limits, Model, Number, Positive, Share


class NormalPrior(Model):
    """The prior of the mean and the standard deviation of a normal distribution."""

    loc: Number
    """The mean is normal about this one,"""
    loc_scale: Positive
    """with this standard deviation;"""
    scale: Positive
    """the standard deviation is lognormal with this median,"""
    scale_spread: Positive
    """and its log has this standard deviation."""


class Settings(Experiment):
    """Simulation-based calibration of a truncated normal model."""

    prior: NormalPrior
    limits: Limits
    num_simulations: Count
    thinning: Count
    level: Share
    num_curves: Count
    chains: Chains
