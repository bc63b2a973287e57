"""A table of predictions that grows batch by batch and survives a crash.

During the run, there are three files beside the output:

* `<out>.part`: the rows so far, synced to disk after every batch;
* `<out>.part.json`: the images and options of the run;
* `<out>.state`: the state of the method, replaced atomically after the rows were written.

The state counts its batches, so rows of later batches are detected, dropped and predicted again. At
the end, `<out>.part` is renamed to `<out>`.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from acclimate.errors import ArtifactMismatch, BadInput, CorruptFile, MissingExtra
from acclimate.methods.method import Method
from acclimate.storage import write_atomically

COLUMNS = ("path", "label", "probability", "entropy", "batch")

#: Entries of the card that earlier versions did not write, with their implied values; None if the
#: value is unknown and cannot be compared.
_ADDED = {"squash": False, "file_sizes_sha256": None, "seed": None}

#: File names may be invalid text; this preserves their bytes.
CODEC: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape"}


class PredictionFile:
    """The output, and the files that make it survive a crash.

    Args:
        out: Path of the output, `.csv` or `.parquet`.
        resume: Resume an interrupted run; starts a new one if there is none.
        force: Overwrite an existing output, and discard an interrupted run.
        state: Path of the saved state; it is removed at the end if None.

    Raises:
        BadInput: The output exists, is incomplete, or has another suffix.
        MissingExtra: Parquet needs pyarrow, which is not installed.
    """

    #: Whether the output is one mask per image instead of one row.
    holds_masks = False

    def __init__(
        self,
        out: str | Path,
        *,
        resume: bool = False,
        force: bool = False,
        state: str | Path | None = None,
    ) -> None:
        # The files beside it need a name, which "." does not have.
        self.out = Path(out).resolve() if Path(out).name in ("", "..") else Path(out)
        self.part = self.out.with_name(f"{self.out.name}.part")
        self.card = self.out.with_name(f"{self.out.name}.part.json")
        self.keeps_state = state is not None
        self.state = (
            Path(state) if state is not None else self.out.with_name(f"{self.out.name}.state")
        )
        self._file: TextIO | None = None
        self._check_place()
        own = (self.out, self.part, self.card)
        if taken := next((path for path in own if path.resolve() == self.state.resolve()), None):
            raise BadInput(
                "conflicting_options",
                f"Predictions and state cannot both be {taken}. Pass another --state.",
                options=("out", "state"),
            )
        if resume and force:
            raise BadInput(
                "conflicting_options",
                "The options resume, which continues a run, and force, which starts a new one, "
                "exclude each other. Pass only one of them.",
                options=("resume", "force"),
            )
        self.resumes = resume and self.part.exists()
        if not (force or self.resumes):
            self._check_free()

    def begin(self, card: dict[str, Any], adapted: Method) -> list[list[str]]:
        """Return the finished rows, and load the state of the method after them.

        Raises:
            ArtifactMismatch: The interrupted run had other images or options.
        """
        card = {**card, "state": str(self.state.resolve()) if self.keeps_state else None}
        # The method may have processed batches before those of this table.
        self._description = json.dumps({**card, "batches_before": adapted.counts.batches}, indent=1)
        if not self.resumes:
            return []
        n_before = self._check_same()
        if self.state.exists():
            adapted.load(self.state)
        rows = _rows_of(self.part, adapted.counts.batches - n_before)
        write_atomically(self.part, _to_csv([list(COLUMNS), *rows]).encode(**CODEC))
        self._file = self.part.open("a", newline="", **CODEC)
        return rows

    def append(self, rows: list[list[str]]) -> None:
        """Write the rows of one batch and sync them to disk."""
        file = self.open()
        file.write(_to_csv(rows))
        file.flush()
        os.fsync(file.fileno())

    def open(self) -> TextIO:
        """Return the file of rows; remove the files of an earlier run before creating it."""
        if self._file is None:
            for path in (self.part, self.state):
                path.unlink(missing_ok=True)
            write_atomically(self.card, self._description.encode())
            self._file = self.part.open("w", newline="", **CODEC)
            self._file.write(_to_csv([list(COLUMNS)]))
        return self._file

    def finish(self, has_names: bool) -> None:
        """Convert the rows to the output and remove the temporary files."""
        self.close()
        if self.out.suffix == ".parquet":
            _write_parquet(self.part, self.out, has_names)
            self.part.unlink()
        else:
            self.part.replace(self.out)
        self.card.unlink(missing_ok=True)
        if not self.keeps_state:
            self.state.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file of rows; the run can be resumed."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _check_place(self) -> None:
        if self.out.suffix not in (".csv", ".parquet"):
            raise BadInput(
                "wrong_suffix",
                f"Expected an output that ends in .csv or .parquet, found {self.out}. For a model "
                "that predicts every pixel, pass a folder.",
                path=self.out,
            )
        if self.out.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
            raise MissingExtra(
                "missing_extra",
                "Writing Parquet needs pyarrow, which is not installed. "
                "Run pip install 'acclimate[parquet]', or write a .csv file.",
                package="pyarrow",
            )
        self._check_writable()

    def _check_writable(self) -> None:
        for path in (self.out, self.state):
            if not path.parent.is_dir():
                raise BadInput(
                    "not_found",
                    f"Cannot write {path}: the folder {path.parent} does not exist. Create it.",
                    path=path.parent,
                )
            if not os.access(path.parent, os.W_OK):
                raise BadInput(
                    "not_writable",
                    f"Cannot write {path}: the folder is read-only. Pass another path.",
                    path=path,
                )

    def _check_free(self) -> None:
        """Refuse to overwrite anything."""
        if self.part.exists():
            raise BadInput(
                "unfinished_run",
                f"{self.part} exists: an earlier run did not finish. Resume it with --resume "
                "(resume=True), or start again with --force (force=True).",
                path=self.part,
            )
        for path in (self.out, self.state) if self.keeps_state else (self.out,):
            if self._is_taken(path):
                raise BadInput(
                    "already_exists",
                    f"{path} already exists. Overwrite it with --force (force=True).",
                    path=path,
                )

    def _is_taken(self, path: Path) -> bool:
        return path.exists()

    def _check_same(self) -> int:
        try:
            saved = _ADDED | json.loads(self.card.read_text())
            n_before = int(saved.pop("batches_before"))
        except (OSError, ValueError, KeyError) as error:
            raise CorruptFile(
                "unreadable_file",
                f"{self.part} cannot be resumed, because {self.card} is missing or damaged. "
                "Start again with --force (force=True).",
                path=self.card,
            ) from error
        differences = {
            key: (saved.get(key), value)
            for key, value in json.loads(self._description).items()
            if key != "batches_before"
            and saved.get(key) != value
            and not (key in _ADDED and saved[key] is None)
        }
        if differences:
            lines = "".join(
                f"\n  {key}: then {then!r}, now {now!r}" for key, (then, now) in differences.items()
            )
            raise ArtifactMismatch(
                "other_settings",
                f"{self.part} was started with other images or options:{lines}\n"
                "Resume with the same ones, or start again with --force (force=True).",
                differences=differences,
            )
        return n_before


def _to_csv(rows: list[list[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _rows_of(path: Path, n_batches: int) -> list[list[str]]:
    """Return the rows of the first batches; ignore incomplete rows after them."""
    text = path.read_bytes().decode(**CODEC)
    reader = csv.reader(io.StringIO(text[: text.rfind("\n") + 1], newline=""))
    next(reader, None)
    rows: list[list[str]] = []
    n_seen = 0
    for row in reader:
        if len(row) != len(COLUMNS):
            break
        if not rows or rows[-1][-1] != row[-1]:
            if n_seen == n_batches:
                break
            n_seen += 1
        rows.append(row)
    if n_seen < n_batches:
        raise CorruptFile(
            "altered_file",
            f"{path} has the rows of {n_seen} batches, but the state beside it was saved after "
            f"{n_batches}. One of them was altered. Start again with --force (force=True).",
            path=path,
        )
    return rows


def _write_parquet(part: Path, out: Path, has_names: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with part.open(newline="", **CODEC) as file:
        rows = list(csv.reader(file))[1:]
    # A file name may be invalid text, but a Parquet string must be valid.
    paths = [row[0].encode(**CODEC).decode("utf-8", "replace") for row in rows]
    labels = [row[1] if has_names else int(row[1]) for row in rows]
    table = pa.table(
        {
            "path": pa.array(paths, pa.string()),
            "label": pa.array(labels, pa.string() if has_names else pa.int64()),
            "probability": pa.array([float(row[2]) for row in rows], pa.float32()),
            "entropy": pa.array([float(row[3]) for row in rows], pa.float32()),
            "batch": pa.array([int(row[4]) for row in rows], pa.int64()),
        }
    )
    neighbour = out.with_name(f".{out.name}.new")
    try:
        pq.write_table(table, neighbour)
        neighbour.replace(out)
    finally:
        with suppress(FileNotFoundError):
            neighbour.unlink()
