"""What a model is like: its head, its classes, whether it can be adapted at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from acclimate.errors import AcclimateError, BadInput, UnsuitableModel, check_name
from acclimate.forward import (
    Call,
    LogitsAt,
    get_logits,
    is_about_inference,
    list_tensors,
    no_gradient,
    place_of,
    run,
    run_eagerly,
    unknown_head,
)
from acclimate.functional.inputs import Normalization
from acclimate.functional.norm import Statistics, use_statistics

NAME_THE_HEAD = "Name the module that returns the logits: info=ModelInfo(head=<name>)."


@dataclass(frozen=True)
class ModelInfo:
    """What is known about a model: what its user states, and what was found out about it.

    Everything is found where it can be. State what cannot:

        acclimate.prepare(model, source, info=ModelInfo(head="fc", normalization="imagenet"))

    Attributes:
        head: Name of the module that makes the logits; its input are the features.
        logits_at: Where the logits are in what the model returns: a key, a position, the name of an
            attribute, or a function.
        normalization: How the inputs were normalised: None for images in [0, 1] (the model
            normalises inside, or needs none), a name such as `"imagenet"`, or `(mean, std)`.
        images_at: Which argument of the model is the batch of images: a name or a position.
        n_classes: Number of logits.
        n_features: Width of the features.
        is_dense: Whether the model predicts every pixel.
    """

    head: str | None = None
    logits_at: LogitsAt = None
    normalization: Any = None
    images_at: str | int | None = None
    n_classes: int | None = None
    n_features: int | None = None
    is_dense: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "normalization", Normalization.of(self.normalization))

    @property
    def known_head(self) -> str:
        """The name of the head; an error if it is not known."""
        if self.head is None:
            raise unknown_head()
        return self.head

    @property
    def known_classes(self) -> int:
        """The number of classes, of a model that was looked at."""
        return _known(self.n_classes, "n_classes")

    @property
    def known_width(self) -> int:
        """The width of the features, of a model that was looked at."""
        return _known(self.n_features, "n_features")

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types. A function cannot be written: it must be given again."""
        return {
            "head": self.head,
            "logits_at": self.logits_at if isinstance(self.logits_at, str | int) else None,
            "normalization": None if self.normalization is None else self.normalization.to_dict(),
            "images_at": self.images_at,
            "n_classes": self.n_classes,
            "n_features": self.n_features,
            "is_dense": self.is_dense,
        }


def _known(value: int | None, name: str) -> int:
    if value is None:
        raise TypeError(f"{name} is known only after inspect_model()")
    return value


def check_model(model: Any) -> nn.Module:
    """Return the module to be adapted, or refuse what cannot be, before anything is computed.

    A model that was compiled with `torch.compile` is adapted as it was before: its graph would be
    compiled again at every step. See also `run_eagerly`.
    """
    # The program, the module that its module() returns, and what unflatten() makes of it.
    if any(kind.__module__.startswith("torch.export") for kind in type(model).__mro__):
        raise UnsuitableModel(
            "exported_program",
            "A model of torch.export is a fixed graph, which cannot be adapted. Adapt the "
            "nn.Module that it was exported from, and export again.",
        )
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise UnsuitableModel(
            "scripted_model",
            "A model of torch.jit cannot be adapted: its layers cannot be distinguished "
            "or changed. "
            "Adapt the nn.Module that it was scripted or traced from.",
        )
    if not isinstance(model, nn.Module):
        raise UnsuitableModel(
            "not_a_module",
            f"Expected a torch.nn.Module, found {type(model).__name__}. Wrap it in a module whose "
            "forward takes a batch of images and returns logits.",
            found=type(model).__name__,
        )
    module: nn.Module = model
    compiled = getattr(model, "_orig_mod", None)
    if isinstance(compiled, nn.Module):
        module = compiled
    quantized = [name for name, layer in module.named_modules() if _is_quantized(layer)]
    if quantized:
        raise UnsuitableModel(
            "quantized_model",
            "A quantised model cannot be adapted: its weights are rounded integers. Adapt the "
            "model from before quantisation.",
            layers=tuple(quantized),
        )
    _check_weights(module)
    return module


def _is_quantized(layer: nn.Module) -> bool:
    own = [layer, *layer.parameters(recurse=False)]
    return any(type(item).__module__.startswith(_QUANTIZED) for item in own) or any(
        parameter.is_quantized for parameter in layer.parameters(recurse=False)
    )


_QUANTIZED = ("torch.ao.nn", "torch.nn.quantized", "torchao.", "bitsandbytes.")


