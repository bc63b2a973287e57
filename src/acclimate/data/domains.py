"""Data sets with several domains: PACS and its like, and local folders.

pacs = load_domains("pacs", size=224)
train, held = pacs.split("sketch")                     # 80 % and 20 %, as DomainBed splits
x, y = next(pacs.domains["sketch"].batches([train[:32]]))
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from acclimate.data.archives import guard_reading, is_plain, iter_paths
from acclimate.data.arrays import MALFORMED
from acclimate.data.datasets import SETS, DataSet, Report, unknown_set, unpack
from acclimate.data.domain_choice import HELD_OUT, PARTS, DomainChoice, split_keys
from acclimate.data.layouts import Listing, find_place, list_domains, list_folders, normalize_name
from acclimate.data.mask_files import refuse
from acclimate.data.places import Feedback, Progress, data_root, silent
from acclimate.data.request import (
    Data,
    Request,
    Selection,
    SourceRequest,
    check_number,
    gather,
    take,
)
from acclimate.data.stores import (
    Batches,
    FolderStore,
    ImageStore,
    concatenate,
    list_content,
    list_unreadable,
)
from acclimate.errors import AcclimateWarning, BadInput, CorruptFile, did_you_mean, warn
from acclimate.streams.images import SUFFIXES, Size, as_size, common_size


@dataclass(frozen=True)
class DomainSet:
    """Domains with the same classes.

    Attributes:
        name: Of the set, or the folder.
        classes: Names in the order of the class numbers.
        domains: Sorted by their names, the order that numbers them.
        description: What a result must record about its data; can be written as JSON.
    """

    name: str
    classes: tuple[str, ...]
    domains: dict[str, ImageStore]
    description: dict[str, Any]

    def find(self, name: str) -> str:
        """Return the domain that is meant; case, spaces and signs need not agree."""
        if name in self.domains:
            return name
        wanted = normalize_name(name)
        alike = tuple(domain for domain in self.domains if normalize_name(domain) == wanted)
        if len(alike) == 1:
            return alike[0]
        if alike:
            text = (
                f'{self.name}: the name "{name}" matches several domains: {", ".join(alike)}. Use '
                "the exact name."
            )
            raise BadInput("ambiguous_name", text, name=name, candidates=alike)
        near, known = did_you_mean(name, self.domains), tuple(self.domains)
        text = f'The data set "{self.name}" has no domain "{name}". {near}'
        raise BadInput("unknown_name", text, kind="domain", name=name, known=known)

    def split(
        self, name: str, trial_seed: int = 0, fraction: float = HELD_OUT
    ) -> tuple[list[int], list[int]]:
        """Return which images of a domain are trained on and held out; see `split_keys`."""
        domain = self.find(name)
        index = list(self.domains).index(domain)
        return split_keys(len(self.domains[domain]), trial_seed, index, fraction)

    def unreadable(self) -> dict[Path, str]:
        """Return the reason by path, of all images that could not be read so far."""
        return {
            path: why for each in self.domains.values() for path, why in each.unreadable.items()
        }

    def choose(self, choice: DomainChoice) -> dict[str, ImageStore]:
        """Return those images of each domain that are meant and can be read.

        Size and number of images are those of the set.
        """
        found = {}
        for name in choice.names or self.domains:
            domain = self.find(name)
            part = self.domains[domain]
            if choice.part != "all":
                train, held = self.split(domain, choice.trial_seed)
                part = part.select(train if choice.part == "train" else held)
            good = part.readable()
            if not good:
                text = f'None of the {len(part)} images of the domain "{domain}" can be read.'
                raise BadInput("unreadable_images", text, paths=tuple(part.unreadable))
            found[domain] = part.select(good)
        return found


@dataclass(frozen=True, kw_only=True)
class DomainFolders(DataSet):
    """Image files in `<domain>/<class>`.

    Attributes:
        domains: Number of images by domain, in DomainBed's order; empty for local folders.
        n_classes: Number of classes; 0 if it is not known.
        size: The side that images are resized to by default.
    """

    domains: Mapping[str, int] = field(default_factory=dict)
    n_classes: int = 0
    size: int | None = None

    is_files = has_domains = True

    @property
    def n_images(self) -> int:
        """Number of images of all domains, as published."""
        return sum(self.domains.values())

    def open_all(self, root: Path, path: str | Path | None, asked: Selection) -> DomainSet:
        """Return all domains; see `load_domains`."""
        check_number(asked.n)
        base = self.base(root, path)
        listing = self._list(base)
        size = self.size if asked.size is None else asked.size
        chosen = {name: _take(store, name, asked.n) for name, store in listing.parts.items()}
        every = [path for store in chosen.values() for path in store.paths]
        shape = common_size(every) if size is None else as_size(size)
        stores: dict[str, ImageStore] = {}
        for name, store in chosen.items():
            about = {"source": "folder", "listing_sha256": list_content(store)}
            stores[name] = store.sized(shape).described(**about, size=list(shape))
        return describe(self.name if self.domains else base.name, listing.classes, stores)

    def _list(self, base: Path) -> Listing:
        """Return what lies in a folder, or refuse it; warn if it is not what was published."""
        listing = list_domains(base, self)
        refuse(listing.faults[""])
        if found := tuple(listing.compare(self.name, "domain", self.domains).values()):
            warn(AcclimateWarning("set_differs", "\n  ".join(found), differences=found))
        return listing

    def open(
        self,
        split: str | None,
        root: Path,
        *,
        domain: str | None = None,
        path: str | Path | None = None,
        size: int | Size | None = None,
        n: int | None = None,
    ) -> ImageStore:
        """Return one domain, or all of them together; `n` images of each.

        The split is `all`, or one of the parts of DomainBed's rule: `train` or `held`.
        """
        choice = DomainChoice(names=() if domain is None else (domain,), part=split or PARTS[0])
        data = self.open_all(root, path, Selection(size=size, n=n))
        return concatenate(list(data.choose(choice).values()))

    def to_data(self, asked: Request, path: Path | None = None) -> Data:
        if asked.corruptions is not None:
            text = f"The images of {self.name} are not corrupted while they are read. Remove the "
            raise BadInput("not_applicable", text + "corruptions.", option="corruptions")
        asked.refuse_severity(self.name, "pass a folder of corrupted copies as the data")
        choice, data = self._open_chosen(asked, path)
        seed = {} if choice.part == "all" else {"trial_seed": choice.trial_seed}
        groups = {
            domain: {domain: part.described(part=choice.part, **seed)}
            for domain, part in data.choose(choice).items()
        }
        found = gather(data.name, groups, asked, is_checked=True)
        return replace(found, unreadable=data.unreadable())

    def to_batches(self, asked: SourceRequest, path: Path | None = None) -> Batches:
        """Return images of several domains together, `n` of them drawn by the seed."""
        choice, data = self._open_chosen(asked, path)
        together = concatenate(list(data.choose(choice).values()))
        generator = torch.Generator().manual_seed(asked.seed)
        keys = torch.randperm(len(together), generator=generator)[: asked.n].tolist()
        return asked.batches(together.select(keys))

    def _open_chosen(self, asked: Selection, path: Path | None) -> tuple[DomainChoice, DomainSet]:
        choice = asked.domains or DomainChoice()
        size = choice.size if choice.size is not None else asked.size
        chosen = Selection(size=size, n=choice.images)
        return choice, self.open_all(data_root(asked.root), path, chosen)

    def find(self, root: Path) -> Path | None:
        # It may also have the name DomainBed gives it, such as PACS.
        return find_place(self.name, root)

    def install(self, folder: Path, place: Path, feedback: Feedback) -> dict[str, Any]:
        if not self.unpack(folder, place, feedback):
            text = (
                f"{place} contains no image of {self.name}: expected files such as "
                f"{next(iter(self.domains))}/<class>/<image>, at any depth. Pass the archive that "
                "DomainBed uses, or a folder in that layout."
            )
            raise BadInput("wrong_archive", text, path=place)
        counts = {name: len(store) for name, store in self._list(folder).parts.items()}
        return {"licence": self.licence, "images": counts}

    def unpack(self, folder: Path, place: Path, feedback: Feedback) -> int:
        """Write the images of an archive or folder to where they belong; return how many."""
        known = {normalize_name(name): name for name in self.domains}

        def find_targets(path: PurePosixPath) -> list[str]:
            parts = path.parts
            if len(parts) < 3 or path.suffix.lower() not in SUFFIXES or "__MACOSX" in parts:
                return []
            domain = known.get(normalize_name(parts[-3]))
            is_safe = is_plain(parts[-2]) and is_plain(parts[-1])
            return [f"{domain}/{parts[-2]}/{parts[-1]}"] if domain and is_safe else []

        return unpack(place, folder, find_targets, self.n_images, feedback)

    def state(self, root: Path) -> str:
        if state := super().state(root):
            return state
        base = self.find(root) if self.domains else None
        if base is None:
            return ""
        found = {normalize_name(folder.name) for folder in list_folders(base)}
        n = sum(normalize_name(domain) in found for domain in self.domains)
        return f"folder, {n} of {len(self.domains)} domains"

    def check(self, root: Path, path: Path | None = None, progress: Progress = silent) -> Report:
        base = self.base(root, path)
        listing = list_domains(base, self)
        facts = {"folder": str(base)}
        for domain, store in listing.parts.items():
            n_classes = len(np.unique(np.asarray(store.labels)))
            facts[domain] = f"{len(store):,} images, {n_classes} classes"
        every = [path for store in listing.parts.values() for path in store.paths]
        facts["in all"] = f"{len(every):,} images, {len(listing.classes)} classes"
        if listing.unused:
            facts["not used"] = ", ".join(listing.unused)
        differences = listing.compare(self.name, "domain", self.domains)
        problems = listing.faults[""] or list(differences.values())
        unreadable = list_unreadable(every, progress)
        facts["unreadable"] = f"{len(unreadable):,}"
        return Report(facts, problems + unreadable)


@dataclass(frozen=True, kw_only=True)
class CameraTraps(DomainFolders):
    """Images by place and kind of animal, sorted by annotations when they are downloaded."""

    def unpack(self, folder: Path, place: Path, feedback: Feedback) -> int:
        annotations, archive = (place / file.name for file in self.files)
        if not (annotations.is_file() and archive.is_file()):
            return super().unpack(folder, place, feedback)
        # An image with two kinds of animals is in two classes.
        targets = self._read_annotations(annotations)
        n = unpack(
            archive, folder, lambda path: targets.pop(path.name, []), self.n_images, feedback
        )
        if targets:
            text = (
                f"{archive} does not contain {len(targets)} of the annotated images, such as "
                f"{next(iter(targets))}. Remove the file and download it again."
            )
            raise CorruptFile("wrong_content", text, path=archive)
        return n

    def _read_annotations(self, source: Path) -> dict[str, list[str]]:
        """Return where each image goes, by its name: places and classes as in DomainBed."""
        targets: dict[str, set[str]] = {}
        for path, file in iter_paths(source):
            if path.suffix != ".json":
                continue
            try:
                with guard_reading(source):
                    content = json.load(file)
                self._sort_annotations(content, targets)
            except (*MALFORMED, KeyError, TypeError, AttributeError) as error:
                text = (
                    f"{path.name} in {source} differs from the published file "
                    f"({type(error).__name__}: {error}). Remove {source} and download it again."
                )
                raise CorruptFile("unreadable_file", text, path=source / path.name) from error
        if not targets:
            text = (
                f"{source} contains no annotation of an image of {', '.join(self.domains)}. Remove "
                "the file and download it again."
            )
            raise CorruptFile("wrong_content", text, path=source)
        return {name: sorted(wanted) for name, wanted in targets.items()}

    def _sort_annotations(self, content: dict[str, Any], targets: dict[str, set[str]]) -> None:
        kinds = {entry["id"]: entry["name"] for entry in content["categories"]}
        images = {
            entry["id"]: (f"location_{entry['location']}", str(entry["file_name"]))
            for entry in content["images"]
        }
        for entry in content["annotations"]:
            if entry["image_id"] not in images:
                continue
            domain, name = images[entry["image_id"]]
            kind = kinds[entry["category_id"]]
            if domain in self.domains and kind in self.classes and is_plain(name):
                targets.setdefault(name, set()).add(f"{domain}/{kind}/{name}")


def load_domains(
    name: str,
    root: str | Path | None = None,
    path: str | Path | None = None,
    size: int | Size | None = None,
    n: int | None = None,
) -> DomainSet:
    """Return all domains of a data set or of a folder; image files are read when they are needed.

    Args:
        name: A set with domains; or a folder `DIR/<domain>/<class>/<image>`, which may also be
            given as `domains-folder` and `path`.
        root: Of all data; see `acclimate.data.data_root`.
        path: Where the set is, if not under the root.
        size: Height and width the images are resized to; None is 224 for the published sets, and
            for others the one size all images have.
        n: How many images of each domain, spread evenly over the sorted listing; None is all.
    """
    entry, folder = find_domain_set(name)
    place = folder if path is None else path
    return entry.open_all(data_root(root), place, Selection(size=size, n=n))


def find_domain_set(name: str) -> tuple[DomainFolders, Path | None]:
    """Return the data set with domains of a name, or the layout of a folder and the folder."""
    known = {key: each for key, each in SETS.items() if isinstance(each, DomainFolders)}
    if name in known:
        return known[name], None
    if Path(name).is_dir():
        return known["domains-folder"], Path(name)
    hint = "A folder has one subfolder per domain, which has one subfolder of images per class."
    raise unknown_set(name, known, hint)


def describe(name: str, classes: Sequence[str], domains: dict[str, ImageStore]) -> DomainSet:
    """Return domains as a set."""
    about = {"name": name, "domains": {key: each.description for key, each in domains.items()}}
    return DomainSet(name, tuple(classes), domains, about)


def _take(store: FolderStore, name: str, n: int | None) -> FolderStore:
    """Return so many images of a domain, which must be of all classes that it has."""
    few = take(store, f'the domain "{name}"', n)
    lost = np.setdiff1d(np.asarray(store.labels), np.asarray(few.labels)).tolist()
    if missing := tuple(store.classes[number] for number in lost):
        text = (
            f'The {n} images selected from the domain "{name}" include none of the class '
            f'"{missing[0]}". Increase --images.'
        )
        raise BadInput("missing_classes", text, missing=missing)
    return few
