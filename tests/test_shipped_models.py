"""Models as they are shipped: each works, or is refused with a clear error.

The tables name small models of every origin. A model works if tent, and swr_nsp after `prepare`,
learn from two batches and give the model back bit for bit. What is refused is refused with its
code, and nothing has changed then. No weights are downloaded.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

import acclimate
from acclimate import ModelInfo, Penalty, Prototypes
from acclimate import progress as progress_module
from acclimate.errors import MissingExtra
from acclimate.forward import get_logits
from acclimate.introspect import count_classes
from acclimate.progress import ProgressBar, get_progress
from acclimate.testing.models import INPUT_SHAPE, N_CLASSES, ConvNet, tiny_batches
from acclimate.zoo.torchvision_compat import import_torchvision
from tests.codes import raises, warns

PARTS = [Penalty(n_samples=8), "prototypes"]
META = torch.linspace(0, 1, 24).reshape(8, 3)


def pairs(x, y):
    return [(x, y)]


def dicts(x, y):
    return [{"pixel_values": x, "labels": y}]


def plain(adapted, x):
    return adapted(x)


def by_name(adapted, x):
    return adapted(pixel_values=x)


@dataclass(frozen=True)
class Case:
    """A model, how it is called, and how the source batches for it look."""

    make: Callable[[], Any]
    call: Callable[[Any, torch.Tensor], Any] = plain
    source: Callable[[torch.Tensor, torch.Tensor], list[Any]] = pairs
    shape: tuple[int, int, int] = INPUT_SHAPE
    info: ModelInfo | None = None
    dtype: torch.dtype = torch.float32

    def images(self, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(8, *self.shape, generator=generator).to(self.dtype)

    def batches(self) -> list[Any]:
        return self.source(self.images(0), torch.arange(8) % N_CLASSES)

    def prepare(self, model: Any, **options: Any) -> acclimate.Artifact:
        options = {"method": "swr_nsp", "parts": PARTS, "info": self.info, **options}
        return acclimate.prepare(model, self.batches(), **options)


def net() -> ConvNet:
    return ConvNet(nn.BatchNorm2d)


class Around(nn.Module):
    """A net with something done to its logits."""

    def __init__(self, change, n_classes=N_CLASSES):
        super().__init__()
        self.net = net()
        self.net.head = nn.Linear(8, n_classes)
        self.change = change

    def forward(self, x):
        return self.change(self.net(x))


class TwoInputs(nn.Module):
    """Takes images and a table of metadata."""

    def __init__(self):
        super().__init__()
        self.net, self.table = net(), nn.Linear(3, N_CLASSES)

    def forward(self, image, meta):
        return self.net(image) + self.table(meta)


class TakesDict(nn.Module):
    """Takes one dict."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, batch):
        return self.net(batch["image"])


