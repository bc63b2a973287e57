"""Instance-aware BatchNorm: against the oracle's plain one, and beside plain BatchNorm."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from acclimate.functional.iabn import InstanceAwareBatchNorm2d, convert, iabn_layers
from acclimate.functional.norm import batch_norm_layers, norm_parameters, use_statistics
from acclimate.testing.models import tiny_model
from tests.codes import raises
from tests.reference.oracles_statistics_methods import InstanceAware, exchanged


def layer_and_input(shrinkage=1.0, size=4, dtype=torch.float64):
    draws = torch.Generator().manual_seed(0)
    layer = InstanceAwareBatchNorm2d(3, shrinkage=shrinkage).to(dtype).eval()
    with torch.no_grad():
        for tensor in (layer.weight, layer.bias, layer.running_mean):
            tensor.copy_(torch.randn(3, generator=draws))
        layer.running_var.copy_(torch.rand(3, generator=draws) + 0.5)
    x = torch.randn(5, 3, size, size, generator=draws)
    return layer, (x * torch.linspace(0.1, 3, 5).view(5, 1, 1, 1) + 0.3).to(dtype)


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("shrinkage", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("size", [1, 4])
def test_the_layer_is_the_oracle_s(size, shrinkage, learns):
    layer, x = layer_and_input(shrinkage, size)
    plain = InstanceAware(copy.deepcopy(layer))
    plain.learns = learns
    layer.momentum = 0.01
    layer.train(learns)
    x.requires_grad_(True)
    found, expected = layer(x), plain(x)
    assert (found - expected).abs().max() < 1e-12
    weights = torch.linspace(-1, 1, x.numel()).view_as(x).double()
    left, right = (torch.autograd.grad((y * weights).sum(), x)[0] for y in (found, expected))
    assert (left - right).abs().max() < 1e-11
    assert (layer.running_mean - plain.mean).abs().max() < 1e-12
    assert (layer.running_var - plain.variance).abs().max() < 1e-12


def test_some_images_are_followed_and_some_are_not():
    layer, x = layer_and_input(1.0)
    usual = nn.BatchNorm2d.forward(layer, x)
    moved = ((layer(x) - usual).abs().amax(dim=(1, 2, 3)) > 1e-9).tolist()
    assert any(moved)
    far, _ = layer_and_input(1e9)
    assert (far(x) - usual).abs().max() < 1e-12  # nothing is beyond chance: plain BatchNorm


def test_without_shrinkage_it_is_instance_normalisation():
    layer, x = layer_and_input(0.0, size=8)
    variance, mean = torch.var_mean(x, dim=(2, 3), keepdim=True)
    expected = (x - mean) / (variance + layer.eps).sqrt()
    expected = expected * layer.weight.view(1, 3, 1, 1) + layer.bias.view(1, 3, 1, 1)
    assert (layer(x) - expected).abs().max() < 1e-12


@pytest.mark.parametrize("momentum", [0.1, None])
def test_training_keeps_the_statistics_that_batch_norm_keeps(momentum):
    plain = nn.BatchNorm2d(3, momentum=momentum).double()
    ours = InstanceAwareBatchNorm2d(3, momentum=momentum).double()
    for _ in range(3):
        x = layer_and_input()[1]
        plain(x)
        ours(x)
    assert (plain.running_mean - ours.running_mean).abs().max() < 1e-12
    assert (plain.running_var - ours.running_var).abs().max() < 1e-12
    assert plain.num_batches_tracked == ours.num_batches_tracked == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype):
    layer, x = layer_and_input(dtype=torch.float32)
    expected = layer(x)
    found = layer.to(dtype)(x.to(dtype))
    assert found.dtype == dtype
    assert (found.float() - expected).abs().max() < 0.1


@pytest.mark.parametrize("train", [False, True])
def test_constant_channels_have_finite_gradients(train):
    layer = InstanceAwareBatchNorm2d(2).train(train)
    x = torch.ones(3, 2, 4, 4, requires_grad=True)
    y = layer(x)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    assert y.isfinite().all()
    assert gradient.isfinite().all()


# Statistics policies ----------------------------------------------------------------------------


def test_source_statistics_change_nothing_and_running_ones_move():
    layer, x = layer_and_input()
    expected, before = layer(x), layer.running_mean.clone()
    layer.train()
    with use_statistics(layer, "source"):
        assert torch.equal(layer(x), expected)
    assert torch.equal(layer.running_mean, before)
    with use_statistics(layer, "running", 0.25):
        found = layer(x)
    assert (layer.running_mean - (0.75 * before + 0.25 * x.mean(dim=(0, 2, 3)))).abs().max() < 1e-12
    assert torch.equal(found, layer.eval()(x))
    assert not torch.equal(found, expected)


def test_batch_statistics_are_those_of_training_without_keeping_them():
    layer, x = layer_and_input()
    expected = copy.deepcopy(layer).train()(x)
    before = copy.deepcopy(layer.state_dict())
    with use_statistics(layer, "batch"):
        assert torch.equal(layer(x), expected)
    assert all(torch.equal(t, before[name]) for name, t in layer.state_dict().items())


def test_mixed_statistics_are_those_of_a_layer_that_has_them():
    layer, x = layer_and_input()
    layer.eps = 1e-12  # the thresholds have an eps in them too, which the mixture cannot know
    mixed = copy.deepcopy(layer)
    variance, mean = torch.var_mean(x, dim=(0, 2, 3))
    mixed.running_mean.lerp_(mean, 0.3)
    mixed.running_var.lerp_(variance, 0.3)
    with use_statistics(layer, "mixed", 0.3):
        assert (layer(x) - mixed(x)).abs().max() < 1e-9


# Conversion -------------------------------------------------------------------------------------


def test_convert_keeps_every_tensor_under_its_name():
    model = tiny_model("batch_norm")
    before = dict(model.named_parameters()) | dict(model.named_buffers())
    assert convert(model, 2.0) is model
    after = dict(model.named_parameters()) | dict(model.named_buffers())
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)
    assert len(iabn_layers(model)) == len(batch_norm_layers(model)) == 3
    assert all(layer.shrinkage == 2.0 for layer in iabn_layers(model).values())
    assert "shrinkage=2" in repr(model)
    assert set(norm_parameters(model)) == {n for n in before if _is_affine(n)}


def _is_affine(name):
    return "norm" in name and name.endswith(("weight", "bias"))


def test_a_converted_model_is_that_of_the_oracle():
    model = convert(tiny_model("batch_norm").double())
    x = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    x[0] = 0.0  # an image unlike any other
    plain = exchanged(model, InstanceAwareBatchNorm2d, InstanceAware)
    assert (model(x) - plain(x)).abs().max() < 1e-10
    assert (model(x) - tiny_model("batch_norm").double()(x)).abs().max() > 1e-3


def test_convert_keeps_modes_options_and_shared_layers():
    shared = nn.BatchNorm2d(4, eps=1e-3, momentum=0.2, affine=False).eval()
    model = nn.Sequential(shared, nn.Sequential(shared, nn.BatchNorm2d(4)))
    convert(model)
    assert model[0] is model[1][0]
    assert (model[0].eps, model[0].momentum, model[0].training) == (1e-3, 0.2, False)
    assert model[0].weight is None
    assert model[1][1].training
    model(torch.rand(3, 4, 5, 5))


def test_convert_refuses_models_without_anything_to_convert():
    with raises("missing_layers", layers=("BatchNorm2d",)):
        convert(tiny_model("vit"))
    with raises("missing_layers", layers=("BatchNorm2d",)):
        convert(convert(tiny_model("batch_norm")))
