"""The pictures of frost: photographs where there are any, a computed texture where there are none.

The photographs are not part of this package. They are read from the files of an installed
`imagecorruptions`, which need not be importable, or from `<data root>/frost/`, where `acclimate
data get frost` puts them.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path

import numpy as np

from acclimate.corruptions.arrays import Pixels
from acclimate.errors import AcclimateWarning, warn

#: There is a sixth photograph, which the published program never draws.
PHOTOGRAPHS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
#: Note on frost that was made without photographs.
PROCEDURAL = "frost: procedural"
#: The environment variable with the data root.
VARIABLE = "ACCLIMATE_DATA"

_SHAPE = (600, 900)

# Only one of the nineteen needs files, so their place is not an argument of all of them.
_ROOT: ContextVar[Path | None] = ContextVar("data root of the caller", default=None)
_QUIET: ContextVar[bool] = ContextVar("whether the result is thrown away", default=False)


def get_frost_root() -> Path | None:
    """Return the data root that is searched before the usual one, or None."""
    return _ROOT.get()


def set_frost_root(root: Path | None) -> None:
    """Search this data root, too, from now on: for processes that are started."""
    _ROOT.set(root)


@contextmanager
def frost_from(root: Path | None) -> Iterator[None]:
    """Search `root/frost/`, too, while the block runs, before that of the usual data root."""
    token = _ROOT.set(root)
    try:
        yield
    finally:
        _ROOT.reset(token)


@contextmanager
def without_warning() -> Iterator[None]:
    """Do not warn of missing photographs while the block runs: its images are not a result."""
    token = _QUIET.set(True)
    try:
        yield
    finally:
        _QUIET.reset(token)


def find_photographs() -> Path | None:
    """Return the folder that holds all five photographs, or None."""
    for folder in _folders():
        if all((folder / name).is_file() for name in PHOTOGRAPHS):
            return folder
    return None


def describe_frost() -> str:
    """Return where the pictures of frost come from, such as "frost: procedural"."""
    folder = find_photographs()
    return PROCEDURAL if folder is None else f"frost: photographs in {folder}"


def _folders() -> list[Path]:
    spec = importlib.util.find_spec("imagecorruptions")
    places = [] if spec is None else spec.submodule_search_locations or []
    asked = _ROOT.get()
    roots = [usual_root()] if asked is None else [asked, usual_root()]
    return [folder / "frost" for folder in (*map(Path, places), *roots)]


def usual_root() -> Path:
    """Return the data root of the environment, or the user's cache folder."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    if sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "acclimate"


def warn_if_procedural(name: str) -> None:
    """Warn, once in a process, if the corruption is frost and there are no photographs of it."""
    if name == "frost" and not _QUIET.get() and find_photographs() is None:
        _warn()


@lru_cache(maxsize=1)
def _warn() -> None:
    root = _ROOT.get()
    place = "" if root is None else f" --data-dir {root}"
    text = (
        "The frost photographs were not found, so a computed texture is used instead: the result "
        f"is not comparable with the benchmark. Run: acclimate data get frost{place} (or: pip "
        "install imagecorruptions-imaug)"
    )
    warn(AcclimateWarning("frost_stand_in", text))


def load_textures(scale: float, height: int, width: int) -> tuple[Pixels, ...]:
    """Return all pictures of frost, scaled, or larger where they would not exceed the size."""
    return _load(find_photographs(), scale, height, width)


@lru_cache(maxsize=4)
def _load(folder: Path | None, scale: float, height: int, width: int) -> tuple[Pixels, ...]:
    if folder is None:
        pictures = [make_texture(seed) for seed in range(len(PHOTOGRAPHS))]
    else:
        from acclimate.decode import decode_image  # Pillow, which the core does without

        pictures = [np.asarray(decode_image(folder / name)) for name in PHOTOGRAPHS]
    return tuple(_scale(picture, scale, height, width) for picture in pictures)


def _scale(picture: Pixels, scale: float, height: int, width: int) -> Pixels:
    sides = picture.shape[:2]
    needed = max((height + 1) / sides[0], (width + 1) / sides[1])
    if scale == 1 and needed <= 1:
        return picture
    if scale == 0.2 and needed <= 0.2:
        # Linear interpolation at a fifth of the size reads every fifth pixel, and nothing between.
        rows, columns = (round(side * 0.2) for side in sides)
        return np.ascontiguousarray(picture[2::5, 2::5][:rows, :columns])
    factor = max(scale, needed)
    rows, columns = (
        max(height + 1, round(sides[0] * factor)),
        max(width + 1, round(sides[1] * factor)),
    )
    from PIL import Image  # the core does without it

    return np.asarray(Image.fromarray(picture).resize((columns, rows), Image.Resampling.BICUBIC))


def make_texture(seed: int) -> Pixels:
    """Return a picture that resembles frost: bright veins and feathers on a dark bluish ground."""
    generator = np.random.Generator(np.random.Philox(key=seed))
    rows, columns = (np.fft.fftfreq(side) for side in _SHAPE)
    frequency = np.hypot(rows[:, None], columns[None, :])
    frequency[0, 0] = 1
    frost = np.zeros(_SHAPE)
    for slope, weight in ((1.6, 0.7), (1.1, 0.5)):
        spectrum = np.fft.fft2(generator.standard_normal(_SHAPE)) / frequency**slope
        spectrum[0, 0] = 0
        field = np.fft.ifft2(spectrum).real
        # Bright where a smooth field passes through zero: thin branching lines.
        frost += weight * np.exp(-np.abs(field) / (0.5 * field.std()))
    level = 255 * np.clip(frost[..., None] * [0.85, 0.95, 1.0] + [0.02, 0.06, 0.12], 0, 1)
    return level.astype(np.uint8)
