"""The folder of one job: what was asked for, what has happened so far, what came out.

- `spec.json`: the job, for people.
- `begun.json`: all that a job which goes on must find unchanged, written when it begins.
- `records.jsonl`: one line a batch, appended before the next one is begun.
- `measures.jsonl`: one line a finished unit: sums over its samples, and where its records end.
- `checkpoint.json`, `<number>.state`: a place within a unit, and what the method had learned there.
- `result.json`: the summary and where it comes from, written last: where it is, the job is done.
- `error.json`: why the last attempt failed; with `code` and `data` if the error is one of ours.
- `lock`: held by whoever works on the job; the operating system lets go of it if that one dies.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from filelock import FileLock, Timeout

from acclimate.bench.outcome import Entry, Outcome
from acclimate.bench.spec import JobSpec
from acclimate.errors import AcclimateError, BadInput, CorruptFile
from acclimate.evaluation import Record, Result
from acclimate.metrics import unpack_sums
from acclimate.metrics.groups import merge
from acclimate.metrics.plain import to_plain
from acclimate.storage import write_atomically
from acclimate.zoo.readers import sha256_of

SPEC, BEGUN, RECORDS, MEASURES = "spec.json", "begun.json", "records.jsonl", "measures.jsonl"
CHECKPOINT, RESULT, ERROR, LOCK = "checkpoint.json", "result.json", "error.json", "lock"

State = Literal["waiting", "running", "cut", "failed", "done"]
STATES: tuple[State, ...] = ("waiting", "running", "cut", "failed", "done")

_AGAIN = "Run the suite again to resume the job from its last checkpoint."
_ANEW = "No batch was recorded. Correct the problem and run the suite again."

#: In `result.json`: checksums of the files that belong to it.
FILES = "sha256"
_OF_RESULT = ("n_batches", "provenance")


class Failure(Exception):
    """Why a job failed, also where that was in another process: plain data about an error.

    Args:
        kind: Name of the error's class.
        message: What it said.
        trace: Its traceback.
        code: Of an error of this package, whose message says what to do; None for any other.
        data: Of an error of this package, as JSON types.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        trace: str = "",
        code: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(kind, message, trace, code, data)
        self.kind, self.message, self.trace = kind, message, trace
        self.code, self.data = code, data

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return the description of an error."""
        kind, trace = type(error).__name__, "".join(traceback.format_exception(error))
        if not isinstance(error, AcclimateError):
            return cls(kind, str(error), trace)
        # What JSON has no type for, such as a path, becomes text.
        data = json.loads(json.dumps(to_plain(error.data), default=str))
        return cls(kind, str(error), trace, error.code, data)


class JobFolder:
    """One job on disk.

    Args:
        path: Need not be there yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def remove_leftovers(self) -> None:
        """Remove what a finished job needed only to be resumed."""
        (self.path / CHECKPOINT).unlink(missing_ok=True)
        self.remove_states()

    def remove_states(self, but: str = "") -> None:
        """Remove saved states except one, and files that a killed process left incomplete."""
        for path in self.path.iterdir():
            is_part = path.name.startswith(".") and path.name.endswith(".part")
            if is_part or (path.suffix == ".state" and path.name != but):
                path.unlink(missing_ok=True)

    @property
    def is_done(self) -> bool:
        """Whether the job has reached its end."""
        return (self.path / RESULT).is_file()

    @property
    def state(self) -> State:
        """What the files say of the job."""
        if self.is_done:
            return "done"
        if not (self.path / LOCK).exists():
            return "waiting"
        with self.hold() as is_mine:
            if not is_mine:
                return "running"
            # Looked at again, since the job may have ended in between.
            if self.is_done:
                return "done"
        if (self.path / ERROR).is_file():
            return "failed"
        return "cut" if (self.path / BEGUN).is_file() else "waiting"

    @contextmanager
    def hold(self) -> Iterator[bool]:
        """Keep others from working on the job; gives False if somebody else does already."""
        lock = FileLock(self.path / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def make(self) -> None:
        """Make the folder with its parents if it is not there."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                "not_writable",
                f"Cannot create {self.path} ({error.strerror}). Pass another folder with --out.",
                path=self.path,
            ) from error

    def describe(self, spec: JobSpec) -> None:
        """Write down what the job is; the lock must be held."""
        if not (self.path / SPEC).is_file():
            self.write(SPEC, {"key": spec.key, **spec.to_dict()})

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a file of JSON in one step."""
        write_atomically(self.path / name, (json.dumps(content, indent=1) + "\n").encode())

    def read(self, name: str) -> dict[str, Any] | None:
        """Return the content of a file of JSON; None if it is not there.

        Raises:
            CorruptFile: It was altered.
        """
        try:
            value = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CorruptFile(
                "unreadable_file", self._altered(name, str(error)), path=self.path / name
            ) from error
        if not isinstance(value, dict):
            raise CorruptFile(
                "wrong_content",
                self._altered(name, f"found {type(value).__name__}"),
                path=self.path / name,
            )
        return value

    def fail(self, why: Failure, remedy: str = _AGAIN) -> None:
        """Record why the job could not be finished."""
        ours = {} if why.code is None else {"code": why.code, "data": why.data}
        self.write(
            ERROR,
            {
                "type": why.kind,
                **ours,
                "message": why.message,
                "remedy": remedy,
                "when": datetime.now(UTC).isoformat(timespec="seconds"),
                "traceback": why.trace,
            },
        )

    def fail_by(self, error: BaseException) -> None:
        """Write down the error that ended the job."""
        why = error if isinstance(error, Failure) else Failure.of(error)
        has_checkpoint = any((self.path / name).is_file() for name in (CHECKPOINT, MEASURES))
        remedy = _AGAIN if has_checkpoint else _ANEW
        if why.code is None:
            remedy = f"The traceback is in {self.path / ERROR}. {remedy}"
        self.fail(why, remedy)

    @property
    def progress(self) -> tuple[int, int | None]:
        """Batches on record, and of the whole job if that is known."""
        records = self.path / RECORDS
        n_done = records.read_bytes().count(b"\n") if records.is_file() else 0
        begun = self.read(BEGUN) or {}
        return n_done, begun.get("n_batches")

    def read_lines(self, name: str, n_bytes: int | None = None) -> tuple[list[dict[str, Any]], int]:
        """Return the finished lines of a file, and the length of these in bytes.

        Args:
            name: Of the file; if it is not there, there are no lines.
            n_bytes: Look at so many only.
        """
        path = self.path / name
        content = path.read_bytes()[:n_bytes] if path.is_file() else b""
        lines = []
        # What follows the last line break was never finished.
        for number, text in enumerate(content.split(b"\n")[:-1], start=1):
            try:
                lines.append(json.loads(text))
            except ValueError as error:
                raise CorruptFile(
                    "unreadable_file", self._altered(name, f"line {number}: {error}"), path=path
                ) from error
        return lines, content.rfind(b"\n") + 1

    def read_outcome(self, entry: Entry, name: str) -> Outcome:
        """Return what came out of a job that is done.

        Args:
            entry: The job, and what it is called.
            name: Of this folder, relative to that of the suite.

        Raises:
            CorruptFile: The files do not belong together.
        """
        written = self.read_result()
        records = [
            self._read_record(number, line)
            for number, line in enumerate(self.read_lines(RECORDS)[0], start=1)
        ]
        sums = [unpack_sums(line["measures"]) for line in self.read_lines(MEASURES)[0]]
        if len(records) != written["n_batches"]:
            raise CorruptFile(
                "wrong_length",
                self._altered(
                    RECORDS, f"expected {written['n_batches']} lines, found {len(records)}"
                ),
                path=self.path / RECORDS,
                found=len(records),
                expected=written["n_batches"],
            )
        merged = merge(pair for own in sums for pair in own.items())
        return Outcome(entry, Result(tuple(records), merged), written["provenance"], name)

    def read_result(self) -> dict[str, Any]:
        """Return what a job that is done has written in the end, if its files belong to it.

        Raises:
            CorruptFile: They were altered.
        """
        written = self.read(RESULT)
        if written is None:
            raise BadInput(
                "unfinished_job",
                f"The job in {self.path} has not finished. {_AGAIN}",
                path=self.path,
            )
        if missing := [name for name in _OF_RESULT if name not in written]:
            raise CorruptFile(
                "wrong_content",
                self._altered(RESULT, f"{' and '.join(missing)} missing"),
                path=self.path / RESULT,
            )
        for name, sha256 in written.get(FILES, {}).items():
            path = self.path / name
            if not path.is_file() or sha256_of(path) != sha256:
                raise CorruptFile(
                    "wrong_checksum", self._altered(name, "its checksum differs"), path=path
                )
        return written

    def _read_record(self, number: int, line: Mapping[str, Any]) -> Record:
        try:
            return read_record(line)
        except (AcclimateError, TypeError, ValueError) as error:
            raise CorruptFile(
                "wrong_content",
                self._altered(RECORDS, f"line {number}: {error}"),
                path=self.path / RECORDS,
            ) from error

    def _altered(self, name: str, why: str) -> str:
        return (
            f"{self.path / name} was modified or damaged ({why}). Remove the folder {self.path} "
            "and run the suite again."
        )


def read_record(line: Mapping[str, Any]) -> Record:
    """Return the record that a line of `records.jsonl` holds."""
    return Record.from_dict({name: value for name, value in line.items() if name != "unit"})
