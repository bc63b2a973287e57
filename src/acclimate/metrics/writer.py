"""Write the metrics of batches while a stream runs: as JSON lines, and for TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self, TextIO

from acclimate.errors import check_output, import_extra
from acclimate.metrics.batch import BatchMetrics


class MetricsWriter:
    """Writes the metrics of every batch as it happens.

    Args:
        file: JSON lines, one per batch: the fields of `BatchMetrics`, and labels.
        tensorboard: Folder of the event files for TensorBoard.
    """

    def __init__(self, file: Path | None = None, tensorboard: Path | None = None) -> None:
        self._path, self._folder = file, tensorboard
        self._file: TextIO | None = None
        self._board: Any = None
        check_output(file)
        if tensorboard is not None:
            import_extra("tensorboard", "Writing for TensorBoard", "tensorboard")

    def __bool__(self) -> bool:
        """Whether anything is written."""
        return self._path is not None or self._folder is not None

    def begin(self, start: int = 0) -> None:
        """Open the files; keep what an earlier run wrote of the batches before `start`."""
        if self._path is not None:
            kept = _read_before(self._path, start) if start else []
            self._file = self._path.open("w", encoding="utf-8")
            self._file.writelines(kept)
            self._file.flush()
        if self._folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self._folder), purge_step=start or None)

    def write(self, metrics: BatchMetrics, **labels: str | int) -> None:
        """Write the metrics of one batch.

        The labels are what it belongs to, such as the method: fields of the line and, in this
        order, the beginning of the names in TensorBoard.
        """
        if self._file is not None:
            line = json.dumps({**labels, **metrics.to_dict()}, allow_nan=False)
            self._file.write(line + "\n")
            self._file.flush()
        if self._board is not None:
            prefix = "".join(f"{value}/" for value in labels.values())
            for name, value in metrics.numbers().items():
                self._board.add_scalar(f"{prefix}{name}", value, metrics.index)

    def close(self) -> None:
        """Close the files."""
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()
        self._file = self._board = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_before(path: Path, start: int) -> list[str]:
    """Return the lines of the batches before `start`; a torn last line is left out."""
    if not path.is_file():
        return []
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            index = json.loads(line)["index"]
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(index, int) and index < start:
            kept.append(line + "\n")
    return kept
