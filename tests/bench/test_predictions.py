"""Predicting a folder: the rows are right, and a crash at any moment loses one batch at most."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import acclimate
from acclimate.bench.predictions import Predictions, PredictionSummary, predict_folder
from acclimate.bench.run_folder import RunFolder
from acclimate.methods.method import Method
from acclimate.storage import read_file
from acclimate.streams.folder import FolderStream
from tests.cli_models import CLASSES, tiny_cnn
from tests.codes import raises

N_BATCHES = 5


@pytest.fixture(autouse=True, scope="module")
def _without_waiting_for_the_disk() -> Iterator[None]:
    """The crashes here are exceptions: what was written is there, wherever it is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 readable images in batches of 5, one of which (number 2) has nothing readable.

    Not to be changed: tests that do so take `own_photos`.
    """
    folder = tmp_path_factory.mktemp("data") / "photos"
    for number in range(28):
        path = folder / f"day{number // 14}" / f"{number:02}, a.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        if number // 5 == 2:
            path.write_bytes(b"damaged")
    return folder


@pytest.fixture
def own_photos(photos: Path, tmp_path: Path) -> Path:
    """A copy of the images that may be changed."""
    return shutil.copytree(photos, tmp_path / "photos")


def predict(
    photos: Path, out: Path, model: torch.nn.Module | None = None, **options: object
) -> tuple[PredictionSummary, FolderStream, Method]:
    """Predict with a model that moves a lot, so that any lost step would be seen."""
    adapted = acclimate.adapt(model or tiny_cnn(), "tent", lr=0.05)
    stream = FolderStream(photos, batch_size=5)
    names = ("resume", "force", "state")
    file = Predictions(out, **{key: options.pop(key) for key in names if key in options})
    return predict_folder(adapted, stream, file, **options), stream, adapted


@pytest.fixture(scope="module")
def uncut(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the table and the state of a call that nothing interrupted."""
    folder = tmp_path_factory.mktemp("uncut")
    predict(photos, folder / "out.csv", state=folder / "out.state")
    return folder


def test_the_rows_are_those_of_the_plain_loop(photos: Path, tmp_path: Path) -> None:
    """In double precision, so that no step or label hangs on the rounding of a processor."""
    out = tmp_path / "out.csv"
    summary, stream, _ = predict(photos, out, tiny_cnn().double(), classes=CLASSES)
    adapted = acclimate.adapt(tiny_cnn().double(), "tent", lr=0.05)
    expected = []
    paths = sorted(photos.rglob("*.png"))
    for batch in range(6):
        some = [path for path in paths[5 * batch : 5 * batch + 5] if batch != 2]
        if some:
            arrays = [np.asarray(Image.open(path)) / 255 for path in some]
            x = torch.tensor(np.stack(arrays)).permute(0, 3, 1, 2).float()  # as images are read
            for path, p in zip(some, adapted(x.double()).softmax(dim=1), strict=True):
                name = path.relative_to(photos).as_posix()
                uncertainty = -(p * p.log()).sum()
                expected.append((name, CLASSES[int(p.argmax())], p.max(), uncertainty, batch))
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["path", "label", "probability", "entropy", "batch"]
    assert [(r["path"], r["label"], int(r["batch"])) for r in rows] == [
        (name, label, batch) for name, label, _, _, batch in expected
    ]
    half = 0.51e-6  # of the last digit written, and a bit
    for row, (_, _, probability, uncertainty, _) in zip(rows, expected, strict=True):
        assert float(row["probability"]) == pytest.approx(float(probability), rel=0, abs=half)
        assert float(row["entropy"]) == pytest.approx(float(uncertainty), rel=0, abs=half)
    assert (summary.n_images, summary.n_batches, summary.n_resumed) == (23, N_BATCHES, 0)
    assert sum(summary.labels.values()) == 23
    assert len(stream.unreadable) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


class Crash(Exception):
    """Stands for the end of the process."""