class LikeHuggingFace(nn.Module):
    """Named inputs, and an object with the logits, as the models of transformers have."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, pixel_values=None, labels=None):
        logits = self.net(pixel_values)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SimpleNamespace(loss=loss, logits=logits)


class Inside(nn.Module):
    """Runs a part of itself inside a context."""

    def __init__(self, context, part="all"):
        super().__init__()
        self.net, self.context, self.part = net(), context, part

    def forward(self, x):
        if self.part == "all":
            with self.context():
                return self.net(x)
        with self.context():
            hidden = self.net.stem(x)
        return self.net.head(self.net.block(self.net.norm(hidden)).mean(dim=(2, 3)))


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same(model: nn.Module, before: dict[str, torch.Tensor]) -> None:
    now = model.state_dict()
    assert list(now) == list(before)
    assert all(torch.equal(now[name], tensor) for name, tensor in before.items())


def assert_works(case: Case, method: str) -> None:
    """Adapt on two batches; the weights move, and the model comes back as it was."""
    torch.manual_seed(0)
    model = case.make()
    before = state_of(model)
    flags = [(module.training, len(module._forward_hooks)) for module in model.modules()]
    artifact = case.prepare(model) if method == "swr_nsp" else None
    assert_same(model, before)
    adapted = acclimate.adapt(model, method, artifact, info=case.info)
    for seed in (1, 2):
        output = case.call(adapted, case.images(seed))
        logits = get_logits(output, None if case.info is None else case.info.logits_at)
        assert logits.shape == (8, N_CLASSES)
        assert logits.isfinite().all()
        assert not logits.requires_grad
    assert adapted.counts.updates == 2
    assert not adapted.counts.skipped
    assert any(not torch.equal(v, before[n]) for n, v in model.state_dict().items())
    adapted.reset()
    assert_same(model, before)
    case.call(adapted, case.images(3))
    assert adapted.unwrap() is model
    assert_same(model, before)
    assert [(m.training, len(m._forward_hooks)) for m in model.modules()] == flags


WORKS = {
    "log-probabilities": Case(lambda: Around(lambda z: z.log_softmax(dim=1))),
    "bfloat16": Case(lambda: net().bfloat16(), dtype=torch.bfloat16),
    "DataParallel": Case(lambda: nn.DataParallel(net())),
    "like Hugging Face": Case(LikeHuggingFace, by_name, dicts),
    "like Hugging Face, labels passed too": Case(
        LikeHuggingFace,
        lambda adapted, x: adapted(pixel_values=x, labels=torch.arange(8) % N_CLASSES),
        dicts,
    ),
    "names of the loader's own": Case(net, source=lambda x, y: [{"image": x, "label": y}]),
    "a dict as input": Case(
        TakesDict,
        lambda adapted, x: adapted({"image": x}),
        lambda x, y: [({"image": x}, y)],
    ),
    "a first layer without gradients": Case(lambda: Inside(torch.no_grad, "stem")),
}


@pytest.mark.parametrize("method", ["tent", "swr_nsp"])
@pytest.mark.parametrize("name", WORKS)
def test_works(name, method):
    assert_works(WORKS[name], method)


TWO_INPUTS = {
    "by position": lambda adapted, x: adapted(x, META),
    "by name": lambda adapted, x: adapted(x, meta=META),
    "both by name": lambda adapted, x: adapted(meta=META, image=x),
}


@pytest.mark.parametrize("name", TWO_INPUTS)
def test_other_inputs_are_passed_along(name):
    assert_works(Case(TwoInputs, TWO_INPUTS[name]), "tent")


def test_a_dict_with_other_inputs():
    ids = torch.arange(8)
    assert_works(Case(TakesDict, lambda adapted, x: adapted({"image": x, "id": ids})), "tent")


def test_other_inputs_reach_the_model():
    adapted = acclimate.adapt(model := TwoInputs(), "source")
    x = Case(TwoInputs).images(1)
    with torch.no_grad():
        expected = model.eval()(x, META)
    assert torch.allclose(adapted(x, META), expected, atol=1e-6)
    assert not torch.allclose(adapted(x, 1 - META), expected, atol=1e-3)


@pytest.mark.parametrize(
    ("source", "inputs"),
    [
        (lambda x, y: [{"image": x, "meta": META, "labels": y}], ("meta",)),
        (lambda x, y: [((x, META), y)], ("1",)),
        (lambda x, y: [({"image": x, "meta": META}, y)], ("meta",)),
    ],
)
def test_other_inputs_cannot_be_prepared_with(source, inputs):
    case = Case(TwoInputs, source=source)
    model = case.make()
    model.forward = lambda *_, **__: pytest.fail("the model was run")
    with raises("extra_inputs", inputs=inputs):
        case.prepare(model)


def test_a_model_that_needs_more_than_images_says_what():
    with raises("model_rejects_input", found=(2, *INPUT_SHAPE)) as caught:
        Case(TwoInputs).prepare(TwoInputs())
    assert "meta" in str(caught.value)


def test_methods_that_keep_images_refuse_inputs_that_belong_to_them():
    adapted = acclimate.adapt(TwoInputs(), "rotta")
    with raises("inputs_belong_together", expected=8):
        adapted(Case(TwoInputs).images(1), META)


def test_the_images_can_be_named_where_several_arguments_could_be_meant():
    class Stereo(TwoInputs):
        def forward(self, left, right):
            return self.net(left) + right.mean()

    x = Case(Stereo).images(1)
    with raises("ambiguous_images", candidates=("0", "1")):
        acclimate.adapt(Stereo(), "tent")(x, x)
    assert_works(
        Case(Stereo, lambda adapted, x: adapted(x, x), info=ModelInfo(images_at=0)), "tent"
    )


# What is refused at once, by adapt and by prepare ------------------------------------------------


def quantized():
    quantization = pytest.importorskip("torch.ao.quantization")
    return quantization.quantize_dynamic(net().eval(), {nn.Linear})


class LikeTorchao(nn.Parameter):
    """A tensor subclass as torchao puts in the place of weights."""


LikeTorchao.__module__ = "torchao.quantization.like"


def quantized_tensors():
    model = net()
    model.head.weight = LikeTorchao(model.head.weight.detach())
    return model


def exported():
    return torch.export.export(net().eval(), (torch.rand(8, *INPUT_SHAPE),))


def made_in_inference_mode():
    with torch.inference_mode():
        return net()


class Classifier:
    """Can be called like a model, but is none."""

    def __call__(self, x):
        return x.mean(dim=(2, 3))


NEVER = {
    "scripted": (lambda: torch.jit.script(net()), "scripted_model"),
    "traced": (
        lambda: torch.jit.trace(net().eval(), torch.rand(2, *INPUT_SHAPE)),
        "scripted_model",
    ),
    "exported": (exported, "exported_program"),
    "module of an exported program": (lambda: exported().module(), "exported_program"),
    "unflattened": (lambda: torch.export.unflatten(exported()), "exported_program"),
    "dynamically quantised": (quantized, "quantized_model"),
    "quantised tensors": (quantized_tensors, "quantized_model"),
    "an object": (Classifier, "not_a_module"),
    "a function": (lambda: torch.sigmoid, "not_a_module"),
    "a class": (lambda: ConvNet, "not_a_module"),
    "a state dict": (lambda: net().state_dict(), "not_a_module"),
    "lazy layers": (
        lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.LazyLinear(N_CLASSES)),
        "lazy_layers",
    ),
    "without values": (lambda: net().to("meta"), "unsupported_model"),
    "weights made in inference mode": (made_in_inference_mode, "no_gradient"),
}


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:torch.quantize_per_tensor"
)
@pytest.mark.parametrize("name", NEVER)
def test_refused_at_once(name):
    make, code = NEVER[name]
    model = make()
    for method in ("tent", "norm"):
        with raises(code):
            acclimate.adapt(model, method)
    with raises(code):
        Case(make).prepare(model)


def test_the_refusal_of_a_quantised_model_names_its_layers():
    with raises("quantized_model", layers=("head",)):
        acclimate.adapt(quantized_tensors(), "tent")


# What is refused when the first batch shows it, and by prepare -----------------------------------

BY_A_BATCH = {
    "one logit": (Case(lambda: Around(lambda z: z, 1)), "one_logit"),
    "one logit, squeezed": (Case(lambda: Around(lambda z: z.squeeze(1), 1)), "wrong_logits"),
    "softmax": (Case(lambda: Around(lambda z: z.softmax(dim=1))), "probabilities"),
    "no_grad inside": (Case(lambda: Inside(torch.no_grad)), "no_gradient"),
    "inference_mode inside": (Case(lambda: Inside(torch.inference_mode)), "no_gradient"),
    "inference_mode in the first layer": (
        Case(lambda: Inside(torch.inference_mode, "stem")),
        "no_gradient",
    ),
    "a detached output": (Case(lambda: Around(torch.detach)), "no_gradient"),
}


@pytest.mark.parametrize("name", BY_A_BATCH)
def test_refused_by_a_batch(name):
    case, code = BY_A_BATCH[name]
    model = case.make()
    before = state_of(model)
    flags = [parameter.requires_grad for parameter in model.parameters()]
    with raises(code):
        case.prepare(model)
    adapted = acclimate.adapt(model, "tent")
    with raises(code):
        adapted(case.images(1))
    assert adapted.counts.batches == adapted.counts.updates == 0
    assert_same(model, before)
    assert [parameter.requires_grad for parameter in model.parameters()] == flags


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("part", ["all", "stem"])
def test_norm_needs_no_gradient(context, part):
    torch.manual_seed(0)
    model = Inside(context, part)
    before = state_of(model)
    x = Case(net).images(1)
    with torch.no_grad():
        source = model.eval()(x)
    adapted = acclimate.adapt(model, "norm")
    found = adapted(x)
    assert not torch.allclose(found, source)
    assert torch.equal(adapted(x), found)
    assert adapted.unwrap() is model
    assert_same(model, before)


def test_what_needs_no_gradient_can_be_prepared_without():
    case = Case(lambda: Inside(torch.no_grad))
    artifact = case.prepare(case.make(), method=None, parts=["prototypes", "features"])
    assert set(artifact.parts) == {"prototypes", "features"}


# Precision ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_float16_is_refused_by_its_name(dtype):
    case = Case(lambda: net().half(), dtype=dtype)
    with raises("wrong_dtype", found="float16") as caught:
        case.prepare(case.make())
    assert "float16" in str(caught.value)
    with raises("method_refused", methods=("tent",)) as caught:
        acclimate.adapt(case.make(), "tent")
    assert "float16" in str(caught.value)


def test_float16_works_without_gradients():
    case = Case(lambda: net().half(), dtype=torch.float16)
    model = case.make()
    artifact = case.prepare(model, method=None, parts=["features"])
    assert acclimate.adapt(model, "norm", artifact)(case.images(1)).dtype == torch.float16


def test_images_of_another_precision_are_refused_by_its_name():
    case = Case(lambda: net().bfloat16())
    with raises("wrong_dtype", found="float32") as caught:
        case.prepare(case.make())
    assert "bfloat16" in str(caught.value)
    with raises("wrong_dtype", found="float32"):
        acclimate.adapt(case.make(), "tent")(case.images(1))


# torch.compile -----------------------------------------------------------------------------------


def compiled_whole(model, backend):
    return torch.compile(model, backend=backend)


def compiled_in_place(model, backend):
    model.compile(backend=backend)
    return model


def compiled_inside(model, backend):
    model.block = torch.compile(model.block, backend=backend)
    return model


@pytest.mark.parametrize("method", ["tent", "swr_nsp"])
@pytest.mark.parametrize("compile_it", [compiled_whole, compiled_in_place, compiled_inside])
def test_a_compiled_model_is_adapted_as_it_was_before(compile_it, method):
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    assert_works(Case(lambda: compile_it(net(), backend)), method)
    assert not graphs


def test_a_compiled_model_is_compiled_again_afterwards():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    model = compiled_in_place(net().eval(), backend)
    x = Case(net).images(1)
    adapted = acclimate.adapt(model, "tent")
    adapted(x)
    assert not graphs
    adapted.unwrap()(x)
    assert graphs


def test_an_artifact_fits_the_model_compiled_or_not():
    case = Case(net)
    model = case.make()
    artifact = case.prepare(torch.compile(model, backend="eager"))
    acclimate.adapt(model, "swr_nsp", artifact)(case.images(1))


# timm --------------------------------------------------------------------------------------------


def timm():
    try:
        import_torchvision()
    except MissingExtra:
        pytest.skip("timm needs torchvision, which is not installed")
    return pytest.importorskip("timm", reason="timm is not installed")


def from_timm(name, **options):
    return lambda: timm().create_model(name, pretrained=False, num_classes=N_CLASSES, **options)


def efficientformer():
    timm()
    from timm.models.efficientformer import EfficientFormer

    widths = (4, 4, 8, 8)
    return EfficientFormer((1, 1, 1, 1), widths, num_classes=N_CLASSES, num_vit=1)


def mixer():
    timm()
    from timm.models.mlp_mixer import MlpMixer

    return MlpMixer(N_CLASSES, img_size=32, num_blocks=1, embed_dim=16)


def mixer_with_a_trained_head():
    model = mixer()
    nn.init.normal_(model.head.weight)  # timm begins with zeros
    return model


def small(name, **options):
    return Case(from_timm(name, **options), shape=(3, 32, 32))


FORMER = Case(efficientformer, shape=(3, 224, 224))

TIMM = {
    "resnet": small("resnet10t", channels=(8, 8, 16, 16), stem_width=8),
    "convnext": small("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 8, 16, 16)),
    "vit": small("vit_tiny_patch16_224", img_size=32, depth=1, embed_dim=24, num_heads=2),
    "mixer": Case(mixer_with_a_trained_head, shape=(3, 32, 32)),
}
TIMM_SLOW = {
    "mobilenet": small("mobilenetv3_small_050"),
    "efficientformer, head named": Case(
        efficientformer, shape=(3, 224, 224), info=ModelInfo(head="head")
    ),
    "efficientformer, other head named": Case(
        efficientformer, shape=(3, 224, 224), info=ModelInfo(head="head_dist")
    ),
}


@pytest.mark.parametrize("method", ["tent", "swr_nsp"])
@pytest.mark.parametrize("name", TIMM)
def test_timm(name, method):
    assert_works(TIMM[name], method)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["tent", "swr_nsp"])
@pytest.mark.parametrize("name", TIMM_SLOW)
def test_timm_slow(name, method):
    assert_works(TIMM_SLOW[name], method)


def test_an_ambiguous_head_is_refused_with_the_modules_that_it_may_be():
    model = FORMER.make()
    with raises("ambiguous_head", candidates=("head", "head_dist")) as caught:
        FORMER.prepare(model)
    modules = dict(model.named_modules())
    for name in caught.value.candidates:
        assert isinstance(modules[name], nn.Linear)
        assert modules[name].out_features == N_CLASSES
    # Only the candidates are listed, not every layer that ran.
    lines = str(caught.value).splitlines()[1:]
    assert [line.strip().partition(":")[0] for line in lines] == ["head", "head_dist"]


def test_timm_models_that_assert_the_size_of_images():
    case = TIMM["vit"]
    wrong = Case(case.make, shape=(3, 48, 48))
    with raises("model_rejects_input", found=(2, 3, 48, 48)):
        wrong.prepare(wrong.make())
    with raises("model_rejects_input", found=(2, 3, 48, 48)):
        acclimate.adapt(wrong.make(), "tent")(wrong.images(1))


# Hugging Face ------------------------------------------------------------------------------------


def transformers():
    with suppress(MissingExtra):  # transformers works without it
        import_torchvision()
    return pytest.importorskip("transformers", reason="transformers is not installed")


def hf_vit():
    library = transformers()
    config = library.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=8,
        num_labels=N_CLASSES,
    )
    return library.ViTForImageClassification(config)


def hf_resnet():
    library = transformers()
    config = library.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        num_labels=N_CLASSES,
    )
    return library.ResNetForImageClassification(config)


HUGGING_FACE = {
    "vit": Case(hf_vit, by_name, dicts, (3, 16, 16)),
    "resnet": Case(hf_resnet, by_name, dicts, (3, 32, 32)),
}


@pytest.mark.slow  # to import transformers takes seconds
@pytest.mark.parametrize("method", ["tent", "swr_nsp"])
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_hugging_face(name, method):
    assert_works(HUGGING_FACE[name], method)


@pytest.mark.slow
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_hugging_face_outputs_keep_their_type(name):
    case = HUGGING_FACE[name]
    model = case.make().eval()
    x = case.images(1)
    with torch.no_grad():
        expected = model(pixel_values=x, output_hidden_states=True)
    adapted = acclimate.adapt(model, "tent")
    found = adapted(pixel_values=x, output_hidden_states=True)
    assert type(found) is type(expected)
    assert list(found) == list(expected)
    assert not any(state.requires_grad for state in found.hidden_states)
    assert count_classes(model, ModelInfo()) == N_CLASSES


# A source that cannot show all classes -----------------------------------------------------------

MANY = 1000


class Counting(nn.Module):
    """Counts its forwards."""

    def __init__(self, n_classes=MANY):
        super().__init__()
        self.body, self.head = nn.Linear(12, 8), nn.Linear(8, n_classes)
        self.n_forwards = 0

    def forward(self, x):
        self.n_forwards += 1
        return self.head(self.body(x.flatten(1)).relu())


class States(Counting):
    """States how many classes it has, as many libraries let their models do."""

    num_classes = MANY


class Configured(Counting):
    """States it in the way of Hugging Face."""

    config = SimpleNamespace(num_labels=MANY)


class NamesHead(Counting):
    """Names its head in the way of timm."""

    def get_classifier(self):
        return self.head


class CountingSequential(nn.Sequential):
    """Counts its forwards, too."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(12, MANY))
        self.n_forwards = 0

    def forward(self, x):
        self.n_forwards += 1
        return super().forward(x)


