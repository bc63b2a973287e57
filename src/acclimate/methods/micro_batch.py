"""Gradients of a batch whose activations do not fit in memory at once.

A loss such as the entropy of the mean prediction ties all samples of a batch together, so the
gradients of parts cannot simply be added. Instead the batch is passed twice: first in parts without
a graph, for all logits and features; the loss is differentiated for those; then each part is passed
again, with a graph of its own, and its share of that gradient is sent back through it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acclimate.errors import UnsuitableModel
from acclimate.taps import Forward


def split(x: Tensor, size: int, at_least: int) -> tuple[Tensor, ...]:
    """Return the batch in parts of at most `size` samples, as even as can be.

    Rather than parts of fewer than `at_least` samples there are fewer parts.
    """
    n_parts = -(-len(x) // size)
    while n_parts > 1 and len(x) // n_parts < at_least:
        n_parts -= 1
    return x.tensor_split(n_parts)


@dataclass(frozen=True)
class Pass:
    """One pass of a batch in parts, whose logits and features are the leaves of a graph."""

    parts: tuple[Tensor, ...]
    result: Forward
    again: Callable[[Tensor], Forward]

    @classmethod
    def of(
        cls,
        parts: tuple[Tensor, ...],
        first: Callable[[Tensor], Forward],
        again: Callable[[Tensor], Forward],
    ) -> Pass:
        """Pass a batch in parts without a graph.

        Args:
            parts: Of the batch.
            first: Passes a part for the first time.
            again: Passes a part for the second time, to the same result.
        """
        learns = torch.is_grad_enabled()
        with torch.no_grad():
            found = [first(part) for part in parts]
        logits = torch.cat([part.logits for part in found]).requires_grad_(learns)
        features = None
        if found[0].features is not None:
            features = torch.cat([part.known_features for part in found]).requires_grad_(learns)
        output = join([part.output for part in found])
        n = sum(len(part) for part in parts)
        grids = [grid and grid._replace(n_images=n) for grid in found[0].grids]
        return cls(parts, Forward(output, logits, features, *grids), again)

    @property
    def leaves(self) -> list[Tensor]:
        """What the loss is differentiated for."""
        known = (self.result.logits, self.result.features)
        return [leaf for leaf in known if leaf is not None]

    def send_back(
        self, outer: Sequence[Tensor | None], moved: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Return the gradients of parameters, given those of the leaves."""
        sums: list[Tensor | None] = [None] * len(moved)
        shares = [None if g is None else torch.split(g, self._rows(len(g))) for g in outer]
        for index, part in enumerate(self.parts):
            with torch.enable_grad():
                found = self.again(part)
            made = [value for value in (found.logits, found.features) if value is not None]
            pairs = [
                (value, share[index])
                for value, share in zip(made, shares, strict=True)
                if share is not None and value.requires_grad
            ]
            if not pairs:
                continue
            values, weights = zip(*pairs, strict=True)
            gradients = torch.autograd.grad(values, moved, weights, allow_unused=True)
            sums = add(sums, gradients)
        return sums

    def _rows(self, n_rows: int) -> list[int]:
        """Return how many of the rows each part has; an image may have one a pixel."""
        n = sum(len(part) for part in self.parts)
        return [len(part) * (n_rows // n) for part in self.parts]


def add(first: Sequence[Tensor | None], second: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return sums of gradients, of which any may be missing."""
    return [
        b if a is None else a if b is None else a + b for a, b in zip(first, second, strict=True)
    ]


def join(outputs: Sequence[Any]) -> Any:
    """Return the outputs of parts as the model would have returned them for the whole batch."""
    kind = outputs[0]
    if isinstance(kind, Tensor):
        return torch.cat(list(outputs)) if kind.dim() else kind
    if type(kind) in (tuple, list):
        return type(kind)(join(items) for items in zip(*outputs, strict=True))
    if type(kind) is dict:
        return {key: join([output[key] for output in outputs]) for key in kind}
    if isinstance(kind, Mapping | tuple | list) or hasattr(kind, "__dict__"):
        raise UnsuitableModel(
            "unsupported_output",
            f"micro_batch needs a model that returns a tensor, tuple, list or dict, which can be "
            f"put together from parts; this one returns a {type(kind).__name__}. "
            "Leave micro_batch out, or wrap the model so that it returns its logits.",
            found=type(kind).__name__,
        )
    return kind
