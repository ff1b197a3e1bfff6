"""What a fit shows while it runs: one kind of bar for all, on a terminal, if it takes long."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

from truncgauss.optimization.newton import Point

PATIENCE = 3.0  # seconds before a bar appears

P = TypeVar("P", bound=Point)


def bar(items: Iterable[Any] | None, what: str, progress: bool, **settings: Any) -> tqdm:
    """A bar over items, or of a `total`: none off a terminal, without `progress`, or in the first
    `PATIENCE` seconds; it is wiped at its end, since a fit says itself how it ended."""
    disable = None if progress else True
    return tqdm(items, what, disable=disable, delay=PATIENCE, leave=False, **settings)


def watched(points: Iterable[P], size: float, progress: bool, constant: float = 0.0) -> Iterator[P]:
    """The points of Newton steps down a loss, with their log-likelihood in a bar.

    Args:
        points: as they are found.
        size: how many rows the loss is the mean of.
        progress: see `bar`.
        constant: what is to be added to the loss.
    """
    with bar(points, "Newton steps", progress) as shown:
        for here in shown:
            if not shown.disable:
                value, away = -size * (here.loss + constant), here.decrement * size**0.5
                text = f"log-likelihood {value:.8g}, about {away:.1e} standard errors to go"
                shown.set_postfix_str(text, refresh=False)
            yield here
