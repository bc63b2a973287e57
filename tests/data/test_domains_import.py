"""Sets of domains out of archives, and TerraIncognita out of what LILA publishes."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from acclimate import data
from acclimate.data import check
from acclimate.data.catalog import SETS
from acclimate.data.domains import load_domains
from acclimate.data.download import RemoteFile
from tests.codes import raises, warns
from tests.data.server import serve
from tests.domains.samples import make_tree, names_and_numbers

PACS = SETS["pacs"]
COUNTS = dict.fromkeys(PACS.domains, 14)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETS, "pacs", replace(PACS, domains=COUNTS))


def read_tree(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*.*g"))
    }


def to_zip(files: dict[str, bytes], path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def to_tar(files: dict[str, bytes], path: Path, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The images of a small PACS by their paths, only to be read."""
    return read_tree(make_tree(tmp_path_factory.mktemp("pacs"), COUNTS, PACS.classes))


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip", "folder"])
def test_an_archive_is_unpacked_wherever_the_domains_lie_in_it(
    kind: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    inside = {
        f"kfold/{name.replace('art_painting', 'Art Painting')}": content
        for name, content in files.items()
    }
    others = {
        "kfold/readme.txt": b"about",
        "__MACOSX/kfold/photo/dog/._000.png": b"litter",
        "kfold/photo/dog/.hidden.png": b"litter",
        "splits/photo_train.txt": b"1",
    }
    source = tmp_path / f"archive.{kind}"
    if kind == "zip":
        to_zip({**inside, **others}, source)
    elif kind == "folder":
        for name, content in {**inside, **others}.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(content)
    else:
        to_tar({**inside, **others}, source, "w:gz" if kind == "tar.gz" else "w")
    root = tmp_path / "root"
    place = data.get("pacs", root, source)
    assert place == root / "pacs"
    assert read_tree(place) == files
    assert data.find_state("pacs", root) == f"imported from archive.{kind}"
    assert check("pacs", root).problems == []
    assert len(load_domains("pacs", root, size=8).domains["photo"]) == 14
    assert data.get("pacs", root) == place  # there already
    assert not list(root.glob(".*part"))


def test_what_is_not_the_set_leaves_nothing_behind(files: dict[str, bytes], tmp_path: Path) -> None:
    root = tmp_path / "root"
    fewer = {name: content for name, content in files.items() if "sketch/dog" not in name}
    with raises("faulty_data") as caught:
        data.get("pacs", root, to_tar(fewer, tmp_path / "a.tar"))
    assert [names_and_numbers(fault) for fault in caught.value.faults] == [["sketch", "dog"]]
    with raises("wrong_archive", path=tmp_path / "b.tar"):
        data.get("pacs", root, to_tar({"a/b.txt": b""}, tmp_path / "b.tar"))
    twice = {**files, **{f"copy/{name}": content for name, content in files.items()}}
    with raises("duplicate", name="art_painting/dog/000.png"):
        data.get("pacs", root, to_tar(twice, tmp_path / "c.tar"))
    whole = to_tar(files, tmp_path / "d.tar", "w:gz").read_bytes()
    (tmp_path / "e.tar").write_bytes(whole[: len(whole) // 2])
    with raises("unreadable_file", path=tmp_path / "e.tar"):
        data.get("pacs", root, tmp_path / "e.tar")
    assert [path for path in root.iterdir() if path.name != ".locks"] == []


def test_paths_that_lead_elsewhere_are_not_followed(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    root = tmp_path / "root"
    evil = {"photo/../out.png": b"x", "/photo/..\\dog/a.png": b"x", "../../photo/../x.png": b"x"}
    data.get("pacs", root, to_zip({**files, **evil}, tmp_path / "evil.zip"))
    assert read_tree(root / "pacs") == files
    assert not (tmp_path / "out.png").exists()
    assert not (root / "out.png").exists()


# TerraIncognita ----------------------------------------------------------------------------------


def annotate(images: dict[str, tuple[int, list[str]]], kinds: list[str]) -> bytes:
    """Return annotations in the layout of COCO: images by name, with place and kinds."""
    entries = [
        {"id": f"id-{name}", "file_name": name, "location": place}
        for name, (place, _) in images.items()
    ]
    marks = [
        {"image_id": f"id-{name}", "category_id": kinds.index(kind)}
        for name, (_, own) in images.items()
        for kind in own
    ]
    categories = [{"id": number, "name": kind} for number, kind in enumerate(kinds)]
    content = {"categories": categories, "images": entries, "annotations": marks}
    return json.dumps(content).encode()


def make_traps() -> tuple[dict[str, bytes], dict[str, bytes], dict[str, int]]:
    """Return annotations, photographs, and how many of them belong to each domain."""
    spec = SETS["terra_incognita"]
    kinds = [*spec.classes, "car"]
    images: dict[str, tuple[int, list[str]]] = {}
    for place in (38, 43, 46, 100, 7):
        for number, kind in enumerate([*spec.classes, *spec.classes, "car"]):
            images[f"{place}-{number}.jpg"] = (place, [kind])
    images["38-0.jpg"] = (38, ["bird", "bird", "cat", "car"])  # two kinds that count
    names = sorted(images)
    half = {name: images[name] for name in names[::2]}
    rest = {name: images[name] for name in names[1::2]}
    annotations = {
        "eccv_18_annotation_files/train_annotations.json": annotate(half, kinds),
        "eccv_18_annotation_files/cis_val_annotations.json": annotate(rest, kinds),
    }
    photographs = {f"eccv_18_all_images_sm/{name}": name.encode() for name in names}
    counts = {"location_100": 20, "location_38": 21, "location_43": 20, "location_46": 20}
    return annotations, photographs, counts


@contextmanager
def published(
    monkeypatch: pytest.MonkeyPatch, contents: list[bytes], counts: dict[str, int]
) -> Iterator[None]:
    """Serve two archives in the place of LILA's."""
    with serve(contents[0]) as first, serve(contents[1]) as second:
        remote = tuple(
            RemoteFile(file.name, (f"{server.address}/plain",), len(server.content), None, True)
            for file, server in zip(SETS["terra_incognita"].files, (first, second), strict=True)
        )
        spec = replace(SETS["terra_incognita"], files=remote, domains=counts)
        monkeypatch.setitem(SETS, "terra_incognita", spec)
        yield


@pytest.fixture
def pack(tmp_path: Path) -> Callable[[dict[str, bytes]], bytes]:
    return lambda files: to_tar(files, tmp_path / "packed.tar.gz", "w:gz").read_bytes()


def test_camera_traps_are_fetched_and_sorted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pack: Callable[[dict[str, bytes]], bytes],
) -> None:
    annotations, photographs, counts = make_traps()
    contents = [pack(annotations), pack(photographs)]
    root = tmp_path / "root"
    with published(monkeypatch, contents, counts):
        place = data.get("terra_incognita", root)
    found = read_tree(place)
    assert len(found) == sum(counts.values())
    assert found["location_38/bird/38-0.jpg"] == found["location_38/cat/38-0.jpg"] == b"38-0.jpg"
    assert "location_46/squirrel/46-19.jpg" in found
    assert not any("location_7" in name or "/car/" in name for name in found)
    assert list((root / ".downloads").glob("*.gz")) == []
    assert SETS["terra_incognita"].licence == "CDLA-Permissive-1.0"


def test_camera_traps_that_are_not_as_published(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pack: Callable[[dict[str, bytes]], bytes],
) -> None:
    annotations, photographs, counts = make_traps()
    more = {**counts, "location_38": 22}
    with (
        published(monkeypatch, [pack(annotations), pack(photographs)], more),
        warns("set_differs") as caught,
    ):
        data.get("terra_incognita", tmp_path / "a")
    (warning,) = caught
    about = [names_and_numbers(line) for line in warning.differences]
    assert about == [["location_38", "21", "22"]]
    annotated, pictured = (file.name for file in SETS["terra_incognita"].files)
    photographs.pop("eccv_18_all_images_sm/46-3.jpg")
    with (
        published(monkeypatch, [pack(annotations), pack(photographs)], counts),
        raises("wrong_content", path=tmp_path / "b" / ".downloads" / pictured),
    ):
        data.get("terra_incognita", tmp_path / "b")
    assert not (tmp_path / "b" / "terra_incognita").exists()
    for broken, code, place in (
        ({"a.json": b"{}"}, "unreadable_file", f"{annotated}/a.json"),
        ({"a.txt": b""}, "wrong_content", annotated),
    ):
        root = tmp_path / code
        with (
            published(monkeypatch, [pack(broken), pack(photographs)], counts),
            raises(code, path=root / ".downloads" / place),
        ):
            data.get("terra_incognita", root)
