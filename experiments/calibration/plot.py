"""Distribution of the ranks of each quantity, less the uniform one."""

from truncgauss import plotting

from .run import QUANTITIES, shares, uniform


def plot(results):
    """For each quantity, the ranks' distribution less the uniform one, within its band."""
    picture, axes = plotting.figure(1, 3, size=(3.7, 3.4), sharey=True)
    num_draws, half = results["num_draws"], results["band"]
    x = uniform(num_draws)
    labels = ("truncated model", "without truncation")
    for j, ax in enumerate(axes):
        gaps = [
            shares(results["ranks"][name], num_draws)[j] - x for name in ("truncated", "forgetful")
        ]
        label = f"simultaneous {results['level']:.0%} band"
        plotting.band(x, -half, half, label=label, ax=ax)
        plotting.curves(
            x, gaps, labels, series=(2, 1), xlabel="fractional rank of the truth",
            ylabel="distribution of ranks − uniform", ax=ax,
        )  # fmt: skip
        plotting.title(f"Ranks of {QUANTITIES[j]}", ax=ax)
    plotting.shared_legend(picture, columns=3)
    return plotting.lettered(picture)
