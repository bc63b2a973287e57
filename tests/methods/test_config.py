"""Hyper-parameters: the paper's defaults, what is refused, and methods of one's own."""

from __future__ import annotations

import pytest

import acclimate
from acclimate.errors import InvalidConfig, UnknownMethod
from acclimate.methods.config import EntropyConfig, GradientConfig
from acclimate.methods.swr_nsp import SwrNspConfig
from acclimate.testing.cases import tiny_artifact
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises

X = tiny_batches(1)[0][0]


@pytest.fixture
def model():
    return tiny_model("batch_norm")


def test_the_paper_s_defaults():
    config = SwrNspConfig()
    weights = (
        config.main_confidence,
        config.main_diversity,
        config.aux_confidence,
        config.aux_diversity,
        config.consistency,
        config.strength,
        config.temperature,
    )
    assert weights == (0.2, 0.25, 0.8, 0.25, 0.1, 250.0, 0.1)
    assert (config.optimizer, config.lr, config.beta1, config.beta2) == ("adam", 1e-3, 0.9, 0.999)
    assert (config.anchor, config.statistics, config.train_projector) == (
        "previous",
        "batch",
        False,
    )


def test_unknown_names_are_answered_with_the_known_ones(model):
    methods = acclimate.list_methods()
    with raises(
        "unknown_method", UnknownMethod, name="tnet", known=lambda k: set(k) == set(methods)
    ):
        acclimate.adapt(model, "tnet")
    with raises("unknown_option", InvalidConfig, option="lrr", known=lambda known: "lr" in known):
        acclimate.adapt(model, "tent", lrr=1.0)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": -1.0},
        {"lr": "fast"},
        {"lr": float("nan")},
        {"lr": float("inf")},
        {"optimizer": "lion"},
        {"statistics": "mean"},
        {"nesterov": 1},
        {"beta1": 1.0},
        {"lr": -1.0, "optimizer": "lion"},
    ],
)
def test_all_illegal_values_are_named_at_once(model, options):
    with raises(
        "invalid_options", InvalidConfig, problems=lambda found: set(found) == set(options)
    ):
        acclimate.adapt(model, "tent", **options)


def test_values_that_exclude_one_another(model):
    with raises("conflicting_options", InvalidConfig, options=("nesterov", "sgd_momentum")):
        acclimate.adapt(model, "tent", nesterov=True, sgd_momentum=0.0)


def test_config_or_single_values_but_not_both(model):
    with raises("conflicting_options", InvalidConfig, options=("config", "lr")):
        acclimate.adapt(model, "tent", config=EntropyConfig(), lr=1e-4)
    with raises("wrong_type", InvalidConfig, option="config", found="GradientConfig"):
        acclimate.adapt(model, "swr_nsp", tiny_artifact("batch_norm"), config=GradientConfig())
    assert acclimate.adapt(model, "tent", config=EntropyConfig(lr=1e-4)).config.lr == 1e-4


def test_configs_round_trip_and_have_an_id():
    config = SwrNspConfig(lr=3e-4)
    assert SwrNspConfig.from_dict(config.to_dict()) == config
    assert config.id != SwrNspConfig().id
    assert config.id == SwrNspConfig(lr=3e-4).id
    assert SwrNspConfig(strength=250) == SwrNspConfig(strength=250.0)


def test_an_own_method_in_a_few_lines(model):
    class Confident(acclimate.GradientMethod):
        """Learns from sure samples only.

        Paper: none. Moves all. Returns the logits before. Cost of a batch: 1 forward, 1 backward.
        """

        name = "confident"

        def loss(self, x):
            logits = self.run(x).logits
            return logits, -logits.log_softmax(1).amax(1).mean()

    acclimate.register_method("confident", Confident)
    try:
        assert acclimate.adapt(model, "confident")(X).shape == (8, 4)
        with raises("name_taken", name="tent"):
            acclimate.register_method("tent", Confident)
        with raises("name_mismatch", expected="sure", found="confident"):
            acclimate.register_method("sure", Confident)
    finally:
        acclimate.methods.METHODS.pop("confident")
