"""Class folders: find them, and verify that they are unambiguous."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from acclimate.errors import BadInput

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
