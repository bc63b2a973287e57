"""Features and logits from one normal forward: a hook on the head, no surgery.

The feature of a sample is the input of the *head*, the module that makes the logits. The model
runs as its author wrote it; a hook that lives for one forward looks at what enters the head.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.errors import BadInput, UnsuitableModel, did_you_mean
from acclimate.functional.norm import use_statistics

#: Where the logits are in what the model returns: a key, a position, an attribute or a function.
LogitsAt = str | int | Callable[[Any], Tensor] | None


@dataclass(frozen=True)
class Forward:
    """What one forward gave."""

    output: Any
    logits: Tensor
    features: Tensor | None

    @property
    def known_features(self) -> Tensor:
        """The features; an error if no head was named, so that none could be taken."""
        if self.features is None:
            raise UnsuitableModel(
                "this needs the model's features, but its head is not known. Name the module that "
                "makes the logits: head=<name>."
            )
        return self.features


def get_logits(output: Any, at: LogitsAt = None) -> Tensor:
    """Return the logits (B, K) in a model's output.

    A tensor is the logits itself; a mapping or an object is asked for `logits`. Anything else
    needs `at`.

    Raises:
        UnsuitableModel: The logits cannot be told, or are not of shape (B, K).
    """
    found: Any = None
    if callable(at):
        found = at(output)
    elif (
        isinstance(at, int)
        and isinstance(output, tuple | list)
        and -len(output) <= at < len(output)
    ):
        found = output[at]
    elif isinstance(at, str):
        found = output.get(at) if isinstance(output, Mapping) else getattr(output, at, None)
    elif at is None and isinstance(output, Tensor):
        found = output
    elif at is None:
        found = output.get("logits") if isinstance(output, Mapping) else None
        found = getattr(output, "logits", None) if found is None else found
    if not isinstance(found, Tensor):
        raise UnsuitableModel(
            f"expected the model to return logits, or something with logits in it; "
            f"{_describe(output)}{'' if at is None else f', and nothing at {at!r}'}. "
            "Say where they are: logits_at=<key, position, attribute name, or a function>."
        )
    if found.dim() != 2:
        raise UnsuitableModel(
            f"expected logits of shape (batch, classes), found {tuple(found.shape)}. "
            "Only classifiers are adapted; pass logits_at=<function> to reshape or select."
        )
    return found


def replace_logits(output: Any, logits: Tensor, at: LogitsAt = None) -> Any:
    """Return a model's output, detached, with other logits in the place of its own.

    With a function as `at` the place cannot be written to: the logits themselves are returned.
    """
    if isinstance(output, Tensor) or callable(at):
        return logits
    if isinstance(output, tuple | list):
        items = [_detach(item) for item in output]
        items[at if isinstance(at, int) else 0] = logits
        return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
    key = at if isinstance(at, str) else "logits"
    result = copy.copy(output)
    if isinstance(result, dict):
        for name, value in list(result.items()):
            result[name] = _detach(value)
        result[key] = logits
    elif isinstance(result, Mapping):
        return {**{name: _detach(value) for name, value in output.items()}, key: logits}
    else:
        for name in _attributes(output):
            object.__setattr__(result, name, _detach(getattr(output, name)))
        object.__setattr__(result, key, logits)
    return result


def run(model: nn.Module, x: Tensor, head: nn.Module | None, at: LogitsAt = None) -> Forward:
    """Run the model once and return output, logits and, if a head is given, its input.

    Raises:
        UnsuitableModel: The head did not run, ran twice, or its input is not one vector a sample.
    """
    if head is None:
        output = model(x)
        return Forward(output, get_logits(output, at), None)
    taken: list[Any] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: taken.append(inputs[0]))
    try:
        output = model(x)
    finally:
        hook.remove()
    if len(taken) != 1 or not isinstance(taken[0], Tensor):
        raise UnsuitableModel(
            f"expected the head to run once in a forward and to take a tensor; it ran {len(taken)} "
            "times. Name the module that makes the logits: head=<name>."
        )
    features = taken[0]
    if features.dim() == 4 and features.shape[2:] == (1, 1):
        features = features.flatten(1)
    if features.dim() != 2 or len(features) != len(x):
        raise UnsuitableModel(
            f"expected the head to take one feature vector a sample, (batch, width); found "
            f"{tuple(features.shape)} for a batch of {len(x)}. Name another module: head=<name>."
        )
    return Forward(output, get_logits(output, at), features)


def get_head(model: nn.Module, name: str) -> nn.Module:
    """Return the module of that name, or raise with the nearest name."""
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if not name or name not in modules:
        linear = [key for key, module in modules.items() if isinstance(module, nn.Linear)]
        raise UnsuitableModel(f'the model has no module "{name}". {did_you_mean(name, linear)}')
    return modules[name]


@dataclass(frozen=True)
class Anatomy:
    """Where features and logits are in a model."""

    head: str
    logits_at: LogitsAt
    n_classes: int
    n_features: int


def find_anatomy(
    model: nn.Module, x: Tensor, head: str | None = None, logits_at: LogitsAt = None
) -> Anatomy:
    """Find the head and the logits by one dry forward in evaluation mode.

    The head is, in this order: the one named; the answer of the model's own `get_classifier()`
    (timm's models have it); the one linear layer whose output *is* in what the model returns; the
    last linear layer that ran, if its width is the number of logits. Of a model that returns
    several tensors, the logits are the ones the head made.

    Args:
        model: Nothing is left behind on it.
        x: A few inputs.
        head: The name of the module whose input are the features.
        logits_at: Where the logits are, if the model does not return them alone.

    Raises:
        UnsuitableModel: None or several layers qualify; the candidates are listed.
        BadInput: The model cannot take these inputs.
    """
    names = {id(module): name for name, module in model.named_modules()}
    if head is None and callable(classifier := getattr(model, "get_classifier", None)):
        module = classifier()
        if id(module) in names and not isinstance(module, nn.Identity):
            head = names[id(module)]
    watched = [m for m in model.modules() if isinstance(m, nn.Linear)]
    if head is not None and not isinstance(named := get_head(model, head), nn.Linear):
        watched.append(named)  # type: ignore[arg-type]
    output, ran = _dry_run(model, x, watched)
    if head is None:
        head = names[id(_choose_head(output, ran, names, logits_at))]
    if logits_at is None and not isinstance(output, Tensor):
        made = [result for module, result in ran if names[id(module)] == head]
        logits_at = _place_of(made[-1], output) if made else None
    logits = get_logits(output, logits_at)
    with use_statistics(model, "source"), torch.no_grad():
        features = run(model, x, get_head(model, head), logits_at).features
    width = 0 if features is None else features.shape[1]
    return Anatomy(head, logits_at, logits.shape[1], width)


def try_forward(model: nn.Module, x: Tensor) -> Any:
    """Return the output without gradients; inputs the model cannot take give one clear error."""
    return _dry_run(model, x, [])[0]


def suits_channels_last(model: nn.Module, x: Tensor) -> bool:
    """Say whether the model gains from images with colour as the last axis, and can take them.

    Convolutions on processors and NVIDIA's GPUs gain. A model that calls `view` where `reshape` or
    `flatten` would do cannot take them.

    Args:
        model: Any; it is left as it is.
        x: Inputs as the model takes them.
    """
    gains = any(isinstance(module, nn.Conv2d) for module in model.modules())
    if x.dim() != 4 or x.device.type not in ("cpu", "cuda") or not gains:
        return False
    try:
        with use_statistics(model, "source"), torch.no_grad():
            model(x[:2].contiguous(memory_format=torch.channels_last))
    except RuntimeError:
        return False
    return True


_Ran = list[tuple[nn.Module, Any]]


def _dry_run(model: nn.Module, x: Tensor, watched: list[nn.Linear]) -> tuple[Any, _Ran]:
    """Run once; return the output and what the watched layers made, in the order they ran."""
    ran: _Ran = []
    hooks = [
        layer.register_forward_hook(lambda module, _, result: ran.append((module, result)))
        for layer in watched
    ]
    try:
        with use_statistics(model, "source"), torch.no_grad():
            return model(x), ran
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise BadInput(
            f"the model cannot take a batch of shape {tuple(x.shape)}: {error}. "
            "Give inputs of the size and with the channels it was trained with."
        ) from error
    finally:
        for hook in hooks:
            hook.remove()


def _choose_head(output: Any, ran: _Ran, names: dict[int, str], at: LogitsAt) -> nn.Module:
    listing = "".join(f"\n  {names[id(layer)]}: {tuple(out.shape)}" for layer, out in ran)
    tensors = _tensors(output)
    direct = [layer for layer, result in ran if any(result is tensor for tensor in tensors)]
    if len(direct) > 1 and at is not None:
        logits = get_logits(output, at)
        direct = [layer for layer, result in ran if result is logits]
    if len(direct) > 1:
        raise UnsuitableModel(
            "several layers make outputs of this model, and the head cannot be told. "
            f"Name it: head=<name>. Candidates, in the order they ran:{listing}"
        )
    if direct:
        return direct[0]
    width = get_logits(output, at).shape[1]
    fitting = {id(layer): layer for layer, result in ran if result.shape[-1] == width}
    if len(fitting) > 1:
        raise UnsuitableModel(
            f"several layers have the width of the {width} logits, and the head cannot be told. "
            f"Name it: head=<name>. Candidates, in the order they ran:{listing}"
        )
    if ran and id(ran[-1][0]) in fitting:
        return ran[-1][0]
    raise UnsuitableModel(
        f"no linear layer makes the {width} logits of this model. "
        "Name the module whose input are the features: head=<name>. "
        f"Linear layers, in the order they ran:{listing or ' none'}"
    )


def _place_of(made: Any, output: Any) -> LogitsAt:
    """Return the key or position at which the output holds what the head made, if it is plain."""
    if isinstance(output, Mapping):
        items: list[tuple[Any, Any]] = list(output.items())
    elif isinstance(output, tuple | list):
        items = list(enumerate(output))
    else:
        items = list(getattr(output, "__dict__", {}).items())
    places = [place for place, value in items if value is made]
    return places[0] if len(places) == 1 and places[0] != "logits" else None


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [tensor for value in output.values() for tensor in _tensors(value)]
    if isinstance(output, tuple | list):
        return [tensor for value in output for tensor in _tensors(value)]
    return [
        value for value in getattr(output, "__dict__", {}).values() if isinstance(value, Tensor)
    ]


def _detach(value: Any) -> Any:
    """Return a value whose tensors, also in nested containers, carry no graph."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(_detach(item) for item in value)
    if type(value) is dict:
        return {key: _detach(item) for key, item in value.items()}
    return value


def _attributes(output: Any) -> list[str]:
    """Return the names of an object's own attributes, in slots or in its dictionary."""
    slots = [name for kind in type(output).__mro__ for name in getattr(kind, "__slots__", ())]
    own = [name for name in slots if hasattr(output, name) and not name.startswith("__")]
    return [*own, *getattr(output, "__dict__", {})]


def _describe(output: Any) -> str:
    if isinstance(output, Mapping):
        return f"it returns a mapping with the keys {sorted(map(str, output))}"
    if isinstance(output, tuple | list):
        return f"it returns a {type(output).__name__} of {len(output)}"
    return f"it returns a {type(output).__name__}"
