"""Sets that are folders of image files: ImageNet, ImageNet-C, anybody's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acclimate.data.arrays import read_card
from acclimate.data.catalog import DataSet
from acclimate.data.corruptor import SEVERITIES
from acclimate.data.ledger import LEDGER, MADE_FROM
from acclimate.errors import BadInput
from acclimate.functional.inputs import Normalization
from acclimate.streams.folder import FolderSource
from acclimate.streams.images import Size

_N_IMAGENET = 1000


class LabelledFolder(FolderSource):
    """Labelled images `root/<class>/…` in batches `(x, y)`, in the same order at every pass.

    Args:
        root: One folder a class.
        size: Height and width, or one number for both; None if all images have one size.
        batch_size: Images a batch.
        normalization: Applied to the images in [0, 1]; None for none.
        seed: Of the order; None keeps the images sorted by path.
        classes: Class names in the order of the model's logits; the folder names, sorted, if None.
        description: What a result must say of its data.
        resize: What images are resized to cover before a crop of `size`; None for `size` itself.
    """

    def __init__(
        self,
        root: str | Path,
        size: int | Size | None = None,
        batch_size: int = 200,
        normalization: Normalization | None = None,
        seed: int | None = None,
        classes: Sequence[str] | None = None,
        description: Mapping[str, Any] | None = None,
        resize: int | Size | None = None,
    ) -> None:
        super().__init__(root, size, batch_size, normalization, seed or 0, classes, resize)
        self.description = {**(description or {}), "n": len(self.paths)}
        if seed is not None:
            order = torch.randperm(len(self.paths), generator=torch.Generator().manual_seed(seed))
            self.paths = [self.paths[index] for index in order.tolist()]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through the folder once."""
        for batch in self.decode(self.paths):
            yield batch.x, torch.tensor([self._labels[path] for path in batch.paths])


def find_folder(
    entry: DataSet,
    root: Path,
    split: str = "val",
    path: str | Path | None = None,
    corruption: str | None = None,
    severity: int | None = None,
) -> Path:
    """Return the folder whose sub-folders are the classes.

    Raises:
        BadInput: It is not there, or more must be given to know which.
    """
    if entry.name == "image-folder" and path is None:
        raise BadInput(
            "missing_option",
            'The data set "image-folder" is a local folder. Pass its path as path=, or with --dir.',
            option="path",
        )
    base = find_base(entry, root, path)
    if entry.name == "imagenetc":
        if corruption is None or severity is None:
            raise BadInput(
                "missing_option",
                'The data set "imagenetc" needs a corruption and a severity, such as fog and 5.',
                option="corruption" if corruption is None else "severity",
            )
        place = base / corruption / str(severity)
    else:
        place = base / split if (base / split).is_dir() else base
    if not place.is_dir():
        raise BadInput(
            "not_found",
            f'The folder {place} of the data set "{entry.name}" does not exist. '
            + _placing(entry, root),
            path=place,
        )
    return place


def find_base(entry: DataSet, root: Path, path: str | Path | None = None) -> Path:
    """Return where a set is or should be; of ImageNet-C, the published copy comes first."""
    if path is not None:
        return Path(path)
    made = root / f"{entry.name}-generated"
    return made if made.is_dir() and not (root / entry.name).is_dir() else root / entry.name


def _placing(entry: DataSet, root: Path) -> str:
    return entry.placing.replace("{root}", str(root))


def load_folder(
    entry: DataSet,
    root: Path,
    split: str = "val",
    path: str | Path | None = None,
    corruption: str | None = None,
    severity: int | None = None,
    size: int | Size | None = None,
    batch_size: int = 200,
    normalization: Normalization | None = None,
    seed: int | None = None,
    classes: Sequence[str] | None = None,
    resize: int | Size | None = None,
) -> LabelledFolder:
    """Return a folder as batches `(x, y)` that can be gone through as often as needed.

    Args:
        entry: Of the catalog.
        root: Of all data.
        split: Sub-folder of `imagenet` or `image-folder`, if there is one of that name.
        path: Where the set is, if not under the root.
        corruption: Of `imagenetc`.
        severity: Of `imagenetc`.
        size: Height and width, or one number for both; None takes that of the set: 224 for
            `imagenet` and the published `imagenetc`, for others the one size all images have.
        batch_size: Images a batch.
        normalization: Applied to the images in [0, 1]; None for none.
        seed: Of the order; None keeps the images sorted by path.
        classes: Class names in the order of the model's logits; the folder names, sorted, if None.
        resize: What images are resized to cover before a crop of `size`; None for `size` itself,
            and for 256 where `imagenet` has its own size.

    Raises:
        BadInput: The folder is not there, or its sub-folders do not give the class numbers.
    """
    place = find_folder(entry, root, split, path, corruption, severity)
    ledger = _find_ledger(place)
    if ledger is None:
        size, resize = choose_sizes(entry, size, resize)
    description: dict[str, Any] = {"name": entry.name, "split": split, "folder": str(place)}
    description |= {"source": "folder" if ledger is None else "generated"}
    description |= {"size": size, "resize": resize}
    if corruption is not None:
        description |= {"corruption": corruption, "severity": severity}
        if ledger is not None:
            said = ledger.get(MADE_FROM, {})
            description[MADE_FROM] = said.get(corruption, f"{corruption}: not recorded")
    folder = LabelledFolder(
        place, size, batch_size, normalization, seed, classes, description, resize
    )
    if entry.name != "image-folder" and classes is None and len(folder.classes) != _N_IMAGENET:
        raise BadInput(
            "count_mismatch",
            f"Expected {_N_IMAGENET} class folders in {place}, found {len(folder.classes)}: their "
            "order would not match the class indices of ImageNet. Pass the 1000 wnids in order as "
            "classes=.",
            expected=_N_IMAGENET,
            found=len(folder.classes),
        )
    return folder


def choose_sizes(
    entry: DataSet, size: int | Size | None, resize: int | Size | None
) -> tuple[int | Size | None, int | Size | None]:
    """Return size and resize as given, or those of the set: both, if neither is given.

    >>> from acclimate.data.catalog import SETS
    >>> choose_sizes(SETS["imagenet"], None, None), choose_sizes(SETS["imagenet"], 64, None)
    ((224, 256), (64, None))
    """
    if size is None and resize is None:
        return entry.size, entry.resize
    return entry.size if size is None else size, resize


def _find_ledger(place: Path) -> dict[str, Any] | None:
    for folder in (place, *place.parents[:2]):
        if (folder / LEDGER).is_file():
            return read_card(folder / LEDGER, f"Remove {folder} and generate the copies again.")
    return None


def list_corrupted(base: Path) -> dict[str, list[int]]:
    """Return the severities found of each corruption, in the published layout of ImageNet-C."""
    found = {}
    for folder in sorted(path for path in base.iterdir() if path.is_dir()):
        there = [number for number in SEVERITIES if (folder / str(number)).is_dir()]
        if there:
            found[folder.name] = there
    return found
