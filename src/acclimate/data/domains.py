"""Sets of labelled images in several domains: PACS and its like, anybody's, and a built-in one.

pacs = load_domains("pacs", size=224)
train, held = pacs.split("sketch")                     # 80 % and 20 %, as DomainBed splits
x, y = next(pacs.domains["sketch"].batches([torch.tensor(train[:32])]))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.builtin import CLASSES
from acclimate.builtin.domains import STYLES, render_style
from acclimate.data.domain_images import ArrayDomain, Domain, FolderDomain, Labels, Part
from acclimate.data.domain_sets import DOMAIN_SETS, DomainSpec, normalize_name
from acclimate.data.domain_split import HELD_OUT, split_keys
from acclimate.data.domain_tree import DomainTree, find_base, find_faults, list_tree, warn_counts
from acclimate.data.places import data_root
from acclimate.errors import BadInput, did_you_mean
from acclimate.streams.images import Pixels, Size, as_size, common_size

__all__ = ["Domain", "DomainSet", "Part", "load_domains"]

#: Images of each style that are made of the built-in domains, which have no end.
N_BUILTIN = 500


@dataclass(frozen=True)
class DomainSet:
    """Domains with the same classes.

    Attributes:
        name: Of the set, or the folder.
        classes: Names in the order of the class numbers.
        domains: Sorted by their names, the order that numbers them.
        description: What a result must say of its data; can be written as JSON.
    """

    name: str
    classes: tuple[str, ...]
    domains: dict[str, Domain]
    description: dict[str, Any]

    def find(self, name: str) -> str:
        """Return the domain that is meant; case, spaces and signs need not agree.

        Raises:
            BadInput: There is none, and the nearest name is told; or there are several.
        """
        if name in self.domains:
            return name
        wanted = normalize_name(name)
        alike = [domain for domain in self.domains if normalize_name(domain) == wanted]
        if len(alike) == 1:
            return alike[0]
        if alike:
            raise BadInput(
                "ambiguous_name",
                f'{self.name}: the name "{name}" matches several domains: {", ".join(alike)}. Use '
                "the exact name.",
                name=name,
                candidates=tuple(alike),
            )
        near = did_you_mean(name, self.domains)
        raise BadInput(
            "unknown_name",
            f'The data set "{self.name}" has no domain "{name}". {near}',
            kind="domain",
            name=name,
            known=tuple(self.domains),
        )

    def split(
        self, name: str, trial_seed: int = 0, fraction: float = HELD_OUT
    ) -> tuple[list[int], list[int]]:
        """Return which images of a domain are trained on and which are held out; DomainBed's rule.

        Args:
            name: Of a domain.
            trial_seed: Of the trial.
            fraction: Part that is held out.
        """
        domain = self.find(name)
        index = list(self.domains).index(domain)
        return split_keys(len(self.domains[domain]), trial_seed, index, fraction)

    def unreadable(self) -> dict[Path, str]:
        """Return the reason by path, of all images that could not be read so far."""
        return {
            path: why for each in self.domains.values() for path, why in each.unreadable.items()
        }


def load_domains(
    name: str,
    root: str | Path | None = None,
    path: str | Path | None = None,
    size: int | Size | None = None,
    n: int | None = None,
) -> DomainSet:
    """Return a set of domains; its image files are read when they are asked for.

    Args:
        name: `pacs`, `vlcs`, `office_home`, `terra_incognita`, `builtin-domains`; or a folder
            `DIR/<domain>/<class>/<image>`, which may also be given as `domains-folder` and `path`.
        root: Of all data; see `acclimate.data.data_root`.
        path: Where the set is, if not under the root.
        size: Height and width the images are brought to; None is 224 for the published sets, and
            for others the one size all images have.
        n: How many images of each domain, spread evenly over the sorted listing; None is all.

    Raises:
        BadInput: There is no such set or folder; a domain is missing or empty; a class is missing
            in a domain or has one image only; there are fewer than two domains.
    """
    if n is not None and n < 1:
        raise BadInput(
            "out_of_range",
            f"Expected at least 1 image per domain, found {n}.",
            option="images",
            found=n,
        )
    if name == "builtin-domains":
        return _make_builtin(size, n)
    if name not in DOMAIN_SETS and path is None and Path(name).is_dir():
        path, name = name, "domains-folder"
    if name not in DOMAIN_SETS:
        raise BadInput(
            "unknown_name",
            f'"{name}" is neither a data set with domains nor a folder. '
            f"{did_you_mean(name, DOMAIN_SETS)} A folder has one subfolder per domain, which has "
            "one subfolder of images per class.",
            kind="data set",
            name=name,
            known=tuple(DOMAIN_SETS),
        )
    spec = DOMAIN_SETS[name]
    base = find_base(spec, data_root(root), path)
    tree = list_tree(base, spec)
    faults = find_faults(tree, spec)
    if faults:
        more = f"\n  (+ {len(faults) - 5} more)" if len(faults) > 5 else ""
        raise BadInput("faulty_data", "\n  ".join(faults[:5]) + more, faults=tuple(faults))
    warn_counts(tree.counts(), spec)
    return _collect(tree, spec, spec.size if size is None else size, n)


def _collect(
    tree: DomainTree, spec: DomainSpec, size: int | Size | None, n: int | None
) -> DomainSet:
    to_key = tree.key
    numbers = {to_key(name): number for number, name in enumerate(tree.classes)}
    listed: dict[str, tuple[list[Path], Labels]] = {}
    for name, classes in tree.domains.items():
        paths = [path for each in classes.values() for path in each]
        labels = [numbers[to_key(key)] for key, each in classes.items() for _ in each]
        kept = _spread(name, len(paths), n)
        listed[name] = [paths[index] for index in kept], np.array(labels, np.int64)[kept]
        if lost := set(labels) - set(listed[name][1].tolist()):
            raise BadInput(
                "missing_classes",
                f'The {n} images selected from the domain "{name}" include none of the class '
                f'"{tree.classes[min(lost)]}". Increase --images.',
                missing=tuple(tree.classes[number] for number in sorted(lost)),
            )
    every = [path for paths, _ in listed.values() for path in paths]
    shape = common_size(every) if size is None else as_size(size)
    domains: dict[str, Domain] = {
        name: FolderDomain(tree.base, paths, labels, tree.classes, shape)
        for name, (paths, labels) in listed.items()
    }
    return _describe(tree.base.name if not spec.domains else spec.name, tree.classes, domains)


def _make_builtin(size: int | Size | None, n: int | None) -> DomainSet:
    if size is not None:
        raise BadInput(
            "not_applicable",
            "The images of builtin-domains have a fixed size of 32×32. Remove --size.",
            option="size",
        )
    domains: dict[str, Domain] = {
        name: ArrayDomain(*_render(name, n or N_BUILTIN), CLASSES, {"source": "made by code"})
        for name in STYLES
    }
    return _describe("builtin-domains", CLASSES, domains)


@lru_cache(maxsize=2 * len(STYLES))
def _render(name: str, n: int) -> tuple[Pixels, Labels]:
    images, labels = render_style(name, n)
    images.flags.writeable = labels.flags.writeable = False  # whoever asks again gets the same
    return images, labels


def _describe(name: str, classes: Sequence[str], domains: dict[str, Domain]) -> DomainSet:
    about = {"name": name, "domains": {key: each.description for key, each in domains.items()}}
    return DomainSet(name, tuple(classes), domains, about)


def _spread(name: str, total: int, n: int | None) -> list[int]:
    if n is not None and n > total:
        raise BadInput(
            "out_of_range",
            f"Expected --images to be at most {total}, the number of images in the domain "
            f'"{name}", found {n}.',
            option="images",
            found=n,
        )
    return list(range(total)) if n is None else [index * total // n for index in range(n)]
