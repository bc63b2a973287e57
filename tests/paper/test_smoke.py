"""Every table and figure really runs on the built-in task."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from acclimate.bench import Event
from acclimate.errors import InvalidConfig
from acclimate.paper import EXPERIMENTS, Experiment, Reproduction, figures, reproduce
from tests.codes import raises

FIGURES = {
    "fig-1": ["fig-1.svg"],
    "fig-6": ["fig-6.svg", "fig-6.html"],
    "fig-s1": ["fig-s1.svg"],
    "fig-s2": ["fig-s2.svg"],
    "fig-s3": ["fig-s3.png"],
}
# Table 6 trains models first, and has tests of its own.
RUNNABLE = [n for n, own in EXPERIMENTS.items() if own.plan is None]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of jobs for all: what tables have in common is run once."""
    return tmp_path_factory.mktemp("store")


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNNABLE)
def test_it_runs(name: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "fig-6" and importlib.util.find_spec("sklearn") is None:
        # All of it but the library, which is an extra.
        monkeypatch.setattr(figures, "check_tsne", lambda: None)
        monkeypatch.setattr(figures, "embed", lambda values, seed: values[:, :2])
    failures: list[Any] = []

    def watch(event: Event) -> None:
        if event.kind == "failed":
            failures.append((event.entry.label, event.text))

    experiment = EXPERIMENTS[name]
    found = reproduce(experiment, "smoke", tmp_path, store=store, n_workers=0, on_event=watch)
    assert not failures
    check(found, experiment, tmp_path)


def check(found: Reproduction, experiment: Experiment, folder: Path) -> None:
    """Check what was found at the smallest scale, and the files in the folder."""
    name = experiment.id
    assert not found.failed
    entries = experiment.suite("smoke").entries
    assert len(found.outcomes) == len(entries)
    assert {str(e.axes["row"]) for e in entries} <= {row.label for row in found.table.rows}
    assert all(row.is_measured or row.is_published for row in found.table.rows)
    assert len(found.verdicts) >= 1
    files = ["table.md", "table.tex", "table.html", "result.json", *FIGURES.get(name, [])]
    assert [path.name for path in found.files] == files
    assert all(path.stat().st_size > 200 for path in found.files)
    result = json.loads((folder / "result.json").read_text())
    assert (result["experiment"], result["scale"]) == (name, "smoke")
    assert len(result["jobs"]) == len(entries)
    for job in result["jobs"]:
        assert job["provenance"]
        assert 0 <= job["summary"]["error"] <= 1
    notes = "\n".join(result["table"]["notes"])
    assert "toy task" in notes
    assert re.search(r"Protocol, built-in task: .*reset before each domain", notes)
    assert "Selection: hyper-parameters as published" in notes


def test_it_runs_once_and_the_same_call_again_runs_nothing(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["table-s5"]  # a small one, so that one is quick
    kinds: list[list[str]] = [[], []]
    tables = []
    for seen in kinds:

        def watch(event: Event, seen: list[str] = seen) -> None:
            seen.append(event.kind)

        found = reproduce(experiment, "smoke", tmp_path, n_workers=0, on_event=watch)
        tables.append(found.table)
        check(found, experiment, tmp_path)
    assert kinds[0].count("finished") == 2
    assert kinds[1] == ["found", "found"]
    assert tables[0] == tables[1]


def test_weights_that_are_nowhere_are_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCLIMATE_DATA", str(tmp_path / "data"))
    with raises("not_found", path=tmp_path / "data" / "zoo" / "resnet32-cifar100.safetensors"):
        reproduce(EXPERIMENTS["table-2"], "small", tmp_path / "out", n_workers=0)
    assert not (tmp_path / "out").exists()


def test_a_failed_job_is_shown_and_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from acclimate.methods.swr_fixmatch import SwrFixmatch

    def fail(*_: Any) -> Any:
        raise InvalidConfig("diverged", "broken on purpose", step=1)

    monkeypatch.setattr(SwrFixmatch, "loss", fail)
    found = reproduce(EXPERIMENTS["text-fixmatch"], "smoke", tmp_path, n_workers=0)
    assert [entry.label for entry in found.failed] == ["SWR + FixMatch"]
    assert any("1 of 3 jobs failed: SWR + FixMatch" in note for note in found.table.notes)
    reasons = [verdict.reason for verdict in found.verdicts]
    assert "not there: SWR + FixMatch error" in reasons
