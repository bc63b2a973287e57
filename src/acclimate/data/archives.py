"""Files inside a folder or an archive, looked up by their own name, never extracted by path."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from acclimate.errors import BadInput, CorruptFile

# The last is what zipfile raises on a member that is encrypted or packed in an unknown way.
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, OSError, RuntimeError)


def list_names(source: Path) -> set[str]:
    """Return the names of all files in a folder, a tar or a zip archive, without their folders.

    Raises:
        BadInput: There is nothing at that path.
        CorruptFile: It is a file, but no whole archive.
    """
    if source.is_dir():
        return {path.name for path in source.rglob("*") if path.is_file()}
    if _is_zip(source):
        with guard_reading(source), zipfile.ZipFile(source) as archive:
            return {PurePosixPath(name).name for name in archive.namelist()}
    with _open_tar(source) as tar:
        return {PurePosixPath(member.name).name for member in tar if member.isfile()}


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
    if _is_zip(source):
        with guard_reading(source), zipfile.ZipFile(source) as archive:
            for full in archive.namelist():
                name = PurePosixPath(full).name
                if name in left:
                    left.discard(name)
                    with archive.open(full) as file:
                        yield name, file
        return
    with _open_tar(source) as tar:
        for member in tar:
            name = PurePosixPath(member.name).name
            content = tar.extractfile(member) if member.isfile() and name in left else None
            if content is not None:
                left.discard(name)
                with content:
                    yield name, content


def iter_paths(source: Path) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """Yield every file with its path inside a folder, a tar or a zip archive, opened for reading.

    The paths are what the archive says and must not be written to as they stand.
    """
    if source.is_dir():
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            with path.open("rb") as file:
                yield PurePosixPath(path.relative_to(source).as_posix()), file
        return
    if _is_zip(source):
        with guard_reading(source), zipfile.ZipFile(source) as archive:
            for member in archive.infolist():
                if not member.is_dir():
                    with archive.open(member) as file:
                        yield PurePosixPath(member.filename), file
        return
    with _open_tar(source) as tar:
        for entry in tar:
            content = tar.extractfile(entry) if entry.isfile() else None
            if content is not None:
                with content:
                    yield PurePosixPath(entry.name), content


def is_plain(name: str) -> bool:
    """Say whether a name of an archive can be a file's without leading anywhere else.

    >>> is_plain("cat.jpg"), is_plain(".."), is_plain("C:cat.jpg")
    (True, False, False)
    """
    return not name.startswith(".") and not set(name) & set('/\\:\0<>|"?*')


@contextmanager
def _open_tar(source: Path) -> Iterator[tarfile.TarFile]:
    if not source.is_file():
        raise BadInput("not_found", f"{source} does not exist. Check the path.", path=source)
    with guard_reading(source), tarfile.open(source) as archive:
        yield archive


def _is_zip(source: Path) -> bool:
    # Not `zipfile.is_zipfile`, which takes a tar archive for one when there is one in it.
    if not source.is_file():
        return False
    with source.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


@contextmanager
def guard_reading(source: Path) -> Iterator[None]:
    """Raise `CorruptFile` for whatever goes wrong while an archive or a file of it is read."""
    try:
        yield
    except _BROKEN as error:
        kind = "zip" if _is_zip(source) else "tar"
        raise CorruptFile(
            "unreadable_file",
            f"{source} is not a complete {kind} archive ({error}). The file is truncated or "
            "modified. Download it again.",
            path=source,
        ) from error
