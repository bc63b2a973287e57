"""Parameters outside of layers: class tokens, position embeddings, scales.

No layer's rule holds for them, but most are broadcast over the rows of a batch. Such a parameter
can be replaced by as many copies as there are rows: then the gradients of the copies are those of
the rows, and come with the one backward that is run anyway.

In which shape the copies take the parameter's place (a token (1, 1, d) becomes (n, 1, d), a scale
(c, 1, 1) becomes (n, c, 1, 1)) is a matter of the model's code. It is found by trial, and a trial
counts only if it gives the gradients that autograd gives for single rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.functional.gradient_rules import at_least_float32
from acclimate.functional.gradient_vmap import exchanged

#: How far gradients of copies may be off, as a share of the largest. It is there for rounding,
#: also in half precision; gradients that went to the wrong row are off by as much as they are.
_TOLERANCE = 0.05
_MOST_INSERTED = 3  # dimensions between the rows and those of the parameter


def find_row_shapes(
    forward: Callable[[Tensor], Tensor],
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    x: Tensor,
    logits: Tensor,
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one row's copy, of the parameters that can have one for every row.

    Args:
        forward: From inputs to logits; runs `model`.
        model: The model.
        parameters: Those to try; they require gradients.
        x: A few rows.
        logits: Their logits, with the graph that leads to the parameters.
    """
    expected = _gradients_by_row(logits, parameters)
    # Parameters of one name and shape have one role, such as the scales of all blocks: they are
    # tried together.
    groups: dict[tuple[str, torch.Size], list[str]] = {}
    for name, parameter in parameters.items():
        if expected[name].abs().max() > 0:
            groups.setdefault((name.rpartition(".")[2], parameter.shape), []).append(name)
    found: dict[str, tuple[int, ...]] = {}
    for (_, shape), names in groups.items():
        members = {name: parameters[name] for name in names}
        wanted = [expected[name] for name in names]
        for candidate in _candidates(tuple(shape)):
            if _fits(forward, model, members, candidate, x, wanted):
                found |= dict.fromkeys(names, candidate)
                break
    return found


def copy_rows(parameter: Tensor, shape: tuple[int, ...], n_rows: int) -> Tensor:
    """Return a leaf with one copy a row, which takes no memory until it has a gradient."""
    return parameter.detach().reshape(shape).expand(n_rows, *shape).requires_grad_()


def _candidates(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if len(shape) > 1 and shape[0] == 1:
        yield shape[1:]
    for n_inserted in range(_MOST_INSERTED + 1):
        yield (1,) * n_inserted + shape


def _gradients_by_row(logits: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    rows = [
        torch.autograd.grad(_loss(row), list(parameters.values()), retain_graph=True)
        for row in logits[:, None]
    ]
    columns = zip(*rows, strict=True)
    return {name: torch.stack(found) for name, found in zip(parameters, columns, strict=True)}


def _fits(
    forward: Callable[[Tensor], Tensor],
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    shape: tuple[int, ...],
    x: Tensor,
    wanted: Sequence[Tensor],
) -> bool:
    copies = {name: copy_rows(parameter, shape, len(x)) for name, parameter in parameters.items()}
    try:
        with exchanged(model, parameters, copies):
            logits = forward(x)
        if logits.shape[0] != len(x):
            return False
        found = torch.autograd.grad(_loss(logits), list(copies.values()), allow_unused=True)
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
        return False  # the model's code does not take a parameter of this shape
    return all(
        ours is not None and (ours.reshape(theirs.shape) - theirs).abs().max() <= _TOLERANCE * scale
        for ours, theirs in zip(found, wanted, strict=True)
        for scale in (theirs.abs().max(),)
    )


def _loss(logits: Tensor) -> Tensor:
    shape = (len(logits), *logits.shape[2:])
    y = torch.zeros(shape, dtype=torch.long, device=logits.device)
    return F.cross_entropy(at_least_float32(logits), y, reduction="sum")
