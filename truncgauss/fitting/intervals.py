"""Intervals of a fit: Wald's, and those of the profile likelihood where Wald's do not hold."""

import dataclasses
from typing import TypeVar

import numpy as np

from truncgauss.fitting.likelihood_fit import LikelihoodFit
from truncgauss.fitting.optimization.wald import coverages, untrusted

F = TypeVar("F", bound=LikelihoodFit)


def check_num_profiles(num_profiles: int) -> None:
    if isinstance(num_profiles, bool) or not isinstance(num_profiles, int) or num_profiles < 0:
        raise ValueError(f"num_profiles must be a whole number from 0 on, got {num_profiles!r}.")


def with_intervals(fit: F, num_profiles: int) -> F:
    """The fit with profile intervals of the estimates whose Wald intervals are not to be trusted,
    if these are no more than `num_profiles`, and a note that says so. Profile intervals presume the
    model, and so do not stand beside errors of the sandwich, which do not."""
    wrong = np.flatnonzero(untrusted(fit.wald_ratios))
    if not (fit.converged and len(wrong)):
        return fit
    names = [fit.names[k] for k in wrong]
    profiles = {}
    if len(wrong) <= num_profiles and fit.information != "sandwich":
        profiles = {name: fit.profile(name) for name in names}
    some = ", ".join(names)
    least = float(coverages(fit.wald_ratios).min())
    why = "The log-likelihood is far from quadratic."
    if least > 0.5:
        why = (
            "The log-likelihood is not quadratic: were the fit the truth, Wald's of 95 % would "
            f"hold it in about {least:.0%} of the samples."
        )
    if profiles:
        notes = [f"Profile intervals replace Wald's of {some} in the table. {why}"]
    else:
        notes = [f"Do not trust the Wald intervals of {some}. {why} Use profile(name)."]
    endless = [name for name, ends in profiles.items() if not np.all(np.isfinite(ends))]
    if endless:
        notes.append(
            f"Infinite ends of the profile intervals of {', '.join(endless)}: there the likelihood "
            "falls too little to rule out any value."
        )
    return dataclasses.replace(fit, profiles=profiles, notes=(*fit.notes, *notes))
