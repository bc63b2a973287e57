"""How a batch is computed: options that trade accuracy for time and memory."""

from __future__ import annotations

from typing import Any

from acclimate.errors import InvalidConfig, check_name
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
        if isinstance(value, str):
            check_name(value, SPEEDS, "speed", InvalidConfig)
            return SPEEDS[value]
        text = f"Expected speed to be one of {', '.join(SPEEDS)}, or Speed(...), found {value!r}."
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