class Labelled(Dataset):
    """Has labels that can be seen without reading images, of which few may be read."""

    def __init__(self, targets):
        self.targets = targets
        self.n_read = 0

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        self.n_read += 1
        assert self.n_read <= 50, "more than the first batch was read"
        return torch.rand(3, 2, 2), 0


class Unlabelled(Labelled):
    """Has a length only."""

    def __init__(self, n):
        self.n, self.n_read = n, 0

    def __len__(self):
        return self.n


LABELS = (torch.arange(300) * 3).tolist()
IMAGES = torch.rand(300, 3, 2, 2, generator=torch.Generator().manual_seed(0))
PAIRS = TensorDataset(IMAGES, torch.tensor(LABELS))

SHORT = {
    "a list": [(IMAGES, torch.tensor(LABELS))],
    "a list of dicts": [{"image": IMAGES, "label": torch.tensor(LABELS)}],
    "targets": DataLoader(Labelled(LABELS), 50),
    "targets as a tensor": DataLoader(Labelled(torch.tensor(LABELS)), 50),
    "targets as an array": DataLoader(Labelled(torch.tensor(LABELS).numpy()), 50),
    "targets of many images": DataLoader(Labelled(LABELS * 20), 50),
    "tensors": DataLoader(PAIRS, 50),
    "a subset": DataLoader(Subset(Labelled(LABELS), range(0, 300, 2)), 50),
    "several": DataLoader(ConcatDataset([Labelled(LABELS), PAIRS]), 50),
    "too few images": DataLoader(Unlabelled(300), 50),
    "a sampler": DataLoader(Unlabelled(5000), 50, sampler=SubsetRandomSampler(range(300))),
}


