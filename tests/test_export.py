"""Export: a plain module predicts as the adapted model does now."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import acclimate
from acclimate.export import FORMATS, check_format, export_model, write_format
from acclimate.testing.models import tiny_batches, tiny_model
from acclimate.zoo.torchvision_compat import import_torchvision
from tests.codes import raises


def prepare(model: nn.Module, method: str) -> acclimate.Artifact:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", acclimate.AcclimateWarning)  # few samples
        return acclimate.prepare(model, tiny_batches(8), method=method)


def adapt_some(method: str, model: nn.Module, **options: Any) -> acclimate.Method:
    kind = acclimate.get_method(method)
    artifact = prepare(model, method) if kind.needs else None
    adapted = acclimate.adapt(model, method, artifact, **options)
    for x, _ in tiny_batches(3, seed=1):
        adapted(x)
    return adapted


def probe(seed: int = 2) -> Tensor:
    return tiny_batches(1, seed=seed)[0][0]


def live(adapted: acclimate.Method, x: Tensor) -> Tensor:
    with adapted.paused():
        return adapted(x)


def assert_plain(module: nn.Module) -> None:
    for part in module.modules():
        assert not part.training
        assert not part._forward_hooks
        assert not part._forward_pre_hooks
        assert "forward" not in vars(part)


@pytest.mark.parametrize("name", ["batch_norm", "group_norm", "vit"])
@pytest.mark.parametrize("statistics", ["source", "running", "robust"])
def test_fixed_statistics_give_the_same_logits(name: str, statistics: str) -> None:
    adapted = adapt_some("tent", tiny_model(name), statistics=statistics, lr=0.01)
    before = adapted.snapshot()
    module = adapted.export()
    assert_plain(module)
    x = probe()
    torch.testing.assert_close(module(x), live(adapted, x), rtol=0, atol=1e-5)
    assert adapted.counts.updates == 3
    again = adapted.snapshot().tree["modules"]
    assert all(torch.equal(again[key], value) for key, value in before.tree["modules"].items())


def test_the_module_is_a_copy_with_the_flags_of_the_source() -> None:
    model = tiny_model("batch_norm")
    next(model.parameters()).requires_grad_(False)
    flags = [p.requires_grad for p in model.parameters()]
    adapted = adapt_some("tent", model, statistics="source")
    module = adapted.export()
    assert [p.requires_grad for p in module.parameters()] == flags
    kept = copy.deepcopy(module.state_dict())
    adapted(probe())
    adapted.reset()
    assert all(torch.equal(kept[key], value) for key, value in module.state_dict().items())


@pytest.mark.parametrize("statistics", ["batch", "mixed"])
def test_batch_statistics_are_those_of_the_probe(statistics: str) -> None:
    adapted = adapt_some("tent", tiny_model("batch_norm"), statistics=statistics)
    with raises("missing_option", option="probe"):
        adapted.export()
    x = probe()
    exported = export_model(adapted, x)
    torch.testing.assert_close(exported.module(x), live(adapted, x), rtol=0, atol=1e-5)
    assert exported.card["differences"]["max_abs_logit"] <= 1e-5
    # On other batches the live model uses other statistics, and the card says how far that is.
    other = 3 * probe(3) + 1
    several = export_model(adapted, [x, other])
    found = several.card["differences"]
    both = [(several.module(b), live(adapted, b)) for b in (x, other)]
    largest = max(float((a - b).detach().abs().max()) for a, b in both)
    assert found["max_abs_logit"] == pytest.approx(largest)
    assert largest > 1e-3
    assert (found["n_samples"], found["n_batches"]) == (2 * len(x), 2)
    equal = torch.cat([a.argmax(1) == b.argmax(1) for a, b in both])
    assert found["class_agreement"] == pytest.approx(float(equal.float().mean()))


def test_pooled_statistics_are_those_of_all_samples() -> None:
    adapted = adapt_some("norm", tiny_model("batch_norm"))
    x, y = probe(), probe(3)[:3] + 0.3
    module = adapted.export([x, y])
    first = next(m for m in module.modules() if isinstance(m, nn.BatchNorm2d))
    seen: list[Tensor] = []
    hook = first.register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
    module(torch.cat([x, y]))
    hook.remove()
    mean, variance = seen[0].mean(dim=(0, 2, 3)), seen[0].var(dim=(0, 2, 3), correction=0)
    torch.testing.assert_close(first.running_mean, mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(first.running_var, variance, rtol=1e-4, atol=1e-5)


def test_statistics_of_the_stream_are_stored() -> None:
    adapted = adapt_some("tent", tiny_model("batch_norm"), statistics="auto")
    module = adapted.export()
    from acclimate.functional.norm import batch_norm_layers, use_statistics
    from acclimate.functional.stream_norm import stream_share, trust, use_stream

    x, stream = probe(), adapted.stream
    share = stream_share(stream["n"]) * trust(stream)
    # A batch of weight zero leaves the stream as it is.
    with torch.no_grad(), use_statistics(adapted.model, "source"):
        with use_stream(adapted.model, stream, 0.0, share):
            expected = adapted.model(x)
        source = adapted.model(x)
    torch.testing.assert_close(module(x), expected, rtol=0, atol=1e-5)
    assert float((source - expected).abs().max()) > 1e-3
    assert len(batch_norm_layers(module)) == len(stream["moments"])


@pytest.mark.filterwarnings("ignore:The exported module does not")
def test_steady_averages_views() -> None:
    model = tiny_model("vit")
    artifact = prepare(model, "steady")
    adapted = acclimate.adapt(model, "steady", artifact, filter_labels=False)
    adapted._has_mirror = True
    for x, _ in tiny_batches(2, seed=1):
        adapted(x)
    exported = export_model(adapted, probe())
    assert exported.card["is_mirrored"]
    assert exported.card["lost"] == []
    torch.testing.assert_close(exported.module(probe()), live(adapted, probe()), rtol=0, atol=1e-5)


def test_what_is_lost_is_in_the_card_and_a_warning() -> None:
    adapted = adapt_some("steady", tiny_model("vit"))
    with pytest.warns(acclimate.AcclimateWarning) as caught:
        exported = export_model(adapted, probe())
    assert [w.message.code for w in caught] == ["export_incomplete"]
    assert len(exported.card["lost"]) == 1
    card = json.loads(json.dumps(exported.card, allow_nan=False))
    assert card["method"] == "steady"
    assert card["counts"]["batches"] == 3
    assert len(card["source_sha256"]) == 64


@pytest.mark.parametrize("method", ["lame", "t3a", "memo"])
def test_predictions_that_no_module_can_make_are_refused(method: str) -> None:
    adapted = acclimate.adapt(tiny_model("vit"), method)
    with raises("not_exportable", method=method):
        adapted.export()


def test_prototypes_as_predictor_are_refused() -> None:
    model = tiny_model("batch_norm")
    artifact = prepare(model, "nsp")
    adapted = acclimate.adapt(model, "nsp", artifact)
    adapted.export(probe())
    model = adapted.unwrap()
    adapted = acclimate.adapt(
        model, "tent", artifact, terms=[acclimate.Nsp(predictor="prototypes")]
    )
    with raises("not_exportable", method="tent"):
        adapted.export(probe())


def test_a_method_of_another_package_must_say_how_it_predicts() -> None:
    class Halved(acclimate.get_method("norm")):  # type: ignore[misc]
        name = "halved"

        def infer(self, x: Tensor) -> Tensor:
            return super().infer(x) / 2

    adapted = Halved(tiny_model("vit"), Halved.config_class())
    with raises("not_exportable", method="halved"):
        adapted.export()


@pytest.mark.parametrize("method", ["rotta", "tribe"])
def test_the_model_that_predicts_is_exported(method: str) -> None:
    adapted = adapt_some(method, tiny_model("batch_norm"))
    module = adapted.export(probe())
    torch.testing.assert_close(module(probe()), live(adapted, probe()), rtol=0, atol=1e-5)


def build(name: str) -> nn.Module:
    """Return an architecture of torchvision in a small size."""
    models: Any = import_torchvision().models
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name == "resnet":
            model = models.resnet18(num_classes=5)
        elif name == "mobilenet":
            model = models.mobilenet_v2(num_classes=5, width_mult=0.25)
        elif name == "vit":
            model = models.VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=5)
            nn.init.normal_(model.heads.head.weight)  # zero at the start
        else:
            block = models.convnext.CNBlockConfig
            blocks = [block(16, 32, 1), block(32, None, 1)]
            model = models.ConvNeXt(blocks, num_classes=5, layer_scale=0.5)
    return model.eval()


ARCHITECTURES = ("resnet", "convnext", "vit", "mobilenet")


def images(seed: int) -> Tensor:
    return torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_under_fixed_statistics(name: str) -> None:
    adapted = acclimate.adapt(build(name), "tent", statistics="source", lr=0.01)
    before = live(adapted, images(9))
    for seed in range(3):
        adapted(images(seed))
    expected = live(adapted, images(9))
    assert float((before - expected).abs().max()) > 1e-3  # it has learned something
    torch.testing.assert_close(adapted.export()(images(9)), expected, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_in_every_format(name: str, kind: str, tmp_path: Path) -> None:
    adapted = acclimate.adapt(build(name), "tent", statistics="source", lr=0.01)
    adapted(images(0))
    path = tmp_path / f"model{FORMATS[kind].suffix}"
    assert write_format(adapted.export(), images(1), kind, path) <= FORMATS[kind].tolerance
    assert path.stat().st_size > 0


def test_a_file_whose_logits_differ_is_refused(tmp_path: Path) -> None:
    class Drifting(nn.Module):
        n_calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.n_calls += 1
            return x.flatten(1) + self.n_calls

    with raises("format_failed", format="torchscript"):
        write_format(Drifting(), probe(), "torchscript", tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_missing_onnx_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_format("pt2")
    with raises("missing_extra", package="onnx") as caught:
        check_format("onnx")
    assert "acclimate[export]" in str(caught.value)


def test_a_batch_that_waits_for_learn_must_be_settled_first() -> None:
    adapted = adapt_some("tent", tiny_model("batch_norm"), statistics="source")
    adapted.predict(probe())
    with raises("pending"):
        adapted.export()
    adapted.learn()
    adapted.export()
