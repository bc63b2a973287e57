"""Data sets that are made by code, as many images as are asked for: they need no download."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from acclimate.builtin import CLASSES, SPLITS, render
from acclimate.builtin.domains import STYLES, render_style
from acclimate.builtin.scenes import SCENE_CLASSES, SCENE_PALETTE, SCENE_SPLITS, render_scenes
from acclimate.data.arrays import Labels, array_sha256
from acclimate.data.datasets import DataSet, fixed_size
from acclimate.data.domains import DomainFolders, DomainSet, describe
from acclimate.data.mask_files import IGNORE
from acclimate.data.masks import MaskSet
from acclimate.data.request import Selection, SourceRequest, check_number
from acclimate.data.stores import ArrayStore, Batches, ImageStore
from acclimate.errors import BadInput, check_name
from acclimate.streams.images import Pixels

#: Images to measure on if no number is asked for.
N_BUILTIN = 2000
#: Training images to prepare an artifact from.
N_SOURCE = 4096
#: Images of each style of the built-in domains.
N_DOMAIN = 500
#: Images of each split of the built-in scenes.
N_SCENES = 100


def _make(
    name: str, split: str, images: Pixels, labels: Labels, classes: tuple[str, ...]
) -> ArrayStore:
    about = {"name": name, "split": split, "source": "made by code"}
    about |= {"sha256": array_sha256(images)}
    return ArrayStore(images, labels, classes, about).described(n=len(images))


@dataclass(frozen=True, kw_only=True)
class BuiltinSet(DataSet):
    """The toys of the demonstration."""

    is_generated = can_prepare = True

    def open(
        self, split: str | None, root: Path, *, n: int | None = None, start: int = 0
    ) -> ArrayStore:
        """Return the images of a split from the index `start` on."""
        split, n = split or "test", N_BUILTIN if n is None else n
        check_name(split, SPLITS, "split")
        made = render(n, SPLITS[split], start)
        return _make(self.name, split, *made, CLASSES).described(start=start)

    def to_batches(self, asked: SourceRequest, path: Path | None = None) -> Batches:
        return super().to_batches(replace(asked, n=asked.n or N_SOURCE), path)


@dataclass(frozen=True, kw_only=True)
class BuiltinDomains(DomainFolders):
    """The toys in four styles."""

    is_generated = True

    def open_all(self, root: Path, path: str | Path | None, asked: Selection) -> DomainSet:
        check_number(asked.n)
        if asked.size is not None:
            raise fixed_size(self.name)
        domains: dict[str, ImageStore] = {}
        for name in STYLES:
            images, labels = _render_style(name, asked.n or N_DOMAIN)
            about = {"source": "made by code", "sha256": array_sha256(images), "n": len(images)}
            domains[name] = ArrayStore(images, labels, CLASSES, about)
        return describe(self.name, CLASSES, domains)


@lru_cache(maxsize=2 * len(STYLES))
def _render_style(name: str, n: int) -> tuple[Pixels, Labels]:
    images, labels = render_style(name, n)
    images.flags.writeable = labels.flags.writeable = False  # whoever asks again gets the same
    return images, labels


@dataclass(frozen=True, kw_only=True)
class BuiltinScenes(MaskSet):
    """Toys on a table, with a class for every pixel."""

    is_generated = True

    def open_clean(
        self, split: str | None, root: Path, path: str | Path | None, asked: Selection
    ) -> ArrayStore:
        if asked.ignore_label != IGNORE:
            text = f"The ignore label of {self.name} cannot be changed. Remove --ignore-label."
            raise BadInput("not_applicable", text, option="ignore_label")
        if asked.size is not None:
            raise fixed_size(self.name)
        split = split or "test"
        check_name(split, SCENE_SPLITS, "split")
        made = render_scenes(asked.n or N_SCENES, SCENE_SPLITS[split])
        return replace(_make(self.name, split, *made, SCENE_CLASSES), palette=SCENE_PALETTE)

    def find_split(
        self, wanted: Sequence[str], root: Path, path: str | Path | None = None
    ) -> str | None:
        return wanted[0]
