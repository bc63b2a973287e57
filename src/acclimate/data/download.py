"""Fetching one file: mirrors in order, resumed after a break, checked, in place in one step.

The transfer itself is pooch's. A file that is cut stays as `NAME.part` and is continued by the next
mirror or the next run; everything else that goes wrong leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from acclimate._version import __version__
from acclimate.data.places import Notify, Progress, hold_lock, make_folder
from acclimate.data.transfer import Refused, Sink, check_answer
from acclimate.errors import DownloadFailed, MissingExtra

_MEGABYTE = 1_000_000
_TRIES = 10  # at one mirror, as long as each brings something new
_CHUNK = 1 << 14  # bytes; what came of a chunk is lost when the connection is cut inside it
_PAUSE = 1.0  # seconds before the next try
_TIMEOUT = (8.0, 30.0)  # seconds to connect, and between two pieces of an answer


@dataclass(frozen=True)
class RemoteFile:
    """A file on the internet.

    Attributes:
        name: Its name on disk.
        addresses: Mirrors, in the order in which they are tried.
        size: In bytes, if known.
        checksum: `md5:…` or `sha256:…`, if one is published.
    """

    name: str
    addresses: tuple[str, ...]
    size: int | None = None
    checksum: str | None = None


def fetch(
    file: RemoteFile,
    folder: Path,
    progress: Progress | None = None,
    notify: Notify | None = None,
) -> Path:
    """Return the path of a file in the folder, downloaded if it was not there.

    Args:
        file: What to fetch.
        folder: Where to put it; made if needed.
        progress: Is told of megabytes.
        notify: Is told why a mirror was given up.

    Raises:
        DownloadFailed: No mirror gave the file; the reason of each is in the message.
        MissingExtra: pooch is not installed.
    """
    target = make_folder(folder) / file.name
    with hold_lock(folder, file.name, notify):
        if target.exists():
            if _fault(target, file) is None:
                return target
            target.unlink()
        part = target.with_name(f"{file.name}.part")
        if file.checksum is None:  # nothing would tell whether two halves belong together
            part.unlink(missing_ok=True)
        failures = []
        for address in file.addresses:
            reason = _try_mirror(address, file, part, progress)
            if reason is None:
                part.replace(target)
                return target
            failures.append(f"{urlsplit(address).netloc}: {reason}")
            if notify is not None:
                notify(failures[-1])
        raise DownloadFailed(
            "download_failed",
            _explain(file, failures, part),
            what=file.name,
            reasons=tuple(failures),
        )


def _try_mirror(
    address: str, file: RemoteFile, part: Path, progress: Progress | None
) -> str | None:
    """Return None when the part is complete and right, otherwise why it is not."""
    reason: str | None = None
    for attempt in range(_TRIES):
        before = _size(part)
        if file.size is None or before < file.size:
            if attempt:
                time.sleep(_PAUSE)
            reason = _transfer(address, file, part, progress)
            if reason is None and file.size is not None and _size(part) < file.size:
                reason = f"the connection was closed after {_size(part):,} of {file.size:,} bytes"
            if reason is not None and _size(part) != before:
                continue  # more came than before, or the part is to be begun anew
        if reason is None:
            reason = _fault(part, file)
            if reason is not None:
                part.unlink(missing_ok=True)
        break
    if reason is not None and file.checksum is None:
        part.unlink(missing_ok=True)
    return reason


def _transfer(address: str, file: RemoteFile, part: Path, progress: Progress | None) -> str | None:
    """Append what the server sends to the part; return the reason if it did not send all."""
    pooch, errors = _import("pooch"), _import("requests.exceptions")
    start = _size(part)
    # Compressed on the way, sizes and ranges would be those of something else.
    headers = {"Accept-Encoding": "identity", "User-Agent": f"acclimate/{__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with _open_part(part) as raw:

        def tell(n_bytes: int) -> None:
            if progress is not None:
                total = sink.total if file.size is None else file.size
                whole = None if total is None else -(-total // _MEGABYTE)
                progress(f"{file.name} (MB)", n_bytes // _MEGABYTE, whole)

        sink = Sink(raw, start, tell)
        download = pooch.HTTPDownloader(
            chunk_size=_CHUNK,
            timeout=_TIMEOUT,
            headers=headers,
            hooks={"response": lambda answer, **_: check_answer(answer, sink, file.size)},
        )
        try:
            download(address, sink, None)
        except Refused as refusal:
            return str(refusal)
        except errors.RequestException as error:
            return _short_reason(error, sink)
    return None


@contextmanager
def _open_part(part: Path) -> Iterator[Any]:
    try:
        with part.open("ab") as raw:
            yield raw
            raw.flush()
            os.fsync(raw.fileno())
    finally:
        if _size(part) == 0:
            part.unlink(missing_ok=True)


def _short_reason(error: Exception, sink: Sink) -> str:
    errors = _import("requests.exceptions")
    if isinstance(error, errors.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    if sink.position > sink.start:
        whole = "" if sink.total is None else f" of {sink.total:,}"
        return f"the connection was closed after {sink.position:,}{whole} bytes"
    for kind, words in (
        (errors.ConnectTimeout, f"no connection within {_TIMEOUT[0]:.0f} s"),
        (errors.ReadTimeout, f"no response within {_TIMEOUT[1]:.0f} s"),
        (errors.SSLError, "the certificate was rejected"),
        (errors.ProxyError, "the proxy rejected the request"),
        (errors.ConnectionError, "cannot be reached"),
        (errors.ChunkedEncodingError, "the connection was closed"),
    ):
        if isinstance(error, kind):
            return words
    return type(error).__name__


def _fault(path: Path, file: RemoteFile) -> str | None:
    """Return what is wrong with a file's size or checksum, or None."""
    size = _size(path)
    if file.size is not None and size != file.size:
        return f"received {size:,} bytes, expected {file.size:,}"
    if file.checksum is not None:
        kind, expected = file.checksum.split(":")
        found = file_digest(path, kind)
        if found != expected:
            return f"wrong checksum: {kind} {found}, expected {expected}"
    return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def file_digest(path: Path, kind: str) -> str:
    """Return the checksum of a file, `kind` being `md5` or `sha256`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def _explain(file: RemoteFile, failures: list[str], part: Path) -> str:
    kept = ""
    if part.exists():
        kept = f"\n  {part.stat().st_size:,} bytes were kept. Run the same command again to resume."
    return "\n  ".join([f"{file.name} could not be downloaded.", *failures]) + kept


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(
            "missing_extra",
            "Downloads require pooch, which is not installed. Run: pip install 'acclimate[data]'",
            package="pooch",
        ) from error
