"""The models and streams on which estimators of accuracy are compared; see `estimate.py`."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import acclimate
from acclimate import corruptions, zoo
from acclimate.builtin import SPLITS, load_model, render
from acclimate.data import data_root

SHARED = Path(os.environ.get("ACCLIMATE_SHARED", "/work/shared")) / "data"
SEVERITY = 5
N_SOURCE = 2048

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Images = tuple[Pixels, Tensor]  # (N, height, width, 3), and labels


@dataclass(frozen=True)
class Stream:
    """In which order and in batches of which size images come.

    Attributes:
        order: `"shuffled"` or `"sorted"` by class.
        batch_size: Batch size.
        methods: Names of rows of `METHODS`.
        share: Share of the images per corruption that the stream has.
    """

    order: str
    batch_size: int
    methods: tuple[str, ...]
    share: float = 1.0


@dataclass(frozen=True)
class Data:
    """What a model is measured on.

    Attributes:
        source: Images that the artifact is prepared from and that calibrate other estimators.
        held_out: Clean images of the test set that are not in the stream; None if there are none.
        shifted: Returns the images of the stream under a corruption.
        about: What the images are.
    """

    source: Images
    held_out: Images | None
    shifted: Callable[[str], Images]
    about: dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One model with its data.

    Attributes:
        load: Returns the model.
        read: Returns the data, given the number of images per corruption and the seed.
        stages: Modules after which dropout is applied.
        shared: Modules up to the first of these, in order: all passes with dropout share them.
        dropout: Probability of dropout, the authors' for the data set.
        window: Number of images of a window.
        n_images: Images per corruption.
        corruptions: Names.
        streams: By name.
        accuracy: Options of the part `accuracy`.
    """

    load: Callable[[], nn.Module]
    read: Callable[[int, int], Data]
    stages: tuple[str, ...]
    shared: tuple[str, ...]
    dropout: float
    window: int
    n_images: int
    streams: Mapping[str, Stream]
    corruptions: tuple[str, ...] = corruptions.BENCHMARK
    accuracy: Mapping[str, Any] = field(default_factory=dict)


#: Methods with options; `infomax_x10` learns ten times as fast as `infomax`, and collapses.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "norm": ("norm", {}),
    "tent": ("tent", {}),
    "swr_nsp": ("swr_nsp", {}),
    "infomax_x10": ("infomax", {"lr": 10 * acclimate.get_method("infomax").config_class().lr}),
}


