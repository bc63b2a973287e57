"""Folders of images in the wrong shape: what lies where it should not is told, not guessed at."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from acclimate.comparison import Request, load_data
from acclimate.data import load
from acclimate.errors import BadInput
from acclimate.streams.folder import FolderSource
from tests.cli_models import CLASSES
from tests.segmentation.samples import make_folder as make_masks
from tests.test_cli import run
from tests.test_comparison_data import make_folder

MODEL = ("--model", "tests.cli_models:tiny_cnn", "--device", "cpu")
NAME_THEM = "name the classes: --classes FILE"


@pytest.fixture
def conditions(tmp_path: Path) -> Path:
    for name in ("dusk", "night"):
        make_folder(tmp_path / "photos" / name)
    return tmp_path / "photos"


def put_image(conditions: Path, place: str) -> None:
    path = conditions / place
    path.parent.mkdir(exist_ok=True)
    shutil.copyfile(conditions / "dusk" / "cat" / "0.png", path)


# Conditions and classes -------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["plots/plot.png", "dusk/preview.png", "preview.png"])
@pytest.mark.parametrize("classes", [None, CLASSES])
def test_a_stray_image_does_not_turn_conditions_into_classes(conditions, place, classes):
    put_image(conditions, place)
    with pytest.raises(
        BadInput, match=rf"24 such as dusk/cat/0\.png, and 1 such as {place}"
    ) as error:
        load_data(str(conditions), Request(classes=classes))
    assert (NAME_THEM in str(error.value)) == (classes is None)
    (conditions / place).unlink()
    if place.startswith("plots"):
        with pytest.raises(BadInput, match=r"no image was found in .*plots.* Remove it"):
            load_data(str(conditions), Request(classes=classes))
        (conditions / "plots").rmdir()
    assert [d.name for d in load_data(str(conditions)).domains] == ["dusk", "night"]


def test_hidden_and_other_files_do_not_matter(conditions):
    put_image(conditions, ".plots/plot.png")
    put_image(conditions, "dusk/.preview.png")
    (conditions / "readme.txt").write_text("By me.")
    (conditions / "dusk" / "cat" / "notes").mkdir()
    (conditions / "dusk" / "cat" / "notes" / "readme.txt").write_text("By me.")
    assert [d.name for d in load_data(str(conditions)).domains] == ["dusk", "night"]
    assert FolderSource(conditions / "dusk").classes == list(CLASSES)


def test_one_class_more_deeply_nested_is_refused_unless_the_classes_are_known(conditions):
    root = conditions / "dusk"
    make_folder(root / "cat", classes=("monday",))
    for loads in (FolderSource, lambda root: load_data(str(root))):
        with pytest.raises(BadInput, match=rf"12 such as .*, and 3 such as .*{NAME_THEM}"):
            loads(root)
    with pytest.raises(BadInput, match="3 such as dusk/cat/monday"):
        load_data(str(conditions))
    assert len(FolderSource(root, classes=CLASSES).paths) == 15
    assert len(load_data(str(root), Request(classes=CLASSES)).domains[0]) == 15
    assert len(load_data(str(conditions), Request(classes=CLASSES)).domains) == 2


def test_conditions_are_no_classes_to_prepare_from(conditions, tmp_path):
    message = r'"cat" both in dusk and in night.* give one of them, such as .*photos/dusk; if'
    with pytest.raises(BadInput, match=message):
        run("prepare", conditions, *MODEL, "--out", tmp_path / "a.acclimate")
    names = ["night", "dusk"]
    assert FolderSource(conditions, classes=names).classes == names


def test_classes_may_have_folders_of_their_own_in_them(tmp_path):
    for number, name in enumerate(CLASSES):
        make_folder(tmp_path / name, classes=(f"part{number}", f"more{number}"))
    assert FolderSource(tmp_path).classes == list(CLASSES)
    # To a comparison they might be conditions as well.
    with pytest.raises(BadInput, match=r"cat with more0 and dog with more1.*--classes FILE"):
        load_data(str(tmp_path))
    data = load_data(str(tmp_path), Request(classes=CLASSES))
    assert (len(data.domains), data.classes) == (1, CLASSES)


# Corrupted copies -------------------------------------------------------------------------------


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    clean, out = make_folder(tmp_path / "clean", n=2), tmp_path / "copies"
    words = ["--name", "contrast", "--severity", "4", "--severity", "5", "--workers", "1"]
    run("data", "corrupt", clean, "--out", out, *words)
    return out


@pytest.mark.parametrize("place", ["plot.png", "plots/plot.png", "contrast/plot.png"])
def test_images_beside_corrupted_copies_are_refused(copies, place):
    (copies / "plots").mkdir()
    shutil.copyfile(copies / "contrast" / "5" / "cat" / "0.png", copies / place)
    with pytest.raises(BadInput, match=rf"<severity>/<class>.* found 1 such as {place}"):
        load_data(str(copies))
    (copies / place).unlink()
    assert load_data(str(copies)).classes == CLASSES


def test_an_image_beside_the_classes_of_a_copy_is_refused(copies):
    shutil.copyfile(copies / "contrast" / "5" / "cat" / "0.png", copies / "contrast/5/plot.png")
    for is_made in (True, False):
        with pytest.raises(BadInput, match=r"found 1 directly in .*contrast/5"):
            load_data(str(copies))
        if is_made:
            (copies / "generated.json").unlink()


def test_copies_without_classes_are_told_from_classes(tmp_path):
    flat = make_folder(tmp_path / "clean", n=2) / "cat"
    words = ["--name", "contrast", "--severity", "1", "--severity", "5", "--workers", "1"]
    run("data", "corrupt", flat, "--out", tmp_path / "copies", *words)
    with pytest.raises(BadInput, match=r"expected images in class folders.*contrast/5"):
        load_data(str(tmp_path / "copies"))


def test_copies_of_conditions_are_given_one_by_one(conditions, tmp_path):
    words = ["--name", "contrast", "--severity", "5", "--workers", "1"]
    run("data", "corrupt", conditions, "--out", tmp_path / "copies", *words)
    place = tmp_path / "copies" / "contrast" / "5"
    with pytest.raises(BadInput, match=rf"conditions, give one of them, such as {place}/dusk"):
        load_data(str(tmp_path / "copies"))
    assert [d.name for d in load_data(str(place)).domains] == ["dusk", "night"]


# What is shown ----------------------------------------------------------------------------------


def test_the_names_of_the_classes_are_always_shown(conditions, tmp_path):
    words = ("--samples", "12", "--out", tmp_path / "a.acclimate")
    result = run("prepare", conditions / "dusk", *MODEL, *words)
    assert "4: cat, dog, eel, fox" in result.stdout
    words = ("--method", "source", "--out", tmp_path / "out")
    result = run("eval", *MODEL, "--data", conditions, *words)
    assert "4: cat, dog, eel, fox" in result.stdout


# What means nothing is refused ------------------------------------------------------------------


def test_a_severity_of_what_is_not_corrupted_is_refused(conditions, tmp_path):
    places = [conditions, conditions / "dusk", make_masks(tmp_path / "masks"), "builtin"]
    for place in (*places, "builtin-scenes", "builtin-domains"):
        with pytest.raises(BadInput, match=r"severity 3 is asked for, but .* Leave it out, or"):
            load_data(str(place), Request(severities=(3,), n=3))
    assert load_data("builtin", Request(severities=(3,), corruptions=("fog",), n=4)).domains


# Classes without images -------------------------------------------------------------------------


def test_an_empty_class_folder_names_a_class_wherever_it_is(tmp_path):
    root = make_folder(tmp_path / "photos", classes=("bee", "cat", "dog"))
    (root / "ant").mkdir()
    (root / ".cache").mkdir()
    expected = ["ant", "bee", "cat", "dog"]
    source = FolderSource(root, batch_size=9)
    assert source.classes == list(load_data(str(root)).classes) == expected
    assert sorted(next(iter(source))[1].tolist()) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_missing_classes_are_told_with_those_there_are(conditions, tmp_path):
    root, out = conditions / "dusk", tmp_path / "a.acclimate"
    shutil.rmtree(root / "eel")
    message = r"names of 4 classes.* found in .*dusk 3: cat, dog, fox\..* --classes FILE"
    with pytest.raises(BadInput, match=message):
        run("prepare", root, *MODEL, "--out", out)
    (tmp_path / "names.txt").write_text("\n".join(CLASSES))
    for words in (("--classes", tmp_path / "names.txt"), ("--force",)):
        result = run("prepare", root, *MODEL, "--out", out, "--method", "swr", *words)
        assert "4: cat, dog, eel, fox" in result.stdout
        (root / "eel").mkdir(exist_ok=True)


# Numbers of images ------------------------------------------------------------------------------


def test_more_images_than_there_are_is_refused_of_whatever_data(conditions, tmp_path, monkeypatch):
    five = load("builtin", n=5)
    monkeypatch.setattr("acclimate.comparison.domains.load", lambda *_, **__: five)
    for place, n in (
        (conditions, 12),
        (conditions / "dusk", 12),
        (make_masks(tmp_path / "masks"), 3),
        ("cifar10", 5),
        ("cifar10c", 5),
        ("builtin-domains", 500),
    ):
        assert len(load_data(str(place), Request(n=n)).domains[0]) == n
        with pytest.raises(BadInput, match=rf"expected 1 to {n} images, .* found {n + 1}\. Give"):
            load_data(str(place), Request(n=n + 1))
