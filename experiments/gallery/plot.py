"""Every kind of figure that `tg.plotting` draws, on one page, and a bump that grows."""

import jax
import numpy as np

import truncgauss as tg
from truncgauss import plotting

from .animation import gif

bump_and_growth = jax.jit(jax.vmap(jax.value_and_grad(tg.safe.bump, argnums=1), (0, None)))

LAYOUT = [["trace", "profile", "worm", "qq"], ["annealing", "bias", "bias", "bump"]]


def plot(results):
    """The page, and an animation as the bytes of a GIF."""
    picture = plotting.page(15.2, 14.0)
    top, bottom = picture.subfigures(2, 1)
    left, right = top.subfigures(1, 2)
    inverted = [j for j, name in enumerate(results["names"]) if "magnitude" in str(name)]
    plotting.corner(
        results["draws"], [str(name) for name in results["names"]], loc=results["loc"],
        covariance=results["covariance"], low=results["low"], high=results["high"],
        inverted=inverted, picture=left,
    )  # fmt: skip
    _, upper = plotting.mosaic([["density", "plane"], ["shift", "shift"]], picture=right)
    _, lower = plotting.mosaic(LAYOUT, picture=bottom)
    of_the_gaussian(results, inverted, upper)
    of_the_fit(results["fit"], str(results["names"][2]), lower)
    of_estimators(results, lower)
    for name, ax in {**upper, **lower}.items():
        plotting.legend(columns=3 if name in ("shift", "bias") else 2, ax=ax)
    return plotting.lettered(picture), gif(growing_bump(results["widths"]))


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
    edges = {f"steepness {k:g}": tg.Tanh(float(k)) for k in steepnesses}
    annealing(edges, f"distance inside a limit {unit(results)}", ax=axes["annealing"])
    plotting.title("A soft edge sharpens", ax=axes["annealing"])
    bias_and_spread(
        steepnesses, results["slopes"], float(results["slope"]), label="soft estimate",
        ax=axes["bias"],
    )  # fmt: skip
    axes["bias"].set(xlabel="steepness of the edge", ylabel="gradient − exact gradient")
    axes["bias"].set_xscale("log")
    count = f"{len(results['slopes'])} estimates from {int(results['num_samples']):,} samples each"
    plotting.title(f"Soft edges are biased, steep ones noisy: {count}", ax=axes["bias"])
    middle = results["widths"][len(results["widths"]) // 2]
    bump(float(middle), ax=axes["bump"])
    plotting.title(f"A bump of width σ = {middle:.2f}", ax=axes["bump"])


def unit(results):
    """The unit of the first coordinate, in brackets."""
    return "(" + str(results["names"][0]).split("(")[-1]


@plotting.in_house_style
def annealing(edges, xlabel, *, ax):
    """Soft edges by name, the softest first, from light to dark, and the limit they tend to."""
    margin = np.linspace(-1.5, 1.5, 601)
    for number, (label, edge) in enumerate(edges.items()):
        # Between white and the colour, so that the order is seen without colours too.
        share = (number + 1.5) / (len(edges) + 0.5)
        color = [1 - share * (1 - part / 255) for part in bytes.fromhex(plotting.VALUE.color[1:])]
        ax.plot(margin, np.asarray(edge.value(margin)), color=color, linewidth=1.4, label=label)
    ends = np.array([margin[0], 0.0, 0.0, margin[-1]])
    ax.plot(ends, [0, 0, 1, 1], color="#000000", linewidth=0.9, linestyle=":", label="hard limit")
    ax.set(xlabel=xlabel, ylabel="weight of a point")
    return ax


@plotting.in_house_style
def bias_and_spread(x, estimates, truth, *, label, ax):
    """The bias of repeated estimates (k, n) with its standard error, and the spread of one.

    Markers are means over the repetitions less the truth, bars the standard errors of these means.
    The shade holds the truth plus or minus one standard deviation of a single estimate.
    """
    bias, spread = estimates.mean(axis=0) - truth, estimates.std(axis=0, ddof=1)
    look = plotting.SERIES[1]
    ax.plot(
        x, bias, color=look.color, linestyle=look.linestyle, marker=look.marker, markersize=4,
        label=f"{label}: bias ± its standard error",
    )  # fmt: skip
    error = spread / np.sqrt(len(estimates))
    ax.errorbar(x, bias, error, linestyle="none", color=look.color, capsize=2, elinewidth=1)
    plotting.band(
        x, bias - spread, bias + spread, color=look.color, alpha=0.18,
        label=f"{label}: ± s.d. of one estimate", ax=ax,
    )  # fmt: skip
    ax.axhline(0, color="#555555", linewidth=0.7)
    return ax


def bump(width, reach=2.5, *, ax):
    """The bump function of a width, left axis, and its derivative by the width, right axis."""
    x = np.linspace(-reach, reach, 501)
    plotting.value_and_gradient(
        x, *bump_and_growth(x, width), value_label="bump Ψ(x; σ)", gradient_label="∂Ψ/∂σ", ax=ax
    )
    ax.set(xlim=(-reach, reach))


def growing_bump(widths):
    """One figure for each width of a bump, as the frames of an animation, on the same axes."""
    for width in widths:
        picture, ax = plotting.figure(size=(4.6, 3.0))
        bump(width, ax=ax)
        plotting.title(f"width σ = {width:.2f}", ax=ax).set_ylim(-0.02, 0.41)
        top = 0.65 / min(widths)  # above the largest slope
        plotting.gradient_axes(ax).set_ylim(-0.02 / 0.41 * top, top)
        yield picture
