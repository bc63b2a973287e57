"""Classifiers and processors of transformers, made from configurations; nothing is downloaded."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import acclimate
from acclimate import Penalty
from acclimate.errors import BadInput, UnsuitableModel
from acclimate.integrations import in_place
from acclimate.streams import Batch
from acclimate.zoo.torchvision_compat import import_torchvision
from tests.codes import raises

import_torchvision()
transformers: Any = pytest.importorskip("transformers", reason="needs the extra huggingface")

from acclimate.integrations import huggingface  # noqa: E402

PARTS = [Penalty(n_samples=8), "prototypes", "mirror", "confidence"]
SIZE = {"height": 16, "width": 16}
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
NAMES = {0: "ant", 1: "bee", 2: "cow", 3: "doe"}


def make_vit() -> Any:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=8,
        id2label=NAMES,
    )
    return transformers.ViTForImageClassification(config).eval()


def make_resnet() -> Any:
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", id2label=NAMES
    )
    return transformers.ResNetForImageClassification(config).eval()


MODELS = {"vit": make_vit, "resnet": make_resnet}


def make_examples(n: int = 32, seed: int = 0) -> list[dict[str, Any]]:
    """Rows as a data set of Hugging Face yields them."""
    rng = np.random.default_rng(seed)
    return [
        {"image": Image.fromarray(rng.integers(0, 256, (20, 24, 3), np.uint8)), "label": i % 4}
        for i in range(n)
    ]


def make_loader(processor: Any, **options: Any) -> Any:
    collate = huggingface.ProcessorCollate(processor)
    return DataLoader(make_examples(**options), batch_size=16, collate_fn=collate)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", ["tent", "swr_nsp", "steady"])
def test_a_model_with_its_processor_is_prepared_and_adapts(name: str, method: str) -> None:
    model, processor = MODELS[name](), transformers.ViTImageProcessor(size=SIZE)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    artifact = acclimate.prepare(
        model,
        make_loader(processor),
        parts=PARTS,
        info=huggingface.processor_info(processor),
        classes=huggingface.class_names(model),
    )
    assert artifact.info.normalization == acclimate.Normalization((0.5,) * 3, (0.5,) * 3)
    assert artifact.info.n_classes == 4
    assert artifact.card["classes"] == ["ant", "bee", "cow", "doe"]
    adapted = acclimate.adapt(model, method, artifact)
    for batch in make_loader(processor, seed=1):
        output = adapted(**{**batch, "labels": None})
        assert type(output).__name__ == "ImageClassifierOutput" or hasattr(output, "logits")
        assert output.logits.shape == (16, 4)
    assert adapted.counts.updates == 2
    assert any(not torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert adapted.unwrap() is model
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    stream = [
        Batch(batch["pixel_values"], batch["labels"], "test")
        for batch in make_loader(processor, seed=1)
    ]
    result = acclimate.evaluate(acclimate.adapt(model, method, artifact), stream)
    assert result.n == 32


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_pipeline_adapts_its_model_in_place(name: str) -> None:
    model, processor = MODELS[name](), transformers.ViTImageProcessor(size=SIZE)
    classify = transformers.pipeline(
        "image-classification", model=model, image_processor=processor, batch_size=8
    )
    pictures = [example["image"] for example in make_examples(24)]
    source = classify(pictures, top_k=1)
    with in_place(classify.model, "tent", lr=0.1) as adapted:
        classify(pictures)
        assert adapted.counts.updates == 3
        assert classify(pictures, top_k=1) != source
    assert classify(pictures, top_k=1) == source


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("ViTImageProcessor", {}, ((0.5,) * 3, (0.5,) * 3)),
        ("ViTImageProcessor", {"do_normalize": False}, None),
        (
            "ConvNextImageProcessor",
            {"size": {"shortest_edge": 32}, "image_mean": IMAGENET[0], "image_std": IMAGENET[1]},
            IMAGENET,
        ),
        # It states the mean and standard deviation of ImageNet, and normalises twice.
        ("EfficientNetImageProcessor", {}, None),
    ],
)
def test_the_normalization_is_what_the_processor_does(
    kind: str, options: dict[str, Any], expected: Any
) -> None:
    processor = getattr(transformers, kind)(**{"size": SIZE, **options})
    info = huggingface.processor_info(processor)
    assert info.images_at == "pixel_values"
    if kind != "EfficientNetImageProcessor":
        assert info.normalization == acclimate.Normalization.of(expected)
    picture = make_examples(1)[0]["image"]
    pixels = processor(images=[picture], return_tensors="pt")["pixel_values"]
    plain = pixels if info.normalization is None else info.normalization.denormalize(pixels)
    assert plain.min() >= -1e-3
    assert plain.max() <= 1 + 1e-3
    assert plain.max() - plain.min() > 0.5


def test_a_processor_that_is_not_linear_is_refused() -> None:
    def processor(images: Any, return_tensors: str) -> dict[str, Any]:
        pixels = torch.stack([torch.as_tensor(image) for image in images]).movedim(-1, 1)
        return {"pixel_values": (pixels / 255.0) ** 2}

    with raises("unsupported_model", UnsuitableModel, model="function"):
        huggingface.processor_info(processor)


def test_examples_may_be_pairs_or_have_other_columns_or_no_labels() -> None:
    processor = transformers.ViTImageProcessor(size=SIZE)
    examples = make_examples(4)
    batch = huggingface.ProcessorCollate(processor)(examples)
    assert batch["pixel_values"].shape == (4, 3, 16, 16)
    assert batch["labels"].tolist() == [0, 1, 2, 3]
    pairs = [(example["image"], example["label"]) for example in examples]
    renamed = [{"img": example["image"], "fine": example["label"]} for example in examples]
    grey = [(example["image"].convert("L"), 0) for example in examples]
    collate = huggingface.ProcessorCollate(processor, image="img", label="fine")
    for other in (huggingface.ProcessorCollate(processor)(pairs), collate(renamed)):
        assert torch.equal(other["pixel_values"], batch["pixel_values"])
        assert torch.equal(other["labels"], batch["labels"])
    assert huggingface.ProcessorCollate(processor)(grey)["pixel_values"].shape == (4, 3, 16, 16)
    alone = huggingface.ProcessorCollate(processor, label=None)
    for unlabelled in (examples, [image for image, _ in pairs]):
        assert list(alone(unlabelled)) == ["pixel_values"]
    with raises("wrong_fields", BadInput, missing=("image", "label")):
        huggingface.ProcessorCollate(processor)(renamed)
    workers = io.BytesIO(pickle.dumps(collate))  # loaders send it to their workers
    assert torch.equal(pickle.load(workers)(renamed)["labels"], batch["labels"])
