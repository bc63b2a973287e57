"""Data by name, as what is measured on and as what an artifact is prepared from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from acclimate.data.catalog import SETS
from acclimate.data.datasets import find_set, unknown_set
from acclimate.data.domain_choice import DomainChoice
from acclimate.data.domains import find_domain_set
from acclimate.data.mask_files import IGNORE
from acclimate.data.masks import guess_set, has_masks
from acclimate.data.places import data_root
from acclimate.data.request import Data, Request
from acclimate.data.stores import Batches
from acclimate.errors import BadInput, did_you_mean
from acclimate.functional.inputs import Normalization
from acclimate.streams.images import Size


def load_data(name: str, request: Request | None = None) -> Data:
    """Return a data set, or a local folder, as domains.

    Args:
        name: A key of `acclimate.data.SETS`; or a folder: `DIR/<class>/<image>` for one domain,
            `DIR/<domain>/<class>/<image>` for several, or what `acclimate data corrupt` made of
            one, `DIR/<corruption>/<severity>/<class>/<image>`. Sets of several domains, such as
            `pacs`, and folders if domains are asked for, are as `load_domains` returns them:
            resized whatever their shape. Folders with masks have the layouts of `MaskLayout`.
        request: What of it.

    Raises:
        BadInput: There is no such set or folder, or it cannot give what is asked for.
    """
    asked = request if request is not None else Request()
    if asked.domains is not None:
        entry, path = find_domain_set(name)
        return entry.to_data(asked, path)
    if name not in SETS and not Path(name).is_dir():
        hint = f"{did_you_mean(name, SETS)} A folder has one subfolder per class."
        raise unknown_set(name, hint)
    found, folder = find_set(name)
    return found.to_data(asked, folder)


def open_source(
    name: str,
    root: str | Path | None = None,
    *,
    n: int | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    domains: DomainChoice | None = None,
    **options: Any,
) -> Batches:
    """Return the training images of a data set, or of a local folder, in labelled batches.

    Args:
        name: A key of `acclimate.data.SETS`, or a folder; where there are masks, its split `train`
            is used, or the only one.
        root: Of all data.
        n: Number of images; None for all.
        seed: Of the order and of draws.
        batch_size: Batch size; None for the usual one.
        domains: Which images of several domains.
        **options: `normalization` of the batches; `size`, `classes` and `ignore_label` of image
            files.

    Raises:
        BadInput: There are none, or files cannot be used.
    """
    if domains is not None:
        entry, path = find_domain_set(name)
        options = {"normalization": options.get("normalization"), "size": options.get("size")}
        return entry.to_batches(
            data_root(root), n, seed, batch_size, path=path, domains=domains, **options
        )
    found = SETS.get(name) or SETS[guess_set(Path(name)) or "image-folder"]
    if name not in SETS:
        options["path"] = Path(name)
    if not found.has_masks and options.pop("ignore_label", IGNORE) != IGNORE:
        raise BadInput(
            "not_applicable",
            f"The option --ignore-label applies only to data with masks; {name} has none. Remove "
            "it.",
            option="ignore_label",
        )
    return found.to_batches(data_root(root), n, seed, batch_size, **options)


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Where an artifact is prepared from, if none is given.

    Attributes:
        source: A key of `acclimate.data.SETS`, or a folder `DIR/<class>/<image>`; with `domains`, a
            set of several domains, or a folder of them; where there are masks, its split `train`,
            or the only one.
        n: Number of images: the first ones of arrays, at even distances of images with masks, drawn
            by the seed of several domains; None for all, as of a folder.
        size: Of the images of a folder, or of several domains; None if all have one.
        classes: Names in the order of the logits, if they are known.
        root: Of all data; see `acclimate.data.data_root`.
        seed: Of the order and of all draws.
        domains: Which images of several domains, pooled.
        ignore_label: The value in masks of a folder that stands for no label.

    Raises:
        BadInput: There is no such source, or it cannot give so many images.
    """

    source: str
    n: int | None = None
    size: int | Size | None = None
    classes: Sequence[str] | None = None
    root: str | Path | None = None
    seed: int = 0
    domains: DomainChoice | None = None
    ignore_label: int = IGNORE

    def __post_init__(self) -> None:
        if self.domains is None and not self._is_set and not Path(self.source).is_dir():
            raise BadInput(
                "unknown_name",
                f'Cannot prepare from "{self.source}". Expected cifar10, cifar100, builtin, or a '
                "folder with one subfolder per class.",
                kind="source data set",
                name=self.source,
                known=tuple(name for name, entry in SETS.items() if entry.can_prepare),
            )
        if self.n is not None and self.n < 1:
            raise BadInput(
                "out_of_range",
                f"Expected at least 1 source image, found {self.n}.",
                option="source_images",
                found=self.n,
            )
        if self.n is not None and self.domains is None and not self._is_set:
            raise BadInput(
                "not_applicable",
                "The option --source-images applies only to named data sets; all images of the "
                f"folder {self.source} are used. Remove it.",
                option="source_images",
            )

    @property
    def _is_set(self) -> bool:
        """Whether a number of images can be taken; of other folders, all are."""
        known = self.source in SETS and SETS[self.source].can_prepare
        return known or has_masks(self.source)

    def open(
        self, normal: Normalization | None = None
    ) -> tuple[Iterable[tuple[Tensor, Tensor]], Sequence[str]]:
        """Return the labelled batches, normalised, and the names of the classes."""
        options: dict[str, Any] = {"normalization": normal}
        entry = SETS.get(self.source)
        if entry is None or entry.is_files or self.domains is not None:
            options |= {"size": self.size, "classes": self.classes}
            options["ignore_label"] = self.ignore_label
        batches = open_source(
            self.source, self.root, n=self.n, seed=self.seed, domains=self.domains, **options
        )
        return batches, batches.classes
