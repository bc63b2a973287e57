"""Data sets that are made by code, as many images as are asked for: they need no download."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.builtin import CLASSES, SPLITS, render
from acclimate.builtin.domains import STYLES, render_style
from acclimate.builtin.scenes import SCENE_CLASSES, SCENE_PALETTE, SCENE_SPLITS, render_scenes
from acclimate.data.arrays import Labels, Pixels, array_sha256
from acclimate.data.corruptor import Shift, check_request, corrupt_image
from acclimate.data.datasets import DataSet, Report, fixed_size, unknown_split
from acclimate.data.domains import DomainFolders, DomainSet, check_number, describe
from acclimate.data.mask_files import IGNORE
from acclimate.data.masks import MaskSet
from acclimate.data.places import Progress
from acclimate.data.stores import ArrayStore, Batches, ImageStore
from acclimate.errors import BadInput
from acclimate.streams.images import Size

#: Images to measure on if no number is asked for.
N_BUILTIN = 2000
#: Training images to prepare an artifact from.
N_SOURCE = 4096
#: Images of each style of the built-in domains.
N_DOMAIN = 500
#: Images of each split of the built-in scenes.
N_SCENES = 100


@dataclass(frozen=True, kw_only=True)
class BuiltinSet(DataSet):
    """The toys of the demonstration."""

    is_generated = can_prepare = True

    def open(
        self, split: str | None, root: Path, *, n: int | None = None, start: int = 0
    ) -> ArrayStore:
        """Return the images of a split from the index `start` on."""
        split, n = split or "test", N_BUILTIN if n is None else n
        if split not in SPLITS:
            raise unknown_split(self.name, split, tuple(SPLITS))
        images, labels = render(n, SPLITS[split], start)
        about = {
            "name": self.name,
            "split": split,
            "source": "made by code",
            "sha256": array_sha256(images),
            "n": n,
            "start": start,
        }
        return ArrayStore(images, labels, CLASSES, about)

    def to_batches(
        self,
        root: Path,
        n: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        **options: Any,
    ) -> Batches:
        return super().to_batches(root, n or N_SOURCE, seed, batch_size, **options)


@dataclass(frozen=True, kw_only=True)
class BuiltinDomains(DomainFolders):
    """The toys in four styles."""

    is_generated = True

    def open_all(
        self,
        root: Path,
        path: str | Path | None = None,
        size: int | Size | None = None,
        n: int | None = None,
    ) -> DomainSet:
        check_number(n)
        if size is not None:
            raise fixed_size(self.name)
        domains: dict[str, ImageStore] = {}
        for name in STYLES:
            images, labels = _render_style(name, n or N_DOMAIN)
            about = {"source": "made by code", "sha256": array_sha256(images), "n": len(images)}
            domains[name] = ArrayStore(images, labels, CLASSES, about)
        return describe(self.name, CLASSES, domains)

    def state(self, root: Path) -> str:
        return "made by code"

    def check(
        self, root: Path, path: Path | None = None, progress: Progress | None = None
    ) -> Report:
        return Report({"source": self.placing})


@lru_cache(maxsize=2 * len(STYLES))
def _render_style(name: str, n: int) -> tuple[Pixels, Labels]:
    images, labels = render_style(name, n)
    images.flags.writeable = labels.flags.writeable = False  # whoever asks again gets the same
    return images, labels


@dataclass(frozen=True, kw_only=True)
class BuiltinScenes(MaskSet):
    """Toys on a table, with a class for every pixel."""

    is_generated = True

    def open(  # type: ignore[override]
        self,
        split: str | None,
        root: Path,
        *,
        path: str | Path | None = None,
        size: int | Size | None = None,
        n: int | None = None,
        corruption: str | None = None,
        severity: int = 5,
        seed: int = 0,
        classes: Sequence[str] | None = None,
        ignore_label: int = IGNORE,
    ) -> ArrayStore:
        if ignore_label != IGNORE:
            raise BadInput(
                "not_applicable",
                f"The ignore label of {self.name} cannot be changed. Remove --ignore-label.",
                option="ignore_label",
            )
        if size is not None:
            raise fixed_size(self.name)
        split, n = split or "test", n or N_SCENES
        if split not in SCENE_SPLITS:
            raise unknown_split(self.name, split, tuple(SCENE_SPLITS))
        images, labels = render_scenes(n, SCENE_SPLITS[split])
        about: dict[str, Any] = {
            "name": self.name,
            "split": split,
            "source": "made by code",
            "sha256": array_sha256(images),
            "n": n,
        }
        if corruption is not None:
            check_request([corruption], [severity])
            shift = Shift(corruption, severity, seed, root)
            images = np.stack([corrupt_image(x, str(i), shift) for i, x in enumerate(images)])
            about |= shift.describe()
        return ArrayStore(images, labels, SCENE_CLASSES, about, SCENE_PALETTE)

    def find_split(
        self, wanted: Sequence[str], root: Path, path: str | Path | None = None
    ) -> str | None:
        return wanted[0]

    def state(self, root: Path) -> str:
        return "made by code"

    def check(
        self,
        root: Path,
        path: Path | None = None,
        progress: Progress | None = None,
        ignore_label: int = IGNORE,
    ) -> Report:
        return Report({"source": self.placing})

    def corrupt(self, *arguments: Any, **options: Any) -> Any:
        raise BadInput(
            "wrong_loader",
            f'The data set "{self.name}" is generated when it is loaded. Corrupt it there: '
            f'load("{self.name}", corruption=...).',
            name=self.name,
        )
