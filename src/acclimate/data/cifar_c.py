"""CIFAR-10-C and CIFAR-100-C: the published files, or copies made here, read memory-mapped.

Published files lie in `ROOT/cifar10c` (or `ROOT/CIFAR-10-C`, as the archive unpacks), copies made
here in `ROOT/cifar10c-generated`: the two are never mixed.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from acclimate._version import __version__
from acclimate.corruptions.frost import frost_from
from acclimate.data.archives import iter_files, list_names
from acclimate.data.arrays import (
    CARD,
    LabelledImages,
    Labels,
    Pixels,
    array_sha256,
    open_pair,
    write_card,
)
from acclimate.data.catalog import DataSet, get_set
from acclimate.data.cifar import DOWNLOADS, load_cifar, make_remedy, offline_hint
from acclimate.data.corruptor import SEVERITIES
from acclimate.data.download import fetch
from acclimate.data.generate import generate
from acclimate.data.ledger import find_origin, find_stale, read_ledger
from acclimate.data.places import Notify, Progress, hold_lock, staged_folder
from acclimate.errors import (
    AcclimateWarning,
    BadInput,
    CorruptFile,
    DownloadFailed,
    did_you_mean,
)


def get_cifar_c(
    entry: DataSet,
    root: Path,
    source: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
    notify: Notify | None = None,
) -> Path:
    """Return the folder of the published set, fetched, unpacked and checked if it was not there.

    Args:
        entry: Of the catalog.
        root: Of all data.
        source: The published archive, or a folder with its files, instead of the internet.
        force: Fetch it even if it is there.
        progress: Is told of megabytes.
        notify: Is told of each mirror that failed, and of files that are missing in `source`.

    Raises:
        DownloadFailed: No mirror gave the archive.
        CorruptFile: A file is not the published one.
    """
    target = root / entry.name
    with hold_lock(root, entry.name, notify):
        if (target / CARD).is_file() and not force:
            return target
        archive = source
        if archive is None:
            try:
                archive = fetch(entry.files[0], root / DOWNLOADS, progress, notify)
            except DownloadFailed as failure:
                make = (
                    f"Or generate it on this machine: acclimate data corrupt {entry.clean} "
                    "--severity 5"
                )
                raise DownloadFailed(
                    failure.code, f"{failure}\n  {offline_hint(entry)}\n  {make}", **failure.data
                ) from failure
        _unpack(entry, archive, target, progress, notify)
        if source is None:
            archive.unlink()
    return target


def _unpack(
    entry: DataSet, archive: Path, target: Path, progress: Progress | None, notify: Notify | None
) -> None:
    wanted = {f"{name}.npy": md5 for name, md5 in entry.md5.items()}
    there = list_names(archive) & set(wanted)
    missing = sorted(set(wanted) - there)
    if "labels.npy" in missing or len(there) < 2:
        raise BadInput(
            "wrong_archive",
            f"{archive} does not contain {entry.published}: expected labels.npy and files such as "
            "fog.npy. Pass the archive as published, or the folder it unpacks to.",
            path=archive,
        )
    if missing and notify is not None:
        notify(f"{len(missing)} of {len(wanted)} files are missing: {', '.join(missing)}.")
    with staged_folder(target) as folder:
        for number, (name, file) in enumerate(iter_files(archive, there)):
            if progress is not None:
                progress(f"unpacking {entry.published} (files)", number, len(there))
            if _copy(file, folder / name) != wanted[name]:
                raise CorruptFile(
                    "wrong_checksum",
                    f"{name} in {archive} is not the published file (its MD5 differs). "
                    "Download it again, or generate the data set with: acclimate data corrupt "
                    f"{entry.clean}",
                    path=archive / name,
                )
        write_published_card(entry, folder, there)


def write_published_card(entry: DataSet, folder: Path, names: Iterable[str]) -> None:
    """Write beside published files that each was found to be what it must be."""
    sums = {name: f"md5:{entry.md5[Path(name).stem]}" for name in sorted(names)}
    card = {"name": entry.name, "version": __version__, "source": "official", "files": sums}
    write_card(folder, card)


def _copy(file: IO[bytes], path: Path) -> str:
    """Write a copy and return its MD5."""
    state = hashlib.md5(usedforsecurity=False)
    with path.open("wb") as copy:
        while chunk := file.read(1 << 20):
            state.update(chunk)
            copy.write(chunk)
        copy.flush()
        os.fsync(copy.fileno())
    return state.hexdigest()


def published_folder(entry: DataSet, root: Path) -> Path | None:
    """Return where the published files are, or None."""
    for folder in (root / entry.name, root / entry.published):
        if (folder / "labels.npy").is_file():
            return folder
    return None


def generated_folder(entry: DataSet, root: Path) -> Path:
    """Return where copies made here are, whether or not there are any."""
    return root / f"{entry.name}-generated"


def load_cifar_c(
    entry: DataSet,
    root: Path,
    corruption: str,
    severity: int = 5,
    seed: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
) -> LabelledImages:
    """Return one corruption at one severity, its images memory-mapped.

    Where the published set is not on disk, it is made from the clean test set, and the description
    says so.

    Args:
        entry: Of the catalog.
        root: Of all data.
        corruption: Such as `fog`.
        severity: 1 to 5.
        seed: Of the random draws, where it is made here.
        workers: Processes, where it is made here; more than one need a script whose main part
            runs under `if __name__ == "__main__"`.
        progress: Is told of images that are made.

    Raises:
        BadInput: An unknown corruption or severity; neither the set nor the clean one is on disk.
        CorruptFile: A file is missing, damaged, or of another length than the labels.
    """
    known = [name for name in entry.md5 if name != "labels"]
    if corruption not in known:
        raise BadInput(
            "unknown_name",
            f'Unknown corruption "{corruption}". {did_you_mean(corruption, known)}',
            kind="corruption",
            name=corruption,
            known=tuple(known),
        )
    if severity not in SEVERITIES:
        raise BadInput(
            "out_of_range",
            f"Expected a severity from 1 to 5, found {severity}.",
            option="severity",
            found=severity,
        )
    folder = published_folder(entry, root)
    if folder is not None:
        source = "official" if (folder / CARD).is_file() else "unchecked"
        more: dict[str, Any] = {"source": source}
        remedy = make_remedy(entry, root)
    else:
        folder = generated_folder(entry, root)
        ledger = read_ledger(folder)
        with frost_from(root):
            if (
                ledger is None
                or ledger["seed"] != seed
                or not _is_made(folder, corruption, severity)
            ):
                clean = load_cifar(get_set(str(entry.clean)), root, "test")
                generate(clean, folder, [corruption], [severity], seed, workers, progress)
            elif find_stale(folder, corruption, [severity]):
                pictures = ", or from other images" if corruption == "frost" else ""
                warnings.warn(
                    AcclimateWarning(
                        "old_version",
                        f"{corruption}, severity {severity}, in {folder} was generated by a "
                        f"different version of the corruption{pictures}. Generate it again: "
                        f"acclimate data corrupt {entry.clean} --name {corruption} --severity "
                        f"{severity}",
                        path=folder / f"{corruption}.npy",
                    ),
                    stacklevel=3,
                )
            more = _describe_generated(folder, corruption, severity)
        remedy = f"Remove {folder} and generate it again: acclimate data corrupt {entry.clean}"
    images, labels = open_block(folder, corruption, severity, remedy)
    more.setdefault("sha256", array_sha256(images))
    description = {"name": entry.name, "split": "test", "n": len(images), **more}
    return LabelledImages(
        images,
        labels,
        entry.classes,
        {**description, "corruption": corruption, "severity": severity},
    )


def open_block(folder: Path, corruption: str, severity: int, remedy: str) -> tuple[Pixels, Labels]:
    """Return images, memory-mapped, and labels of one severity."""
    images, labels = open_pair(folder / f"{corruption}.npy", folder / "labels.npy", remedy)
    n, rest = divmod(len(labels), len(SEVERITIES))
    if rest:
        raise CorruptFile(
            "wrong_content",
            f"Expected five blocks of equal length in {folder}, found {len(labels)} labels. "
            f"{remedy}",
            path=folder / "labels.npy",
        )
    block = slice((severity - 1) * n, severity * n)
    return images[block], labels[block]


def _is_made(folder: Path, corruption: str, severity: int) -> bool:
    ledger = read_ledger(folder) or {"blocks": {}}
    recorded = str(severity) in ledger["blocks"].get(corruption, {})
    return recorded and (folder / f"{corruption}.npy").is_file()


def _describe_generated(folder: Path, corruption: str, severity: int) -> dict[str, Any]:
    ledger = read_ledger(folder) or {}
    block = ledger["blocks"][corruption][str(severity)]
    return {
        "source": "generated",
        "sha256": block["sha256"],
        "seed": ledger["seed"],
        "version": block["version"],
        "recipe": block["recipe"],
        "made_from": find_origin(ledger, corruption, severity),
        "clean": ledger["source"],
    }
