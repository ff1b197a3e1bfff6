"""Errors of log Phi and its derivatives, by precision and library."""

import numpy as np

from truncgauss import plotting

from .run import ORDERS, TARGETS


def plot(results):
    """Error against x, one row for each precision, one column for each order of derivative."""
    errors, x = results["errors"], results["x"]
    picture, axes = plotting.figure(len(errors), len(ORDERS), size=(3.9, 2.9), squeeze=False)
    for row, (dtype, libraries) in zip(axes, errors.items(), strict=True):
        for k, (ax, order) in enumerate(zip(row, ORDERS, strict=True)):
            # SciPy last, which has values alone, and would be hidden by ours.
            shown = [name for name in ("JAX", "truncgauss", "SciPy") if order in libraries[name]]
            curves = [np.minimum(libraries[name][order], 1e2) for name in shown]
            looks = [{"truncgauss": 0, "JAX": 1, "SciPy": 4}[name] for name in shown]
            labels = ["SciPy, values only" if name == "SciPy" else name for name in shown]
            plotting.curves(
                x, curves, labels, series=looks, linewidth=1.0, xlabel="x",
                ylabel="error / max(1, |truth|)", ax=ax,
            )  # fmt: skip
            ax.axhline(TARGETS[dtype][k], color="0.4", linewidth=0.8, label="target")
            ax.set_xlim(x.min(), min(x.max(), 10.0))  # beyond, log Φ is 0
            plotting.title(f"log Φ, {order}, {dtype}", ax=ax).set_yscale("log")
            # Errors that are zero, or far below rounding, leave the panel.
            top = max(TARGETS[dtype][k], *(np.nanmax(curve) for curve in curves))
            ax.set_ylim(np.finfo(str(dtype)).eps / 100, 10.0 * top)
    return plotting.lettered(plotting.shared_legend(picture, columns=4))
