"""Every method on a model that predicts every pixel: it adapts it as the contract says, or refuses.

What is right pixel by pixel is in test_oracles.py.
"""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn.parameter import is_lazy

import acclimate
from acclimate import ModelInfo
from acclimate.functional.augmentations import CottaAugmentation
from acclimate.introspect import looks_dense
from acclimate.methods import METHODS
from acclimate.testing import yield_checks
from acclimate.testing.cases import Case, tiny_artifact
from acclimate.testing.contract import refuses_with_a_reason
from acclimate.testing.dense_models import TinyDeepLab, tiny_masks
from acclimate.testing.models import tiny_model
from tests.codes import raises

XS = [x for x, _ in tiny_masks(3, seed=5)]
DENSE = [name for name, kind in METHODS.items() if kind.card.dense]
#: Checks that say nothing more about a model that predicts every pixel.
ELSEWHERE = {
    "dense-describes_itself",
    "dense-learns_under_no_grad",
    "dense-refuses_inference_mode",
    "dense-leaves_the_input_alone",
    "dense-keeps_memory_bounded",
    "dense-copies_are_independent",
    "dense-restores_snapshots",
    "dense-stops_learning_in_eval_mode",
}
#: Checks that take long, and these methods they are made on: the others run the same code.
LONG = {"dense-takes_any_statistics", "dense-composes_with_swr_and_nsp"}
LONG_ON = ("alpha_bn", "tent", "cotta", "swr")


def marks_of(method, name):
    """Leave long checks to the slow tests, but for one method."""
    return pytest.mark.slow if name in LONG and method != "tent" else ()


CHECKS = [
    pytest.param(check, id=f"{method}-{name}", marks=marks_of(method, name))
    for method in METHODS
    for name, check in yield_checks(method, models=["dense"])
    if name not in ELSEWHERE and (name not in LONG or method in LONG_ON)
]


@pytest.mark.parametrize("check", CHECKS)
def test_conforms_or_refuses(check):
    check()


def test_the_methods_of_the_requirement_are_there():
    asked = ("source", "norm", "alpha_bn", "tent", "entropy", "infomax", "swr", "cotta")
    assert set(DENSE) == {*asked, "bn_ema", "nsp", "swr_nsp", "supervised"}


@pytest.mark.parametrize("method", [name for name in METHODS if not METHODS[name].card.dense])
def test_the_others_refuse_at_once_if_the_artifact_tells(method):
    with raises("dense_unsupported", what=method):
        acclimate.adapt(tiny_model("dense"), method, tiny_artifact("dense"))


@pytest.mark.parametrize("method", [name for name in METHODS if not METHODS[name].card.dense])
def test_the_others_ask_for_neither_artifact_nor_head(method):
    """Both would be refused in the end: an artifact has no such part, a head is no linear layer."""
    with raises("dense_unsupported", what=method):
        acclimate.adapt(tiny_model("dense"), method)


def test_the_message_names_the_methods_that_work_on_pixels():
    with raises("dense_unsupported", what="eata") as caught:
        acclimate.adapt(tiny_model("dense"), "eata")
    assert set(DENSE) <= set(re.findall(r"\w+", str(caught.value)))


def test_a_model_that_cannot_be_tried_is_not_taken_to_be_dense():
    class Asserts(nn.Conv2d):
        def forward(self, x):
            raise AssertionError("224 pixels")

    lazy = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.LazyLinear(2))
    for model in (Asserts(3, 4, 1), lazy, nn.Sequential(nn.Flatten(), nn.Linear(12, 3))):
        assert not looks_dense(model)
    assert is_lazy(lazy[2].weight)


def test_a_method_is_not_dense_by_inheritance():
    class Mine(METHODS["tent"]):
        name = "mine"

    adapted = Mine(tiny_model("dense"), Mine.config_class())
    with raises("dense_unsupported", what="mine"):
        adapted(XS[0])
    assert adapted.counts.batches == adapted.counts.forwards == 0


def test_the_suite_sees_a_method_that_does_not_refuse(monkeypatch):
    for where in ("methods.method", "adaptation"):
        monkeypatch.setattr(f"acclimate.{where}.check_dense", lambda *_: None)
    with pytest.raises(AssertionError, match="accepts the model"):
        refuses_with_a_reason(Case("eta", "dense"))


