"""Corruptions as data sets need them; imported by worker processes too."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.corruptions import BENCHMARK, CORRUPTIONS, HELD_OUT, Pixels, apply, provenance
from acclimate.corruptions.frost import frost_from, without_warning
from acclimate.errors import BadInput, did_you_mean

SEVERITIES = (1, 2, 3, 4, 5)

#: Names that stand for several corruptions.
GROUPS: dict[str, tuple[str, ...]] = {"all": tuple(CORRUPTIONS), "extra": HELD_OUT}


def choose_corruptions(names: Sequence[str] | None) -> list[str]:
    """Return corruptions by name, groups resolved; without any, the fifteen of the benchmark.

    >>> len(choose_corruptions(None)), choose_corruptions(["fog", "extra"])[:2]
    (15, ['fog', 'speckle_noise'])
    """
    if names is None:
        return list(BENCHMARK)
    return list(dict.fromkeys(one for name in names for one in GROUPS.get(name, (name,))))


def check_request(names: Sequence[str], severities: Sequence[int]) -> None:
    """Refuse corruptions and severities that do not exist.

    Raises:
        BadInput: Any of them is unknown, or there are none.
    """
    known = list(CORRUPTIONS)
    for name in names:
        if name not in known:
            raise BadInput(
                "unknown_name",
                f'Unknown corruption "{name}". {did_you_mean(name, known)}',
                kind="corruption",
                name=name,
                known=tuple(known),
            )
    if not names:
        raise BadInput(
            "missing_option",
            f"Expected at least one corruption, found none. Known: {', '.join(known)}.",
            option="names",
        )
    wrong = [severity for severity in severities if severity not in SEVERITIES]
    if wrong or not severities:
        raise BadInput(
            "out_of_range",
            f"Expected severities from 1 to 5, found {wrong or 'none'}.",
            option="severities",
            found=tuple(wrong),
        )


def corrupt_block(images: Pixels, name: str, severity: int, seed: int, start: int) -> Pixels:
    """Return corrupted copies of images that stand at `start` and after it in their set."""
    return apply(images, name, severity, seed, start)


def find_recipe(name: str, severity: int, shape: tuple[int, ...]) -> str:
    """Return a digest of what the corruption does to one fixed image of that shape.

    It changes when the code does, or anything the code relies on, so that copies made before and
    after can be distinguished whatever the version says.
    """
    draws = np.random.Generator(np.random.Philox(0)).integers(0, 256, (1, *shape))
    with without_warning():
        spoiled = corrupt_block(draws.astype(np.uint8), name, severity, 0, 0)
    return hashlib.sha256(spoiled.tobytes()).hexdigest()[:16]


@dataclass(frozen=True)
class Shift:
    """A corruption of images that are read from files.

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

    def describe(self) -> dict[str, Any]:
        """Return what a result must record about it."""
        with frost_from(self.root):
            made_from = provenance(self.corruption)
        return {
            "corruption": self.corruption,
            "severity": self.severity,
            "corruption_seed": self.seed,
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


def write_png(path: Path, image: Pixels) -> None:
    """Write an image in one step; its folder is made."""
    from PIL import Image

    from acclimate.storage import write_atomically

    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    Image.fromarray(image).save(content, "PNG")
    write_atomically(path, content.getvalue(), sync=False)