@pytest.mark.parametrize("name", SHORT)
def test_missing_classes_are_refused_before_the_model_runs(name):
    model = States()
    is_missing = (lambda found: found == ()) if name in ("too few images", "a sampler") else len
    with raises("missing_classes", missing=is_missing):
        acclimate.prepare(model, SHORT[name], method="swr_nsp")
    assert model.n_forwards == 0


@pytest.mark.parametrize("make", [Configured, NamesHead, CountingSequential])
def test_the_number_of_classes_is_known_before_the_model_runs(make):
    model = make()
    with raises("missing_classes", missing=lambda found: len(found) == MANY - 300):
        acclimate.prepare(model, SHORT["a list"], method="swr_nsp")
    assert model.n_forwards == 0


def test_the_number_of_classes_of_torchvision_s_models_is_known():
    try:
        models = import_torchvision().models
    except MissingExtra:
        pytest.skip("torchvision is not installed")
    model = models.shufflenet_v2_x0_5()
    assert count_classes(model, ModelInfo()) == MANY


def test_missing_classes_are_refused_early_where_only_a_trial_tells():
    model = Counting()
    assert count_classes(model, ModelInfo()) is None
    with raises("missing_classes", missing=lambda found: len(found) == MANY - 300):
        acclimate.prepare(model, SHORT["a list"], method="swr_nsp")
    assert model.n_forwards <= 2  # of two images


