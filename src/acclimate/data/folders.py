"""Data sets that are folders of image files: ImageNet, ImageNet-C, and local folders.

A local folder is `DIR/<class>/<image>`, or `DIR/<domain>/<class>/<image>`, or what `acclimate data
corrupt` made from one, `DIR/<corruption>/<severity>/<class>/<image>`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from acclimate.data.arrays import read_card
from acclimate.data.copies import FolderCounts, corrupt_folder
from acclimate.data.corruptor import MADE_FROM, MANIFEST, CopyRequest
from acclimate.data.datasets import DataSet, Report, find_set, missing_out
from acclimate.data.layouts import (
    check_nesting,
    find_corrupted,
    find_domains,
    list_corrupted,
    list_folders,
    open_folder,
)
from acclimate.data.masks import has_masks
from acclimate.data.places import Progress, data_root, silent
from acclimate.data.request import Data, Request, SourceRequest, gather
from acclimate.data.stores import Batches, FolderStore, ImageStore, list_unreadable
from acclimate.errors import BadInput
from acclimate.streams.images import Size, list_images

#: What a folder of corrupted copies is of.
About = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class FolderSet(DataSet):
    """Image files in class folders.

    Attributes:
        size: The side of the square that is cut out by default.
        resize: What the shorter side is resized to before.
        n_classes: Number of classes; 0 if it is not known.
    """

    size: int | None = None
    resize: int | None = None
    n_classes: int = 0

    is_files = True

    def open(
        self,
        split: str | None,
        root: Path,
        *,
        path: str | Path | None = None,
        size: int | Size | None = None,
        resize: int | Size | None = None,
        classes: Sequence[str] | None = None,
        n: int | None = None,
    ) -> FolderStore:
        """Return the images of a split, a sub-folder, if there is one of that name."""
        split, base = split or "val", self.base(root, path)
        place = base / split if (base / split).is_dir() else base
        return self.open_place(place, size, resize, classes, {"split": split}).first(n)

    def open_place(
        self,
        place: Path,
        size: int | Size | None = None,
        resize: int | Size | None = None,
        classes: Sequence[str] | None = None,
        about: About | None = None,
    ) -> FolderStore:
        """Return the images of a folder, in the sizes of the data set unless others are given."""
        manifest = _find_manifest(place)
        if manifest is None and resize is None:
            size, resize = (self.size, self.resize) if size is None else (size, None)
        elif manifest is None and size is None:
            size = self.size
        told: About = {"name": self.name, "split": "val", "folder": str(place), **(about or {})}
        told |= {"source": "folder" if manifest is None else "generated"}
        if manifest is not None and (name := told.get("corruption")):
            told[MADE_FROM] = manifest.get(MADE_FROM, {}).get(name, f"{name}: not recorded")
        told |= {"size": size, "resize": resize}
        store = open_folder(place, size, classes, resize, told)
        if self.n_classes and classes is None and len(store.classes) != self.n_classes:
            found = len(store.classes)
            text = (
                f"Expected {self.n_classes} class folders in {place}, found {found}: their order "
                f"would not match the class indices of the data set. Pass the {self.n_classes} "
                "names in order as classes=."
            )
            raise BadInput("count_mismatch", text, expected=self.n_classes, found=found)
        return store

    def find(self, root: Path) -> Path | None:
        # The published copy comes first.
        places = (root / self.name, root / f"{self.name}-generated")
        return next((place for place in places if place.is_dir()), None)

    def to_data(self, asked: Request, path: Path | None = None) -> Data:
        if self.is_own and path is None:
            text = f'The data set "{self.name}" is a local folder. Pass the folder itself: --data '
            raise BadInput("wrong_loader", text + "DIR.", name=self.name)
        if self.is_own and path is not None:
            return _own_data(path, asked)
        _refuse_corruptions(asked, self.name, "use --data imagenetc")
        options: dict[str, Any] = {"size": asked.size, "classes": asked.classes}
        make = partial(self.open, None, data_root(asked.root), **options)
        return gather(self.name, {self.name: {self.name: make}}, asked)

    def to_batches(self, asked: SourceRequest, path: Path | None = None) -> Batches:
        """Return all images of the folder in batches, shuffled again in every pass."""
        place = self.base(data_root(asked.root)) if path is None else path
        store = open_folder(place, asked.size, asked.classes, asked.resize)
        return asked.batches(store, reshuffle=True)

    def check(self, root: Path, path: Path | None = None, progress: Progress = silent) -> Report:
        base = self.base(root, path)
        images = list_images(base)
        facts = {"folder": str(base), "images": f"{len(images):,}"} | self.describe(base, images)
        unreadable = list_unreadable(images, progress)
        facts["unreadable"] = f"{len(unreadable):,}"
        return Report(facts, unreadable)

    def describe(self, base: Path, images: Sequence[Path]) -> dict[str, str]:
        """Return facts about the layout."""
        return {"folders": f"{len({image.parent for image in images}):,}"}

    def state(self, root: Path) -> str:
        return "folder" if self.find(root) else ""

    def corrupt(
        self,
        root: Path,
        asked: CopyRequest,
        out: Path | None = None,
        path: Path | None = None,
        size: int | None = None,
        resize: int | None = None,
        **more: Any,
    ) -> FolderCounts:
        """Write corrupted copies of all image files in the layout of ImageNet-C."""
        base = self.base(root, path)
        if self.is_own and out is None:
            raise missing_out(str(path))
        place = base / "val" if not self.is_own and (base / "val").is_dir() else base
        if not self.is_own and size is None:
            size, resize = self.size, self.resize if resize is None else resize
        return corrupt_folder(place, out or root / f"{self.name}c-generated", asked, size, resize)


@dataclass(frozen=True, kw_only=True)
class CorruptedFolderSet(FolderSet):
    """Image files in `<corruption>/<severity>/<class>`."""

    def open(
        self,
        split: str | None,
        root: Path,
        *,
        path: str | Path | None = None,
        size: int | Size | None = None,
        resize: int | Size | None = None,
        classes: Sequence[str] | None = None,
        n: int | None = None,
        corruption: str | None = None,
        severity: int | None = None,
    ) -> FolderStore:
        """Return the images under one corruption at one severity."""
        if corruption is None or severity is None:
            option = "corruption" if corruption is None else "severity"
            text = f'The data set "{self.name}" needs a corruption and a severity, such as fog and '
            raise BadInput("missing_option", text + "5.", option=option)
        about = {"corruption": corruption, "severity": severity}
        place = self.base(root, path, f"{corruption}/{severity}")
        return self.open_place(place, size, resize, classes, about).first(n)

    def to_data(self, asked: Request, path: Path | None = None) -> Data:
        options: dict[str, Any] = {"size": asked.size, "classes": asked.classes}
        groups = asked.shifts(partial(self.open, None, data_root(asked.root), **options))
        return gather(self.name, groups, asked)

    def describe(self, base: Path, images: Sequence[Path]) -> dict[str, str]:
        found = list_corrupted(base)
        return {name: "severity " + ", ".join(map(str, own)) for name, own in found.items()}


def _own_data(root: Path, asked: Request) -> Data:
    """Return a local folder: classes, domains of classes, or corrupted copies of either kind."""
    are_copies = (root / MANIFEST).is_file()
    if corrupted := find_corrupted(root, are_copies):
        places = _choose_corrupted(root, corrupted, asked)
    else:
        instead = f"generate corrupted copies first: acclimate data corrupt {root} --out DIR"
        _refuse_corruptions(asked, str(root), instead)
        found = find_domains(root, asked.classes)
        places = {name: {name: (place, {})} for name, place in found.items()}
    flat = [place for members in places.values() for place, _ in members.values()]
    make: Callable[[Path, About], ImageStore] = partial(_open_copies, asked)
    if not corrupted or not any(has_masks(str(place)) for place in flat):
        classes = {path.name for place in flat for path in list_folders(place)}
        own = tuple(asked.classes or sorted(classes))
        origin = "generated" if are_copies else "folder"
        make = partial(_open_classes, asked, own, origin)
    groups = {
        group: {name: partial(make, place, {"name": name, **about}) for name, (place, about) in x}
        for group, x in ((group, members.items()) for group, members in places.items())
    }
    return gather(root.resolve().name, groups, asked)


def _open_classes(
    asked: Request, classes: Sequence[str], origin: str, place: Path, about: About
) -> FolderStore:
    told = {"folder": str(place), "source": origin, **about}
    store = open_folder(place, asked.size, classes, description=told)
    if asked.classes is None:
        check_nesting(place, store.paths)
    return store


def _open_copies(asked: Request, place: Path, about: About) -> ImageStore:
    """Return corrupted copies of a set with masks, laid out as the set itself."""
    entry, path = find_set(str(place))
    store = entry.open_measured(asked, path)
    return store.described(corruption=about["corruption"], severity=about["severity"])


def _choose_corrupted(
    root: Path, found: Mapping[str, Sequence[int]], asked: Request
) -> dict[str, dict[str, tuple[Path, About]]]:
    """Return folder and description by the name of the domain, of what is asked for."""
    places = {}
    for corruption in asked.corruptions or found:
        if missing := [s for s in asked.severities if s not in found.get(corruption, ())]:
            there = ", ".join(f"{name} {list(own)}" for name, own in found.items())
            text = (
                f"Expected {corruption} at severity {missing[0]} in {root}, found: {there}. Select "
                "one of these with --corruptions and --severity, or generate the missing images: "
                "acclimate data corrupt"
            )
            raise BadInput("not_found", text, path=root / corruption / str(missing[0]))
        places[corruption] = {
            name: (root / corruption / str(s), {"corruption": corruption, "severity": s})
            for s, name in asked.names(corruption).items()
        }
    return places


def _refuse_corruptions(asked: Request, name: str, instead: str) -> None:
    if asked.corruptions is not None:
        text = f"Image files are not corrupted while they are read. Instead, {instead}."
        raise BadInput("not_applicable", text, option="corruptions")
    asked.refuse_severity(name, instead)


def _find_manifest(place: Path) -> dict[str, Any] | None:
    for folder in (place, *place.parents[:2]):
        if (folder / MANIFEST).is_file():
            return read_card(folder / MANIFEST, f"Remove {folder} and generate the copies again.")
    return None
