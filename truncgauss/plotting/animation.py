"""Figures one after another, as a GIF."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from truncgauss.execution import files


def animation(frames: Iterable[Figure], path: Any, seconds: float = 4.0, dpi: int = 100) -> str:
    """Write figures as a GIF that repeats for ever, and return its path.

    Args:
        frames: figures of one size.
        path: of the file; it should end in .gif.
        seconds: of one repetition.
        dpi: pixels an inch.

    Raises:
        ValueError: without frames.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     frames = [tg.plotting.figure()[0], tg.plotting.figure()[0]]
        ...     tg.plotting.animation(frames, f"{folder}/still.gif")[-9:]
        'still.gif'
    """
    images = []
    for picture in frames:
        picture.set_dpi(dpi)
        canvas: Any = FigureCanvasAgg(picture)
        canvas.draw()
        images.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
    if not images:
        raise ValueError("animation: expected one figure or more, got none.")
    # One palette for all frames: colours do not flicker.
    palette = images[-1].quantize(64, method=Image.Quantize.MEDIANCUT)
    colors = np.array(palette.getpalette(), int).reshape(-1, 3)
    colors[colors.min(axis=1) > 245] = 255  # the page, which averages with its lines have tinted
    palette.putpalette(colors.ravel().tolist())
    first, *others = (i.quantize(palette=palette, dither=Image.Dither.NONE) for i in images)
    with files.replacing(path) as partial:
        first.save(
            partial, "gif", save_all=True, append_images=others, loop=0, optimize=True,
            duration=round(1000 * seconds / len(images)),
        )  # fmt: skip
    return str(path)