class Projects(nn.Module):
    """Has a wide layer after its head."""

    def __init__(self):
        super().__init__()
        self.net, self.projector = net(), nn.Linear(N_CLASSES, MANY)

    def forward(self, x):
        return self.net(x)


class Averages(Around):
    """Has several heads in one layer."""

    def __init__(self):
        super().__init__(lambda z: z.unflatten(1, (3, N_CLASSES)).mean(dim=1), 3 * N_CLASSES)


@pytest.mark.parametrize("make", [Projects, Averages])
def test_a_wide_layer_at_the_end_refuses_nothing(make):
    case = Case(make, info=ModelInfo(head="net.head"))
    assert case.prepare(case.make()).info.n_classes == N_CLASSES


def test_labels_that_a_loader_changes_are_not_trusted():
    class Mapped(Dataset):
        targets = [0] * 8
        target_transform = staticmethod(lambda y: y % N_CLASSES)

        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.rand(INPUT_SHAPE), index % N_CLASSES

    model = Around(lambda z: z)
    artifact = acclimate.prepare(model, DataLoader(Mapped(), 8), method="swr_nsp", parts=PARTS)
    assert "prototypes" in artifact.parts


def test_prototypes_of_the_classifier_need_no_images_of_a_class():
    model = States()
    parts = [Prototypes(source="classifier")]
    artifact = acclimate.prepare(model, SHORT["a list"], parts=parts)
    assert artifact.part("prototypes")["embedding"].shape == (MANY, 8)


