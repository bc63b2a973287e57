"""Putting sets of several domains in place: out of archives and folders, or from the internet."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from acclimate._version import __version__
from acclimate.data.archives import guard_reading, is_plain, iter_paths
from acclimate.data.arrays import write_card
from acclimate.data.domain_sets import DOMAIN_SETS, DomainSpec, normalize_name
from acclimate.data.domain_tree import find_faults, find_place, list_tree, warn_counts
from acclimate.data.download import fetch
from acclimate.data.places import Notify, Progress, hold_lock, make_folder, staged_folder
from acclimate.errors import BadInput, CorruptFile
from acclimate.streams.images import SUFFIXES

_DOWNLOADS = ".downloads"
_STEP = 100  # files between two reports

#: Domain, class and file name.
Place = tuple[str, str, str]


def get_domains(
    name: str,
    root: Path,
    source: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
    notify: Notify | None = None,
) -> Path:
    """Return the folder of a set under the root, put there if it was not.

    Args:
        name: A key of `DOMAIN_SETS`.
        root: Of all data.
        source: A tar or zip archive or a folder, with images as `…/<domain>/<class>/<image>`.
        force: Put it there even if it is.
        progress: Is told of megabytes and of images.
        notify: Is told what else is worth knowing.

    Raises:
        BadInput: It cannot be fetched by a program; or what was given is not in that layout.
        DownloadFailed: No mirror gave it.
        CorruptFile: The archive is damaged.
    """
    spec, target = DOMAIN_SETS[name], root / name
    if not spec.domains:
        raise BadInput(
            "not_fetchable",
            f'The data set "{name}" cannot be downloaded. {spec.placing}',
            name=name,
        )
    with hold_lock(root, name, notify):
        there = find_place(spec, root)
        if there is not None and not force:
            return there
        if source is not None:
            images = _images_in(source, spec, progress)
            _store(spec, target, images, f"imported from {source.name}")
        elif spec.files:
            _fetch_camera_traps(spec, root, progress, notify)
        else:
            raise BadInput(
                "not_fetchable",
                f'The data set "{name}" cannot be downloaded automatically. '
                f"{spec.placing.replace('{root}', str(root))}",
                name=name,
            )
    return target


def _images_in(
    source: Path, spec: DomainSpec, progress: Progress | None
) -> Iterable[tuple[Place, bytes]]:
    known = {normalize_name(name): name for name in spec.domains}
    n = 0
    for path, file in iter_paths(source):
        place = _find_place(path, known)
        if place is not None:
            n += 1
            if progress is not None and n % _STEP == 0:
                progress("unpacking images", n, spec.n_images)
            with guard_reading(source):
                content = file.read()
            yield place, content
    if n == 0:
        raise BadInput(
            "wrong_archive",
            f"{source} contains no image of {spec.name}: expected files such as "
            f"{next(iter(spec.domains))}/<class>/<image>, at any depth. Pass the archive that "
            "DomainBed uses, or a folder in that layout.",
            path=source,
        )


def _find_place(path: PurePosixPath, known: dict[str, str]) -> Place | None:
    """Return where an image goes; None for all that is no image of a known domain."""
    parts = path.parts
    if len(parts) < 3 or path.suffix.lower() not in SUFFIXES or "__MACOSX" in parts:
        return None
    domain = known.get(normalize_name(parts[-3]))
    if domain is None or not (is_plain(parts[-2]) and is_plain(parts[-1])):
        return None
    return domain, parts[-2], parts[-1]


def _store(
    spec: DomainSpec, target: Path, images: Iterable[tuple[Place, bytes]], origin: str
) -> None:
    """Write the images, check what is there then, and let it take its place."""
    with staged_folder(target) as folder:
        for place, content in images:
            path = folder.joinpath(*place)
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                raise BadInput(
                    "duplicate",
                    f"{'/'.join(place)} occurs more than once: the source contains several copies "
                    f"of {spec.name}. Pass one of them.",
                    name="/".join(place),
                )
            path.write_bytes(content)
        tree = list_tree(folder, spec)
        faults = find_faults(tree, spec)
        if faults:
            raise BadInput(
                "faulty_data",
                f"The files are not {spec.name}: " + "\n  ".join(faults[:5]),
                faults=tuple(faults),
            )
        warn_counts(tree.counts(), spec)
        write_card(
            folder,
            {
                "name": spec.name,
                "version": __version__,
                "source": origin,
                "licence": spec.licence,
                "images": tree.counts(),
            },
        )


def _fetch_camera_traps(
    spec: DomainSpec, root: Path, progress: Progress | None, notify: Notify | None
) -> None:
    """Fetch annotations and images of the camera traps, and sort the images of four places."""
    downloads = make_folder(root / _DOWNLOADS)
    annotations, archive = (fetch(file, downloads, progress, notify) for file in spec.files)
    places = _read_annotations(annotations, spec)

    def images() -> Iterable[tuple[Place, bytes]]:
        n = 0
        for path, file in iter_paths(archive):
            wanted = places.pop(path.name, [])
            if not wanted:
                continue
            with guard_reading(archive):
                content = file.read()
            for place in wanted:  # an image with two kinds of animals is in two classes
                n += 1
                if progress is not None and n % _STEP == 0:
                    progress("sorting images", n, spec.n_images)
                yield place, content
        if places:
            raise CorruptFile(
                "wrong_content",
                f"{archive} does not contain {len(places)} of the annotated images, such as "
                f"{next(iter(places))}. Remove the file and download it again.",
                path=archive,
            )

    _store(spec, root / spec.name, images(), spec.files[1].addresses[0])
    for file in (annotations, archive):
        file.unlink()


def _read_annotations(source: Path, spec: DomainSpec) -> dict[str, list[Place]]:
    """Return where each image goes, by its name: the places and classes that DomainBed takes."""
    places: dict[str, set[Place]] = {}
    for path, file in iter_paths(source):
        if path.suffix != ".json":
            continue
        try:
            with guard_reading(source):
                content = json.load(file)
            _sort_annotations(content, spec, places)
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
            f"{source} contains no annotation of an image of {', '.join(spec.domains)}. Remove "
            "the file and download it again.",
            path=source,
        )
    return {name: sorted(wanted) for name, wanted in places.items()}


def _sort_annotations(
    content: dict[str, Any], spec: DomainSpec, places: dict[str, set[Place]]
) -> None:
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
        if domain in spec.domains and kind in spec.classes and is_plain(name):
            places.setdefault(name, set()).add((domain, kind, name))
