"""What can be asked for of a data set, and what is measured on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from acclimate.corruptions import BENCHMARK
from acclimate.data.corruptor import check_request
from acclimate.data.domain_choice import DomainChoice
from acclimate.data.mask_files import IGNORE
from acclimate.data.places import Progress, silent
from acclimate.data.stores import BATCH, MASK_BATCH, Batches, FolderStore, ImageStore
from acclimate.errors import AcclimateWarning, BadInput, check_at_least, warn
from acclimate.functional.inputs import Normalization
from acclimate.streams import Domain
from acclimate.streams.images import Size, all_unreadable

#: By group, such as a corruption, and name of the domain: its store, or what opens it.
Groups = Mapping[str, Mapping[str, ImageStore | Callable[[], ImageStore]]]

Store = TypeVar("Store", bound=ImageStore)

#: The severities that are meant if none is asked for.
USUAL = (5,)

# More bytes of images and masks than this are read when they are asked for.
_MOST_IN_MEMORY = 2**30


@dataclass(frozen=True)
class Data:
    """What is measured on.

    Attributes:
        name: As it was asked for.
        groups: The domains by corruption, from mild to severe; else each by its own name.
        classes: Names in the order of the class numbers.
        descriptions: What a result must record of each domain, by its name.
        is_folder: Whether its own order is that of file names: class after class, or frame after
            frame.
        source: Name of the set whose training split a model for this data has seen, if known.
        clean: Returns the clean images these were made from, if they are known.
        unreadable: The reason by image file that was left out.
        palette: The colour of each class in pictures, if there is a class for every pixel.
    """

    name: str
    groups: Mapping[str, tuple[Domain, ...]]
    classes: tuple[str, ...]
    descriptions: Mapping[str, dict[str, Any]]
    is_folder: bool = False
    source: str | None = None
    clean: Callable[[], Domain] | None = None
    unreadable: Mapping[Path, str] = field(default_factory=dict)
    palette: tuple[tuple[int, int, int], ...] = ()

    @property
    def domains(self) -> tuple[Domain, ...]:
        """All domains in order."""
        return tuple(domain for own in self.groups.values() for domain in own)

    @property
    def origin(self) -> str:
        """Where the images come from, such as official or generated."""
        return " and ".join(dict.fromkeys(str(each["source"]) for each in self._about))

    @property
    def title(self) -> str:
        """Name, origin and severities, as a table must show them."""
        found = sorted({about.get("severity", 0) for about in self._about} - {0})
        severities = f", severity {', '.join(map(str, found))}" if found else ""
        return f"{self.name} ({self.origin}){severities}"

    @property
    def _about(self) -> Iterable[dict[str, Any]]:
        return self.descriptions.values()


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which images of a data set are meant.

    Attributes:
        n: Number of images of each domain: the first ones of arrays, at even distances of files;
            drawn by the seed, to prepare from several domains. None for all.
        size: Of image files; None if all have one.
        classes: Names in the order of the model's logits, for local folders.
        root: Of all data; see `acclimate.data.data_root`.
        domains: Which images of a set of several domains; None for all.
        ignore_label: The value in masks of a folder that stands for no label.
    """

    n: int | None = None
    size: int | Size | None = None
    classes: Sequence[str] | None = None
    root: str | Path | None = None
    domains: DomainChoice | None = None
    ignore_label: int = IGNORE


@dataclass(frozen=True, kw_only=True)
class Request(Selection):
    """What is asked for of a set to measure on.

    Attributes:
        corruptions: Names; None for the fifteen of the benchmark, or for clean images.
        severities: From 1 to 5.
        progress: Called with the number of images that are made or read.
    """

    corruptions: tuple[str, ...] | None = None
    severities: tuple[int, ...] = USUAL
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_request(BENCHMARK if self.corruptions is None else self.corruptions, self.severities)
        check_number(self.n)
        for what, values in (("corruption", self.corruptions or ()), ("severity", self.severities)):
            for place, value in enumerate(values):
                if value in values[:place]:
                    found = ", ".join(map(str, values))
                    text = f"Expected every {what} at most once, found {found}."
                    raise BadInput("duplicate", text, name=value)

    def report(self, stage: str, done: int, total: int | None) -> None:
        """Report progress, if that is asked for."""
        (self.progress or silent)(stage, done, total)

    def refuse_severity(self, name: str, instead: str) -> None:
        """Refuse a severity that would mean nothing, as the images are taken as they are."""
        if self.severities != USUAL:
            found = ", ".join(map(str, self.severities))
            text = (
                f"The severity {found} was requested, but the images of {name} are used without "
                f"corruption. Remove it, or {instead}."
            )
            raise BadInput("not_applicable", text, option="severities")

    def names(self, corruption: str) -> dict[int, str]:
        """Return the name of the domain of each severity; the severity is in it if needed."""
        several = len(self.severities) > 1
        return {s: f"{corruption}_{s}" if several else corruption for s in sorted(self.severities)}

    def shifts(self, make: Callable[..., ImageStore]) -> Groups:
        """Return what opens each domain: `make` with its corruption and severity."""
        return {
            corruption: {
                domain: partial(make, corruption=corruption, severity=severity)
                for severity, domain in self.names(corruption).items()
            }
            for corruption in self.corruptions or BENCHMARK
        }


