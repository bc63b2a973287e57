"""Corruptions as data sets need them; imported by worker processes too."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from acclimate.corruptions import (
    BENCHMARK,
    CORRUPTIONS,
    HELD_OUT,
    Pixels,
    apply,
    open_pool,
    provenance,
)
from acclimate.corruptions.frost import frost_from, get_frost_root, without_warning
from acclimate.data.places import QUIET, Feedback
from acclimate.errors import BadInput, check_name
from acclimate.storage import write_atomically

SEVERITIES = (1, 2, 3, 4, 5)
#: Of a folder of generated images: what they were made from.
MANIFEST = "generated.json"
#: Key of a manifest: what `acclimate.corruptions.provenance` returned when they were made.
MADE_FROM = "made_from"

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
    """Refuse corruptions and severities that do not exist, or none."""
    for name in names:
        check_name(name, CORRUPTIONS, "corruption")
    if not names:
        text = f"Expected at least one corruption, found none. Known: {', '.join(CORRUPTIONS)}."
        raise BadInput("missing_option", text, option="names")
    wrong = tuple(severity for severity in severities if severity not in SEVERITIES)
    if wrong or not severities:
        text = f"Expected severities from 1 to 5, found {list(wrong) or 'none'}."
        raise BadInput("out_of_range", text, option="severities", found=wrong)


@dataclass(frozen=True)
class CopyRequest:
    """Which corrupted copies are wanted, and how they are made."""

    names: Sequence[str]
    severities: Sequence[int]
    seed: int = 0
    workers: int = 1  # number of processes; 1 computes in this one
    root: Path | None = None  # of all data, where photographs of frost are looked for, too
    feedback: Feedback = QUIET

    def __post_init__(self) -> None:
        check_request(self.names, self.severities)

    def blocks(self) -> Iterator[tuple[str, list[int]]]:
        """Yield each corruption with its severities."""
        for name in dict.fromkeys(self.names):
            yield name, sorted(set(self.severities))

    def open_pool(self) -> AbstractContextManager[Executor | None]:
        """Give a pool of processes, or None for one worker."""
        return nullcontext() if self.workers == 1 else open_pool(self.workers)

    def frost(self) -> AbstractContextManager[None]:
        """Look for photographs of frost under the root while a block runs."""
        return frost_from(self.root or get_frost_root())


def find_recipe(name: str, severity: int, shape: tuple[int, ...]) -> str:
    """Return a digest of what the corruption does to one fixed image of that shape.

    It changes when the code does, or anything the code relies on, so that copies made before and
    after can be distinguished whatever the version says.
    """
    draws = np.random.Generator(np.random.Philox(0)).integers(0, 256, (1, *shape))
    with without_warning():
        spoiled = apply(draws.astype(np.uint8), name, severity, 0, 0)
    return hashlib.sha256(spoiled.tobytes()).hexdigest()[:16]


@dataclass(frozen=True)
class Shift:
    """A corruption whose draws depend on the seed and the name of the image alone."""

    corruption: str
    severity: int = 5
    seed: int = 0
    root: Path | None = None  # of all data, where photographs of frost are looked for, too

    def __post_init__(self) -> None:
        check_request([self.corruption], [self.severity])

    def describe(self) -> dict[str, Any]:
        """Return what a result must record about it."""
        with frost_from(self.root):
            made_from = provenance(self.corruption)
        about = {"corruption": self.corruption, "severity": self.severity}
        return {**about, "corruption_seed": self.seed, MADE_FROM: made_from}


def corrupt_image(image: Pixels, name: str, shift: Shift) -> Pixels:
    """Return a corrupted copy of an image (height, width, 3) of that name in its set.

    Lengths in pixels follow the size of the image.
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
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    Image.fromarray(image).save(content, "PNG")
    write_atomically(path, content.getvalue(), sync=False)
