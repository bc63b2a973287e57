"""`acclimate data`: what each command prints and refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from acclimate.cli.data import data as app
from acclimate.corruptions import BENCHMARK, HELD_OUT, apply
from acclimate.data.catalog import SETS
from acclimate.data.copies import FolderCounts
from acclimate.data.corruptor import choose_corruptions
from acclimate.data.places import VARIABLE
from tests.codes import raises
from tests.data.samples import binary_files, tiny_corrupted_entry, tiny_entry, write_tar
from tests.images import write_images


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETS, "cifar10", tiny_entry("cifar10"))
    monkeypatch.setitem(SETS, "cifar10c", tiny_corrupted_entry())


def run(*arguments: str | Path) -> Result:
    """Run a command in this process; a failure is the error itself."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(part) for part in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_from_archive_to_corrupted_set(tmp_path, monkeypatch):
    archive = write_tar(tmp_path / "cifar-10-binary.tar.gz", binary_files("cifar10"))
    root = tmp_path / "root"
    monkeypatch.setenv(VARIABLE, str(root))
    result = run("get", "cifar10", "--from", archive)
    assert result.exit_code == 0
    assert str(root / "cifar10") in result.stdout
    assert "official" in result.stdout
    assert run("check", "cifar10").exit_code == 0
    result = run("corrupt", "cifar10", "--name", "fog", "--severity", "5", "--workers", "1")
    assert "generated" in result.stdout
    rows = {line.split()[0]: line for line in run("list").stdout.splitlines() if line.strip()}
    assert "official" in rows["cifar10"]
    assert "generated, 1 corruptions, 1 blocks" in rows["cifar10c"]
    assert "–" in rows["cifar100"]
    assert set(SETS) <= set(rows)
    other = run("list", "--data-dir", tmp_path / "empty").stdout
    assert "official" not in other
    assert str(tmp_path / "empty") in other


def test_check_reports_and_exits_with_one(tmp_path):
    archive = write_tar(tmp_path / "a.tar.gz", binary_files("cifar10"))
    run("get", "cifar10", "--from", archive, "--data-dir", tmp_path)
    (tmp_path / "cifar10" / "test" / "labels.npy").unlink()
    result = run("check", "cifar10", "--data-dir", tmp_path)
    assert result.exit_code == 1
    assert "1 problem(s):" in result.stdout
    assert "labels.npy is missing" in result.stdout


def test_folders(tmp_path):
    photos = write_images(tmp_path / "photos", {"": 3}, size=32)
    for number in range(12):
        (photos / f"torn{number}.jpg").write_bytes(b"no image")
    result = run("check", "image-folder", "--dir", photos)
    assert result.exit_code == 1
    assert "12 problem(s):" in result.stdout
    assert "(+ 2 more)" in result.stdout
    options = ("--name", "brightness", "--severity", "1", "--severity", "2", "--workers", "1")
    result = run("corrupt", photos, "--out", tmp_path / "out", *options)
    assert result.exit_code == 0
    assert "12 unreadable image(s) left out" in result.stderr
    found = sorted(path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*.png"))
    wanted = [f"brightness/{severity}/00{number}.png" for severity in (1, 2) for number in range(3)]
    assert [path.as_posix() for path in found] == wanted


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), BENCHMARK),
        (("--name", "extra"), HELD_OUT),
        (("--name", "extra", "--name", "fog"), (*HELD_OUT, "fog")),
        (("--name", "all"), (*BENCHMARK, *HELD_OUT)),
    ],
)
def test_which_corruptions_are_made(options, expected, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr("acclimate.data.corrupt", lambda *asked: made.append(asked) or tmp_path)
    run("corrupt", "cifar10", "--data-dir", tmp_path, *options)
    assert tuple(choose_corruptions(made[0][1])) == expected
    # What the help promises.
    text = " ".join(run("corrupt", "--help").stdout.replace("│", " ").split())
    assert "Default: the fifteen of the benchmark" in text


def test_images_are_resized_before_they_are_cropped(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (64, 128, 3)).astype(np.uint8)
    path = tmp_path / "photos" / "wide.png"
    path.parent.mkdir()
    Image.fromarray(pixels).save(path)
    options = ("--name", "brightness", "--severity", "1", "--workers", "1", "--size", "16")
    run("corrupt", path.parent, "--out", tmp_path / "out", *options, "--resize", "32")
    smaller = np.asarray(Image.open(path).resize((64, 32), Image.Resampling.BILINEAR))
    expected = apply(smaller[None, 8:24, 24:40], "brightness", 1)[0]
    found = np.asarray(Image.open(tmp_path / "out" / "brightness" / "1" / "wide.png"))
    assert np.array_equal(found, expected)
    with raises("made_differently", path=tmp_path / "out", differences={"resize": (32, None)}):
        run("corrupt", path.parent, "--out", tmp_path / "out", *options)


def test_imagenet_is_resized_and_cropped_as_usual(tmp_path, monkeypatch):
    asked = []
    counts = FolderCounts()
    monkeypatch.setattr(
        "acclimate.data.folders.corrupt_folder", lambda *a: asked.append(a) or counts
    )
    (tmp_path / "imagenet" / "val").mkdir(parents=True)
    for options, sizes in (
        ((), (224, 256)),
        (("--size", "64"), (64, None)),
        (("--resize", "300"), (224, 300)),
    ):
        run("corrupt", "imagenet", "--data-dir", tmp_path, *options)
        assert asked[-1][3:] == sizes
        assert asked[-1][2].names == list(BENCHMARK)


def test_mistakes_are_refused(tmp_path):
    absent, out = tmp_path / "absent", tmp_path / "out"
    with raises("unknown_name", kind="data set", name="cifar", known=lambda k: "cifar10" in k):
        run("get", "cifar")
    with raises("not_fetchable", name="imagenetc"):
        run("get", "imagenetc", "--data-dir", tmp_path)
    with raises("unknown_name", kind="data set", name=str(absent)):
        run("corrupt", absent)
    with raises("missing_option", option="out"):
        run("corrupt", tmp_path)
    with raises("not_found", path=tmp_path / "imagenet"):
        run("corrupt", "imagenet", "--data-dir", tmp_path)
    for option in ("size", "resize"):
        with raises("not_applicable", option=option):
            run("corrupt", "cifar10", f"--{option}", "32")
    with raises("missing_option", option="size"):
        run("corrupt", tmp_path, "--out", out, "--resize", "9")
    with raises("not_fetched", name="frost"):
        run("check", "frost", "--data-dir", tmp_path)


def test_messages_say_where_sets_come_from_that_are_not_fetched(tmp_path):
    for name, place in (("imagenetc", "zenodo.org/records/2235448"), ("imagenet", "image-net.org")):
        with raises("not_fetchable", name=name) as caught:
            run("get", name, "--data-dir", tmp_path)
        assert place in str(caught.value)
