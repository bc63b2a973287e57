"""The labelled source images that an artifact is prepared from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.comparison.masks import has_masks
from acclimate.comparison.masks import open_source as open_masks
from acclimate.comparison.several import open_several
from acclimate.data import SETS, load
from acclimate.data.domain_pool import DomainChoice
from acclimate.data.masks import IGNORE
from acclimate.errors import BadInput
from acclimate.functional.inputs import Normalization
from acclimate.streams import Domain
from acclimate.streams.folder import FolderSource
from acclimate.streams.images import Size

#: Training images of the built-in task, which has no end of its own.
N_BUILTIN = 4096
BATCH = 128


class ArraySource:
    """Labelled images in batches `(x, y)`, shuffled once by the seed.

    Args:
        domain: The training images.
        seed: Of the order.
        normalization: Applied to the images in [0, 1]; None for none.
    """

    def __init__(
        self, domain: Domain, seed: int, normalization: Normalization | None = None
    ) -> None:
        order = torch.randperm(len(domain), generator=torch.Generator().manual_seed(seed))
        self._domain = domain
        self._parts = torch.split(order, BATCH)
        self._normalization = normalization

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for part in self._parts:
            x, y = self._domain.take(part)
            yield x if self._normalization is None else self._normalization.normalize(x), y


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Where an artifact is prepared from, if none is given.

    Attributes:
        source: A key of `acclimate.data.SETS`, or a folder `DIR/<class>/<image>`; with `domains`, a
            set of several domains, or a folder of them; where there are masks, its split `train`,
            or the only one.
        n: Only so many images, the first ones, of a set, at even distances, of masked ones, or
            drawn by the seed, of several domains; None for all, as of a folder.
        size: Of the images of a folder, or of several domains; None if all have one.
        classes: Names in the order of the logits, if they are known.
        root: Of all data; see `acclimate.data.data_root`.
        seed: Of the order and of all draws.
        domains: Which images of several domains, pooled.
        ignore_label: The value in masks of a folder that stands for no label.

    Raises:
        BadInput: There is no such source, or it cannot give so many images.
    """

    source: str
    n: int | None = None
    size: int | Size | None = None
    classes: Sequence[str] | None = None
    root: str | Path | None = None
    seed: int = 0
    domains: DomainChoice | None = None
    ignore_label: int = IGNORE

    def __post_init__(self) -> None:
        if self.domains is None and not self._is_set and not Path(self.source).is_dir():
            raise BadInput(
                "unknown_name",
                f'Cannot prepare from "{self.source}". Expected cifar10, cifar100, builtin, or a '
                "folder with one subfolder per class.",
                kind="source data set",
                name=self.source,
                known=tuple(name for name in SETS if _is_set(name)),
            )
        if self.n is not None and self.n < 1:
            raise BadInput(
                "out_of_range",
                f"Expected at least 1 source image, found {self.n}.",
                option="source_images",
                found=self.n,
            )
        if self.n is not None and self.domains is None and not self._is_set:
            raise BadInput(
                "not_applicable",
                "The option --source-images applies only to named data sets; all images of the "
                f"folder {self.source} are used. Remove it.",
                option="source_images",
            )

    @property
    def _is_set(self) -> bool:
        return _is_set(self.source)

    def open(
        self, normal: Normalization | None = None
    ) -> tuple[Iterable[tuple[Tensor, Tensor]], Sequence[str]]:
        """Return the labelled batches, normalised, and the names of the classes."""
        if self.domains is not None:
            pooled, names = open_several(
                self.source, self.domains, self.n, self.seed, self.root, self.size
            )
            return ArraySource(pooled, self.seed, normal), names
        if has_masks(self.source):
            chosen: dict[str, Any] = {"size": self.size, "n": self.n, "classes": self.classes}
            chosen["ignore_label"] = self.ignore_label
            return open_masks(self.source, self.seed, normal, self.root, **chosen)
        if self._is_set:
            made = SETS[self.source].kind == "made"
            options = {"n": self.n or N_BUILTIN} if made else {}
            images = load(self.source, "train", self.root, **options)
            domain = Domain(self.source, images.images[: self.n], np.array(images.labels[: self.n]))
            return ArraySource(domain, self.seed, normal), images.classes
        folder = FolderSource(self.source, self.size, BATCH, normal, self.seed, self.classes)
        return folder, folder.classes


def _is_set(name: str) -> bool:
    """Say whether a number of images can be taken from a source; of other folders, all are."""
    return has_masks(name) or (name in SETS and SETS[name].kind in ("cifar", "made"))
