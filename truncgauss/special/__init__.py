"""The normal distribution on one interval, and sums of exponentials, with own derivative rules."""

from truncgauss.special.logspace import (
    effective_sample_size,
    log1mexp,
    log1pexp,
    log_mean_exp,
    log_sigmoid,
    log_sum_exp,
    sigmoid,
)
from truncgauss.special.normal import (
    Interval,
    log_interval_mass,
    moved_inside,
    separation_step,
    standardize,
    truncated_entropy,
    truncated_log_density,
    truncated_log_mass,
    truncated_mean,
    truncated_mean_and_variance,
    truncated_quantile,
    truncated_variance,
)
from truncgauss.special.tails import hazard, hazard_excess, log_ndtr, ndtr

__all__ = [
    "Interval",
    "effective_sample_size",
    "hazard",
    "hazard_excess",
    "log1mexp",
    "log1pexp",
    "log_interval_mass",
    "log_mean_exp",
    "log_ndtr",
    "log_sigmoid",
    "log_sum_exp",
    "moved_inside",
    "ndtr",
    "separation_step",
    "sigmoid",
    "standardize",
    "truncated_entropy",
    "truncated_log_density",
    "truncated_log_mass",
    "truncated_mean",
    "truncated_mean_and_variance",
    "truncated_quantile",
    "truncated_variance",
]
