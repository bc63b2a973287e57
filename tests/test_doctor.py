"""The diagnosis: every topic says what is there, and nothing is touched."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import Tensor, nn

import acclimate
from acclimate import ModelInfo
from acclimate.artifact import Artifact
from acclimate.doctor import Diagnosis, Finding, diagnose
from acclimate.testing.dense_models import TinyDeepLab
from tests.cli_models import plain_mlp, tiny_cnn
from tests.codes import raises, warns


def batch(n: int = 20) -> Tensor:
    return torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def find(diagnosis: Diagnosis, topic: str) -> Finding:
    found = [finding for finding in diagnosis.findings if finding.topic == topic]
    assert len(found) == 1, found
    return found[0]


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    with warns("few_samples", found=20):
        return acclimate.prepare(tiny_cnn(), [(batch(), torch.arange(20) % 4)])


def test_a_fitting_model_with_its_artifact_has_no_problem(artifact: Artifact) -> None:
    diagnosis = diagnose(tiny_cnn(), batch(), artifact)
    assert diagnosis.problems == ()
    # What lacks a part of the artifact, or a layer that only its own models have, is noted.
    noted = {finding.topic for finding in diagnosis.findings if finding.level != "ok"}
    assert noted == {"method eata", "method tfa", "method ttt_pp", "method note"}
    assert find(diagnosis, "normalisation layers").text == "1 BatchNorm2d"
    assert find(diagnosis, "dropout").text == "1 Dropout: off while adapting"
    assert find(diagnosis, "batch size").text == "20"
    assert find(diagnosis, "head").text == '"6": 24 features, 4 classes'
    assert "belongs to this model" in find(diagnosis, "artifact").text


def test_what_each_method_moves_is_counted(artifact: Artifact) -> None:
    diagnosis = diagnose(tiny_cnn(), batch(), artifact)
    topics = [f.topic for f in diagnosis.findings if f.topic.startswith("method ")]
    names = [name for name in acclimate.list_methods() if name != "supervised"]
    assert topics == [f"method {name}" for name in names]
    # Convolution 3 · 6 · 9 + 6, BatchNorm 6 + 6, head 24 · 4 + 4.
    assert find(diagnosis, "trainable").text == "6 tensors, 280 parameters"
    assert find(diagnosis, "method swr_nsp").text == "moves 6 tensors, 280 parameters"
    assert find(diagnosis, "method tent").text == "moves 2 tensors, 12 parameters"
    assert find(diagnosis, "method source").text == "moves nothing"


def test_a_method_without_its_artifact_is_a_note_not_a_problem() -> None:
    diagnosis = diagnose(tiny_cnn(), batch())
    assert diagnosis.problems == ()
    assert find(diagnosis, "artifact").level == "note"
    finding = find(diagnosis, "method swr_nsp")
    assert finding.level == "note"
    assert "the parts penalty, prototypes:" in finding.remedy


def test_a_model_without_normalisation_layers() -> None:
    diagnosis = diagnose(plain_mlp(), batch(1))
    assert diagnosis.problems == ()
    assert find(diagnosis, "normalisation layers").level == "note"
    assert find(diagnosis, "method norm").level == "note"
    assert "swr_nsp" in find(diagnosis, "method tent").remedy
    assert find(diagnosis, "method entropy").level == "ok"
    assert not [f for f in diagnosis.findings if f.topic == "batch size"]  # any size will do


@pytest.mark.parametrize(
    ("n", "level"), [(1, "problem"), (2, "problem"), (15, "problem"), (16, "ok")]
)
def test_small_batches_matter_to_batch_norm(n: int, level: str) -> None:
    found = find(diagnose(tiny_cnn(), batch(n)), "batch size")
    assert found.level == level
    assert find(diagnose(tiny_cnn(), batch(), batch_size=n), "batch size") == found
    if level == "problem":
        assert "guard=True" in found.remedy
        assert 'statistics="mixed" or "source"' in found.remedy


def test_the_batch_size_of_the_stream_may_be_told() -> None:
    (problem,) = diagnose(tiny_cnn(), batch(), batch_size=4).problems
    assert problem.text.startswith("Batches of 4 are too small for BatchNorm statistics")
    assert diagnose(tiny_cnn(), batch(2), batch_size=64).problems == ()
    assert diagnose(plain_mlp(), batch(), batch_size=4).problems == ()
    with raises("out_of_range", option="batch_size", found=0):
        diagnose(tiny_cnn(), batch(), batch_size=0)


def test_it_says_whether_there_can_be_a_guard(artifact: Artifact) -> None:
    assert find(diagnose(tiny_cnn(), batch(), artifact), "guard").level == "ok"
    few = {name: value for name, value in artifact.tensors.items() if "accuracy/" not in name}
    parts = {name: card for name, card in artifact.parts.items() if name != "accuracy"}
    without = Artifact(few, {**artifact.card, "parts": parts})
    for given, why in ((without, "has no part accuracy"), (None, "no artifact given")):
        found = find(diagnose(tiny_cnn(), batch(), given), "guard")
        assert found.level == "note"
        assert why in found.text
        assert "acclimate prepare" in found.remedy


def test_untrained_statistics_are_noticed() -> None:
    model = tiny_cnn()
    model[1].reset_running_stats()
    (problem,) = diagnose(model, batch()).problems
    assert "untrained" in problem.text


def test_missing_statistics_are_noticed() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), *tiny_cnn())
    notes = [f for f in diagnose(model, batch()).findings if f.level == "note"]
    assert any("1 of 2 BatchNorm layers have no running statistics" in f.text for f in notes)


def test_frozen_parameters_are_counted() -> None:
    model = tiny_cnn()
    model[0].requires_grad_(False)
    finding = find(diagnose(model, batch()), "trainable")
    assert (finding.level, finding.text) == ("note", "4 tensors, 112 parameters; 2 frozen")
    model.requires_grad_(False)
    diagnosis = diagnose(model, batch())
    assert find(diagnosis, "trainable").level == "problem"
    assert find(diagnosis, "method tent").level == "note"


@pytest.mark.parametrize(
    ("scale", "shift", "level", "says"),
    [
        (1.0, 0.0, "ok", r"images in \[0, 1\]"),
        (255.0, 0.0, "problem", "divide by 255"),
        (4.0, -2.0, "problem", r"ModelInfo\(normalization"),
        (1 / 255, 0.0, "note", "twice"),
        (torch.nan, 0.0, "problem", "finite"),
    ],
)
def test_the_range_of_the_inputs_is_explained(
    scale: float, shift: float, level: str, says: str
) -> None:
    finding = find(diagnose(tiny_cnn(), batch() * scale + shift), "input")
    assert finding.level == level
    assert re.search(says, f"{finding.text} {finding.remedy}")


def test_normalised_inputs_are_judged_by_their_normalisation() -> None:
    x = (batch() - 0.5) / 0.25
    info = ModelInfo(normalization=((0.5,) * 3, (0.25,) * 3))
    assert diagnose(tiny_cnn(), x, info=info).problems == ()
    (problem,) = diagnose(tiny_cnn(), x, info=ModelInfo(normalization="imagenet")).problems
    assert problem.topic == "input"


def test_a_head_that_cannot_be_told_is_a_problem_with_candidates() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(192, 4)
            self.second = nn.Linear(192, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.first(x.flatten(1)), self.second(x.flatten(1))

    (problem,) = diagnose(TwoHeads(), batch()).problems
    assert problem.topic == "head"
    assert "first" in problem.text
    assert "second" in problem.text
    assert diagnose(TwoHeads(), batch(), info=ModelInfo(head="second")).problems == ()


def test_inputs_of_another_size_are_a_problem() -> None:
    (problem,) = diagnose(plain_mlp(), torch.rand(20, 3, 9, 9)).problems
    assert problem.topic == "head"
    assert "cannot take a batch" in problem.text


def test_an_artifact_of_another_model_normalisation_or_size_is_a_problem(
    artifact: Artifact,
) -> None:
    other = tiny_cnn()
    with torch.no_grad():
        other[0].weight += 1
    (problem,) = diagnose(other, batch(), artifact).problems
    assert "weights differ" in problem.text
    x = (batch() - 0.5) / 0.25
    info = ModelInfo(normalization=((0.5,) * 3, (0.25,) * 3))
    (problem,) = diagnose(tiny_cnn(), x, artifact, info).problems
    assert "prepared with normalisation None" in problem.text
    (problem,) = diagnose(tiny_cnn(), torch.rand(20, 3, 10, 10), artifact).problems
    assert "prepared with input shape (3, 8, 8)" in problem.text


@pytest.mark.parametrize("x", [torch.tensor(1.0), torch.zeros(0, 3, 8, 8), torch.zeros(4).byte()])
def test_batches_that_are_none_are_problems_not_crashes(x: Tensor) -> None:
    assert any(f.topic == "input" for f in diagnose(tiny_cnn(), x).problems)


def test_nothing_is_touched(artifact: Artifact) -> None:
    model = tiny_cnn().train()
    model[1].eval()
    model[6].bias.requires_grad_(False)
    model[0].weight.grad = gradient = torch.ones_like(model[0].weight)
    before = copy.deepcopy(model)
    x = batch()
    x_before = x.clone()
    random_state = torch.get_rng_state()
    diagnose(model, x, artifact)
    diagnose(model, x * 300)
    assert torch.equal(x, x_before)
    assert torch.equal(torch.get_rng_state(), random_state)
    tensors = {**before.state_dict()}
    assert all(torch.equal(value, tensors[name]) for name, value in model.state_dict().items())
    for own, kept in zip(model.modules(), before.modules(), strict=True):
        assert own.training == kept.training
        assert not own._forward_hooks
        assert not own._forward_pre_hooks
        assert vars(own).keys() == vars(kept).keys()
    for own, kept in zip(model.parameters(), before.parameters(), strict=True):
        assert own.requires_grad == kept.requires_grad
    assert model[0].weight.grad is gradient
    assert bool((gradient == 1).all())
    assert all(parameter.grad is None for parameter in list(model.parameters())[1:])


def test_a_model_that_predicts_every_pixel_is_seen_as_one() -> None:
    diagnosis = diagnose(TinyDeepLab(), torch.rand(1, 3, 32, 32))
    assert find(diagnosis, "head").text.endswith("classes per pixel")
    assert find(diagnosis, "batch size").level == "ok"
    assert "moves" in find(diagnosis, "method swr").text
    assert find(diagnosis, "method t3a").text == "supports predictions of whole images only"


@pytest.mark.parametrize("pools", [False, True])
def test_a_single_image_is_judged_as_adapting_judges_it(pools: bool) -> None:
    model = TinyDeepLab(pools=pools)
    found = find(diagnose(model, batch(1)), "batch size")
    assert found.level == ("problem" if pools else "ok")
    adapted = acclimate.adapt(model, "tent")
    if pools:
        with raises("single_sample"):
            adapted(batch(1))
        assert find(diagnose(TinyDeepLab(pools=True), batch(2)), "batch size").level == "ok"
    else:
        assert adapted(batch(1)).shape == (1, 4, 4, 4)
