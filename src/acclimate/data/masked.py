"""The data of a comparison with a class for every pixel: sets with masks, and copies of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.data import SETS, data_root
from acclimate.data.arrays import labelled_sha256
from acclimate.data.masks import IGNORE, LabelledPixels, MaskedImages, load_masks
from acclimate.data.masks.loading import find_set
from acclimate.data.masks.tree import Pair, guess_set, list_splits
from acclimate.data.request import Data, Request
from acclimate.errors import AcclimateWarning
from acclimate.functional.inputs import Normalization
from acclimate.streams import Domain

#: What is measured on: the first of these splits that is there, or the only one.
MEASURED = ("test", "val")
#: What is prepared from.
PREPARED = ("train",)
#: Source images in a batch: they are large, and have a prediction for every pixel.
BATCH = 4

# More bytes of images and masks than this are read when they are asked for.
_MOST_IN_MEMORY = 2**30


class MaskSource:
    """Images with masks in batches `(x, y)`, shuffled once by the seed.

    Args:
        images: The training images.
        seed: Of the order.
        normalization: Applied to the images in [0, 1]; None for none.
        batch_size: Images a batch.
    """

    def __init__(
        self,
        images: LabelledPixels,
        seed: int,
        normalization: Normalization | None = None,
        batch_size: int = BATCH,
    ) -> None:
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        self._images, self._parts = images, torch.split(order, batch_size)
        self._normalization = normalization

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for pixels, y in self._images.batches(self._parts):
            x = pixels.float() / 255
            yield x if self._normalization is None else self._normalization.normalize(x), y


def has_masks(name: str) -> bool:
    """Say whether the data of a name has a class for every pixel.

    Args:
        name: A key of `acclimate.data.SETS`, or a folder.
    """
    if name in SETS:
        return SETS[name].kind == "masks"
    return Path(name).is_dir() and guess_set(Path(name)) is not None


def find_split(name: str, wanted: Sequence[str], root: str | Path | None = None) -> str | None:
    """Return the first split that a set has of those wanted; None if it has none of them."""
    if name == "builtin-scenes":
        return wanted[0]
    spec, base = find_set(name, data_root(root))
    there = list_splits(base, spec)
    return next((split for split in wanted if split in there), None)


def open_source(
    name: str,
    seed: int,
    normalization: Normalization | None = None,
    root: str | Path | None = None,
    batch_size: int = BATCH,
    **options: Any,
) -> tuple[MaskSource, Sequence[str]]:
    """Return the training images of a set with masks in batches, and the names of its classes.

    They are the split `train`, or the only one; a warning tells if that has another name.

    Args:
        name: A key of `acclimate.data.masks.MASK_SETS`, or a folder.
        seed: Of the order.
        normalization: Applied to the images in [0, 1]; None for none.
        root: Of all data.
        batch_size: Images a batch.
        **options: Of `load_masks`: size, number of images, names of classes.

    Raises:
        BadInput: There are none, or files cannot be used.
    """
    images = load_masks(name, find_split(name, PREPARED, root), root, **options)
    split = images.description["split"]
    if split and split not in PREPARED:
        warning = AcclimateWarning(
            "prepared_on_test",
            f"{name} has no split {PREPARED[0]}, so the artifact is prepared from {split}, the "
            "only split. Do not evaluate on the same images; use the images that the model was "
            "trained on.",
            split=split,
        )
        warnings.warn(warning, stacklevel=3)
    return MaskSource(images, seed, normalization, batch_size), images.classes


def load_masked(name: str, asked: Request) -> Data:
    """Return a set with masks as domains, corrupted if that is asked for.

    Args:
        name: A key of `acclimate.data.masks.MASK_SETS`, or a folder.
        asked: What of it; without corruptions, the clean images.

    Raises:
        BadInput: There is no such set, or files cannot be used.
    """
    title = name if name in SETS else Path(name).resolve().name
    options = {**_options(name, asked), "root": asked.root}
    clean = load_masks(name, **options)
    chosen: dict[str, dict[int, str]] = {title: {0: title}}
    if asked.corruptions is None:
        asked.refuse_severity(title, "pass --corruptions as well")
    else:
        chosen = {corruption: asked.names(corruption) for corruption in asked.corruptions}
    together = _Gathered(clean, sum(map(len, chosen.values())), asked)
    for corruption, names in chosen.items():
        for severity, domain in names.items():
            images = clean
            if severity:
                images = load_masks(name, corruption=corruption, severity=severity, **options)
            together.add(corruption, domain, images)
    can_prepare = find_split(name, PREPARED, asked.root) is not None
    return together.result(title, name if can_prepare else None, clean)


def load_copies(
    root: Path, places: Mapping[str, Sequence[tuple[str, Path, dict[str, Any]]]], asked: Request
) -> Data:
    """Return corrupted copies of a set with masks, each of them laid out as the set itself.

    Args:
        root: The folder they are in.
        places: By corruption: name of the domain, its folder, and what is known of it.
        asked: What of them.

    Raises:
        BadInput: Files cannot be used.
    """
    flat = [(corruption, *member) for corruption, members in places.items() for member in members]
    found = {
        domain: load_masks(str(place), **_options(str(place), asked))
        for _, domain, place, _ in flat
    }
    together = _Gathered(next(iter(found.values())), len(flat), asked)
    for corruption, domain, _, about in flat:
        together.add(corruption, domain, found[domain], {**about, "source": "generated"})
    return together.result(root.resolve().name, None, None)


class _Gathered:
    """Domains as they come: in memory if all together are small, else read when asked for."""

    def __init__(self, images: LabelledPixels, n_domains: int, asked: Request) -> None:
        self._images, self._progress, self._total = images, asked.progress, n_domains
        self._groups: dict[str, tuple[Domain, ...]] = {}
        self._about: dict[str, dict[str, Any]] = {}
        self._verified: Sequence[Pair] = ()
        self._n_unlabelled = 0
        self._in_memory = True
        if isinstance(images, MaskedImages):
            pixels = len(images) * images.size[0] * images.size[1] * n_domains
            self._in_memory = pixels * (3 + 8) <= _MOST_IN_MEMORY  # bytes of images and masks

    def add(
        self, group: str, name: str, images: LabelledPixels, about: Mapping[str, Any] | None = None
    ) -> None:
        """Take in a domain."""
        if self._progress is not None:
            self._progress(f"reading {name}", len(self._about), self._total)
        if isinstance(images, MaskedImages) and not self._in_memory:
            if images.pairs != self._verified:  # the same files may be spoiled in several ways
                self._n_unlabelled = images.verify(self._progress, needs_labels=False)
                self._verified = images.pairs
            domain = images.open_domain(name)
            sha256 = images.digest()
        else:
            domain = images.to_domain(name)
            labels = np.asarray(domain.y)
            sha256 = labelled_sha256(np.asarray(domain.x), labels)
            self._n_unlabelled = int((labels == IGNORE).all(axis=(1, 2)).sum())
        if self._n_unlabelled:
            about = {**(about or {}), "n_unlabelled": self._n_unlabelled}
        made = {"source": "generated"} if "corruption" in images.description else {}
        self._about[name] = {**images.description, **made, "sha256": sha256, **(about or {})}
        self._groups[group] = (*self._groups.get(group, ()), domain)

    def result(self, name: str, source: str | None, clean: LabelledPixels | None) -> Data:
        """Return all of them."""
        counts = [about.get("n_unlabelled", 0) for about in self._about.values()]
        if any(counts):
            warning = AcclimateWarning(
                "unlabelled_images",
                f"{max(counts)} of {len(self._images)} images of {name} have no labelled pixel. "
                "They are predicted and used for adaptation, but do not count in any result.",
                n=max(counts),
            )
            warnings.warn(warning, stacklevel=4)
        return Data(
            name,
            self._groups,
            self._images.classes,
            self._about,
            is_folder=True,
            source=source,
            clean=None if clean is None else lambda: clean.to_domain("clean"),
            palette=self._images.palette,
        )


def _options(name: str, asked: Request) -> dict[str, Any]:
    split = find_split(name, MEASURED, asked.root)
    return {
        "split": split,
        "size": asked.size,
        "n": asked.n,
        "classes": asked.classes,
        "ignore_label": asked.ignore_label,
    }