@dataclass(frozen=True, kw_only=True)
class SourceRequest(Selection):
    """What is asked for of a set to prepare an artifact from.

    Attributes:
        resize: What image files are resized to cover before a crop of `size`.
        seed: Of the order and of all draws.
        batch_size: Batch size; None for the usual one.
        normalization: Of the batches.
    """

    resize: int | Size | None = None
    seed: int = 0
    batch_size: int | None = None
    normalization: Normalization | None = None

    def batches(self, store: ImageStore, reshuffle: bool = False) -> Batches:
        """Return the images of a store in the batches that are asked for."""
        size = MASK_BATCH if store.has_masks else BATCH
        size = size if self.batch_size is None else self.batch_size
        return Batches(store, size, self.seed, self.normalization, reshuffle)


def check_number(n: int | None) -> None:
    """Refuse a number of images below one."""
    if n is not None:
        check_at_least("images", n, 1)


def take(store: Store, where: str, n: int | None) -> Store:
    """Return so many of the images, as `first` does, or refuse more than there are."""
    total = len(store)
    if n is not None and not 1 <= n <= total:
        text = (
            f"Expected 1 to {total} images, the number of images in {where}, found {n}. Pass "
            "another --images (--source-images for a source; n= in Python), or omit it to use all."
        )
        raise BadInput("out_of_range", text, option="images", found=n)
    return store.first(total if n is None else n)


def gather(
    name: str,
    groups: Groups,
    asked: Request,
    *,
    is_folder: bool = True,
    source: str | None = None,
    clean: Callable[[], Domain] | None = None,
    is_checked: bool = False,
) -> Data:
    """Return stores as what is measured on, and what a result must record of each.

    Image files are read once, so that a damaged one is found now, not after hours, and a checksum
    names exactly the images that are used; `is_checked` if unreadable ones were left out already.
    Masks are kept in memory if all of them are small. For the other arguments, see `Data`.
    """
    total = sum(map(len, groups.values()))
    found: dict[str, tuple[Domain, ...]] = {}
    about: dict[str, dict[str, Any]] = {}
    unreadable: dict[Path, str] = {}
    n_unlabelled, verified, store = 0, None, None
    for group, members in groups.items():
        for domain, make in members.items():
            asked.report(f"opening {domain}", len(about), total)
            store = make() if callable(make) else make
            store = take(store, domain, asked.n)
            told = dict(store.description)
            if store.has_masks:
                n_bytes = int(np.prod(store.labels.shape)) * total * (3 + 8)
                store = store.loaded() if n_bytes <= _MOST_IN_MEMORY else store
                paths = getattr(store, "paths", None)
                if paths is None or paths != verified:  # files may be corrupted in several ways
                    n_unlabelled = store.verify(asked.progress, needs_labels=False)
                    verified = paths
                told |= {"source": "generated"} if "corruption" in told else {}
                told |= {"sha256": store.digest()}
                told |= {"n_unlabelled": n_unlabelled} if n_unlabelled else {}
            elif is_checked:
                told |= {"sha256": store.digest()}
            elif isinstance(store, FolderStore):
                whole, place = store, Path(told.get("folder", domain)).name
                store = whole.select(whole.find_readable(asked.report, f"reading {place}"))
                if not len(store):
                    first = whole.paths[0]
                    raise all_unreadable(len(whole), first, whole.unreadable[first])
                told |= {"sha256": store.digest(with_labels=False), "size": list(store.size)}
                told |= {"n": len(store)}
            x = store if isinstance(store, FolderStore) else store[:]
            found[group] = (*found.get(group, ()), Domain(domain, x, store.labels))
            about[domain] = told
            unreadable |= store.unreadable
    if store is None:
        raise BadInput("empty_source", f"Expected domains in {name}, found none.")
    if n_unlabelled := max(own.get("n_unlabelled", 0) for own in about.values()):
        text = (
            f"{n_unlabelled} of {len(store)} images of {name} have no labelled pixel. They are "
            "predicted and used for adaptation, but do not count in any result."
        )
        warn(AcclimateWarning("unlabelled_images", text, n=n_unlabelled))
    return Data(
        *(name, found, store.classes, about, is_folder, source, clean, unreadable, store.palette)
    )
