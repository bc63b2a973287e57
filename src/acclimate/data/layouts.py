"""What lies in folders of images: classes, domains, corruptions, and masks beside the images."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from acclimate.data.corruptor import SEVERITIES
from acclimate.data.mask_files import CLASSES, IGNORE, MaskFiles, make_table
from acclimate.data.stores import FolderStore
from acclimate.errors import BadInput, did_you_mean
from acclimate.streams.folder import read_classes
from acclimate.streams.images import (
    SUFFIXES,
    Size,
    as_size,
    check_resize,
    common_size,
    find_images,
    list_images,
)

if TYPE_CHECKING:
    from acclimate.data.domains import DomainFolders

_NAME_THEM = "pass the class names: --classes FILE, or classes= in Python"
_LAYOUT = "Expected images as <domain>/<class>/<image>."


def list_folders(root: Path) -> list[Path]:
    """Return the sorted sub-folders of a folder, except those whose names start with a dot."""
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")


# Classes ----------------------------------------------------------------------------------------


def find_classes(root: Path, paths: Sequence[Path], classes: Sequence[str] | None) -> list[str]:
    """Return the class names in the order of their numbers: those given, or the sorted folders."""
    layout = f"Move each image into the folder of its class: {root}/<class>/<image>."
    if loose := [path for path in paths if path.parent == root]:
        text = (
            f"Expected images in class folders, found {len(loose)} directly in {root}, such as "
            f"{loose[0].name}. {layout}"
        )
        raise BadInput("wrong_layout", text, path=root)
    if classes is None:
        named = [path.name for path in list_folders(root)]
        if len(named) == 1:
            text = f'Expected at least two class folders in {root}, found only "{named[0]}". '
            raise BadInput("too_few_classes", text + layout, expected=2, found=1)
        check_nesting(root, paths)
        return named
    found = sorted({path.relative_to(root).parts[0] for path in paths})
    if unknown := [name for name in found if name not in classes]:
        text = (
            f"Expected the folders in {root} to be named like the {len(classes)} classes, found "
            f"{len(unknown)} of {len(found)} with other names: {', '.join(unknown[:5])}. Rename "
            "the folders, or correct the class names."
        )
        raise BadInput("class_mismatch", text, expected=tuple(classes), found=tuple(found))
    return list(classes)


def check_nesting(root: Path, paths: Sequence[Path]) -> None:
    """Refuse a folder whose sub-folders may be conditions instead of classes."""
    _check_depth(root, paths)
    owners: dict[str, str] = {}
    for path in paths:
        second, *inner = path.relative_to(root).parts[:-1]
        name = inner[0] if inner else ""
        first = owners.setdefault(name, second)
        if inner and first != second:
            text = (
                f'Expected class folders in {root}, found "{name}" both in {first} and in {second},'
                f" so it is unclear which are the classes. If {first} and {second} are conditions, "
                f"pass one of them, such as {root / first}. If they are the classes, move their "
                f"images directly into them, or {_NAME_THEM}."
            )
            raise BadInput("ambiguous_layout", text, path=root)


def _check_depth(root: Path, paths: Sequence[Path], are_known: bool = False) -> None:
    """Refuse images at different depths, because it is then unclear which folders are classes."""
    levels: dict[int, list[Path]] = {}
    for path in paths:
        levels.setdefault(len(path.relative_to(root).parts), []).append(path)
    if len(levels) > 1:
        many, few = sorted(levels.values(), key=len, reverse=True)[:2]
        text = (
            f"Expected all images in {root} at the same depth, found {len(many)} such as "
            f"{many[0].relative_to(root)}, and {len(few)} such as {few[0].relative_to(root)}, so "
            "it is unclear which folders are the classes. Remove files that do not belong there"
            f"{'' if are_known else f', or {_NAME_THEM}'}."
        )
        raise BadInput("ambiguous_layout", text, path=root)


def open_folder(
    root: str | Path,
    size: int | Size | None = None,
    classes: Sequence[str] | None = None,
    resize: int | Size | None = None,
    description: Mapping[str, Any] | None = None,
) -> FolderStore:
    """Return labelled images `root/<class>/…`, sorted by path.

    Args:
        root: A folder with one folder per class; an empty one counts as a class. Deeper nesting is
            allowed if the class folders are unambiguous, or if `classes` are given.
        size: Height and width, or one number for both; None if all images have the same size.
        classes: Class names in the order of the model's logits; the sorted folder names if None.
        resize: Size to which images are resized before a crop of `size`.
        description: What a result must record about the images.

    Raises:
        BadInput: There is no such folder, no image in it, or images have several sizes; there are
            no class folders, or an unknown one. If `classes` are not given, also if there is only
            one, if images have different depths, or if several class folders have folders of the
            same name, like those of conditions.
    """
    root = Path(root)
    paths = list_images(root)
    larger = check_resize(resize, size)
    shape = as_size(size) if size is not None else common_size(paths)
    own = tuple(find_classes(root, paths, classes))
    numbers = {name: number for number, name in enumerate(own)}
    inner = [path.relative_to(root) for path in paths]
    return FolderStore(
        paths=paths,
        names=[path.as_posix() for path in inner],
        labels=np.array([numbers[path.parts[0]] for path in inner], np.int64),
        classes=own,
        size=shape,
        resize=larger,
        description={**(description or {}), "n": len(paths)},
    )


# Conditions and corruptions ---------------------------------------------------------------------


def find_domains(root: Path, classes: Sequence[str] | None) -> dict[str, Path]:
    """Return the folders whose sub-folders are classes: the folder itself, or those in it."""
    inside, paths = list_folders(root), sorted(find_images(root))
    whole = {root.resolve().name: root}
    if not paths or (classes is not None and any(path.name in classes for path in inside)):
        return whole
    places = [path.relative_to(root).parts for path in paths]
    deep = [parts for parts in places if len(parts) > 2]
    is_known = classes is not None and any(parts[1] in classes for parts in deep)
    if not is_known or len(deep) < len(places):
        _check_depth(root, paths, are_known=classes is not None)
    if not deep:
        return whole
    found = {path.name: {parts[1] for parts in deep if parts[0] == path.name} for path in inside}
    _check_domains(root, found, is_known)
    return {path.name: path for path in inside}


def _check_domains(root: Path, found: Mapping[str, Collection[str]], is_known: bool) -> None:
    """Refuse folders that are no domains, given the classes of each."""
    if empty := [name for name, own in found.items() if not own]:
        others = ", ".join(name for name, own in list(found.items())[:5] if own)
        text = (
            f"No image was found in {root / empty[0]}, but its sibling folders contain images: "
            f"{others}. Remove it, or put images into {root / empty[0]}/<class>."
        )
        raise BadInput("no_images", text, path=root / empty[0])
    several = [name for own in found.values() for name in own]
    if not is_known and len(found) > 1 and len(set(several)) == len(several):
        first, second = list(found)[:2]
        text = (
            f"Expected conditions or classes in {root}, found {first} with {min(found[first])} "
            f"and {second} with {min(found[second])}: no two folders share a subfolder name, so "
            "the class folders cannot be identified. Pass the class names: --classes FILE, or "
            "classes= in Python."
        )
        raise BadInput("ambiguous_layout", text, path=root)


def find_corrupted(root: Path, are_copies: bool = False) -> dict[str, list[int]]:
    """Return the severities of each corruption in `root/<corruption>/<severity>/<class>/<image>`.

    Nothing if the layout is another: classes may have numbers for names, too. `are_copies` if it is
    known that they are copies made by `acclimate data corrupt`.
    """
    found = list_corrupted(root)
    places = [root / name / str(number) for name, own in found.items() for number in own]
    if any(map(_list_loose, places)) and not are_copies:
        inner = (folder for place in places for folder in list_folders(place))
        if not any(map(find_images, inner)):
            return {}
    for folder in (root, *list_folders(root)) if found else ():
        if loose := _list_loose(folder):
            text = (
                f"Expected images as <corruption>/<severity>/<class>/<image> in {root}, found "
                f"{len(loose)} others, such as {loose[0].relative_to(root)}. Move them to another "
                "folder."
            )
            raise BadInput("wrong_layout", text, path=root)
    return found


def _list_loose(folder: Path) -> list[Path]:
    """Return the images that lie in a folder itself, sorted."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in SUFFIXES and path.name[0] != "." and path.is_file()
    )


