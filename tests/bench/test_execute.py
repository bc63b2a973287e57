"""One job: what is measured, what it says of itself, and going on after a cut."""

from __future__ import annotations

import copy
import dataclasses
import json
import warnings
from pathlib import Path

import pytest
import torch

import acclimate
from acclimate.bench import Entry, JobSpec, Preparing
from acclimate.bench.load import Loader
from acclimate.bench.run_folder import RunFolder
from acclimate.bench.suite import read_outcome
from acclimate.builtin import SPLITS, render
from acclimate.corruptions import apply
from acclimate.errors import AcclimateWarning
from tests.bench import models
from tests.bench.jobs import (
    PREPARE,
    make_spec,
    read_lines,
    run_once,
    run_to_failure,
    stable,
    sums,
)
from tests.codes import check_coded


def read_result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def read_error(folder: Path) -> dict:
    return json.loads((folder / "error.json").read_text())


def count_errors(spec: JobSpec, artifact: acclimate.Artifact | None, **options) -> list[int]:
    """Errors of each batch by a loop written out, on images made without the engine."""
    images, labels = render(spec.images, SPLITS["test"])
    model = copy.deepcopy(models.tiny()).to(memory_format=torch.channels_last)
    adapted = acclimate.adapt(model, spec.method, artifact, seed=spec.seed, **options)
    wrong = []
    for corruption in spec.corruptions or ():
        adapted.reset()
        x = torch.from_numpy(apply(images, corruption, 5, 0)).permute(0, 3, 1, 2).float() / 255
        for start in range(0, len(x), 4):
            logits = adapted(x[start : start + 4].contiguous())
            wrong.append(int((logits.argmax(1).numpy() != labels[start : start + 4]).sum()))
    return wrong


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        (make_spec("source"), {}),
        (make_spec("tent", options={"lr": 0.05}), {"lr": 0.05}),
        (make_spec("swr_nsp", seed=3), {}),
        (
            make_spec("tent", options={"lr": 0.05}, terms={"swr": {"strength": 900.0}}),
            {"lr": 0.05, "terms": [acclimate.Swr(strength=900.0)]},
        ),
        (make_spec("entropy", terms={"nsp": {}}, seed=1), {"terms": ["nsp"]}),
    ],
    ids=["source", "tent", "swr_nsp", "tent+swr", "entropy+nsp"],
)
def test_errors_are_those_of_a_plain_loop(tmp_path: Path, spec: JobSpec, options) -> None:
    assert run_once(spec, tmp_path / "job") == "finished"
    artifact = None
    if spec.artifact_key is not None:
        artifact = acclimate.Artifact.load(
            tmp_path / "artifacts" / f"{spec.artifact_key}.acclimate"
        )
    assert [line["n_errors"] for line in read_lines(tmp_path / "job")] == count_errors(
        spec, artifact, **options
    )


def test_the_artifact_is_that_of_prepare(tmp_path: Path) -> None:
    spec = make_spec("swr", seed=2, prepare=Preparing(**PREPARE))
    assert run_once(spec, tmp_path / "job") == "finished"
    made = acclimate.Artifact.load(tmp_path / "artifacts" / f"{spec.artifact_key}.acclimate")
    images, labels = render(48, SPLITS["train"])
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    order = torch.randperm(48, generator=torch.Generator().manual_seed(2))
    batch = (x[order].contiguous(), torch.from_numpy(labels)[order])
    expected = acclimate.prepare(
        models.tiny(),
        [batch],
        parts=[acclimate.Penalty(n_samples=8)],
        seed=2,
    )
    assert made.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(made.tensors[name], value) for name, value in expected.tensors.items())
    assert made.parts["penalty"]["n_samples"] == 8


