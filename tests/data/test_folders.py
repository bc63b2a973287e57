"""Sets of image files: copies in the layout of ImageNet-C, and how they are read."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from acclimate import data
from acclimate.corruptions import apply
from acclimate.data import check
from acclimate.data.copies import corrupt_folder
from acclimate.data.corruptor import CopyRequest
from acclimate.errors import AcclimateError, BadInput
from tests.codes import raises
from tests.images import write_images


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_images(tmp_path / "photos", {"cat": 3, "dog": 3}, size=32)


class TestFolders:
    def test_copies_keep_the_layout_and_go_on(self, photos, tmp_path, workers):
        (photos / "cat" / "torn.jpg").write_bytes(b"no image")
        out = tmp_path / "out"
        counts = corrupt_folder(photos, out, CopyRequest(["fog"], [2], seed=1))
        assert (counts.n_written, counts.n_present) == (6, 0)
        assert list(counts.unreadable) == [photos / "cat" / "torn.jpg"]
        listed = sorted(photos.rglob("*.*"), key=lambda path: path.relative_to(photos).as_posix())
        for place, path in enumerate(listed):
            if path.suffix == ".png":
                copy = out / "fog" / "2" / path.relative_to(photos)
                clean = np.asarray(Image.open(path))[None]
                wanted = apply(clean, "fog", 2, 1, place)[0]
                assert np.array_equal(np.asarray(Image.open(copy)), wanted)
        (out / "fog" / "2" / "dog" / "001.png").unlink()
        counts = corrupt_folder(photos, out, CopyRequest(["fog"], [2], seed=1, workers=workers))
        assert (counts.n_written, counts.n_present, len(counts.unreadable)) == (1, 5, 1)
        assert not list(out.rglob("*.part"))

    def test_mixtures_are_refused(self, photos, tmp_path):
        corrupt_folder(photos, tmp_path / "out", CopyRequest(["brightness"], [1]))
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "a.txt").write_text("")
        (photos / "cat" / "000.jpg").write_bytes((photos / "cat" / "000.png").read_bytes())
        with raises("duplicate", BadInput, name="cat/000.png"):
            corrupt_folder(photos, tmp_path / "other", CopyRequest(["brightness"], [1]))
        (photos / "cat" / "000.jpg").unlink()
        for out, seed, code, more in (
            (tmp_path / "out", 1, "made_differently", {"differences": {"seed": (0, 1)}}),
            (tmp_path / "full", 0, "other_content", {}),
            (photos / "copies", 0, "inside_input", {}),
        ):
            with raises(code, BadInput, path=out, **more):
                corrupt_folder(photos, out, CopyRequest(["brightness"], [1], seed))
        (photos / "cat" / "000.png").unlink()
        other_names = {"listing_sha256", "of"}
        with raises("made_differently", differences=lambda found: set(found) == other_names):
            corrupt_folder(photos, tmp_path / "out", CopyRequest(["brightness"], [1]))

    def test_other_images_of_the_same_names_are_refused(self, photos, tmp_path):
        out, other = tmp_path / "out", tmp_path / "other"
        corrupt_folder(photos, out, CopyRequest(["brightness"], [1]))
        shutil.copytree(photos, other)
        counts = corrupt_folder(
            other, out, CopyRequest(["brightness"], [1])
        )  # moved, they are the same
        assert (counts.n_written, counts.n_present) == (0, 6)
        Image.new("RGB", (32, 32)).save(other / "cat" / "000.png")
        with raises("made_differently", path=out, differences=lambda found: set(found) == {"of"}):
            corrupt_folder(other, out, CopyRequest(["brightness"], [1]))
        # Ledgers of older versions do not say how large the files were.
        card = json.loads((out / "generated.json").read_text())
        card.pop("of")
        (out / "generated.json").write_text(json.dumps(card))
        assert corrupt_folder(photos, out, CopyRequest(["brightness"], [1])).n_present == 6

    def test_the_message_names_both_folders(self, photos, tmp_path):
        corrupt_folder(photos, tmp_path / "out", CopyRequest(["brightness"], [1]))
        other = write_images(tmp_path / "other", {"cat": 1}, size=32)
        with raises("made_differently") as caught:
            corrupt_folder(other, tmp_path / "out", CopyRequest(["brightness"], [1]))
        assert str(photos) in str(caught.value)
        assert str(other) in str(caught.value)

    def test_a_folder_is_gone_through_in_one_order(self, photos, tmp_path):
        loaded = data.Batches(data.load("image-folder", path=photos), 4, seed=None)
        assert loaded.description["n"] == 6
        assert loaded.description["source"] == "folder"
        passes = [list(loaded), list(loaded)]
        for first, second in zip(*passes, strict=True):
            assert torch.equal(first[0], second[0])
            assert torch.equal(first[1], second[1])
        assert torch.cat([y for _, y in passes[0]]).tolist() == [0, 0, 0, 1, 1, 1]
        first = torch.from_numpy(
            np.asarray(Image.open(photos / "cat" / "000.png")) / np.float32(255)
        )
        assert torch.equal(passes[0][0][0][0], first.permute(2, 0, 1))
        mixed = data.Batches(data.load("image-folder", path=photos), 200, seed=1)
        labels = [y.tolist() for _, y in mixed]
        assert labels != [[0, 0, 0, 1, 1, 1]]
        assert sorted(labels[0]) == [0, 0, 0, 1, 1, 1]
        assert labels == [y.tolist() for _, y in mixed]

    def test_imagenet_layouts(self, photos, tmp_path, monkeypatch):
        for name in ("imagenet", "imagenetc"):
            monkeypatch.setitem(data.SETS, name, replace(data.SETS[name], n_classes=2))
        place = tmp_path / "imagenet" / "val"
        place.parent.mkdir()
        photos.rename(place)
        clean = data.load("imagenet", root=tmp_path)
        assert clean.classes == ("cat", "dog")
        assert (clean.size, clean.resize) == ((224, 224), (256, 256))
        assert (clean.description["size"], clean.description["resize"]) == (224, 256)
        small = data.load("imagenet", root=tmp_path, size=16)
        assert (small.size, small.resize) == ((16, 16), None)
        inner = data.load("imagenet", root=tmp_path, size=16, resize=20)
        with Image.open(inner.paths[0]) as image:
            larger = np.asarray(image.resize((20, 20), Image.Resampling.BILINEAR))
        expected = torch.from_numpy(larger[2:18, 2:18] / np.float32(255)).permute(2, 0, 1)
        assert torch.equal(
            torch.from_numpy(inner[[0]][0] / np.float32(255)).permute(2, 0, 1), expected
        )
        corrupt_folder(place, tmp_path / "imagenetc-generated", CopyRequest(["fog"], [5]))
        made = data.load("imagenetc", root=tmp_path, corruption="fog", severity=5)
        assert made.description["source"] == "generated"
        assert len(made.paths) == 6
        assert (made.size, made.resize) == ((32, 32), None)  # as the copies are
        (tmp_path / "imagenetc-generated" / "generated.json").unlink()
        (tmp_path / "imagenetc-generated").rename(tmp_path / "imagenetc")
        found = data.load("imagenetc", root=tmp_path, corruption="fog", severity=5)
        assert found.description["source"] == "folder"
        assert (found.size, found.resize) == ((224, 224), None)  # published as crops of that size
        report = check("imagenetc", tmp_path)
        assert report.facts["fog"] == "severity 5"
        assert report.problems == []
        monkeypatch.setitem(data.SETS, "imagenet", replace(data.SETS["imagenet"], n_classes=1000))
        with raises("count_mismatch", BadInput, expected=1000, found=2):
            data.load("imagenet", root=tmp_path)
        named = data.load("imagenet", root=tmp_path, classes=["ant", "cat", "dog"])
        assert sorted({label for _, y in data.Batches(named) for label in y.tolist()}) == [1, 2]

    def test_unreadable_images_are_counted(self, photos, tmp_path):
        (photos / "cat" / "torn.png").write_bytes((photos / "cat" / "000.png").read_bytes()[:200])
        (photos / "dog" / "text.jpg").write_text("no image")
        report = check("image-folder", path=photos)
        assert report.facts["images"] == "8"
        assert report.facts["unreadable"] == "2"
        assert len(report.problems) == 2

    def test_mistakes_are_told_apart(self, tmp_path):
        load, fog = data.load, {"corruption": "fog"}
        place = tmp_path / "imagenetc" / "fog" / "1"
        for call, code, more in (
            (lambda: load("image-folder"), "missing_option", {"option": "path"}),
            (
                lambda: load("imagenetc", root=tmp_path),
                "missing_option",
                {"option": "corruption"},
            ),
            (
                lambda: load("imagenetc", root=tmp_path, **fog),
                "missing_option",
                {"option": "severity"},
            ),
            (
                lambda: load("imagenet", root=tmp_path),
                "not_found",
                {"path": tmp_path / "imagenet"},
            ),
            (
                lambda: load("imagenetc", root=tmp_path, severity=1, **fog),
                "not_found",
                {"path": place},
            ),
            (lambda: check("imagenet", tmp_path), "not_found", {"path": tmp_path / "imagenet"}),
            (lambda: check("image-folder", tmp_path), "missing_option", {"option": "path"}),
        ):
            with raises(code, BadInput, **more):
                call()

    def test_the_message_says_where_the_set_is_published(self, tmp_path):
        fog = {"corruption": "fog", "severity": 1}
        for call, words in (
            (lambda: data.load("imagenet", root=tmp_path), "image-net.org"),
            (lambda: check("imagenet", tmp_path), "image-net.org"),
            (
                lambda: data.load("imagenetc", root=tmp_path, **fog),
                "zenodo.org/records/2235448",
            ),
        ):
            with pytest.raises(AcclimateError) as caught:
                call()
            assert words in str(caught.value)
