"""The folder of a comparison: what was asked for, what has happened so far, what came out.

- `job.json`: everything that changes numbers, written first.
- `records.jsonl`: one line a batch and method, appended as it happens. A crash can tear the last
  line only.
- `measures.jsonl`: one line when a method has reached the end of a unit: the sums over samples from
  which calibration and errors by class follow.
- `result.json`: the table with its provenance, written last and in one step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acclimate.errors import ArtifactMismatch, BadInput, CorruptFile
from acclimate.evaluation import Record, Sums
from acclimate.metrics import pack_sums, unpack_sums
from acclimate.metrics.groups import Group
from acclimate.storage import write_atomically

JOB, RECORDS, MEASURES = "job.json", "records.jsonl", "measures.jsonl"
RESULT, ARTIFACT = "result.json", "artifact.acclimate"
_SHOWN = 8

#: Seed, method and unit of a record.
Key = tuple[int, str, str]


@dataclass
class Part:
    """What one method gave on one unit: records of batches, and sums over samples."""

    records: list[Record] = field(default_factory=list)
    sums: Mapping[Group, Sums] = field(default_factory=dict)


class Ledger:
    """Keeps a comparison on disk, so that it can go on where it was cut.

    Args:
        folder: Is made if need be.
        resume: Whether to go on with what is there.
        force: Whether to throw away what is there.

    Raises:
        BadInput: The folder holds something, and nothing was said of it; or it cannot be made.
    """

    def __init__(self, folder: str | Path, resume: bool = False, force: bool = False) -> None:
        self.folder = Path(folder)
        self._force = force
        self._is_blank = False  # whether what is there was begun here and has no record yet
        if resume and force:
            raise BadInput(
                "conflicting_options",
                "Expected either --resume (continue with the existing results) or --force "
                "(discard them), found both. Remove one of them.",
                options=("resume", "force"),
            )
        if self.folder.exists() and not self.folder.is_dir():
            raise BadInput(
                "not_a_folder",
                f"Cannot write to {folder}: it is a file. Pass a folder with --out.",
                path=self.folder,
            )
        there = [path.name for path in self._own if path.exists()]
        if there and not (resume or force):
            raise BadInput(
                "already_exists",
                f"{folder} already contains a comparison ({', '.join(there)}). Pass another "
                "--out, --resume to continue it, or --force to start again.",
                path=self.folder,
            )

    @property
    def _own(self) -> list[Path]:
        return [self.folder / name for name in (JOB, RECORDS, MEASURES, RESULT, ARTIFACT)]

    @property
    def artifact(self) -> Path:
        """Where an artifact is kept that was prepared for this comparison."""
        return self.folder / ARTIFACT

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Write what is asked for, or compare it with what was asked for before.

        Nothing is made or thrown away before this is called.

        Raises:
            BadInput: The folder cannot be made.
            ArtifactMismatch: Something else was asked for before; the differences are named.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                "not_writable",
                f"Cannot create {self.folder} ({error.strerror}). Pass another --out.",
                path=self.folder,
            ) from error
        if self._force:
            for own in self._own:
                own.unlink(missing_ok=True)
        text = json.dumps(settings, indent=1) + "\n"
        path = self.folder / JOB
        if not path.is_file():
            self._is_blank = not any(own.exists() for own in self._own)
            write_atomically(path, text.encode())
            return
        before, now = _flatten(_read_object(path)), _flatten(json.loads(text))
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        # A digest says that something differs, which the others may explain: they come first. Of a
        # method or a domain that is there on one side only, every option differs: they come last.
        names.sort(key=lambda name: (not (name in before and name in now), "sha256" in name))
        changed = [
            f"\n  {name}: {_show(before.get(name))} before, {_show(now.get(name))} now"
            for name in names
        ]
        if changed:
            more = f"\n  (+ {len(changed) - _SHOWN} more)" if len(changed) > _SHOWN else ""
            raise ArtifactMismatch(
                "other_settings",
                f"{self.folder} contains a comparison with different "
                f"settings:{''.join(changed[:_SHOWN])}{more}\nUse the same settings as before, "
                "pass another --out, or start again with --force.",
                differences={name: (before.get(name), now.get(name)) for name in names},
            )

    def read(self) -> dict[Key, Part]:
        """Return what was recorded of each unit that was run to its end.

        Torn last lines, and all of a unit that was cut, are left out.
        """
        records: dict[Key, list[Record]] = {}
        for line in _lines(self.folder / RECORDS):
            records.setdefault(_pop_key(line), []).append(Record.from_dict(line))
        found: dict[Key, Part] = {}
        for line in _lines(self.folder / MEASURES):
            key = _pop_key(line)
            found[key] = Part(records.get(key, []), unpack_sums(line["measures"]))
        return found

    def keep(self, parts: Mapping[Key, Part]) -> None:
        """Write these in the place of all that was there, and append from now on."""
        lines = [_line(key, r.to_dict()) for key, part in parts.items() for r in part.records]
        write_atomically(self.folder / RECORDS, b"".join(lines))
        lines = [_pack(key, part.sums) for key, part in parts.items()]
        write_atomically(self.folder / MEASURES, b"".join(lines))

    def append(self, key: Key, record: Record) -> None:
        """Add a record; it is with the operating system when this returns."""
        self._is_blank = False
        self._append(RECORDS, _line(key, record.to_dict()))

    def close_unit(self, key: Key, sums: Mapping[Group, Sums]) -> None:
        """Note that a method has reached the end of a unit."""
        self._append(MEASURES, _pack(key, sums))

    def finish(self, result: Mapping[str, Any]) -> Path:
        """Write what came out; return where."""
        path = self.folder / RESULT
        write_atomically(path, (json.dumps(result, indent=1) + "\n").encode())
        return path

    def withdraw(self) -> None:
        """Leave nothing behind of a call that was refused before its first record."""
        if self._is_blank:
            for own in self._own:
                own.unlink(missing_ok=True)
            if not any(self.folder.iterdir()):
                self.folder.rmdir()

    def _append(self, name: str, line: bytes) -> None:
        with (self.folder / name).open("ab") as file:
            file.write(line)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    lines = path.read_bytes().split(b"\n")
    # What follows the last line break was never finished.
    for number, text in enumerate(lines[:-1], start=1):
        try:
            yield json.loads(text)
        except ValueError as error:
            raise CorruptFile(
                "unreadable_file",
                f"Line {number} of {path} is not valid JSON ({error}): the file was modified. "
                "Start again with --force.",
                path=path,
            ) from error


def _line(key: Key, content: Mapping[str, Any]) -> bytes:
    seed, method, unit = key
    line = {"seed": seed, "method": method, "unit": unit, **content}
    return json.dumps(line).encode() + b"\n"


def _pack(key: Key, sums: Mapping[Group, Sums]) -> bytes:
    return _line(key, {"measures": pack_sums(sums)})


def _pop_key(line: dict[str, Any]) -> Key:
    return line.pop("seed"), line.pop("method"), line.pop("unit")


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorruptFile(
            "unreadable_file",
            f"{path} is not valid JSON ({error}). Start again with --force.",
            path=path,
        ) from error
    if not isinstance(value, dict):
        raise CorruptFile(
            "wrong_content",
            f"{path} does not contain a JSON object: the file was modified. Start again with "
            "--force.",
            path=path,
        )
    return value


def _flatten(value: Any, name: str = "") -> dict[str, Any]:
    """Return all leaves of nested dicts and lists by their dotted name."""
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return {name: value}
    return {
        key: leaf
        for part, inner in items
        for key, leaf in _flatten(inner, f"{name}.{part}" if name else str(part)).items()
    }


def _show(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 24 else f"{text[:23]}…"
