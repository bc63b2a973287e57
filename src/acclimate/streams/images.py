"""Image files: find them, and read them one batch ahead."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from acclimate.decode import decode_image, read_image_size
from acclimate.errors import BadInput, UnreadableImage, refuse_value

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff"})
#: Suffixes of images that are not supported.
_OTHER_SUFFIXES = frozenset(
    {
        *(".gif", ".apng", ".heic", ".heif", ".avif", ".jxl", ".jp2", ".j2k", ".jpx", ".jfif"),
        *(".svg", ".psd", ".tga", ".ico", ".exr", ".hdr", ".pgm", ".pbm", ".pnm", ".dds", ".pcx"),
        *(".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf", ".pef", ".srw"),
    }
)

_KINDS = ", ".join(sorted(SUFFIXES))

#: Height and width.
Size = tuple[int, int]
Pixels = npt.NDArray[np.uint8]

K = TypeVar("K")
R = TypeVar("R")

_N_THREADS = max(2, min(8, os.cpu_count() or 2))
_LARGEST = 100_000_000  # maximum number of pixels while resizing, to limit the memory of a thread


def list_images(root: str | Path) -> list[Path]:
    """Return all images in a folder and its sub-folders, sorted by path.

    Names that start with a dot are skipped; links to folders are followed.
    """
    root = Path(root)
    if not root.is_dir():
        text = f"Expected a folder of images, but {root} is not a folder. Check the path."
        raise BadInput("not_a_folder", text, path=root)
    paths = _sort(_walk(root, SUFFIXES), root)
    if not paths:
        text = f"Expected images in {root} or its sub-folders, found none. Supported suffixes are "
        raise BadInput("no_images", f"{text}{_KINDS}.", path=root)
    return paths


def find_other_kinds(root: Path) -> dict[Path, str]:
    """Return the images of unsupported formats in a folder, with the reason."""
    return {
        path: f"{path.suffix} is not supported, only {_KINDS}. Convert it."
        for path in _sort(_walk(root, _OTHER_SUFFIXES), root)
    }


def find_images(root: Path) -> list[Path]:
    """Return all images as `list_images` does, but unsorted; there may be none."""
    return list(_walk(root, SUFFIXES))


def _sort(paths: Iterable[Path], root: Path) -> list[Path]:
    return sorted(paths, key=lambda path: path.relative_to(root).as_posix())


def _walk(root: Path, suffixes: frozenset[str]) -> Iterator[Path]:
    waiting: list[tuple[Path, frozenset[tuple[int, int]]]] = [(root, frozenset())]
    while waiting:
        folder, above = waiting.pop()
        try:
            status = folder.stat()
            inside = [(path, path.is_dir()) for path in folder.iterdir() if path.name[0] != "."]
        except OSError as error:
            text = f"The folder {folder} cannot be listed ({error.strerror}). Move or remove it."
            raise BadInput("unreadable", text, path=folder) from error
        own = (status.st_dev, status.st_ino)
        if own in above:  # a link back to a folder that is being listed
            continue
        for path, is_folder in inside:
            if is_folder:
                waiting.append((path, above | {own}))
            elif path.suffix.lower() in suffixes:
                yield path


def count_bytes(path: Path) -> int:
    """Return the size of a file; 0 for a broken link, which cannot be read as an image either."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_image(path: Path, size: Size, resize: Size | None = None, squash: bool = False) -> Pixels:
    """Return one image as (height, width, 3), resized and then cropped at the centre.

    The arithmetic is that of the usual evaluation transforms: the side that is shorter relative to
    `resize` is matched, the other is rounded down, and the resampling is bilinear with
    antialiasing. For ImageNet, use `size=(224, 224)` and `resize=(256, 256)`.

    Args:
        path: Path of an image file.
        size: Height and width of the result.
        resize: Size that the resized image covers before it is cropped; None for `size`.
        squash: Resize to `size` without keeping the shape, and do not crop, as DomainBed does.
    """
    return decode_image(path, then=lambda image: fit_image(image, size, resize, squash, path))


def fit_image(
    image: Image.Image,
    size: Size,
    resize: Size | None = None,
    squash: bool = False,
    path: Path | None = None,
) -> Pixels:
    """Return a decoded image as `read_image` does; `path` is for the message of an error."""
    if squash:
        if (image.height, image.width) != size:
            image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        return np.asarray(image, dtype=np.uint8)
    image = _resize_to_cover(path, image, size if resize is None else resize)
    height, width = size
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return np.asarray(image.crop((left, top, left + width, top + height)), dtype=np.uint8)


