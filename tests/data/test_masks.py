"""Sets with masks: layouts, ids, and what is wrong with them."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from acclimate import data
from acclimate.data import SETS, FolderStore, check, load
from acclimate.data.mask_files import IGNORE
from tests.codes import raises, warns
from tests.segmentation.samples import (
    COUNTS,
    SIZE,
    about,
    make_camvid,
    make_cityscapes,
    make_folder,
)

CAMVID, CITYSCAPES = SETS["camvid"], SETS["cityscapes"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETS, "camvid", replace(CAMVID, splits=COUNTS))
    monkeypatch.setitem(SETS, "cityscapes", replace(CITYSCAPES, splits={"train": 2, "val": 1}))


def all_of(images: object) -> tuple[torch.Tensor, torch.Tensor]:
    assert isinstance(images, FolderStore)
    return next(images.batches([torch.arange(len(images))]))


def test_camvid_is_read_and_its_void_is_ignored(tmp_path: Path) -> None:
    base = make_camvid(tmp_path / "camvid")
    images = load("camvid", "val", root=tmp_path)
    x, y = all_of(images)
    assert x.shape == (2, 3, *SIZE)
    assert x.dtype == torch.uint8
    for index, name in enumerate(("0000", "0001")):
        values = np.array(Image.open(base / "valannot" / f"{name}.png"))
        expected = np.where(values == 11, 255, values)
        assert np.array_equal(y[index].numpy(), expected)
        pixels = np.array(Image.open(base / "val" / f"{name}.png"))
        assert np.array_equal(x[index].permute(1, 2, 0).numpy(), pixels)
    assert (y == IGNORE).any()
    assert images.classes[0] == "sky"
    assert len(images.palette) == len(images.classes) == 11


def test_cityscapes_has_nineteen_train_ids(tmp_path: Path) -> None:
    """The pairs are those of the evaluation in the data set's paper, written out once more."""
    base = make_cityscapes(tmp_path / "cityscapes")
    evaluated = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]
    images = load("cityscapes", "val", root=tmp_path)
    _, y = all_of(images)
    values = np.array(Image.open(next(base.glob("gtFine/val/*/*.png"))))
    for value, label in zip(values.flatten().tolist(), y.flatten().tolist(), strict=True):
        assert label == (evaluated.index(value) if value in evaluated else 255)
    assert images.classes[13] == "car"


def test_train_ids_are_read_where_there_are_no_label_ids(tmp_path: Path) -> None:
    base = make_cityscapes(tmp_path / "cityscapes", "labelTrainIds", range(19))
    _, y = all_of(load("cityscapes", "train", root=tmp_path))
    values = [np.array(Image.open(path)) for path in sorted(base.glob("gtFine/train/*/*.png"))]
    assert np.array_equal(y.numpy(), np.stack(values))


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    base = make_folder(tmp_path / "mine", ("train", "val"))
    images = load(str(base), "val")
    _, y = all_of(images)
    assert set(y.unique().tolist()) == {0, 1, 2, 255}
    assert images.classes == ("one", "two", "three")
    with raises("unknown_name", kind="split", name="test", known=("train", "val")):
        load(str(base), "test")
    (base / "classes.txt").unlink()
    with raises("not_found", path=base / "classes.txt"):
        load(str(base), "val")
    assert len(load(str(base), "val", classes=("a", "b", "c"))) == 3


def test_a_size_is_brought_about_without_new_labels(tmp_path: Path) -> None:
    base = make_folder(tmp_path / "mine")
    x, y = all_of(load(str(base), size=(8, 12)))
    assert x.shape[2:] == y.shape[1:] == (8, 12)
    assert set(y.unique().tolist()) <= {0, 1, 2, 255}


def test_another_label_can_be_ignored(tmp_path: Path) -> None:
    base = make_folder(tmp_path / "mine")
    masks = sorted(base.glob("masks/a/*.png"))
    for path in masks:
        values = np.array(Image.open(path))
        Image.fromarray(np.where(values == 255, 200, values).astype(np.uint8)).save(path)
    with raises("faulty_data", faults=about(masks, "200", "--ignore-label", "ignore_label=")):
        load(str(base)).verify()
    images = load(str(base), ignore_label=200)
    images.verify()
    assert images.description["ignore_label"] == 200
    assert set(all_of(images)[1].unique().tolist()) == {0, 1, 2, IGNORE}
    assert check("mask-folder", tmp_path, base, ignore_label=200).problems == []
    assert len(check("mask-folder", tmp_path, base).problems) == 3
    for wrong in (-1, 256):
        with raises("out_of_range", option="ignore_label", found=wrong):
            load(str(base), ignore_label=wrong)
    make_camvid(tmp_path / "camvid")
    with raises("not_applicable", option="ignore_label"):
        load("camvid", "val", tmp_path, ignore_label=3)


@pytest.mark.parametrize("lacking", ["train", "trainannot"])
def test_a_missing_pair_is_refused_by_name(tmp_path: Path, lacking: str) -> None:
    base = make_camvid(tmp_path / "camvid")
    (base / lacking / "0001.png").unlink()
    left = base / ("trainannot" if lacking == "train" else "train") / "0001.png"
    with raises(
        "faulty_data", faults=about([left], "no image" if lacking == "train" else "no mask")
    ):
        load("camvid", "train", root=tmp_path)
    report = check("camvid", tmp_path)
    assert any(str(left) in problem for problem in report.problems)
    assert any("2 pairs here, 3 as published" in problem for problem in report.problems)