def list_corrupted(base: Path) -> dict[str, list[int]]:
    """Return the severities found of each corruption, in the published layout of ImageNet-C."""
    found = {}
    for folder in sorted(path for path in base.iterdir() if path.is_dir()):
        if there := [number for number in SEVERITIES if (folder / str(number)).is_dir()]:
            found[folder.name] = there
    return found


# Several domains, several splits ------------------------------------------------------------------


@dataclass(frozen=True)
class Listing:
    """What lies in a folder of several domains or splits, without judging it.

    Attributes:
        base: The folder.
        classes: Names in the order of the class numbers.
        parts: The images of each domain or split, with class numbers or masks. Their size is not
            known yet.
        faults: What makes a part unusable, one sentence each, with what to do; what concerns all of
            them has the empty name.
        unused: Sub-folders that are no domain of the published set.
    """

    base: Path
    classes: tuple[str, ...]
    parts: dict[str, FolderStore]
    faults: dict[str, list[str]]
    unused: tuple[str, ...] = ()

    def compare(self, name: str, kind: str, published: Mapping[str, int]) -> dict[str, str]:
        """Return a sentence for each part that has not as many images as were published."""
        found = dict.fromkeys(published, 0) | {part: len(own) for part, own in self.parts.items()}
        unit = "images" if kind == "domain" else "pairs"
        return {
            part: f'The {kind} "{part}" of {name} has {found[part]:,} {unit} here, {n:,} as '
            "published. Results are not exactly comparable with published ones."
            for part, n in published.items()
            if found[part] != n
        }