@pytest.mark.parametrize(
    ("stream", "method"),
    [
        *(
            ("continual", own)
            for own in ("norm", "tent", "swr_nsp", "cotta", "rotta", "sar", "memo")
        ),
        *(("reset_each", own) for own in ("norm", "tent", "swr_nsp")),
        # What a method keeps does not depend on the stream.
        *(
            pytest.param("reset_each", own, marks=pytest.mark.slow)
            for own in ("cotta", "rotta", "sar", "memo")
        ),
    ],
)
def test_a_job_that_is_stopped_after_every_batch_gives_the_same_records(
    tmp_path: Path, method: str, stream: str
) -> None:
    costly = {"memo": {"n_copies": 2}, "cotta": {"n_augmentations": 2, "confidence": 1.0}}
    protocol = {"batch_size": 4, "stream": stream}
    spec = make_spec(method, images=8, protocol=protocol, options=costly.get(method, {}))
    assert run_once(spec, tmp_path / "uncut") == "finished"
    ends = []
    while not ends or ends[-1] == "stopped":
        ends.append(run_once(spec, tmp_path / "cut", stop_after=1))
    assert ends in (["stopped"] * 4 + ["finished"], ["stopped"] * 3 + ["finished"])
    assert stable(tmp_path / "cut") == stable(tmp_path / "uncut")
    assert sums(tmp_path / "cut") == sums(tmp_path / "uncut")
    one, other = (read_result(tmp_path / name)["summary"] for name in ("cut", "uncut"))
    for name in one.keys() - {"ms_per_batch", "images_per_second", "peak_memory"}:
        assert one[name] == other[name], name
    assert not list((tmp_path / "cut").glob("*.state"))


