"""Looking at every byte of a set on disk: facts, and what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from acclimate.corruptions.frost import frost_from
from acclimate.data.arrays import CARD, array_sha256, open_array, read_card
from acclimate.data.catalog import DataSet, get_set
from acclimate.data.cifar import make_remedy
from acclimate.data.cifar_c import (
    generated_folder,
    open_block,
    published_folder,
    write_published_card,
)
from acclimate.data.domain_check import check_domains
from acclimate.data.download import file_digest
from acclimate.data.folders import find_base, list_corrupted
from acclimate.data.ingredients import find_faults
from acclimate.data.ledger import find_origin, read_ledger
from acclimate.data.masks.check import check_masks
from acclimate.data.masks.specs import IGNORE
from acclimate.data.places import Progress, data_root
from acclimate.errors import BadInput, CorruptFile
from acclimate.streams.images import list_images, read_ahead

_GROUP = 64
_SMALL = (32, 32)  # a decoded image is thrown away: small is quick


@dataclass(frozen=True)
class Report:
    """What was found when a set was looked at.

    Attributes:
        facts: For people, by title.
        problems: One sentence each, with what to do; empty if all is right.
    """

    facts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def check(
    name: str,
    root: str | Path | None = None,
    path: str | Path | None = None,
    progress: Progress | None = None,
    ignore_label: int | None = None,
) -> Report:
    """Return what is on disk of a set, and what is wrong with it.

    Args:
        name: Of a set.
        root: Of all data; see `data_root`.
        path: Where a set of folders is, if not under the root.
        progress: Is told of files.
        ignore_label: The value of masks that stands for no label; None is the set's own, or 255.

    Raises:
        BadInput: There is no such set, or nothing of it is on disk.
    """
    place = data_root(root)
    entry = get_set(name)
    if ignore_label is not None and entry.kind != "masks":
        raise BadInput(
            "not_applicable",
            f"The option ignore_label applies only to data sets with masks; {name} has none. "
            "Remove the option.",
            option="ignore_label",
        )
    if entry.kind == "made":
        return Report({"source": entry.placing})
    if entry.kind == "folder":
        return _check_folder(entry, place, path, progress)
    if entry.kind == "domains":
        return Report(*check_domains(name, place, path, progress))
    if entry.kind == "masks":
        ignored = IGNORE if ignore_label is None else ignore_label
        return Report(*check_masks(name, place, path, progress, ignored))
    if entry.kind == "cifar_c":
        with frost_from(place):
            return Report(*_check_cifar_c(entry, place, progress))
    if entry.kind == "ingredient":
        return _check_ingredient(entry, place)
    return Report(*_check_cifar(entry, place))


def _check_ingredient(entry: DataSet, root: Path) -> Report:
    folder = root / entry.name
    if not folder.is_dir():
        raise BadInput(
            "not_fetched",
            f'The data set "{entry.name}" has not been downloaded to {root}. Run: acclimate data '
            f"get {entry.name} --data-dir {root}",
            name=entry.name,
        )
    return Report({"folder": str(folder), "licence": entry.licence}, find_faults(entry, root))


def _check_folder(
    entry: DataSet, root: Path, path: str | Path | None, progress: Progress | None
) -> Report:
    if entry.name == "image-folder" and path is None:
        raise BadInput(
            "missing_option",
            'The data set "image-folder" is a local folder. Pass its path with --dir.',
            option="path",
        )
    base = find_base(entry, root, path)
    if not base.is_dir():
        raise BadInput(
            "not_found",
            f'The data set "{entry.name}" was not found at {base}. '
            f"{entry.placing.replace('{root}', str(root))}",
            path=base,
        )
    images = list_images(base)
    facts = {"folder": str(base), "images": f"{len(images):,}"}
    if entry.name == "imagenetc":
        for name, severities in list_corrupted(base).items():
            facts[name] = "severity " + ", ".join(map(str, severities))
    else:
        facts["folders"] = f"{len({image.parent for image in images}):,}"
    problems = []
    groups = [images[start : start + _GROUP] for start in range(0, len(images), _GROUP)]
    for number, (group, results) in enumerate(zip(groups, read_ahead(groups, _SMALL), strict=True)):
        problems += [
            f"{image} cannot be read ({result})."
            for image, result in zip(group, results, strict=True)
            if isinstance(result, str)
        ]
        if progress is not None:
            progress("reading images", min((number + 1) * _GROUP, len(images)), len(images))
    facts["unreadable"] = f"{len(problems):,}"
    return Report(facts, problems)


def _check_cifar(entry: DataSet, root: Path) -> tuple[dict[str, str], list[str]]:
    """Return facts about a set on disk, and what is wrong with it, every byte looked at."""
    folder, remedy = root / entry.name, make_remedy(entry, root)
    if not folder.is_dir():
        raise BadInput(
            "not_fetched",
            f'The data set "{entry.name}" has not been downloaded to {root}. Run: acclimate data '
            f"get {entry.name} --data-dir {root}",
            name=entry.name,
        )
    card = read_card(folder / CARD, remedy, "source", "splits")
    facts, problems = {"source": str(card["source"])}, []
    for split, said in card["splits"].items():
        expected = entry.splits.get(split)
        for what, digest in (
            ("images", expected.images if expected else said["sha256"]),
            ("labels", expected.labels if expected else said["labels_sha256"]),
        ):
            path = folder / split / f"{what}.npy"
            try:
                array = open_array(path, remedy)
            except CorruptFile as error:
                problems.append(str(error))
                continue
            facts[f"{split} {what}"] = f"{array.shape}"
            if array_sha256(array) != digest:
                problems.append(
                    f"{path} differs from what was downloaded: its SHA-256 differs. {remedy}"
                )
    return facts, problems


def _check_cifar_c(
    entry: DataSet, root: Path, progress: Progress | None = None
) -> tuple[dict[str, str], list[str]]:
    """Return facts about a set on disk, and what is wrong with it, every byte looked at.

    Published files that were put in place by hand get their card when all is right.
    """
    folder = published_folder(entry, root)
    if folder is None:
        return _check_generated(entry, generated_folder(entry, root), progress)
    remedy = make_remedy(entry, root)
    present = [name for name in entry.md5 if (folder / f"{name}.npy").is_file()]
    problems = [f"{name}.npy is missing. {remedy}" for name in entry.md5 if name not in present]
    for number, name in enumerate(present):
        if progress is not None:
            progress(f"reading {entry.name} (files)", number, len(present))
        path = folder / f"{name}.npy"
        try:
            if name != "labels":
                open_block(folder, name, 1, remedy)
        except CorruptFile as error:
            problems.append(str(error))
            continue
        if file_digest(path, "md5") != entry.md5[name]:
            problems.append(f"{path} is not the published file: its MD5 differs. {remedy}")
    facts = {"source": "published", "corruptions": f"{len(present) - 1} of {len(entry.md5) - 1}"}
    if not problems and not (folder / CARD).is_file():
        write_published_card(entry, folder, [f"{name}.npy" for name in present])
    return facts, problems


def _check_generated(
    entry: DataSet, folder: Path, progress: Progress | None
) -> tuple[dict[str, str], list[str]]:
    ledger = read_ledger(folder)
    if ledger is None:
        raise BadInput(
            "not_fetched",
            f'The data set "{entry.name}" has not been downloaded to {folder.parent}. Run: '
            f"acclimate data get {entry.name}, or generate it: acclimate data corrupt "
            f"{entry.clean}",
            name=entry.name,
        )
    remedy = f"Remove the file and generate it again: acclimate data corrupt {entry.clean}"
    facts, problems = {"source": "generated", "seed": str(ledger["seed"])}, []
    for number, (name, blocks) in enumerate(ledger["blocks"].items()):
        if progress is not None:
            progress(f"reading {entry.name} (files)", number, len(ledger["blocks"]))
        facts[name] = "severity " + ", ".join(sorted(blocks))
        if name == "frost" and blocks:
            origins = {find_origin(ledger, name, int(severity)) for severity in blocks}
            facts[name] += f" ({'; '.join(sorted(origins))})"
        for severity, block in blocks.items():
            try:
                images, _ = open_block(folder, name, int(severity), remedy)
            except CorruptFile as error:
                problems.append(str(error))
                break
            if array_sha256(images) != block["sha256"]:
                path = folder / f"{name}.npy"
                problems.append(f"{path}, severity {severity}: its SHA-256 differs. {remedy}")
    return facts, problems
