"""Image folders: what is listed, how images are read, and how batches are made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from acclimate.data import open_folder
from acclimate.functional.inputs import Normalization
from acclimate.streams import images as images_module
from acclimate.streams.folder import FolderStream, list_images, read_classes
from acclimate.streams.images import common_size, read_image
from acclimate.zoo.torchvision_compat import import_torchvision
from tests.codes import raises
from tests.images import labelled_batches, write_images


def save(path: Path, pixels: np.ndarray | Image.Image, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(path, **options)
    return path


def noise(seed: int, height: int = 8, width: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    return write_images(tmp_path, {"class0": 7, "class1": 7, "class2": 6})


# Listing --------------------------------------------------------------------------------------


def test_images_are_listed_by_path_whatever_the_nesting_and_the_case_of_the_ending(
    tmp_path: Path,
) -> None:
    for name in ("b.PNG", "a/z.jpg", "a/deep/er/y.bmp", "c.tif", "d.webp", "e.ppm", "f.JPEG"):
        save(tmp_path / name, noise(0))
    (tmp_path / "notes.txt").write_text("no image")
    save(tmp_path / ".hidden.png", noise(0))
    save(tmp_path / ".cache" / "thumb.png", noise(0))
    found = [path.relative_to(tmp_path).as_posix() for path in list_images(tmp_path)]
    assert found == ["a/deep/er/y.bmp", "a/z.jpg", "b.PNG", "c.tif", "d.webp", "e.ppm", "f.JPEG"]


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    root = tmp_path / "root"
    save(tmp_path / "elsewhere" / "x.png", noise(0))
    save(root / "here.png", noise(0))
    (root / "there").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "elsewhere" / "back").symlink_to(root, target_is_directory=True)
    found = [path.relative_to(root).as_posix() for path in list_images(root)]
    assert found == ["here.png", "there/x.png"]


def test_missing_folders_are_refused(tmp_path: Path) -> None:
    with raises("not_a_folder", path=tmp_path / "nowhere"):
        list_images(tmp_path / "nowhere")


def test_where_there_is_no_image_the_message_names_the_kinds_that_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    with raises("no_images", path=tmp_path) as caught:
        list_images(tmp_path)
    assert ".bmp" in str(caught.value)


# Reading --------------------------------------------------------------------------------------


def test_pixels_of_an_image_of_the_right_size_are_not_touched(tmp_path: Path) -> None:
    pixels = noise(1, 5, 9)
    assert np.array_equal(read_image(save(tmp_path / "x.png", pixels), (5, 9)), pixels)


def test_every_kind_of_image_becomes_rgb(tmp_path: Path) -> None:
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    three = np.repeat(grey[..., None], 3, axis=2)
    assert np.array_equal(read_image(save(tmp_path / "grey.png", grey), (8, 8)), three)
    deep = grey.astype(np.uint16) * 257  # the same greys in 16 bits
    assert np.array_equal(read_image(save(tmp_path / "deep.png", deep), (8, 8)), three)
    assert np.array_equal(read_image(save(tmp_path / "deep.tif", deep), (8, 8)), three)
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    read = read_image(save(tmp_path / "palette.png", palette), (8, 8))
    assert (read == [10, 20, 30]).all()
    alpha = np.dstack([noise(2), np.full((8, 8), 128, np.uint8)])
    read = read_image(save(tmp_path / "alpha.png", alpha), (8, 8))
    assert np.array_equal(read, noise(2))


def test_the_orientation_in_a_photograph_is_respected(tmp_path: Path) -> None:
    upright = noise(3, 4, 6)
    exif = Image.Exif()
    exif[0x0112] = 6  # stored turned: to be shown turned by 90° clockwise
    stored = np.rot90(upright)  # counter-clockwise
    path = save(tmp_path / "x.png", np.ascontiguousarray(stored), exif=exif)
    assert common_size([path]) == (4, 6)
    assert np.array_equal(read_image(path, (4, 6)), upright)


@pytest.mark.parametrize("turned", [False, True])
def test_the_shorter_side_is_matched_and_the_centre_cut_out(tmp_path: Path, turned: bool) -> None:
    thirds = np.zeros((20, 60, 3), np.uint8)
    thirds[:, :20, 0] = thirds[:, 20:40, 1] = thirds[:, 40:, 2] = 200
    if turned:
        thirds = np.ascontiguousarray(thirds.swapaxes(0, 1))
    read = read_image(save(tmp_path / "x.png", thirds), (10, 10))
    assert read.shape == (10, 10, 3)
    inner = read[2:-2] if turned else read[:, 2:-2]  # resampling mixes at the border
    assert (inner == [0, 200, 0]).all()


def test_other_sides_are_covered_too(tmp_path: Path) -> None:
    """The resized size, worked out by hand, and Pillow's own resampling are the oracle."""
    path = save(tmp_path / "x.png", noise(4, 31, 50))
    # To cover 10 × 20 (height × width): the width is matched, the height 31 · 20 / 50 = 12.4.
    resized = Image.open(path).resize((20, 12), Image.Resampling.BILINEAR)
    assert np.array_equal(read_image(path, (10, 20)), np.asarray(resized)[1:11])