def _check_weights(model: nn.Module) -> None:
    """Refuse weights that have no values yet, or that no gradient can be computed for."""
    tensors = [*model.parameters(), *model.buffers()]
    if any(map(is_lazy, tensors)):
        raise UnsuitableModel(
            "lazy_layers",
            "The model has lazy layers that have not seen an input yet. Run it once, and load its "
            "weights.",
        )
    if any(tensor.is_meta for tensor in tensors):
        raise UnsuitableModel(
            "unsupported_model",
            'The model has weights on the device "meta", which have no values. Load its weights '
            "first: model.to_empty(device=...), then model.load_state_dict(...).",
            model=type(model).__name__,
        )
    if any(tensor.is_inference() for tensor in tensors):
        raise UnsuitableModel(
            "no_gradient",
            "The model has weights that were made inside torch.inference_mode(), which can be "
            "neither trained nor restored. Build and load the model outside of it.",
        )


def check_logits(logits: Tensor) -> None:
    """Refuse an output that is not the logits of at least two classes."""
    if logits.shape[1] == 1:
        raise UnsuitableModel(
            "one_logit",
            "Expected one logit for each of at least two classes, found one logit. Of a binary "
            "classifier with one logit z, return torch.cat([torch.zeros_like(z), z], dim=1).",
        )
    with torch.no_grad():
        sums = logits.float().sum(dim=1)
        are_probabilities = (
            len(logits) > 0 and bool((logits >= 0).all()) and bool((sums - 1).abs().max() < 1e-3)
        )
    if are_probabilities:
        raise UnsuitableModel(
            "probabilities",
            "Expected logits, found probabilities: all values are at least 0 and each row sums to "
            "1. Remove the softmax at the end of the model, or return the logarithm.",
        )


def check_gradients(model: nn.Module, x: Tensor, info: ModelInfo, call: Call | None = None) -> None:
    """Refuse a model whose logits have no gradient, by one forward in evaluation mode."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    has_gradient = False
    try:
        for parameter, _ in flags:
            parameter.requires_grad_(parameter.is_floating_point())
        with (
            run_eagerly(model),
            torch.inference_mode(False),
            torch.enable_grad(),
            use_statistics(model, "source"),
        ):
            x = x.clone() if x.is_inference() else x
            has_gradient = run(model, x, None, info.logits_at, call).logits.requires_grad
    except RuntimeError as error:
        if not is_about_inference(error):
            raise
        raise no_gradient("preparing") from error
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
    if not has_gradient and flags:
        raise no_gradient("preparing")


def count_classes(model: nn.Module, info: ModelInfo) -> int | None:
    """Return the number of classes if it is certain before the model was run; else None.

    It is if the model names its head, or ends with a linear layer and either says that it has as
    many classes, or is an nn.Sequential, or is from torchvision. Other models may do more with what
    their last layer, or the head that a user names, returns.
    """
    if info.n_classes is not None:
        return info.n_classes
    if (own := _own_head(model)) is not None:
        return own.out_features if isinstance(own, nn.Linear) else None
    with_weights = [m for m in model.modules() if any(True for _ in m.parameters(recurse=False))]
    last = with_weights[-1] if with_weights else None
    if not isinstance(last, nn.Linear):
        return None
    stated = (
        getattr(model, "num_classes", None),
        getattr(getattr(model, "config", None), "num_labels", None),
    )
    module = type(model).__module__
    is_plain = isinstance(model, nn.Sequential) or module.startswith("torchvision.models.")
    return last.out_features if is_plain or last.out_features in stated else None


def _own_head(model: nn.Module) -> nn.Module | None:
    """Return the head that the model itself names by `get_classifier()`, as timm's models do."""
    classifier = getattr(model, "get_classifier", None)
    module = classifier() if callable(classifier) else None
    is_inside = any(module is other for other in model.modules())
    return module if is_inside and not isinstance(module, nn.Identity) else None


def get_head(model: nn.Module, name: str) -> nn.Module:
    """Return the module of that name, or raise with the nearest name."""
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if not name or name not in modules:
        linear = [key for key, module in modules.items() if isinstance(module, nn.Linear)]
        check_name(name, linear, "module", UnsuitableModel)
    return modules[name]


def find_head(model: nn.Module) -> str:
    """Return the name of the most likely head, without any data.

    That is the result of the model's own `get_classifier()` (models of timm have it), otherwise the
    last linear layer. It is a guess: `inspect_model` finds the head by running the model.
    """
    linear: dict[int, str] = {
        id(m): name for name, m in model.named_modules() if isinstance(m, nn.Linear)
    }
    if id(own := _own_head(model)) in linear:
        return linear[id(own)]
    last = [*linear.values()][-1] if linear else ""
    if not last:
        raise UnsuitableModel(
            "head_not_found",
            f"Expected a linear layer as the head of the model, found none. {NAME_THE_HEAD}",
            candidates=(),
        )
    return last