@pytest.mark.parametrize("method", DENSE)
def test_the_source_s_own_size_is_not_the_only_one(method):
    """A model that was prepared on crops is adapted on whole images."""
    adapted = Case(method, "dense").wrap(tiny_model("dense"), guard=True)
    wide = torch.rand(4, 3, 12, 16)
    for x in (XS[0], wide):
        if adapted.card.is_oracle:
            adapted.reveal(torch.zeros(len(x), *x.shape[2:], dtype=torch.long))
        assert adapted(x).shape == (len(x), 4, x.shape[2] // 2, x.shape[3] // 2)


@pytest.mark.parametrize("method", ["tent", "infomax"])
def test_one_image_has_statistics_of_its_own(method):
    adapted = acclimate.adapt(tiny_model("dense"), method)
    adapted(XS[0][:1])
    assert adapted.counts.updates == 1
    assert adapted.counts.skipped == {}


def test_one_image_that_is_pooled_into_one_value_has_none():
    adapted = acclimate.adapt(tiny_model("dense_pooling"), "tent")
    with raises("single_sample"):
        adapted(XS[0][:1])
    adapted(XS[0])
    source = tiny_model("dense_pooling")
    adapted.reset()
    adapted(XS[0])
    before = adapted.counts.updates
    logits = adapted(XS[1][:1])
    assert adapted.counts.skipped == {"single": 1}
    assert adapted.counts.updates == before
    assert logits.shape == source(XS[1][:1]).shape


def test_outputs_around_the_logits_are_kept():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = TinyDeepLab()

        def forward(self, x):
            return {"out": self.net(x), "mean": x.mean()}

    torch.manual_seed(0)
    adapted = acclimate.adapt(Wrapped().eval(), "source", info=ModelInfo(logits_at="out"))
    found = adapted(XS[0])
    expected = adapted.model(XS[0])
    assert torch.equal(found["out"], expected["out"])
    assert torch.equal(found["mean"], expected["mean"])


def test_the_source_s_logits_are_the_model_s_to_the_last_bit():
    for name in ("dense", "dense_pooling"):
        model = tiny_model(name)
        with torch.no_grad():
            expected = model(XS[0])
        found = acclimate.adapt(model, "source")(XS[0])
        assert torch.equal(found, expected)
        assert found.is_contiguous()


def test_the_preset_is_the_paper_s_setting():
    model = tiny_model("dense")
    config = acclimate.adapt(model, "swr", tiny_artifact("dense"), preset="cityscapes").config
    assert (config.optimizer, config.lr, config.strength) == ("adam", 1e-5, 40.0)
    assert (config.anchor, config.statistics, config.statistics_momentum) == (
        "source",
        "running",
        0.1,
    )


def test_swr_can_be_added_to_any_of_them():
    for method in ("tent", "entropy", "cotta"):
        adapted = Case(method, "dense").build(terms=["swr"])
        adapted(XS[0])
        assert adapted.counts.updates == 1


def test_views_that_move_pixels_are_refused():
    adapted = Case("nsp", "dense").build(views="crop+flip")
    with raises("views_move_pixels"):
        adapted(XS[0])


@pytest.mark.parametrize("per_image", [False, True])
def test_the_augmentation_in_place_moves_nothing(per_image):
    """An image of two halves keeps its edge where it is, however it is coloured."""
    x = torch.zeros(6, 3, 16, 16)
    x[..., 8:] = 0.9
    how = CottaAugmentation(blur=False, noise=0.0, per_image=per_image, in_place=True)
    out = how(x, torch.Generator().manual_seed(3))
    assert float((out[..., :8] - out[..., :1]).abs().max()) < 1e-5
    assert float((out[..., 8:] - out[..., 8:9]).abs().max()) < 1e-5
    assert float((out - x).abs().max()) > 0.05
    moved = CottaAugmentation(blur=False, noise=0.0, per_image=per_image)
    turned = moved(x, torch.Generator().manual_seed(3))
    assert float((turned[..., :8] - out[..., :8]).abs().max()) > 0.1


def test_nearest_prototypes_can_predict_pixels():
    adapted = Case("nsp", "dense_pooling").build(predictor="prototypes")
    found = adapted(XS[0])
    assert found.shape == (8, 4, 8, 8)
    assert not torch.equal(found, tiny_model("dense_pooling")(XS[0]))
