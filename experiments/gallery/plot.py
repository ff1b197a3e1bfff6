"""Every kind of figure that `tg.plotting` draws, on one page, and a bump that grows."""

import numpy as np

import truncgauss as tg
from truncgauss import plotting

LAYOUT = [["trace", "profile", "worm", "qq"], ["annealing", "bias", "bias", "bump"]]


def plot(results):
    """The page, and the frames of an animation."""
    picture = plotting.page(15.2, 14.0)
    top, bottom = picture.subfigures(2, 1)
    left, right = top.subfigures(1, 2)
    inverted = [j for j, name in enumerate(results["names"]) if "magnitude" in str(name)]
    plotting.corner(
        results["draws"], [str(name) for name in results["names"]], loc=results["loc"],
        covariance=results["covariance"], low=results["low"], high=results["high"],
        inverted=inverted, picture=left,
    )  # fmt: skip
    upper = plotting.panels_of(right, [["density", "plane"], ["shift", "shift"]])
    lower = plotting.panels_of(bottom, LAYOUT)
    of_the_gaussian(results, inverted, upper)
    of_the_fit(results["fit"], str(results["names"][2]), lower)
    of_estimators(results, lower)
    for name, ax in {**upper, **lower}.items():
        plotting.legend(columns=3 if name in ("shift", "bias") else 2, ax=ax)
    return picture, plotting.growing_bump(results["widths"])


def of_the_gaussian(results, inverted, axes):
    """The density of one coordinate, two coordinates with their box, and the fraction kept."""
    names = [str(name) for name in results["names"]]
    direction = ["x" if j in inverted else "" for j in range(3)]
    variance = results["covariance"][0, 0]
    plotting.density(
        float(results["loc"][0]), float(np.sqrt(variance)), float(results["low"][0]),
        float(results["high"][0]), xlabel=names[0], inverted=direction[0], ax=axes["density"],
    )  # fmt: skip
    plotting.title("One coordinate, alone", ax=axes["density"])
    loc, covariance = results["loc"][:2], results["covariance"][:2, :2]
    ax = plotting.contours(loc, covariance, label="Gaussian", series=0, ax=axes["plane"])
    box = tg.Box(results["low"][:2], results["high"][:2])
    plotting.truncated_contours(loc, covariance, box, inverted=direction[0], ax=ax)
    ax.set(xlabel=names[0], ylabel=names[1])
    plotting.title("Two: 50 and 90 % of each", ax=ax)
    soft, root = results["soft"], len(results["soft"]["value"]) ** 0.5
    mean = {key: x.mean(axis=0) for key, x in soft.items()}
    stderr = {key: x.std(axis=0, ddof=1) / root for key, x in soft.items()}
    plotting.value_and_gradient(
        results["shift"], mean["value"], mean["gradient"], value_stderr=stderr["value"],
        gradient_stderr=stderr["gradient"],
        reference=(results["exact"]["value"], results["exact"]["gradient"]),
        xlabel=f"shift of the mean {names[0]}", value_label="fraction kept",
        gradient_label="its gradient", ax=axes["shift"],
    )  # fmt: skip
    count = f"{len(soft['value'])} × {int(results['num_samples']):,}"
    text = (
        f"The fraction kept, by a soft edge of steepness {results['steepness']:g}: {count} samples"
    )
    plotting.title(text, ax=axes["shift"])


def of_the_fit(fit, name, axes):
    """How the fit went, how far to trust it, and how well it describes the rows."""
    plotting.trace(
        fit["loss"] - fit["loss"].min(), fit["decrement"], ylabel="loss − lowest (nats a row)",
        norm_label="Newton decrement", ax=axes["trace"],
    )  # fmt: skip
    plotting.title("A fit", ax=axes["trace"])
    plotting.profile(
        fit["values"], fit["fall"], estimate=float(fit["estimate"]), stderr=float(fit["stderr"]),
        xlabel=f"mean {name}", ax=axes["profile"],
    )  # fmt: skip
    plotting.title("Profile likelihood", ax=axes["profile"])
    for kind, draw in (("worm", plotting.worm), ("qq", plotting.qq)):
        draw(fit["residuals"], label="rows", series=2, ax=axes[kind])
    plotting.title("Residuals, a worm plot", ax=axes["worm"])
    plotting.title("Residuals over quantiles", ax=axes["qq"])


def of_estimators(results, axes):
    """Edges from soft to steep, what that costs, and bumps."""
    steepnesses = results["steepnesses"]
    plotting.annealing(
        [tg.Tanh(float(k)) for k in steepnesses],
        labels=[f"steepness {k:g}" for k in steepnesses],
        xlabel=f"distance inside a limit {unit(results)}", ax=axes["annealing"],
    )  # fmt: skip
    plotting.title("A soft edge sharpens", ax=axes["annealing"])
    plotting.bias_and_spread(
        steepnesses, results["slopes"], float(results["slope"]), label="soft estimate",
        xlabel="steepness of the edge", ylabel="gradient − exact gradient", ax=axes["bias"],
    ).set_xscale("log")  # fmt: skip
    count = f"{len(results['slopes'])} estimates from {int(results['num_samples']):,} samples each"
    plotting.title(f"Soft edges are biased, steep ones noisy: {count}", ax=axes["bias"])
    middle = results["widths"][len(results["widths"]) // 2]
    plotting.bump(float(middle), ax=axes["bump"])
    plotting.title(f"A bump of width σ = {middle:.2f}", ax=axes["bump"])


def unit(results):
    """The unit of the first coordinate, in brackets."""
    return "(" + str(results["names"][0]).split("(")[-1]