def linear_head(model: nn.Module, name: str, method: str) -> nn.Linear:
    """Return the head, which must be a linear layer, because a method uses its weights."""
    head = get_head(model, name)
    if not isinstance(head, nn.Linear):
        raise UnsuitableModel(
            "wrong_head",
            f'Expected the head "{name}" to be an nn.Linear, whose weights the method "{method}" '
            f"uses, found {type(head).__name__}. {NAME_THE_HEAD}",
            head=name,
        )
    return head


def inspect_model(
    model: nn.Module, x: Tensor, info: ModelInfo | None = None, call: Call | None = None
) -> ModelInfo:
    """Find the head and the logits by one forward in evaluation mode.

    The head is, in this order: the one named; the answer of the model's own `get_classifier()`
    (timm's models have it); the one linear layer whose output *is* in what the model returns; the
    last linear layer that ran, if its width is the number of logits. Of a model that returns
    several tensors, the logits are the ones the head made. Where a model predicts every pixel,
    convolutions take the place of linear layers.

    Raises:
        UnsuitableModel: None or several layers qualify; the candidates are listed.
        BadInput: The model cannot take these inputs.
    """
    info = info or ModelInfo()
    head, logits_at = info.head, info.logits_at
    names = {id(module): name for name, module in model.named_modules()}
    if head is None and (own := _own_head(model)) is not None:
        head = names[id(own)]
    watched: list[nn.Module] = [m for m in model.modules() if isinstance(m, nn.Linear)]
    if head is not None and not isinstance(named := get_head(model, head), nn.Linear):
        watched.append(named)
    output, ran = _dry_run(model, x, watched, call=call)
    if head is None and (width := _dense_width(output, logits_at)) is not None:
        # Those of the right width only: to hold what all convolutions made would take too much.
        fitting = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
        output, ran = _dry_run(model, x, [m for m in fitting if m.out_channels == width], call=call)
    if head is None:
        head = names[id(_choose_head(output, ran, names, logits_at))]
    if logits_at is None and not isinstance(output, Tensor):
        made = [result for module, result in ran if names[id(module)] == head]
        logits_at = place_of(made[-1], output) if made else None
    logits = get_logits(output, logits_at)
    check_logits(logits)
    with run_eagerly(model), use_statistics(model, "source"), torch.no_grad():
        features = run(model, x, get_head(model, head), logits_at, call).features
    n_features = 0 if features is None else features.shape[1]
    return replace(
        info,
        head=head,
        logits_at=logits_at,
        n_classes=logits.shape[1],
        n_features=n_features,
        is_dense=logits.dim() == 4,
    )


def try_forward(model: nn.Module, x: Tensor, call: Call | None = None) -> Any:
    """Return the output without gradients; inputs the model cannot take give one clear error."""
    return _dry_run(model, x, [], call=call)[0]


def takes(model: nn.Module, x: Tensor, statistics: Statistics, call: Call | None = None) -> bool:
    """Return whether the model can take a batch under given BatchNorm statistics."""
    try:
        _dry_run(model, x, [], statistics, call)
    except BadInput:
        return False
    return True


def looks_dense(model: nn.Module, at: LogitsAt = None) -> bool:
    """Return whether a model predicts every pixel, before there is a batch.

    It is tried on a black image of 64×64 pixels. False if it takes none, or gives no logits.
    """
    first = next((layer for layer in model.modules() if isinstance(layer, nn.Conv2d)), None)
    # A lazy layer would take its shape from what is tried.
    if first is None or any(map(is_lazy, model.parameters())):
        return False
    x = first.weight.new_zeros(1, first.in_channels, 64, 64)
    try:
        return get_logits(try_forward(model, x), at).dim() == 4
    except (BadInput, UnsuitableModel):
        return False


def suits_channels_last(model: nn.Module, x: Tensor, call: Call | None = None) -> bool:
    """Return whether the model gains from images with colour as the last axis, and can take them.

    Convolutions on processors and NVIDIA's GPUs gain. A model that calls `view` where `reshape` or
    `flatten` would do cannot take them.
    """
    gains = any(isinstance(module, nn.Conv2d) for module in model.modules())
    if x.dim() != 4 or x.device.type not in ("cpu", "cuda") or not gains:
        return False
    some = x[:2] if call is None else call.some(x[:2])
    try:
        with run_eagerly(model), use_statistics(model, "source"), torch.no_grad():
            some = some.contiguous(memory_format=torch.channels_last)
            _ = model(some) if call is None else call.make(model, some)
    except RuntimeError:
        return False
    return True


