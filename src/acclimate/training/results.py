"""What training runs give, one class for each task."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TrainResult:
    """What the training of a classifier gave.

    Attributes:
        path: Of the weights.
        error: On the test split in percent; None if there is none.
        minutes: Time spent, over all calls.
        losses: On the training images, the mean of each epoch.
        was_done: Whether the run had ended before, and nothing was done.
    """

    path: Path
    error: float | None
    minutes: float
    losses: tuple[float, ...]
    was_done: bool = False


@dataclass(frozen=True)
class DomainResult:
    """What a run on several domains gave.

    Attributes:
        path: Of the weights that were best on the validation splits of the training domains.
        step: After which these were had.
        validation: Their accuracy by training domain, on 20 % of each, in percent.
        checks: The figures of every check: `step`, `loss`, `penalty`, `validation` and its `mean`.
        minutes: Time spent, over all calls.
        unreadable: The reason by path, of images that were left out.
        was_done: Whether the run had ended before, and nothing was done.
    """

    path: Path
    step: int
    validation: dict[str, float]
    checks: tuple[dict[str, Any], ...]
    minutes: float
    unreadable: dict[str, str] = field(default_factory=dict)
    was_done: bool = False

    @property
    def mean(self) -> float:
        """Mean accuracy over the training domains, which the checkpoint was chosen by."""
        return sum(self.validation.values()) / len(self.validation)


@dataclass(frozen=True)
class SegmentationResult:
    """What a training run for segmentation gave.

    Attributes:
        path: Of the weights.
        sha256: Of that file.
        miou: Mean intersection over union on the validation images, in percent.
        ious: By class, in percent; None for a class that is in no validation image.
        losses: On the training images, the mean of each epoch.
        minutes: Time spent, over all calls.
        was_done: Whether the run had ended before, and nothing was done.
    """

    path: Path
    sha256: str
    miou: float
    ious: dict[str, float | None]
    losses: tuple[float, ...]
    minutes: float
    was_done: bool = False
