"""The folder of a suite: what it is, and a folder for each of its jobs.

- `suite.json`: title, notes and rows, with the folder of each job.
- `jobs/<method>-<key>/`: see `acclimate.bench.run_folder`.
- `artifacts/<key>.acclimate`: what was prepared, shared by the jobs that need the same.
- `logs/`: what workers said.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from acclimate.bench.execute import has_finished, read_record
from acclimate.bench.job import JobSpec
from acclimate.bench.outcome import Entry, Outcome
from acclimate.bench.run_folder import ERROR, MEASURES, RECORDS, RunFolder, State
from acclimate.bench.suite import Suite
from acclimate.errors import AcclimateError, AcclimateWarning, BadInput, CorruptFile
from acclimate.evaluation import Result
from acclimate.metrics import unpack_sums
from acclimate.metrics.groups import merge
from acclimate.storage import write_atomically

SUITE, JOBS, ARTIFACTS, LOGS = "suite.json", "jobs", "artifacts", "logs"


@dataclass(frozen=True)
class Status:
    """What is known of a job while others may work on it.

    Attributes:
        entry: The job, and what it is called.
        state: As the files say.
        done: Batches on record.
        total: Batches of the job; None if it has not begun.
        error: What ended the last try: type, message, remedy, when, traceback.
        folder: Relative to that of the suite.
    """

    entry: Entry
    state: State
    done: int
    total: int | None
    error: Mapping[str, Any] | None
    folder: str


class Store:
    """A suite on disk.

    Args:
        root: Its folder.
        suite: The suite, if it is known; else it is read from the folder.

    Attributes:
        suite: What was asked for, or what was asked for last.
    """

    def __init__(self, root: str | Path, suite: Suite | None = None) -> None:
        self.root = Path(root)
        path = self.root / SUITE
        if suite is not None:
            self.suite = suite
            self._names = [name_folder(entry.spec) for entry in suite.entries]
            return
        if not path.is_file():
            raise BadInput(
                "not_found",
                f"{root} is not the folder of a suite: it has no {SUITE}. Create one: acclimate "
                f"bench run SUITE.toml --out {root}",
                path=path,
            )
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            self.suite = Suite.from_dict(content)
            self._names = [str(item["folder"]) for item in content["entries"]]
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, BadInput):
                raise
            raise CorruptFile(
                "altered_file",
                f"{path} was modified or damaged ({error}). Run the suite again to write it "
                "again; finished jobs are kept.",
                path=path,
            ) from error

    @classmethod
    def create(cls, root: str | Path, suite: Suite) -> Self:
        """Make the folder of a suite, or take one that is there, with the jobs it has.

        Jobs that are there and not in the suite stay, but are not reported on.
        """
        place = Path(root)
        try:
            (place / JOBS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                "not_writable",
                f"Cannot create {place} ({error.strerror}). Pass another folder with --out.",
                path=place,
            ) from error
        store = cls(place, suite)
        content = suite.to_dict()
        for item, name in zip(content["entries"], store._names, strict=True):
            item["folder"] = name
        write_atomically(place / SUITE, (json.dumps(content, indent=1) + "\n").encode())
        return store

    @property
    def artifacts(self) -> Path:
        """Where prepared artifacts are kept unless another place is given."""
        return self.root / ARTIFACTS

    def jobs(self) -> dict[str, Entry]:
        """Return the jobs by the name of their folder; of rows that share one, the first."""
        found: dict[str, Entry] = {}
        for name, entry in zip(self._names, self.suite.entries, strict=True):
            found.setdefault(name, entry)
        return found

    def is_done(self, name: str) -> bool:
        """Return whether a job is done, and has kept what it is asked to keep."""
        return has_finished(self.jobs()[name].spec, self.folder(name))

    def folder(self, name: str) -> RunFolder:
        """Return the folder of that name, as `jobs` gives it."""
        return RunFolder(self.root / name)

    def outcome(self, name: str) -> Outcome:
        """Return what came out of a finished job.

        Raises:
            BadInput: It has not finished.
            CorruptFile: Its files were altered.
        """
        return read_outcome(self.folder(name), self.jobs()[name], name)

    def outcomes(self) -> list[Outcome]:
        """Return what came out of the jobs that are done, in the order of the suite.

        Jobs whose files were altered are left out with a warning.
        """
        found = []
        for name, entry in zip(self._names, self.suite.entries, strict=True):
            folder = self.folder(name)
            if not folder.is_done:
                continue
            try:
                found.append(read_outcome(folder, entry, name))
            except CorruptFile as error:
                message = f'The job "{entry.label}" is left out: {error}'
                warning = AcclimateWarning("job_left_out", message, name=entry.label)
                warnings.warn(warning, stacklevel=2)
        return found

    def statuses(self) -> list[Status]:
        """Return what is known of every job, in the order of the suite."""
        found = []
        for name, entry in self.jobs().items():
            folder = self.folder(name)
            state = folder.state
            done, total = folder.progress
            error = folder.read(ERROR) if state == "failed" else None
            if state == "done":
                try:
                    folder.read_result()
                except CorruptFile as damage:
                    state, error = "failed", {"type": "CorruptFile", "message": str(damage)}
            found.append(Status(entry, state, done, total, error, name))
        return found


def name_folder(spec: JobSpec) -> str:
    """Return the folder of a job, relative to that of its suite."""
    return f"{JOBS}/{spec.method}-{spec.key}"


def read_outcome(folder: RunFolder, entry: Entry, name: str) -> Outcome:
    """Return what came out of a finished job.

    Args:
        folder: Of the job.
        entry: The job with its label.
        name: Of the folder, relative to that of the suite.

    Raises:
        CorruptFile: The files do not belong together.
    """
    written, path = folder.read_result(), folder.path / RECORDS
    records = []
    for number, line in enumerate(folder.read_lines(RECORDS)[0], start=1):
        try:
            records.append(read_record(line))
        except (AcclimateError, TypeError, ValueError) as error:
            text = folder.altered(RECORDS, f"line {number}: {error}")
            raise CorruptFile("wrong_content", text, path=path) from error
    if len(records) != (expected := written["n_batches"]):
        text = folder.altered(RECORDS, f"expected {expected} lines, found {len(records)}")
        raise CorruptFile("wrong_length", text, path=path, found=len(records), expected=expected)
    sums = [unpack_sums(line["measures"]) for line in folder.read_lines(MEASURES)[0]]
    merged = merge(pair for own in sums for pair in own.items())
    return Outcome(entry, Result(tuple(records), merged), written["provenance"], name)