def normalize_name(name: str) -> str:
    """Return a name without case, spaces and signs, in which copies of a set differ.

    >>> normalize_name("Real World") == normalize_name("real_world") == normalize_name("RealWorld")
    True
    >>> normalize_name("北京"), normalize_name("+")
    ('北京', '+')
    """
    plain = unicodedata.normalize("NFKC", name).casefold()
    return "".join(character for character in plain if character.isalnum()) or name


def find_place(name: str, root: Path) -> Path | None:
    """Return the folder of a set under the root, whatever its case and signs; None if none."""
    if (root / name).is_dir():
        return root / name
    if not root.is_dir():
        return None
    wanted = normalize_name(name)
    named = [folder for folder in list_folders(root) if normalize_name(folder.name) == wanted]
    return min(named, default=None)


#: Files by class by domain, sorted by their names.
DomainFiles = dict[str, dict[str, list[Path]]]


def list_domains(base: Path, spec: DomainFolders) -> Listing:
    """Return what lies in a folder of domains.

    Images are in the order of `torchvision.datasets.ImageFolder`: by folder, then by name. Domains
    of a published set get its names. Classes of several domains are recognised by their names
    without case and signs; in a local folder signs may be the only difference between classes, as
    in C+ and C-, and then it is the names as they are.
    """
    published = {normalize_name(name): name for name in spec.domains}
    files: DomainFiles = {}
    loose: dict[str, list[Path]] = {}
    unused = []
    for folder in list_folders(base):
        domain = published.get(normalize_name(folder.name)) if published else folder.name
        if domain is None or domain in files:
            unused.append(folder.name)
            continue
        files[domain] = {}
        for path in sorted(find_images(folder), key=lambda path: (path.parent.parts, path.name)):
            inside = path.relative_to(folder).parts
            if len(inside) == 1:
                loose.setdefault(domain, []).append(path)
            else:
                files[domain].setdefault(inside[0], []).append(path)
    files = {domain: files[domain] for domain in sorted(files)}
    is_alike = any(len(set(map(normalize_name, own))) < len(own) for own in files.values())
    key = str if is_alike and not published else normalize_name
    named: dict[str, str] = {}
    for name in (name for own in files.values() for name in own):
        named.setdefault(key(name), name)
    classes = tuple(sorted(named.values()))
    numbers = {key(name): number for number, name in enumerate(classes)}
    parts = {}
    for domain, own in files.items():
        paths = [path for paths in own.values() for path in paths]
        labels = [numbers[key(name)] for name, paths in own.items() for _ in paths]
        parts[domain] = FolderStore(
            paths=paths,
            names=[path.relative_to(base).as_posix() for path in paths],
            labels=np.array(labels, np.int64),
            classes=classes,
            size=(1, 1),
            squash=True,
            description={"n": len(paths)},
        )
    faults = _find_domain_faults(base, files, loose, unused, spec)
    if all(files.values()) and len(files) > 1 and set(spec.domains) <= set(files):
        faults += _find_class_faults(base, files, classes, key) + _compare_classes(
            base, classes, spec
        )
    return Listing(base, classes, parts, {"": faults}, tuple(unused))


