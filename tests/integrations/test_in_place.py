"""Models that other code calls: they adapt where they are, and come back as they were."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import acclimate
from acclimate.errors import UnsuitableModel
from acclimate.guard import Guard
from acclimate.integrations import in_place
from acclimate.testing.models import tiny_model
from tests.codes import raises
from tests.integrations.common import guarded, images, is_as_before, prepare_tiny, state_of


def predict(model: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    return [model(x).clone() for x in batches]


@pytest.mark.parametrize(
    ("method", "context"),
    [
        ("source", nullcontext),
        ("tent", nullcontext),
        ("tent", torch.no_grad),
        ("cotta", torch.inference_mode),  # it has copies of the model
        ("steady", torch.inference_mode),
    ],
)
def test_a_model_in_place_predicts_as_the_adapted_model_does(
    method: str, context: Callable[[], AbstractContextManager[None]]
) -> None:
    model = tiny_model("batch_norm")
    artifact = prepare_tiny(model)
    expected = predict(acclimate.adapt(copy.deepcopy(model), method, artifact), images())
    before, modes = state_of(model), [module.training for module in model.modules()]
    with context(), in_place(model, method, artifact) as adapted:
        found = predict(model.eval(), images())
        assert adapted.counts.batches == 3
        model.train()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not any(logits.requires_grad for logits in found)
    assert is_as_before(model, before)
    assert "forward" not in vars(model)
    model.eval()
    assert modes == [module.training for module in model.modules()]
    assert not any(module._forward_pre_hooks for module in model.modules())
    with torch.no_grad():
        assert torch.equal(model(images()[0]), tiny_model("batch_norm").eval()(images()[0]))


def test_batches_made_in_inference_mode_can_be_learned_from() -> None:
    class TakesLabels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = tiny_model("batch_norm")

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = self.net(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    model = TakesLabels()
    with torch.inference_mode(), in_place(model, "tent") as adapted:
        x, y = images(1)[0].clone(), torch.zeros(16, dtype=torch.long)
        assert x.is_inference()
        assert y.is_inference()
        model(x, labels=y)
        model(x, y)
        assert adapted.counts.updates == 2


def test_a_guard_runs_a_plain_copy_of_the_source() -> None:
    model, artifact = guarded()
    twin = copy.deepcopy(model)
    adapted = acclimate.adapt(twin, "tent", artifact, guard=Guard(artifact, window=128))
    expected = predict(adapted, images(6))
    with (
        torch.no_grad(),
        in_place(model, "tent", artifact, guard=Guard(artifact, window=128)) as own,
    ):
        found = predict(model, images(6))
        assert own.report() == adapted.report()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_copy_of_the_model_is_not_adapted() -> None:
    model = tiny_model("batch_norm").eval()
    with torch.no_grad(), in_place(model, "tent", lr=0.1) as adapted:
        model(images(1)[0])
        twin = copy.deepcopy(model)
        twin(images(1)[0])
        assert adapted.counts.batches == 1
        assert isinstance(twin.forward, MethodType)
        assert twin.forward.__self__ is twin
        exported = adapted.export(images(1)[0])
        exported(images(1)[0])
        assert adapted.counts.batches == 1


def test_the_model_comes_back_after_an_error() -> None:
    model = tiny_model("batch_norm")
    before = state_of(model)

    def fail() -> None:
        with in_place(model, "tent"):
            model(images(1)[0])
            assert not is_as_before(model, before)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert is_as_before(model, before)
    assert "forward" not in vars(model)
    with raises("not_a_module", UnsuitableModel), in_place(lambda x: x, "tent"):  # type: ignore[arg-type]
        pass


def test_a_forward_of_the_object_itself_is_used_and_kept() -> None:
    model = tiny_model("batch_norm")
    original = model.forward

    def scaled(x: Tensor) -> Tensor:
        return 2 * original(x)

    model.forward = scaled
    expected = predict(acclimate.adapt(model, "source"), images(1))
    with in_place(model, "source"):
        assert torch.equal(model(images(1)[0]), expected[0])
    assert model.forward is scaled


@pytest.mark.slow
@pytest.mark.parametrize("how", ["method", "function"])
def test_a_compiled_model_adapts_as_it_was_before(how: str) -> None:
    plain = tiny_model("batch_norm").eval()
    with in_place(plain, "tent"):
        expected = predict(plain, images())
    inner: Any = tiny_model("batch_norm").eval()
    model: Any = inner
    if how == "method":
        inner.compile(backend="eager")
    else:
        model = torch.compile(inner, backend="eager")
    before = state_of(inner)
    with torch.no_grad():
        source = model(images(1)[0])
        with in_place(model, "tent") as adapted:
            found = predict(model, images())
            assert adapted.counts.updates == 3
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert is_as_before(inner, before)
        assert torch.equal(model(images(1)[0]), source)
    assert (inner._compiled_call_impl is not None) == (how == "method")


def test_weights_can_be_read_while_the_model_is_in_place() -> None:
    model = tiny_model("batch_norm")
    names = list(model.state_dict())
    with in_place(model, "swr_nsp", prepare_tiny(model)):
        model(images(1)[0])
        assert list(model.state_dict()) == names
        assert pickle.loads(pickle.dumps(model.state_dict())).keys() == set(names)
