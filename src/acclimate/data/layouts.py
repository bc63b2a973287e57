"""Folders of images in classes, domains and corruptions: listing them, and what may be wrong."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from acclimate.data.corruptor import SEVERITIES
from acclimate.errors import AcclimateWarning, BadInput, did_you_mean
from acclimate.streams.images import SUFFIXES, find_images

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


# Sets of domains --------------------------------------------------------------------------------


def normalize_name(name: str) -> str:
    """Return a name without case, spaces and signs, in which copies of a set differ.

    >>> normalize_name("Real World") == normalize_name("real_world") == normalize_name("RealWorld")
    True
    >>> normalize_name("北京"), normalize_name("+")
    ('北京', '+')
    """
    plain = unicodedata.normalize("NFKC", name).casefold()
    return "".join(character for character in plain if character.isalnum()) or name


@dataclass(frozen=True)
class DomainTree:
    """What lies in a folder of domains."""

    base: Path
    domains: dict[str, dict[str, list[Path]]]  # files by class by domain, sorted by their names
    loose: dict[str, list[Path]]  # images that lie in a domain but in no class, by domain
    others: tuple[str, ...]  # sub-folders that are no domain of the published set
    is_published: bool  # rather than a local folder

    @property
    def key(self) -> Callable[[str], str]:
        """By what the classes of several domains are recognised: names without case and signs.

        In a local folder signs may be the only difference between classes, as in C+ and C-; then
        it is the names as they are.
        """
        is_alike = any(
            len({normalize_name(name) for name in classes}) < len(classes)
            for classes in self.domains.values()
        )
        return str if is_alike and not self.is_published else normalize_name

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, sorted; of names that are recognised as one, the first."""
        named: dict[str, str] = {}
        key = self.key
        for classes in self.domains.values():
            for name in classes:
                named.setdefault(key(name), name)
        return tuple(sorted(named.values()))

    @property
    def images(self) -> dict[str, list[Path]]:
        """All images by domain, class after class."""
        return {
            name: [path for paths in classes.values() for path in paths]
            for name, classes in self.domains.items()
        }

    def compare_counts(self, spec: DomainFolders) -> list[str]:
        """Return a sentence for each domain that has not as many images as were published."""
        found = {name: len(paths) for name, paths in self.images.items()}
        return [
            f'The domain "{name}" of {spec.name} has {found[name]:,} images here, {n:,} as '
            "published. Results are not exactly comparable with published ones."
            for name, n in spec.domains.items()
            if found.get(name) != n
        ]

    def warn_counts(self, spec: DomainFolders) -> None:
        """Warn, once, if domains have not as many images as were published."""
        if found := self.compare_counts(spec):
            text = "\n  ".join(found)
            warning = AcclimateWarning("set_differs", text, differences=tuple(found))
            warnings.warn(warning, stacklevel=3)


def find_place(name: str, root: Path) -> Path | None:
    """Return the folder of a set under the root, whatever its case and signs; None if none."""
    if (root / name).is_dir():
        return root / name
    if not root.is_dir():
        return None
    wanted = normalize_name(name)
    named = [folder for folder in list_folders(root) if normalize_name(folder.name) == wanted]
    return min(named, default=None)


def list_domains(base: Path, spec: DomainFolders) -> DomainTree:
    """Return what lies in a folder of domains, without judging it.

    Images are in the order of `torchvision.datasets.ImageFolder`: by folder, then by name. Domains
    of a published set get its names.
    """
    published = {normalize_name(name): name for name in spec.domains}
    domains: dict[str, dict[str, list[Path]]] = {}
    loose: dict[str, list[Path]] = {}
    others = []
    for folder in list_folders(base):
        name = published.get(normalize_name(folder.name)) if published else folder.name
        if name is None or name in domains:
            others.append(folder.name)
            continue
        classes: dict[str, list[Path]] = {}
        for path in sorted(find_images(folder), key=lambda path: (path.parent.parts, path.name)):
            inside = path.relative_to(folder).parts
            if len(inside) == 1:
                loose.setdefault(name, []).append(path)
            else:
                classes.setdefault(inside[0], []).append(path)
        domains[name] = classes
    ordered = {name: domains[name] for name in sorted(domains)}
    return DomainTree(base, ordered, loose, tuple(others), bool(published))


def find_faults(tree: DomainTree, spec: DomainFolders) -> list[str]:
    """Return what makes a folder unusable, one sentence each, with what to do."""
    missing = [name for name in spec.domains if name not in tree.domains]
    if missing:
        return [
            f'{tree.base} has no folder for the domain "{name}" of {spec.name}. '
            f"{did_you_mean(name, tree.others)} For another data set, pass its folder: --data DIR."
            for name in missing
        ]
    if len(tree.domains) < 2:
        found = f'only "{next(iter(tree.domains))}"' if tree.domains else "none"
        return [
            f"Expected at least two domains as subfolders of {tree.base}, found {found}: a single "
            f"domain leaves nothing to generalise to. {_LAYOUT}"
        ]
    faults = [
        f"{paths[0]} and {len(paths) - 1} more images are in a domain folder but not in a class "
        f"folder. {_LAYOUT}"
        for paths in tree.loose.values()
    ]
    empty = [name for name, classes in tree.domains.items() if not classes]
    faults += [
        f'The domain "{name}" has no image in any class. {_LAYOUT} Remove the folder '
        f"{tree.base / name}, or add images to it."
        for name in empty
        if name not in tree.loose
    ]
    return faults if empty else faults + _class_faults(tree) + _published_faults(tree, spec)


def _class_faults(tree: DomainTree) -> list[str]:
    to_key = tree.key
    faults, known = [], {to_key(name): name for name in tree.classes}
    if len(known) < 2:
        text = f'Expected at least two classes in {tree.base}, found only "{tree.classes[0]}". '
        faults.append(text + _LAYOUT)
    for domain, classes in tree.domains.items():
        here = [to_key(name) for name in classes]
        for key in sorted({key for key in here if here.count(key) > 1}):
            twice = [name for name in classes if to_key(name) == key]
            faults.append(
                f'The domain "{domain}" contains the class "{known[key]}" more than once: '
                f"{' and '.join(twice)}. Move their images into one folder."
            )
        for key in [key for key in known if key not in here]:
            near = did_you_mean(known[key], classes)
            faults.append(
                f'The domain "{domain}" has no image of the class "{known[key]}", which other '
                f"domains contain, so class indices would not match. {near} Every domain needs "
                "every class: add images, or remove the class from all domains."
            )
        faults += [
            f'The domain "{domain}" has only one image of the class "{name}" ({paths[0].name}), '
            "which cannot be used both for training and as held-out data. Add images, or remove "
            "the class from all domains."
            for name, paths in classes.items()
            if len(paths) == 1
        ]
    return faults


def _published_faults(tree: DomainTree, spec: DomainFolders) -> list[str]:
    if not spec.n_classes:
        return []
    if len(tree.classes) != spec.n_classes:
        return [
            f"Expected the {spec.n_classes} classes of {spec.name} in {tree.base}, found "
            f"{len(tree.classes)}: {', '.join(tree.classes[:12])}. {_LAYOUT}"
        ]
    named = {normalize_name(name) for name in spec.classes or tree.classes}
    unknown = [name for name in tree.classes if normalize_name(name) not in named]
    return [
        f'The data set {spec.name} has no class "{name}", but {tree.base} contains a folder of '
        f"that name. {did_you_mean(name, spec.classes)}"
        for name in unknown
    ]
