"""Files inside a folder or a tar archive, looked up by their own name, never extracted by path."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from acclimate.errors import BadInput, CorruptFile

_BROKEN = (tarfile.TarError, EOFError, zlib.error, OSError)


def list_names(source: Path) -> set[str]:
    """Return the names of all files in a folder or an archive, without their folders.

    Raises:
        BadInput: There is nothing at that path.
        CorruptFile: It is a file, but no whole tar archive.
    """
    if source.is_dir():
        return {path.name for path in source.rglob("*") if path.is_file()}
    with _open_tar(source) as archive:
        return {PurePosixPath(member.name).name for member in archive if member.isfile()}


def iter_files(source: Path, wanted: Collection[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield each wanted file once, by name, opened for reading, in the order they lie there."""
    left = set(wanted)
    if source.is_dir():
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            if path.name in left:
                left.discard(path.name)
                with path.open("rb") as file:
                    yield path.name, file
        return
    with _open_tar(source) as archive:
        for member in archive:
            name = PurePosixPath(member.name).name
            content = archive.extractfile(member) if member.isfile() and name in left else None
            if content is not None:
                left.discard(name)
                with content:
                    yield name, content


@contextmanager
def _open_tar(source: Path) -> Iterator[tarfile.TarFile]:
    if not source.is_file():
        raise BadInput(f"{source} is neither a file nor a folder. Check the path.")
    try:
        with tarfile.open(source) as archive:
            yield archive
    except _BROKEN as error:
        raise CorruptFile(
            f"{source} is not a whole tar archive ({error}). It was cut off or altered: fetch it "
            "again."
        ) from error
