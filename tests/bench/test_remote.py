"""Jobs whose folder, and maybe whose files, are on another machine; here both ends of the line."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from acclimate.bench import JobSpec, Preparing
from acclimate.bench import load as own_load
from acclimate.bench.attempt import End, Setup, try_job
from acclimate.bench.desk import Desk, Goods
from acclimate.bench.execute import RunOptions
from acclimate.bench.remote import RemoteWorker
from acclimate.bench.run_folder import RunFolder
from acclimate.errors import BadInput
from tests.bench.jobs import make_spec, run_once, stable, sums
from tests.bench.models import N_CLASSES, tiny
from tests.codes import raises
from tests.images import write_images


class Site:
    """Where the folders are: gives jobs to workers, each of which stands for a machine."""

    def __init__(self, root: Path, **manner: Any) -> None:
        self.root = root
        self.setup = Setup(
            artifacts=root / "artifacts", manner=RunOptions(command="by hand", **manner)
        )
        self.shipped: list[Any] = []
        self.goods = Goods(self.setup, self._put)
        self.events: list[tuple[str, int, int, str]] = []

    def _put(self, value: Any) -> Any:
        self.shipped.append(value)
        return value

    def hire(self) -> RemoteWorker:
        n_threads = torch.get_num_threads()
        return RemoteWorker(self.setup.to_dict(), n_threads, str(Path.cwd()), {})

    def run(
        self, worker: RemoteWorker, spec: JobSpec, name: str, stop_after: int | None = None
    ) -> End:
        def tell(*event: Any) -> None:
            self.events.append(event)
            if stop_after is not None and event[0] == "progress" and event[1] >= stop_after:
                worker.stop()

        desk = Desk(spec, self.goods, tell, worker.answer, lambda: False)
        said = worker.run(spec.to_dict(), self.goods.sum_files(spec))
        folder = RunFolder(self.root / name)
        end = try_job(spec, folder, lambda: None, lambda sink: desk.serve(sink, said))
        assert desk.is_over
        return end


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


def check_same(spec: JobSpec, folder: Path, scratch: Path) -> None:
    assert run_once(spec, scratch / folder.name) == "finished"
    assert stable(folder) == stable(scratch / folder.name)
    assert sums(folder) == sums(scratch / folder.name)


def elsewhere(usual: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    """Do something else on the other machine, which is another thread here."""

    def choose(*arguments: Any, **options: Any) -> Any:
        is_here = threading.current_thread() is threading.main_thread()
        return (usual if is_here else instead)(*arguments, **options)

    return choose


def refuse(*arguments: Any, **options: Any) -> Any:
    raise BadInput("not_found", "there is no such thing on this machine.", path="nowhere")


def test_a_job_gives_the_same_from_afar(site: Site, tmp_path: Path) -> None:
    spec = make_spec("tent", protocol={"batch_size": 4, "clean_probe": True})
    assert site.run(site.hire(), spec, "tent") == "finished"
    check_same(spec, site.root / "tent", tmp_path / "alone")
    written = json.loads((site.root / "tent" / "result.json").read_text())
    alone = json.loads((tmp_path / "alone" / "tent" / "result.json").read_text())
    for name in ("spec", "model", "data", "settings", "command", "protocol_line"):
        assert written["provenance"][name] == alone["provenance"][name]
    progress = [event for event in site.events if event[0] == "progress"]
    assert progress[0] == ("progress", 0, 24, "")
    assert progress[-1] == ("progress", 24, 24, "")
    assert site.shipped == []


def test_a_job_goes_on_on_another_machine(tmp_path: Path, monkeypatch) -> None:
    """It waits at a gate that is opened when it was asked to stop, and tells of every batch."""
    gate = tmp_path / "gate"
    monkeypatch.setenv("ACCLIMATE_TEST_GATE", str(gate))
    monkeypatch.setenv("ACCLIMATE_TEST_GATE_AFTER", "5")
    monkeypatch.setattr("acclimate.bench.remote._SAY_EVERY", 0.0)
    stop = RemoteWorker.stop
    monkeypatch.setattr(RemoteWorker, "stop", lambda own: (stop(own), gate.touch()))
    site = Site(tmp_path / "site", checkpoint_every=1)
    spec = make_spec("tent", model="tests.bench.models:gated", protocol={"batch_size": 4})
    assert site.run(site.hire(), spec, "tent", stop_after=2) == "stopped"
    folder = RunFolder(site.root / "tent")
    n_done, _ = folder.progress
    assert folder.state == "cut"
    assert 2 <= n_done < 12
    site.events.clear()
    assert site.run(site.hire(), spec, "tent") == "finished"
    assert ("progress", n_done, 12, "") in site.events
    check_same(spec, folder.path, tmp_path / "alone")
    assert not list(folder.path.glob("*.state"))


def test_an_artifact_is_made_once_and_sent_to_the_others(site: Site, tmp_path: Path) -> None:
    first, second = make_spec("swr"), make_spec("tent", terms={"swr": {}})
    one, other = site.hire(), site.hire()
    assert site.run(one, first, "swr") == "finished"
    (made,) = (site.root / "artifacts").glob("*.acclimate")
    assert site.shipped == []
    assert site.run(other, second, "tent") == "finished"
    assert site.run(site.hire(), replace(second, seed=1), "again") == "finished"
    assert made.read_bytes() in site.shipped
    # The last one has another seed, so another artifact; it was made there.
    assert len(list((site.root / "artifacts").glob("*.acclimate"))) == 2
    assert len(site.shipped) == 1
    check_same(first, site.root / "swr", tmp_path / "alone")
    check_same(second, site.root / "tent", tmp_path / "alone")
    stages = [text for kind, _, _, text in site.events if kind == "stage"]
    assert stages.count("preparing an artifact") == 2


def test_what_the_guard_needs_is_made_once_for_all_machines(site: Site, tmp_path: Path) -> None:
    accuracy = {"n_samples": 64, "severities": [5], "n_runs": 4, "shifts": ["saturate"]}
    how = Preparing(images=96, parts={"penalty": {"n_samples": 8}, "accuracy": accuracy})
    first, second = (make_spec(name, guard=True, prepare=how) for name in ("tent", "swr"))
    assert site.run(site.hire(), first, "tent") == "finished"
    assert site.run(site.hire(), second, "swr") == "finished"
    assert len(list((site.root / "artifacts").glob("*.acclimate"))) == 2
    assert len(site.shipped) == 1
    check_same(second, site.root / "swr", tmp_path / "alone")


def test_weights_that_a_machine_has_not_are_sent_once(
    site: Site, tmp_path: Path, monkeypatch
) -> None:
    path = tmp_path / "tiny.safetensors"
    state = {name: -value for name, value in tiny().state_dict().items()}
    state["1.running_var"] = state["1.running_var"].neg()
    save_file(state, path)
    spec = make_spec("norm", weights=str(path))
    assert site.run(site.hire(), spec, "near") == "finished"
    assert site.shipped == []
    monkeypatch.setattr("acclimate.bench.remote.has_file", lambda name, sha256: False)
    worker = site.hire()
    assert site.run(worker, spec, "far") == "finished"
    assert site.run(worker, replace(spec, seed=1), "next") == "finished"
    assert site.run(site.hire(), replace(spec, seed=2), "other") == "finished"
    assert site.shipped == [path.read_bytes()]
    assert stable(site.root / "far") == stable(site.root / "near")
    for name in ("near", "far"):
        origin = json.loads((site.root / name / "result.json").read_text())["provenance"]
        assert origin["spec"]["weights"] == origin["model"]["file"] == str(path)
    check_same(spec, site.root / "far", tmp_path / "alone")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    counts = {f"class{label}": 2 for label in range(N_CLASSES)}
    return write_images(tmp_path / "pictures", counts, size=16)


def test_data_is_read_there_or_sent(site: Site, tmp_path: Path, pictures: Path, monkeypatch):
    spec = make_spec("norm", data=str(pictures), corruptions=None, images=None)
    assert site.run(site.hire(), spec, "same") == "finished"
    assert site.shipped == []
    usual = own_load.load_data

    def load_others(*arguments: Any) -> Any:
        """Return the pictures of a machine where one of them is another one."""
        found = usual(*arguments)
        (domain,) = found.domains
        about = {domain.name: {**found.descriptions[domain.name], "sha256": "another"}}
        dark = replace(domain, x=np.zeros((len(domain), 16, 16, 3), dtype=np.uint8))
        return replace(found, groups={domain.name: (dark,)}, descriptions=about)

    for name, instead in (("absent", refuse), ("altered", load_others)):
        with monkeypatch.context() as patch:
            patch.setattr(own_load, "load_data", elsewhere(usual, instead))
            assert site.run(site.hire(), spec, name) == "finished"
        assert stable(site.root / name) == stable(site.root / "same")
    assert len(site.shipped) == 1
    check_same(spec, site.root / "absent", tmp_path / "alone")


def test_the_source_is_read_there_or_sent(site: Site, tmp_path: Path, pictures: Path, monkeypatch):
    usual = own_load.Preparation
    monkeypatch.setattr(own_load, "Preparation", elsewhere(usual, refuse))
    spec = make_spec("swr")
    assert site.run(site.hire(), spec, "set") == "finished"
    assert len(site.shipped) == 1
    check_same(spec, site.root / "set", tmp_path / "alone")
    how = replace(spec.prepare, source=str(pictures), images=None)
    own = make_spec("swr", data=str(pictures), corruptions=None, images=None, prepare=how)
    worker = site.hire()
    desk = Desk(own, site.goods, lambda *event: None, worker.answer, lambda: False)
    said = worker.run(own.to_dict(), {})
    with raises("not_found", BadInput, path=str(pictures)):
        desk.serve(None, said)  # type: ignore[arg-type]
    assert not desk.is_over


def test_an_error_there_is_told_here(site: Site) -> None:
    bad = make_spec("norm", model="tests.bench.models:nowhere")
    worker = site.hire()
    assert site.run(worker, bad, "bad") == "failed"
    error = RunFolder(site.root / "bad").read("error.json")
    assert error is not None
    assert (error["type"], error["code"]) == ("BadInput", "unknown_name")
    assert (error["data"]["kind"], error["data"]["name"]) == ("function", "nowhere")
    assert "nowhere" in error["message"]
    assert "Traceback" in error["traceback"]
    assert site.run(worker, make_spec("norm"), "good") == "finished"
