"""Which images of a data set with several domains are meant, and DomainBed's rule for its parts."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from acclimate.errors import BadInput, check_name

#: All images of a domain; those that are trained on; those that are held out of training.
PARTS = ("all", "train", "held")
#: Part of every domain that is held out of training.
HELD_OUT = 0.2


@dataclass(frozen=True, kw_only=True)
class DomainChoice:
    """Which images of a set of domains are meant.

    Attributes:
        names: Of the domains; empty for all.
        part: One of `PARTS`.
        trial_seed: Of the split, as in training.
        size: Height and width images are resized to; None is 224 for the published sets.
        images: How many images of each domain, before it is split; None is all.
    """

    names: tuple[str, ...] = ()
    part: str = "all"
    trial_seed: int = 0
    size: int | None = None
    images: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not all(isinstance(name, str) for name in self.names):
            text = f'Expected a list of domains, such as names = ["photo"], found {self.names!r}.'
            found = type(self.names).__name__
            raise BadInput("wrong_type", text, option="names", found=found)
        object.__setattr__(self, "names", tuple(self.names))
        check_name(self.part, PARTS, "part")


def seed_hash(*values: int | str) -> int:
    """Return a seed for these values, as DomainBed derives it: an MD5 of how Python writes them.

    >>> seed_hash(0, 1)
    1514274641
    """
    text = str(values).encode()
    return int(hashlib.md5(text, usedforsecurity=False).hexdigest(), 16) % 2**31


def split_keys(
    n: int, trial_seed: int, index: int, fraction: float = HELD_OUT
) -> tuple[list[int], list[int]]:
    """Return which images of a domain are trained on, and which are held out.

    Their positions are shuffled by NumPy's legacy generator, whose numbers never change; the first
    part is held out, as in DomainBed's `train.py`. Images are in the order of
    `torchvision.datasets.ImageFolder`, `index` is the place of the domain in the order of their
    names.
    """
    n_held = int(n * fraction)
    if n_held < 1:
        text = (
            f"Expected enough images in a domain to hold out {fraction:.0%} of them, found {n}. "
            "Provide more images."
        )
        if fraction <= 0:
            raise BadInput("out_of_range", text, option="fraction", found=fraction)
        raise BadInput("too_few_samples", text, expected=math.ceil(1 / fraction), found=n)
    keys = list(range(n))
    np.random.RandomState(seed_hash(trial_seed, index)).shuffle(keys)
    return keys[n_held:], keys[:n_held]
