"""The command line on images with masks: prepare and adapt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from typer.testing import CliRunner, Result

import acclimate
from acclimate.artifact import Artifact
from acclimate.bench.predictions import Predictions, predict_folder
from acclimate.bench.run_folder import RunFolder
from acclimate.cli.main import app
from acclimate.data import Batches, load
from acclimate.methods.method import Method
from acclimate.streams.folder import FolderStream
from acclimate.testing.dense_models import TinyDeepLab
from acclimate.zoo.named import find_classes
from tests.codes import raises
from tests.images import write_images
from tests.segmentation.samples import (
    about,
    make_camvid,
    make_cityscapes,
    make_folder,
    make_uneven,
)

FOUR = "one\ntwo\nthree\nfour\n"
MODEL = ("--model", "tests.segmentation.test_cli_masks:tiny_net", "--device", "cpu")


def tiny_net() -> TinyDeepLab:
    """Return a net with four classes that looks trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TinyDeepLab().eval()


def run(*arguments: str | Path) -> Result:
    """Run a command in this process; a failure is the error itself."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(part) for part in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    base = make_folder(tmp_path / "mine", ("train", "val", "test"), n=5)
    (base / "classes.txt").write_text(FOUR)
    return base


def test_prepare_takes_masks_where_there_are_some(pairs: Path, tmp_path: Path) -> None:
    """The artifact is that of the library on the split train."""
    out = tmp_path / "net.acclimate"
    result = run("prepare", pairs, *MODEL, "--out", out, "--samples", "5", "--seed", "3")
    assert "5 images, of whose labelled pixels" in result.output
    assert "--out predictions\n" in result.output
    source = Batches(load(str(pairs), "train"), 4, seed=3)
    expected = acclimate.prepare(
        tiny_net(),
        source,
        parts=[acclimate.Penalty(n_samples=5), "features", "accuracy", "mirror", "confidence"],
        classes=FOUR.split(),
        seed=3,
    )
    found = Artifact.load(out)
    assert found.classes == FOUR.split()
    assert found.card["input_shape"] == [3, 16, 24]
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert torch.equal(found.tensors[name], tensor)


@pytest.mark.usefixtures("without_accuracy")
def test_prepare_takes_sets_with_masks_by_name(tmp_path: Path) -> None:
    out = tmp_path / "scenes.acclimate"
    scenes = ("builtin-scenes", "--model", "builtin-scenes", "--device", "cpu")
    run("prepare", *scenes, "--out", out, "--samples", "4", "--method", "swr")
    assert Artifact.load(out).parts["features"]["n_samples"] == 100
    with raises("out_of_range", option="batch_size", found=0):
        run("prepare", *scenes, "--out", tmp_path / "b", "--batch-size", "0")


def train_on(pairs: Path, out: Path) -> tuple[str | Path, ...]:
    line = ("train", "--task", "segmentation", "--model", "builtin-scenes", "--data", pairs)
    return (*line, "--epochs", "1", "--batch-size", "5", "--device", "cpu", "--out", out)


def test_images_of_several_sizes_and_another_ignore_label_are_refused_until_they_are_given(
    pairs: Path, tmp_path: Path
) -> None:
    make_uneven(pairs)
    out = tmp_path / "net.safetensors"
    line = train_on(pairs, out)
    with raises("mixed_sizes", sizes=((16, 24), (20, 30))):
        run(*line)
    masks = [pairs / "train" / "masks" / "a" / f"{number}.png" for number in range(5)]
    with raises("faulty_data", faults=about(masks, "99")):
        run(*line, "--size", "16x24")
    with raises("malformed", option="size", found="16by24"):
        run("prepare", pairs, *MODEL, "--size", "16by24", "--out", tmp_path / "b.acclimate")
    with raises("malformed", option="size", found="8x9"):
        run("train", "--model", "resnet20", "--data", pairs, "--size", "8x9", "--out", out)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow
def test_images_of_several_sizes_and_another_ignore_label_can_be_used(
    pairs: Path, tmp_path: Path
) -> None:
    """With --size and --ignore-label, in training, preparing and measuring."""
    make_uneven(pairs)
    out = tmp_path / "net.safetensors"
    line = train_on(pairs, out)
    result = run(*line, "--size", "16x24", "--ignore-label", "99")
    assert "--size 16x24 --ignore-label 99" in " ".join(result.output.split())
    assert (
        "had ended before"
        in run(*line, "--size", "16x24", "--ignore-label", "99", "--resume").output
    )
    form = ("--model", "builtin-scenes", "--weights", out, "--size", "16x24", "--device", "cpu")
    form += ("--ignore-label", "99", "--batch-size", "2")
    run("prepare", pairs, *form, "--samples", "5", "--out", tmp_path / "a.acclimate")
    assert Artifact.load(tmp_path / "a.acclimate").card["input_shape"] == [3, 16, 24]
    measured = run(
        "eval", "--data", pairs, *form, "--method", "source,swr", "--out", tmp_path / "e"
    )
    assert "mIoU" in measured.output


def test_classes_of_trained_weights_are_compared_with_the_data(pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "net.safetensors"
    common = ("--model", "builtin-scenes", "--data", pairs, "--device", "cpu")
    run(*train_on(pairs, out))
    trained = tuple(FOUR.split())
    assert find_classes(out) == trained
    measure = ("eval", *common, "--weights", out, "--method", "source", "--batch-size", "2")
    assert "matched by position" not in run(*measure, "--out", tmp_path / "1").output
    (pairs / "classes.txt").write_text("two\none\nthree\nfour\n")
    swapped = ("two", "one", "three", "four")
    with raises("class_mismatch", found=swapped, expected=trained):
        run(*measure, "--out", tmp_path / "2")
    predict = ("adapt", pairs / "test" / "images", "--model", "builtin-scenes", "--weights", out)
    predict += ("--method", "source", "--device", "cpu", "--out", tmp_path / "masks")
    with raises("class_mismatch", found=swapped, expected=trained):
        run(*predict, "--classes", pairs / "classes.txt")
    (pairs / "classes.txt").write_text("one\ntwo\nthree\ncar\n")
    assert "matched by position" in run(*measure, "--out", tmp_path / "3").output


def test_methods_that_are_not_for_pixels_are_refused_before_anything_is_prepared(
    pairs: Path, tmp_path: Path
) -> None:
    line = ("eval", *MODEL, "--data", pairs, "--batch-size", "2", "--out", tmp_path / "e")
    with raises("method_refused", methods=("eata",), reasons=lambda found: list(found) == ["eata"]):
        run(*line, "--method", "source,eata")
    assert not (tmp_path / "e").exists()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = write_images(tmp_path / "photos", {"day0": 4, "day1": 3}, (12, 20), suffix=".jpg")
    first = root / "day0" / "000.jpg"
    Image.open(first).save(first.with_suffix(".bmp"))
    first.unlink()
    return root


def predict(photos: Path, out: Path, resume: bool = False) -> Method:
    adapted = acclimate.adapt(tiny_net(), "tent", lr=0.05)
    stream = FolderStream(photos, batch_size=2)
    predict_folder(adapted, stream, Predictions(out, resume=resume))
    return adapted


def read_all(out: Path) -> dict[str, bytes]:
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*") if p.is_file()}


def test_adapt_writes_the_masks_of_the_plain_loop(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "masks"
    result = run("adapt", photos, *MODEL, "--method", "tent", "--set", "lr=0.05", "--out", out)
    assert "7 in 4 batches" in result.output
    assert "most pixels" in result.output
    adapted = acclimate.adapt(tiny_net(), "tent", lr=0.05)
    expected = {}
    for paths, x in FolderStream(photos, batch_size=2):
        large = torch.nn.functional.interpolate(adapted(x), (12, 20), mode="bilinear")
        for path, mask in zip(paths, large.argmax(dim=1), strict=True):
            expected[path.relative_to(photos).with_suffix(".png").as_posix()] = mask
    assert read_all(out).keys() == expected.keys()
    for name, mask in expected.items():
        with Image.open(out / name) as file:
            assert file.mode == "L"
            assert np.array_equal(np.asarray(file), mask.numpy())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["masks", "photos"]
    with raises("already_exists", path=out):
        run("adapt", photos, *MODEL, "--method", "tent", "--out", out)


@pytest.mark.parametrize("what", [(Predictions, "write_masks"), (RunFolder, "append")])
def test_masks_of_a_resumed_call_are_those_of_an_uncut_one(
    what: tuple[type, str], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict(photos, tmp_path / "uncut")
    out, real, calls = tmp_path / "out", getattr(*what), []

    def crash(self: object, *given: object) -> None:
        calls.append(0)
        real(self, *given)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*what, crash)
        with pytest.raises(KeyboardInterrupt):
            predict(photos, out)
    with raises("unfinished_run", path=tmp_path / "out.part"):
        Predictions(out)
    first = out / "day0" / "000.png"
    kept = first.rename(tmp_path / "kept.png")
    with raises("file_missing", path=first):
        predict(photos, out, resume=True)
    kept.rename(first)
    adapted = predict(photos, out, resume=True)
    assert read_all(out) == read_all(tmp_path / "uncut")
    assert adapted.counts.batches == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "photos", "uncut"]


def test_masks_are_as_large_as_the_image_files_of_which_nothing_is_cut_away(
    photos: Path, tmp_path: Path
) -> None:
    """The model sees whole images of one size, and the masks lie on the files of several."""
    large, other = photos / "day1" / "002.jpg", photos / "day1" / "001.jpg"
    Image.open(large).resize((45, 18)).save(large)
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.open(other).save(other, exif=turned)
    out = tmp_path / "masks"
    run("adapt", photos, *MODEL, "--method", "norm", "--size", "15", "--out", out)
    adapted = acclimate.adapt(tiny_net(), "norm")
    sizes = set()
    for paths, x in FolderStream(photos, 15, batch_size=2, squash=True):
        small = torch.nn.functional.interpolate(adapted(x), (15, 15), mode="bilinear").argmax(1)
        for path, pixels, mask in zip(paths, x, small, strict=True):
            image = ImageOps.exif_transpose(Image.open(path))
            whole = np.asarray(image.resize((15, 15), Image.Resampling.BILINEAR))
            assert np.array_equal(np.round(pixels.numpy() * 255), whole.transpose(2, 0, 1))
            expected = Image.fromarray(mask.numpy().astype(np.uint8))
            expected = expected.resize(image.size, Image.Resampling.NEAREST)
            with Image.open(out / path.relative_to(photos).with_suffix(".png")) as file:
                assert file.size == image.size
                assert np.array_equal(np.asarray(file), np.asarray(expected))
            sizes.add(image.size)
    assert sizes == {(20, 12), (45, 18), (12, 20)}


def test_masks_beside_the_images_are_not_predicted(pairs: Path, tmp_path: Path) -> None:
    line = ("adapt", *MODEL, "--method", "norm", "--out", tmp_path / "out")
    result = run(*line, pairs / "test")
    assert "only those in" in result.stderr
    images = pairs / "test" / "images"
    expected = {p.relative_to(images).as_posix() for p in images.rglob("*.png")}
    assert len(expected) == 5
    assert read_all(tmp_path / "out").keys() == expected


def test_several_splits_are_not_predicted_and_the_message_names_the_folder_of_each(
    pairs: Path, tmp_path: Path
) -> None:
    line = ("adapt", *MODEL, "--method", "norm", "--out", tmp_path / "out")
    city = make_cityscapes(tmp_path / "city")
    for base, places in (
        (pairs, ["test/images", "train/images", "val/images"]),
        (make_camvid(tmp_path / "camvid"), ["train", "val", "test"]),
        (city, ["leftImg8bit/train", "leftImg8bit/val"]),
    ):
        with raises("wrong_layout", path=base) as caught:
            run(*line, base)
        assert str(caught.value).endswith(" or ".join(str(base / place) for place in places) + ".")
    assert not (tmp_path / "out").exists()
    run(*line, city / "leftImg8bit" / "train")
    assert len(read_all(tmp_path / "out")) == 2


def test_cropped_images_get_no_masks(photos: Path, tmp_path: Path) -> None:
    adapted, out = acclimate.adapt(tiny_net(), "tent"), Predictions(tmp_path / "out")
    with raises("missing_option", option="squash"):
        predict_folder(adapted, FolderStream(photos, 8, batch_size=2), out)
    with raises("conflicting_options", options=("resize", "squash")):
        FolderStream(photos, 8, resize=10, squash=True)
    assert adapted.counts.batches == 0


def test_an_output_that_does_not_fit_is_refused_before_anything_is_learned(
    photos: Path, tmp_path: Path
) -> None:
    adapted = acclimate.adapt(tiny_net(), "tent")
    stream = FolderStream(photos, batch_size=2)
    with raises("not_a_folder", path=tmp_path / "out.csv"):
        predict_folder(adapted, stream, Predictions(tmp_path / "out.csv"))
    with raises("count_mismatch", expected=4, found=1):
        predict_folder(adapted, stream, Predictions(tmp_path / "out"), classes=["a"])
    for place in (photos, photos / "day0", tmp_path):
        with raises("inside_input", path=place):
            predict_folder(adapted, stream, Predictions(place, force=True))
    Image.new("RGB", (20, 12)).save(photos / "day0" / "001.png")
    stream = FolderStream(photos, batch_size=2)
    with raises("duplicate", name="day0/001.png"):
        predict_folder(adapted, stream, Predictions(tmp_path / "out"))
    assert adapted.counts.batches == 0
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]
    whole = torch.nn.Sequential(tiny_net(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    adapted = acclimate.adapt(whole, "tent")
    with raises("not_a_file", path=tmp_path / "out"):
        predict_folder(adapted, FolderStream(photos / "day1"), Predictions(tmp_path / "out"))
    assert adapted.counts.batches == 0
