"""The two speeds of preparation: what is used, what is recorded, how near they are."""

from __future__ import annotations

import pytest
import torch

import acclimate
from acclimate import Penalty, Prototypes, builtin
from acclimate.functional import precision
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises

PARTS = ("penalty", "prototypes", "features", "fisher", "contrast")


def prepare(model, speed, dtype=torch.float32):
    return acclimate.prepare(
        model,
        tiny_batches(6, dtype=dtype),
        parts=[
            Penalty(n_samples=32),
            Prototypes(depth=1, width=8, epochs=2),
            "features",
            "fisher",
            "contrast",
        ],
        speed=speed,
    )


def pretend(monkeypatch, has_it):
    monkeypatch.setattr(precision, "has_fast_bfloat16", lambda device: has_it)


@pytest.mark.parametrize("kind", ["batch_norm", "vit"])
def test_without_bfloat16_fast_is_exact(kind, monkeypatch):
    pretend(monkeypatch, False)
    model = tiny_model(kind)
    exact, fast = prepare(model, "exact"), prepare(model, "fast")
    for name, tensor in exact.tensors.items():
        assert torch.equal(tensor, fast.tensors[name]), name
    for name in PARTS:
        assert exact.parts[name] == {**fast.parts[name], "speed": "exact"}
        assert (fast.parts[name]["speed"], fast.parts[name]["precision"]) == ("fast", "float32")


@pytest.mark.parametrize("kind", ["batch_norm", "group_norm", "vit"])
def test_with_bfloat16_fast_is_near_and_says_so(kind, monkeypatch):
    pretend(monkeypatch, True)
    model = tiny_model(kind)
    exact, fast = prepare(model, "exact"), prepare(model, "fast")
    used = {name: part["precision"] for name, part in fast.parts.items()}
    assert used == {**dict.fromkeys(PARTS, "bfloat16"), "fisher": "float32"}
    assert {part["precision"] for part in exact.parts.values()} == {"float32"}
    for name, tensor in exact.part("fisher").items():
        assert torch.equal(tensor, fast.part("fisher")[name])
    # Of 8 bits: single numbers are off by up to 0.4 %, and of these averages none by over 0.005.
    difference = 0.0
    for part in ("cosine", "features", "predictions"):
        for name, tensor in exact.part(part).items():
            other = fast.part(part)[name]
            assert tensor.dtype == other.dtype
            torch.testing.assert_close(other, tensor, rtol=0.05, atol=0.05)
            difference += (other - tensor).abs().sum().item()
    assert difference > 0  # something was really computed otherwise


@pytest.mark.slow
def test_with_bfloat16_the_penalties_of_a_trained_model_keep_their_order(monkeypatch):
    """On enough samples: a penalty is scaled to 0 and 1, and on a few of them noise is too."""
    pretend(monkeypatch, True)
    model, n = builtin.load_model(), 256
    x, y = builtin.load_split("train", n)
    batches = list(zip(x.split(64), y.split(64), strict=True))
    exact, fast = (
        acclimate.prepare(model, batches, parts=[Penalty(n_samples=n)], speed=speed)
        for speed in ("exact", "fast")
    )
    assert fast.parts["penalty"]["precision"] == "bfloat16"
    assert exact.part("penalty").keys() == fast.part("penalty").keys()
    found, expected = (torch.stack(list(a.part("penalty").values())) for a in (fast, exact))
    # 0.003 and 1.0 with the instructions of several processors, and 0.006 with half the samples.
    assert (found - expected).abs().max() < 0.03
    ranks = torch.stack([v.flatten().argsort().argsort().double() for v in (found, expected)])
    assert torch.corrcoef(ranks)[0, 1] > 0.99
    assert not torch.equal(found, expected)


def test_doubles_stay_doubles(monkeypatch):
    pretend(monkeypatch, True)
    model = tiny_model("batch_norm").double()
    exact, fast = (prepare(model, speed, torch.float64) for speed in ("exact", "fast"))
    assert {part["precision"] for part in fast.parts.values()} == {"float64"}
    for name, tensor in exact.tensors.items():
        assert torch.equal(tensor, fast.tensors[name]), name


def test_the_record_survives_the_file(tmp_path, monkeypatch):
    pretend(monkeypatch, False)
    prepare(tiny_model("batch_norm"), "fast").save(tmp_path / "a.acclimate")
    read = acclimate.Artifact.load(tmp_path / "a.acclimate")
    assert read.parts["penalty"]["speed"] == "fast"
    assert read.parts["penalty"]["precision"] == "float32"


def test_unknown_speeds_are_refused_before_anything_is_computed():
    model = tiny_model("batch_norm")
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    with raises("unknown_name", kind="speed", name="fastest", known=("exact", "fast")):
        acclimate.prepare(model, tiny_batches(2), speed="fastest")
