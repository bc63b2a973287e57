"""Data sets that are folders of image files: ImageNet, ImageNet-C, and local folders.

A local folder is `DIR/<class>/<image>`, or `DIR/<domain>/<class>/<image>`, or what `acclimate data
corrupt` made from one, `DIR/<corruption>/<severity>/<class>/<image>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acclimate.corruptions import BENCHMARK
from acclimate.data.arrays import read_card
from acclimate.data.copies import MADE_FROM, MANIFEST, FolderCounts, corrupt_folder
from acclimate.data.datasets import DataSet, Report, list_unreadable, missing_out
from acclimate.data.layouts import (
    check_nesting,
    find_corrupted,
    find_domains,
    list_classes,
    list_corrupted,
)
from acclimate.data.masks import has_masks, load_copies
from acclimate.data.places import Notify, Progress, data_root
from acclimate.data.request import Data, Request
from acclimate.data.stores import BATCH, Batches, FolderStore, open_folder, spread
from acclimate.errors import BadInput
from acclimate.streams.batch import Domain
from acclimate.streams.images import Size, list_images

#: Domains by corruption or by their own names.
Groups = Mapping[str, Sequence[tuple[str, FolderStore]]]


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
        """Return the images of a split, a sub-folder, if there is one of that name.

        Raises:
            BadInput: The folder is not there, or its sub-folders do not give the class numbers.
        """
        split = split or "val"
        base = self.base(root, path)
        place = base / split if (base / split).is_dir() else base
        return self._open(place, root, {"split": split}, size, resize, classes, n)

    def _open(
        self,
        place: Path,
        root: Path,
        about: Mapping[str, Any],
        size: int | Size | None,
        resize: int | Size | None,
        classes: Sequence[str] | None,
        n: int | None = None,
    ) -> FolderStore:
        if not place.is_dir():
            raise self._missing(place, root)
        manifest = _find_manifest(place)
        if manifest is None:
            size, resize = self.choose_sizes(size, resize)
        description = {
            "name": self.name,
            "split": "val",
            "folder": str(place),
            "source": "folder" if manifest is None else "generated",
            "size": size,
            "resize": resize,
            **about,
        }
        if manifest is not None and "corruption" in about:
            name = about["corruption"]
            made_from = manifest.get(MADE_FROM, {}).get(name, f"{name}: not recorded")
            description[MADE_FROM] = made_from
        store = open_folder(place, size, classes, resize, description)
        if self.n_classes and classes is None and len(store.classes) != self.n_classes:
            raise BadInput(
                "count_mismatch",
                f"Expected {self.n_classes} class folders in {place}, found "
                f"{len(store.classes)}: their order would not match the class indices of the data "
                f"set. Pass the {self.n_classes} names in order as classes=.",
                expected=self.n_classes,
                found=len(store.classes),
            )
        return store if n is None else store.select(spread(len(store), n))

    def _missing(self, place: Path, root: Path) -> BadInput:
        text = f'The folder {place} of the data set "{self.name}" does not exist.'
        return BadInput("not_found", f"{text} {self.place(root)}", path=place)

    def base(self, root: Path, path: str | Path | None = None) -> Path:
        """Return where the data set is or should be; the published copy comes first."""
        self.need_path(path)
        if path is not None:
            return Path(path)
        made = root / f"{self.name}-generated"
        return made if made.is_dir() and not (root / self.name).is_dir() else root / self.name

    def choose_sizes(
        self, size: int | Size | None, resize: int | Size | None
    ) -> tuple[int | Size | None, int | Size | None]:
        """Return size and resize as given, or those of the data set: both, if neither is given.

        >>> imagenet = FolderSet(name="imagenet", text="", size=224, resize=256)
        >>> imagenet.choose_sizes(None, None), imagenet.choose_sizes(64, None)
        ((224, 256), (64, None))
        """
        if size is None and resize is None:
            return self.size, self.resize
        return self.size if size is None else size, resize

    def to_data(self, asked: Request, path: Path | None = None) -> Data:
        if self.is_own:
            if path is None:
                raise BadInput(
                    "wrong_loader",
                    f'The data set "{self.name}" is a local folder. Pass the folder itself: --data '
                    "DIR.",
                    name=self.name,
                )
            return _own_data(path, asked)
        _refuse_corruptions(asked, self.name, "use --data imagenetc")
        store = self.open(None, data_root(asked.root), size=asked.size, classes=asked.classes)
        return _collect(self.name, {self.name: [(self.name, store)]}, asked)

    def to_batches(
        self,
        root: Path,
        n: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        **options: Any,
    ) -> Batches:
        """Return all images of the folder in batches, shuffled again in every pass."""
        chosen = {key: options.get(key) for key in ("size", "classes", "resize")}
        store = open_folder(self.base(root, options.get("path")), **chosen)
        normalization = options.get("normalization")
        return Batches(
            store, BATCH if batch_size is None else batch_size, seed, normalization, reshuffle=True
        )

    def check(
        self, root: Path, path: Path | None = None, progress: Progress | None = None
    ) -> Report:
        base = self.base(root, path)
        if not base.is_dir():
            raise self._missing(base, root)
        images = list_images(base)
        facts = {"folder": str(base), "images": f"{len(images):,}"} | self.describe(base, images)
        unreadable = list_unreadable(images, progress)
        facts["unreadable"] = f"{len(unreadable):,}"
        return Report(facts, [f"{path} cannot be read ({r})." for path, r in unreadable.items()])

    def describe(self, base: Path, images: Sequence[Path]) -> dict[str, str]:
        """Return facts about the layout."""
        return {"folders": f"{len({image.parent for image in images}):,}"}

    def state(self, root: Path) -> str:
        places = [root / self.name, root / f"{self.name}-generated"]
        return "folder" if any(folder.is_dir() for folder in places) else ""

    def corrupt(
        self,
        root: Path,
        names: Sequence[str],
        severities: Sequence[int],
        out: Path | None = None,
        seed: int = 0,
        workers: int = 1,
        progress: Progress | None = None,
        notify: Notify | None = None,
        path: Path | None = None,
        size: int | None = None,
        resize: int | None = None,
    ) -> FolderCounts:
        """Write corrupted copies of all image files in the layout of ImageNet-C."""
        base = self.base(root, path)
        if not base.is_dir():
            raise self._missing(base, root)
        place = base / "val" if not self.is_own and (base / "val").is_dir() else base
        if out is None and self.is_own:
            raise missing_out(str(path))
        target = out if out is not None else root / f"{self.name}c-generated"
        if not self.is_own and size is None:
            size, resize = self.size, self.resize if resize is None else resize
        return corrupt_folder(
            *(place, target, names, severities, seed, size, workers, progress, notify, resize, root)
        )


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
            raise BadInput(
                "missing_option",
                f'The data set "{self.name}" needs a corruption and a severity, such as fog and 5.',
                option="corruption" if corruption is None else "severity",
            )
        place = self.base(root, path) / corruption / str(severity)
        about = {"corruption": corruption, "severity": severity}
        return self._open(place, root, about, size, resize, classes, n)

    def to_data(self, asked: Request, path: Path | None = None) -> Data:
        root = data_root(asked.root)
        options: dict[str, Any] = {"size": asked.size, "classes": asked.classes}
        stores = {
            corruption: [
                (domain, self.open(None, root, corruption=corruption, severity=s, **options))
                for s, domain in asked.names(corruption).items()
            ]
            for corruption in asked.corruptions or BENCHMARK
        }
        return _collect(self.name, stores, asked)

    def describe(self, base: Path, images: Sequence[Path]) -> dict[str, str]:
        found = list_corrupted(base)
        return {name: "severity " + ", ".join(map(str, own)) for name, own in found.items()}


def _own_data(root: Path, asked: Request) -> Data:
    corrupted = find_corrupted(root, (root / MANIFEST).is_file())
    if corrupted:
        places = _choose_corrupted(root, corrupted, asked)
        if any(has_masks(str(place)) for members in places.values() for _, place, _ in members):
            return load_copies(root, places, asked)
    else:
        instead = f"generate corrupted copies first: acclimate data corrupt {root} --out DIR"
        _refuse_corruptions(asked, str(root), instead)
        found = find_domains(root, asked.classes)
        places = {name: [(name, place, {})] for name, place in found.items()}
    flat = [place for members in places.values() for _, place, _ in members]
    classes = asked.classes or list_classes(flat)
    origin = "generated" if (root / MANIFEST).is_file() else "folder"
    stores = {
        group: [
            (
                name,
                open_folder(
                    place,
                    asked.size,
                    classes,
                    description={"name": name, "folder": str(place), "source": origin, **about},
                ),
            )
            for name, place, about in members
        ]
        for group, members in places.items()
    }
    if asked.classes is None:
        for place, (_, store) in zip(
            flat, (o for own in stores.values() for o in own), strict=True
        ):
            check_nesting(place, store.paths)
    return _collect(root.resolve().name, stores, asked)


def _choose_corrupted(
    root: Path, found: Mapping[str, Sequence[int]], asked: Request
) -> dict[str, list[tuple[str, Path, dict[str, Any]]]]:
    """Return what is asked for of `root/<corruption>/<severity>`: name, folder, description."""
    places = {}
    for corruption in asked.corruptions or found:
        missing = [s for s in asked.severities if s not in found.get(corruption, ())]
        if missing:
            there = ", ".join(f"{name} {list(own)}" for name, own in found.items())
            raise BadInput(
                "not_found",
                f"Expected {corruption} at severity {missing[0]} in {root}, found: {there}. "
                "Select one of these with --corruptions and --severity, or generate the missing "
                "images: acclimate data corrupt",
                path=root / corruption / str(missing[0]),
            )
        places[corruption] = [
            (name, root / corruption / str(s), {"corruption": corruption, "severity": s})
            for s, name in asked.names(corruption).items()
        ]
    return places


def _collect(name: str, stores: Groups, asked: Request) -> Data:
    groups, about = {}, {}
    unreadable: dict[Path, str] = {}
    classes: tuple[str, ...] = ()
    for group, members in stores.items():
        own = []
        for domain, store in members:
            folder = Path(store.description["folder"])
            # The first ones would all be of one class.
            chosen = store.select(spread(len(store), asked.count(str(folder), len(store))))
            good, sha256 = chosen.verified(asked.progress, f"reading {folder.name}")
            own.append(Domain(domain, good, good.labels))
            about[domain] = {**good.description, "sha256": sha256, "size": list(good.size)}
            unreadable |= good.unreadable
            classes = good.classes
        groups[group] = tuple(own)
    return Data(name, groups, classes, about, is_folder=True, unreadable=unreadable)


def _refuse_corruptions(asked: Request, name: str, instead: str) -> None:
    if asked.corruptions is not None:
        raise BadInput(
            "not_applicable",
            f"Image files are not corrupted while they are read. Instead, {instead}.",
            option="corruptions",
        )
    asked.refuse_severity(name, instead)


def _find_manifest(place: Path) -> dict[str, Any] | None:
    for folder in (place, *place.parents[:2]):
        if (folder / MANIFEST).is_file():
            return read_card(folder / MANIFEST, f"Remove {folder} and generate the copies again.")
    return None
