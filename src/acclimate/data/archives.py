"""Files inside a folder or an archive, looked up by their own name, never extracted by path.

Archives come from anywhere: numbers of files and expanded bytes are limited, only regular files
are read, and every failure is one error, `CorruptFile`.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from acclimate.errors import BadInput, CorruptFile
from acclimate.storage import file_digest

#: Largest number of files in an archive.
MAX_FILES = 1_000_000
#: Largest number of expanded bytes for each byte of an archive, and besides.
MAX_RATIO, MAX_EXTRA = 100, 1 << 26
#: Largest number of bytes of a file that is read; published are at most 154 million.
MAX_BYTES = 1 << 28
#: Largest number of bytes of a name that a file gets.
MAX_NAME = 200

# What the readers of archives raise on damaged content. RuntimeError is that of zipfile on a member
# that is encrypted or packed in an unknown way.
_BROKEN = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, OSError, ValueError, LookupError, OverflowError, MemoryError, RuntimeError),
)
_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}

#: Path inside the archive, and the file opened for reading.
Member = tuple[PurePosixPath, IO[bytes]]


def list_names(source: Path) -> set[str]:
    """Return the names of all files in a folder, a tar or a zip archive, without their folders."""
    return {path.name for path, _ in iter_paths(source)}


def iter_paths(source: Path) -> Iterator[Member]:
    """Yield every file with its path inside a folder, a tar or a zip archive, opened for reading.

    The paths are what the archive says and must not be written to as they are.
    """
    if source.is_dir():
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            with path.open("rb") as file:
                yield PurePosixPath(path.relative_to(source).as_posix()), file
    elif not source.is_file():
        raise BadInput("not_found", f"{source} does not exist. Check the path.", path=source)
    else:
        with guard_reading(source):
            yield from _iter_zip(source) if _is_zip(source) else _iter_tar(source)


def read_member(file: IO[bytes], source: Path) -> bytes:
    """Return the content of a file of an archive, if it is not larger than allowed."""
    with guard_reading(source):
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise _exceeded(source, f"a file of more than {MAX_BYTES:,} bytes")
    return content


def extract(
    source: Path, folder: Path, find_targets: Callable[[PurePosixPath], Sequence[str]]
) -> Iterator[str]:
    """Write files of an archive or a folder into another folder; yield the name of each.

    `find_targets` returns where a file goes, relative to the folder; nowhere if it is not needed.
    """
    for path, file in iter_paths(source):
        targets = find_targets(path)
        content = read_member(file, source) if targets else b""
        for name in targets:
            target = folder / name
            if target.exists():
                text = (
                    f"{name} occurs more than once: {source} contains several copies of the data "
                    "set. Pass one of them."
                )
                raise BadInput("duplicate", text, name=name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            yield name


def extract_checked(
    source: Path, folder: Path, sums: Mapping[str, str], remedy: str
) -> Iterator[str]:
    """Write the files of these checksums, such as `md5:…`, into a folder; yield the name of each.

    Raises `CorruptFile` if a file is not the published one; the remedy says what to do.
    """
    left = set(sums)

    def find_targets(path: PurePosixPath) -> list[str]:
        is_wanted = path.name in left
        left.discard(path.name)
        return [path.name] if is_wanted else []

    for name in extract(source, folder, find_targets):
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())
        if find_fault(folder / name, sums[name], remedy):
            text = f"{name} in {source} is not the published file: its checksum differs. {remedy}"
            raise CorruptFile("wrong_checksum", text, path=source / name)
        yield name


def find_fault(path: Path, checksum: str, remedy: str) -> str:
    """Return what is wrong with a file that was published with this checksum; empty if nothing."""
    if not path.is_file():
        return f"{path} is missing. {remedy}"
    kind, expected = checksum.split(":")
    if file_digest(path, kind) == expected:
        return ""
    what = {"md5": "MD5", "sha256": "SHA-256"}[kind]
    return f"{path} is not the published file: its {what} differs. {remedy}"


def is_plain(name: str) -> bool:
    """Return whether a name of an archive can be a file's without leading anywhere else.

    >>> is_plain("cat.jpg"), is_plain(".."), is_plain("C:cat.jpg"), is_plain("x" * 300)
    (True, False, False, False)
    """
    is_short = 0 < len(name.encode("utf-8", "surrogateescape")) <= MAX_NAME
    return is_short and not name.startswith(".") and not set(name) & set('/\\:\0<>|"?*')


@contextmanager
def guard_reading(source: Path) -> Iterator[None]:
    """Raise `CorruptFile` for whatever goes wrong while an archive or a file of it is read."""
    try:
        yield
    except (BadInput, CorruptFile):
        raise
    except _BROKEN as error:
        kind = "zip" if _is_zip(source) else "tar"
        text = (
            f"{source} is not a complete {kind} archive ({error}). The file is truncated or "
            "modified. Download it again."
        )
        raise CorruptFile("unreadable_file", text, path=source) from error


def _iter_zip(source: Path) -> Iterator[Member]:
    with zipfile.ZipFile(source) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        _check_count(source, len(members))
        total, limit = sum(member.file_size for member in members), _limit(source)
        if total > limit:
            raise _exceeded(source, f"{total:,} expanded bytes, more than {limit:,}")
        for member in members:
            with archive.open(member) as file:
                yield PurePosixPath(member.filename), file


def _iter_tar(source: Path) -> Iterator[Member]:
    with source.open("rb") as raw:
        start = raw.read(8)
        raw.seek(0)
        opener = next((o for magic, o in _OPENERS.items() if start.startswith(magic)), None)
        arguments: dict[str, Any] = {"mode": "r:", "fileobj": raw}
        if opener is not None:
            arguments = {"mode": "r|", "fileobj": _Limited(opener(raw), source)}
        with tarfile.open(**arguments) as archive:
            for number, member in enumerate(archive):
                _check_count(source, number)
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None:
                    with content:
                        yield PurePosixPath(member.name), content
        if opener is not None:  # a file that is cut after the last member is damaged, too
            while arguments["fileobj"].read(1 << 20):
                pass


class _Limited(io.RawIOBase):
    """An expanded archive, up to the limit of its size."""

    def __init__(self, file: IO[bytes], source: Path) -> None:
        self._file, self._source = file, source
        self._left = _limit(source)

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise _exceeded(self._source, f"more than {_limit(self._source):,} expanded bytes")
        return content


def _limit(source: Path) -> int:
    return MAX_EXTRA + MAX_RATIO * source.stat().st_size


def _check_count(source: Path, n: int) -> None:
    if n > MAX_FILES:
        raise _exceeded(source, f"more than {MAX_FILES:,} files")


def _exceeded(source: Path, what: str) -> CorruptFile:
    text = (
        f"{source} contains {what}. No published data set does; the archive may be made to fill "
        "memory or disk. Unpack it by hand if you trust it, and pass the folder."
    )
    return CorruptFile("unsafe_file", text, path=source)


def _is_zip(source: Path) -> bool:
    # Not `zipfile.is_zipfile`, which takes a tar archive for one when there is one in it.
    with source.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"
