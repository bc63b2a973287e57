"""Checksums of files that do not change while they are looked at."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from acclimate.errors import BadInput
from acclimate.zoo.readers import sha256_of


def file_sha256(path: str) -> str:
    """Return the SHA-256 of a file, computed again only if the file was changed.

    Raises:
        BadInput: It cannot be read.
    """
    try:
        found = Path(path).stat()
    except OSError as error:
        raise BadInput(
            f"expected a file of weights at {path}, but it cannot be read ({error.strerror}). Give "
            "the right path, or put the file there."
        ) from error
    return _known_sha256(str(Path(path).resolve()), found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=64)
def _known_sha256(path: str, size: int, changed: int) -> str:
    return sha256_of(Path(path))
