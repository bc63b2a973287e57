"""Corruptions as data sets need them; imported by worker processes too."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from acclimate.corruptions import BENCHMARK, CORRUPTIONS, HELD_OUT, Pixels, apply
from acclimate.corruptions.frost import without_warning
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
    after can be told apart whatever the version says.
    """
    draws = np.random.Generator(np.random.Philox(0)).integers(0, 256, (1, *shape))
    with without_warning():
        spoiled = corrupt_block(draws.astype(np.uint8), name, severity, 0, 0)
    return hashlib.sha256(spoiled.tobytes()).hexdigest()[:16]


def corrupt_file(
    source: Path,
    target: Path,
    name: str,
    severity: int,
    seed: int,
    start: int,
    size: int | None,
    resize: int | None = None,
) -> str | None:
    """Write a corrupted copy of an image file as PNG; return the reason if it cannot be read.

    Args:
        source: Any image file.
        target: Ends in .png; its folder is made.
        name: Of the corruption.
        severity: 1 to 5.
        seed: Of the random draws.
        start: Place of the image in its set.
        size: Side of the square to cut out of the centre; None keeps the image as it is.
        resize: What its shorter side is brought to before; None for `size` itself.
    """
    from PIL import Image

    from acclimate.streams.images import common_size, try_read

    try:
        shape = common_size([source]) if size is None else (size, size)
    except BadInput:  # which speaks of a whole folder
        return "its header is damaged"
    pixels = try_read(source, shape, None if resize is None else (resize, resize))
    if isinstance(pixels, str):
        return pixels
    spoiled = corrupt_block(pixels[None], name, severity, seed, start)[0]
    target.parent.mkdir(parents=True, exist_ok=True)
    neighbour = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        Image.fromarray(spoiled).save(neighbour, "PNG")
        neighbour.replace(target)
    finally:
        neighbour.unlink(missing_ok=True)
    return None
