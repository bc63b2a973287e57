"""Corrupted versions of sets with masks: on the fly and on disk, the same pixels."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from acclimate import data
from acclimate.cli.main import app
from acclimate.corruptions import apply
from acclimate.data import SETS, FolderStore, load
from acclimate.data.copies import FolderCounts
from tests.codes import check_coded, raises
from tests.images import write_images
from tests.segmentation.samples import COUNTS, about, make_camvid, make_folder, make_uneven


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETS, "camvid", replace(SETS["camvid"], splits=COUNTS))


def read_all(images: object) -> tuple[torch.Tensor, torch.Tensor]:
    assert isinstance(images, FolderStore)
    return next(images.batches([torch.arange(len(images))]))


def corrupt_masks(name: str, out: Path, names: list[str], **options: object) -> FolderCounts:
    counts = data.corrupt(name, names, [2], out=out, split="test", **options)
    assert isinstance(counts, FolderCounts)
    return counts


def test_draws_depend_on_name_and_seed_alone(tmp_path: Path) -> None:
    make_camvid(tmp_path / "camvid")
    clean, labels = read_all(load("camvid", "train", root=tmp_path))
    noisy, same = read_all(
        load("camvid", "train", root=tmp_path, corruption="gaussian_noise", severity=3)
    )
    assert torch.equal(labels, same)
    one = load("camvid", "train", root=tmp_path, n=1, corruption="gaussian_noise", severity=3)
    assert torch.equal(read_all(one)[0][0], noisy[0])
    other = load("camvid", "train", root=tmp_path, corruption="gaussian_noise", severity=3, seed=1)
    assert not torch.equal(read_all(other)[0], noisy)
    place = int.from_bytes(hashlib.sha256(b"train/0002").digest()[:8], "little") // 2
    pixels = clean[2].permute(1, 2, 0).numpy()[None]
    expected = apply(pixels, "gaussian_noise", 3, 0, place, scale=True)[0]
    assert np.array_equal(noisy[2].permute(1, 2, 0).numpy(), expected)


def test_lengths_follow_the_size_of_the_image() -> None:
    """A blur of an image twice as large reaches twice as far."""
    scenes = load("builtin-scenes", "test", n=1, corruption="defocus_blur")
    domain, clean = scenes.to_domain(), load("builtin-scenes", "test", n=1).to_domain()
    assert domain.name == "defocus_blur"
    unscaled = apply(clean.x, "defocus_blur", 5, scale=False)
    assert not np.array_equal(domain.x, unscaled)
    assert np.array_equal(domain.x, apply(clean.x, "defocus_blur", 5, scale=True))
    assert np.array_equal(domain.y, clean.y)


def test_copies_on_disk_are_what_is_made_on_the_fly(tmp_path: Path) -> None:
    make_camvid(tmp_path / "camvid")
    out = tmp_path / "camvid-c"
    counts = corrupt_masks("camvid", out, ["fog", "contrast"], root=tmp_path)
    assert counts.n_written == 4
    for name in ("fog", "contrast"):
        x, y = read_all(load("camvid", "test", path=out / name / "2"))
        spoiled, labels = read_all(
            load("camvid", "test", root=tmp_path, corruption=name, severity=2)
        )
        assert torch.equal(x, spoiled)
        assert torch.equal(y, labels)
    (out / "fog" / "2" / "test" / "0001.png").unlink()
    again = corrupt_masks("camvid", out, ["fog"], root=tmp_path)
    assert (again.n_written, again.n_present) == (1, 1)
    with raises("made_differently", path=out / "fog" / "2", differences={"seed": (0, 1)}):
        corrupt_masks("camvid", out, ["fog"], root=tmp_path, seed=1)


def test_copies_of_a_folder_of_ones_own_know_their_classes(tmp_path: Path) -> None:
    base = make_folder(tmp_path / "mine")
    data.corrupt(str(base), ["contrast"], out=tmp_path / "spoiled")
    images = load(str(tmp_path / "spoiled" / "contrast" / "5"))
    assert images.classes == ("one", "two", "three")
    with raises("inside_input", path=base / "spoiled"):
        data.corrupt(str(base), ["contrast"], out=base / "spoiled")


def test_what_does_not_exist_is_refused(tmp_path: Path) -> None:
    make_camvid(tmp_path / "camvid")
    known = {"name": "fogg", "known": lambda names: "fog" in names}
    with raises("unknown_name", kind="corruption", **known):
        load("camvid", "val", root=tmp_path, corruption="fogg")
    with raises("out_of_range", option="severities", found=(6,)):
        load("camvid", "val", root=tmp_path, corruption="fog", severity=6)


def test_the_command_line(tmp_path: Path) -> None:
    make_camvid(tmp_path / "camvid")
    words = ["data", "corrupt", "camvid", "--name", "contrast", "--split", "test", "--workers", "1"]
    place = ["--data-dir", str(tmp_path)]
    out = tmp_path / "spoiled"
    result = CliRunner().invoke(app, [*words, *place, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert len(list(out.glob("contrast/5/test/*.png"))) == COUNTS["test"]
    refused = CliRunner().invoke(app, [*words, *place])
    check_coded(refused.exception, "missing_option", option="out")
    checked = CliRunner().invoke(app, ["data", "check", "camvid", *place])
    assert checked.exit_code == 0, checked.output
    assert "Nothing is wrong" in checked.stdout


def test_masks_of_ones_own_are_not_corrupted(tmp_path: Path) -> None:
    """Whatever lies beside the images of a folder is copied, each in its size."""
    base = make_folder(tmp_path / "mine", ("train", "val"))
    make_uneven(base)
    words = ["data", "corrupt", str(base), "--name", "contrast", "--workers", "1"]
    out = tmp_path / "spoiled"
    refused = CliRunner().invoke(app, [*words, "--out", str(out)])
    masks = [base / "val" / "masks" / "a" / f"{number}.png" for number in range(3)]
    check_coded(refused.exception, "faulty_data", faults=about(masks, "99"))
    result = CliRunner().invoke(app, [*words, "--ignore-label", "99", "--out", str(out)])
    assert result.exit_code == 0, result.output
    copies = out / "contrast" / "5"
    assert not (copies / "train").exists()
    for path in (base / "val" / "masks" / "a").iterdir():
        mask = copies / "val" / "masks" / "a" / path.name
        assert mask.read_bytes() == path.read_bytes()
        image = Image.open(copies / "val" / "images" / "a" / path.name)
        assert image.size == Image.open(path).size
    images = load(str(copies), "val", size=(16, 24), ignore_label=99)
    assert len(images) == 3
    for option in (["--size", "8"], ["--resize", "8"]):
        refused = CliRunner().invoke(app, [*words, *option, "--out", str(out)])
        check_coded(refused.exception, "not_applicable", option=option[0].removeprefix("--"))


@pytest.mark.parametrize("option", [["--split", "val"], ["--ignore-label", "9"]])
def test_what_is_for_masks_is_refused_without_them(option: list[str], tmp_path: Path) -> None:
    photos = write_images(tmp_path / "photos", {"": 1})
    words = ["data", "corrupt", str(photos), *option, "--out", str(tmp_path / "out")]
    refused = CliRunner().invoke(app, words)
    name = option[0].removeprefix("--").replace("-", "_")
    check_coded(refused.exception, "not_applicable", option=name)
    assert not (tmp_path / "out").exists()
