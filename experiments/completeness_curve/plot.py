"""The curve with its bands, and the population with and without the correction."""

from truncgauss import plotting

NAMES = {"alone": "from those found", "counted": "with the others counted"}
COLORS = {"alone": "#D55E00", "counted": "#0072B2"}
SERIES_OF = {"naive": 3, "alone": 1, "counted": 2}


def plot(results):
    """The completeness curve, true and fitted, and 90 % ellipses of the population."""
    picture, axes = plotting.mosaic([["curve", "population"]], size=(4.2, 4.4))
    completeness(results, axes["curve"])
    population(results, axes["population"])
    for ax in axes.values():
        plotting.legend(ax=ax)
    return plotting.lettered(picture)


def completeness(results, ax):
    grid = results["grid"]
    for name, label in NAMES.items():
        one, color = results[name], COLORS[name]
        plotting.band(grid, one["low"], one["high"], color=color, label=f"{label}, 95 %", ax=ax)
    ax.plot(grid, results["true"]["curve"], color="black", linewidth=1.0, label="true")
    ax.set(xlabel=str(results["names"][0]), ylabel="probability of being found")
    plotting.title("Completeness, estimated with the population", ax=ax)


def population(results, ax):
    for kind, label in ((True, "found"), (False, "not found")):
        rows = results["objects"][results["found"] == kind][:400]
        plotting.points(*rows.T, filled=kind, label=label, ax=ax)
    words = {"naive": "naive fit"} | NAMES
    for name, series in SERIES_OF.items():
        one = results[name]
        plotting.contours(
            one["loc"], one["covariance"], levels=(0.9,), series=series, label=words[name], ax=ax
        )
    ax.set(xlabel=str(results["names"][0]), ylabel=str(results["names"][1]))
    plotting.title("Objects, and 90 % ellipses", ax=ax)
