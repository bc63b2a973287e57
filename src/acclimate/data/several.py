"""Sets of several domains as what a comparison runs on, and as what is prepared from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from acclimate.data.domain_pool import DomainChoice, Pool, choose_parts, spread
from acclimate.data.domains import load_domains
from acclimate.data.request import Data, Request
from acclimate.errors import BadInput
from acclimate.streams import Domain
from acclimate.streams.images import Size


def load_several(name: str, asked: Request) -> Data:
    """Return the domains of a set that are asked for, each with its images read when needed.

    Args:
        name: A set of domains, or a folder of them.
        asked: What of it.

    Raises:
        BadInput: There is no such set or domain, or corruptions are asked for.
    """
    if asked.corruptions is not None:
        raise BadInput(
            "not_applicable",
            f"The images of {name} are not corrupted while they are read. Remove the corruptions.",
            option="corruptions",
        )
    asked.refuse_severity(name, "pass a folder of corrupted copies as the data")
    choice = asked.domains if asked.domains is not None else DomainChoice()
    size = choice.size if choice.size is not None else asked.size
    data = load_domains(name, asked.root, size=size, n=choice.images)
    groups: dict[str, tuple[Domain, ...]] = {}
    about: dict[str, dict[str, Any]] = {}
    for domain, part in choose_parts(data, choice).items():
        if asked.progress is not None:
            asked.progress(f"reading {domain}", len(groups), len(choice.names or data.domains))
        keys = spread(len(part), asked.count(domain, len(part)))
        pool = Pool([part], keys)
        groups[domain] = (Domain(domain, pool, pool.labels),)
        about[domain] = {**data.domains[domain].description, "part": choice.part, "n": len(pool)}
        about[domain]["sha256"] = part.digest(keys)
        if choice.part != "all":
            about[domain]["trial_seed"] = choice.trial_seed
    return Data(
        data.name, groups, data.classes, about, is_folder=True, unreadable=data.unreadable()
    )


def open_several(
    name: str,
    choice: DomainChoice,
    n: int | None,
    seed: int,
    root: str | Path | None = None,
    size: int | Size | None = None,
) -> tuple[Domain, Sequence[str]]:
    """Return images of several domains as one, and the names of the classes.

    Args:
        name: A set of domains, or a folder of them.
        choice: Which images.
        n: Only so many of all together, drawn by the seed; None for all.
        seed: Of the draw.
        root: Of all data.
        size: Of the images, unless the choice says it.
    """
    size = choice.size if choice.size is not None else size
    data = load_domains(name, root, size=size, n=choice.images)
    parts = list(choose_parts(data, choice).values())
    total = sum(len(part) for part in parts)
    keys = torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:n]
    pool = Pool(parts, keys.tolist())
    return Domain(name, pool, pool.labels), data.classes
