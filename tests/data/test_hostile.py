"""Hostile images, archives and limits: a short version of benchmarks/hostile_images.py."""

from __future__ import annotations

import os
import pickle
import struct
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from benchmarks.hostile_images import (
    FAILURES,
    FORMATS,
    hostile_archives,
    read_archive,
    read_in_child,
    write_hostile,
    write_mutants,
)

from acclimate import data
from acclimate.data import archives
from acclimate.data.arrays import open_array, write_array, write_card
from acclimate.data.copies import corrupt_folder
from acclimate.data.corruptor import CopyRequest
from acclimate.data.domains import load_domains
from acclimate.data.loading import load_data
from acclimate.data.places import staged_folder
from acclimate.data.request import Request
from acclimate.decode import PixelBudget
from acclimate.errors import BadInput, CorruptFile
from acclimate.streams.folder import FolderStream
from acclimate.streams.images import list_images
from tests.codes import raises
from tests.images import write_images

#: What becomes of each hostile archive: it is read, or refused with this code.
ARCHIVES = {
    **dict.fromkeys(("empty.tar", "text.tar", "cut.tar", "cut.zip"), "unreadable_file"),
    **{f"cut.tar.{kind}": "unreadable_file" for kind in ("gz", "bz2", "xz")},
    **{f"flipped.tar.{kind}": "unreadable_file" for kind in ("gz", "bz2", "xz")},
    **{f"{name}.tar": "unreadable_file" for name in ("checksum", "size", "minus")},
    **{f"{name}.zip": "unreadable_file" for name in ("encrypted", "method", "sum")},
    **{f"bomb{kind}": "unsafe_file" for kind in (".tar.gz", ".tar.xz", ".zip", "-lzma.zip")},
    "size.zip": "unsafe_file",
    **{f"{name}.tar": "read" for name in ("zeros", "up", "root", "long", "link", "device", "fifo")},
    **{f"{name}.zip": "read" for name in ("up", "long")},
}


def assert_no_failure(found: dict[str, object]) -> None:
    assert {key: found[key] for key in FAILURES} == dict.fromkeys(FAILURES, 0), found["faults"]
    assert found["read"] + found["unreadable"] == found["files"]


def test_every_mutated_image_is_read_or_unreadable(tmp_path: Path) -> None:
    for kind in FORMATS:
        write_mutants(tmp_path / "all" / kind, kind, 6, seed=1)
    for kind in FORMATS:
        for path in sorted((tmp_path / "all" / kind).rglob("*.*")):
            target = tmp_path / "mixed" / path.parent.name / f"{kind}-{path.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    found = read_in_child(tmp_path / "mixed")
    assert found["files"] == 8 * len(FORMATS)
    assert_no_failure(found)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs")
def test_forty_hostile_files_stop_nothing(tmp_path: Path) -> None:
    write_hostile(tmp_path)
    found = read_in_child(tmp_path)
    assert found["files"] == 41  # and one folder that is named like an image
    assert_no_failure(found)
    assert not Path("/tmp/executed").exists()
    assert found["megabytes"] < 1800  # the largest decoded image has 700


