"""`acclimate adapt`: what it refuses before it works, and what it says about it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.cli.test_cli import MODEL, make_images, run
from tests.cli_models import CLASSES, tiny_cnn
from tests.codes import raises


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "photos"
    make_images(folder / "monday", 6, 1)
    make_images(folder / "tuesday", 4, 2)
    return folder


@pytest.fixture(scope="module")
def artifact(labelled_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("artifact") / "tiny.acclimate"
    run("prepare", labelled_images, *MODEL, "--out", out, "--samples", "16")
    return out


def test_no_file_that_is_read_is_written_over(
    photos: Path, labelled_images: Path, artifact: Path, tmp_path: Path
) -> None:
    weights, link = tmp_path / "w.pt", tmp_path / "link"
    torch.save(tiny_cnn().state_dict(), weights)
    link.symlink_to(weights)
    (tmp_path / "hard").hardlink_to(weights)
    before = weights.read_bytes()
    line = ("adapt", photos, *MODEL, "--method", "tent", "--force")
    for out in (weights, link, tmp_path / "hard"):
        with raises("overwrites_input", path=out, option="weights"):
            run("prepare", labelled_images, *MODEL, "--weights", weights, "--out", out, "--force")
        with raises("overwrites_input", path=out, option="weights"):
            run(*line, "--weights", weights, "--state", out, "--out", tmp_path / "out.csv")
    names = tmp_path / "names.csv"
    names.write_text("\n".join(CLASSES))
    with raises("overwrites_input", path=names, option="classes"):
        run(*line, "--classes", names, "--out", names)
    beside = tmp_path / "out.csv.part"
    beside.write_bytes(artifact.read_bytes())
    with raises("overwrites_input", path=beside, option="artifact"):  # written beside --out
        run(*line, "--artifact", beside, "--out", tmp_path / "out.csv")
    assert weights.read_bytes() == before
    assert beside.read_bytes() == artifact.read_bytes()


def test_predictions_are_not_put_among_the_images(photos: Path, tmp_path: Path) -> None:
    line = ("adapt", photos, *MODEL, "--method", "tent", "--out")
    for out in (photos, photos / "monday", photos / "new", photos.parent):
        with raises("inside_input", path=out):
            run(*line, out)
    with raises("inside_input", path=photos):
        run(*line, photos, "--force")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_text("")
    with raises("already_exists", path=tmp_path / "other"):
        run(*line, tmp_path / "other")
    run(*line, photos / "out.csv")  # a table is not mistaken for an image
    (photos / "out.csv").unlink()


def test_images_of_a_kind_that_is_not_read_are_listed_as_left_out(
    photos: Path, tmp_path: Path
) -> None:
    others = [photos / "monday" / name for name in ("a.gif", "b.HEIC", "c.txt", ".d.gif")]
    for path in others:
        path.write_bytes(b"")
    result = run("adapt", photos, *MODEL, "--method", "norm", "--out", tmp_path / "out.csv")
    for path in others:
        path.unlink()
    assert "10 in 1 batches" in result.stdout
    assert "2 unreadable image(s) left out" in result.stderr
    assert f"{others[0]}: .gif is not supported, only .bmp, .jpeg" in result.stderr
    assert f"{others[1]}: .HEIC is not supported, only .bmp, .jpeg" in result.stderr


def test_messages_name_remedies_of_the_command_line_too(photos: Path, tmp_path: Path) -> None:
    line = ("adapt", photos, *MODEL, "--out", tmp_path / "out.csv")
    with raises("missing_parts", parts=("accuracy",)) as caught:
        run(*line, "--method", "tent", "--guard")
    assert re.search(r"prepare SOURCE_DIR --method tent .*--artifact FILE", str(caught.value))
    with raises("artifact_needed", methods=("tent",)) as caught:
        run(*line, "--method", "tent", "--terms", "swr")
    expected = r'method=\["tent", "swr"\]\).* --method tent,swr .*--artifact FILE'
    assert re.search(expected, str(caught.value))
    with raises("single_sample") as caught:
        run(*line, "--method", "tent", "--batch-size", "1")
    assert re.search(r'statistics="running".* --set statistics=running', str(caught.value))
    single = ("--batch-size", "1", "--set", "statistics=running")
    assert "10 in 10 batches" in run(*line, "--method", "tent", *single).stdout


def test_names_in_another_order_than_the_artifact_has_are_refused(
    photos: Path, artifact: Path, tmp_path: Path
) -> None:
    out, names = tmp_path / "out.csv", tmp_path / "names.txt"
    line = ("adapt", photos, *MODEL, "--artifact", artifact, "--classes", names, "--out", out)
    names.write_text("cat\neel\ndog\nfox\n")
    with raises("class_mismatch", found=("cat", "eel", "dog", "fox"), expected=CLASSES):
        run(*line)
    assert not out.exists()
    names.write_text("Katze\ndog\neel\nFuchs\n")  # the same classes in other words
    run(*line)
    assert {row.split(",")[1] for row in out.read_text().splitlines()[1:]} <= {
        *("Katze", "dog", "eel", "Fuchs")
    }
