"""Labelled images as arrays on disk: written whole, read memory-mapped, checked on opening."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt

from acclimate.errors import CorruptFile
from acclimate.storage import guard_writing, write_atomically
from acclimate.streams.images import Pixels, read_ahead

Labels = npt.NDArray[np.int64]

CARD = "card.json"

#: What the readers of JSON raise on text that is no JSON, or nested too deep.
MALFORMED = (ValueError, RecursionError)

# What NumPy raises on a header that is not one.
_NO_HEADER = (
    *(ValueError, SyntaxError, TokenError, TypeError, OverflowError, RecursionError),
    *(EOFError, OSError, MemoryError),
)
_CHUNK = 1 << 22
_TOGETHER = 256  # files that are read at a time


def array_sha256(array: npt.NDArray[Any]) -> str:
    """Return the SHA-256 of an array's bytes in row-major order, a part at a time.

    >>> array_sha256(np.zeros((0, 32, 32, 3), np.uint8))[:8]
    'e3b0c442'
    """
    state = hashlib.sha256()
    n_rows = max(1, _CHUNK // max(1, array[:1].nbytes))
    for start in range(0, len(array), n_rows):
        state.update(np.ascontiguousarray(array[start : start + n_rows]).tobytes())
    return state.hexdigest()


def labelled_sha256(images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> str:
    """Return the SHA-256 of images and their labels together."""
    both = array_sha256(images) + array_sha256(np.asarray(labels, np.int64))
    return hashlib.sha256(both.encode()).hexdigest()


def text_sha256(lines: Iterable[str]) -> str:
    """Return the SHA-256 of lines."""
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def files_sha256(files: Iterable[tuple[str, Sequence[Path]]]) -> str:
    """Return the SHA-256 of the content of files, and of a text before each group of them."""
    state, groups = hashlib.sha256(), list(files)

    def read(group: tuple[str, Sequence[Path]]) -> bytes:
        text, paths = group
        digests = [hashlib.sha256(path.read_bytes()).digest() for path in paths]
        return text.encode("utf-8", "surrogateescape") + b"\0" + b"".join(digests)

    steps = range(0, len(groups), _TOGETHER)
    for parts in read_ahead((groups[start : start + _TOGETHER] for start in steps), read):
        for part in parts:
            state.update(part)
    return state.hexdigest()


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an array as .npy and force it to the disk."""
    with guard_writing(path), path.open("wb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def open_array(path: Path, remedy: str) -> npt.NDArray[Any]:
    """Return an array memory-mapped, read-only."""
    if not path.is_file():
        raise CorruptFile("file_missing", f"{path} is missing. {remedy}", path=path)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except _NO_HEADER as error:
        text = (
            f"{path} is not a complete NumPy array ({path.stat().st_size} bytes: {error}). The "
            f"file is truncated or modified. {remedy}"
        )
        raise CorruptFile("unreadable_file", text, path=path) from error
    if not isinstance(array, np.ndarray):
        text = f"Expected a single array in {path}, found an archive of arrays. {remedy}"
        raise CorruptFile("wrong_content", text, path=path)
    return array


def open_pair(images: Path, labels: Path, remedy: str) -> tuple[Pixels, Labels]:
    """Return images memory-mapped and labels, when they belong together."""
    x, y = open_array(images, remedy), open_array(labels, remedy)
    for path, array, wanted, fits in (
        (
            *(images, x, "uint8 images of shape (n, height, width, 3)"),
            x.dtype == np.uint8 and x.ndim == 4 and x.shape[3] == 3,
        ),
        (labels, y, "a one-dimensional integer array", y.ndim == 1 and y.dtype.kind in "iu"),
    ):
        if not fits:
            text = f"Expected {wanted} in {path}, found {array.dtype} {array.shape}. {remedy}"
            raise CorruptFile("wrong_content", text, path=path)
    if len(x) != len(y):
        text = f"{images} contains {len(x)} images, but {labels} contains {len(y)} labels. {remedy}"
        raise CorruptFile("wrong_length", text, path=labels, expected=len(x), found=len(y))
    return x, np.asarray(y, dtype=np.int64)


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Write what is known of a set beside it."""
    write_json(folder / CARD, card)


def write_json(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Write a JSON object in one step, and return it."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())
    return dict(content)


def read_card(path: Path, remedy: str, **kinds: type) -> dict[str, Any]:
    """Return a JSON object written beside a set, which must have these keys, with such values."""
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CorruptFile("file_missing", f"{path} is missing. {remedy}", path=path) from error
    except MALFORMED as error:
        text = f"{path} is not valid JSON ({error}). {remedy}"
        raise CorruptFile("unreadable_file", text, path=path) from error
    found = card if isinstance(card, dict) else {}
    wrong = [k for k, kind in kinds.items() if k not in found or not isinstance(found[k], kind)]
    if wrong or not isinstance(card, dict):
        text = (
            f"Expected an object with the keys {', '.join(kinds)} in {path}; missing or wrong: "
            f"{', '.join(wrong) or 'all'}. The file was modified. {remedy}"
        )
        raise CorruptFile("wrong_content", text, path=path)
    return card
