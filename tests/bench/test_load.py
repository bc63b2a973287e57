"""Artifacts of jobs: what is shared between methods is prepared once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import acclimate
from acclimate.bench import JobSpec, Preparing, Suite, load
from tests.bench import models
from tests.bench.jobs import make_spec, run_once, stable
from tests.codes import raises

ACCURACY = {"n_samples": 64, "severities": [5], "n_runs": 4, "shifts": ["saturate"]}
PREPARE = {"images": 96, "parts": {"penalty": {"n_samples": 8}, "accuracy": ACCURACY}}


def guarded(method: str, guard: Any = True, **changes: Any) -> JobSpec:
    return make_spec(method, guard=guard, **{"prepare": Preparing(**PREPARE), **changes})


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The parts of each artifact that is prepared."""
    found: list[tuple[str, ...]] = []
    whole = load.prepare

    def note(*args: Any, parts: Any, **options: Any) -> Any:
        found.append(tuple(part if isinstance(part, str) else part.name for part in parts))
        return whole(*args, parts=parts, **options)

    monkeypatch.setattr(load, "prepare", note)
    return found


def test_methods_share_what_the_guard_needs(
    tmp_path: Path, prepared: list[tuple[str, ...]]
) -> None:
    specs = [
        guarded("tent"),
        guarded("swr", "watch"),
        guarded("source"),
        make_spec("swr", prepare=Preparing(**PREPARE)),
    ]
    for spec in specs:
        assert run_once(spec, tmp_path / spec.key, tmp_path / "artifacts") == "finished"
    assert prepared == [("accuracy",), ("penalty",)]
    assert specs[0].artifact_key == specs[2].artifact_key
    assert len({spec.key for spec in specs}) == 4


def test_joined_parts_are_those_prepared_together(tmp_path: Path) -> None:
    spec = guarded("swr")
    run_once(spec, tmp_path / "job")
    files = [tmp_path / "artifacts" / f"{key}.acclimate" for key in spec.get_pieces()]
    joined = load.join([acclimate.Artifact.load(file) for file in files])
    data = load.Loader(tmp_path).load_data(spec)
    source, classes = load.Loader(tmp_path).open_source(spec, data)
    options = {**ACCURACY, "shifts": ("saturate",), "severities": (5,)}
    whole = acclimate.prepare(
        models.tiny(),
        source,
        parts=[acclimate.Penalty(n_samples=8), acclimate.Accuracy(**options)],
        classes=classes,
        progress=False,
    )
    assert joined.tensors.keys() == whole.tensors.keys()
    assert all(torch.equal(joined.tensors[name], value) for name, value in whole.tensors.items())
    assert joined.parts.keys() == whole.parts.keys()
    assert joined.parts["accuracy"]["n_samples"] == 64


def test_the_result_names_all_files(tmp_path: Path) -> None:
    spec = guarded("swr")
    assert run_once(spec, tmp_path / "job") == "finished"
    told = json.loads((tmp_path / "job" / "result.json").read_text())["provenance"]["artifact"]
    assert told["key"] == spec.artifact_key
    assert told["file"].split(", ") == [f"{key}.acclimate" for key in spec.get_pieces()]
    assert set(told["parts"]) == {"penalty", "accuracy"}


def test_options_of_accuracy_change_the_artifact() -> None:
    spec = guarded("tent")
    more = {**PREPARE["parts"], "accuracy": {**ACCURACY, "n_samples": 128}}
    other = guarded("tent", prepare=Preparing(images=96, parts=more))
    assert spec.artifact_key != other.artifact_key
    without = make_spec("swr", prepare=Preparing(**PREPARE))
    same = make_spec("swr", prepare=Preparing(images=96, parts=more))
    assert without.key == same.key
    with raises("unknown_option", option="n_sample"):
        Preparing(parts={"accuracy": {"n_sample": 64}})


def test_a_guard_that_watches_changes_no_prediction(tmp_path: Path) -> None:
    plain, watched = make_spec("tent"), guarded("tent", "watch")
    assert watched.key not in (plain.key, guarded("tent").key)
    assert JobSpec.from_dict(watched.to_dict()) == watched
    for name, spec in {"a": plain, "b": watched}.items():
        assert run_once(spec, tmp_path / name) == "finished"
    before, after = (
        [(line["n_errors"], line["entropy"]) for line in stable(tmp_path / name)] for name in "ab"
    )
    assert before == after


def test_guards_in_a_suite(tmp_path: Path) -> None:
    file = tmp_path / "suite.toml"
    file.write_text(
        'title = "t"\n[job.prepare.parts.accuracy]\nn_samples = 64\nshifts = ["saturate"]\n'
        'severities = [3, 5]\n[[rows]]\nmethod = "tent"\nguard = "watch"\n'
        '[[rows]]\nmethod = "norm"\nguard = [false, true, "watch"]\n'
    )
    entries = Suite.load(file).entries
    labels = [entry.label for entry in entries]
    assert labels == ["tent, watched", "norm (no guard)", "norm (guard)", "norm (guard watch)"]
    assert len({entry.spec.artifact_key for entry in entries}) == 2
    given = entries[0].spec.prepare.options()["accuracy"]
    assert list(given.shifts) == ["saturate"]  # type: ignore[attr-defined]
    file.write_text('title = "t"\n[[rows]]\nmethod = "tent"\nguard = "on"\n')
    with raises("wrong_type", option="guard", found="on"):
        Suite.load(file)


@pytest.mark.parametrize("guard", [True, "watch"])
def test_a_guarded_job_that_is_cut_gives_the_same_records(
    tmp_path: Path, guard: bool | str
) -> None:
    spec = guarded("tent", guard, images=96, corruptions=("fog",), protocol={"batch_size": 16})
    assert run_once(spec, tmp_path / "whole", tmp_path / "artifacts") == "finished"
    while run_once(spec, tmp_path / "cut", tmp_path / "artifacts", stop_after=1) != "finished":
        pass
    found = stable(tmp_path / "cut")
    assert found == stable(tmp_path / "whole")
    assert found[-1]["estimate"]["n_samples"] >= 32
    told = json.loads((tmp_path / "cut" / "result.json").read_text())["summary"]
    assert told["estimated_error"] is not None
    assert told["by_source"] == sum(line["by_source"] for line in found) / len(found)
