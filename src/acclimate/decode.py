"""The image decoder of the whole package: image files and uploaded bytes from untrusted sources.

Only the formats in `FORMATS` are decoded. Pillow knows many more, and some of them start other
programs: an EPS file of any name would run Ghostscript. The list has what data sets and cameras
use and what Pillow decodes with its own code or with the usual libraries (libjpeg, zlib, libwebp,
libtiff). GIF is left out: its palettes and animations are not photographs, and no supported data
set has them.

The format is recognised by the content; the suffix of the file does not matter. Numbers of bytes
and pixels are checked before pixels are decoded, and the threads of a process decode at most
`MAX_PIXELS` at the same time. Every failure is one error, `UnreadableImage`.
"""

from __future__ import annotations

import io
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, overload

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from acclimate.errors import UnreadableImage

#: Formats that are decoded, by their names in Pillow.
FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
#: Default limit on pixels: Pillow's own, which `PIL.Image.MAX_IMAGE_PIXELS` can lower.
MAX_PIXELS = 178_956_970
#: Default limit on bytes: an uncompressed image of that many pixels with four channels.
MAX_BYTES = 4 * MAX_PIXELS

_ORIENTATION = 0x0112  # the EXIF tag
_WEBP_CANVAS = 30  # bytes of a WebP file that include the size of its canvas
_O_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # opening a FIFO must not wait; absent on Windows
#: Each of the 65,536 values of a 16-bit pixel as 8 bits.
_TO_8_BITS = np.round(np.arange(65536) / 257).astype(np.uint8)

T = TypeVar("T")


