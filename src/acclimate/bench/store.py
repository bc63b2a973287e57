"""The folder of a suite: what it is, and a folder for each of its jobs.

- `suite.json`: title, notes and rows of the suite that was run last, with the folder of each job.
- `suites/`: the same of each suite that was run in the folder.
- `jobs/<method>-<key>/`: see `acclimate.bench.run_folder`.
- `artifacts/<key>.acclimate`: what was prepared, shared by the jobs that need the same.
- `logs/`: what workers printed.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from acclimate.bench.execute import has_finished, read_record
from acclimate.bench.job import JobSpec
from acclimate.bench.outcome import Entry, Outcome
from acclimate.bench.run_folder import ERROR, RECORDS, SUMS, RunFolder, State
from acclimate.bench.suite import Suite
from acclimate.errors import (
    AcclimateError,
    AcclimateWarning,
    BadInput,
    CorruptFile,
    check_name,
)
from acclimate.evaluation import Result
from acclimate.metrics import unpack_sums
from acclimate.metrics.result import merge
from acclimate.storage import make_folder, write_atomically

SUITE, SUITES, JOBS = "suite.json", "suites", "jobs"
ARTIFACTS, LOGS = "artifacts", "logs"


@dataclass(frozen=True)
class Status:
    """What is known of a job while others may work on it.

    Attributes:
        entry: The job, and what it is called.
        state: According to the files.
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
    """Suites in a folder, which share the jobs that they have in common.

    Args:
        root: The folder.
        suite: The suite, or its title; None for the one that was run last.
    """

    def __init__(self, root: str | Path, suite: Suite | str | None = None) -> None:
        self.root = Path(root)
        if isinstance(suite, Suite):
            self.suite = suite
            self._names = [name_folder(entry.spec) for entry in suite.entries]
            return
        path = self.root / SUITE
        if not path.is_file():
            raise BadInput(
                "not_found",
                f"{root} is not the folder of a suite: it has no {SUITE}. Create one: acclimate "
                f"bench run SUITE.toml --out {root}",
                path=path,
            )
        if suite is not None:
            known = self.list_suites()
            check_name(suite, known, "suite")
            path = self.root / _name_list(suite)
        content = _read_list(path)
        try:
            self.suite = Suite.from_dict(content)
            self._names = [str(item["folder"]) for item in content["entries"]]
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, BadInput):
                raise
            raise CorruptFile("altered_file", _altered(path, error), path=path) from error

    @classmethod
    def create(cls, root: str | Path, suite: Suite) -> Self:
        """Add a suite to a folder, or replace one of the same title; jobs and other suites stay."""
        place = Path(root)
        for name in ("", JOBS, SUITES):
            make_folder(place / name)
        store = cls(place, suite)
        content = suite.to_dict()
        for item, name in zip(content["entries"], store._names, strict=True):
            item["folder"] = name
        text = (json.dumps(content, indent=1) + "\n").encode()
        write_atomically(place / _name_list(suite.title), text)
        write_atomically(place / SUITE, text)
        return store

    def remove_list(self) -> None:
        """Forget the suite; its jobs stay."""
        (self.root / _name_list(self.suite.title)).unlink(missing_ok=True)

    def list_suites(self) -> list[str]:
        """Return the titles of all suites in the folder."""
        paths = sorted((self.root / SUITES).glob("*.json"))
        return [str(_read_list(path).get("title")) for path in paths]

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
        """Return what came out of a finished job."""
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


def _name_list(title: str) -> str:
    """Return the file with the list of a suite, relative to the folder."""
    plain = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40]
    return f"{SUITES}/{plain}-{hashlib.sha256(title.encode()).hexdigest()[:8]}.json"


def _read_list(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorruptFile("altered_file", _altered(path, error), path=path) from error
    return content


def _altered(path: Path, error: Exception) -> str:
    return (
        f"{path} was modified or damaged ({error}). Run the suite again to write it again; "
        "finished jobs are kept."
    )


def name_folder(spec: JobSpec) -> str:
    """Return the folder of a job, relative to that of its suite."""
    return f"{JOBS}/{spec.method}-{spec.key}"


def read_outcome(folder: RunFolder, entry: Entry, name: str) -> Outcome:
    """Return what came out of a finished job."""
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
    sums = [unpack_sums(line["measures"]) for line in folder.read_lines(SUMS)[0]]
    merged = merge(pair for own in sums for pair in own.items())
    return Outcome(entry, Result(tuple(records), merged), written["provenance"], name)
