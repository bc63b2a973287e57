"""Data sets with a class for every pixel: Cityscapes, CamVid, and local folders.

camvid = load("camvid", "val")
x, y = next(camvid.batches([range(4)]))                # uint8 (4, 3, 180, 240), (4, 180, 240)
foggy = load("camvid", "test", corruption="fog", severity=5).to_domain()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from acclimate.data.archives import is_plain
from acclimate.data.arrays import CARD
from acclimate.data.copies import FolderCounts, check_outside, claim, copy_files
from acclimate.data.corruptor import MADE_FROM, CopyRequest, Shift, corrupt_image, write_png
from acclimate.data.datasets import SETS, DataSet, Report, missing_out, unpack
from acclimate.data.layouts import OWN_LAYOUT, Listing, MaskLayout, list_masks
from acclimate.data.mask_files import (
    CLASSES,
    IGNORE,
    Colour,
    find_size,
    find_sizes,
    make_palette,
    refuse,
)
from acclimate.data.places import Feedback, Progress, data_root, silent
from acclimate.data.request import Request, Selection, SourceRequest, take
from acclimate.data.stores import Batches, FolderStore, ImageStore, list_content
from acclimate.errors import AcclimateWarning, BadInput, check_name, warn
from acclimate.storage import write_atomically
from acclimate.streams.images import SUFFIXES, Size, as_size, read_image, show_size

#: What is measured on: the first of these splits that is there, or the only one.
MEASURED = ("test", "val")
#: What is prepared from.
PREPARED = ("train",)


@dataclass(frozen=True, kw_only=True)
class MaskSet(DataSet):
    """Image files, and mask files with a class for every pixel.

    Attributes:
        layout: Where they are.
        splits: Number of pairs by split, of those whose labels are published.
        palette: The colour of each class in pictures.
    """

    layout: MaskLayout = OWN_LAYOUT
    splits: Mapping[str, int] = field(default_factory=dict)
    palette: tuple[Colour, ...] = ()

    is_files = has_masks = can_prepare = True

    def open(
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
    ) -> ImageStore:
        """Return a split; its files are read when they are needed."""
        shift = None if corruption is None else Shift(corruption, severity, seed, root)
        asked = Selection(size=size, n=n, classes=classes, ignore_label=ignore_label)
        clean = self.open_clean(split, root, path, asked)
        return clean if shift is None else clean.corrupted(shift)

    def open_clean(
        self, split: str | None, root: Path, path: str | Path | None, asked: Selection
    ) -> ImageStore:
        """Return a split without corruption."""
        return self.open_files(split, root, path, asked)

    def open_files(
        self, split: str | None, root: Path, path: str | Path | None, asked: Selection
    ) -> FolderStore:
        """Return the files of a split."""
        listing = self._list(root, path, asked)
        chosen = self._choose(listing, split)
        refuse(listing.faults[chosen])
        whole = listing.parts[chosen]
        if text := listing.compare(self.name, "split", self.splits).get(chosen):
            differences = {chosen: (self.splits[chosen], len(whole))}
            warn(AcclimateWarning("set_differs", text, differences=differences))
        if not len(whole):
            text = f"No image with a mask was found in {listing.base}, split {chosen!r}."
            raise BadInput("no_images", text, path=listing.base)
        images = take(whole, chosen or listing.base.name, asked.n)
        shape = _common_size(images, None if asked.size is None else as_size(asked.size))
        about: dict[str, Any] = {"name": self.name if self.splits else listing.base.name}
        about |= {"split": chosen, "source": "folder", "listing_sha256": list_content(images)}
        about |= {"size": list(shape), "n": len(images)}
        about |= {} if asked.ignore_label == IGNORE else {"ignore_label": asked.ignore_label}
        palette = self.palette or make_palette(len(images.classes))
        return replace(images.sized(shape), description=about, palette=palette)

    def _list(self, root: Path, path: str | Path | None, asked: Selection) -> Listing:
        base, own = self.base(root, path), self.classes or asked.classes
        return list_masks(base, self.layout, self.splits, own, asked.ignore_label)

    def find_split(
        self, wanted: Sequence[str], root: Path, path: str | Path | None = None
    ) -> str | None:
        """Return the first split that is there of those wanted; None if there is none of them."""
        there = self.layout.list_splits(self.base(root, path), self.splits)
        return next((split for split in wanted if split in there), None)

    def _choose(self, listing: Listing, split: str | None) -> str:
        base, parts = listing.base, listing.parts
        if split is None and len(parts) == 1:
            split = next(iter(parts))
        if not parts:
            text = (
                f"Expected a folder {base / 'images'}, or a folder images in each split of "
                f"{base}, found neither. Arrange images and masks as images/ and masks/, with "
                "the same file names."
            )
            raise BadInput("wrong_layout", text, path=base)
        if split is None:
            first = base / next(iter(parts))
            instead = (
                f", or pass one of them as the folder, such as {first}, with its own {CLASSES}"
            )
            text = (
                f"{base} has several splits, {', '.join(parts)}, and none was selected. "
                "Splits named test or val are used for evaluation, train for preparation: rename "
                f"them accordingly{'' if self.splits else instead}. In Python, pass split=; with "
                "acclimate data corrupt, pass --split."
            )
            raise BadInput("missing_option", text, option="split")
        check_name(split, parts, "split")
        return split

    # Measure, prepare ------------------------------------------------------------------------

    def open_measured(self, asked: Request, path: Path | None = None) -> ImageStore:
        root = data_root(asked.root)
        return self.open_clean(self.find_split(MEASURED, root, path), root, path, asked)

    def corrupted(
        self, clean: ImageStore, root: Path, corruption: str, severity: int
    ) -> ImageStore:
        return clean.corrupted(Shift(corruption, severity, 0, root))

    def find_source(self, asked: Request, path: Path | None = None) -> str | None:
        is_there = self.find_split(PREPARED, data_root(asked.root), path) is not None
        return str(path or self.name) if is_there else None

    def to_batches(self, asked: SourceRequest, path: Path | None = None) -> Batches:
        """Return the split `train` in batches, or the only one, with a warning if it is another."""
        root = data_root(asked.root)
        images = self.open_clean(self.find_split(PREPARED, root, path), root, path, asked)
        split = images.description["split"]
        if split and split not in PREPARED:
            text = (
                f"{path or self.name} has no split {PREPARED[0]}, so the artifact is prepared from "
                f"{split}, the only split. Do not evaluate on the same images; use the images that "
                "the model was trained on."
            )
            warn(AcclimateWarning("prepared_on_test", text, split=split))
        return asked.batches(images)

    # Fetch, check ----------------------------------------------------------------------------

    def find(self, root: Path) -> Path | None:
        folder = root / self.name
        return folder if folder.is_dir() else None

    def install(self, folder: Path, place: Path, feedback: Feedback) -> dict[str, Any]:
        tops = self.layout.tops(self.splits)

        def find_targets(path: PurePosixPath) -> list[str]:
            # From a known folder on, if it lies as deep in it as it should.
            parts = path.parts
            is_image = path.suffix.lower() in SUFFIXES and "__MACOSX" not in parts
            for index, part in enumerate(parts if is_image else ()):
                inside = parts[index + 1 :]
                if len(inside) == tops.get(part, 0) and inside and all(map(is_plain, inside)):
                    return ["/".join(parts[index:])]
            return []

        if not unpack(place, folder, find_targets, 2 * sum(self.splits.values()), feedback):
            text = (
                f"{place} contains no file of {self.name}: expected files such as "
                f"{next(iter(tops))}/…, at any depth. {self.placing}"
            )
            raise BadInput("wrong_archive", text, path=place)
        listing = list_masks(folder, self.layout, self.splits, self.classes)
        faults = [fault for found in listing.faults.values() for fault in found]
        faults += listing.compare(self.name, "split", self.splits).values()
        if faults:
            text = (
                f'{place} is not the complete data set "{self.name}": '
                + "\n  ".join(faults[:5])
                + "\nNo file was installed. Pass the published files, or arrange your files by "
                f"hand: {self.placing}"
            )
            raise BadInput("faulty_data", text, faults=tuple(faults))
        pairs = {split: len(store) for split, store in listing.parts.items()}
        return {"licence": self.licence, "pairs": pairs}

    def state(self, root: Path) -> str:
        return super().state(root) or ("folder" if self.find(root) else "")

    def check(
        self,
        root: Path,
        path: Path | None = None,
        progress: Progress = silent,
        ignore_label: int = IGNORE,
    ) -> Report:
        listing = self._list(root, path, Selection(ignore_label=ignore_label))
        named = f"{len(listing.classes)}: {', '.join(listing.classes)}"
        facts = {"folder": str(listing.base), "classes": named}
        problems = [*listing.compare(self.name, "split", self.splits).values()]
        for split, store in listing.parts.items():
            problems += listing.faults[split]
            by_size: dict[Size, list[int]] = {}
            for key, size in enumerate(map(find_size, store.paths, store.masks)):
                if isinstance(size, str):
                    problems.append(size)
                else:
                    by_size.setdefault(size, []).append(key)
            shapes = ", ".join(map(show_size, sorted(by_size)[:3]))
            facts[split or "pairs"] = f"{len(store):,} pairs, {shapes}"
            for shape in sorted(by_size):
                problems += store.select(by_size[shape]).sized(shape).find_faults(progress)[0]
        if not any(map(len, listing.parts.values())) and not problems:
            problems.append(f"no image with a mask was found in {listing.base}. {self.placing}")
        return Report(facts, problems)

    # Corrupt ---------------------------------------------------------------------------------

    def corrupt(
        self,
        root: Path,
        asked: CopyRequest,
        out: Path | None = None,
        path: Path | None = None,
        split: str | None = None,
        ignore_label: int = IGNORE,
        **more: Any,
    ) -> FolderCounts:
        """Write corrupted copies of a split to `out/<corruption>/<severity>`, in the same layout.

        Images keep their sizes and are corrupted as `open(..., corruption=...)` does; masks are
        copied. All files are checked first.
        """
        if self.is_generated:
            text = f'The data set "{self.name}" is generated when it is loaded. Corrupt it there: '
            call = f'load("{self.name}", corruption=...).'
            raise BadInput("wrong_loader", text + call, name=self.name)
        if out is None:
            raise missing_out(self.name)
        split, base = split or self.find_split(("val",), root, path), self.base(root, path)
        data = self.open_files(split, root, path, Selection(size=1, ignore_label=ignore_label))
        check_outside(out, base)
        sizes = find_sizes(zip(data.paths, data.masks, strict=True))
        # As large as the largest, so that no pixel is passed over.
        largest = max(height for height, _ in sizes), max(width for _, width in sizes)
        data.sized(largest).verify(asked.feedback.progress)

        def prepare(folder: Path, shift: Shift) -> list[tuple[Any, ...]]:
            about = {"seed": asked.seed, "source": "generated"}
            about |= {"of": data.description["listing_sha256"], "split": data.description["split"]}
            claim(folder / CARD, {**about, MADE_FROM: shift.describe()[MADE_FROM]})
            for file in [base / CLASSES, *data.masks]:
                target = folder / file.relative_to(base)
                if file.is_file() and not target.is_file():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    write_atomically(target, file.read_bytes(), sync=False)
            targets = [(folder / p.relative_to(base)).with_suffix(".png") for p in data.paths]
            jobs = zip(data.paths, targets, data.names, [shift] * len(sizes), sizes, strict=True)
            return list(jobs)

        return copy_files(write_copy, prepare, out, asked)


def write_copy(path: Path, target: Path, name: str, shift: Shift, size: Size) -> None:
    """Write a corrupted copy of an image in its own size."""
    write_png(target, corrupt_image(read_image(path, size, squash=True), name, shift))


def _common_size(store: FolderStore, size: Size | None) -> Size:
    sizes = find_sizes(zip(store.paths, store.masks, strict=True))
    for path, found in zip(store.paths, sizes, strict=True):
        if size is None and found != sizes[0]:
            text = (
                f"Expected images of one size, found {show_size(sizes[0])} and {path} of "
                f"{show_size(found)}. Pass the size to resize them to: --size, or size= in Python."
            )
            raise BadInput("mixed_sizes", text, sizes=tuple(sorted(set(sizes))))
    return sizes[0] if size is None else size


def guess_set(folder: Path) -> str | None:
    """Return the set with masks that a folder is laid out as; None if it has no masks."""
    if (folder / "leftImg8bit").is_dir():
        return "cityscapes"
    camvid = SETS["camvid"]
    splits = camvid.splits if isinstance(camvid, MaskSet) else ()
    if any((folder / f"{split}annot").is_dir() for split in splits):
        return "camvid"
    pairs = [folder, *(path.parent for path in folder.glob("*/masks"))]
    found = any((pair / "images").is_dir() and (pair / "masks").is_dir() for pair in pairs)
    return "mask-folder" if found else None


def has_masks(name: str) -> bool:
    """Return whether the data of a name, or a folder, has a class for every pixel."""
    if name in SETS:
        return SETS[name].has_masks
    return Path(name).is_dir() and guess_set(Path(name)) is not None