def test_a_stream_without_a_length_can_be_prepared_from():
    class Stream(IterableDataset):
        def __iter__(self):
            for x, y in tiny_batches(4):
                yield from zip(x, y, strict=True)

    seen = []
    acclimate.prepare(
        net(),
        DataLoader(Stream(), 8),
        parts=PARTS,
        progress=lambda *report: seen.append(report),
    )
    assert ("prototypes", 4, None) in seen


# Progress ----------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def open_terminal(monkeypatch) -> Terminal:
    """Make stderr a terminal, and let the clock go on by a second whenever it is looked at.

    No fixture: pytest sets stderr anew after fixtures.
    """
    terminal, seconds = Terminal(), iter(range(10**6))
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: float(next(seconds)))
    return terminal


def prepare_tiny(**options):
    return acclimate.prepare(net(), tiny_batches(4), parts=["prototypes", "features"], **options)


def test_a_bar_is_shown_on_a_terminal(monkeypatch):
    terminal = open_terminal(monkeypatch)
    prepare_tiny()
    lines = terminal.getvalue().split("\n")
    assert [line.rpartition("\r\x1b[K")[2].split()[0] for line in lines[:-1]] == [
        "prototypes",
        "features",
    ]
    assert lines[-1] == ""
    first = [text for text in lines[0].split("\r\x1b[K") if text]
    bar = "█" * 6 + "░" * 18
    assert first[0] == f"prototypes {bar} 1/4"  # nothing is timed yet
    assert first[1].endswith("2/4, 2 s left")
    assert first[2].endswith("3/4, 1 s left")
    assert first[3] == f"prototypes {'█' * 24} 4/4"


