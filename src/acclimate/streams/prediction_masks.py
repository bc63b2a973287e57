"""Predicted masks, one file an image, that survive a crash as a table of predictions does.

Beside the folder lie the same three files as beside a table while the work goes on; the rows only
say which masks are done. A mask is written before its row, so no row is without one.
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
from acclimate.methods.base import Method
from acclimate.storage import write_atomically
from acclimate.streams.images import read_size
from acclimate.streams.prediction_file import PredictionFile

#: As many as 8 bits can tell apart.
MOST_CLASSES = 256


class PredictionFolder(PredictionFile):
    """A folder of predicted masks, and the files that make it survive a crash.

    Each mask is a PNG file of 8 bits a pixel, the number of the class, under the relative name of
    its image, and as large.

    Args:
        out: The folder, which is made.
        resume: Go on where an interrupted call stopped; starts anew if there is none.
        force: Overwrite masks that are there, and leave an interrupted call behind.
        state: Where to keep what was learned; removed at the end if None.

    Raises:
        BadInput: The folder holds something, is half done, or is none.
    """

    holds_masks = True

    def check_images(self, root: Path, names: Sequence[str]) -> None:
        """Refuse images that the masks would overwrite, or that would share a mask.

        Args:
            root: The folder of the images.
            names: Their paths in it.

        Raises:
            BadInput: There are such.
        """
        _check_apart(root, self.out)
        taken: dict[str, str] = {}
        for name in names:
            other = taken.setdefault(mask_name(name), name)
            if other != name:
                raise BadInput(
                    "duplicate",
                    f"{other} and {name} would both get the mask {mask_name(name)}: expected names "
                    "that differ in more than the ending. Rename one of them.",
                    name=mask_name(name),
                )

    def begin(self, card: dict[str, Any], adapted: Method) -> list[list[str]]:
        """Return the rows that are done already, whose masks must be there.

        Raises:
            ArtifactMismatch: The interrupted call was about other images or options.
            CorruptFile: A mask that was written is gone.
        """
        rows = super().begin(card, adapted)
        for name, *_ in rows:
            if not (self.out / mask_name(name)).is_file():
                self.close()
                raise CorruptFile(
                    "file_missing",
                    f"{self.out / mask_name(name)} was written by the interrupted call, and is "
                    "gone. Start anew by --force (force=True).",
                    path=self.out / mask_name(name),
                )
        return rows

    def write_masks(self, masks: Mapping[str, Tensor]) -> None:
        """Write the masks of one batch, each whole or not at all; their rows follow.

        Args:
            masks: Class numbers (height, width) by the name of the image.
        """
        self.open()
        for name, mask in masks.items():
            path = self.out / mask_name(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            buffer = io.BytesIO()
            Image.fromarray(mask.cpu().numpy().astype(np.uint8)).save(buffer, "PNG")
            write_atomically(path, buffer.getvalue())

    def finish(self, has_names: bool) -> None:
        """Clear up beside the folder."""
        self.close()
        self.part.unlink()
        self.card.unlink(missing_ok=True)
        if not self.keeps_state:
            self.state.unlink(missing_ok=True)

    def _check_place(self) -> None:
        if self.out.exists() and not self.out.is_dir():
            raise BadInput(
                "not_a_folder",
                f"expected a folder for masks, but {self.out} is a file. Give another.",
                path=self.out,
            )
        self._check_writable()

    def _check_free(self) -> None:
        if not self.part.exists() and self._is_taken(self.out):
            raise BadInput(
                "already_exists",
                f"{self.out} exists already, and is not empty. Overwrite the masks in it by "
                "--force (force=True), or give another folder; or, for a model that predicts whole "
                "images, a file that ends in .csv or .parquet.",
                path=self.out,
            )
        super()._check_free()

    def _is_taken(self, path: Path) -> bool:
        if path == self.out:
            return path.is_dir() and any(path.iterdir())
        return path.exists()


def fit_to_image(mask: Tensor, path: Path) -> Tensor:
    """Return a mask as large as the image it belongs to, by nearest neighbours.

    Args:
        mask: Class numbers (height, width).
        path: Of the image, whose own size is looked up.

    Raises:
        BadInput: The image is gone.
    """
    size = read_size(path)
    if size is None:
        raise BadInput(
            "unreadable",
            f"{path} was read, and now its size cannot be. Leave the images as they are while "
            "they are predicted; then go on by --resume (resume=True).",
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
    """Refuse to put masks among the images, or around them."""
    images, masks = root.resolve(), out.resolve()
    if images == masks or images in masks.parents or masks in images.parents:
        raise BadInput(
            "inside_input",
            f"expected a folder for masks apart from the images in {root}, found {out}. Give "
            "another folder; or, for a model that predicts whole images, a file that ends in .csv "
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
    """Return where predictions go: a folder of masks if it is one or has no ending, else a table.

    Args:
        out: See `PredictionFile` and `PredictionFolder`, also for the others.
        resume: Go on where an interrupted call stopped.
        force: Overwrite.
        state: Where to keep what was learned.
        images: The folder that is predicted, which masks are kept apart from; None if it is not
            known yet.

    Raises:
        BadInput: It cannot be written.
    """
    out = Path(out)
    kind = PredictionFolder if out.is_dir() or not out.suffix else PredictionFile
    if images is not None and kind is PredictionFolder:
        _check_apart(Path(images), out)
    return kind(out, resume=resume, force=force, state=state)
