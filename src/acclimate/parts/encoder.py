"""The frozen model on source images, and a cache of its outputs for later passes over the source.

`Encoder` runs the model with the source's statistics, so that the output for an image does not
depend on its neighbours and can be kept. `RowCache` keeps it by the content of the image, in memory
or, beyond a budget, in a temporary file.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from acclimate.errors import AcclimateWarning
from acclimate.forward import Call, run
from acclimate.functional.norm import use_statistics
from acclimate.functional.pixels import Grid
from acclimate.functional.precision import SpeedName, fast_autocast, precision_used
from acclimate.introspect import ModelInfo, get_head

Bytes = npt.NDArray[np.uint8]

#: The maximum share of the free disk space to use.
DISK_SHARE = 0.5


class Rows:
    """Rows of equal width, numbered in the order in which they are appended.

    They are in memory up to a budget in bytes, beyond it in a temporary file. None as the budget on
    disk is half of the free space, None as the folder the system's for temporary files.
    """

    def __init__(
        self, memory_budget: int, disk_budget: int | None = None, folder: str | None = None
    ) -> None:
        self._memory_budget, self._disk_budget = memory_budget, disk_budget
        self._folder = folder
        self._n_bytes = self._width = 0
        self._file: IO[bytes] = io.BytesIO()

    @property
    def is_on_disk(self) -> bool:
        """Whether the rows are in a temporary file."""
        return not isinstance(self._file, io.BytesIO)

    def append(self, values: Bytes) -> None:
        """Add rows (n, width).

        Raises:
            OSError: There is not enough disk space.
        """
        n_bytes = self._n_bytes + values.size
        if n_bytes > self._memory_budget:
            self._check_room(n_bytes)
        if n_bytes > self._memory_budget and isinstance(self._file, io.BytesIO):
            held = self._file.getbuffer()
            self._file = tempfile.TemporaryFile(prefix="acclimate-features-", dir=self._folder)  # noqa: SIM115
            self._file.write(held)
        self._file.seek(0, io.SEEK_END)
        self._file.write(values.tobytes())
        self._file.flush()
        self._n_bytes, self._width = n_bytes, values.shape[1]

    def take(self, numbers: Sequence[int]) -> Bytes:
        """Return a copy of rows by their numbers."""
        rows = []
        for number in numbers:
            self._file.seek(number * self._width)
            rows.append(self._file.read(self._width))
        return np.frombuffer(bytearray(b"".join(rows)), np.uint8).reshape(len(rows), self._width)

    def close(self) -> None:
        """Release memory and disk."""
        self._file.close()
        self._file = io.BytesIO()

    def _check_room(self, n_bytes: int) -> None:
        if self._disk_budget is None:
            free = shutil.disk_usage(self._folder or tempfile.gettempdir()).free
            self._disk_budget = int(DISK_SHARE * free)
        if n_bytes > self._disk_budget:
            raise OSError(f"{n_bytes:,} bytes are needed, {self._disk_budget:,} are available")


#: Bytes of memory for rows. The key of an image takes about 200 bytes in addition.
MEMORY_BUDGET = 512 * 2**20
#: Batches of a later pass without a hit after which the cache is turned off.
PATIENCE = 4


class RowCache:
    """Rows of numbers, one per image. It is a context manager that releases all rows at its end.

    The key of an image is its content, not its position: the order of a source may change between
    passes. (The rows are then those of the model up to rounding; in the same order they are equal
    bit for bit.) The number of rows is limited to twice that of the first pass. The cache turns
    itself off if the images are new in every pass, for example because of random crops, and, with a
    warning, if the disk is full.
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

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._numbers)

    @property
    def is_on_disk(self) -> bool:
        """Whether the rows are in a temporary file."""
        return self._rows.is_on_disk

    def end_pass(self) -> None:
        """Mark the end of a complete pass over the source."""
        if self._most is None:
            self._most = 2 * len(self._numbers)
        self._n_missed_batches = self._n_hits = 0

    def get(self, keys: Sequence[bytes]) -> Tensor | None:
        """Return the rows of a batch of images on the CPU, or None if any of them is missing."""
        numbers = [self._numbers[key] for key in keys if key in self._numbers]
        self._n_hits += len(numbers)
        if len(numbers) == len(keys):
            return torch.from_numpy(self._rows.take(numbers)).view(self._dtype)
        self._n_missed_batches += 1
        if self._most is not None and self._n_missed_batches >= PATIENCE and not self._n_hits:
            self.close()
        return None

    def put(self, keys: Sequence[bytes], rows: Tensor) -> None:
        """Store the rows (n, width) of those images that are not in the cache yet."""
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
                    "The features of the source fit neither in the memory budget nor on disk "
                    f"({error}), so the model runs again in every pass. Free some space, or set "
                    "the environment variable TMPDIR to a folder with more.",
                ),
                stacklevel=2,
            )
            return
        for number, key in enumerate(new, len(self._numbers)):
            self._numbers[key] = number

    def close(self) -> None:
        """Release memory and disk, and turn the cache off."""
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