class PixelBudget:
    """The number of pixels that all threads of a process may decode at the same time.

    Args:
        limit: An image of more pixels waits until it is the only one.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._changed = threading.Condition()

    @contextmanager
    def reserve(self, n: int) -> Iterator[None]:
        """Wait until there is room for so many pixels, and keep it for the block."""
        with self._changed:
            self._changed.wait_for(lambda: self.used == 0 or self.used + n <= self.limit)
            self.used += n
        try:
            yield
        finally:
            with self._changed:
                self.used -= n
                self._changed.notify_all()


BUDGET = PixelBudget(MAX_PIXELS)


@overload
def decode_image(
    source: str | Path | bytes,
    *,
    rgb: bool = ...,
    max_pixels: int = ...,
    max_bytes: int = ...,
    formats: Sequence[str] = ...,
) -> Image.Image: ...


@overload
def decode_image(
    source: str | Path | bytes,
    *,
    rgb: bool = ...,
    max_pixels: int = ...,
    max_bytes: int = ...,
    formats: Sequence[str] = ...,
    then: Callable[[Image.Image], T],
) -> T: ...


def decode_image(
    source: str | Path | bytes,
    *,
    rgb: bool = True,
    max_pixels: int = MAX_PIXELS,
    max_bytes: int = MAX_BYTES,
    formats: Sequence[str] = FORMATS,
    then: Callable[[Image.Image], Any] | None = None,
) -> Any:
    """Return an image, decoded and turned upright as its EXIF orientation says.

    Of several frames or pages, the first is returned.

    Args:
        source: Path of a regular file, or the content of one.
        rgb: Convert to 8-bit RGB; transparency is dropped. False keeps the mode of the file, such
            as the class numbers of a mask.
        max_pixels: Largest number of pixels.
        max_bytes: Largest number of bytes of the file.
        formats: Formats to accept, by their names in Pillow.
        then: What to do with the image, such as to resize it, and return instead. It counts as
            part of the decoding: the next image may wait until there is memory for it.

    Raises:
        UnreadableImage: The file is not a complete image of one of the formats, or it exceeds a
            limit. Nothing else is raised for any content of a file.
    """
    with (
        _translate_errors(source),
        _open(source, max_pixels, max_bytes, formats) as file,
        BUDGET.reserve(file.width * file.height),
    ):
        file.load()
        # Without a copy, as far as possible: each needs as much memory again.
        is_turned = file.getexif().get(_ORIENTATION, 1) != 1
        image: Image.Image = ImageOps.exif_transpose(file) if is_turned else file
        image = _to_rgb(image) if rgb else image
        if then is not None:
            return then(image)
        return image.copy() if image is file else image


def read_image_size(
    source: str | Path | bytes, *, max_pixels: int = MAX_PIXELS, max_bytes: int = MAX_BYTES
) -> tuple[int, int]:
    """Return the displayed height and width of an image from its header.

    Raises:
        UnreadableImage: The header cannot be read, or the image exceeds a limit.
    """
    with _translate_errors(source), _open(source, max_pixels, max_bytes, FORMATS) as image:
        # Of a PNG file without orientation, Pillow would decode all pixels to look for one.
        is_plain = image.format == "PNG" and "exif" not in image.info
        turned = not is_plain and image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
        return (image.width, image.height) if turned else (image.height, image.width)


@contextmanager
def _open(
    source: str | Path | bytes, max_pixels: int, max_bytes: int, formats: Sequence[str]
) -> Iterator[Image.Image]:
    """Open an image within the limits; its pixels are not decoded yet."""
    with _open_file(source) as file:
        n_bytes = len(source) if isinstance(source, bytes) else os.fstat(file.fileno()).st_size
        _check_limit(source, "bytes", n_bytes, max_bytes)
        _check_limit(source, "pixels", _webp_pixels(file), max_pixels)
        with Image.open(file, formats=tuple(formats)) as image:
            _check_limit(source, "pixels", image.width * image.height, max_pixels)
            yield image


@contextmanager
def _open_file(source: str | Path | bytes) -> Iterator[BinaryIO]:
    if isinstance(source, bytes):
        yield io.BytesIO(source)
        return
    descriptor = os.open(source, os.O_RDONLY | _O_NONBLOCK | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def _webp_pixels(file: BinaryIO) -> int:
    """Return the number of pixels of an extended WebP file, and 0 for any other file.

    Pillow allocates the canvas of a WebP file, up to 32 GB, when it opens the file.
    """
    start = file.read(_WEBP_CANVAS)
    file.seek(0)
    if len(start) < _WEBP_CANVAS or start[:4] + start[8:16] != b"RIFFWEBPVP8X":
        return 0
    width, height = (int.from_bytes(start[at : at + 3], "little") + 1 for at in (24, 27))
    return width * height


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError("pixels are floating-point numbers of unknown range")
    if image.mode.startswith("I"):  # 16 bits; Pillow's own conversion would clip at 255
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("pixels have more than 16 bits")
        image = Image.fromarray(_TO_8_BITS[values])
    return image if image.mode == "RGB" else image.convert("RGB")


def _check_limit(source: str | Path | bytes, unit: str, found: int, limit: int) -> None:
    if found > limit:
        name = "the image" if isinstance(source, bytes) else str(source)
        raise UnreadableImage(
            "image_too_large",
            f"Expected an image of at most {limit} {unit}, but {name} has {found}. Make it "
            "smaller, or raise the limit.",
            path=None if isinstance(source, bytes) else source,
            reason=f"{found} {unit}, more than {limit}",
            limit=limit,
            found=found,
        )


@contextmanager
def _translate_errors(source: str | Path | bytes) -> Iterator[None]:
    """Turn everything that decoders raise into `UnreadableImage`."""
    try:
        yield
    except UnreadableImage:
        raise
    except Exception as error:
        name = "The bytes" if isinstance(source, bytes) else str(source)
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, UnidentifiedImageError):  # whose text has the number of the open file
            reason = "not an image of a supported format"
        raise UnreadableImage(
            "unreadable_image",
            f"{name} cannot be decoded as an image ({reason}). Expected a complete file of one of "
            f"the formats {', '.join(FORMATS)}.",
            path=None if isinstance(source, bytes) else source,
            reason=reason,
        ) from error
