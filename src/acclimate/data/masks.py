"""Data sets with a class for every pixel: Cityscapes, CamVid, and local folders.

camvid = load("camvid", "val")
x, y = next(camvid.batches([range(4)]))                # uint8 (4, 3, 180, 240), (4, 180, 240)
foggy = load("camvid", "test", corruption="fog", severity=5).to_domain()
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from acclimate.data.archives import is_plain, iter_paths, read_member
from acclimate.data.arrays import CARD, labelled_sha256
from acclimate.data.copies import FolderCounts, check_outside, claim, copy_files
from acclimate.data.corruptor import Shift, check_request, corrupt_image, write_png
from acclimate.data.datasets import (
    SETS,
    DataSet,
    Report,
    find_set,
    missing_out,
    too_many,
    unknown_split,
)
from acclimate.data.mask_files import (
    IGNORE,
    Colour,
    MaskFiles,
    find_size,
    make_palette,
    make_table,
    refuse,
)
from acclimate.data.mask_tree import (
    CLASSES,
    OWN_LAYOUT,
    MaskLayout,
    MaskTree,
    Pair,
    compare_counts,
    list_tree,
)
from acclimate.data.places import Notify, Progress, data_root
from acclimate.data.request import Data, Request
from acclimate.data.stores import MASK_BATCH, Batches, FolderStore, ImageStore, list_content, spread
from acclimate.errors import AcclimateWarning, BadInput
from acclimate.storage import write_atomically
from acclimate.streams.batch import Domain
from acclimate.streams.images import SUFFIXES, Size, as_size, read_image, show_size

#: What is measured on: the first of these splits that is there, or the only one.
MEASURED = ("test", "val")
#: What is prepared from.
PREPARED = ("train",)

_LARGEST = 1 << 26  # bytes of a file in an archive
_STEP = 100  # files between two reports
# More bytes of images and masks than this are read when they are asked for.
_MOST_IN_MEMORY = 2**30


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

    # Open ------------------------------------------------------------------------------------

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
    ) -> FolderStore:
        """Return a split; its files are read when they are needed.

        Raises:
            BadInput: There is no such folder, split or corruption; an image has no mask, or a mask
                no image; sizes differ; headers cannot be read.
        """
        if corruption is not None:
            check_request([corruption], [severity])
        shift = None if corruption is None else Shift(corruption, severity, seed, root)
        tree = self.tree(root, path, classes, ignore_label)
        chosen = self._choose(tree, split)
        refuse(tree.faults[chosen])
        differing = compare_counts(self.name, tree, self.splits)
        if chosen in differing:
            counts = (self.splits[chosen], len(tree.splits[chosen]))
            warnings.warn(
                AcclimateWarning("set_differs", differing[chosen], differences={chosen: counts}),
                stacklevel=3,
            )
        pairs = tree.splits[chosen]
        if n is not None and not 1 <= n <= len(pairs):
            raise too_many(chosen or tree.base.name, len(pairs), n)
        kept = [pairs[index] for index in spread(len(pairs), n)]
        if not kept:
            raise BadInput(
                "no_images",
                f"No image with a mask was found in {tree.base}, split {chosen!r}.",
                path=tree.base,
            )
        shape = _common_size(kept, None if size is None else as_size(size))
        images = self._store(tree, kept, shape, shift)
        about = {
            "name": self.name if self.splits else tree.base.name,
            "split": chosen,
            "source": "folder",
            "listing_sha256": list_content(images),
            "size": list(shape),
            "n": len(kept),
            **({} if shift is None else shift.describe()),
            **({} if ignore_label == IGNORE else {"ignore_label": ignore_label}),
        }
        return replace(images, description=about)

    def _store(
        self, tree: MaskTree, pairs: Sequence[Pair], size: Size, shift: Shift | None = None
    ) -> FolderStore:
        tables = {kind: make_table(ids) for kind, ids in tree.ids.items()}
        masks = MaskFiles([p.mask for p in pairs], [tables[p.kind] for p in pairs], size)
        return FolderStore(
            paths=[pair.image for pair in pairs],
            names=[pair.name for pair in pairs],
            labels=masks,
            classes=tree.classes,
            size=size,
            squash=True,
            shift=shift,
            palette=self.palette or make_palette(len(tree.classes)),
        )

    def base(self, root: Path, path: str | Path | None = None) -> Path:
        """Return the folder of the data set.

        Raises:
            BadInput: There is none.
        """
        self.need_path(path)
        base = root / self.name if path is None else Path(path)
        if not base.is_dir():
            text = (
                f'The folder {base} of the data set "{self.name}" does not exist. '
                f"{self.place(root)}"
            )
            if path is None:
                raise BadInput("not_fetched", text, name=self.name)
            raise BadInput("not_found", text, path=base)
        return base

    def tree(
        self,
        root: Path,
        path: str | Path | None = None,
        classes: Sequence[str] | None = None,
        ignore_label: int = IGNORE,
    ) -> MaskTree:
        """Return what lies in the folder of the data set; see `list_tree`."""
        own = self.classes or classes
        return list_tree(self.base(root, path), self.layout, self.splits, own, ignore_label)

    def find_split(
        self, wanted: Sequence[str], root: Path, path: str | Path | None = None
    ) -> str | None:
        """Return the first split that is there of those wanted; None if there is none of them."""
        there = self.layout.list_splits(self.base(root, path), self.splits)
        return next((split for split in wanted if split in there), None)

    def _choose(self, tree: MaskTree, split: str | None) -> str:
        if split is None and len(tree.splits) == 1:
            split = next(iter(tree.splits))
        if not tree.splits:
            raise BadInput(
                "wrong_layout",
                f"Expected a folder {tree.base / 'images'}, or a folder images in each split of "
                f"{tree.base}, found neither. Arrange images and masks as images/ and masks/, with "
                "the same file names.",
                path=tree.base,
            )
        if split is None:
            first = tree.base / next(iter(tree.splits))
            instead = (
                f", or pass one of them as the folder, such as {first}, with its own {CLASSES}"
            )
            raise BadInput(
                "missing_option",
                f"{tree.base} has several splits, {', '.join(tree.splits)}, and none was selected. "
                "Splits named test or val are used for evaluation, train for preparation: rename "
                f"them accordingly{'' if self.splits else instead}. In Python, pass split=; with "
                "acclimate data corrupt, pass --split.",
                option="split",
            )
        if split not in tree.splits:
            raise unknown_split(self.name, split, tuple(tree.splits))
        return split

    # Measure, prepare ------------------------------------------------------------------------

    def to_data(self, asked: Request, path: Path | None = None) -> Data:
        title = self.name if path is None else path.resolve().name
        root, options = data_root(asked.root), self._options(asked, path)
        clean = self.open(root=root, **options)
        chosen: dict[str, dict[int, str]] = {title: {0: title}}
        if asked.corruptions is None:
            asked.refuse_severity(title, "pass --corruptions as well")
        else:
            chosen = {corruption: asked.names(corruption) for corruption in asked.corruptions}
        together = Gathered(clean, sum(map(len, chosen.values())), asked)
        for corruption, names in chosen.items():
            for severity, domain in names.items():
                images = clean
                if severity:
                    own = {**options, "corruption": corruption, "severity": severity}
                    images = self.open(root=root, **own)
                together.add(corruption, domain, images)
        can_prepare = self.find_split(PREPARED, root, path) is not None
        source = str(path or self.name) if can_prepare else None
        return together.result(title, source, lambda: clean.to_domain("clean"))

    def _options(self, asked: Request, path: Path | None) -> dict[str, Any]:
        return {
            "split": self.find_split(MEASURED, data_root(asked.root), path),
            "path": path,
            "size": asked.size,
            "n": asked.n,
            "classes": asked.classes,
            "ignore_label": asked.ignore_label,
        }

    def to_batches(
        self,
        root: Path,
        n: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        **options: Any,
    ) -> Batches:
        """Return the split `train` in batches, or the only one, with a warning if it is another."""
        normalization = options.pop("normalization", None)
        path = options.get("path")
        images = self.open(self.find_split(PREPARED, root, path), root, n=n, **options)
        split = images.description["split"]
        if split and split not in PREPARED:
            warning = AcclimateWarning(
                "prepared_on_test",
                f"{path or self.name} has no split {PREPARED[0]}, so the artifact is prepared from "
                f"{split}, the only split. Do not evaluate on the same images; use the images that "
                "the model was trained on.",
                split=split,
            )
            warnings.warn(warning, stacklevel=3)
        return Batches(
            images, MASK_BATCH if batch_size is None else batch_size, seed, normalization
        )

    # Fetch, check ----------------------------------------------------------------------------

    def find(self, root: Path) -> Path | None:
        folder = root / self.name
        return folder if folder.is_dir() else None

    def install(
        self, folder: Path, place: Path, progress: Progress | None, notify: Notify | None
    ) -> dict[str, Any]:
        tops = self.layout.tops(self.splits)
        n = 0
        for path, file in iter_paths(place):
            target = _find_target(path, tops)
            if target is None:
                continue
            n += 1
            if progress is not None and n % _STEP == 0:
                progress("unpacking files", n, 2 * sum(self.splits.values()))
            write_member(folder / target, read_member(file, _LARGEST, place), place, folder)
        if n == 0:
            raise BadInput(
                "wrong_archive",
                f"{place} contains no file of {self.name}: expected files such as "
                f"{next(iter(tops))}/…, at any depth. {self.placing}",
                path=place,
            )
        tree = list_tree(folder, self.layout, self.splits, self.classes)
        faults = [fault for found in tree.faults.values() for fault in found]
        faults += compare_counts(self.name, tree, self.splits).values()
        if faults:
            raise BadInput(
                "faulty_data",
                f'{place} is not the complete data set "{self.name}": '
                + "\n  ".join(faults[:5])
                + "\nNo file was installed. Pass the published files, or arrange your files by "
                f"hand: {self.placing}",
                faults=tuple(faults),
            )
        pairs = {split: len(own) for split, own in tree.splits.items()}
        return {"licence": self.licence, "pairs": pairs}

    def state(self, root: Path) -> str:
        return super().state(root) or ("folder" if self.find(root) else "")

    def check(
        self,
        root: Path,
        path: Path | None = None,
        progress: Progress | None = None,
        ignore_label: int = IGNORE,
    ) -> Report:
        tree = self.tree(root, path, ignore_label=ignore_label)
        named = f"{len(tree.classes)}: {', '.join(tree.classes)}"
        facts = {"folder": str(tree.base), "classes": named}
        problems = [*compare_counts(self.name, tree, self.splits).values()]
        for split, pairs in tree.splits.items():
            problems += tree.faults[split]
            sizes = {pair: find_size(pair.image, pair.mask) for pair in pairs}
            problems += [size for size in sizes.values() if isinstance(size, str)]
            shapes = {size for size in sizes.values() if not isinstance(size, str)}
            facts[split or "pairs"] = f"{len(pairs):,} pairs, " + ", ".join(
                map(show_size, sorted(shapes)[:3])
            )
            for shape in sorted(shapes):
                own = [pair for pair, size in sizes.items() if size == shape]
                problems += self._store(tree, own, shape).find_faults(progress)[0]
        if not any(tree.splits.values()) and not problems:
            problems.append(f"no image with a mask was found in {tree.base}. {self.placing}")
        return Report(facts, problems)

    # Corrupt ---------------------------------------------------------------------------------

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
        split: str | None = None,
        ignore_label: int = IGNORE,
    ) -> FolderCounts:
        """Write corrupted copies of a split to `out/<corruption>/<severity>`, in the same layout.

        Images keep their sizes and are corrupted as `open(..., corruption=...)` does; masks are
        copied. All files are checked first.
        """
        check_request(names, severities)
        if out is None:
            raise missing_out(self.name)
        split = split or self.find_split(("val",), root, path)
        data = self.open(split, root, path=path, size=1, ignore_label=ignore_label)
        base = self.base(root, path)
        check_outside(out, base)
        masks = data.labels
        if not isinstance(masks, MaskFiles):
            raise BadInput("wrong_loader", f"{self.name} has no masks.", name=self.name)
        found = [find_size(*pair) for pair in zip(data.paths, masks.paths, strict=True)]
        refuse([size for size in found if isinstance(size, str)])
        sizes = [size for size in found if not isinstance(size, str)]
        largest = max(size[0] for size in sizes), max(size[1] for size in sizes)
        # As large as the largest, so that no pixel is passed over.
        replace(data, size=largest, labels=masks.resized(largest)).verify(progress)

        def prepare(folder: Path, shift: Shift) -> list[tuple[Any, ...]]:
            about = {
                "seed": seed,
                "source": "generated",
                "of": data.description["listing_sha256"],
                "split": data.description["split"],
                "made_from": shift.describe()["made_from"],
            }
            claim(folder / CARD, about)
            for file in [base / CLASSES, *masks.paths]:
                target = folder / file.relative_to(base)
                if file.is_file() and not target.is_file():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    write_atomically(target, file.read_bytes(), sync=False)
            targets = [(folder / p.relative_to(base)).with_suffix(".png") for p in data.paths]
            jobs = zip(data.paths, targets, data.names, [shift] * len(sizes), sizes, strict=True)
            return list(jobs)

        return copy_files(
            write_copy, prepare, root, out, names, severities, seed, workers, progress, notify
        )


def write_copy(path: Path, target: Path, name: str, shift: Shift, size: Size) -> str | None:
    """Write a corrupted copy of an image in its own size."""
    write_png(target, corrupt_image(read_image(path, size, squash=True), name, shift))
    return None


def write_member(path: Path, content: bytes, source: Path, folder: Path) -> None:
    """Write a file of an archive, which must not have it twice."""
    if path.exists():
        name = path.relative_to(folder).as_posix()
        raise BadInput(
            "duplicate",
            f"{name} occurs more than once: {source} contains several copies of the data set. "
            "Pass one of them.",
            name=name,
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _find_target(path: PurePosixPath, tops: Mapping[str, int]) -> Path | None:
    """Return where a file goes: from a known folder on, if it lies as deep in it as it should."""
    parts = path.parts
    if path.suffix.lower() not in SUFFIXES or "__MACOSX" in parts:
        return None
    for index, part in enumerate(parts):
        inside = parts[index + 1 :]
        if part in tops and len(inside) == tops[part] and all(map(is_plain, inside)):
            return Path(part, *inside)
    return None


def _common_size(pairs: Sequence[Pair], size: Size | None) -> Size:
    sizes = [find_size(pair.image, pair.mask) for pair in pairs]
    refuse([found for found in sizes if isinstance(found, str)])
    if size is not None:
        return size
    good = [found for found in sizes if not isinstance(found, str)]
    for pair, found in zip(pairs, good, strict=True):
        if found != good[0]:
            raise BadInput(
                "mixed_sizes",
                f"Expected images of one size, found {show_size(good[0])} and {pair.image} of "
                f"{show_size(found)}. Pass the size to resize them to: --size, or size= in Python.",
                sizes=tuple(sorted(set(good))),
            )
    return good[0]


class Gathered:
    """Domains with masks as they are added: in memory if all together are small.

    Args:
        images: Those of one domain.
        n_domains: How many are to be added.
        asked: What is asked for.
    """

    def __init__(self, images: ImageStore, n_domains: int, asked: Request) -> None:
        self._images, self._progress, self._total = images, asked.progress, n_domains
        self._groups: dict[str, tuple[Domain, ...]] = {}
        self._about: dict[str, dict[str, Any]] = {}
        self._verified: Sequence[Path] = ()
        self._n_unlabelled = 0
        height, width = images.labels.shape[1:]
        n_bytes = len(images) * height * width * n_domains * (3 + 8)
        self._in_memory = not isinstance(images, FolderStore) or n_bytes <= _MOST_IN_MEMORY

    def add(
        self, group: str, name: str, images: ImageStore, about: Mapping[str, Any] | None = None
    ) -> None:
        """Add a domain."""
        if self._progress is not None:
            self._progress(f"reading {name}", len(self._about), self._total)
        domain = images.to_domain(name, self._in_memory)
        if self._in_memory:
            labels = np.asarray(domain.y)
            sha256 = labelled_sha256(np.asarray(domain.x), labels)
            self._n_unlabelled = int((labels == IGNORE).all(axis=(1, 2)).sum())
        else:
            paths = images.paths if isinstance(images, FolderStore) else ()
            if paths != self._verified:  # the same files may be corrupted in several ways
                self._n_unlabelled = images.verify(self._progress, needs_labels=False)
                self._verified = paths
            sha256 = images.digest()
        if self._n_unlabelled:
            about = {**(about or {}), "n_unlabelled": self._n_unlabelled}
        made = {"source": "generated"} if "corruption" in images.description else {}
        self._about[name] = {**images.description, **made, "sha256": sha256, **(about or {})}
        self._groups[group] = (*self._groups.get(group, ()), domain)

    def result(self, name: str, source: str | None, clean: Any) -> Data:
        """Return all of them."""
        counts = [about.get("n_unlabelled", 0) for about in self._about.values()]
        if any(counts):
            warning = AcclimateWarning(
                "unlabelled_images",
                f"{max(counts)} of {len(self._images)} images of {name} have no labelled pixel. "
                "They are predicted and used for adaptation, but do not count in any result.",
                n=max(counts),
            )
            warnings.warn(warning, stacklevel=5)
        return Data(
            name,
            self._groups,
            self._images.classes,
            self._about,
            is_folder=True,
            source=source,
            clean=clean,
            palette=self._images.palette,
        )


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
    stores: dict[str, FolderStore] = {}
    for _, domain, place, _ in flat:
        entry, path = find_set(str(place))
        if isinstance(entry, MaskSet):
            options = entry._options(asked, path)
            stores[domain] = entry.open(root=data_root(asked.root), **options)
    together = Gathered(next(iter(stores.values())), len(flat), asked)
    for corruption, domain, _, about in flat:
        together.add(corruption, domain, stores[domain], {**about, "source": "generated"})
    return together.result(root.resolve().name, None, None)


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
    """Return whether the data of a name has a class for every pixel.

    Args:
        name: A key of `SETS`, or a folder.
    """
    if name in SETS:
        return SETS[name].has_masks
    return Path(name).is_dir() and guess_set(Path(name)) is not None
