"""Models of timm with the transform that they were trained for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from acclimate.errors import BadInput
from acclimate.introspect import ModelInfo
from acclimate.zoo.external import create_timm
from acclimate.zoo.torchvision_compat import import_library


@dataclass(frozen=True)
class TimmModel:
    """A model of timm and what belongs to it.

    Attributes:
        model: The model, in eval mode. It takes normalised images.
        transform: Turns a PIL image into a normalised tensor.
        info: The normalisation, for `prepare` and `adapt`.
        data_config: As timm resolves it: input size, interpolation, crop, mean and std.
    """

    model: nn.Module
    transform: Callable[[Any], Tensor]
    info: ModelInfo
    data_config: Mapping[str, Any]


def load_timm(model: str | nn.Module, pretrained: bool = True, **options: Any) -> TimmModel:
    """Return a model of timm with its transform and what `prepare` needs to know of it.

    The command line's `timm:NAME` is the same model with the normalisation inside; artifacts are
    not interchangeable between the two.

    Args:
        model: A name of `timm.list_models()`, or a model of timm.
        pretrained: Whether timm loads the weights that it publishes; they are downloaded once.
        **options: All other arguments of `timm.create_model`, such as `num_classes` and
            `checkpoint_path`.

    Raises:
        MissingExtra: timm is not installed.
        BadInput: There is no such model, or its weights cannot be downloaded.
    """
    timm: Any = import_library("timm", "timm")
    built = model if isinstance(model, nn.Module) else _build(model, pretrained, options)
    config = timm.data.resolve_model_data_config(built)
    return TimmModel(
        model=built.eval(),
        transform=timm.data.create_transform(**config, is_training=False),
        info=ModelInfo(normalization=(config["mean"], config["std"])),
        data_config=config,
    )


def _build(name: str, pretrained: bool, options: Mapping[str, Any]) -> nn.Module:
    try:
        return create_timm(name, pretrained, **options)
    except OSError as error:
        raise BadInput(
            "weights_unavailable",
            f"The weights of {name} cannot be downloaded ({error}). Try again with an internet "
            "connection, or pass checkpoint_path=FILE and pretrained=False.",
            name=name,
        ) from error
