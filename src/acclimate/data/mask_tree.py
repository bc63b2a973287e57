"""Folders of images and masks: which belongs to which, and what may be wrong with the listing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from acclimate.data.mask_files import IGNORE
from acclimate.errors import BadInput
from acclimate.streams.images import find_images

CLASSES = "classes.txt"


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


@dataclass(frozen=True)
class MaskLayout:
    """Where images and masks are; `{split}` stands for the name of a split.

    Attributes:
        images: Folder of the images.
        masks: Folder of the masks.
        image_ending: What names of images end in, if the masks' differ; the rest is the same.
        ids: By what names of masks end in: the class number of each value. Empty for local folders.
        depth: Number of folders between these and the files in published archives.
    """

    images: str
    masks: str
    image_ending: str = ""
    ids: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    depth: int = 0

    def list_splits(self, base: Path, splits: Iterable[str]) -> list[str]:
        """Return the splits that lie in a folder, whatever is in them; none if it has no splits."""
        if self.ids:
            return [s for s in splits if (base / self.images.format(split=s)).is_dir()]
        return [] if (base / "images").is_dir() else _find_splits(base)

    def tops(self, splits: Iterable[str]) -> dict[str, int]:
        """Return the folders of published archives, and how many names deep their files lie."""
        folders = [each.format(split=s) for s in splits for each in (self.images, self.masks)]
        return {Path(each).parts[0]: len(Path(each).parts) + self.depth for each in folders}


#: The layout of local folders.
OWN_LAYOUT = MaskLayout("{split}/images", "{split}/masks")


def list_tree(
    base: Path,
    layout: MaskLayout,
    splits: Iterable[str] = (),
    classes: Sequence[str] | None = None,
    ignore_label: int = IGNORE,
) -> MaskTree:
    """Return what lies in a folder of images and masks, without judging it.

    Args:
        base: The folder.
        layout: The layout that is expected.
        splits: Those that are published; local folders may have any.
        classes: Names of the classes; None reads `classes.txt` in the folder.
        ignore_label: The value that stands for no label in the masks of a local folder.

    Raises:
        BadInput: The classes of a local folder are not known; or the value is none that a mask can
            have, or is given for a set whose values are published.
    """
    if not 0 <= ignore_label <= 255:
        raise BadInput(
            "out_of_range",
            "Expected an ignore label from 0 to 255, the range of 8-bit masks, found "
            f"{ignore_label}.",
            option="ignore_label",
            found=ignore_label,
        )
    if layout.ids and ignore_label != IGNORE:
        raise BadInput(
            "not_applicable",
            "The option --ignore-label (ignore_label=) applies only to local folders: the class "
            "ids of this data set are published, and ids without a class are ignored. Remove the "
            "option.",
            option="ignore_label",
        )
    names = tuple(read_classes(base) if classes is None else classes)
    ids = layout.ids or {"": {place: place for place in range(len(names))} | {ignore_label: IGNORE}}
    own = list(splits) if layout.ids else [""] if (base / "images").is_dir() else _find_splits(base)
    tree = MaskTree(base, names, ids, {}, {})
    for split in own:
        images, masks = (
            base / each.format(split=split).lstrip("/") for each in (layout.images, layout.masks)
        )
        if layout.image_ending:
            found = _by_stem(images, (layout.image_ending,)), _by_stem(masks, tuple(ids))
            faults = []
        else:
            (by_image, twice), (by_mask, masks_twice) = _by_name(images), _by_name(masks)
            found, faults = (by_image, by_mask), twice + masks_twice
        prefix = f"{split}/" if split else ""
        tree.splits[split] = [
            Pair(f"{prefix}{name}", path, found[1][name], _ending(found[1][name], name, layout))
            for name, path in sorted(found[0].items())
            if name in found[1]
        ]
        where = masks.name if not layout.image_ending else masks.parent.name
        tree.faults[split] = faults + _find_faults(base, *found, where)
    return tree


def _ending(mask: Path, name: str, layout: MaskLayout) -> str:
    """Return the key of the ids of a mask."""
    return mask.name[len(Path(name).name) :] if layout.image_ending else next(iter(layout.ids), "")


def read_classes(base: Path) -> list[str]:
    """Return the names in `classes.txt`, one on each line, in the order of the class numbers.

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


def _by_stem(folder: Path, endings: Sequence[str]) -> dict[str, Path]:
    """Return files by city and frame; of several endings, the first that is there."""
    found: dict[str, Path] = {}
    for ending in endings:
        for path in folder.glob(f"*/*{ending}"):
            stem = path.relative_to(folder).as_posix().removesuffix(ending)
            found.setdefault(stem, path)
    return found


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


def compare_counts(name: str, tree: MaskTree, counts: Mapping[str, int]) -> dict[str, str]:
    """Return a sentence for each split that has not as many pairs as were published."""
    return {
        split: f"The split {split} of {name} has {len(tree.splits[split]):,} pairs here, "
        f"{n:,} as published. Results are not exactly comparable with published ones."
        for split, n in counts.items()
        if len(tree.splits[split]) != n
    }
