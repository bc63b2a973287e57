"""Presets: the values that are published for a benchmark, and none where nothing is."""

from __future__ import annotations

import pytest
import torch

import acclimate
from acclimate.errors import InvalidConfig
from acclimate.methods import METHODS, get_method
from acclimate.methods.config import Config, GradientConfig
from acclimate.options import PRESETS
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises

IMAGES = ("cifar10", "cifar100", "imagenet")
#: What methods know that are not for all four.
FEWER = {
    **dict.fromkeys(["core", "shot", "tfa", "ttt_pp"], ("cifar10", "cifar100")),
    **dict.fromkeys(["eta", "eata", "sar", "deyo", "rpl", "rdumb", "cotta", "rotta"], IMAGES),
    **dict.fromkeys(
        ["roid", "cmf", "petta", "tribe", "note", "memo", "lame", "t3a", "swr_fixmatch"], IMAGES
    ),
    # Ours: nothing is published.
    "steady": (),
}


def config_of(method: str, preset: str) -> Config:
    return get_method(method).config_class.from_preset(preset)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_has_the_presets_that_it_lists_and_refuses_others(method: str) -> None:
    known = FEWER.get(method, PRESETS)
    for preset in PRESETS:
        if preset in known:
            assert config_of(method, preset)
        else:
            with raises("unknown_name", InvalidConfig, kind="preset", name=preset, known=known):
                config_of(method, preset)


@pytest.mark.parametrize("method", [m for m in METHODS if "cifar10" in FEWER.get(m, PRESETS)])
def test_the_defaults_are_those_of_cifar_10(method: str) -> None:
    assert config_of(method, "cifar10") == get_method(method).config_class()


def test_adapt_refuses_too() -> None:
    model = tiny_model("batch_norm")
    with raises("unknown_name", name="imagenet", known=("cifar10", "cifar100")):
        acclimate.adapt(model, "shot", preset="imagenet")
    with raises("unknown_name", name="imagenett", known=PRESETS):
        acclimate.adapt(model, "tent", preset="imagenett")


@pytest.mark.parametrize(
    ("method", "optimizer", "lr", "nesterov"),
    [
        ("tent", "sgd", 2.5e-4, True),
        ("infomax", "sgd", 2.5e-4, True),
        ("swr", "sgd", 2.5e-4, True),
        ("nsp", "sgd", 2.5e-4, True),
        ("swr_nsp", "sgd", 2.5e-4, True),
        ("cotta", "sgd", 0.01, True),
        ("roid", "sgd", 2.5e-4, True),
        ("cmf", "sgd", 2.5e-4, True),
        ("rotta", "adam", 1e-3, False),
        ("petta", "adam", 1e-3, False),
        ("tribe", "adam", 5e-4, False),
        ("note", "adam", 1e-4, False),
        ("eta", "sgd", 2.5e-4, False),
        ("eata", "sgd", 2.5e-4, False),
        ("rdumb", "sgd", 2.5e-4, False),
        ("sar", "sgd", 2.5e-4, False),
        ("deyo", "sgd", 2.5e-4, False),
        ("rpl", "sgd", 5e-4, False),
        ("memo", "sgd", 2.5e-4, False),
    ],
)
def test_optimisers_on_imagenet(method: str, optimizer: str, lr: float, nesterov: bool) -> None:
    config = config_of(method, "imagenet")
    assert isinstance(config, GradientConfig)
    assert (config.optimizer, config.lr, config.nesterov) == (optimizer, lr, nesterov)
    assert config.sgd_momentum == 0.9


def test_nesterov_reaches_the_optimiser() -> None:
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent", preset="imagenet")
    assert isinstance(adapted.optimizer, torch.optim.SGD)
    assert adapted.optimizer.defaults["nesterov"]


@pytest.mark.parametrize("method", ["tent", "infomax", "swr", "nsp", "swr_nsp"])
def test_cityscapes_keeps_running_statistics_in_one_pass(method: str) -> None:
    config = config_of(method, "cityscapes")
    assert isinstance(config, GradientConfig)
    assert (config.optimizer, config.lr) == ("adam", 1e-5)
    assert (config.statistics, config.statistics_momentum) == ("running", 0.1)


def test_one_pass_of_other_methods_is_the_first_variant_of_bn_ema() -> None:
    """At a tiny rate, what learns under `cityscapes` predicts what `bn_ema` does."""
    model = tiny_model("batch_norm").double()
    found = acclimate.adapt(model, "infomax", preset="cityscapes", lr=1e-9)
    expected = acclimate.adapt(tiny_model("batch_norm").double(), "bn_ema")
    for x, _ in tiny_batches(3, dtype=torch.float64):
        assert torch.allclose(found(x), expected(x), atol=1e-6)


def test_presets_of_a_method_of_ones_own() -> None:
    class OwnConfig(GradientConfig):
        presets = {"wards": {"lr": 2e-3}}  # noqa: RUF012

    assert OwnConfig.from_preset("wards", {"beta1": 0.8}).lr == 2e-3
    with raises("unknown_name", known=("wards",)):
        OwnConfig.from_preset("imagenet")
