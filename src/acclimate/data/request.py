"""What is measured on, and what can be asked for of a data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acclimate.corruptions import BENCHMARK
from acclimate.data.corruptor import check_request
from acclimate.data.domain_choice import DomainChoice
from acclimate.data.mask_files import IGNORE
from acclimate.data.places import Progress
from acclimate.errors import BadInput
from acclimate.streams import Domain
from acclimate.streams.images import Size

#: The severities that are meant if none is asked for.
USUAL = (5,)


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
        found = dict.fromkeys(str(about["source"]) for about in self.descriptions.values())
        return " and ".join(found)

    @property
    def title(self) -> str:
        """Name, origin and severities, as a table must show them."""
        found = sorted({about.get("severity", 0) for about in self.descriptions.values()} - {0})
        severities = f", severity {', '.join(map(str, found))}" if found else ""
        return f"{self.name} ({self.origin}){severities}"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for of a set.

    Attributes:
        corruptions: Names; None for the fifteen of the benchmark, or for clean images.
        severities: From 1 to 5.
        n: Images of each domain: the first, of files at even distances; None for all.
        size: Of the images of a folder; None if all have one.
        classes: Names in the order of the model's logits, for folders.
        root: Of all data; see `acclimate.data.data_root`.
        domains: Which images of a set of several domains; None for all.
        ignore_label: The value in masks of a folder that stands for no label.
        progress: Called with the number of images that are made or read.
    """

    corruptions: tuple[str, ...] | None = None
    severities: tuple[int, ...] = USUAL
    n: int | None = None
    size: int | Size | None = None
    classes: Sequence[str] | None = None
    root: str | Path | None = None
    domains: DomainChoice | None = None
    ignore_label: int = IGNORE
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_request(BENCHMARK if self.corruptions is None else self.corruptions, self.severities)
        if self.n is not None and self.n < 1:
            raise BadInput(
                "out_of_range",
                f"Expected at least 1 image per domain, found {self.n}.",
                option="images",
                found=self.n,
            )
        for what, values in (("corruption", self.corruptions or ()), ("severity", self.severities)):
            for place, value in enumerate(values):
                if value in values[:place]:
                    raise BadInput(
                        "duplicate",
                        f"Expected every {what} at most once, found {', '.join(map(str, values))}.",
                        name=value,
                    )

    def count(self, name: str, total: int) -> int:
        """Return how many images of a domain are meant.

        Args:
            name: Of the domain, or its folder.
            total: How many it has.

        Raises:
            BadInput: It has not as many as are asked for.
        """
        if self.n is not None and self.n > total:
            raise BadInput(
                "out_of_range",
                f"Expected 1 to {total} images, the number of images in {name}, found {self.n}. "
                "Pass another --images (n= in Python), or omit it to use all.",
                option="images",
                found=self.n,
            )
        return total if self.n is None else self.n

    def refuse_severity(self, name: str, instead: str) -> None:
        """Refuse a severity that would mean nothing, as the images are taken as they are.

        Args:
            name: Of the data.
            instead: What to do, to have corrupted images.

        Raises:
            BadInput: Another severity than the usual one is asked for.
        """
        if self.severities != USUAL:
            found = ", ".join(map(str, self.severities))
            raise BadInput(
                "not_applicable",
                f"The severity {found} was requested, but the images of {name} are used without "
                f"corruption. Remove it, or {instead}.",
                option="severities",
            )

    def names(self, corruption: str) -> dict[int, str]:
        """Return the name of the domain of each severity; the severity is in it if needed."""
        several = len(self.severities) > 1
        return {s: f"{corruption}_{s}" if several else corruption for s in sorted(self.severities)}
