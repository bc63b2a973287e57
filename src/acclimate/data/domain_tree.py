"""Folders in the layout `root/<domain>/<class>/<image>`: listing them, and what may be wrong."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from acclimate.data.layouts import list_folders
from acclimate.errors import AcclimateWarning, did_you_mean
from acclimate.streams.images import find_images

_LAYOUT = "Expected images as <domain>/<class>/<image>."


class Published(Protocol):
    """What is published of a set of domains: names, numbers of images by domain, classes."""

    @property
    def name(self) -> str: ...

    @property
    def domains(self) -> Mapping[str, int]: ...

    @property
    def n_classes(self) -> int: ...

    @property
    def classes(self) -> tuple[str, ...]: ...


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
    """What lies in a folder of domains.

    Attributes:
        base: The folder whose sub-folders are the domains.
        domains: Image files by class by domain. Domains have their published names and are sorted
            by them; classes have the names of their folders.
        loose: Images that lie in a domain but in no class, by domain.
        others: Sub-folders that are no domain of the published set.
        is_published: Whether it is a published set, rather than a local folder.
    """

    base: Path
    domains: dict[str, dict[str, list[Path]]]
    loose: dict[str, list[Path]]
    others: tuple[str, ...] = ()
    is_published: bool = False

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

    def counts(self) -> dict[str, int]:
        """Return the number of images by domain."""
        return {
            name: sum(len(paths) for paths in classes.values())
            for name, classes in self.domains.items()
        }


def find_place(name: str, root: Path) -> Path | None:
    """Return the folder of a set under the root, whatever its case and signs; None if none."""
    if (root / name).is_dir():
        return root / name
    if not root.is_dir():
        return None
    wanted = normalize_name(name)
    named = [folder for folder in list_folders(root) if normalize_name(folder.name) == wanted]
    return min(named, default=None)


def list_tree(base: Path, spec: Published | None = None) -> DomainTree:
    """Return what lies in a folder of domains, without judging it.

    Images are in the order of `torchvision.datasets.ImageFolder`: by folder, then by name.

    Args:
        base: The folder whose sub-folders are the domains.
        spec: Of a published set, whose names the domains get.
    """
    published = {} if spec is None else {normalize_name(name): name for name in spec.domains}
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


def find_faults(tree: DomainTree, spec: Published | None = None) -> list[str]:
    """Return what makes a folder unusable, one sentence each, with what to do."""
    missing = [] if spec is None else [name for name in spec.domains if name not in tree.domains]
    if missing:
        return [
            f'{tree.base} has no folder for the domain "{name}" of '
            f"{spec.name if spec else ''}. {did_you_mean(name, tree.others)} For another data "
            "set, pass its folder: --data DIR."
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
    if empty:
        return faults
    return faults + _class_faults(tree) + _published_faults(tree, spec)


def _class_faults(tree: DomainTree) -> list[str]:
    to_key = tree.key
    faults, known = [], {to_key(name): name for name in tree.classes}
    if len(known) < 2:
        faults.append(
            f'Expected at least two classes in {tree.base}, found only "{tree.classes[0]}". '
            f"{_LAYOUT}"
        )
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


def _published_faults(tree: DomainTree, spec: Published | None) -> list[str]:
    if spec is None or not spec.n_classes:
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


def compare_counts(counts: Mapping[str, int], spec: Published) -> list[str]:
    """Return a sentence for each domain that has not as many images as were published."""
    return [
        f'The domain "{name}" of {spec.name} has {counts[name]:,} images here, {n:,} as '
        "published. Results are not exactly comparable with published ones."
        for name, n in spec.domains.items()
        if counts.get(name) != n
    ]


def warn_counts(counts: Mapping[str, int], spec: Published) -> None:
    """Say so, once, if domains have not as many images as were published."""
    differences = compare_counts(counts, spec)
    if differences:
        warnings.warn(
            AcclimateWarning(
                "set_differs", "\n  ".join(differences), differences=tuple(differences)
            ),
            stacklevel=3,
        )
