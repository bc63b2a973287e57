"""Data by name, as what is measured on and as what an artifact is prepared from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from acclimate.data.catalog import SETS
from acclimate.data.datasets import DataSet, find_set
from acclimate.data.domains import find_domain_set
from acclimate.data.mask_files import IGNORE
from acclimate.data.masks import has_masks
from acclimate.data.request import Data, Request, Selection, SourceRequest
from acclimate.data.stores import Batches
from acclimate.errors import BadInput, check_at_least
from acclimate.functional.inputs import Normalization


def load_data(name: str, request: Request | None = None) -> Data:
    """Return a data set, or a local folder, as domains.

    A folder is `DIR/<class>/<image>` for one domain, `DIR/<domain>/<class>/<image>` for several, or
    what `acclimate data corrupt` made of one. Where domains are asked for, images are resized as
    `load_domains` does it; with masks, folders have the layouts of `MaskLayout`.

    Raises:
        BadInput: There is no such set or folder, or it cannot give what is asked for.
    """
    asked = request if request is not None else Request()
    entry, path = _find(name, asked)
    return entry.to_data(asked, path)


def open_source(name: str, root: str | Path | None = None, **options: Any) -> Batches:
    """Return the training images of a data set, or of a folder, in labelled batches.

    Where there are masks, the split `train` is used, or the only one. The options are the other
    fields of `SourceRequest`.

    Raises:
        BadInput: There are none, or files cannot be used.
    """
    return _open_source(name, SourceRequest(root=root, **options))


def _open_source(name: str, asked: SourceRequest) -> Batches:
    entry, path = _find(name, asked)
    if not entry.has_masks and asked.ignore_label != IGNORE:
        text = (
            f"The option --ignore-label applies only to data with masks; {name} has none. Remove "
            "it."
        )
        raise BadInput("not_applicable", text, option="ignore_label")
    return entry.to_batches(asked, path)


def _find(name: str, asked: Selection) -> tuple[DataSet, Path | None]:
    """Return the data set that is meant, or the layout of a folder and the folder."""
    return find_set(name) if asked.domains is None else find_domain_set(name)


@dataclass(frozen=True, kw_only=True)
class Preparation(SourceRequest):
    """Where an artifact is prepared from, if none is given.

    Attributes:
        source: A key of `acclimate.data.SETS`, or a folder `DIR/<class>/<image>`; with `domains`, a
            set of several domains, or a folder of them; where there are masks, its split `train`,
            or the only one.

    Raises:
        BadInput: There is no such source, or it cannot give so many images.
    """

    source: str

    def __post_init__(self) -> None:
        # Of other folders, all images are used.
        entry = SETS.get(self.source)
        is_counted = (entry is not None and entry.can_prepare) or has_masks(self.source)
        if self.domains is None and not is_counted and not Path(self.source).is_dir():
            raise BadInput(
                "unknown_name",
                f'Cannot prepare from "{self.source}". Expected cifar10, cifar100, builtin, or a '
                "folder with one subfolder per class.",
                kind="source data set",
                name=self.source,
                known=tuple(name for name, each in SETS.items() if each.can_prepare),
            )
        if self.n is not None:
            check_at_least("source_images", self.n, 1)
        if self.n is not None and self.domains is None and not is_counted:
            text = (
                "The option --source-images applies only to named data sets; all images of the "
                f"folder {self.source} are used. Remove it."
            )
            raise BadInput("not_applicable", text, option="source_images")

    def open(
        self, normal: Normalization | None = None
    ) -> tuple[Iterable[tuple[Tensor, Tensor]], Sequence[str]]:
        """Return the labelled batches, normalised, and the names of the classes."""
        batches = _open_source(self.source, replace(self, normalization=normal))
        return batches, batches.classes
