"""Fetching one file: mirrors in order, resumed after a break, checked, in place in one step.

The transfer itself is pooch's. A file that is cut stays as `NAME.part` and is continued by the next
mirror or the next run; everything else that goes wrong leaves nothing behind. Servers are not
trusted: addresses are https unless http is allowed, no more than the known size is read, and there
is a total time limit, however slowly a server sends.
"""

from __future__ import annotations

import importlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from acclimate._version import __version__
from acclimate.data.places import Feedback, Notify, Progress, hold_lock, make_folder, silent
from acclimate.errors import DownloadFailed, import_extra
from acclimate.storage import file_digest, guard_writing

#: Folder under the data root for files that are being fetched.
DOWNLOADS = ".downloads"

_MEGABYTE = 1_000_000
_TRIES = 10  # at one mirror, as long as each brings something new
_CHUNK = 1 << 14  # bytes; what came of a chunk is lost when the connection is cut inside it
_PAUSE = 1.0  # seconds before the next try
_TIMEOUT = (8.0, 30.0)  # seconds to connect, and between two pieces of an answer
_DEADLINE = 3600.0  # seconds for all tries at all mirrors, and besides:
_SLOWEST = 100_000  # bytes a second
_LARGEST = 1 << 36  # bytes of a file whose size is not known

