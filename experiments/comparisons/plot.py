"""Intervals of differences, and the band of a curve."""

from types import SimpleNamespace

from truncgauss import plotting


def plot(results):
    """Differences from the control, and the curve."""
    picture, (left, right) = plotting.figure(1, 2, size=(5.2, 4.1))
    plotting.simultaneous(inference(results, "differences", "stderr", 0), ax=left)
    left.set(xlabel=f"difference, {results['level']:.0%} intervals", ylabel="groups")
    plotting.title("Against a control", ax=left)
    plotting.points(*results["points"], label="points", alpha=0.4, s=7, ax=right)
    plotting.simultaneous(inference(results, "curve", "curve_stderr", 1), results["x"], ax=right)
    right.plot(results["x"], results["true_curve"], "--", color="#333333", label="truth")
    right.set(xlabel="x", ylabel="y")
    plotting.title("A band for a curve", ax=right)
    for ax in (left, right):
        plotting.legend(columns=2, ax=ax)
    return plotting.lettered(picture)


def inference(results, values, errors, number):
    """What `tg.simultaneous` returned, as far as it is drawn."""
    estimates, low, high = results[values]
    return SimpleNamespace(
        estimates=estimates, low=low, high=high, standard_errors=results[errors],
        names=results["names"], df=results["df"][number], level=float(results["level"]),
        alternative="two-sided",
    )  # fmt: skip
