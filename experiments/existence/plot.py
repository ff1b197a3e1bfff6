"""The share of samples without a maximum, over their size."""

from truncgauss import plotting


def plot(results):
    """One curve for each limit."""
    picture, ax = plotting.figure(size=(5.4, 4.0))
    sizes, missing = results["sizes"], results["missing"]
    labels = [f"observed above {cut:+g} standard deviations" for cut in results["cuts"]]
    plotting.curves(
        sizes, missing, labels, xlabel="observations", ylabel="share of samples without a maximum",
        ax=ax,
    )  # fmt: skip
    for number, (shares, stderr) in enumerate(zip(missing, results["stderr"])):
        plotting.points(sizes, shares, series=number, stderr=2 * stderr, ax=ax)
    ax.set(xscale="log", ylim=(-0.02, None))
    plotting.title("When a truncated sample has no fit", ax=ax)
    plotting.legend(columns=1, ax=ax)
    return picture