def test_a_whole_pair_that_is_missing_is_warned_of(tmp_path: Path) -> None:
    base = make_camvid(tmp_path / "camvid")
    for folder in ("val", "valannot"):
        (base / folder / "0001.png").unlink()
    with warns("set_differs", differences={"val": (2, 1)}):
        assert len(load("camvid", "val", root=tmp_path)) == 1


def test_all_faults_of_the_files_are_listed(tmp_path: Path) -> None:
    base = make_camvid(tmp_path / "camvid")
    masks = base / "trainannot"
    values = np.array(Image.open(masks / "0000.png"))
    values[3, 4:6] = (77, 200)
    Image.fromarray(values).save(masks / "0000.png")
    whole = (masks / "0001.png").read_bytes()
    (masks / "0001.png").write_bytes(whole[: len(whole) - 40])
    Image.fromarray(np.full(SIZE, 11, np.uint8)).save(masks / "0002.png")
    images = load("camvid", "train", root=tmp_path)
    paths = [masks / f"000{number}.png" for number in range(3)]
    with raises("faulty_data", faults=about(paths)) as caught:
        images.verify()
    foreign, broken, empty = ([fault] for fault in caught.value.faults)
    assert about(paths[:1], "2 pixels", "77, 200", "0–11")(foreign)
    assert about(paths[1:2], "cannot be read")(broken)
    assert about(paths[2:], "all pixels are ignored")(empty)
    # An image without a class can be measured on; the others cannot be read as labels.
    with raises("faulty_data", faults=(*foreign, *broken)):
        images.to_domain()
    assert check("camvid", tmp_path).problems == list(caught.value.faults)


def test_sizes_that_differ_are_found_from_headers(tmp_path: Path) -> None:
    base = make_camvid(tmp_path / "camvid")
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(base / "valannot" / "0000.png")
    (base / "valannot" / "0001.png").write_bytes(b"no image")
    small, broken = base / "valannot" / "0000.png", base / "valannot" / "0001.png"
    with raises("faulty_data", faults=about([small, broken])) as caught:
        load("camvid", "val", root=tmp_path)
    assert about([small], "8×8", "0000.png", "16×24")(caught.value.faults[:1])
    assert about([broken], "cannot be read")(caught.value.faults[1:])
    assert len(check("camvid", tmp_path).problems) == 2


def test_coloured_masks_are_refused(tmp_path: Path) -> None:
    base = make_camvid(tmp_path / "camvid")
    mask = base / "valannot" / "0000.png"
    Image.new("RGB", SIZE[::-1]).save(mask)
    with raises("faulty_data", faults=about([mask], "RGB")):
        load("camvid", "val", root=tmp_path).verify()


def test_masks_of_one_bit_are_read_and_those_of_sixteen_refused(tmp_path: Path) -> None:
    base = make_folder(tmp_path / "mine")
    path = base / "masks" / "a" / "0.png"
    values = np.random.default_rng(0).integers(0, 2, SIZE).astype(np.uint8)
    Image.fromarray(values * 255).convert("1").save(path)
    assert Image.open(path).mode == "1"
    assert np.array_equal(all_of(load(str(base)))[1][0].numpy(), values)
    Image.fromarray(values.astype(np.uint16)).save(path)
    with raises("faulty_data", faults=about([path], "16 bits", "8 bits")):
        load(str(base)).verify()


def test_too_many_images_are_refused_with_the_option(tmp_path: Path) -> None:
    base = make_folder(tmp_path / "mine", ("val",))
    with raises("out_of_range", option="images", found=9):
        load(str(base), n=9)


def test_it_is_put_in_place_from_an_archive_or_not_at_all(tmp_path: Path) -> None:
    base = make_camvid(tmp_path / "source" / "CamVid")
    archive = tmp_path / "camvid.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(base, "SegNet/CamVid")
    root = tmp_path / "root"
    place = data.get("camvid", root, archive)
    assert check("camvid", root).problems == []
    assert data.find_state("camvid", root) == "imported from camvid.tar"
    copied = {path.relative_to(place).as_posix() for path in place.rglob("*.png")}
    assert copied == {path.relative_to(base).as_posix() for path in base.rglob("*.png")}
    (base / "train" / "0000.png").unlink()
    with raises("faulty_data") as caught:
        data.get("camvid", tmp_path / "other", base)
    lonely, counts = caught.value.faults
    assert "trainannot/0000.png has no image" in Path(lonely).as_posix()
    assert "2 pairs here, 3 as published" in counts
    assert not (tmp_path / "other" / "camvid").exists()
    with raises("not_fetchable", name="camvid"):
        data.get("camvid", tmp_path / "other")


def test_every_set_with_masks_is_in_the_catalog() -> None:
    named = {name for name, entry in SETS.items() if entry.has_masks}
    assert named == {"camvid", "cityscapes", "mask-folder", "builtin-scenes"}
