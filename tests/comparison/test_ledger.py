"""What a comparison keeps on disk, and going on after a cut."""

from __future__ import annotations

import json

import pytest
import torch

import acclimate
from acclimate.comparison import Ledger, Preparation, Protocol, make_configs, run_job
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises
from tests.comparison.jobs import METHODS, key_of, lines, make_job, stable


@pytest.fixture(scope="module")
def uncut(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uncut") / "out"
    told = []
    result = run_job(make_job(seeds=(0, 1)), Ledger(folder), lambda *step: told.append(step))
    assert told == [("measuring (batches)", n + 1, 54) for n in range(54)]
    return folder, result


def test_every_batch_is_recorded_and_the_result_sums_up(uncut):
    folder, result = uncut
    assert len(stable(folder)) == 2 * 3 * 9
    written = json.loads((folder / "result.json").read_text())
    for run, row in zip(result.runs, written["runs"], strict=True):
        own = [
            line
            for line in lines(folder)
            if (line["method"], line["seed"]) == (run.method, run.seed)
        ]
        assert row["n"] == sum(line["n"] for line in own) == 60
        assert row["error"] == pytest.approx(sum(line["n_errors"] for line in own) / 60)
        assert 0 <= row["ece"] <= 1
    assert [run.method for run in result.runs] == [
        "source",
        "source",
        "norm",
        "norm",
        "tent",
        "tent",
    ]
    facts = written["provenance"]
    assert facts["protocol_line"].startswith("reset before each domain; 3 domains")
    assert facts["settings"]["methods"]["tent"]["lr"] == 0.05
    assert facts["settings"]["versions"]["torch"] == torch.__version__
    assert facts["n_images"] == 60
    assert len(facts["settings"]["model"]) == 64


@pytest.mark.parametrize("kept", [0, 1, 14, 30, 53])
@pytest.mark.parametrize("torn", [b"", b'{"seed": 0, "meth'])
def test_a_cut_run_goes_on_to_the_same_records(uncut, tmp_path, kept, torn):
    """Whatever the number of records that reached the disk, the end is that of the uncut run."""
    folder, _ = uncut
    text = (folder / "records.jsonl").read_bytes().splitlines(keepends=True)[:kept]
    (tmp_path / "records.jsonl").write_bytes(b"".join(text) + torn)
    there = [key_of(line) for line in text]
    sums = (folder / "measures.jsonl").read_bytes().splitlines(keepends=True)
    complete = [line for line in sums if there.count(key_of(line)) == 3]
    (tmp_path / "measures.jsonl").write_bytes(b"".join(complete) + torn)
    (tmp_path / "job.json").write_bytes((folder / "job.json").read_bytes())
    told = []
    again = run_job(
        make_job(seeds=(0, 1)), Ledger(tmp_path, resume=True), lambda *step: told.append(step)
    )
    assert stable(tmp_path) == stable(folder)
    assert len(told) == 54 - 3 * len(complete)
    expected = json.loads((folder / "result.json").read_text())["runs"]
    found = json.loads((tmp_path / "result.json").read_text())["runs"]
    for one, other in zip(expected, found, strict=True):
        same = {k for k in one if k not in ("ms_per_batch", "images_per_second", "peak_memory")}
        assert {k: one[k] for k in same} == {k: other[k] for k in same}
    assert again.runs[0].result.ece == expected[0]["ece"]


def test_a_continual_stream_is_one_unit_a_method(tmp_path):
    job = make_job(protocol=Protocol(stream="continual", batch_size=8))
    run_job(job, Ledger(tmp_path / "uncut"))
    assert {line["unit"] for line in lines(tmp_path / "uncut")} == {"continual"}
    cut = tmp_path / "cut"
    cut.mkdir()
    for name in ("job.json", "records.jsonl"):
        (cut / name).write_bytes((tmp_path / "uncut" / name).read_bytes())
    # The sums of one method only were written before the end: the others are run again.
    first = (tmp_path / "uncut" / "measures.jsonl").read_bytes().splitlines(keepends=True)[0]
    (cut / "measures.jsonl").write_bytes(first)
    told = []
    run_job(job, Ledger(cut, resume=True), lambda *step: told.append(step))
    assert len(told) == 2 * 9
    assert stable(cut) == stable(tmp_path / "uncut")


def test_other_settings_are_refused_by_name(uncut, tmp_path):
    folder, _ = uncut
    fewer = make_configs(["source"], {})
    for change, differences in (
        ({"protocol": Protocol(batch_size=10)}, {"protocol.batch_size": (8, 10)}),
        ({"methods": make_configs(METHODS, {"lr": 0.1})}, {"methods.tent.lr": (0.05, 0.1)}),
        ({"methods": fewer}, lambda found: found["methods.tent.lr"] == (0.05, None)),
        ({"seeds": (0,)}, {"seeds.1": (1, None)}),
        ({"model": tiny_model("group_norm")}, lambda found: list(found) == ["model"]),
    ):
        options = {"seeds": (0, 1), "methods": make_configs(METHODS, {"lr": 0.05}), **change}
        with raises("other_settings", differences=differences):
            run_job(make_job(**options), Ledger(folder, resume=True))
    assert len(stable(folder)) == 54


def test_a_folder_is_not_overwritten_unasked(uncut, tmp_path):
    folder, _ = uncut
    with raises("already_exists", path=folder):
        Ledger(folder)
    with raises("conflicting_options", options=("resume", "force")):
        Ledger(folder, resume=True, force=True)
    (tmp_path / "file").write_text("precious")
    with raises("not_a_folder", path=tmp_path / "file"):
        Ledger(tmp_path / "file")
    with raises("not_writable", path=tmp_path / "file" / "x"):
        Ledger(tmp_path / "file" / "x").begin({})
    own = tmp_path / "own"
    run_job(make_job(methods=make_configs(["norm"], {})), Ledger(own))
    (own / "notes.txt").write_text("kept")
    run_job(make_job(methods=make_configs(["source"], {})), Ledger(own, force=True))
    assert {line["method"] for line in lines(own)} == {"source"}
    assert (own / "notes.txt").read_text() == "kept"
    text = (own / "records.jsonl").read_bytes()
    (own / "records.jsonl").write_bytes(b"nonsense\n" + text)
    with raises("unreadable_file", path=own / "records.jsonl"):
        run_job(make_job(methods=make_configs(["source"], {})), Ledger(own, resume=True))


def test_an_artifact_is_prepared_once_and_found_again(tmp_path, monkeypatch):
    made = []
    source = tiny_batches(4, 8, 0)

    def prepare(self, model, methods, wrapping, progress=None):
        made.append(tuple(methods))
        parts = [acclimate.Penalty(n_samples=16), "prototypes", "features"]
        return acclimate.prepare(model, source, parts=parts)

    monkeypatch.setattr(Preparation, "run", prepare)
    options = {
        "methods": make_configs(["source", "swr_nsp"], {}),
        "preparation": Preparation(source="builtin"),
    }
    result = run_job(make_job(**options), Ledger(tmp_path))
    (tmp_path / "records.jsonl").write_bytes(b"")
    again = run_job(make_job(**options), Ledger(tmp_path, resume=True))
    assert made == [("source", "swr_nsp")]
    assert again.provenance["artifact_sha256"] == result.provenance["artifact_sha256"]
    assert [r.result.error for r in again.runs] == [r.result.error for r in result.runs]
    with raises("other_settings", differences={"artifact.n": (None, 9)}):
        run_job(
            make_job(**{**options, "preparation": Preparation(source="builtin", n=9)}),
            Ledger(tmp_path, resume=True),
        )
