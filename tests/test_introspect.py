"""Finding head, features and logits in any model."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from acclimate.forward import get_logits, replace_logits, run
from acclimate.introspect import ModelInfo, find_head, get_head, inspect_model
from acclimate.testing.models import TINY_MODELS, tiny_model
from tests.codes import raises

X = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", [n for n in TINY_MODELS if n != "two_heads"])
def test_found_by_a_dry_run(name):
    model = tiny_model(name)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    info = inspect_model(model, X)
    expected = {"mlp": "3", "returns_dict": "net.head", "returns_object": "net.head"}
    assert info.head == expected.get(name, "head")
    assert info.n_classes == 4
    assert info.n_features == get_head(model, info.head).in_features
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_two_heads_are_ambiguous_until_named():
    model = tiny_model("two_heads")
    with raises("ambiguous_head", candidates=("coarse", "fine")):
        inspect_model(model, X)
    assert inspect_model(model, X, ModelInfo(head="fine")).logits_at == 1
    assert inspect_model(model, X, ModelInfo(head="coarse")).n_classes == 2
    assert inspect_model(model, X, ModelInfo(logits_at=1)).head == "fine"


def test_the_message_lists_the_candidates_with_their_shapes():
    with raises("ambiguous_head") as caught:
        inspect_model(tiny_model("two_heads"), X)
    assert "\n  coarse: (2, 2)\n  fine: (2, 4)" in str(caught.value)


def test_a_model_that_knows_its_classifier_is_asked():
    class Knows(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(192, 8))
            self.top = nn.Conv2d(8, 4, 1)

        def get_classifier(self):
            return self.top

        def forward(self, x):
            return self.top(self.body(x)[:, :, None, None]).flatten(1)

    info = inspect_model(Knows(), X)
    assert (info.head, info.n_features) == ("top", 8)


def test_post_processed_logits_take_the_last_linear_layer():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(192, 8)
            self.top = nn.Linear(8, 4)

        def forward(self, x):
            return self.top(self.body(x.flatten(1)).relu()) / 2

    assert inspect_model(Scaled(), X).head == "top"


def test_several_layers_of_the_right_width_are_ambiguous():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(192, 4), nn.Linear(192, 4)

        def forward(self, x):
            return self.one(x.flatten(1)) + self.two(x.flatten(1))

    with raises("ambiguous_head", candidates=("one", "two")):
        inspect_model(Sum(), X)
    assert inspect_model(Sum(), X, ModelInfo(head="one")).head == "one"


def test_no_graph_leaks_through_nested_outputs():
    hidden = torch.ones(2, 3, requires_grad=True) * 2
    output = {"logits": hidden, "states": (hidden, [hidden]), "more": {"deep": hidden}}
    found = replace_logits(output, hidden.detach())
    assert not found["states"][0].requires_grad
    assert not found["states"][1][0].requires_grad
    assert not found["more"]["deep"].requires_grad


@dataclass(slots=True)
class Slotted:
    logits: torch.Tensor
    other: torch.Tensor


def test_objects_with_slots():
    output = Slotted(
        torch.ones(2, 3, requires_grad=True) * 1, torch.ones(1, requires_grad=True) * 1
    )
    found = replace_logits(output, torch.zeros(2, 3))
    assert type(found) is Slotted
    assert found.logits.sum() == 0
    assert not found.other.requires_grad


def test_without_linear_layers_the_head_must_be_named():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with raises("head_not_found", candidates=()):
        inspect_model(model, X)


def test_wrong_names_are_answered_with_the_nearest():
    with raises("unknown_name", kind="module", name="haed", known=("head",)):
        inspect_model(tiny_model("batch_norm"), X, ModelInfo(head="haed"))


def test_inputs_the_model_cannot_take():
    with raises("model_rejects_input", found=(2, 5, 8, 8)):
        inspect_model(tiny_model("batch_norm"), torch.rand(2, 5, 8, 8))


@pytest.mark.parametrize(
    ("output", "at"),
    [
        (torch.ones(2, 3), None),
        ({"logits": torch.ones(2, 3), "other": 1}, None),
        ({"y": torch.ones(2, 3), "logits": torch.zeros(2, 9)}, "y"),
        (SimpleNamespace(logits=torch.ones(2, 3)), None),
        (SimpleNamespace(scores=torch.ones(2, 3)), "scores"),
        ((torch.zeros(2, 9), torch.ones(2, 3)), 1),
        ([torch.ones(2, 3)], 0),
        ({"deep": [torch.ones(2, 3)]}, lambda output: output["deep"][0]),
    ],
)
def test_logits_are_found_and_replaced(output, at):
    assert get_logits(output, at).sum() == 6
    changed = replace_logits(output, torch.full((2, 3), 5.0), at)
    assert get_logits(changed, None if callable(at) else at).sum() == 30
    assert get_logits(output, at).sum() == 6


@pytest.mark.parametrize(
    ("output", "at"),
    [({"a": 1}, None), ((1, 2), None), ((1, 2), 5), ({"a": 1}, "b"), (None, None), ("x", "logits")],
)
def test_logits_that_cannot_be_told(output, at):
    with raises("no_logits"):
        get_logits(output, at)


def test_logits_are_of_images_or_of_pixels():
    assert get_logits(torch.ones(2, 3, 4, 4)).shape == (2, 3, 4, 4)
    with raises("wrong_logits", found=(2, 3, 4)):
        get_logits(torch.ones(2, 3, 4))


def test_features_are_the_head_s_input():
    model = tiny_model("mlp")
    result = run(model, X, model[3])
    assert torch.equal(result.known_features, model[:3](X))
    assert torch.equal(result.logits, model(X))


def test_a_head_that_runs_twice_is_refused():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(192, 192)

        def forward(self, x):
            return self.layer(self.layer(x.flatten(1)))

    model = Twice()
    with raises("wrong_head", head="layer"):
        run(model, X, model.layer)


def test_features_must_be_one_vector_a_sample():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(256, 4))
    with raises("wrong_head", head="0"):
        run(model, X, model[0])


def test_heads_of_tiny_models_are_found_without_data():
    found = {name: find_head(tiny_model(name)) for name in TINY_MODELS if name != "two_heads"}
    assert {name.rpartition(".")[2] for name in found.values()} == {"head", "3"}
