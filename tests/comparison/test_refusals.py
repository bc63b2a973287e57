"""What a comparison refuses, when, and that nothing is left behind that stands in the way."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import acclimate
from acclimate.comparison import (
    Ledger,
    Preparation,
    Protocol,
    Wrapping,
    check_job,
    find_unsuitable,
    make_configs,
    run_job,
)
from acclimate.data.copies import corrupt_folder
from acclimate.streams import Domain
from acclimate.testing.models import tiny_batches, tiny_model
from tests.cli.test_cli import run
from tests.codes import raises
from tests.comparison.jobs import METHODS, lines, make_job
from tests.data.test_loading import make_folder
from tests.images import labelled_batches

MODEL = ("--model", "tests.cli_models:tiny_cnn", "--device", "cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "photos"
    for name in ("dawn", "dusk"):
        make_folder(root / name)
    return root


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"stream": "recurring", "times": 0}, "times"),
        ({"stream": "recurring", "times": -1}, "times"),
        ({"stream": "dirichlet", "delta": 0.0}, "delta"),
        ({"stream": "dirichlet", "delta": math.nan}, "delta"),
        ({"stream": "imbalanced", "ratio": 0.5}, "ratio"),
        ({"stream": "imbalanced", "ratio": math.inf}, "ratio"),
        ({"stream": "one_class", "n_batches": 0}, "n_batches"),
        ({"stream": "one_class", "n_classes": 0}, "n_classes"),
        ({"stream": "video", "frames": 0}, "frames"),
        ({"stream": "video", "n_scenes": -1}, "n_scenes"),
        ({"stream": "alternating", "period": 0}, "period"),
        ({"stream": "foreign", "share": 1.0}, "share"),
        ({"stream": "foreign", "share": 0.1, "batch_size": 2}, "share"),
        ({"stream": "markov", "n_samples": 0}, "n_samples"),
        ({"stream": "markov", "domain_correlation": 1.5}, "domain_correlation"),
        ({"stream": "markov", "class_correlation": math.nan}, "class_correlation"),
        ({"stream": "markov", "domain_ratio": 0.1}, "domain_ratio"),
        ({"stream": "markov", "class_ratio": math.inf}, "class_ratio"),
        ({"window": 1}, "window"),
        ({"window": -3}, "window"),
    ],
)
def test_a_protocol_is_checked_when_it_is_made(options, option):
    with raises("out_of_range", option=option, found=lambda found: found is options[option]):
        Protocol(**options)


def test_a_job_is_checked_before_anything_is_written():
    job = make_job(protocol=Protocol(clean_probe=True))
    assert check_job(job).protocol == job.protocol
    with raises("no_clean_images", name="toys"):
        check_job(replace(job, data=replace(job.data, clean=None)))
    turns = replace(job, protocol=Protocol(stream="alternating"))
    with raises("no_clean_images", name="toys"):
        check_job(replace(turns, data=replace(job.data, clean=None)))
    groups = {"wide": (Domain("wide", torch.rand(4, 5, 8, 8), torch.zeros(4).long()),)}
    with raises("model_rejects_input", found=(2, 5, 8, 8)):
        check_job(make_job(data=replace(job.data, groups=groups)))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(len(job.data.classes)))
    model(job.data.domains[0].take(torch.arange(2))[0])
    with raises(
        "method_refused",
        methods=("norm", "tent"),
        reasons=lambda reasons: list(reasons) == ["norm", "tent"] and all(reasons.values()),
    ):
        check_job(make_job(model=model))


def test_the_check_leaves_a_model_in_training_as_it_is():
    model = tiny_model("batch_norm").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_job(make_job(model=model))
    assert model.training
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


def test_a_refused_call_leaves_nothing_behind(tmp_path):
    other = acclimate.prepare(tiny_model("group_norm"), tiny_batches(4, 8, 0), parts=["prototypes"])
    job = make_job(wrapping=Wrapping(artifact=other))
    with raises("other_model"):
        run_job(job, Ledger(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    notes = tmp_path / "kept" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("precious")
    with raises("other_model"):
        run_job(job, Ledger(notes.parent))
    assert [path.name for path in notes.parent.iterdir()] == ["notes.txt"]
    # What was recorded before is not thrown away by a call that is refused, or fails, later.
    run_job(make_job(), Ledger(notes.parent))
    n_records = len(lines(notes.parent))
    with raises("other_settings", differences=lambda found: list(found) == ["artifact"]):
        run_job(job, Ledger(notes.parent, resume=True))
    ledger = Ledger(notes.parent, resume=True)
    ledger.begin(make_job().settings())
    ledger.withdraw()
    assert len(lines(notes.parent)) == n_records > 0


def test_what_differs_comes_before_what_is_missing(tmp_path):
    options = {"methods": make_configs(METHODS, {}), "protocol": Protocol(batch_size=8)}
    run_job(make_job(**options), Ledger(tmp_path))
    other = {"methods": make_configs(["source"], {}), "protocol": Protocol(batch_size=10)}
    with raises("other_settings") as caught:
        run_job(make_job(**other), Ledger(tmp_path, resume=True))
    differences = list(caught.value.differences.items())
    assert differences[0] == ("protocol.batch_size", (8, 10))
    assert all(now is None for _, (_, now) in differences[1:])


def test_a_source_is_checked_before_the_model_is_loaded(tmp_path):
    with raises("unknown_name", kind="source data set", name="nowhere"):
        Preparation(source="nowhere")
    with raises("out_of_range", option="source_images", found=0):
        Preparation(source="builtin", n=0)
    with raises("not_applicable", option="source_images"):
        Preparation(source=str(tmp_path), n=5)


def test_methods_that_an_artifact_cannot_serve_are_found_and_the_reason_names_what_it_lacks():
    model = tiny_model("batch_norm")
    configs = make_configs(["source", "eata", "tfa", "ttt_pp"], {})
    assert list(find_unsuitable(model, configs)) == ["ttt_pp"]
    source = tiny_batches(4, 8, 0)
    artifact = acclimate.prepare(model, source, parts=["prototypes"])
    found = find_unsuitable(model, configs, artifact)
    assert list(found) == ["eata", "tfa", "ttt_pp"]
    assert "fisher" in found["eata"]
    artifact = acclimate.prepare(model, source, parts=["fisher", "contrast"])
    found = find_unsuitable(model, configs, artifact)
    assert list(found) == ["ttt_pp"]
    assert "projection head" in found["ttt_pp"]


def test_all_methods_are_those_that_can_run(photos, tmp_path):
    words = ["eval", *MODEL, "--data", photos / "dusk", "--source-data", photos / "dawn"]
    result = run(*words, "--images", "4", "--method", "all", "--out", tmp_path / "out")
    assert "left out: ttt_pp. " in result.stderr
    assert "left out: note. " in result.stderr
    rows = json.loads((tmp_path / "out" / "result.json").read_text())["runs"]
    expected = set(acclimate.list_methods()) - {"ttt_pp", "note", "supervised"}
    assert {row["method"] for row in rows} == expected


def test_mistakes_on_the_command_line(photos, tmp_path):
    out = tmp_path / "out"
    common = ["eval", *MODEL, "--out", out, "--method", "norm", "--data", photos]
    with raises("no_clean_images", name=str(photos)):
        run(*common, "--clean-probe")
    for option, value in (("source_data", photos), ("source_images", "5")):
        with raises("conflicting_options", options=("artifact", option)):
            words = [f"--{option.replace('_', '-')}", value]
            run(*common, "--artifact", tmp_path / "any.acclimate", *words)
    with raises("method_refused", methods=lambda methods: "tent" in methods):
        run(*common, "--method", "tent", "--model", "tests.cli_models:plain_mlp")
    assert not out.exists()


def test_a_domain_may_have_images_of_one_known_class(photos, tmp_path):
    root = shutil.copytree(photos, tmp_path / "photos")
    for name in ("dog", "eel", "fox"):
        shutil.rmtree(root / "dusk" / name)
    result = run("eval", *MODEL, "--data", root, "--method", "source", "--out", tmp_path / "out")
    assert "15 samples in all" in result.stdout
    assert labelled_batches(root / "dusk", classes=["fox", "cat"]).classes == ("fox", "cat")
    with raises("too_few_classes", expected=2, found=1):
        labelled_batches(root / "dusk")


def test_nothing_to_corrupt_is_an_error(tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(2):
        (photos / f"{number}.png").write_bytes(b"no image")
    with raises("unreadable_images", paths=lambda paths: paths[0] == photos / "0.png"):
        corrupt_folder(photos, tmp_path / "out", ["brightness"], [1])
    Image.new("RGB", (32, 32)).save(photos / "good.png")
    (tmp_path / "out" / "generated.json").unlink()
    counts = corrupt_folder(photos, tmp_path / "out", ["brightness"], [1])
    assert counts.n_written == 1
    assert set(counts.unreadable.values()) == {"its header is damaged"}
