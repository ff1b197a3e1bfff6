from truncgauss.special.logspace import (
    effective_sample_size as effective_sample_size,
    log1mexp as log1mexp,
    log1pexp as log1pexp,
    log_mean_exp as log_mean_exp,
    log_sigmoid as log_sigmoid,
    log_sum_exp as log_sum_exp,
    sigmoid as sigmoid,
)
from truncgauss.special.normal import (
    log_interval_mass as log_interval_mass,
    moved_inside as moved_inside,
    separation_step as separation_step,
    truncated_entropy as truncated_entropy,
    truncated_log_density as truncated_log_density,
    truncated_log_mass as truncated_log_mass,
    truncated_mean as truncated_mean,
    truncated_mean_and_variance as truncated_mean_and_variance,
    truncated_quantile as truncated_quantile,
    truncated_variance as truncated_variance,
)
from truncgauss.special.tails import (
    Interval as Interval,
    hazard as hazard,
    hazard_excess as hazard_excess,
    log_ndtr as log_ndtr,
    ndtr as ndtr,
    standardize as standardize,
)
