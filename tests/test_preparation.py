"""Preparation: sample counts, prototypes, projector, statistics, and what is refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import acclimate
from acclimate import PenaltyOptions, PrototypeOptions
from acclimate.errors import BadInput, InvalidConfig
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises, warns

FEW = PenaltyOptions(n_samples=16)


def prepare(model, batches, **options):
    return acclimate.prepare(model, batches, **{"penalty": FEW, **options})


@pytest.fixture
def model():
    return tiny_model("batch_norm")


def test_the_model_is_given_back_as_it_was(model):
    model.train()
    model.stem.weight.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    flags = [(m.training, len(m._forward_hooks)) for m in model.modules()]
    grads = [(p.requires_grad, p.grad) for p in model.parameters()]
    prepare(model, tiny_batches(4), prototypes=PrototypeOptions(depth=2, width=4, epochs=1))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert [(m.training, len(m._forward_hooks)) for m in model.modules()] == flags
    assert [(p.requires_grad, p.grad) for p in model.parameters()] == grads


def test_the_global_random_state_is_not_touched(model):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    prepare(model, tiny_batches(4), prototypes=PrototypeOptions(depth=2, width=4, epochs=1))
    assert torch.equal(torch.rand(3), expected)


def test_same_seed_same_artifact(model):
    options = {"prototypes": PrototypeOptions(depth=1, width=4, epochs=1)}
    first, second = (prepare(model, tiny_batches(4), seed=3, **options) for _ in range(2))
    other = prepare(model, tiny_batches(4), seed=4, **options)
    assert all(torch.equal(v, second.tensors[k]) for k, v in first.tensors.items())
    assert not torch.equal(first.tensors["cosine/stem.weight"], other.tensors["cosine/stem.weight"])


def test_the_penalty_does_not_depend_on_the_loader_s_batch_size(model):
    x, y = (torch.cat(parts) for parts in zip(*tiny_batches(6), strict=True))
    one = [(x, y)]
    many = list(zip(x.split(5), y.split(5), strict=True))
    first, second = (prepare(model, b, parts=("penalty",)) for b in (one, many))
    assert all(torch.equal(v, second.tensors[k]) for k, v in first.tensors.items())


def test_fewer_samples_than_wanted_are_used_all_and_recorded(model):
    with warns("few_samples", found=32, expected=1024):
        artifact = acclimate.prepare(model, tiny_batches(4), parts=("penalty",))
    assert artifact.parts["penalty"]["n_samples"] == 32


def test_a_sorted_source_is_noticed(model):
    x, _ = tiny_batches(1, batch_size=32)[0]
    with warns("sorted_source", found=1, expected=4):
        prepare(model, [(x, torch.zeros(32, dtype=torch.long))], parts=("penalty",))


@pytest.mark.parametrize(
    ("granularity", "units"),
    [("tensor", 12), ("module", 7), ("channel", 88), ("parameter", None)],
)
def test_granularities(model, granularity, units):
    options = PenaltyOptions(n_samples=16, granularity=granularity)
    artifact = prepare(model, tiny_batches(4), penalty=options, parts=("penalty",))
    n = sum(p.numel() for p in model.parameters()) if units is None else units
    assert artifact.parts["penalty"]["n_units"] == n
    values = torch.cat([v.flatten() for v in artifact.part("penalty").values()])
    assert float(values.min()) == 0
    assert float(values.max()) == 1
    for name, parameter in model.named_parameters():
        assert (parameter * artifact.part("penalty")[name]).shape == parameter.shape


def test_exponents_are_powers_of_one_scale(model):
    found = [
        prepare(
            model,
            tiny_batches(4),
            penalty=PenaltyOptions(n_samples=16, exponent=e),
            parts=("penalty",),
        ).part("penalty")
        for e in (1, 2, 3)
    ]
    for name, value in found[0].items():
        assert torch.allclose(value**2, found[1][name])
        assert torch.allclose(value**3, found[2][name])


def test_unused_parameters_get_penalty_one_and_no_cosine(model):
    model.unused = nn.Linear(2, 2)
    artifact = prepare(model, tiny_batches(4), parts=("penalty",))
    assert artifact.part("cosine")["unused.weight"].isnan()
    assert artifact.part("penalty")["unused.weight"] == 1


def test_prototypes_of_features_are_moving_averages(model):
    model.double()
    batches = tiny_batches(5, dtype=torch.float64)
    artifact = prepare(model, batches, parts=("prototypes",))
    expected = {}
    for x, y in batches:
        taken = []
        hook = model.head.register_forward_hook(lambda _, inputs, __: taken.append(inputs[0]))  # noqa: B023
        model(x)
        hook.remove()
        for z, label in zip(taken[0], y.tolist(), strict=True):
            expected[label] = 0.99 * expected[label] + 0.01 * z if label in expected else z
    found = artifact.part("prototypes")["embedding"]
    assert all(torch.allclose(found[k], v, atol=1e-12) for k, v in expected.items())


def test_prototypes_of_the_classifier_are_its_rows(model):
    options = PrototypeOptions(source="classifier")
    artifact = prepare(model, tiny_batches(4), prototypes=options, parts=("prototypes",))
    assert torch.equal(artifact.part("prototypes")["embedding"], model.head.weight)
    acclimate.adapt(model, "swr_nsp", prepare(model, tiny_batches(4), prototypes=options))


def test_classifier_prototypes_need_a_row_a_class():
    model = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(192, 4), nn.Identity()))
    with raises("wrong_head", head="1"):
        prepare(
            model,
            tiny_batches(4),
            head="1",
            prototypes=PrototypeOptions(source="classifier"),
            parts=("prototypes",),
        )


def test_a_class_that_never_appears_is_named(model):
    batches = [(x, y.clamp(max=2)) for x, y in tiny_batches(4)]
    for depth in (0, 2):
        with raises("missing_classes", missing=(3,)):
            prepare(
                model,
                batches,
                prototypes=PrototypeOptions(depth=depth, width=4, epochs=1),
                parts=("prototypes",),
            )


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_training_the_projector_lowers_its_loss(model, optimizer):
    options = PrototypeOptions(depth=2, width=8, hidden=16, epochs=4, optimizer=optimizer, lr=0.01)
    artifact = prepare(model, tiny_batches(8), prototypes=options, parts=("prototypes",))
    history = artifact.parts["prototypes"]["loss"]
    assert len(history) == 4
    assert history[-1] < 0.9 * history[0]


@pytest.mark.parametrize(("depth", "shapes"), [(1, 2), (2, 9), (3, 16)])
def test_projectors_of_every_depth(model, depth, shapes):
    options = PrototypeOptions(depth=depth, width=6, hidden=5, epochs=1)
    artifact = prepare(model, tiny_batches(4), prototypes=options)
    assert artifact.part("prototypes")["embedding"].shape == (4, 6)
    assert len(artifact.part("projector")) == shapes
    adapted = acclimate.adapt(model, "swr_nsp", artifact)
    assert adapted(tiny_batches(1)[0][0]).isfinite().all()


def test_moments_against_numpy(model):
    model.double()
    batches = tiny_batches(6, dtype=torch.float64)
    artifact = prepare(model, batches, parts=("features",))
    h, p, labels = [], [], []
    for x, y in batches:
        taken = []
        hook = model.head.register_forward_hook(lambda _, inputs, __: taken.append(inputs[0]))  # noqa: B023
        p.append(model(x).detach().softmax(1).numpy())
        hook.remove()
        h.append(taken[0].detach().numpy())
        labels.append(y.numpy())
    h, p, labels = np.concatenate(h), np.concatenate(p), np.concatenate(labels)
    found = {k: v.numpy() for k, v in artifact.part("features").items()}
    assert np.allclose(found["mean"], h.mean(0), atol=1e-6)
    assert np.allclose(found["covariance"], np.cov(h.T), atol=1e-6)
    for k in range(4):
        assert found["class_count"][k] == (labels == k).sum()
        assert np.allclose(found["class_mean"][k], h[labels == k].mean(0), atol=1e-6)
        assert np.allclose(found["class_variance"][k], h[labels == k].var(0, ddof=1), atol=1e-6)
    predictions = artifact.part("predictions")
    assert np.allclose(predictions["mean"], p.mean(0), atol=1e-6)
    assert np.allclose(predictions["entropy"], -(p * np.log(p)).sum(1).mean(), atol=1e-6)
    assert artifact.parts["features"]["error"] == pytest.approx((p.argmax(1) != labels).mean())


X, Y = tiny_batches(1)[0]


@pytest.mark.parametrize(
    ("source", "code", "data"),
    [
        (iter([(X, Y)]), "not_repeatable", {}),
        (42, "wrong_type", {"option": "source", "found": "int"}),
        ([], "empty_source", {}),
        ([X], "wrong_type", {"option": "batch", "found": "Tensor"}),
        ([(X, Y.float())], "wrong_dtype", {"found": "float32"}),
        ([(X, Y[:3])], "wrong_shape", {"found": (3,)}),
        ([(X, Y % 2 + 4)], "wrong_labels", {"found": (4, 5), "n_classes": 4}),
        ([(X, Y % 2 - 2)], "wrong_labels", {"found": (-2, -1), "n_classes": 4}),
        ([(X * 255, Y)], "pixel_range", {"high": lambda high: high > 200}),
        ([(X.to(torch.uint8), Y)], "wrong_dtype", {"found": "uint8"}),
        ([(X[:, :, 0], Y)], "wrong_shape", {"found": (8, 3, 8)}),
        ([(X * torch.nan, Y)], "not_finite", {"found": tuple(range(8))}),
        ([(X[:0], Y[:0])], "empty_batch", {}),
    ],
)
def test_unusable_sources(model, source, code, data):
    with raises(code, BadInput, **data):
        prepare(model, source)


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        (PenaltyOptions, "n_samples", 0),
        (PenaltyOptions, "n_samples", 10.5),
        (PenaltyOptions, "exponent", "2"),
        (PrototypeOptions, "lr", float("inf")),
        (PrototypeOptions, "hidden", 1.5),
        (PenaltyOptions, "exponent", -1),
        (PrototypeOptions, "depth", 4),
        (PrototypeOptions, "momentum", 1.0),
        (PrototypeOptions, "epochs", 0),
    ],
)
def test_values_out_of_range(kind, option, value):
    with raises("out_of_range", InvalidConfig, option=option, found=value):
        kind(**{option: value})


@pytest.mark.parametrize(
    ("kind", "option", "name", "known"),
    [
        (PenaltyOptions, "granularity", "layer", "parameter"),
        (PenaltyOptions, "views", "swrr", "swr"),
        (PrototypeOptions, "source", "mean", "embedding"),
        (PrototypeOptions, "optimizer", "lion", "adam"),
    ],
)
def test_names_that_nothing_has(kind, option, name, known):
    with raises("unknown_name", InvalidConfig, name=name, known=lambda names: known in names):
        kind(**{option: name})


def test_unknown_parts_are_answered_with_the_known_ones(model):
    with raises("unknown_name", kind="part", name="penlty", known=lambda names: "penalty" in names):
        prepare(model, tiny_batches(2), parts=("penlty",))


def test_batches_of_one_cannot_train_a_projector(model):
    x, y = tiny_batches(1, 40)[0]
    singles = list(zip(x.split(1), y.split(1), strict=True))
    options = PrototypeOptions(depth=2, width=4, epochs=1)
    with raises("single_sample"):
        prepare(model, singles, prototypes=options, parts=("prototypes",))
    prepare(model, [(x, y), *singles[:1]], prototypes=options, parts=("prototypes",))


def test_automatic_depth():
    assert PrototypeOptions().depth_for(10) == 0
    assert PrototypeOptions().depth_for(100) == 2
    assert PrototypeOptions(depth=3).depth_for(10) == 3


def test_progress_is_reported(model):
    calls = []
    prepare(model, tiny_batches(4), progress=lambda *call: calls.append(call))
    assert ("penalty", 16, 16) in calls
    assert ("prototypes", 4, 4) in calls
    assert ("features", 4, 4) in calls
