"""The part `fisher` of an artifact: against a slow version, and what is refused."""

from __future__ import annotations

import copy

import pytest
import torch

import acclimate
from acclimate.parts import FisherInformation
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises
from tests.reference import oracles_selective as oracles


def is_norm(key):
    return "norm" in key


def prepare(model, batches, n_samples=2000, batch_size=8, **options):
    part = FisherInformation(n_samples=n_samples, batch_size=batch_size)
    return acclimate.prepare(model, batches, parts=[part], **options)


def split(sizes, dtype=torch.float64):
    x, y = (torch.cat(parts) for parts in zip(*tiny_batches(6, dtype=dtype), strict=True))
    total = sum(sizes)
    return list(zip(x[:total].split(sizes), y[:total].split(sizes), strict=True))


@pytest.mark.parametrize("name", ["batch_norm", "group_norm", "vit"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), (torch.float32, 1e-5)],
    ids=["double", "single"],
)
def test_fisher(name, dtype, tolerance):
    model = tiny_model(name).to(dtype)
    found = prepare(model, split([8, 8, 8], dtype)).part("fisher")
    expected = oracles.fisher(model, [x for x, _ in split([8, 8, 8], dtype)], is_norm)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key].shape == value.shape
        assert float(value.abs().max()) > 0
        assert float((found[key] - value).abs().max() / value.abs().max()) <= tolerance


@pytest.mark.parametrize("sizes", [[20], [5, 5, 5, 5], [3, 9, 1, 7], [1] * 20])
def test_batches_are_regrouped(sizes):
    """Blocks of 8, 8 and 4, however the loader cuts its batches."""
    model = tiny_model("batch_norm").double()
    found = prepare(model, split(sizes)).part("fisher")
    expected = oracles.fisher(model, [x for x, _ in split([8, 8, 4])], is_norm)
    assert all(torch.allclose(found[key], expected[key], rtol=1e-10) for key in expected)


def test_only_as_many_samples_are_used_as_asked_for():
    model = tiny_model("batch_norm").double()
    artifact = prepare(model, split([8] * 6), n_samples=19)
    expected = oracles.fisher(model, [x for x, _ in split([8, 8, 3])], is_norm)
    found = artifact.part("fisher")
    assert all(torch.allclose(found[key], expected[key], rtol=1e-10) for key in expected)
    card = {"n_samples": 19, "batch_size": 8, "speed": "exact", "precision": "float64"}
    assert artifact.parts["fisher"] == card


def test_a_last_image_alone_is_left_out_where_it_has_no_statistics():
    model = tiny_model("batch_norm").double()
    artifact = prepare(model, split([8, 8, 1]))
    expected = oracles.fisher(model, [x for x, _ in split([8, 8])], is_norm)
    found = artifact.part("fisher")
    assert all(torch.allclose(found[key], expected[key], rtol=1e-10) for key in expected)
    assert artifact.parts["fisher"]["n_samples"] == 16
    layered = tiny_model("vit").double()
    found = prepare(layered, split([8, 1])).part("fisher")
    expected = oracles.fisher(layered, [x for x, _ in split([8, 1])], is_norm)
    assert all(torch.allclose(found[key], expected[key], rtol=1e-10) for key in expected)


def test_single_images_only_are_refused_where_they_have_no_statistics():
    model = tiny_model("batch_norm").double()
    with raises("single_sample"):
        prepare(model, split([8, 8]), batch_size=1)
    layered = tiny_model("vit").double()
    found = prepare(layered, split([4]), batch_size=1).part("fisher")
    expected = oracles.fisher(layered, [x for x, _ in split([1] * 4)], is_norm)
    assert all(torch.allclose(found[key], expected[key], rtol=1e-10) for key in expected)


def test_labels_are_not_used():
    model = tiny_model("batch_norm").double()
    left = prepare(model, split([8, 8]))
    right = prepare(model, [(x, (y + 1) % 4) for x, y in split([8, 8])])
    assert all(torch.equal(value, right.tensors[key]) for key, value in left.tensors.items())


def test_the_model_is_given_back_as_it_was():
    model = tiny_model("batch_norm").train()
    model.norm.weight.requires_grad_(False)
    model.stem.bias.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    flags = [(m.training, len(m._forward_pre_hooks)) for m in model.modules()]
    grads = [(p.requires_grad, p.grad) for p in model.parameters()]
    found = prepare(model, tiny_batches(3)).part("fisher")
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [(m.training, len(m._forward_pre_hooks)) for m in model.modules()] == flags
    assert [(p.requires_grad, p.grad) for p in model.parameters()] == grads
    assert "norm.weight" in found  # frozen or not, it is measured


def test_flags_are_given_back_when_the_source_fails():
    model = tiny_model("batch_norm")
    flags = [p.requires_grad for p in model.parameters()]
    good = tiny_batches(2)
    bad = [*good, (torch.full_like(good[0][0], torch.nan), good[0][1])]
    with raises("not_finite", found=tuple(range(8))):
        prepare(model, bad)
    assert [p.requires_grad for p in model.parameters()] == flags


def test_half_precision_does_not_swallow_small_squares():
    model = tiny_model("batch_norm").bfloat16()
    found = prepare(model, tiny_batches(3, dtype=torch.bfloat16)).part("fisher")
    assert all(value.dtype == torch.float32 for value in found.values())
    exact = prepare(tiny_model("batch_norm"), tiny_batches(3)).part("fisher")
    left, right = (torch.cat(list(part.values())) for part in (found, exact))
    assert float((left - right).norm() / right.norm()) < 0.1


def test_progress_is_reported():
    told = []
    model = tiny_model("batch_norm")
    prepare(model, tiny_batches(3), progress=lambda *facts: told.append(facts))
    assert told == [("fisher", n, 2000) for n in (8, 16, 24)]


def test_a_model_without_normalisation_is_refused():
    with raises("missing_layers", layers=lambda layers: "BatchNorm" in layers):
        prepare(tiny_model("mlp"), tiny_batches(2))


@pytest.mark.parametrize(
    ("option", "value"), [("n_samples", 0), ("batch_size", 0), ("batch_size", 2.5)]
)
def test_bad_options_are_refused(option, value):
    with raises("invalid_options", problems=lambda found: set(found) == {option}):
        FisherInformation(**{option: value})


def test_it_is_saved_with_the_artifact(tmp_path):
    artifact = prepare(tiny_model("batch_norm"), tiny_batches(2))
    artifact.save(tmp_path / "prepared.safetensors")
    loaded = acclimate.Artifact.load(tmp_path / "prepared.safetensors").part("fisher")
    assert all(torch.equal(value, loaded[key]) for key, value in artifact.part("fisher").items())


def test_it_is_prepared_when_asked_for_only():
    model = tiny_model("batch_norm")
    assert "fisher" not in acclimate.prepare(model, tiny_batches(2), parts=["features"]).parts
    assert list(prepare(model, tiny_batches(2)).parts) == ["fisher"]
