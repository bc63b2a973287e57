"""What may be traded for time and memory when a batch is processed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from acclimate.errors import InvalidConfig, did_you_mean
from acclimate.methods.config import Values, hp


@dataclass(frozen=True, kw_only=True)
class Speed(Values):
    """How a batch is computed. The defaults are level *exact*: they only reorder summations.

    What each option costs in error and saves in time is in docs/performance.md.
    """

    channels_last: bool = hp(
        True, help="hand images to the model with colour as the last axis in memory"
    )
    bfloat16: bool = hp(
        False, help="compute in bfloat16 (autocast), where the processor has it in hardware"
    )
    view_share: float = hp(
        1.0,
        low=0.0,
        high=1.0,
        help="share of a batch whose transformed view is passed through the model; 0 for none, "
        "which leaves the self-supervised term out",
    )
    view_every: int = hp(1, low=1, help="pass the transformed view on every so many batches")
    pinned: float = hp(
        0.0,
        low=0.0,
        help="no gradient for tensors whose SWR penalty is at least this: they hardly move; "
        "0 for all gradients",
    )
    micro_batch: int = hp(
        0,
        low=0,
        help="samples whose activations are held at once, for one more forward; 0 for all. "
        "The same result, but BatchNorm takes its batch statistics from each part",
    )
    checkpoint: bool = hp(
        False, help="forget activations inside blocks, and compute them again for the gradients"
    )
    crop: int = hp(
        0,
        low=0,
        help="side in pixels of a random square of each batch that is learned from, while whole "
        "images are predicted; for models that predict every pixel; 0 to learn from whole images",
    )

    @classmethod
    def of(cls, value: Any) -> Speed:
        """Return what a user meant: the name of a level, or options."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value in SPEEDS:
            return SPEEDS[value]
        names = ", ".join(SPEEDS)
        text = f"expected speed to be one of {names}, or Speed(...), found {value!r}."
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
        """Return of how many of `n` samples the view is passed, after so many batches."""
        if self.view_share == 0 or n_batches % self.view_every:
            return 0
        # Two at least, for the statistics of BatchNorm.
        return min(n, max(2, round(self.view_share * n)))


#: The levels, by name. *exact*: the paper's arithmetic up to the order of summation. *fast*: the
#: same result within noise. *fastest*: the trade-offs, at a cost in error that was measured.
SPEEDS: dict[str, Speed] = {
    "exact": Speed(),
    "fast": Speed(bfloat16=True, view_share=0.05),
    "fastest": Speed(bfloat16=True, view_share=0.0, pinned=0.2),
}


def spread(x: Tensor, n: int) -> slice:
    """Return the slice of a batch that takes at most `n` samples, evenly spaced."""
    step = -(-len(x) // n)
    return slice(None, None, step)
