"""Models that are not ours: `timm:NAME`, `torchvision:NAME` and `package.module:function`."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from acclimate.errors import (
    AcclimateError,
    BadInput,
    MissingExtra,
    UnsuitableModel,
    did_you_mean,
)
from acclimate.zoo.resnet import ImageModel
from acclimate.zoo.torchvision_door import import_torchvision


class NormalizedModel(ImageModel):
    """A model of a library, given images in [0, 1] as all of ours are.

    Args:
        model: takes images that are normalised.
        mean: mean of each input channel.
        std: standard deviation of each input channel.
    """

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__(mean, std)
        self.model = model

    def forward(self, x: Tensor) -> Any:
        """Return what the model says of the normalised images."""
        return self.model(self.normalize(x))


def build_external(spec: str, n_classes: int | None, pretrained: bool) -> nn.Module:
    """Return a model named with a colon.

    Args:
        spec: `timm:NAME`, `torchvision:NAME` or `package.module:function`.
        n_classes: number of logits; None means what the library has. A function takes none.
        pretrained: whether the library is to load the weights it publishes, downloading them.

    Raises:
        BadInput: when there is no such model, or its weights cannot be had.
        MissingExtra: when the library is not installed.
    """
    source, _, name = spec.partition(":")
    library = {"timm": _build_timm, "torchvision": _build_torchvision}.get(source)
    if library is None:
        if n_classes is not None:
            raise BadInput(
                f"{spec} is a function, which is called without arguments, but n_classes="
                f"{n_classes} was given. Leave it out and let the function decide."
            )
        return _call(spec)
    try:
        return library(name, n_classes, pretrained)
    except OSError as error:
        raise BadInput(
            f"the weights of {spec} cannot be downloaded ({error}). Try again with a connection, "
            "or give a file of weights."
        ) from error


def _build_timm(name: str, n_classes: int | None, pretrained: bool) -> nn.Module:
    try:
        timm = importlib.import_module("timm")
    except ModuleNotFoundError as error:
        if error.name != "timm":
            raise
        raise MissingExtra(
            "timm is not installed, and models named timm:NAME come from it. "
            "Install it: pip install 'acclimate[timm]'."
        ) from error
    if not timm.is_model(name):
        raise BadInput(f'timm has no model "{name}". {_near(name, timm.list_models())}')
    # With its own number of classes: timm would put an untrained head on pretrained weights.
    options = {} if n_classes is None or pretrained else {"num_classes": n_classes}
    model = timm.create_model(name, pretrained=pretrained, **options)
    known = model.pretrained_cfg
    if pretrained:
        _check_classes(f"timm:{name}", n_classes, known["num_classes"])
    return NormalizedModel(model, known["mean"], known["std"])


def _build_torchvision(name: str, n_classes: int | None, pretrained: bool) -> nn.Module:
    models = import_torchvision().models
    if name not in models.list_models():
        raise BadInput(f'torchvision has no model "{name}". {_near(name, models.list_models())}')
    weights = models.get_model_weights(name).DEFAULT
    transforms = weights.transforms()
    if not hasattr(transforms, "mean"):
        raise UnsuitableModel(
            f"torchvision:{name} is no classifier or segmenter of images: torchvision names no "
            "normalisation of its inputs. Give a function of your own, package.module:function."
        )
    if pretrained:
        _check_classes(f"torchvision:{name}", n_classes, len(weights.meta["categories"]))
    options: dict[str, Any] = {}
    if n_classes is not None and not pretrained:
        options["num_classes"] = n_classes
    # An unset backbone would be downloaded for segmenters even when no weights are asked for.
    if not pretrained and name in models.list_models(models.segmentation):
        options["weights_backbone"] = None
    model = models.get_model(name, weights=weights if pretrained else None, **options)
    return NormalizedModel(model, transforms.mean, transforms.std)


def _check_classes(spec: str, asked: int | None, published: int) -> None:
    if asked is not None and asked != published:
        raise BadInput(
            f"the published weights of {spec} have {published} classes, but n_classes={asked} was "
            "asked for. Leave n_classes out, or give a file of weights with as many."
        )


def _near(name: str, names: Sequence[str]) -> str:
    """Return the nearest name only: the libraries have hundreds."""
    return did_you_mean(name, names).partition("Known:")[0].strip()


def _call(spec: str) -> nn.Module:
    """Return what the function `package.module:function` returns, which must be a model."""
    module_name, colon, name = spec.partition(":")
    if not (module_name and colon and name):
        raise BadInput(
            f'expected a model as package.module:function, found "{spec}". For a function '
            "make_model in my_models.py say my_models:make_model."
        )
    module = _import(module_name)
    if not hasattr(module, name):
        public = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        raise BadInput(f'{module_name} has no function "{name}". {did_you_mean(name, public)}')
    found: Callable[[], Any] = getattr(module, name)
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise BadInput(
            f"expected {spec} to be a function that returns the model, found a "
            f"{type(found).__name__}."
        )
    try:
        model = found()
    except AcclimateError:
        raise
    except Exception as error:  # anything may go wrong in a user's function
        raise BadInput(
            f"{spec}() failed{_where(error)}. It is called without arguments."
        ) from error
    if not isinstance(model, nn.Module):
        raise BadInput(
            f"expected {spec}() to return a torch.nn.Module, found {type(model).__name__}."
        )
    return model


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            file = name.replace(".", "/")
            raise BadInput(
                f'no module "{error.name}" was found; looked for {file}.py in the folders of '
                "sys.path and among the installed packages. Check the name, or change to the "
                "folder it is in."
            ) from error
        raise BadInput(
            f'{name} needs the module "{error.name}", which is not installed. Install it.'
        ) from error
    except Exception as error:  # anything may go wrong in a user's module
        raise BadInput(f"importing {name} failed{_where(error)}.") from error


def _where(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = "" if last.filename == __file__ else f" ({last.filename}, line {last.lineno})"
    return f" with {type(error).__name__}: {error}{place}"
