"""The record of one batch, and its JSON form."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.signals import Estimate, Interval
from acclimate.metrics.plain import to_float, to_plain


@dataclass(frozen=True)
class Record:
    """The record of one batch.

    Attributes:
        domain: Name of the shift.
        index: Number of the batch in the stream, from 0.
        n: Number of predictions that count: one per sample, or one per labelled pixel.
        n_errors: Number of wrong predictions among them.
        entropy: Mean entropy of the predictions.
        nll: Mean negative log-likelihood of the true class.
        ms: Wall time of the call in milliseconds.
        n_skipped: Number of batches since the last reset that were predicted without an update.
        n_restored: Number of states that the guard or the method restored since the last reset.
        predictions: The predicted classes of the samples that count, (samples,) or (images,
            height, width); None if they were not kept.
        by_domain: Number of predictions and of errors of each domain in the batch.
        epoch: Number of the pass over the stream, from 1.
        learned: Whether the method was allowed to learn from the batch.
        is_probe: Whether the batch was only predicted as a probe, so that it counts in no mean. A
            window that is not learned from yet is not a probe: its newest sample counts.
        confidence: Mean probability of the predicted class.
        n_forwards: Number of forward passes; not counted if the method was not allowed to learn.
        n_backwards: Number of backward passes.
        updated: Whether an update of parameters was applied.
        skipped: Reason why this batch was predicted without an update; None if it was not skipped.
        restored: Whether the guard restored a state after this batch.
        peak_memory: Memory in bytes: on CUDA the peak of this call, on MPS the memory in use after
            it, elsewhere the peak of the whole process so far; None if it is not available.
        losses: The minimised loss and its terms, if the method notes them; empty for a batch that
            was not learned from.
        n_pixel_images: Number of images whose pixels were predicted; None for whole images.
        estimate: What the guard estimated after this batch, on its window; None if there is no
            guard, or if it has seen too few images.
        by_source: Whether the source model answered, as the guard decided; None if there is no
            guard.
        rested: Whether the guard stopped learning after this batch; None if there is no guard.
        effective_classes: Effective number of predicted classes; None if it was not measured.
        drift: Distance of the trained parameters from the source's, relative to their norm; None if
            it was not measured.
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
    estimate: Estimate | None = None
    by_source: bool | None = None
    rested: bool | None = None
    effective_classes: float | None = None
    drift: float | None = None

    @property
    def estimated_accuracy(self) -> float | None:
        """Estimated accuracy of the model that answered; None if there is no estimate."""
        if self.estimate is None:
            return None
        return (self.estimate.source if self.by_source else self.estimate.adapted).value

    @property
    def n_images(self) -> int:
        """Number of samples that count, independently of the predictions per sample."""
        return self.n if self.n_pixel_images is None else self.n_pixel_images

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except predictions as JSON types; non-finite numbers are None."""
        values = {name: getattr(self, name) for name in _NAMES}
        for name in ("n_pixel_images", *_WATCHED):
            if values[name] is None:
                del values[name]
        if self.by_source is None:
            for name in _OF_GUARD:
                del values[name]
        elif self.estimate is not None:
            values["estimate"] = dataclasses.asdict(self.estimate)
        line: dict[str, Any] = to_plain(values)
        return line

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> Record:
        """Build a record without predictions from the result of `to_dict`.

        Raises:
            BadInput: A field is missing or unknown.
        """
        # Fields that older versions did not write, or that are written for pixels or guards only.
        line = {"losses": {}, **_OPTIONAL, **line}
        if line.keys() != _KNOWN:
            missing = tuple(name for name in _NAMES if name not in line)
            unknown = tuple(name for name in line if name not in _NAMES)
            raise BadInput(
                "wrong_fields",
                "Expected the fields of a record, found missing fields "
                f"({', '.join(missing) or 'none'}) or unknown ones "
                f"({', '.join(unknown) or 'none'}). Pass a line written by Record.to_dict().",
                missing=missing,
                unknown=unknown,
            )
        values: dict[str, Any] = {**line, **{name: to_float(line[name]) for name in _FLOATS}}
        values["losses"] = {name: to_float(value) for name, value in line["losses"].items()}
        values["by_domain"] = {name: tuple(pair) for name, pair in line["by_domain"].items()}
        values["estimate"] = _read_estimate(line["estimate"])
        return cls(**values, predictions=None)


def _read_estimate(values: Mapping[str, Any] | None) -> Estimate | None:
    if values is None:
        return None
    intervals = {name: Interval(**values[name]) for name in ("source", "adapted", "gain")}
    return Estimate(**{**values, **intervals})


_NAMES = tuple(f.name for f in dataclasses.fields(Record) if f.name != "predictions")
_OF_GUARD = ("estimate", "by_source", "rested")
_WATCHED = ("effective_classes", "drift")
_FLOATS = ("entropy", "nll", "ms", "confidence")
_KNOWN = frozenset(_NAMES)
_OPTIONAL = dict.fromkeys(("n_pixel_images", *_OF_GUARD, *_WATCHED))
