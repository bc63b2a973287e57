"""The files of weights that come with the package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file
from importlib.resources.abc import Traversable
from pathlib import Path

from safetensors import SafetensorError

from acclimate.errors import AcclimateError, CorruptFile

_UNUSABLE = (SafetensorError, RuntimeError, FileNotFoundError, AcclimateError)


@contextmanager
def open_weights(file: Traversable) -> Iterator[Path]:
    """Give the path of a file; refuse one that is missing, damaged, or of another model."""
    with as_file(file) as path:
        try:
            yield path
        except _UNUSABLE as error:
            message = (
                f"The weights of the built-in model at {path} cannot be loaded: {error}. Install "
                "acclimate again."
            )
            if not path.is_file():
                raise CorruptFile("file_missing", message, path=path) from error
            if isinstance(error, CorruptFile):
                raise CorruptFile(error.code, message, **error.data) from error
            if isinstance(error, SafetensorError):
                raise CorruptFile("unreadable_file", message, path=path) from error
            raise CorruptFile("wrong_content", message, path=path) from error
