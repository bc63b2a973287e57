"""The demonstration end to end, at a size that takes seconds."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

import acclimate
from acclimate.builtin import CLASSES, SPLITS, load_model, load_split, render
from acclimate.cli.main import app
from acclimate.commands.suites import DemoOptions
from acclimate.corruptions import apply
from acclimate.demo import DemoSettings, run_demo
from acclimate.report import error_table, render_demo
from acclimate.report.stats import Measure
from tests.codes import raises
from tests.demo.predictions import predict_clearly

N, BATCH = 24, 8  # three batches of each shift
SETTINGS = DemoSettings(
    corruptions=("gaussian_noise", "contrast"),
    images=N,
    batch_size=BATCH,
    seeds=2,
    n_source=64,
    n_penalty=32,
)


@pytest.fixture(scope="module")
def told() -> list[tuple[str, int, int | None]]:
    return []


@pytest.fixture(scope="module")
def result(told):
    return run_demo(SETTINGS, lambda *step: told.append(step))


def errors(result) -> list[tuple[str, int, list[int]]]:
    return [
        (run.entry.label, run.entry.spec.seed, [record.n_errors for record in run.result.records])
        for run in result.outcomes
    ]


def test_every_method_meets_every_shift_with_every_seed(result):
    expected = [(method, seed) for method in SETTINGS.methods for seed in (0, 1)]
    assert [(run.entry.label, run.entry.spec.seed) for run in result.outcomes] == expected
    for run in result.outcomes:
        places = [(record.domain, record.n) for record in run.result.records]
        assert places == [("gaussian_noise", BATCH)] * 3 + [("contrast", BATCH)] * 3
        assert all(record.n_skipped == 0 for record in run.result.records)


def test_the_source_row_is_what_a_plain_loop_finds(result):
    model = load_model()
    images, labels = render(N, SPLITS["test"])
    for seed in (0, 1):
        own = next(
            r for r in result.outcomes if r.entry.label == "source" and r.entry.spec.seed == seed
        )
        for name in SETTINGS.corruptions:
            x = torch.from_numpy(apply(images, name, 5, seed)).permute(0, 3, 1, 2) / 255
            wrong = (predict_clearly(model, x).numpy() != labels).sum()
            assert own.result.error_by_domain[name] == wrong / N
    x, y = load_split("test", N)
    wrong = int((predict_clearly(model, x) != y).sum())
    assert result.clean_error == wrong / N


def test_an_adapting_row_is_what_the_public_interface_finds(result):
    """Tent on the second shift, by hand: reset, shuffled by the seed, logits before the update."""
    images, labels = render(N, SPLITS["test"])
    spoilt = apply(images, "contrast", 5, 1).astype(np.float32) / 255
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1)).numpy()
    model = load_model().to(memory_format=torch.channels_last)  # another layout rounds differently
    adapted = acclimate.adapt(model, "tent", seed=1)
    found = []
    for chosen in order.reshape(-1, BATCH):
        x = torch.from_numpy(spoilt[chosen]).permute(0, 3, 1, 2)
        found.append(int((adapted(x).argmax(dim=1).numpy() != labels[chosen]).sum()))
    run = next(r for r in result.outcomes if r.entry.label == "tent" and r.entry.spec.seed == 1)
    assert [r.n_errors for r in run.result.records if r.domain == "contrast"] == found


def test_the_same_seed_gives_the_same_errors_and_another_does_not(result):
    again = run_demo(DemoSettings(**{**vars(SETTINGS), "seeds": 1}))
    assert errors(again) == [run for run in errors(result) if run[1] == 0]
    first, second = ([own for _, s, own in errors(result) if s == seed] for seed in (0, 1))
    assert first != second
    assert result.artifacts[0].tensors.keys() == result.artifacts[1].tensors.keys()
    assert result.layers[3].penalties[0] != result.layers[3].penalties[1]


def test_layers_are_the_parameters_of_the_model_in_order(result):
    names = [name for name, _ in load_model().named_parameters()]
    assert [layer.name for layer in result.layers] == names
    for layer in result.layers:
        expected = [float(a.tensors[f"penalty/{layer.name}"]) for a in result.artifacts]
        assert list(layer.penalties) == expected


def test_nothing_is_prepared_for_methods_that_need_no_artifact():
    told = []
    small = replace(SETTINGS, images=8, n_source=32, seeds=1, methods=("source", "norm"))
    result = run_demo(small, lambda *step: told.append(step[0]))
    assert set(told) == {"stream"}
    assert (result.artifacts, result.layers) == ((), ())
    assert "artifact" not in result.protocol
    page = render_demo(result.page())
    assert "Penalty by layer" not in page
    assert result.models[0].sha256 in page
    assert result.to_dict()["layers"] == []


def test_samples_are_the_first_of_the_last_batch(result):
    images, labels = render(N, SPLITS["test"])
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0)).tolist()
    spoilt = apply(images, "contrast", 5, 0)
    own = [sample for sample in result.samples if sample.domain == "contrast"]
    assert len(own) == 4
    for place, sample in zip(order[-BATCH:][:4], own, strict=True):
        assert sample.truth == CLASSES[labels[place]]
        assert (np.asarray(Image.open(io.BytesIO(sample.clean))) == images[place]).all()
        assert (np.asarray(Image.open(io.BytesIO(sample.shifted))) == spoilt[place]).all()
        assert list(sample.predictions) == list(SETTINGS.methods)
    model = load_model().to(memory_format=torch.channels_last)
    adapted = acclimate.adapt(model, "tent", seed=0)
    for chosen in np.reshape(order, (-1, BATCH)):
        x = torch.from_numpy(spoilt[chosen].astype(np.float32) / 255).permute(0, 3, 1, 2)
        last = adapted(x).argmax(dim=1)[:4].tolist()
    assert [sample.predictions["tent"] for sample in own] == [CLASSES[i] for i in last]


def test_progress_reaches_its_end_once(told, result):
    streamed = [(done, total) for stage, done, total in told if stage == "stream"]
    total = len(SETTINGS.methods) * 2 * 3 * 2
    assert streamed == [(done, total) for done in range(total + 1)]
    assert {stage for stage, *_ in told} > {"penalty, seed 0", "penalty, seed 1"}


def test_numbers_as_json_are_those_of_the_records(result):
    numbers = json.loads(result.to_json())
    assert numbers["provenance"]["command"] == SETTINGS.command
    assert numbers["settings"]["n_source"] == 64
    assert len(numbers["provenance"]["model_sha256"]) == 64
    assert set(numbers["provenance"]["versions"]) >= {"acclimate", "torch", "numpy", "python"}
    assert numbers["clean_error"] == pytest.approx(100 * result.clean_error, abs=1e-4)
    for run, found in zip(result.outcomes, numbers["runs"], strict=True):
        for name in SETTINGS.corruptions:
            records = [r for r in run.result.records if r.domain == name]
            assert found["error_by_batch"][name] == [100 * r.n_errors / r.n for r in records]
    for row in numbers["table"]:
        own = [f for f in numbers["runs"] if f["method"] == row["method"]]
        for name in SETTINGS.corruptions:
            values = [f["error_by_domain"][name] for f in own]
            assert row["errors"][name]["mean"] == pytest.approx(np.mean(values), abs=2e-4)
            # The seed changes no error of some methods, which then have no deviation.
            deviation = row["errors"][name]["deviation"]
            assert deviation is not None or row["method"] in ("source", "norm")
            assert (deviation or 0.0) == pytest.approx(np.std(values, ddof=1), abs=2e-4)
        mean = np.mean([f["error"] for f in own])
        assert row["mean"]["mean"] == pytest.approx(mean, abs=2e-4)


def test_the_page_states_protocol_and_provenance(result):
    page = render_demo(result.page())
    assert result.artifacts[0].card["model"]["weights_sha256"] in page
    assert SETTINGS.command in page
    assert "before each shift" in page
    assert torch.__version__ in page
    for name in SETTINGS.methods:
        assert f"<dt><code>{name}</code></dt>" in page


@pytest.mark.parametrize(
    ("change", "code", "data"),
    [
        ({"methods": ("tnet",)}, "unknown_method", {"name": "tnet"}),
        ({"methods": ()}, "missing_option", {"option": "methods"}),
        ({"methods": ("tent", "tent")}, "duplicate", {"name": "tent"}),
        ({"corruptions": ("fogg",)}, "unknown_name", {"kind": "corruption", "name": "fogg"}),
        ({"images": 0}, "out_of_range", {"option": "images", "found": 0}),
        ({"seeds": 0}, "out_of_range", {"option": "seeds", "found": 0}),
        ({"severity": 6}, "out_of_range", {"option": "severity", "found": 6}),
        ({"costly_images": -1}, "out_of_range", {"option": "costly_images", "found": -1}),
    ],
)
def test_settings_that_cannot_be_run_are_refused(change, code, data):
    with raises(code, **data):
        DemoSettings(**change)


def test_the_command_offers_the_defaults_of_the_settings():
    options = DemoOptions().to_dict()
    for name, default in vars(DemoSettings()).items():
        assert options.get(name, default) == default
        assert name in options or name.startswith("n_")


def test_the_command_prints_and_writes(tmp_path, result, monkeypatch):
    asked = []

    def give(settings, progress):
        asked.append(settings)
        return result

    monkeypatch.setattr("acclimate.demo.run_demo", give)
    page, numbers = tmp_path / "page.html", tmp_path / "numbers.json"
    words = ["demo", "--corruptions", "fog, contrast", "--images", "60", "--batch-size", "20"]
    words += ["--methods", "source,tent", "--out", str(page), "--json", str(numbers)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert asked == [
        DemoSettings(
            methods=("source", "tent"), corruptions=("fog", "contrast"), images=60, batch_size=20
        )
    ]
    assert page.read_text(encoding="utf-8") == render_demo(result.page())
    assert numbers.read_text(encoding="utf-8") == result.to_json()
    assert result.finding in " ".join(done.stdout.split())
    assert page.name in done.stdout
    for _, row in result.summary.rows:
        lines = [line for line in done.stdout.splitlines() if line.split()[:1] == [row.method]]
        for measure in (*row.errors.values(), row.mean):
            assert any(str(measure) in line for line in lines)


@pytest.mark.parametrize("option", ["--out", "--json"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path, option, monkeypatch):
    monkeypatch.setattr("acclimate.demo.run_demo", lambda *_: pytest.fail("it ran"))
    runner = CliRunner()
    with raises("not_found", path=tmp_path / "no"):
        runner.invoke(app, ["demo", option, str(tmp_path / "no" / "x")], catch_exceptions=False)
    with raises("not_a_file", path=tmp_path):
        runner.invoke(app, ["demo", option, str(tmp_path)], catch_exceptions=False)


@pytest.mark.parametrize(("is_terminal", "width"), [(True, 72), (True, 200), (False, 72)])
def test_the_table_is_shown_whole_on_a_terminal_and_elsewhere(result, is_terminal, width):
    (group,) = result.summary.groups
    names = [f"a_rather_long_domain_{index}" for index in range(6)]
    several = {name: own for name in names for own in [Measure(40.0, 1.2)]}
    rows = tuple(replace(row, errors=several) for row in group.rows)
    table = error_table(replace(group, rows=rows, columns=tuple(names)))
    file = io.StringIO()
    table.show(Console(file=file, force_terminal=is_terminal, width=width, color_system=None))
    shown = file.getvalue()
    assert "…" not in shown
    assert max(len(line) for line in shown.splitlines()) <= width
    for row in rows:
        assert row.method in shown
        for measure in (*row.errors.values(), row.mean):
            assert shown.count(str(measure)) >= 1
    # Every row has the same errors, so that every cell of a shift is the best of its column.
    assert shown.count("40.0 ± 1.2*") == (0 if is_terminal else 6 * len(rows))


@pytest.mark.slow
def test_it_runs_from_any_folder(tmp_path):
    # The command as it is, but for an artifact from fewer training images.
    program = (
        "import functools, acclimate.demo as d; from acclimate.cli.main import main;"
        "d.DemoSettings = functools.partial(d.DemoSettings, n_source=64, n_penalty=32); main()"
    )
    command = [sys.executable, "-c", program, "demo"]
    command += ["--methods", "source,norm", "--corruptions", "fog"]
    command += ["--images", "40", "--batch-size", "20"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in Path(tmp_path).iterdir()] == ["report.html"]
    assert "lowest mean error" in done.stdout or "No method" in done.stdout


def test_the_sorted_order_shows_one_class_after_the_other():
    settings = replace(SETTINGS, methods=("source",), seeds=1)
    result = run_demo(replace(settings, order="sorted"))
    labels = load_split("test", N)[1].sort().values
    truths = [CLASSES[int(label)] for label in labels[-BATCH:]]
    shown = [sample.truth for sample in result.samples if sample.domain == "contrast"]
    assert shown == truths[: len(shown)]
    assert "one class after the other" in result.protocol["order"]
    assert "order" not in result.protocol["seeds"]
    assert "--order sorted" in result.settings.command


def test_an_unknown_order_is_refused():
    with raises("unknown_name"):
        DemoSettings(order="by size")
