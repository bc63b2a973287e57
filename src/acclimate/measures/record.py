"""What happened on one batch, and how it is written to a line of a file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from acclimate.errors import BadInput
from acclimate.measures.plain import to_float, to_plain


@dataclass(frozen=True)
class Record:
    """What happened on one batch.

    Attributes:
        domain: Name of the shift.
        index: Number of the batch in the stream, from 0.
        n: Predictions that count: one a sample, or one a labelled pixel.
        n_errors: Wrong ones among them.
        entropy: Mean entropy of the predictions.
        nll: Mean negative logarithm of the true class's probability.
        ms: Wall time of the call, in milliseconds.
        n_skipped: Batches since the last reset that were predicted without an update.
        n_restored: States restored, by the guard or the method itself, since the last reset.
        predictions: The predicted classes, (samples,) or (images, height, width); None where they
            were not kept.
        by_domain: Predictions and errors of each domain in the batch.
        epoch: Which pass over the stream this was, from 1.
        learned: Whether the method was allowed to learn from the batch.
        is_probe: Whether the batch was only there to be predicted, so that it counts in no mean.
            A window that is not learned from yet is no probe: its newest sample counts.
        confidence: Mean probability of the predicted class.
        n_forwards: Forwards of this batch; not counted where the method was not to learn.
        n_backwards: Backwards of this batch.
        updated: Whether an update of parameters was applied.
        skipped: Why this batch was predicted without an update; None if it was not skipped.
        restored: Whether the guard restored a state after this batch.
        peak_memory: In bytes: on CUDA the peak of this call, on MPS what is in use after it,
            elsewhere the peak of the whole process so far; None where that cannot be told.
        losses: The loss that was minimised, and the terms it is the sum of, where the method notes
            them; nothing for a batch that was not learned from.
        n_pixel_images: Images whose pixels were predicted; None if whole images were.
    """

    domain: str
    index: int
    n: int
    n_errors: int
    entropy: float
    nll: float
    ms: float
    n_skipped: int
    n_restored: int
    predictions: Tensor | None
    by_domain: dict[str, tuple[int, int]]
    epoch: int = 1
    learned: bool = True
    is_probe: bool = False
    confidence: float = math.nan
    n_forwards: int = 0
    n_backwards: int = 0
    updated: bool = False
    skipped: str | None = None
    restored: bool = False
    peak_memory: int | None = None
    losses: dict[str, float] = field(default_factory=dict)
    n_pixel_images: int | None = None

    @property
    def n_images(self) -> int:
        """Samples that count, however many predictions each has."""
        return self.n if self.n_pixel_images is None else self.n_pixel_images

    def to_dict(self) -> dict[str, Any]:
        """Return all but the predictions as JSON types; what is not a finite number is None."""
        values = {name: getattr(self, name) for name in _NAMES}
        if self.n_pixel_images is None:
            del values["n_pixel_images"]
        line: dict[str, Any] = to_plain(values)
        return line

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> Record:
        """Return the record that `to_dict` wrote, without predictions.

        Raises:
            BadInput: A field is missing or unknown.
        """
        # What older versions did not write, and what is written of pixels only.
        line = {"losses": {}, "n_pixel_images": None, **line}
        if line.keys() != set(_NAMES):
            missing = tuple(name for name in _NAMES if name not in line)
            unknown = tuple(name for name in line if name not in _NAMES)
            raise BadInput(
                "wrong_fields",
                f"expected the fields of a record; missing: {', '.join(missing) or 'none'}, "
                f"unknown: {', '.join(unknown) or 'none'}. Was this line written by "
                "Record.to_dict()?",
                missing=missing,
                unknown=unknown,
            )
        values: dict[str, Any] = {**line, **{name: to_float(line[name]) for name in _FLOATS}}
        values["losses"] = {name: to_float(value) for name, value in line["losses"].items()}
        values["by_domain"] = {name: tuple(pair) for name, pair in line["by_domain"].items()}
        return cls(**values, predictions=None)


_NAMES = tuple(f.name for f in dataclasses.fields(Record) if f.name != "predictions")
_FLOATS = ("entropy", "nll", "ms", "confidence")
