"""Models that are not ours: `timm:NAME`, `torchvision:NAME` and `package.module:function`."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from acclimate.builtin.model import ImageModel
from acclimate.errors import (
    AcclimateError,
    BadInput,
    UnsuitableModel,
    check_name,
    did_you_mean,
)
from acclimate.zoo.torchvision_compat import import_library, import_torchvision


class NormalizedModel(ImageModel):
    """Makes a model of a library, which expects normalised images, accept images in [0, 1]."""

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__(mean, std)
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(self.normalize(x))


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model of a library, as it names its tensors; any other model as it is."""
    return model.model if isinstance(model, NormalizedModel) else model


def build_external(spec: str, n_classes: int | None, pretrained: bool) -> nn.Module:
    """Return a model named `timm:NAME`, `torchvision:NAME` or `package.module:function`.

    Args:
        spec: the name.
        n_classes: number of logits; None for the library's default, and for functions.
        pretrained: whether to load the weights that the library publishes, downloading them.
    """
    source, _, name = spec.partition(":")
    library = {"timm": _build_timm, "torchvision": _build_torchvision}.get(source)
    if library is None:
        if n_classes is not None:
            raise BadInput(
                "not_applicable",
                f"{spec} is a function that is called without arguments, so n_classes={n_classes} "
                "has no effect. Remove it and set the number of classes in the function.",
                option="n_classes",
            )
        return _call(spec)
    try:
        return library(name, n_classes, pretrained)
    except OSError as error:
        raise BadInput(
            "weights_unavailable",
            f"The weights of {spec} cannot be downloaded ({error}). Try again with an internet "
            "connection, or pass a file of weights.",
            name=spec,
        ) from error


def _build_timm(name: str, n_classes: int | None, pretrained: bool) -> nn.Module:
    # With its own number of classes: timm would put an untrained head on pretrained weights.
    options = {} if n_classes is None or pretrained else {"num_classes": n_classes}
    model: Any = create_timm(name, pretrained, **options)
    known = model.pretrained_cfg
    if pretrained:
        _check_classes(f"timm:{name}", n_classes, known["num_classes"])
    return NormalizedModel(model, known["mean"], known["std"])


def create_timm(name: str, pretrained: bool, **options: Any) -> nn.Module:
    """Return a model of timm as it is; options are those of `timm.create_model`."""
    timm: Any = import_library("timm", "timm")
    if ":" not in name and not timm.is_model(name):  # hf-hub:NAME
        raise _no_model("timm", name, timm.list_models())
    model: nn.Module = timm.create_model(name, pretrained=pretrained, **options)
    return model


def _build_torchvision(name: str, n_classes: int | None, pretrained: bool) -> nn.Module:
    models = import_torchvision().models
    if name not in models.list_models():
        raise _no_model("torchvision", name, models.list_models())
    weights = models.get_model_weights(name).DEFAULT
    transforms = weights.transforms()
    if not hasattr(transforms, "mean"):
        raise UnsuitableModel(
            "unsupported_model",
            f"torchvision:{name} is neither an image classifier nor a segmentation model: "
            "torchvision defines no input normalisation for it. Pass your own function, "
            "package.module:function.",
            model=f"torchvision:{name}",
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
            "out_of_range",
            f"The published weights of {spec} have {published} classes, but n_classes={asked} was "
            f"requested. Remove n_classes, or pass a file of weights with {asked} classes.",
            option="n_classes",
            found=asked,
        )


def _no_model(library: str, name: str, known: Sequence[str]) -> BadInput:
    # The nearest name only: the libraries have hundreds.
    near = did_you_mean(name, known).partition("Known:")[0].strip()
    text = f'{library} has no model "{name}". {near}'
    return BadInput("unknown_name", text, kind="model", name=name, known=tuple(known))


def _call(spec: str) -> nn.Module:
    """Return what the function `package.module:function` returns, which must be a model."""
    module_name, colon, name = spec.partition(":")
    if not (module_name and colon and name):
        raise BadInput(
            "malformed",
            f'Expected a model as package.module:function, found "{spec}". For a function '
            "make_model in my_models.py, pass my_models:make_model.",
            option="model",
            found=spec,
        )
    module = _import(module_name)
    if not hasattr(module, name):
        public = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        check_name(name, public, "function")
    found: Callable[[], Any] = getattr(module, name)
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise BadInput(
            "wrong_type",
            f"Expected {spec} to be a function that returns the model, found a "
            f"{type(found).__name__}.",
            option="function",
            found=type(found).__name__,
        )
    try:
        model = found()
    except AcclimateError:
        raise
    except Exception as error:  # anything may go wrong in a user's function
        raise BadInput(
            "model_function_failed",
            f"{spec}() failed{_where(error)}. The function is called without arguments.",
            name=spec,
        ) from error
    if not isinstance(model, nn.Module):
        raise BadInput(
            "wrong_type",
            f"Expected {spec}() to return a torch.nn.Module, found {type(model).__name__}.",
            option="model",
            found=type(model).__name__,
        )
    return model


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            file = name.replace(".", "/")
            raise BadInput(
                "unknown_name",
                f'The module "{error.name}" was not found: {file}.py is in no folder of sys.path '
                "and not among the installed packages. Check the name, or change to the folder "
                "that contains it.",
                kind="module",
                name=error.name,
                known=(),
            ) from error
        raise BadInput(
            "import_failed",
            f'{name} requires the module "{error.name}", which is not installed. Install it.',
            name=error.name,
        ) from error
    except Exception as error:  # anything may go wrong in a user's module
        raise BadInput(
            "import_failed", f"Importing {name} failed{_where(error)}.", name=name
        ) from error


def _where(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = "" if last.filename == __file__ else f" ({last.filename}, line {last.lineno})"
    return f" with {type(error).__name__}: {error}{place}"