def test_no_bar_where_nobody_sees_it(capsys):
    prepare_tiny()
    prepare_tiny(progress=True)
    assert capsys.readouterr().err == ""


def test_the_bar_can_be_turned_off(monkeypatch):
    terminal = open_terminal(monkeypatch)
    prepare_tiny(progress=False)
    assert terminal.getvalue() == ""


def test_own_reports_take_the_place_of_the_bar(monkeypatch):
    terminal = open_terminal(monkeypatch)
    seen = []
    prepare_tiny(progress=lambda *report: seen.append(report))
    assert seen[:4] == [("prototypes", n, 4) for n in range(1, 5)]
    assert terminal.getvalue() == ""


def test_the_line_of_a_bar_ends_also_after_an_error(monkeypatch):
    terminal = open_terminal(monkeypatch)
    batches = tiny_batches(4)
    x = batches[2][0].clone()
    x[0] = 7.0
    with raises("pixel_range"):
        acclimate.prepare(net(), [*batches[:2], (x, batches[2][1])], parts=["features"])
    assert terminal.getvalue().endswith("\n")


def test_a_bar_without_a_total_counts(monkeypatch):
    terminal = open_terminal(monkeypatch)
    bar = get_progress(None)
    assert isinstance(bar, ProgressBar)
    bar("reading", 1, None)
    bar("reading", 1234, None)
    bar.finish()
    assert terminal.getvalue() == "\r\x1b[Kreading: 1\r\x1b[Kreading: 1,234\n"


def test_a_bar_is_not_written_more_often_than_it_can_be_read(monkeypatch):
    terminal = open_terminal(monkeypatch)
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: 5.0)
    bar = ProgressBar()
    for n in range(1, 101):
        bar("reading", n, 100)
    assert terminal.getvalue().count("\r") == 2  # the first and the last


# Updates that change nothing ---------------------------------------------------------------------


def with_a_new_head() -> nn.Module:
    """Return a net whose head is zero, as that of timm's mixers: no gradient passes it."""
    model = net()
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    return model


def test_an_update_that_changes_nothing_is_reported_once_and_not_counted():
    model = with_a_new_head()
    before = copy.deepcopy(model.state_dict())
    adapted = acclimate.adapt(model, "tent")
    with warns("nothing_changed") as notes:
        for seed in (1, 2, 3):
            adapted(Case(net).images(seed))
    assert len(notes) == 1
    assert adapted.counts.updates == 0
    assert adapted.counts.skipped == {"unchanged": 3}
    assert adapted.counts.batches == 3
    assert_same(model, before)


def test_timm_s_mixer_begins_with_a_head_that_learns_nothing():
    adapted = acclimate.adapt(mixer(), "tent")
    with warns("nothing_changed"):
        adapted(TIMM["mixer"].images(1))
    assert adapted.counts.updates == 0
