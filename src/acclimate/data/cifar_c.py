"""CIFAR-10-C and CIFAR-100-C: the published files, or copies generated here, memory-mapped.

Published files lie in `ROOT/cifar10c` (or `ROOT/CIFAR-10-C`, as the archive unpacks), generated
copies in `ROOT/cifar10c-generated`: the two are never mixed.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from acclimate._version import __version__
from acclimate.corruptions import BENCHMARK
from acclimate.corruptions.frost import PROCEDURAL, frost_from
from acclimate.data.archives import guard_reading, iter_files, list_names
from acclimate.data.arrays import CARD, Labels, Pixels, array_sha256, open_pair, write_card
from acclimate.data.corruptor import SEVERITIES, check_request
from acclimate.data.datasets import DataSet, Report, get_set, unknown_split
from acclimate.data.generate import (
    find_origin,
    find_stale,
    generate,
    has_procedural_frost,
    read_manifest,
)
from acclimate.data.places import Notify, Progress, data_root
from acclimate.data.request import Data, Request
from acclimate.data.stores import ArrayStore
from acclimate.errors import AcclimateWarning, BadInput, CorruptFile, DownloadFailed
from acclimate.storage import file_digest, guard_writing
from acclimate.streams.batch import Domain


@dataclass(frozen=True, kw_only=True)
class CorruptedArraySet(DataSet):
    """The test split of another data set under corruptions, each of five severities.

    Attributes:
        clean: Name of the data set it was made from.
        published: Name of the folder in the published archive.
        md5: The checksum of each published file, by corruption.
    """

    clean: str = ""
    published: str = ""
    md5: Mapping[str, str] = field(default_factory=dict)

    def open(
        self,
        split: str | None,
        root: Path,
        *,
        corruption: str | None = None,
        severity: int = 5,
        seed: int = 0,
        workers: int = 1,
        progress: Progress | None = None,
    ) -> ArrayStore:
        """Return one corruption at one severity, its images memory-mapped.

        Where the published data set is not on disk, it is generated from the clean test split, and
        the description records it.

        Raises:
            BadInput: An unknown corruption or severity; neither the data set nor the clean one is
                on disk.
            CorruptFile: A file is missing, damaged, or of another length than the labels.
        """
        if split not in (None, "test"):
            raise unknown_split(self.name, str(split), ("test",))
        if corruption is None:
            raise BadInput(
                "missing_option",
                f'The data set "{self.name}" needs a corruption, such as load("{self.name}", '
                'corruption="fog").',
                option="corruption",
            )
        check_request([corruption], [severity])
        folder = self.find_published(root)
        more: dict[str, Any]
        if folder is not None:
            more = {"source": "official" if (folder / CARD).is_file() else "unchecked"}
            remedy = self.remedy(root)
        else:
            folder = self.generated(root)
            with frost_from(root):
                more = self._generate(folder, root, corruption, severity, seed, workers, progress)
            remedy = f"Remove {folder} and generate it again: acclimate data corrupt {self.clean}"
        images, labels = open_block(folder, corruption, severity, remedy)
        more.setdefault("sha256", array_sha256(images))
        description = {"name": self.name, "split": "test", "n": len(images), **more}
        description |= {"corruption": corruption, "severity": severity}
        return ArrayStore(images, labels, self.classes, description)

    def _generate(
        self,
        folder: Path,
        root: Path,
        corruption: str,
        severity: int,
        seed: int,
        workers: int,
        progress: Progress | None,
    ) -> dict[str, Any]:
        """Generate a block unless it is there; return what a result must record about it."""
        manifest = read_manifest(folder)
        is_made = (
            manifest is not None
            and manifest["seed"] == seed
            and str(severity) in manifest["blocks"].get(corruption, {})
            and (folder / f"{corruption}.npy").is_file()
        )
        if not is_made:
            clean = get_set(self.clean).open("test", root)
            generate(clean, folder, [corruption], [severity], seed, workers, progress)
        elif find_stale(folder, corruption, [severity]):
            pictures = ", or from other images" if corruption == "frost" else ""
            warnings.warn(
                AcclimateWarning(
                    "old_version",
                    f"{corruption}, severity {severity}, in {folder} was generated by a different "
                    f"version of the corruption{pictures}. Generate it again: acclimate data "
                    f"corrupt {self.clean} --name {corruption} --severity {severity}",
                    path=folder / f"{corruption}.npy",
                ),
                stacklevel=4,
            )
        manifest = read_manifest(folder) or {}
        block = manifest["blocks"][corruption][str(severity)]
        return {
            "source": "generated",
            "sha256": block["sha256"],
            "seed": manifest["seed"],
            "version": block["version"],
            "recipe": block["recipe"],
            "made_from": find_origin(manifest, corruption, severity),
            "clean": manifest["source"],
        }

    def to_data(self, asked: Request, path: Path | None = None) -> Data:
        root = data_root(asked.root)
        groups, about = {}, {}
        for corruption in asked.corruptions or BENCHMARK:
            own: list[Domain] = []
            for severity, domain in asked.names(corruption).items():
                whole = self.open(
                    None, root, corruption=corruption, severity=severity, progress=asked.progress
                )
                images = whole.first(asked.count(domain, len(whole)))
                own.append(images.to_domain(domain))
                about[domain] = images.description
            groups[corruption] = tuple(own)

        def clean() -> Domain:
            return get_set(self.clean).open(None, root).first(asked.n).to_domain("clean")

        return Data(self.name, groups, self.classes, about, source=self.clean, clean=clean)

    # Fetch -----------------------------------------------------------------------------------

    @contextmanager
    def obtain(
        self, root: Path, source: Path | None, progress: Progress | None, notify: Notify | None
    ) -> Iterator[tuple[Path, dict[str, Any]]]:
        try:
            with super().obtain(root, source, progress, notify) as (place, _):
                yield place, {"source": "official"}
        except DownloadFailed as failure:
            make = f"acclimate data corrupt {self.clean} --severity 5"
            text = f"Or generate it on this machine: {make}"
            raise self.offline(failure, text) from failure

    def install(
        self, folder: Path, place: Path, progress: Progress | None, notify: Notify | None
    ) -> dict[str, Any]:
        wanted = {f"{name}.npy": md5 for name, md5 in self.md5.items()}
        there = list_names(place) & set(wanted)
        missing = sorted(set(wanted) - there)
        if "labels.npy" in missing or len(there) < 2:
            raise BadInput(
                "wrong_archive",
                f"{place} does not contain {self.published}: expected labels.npy and files such as "
                "fog.npy. Pass the archive as published, or the folder it unpacks to.",
                path=place,
            )
        if missing and notify is not None:
            notify(f"{len(missing)} of {len(wanted)} files are missing: {', '.join(missing)}.")
        for number, (name, file) in enumerate(iter_files(place, there)):
            if progress is not None:
                progress(f"unpacking {self.published} (files)", number, len(there))
            if _copy(file, folder / name, place) != wanted[name]:
                raise CorruptFile(
                    "wrong_checksum",
                    f"{name} in {place} is not the published file (its MD5 differs). Download it "
                    f"again, or generate the data set with: acclimate data corrupt {self.clean}",
                    path=place / name,
                )
        return self._card(there)

    def _card(self, names: Iterable[str]) -> dict[str, Any]:
        sums = {name: f"md5:{self.md5[Path(name).stem]}" for name in sorted(names)}
        return {"source": "official", "files": sums}

    def find_published(self, root: Path) -> Path | None:
        """Return where the published files are, or None."""
        for folder in (root / self.name, root / self.published):
            if (folder / "labels.npy").is_file():
                return folder
        return None

    def generated(self, root: Path) -> Path:
        """Return where generated copies are, whether or not there are any."""
        return root / f"{self.name}-generated"

    # Check -----------------------------------------------------------------------------------

    def check(
        self, root: Path, path: Path | None = None, progress: Progress | None = None
    ) -> Report:
        """Check every byte; published files that were put in place by hand then get their card."""
        folder = self.find_published(root)
        if folder is None:
            with frost_from(root):
                return self._check_generated(self.generated(root), progress)
        remedy = self.remedy(root)
        present = [name for name in self.md5 if (folder / f"{name}.npy").is_file()]
        problems = [f"{name}.npy is missing. {remedy}" for name in self.md5 if name not in present]
        for number, name in enumerate(present):
            if progress is not None:
                progress(f"reading {self.name} (files)", number, len(present))
            file = folder / f"{name}.npy"
            try:
                if name != "labels":
                    open_block(folder, name, 1, remedy)
            except CorruptFile as error:
                problems.append(str(error))
                continue
            if file_digest(file, "md5") != self.md5[name]:
                problems.append(f"{file} is not the published file: its MD5 differs. {remedy}")
        facts = {"source": "published", "corruptions": f"{len(present) - 1} of {len(self.md5) - 1}"}
        if not problems and not (folder / CARD).is_file():
            card = self._card(f"{name}.npy" for name in present)
            write_card(folder, {"name": self.name, "version": __version__, **card})
        return Report(facts, problems)

    def _check_generated(self, folder: Path, progress: Progress | None) -> Report:
        manifest = read_manifest(folder)
        if manifest is None:
            raise BadInput(
                "not_fetched",
                f'The data set "{self.name}" has not been downloaded to {folder.parent}. Run: '
                f"{self.get(folder.parent)}, or generate it: acclimate data corrupt {self.clean}",
                name=self.name,
            )
        remedy = f"Remove the file and generate it again: acclimate data corrupt {self.clean}"
        facts, problems = {"source": "generated", "seed": str(manifest["seed"])}, []
        for number, (name, blocks) in enumerate(manifest["blocks"].items()):
            if progress is not None:
                progress(f"reading {self.name} (files)", number, len(manifest["blocks"]))
            facts[name] = "severity " + ", ".join(sorted(blocks))
            if name == "frost" and blocks:
                origins = {find_origin(manifest, name, int(severity)) for severity in blocks}
                facts[name] += f" ({'; '.join(sorted(origins))})"
            for severity, block in blocks.items():
                try:
                    images, _ = open_block(folder, name, int(severity), remedy)
                except CorruptFile as error:
                    problems.append(str(error))
                    break
                if array_sha256(images) != block["sha256"]:
                    file = folder / f"{name}.npy"
                    problems.append(f"{file}, severity {severity}: its SHA-256 differs. {remedy}")
        return Report(facts, problems)

    def state(self, root: Path) -> str:
        folder = self.find_published(root)
        if folder is not None:
            n = sum((folder / f"{name}.npy").is_file() for name in self.md5) - 1
            return f"{'official' if (folder / CARD).is_file() else 'unchecked'}, {n} corruptions"
        manifest = read_manifest(self.generated(root))
        if manifest is None:
            return ""
        n_blocks = sum(len(blocks) for blocks in manifest["blocks"].values())
        frost = f", {PROCEDURAL}" if has_procedural_frost(manifest) else ""
        return f"generated, {len(manifest['blocks'])} corruptions, {n_blocks} blocks{frost}"


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


def _copy(file: IO[bytes], path: Path, source: Path) -> str:
    """Write a copy and return its MD5."""
    state = hashlib.md5(usedforsecurity=False)
    with guard_writing(path), path.open("wb") as copy:
        while True:
            with guard_reading(source):
                chunk = file.read(1 << 20)
            if not chunk:
                break
            state.update(chunk)
            copy.write(chunk)
        copy.flush()
        os.fsync(copy.fileno())
    return state.hexdigest()
