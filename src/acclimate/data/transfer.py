"""One answer of a server: whether it is the file, and where its bytes belong."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import IO, Any
from urllib.parse import urlsplit

_PAGE = re.compile(rb"\s*(<!doctype html|<html)", re.IGNORECASE)
_TITLE = re.compile(rb"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_PEEK = 4096


class Refused(Exception):
    """The answer is not the file asked for, or not the part of it asked for."""


class Sink:
    """A file that pooch writes to, from `start` on.

    Attributes:
        start: Bytes that were there already.
        position: Bytes that are there now.
        total: Size of the whole, as far as the server told.
    """

    def __init__(self, raw: IO[bytes], start: int, tell: Callable[[int], None]) -> None:
        self.raw = raw
        self.start = self.position = start
        self.total: int | None = None
        self._tell = tell

    def write(self, chunk: bytes) -> None:
        """Append what came."""
        if self.position == 0 and _PAGE.match(chunk):
            raise Refused(explain_page("", chunk))
        try:
            self.raw.write(chunk)
        except OSError as error:
            raise Refused(f"the file cannot be written to the disk ({error.strerror})") from error
        self.position += len(chunk)
        self._tell(self.position)

    def flush(self) -> None:
        """Do nothing: pooch asks after every chunk, and the file is flushed when it is closed."""

    def restart(self) -> None:
        """Drop what was there: the server sends the whole file."""
        self.raw.truncate(0)
        self.start = self.position = 0


def check_answer(answer: Any, sink: Sink, size: int | None) -> None:
    """Look at the head of an answer before its body is written.

    Args:
        answer: A `requests.Response`, not yet read.
        sink: Set to where the body belongs.
        size: Of the whole file, if known.

    Raises:
        Refused: It is a web page, another part than asked for, or a file of another size.
    """
    if answer.is_redirect or (answer.status_code >= 400 and answer.status_code != 416):
        return  # requests follows the one and raises on the other
    try:
        if answer.status_code == 416:  # what is there is longer than what the server has
            sink.restart()
            raise Refused("the server reports fewer bytes than were already downloaded; try again")
        if "text/html" in answer.headers.get("Content-Type", "").lower():
            raise Refused(explain_page(urlsplit(answer.url).netloc, _peek(answer)))
        _place(answer, sink)
        if size is not None and sink.total is not None and sink.total != size:
            head = _peek(answer)
            if _PAGE.match(head):
                raise Refused(explain_page(urlsplit(answer.url).netloc, head))
            raise Refused(f"the server has {sink.total:,} bytes, expected {size:,}")
    except Refused:
        answer.close()
        raise


def _peek(answer: Any) -> bytes:
    return bytes(answer.raw.read(_PEEK, decode_content=True) or b"")


def _place(answer: Any, sink: Sink) -> None:
    length = answer.headers.get("Content-Length", "")
    found = _RANGE.match(answer.headers.get("Content-Range", ""))
    if answer.status_code == 206 and found is not None:
        if int(found[1]) != sink.start:
            begin = int(found[1])
            sink.restart()
            raise Refused(f"the server resumed at byte {begin:,} instead of the requested position")
        sink.total = None if found[2] == "*" else int(found[2])
        return
    sink.restart()
    sink.total = int(length) if length.isdecimal() else None


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
