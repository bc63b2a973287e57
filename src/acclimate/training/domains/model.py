"""The model that is trained on several domains: its first weights, its head, its BatchNorm."""

from __future__ import annotations

from torch import Tensor, nn

from acclimate import zoo
from acclimate.errors import BadInput, UnsuitableModel
from acclimate.introspect import inspect_model
from acclimate.training.settings import DomainSettings
from acclimate.zoo.external import NormalizedModel
from acclimate.zoo.named import is_own, load_named, replace_head
from acclimate.zoo.torchvision_compat import import_torchvision

#: Names that stand for the models of DomainBed: torchvision's, with the first of the weights it
#: has published, which later ones have taken the place of as its default.
DOMAINBED_MODELS = ("resnet18", "resnet50")
_DOMAINBED_WEIGHTS = "IMAGENET1K_V1"


def full_name(model: str) -> str:
    """Return the name that `acclimate.zoo` knows a model by.

    >>> full_name("resnet50"), full_name("timm:efficientnet_lite0")
    ('torchvision:resnet50', 'timm:efficientnet_lite0')
    """
    return f"torchvision:{model}" if model in DOMAINBED_MODELS else model


def build_model(settings: DomainSettings, x: Tensor, n_classes: int) -> tuple[nn.Module, str]:
    """Return the model with its first weights and one logit a class, and the name of its head.

    A head with another number of classes is replaced by a fresh one.

    Args:
        settings: Of the run.
        x: A few images in [0, 1].
        n_classes: Of the data.

    Raises:
        BadInput: There is no such model, or its weights cannot be had.
        UnsuitableModel: It has no linear head that could be replaced.
    """
    model = _begin(settings, n_classes)
    # Functions may return what was used before, in evaluation mode or partly frozen.
    model.requires_grad_(True).train()
    info = inspect_model(model, x)
    if info.logits_at is not None:
        raise UnsuitableModel(
            "unsupported_model",
            f"Expected {settings.model} to return only logits, found them at {info.logits_at!r}. "
            "Pass a function that returns such a model.",
            model=settings.model,
        )
    if info.n_classes != n_classes:
        replace_head(model, info.known_head, n_classes)
    return model, info.known_head


def _begin(settings: DomainSettings, n_classes: int) -> nn.Module:
    name = full_name(settings.model)
    if settings.weights is not None:
        return load_named(name, settings.weights)
    if is_own(name):
        return load_named(name)
    if not settings.pretrained:
        return zoo.build(name, n_classes)
    if settings.model in DOMAINBED_MODELS:
        return _load_domainbed(settings.model)
    return load_named(name)


def _load_domainbed(name: str) -> nn.Module:
    models = import_torchvision().models
    weights = models.get_model_weights(name)[_DOMAINBED_WEIGHTS]
    try:
        model = models.get_model(name, weights=weights)
    except OSError as error:
        raise BadInput(
            "weights_unavailable",
            f"The ImageNet weights of {name} cannot be downloaded ({error}). Download "
            f"{weights.url} on another machine and pass the file: --weights FILE instead of "
            "--pretrained.",
            name=name,
        ) from error
    transforms = weights.transforms()
    return NormalizedModel(model, transforms.mean, transforms.std)
