"""What the frozen model made of an image, kept for the next pass over the source."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from acclimate.errors import AcclimateWarning
from acclimate.parts.rows import Rows

#: Bytes of memory for rows. Beside them, an image takes about 200 bytes to be known by.
MEMORY_BUDGET = 512 * 2**20
#: Batches of a later pass after which a source that never shows an image twice is given up.
PATIENCE = 4


class RowCache:
    """Rows of numbers by the images that they belong to; a context, at whose end all is released.

    Images are known by their content, not by their place: a source may come in another order at
    every pass. (Then the rows are what the model gives up to rounding; in the same order, to the
    last bit.) The number of rows is bounded by twice that of the first pass, and a source whose
    images are new at every pass (by random crops, for example) is found out and given up.

    Args:
        memory_budget: Bytes in memory; if they do not suffice, all rows are on disk.
        disk_budget: Bytes on disk; None for half of what is free. If they do not suffice, nothing
            is kept any more, with a warning.
        folder: For the temporary file; None for the system's.
    """

    def __init__(
        self,
        memory_budget: int = MEMORY_BUDGET,
        disk_budget: int | None = None,
        folder: str | None = None,
    ) -> None:
        self.is_given_up = False
        self._rows = Rows(memory_budget, disk_budget, folder)
        self._numbers: dict[bytes, int] = {}
        self._dtype = torch.float32
        self._most: int | None = None
        self._n_missed_batches = self._n_hits = 0

    def __enter__(self) -> RowCache:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._numbers)

    @property
    def is_on_disk(self) -> bool:
        """Whether the rows are in a temporary file."""
        return self._rows.is_on_disk

    def end_pass(self) -> None:
        """Say that the source was gone through once, to its end."""
        if self._most is None:
            self._most = 2 * len(self._numbers)
        self._n_missed_batches = self._n_hits = 0

    def get(self, keys: Sequence[bytes]) -> Tensor | None:
        """Return the rows of a batch of images on the CPU, or None unless all are known."""
        numbers = [self._numbers[key] for key in keys if key in self._numbers]
        self._n_hits += len(numbers)
        if len(numbers) == len(keys):
            return torch.from_numpy(self._rows.take(numbers)).view(self._dtype)
        self._n_missed_batches += 1
        if self._most is not None and self._n_missed_batches >= PATIENCE and not self._n_hits:
            self.close()
        return None

    def put(self, keys: Sequence[bytes], rows: Tensor) -> None:
        """Keep the rows (n, width) of those images that are not known yet."""
        new = {key: index for index, key in enumerate(keys) if key not in self._numbers}
        n_rows = len(self._numbers) + len(new)
        if self.is_given_up or not new or (self._most is not None and n_rows > self._most):
            return
        chosen = rows.detach().cpu()[list(new.values())].contiguous()
        self._dtype = chosen.dtype
        try:
            self._rows.append(chosen.view(torch.uint8).numpy())
        except OSError as error:
            self.close()
            warnings.warn(
                AcclimateWarning(
                    "cache_full",
                    "the features of the source fit neither the memory set aside for them nor the "
                    f"disk ({error}): the model runs again at every pass. Free some space, or name "
                    "a folder with more by the environment variable TMPDIR.",
                ),
                stacklevel=2,
            )
            return
        for number, key in enumerate(new, len(self._numbers)):
            self._numbers[key] = number

    def close(self) -> None:
        """Release memory and disk, and keep nothing from now on."""
        self.is_given_up = True
        self._numbers.clear()
        self._rows.close()


def image_keys(x: Tensor) -> list[bytes]:
    """Return a digest of every image of a batch.

    >>> first, second, third = image_keys(torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]))
    >>> first == third, first == second
    (True, False)
    """
    start = hashlib.blake2b(f"{x.dtype} {tuple(x.shape[1:])}".encode(), digest_size=16)
    rows: Any = x.detach().cpu().contiguous().flatten(1).view(torch.uint8).numpy()
    keys = []
    for row in rows:
        state = start.copy()
        state.update(row.data)
        keys.append(state.digest())
    return keys
