"""Layouts of folders of images: class folders, domains, corruptions; refused if ambiguous."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from acclimate.data.corruptor import SEVERITIES
from acclimate.errors import BadInput
from acclimate.streams.images import SUFFIXES, find_images

_NAME_THEM = "pass the class names: --classes FILE, or classes= in Python"


def list_folders(root: Path) -> list[Path]:
    """Return the sorted sub-folders of a folder, except those whose names start with a dot."""
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")


def find_classes(root: Path, paths: Sequence[Path], classes: Sequence[str] | None) -> list[str]:
    """Return the class names in the order of their numbers.

    Args:
        root: A folder with one folder per class; an empty one counts as a class.
        paths: All images in it.
        classes: The class names, if they are known; None for the sorted folder names.

    Raises:
        BadInput: Images are outside of class folders, or in an unknown one; there is only one
            folder; or the nesting is ambiguous.
    """
    layout = f"Move each image into the folder of its class: {root}/<class>/<image>."
    loose = [path for path in paths if path.parent == root]
    if loose:
        raise BadInput(
            "wrong_layout",
            f"Expected images in class folders, found {len(loose)} directly in {root}, such as "
            f"{loose[0].name}. {layout}",
            path=root,
        )
    if classes is None:
        named = [path.name for path in list_folders(root)]
        if len(named) == 1:
            raise BadInput(
                "too_few_classes",
                f'Expected at least two class folders in {root}, found only "{named[0]}". {layout}',
                expected=2,
                found=1,
            )
        check_nesting(root, paths)
        return named
    found = sorted({path.relative_to(root).parts[0] for path in paths})
    unknown = [name for name in found if name not in classes]
    if unknown:
        raise BadInput(
            "class_mismatch",
            f"Expected the folders in {root} to be named like the {len(classes)} classes, found "
            f"{len(unknown)} of {len(found)} with other names: {', '.join(unknown[:5])}. Rename "
            "the folders, or correct the class names.",
            expected=tuple(classes),
            found=tuple(found),
        )
    return list(classes)


def check_nesting(root: Path, paths: Sequence[Path]) -> None:
    """Refuse a folder whose sub-folders may be conditions instead of classes.

    Args:
        root: A folder with one folder per class; deeper nesting is allowed.
        paths: All images in it.

    Raises:
        BadInput: Images have different depths, or class folders contain folders of the same name.
    """
    check_depth(root, paths)
    owners: dict[str, str] = {}
    for path in paths:
        second, *inner = path.relative_to(root).parts[:-1]
        name = inner[0] if inner else ""
        first = owners.setdefault(name, second)
        if not inner or first == second:
            continue
        raise BadInput(
            "ambiguous_layout",
            f'Expected class folders in {root}, found "{name}" both in {first} and in {second}, so '
            f"it is unclear which are the classes. If {first} and {second} are conditions, pass "
            f"one of them, such as {root / first}. If they are the classes, move their images "
            f"directly into them, or {_NAME_THEM}.",
            path=root,
        )


def check_depth(root: Path, paths: Sequence[Path], are_known: bool = False) -> None:
    """Refuse images at different depths, because it is then unclear which folders are classes.

    Args:
        root: The folder of all images.
        paths: The images in it.
        are_known: Whether the class names are known.

    Raises:
        BadInput: The depths differ; the message has an example of both.
    """
    levels: dict[int, list[Path]] = {}
    for path in paths:
        levels.setdefault(len(path.relative_to(root).parts), []).append(path)
    if len(levels) < 2:
        return
    many, few = sorted(levels.values(), key=len, reverse=True)[:2]
    raise BadInput(
        "ambiguous_layout",
        f"Expected all images in {root} at the same depth, found {len(many)} such as "
        f"{many[0].relative_to(root)}, and {len(few)} such as {few[0].relative_to(root)}, so it is "
        "unclear which folders are the classes. Remove files that do not belong there"
        f"{'' if are_known else f', or {_NAME_THEM}'}.",
        path=root,
    )


def find_domains(root: Path, classes: Sequence[str] | None) -> dict[str, Path]:
    """Return the folders whose sub-folders are classes: the folder itself, or those in it.

    Args:
        root: `root/<class>/<image>`, or `root/<domain>/<class>/<image>`.
        classes: Names of the classes, if they are known.

    Raises:
        BadInput: It is ambiguous: some images lie deeper than others, or no two domains
            have a class in common; or there is no image in a domain.
    """
    inside, paths = list_folders(root), sorted(find_images(root))
    whole = {root.resolve().name: root}
    if not paths or (classes is not None and any(path.name in classes for path in inside)):
        return whole
    places = [path.relative_to(root).parts for path in paths]
    deep = [parts for parts in places if len(parts) > 2]
    is_known = classes is not None and any(parts[1] in classes for parts in deep)
    if not is_known or len(deep) < len(places):
        check_depth(root, paths, are_known=classes is not None)
    if not deep:
        return whole
    found = {path.name: {parts[1] for parts in deep if parts[0] == path.name} for path in inside}
    _check_domains(root, found, is_known)
    return {path.name: path for path in inside}


def _check_domains(root: Path, found: Mapping[str, Collection[str]], is_known: bool) -> None:
    """Refuse folders that are no domains, given the classes of each."""
    empty = [name for name, own in found.items() if not own]
    if empty:
        others = ", ".join(name for name, own in list(found.items())[:5] if own)
        raise BadInput(
            "no_images",
            f"No image was found in {root / empty[0]}, but its sibling folders contain images: "
            f"{others}. Remove it, or put images into {root / empty[0]}/<class>.",
            path=root / empty[0],
        )
    several = [name for own in found.values() for name in own]
    if not is_known and len(found) > 1 and len(set(several)) == len(several):
        first, second = list(found)[:2]
        raise BadInput(
            "ambiguous_layout",
            f"Expected conditions or classes in {root}, found {first} with {min(found[first])} "
            f"and {second} with {min(found[second])}: no two folders share a subfolder name, so "
            "the class folders cannot be identified. Pass the class names: --classes FILE, or "
            "classes= in Python.",
            path=root,
        )


def find_corrupted(root: Path, are_copies: bool = False) -> dict[str, list[int]]:
    """Return the severities of each corruption in `root/<corruption>/<severity>/<class>/<image>`.

    Nothing if the layout is another: classes may have numbers for names, too.

    Args:
        root: The folder.
        are_copies: Whether it is known that they are copies made by `acclimate data corrupt`.

    Raises:
        BadInput: There are images beside the folders of corruptions or of severities.
    """
    found = list_corrupted(root)
    places = [root / name / str(number) for name, own in found.items() for number in own]
    if any(map(_list_loose, places)) and not are_copies:
        inner = (folder for place in places for folder in list_folders(place))
        if not any(map(find_images, inner)):
            return {}
    for folder in (root, *list_folders(root)) if found else ():
        if loose := _list_loose(folder):
            raise BadInput(
                "wrong_layout",
                f"Expected images as <corruption>/<severity>/<class>/<image> in {root}, found "
                f"{len(loose)} others, such as {loose[0].relative_to(root)}. Move them to another "
                "folder.",
                path=root,
            )
    return found


def list_classes(domains: Sequence[Path]) -> list[str]:
    """Return the names of the class folders of all domains, sorted."""
    return sorted({path.name for domain in domains for path in list_folders(domain)})


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
        there = [number for number in SEVERITIES if (folder / str(number)).is_dir()]
        if there:
            found[folder.name] = there
    return found
