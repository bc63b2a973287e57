"""Tiny stand-ins for published sets, in every form they are published in.

They are made once and shared: arrays and mappings are read-only.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
from PIL import Image

from acclimate.data.catalog import SETS, DataSet, Split

N_BATCH = 6
CORRUPTIONS = ("fog", "brightness")


@cache
def make_pair(name: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return random images and labels: of CIFAR-10 five batches and one, of CIFAR-100 one each."""
    n = N_BATCH * (5 if name == "cifar10" and split == "train" else 1)
    draws = np.random.default_rng([len(name), len(split)])
    images = draws.integers(0, 256, (n, 32, 32, 3)).astype(np.uint8)
    labels = draws.integers(0, len(SETS[name].classes), n)
    for array in (images, labels):
        array.setflags(write=False)
    return images, labels


def sha256(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


@cache
def tiny_entry(name: str) -> DataSet:
    """Return the catalog's entry with the content of `make_pair`."""
    splits = {}
    for split in ("train", "test"):
        images, labels = make_pair(name, split)
        splits[split] = Split(len(images), sha256(images), sha256(labels.astype(np.int64)))
    return replace(SETS[name], splits=splits)


def batches(name: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return images and labels by the name of the batch they are published in."""
    if name == "cifar100":
        return {split: make_pair(name, split) for split in ("train", "test")}
    images, labels = make_pair(name, "train")
    parts = {
        f"data_batch_{i + 1}": (images[i * N_BATCH :][:N_BATCH], labels[i * N_BATCH :][:N_BATCH])
        for i in range(5)
    }
    return {**parts, "test_batch": make_pair(name, "test")}


def planes(image: np.ndarray) -> bytes:
    return b"".join(image[:, :, channel].tobytes() for channel in range(3))


@cache
def binary_files(name: str) -> Mapping[str, bytes]:
    """Return the binary form: one label byte, or coarse and fine, then the three planes."""
    head = b"" if name == "cifar10" else b"\x13"
    files = {
        f"{batch}.bin": b"".join(
            head + bytes([label]) + planes(image)
            for image, label in zip(images, labels, strict=True)
        )
        for batch, (images, labels) in batches(name).items()
    }
    return MappingProxyType(files)


@cache
def pickle_files(name: str) -> Mapping[str, bytes]:
    """Return the Python form, opcode by opcode as Python 2 wrote it."""
    key = b"labels" if name == "cifar10" else b"fine_labels"

    def text(content: bytes) -> bytes:
        return b"U" + bytes([len(content)]) + content

    files = {}
    for batch, (images, labels) in batches(name).items():
        data = b"".join(planes(image) for image in images)
        numbers = b"".join(b"K" + bytes([label]) for label in labels)
        array = (
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
            b"(K\x01K"
            + bytes([len(images)])
            + b"M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
            b"\x89T" + struct.pack("<i", len(data)) + data + b"tb"
        )
        coarse = text(b"coarse_labels") + b"](K\x05K\x06e" if name == "cifar100" else b""
        files[batch] = (
            b"\x80\x02}("
            + text(b"batch_label")
            + text(b"a batch")
            + text(b"data")
            + array
            + coarse
            + (text(key) + b"](" + numbers + b"e")
            + (text(b"filenames") + b"](" + text(b"a.png") + b"e")
            + b"u."
        )
    return MappingProxyType(files)


@cache
def sheet_files() -> Mapping[str, bytes]:
    """Return the form of the npm package: one image a row, labels apart."""
    files = {}
    for batch, (images, _) in batches("cifar10").items():
        content = io.BytesIO()
        Image.fromarray(images.reshape(len(images), 1024, 3)).save(content, "PNG")
        files[f"{batch}.png"] = content.getvalue()
    for split in ("train", "test"):
        labels = make_pair("cifar10", split)[1].tolist()
        files[f"{split}_lables.json"] = json.dumps(labels).encode()
    return MappingProxyType(files)


def write_tar(path: Path, files: Mapping[str, bytes], folder: str = "published") -> Path:
    with tarfile.open(path, "w:gz" if path.suffix in (".gz", ".tgz") else "w") as archive:
        for name, content in {"readme.html": b"<p>", **files}.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def as_npy(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


@cache
def corrupted_files() -> Mapping[str, bytes]:
    """Return two corruptions and the labels in the layout of CIFAR-10-C."""
    _, labels = make_pair("cifar10", "test")
    draws = np.random.default_rng(1)
    files = {
        f"{name}.npy": as_npy(draws.integers(0, 256, (5 * N_BATCH, 32, 32, 3)).astype(np.uint8))
        for name in CORRUPTIONS
    }
    files["labels.npy"] = as_npy(np.tile(labels, 5).astype(np.uint8))
    return MappingProxyType(files)


@cache
def tiny_corrupted_entry() -> DataSet:
    files = corrupted_files()
    md5 = {Path(name).stem: hashlib.md5(content).hexdigest() for name, content in files.items()}
    return replace(SETS["cifar10c"], md5=md5)
