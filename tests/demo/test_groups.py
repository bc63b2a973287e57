"""The demonstration with all methods: other source models, costly methods, and what is compared."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import acclimate
from acclimate.builtin import SPLITS, load_head, load_model, model_card, render
from acclimate.cli.main import app
from acclimate.corruptions import apply
from acclimate.demo import TASKS, DemoSettings, assign_models, run_demo
from acclimate.demo.tasks import is_costly, make_groups
from acclimate.functional.iabn import convert
from acclimate.methods import METHODS
from acclimate.report import error_table, headlines, render_demo
from tests.codes import raises
from tests.demo.predictions import predict_clearly

# All share one run with five methods and three source models.
pytestmark = pytest.mark.slow

SETTINGS = DemoSettings(
    methods=("source", "norm", "memo", "note", "ttt_pp"),
    corruptions=("contrast",),
    images=24,
    batch_size=12,
    costly_images=3,
    n_source=64,
    n_penalty=16,
)
MARKED = ["source (3 images)", "memo (3 images)", "source (iabn)", "note (iabn)"]
MARKED += ["source (joint)", "ttt_pp (joint)"]


@pytest.fixture(scope="module")
def result():
    return run_demo(SETTINGS)


class Enough(Exception):
    """Ends a command where its work would begin."""


def stream() -> tuple[torch.Tensor, torch.Tensor]:
    """The images and labels of the only shift in the order of seed 0."""
    images, labels = render(24, SPLITS["test"])
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    x = torch.from_numpy(apply(images, "contrast", 5, 0)).permute(0, 3, 1, 2).float() / 255
    return x[order], torch.from_numpy(labels)[order]


def wrong_in(result, method: str, group: str) -> list[int]:
    run = next(r for r in result.outcomes if (r.entry.label, r.entry.group) == (method, group))
    return [record.n_errors for record in run.result.records]


@pytest.mark.parametrize("reveal", [False, True])
def test_all_means_every_method(monkeypatch, tmp_path, reveal):
    asked = []

    def run(settings, progress):
        asked.append(settings)
        raise Enough

    monkeypatch.setattr("acclimate.demo.run_demo", run)
    words = ["demo", "--all", "--out", str(tmp_path / "page.html"), "--costly-images", "7"]
    done = CliRunner().invoke(app, [*words, "--reveal-labels"] if reveal else words)
    assert isinstance(done.exception, Enough)
    assert "left out" not in done.stderr
    expected = [name for name, kind in METHODS.items() if reveal or not kind.card.is_oracle]
    assert list(asked[0].methods) == expected
    assert asked[0].costly_images == 7
    shown = [name for group in make_groups(TASKS["builtin"], asked[0]) for name in group.guests]
    assert sorted(shown) == sorted(expected)


def test_a_method_stands_on_the_first_model_that_it_does_not_refuse():
    assigned, refused = assign_models(TASKS["builtin"], list(METHODS))
    assert refused == {}
    others = {name: model.name for name, model in assigned.items() if model.name != "plain"}
    assert others == {"note": "iabn", "ttt_pp": "joint"}
    assert list(assign_models(TASKS["builtin"], ("tent", "note"))[0]) == ["tent", "note"]


def test_a_task_with_one_model_leaves_out_what_refuses_it():
    assigned, refused = assign_models(TASKS["cifar10"], list(METHODS))
    assert {model.name for model in assigned.values()} == {"plain"}
    assert sorted(refused) == ["note", "ttt_pp"]
    settings = DemoSettings(data="cifar10", methods=("source", "note"))
    with raises("method_refused", methods=("note",), reasons={"note": refused["note"]}):
        make_groups(TASKS["cifar10"], settings)


def test_a_method_is_left_out_for_what_the_model_lacks():
    """With the layers that the one relies on, or the head of the other, it is not."""
    task = TASKS["cifar10"]
    (plain,) = task.models
    changes = {
        "note": replace(plain, load=lambda: convert(plain.load())),
        "ttt_pp": replace(plain, load_head=load_head),
    }
    for name, changed in changes.items():
        _, refused = assign_models(replace(task, models=(changed,)), ("note", "ttt_pp"))
        assert {name, *refused} == {"note", "ttt_pp"}
        assert len(refused) == 1


def test_a_costly_method_is_one_that_takes_a_batch_apart(monkeypatch):
    assert [name for name in METHODS if is_costly(name)] == ["memo"]
    tent = METHODS["tent"]
    monkeypatch.setattr(tent, "card", replace(tent.card, forwards=100))
    assert is_costly("tent")


def test_groups_follow_from_model_and_number_of_images():
    task = TASKS["builtin"]
    groups = make_groups(task, SETTINGS)
    assert [(g.name, g.model.name, g.methods, g.n_images) for g in groups] == [
        ("", "plain", ("source", "norm"), 24),
        ("3 images", "plain", ("source", "memo"), 3),
        ("iabn", "iabn", ("source", "note"), 24),
        ("joint", "joint", ("source", "ttt_pp"), 24),
    ]
    for n in (0, 24, 100):  # all, whatever there is
        whole = make_groups(task, replace(SETTINGS, costly_images=n))
        assert whole[0].methods == ("source", "norm", "memo")
        assert [group.name for group in whole] == ["", "iabn", "joint"]


def test_marked_rows_stand_beside_their_own_source_row(result):
    rows = [(group.name, row) for group, row in result.summary.rows]
    names = [f"{row.label} ({group})" if group else row.label for group, row in rows]
    assert names == ["source", "norm", *MARKED]
    assert [row.to_dict()["n_images"] for _, row in rows] == [24, 24, 3, 3, 24, 24, 24, 24]
    x, y = stream()
    for kind, group in (("plain", ""), ("iabn", "iabn"), ("joint", "joint")):
        wrong = predict_clearly(load_model(kind), x) != y
        assert sum(wrong_in(result, "source", group)) == int(wrong.sum())
        if kind == "plain":
            assert wrong_in(result, "source", "3 images") == [int(wrong[:3].sum())]


@pytest.mark.parametrize("method", ["memo", "note", "ttt_pp"])
def test_marked_rows_are_what_the_public_interface_finds(result, method):
    kind = {"memo": "plain", "note": "iabn", "ttt_pp": "joint"}[method]
    used = next(model for model in result.models if model.source.name == kind)
    for artifact in used.artifacts:
        assert artifact.card["model"]["weights_sha256"] == used.sha256
    model = load_model(kind).to(memory_format=torch.channels_last)
    artifact = used.artifacts[0] if used.artifacts else None
    adapted = acclimate.adapt(model, method, artifact, seed=0)
    x, y = stream()
    parts = [(x[:3], y[:3])] if method == "memo" else [(x[:12], y[:12]), (x[12:], y[12:])]
    found = [int((adapted(part).argmax(dim=1) != own).sum()) for part, own in parts]
    assert wrong_in(result, method, "3 images" if method == "memo" else kind) == found


def test_the_head_of_the_joint_model_is_in_its_artifact(result):
    joint = next(model for model in result.models if model.source.name == "joint")
    kept = joint.artifacts[0].part("contrast_head")
    for name, value in load_head().state_dict().items():
        assert torch.equal(kept[name], value)


def test_nothing_is_compared_across_groups(result):
    groups = result.summary.groups
    assert [group.name for group in groups] == ["", "3 images", "iabn", "joint"]
    for group, told in zip(groups, headlines(result.summary), strict=True):
        labels = {row.label for row in group.rows}
        assert told.startswith(f"{group.name}: " if group.name else "")
        others = {row.label for other in groups for row in other.rows} - labels
        assert not any(re.search(rf"\b{label}\b", told) for label in others)
        for row in group.rows:
            if row.gain is not None:
                assert row.gain == pytest.approx(row.mean.mean - group.rows[0].mean.mean)
    # memo predicts after its update, which is another protocol than that of the source model.
    assert [row.mark for row in groups[1].rows] == ["", "a"]
    assert not any(cell.best for cells in error_table(groups[1]).rows for cell in cells)


def test_marks_are_explained_wherever_they_are_shown(result):
    cut, aware, joint, last = result.notes
    assert "(3 images): memo was measured on the first 3 images of each shift only" in cut
    assert "(iabn): note needs another source model" in aware
    assert "(joint): ttt_pp needs another source model" in joint
    x, y = torch.from_numpy(render(24, SPLITS["test"])[0]), render(24, SPLITS["test"])[1]
    for kind, note in (("iabn", aware), ("joint", joint)):
        guess = predict_clearly(load_model(kind), x.permute(0, 3, 1, 2) / 255).numpy()
        assert f"errs on {100 * (guess != y).mean():.1f} %" in note
    assert "source row of the same group only" in last
    numbers = json.loads(result.to_json())
    assert numbers["notes"] == list(result.notes)
    assert numbers["settings"]["costly_images"] == 3
    assert [model["name"] for model in numbers["models"]] == ["plain", "iabn", "joint"]
    assert len({model["sha256"] for model in numbers["models"]}) == 3
    for row, run in zip(numbers["table"], numbers["runs"], strict=True):
        assert [row[name] for name in ("method", "group", "n_images")] == [
            run[name] for name in ("method", "group", "n_images")
        ]
    page = render_demo(result.page())
    for group in result.summary.groups[1:]:
        assert page.count(f"<h3>{group.name}</h3>") == 1
        assert page.count(f"<summary>{group.name}</summary>") == 1
    for model in result.models:
        assert model.sha256 in page
    assert "An image costs 2 forwards and 1 backward." in page
    plain = page.replace("\u00a0", " ")
    assert all(f'<p class="note">{note}</p>' in plain for note in result.notes)


def test_the_command_shows_the_notes_below_the_table(monkeypatch, tmp_path, result):
    monkeypatch.setattr("acclimate.demo.run_demo", lambda *_: result)
    words = ["demo", "--methods", "source", "--out", str(tmp_path / "page.html")]
    shown = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    lines = shown.splitlines()
    assert [line for line in lines if line in result.notes] == list(result.notes)
    for group in result.summary.groups[1:]:
        start = lines.index(group.name)
        for row in group.rows:
            assert any(line.startswith(f" {row.label} ") for line in lines[start:])


def test_images_are_shown_for_methods_that_met_them(result):
    for sample in result.samples:
        assert list(sample.predictions) == ["source", "norm", *MARKED[2:]]


def test_the_words_on_training_are_those_of_the_cards():
    plain, *others = TASKS["builtin"].models
    first = model_card(plain.name)
    words = {"1": "once", "2": "twice", "3": "three times"}
    for model in others:
        card = model_card(model.name)
        assert f"on {int(card['images']):,} images {words[card['epochs']]}" in model.text
        if card.get("start") == "source.safetensors":
            assert model.text.startswith("the first one, trained on")
        else:
            assert "from fresh weights" in model.text
            assert f"on {int(first['images']):,} {words[first['epochs']]}" in model.text


def test_progress_reaches_its_end_with_several_groups():
    told = []
    small = replace(SETTINGS, images=8, batch_size=4, n_source=32)
    settings = replace(small, methods=("norm", "note"), seeds=2)
    result = run_demo(settings, lambda *step: told.append(step))
    total = (1 + 2) * 2 * 2  # with the source row of the other model
    steps = [(done, n) for stage, done, n in told if stage == "stream"]
    assert steps == [(done, total) for done in range(total + 1)]
    entries = [own.entry for own in result.outcomes]
    assert [(own.label, own.group, own.spec.seed) for own in entries] == [
        (*name, seed)
        for name in (("norm", ""), ("source", "iabn"), ("note", "iabn"))
        for seed in (0, 1)
    ]
    assert [len(model.artifacts) for model in result.models] == [0, 0]  # none is needed
