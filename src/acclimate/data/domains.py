"""Data sets with several domains: PACS and its like, and local folders.

pacs = load_domains("pacs", size=224)
train, held = pacs.split("sketch")                     # 80 % and 20 %, as DomainBed splits
x, y = next(pacs.domains["sketch"].batches([train[:32]]))
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from acclimate.data.archives import guard_reading, is_plain, iter_paths, read_member
from acclimate.data.datasets import (
    SETS,
    DataSet,
    Report,
    list_unreadable,
    too_many,
    unknown_set,
)
from acclimate.data.domain_choice import HELD_OUT, PARTS, DomainChoice, split_keys
from acclimate.data.domain_tree import (
    DomainTree,
    compare_counts,
    find_faults,
    find_place,
    list_tree,
    normalize_name,
    warn_counts,
)
from acclimate.data.layouts import list_folders
from acclimate.data.masks import write_member
from acclimate.data.places import Notify, Progress, data_root
from acclimate.data.request import Data, Request
from acclimate.data.stores import (
    BATCH,
    Batches,
    FolderStore,
    ImageStore,
    concatenate,
    list_content,
    spread,
)
from acclimate.errors import BadInput, CorruptFile, did_you_mean
from acclimate.streams.batch import Domain
from acclimate.streams.images import SUFFIXES, Size, as_size, common_size

_LARGEST = 1 << 26  # bytes of a file in an archive
_STEP = 100  # files between two reports

#: Domain, class and file name.
Place = tuple[str, str, str]


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
        """Return the domain that is meant; case, spaces and signs need not agree.

        Raises:
            BadInput: There is none, or there are several; the message has the nearest name.
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

    def choose(self, choice: DomainChoice) -> dict[str, ImageStore]:
        """Return those images of each domain that are meant and can be read.

        Args:
            choice: What is meant; size and number of images are those of the set.

        Raises:
            BadInput: There is no such domain, or none of its images can be read.
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
                raise BadInput(
                    "unreadable_images",
                    f'None of the {len(part)} images of the domain "{domain}" can be read.',
                    paths=tuple(part.unreadable),
                )
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

    # Open ------------------------------------------------------------------------------------

    def open_all(
        self,
        root: Path,
        path: str | Path | None = None,
        size: int | Size | None = None,
        n: int | None = None,
    ) -> DomainSet:
        """Return all domains; see `load_domains`."""
        check_number(n)
        base = self.base(root, path)
        tree = list_tree(base, self)
        faults = find_faults(tree, self)
        if faults:
            more = f"\n  (+ {len(faults) - 5} more)" if len(faults) > 5 else ""
            raise BadInput("faulty_data", "\n  ".join(faults[:5]) + more, faults=tuple(faults))
        warn_counts(tree.counts(), self)
        listed = _list_domains(tree, n)
        size = self.size if size is None else size
        every = [path for store in listed.values() for path in store.paths]
        shape = common_size(every) if size is None else as_size(size)
        stores: dict[str, ImageStore] = {}
        for name, store in listed.items():
            about = {
                "source": "folder",
                "listing_sha256": list_content(store),
                "size": list(shape),
                "n": len(store),
            }
            stores[name] = replace(store, size=shape, description=about)
        return describe(self.name if self.domains else base.name, tree.classes, stores)

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
        """Return one domain, or all of them together.

        Args:
            split: `all`, or one of the parts of DomainBed's rule: `train` or `held`.
            root: Of all data.
            domain: Its name; None for all.
            path: The folder, if it is not under the root.
            size: Height and width of the images.
            n: Number of images of each domain.
        """
        choice = DomainChoice(names=() if domain is None else (domain,), part=split or PARTS[0])
        return concatenate(list(self.open_all(root, path, size, n).choose(choice).values()))

    def base(self, root: Path, path: str | Path | None = None) -> Path:
        """Return the folder of the data set.

        Under the root it may also have the name DomainBed gives it, such as PACS.

        Raises:
            BadInput: There is no such folder.
        """
        self.need_path(path)
        base = find_place(self.name, root) if path is None else Path(path)
        if base is None or not base.is_dir():
            place = base or root / self.name
            raise BadInput(
                "not_found",
                f'The folder {place} of the data set "{self.name}" does not exist. '
                f"{self.place(root)}",
                path=place,
            )
        return base

    # Measure, prepare ------------------------------------------------------------------------

    def to_data(self, asked: Request, path: Path | None = None) -> Data:
        if asked.corruptions is not None:
            raise BadInput(
                "not_applicable",
                f"The images of {self.name} are not corrupted while they are read. Remove the "
                "corruptions.",
                option="corruptions",
            )
        asked.refuse_severity(self.name, "pass a folder of corrupted copies as the data")
        choice = asked.domains if asked.domains is not None else DomainChoice()
        size = choice.size if choice.size is not None else asked.size
        data = self.open_all(data_root(asked.root), path, size, choice.images)
        groups: dict[str, tuple[Domain, ...]] = {}
        about: dict[str, dict[str, Any]] = {}
        for domain, part in data.choose(choice).items():
            if asked.progress is not None:
                asked.progress(f"reading {domain}", len(groups), len(choice.names or data.domains))
            images = part.select(spread(len(part), asked.count(domain, len(part))))
            groups[domain] = (images.to_domain(domain),)
            about[domain] = {**data.domains[domain].description, "part": choice.part}
            about[domain] |= {"n": len(images), "sha256": images.digest()}
            if choice.part != "all":
                about[domain]["trial_seed"] = choice.trial_seed
        unreadable = data.unreadable()
        return Data(data.name, groups, data.classes, about, is_folder=True, unreadable=unreadable)

    def to_batches(
        self,
        root: Path,
        n: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        **options: Any,
    ) -> Batches:
        """Return images of several domains together, `n` of them drawn by the seed.

        The option `domains` says which images; see `DomainChoice`.
        """
        choice = options.get("domains") or DomainChoice()
        size = choice.size if choice.size is not None else options.get("size")
        data = self.open_all(root, options.get("path"), size, choice.images)
        together = concatenate(list(data.choose(choice).values()))
        generator = torch.Generator().manual_seed(seed)
        keys = torch.randperm(len(together), generator=generator)[:n].tolist()
        normalization = options.get("normalization")
        return Batches(
            together.select(keys), BATCH if batch_size is None else batch_size, seed, normalization
        )

    # Fetch, check ----------------------------------------------------------------------------

    def find(self, root: Path) -> Path | None:
        return find_place(self.name, root)

    def install(
        self, folder: Path, place: Path, progress: Progress | None, notify: Notify | None
    ) -> dict[str, Any]:
        for target, content in self.find_images(place, progress):
            write_member(folder.joinpath(*target), content, place, folder)
        tree = list_tree(folder, self)
        faults = find_faults(tree, self)
        if faults:
            raise BadInput(
                "faulty_data",
                f"The files are not {self.name}: " + "\n  ".join(faults[:5]),
                faults=tuple(faults),
            )
        warn_counts(tree.counts(), self)
        return {"licence": self.licence, "images": tree.counts()}

    def find_images(self, place: Path, progress: Progress | None) -> Iterable[tuple[Place, bytes]]:
        """Yield the images of an archive or folder, and where they go."""
        known = {normalize_name(name): name for name in self.domains}
        n = 0
        for path, file in iter_paths(place):
            target = _find_target(path, known)
            if target is not None:
                n += 1
                if progress is not None and n % _STEP == 0:
                    progress("unpacking images", n, self.n_images)
                yield target, read_member(file, _LARGEST, place)
        if n == 0:
            raise BadInput(
                "wrong_archive",
                f"{place} contains no image of {self.name}: expected files such as "
                f"{next(iter(self.domains))}/<class>/<image>, at any depth. Pass the archive that "
                "DomainBed uses, or a folder in that layout.",
                path=place,
            )

    def state(self, root: Path) -> str:
        if state := super().state(root):
            return state
        base = self.find(root) if self.domains else None
        if base is None:
            return ""
        found = {normalize_name(folder.name) for folder in list_folders(base)}
        n = sum(normalize_name(domain) in found for domain in self.domains)
        return f"folder, {n} of {len(self.domains)} domains"

    def check(
        self, root: Path, path: Path | None = None, progress: Progress | None = None
    ) -> Report:
        base = self.base(root, path)
        tree = list_tree(base, self)
        facts, counts = {"folder": str(base)}, tree.counts()
        for domain, classes in tree.domains.items():
            facts[domain] = f"{counts[domain]:,} images, {len(classes)} classes"
        facts["in all"] = f"{sum(counts.values()):,} images, {len(tree.classes)} classes"
        if tree.others:
            facts["not used"] = ", ".join(tree.others)
        problems = find_faults(tree, self) or compare_counts(counts, self)
        images = [path for own in tree.domains.values() for paths in own.values() for path in paths]
        unreadable = list_unreadable(images, progress)
        facts["unreadable"] = f"{len(unreadable):,}"
        lines = [f"{path} cannot be read ({reason})." for path, reason in unreadable.items()]
        return Report(facts, problems + lines)


@dataclass(frozen=True, kw_only=True)
class CameraTraps(DomainFolders):
    """Images by place and kind of animal, sorted by annotations when they are downloaded."""

    def find_images(self, place: Path, progress: Progress | None) -> Iterable[tuple[Place, bytes]]:
        annotations, archive = (place / file.name for file in self.files)
        if not (annotations.is_file() and archive.is_file()):
            yield from super().find_images(place, progress)
            return
        targets = self._read_annotations(annotations)
        n = 0
        for path, file in iter_paths(archive):
            wanted = targets.pop(path.name, [])
            content = read_member(file, _LARGEST, archive) if wanted else b""
            for target in wanted:  # an image with two kinds of animals is in two classes
                n += 1
                if progress is not None and n % _STEP == 0:
                    progress("sorting images", n, self.n_images)
                yield target, content
        if targets:
            raise CorruptFile(
                "wrong_content",
                f"{archive} does not contain {len(targets)} of the annotated images, such as "
                f"{next(iter(targets))}. Remove the file and download it again.",
                path=archive,
            )

    def _read_annotations(self, source: Path) -> dict[str, list[Place]]:
        """Return where each image goes, by its name: places and classes as in DomainBed."""
        places: dict[str, set[Place]] = {}
        for path, file in iter_paths(source):
            if path.suffix != ".json":
                continue
            try:
                with guard_reading(source):
                    content = json.load(file)
                self._sort_annotations(content, places)
            except (UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
                raise CorruptFile(
                    "unreadable_file",
                    f"{path.name} in {source} differs from the published file "
                    f"({type(error).__name__}: {error}). Remove {source} and download it again.",
                    path=source / path.name,
                ) from error
        if not places:
            raise CorruptFile(
                "wrong_content",
                f"{source} contains no annotation of an image of {', '.join(self.domains)}. Remove "
                "the file and download it again.",
                path=source,
            )
        return {name: sorted(wanted) for name, wanted in places.items()}

    def _sort_annotations(self, content: dict[str, Any], places: dict[str, set[Place]]) -> None:
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
                places.setdefault(name, set()).add((domain, kind, name))


def load_domains(
    name: str,
    root: str | Path | None = None,
    path: str | Path | None = None,
    size: int | Size | None = None,
    n: int | None = None,
) -> DomainSet:
    """Return all domains of a data set; image files are read when they are needed.

    Args:
        name: `pacs`, `vlcs`, `office_home`, `terra_incognita`, `builtin-domains`; or a folder
            `DIR/<domain>/<class>/<image>`, which may also be given as `domains-folder` and `path`.
        root: Of all data; see `acclimate.data.data_root`.
        path: Where the set is, if not under the root.
        size: Height and width the images are resized to; None is 224 for the published sets, and
            for others the one size all images have.
        n: How many images of each domain, spread evenly over the sorted listing; None is all.

    Raises:
        BadInput: There is no such set or folder; a domain is missing or empty; a class is missing
            in a domain or has one image only; there are fewer than two domains.
    """
    entry, folder = find_domain_set(name)
    return entry.open_all(data_root(root), folder if path is None else path, size, n)


def find_domain_set(name: str) -> tuple[DomainFolders, Path | None]:
    """Return the data set with domains of a name, or the layout of a folder and the folder.

    Raises:
        BadInput: There is neither.
    """
    known = {key: each for key, each in SETS.items() if isinstance(each, DomainFolders)}
    if name in known:
        return known[name], None
    if Path(name).is_dir():
        return known["domains-folder"], Path(name)
    raise unknown_set(
        name,
        f"{did_you_mean(name, known)} A folder has one subfolder per domain, which has one "
        "subfolder of images per class.",
        known,
    )


def describe(name: str, classes: Sequence[str], domains: dict[str, ImageStore]) -> DomainSet:
    """Return domains as a set."""
    about = {"name": name, "domains": {key: each.description for key, each in domains.items()}}
    return DomainSet(name, tuple(classes), domains, about)


def check_number(n: int | None) -> None:
    """Refuse a number of images below one."""
    if n is not None and n < 1:
        raise BadInput(
            "out_of_range",
            f"Expected at least 1 image per domain, found {n}.",
            option="images",
            found=n,
        )


def _list_domains(tree: DomainTree, n: int | None) -> dict[str, FolderStore]:
    """Return the images of each domain, whose size is not known yet."""
    to_key = tree.key
    numbers = {to_key(name): number for number, name in enumerate(tree.classes)}
    stores = {}
    for name, classes in tree.domains.items():
        paths = [path for each in classes.values() for path in each]
        labels = [numbers[to_key(key)] for key, each in classes.items() for _ in each]
        if n is not None and n > len(paths):
            raise too_many(f'the domain "{name}"', len(paths), n)
        kept = spread(len(paths), n)
        stores[name] = FolderStore(
            paths=[paths[key] for key in kept],
            names=[paths[key].relative_to(tree.base).as_posix() for key in kept],
            labels=np.array(labels, np.int64)[kept],
            classes=tree.classes,
            size=(1, 1),
            squash=True,
        )
        if lost := set(labels) - set(np.unique(np.asarray(stores[name].labels)).tolist()):
            raise BadInput(
                "missing_classes",
                f'The {n} images selected from the domain "{name}" include none of the class '
                f'"{tree.classes[min(lost)]}". Increase --images.',
                missing=tuple(tree.classes[number] for number in sorted(lost)),
            )
    return stores


def _find_target(path: PurePosixPath, known: Mapping[str, str]) -> Place | None:
    """Return where an image goes; None for all that is no image of a known domain."""
    parts = path.parts
    if len(parts) < 3 or path.suffix.lower() not in SUFFIXES or "__MACOSX" in parts:
        return None
    domain = known.get(normalize_name(parts[-3]))
    if domain is None or not (is_plain(parts[-2]) and is_plain(parts[-1])):
        return None
    return domain, parts[-2], parts[-1]
