"""Predicted masks, one file per image, that survive a crash like a table of predictions.

During the run, there are the same three files beside the folder as beside a table; the rows only
list the finished masks. A mask is written before its row, so every row has one.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from acclimate.errors import BadInput, CorruptFile
from acclimate.functional.pixels import resize_masks
from acclimate.methods.method import Method
from acclimate.storage import write_atomically
from acclimate.streams.images import read_size
from acclimate.streams.prediction_file import PredictionFile

#: The number of classes that 8 bits can represent.
MOST_CLASSES = 256


class PredictionFolder(PredictionFile):
    """A folder of predicted masks, and the files that make it survive a crash.

    Each mask is a PNG file with 8 bits per pixel, the class number, with the relative name and the
    size of its image.

    Args:
        out: Path of the folder, which is created.
        resume: Resume an interrupted run; starts a new one if there is none.
        force: Overwrite existing masks, and discard an interrupted run.
        state: Path of the saved state; it is removed at the end if None.

    Raises:
        BadInput: The folder is not empty, is incomplete, or is not a folder.
    """

    holds_masks = True

    def check_images(self, root: Path, names: Sequence[str]) -> None:
        """Refuse images that the masks would overwrite, or that would share a mask.

        Args:
            root: The folder of the images.
            names: Their paths in it.

        Raises:
            BadInput: There are such images.
        """
        _check_apart(root, self.out)
        taken: dict[str, str] = {}
        for name in names:
            other = taken.setdefault(mask_name(name), name)
            if other != name:
                raise BadInput(
                    "duplicate",
                    "Expected image names that differ in more than the suffix, but the mask of "
                    f"both {other} and {name} is {mask_name(name)}. Rename one of them.",
                    name=mask_name(name),
                )

    def begin(self, card: dict[str, Any], adapted: Method) -> list[list[str]]:
        """Return the finished rows, whose masks must exist.

        Raises:
            ArtifactMismatch: The interrupted run had other images or options.
            CorruptFile: A finished mask is missing.
        """
        rows = super().begin(card, adapted)
        for name, *_ in rows:
            if not (self.out / mask_name(name)).is_file():
                self.close()
                raise CorruptFile(
                    "file_missing",
                    f"{self.out / mask_name(name)} was written by the interrupted run, but is "
                    "missing now. Start again with --force (force=True).",
                    path=self.out / mask_name(name),
                )
        return rows

    def write_masks(self, masks: Mapping[str, Tensor]) -> None:
        """Write the masks of one batch, each atomically, before their rows.

        Args:
            masks: Class numbers (height, width) by image name.
        """
        self.open()
        for name, mask in masks.items():
            path = self.out / mask_name(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            buffer = io.BytesIO()
            Image.fromarray(mask.cpu().numpy().astype(np.uint8)).save(buffer, "PNG")
            write_atomically(path, buffer.getvalue())

    def finish(self, has_names: bool) -> None:
        """Remove the temporary files beside the folder."""
        self.close()
        self.part.unlink()
        self.card.unlink(missing_ok=True)
        if not self.keeps_state:
            self.state.unlink(missing_ok=True)

    def _check_place(self) -> None:
        if self.out.exists() and not self.out.is_dir():
            raise BadInput(
                "not_a_folder",
                f"Expected a folder for masks, but {self.out} is a file. Pass another path.",
                path=self.out,
            )
        self._check_writable()

    def _check_free(self) -> None:
        if not self.part.exists() and self._is_taken(self.out):
            raise BadInput(
                "already_exists",
                f"{self.out} already exists and is not empty. Overwrite the masks in it with "
                "--force (force=True), or pass another folder. For a model that predicts whole "
                "images, pass a file that ends in .csv or .parquet.",
                path=self.out,
            )
        super()._check_free()

    def _is_taken(self, path: Path) -> bool:
        if path == self.out:
            return path.is_dir() and any(path.iterdir())
        return path.exists()


def fit_to_image(mask: Tensor, path: Path) -> Tensor:
    """Resize a mask to the size of its image with nearest neighbours.

    Args:
        mask: Class numbers (height, width).
        path: Path of the image, whose size is read.

    Raises:
        BadInput: The image cannot be read any more.
    """
    size = read_size(path)
    if size is None:
        raise BadInput(
            "unreadable",
            f"The image {path} was read before, but its size cannot be read now. Do not change the "
            "images while they are predicted. Continue with --resume (resume=True).",
            path=path,
        )
    return resize_masks(mask[None], size)[0]


def mask_name(name: str) -> str:
    """Return the relative name of the mask of an image.

    >>> mask_name("monday/noon.jpg")
    'monday/noon.png'
    """
    return Path(name).with_suffix(".png").as_posix()


def _check_apart(root: Path, out: Path) -> None:
    """Refuse folders of images and masks that contain each other."""
    images, masks = root.resolve(), out.resolve()
    if images == masks or images in masks.parents or masks in images.parents:
        raise BadInput(
            "inside_input",
            f"Expected a folder for masks outside of the images in {root}, found {out}. Pass "
            "another folder. For a model that predicts whole images, pass a file that ends in .csv "
            "or .parquet.",
            path=out,
        )


def open_predictions(
    out: str | Path,
    *,
    resume: bool = False,
    force: bool = False,
    state: str | Path | None = None,
    images: str | Path | None = None,
) -> PredictionFile:
    """Return an output: masks if `out` is a folder or has no suffix, otherwise a table.

    Args:
        out: Path of the output; see `PredictionFile` and `PredictionFolder`, also for the others.
        resume: Resume an interrupted run.
        force: Overwrite an existing output.
        state: Path of the saved state.
        images: The folder of the images, which must not contain the masks; None if it is not known
            yet.

    Raises:
        BadInput: The output cannot be written.
    """
    out = Path(out)
    kind = PredictionFolder if out.is_dir() or not out.suffix else PredictionFile
    if images is not None and kind is PredictionFolder:
        _check_apart(Path(images), out)
    return kind(out, resume=resume, force=force, state=state)