_PAGE = re.compile(rb"\s*(<!doctype html|<html)", re.IGNORECASE)
_TITLE = re.compile(rb"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_PEEK = 4096


@dataclass(frozen=True)
class RemoteFile:
    """A file on the internet.

    Attributes:
        name: Its name on disk.
        addresses: Mirrors, in the order in which they are tried.
        size: In bytes, if known.
        checksum: `md5:…` or `sha256:…`, if one is published.
        allow_http: Whether addresses may be http, which can be altered on the way.
    """

    name: str
    addresses: tuple[str, ...]
    size: int | None = None
    checksum: str | None = None
    allow_http: bool = False

    def refuses(self, address: str) -> str | None:
        """Return why an address is not asked, if it is not."""
        allowed = ("https", "http") if self.allow_http else ("https",)
        scheme = urlsplit(address).scheme.lower()
        return None if scheme in allowed else f"{scheme or 'no'} protocol; only https is allowed"


@contextmanager
def fetch_all(
    files: Sequence[RemoteFile], root: Path, feedback: Feedback
) -> Iterator[tuple[Path, dict[str, str | None]]]:
    """Fetch files; give the file, or the folder of several, and the checksums by name.

    The files are removed when the block ends well.
    """
    folder = root / DOWNLOADS
    paths = [fetch(file, folder, feedback.progress, feedback.note) for file in files]
    yield paths[0] if len(paths) == 1 else folder, {file.name: file.checksum for file in files}
    for path in paths:
        path.unlink(missing_ok=True)


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
        progress: Called with megabytes.
        notify: Called with the reason why a mirror failed.

    Raises:
        DownloadFailed: No mirror gave the file; the reason of each is in the message.
        MissingExtra: pooch is not installed.
    """
    feedback = Feedback(progress or silent, notify or silent)
    target = make_folder(folder) / file.name
    with hold_lock(folder, file.name, feedback.note):
        if target.exists():
            if _fault(target, file) is None:
                return target
            target.unlink()
        part = target.with_name(f"{file.name}.part")
        if file.checksum is None:  # nothing would tell whether two halves belong together
            part.unlink(missing_ok=True)
        failures: list[str] = []
        deadline = time.monotonic() + _DEADLINE + (file.size or 0) / _SLOWEST
        for address in file.addresses:
            reason = file.refuses(address) or _try_mirror(address, file, part, deadline, feedback)
            if reason is None:
                part.replace(target)
                return target
            failures.append(f"{urlsplit(address).netloc}: {reason}")
            feedback.note(failures[-1])
        lines = [f"{file.name} could not be downloaded.", *failures]
        if kept := _size(part):
            lines.append(f"{kept:,} bytes were kept. Run the same command again to resume.")
        text = "\n  ".join(lines)
        raise DownloadFailed("download_failed", text, what=file.name, reasons=tuple(failures))


def _try_mirror(
    address: str, file: RemoteFile, part: Path, deadline: float, feedback: Feedback
) -> str | None:
    """Return None when the part is complete and right, otherwise why it is not."""
    reason: str | None = None
    for attempt in range(_TRIES):
        before = _size(part)
        if file.size is None or before < file.size:
            if attempt:
                time.sleep(_PAUSE)
            reason = _transfer(address, file, part, deadline, feedback.progress)
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


def _transfer(
    address: str, file: RemoteFile, part: Path, deadline: float, progress: Progress
) -> str | None:
    """Append what the server sends to the part; return the reason if it did not send all."""
    pooch = import_extra("pooch", "A download", "data")
    errors = importlib.import_module("requests.exceptions")
    # Compressed in transit, sizes and ranges would be those of something else.
    headers = {"Accept-Encoding": "identity", "User-Agent": f"acclimate/{__version__}"}

    def report(n_bytes: int) -> None:
        total = target.total if file.size is None else file.size
        whole = None if total is None else -(-total // _MEGABYTE)
        progress(f"{file.name} (MB)", n_bytes // _MEGABYTE, whole)

    with _open_part(part) as raw:
        start = _size(part)
        target = PartFile(raw, start, file, report)
        if start:
            headers["Range"] = f"bytes={start}-"
        download = pooch.HTTPDownloader(
            chunk_size=_CHUNK,
            timeout=_TIMEOUT,
            headers=headers,
            hooks={"response": lambda answer, **_: target.check(answer)},
        )
        reasons: list[str | None] = []
        failures: list[Exception] = []

        def run() -> None:
            try:
                download(address, target, None)
            except Refused as refusal:
                reasons.append(str(refusal))
            except errors.RequestException as error:
                reasons.append(_short_reason(error, target))
            except (OSError, ValueError, RuntimeError) as error:  # raised again by the caller
                failures.append(error)

        # A server can send single bytes for ever. Only another thread can stop waiting for it.
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            thread.join(max(0.0, deadline - time.monotonic()))
        finally:
            target.is_open = False
        if failures:
            raise failures[0]
        if thread.is_alive():
            return "the time limit was exceeded"
        return reasons[0] if reasons else None


class Refused(Exception):
    """The answer is not the file asked for, or not the part of it asked for."""


class PartFile:
    """A file that pooch writes to: `start` bytes were there already, `position` are there now."""

    def __init__(
        self, raw: IO[bytes], start: int, file: RemoteFile, report: Callable[[int], None]
    ) -> None:
        self.raw, self.file = raw, file
        self.start = self.position = start
        self.total: int | None = None  # as far as the server reports it
        self.is_open = True  # while the caller waits
        self._report = report

    def write(self, chunk: bytes) -> None:
        """Append what was received."""
        if not self.is_open:
            raise Refused("the download was abandoned")
        if self.position == 0 and _PAGE.match(chunk):
            raise Refused(explain_page("", chunk))
        limit = _LARGEST if self.file.size is None else self.file.size
        if self.position + len(chunk) > limit:
            self.restart()
            raise Refused(f"the server sends more than the {limit:,} bytes of the file")
        try:
            self.raw.write(chunk)
        except OSError as error:
            raise Refused(f"the file cannot be written to the disk ({error.strerror})") from error
        self.position += len(chunk)
        self._report(self.position)

    def flush(self) -> None:
        """Do nothing: pooch asks after every chunk, and the file is flushed when it is closed."""

    def restart(self) -> None:
        """Drop what was there: the server sends the whole file."""
        self.raw.truncate(0)
        self.start = self.position = 0

    def check(self, answer: Any) -> None:
        """Check the head of a `requests.Response` before its body is written.

        Raises:
            Refused: It is a web page, another part than asked for, a file of another size, or a
                redirection to an address that is not allowed.
        """
        try:
            if answer.is_redirect:  # requests follows it
                # A location without a protocol is on the same server.
                location = str(answer.headers.get("Location", ""))
                if urlsplit(location).scheme and (reason := self.file.refuses(location)):
                    raise Refused(f"the server redirects to {location[:100]}: {reason}")
            elif answer.status_code < 400 or answer.status_code == 416:  # else requests raises
                self._check_body(answer)
        except Refused:
            answer.close()
            raise

    def _check_body(self, answer: Any) -> None:
        if answer.status_code == 416:  # what is there is longer than what the server has
            self.restart()
            raise Refused("the server reports fewer bytes than were already downloaded; try again")
        host, size = urlsplit(answer.url).netloc, self.file.size
        if "text/html" in answer.headers.get("Content-Type", "").lower():
            raise Refused(explain_page(host, _peek(answer)))
        length = answer.headers.get("Content-Length", "")
        found = _RANGE.match(answer.headers.get("Content-Range", ""))
        if answer.status_code == 206 and found is not None:
            begin, wanted = int(found[1]), self.start
            if begin != wanted:
                self.restart()
                raise Refused(f"the server resumed at byte {begin:,}, not at {wanted:,} as asked")
            self.total = None if found[2] == "*" else int(found[2])
        else:
            self.restart()
            self.total = int(length) if length.isdecimal() else None
        if size is not None and self.total is not None and self.total != size:
            head = _peek(answer)
            if _PAGE.match(head):
                raise Refused(explain_page(host, head))
            raise Refused(f"the server has {self.total:,} bytes, expected {size:,}")


def _peek(answer: Any) -> bytes:
    return bytes(answer.raw.read(_PEEK, decode_content=True) or b"")


def explain_page(host: str, content: bytes) -> str:
    """Return the sentence for a server that answers with a web page instead of the file."""
    title = _TITLE.search(content)
    named = f' titled "{title[1].decode("utf-8", "replace").strip()}"' if title else ""
    text = f"the server returned a web page{named} instead of the file"
    if "google" in host or b"google drive" in content.lower():
        text += (
            "; Google Drive does this when a file was downloaded too often, or to request a "
            "confirmation: open the address in a browser, save the file, and pass it with --from"
        )
    return text


@contextmanager
def _open_part(part: Path) -> Iterator[Any]:
    try:
        with guard_writing(part), part.open("ab") as raw:
            yield raw
            raw.flush()
            os.fsync(raw.fileno())
    finally:
        if _size(part) == 0:
            part.unlink(missing_ok=True)


def _short_reason(error: Exception, target: PartFile) -> str:
    errors = importlib.import_module("requests.exceptions")
    if isinstance(error, errors.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    if target.position > target.start:
        whole = "" if target.total is None else f" of {target.total:,}"
        return f"the connection was closed after {target.position:,}{whole} bytes"
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
