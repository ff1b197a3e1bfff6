"""The fraction seen along a shift, the posterior of the mean, and all five parameters."""

import numpy as np

from truncgauss import plotting

from ..selected_population.plot import estimates, mean_posterior


def plot(results):
    """The fraction seen by both routes with their difference, and the two posteriors."""
    picture, axes = plotting.mosaic(
        [["fraction", "mean", "all"], ["difference", "mean", "all"]], size=(4.5, 2.9),
        height_ratios=(1.4, 1),
    )  # fmt: skip
    curves = results["shift"]
    shift = f"shift of the mean {str(results['names'][0]).split(' (')[0]} (s.d.)"
    plotting.curves(
        curves["shift"], [np.exp(curves["box"])], ["wider covariance"], series=(2,), linewidth=4.0,
        linestyle="-", alpha=0.4, ax=axes["fraction"],
    )  # fmt: skip
    plotting.curves(
        curves["shift"], [np.exp(curves[name]) for name in ("hard", "soft")],
        ["hard limits", "soft estimate"], series=(3, 1),
        xlabel=shift, ylabel="fraction seen", ax=axes["fraction"],
    )  # fmt: skip
    plotting.title("The fraction seen in field 1", ax=axes["fraction"])
    differences(curves, shift, axes["difference"])
    series = {"soft estimate": 1, "wider covariance": 2}
    mean_posterior(results, series, axes["mean"])
    estimates(results, series, axes["all"])
    for name, ax in axes.items():
        plotting.legend(columns=1, below=62.0 if name == "all" else 34.0, ax=ax)
    return plotting.lettered(picture)


def differences(curves, xlabel, ax):
    """Errors of the soft log fraction and of its gradient, and its reported standard error."""
    errors = [np.abs(curves[f"soft{part}"] - curves[f"box{part}"]) for part in ("", "_gradient")]
    names = ["error of the log fraction", "error of its gradient (per s.d.)"]
    plotting.curves(
        curves["shift"], [*errors, curves["soft_stderr"]], [*names, "reported standard error"],
        series=(1, 6, 0), linewidth=1.0, xlabel=xlabel, ylabel="difference", ax=ax,
    )  # fmt: skip
    plotting.title("Soft less exact", ax=ax).set_yscale("log")