def _shuffle(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def _take(images: Pixels, labels: Tensor, chosen: Tensor) -> Images:
    return np.ascontiguousarray(images[chosen.numpy()]), labels[chosen]


def _read_cifar10(n_images: int, seed: int) -> Data:
    root = data_root()
    sets = {}
    for split in ("train", "test"):
        folder = root / "cifar10" / split
        labels = torch.from_numpy(np.load(folder / "labels.npy").astype(np.int64))
        sets[split] = np.load(folder / "images.npy", mmap_mode="r"), labels
    order = _shuffle(10_000, seed)
    folder = root / "cifar10c-generated"
    labels = torch.from_numpy(np.load(folder / "labels.npy").astype(np.int64))

    def shifted(name: str) -> Images:
        whole = np.load(folder / f"{name}.npy", mmap_mode="r")
        first = 10_000 * (SEVERITY - 1)
        return _take(whole[first : first + 10_000], labels[-10_000:], order[:n_images])

    return Data(
        _take(*sets["train"], _shuffle(50_000, seed)[:N_SOURCE]),
        _take(*sets["test"], order[n_images : n_images + N_SOURCE]),
        shifted,
        {
            "name": "CIFAR-10-C, made by acclimate.corruptions",
            "stream": f"first {n_images} of the 10,000 test images after a shuffle by the seed",
            "source": f"first {N_SOURCE} training images after a shuffle by the seed",
            "held_out": f"next {N_SOURCE} clean test images of the shuffle",
        },
    )


def _read_sheet(path: Path) -> Pixels:
    sheet = np.asarray(Image.open(path).convert("RGB"))
    tiles = sheet.reshape(100, 32, 100, 32, 3).swapaxes(1, 2)
    return np.ascontiguousarray(tiles.reshape(10_000, 32, 32, 3))


def _read_cifar100(n_images: int, seed: int) -> Data:
    folder = SHARED / "cifar100"
    labels = np.load(folder / "labels.npz")
    test = _read_sheet(folder / "test.webp")
    y = torch.from_numpy(labels["test"].astype(np.int64))
    train = np.concatenate([_read_sheet(folder / f"train_{n}.webp") for n in range(5)])
    train_y = torch.from_numpy(labels["train"].astype(np.int64))

    def shifted(name: str) -> Images:
        return corruptions.apply(test[:n_images], name, SEVERITY, seed), y[:n_images]

    return Data(
        _take(train, train_y, _shuffle(50_000, seed)[:N_SOURCE]),
        _take(test, y, torch.arange(n_images, n_images + N_SOURCE)),
        shifted,
        {
            "name": "CIFAR-100 test images under corruptions made by acclimate.corruptions",
            "stream": f"first {n_images} test images",
            "source": f"first {N_SOURCE} training images after a shuffle by the seed",
            "held_out": f"next {N_SOURCE} clean test images",
        },
    )


def _read_imagenet_sample(n_images: int, seed: int) -> Data:
    found: dict[str, Pixels] = {}
    with tarfile.open(SHARED / "imagenet-sample-1000-224.tar") as archive:
        for member in archive:
            if member.isfile() and (file := archive.extractfile(member)) is not None:
                kind = Path(member.name).parent.name
                found[kind] = np.asarray(Image.open(file).convert("RGB"))
    images = np.stack([found[kind] for kind in sorted(found)])
    order = _shuffle(len(images), seed)
    stream = order[500 : 500 + n_images]

    def shifted(name: str) -> Images:
        chosen, labels = _take(images, torch.arange(len(images)), stream)
        return corruptions.apply(chosen, name, SEVERITY, seed), labels

    return Data(
        _take(images, torch.arange(len(images)), order[:500]),
        None,
        shifted,
        {
            "name": "sample of ImageNet, one image of each class, probably training images",
            "stream": f"{n_images} of the other 500 images of the shuffle",
            "source": "first 500 images after a shuffle of the classes by the seed",
            "held_out": "none",
        },
    )


def _read_builtin(n_images: int, seed: int) -> Data:
    def take(split: str, n: int) -> Images:
        images, labels = render(n, SPLITS[split])
        return images, torch.from_numpy(labels)

    test, y = take("test", 2 * n_images)

    def shifted(name: str) -> Images:
        return corruptions.apply(test[:n_images], name, SEVERITY, seed), y[:n_images]

    return Data(
        take("train", 256),
        (test[n_images:], y[n_images:]),
        shifted,
        {
            "name": "built-in task",
            "stream": f"first {n_images} test images",
            "source": "first 256 training images",
            "held_out": f"next {n_images} test images",
        },
    )


def _load_lite0() -> nn.Module:
    from acclimate.paper.efficientnet import efficientnet_lite0

    return efficientnet_lite0()


def _load_zoo(name: str, file: str) -> Callable[[], nn.Module]:
    return lambda: zoo.load(name, weights=SHARED / "weights" / file)


_RESIDUAL = {
    "stages": ("stage1", "stage2", "stage3"),
    "shared": ("stem", "norm", "stage1"),
}
_STREAMS = {
    "iid": Stream("shuffled", 200, ("norm", "tent", "swr_nsp", "infomax_x10")),
    "small": Stream("shuffled", 16, ("norm", "tent"), share=0.5),
    "sorted": Stream("sorted", 50, ("norm", "tent"), share=0.5),
}
#: A noise, two blurs, a weather and two digital ones; fixed before anything was measured.
_SIX = ("gaussian_noise", "defocus_blur", "zoom_blur", "fog", "contrast", "jpeg_compression")

CASES: dict[str, Case] = {
    "resnet20-cifar10": Case(
        load=_load_zoo("resnet20-cifar10", "cifar10-resnet20.safetensors"),
        read=_read_cifar10,
        **_RESIDUAL,
        dropout=0.4,
        window=1000,
        n_images=2000,
        streams=_STREAMS,
    ),
    "resnet32-cifar100": Case(
        load=_load_zoo("resnet32-cifar100", "cifar100-resnet32.safetensors"),
        read=_read_cifar100,
        **_RESIDUAL,
        dropout=0.3,
        window=1000,
        n_images=2000,
        streams=_STREAMS,
    ),
    "efficientnet-lite0": Case(
        load=_load_lite0,
        read=_read_imagenet_sample,
        # The last blocks at a quarter, an eighth, a sixteenth and less of the resolution.
        stages=tuple(f"model._blocks.{n}" for n in (2, 4, 10, 15)),
        shared=("model._conv_stem", "model._bn0", *(f"model._blocks.{n}" for n in range(3))),
        dropout=0.2,
        window=500,
        n_images=500,
        streams={"iid": Stream("shuffled", 50, ("norm", "tent"))},
        corruptions=_SIX,
        accuracy={"n_samples": 256},
    ),
    "builtin": Case(
        load=load_model,
        read=_read_builtin,
        stages=("stage1", "stage2", "stage3"),
        shared=("stem", "stage1"),
        dropout=0.4,
        window=64,
        n_images=128,
        streams={"iid": Stream("shuffled", 32, ("norm", "tent")), "sorted": _STREAMS["sorted"]},
        corruptions=("fog", "pixelate"),
        accuracy={"n_samples": 64, "severities": (5,), "n_runs": 4},
    ),
}