_Ran = list[tuple[nn.Module, Any]]


# How models fail on inputs that they are not made for; some assert the size of images.
_REJECTIONS = (
    RuntimeError,
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    AttributeError,
    AssertionError,
)


def _dry_run(
    model: nn.Module,
    x: Tensor,
    watched: Sequence[nn.Module],
    statistics: Statistics = "source",
    call: Call | None = None,
) -> tuple[Any, _Ran]:
    """Run once; return the output and what the watched layers made, in the order they ran."""
    ran: _Ran = []
    x = x if call is None else call.some(x)
    hooks = [
        layer.register_forward_hook(lambda module, _, result: ran.append((module, result)))
        for layer in watched
    ]
    try:
        with run_eagerly(model), use_statistics(model, statistics, moves=False), torch.no_grad():
            return model(x) if call is None else call.make(model, x), ran
    except AcclimateError:
        raise
    except _REJECTIONS as error:
        raise BadInput(
            "model_rejects_input",
            f"The model cannot take a batch of shape {tuple(x.shape)}. It stops with "
            f"{type(error).__name__}: {str(error).rstrip('.')}. Pass the inputs that its forward "
            "takes, of the size and with the channels it was trained with.",
            found=tuple(x.shape),
        ) from error
    finally:
        for hook in hooks:
            hook.remove()


def _choose_head(output: Any, ran: _Ran, names: dict[int, str], at: LogitsAt) -> nn.Module:
    tensors = list_tensors(output)
    direct = [layer for layer, result in ran if any(result is tensor for tensor in tensors)]
    if len(direct) > 1 and at is not None:
        logits = get_logits(output, at)
        direct = [layer for layer, result in ran if result is logits]
    if len(direct) > 1:
        raise UnsuitableModel(
            "ambiguous_head",
            "Several layers make outputs of this model, and the head is ambiguous. Name it: "
            "info=ModelInfo(head=<name>). Candidates, in the order they ran:"
            f"{_list_layers(ran, names, direct)}",
            candidates=tuple(dict.fromkeys(names[id(layer)] for layer in direct)),
        )
    if direct:
        return direct[0]
    logits = get_logits(output, at)
    width, kind = logits.shape[1], "linear layer" if logits.dim() == 2 else "convolution"
    # Convolutions were only watched if they have the right width.
    fitting = {
        id(layer): layer
        for layer, result in ran
        if isinstance(layer, nn.Conv2d) or result.shape[-1] == width
    }
    # An inner layer of this width has another shape, as that of tokens; one of them is no head.
    exact = {id(layer): layer for layer, result in ran if result.shape == logits.shape}
    fitting = exact or fitting
    if len(fitting) > 1:
        raise UnsuitableModel(
            "ambiguous_head",
            f"Several layers have the width of the {width} logits, and the head is ambiguous. "
            "Name it: info=ModelInfo(head=<name>). Candidates, in the order they ran:"
            f"{_list_layers(ran, names, fitting.values())}",
            candidates=tuple(names[number] for number in fitting),
        )
    if ran and id(ran[-1][0]) in fitting:
        return ran[-1][0]
    raise UnsuitableModel(
        "head_not_found",
        f"No {kind} makes the {width} logits of this model. "
        "Name the module whose input are the features: info=ModelInfo(head=<name>). "
        f"{kind.capitalize()}s, in the order they ran:{_list_layers(ran, names) or ' none'}",
        candidates=tuple(dict.fromkeys(names[id(layer)] for layer, _ in ran)),
    )


def _list_layers(
    ran: _Ran, names: dict[int, str], chosen: Iterable[nn.Module] | None = None
) -> str:
    """Return a line with name and output shape for every layer that ran, or for the chosen."""
    picked = None if chosen is None else {id(layer) for layer in chosen}
    shapes = {
        names[id(layer)]: tuple(result.shape)
        for layer, result in ran
        if picked is None or id(layer) in picked
    }
    return "".join(f"\n  {name}: {shape}" for name, shape in shapes.items())


def _dense_width(output: Any, at: LogitsAt) -> int | None:
    """Return the number of classes if the output has logits of every pixel; else None."""
    try:
        logits = get_logits(output, at)
    except UnsuitableModel:
        return None  # which the head may determine
    return logits.shape[1] if logits.dim() == 4 else None
