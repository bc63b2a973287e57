"""A small HTTP server that misbehaves as asked, for the tests of downloads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PAGE = b"<!DOCTYPE html><html><head><title>Google Drive - Quota exceeded</title></head></html>"


@dataclass
class Server:
    """What is served, and what was asked for."""

    content: bytes
    address: str = ""
    #: Path and Range header of every request.
    requests: list[tuple[str, str]] = field(default_factory=list)
    #: Opens the way for the second half of `/gated`; opened at the end for all that still wait.
    gate: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serve(content: bytes) -> Iterator[Server]:
    """Serve the content at several paths, each with a fault of its own.

    `/good` answers ranges; `/plain` does not; `/cut` breaks off after half of what it should send,
    `/cut-plain` does so always from the start, `/cut-silent` without telling the length;
    `/wrong` has other bytes, `/longer` more; `/page` is a web page, `/page-in-disguise` says it is
    a file; `/away` redirects to `/good`; `/gated` sends half and waits; `/stuck` waits before that;
    `/off` answers ranges from another byte; `/endless` never stops sending, `/slow` sends single
    bytes; `/to-file` redirects to a file of the client. Everything else is missing.
    """
    server = Server(content)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            server.requests.append((self.path, asked))
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
            kind = self.path.strip("/")
            if kind in ("good", "gated", "stuck", "cut", "off"):
                if start >= len(content):
                    self.answer(416, b"")
                    return
                self.send(content, start, kind)
            elif kind in ("plain", "cut-plain", "cut-silent"):
                self.send(content, 0, kind)
            elif kind == "wrong":
                self.send(bytes(len(content)), start, kind)
            elif kind == "longer":
                self.send(content + b"more", start, kind)
            elif kind == "page":
                self.answer(200, PAGE, {"Content-Type": "text/html; charset=utf-8"})
            elif kind == "page-in-disguise":
                self.answer(200, PAGE, {"Content-Type": "application/octet-stream"})
            elif kind == "away":
                self.answer(302, b"", {"Location": "/good"})
            elif kind == "to-file":
                self.answer(302, b"", {"Location": "file:///etc/passwd"})
            elif kind in ("endless", "slow"):
                self.send_response(200)
                self.send_header("Connection", "close")
                self.end_headers()
                while not server.gate.wait(0.01 if kind == "slow" else 0):
                    self.wfile.write(b"x" if kind == "slow" else bytes(1 << 16))
            else:
                self.answer(404, b"not here", {"Content-Type": "text/html"})

        def answer(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(code)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def send(self, whole: bytes, start: int, kind: str) -> None:
            body = whole[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Type", "application/octet-stream")
            if start:
                begin = start + 7 if kind == "off" else start
                last = len(whole) - 1
                self.send_header("Content-Range", f"bytes {begin}-{last}/{len(whole)}")
            if kind != "cut-silent":
                self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            if kind == "stuck":
                server.gate.wait(60)
                return
            if kind.startswith("cut") and len(body) > len(whole) // 8:
                body = body[: len(body) // 2]
            if kind == "gated":
                self.wfile.write(body[: len(body) // 2])
                server.gate.wait(60)
                body = body[len(body) // 2 :]
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            """Say nothing."""

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *arguments: Any) -> None:
            """Say nothing: clients that go away are part of the tests."""

    http = Quiet(("127.0.0.1", 0), Handler)
    server.address = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.gate.set()
        http.shutdown()
        thread.join()
        http.server_close()