def _find_domain_faults(
    base: Path,
    files: DomainFiles,
    loose: Mapping[str, list[Path]],
    unused: Sequence[str],
    spec: DomainFolders,
) -> list[str]:
    missing = [name for name in spec.domains if name not in files]
    if missing:
        return [
            f'{base} has no folder for the domain "{name}" of {spec.name}. '
            f"{did_you_mean(name, unused)} For another data set, pass its folder: --data DIR."
            for name in missing
        ]
    if len(files) < 2:
        found = f'only "{next(iter(files))}"' if files else "none"
        return [
            f"Expected at least two domains as subfolders of {base}, found {found}: a single "
            f"domain leaves nothing to generalise to. {_LAYOUT}"
        ]
    faults = [
        f"{paths[0]} and {len(paths) - 1} more images are in a domain folder but not in a class "
        f"folder. {_LAYOUT}"
        for paths in loose.values()
    ]
    return faults + [
        f'The domain "{name}" has no image in any class. {_LAYOUT} Remove the folder '
        f"{base / name}, or add images to it."
        for name, classes in files.items()
        if not classes and name not in loose
    ]


def _find_class_faults(
    base: Path, files: DomainFiles, classes: Sequence[str], to_key: Callable[[str], str]
) -> list[str]:
    faults, known = [], {to_key(name): name for name in classes}
    if len(known) < 2:
        text = f'Expected at least two classes in {base}, found only "{classes[0]}". '
        faults.append(text + _LAYOUT)
    for domain, own in files.items():
        here = [to_key(name) for name in own]
        for key in sorted({key for key in here if here.count(key) > 1}):
            twice = [name for name in own if to_key(name) == key]
            faults.append(
                f'The domain "{domain}" contains the class "{known[key]}" more than once: '
                f"{' and '.join(twice)}. Move their images into one folder."
            )
        for key in [key for key in known if key not in here]:
            near = did_you_mean(known[key], own)
            faults.append(
                f'The domain "{domain}" has no image of the class "{known[key]}", which other '
                f"domains contain, so class indices would not match. {near} Every domain needs "
                "every class: add images, or remove the class from all domains."
            )
        faults += [
            f'The domain "{domain}" has only one image of the class "{name}" ({paths[0].name}), '
            "which cannot be used both for training and as held-out data. Add images, or remove "
            "the class from all domains."
            for name, paths in own.items()
            if len(paths) == 1
        ]
    return faults


def _compare_classes(base: Path, classes: Sequence[str], spec: DomainFolders) -> list[str]:
    if not spec.n_classes:
        return []
    if len(classes) != spec.n_classes:
        return [
            f"Expected the {spec.n_classes} classes of {spec.name} in {base}, found "
            f"{len(classes)}: {', '.join(classes[:12])}. {_LAYOUT}"
        ]
    named = {normalize_name(name) for name in spec.classes or classes}
    return [
        f'The data set {spec.name} has no class "{name}", but {base} contains a folder of '
        f"that name. {did_you_mean(name, spec.classes)}"
        for name in classes
        if normalize_name(name) not in named
    ]


