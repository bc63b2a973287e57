"""Pictures of segmentations side by side: image, truth and predictions, in one PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from acclimate.errors import BadInput

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Colour = tuple[int, int, int]

_IGNORED: Colour = (0, 0, 0)
_GAP, _BAR, _KEY = 4, 16, 12
_PAPER, _INK = (255, 255, 255), (30, 30, 30)


def paint(labels: Labels, palette: Sequence[Colour]) -> Pixels:
    """Return class numbers (height, width) as colours; 255, which is no class, is black.

    Raises:
        BadInput: A number is neither a class nor 255.
    """
    table = np.full((256, 3), _IGNORED, np.uint8)
    table[: len(palette)] = palette
    known = (labels >= 0) & ((labels < len(palette)) | (labels == 255))
    if not known.all():
        found = sorted({int(value) for value in labels[~known]})[:5]
        raise BadInput(
            "wrong_labels",
            f"Expected class indices below {len(palette)}, the number of colours, or 255, found "
            f"{found}. Pass the palette of the data set.",
            found=tuple(found),
            n_classes=len(palette),
        )
    painted: Pixels = table[labels]
    return painted


def render_panels(
    rows: Sequence[Sequence[npt.NDArray[np.generic]]],
    palette: Sequence[Colour],
    titles: Sequence[str],
    classes: Sequence[str] = (),
) -> bytes:
    """Return a PNG with a row for each image and a column for each title; the same in every run.

    Panels are photographs, uint8 (height, width, 3), or class numbers (height, width) of one size.
    The names of the classes are written below, with their colours.

    Raises:
        BadInput: There is nothing to draw, or panels differ in number or size.
    """
    pictures = [[_to_picture(panel, palette) for panel in row] for row in rows]
    shapes = {picture.shape for row in pictures for picture in row}
    lengths = sorted({len(row) for row in rows})
    text = (
        f"Expected rows of {len(titles)} panels of one size, found rows of {lengths} and sizes "
        f"{sorted(shapes)}. Resize predictions to the size of the image first."
    )
    if not shapes or lengths != [len(titles)]:
        raise BadInput("count_mismatch", text, expected=len(titles), found=tuple(lengths))
    if len(shapes) > 1:
        raise BadInput("mixed_sizes", text, sizes=tuple(sorted(shapes)))
    height, width = shapes.pop()[:2]
    full_width, top = len(titles) * (width + _GAP) + _GAP, _BAR + _GAP
    bottom = top + len(rows) * (height + _GAP)
    font = ImageFont.load_default(11)
    # The key has columns as wide as the longest name of a class.
    step = max([round(font.getlength(name)) for name in classes], default=0) + _KEY + 3 * _GAP
    n_columns = max(1, full_width // step)
    n_lines = -(-len(classes) // n_columns)
    canvas = Image.new("RGB", (full_width, bottom + n_lines * (_KEY + _GAP)), _PAPER)
    draw = ImageDraw.Draw(canvas)
    for column, title in enumerate(titles):
        draw.text((_GAP + column * (width + _GAP), 2), title, _INK, font)
    for line, row in enumerate(pictures):
        for column, picture in enumerate(row):
            place = (_GAP + column * (width + _GAP), top + line * (height + _GAP))
            canvas.paste(Image.fromarray(picture), place)
    for number, (name, colour) in enumerate(zip(classes, palette, strict=False)):
        line, column = divmod(number, n_columns)
        left, y = _GAP + column * step, bottom + line * (_KEY + _GAP)
        draw.rectangle((left, y, left + _KEY, y + _KEY - 1), colour, _INK)
        draw.text((left + _KEY + _GAP, y - 1), name, _INK, font)
    buffer = io.BytesIO()
    canvas.save(buffer, "PNG")
    return buffer.getvalue()


def _to_picture(panel: npt.NDArray[np.generic], palette: Sequence[Colour]) -> Pixels:
    if panel.ndim == 3:
        return np.ascontiguousarray(panel, dtype=np.uint8)
    return paint(panel.astype(np.int64), palette)