@pytest.mark.parametrize(
    ("shape", "resized"),
    # Shorter side to 256, the other rounded down, by hand.
    [((300, 401), (256, 342)), ((401, 300), (342, 256)), ((224, 224), (256, 256))],
)
def test_imagenet_is_resized_to_256_and_cropped_to_224(
    tmp_path: Path, shape: tuple[int, int], resized: tuple[int, int]
) -> None:
    path = save(tmp_path / "x.png", noise(5, *shape))
    larger = Image.open(path).resize(resized[::-1], Image.Resampling.BILINEAR)
    top, left = ((side - 224) // 2 for side in resized)
    expected = np.asarray(larger)[top : top + 224, left : left + 224]
    assert np.array_equal(read_image(path, (224, 224), (256, 256)), expected)


@pytest.mark.slow  # torchvision takes seconds to import
def test_the_crop_is_that_of_torchvision(tmp_path: Path) -> None:
    transforms = import_torchvision().transforms
    usual = transforms.Compose([transforms.Resize(21), transforms.CenterCrop(16)])
    for number, shape in enumerate(((33, 50), (50, 33), (47, 22), (21, 21), (18, 40))):
        path = save(tmp_path / f"{number}.png", noise(number, *shape))
        ours = read_image(path, (16, 16), (21, 21))
        assert np.array_equal(ours, np.asarray(usual(Image.open(path)))), shape


def test_folders_are_resized_before_the_crop(labelled: Path) -> None:
    path = sorted(labelled.rglob("*.png"))[0]
    expected = read_image(path, (4, 4), (6, 6))
    _, x = next(iter(FolderStream(labelled, size=4, resize=6)))
    assert np.array_equal((x[0] * 255).round().byte().permute(1, 2, 0), expected)
    assert np.array_equal(open_folder(labelled, size=4, resize=6)[[0]][0], expected)
    # The outer pixels are cut away, instead of being drawn together.
    assert not np.array_equal(expected, read_image(path, (4, 4)))
    with raises("missing_option", option="size"):
        FolderStream(labelled, resize=6)
    with raises("out_of_range", option="resize", found=(6, 6)):
        FolderStream(labelled, size=9, resize=6)


def test_absurdly_long_images_are_unreadable_instead_of_filling_the_memory(tmp_path: Path) -> None:
    path = save(tmp_path / "x.png", np.zeros((1, 20000, 3), np.uint8))
    with pytest.raises(ValueError, match="too elongated"):
        read_image(path, (224, 224))


# Streams --------------------------------------------------------------------------------------


def test_a_stream_is_the_sorted_images_in_zero_to_one(labelled: Path) -> None:
    stream = FolderStream(labelled, batch_size=7)
    batches = list(stream)
    assert [len(x) for _, x in batches] == [7, 7, 6]
    assert len(stream) == 3
    paths = [path for some, _ in batches for path in some]
    assert paths == sorted(labelled.rglob("*.png"))
    x = torch.cat([x for _, x in batches])
    assert x.dtype == torch.float32
    expected = np.stack([np.asarray(Image.open(path)) for path in paths]) / 255
    assert torch.equal(x, torch.tensor(expected).permute(0, 3, 1, 2).float())


def test_a_stream_can_be_shuffled_and_started_later(labelled: Path) -> None:
    first = FolderStream(labelled, batch_size=6, seed=1)
    again = FolderStream(labelled, batch_size=6, seed=1)
    other = FolderStream(labelled, batch_size=6, seed=2)
    assert first.paths == again.paths != other.paths
    assert sorted(first.paths) == sorted(other.paths)
    late = list(again.batches(start=2))
    early = list(first.batches())
    assert [batch.number for batch in late] == [2, 3]
    assert [batch.paths for batch in late] == [batch.paths for batch in early[2:]]


def test_images_are_normalised_after_scaling(labelled: Path) -> None:
    normal = Normalization((0.5, 0.25, 0.0), (0.5, 2.0, 1.0))
    plain = next(iter(FolderStream(labelled)))[1].double()
    x = next(iter(FolderStream(labelled, normalization=normal)))[1].double()
    for channel, (mean, std) in enumerate(((0.5, 0.5), (0.25, 2.0), (0.0, 1.0))):
        # Two operations on numbers of at most 1, each rounded by half of 2**-23, or 6e-8.
        assert torch.allclose(x[:, channel], (plain[:, channel] - mean) / std, rtol=0, atol=1e-6)


def test_sizes_must_agree_unless_one_is_given_and_the_message_names_the_odd_one(
    labelled: Path,
) -> None:
    odd = save(labelled / "class0" / "odd.png", noise(0, 8, 12))
    with raises("mixed_sizes", sizes=((8, 8), (8, 12))) as caught:
        FolderStream(labelled)
    assert str(odd) in str(caught.value)
    assert FolderStream(labelled, size=6).size == (6, 6)
    x = torch.cat([x for _, x in FolderStream(labelled, size=(4, 6))])
    assert x.shape == (21, 3, 4, 6)
    odd.unlink()
    assert FolderStream(labelled).size == (8, 8)


def test_unreadable_images_are_left_out_and_reported(labelled: Path) -> None:
    good = sorted(labelled.rglob("*.png"))
    cut = labelled / "class1" / "cut.png"
    cut.write_bytes(good[0].read_bytes()[:-60])
    empty = labelled / "class0" / "0.png"
    empty.write_bytes(b"")
    stream = FolderStream(labelled, batch_size=1)
    batches = list(stream.batches())
    assert [path for batch in batches for path in batch.paths] == good
    assert batches[0].number == 1  # batch 0 had nothing to offer
    assert set(stream.unreadable) == {cut, empty}
    assert all(stream.unreadable.values())


def test_a_folder_of_which_nothing_can_be_read_is_refused(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"no image")
    for size in (None, 8):  # noticed by the headers, or by the pixels
        with raises("unreadable_images", paths=lambda paths: paths[0] == tmp_path / "a.png"):
            list(FolderStream(tmp_path, size=size))


def test_impossible_options_are_refused(labelled: Path) -> None:
    with raises("out_of_range", option="batch_size", found=0):
        FolderStream(labelled, batch_size=0)
    with raises("out_of_range", option="size", found=(0, 0)):
        FolderStream(labelled, size=0)


def test_reading_is_one_batch_ahead_and_no_more(
    labelled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    real = images_module.try_read

    def watched(path: Path, *sizes: tuple[int, int] | None) -> object:
        asked.append(path)
        return real(path, *sizes)

    monkeypatch.setattr("acclimate.streams.folder.try_read", watched)
    stream = FolderStream(labelled, batch_size=4)
    batches = stream.batches()
    next(batches)
    batches.close()  # waits for what is being read, and asks for nothing more
    assert set(stream.paths[:4]) <= set(asked) <= set(stream.paths[:8])


# Sources --------------------------------------------------------------------------------------


def test_a_source_labels_by_folder_and_shows_every_image_once_a_pass(labelled: Path) -> None:
    source = labelled_batches(labelled, batch_size=6)
    assert source.classes == ("class0", "class1", "class2")
    expected = sorted(
        (np.asarray(Image.open(path)).tobytes(), int(path.parent.name[-1]))
        for path in labelled.rglob("*.png")
    )
    orders = []
    for _ in range(2):
        found = [
            ((image * 255).round().byte().permute(1, 2, 0).numpy().tobytes(), int(label))
            for x, y in source
            for image, label in zip(x, y, strict=True)
        ]
        assert sorted(found) == expected
        orders.append(found)
    assert orders[0] != orders[1]
    again = labelled_batches(labelled, batch_size=6)
    for order in orders:
        labels = [int(label) for _, y in again for label in y]
        assert labels == [label for _, label in order]


def test_class_names_can_be_given_in_the_order_of_the_logits(labelled: Path) -> None:
    names = ["class2", "absent", "class0", "class1"]
    source = labelled_batches(labelled, batch_size=20, classes=names)
    _, y = next(iter(source))
    assert torch.bincount(y, minlength=4).tolist() == [6, 0, 7, 7]
    found = ("class0", "class1", "class2")
    with raises("class_mismatch", expected=("class0", "other"), found=found):
        labelled_batches(labelled, classes=["class0", "other"])


def test_folders_without_classes_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "only" / "x.png", noise(0))
    with raises("too_few_classes", expected=2, found=1):
        labelled_batches(tmp_path)
    save(tmp_path / "loose.png", noise(0))
    with raises("wrong_layout", path=tmp_path):
        labelled_batches(tmp_path)


def test_class_files_are_read_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "classes.txt"
    file.write_text("\ufeffcat\n\n big dog \nÄal\n", encoding="utf-8")
    assert read_classes(file) == ["cat", "big dog", "Äal"]
    file.write_text("cat\ndog\ncat\n")
    with raises("duplicate", name="cat"):
        read_classes(file)
    file.write_text("\n")
    with raises("malformed_file", path=file):
        read_classes(file)
    file.write_bytes(b"\xff\xfe\x00")
    with raises("unreadable", path=file):
        read_classes(file)
    with raises("not_a_file", path=tmp_path / "none.txt"):
        read_classes(tmp_path / "none.txt")