class Encoded(NamedTuple):
    """Features and logits of a batch.

    Attributes:
        features: Inputs of the head (rows, d): one row per image, or per pixel of its input.
        logits: Logits (rows, K).
        grid: Layout of the logits as maps, if every pixel is predicted; otherwise None.
        feature_grid: Layout of the features in the same way.
    """

    features: Tensor
    logits: Tensor
    grid: Grid | None = None
    feature_grid: Grid | None = None


class Encoder:
    """Runs the frozen model in evaluation mode.

    BatchNorm uses the source's statistics, so that the output of an image does not depend on the
    rest of the batch and can be cached. Models that predict every pixel cannot have a cache.
    """

    def __init__(
        self,
        model: nn.Module,
        info: ModelInfo,
        call: Call | None = None,
        speed: SpeedName = "exact",
        cache: RowCache | None = None,
    ) -> None:
        self._model, self._info, self._call = model, info, call
        self._head = get_head(model, info.known_head)
        self._is_fast = speed == "fast"
        self._cache = cache
        self._layout: torch.memory_format | None = None

    def precision(self) -> str:
        """Return the precision in which the model runs, for the card."""
        weights = next((p for p in self._model.parameters()), torch.empty(0))
        return precision_used(weights.dtype, weights.device, self._is_fast)

    def end_pass(self) -> None:
        """Mark the end of a complete pass over the source."""
        if self._cache is not None:
            self._cache.end_pass()

    @torch.no_grad()
    def encode(self, x: Tensor) -> Encoded:
        """Run the model on a batch."""
        if self._layout is not None:
            return self._run(x.contiguous(memory_format=self._layout))
        # Convolutions on a CPU are faster in channels-last format. The first batch shows whether
        # the model supports it; one that calls `view` may not.
        if x.dim() == 4 and x.device.type == "cpu" and x.dtype == torch.float32:
            try:
                result = self._run(x.contiguous(memory_format=torch.channels_last))
            except RuntimeError:
                pass
            else:
                self._layout = torch.channels_last
                return result
        self._layout = torch.contiguous_format
        return self._run(x)

    def recall(self, x: Tensor) -> Encoded:
        """Return the result of `encode`, from the cache if it contains all images."""
        cache = self._cache
        if cache is None or cache.is_given_up:
            return self.encode(x)
        keys = image_keys(x)
        rows = cache.get(keys)
        if rows is None:
            result = self.encode(x)
            if result.features.dtype == result.logits.dtype:
                cache.put(keys, torch.cat([result.features, result.logits], dim=1))
            return result
        n_features = self._info.known_width
        rows = rows.to(x.device)
        return Encoded(rows[:, :n_features].contiguous(), rows[:, n_features:].contiguous())

    def _run(self, x: Tensor) -> Encoded:
        with use_statistics(self._model, "source"), fast_autocast(x.device, self._is_fast):
            found = run(self._model, x, self._head, self._info.logits_at, self._call)
        features, logits = found.known_features, found.logits
        if self._is_fast and self.precision() == "bfloat16":
            # Autocast returns half precision; statistics of features need single precision.
            features, logits = features.float(), logits.float()
        return Encoded(features, logits, *found.grids)
