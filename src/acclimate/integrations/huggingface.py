"""Image classifiers and image processors of transformers.

`prepare` and `adapt` take a model of transformers as any other. The functions here describe its
processor and turn images into the batches that it takes. For a pipeline, adapt its model in place:
`with in_place(pipeline.model, ...)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.errors import BadInput, UnsuitableModel
from acclimate.introspect import ModelInfo
from acclimate.zoo.torchvision_compat import import_library

# Here, so that `from transformers import ...` works afterwards also where the builds of torch and
# torchvision do not match.
import_library("transformers", "huggingface")

_PIXELS = "pixel_values"
#: Differences from a line that are rounding.
_TOLERANCE = 1e-3


def processor_info(processor: Any) -> ModelInfo:
    """Return what `prepare` needs to know of images that a processor has made.

    The normalisation is measured on grey images, because processors state it in various ways.

    Args:
        processor: An image processor, such as that of `AutoImageProcessor.from_pretrained`.

    Raises:
        UnsuitableModel: The processor does not normalise each channel by a mean and a deviation.
    """
    import numpy as np

    greys = (0, 128, 255)
    size = (64, 64, 3)
    images = [np.full(size, grey, dtype=np.uint8) for grey in greys]
    pixels = processor(images=images, return_tensors="pt")[_PIXELS].double()
    inside = pixels[..., pixels.shape[-2] // 2, pixels.shape[-1] // 2]
    low, middle, high = inside
    slope = high - low
    line = low + slope * (greys[1] / greys[2])
    if bool((slope <= 0).any()) or bool(((line - middle).abs() > _TOLERANCE).any()):
        raise UnsuitableModel(
            "unsupported_model",
            f"Expected an image processor that normalises each channel by a mean and a standard "
            f"deviation, found {type(processor).__name__}, which maps grey values {greys} to "
            f"{inside.tolist()}. Pass your own ModelInfo(normalization=(mean, std)).",
            model=type(processor).__name__,
        )
    std = [round(value, 6) for value in (1 / slope).tolist()]
    mean = [round(value, 6) for value in (-low / slope).tolist()]
    is_plain = std == [1.0] * len(std) and mean == [0.0] * len(mean)
    return ModelInfo(images_at=_PIXELS, normalization=None if is_plain else (mean, std))


def class_names(model: nn.Module) -> list[str]:
    """Return the names of the classes in the order of the logits, for `prepare(classes=...)`."""
    config: Any = model.config
    return [config.id2label[number] for number in range(config.num_labels)]


@dataclass(frozen=True)
class ProcessorCollate:
    """Makes batches of examples: the `collate_fn` of a DataLoader.

    Examples are dicts, as those of a data set of Hugging Face, or pairs `(image, label)`. A batch
    is a dict with `pixel_values` and, if there are labels, `labels`.

    Args:
        processor: An image processor.
        image: Key of the image in a dict: a PIL image, an array or a tensor.
        label: Key of the class number in a dict; None if there are no labels.
    """

    processor: Any
    image: str = "image"
    label: str | None = "label"

    def __call__(self, examples: Sequence[Any]) -> dict[str, Tensor]:
        """Return a batch."""
        images, labels = zip(*map(self._split, examples), strict=True)
        pixels = self.processor(images=list(images), return_tensors="pt")[_PIXELS]
        batch = {_PIXELS: pixels}
        return batch if self.label is None else {**batch, "labels": torch.tensor(labels)}

    def _split(self, example: Any) -> tuple[Any, int]:
        if isinstance(example, Mapping):
            needed = [name for name in (self.image, self.label) if name is not None]
            if missing := tuple(name for name in needed if name not in example):
                raise BadInput(
                    "wrong_fields",
                    f"Expected examples with {' and '.join(needed)}, found {', '.join(example)}. "
                    "Name the columns: ProcessorCollate(processor, image=..., label=...), with "
                    "label=None if there are no labels.",
                    missing=missing,
                    unknown=(),
                )
            found = example[self.image], 0 if self.label is None else int(example[self.label])
        elif isinstance(example, tuple | list) and len(example) == 2:
            found = example[0], int(example[1])
        else:
            found = example, 0
        image, label = found
        return image.convert("RGB") if hasattr(image, "convert") else image, label
