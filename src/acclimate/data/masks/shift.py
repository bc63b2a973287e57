"""Corruptions of images whose masks stay as they are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acclimate.corruptions import apply, provenance
from acclimate.corruptions.frost import frost_from
from acclimate.streams.images import Pixels


@dataclass(frozen=True)
class Shift:
    """A corruption of images.

    Attributes:
        corruption: One of `acclimate.corruptions.CORRUPTIONS`.
        severity: 1 to 5.
        seed: Of the random draws, which depend on it and the name of the image alone.
        root: Of all data, where photographs of frost are looked for besides the usual places.
    """

    corruption: str
    severity: int = 5
    seed: int = 0
    root: Path | None = None


def name_of(shift: Shift | None) -> str:
    """Return what tables call images under a shift."""
    return "clean" if shift is None else shift.corruption


def describe(shift: Shift | None) -> dict[str, Any]:
    """Return what a result must say of a shift."""
    if shift is None:
        return {}
    with frost_from(shift.root):
        made_from = provenance(shift.corruption)
    return {
        "corruption": shift.corruption,
        "severity": shift.severity,
        "corruption_seed": shift.seed,
        "made_from": made_from,
    }


def corrupt_image(image: Pixels, name: str, shift: Shift) -> Pixels:
    """Return a corrupted copy; lengths in pixels follow the size of the image.

    Args:
        image: (height, width, 3).
        name: Of the image in its set, which its random draws depend on.
        shift: What is done.
    """
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    place = int.from_bytes(digest[:8], "little") >> 1
    # Here, for what is set around a thread or a process is not set in it.
    with frost_from(shift.root):
        spoiled = apply(
            image[None], shift.corruption, shift.severity, shift.seed, place, scale=True
        )
    return spoiled.reshape(image.shape)
