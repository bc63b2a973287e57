"""The verbs for a set by its name: get it, load it, corrupt it, say what is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acclimate.corruptions.frost import PROCEDURAL, frost_from
from acclimate.data.arrays import CARD, LabelledImages, array_sha256, read_card
from acclimate.data.catalog import SETS, DataSet, get_set
from acclimate.data.cifar import get_cifar, load_cifar, make_remedy
from acclimate.data.cifar_c import (
    generated_folder,
    get_cifar_c,
    load_cifar_c,
    published_folder,
)
from acclimate.data.corruptor import choose_corruptions
from acclimate.data.generate import generate
from acclimate.data.ingredients import get_ingredient
from acclimate.data.ledger import has_procedural_frost, read_ledger
from acclimate.data.places import Notify, Progress, data_root
from acclimate.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    from acclimate.data.folders import LabelledFolder

_OPTIONS: dict[str, tuple[str, ...]] = {
    "cifar": (),
    "cifar10_1": (),
    "cifar_c": ("corruption", "severity", "seed", "workers", "progress"),
    "made": ("n", "start"),
}


def get(
    name: str,
    root: str | Path | None = None,
    source: str | Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
    notify: Notify | None = None,
) -> Path:
    """Return where a set is, fetched and checked if it was not there.

    Args:
        name: A key of `SETS`.
        root: Of all data; see `data_root`.
        source: An archive, folder or file that was brought here by other means.
        force: Fetch it even if it is there.
        progress: Is told of megabytes.
        notify: Is told of each mirror that failed.

    Raises:
        BadInput: There is no such set, or it cannot be fetched by a program.
        DownloadFailed: No mirror gave it.
        CorruptFile: What came, or was given, is not the published set.
    """
    place, entry = data_root(root), get_set(name)
    given = None if source is None else Path(source)
    if entry.kind == "ingredient":
        return get_ingredient(entry, place, given, force, progress, notify)
    if entry.kind == "cifar_c":
        return get_cifar_c(entry, place, given, force, progress, notify)
    if entry.kind in ("cifar", "cifar10_1"):
        return get_cifar(entry, place, given, force, progress, notify)
    if entry.kind == "domains":
        from acclimate.data.domain_import import get_domains

        return get_domains(name, place, given, force, progress, notify)
    if entry.kind == "masks":
        from acclimate.data.masks.importing import get_masks

        return get_masks(name, place, given, force, progress, notify)
    raise BadInput(
        "not_fetchable",
        f'The data set "{name}" cannot be downloaded automatically. '
        f"{entry.placing.replace('{root}', str(place))}",
        name=name,
    )


def load(
    name: str, split: str = "test", root: str | Path | None = None, **options: Any
) -> LabelledImages:
    """Return a set as arrays, memory-mapped where it lies on disk.

    Args:
        name: A key of `SETS` that has labelled images and is no folder.
        split: Such as `train` or `test`.
        root: Of all data; see `data_root`.
        **options: Of a corrupted set: `corruption` and `severity` (5), and where it has to be made
            `seed` (0), `workers` (1) and `progress`. Of `builtin`: `n` (2000) and `start` (0).

    Raises:
        BadInput: There is no such set, split or option, or it is not on disk.
        CorruptFile: What is on disk is damaged.

    >>> images = load("builtin", n=10)
    >>> images.images.shape, images.description["n"]
    ((10, 32, 32, 3), 10)
    """
    entry, place = get_set(name), data_root(root)
    if entry.kind not in _OPTIONS:
        raise _wrong_loader(entry)
    known = _OPTIONS[entry.kind]
    for option in options:
        if option not in known:
            raise BadInput(
                "unknown_option",
                f'The data set "{name}" has no option "{option}". {did_you_mean(option, known)}',
                option=option,
                known=known,
            )
    if entry.kind == "made":
        return _load_builtin(split, **options)
    if entry.kind == "cifar_c":
        if split != "test":
            raise BadInput(
                "unknown_name",
                f'The data set "{name}" has only a test split, found "{split}".',
                kind="split",
                name=split,
                known=("test",),
            )
        if "corruption" not in options:
            raise BadInput(
                "missing_option",
                f'The data set "{name}" needs a corruption, such as load("{name}", '
                'corruption="fog").',
                option="corruption",
            )
        return load_cifar_c(entry, place, **options)
    return load_cifar(entry, place, split)


def load_folder(
    name: str, split: str = "val", root: str | Path | None = None, **options: Any
) -> LabelledFolder:
    """Return a set of image files as batches `(x, y)`, to be gone through as often as needed.

    Args:
        name: `imagenet`, `imagenetc` or `image-folder`.
        split: Sub-folder, if there is one of that name.
        root: Of all data; see `data_root`.
        **options: Of `acclimate.data.folders.load_folder`: `path`, `corruption`, `severity`,
            `size`, `resize`, `batch_size`, `normalization`, `seed`, `classes`.

    Raises:
        BadInput: There is no such set, or it is not on disk.
    """
    from acclimate.data import folders

    entry = get_set(name)
    if entry.kind != "folder":
        raise _wrong_loader(entry)
    return folders.load_folder(entry, data_root(root), split, **options)


def _wrong_loader(entry: DataSet) -> BadInput:
    """Return the error for a data set that another function loads."""
    name = f'The data set "{entry.name}"'
    texts = {
        "folder": f"{name} is a folder of image files. Use "
        f'acclimate.data.load_folder("{entry.name}").',
        "domains": f"{name} has several domains. Use acclimate.data.domains.load_domains"
        f'("{entry.name}"). On the command line, train with --algorithm and evaluate with --data '
        f"{entry.name}.",
        "masks": f"{name} has a class for every pixel. Use acclimate.data.masks.load_masks"
        f'("{entry.name}"). On the command line, train with --task segmentation.',
        "ingredient": f"{name} has no labels; it is used to generate other data sets "
        f"({entry.text}).",
    }
    arrays = f'{name} is not a folder of image files. Use acclimate.data.load("{entry.name}").'
    return BadInput("wrong_loader", texts.get(entry.kind, arrays), name=entry.name)


def corrupt(
    name: str,
    names: Sequence[str] | None = None,
    severities: Sequence[int] = (5,),
    root: str | Path | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
    notify: Notify | None = None,
) -> Path:
    """Make corrupted copies of the test split of a set of arrays; return the folder.

    Args:
        name: `cifar10`, `cifar100`, or another set of arrays if `out` is given.
        names: Corruptions; `all` and `extra` stand for all nineteen and for the four held-out ones;
            None makes the fifteen of the benchmark.
        severities: From 1 to 5.
        root: Of all data; see `data_root`.
        out: Where to; None for the place where `load` looks.
        seed: Of the random draws.
        workers: Processes; 1 computes in this one.
        progress: Is told of images.
        notify: Is told when another process works on the same folder.

    Raises:
        BadInput: The set is not on disk or cannot be corrupted; a name or severity is unknown.
    """
    place = data_root(root)
    spoiled = [entry for entry in SETS.values() if entry.clean == name]
    if out is None and not spoiled:
        raise BadInput(
            "missing_option",
            f"There is no default folder for corrupted copies of {name}. Pass one with --out.",
            option="out",
        )
    folder = generated_folder(spoiled[0], place) if out is None else Path(out)
    wanted, clean = choose_corruptions(names), load(name, root=place)
    with frost_from(place):
        generate(clean, folder, wanted, severities, seed, workers, progress, notify)
    return folder


def find_state(name: str, root: str | Path | None = None) -> str:
    """Return in a few words what of a set is on disk; empty if nothing."""
    place, entry = data_root(root), get_set(name)
    if entry.kind == "ingredient":
        there = all((place / name / file).is_file() for file in entry.sha256)
        return f"{len(entry.sha256)} files" if there else ""
    if entry.kind == "made" or name in ("builtin-domains", "builtin-scenes"):
        return "made by code"
    if entry.kind == "cifar_c":
        return _find_corrupted(entry, place)
    if entry.kind == "folder":
        places = [place / entry.name, place / f"{entry.name}-generated"]
        return "folder" if any(folder.is_dir() for folder in places) else ""
    card = place / entry.name / CARD
    if entry.kind == "domains" and not card.is_file():
        from acclimate.data.domain_tree import describe_place

        return describe_place(name, place)
    if entry.kind == "masks" and not card.is_file():
        return "folder" if (place / name).is_dir() else ""
    return (
        str(read_card(card, make_remedy(entry, place), "source")["source"])
        if card.is_file()
        else ""
    )


def _find_corrupted(entry: DataSet, root: Path) -> str:
    folder = published_folder(entry, root)
    if folder is not None:
        n = sum((folder / f"{name}.npy").is_file() for name in entry.md5) - 1
        return f"{'official' if (folder / CARD).is_file() else 'unchecked'}, {n} corruptions"
    ledger = read_ledger(generated_folder(entry, root))
    if ledger is None:
        return ""
    n_blocks = sum(len(blocks) for blocks in ledger["blocks"].values())
    frost = f", {PROCEDURAL}" if has_procedural_frost(ledger) else ""
    return f"generated, {len(ledger['blocks'])} corruptions, {n_blocks} blocks{frost}"


def _load_builtin(split: str, n: int = 2000, start: int = 0) -> LabelledImages:
    from acclimate.builtin import CLASSES, SPLITS, render

    if split not in SPLITS:
        raise BadInput(
            "unknown_name",
            f'The data set "builtin" has no split "{split}". {did_you_mean(split, SPLITS)}',
            kind="split",
            name=split,
            known=tuple(SPLITS),
        )
    images, labels = render(n, SPLITS[split], start)
    description = {
        "name": "builtin",
        "split": split,
        "source": "made by code",
        "sha256": array_sha256(images),
        "n": n,
        "start": start,
    }
    return LabelledImages(images, labels, CLASSES, description)
