"""Features and logits from one normal forward: a hook on the head, no surgery.

The feature of a sample is the input of the *head*, the module that makes the logits. The model
runs as its author wrote it; a hook that lives for one forward looks at what enters the head.

Of a model that predicts every pixel, logits and features are given as rows, one a pixel, so that
methods need not know: see `acclimate.functional.pixels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from acclimate.errors import BadInput, UnsuitableModel, did_you_mean
from acclimate.functional.norm import Statistics, use_statistics
from acclimate.functional.outputs import (
    LogitsAt,
    get_logits,
    list_tensors,
    place_of,
    replace_logits,
)
from acclimate.functional.pixels import Grid, to_rows

__all__ = [
    "Anatomy",
    "Forward",
    "LogitsAt",
    "find_anatomy",
    "get_head",
    "get_logits",
    "replace_logits",
    "run",
    "suits_channels_last",
    "takes",
    "try_forward",
]


@dataclass(frozen=True)
class Forward:
    """What one forward gave.

    Attributes:
        output: What the model returned.
        logits: One prediction a row, (rows, K).
        features: Inputs of the head, (rows, d); of pixels they may be fewer than the logits.
        grid: Where the logits are in maps, if the model predicts every pixel; else None.
        feature_grid: The same for the features.
    """

    output: Any
    logits: Tensor
    features: Tensor | None
    grid: Grid | None = None
    feature_grid: Grid | None = None

    @property
    def grids(self) -> tuple[Grid | None, Grid | None]:
        """Both grids."""
        return self.grid, self.feature_grid

    @property
    def known_features(self) -> Tensor:
        """The features; an error if no head was named, so that none could be taken."""
        if self.features is None:
            raise UnsuitableModel(
                "missing_option",
                "this needs the model's features, but its head is not known. Name the module that "
                "makes the logits: head=<name>.",
                option="head",
            )
        return self.features


def run(model: nn.Module, x: Tensor, head: nn.Module | None, at: LogitsAt = None) -> Forward:
    """Run the model once and return output, logits and, if a head is given, its input.

    Raises:
        UnsuitableModel: The head did not run, ran twice, or its input is not one vector a sample
            (or pixel).
    """
    if head is None:
        output = model(x)
        return _as_rows(output, get_logits(output, at), None)
    taken: list[Any] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: taken.append(inputs[0]))
    try:
        output = model(x)
    finally:
        hook.remove()
    if len(taken) != 1 or not isinstance(taken[0], Tensor):
        raise UnsuitableModel(
            "wrong_head",
            f"expected the head to run once in a forward and to take a tensor; it ran {len(taken)} "
            "times. Name the module that makes the logits: head=<name>.",
            head=_name_of(head, model),
        )
    features, logits = taken[0], get_logits(output, at)
    is_dense = logits.dim() == 4
    if not is_dense and features.dim() == 4 and features.shape[2:] == (1, 1):
        features = features.flatten(1)
    if features.dim() != logits.dim() or len(features) != len(x):
        wanted = "(batch, width, rows, columns)" if is_dense else "(batch, width)"
        raise UnsuitableModel(
            "wrong_head",
            f"expected the head to take one feature vector a {'pixel' if is_dense else 'sample'}, "
            f"{wanted}; found {tuple(features.shape)} for a batch of {len(x)}. Name another "
            "module: head=<name>.",
            head=_name_of(head, model),
        )
    return _as_rows(output, logits, features)


def _name_of(module: nn.Module, model: nn.Module) -> str:
    """Return the name that a module has in a model; that of its class if it is not in there."""
    names = (name for name, other in model.named_modules() if other is module)
    return next(names, type(module).__name__)


def _as_rows(output: Any, logits: Tensor, features: Tensor | None) -> Forward:
    if logits.dim() == 2:
        return Forward(output, logits, features)
    grid = Grid.of(logits)
    if features is None:
        return Forward(output, to_rows(logits), None, grid)
    return Forward(output, to_rows(logits), to_rows(features), grid, Grid.of(features))


def get_head(model: nn.Module, name: str) -> nn.Module:
    """Return the module of that name, or raise with the nearest name."""
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if not name or name not in modules:
        linear = [key for key, module in modules.items() if isinstance(module, nn.Linear)]
        raise UnsuitableModel(
            "unknown_name",
            f'the model has no module "{name}". {did_you_mean(name, linear)}',
            kind="module",
            name=name,
            known=tuple(linear),
        )
    return modules[name]


@dataclass(frozen=True)
class Anatomy:
    """Where features and logits are in a model, and whether it predicts every pixel."""

    head: str
    logits_at: LogitsAt
    n_classes: int
    n_features: int
    is_dense: bool = False


def find_anatomy(
    model: nn.Module, x: Tensor, head: str | None = None, logits_at: LogitsAt = None
) -> Anatomy:
    """Find the head and the logits by one dry forward in evaluation mode.

    The head is, in this order: the one named; the answer of the model's own `get_classifier()`
    (timm's models have it); the one linear layer whose output *is* in what the model returns; the
    last linear layer that ran, if its width is the number of logits. Of a model that returns
    several tensors, the logits are the ones the head made. Where a model predicts every pixel,
    convolutions take the place of linear layers.

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
    watched: list[nn.Module] = [m for m in model.modules() if isinstance(m, nn.Linear)]
    if head is not None and not isinstance(named := get_head(model, head), nn.Linear):
        watched.append(named)
    output, ran = _dry_run(model, x, watched)
    if head is None and (width := _dense_width(output, logits_at)) is not None:
        # Those of the right width only: to hold what all convolutions made would take too much.
        fitting = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
        output, ran = _dry_run(model, x, [m for m in fitting if m.out_channels == width])
    if head is None:
        head = names[id(_choose_head(output, ran, names, logits_at))]
    if logits_at is None and not isinstance(output, Tensor):
        made = [result for module, result in ran if names[id(module)] == head]
        logits_at = place_of(made[-1], output) if made else None
    logits = get_logits(output, logits_at)
    with use_statistics(model, "source"), torch.no_grad():
        features = run(model, x, get_head(model, head), logits_at).features
    n_features = 0 if features is None else features.shape[1]
    return Anatomy(head, logits_at, logits.shape[1], n_features, logits.dim() == 4)


def try_forward(model: nn.Module, x: Tensor) -> Any:
    """Return the output without gradients; inputs the model cannot take give one clear error."""
    return _dry_run(model, x, [])[0]


def takes(model: nn.Module, x: Tensor, statistics: Statistics) -> bool:
    """Say whether the model can take a batch under given BatchNorm statistics."""
    try:
        _dry_run(model, x, [], statistics)
    except BadInput:
        return False
    return True


def looks_dense(model: nn.Module, at: LogitsAt = None) -> bool:
    """Say whether a model predicts every pixel, before any batch is there to tell.

    It is tried on a black image of 64×64 pixels. False if it takes none, or gives no logits.

    Args:
        model: Any; it is left as it is.
        at: Where the logits are in its output.
    """
    first = next((layer for layer in model.modules() if isinstance(layer, nn.Conv2d)), None)
    # A lazy layer would take its shape from what is tried.
    if first is None or any(map(is_lazy, model.parameters())):
        return False
    x = first.weight.new_zeros(1, first.in_channels, 64, 64)
    try:
        return get_logits(try_forward(model, x), at).dim() == 4
    except (BadInput, UnsuitableModel, AssertionError):  # some models assert the size of inputs
        return False


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


def _dry_run(
    model: nn.Module,
    x: Tensor,
    watched: Sequence[nn.Module],
    statistics: Statistics = "source",
) -> tuple[Any, _Ran]:
    """Run once; return the output and what the watched layers made, in the order they ran."""
    ran: _Ran = []
    hooks = [
        layer.register_forward_hook(lambda module, _, result: ran.append((module, result)))
        for layer in watched
    ]
    try:
        with use_statistics(model, statistics, moves=False), torch.no_grad():
            return model(x), ran
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise BadInput(
            "model_rejects_input",
            f"the model cannot take a batch of shape {tuple(x.shape)}: {error}. "
            "Give inputs of the size and with the channels it was trained with.",
            found=tuple(x.shape),
        ) from error
    finally:
        for hook in hooks:
            hook.remove()


def _choose_head(output: Any, ran: _Ran, names: dict[int, str], at: LogitsAt) -> nn.Module:
    listing = "".join(f"\n  {names[id(layer)]}: {tuple(out.shape)}" for layer, out in ran)
    tensors = list_tensors(output)
    direct = [layer for layer, result in ran if any(result is tensor for tensor in tensors)]
    if len(direct) > 1 and at is not None:
        logits = get_logits(output, at)
        direct = [layer for layer, result in ran if result is logits]
    if len(direct) > 1:
        raise UnsuitableModel(
            "ambiguous_head",
            "several layers make outputs of this model, and the head cannot be told. "
            f"Name it: head=<name>. Candidates, in the order they ran:{listing}",
            candidates=tuple(names[id(layer)] for layer in direct),
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
    if len(fitting) > 1:
        raise UnsuitableModel(
            "ambiguous_head",
            f"several layers have the width of the {width} logits, and the head cannot be told. "
            f"Name it: head=<name>. Candidates, in the order they ran:{listing}",
            candidates=tuple(names[number] for number in fitting),
        )
    if ran and id(ran[-1][0]) in fitting:
        return ran[-1][0]
    raise UnsuitableModel(
        "head_not_found",
        f"no {kind} makes the {width} logits of this model. "
        "Name the module whose input are the features: head=<name>. "
        f"{kind.capitalize()}s, in the order they ran:{listing or ' none'}",
        candidates=tuple(names[id(layer)] for layer, _ in ran),
    )


def _dense_width(output: Any, at: LogitsAt) -> int | None:
    """Return the number of classes if the output has logits of every pixel; else None."""
    try:
        logits = get_logits(output, at)
    except UnsuitableModel:
        return None  # which the head may tell
    return logits.shape[1] if logits.dim() == 4 else None
