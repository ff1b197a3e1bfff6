"""Figures one after another, as a GIF."""

import io

import numpy as np
from PIL import Image


def gif(frames, seconds=4.0, dpi=100):
    """The bytes of a GIF of figures of one size, which repeats for ever."""
    images = []
    for picture in frames:
        pixels = io.BytesIO()
        picture.savefig(pixels, format="png", dpi=dpi)
        images.append(Image.open(pixels).convert("RGB"))
    # One palette for all frames: colours do not flicker.
    palette = images[-1].quantize(64, method=Image.Quantize.MEDIANCUT)
    colors = np.array(palette.getpalette(), int).reshape(-1, 3)
    colors[colors.min(axis=1) > 245] = 255  # the page, which averages with its lines have tinted
    palette.putpalette(colors.ravel().tolist())
    first, *others = (i.quantize(palette=palette, dither=Image.Dither.NONE) for i in images)
    moving = io.BytesIO()
    first.save(
        moving, "gif", save_all=True, append_images=others, loop=0, optimize=True,
        duration=round(1000 * seconds / len(images)),
    )  # fmt: skip
    return moving.getvalue()
