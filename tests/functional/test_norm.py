"""Statistics of BatchNorm: which are used, what moves, and that flags come back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from acclimate.functional import norm_parameters, use_statistics
from acclimate.functional.norm import batch_norm_layers, lower_norm_parameters
from tests.torchvision_compat import torchvision


def layer():
    bn = nn.BatchNorm2d(3, momentum=0.3).double()
    bn.running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
    bn.running_var.copy_(torch.tensor([4.0, 5.0, 6.0]))
    with torch.no_grad():
        bn.weight.copy_(torch.tensor([0.5, 1.0, 2.0]))
        bn.bias.copy_(torch.tensor([0.1, 0.2, 0.3]))
    return bn


def by_hand(bn, x, mean, variance):
    shape = (1, 3, 1, 1)
    normal = (x - mean.view(shape)) / (variance.view(shape) + bn.eps).sqrt()
    return normal * bn.weight.view(shape) + bn.bias.view(shape)


@pytest.fixture
def x():
    return torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("mode", [True, False])
def test_batch_statistics_in_either_mode(x, mode):
    bn = layer().train(mode)
    with use_statistics(bn, "batch"):
        found = bn(x)
    expected = by_hand(bn, x, x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0))
    assert torch.allclose(found, expected, atol=1e-12)
    assert bn.running_mean.tolist() == [1, 2, 3]
    assert int(bn.num_batches_tracked) == 0


@pytest.mark.parametrize("mode", [True, False])
def test_source_statistics_in_either_mode(x, mode):
    bn = layer().train(mode)
    with use_statistics(bn, "source"):
        found = bn(x)
    assert torch.allclose(found, by_hand(bn, x, bn.running_mean, bn.running_var), atol=1e-12)
    assert bn.running_var.tolist() == [4, 5, 6]


@pytest.mark.parametrize("mode", [True, False])
def test_running_statistics_move_first_then_serve(x, mode):
    bn = layer().train(mode)
    mean = 0.9 * bn.running_mean + 0.1 * x.mean((0, 2, 3))
    variance = 0.9 * bn.running_var + 0.1 * x.var((0, 2, 3), correction=1)
    with use_statistics(bn, "running", momentum=0.1):
        found = bn(x)
    assert torch.allclose(found, by_hand(bn, x, mean, variance), atol=1e-12)
    assert torch.allclose(bn.running_mean, mean)
    with use_statistics(bn, "running", momentum=0.1, moves=False):
        bn(x)
    assert torch.allclose(bn.running_mean, mean)


def test_running_statistics_are_not_poisoned(x):
    bn = layer()
    x[0, 1, 0, 0] = torch.inf
    with use_statistics(bn, "running"):
        bn(x)
    assert bn.running_mean.tolist() == [1, 2, 3]


@pytest.mark.parametrize("statistics", ["batch", "running", "source"])
def test_everything_comes_back_even_after_an_error(statistics):
    model = nn.Sequential(layer(), nn.Dropout(), nn.BatchNorm2d(3, track_running_stats=False))
    model[1].eval()
    before = [(m.training, getattr(m, "track_running_stats", None)) for m in model.modules()]

    def fails():
        with use_statistics(model, statistics):
            assert not model[1].training
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    after = [(m.training, getattr(m, "track_running_stats", None)) for m in model.modules()]
    assert after == before
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_norm_parameters_of_every_kind():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1),
        nn.BatchNorm2d(4),
        nn.GroupNorm(2, 4),
        nn.InstanceNorm2d(4, affine=True),
        nn.LayerNorm(4),
        nn.RMSNorm(4),
        nn.BatchNorm1d(4, affine=False),
    )
    assert sorted({name.split(".")[0] for name in norm_parameters(model)}) == list("12345")
    assert sorted(batch_norm_layers(model)) == ["1", "6"]


def official_exclusion(name):
    parts = ("layer4", "encoder_layer_9.", "encoder_layer_10.", "encoder_layer_11.", "encoder.ln.")
    return any(part in name for part in parts)


@pytest.mark.parametrize(
    ("name", "skip_top", "n_layers", "n_left_out"),
    [("resnet50", 0.19, 53, 10), ("vit_b_16", 0.28, 25, 7)],
)
def test_the_share_left_out_is_what_the_authors_name(name, skip_top, n_layers, n_left_out):
    with torch.device("meta"):
        model = getattr(torchvision.models, name)()
    everything = set(lower_norm_parameters(model, 0.0))
    kept = set(lower_norm_parameters(model, skip_top))
    assert len(everything) == 2 * n_layers
    assert len(everything - kept) == 2 * n_left_out
    assert everything - kept == {key for key in everything if official_exclusion(key)}


@given(n=st.integers(1, 60), skip_top=st.floats(0, 1))
@settings(deadline=None, max_examples=50)
def test_the_lowest_layer_always_moves(n, skip_top):
    model = nn.Sequential(*(nn.LayerNorm(1) for _ in range(n)))
    kept = list(lower_norm_parameters(model, skip_top))
    assert kept[:2] == ["0.weight", "0.bias"]
    n_kept = len(kept) // 2
    assert kept == list(dict(model.named_parameters()))[: 2 * n_kept]
    assert abs((n - n_kept) - skip_top * n) <= 0.5 or n_kept == 1
