"""Where a running job puts what it has measured, and finds what was measured before it was cut."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from acclimate.bench.folder import (
    BEGUN,
    CHECKPOINT,
    ERROR,
    FILES,
    MEASURES,
    RECORDS,
    RESULT,
    JobFolder,
    read_record,
)
from acclimate.evaluation import Record
from acclimate.zoo.readers import sha256_of

#: The one thing that begun jobs may differ in from what is asked for now: it is kept.
N_THREADS = "n_threads"


@dataclass(frozen=True)
class Place:
    """A place within a unit that a job can go on from.

    Attributes:
        unit: Its name.
        n_batches: Batches of the unit that are done.
        sums: Sums over their samples, packed.
    """

    unit: str
    n_batches: int
    sums: list[dict[str, Any]]


@dataclass
class Known:
    """What is known of a job when it begins or goes on.

    Attributes:
        n_threads: That it must go on with, as another number would change the rounding.
        records: Of all batches up to the place it goes on from.
        sums: Of each finished unit, packed.
        place: Where in a unit it goes on; None for the beginning of the first that is not finished.
        state: File with what the method had learned there.
    """

    n_threads: int
    records: list[Record] = field(default_factory=list)
    sums: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    place: Place | None = None
    state: Path | None = None


class Sink(Protocol):
    """What a job writes to; a folder here, or something that sends it to where the folder is."""

    def begin(self, setting: Mapping[str, Any]) -> Known:
        """Return what is known of the job; nothing if it was begun under another setting."""

    def append(self, unit: str, record: Record) -> None:
        """Add a record; it will survive the death of this process when this returns."""

    def close_unit(self, unit: str, sums: Sequence[Mapping[str, Any]]) -> None:
        """Note that the end of a unit was reached."""

    def checkpoint(self, place: Place, save: Callable[[Path], None]) -> None:
        """Keep a place to go on from; `save` writes to a file what the method has learned."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """Keep what came out."""


class FolderSink:
    """Writes to the folder of the job, whose lock must be held.

    Args:
        folder: Of the job.
    """

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._n_checkpoints = 0

    def begin(self, setting: Mapping[str, Any]) -> Known:
        """Return what is known of the job, and cut off what was written after that."""
        path = self._folder.path
        (path / ERROR).unlink(missing_ok=True)
        begun = self._folder.read(BEGUN)
        now = json.loads(json.dumps(setting))
        if begun is None or {**begun, N_THREADS: 0} != {**now, N_THREADS: 0}:
            # Records of other versions, data or weights must not be mixed with new ones.
            self._clear()
            self._folder.write(BEGUN, now)
            begun = now
        known = self._read(begun[N_THREADS])
        for name, n_bytes in ((RECORDS, self._n_records), (MEASURES, self._n_sums)):
            file = (path / name).open("ab")
            file.truncate(n_bytes)
            self._files[name] = file
        return known

    def append(self, unit: str, record: Record) -> None:
        """Add a line; it is with the operating system when this returns."""
        self._append(RECORDS, {"unit": unit, **record.to_dict()})

    def close_unit(self, unit: str, sums: Sequence[Mapping[str, Any]]) -> None:
        """Note that the end of a unit was reached, and where its records end."""
        n_bytes = self._sync()
        self._append(MEASURES, {"unit": unit, "bytes": n_bytes, "measures": list(sums)})

    def checkpoint(self, place: Place, save: Callable[[Path], None]) -> None:
        """Keep a place to go on from; the one before is there until this one is complete."""
        self._n_checkpoints += 1
        n_bytes = self._sync()
        name = f"{self._n_checkpoints}.state"
        save(self._folder.path / name)
        self._folder.write(
            CHECKPOINT,
            {
                "unit": place.unit,
                "n_batches": place.n_batches,
                "bytes": n_bytes,
                "state": name,
                "measures": place.sums,
            },
        )
        self._folder.remove_states(but=name)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write what came out; nothing to go on from is needed any more."""
        self._sync()
        os.fsync(self._files[MEASURES].fileno())
        self.close()
        sums = {name: sha256_of(self._folder.path / name) for name in (RECORDS, MEASURES)}
        self._folder.write(RESULT, {**result, FILES: sums})
        self._folder.remove_leftovers()

    def close(self) -> None:
        """Close the files; what was written stays."""
        for file in self._files.values():
            file.close()
        self._files = {}

    def _read(self, n_threads: int) -> Known:
        """Return what is on disk, and note up to where it is of use."""
        known = Known(n_threads)
        folder, self._n_records = self._folder, 0
        lines, self._n_sums = folder.read_lines(MEASURES)
        for line in lines:
            known.sums[line["unit"]] = line["measures"]
            self._n_records = line["bytes"]
        found = folder.read(CHECKPOINT)
        if found is not None:
            # Also of a unit that is finished by now: the next one must not take its number.
            self._n_checkpoints = int(str(found["state"]).partition(".")[0])
            state = folder.path / found["state"]
            if found["unit"] not in known.sums and state.is_file():
                known.place = Place(found["unit"], found["n_batches"], found["measures"])
                known.state, self._n_records = state, found["bytes"]
        lines, n_bytes = folder.read_lines(RECORDS, self._n_records)
        if n_bytes != self._n_records:
            # The disk has lost what it had confirmed: nothing here can be relied on.
            self._clear()
            self._n_records = self._n_sums = 0
            return Known(n_threads)
        known.records = [read_record(line) for line in lines]
        return known

    def _clear(self) -> None:
        for name in (CHECKPOINT, MEASURES, RECORDS):
            (self._folder.path / name).unlink(missing_ok=True)
        self._folder.remove_states()

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        file = self._files[name]
        file.write(json.dumps(line).encode() + b"\n")
        file.flush()

    def _sync(self) -> int:
        """Force the records to the disk; return how long they are."""
        file = self._files[RECORDS]
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size
