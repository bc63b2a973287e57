"""Class folders: which there are, and whether the images under them tell classes apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from acclimate.errors import BadInput

_NAME_THEM = "name the classes: --classes FILE, or classes= in Python"


def list_folders(root: Path) -> list[Path]:
    """Return the sub-folders of a folder, sorted, but those whose names start with a dot."""
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")


def find_classes(root: Path, paths: Sequence[Path], classes: Sequence[str] | None) -> list[str]:
    """Return the names of the classes in the order of their numbers.

    Args:
        root: One folder a class; an empty one names a class, too.
        paths: All images under it.
        classes: Names that are known; None takes the folders, sorted.

    Raises:
        BadInput: Images lie in no class folder, or in an unknown one; there is only one folder, or
            they are nested so that it cannot be told which are the classes.
    """
    layout = f"Put each image into a folder of its class: {root}/<class>/<image>."
    loose = [path for path in paths if path.parent == root]
    if loose:
        raise BadInput(
            "wrong_layout",
            f"expected images in class folders, found {len(loose)} directly in {root}, such as "
            f"{loose[0].name}. {layout}",
            path=root,
        )
    if classes is None:
        named = [path.name for path in list_folders(root)]
        if len(named) == 1:
            raise BadInput(
                "too_few_classes",
                f'expected at least two class folders in {root}, found only "{named[0]}". {layout}',
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
            f"{len(unknown)} of {len(found)} folders in {root} are not among the {len(classes)} "
            f"class names: {', '.join(unknown[:5])}. Folders and names must agree letter by "
            "letter.",
            expected=tuple(classes),
            found=tuple(found),
        )
    return list(classes)


def check_nesting(root: Path, paths: Sequence[Path]) -> None:
    """Refuse a folder of classes, of unknown names, that may as well be one of conditions.

    Args:
        root: One folder a class; deeper folders are a matter of their own.
        paths: All images under it.

    Raises:
        BadInput: Some images lie deeper than others, or class folders have folders of one name.
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
            f'expected class folders in {root}, found "{name}" both in {first} and in {second}: it '
            f"cannot be told which are the classes. If {first} and {second} are conditions, give "
            f"one of them, such as {root / first}; if they are the classes, put their images right "
            f"into them, or {_NAME_THEM}.",
            path=root,
        )


def check_depth(root: Path, paths: Sequence[Path], are_known: bool = False) -> None:
    """Refuse images of which some lie deeper than others: which folders are classes, then?

    Args:
        root: The folder of all.
        paths: Of the images under it.
        are_known: Whether the names of the classes are known.

    Raises:
        BadInput: With an example of both.
    """
    levels: dict[int, list[Path]] = {}
    for path in paths:
        levels.setdefault(len(path.relative_to(root).parts), []).append(path)
    if len(levels) < 2:
        return
    many, few = sorted(levels.values(), key=len, reverse=True)[:2]
    raise BadInput(
        "ambiguous_layout",
        f"expected all images in {root} equally deep in folders, found {len(many)} such as "
        f"{many[0].relative_to(root)}, and {len(few)} such as {few[0].relative_to(root)}: it "
        "cannot be told which folders are the classes. Move away what does not belong there"
        f"{'' if are_known else f', or {_NAME_THEM}'}.",
        path=root,
    )
