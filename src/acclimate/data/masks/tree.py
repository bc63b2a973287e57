"""Folders of images and masks: which belongs to which, and what may be wrong with the listing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from acclimate.data.masks.specs import IGNORE, MASK_SETS, MaskSpec
from acclimate.errors import BadInput
from acclimate.streams.images import find_images

CLASSES = "classes.txt"
_IMAGE = "_leftImg8bit.png"


@dataclass(frozen=True)
class Pair:
    """An image and the file with the class of every pixel.

    Attributes:
        name: Of the image in its set, with folders, without the ending; the same on every machine.
        image: Its file.
        mask: Of the same size.
        kind: What the mask's name ends in, a key of the ids of its set.
    """

    name: str
    image: Path
    mask: Path
    kind: str


@dataclass(frozen=True)
class MaskTree:
    """What lies in a folder of images and masks.

    Attributes:
        base: The folder.
        classes: Names of the classes.
        ids: By what mask files end in: the class number of each value.
        splits: Pairs by split, sorted by name; one split without a name if there are none.
        faults: What is wrong with the listing, one sentence each, by split.
    """

    base: Path
    classes: tuple[str, ...]
    ids: Mapping[str, Mapping[int, int]]
    splits: dict[str, list[Pair]]
    faults: dict[str, list[str]] = field(default_factory=dict)


def find_base(spec: MaskSpec, root: Path, path: str | Path | None = None) -> Path:
    """Return the folder a set lies in.

    Args:
        spec: Of the set.
        root: Of all data.
        path: Where the set is, if not under the root.

    Raises:
        BadInput: There is no such folder.
    """
    if path is None and not spec.splits:
        raise BadInput(
            "missing_option",
            f'The data set "{spec.name}" is a local folder. Pass its path.',
            option="path",
        )
    base = root / spec.name if path is None else Path(path)
    if not base.is_dir():
        placing = spec.placing.replace("{root}", str(root))
        text = f'The folder {base} of the data set "{spec.name}" does not exist. {placing}'
        if path is None:
            raise BadInput("not_fetched", text, name=spec.name)
        raise BadInput("not_found", text, path=base)
    return base


def guess_set(folder: Path) -> str | None:
    """Return the set with masks that a folder is laid out as; None if it has no masks."""
    if (folder / "leftImg8bit").is_dir():
        return "cityscapes"
    if any((folder / f"{split}annot").is_dir() for split in MASK_SETS["camvid"].splits):
        return "camvid"
    pairs = [folder, *(path.parent for path in folder.glob("*/masks"))]
    found = any((pair / "images").is_dir() and (pair / "masks").is_dir() for pair in pairs)
    return "mask-folder" if found else None


def list_splits(base: Path, spec: MaskSpec) -> list[str]:
    """Return the splits that lie in a folder, whatever is in them; none if it has no splits."""
    if spec.name == "cityscapes":
        return [split for split in spec.splits if (base / "leftImg8bit" / split).is_dir()]
    if spec.splits:
        return [split for split in spec.splits if (base / split).is_dir()]
    return [] if (base / "images").is_dir() else _find_splits(base)


def list_tree(
    base: Path,
    spec: MaskSpec,
    classes: Sequence[str] | None = None,
    ignore_label: int = IGNORE,
) -> MaskTree:
    """Return what lies in a folder of images and masks, without judging it.

    Args:
        base: The folder.
        spec: Of the set, whose layout is expected.
        classes: Names of the classes of a folder of one's own; None reads `classes.txt` in it.
        ignore_label: The value that stands for no label in the masks of a folder of one's own.

    Raises:
        BadInput: The classes of a folder of one's own are not known; or the value is none that a
            mask can hold, or is given for a set whose values are published.
    """
    if not 0 <= ignore_label <= 255:
        raise BadInput(
            "out_of_range",
            "Expected an ignore label from 0 to 255, the range of 8-bit masks, found "
            f"{ignore_label}.",
            option="ignore_label",
            found=ignore_label,
        )
    if spec.ids and ignore_label != IGNORE:
        raise BadInput(
            "not_applicable",
            "The option --ignore-label (ignore_label=) applies only to your own folders: the "
            f"class ids of {spec.name} are published, and ids without a class are ignored. Remove "
            "the option.",
            option="ignore_label",
        )
    if spec.name == "cityscapes":
        return _list_cityscapes(base, spec)
    if spec.splits:
        places = {split: (base / split, base / f"{split}annot") for split in spec.splits}
        return _pair_folders(base, spec.classes, spec.ids, places)
    names = tuple(read_classes(base) if classes is None else classes)
    ids = {"": {place: place for place in range(len(names))} | {ignore_label: IGNORE}}
    splits = [""] if (base / "images").is_dir() else _find_splits(base)
    places = {split: (base / split / "images", base / split / "masks") for split in splits}
    return _pair_folders(base, names, ids, places)


def read_classes(base: Path) -> list[str]:
    """Return the names in `classes.txt`, one a line, in the order of the class numbers.

    Raises:
        BadInput: There is no such file, or a name is there twice.
    """
    path = base / CLASSES
    if not path.is_file():
        raise BadInput(
            "not_found",
            f"{path} is missing. It lists the class names in the order of their indices, one per "
            "line. Create it, or pass the names: --classes FILE, or classes= in Python.",
            path=path,
        )
    lines = path.read_text(encoding="utf-8").splitlines()
    names = [line.strip() for line in lines if line.strip()]
    twice = [name for name in names if names.count(name) > 1]
    text = f"Expected unique class names in {path}, found {names}."
    if twice:
        raise BadInput("duplicate", text, name=twice[0])
    if not names:
        raise BadInput("malformed_file", text, path=path)
    return names


def _find_splits(base: Path) -> list[str]:
    return sorted(path.parent.name for path in base.glob("*/images") if path.is_dir())


def _list_cityscapes(base: Path, spec: MaskSpec) -> MaskTree:
    splits, faults = {}, {}
    for split in spec.splits:
        images = _by_stem(base / "leftImg8bit" / split, (_IMAGE,))
        masks = _by_stem(base / "gtFine" / split, tuple(spec.ids))
        found = {stem: (path, masks[stem]) for stem, path in images.items() if stem in masks}
        splits[split] = [
            Pair(f"{split}/{stem}", path, mask, mask.name[len(Path(stem).name) :])
            for stem, (path, mask) in sorted(found.items())
        ]
        faults[split] = _find_faults(base, images, masks, "gtFine")
    return MaskTree(base, spec.classes, spec.ids, splits, faults)


def _by_stem(folder: Path, endings: Sequence[str]) -> dict[str, Path]:
    """Return files by city and frame; of several endings, the first that is there."""
    found: dict[str, Path] = {}
    for ending in endings:
        for path in folder.glob(f"*/*{ending}"):
            stem = path.relative_to(folder).as_posix().removesuffix(ending)
            found.setdefault(stem, path)
    return found


def _pair_folders(
    base: Path,
    classes: tuple[str, ...],
    ids: Mapping[str, Mapping[int, int]],
    places: Mapping[str, tuple[Path, Path]],
) -> MaskTree:
    splits, faults = {}, {}
    kind = next(iter(ids))
    for split, (image_folder, mask_folder) in places.items():
        images, twice = _by_name(image_folder)
        masks, masks_twice = _by_name(mask_folder)
        prefix = f"{split}/" if split else ""
        splits[split] = [
            Pair(f"{prefix}{name}", path, masks[name], kind)
            for name, path in sorted(images.items())
            if name in masks
        ]
        found = _find_faults(base, images, masks, mask_folder.name)
        faults[split] = twice + masks_twice + found
    return MaskTree(base, classes, ids, splits, faults)


def _by_name(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Return images by their path without the ending, and those that differ in nothing else."""
    found: dict[str, Path] = {}
    twice = []
    for path in sorted(find_images(folder)) if folder.is_dir() else []:
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in found:
            twice.append(
                f"{path} and {found[name].name} differ only in their file extensions, so the file "
                "to use is ambiguous. Remove one of them."
            )
        found.setdefault(name, path)
    return found, twice


def _find_faults(
    base: Path, images: Mapping[str, Path], masks: Mapping[str, Path], where: str
) -> list[str]:
    if not images and not masks:
        return []
    lonely = [
        f"{images[name]} has no mask: expected {name} in {base}, {where}. Add the mask, or remove "
        "the image."
        for name in sorted(images.keys() - masks.keys())
    ]
    return lonely + [
        f"{masks[name]} has no image of the same name. Add the image, or remove the mask."
        for name in sorted(masks.keys() - images.keys())
    ]


def compare_counts(tree: MaskTree, spec: MaskSpec) -> dict[str, str]:
    """Return a sentence for each split that has not as many pairs as were published."""
    return {
        split: f"The split {split} of {spec.name} has {len(tree.splits[split]):,} pairs here, "
        f"{n:,} as published. Results are not exactly comparable with published ones."
        for split, n in spec.splits.items()
        if len(tree.splits[split]) != n
    }
