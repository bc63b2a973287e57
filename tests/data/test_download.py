"""Downloads: faults of a server, mirrors, resuming, two processes at once."""

from __future__ import annotations

import hashlib
import queue
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from acclimate.data import download, packages
from acclimate.data.download import RemoteFile, fetch
from acclimate.errors import DownloadFailed, MissingExtra
from tests.codes import raises
from tests.data.server import Server, serve

CONTENT = random.Random(0).randbytes(20 * download._CHUNK)
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download, "_PAUSE", 0.0)
    # A proxy of the machine must not stand between the tests and their own server.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serve(CONTENT) as running:
        yield running


def remote(
    server: Server, *paths: str, size: int | None = len(CONTENT), checksum=MD5
) -> RemoteFile:
    addresses = tuple(f"{server.address}/{path}" for path in paths)
    return RemoteFile("file.bin", addresses, size, checksum, allow_http=True)


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".locks")


def test_a_file_is_fetched_once_with_progress(server, tmp_path):
    told = []
    path = fetch(remote(server, "good"), tmp_path / "new", lambda *step: told.append(step))
    assert path.read_bytes() == CONTENT
    assert told[-1] == ("file.bin (MB)", 0, 1)
    assert fetch(remote(server, "good"), tmp_path / "new") == path
    assert server.requests == [("/good", "")]
    assert visible(tmp_path / "new") == ["file.bin"]


def test_a_cut_connection_is_resumed_from_where_it_broke(server, tmp_path):
    path = fetch(remote(server, "cut"), tmp_path)
    assert path.read_bytes() == CONTENT
    half, quarter = len(CONTENT) // 2, len(CONTENT) // 4
    asked = [asked for _, asked in server.requests]
    assert asked[:3] == ["", f"bytes={half}-", f"bytes={half + quarter}-"]


