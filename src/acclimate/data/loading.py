"""The data of a comparison by name: sets of the catalog, corrupted or not, and anybody's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.corruptions import BENCHMARK, apply, provenance
from acclimate.corruptions.frost import frost_from
from acclimate.data import SETS, LabelledImages, data_root, load, load_folder
from acclimate.data.arrays import array_sha256
from acclimate.data.folders import LabelledFolder
from acclimate.data.image_files import find_corrupted, find_domains, list_classes, open_files
from acclimate.data.ledger import LEDGER
from acclimate.data.masked import has_masks, load_copies, load_masked
from acclimate.data.request import Data, Request
from acclimate.data.several import load_several
from acclimate.errors import BadInput, did_you_mean
from acclimate.streams import Domain
from acclimate.streams.layout import check_nesting

#: By group: name of the domain, its folder, and what is known of it.
Places = dict[str, list[tuple[str, Path, dict[str, Any]]]]

#: Images of the built-in task if no number is asked for; it has no end of its own.
N_BUILTIN = 2000


def load_data(name: str, request: Request | None = None) -> Data:
    """Return a set of the catalog, or a folder of anybody's, as domains.

    Args:
        name: A key of `acclimate.data.SETS`; or a folder: `DIR/<class>/<image>` for one domain,
            `DIR/<domain>/<class>/<image>` for several, or what `acclimate data corrupt` made of
            one, `DIR/<corruption>/<severity>/<class>/<image>`. Sets of several domains, such as
            `pacs`, and folders if domains are asked for, are as `load_domains` gives them: brought
            to their size whatever their shape. Where there are masks with a class for every pixel,
            see `acclimate.data.masks.load_masks` for the layouts.
        request: What of it.

    Raises:
        BadInput: There is no such set or folder, or it cannot give what is asked for.
    """
    asked = request if request is not None else Request()
    if asked.domains is not None or (name in SETS and SETS[name].kind == "domains"):
        return load_several(name, asked)
    if name not in SETS:
        if Path(name).is_dir():
            return _load_own(Path(name), asked)
        raise BadInput(
            "unknown_name",
            f'"{name}" is neither a folder nor a data set. {did_you_mean(name, SETS)} A folder '
            "has one subfolder per class.",
            kind="data set",
            name=name,
            known=tuple(SETS),
        )
    kind = SETS[name].kind
    if kind == "masks":
        return load_masked(name, asked)
    if kind == "folder":
        return _load_files(name, asked)
    return _load_corrupted(name, asked) if kind == "cifar_c" else _load_arrays(name, asked)


def corrupt_images(
    images: LabelledImages, request: Request, seed: int = 0
) -> tuple[dict[str, tuple[Domain, ...]], dict[str, dict[str, Any]]]:
    """Make corrupted copies in memory; return the domains by corruption, and their descriptions."""
    groups, about = {}, {}
    for corruption in request.corruptions or BENCHMARK:
        own = []
        for number, (severity, name) in enumerate(request.names(corruption).items()):
            if request.progress is not None:
                request.progress(f"making {corruption}", number, len(request.severities))
            x = apply(images.images, corruption, severity, seed)
            own.append(Domain(name, x, images.labels))
            about[name] = {
                "name": images.description["name"],
                "source": "generated",
                "sha256": array_sha256(x),
                "n": len(x),
                "corruption": corruption,
                "severity": severity,
                "seed": seed,
                "provenance": provenance(corruption),
                "clean": images.description,
            }
        groups[corruption] = tuple(own)
    return groups, about


def _load_corrupted(name: str, asked: Request) -> Data:
    groups, about = {}, {}
    for corruption in asked.corruptions or BENCHMARK:
        own = []
        for severity, domain in asked.names(corruption).items():
            found = load(
                name,
                root=asked.root,
                corruption=corruption,
                severity=severity,
                progress=asked.progress,
            )
            own.append(_domain(domain, found, asked.count(domain, len(found))))
            about[domain] = {**found.description, "n": len(own[-1])}
        groups[corruption] = tuple(own)
    clean = str(SETS[name].clean)

    return Data(
        name,
        groups,
        SETS[name].classes,
        about,
        source=clean,
        clean=lambda: _domain("clean", load(clean, root=asked.root), asked.n),
    )


def _domain(name: str, found: LabelledImages, n: int | None) -> Domain:
    # Labels are copied: torch wants memory that could be written to.
    return Domain(name, found.images[:n], np.array(found.labels[:n]))


def _load_arrays(name: str, asked: Request) -> Data:
    options: dict[str, Any] = {"n": asked.n or N_BUILTIN} if SETS[name].kind == "made" else {}
    whole = load(name, root=asked.root, **options)
    n = asked.count(name, len(whole))
    images = LabelledImages(
        whole.images[:n], np.array(whole.labels[:n]), whole.classes, {**whole.description, "n": n}
    )
    clean = Domain("clean", images.images, images.labels)
    groups: dict[str, tuple[Domain, ...]]
    if asked.corruptions is None:
        asked.refuse_severity(name, "pass --corruptions as well")
        groups, about = {name: (Domain(name, clean.x, clean.y),)}, {name: images.description}
    else:
        with frost_from(data_root(asked.root)):
            groups, about = corrupt_images(images, asked)
    source = "cifar10" if name == "cifar10_1" else name
    return Data(name, groups, images.classes, about, source=source, clean=lambda: clean)


def _load_files(name: str, asked: Request) -> Data:
    """Load ImageNet, or ImageNet-C, in their published layouts."""
    if name == "image-folder":
        raise BadInput(
            "wrong_loader",
            'The data set "image-folder" is a local folder. Pass the folder itself: --data DIR.',
            name=name,
        )
    options: dict[str, Any] = {"root": asked.root, "size": asked.size, "classes": asked.classes}
    if name == "imagenet":
        _refuse_corruptions(asked, name, "use --data imagenetc")
        return _collect(name, {name: [(name, load_folder(name, **options))]}, asked)
    folders = {
        corruption: [
            (domain, load_folder(name, corruption=corruption, severity=severity, **options))
            for severity, domain in asked.names(corruption).items()
        ]
        for corruption in asked.corruptions or BENCHMARK
    }
    return _collect(name, folders, asked)


def _load_own(root: Path, asked: Request) -> Data:
    corrupted = find_corrupted(root)
    if corrupted:
        places = _choose_corrupted(root, corrupted, asked)
        if any(has_masks(str(place)) for members in places.values() for _, place, _ in members):
            return load_copies(root, places, asked)
    elif has_masks(str(root)):
        return load_masked(str(root), asked)
    else:
        instead = f"generate corrupted copies first: acclimate data corrupt {root} --out DIR"
        _refuse_corruptions(asked, str(root), instead)
        found = find_domains(root, asked.classes)
        places = {name: [(name, place, {})] for name, place in found.items()}
    flat = [place for members in places.values() for _, place, _ in members]
    classes = asked.classes or list_classes(flat)
    origin = "generated" if (root / LEDGER).is_file() else "folder"
    folders = {
        group: [
            (
                name,
                LabelledFolder(
                    place,
                    asked.size,
                    classes=classes,
                    description={"name": name, "folder": str(place), "source": origin, **about},
                ),
            )
            for name, place, about in members
        ]
        for group, members in places.items()
    }
    if asked.classes is None:
        for _, folder in (each for members in folders.values() for each in members):
            check_nesting(folder.root, folder.paths)
    return _collect(root.resolve().name, folders, asked)


def _choose_corrupted(root: Path, found: Mapping[str, Sequence[int]], asked: Request) -> Places:
    """Return what is asked for of `root/<corruption>/<severity>`: name, folder, description."""
    places: Places = {}
    for corruption in asked.corruptions or found:
        missing = [s for s in asked.severities if s not in found.get(corruption, ())]
        if missing:
            there = ", ".join(f"{name} {list(own)}" for name, own in found.items())
            raise BadInput(
                "not_found",
                f"Expected {corruption} at severity {missing[0]} in {root}, found: {there}. "
                "Select one of these with --corruptions and --severity, or generate the missing "
                "images: acclimate data corrupt",
                path=root / corruption / str(missing[0]),
            )
        places[corruption] = [
            (
                name,
                root / corruption / str(severity),
                {"corruption": corruption, "severity": severity},
            )
            for severity, name in asked.names(corruption).items()
        ]
    return places


def _collect(
    name: str, folders: Mapping[str, Sequence[tuple[str, LabelledFolder]]], asked: Request
) -> Data:
    groups, about = {}, {}
    unreadable: dict[Path, str] = {}
    classes: tuple[str, ...] = ()
    for group, members in folders.items():
        own = []
        for domain, folder in members:
            n = asked.count(str(folder.root), len(folder.paths))
            images, labels, sha256, bad = open_files(folder, n, asked.progress)
            own.append(Domain(domain, images, labels))
            about[domain] = {**folder.description, "sha256": sha256, "n": len(labels)}
            about[domain]["size"] = list(folder.size)
            unreadable |= bad
            classes = tuple(folder.classes)
        groups[group] = tuple(own)
    return Data(name, groups, classes, about, is_folder=True, unreadable=unreadable)


def _refuse_corruptions(asked: Request, name: str, instead: str) -> None:
    if asked.corruptions is not None:
        raise BadInput(
            "not_applicable",
            f"Image files are not corrupted while they are read. Instead, {instead}.",
            option="corruptions",
        )
    asked.refuse_severity(name, instead)
