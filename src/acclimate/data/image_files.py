"""Labelled folders as domains whose images are read when they are asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from acclimate.data.domain_pool import spread
from acclimate.data.folders import LabelledFolder, list_corrupted
from acclimate.data.ledger import LEDGER
from acclimate.data.places import Progress
from acclimate.errors import BadInput
from acclimate.streams.images import (
    SUFFIXES,
    Pixels,
    Size,
    all_unreadable,
    find_images,
    try_read,
)
from acclimate.streams.layout import check_depth, list_folders

_N_THREADS = 4
_TOGETHER = 256


class ImageFiles:
    """Image files in the shape of an array (n, height, width, 3) of 8-bit numbers.

    Only what is indexed is read, so that a folder of any size fits.

    Args:
        paths: In order.
        size: Height and width they are brought to.
        resize: What they are resized to cover before; None for `size` itself.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, paths: Sequence[Path], size: Size, resize: Size | None = None) -> None:
        self.paths = tuple(paths)
        self.size = size
        self.resize = resize

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, indices: npt.NDArray[np.int64]) -> Pixels:
        """Read the images at these places.

        Raises:
            BadInput: One of them cannot be read any more.
        """
        chosen = [self.paths[index] for index in indices]
        with ThreadPoolExecutor(_N_THREADS) as pool:
            read = list(pool.map(lambda path: try_read(path, self.size, self.resize), chosen))
        for path, result in zip(chosen, read, strict=True):
            if isinstance(result, str):
                raise BadInput(
                    "unreadable_images",
                    f"{path} was read before but can no longer be read ({result}).",
                    paths=(path,),
                )
        return np.stack([result for result in read if not isinstance(result, str)])


def open_files(
    folder: LabelledFolder, n: int, progress: Progress | None = None
) -> tuple[ImageFiles, npt.NDArray[np.int64], str, dict[Path, str]]:
    """Return a labelled folder as images and labels, with its digest and what cannot be read.

    Every file is read once before anything is measured: a damaged one is found now, not after
    hours, and the digest names exactly the images that were measured.

    Args:
        folder: Whose classes and size are known.
        n: How many images, taken evenly from the listing.
        progress: Is told of images.

    Returns:
        The images; their labels; a SHA-256 over names and content; the reason by unreadable file.
    """
    # The first ones would all be of one class.
    paths = [folder.paths[index] for index in spread(len(folder.paths), n)]
    numbers = {name: number for number, name in enumerate(folder.classes)}
    state = hashlib.sha256()
    good: list[Path] = []
    unreadable: dict[Path, str] = {}
    stage = f"reading {folder.root.name}"
    with ThreadPoolExecutor(_N_THREADS) as pool:
        for start in range(0, len(paths), _TOGETHER):
            part = paths[start : start + _TOGETHER]
            results = pool.map(lambda path: _read(path, folder.size, folder.resize), part)
            for path, result in zip(part, results, strict=True):
                if isinstance(result, str):
                    unreadable[path] = result
                else:
                    good.append(path)
                    state.update(
                        path.relative_to(folder.root).as_posix().encode("utf-8", "replace")
                    )
                    state.update(b"\0" + result)
            if progress is not None:
                progress(stage, start + len(part), len(paths))
    if not good:
        raise all_unreadable(len(paths), paths[0], unreadable[paths[0]])
    labels = [numbers[path.relative_to(folder.root).parts[0]] for path in good]
    images = ImageFiles(good, folder.size, folder.resize)
    return images, np.array(labels), state.hexdigest(), unreadable


def find_domains(root: Path, classes: Sequence[str] | None) -> dict[str, Path]:
    """Return the folders whose sub-folders are classes: the folder itself, or those in it.

    Args:
        root: `root/<class>/<image>`, or `root/<domain>/<class>/<image>`.
        classes: Names of the classes, if they are known.

    Raises:
        BadInput: It cannot be told, as some images lie deeper than others, or as no two domains
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


def find_corrupted(root: Path) -> dict[str, list[int]]:
    """Return the severities of each corruption in `root/<corruption>/<severity>/<class>/<image>`.

    Nothing if the layout is another: classes may have numbers for names, too.

    Raises:
        BadInput: There are images beside the folders of corruptions or of severities.
    """
    found = list_corrupted(root)
    places = [root / name / str(number) for name, own in found.items() for number in own]
    if any(map(_list_loose, places)) and not (root / LEDGER).is_file():
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


def _read(path: Path, size: Size, resize: Size | None) -> bytes | str:
    """Return a digest of the file, or the reason why it cannot be used."""
    result = try_read(path, size, resize)
    return result if isinstance(result, str) else hashlib.sha256(path.read_bytes()).digest()
