"""`--metrics` and `--tensorboard` of `acclimate adapt` and `acclimate eval`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from acclimate.metrics import METRICS, MetricsWriter
from tests.bench.jobs import read_suite
from tests.cli.test_cli import MODEL, make_images, run
from tests.codes import raises


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "photos"
    make_images(folder, 14)
    return folder


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_adapt_writes_a_line_per_batch_and_events(photos: Path, tmp_path: Path) -> None:
    file, board = tmp_path / "metrics.jsonl", tmp_path / "board"
    line = ("adapt", photos, *MODEL, "--method", "tent", "--batch-size", "4")
    run(*line, "--out", tmp_path / "o.csv", "--metrics", file, "--tensorboard", board)
    lines = read(file)
    assert [set(own) for own in lines] == [set(METRICS)] * 4
    assert [(own["index"], own["samples"]) for own in lines] == [(0, 4), (1, 4), (2, 4), (3, 2)]
    assert [own["updates"] for own in lines] == [1, 1, 1, 1]
    rows = [row.split(",") for row in (tmp_path / "o.csv").read_text().splitlines()[1:]]
    first = [float(row[3]) for row in rows if row[4] == "0"]
    assert lines[0]["entropy"] == pytest.approx(sum(first) / len(first), abs=1e-5)
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(board)).Reload()
    found = [(event.step, event.value) for event in events.Scalars("entropy")]
    assert found == [(own["index"], pytest.approx(own["entropy"], rel=1e-6)) for own in lines]
    with raises("overwrites_input", option="out"):
        run(*line, "--force", "--out", tmp_path / "o.csv", "--metrics", tmp_path / "o.csv")


def test_eval_writes_a_line_per_batch_and_method(labelled_images: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "metrics.jsonl", tmp_path / "eval"
    line = ("eval", *MODEL, "--data", labelled_images, "--method", "source,tent")
    run(*line, "--batch-size", "10", "--out", out, "--metrics", file)
    lines, records = read(file), read_suite(out)
    assert len(lines) == len(records) > 2
    assert {own["method"] for own in lines} == {"source", "tent"}
    by_place = [
        {(own["method"], own["index"]): own["entropy"] for own in found}
        for found in (lines, records)
    ]
    assert by_place[0] == by_place[1]
    # All of it is known: nothing runs again, and the file is the same.
    again = tmp_path / "again.jsonl"
    run(*line, "--batch-size", "10", "--out", out, "--resume", "--metrics", again)
    key = ("method", "index")
    order = [
        sorted(own, key=lambda one: [one[name] for name in key]) for own in (lines, read(again))
    ]
    assert order[0] == order[1]


def test_a_resumed_run_keeps_the_lines_before_it_and_drops_torn_ones(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"index": 0}\n{"index": 1}\n{"index": 2}\n{"ind')
    with MetricsWriter(path) as writer:
        writer.begin(2)
    assert read(path) == [{"index": 0}, {"index": 1}]
    with MetricsWriter(path) as writer:
        writer.begin()
    assert read(path) == []


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises("not_found"):
        MetricsWriter(tmp_path / "absent" / "file")
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with raises("missing_extra", package="tensorboard") as caught:
        MetricsWriter(tensorboard=tmp_path)
    assert "acclimate[tensorboard]" in str(caught.value)