@pytest.mark.parametrize("name", sorted(hostile_archives()))
def test_hostile_archives_are_refused_or_read_within_limits(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(hostile_archives()[name])
    assert read_archive(path) == ARCHIVES[name]


def dig(folder: Path, name: str, depth: int) -> None:
    """Make folders in folders; the path of the last may be longer than any system allows."""
    here = Path.cwd()
    try:
        os.chdir(folder)
        for _ in range(depth):
            Path(name).mkdir()
            os.chdir(name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize("target", ["/nonexistent", "z.png", "..", "pipe"])
def test_links_that_lead_nowhere_stop_nothing(target: str, tmp_path: Path) -> None:
    """A broken link, one to itself, one to the folder above, and one to a FIFO."""
    root = write_images(tmp_path / "mine", {f"{d}/{c}": 6 for d in "pq" for c in "ab"}, size=32)
    os.mkfifo(tmp_path / "pipe")
    name = root / "p" / "a" / ("up" if target == ".." else "z.png")
    name.symlink_to(tmp_path / target if target == "pipe" else target)
    broken = [] if target == ".." else [name]
    stream = FolderStream(root, 8)
    assert sum(len(paths) for paths, _ in stream) == 24
    assert list(stream.unreadable) == broken
    measured = load_data(str(root), Request(size=8))
    assert [len(domain) for domain in measured.domains] == [12, 12]
    assert list(measured.unreadable) == broken
    domains = load_domains(str(root), size=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [len(own) for own in domains.choose(data.DomainChoice()).values()] == [12, 12]
    counts = corrupt_folder(root, tmp_path / "out", CopyRequest(["contrast"], [1]))
    assert (counts.n_written, list(counts.unreadable)) == (24, broken)


def test_folders_in_folders_do_not_hang(tmp_path: Path) -> None:
    root = write_images(tmp_path / "mine", {"a": 2, "b": 2}, size=32)
    dig(root / "a", "d", 200)
    assert len(list_images(root)) == 4
    dig(root / "b", "n" * 250, 20)
    with raises("unreadable", BadInput):
        list_images(root)


def npy(header: str, body: bytes = bytes(64)) -> bytes:
    content = header.encode("latin-1").ljust(118) + b"\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(content)) + content + body


def npy_of(shape: str, dtype: str = "'|u1'") -> bytes:
    return npy(f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        pickle.dumps(np.zeros(3)),
        npy("("),
        npy("(" * 5000),
        npy("-" * 9000 + "1"),
        npy("\n  x\n y"),
        npy("'''"),
        npy("__import__('os').system('touch /tmp/executed')"),
        *(npy_of(shape) for shape in ("(-1,)", "(2**70,)", f"({2**70},)", f"({2**63 - 1},)")),
        npy_of("(65,)"),
        *(npy_of("(4,)", dtype) for dtype in ("'|O'", "'zz'", "[('a', '|O')]", "'<U9999999'")),
    ],
)
def test_hostile_arrays_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with raises("unreadable_file", CorruptFile, path=path):
        open_array(path, "Download it again.")
    assert not Path("/tmp/executed").exists()


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"[" * 100_000, "unreadable_file"),
        (b'{"source":' * 100_000, "unreadable_file"),
        (b'{"source": ' + b"9" * 5000 + b"}", "unreadable_file"),
        (b"\xff", "unreadable_file"),
        (b"", "unreadable_file"),
        (b"null", "wrong_content"),
        (b"[]", "wrong_content"),
        (b'{"splits": {}}', "wrong_content"),
        (b'{"source": 1, "splits": {}}', "wrong_content"),
        (b'{"source": "x", "splits": []}', "wrong_content"),
    ],
)
def test_hostile_cards_are_refused(content: bytes, code: str, tmp_path: Path) -> None:
    path = tmp_path / "cifar10" / "card.json"
    path.parent.mkdir()
    path.write_bytes(content)
    for look in (data.load, data.check):
        with raises(code, CorruptFile, path=path):
            look("cifar10", root=tmp_path)


def test_archives_with_too_many_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_FILES", 0)
    for name in ("up.tar", "up.zip"):
        (tmp_path / name).write_bytes(hostile_archives()[name])
        monkeypatch.setattr(archives, "MAX_FILES", -1)
        with raises("unsafe_file", CorruptFile, path=tmp_path / name):
            archives.list_names(tmp_path / name)


def test_names_that_lead_elsewhere_or_are_too_long_are_not_plain() -> None:
    for name in ("..", ".x", "a/b", "a\\b", "C:x", "a\0b", "", "n" * 201, "é" * 101):
        assert not archives.is_plain(name)
    for name in ("a.jpg", "n" * 200, "é" * 100):
        assert archives.is_plain(name)


def test_threads_decode_no_more_pixels_together_than_the_limit() -> None:
    budget, most, lock = PixelBudget(100), [], threading.Lock()

    def decode(n: int) -> None:
        with budget.reserve(n):
            with lock:
                most.append(budget.used)
            time.sleep(0.002)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(decode, [40, 70, 30, 250, 10] * 8))
    assert budget.used == 0
    assert len(most) == 40
    assert {n for n in most if n > 100} == {250}  # alone


@pytest.fixture
def limit() -> object:
    """Limit the size of files, as a full disk does, and lift the limit at the end."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda n: resource.setrlimit(resource.RLIMIT_FSIZE, (n, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_cannot_be_written_is_one_error_and_nothing_is_lost(
    limit: object, tmp_path: Path
) -> None:
    target = tmp_path / "set"
    target.mkdir()
    write_card(target, {"is": "old"})
    old = (target / "card.json").read_bytes()
    big = np.zeros((100, 32, 32, 3), np.uint8)
    limit(10_000)
    with raises("not_writable", BadInput, path=target / "card.json"):
        write_card(target, {"is": "x" * 20_000})
    with raises("not_writable", BadInput), staged_folder(target) as folder:
        write_array(folder / "images.npy", big)
    with raises("not_writable", BadInput, path=target), staged_folder(target) as folder:
        (folder / "image.jpg").write_bytes(bytes(20_000))
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    assert [path.name for path in target.iterdir()] == ["card.json"]
    assert (target / "card.json").read_bytes() == old


def test_copies_go_on_after_a_full_disk(limit: object, tmp_path: Path) -> None:
    photos = write_images(tmp_path / "photos", {"a": 2, "b": 2}, size=32)
    out = tmp_path / "out"
    limit(1500)  # of the manifest, but of no image
    with raises("not_writable", BadInput):
        corrupt_folder(photos, out, CopyRequest(["gaussian_noise"], [5]))
    assert not [path for path in out.rglob("*") if path.suffix in (".png", ".part")]
    limit(1 << 20)
    assert corrupt_folder(photos, out, CopyRequest(["gaussian_noise"], [5])).n_written == 4
