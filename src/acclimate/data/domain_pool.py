"""Parts of domains, one or several together, in the shape of an array.

choice = DomainChoice(names=("photo", "sketch"), part="train", size=96)
parts = choose_parts(load_domains("pacs", size=96), choice)
pool = Pool(list(parts.values()))
pool[np.arange(200)]                                   # pixels (200, 96, 96, 3), read now
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from acclimate.data.domain_images import Domain, Labels, Part
from acclimate.data.domains import DomainSet
from acclimate.errors import BadInput, did_you_mean
from acclimate.streams.images import Pixels

#: All images of a domain; those that are trained on; those that are held out of training.
PARTS = ("all", "train", "held")


@dataclass(frozen=True, kw_only=True)
class DomainChoice:
    """Which images of a set of domains are meant.

    Attributes:
        names: Of the domains; empty for all.
        part: One of `PARTS`.
        trial_seed: Of the split, as in training.
        size: Height and width images are brought to; None is 224 for the published sets.
        images: How many images of each domain, before it is split; None is all.
    """

    names: tuple[str, ...] = ()
    part: str = "all"
    trial_seed: int = 0
    size: int | None = None
    images: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not all(isinstance(name, str) for name in self.names):
            raise BadInput(
                "wrong_type",
                f'Expected a list of domains, such as names = ["photo"], found {self.names!r}.',
                option="names",
                found=type(self.names).__name__,
            )
        object.__setattr__(self, "names", tuple(self.names))
        if self.part not in PARTS:
            raise BadInput(
                "unknown_name",
                f'Unknown part "{self.part}" of a domain. {did_you_mean(self.part, PARTS)}',
                kind="part",
                name=self.part,
                known=PARTS,
            )


class Pool:
    """Images of several domains in the shape of an array (n, height, width, 3) of 8-bit numbers.

    What is indexed is read then, so that sets of any size fit.

    Args:
        parts: Domains whose images can all be read.
        keys: Which of all images, counted through; None for all.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, parts: Sequence[Domain], keys: Sequence[int] | None = None) -> None:
        self._parts = tuple(parts)
        self._starts = np.cumsum([0, *(len(part) for part in parts)])
        total = int(self._starts[-1])
        self._keys = np.arange(total) if keys is None else np.array(keys, np.int64)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._keys)

    @property
    def labels(self) -> Labels:
        """Class numbers of all images."""
        return np.concatenate([part.labels for part in self._parts])[self._keys]

    def __getitem__(self, indices: npt.NDArray[np.int64]) -> Pixels:
        """Read the images at these places."""
        keys = self._keys[indices]
        found: Pixels | None = None
        for part, start, end in zip(self._parts, self._starts, self._starts[1:], strict=False):
            places = np.flatnonzero((start <= keys) & (keys < end))
            if not len(places):
                continue
            x, _ = next(iter(part.batches([torch.from_numpy(keys[places] - start)])))
            if len(x) < len(places):
                raise BadInput(
                    "unreadable_images",
                    "Images that were read before can no longer be read. Check the disk.",
                    paths=tuple(part.unreadable),
                )
            pixels = x.permute(0, 2, 3, 1).numpy()
            if found is None:
                found = np.empty((len(keys), *pixels.shape[1:]), np.uint8)
            found[places] = pixels
        if found is None:
            raise BadInput("empty_batch", "Expected at least one image to read, found none.")
        return found


def choose_parts(data: DomainSet, choice: DomainChoice) -> dict[str, Part]:
    """Return those images of each domain that are meant and can be read.

    Args:
        data: Loaded with the size and the number of images of the choice.
        choice: What is meant.

    Raises:
        BadInput: There is no such domain, or none of its images can be read.
    """
    found = {}
    for name in choice.names or data.domains:
        domain = data.find(name)
        keys = list(range(len(data.domains[domain])))
        if choice.part != "all":
            train, held = data.split(domain, choice.trial_seed)
            keys = train if choice.part == "train" else held
        part = Part(data.domains[domain], keys)
        good = part.readable()
        if not good:
            raise BadInput(
                "unreadable_images",
                f'None of the {len(part)} images of the domain "{domain}" can be read.',
                paths=tuple(part.unreadable),
            )
        found[domain] = Part(data.domains[domain], [keys[place] for place in good])
    return found


def spread(n: int, wanted: int | None) -> list[int]:
    """Return that many of n positions at even distances; all, if there are no more.

    >>> spread(6, 3), spread(2, 5)
    ([0, 2, 4], [0, 1])
    """
    if wanted is None or wanted >= n:
        return list(range(n))
    return [index * n // wanted for index in range(wanted)]
