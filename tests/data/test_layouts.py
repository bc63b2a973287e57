"""Folders of images in the wrong shape: what lies where it should not is told, not guessed at."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from acclimate.data import load
from acclimate.data.cifar import ArraySet
from acclimate.data.cifar_c import CorruptedArraySet
from acclimate.data.loading import load_data
from acclimate.data.request import Request
from tests.cli.test_cli import run
from tests.cli_models import CLASSES
from tests.codes import raises
from tests.data.test_loading import make_folder
from tests.images import labelled_batches
from tests.segmentation.samples import make_folder as make_masks

MODEL = ("--model", "tests.cli_models:tiny_cnn", "--device", "cpu")
NAME_THEM = "--classes FILE"


def check_named(caught: pytest.ExceptionInfo, *names: str | Path) -> None:
    """Check that the message shows these names, with which its reader finds what is in the way."""
    assert [name for name in names if str(name) not in str(caught.value)] == []


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
def test_the_message_names_a_stray_image_that_would_turn_conditions_into_classes(
    conditions, place, classes
):
    put_image(conditions, place)
    with raises("ambiguous_layout", path=conditions) as caught:
        load_data(str(conditions), Request(classes=classes))
    check_named(caught, "dusk/cat/0.png", place)
    assert (NAME_THEM in str(caught.value)) == (classes is None)
    (conditions / place).unlink()
    if place.startswith("plots"):
        with raises("no_images", path=conditions / "plots"):
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
    assert labelled_batches(conditions / "dusk").classes == CLASSES


def test_the_message_names_a_class_that_is_nested_more_deeply_unless_the_classes_are_known(
    conditions,
):
    root = conditions / "dusk"
    make_folder(root / "cat", classes=("monday",))
    for loads in (labelled_batches, lambda root: load_data(str(root))):
        with raises("ambiguous_layout", path=root) as caught:
            loads(root)
        check_named(caught, "cat/0.png", "cat/monday/0.png", NAME_THEM)
    with raises("ambiguous_layout", path=conditions) as caught:
        load_data(str(conditions))
    check_named(caught, "dusk/cat/monday")
    assert len(labelled_batches(root, classes=CLASSES).store.paths) == 15
    assert len(load_data(str(root), Request(classes=CLASSES)).domains[0]) == 15
    assert len(load_data(str(conditions), Request(classes=CLASSES)).domains) == 2


def test_the_message_names_one_of_the_conditions_that_are_no_classes_to_prepare_from(
    conditions, tmp_path
):
    with raises("ambiguous_layout", path=conditions) as caught:
        run("prepare", conditions, *MODEL, "--out", tmp_path / "a.acclimate")
    check_named(caught, '"cat"', "night", conditions / "dusk")
    names = ["night", "dusk"]
    assert labelled_batches(conditions, classes=names).classes == tuple(names)


def test_classes_may_have_folders_of_their_own_in_them_which_the_message_names(tmp_path):
    for number, name in enumerate(CLASSES):
        make_folder(tmp_path / name, classes=(f"part{number}", f"more{number}"))
    assert labelled_batches(tmp_path).classes == CLASSES
    # To a comparison they might be conditions as well.
    with raises("ambiguous_layout", path=tmp_path) as caught:
        load_data(str(tmp_path))
    check_named(caught, "cat", "more0", "dog", "more1", NAME_THEM)
    data = load_data(str(tmp_path), Request(classes=CLASSES))
    assert (len(data.domains), data.classes) == (1, CLASSES)


# Corrupted copies -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made_copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("made")
    clean, out = make_folder(base / "clean", n=2), base / "copies"
    words = ["--name", "contrast", "--severity", "4", "--severity", "5", "--workers", "1"]
    run("data", "corrupt", clean, "--out", out, *words)
    return out


@pytest.fixture
def copies(made_copies: Path, tmp_path: Path) -> Path:
    """Copies of one's own, to spoil."""
    return shutil.copytree(made_copies, tmp_path / "copies")