@pytest.mark.parametrize(
    "protocol",
    [
        {"batch_size": 4, "stream": "mixed"},
        {"batch_size": 4, "stream": "continual", "epochs": 2, "clean_probe": True},
        {"batch_size": 4, "window": 5},
        {"batch_size": 4, "episodic": True},
    ],
)
def test_a_cut_in_any_kind_of_stream_changes_nothing(tmp_path: Path, protocol) -> None:
    spec = make_spec("tent", images=12, protocol=protocol, options={"lr": 0.05})
    assert run_once(spec, tmp_path / "uncut") == "finished"
    n_batches = len(read_lines(tmp_path / "uncut"))
    end, n_tries = "stopped", 0
    while end == "stopped":
        end = run_once(spec, tmp_path / "cut", stop_after=max(1, n_batches // 3 - 1))
        n_tries += 1
    assert n_tries > 3
    assert stable(tmp_path / "cut") == stable(tmp_path / "uncut")
    assert sums(tmp_path / "cut") == sums(tmp_path / "uncut")
    assert RunFolder(tmp_path / "cut").progress == (n_batches, n_batches)


def test_records_carry_the_terms_of_the_loss(tmp_path: Path) -> None:
    assert run_once(make_spec("swr_nsp"), tmp_path / "ours") == "finished"
    for line in read_lines(tmp_path / "ours"):
        losses = line["losses"]
        assert losses.keys() == {"main", "prototypes", "agreement", "loss"}
        parts = losses["main"] + losses["prototypes"] + losses["agreement"]
        assert losses["loss"] == pytest.approx(parts, abs=1e-5)
    assert run_once(make_spec("tent"), tmp_path / "tent") == "finished"
    for line in read_lines(tmp_path / "tent"):
        # What TENT minimises is the mean entropy of what it predicts.
        assert line["losses"]["loss"] == pytest.approx(line["entropy"], abs=1e-5)
    assert run_once(make_spec("norm"), tmp_path / "norm") == "finished"
    assert all(line["losses"] == {} for line in read_lines(tmp_path / "norm"))


def test_the_result_says_where_it_comes_from(tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    torch.save(models.tiny().state_dict(), weights)
    spec = make_spec("swr_nsp", weights=str(weights))
    assert run_once(spec, tmp_path / "job") == "finished"
    outcome = read_outcome(RunFolder(tmp_path / "job"), Entry(spec, "ours"), "job")
    facts = outcome.provenance
    assert facts["spec"] == spec.to_dict()
    assert facts["command"] == "by hand"
    assert facts["protocol_line"].startswith("reset before each domain; 2 domains")
    assert (facts["order"], facts["reset"]) == ("as in the files", "before each domain")
    assert facts["predicts"] == "before the update"
    assert (facts["n_images"], facts["n_batches"]) == (48, 12)
    assert facts["data"]["fog"]["n"] == 24
    assert len(facts["data"]["fog"]["sha256"]) == 64
    assert facts["model"]["file"] == str(weights)
    assert len(facts["model"]["weights_sha256"]) == len(facts["model"]["file_sha256"]) == 64
    assert facts["method"]["config"]["lr"] == 1e-3
    assert facts["artifact"]["key"] == spec.artifact_key
    assert facts["artifact"]["parts"]["penalty"]["n_samples"] == 8
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["machine"]["n_cores"] >= 1
    assert facts["n_threads"] == torch.get_num_threads()
    assert facts["seconds"]["total"] >= facts["seconds"]["method"] > 0
    assert [text.startswith("This batch has 4 images") for text in facts["warnings"]] == [True]
    summary = read_result(tmp_path / "job")["summary"]
    assert summary["error"] == outcome.result.error
    assert json.loads((tmp_path / "job" / "spec.json").read_text())["key"] == spec.key


def test_a_job_that_is_done_is_not_run_again(tmp_path: Path) -> None:
    spec = make_spec("source")
    assert run_once(spec, tmp_path / "job") == "finished"
    before = (tmp_path / "job" / "result.json").stat().st_mtime_ns
    assert run_once(spec, tmp_path / "job") == "finished"
    assert (tmp_path / "job" / "result.json").stat().st_mtime_ns == before


def test_a_failure_is_kept_and_forgotten_when_the_job_goes_on(tmp_path: Path, monkeypatch) -> None:
    spec = make_spec("tent")
    assert run_once(spec, tmp_path / "job", stop_after=3) == "stopped"

    def break_down(self, x):
        raise ZeroDivisionError("no reason")

    with monkeypatch.context() as patch:
        patch.setattr("acclimate.methods.tent.Tent.loss", break_down)
        assert run_once(spec, tmp_path / "job") == "failed"
    found = read_error(tmp_path / "job")
    assert (found["type"], found["message"]) == ("ZeroDivisionError", "no reason")
    assert "code" not in found
    assert "break_down" in found["traceback"]
    assert "error.json" in found["remedy"]
    assert RunFolder(tmp_path / "job").state == "failed"
    assert RunFolder(tmp_path / "job").progress == (3, 12)
    assert run_once(spec, tmp_path / "job") == "finished"
    assert run_once(spec, tmp_path / "uncut") == "finished"
    assert stable(tmp_path / "job") == stable(tmp_path / "uncut")
    assert not (tmp_path / "job" / "error.json").exists()


@pytest.mark.parametrize(
    ("change", "code", "data"),
    [
        ({"model": "builtinn"}, "unknown_name", {"kind": "model", "name": "builtinn"}),
        ({"model": "tests.cli_models:tiny_cnn"}, "count_mismatch", {"expected": 4, "found": 10}),
        ({"data": "nowhere"}, "unknown_name", {"kind": "data set", "name": "nowhere"}),
        # It needs layers that the model has not, and this one a part that nobody prepared.
        ({"method": "note"}, "method_refused", {"methods": ("note",)}),
        ({"method": "ttt_pp"}, "method_refused", {"methods": ("ttt_pp",)}),
    ],
)
def test_what_cannot_be_run_is_refused(tmp_path: Path, change, code: str, data) -> None:
    spec = dataclasses.replace(make_spec("tent"), **change)
    check_coded(run_to_failure(spec, tmp_path / "job"), code, **data)


def test_warnings_belong_to_the_result(tmp_path: Path, monkeypatch) -> None:
    warning = AcclimateWarning("weights_differ", "strange weights", name="tiny")
    monkeypatch.setattr(
        "acclimate.bench.load.load_named",
        lambda *names: warnings.warn(warning, stacklevel=1) or models.tiny(),
    )
    assert run_once(make_spec("source"), tmp_path / "job") == "finished"
    assert read_result(tmp_path / "job")["provenance"]["warnings"] == ["strange weights"]


def test_a_job_goes_on_with_the_threads_it_began_with(tmp_path: Path, monkeypatch) -> None:
    spec = make_spec("tent")
    used = [2]  # nobody computes with them: two threads of tiny tensors wait for each other
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: used[-1])
    assert run_once(spec, tmp_path / "job", stop_after=2) == "stopped"
    assert used == [2, 2, 2]
    used[:] = [1]
    assert run_once(spec, tmp_path / "job") == "finished"
    assert used == [1, 2, 1]
    assert read_result(tmp_path / "job")["provenance"]["n_threads"] == 2


def test_an_artifact_is_made_once_for_all_that_need_it(tmp_path: Path, monkeypatch) -> None:
    made = []
    plain = Loader.open_source
    monkeypatch.setattr(
        Loader,
        "open_source",
        lambda self, spec, data: made.append(spec.method) or plain(self, spec, data),
    )
    shared = tmp_path / "artifacts"
    for name, spec in {
        "swr": make_spec("swr"),
        "tent": make_spec("tent", terms={"swr": {}}),
        "slow": make_spec("swr", options={"lr": 1e-4}),
        "other": make_spec("swr", seed=1),
    }.items():
        assert run_once(spec, tmp_path / name, shared) == "finished"
    assert made == ["swr", "swr"]
    assert len(list(shared.glob("*.acclimate"))) == 2
