"""Checksums of what decides the numbers of a job: files, folders of images, this package itself."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import acclimate
from acclimate.errors import BadInput
from acclimate.zoo.named import is_own
from acclimate.zoo.readers import sha256_of

# Characters of a checksum that tell one folder, or one state of the code, from others.
_LENGTH = 16


def file_sha256(path: str) -> str:
    """Return the SHA-256 of a file, computed again only if the file was changed.

    Raises:
        BadInput: It cannot be read.
    """
    try:
        found = Path(path).stat()
    except OSError as error:
        raise BadInput(
            "unreadable",
            f"Expected a file of weights at {path}, which cannot be read ({error.strerror}). "
            "Correct the path, or copy the file there.",
            path=path,
        ) from error
    if not Path(path).is_file():
        raise BadInput(
            "not_a_file",
            f"Expected a file of weights at {path}, found a folder. Pass a file in it.",
            path=path,
        )
    return _known_sha256(str(Path(path).resolve()), found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=64)
def _known_sha256(path: str, size: int, changed: int) -> str:
    return sha256_of(Path(path))


def model_code_sha256(model: str) -> str | None:
    """Return a checksum of the file that a model of somebody's own is made in.

    None if it is none of their own, or its file cannot be found. What that file imports is not in
    it.

    Args:
        model: As a job names it, `package.module:function`.
    """
    module = model.partition(":")[0]
    if not is_own(model) or ":" not in model or module.split(".")[0] == acclimate.__name__:
        return None
    here = str(Path.cwd())
    if here not in sys.path:  # where models are looked for, too
        sys.path.insert(0, here)
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if found is None or found.origin is None or not Path(found.origin).is_file():
        return None
    return file_sha256(found.origin)[:_LENGTH]


@lru_cache(maxsize=64)
def tell_folder(path: str) -> str:
    """Return what tells a folder from others of its name, wherever it lies.

    These are the names and sizes of the files in it, which can be had without reading them; their
    checksums are in the result of a job. It is looked at once in the life of a process.
    """
    lines = sorted(_list_sizes(path))
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:_LENGTH]


def _list_sizes(root: str) -> Iterator[str]:
    for folder, _, names in os.walk(root, followlinks=True):
        for path in (Path(folder, name) for name in names):
            if path.is_file():
                yield f"{path.relative_to(root)} {path.stat().st_size}"


@lru_cache(maxsize=1)
def code_sha256() -> str:
    """Return a checksum of this package's own code: its version alone does not tell."""
    root = Path(acclimate.__file__).parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:_LENGTH]