def _resize_to_cover(path: Path | None, image: Image.Image, size: Size) -> Image.Image:
    height, width = size
    if (image.height, image.width) == size:
        return image
    if image.height * width <= image.width * height:
        shape = (image.width * height // image.height, height)
    else:
        shape = (width, image.height * width // image.width)
    if shape[0] * shape[1] > _LARGEST:
        reason = f"{image.width}×{image.height} is too elongated to resize"
        text = f"{path or 'The image'} cannot be used: {reason}. Crop it."
        raise UnreadableImage("unreadable_image", text, path=path, reason=reason)
    return image.resize(shape, Image.Resampling.BILINEAR)


def try_read(
    path: Path, size: Size, resize: Size | None = None, squash: bool = False
) -> Pixels | str:
    """Return the image as `read_image` does, or the reason why it cannot be read."""
    try:
        return read_image(path, size, resize, squash)
    except UnreadableImage as error:
        return str(error.reason)


def read_ahead(groups: Iterable[Sequence[K]], read: Callable[[K], R]) -> Iterator[list[R]]:
    """Yield the results of `read` for each group while threads read the next one."""
    pool = ThreadPoolExecutor(_N_THREADS)
    waiting: list[list[Future[list[R]]]] = []

    def read_part(part: Sequence[K]) -> list[R]:
        return [read(key) for key in part]

    try:
        for group in groups:
            # A few images per task: submitting a task takes longer than reading a small image.
            step = max(1, len(group) // (4 * _N_THREADS))
            parts = [group[start : start + step] for start in range(0, len(group), step)]
            waiting.append([pool.submit(read_part, part) for part in parts])
            if len(waiting) > 1:
                yield [result for future in waiting.pop(0) for result in future.result()]
        for futures in waiting:
            yield [result for future in futures for result in future.result()]
    finally:
        pool.shutdown(cancel_futures=True)


def common_size(paths: Sequence[Path]) -> Size:
    """Return the common size of all images, from their headers only; refuse other sizes."""
    found: dict[Size, list[Path]] = {}
    with ThreadPoolExecutor(_N_THREADS) as pool:
        for path, size in zip(paths, pool.map(read_size, paths), strict=True):
            if size is not None:
                found.setdefault(size, []).append(path)
    if len(found) > 1:
        first, second = sorted(found, key=lambda size: -len(found[size]))[:2]
        text = (
            f"Expected images of one size, found {len(found)} sizes: {len(found[first])} of "
            f"{show_size(first)} and {len(found[second])} of {show_size(second)}, such as "
            f"{found[second][0]}. Pass the size to resize them to: --size, or size= in Python."
        )
        raise BadInput("mixed_sizes", text, sizes=tuple(sorted(found)))
    if not found:
        raise all_unreadable(len(paths), paths[0], "its header is damaged")
    return next(iter(found))


def read_size(path: Path) -> Size | None:
    """Return the displayed height and width from the header; None if it cannot be read."""
    try:
        return read_image_size(path)
    except UnreadableImage:
        return None  # reported when its pixels are read


def all_unreadable(n: int, path: Path, reason: str) -> BadInput:
    """Return the error for a folder without a readable image."""
    text = (
        f"Expected readable images, but none of the {n} images can be read. The first is {path} "
        f"({reason}). Check that the files are complete images."
    )
    return BadInput("unreadable_images", text, paths=(path,))


def parse_size(text: str) -> int | Size:
    """Parse a size: one number, or height and width.

    >>> parse_size("224"), parse_size("48x64")
    (224, (48, 64))
    """
    sides = text.lower().replace("×", "x").split("x")
    if not all(side.strip().isdecimal() for side in sides) or len(sides) > 2:
        expected = "Expected a size as one number, or as height and width such as 48x64, found "
        raise BadInput("malformed", f'{expected}"{text}".', option="size", found=text)
    numbers = [int(side) for side in sides]
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def as_size(size: int | Size) -> Size:
    """Return height and width, given both or one number for both."""
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        refuse_value("size", (height, width), "at least 1 pixel")
    return height, width


def check_resize(resize: int | Size | None, size: int | Size | None) -> Size | None:
    """Return the size that resized images cover before a crop of `size`; None for `size`."""
    if resize is None:
        return None
    if size is None:
        text = "Expected a size to crop to together with resize, found none. Pass --size, or size= "
        raise BadInput("missing_option", text + "in Python.", option="size")
    larger, inner = as_size(resize), as_size(size)
    if larger[0] < inner[0] or larger[1] < inner[1]:
        refuse_value("resize", larger, f"at least as large as the crop of {show_size(inner)}")
    return larger


def show_size(size: Size) -> str:
    """Return height and width for a message."""
    return f"{size[0]}×{size[1]}"
