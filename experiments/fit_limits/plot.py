"""Observed and fitted fractions, traces of the fits, and residuals."""

import numpy as np

from truncgauss import plotting


def plot(results):
    """Counts with their fits, the traces and the residuals."""
    picture, axes = plotting.figure(2, 2, size=(4.9, 3.5))
    (left, right), (below, residual) = axes
    for name, ax in (("shift", left), ("limits", right)):
        result, n = results[name], results["num_trials"]
        observed, x = result["observed"], results["x"][name]
        stderr = np.sqrt(np.maximum(observed * (1 - observed), 1 / n) / n)
        if name == "limits":
            curve = results["curve"]
            plotting.curves(curve["x"], [curve["fitted"]], ["fitted"], series=(1,), ax=ax)
        else:
            plotting.points(x, result["fitted"], series=1, filled=False, label="fitted", ax=ax)
        plotting.points(x, observed, stderr=stderr, label="observed, ± 1 s.e.", ax=ax)
        values = zip(result["names"], result["params"], result["stderr"])
        text = ", ".join(f"{name} {value:.3f} ± {stderr:.3f}" for name, value, stderr in values)
        truth = ", ".join(f"{value:g}" for value in result["truth"])
        plotting.title(f"{text}\n(true: {truth})".replace("-", "−"), ax=ax)
        ax.set(ylabel="fraction inside")
    left.set_xticks(results["x"]["shift"], labels=results["regions"])
    left.set_xlabel("known region: from, to")
    right.set_xlabel("mean of a known Gaussian")
    traces(results, below)
    both_residuals(results, residual)
    for ax in axes.flat:
        plotting.legend(columns=2, below=44 if ax is left else 34, ax=ax)
    return plotting.lettered(picture)


def traces(results, ax):
    lost = [each["loss"] - each["loss"].min() for each in (results["shift"], results["limits"])]
    longest = max(map(len, lost))
    lost = [np.pad(np.maximum(each, 1e-17), (0, longest - len(each)), "edge") for each in lost]
    plotting.curves(
        np.arange(longest), lost, ["shift", "bounds"], series=(2, 1), xlabel="step",
        ylabel="loss − lowest (nats a trial)", ax=ax,
    )  # fmt: skip
    plotting.title("The fits", ax=ax).set_yscale("log")


def both_residuals(results, ax):
    residuals = [results[name]["residual"] for name in ("shift", "limits")]
    places, numbers = [], []
    for each, series, label in zip(residuals, (2, 1), ("regions", "Gaussians"), strict=True):
        x = len(places) + bool(places) + np.arange(1, len(each) + 1)
        ax.vlines(x, 0, each, color=plotting.SERIES[series].color, linewidth=1.0)
        plotting.points(x, each, series=series, label=label, ax=ax)
        places, numbers = [*places, *x], [*numbers, *range(1, len(each) + 1)]
    for reach in (2, 1):
        ax.axhspan(-reach, reach, color="#888888", alpha=0.13, linewidth=0, zorder=0.4)
    ax.axhline(0, color="#555555", linewidth=0.7)
    highest = 1.15 * np.abs([*residuals[0], *residuals[1], 2.5]).max()
    ax.set(xlabel="region, Gaussian", ylabel="residual / binomial s.e.", ylim=(-highest, highest))
    ax.set_xticks(places, labels=numbers)
    plotting.title("Residuals", ax=ax)