def test_a_cut_without_a_length_is_noticed_by_the_size(server, tmp_path):
    path = fetch(remote(server, "cut-silent", "good"), tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.requests[-1] == ("/good", f"bytes={len(CONTENT) // 2}-")


def test_a_server_without_ranges_begins_anew(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    path = fetch(remote(server, "plain"), tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.requests == [("/plain", "bytes=1000-")]


def test_what_came_is_kept_for_the_next_run(server, tmp_path):
    notes: list[str] = []
    with raises("download_failed", DownloadFailed, what="file.bin") as caught:
        fetch(remote(server, "cut-plain"), tmp_path, notify=notes.append)
    assert caught.value.reasons == tuple(notes)
    assert "163,840 of 327,680" in notes[0]
    assert visible(tmp_path) == ["file.bin.part"]
    assert fetch(remote(server, "good"), tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] == ("/good", "bytes=163840-")
    assert visible(tmp_path) == ["file.bin"]


def test_without_a_checksum_nothing_is_kept_or_continued(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(b"of another file")
    file = remote(server, "good", size=None, checksum=None)
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert server.requests == [("/good", "")]
    with raises("download_failed", what="file.bin"):
        fetch(remote(server, "cut-plain", size=None, checksum=None), tmp_path / "other")
    assert visible(tmp_path / "other") == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("wrong", "wrong checksum: md5 "),
        ("longer", "the server has 327,684 bytes, expected 327,680"),
        ("missing", "HTTP 404 Not Found"),
        ("page", "instead of the file; Google Drive does this"),
        ("page-in-disguise", 'a web page titled "Google Drive - Quota exceeded"'),
    ],
)
def test_a_fault_is_told_and_the_next_mirror_is_tried(server, tmp_path, fault, words):
    notes: list[str] = []
    path = fetch(remote(server, fault, "good"), tmp_path, notify=notes.append)
    assert path.read_bytes() == CONTENT
    assert len(notes) == 1
    assert words in notes[0]
    assert server.requests == [(f"/{fault}", ""), ("/good", "")]
    with raises("download_failed", DownloadFailed, what="file.bin", reasons=tuple(notes)):
        fetch(remote(server, fault), tmp_path / "alone")
    assert visible(tmp_path / "alone") == []


def test_every_mirror_is_tried_once_and_named_when_all_fail(server, tmp_path, monkeypatch):
    def pause(seconds: float) -> None:
        pytest.fail("a mirror that gave nothing is waited for")

    monkeypatch.setattr(download.time, "sleep", pause)
    dead = RemoteFile(
        "file.bin", ("http://127.0.0.1:9/x", f"{server.address}/missing"), 1, MD5, True
    )
    host = server.address.removeprefix("http://")
    reasons = ("127.0.0.1:9: cannot be reached", f"{host}: HTTP 404 Not Found")
    with raises("download_failed", DownloadFailed, reasons=reasons) as caught:
        fetch(dead, tmp_path)
    assert server.requests == [("/missing", "")]
    assert all(reason in str(caught.value) for reason in reasons)


def test_a_server_that_says_nothing_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "_TIMEOUT", (60.0, 0.1))
    notes: list[str] = []

    def give_the_next_one_time(note: str) -> None:
        notes.append(note)
        monkeypatch.setattr(download, "_TIMEOUT", (60.0, 60.0))

    fetch(remote(server, "stuck", "good"), tmp_path, notify=give_the_next_one_time)
    assert len(notes) == 1
    assert "cannot be reached" in notes[0] or "no response" in notes[0]


def test_a_redirect_is_followed(server, tmp_path):
    assert fetch(remote(server, "away"), tmp_path).read_bytes() == CONTENT
    assert server.requests == [("/away", ""), ("/good", "")]


@pytest.mark.parametrize("path", ["off", "good"])
def test_a_part_that_does_not_fit_is_begun_anew(server, tmp_path, path):
    """Of another place than asked for; or longer than the server's file, whose size is unknown."""
    extra = b"" if path == "off" else b"too long"
    (tmp_path / "file.bin.part").write_bytes((CONTENT + extra)[: -5 if path == "off" else None])
    size = len(CONTENT) if path == "off" else None
    assert fetch(remote(server, path, size=size), tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] == (f"/{path}", "")


def test_a_damaged_file_in_place_is_fetched_again(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(CONTENT[:-1])
    assert fetch(remote(server, "good"), tmp_path).read_bytes() == CONTENT


CHILD = """
import sys
from acclimate.data.download import RemoteFile, fetch
address, folder, size, checksum = sys.argv[1:]
file = RemoteFile("file.bin", (address,), int(size), checksum, True)
fetch(file, __import__("pathlib").Path(folder), notify=print)
"""


def start_child(server: Server, folder: Path) -> subprocess.Popen[str]:
    arguments = [f"{server.address}/gated", str(folder), str(len(CONTENT)), MD5]
    command = [sys.executable, "-u", "-c", CHILD, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_part(folder: Path) -> Path:
    part = folder / "file.bin.part"
    deadline = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    return part


WAITING = "another process is at work on file.bin; waiting for it."


def test_two_at_once_fetch_once(server, tmp_path):
    """Two threads, whose locks exclude each other as those of two processes do."""
    file, notes = remote(server, "gated"), queue.Queue()
    with ThreadPoolExecutor(2) as pool:
        try:
            first = pool.submit(fetch, file, tmp_path)
            wait_for_part(tmp_path)
            second = pool.submit(fetch, file, tmp_path, notify=notes.put)
            assert notes.get(timeout=60) == WAITING
        finally:
            server.gate.set()
        assert first.result() == second.result() == tmp_path / "file.bin"
    assert server.requests == [("/gated", "")]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.mark.slow
def test_two_processes_fetch_once(server, tmp_path):
    first = start_child(server, tmp_path)
    wait_for_part(tmp_path)
    second = start_child(server, tmp_path)
    assert second.stdout is not None
    assert second.stdout.readline() == f"{WAITING}\n"
    server.gate.set()
    outputs = [child.communicate(timeout=60) for child in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], outputs
    assert server.requests == [("/gated", "")]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.mark.slow
def test_a_killed_process_leaves_a_part_that_is_continued(server, tmp_path):
    child = start_child(server, tmp_path)
    part = wait_for_part(tmp_path)
    child.kill()
    child.communicate()
    server.gate.set()
    n = part.stat().st_size
    assert 0 < n < len(CONTENT)
    assert fetch(remote(server, "good"), tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] == ("/good", f"bytes={n}-")


def test_the_message_names_the_extra_that_is_missing(server, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with raises("missing_extra", MissingExtra, package="pooch") as caught:
        fetch(remote(server, "good"), tmp_path)
    assert "pip install 'acclimate[data]'" in str(caught.value)
    assert visible(tmp_path) == []


def fake_npm(folder: Path, script: str) -> Path:
    folder.mkdir()
    (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "npm").chmod(0o755)
    return folder


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for npm is a shell script")
def test_npm_client(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(fake_npm(tmp_path / "bin", 'echo "$*" > "$4/asked-1.0.0.tgz"')))
    (tmp_path / "out").mkdir()
    path = packages.fetch_npm("asked@1.0.0", tmp_path / "out")
    assert path.read_text().startswith(f"pack asked@1.0.0 --pack-destination {tmp_path / 'out'}")

    script = "echo 'npm error code E404' >&2; exit 1"
    monkeypatch.setenv("PATH", str(fake_npm(tmp_path / "broken", script)))
    (tmp_path / "none").mkdir()
    reasons = ("npm error code E404",)
    with raises("download_failed", DownloadFailed, what="asked@1.0.0", reasons=reasons):
        packages.fetch_npm("asked@1.0.0", tmp_path / "none")

    monkeypatch.setenv("PATH", str(tmp_path))
    with raises("client_missing", DownloadFailed, client="npm"):
        packages.fetch_npm("asked@1.0.0", tmp_path / "none")


# Servers that lie --------------------------------------------------------------------------------


def test_http_is_refused_unless_it_is_allowed(server, tmp_path):
    file = RemoteFile(
        "file.bin", (f"{server.address}/good", "ftp://127.0.0.1/x"), len(CONTENT), MD5
    )
    with raises("download_failed", DownloadFailed, what="file.bin") as caught:
        fetch(file, tmp_path)
    assert [reason.split(": ")[1] for reason in caught.value.reasons] == [
        "http protocol; only https is allowed",
        "ftp protocol; only https is allowed",
    ]
    assert server.requests == []


def test_a_redirection_to_another_protocol_is_not_followed(server, tmp_path):
    with raises("download_failed") as caught:
        fetch(remote(server, "to-file"), tmp_path)
    assert "file protocol; only https is allowed" in caught.value.reasons[0]
    assert visible(tmp_path) == []


def test_no_more_than_the_known_size_is_read(server, tmp_path):
    with raises("download_failed") as caught:
        fetch(remote(server, "endless"), tmp_path)
    assert f"more than the {len(CONTENT):,} bytes" in caught.value.reasons[0]
    assert visible(tmp_path) == []
    assert fetch(remote(server, "endless", "good"), tmp_path).read_bytes() == CONTENT


def test_a_server_that_sends_single_bytes_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "_DEADLINE", 0.5)
    began = time.monotonic()
    with raises("download_failed") as caught:
        fetch(remote(server, "slow"), tmp_path)
    assert "the time limit was exceeded" in caught.value.reasons[0]
    assert time.monotonic() - began < 30


def test_a_full_disk_ends_a_download_with_a_reason(server, tmp_path):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with raises("download_failed", what="file.bin") as caught:
            fetch(remote(server, "good"), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "cannot be written" in caught.value.reasons[0]
    assert fetch(remote(server, "good"), tmp_path).read_bytes() == CONTENT
