"""Rows of numbers, in memory up to a budget, beyond it in a temporary file.

The file holds nothing but the numbers, and has no name where the system allows that: it is gone
when it is closed, and also if the process dies.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from typing import IO

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

#: The share of the free disk that is taken at most.
DISK_SHARE = 0.5

_BLOCK = 4096  # rows allocated together


class Rows:
    """Rows of one width, numbered as they come.

    Args:
        memory_budget: Bytes in memory; if they do not suffice, all rows move to the disk.
        disk_budget: Bytes on disk; None for half of what is free.
        folder: For the file; None for the system's temporary folder.
    """

    def __init__(
        self, memory_budget: int, disk_budget: int | None = None, folder: str | None = None
    ) -> None:
        self._memory_budget, self._disk_budget = memory_budget, disk_budget
        self._folder = folder
        self._n_rows = 0
        self._blocks: list[Bytes] = []
        self._file: IO[bytes] | None = None
        self._mapped: Bytes | None = None

    @property
    def is_on_disk(self) -> bool:
        """Whether the rows are in a temporary file."""
        return self._file is not None

    def append(self, values: Bytes) -> None:
        """Add rows (n, width).

        Raises:
            OSError: There is no room on the disk.
        """
        n_rows = self._n_rows + len(values)
        if self._file is None and n_rows * values.shape[1] > self._memory_budget:
            self._move_to_disk(n_rows * values.shape[1])
        if self._file is not None:
            self._write(values)
        else:
            for number, row in enumerate(values, self._n_rows):
                if number // _BLOCK == len(self._blocks):
                    self._blocks.append(np.empty((_BLOCK, values.shape[1]), np.uint8))
                self._blocks[number // _BLOCK][number % _BLOCK] = row
        self._n_rows = n_rows

    def take(self, numbers: Sequence[int]) -> Bytes:
        """Return a copy of rows by their numbers."""
        if self._file is None:
            return np.stack([self._blocks[n // _BLOCK][n % _BLOCK] for n in numbers])
        if self._mapped is None:
            width = self._file.seek(0, 2) // self._n_rows
            self._mapped = np.memmap(self._file, np.uint8, "r", shape=(self._n_rows, width))
        return np.array(self._mapped[list(numbers)])

    def close(self) -> None:
        """Release memory and disk."""
        self._blocks.clear()
        self._mapped = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _move_to_disk(self, n_bytes: int) -> None:
        if self._disk_budget is None:
            free = shutil.disk_usage(self._folder or tempfile.gettempdir()).free
            self._disk_budget = int(DISK_SHARE * free)
        self._check_room(n_bytes)
        self._file = tempfile.TemporaryFile(prefix="acclimate-features-", dir=self._folder)  # noqa: SIM115
        n_left = self._n_rows
        for block in self._blocks:
            self._write(block[: min(n_left, _BLOCK)])
            n_left -= _BLOCK
        self._blocks.clear()

    def _write(self, values: Bytes) -> None:
        if self._file is None:
            return
        self._check_room(self._file.seek(0, 2) + values.size)
        self._file.write(values.tobytes())
        self._file.flush()
        self._mapped = None  # it does not see rows that came later

    def _check_room(self, n_bytes: int) -> None:
        if self._disk_budget is not None and n_bytes > self._disk_budget:
            raise OSError(f"{n_bytes:,} bytes are needed, {self._disk_budget:,} may be taken")
