"""How a batch is computed: options that trade accuracy for time and memory, and micro-batches.

Micro-batches compute the gradients of a batch whose activations do not fit in memory. A loss such
as the entropy of the mean prediction depends on all samples of a batch, so the gradients of its
parts cannot simply be added. Instead the batch is run twice: first in parts without a graph, which
gives all logits and features, for which the loss is differentiated. Then each part is run again
with its own graph, and its share of that gradient is propagated back through it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acclimate.errors import InvalidConfig, UnsuitableModel, did_you_mean
from acclimate.forward import Forward
from acclimate.options import Values, hp, options


@options
class Speed(Values):
    """How a batch is computed. The defaults are level *exact*: they only reorder summations.

    docs/performance.md lists what each option costs in error and saves in time.
    """

    channels_last: bool = hp(
        True, help="pass images to the model in the channels-last memory format"
    )
    bfloat16: bool = hp(
        False, help="compute in bfloat16 (autocast), if the processor supports it in hardware"
    )
    view_share: float = hp(
        1.0,
        low=0.0,
        high=1.0,
        help="share of a batch whose transformed view is passed through the model; 0 turns the "
        "self-supervised term off",
    )
    view_every: int = hp(1, low=1, help="number of batches between two transformed views")
    pinned: float = hp(
        0.0,
        low=0.0,
        help="skip the gradients of tensors whose SWR penalty is at least this, since they hardly "
        "change; 0 computes all gradients",
    )
    micro_batch: int = hp(
        0,
        low=0,
        help="number of samples whose activations are in memory at once, at the cost of one more "
        "forward pass; 0 for all. The result is the same, except that BatchNorm takes its batch "
        "statistics from each part",
    )
    checkpoint: bool = hp(
        False, help="discard activations inside blocks, and recompute them for the gradients"
    )
    crop: int = hp(
        0,
        low=0,
        help="side in pixels of the random square of each batch to learn from, while whole images "
        "are predicted; for models that predict every pixel; 0 to learn from whole images",
    )

    @classmethod
    def of(cls, value: Any) -> Speed:
        """Return the options for the name of a level, or for options themselves."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value in SPEEDS:
            return SPEEDS[value]
        names = ", ".join(SPEEDS)
        text = f"Expected speed to be one of {names}, or Speed(...), found {value!r}."
        if isinstance(value, str):
            raise InvalidConfig(
                "unknown_name",
                f"{text} {did_you_mean(value, SPEEDS)}",
                kind="speed",
                name=value,
                known=tuple(SPEEDS),
            )
        raise InvalidConfig("wrong_type", text, option="speed", found=type(value).__name__)

    def view_size(self, n: int, n_batches: int) -> int:
        """Return for how many of `n` samples the view is computed, after `n_batches` batches."""
        if self.view_share == 0 or n_batches % self.view_every:
            return 0
        # At least two, for the statistics of BatchNorm.
        return min(n, max(2, round(self.view_share * n)))


#: The levels by name. *exact*: the paper's arithmetic up to the order of summation. *fast*: the
#: same result within noise. *fastest*: trade-offs with a measured cost in error.
SPEEDS: dict[str, Speed] = {
    "exact": Speed(),
    "fast": Speed(bfloat16=True, view_share=0.05),
    "fastest": Speed(bfloat16=True, view_share=0.0, pinned=0.2),
}


def spread(x: Tensor, n: int) -> slice:
    """Return a slice that selects at most `n` evenly spaced samples of a batch."""
    step = -(-len(x) // n)
    return slice(None, None, step)


def split(x: Tensor, size: int, at_least: int) -> tuple[Tensor, ...]:
    """Split a batch into parts of at most `size` samples, as evenly as possible.

    There are fewer and larger parts if a part would otherwise have fewer than `at_least` samples.
    """
    n_parts = -(-len(x) // size)
    while n_parts > 1 and len(x) // n_parts < at_least:
        n_parts -= 1
    return x.tensor_split(n_parts)


@dataclass(frozen=True)
class Pass:
    """One pass of a batch in parts, with its logits and features as leaves of a graph."""

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
        """Run the parts of a batch without a graph by `first`; `again` must give the same."""
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
        """The tensors for which the loss is differentiated."""
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
        """Return the number of rows of each part; an image may have one row per pixel."""
        n = sum(len(part) for part in self.parts)
        return [len(part) * (n_rows // n) for part in self.parts]


def add(first: Sequence[Tensor | None], second: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return sums of gradients; any of them may be None."""
    return [
        b if a is None else a if b is None else a + b for a, b in zip(first, second, strict=True)
    ]


def join(outputs: Sequence[Any]) -> Any:
    """Join the outputs of parts into the model's output for the whole batch."""
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
            "Expected a model that returns a tensor, tuple, list or dict, which micro_batch can "
            f"join from parts, found one that returns a {type(kind).__name__}. Remove micro_batch, "
            "or wrap the model so that it returns its logits.",
            found=type(kind).__name__,
        )
    return kind