# Images and masks ---------------------------------------------------------------------------------


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


def list_masks(
    base: Path,
    layout: MaskLayout,
    splits: Iterable[str] = (),
    classes: Sequence[str] | None = None,
    ignore_label: int = IGNORE,
) -> Listing:
    """Return what lies in a folder of images and masks; one split without a name if it has none.

    `splits` are those that are published; local folders may have any. Without the names of the
    classes, they are read from `classes.txt` in the folder. Images are sorted by name.
    """
    if not 0 <= ignore_label <= 255:
        text = (
            "Expected an ignore label from 0 to 255, the range of 8-bit masks, found "
            f"{ignore_label}."
        )
        raise BadInput("out_of_range", text, option="ignore_label", found=ignore_label)
    if layout.ids and ignore_label != IGNORE:
        text = (
            "The option --ignore-label (ignore_label=) applies only to local folders: the class "
            "ids of this data set are published, and ids without a class are ignored. Remove the "
            "option."
        )
        raise BadInput("not_applicable", text, option="ignore_label")
    own = tuple(_read_classes(base) if classes is None else classes)
    ids = layout.ids or {"": {place: place for place in range(len(own))} | {ignore_label: IGNORE}}
    tables = {ending: make_table(numbers) for ending, numbers in ids.items()}
    there = list(splits) if layout.ids else layout.list_splits(base, ())
    listing = Listing(base, own, {}, {})
    for split in there or ([""] if (base / "images").is_dir() else []):
        folders = [base / x.format(split=split).lstrip("/") for x in (layout.images, layout.masks)]
        faults: list[str] = []
        if layout.image_ending:
            images = _by_stem(folders[0], (layout.image_ending,))
            masks = _by_stem(folders[1], tuple(ids))
            where = folders[1].parent.name
        else:
            images, masks = (_by_name(folder, faults) for folder in folders)
            where = folders[1].name
        prefix = f"{split}/" if split else ""
        names = sorted(images.keys() & masks.keys())
        kinds = [masks[name].name[len(Path(name).name) :] for name in names]
        usual = next(iter(tables.values()))
        listing.parts[split] = FolderStore(
            paths=[images[name] for name in names],
            names=[f"{prefix}{name}" for name in names],
            labels=MaskFiles(
                [masks[name] for name in names], [tables.get(k, usual) for k in kinds], (1, 1)
            ),
            classes=own,
            size=(1, 1),
            squash=True,
        )
        listing.faults[split] = [
            *faults,
            *(
                f"{images[name]} has no mask: expected {name} in {base}, {where}. Add the mask, or "
                "remove the image."
                for name in sorted(images.keys() - masks.keys())
            ),
            *(
                f"{masks[name]} has no image of the same name. Add the image, or remove the mask."
                for name in sorted(masks.keys() - images.keys())
            ),
        ]
    return listing


def _read_classes(base: Path) -> list[str]:
    """Return the names in `classes.txt`, one on each line, in the order of the class numbers."""
    path = base / CLASSES
    if not path.is_file():
        text = (
            f"{path} is missing. It lists the class names in the order of their indices, one per "
            "line. Create it, or pass the names: --classes FILE, or classes= in Python."
        )
        raise BadInput("not_found", text, path=path)
    return read_classes(path)


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


def _by_name(folder: Path, faults: list[str]) -> dict[str, Path]:
    """Return images by their path without the ending; those that differ in nothing else: faults."""
    found: dict[str, Path] = {}
    for path in sorted(find_images(folder)) if folder.is_dir() else []:
        name = path.relative_to(folder).with_suffix("").as_posix()
        if found.setdefault(name, path) is not path:
            faults.append(
                f"{path} and {found[name].name} differ only in their file extensions, so the file "
                "to use is ambiguous. Remove one of them."
            )
    return found