@pytest.mark.parametrize("place", ["plot.png", "plots/plot.png", "contrast/plot.png"])
def test_the_message_names_an_image_beside_corrupted_copies(copies, place):
    (copies / "plots").mkdir()
    shutil.copyfile(copies / "contrast" / "5" / "cat" / "0.png", copies / place)
    with raises("wrong_layout", path=copies) as caught:
        load_data(str(copies))
    check_named(caught, place)
    (copies / place).unlink()
    assert load_data(str(copies)).classes == CLASSES


def test_an_image_beside_the_classes_of_a_copy_is_refused(copies):
    shutil.copyfile(copies / "contrast" / "5" / "cat" / "0.png", copies / "contrast/5/plot.png")
    for is_made in (True, False):
        with raises("wrong_layout", path=copies / "contrast" / "5"):
            load_data(str(copies))
        if is_made:
            (copies / "generated.json").unlink()


def test_copies_without_classes_are_told_from_classes(tmp_path):
    flat = make_folder(tmp_path / "clean", n=2) / "cat"
    words = ["--name", "contrast", "--severity", "1", "--severity", "5", "--workers", "1"]
    run("data", "corrupt", flat, "--out", tmp_path / "copies", *words)
    with raises("wrong_layout", path=tmp_path / "copies" / "contrast" / "5"):
        load_data(str(tmp_path / "copies"))


def test_the_message_names_one_of_the_conditions_of_which_there_are_copies(conditions, tmp_path):
    words = ["--name", "contrast", "--severity", "5", "--workers", "1"]
    run("data", "corrupt", conditions, "--out", tmp_path / "copies", *words)
    place = tmp_path / "copies" / "contrast" / "5"
    with raises("ambiguous_layout", path=place) as caught:
        load_data(str(tmp_path / "copies"))
    check_named(caught, place / "dusk")
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
        with raises("not_applicable", option="severities"):
            load_data(str(place), Request(severities=(3,), n=3))
    assert load_data("builtin", Request(severities=(3,), corruptions=("fog",), n=4)).domains


# Classes without images -------------------------------------------------------------------------


def test_an_empty_class_folder_names_a_class_wherever_it_is(tmp_path):
    root = make_folder(tmp_path / "photos", classes=("bee", "cat", "dog"))
    (root / "ant").mkdir()
    (root / ".cache").mkdir()
    expected = ["ant", "bee", "cat", "dog"]
    source = labelled_batches(root, batch_size=9)
    assert list(source.classes) == list(load_data(str(root)).classes) == expected
    assert sorted(next(iter(source))[1].tolist()) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_the_message_names_the_classes_there_are_if_some_are_missing(conditions, tmp_path):
    root, out = conditions / "dusk", tmp_path / "a.acclimate"
    shutil.rmtree(root / "eel")
    with raises("count_mismatch", expected=4, found=3) as caught:
        run("prepare", root, *MODEL, "--out", out)
    check_named(caught, "cat, dog, fox", NAME_THEM)
    (tmp_path / "names.txt").write_text("\n".join(CLASSES))
    for words in (("--classes", tmp_path / "names.txt"), ("--force",)):
        result = run("prepare", root, *MODEL, "--out", out, "--method", "swr", *words)
        assert "4: cat, dog, eel, fox" in result.stdout
        (root / "eel").mkdir(exist_ok=True)


# Numbers of images ------------------------------------------------------------------------------


def test_more_images_than_there_are_is_refused_of_whatever_data(conditions, tmp_path, monkeypatch):
    five = load("builtin", n=5)
    for kind in (CorruptedArraySet, ArraySet):
        monkeypatch.setattr(kind, "open", lambda *_, **__: five)
    for place, n in (
        (conditions, 12),
        (conditions / "dusk", 12),
        (make_masks(tmp_path / "masks"), 3),
        ("cifar10", 5),
        ("cifar10c", 5),
        ("builtin-domains", 500),
    ):
        assert len(load_data(str(place), Request(n=n)).domains[0]) == n
        with raises("out_of_range", option="images", found=n + 1):
            load_data(str(place), Request(n=n + 1))