def crash_in_forward(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    _crash(monkeypatch, Method, "forward", at, before=True)


def crash_after_rows(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    _crash(monkeypatch, RunFolder, "append", at, before=False)


def crash_before_rows(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    _crash(monkeypatch, RunFolder, "append", at, before=True)


def crash_after_state(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Before the checkpoint that would name the state is complete."""
    _crash(monkeypatch, Method, "save", at, before=False)


def crash_after_checkpoint(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    _crash(monkeypatch, RunFolder, "checkpoint", at, before=False)


def crash_within_rows(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Write a part of the rows."""
    real = RunFolder.append
    calls = []

    def torn(self: RunFolder, unit: str, rows: Mapping[str, object]) -> None:
        calls.append(0)
        real(self, unit, rows)
        if len(calls) == at:
            path = self.path / "records.jsonl"
            whole = path.read_bytes()
            path.write_bytes(whole[: -1 - len(whole) // 40])
            raise Crash

    monkeypatch.setattr(RunFolder, "append", torn)


def _crash(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, at: int, before: bool) -> None:
    real = getattr(owner, name)
    calls = []

    def crashing(self: object, *arguments: object) -> object:
        calls.append(0)
        if before and len(calls) == at:
            raise Crash
        result = real(self, *arguments)
        if not before and len(calls) == at:
            raise Crash
        return result

    monkeypatch.setattr(owner, name, crashing)


@pytest.mark.parametrize("at", range(1, N_BATCHES + 1))
@pytest.mark.parametrize(
    "crash",
    [
        crash_in_forward,
        crash_before_rows,
        crash_within_rows,
        crash_after_rows,
        crash_after_state,
        crash_after_checkpoint,
    ],
)
def test_a_resumed_call_gives_what_an_uncut_one_gives(
    photos: Path,
    uncut: Path,
    tmp_path: Path,
    crash: Callable[[pytest.MonkeyPatch, int], None],
    at: int,
) -> None:
    out = tmp_path / "out.csv"
    with pytest.MonkeyPatch.context() as patch:
        crash(patch, at)
        with pytest.raises(Crash):
            predict(photos, out, state=tmp_path / "out.state")
    assert not out.exists()
    summary, stream, adapted = predict(photos, out, state=tmp_path / "out.state", resume=True)
    assert out.read_bytes() == (uncut / "out.csv").read_bytes()
    tensors, card = read_file(tmp_path / "out.state", "state")
    expected_tensors, expected_card = read_file(uncut / "out.state", "state")
    assert card == expected_card
    assert tensors.keys() == expected_tensors.keys()
    assert all(torch.equal(tensor, expected_tensors[name]) for name, tensor in tensors.items())
    lost = crash is not crash_after_checkpoint
    assert summary.n_resumed == (at - 1 if lost else at)
    assert (summary.n_images, summary.n_batches, adapted.counts.updates) == (23, 5, 5)
    assert len(stream.unreadable) == 5


def test_several_crashes_and_rare_states_still_give_the_uncut_result(
    photos: Path, uncut: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.csv"
    for crash, at in ((crash_after_rows, 4), (crash_within_rows, 1), (crash_in_forward, 2)):
        with pytest.MonkeyPatch.context() as patch:
            crash(patch, at)
            with pytest.raises(Crash):
                predict(photos, out, resume=True, save_every=2)
    summary, _, _ = predict(photos, out, resume=True, save_every=2)
    assert out.read_bytes() == (uncut / "out.csv").read_bytes()
    assert summary.n_resumed == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_a_crash_when_all_is_done_but_the_renaming(
    photos: Path, uncut: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.csv"
    with pytest.MonkeyPatch.context() as patch:
        _crash(patch, Predictions, "finish", 1, before=True)
        with pytest.raises(Crash):
            predict(photos, out)
    summary, _, _ = predict(photos, out, resume=True)
    assert summary.n_resumed == summary.n_batches == N_BATCHES
    assert out.read_bytes() == (uncut / "out.csv").read_bytes()


def test_a_method_that_has_seen_batches_before_can_be_resumed(photos: Path, tmp_path: Path) -> None:
    def begin() -> Method:
        adapted = acclimate.adapt(tiny_cnn(), "tent", lr=0.05)
        adapted(torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
        return adapted

    stream = FolderStream(photos, batch_size=5)
    predict_folder(begin(), stream, Predictions(tmp_path / "uncut.csv"))
    out = tmp_path / "out.csv"
    with pytest.MonkeyPatch.context() as patch:
        crash_after_rows(patch, 3)
        with pytest.raises(Crash):
            predict_folder(begin(), stream, Predictions(out))
    summary = predict_folder(begin(), stream, Predictions(out, resume=True))
    assert summary.n_resumed == 2
    assert out.read_bytes() == (tmp_path / "uncut.csv").read_bytes()


@pytest.fixture
def interrupted(photos: Path, tmp_path: Path) -> Path:
    out = tmp_path / "out.csv"
    with pytest.MonkeyPatch.context() as patch:
        crash_in_forward(patch, 3)
        with pytest.raises(Crash):
            predict(photos, out)
    return out


def test_an_interrupted_call_is_not_overwritten_by_mistake(
    photos: Path, uncut: Path, interrupted: Path
) -> None:
    part = Path(f"{interrupted}.part")
    before = (part / "records.jsonl").read_bytes()
    with raises("unfinished_run", path=part):
        Predictions(interrupted)
    with raises("conflicting_options", options=("resume", "force")):
        Predictions(interrupted, resume=True, force=True)
    assert (part / "records.jsonl").read_bytes() == before
    summary, _, _ = predict(photos, interrupted, force=True)
    assert summary.n_resumed == 0
    assert interrupted.read_bytes() == (uncut / "out.csv").read_bytes()
    with raises("already_exists", path=interrupted):
        Predictions(interrupted, resume=True)


def test_other_images_or_options_are_not_mixed_in(own_photos: Path, interrupted: Path) -> None:
    with raises("other_settings", differences={"classes": (None, list(CLASSES))}):
        predict(own_photos, interrupted, resume=True, classes=CLASSES)
    kept = interrupted.with_name("kept")
    with raises("other_settings", differences={"state": (None, str(kept))}):
        predict(own_photos, interrupted, resume=True, state=kept)
    file = Predictions(interrupted, resume=True)
    adapted = acclimate.adapt(tiny_cnn(), "tent", lr=0.05)
    with raises("other_settings", differences={"batch_size": (5, 6)}):
        predict_folder(adapted, FolderStream(own_photos, batch_size=6), file)
    other = acclimate.adapt(tiny_cnn(), "tent", lr=0.001)
    differences = {"config.lr": (0.05, 0.001)}
    with raises("other_settings", differences=differences):
        predict_folder(other, FolderStream(own_photos, batch_size=5), file)
    next(own_photos.rglob("*.png")).rename(own_photos / "renamed.png")
    with raises("other_settings", differences=lambda found: "listing_sha256" in found):
        predict(own_photos, interrupted, resume=True)


def test_another_seed_and_images_replaced_under_their_names_are_noticed(
    own_photos: Path, interrupted: Path
) -> None:
    adapted = acclimate.adapt(tiny_cnn(), "tent", lr=0.05, seed=3)
    with raises("other_settings", differences={"seed": (0, 3)}):
        predict_folder(
            adapted,
            FolderStream(own_photos, batch_size=5),
            Predictions(interrupted, resume=True),
        )
    first = min(own_photos.rglob("*.png"))
    before = first.read_bytes()
    Image.new("RGB", (8, 8)).save(first)
    with raises("other_settings", differences=lambda found: list(found) == ["file_sizes_sha256"]):
        predict(own_photos, interrupted, resume=True)
    first.write_bytes(before)
    assert predict(own_photos, interrupted, resume=True)[0].n_resumed == 2


def test_two_processes_do_not_write_to_one_output(photos: Path, interrupted: Path) -> None:
    part = Path(f"{interrupted}.part")
    with RunFolder(part).lock(), raises("in_use", path=part):
        predict(photos, interrupted, resume=True)
    assert predict(photos, interrupted, resume=True)[0].n_resumed == 2


def test_a_resumed_call_computes_with_the_threads_it_began_with(
    photos: Path, interrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = json.loads((Path(f"{interrupted}.part") / "begun.json").read_text())
    used: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    predict(photos, interrupted, resume=True)
    assert used == [begun["n_threads"], 7]


def test_altered_files_are_noticed(photos: Path, interrupted: Path) -> None:
    part = Path(f"{interrupted}.part")
    rows = part / "records.jsonl"
    rows.write_bytes(rows.read_bytes()[:-40])
    with raises("altered_file", path=rows):
        predict(photos, interrupted, resume=True)
    card = part / "begun.json"
    card.write_text("{")
    with raises("unreadable_file", path=card):
        predict(photos, interrupted, resume=True)


def test_a_first_batch_that_fails_leaves_nothing_behind(photos: Path, tmp_path: Path) -> None:
    with raises("count_mismatch", expected=4, found=2):
        predict(photos, tmp_path / "out.csv", classes=("a", "b"))
    assert list(tmp_path.iterdir()) == []


def test_impossible_outputs_are_refused_before_any_work(tmp_path: Path) -> None:
    with raises("wrong_suffix", path=tmp_path / "out.txt"):
        Predictions(tmp_path / "out.txt")
    with raises("not_found", path=tmp_path / "none"):
        Predictions(tmp_path / "none" / "out.csv")
    with raises("not_found", path=tmp_path / "none"):
        Predictions(tmp_path / "out.csv", state=tmp_path / "none" / "kept")
    (tmp_path / "kept").write_text("what was learned elsewhere")
    with raises("already_exists", path=tmp_path / "kept"):
        Predictions(tmp_path / "out.csv", state=tmp_path / "kept")


def test_the_message_names_the_extra_that_writes_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with raises("missing_extra", package="pyarrow") as caught:
        Predictions(tmp_path / "out.parquet")
    assert "pip install 'acclimate[parquet]'" in str(caught.value)


@pytest.mark.parametrize("classes", [None, CLASSES])
def test_parquet_holds_what_the_csv_holds(
    photos: Path, tmp_path: Path, classes: tuple[str, ...] | None
) -> None:
    predict(photos, tmp_path / "out.csv", classes=classes)
    predict(photos, tmp_path / "out.parquet", classes=classes)
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = pq.read_table(tmp_path / "out.parquet").to_pydict()
    assert list(table) == list(rows[0])
    assert table["path"] == [row["path"] for row in rows]
    assert table["label"] == [row["label"] if classes else int(row["label"]) for row in rows]
    assert table["batch"] == [int(row["batch"]) for row in rows]
    for name in ("probability", "entropy"):
        assert table[name] == [float(np.float32(row[name])) for row in rows]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "out.parquet"]


def test_names_that_a_spreadsheet_would_execute_are_quoted(
    own_photos: Path, tmp_path: Path
) -> None:
    """In CSV files only, and only in names."""
    names = ["=1+1.png", "+a.png", "-a.png", "@a.png", "\ta.png"]
    for path, name in zip(sorted(own_photos.rglob("*.png")), names, strict=False):
        path.rename(own_photos / name)
    predict(own_photos, tmp_path / "out.csv")
    predict(own_photos, tmp_path / "out.parquet")
    with (tmp_path / "out.csv").open(newline="") as file:
        written = [row["path"] for row in csv.DictReader(file)]
    assert {f"'{name}" for name in names} <= set(written)
    plain = pq.read_table(tmp_path / "out.parquet").to_pydict()["path"]
    assert [path.removeprefix("'") for path in written] == plain


def test_file_names_that_are_no_text_survive(own_photos: Path, tmp_path: Path) -> None:
    first = min(own_photos.rglob("*.png"))
    odd = first.with_name(b"\xff\xfe odd\n.png".decode("utf-8", "surrogateescape"))
    first.rename(odd)
    with pytest.MonkeyPatch.context() as patch:
        crash_in_forward(patch, 5)
        with pytest.raises(Crash):
            predict(own_photos, tmp_path / "out.csv")
    predict(own_photos, tmp_path / "out.csv", resume=True)
    assert b"\xff\xfe odd\n.png" in (tmp_path / "out.csv").read_bytes()
    predict(own_photos, tmp_path / "out.parquet")
    paths = pq.read_table(tmp_path / "out.parquet")["path"].to_pylist()
    assert "day0/�� odd\n.png" in paths
    odd.rename(odd.with_name("cr\r.png"))
    with raises("malformed", option="path", found="day0/cr\r.png"):
        predict(own_photos, tmp_path / "other.csv")
