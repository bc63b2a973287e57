"""The folder of one run: its identity, what has happened so far, and what came out.

A run is a job of a suite, a folder of predictions, or a training: anything that may be killed at
any moment and must then continue as if it had not been. It always has the same files:

- `spec.json`: what was asked for, for people.
- `begun.json`: the identity of the run: all that must be unchanged when it is resumed.
- `records.jsonl`: one line per record, written before the next one is computed.
- `measures.jsonl`: one line per finished unit: sums over its samples, and where its records end.
- `checkpoint.json`, `<number>.state`: a place within a unit, and the state of the method there.
- `result.json`: the summary with its provenance and the checksums of all files that belong to it.
  It is written last: where it exists, the run is done.
- `error.json`: why the last attempt failed; with `code` and `data` if the error is one of ours.
- `lock`: held by the process that works on the run; the operating system releases it if that
  process dies.

A run uses it like this:

    with folder.lock():
        resume = folder.begin(identity)               # what is known of an interrupted run
        for unit in units, from resume.checkpoint on:
            folder.append(unit, record)               # survives the death of the process
            folder.checkpoint(Checkpoint(unit, n_batches), save_state)
            folder.close_unit(unit, sums)
        folder.finish(result)
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal

from filelock import FileLock, Timeout

from acclimate.errors import AcclimateError, ArtifactMismatch, BadInput, CorruptFile
from acclimate.metrics import Record
from acclimate.metrics.sums import to_plain
from acclimate.storage import file_digest, guard_writing, make_folder, write_atomically

SPEC, BEGUN, RECORDS, SUMS = "spec.json", "begun.json", "records.jsonl", "measures.jsonl"
CHECKPOINT, RESULT, ERROR, LOCK = "checkpoint.json", "result.json", "error.json", "lock"

#: The one entry of an identity that may differ from what is asked for now: it is kept.
N_THREADS = "n_threads"

State = Literal["waiting", "running", "interrupted", "failed", "done"]


#: In `result.json`: checksums of the files that belong to it.
FILES = "sha256"

_AGAIN = "Run the suite again to resume the job from its last checkpoint."
_ANEW = "No batch was recorded. Correct the problem and run the suite again."
_SHOWN = 8  # differences that a message lists


@dataclass(frozen=True)
class Checkpoint:
    """A place within a unit that a run can continue from, and the packed sums up to there."""

    unit: str
    n_batches: int
    sums: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Resume:
    """What is known of a run when it begins or continues.

    Attributes:
        n_threads: Number of threads it must continue with; another one would change the rounding.
        records: All records up to the place it continues from, as JSON types with their `unit`.
        sums: Sums of each finished unit, packed.
        checkpoint: Place in a unit; None for the beginning of the first unfinished unit.
        state: File with the state of the method at that place.
    """

    n_threads: int = 0
    records: list[dict[str, Any]] = field(default_factory=list)
    sums: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    state: Path | None = None


def check_start(resume: bool, force: bool) -> None:
    """Refuse to resume a run and to start it again at once."""
    if resume and force:
        raise BadInput(
            "conflicting_options",
            "The options resume, which continues a run, and force, which starts a new one, "
            "exclude each other. Pass only one of them.",
            options=("resume", "force"),
        )


class RunFolder:
    """One run on disk, whose folder need not exist yet. All methods that write need the lock.

    Args:
        path: The folder.
        remedy: What to do if files in it were altered.
        on_saved: Called whenever there is more to resume from; `anew` if all before is void.
    """

    def __init__(
        self, path: str | Path, remedy: str = "", on_saved: Callable[..., None] | None = None
    ) -> None:
        self.path = Path(path)
        self._remedy = remedy or f"Remove the folder {path} and run the suite again."
        self._on_saved = on_saved or (lambda anew=False: None)
        self._files: dict[str, BinaryIO] = {}
        self._n_checkpoints = 0

    # Reading ------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether the run has finished."""
        return (self.path / RESULT).is_file()

    def has_finished(self, keep: Mapping[str, int]) -> bool:
        """Return whether a job is done, and has kept what it is asked to keep."""
        if not (self.is_done and keep):
            return self.is_done
        kept = self.read_result()["provenance"]["spec"].get("keep", {})
        return all(kept.get(name, 0) >= n for name, n in keep.items())

    @property
    def state(self) -> State:
        """The state of the run according to its files."""
        if self.is_done:
            return "done"
        if not (self.path / LOCK).exists():
            return "waiting"
        with self.hold() as is_mine:
            if not is_mine:
                return "running"
            if self.is_done:  # it may have finished in between
                return "done"
        if (self.path / ERROR).is_file():
            return "failed"
        return "interrupted" if (self.path / BEGUN).is_file() else "waiting"

    @property
    def progress(self) -> tuple[int, int | None]:
        """Number of recorded batches, and of all batches if that is known."""
        records = self.path / RECORDS
        n_done = records.read_bytes().count(b"\n") if records.is_file() else 0
        return n_done, (self.read(BEGUN) or {}).get("n_batches")

    def read(self, name: str) -> dict[str, Any] | None:
        """Return the content of a JSON file; None if it does not exist."""
        try:
            value = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise self._unreadable(name, str(error)) from error
        if not isinstance(value, dict):
            raise self.altered(name, f"found {type(value).__name__}")
        return value

    def read_lines(self, name: str, n_bytes: int | None = None) -> tuple[list[dict[str, Any]], int]:
        """Return the complete lines of a file, or of its first bytes, and their length in bytes."""
        path = self.path / name
        content = path.read_bytes()[:n_bytes] if path.is_file() else b""
        lines = []
        # What follows the last line break was never finished.
        for number, line in enumerate(content.split(b"\n")[:-1], start=1):
            try:
                lines.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise self._unreadable(name, f"line {number}: {error}") from error
        return lines, content.rfind(b"\n") + 1

    def read_result(self) -> dict[str, Any]:
        """Return the result of a finished run, after verifying the files that belong to it."""
        written = self.read(RESULT)
        if written is None:
            text = f"The job in {self.path} has not finished. {_AGAIN}"
            raise BadInput("unfinished_job", text, path=self.path)
        if missing := [name for name in ("n_batches", "provenance") if name not in written]:
            raise self.altered(RESULT, f"{' and '.join(missing)} missing")
        for name, sha256 in written.get(FILES, {}).items():
            path = self.path / name
            if not path.is_file() or file_digest(path) != sha256:
                text = self.explain(name, "its checksum differs")
                raise CorruptFile("wrong_checksum", text, path=path)
        return written

    def altered(self, name: str, why: str) -> CorruptFile:
        """Return the error about the content of a file that was altered."""
        return CorruptFile("wrong_content", self.explain(name, why), path=self.path / name)

    def explain(self, name: str, why: str) -> str:
        """Return what is wrong with a file, and what to do."""
        return f"{self.path / name} was modified or damaged ({why}). {self._remedy}"

    def _unreadable(self, name: str, why: str) -> CorruptFile:
        return CorruptFile("unreadable_file", self.explain(name, why), path=self.path / name)

    # The lock -----------------------------------------------------------------------------------

    @contextmanager
    def hold(self) -> Iterator[bool]:
        """Keep other processes from working on the run; gives False if one already does."""
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

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Make the folder, and refuse to work on the run if another process does."""
        self.make()
        with self.hold() as is_mine:
            if not is_mine:
                raise BadInput(
                    "in_use",
                    f"Another process is writing to {self.path}. Wait until it has finished, or "
                    "pass another output.",
                    path=self.path,
                )
            try:
                yield
            finally:
                self.close()

    # Writing ------------------------------------------------------------------------------------

    def make(self) -> None:
        """Create the folder with its parents."""
        make_folder(self.path)

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file atomically."""
        write_atomically(self.path / name, (json.dumps(content, indent=1) + "\n").encode())

    def describe(self, about: Mapping[str, Any]) -> None:
        """Write what the run is, unless that was done before."""
        if not (self.path / SPEC).is_file():
            self.write(SPEC, about)

    def begin(self, identity: Mapping[str, Any]) -> Resume:
        """Return what is known of the run, and cut off what was written after that.

        Records of another identity (other versions, data or weights) are never mixed with new
        ones: the run then starts again. `check_same` refuses instead.
        """
        (self.path / ERROR).unlink(missing_ok=True)
        begun = self.read(BEGUN)
        now = {N_THREADS: 0, **json.loads(json.dumps(identity))}
        if begun is None or {**begun, N_THREADS: 0} != {**now, N_THREADS: 0}:
            self.clear()
            self.write(BEGUN, now)
            begun = now
        resume = self._find_resume(begun.get(N_THREADS, 0))
        for name, n_bytes in ((RECORDS, self._n_records), (SUMS, self._n_sums)):
            file = (self.path / name).open("ab")
            file.truncate(n_bytes)
            self._files[name] = file
        self._on_saved(anew=not resume.records)
        return resume

    def check_same(self, identity: Mapping[str, Any], what: str, remedy: str) -> None:
        """Refuse to continue a run that was begun with another identity, and list the differences.

        `what` is what the folder contains.
        """
        begun = self.read(BEGUN)
        if begun is None:
            return
        before, now = (
            {".".join(key): own for key, own in flatten(values).items() if key != (N_THREADS,)}
            for values in (begun, json.loads(json.dumps(identity)))
        )
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        # A digest only says that something differs, which other entries may explain: they come
        # first. Of a method or domain on one side only, every option differs: those come last.
        names.sort(key=lambda name: (not (name in before and name in now), "sha256" in name))
        if not names:
            return
        lines = [
            f"\n  {name}: {_show(before.get(name))} before, {_show(now.get(name))} now"
            for name in names[:_SHOWN]
        ]
        more = f"\n  (+ {len(names) - _SHOWN} more)" if len(names) > _SHOWN else ""
        raise ArtifactMismatch(
            "other_settings",
            f"{what} was started with different settings:{''.join(lines)}{more}\n{remedy}",
            differences={name: (before.get(name), now.get(name)) for name in names},
        )

    def append(self, unit: str, record: Mapping[str, Any]) -> None:
        """Add a record; the operating system has it when this returns."""
        self._append(RECORDS, {"unit": unit, **record})

    def close_unit(self, unit: str, sums: Sequence[Mapping[str, Any]]) -> None:
        """Record the end of a unit, and where its records end."""
        n_bytes = self._sync()
        self._append(SUMS, {"unit": unit, "bytes": n_bytes, "measures": list(sums)})
        self._on_saved()

    def checkpoint(self, place: Checkpoint, save: Callable[[Path], None]) -> None:
        """Keep a place to continue from; the previous one is kept until this one is complete."""
        self._n_checkpoints += 1
        n_bytes = self._sync()
        name = f"{self._n_checkpoints}.state"
        save(self.path / name)
        self.write(
            CHECKPOINT,
            {
                "unit": place.unit,
                "n_batches": place.n_batches,
                "bytes": n_bytes,
                "state": name,
                "measures": place.sums,
            },
        )
        self._remove_states(but=name)
        self._on_saved()

    def finish(self, result: Mapping[str, Any], kept: Sequence[str] = ()) -> None:
        """Write the result with checksums, also of other files that belong to it.

        What was needed only to resume is removed.
        """
        self._sync()
        os.fsync(self._files[SUMS].fileno())
        self.close()
        sums = {name: file_digest(self.path / name) for name in (RECORDS, SUMS, *kept)}
        self.write(RESULT, {**result, FILES: sums})
        self.remove_leftovers()

    def close(self) -> None:
        """Close the files; their content stays."""
        for file in self._files.values():
            with suppress(OSError):  # a line that could not be written, which was an error then
                file.close()
        self._files = {}

    def clear(self) -> None:
        """Remove all records and checkpoints, and the result."""
        for name in (RESULT, BEGUN, CHECKPOINT, SUMS, RECORDS, ERROR):
            (self.path / name).unlink(missing_ok=True)
        self._remove_states()

    def remove(self) -> None:
        """Remove the run, and the folder unless something else is in it."""
        self.close()
        if self.path.is_dir():
            self.clear()
            for name in (SPEC, LOCK):
                (self.path / name).unlink(missing_ok=True)
            if not any(self.path.iterdir()):
                self.path.rmdir()

    def remove_leftovers(self) -> None:
        """Remove what a finished run needed only to be resumed."""
        (self.path / CHECKPOINT).unlink(missing_ok=True)
        self._remove_states()

    def fail(self, kind: str, message: str, remedy: str = _AGAIN, **more: Any) -> None:
        """Record why the job could not be finished: the name of the error, and its message."""
        when = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"type": kind, "message": message, "remedy": remedy, "when": when, "traceback": ""}
        self.write(ERROR, {**about, **more})

    def fail_by(self, error: BaseException) -> None:
        """Record the error that ended the job."""
        has_checkpoint = any((self.path / name).is_file() for name in (CHECKPOINT, SUMS))
        remedy = _AGAIN if has_checkpoint else _ANEW
        more: dict[str, Any] = {"traceback": "".join(traceback.format_exception(error))}
        if isinstance(error, AcclimateError):
            # What JSON has no type for, such as a path, becomes text.
            data = json.loads(json.dumps(to_plain(error.data), default=str))
            more |= {"code": error.code, "data": data}
        else:
            remedy = f"The traceback is in {self.path / ERROR}. {remedy}"
        self.fail(type(error).__name__, str(error), remedy, **more)

    def _find_resume(self, n_threads: int) -> Resume:
        """Return what is on disk, and note up to where it can be used."""
        resume = Resume(n_threads)
        self._n_records = 0
        lines, self._n_sums = self.read_lines(SUMS)
        for line in lines:
            resume.sums[line["unit"]] = line["measures"]
            self._n_records = line["bytes"]
        found = self.read(CHECKPOINT)
        if found is not None:
            # Also of a finished unit: the next checkpoint must not take its number.
            self._n_checkpoints = int(str(found["state"]).partition(".")[0])
            state = self.path / found["state"]
            if found["unit"] not in resume.sums and state.is_file():
                place = Checkpoint(found["unit"], found["n_batches"], found["measures"])
                resume.checkpoint, resume.state = place, state
                self._n_records = found["bytes"]
        resume.records, n_bytes = self.read_lines(RECORDS, self._n_records)
        if n_bytes != self._n_records:
            # The disk has lost what it had confirmed: nothing here can be relied on.
            for name in (CHECKPOINT, SUMS, RECORDS):
                (self.path / name).unlink(missing_ok=True)
            self._remove_states()
            self._n_records = self._n_sums = 0
            return Resume(n_threads)
        return resume

    def _remove_states(self, but: str = "") -> None:
        """Remove saved states except one, and files that a killed process left incomplete."""
        for path in self.path.iterdir():
            is_part = path.name.startswith(".") and path.name.endswith(".part")
            if is_part or (path.suffix == ".state" and path.name != but):
                path.unlink(missing_ok=True)

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        file = self._files[name]
        with guard_writing(self.path / name):
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()

    def _sync(self) -> int:
        """Force the records to disk; return their length."""
        file = self._files[RECORDS]
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size


def read_record(line: Mapping[str, Any]) -> Record:
    """Return the record in a line of `records.jsonl`."""
    return Record.from_dict({name: value for name, value in line.items() if name != "unit"})


def flatten(value: Any, key: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return all leaves of nested mappings by the names that lead to them."""
    if isinstance(value, Mapping) and (value or not key):
        return {
            k: v for name, inner in value.items() for k, v in flatten(inner, (*key, name)).items()
        }
    return {key: value}


def _show(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 24 else f"{text[:23]}…"
